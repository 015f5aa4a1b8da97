"""Storage that fails: a disk that does not answer is not an empty disk, and no damaged file. After
each failure the disk is well again, and the same command resumes."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from unittest import mock

import pytest
from conftest import ALIKE, EARLY, ND, ROOT, RUN, command, load, locked, nd, points, refused, run

import text_nd
from trainparts import errors
from trainparts.runs import checkpointing, run_folder

PASSES = ["EIO", "ESTALE", "ETIMEDOUT", "ENOTCONN"]


def broken(kind, error, part, after=0):
    """Returns the environment in which reading, opening or writing of such paths fails."""
    return {"STORAGE": f"{kind} {error} {part} {after}"}


# ------------------------------------------------------------------------------------ at the start


@pytest.mark.parametrize(
    ("kind", "error", "part", "line"),
    [
        *[
            ("open", error, "checkpoint.pt", "one/checkpoint.pt cannot be loaded: ")
            for error in PASSES
        ],
        *[
            ("read", error, "checkpoint.pt", "one/checkpoint.pt cannot be loaded: ")
            for error in PASSES
        ],
        (
            "open",
            "EACCES",
            "checkpoint.pt",
            "one/checkpoint.pt cannot be loaded: Permission denied",
        ),
        ("open", "EACCES", ".lock", "/one/.lock: Permission denied"),
        ("open", "ESTALE", ".lock", "/one/.lock: Stale"),
        ("open", "EIO", "tfevents", "the log in one cannot be read: one/events"),
        ("read", "EIO", "tfevents", "the log in one cannot be read: Input/output"),
        ("write", "EIO", "tfevents", "--output-dir one: Input/output error"),
    ],
)
def test_a_folder_that_does_not_answer(kind, error, part, line, one, typed):
    """Its run is neither begun anew nor resumed from an older checkpoint."""
    before = {path.name for path in one.iterdir()}
    words = ["--output-dir", "one", "--epochs", "4"]
    output = typed(*words, status=1, env=broken(kind, error, part))
    assert line in refused(output) and "skips" not in output and "Resuming" not in output
    assert {path.name for path in one.parent.iterdir()} == {"one"}
    assert {path.name for path in one.glob("*.pt")} | {".lock"} <= before | {".lock"}
    assert "Resuming one/checkpoint.pt after 3 of" in typed(*words)


@pytest.mark.parametrize("way", ALIKE)
@pytest.mark.parametrize("error", ["EIO", "EACCES"])
def test_a_folder_that_cannot_be_listed(error, way, trained, typed, tmp_path):
    shutil.copytree(trained(way), tmp_path / "theRun")
    words = ["--output-dir", "theRun", "--epochs", "4"]
    for more in [], ["--evaluate"], ["--evaluate", "--resume", "theRun"]:
        output = typed(*words, *more, way=way, status=1, env=broken("open", error, "theRun"))
        assert "theRun: " in refused(output) or "theRun/.lock: " in refused(output)
    assert "Resuming theRun/checkpoint.pt after 3 of" in typed(*words, way=way)


def test_too_many_open_files_are_no_damage(one, typed):
    """Nor is too little memory: no older checkpoint is taken."""
    words = ["--output-dir", "one", "--epochs", "4"]
    output = typed(*words, status=2, env=broken("open", "EMFILE", "checkpoint.pt"))
    assert "one/checkpoint.pt cannot be loaded: Too many open files" in refused(output)
    assert "skips" not in output
    for error in MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"):
        full = mock.Mock(side_effect=error)
        with mock.patch.object(nd.torch, "load", full), pytest.raises(errors.BadInput) as refusal:
            checkpointing.newest_checkpoint(one, "--output-dir")
        assert "one/checkpoint.pt cannot be loaded: no memory for it" in str(refusal.value)


@pytest.mark.parametrize("ended", [True, False])
def test_a_log_that_cannot_be_looked_at(ended, one, typed, monkeypatch):
    """TensorBoard leaves it out: a run that ended would go on, or begin anew."""
    (log,) = one.glob("*tfevents*")
    log.rename(one.parent / "away")
    log.symlink_to("../elsewhere")
    if not ended:
        for path in one.glob("*.pt"):
            path.unlink()
    line = refused(typed("--output-dir", "one", status=1))
    assert "the log in one cannot be read: one/events" in line and "No such file" in line
    log.unlink()
    (one.parent / "away").rename(log)
    output = typed("--output-dir", "one", status=0 if ended else 2)
    assert ("nothing is left to do" if ended else "has a log of 3 epochs") in output


def test_runs_is_a_file(typed, tmp_path):
    (tmp_path / "runs").touch()
    assert "/" not in refused(typed(status=2)).partition(": File exists")[2]


@pytest.mark.parametrize("name", ["checkpoint.pt", "checkpoint-1.pt"])
def test_a_link_whose_target_is_missing(name, one, typed):
    """As where another disk is not mounted. Of damaged files the next is taken, of this one not."""
    (one / "checkpoint.pt").write_text("damaged")
    (one / "model_best.pt").unlink()
    shutil.move(one / name, one.parent / "elsewhere.pt")
    (one / name).symlink_to("../elsewhere.pt")
    shutil.move(one.parent / "elsewhere.pt", one.parent / "away.pt")
    words = ["--output-dir", "one", "--epochs", "4"]
    assert f"one/{name} cannot be loaded: No such file or directory" in refused(
        typed(*words, status=1)
    )
    shutil.move(one.parent / "away.pt", one.parent / "elsewhere.pt")
    assert "Resuming one/checkpoint-1.pt after 2 of" in typed(*words)


def test_runs_is_a_link_to_a_disk_that_is_not_mounted(typed, tmp_path):
    (tmp_path / "runs").symlink_to("disk")
    for words in [], ["--output-dir", "runs/one"]:
        line = refused(typed(*words, status=1))
        assert "runs leads to " in line and "/disk, which is missing: mount its disk" in line
    (tmp_path / "disk").mkdir()
    typed("--output-dir", "runs/one", status=143, env=EARLY)
    assert (tmp_path / "disk" / "one" / "checkpoint.pt").exists()


@pytest.mark.parametrize("option", ["--resume", "--weights"])
@pytest.mark.parametrize(
    ("path", "error", "status"),
    [
        ("file.pt", "EIO", 1),
        ("file.pt", "ESTALE", 1),
        ("file.pt", "EACCES", 2),
        ("file.pt", "EMFILE", 2),
        ("missing.pt", None, 2),
        ("file.pt/more", None, 2),
        ("loop", None, 2),
        ("x" * 300, None, 2),
    ],
)
def test_a_path_that_was_typed(option, path, error, status, one, typed):
    shutil.move(one / "checkpoint.pt", one.parent / "file.pt")
    (one.parent / "loop").symlink_to("loop")
    env = broken("open", error, "file.pt") if error else {}
    for more in [], ["--evaluate"]:
        line = refused(typed(option, path, *more, status=status, env=env))
        assert f" {path} cannot be loaded: " in line and (
            path != "loop" or "Too many levels" in line
        )
        assert not (one.parent / "runs").exists()


@pytest.mark.parametrize(
    ("kind", "error", "part", "status", "line"),
    [
        ("open", "EIO", "demo_data/train", 1, "demo_data/train: Input/output error"),
        ("open", "ESTALE", "demo_data/val", 1, "demo_data/val: Stale file handle"),
        ("open", "EIO", "val/class7", 1, "val/class7: Input/output error"),
        ("open", "EACCES", "train/class7", 2, "train/class7: Permission denied; train/ and val/"),
        ("open", "EMFILE", "train/class7", 2, "train/class7: Too many open files"),
    ],
)
def test_dir_that_does_not_answer(kind, error, part, status, line, typed):
    """torchvision's ImageFolder takes a class that cannot be listed for an empty one."""
    words = ["--output-dir", "run"]
    output = typed(*words, status=status, env=broken(kind, error, part))
    assert line in refused(output)
    assert ("hold <class>" in output) == (status == 2)
    typed(*words, status=143, env=EARLY)


