"""The folder of a run: what is made, what is refused, and who holds its lock."""

import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
from conftest import ROOT, locked

from trainparts import errors
from trainparts.runs import run_folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder that paths are relative to, in which there is no runs/."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def is_locked(folder):
    """Returns whether another process could not lock a folder."""
    with open(folder / ".lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# ---------------------------------------------------------------------------------- what is made


@pytest.mark.parametrize("folder", ["run", "runs/run", "deep/run", "link/run", "deep"])
def test_the_folder_is_made_and_locked(folder, here):
    """And runs/, where folders are that nobody named; one that is there is as good."""
    (here / "deep").mkdir()
    (here / "link").symlink_to("deep")
    run_folder.open_folder(Path(folder))
    assert [path.name for path in (here / folder).iterdir()] == [".lock"]
    assert (here / folder / ".lock").read_bytes() == b""
    assert is_locked(here / folder)
    run_folder.open_folder(folder)  # once more, as a run that resumes itself; by text


def test_the_lock_is_a_file_as_others_are(here):
    run_folder.open_folder(Path("run"))
    (here / "run" / "other").touch()
    modes = {(here / "run" / name).stat().st_mode for name in (".lock", "other")}
    assert len(modes) == 1


@pytest.mark.parametrize(
    ("folder", "kind", "line"),
    [
        (
            "disk/run",
            errors.BadInput,
            "--output-dir disk/run: there is no folder disk: mount its disk, or make it",
        ),
        (
            "runs/deep/run",
            errors.BadInput,
            "--output-dir runs/deep/run: there is no folder runs/deep: mount its disk, or make it",
        ),
        ("link", errors.Fault, "link leads to {}/disk, which is missing: mount its disk"),
        (
            "link/run",
            errors.BadInput,
            "--output-dir link/run: there is no folder link: mount its disk, or make it",
        ),
        ("file", errors.BadInput, "--output-dir file: File exists"),
        ("file/run", errors.BadInput, "--output-dir file/run: Not a directory"),
        ("loop", errors.BadInput, "--output-dir loop: Too many levels of symbolic links"),
        ("a" * 300, errors.BadInput, f"--output-dir {'a' * 300}: File name too long"),
        ("a\0b", errors.BadInput, r"--output-dir a\x00b: embedded null byte"),
    ],
)
def test_nothing_is_made_where_the_folder_above_is_missing(folder, kind, line, here):
    """Or a disk that is not mounted would be taken for an empty one."""
    (here / "file").touch()
    (here / "link").symlink_to("disk")
    (here / "loop").symlink_to("loop")
    before = {*here.rglob("*")}
    with pytest.raises(kind) as refused:
        run_folder.open_folder(Path(folder), option="--output-dir")
    assert type(refused.value) is kind and str(refused.value) == line.format(here)
    assert {*here.rglob("*")} == before


def test_runs_that_is_a_link_is_made_when_its_disk_is_mounted(here):
    (here / "runs").symlink_to("a disk")
    line = f"^runs leads to {re.escape(str(here))}/a disk, which is missing: mount its disk$"
    for start in (
        lambda: run_folder.open_folder(Path("runs/run")),
        lambda: run_folder.new_folder("x"),
    ):
        with pytest.raises(errors.Fault, match=line):
            start()
    (here / "a disk").mkdir()
    run_folder.open_folder(Path("runs/run"))
    assert is_locked(here / "a disk" / "run")


@pytest.mark.parametrize("new", [True, False])
def test_runs_that_is_a_file_is_the_user_s_to_move(new, here):
    (here / "runs").touch()
    with pytest.raises(errors.BadInput, match="^runs/run: File exists$"):
        run_folder.open_folder(Path("runs/run"), new=new)


def test_a_disk_that_does_not_answer_is_no_mistake(here, monkeypatch):
    error = OSError(errno.EIO, "Input/output error", "run")
    monkeypatch.setattr(Path, "mkdir", mock.Mock(side_effect=error))
    with pytest.raises(errors.Fault, match="^--output-dir run: Input/output error$"):
        run_folder.open_folder(Path("run"), option="--output-dir")


def test_a_new_folder_must_not_be_there(here):
    run_folder.open_folder(Path("run"), new=True)
    with pytest.raises(FileExistsError):
        run_folder.open_folder(Path("run"), new=True)


def test_starts_in_one_second_have_folders_of_their_own(here, monkeypatch):
    """In runs/, named after the time of Greenwich: the second waits until the next."""
    clock, began = [1_000_000_000.5], time.gmtime
    monkeypatch.setattr(time, "gmtime", lambda: began(clock[0]))
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    folders = [run_folder.new_folder("vit_gpux1") for _ in range(3)]
    names = [f"runs/2001-09-09_01-46-{second}_vit_gpux1" for second in (40, 41, 42)]
    assert folders == [Path(name) for name in names]
    assert all(is_locked(here / name) for name in names)


def test_a_preempted_run_says_where_it_was(tmp_path):
    run_folder.mark_preempted(tmp_path, "SIGTERM", 3, 17)
    text = (tmp_path / "PREEMPTED").read_text()
    assert json.loads(text) == {"why": "SIGTERM", "epoch": 3, "step": 17} and text.endswith("}\n")


# ------------------------------------------------------------------------------------------ locks


lock_folder = run_folder.lock_folder.__wrapped__  # anew, as another process


@pytest.fixture
def clock(monkeypatch):
    """[seconds], which pass by sleeping alone."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    return now


def test_a_folder_that_is_held_is_asked_for_again_for_a_minute(tmp_path, clock):
    line = f"^{re.escape(str(tmp_path))}: another run is writing there$"
    with locked(tmp_path), pytest.raises(errors.Fault, match=line):
        lock_folder(tmp_path)
    assert 1060 < clock[0] < 1061
    lock = lock_folder(tmp_path)
    with open(tmp_path / ".lock") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    lock.close()


def test_a_folder_is_locked_once_it_is_free(tmp_path, monkeypatch, clock):
    """Its run may be saving before it ends."""
    other, asked = contextlib.ExitStack(), []
    other.enter_context(locked(tmp_path))

    def sleep(seconds):
        asked.append(clock.append(clock.pop() + seconds))
        if len(asked) == 3:
            other.close()

    monkeypatch.setattr(time, "sleep", sleep)
    with lock_folder(tmp_path):
        assert len(asked) == 3 and clock[0] < 1010 and is_locked(tmp_path)


@pytest.mark.parametrize("name", ["EIO", "ESTALE", "ETIMEDOUT", "ENOTCONN"])
def test_a_disk_that_fails_is_no_file_system_without_locks(name, tmp_path, monkeypatch):
    error = OSError(getattr(errno, name), os.strerror(getattr(errno, name)))
    monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=error))
    line = f"^{re.escape(str(tmp_path))}/.lock: {re.escape(error.strerror)}$"
    with pytest.raises(errors.Fault, match=line):
        lock_folder(tmp_path)


@pytest.mark.parametrize("name", ["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def test_a_file_system_without_locks_is_trained_on_with_a_line(name, tmp_path, monkeypatch, caplog):
    """Lustre without -o flock, NFS without its lock daemon."""
    error = OSError(getattr(errno, name), os.strerror(getattr(errno, name)))
    monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=error))
    lock_folder(tmp_path).close()
    why = f"{tmp_path} cannot be locked ({error.strerror}): start no other run there"
    assert caplog.messages == [why]


def test_a_run_locks_its_folder_once(tmp_path, monkeypatch):
    flock = mock.Mock()
    monkeypatch.setattr(fcntl, "flock", flock)
    assert run_folder.lock_folder(tmp_path) is run_folder.lock_folder(tmp_path)
    flock.assert_called_once()
    for folder in tmp_path / "a", tmp_path / "b" / ".." / "a":  # by one name
        (tmp_path / "b").mkdir(exist_ok=True)
        run_folder.open_folder(folder)
    assert flock.call_count == 2


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    """Nothing is made or changed where it leads to."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").symlink_to("../elsewhere")
    line = f"^{re.escape(str(folder))}/.lock: Too many levels of symbolic links$"
    with pytest.raises(errors.Fault, match=line):
        run_folder.open_folder(folder)
    assert not (tmp_path / "elsewhere").exists()


FORKS = """
import os, sys, time
from pathlib import Path
from trainparts.runs import run_folder
run_folder.lock_folder(Path(sys.argv[1]))
if not os.fork():
    os.write(1, b"forked\\n")
    time.sleep(100)
os.write(1, b"locked\\n")
sys.stdin.read()
os._exit(0)
"""


def test_no_lock_outlives_its_process(tmp_path):
    """Where a loader worker does, since the disk that it reads from does not answer."""
    words = [sys.executable, "-c", FORKS, tmp_path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(words, cwd=ROOT, start_new_session=True, **pipes)
    try:
        assert {process.stdout.readline() for _ in range(2)} == {b"locked\n", b"forked\n"}
        with open(tmp_path / ".lock") as lock:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            process.stdin.close()
            assert process.wait(60) == 0
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
