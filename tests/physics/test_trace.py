"""The tracer: which blocks a run of torch code takes and gives back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from lib_vram.physics.attention import MASKED, TOKENS  # noqa: E402
from lib_vram.physics.raw import RawTrace  # noqa: E402
from lib_vram.physics.trace import live_bytes, mark_attention, trace  # noqa: E402


def empty(*shape: int, dtype: object = torch.float16) -> torch.Tensor:
    """Return a tensor that has a shape and nothing else."""
    return torch.empty(shape, dtype=dtype, device="meta")


def test_a_result_is_a_block_until_nothing_refers_to_it() -> None:
    def run() -> object:
        first = empty(100)
        second = first + 1
        del first
        return second * 2

    assert trace(run).events == [
        ("alloc", (1, 200)), ("alloc", (2, 200)), ("free", (1,)), ("alloc", (3, 200)), ("free", (2,)), ("free", (3,)),
    ]  # fmt: skip


def test_views_and_writing_in_place_take_nothing() -> None:
    def run() -> object:
        x = empty(4, 6)
        x += 1
        return x.view(24).transpose(0, 0)[3:]

    assert trace(run).events == [("alloc", (1, 48)), ("free", (1,))]


def test_what_was_there_before_is_not_counted() -> None:
    weight = empty(8, 8)
    assert [kind for kind, _ in trace(lambda: weight * 2, resident=[weight]).events] == ["alloc", "free"]


def test_a_convolution_has_a_marked_workspace() -> None:
    weight = empty(8, 4, 3, 3)
    events = trace(lambda: torch.nn.functional.conv2d(empty(2, 4, 10, 10), weight, padding=1), resident=[weight]).events
    assert ("workspace", (2 * 4 * 100 * 2, 2 * 8 * 100 * 2, 8 * 4 * 9 * 2)) in events


def test_a_convolution_in_channels_last_stays_there_and_has_no_workspace() -> None:
    weight = empty(8, 4, 3, 3)

    def run() -> torch.Tensor:
        source = empty(2, 4, 10, 10).contiguous(memory_format=torch.channels_last)
        return torch.nn.functional.conv2d(source, weight, padding=1)

    layouts: list[bool] = []
    recorded = trace(lambda: layouts.append(run().is_contiguous(memory_format=torch.channels_last)), resident=[weight])
    assert layouts == [True]
    assert "workspace" not in {kind for kind, _ in recorded.events}
    assert ("alloc", (3, 8 * 4 * 9 * 2)) in recorded.events


@pytest.mark.parametrize(("batch", "last"), [(1, False), (2, True)])
def test_tokens_made_a_picture_are_channels_last_except_in_a_batch_of_one(batch: int, last: bool) -> None:
    """The strides of a batch of one are ambiguous, and torch takes such a picture for contiguous."""

    def run() -> torch.Tensor:
        tokens = empty(batch, 16, 8).transpose(1, 2).reshape(batch, 8, 4, 4)
        return torch.nn.functional.interpolate((tokens + empty(batch, 8, 4, 4)) / 1.0, scale_factor=2.0)

    layouts: list[bool] = []
    trace(lambda: layouts.append(run().is_contiguous(memory_format=torch.channels_last)))
    assert layouts == [last]


def test_fused_attention_takes_its_result_and_a_log_sum() -> None:
    def run() -> object:
        q = empty(1, 2, 64, 40)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    sizes = [values[1] for kind, values in trace(run).events if kind == "alloc"]
    assert sizes == [2 * 64 * 40 * 2, 2 * 64 * 40 * 2, 2 * 64 * 4]


def test_attention_in_three_dimensions_takes_whole_score_matrices() -> None:
    def run() -> object:
        q = empty(2, 64, 40)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    sizes = [values[1] for kind, values in trace(run).events if kind == "alloc"]
    assert sum(size >= 2 * 64 * 64 * 2 for size in sizes) >= 2


def test_marked_attention_says_where_its_operands_are() -> None:
    def run() -> object:
        q, k, v = empty(2, 64, 80), empty(2, 77, 80), empty(2, 77, 80)
        return mark_attention(q, k, v, heads=2)

    events = trace(run).events
    assert events[3] == ("attention", (2, 2, 64, 77, 40, 2, 0, 1, 2, 3))
    assert events[4] == ("alloc", (4, 2 * 64 * 80 * 2))


def test_the_peak_counts_what_is_live_and_the_workspace() -> None:
    weight = empty(1, 1, 1, 1)
    recorded = trace(lambda: torch.nn.functional.conv2d(empty(1, 1, 512, 512), weight), resident=[weight])
    assert recorded.peak_bytes == 2 * 2**19 + 2 * 2**19 + 512


def test_code_that_asks_how_much_is_live_is_told() -> None:
    seen = []

    def run() -> object:
        x = empty(1000)
        seen.append(live_bytes())
        return x

    trace(run)
    assert seen == [2048]


def test_a_trace_that_fails_leaves_nothing_behind() -> None:
    with pytest.raises(ValueError, match="on purpose"):
        trace(lambda: (_ for _ in ()).throw(ValueError("on purpose")))
    with pytest.raises(IndexError):
        live_bytes()


def test_inference_mode_hides_no_convolution_workspace() -> None:
    """Forge Neo's VAE runs under it, where torch hands over a whole ``conv2d`` instead of its parts."""
    conv = torch.nn.Conv2d(4, 8, 3, device="meta")

    @torch.inference_mode()
    def run() -> torch.Tensor:
        return conv(conv.weight.new_empty(1, 4, 16, 16))

    plain = trace(lambda: conv(torch.empty(1, 4, 16, 16, device="meta")), resident=conv.parameters())
    assert trace(run, resident=conv.parameters()).events == plain.events
    assert any(kind == "workspace" for kind, _ in plain.events)


def attention(mask: bool) -> RawTrace:
    """Return the trace of torch's fused attention, left open."""

    def run() -> object:
        query, key, value = (torch.empty(2, 4, 96, 64, dtype=torch.float16, device="meta") for _ in range(3))
        where = torch.empty(96, 96, dtype=torch.bool, device="meta") if mask else None
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=where)

    return trace(run, leave_open=True)


@pytest.mark.parametrize(("mask", "kind"), [(False, TOKENS), (True, MASKED)])
def test_fused_attention_can_be_noted_as_attention(mask: bool, kind: int) -> None:
    (noted,) = [values for name, values in attention(mask).events if name == "attention"]
    assert noted == (2, 4, 96, 96, 64, 2, kind, 1, 2, 3)


def test_layer_normalisation_copies_a_view_with_its_axes_swapped() -> None:
    def run(swapped: bool) -> list[int]:
        def normalise() -> object:
            x = torch.empty(8, 16, dtype=torch.float16, device="meta")
            return functional.layer_norm(x.t() if swapped else x.view(16, 8), (8,))

        return [values[1] for name, values in trace(normalise).events if name == "alloc"]

    assert run(swapped=True) == [256, *run(swapped=False)]
