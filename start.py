#!/usr/bin/env python3
"""Start VRAM Guard without a WebUI. Standard library only; Python 3.10 to 3.13.

    python3 start.py               serve the Lab (--port 7865, --open shows it in the browser)
    python3 start.py test          make the test environments and pass every test
    python3 start.py test ARGS     only pytest, with these arguments; "--gradio3" first takes the other page library
    python3 start.py cli ARGS      the command line: start.py cli estimate request.json

What is installed goes into .venv* folders beside this file and nowhere else. Each holds a stamp
with the hash of its requirements, so that a second start installs nothing, and an environment
whose making was interrupted is made anew.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent
PYTHONS = (10, 11, 12, 13)
"""Minor versions of Python 3 on which the code runs."""
STAMP = "vram-guard-stamp.txt"
UNFINISHED = "vram-guard-unfinished.txt"
"""Is there while pip works. Found at a start, it means that pip was cut off and may have left half a package."""
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
CHROMIUM_PATHS = (
    "/usr/bin/chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)
PAGE_TESTS = ("tests/ui", "tests/lab", "tests/browser")
"""What runs a second time on the older page library."""
CORE_TESTS = ("physics", "model", "machine", "estimate", "live", "plan", "commands", "test_*.py")
"""What needs no page library; without torch, the tests that trace skip themselves."""


class StartError(Exception):
    """Something on this machine keeps VRAM Guard from starting; the message says what to do."""


def main(arguments: list[str]) -> int:
    """Do what the command line says; return the exit status."""
    if sys.version_info[:2] < (3, PYTHONS[0]):
        tell(f"VRAM Guard needs Python 3.{PYTHONS[0]} to 3.{PYTHONS[-1]}; this is {sys.version.split()[0]}.")
        return 1
    try:
        if arguments[:1] == ["test"]:
            return test(arguments[1:])
        if arguments[:1] == ["cli"]:
            return command_line(arguments[1:])
        return lab(arguments)
    except StartError as error:
        tell(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


def tell(text: str) -> None:
    """Say ``text`` on standard error, which keeps standard output for answers."""
    print(text, file=sys.stderr, flush=True)


# --- environments -----------------------------------------------------------------------------------------------------


def python_of(folder: Path) -> Path:
    """Return where the environment in ``folder`` has its Python."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def requirement_files(name: str) -> list[Path]:
    """Return the requirements file ``name`` and all that it includes."""
    path = ROOT / name
    found = [path]
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("-r "):
            found += requirement_files(line[3:].strip())
    return found


def stamp_of(name: str, interpreter: str) -> str:
    """Return what the stamp of an up-to-date environment says: changes with Python and with any requirement."""
    digest = hashlib.sha256(interpreter.encode())
    for path in requirement_files(name):
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def environment(folder_name: str, requirements: str, interpreter: str = sys.executable, tag: str = "") -> Path:
    """Return the Python of the environment ``folder_name``, made or completed first where that is needed.

    Raises:
        StartError: it cannot be made here, or pip could not install the requirements.
    """
    folder, python = ROOT / folder_name, python_of(ROOT / folder_name)
    wanted = stamp_of(requirements, tag or f"{sys.version_info[0]}.{sys.version_info[1]} {sys.prefix}")
    stamp = folder / STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted and runs(python):
        return python
    tell(f"Preparing {folder_name} (needed once; a few minutes at most) ...")
    stamp.unlink(missing_ok=True)
    unfinished = folder / UNFINISHED
    if unfinished.exists() or not runs(python, "-m", "pip", "--version"):
        make_environment(folder, interpreter)
    unfinished.touch()
    try:
        install(python, requirements, folder_name)
    except StartError:
        unfinished.unlink()  # pip itself gave up, and left everything in order
        raise
    unfinished.unlink()
    stamp.write_text(wanted, encoding="utf-8")
    return python


