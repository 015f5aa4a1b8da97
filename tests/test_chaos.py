"""Faults that runs must survive: trials of benchmarks/chaos.py, shorter; `make chaos` has all."""

import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import BIN, ROOT, command, environment, needs_horovod, run, scalars, write_images

sys.path.insert(0, str(ROOT / "benchmarks"))

import chaos  # noqa: E402

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def nd():
    return importlib.import_module("imagenet_nd")


def hold(rows):
    """Asserts that all rows of a trial hold, and that there are some."""
    assert rows
    for what, became, holds in rows:
        if holds is None:
            pytest.skip(f"{what}: {became}")
        assert holds, f"{what}: {became}"


# ----------------------------------------------------------------------------- killed and resumed


def test_killed_runs_end_equal_to_the_bit(tmp_path):
    """Ranks are SIGKILLed and the newest checkpoint is damaged; torchrun starts them again."""
    hold(chaos.kills(tmp_path, ranks=2, kills=3, damaged=1, epochs=4, steps=40))


@pytest.mark.parametrize(
    "omitted",
    [
        pytest.param(
            each, marks=[pytest.mark.slow] * (each not in ("the float32 masters", "nothing"))
        )
        for each in chaos.OMISSIONS
    ],
)
def test_what_is_left_out_of_a_checkpoint_shows(omitted, tmp_path):
    """Else equality to the bit would say little. Nothing left out is the control."""
    hold(chaos.omissions(tmp_path, [omitted]))


TRIED = [("plain", "INT"), ("one rank", "USR1"), ("own spawn", "KILL")]
TRIED += [("torchrun", "TERM"), ("launch", "KILL")]
OTHERS = [each for each in itertools.product(chaos.WAYS, ("TERM", "INT", "USR1", "KILL"))]


@pytest.mark.parametrize(
    ("way", "name"),
    [
        pytest.param(
            *each,
            marks=[needs_horovod] * (each[0] == "horovodrun")
            + [pytest.mark.slow] * (each not in [*TRIED, ("horovodrun", "TERM")]),
        )
        for each in OTHERS
    ],
)
def test_signals(way, name, tmp_path):
    hold(chaos.signals(tmp_path, [way], [name]))


def test_a_second_interrupt_ends_at_once(tmp_path):
    """Even a rank that waits for another, in an exchange without end."""
    way = chaos.start("own spawn", "imagenet_ddp.py", 2)
    job = chaos.Job([*way, *chaos.NET, "-p", 1, "--epochs", 50], tmp_path)
    try:
        job.wait_for(r"Epoch: \[0\]\[ *8/")
        job.rank(1).send_signal(signal.SIGSTOP)
        waiting = job.rank(0)
        waiting.send_signal(signal.SIGINT)
        time.sleep(1.5)
        assert waiting.is_running()
        waiting.send_signal(signal.SIGINT)
        waiting.wait(5)
    finally:
        job.end()


@pytest.mark.parametrize("victim", ["rank", "loader worker", "dead loader worker"])
def test_a_rank_that_hangs_is_named(victim, tmp_path):
    hold(chaos.frozen(tmp_path, [victim], timeout=8))


def test_damaged_checkpoints_are_refused(tmp_path):
    hold(chaos.files(tmp_path, trials=30))


def test_full_disk(tmp_path):
    hold(chaos.disk(tmp_path))


def test_unreadable_images_are_skipped_and_odd_ones_read(tmp_path):
    hold(chaos.images(tmp_path, truncated=60))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", [name for name in chaos.TRIALS if name not in ("nodes", "slurm")])
def test_in_full(name, tmp_path):
    hold(chaos.TRIALS[name](tmp_path))


# -------------------------------------------------------------------------------------- resuming

VIT = ["-a", "vit_b_16", "--image-size", "32", "--no-accel", "-p", "1", "--seed", "3"]


def stopped_at(tmp_path, step, words, signum=signal.SIGTERM):
    """Runs a command until it has done a step, then stops it by a signal; returns its status."""
    said = tmp_path / "said.txt"
    with open(said, "w") as file:
        job = subprocess.Popen(
            [str(word) for word in words], cwd=tmp_path, env=environment(), stdout=file, stderr=file
        )
    until = time.monotonic() + 120
    while f"[0][{step:2}/" not in said.read_text():
        assert job.poll() is None and time.monotonic() < until, said.read_text()
        time.sleep(0.02)
    job.send_signal(signum)
    return job.wait(60)


