"""Checkpoints of a run: written, found, refused and compared, by calling what does it."""

import argparse
import collections
import datetime
import errno
import math
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import damage, flip, load
from torch.utils.tensorboard import SummaryWriter

from trainparts import errors, safe_files
from trainparts.runs import checkpointing, event_log, run_folder

NEWEST, SECOND, THIRD, BEST = "checkpoint.pt", "checkpoint-1.pt", "checkpoint-2.pt", "model_best.pt"


def made(epoch=1, step=0, **more):
    """Returns a checkpoint of a run with two weights, SGD and no averages."""
    group = {"lr": 0.125, "momentum": 0.9, "params": [0]}
    checkpoint = {
        "epoch": epoch,
        "step": step,
        "partial": None,
        "global_batch": 16,
        "peak_lr": 0.125,
        "scaler": {},
        "seconds": 7.5,
        "args": {"optimizer": "sgd", "epochs": 3, "arch": "vit", "wd": 0.5},
        "arch": "vit",
        "classes": ["cat", "dog"],
        "state_dict": {"weight": torch.full((2,), float(epoch)), "count": torch.tensor(epoch)},
        "optimizer": {"state": {0: {"m": torch.ones(2)}}, "param_groups": [group]},
        "ema": None,
    }
    return checkpoint | more


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder, `run`, where the test is, which nothing is in."""
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    return Path("run")


@pytest.fixture
def trained(folder):
    """That folder with four checkpoints, of a run of three epochs, whose best is the second."""
    for epoch in 1, 2, 3:
        checkpointing.write_newest(folder, checkpoint=made(epoch))
        if epoch == 2:
            checkpointing.write_best(folder, checkpoint=made(epoch))
    return folder


def log_epochs(folder, *epochs):
    """Writes a log of these epochs."""
    with SummaryWriter(folder) as log:
        for epoch in epochs:
            event_log.log_epoch_values(log, {"Time/val": 2.0}, epoch)


def epochs_of(folder):
    """Returns {name: epoch} of the files in a folder, all of which can be loaded."""
    names = [path.name for path in folder.iterdir() if path.name != ".lock"]
    return {name: load(folder / name)["epoch"] for name in names}


def refusal(function, *of_it, kind=errors.BadInput, **more):
    """Returns the line that a call is refused with, of just this type."""
    with pytest.raises(kind) as refused:
        function(*of_it, **more)
    assert type(refused.value) is kind
    return str(refused.value)


# --------------------------------------------------------------------------------------- written


def test_the_last_three_are_kept_and_are_files_of_their_own(folder):
    expected = [{NEWEST: 1}, {NEWEST: 2, SECOND: 1}, {NEWEST: 3, SECOND: 2, THIRD: 1}]
    expected += [{NEWEST: 4, SECOND: 3, THIRD: 2}, {NEWEST: 5, SECOND: 4, THIRD: 3}]
    for epoch, names in enumerate(expected, 1):
        checkpointing.write_newest(folder, checkpoint=made(epoch))
        assert epochs_of(folder) == names
    assert len({path.stat().st_ino for path in folder.iterdir()}) == 3
    checkpointing.write_best(folder, checkpoint=made(2))
    assert epochs_of(folder) == {NEWEST: 5, SECOND: 4, THIRD: 3, BEST: 2}
    found, expected = load(folder / NEWEST), made(5)
    for name in checkpointing.TENSORS:
        torch.testing.assert_close(found.pop(name), expected.pop(name), rtol=0, atol=0)
    assert found == expected


def test_only_ends_of_epochs_are_kept_by_their_number(folder):
    """epoch-N.pt is where epoch N ends, not a step of the next."""
    kept = {}
    for epoch, step in (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (3, 0), (3, 3), (4, 0):
        checkpointing.write_newest(folder, checkpoint=made(epoch, step), keep_every=2)
        if step == 0 and epoch in (2, 4):
            kept[f"epoch-{epoch}.pt"] = (epoch, 0)
        found = {path.name: load(path) for path in folder.glob("epoch-*")}
        assert {name: (each["epoch"], each["step"]) for name, each in found.items()} == kept
    checkpointing.write_newest(folder, checkpoint=made(6))
    assert len([*folder.glob("epoch-*")]) == 2, "off"


@pytest.mark.parametrize("values", [[3e38, 3e38], [-3e38, -3e38, 1.0], [2.0**127] * 4])
def test_finite_weights_are_saved_whose_sum_is_not_finite(values, folder):
    state = {"weight": torch.tensor(values), "steps": torch.tensor(2**60)}
    checkpointing.write_newest(folder, checkpoint=made(state_dict=state))
    assert load(folder / NEWEST)["state_dict"]["weight"].tolist() == torch.tensor(values).tolist()


@pytest.mark.parametrize("name", ["state_dict", "ema", "optimizer"])
@pytest.mark.parametrize("values", [[1, math.inf], [math.nan], [3e38, -math.inf, 3e38]])
def test_weights_that_are_not_finite_leave_what_was_there(name, values, trained):
    before = epochs_of(trained)
    for of_name, where in (
        ({"state": {0: {"m": torch.tensor(values)}}}, "state.0.m"),
        ([{}, ("sgd", {"lr": torch.tensor(values)})], "1.1.lr"),
    ):
        bad = made(4, **{name: of_name})
        line = f"{name}.{where} of the checkpoint is not finite: lower the learning rate; old "
        for write, more in (
            (checkpointing.write_newest, {"keep_every": 1}),
            (checkpointing.write_best, {}),
        ):
            line_of_it = refusal(write, trained, checkpoint=bad, **more)
            assert line_of_it == f"{line}checkpoints are intact"
    assert epochs_of(trained) == before


def module_of_lists():
    """Returns a state dict, whose OrderedDict has an attribute with the versions of modules."""
    return torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2)).state_dict()


OBJECTS = {
    **{"numbers": (1, 2**80, 1.5, 2j, True, math.nan), "text": ["a\nb", b"b", bytearray(b"b")]},
    **{"None": None, "a set": {1, 2}, "a Namespace": argparse.Namespace(lr=[0.5])},
    **{"counts": collections.Counter("ab"), "state dict": module_of_lists()},
    **{"of torch": [torch.float16, torch.device("cpu"), torch.strided, torch.Size([2])]},
    **{
        "tensors": [
            torch.ones(2),
            torch.nn.Parameter(torch.ones(1)),
        ]
    },
    **{"of NumPy": [np.float64(0.5), np.float32(0.5)], "path": Path("a"), "array": np.ones(2)},
    **{"integer of NumPy": np.int64(1), "text of NumPy": np.str_("a"), "signal": signal.SIGTERM},
    **{"time": datetime.timedelta(1), "range": range(3), "deque": collections.deque([1])},
    **{"defaultdict": collections.defaultdict(list), "frozen": frozenset([1]), "function": len},
    **{"subclass": torch.ones(1).as_subclass(type("Mine", (torch.Tensor,), {})), "key": {(): 1}},
    **{"path as a key": {Path("a"): 1}, "deep": [{"of": (argparse.Namespace(at=Path("a")),)}]},
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_what_could_not_be_read_is_not_written(kind, trained):
    """And all that can be is: compared with load_file() of what torch.save() writes."""
    checkpoint, before = made(4, mine={"odd": OBJECTS[kind]}), epochs_of(trained)
    try:
        torch.save(checkpoint, "by torch.pt")
        safe_files.load_file("by torch.pt")
    except Exception:
        for write in checkpointing.write_newest, checkpointing.write_best:
            line = refusal(write, trained, checkpoint=checkpoint)
            where = {"path as a key": "mine.odd.a", "deep": "mine.odd.0.of.0.at"}
            assert line.startswith(f"{where.get(kind, 'mine.odd')} of the checkpoint is of the cla")
            assert line.endswith("and dicts and lists of these; old checkpoints are intact")
        assert epochs_of(trained) == before
    else:
        checkpointing.write_newest(trained, checkpoint=checkpoint)
        checkpointing.write_best(trained, checkpoint=checkpoint)
        assert all(safe_files.load_file(trained / name)["epoch"] == 4 for name in (NEWEST, BEST))


def test_a_class_that_the_process_allows_is_written(folder):
    with torch.serialization.safe_globals([datetime.timedelta]):
        checkpointing.write_newest(folder, checkpoint={"time": datetime.timedelta(1)})
        _, saved = checkpointing.newest_checkpoint(folder)
    assert saved == {"time": datetime.timedelta(1)}


def test_a_checkpoint_that_is_no_dict_is_refused(folder):
    line = refusal(checkpointing.write_newest, folder, checkpoint=torch.nn.Linear(1, 1))
    assert line.startswith("the checkpoint is of the class torch.nn.modules.linear.Linear, which ")


@pytest.mark.parametrize("number", [None, errno.EPERM, errno.EIO])
def test_an_older_checkpoint_goes_only_for_a_link(number, folder, monkeypatch):
    """Which file systems, or other users' files, may refuse: the newest may be damaged."""
    names = [NEWEST, SECOND, THIRD]
    if number is not None:
        monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError(number, "refused")))
    for name in names:
        (folder / name).write_text(name)
    # Nothing takes the newest one's place.
    monkeypatch.setattr(safe_files, "write_atomically", mock.Mock())
    for _ in range(2):
        checkpointing.write_newest(folder, checkpoint=made())
    held = [(folder / name).read_text() for name in names]
    assert held == (names if number else [NEWEST] * 3)
    assert len([*folder.iterdir()]) == 3


