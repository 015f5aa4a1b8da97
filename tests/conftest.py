"""What the tests share: the scripts run as users run them, and their logs read back."""

import atexit
import contextlib
import fcntl
import functools
import importlib
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import PIL.Image
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# Where a CPU has float16 arithmetic of its own (AVX512-FP16), kernels round in orders of their own,
# and equality with a reference would hold on other CPUs alone. Read when PyTorch first computes.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
ENVIRON = dict(os.environ)  # before what tests import and call here changes it

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.name for path in ROOT.glob("imagenet_*.py"))
BIN = Path(sys.executable).parent
sys.path.insert(0, str(ROOT))

try:
    importlib.import_module("horovod.torch")
    HOROVOD = True
except ImportError:
    HOROVOD = False
needs_horovod = pytest.mark.skipif(not HOROVOD, reason="Horovod is not built: `make horovod`")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Tests run beside each other by pytest-xdist, but for those marked `alone`."""
    kind = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with open(ROOT / "pyproject.toml") as gate, open(__file__) as place:
        fcntl.flock(gate, fcntl.LOCK_EX)  # held by one that waits, lest others go on and on
        fcntl.flock(place, kind)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(place, fcntl.LOCK_UN)  # closing would not do, where forks have it open


def free_port():
    """Returns a port that stays free until a script takes it: not one of those that systems hand
    out, nor of another pytest-xdist worker."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = 22_000 + 1_000 * (worker % 10) + random.randrange(1_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def command(script, ranks=1):
    """Returns the words that start `script` with so many ranks, as its docstring says."""
    path = str(ROOT / script)
    if script == "imagenet_ddp.py":
        words = [sys.executable, path, "--nproc-per-node", str(ranks)]
        return words if ranks == 1 else [*words, "--dist-url", f"tcp://127.0.0.1:{free_port()}"]
    if script == "imagenet_ddp_apex.py" and ranks > 1:
        port = f"--master_port={free_port()}"
        launcher = [sys.executable, "-m", "torch.distributed.launch", port]
        return [*launcher, f"--nproc_per_node={ranks}", path]
    if script == "imagenet_horovod.py" and ranks > 1:
        return [str(BIN / "horovodrun"), "-np", str(ranks), sys.executable, path]
    assert ranks == 1, f"{script} has one rank"
    return [sys.executable, path]


def environment(**more):
    """Returns this environment less what would lead the scripts astray, with the small ViTs."""
    led = ("IMAGENET_DIR", "RANK", "WORLD_SIZE", "LOCAL_RANK", "PYTHONPATH", "PYTEST_CURRENT_TEST")
    env = {name: value for name, value in ENVIRON.items() if name not in led}
    env |= {"PATH": f"{BIN}{os.pathsep}{env['PATH']}", "OMP_NUM_THREADS": "1"}
    return {**env, "PYTHONPATH": str(ROOT / "tests" / "small_models"), **more}


def run(words, cwd, status=0, env=(), timeout=300):
    """Runs a command; returns its output, having checked its exit status. Programs of this folder
    are forked with their imports done, unless `env` has something of theirs."""
    words, env = [str(word) for word in words], environment(**dict(env))
    if words[0] == sys.executable and (words[1] == "-m" or Path(words[1]).is_absolute()):
        server = fork_server()
        if server and server.env == env:
            output, ended = server.run(words, cwd, timeout)
            assert status is None or ended == status, output
            return output
    done = subprocess.run(
        words,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert status is None or done.returncode == status, done.stdout
    return done.stdout


def complaint(words, cwd, only=True, **options):
    """Runs a command that must fail; returns its last line, after checking that it stands alone."""
    lines = run(words, cwd, status=2, **options).strip().splitlines()
    assert not [line for line in lines if "Traceback" in line], lines
    assert len(lines) == 1 or not only, lines
    assert ".py: error: " in lines[-1]
    return lines[-1]


class ForkServer:
    """Runs Python programs in forks of a process that has done their imports: fork_server.py."""

    def __init__(self):
        self.env = environment()
        self.control, theirs = socket.socketpair()
        server, port = ROOT / "tests" / "fork_server.py", theirs.fileno()
        self.process = subprocess.Popen(
            [sys.executable, str(server), str(port)],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[port],
        )
        theirs.close()

    def run(self, words, cwd, timeout):
        """Returns the program's output, to the end of all that have it open, and its status."""
        try:
            output, theirs = socket.socketpair()
            with output:
                request = json.dumps([words, str(cwd)]).encode()
                socket.send_fds(self.control, [request], [theirs.fileno()])
                theirs.close()
                output.settimeout(timeout)
                written = b"".join(iter(lambda: output.recv(1 << 16), b""))
            self.control.settimeout(timeout)
            text = io.StringIO(written.decode(), newline=None).read()  # each end of line is \\n
            return text, int(self.control.recv(16))
        except BaseException:  # too late, or interrupted: with the program ends its server
            os.killpg(self.process.pid, signal.SIGKILL)
            fork_server.cache_clear()
            raise

    def stop(self):
        """Ends the server."""
        self.control.shutdown(socket.SHUT_RDWR)  # closing would not do, where forks have it open
        self.process.wait()


@functools.cache
def fork_server():
    """Returns the server, once started; None where there are GPUs, whose drivers bear no fork."""
    gpus = importlib.import_module("torch").accelerator.is_available()
    if gpus or sys.platform != "linux":
        return None
    server = ForkServer()
    atexit.register(server.stop)
    return server


def the_run(log_dir):
    """Returns the folder of the one run in `log_dir`, beside which the index of its data may be."""
    (folder,) = [path for path in Path(log_dir).iterdir() if path.name != ".index"]
    return folder


def scalars(log_dir, tag):
    """Returns {step: value} of a tag from the one run in `log_dir`."""
    folder = the_run(log_dir)
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {event.step: event.value for event in events.Scalars(tag)}


def checkpoint(log_dir, name="checkpoint.pt"):
    """Returns the path of a checkpoint of the one run in `log_dir`."""
    return the_run(log_dir) / name


def write_images(folder, train=4, val=2, classes=("cat", "dog"), size=(48, 40)):
    """Writes an ImageFolder of JPEGs: so many images in each class of train/ and val/."""
    for part, images in ("train", train), ("val", val):
        for label, name in enumerate(classes):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for number in range(images):
                colour = (40 * number % 256, 90 * label % 256, 7 * number % 256)
                PIL.Image.new("RGB", size, colour).save(folder / part / name / f"{number}.jpg")
    return folder


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """The demo set, drawn once."""
    folder = tmp_path_factory.mktemp("demo") / "demo_data"
    importlib.import_module("imagenet_nd").draw_demo_set(folder)
    return folder
