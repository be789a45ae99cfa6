"""Finding the fragments of failures in a log of any length and of any bytes, each line looked at once.

The text stays bytes until a line is worth reading: small letters, searches and windows cost a tenth of what they cost
on ``str``. Progress bars, most of a console log, are set aside first; lines that repeat count once.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from lib_vram.diagnosis.anchors import anchors
from lib_vram.diagnosis.fragments import FRAGMENTS, HARMLESS, SLOW_STEPS, Fragment

HEAD_BYTES = 5 * 1024**2
TAIL_BYTES = 2 * 1024**2
"""What is read of a longer text: its beginning, where the first cause stands, and its end."""
MOST_LINES = 2000
MOST_LINES_OF_A_STEM = 400
"""Lines of interest that are looked at; a log of nothing but errors says no more after these."""
EMPTY_LINES_SHARE = 1 / 8
"""Of all bytes: with more line ends that follow another, it is worth a pass of its own to take them out."""
LINE_LIMIT = 400
"""Bytes of a line that are looked at on either side of what made it interesting."""
BEFORE_BYTES = 24 * 1024
AFTER_BYTES = 6 * 1024
"""What is handed on of the text around a failure: the traceback above it and the figures below."""

STEMS: tuple[bytes, ...] = tuple(
    item.encode()
    for item in (
        "error", "memory", "alloc", "fail", "not enough", "insuff", "kill", "invalid", "unable", "driver", "device",
        "gpu ", "status", "not compiled", "support", "trunc", "dtype", "paging", "resource", "mismatch", "unexpected",
        "header", "buffer", "library", "available", "illegal", "cuda ", "timeout", "3221225", "trying", "errno",
        "0xc000", "out of", "could not", "exceed", "space", "batch size", "oom", "too ", "not find", "corrupt",
        "incomplete", "not match", "speicher", "pickl", "in file", "compatib", "magic", "within", "ndarray", "vram",
        "wrong", "no nvidia", "could", "built", "fall", "reduc", "signal", "input", "ptx", "file", "nan", "cudnn",
        "misalig", "insuficiente", "expected ", "no queda", "requested", "disk", "convert",
    )
)  # fmt: skip
"""Pieces of words that most fragments share: these are looked for, and what stands around them is then looked at.

