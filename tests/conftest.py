"""What the tests share: the scripts run as users run them, and their logs read back."""

import collections
import contextlib
import faulthandler
import fcntl
import gc
import importlib
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import forked
import PIL.Image
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# Where a CPU has float16 arithmetic of its own (AVX512-FP16), kernels round in orders of their own,
# and equality with a reference would hold on other CPUs alone. Read when PyTorch first computes.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# One thread, as the scripts have here: on a busy machine several wait for each other, spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")
ENVIRON = dict(os.environ)  # before what tests import and call here changes it

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.name for path in ROOT.glob("imagenet_*.py"))
TEXT_SCRIPTS = sorted(path.name for path in ROOT.glob("text_*.py"))
BY_TORCHRUN = "imagenet_exchange.py", "imagenet_fsdp.py", "imagenet_pipeline.py"
BIN = Path(sys.executable).parent
SMALL = str(ROOT / "tests" / "small_models")
sys.path.insert(0, str(ROOT))
sys.path.append(SMALL)
importlib.import_module("checksums")  # also of logs that are read here

gc.set_threshold(100_000)  # as in small_models/
try:
    importlib.import_module("horovod.torch")
    HOROVOD = True
except ImportError:
    HOROVOD = False
needs_horovod = pytest.mark.skipif(not HOROVOD, reason="Horovod is not built: `make horovod`")
nd = importlib.import_module("imagenet_nd")
decoding = importlib.import_module("trainparts.images.decoding")
image_files = importlib.import_module("trainparts.images.image_files")
# What pytest or a plugin had imported before would not be that of these tests.
if package := sys.modules.get("trainparts"):
    assert Path(package.__file__).parent == ROOT / "trainparts", package.__file__
torch = nd.torch
torch.set_num_threads(1)  # where the environment says another number
# Of convolutional networks: small ViTs and single layers take no longer where it is emulated.
UNITS = torch.cpu.get_capabilities()
EMULATES = not any(UNITS[name] for name in UNITS if "bf16" in name)
EMULATED = "bfloat16 is emulated here"
needs_bfloat16 = pytest.mark.skipif(EMULATES, reason=EMULATED)


def pytest_collection_finish():
    """Has collections of garbage pass over what tests have imported: it is much, and stays."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item, nextitem):
    """Frees what a module's tests have left in cycles, as models: forks copy its page tables."""
    if nextitem and item.path != nextitem.path:
        gc.collect()


# Ends a run within its first steps: SIGTERM as it begins to train, which all ranks have read after
# two steps. small_models/ says how.
EARLY = {"SIGTERM_AT": "1"}


PORTS = collections.deque(maxlen=100)  # that free_port() has returned: not all are taken yet


def free_port():
    """Returns a port that stays free until a script takes it: not one of those that systems hand
    out, nor of another pytest-xdist worker."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = 22_000 + 1_000 * (worker % 10) + random.randrange(1_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            if port not in PORTS:
                PORTS.append(port)
                return port


def command(script, ranks=1):
    """Returns the words that start `script` with so many ranks, as its docstring says."""
    path, way = str(ROOT / script), script.removesuffix(".py").partition("_")[2]
    if way == "ddp":
        return [sys.executable, path, "--nproc-per-node", str(ranks)]
    if way == "ddp_apex" and ranks > 1:
        port = f"--master_port={free_port()}"
        launcher = [sys.executable, "-m", "torch.distributed.launch", port]
        return [*launcher, f"--nproc_per_node={ranks}", path]
    if way == "horovod" and ranks > 1:
        launcher = [sys.executable, str(ROOT / "tests" / "horovodrun.py")]
        return [*launcher, "-np", str(ranks), sys.executable, path]
    if way in ("exchange", "fsdp", "pipeline") and ranks > 1:
        port = f"--master_port={free_port()}"
        return [str(BIN / "torchrun"), port, f"--nproc_per_node={ranks}", path]
    assert ranks == 1, f"{script} has one rank"
    return [sys.executable, path]


def copy_script(name, folder, text=None):
    """Writes a script of this repository, or this text, into a folder, and beside it a copy of the
    package that scripts import; returns the script's path."""
    path, package = Path(folder) / name, Path(folder) / "trainparts"
    path.write_text((ROOT / name).read_text() if text is None else text)
    if not package.exists():
        shutil.copytree(ROOT / "trainparts", package, ignore=shutil.ignore_patterns("__pycache__"))
    return path


