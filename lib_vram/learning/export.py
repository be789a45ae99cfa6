"""The history as files, and one run as a row that says nothing about whose it is."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import time
from collections.abc import Iterable
from typing import Any

from lib_vram.learning.record import PhaseRecord, Rescue, Run, without_files

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""With these a spreadsheet takes a text for a formula."""
COLUMNS = (
    "at", "host", "host_version", "torch", "driver", "card", "total_bytes", "flags", "family", "weights_dtype",
    "attention", "vae_dtype", "vae_tiled", "mode", "width", "height", "hires", "batch_size", "batch_count", "steps",
    "outcome", "verdict", "available_bytes", "seconds", "phase", "phase_seconds", "computed_allocated_bytes",
    "measured_allocated_bytes", "is_exact", "computed_reserved_bytes", "measured_reserved_bytes",
    "measured_device_bytes",
)  # fmt: skip


def to_json(runs: Iterable[Run], rescues: Iterable[Rescue]) -> str:
    """Return everything that is kept, as one JSON object."""
    data = {
        "version": 1,
        "runs": [run.to_dict() for run in runs],
        "rescues": [dataclasses.asdict(rescue) for rescue in rescues],
    }
    return json.dumps(data, indent=1)


def to_csv(runs: Iterable[Run]) -> str:
    """Return one line a phase of each run, with :data:`COLUMNS`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    for run in runs:
        for record in run.phases:
            writer.writerow({name: _safe(value) for name, value in (_run_cells(run) | _phase_cells(record)).items()})
    return text.getvalue()


def _run_cells(run: Run) -> dict[str, Any]:
    request, machine = run.request, run.machine
    model, vae, hires = request.get("model") or {}, request.get("vae") or {}, request.get("hires") or {}
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(run.at)),
        "host": machine.host, "host_version": machine.host_version, "torch": machine.torch, "driver": machine.driver,
        "card": machine.card, "total_bytes": machine.total_bytes, "flags": " ".join(machine.flags),
        "family": model.get("family"), "weights_dtype": model.get("weights_dtype"),
        "attention": request.get("attention"), "vae_dtype": vae.get("dtype"), "vae_tiled": vae.get("tiled"),
        "mode": request.get("mode"), "width": request.get("width"), "height": request.get("height"),
        "hires": hires.get("scale"), "batch_size": request.get("batch_size"),
        "batch_count": request.get("batch_count"), "steps": run.steps, "outcome": run.outcome,
        "verdict": run.verdict, "available_bytes": run.available_bytes, "seconds": run.seconds,
    }  # fmt: skip


def _phase_cells(record: PhaseRecord) -> dict[str, Any]:
    predicted, peak = record.predicted, record.peak
    return {
        "phase": record.name, "phase_seconds": round(record.seconds, 3),
        "computed_allocated_bytes": predicted.allocated_bytes if predicted else None,
        "measured_allocated_bytes": peak.allocated_bytes, "is_exact": peak.is_exact,
        "computed_reserved_bytes": predicted.reserved_bytes if predicted else None,
        "measured_reserved_bytes": peak.reserved_bytes, "measured_device_bytes": peak.device_bytes,
    }  # fmt: skip


def _safe(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def to_row(run: Run) -> str:
    """Return ``run`` as one line of JSON for a report: card, versions, request, computed and measured.

    No prompt, no name of a file, no path and no time of day. A start's flags could name a folder: they are looked
    through here too.
    """
    data = without_files(run.to_dict())
    del data["at"]
    request = {name: value for name, value in data["request"].items() if value not in (None, [], {})}
    return json.dumps({"vram_guard_row": 1, **data, "request": request}, separators=(",", ":"), sort_keys=True)
