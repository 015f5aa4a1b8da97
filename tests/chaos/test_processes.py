"""Ranks, launchers and loader workers that are killed, signalled or frozen; runs that resume."""

import collections
import contextlib
import itertools
import json
import os
import random
import re
import signal
import threading
import time

import psutil
import pytest
import torch
from conftest import BY_TORCHRUN, EMULATED, EMULATES, load
from torch.utils.tensorboard import SummaryWriter

from chaos.checkpoints import damage_at_random, differences, lost, saved, verdict
from chaos.jobs import GREETING, NET, Job, kill, loaders, start, trials
from trainparts import standard_streams

pytestmark = pytest.mark.timeout(3 * 3600)
# `make chaos` takes the time to emulate it.
IN_TESTS = "config.option.markexpr != 'chaos'"
needs_bfloat16 = pytest.mark.skipif(EMULATES and IN_TESTS, reason=EMULATED)
O2 = "--opt-level O2 --loss-scale dynamic".split()
RECIPE = "--ema 0.9 --mixup 0.2 --auto-augment trivial --repeated-aug 2 --clip-grad 1".split()
STOP = signal.SIGSTOP

# ------------------------------------------------------------------------------- killed, resumed

WRITING = {
    "checkpoint.pt being written": "checkpoint.tmp",
    "model_best.pt being written": "model_best.tmp",  # between validation and the best's file
}
PHASES = "start-up", "first steps", "an epoch's end", "validation", *WRITING
VICTIMS = "rank 0", "all ranks", "launcher and ranks", "rank 1", "the launcher"
STEPS = 20


