"""Trials of chaos.py that begin at other ends: a run that goes on, in its folder or in a new one,
and is killed at once, a stranger at the ports, one system call cut short, a thousand other runs,
limits of the system, and checkpoints that somebody made by hand."""

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import torch
from chaos_jobs import (
    GREETING,
    NET,
    Hostile,
    Job,
    Skip,
    kill,
    load,
    lost,
    saved,
    stage,
    start,
    verdict,
)
from common import free_port

# ------------------------------------------------------------------------------- killed at once

# How a run goes on and is killed; how it is started after that; and whether the first start makes a
# new folder. RUN is the folder of the run, RENAMED the same, where it has another name.
AUTO = "--resume auto"
MOVES = {
    "on two ranks": ("own spawn", AUTO, "own spawn", AUTO, False),
    "on two ranks, then on one": ("own spawn", AUTO, "plain", AUTO, False),
    "with -j 2": ("plain", f"-j 2 {AUTO}", "plain", AUTO, False),
    "from its folder": ("plain", "--resume RUN", "plain", AUTO, False),
    "from a file": ("plain", "--resume RUN/checkpoint.pt", "plain", AUTO, True),
    "from the best": ("plain", "--resume RUN/model_best.pt", "plain", AUTO, True),
    "with -b 4": ("plain", "-b 4 --resume RUN", "plain", "-b 4 --resume RUN", True),
    "with -b 4, then as before": ("plain", "-b 4 --resume RUN", "plain", AUTO, True),
    "from a renamed folder": ("plain", "--resume RENAMED", "plain", "--resume RENAMED", True),
}
STARTS = {"plain": "imagenet_nd.py", "own spawn": "imagenet_ddp.py"}


def progress(folder, moves=tuple(MOVES), steps=40):
    """Kills a run that has gone on, before it has saved anything: in whatever folder it was, the
    next start takes the newest checkpoint, and not the best, which is older."""
    options = [*NET, "--global-batch", 8, "--steps-per-epoch", steps, "--checkpoint-minutes", 0]
    options += ["--epochs", 9, "--log-dir"]

    def train(runs, *more):
        """Starts a run; ends it in its third epoch."""
        job = Job([*start("plain", "imagenet_nd.py"), *options, runs, *more], folder)
        job.wait_for("3/9  step 5 ")
        kill(job.process, signal.SIGTERM)
        assert job.wait() == 143, job.text()

    def begin(way, runs, *more):
        """Returns [folder, file, epoch] that a start goes on from; kills it."""
        job = Job([*start(way, STARTS[way]), *options, runs, *more], folder)
        job.is_there(lambda: GREETING in job.text(), 240)
        job.end()
        found = re.search(r"Resuming (\S+) \(epoch (\d+)", job.text())
        return [Path(found[1]).parent.name, Path(found[1]).name, int(found[2])] if found else [""]

    def row(what, taken, *expected):
        said = f"went on from {taken[1]}, epoch {taken[2]}" if taken[1:] else "began anew"
        return what, said, taken == [*expected]

    base = folder / "base"
    train(base)
    (run,) = base.iterdir()
    content = load(run / "checkpoint.pt")
    torch.save(content | {"epoch": 1, "step": 0}, run / "model_best.pt")  # older, if it was taken
    for move in moves:
        way, more, back, again, makes = MOVES[move]
        runs = shutil.copytree(base, folder / move.replace(" ", "_"))
        name = "renamed" if "RENAMED" in more else run.name
        (runs / run.name).rename(runs / name)
        more, again = (
            re.sub("RUN|RENAMED", str(runs / name), each).split() for each in (more, again)
        )
        begin(way, runs, *more)
        new = [each for each in runs.iterdir() if each.name != name]
        assert len(new) == makes and not [path for each in new for path in each.glob("*.pt")]
        for year in ("", "1999", "2999") if makes else ("",):
            what = f"gone on {move}, killed before its first save, started again"
            if year:
                new = [each.rename(runs / (year + each.name[4:])) for each in new]
                what += f"; the new folder is of {year}"
            yield row(what, begin(back, runs, *again), name, "checkpoint.pt", 2)
    train(base)
    (new,) = (each for each in base.iterdir() if each.name != run.name)
    taken = begin("plain", base, *AUTO.split())
    yield row("a run begun anew, with equal options", taken, new.name, "checkpoint.pt", 2)


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