CALLS = "link replace open fsync unlink".split()


def killed_at(call, folder):
    """Writes the fourth checkpoint, in this process, which ends at so many calls of the system."""
    count = 0

    def counted(function):
        def instead(*of_it, **more):
            nonlocal count
            count += 1
            if count == call:
                os._exit(9)
            return function(*of_it, **more)

        return instead

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    checkpointing.write_newest(folder, checkpoint=made(4), keep_every=1)
    os._exit(0)


def test_a_kill_at_any_time_leaves_the_newest_intact_by_its_name(trained):
    """And two older ones; the next save mends all."""
    fork, call, ended = multiprocessing.get_context("fork"), 0, 9
    while ended:
        call += 1
        one = Path(shutil.copytree(trained, f"killed-{call}"))
        process = fork.Process(target=killed_at, args=(call, one))
        process.start()
        process.join()
        ended = process.exitcode
        assert ended in (0, 9)
        found = {name: load(one / name)["epoch"] for name in (NEWEST, SECOND, THIRD)}
        assert found[NEWEST] in (3, 4) and found[NEWEST] >= found[SECOND] >= found[THIRD]
        assert {3, 2} <= {*found.values()}
        with mock.patch.object(errors, "print_line", side_effect=AssertionError):
            path, saved = checkpointing.newest_checkpoint(one, option="--output-dir")
        assert path.name == NEWEST and saved["epoch"] == found[NEWEST]
        checkpointing.write_newest(one, checkpoint=made(5))
        assert load(one / NEWEST)["epoch"] == 5 and not (one / "checkpoint-1.tmp").exists()
    assert call > 8


