import re

import pytest

from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.message import Message
from lib_vram.request import Request
from lib_vram.ui import picture
from lib_vram.units import GIB

REQUEST = Request.from_dict(
    {
        "device": {"total_bytes": 12 * GIB, "used_by_others_bytes": GIB},
        "model": {"family": "sdxl"},
        "width": 1024,
        "height": 1024,
    }
)


def phase(name, resident, minimum, comfortable, parts=()):
    sizes = [int(size * GIB) for size in (resident, minimum, minimum, comfortable, minimum, minimum)]
    return PhaseEstimate(name, *sizes, source="profile", resident_parts=parts)


SAMPLING = phase("sampling", 5, 2, 3, (("unet", 4 * GIB), ("context", GIB)))
DECODE = phase("vae_decode", 5, 8, 9)
WONT_FIT = Estimate("wont_fit", 11 * GIB, "vae_decode", DECODE.peak_bytes, phases=(SAMPLING, DECODE))
FITS = Estimate("fits", 11 * GIB, "sampling", SAMPLING.peak_bytes, phases=(SAMPLING,))
TIGHT = Estimate("tight", 11 * GIB, "sampling", 7 * GIB, phases=(phase("sampling", 5, 2, 6 + 1 / 1024),))


@pytest.mark.parametrize(
    ("estimate", "sentence"),
    [
        (FITS, "Fits. The peak is in sampling: 7.0 of 11.0 GiB."),
        (WONT_FIT, "Won't fit: VAE decode needs 13.0 of 11.0 GiB."),
        (
            TIGHT,
            "Tight in sampling: it runs with 7.0 of 11.0 GiB, and would take 11.1 GiB if they were there, "
            "so it may slow down.",
        ),
        (Estimate("unknown", 0), "Not known for this request."),
    ],
)
def test_the_binding_phase_is_named_in_words(estimate, sentence):
    assert picture.phases_sentence(estimate, "en") == sentence


def test_a_row_is_focusable_and_its_numbers_are_its_name():
    html = picture.phases(FITS, REQUEST, "en")
    numbers = (
        "sampling: other programs 1.0, model and driver 5.0, activations 2.0 to 3.0, free 4.0 GiB. "
        "On the card: UNet 4.0, driver 1.0"
    )
    assert f'<li class="vg-row vg-binds" tabindex="0" aria-label="{numbers}">' in html


def test_the_bar_is_stacked_in_order_up_to_the_edge_of_the_card():
    html = picture.phases(FITS, REQUEST, "en")
    drawing = html[html.index("<svg") : html.index("</svg>") + 6]
    assert drawing == (
        '<svg viewBox="0 0 1000 28" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        '<rect x="0.0" y="6" width="81.7" height="16" class="vg-fill vg-others"></rect>'
        '<rect x="81.7" y="6" width="408.5" height="16" class="vg-fill vg-resident"></rect>'
        '<rect x="490.2" y="6" width="163.4" height="16" class="vg-fill vg-activations"></rect>'
        '<rect x="653.6" y="6" width="81.7" height="16" class="vg-fill vg-comfortable"></rect>'
        '<rect x="735.3" y="6" width="245.1" height="16" class="vg-fill vg-free"></rect>'
        '<line x1="980.4" x2="980.4" y1="0" y2="28" class="vg-card-edge"></line></svg>'
    )


def test_phases_come_in_the_order_in_which_they_happen_and_the_one_over_the_edge_is_marked():
    html = picture.phases(WONT_FIT, REQUEST, "en")
    assert re.findall(r'class="vg-row-name">([^<]*)', html) == ["sampling", "VAE decode"]
    assert 'class="vg-row vg-binds vg-over"' in html
    assert "2.0 GiB too much" in html


def test_the_hidden_table_holds_the_same_numbers():
    html = picture.phases(WONT_FIT, REQUEST, "en")
    table = html[html.index("<table") : html.index("</table>")]
    assert '<table class="vg-hidden"><caption>Memory of each phase, in GiB</caption>' in table
    assert (
        '<tr><th scope="row">VAE decode</th><td>1.0</td><td>5.0</td><td>8.0</td><td>1.0</td><td>0.0</td><td>13.0</td>'
        in table
    )


def test_notes_and_strange_names_stay_text():
    evil = "<img src=x onerror=alert(1)>"
    estimate = Estimate(
        "fits", 11 * GIB, "sampling", GIB, phases=(phase("sampling", 5, 2, 3, ((evil, GIB),)),), notes=(Message(evil),)
    )
    html = picture.phases(estimate, REQUEST, "en")
    assert "<img" not in html
    assert html.count("&lt;img src=x onerror=alert(1)&gt;") == 3


def test_without_a_request_only_the_reason_is_shown():
    html = picture.phases(Estimate("unknown", 0, notes=(Message("why"),)), None, "en")
    assert html == '<p class="vg-binding">Not known for this request.</p><ul class="vg-notes"><li>why</li></ul>'
