"""trainparts/devices.py: which device a rank takes, its cores, its kernels and its seeds."""

import itertools
import os
import platform
import traceback
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from trainparts import devices, errors


@pytest.fixture
def gpus(monkeypatch):
    """gpus(count, kind="cuda"): has PyTorch find so many; returns the list of those that it is told
    to use."""

    def have(count, kind="cuda"):
        found, used = torch.device(kind) if count else None, []
        accelerator = SimpleNamespace(
            current_accelerator=lambda check_available=False: found if check_available else 0,
            device_count=lambda: count,
            set_device_index=used.append,
        )
        monkeypatch.setattr(torch, "accelerator", accelerator)
        return used

    return have


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
@pytest.mark.parametrize(
    ("asked", "index"),
    [
        ({}, 0),
        ({"gpu": 0}, 0),
        ({"gpu": 3}, 3),
        ({"local_rank": 2, "local_ranks": 4}, 2),
        ({"local_rank": 3, "local_ranks": 8}, 3),
        ({"gpu": 1, "local_rank": 0, "local_ranks": 1}, 1),
    ],
)
def test_a_rank_takes_the_gpu_of_its_number_or_the_one_that_is_asked_for(asked, index, kind, gpus):
    used = gpus(4, kind)
    assert devices.pick_device(**asked) == torch.device(kind, index)
    assert used == [index]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"gpu": 2}, "GPU 2 of a node with 2, where 1 processes train"),
        ({"local_rank": 2, "local_ranks": 4}, "GPU 2 of a node with 2, where 4 processes train"),
        (
            {"gpu": 1, "local_rank": 1, "local_ranks": 2},
            "GPU 1 of a node with 2, where 2 processes train",
        ),
        ({"gpu": 0, "local_ranks": 2}, "GPU 0 of a node with 2, where 2 processes train"),
    ],
)
def test_a_gpu_that_a_node_has_not_is_named(asked, why, gpus):
    used = gpus(2)
    with pytest.raises(errors.BadInput) as raised:
        devices.pick_device(**asked)
    advice = "start one process per GPU, or give --no-accel for the CPU"
    assert str(raised.value) == f"{why}: {advice}" and used == []


@pytest.mark.parametrize(("count", "no_accel"), [(0, False), (0, True), (2, True)])
def test_without_a_gpu_none_may_be_asked_for(count, no_accel, gpus):
    gpus(count)
    with pytest.raises(errors.BadInput) as raised:
        devices.pick_device(gpu=0, no_accel=no_accel)
    assert str(raised.value) == "--gpu 0: PyTorch finds no GPU here; leave it out for the CPU"


DRIVERS = "/dev/nvidiactl", "/dev/kfd"


@pytest.mark.parametrize(
    ("driver", "asked", "printed"),
    [
        *[(driver, {}, True) for driver in DRIVERS],
        ("/dev/kfd", {"local_ranks": 2}, True),
        ("/dev/kfd", {"local_rank": 1, "local_ranks": 2}, False),
        ("/dev/kfd", {"no_accel": True}, False),
        (None, {}, False),
    ],
)
def test_a_gpu_that_pytorch_cannot_use_is_said_once_on_a_node(
    driver, asked, printed, gpus, monkeypatch, capsys
):
    used = gpus(0)
    monkeypatch.setattr(devices.os.path, "exists", lambda path: path == driver)
    assert devices.pick_device(**asked) == torch.device("cpu") and used == []
    line = (
        "PyTorch cannot use this machine's GPU (a driver too old for it, another build, or "
        "CUDA_VISIBLE_DEVICES); using the CPU\n"
    )
    assert capsys.readouterr() == ("", line * printed)


def test_no_accel_passes_gpus_by(gpus, capsys):
    used = gpus(2)
    assert devices.pick_device(no_accel=True, local_rank=1, local_ranks=2) == torch.device("cpu")
    assert used == [] and capsys.readouterr() == ("", "")


@pytest.mark.parametrize("known", [{}, {"cpu_name": ""}, {"cpu_name": "a processor"}, None])
def test_the_name_of_a_processor(known, monkeypatch):
    if known is None:  # PyTorch 2.10
        monkeypatch.delattr(torch.cpu, "get_capabilities")
    else:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)
    expected = (known or {}).get("cpu_name") or platform.machine()
    assert devices.device_name(torch.device("cpu")) == expected and expected


def test_the_name_of_a_gpu(monkeypatch):
    named = SimpleNamespace(get_device_name=lambda device: f"model {device.index}")
    monkeypatch.setattr(torch, "get_device_module", lambda device: named)
    assert devices.device_name(torch.device("cuda", 1)) == "model 1"
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace())
    assert devices.device_name(torch.device("mps", 0)) == "mps:0", "Apple's has no name"


