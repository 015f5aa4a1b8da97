"""Storage that fails: a disk that does not answer is not an empty disk, and no damaged file. After
each failure the disk is well again, and the same command resumes."""

import errno
import shutil
import sys
from unittest import mock

import pytest
from conftest import ALIKE, EARLY, ND, ROOT, RUN, command, load, points, refused, run

import text_nd
from trainparts import errors
from trainparts.runs import checkpointing


def broken(kind, error, part, after=0):
    """Returns the environment in which reading, opening or writing of such paths fails."""
    return {"STORAGE": f"{kind} {error} {part} {after}"}


# ------------------------------------------------------------------------------------ at the start


@pytest.mark.parametrize(
    ("kind", "error", "part", "line"),
    [
        ("open", "EIO", "checkpoint.pt", "one/checkpoint.pt cannot be loaded: Input/output"),
        ("open", "EACCES", ".lock", "/one/.lock: Permission denied"),
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
    assert "Resuming one/checkpoint.pt after 3 of" in typed(*words, status=143, env=EARLY)


@pytest.mark.parametrize("way", ALIKE)
def test_a_folder_that_cannot_be_listed(way, trained, typed, tmp_path):
    shutil.copytree(trained(way), tmp_path / "theRun")
    words = ["--output-dir", "theRun", "--epochs", "4"]
    for more in [], ["--evaluate"]:
        output = typed(*words, *more, way=way, status=1, env=broken("open", "EACCES", "theRun"))
        assert "theRun: " in refused(output) or "theRun/.lock: " in refused(output)
    output = typed(*words, way=way, status=143, env=EARLY)
    assert "Resuming theRun/checkpoint.pt after 3 of" in output


@pytest.mark.parametrize(
    ("words", "error", "status", "why"),
    [
        ("--resume file.pt", "EIO", 1, "Input/output error"),
        ("--resume loop -e", None, 2, "Too many levels of symbolic links"),
        ("--weights file.pt", "EMFILE", 2, "Too many open files"),
        ("--weights missing.pt -e", None, 2, "No such file or directory"),
    ],
)
def test_a_path_that_was_typed(words, error, status, why, one, typed):
    shutil.move(one / "checkpoint.pt", one.parent / "file.pt")
    (one.parent / "loop").symlink_to("loop")
    env = broken("open", error, "file.pt") if error else {}
    line = refused(typed(*words.split(), status=status, env=env))
    assert line.endswith(f" {words.split()[1]} cannot be loaded: {why}")
    assert not (one.parent / "runs").exists()


@pytest.mark.parametrize(
    ("kind", "error", "part", "status", "line"),
    [
        ("open", "EIO", "val/class7", 1, "val/class7: Input/output error"),
        ("open", "EACCES", "train/class7", 2, "train/class7: Permission denied; train/ and val/"),
    ],
)
def test_dir_that_does_not_answer(kind, error, part, status, line, typed):
    """torchvision's ImageFolder takes a class that cannot be listed for an empty one."""
    words = ["--output-dir", "run"]
    output = typed(*words, status=status, env=broken(kind, error, part))
    assert line in refused(output)
    assert ("hold <class>" in output) == (status == 2)
    if status == 1:
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
        ("lm", "open", "EACCES", "train.txt", 2),
    ],
)
def test_text_that_does_not_answer(task, kind, error, part, status, text, tmp_path):
    words = [*command("text_nd.py"), "--task", task, "-a", "bert" if task == "cola" else "gpt"]
    words += ["--no-accel", "--hidden-size", "16", "--layers", "1", "--heads", "2"]
    words += ["--max-length", "32", "-b", "4", text, "--output-dir", "run"]
    assert part in refused(run(words, tmp_path, status, broken(kind, error, part)))
    if status == 1:
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
        ("write", "EFBIG", "checkpoint.tmp", 1, 2, "checkpoint.pt cannot be written; the previous"),
        ("write", "EIO", "model_best.tmp", 0, 1, "model_best.pt cannot be written"),
        ("write", "EIO", "tfevents", 5, 1, "rank 0: a log or another file: Input/output error"),
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


def test_a_file_system_without_locks(typed, tmp_path):
    """Lustre without -o flock, NFS without its lock daemon. A killed run leaves `.lock`, and the
    same command resumes on any host, which would not know its process."""
    words, env = ["--output-dir", "run"], {"NO_FLOCK": "ENOLCK"}
    output = typed(*words, status=-9, env=env | {"SIGKILL_AT": "7"})  # in the second epoch
    assert output.count("/run cannot be locked (") == 1
    assert (tmp_path / "run" / ".lock").read_bytes() == b""
    output = typed(*words, env=env)
    assert output.count("/run cannot be locked (") == 1
    assert "Resuming run/checkpoint.pt after 1 of 3 epochs" in output