def test_what_cannot_be_written_leaves_what_was_there(trained, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=full))
    line = "run/{} cannot be written; the previous one is intact: No space left on device"
    for write, name in (checkpointing.write_newest, NEWEST), (checkpointing.write_best, BEST):
        epoch = load(trained / name)["epoch"]
        assert refusal(write, trained, checkpoint=made(4), kind=errors.Fault) == line.format(name)
        assert load(trained / name)["epoch"] == epoch


# ----------------------------------------------------------------------------------------- found


def test_the_newest_is_found(trained):
    path, saved = checkpointing.newest_checkpoint(trained, option="--resume")
    assert path == trained / NEWEST and saved["epoch"] == 3
    assert torch.equal(saved["state_dict"]["weight"], torch.full((2,), 3.0))


def test_an_empty_folder_has_no_checkpoint(folder):
    (folder / "notes.pt").touch()
    (folder / "epoch-x.pt").touch()
    assert checkpointing.newest_checkpoint(folder, option="--resume") is None


@pytest.mark.parametrize(
    ("files", "newest"),
    [
        ({SECOND: (2, 0), THIRD: (3, 0)}, SECOND),  # of one kind by name: clocks may change
        ({SECOND: (2, 0), BEST: (3, 0)}, BEST),
        ({SECOND: (2, 3), BEST: (2, 0)}, SECOND),
        ({SECOND: (2, 0), "epoch-2.pt": (2, 0), BEST: (1, 0)}, SECOND),
        ({"epoch-9.pt": (9, 0), "epoch-10.pt": (10, 0), "epoch-2.pt": (2, 0)}, "epoch-10.pt"),
        ({"epoch-9.pt": (9, 0), THIRD: (10, 1), BEST: (10, 0)}, THIRD),
        ({BEST: (2, 0)}, BEST),
        ({NEWEST: (1, 0), BEST: (2, 0), "epoch-3.pt": (3, 0)}, NEWEST),  # the others are older
    ],
)
def test_the_newest_of_what_is_left_is_found(files, newest, folder):
    for name, (epoch, step) in files.items():
        torch.save(made(epoch, step), folder / name)
    path, saved = checkpointing.newest_checkpoint(folder, option="--resume")
    assert (path.name, saved["epoch"], saved["step"]) == (newest, *files[newest])


def test_a_loop_of_one_s_own_says_what_its_checkpoints_need(folder, caplog):
    """It may count no epochs; the newest by name is taken, of those that have the names."""
    for step in 1, 2, 3:
        checkpointing.write_newest(folder, checkpoint={"step": step, "w": torch.ones(step)})
    needs = {"step", "w"}
    path, saved = checkpointing.newest_checkpoint(folder, needs=needs)
    assert (path, saved["step"], len(saved["w"])) == (folder / NEWEST, 3, 3)
    torch.save({"step": 9}, folder / NEWEST)
    path, saved = checkpointing.newest_checkpoint(folder, needs=needs)
    assert (path, saved["step"]) == (folder / SECOND, 2)
    lacks = "run/checkpoint.pt is not a checkpoint of this program: it lacks w"
    assert caplog.messages == [f"run skips {lacks}"]


def test_a_checkpoint_needs_no_name_that_nobody_asks_for(folder, caplog):
    """The folder may be text."""
    checkpointing.write_newest("run", checkpoint={"w": 1})
    checkpointing.write_best("run", checkpoint={"w": 2})
    assert checkpointing.newest_checkpoint("run") == (folder / NEWEST, {"w": 1})
    torch.save([1], folder / NEWEST)
    assert checkpointing.newest_checkpoint("run") == (folder / BEST, {"w": 2})
    line = "run skips run/checkpoint.pt is not a checkpoint of this program: it is no dict"
    assert caplog.messages == [line]


def test_damaged_ones_are_skipped_with_a_line_each(trained, caplog):
    damage(trained / NEWEST, 100)
    damage(trained / SECOND, flip(500))
    path, saved = checkpointing.newest_checkpoint(trained, option="--output-dir")
    assert (path.name, saved["epoch"]) == (BEST, 2), "which is newer than checkpoint-2.pt"
    first, second = caplog.messages
    assert first.startswith("--output-dir run skips run/checkpoint.pt cannot be loaded: damaged")
    assert second.startswith("--output-dir run skips run/checkpoint-1.pt cannot be loaded: dama")


