import pytest

from lib_vram.errors import BadInput
from lib_vram.estimate.training import kept_bytes, trained_bytes, training_memory, video_memory
from lib_vram.physics.component import Component
from lib_vram.units import MIB


def kept(part, batch):
    return kept_bytes(Component("sd21", part, 512, 512, batch=batch, cfg=False, host="a1111"))


def test_a_picture_more_costs_what_was_measured_where_nothing_is_checkpointed():
    picture = sum(kept(part, 4) - kept(part, 1) for part in ("denoise", "text_encode")) / 3
    assert picture == pytest.approx((13709 - 7835) / 3 * MIB, rel=0.05)


@pytest.mark.parametrize(
    ("method", "family", "parameters"),
    [("textual_inversion", "sd15", 75 * 768), ("textual_inversion", "sd21", 75 * 1024),
     ("hypernetwork", "sd15", 21_939_840)],
)  # fmt: skip
def test_what_is_trained_is_held_four_times_in_full_precision(method, family, parameters):
    assert trained_bytes(method, family) == 16 * parameters


@pytest.mark.parametrize("family", ["sd15", "sd21"])
@pytest.mark.parametrize("method", ["textual_inversion", "hypernetwork"])
def test_a_larger_training_never_needs_less(method, family):
    one, batch, size = (training_memory(method, family, *at) for at in ((512, 512), (512, 512, 2), (768, 768)))
    assert one.low_bytes < one.high_bytes
    assert one.low_bytes < batch.low_bytes and one.high_bytes < batch.high_bytes
    assert one.low_bytes < size.low_bytes and one.high_bytes < size.high_bytes


def test_a_training_needs_more_than_the_denoiser_s_weights():
    assert training_memory("textual_inversion", "sd15", 512, 512).low_bytes > 1639 * MIB


def test_a_family_that_the_train_tab_cannot_train_is_refused():
    with pytest.raises(BadInput):
        training_memory("hypernetwork", "sdxl", 1024, 1024)


def test_frames_and_size_of_a_video_both_count():
    short, long, large = (
        video_memory("wan21_1b", *at) for at in ((832, 480, 17), (832, 480, 81), (1280, 720, 17))
    )  # fmt: skip
    assert short.step_high_bytes < long.step_low_bytes
    assert short.step_high_bytes < large.step_low_bytes
    assert short.decode_low_bytes <= long.decode_low_bytes < large.decode_low_bytes
