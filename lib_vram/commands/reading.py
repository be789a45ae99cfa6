"""Reading a request from a file or from standard input, whatever may be in it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

from lib_vram.errors import BadInput
from lib_vram.request import Request

LIMIT_BYTES = 1024**2
"""A request has some 2 KB; this leaves room for hundreds of LoRAs and no room for mischief."""
MOST_REQUESTS = 32
"""In a list; more would take minutes."""
LONGEST_NUMBER = 40
"""Digits; the largest number that any field takes has 16."""
_TAKES = "a JSON file with a request, or - for standard input"


def read_request(path: str | None) -> Request:
    """Return the request in the file at ``path``, or on standard input for ``-``.

    Raises:
        BadInput: nothing can be read there, or it is not a request; names what is wrong.
    """
    if path is None:
        raise BadInput("REQUEST", got=None, takes=_TAKES)
    return Request.from_dict(parse_json(_read(path)))


def read_requests(path: str | None) -> tuple[Request, ...]:
    """Return the requests in a list of them, or the one that stands alone; where they are read as :func:`read_request`.

    Raises:
        BadInput: nothing can be read there, one of them is not a request, or there are none, or too many.
    """
    if path is None:
        raise BadInput("REQUEST", got=None, takes=_TAKES)
    data = parse_json(_read(path))
    if not isinstance(data, list):
        return (Request.from_dict(data),)
    if not 1 <= len(data) <= MOST_REQUESTS:
        raise BadInput("REQUEST", got=f"{len(data)} requests", takes=f"a list of 1 to {MOST_REQUESTS}")
    return tuple(Request.from_dict(item) for item in data)


def _read(path: str) -> bytes:
    if path == "-":
        if sys.stdin is None:
            raise BadInput("REQUEST", got=path, takes="a file: there is no standard input here")
        return _bounded(sys.stdin.buffer)
    try:
        with Path(path).open("rb") as file:
            return _bounded(file)
    except IsADirectoryError:
        raise BadInput("REQUEST", got=path, takes=f"{_TAKES}; this is a folder") from None
    except FileNotFoundError:
        raise BadInput("REQUEST", got=path, takes=f"{_TAKES}; there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        # Windows says "permission denied" for a folder; what has no usable name is none
        folder = isinstance(error, PermissionError) and Path(path).is_dir()
        reason = "this is a folder" if folder else getattr(error, "strerror", None) or str(error)
        raise BadInput("REQUEST", got=path, takes=f"{_TAKES}; it cannot be read ({reason})") from None


def _bounded(file: BinaryIO) -> bytes:
    content = file.read(LIMIT_BYTES + 1)
    if len(content) > LIMIT_BYTES:
        raise BadInput("REQUEST", got="more than 1 MiB", takes="a JSON object of at most 1 MiB")
    return content


def parse_json(content: bytes) -> Any:
    """Return what ``content`` means as JSON in UTF-8 or, as Windows' shells write it, UTF-16, with its mark or without.

    Raises:
        BadInput: it is not JSON, has a name twice, or is nested too deep. NaN and infinity are let through: no field
            of a request takes them, and it can say which it was.
    """
    if not content.strip():
        raise BadInput("REQUEST", got="", takes="a JSON object; this is empty")
    try:
        text = content.decode(json.detect_encoding(content))
        return json.loads(text, object_pairs_hook=_unique, parse_int=_whole)
    except UnicodeDecodeError as error:
        raise BadInput("REQUEST", got=content[:20], takes=f"JSON text in UTF-8; byte {error.start} is none") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise BadInput("REQUEST", got=_near(text, error.pos), takes=f"JSON; {place}: {error.msg}") from None
    except RecursionError:
        raise BadInput("REQUEST", got=_near(text, 0), takes="JSON that is not nested this deep") from None


def _near(text: str, place: int) -> str:
    return text[place : place + 20]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise BadInput(name, got=value, takes="one value: this field is given twice")
        result[name] = value
    return result


def _whole(text: str) -> int | float:
    """Return a whole number, as infinity or thereabouts when Python would take long to read it or refuse."""
    return int(text) if len(text) <= LONGEST_NUMBER else float(text)
