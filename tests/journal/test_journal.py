from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lib_vram.journal import journal as module
from lib_vram.journal.journal import Journal
from lib_vram.journal.last_session import last_session, read_events

ROOT = Path(__file__).resolve().parents[2]
GIB = 1024**3


def gone(pid):
    return False


def written(folder, *events, header=None):
    path = folder / "session-1000-7.jsonl"
    lines = [{"e": "session", "pid": 7, "host": "Forge", "ram_total": 32 * GIB, **(header or {})}, *events]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


RUN = {"e": "run", "t": 1000.0, "settings": {"width": 1024}, "ram_free": 20 * GIB}
LOAD = {"e": "phase", "t": 1001.0, "name": "load"}


def look(folder, **named):
    return last_session(folder, "Forge", folder / "session-2000-8.jsonl", gone, **named)


def test_no_file_is_made_before_the_first_event(tmp_path):
    Journal(tmp_path / "journal", {}, dict)
    assert list(tmp_path.iterdir()) == []


def test_events_are_on_disk_in_order_and_a_session_that_ends_says_so(tmp_path):
    journal = Journal(tmp_path, {"host": "Forge"}, dict)
    journal.write("run", settings={})
    journal.write("phase", name="load")
    journal.write("done")
    journal.close()
    assert [event["e"] for event in read_events(journal.path)] == ["session", "run", "phase", "done", "end"]


def test_a_killed_process_leaves_its_last_phase_and_reading(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from lib_vram.journal.journal import Journal\n"
        f"j = Journal(Path({str(tmp_path)!r}), {{'host': 'Forge'}}, lambda: {{'ram_free': 5}})\n"
        "j.write('run', settings={'width': 8}); j.write('phase', name='sampling'); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not any("sampling" in p.read_text() for p in tmp_path.glob("*.jsonl")):
        time.sleep(0.02)
    process.kill()
    process.wait()
    found = look(tmp_path)
    assert (found.phase, found.settings, found.cause, found.ram_free_bytes) == ("sampling", {"width": 8}, "ram", 5)


def test_the_file_stays_bounded_and_keeps_the_run_that_is_open(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SEGMENT_BYTES", 2000)
    journal = Journal(tmp_path, {"host": "Forge"}, dict)
    journal.write("run", settings={"width": 8})
    for number in range(300):
        journal.write("phase", name=f"step {number}")
    journal._queue.put(module._STOP)
    journal._thread.join()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3 * 2000
    assert look(tmp_path).settings == {"width": 8}


def test_old_sessions_are_deleted(tmp_path):
    for number in range(20):
        (tmp_path / f"session-{1000 + number}-1.jsonl").write_text("")
    journal = Journal(tmp_path, {}, dict)
    journal.write("run")
    journal.close()
    assert len(list(tmp_path.iterdir())) == module.MOST_FILES


def test_a_folder_that_cannot_be_made_ends_the_journal_quietly(tmp_path):
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "journal", {}, dict)
    journal.write("run")
    journal.close()
    journal.write("done")
    assert journal._broken


@pytest.mark.parametrize("rest", [[{"e": "done"}], [{"e": "failed"}], [{"e": "end"}]])
def test_a_run_that_ended_is_not_reported(tmp_path, rest):
    written(tmp_path, RUN, LOAD, *rest)
    assert look(tmp_path) is None


@pytest.mark.parametrize(
    ("memory", "booted_at", "cause"),
    [
        ({"ram_free": GIB // 2, "card_free": 4 * GIB}, None, "ram"),
        ({"ram_free": 10 * GIB, "card_free": 10 * 1024**2}, None, "card"),
        ({"ram_free": 10 * GIB, "card_free": 4 * GIB}, 5000.0, "computer"),
        ({"ram_free": 10 * GIB, "card_free": 4 * GIB}, 10.0, "unknown"),
        ({"ram_free": None, "card_free": None}, None, "unknown"),
    ],
)
def test_the_likely_cause_follows_the_last_reading(tmp_path, memory, booted_at, cause):
    written(tmp_path, RUN, LOAD, {"e": "memory", "t": 1002.0, **memory})
    assert look(tmp_path, booted_at=booted_at).cause == cause


def test_a_torn_last_line_and_holes_of_a_power_cut_are_passed_over(tmp_path):
    path = written(tmp_path, RUN, LOAD)
    with path.open("ab") as file:
        file.write(b"\0" * 4096 + b'\n{"e":"phase","name":"vae_de')
    assert look(tmp_path).phase == "load"


def test_another_hosts_session_and_one_that_still_runs_are_left_alone(tmp_path):
    written(tmp_path, RUN, LOAD, header={"host": "AUTOMATIC1111"})
    assert look(tmp_path) is None
    written(tmp_path, RUN, LOAD, header={"pid": os.getppid()})
    assert last_session(tmp_path, "Forge", tmp_path / "x", lambda pid: True) is None


def test_a_reading_that_fails_costs_no_event(tmp_path):
    journal = Journal(tmp_path, {"host": "Forge"}, lambda: 1 / 0)
    journal.write("run", settings={})
    journal.write("done")
    journal.close()
    assert [event["e"] for event in read_events(journal.path)] == ["session", "run", "done", "end"]


def test_after_any_fault_of_its_own_nothing_is_collected_any_more(tmp_path, monkeypatch):
    journal = Journal(tmp_path, {"host": "Forge"}, dict)
    monkeypatch.setattr(journal, "_put", lambda *_: 1 / 0)
    journal.write("run", settings={})
    journal._thread.join(10)
    assert not journal._thread.is_alive()
    before = journal._queue.qsize()
    journal.write("done")
    assert journal._queue.qsize() == before
