"""The decode of Forge and its kin: their own tiles really get the room that the failed decode had."""

from __future__ import annotations

import importlib.util
import sys
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from lib_vram.guard import fail_open
from lib_vram.host import rescue, rescue_decode, rescue_levers
from lib_vram.host.rescue_decode import next_tile

_spec = importlib.util.spec_from_file_location("rescue_host", Path(__file__).parent / "rescue_host.py")
webui = importlib.util.module_from_spec(_spec)
sys.modules["rescue_host"] = webui
_spec.loader.exec_module(webui)

OOM = webui.OutOfMemoryError


def out():
    return OOM("CUDA out of memory. Tried to allocate 2.00 GiB.")


def out_in_tiles():
    return out()


def disguised():
    return RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


class Pixels:
    """What a VAE makes: how it came about."""

    def __init__(self, how):
        self.how = how

    def to(self, device):
        return self


class Vae:
    """The part of the hosts' class that decodes. ``inside``: tiles follow in the ``except`` block, as on Forge."""

    output_device = "cpu"
    inside = True

    def __init__(self, fails=()):
        self.fails = list(fails)
        self.calls = []
        self.held = None
        self.alive_in_tiles = None

    def _whole(self):
        tensor = webui.Held()
        self.held = weakref.ref(tensor)
        self.calls.append("whole")
        if self.fails:
            raise self.fails.pop(0)()  # made here: nobody else holds it
        return Pixels("whole")

    def decode_tiled_(self, samples, tile_x=64, tile_y=64, overlap=16):
        self.alive_in_tiles = self.held is not None and self.held() is not None
        self.calls.append(f"tiles {tile_x}")
        if self.fails and self.fails[0] is out_in_tiles:
            raise self.fails.pop(0)()
        return Pixels(f"tiles {tile_x}")

    def decode_tiled(self, samples, **sizes):
        return self.decode_tiled_(samples, **sizes)

    def decode_inner(self, samples):
        if sys.modules["backend.memory_management"].VAE_ALWAYS_TILED:
            return self.decode_tiled(samples)
        try:
            return self._whole()
        except OOM:
            if self.inside:
                return self.decode_tiled_(samples)
        return self.decode_tiled(samples)

    decode = decode_inner


@pytest.fixture(params=["forge", "neo"])
def host(request, monkeypatch):
    made = webui.Host(request.param).install(monkeypatch)
    kind = type("VAE", (), dict(vars(Vae)))
    kind.inside = request.param == "forge"
    for name, members in {
        "backend": {}, "backend.patcher": {}, "backend.patcher.vae": {"VAE": kind},
        "backend.memory_management": {"VAE_ALWAYS_TILED": False, "current_inference_memory": 1024**3},
    }.items():  # fmt: skip
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(rescue_levers.gc, "collect", lambda: 0)
    made.kind = kind
    made.decode = lambda latent: getattr(made.vae, "decode_inner" if made.kind.inside else "decode")(latent).how
    rescuer = made.rescuer = rescue.Rescuer(made)
    fail_open.forget()
    rescuer.start()
    yield made
    rescuer.stop()


def decoded(host, *fails, **fields):
    host.vae = host.kind(fails)
    return host.run(**fields)


def test_the_failed_decode_holds_nothing_any_more_when_the_tiles_begin(host):
    _, pictures = decoded(host, out, side=128)
    assert pictures == ["tiles 64"]
    assert host.vae.alive_in_tiles is False


def test_without_us_forge_decodes_its_tiles_beside_the_failed_decode(host):
    """The trap itself, so that the test above is known to see it."""
    if host.kind.inside:
        vae = Vae([out])
        vae.decode_inner(webui.Latent("x"))
        assert vae.alive_in_tiles is True


def test_the_hosts_own_rescue_is_told_too(host):
    p, _ = decoded(host, out, side=128)
    assert p.extra_generation_params == {"VRAM Guard": "rescued in vae decode; VAE tiled"}


