"""``plan``: what to change so that a generation fits."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from lib_vram.commands import estimate, learned
from lib_vram.commands.reading import read_request
from lib_vram.commands.reply import Reply
from lib_vram.message import render, say, sentence

if TYPE_CHECKING:
    from lib_vram.plan.result import Plan, Step

NAME = "plan"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to ``parser``."""
    estimate.add_options(parser)
    parser.add_argument("--keep", default="", metavar="size,batch,…", help=sentence("plan.cli_keep"))


def run(arguments: argparse.Namespace) -> Reply:
    """Plan the request.

    Raises:
        BadInput: the request is not usable; ``NotReady`` when nothing of it can be computed yet.
    """
    from lib_vram.plan.preferences import keep_of

    preferences = keep_of([name.strip() for name in arguments.keep.split(",") if name.strip()], "--keep")
    request = read_request(arguments.request)
    from lib_vram.plan.ram import noted
    from lib_vram.plan.search import make_plan

    correct = learned.correct_of(arguments, request)
    if correct is None:
        plan = make_plan(request, preferences=preferences)
        as_estimated = noted(plan.estimate, plan.request)
        plan = replace(plan, estimate=learned.noted(arguments, as_estimated, correct))
    else:
        from lib_vram.estimate.estimator import estimate as compute
        from lib_vram.guard.learned import corrected_plan

        plan = corrected_plan(request, lambda asked: make_plan(asked, preferences=preferences), compute, correct)
    estimate.refuse_unready(request, plan.estimate)
    return Reply(plan.to_dict(arguments.language), text_of(plan, arguments.language))


def text_of(plan: Plan, language: str = "en") -> str:
    """Return the steps in order with what each saves and costs, and the estimate that comes of them."""
    recipe = [render(plan.recipe, language)] if plan.recipe else []
    if not plan.fits:
        reason = [render(plan.when_not, language)] if plan.when_not else []
        return "\n".join(
            [sentence("cli.plan_none", language), *reason, *recipe, "", estimate.text_of(plan.estimate, language)]
        )
    head = sentence("cli.plan_steps" if plan.steps else "cli.plan_as_it_is", language)
    steps = [f"{number}. {_step(step, language)}" for number, step in enumerate(plan.steps, start=1)]
    return "\n".join([head, *steps, *recipe, "", estimate.text_of(plan.estimate, language)])


def _step(step: Step, language: str) -> str:
    effect = say("cli.plan_effect", saves_bytes=step.saves_bytes, costs=sentence(f"cli.costs_{step.costs}", language))
    return f"{render(step.text, language)} ({render(effect, language)})"
