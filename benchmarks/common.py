"""What the benchmarks share: options and main(), the scripts' loader and Run, processes, rounds;
what a measurement was made with, its file and table."""

import argparse
import contextlib
import datetime
import functools
import importlib
import importlib.metadata
import io
import itertools
import json
import multiprocessing
import os
import platform
import random
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import find_bottleneck  # noqa: E402
from find_bottleneck import kill_workers, train_steps  # noqa: E402, F401

import imagenet_nd as nd  # noqa: E402
from reporting.tables import benchmark_table  # noqa: E402
from trainparts import batch_plan, devices, errors  # noqa: E402

LOGS = ROOT / "logs" / "benchmarks"
UNMEASURED, OUT_OF_TIME = "not measured", "out of time"


# ------------------------------------------------------------------------------------------ options


def whole(text, least=0):
    """Returns a whole number from 0 on: a type of options."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} on")
    return int(text)


def count(text):
    """Returns a whole number from 1 on."""
    return whole(text, 1)


def option(*flags, default=None, **more):
    """Returns an option of main(), whose help ends in its default."""
    shown = " ".join(map(str, default)) if isinstance(default, list) else default
    if default is not None:
        more["help"] = f"{more.get('help', '')} ({shown})".strip()
    return flags, {"default": default, **more}


DIR = option("dir", metavar="DIR", type=Path, help="has train/<class>/*.JPEG")
ONLY = option("--only", nargs="+", metavar="NAME", help="rows with these words, beside the first")


def main(doc, measure, file, options, added=""):
    """A program: measure(args, scratch) with these options and --out, to whose name it may have
    something added; a mistake is one line."""
    doc = doc and doc.split("\n\n")[0]  # -OO leaves none
    parser = argparse.ArgumentParser(description=doc, usage=argparse.SUPPRESS, allow_abbrev=False)
    for flags, more in options:
        parser.add_argument(*flags, **more)
    out = f"(logs/benchmarks/{file}.json{added and f', {added} added to the name'})"
    parser.add_argument("--out", type=Path, default=LOGS / f"{file}.json", help=out)
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            measure(args, Path(scratch))
    except (errors.BadInput, OSError) as error:
        parser.error(str(error))


# -------------------------------------------------------------------------------------- the scripts


def loader_of(words):
    """Returns a function of a pass's number that gives its training batches: images and targets,
    by the loader of imagenet_nd.py with these options; no model, no device."""
    args, place = nd.parse_args([str(word) for word in words]), nd.Place(torch.device("cpu"))
    sizes = batch_plan.split_batch(args.batch_size, 1, args.accumulation)
    data = nd.open_data(args, place, nd.list_sources(args, place), sizes)
    schedule = nd.schedule_batches(args, place, data, 0, 0, over=lambda: False)
    training = (job for job in schedule if job[0] == "train")
    batches = nd.load_batches(args, place, data, training)

    return lambda serial: itertools.islice(batches, data.steps)


def free_port():
    """Returns a port of this machine that nothing uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(script, words):
    """Returns (a script's module, its Run with these options, by find_bottleneck.start())."""
    if script == "imagenet_ddp" and "RANK" not in os.environ:  # as torchrun would
        alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ.update(alone, MASTER_PORT=str(free_port()))
    module = importlib.import_module(script)
    return module, find_bottleneck.start(module, words)


# ------------------------------------------------------------------------------------- images, rows


def pick_images(folder, count):
    """Returns the paths of `count` random training images of an ImageFolder, always the same ones;
    where it has fewer, they come again."""
    files = sorted((folder / "train").glob("*/*"))
    images = [path for path in files if path.suffix.lower() in IMG_EXTENSIONS]
    if not images:
        raise errors.BadInput(f"{folder} has no images in train/<class>/: give a DIR that has")
    random.Random(0).shuffle(images)
    return list(itertools.islice(itertools.cycle(images), count))


def link_images(source, count, folder):
    """Makes folder/train/ of links to so many images of `source`, and folder/val/, which nothing
    reads, with one for each class."""
    for serial, path in enumerate(pick_images(source, count)):
        for split, name in ("train", f"{serial}_{path.name}"), ("val", f"0{path.suffix}"):
            link = folder / split / path.parent.name / name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(path.resolve())


def select(ways, words, baseline):
    """Returns those of {name: way} whose name has one of the words, all without words, and the
    baseline."""
    for word in words or []:
        if not any(word in name for name in ways):
            raise errors.BadInput(f"--only {word}: no row has that in its name: {', '.join(ways)}")
    return {
        name: way
        for name, way in ways.items()
        if name == baseline or not words or any(word in name for word in words)
    }


# ---------------------------------------------------------------------------------------- processes