Only a matter of speed: a fragment that holds none of them is looked for by itself.
"""

UNIQUE_HEAD_BYTES = 3 * 1024**2 // 4
UNIQUE_TAIL_BYTES = 1024**2 // 4
"""What is searched of the lines that are left: the first of each sort, and the last."""


@dataclass(frozen=True)
class Hit:
    """A fragment in a line, which is in small letters. ``order`` grows from the top of the log to its end."""

    fragment: Fragment
    line: bytes
    order: int


@dataclass(frozen=True)
class Log:
    """The text as it was read."""

    content: bytes

    def place_of(self, hit: Hit) -> int:
        """Return where the line of ``hit`` begins."""
        small = self.content.lower()
        place = small.find(b"\n" + hit.line)
        return place + 1 if place >= 0 else max(0, small.find(hit.line))

    def after_the_last(self, lines: Sequence[bytes]) -> bytes:
        """Return what follows the last of ``lines``, which are in small letters, as far as is handed on."""
        small = self.content.lower()
        place = max((small.rfind(line) for line in lines), default=-1)
        return small[place + 1 : place + 1 + BEFORE_BYTES] if place >= 0 else b""

    def started_at(self) -> int:
        """Return where a program says that it has started and waits for people; -1 when it does not say so."""
        small = self.content.lower()
        return max(small.find(mark) for mark in _STARTED)

    def window(self, place: int, before: int = BEFORE_BYTES, after: int = AFTER_BYTES) -> tuple[str, str]:
        """Return the text before ``place`` and from there on, without the colours of a console."""
        return _clean(self.content[max(0, place - before) : place]), _clean(self.content[place : place + after])


@dataclass(frozen=True)
class _Test:
    """One fragment made ready. ``anchors`` are the bytes of which one must be there."""

    rank: int
    fragment: Fragment
    anchors: tuple[bytes, ...]
    pattern: re.Pattern[str] | None

    def matches(self, line: bytes, text: str) -> bool:
        """Whether the fragment is in ``line``, of which ``text`` is the decoded form."""
        for anchor in self.anchors:  # the hottest line of all: a generator would take twice as long
            if anchor in line:
                break
        else:
            return False
        return self.pattern is None or self.pattern.search(text) is not None


_BLOCK = b"\xe2\x96"
"""How the signs of which a progress bar is drawn begin (U+2580 and on)."""
_NO_TEXT = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"PK\x03\x04", b"%PDF", b"\x1f\x8b", b"7z\xbc\xaf", b"GGUF")
"""How pictures, archives and models begin: in so many bytes every short word is found."""
SHORTEST_LINE = 24
"""Bytes: what is shorter before a progress bar is its name and its percentage."""
_STARTED = (b"running on local url", b"startup time: ", b"to see the gui go to")
_EMPTY_LINES = re.compile(rb"\n{2,}")
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")


def _clean(content: bytes) -> str:
    return _COLOUR.sub("", content.decode("utf-8", "replace"))


def read_log(text: str | bytes) -> Log:
    """Return ``text`` as the bytes to search: any encoding that consoles write, no more than the limits."""
    content = text.encode("utf-8", "replace") if isinstance(text, str) else _utf8(text)
    if len(content) > HEAD_BYTES + TAIL_BYTES:
        content = content[:HEAD_BYTES] + b"\n" + content[-TAIL_BYTES:]
    content = content.replace(b"\r", b"\n")
    for end in (b"it/s]", b"s/it]"):  # an error that follows a progress bar has no line of its own
        content = content.replace(end, end + b"\n")
    return Log(content)


def _utf8(content: bytes) -> bytes:
    if content.startswith(_NO_TEXT):
        return b""
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        encoding = "utf-32"
    elif content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif content[1:200:2].count(0) > 80:  # PowerShell's, when the mark was cut off
        encoding = "utf-16-le"
    elif content[0:200:2].count(0) > 80:
        encoding = "utf-16-be"
    else:
        return content
    return content[: 4 * (HEAD_BYTES + TAIL_BYTES)].decode(encoding, "replace").encode("utf-8", "replace")


def find_hits(log: Log) -> list[Hit]:
    """Return the first fragment of every line that has one, in the order of the text."""
    tests, stems = _tests()
    lines = _interesting(log.content, tuple(stems))
    hits = []
    for order, (line, found) in enumerate(lines):
        text = line.decode("utf-8", "replace")
        ranks = sorted({rank for stem in found for rank in stems[stem]})
        test = next((tests[rank] for rank in ranks if tests[rank].matches(line, text)), None)
        if test is not None and test.fragment.tier != HARMLESS:
            hits.append(Hit(test.fragment, line, order))
    return hits


def _interesting(content: bytes, stems: tuple[bytes, ...]) -> list[tuple[bytes, list[bytes]]]:
    """Return the lines with any of ``stems``, in small letters, each with those it has."""
    joined = _unique(content.lower())
    found: dict[int, tuple[bytes, list[bytes]]] = {}
    is_ascii = joined.isascii()
    for stem in stems:
        if is_ascii and not stem.isascii():
            continue
        place, left = joined.find(stem), MOST_LINES_OF_A_STEM
        while place >= 0 and left > 0 and len(found) < MOST_LINES:
            left -= 1
            low, high = max(0, place - LINE_LIMIT), place + LINE_LIMIT
            begin = max(joined.rfind(b"\n", low, place) + 1, low)
            end = joined.find(b"\n", place, high)
            stop = end if end >= 0 else min(high, len(joined))
            found.setdefault(begin, (joined[begin:stop], []))[1].append(stem)
            place = joined.find(stem, stop)
    return [found[begin] for begin in sorted(found)]


def _unique(small: bytes) -> bytes:
    """Return the lines of ``small`` without progress bars and repetitions, bounded in sum."""
    if small.count(b"\n\n") > EMPTY_LINES_SHARE * len(small):
        small = _EMPTY_LINES.sub(b"\n", small)
    lines = list(dict.fromkeys(small.split(b"\n")))
    head = _alike_once(lines, UNIQUE_HEAD_BYTES)
    joined = b"\n".join(head)
    if len(joined) < UNIQUE_HEAD_BYTES:
        return joined
    return joined + b"\n" + b"\n".join(reversed(_alike_once(lines[:-20000:-1], UNIQUE_TAIL_BYTES)))


def _alike_once(lines: list[bytes], most_bytes: int) -> list[bytes]:
    """Return the first of each sort of ``lines``, without progress bars, until they are ``most_bytes`` long."""
    kept: dict[bytes, bytes] = {}
    for line in lines:
        if (b"it/s" in line or b"s/it" in line) and b"=nan" not in line:
            line, bar, _ = line.partition(_BLOCK)  # what stood on the console's line before the bar was drawn over it
            if not bar or len(line) < SHORTEST_LINE:
                continue
        bare = line.translate(None, b"0123456789")
        if len(bare) != len(line) and (
            b"error" in bare or b"errno" in bare or b"code" in bare or b"exit" in bare or b"xid" in bare
        ):
            bare = line  # here figures make the difference
        if bare not in kept:
            kept[bare] = line
            most_bytes -= len(line)
            if most_bytes <= 0:
                kept[bare] = line[:most_bytes] if most_bytes < 0 else line
                break
    return list(kept.values())


@lru_cache(maxsize=1)
def _tests() -> tuple[tuple[_Test, ...], dict[bytes, list[int]]]:
    """Return the fragments made ready, and which of them to try where a stem is found."""
    tests = tuple(_test(rank, fragment) for rank, fragment in enumerate(FRAGMENTS) if fragment.tier != SLOW_STEPS)
    stems: dict[bytes, list[int]] = {}
    for test in tests:
        for anchor in test.anchors:
            stem = next((stem for stem in STEMS if stem in anchor), anchor)
            stems.setdefault(stem, []).append(test.rank)
    return tests, stems


def _test(rank: int, fragment: Fragment) -> _Test:
    if not fragment.text.startswith("re:"):
        return _Test(rank, fragment, (fragment.text.encode(),), None)
    pattern = fragment.text[3:]
    return _Test(rank, fragment, tuple(item.encode() for item in sorted(anchors(pattern))), re.compile(pattern))
