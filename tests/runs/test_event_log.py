"""The log of a run: what is in it, as TensorBoard reads it, and what is read back."""

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from conftest import ROOT, events, points, record
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
from tensorboard.plugins.custom_scalar import layout_pb2
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard import summary as torch_summary

from trainparts import errors, package_digest
from trainparts.runs import event_log

# ---------------------------------------------------------------------------------------- begun


@pytest.fixture(autouse=True)
def hook_of_before(monkeypatch):
    """Keeps what start_log() sets in the process to the test."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


def test_what_a_killed_run_left_is_removed_and_nothing_else(tmp_path):
    left = "checkpoint.tmp checkpoint-1.tmp model_best.tmp epoch-12.tmp PREEMPTED".split()
    own = "notes.tmp my-checkpoint.tmp checkpoint.pt epoch-12.pt model_best.pt PREEMPTED.txt"
    for name in *left, *own.split():
        (tmp_path / name).touch()
    event_log.start_log(tmp_path, 0).close()
    there = {path.name for path in tmp_path.iterdir() if "tfevents" not in path.name}
    assert there == {*own.split()}


def test_what_is_logged_again_replaces_what_was_logged_from_there_on(tmp_path, monkeypatch):
    with event_log.start_log(tmp_path, 0) as log:
        for step in range(6):
            log.add_scalar("Loss/step", step, step)
    monkeypatch.setattr(event_log, "wait_for_clock", wait := mock.Mock())
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 2)
    with event_log.start_log(tmp_path, 3) as log:
        log.add_scalar("Loss/step", 30, 3)
    wait.assert_called_once_with(tmp_path)
    assert points(tmp_path)["Loss/step"] == [(0, 0), (1, 1), (2, 2), (3, 30)]


@pytest.mark.parametrize(
    ("folder", "kind", "line"),
    [
        (b"gone", errors.Fault, "--output-dir gone: "),
        (b"file", errors.Fault, "--output-dir file: "),
        (b"x\xff", errors.BadInput, r"--output-dir x\udcff: "),
    ],
)
def test_a_log_that_cannot_be_begun_names_the_folder(folder, kind, line, tmp_path, monkeypatch):
    """The last is a name that TensorBoard cannot write."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    folder = Path(os.fsdecode(folder))
    if kind is errors.BadInput:
        folder.mkdir()
    error = OSError(5, "Input/output error")
    if str(folder) == "gone":
        monkeypatch.setattr(event_log, "SummaryWriter", mock.Mock(side_effect=error))
        line += "Input/output error"
    with pytest.raises(kind) as refused:
        event_log.start_log(folder, 0)
    assert str(refused.value).startswith(line)


def logs(folder, *seconds):
    """Makes files by the names that TensorBoard gives logs that begin at these seconds."""
    for each in seconds:
        (folder / f"events.out.tfevents.{each}.host.1.0").touch()


@pytest.mark.parametrize(
    ("now", "slept"),
    [(1_700_000_001.5, 0), (1_700_000_000.25, 0.75), (1_699_999_941.0, 60), (1_800_000_000.0, 0)],
)
def test_a_clock_that_is_behind_is_waited_for(now, slept, tmp_path, monkeypatch):
    """Until the second after the newest log's: what is logged later would be dropped."""
    logs(tmp_path, 1_600_000_000, 1_700_000_000, 1_650_000_000)
    monkeypatch.setattr(time, "sleep", sleep := mock.Mock())
    monkeypatch.setattr(time, "time", lambda: now)
    event_log.wait_for_clock(tmp_path)
    sleep.assert_called_once_with(slept)


def test_a_clock_of_another_day_is_not_waited_for(tmp_path, monkeypatch):
    logs(tmp_path, 1_700_000_000)
    monkeypatch.setattr(time, "sleep", None)
    line = f"^--output-dir {re.escape(str(tmp_path))} was started %d s from now: set this clock$"
    for behind in 61, 301:
        monkeypatch.setattr(time, "time", lambda behind=behind: 1_700_000_001 - behind)
        with pytest.raises(errors.Fault, match=line % behind):
            event_log.wait_for_clock(tmp_path)


def test_a_folder_without_logs_has_no_clock(tmp_path, monkeypatch):
    (tmp_path / "my.tfevents").touch()
    monkeypatch.setattr(time, "sleep", sleep := mock.Mock())
    event_log.wait_for_clock(tmp_path)
    sleep.assert_called_once_with(0)


class _AsyncWriterThread(threading.Thread):
    """By the name that TensorBoard gives the thread which writes."""


@pytest.mark.parametrize(
    ("thread", "shown"), [(_AsyncWriterThread, False), (threading.Thread, True)]
)
def test_only_the_writing_thread_ends_without_a_traceback(thread, shown, tmp_path, capsys):
    event_log.start_log(tmp_path, 0).close()

    def fail():
        raise OSError("disk")

    failing = thread(target=fail)
    failing.start()
    failing.join()
    assert ("OSError: disk" in capsys.readouterr().err) == shown


# ---------------------------------------------------------------------------------------- logged


