"""How imagenet_ddp.py starts its ranks, ends them, and how they meet: in this process."""

import contextlib
import datetime
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import conftest
import psutil
import pytest
import torch.distributed as dist
from conftest import BIN, ROOT, STARTED, command, environment, free_port, load, the_line

import imagenet_ddp as ddp
from trainparts import endings, errors
from trainparts.launch import local_processes, rendezvous

SLEEPS = "import time; time.sleep(60)"
SIGNALLED = "import time; time.sleep(59)"  # SIGTERM comes to its launcher while it starts
STOPPED = "import os, signal; print(flush=True); os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.fixture
def start(monkeypatch):
    """Returns a function that has the launcher start programs in place of ranks, and gives its
    status; the others have a second in place of 30 to end in."""
    before = {signum: signal.getsignal(signum) for signum in (*endings.SIGNALS, signal.SIGALRM)}
    alarm, popen, started = signal.alarm, subprocess.Popen, []

    def run(*programs):
        waiting = iter(programs)

        def begin(words, env):
            program = next(waiting)
            process = popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
            if program is SIGNALLED:
                os.kill(os.getpid(), signal.SIGTERM)
            if program is STOPPED:
                process.stdout.readline()  # soon it heeds no signal but SIGKILL
            process.wait = functools.partial(process.wait, 20)  # or it would be for ever
            started.append(process)
            return process

        monkeypatch.setattr(local_processes.subprocess, "Popen", begin)
        monkeypatch.setattr(local_processes.signal, "alarm", lambda seconds: alarm(min(1, seconds)))
        return local_processes.start_this_node(len(programs), 0)

    yield run
    signal.alarm(0)
    for signum, handler in before.items():
        signal.signal(signum, handler)
    for process in started:
        process.kill()


def test_a_stopped_rank_is_killed(start):
    """And hides no status of a rank that has said what the user must change."""
    assert start(STOPPED, "raise SystemExit(2)") == 2


def test_a_rank_that_crashed_is_named(start):
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(errors.Fault, match="a rank was ended by SIGKILL"):
        start(SLEEPS, killed)


def test_a_signal_reaches_a_rank_that_is_being_started(start):
    assert start(SIGNALLED) == 143
    assert start(SIGNALLED, SLEEPS) == 143


def test_ranks_that_end_well(start):
    assert start("", "") == 0
    assert start("raise SystemExit(143)", STOPPED) == 143
    assert signal.alarm(0) == 0, "an alarm would end the launcher with a status of its own"


@pytest.mark.parametrize(
    ("sees", "process", "expected"),
    [
        # Of two nodes with four tasks each, the sixth: by all GPUs of its node, or by its own.
        (4, 5, {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}),
        (1, 5, {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}),
    ],
)
def test_places_of_srun(sees, process, expected, monkeypatch):
    monkeypatch.setattr(ddp.torch.accelerator, "device_count", lambda: sees)
    env = {"SLURM_STEP_NODELIST": "gpu[07-08]-ib", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
    env |= {"SLURM_PROCID": str(process), "SLURM_LOCALID": str(process % 4), "SLURM_JOB_ID": "7"}
    local_processes.follow_slurm(env, "8", no_accel=False)
    expected |= {"MASTER_ADDR": "gpu07-ib", "MASTER_PORT": "20007"}
    assert {name: env[name] for name in expected} == expected


@pytest.mark.parametrize(
    "odd", [{"SLURM_LOCALID": None}, {"SLURM_JOB_ID": "x"}, {"SLURM_STEP_TASKS_PER_NODE": "x"}]
)
def test_variables_that_are_not_srun_s(odd):
    """A line, and nothing is set."""
    env = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2"} | odd
    env = {name: value for name, value in env.items() if value is not None}
    before = dict(env)
    with pytest.raises(errors.BadInput, match="SLURM_STEP_NUM_TASKS is 2, but srun's other"):
        local_processes.follow_slurm(env, "2", no_accel=True)
    assert env == before


def test_a_restarted_rank_reads_the_port_of_its_own_start(monkeypatch):
    """torchrun's store still has that of the start before, where nobody listens any more."""
    launchers = dist.TCPStore("127.0.0.1", 0, None, True)
    launchers.set("port", str(free_port()))
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launchers.port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")

    def rank_0():
        time.sleep(2)
        stores.append(rendezvous.open_store(0, 2, True, "gloo", wait))

    wait = datetime.timedelta(seconds=20)
    stores, first = [], threading.Thread(target=rank_0)
    first.start()
    store, _ = rendezvous.open_store(1, 2, True, "gloo", wait)
    first.join()
    stores[0][0].set("here", "yes")
    assert store.get("here") == b"yes"


def test_ctrl_c_comes_twice_from_a_terminal(monkeypatch):
    """From the terminal and from the launcher; a second one, later, ends at once."""
    clock, ended, signals = mock.Mock(return_value=100.0), mock.Mock(), []
    monkeypatch.setattr(ddp.time, "monotonic", clock)
    monkeypatch.setattr(ddp.os, "_exit", ended)
    for moment, calls in (100.0, 0), (100.5, 0), (102.0, 1):
        clock.return_value = moment
        endings.on_signal(signals, signal.SIGINT, None)
        assert ended.call_count == calls
    assert signals[0] == ("SIGINT", 100.0)


def test_a_second_signal_of_another_kind_leaves_time_to_save(monkeypatch):
    """Slurm sends SIGUSR1 some time before SIGTERM."""
    clock, ended, signals = mock.Mock(return_value=100.0), mock.Mock(), []
    monkeypatch.setattr(ddp.time, "monotonic", clock)
    monkeypatch.setattr(ddp.os, "_exit", ended)
    for moment, signum in (100.0, signal.SIGUSR1), (102.0, signal.SIGTERM), (104.0, signal.SIGTERM):
        clock.return_value = moment
        endings.on_signal(signals, signum, None)
    assert not ended.called and [name for name, _ in signals] == ["SIGUSR1", "SIGTERM", "SIGTERM"]


SAVES = """
import os, signal, sys, time

heard = []
for each in signal.SIGUSR1, signal.SIGTERM:
    signal.signal(each, lambda signum, frame: heard.append(signum))
for each in signal.SIGUSR1, signal.SIGTERM:
    time.sleep(1.5)
    os.kill(os.getppid(), each)
until = time.monotonic() + 15
while {*heard} != {signal.SIGUSR1, signal.SIGTERM} and time.monotonic() < until:
    time.sleep(0.1)
time.sleep(0.5)  # it saves
sys.exit(143 if time.monotonic() < until else 1)
"""


def test_the_launcher_passes_a_second_signal_on(start, monkeypatch):
    """And does not kill ranks that are saving, as a second Ctrl-C does. The rank sends both."""
    ended = mock.Mock()
    monkeypatch.setattr(ddp.os, "_exit", ended)
    assert start(SAVES) == 143
    assert not ended.called


# -------------------------------------------------------------------- killed, and a closed terminal

RUN = "-a vit_b_16 --image-size 32 --no-accel -j 1 -b 8 -p 1 --epochs 1000 --output-dir run".split()


def begin(words, folder, demo, imports=False):
    """Starts a command in a session of its own, as a terminal does, with a file for its output:
    a fork that has imported what it needs, unless that is to take its time."""
    words, file = [*map(str, words), *RUN, str(demo)], folder / "output.txt"
    if not imports:
        return conftest.begin(words, folder, environment(), file=file, own_session=True)
    heeds = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # also below nohup
    with open(file, "w") as output:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=heeds,
        )
    STARTED.append(process)
    return process


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