def stranger(folder, cells=tuple(WITH_STORE), loopback=2, forms=None):
    """Has a stranger try the ports of a job: those of one node are out of reach from another
    namespace; and where there are two nodes, or the stranger is on this one, no code is run."""
    (folder / "stranger.py").write_text(STRANGER)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{HOME} {platform.node()}\n")
    train = [*NET, "--epochs", 1, "--steps-per-epoch", 10, "--timeout", 20]
    outside, local = "in another namespace", "on loopback"
    with two_namespaces() as (home, away):
        inside = ["ip", "netns", "exec", home, "sh", "-c"]  # in which this machine has an address
        inside += ['mount --bind "$0" /etc/hosts; exec "$@"', folder / "hosts"]
        yield from launchers(folder, home, away, inside, RENDEZVOUS if forms is None else forms)
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
                    ok = ok and not any(job.traceback() for job in jobs)
                else:
                    said += f"{'planted' if planted else 'not planted'} in rank 0's store; "
                    # A traceback is fine: the run ends, and nothing that was planted is run.
                    ok = planted and 0 not in statuses
                    ok = ok and not any(line.startswith("Timeout (") for line in lines)
                said += f"code {'was' if marker.exists() else 'was not'} run"
                ok = ok and not marker.exists()
                what = f"{script}, {way}, on {nodes} node{'s' * (nodes - 1)}; a stranger {where}"
                yield what, ": ".join([said, *lines[:1]])[:200], ok


# It leaves code in the state of c10d rendezvous, in each store that has one.
OF_RENDEZVOUS = """
import base64, datetime, pickle, socket, subprocess, sys, time, torch.distributed as dist
host, namespace, marker = sys.argv[1:]
class Planted:
    def __reduce__(self):
        return open, (marker, "w")
pickled, soon = pickle.dumps(Planted()), datetime.timedelta(seconds=3)
code = base64.b64encode(pickled)
print("ready", flush=True)
while True:
    words = ["ip", "netns", "exec", namespace, "ss", "-ltnH"]
    listed = subprocess.run(words, capture_output=True, text=True).stdout
    for port in {int(line.split()[3].rpartition(":")[2]) for line in listed.splitlines()}:
        try:
            socket.create_connection((host, port), 2).close()
            store = dist.TCPStore(host, port, None, False, soon, wait_for_workers=False)
            print("reached a store", flush=True)
            for key in store.list_keys():  # c10d's state is a pickle in base 64
                store.set(key, code if "torch.rendezvous" in key else pickled)
        except (OSError, RuntimeError):
            pass
    time.sleep(0.05)
"""
# How torchrun is started, and whether a stranger at its store then runs code in torchrun itself,
# which no script can change: docs/reliability.md says how to start it.
RENDEZVOUS = {
    "static rendezvous, --master_port": (["--master_port=29500"], False),
    "c10d rendezvous, by no option": ([], True),
    "c10d rendezvous, --standalone": (["--standalone"], True),
    "c10d rendezvous, --rdzv-backend": (
        ["--rdzv-backend=c10d", f"--rdzv-endpoint={HOME}:29400"],
        True,
    ),
}


