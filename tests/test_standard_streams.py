"""trainparts/standard_streams.py: what is printed reaches a reader who is slow, in order, and keeps
no process whose reader has stopped; and the scripts, whose output nobody reads."""

import contextlib
import fcntl
import functools
import io
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time

import psutil
import pytest
from conftest import EARLY, HOROVOD, ROOT, command, environment, free_port, scalars, write_images

from trainparts import standard_streams

slow = pytest.mark.slow
NET = "--no-accel -a vit_b_16 --image-size 32 --val-size 32 -b 4 -j 0 -p 1 --timeout 5".split()
LONG = ["--epochs", "4000", "--steps-per-epoch", "4"]


def small_pipe():
    """Returns (reading, writing end) of a pipe of 4 kB."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4096)
    return ends


PROGRAM = """
import os, sys, time
sys.path.insert(0, {root!r})
from trainparts import endings, errors, standard_streams
standard_streams.never_wait()
{code}
"""


@pytest.fixture
def begin():
    """begin(code, stdout, stderr=stdout): starts a program whose streams do not wait."""
    started = []

    def begin(code, out, err=None, **options):
        words = [sys.executable, "-c", PROGRAM.format(root=str(ROOT), code=code)]
        streams = {"stdout": out, "stderr": out if err is None else err}
        started.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, **streams, **options))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def read_all(descriptor):
    """Returns all that comes until the other end is closed."""
    parts = []
    with contextlib.suppress(OSError):  # a terminal's end
        while part := os.read(descriptor, 65536):
            parts.append(part)
    return b"".join(parts).decode()


def filled(pipe, count):
    """Waits until so many bytes are in a pipe."""
    until = time.monotonic() + 60
    while standard_streams.unread_bytes(pipe) < count:
        assert time.monotonic() < until
        time.sleep(0.01)


def exists(path):
    """Waits until a program has made a file."""
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


LINES = """
for n in range({count}):
    print(f"line {{n:05}} " + 50 * "x", file=sys.stderr if n % 3 == 0 else sys.stdout, flush=True)
