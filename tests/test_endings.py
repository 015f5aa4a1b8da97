"""trainparts/endings.py: signals, the timer, the parent and the limits by which a process ends."""

import faulthandler
import os
import re
import signal
import subprocess
import sys
import time
from unittest import mock

import psutil
import pytest
from conftest import ROOT

from trainparts import endings

PROGRAM = """
import multiprocessing, os, resource, signal, sys, time
from trainparts import endings, standard_streams
"""


@pytest.fixture
def begin():
    """begin(code): starts a program that has imported the part; its stdout is to be read."""
    started = []

    def begin(code, **options):
        words = [sys.executable, "-c", PROGRAM + code]
        options = {"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL, **options}
        started.append(subprocess.Popen(words, cwd=ROOT, text=True, **options))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def program(begin):
    """program(code): runs it; returns (exit status, stdout)."""

    def run(code, **options):
        process = begin(code, **options)
        output = process.communicate(timeout=120)[0]
        return process.returncode, output

    return run


# ----------------------------------------------------------------------------------------- signals


def test_what_launchers_and_terminals_send_is_handled():
    names = {each.name for each in endings.SIGNALS}
    assert names == {"SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"}


def test_signals_that_are_promised_are_handled():
    text = (ROOT / "README.md").read_text()
    promised = re.search(r"^7\. (.*?) save at the current step", text, re.MULTILINE)[1]
    names = set(re.findall("SIG[A-Z0-9]+", promised))
    assert names == {"SIGTERM", "SIGUSR1", "SIGINT"}
    assert names <= {each.name for each in endings.SIGNALS}


@pytest.fixture
def handlers():
    """Has signals be handled as before at the end of the test."""
    before = {each: signal.getsignal(each) for each in (*endings.SIGNALS, signal.SIGCHLD)}
    yield before
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("how", [signal.SIG_DFL, signal.SIG_IGN])
def test_all_of_them_are_handled_but_what_nohup_ignores(how, handlers):
    """Others that are ignored are not nohup's, such as SIGINT of what a shell starts with `&`."""
    for each in endings.SIGNALS:
        signal.signal(each, how)
    came = []
    signal.signal(signal.SIGCHLD, lambda *_: 1 / 0)  # stands for PyTorch's
    endings.handle_signals(lambda signum, frame: came.append(signum))
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    for each in endings.SIGNALS:
        if each != signal.SIGHUP or how == signal.SIG_IGN:
            os.kill(os.getpid(), each)
    assert came == [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
    if how == signal.SIG_DFL:
        os.kill(os.getpid(), signal.SIGHUP)
        assert came[3:] == [signal.SIGHUP]


@pytest.fixture
def moments(monkeypatch):
    """moments(*(second, signal)): what on_signal() records of these; (records, exit statuses)."""
    monkeypatch.setattr(os, "_exit", ended := mock.Mock())

    def come(*moments):
        signals = []
        for second, signum in moments:
            monkeypatch.setattr(time, "monotonic", lambda second=second: second)
            endings.on_signal(signals, signum, None)
        return signals, [call.args[0] for call in ended.call_args_list]

    return come


INT, TERM, USR1 = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1


@pytest.mark.parametrize(
    ("came", "ended"),
    [
        # Ctrl-C comes from the terminal and from the launcher.
        ([(100.0, INT), (100.5, INT)], []),
        ([(100.0, INT), (101.0, INT)], []),
        ([(100.0, INT), (100.5, INT), (102.0, INT)], [130]),
        # Its moment counts from the first.
        ([(100.0, INT), (100.9, INT), (101.5, INT)], [130]),
        # The first Ctrl-C saves, whatever came before: a scheduler may have sent a signal.
        ([(100.0, TERM), (101.5, INT)], []),
        ([(100.0, USR1), (160.0, INT), (160.5, INT)], []),
        ([(100.0, USR1), (160.0, INT), (161.5, INT)], [130]),
        # Slurm sends SIGUSR1 some time before SIGTERM.
        ([(100.0, USR1), (102.0, TERM), (104.0, TERM)], []),
        ([(100.0, INT), (102.0, TERM), (102.5, USR1)], []),
        ([(100.0, signal.SIGHUP)], []),
    ],
)
def test_a_second_ctrl_c_ends_at_once_and_no_other_signal(came, ended, moments):
    signals, statuses = moments(*came)
    assert statuses == ended
    assert signals == [(signum.name, second) for second, signum in came]


# ------------------------------------------------------------------------------------------- timer


@pytest.fixture
def timer(monkeypatch):
    """The seconds of each timer that was started, and its options."""
    started = []
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda *seconds, **how: started.append((seconds, how))
    )
    endings.start_timer.cache_clear()
    yield started
    endings.start_timer.cache_clear()


def test_the_timer_starts_again_once_a_second(timer, monkeypatch):
    """It is a thread: in each step it would take longer than the rest of the loop."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for now[0] in 100.0, 100.4, 100.9, 101.0, 101.5, 102.2, 130.0:
        endings.arm_timeout(40)
    assert [seconds for seconds, _ in timer] == [(70,)] * 4
    endings.arm_timeout(50)
    assert timer[4][0] == (80,)


def test_without_a_time_out_there_is_no_timer(timer):
    endings.arm_timeout(0)
    endings.arm_timeout(0, compiles=True)
    assert timer == []


def test_a_time_out_of_0_cancels_the_timer(timer, monkeypatch):
    """Which starts again within the same second."""
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    cancel = "cancel_dump_traceback_later"
    monkeypatch.setattr(faulthandler, cancel, lambda: timer.append("cancelled"))
    for seconds in 40, 0, 40:
        endings.arm_timeout(seconds)
    started = ((70,), {"exit": True, "file": mock.ANY})
    assert timer == [started, "cancelled", started]


def test_a_compilation_has_an_hour_more(timer):
    endings.arm_timeout(40, compiles=True)
    endings.arm_timeout(40, compiles=False)
    assert [seconds for seconds, _ in timer] == [(3670,), (70,)]


def test_the_timer_ends_the_process_and_says_where(timer, monkeypatch):
    monkeypatch.setattr(endings.standard_streams, "descriptor_that_does_not_wait", lambda: 77)
    endings.arm_timeout(0.5)
    assert timer == [((30.5,), {"exit": True, "file": 77})]


def test_a_process_that_hangs_is_ended(program):
    status, output = program(
        "def hangs():\n    time.sleep(600)\nendings.start_timer(0.2, 0)\nhangs()",
        stderr=subprocess.STDOUT,
    )
    assert status == 1
    assert output.startswith("Timeout (0:00:00.200000)!\n") and " in hangs\n" in output


# ------------------------------------------------------------------------------------------ parent


@pytest.mark.parametrize(("name", "ended"), [("SIGTERM", "SIGTERM"), ("SIGKILL", None)])
def test_a_process_gets_a_signal_when_its_parent_ends(name, ended, begin):
    """Also where that was killed, and could tell nobody."""
    parent = begin(f"""
if not os.fork():
    signal.signal(signal.SIGTERM, lambda *words: (print("SIGTERM", flush=True), os._exit(0)))
    endings.end_with_parent(signal.{name})
    print(os.getpid(), flush=True)
    time.sleep(100)
    os._exit(0)
time.sleep(100)
""")
    child = int(parent.stdout.readline())
    assert psutil.pid_exists(child)
    parent.kill()
    # Both have the pipe, whose end comes when no process has it.
    assert parent.stdout.read() == (f"{ended}\n" if ended else "")


def test_a_system_that_has_no_such_signal_is_no_error(monkeypatch):
    for library in mock.Mock(side_effect=OSError), mock.Mock(side_effect=AttributeError):
        monkeypatch.setattr(endings.ctypes, "CDLL", library)
        endings.end_with_parent(signal.SIGTERM)
        assert library.called


# ----------------------------------------------------------------------------------------- the end


def test_the_limit_of_open_files_is_raised_to_the_hard_one(program):
    code = """
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 70))
endings.allow_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    assert program(code) == (0, "(70, 70)\n")


