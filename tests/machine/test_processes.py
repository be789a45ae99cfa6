from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lib_vram.machine import processes


class Gone(Exception):
    """Stands in for ``psutil.Error``."""


def fake_psutil(name: str, command: list[str] | Exception) -> Any:
    def cmdline() -> list[str]:
        if isinstance(command, Exception):
            raise command
        return command

    def process(pid: int) -> SimpleNamespace:
        if pid == 404:
            raise Gone
        return SimpleNamespace(name=lambda: name, cmdline=cmdline)

    return SimpleNamespace(Error=Gone, Process=process)


@pytest.mark.parametrize(
    ("name", "command", "shown"),
    [
        ("Xorg", ["Xorg", ":0"], "Xorg"),
        ("python3", ["python3", "-s", "/home/ana/ComfyUI/main.py", "--listen"], "python3 main.py"),
        ("python3.11", ["python3.11", "-u", "launch.py"], "python3.11 launch.py"),
        ("python.exe", ["python.exe"], "python.exe"),
        ("python", Gone(), "python"),
    ],
)
def test_a_python_is_named_with_its_script_but_not_its_folder(
    monkeypatch: pytest.MonkeyPatch, name: str, command: Any, shown: str
) -> None:
    monkeypatch.setattr(processes, "_psutil", lambda: fake_psutil(name, command))
    assert processes.name_of(7) == shown


def test_a_process_that_is_gone_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_psutil", lambda: fake_psutil("x", []))
    assert processes.name_of(404) == ""


def test_without_psutil_nothing_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_psutil", lambda: None)
    assert processes.name_of(7) == ""