def by_horovodrun(words):
    """Returns command()'s words of several ranks of Horovod, for its own launcher: ranks are no
    forks."""
    return [str(BIN / "horovodrun"), *words[2:]]


# What a program of a test ends with that first does something to its process: it goes on as `python
# SCRIPT ...`, by the words in sys.argv, with the package that lies beside this script.
THEN_RUN = """
import os, runpy, sys
sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def environment(**more):
    """Returns this environment less what would lead the scripts astray, with the small ViTs."""
    led = "IMAGENET_DIR TEXT_DIR RANK WORLD_SIZE LOCAL_RANK PYTHONPATH PYTEST_CURRENT_TEST".split()
    env = {name: value for name, value in ENVIRON.items() if name not in led}
    env |= {"PATH": f"{BIN}{os.pathsep}{env['PATH']}", "OMP_NUM_THREADS": "1"}
    return {**env, "PYTHONPATH": SMALL, **more}


def losses_in_float64(words, cwd, file):
    """Runs a script that computes in float64 where it would in float32 (tests/small_models);
    returns {step: loss}, all digits of them, by way of a file that is not there yet."""
    run(words, cwd, env={"FLOAT64": str(file)})
    lines = [line.split() for line in file.read_text().splitlines()]
    losses = {int(step): float(loss) for step, loss in lines}
    assert len(losses) == len(lines), "one process writes"
    return losses


def run(words, cwd, status=0, env=(), timeout=300):
    """Runs a command; returns its output, having checked its exit status (None = any)."""
    words, env = [str(word) for word in words], environment(**dict(env))
    if env["PYTHONPATH"].endswith(SMALL) and forked.can_run(words):
        process = begin(words, cwd, env)
        output, ended = process.communicate(timeout)[0], process.returncode
    else:
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
        ended, output = done.returncode, done.stdout
    assert status is None or ended == status, output
    return output


def start(words, cwd, **env):
    """Starts a script, which goes on beside the test; its output is to be read."""
    return begin([*map(str, words)], cwd, environment(**env))


def begin(words, cwd, env, **options):
    forked.start_server(environment())
    STARTED.append(forked.Script(words, cwd, env, **options))
    return STARTED[-1]


def with_small(env):
    """Returns an environment, by default this process's, in which small_models/ is found."""
    env = {**(env or os.environ)}
    return env | {"PYTHONPATH": os.pathsep.join(filter(None, (SMALL, env.get("PYTHONPATH"))))}


def popen(words, cwd, env=None, stdout=None, **options):
    """Stands for subprocess.Popen() in a program that a test calls, and which writes its processes'
    output to a file."""
    words = [*map(str, words)]
    if not forked.can_run(words):
        return subprocess.Popen(words, cwd=cwd, env=env, stdout=stdout, **options)
    return begin(
        words, cwd, with_small(env), file=stdout.name, own_session=options.get("start_new_session")
    )


def run_forked(words, cwd=None, env=None, **options):
    """Stands for subprocess.run() in a program that a test calls; stderr is with stdout."""
    words = [*map(str, words)]
    process = begin(words, str(cwd or os.getcwd()), with_small(env))
    output = process.communicate()[0]
    return subprocess.CompletedProcess(words, process.returncode, output, output)


def words_of(line, cwd):
    """Returns the words of a command of Python, as a shell reads the line, by which run() runs it
    in a fork."""
    line = f"printf '%s\\0' {line}"
    words = subprocess.check_output(line, shell=True, cwd=cwd, text=True).split("\0")[:-1]
    assert Path(words[0]).name.startswith("python"), words
    return [sys.executable, *words[1:]]


STARTED = []


