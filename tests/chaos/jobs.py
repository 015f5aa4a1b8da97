"""What the trials share: the scripts started, watched and killed."""

import atexit
import contextlib
import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from conftest import BIN, ROOT, copy_script, free_port, write_images

# BatchNorm, dropout, float32 masters and a loss scale that moves: all that a checkpoint must hold.
NET = "-a mobilenet_v3_small --image-size 32 --no-accel -j 1 -b 8 -p 1".split()
GREETING = "Logs and checkpoints"  # the last line before training
WAYS = {  # to start, and a script of each
    "plain": "imagenet_nd.py",
    "own spawn": "imagenet_ddp.py",
    "static": "imagenet_ddp.py",
    "torchrun": "imagenet_ddp.py",
    "launch": "imagenet_ddp_apex.py",
    "horovodrun": "imagenet_horovod.py",
}


def trials(cases, short=()):
    """Returns pytest's parameters of a trial, tuples: `make chaos` tries `cases`, `make test-all`
    those in `short`, which are some of them, or smaller."""
    cases, short = [*cases], [*short]
    marked = []
    for case in dict.fromkeys([*cases, *short]):
        marks = [pytest.mark.chaos] * (case in cases) + [pytest.mark.slow] * (case in short)
        marked.append(pytest.param(*case, marks=marks))
    return marked


@functools.cache
def stage():
    """Returns a folder with copies of the scripts, which stay as they are while the repository is
    edited, and with `data`: ten classes of 64 + 16 images."""
    folder = Path(tempfile.mkdtemp(prefix="chaos_stage_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for script in ROOT.glob("imagenet_*.py"):
        copy_script(script.name, folder)
    classes = [f"class{label}" for label in range(10)]
    write_images(folder / "data", 64, 16, classes, (32, 32))
    return folder


def start(way, script=None, ranks=2, *launcher):
    """Returns the words that start a script in one of six ways."""
    path, python = stage() / (script or WAYS[way]), sys.executable
    if way == "horovodrun" and not importlib.util.find_spec("horovod"):
        pytest.skip("Horovod is not built: `make horovod`")
    launch = [python, "-m", "torch.distributed.launch", f"--master_port={free_port()}"]
    static = ["torchrun", f"--master_port={free_port()}"]
    elastic = ["torchrun", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    return {
        "plain": [python, path],
        "own spawn": [python, path, "--nproc-per-node", ranks],
        "launch": [*launch, f"--nproc_per_node={ranks}", *launcher, path],
        "static": [*static, f"--nproc_per_node={ranks}", *launcher, path],
        "torchrun": [*elastic, f"--nproc_per_node={ranks}", *launcher, path],
        "horovodrun": ["horovodrun", "-np", ranks, *launcher, python, path],
    }[way]


class Job:
    """A command in a session of its own, with what it prints."""

    begun = []

    def __init__(self, words, folder, output=None, **env):
        folder.mkdir(exist_ok=True)
        self.begun.append(self)
        led = "IMAGENET_DIR|RANK|WORLD_SIZE|LOCAL_RANK|PYTHONPATH|MASTER_.*|TORCH.*|PYTEST.*"
        clean = {name: os.environ[name] for name in os.environ if not re.fullmatch(led, name)}
        clean |= {"PATH": f"{BIN}:{clean['PATH']}", "IMAGENET_DIR": str(stage() / "data")}
        self.mark = f"{folder} {time.monotonic_ns()}"
        clean |= {"OMP_NUM_THREADS": "1", "CHAOS": self.mark}
        self.output = output or folder / f"output{time.monotonic_ns()}.txt"
        heeds = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # also under nohup
        with open(self.output, "a") as file:
            self.process = subprocess.Popen(
                [str(word) for word in words],
                cwd=folder,
                env=clean | env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=heeds,
            )

    def text(self):
        return self.output.read_text(errors="replace")

    def errors(self):
        """Returns why the run ended, in its own words: its lines, and Python's time-out."""
        return re.findall(r"(?m)^.*?(?:\.py: error: |(?=Timeout \())(.*)", self.text())

    def traceback(self):
        """Returns whether a script, not its launcher, has ended in a traceback."""
        return bool(re.search(r'imagenet_\w+\.py", line \d+, in', self.text()))

    def is_there(self, found, seconds, pause=0.05):
        """Waits until found() is true; returns whether it was before the end and the time."""
        until = time.monotonic() + seconds
        while not found():
            if self.process.poll() is not None or time.monotonic() > until:
                return False
            time.sleep(pause)
        return True

    def wait_for(self, pattern, seconds=240):
        """Waits until it has printed something that matches."""
        if not self.is_there(lambda: re.search(pattern, self.text()), seconds):
            raise RuntimeError(f"no {pattern!r} in:\n{self.text()[-3000:]}")

    def wait(self, seconds=600):
        """Returns its exit status, or None where it is still running by then, and is killed."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            return None

    def processes(self):
        """Returns its processes, orphans too: they have its environment."""
        mine = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("CHAOS") == self.mark:
                    mine += [process] if process.status() != psutil.STATUS_ZOMBIE else []
        return mine

    def ranks(self):
        """Returns {rank: process}, of those that have been started by now."""
        found, all_of_it = {}, self.processes()
        for process in all_of_it:
            with contextlib.suppress(psutil.Error):
                number, above = rank_of(process), process.parent()
                if number is not None and not (above in all_of_it and rank_of(above) == number):
                    found[number] = process
        return found

    def left(self, seconds=10):
        """Returns how many processes are left after so many seconds."""
        until = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.1)
        return len(left)

    def outcome(self, seconds):
        """Waits for its end; returns (exit status, how many processes are left, both in words with
        the first line that says why)."""
        began, status = time.monotonic(), self.wait(seconds)
        seconds, left = time.monotonic() - began, self.left()
        line = [*self.errors(), "no line says so"][0][:100]
        return status, left, f"status {status} after {seconds:.1f} s, {left} processes left: {line}"

    def end(self):
        """Kills what is left of it."""
        for process in self.processes():
            kill(process)
        self.process.wait()


def rank_of(process):
    """Returns the rank that a launcher has given to a process, or None."""
    env = process.environ()
    number = env.get("RANK", env.get("HOROVOD_RANK"))
    return None if number is None else int(number)


def loaders(process):
    """Returns the loader workers of a rank: its forks."""
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        return [each for each in process.children() if each.cmdline() == words]
    return []


def kill(process, signum=signal.SIGKILL):
    with contextlib.suppress(psutil.Error):
        process.send_signal(signum)


def mount(*words):
    """Mounts, as root; returns whether that is possible."""
    return not subprocess.run(["mount", *map(str, words)], capture_output=True).returncode


def unmount(folder):
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