"""


@pytest.mark.parametrize("pipe", [small_pipe, os.pipe])
def test_nobody_reads(pipe, begin):
    """The program goes on, and ends; a quarter of the pipe stays free for others."""
    reading, writing = pipe()
    code = LINES.format(count=3000) + "standard_streams.deliver(0.2); os._exit(7)"
    process = begin(code, writing)
    assert process.wait(60) == 7
    room = fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)
    assert 0.6 < standard_streams.unread_bytes(reading) / room <= 0.75
    os.close(writing)
    first = read_all(reading).splitlines()
    assert [each[:10] for each in first] == [f"line {n:05}" for n in range(len(first))]
    assert len(first) > 20, "what the pipe takes is written"


@pytest.mark.parametrize("end", ["", "os._exit(0)", "endings.end_process(0)"])
def test_a_slow_reader_gets_all(end, begin):
    """In order, of both streams; but for a process that ends at once, all by the end."""
    reading, writing = os.pipe()
    process = begin(LINES.format(count=2000) + end, writing)
    os.close(writing)
    filled(reading, 40_000)
    if "os." in end:
        process.wait(60)
    lines = read_all(reading).splitlines()
    wanted = [f"line {n:05}" for n in range(2000)]
    assert [each[:10] for each in lines] == (wanted[: len(lines)] if "os." in end else wanted)
    assert process.wait(60) == 0


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_what_is_taken_in_parts_comes_whole(at_once, monkeypatch):
    """As a socket or a terminal takes a part of what is sent."""
    reading, writing = os.pipe()
    reader = standard_streams.Reader(writing)
    monkeypatch.setattr(reader, "put", lambda piece: os.write(writing, piece[:at_once]))
    reader.take(b"one line\nand another\n")
    reader.take(b"the last\n")
    for descriptor in {reader.own, writing}:
        os.close(descriptor)
    assert read_all(reading) == "one line\nand another\nthe last\n"


def test_what_was_left_out_is_said(begin, tmp_path):
    """Of more than is kept, whole lines are missing, and only these."""
    reading, writing = os.pipe()
    printed, read = tmp_path / "printed", tmp_path / "read"
    code = f"standard_streams.KEPT = 10_000{LINES.format(count=5000)}"
    code += f"open({str(printed)!r}, 'w')\n"
    code += f"while not os.path.exists({str(read)!r}): time.sleep(0.01)"
    process = begin(f"{code}\nprint('again', flush=True)", writing)
    os.close(writing)
    exists(printed)
    first = os.read(reading, standard_streams.unread_bytes(reading)).decode()
    read.touch()
    lines = (first + read_all(reading)).splitlines()
    assert process.wait(60) == 0
    gap = next(n for n, line in enumerate(lines) if not line.startswith("line"))
    missing = int(
        re.fullmatch(r"\((\d+) lines were left out here: nobody read them\)", lines[gap])[1]
    )
    numbers = [int(line[5:10]) for line in lines if line.startswith("line")]
    assert numbers == [*range(gap), *numbers[gap:]] and lines[-1] == "again"
    assert missing == 5000 - len(numbers)


def test_a_terminal_that_is_stopped(begin, tmp_path):
    """By Ctrl-S; after Ctrl-Q all comes."""
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    assert before[0] & termios.IXON, "it heeds Ctrl-S"
    os.write(master, b"\x13")
    code = LINES.format(count=200) + "print(os.isatty(1), sys.stderr.isatty())"
    process = begin(f"{code}; open({str(tmp_path / 'printed')!r}, 'w')", slave)
    exists(tmp_path / "printed")
    assert process.poll() is None, "it waits as it ends"
    os.write(master, b"\x11")
    text = b""
    while not text.endswith(b"True True\r\n"):
        assert select.select([master], [], [], 60)[0], text[-200:]
        text += os.read(master, 65536)
    assert process.wait(30) == 0
    lines = text.decode().splitlines()
    assert [line[:10] for line in lines[:-1]] == [f"line {n:05}" for n in range(200)]
    os.close(master)
    os.close(slave)


def test_a_socket_that_nobody_reads(begin):
    """As journald's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        code = LINES.format(count=5000) + "standard_streams.deliver(0.2); os._exit(0)"
        process = begin(code, theirs)
        assert process.wait(60) == 0
        assert ours.recv(10).decode() == "line 00000"
        process = begin("print('more', flush=True)", theirs)
        theirs.close()
        text = b""
        while part := ours.recv(65536):
            text += part
    assert text.endswith(b"more\n")


def test_descriptors_stay_as_they_are(begin, tmp_path):
    """O_NONBLOCK is a matter of all processes that have the file; a file needs no stream."""
    reading, writing = os.pipe()
    with open(tmp_path / "file", "wb") as file:
        code = "print(sys.stdout.fileno(), os.get_blocking(1), sys.stderr is sys.__stderr__)"
        process = begin(code, writing, file)
        assert process.wait(60) == 0
    assert os.get_blocking(writing)
    os.close(writing)
    assert read_all(reading) == "1 True True\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_encoding_and_buffering_are_kept(unbuffered, begin):
    """Also of `python -u`, which writes at once."""
    reading, writing = os.pipe()
    code = """
names = "encoding", "errors", "line_buffering", "write_through"
for kind in "", "__":
    for name in "stdout", "stderr":
        stream = getattr(sys, kind + name + kind)
        print(*[getattr(stream, each) for each in names])
print(sys.stdout is sys.__stdout__)
os._exit(0)
"""
    env = environment(PYTHONIOENCODING="latin-1:replace", PYTHONUNBUFFERED=unbuffered)
    assert begin(code, writing, env=env).wait(60) == 0
    os.close(writing)
    lines = read_all(reading).splitlines()
    assert lines[:2] == lines[2:4] if unbuffered else not lines
    assert lines[4:] == (["False"] if unbuffered else [])
    if unbuffered:
        assert lines[0].endswith(" replace False True")


def test_a_closed_pipe_ends_nothing(begin):
    reading, writing = os.pipe()
    os.close(reading)
    code = "time.sleep(0.1)\nfor n in range(99): errors.print_line('x' * 999)\nos._exit(7)"
    assert begin(code, writing).wait(60) == 7


