"""trainparts/launch/local_processes.py: what launchers say, and how ranks are started and ended."""

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest import mock

import pytest

from trainparts import endings, errors
from trainparts.launch import local_processes

SIZES = "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE", "SLURM_STEP_NUM_TASKS"
RANKS = "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
ELASTIC = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT"


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Has no launcher have started the tests; puts back what is set in them."""
    for name in (*SIZES, *RANKS, *ELASTIC):
        monkeypatch.setenv(name, "")
        del os.environ[name]


# ------------------------------------------------------------------------------- what launchers say


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", ["", "1", "2"])
def test_an_empty_variable_is_no_launcher(name, value, monkeypatch):
    assert local_processes.started_several() is False
    monkeypatch.setenv(name, value)
    assert local_processes.started_several() == (value == "2")


@pytest.mark.parametrize(
    ("maximum", "count", "may"),
    [
        (None, None, False),
        ("0", "0", False),
        ("3", "0", True),
        ("0", "1", True),
        ("3", "3", True),
        (None, "2", True),
        ("2", None, True),
    ],
)
def test_a_launcher_restarts_ranks_or_has_done_so(maximum, count, may, monkeypatch):
    for name, value in zip(ELASTIC[1:], (maximum, count), strict=True):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert local_processes.may_restart() is may


@pytest.mark.parametrize(
    ("environ", "numbers"),
    [
        ({}, [0, 1, 0, 1]),
        (
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
            [5, 8, 1, 4],
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, [1, 2, 0, 1]),
        ({"LOCAL_RANK": "3"}, [0, 1, 3, 1]),
    ],
)
def test_numbers_of_a_rank_are_a_launchers_or_those_of_one_alone(environ, numbers, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert local_processes.own_numbers() == numbers


@pytest.mark.parametrize(
    "wrong",
    [
        {"RANK": "x"},
        {"WORLD_SIZE": ""},
        {"LOCAL_RANK": "-1"},
        {"LOCAL_WORLD_SIZE": "1.0"},
        {"RANK": "2"},
        {"RANK": "3"},
        {"WORLD_SIZE": "0", "RANK": "0"},
    ],
)
def test_numbers_that_do_not_fit_are_shown(wrong, monkeypatch):
    values = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} | wrong
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.BadInput) as raised:
        local_processes.own_numbers()
    expected = f"a launcher sets these to numbers, RANK below WORLD_SIZE: {values}"
    assert str(raised.value) == expected


@pytest.fixture
def end_with_parent(monkeypatch):
    monkeypatch.setattr(endings, "end_with_parent", told := mock.Mock())
    return told


@pytest.mark.parametrize("follow", ["follow_launcher", "follow_torchrun"])
@pytest.mark.parametrize(
    ("run_id", "own", "ends"), [(None, False, 0), ("", False, 0), ("none", False, 1)]
)
def test_a_rank_of_torchrun_ends_with_it(follow, run_id, own, ends, end_with_parent, monkeypatch):
    if run_id is not None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
    made = getattr(local_processes, follow)()
    assert made is (own if follow == "follow_launcher" else None)
    assert end_with_parent.call_args_list == [mock.call(signal.SIGTERM)] * ends


def test_a_rank_of_start_this_node_knows_it(end_with_parent, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", f"process {os.getppid()}")
    assert local_processes.follow_launcher() is True
    end_with_parent.assert_called_once_with(signal.SIGTERM)


def test_a_rank_whose_launcher_is_gone_already_ends(end_with_parent, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", f"process {os.getpid()}")
    for follow in local_processes.follow_launcher, local_processes.follow_torchrun:
        with pytest.raises(errors.Fault) as raised:
            follow()
        assert str(raised.value) == "the launcher was killed"


@pytest.mark.parametrize("follow", ["follow_launcher", "follow_torchrun"])
def test_the_option_of_old_launchers_counts_where_no_variable_does(follow, monkeypatch):
    follow = getattr(local_processes, follow)
    follow(None)
    assert "LOCAL_RANK" not in os.environ
    follow(2)
    assert os.environ["LOCAL_RANK"] == "2"
    follow(3)
    assert os.environ["LOCAL_RANK"] == "2"


@pytest.mark.parametrize("name", SIZES)
def test_a_launcher_that_sets_no_rank_is_refused_where_torchrun_is_needed(name, monkeypatch):
    monkeypatch.setenv(name, "2")
    with pytest.raises(errors.BadInput) as raised:
        local_processes.follow_torchrun()
    expected = "this launcher sets no RANK: start this script with torchrun"
    assert str(raised.value) == expected
    monkeypatch.setenv("RANK", "0")
    local_processes.follow_torchrun()


@pytest.mark.parametrize("run_id", ["process {}", "none"])
def test_the_ranks_of_a_killed_launcher_get_sigterm(run_id):
    """Of this one, and of torchrun. The pipe ends when no process has it any more."""
    reading, writing = os.pipe()
    if not (launcher := os.fork()):
        run_id = run_id.format(os.getpid())
        if not os.fork():
            signal.signal(signal.SIGTERM, lambda *words: (os.write(writing, b"SIGTERM"), die()))
            with contextlib.suppress(BaseException):
                os.environ["TORCHELASTIC_RUN_ID"] = run_id
                local_processes.follow_launcher()
                os.write(writing, b"ready ")
                signal.alarm(60)
                signal.pause()
            die()
        signal.pause()
        die()
    os.close(writing)
    with open(reading, "rb", buffering=0) as said:
        assert said.read(6) == b"ready "
        os.kill(launcher, signal.SIGKILL)
        os.waitpid(launcher, 0)
        assert said.read() == b"SIGTERM"


def die():
    os.kill(os.getpid(), signal.SIGKILL)


# ------------------------------------------------------------------------------------------ Slurm

SRUN = {"SLURM_STEP_NODELIST": "gpu[07-08]-ib", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
SRUN |= {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "7"}


@pytest.fixture
def sees(monkeypatch):
    """sees(count): has PyTorch find so many GPUs."""
    accelerator = local_processes.torch.accelerator
    return lambda count: monkeypatch.setattr(accelerator, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("gpus", "no_accel", "local"),
    [
        # Of two nodes with four tasks each, the sixth: by all GPUs of its node, or by its own.
        (4, False, ("1", "4")),
        (1, False, ("0", "1")),
        (1, True, ("1", "4")),
        (0, False, ("1", "4")),
    ],
)
def test_places_of_srun(gpus, no_accel, local, sees):
    sees(gpus)
    env = SRUN.copy()
    assert local_processes.follow_slurm(env, "8", no_accel) is None
    assert env == SRUN | {
        "MASTER_ADDR": "gpu07-ib",
        "MASTER_PORT": "20007",
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": local[0],
        "LOCAL_WORLD_SIZE": local[1],
    }


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[07-09,12]-ib", "gpu07-ib"),
        ("gpu[3,5-9]", "gpu3"),
        ("gpu7", "gpu7"),
        ("login-a,gpu[1-2]", "login-a"),
        ("rack[01-02]node[3-4]", "rack01node3"),
        ("gpu1.cluster.example,gpu2.cluster.example", "gpu1.cluster.example"),
        (None, "127.0.0.1"),
    ],
)
def test_ranks_of_srun_meet_at_the_first_node(nodes, first, sees):
    sees(4)
    env = SRUN | {"SLURM_STEP_NODELIST": nodes}
    env = {name: value for name, value in env.items() if value is not None}
    assert local_processes.variables_of_slurm(env, "8", False)["MASTER_ADDR"] == first


@pytest.mark.parametrize(
    ("job", "port"), [("7", "20007"), ("9999", "29999"), ("123456", "23456"), (None, "20000")]
)
def test_two_jobs_of_a_node_meet_at_ports_of_their_own(job, port, sees):
    sees(4)
    env = SRUN | {"SLURM_JOB_ID": job}
    env = {name: value for name, value in env.items() if value is not None}
    assert local_processes.variables_of_slurm(env, "8", False)["MASTER_PORT"] == port


def test_where_ranks_of_srun_meet_may_be_set(sees):
    sees(4)
    known = {"MASTER_ADDR": "here", "MASTER_PORT": "99"}
    made = local_processes.variables_of_slurm(SRUN | known, "8", False)
    assert known.items() <= made.items()


@pytest.mark.parametrize(
    ("tasks", "here"), [("4(x2)", "4"), ("3,2", "3"), ("12(x3),1", "12"), ("2", "2")]
)
def test_tasks_of_a_node(tasks, here, sees):
    sees(0)
    env = SRUN | {"SLURM_STEP_TASKS_PER_NODE": tasks}
    assert local_processes.variables_of_slurm(env, "8", False)["LOCAL_WORLD_SIZE"] == here


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"SLURM_LOCALID": None}, "KeyError: 'SLURM_LOCALID'"),
        ({"SLURM_PROCID": None}, "KeyError: 'SLURM_PROCID'"),
        ({"SLURM_JOB_ID": "x"}, "ValueError: invalid literal for int() with base 10: 'x'"),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "x"},
            "ValueError: invalid literal for int() with base 10: ''",
        ),
        ({"SLURM_STEP_TASKS_PER_NODE": None}, "KeyError: 'SLURM_STEP_TASKS_PER_NODE'"),
    ],
)
def test_variables_that_are_not_srun_s(odd, why):
    """A line, and nothing is set."""
    env = {name: value for name, value in (SRUN | odd).items() if value is not None}
    before = dict(env)
    with pytest.raises(errors.BadInput) as raised:
        local_processes.follow_slurm(env, "2", no_accel=True)
    assert str(raised.value) == (
        f"SLURM_STEP_NUM_TASKS is 2, but srun's other variables are not as it sets them ({why}); "
        "without srun, unset SLURM_STEP_NUM_TASKS"
    )
    assert raised.value.__suppress_context__ and env == before


# ----------------------------------------------------------------------------- ranks of this node

SLEEPS = "import time; time.sleep(60)"
SIGNALLED = "import time; time.sleep(59)"  # SIGTERM comes to its launcher while it starts
STOPPED = "import os, signal; print(flush=True); os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.fixture
def handlers():
    """Has signals be handled as before at the end of the test."""
    before = {signum: signal.getsignal(signum) for signum in (*endings.SIGNALS, signal.SIGALRM)}
    yield before
    signal.alarm(0)
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.fixture
def start(handlers, monkeypatch):
    """start(*programs): has the launcher start programs in place of ranks, and returns its status;
    the others have a second in place of 30 to end in. start.ended: how it has ended itself, but for
    that it goes on here."""
    alarm, popen, started = signal.alarm, subprocess.Popen, []

    def run(*programs):
        waiting = iter(programs)

        def begin(words, env):
            program = next(waiting)
            process = popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
            if program is SIGNALLED:
                os.kill(os.getpid(), signal.SIGTERM)
            if "print(flush=True)" in program:
                process.stdout.readline()  # it heeds no signal but SIGKILL, now or soon
            process.wait = functools.partial(process.wait, 20)  # or it would be for ever
            started.append(process)
            return process

        monkeypatch.setattr(local_processes.subprocess, "Popen", begin)
        monkeypatch.setattr(local_processes.signal, "alarm", lambda seconds: alarm(min(1, seconds)))
        return local_processes.start_this_node(len(programs), 0)

    run.started, run.ended = started, mock.Mock()
    monkeypatch.setattr(local_processes.os, "_exit", run.ended)
    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_a_stopped_rank_is_killed(start):
    """And hides no status of a rank that has said what the user must change."""
    assert start(STOPPED, "raise SystemExit(2)") == 2
    assert start.started[0].returncode == -signal.SIGKILL


def ended_by(name):
    return f"import os, signal; os.kill(os.getpid(), signal.{name})"


LIBRARY = "a library crashed; PYTHONFAULTHANDLER=1 has Python print where"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("SIGKILL", "out of memory?"),
        ("SIGBUS", "was a file cut short, or is /dev/shm full?"),
        ("SIGSEGV", LIBRARY),
        ("SIGABRT", LIBRARY),
        ("SIGILL", LIBRARY),
    ],
)
def test_a_rank_that_crashed_is_named(name, why, start):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
    with pytest.raises(errors.Fault) as raised:
        start(SLEEPS, limit + ended_by(name))
    assert str(raised.value) == f"a rank was ended by {name}: {why}"
    assert start.started[0].poll() == -signal.SIGTERM, "the other was asked to save"


def test_python_prints_where_a_library_crashed():
    """As the line advises."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
    words = [sys.executable, "-c", f"{limit}import ctypes; ctypes.string_at(0)"]
    env = os.environ | {"PYTHONFAULTHANDLER": "1"}
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == -signal.SIGSEGV and "in string_at" in done.stderr


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGUSR1", 138)])
def test_a_rank_that_a_signal_ended_did_not_crash(name, status, start):
    assert start(ended_by(name)) == status


