"""Breaks runs in every way that they must survive, and prints what became of them.

    make chaos                                       # all trials, hours on two CPU cores
    python tests/chaos.py kills signals              # some of them
    python tests/chaos.py kills --short              # a tenth of it, which logs nothing
    python tests/chaos.py --list

The real scripts are started as users start them, on the CPU, and killed, frozen, starved or given
damaged files. Each row counts what was done and what held. From logs/benchmarks/chaos.json, where
the rows go, make_results.py takes them into RESULTS.md. tests/test_chaos.py has short versions.
"""

import argparse
import collections
import contextlib
import itertools
import json
import os
import pickle
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree
import zipfile
from pathlib import Path

import psutil
import torch
from chaos_attack import (
    CALLS,
    LIMITS,
    MOVES,
    WITH_STORE,
    handmade,
    limits,
    many,
    progress,
    stranger,
    syscalls,
)
from chaos_jobs import (
    GREETING,
    NET,
    Hostile,
    Job,
    Skip,
    differences,
    kill,
    load,
    loaders,
    lost,
    mount,
    saved,
    stage,
    start,
    unmount,
    verdict,
)
from chaos_logs import hostile_logs
from common import ROOT, about, free_port

from reporting.tables import HOLDS

LOG = ROOT / "logs" / "benchmarks" / "chaos.json"
O2 = "--opt-level O2 --loss-scale dynamic".split()
RECIPE = "--ema 0.9 --mixup 0.2 --auto-augment trivial --repeated-aug 2 --clip-grad 1".split()
STOP = signal.SIGSTOP


# ------------------------------------------------------------------------------- killed, resumed

WRITING = {
    "checkpoint.pt being written": "*/checkpoint.tmp",
    "model_best.pt being written": "*/model_best.tmp",  # between validation and the best's file
}
PHASES = "start-up", "first steps", "an epoch's end", "validation", *WRITING
VICTIMS = "rank 0", "all ranks", "launcher and ranks", "rank 1", "the launcher"


