"""Latents on disk: what a run has sampled, from before a risky decode until its pictures are saved.

A file is a safetensors file with one tensor a picture and what the pictures' files would have said in its metadata.
One that is still there when nobody works on it belongs to a run that was cut off; *Recover* decodes it. The folder
holds a bounded number of files and bytes: the oldest goes first.
"""

from __future__ import annotations

import json
import logging
import os
import re
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from lib_vram.errors import BadInput
from lib_vram.units import MIB

FOLDER = Path(os.environ.get("VRAM_GUARD_DATA") or Path(__file__).resolve().parents[2] / "data") / "latents"
"""Beside the extension's code; made with the first file."""
ENDING, PART = ".safetensors", ".part"
MOST_FILES = 32
MOST_BYTES = 256 * MIB
"""A picture of 1024 pixels a side in fp16 has latents of 128 KiB, one of a 16-channel model 512 KiB."""
MOST_SECONDS = 14 * 24 * 3600
"""Who has not missed a picture for two weeks will not."""
HEADER_LIMIT_BYTES = 4 * MIB
FORMAT = "1"
_NAME = re.compile(r"[0-9]{13}-[0-9]{1,10}-[0-9]{1,6}")

logger = logging.getLogger("vram_guard")


@dataclass(frozen=True)
class Kept:
    """One batch of latents on disk. ``at`` is in seconds since the epoch; one infotext and one seed a picture."""

    id: str
    at: float
    size_bytes: int
    pid: int
    host: str
    model: str
    mode: Literal["txt2img", "img2img"]
    width: int
    height: int
    infotexts: tuple[str, ...]
    seeds: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many pictures it holds."""
        return len(self.infotexts)

    @property
    def prompt(self) -> str:
        """The first picture's prompt, one line."""
        return " ".join(self.infotexts[0].split("\n")[0].split()) if self.infotexts else ""


