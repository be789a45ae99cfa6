"""The lines for ``webui-user.bat`` and ``webui-user.sh``: the flags that are there, with a change made to them.

All hosts read ``COMMANDLINE_ARGS`` with ``shlex.split`` (modules/paths_internal.py), on Windows too, so a backslash
is written twice. Nothing here reads or writes either file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

TAKE_A_VALUE = ("--precision", "--reserve-vram")
"""Of the flags that may be taken away, those with a value in the next word."""
SECRETS = ("--gradio-auth", "--api-auth", "--ngrok", "--civitai-api-key", "--hf-token")
HIDDEN = "***"
NOT_ON_WINDOWS = "expandable_segments"
"""PyTorch has no expandable segments on Windows: it says so in a warning and goes on without."""
_MEANS_MORE = re.compile(r'[&|<>^"()]')
"""What ``cmd`` takes for more than itself outside double quotes; a caret before it takes that away."""
_BARE = re.compile(r"[\w@+=:,./-]+", re.ASCII)


@dataclass(frozen=True)
class Lines:
    """What to write in place of the lines of the same names. ``bat`` is empty where Windows cannot do it."""

    bat: tuple[str, ...]
    sh: tuple[str, ...]
    hides: tuple[str, ...] = ()
    """Flags whose values are not shown: passwords and keys, to be kept as they are in the file."""


def changed_arguments(arguments: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
    """Return ``arguments`` without the flags ``remove`` and their values, then with ``add`` where they are missing."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip and not argument.startswith("-"):
            skip = False
            continue
        skip = False
        name = _name(argument)
        if name in remove:
            skip = name in TAKE_A_VALUE and argument == name
            continue
        kept.append(argument)
    return (*kept, *(flag for flag in add if flag not in kept))


def changed_conf(conf: str, option: str) -> str:
    """Return the allocator's setting ``conf`` with ``option`` (``"max_split_size_mb:512"``) in place of its own."""
    name = option.partition(":")[0]
    others = [item for item in re.split(r",(?![^\[]*\])", conf) if item and item.strip().partition(":")[0] != name]
    return ",".join((*others, option))


def lines_for(
    arguments: Sequence[str], conf: str | None = None, *, variable: str = "PYTORCH_CUDA_ALLOC_CONF", flags: bool = True
) -> Lines:
    """Return the lines that set ``arguments``, if ``flags``, and the allocator's setting, if there is one."""
    shown, hides = _without_secrets(arguments)
    bat = [f"set COMMANDLINE_ARGS={_for_bat(shown)}"] if flags else []
    sh = [f'export COMMANDLINE_ARGS="{_for_sh(shown)}"'] if flags else []
    if conf is not None:
        bat = [] if NOT_ON_WINDOWS in conf else [*bat, f"set {variable}={_without_meaning(conf)}"]
        sh.append(f'export {variable}="{conf}"')
    return Lines(tuple(bat), tuple(sh), hides if flags else ())


def _name(argument: str) -> str:
    return re.split(r"[= ]", argument, maxsplit=1)[0]


def _without_secrets(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    shown: list[str] = []
    hides: list[str] = []
    hide_next = False
    for argument in arguments:
        name = _name(argument)
        if hide_next and not argument.startswith("--"):
            shown.append(HIDDEN)
        elif name in SECRETS and name != argument:
            shown.append(f"{name}={HIDDEN}")
            hides.append(name)
        else:
            shown.append(argument)
        hide_next = argument in SECRETS
        if hide_next:
            hides.append(argument)
    return shown, tuple(dict.fromkeys(hides))


def _for_bat(arguments: Sequence[str]) -> str:
    r"""Words in double quotes where they hold more than letters; the shell would take ``%`` for a variable.

    For ``cmd`` a quotation ends at ``\"`` too, and what follows would be commands: where a word holds one, nothing is
    left to its quotation marks.
    """
    text = " ".join(_quoted(argument) for argument in arguments)
    if any('"' in argument for argument in arguments):
        return _without_meaning(text)
    return text.replace("%", "%%")


def _without_meaning(text: str) -> str:
    """Return ``text`` as ``cmd`` reads it back, whatever is in it."""
    return _MEANS_MORE.sub(r"^\g<0>", text).replace("%", "%%")


def _quoted(argument: str) -> str:
    if _BARE.fullmatch(argument) or argument == HIDDEN:
        return argument
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _for_sh(arguments: Sequence[str]) -> str:
    words = " ".join(argument if argument == HIDDEN else shlex.quote(argument) for argument in arguments)
    return re.sub(r'([\\"$`])', r"\\\1", words)
