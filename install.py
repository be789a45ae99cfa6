"""Run by the WebUI at every start: brings what VRAM Guard needs there, which is little.

Nothing of the WebUI's own (torch, gradio, numpy, pydantic) is touched, and what is installed in any version is
left as it is. When pip fails, for want of a network say, VRAM Guard works without the driver's figures.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent / "requirements.txt"
PIP_OPTIONS = "--quiet --disable-pip-version-check --retries 1 --timeout 10"
"""Short of patience, so that a start without a network is not held up."""


def missing(path: Path = REQUIREMENTS) -> list[str]:
    """Return the lines of the requirements whose package is not installed.

    Packages are looked up by the name they are installed under: the module ``pynvml`` may come from an
    outdated package of that name.
    """
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line and not is_there(re.split(r"[<>=!~;\[ ]", line, maxsplit=1)[0])]


def is_there(name: str) -> bool:
    """Whether the package ``name`` is installed, in any version."""
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def install(requirement: str) -> None:
    """Install one requirement by the WebUI's own means, else with pip; say in one line when that fails."""
    import subprocess  # only here: at nearly every start nothing is missing

    command = f'install {PIP_OPTIONS} "{requirement}"'
    try:
        try:
            from launch import run_pip
        except ImportError:
            pip = [sys.executable, "-m", "pip", "install", *PIP_OPTIONS.split(), requirement]
            subprocess.run(pip, check=True, capture_output=True)
        else:
            run_pip(command, f"{requirement} for VRAM Guard")
    except (RuntimeError, OSError, subprocess.SubprocessError):
        print(f"VRAM Guard: {requirement} could not be installed (no network?); going on without it.")


if __name__ == "__main__":
    for item in missing():
        install(item)