def test_a_fork_writes_nothing_twice(begin, tmp_path):
    reading, writing = small_pipe()
    code = LINES.format(count=100)
    code += f"""
if not os.fork():
    print("the child", flush=True)
    open({str(tmp_path / "printed")!r}, "w")
    standard_streams.deliver()
    os._exit(0)
os.wait()
"""
    process = begin(code, writing)
    os.close(writing)
    exists(tmp_path / "printed")
    text = read_all(reading)
    assert process.wait(60) == 0
    assert sorted({*text.splitlines()}) == sorted(text.splitlines())
    assert sum(line.startswith("line") for line in text.splitlines()) == 100


def test_lines_of_two_processes_do_not_mix(begin):
    reading, writing = small_pipe()
    code = "for n in range(500): print({!r} * 300, flush=True)\nstandard_streams.deliver(60)"
    env = {**os.environ, "PYTHONUNBUFFERED": ""}  # or a line is written as two
    processes = [begin(code.format(letter), writing, env=env) for letter in "ab"]
    os.close(writing)
    filled(reading, 2_000)
    lines = read_all(reading).splitlines()
    assert [process.wait(60) for process in processes] == [0, 0]
    assert sorted(lines) == ["a" * 300] * 500 + ["b" * 300] * 500


def test_the_timer_ends_a_process_whose_stderr_is_full(begin):
    """Python prints where it hangs before it ends the process."""
    reading, writing = small_pipe()
    os.write(writing, b"x" * 4096)
    code = "endings.start_timer(0.3, 0)\nsys.stdin = None\ntime.sleep(600)"
    assert begin(code, writing).wait(60) == 1
    reading, writing = os.pipe()
    assert begin(code, writing).wait(60) == 1
    os.close(writing)
    assert "Timeout (0:00:00.300000)!" in read_all(reading), "where it is read, it says so"


def test_streams_in_memory_stay(monkeypatch):
    """As of tests and notebooks; a missing one becomes /dev/null."""
    found = io.StringIO()
    monkeypatch.setattr(sys, "stdout", found)
    monkeypatch.setattr(sys, "stderr", None)
    standard_streams.never_wait()
    assert sys.stdout is found and sys.stderr.name == os.devnull
    standard_streams.deliver(0)
    sys.stderr.close()


