"""Profiles that were made on this machine, of models for which none is shipped, on disk.

One file a part: ``<name>--<key>.json``. The key stands for all that decides what the part takes: its
architecture, the code of its classes, the host and its version, torch and the way of attention. A
damaged file counts as none, and the part is traced again. The folder is bounded: what was used
longest ago goes first.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lib_vram.errors import BadProfile
from lib_vram.physics.profile import Profile

MOST_FILES = 200
"""A profile has some 10 kB; a model has three to six."""

OF_LOADED = "loaded-"
"""How the names of profiles begin that belong to a loaded model without a name of its own: several share them, so that
one from the disk is in use only once the model at hand was seen to be its."""

MEASURED = "measured "
"""Before the name of a profile that was made here."""

KEY_LENGTH = 16
_SUFFIX = ".json"


def key_of(parts: Iterable[str]) -> str:
    """Return the key of what ``parts`` say together; their order counts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:KEY_LENGTH]


class ProfileCache:
    """The folder, made when the first profile is written. ``None`` keeps profiles in memory alone."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._known: dict[str, Profile | None] = {}

    def get(self, name: str, key: str) -> Profile | None:
        """Return the profile ``name`` made with ``key``, ``None`` when there is none or it cannot be read."""
        path = self._path(name, key)
        profile = _read(path) if path is not None else None
        if path is not None and profile is not None:
            with suppress(OSError):
                os.utime(path)
            self._known[name] = profile
        return profile

    def put(self, name: str, key: str, profile: Profile) -> None:
        """Keep ``profile``, on disk when there is a folder that can be written. Never leaves half a file."""
        self._known[name] = profile
        path = self._path(name, key)
        if path is None:
            return
        with suppress(OSError):
            _write(path, json.dumps(profile.to_json(), sort_keys=True, separators=(",", ":")) + "\n")
            self._drop_oldest(path)

    def newest(self, name: str) -> Profile | None:
        """Return the profile ``name`` in use, else the one made last, whatever its key.

        Of a loaded model without a name, only the one in use.
        """
        if name not in self._known and name.startswith(OF_LOADED):
            return None
        if name not in self._known:
            paths = self._files(f"{_safe(name)}--*{_SUFFIX}")
            self._known[name] = next(filter(None, map(_read, reversed(paths))), None)
        return self._known[name]

    def forget_loaded(self) -> bool:
        """Put out of use what belongs to a loaded model without a name; return whether there was anything."""
        names = [name for name in self._known if name.startswith(OF_LOADED)]
        for name in names:
            del self._known[name]
        return bool(names)

    def _path(self, name: str, key: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{_safe(name)}--{key}{_SUFFIX}"

    def _files(self, pattern: str) -> list[Path]:
        """Return the files, those used longest ago first."""
        if self.folder is None or not self.folder.is_dir():
            return []
        dated = []
        for path in self.folder.glob(pattern):
            with suppress(OSError):
                dated.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(dated)]

    def _drop_oldest(self, kept: Path) -> None:
        files = [path for path in self._files(f"*--*{_SUFFIX}") if path != kept]
        for path in files[: max(0, len(files) + 1 - MOST_FILES)]:
            path.unlink(missing_ok=True)


def _safe(name: str) -> str:
    """Return ``name`` as every file system takes it."""
    return re.sub(r"[^a-z0-9_-]", "_", name.lower())


def _read(path: Path) -> Profile | None:
    try:
        return Profile.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, BadProfile):
        return None


def _write(path: Path, text: str) -> None:
    """Write in one go: a reader sees the old file, the new one or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(prefix=path.stem, suffix=".part", dir=path.parent)
    try:
        with open(number, "w", encoding="utf-8", newline="\n") as file:  # noqa: PTH123
            file.write(text)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


_in_use = [ProfileCache()]


def use(folder: Path | None) -> ProfileCache:
    """Take ``folder`` for the profiles of this process and return its cache, the same one each time."""
    if _in_use[0].folder != folder:
        _in_use[0] = ProfileCache(folder)
    return _in_use[0]


def measured(name: str) -> Profile | None:
    """Return the profile ``name`` that was made on this machine, ``None`` when there is none."""
    return _in_use[0].newest(name)
