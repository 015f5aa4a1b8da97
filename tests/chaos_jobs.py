"""What the trials of chaos.py share: the scripts started, watched and killed, their checkpoints
compared."""

import atexit
import contextlib
import functools
import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import PIL.Image
import psutil
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it names the points that it purges

from common import free_port  # noqa: E402

BIN = Path(sys.executable).parent
# BatchNorm, dropout, float32 masters and a loss scale that moves: all that a checkpoint must hold.
NET = "-a mobilenet_v3_small --image-size 32 --no-accel -j 1 -b 8 -p 1".split()
GREETING = "Logs and checkpoints: "  # the last line before training


class Skip(Exception):
    """Why the rest of a trial cannot be tried here."""


@functools.cache
def stage():
    """Returns a folder with copies of the scripts, which stay as they are while the repository is
    edited, and with `data`: ten classes of 64 + 16 images of one colour on noise."""
    folder = Path(tempfile.mkdtemp(prefix="chaos_stage_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for script in ROOT.glob("imagenet_*.py"):
        shutil.copy(script, folder)
    write_images(folder / "data", 64, 16, range(10))
    return folder


def write_images(data, train, val, classes):
    """Writes an ImageFolder of 32 x 32 pixels, with so many images in each class."""
    rng = np.random.default_rng(0)
    for part, images in (("train", train), ("val", val)):
        for label in classes:
            (data / part / f"class{label}").mkdir(parents=True)
            for serial in range(images):
                pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                pixels[4:24, 4:24] = (25 * label, 255 - 25 * label, 60 * label % 256)
                path = data / part / f"class{label}" / f"{serial}.jpg"
                PIL.Image.fromarray(pixels).save(path, quality=90)


def start(way, script="imagenet_ddp.py", ranks=2, *launcher):
    """Returns the words that start a script in one of six ways."""
    path, python = stage() / script, sys.executable
    if way == "horovodrun" and not importlib.util.find_spec("horovod"):
        raise Skip("Horovod is not built: `make horovod`")
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
        with open(self.output, "a") as file:
            self.process = subprocess.Popen(
                [str(word) for word in words],
                cwd=folder,
                env=clean | env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
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


class Hostile:
    """Makes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def saved(folder, name="checkpoint.pt"):
    """Returns the newest checkpoint of this name in a folder of runs, or None."""
    found = [*folder.glob(f"*/{name}")]
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


def load(path):
    return torch.load(path, map_location="cpu", weights_only=True)


def differences(one, other, where=""):
    """Returns where two checkpoints differ, to the bit; times, traffic and options aside."""
    if isinstance(one, dict) and isinstance(other, dict):
        aside = r"args|seconds|traffic|waited"
        keys = [key for key in {**one, **other} if not re.fullmatch(aside, str(key))]
        pairs = [(one.get(key), other.get(key), f"{where}/{key}") for key in keys]
        return [each for pair in pairs for each in differences(*pair)]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [each for n, pair in pairs for each in differences(*pair, f"{where}/{n}")]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and torch.equal(one, other)
    else:
        same = type(one) is type(other) and one == other
    return [] if same else [where]


def logged(folder):
    """Returns {(tag, step): values} of all points that the runs in a folder have logged."""
    points = {}
    for run in folder.iterdir():
        log = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
        for tag in log.Tags()["scalars"]:
            for event in log.Scalars(tag):
                points.setdefault((tag, event.step), set()).add(event.value)
    return points


def lost(whole, cut, damaged=False):
    """Returns where the last and the best checkpoint of two folders of runs differ, and their logs:
    a point is missing, or logged with another value. What is timed differs, but is logged with one
    value, unless it is validation's, or the newest checkpoint was damaged after its epoch ended."""
    odd = []
    for name in "checkpoint.pt", "model_best.pt":
        paths = saved(whole, name), saved(cut, name)
        there = [load(path) if path else None for path in paths]
        odd += [f"{name}{each}" for each in differences(*there)] if any(there) else [name]
    points, found = logged(whole), logged(cut)
    for tag, step in sorted({**points, **found}):
        theirs, mine = points.get((tag, step), set()), found.get((tag, step), set())
        same = mine == theirs
        if re.match("Throughput|Time|Data|IO|Network", tag):
            many = damaged or tag in ("Throughput/val", "Time/val")
            same = theirs and mine and (many or len(mine) == 1)
        odd += [] if same else [f"{tag} of {step}"]
    return odd


def verdict(odd):
    """Returns an outcome in words: what lost() has found."""
    equal = "checkpoint.pt, model_best.pt and log equal to the uninterrupted run's to the bit"
    return f"{len(odd)} entries differ, as {', '.join(odd[:2])}" if odd else equal


def mount(*words):
    """Mounts, as root; returns whether that is possible."""
    return not subprocess.run(["mount", *map(str, words)], capture_output=True).returncode


def unmount(folder):
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