@pytest.mark.parametrize(("cores", "here", "share"), [(8, 2, 4), (8, 3, 2), (2, 4, 1), (1, 1, 1)])
def test_the_ranks_of_a_node_share_its_cores(cores, here, share, monkeypatch):
    """Of those that the process may use, or, where a system does not say that, of all."""
    monkeypatch.setattr(devices, "CPU_MAX", Path("absent"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(cores), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 99)
    assert devices.cores_per_rank(here) == share
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert devices.cores_per_rank(here) == share


@pytest.mark.parametrize(
    ("limit", "here", "share"),
    [
        ("400000 100000", 1, 4),
        ("400000 100000", 2, 2),
        ("150000 100000", 1, 1),
        ("50000 100000", 1, 1),
        ("1600000 50000", 1, 8),
        ("max 100000", 1, 8),
        ("", 1, 8),
    ],
)
def test_a_container_s_limit_counts(limit, here, share, monkeypatch, tmp_path):
    """Which sched_getaffinity() does not know: a period may use so many microseconds."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8), raising=False)
    monkeypatch.setattr(devices, "CPU_MAX", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert devices.cores_per_rank(here) == share


def test_a_rank_has_a_core_where_their_number_is_not_known(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert devices.cores_per_rank() == devices.cores_per_rank(4) == 1


@pytest.mark.parametrize(
    ("kind", "environ", "threads"),
    [("cpu", {}, [4]), ("cpu", {"OMP_NUM_THREADS": "3"}, []), ("cuda", {}, []), ("xpu", {}, [])],
)
def test_only_ranks_on_the_cpu_share_it_unless_the_environment_says_how(
    kind, environ, threads, monkeypatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8), raising=False)
    told = mock.Mock()
    monkeypatch.setattr(torch, "set_num_threads", told)
    devices.share_cores(torch.device(kind), 2)
    assert [call.args for call in told.call_args_list] == [(each,) for each in threads]


@pytest.mark.parametrize(
    ("deterministic", "set_before", "expected"),
    [
        (False, None, "True False None"),
        (False, ":16:8", "True False :16:8"),
        (True, None, "False True :4096:8"),
        (True, ":16:8", "False True :16:8"),
    ],
)
def test_kernels_are_the_fastest_or_repeat_bit_for_bit(
    deterministic, set_before, expected, monkeypatch
):
    name, algorithms = "CUBLAS_WORKSPACE_CONFIG", mock.Mock()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", deterministic)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", algorithms)
    monkeypatch.setenv(name, set_before or "")  # which the end of the test takes back
    if not set_before:
        del os.environ[name]
    devices.choose_kernels(deterministic)
    called = [call.args for call in algorithms.call_args_list]
    assert called == [(True,)] * deterministic
    found = torch.backends.cudnn.benchmark, algorithms.called, os.environ.get(name)
    assert " ".join(map(str, found)) == expected


def test_sums_are_in_float64_where_devices_have_it():
    kinds = {kind: devices.exact_dtype(torch.device(kind)) for kind in ("cpu", "cuda")}
    assert kinds == {"cpu": torch.float64, "cuda": torch.float64}
    for kind in "mps", "xpu":
        assert devices.exact_dtype(torch.device(kind, 0)) == torch.float32


def test_a_step_is_seeded_as_by_pytorch(monkeypatch):
    """Without the traceback that it formats, in reads of the file system, for each kind of device
    that is not in use; on CUDA, tests/test_ghost.py sees it."""
    for seed in devices.seed_from(0, 3, 5, 1), 0, 2**64 - 1:
        torch.manual_seed(seed)
        expected = torch.initial_seed(), torch.rand(3)
        torch.manual_seed(7)
        with monkeypatch.context() as patch:
            patch.setattr(traceback, "format_stack", None)
            patch.setattr(traceback, "extract_stack", None)
            devices.seed_generators(seed, torch.device("cpu"))
        assert torch.initial_seed() == expected[0] and torch.equal(torch.rand(3), expected[1])
    for kind in "xpu", "mps", "cuda":  # Apple's has one device, and manual_seed() alone
        name = "manual_seed" if kind == "mps" else "manual_seed_all"
        called = mock.Mock()
        monkeypatch.setattr(getattr(torch, kind), name, called)
        devices.seed_generators(7, torch.device(kind, 0))
        called.assert_called_once_with(7)
        assert torch.initial_seed() == 7


def test_seeds_stay_what_they_are():
    """Or a run that is resumed by a later version would go on with another order of images."""
    assert devices.seed_from(0) == 15793235383387715774
    assert devices.seed_from(0, 1) == 5836529245451711556
    assert devices.seed_from(1, 0) == 7434755675892716031
    assert devices.seed_from(0, 3, 5, 1) == 77841650173237915


def test_near_numbers_give_unrelated_seeds():
    """Of 64 bits, half of which differ between any two, within what chance allows."""
    seeds = [devices.seed_from(*each) for each in itertools.product(range(5), repeat=3)]
    assert len({*seeds}) == 125 and all(0 <= seed < 2**64 for seed in seeds)
    differ = [(one ^ other).bit_count() for one, other in itertools.combinations(seeds, 2)]
    assert min(differ) >= 12 and max(differ) <= 52
    assert 31.5 < sum(differ) / len(differ) < 32.5