def test_shards_that_do_not_answer(tmp_path, demo):
    """Reading of their index; and an image whose size is part of the data's digest."""
    words = [sys.executable, ROOT / "tools" / "make_shards.py", demo, tmp_path / "shards"]
    run(words, tmp_path)
    words = [*command(ND), *RUN, "-b", "16", tmp_path / "shards", "--output-dir", "run"]
    for kind, part in ("read", "index.npz"), ("open", "shards/train"):
        line = refused(run(words, tmp_path, 1, broken(kind, "EIO", part)))
        assert "shards/train" in line and "Input/output error" in line
    run(words, tmp_path, 143, EARLY)
    (tmp_path / "link").mkdir()
    for part in "train", "val":
        shutil.copytree(demo / part, tmp_path / "link" / part)
    first = tmp_path / "link" / "train" / "class0" / "0.jpg"
    first.unlink()
    first.symlink_to("on another disk.jpg")
    words[-3] = tmp_path / "link"
    assert "class0/0.jpg: No such file" in refused(run(words, tmp_path, 1))


@pytest.mark.parametrize(
    ("task", "kind", "error", "part", "status"),
    [
        ("cola", "open", "EIO", "train.tsv", 1),
        ("cola", "open", "EACCES", "dev.tsv", 2),
        ("lm", "open", "ESTALE", "val.txt", 1),
        ("lm", "open", "EACCES", "train.txt", 2),
    ],
)
def test_text_that_does_not_answer(task, kind, error, part, status, text, tmp_path):
    words = [*command("text_nd.py"), "--task", task, "-a", "bert" if task == "cola" else "gpt"]
    words += ["--no-accel", "--hidden-size", "16", "--layers", "1", "--heads", "2"]
    words += ["--max-length", "32", "-b", "4", text, "--output-dir", "run"]
    assert part in refused(run(words, tmp_path, status, broken(kind, error, part)))
    run(words, tmp_path, 143, EARLY)