def test_no_run_begins_where_none_is_intact(trained):
    (trained / "epoch-2.pt").touch()
    (trained / "epoch-1.pt").touch()
    for path in trained.glob("*.pt"):
        damage(path, b"PK")
    line = "--resume run: none of its 6 checkpoints is intact"
    assert refusal(checkpointing.newest_checkpoint, trained, option="--resume") == line


@pytest.mark.parametrize("name", [NEWEST, SECOND])
@pytest.mark.parametrize(
    ("target", "why"),
    [("gone.pt", "No such file or directory"), ("/proc/self/mem", "Input/output error")],
)
def test_a_disk_that_does_not_answer_is_no_damage(name, target, why, trained):
    """No older one is taken, though the newest may be damaged."""
    damage(trained / NEWEST, b"damaged")
    damage(trained / name, None)
    (trained / name).symlink_to(target)
    line = f"run/{name} cannot be loaded: {why}"
    found = refusal(checkpointing.newest_checkpoint, trained, option="--resume", kind=errors.Fault)
    assert found == line


@pytest.mark.parametrize("number", ["EMFILE", "ENOMEM"])
def test_a_limit_of_the_system_is_no_damage(number, trained, monkeypatch):
    error = OSError(getattr(errno, number), "refused", "run/checkpoint.pt")
    monkeypatch.setattr(Path, "read_bytes", mock.Mock(side_effect=error))
    line = "run/checkpoint.pt cannot be loaded: refused"
    with pytest.raises(errors.BadInput, match=f"^{line}$"):
        checkpointing.newest_checkpoint(trained, option="--output-dir")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory: 9 bytes")])
def test_too_little_memory_is_no_damage(error, trained, monkeypatch):
    monkeypatch.setattr(torch, "load", mock.Mock(side_effect=error))
    with pytest.raises(errors.BadInput, match=r"^run/checkpoint.pt cannot be loaded: no memory fo"):
        checkpointing.newest_checkpoint(trained, option="--output-dir")


def test_no_access_in_a_run_s_folder_is_no_mistake_of_its_user(trained, monkeypatch):
    """As a user and as root, who has access."""
    error = OSError(errno.EACCES, "Permission denied", "run/checkpoint.pt")
    monkeypatch.setattr(Path, "read_bytes", mock.Mock(side_effect=error))
    line = "run/checkpoint.pt cannot be loaded: Permission denied"
    found = refusal(
        checkpointing.newest_checkpoint, trained, option="--output-dir", kind=errors.Fault
    )
    assert found == line
    assert refusal(checkpointing.read_checkpoint, trained / NEWEST) == line, "which was typed"


@pytest.mark.parametrize(
    ("name", "number", "kind", "why"),
    [
        ("run", "EIO", errors.Fault, "Input/output error"),
        ("run", "EACCES", errors.Fault, "Permission denied"),
        ("run", "EMFILE", errors.BadInput, "Too many open files"),
        ("gone", None, errors.BadInput, "No such file or directory"),
        ("file", None, errors.BadInput, "Not a directory"),
        ("loop", None, errors.BadInput, "Too many levels of symbolic links"),
        ("link", None, errors.Fault, "No such file or directory"),  # of a disk
        ("a\0b", None, errors.BadInput, "embedded null byte"),
    ],
)
def test_a_folder_that_cannot_be_listed_is_not_empty(name, number, kind, why, trained, monkeypatch):
    Path("file").touch()
    Path("loop").symlink_to("loop")
    Path("link").symlink_to("disk")
    if number:
        error = OSError(getattr(errno, number), os.strerror(getattr(errno, number)), name)
        monkeypatch.setattr(os, "listdir", mock.Mock(side_effect=error))
    line = errors.printable(f"--output-dir {name}: {why}")
    found = refusal(checkpointing.newest_checkpoint, Path(name), option="--output-dir", kind=kind)
    assert found == line


@pytest.mark.parametrize("lacks", sorted(checkpointing.METADATA | checkpointing.TENSORS))
def test_a_file_without_all_that_a_run_needs_is_no_checkpoint(lacks, folder):
    torch.save({name: each for name, each in made().items() if name != lacks}, folder / NEWEST)
    line = "run/checkpoint.pt is not a checkpoint of these scripts; --weights loads those of other"
    with pytest.raises(errors.Damaged, match=f"^{line} projects$"):
        checkpointing.read_checkpoint(folder / NEWEST)


def test_what_is_no_dict_is_no_checkpoint(folder):
    torch.save([made()], folder / NEWEST)
    with pytest.raises(errors.Damaged, match="is not a checkpoint of these scripts"):
        checkpointing.read_checkpoint(folder / NEWEST)


# ------------------------------------------------------------------- --output-dir and --resume


def find(output_dir=None, resume=None, evaluate=False, start_epoch=None):
    """Returns (path, epoch, whether it is of the run in --output-dir) as text, or None."""
    found = checkpointing.find_checkpoint(output_dir, resume, evaluate, start_epoch)
    return found and (str(found[0]), found[1]["epoch"], found[2])


