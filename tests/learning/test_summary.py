from dataclasses import replace

import pytest

from lib_vram.learning.summary import by_phase, misses
from lib_vram.units import MIB
from tests.learning.makers import estimate, failed, phase, record, run

DECODE = phase()


def seen(off=0, **changes):
    said = estimate()
    made = run(record(off=off), **changes)
    return replace(
        made, binding="vae_decode", expected_bytes=said.peak_bytes, low_bytes=said.low_bytes, high_bytes=said.high_bytes
    )


def test_each_phase_has_its_newest_figures_and_the_median_of_how_far_they_were_off():
    computed = record().predicted.allocated_bytes
    (found,) = by_phase([run(record(off=off)) for off in (0, computed // 100, computed // 50)])
    assert (found.phase, found.family, found.runs) == ("vae_decode", "sdxl", 3)
    assert found.measured_bytes == computed + computed // 50
    assert found.off == pytest.approx(0.01, abs=1e-4)
    assert found.half is not None


def test_too_few_runs_have_no_band():
    assert by_phase([run(), run()])[0].half is None


def test_what_was_cut_off_or_not_known_exactly_is_left_out():
    assert by_phase([failed(), run(outcome="stopped"), run(is_rescued=True), run(record(exact=False))]) == ()


def test_a_run_is_off_against_what_was_computed_and_what_was_said():
    made = replace(seen(off=100 * MIB), expected_bytes=estimate().peak_bytes + 100 * MIB)
    (miss,) = misses([made])
    assert miss.computed == pytest.approx(100 * MIB / estimate().peak_bytes)
    assert miss.said == 0
    assert miss.is_inside


def test_a_peak_outside_the_band_is_said_to_be_outside():
    assert [item.is_inside for item in misses([seen(), seen(off=2000 * MIB)])] == [True, False]


def test_the_drivers_part_counts_as_it_was_measured():
    (miss,) = misses([seen(context_bytes=record().predicted.context_bytes + 50 * MIB)])
    assert miss.said == pytest.approx(50 * MIB / estimate().peak_bytes)


def test_runs_without_a_known_peak_are_left_out():
    assert misses([run(), failed(), replace(seen(), is_rescued=True), replace(seen(), outcome="stopped")]) == ()