def test_text_that_cannot_be_looked_at_does_not_answer(tmp_path, monkeypatch):
    """Or DIR would be said to have no such file."""
    looked = mock.Mock(side_effect=OSError(errno.EIO, "Input/output error"))
    args = text_nd.parse_args([str(tmp_path)])
    with pytest.raises(errors.BadInput, match="has no train.txt"):
        text_nd.list_blocks(args)
    monkeypatch.setattr(text_nd.os, "stat", looked)
    with pytest.raises(errors.Fault, match="train.bin: Input/output error"):
        text_nd.list_blocks(args)
    with pytest.raises(errors.Fault, match="model: Input/output error"):
        text_nd.parse_args(["-a", "model", "--task", "cola"])
    with pytest.raises(errors.Fault, match="tokens: Input/output error"):
        text_nd.parse_args(["--tokenizer", "tokens"])
    with pytest.raises(errors.Fault, match="run: Input/output error"):
        checkpointing.find_checkpoint(None, "run", False, None)


# -------------------------------------------------------------------------------------- in training


@pytest.mark.parametrize("way", ALIKE)
@pytest.mark.parametrize(
    ("kind", "error", "part", "after", "status", "line"),
    [
        ("write", "EIO", "checkpoint.tmp", 1, 1, "checkpoint.pt cannot be written; the previous"),
        ("open", "ESTALE", "checkpoint.tmp", 1, 1, "checkpoint.pt cannot be written; the prev"),
        ("open", "EACCES", "checkpoint.tmp", 1, 1, "checkpoint.pt cannot be written; the prev"),
        ("write", "EFBIG", "checkpoint.tmp", 1, 2, "checkpoint.pt cannot be written; the previous"),
        ("open", "EMFILE", "checkpoint.tmp", 1, 2, "checkpoint.pt cannot be written; the previous"),
        ("write", "EIO", "model_best.tmp", 0, 1, "model_best.pt cannot be written"),
        ("write", "EIO", "tfevents", 5, 1, "rank 0: a log or another file: Input/output error"),
        ("write", "EACCES", "tfevents", 5, 1, "rank 0: a log or another file: Permission denied"),
        ("write", "ETIMEDOUT", "tfevents", 5, 1, "a log or another file: Connection timed out"),
        ("open", "ESTALE", "tfevents", 5, 1, "Stale file handle"),
    ],
)
def test_a_folder_that_fails_in_training(
    kind,
    error,
    part,
    after,
    status,
    line,
    way,
    typed,
    tmp_path,
):
    words = ["--output-dir", "run"]
    output = typed(*words, way=way, status=status, env=broken(kind, error, part, after))
    assert line in refused(output) and "1/3  step 1 " in output
    assert ("Resuming run/" in typed(*words, way=way)) == part.endswith(".tmp")
    assert len(points(tmp_path / "run")["Loss/step"]) == 12