class KeptLatents:
    """The folder. ``working_on`` names the files of runs that are going on in this process."""

    def __init__(
        self, folder: Path = FOLDER, clock: Callable[[], float] = time.time, most_bytes: int = MOST_BYTES
    ) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self.working_on: set[str] = set()
        self._clock = clock
        self._number = 0

    def new_id(self) -> str:
        """Return a name that no other file has."""
        self._number += 1
        return f"{int(self._clock() * 1000):013d}-{os.getpid()}-{self._number}"

    def path(self, name: Any) -> Path:
        """Return the file of the latents called ``name``.

        Raises:
            BadInput: no latents can be called so; nothing outside the folder is ever named.
        """
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise BadInput("id", got=name, takes="the name of latents in the list")
        return self.folder / f"{name}{ENDING}"

    def find(self, name: Any) -> Kept:
        """Return the latents called ``name``.

        Raises:
            BadInput: there are none, or their file cannot be read.
        """
        path = self.path(name)
        found = _read(path) if path.is_file() and not path.is_symlink() else None
        if found is None:
            raise BadInput("id", got=name, takes="the name of latents in the list")
        return found

    def left(self) -> list[Kept]:
        """Return the latents that nobody works on, newest first."""
        found = [_read(path) for path in self._files()]
        return [
            item for item in reversed(found)
            if item is not None and item.id not in self.working_on and not _writer_lives(item)
        ]  # fmt: skip

    def write(self, name: str, write: Callable[[Path], object]) -> None:
        """Have ``write`` make the file called ``name``, whole or not at all, and make room for it.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.make_room()
        part = self.folder / f"{name}{PART}"
        try:
            write(part)
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            part.replace(self.path(name))
        finally:
            part.unlink(missing_ok=True)
        self.working_on.add(name)
        self.make_room(MOST_FILES, self.most_bytes)

    def drop(self, name: Any) -> None:
        """Delete the latents called ``name``; none is fine.

        Raises:
            BadInput: no latents can be called so.
        """
        path = self.path(name)
        self.working_on.discard(name)
        try:
            path.unlink(missing_ok=True)
        except OSError as fault:
            logger.info("kept latents stay: %s", fault)

    def let_go(self, name: str) -> None:
        """Leave the latents called ``name`` for *Recover*: their run has ended without its pictures."""
        self.working_on.discard(name)

    def clean_up(self) -> None:
        """Delete what is too old, too much, or was cut off while it was written. Called at the start."""
        if not self.folder.is_dir():
            return
        for path in [*self.folder.glob(f"*{PART}"), *self._files()]:
            age_seconds = self._clock() - path.stat().st_mtime
            if age_seconds > (MOST_SECONDS if path.suffix == ENDING else 3600):
                _unlink(path)
        self.make_room(MOST_FILES, self.most_bytes)

    def make_room(self, files: int = MOST_FILES - 1, size_bytes: int = MOST_BYTES) -> None:
        """Delete the oldest files until at most ``files`` with ``size_bytes`` are left."""
        sizes = {path: _size_bytes(path) for path in self._files()}
        for path in [path for path in sizes if path.stem not in self.working_on]:
            if len(sizes) <= files and sum(sizes.values()) <= size_bytes:
                return
            logger.info("kept latents are deleted to make room: %s, %d bytes", path.name, sizes.pop(path))
            _unlink(path)

    def _files(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.glob(f"*{ENDING}") if _NAME.fullmatch(path.stem))


@lru_cache(maxsize=1)
def kept_latents() -> KeptLatents:
    """Return the folder of this process."""
    return KeptLatents()


def metadata_of(
    *, host: str, model: str, mode: str, width: int, height: int, infotexts: list[str], seeds: list[int]
) -> dict[str, str]:
    """Return what goes into a file's metadata, which holds text alone."""
    return {
        "vram_guard": FORMAT, "pid": str(os.getpid()), "at": repr(time.time()), "host": host, "model": model,
        "mode": mode, "width": str(width), "height": str(height),
        "infotexts": json.dumps(infotexts, ensure_ascii=False), "seeds": json.dumps(seeds),
    }  # fmt: skip


def tensor_name(number: int) -> str:
    """Return the name of the latent of picture ``number`` in a file."""
    return f"latent.{number}"


def _read(path: Path) -> Kept | None:
    """Return what the file says, ``None`` when it is not one of ours or damaged."""
    try:
        said = _metadata(path)
        infotexts, seeds = json.loads(said["infotexts"]), json.loads(said["seeds"])
        if said.get("vram_guard") != FORMAT or len(infotexts) != len(seeds) or not infotexts:
            return None
        mode: Literal["txt2img", "img2img"] = "img2img" if said.get("mode") == "img2img" else "txt2img"
        return Kept(
            id=path.stem, at=float(said["at"]), size_bytes=path.stat().st_size, pid=int(said["pid"]),
            host=str(said["host"]), model=str(said["model"]), mode=mode,
            width=int(said["width"]), height=int(said["height"]),
            infotexts=tuple(str(text) for text in infotexts), seeds=tuple(int(seed) for seed in seeds),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, struct.error) as fault:
        logger.info("kept latents cannot be read: %s: %s", path.name, fault)
        return None


def _metadata(path: Path) -> Mapping[str, Any]:
    """Return the metadata in the header of a safetensors file."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > HEADER_LIMIT_BYTES:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(file.read(length))
    found = header["__metadata__"]
    if not isinstance(found, dict):
        raise ValueError("no metadata")
    return found


def _writer_lives(kept: Kept) -> bool:
    """Whether another process that began before the file, and so may have written it, is at work on it."""
    if kept.pid == os.getpid():
        return False
    try:
        import psutil
    except ImportError:
        return False
    try:
        return bool(psutil.Process(kept.pid).create_time() <= kept.at)
    except psutil.Error:
        return False


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as fault:
        logger.info("kept latents stay: %s", fault)


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