def test_without_options_or_checkpoints_a_run_begins(folder):
    assert find() is None
    assert find("run") is None and find("new") is None
    assert (folder / ".lock").exists() and Path("new/.lock").exists()
    log_epochs(folder)
    with SummaryWriter(folder) as log:
        log.add_scalar("Loss/step", 1, 0)
    assert find("run") is None, "which was killed in its first epoch"


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"output_dir": "run"}, ("run/checkpoint.pt", 3, True)),
        ({"output_dir": "run", "resume": "older"}, ("run/checkpoint.pt", 3, True)),
        ({"output_dir": "run", "resume": "gone.pt"}, ("run/checkpoint.pt", 3, True)),
        ({"output_dir": "new", "resume": "older"}, ("older/checkpoint-1.pt", 2, False)),
        ({"resume": "older"}, ("older/checkpoint-1.pt", 2, False)),
        ({"resume": "run/model_best.pt"}, ("run/model_best.pt", 2, False)),
        ({"evaluate": True, "output_dir": "run"}, ("run/checkpoint.pt", 3, False)),
        (
            {"evaluate": True, "output_dir": "run", "resume": "older"},
            ("older/checkpoint-1.pt", 2, False),
        ),
        (
            {"evaluate": True, "output_dir": "run", "resume": "run/checkpoint-2.pt"},
            ("run/checkpoint-2.pt", 1, False),
        ),
        (
            {"evaluate": True, "output_dir": "run", "start_epoch": 1},
            ("run/checkpoint.pt", 3, False),
        ),
        ({"evaluate": True}, None),
    ],
)
def test_which_checkpoint_counts(options, found, trained):
    """A run's own before --resume, except in evaluation."""
    shutil.copytree(trained, "older")
    Path("older", NEWEST).unlink()
    assert find(**options) == found


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"output_dir": "empty", "evaluate": True}, "--output-dir empty has no checkpoint"),
        ({"output_dir": "gone", "evaluate": True}, "--output-dir gone: No such file or directory"),
        ({"resume": "empty"}, "--resume empty has no checkpoint"),
        ({"resume": "empty", "evaluate": True}, "--resume empty has no checkpoint"),
        ({"resume": "gone.pt"}, "gone.pt cannot be loaded: No such file or directory"),
        ({"resume": "a\0b"}, r"a\x00b cannot be loaded: embedded null byte"),
        ({"output_dir": "log"}, "--output-dir log has a log of 2 epochs, and no checkpoint: "),
        (
            {"output_dir": "log", "resume": "run"},
            "--output-dir log has a log of 2 epochs, and no checkpoint: ",
        ),
        (
            {"output_dir": "other"},
            "--output-dir other has the log of something else, and no checkpoint: ",
        ),
    ],
)
def test_what_has_no_checkpoint_is_refused(options, line, trained):
    """A log of finished epochs is somebody's: no run begins over it."""
    Path("empty").mkdir()
    log_epochs("log", 1, 2)
    with SummaryWriter("other") as log:
        log.add_scalar("mine", 1, 1)
    before = {*Path().rglob("*")} | {Path(options.get("output_dir", "empty")) / ".lock"}
    advice = "move it back, or give another --output-dir" if line.endswith(": ") else ""
    assert refusal(find, **options) == line + advice
    assert {*Path().rglob("*")} <= before


def test_a_path_that_cannot_be_looked_at_is_not_a_missing_one(folder, monkeypatch):
    error = OSError(errno.EIO, "Input/output error", "x.pt")
    monkeypatch.setattr(os, "stat", mock.Mock(side_effect=error))
    assert refusal(find, resume="x.pt", kind=errors.Fault) == "x.pt: Input/output error"


def test_a_folder_is_locked_before_it_is_read(trained, monkeypatch):
    """The run that holds it may be saving."""
    order = mock.Mock()
    monkeypatch.setattr(run_folder, "open_folder", order.lock)
    monkeypatch.setattr(checkpointing, "newest_checkpoint", order.read)
    order.read.return_value = None
    find("run")
    assert [call[0] for call in order.mock_calls] == ["lock", "read"]
    assert order.lock.call_args == mock.call(Path("run"), option="--output-dir")


def test_evaluation_makes_and_locks_nothing(trained):
    before = {*Path().rglob("*")}
    with mock.patch.object(run_folder, "open_folder", side_effect=AssertionError):
        assert find("run", evaluate=True) and find("run", "run", evaluate=True)
    assert {*Path().rglob("*")} == before


# ------------------------------------------------------------------------------------ going back

BACK = "to go back, give another --output-dir, and an older checkpoint as --resume"


@pytest.mark.parametrize("resume", ["run/checkpoint-1.pt", "./run/model_best.pt", "{}/run/x.pt"])
def test_an_older_state_of_the_run_needs_another_folder(resume, trained):
    resume = resume.format(Path().resolve())
    line = f"--resume {Path(resume)}: run resumes from checkpoint.pt; {BACK}"
    assert refusal(find, "run", resume) == line


