"""The tracer against small modules written as the hosts write theirs."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from lib_vram.host import attending, tracing  # noqa: E402
from lib_vram.host.skeleton import skeleton  # noqa: E402
from lib_vram.host.tracing import GivenUp, LoadedModel, LoadedPart, Patience, trace_part  # noqa: E402
from lib_vram.physics.cache import MEASURED, ProfileCache  # noqa: E402
from lib_vram.physics.program import Setting, expand  # noqa: E402

HOST_CODE = """
import torch
from torch import nn

def attention_function(q, k, v, heads, mask=None, skip_reshape=False):
    raise RuntimeError("this runs on a GPU alone")

def attend(q, k, v, heads):
    return attention_function(q, k, v, heads)

class Linear(nn.Module):  # a host's own, with its weights stored in blocks of four bits
    def __init__(self, inputs, outputs):
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.weight = nn.Parameter(torch.zeros(outputs * inputs // 2, dtype=torch.uint8), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        raise RuntimeError("its weights cannot be read here")

class CrossAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        return self.to_out(attend(self.to_q(x), self.to_k(x), self.to_v(x), self.heads))

class Model(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.into = nn.Conv2d(4, 32, 3, padding=1)
        self.blocks = nn.ModuleList(CrossAttention(32, 4) for _ in range(blocks))
        self.out = Linear(32, 4)

    @torch.inference_mode()
    def forward(self, x):
        batch, _, rows, columns = x.shape
        x = self.into(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x) + x
        return self.out(x).transpose(1, 2).reshape(batch, 4, rows, columns)
"""


@pytest.fixture
def host(monkeypatch):
    made = ModuleType("vram_guard_test_host")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(HOST_CODE, made.__dict__)
    return made


def run(model, at, dtype):
    x = torch.empty(at.batch, 4, at.rows, at.columns, dtype=dtype, device="meta")
    return model(x)


def part_of(module) -> LoadedPart:
    return LoadedPart("denoise", module, run)


def test_a_loaded_model_is_measured_and_nothing_of_it_is_touched(host):
    model = host.Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attention = host.attention_function
    (profile,) = trace_part("x", part_of(model), "fp16")
    assert host.attention_function is attention and "forward" not in vars(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert profile.name == MEASURED + "x" and profile.calls


def test_its_attention_is_left_open(host):
    (profile,) = trace_part("x", part_of(host.Model()), "fp16")
    fused, plain = (expand(profile, Setting(2, 64, 64), way).floor_bytes for way in ("sdpa", "math"))
    assert plain - fused > 2 * 4 * 4096**2 * 2


def test_a_quantised_layer_counts_by_its_shape(host):
    (profile,) = trace_part("x", part_of(host.Model()), "fp16")
    assert profile.parameters == 4 * 32 * 9 + 32 + 2 * 4 * (32 * 32 + 32) + 32 * 4 + 4


def test_the_order_of_layers_does_not_matter_to_a_few_equal_blocks(host):
    deep = host.Model(blocks=40)
    (quick,) = trace_part("x", part_of(deep), "fp16")
    made = skeleton(deep, torch.float16, attending.marked())
    assert len(tracing.equal_stacks(made)) == 1
    tracer = tracing._Tracer(part_of(deep), "fp16", tracing.no_break)
    (whole,) = tracer._shallow(quick.name, made)
    assert (quick.tokens, quick.terms, quick.calls, quick.parameters) == (
        whole.tokens, whole.terms, whole.calls, whole.parameters
    )  # fmt: skip


def test_what_the_code_raises_is_said_and_nothing_more(host):
    def fails(model, at, dtype):
        raise RuntimeError("a tensor was asked for its value\nand more")

    with pytest.raises(GivenUp, match="^RuntimeError: a tensor was asked for its value$"):
        trace_part("x", LoadedPart("denoise", host.Model(), fails), "fp16")


def test_sizes_that_follow_no_rule_are_given_up(host):
    def odd(model, at, dtype):
        return torch.empty(at.batch * at.rows**3 + 4096, device="meta")

    with pytest.raises(GivenUp, match="no sum of"):
        trace_part("x", LoadedPart("denoise", host.Model(), odd), "fp16")


def test_a_model_measured_once_is_found_the_next_time(host, tmp_path, monkeypatch):
    model = LoadedModel("sd15", "forge", "forge 1", (part_of(host.Model()),))
    (first,) = tracing.measure(model, "x", model.parts[0], "fp16", ProfileCache(tmp_path))
    monkeypatch.setattr(tracing, "trace_part", None)
    again = LoadedModel("sd15", "forge", "forge 1", (part_of(host.Model()),))
    (found,) = tracing.measure(again, "x", again.parts[0], "fp16", ProfileCache(tmp_path))
    assert found.to_json() == first.to_json()


@pytest.mark.parametrize("change", ["blocks", "host", "dtype", "autocast"])
def test_another_model_or_host_has_another_key(host, change):
    def key(blocks=2, name="forge 1", dtype="fp16", autocast=False):
        part = LoadedPart("denoise", host.Model(blocks), run, autocast=autocast)
        return tracing.architecture_key(LoadedModel("sd15", "forge", name, (part,)), part, dtype)

    changed = {"blocks": {"blocks": 3}, "host": {"name": "forge 2"}, "dtype": {"dtype": "fp32"},
               "autocast": {"autocast": True}}[change]  # fmt: skip
    assert key() == key() != key(**changed)


def test_only_what_is_not_shipped_is_missing(host):
    known = LoadedModel("sd15", "forge", "forge 1", (part_of(host.Model()),))
    other = LoadedModel("somenew", "neo", "neo 1", (part_of(host.Model()),))
    assert known.missing() == []
    assert [name for name, _, _ in other.missing()] == ["somenew-denoise-fp16-neo"]


def test_autocast_computes_products_in_half_and_norms_in_fp32():
    module = nn.Sequential(nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 1)).half()

    def norm(model, at, dtype):
        return model(torch.empty(at.batch, 8, at.rows, at.columns, dtype=dtype, device="meta"))

    plain, cast = (
        trace_part("x", LoadedPart("denoise", module, norm, autocast=autocast), "fp16")[0] for autocast in (False, True)
    )
    size = 2 * 8 * 64 * 64
    trace = expand(cast, Setting(2, 64, 64), "sdpa")
    assert size * 4 in trace.sizes and size * 4 not in expand(plain, Setting(2, 64, 64), "sdpa").sizes


def test_it_waits_while_the_host_is_busy_and_stops_when_told(monkeypatch):
    busy, slept = [True, True, False], []
    monkeypatch.setattr(tracing.time, "sleep", slept.append)
    Patience(lambda: busy.pop(0), lambda: False).wait_until_idle()
    assert slept == [Patience.BUSY_SECONDS] * 2
    with pytest.raises(GivenUp, match="stopped"):
        Patience(lambda: True, lambda: True).wait_until_idle()


def test_it_gives_way_after_a_few_milliseconds_and_gives_up_in_the_end(monkeypatch):
    slept = []
    monkeypatch.setattr(tracing.time, "sleep", slept.append)
    patience = Patience(lambda: False, lambda: False)
    monkeypatch.setattr(tracing.time, "monotonic", lambda: 10.0**9)
    patience()
    assert slept == [Patience.PAUSE_SECONDS]
    monkeypatch.setattr(tracing.time, "monotonic", lambda: 2 * 10.0**9)
    monkeypatch.setattr(tracing.time, "thread_time", lambda: 10.0**9)
    with pytest.raises(GivenUp, match="30 s of computing"):
        patience()


def test_attention_behind_a_static_method_is_replaced_too(host):
    class Behind(host.CrossAttention):
        @staticmethod
        def attend(q, k, v, heads):
            raise AssertionError

    def behind(q, k, v, heads):
        return attention_function(q, k, v, heads)  # noqa: F821

    private = type(behind)(behind.__code__, host.__dict__, "behind")
    Behind.attend = staticmethod(private)
    Behind.forward = lambda self, x: self.to_out(self.attend(self.to_q(x), self.to_k(x), self.to_v(x), self.heads))

    def tokens(model, at, dtype):
        return model(torch.empty(at.batch, at.rows * at.columns, 32, dtype=dtype, device="meta"))

    (profile,) = trace_part("x", LoadedPart("denoise", Behind(32, 4), tokens), "fp16")
    assert len(profile.calls) == 1
