"""When no change of the request is enough, what is: a flag, a switch, a card."""

from __future__ import annotations

import pytest

from lib_vram.plan.otherwise import smallest_card, what_would_fit
from lib_vram.units import GIB
from tests.estimate.stand_in import a_request, physics


def never(request, answer):
    return False


def only(flag):
    return lambda request, answer: flag in request.host_args


@pytest.mark.parametrize("flag", ["--medvram", "--lowvram"])
def test_the_first_flag_that_helps_is_named(flag):
    message = what_would_fit(a_request(), physics, only(flag))
    assert dict(message.values) == {"flag": flag}


def test_a_flag_that_is_set_already_is_not_proposed():
    message = what_would_fit(a_request(host_args=["--lowvram"]), physics, lambda request, answer: True)
    assert message.key != "plan.when_not_flag"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"host_args": ["--no-half-vae"], "vae": {"dtype": "fp32"}}, "Started without --no-half-vae it would fit."),
        ({"host": "neo", "host_args": ["--highvram"]}, "Started without --highvram it would fit."),
        ({"attention": "split"}, "Started with --opt-sdp-attention it would fit."),
        ({"host": "reforge"}, "Started with --always-no-vram it would fit, more slowly."),
    ],
)
def test_what_costs_nothing_is_named_first(changes, sentence):
    assert sentence in str(what_would_fit(a_request(**changes), physics, lambda request, answer: True))


def test_two_changes_are_named_together_where_neither_is_enough():
    request = a_request(host_args=["--no-half"], model={"family": "sd15", "weights_dtype": "fp32"})

    def both(other, answer):
        return "--medvram" in other.host_args and "--no-half" not in other.host_args

    said = str(what_would_fit(request, physics, both))
    assert said.endswith("Started without --no-half and with --medvram it would fit, more slowly.")


def test_a_flag_for_which_the_ram_is_not_enough_is_not_named():
    request = a_request(model={"family": "sdxl"}, system={"ram_total_bytes": 6 * GIB})
    assert str(what_would_fit(request, physics, only("--lowvram"))).startswith(
        "No change of these settings is enough. A"
    )


def test_forge_s_own_switch_is_proposed():
    message = what_would_fit(a_request(host="forge"), physics, lambda request, answer: request.forge.never_oom_unet)
    assert str(message) == (
        "No change of these settings is enough. With Never OOM: UNet switched on it would fit, more slowly."
    )


def test_the_smallest_card_on_which_it_runs_as_it_is():
    request = a_request(width=2048, height=2048, device={"total_bytes": 8 * GIB})
    assert smallest_card(request, physics) == 12 * GIB
    assert str(what_would_fit(request, physics, never)).endswith("it runs from a card of 12.0 GiB up.")


def test_what_others_hold_counts_on_the_larger_card_too():
    device = {"total_bytes": 8 * GIB, "used_by_others_bytes": 3 * GIB}
    assert smallest_card(a_request(width=2048, height=2048, device=device), physics) == 16 * GIB


def test_no_card_is_enough_for_everything():
    request = a_request(width=16384, height=16384, batch_size=64, attention="math")
    message = what_would_fit(request, physics, never)
    assert message.key == "plan.when_not_any_card"
