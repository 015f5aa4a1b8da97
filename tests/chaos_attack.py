"""Trials of chaos.py that begin at other ends: a run that goes on in a new folder and is killed
there, a stranger at the ports, one system call cut short, a thousand other runs, limits of the
system, and checkpoints and indexes that somebody made by hand."""

import contextlib
import io
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import torch
from chaos_jobs import GREETING, NET, Job, Skip, load, lost, saved, stage, start, verdict
from common import ROOT, free_port

# ------------------------------------------------------------------------- killed in a new folder

# How a run goes on so that it does so in a new folder, and how it is started after that.
MOVES = {
    "on two ranks": ("own spawn", ["--resume", "auto"], None),
    "on two ranks, then on one": ("own spawn", ["--resume", "auto"], "plain"),
    "with -j 2": ("plain", ["-j", 2, "--resume", "auto"], None),
    "with -b 4 by --resume PATH, then by auto": ("plain", ["-b", 4, "--resume"], "plain"),
}
STARTS = {"plain": "imagenet_nd.py", "own spawn": "imagenet_ddp.py"}


def progress(folder, moves=tuple(MOVES), steps=40):
    """Kills a run that has gone on in a new folder, before it has saved anything there: --resume
    auto then takes the newest checkpoint, and not the best, which is older."""
    options = [*NET, "--global-batch", 8, "--steps-per-epoch", steps, "--checkpoint-minutes", 0]
    auto = ["--resume", "auto"]

    def train(runs, *more):
        words = [*start("plain", "imagenet_nd.py"), *options, "--log-dir", runs, *more]
        job = Job(words, folder)
        assert job.wait() == 0, job.text()

    def begin(way, runs, *more):
        """Returns [name of the run, of the file, epoch] that a start goes on from; kills it."""
        words = [*start(way, STARTS[way]), *options, "--epochs", 9, "--log-dir", runs, *more]
        job = Job(words, folder)
        job.is_there(lambda: GREETING in job.text(), 240)
        job.end()
        found = re.search(r"Going on from (\S+) \(epoch (\d+)", job.text())
        return [Path(found[1]).parent.name, Path(found[1]).name, int(found[2])] if found else [""]

    def row(what, taken, run, name, epoch):
        said = f"went on from {taken[1]}, epoch {taken[2]}" if taken[1:] else "began anew"
        return what, said, taken == [run, name, epoch]

    base = folder / "base"
    train(base, "--epochs", 1)
    (run,) = base.iterdir()
    shutil.copy2(run / "model_best.pt", folder)
    train(base, "--epochs", 3, *auto)
    shutil.copy2(folder / "model_best.pt", run)  # as if no epoch since had been better
    for move in moves:
        way, more, back = MOVES[move]
        moved = shutil.copytree(base, folder / move.replace(" ", "_"))
        begin(way, moved, *more, *([moved / run.name] if more[-1] == "--resume" else []))
        new = [each for each in moved.iterdir() if each.name != run.name]
        assert len(new) == 1 and not [*new[0].glob("checkpoint*.pt")], "saved before it was killed"
        for state in "", "the copy of model_best.pt cut off", "clock an hour on", "an hour back":
            runs = shutil.copytree(moved, folder / f"{moved.name}_{state}".replace(" ", "_"))
            here = runs / new[0].name
            if "cut" in state and (here / "model_best.pt").exists():
                os.truncate(here / "model_best.pt", 99_999)
            if "hour" in state:
                shift(here, 3600 if "on" in state else -3600)
            again = auto if back else more
            taken = begin(back or way, runs, *again)
            what = f"killed in a new folder before its first save, gone on {move}"
            what += f"; {state}" if state else ""
            yield row(what, taken, run.name, "checkpoint.pt", 3)
    anew = shutil.copytree(base, folder / "anew")
    train(anew, "--epochs", 1)
    (new,) = (each for each in anew.iterdir() if each.name != run.name)
    taken = begin("plain", anew, *auto)
    yield row("a run begun anew, with equal options", taken, new.name, "checkpoint.pt", 1)


