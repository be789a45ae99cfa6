import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.learning.counters import Counters
from lib_vram.learning.peaks import Peak, Stretch, merged


def counted(allocated, peak, reserved=100, reserved_peak=100):
    return Counters(allocated, reserved, peak, reserved_peak)


def measured(start, last, *between):
    stretch = Stretch("sampling", 0.0, start)
    for reading in between:
        stretch.sample(reading)
    return stretch.end(last)


def test_a_counter_that_grew_says_the_peak_exactly():
    peak = measured(counted(50, 60), counted(55, 90))
    assert (peak.allocated_bytes, peak.is_exact) == (90, True)


def test_below_an_earlier_peak_the_readings_say_how_much_it_was_at_least():
    peak = measured(counted(50, 90), counted(55, 90), counted(70, 90))
    assert (peak.allocated_bytes, peak.is_exact) == (70, False)


def test_a_reading_at_the_earlier_peak_is_exact():
    peak = measured(counted(50, 90), counted(55, 90), counted(90, 90))
    assert (peak.allocated_bytes, peak.is_exact) == (90, True)


def test_a_counter_that_the_host_reset_on_the_way_says_at_least():
    peak = measured(counted(50, 90), counted(55, 80))
    assert (peak.allocated_bytes, peak.is_exact) == (80, False)


def test_a_stretch_that_took_nothing_right_after_a_reset_is_not_exact():
    """A1111 keeps the last prompt's conditioning: the text encoders may not have run at all."""
    assert not measured(counted(50, 50), counted(50, 50)).is_exact


def test_reserved_is_told_apart_from_allocated():
    peak = measured(counted(50, 60, 100, 100), counted(55, 60, 120, 130))
    assert (peak.reserved_bytes, peak.is_reserved_exact, peak.is_exact) == (130, True, False)


def test_without_torch_the_card_alone_is_known():
    stretch = Stretch("sampling", 0.0, None)
    stretch.sample_device(70)
    stretch.sample_device(60)
    assert stretch.end(None) == Peak(device_bytes=70)


def test_two_batches_of_a_phase_have_the_larger_peak():
    assert merged(Peak(90, 100, 7, True, True), Peak(80, 120, 9, False, False)) == Peak(90, 120, 9, True, False)


def test_of_a_batch_that_was_not_measured_nothing_is_taken():
    assert merged(Peak(), Peak(80, 120, 9, True, True)) == Peak(80, 120, 9, True, True)


@given(st.lists(st.integers(-50, 60), min_size=1, max_size=30), st.integers(0, 500))
def test_an_exact_peak_is_the_true_one_and_any_other_is_not_above_it(steps, earlier):
    """A counter that nobody resets, read at a stretch's ends and in its middle."""
    allocated, peak, true, readings = 100, 100 + earlier, 100, []
    for step in steps:
        allocated = max(0, allocated + step)
        peak, true = max(peak, allocated), max(true, allocated)
        readings.append(counted(allocated, peak))
    found = measured(counted(100, 100 + earlier), readings[-1], *readings[:: max(1, len(readings) // 2)])
    assert found.allocated_bytes == true if found.is_exact else found.allocated_bytes <= true


@pytest.mark.parametrize("size", [0, 5])
def test_what_a_stretch_began_with_counts(size):
    assert measured(counted(50 + size, 90), counted(10, 90)).allocated_bytes == 50 + size