def test_a_signal_reaches_a_rank_that_is_being_started(start):
    assert start(SIGNALLED) == 143
    assert start(SIGNALLED, SLEEPS) == 143


def test_ranks_that_end_well(start):
    assert start("", "") == 0
    assert start("raise SystemExit(143)", STOPPED) == 143
    assert signal.alarm(0) == 0, "an alarm would end the launcher with a status of its own"


LATE = "import signal, time; signal.signal(signal.SIGTERM, lambda *words: quit({})); "
LATE += "print(flush=True); time.sleep(60)"


@pytest.mark.parametrize(
    ("others", "first", "status"),
    [(2, 1, 2), (1, 2, 2), (1, 143, 1), (2, 143, 2), (143, 1, 1), (143, 3, 3), (0, 1, 1)],
)
def test_a_mistake_counts_more_than_a_rank_that_is_gone_and_both_more_than_a_signal(
    others, first, status, start
):
    """Whichever ends first."""
    assert start(LATE.format(others), f"raise SystemExit({first})") == status


HEARS = """
import os, signal, sys, time
heard = []
for each in set({sent}):
    signal.signal(each, lambda signum, frame: heard.append(signum))
for count, each in enumerate({sent}, 1):
    os.kill(os.getppid(), each)
    until = time.monotonic() + 20
    while len(heard) < count and time.monotonic() < until:
        time.sleep(0.01)
sys.exit(143 if heard == {sent} else 1)
"""


