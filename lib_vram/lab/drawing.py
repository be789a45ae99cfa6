"""Stand-ins for pictures: a small landscape in flat colours, different for each seed."""

from __future__ import annotations

import random

from PIL import Image, ImageDraw

_SKIES = (("#f7b267", "#f25c54"), ("#8ecae6", "#219ebc"), ("#cdb4db", "#6d597a"), ("#ffd6a5", "#9d8189"))
_HILLS = ("#264653", "#2a4d3e", "#3d405b", "#463f3a")
_BANDS = 12
_HILL_POINTS = 9


def draw(width: int, height: int, seed: int) -> Image.Image:
    """Return a drawn picture of ``width`` × ``height`` pixels; the same seed draws the same picture."""
    chance = random.Random(seed)
    top, bottom = _SKIES[seed % len(_SKIES)]
    image = Image.new("RGB", (width, height), top)
    pen = ImageDraw.Draw(image)
    for band in range(_BANDS):
        y = height * band // _BANDS
        pen.rectangle((0, y, width, y + height // _BANDS + 1), fill=_between(top, bottom, band / _BANDS))
    radius = min(width, height) // chance.randint(9, 14)
    x, y = chance.randint(width // 4, 3 * width // 4), chance.randint(height // 5, height // 2)
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill="#fff3d6")
    for layer in range(3):
        _hill(pen, chance, width, height, layer, _HILLS[(seed + layer) % len(_HILLS)])
    return image


def _hill(pen: ImageDraw.ImageDraw, chance: random.Random, width: int, height: int, layer: int, colour: str) -> None:
    base = height * (55 + 13 * layer) // 100
    swing = height // (8 + 2 * layer)
    points = [
        (width * step // (_HILL_POINTS - 1), base + chance.randint(-swing, swing // 2)) for step in range(_HILL_POINTS)
    ]
    pen.polygon([(0, height), *points, (width, height)], fill=colour)


def _between(first: str, second: str, share: float) -> tuple[int, int, int]:
    pairs = zip(bytes.fromhex(first[1:]), bytes.fromhex(second[1:]), strict=True)
    red, green, blue = (int(a + (b - a) * share) for a, b in pairs)
    return red, green, blue
