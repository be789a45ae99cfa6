"""The request of a run is for what the run will load and set, not for what is selected on the page."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from tests.fakehost.processing import Img2Img, grid_cells

BACKEND = ("forge", "neo")


@pytest.fixture
def host(fake):
    return callbacks.guard().host


@pytest.fixture
def other(fake, tmp_path, monkeypatch):
    """Put a second checkpoint, of SDXL, beside the first, and one that only a run knows by its alias."""
    models = fake.modules["modules.sd_models"]
    first = models.checkpoints_list["model.safetensors"]
    second = SimpleNamespace(filename=str(tmp_path / "other.safetensors"), title="other.safetensors")
    known = {"model.safetensors": first, "other": second}
    models.checkpoints_list = {"other": second, "model.safetensors": first}
    models.checkpoint_aliases = known
    models.get_closet_checkpoint_match = known.get
    families = {first.filename: "sd15", second.filename: "sdxl"}

    def inspect(path):
        return SimpleNamespace(family=families.get(str(path)), components=(), problems=(), variant="inpaint")

    monkeypatch.setattr("lib_vram.host.webui.inspect_file", inspect)
    for name in fake.reads_headers_in:
        monkeypatch.setattr(f"{name}.inspect_file", inspect)
    return second.filename


def test_a_runs_own_checkpoint_is_the_one_that_is_computed(fake, host, other):
    p = fake.make(override_settings={"sd_model_checkpoint": "other"})
    model = host.request_from_processing(p).model
    assert (model.family, model.checkpoint, model.variant) == ("sdxl", other, "inpaint")
    assert host.request_from_processing(fake.make()).model.family == "sd15"


def test_a_checkpoint_that_the_host_does_not_know_is_left_out_as_it_does(fake, host, other):
    p = fake.make(override_settings={"sd_model_checkpoint": "nothing like it"})
    assert host.request_from_processing(p).model.family == "sd15"


def test_the_second_pass_may_have_a_checkpoint_of_its_own(fake, host, other):
    p = fake.make(enable_hr=True)
    p.hr_checkpoint_name = "other"
    request = host.request_from_processing(p)
    assert (request.model.family, request.hires_model.family, request.hires_model.checkpoint) == ("sd15", "sdxl", other)
    for same in ("Use same checkpoint", None, "model.safetensors"):
        p.hr_checkpoint_name = same
        assert host.request_from_processing(p).hires_model is None
    p.enable_hr, p.hr_checkpoint_name = False, "other"
    assert host.request_from_processing(p).hires_model is None


def test_without_an_override_the_run_goes_back_to_the_first_checkpoint_for_its_second_pass(fake, host, other):
    p = fake.make(enable_hr=True, override_settings={"sd_model_checkpoint": "other"})
    p.hr_checkpoint_name = "model.safetensors"
    request = host.request_from_processing(p)
    assert (request.model.family, request.hires_model.family) == ("sdxl", "sd15")


def test_options_of_the_run_count_as_the_run_has_them(fake, host):
    p = fake.make(override_settings={"token_merging_ratio": 0.5, "show_progress_type": "Full"})
    request = host.request_from_processing(p)
    assert (request.token_merging_ratio, request.live_preview) == (0.5, "full")
    after = host.request_from_processing(fake.make())
    assert (after.token_merging_ratio, after.live_preview) == (0.0, "approx")
    assert host.option("show_progress_type", None) == "Approx NN"


def test_halves_that_the_run_has_apart_are_computed_apart(fake, host):
    p = fake.make(override_settings={"batch_cond_uncond": False})
    assert host.request_from_processing(p).batch_cond_uncond is (host.name != "a1111")
    assert host.request_from_processing(fake.make()).batch_cond_uncond


def test_an_option_that_is_read_at_another_time_does_not_count(fake, host):
    fake.opts.data["fp8_storage"] = "Disable"
    p = fake.make(override_settings={"fp8_storage": "Enable", "cross_attention_optimization": "None"})
    assert host.request_from_processing(p) == host.request_from_processing(fake.make())


@pytest.mark.parametrize(
    ("overrides", "dtype"),
    [
        ({"forge_unet_storage_dtype": "float8-e4m3fn"}, "fp16"),
        ({"forge_unet_storage_dtype": "float8-e4m3fn", "forge_additional_modules": ["t5.safetensors"]}, "fp8"),
        ({"forge_unet_storage_dtype": "float8-e4m3fn", "forge_additional_modules": []}, "fp16"),
    ],
)
def test_low_bits_count_where_the_model_is_loaded_anew(fake, host, overrides, dtype):
    if host.name not in BACKEND:
        pytest.skip("another host has no such option")
    fake.opts.data["forge_additional_modules"] = []
    p = fake.make(override_settings=overrides)
    assert host.request_from_processing(p).model.weights_dtype == dtype


def test_files_chosen_for_the_run_are_those_that_it_loads(fake, host, monkeypatch):
    if host.name not in BACKEND:
        pytest.skip("another host has no such files")
    fake.modules["modules_forge.main_entry"].module_list = {"t5.safetensors": "/m/t5.safetensors"}
    fake.opts.data["forge_additional_modules"] = ["/m/old.safetensors"]
    seen = []
    monkeypatch.setattr("lib_vram.host.backend_line.chosen_modules", lambda paths: seen.append(paths) or NOTHING)
    host.request_from_processing(fake.make(override_settings={"forge_additional_modules": ["/x/t5.safetensors"]}))
    host.request_from_processing(fake.make())
    assert seen == [["/m/t5.safetensors"], ["/m/old.safetensors"]]


NOTHING = SimpleNamespace(text_encoders=(), vae_checkpoint=None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"resize_mode": 3}, (900, 700)),
        ({"resize_mode": 0}, None),
        ({"resize_mode": 3, "image_mask": object(), "inpaint_full_res": True}, None),
        ({"resize_mode": 3, "image_mask": object(), "inpaint_full_res": False}, (900, 700)),
    ],
)
def test_a_picture_that_is_encoded_as_it_is_has_its_own_size(fake, host, fields, expected):
    p = fake.img2img([SimpleNamespace(size=(900, 700))], width=512, height=512)
    vars(p).update(fields)
    start = host.request_from_processing(p).start_picture
    assert (start and (start.width, start.height)) == expected


def test_each_run_of_a_grid_is_computed_as_it_runs(fake, host, other, monkeypatch):
    seen = []
    request_of = type(host)._request
    monkeypatch.setattr(type(host), "_request", lambda self, want: seen.append(request_of(self, want)) or seen[-1])
    grid_cells(fake.make(), [{"width": 512}, {"width": 768}, {"override_settings": {"sd_model_checkpoint": "other"}}])
    asked = dict.fromkeys((request.width, request.model.family) for request in seen)
    assert list(asked) == [(512, "sd15"), (768, "sd15"), (512, "sdxl")]


def test_a_loop_over_its_own_result_is_computed_each_time(fake, host, monkeypatch):
    seen = []
    request_of = type(host)._request
    monkeypatch.setattr(type(host), "_request", lambda self, want: seen.append(request_of(self, want)) or seen[-1])
    p = fake.make(Img2Img, init_images=[SimpleNamespace(size=(512, 512))])
    for _ in range(2):
        before = len(seen)
        grid_cells(p, [{}])
        assert len(seen) > before