@pytest.mark.parametrize("newest", [NEWEST, SECOND])
def test_the_newest_state_may_be_typed(newest, trained, capsys):
    """As the file, by another name, or as the folder: nothing is ignored."""
    if newest != NEWEST:
        damage(trained / NEWEST, b"damaged")
        damage(trained / BEST, None)
    Path("run/latest.pt").symlink_to(newest)
    Path("link").symlink_to("run")
    for resume in "run/checkpoint.pt", f"run/{newest}", "run/latest.pt", "run", "link", "./run/":
        assert find("run", resume) == (f"run/{newest}", 3 - (newest == SECOND), True)
    assert "ignored" not in capsys.readouterr().out


def test_what_began_the_run_may_be_typed_again(folder, capsys):
    """A file of its folder by the name that the run has noted, or a folder in it."""
    args = made()["args"] | {"resume": "run/start.pt", "start_epoch": 1}
    checkpointing.write_newest(folder, checkpoint=made(2, args=args))
    assert find("run", "run/start.pt", start_epoch=1) == ("run/checkpoint.pt", 2, True)
    assert not capsys.readouterr().out
    Path("run/first").mkdir()
    assert find("run", "run/first") == ("run/checkpoint.pt", 2, True)
    line = "--resume run/first is ignored: run has checkpoints of its own\n"
    assert capsys.readouterr().out == line
    line = f"--resume run/other.pt: run resumes from checkpoint.pt; {BACK}"
    assert refusal(find, "run", "run/other.pt") == line


@pytest.mark.parametrize("resume", ["other", "other/checkpoint.pt", "gone.pt"])
def test_another_run_s_is_ignored_with_a_line(resume, trained, capsys):
    shutil.copytree(trained, "other")
    assert find("run", resume) == ("run/checkpoint.pt", 3, True)
    line = f"--resume {resume} is ignored: run has checkpoints of its own\n"
    assert capsys.readouterr().out == line


@pytest.mark.parametrize(("noted", "typed"), [(None, 1), (None, 0), (1, 2), (2, 0)])
def test_another_start_epoch_is_going_back(noted, typed, folder):
    args = made()["args"] | ({} if noted is None else {"start_epoch": noted})
    checkpointing.write_newest(folder, checkpoint=made(3, args=args))
    line = f"--start-epoch {typed}: run/checkpoint.pt is of epoch 3; {BACK}"
    assert refusal(find, "run", start_epoch=typed) == line
    for same in None, noted:
        assert find("run", start_epoch=same) == ("run/checkpoint.pt", 3, True)


# --------------------------------------------------------------------------------------- loaded

FITS = ["arch", "model_options", "classes"]


def loaded(must_fit=FITS, **options):
    """Returns load_checkpoint() of `run`, of a run with SGD and no averages."""
    usual = {"output_dir": None, "resume": "run", "evaluate": False, "start_epoch": None}
    usual |= {"optimizer": "sgd", "averages": False}
    return checkpointing.load_checkpoint(must_fit, **usual | options)


def test_without_a_checkpoint_nothing_is_loaded(folder):
    assert loaded(resume=None) == (None, None)


def test_metadata_and_tensors_are_apart(trained):
    metadata, tensors = loaded()
    saved = made(3)
    expected = {name: saved[name] for name in saved.keys() - checkpointing.TENSORS}
    expected |= {"path": "run/checkpoint.pt", "in_place": False}
    assert metadata == expected | {"group": {"lr": 0.125, "step": 0.0}}
    torch.testing.assert_close(tensors, {name: saved[name] for name in checkpointing.TENSORS})


@pytest.mark.parametrize("logged", [[], [1, 2, 3]])
def test_a_run_that_goes_on_in_its_folder_knows_its_log(logged, trained):
    if logged:
        log_epochs(trained, *logged)
        with SummaryWriter(trained, filename_suffix="end") as log:
            log.add_text("end", '```json\n{"epochs": 3}\n```')
    metadata, _ = loaded(output_dir="run", resume=None)
    assert metadata["in_place"] is True
    assert (metadata["logged"], metadata["end"]) == (logged, {"epochs": 3} if logged else {})
    assert "logged" not in loaded()[0], "another run's"


@pytest.mark.parametrize(
    ("groups", "rate", "steps"),
    [
        ([{"lr": 0.25}], 0.25, 0.0),
        ([{"lr": 0.1}, {"lr": 0.3}, {"lr": 0.2}], 0.3, 0.0),
        ([{"lr": 0.125, "lr_scale": 0.5, "step": 7}, {"lr": 0.2, "lr_scale": 1.0}], 0.25, 7.0),
        ([{"lr": 0.5, "lr_scale": 0, "step": torch.tensor(9.0)}], 0.5, 9.0),
        ([{"params": []}], 0.0, 0.0),
    ],
)
def test_the_rate_and_the_steps_of_the_file_are_kept(groups, rate, steps, folder):
    """Of layers with a rate of their own share, the whole one."""
    optimizer = {"state": {}, "param_groups": groups}
    checkpointing.write_newest(folder, checkpoint=made(optimizer=optimizer))
    group = loaded()[0]["group"]
    assert group == {"lr": pytest.approx(rate), "step": steps}
    assert {type(each) for each in group.values()} == {float}


