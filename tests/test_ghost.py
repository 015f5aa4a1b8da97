"""The CUDA branches of the scripts, rehearsed on GPUs that are none: see tests/ghost/README.md."""

import functools
import importlib.util
import json
import os
import sys
import time
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import forked
import pytest
from conftest import ROOT, command, environment, free_port, run, scalars, the_run, write_images

from trainparts import devices

GHOST = Path(__file__).parent / "ghost"
spec = importlib.util.spec_from_file_location("ghost_build", GHOST / "build.py")
builder = importlib.util.module_from_spec(spec)
spec.loader.exec_module(builder)
WHY_NOT = builder.missing()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"no ghost GPU: {WHY_NOT}")

ND, DDP, APEX, DP = (f"imagenet_{name}.py" for name in ("nd", "ddp", "ddp_apex", "dp"))
FSDP, EXCHANGE, PIPELINE = (f"imagenet_{name}.py" for name in ("fsdp", "exchange", "pipeline"))
WORDS = "--epochs 1 --image-size 32 --val-size 32 --warmup-epochs 0 --lr 1 -p 1".split()
BFLOAT16, FLOAT16 = ["--amp", "bfloat16"], ["--amp", "float16"]
RECIPE = "--accumulation 2 --mixup 0.2 --cutmix 1 --ema 0.9 --clip-grad 1 --optimizer adamw".split()
RECIPE += ["--loss", "bce", "--channels-last", "--norm-wd", "0"]


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The ghost GPU, for LD_PRELOAD."""
    return builder.build(tmp_path_factory.mktemp("ghost"))


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """24 images to train on, in six steps of 4; 6 to validate, a whole batch and a ragged one."""
    return write_images(tmp_path_factory.mktemp("images"), train=12, val=3)


@pytest.fixture(scope="session")
def server(library):
    """As forked.py's, with the ghost GPU in place: what starts programs as its forks."""
    server = forkserver.ForkServer()
    server.set_forkserver_preload(forked.PRELOADED[:4] + forked.PRELOADED[-2:])
    with mock.patch.dict(os.environ, environment(LD_PRELOAD=str(library)), clear=True):
        server.ensure_running()
    return server


@pytest.fixture
def start(server, tmp_path):
    """start(words, ranks, gpus): runs a program of tests/ghost/ on ghost GPUs, as so many ranks,
    with a launcher's variables but without it. {rank} in a word becomes the rank."""

    connect = server.connect_to_new_process

    def start(words, ranks, gpus, **env):
        env["GHOST_GPUS"] = str(gpus)
        outputs, started = [tmp_path / f"{rank}.txt" for rank in range(ranks)], []
        try:
            for rank, output in enumerate(outputs):
                mine = [sys.executable, *(str(word).format(rank=rank) for word in words)]
                where = environment(
                    **{name: value.format(rank=rank) for name, value in env.items()}
                )
                with mock.patch.object(forkserver, "connect_to_new_process", connect):
                    started.append(forked.Script(mine, tmp_path, where, file=output))
            status, until = [None], time.monotonic() + 300
            while None in status and not any(status) and time.monotonic() < until:
                time.sleep(0.1)
                status = [process.poll() for process in started]
        finally:  # where one has failed, the others would wait for it
            for process in started:
                process.kill()
        printed = "".join(output.read_text() for output in outputs)
        assert status == [0] * ranks and "Traceback" not in printed, printed

    return start


