"""Counts, times and shows the steps of an epoch, with what was read and sent meanwhile.

Use it to log throughput and waits that exclude validation, and that go on where a run resumes.
"""

from __future__ import annotations

import collections
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import TypedDict

import numpy as np
import psutil
import torch
from tqdm import tqdm

from trainparts import errors


class State(TypedDict):
    """What a meter has counted."""

    sums: dict[str, float]  # over all ranks
    seconds: float
    traffic: list[float]  # what traffic() counts


class Meter:
    """Counts, times and prints the steps of one epoch's training or validation."""

    def __init__(
        self,
        title: str,
        total: int,
        items: str,
        rank: int,
        device: torch.device,
        steps: int = 0,
        state: State | None = None,
    ):
        """Expects `total` items, whose name is `items`, and shows a bar on rank 0's terminal. To
        resume an epoch, `steps` is the number of steps that are counted already, and `state` is the
        state of the meter in the checkpoint."""
        self.title, self.items, self.device = title, items, device
        self.steps = steps  # counted so far
        # What a checkpoint needs to resume here, as of the last read_clock().
        self.state = state or {"sums": {}, "seconds": 0.0, "traffic": [0.0] * 4}
        self.started = time.perf_counter() - self.state["seconds"]
        self.sums = collections.Counter(self.state["sums"])  # over all ranks
        self.before = traffic(device) - np.array(self.state["traffic"])
        self.bar = tqdm(
            desc=title,
            total=total,
            initial=int(self.sums[items]),
            disable=bool(rank) or not sys.stderr.isatty(),
            unit=f" {items}",
            ncols=79,
            leave=False,
            bar_format="{desc}: {percentage:3.0f}% |{bar}| {rate_fmt}, {remaining} left{postfix}",
        )

    def add(self, step: Mapping[str, float]) -> None:
        """Adds a step's {name: sum}, over all ranks and on the host."""
        self.sums.update(step)
        self.steps += 1
        self.bar.update(step[self.items])

    def show(self, loss: float) -> None:
        """Shows the loss of a step after the bar, on a terminal."""
        self.bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)

    def report(self, loss: float, means: str) -> None:
        """Prints the progress as a line, if there is no bar: the loss of a step, and the `means` of
        all, as text."""
        if self.bar.disable:
            sums = self.sums
            seconds = time.perf_counter() - self.started
            errors.print_line(
                f"{self.title}  step {self.steps}  loss {loss:.4f}  mean: "
                f"{means}  {sums[self.items] / seconds:,.0f} "
                f"{self.items}/s  wait {100 * sums['waited'] / seconds:.0f} %"
            )

    def read_clock(self) -> None:
        """Records time and traffic of the steps so far."""
        seconds = time.perf_counter() - self.started
        counted = (traffic(self.device) - self.before).tolist()
        self.state = {"sums": dict(self.sums), "seconds": seconds, "traffic": counted}

    def rates(self) -> dict[str, float]:
        """Returns {tag: value} of the steps up to read_clock(): items a second, seconds a step, the
        share of time in which data was waited for, skipped steps, and what was read and sent."""
        sums = self.sums
        steps = max(1, self.steps)
        seconds = self.state["seconds"]
        read, calls, sent, received = self.state["traffic"]
        return {
            "Throughput": sums[self.items] / seconds,
            "Time": seconds / steps,
            "Data/wait": sums["waited"] / seconds,
            "Steps/skipped": sums["skipped"],
            "IO/read_MBps": read / 1e6 / seconds,
            "IO/read_iops": calls / seconds,
            "Network/sent_MB_per_step": sent / 1e6 / steps,
            "Network/received_MB_per_step": received / 1e6 / steps,
        }


def traffic(device: torch.device) -> np.ndarray:
    """Returns (4,) float64: the bytes and calls that this process and its workers have read, the
    page cache's included, and, where it trains on the CPU, the bytes that its node has sent and
    received, by the kernel's counters. What is not counted is NaN."""
    counts = np.full(4, np.nan)  # NaN where nothing is counted
    with contextlib.suppress(AttributeError, TypeError, OSError, psutil.Error):
        # These counters miss what GPUs exchange by NVLink or InfiniBand.
        if device.type == "cpu" and not os.path.exists("/sys/class/infiniband"):
            counts[2:] = psutil.net_io_counters()[:2]
        processes = psutil.Process(), *psutil.Process().children()
        read = [process.io_counters() for process in processes]
        counts[:2] = np.sum([(one.read_chars, one.read_count) for one in read], axis=0)
    return counts