@pytest.fixture(autouse=True)
def what_was_started_ends():
    """Kills what start() has started, so that a test that fails leaves no ranks; and stops the
    clock that a script's function has armed in this process, which would end it minutes later."""
    yield
    faulthandler.cancel_dump_traceback_later()
    while STARTED:
        STARTED.pop().kill()


def start_ranks(script, cwd, *options, missing=0):
    """Starts a script as a launcher would, each rank with options of its own, less the last ranks
    if some are `missing`."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    place |= {"WORLD_SIZE": str(len(options) + missing)}
    return [
        start([sys.executable, ROOT / script, *own], cwd, **place, RANK=rank, LOCAL_RANK=rank)
        for rank, own in zip(map(str, range(len(options))), options, strict=True)
    ]


def interrupted(words, started, signum, cwd):
    """Starts a program, and once started() holds sends it a signal: SIGINT as Ctrl-C, to all of its
    processes, others to the first alone; returns (exit status, output)."""
    process = begin([*map(str, words)], cwd, environment(), own_session=True)
    try:
        while not started() and process.poll() is None:
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if signum == signal.SIGINT else os.kill)(process.pid, signum)
        # The end of the pipe comes when no process has it.
        output = process.communicate(timeout=120)[0]
        return process.returncode, output
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def the_line(output, only=True):
    """Returns the last line of what a script printed that ended in an error, one line of text."""
    lines = output.strip().splitlines()
    assert "Traceback" not in output, output
    assert len(lines) == 1 or not only, output
    assert re.search(r"\.py: (@\S+: )?error: ", lines[-1]), output
    return lines[-1]


def complaint(words, cwd, only=True, status=2, **options):
    """Runs a command that must fail; returns its last line, after checking that it stands alone."""
    return the_line(run(words, cwd, status=status, **options), only)


@pytest.fixture
def complaint_here(tmp_path, monkeypatch, capfd):
    """complaint(script, *options) in this process, which saves the imports: three seconds a start.

    Options have to be so bad that the run ends before its first step; begun=True where there may be
    a log by then.
    """

    def complain(script, *options, only=True, status=2, begun=False, **env):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [script, *map(str, options)])
        monkeypatch.setattr(os, "_exit", sys.exit)
        monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *args, **options: None)
        monkeypatch.setattr(threading, "excepthook", threading.excepthook)
        before, handlers = dict(os.environ), {each: signal.getsignal(each) for each in SIGNALS}
        for name in "IMAGENET_DIR", "TEXT_DIR":
            os.environ.pop(name, None)
        os.environ.update(env)
        try:
            with pytest.raises(SystemExit) as ended:
                importlib.import_module(script.removesuffix(".py")).main()
        finally:
            os.environ.clear()
            os.environ.update(before)
            for each, handler in handlers.items():
                signal.signal(each, handler)
            if torch.distributed.is_initialized():  # the script would have ended with its process
                torch.distributed.destroy_process_group()
        output = "".join(capfd.readouterr())
        assert ended.value.code == status, output
        assert begun or not list(tmp_path.glob("runs/*")), "no run is begun"
        return the_line(output, only)

    return complain


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGCHLD)


def the_run(folder):
    """Returns a run's folder: this one, or the only one in it, as in runs/."""
    if not [*Path(folder).glob("*tfevents*")]:
        (folder,) = Path(folder).iterdir()
    return Path(folder)


def events(folder):
    """Returns a reader of all that a run has logged."""
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def scalars(folder, tag):
    """Returns {step: value} of a tag from the_run() there."""
    return {event.step: event.value for event in events(the_run(folder)).Scalars(tag)}


def points(folder):
    """Returns {tag: [(step, value), ...]} of all that a run has logged, in its order."""
    log = events(folder)
    tags = log.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in log.Scalars(tag)] for tag in tags}


def record(folder, name):
    """Returns what a run has logged last by a name: "about" it, or its "end"."""
    last = events(folder).Tensors(f"{name}/text_summary")[-1]
    return json.loads(last.tensor_proto.string_val[0].decode().strip("`json\n"))