def test_a_full_disk_fails_in_training_within_a_file(tmp_path):
    """There PyTorch raises an error of its own after the file's, so a real limit is used."""
    words = [sys.executable, "-c", LIMITED, tmp_path]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (
        done.stdout == "BadInput checkpoint.pt cannot be written; the previous one is intact: "
        "File too large\n"
    ), done.stderr


LIMITED = """
import functools, os, resource, sys
import torch
from pathlib import Path
from trainparts import safe_files
os.chdir(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
try:
    save = functools.partial(torch.save, {"weight": torch.zeros(100_000)})
    safe_files.write_atomically(Path("checkpoint.pt"), save)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("part", ["train/class", "val/class"])
def test_an_image_that_cannot_be_read(part, demo, tmp_path):
    """In training and in validation, after four attempts, in loader processes too."""
    words = [*command(ND), *RUN, "-b", "16", demo, "--output-dir", "run"]
    first = run(words, tmp_path, 143, EARLY)
    assert "1/3  step 1 " in first
    for workers in "0", "1":
        output = run([*words, "-j", workers], tmp_path, 1, broken("read", "EIO", part))
        assert ".jpg: image " in refused(output)
        assert "cannot be used: Input/output error" in refused(output)
    run(words, tmp_path)
    assert load(tmp_path / "run" / "checkpoint.pt")["epoch"] == 3


# -------------------------------------------------------------------------------------------- locks


def test_a_folder_that_is_held(tmp_path, monkeypatch):
    """It is asked for again for a minute, and not longer."""
    clock = [1000.0]
    monkeypatch.setattr(nd.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(nd.time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    for name in "EIO", "ESTALE":  # a disk that fails has locks
        fails = mock.Mock(side_effect=OSError(getattr(errno, name), os.strerror(5)))
        with (
            mock.patch.object(fcntl, "flock", fails),
            pytest.raises(errors.Fault, match=".lock: "),
        ):
            run_folder.lock_folder.__wrapped__(tmp_path)
    with locked(tmp_path), pytest.raises(errors.Fault, match="another run is writing there"):
        run_folder.lock_folder.__wrapped__(tmp_path)
    assert 1060 < clock[0] < 1061
    lock = run_folder.lock_folder.__wrapped__(tmp_path)
    with open(tmp_path / ".lock") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    lock.close()


@pytest.mark.parametrize("error", ["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def test_a_file_system_without_locks(error, typed, tmp_path):
    """Lustre without -o flock, NFS without its lock daemon. A killed run leaves `.lock`, and the
    same command resumes on any host, which would not know its process."""
    words, env = ["--output-dir", "run"], {"NO_FLOCK": error}
    output = typed(*words, status=-9, env=env | {"SIGKILL_AT": "7"})  # in the second epoch
    assert output.count("/run cannot be locked (") == 1
    assert (tmp_path / "run" / ".lock").read_bytes() == b""
    output = typed(*words, env=env)
    assert output.count("/run cannot be locked (") == 1
    assert "Resuming run/checkpoint.pt after 1 of 3 epochs" in output


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


def test_a_lock_that_is_a_link(typed, tmp_path):
    """Nothing is made or changed where it leads to."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to("../elsewhere")
    line = refused(typed("--output-dir", "run", status=1))
    assert "/run/.lock: Too many levels of symbolic links" in line
    assert not (tmp_path / "elsewhere").exists()