@needs_bfloat16
@pytest.mark.parametrize(("kills", "sure", "damaged"), trials([(30, 3, 3)], [(12, 1, 1)]))
def test_kills(kills, sure, damaged, tmp_path, row):
    """SIGKILLs ranks and launcher in every phase, under torchrun --max-restarts, two ranks, O2,
    with averages, and images that are mixed and repeated.

    `sure` of the kills at least come in validation, and while each file is half written; after
    `damaged` of them the newest checkpoint is truncated, emptied or has a bit flipped.
    """
    rng, cut = random.Random(0), tmp_path / "cut"
    words = start("torchrun", "imagenet_ddp_apex.py", 2, f"--max-restarts={2 * kills}")
    words += [*NET, *O2, *RECIPE, "--epochs", 4 + kills, "--steps-per-epoch", STEPS]
    words += ["--checkpoint-minutes", 0.02, "--output-dir"]
    assert Job([*words, "whole"], tmp_path).wait(3600) == 0
    landed, done = collections.Counter(), collections.Counter()
    job, seen, killed, hurt, orphans = Job([*words, "cut"], tmp_path), 0, set(), 0, 0
    plan = [(PHASES[n % 6], n // 6) for n in range(kills)]
    while plan:
        phase, turn = plan.pop(0)
        if not reach(phase, job, seen, killed, rng):
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
        due = hurt < damaged and done.total() >= (hurt + 1) * kills // (damaged + 1)
        if due and saved(cut, "checkpoint-1.pt"):
            damage_at_random(saved(cut), ("truncated", "flipped", "emptied")[hurt % 3], rng)
            hurt += 1
        if outer:
            job = Job([*words, "cut"], tmp_path, output=job.output)
    status, odd = job.wait(3600), lost(tmp_path / "whole", cut, damaged=True)
    passed = job.text().count(" skips ")
    counts = [f"{count} {name}" for name, count in (*landed.items(), *done.items())]
    what = f"{done.total()} SIGKILLs ({', '.join(counts)}); {hurt} newest files damaged"
    said = f"{verdict(odd)}; {passed} files passed over; {orphans} ranks left 30 s after a launcher"
    ok = status == 0 and not odd and done.total() >= kills
    ok = ok and all(landed[phase] >= sure for phase in PHASES[3:]) and hurt == damaged
    row(what, said, ok and not orphans and not job.traceback())


def reach(phase, job, seen, killed, rng):
    """Waits for a phase of a job's newest start, which has printed what follows `seen`, and then
    for a random time; returns whether the phase came."""

    def printed(pattern):
        return job.is_there(lambda: re.search(pattern, job.text()[seen:]), 300)

    if phase == "start-up":
        came = job.is_there(lambda: len({*job.ranks().values()} - killed) == 2, 120)
    elif phase in WRITING:
        there = (job.output.parent / "cut").glob
        came = printed(GREETING) and job.is_there(lambda: [*there(WRITING[phase])], 300, 0.001)
    else:
        patterns = {"first steps": GREETING, "validation": f"step {STEPS} "}
        came = printed(patterns.get(phase, r"\d/\d+  train loss"))
    most = {"start-up": 5, "first steps": 1, "validation": 0.5}
    time.sleep(rng.uniform(0, most.get(phase, 0.02 if phase in WRITING else 0.1)))
    return came


def in_phase(phase, cut, job):
    """Returns whether a kill came in validation, or while a file was written, as the files show."""
    if phase in WRITING:
        return [*cut.glob(WRITING[phase])]
    with contextlib.suppress(Exception):  # damaged
        saving, newest = [*cut.glob("*.tmp")], load(saved(cut))
        ended = re.search(rf"(?m)^{newest['epoch']}/\d+  train loss", job.text())
        return newest["step"] == 0 and not saving and not ended


@pytest.mark.parametrize(
    ("way", "times"),
    trials([("torchrun", 10), ("static", 10)], [("torchrun", 2), ("static", 2)]),
)
def test_restarts(way, times, tmp_path, row):
    """Kills a rank again and again: torchrun has to restart both each time."""
    words = [*start(way, None, 2, f"--max-restarts={times}"), *NET]
    job, came = Job([*words, "--epochs", 1000, "--output-dir", "run"], tmp_path), 0
    job.wait_for(GREETING)
    for number in range(times):
        seen = len(job.text())
        kill(job.ranks()[number % 2])
        came += job.is_there(lambda at=seen: GREETING in job.text()[at:], 120)
        time.sleep(0.5)
    rendezvous = "c10d" if way == "torchrun" else "static"
    row(f"{times} restarts, {rendezvous} rendezvous", f"{came} came back", came == times)


ENDED = [("plain", "imagenet_nd.py"), ("own spawn", "imagenet_ddp.py")]
ENDED += [("torchrun", script) for script in BY_TORCHRUN] + [("horovodrun", "imagenet_horovod.py")]


@pytest.mark.parametrize(("way", "script"), trials([], ENDED))
def test_ended_killed_and_damaged_it_equals_the_uninterrupted_run(way, script, tmp_path):
    """A run is ended by SIGTERM, resumed, killed, its newest checkpoint damaged, resumed again."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    words = [*start(way, script), *NET, "--epochs", 2, "--steps-per-epoch", 14]
    words += ["--checkpoint-minutes", 0.01, "--output-dir"]
    job = Job([*words, whole], tmp_path)
    assert job.wait() == 0, job.text()
    job = Job([*words, cut], tmp_path)
    job.wait_for("1/2  step 8 ")
    kill(job.process, signal.SIGTERM)
    own = way in ("torchrun", "horovodrun")  # have a status of their own
    assert job.wait() == (1 if own else 143), job.text()
    marker = cut / "PREEMPTED"
    place = json.loads(marker.read_text())
    assert place["why"] == "SIGTERM"
    newest = load(marker.parent / "checkpoint.pt")
    at, ended = ((each["epoch"], each["step"]) for each in (newest, place))
    assert at in (ended, (ended[0] + 1, 0)) and ended >= (0, 8)  # the latter in validation

    job = Job([*words, cut], tmp_path)
    job.wait_for("2/2  step 5 ")
    assert "Resuming " in job.text() and not marker.exists()
    kill(job.ranks()[1] if way != "plain" else job.process)
    began, status = time.monotonic(), job.wait()
    assert status in (1, -signal.SIGKILL), job.text()
    assert not job.left() and time.monotonic() < began + 60
    damage_at_random(marker.parent / "checkpoint.pt", "truncated", random.Random(0))

    job = Job([*words, cut], tmp_path)
    assert job.wait() == 0, job.text()
    assert re.search(r" skips .*/checkpoint.pt", job.text()) and not job.traceback()
    assert lost(whole, cut, damaged=True) == []


def test_what_a_log_lacks_or_has_otherwise_is_seen(tmp_path):
    points = {"whole": [("Lr", 1), ("Loss/val", 1), ("Top1/train", 2)], "cut": [("Lr", 1)]}
    points["cut"] += [("Top1/train", 3), ("Time/train", 2)]
    for folder, values in points.items():
        with SummaryWriter(tmp_path / folder / "run") as log:
            for tag, value in values:
                log.add_scalar(tag, value, 1)
    odd = ["Loss/val of 1", "Time/train of 1", "Top1/train of 1"]
    expected = ["checkpoint.pt", "model_best.pt", *odd]
    assert lost(tmp_path / "whole", tmp_path / "cut") == expected
    assert differences({"a": [torch.zeros(2)]}, {"a": [torch.ones(2)]}) == ["/a/0"]


# --------------------------------------------------------------------------------------- signals

SIGNALLED = "plain", "own spawn", "one rank", "torchrun", "launch", "horovodrun"
SENT = "TERM", "INT", "USR1", "HUP", "KILL"
SOME = [("plain", "TERM"), ("own spawn", "INT"), ("own spawn", "KILL"), ("launch", "TERM")]
SOME += [("one rank", "USR1"), ("torchrun", "KILL"), ("torchrun", "HUP"), ("horovodrun", "TERM")]


@pytest.mark.parametrize(("way", "name"), trials(itertools.product(SIGNALLED, SENT), SOME))
def test_signals(way, name, tmp_path, row):
    """Sends each signal to each launcher in mid-epoch."""
    words = start("own spawn" if way == "one rank" else way)
    job = Job([*words, *NET, "--epochs", 50], tmp_path)
    job.wait_for("1/50  step 8 ")
    shown = job.text().count("  step ")
    target = job.ranks()[1].pid if way == "one rank" else job.process.pid
    os.kill(target, getattr(signal, f"SIG{name}"))
    began, status = time.monotonic(), job.wait(60)
    left, seconds = job.left(), time.monotonic() - began
    runs = tmp_path / "runs"
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
    row(f"SIG{name} to {way}", said, ok)


@pytest.mark.parametrize("way", trials([("own spawn",), ("plain",)], [("own spawn",), ("plain",)]))
def test_signals__ctrl_c_twice(way, tmp_path, row):
    """To a run that hangs, because another rank or a loader worker is stopped."""
    job = Job([*start(way), *NET, "--epochs", 50], tmp_path)
    job.wait_for("1/50  step 3 ")
    kill(loaders(psutil.Process(job.process.pid))[0] if way == "plain" else job.ranks()[1], STOP)
    time.sleep(3)
    for _ in range(2):
        os.killpg(job.process.pid, signal.SIGINT)
        time.sleep(1.5)
    status, left = job.wait(10), job.left()
    said = f"status {status}, {left} processes left"
    row(f"Ctrl-C twice, {way}, in a run that hangs", said, status and not left)


# ------------------------------------------------------------------------- output that nobody reads

UNREAD = "plain", "own spawn", "torchrun", "launch", "horovodrun"
WHAT = "SIGTERM", "a rank or loader worker stopped"


@pytest.mark.parametrize(("way", "what"), trials(itertools.product(UNREAD, WHAT)))
def test_unread(way, what, tmp_path, row):
    """The output is a pipe that is full; test_standard_streams.py has terminals and `tee`.

    horovodrun waits until what its ranks printed is read: so its reader goes on as soon as the run
    is saved, or else after a minute.
    """
    pipe, folder = tmp_path / "pipe", tmp_path / "run"
    os.mkfifo(pipe)
    ours = os.open(pipe, os.O_RDWR)  # neither end is ever closed
    job = Job(
        [*start(way), *NET, *"--epochs 4000 --timeout 5 --output-dir".split(), folder],
        tmp_path,
        pipe,
    )
    job.output = tmp_path / "nothing.txt"  # what the pipe has is not read
    job.output.touch()
    seen, until = [], time.monotonic() + 240
    # Until no more is written: who would wait for the reader waits now.
    while not (seen[-1:] > [40_000] and len({*seen[-6:]}) == 1) and time.monotonic() < until:
        time.sleep(0.5)
        seen.append(standard_streams.unread_bytes(ours))
    if what == "SIGTERM":
        job.process.terminate()
    else:
        alone = way == "plain"
        kill(loaders(psutil.Process(job.process.pid))[0] if alone else job.ranks()[1], STOP)
    began, marker, unread = time.monotonic(), folder / "PREEMPTED", f"{seen[-1]} bytes unread"
    if way == "horovodrun":
        saved_it = job.is_there(marker.exists, 60)
        unread += f" for {time.monotonic() - began:.1f} s"
        threading.Thread(target=pipe.read_bytes, daemon=True).start()
    status = job.wait(120)
    left, seconds = job.left(), time.monotonic() - began
    if way != "horovodrun":
        saved_it = marker.exists()
    ok = seen[-6:] == seen[-1:] * 6 and status not in (0, None) and not left
    if way in ("plain", "own spawn"):
        ok = ok and status == (143 if what == "SIGTERM" else 1)
    ok = ok and (saved_it or what != "SIGTERM")
    os.close(ours)
    said = f"status {status}, {left} processes after {seconds:.1f} s{', saved' * saved_it}"
    row(f"{what}, {way}, {unread}", said, ok)


# ---------------------------------------------------------------------------------------- frozen

# Which rank, or how many loader workers of the last rank, and which signal they get.
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
}
PARALLEL = "imagenet_fsdp.py", "imagenet_pipeline.py", "imagenet_exchange.py"
SHORT = [
    ("imagenet_nd.py", "dead loader worker", "set-up"),
    ("imagenet_nd.py", "stuck loader worker", "training"),
    ("imagenet_dp.py", "all loader workers killed", "training"),
    ("imagenet_ddp.py", "rank 0 stopped", "set-up"),
    ("imagenet_ddp_apex.py", "stuck loader worker", "training"),
    ("imagenet_horovod.py", "rank 1 stopped", "training"),
]
SHORT_PARALLEL = [
    ("imagenet_fsdp.py", "rank 1 stopped", "training"),
    ("imagenet_pipeline.py", "rank 0 stopped", "training"),
    ("imagenet_exchange.py", "rank 1 stopped", "training"),
]


def stalls(scripts):
    """Returns all (script, stall, when) of these scripts; where there is one rank, nobody is there
    to notice that it has stopped."""
    cells = [*itertools.product(scripts, STALLS, ("set-up", "training"))]
    cells += [(script, "disk that hangs", "set-up") for script in scripts]
    return [cell for cell in cells if SCRIPTS.get(cell[0]) != "plain" or "rank" not in cell[1]]


@pytest.mark.parametrize(("script", "stall", "when"), trials(stalls(SCRIPTS), SHORT))
def test_frozen(script, stall, when, tmp_path, row):
    row(*freeze(script, stall, when, tmp_path))


@pytest.mark.parametrize(("script", "stall", "when"), trials(stalls(PARALLEL), SHORT_PARALLEL))
def test_frozen_parallel(script, stall, when, tmp_path, row):
    row(*freeze(script, stall, when, tmp_path))


def freeze(script, stall, when, folder, timeout=10):
    """Stops or kills a rank or loader workers, in set-up or in training; or the disk hangs. Returns
    the row."""
    way = SCRIPTS.get(script, "torchrun")
    ranks = 1 if way == "plain" else 2
    who, count, signum = STALLS.get(stall, ("disk", 0, None))
    words = [*start(way, script), *NET, "-j", 2, "--timeout", timeout, "--epochs", 50]
    if who == "disk":
        for part in "train", "val":
            (folder / "data" / part).mkdir(parents=True)
        os.mkfifo(folder / "data" / "train" / "index.npz")  # opening it waits for a writer
        words.append(folder / "data")
    job, victims = Job(words, folder), []

    def chosen():
        there = {0: psutil.Process(job.process.pid)} if ranks == 1 else job.ranks()
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
    status, left, said = job.outcome(timeout + 90)
    ok = status not in (0, None) and not left and job.errors() and not job.traceback()
    return f"{script}: {stall} in {when}", said, ok


@pytest.mark.slow
def test_the_ports_of_one_node_are_out_of_reach(tmp_path):
    """Nothing of it can be connected to from another machine, where nobody asks who it is."""
    job = Job([*start("own spawn"), *NET, "--epochs", 50], tmp_path)
    job.wait_for(GREETING)
    sockets = [each for process in job.processes() for each in process.net_connections()]
    listening = [each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN]
    assert listening and {*listening} == {"127.0.0.1"}
