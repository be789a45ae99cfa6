"""The HTTP routes ``/vram-guard/v1/…``, inside the WebUI and the Lab.

Bodies are read by hand instead of through pydantic models, because the hosts pin pydantic 1
and pydantic 2. What is bad about a request is one line in ``{"error": …}``.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

import lib_vram
from lib_vram.errors import BadInput
from lib_vram.guard.guard import estimate, make_plan
from lib_vram.message import LANGUAGES, language_of, render, say
from lib_vram.request import Mode
from lib_vram.request import Request as Generation
from lib_vram.ui import access

if TYPE_CHECKING:
    from lib_vram.ui.answers import GuardLike

PREFIX = "/vram-guard/v1"
BODY_LIMIT_BYTES = 1024**2
LOG_LIMIT_BYTES = 16 * 1024**2
"""A console log that is pasted whole for a diagnosis; what is larger says no more."""
CHANGE_LIMIT_BYTES = 4096
"""What frees or restarts says so in a few words."""
_TABS = ("txt2img", "img2img")

logger = logging.getLogger(__name__)

Work = Callable[[dict[str, Any]], dict[str, Any]]


class _Refusal(Exception):
    """The request is answered with a status and one line."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


def add_routes(app: Any, guard: GuardLike) -> None:
    """Add the routes to ``app``, the host's FastAPI application; a second call on the same one does nothing."""
    if any(getattr(route, "path", "").startswith(PREFIX) for route in app.routes):
        return
    posts: dict[str, Work] = {
        "check": lambda body: _check(guard, body),
        "estimate": lambda body: _estimate(guard, Generation.from_dict(body)),
        "plan": lambda body: _plan(guard, Generation.from_dict(body)),
        "diagnose": lambda body: _diagnose(guard, body),
        "fits": lambda body: _fits(guard, body),
        "undone": partial(_undone, guard, access.Turn(only_reads=True)),
    }
    for name, work in posts.items():
        limit_bytes = LOG_LIMIT_BYTES if name == "diagnose" else BODY_LIMIT_BYTES
        app.add_route(f"{PREFIX}/{name}", _post(app, work, limit_bytes), methods=["POST"])
    turn = access.Turn()
    for name in ("free", "restart"):
        work = partial(_change, name, guard, turn)
        app.add_route(f"{PREFIX}/{name}", _post(app, work, CHANGE_LIMIT_BYTES), methods=["POST"])
    app.add_route(f"{PREFIX}/end-process", _post(app, partial(_end, guard, turn), CHANGE_LIMIT_BYTES), methods=["POST"])
    for name in ("history", "history-export", "history-row", "history-erase"):
        own_turn = turn if name == "history-erase" else access.Turn(only_reads=True)
        work = partial(_of_history, name, guard, own_turn)
        app.add_route(f"{PREFIX}/{name}", _post(app, work, CHANGE_LIMIT_BYTES), methods=["POST"])
    for name in ("recover", "recover-delete"):
        app.add_route(
            f"{PREFIX}/{name}", _post(app, partial(_recover, name, guard, turn), CHANGE_LIMIT_BYTES), methods=["POST"]
        )
    gets: dict[str, Work] = {
        "live": lambda query: _live(guard, query),
        "status": lambda query: _status(guard),
        "texts": _texts,
        "sections": lambda query: _sections(guard, query),
    }
    for name, work in gets.items():
        app.add_route(f"{PREFIX}/{name}", _get(app, work), methods=["GET"])


def _estimate(guard: GuardLike, request: Generation) -> dict[str, Any]:
    """Return the estimate, of a request of this machine as its own runs correct it."""
    learned = _learned_here(guard, request)
    result = estimate(request)
    return (learned.corrected(result, request) if learned is not None else result).to_dict()


def _plan(guard: GuardLike, request: Generation) -> dict[str, Any]:
    learned = _learned_here(guard, request)
    return (make_plan(request) if learned is None else learned.planned(request, make_plan)).to_dict()


def _learned_here(guard: GuardLike, request: Generation) -> Any:
    """Return what the guard has learned when ``request`` is of this machine; else ``None``."""
    learned = getattr(guard, "learned", None)
    return learned if learned is not None and learned.is_here(request) else None


def _check(guard: GuardLike, body: dict[str, Any]) -> dict[str, Any]:
    asked = _fields(body)
    from lib_vram.ui import answers

    return answers.check(guard, *asked)


def _fits(guard: GuardLike, body: dict[str, Any]) -> dict[str, Any]:
    asked = _fields(body)
    from lib_vram.ui import answers_fits

    return answers_fits.fits(guard, *asked)


def _undone(guard: GuardLike, turn: access.Turn, body: dict[str, Any]) -> dict[str, Any]:
    from lib_vram.ui import answers_undone

    with turn.taken(language_of(body.get("language"))):
        return answers_undone.undone(guard, body)


def _fields(body: dict[str, Any]) -> tuple[Mode, dict[str, Any], str]:
    """Return the tab, its fields and the language that ``body`` names."""
    tab, form = body.get("tab"), body.get("form")
    if tab not in _TABS:
        raise BadInput("tab", got=tab, takes=f"one of {', '.join(_TABS)}")
    if not isinstance(form, dict):
        raise BadInput("form", got=form, takes="an object with the fields of the page")
    return tab, form, language_of(body.get("language"))


