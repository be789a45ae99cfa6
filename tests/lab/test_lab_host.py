import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.errors import BadInput
from lib_vram.estimate.result import Estimate
from lib_vram.host.base import FieldWrite
from lib_vram.host.lab import CARDS, CHECKPOINTS, LabHost, LabRun
from lib_vram.plan.result import Plan
from lib_vram.request import ControlUnit, ForgeSettings, Hires, Lora, VaeSpec
from lib_vram.units import GIB, MIB

FORM = {
    "lab_card": "NVIDIA GeForce RTX 3060",
    "lab_total_gib": 12,
    "lab_others_gib": 1.5,
    "lab_host": "AUTOMATIC1111",
    "lab_flags": "--medvram",
    "lab_mode": "Fix",
    "checkpoint": "sd_xl_base_1.0.safetensors",
    "width": 832,
    "height": 1216,
    "batch_size": 2,
    "batch_count": 3,
}


@pytest.fixture
def host():
    return LabHost()


def request(host, tab="txt2img", **changes):
    return host.request_from_form(tab, {**FORM, **changes})


def test_the_machine_and_the_fields_make_one_request(host):
    made = request(host)
    assert (made.host, made.host_args) == ("a1111", ("--medvram",))
    assert (made.device.total_bytes, made.device.used_by_others_bytes) == (12 * GIB, 1536 * MIB)
    assert (made.model.family, made.width, made.height, made.images) == ("sdxl", 832, 1216, 6)


def test_the_card_and_the_mode_are_those_of_the_last_form(host):
    request(host)
    card = host.card()
    assert (card.name, card.free_bytes, card.source) == ("NVIDIA GeForce RTX 3060", 10752 * MIB, "virtual")
    assert host.settings().mode == "fix"
    assert host.title == "Lab (AUTOMATIC1111)"


def test_the_optional_parts_are_read(host):
    made = request(
        host,
        prompt="a <lora:one:1> b <lora:two> <hypernet:x:1>",
        enable_hr=True,
        hr_scale=1.5,
        hr_upscaler="Lanczos",
        vae_tiled=True,
        vae_tile_size=512,
        cond_uncond_apart=True,
        controlnets=[
            {"enabled": True, "model": "control_canny", "low_vram": True},
            {"enabled": True, "model": "None"},
            {"enabled": False, "model": "control_depth"},
        ],
    )
    assert made.loras == (Lora(218 * MIB), Lora(218 * MIB))
    assert made.hires == Hires(1.5, 0, 0, "Lanczos")
    assert made.vae == VaeSpec("fp16", True, 512)
    assert made.controlnets == (ControlUnit("controlnet", "sdxl", True),)
    assert not made.batch_cond_uncond


def test_gpu_weights_leaves_the_rest_of_the_card_for_computing(host):
    made = request(host, lab_host="Forge", gpu_weights_mb=10240, never_oom_vae=True)
    assert made.forge == ForgeSettings(2 * GIB, True, False)


def test_resize_by_takes_the_size_from_the_picture_in_multiples_of_8(host):
    made = request(host, "img2img", resize_scale=1.5, image_width=333, image_height=512, enable_hr=True)
    assert (made.width, made.height, made.hires) == (496, 768, None)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"width": 0}, "width"),
        ({"height": "tall"}, "height"),
        ({"batch_size": 100_000}, "batch_size"),
        ({"checkpoint": "/etc"}, "checkpoint"),
        ({"lab_host": "ComfyUI"}, "lab_host"),
        ({"lab_total_gib": 0}, "device.total_bytes"),
        ({"lab_total_gib": float("nan")}, "lab_total_gib"),
        ({"controlnets": "all"}, "controlnets"),
        ({"lab_attention": "magic"}, "attention"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(host, change, field):
    with pytest.raises(BadInput) as bad:
        request(host, **change)
    assert bad.value.field == field


@given(
    st.dictionaries(
        st.sampled_from([*FORM, "prompt", "controlnets", "enable_hr", "hr_scale", "gpu_weights_mb", "vae_tiled"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=9)
        | st.lists(st.integers(), max_size=2),
    )
)
def test_whatever_a_form_holds_it_is_a_request_or_a_named_fault(changes):
    try:
        LabHost().request_from_form("txt2img", {**FORM, **changes})
    except BadInput as bad:
        assert bad.field


def test_a_fix_writes_only_the_fields_that_differ(host):
    original = request(host)
    changed = original.replace(batch_size=1, batch_count=6, vae=VaeSpec("fp16", True, 768))
    plan = Plan(True, (), changed, Estimate("fits", GIB))
    assert host.field_writes(plan, original) == (
        FieldWrite("batch_size", 1, 2),
        FieldWrite("batch_count", 6, 3),
        FieldWrite("vae_tiled", True, False),
        FieldWrite("vae_tile_size", 768, None),
    )


def test_what_a_fix_writes_makes_the_planned_request_when_it_is_read_again(host):
    original = request(host, enable_hr=True, hr_scale=2)
    changed = original.replace(
        batch_size=1, batch_count=6, hires=Hires(1.5), batch_cond_uncond=False, width=416, height=608
    )
    writes = host.field_writes(Plan(True, (), changed, Estimate("fits", GIB)), original)
    again = request(host, **{"enable_hr": True, "hr_scale": 2, **{write.field: write.value for write in writes}})
    assert again == changed


def test_a_plan_is_applied_to_the_run(host):
    run = LabRun(request(host))
    changed = run.request.replace(batch_size=1)
    host.apply(run, Plan(True, (), changed, Estimate("fits", GIB)), run.request)
    assert host.request_from_processing(run) == changed


def test_every_card_and_checkpoint_on_offer_can_be_used(host):
    for name, size in CARDS:
        assert request(host, lab_card=name, lab_total_gib=size).device.total_bytes == size * GIB
    for checkpoint in CHECKPOINTS:
        assert request(host, checkpoint=checkpoint.name).model.family == checkpoint.family