def shift(folder, seconds):
    """Sets the times of a folder's files to others."""
    for path in folder.iterdir():
        stamp = path.stat().st_mtime + seconds
        os.utime(path, (stamp, stamp))


# --------------------------------------------------------------------------------- the stranger

HOME, AWAY = "10.213.7.1", "10.213.7.2"
LOCAL = r"127\.|\[::1\]|\[::ffff:127\."
# It tries each port that is listened on in the namespace, until it has found so many stores, and
# leaves code there for whoever unpickles it.
STRANGER = """
import datetime, pickle, socket, subprocess, sys, threading, time, torch.distributed as dist
host, namespace, marker, stores = sys.argv[1:]
found, tried, soon = [], set(), datetime.timedelta(seconds=3)
class Planted:
    def __reduce__(self):
        return open, (marker, "w")
def plant(port):
    try:
        socket.create_connection((host, port), 2).close()
        print("reached", port, flush=True)
        store = dist.TCPStore(host, port, None, False, soon, wait_for_workers=False)
        found.append(port)
        while True:
            for key in [f"{group}call {n}" for n in range(1, 20) for group in ("0//", "")]:
                store.set(key, pickle.dumps(Planted()))
            print("planted in", len(found), "stores", flush=True)
            time.sleep(0.01)
    except (OSError, RuntimeError):
        return  # out of reach, no store, or gone
print("ready", flush=True)
while len(found) < int(stores):
    words = ["ip", "netns", "exec", namespace, "ss", "-ltnH"]
    listed = subprocess.run(words, capture_output=True, text=True).stdout
    ports = {int(line.split()[3].rpartition(":")[2]) for line in listed.splitlines()} - tried
    for port in ports:
        threading.Thread(target=plant, args=(port,)).start()
    tried |= ports
"""
BY_TORCHRUN = [f"imagenet_{each}.py" for each in ("ddp", "fsdp", "exchange", "pipeline")]
WITH_STORE = [("own spawn", "imagenet_ddp.py"), *(("static", each) for each in BY_TORCHRUN)]


def stranger(folder, cells=tuple(WITH_STORE), loopback=2):
    """Has a stranger try the ports of a job: those of one node are out of reach from another
    namespace; and where there are two nodes, or the stranger is on this one, no code is run."""
    (folder / "stranger.py").write_text(STRANGER)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{HOME} {platform.node()}\n")
    train = [*NET, "--epochs", 1, "--steps-per-epoch", 10, "--timeout", 20]
    outside, local = "in another namespace", "on loopback"
    with two_namespaces() as (home, away):
        inside = ["ip", "netns", "exec", home, "sh", "-c"]  # in which this machine has an address
        inside += ['mount --bind "$0" /etc/hosts; exec "$@"', folder / "hosts"]
        for nodes, where in (1, outside), (1, local), (2, outside):
            for way, script in cells[:loopback] if where == local else cells:
                here = folder / f"{nodes} {where} {way} {script}".replace(" ", "_")
                marker, stores = here / "code_was_run", 2 if way == "static" else 1
                address, namespace = ("127.0.0.1", home) if where == local else (HOME, away)
                words = [sys.executable, folder / "stranger.py", address, home, marker, stores]
                thief = Job(["ip", "netns", "exec", namespace, *words], here)
                thief.wait_for("ready")
                starts = [start(way, script)] if nodes == 1 else two_nodes(way, script)
                jobs = [
                    Job([*inside, *words, *train], here / f"node{node}")
                    for node, words in enumerate(starts)
                ]
                listened = set()
                while any(job.process.poll() is None for job in jobs):
                    listened |= listening(home)
                    time.sleep(0.1)
                thief.end()
                statuses, lines = [], []
                for job in jobs:
                    statuses.append(job.wait())
                    lines += job.errors()
                torchruns = re.findall(r"--master_port=(\d+)", " ".join(map(str, starts[0])))
                reached = {*re.findall(r"reached (\d+)", thief.text())} - {*torchruns}
                odd = [each for each in listened if not re.match(LOCAL, each)]
                odd = [each for each in odd if each.rpartition(":")[2] not in torchruns]
                planted = f"planted in {stores} stores" in thief.text()
                said = f"status {', '.join(map(str, statuses))}; "
                if (nodes, where) == (1, outside):
                    said += f"{len(listened)} ports, {len(odd)} of them not on loopback alone, "
                    said += f"{len(reached)} reached; "
                    ok = statuses == [0] and listened and not odd and not reached
                else:
                    said += f"{'planted' if planted else 'not planted'} in rank 0's store; "
                    ok = planted and not any(line.startswith("Timeout (") for line in lines)
                said += f"code {'was' if marker.exists() else 'was not'} run"
                ok = ok and not marker.exists() and not any(job.traceback() for job in jobs)
                what = f"{script}, {way}, on {nodes} node{'s' * (nodes - 1)}; a stranger {where}"
                yield what, ": ".join([said, *lines[:1]])[:200], ok