def clock(monkeypatch, *moments):
    """Has the launcher's clock show these moments; the last of them for ever."""
    moments = [*moments]
    monotonic = lambda: moments.pop(0) if moments[1:] else moments[0]  # noqa: E731
    fake = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    monkeypatch.setattr(local_processes, "time", fake)


@pytest.mark.parametrize(
    "sent",
    [[signal.SIGUSR1, signal.SIGTERM], [signal.SIGTERM, signal.SIGTERM], [signal.SIGHUP] * 2],
)
def test_the_launcher_passes_a_second_signal_on(sent, start, monkeypatch):
    """And does not kill ranks that are saving, as a second Ctrl-C does. The rank sends both."""
    clock(monkeypatch, 100.0, 130.0)
    assert start(HEARS.format(sent=[*map(int, sent)])) == 143
    assert not start.ended.called


def test_ctrl_c_comes_twice_from_a_terminal(start, monkeypatch):
    """From the terminal, and from what started the launcher: within a second, it is one."""
    clock(monkeypatch, 100.0, 100.9, 120.0)
    assert start(HEARS.format(sent=[int(signal.SIGINT)] * 2)) == 143
    assert not start.ended.called


def test_a_second_ctrl_c_kills_the_ranks_and_ends_the_launcher(start, monkeypatch):
    """A second after the first, not after the one before."""
    clock(monkeypatch, 100.0, 100.9, 101.1)
    with pytest.raises(errors.Fault, match="SIGKILL"):
        start(HEARS.format(sent=[int(signal.SIGINT)] * 3))
    assert start.started[0].returncode == -signal.SIGKILL
    start.ended.assert_called_once_with(130)


