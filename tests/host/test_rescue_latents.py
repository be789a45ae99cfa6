"""Latents are on disk while a risky decode runs, gone when the pictures are saved, and decoded later when cut off."""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from lib_vram.errors import BadInput
from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.guard import fail_open
from lib_vram.guard.kept_latents import KeptLatents
from lib_vram.host import rescue, rescue_latents, rescue_levers
from lib_vram.host.freeing import Busy

_spec = importlib.util.spec_from_file_location("rescue_host", Path(__file__).parent / "rescue_host.py")
webui = importlib.util.module_from_spec(_spec)
sys.modules["rescue_host"] = webui
_spec.loader.exec_module(webui)

GIB = 1024**3


def write(batch, metadata, path):
    """Stand in for safetensors, whose own writer needs torch."""
    header = json.dumps({"__metadata__": metadata, "latents": [latent.made_of for latent in batch]}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


@pytest.fixture
def host(monkeypatch, tmp_path):
    made = webui.Host(vae={"dtype": "fp16"}).install(monkeypatch)
    monkeypatch.setattr(rescue_levers.gc, "collect", lambda: 0)
    monkeypatch.setattr(rescue_latents, "_write", write)
    made.latents = KeptLatents(tmp_path / "latents")
    made.on_disk = []
    rescuer = rescue.Rescuer(made)
    rescuer.keeper = rescue_latents.Keeper(rescuer, made.latents, lambda: made.was_cut_off)
    made.rescuer, made.was_cut_off = rescuer, True
    decode = made.decode

    def looking(latent):
        made.on_disk.append([path.name for path in made.latents._files()])
        return decode(latent)

    made.decode = looking
    fail_open.forget()
    rescuer.start()
    yield made
    rescuer.stop()


def test_latents_are_on_disk_during_the_decode_and_gone_after_the_run(host):
    host.run(batch_size=2)
    assert [len(names) for names in host.on_disk] == [1, 1]
    assert host.latents._files() == []


def test_of_many_batches_only_the_one_at_work_is_on_disk(host):
    host.run(batch_size=2, n_iter=3)
    assert [len(names) for names in host.on_disk] == [1] * 6
    assert len({name for names in host.on_disk for name in names}) == 3


def test_a_decode_that_fails_for_good_leaves_them_to_recover(host):
    host.fails["vae_decode"] = [ValueError("broken")]
    with pytest.raises(ValueError, match="broken"):
        host.run(batch_size=2, seed=7)
    (kept,) = host.latents.left()
    assert (kept.seeds, kept.mode, kept.model, kept.width) == ((7, 8), "txt2img", "model", 512)
    assert kept.infotexts[1] == "prompt 1\nNegative prompt: prompt 1\nSteps: 1, Seed: 8"


def test_a_process_that_is_killed_leaves_them_to_the_next(host):
    """What a kill leaves is what is on disk in the middle of the decode, seen by another process."""
    seen = []
    inner = host.decode

    def looking(latent):
        seen.extend(KeptLatents(host.latents.folder).left())
        return inner(latent)

    host.decode = looking
    host.run()
    assert [kept.seeds for kept in seen] == [(100,)]


def test_a_decode_that_fits_writes_nothing(host):
    host.was_cut_off = False
    host.run()
    assert host.on_disk == [[]]


def test_after_a_rescued_decode_the_next_run_is_careful(host):
    host.was_cut_off = False
    host.fails["vae_decode"] = [webui.OutOfMemoryError("CUDA out of memory.")]
    host.run(side=128)
    host.run(side=128)
    assert [len(names) for names in host.on_disk] == [0, 1]


@pytest.mark.parametrize(
    ("wants", "available", "risky"), [(3, 4, False), (4, 4, False), (5, 4, True)], ids=["room", "just", "tight"]
)
def test_a_decode_is_risky_when_its_comfortable_need_is_not_there(wants, available, risky):
    phase = PhaseEstimate("vae_decode", GIB, 0, 0, (wants - 1) * GIB, 0, 0, "profile")
    assert rescue_latents.is_risky(Estimate("tight", available * GIB, phases=(phase,))) is risky


def test_what_cannot_be_computed_is_risky():
    assert rescue_latents.is_risky(Estimate("unknown", 0))


def test_the_first_pass_of_two_is_not_kept(host):
    seen = []
    host.rescuer.keeper.latents = SimpleNamespace(new_id=lambda: "x", write=lambda *_: seen.append(1))
    p = webui.Txt2Img(host, enable_hr=True)
    assert not rescue_latents._is_last_decode(p)
    p.is_hr_pass = True
    assert rescue_latents._is_last_decode(p)


def test_it_is_off_by_a_setting_of_its_own(host):
    host.options["vram_guard_keep_latents"] = False
    host.run()
    assert host.on_disk == [[]]


def test_it_works_without_the_rescue(host):
    host.options["vram_guard_rescue"] = False
    host.run()
    assert [len(names) for names in host.on_disk] == [1]


def test_a_full_disk_changes_nothing_of_the_run(host, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(rescue_latents, "_write", full)
    assert len(host.run(batch_size=2)[1]) == 2
    assert host.latents._files() == []


# recover


@pytest.fixture
def cut_off(host, monkeypatch):
    """Latents of two pictures that a run left behind, and the host that decodes them."""
    host.fails["vae_decode"] = [ValueError("broken")]
    with pytest.raises(ValueError, match="broken"):
        host.run(batch_size=2, seed=7)
    host.locked = False

    @contextmanager
    def queue():
        if host.locked:
            raise Busy("at work")
        yield

    saved = []
    images, shared = ModuleType("modules.images"), sys.modules["modules.shared"]
    images.save_image = lambda *arguments, **named: saved.append((arguments, named)) or (f"{len(saved)}.png", None)
    shared.opts = SimpleNamespace(
        outdir_samples="", outdir_txt2img_samples="out/txt2img", outdir_img2img_samples="out/img2img",
        samples_format="png", data={},
    )  # fmt: skip
    shared.sd_model.sd_checkpoint_info = SimpleNamespace(name_for_extra="model")
    monkeypatch.setitem(sys.modules, "modules.images", images)
    monkeypatch.setattr(sys.modules["modules"], "images", images, raising=False)
    monkeypatch.setattr(rescue_latents.freeing, "queue", queue)
    monkeypatch.setattr(
        rescue_latents, "_pictures", lambda host, model, found, path: [f"picture {seed}" for seed in found.seeds]
    )
    (host.kept,) = host.latents.left()
    host.files = saved
    return host


def test_recover_saves_the_pictures_with_their_infotexts_and_forgets_the_latents(cut_off):
    done = rescue_latents.recover(cut_off, cut_off.latents, cut_off.kept.id)
    assert (done.files, done.infotexts) == (("1.png", "2.png"), cut_off.kept.infotexts)
    assert cut_off.files[1] == (
        ("picture 8", "out/txt2img", "", 8, "prompt 1", "png"), {"info": cut_off.kept.infotexts[1]},
    )  # fmt: skip
    assert cut_off.latents.left() == []


def test_another_checkpoint_is_named_and_the_latents_stay(cut_off):
    sys.modules["modules.shared"].sd_model.sd_checkpoint_info.name_for_extra = "other"
    with pytest.raises(rescue_latents.CannotRecover, match="made with model; now other is loaded"):
        rescue_latents.recover(cut_off, cut_off.latents, cut_off.kept.id)
    assert len(cut_off.latents.left()) == 1


def test_a_generation_at_work_is_not_disturbed(cut_off):
    cut_off.locked = True
    with pytest.raises(Busy):
        rescue_latents.recover(cut_off, cut_off.latents, cut_off.kept.id)
    assert len(cut_off.latents.left()) == 1


def test_a_decode_that_fails_keeps_the_latents(cut_off, monkeypatch):
    monkeypatch.setattr(rescue_latents, "_pictures", lambda *_: (1 / 0 for _ in range(1)))
    with pytest.raises(ZeroDivisionError):
        rescue_latents.recover(cut_off, cut_off.latents, cut_off.kept.id)
    assert len(cut_off.latents.left()) == 1


@pytest.mark.parametrize("name", ["../x", "", None, "1700000000000-1-1"])
def test_only_latents_in_the_list_are_decoded(cut_off, name):
    with pytest.raises(BadInput):
        rescue_latents.recover(cut_off, cut_off.latents, name)