def test_a_size_that_ran_out_goes_into_tiles_at_once_in_later_batches_and_smaller_ones_do_not(host):
    decoded(host, out, n_iter=3, side=128)
    assert host.vae.calls == ["whole", "tiles 64", "tiles 64", "tiles 64"]


def test_a_failure_in_disguise_that_the_host_does_not_know_goes_into_tiles(host):
    p, pictures = decoded(host, disguised, side=128)
    assert pictures == ["tiles 64"]
    assert p.extra_generation_params == {"VRAM Guard": "rescued in vae decode; VAE tiled"}


def test_tiles_that_run_out_too_are_decoded_again_in_smaller_ones(host):
    _, pictures = decoded(host, out, out_in_tiles, side=128)
    assert (pictures, host.vae.calls) == (["tiles 32"], ["whole", "tiles 64", "tiles 32"])


def test_a_picture_too_small_for_the_hosts_tiles_is_decoded_whole_again(host):
    """Forge falls back to them all the same, and they end in an error that says nothing of memory."""

    def too_small(*_, **__):
        host.vae.calls.append("tiles")
        raise RuntimeError("start (96) + length (1) exceeds dimension size (96).")

    host.rescuer.stop()
    host.kind.decode_tiled_ = too_small
    host.rescuer.start()
    _, pictures = decoded(host, out, side=12)
    assert (pictures, host.vae.calls) == (["whole"], ["whole", "tiles", "whole"])


def test_tiles_that_the_user_wants_are_not_told_of(host):
    sys.modules["backend.memory_management"].VAE_ALWAYS_TILED = True
    p, pictures = decoded(host, side=128)
    assert (pictures, p.extra_generation_params) == (["tiles 64"], {})


def test_an_error_that_is_not_about_memory_passes(host):
    with pytest.raises(ValueError, match="broken"):
        decoded(host, lambda: ValueError("broken"), side=128)


def test_a_decode_outside_of_runs_is_left_alone(host):
    vae = host.kind([disguised])
    with pytest.raises(RuntimeError, match="CUBLAS"):
        vae.decode_inner(webui.Latent("x"))


@pytest.mark.parametrize(
    ("longest", "now", "wanted", "tile"),
    [
        (2048, None, 960, 960), (2048, None, None, 768), (2048, 768, 960, 384), (2048, 384, None, 256),
        (600, None, 768, 384), (512, None, None, 384), (320, None, None, 256), (256, None, None, None),
        (2048, 256, 512, 256),
    ],
)  # fmt: skip
def test_tiles_go_from_the_plans_to_the_smallest_and_are_smaller_than_the_picture(longest, now, wanted, tile):
    assert next_tile(longest, now, wanted) == tile


def test_a_tiling_of_ours_that_runs_out_becomes_smaller(monkeypatch):
    decoder = SimpleNamespace(forward=lambda latent: "around")
    tiles = ModuleType("lib_vram.host.tiled_decode")
    tiles.decode = lambda decoder, latent, tile: f"tiles {tile}"
    monkeypatch.setitem(sys.modules, "lib_vram.host.tiled_decode", tiles)
    import lib_vram.host

    monkeypatch.setattr(lib_vram.host, "tiled_decode", tiles, raising=False)
    before = decoder.forward
    with rescue_decode.in_tiles(decoder, 256):
        assert decoder.forward(webui.Latent("x", 64)) == "tiles 256"
        assert decoder.forward(webui.Latent("x", 32)) == "around"
    assert decoder.forward is before


def test_latents_that_are_given_by_the_hosts_own_name_are_passed_on_so(host):
    class Vae:
        def decode(self, samples_in):
            return samples_in

    wrapped = rescue_decode._vae_decoding(host.rescuer, Vae.decode)
    assert wrapped(Vae(), samples_in="latents") == "latents"
    host.rescuer._local.works = [rescue.Work(p := webui.Txt2Img(host))]
    assert wrapped(Vae(), samples_in="no tensor") == "no tensor" and p.comments == []
    host.rescuer._local.works = []
