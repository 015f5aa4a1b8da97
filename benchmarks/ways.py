"""What parallel.py and text.py share: a program of several kinds, runs of the scripts, functions
within their ranks, hosts that are network namespaces. torchrun and horovodrun start it:
see within().
"""

import contextlib
import functools
import importlib
import inspect
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import common
import numpy as np
from common import UNMEASURED, count, option
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainparts import errors

EXCHANGES = "gather", "all_reduce", "async", "bucket", "ring", "ddp"
TORCHRUN = Path(sys.executable).parent / "torchrun"
STANDALONE = TORCHRUN, "--standalone"


class Kind(NamedTuple):
    """What a program measures by one name."""

    rows: object  # rows(args, scratch) yields them
    title: str
    unit: str
    defaults: dict  # of options
    facts: object = lambda args: {}  # facts(args): of what is measured
    accel: bool = False  # whether --accel goes with it
    several: bool = False  # whether --ranks takes several numbers


def main(doc, kinds, file, options):
    """A program of several kinds; file has KIND in its name."""
    shared = [
        option("kind", choices=kinds),
        option("--batch", nargs="+", type=count, help="default: the kind's"),
        option("--ranks", nargs="+", type=count, help="default: the kind's"),
        option("--steps", type=count, help="that are measured (default: the kind's)"),
        option("--accel", action="store_true", help="on GPUs, a rank each"),
    ]
    common.main(doc, functools.partial(measure, kinds), file, shared + options)


def measure(kinds, args, scratch):
    """Measures one kind, writes the table."""
    kind = kinds[args.kind]
    for name, value in kind.defaults.items():
        setattr(args, name, getattr(args, name) or value)
    if args.accel and not kind.accel:
        raise errors.BadInput(f"--accel: {args.kind} is measured on the CPU")
    if len(args.ranks) > 1 and not kind.several:
        raise errors.BadInput(f"--ranks: {args.kind} takes one number")
    facts, rows = kind.facts(args), []  # the machine's load is one of them: as it begins
    for row in kind.rows(args, scratch):
        median = f"{np.median(row['values']):,.4g} {kind.unit}" if row["values"] else ""
        print(f"{row['name']}: {median or row[UNMEASURED]}", file=sys.stderr, flush=True)
        rows.append(row)
    if not rows:
        raise errors.BadInput(f"nothing of {args.kind} could be measured")
    out = args.out.with_name(args.out.name.replace("KIND", args.kind))
    common.write(out, kind.title, kind.unit, rows, rows[0]["name"], facts, *PACKAGES)


PACKAGES = "transformers", "tokenizers"  # where they are installed


def expected(way, ranks, megabytes):
    """Returns the MB a step that rank 0's card, the busiest, sends, and as much receives: it
    gathers from all others and scatters to them; or it is one of a ring, as gloo's all-reduce is
    one, and sends 2 (N - 1) / N of the gradients as every rank does."""
    return megabytes * ((ranks - 1) if way == "gather" else 2 * (ranks - 1) / ranks)


# ------------------------------------------------------------------------------------------- runs


def run(what, scratch, *words):
    """Runs a command; its failure is the user's to read."""
    path = f"{TORCHRUN.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    env.pop("TEXT_DIR", None)  # the demo
    done = subprocess.run([*map(str, words)], cwd=scratch, env=env, capture_output=True, text=True)
    if done.returncode:
        raise errors.BadInput(f"{what}: {(done.stdout + done.stderr)[-2000:]}")


def losses_and_times(folder):
    """Returns the losses of the steps of the run in a folder, and the ms of those between the first
    and the last: a step is logged when the next one is under way, the last of an epoch at once."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    events = reader.Scalars("Loss/step")
    times = [event.wall_time for event in events]
    taken = [1000 * (b - a) for a, b in itertools.pairwise(times)]
    return [event.value for event in events], taken[:-1]


def within(function, script, ranks, words, scratch, **more):
    """Runs function(module, run, **more) on each rank of a script, which its launcher starts;
    returns what it has returned, by rank."""
    folder = tempfile.mkdtemp(dir=scratch)
    spec = {"module": Path(inspect.getfile(function)).stem, "function": function.__name__}
    spec |= {"script": script, "more": more, "folder": folder}
    spec["words"] = [*map(str, words), "--output-dir", f"{folder}/run"]
    start = [*STANDALONE, f"--nproc_per_node={ranks}"]
    if script == "text_horovod":
        start = ["horovodrun", "-np", ranks, sys.executable]
    run(f"{script} on {ranks} ranks", scratch, *start, __file__, json.dumps(spec))
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]


def be_rank(text):
    """One of the processes of within()."""
    spec = json.loads(text)
    module, run = common.start(spec["script"], spec["words"])
    function = getattr(importlib.import_module(spec["module"]), spec["function"])
    result = function(module, run, **spec["more"])
    Path(spec["folder"], f"{run.place.rank}.json").write_text(json.dumps(result))
    module.cleanup()
    os._exit(0)


# ------------------------------------------------------------------------------------------ hosts


@contextlib.contextmanager
def hosts(number):
    """Makes so many network namespaces on one switch; yields their names, address 10.77.0.1 on."""
    names = [f"exchange{each}" for each in range(number)]
    bridge = "exchange-switch"
    lines = [f"netns add {bridge}", f"-n {bridge} link add switch type bridge"]
    lines += [f"-n {bridge} link set switch up"]
    for each, name in enumerate(names, 1):
        lines += [f"netns add {name}", f"-n {name} link set lo up"]
        lines += [f"link add eth0 netns {name} type veth peer name port{each} netns {bridge}"]
        lines += [f"-n {bridge} link set port{each} master switch up"]
        lines += [f"-n {name} addr add 10.77.0.{each}/24 dev eth0", f"-n {name} link set eth0 up"]
    try:
        for line in lines:
            done = subprocess.run(["ip", *line.split()], capture_output=True, text=True)
            if done.returncode:
                raise errors.BadInput(
                    f"ip {line}: {done.stderr.strip()}; it needs root and iproute2"
                )
        yield names
    finally:
        for name in (*names, bridge):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def counters(name):
    """Returns the bytes that a namespace's card has sent and received."""
    words = ["ip", "netns", "exec", name, "cat"]
    files = [f"/sys/class/net/eth0/statistics/{way}_bytes" for way in ("tx", "rx")]
    return [int(each) for each in subprocess.check_output([*words, *files]).split()]


def launch(names, script, scratch):
    """Trains by these words on a rank a host; returns (the run's folder, MB sent and received by
    rank). Each host is a network namespace, whose counters are its rank's alone."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    before, started = [counters(name) for name in names], []
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    for rank, name in enumerate(names):
        where = [f"--nnodes={len(names)}", f"--node_rank={rank}", "--nproc_per_node=1"]
        where += ["--master_addr=10.77.0.1", "--master_port=29577"]
        words = ["ip", "netns", "exec", name, TORCHRUN, *where, *script]
        words += ["--output-dir", folder]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen([*map(str, words)], cwd=scratch, env=env, **pipes))
    printed = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        what = " ".join(map(str, script[1:]))
        raise errors.BadInput(f"{what} on {len(names)} ranks: {printed[0][-2000:]}")
    after = [counters(name) for name in names]
    return folder, (np.array(after) - np.array(before)) / 1e6


if __name__ == "__main__":
    be_rank(sys.argv[1])
