import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from lib_vram.learning import store as module
from lib_vram.learning.record import Rescue
from lib_vram.learning.store import Store, record_rescue, use
from tests.learning.makers import MACHINE, failed, run

ROOT = Path(__file__).resolve().parents[2]
RESCUE = Rescue(5.0, "forge", "vae_decode", "vae_tiled", True, 2, 1.5, "sdxl")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "history")


def test_runs_come_back_as_they_were_kept_oldest_first(store):
    runs = (run(at=1.0), failed(at=2.0))
    for item in runs:
        store.add(item)
    assert store.runs() == runs


def test_nothing_is_made_before_the_first_run(store):
    assert store.runs() == ()
    assert store.rescues() == ()
    assert store.erase()
    assert not store.path.parent.exists()


def test_runs_of_another_machine_are_told_apart(store):
    other = replace(MACHINE, driver="552.1")
    store.add(run(at=1.0))
    store.add(run(at=2.0, machine=other))
    assert [item.at for item in store.runs(other.key)] == [2.0]


def test_rescues_come_back(store):
    store.add_rescue(RESCUE)
    assert store.rescues() == (RESCUE,)


def test_of_more_runs_than_are_kept_the_newest_stay(store, monkeypatch):
    monkeypatch.setattr(module, "MOST_RUNS", 3)
    for at in range(5):
        store.add(run(at=float(at)))
    assert [item.at for item in store.runs()] == [2.0, 3.0, 4.0]


def test_erasing_leaves_nothing_in_the_file(store):
    store.add(run(error="a-word-that-must-go"))
    store.add_rescue(RESCUE)
    assert b"a-word-that-must-go" in store.path.read_bytes()
    assert store.erase()
    assert (store.runs(), store.rescues()) == ((), ())
    assert b"a-word-that-must-go" not in store.path.read_bytes()


@pytest.mark.parametrize("content", [b"not a database at all, whatever its name says" * 40, b"SQLite format 3\0" * 9])
def test_a_damaged_file_is_set_aside_once_and_a_new_one_begun(store, content, caplog):
    store.path.parent.mkdir()
    store.path.write_bytes(content)
    store.add(run())
    store.add(run())
    assert len(store.runs()) == 2
    aside = list(store.path.parent.glob("runs.damaged-*.sqlite3"))
    assert [path.read_bytes() for path in aside] == [content]
    assert store.note.key == "learning.damaged"
    assert len(caplog.records) == 1


def test_a_file_damaged_in_its_middle_is_set_aside(store):
    for at in range(40):
        store.add(run(at=float(at)))
    whole = store.path.read_bytes()
    store.path.write_bytes(whole[:4096] + b"\xff" * 8192 + whole[12288:])
    store.add(run(at=99.0))
    assert 99.0 in [item.at for item in store.runs()]


def test_erasing_takes_what_was_set_aside_with_it(store):
    store.path.parent.mkdir()
    store.path.write_bytes(b"rubbish" * 500)
    store.add(run())
    assert store.erase()
    assert [path.name for path in store.path.parent.iterdir()] == ["runs.sqlite3"]
    assert store.note is None


def test_a_file_of_a_later_version_is_left_alone(store):
    store.path.parent.mkdir()
    with sqlite3.connect(store.path) as file:
        file.execute("PRAGMA user_version = 99")
    before = store.path.read_bytes()
    store.add(run())
    assert store.runs() == ()
    assert store.note.key == "learning.no_file"
    assert store.path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_said_once_and_nothing_else_happens(tmp_path, caplog):
    (tmp_path / "history").write_text("a file where the folder should be")
    store = Store(tmp_path / "history")
    store.add(run())
    store.add(run())
    assert store.runs() == ()
    assert len(caplog.records) == 1


def test_a_row_that_a_later_version_wrote_otherwise_is_passed_over(store):
    store.add(run())
    with sqlite3.connect(store.path) as file:
        file.execute("INSERT INTO runs (at, machine, family, outcome, run) VALUES (1, '', '', '', '{\"new\": 1}')")
        file.execute("INSERT INTO runs (at, machine, family, outcome, run) VALUES (1, '', '', '', '[')")
    assert len(store.runs()) == 1


def test_a_file_that_is_busy_for_long_costs_one_run_and_says_so_until_it_is_free(store, monkeypatch):
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)
    store.add(run(at=1.0))
    with sqlite3.connect(store.path, isolation_level=None) as file:
        file.execute("BEGIN EXCLUSIVE")
        store.add(run(at=2.0))
        assert store.note.key == "learning.no_file"
        file.execute("COMMIT")
    store.add(run(at=3.0))
    assert [item.at for item in store.runs()] == [1.0, 3.0]
    assert store.note is None


