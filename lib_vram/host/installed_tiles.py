"""Beside multidiffusion's *Tiled VAE*: where that is on, it decodes and encodes, and a fix makes its tiles smaller."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from lib_vram.host import asked as asking
from lib_vram.host import units
from lib_vram.host.asked import Asked
from lib_vram.host.webui import WebUI
from lib_vram.request import Mode, Request

SMALLEST_TILE, TILE_STEP = 48, 16
"""Bounds of its slider, in latent pixels (its ``scripts/tilevae.py``)."""
_FORMS_REMEMBERED = 64


class BesideTiledVae(WebUI):
    """A host whose tiles are ours unless that extension's are on."""

    def __init__(self) -> None:
        super().__init__()
        self._installed: OrderedDict[Request, None] = OrderedDict()

    def asked_by_form(self, tab: Mode, form: Mapping[str, Any]) -> Asked:
        """Return what the fields ask for; an installed *Tiled VAE* that is on counts as tiled, with its own tile."""
        want = super().asked_by_form(tab, form)
        tile = asking.Form(form).whole("tiled_vae_tile", 0) * 8
        return dataclasses.replace(want, tiled=True, tile_size=tile) if tile > 0 else want

    def asked(self, p: Any) -> Asked:
        """Return what ``p`` asks for; an installed *Tiled VAE* that is on counts as tiled."""
        want = super().asked(p)
        tile = units.tiled_vae_tile(p)
        return want if tile is None else dataclasses.replace(want, tiled=True, tile_size=tile)

    def request_from_form(self, tab: Mode, form: Mapping[str, Any]) -> Request:
        """Return the request of the page's fields, and remember whose tiles they ask for. Raises as the host's."""
        request = super().request_from_form(tab, form)
        self._installed.pop(request, None)
        if asking.Form(form).whole("tiled_vae_tile", 0) > 0:
            self._installed[request] = None
        while len(self._installed) > _FORMS_REMEMBERED:
            self._installed.popitem(last=False)
        return request

    def lever_pairs(self, original: Request, changed: Request) -> list[tuple[str, Any, Any]]:
        """Return the tiles' fields, the installed extension's where it is on, and the host's own switches."""
        pairs = self._installed_pairs if original in self._installed else _own_pairs
        return pairs(original, changed) + super().lever_pairs(original, changed)

    @staticmethod
    def _installed_pairs(original: Request, changed: Request) -> list[tuple[str, Any, Any]]:
        """Write its tile where its slider goes that low; else switch it off and ours on, which goes lower."""
        before, after = (request.vae.tile_size or 0 for request in (original, changed))
        if before == after:
            return []
        tile = after // 8 // TILE_STEP * TILE_STEP
        if tile >= SMALLEST_TILE:
            return [("tiled_vae_tile", before // 8, tile)]
        return [("tiled_vae", True, False), ("vae_tiled", False, True), ("vae_tile_size", before, after)]

    def installed_tile(self, p: Any, request: Request | None) -> int | None:
        """Return the installed extension's tile for the run of ``p``, made smaller where ``request`` needs that."""
        installed = units.tiled_vae_tile(p)
        size = request.vae.tile_size if request else None
        if installed is not None and size is not None and size < installed:
            units.with_tiled_vae_tile(p, size, self.runs.of(p).of_fields)
        return installed


def _own_pairs(original: Request, changed: Request) -> list[tuple[str, Any, Any]]:
    pairs = [("vae_tiled", original.vae.tiled, changed.vae.tiled)]
    if changed.vae.tiled and changed.vae.tile_size:
        pairs.append(("vae_tile_size", original.vae.tile_size, changed.vae.tile_size))
    return pairs