def kills(folder, kills, sure, damaged, steps=20, seed=0):
    """SIGKILLs ranks and launcher in every phase, under torchrun --max-restarts, two ranks, O2,
    with averages, and images that are mixed and repeated.

    `sure` of the kills at least come in validation, and while each file is half written; after
    `damaged` of them the newest checkpoint is truncated, emptied or has a bit flipped.
    """
    rng, cut = random.Random(seed), folder / "cut"
    options = ["--epochs", 4 + kills, "--steps-per-epoch", steps, "--resume", "auto"]
    words = start("torchrun", "imagenet_ddp_apex.py", 2, f"--max-restarts={2 * kills}")
    words += [*NET, *O2, *RECIPE, *options, "--checkpoint-minutes", 0.02, "--log-dir"]
    assert Job([*words, "whole"], folder).wait(3600) == 0
    landed, done = collections.Counter(), collections.Counter()
    job, seen, killed, hurt, orphans = Job([*words, "cut"], folder), 0, set(), 0, 0
    plan = [(PHASES[n % 6], n // 6) for n in range(kills)]
    while plan:
        phase, turn = plan.pop(0)
        if not reach(phase, job, seen, steps, killed, rng):
            break
        # Rank 0 alone writes; in other phases each has its turn.
        victim = VICTIMS[turn % 3] if phase in WRITING else VICTIMS[(turn + len(plan)) % 5]
        ranks = job.ranks()
        if len(ranks) < 2 or killed & {*ranks.values()}:
            plan.insert(0, (phase, turn))  # they have just come down by themselves
            continue
        seen, killed, outer = len(job.text()), killed | {*ranks.values()}, "launcher" in victim
        if outer:
            job.process.kill()
        for number, process in ranks.items():
            if "ranks" in victim or victim == f"rank {number}":
                kill(process)
        time.sleep(0.5)
        if phase in PHASES[3:] and not in_phase(phase, cut, job):
            if landed[phase] + sum(each == phase for each, _ in plan) < sure:
                plan.append((phase, turn))
            phase = "training"
        landed[phase] += 1
        done[victim] += 1
        if outer:
            job.process.wait()
            orphans += job.left(30)  # those that had not begun yet look for their launcher first
            job.end()
        due = hurt < damaged and sum(done.values()) >= (hurt + 1) * kills // (damaged + 1)
        if due and saved(cut, "checkpoint-1.pt"):
            damage(saved(cut), ("truncated", "flipped", "emptied")[hurt % 3], rng)
            hurt += 1
        if outer:
            job = Job([*words, "cut"], folder, output=job.output)
    status, odd = job.wait(3600), lost(folder / "whole", cut, damaged=True)
    passed = job.text().count("skips")
    counts = [f"{count} {name}" for name, count in (*landed.items(), *done.items())]
    what = f"{sum(done.values())} SIGKILLs ({', '.join(counts)}); {hurt} newest files damaged"
    said = f"{verdict(odd)}; {passed} files passed over; {orphans} ranks left 30 s after a launcher"
    ok = status == 0 and not odd and sum(done.values()) >= kills
    ok = ok and all(landed[phase] >= sure for phase in PHASES[3:]) and hurt == damaged
    yield what, said, ok and not orphans and not job.traceback()


def reach(phase, job, seen, steps, killed, rng):
    """Waits for a phase of the newest start of a job, which has printed what follows `seen`, and a
    random while in it; returns whether it came."""

    def printed(pattern):
        return job.is_there(lambda: re.search(pattern, job.text()[seen:]), 300)

    if phase == "start-up":
        came = job.is_there(lambda: len({*job.ranks().values()} - killed) == 2, 120)
    elif phase in WRITING:
        there = (job.output.parent / "cut").glob
        came = printed(GREETING) and job.is_there(lambda: [*there(WRITING[phase])], 300, 0.001)
    else:
        patterns = {"first steps": GREETING, "validation": f"step {steps} "}
        came = printed(patterns.get(phase, r"\d/\d+  train loss"))
    most = {"start-up": 5, "first steps": 1, "validation": 0.5}
    time.sleep(rng.uniform(0, most.get(phase, 0.02 if phase in WRITING else 0.1)))
    return came


def in_phase(phase, cut, job):
    """Returns whether a kill came in validation, or while a file was written, by what is there."""
    if phase in WRITING:
        return [*cut.glob(WRITING[phase])]
    with contextlib.suppress(Exception):  # damaged
        saving, newest = [*cut.glob("*/*.tmp")], load(saved(cut))
        ended = re.search(rf"(?m)^{newest['epoch']}/\d+  train loss", job.text())
        return newest["step"] == 0 and not saving and not ended


def restarts(folder, kills):
    """Kills a rank again and again: torchrun has to bring both back each time."""
    for way, times in {"torchrun": kills // 2, "static": kills - kills // 2}.items():
        words = [*start(way, "imagenet_ddp.py", 2, f"--max-restarts={times}"), *NET]
        job, came = Job([*words, "--epochs", 1000, "--resume", "auto"], folder / way), 0
        job.wait_for(GREETING)
        for number in range(times):
            seen = len(job.text())
            kill(job.ranks()[number % 2])
            came += job.is_there(lambda job=job, at=seen: GREETING in job.text()[at:], 120)
            time.sleep(0.5)
        rendezvous = {"torchrun": "c10d rendezvous", "static": "static rendezvous"}[way]
        job.end()
        yield f"{times} restarts, {rendezvous}", f"{came} came back", came == times


# What is taken out of imagenet_ddp_apex.py, and what stands there then.
OMISSIONS = {
    "the seed of a step's random numbers": (
        r"\n +torch.manual_seed\(seed_from\(args.seed, epoch, step.*",
        "",
    ),
    "the position in the epoch": (r'"step": step,', '"step": 0,'),
    "the epoch's sums": ('"partial": run.meter.state,', '"partial": None,'),
    "the loss scaler": (r' \| metadata\["scaler"\]', ""),
    "the float32 masters": (
        r'getattr\(weights.get\(name\), "master", state\[name\]\)',
        "state[name]",
    ),
    "momentum": (r"if args.evaluate or args.optimizer != .*:", "if True:"),
    "running statistics": (
        r"yield tensor, saved",
        'if "running" not in path[-1]: yield tensor, saved',
    ),
    "nothing": ("", ""),
}


def omissions(folder, names=tuple(OMISSIONS), steps=12):
    """Interrupts and resumes scripts that leave something out: each must differ from its own
    uninterrupted run, or equality to the bit would prove nothing."""
    for name in names:
        here = folder / name.replace(" ", "_")
        here.mkdir()
        text, found = (stage() / "imagenet_ddp_apex.py").read_text(), 1
        if name != "nothing":
            text, found = re.subn(*OMISSIONS[name], text, flags=re.MULTILINE)
        assert found, f"{name}: the script has changed, and this trial must follow"
        script = here / "imagenet_ddp_apex.py"
        script.write_text(text)
        words = [*start("launch", script, 2), *NET, *O2, "--epochs", 2, "--steps-per-epoch", steps]
        assert Job([*words, "--log-dir", "whole"], here).wait() == 0
        job = Job([*words, "--log-dir", "cut"], here)
        job.wait_for(f"2/2  step {steps // 3} ")
        kill(job.ranks()[1], signal.SIGTERM)
        job.wait()
        assert saved(here / "cut"), job.text()
        assert Job([*words, "--log-dir", "cut", "--resume", "auto"], here).wait() == 0
        odd = lost(here / "whole", here / "cut")
        said = f"differs in {len(odd)} entries" if odd else "equal to the bit"
        yield f"{name} left out", said, bool(odd) == (name != "nothing")


# --------------------------------------------------------------------------------------- signals

WAYS = {
    "plain": "imagenet_nd.py",
    "own spawn": "imagenet_ddp.py",
    "one rank": "imagenet_ddp.py",
    "torchrun": "imagenet_ddp.py",
    "launch": "imagenet_ddp_apex.py",
    "horovodrun": "imagenet_horovod.py",
}
SENT = "TERM", "INT", "USR1", "KILL"


def signals(folder, cells=(), interrupts=True):
    """Sends each signal to each launcher in mid-epoch; and Ctrl-C twice to a run that hangs."""
    for way, name in cells or itertools.product(WAYS, SENT):
        words = start("own spawn" if way == "one rank" else way, WAYS[way])
        job = Job([*words, *NET, "--epochs", 50], folder / f"{way}-{name}".replace(" ", "_"))
        job.wait_for("1/50  step 8 ")
        shown = job.text().count("  step ")
        target = job.ranks()[1].pid if way == "one rank" else job.process.pid
        os.kill(target, getattr(signal, f"SIG{name}"))
        began, status = time.monotonic(), job.wait(60)
        left, seconds = job.left(), time.monotonic() - began
        runs = job.output.parent / "runs"
        markers = [json.loads(path.read_text()) for path in runs.glob("*/PREEMPTED")]
        can = not (way in ("plain", "one rank") and name == "KILL")  # nobody is left to save
        ok = not left and status not in (0, None) and len(markers) == can
        ok = ok and not job.traceback()
        if way in ("plain", "own spawn", "one rank") and name != "KILL":
            ok = ok and status == 143
        said = f"status {status}, {left} processes after {seconds:.1f} s"
        if markers:
            step, at = markers[0]["step"], load(saved(runs))["step"]
            printed = max(map(int, re.findall(r"1/50  step (\d+)", job.text())))
            ahead = 6 if way == "horovodrun" else 1  # gone, it passes on no more lines
            ok = ok and step == at and shown <= printed <= step <= printed + ahead
            said = f"checkpoint at step {step} of {printed}, {said}"
        job.end()
        yield f"SIG{name} to {way}", said, ok
    for way, ranks in (("own spawn", 2), ("plain", 1)) if interrupts else ():
        job = Job([*start(way, WAYS[way], ranks), *NET, "--epochs", 50], folder / f"twice_{way}")
        job.wait_for("1/50  step 3 ")
        # What everyone waits for never comes: another rank, or an image.
        kill(job.ranks()[1] if ranks == 2 else loaders(psutil.Process(job.process.pid))[0], STOP)
        time.sleep(3)
        for _ in range(2):
            os.killpg(job.process.pid, signal.SIGINT)
            time.sleep(1.5)
        status = job.wait(10)
        said, left = f"status {status}, {job.left()} processes left", job.left()
        job.end()
        yield f"Ctrl-C twice, {way}, in a run that hangs", said, status and not left


# ---------------------------------------------------------------------------------------- frozen

# Which rank, or how many loader workers of rank 1, and which signal they get.
STALLS = {
    "rank 0 stopped": ("rank", 0, STOP),
    "rank 1 stopped": ("rank", 1, STOP),
    "stuck loader worker": ("loaders", 1, STOP),
    "dead loader worker": ("loaders", 1, signal.SIGKILL),
    "all loader workers killed": ("loaders", 9, signal.SIGKILL),
}
SCRIPTS = {  # and how they are started
    "imagenet_nd.py": "plain",
    "imagenet_dp.py": "plain",
    "imagenet_ddp.py": "own spawn",
    "imagenet_ddp_apex.py": "torchrun",
    "imagenet_horovod.py": "horovodrun",
    "imagenet_fsdp.py": "torchrun",
    "imagenet_pipeline.py": "torchrun",
    "imagenet_exchange.py": "torchrun",
}


def stalls_of(scripts):
    """Returns all (script, stall, when) of these scripts."""
    disk = [(script, "disk that hangs", "set-up") for script in scripts]
    return [*itertools.product(scripts, STALLS, ("set-up", "training")), *disk]


def frozen(folder, cells, timeout=10):
    """Stops or kills a rank or loader workers, in set-up or in training; or the disk hangs."""
    for script, stall, when in cells:
        ranks = 1 if SCRIPTS[script] == "plain" else 2
        who, count, signum = STALLS.get(stall, ("disk", 0, None))
        if ranks == 1 and who == "rank":
            continue  # nobody is there to notice
        here = folder / f"{script} {stall} {when}".replace(" ", "_")
        words = [*start(SCRIPTS[script], script), *NET, "-j", 2, "--timeout", timeout]
        if who == "disk":
            for part in "train", "val":
                (here / "data" / part).mkdir(parents=True)
            os.mkfifo(here / "data" / "train" / "index.npz")  # opening it waits for a writer
            words.append(here / "data")
        job, victims = Job([*words, "--epochs", 50], here), []

        def chosen(job=job, ranks=ranks, who=who, count=count, victims=victims):
            alone = {0: psutil.Process(job.process.pid)} if ranks == 1 else {}
            there = alone or job.ranks()
            if len(there) < ranks:
                return []
            workers = loaders(there[ranks - 1])
            found = workers[:count] if len(workers) > 1 else []
            found = [there[count]] if who == "rank" else found
            victims[:] = found or victims
            return found

        if when == "training":
            job.wait_for("1/50  step 5 ")
        elif who == "disk":
            time.sleep(6)
        else:
            job.is_there(chosen, 60)
            if who == "rank":  # somewhere on the way to the first step
                time.sleep(random.Random(f"{script} {stall}").uniform(0.5, 4))
        for process in chosen() or victims:  # a second look may find none
            kill(process, signum)
        # Python's time-out comes 30 s later, and torchrun kills a stopped rank after another 30 s.
        began, status = time.monotonic(), job.wait(timeout + 90)
        seconds, left = time.monotonic() - began, job.left()
        lines = [*job.errors(), "no line says so"]
        said = f"status {status} after {seconds:.0f} s, {left} processes left: {lines[0][:100]}"
        ok = status not in (0, None) and not left and lines[1:] and not job.traceback()
        job.end()
        yield f"{script}: {stall} in {when}", said, ok


def horovod(folder):
    """Kills a rank under horovodrun, which starts nothing again, and goes on from what is saved."""
    words = [*start("horovodrun", "imagenet_horovod.py"), *NET, "--epochs", 2]
    words += ["--checkpoint-minutes", 0.02, "--resume", "auto", "--log-dir"]
    assert Job([*words, "whole"], folder).wait() == 0
    job = Job([*words, "cut"], folder)
    job.wait_for("2/2  step 20 ")
    kill(job.ranks()[1])
    began, status = time.monotonic(), job.wait(60)
    seconds, left = time.monotonic() - began, job.left()
    lines = [*job.errors(), "no line says so"]
    said = f"status {status} after {seconds:.1f} s, {left} processes left: {lines[0][:60]}"
    ok = status not in (0, None) and not left and not job.traceback()
    yield "horovodrun: a rank killed", said, ok
    assert Job([*words, "cut"], folder).wait() == 0
    odd = lost(folder / "whole", folder / "cut")
    yield "gone on from that by --resume auto", verdict(odd), not odd


# ----------------------------------------------------------------------------------------- files


def damage(path, how, rng):
    """Truncates, empties or flips one bit of a file; other names of the same file keep theirs."""
    content = bytearray(path.read_bytes())
    if how == "emptied":
        content.clear()
    elif how == "truncated":
        del content[rng.randrange(1, len(content)) :]
    else:
        with zipfile.ZipFile(path) as archive:
            first = archive.start_dir if how == "flipped in the directory" else 0
        content[rng.randrange(first, len(content))] ^= 1 << rng.randrange(8)
    path.unlink()
    path.write_bytes(content)


def files(folder, trials, seed=0):
    """Damages checkpoints, of which --resume auto may take none; and offers hostile ones."""
    net = [*NET, "-a", "squeezenet1_1", "--image-size", 64, "--steps-per-epoch", 2]
    words = [*start("plain", "imagenet_nd.py"), *net]
    job = Job([*words, "--epochs", 1], folder)
    assert job.wait() == 0, job.text()
    good, rng = saved(folder / "runs"), random.Random(seed)
    reference, hashed = load(good), good.parent.name.rpartition("_")[2]
    shares = {"truncated": trials // 2, "flipped": trials // 4, "flipped in the directory": None}
    shares["flipped in the directory"] = trials - sum(each or 0 for each in shares.values())
    for how, count in shares.items():
        refused = identical = wrong = number = 0
        while number < count:
            runs = folder / "damaged"
            shutil.rmtree(runs, ignore_errors=True)
            for serial in range(min(30, count - number)):  # 30 runs whose newest is damaged
                (runs / f"run{serial}_{hashed}").mkdir(parents=True)
                shutil.copy(good, runs / f"run{serial}_{hashed}" / "checkpoint.pt")
                damage(runs / f"run{serial}_{hashed}" / "checkpoint.pt", how, rng)
                number += 1
            (runs / f"good_{hashed}").mkdir()  # by name the oldest
            shutil.copy(good, runs / f"good_{hashed}" / "checkpoint-1.pt")
            resume = ["--resume", "auto", "--log-dir", runs, "--evaluate"]
            while True:
                job = Job([*words, "--epochs", 1, *resume], folder)
                assert job.wait() == 0, job.text()
                (taken,) = re.findall(r"Validating (\S+), epoch", job.text())
                if Path(taken).parent.name.startswith("good"):
                    break
                same = not differences(load(taken), reference)
                identical, wrong = identical + same, wrong + (not same)
                Path(taken).unlink()
            refused += job.text().count("skips")
        said = f"{refused} refused, {identical} with the same content, {wrong} loaded wrongly"
        ok = not wrong and refused + identical == count
        yield f"{count} checkpoints {how}", f"{said}; the one before was taken", ok
    yield from hostile(folder, words)


def hostile(folder, words):
    """Gives the script files that would run a program if they were unpickled."""
    owned = folder / "owned"
    for kind in "zip", "old format of torch.save", "pickle":
        path, content = folder / "hostile.pt", {"arch": Hostile(str(owned)), "state_dict": {}}
        if kind == "pickle":
            path.write_bytes(pickle.dumps(content))
        else:
            torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
        for option in "--resume", "--weights":
            job = Job([*words, option, path], folder)
            status, ran = job.wait(), owned.exists()
            said = f"status {status}, {'run' if ran else 'not run'}: {job.errors()[-1:]}"[:120]
            yield f"hostile {kind}, {option}", said, status == 2 and not ran


# ------------------------------------------------------------------------------------------ disk


DISK = "folder", "closed", "full", "read-only", "output"


def disk(folder, trials=DISK, way="own spawn"):
    """Takes away what a run writes to: the names or the disk of its checkpoints, or its output."""
    words = [*start(way, WAYS[way]), *NET, "--epochs", 4, "--steps-per-epoch", 20]
    words += ["--resume", "auto", "--checkpoint-minutes", 0.02, "--log-dir"]
    room, filler = folder / "room", folder / "room" / "filler"
    room.mkdir()

    def fill(_=None):
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(2**12)):
                pass

    def turn_read_only(run):
        # Mounted over itself, since a remount is refused while the log is open for writing.
        assert mount("--bind", run, run) and mount("-o", "remount,bind,ro", run)

    def take_names(run):
        for name in "checkpoint.tmp", "model_best.tmp":
            (run / name).unlink(missing_ok=True)
            (run / name).mkdir()

    def free_names(run):
        for path in run.glob("*.tmp"):
            path.rmdir()

    def survive(what, take, give_back):
        """The run ends in one line; with its disk back it goes on."""
        job = Job([*words, room / "runs"], folder)
        job.wait_for("2/4  step 5 ")
        (run,) = room.glob("runs/*")
        take(run)
        status, lines = job.wait(120), [*job.errors(), "no line says so"]
        whole = [load(path) for path in run.glob("*.pt")]  # or it raises
        give_back(run)
        again = Job([*words, room / "runs"], folder)
        ended, on = again.wait(), "Resuming from" in again.text()
        said = f"status {status}: {lines[0]}; {len(whole)} checkpoints whole; --resume auto "
        said += f"went on to status {ended}" if on else "did not go on"
        ok = status == 1 and lines[1:] and whole and on and ended == 0 and not job.traceback()
        shutil.rmtree(room / "runs")
        return what, said, ok

    def ignore(what, runs, job):
        """The run goes on without its output."""
        status, path = job.wait(), saved(folder / runs)
        said = f"status {status}, epoch {load(path)['epoch'] if path else 0} of 4 saved"
        return what, said, said == "status 0, epoch 4 of 4 saved"

    try:
        if "folder" in trials:
            yield survive("temporary name taken by a folder", take_names, free_names)
        if "closed" in trials:
            shell = shlex.join(map(str, [*words, "closed"]))
            shell = f"{shell} 2> errors.txt | head -1; exit ${{PIPESTATUS[0]}}"
            yield ignore(
                "stdout closed by `| head -1`", "closed", Job(["bash", "-c", shell], folder)
            )
        if not mount("-t", "tmpfs", "-o", "size=90m", "tmpfs", room):
            raise Skip("no right to mount a disk")
        if "full" in trials:
            yield survive("full disk", fill, lambda run: filler.unlink())
        if "read-only" in trials:
            yield survive("disk that turns read-only", turn_read_only, unmount)
        if "output" in trials:
            fill()
            job = Job([*words, "output"], folder, room / "output.txt")
            yield ignore("stdout on a full disk", "output", job)
    finally:
        unmount(room)


# ---------------------------------------------------------------------------------- wrong starts


def two_runs(folder):
    """Starts a second run on the checkpoint, and so in the folder, of one that is under way."""
    words = [*start("own spawn"), *NET, "--epochs", 8, "--checkpoint-minutes", 0.02]
    words += ["--resume", "auto", "--log-dir"]
    assert Job([*words, "whole"], folder).wait() == 0
    first = Job([*words, "cut"], folder)
    first.is_there(lambda: saved(folder / "cut"), 240)
    stopped = first.processes()  # or it would end while the second asks again
    for process in stopped:
        kill(process, STOP)
    second = Job([*words, "cut"], folder)
    status, lines, under_way = second.wait(), second.errors(), first.process.poll() is None
    for process in stopped:
        kill(process, signal.SIGCONT)
    ended, odd = first.wait(), lost(folder / "whole", folder / "cut")
    said = f"second: status {status}: {(lines or ['no line'])[0]}; first: status {ended}, "
    ok = status == 1 and len(lines) == 1 and under_way and ended == 0 and not odd
    ok = ok and not first.traceback() and not second.traceback()
    yield "a second run in the folder of the first", said + verdict(odd), ok


# By which rank 1 differs.
OTHERS = {
    "one image less": [],
    "another class for an image": [],
    "--seed": ["--seed", 1],
    "-b": ["-b", 4],
    "--epochs": ["--epochs", 3],
    "-a": ["-a", "squeezenet1_1"],
    "--wd": ["--wd", 0.1],
}


def differing(folder, which=tuple(OTHERS), ways=("own spawn", "torchrun", "horovodrun")):
    """Starts a rank with other data or options: all ends, and nobody has trained."""
    for way, other in itertools.product(ways, which):
        here, data = folder / f"{way} {other}".replace(" ", "_"), stage() / "data"
        here.mkdir()
        if not OTHERS[other]:
            data = shutil.copytree(data, here / "data")
            image = data / "train" / "class3" / "5.jpg"
            image.rename(data / "train" / "class4" / "5b.jpg")
            if other == "one image less":
                (data / "train" / "class4" / "5b.jpg").unlink()
        words, odd = [sys.executable, stage() / WAYS[way], *NET, "--epochs", 2], OTHERS[other]
        if way == "own spawn":  # as two nodes, each started by hand
            url = ["--dist-url", f"tcp://127.0.0.1:{free_port()}", "--world-size", 2, "--rank"]
            first = Job([*words, *url, 0], here)
            job = Job([*words, *odd, *url, 1], here, IMAGENET_DIR=str(data))
        else:
            launcher = ["torchrun", f"--master_port={free_port()}", "--nproc_per_node=2"]
            launcher = [*launcher, "--no-python"] if way == "torchrun" else start(way)[:3]
            choose = 'export IMAGENET_DIR="$0"; set -- "$@" $ODD'
            choose = f'if [ "$RANK$HOROVOD_RANK" = 1 ]; then {choose}; fi; exec "$@"'
            odd = {"ODD": " ".join(map(str, odd))}
            first = job = Job([*launcher, "sh", "-c", choose, data, *words], here, **odd)
        status, ended = job.wait(120), first.wait(120)
        lines = [line for line in job.errors() if "rank 1 differs from rank 0" in line]
        trained = saved(here / "runs") or "  step " in first.text()
        ok = status == 2 if way == "own spawn" else status not in (0, None)
        ok = ok and ended not in (0, None) and len(lines) == 1 and not trained
        said = f"status {status}: {(lines or ['no line says so'])[0]}"[:110]
        ok = ok and not job.traceback() and not first.traceback()
        yield f"{way}: rank 1 has {other.replace('-', 'another -', 1)}", said, ok


def tests(folder, file, chosen=""):
    """Runs tests of several hosts or of Slurm, which need root; each is a row."""
    report = folder / "report.xml"
    words = [sys.executable, "-m", "pytest", "-n", 0, "-m", "slow or not slow", "-k", chosen]
    words += [f"--junitxml={report}", ROOT / "tests" / file]
    subprocess.run(list(map(str, words)), cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        what, bracket, parameter = case.get("name").removeprefix("test_").partition("[")
        what = what.replace("_", " ") + bracket + parameter
        (outcome,) = [*case] or [None]
        if outcome is None:
            yield what, f"passed in {float(case.get('time')):.0f} s", True
        else:
            skipped = outcome.tag == "skipped"
            said = outcome.get("message", "").splitlines()[0][:200]
            yield what, f"{outcome.tag}: {said}", None if skipped else False


# ------------------------------------------------------------------------------------------ main

SHORT_SIGNALS = [("plain", "TERM"), ("own spawn", "INT"), ("own spawn", "KILL"), ("launch", "TERM")]
SHORT_SIGNALS += [("one rank", "USR1"), ("torchrun", "KILL"), ("horovodrun", "TERM")]
SHORT_FROZEN = [
    ("imagenet_nd.py", "dead loader worker", "set-up"),
    ("imagenet_dp.py", "all loader workers killed", "training"),
    ("imagenet_ddp.py", "rank 0 stopped", "set-up"),
    ("imagenet_ddp_apex.py", "stuck loader worker", "training"),
    ("imagenet_horovod.py", "rank 1 stopped", "training"),
    ("imagenet_fsdp.py", "rank 1 stopped", "training"),
    ("imagenet_pipeline.py", "rank 0 stopped", "training"),
    ("imagenet_exchange.py", "rank 1 stopped", "training"),
]


def logs(folder):
    """Logs that nobody's training wrote: make_results.py shows the others."""
    for what, held in hostile_logs(folder):
        yield f"make_results.py: {what}", "named, or shown as text; others are shown", held


TRIALS = {  # what runs, with which sizes, and with which under --short
    "kills": (kills, (30, 3, 3), (12, 1, 1)),
    "restarts": (restarts, (20,), (4,)),
    "omissions": (omissions, (), (["the float32 masters", "nothing"],)),
    "signals": (signals, (), (SHORT_SIGNALS,)),
    "frozen": (frozen, (stalls_of([*SCRIPTS][:5]),), (SHORT_FROZEN[:5],)),
    "frozen_parallel": (frozen, (stalls_of([*SCRIPTS][5:]),), (SHORT_FROZEN[5:],)),
    "horovod": (horovod, (), ()),
    "files": (files, (240,), (40,)),
    "disk": (disk, (), ()),
    "two_runs": (two_runs, (), ()),
    "differing": (differing, (), (["one image less", "-a"],)),
    "progress": (progress, (), ([*MOVES][:1],)),
    "stranger": (stranger, (), (WITH_STORE[:2], 1, {})),
    "syscalls": (syscalls, (), ({"imagenet_nd.py": CALLS[1::4]},)),
    "many": (many, (1000,), (100,)),
    "limits": (limits, (), ([*LIMITS][::3],)),
    "handmade": (handmade, (), ()),
    "logs": (logs, (), ()),
    "nodes": (tests, ("test_nodes.py",), ("test_nodes.py", "dist_url")),
    "slurm": (tests, ("test_slurm.py", "job"), ("test_slurm.py", "cancelled")),
}


def attempt(name, short=False):
    """Yields the rows [what, outcome, whether it holds] of a trial, in a folder of its own; a trial
    that breaks down is a row that does not hold."""
    folder = Path(tempfile.mkdtemp(prefix="chaos_"))
    function, *sizes = TRIALS[name]
    try:
        for what, said, holds in function(folder, *sizes[short]):
            yield [what, said.replace(f"{folder}/", ""), None if holds is None else bool(holds)]
    except Skip as why:
        yield [f"{name}, the rest of it", f"not tried: {why}", None]
    except Exception as error:
        traceback.print_exc()
        yield [name, f"{type(error).__name__}: {str(error)[:300]}", False]
    finally:
        for job in Job.begun:
            job.end()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=f"of {', '.join(TRIALS)}")
    parser.add_argument("--list", action="store_true", help="print the names of the trials")
    parser.add_argument("--short", action="store_true", help="smaller sizes; logs nothing")
    parser.add_argument("--log", type=Path, default=LOG, help="JSON file that the rows go into")
    args = parser.parse_args()
    if unknown := set(args.trials) - TRIALS.keys():
        parser.error(f"no trial {unknown.pop()}: there are {', '.join(TRIALS)}")
    if args.list:
        print(*TRIALS, sep="\n")
        return
    known = json.loads(args.log.read_text()) if args.log.exists() else {"trials": {}, "commits": {}}
    trials, commits = known["trials"], known["commits"]
    made_with, failed = {**about("psutil"), "command": ["make", "chaos"]}, False
    commit = made_with.pop("commit")  # before the log changes
    print("| trial | outcome | holds |\n|---|---|---|")
    for name in args.trials or TRIALS:
        trials[name], commits[name] = [], commit
        for row in attempt(name, args.short):
            trials[name].append(row)
            failed = failed or row[2] is False
            print("|", " | ".join([*row[:2], HOLDS[row[2]]]), "|", flush=True)
        content = {"title": "Faults, and what became of the runs", "facts": {}, "about": made_with}
        content["trials"] = {name: trials[name] for name in TRIALS if name in trials}
        content["commits"] = {name: commits[name] for name in content["trials"]}
        if not args.short:
            args.log.parent.mkdir(parents=True, exist_ok=True)
            args.log.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    sys.exit(failed)


if __name__ == "__main__":
    main()