def _diagnose(guard: GuardLike, body: dict[str, Any]) -> dict[str, Any]:
    text, language = body.get("text"), language_of(body.get("language"))
    if text is not None and not isinstance(text, str):
        raise BadInput("text", got=text, takes="an error text or console log, or nothing for the last failure")
    from lib_vram.ui.sections import diagnosis

    return diagnosis.answer(guard, {"text": text or "", "page": body.get("page") is True}, language)


# What makes the page's HTML is imported with the first answer: the start of the WebUI need not wait for it.


def _texts(query: dict[str, Any]) -> dict[str, Any]:
    from lib_vram.ui import answers

    return answers.page_words(language_of(query.get("language")))


def _sections(guard: GuardLike, query: dict[str, Any]) -> dict[str, Any]:
    from lib_vram.ui import sections

    return dict(sections.all_html(guard, language_of(query.get("language"))))


def _change(name: str, guard: GuardLike, turn: access.Turn, body: dict[str, Any]) -> dict[str, Any]:
    from lib_vram.ui import answers_free

    return {"free": answers_free.free, "restart": answers_free.restart}[name](guard, turn, body)


def _end(guard: GuardLike, turn: access.Turn, body: dict[str, Any]) -> dict[str, Any]:
    from lib_vram.ui import answers_live

    return answers_live.end_process(guard, turn, body)


def _of_history(name: str, guard: GuardLike, turn: access.Turn, body: dict[str, Any]) -> dict[str, Any]:
    from lib_vram.ui import answers_history

    if name == "history-erase":
        return answers_history.erase(guard, turn, body)
    answers = {"history": answers_history.history, "history-export": answers_history.export}
    with turn.taken(language_of(body.get("language"))):
        return answers.get(name, answers_history.row)(guard, body)


def _live(guard: GuardLike, query: dict[str, Any]) -> dict[str, Any]:
    from lib_vram.ui import answers_live

    return answers_live.now(guard, query)


def _recover(name: str, guard: GuardLike, turn: access.Turn, body: dict[str, Any]) -> dict[str, Any]:
    from lib_vram.ui import answers_recover

    return {"recover": answers_recover.recover, "recover-delete": answers_recover.delete}[name](guard, turn, body)


def _status(guard: GuardLike) -> dict[str, Any]:
    card = guard.host.card()
    if card is not None and guard.host.is_open_to_others():
        card = dataclasses.replace(card, holders=())  # what else runs here is no business of other machines
    return {
        "version": lib_vram.__version__,
        "host": guard.host.name,
        "host_title": guard.host.title,
        "host_version": guard.host.version(),
        "mode": guard.host.settings().mode,
        "languages": list(LANGUAGES),
        "card": dataclasses.asdict(card) if card else None,
    }


def _post(app: Any, work: Work, limit_bytes: int = BODY_LIMIT_BYTES) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        try:
            _admit(app, request, posted=True)
            body = await _body(request, limit_bytes)
        except _Refusal as refusal:
            return _error(refusal.status, str(refusal))
        return await run_in_threadpool(_worked, work, body)

    return answer


def _get(app: Any, work: Work) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        try:
            _admit(app, request, posted=False)
        except _Refusal as refusal:
            return _error(refusal.status, str(refusal))
        return await run_in_threadpool(_worked, work, dict(request.query_params))

    return answer


def _admit(app: Any, request: Request, *, posted: bool) -> None:
    if not access.logged_in(app, request):
        raise _Refusal(401, render(say("ui.error_login")))
    if posted and not access.same_origin(request):
        raise _Refusal(403, render(say("ui.error_origin")))


async def _body(request: Request, limit_bytes: int) -> dict[str, Any]:
    """Return the JSON object that was sent, reading no more than the limit."""
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit_bytes:
                raise _Refusal(413, render(say("ui.error_body_large", limit_bytes=limit_bytes)))
            chunks.append(chunk)
    except ClientDisconnect as gone:
        raise _Refusal(400, render(say("ui.error_body_json"))) from gone
    try:
        body = json.loads(b"".join(chunks))
    except (ValueError, RecursionError) as bad:
        raise _Refusal(422, render(say("ui.error_body_json"))) from bad
    if not isinstance(body, dict):
        raise _Refusal(422, render(say("ui.error_body_json")))
    return body


def _worked(work: Work, body: dict[str, Any]) -> Response:
    """Return the answer of ``work``; a fault of ours becomes one clear line, and its traceback goes to the log."""
    try:
        return JSONResponse(work(body))
    except BadInput as bad:
        return _error(422, str(bad))
    except access.Declined as declined:
        return _error(declined.status, str(declined))
    except Exception as fault:  # the page must go on whatever is wrong here
        logger.exception("VRAM Guard could not answer a request of its page")
        return _error(500, render(say("ui.error_fault", reason=f"{type(fault).__name__}: {fault}"[:200])))


def _error(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status_code=status)
