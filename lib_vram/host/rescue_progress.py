"""How far a run has come, shown truly while a rescue does a step again or computes a batch in shares."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from lib_vram.host.rescue_shares import Share


@dataclass
class Jobs:
    """The jobs by which the hosts tell how far a run has come, as they stood when a step of a batch began.

    A batch is one job and its second pass another. The hosts would take each share of a batch for a whole one: the
    bar would begin anew with each, and with a second pass run beyond its end. While shares are computed the jobs are
    therefore counted in shares; where the batch stands in the run stays as it is.
    """

    number: int
    count: int
    counted_on: int
    """How many jobs the step itself counts on."""
    is_second_pass: bool
    moved: bool = False
    """Whether they are counted in shares by now, or from the step's beginning again."""

    @classmethod
    def now(cls, p: Any, *, is_second_pass: bool) -> Jobs:
        """Return the jobs as they stand, for a step of ``p`` that begins now."""
        state = _state()
        counted_on = 1 if is_second_pass or getattr(p, "enable_hr", False) else 0
        return cls(getattr(state, "job_no", 0), getattr(state, "job_count", 0), counted_on, is_second_pass)

    def begin(self, share: Share) -> None:
        """Show that ``share`` begins."""
        self.moved = True
        parts, part = share.count // share.size, share.start // share.size
        if self.is_second_pass:
            number = self.number * parts + part + parts - 1  # the step counts one on before it samples
        else:
            number = self.number * parts + part * (1 + self.counted_on)
        self._show(number, self.count * parts)
        state = _state()
        if state is not None:
            state.sampling_step = 0

    def end(self, *, well: bool) -> None:
        """Show what the host itself would when the step has ended, ``well`` or with a failure."""
        if self.moved:
            self._show(self.number + (self.counted_on if well else 0), self.count)
            state = _state()
            if well and hasattr(state, "sampling_steps"):
                state.sampling_step = state.sampling_steps  # a share that was skipped has fewer behind it

    def _show(self, number: int, count: int) -> None:
        state = _state()
        if self.count > 0 and hasattr(state, "job_count"):
            state.job_no, state.job_count = number, count


def show(text: str) -> None:
    """Put ``text`` before the figure in the page's progress bar."""
    state = _state()
    if hasattr(state, "textinfo"):
        state.textinfo = text


def clear(text: str) -> None:
    """Take ``text`` away again, unless the host says something else by now."""
    state = _state()
    if getattr(state, "textinfo", None) == text:
        state.textinfo = None


def _state() -> Any:
    return getattr(sys.modules.get("modules.shared"), "state", None)