class Server:
    """A process of its own, in which make(*given) returns a function, which is called with whatever
    is asked. It ends when nothing more is, or with the first error."""

    def __init__(self, make, *given):
        # A GPU's driver does not survive a fork; without one, nothing need be imported again.
        kind = "spawn" if torch.accelerator.is_available() else "fork"
        context = multiprocessing.get_context(kind)
        self.connection, theirs = context.Pipe()
        given = theirs, self.connection, make, given
        self.process = context.Process(target=serve, args=given)
        self.process.start()
        theirs.close()

    def ask(self, *words, seconds=None):
        """Returns (what the function returned, ""), or (None, why there is nothing)."""
        try:
            self.connection.send(words)
            if self.connection.poll(seconds):
                return self.connection.recv()
            self.process.kill()  # since compiling cannot be stopped
            return None, OUT_OF_TIME
        except (EOFError, OSError):
            self.process.join(10)
            return None, f"its process ended with status {self.process.exitcode}"

    def stop(self):
        """Ends the process."""
        self.connection.close()
        self.process.join(10)
        self.process.kill()
        self.process.join()


def serve(connection, theirs, make, given):
    """The process of a Server."""
    theirs.close()  # a copy, by which this process would outlive the other
    function = None
    try:
        while True:
            words = connection.recv()
            with contextlib.redirect_stdout(io.StringIO()):
                function = function or make(*given)
                answer = function(*words)
            connection.send((answer, ""))
    except EOFError:
        pass  # nothing more is asked
    except (Exception, SystemExit) as error:  # whatever it is, the others go on
        connection.send((None, reason(error)))
    kill_workers()


def reason(error):
    """Returns why something cannot be measured, in a line."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    kind = "" if isinstance(error, errors.BadInput) else f"{type(error).__name__}: "
    return kind + errors.first_line(error)


def measure_apart(makes, rounds):
    """Returns rows: what each of {name: (make, *given)} returns in every round, after one to warm
    up, in a Server of its own; or why there are none."""
    rows, servers = {}, {}

    def ask(name):
        value, why = servers[name].ask()
        if why:
            raise errors.BadInput(f"{name}: {why}")
        return value

    try:
        for name, given in makes.items():
            print(f"warming up: {name}", file=sys.stderr, flush=True)
            servers[name] = Server(*given)
            _, why = servers[name].ask()
            rows[name] = {"name": name, "values": []} | ({UNMEASURED: why} if why else {})
        ready = [name for name, row in rows.items() if UNMEASURED not in row]
        ways = {name: functools.partial(ask, name) for name in ready}
        for name, values in interleave(ways, rounds).items():
            rows[name]["values"] = values
    finally:
        for server in reversed(servers.values()):  # which have copies of those before
            server.stop()
    return list(rows.values())


def interleave(ways, rounds):
    """Returns {name: what it returned in each round}. Every way runs once a round, in turn, so that
    the noise of a shared machine hits all alike."""
    values = {name: [] for name in ways}
    for serial in range(1, rounds + 1):
        for name, way in ways.items():
            value = way()
            values[name].append(value)
            first = value[0] if isinstance(value, tuple) else value
            line = f"round {serial}/{rounds}: {name}: {first:,.4g}"
            print(line, file=sys.stderr, flush=True)
    return values


# --------------------------------------------------------------------------------- the file


def about(*packages):
    """Returns what repeats and explains a measurement: command, date, hardware, versions, commit.

    Packages are beside torch, torchvision, numpy and pillow; NAME also finds NAME-cuda120 or
    NAME-cu12. Those that are not installed are left out.
    """
    git = ["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    except OSError:  # no git
        commit = ""
    gpu = torch.accelerator.current_accelerator(check_available=True)
    return {
        "command": [Path(sys.executable).name, *map(portable, sys.argv)],
        "date": datetime.date.today().isoformat(),
        "processor": devices.device_name(torch.device("cpu")),
        **({"accelerator": devices.device_name(gpu)} if gpu else {}),
        "cores": devices.cores_per_rank(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **versions("torch", "torchvision", "numpy", "pillow", *packages),
        "commit": commit,
        # torch's limit, such as "avx2".
        **{name: os.environ[name] for name in os.environ if name == "ATEN_CPU_CAPABILITY"},
    }


def portable(word):
    """Returns a word of the command without this machine's folders: paths in the repository from
    its root on, of others the last name."""
    option, equals, path = word.rpartition("=")
    if word == sys.argv[0]:
        path = os.path.abspath(path)
    if not os.path.isabs(path):
        return word
    inside = Path(path).is_relative_to(ROOT)
    return f"{option}{equals}{Path(path).relative_to(ROOT) if inside else Path(path).name}"


def versions(*packages):
    """Returns {name: version} of those that are installed, in the order given."""
    installed = {}
    for each in importlib.metadata.distributions():
        name = re.sub(r"-cu(da)?\d+$", "", re.sub(r"[-_.]+", "-", each.name).lower())
        installed[name] = each.version
    return {name: installed[name] for name in packages if name in installed}


def write(path, title, unit, rows, baseline, facts, *packages):
    """Prints the table of RESULTS.md, and writes the JSON file that make_results.py makes it from,
    with about(*packages).

    A row is {"name": str, "values": [float, ...] in `unit`, and further columns: str or float};
    facts are {name: a number or a few words}, of what was measured.
    """
    content = {"title": title, "unit": unit, "baseline": baseline, "facts": facts}
    content |= {"about": about(*packages), "rows": rows}
    print(f"{title}:\n\n{benchmark_table(content)}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