@pytest.mark.parametrize(
    ("options", "kept"),
    [({}, True), ({"optimizer": "adamw"}, False), ({"evaluate": True}, False)],
)
def test_another_optimizer_takes_no_moments_and_evaluation_none(options, kept, trained):
    metadata, tensors = loaded(**options)
    expected = made(3)["optimizer"] if kept else {"state": {}, "param_groups": [{}]}
    torch.testing.assert_close(tensors["optimizer"], expected)
    assert metadata["group"]["lr"] == 0.125


def weights(number, dtype=torch.float32):
    """Returns a state of a model, all of whose numbers are this one."""
    return {"weight": torch.full((2,), number, dtype=dtype), "count": torch.tensor(int(number))}


@pytest.mark.parametrize(
    ("has", "averages", "evaluate", "expected"),
    [
        ("nothing", False, False, (1, None)),
        ("nothing", True, False, (1, 1)),  # averages begin at the weights
        ("nothing", False, True, (1, None)),
        ("averages", False, False, (1, None)),
        ("averages", True, False, (1, 2)),
        ("averages", False, True, (2, None)),  # as the run itself validates
        ("averages", True, True, (2, 2)),
        ("best", False, False, (2, None)),
        ("best", True, False, (1, 2)),  # what was trained goes on
        ("best", False, True, (2, None)),
        ("best", True, True, (2, 2)),
    ],
)
def test_which_weights_are_taken(has, averages, evaluate, expected, folder):
    """The best of a run with averages has them as its weights, beside what was trained."""
    one, two = weights(1.0), weights(2.0)
    kinds = {
        "nothing": {"state_dict": one, "ema": None},
        "averages": {"state_dict": one, "ema": two},
        "best": {"state_dict": two, "ema": two, "trained": one},
    }
    checkpointing.write_newest(folder, checkpoint=made(**kinds[has]))
    metadata, tensors = loaded(averages=averages, evaluate=evaluate)
    found = [tensors[name] and tensors[name]["weight"].unique() for name in ("state_dict", "ema")]
    assert tuple(each if each is None else each.item() for each in found) == expected
    assert "trained" not in metadata and tensors.keys() == checkpointing.TENSORS


def test_averages_that_are_evaluated_have_the_types_of_the_weights(folder):
    """Counters are averaged as other numbers are, and stay whole."""
    averages = {"weight": torch.tensor([1.5, 2.5]), "count": torch.tensor(6.75)}
    checkpointing.write_newest(folder, checkpoint=made(ema=averages))
    state = loaded(evaluate=True)[1]["state_dict"]
    assert state["weight"].tolist() == [1.5, 2.5] and state["weight"].dtype == torch.float32
    assert state["count"].item() == 6 and state["count"].dtype == torch.int64


@pytest.mark.parametrize(
    ("must_fit", "fits"),
    [
        (FITS, True),
        (["arch", "model_options"], True),
        (["arch", "model_options", "vocabulary"], False),
        (["arch", "vocabulary", "classes"], True),
        ([], True),
    ],
)
def test_a_checkpoint_of_another_task_is_told_apart(must_fit, fits, trained):
    if fits:
        assert loaded(must_fit)[0]["epoch"] == 3
    else:
        line = "run/checkpoint.pt is a checkpoint of scripts for another task"
        assert refusal(loaded, must_fit) == line


# ---------------------------------------------------------------------------- options and model


def check(saved=None, fit=("arch",), own=None, typed=None, **more):
    """Returns check_resumed() of a run with the options of a checkpoint, and more."""
    metadata = made() | {"path": "my run/checkpoint.pt", "in_place": True} | (saved or {})
    of_run = {"global_batch": 16, "peak": 0.125, "base_batch": None} | more
    options = {"optimizer": "sgd", "arch": "vit", "wd": 0.5} | (own or {})
    return checkpointing.check_resumed(metadata, fit, options=options, typed=typed or {}, **of_run)


FROM_THIS = (
    "; give another --output-dir, with --resume 'my run' to begin there from this one, or "
    "--weights 'my run/checkpoint.pt' from its weights alone"
)
ALONE = "; give another --output-dir"
HALF = {"param_dtype": "half"}  # an option that this script lacks


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"own": {"wd": 0.25}}, "wd (0.5, here 0.25)" + FROM_THIS),
        ({"own": {"arch": "resnet"}}, "arch (vit, here resnet)" + ALONE),
        ({"global_batch": 32}, "global-batch (16, here 32)" + FROM_THIS),
        ({"peak": 0.25}, "peak learning rate (0.125, here 0.25)" + FROM_THIS),
        (
            {"own": {"wd": 1}, "global_batch": 32, "peak": 0.5},
            "wd (0.5, here 1), global-batch (16, here 32), "
            "peak learning rate (0.125, here 0.5)" + FROM_THIS,
        ),
        (
            {"own": {"norm_wd": 0.0}, "typed": {"norm_wd": 0.0}},
            "norm-wd (None, here 0.0)" + FROM_THIS,
        ),
        (
            {"saved": {"not_default": HALF, "args": made()["args"] | HALF}},
            "param-dtype (half, here None)" + FROM_THIS,
        ),
        (
            {"peak": 0.25, "base_batch": 8},
            "peak learning rate (0.125, here 0.25), which --base-lr 0.0625 keeps" + FROM_THIS,
        ),
        (
            {"own": {"wd": 1}, "base_batch": 8},
            "wd (0.5, here 1)" + FROM_THIS,
        ),
    ],
)
def test_other_options_are_refused_by_name(options, named):
    line = f"--output-dir 'my run' was trained with other options: {named}"
    assert refusal(check, **options) == line


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"peak": 0.125 * (1 + 1e-12)},  # however it was typed
        {"own": {"norm_wd": 0.0}},  # at its default, which the other script's run has, too
        {"saved": {"args": made()["args"] | HALF}},
        {"saved": {"not_default": {"wd": 0.5}}},
    ],
)
def test_the_same_options_are_not_refused(options):
    assert check(**options) == ""