def launchers(folder, home, away, inside, forms):
    """Has a stranger on another machine try torchrun's own store."""
    (folder / "of_rendezvous.py").write_text(OF_RENDEZVOUS)
    train = [stage() / "imagenet_ddp.py", *NET, "--epochs", 1, "--steps-per-epoch", 10]
    for form, (options, runs) in forms.items():
        here = folder / form.replace(" ", "_")
        marker, words = here / "code_was_run", [sys.executable, folder / "of_rendezvous.py", HOME]
        thief = Job(["ip", "netns", "exec", away, *words, home, marker], here)
        thief.wait_for("ready")
        job = Job([*inside, "torchrun", "--nproc_per_node=2", *options, *train], here / "node")
        status = job.wait()
        thief.end()
        ran, reached = marker.exists(), "reached a store" in thief.text()
        said = f"status {status}; {'reached' if reached else 'not reached'}; "
        said += f"code {'was' if ran else 'was not'} run in torchrun"
        yield (
            f"torchrun's own store, {form}; a stranger in another namespace",
            said,
            reached and ran == runs,
        )


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
            folders, over = len([*(here / runs).iterdir()]), again.text().count("skips")
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
        other = crowd / f"{own.name[:-8]}{number:08x}"
        other.mkdir(parents=True)
        options_of_it = content["options"] | {"seed": 1000 + number}
        (other / "run.json").write_text(json.dumps(content | {"options": options_of_it}))
        (other / "checkpoint.pt").write_bytes(b"junk")
    for seed, (way, script) in enumerate(STARTS.items(), 1):
        words = [*start(way, script), *options, "--epochs", 1, "--timeout", 10, "--seed", seed]
        job = Job([*words, "--log-dir", crowd], folder)
        status, text = job.wait(300), job.text()
        over, trained = text.count("skips"), "1/1  train loss" in text
        anew = "--resume auto starts a new run" in text
        said = f"status {status}, {'trained anew' if anew and trained else 'not trained anew'}; "
        said += f"{over} checkpoints of others were read"
        ok = status == 0 and anew and trained and not over and not job.traceback()
        yield f"{script} among {runs:,} runs with other options", said, ok
    oldest = shutil.copytree(own, crowd / f"1999{own.name[4:]}")
    words = [*start("plain", "imagenet_nd.py"), *options, "--epochs", 2, "--log-dir", crowd]
    job = Job(words, folder)
    status = job.wait(300)
    on = f"Resuming {oldest / 'checkpoint.pt'}" in job.text()
    over = job.text().count("skips")
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
    named, trained = (
        bool(re.search(r"data \(640 images, \w+, here 630", text)),
        "1/1  train loss" in text,
    )
    said = f"status {status}, {'trained anew' if trained else 'not trained'}: the data are "
    ok, said = status == 0 and trained and named, said + ("named" if named else "not named")
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


def rewrite(path, good, attributes=0, change=lambda content: content):
    """Writes a checkpoint anew, its largest record changed and with such attributes."""
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(path, "w") as new:
        largest = max(old.infolist(), key=lambda record: record.file_size).filename
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change(content) if name == largest else content)
            new.getinfo(name).external_attr = attributes if name == largest else 0


LIES = {
    "says that it is a folder": (0x10,),  # PyTorch takes it for empty
    "has half of its bytes": (0, lambda content: content[: len(content) // 2]),
    "has a byte less": (0, lambda content: content[:-1]),
    "has no bytes": (0, lambda content: b""),
    "has twice its bytes": (0, lambda content: content * 2),
}


def handmade(folder):
    """Gives a script checkpoints that somebody made by hand, with the right checksums: a record
    that lies is refused, no code is run, and no name in them reaches a library."""
    train = [*start("plain", "imagenet_nd.py"), *NET, "-j", 0, "--steps-per-epoch", 4]
    job = Job([*train, "--epochs", 1], folder)
    assert job.wait() == 0, job.text()
    good, path, owned = saved(folder / "runs"), folder / "handmade.pt", folder / "owned"
    content, train = load(good), [*train, "--epochs", 2, "--log-dir", "none", "--resume", path]

    def row(what, refused=True):
        job = Job(train, folder)
        status, lines, ran = job.wait(120), job.errors(), owned.exists()
        said = f"{'run' if ran else 'not run'}, status {status}: {(lines or ['no line'])[0]}"
        ok = (status == 2 and len(lines) == 1) if refused else (status == 0 and not lines)
        return f"checkpoint with {what}", said[:160], ok and not ran and not job.traceback()

    rewrite(path, good)
    yield row("its records written anew", refused=False)
    for what, lie in LIES.items():
        rewrite(path, good, *lie)
        yield row(f"a record that {what}")
    for name in "args", "model_options", "optimizer", "partial":
        torch.save(content | {name: Hostile(str(owned))}, path)
        yield row(f"code in {name}")
    torch.save({"classifier.3.bias": Hostile(str(owned))}, folder / "code.pt")
    options = {"checkpoint_path": str(folder / "code.pt"), "norm_layer": "os.system"}
    torch.save(content | {"model_options": options}, path)
    yield row("names for the library that builds the model", refused=False)
