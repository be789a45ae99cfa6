"""Which words a regular expression cannot match without: looking for those first is a hundred times quicker."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_parse as parser

_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


def anchors(pattern: str) -> frozenset[str]:
    """Return texts of which every match of ``pattern`` contains at least one; empty when there are none to name.

    Of the sets that would do, the one whose shortest text is longest: ``err(?:no|or) 12 left`` gives `` 12 left``.
    """
    return _of_sequence(parser.parse(pattern)) or frozenset()


def _of_sequence(items: Any) -> frozenset[str] | None:
    choices: list[frozenset[str] | None] = []
    run = ""
    for operation, argument in items:
        if str(operation) == "LITERAL":
            run += chr(argument)
            continue
        choices += [frozenset((run,)), _of_item(str(operation), argument)]
        run = ""
    return _best([*choices, frozenset((run,))])


def _of_item(operation: str, argument: Any) -> frozenset[str] | None:
    if operation == "SUBPATTERN":
        return _of_sequence(argument[-1])
    if operation == "BRANCH":
        found = [_of_sequence(branch) for branch in argument[1]]
        return None if None in found else frozenset().union(*(item for item in found if item))
    if operation in _REPEATS and argument[0] > 0:
        return _of_sequence(argument[2])
    return None


def _best(choices: list[frozenset[str] | None]) -> frozenset[str] | None:
    usable = [item for item in choices if item and all(item)]
    return max(usable, key=lambda item: (min(map(len, item)), -len(item)), default=None)
