"""How imagenet_ddp.py starts its ranks, and how they end with their launcher or terminal."""

import contextlib
import json
import os
import signal
import time

import conftest
import psutil
import pytest
from conftest import BIN, ROOT, command, environment, free_port, load

import imagenet_ddp as ddp
from trainparts.launch import local_processes

RUN = "-a vit_b_16 --image-size 32 --no-accel -j 1 -b 8 -p 1 --epochs 1000 --output-dir run".split()


def begin(words, folder, demo):
    """Starts a command in a session of its own, as a terminal does, with a file for its output."""
    words = [*map(str, words), *RUN, str(demo)]
    file = folder / "output.txt"
    return conftest.begin(words, folder, environment(), file=file, own_session=True)


def torchrun(*options):
    """Returns the words that start imagenet_ddp.py by torchrun."""
    script = str(ROOT / "imagenet_ddp.py")
    return [str(BIN / "torchrun"), f"--master_port={free_port()}", *options, script]


def steps(folder):
    """Returns how many steps were printed."""
    return (folder / "output.txt").read_text().count("  step ")


def wait_for(number, folder, process, seconds=120):
    """Waits until so many steps were printed."""
    until = time.monotonic() + seconds
    while steps(folder) < number:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)


def ranks_of(process):
    """Returns the processes that a launcher has started."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def test_the_launcher_is_killed_in_training(demo, tmp_path):
    """Its ranks save and end."""
    process = begin(command("imagenet_ddp.py", 2), tmp_path, demo)
    wait_for(3, tmp_path, process)
    ranks = ranks_of(process)
    assert len(ranks) >= 2
    process.kill()
    try:
        psutil.wait_procs(ranks, 30)
        assert not any(rank.is_running() for rank in ranks)
    finally:
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.kill()
    saved = load(tmp_path / "run" / "checkpoint.pt")
    marker = json.loads((tmp_path / "run" / "PREEMPTED").read_text())
    assert marker["step"] == saved["step"] > 0 or saved["epoch"] > 0


TWO, OTHERS = "--nproc_per_node=2", "--signals-to-handle=SIGTERM,SIGINT"
HANGING_UP = {
    "one device": (lambda: command("imagenet_nd.py"), 143),
    "own launcher": (lambda: command("imagenet_ddp.py", 2), 143),
    "torchrun": (lambda: torchrun(TWO), 1),
    "nohup, one device": (lambda: ["nohup", *command("imagenet_nd.py")], 143),
    "nohup, own launcher": (lambda: ["nohup", *command("imagenet_ddp.py", 2)], 143),
    "nohup, torchrun": (lambda: ["nohup", *torchrun(TWO)], 1),
    "nohup, torchrun that leaves SIGHUP alone": (lambda: ["nohup", *torchrun(TWO, OTHERS)], 1),
}


# Of which others say as much; and what torchrun does is its own.
LONGER = [each for each in HANGING_UP if "torchrun" in each or "one device" in each]


@pytest.mark.parametrize(
    "way", [pytest.param(each, marks=[pytest.mark.slow] * (each in LONGER)) for each in HANGING_UP]
)
def test_a_terminal_that_closes(way, demo, tmp_path):
    """It sends SIGHUP to all of its processes: they save and end as after SIGTERM, or train on
    under nohup, whose choice torchrun replaces by default."""
    words, status = HANGING_UP[way]
    process = begin(words(), tmp_path, demo)
    wait_for(3, tmp_path, process)
    os.killpg(process.pid, signal.SIGHUP)
    why = "SIGHUP"
    if "nohup" in way and way != "nohup, torchrun":
        time.sleep(1)
        wait_for(steps(tmp_path) + 20, tmp_path, process)
        process.terminate()
        why = "SIGTERM"
    assert process.wait(60) == status
    saved = load(tmp_path / "run" / "checkpoint.pt")
    assert saved["step"] > 0 or saved["epoch"] > 0
    marker = json.loads((tmp_path / "run" / "PREEMPTED").read_text())
    assert marker["why"] in (why, "a signal to another rank")


def test_under_srun_what_is_typed_counts(monkeypatch):
    for name in "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE":
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setattr(local_processes, "follow_slurm", lambda *words: pytest.fail("its task"))
    monkeypatch.setattr(local_processes, "start_this_node", lambda *words: words)
    words = "--no-accel --world-size 2 --rank 1 --nproc-per-node 3 --dist-url tcp://a:1"
    with pytest.raises(SystemExit) as ended:
        ddp.launch(None, ddp.parse_args(words.split()))
    assert ended.value.code == (3, 0, 2, 1, "tcp://a:1")
