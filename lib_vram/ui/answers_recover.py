"""What the page is answered about latents that a run left behind: decode and save them now, or delete them."""

from __future__ import annotations

from typing import Any

from lib_vram.guard.kept_latents import kept_latents
from lib_vram.host.freeing import Busy
from lib_vram.host.lab import LabHost
from lib_vram.host.rescue_latents import CannotRecover
from lib_vram.host.rescue_latents import recover as decode_and_save
from lib_vram.message import language_of, render, say
from lib_vram.ui.access import Declined, Turn
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.sections import recover as section


def recover(guard: GuardLike, turn: Turn, body: dict[str, Any]) -> dict[str, Any]:
    """Decode the latents that ``body`` names; the files that were saved and their infotexts.

    Raises:
        BadInput: there are no such latents.
        Declined: the page may change nothing (403), a generation is at work or another checkpoint is loaded (409).
    """
    language = _allowed(guard, body)
    if isinstance(guard.host, LabHost):
        raise Declined(409, render(say("rescue.recover_lab"), language))
    try:
        with turn.taken(language):
            recovered = decode_and_save(guard.host, kept_latents(), body.get("id"))
    except Busy as busy:
        raise Declined(409, render(say("free.busy"), language)) from busy
    except CannotRecover as cannot:
        raise Declined(409, render(cannot.reason, language)) from cannot
    said = section.done_text(recovered, language)
    return {"files": list(recovered.files), "infotexts": list(recovered.infotexts), "said": said, **_list(language)}


def delete(guard: GuardLike, turn: Turn, body: dict[str, Any]) -> dict[str, Any]:
    """Delete the latents that ``body`` names. Raises as :func:`recover`."""
    language = _allowed(guard, body)
    with turn.taken(language):
        latents = kept_latents()
        latents.drop(latents.find(body.get("id")).id)
    return {"said": render(say("rescue.recover_deleted"), language), **_list(language)}


def _allowed(guard: GuardLike, body: dict[str, Any]) -> str:
    """Return the language of the answer, where the host lets this page change anything at all."""
    language = language_of(body.get("language"))
    if guard.host.is_open_to_others():
        raise Declined(403, render(say("free.off_open"), language))
    return language


def _list(language: str) -> dict[str, Any]:
    return {"html": section.list_html(kept_latents().left(), language)}
