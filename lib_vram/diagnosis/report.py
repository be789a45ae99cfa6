"""A report to paste into a forum: everything that helps, no names and no paths."""

from __future__ import annotations

import getpass
import os
import re

from lib_vram.diagnosis.diagnosis import Diagnosis
from lib_vram.diagnosis.scan import Log, read_log
from lib_vram.message import render, sentence

EXCERPT_CHARACTERS = 3000
"""Of the text itself: the end of the traceback and the error."""

_PATH = re.compile(
    r"(?:[A-Za-z]:[\\/]|\\\\[\w.$-]+[\\/]|~[\\/]|(?<![\w/.:])/)"  # a drive, a share, home, the root
    r"(?:[^\\/\s\"'<>|:*?]+[ ]?[^\\/\"'<>|:*?\n]{0,60}?[\\/])+(?=[^\\/\s\"'<>|]*)"  # folders, blanks in their names too
)
_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b")
_MAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64}")
_TOKEN = re.compile(r"\b(?:hf_|sk-|ghp_|glpat-|xox[bp]-)[A-Za-z0-9_-]{8,}")
_SECRET = re.compile(r"(?i)(--(?:gradio-|api-)?auth(?:-path)?|\btoken|password|api[_-]?key)([ =:]+)\S+")


def scrub(text: str) -> str:
    """Return ``text`` with every folder cut to ``…/``, and without user names, mail and network addresses and keys."""
    for pattern, instead in ((_TOKEN, "***"), (_SECRET, r"\1\2***"), (_MAIL, "***"), (_ADDRESS, "*.*.*.*")):
        text = pattern.sub(instead, text)
    text = _PATH.sub("…/", text)
    for name in _names():
        text = re.sub(rf"(?i)(?<!\w){re.escape(name)}(?!\w)", "***", text)
    return text


def _names() -> list[str]:
    """Return the names of the user and the machine that are long enough to mean something."""
    names = {os.environ.get(name, "") for name in ("USER", "USERNAME", "LOGNAME", "COMPUTERNAME", "HOSTNAME")}
    try:
        names.add(getpass.getuser())
    except (OSError, KeyError, ImportError):  # no such user, or no way to ask
        names.discard("")
    return sorted((name for name in names if len(name) > 2 and name != "root"), key=len, reverse=True)


def report(found: Diagnosis, text: str | bytes, about: str = "", language: str = "en") -> str:
    """Return the diagnosis of ``text`` and what surrounds the failure, as plain text without names and paths."""
    lines = [f"VRAM Guard · {about}".rstrip(" ·"), "", f"{found.kind} / {found.cause or '-'} / {found.symptom or '-'}"]
    lines += [render(found.summary, language), ""]
    lines += [f"- {render(item, language)}" for item in found.evidence]
    figures = [f"{name}: {value}" for name, value in found.numbers.to_dict().items() if value is not None]
    lines += ["", *figures] if figures else []
    excerpt = _excerpt(read_log(text), found)
    lines += ["", sentence("diagnosis.label_excerpt", language) + ":", excerpt] if excerpt else []
    return scrub("\n".join(lines))


def _excerpt(log: Log, found: Diagnosis) -> str:
    before, after = log.window(found.place, EXCERPT_CHARACTERS * 2 // 3, EXCERPT_CHARACTERS // 3)
    return (before.partition("\n")[2] + after).strip()