def group(ranks):
    """Returns the variables by which ranks find each other."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return where | {"WORLD_SIZE": str(ranks), "RANK": "{rank}"}


@pytest.fixture
def rehearse(start, images, tmp_path):
    """rehearse(script, *options, gpus=1, ranks=1): trains; returns each rank's reports, of every
    step."""

    def rehearse(script, *options, gpus=1, ranks=1, local_rank=True, logs="ghost"):
        env = group(ranks) if ranks > 1 or script == DDP else {}  # which alone starts a process
        if env and local_rank:
            env["LOCAL_RANK"] = "{rank}"
        words = [GHOST / "run.py", "{rank}.jsonl", ROOT / script, *WORDS, "-b", 4 // ranks]
        start([*words, *options, "--output-dir", logs, images], ranks, gpus, **env)
        reports = [(tmp_path / f"{rank}.jsonl").read_text() for rank in range(ranks)]
        return [[*map(json.loads, report.splitlines())] for report in reports]

    return rehearse


def check_seeds(ranks):
    """Checks that each step begins with all generators seeded as by torch.manual_seed()."""
    for rank, steps in enumerate(ranks):
        train = [line["seeds"] for line in steps if line["title"] == "1/1"]
        for step, seeds in enumerate(train):
            assert len(seeds) > 1 and {*seeds} == {devices.seed_from(0, 0, step, rank)}, (
                rank,
                step,
            )


def check_budget(ranks, syncs=0, timers=0, accumulated=1, votes=0):
    """Checks what each rank waited for: in a step of training `syncs` streams, in validation none.

    The events are of each micro-batch, copied to the device, and of the sums of the step before,
    copied to the host; `timers` are DDP's own, in its first ten steps and each hundredth. A
    pipeline's ranks vote in their first step of validation, whether all know the images' shape.
    """
    check_seeds(ranks)
    for steps in ranks:
        assert not any(line["counts"]["overwritten"] for line in steps), "a buffer, while copied"
        train = [line["counts"] for line in steps if line["title"] == "1/1"]
        val = [line["counts"] for line in steps if line["title"] == "val"]
        assert len(train) == 6 // accumulated and val
        for number, seen in enumerate([*train[2:], *val], 3):
            step = f"step {number}: {seen}"
            training, first_val = number <= len(train), number == len(train) + 1
            assert seen["stream_syncs"] == (syncs if training else votes * first_val), step
            assert seen["blocking_copies"] == seen["device_syncs"] == 0, step
            assert seen["event_syncs"] - seen["spins"] <= 1 + (accumulated if training else 1), step
            assert seen["spins"] == (timers if training else 0), step
        # Under float16 the optimizer makes its state in the first step that does not overflow.
        assert sum(bool(seen["mallocs"]) for seen in train[2:]) <= syncs, train


def check_device(ranks, devices):
    """Checks that each rank uses its device alone, for its memory and its communicators."""
    for steps, device in zip(ranks, devices, strict=True):
        for line in steps:
            assert line["device"] == device and set(line["communicators"]) <= {device}
            assert [number for number, size in enumerate(line["allocated"]) if size] == [device]


def losses(folder):
    """Returns the losses of the one run in a folder, step by step, and that of validation."""
    return [*scalars(folder, "Loss/step").values(), *scalars(folder, "Loss/val").values()]


@pytest.fixture(scope="session")
def cpu_losses(images, tmp_path_factory):
    """cpu_losses(script, ranks, *options): the same without a GPU."""

    def train(script, ranks, *options):
        folder = tmp_path_factory.mktemp("cpu")
        words = [*command(script, ranks), *WORDS, "-b", 4 // ranks, *options, "--no-accel"]
        run([*words, "--output-dir", folder / "logs", images], folder)
        return losses(folder / "logs")

    return functools.cache(train)


# --------------------------------------------------------------------------------- the ghost itself


@pytest.mark.slow
def test_the_ghost_itself(start):
    """NCCL's values for all types, and copies that come late."""
    start([GHOST / "check.py"], 2, 2, **group(2))


# ------------------------------------------------------------------- values, and what is waited for


def test_one_gpu(rehearse, cpu_losses, tmp_path):
    """nd: the CPU's losses, no hidden wait, no buffer that is filled while it is copied."""
    # CUDA copies up to 64 KiB from pageable memory without a wait: a batch has to be larger.
    large = "--image-size", "80", "--val-size", "80"
    steps = rehearse(ND, "-j", "0", *large)  # one buffer, filled as soon as the next is asked for
    check_budget(steps)
    check_device(steps, [0])
    assert losses(tmp_path / "ghost") == pytest.approx(cpu_losses(ND, 1, *large), abs=1e-6)


def test_two_gpus(rehearse, cpu_losses, tmp_path):
    """ddp: the same, of two ranks over NCCL, and each on its own GPU."""
    steps = rehearse(DDP, "-j", "1", gpus=2, ranks=2)
    check_budget(steps, timers=8)
    check_device(steps, [0, 1])
    assert losses(tmp_path / "ghost") == pytest.approx(cpu_losses(DDP, 2), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "syncs"), [(BFLOAT16, 0), (FLOAT16, 1)])