def test_another_run_s_options_are_returned():
    found = check({"in_place": False}, own={"wd": 1, "arch": "x"}, peak=0.25, base_batch=8)
    assert found == "arch (vit, here x), wd (0.5, here 1), peak learning rate (0.125, here 0.25)"


def test_differences_are_those_of_both_in_this_one_s_order():
    theirs = {"lr": 1, "only_theirs": 2, "batch_size": 3, "same": 4, "none": None}
    mine = {"batch_size": 5, "lr": 1.5, "only_mine": 6, "same": 4.0, "none": 0}
    found = checkpointing.list_differences(theirs, mine)
    assert found == "batch-size (3, here 5), lr (1, here 1.5), none (None, here 0)"
    assert checkpointing.list_differences({}, mine) == ""
    long = checkpointing.list_differences({"x": "a" * 600}, {"x": "b"})
    assert long == "x (" + "a" * 497


@pytest.mark.parametrize(
    ("saved", "about", "line"),
    [
        ({}, {}, None),
        ({}, {"classes": ["cat"]}, "classes (['cat', 'dog'], here ['cat'])"),
        ({}, {"classes": []}, None),  # what is empty is not compared
        ({"classes": None}, {}, "classes (None, here ['cat', 'dog'])"),
        ({}, {"arch": "resnet"}, "arch (vit, here resnet): type -a vit"),
        (
            {},
            {"arch": "resnet", "classes": ["x"]},
            "arch (vit, here resnet), classes (['cat', 'dog'], here ['x']): type -a vit",
        ),
        ({}, {"seed": 7}, None),
    ],
)
def test_a_model_that_differs_is_refused_by_name(saved, about, line):
    metadata = made() | {"path": "run/checkpoint.pt"} | saved
    mine = {"arch": "vit", "classes": ["cat", "dog"], "model_options": {}} | about
    if line is None:
        checkpointing.check_model(metadata, FITS, mine)
    else:
        found = refusal(checkpointing.check_model, metadata, FITS, mine)
        assert found == f"run/checkpoint.pt differs in {line}"


@pytest.mark.parametrize(
    ("step", "before", "batch", "at"),
    [
        (60, 64, 64, (2, 60)),
        (60, 64, 128, (2, 30)),
        (61, 64, 128, (2, 31)),  # no image of the epoch is trained again
        (1, 64, 96, (2, 1)),
        (60, 64, 32, (2, 100)),  # --steps-per-epoch has ended it
        (0, 64, 32, (1, 100)),  # it was saved before that epoch's validation
    ],
)
def test_a_run_resumes_at_the_images_that_follow(step, before, batch, at):
    metadata = {"epoch": 2, "step": step, "global_batch": before}
    assert checkpointing.where_to_resume(metadata, batch, 100) == at


@pytest.mark.parametrize(("done", "left"), [(2.9, True), (3, False), (3.5, False), (0, True)])
def test_a_run_that_begins_needs_an_epoch_to_train(done, left):
    metadata = {"path": "my run/checkpoint.pt", "epoch": 5}
    if left:
        checkpointing.check_epochs_left(metadata, 3, done)
    else:
        line = "nothing is left to train: my run/checkpoint.pt has 5 of --epochs 3; "
        line += "raise --epochs, or --weights 'my run/checkpoint.pt' starts from its weights"
        assert refusal(checkpointing.check_epochs_left, metadata, 3, done) == line


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.empty(2, device="meta"), "x of the checkpoint is on the meta device"),
        (torch.tensor([math.nan]).to(torch.float8_e4m3fn), "x of the checkpoint is not finite"),
        (torch.ones(2).to(torch.float8_e4m3fn), None),
    ],
)
def test_tensors_of_odd_kinds(value, why):
    if why is None:
        return checkpointing.check_checkpoint({"x": value})
    with pytest.raises(errors.BadInput, match=why):
        checkpointing.check_checkpoint({"x": value})


def test_what_a_tensor_has_as_attributes_is_saved_with_it(tmp_path):
    weight = torch.nn.Parameter(torch.ones(2))
    weight.of = tmp_path
    with pytest.raises(errors.BadInput, match="x.of of the checkpoint is of the class pathlib"):
        checkpointing.check_checkpoint({"x": weight})