EPOCH_OF_40 = "--epochs", "1", "--steps-per-epoch", "40"


@pytest.fixture(scope="module")
def stopped(demo, tmp_path_factory):
    """In DDP on two ranks: the folder of a whole run, the checkpoint of one that was stopped, and
    its steps."""
    folder = tmp_path_factory.mktemp("stopped")
    words = [*command("imagenet_ddp.py", 2), *VIT, *EPOCH_OF_40, "-b", "8", "-j", "1"]
    run([*words, "--log-dir", "whole", demo], folder)
    assert stopped_at(folder, 9, [*words, "--log-dir", "cut", demo]) == 143
    (file,) = folder.glob("cut/*/checkpoint.pt")
    done = torch.load(file, weights_only=True)["step"]
    assert 9 < done < 40
    return folder, file, done


@pytest.mark.parametrize(
    ("script", "ranks", "options"),
    [
        ("imagenet_nd.py", 1, ["-b", "16"]),
        pytest.param(
            *("imagenet_ddp.py", 2, ["-b", "4", "--accumulation", "2"]), marks=pytest.mark.slow
        ),
        ("imagenet_ddp.py", 4, ["-b", "4"]),
        pytest.param(
            *("imagenet_ddp_apex.py", 2, ["-b", "8", "--opt-level", "O0"]), marks=pytest.mark.slow
        ),
        pytest.param("imagenet_horovod.py", 2, ["-b", "8"], marks=needs_horovod),
    ],
)
def test_another_script_and_number_of_ranks_goes_on_in_mid_epoch(
    script, ranks, options, stopped, demo, tmp_path
):
    """Stopped in DDP on two ranks, gone on with in another: as the law has it, the same curve."""
    folder, file, done = stopped
    words = [*command(script, ranks), *VIT, *EPOCH_OF_40, *options, "--resume", file]
    run([*words, "-j", "0", demo], tmp_path)
    logs = folder / "whole", tmp_path / "runs"
    whole, on = (scalars(each, "Loss/step") for each in logs)
    assert list(on) == list(range(done, 40))
    for step, loss in on.items():
        assert loss == pytest.approx(whole[step], rel=1e-5)
    for tag in "Loss/train", "Top1/train", "Loss/val", "Top1/val":
        whole, on = (scalars(each, tag) for each in logs)
        assert on[1] == pytest.approx(whole[1], rel=1e-5), f"{tag} counts the whole epoch"


def test_auto_keeps_the_global_batch_when_ranks_come_and_go(demo, tmp_path):
    size = ["--epochs", "1", "--steps-per-epoch", "40", "-b", "8", "-j", "0", "--resume", "auto"]
    two, one = ([*command("imagenet_ddp.py", ranks), *VIT, *size, demo] for ranks in (2, 1))
    run([*two, "--log-dir", "whole"], tmp_path)
    assert stopped_at(tmp_path, 5, two) == 143
    assert stopped_at(tmp_path, 15, one) == 143
    output = run(two, tmp_path)
    assert "keep the global batch" not in output
    losses = {}
    for name in sorted(tmp_path.glob("runs/*_vit_*"), key=os.path.getmtime):
        losses |= scalars_of(name)
    whole = scalars(tmp_path / "whole", "Loss/step")
    assert sorted(losses) == list(range(40))
    for step, loss in losses.items():
        assert loss == pytest.approx(whole[step], rel=1e-5)
    said = (tmp_path / "said.txt").read_text()
    assert "-b 8 x 2 parts on 1 devices keep the global batch of 16" in said