@pytest.mark.parametrize("way", ["own", "torchrun"])
def test_the_launcher_is_killed_while_its_ranks_import(way, demo, tmp_path):
    """Without sizes that are typed, by which a rank might notice."""
    words = torchrun() if way == "torchrun" else command("imagenet_ddp.py")[:2]
    process = begin(words, tmp_path, demo, imports=True)
    ranks, until = [], time.monotonic() + 60
    while not ranks and time.monotonic() < until:
        time.sleep(0.01)
        with contextlib.suppress(psutil.Error):  # a fork of the launcher has not its rank yet
            ranks = [each for each in ranks_of(process) if "LOCAL_RANK" in each.environ()]
    (rank,) = ranks
    time.sleep(0.5)  # importing takes seconds
    process.kill()
    try:
        rank.wait(30)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.kill()
    why = "the launcher was killed" if way == "own" else "torchrun was killed, or its node is gone"
    assert why in the_line((tmp_path / "output.txt").read_text())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("way", ["own", "torchrun"])
def test_the_launcher_is_killed_in_training(way, demo, tmp_path):
    """Its ranks save and end."""
    two = torchrun("--nproc_per_node=2") if way == "torchrun" else command("imagenet_ddp.py", 2)
    process = begin(two, tmp_path, demo)
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


def test_a_terminal_that_closes_before_training(demo, tmp_path):
    process = begin(command("imagenet_ddp.py", 2), tmp_path, demo, imports=True)
    while len(ranks_of(process)) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 129
    assert not (tmp_path / "run").exists()


def test_what_ends_a_group_that_does_not_form_is_over_once_it_has(monkeypatch):
    """Or it would end the run in training, 20 seconds after --timeout."""
    for name in "WORLD_SIZE", "GLOO_SOCKET_IFNAME":
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(endings, "arm_timeout", lambda *args: None)
    args = ddp.parse_args(["--no-accel", "--timeout", "100"])
    ddp._form_group(args, ddp.Place(ddp.torch.device("cpu")))
    dist.destroy_process_group()
    timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    assert all(each.finished.is_set() for each in timers)


SIZES = "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE", "SLURM_STEP_NUM_TASKS"


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", ["", "1", "2"])
def test_an_empty_variable_is_no_launcher(name, value, monkeypatch):
    for each in SIZES:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, value)
    assert local_processes.started_several() == (value == "2")


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


def test_a_mistake_of_the_user_counts_more_than_a_rank_that_is_gone(start):
    late = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); "
    gone = "import time; time.sleep(1); raise SystemExit(1)"
    assert start(f"{late}time.sleep(1.5); raise SystemExit(2)", gone) == 2