def test_what_nohup_has_the_launcher_ignore_stays_ignored(start):
    """By its ranks as well, to which it passes nothing on."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    heeds = "import os, signal; os.kill(os.getppid(), signal.SIGHUP); "
    heeds += "quit(signal.getsignal(signal.SIGHUP) != signal.SIG_IGN)"
    assert start(heeds) == 0
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


SAYS = """
import json, os, sys
names = "MASTER_ADDR MASTER_PORT WORLD_SIZE LOCAL_WORLD_SIZE TORCHELASTIC_RUN_ID RANK LOCAL_RANK"
known = {name: os.environ[name] for name in [*names.split(), "TORCH_CPP_LOG_LEVEL", "KEPT"]}
known |= {"words": sys.argv[1:], "optimized": sys.flags.optimize}
open(f"rank {known['RANK']}", "w").write(json.dumps(known))
"""


@pytest.mark.parametrize(
    ("node", "url", "address", "port"),
    [
        ({}, None, "127.0.0.1", None),
        ({}, "tcp://somewhere.example:29500", "somewhere.example", "29500"),
        ({"nodes": 3, "node": 2}, "tcp://[fe80::1]:65535/", "fe80::1", "65535"),
        ({"nodes": 2, "node": 0}, "tcp://10.0.0.1:1", "10.0.0.1", "1"),
    ],
)
def test_ranks_are_this_command_with_torchruns_variables(
    node, url, address, port, handlers, tmp_path, monkeypatch
):
    """Options of Python as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEPT", "yes")
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-OO", "-c", SAYS, "--lr", "a b"])
    assert local_processes.start_this_node(2, 2, url=url, **node) == 0
    nodes, number = node.get("nodes", 1), node.get("node", 0)
    paths = [tmp_path / f"rank {2 * number + local}" for local in range(2)]
    assert sorted(tmp_path.iterdir()) == paths
    for local, path in enumerate(paths):
        said = json.loads(path.read_text())
        found = said.pop("MASTER_PORT")
        assert found == port if port else 0 < int(found) < 65536
        assert said == {
            "MASTER_ADDR": address,
            "WORLD_SIZE": str(2 * nodes),
            "LOCAL_WORLD_SIZE": "2",
            "TORCHELASTIC_RUN_ID": f"process {os.getpid()}",
            "RANK": str(2 * number + local),
            "LOCAL_RANK": str(local),
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "KEPT": "yes",
            "words": ["--lr", "a b"],
            "optimized": 2,
        }
    if not port:
        with socket.create_server(("127.0.0.1", int(found))):
            pass  # it is free