def test_what_is_trained_is_in_the_log(tmp_path):
    """And TensorBoard's own plugin draws training and validation in one chart."""
    (tmp_path / "script.py").write_text("print('mine')\n")
    about = {"options": {"lr": 0.5}, "data": "/x", "classes": None}
    with SummaryWriter(tmp_path / "log") as log:
        event_log.log_program(log, about, str(tmp_path / "script.py"), ["Top1", "Loss"])
    assert record(tmp_path / "log", "about") == about
    (script,) = events(tmp_path / "log").Tensors("script/text_summary")
    (text,) = script.tensor_proto.string_val
    of_package = sorted((ROOT / "trainparts").rglob("*.py"))
    texts = ["print('mine')\n", *(path.read_text("utf-8") for path in of_package)]
    blocks = re.findall(r"```python\n(.*?)\n```(?:\n|\Z)", text.decode(), re.DOTALL)
    assert sorted(blocks) == sorted(texts) and blocks[0] == texts[0], "Python and no data"
    (chart,) = events(tmp_path / "log").Tensors("custom_scalars__config__")
    (group,) = layout_pb2.Layout.FromString(chart.tensor_proto.string_val[0]).category
    charts = {each.title: [*each.multiline.tag] for each in group.chart}
    assert group.title == "train and val"
    assert charts == {"Top1": ["Top1/train", "Top1/val"], "Loss": ["Loss/train", "Loss/val"]}


def test_a_kill_leaves_all_values_of_an_epoch_in_the_log_or_none(tmp_path):
    """Killed between two of them, a run would log the others twice."""
    values = {"Lr": 0.5, "Data/wait": 0.25, "Time/val": 2.0}
    with SummaryWriter(tmp_path) as log:
        for epoch in 1, 2:
            event_log.log_epoch_values(log, values, epoch)
            (path,) = tmp_path.glob("*tfevents*")
            (event,) = (each for each in EventFileLoader(str(path)).Load() if each.step == epoch)
            found = {each.tag: each.tensor.float_val[0] for each in event.summary.value}
            assert found == values and event_log.read_log(tmp_path)[0] == [1, 2][:epoch]
    whole = path.read_bytes()
    for end in 1, 20, 60:
        path.write_bytes(whole[:-end])
        epochs, _, tags = event_log.read_log(tmp_path)
        assert epochs == [1] and tags == values.keys()


# --------------------------------------------------------------------------------------- described


def describe(tmp_path, **more):
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad = False
    model.register_buffer("count", torch.zeros(100))
    of_run = {
        "options": {"lr": 0.5},
        "place": {"rank": 0, "ranks": 2},
        "sizes": {"global_batch": 16, "classes": [1], "half": 0.5, "flag": True, "steps": 7},
        "steps": 4,
        "source": "data/../demo",
        "metadata": None,
    }
    script, device = tmp_path / "script.py", torch.device("cpu")
    return event_log.describe(str(script), model, device, **of_run | more)


def test_what_is_needed_to_repeat_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train me.py", "-b", "16", "it's"])
    monkeypatch.chdir(tmp_path)
    about = describe(tmp_path)
    assert shlex.split(about["command"]) == [
        Path(sys.executable).name,
        "train me.py",
        "-b",
        "16",
        "it's",
    ]
    assert about["resumed"] is None and about["options"] == {"lr": 0.5}
    assert about["steps_per_epoch"] == 4
    assert about["gradient_bytes"] == 2 * 3 * 4, "of the weight that is trained"
    assert about["data"] == str(tmp_path / "demo")
    assert {name: about.get(name) for name in ("global_batch", "steps")} == {
        "global_batch": 16,
        "steps": 7,
    }
    assert not {"classes", "half", "flag"} & about.keys()
    assert about["place"] == {"rank": 0, "ranks": 2, "device": "cpu"}
    assert about["cores"] == os.cpu_count() and about["threads"] == torch.get_num_threads()
    assert about["torch"] == torch.__version__
    assert about["packages"]["pytest"] == pytest.__version__
    found = [package.metadata for package in importlib.metadata.distributions()]
    assert about["packages"] == {each["Name"]: each["Version"] for each in reversed(found)}
    assert about["trainparts"] == package_digest.IDENTITY
    assert json.loads(json.dumps(about)) == about


def test_a_run_that_resumes_says_from_where(tmp_path):
    metadata = {"epoch": 3, "step": 2, "seconds": 7.5, "path": "x", "args": {}}
    assert describe(tmp_path, metadata=metadata)["resumed"] == {
        "epoch": 3,
        "step": 2,
        "seconds": 7.5,
    }


