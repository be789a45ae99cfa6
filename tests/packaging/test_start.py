from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return start.py as a module that works in an empty folder."""
    spec = importlib.util.spec_from_file_location("vram_guard_start", ROOT / "start.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "base.txt").write_text("alpha==1\n")
    (tmp_path / "requirements.txt").write_text("-r base.txt\nbeta==2\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


class Pip:
    """Stands in for making environments and installing into them."""

    def __init__(self, start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.fault: BaseException | None = None
        monkeypatch.setattr(start, "make_environment", self.make)
        monkeypatch.setattr(start, "install", self.install)
        monkeypatch.setattr(start, "runs", lambda python, *arguments: python.exists())

    def make(self, folder: Path, interpreter: str) -> None:
        self.done.append("make")
        for name in ("bin/python", "Scripts/python.exe"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("")

    def install(self, python: Path, requirements: str, folder_name: str) -> None:
        self.done.append("install")
        if self.fault:
            raise self.fault


@pytest.fixture
def pip(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Pip:
    return Pip(start, monkeypatch)


def test_the_second_start_installs_nothing(start: ModuleType, pip: Pip) -> None:
    first = start.environment(".venv", "requirements.txt")
    assert pip.done == ["make", "install"]
    assert start.environment(".venv", "requirements.txt") == first
    assert pip.done == ["make", "install"]


@pytest.mark.parametrize("name", ["base.txt", "requirements.txt"])
def test_a_changed_requirement_is_installed_into_the_same_environment(
    start: ModuleType, pip: Pip, tmp_path: Path, name: str
) -> None:
    start.environment(".venv", "requirements.txt")
    with (tmp_path / name).open("a") as file:
        file.write("gamma==3\n")
    start.environment(".venv", "requirements.txt")
    assert pip.done == ["make", "install", "install"]


def test_line_ends_of_windows_change_nothing(start: ModuleType, tmp_path: Path) -> None:
    before = start.stamp_of("requirements.txt", "3.11")
    (tmp_path / "base.txt").write_bytes(b"alpha==1\r\n")
    assert start.stamp_of("requirements.txt", "3.11") == before
    assert start.stamp_of("requirements.txt", "3.12") != before


def test_an_environment_whose_making_was_interrupted_is_made_anew(start: ModuleType, pip: Pip) -> None:
    pip.fault = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        start.environment(".venv", "requirements.txt")
    pip.fault = None
    start.environment(".venv", "requirements.txt")
    assert pip.done == ["make", "install", "make", "install"]


def test_an_install_that_pip_gave_up_is_taken_up_again(start: ModuleType, pip: Pip) -> None:
    pip.fault = start.StartError("no network")
    with pytest.raises(start.StartError, match="no network"):
        start.environment(".venv", "requirements.txt")
    pip.fault = None
    start.environment(".venv", "requirements.txt")
    assert pip.done == ["make", "install", "install"]


def test_an_environment_whose_python_went_away_is_made_anew(start: ModuleType, pip: Pip) -> None:
    python = start.environment(".venv", "requirements.txt")
    python.unlink()
    start.environment(".venv", "requirements.txt")
    assert pip.done == ["make", "install", "make", "install"]


def test_a_failing_pip_says_what_to_do(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: SimpleNamespace(returncode=1, stdout="", stderr="boom"))
    with pytest.raises(start.StartError) as caught:
        start.install(Path("python"), "requirements.txt", ".venv")
    assert str(caught.value) == (
        "Installing requirements.txt into .venv failed; pip's reason is above.\n"
        "Without a network connection, connect and start again: what is already there is kept.\n"
        "To begin afresh, delete the folder .venv."
    )
    with pytest.raises(start.StartError, match="apt-get install python3-venv"):
        start.make_environment(Path(".venv"), "python")


def test_a_port_that_is_taken_is_named_with_another_to_try(start: ModuleType) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(start.StartError, match=rf"Port {port} cannot be used .* Try: --port {port + 1}"):
            start.check_port(port)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_is_none_is_refused(start: ModuleType, port: int) -> None:
    with pytest.raises(start.StartError, match="takes a number from 1 to 65535"):
        start.check_port(port)


def test_the_page_is_asked_for_without_a_proxy(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "intranet")
    assert start.surroundings()["no_proxy"] == "127.0.0.1,intranet,localhost"


def test_the_command_line_works_where_nothing_can_be_installed(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def no_network(*arguments: object, **options: object) -> None:
        raise start.StartError("no network")

    monkeypatch.setattr(start, "environment", no_network)
    monkeypatch.setattr(start, "become", start.follow)  # not in place of the tests
    monkeypatch.setattr(start, "ROOT", ROOT)
    assert start.main(["cli", "devices", "--json"]) == 0
    shown = capfd.readouterr()
    assert "no network" in shown.err
    assert '"devices"' in shown.out


@pytest.mark.skipif(os.name == "nt", reason="the shim is a shell script")
def test_a_shim_that_refuses_to_start_is_no_python(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho not found >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert start.find_python(12) is None


def test_this_python_is_found_by_its_number(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.shutil, "which", lambda name: sys.executable)
    found = start.find_python(sys.version_info[1])
    assert found is not None
    assert Path(found).exists()


def test_every_requirement_is_pinned_or_a_lower_bound_of_what_the_webui_brings() -> None:
    for path in ROOT.glob("requirements*.txt"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line and not line.startswith(("#", "-r ")):
                assert "==" in line.split(";")[0] or line == "psutil>=5.9.5", f"{path.name}: {line}"


@pytest.mark.parametrize(("status", "failed"), [(0, []), (3, ["pages"])])
def test_a_check_beside_the_others_shows_what_it_printed_and_how_it_ended(
    start: ModuleType, capfd: pytest.CaptureFixture[str], status: int, failed: list[str]
) -> None:
    command = [sys.executable, "-c", f"print('its words'); raise SystemExit({status})"]
    with start.Aside([("pages", command, {})]) as lane:
        assert "its words" not in capfd.readouterr().err
        assert lane.failed() == failed
    shown = capfd.readouterr().err
    assert "its words" in shown
    assert ("FAILED (exit 3)" in shown) == bool(failed)


def test_what_runs_beside_ends_with_the_block(start: ModuleType) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        start.Aside([("pages", [sys.executable, "-c", "import time; time.sleep(60)"], {})]) as lane,
    ):
        raise KeyboardInterrupt
    assert [process.poll() is not None for _, process, _ in lane._running] == [True]