def checkpoint(folder, name="checkpoint.pt"):
    """Returns the path of a checkpoint of the_run() there."""
    return the_run(folder) / name


def load(path):
    """Returns a checkpoint, read as anyone would who does not trust it."""
    return torch.load(path, map_location="cpu", weights_only=True)


class Hostile:
    """Makes a file where it is unpickled: what a pickle that runs commands holds."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def write_file(path, content):
    """Writes bytes to a path whose folder need not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def damage(path, how):
    """Spoils a file: None removes it, or a folder; a number cuts it off there, before its end where
    it is negative; a function changes its bytes; bytes take its place."""
    if how is None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif isinstance(how, int):
        path.write_bytes(path.read_bytes()[:how])
    else:
        write_file(path, how(path.read_bytes()) if callable(how) else how)


def flip(at):
    """Returns a function for damage(): it changes one bit of the byte there."""
    return lambda content: content[:at] + bytes([content[at] ^ 1]) + content[at:][1:]


def no_table(encoded):
    """Returns a JPEG with five other bytes in its middle: a marker of a Huffman table that is none.
    OpenCV reads it, its second half grey; Pillow does not."""
    half = len(encoded) // 2
    return encoded[:half] + b"\xff\xc4\x00\x03\xff" + encoded[half + 5 :]


def members(path):
    """Returns {name: bytes} of a tar file."""
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def write_tar(path, content, mode="w"):
    """Writes a tar file of {name: bytes}."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:
        for name, inside in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(inside)
            tar.addfile(member, io.BytesIO(inside))
    return path


def write_images(folder, train=4, val=2, classes=("cat", "dog"), size=(48, 40)):
    """Writes an ImageFolder of JPEGs: so many images in each class of train/ and val/."""
    for split, images in ("train", train), ("val", val):
        for label, name in enumerate(classes):
            (folder / split / name).mkdir(parents=True, exist_ok=True)
            for number in range(images):
                colour = (40 * number % 256, 90 * label % 256, 7 * number % 256)
                PIL.Image.new("RGB", size, colour).save(folder / split / name / f"{number}.jpg")
    return folder


def write_text(folder):
    """Writes sentences of a few words: train.txt and val.txt, of 41 blocks of 32 bytes, the last of
    which is ragged; and as CoLA's train.tsv and dev.tsv, where those with "never" have class 0."""
    rng, rows = random.Random(0), []
    for _ in range(700):
        words = ["the", *rng.choices("old small red new".split(), k=rng.randrange(4))]
        words += [rng.choice("cat dog bird".split()), *["never"] * (rng.random() < 0.4)]
        rows.append(" ".join([*words, rng.choice("sees hears likes".split()), "the", "tree"]))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.txt").write_text("\n".join(rows[:600]))
    (folder / "val.txt").write_text("\n".join(rows[600:])[: 40 * 32 + 18])
    for name, some in ("train", rows[:600]), ("dev", rows[600:661]):
        lines = [f"own\t{int('never' not in row)}\t\t{row}\n" for row in some]
        (folder / f"{name}.tsv").write_text("".join(lines))
    return folder


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A folder of text, written once."""
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture
def call_tool(monkeypatch, capsys):
    """call_tool(program, *words, status=0): runs a program of tools/ in this process, which saves
    the imports; returns (stdout, stderr)."""

    def call(program, *words, status=0):
        decoding.region_decoder.cache_clear()  # each process makes its own
        monkeypatch.syspath_prepend(ROOT / "tools")
        monkeypatch.setattr(sys, "argv", [f"{program}.py", *map(str, words)])
        modules = dict(sys.modules)
        try:
            importlib.import_module(program).main()
            ended = 0
        except SystemExit as end:
            ended = end.code
        # A program that imports a changed script imports that script's trainparts/ anew.
        sys.modules |= {name: modules[name] for name in modules if name.startswith("trainparts")}
        output, errors = capsys.readouterr()
        assert ended == status, errors
        return output, errors

    return call


@pytest.fixture
def tool(call_tool):
    """tool(program, *words, status=0): returns what is printed, or, where the status is another,
    the one line of stderr."""

    def call(program, *words, status=0):
        output, errors = call_tool(program, *words, status=status)
        if status:
            (output,) = errors.splitlines()
            assert ": error: " in output
        return output

    return call


@contextlib.contextmanager
def locked(folder):
    """Holds the lock of a run's folder, as a run that trains there."""
    with open(folder / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """The demo set, generated once, with four images of each class to validate: an eighth."""
    folder = tmp_path_factory.mktemp("demo") / "demo_data"
    image_files.make_demo_set(folder)
    for label in (folder / "val").iterdir():
        for path in sorted(label.iterdir())[4:]:
            path.unlink()
    return folder


@pytest.fixture(scope="session")
def short_demo(demo, tmp_path_factory):
    """The demo set with two images of each class to validate, where losses of training count."""
    folder = tmp_path_factory.mktemp("short_demo")
    (folder / "train").symlink_to(demo / "train")
    for label in (demo / "val").iterdir():
        (folder / "val" / label.name).mkdir(parents=True)
        for path in sorted(label.iterdir())[:2]:
            (folder / "val" / label.name / path.name).symlink_to(path)
    return folder


# What Git LFS leaves in the place of a file.
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a" * 16 + b"\nsize 123\n"
)
FETCH = "is a pointer of Git LFS: `git lfs pull` in its folder fetches the file"