def test_the_commit_is_that_of_the_script(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert describe(tmp_path)["commit"] == "", "which is in no repository"
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in ["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]:
        subprocess.run([*git, *words], check=True)
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    assert describe(tmp_path)["commit"] == head
    (tmp_path / "script.py").touch()
    subprocess.run([*git, "add", "script.py"], check=True)
    assert describe(tmp_path)["commit"] == f"{head}-dirty"
    monkeypatch.setenv("PATH", "")
    assert describe(tmp_path)["commit"] == "", "without git"


# --------------------------------------------------------------------------------------- read back


def test_the_log_of_a_run_is_read_back(tmp_path):
    with SummaryWriter(tmp_path) as log:
        event_log.log_program(log, {"lr": 1}, __file__, ["Top1"])
        log.add_scalar("Loss/step", 1, 0)
        assert event_log.read_log(tmp_path) == ([], {}, set()), "a run's first steps"
        for epoch in 1, 2:
            event_log.log_epoch_values(log, {"Time/val": 2.0, "Top1/val": 5.0}, epoch)
        log.add_text("end", '```json\n{"reason": "first"}\n```')
        log.add_text("end", '```json\n{"reason": "last", "epochs": 2}\n```')
        log.flush()
        log.add_scalar("mine", 1, 0)
    epochs, end, tags = event_log.read_log(tmp_path)
    assert epochs == [1, 2] and end == {"reason": "last", "epochs": 2}
    assert tags == {"Time/val", "Top1/val", "mine"}


def test_a_log_of_many_epochs_is_read_as_a_whole(tmp_path):
    """TensorBoard's default keeps a sample."""
    with SummaryWriter(tmp_path) as log:
        for epoch in range(1, 10_002):
            log.add_scalar("Time/val", 1.0, epoch)
    assert event_log.read_log(tmp_path)[0] == [*range(1, 10_002)]


def test_a_folder_without_a_log_has_nothing(tmp_path):
    (tmp_path / "notes.txt").touch()
    assert event_log.read_log(tmp_path) == ([], {}, set())


def test_a_folder_by_the_name_of_a_log_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("my_tfevents")
    with SummaryWriter(folder) as log:
        event_log.log_epoch_values(log, {"Time/val": 2.0}, 1)
    assert event_log.read_log(folder)[0] == [1]


ENDS = [b"42", b"[1]", b"null", b"", b"{", b"\xff", b'"end"', b"[" * 200_000, b"a text", None]


@pytest.mark.parametrize("content", ENDS, ids=[repr(each)[:12] for each in ENDS])
def test_an_end_that_is_another_program_s_is_none(content, tmp_path):
    """Of which a run that is resumed knows nothing."""
    with SummaryWriter(tmp_path) as log:
        summary = torch_summary.text("end", "")
        tensor = summary.value[0].tensor
        tensor.string_val[:] = [content] * (content is not None)
        tensor.tensor_shape.dim[0].size = len(tensor.string_val)
        log.file_writer.add_summary(summary, 0)
        event_log.log_epoch_values(log, {"Time/val": 2.0}, 1)
    assert event_log.read_log(tmp_path)[:2] == ([1], {})


@pytest.mark.parametrize(
    ("name", "target", "kind", "why"),
    [
        ("events.out.tfevents.1.a", "gone", errors.Fault, "{}/{}: No such file or directory"),
        ("events.out.tfevents.1.a", "/proc/self/mem", errors.Fault, "Input/output error"),
        ("notes", "gone", None, ""),
    ],
)
def test_a_log_that_cannot_be_read_is_not_absent(name, target, kind, why, tmp_path):
    """TensorBoard leaves out what it cannot look at: a run that ended would go on."""
    with SummaryWriter(tmp_path) as log:
        event_log.log_epoch_values(log, {"Time/val": 2.0}, 1)
    (tmp_path / name).symlink_to(target)
    if kind is None:
        assert event_log.read_log(tmp_path)[0] == [1]
        return
    line = f"the log in {tmp_path} cannot be read: {why.format(tmp_path, name)}"
    with pytest.raises(kind, match=f"^{re.escape(line)}$"):
        event_log.read_log(tmp_path)


def test_a_folder_that_is_missing_has_no_log_to_read(tmp_path):
    line = f"^the log in {re.escape(str(tmp_path))}/gone cannot be read: No such file or directory$"
    with pytest.raises(errors.Fault, match=line):
        event_log.read_log(tmp_path / "gone")


def test_a_name_that_is_no_text_is_the_user_s_to_change(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/x\xff"))
    folder.mkdir()
    (folder / "events.out.tfevents.1.a").touch()
    with pytest.raises(errors.BadInput) as refused:
        event_log.read_log(folder)
    assert str(refused.value).startswith(rf"the log in {tmp_path}/x\udcff cannot be read: ")


def test_nothing_is_printed_of_what_tensorboard_drops(tmp_path, capfd):
    for purge in 0, 2:
        log = SummaryWriter(tmp_path, purge_step=purge, filename_suffix=str(purge))
        for step in range(5):
            log.add_scalar("Loss/step", step, step)
        log.close()
    event_log.read_log(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_checksums_in_tests_are_tensorboard_s():
    """Which tests/small_models replaces."""
    for data in (b"", b"a", bytes(range(256)) * 9):
        known = pywrap_tensorflow.crc_update(pywrap_tensorflow.CRC_INIT, data)
        assert pywrap_tensorflow.crc32c(data) == pywrap_tensorflow.crc_finalize(known)