def test_half_precision(rehearse, precision, syncs):
    """float16 asks once a step whether gradients overflowed: GradScaler's .item()."""
    check_budget(rehearse(ND, "-j", "0", *precision), syncs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "ranks", "options", "budget"),
    [
        (ND, 1, [*RECIPE, "--checkpoint-activations"], {"accumulated": 2}),
        (DDP, 2, [*RECIPE, *BFLOAT16], {"accumulated": 2, "timers": 8}),
        (DDP, 2, FLOAT16, {"syncs": 1, "timers": 8}),
        (APEX, 2, ["--opt-level", "O1"], {"syncs": 1, "timers": 8}),
        (APEX, 1, ["--opt-level", "O2"], {"syncs": 1, "timers": 8}),
        (DP, 1, [*BFLOAT16, "-b", "2"], {}),
        (FSDP, 2, [*BFLOAT16, "--checkpoint-activations"], {}),
        (FSDP, 2, ["--param-dtype", "bfloat16", "--clip-grad", "1"], {}),
        (EXCHANGE, 2, BFLOAT16, {}),
        (EXCHANGE, 2, [*BFLOAT16, "--exchange", "ddp"], {"timers": 8}),
    ],
)
def test_budget(rehearse, script, ranks, options, budget):
    """What a step waits for does not depend on the way to be parallel, nor on the recipe."""
    check_budget(rehearse(script, *options, gpus=2, ranks=ranks), **budget)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "ranks", "options"),
    [
        (DP, 1, ["-b", "2"]),
        (APEX, 2, ["--opt-level", "O0"]),
        (FSDP, 2, []),
        (FSDP, 2, ["--hybrid", "1"]),
        *[(EXCHANGE, 2, ["--exchange", name]) for name in ("gather", "async", "bucket", "ring")],
    ],
)
def test_losses(rehearse, cpu_losses, tmp_path, script, ranks, options):
    """All ways to be parallel on two GPUs have the losses of DDP on the CPU."""
    steps = rehearse(script, *options, gpus=2, ranks=ranks)
    if ranks == 2:
        check_device(steps, [0, 1])
    assert losses(tmp_path / "ghost") == pytest.approx(cpu_losses(DDP, 2), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--schedule", "interleaved"]])
def test_pipeline(rehearse, cpu_losses, tmp_path, options):
    """Stages on two GPUs: the losses of stages on the CPU."""
    words = "-b", "4", "--microbatches", "2", *options
    steps = rehearse(PIPELINE, *words, gpus=2, ranks=2)
    check_budget(steps, votes=4 if options else 2)  # two for each stage
    check_device(steps, [0, 1])
    assert losses(tmp_path / "ghost") == pytest.approx(cpu_losses(PIPELINE, 2, *words), abs=1e-4)


@pytest.mark.parametrize(
    ("script", "ranks", "options", "budget"),
    [
        ("text_nd.py", 1, [], {}),
        pytest.param("text_ddp.py", 2, [], {"timers": 8}, marks=pytest.mark.slow),
        pytest.param("text_fsdp.py", 2, BFLOAT16, {}, marks=pytest.mark.slow),
        pytest.param(
            "text_pipeline.py", 2, ["--microbatches", "2"], {"votes": 2}, marks=pytest.mark.slow
        ),
    ],
)
def test_text(start, tmp_path, script, ranks, options, budget):
    """A language model: the CPU's losses, and no wait of its own. (transformers' encoders ask once
    a batch whether anything is padded.)"""
    words = "--epochs 1 --steps-per-epoch 6 --layers 2 --hidden-size 64 --heads 2".split()
    words += ["--max-length", "64", "-b", 160 // ranks, "-p", "1", *options]  # tokens of 80 KiB
    env = {**group(ranks), "LOCAL_RANK": "{rank}"} if ranks > 1 else {}
    report = [GHOST / "run.py", "{rank}.jsonl", ROOT / script]
    start([*report, *words, "--output-dir", "ghost"], ranks, ranks, **env)
    reports = [(tmp_path / f"{rank}.jsonl").read_text() for rank in range(ranks)]
    check_budget([[*map(json.loads, report.splitlines())] for report in reports], **budget)
    run([*command(script, ranks), *words, "--output-dir", "cpu", "--no-accel"], tmp_path)
    close = 1e-2 if options == BFLOAT16 else 1e-4
    assert losses(tmp_path / "ghost") == pytest.approx(losses(tmp_path / "cpu"), abs=close)


@pytest.mark.slow
def test_resume(rehearse, cpu_losses, tmp_path):
    """A checkpoint goes from FSDP2 to DDP, and the curve goes on as the CPU's."""
    words, two = ["--epochs", "2", "--ema", "0.9"], {"gpus": 2, "ranks": 2}
    rehearse(FSDP, *words, "--desired-acc", "0.01", **two, logs="first")  # ends after an epoch
    rehearse(DDP, *words, "--resume", the_run(tmp_path / "first"), **two)
    seen = scalars(tmp_path / "ghost", "Loss/step")
    assert list(seen) == [*range(6, 12)]
    assert list(seen.values()) == pytest.approx(cpu_losses(DDP, 2, *words)[6:12], abs=1e-4)


# ---------------------------------------------------------------------------------- which device


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options"),
    [(ND, []), (DDP, []), (APEX, []), (EXCHANGE, []), (FSDP, ["--hybrid", "1"])],
)
def test_second_gpu_alone(rehearse, script, options):
    """--gpu 1 touches no other GPU, whatever a launcher says of ranks."""
    steps = rehearse(script, "--gpu", "1", *options, gpus=2, local_rank=False)
    check_device(steps, [1])


@pytest.mark.slow
def test_ranks_without_local_rank(rehearse):
    """Where a launcher sets no LOCAL_RANK, a rank's device is 0, as on nodes of one GPU."""
    check_device(rehearse(DDP, gpus=2, ranks=2, local_rank=False), [0, 0])


@pytest.mark.slow
def test_dp_on_the_cpu_beside_gpus(rehearse):
    """--no-accel leaves GPUs alone."""
    (steps,) = rehearse(DP, "--no-accel", gpus=2)
    assert {line["device"] for line in steps} == {None}
    assert not any(line["initialized"] or line["counts"]["mallocs"] for line in steps)
