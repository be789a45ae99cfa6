import dataclasses

import pytest

from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.guard.argument import NAMES
from lib_vram.host.base import FieldWrite
from lib_vram.message import LANGUAGES, Message, say
from lib_vram.plan.result import Plan, Step
from lib_vram.request import Request
from lib_vram.ui import view
from lib_vram.ui.words import Words
from lib_vram.units import GIB, MIB

REQUEST = Request.from_dict(
    {
        "device": {"name": "RTX", "total_bytes": 12 * GIB, "used_by_others_bytes": GIB},
        "model": {"family": "sdxl"},
        "width": 1024,
        "height": 1024,
        "batch_size": 4,
    }
)


def phase(name="vae_decode", resident=5.0, floor=1.2, minimum=1.3, comfortable=2.0):
    sizes = [int(size * GIB) for size in (resident, floor, minimum, comfortable)]
    return PhaseEstimate(name, *sizes, low_bytes=sizes[1], high_bytes=sizes[2], source="profile")


def estimate(verdict, *phases, binding="vae_decode", notes=()):
    peak = next((item.peak_bytes for item in phases if item.name == binding), 0)
    return Estimate(verdict, 11 * GIB, binding if phases else None, peak, phases=phases, notes=notes)


FITS = estimate("fits", phase())
TIGHT = estimate("tight", phase("hires_sampling", 5.0, 5.4, 5.5, 8.0), binding="hires_sampling")
WONT_FIT = estimate("wont_fit", phase("sampling", 5.0, 1.0, 1.1, 1.2), phase(minimum=8.1, floor=8.0, comfortable=9.0))
UNKNOWN = estimate("unknown", notes=(say("guard.no_card"),))
PLAN = Plan(
    fits=True,
    steps=(
        Step("batch_to_count", "batch_size", 4, 1, 3 * GIB, "time", Message("batch <b>4</b> → 1")),
        Step("tiled_vae", "vae.tiled", False, True, GIB, "nothing", Message("tiled VAE")),
    ),
    request=REQUEST.replace(batch_size=1, batch_count=4),
    estimate=FITS,
)
WRITES = (FieldWrite("batch_size", 1, 4), FieldWrite("batch_count", 4, 1), FieldWrite("vae_tiled", True, False))


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (FITS, "✓ fits 6.3 of 11.0 GiB · peak in VAE decode"),
        (TIGHT, "! tight 10.5 of 11.0 GiB · peak in hires sampling · may slow down"),
        (WONT_FIT, "✕ won't fit 13.1 of 11.0 GiB · VAE decode"),
        (UNKNOWN, "? unknown no GPU: nothing to compute"),
    ],
)
def test_the_bar_says_sign_word_figure_and_phase_in_one_line(verdict, text):
    assert view.bar_text(verdict, "en") == text


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("pt", "✕ não cabe 13.1 de 11.0 GiB · decodificação do VAE"),
        ("es", "✕ no cabe 13.1 de 11.0 GiB · decodificación del VAE"),
    ],
)
def test_the_bar_speaks_every_language_of_the_catalogue(language, text):
    assert view.bar_text(WONT_FIT, language) == text


def test_what_is_tight_for_failures_with_room_to_spare_is_not_said_to_slow_down():
    limited = dataclasses.replace(TIGHT, notes=(say("learning.note_doubts", runs=2, needs_bytes=1, unused_bytes=1),))
    assert view.bar_text(TIGHT, "en").endswith("may slow down")
    assert view.bar_text(limited, "en").endswith("may run out again")