def two_nodes(way, script):
    """Returns the words that start one rank on each of two nodes."""
    port = free_port()
    if way == "own spawn":
        url = ["--dist-url", f"tcp://{HOME}:{port}", "--world-size", 2, "--rank"]
        return [[sys.executable, stage() / script, *url, node] for node in range(2)]
    words = ["torchrun", "--nnodes=2", "--nproc_per_node=1", f"--master_addr={HOME}"]
    words += [f"--master_port={port}"]
    return [[*words, f"--node_rank={node}", stage() / script] for node in range(2)]


@contextlib.contextmanager
def two_namespaces():
    """Makes two network namespaces, joined by a cable; yields their names."""
    names = [f"chaos{os.getpid()}{each}" for each in ("home", "away")]
    if os.geteuid() or not (shutil.which("ip") and shutil.which("ss")):
        raise Skip("namespaces need root, and `ip` and `ss` (iproute2)")

    def ip(*words):
        if subprocess.run(["ip", *words], capture_output=True).returncode:
            raise Skip(f"no right to `ip {' '.join(words)}`")

    try:
        for name in names:
            ip("netns", "add", name)
        ip(
            "-n",
            names[0],
            "link",
            "add",
            "veth0",
            "type",
            "veth",
            "peer",
            "veth0",
            "netns",
            names[1],
        )
        for name, address in zip(names, (HOME, AWAY), strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "veth0")
            for device in "veth0", "lo":
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def listening(namespace):
    """Returns the addresses that are listened on in a namespace."""
    words = ["ip", "netns", "exec", namespace, "ss", "-ltnH"]
    listed = subprocess.run(words, capture_output=True, text=True).stdout
    return {line.split()[3] for line in listed.splitlines()}


# ----------------------------------------------------------------------------- system calls

