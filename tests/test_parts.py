"""Parts of trainparts/ by themselves: what they print, show and allow, without a run."""

import faulthandler
import io
import os
import signal
import sys
import time
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard import summary as torch_summary

import imagenet_nd as nd
import imagenet_pipeline as pipeline
from trainparts import endings, errors, progress_meter, run_options
from trainparts.runs import checkpointing, event_log, run_messages


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_has_a_bar_that_goes_on_at_the_items(rank, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    state = {"sums": {"images": 48}, "seconds": 1.0, "traffic": [0.0] * 4}
    bar = progress_meter.Meter("1/2", 64, "images", rank, torch.device("cpu"), 3, state).bar
    assert bar.disable == bool(rank)
    if not rank:
        assert (bar.n, bar.total) == (48, 64)
    bar.close()


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


def test_a_compilation_has_an_hour_more(monkeypatch):
    started = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *a, **b: started.append(a))
    endings.start_timer.cache_clear()
    endings.arm_timeout(40, compiles=True)
    endings.start_timer.cache_clear()
    assert started == [(3670,)]


def test_the_moment_of_ctrl_c_counts_from_the_first(monkeypatch):
    clock, ended, signals = mock.Mock(), mock.Mock(), []
    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(os, "_exit", ended)
    for clock.return_value in 100.0, 100.9, 101.5:
        endings.on_signal(signals, signal.SIGINT, None)
    ended.assert_called_with(130)


def test_less_memory_of_a_pipeline_has_whole_micro_batches(monkeypatch, capsys):
    """In the line by which its ranks end."""
    args = pipeline.parse_args("--microbatches 4 -b 12".split())
    data = SimpleNamespace(device_batch=12, global_batch=24)
    here = SimpleNamespace(args=args, data=data, place=pipeline.Place("cpu"), folder=None)
    monkeypatch.setattr(pipeline, "build_run", lambda args: here)
    monkeypatch.setattr(pipeline, "train", mock.Mock(side_effect=torch.OutOfMemoryError("x")))
    monkeypatch.setattr(os, "_exit", mock.Mock(side_effect=SystemExit))
    with pytest.raises(SystemExit):
        pipeline.train_rank(args)
    assert "add to the command: -b 4 " in capsys.readouterr().err


def test_less_memory_keeps_the_rate_of_the_batch_as_typed():
    """Of a resumed run whose devices take fewer than -b at a time."""
    args = nd.parse_args(["-b", "16", "--base-lr", "0.1"])
    data = SimpleNamespace(device_batch=8, global_batch=64)
    line = nd.with_less_memory(SimpleNamespace(args=args, data=data, folder=None))
    assert "-b 4 --global-batch 64 --base-lr 0.025:" in line
    # All digits, since a resumed run compares the rate.
    args = nd.parse_args(["-b", "7", "--base-lr", "0.1"])
    data = SimpleNamespace(device_batch=7, global_batch=14)
    line = nd.with_less_memory(SimpleNamespace(args=args, data=data, folder=None))
    assert f" -b 3 --global-batch 14 --base-lr {0.1 * 3 / 7!r}:" in line


@pytest.mark.parametrize(
    ("step", "before", "batch", "at"),
    [
        (60, 64, 64, (2, 60)),
        (60, 64, 128, (2, 30)),
        (61, 64, 128, (2, 31)),  # no image of the epoch is trained again
        (60, 64, 32, (2, 100)),  # --steps-per-epoch has ended it
        (0, 64, 32, (1, 100)),  # it was saved before that epoch's validation
    ],
)
def test_a_run_resumes_at_the_images_that_follow(step, before, batch, at):
    metadata = {"epoch": 2, "step": step, "global_batch": before}
    assert checkpointing.where_to_resume(metadata, batch, 100) == at


@pytest.mark.parametrize(("logged", "named"), [([1, 2, 3], False), ([1, 2, 3, 4], True)])
def test_only_later_epochs_of_a_log_are_named(logged, named):
    """After the third epoch's last step, the log has the third."""
    metadata = {"args": {"epochs": 3}, "path": "x", "in_place": True, "logged": logged}
    lines = run_messages.about_resuming(metadata, epochs=4, epoch=2, step=4, steps=4)
    assert ("The log has later epochs: they are trained again" in lines) == named


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("epochs", 3),
        ("desired", [["Top1", 1.0]]),
        ("patience", 2),
        ("budget_hours", 1.0),
        ("best", "loss"),
    ],
)
def test_a_run_is_over_until_what_ended_it_is_changed(name, other):
    options = vars(nd.parse_args(["--epochs", "4"]))
    until = {each: options[each] for each in run_options.ENDS_BY}
    metadata = {"in_place": True, "end": {"until": until, "epochs": 2, "reason": "target reached"}}
    assert run_messages.why_over(metadata, until, epochs=4, epoch=1, step=4, steps=4)
    assert not run_messages.why_over(metadata, until, epochs=4, epoch=1, step=3, steps=4)
    assert not run_messages.why_over(
        metadata, until | {name: other}, epochs=4, epoch=1, step=4, steps=4
    )


def test_all_devices_of_all_ranks_are_in_the_line_on_batches(monkeypatch, capsys):
    monkeypatch.setattr(nd, "about_data", lambda data: [])
    data = SimpleNamespace(device_batch=8, accumulation_steps=3, global_batch=192)
    here = SimpleNamespace(args=nd.parse_args([]), data=data, options={"precision": "float32"})
    here.place = nd.Place(torch.device("cpu"), devices=4, data_ranks=2)
    here.folder = "runs/x"
    nd.print_header(here, None)
    line = "images x devices x accumulated = 8 x 8 x 3 = global batch 192; "
    assert line in capsys.readouterr().out


def test_the_base_rate_that_keeps_a_run_is_of_its_batch():
    """Not of another that is typed."""
    metadata = {"args": {}, "global_batch": 16, "peak_lr": 0.125, "in_place": True}
    metadata["path"] = "one/checkpoint.pt"
    with pytest.raises(errors.BadInput, match=r"which --base-lr 0\.0625 keeps"):
        checkpointing.check_resumed(
            metadata, [], options={}, typed={}, global_batch=32, peak=0.5, base_batch=8
        )
