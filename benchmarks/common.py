"""What the benchmarks share: options, the scripts' loader, what a measurement was made with, its
rounds, its file and table."""

import argparse
import contextlib
import datetime
import importlib
import importlib.metadata
import inspect
import io
import itertools
import json
import multiprocessing
import os
import platform
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from imagenet_nd import BadInput, Place, cores_per_rank, device_name  # noqa: E402
from reporting.tables import benchmark_table  # noqa: E402


def whole(text, least=0):
    """Returns a whole number from 0 on: a type of options."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} on")
    return int(text)


def count(text):
    """Returns a whole number from 1 on."""
    return whole(text, 1)


def option_parser(doc):
    """Returns a parser whose errors are one line."""
    doc = doc.split("\n\n")[0]
    return argparse.ArgumentParser(description=doc, usage=argparse.SUPPRESS, allow_abbrev=False)


def loader_of(script, words):
    """Returns a function of a pass's number that gives its training batches: images and targets,
    by the loader of imagenet_nd.py, the module `script`, with these options; no model, no device.

    It may be that of another checkout: up to commit 7e0ce2a, there was no Run before the loader.
    """
    args = script.parse_args([str(word) for word in words])
    place = script.Place(torch.device("cpu"))
    sizes = script.split_batch(args, place)
    data = script.open_data(args, place, script.list_sources(args, place), sizes)
    if "over" in inspect.signature(script.schedule_batches).parameters:
        schedule = script.schedule_batches(args, place, data, threading.Event(), 0, 0)
    else:
        schedule = script.schedule_batches(script.Run(args, place, data, {}))
    training = (job for job in schedule if job[0] == "train")
    batches = script.load_batches(args, place, data, training)

    return lambda serial: itertools.islice(batches, data.steps)


def free_port():
    """Returns a port of this machine that nothing uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(script, words):
    """Returns (a script's module, its Run), set up with these options and no time-out; signals do
    what they do in every program."""
    if script == "imagenet_ddp" and "RANK" not in os.environ:  # as torchrun would
        alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ.update(alone, MASTER_PORT=str(free_port()))
    module = importlib.import_module(script)
    with contextlib.redirect_stdout(io.StringIO()):
        run = module.build_run(module.parse_args([*map(str, words), "--timeout", "0"]))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return module, run


def train_steps(module, run, steps):
    """Trains so many more steps, by the script's own loop, which takes them for the whole epoch."""
    data, run.data = run.data, run.data._replace(steps=run.step + steps)
    module.train_one_epoch(run)
    run.data = data


def kill_workers():
    """Ends the loaders' processes, which ignore signals and may wait to hand over a batch."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # PyTorch's handler raises
    for child in multiprocessing.active_children():
        child.kill()


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
        "processor": device_name(torch.device("cpu")),
        **({"accelerator": device_name(gpu)} if gpu else {}),
        "cores": cores_per_rank(Place(None)),
        "system": platform.platform(),
        "python": platform.python_version(),
        **versions("torch", "torchvision", "numpy", "pillow", *packages),
        "commit": commit,
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


def pick_images(folder, count):
    """Returns the paths of `count` random training images of an ImageFolder, always the same ones;
    where it has fewer, they come again."""
    files = sorted((folder / "train").glob("*/*"))
    images = [path for path in files if path.suffix.lower() in IMG_EXTENSIONS]
    if not images:
        raise BadInput(f"{folder} has no images in train/<class>/: give a DIR that has")
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
            raise BadInput(f"--only {word}: no row has that in its name: {', '.join(ways)}")
    return {
        name: way
        for name, way in ways.items()
        if name == baseline or not words or any(word in name for word in words)
    }


def interleave(ways, rounds):
    """Returns {name: what it returned in each round}. Every way runs once a round, in turn, so that
    the noise of a shared machine hits all alike."""
    values = {name: [] for name in ways}
    for serial in range(1, rounds + 1):
        for name, way in ways.items():
            values[name].append(way())
            line = f"round {serial}/{rounds}: {name}: {values[name][-1]:,.4g}"
            print(line, file=sys.stderr, flush=True)
    return values


def write(path, title, unit, rows, baseline, about, facts):
    """Prints the table of RESULTS.md, and writes the JSON file that make_results.py makes it from.

    A row is {"name": str, "values": [float, ...] in `unit`, and further columns: str or float};
    facts are {name: a number or a few words}, of what was measured.
    """
    content = {"title": title, "unit": unit, "baseline": baseline, "facts": facts}
    content |= {"about": about, "rows": rows}
    print(f"{title}:\n\n{benchmark_table(content)}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