def scalars_of(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {event.step: event.value for event in events.Scalars("Loss/step")}


def test_auto_starts_afresh_and_knows_its_own_run(demo, tmp_path):
    words = [*command("imagenet_nd.py"), *VIT, "-b", "8", "-j", "0", "--steps-per-epoch", "2"]
    words += ["--resume", "auto"]
    output = run([*words, "--epochs", "2", demo], tmp_path)
    assert "no checkpoint of this run in runs: a new run" in output
    output = run([*words, "--epochs", "2", demo], tmp_path)
    assert "Going on at epoch 2 step 0" in output, "it is finished: nothing is trained again"
    output = run([*words, "--epochs", "1", "--lr", "0.2", demo], tmp_path)
    assert "a new run" in output, "another learning rate is another run"
    output = run([*words, "--epochs", "3", demo], tmp_path)
    assert "Going on at epoch 2 step 0" in output
    (folder,) = {path.parent for path in tmp_path.glob("runs/*/checkpoint-2.pt")}
    for name in "checkpoint.pt", "checkpoint-1.pt":
        (folder / name).write_bytes(b"")
    output = run([*words[:-1], folder, "--epochs", "3", demo], tmp_path)
    assert output.count("passes over") == 2
    assert "Going on at epoch 1 step 0" in output
    for path in folder.glob("*.pt"):
        path.write_bytes(b"")
    said = run([*words[:-1], folder, "--epochs", "3", demo], tmp_path, status=2)
    assert said.splitlines()[-1].endswith("holds no good checkpoint")


def test_a_checkpoint_of_one_disk_serves_all_ranks(demo, tmp_path):
    """Nodes may have disks of their own: rank 0 alone reads."""
    words = [*command("imagenet_nd.py"), *VIT, "-b", "8", "-j", "0", "--steps-per-epoch", "2"]
    run([*words, "--epochs", "1", demo], tmp_path)
    (file,) = tmp_path.glob("runs/*/checkpoint.pt")
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import imagenet_ddp as s\\n"
        "def worker(args):\\n"
        "    if os.environ['RANK'] == '1':\\n"
        "        def fail(path): raise AssertionError('rank 1 reads')\\n"
        "        s.read_checkpoint = fail\\n"
        "    s.worker(args)\\n"
        "if __name__ == '__main__':\\n"
        "    s.launch(worker, s.parse_args(sys.argv[2:]))\\n"
    )
    starter = tmp_path / "starter.py"
    starter.write_text(code.replace("\\n", "\n"))
    more = [*VIT, "-b", "4", "-j", "0", "--steps-per-epoch", "2", "--epochs", "2"]
    words = [sys.executable, starter, ROOT, *more, "--nproc-per-node", "2", "--resume", file, demo]
    assert "Going on at epoch 1 step 0" in run(words, tmp_path)


def test_max_hours_saves_and_ends(demo, tmp_path):
    words = [*command("imagenet_ddp.py", 2), *VIT, "-b", "4", "-j", "0", "--epochs", "5000"]
    run([*words, "--max-hours", "0.005", demo], tmp_path, status=143)
    (marker,) = tmp_path.glob("runs/*/PREEMPTED")
    assert json.loads(marker.read_text())["why"] == "--max-hours"
    assert (marker.parent / "checkpoint.pt").exists()


