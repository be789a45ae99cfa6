"""What a command answers: the contract's JSON object, and the same as text to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    """The answer in both forms."""

    data: Mapping[str, Any]
    text: str

    def shown(self, *, as_json: bool) -> str:
        """Return the form that was asked for, without a line end."""
        return json.dumps(self.data, indent=2, allow_nan=False) if as_json else self.text
