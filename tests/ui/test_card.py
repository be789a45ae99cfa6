from lib_vram.machine.card import Card, Holder
from lib_vram.ui import card
from lib_vram.units import GIB


def test_the_card_is_shown_with_its_holders_and_what_happens_when_it_is_full():
    found = Card(
        "RTX <3060>",
        12 * GIB,
        8 * GIB,
        3 * GIB,
        "nvml",
        holders=(Holder(41, "game & co", 3 * GIB), Holder(7, "x", None)),
    )
    assert card.card(found, "en") == (
        '<span class="vg-meter vg-meter-wide" aria-hidden="true">'
        '<span class="vg-seg vg-others" style="width:25.0%"></span>'
        '<span class="vg-seg vg-resident" style="width:8.3%"></span></span>'
        '<dl class="vg-facts">'
        "<dt>Card</dt><dd>RTX &lt;3060&gt;</dd>"
        "<dt>Memory in all</dt><dd>12.0 GiB</dd>"
        "<dt>Free now</dt><dd>8.0 GiB</dd>"
        "<dt>Held by other programs</dt><dd>3.0 GiB</dd>"
        "<dt>Held by this WebUI</dt><dd>1.0 GiB</dd>"
        "<dt>When it is full</dt><dd>the generation stops with an out of memory error</dd>"
        "<dt>Read through</dt><dd>the NVIDIA driver (NVML)</dd></dl>"
        '<table class="vg-table"><caption>Programs on this card</caption>'
        '<thead><tr><th scope="col">Program</th><th scope="col">Process</th><th scope="col">Memory</th></tr></thead>'
        "<tbody><tr><td>game &amp; co</td><td>41</td><td>3.0 GiB</td></tr>"
        "<tr><td>x</td><td>7</td><td>not known</td></tr></tbody></table>"
    )


def test_what_is_not_known_is_said_and_not_shown_as_zero():
    html = card.card(Card("GPU", 8 * GIB, None, None, "torch", spills=True), "en")
    assert html.count("<dd>not known</dd>") == 3
    assert "the driver moves memory into the computer&#x27;s RAM: slow, without an error" in html
    assert "The driver names no other program." in html


def test_no_card_is_one_sentence():
    assert card.card(None, "en") == "<p>No card was found: PyTorch sees no GPU here, and no virtual card is set.</p>"
