"""Devices, their names and their share of the cores; seeds, and how exactly a device computes.

Use it to choose the device of a rank, and to seed it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path

import numpy as np
import torch

from trainparts import errors

__all__ = ["seed_from"]

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")  # a container's limit, under cgroup v2


def pick_device(
    gpu: int | None = None, no_accel: bool = False, local_rank: int = 0, local_ranks: int = 1
) -> torch.device:
    """Returns the accelerator (CUDA, ROCm, XPU, MPS) of a node's rank, or number `gpu`, and has
    PyTorch use it by default; the CPU if there is none, or under `no_accel`. Raises BadInput if the
    node has no such GPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if no_accel or accelerator is None:
        if gpu is not None:
            raise errors.BadInput(
                f"--gpu {gpu}: PyTorch finds no GPU here; leave it out for the CPU"
            )
        drivers = "/dev/nvidiactl", "/dev/kfd"
        if not no_accel and local_rank == 0 and any(map(os.path.exists, drivers)):
            why = "a driver too old for it, another build, or CUDA_VISIBLE_DEVICES"
            errors.print_line(
                f"PyTorch cannot use this machine's GPU ({why}); using the CPU", sys.stderr
            )
        return torch.device("cpu")
    found = torch.accelerator.device_count()
    index = local_rank if gpu is None else gpu
    if index >= found or (gpu is not None and local_ranks > 1):
        wanted = f"GPU {index} of a node with {found}, where {local_ranks} processes train"
        raise errors.BadInput(
            f"{wanted}: start one process per GPU, or give --no-accel for the CPU"
        )
    torch.accelerator.set_device_index(index)
    return torch.device(accelerator.type, index)


def device_name(device: torch.device) -> str:
    """Returns the model of the GPU, or of the processor."""
    if device.type != "cpu":
        return getattr(torch.get_device_module(device), "get_device_name", str)(device)
    known = getattr(torch.cpu, "get_capabilities", dict)()  # PyTorch 2.10 has no such function
    return known.get("cpu_name") or platform.machine()


def cores_per_rank(local_ranks: int = 1) -> int:
    """Returns how many cores each of a node's ranks may use: an equal share of those that this
    process may use, at most as many as a container's limit allows, but at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(OSError, ValueError):  # no cgroup v2, or "max": no limit
        limit, period = map(int, CPU_MAX.read_text().split())
        cores = min(cores or 1, limit // period)
    return max(1, (cores or 1) // local_ranks)


def choose_kernels(deterministic: bool) -> None:
    """Has PyTorch use the fastest kernels, or those that repeat bit for bit."""
    torch.backends.cudnn.benchmark = not deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def share_cores(device: torch.device, local_ranks: int) -> None:
    """Gives a rank that computes on the CPU its share of the cores, or the ranks of a node would
    compete for them. $OMP_NUM_THREADS counts before it."""
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cores_per_rank(local_ranks))


def exact_dtype(device: torch.device) -> torch.dtype:
    """Returns the type for sums: float64, except on accelerators that may have none."""
    return torch.float64 if device.type in ("cpu", "cuda") else torch.float32


def seed_generators(seed: int, device: torch.device) -> None:
    """Does what torch.manual_seed() does for the CPU and devices of this kind."""
    # torch.manual_seed() formats a traceback for each kind of device that is not in use. This reads
    # files, and takes more time than all else that the loop does in a step.
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        kind = torch.get_device_module(device)
        getattr(kind, "manual_seed_all", kind.manual_seed)(seed)


def seed_from(*numbers: int) -> int:
    """Returns a 64-bit seed from whole numbers; near numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
