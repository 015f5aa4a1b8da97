"""What the scripts print of batches and rates that parts have computed, without a run."""

import os
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import imagenet_nd as nd
import imagenet_pipeline as pipeline

NO_BLOCKS = torch.nn.Identity()


def test_less_memory_of_a_pipeline_has_whole_micro_batches(monkeypatch, capsys):
    """In the line by which its ranks end."""
    args = pipeline.parse_args("--microbatches 4 -b 12".split())
    data = SimpleNamespace(device_batch=12, global_batch=24)
    here = SimpleNamespace(args=args, data=data, place=pipeline.Place("cpu"), folder=None)
    here.model = NO_BLOCKS
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
    line = nd.with_less_memory(SimpleNamespace(args=args, data=data, folder=None, model=NO_BLOCKS))
    assert "-b 4 --global-batch 64 --base-lr 0.025:" in line
    # All digits, since a resumed run compares the rate.
    args = nd.parse_args(["-b", "7", "--base-lr", "0.1"])
    data = SimpleNamespace(device_batch=7, global_batch=14)
    line = nd.with_less_memory(SimpleNamespace(args=args, data=data, folder=None, model=NO_BLOCKS))
    assert f" -b 3 --global-batch 14 --base-lr {0.1 * 3 / 7!r}:" in line


def test_all_devices_of_all_ranks_are_in_the_line_on_batches(monkeypatch, capsys):
    monkeypatch.setattr(nd, "about_data", lambda data: [])
    data = SimpleNamespace(device_batch=8, accumulation_steps=3, global_batch=192)
    here = SimpleNamespace(args=nd.parse_args([]), data=data, options={"precision": "float32"})
    here.place = nd.Place(torch.device("cpu"), devices=4, data_ranks=2)
    here.folder = "runs/x"
    nd.print_header(here, None)
    line = "images x devices x accumulated = 8 x 8 x 3 = global batch 192; "
    assert line in capsys.readouterr().out