def test_requeue(demo, tmp_path):
    """Asked of Slurm by the first rank, after the checkpoint."""
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text('#!/bin/sh\nls runs/*/checkpoint.pt > requeued\necho "$@" >> requeued\n')
    scontrol.chmod(0o755)
    words = [*command("imagenet_nd.py"), *VIT, "-b", "4", "-j", "0", "--epochs", "5000", demo]
    assert "SLURM_JOB_ID" in run([*words, "--requeue"], tmp_path, status=2)
    env = {"PATH": f"{scontrol.parent}:{BIN}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
    env["SLURM_NTASKS"] = "1"
    run([*words, "--requeue", "--max-hours", "0.002"], tmp_path, status=143, env=env)
    saved, asked = (tmp_path / "requeued").read_text().splitlines()
    assert saved.endswith("checkpoint.pt")
    assert asked == "requeue 77"


# -------------------------------------------------------------------------------------- detection


@pytest.mark.parametrize("script", ["imagenet_nd.py", "imagenet_ddp.py"])
def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_what_was_good(script, demo, tmp_path):
    ranks = 2 if script == "imagenet_ddp.py" else 1
    words = [*command(script, ranks), *VIT, "-b", "8", "-j", "0", "--steps-per-epoch", "10"]
    run([*words, "--epochs", "1", demo], tmp_path)
    (file,) = tmp_path.glob("runs/*/checkpoint.pt")
    good = file.read_bytes()
    wild = ["--epochs", "2", "--lr", "1e30", "--warmup-epochs", "0", "--checkpoint-minutes", "1e-5"]
    said = run([*words, *wild, "--resume", file, demo], tmp_path, status=None)
    errors = [line for line in said.splitlines() if "error: " in line]
    assert "the loss of Epoch: [1][" in errors[0] and "is not finite: lower --lr" in errors[0]
    assert "Traceback" not in said
    kept = [path.read_bytes() for path in file.parent.glob("checkpoint*.pt")]
    assert good in kept or all(
        chaos.nd.is_finite(torch.load(path, weights_only=True)["state_dict"])
        for path in file.parent.glob("checkpoint*.pt")
    )


def test_skipped_steps_are_counted(demo, tmp_path):
    """The first scale, 2**16, overflows float16 in this network."""
    options = [*VIT, "-b", "8", "-j", "0", "--steps-per-epoch", "6", "--epochs", "1"]
    words = [*command("imagenet_ddp_apex.py", 2), *options, "--opt-level", "O1"]
    said = run([*words, "--half-dtype", "float16", "--lr", "20", demo], tmp_path)
    overflows = said.count("Gradient overflow.  Skipping step")
    assert scalars(tmp_path / "runs", "Steps/skipped")[1] == overflows


def test_more_bad_images_than_allowed(tmp_path):
    folder = write_images(tmp_path / "data", train=20, val=10)
    for number in 3, 7:
        (folder / "val" / "dog" / f"{number}.jpg").write_text("no image")
    words = [*command("imagenet_ddp.py", 2), *VIT, "-b", "4", "-j", "1", "--epochs", "1"]
    said = run([*words, "--max-bad-images", "0.05", folder], tmp_path, status=2)
    assert "2 validation images cannot be read" in said
    said = run([*words, "--max-bad-images", "0.1", folder], tmp_path)
    (named,) = [
        path for path in tmp_path.glob("runs/*/bad_images.txt") if "ended" not in str(path)
    ][-1:]
    assert {line.split("\t")[0] for line in named.read_text().splitlines()} == {
        str(folder / "val" / "dog" / f"{number}.jpg") for number in (3, 7)
    }


def test_a_replacement_does_not_depend_on_the_split(nd, tmp_path):
    """The law holds with an unreadable image: the next one stands in, whoever loads it."""
    folder = write_images(tmp_path / "data", train=12)
    (folder / "train" / "cat" / "5.jpg").write_text("no image")
    seen = []
    for ranks, workers in ((1, 0), (2, 1), (4, 2)):
        steps = []
        for rank in range(ranks):
            args = ["-b", str(8 // ranks), "-j", str(workers), "--image-size", "16", str(folder)]
            place = nd.Place(torch.device("cpu"), rank, ranks, rank, ranks)
            data = nd.load_data(nd.parse_args([*args, "--log-dir", str(tmp_path)]), place)
            for step, (images, target, *_) in enumerate(data.train):
                steps += [[]] if step == len(steps) else []
                steps[step] += [
                    (x.numpy().tobytes(), int(y)) for x, y in zip(images, target, strict=True)
                ]
        seen.append(steps)
    assert seen[0] == seen[1] == seen[2]


# --------------------------------------------------------------------------------------- security


def test_shard_names_cannot_reach_a_shell(nd, tmp_path):
    listed = {
        "classes": ["a"],
        "val": [],
        "train": [{"name": "train/0.tar; touch owned", "images": 1}],
    }
    (tmp_path / "shards.json").write_text(json.dumps(listed))
    with pytest.raises(nd.BadInput, match="no shard's name"):
        nd.open_shards(nd.Url(f"{tmp_path}/"), None, 0)


def test_what_a_dead_start_left_is_not_believed(tmp_path):
    """A launcher's store outlives the ranks that it starts again."""
    code = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
import torch.distributed as dist
import imagenet_ddp as s
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port)}
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
for start in range(4):
    met = {}
    def meet(rank):
        met[rank] = s._meet(rank, 3, 30)
    threads = [threading.Thread(target=meet, args=(rank,)) for rank in (2, 1, 0)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    for rank, (store, board) in met.items():
        assert not store.check(["x"]) and not board.check(["x"]), start
    met[0][0].set("x", "1"), met[1][1].set("x", "2")
    assert (met[2][0].get("x"), met[2][1].get("x")) == (b"1", b"2")
print("met four times")
"""
    said = run([sys.executable, "-c", code, ROOT], tmp_path, timeout=120)
    assert "met four times" in said