# Runs a script whose n-th call of a function is the last thing that its process does.
WRAPPER = """
import io, os, runpy, signal, sys, torch
name, when, number, *sys.argv = sys.argv[1:]
module = torch if name == "save" else os
whole, calls = getattr(module, name), [0]
def cut_short(*args, **kwargs):
    calls[0] += 1
    last = calls[0] == int(number)
    if last and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    if last and when == "within":
        content = io.BytesIO()
        whole(args[0], content)
        args[1].write(content.getvalue()[: len(content.getvalue()) // 2])
        args[1].flush()
        os.kill(os.getpid(), signal.SIGKILL)
    result = whole(*args, **kwargs)
    if last:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(module, name, cut_short)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
CALLS = [("save", "within", number) for number in (1, 2, 4)]
CALLS += [("replace", when, number) for when in ("before", "after") for number in (1, 2, 4)]
CALLS += [("fsync", when, number) for when in ("before", "after") for number in (1, 6)]
CALLS += [("link", "before", 4), ("link", "after", 4)]  # the first three have no file yet
CUT = {"imagenet_nd.py": CALLS, "imagenet_pipeline.py": [CALLS[each] for each in (1, 3, 5, 8, -1)]}


def syscalls(folder, cut=CUT):
    """SIGKILLs rank 0 exactly before, after or within a call that saving makes; then goes on."""
    (folder / "wrapper.py").write_text(WRAPPER)
    for script, calls in cut.items():
        way, here = "plain" if script == "imagenet_nd.py" else "static", folder / script
        options = [*NET, "--ema", 0.9, "--epochs", 2, "--steps-per-epoch", 4, "--timeout", 20]
        options += ["--resume", "auto", "--log-dir"]
        words = [*start(way, script), *options, "whole"]
        assert Job(words, here).wait() == 0
        for name, when, number in calls:
            launcher = start(way, script)[:-1]
            runs = f"{name}_{when}_{number}"
            words = [*launcher, folder / "wrapper.py", name, when, number, stage() / script]
            job = Job([*words, *options, runs], here)
            status, found = job.wait(), [*(here / runs).glob("*/*.pt")]
            left = len([*(here / runs).glob("*/*.tmp")])
            bad = [path.name for path in found if not whole(path)]
            again = Job([*start(way, script), *options, runs], here)
            ended, odd = again.wait(), bad or lost(here / "whole", here / runs)
            folders, over = len([*(here / runs).iterdir()]), again.text().count("passes over")
            said = f"{len(found)} files whole, {left} *.tmp left"
            said = f"{len(bad)} of {len(found)} files damaged, {left} *.tmp left" if bad else said
            said += f"; went on to status {ended} in {folders} folder{'s' * (folders > 1)}"
            ok = status not in (0, None) and not bad and not over and ended == 0 and not odd
            call = f"torch.{name}()" if name == "save" else f"os.{name}()"
            what = f"{script}: SIGKILL {when} {call} number {number}"
            yield what, f"{said}; {verdict(odd)}", ok and not again.traceback()


def whole(path):
    """Returns whether a checkpoint's records match their checksums, and it loads."""
    with contextlib.suppress(Exception), zipfile.ZipFile(path) as archive:
        return archive.testzip() is None and bool(load(path))
    return False


# ------------------------------------------------------------------------------- among many runs


def many(folder, runs=1000):
    """Has --resume auto choose among many runs with other options, whose checkpoints cannot be
    read, and on other data."""
    options = [*NET, "--steps-per-epoch", 4, "--resume", "auto"]
    job = Job([*start("plain", "imagenet_nd.py"), *options, "--epochs", 1], folder)
    assert job.wait() == 0, job.text()
    (own,), crowd = (folder / "runs").iterdir(), folder / "crowd"
    content = json.loads((own / "run.json").read_text())
    for number in range(runs):
        other = crowd / own.name.replace("gpux", f"{number}_gpux")
        other.mkdir(parents=True)
        options_of_it = content["options"] | {"seed": 1000 + number}
        (other / "run.json").write_text(json.dumps(content | {"options": options_of_it}))
        (other / "checkpoint.pt").write_bytes(b"junk")
    for seed, (way, script) in enumerate(STARTS.items(), 1):
        words = [*start(way, script), *options, "--epochs", 1, "--timeout", 10, "--seed", seed]
        job = Job([*words, "--log-dir", crowd], folder)
        status, text = job.wait(300), job.text()
        over, trained = text.count("passes over"), "1/1  loss" in text
        anew = "--resume auto starts a new run" in text
        said = f"status {status}, {'trained anew' if anew and trained else 'not trained anew'}; "
        said += f"{over} checkpoints of others were read"
        ok = status == 0 and anew and trained and not over and not job.traceback()
        yield f"{script} among {runs:,} runs with other options", said, ok
    oldest = shutil.copytree(own, crowd / own.name)
    shift(oldest, -3600)
    words = [*start("plain", "imagenet_nd.py"), *options, "--epochs", 2, "--log-dir", crowd]
    job = Job(words, folder)
    status = job.wait(300)
    on = f"Going on from {oldest / 'checkpoint.pt'}" in job.text()
    over = job.text().count("passes over")
    said = f"status {status}, {'went on' if on else 'did not go on'} from its own; "
    said += f"{over} checkpoints of others were read"
    ok = status == 0 and on and not over and "2/2  loss" in job.text()
    yield f"the oldest of {runs:,} runs is the one to go on from", said, ok
    data = shutil.copytree(stage() / "data", folder / "data")
    for path in [*data.glob("train/*/0.jpg")]:
        path.unlink()
    words = [*start("plain", "imagenet_nd.py"), *options, "--epochs", 1, "--log-dir", "runs", data]
    job = Job(words, folder)
    status, text = job.wait(), job.text()
    (named, *_) = [
        *re.findall(r"other data \(630 images, not 640\)", text),
        "no line names the data",
    ]
    trained = "1/1  loss" in text
    said = f"status {status}, {'trained anew' if trained else 'not trained'}: {named}"
    ok = status == 0 and trained and named.startswith("other")
    yield "other data whose classes have the same names", said, ok