def test_a_daemon_without_stderr_prints_nothing_and_goes_on(tmp_path):
    code = "sys.stderr.write('x'); errors.print_line('y', sys.stderr); print(sys.stderr.name)"
    words = ["bash", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c"]
    words.append(PROGRAM.format(root=str(ROOT), code=code))
    assert subprocess.check_output(words, text=True, cwd=tmp_path) == f"{os.devnull}\n"


def test_what_has_been_replaced_is_not_again(begin):
    reading, writing = os.pipe()
    code = "kept = sys.stdout, sys.stderr; standard_streams.never_wait()\n"
    code += "print(kept == (sys.stdout, sys.stderr), sys.stdout is sys.__stdout__)"
    assert begin(code, writing).wait(60) == 0
    os.close(writing)
    assert read_all(reading) == "True False\n"


@pytest.fixture
def pipe():
    """(reading, writing end, Reader) of a pipe of 4 kB, 3 kB of which are filled at most. To read
    from it while it is empty is an error: the test would wait for ever."""
    reading, writing = small_pipe()
    os.set_blocking(reading, False)
    yield reading, writing, standard_streams.Reader(writing)
    for descriptor in reading, writing:
        os.close(descriptor)


def test_what_a_pipe_does_not_take_is_kept_and_written_later(pipe):
    reading, _, reader = pipe
    lines = [b"%02d " % n + b"x" * 96 + b"\n" for n in range(45)]
    for line in lines:
        reader.take(line)
    assert standard_streams.unread_bytes(reading) == 3000 and reader.kept == b"".join(lines[30:])
    assert os.read(reading, 10_000) == b"".join(lines[:30])
    reader.write()
    assert os.read(reading, 10_000) == b"".join(lines[30:]) and not reader.kept


def test_lines_that_are_left_out_are_counted(pipe, monkeypatch):
    """What a line begins that is too long for what is kept, and all until the reader is back."""
    reading, _, reader = pipe
    reader.take(b"x" * 3000 + b"\n")
    monkeypatch.setattr(standard_streams, "KEPT", 100)
    reader.take(b"y" * 99 + b"\n")
    for written in b"lost, too\n", b"one\ntwo\n", b"more":
        reader.take(written)
    assert reader.kept == b"y" * 99 + b"\n"
    assert os.read(reading, 10_000) == b"x" * 3000 + b"\n"
    reader.take(b"again\n")
    said = b"(3 lines were left out here: nobody read them)\n"
    assert os.read(reading, 10_000) == b"y" * 99 + b"\n" + said + b"again\n"
    reader.take(b"once\n")
    assert os.read(reading, 10_000) == b"once\n"


def test_one_write_may_be_longer_than_what_is_kept(pipe, monkeypatch):
    reading, _, reader = pipe
    monkeypatch.setattr(standard_streams, "KEPT", 100)
    for _ in range(2):
        reader.take(b"x" * 1000 + b"\n")
        assert os.read(reading, 10_000) == b"x" * 1000 + b"\n"


@pytest.mark.parametrize(
    ("kept", "piece"),
    [
        (b"", b""),
        (b"one\ntwo\nthr", b"one\ntwo\n"),
        (b"part", b"part"),
        (b"x" * 4095 + b"\n" + b"y\n", b"x" * 4095 + b"\n"),
        (b"x\n" + b"y" * 4094 + b"\n", b"x\n"),
        (b"x" * 5000 + b"\n", b"x" * 4096),
    ],
)
def test_a_piece_is_as_many_whole_lines_as_a_pipe_takes_at_once(kept, piece, pipe):
    """4,096 bytes on Linux."""
    pipe[2].kept[:] = kept
    assert pipe[2].piece() == piece


def test_c_code_has_a_descriptor_that_does_not_wait(begin):
    """But for a socket, or a file, whose own it has."""
    reading, writing = os.pipe()
    code = "given = standard_streams.descriptor_that_does_not_wait()\n"
    code += "print(given <= 2, os.get_blocking(given), os.get_blocking(2))"
    assert begin(code, writing).wait(60) == 0
    os.close(writing)
    assert read_all(reading) == "False False True\n"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert begin(code, theirs).wait(60) == 0
        theirs.close()
        assert read_all(ours.fileno()) == "True True True\n"


def test_a_file_needs_no_reader(tmp_path, monkeypatch):
    with open(tmp_path / "file", "w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        standard_streams.never_wait()
        assert sys.stderr is file
        assert standard_streams.descriptor_that_does_not_wait() == file.fileno()


# ------------------------------------------------------------------------------------ the scripts


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"), train=16, val=4, size=(32, 32))


@pytest.fixture
def unread(tmp_path, images):
    """unread(words, stream): starts a script whose output nobody reads, by a shell where `words` is
    a text."""
    started = []

    def unread(words, out, **env):
        shell = isinstance(words, str)
        started.append(
            subprocess.Popen(
                words if shell else [*map(str, [*words, images])],
                cwd=tmp_path,
                env=environment(**env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                shell=shell,
            )
        )
        return started[-1]

    yield unread
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def trained(folder, steps):
    """Waits until a run has logged so many steps."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with contextlib.suppress(Exception):  # a log that has just begun
            if len(scalars(folder, "Loss/step")) >= steps:
                return
        time.sleep(0.5)
    raise AssertionError(f"no {steps} steps in {folder}")


def saved(folder):
    """Checks that a run was saved by a signal."""
    assert (folder / "PREEMPTED").exists()
    assert (folder / "checkpoint.pt").exists()


def test_a_script_saves_though_nobody_reads_it(unread, tmp_path):
    reading, writing = small_pipe()
    os.write(writing, b"x" * 4096)
    words = [*command("imagenet_nd.py"), *NET, *LONG, "--output-dir", "run"]
    assert unread(words, writing, **EARLY).wait(120) == 143
    saved(tmp_path / "run")


PORT = f"--master_port={free_port()}"
TORCHRUN = ["-m", "torch.distributed.run", "--nproc_per_node=2", PORT]
LAUNCH = ["-m", "torch.distributed.launch", "--nproc_per_node=2", PORT]
WAYS = {  # words before a script, the script, and words after it
    "one": ([sys.executable], "imagenet_nd.py", []),
    "own": ([sys.executable], "imagenet_ddp.py", ["--nproc-per-node", "2"]),
    "torchrun": ([sys.executable, *TORCHRUN], "imagenet_ddp.py", []),
    "launch": ([sys.executable, *LAUNCH], "imagenet_ddp.py", []),
    "horovodrun": (["horovodrun", "-np", "2", sys.executable], "imagenet_horovod.py", []),
}


@slow
@pytest.mark.parametrize("way", WAYS)
def test_a_launcher_passes_signals_on_though_nobody_reads(way, unread, tmp_path):
    """The pipe is full when the signal comes, but for the quarter that is left to launchers. What
    horovodrun itself has to print is read once the run is saved, as it waits for that."""
    if way == "horovodrun" and not HOROVOD:
        pytest.skip("Horovod is not built: `make horovod`")
    before, script, after = WAYS[way]
    reading, writing = os.pipe()
    words = [*before, ROOT / script, *after, *NET, *LONG, "--output-dir", "run"]
    process = unread(words, writing)
    trained(tmp_path / "run", 800)
    assert standard_streams.unread_bytes(reading) > 40_000
    process.terminate()
    if way == "horovodrun":
        until = time.monotonic() + 60
        while not (tmp_path / "run" / "PREEMPTED").exists() and time.monotonic() < until:
            time.sleep(0.1)
        read = functools.partial(os.read, reading, 2**16)
        threading.Thread(target=lambda: [*iter(read, b"")], daemon=True).start()
    status = process.wait(90)
    # Those of others have statuses of their own.
    assert status == 143 if way in ("one", "own") else status
    saved(tmp_path / "run")


@slow
@pytest.mark.parametrize("way", ["one", "own"])
@pytest.mark.parametrize("when", ["training", "validation", "set-up"])
def test_the_time_out_ends_a_run_that_nobody_reads(way, when, unread, tmp_path):
    """A rank, or its loader worker, is stopped."""
    before, script, after = WAYS[way]
    reading, writing = small_pipe()
    options = ["--epochs", "4000", "--steps-per-epoch", "4" if when == "training" else "1"]
    options += ["-j", "1"] if way == "one" else []
    words = [*before, ROOT / script, *after, *NET, *options, "--output-dir", "run"]
    process = unread(words, writing)
    if when != "set-up":
        trained(tmp_path / "run", 8)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        below = psutil.Process(process.pid).children(recursive=True)
        if len(below) >= (1 if way == "one" else 2):
            break
        time.sleep(0.05)
    below[-1].suspend()
    try:
        assert process.wait(120) == 1
    finally:
        with contextlib.suppress(psutil.Error):
            below[-1].kill()


@slow
def test_tee_that_is_stopped(unread, tmp_path, images):
    """As by a disk that does not answer: SIGTERM to the group saves."""
    script = " ".join(map(str, [sys.executable, ROOT / "imagenet_nd.py", *NET, *LONG]))
    line = f"{script} --output-dir run '{images}' 2>&1 & echo $! > pid; wait"
    process = unread(f"({line}) | tee log", subprocess.DEVNULL)
    trained(tmp_path / "run", 4)
    (tee,) = [
        each
        for each in psutil.Process(process.pid).children(recursive=True)
        if each.name() == "tee"
    ]
    tee.suspend()
    trained(tmp_path / "run", 900)
    training = psutil.Process(int((tmp_path / "pid").read_text()))
    training.terminate()
    training.wait(60)
    saved(tmp_path / "run")
    tee.resume()


@slow
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_terminal_stopped_by_ctrl_s(goes_on, unread, tmp_path):
    """Training goes on; after Ctrl-Q the terminal shows how it ended."""
    master, slave = pty.openpty()
    words = [*command("imagenet_nd.py"), *NET, *LONG, "--output-dir", "run"]
    process = unread(words, slave)
    os.close(slave)
    trained(tmp_path / "run", 4)
    os.write(master, b"\x13")
    trained(tmp_path / "run", 200)
    process.terminate()
    if goes_on:
        time.sleep(5)
        os.write(master, b"\x11")
        shown = read_all(master)
        assert "stopped by SIGTERM" in shown
    assert process.wait(60) == 143
    saved(tmp_path / "run")
