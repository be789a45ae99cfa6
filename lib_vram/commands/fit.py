"""``fit``: the largest that fits, tables of what does, and the flags under which more would."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lib_vram import units
from lib_vram.commands import estimate, learned
from lib_vram.commands.options import one_of, required
from lib_vram.commands.reading import read_request
from lib_vram.commands.reply import Reply
from lib_vram.commands.table import table
from lib_vram.errors import BadInput
from lib_vram.message import render, say, sentence

if TYPE_CHECKING:
    from lib_vram.plan.advice import Advice
    from lib_vram.plan.fit import Fit
    from lib_vram.plan.table import Cards, Cell, Correct, SizeTable, WeightsFit
    from lib_vram.request import Request

NAME = "fit"
_QUESTIONS = ("vary", "table", "cards", "flags")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to ``parser``."""
    estimate.add_options(parser)
    parser.add_argument(
        "--vary", type=one_of("--vary", ("size", "batch")), metavar="size|batch", help="what may grow or shrink"
    )
    parser.add_argument("--table", action="store_true", help=sentence("advice.cli_table"))
    parser.add_argument("--cards", action="store_true", help=sentence("advice.cli_cards"))
    parser.add_argument("--flags", action="store_true", help=sentence("advice.cli_flags"))


def run(arguments: argparse.Namespace) -> Reply:
    """Search the largest size or batch, tabulate sizes and batches or cards, or say which flags would help.

    Raises:
        BadInput: the request is not usable, or not one of the four is asked for; ``NotReady`` when something of it
            cannot be computed yet.
    """
    question = _question(arguments)
    request = read_request(arguments.request)
    from lib_vram.estimate.estimator import estimate as estimate_of

    estimate.refuse_unready(request, estimate_of(request))
    from lib_vram.plan.table import as_computed

    known = learned.correct_of(arguments, request)
    answers = {"vary": _vary, "table": _table, "cards": _cards, "flags": _flags}
    reply = answers[question](request, arguments, known or as_computed)
    if not arguments.learned or known is not None:
        return reply
    return Reply(reply.data, f"{reply.text}\n\n{render(learned.nothing(), arguments.language)}")


def _question(arguments: argparse.Namespace) -> str:
    asked = [name for name in _QUESTIONS if getattr(arguments, name)]
    if not asked:
        required(arguments, "--vary")
    if len(asked) > 1:
        got = " ".join(f"--{name}" for name in asked)
        raise BadInput(f"--{asked[1]}", got=got, takes="one of --vary, --table, --cards and --flags at a time")
    return asked[0]


def _vary(request: Request, arguments: argparse.Namespace, correct: Correct) -> Reply:
    from lib_vram.plan.fit import largest

    result = largest(request, arguments.vary, correct=correct)
    return Reply(result.to_dict(), text_of(result, arguments.language))


def _table(request: Request, arguments: argparse.Namespace, correct: Correct) -> Reply:
    from lib_vram.plan.table import size_table

    result = size_table(request, correct=correct)
    return Reply(result.to_dict(), sizes_text(result, arguments.language))


def _cards(request: Request, arguments: argparse.Namespace, correct: Correct) -> Reply:
    from lib_vram.plan.table import cards_table, lighter_weights

    cards, weights = cards_table(request, correct=correct), lighter_weights(request, correct=correct)
    data = {**cards.to_dict(), "weights": [item.to_dict() for item in weights]}
    return Reply(data, cards_text(cards, weights, arguments.language))


def _flags(request: Request, arguments: argparse.Namespace, correct: Correct) -> Reply:
    from lib_vram.estimate.estimator import estimate as estimate_of
    from lib_vram.plan.advice import advise

    language = arguments.language
    advice = advise(request, correct=correct)
    text = flags_text(advice, correct(estimate_of(request), request).verdict, language)
    return Reply({"advice": [item.to_dict(language) for item in advice]}, text)


def text_of(result: Fit, language: str = "en") -> str:
    """Return the size, the batch and the peak in one line."""
    if not result.batch_size:
        return render(say("cli.fit_none"), language)
    message = say(
        "cli.fit",
        width=result.width,
        height=result.height,
        batch=result.batch_size,
        peak_bytes=result.peak_bytes,
    )
    return render(message, language)


def sizes_text(result: SizeTable, language: str = "en") -> str:
    """Return the table of sizes; ``*`` marks a size that the model was made for, ``>`` the one that is asked for."""
    heads = [sentence("advice.head_size", language)]
    heads += [render(say(f"advice.column_{result.vary}", count=value), language) for value in result.columns]
    rows = [
        [
            f"{'>' if row.current else ' '} {row.width} x {row.height}{' *' if row.native else ''}",
            *(_cell(cell, language) for cell in row.cells),
        ]
        for row in result.rows
    ]
    return "\n".join([table(heads, rows, left=len(heads)), "", sentence("advice.cli_marks", language)])


def cards_text(cards: Cards, weights: Sequence[WeightsFit], language: str = "en") -> str:
    """Return from which card up it runs, the cards as a table, and the types of weights where there is a choice."""
    heads = [sentence(f"advice.head_{name}", language) for name in ("card", "verdict", "examples")]
    rows = [
        [f"{'>' if card.current else ' '} {card.gigabytes} GB", _cell(card.cell, language), card.names]
        for card in cards.cards
    ]
    lines = [*(render(said, language) for said in cards.sentences()), "", table(heads, rows, left=3)]
    if len(weights) > 1:
        heads = [sentence(f"advice.head_{name}", language) for name in ("weights", "verdict")]
        rows = [
            [f"{'>' if item.current else ' '} {item.weights_dtype}", _cell(item.cell, language)] for item in weights
        ]
        lines += ["", table(heads, rows, left=2)]
    return "\n".join(lines)


def flags_text(advice: Sequence[Advice], verdict: str, language: str = "en") -> str:
    """Return each advice with its effect and its lines, or that none is needed or none helps."""
    if not advice:
        return sentence(f"advice.none_{'needed' if verdict == 'fits' else 'helps'}", language)
    return "\n\n".join(_advice_text(item, language) for item in advice)


def _advice_text(item: Advice, language: str) -> str:
    from lib_vram.plan.advice import needs_bytes

    effect = " -> ".join(
        f"{sentence(f'ui.verdict_{result.verdict}', language)} {units.gib(needs_bytes(result))}"
        for result in (item.before, item.after)
    )
    lines = [f"{item.name}: {effect}", *(f"  {render(text, language)}" for text in item.texts)]
    if item.ram is not None:
        lines.append(f"  {render(item.ram, language)}")
    for file, text in (("webui-user.bat", item.lines.bat), ("webui-user.sh", item.lines.sh)):
        lines += [f"  {file}: {line}" for line in text]
    return "\n".join(lines)


def _cell(cell: Cell, language: str) -> str:
    verdict = sentence(f"ui.verdict_{cell.verdict}", language)
    if cell.swaps and cell.verdict != "wont_fit":
        return f"{verdict}, {sentence('advice.swaps', language)}"
    return f"{verdict} {units.gib(cell.needs_bytes, unit=False)}" if not cell.swaps else verdict