# ------------------------------------------------------------------- a run whose folder is used

VIT = ["-a", "vit_b_16", "--image-size", "32", "--no-accel", "-j", "0"]
# Three epochs of four steps; the rate depends on no epoch's end.
RUN = [*VIT, *"--epochs 3 --steps-per-epoch 4 -p 1 --lr 2 --warmup-epochs 0".split()]
ND, DDP = "imagenet_nd.py", "imagenet_ddp.py"
WAYS = {"one device": (ND, 1, "16"), "two ranks": (DDP, 2, "8")}  # a global batch of 16
SLOW = pytest.mark.slow
# Where two ranks do what one does, since rank 0 alone looks at the folder.
ALIKE = ["one device", pytest.param("two ranks", marks=SLOW)]


@pytest.fixture(scope="session")
def trained(demo, tmp_path_factory):
    """{way: folder of a run of three epochs}, trained when first asked for, and {way: output}."""
    folder, outputs = tmp_path_factory.mktemp("trained"), {}

    def train(way):
        if way not in outputs:
            script, ranks, batch = WAYS[way]
            words = [*command(script, ranks), *RUN, "-b", batch, "--output-dir", way, demo]
            outputs[way] = run(words, folder)
        return folder / way

    train.outputs = outputs
    return train


@pytest.fixture
def one(trained, tmp_path):
    """A copy of the run on one device, as `one` in the test's folder."""
    return Path(shutil.copytree(trained("one device"), tmp_path / "one"))


@pytest.fixture
def typed(demo, tmp_path):
    """typed(*words, way="one device", **of_run): the command of that run, and more behind it."""

    def again(*words, way="one device", **more):
        script, ranks, batch = WAYS[way]
        return run([*command(script, ranks), *RUN, "-b", batch, demo, *words], tmp_path, **more)

    return again


def refused(output):
    """Returns the one line behind which there is nothing."""
    return the_line(output, only=False)


# ------------------------------------------------------------------------ the decoders of images


@pytest.fixture
def own_decoder():
    """Each test, and each loader worker that it forks, makes its own decoder."""
    decoding.region_decoder.cache_clear()
    yield
    decoding.region_decoder.cache_clear()


@pytest.fixture(params=["nvImageCodec", "Pillow"])
def decoder(request, own_decoder, monkeypatch):
    """Runs a test with each of the decoders."""
    if request.param == "Pillow":
        monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
        assert decoding.region_decoder() is None
    elif sys.platform == "linux":
        assert decoding.region_decoder(), "nvImageCodec is missing: pip install ."
    else:
        pytest.skip("pyproject.toml has nvImageCodec for Linux alone")
    return request.param