def test_a_limit_that_cannot_be_raised_stays(monkeypatch):
    for error in OSError, ValueError:
        refused = mock.Mock(side_effect=error)
        monkeypatch.setattr(endings.resource, "setrlimit", refused)
        endings.allow_open_files()
        hard = endings.resource.getrlimit(endings.resource.RLIMIT_NOFILE)[1]
        refused.assert_called_once_with(endings.resource.RLIMIT_NOFILE, (hard, hard))


def test_a_process_ends_at_once_with_its_workers(begin):
    """Which heed no SIGTERM; no exit handler runs, and what was printed is printed."""
    code = """
import atexit
atexit.register(print, "an exit handler")
def work():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.set()
    time.sleep(600)
ready = multiprocessing.get_context("fork").Event()
worker = multiprocessing.get_context("fork").Process(target=work)
worker.start()
ready.wait()
standard_streams.never_wait()
print(worker.pid)
try:
    endings.end_process(7)
finally:
    print("it returned")
"""
    process = begin(code)
    output = process.communicate(timeout=120)[0]  # its end comes when the worker has ended, too
    assert process.returncode == 7 and re.fullmatch(r"\d+\n", output)


def test_a_process_ends_when_what_it_has_printed_is_read(begin, tmp_path):
    """A pipe takes a part of it."""
    printed = tmp_path / "printed"
    process = begin(f"""
standard_streams.never_wait()
for number in range(2000):
    print(number, 90 * "x")
sys.stdout.flush()
open({str(printed)!r}, "w")
endings.end_process(7)
""")
    while not printed.exists():
        assert process.poll() is None
        time.sleep(0.01)
    lines = process.communicate(timeout=120)[0].splitlines()
    assert [line.split()[0] for line in lines] == [*map(str, range(2000))]
    assert process.returncode == 7