# ---------------------------------------------------------------------------------------- limits

# Root has no limit of processes. This user has none of its rights but to read its files.
NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=+dac_override "
NOBODY += "--ambient-caps=+dac_override"
PRIVATE = "unshare --mount"  # whose mounts nobody else sees
READ_ONLY = 'mount --bind . . && mount -o remount,bind,ro . && cd "$PWD"'
# Deleted once all is imported, since PyTorch's import needs a folder. $1 is Python, $2 the script.
GONE = """mkdir gone && cd gone && set -- $1 -c '
import os, runpy, sys, torch, torchvision
os.rmdir("../gone")
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")' "${@:2}" """
# By what the shell is started, what it does first, and options.
LIMITS = {
    "ulimit -n 64, -j 16": ("", "ulimit -n 64", ["-j", 16]),
    "ulimit -n 64, -j 16, two ranks": ("", "ulimit -n 64", ["-j", 16]),
    "ulimit -u 1": (NOBODY, "ulimit -u 1", []),
    "ulimit -u 9, -j 16": (NOBODY, "ulimit -u 9", ["-j", 16]),
    "ulimit -f 1 KB": ("", "exec > >(cat) 2>&1 && ulimit -f 1", []),
    "ulimit -f 4 MB": ("", "exec > >(cat) 2>&1 && ulimit -f 4000", []),
    "/dev/shm of 64 KB": (PRIVATE, "mount -t tmpfs -o size=64k tmpfs /dev/shm", []),
    "no DIR, a folder that cannot be written": (PRIVATE, READ_ONLY, ["--log-dir", "../runs"]),
    "a folder that is deleted": ("", GONE, []),
}


def limits(folder, which=tuple(LIMITS)):
    """Starts runs where something has run out: each ends in one line, before any time-out."""
    for what in which:
        before, shell, more = LIMITS[what]
        if before and os.geteuid():
            raise Skip(f"{what} needs root")
        way, here = (
            "own spawn" if "two ranks" in what else "plain",
            folder / re.sub(r"\W", "_", what),
        )
        if "no DIR" in what:
            shell += " && unset IMAGENET_DIR"
        words = [*before.split(), "bash", "-c", f'{shell} && exec "$@"', "-"]
        words += [*start(way, STARTS[way]), *NET, "--epochs", 1, "--steps-per-epoch", 4]
        job = Job([*words, "--timeout", 15, *more], here)
        status, lines = job.wait(120), job.errors()
        stood, text = "Timeout (" in job.text(), job.text()
        said = f"status {status}{', stood still' if stood else ''}: {(lines or ['no line'])[0]}"
        said = "a traceback; " + said if "Traceback" in text else said
        left = job.left()
        said += f"; {left} processes left" if left else ""
        ok = status in (1, 2) and 0 < len(lines) <= 1 + (way != "plain") and not left and not stood
        yield what, said[:240], ok and "Traceback" not in text


# -------------------------------------------------------------------------------------- handmade


