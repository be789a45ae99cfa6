"""What each command prints for people, compared as a whole."""

from __future__ import annotations

from textwrap import dedent

from lib_vram.commands import component, devices, estimate, fit, inspect, plan, simulate
from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.estimate.simulate import Simulation
from lib_vram.machine.card import Card, Holder
from lib_vram.message import say
from lib_vram.model.inspect import Checkpoint, ComponentWeights
from lib_vram.physics.component import ComponentMemory
from lib_vram.plan.fit import Fit
from lib_vram.plan.result import Plan, Step
from lib_vram.request import DeviceSpec, ModelSpec, Request

MIB = 1024**2
GIB = 1024**3
DECODE = PhaseEstimate("vae_decode", 7082 * MIB, 2177 * MIB, 2570 * MIB, 2692 * MIB, 1280 * MIB, 2221 * MIB, "profile")
SAMPLING = PhaseEstimate("sampling", 7084 * MIB, 612 * MIB, 708 * MIB, 998 * MIB, 612 * MIB, 624 * MIB, "profile")
ESTIMATE = Estimate(
    "fits", 11 * GIB, "vae_decode", 9259 * MIB, 8 * GIB, 9 * GIB, (SAMPLING, DECODE), (say("nowhere.a_note"),)
)
REQUEST = Request(DeviceSpec(12 * GIB), ModelSpec("sdxl"), 1024, 1024)
ESTIMATE_TEXT = dedent(
    """\
    fits: VAE decode needs 9.4 GiB of 11.0 GiB (peak allocated 8.0 GiB to 9.0 GiB)

    phase       resident     floor   minimum  comfortable      peak
    sampling    7084 MiB   612 MiB   708 MiB      998 MiB  7696 MiB
    VAE decode  7082 MiB  2177 MiB  2570 MiB     2692 MiB  9259 MiB

    - nowhere.a_note"""
)


def test_an_estimate_is_the_verdict_the_phases_and_the_notes() -> None:
    assert estimate.text_of(ESTIMATE) == ESTIMATE_TEXT


def test_an_unknown_estimate_says_what_is_there() -> None:
    assert estimate.text_of(Estimate("unknown", 11 * GIB)) == "unknown: 11.0 GiB are there"


def test_a_component_is_six_numbers_and_what_they_mean() -> None:
    memory = ComponentMemory(160 * MIB, 2177 * MIB, 2314 * MIB, 3120 * MIB, 1280 * MIB, 2221 * MIB, "profile")
    assert component.text_of(memory) == dedent(
        """\
        weights          160 MiB  the part itself, not in the numbers below
        floor           2177 MiB  peak allocated by activations
        minimum         2314 MiB  smallest free memory with which it runs
        comfortable     3120 MiB  peak reserved when nothing limits it
        low             1280 MiB  least that the peak allocated is expected to be
        high            2221 MiB  most that the peak allocated is expected to be
        source: profile"""
    )


def test_a_plan_lists_its_steps_with_savings_and_costs() -> None:
    step = Step("batch_to_count", "batch_size", 4, 1, 3 * GIB, "time", say("nowhere.a_step"))
    assert plan.text_of(Plan(True, (step,), REQUEST, ESTIMATE)) == (
        f"It fits with these changes:\n1. nowhere.a_step (saves 3.0 GiB, costs time)\n\n{ESTIMATE_TEXT}"
    )


def test_a_plan_without_steps_fits_as_it_is() -> None:
    assert plan.text_of(Plan(True, (), REQUEST, ESTIMATE)) == f"It fits as it is.\n\n{ESTIMATE_TEXT}"


def test_a_plan_that_does_not_fit_says_what_would() -> None:
    assert plan.text_of(Plan(False, (), REQUEST, ESTIMATE, say("nowhere.what_would"))) == (
        f"Nothing that may be changed makes it fit.\nnowhere.what_would\n\n{ESTIMATE_TEXT}"
    )


def test_a_simulation_ends_in_one_line_and_the_error_as_torch_words_it() -> None:
    assert simulate.text_of(Simulation("completed", None, 9 * GIB, "")) == "Completed; peak 9.0 GiB."
    assert simulate.text_of(Simulation("out_of_memory", "vae_decode", 9 * GIB, "CUDA out of memory.")) == (
        "Out of memory in VAE decode; peak 9.0 GiB.\nCUDA out of memory."
    )


def test_the_largest_that_fits_is_one_line() -> None:
    assert fit.text_of(Fit(1536, 1024, 2, 9 * GIB)) == "1536 x 1024, batch size 2: peak 9.0 GiB"
    assert fit.text_of(Fit(0, 0, 0, 0)) == "Not even the smallest fits."


def test_a_checkpoint_is_a_table_of_its_components() -> None:
    weights = (
        ComponentWeights("unet", "fp16", 859520964, 1719041928),
        ComponentWeights("text_encoder", "int64", 77, 616),
    )
    assert inspect.text_of(Checkpoint("sd15", weights, (say("model.empty"),), "inpaint")) == dedent(
        """\
        family: sd15 (inpaint)

        component     dtype   parameters     size
        unet          fp16   859 520 964  1.6 GiB
        text_encoder  int64           77    616 B

        ! the file is empty"""
    )
    assert inspect.text_of(Checkpoint(None, (), ())) == "family: not known"


def test_devices_are_cards_and_who_holds_them() -> None:
    holders = (Holder(77, "game\x1b[31m.exe", 2 * GIB), Holder(9, "", None))
    card = Card("RTX 3060", 12 * GIB, None, 2 * GIB, "nvml", holders=holders, spills=True)
    empty = Card("RTX 4090", 24 * GIB, 24 * GIB, 0, "virtual")
    assert devices.text_of((card, empty)) == dedent(
        """\
        RTX 3060: 12.0 GiB; free: not known; held by other programs: 2.0 GiB; source: nvml
        When it is full, the driver moves memory into the computer's RAM: slow, without an error.
        program        process       size
        game?[31m.exe       77    2.0 GiB
        not known            9  not known

        RTX 4090: 24.0 GiB; free: 24.0 GiB; held by other programs: 0 MiB; source: virtual"""
    )


def test_no_device_says_how_to_have_a_virtual_one() -> None:
    assert devices.text_of(()) == (
        'No GPU was found. A virtual one can be set: VRAM_GUARD_DEVICE="NVIDIA GeForce RTX 3060:12GiB:free=11GiB"'
    )


def test_texts_are_said_in_the_language_that_was_asked_for() -> None:
    assert fit.text_of(Fit(0, 0, 0, 0), "pt") == "Nem o menor cabe."
    assert estimate.text_of(ESTIMATE, "es").splitlines()[2].startswith("fase")