def test_several_threads_keep_all_their_runs(store):
    def work(number):
        for count in range(10):
            store.add(run(at=float(number * 100 + count)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.runs()) == 40


WRITER = """
import sys
from pathlib import Path
from lib_vram.learning.store import Store
from tests.learning.makers import run
store = Store(Path(sys.argv[1]))
for count in range(int(sys.argv[2])):
    store.add(run(at=float(count)))
    print(count, flush=True)
"""


def writer(store, count):
    command = [sys.executable, "-c", WRITER, str(store.path.parent), str(count)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


def test_two_webuis_that_begin_the_file_together_keep_all_their_runs(store):
    processes = [writer(store, 12) for _ in range(2)]
    assert [process.wait(30) for process in processes] == [0, 0]
    for process in processes:
        process.stdout.close()
    assert len(store.runs()) == 24
    assert store.note is None


def test_what_was_kept_before_a_sudden_death_is_there_afterwards(store):
    process = writer(store, 100000)
    for _ in range(5):
        process.stdout.readline()
    process.kill()
    process.wait(10)
    process.stdout.close()
    assert len(store.runs(most=10**6)) >= 5
    store.add(run(at=-1.0))
    assert store.runs()[-1].at == -1.0
    assert store.note is None


HALF_WAY = """
import sqlite3, sys, time
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("PRAGMA cache_size = 1")
file.execute("BEGIN IMMEDIATE")
for count in range(400):
    row = (1.0, "half", "", "done", "x" * 4000)
    file.execute("INSERT INTO runs (at, machine, family, outcome, run) VALUES (?, ?, ?, ?, ?)", row)
file.execute("DELETE FROM runs WHERE machine != 'half'")
print("half way", flush=True)
time.sleep(60)
"""


def test_a_webui_that_is_killed_in_mid_write_leaves_the_file_whole_and_another_goes_on(store):
    kept = [run(at=float(at)) for at in range(20)]
    for item in kept:
        store.add(item)
    before = store.path.stat().st_size
    killed = subprocess.Popen([sys.executable, "-c", HALF_WAY, str(store.path)], stdout=subprocess.PIPE)
    assert killed.stdout.readline().strip() == b"half way"
    assert store.path.stat().st_size > 2 * before  # the half is in the file already
    other = writer(store, 5)  # waits for the one that writes
    killed.kill()
    killed.wait(10)
    assert other.wait(30) == 0
    for process in (killed, other):
        process.stdout.close()
    assert list(store.runs())[:20] == kept
    assert [item.at for item in store.runs()][20:] == [0.0, 1.0, 2.0, 3.0, 4.0]
    with sqlite3.connect(store.path) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    file.close()
    assert store.note is None
    assert list(store.path.parent.glob("*damaged*")) == []


def no_space(connect, path, timeout):
    file = connect(path, timeout=timeout)
    file.execute(f"PRAGMA max_page_count = {file.execute('PRAGMA page_count').fetchone()[0]}")
    return file


def read_only(connect, path, timeout):
    return connect(f"{Path(path).as_uri()}?mode=ro", timeout=timeout, uri=True)


@pytest.mark.parametrize(("opened", "words"), [(no_space, "full"), (read_only, "readonly")])
def test_a_full_disk_or_a_folder_that_cannot_be_written_costs_runs_and_is_said_once(
    store, monkeypatch, caplog, opened, words
):
    for at in range(3):
        store.add(run(at=float(at)))
    connect = sqlite3.connect
    with monkeypatch.context() as broken:
        broken.setattr(module.sqlite3, "connect", lambda path, timeout: opened(connect, path, timeout))
        for at in range(3, 60):
            store.add(run(at=float(at), error="x" * 2000))
        assert words in dict(store.note.values)["reason"]
        assert [item.at for item in store.runs()][:3] == [0.0, 1.0, 2.0]
        assert store.note.key == "learning.no_file"  # that it can be read is no reason to be silent
    assert len(caplog.records) == 1
    store.add(run(at=99.0))
    assert store.runs()[-1].at == 99.0
    assert store.note is None


def test_with_the_clock_set_back_the_newest_run_is_still_the_last_and_the_oldest_goes_first(store, monkeypatch):
    monkeypatch.setattr(module, "MOST_RUNS", 2)
    for at in (1000.0, 2000.0, 3.0):
        store.add(run(at=at))
    assert [item.at for item in store.runs()] == [2000.0, 3.0]


def test_a_second_damaged_file_in_the_same_second_does_not_replace_the_first(store, monkeypatch):
    monkeypatch.setattr(module.time, "time", lambda: 1000.0)
    for content in (b"first damage" * 40, b"second damage" * 40):
        store.path.parent.mkdir(exist_ok=True)
        store.path.write_bytes(content)
        store.add(run())
    kept = sorted(path.read_bytes()[:6] for path in store.path.parent.glob("runs.damaged-*.sqlite3"))
    assert kept == [b"first ", b"second"]


def test_a_rescue_goes_to_whoever_keeps_them_and_nowhere_otherwise():
    heard = []
    use(heard.append)
    record_rescue("sampling", "again", is_rescued=True, images=3)
    use(None)
    record_rescue("sampling", "again", is_rescued=False)
    assert [(item.phase, item.images, item.is_rescued) for item in heard] == [("sampling", 3, True)]


def test_a_set_aside_file_that_another_program_has_open_is_said_and_not_raised(store, monkeypatch):
    store.add(run())
    store.path.with_name("runs.damaged-1.sqlite3").write_bytes(b"")
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "it is in use")))
    assert store.erase() is False
    assert store.note.key == "learning.no_file"