def test_the_bar_is_one_button_that_says_what_it_opens():
    assert view.bar(FITS, REQUEST, "en") == (
        '<button type="button" class="vg-open" aria-expanded="false"'
        ' title="✓ fits 6.3 of 11.0 GiB · peak in VAE decode">'
        '<span class="vg-sign" aria-hidden="true">✓</span>'
        '<span class="vg-word">fits</span>'
        '<span class="vg-meter" aria-hidden="true">'
        '<span class="vg-seg vg-others" style="width:8.3%"></span>'
        '<span class="vg-seg vg-resident" style="width:41.7%"></span>'
        '<span class="vg-seg vg-active" style="width:10.8%"></span>'
        '<span class="vg-seg vg-extra" style="width:5.8%"></span>'
        "</span>"
        '<span class="vg-tail"><span class="vg-figure">6.3 of 11.0 GiB</span>'
        '<span class="vg-part">peak in VAE decode</span></span>'
        "</button>"
    )


def test_the_bar_offers_the_fix_only_where_there_is_one():
    assert 'data-act="fix"' in view.bar(WONT_FIT, REQUEST, "en", can_fix=True)
    assert 'data-act="fix"' not in view.bar(WONT_FIT, REQUEST, "en")


def test_the_meter_of_what_will_not_fit_shows_the_edge_of_the_card():
    assert view.meter(WONT_FIT, REQUEST) == (
        '<span class="vg-meter" aria-hidden="true">'
        '<span class="vg-seg vg-others" style="width:7.1%"></span>'
        '<span class="vg-seg vg-resident" style="width:35.5%"></span>'
        '<span class="vg-seg vg-active" style="width:57.4%"></span>'
        '<span class="vg-edge" style="left:85.1%"></span>'
        "</span>"
    )


def test_a_need_that_is_barely_too_much_never_looks_as_if_it_fitted():
    barely = estimate("wont_fit", phase(minimum=6.0 + 1 / 1024, floor=5.9, comfortable=7.0))
    assert view.bar_text(barely, "en") == "✕ won't fit 11.1 of 11.0 GiB · VAE decode"


def test_the_ask_sentence_says_what_where_and_by_how_much():
    assert view.ask_sentence(WONT_FIT, "en") == (
        "It would run out of memory in VAE decode: it needs 13.1 GiB, 11.0 GiB are there, 2.1 GiB too much."
    )


RETRIES = say("estimate.forge_retries_tiled", host="Forge")


def test_where_the_host_goes_on_in_tiles_the_ask_sentence_says_so():
    estimated = dataclasses.replace(WONT_FIT, notes=(RETRIES,))
    assert view.ask_sentence(estimated, "en") == (
        "The whole picture would run out of memory in VAE decode: it needs 13.1 GiB, 11.0 GiB are there. "
        "The WebUI would then start that step again in tiles: it ends, later."
    )


def test_tiles_are_no_help_where_sampling_does_not_fit_either():
    sampling = dataclasses.replace(WONT_FIT.phases[-1], name="sampling")
    estimated = dataclasses.replace(WONT_FIT, phases=(sampling, *WONT_FIT.phases), notes=(RETRIES,))
    assert view.ask_sentence(estimated, "en").startswith("It would run out of memory in VAE decode")


def test_where_the_driver_spills_the_ask_sentence_says_it_runs_slowly():
    assert view.ask_sentence(WONT_FIT, "en", spills=True) == (
        "It would not fit in VAE decode: it needs 13.1 GiB, 11.0 GiB are there. "
        "The driver would move 2.1 GiB into the computer's RAM: it would run, many times slower."
    )