def runs(python: Path, *arguments: str) -> bool:
    """Whether ``python`` can be started at all: not after the Python it was made from went away."""
    if not python.exists():
        return False
    command = [str(python), *(arguments or ("-c", "pass"))]
    try:
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def make_environment(folder: Path, interpreter: str) -> None:
    """Make a fresh environment, in place of a broken one."""
    command = [interpreter, "-m", "venv", "--clear", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        last = (made.stdout + made.stderr).strip().splitlines()[-1:]
        raise StartError(
            f"Python could not make an environment in {folder}: {' '.join(last)}\n"
            "On Debian and Ubuntu this needs: apt-get install python3-venv"
        )


def install(python: Path, requirements: str, folder_name: str) -> None:
    """Install ``requirements`` with pip."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    result = subprocess.run(
        [*command, "-r", str(ROOT / requirements)], stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False
    )
    if result.returncode != 0:
        raise StartError(
            f"Installing {requirements} into {folder_name} failed; pip's reason is above.\n"
            "Without a network connection, connect and start again: what is already there is kept.\n"
            f"To begin afresh, delete the folder {folder_name}."
        )


def surroundings(changes: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables for a program started from here."""
    local = {"localhost", "127.0.0.1"}
    proxy = ",".join(sorted(local | set(filter(None, os.environ.get("no_proxy", "").split(",")))))
    fixed = {"GRADIO_ANALYTICS_ENABLED": "False", "no_proxy": proxy, "NO_PROXY": proxy, "PYTHONUTF8": "1"}
    return {**os.environ, **fixed, **(changes or {})}


# --- the Lab and the command line -------------------------------------------------------------------------------------


def lab(arguments: list[str]) -> int:
    """Serve the Lab until Ctrl+C."""
    parser = argparse.ArgumentParser(prog="start.py", description="Serve the Lab: VRAM Guard without a WebUI.")
    parser.add_argument("--port", type=int, default=7865, help="the port on 127.0.0.1 (7865)")
    parser.add_argument("--open", action="store_true", help="show the Lab in the browser")
    parser.epilog = "Also: start.py test [pytest arguments], start.py cli COMMAND"
    chosen = parser.parse_args(arguments)
    check_port(chosen.port)
    python = environment(".venv", "requirements-lab.txt")
    address = f"http://127.0.0.1:{chosen.port}"
    print(f"The Lab starts on {address} (Ctrl+C ends it)", flush=True)
    os.chdir(ROOT)
    options = ["--port", str(chosen.port), *(["--open"] if chosen.open else [])]
    return become([str(python), "-m", "lib_vram.lab", *options])


def check_port(port: int) -> None:
    """Raise StartError when ``port`` is not one, or another program has it."""
    if not 0 < port < 65536:
        raise StartError(f"--port: got {port}, takes a number from 1 to 65535")
    with socket.socket() as probe:
        if os.name != "nt":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise StartError(
                f"Port {port} cannot be used ({error.strerror}). Try: --port {port % 65535 + 1}"
            ) from error


def become(command: list[str], variables: dict[str, str] | None = None) -> int:
    """Run ``command`` in place of this program, so that what ends one ends the other; on Windows, follow it."""
    if os.name != "nt":
        sys.stdout.flush()
        os.execve(command[0], command, surroundings(variables))
    return follow(command, variables)


def follow(command: list[str], variables: dict[str, str] | None = None, cwd: Path | None = None) -> int:
    """Run ``command`` in the foreground and return its exit status; Ctrl+C goes to it and is waited for."""
    with subprocess.Popen(command, cwd=cwd, env=surroundings(variables)) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def command_line(arguments: list[str]) -> int:
    """Run ``python -m lib_vram``; on this Python when the environment cannot be made, since it needs no package."""
    try:
        python = str(environment(".venv", "requirements-lab.txt"))
    except StartError as error:
        tell(f'{error}\nGoing on without it: the driver\'s figures are then missing from "devices".')
        python = sys.executable
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return become([python, "-m", "lib_vram", *arguments], {"PYTHONPATH": os.pathsep.join(paths)})


# --- tests ------------------------------------------------------------------------------------------------------------


def test(arguments: list[str]) -> int:
    """Pass every test; with ``arguments``, only run pytest with them."""
    if arguments:
        name = "gradio3" if arguments[0] == "--gradio3" else "gradio4"
        rest = arguments[1:] if name == "gradio3" else arguments
        python = environment(f".venv-test-{name}", f"requirements-test-{name}.txt")
        return follow([str(python), "-m", "pytest", *rest], browser_variables(), ROOT)
    began = time.monotonic()
    main_python = environment(".venv-test-gradio4", "requirements-test-gradio4.txt")
    browser = browser_variables(install=True)
    aside = older_page_checks(browser)
    checks = [*static_checks(main_python), ("tests, gradio 4.40", pytest(main_python), browser), *other_python_checks()]
    with Aside(aside) as lane:
        failed = [check[0] for check in checks if not passes(*check)]
        failed += lane.failed()
    count = len(checks) + len(aside)
    tell(f"\n{count - len(failed)} of {count} checks passed in {time.monotonic() - began:.0f} s.")
    if failed:
        tell("Failed: " + ", ".join(failed))
    return 1 if failed else 0


Check = tuple[str, "list[str]", "dict[str, str]"]
"""A name, the command, and the environment variables it gets."""


def pytest(python: Path, *arguments: str) -> list[str]:
    """Return the command that runs pytest."""
    return [str(python), "-m", "pytest", "-q", *arguments]


def passes(name: str, command: list[str], variables: dict[str, str]) -> bool:
    """Run one check and say how it went."""
    tell(f"\n== {name}")
    began = time.monotonic()
    status = follow(command, variables, ROOT)
    tell(f"== {name}: {'passed' if status == 0 else f'FAILED (exit {status})'} in {time.monotonic() - began:.0f} s")
    return status == 0


class Aside:
    """Checks that run beside the others, since a page's test mostly waits; their output is kept until it is asked for.

    Leaving the block ends what still runs.
    """

    def __init__(self, checks: list[Check]) -> None:
        self._checks = checks
        self._running: list[tuple[str, subprocess.Popen[bytes], IO[bytes]]] = []

    def __enter__(self) -> Aside:
        for name, command, variables in self._checks:
            output = tempfile.TemporaryFile()
            process = subprocess.Popen(
                command, cwd=ROOT, env=surroundings(variables), stdout=output, stderr=subprocess.STDOUT
            )
            self._running.append((name, process, output))
        return self

    def failed(self) -> list[str]:
        """Wait for all of them, show what each printed, and return the names of those that failed."""
        failed = []
        for name, process, output in self._running:
            status = process.wait()
            output.seek(0)
            tell(f"\n== {name} (ran beside the others)\n{output.read().decode('utf-8', 'replace')}")
            tell(f"== {name}: {'passed' if status == 0 else f'FAILED (exit {status})'}")
            failed += [name] if status else []
        return failed

    def __exit__(self, *failure: object) -> None:
        for _, process, output in self._running:
            if process.poll() is None:
                process.terminate()
                process.wait()
            output.close()


def static_checks(python: Path) -> list[Check]:
    """Return the checks that only read the code: style, layering, types."""
    run = [str(python), "-m"]
    return [
        ("ruff check (style and layering)", [*run, "ruff", "check", "."], {}),
        ("ruff format", [*run, "ruff", "format", "--check", "."], {}),
        ("mypy (types of the core)", [*run, "mypy"], {}),
    ]


def older_page_checks(browser: dict[str, str]) -> list[Check]:
    """Return the page's tests on gradio 3.41, where this Python can have it."""
    if sys.version_info >= (3, 13):
        tell("gradio 3.41 needs numpy 1, which does not exist for Python 3.13: its tests run on 3.10 to 3.12.")
        return []
    python = environment(".venv-test-gradio3", "requirements-test-gradio3.txt")
    folders = [folder for folder in PAGE_TESTS if (ROOT / folder).is_dir()]
    return [("page tests, gradio 3.41", pytest(python, *folders), browser)]


def other_python_checks() -> list[Check]:
    """Return the tests of the core, without any page library or torch, on the other Pythons found here."""
    checks: list[Check] = []
    for minor in PYTHONS:
        if minor == sys.version_info[1]:
            continue
        interpreter = find_python(minor)
        if interpreter is None:
            tell(f"Python 3.{minor}: not found on this machine, so nothing runs on it.")
            continue
        try:
            python = environment(f".venv-test-3.{minor}", "requirements-test-core.txt", interpreter, tag=interpreter)
        except StartError as error:
            tell(f"Python 3.{minor}: {error}\nIts syntax is checked, its tests are not run.")
            checks.append((f"syntax, Python 3.{minor}", [interpreter, "-m", "compileall", "-q", "lib_vram"], {}))
            continue
        checks.append((f"core tests, Python 3.{minor}", pytest(python, *core_tests()), {}))
    return checks


def core_tests() -> list[str]:
    """Return the files and folders of CORE_TESTS that are there."""
    return [str(path.relative_to(ROOT)) for pattern in CORE_TESTS for path in sorted((ROOT / "tests").glob(pattern))]


def find_python(minor: int) -> str | None:
    """Return the full path of Python 3.``minor`` if one is on the PATH and starts; a shim may refuse to."""
    commands = [[name] for name in [shutil.which(f"python3.{minor}")] if name]
    if os.name == "nt" and shutil.which("py"):
        commands.append(["py", f"-3.{minor}"])
    for command in commands:
        question = [*command, "-c", f"import sys; print(sys.executable if sys.version_info[1] == {minor} else '')"]
        try:
            answer = subprocess.run(question, capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if answer.returncode == 0 and answer.stdout.strip() and Path(answer.stdout.strip()).exists():
            return answer.stdout.strip()
    return None


def browser_variables(install: bool = False) -> dict[str, str]:
    """Return the variable that names the browser to the tests; nothing when there is none."""
    path = find_browser()
    if path is None and install:
        install_browser()
        path = find_browser()
        if path is None:
            tell(
                "No Chromium or Chrome was found, so the tests of the page in a browser cannot run. Install one:\n"
                "  Debian: apt-get install chromium   macOS: brew install --cask chromium   Windows: Chrome or Edge"
            )
    return {"VRAM_GUARD_BROWSER": path} if path else {}


def find_browser() -> str | None:
    """Return the path of a Chromium, Chrome or Edge on this machine."""
    given = os.environ.get("VRAM_GUARD_BROWSER")
    names = [given] if given else [*CHROMIUM_NAMES, *CHROMIUM_PATHS]
    return next((found for found in map(shutil.which, names) if found), None)


def install_browser() -> None:
    """Install Debian's Chromium where we may: on Linux, as root."""
    if not (sys.platform == "linux" and shutil.which("apt-get") and os.geteuid() == 0):
        return
    tell("Installing chromium for the tests of the page ...")
    variables = surroundings({"DEBIAN_FRONTEND": "noninteractive"})
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
        subprocess.run(command, env=variables, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
