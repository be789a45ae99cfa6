from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def installer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vram_guard_install", ROOT / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    names: set[str] = set()

    def distribution(name: str) -> object:
        if name not in names:
            raise importlib.metadata.PackageNotFoundError(name)
        return object()

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    return names


def test_only_packages_that_are_not_there_are_missing(
    installer: ModuleType, installed: set[str], tmp_path: Path
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text('# a comment\n\nalpha==1.0  # why\nbeta>=2; python_version < "4"\ngamma[extra]\n')
    installed |= {"beta", "gamma"}
    assert installer.missing(file) == ["alpha==1.0"]


def test_the_outdated_package_pynvml_does_not_stand_in_for_nvidia_ml_py(
    installer: ModuleType, installed: set[str]
) -> None:
    installed |= {"pynvml", "psutil"}
    (requirement,) = installer.missing()
    assert requirement.startswith("nvidia-ml-py==")


def test_a_webui_gets_nothing_that_it_brings_itself() -> None:
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    names = {line.split("=")[0].rstrip("><") for line in text.splitlines() if line and not line.startswith("#")}
    assert names == {"nvidia-ml-py", "psutil"}


def test_the_webuis_own_pip_is_used(installer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []
    monkeypatch.setitem(
        sys.modules, "launch", SimpleNamespace(run_pip=lambda command, desc: calls.append((command, desc)))
    )
    installer.install("alpha==1.0")
    ((command, desc),) = calls
    assert command.startswith("install --quiet ")
    assert command.endswith(' "alpha==1.0"')
    assert desc == "alpha==1.0 for VRAM Guard"


@pytest.mark.parametrize("fault", [RuntimeError("Couldn't install\nlong output"), OSError("no pip")])
def test_a_failure_is_one_line_and_the_webui_starts(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: Exception
) -> None:
    def run_pip(command: str, desc: str) -> None:
        raise fault

    monkeypatch.setitem(sys.modules, "launch", SimpleNamespace(run_pip=run_pip))
    installer.install("alpha==1.0")
    assert capsys.readouterr().out == (
        "VRAM Guard: alpha==1.0 could not be installed (no network?); going on without it.\n"
    )


def test_without_a_webui_pip_is_called_and_may_fail(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> None:
        commands.append(command)
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setitem(sys.modules, "launch", None)
    monkeypatch.setattr(subprocess, "run", run)
    installer.install("alpha==1.0")
    assert commands[0][1:4] == ["-m", "pip", "install"]
    assert capsys.readouterr().out.count("\n") == 1


def test_nothing_is_printed_when_nothing_is_missing(installer: ModuleType) -> None:
    if installer.missing():
        pytest.skip("this environment lacks the runtime requirements")
    command = [sys.executable, str(ROOT / "install.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