def handmade_checkpoints(saved):
    """Yields (what, content, further options) of checkpoints that these scripts never write."""
    weights, optimizer = saved["state_dict"], saved["optimizer"]
    first, *_ = (name for name in weights if weights[name].dim() == 4)
    tensor, groups = weights[first], optimizer["param_groups"]
    entries = {
        "step": (-5, "x", 1.5, None),
        "epoch": (10**9, 2**70),
        "seconds": (9e11,),
        "best_acc1": (1e11,),
        "best_acc5": (math.inf,),
        "best_loss": ("x", None, math.nan),
        "global_batch": (0,),
        "partial": ("x", [1], {"sums": [1.0], "seconds": 0.0}, {"sums": "abcdef", "seconds": 0.0}),
        "model_options": ("x", ["x"], {"x": 1}, {"norm_layer": "x"}, {"checkpoint_path": "x.bin"}),
        "classes": (3, [1, 2]),
        "val_resize": ("x", 0, 10**9),
        "args": ({},),
        "ema": ([1],),
        "state_dict": ({}, dict(enumerate(weights.values()))),
        "optimizer": ({**optimizer, "param_groups": "x"}, {**optimizer, "param_groups": [1]}),
    }
    entries["optimizer"] += ({**optimizer, "state": [1]}, {**optimizer, "state": {0: "x"}})
    entries["optimizer"] += ({**optimizer, "param_groups": [{**groups[0], "params": 3}]},)
    for name, values in entries.items():
        for value in values:
            more = ["--best", "loss"] if name == "best_loss" else []
            more = ["--ema", 0.9] if name == "ema" else more
            # A step is looked at only in a run that has more of them.
            place = {"step": 1, "epoch": 0} if name == "partial" else {}
            yield f"{name} {str(value)[:40]}", saved | place | {name: value}, more
    yield "scaler {'scale': 'x'}", saved | {"scaler": {"scale": "x"}}, ["--amp", "float16"]
    kinds = {"text": "x", "sparse": tensor.to_sparse(), "on the meta device": tensor.to("meta")}
    kinds["complex"] = tensor.to(torch.complex64)
    for kind, value in kinds.items():
        yield f"a weight that is {kind}", saved | {"state_dict": weights | {first: value}}, []


def handmade(folder, every=1):
    """Gives the scripts every n-th of the checkpoints that somebody made by hand."""
    train = [*start("plain", "imagenet_nd.py"), *NET, "-j", 0, "--steps-per-epoch", 4]
    job = Job([*train, "--epochs", 1], folder)
    assert job.wait() == 0, job.text()
    path, good = folder / "handmade.pt", load(saved(folder / "runs"))
    train += ["--epochs", 2, "--log-dir", folder / "none"]

    def row(what, words):
        job = Job(words, folder)
        status, lines = job.wait(120), job.errors()
        said = f"status {status}: {(lines or ['no line'])[0]}"[:160]
        there = "Traceback" in job.text()
        out = "weights do not fit and are left out" in job.text() and "--weights" in words
        said = "left out by name" if out else said
        ok = out or (status == 2 and len(lines) == 1 and not there)
        return what, f"a traceback; {said}" if there else said, ok

    for number, (what, content, more) in enumerate(handmade_checkpoints(good)):
        if number % every == 0:
            torch.save(content, path)
            yield row(f"checkpoint with {what}", [*train, *more, "--resume", path])
            if what.startswith("a weight"):
                yield row(f"{what}, by --weights", [*train, "--weights", path])
    shards, tool = folder / "shards", [sys.executable, ROOT / "tools" / "make_shards.py"]
    job = Job([*tool, stage() / "data", shards], folder)
    assert job.wait() == 0, job.text()
    image = next((stage() / "data" / "train").glob("*/*")).read_bytes()
    for label in 2 * 10**7, 10**30:
        here = folder / f"label{label}"
        for part in "train", "val":
            (here / part).mkdir(parents=True)
            with tarfile.open(here / part / "0.tar", "w") as tar:
                for name, content in ("0.jpg", image), ("0.cls", str(label).encode()):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        yield row(f"make_shards.py --index: class {label:g}", [*tool, "--index", here])
    (folder / "classes.txt").write_bytes(bytes(range(128, 256)))
    words = [*tool, "--index", "--classes", folder / "classes.txt", shards]
    for part in "train", "val":
        (shards / part / "index.npz").unlink()
    yield row("make_shards.py --classes: a binary file", words)
