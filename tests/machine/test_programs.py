"""Programs as what they are, and who may be ended: on a system of made-up processes, and once on the real one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from lib_vram.machine.card import Holder
from lib_vram.machine.programs import OLD_SECONDS, ProgramReader

OWN, NOW = 100, 1_000_000.0
OLD = NOW - OLD_SECONDS - 100


class Fault(Exception):
    """Stands in for ``psutil.Error``."""


class Gone(Fault):
    """Stands in for ``psutil.NoSuchProcess``."""


class Denied(Fault):
    """Stands in for ``psutil.AccessDenied``."""


class Process:
    """One made-up process; ``ports`` are what it listens at, ``obeys`` is whether it ends when asked to."""

    def __init__(self, pid, name="python3", script="launch.py", **more):
        self.pid, self._name = pid, name
        self._command = [name, script]
        self._folder = more.get("folder", "/home/a/stable-diffusion-webui")
        self.started = more.get("started", OLD)
        self._ports = more.get("ports", ())
        self._uid = more.get("uid", os.getuid() if hasattr(os, "getuid") else 0)
        self.family = more.get("family", ())
        self.obeys = more.get("obeys", True)
        self.signals = []
        self.alive = True
        self.works = more.get("works", 0.0)
        self._looks = 0

    def name(self):
        return self._name

    def cmdline(self):
        return self._command

    def cwd(self):
        return self._folder

    def exe(self):
        return f"/usr/bin/{self._name}"

    def create_time(self):
        return self.started

    def cpu_times(self):
        self._looks += 1
        return SimpleNamespace(user=20 + self.works * self._looks, system=1.0)

    def uids(self):
        return self._uid, self._uid, self._uid

    def username(self):
        return str(self._uid)

    def parents(self):
        return []

    def children(self, recursive):
        return list(self.family)

    def net_connections(self, kind):
        if isinstance(self._ports, Exception):
            raise self._ports
        return [SimpleNamespace(status="LISTEN")] * len(self._ports) + [SimpleNamespace(status="ESTABLISHED")]

    def status(self):
        return "running"

    def terminate(self):
        self.signals.append("terminate")
        self.alive = not self.obeys

    def kill(self):
        self.signals.append("kill")
        self.alive = self.obeys is None


@pytest.fixture
def system():
    """Return a function that makes the reader of a system with these processes beside ours."""

    def made(*processes, own=None):
        table = {item.pid: item for item in (own or Process(OWN, script="own.py", folder="/"), *processes)}

        def process(pid):
            if pid not in table:
                raise Gone(pid)
            return table[pid]

        psutil = SimpleNamespace(
            Error=Fault, NoSuchProcess=Gone, CONN_LISTEN="LISTEN", STATUS_ZOMBIE="zombie", Process=process,
            process_iter=lambda: list(table.values()),
            wait_procs=lambda items, timeout: ([i for i in items if not i.alive], [i for i in items if i.alive]),
        )  # fmt: skip
        now = [NOW - 30]
        reader = ProgramReader(lambda: psutil, lambda: now[0], own=OWN)
        reader.programs([])  # half a minute ago somebody looked already
        now[0] = NOW
        return reader

    return made


def kinds(reader, *pids):
    return {item.pid: item.kind for item in reader.programs([Holder(pid, "", 1) for pid in pids])}


def test_a_webui_that_answers_nowhere_was_left_behind_and_one_that_does_was_not(system):
    reader = system(Process(7), Process(8, ports=(7860,)))
    assert kinds(reader, OWN, 7, 8) == {OWN: "this", 7: "zombie", 8: "webui"}


@pytest.mark.parametrize(
    "process",
    [
        Process(7, started=NOW - 60),  # it is still starting
        Process(7, ports=Denied("hidden")),
        Process(7, family=[Process(9, ports=(7860,))]),  # the Python of a venv is a process around the one that works
        Process(7, uid=4242),
        Process(7, works=5.0),  # a first start on a slow computer takes long, and works
    ],
)
def test_in_doubt_it_is_a_webui_at_work(system, process):
    assert kinds(system(process), 7) == {7: "webui"}


def test_on_the_first_look_nothing_was_left_behind_yet(system):
    process = Process(7)
    psutil = system(process)._psutil
    first = ProgramReader(psutil, lambda: NOW, own=OWN)
    assert kinds(first, 7) == {7: "webui"}
    assert first.end(7, OLD) == "not_zombie"
    assert process.signals == []


def test_what_belongs_to_this_process_is_never_left_behind(system):
    worker = Process(7)
    reader = system(worker, own=Process(OWN, script="own.py", folder="/", family=[worker]))
    assert kinds(reader, 7) == {7: "webui"}
    assert reader.end(7, OLD) == "not_zombie"


def test_a_left_behind_webui_is_shown_although_no_driver_names_it(system):
    reader = system(Process(7), Process(8, name="bash"), Process(9, script="train.py", folder="/x"))
    found = reader.programs([])
    assert [(item.pid, item.name, item.webui, item.can_end) for item in found] == [
        (7, "python3 launch.py", "AUTOMATIC1111", True)
    ]


def test_the_holders_of_a_virtual_card_are_not_looked_up(system):
    found = system(Process(7)).programs([Holder(7, "firefox", 5)], made_up=True)
    assert (found[0].kind, found[0].started) == ("browser", None)


def test_a_holder_that_is_not_shown_to_us_is_said_to_be_hidden(system):
    found = system().programs([Holder(5, "", 3)])
    assert (found[0].kind, found[0].name, found[0].used_bytes, found[0].can_end) == ("hidden", "", 3, False)


def test_the_largest_holder_comes_first(system):
    found = system(Process(7, name="firefox"), Process(8, name="steam")).programs(
        [Holder(7, "firefox", 1), Holder(8, "steam", 5)], {8: 2}
    )
    assert [(item.pid, item.shared_bytes) for item in found] == [(8, 2), (7, None)]


@pytest.mark.parametrize("process", [Process(7), Process(7, obeys=False)])
def test_a_left_behind_webui_is_asked_to_end_and_then_made_to(system, process):
    assert system(process).end(7, OLD) == "ended"
    assert process.signals == (["terminate"] if process.obeys else ["terminate", "kill"])


@pytest.mark.parametrize(
    ("process", "started", "came"),
    [
        (Process(7), OLD - 1, "changed"),  # the number has gone to another process meanwhile
        (Process(7), OLD + 1, "changed"),
        (Process(7, ports=(7860,)), OLD, "not_zombie"),
        (Process(7, name="firefox"), OLD, "not_zombie"),
        (Process(7, script="launch.pyc", folder="/home/a/launch.py"), OLD, "not_zombie"),
        (Process(7, uid=4242), OLD, "not_yours"),
        (Process(7, started=NOW - 60), NOW - 60, "not_zombie"),
        (Process(8), OLD, "gone"),
    ],
)
def test_nothing_else_is_ended(system, process, started, came):
    assert system(process).end(7, started) == came
    assert process.signals == []


def test_a_process_that_does_not_end_is_said_to_go_on(system):
    process = Process(7, obeys=None)
    assert system(process).end(7, OLD) == "refused"


def test_this_process_is_never_ended(system):
    own = Process(OWN)
    assert system(own=own).end(OWN, OLD) == "not_zombie"
    assert own.signals == []


def test_without_psutil_nothing_is_ended_and_the_holders_keep_their_names():
    reader = ProgramReader(lambda: None)
    assert reader.end(7, OLD) == "no_psutil"
    assert [(item.name, item.kind) for item in reader.programs([Holder(7, "steam", 1)])] == [("steam", "launcher")]


LEAVE_BEHIND = """
import subprocess, sys
process = subprocess.Popen([sys.executable, sys.argv[1]], stdout=subprocess.DEVNULL)
print(process.pid)
"""


def test_a_real_webui_that_was_left_behind_is_ended_by_its_number_and_start_alone(tmp_path):
    psutil = pytest.importorskip("psutil")
    script = tmp_path / "stable-diffusion-webui" / "launch.py"
    script.parent.mkdir()
    script.write_text("import time\ntime.sleep(60)\n")
    started = subprocess.run(
        [sys.executable, "-c", LEAVE_BEHIND, str(script)], stdout=subprocess.PIPE, check=True, timeout=30
    )
    process = psutil.Process(int(started.stdout))
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # a WebUI of its own, so to speak
    try:
        at = process.create_time()
        more = [OLD_SECONDS]
        later = ProgramReader(clock=lambda: time.time() + more[0], own=other.pid)
        assert ProgramReader(own=other.pid).end(process.pid, at) == "not_zombie"  # it may still be starting
        assert later.end(process.pid, at + 1) == "changed"
        assert later.end(process.pid, at) == "not_zombie"  # it may be at work
        more[0] += 3600
        assert process.status() != psutil.STATUS_ZOMBIE
        assert later.end(process.pid, at) == "ended"
        assert not psutil.pid_exists(process.pid) or process.status() == psutil.STATUS_ZOMBIE
    finally:
        other.kill()
        other.wait(10)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