def test_the_ask_panel_lists_each_change_with_its_cost_and_has_the_fix_first():
    assert view.ask(WONT_FIT, PLAN, WRITES, "en") == (
        '<h2 class="vg-ask-title">This will not fit</h2>'
        '<p class="vg-ask-sentence">It would run out of memory in VAE decode: '
        "it needs 13.1 GiB, 11.0 GiB are there, 2.1 GiB too much.</p>"
        '<p class="vg-ask-changes">Fix it for me would change this, then generate:</p>'
        '<ul class="vg-steps">'
        '<li><span class="vg-step-text">batch &lt;b&gt;4&lt;/b&gt; → 1</span>'
        '<span class="vg-cost vg-cost-time">takes longer</span></li>'
        '<li><span class="vg-step-text">tiled VAE</span>'
        '<span class="vg-cost vg-cost-nothing">costs nothing</span></li>'
        "</ul>"
        '<p class="vg-ask-after">Then VAE decode needs 6.3 of 11.0 GiB.</p>'
        '<p class="vg-ask-again">Pressing Generate again runs it as it is.</p>'
        '<div class="vg-buttons">'
        '<button type="button" class="vg-button vg-primary" data-act="fix-run">Fix it for me</button>'
        '<button type="button" class="vg-button" data-act="run">Run anyway</button>'
        '<button type="button" class="vg-button" data-act="cancel">Cancel</button>'
        "</div>"
    )


def test_when_nothing_fits_the_panel_says_what_would_and_offers_no_fix():
    plan = dataclasses.replace(PLAN, fits=False, steps=(), when_not=Message("a 16 GB card <would>"))
    html = view.ask(WONT_FIT, plan, (), "en")
    assert '<p class="vg-ask-when-not">a 16 GB card &lt;would&gt;</p>' in html
    assert 'data-act="fix-run"' not in html


def test_the_line_after_a_fix_says_what_changed_and_why():
    assert view.changed_text(PLAN, WRITES, "en") == (
        "Batch size 4 → 1, Batch count 1 → 4, Tiled VAE off → on: so VAE decode needs 6.3 of 11.0 GiB and fits."
    )


def test_the_line_after_a_fix_that_is_tight_does_not_say_that_it_fits():
    plan = dataclasses.replace(PLAN, estimate=dataclasses.replace(PLAN.estimate, verdict="tight"))
    assert view.changed_text(plan, WRITES, "en").endswith(": so VAE decode needs 6.3 of 11.0 GiB, which is tight.")


def test_the_same_field_of_several_controlnets_is_named_once_and_in_words():
    writes = tuple(FieldWrite(f"controlnet_low_vram:{place}", True, False) for place in range(2))
    assert view.changed_text(PLAN, writes, "pt").startswith("Low VRAM do ControlNet desligado → ligado: ")


@pytest.mark.parametrize(
    ("write", "shown"),
    [
        (FieldWrite("reserve_mb", 3000, 0), "MiB que se dejan libres 3000: "),
        (FieldWrite("live_preview", "approx", ""), "Vista previa Barata: "),
        (FieldWrite("attention", "sub_quad", "split"), "Atención Dividida (Doggettx) → Subcuadrática: "),
        (FieldWrite("fp8_weights", True, False), "Pesos en fp8 desactivado → activado: "),
        (FieldWrite("upscaler_tile", 192, 0), "Bloque de los ampliadores 192: "),
    ],
)
def test_our_own_controls_are_named_as_on_the_page_and_what_leaves_it_to_the_settings_has_no_before(write, shown):
    assert view.changed_text(PLAN, (write,), "es").startswith(shown)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_field_that_a_fix_can_write_has_a_name(language):
    ours = {"tiled": "vae_tiled", "tile_size": "vae_tile_size", "apart": "cond_uncond_apart"}
    fields = ["controlnet_low_vram", *(ours.get(name, name) for name in NAMES if name != "mode")]
    assert [field for field in fields if Words(language).name_of("field", field) == field] == []


def test_a_field_that_had_no_value_is_shown_without_a_before():
    assert view.changed_text(PLAN, (FieldWrite("vae_tile_size", 768, None),), "en").startswith("Tile size 768: ")


def test_figures_are_exact_to_the_megabyte_boundary():
    near = estimate("fits", phase(resident=1.0, minimum=1 - 1 / 1024))
    assert view.bar_text(near, "en").startswith("✓ fits 2.0 of 11.0 GiB")
    assert near.binding.needs_bytes == 2 * GIB - MIB
