"""The largest that fits is the largest: one step more does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.errors import NotReady
from lib_vram.estimate.estimator import estimate
from lib_vram.plan.adjustments import same_aspect
from lib_vram.plan.fit import NOT_YET, largest
from lib_vram.units import GIB
from tests.estimate.stand_in import a_request, physics


def test_the_largest_size_runs_and_the_next_does_not():
    request = a_request()
    fit = largest(request, "size", physics)
    assert (fit.width, fit.height) == (1640, 1640)
    assert estimate(request.replace(width=1640, height=1640), physics).verdict in ("fits", "tight")
    assert estimate(request.replace(width=1648, height=1648), physics).verdict == "wont_fit"


def test_the_largest_batch_runs_and_the_next_does_not():
    request = a_request(width=1024, height=1024)
    fit = largest(request, "batch", physics)
    assert (fit.width, fit.height, fit.batch_size) == (1024, 1024, 9)
    assert estimate(request.replace(batch_size=10), physics).verdict == "wont_fit"
    assert fit.peak_bytes == estimate(request.replace(batch_size=9), physics).peak_bytes


@given(st.sampled_from(["a1111", "forge"]), st.integers(64, 1024), st.integers(64, 1024), st.integers(2, 12))
def test_no_larger_size_of_the_same_shape_runs(host, width, height, card):
    request = a_request(host=host, width=width, height=height, device={"total_bytes": card * GIB})
    fit = largest(request, "size", physics)
    assert fit.width % 8 == fit.height % 8 == 0
    for more in range(8, 8 * 12, 8):
        size = same_aspect(width, height, max(fit.width, fit.height) + more)
        if max(size) <= 16384 and min(size) >= 64:
            assert estimate(request.replace(width=size[0], height=size[1]), physics).verdict == "wont_fit"


def test_when_nothing_fits_all_are_0():
    request = a_request(model={"family": "sdxl"}, device={"total_bytes": 4 * GIB})
    assert set(largest(request, "size", physics).to_dict().values()) == {0}
    assert set(largest(request, "batch", physics).to_dict().values()) == {0}


def test_what_is_asked_for_is_no_cap():
    small = a_request(width=64, height=64)
    assert largest(small, "size", physics) == replace(largest(a_request(), "size", physics))


def test_what_cannot_be_computed_is_said():
    with pytest.raises(NotReady, match="flux1"):
        largest(a_request(model={"family": "flux1"}), "size", physics)
    with pytest.raises(NotReady, match="flux1"):
        largest(a_request(model={"family": "flux1"}), "batch", physics)


def test_what_time_does_not_allow_is_left_open_and_goes_on_at_the_next_call():
    request = a_request(device={"total_bytes": 8 * GIB})
    assert largest(request, "size", physics, until=0.0) == NOT_YET
    assert NOT_YET.to_dict() == {"width": 0, "height": 0, "batch_size": 0, "peak_bytes": 0, "known": False}
    whole = largest(request, "size", physics)
    assert whole.is_known and "known" not in whole.to_dict()