URL, NEED = "tcp://a:1", "nodes count from 0, and all need node 0's --dist-url"


@pytest.mark.parametrize(
    ("numbers", "more", "why"),
    [
        (
            (2, 0),
            {"nodes": 2, "node": 2, "url": "tcp://a:1"},
            f"--rank 2 of --world-size 2: {NEED}",
        ),
        ((2, 0), {"nodes": 1, "node": 1}, f"--rank 1 of --world-size 1: {NEED}"),
        ((2, 0), {"nodes": 2, "node": 0}, f"--rank 0 of --world-size 2: {NEED}"),
        ((2, 0), {"nodes": 2, "node": 1, "url": ""}, f"--rank 1 of --world-size 2: {NEED}"),
        *[
            ((2, 0), {"url": url}, f"--dist-url {url} is not of the form tcp://HOST:PORT")
            for url in (
                "a:99 tcp://a tcp://a:x tcp://a:0 tcp://a:65536 tcp://:99 http://a:99 tcp://a:9/x "
                "tcp://[a]b:9"
            ).split()
        ],
        ((3, 2), {}, "--nproc-per-node 3: this node has 2 GPUs, or --no-accel"),
    ],
)
def test_nodes_that_do_not_fit_together_start_nothing(numbers, more, why, monkeypatch):
    monkeypatch.setattr(local_processes.subprocess, "Popen", None)
    with pytest.raises(errors.BadInput) as raised:
        local_processes.start_this_node(*numbers, **more)
    assert str(raised.value) == why
