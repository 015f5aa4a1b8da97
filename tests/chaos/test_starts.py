"""Runs that start beside others, on other data or on several nodes; make_results.py on odd logs."""

import itertools
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
import torch
from conftest import ROOT, free_port, load

from chaos.checkpoints import lost, saved, verdict
from chaos.hostile_logs import hostile_logs
from chaos.jobs import GREETING, NET, WAYS, Job, kill, stage, start, trials

pytestmark = pytest.mark.timeout(2 * 3600)


@pytest.mark.chaos
@pytest.mark.slow
def test_two_runs(tmp_path, row):
    """Starts a second run on the checkpoint, and so in the folder, of one that is under way."""
    words = [*start("own spawn"), *NET, "--epochs", 8, "--checkpoint-minutes", 0.02]
    words += ["--output-dir"]
    assert Job([*words, "whole"], tmp_path).wait() == 0
    first = Job([*words, "cut"], tmp_path)
    first.is_there(lambda: saved(tmp_path / "cut"), 240)
    stopped = first.processes()  # or it would end while the second asks again
    for process in stopped:
        kill(process, signal.SIGSTOP)
    second = Job([*words, "cut"], tmp_path)
    status, lines, under_way = second.wait(), second.errors(), first.process.poll() is None
    for process in stopped:
        kill(process, signal.SIGCONT)
    ended, odd = first.wait(), lost(tmp_path / "whole", tmp_path / "cut")
    said = f"second: status {status}: {(lines or ['no line'])[0]}; first: status {ended}, "
    ok = status == 1 and len(lines) == 1 and under_way and ended == 0 and not odd
    ok = ok and not first.traceback() and not second.traceback()
    row("a second run in the folder of the first", said + verdict(odd), ok)


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
LAUNCHED = "own spawn", "torchrun", "horovodrun"
SOME = itertools.product(LAUNCHED, ("one image less", "-a"))


@pytest.mark.parametrize(("way", "other"), trials(itertools.product(LAUNCHED, OTHERS), SOME))
def test_differing(way, other, tmp_path, row):
    """Starts a rank with other data or options: all ranks end before they train."""
    data, odd = stage() / "data", OTHERS[other]
    if not odd:
        data = shutil.copytree(data, tmp_path / "data")
        image = data / "train" / "class3" / "5.jpg"
        image.rename(data / "train" / "class4" / "5b.jpg")
        if other == "one image less":
            (data / "train" / "class4" / "5b.jpg").unlink()
    words = [sys.executable, stage() / WAYS[way], *NET, "--epochs", 2]
    if way == "own spawn":  # as two nodes, each started by hand
        url = ["--dist-url", f"tcp://127.0.0.1:{free_port()}", "--world-size", 2, "--rank"]
        first = Job([*words, *url, 0], tmp_path)
        job = Job([*words, *odd, *url, 1], tmp_path, IMAGENET_DIR=str(data))
    else:
        launcher = ["torchrun", f"--master_port={free_port()}", "--nproc_per_node=2"]
        launcher = [*launcher, "--no-python"] if way == "torchrun" else start(way)[:3]
        choose = 'export IMAGENET_DIR="$0"; set -- "$@" $ODD'
        choose = f'if [ "$RANK$HOROVOD_RANK" = 1 ]; then {choose}; fi; exec "$@"'
        options = " ".join(map(str, odd))
        first = job = Job([*launcher, "sh", "-c", choose, data, *words], tmp_path, ODD=options)
    status, ended = job.wait(120), first.wait(120)
    lines = [line for line in job.errors() if "rank 1 differs from rank 0" in line]
    trained = saved(tmp_path / "runs") or "  step " in first.text()
    ok = status == 2 if way == "own spawn" else status not in (0, None)
    ok = ok and ended not in (0, None) and len(lines) == 1 and not trained
    said = f"status {status}: {(lines or ['no line says so'])[0]}"[:110]
    ok = ok and not job.traceback() and not first.traceback()
    row(f"{way}: rank 1 has {other.replace('-', 'another -', 1)}", said, ok)


# ------------------------------------------------------------------------------- killed at once

# How a run is resumed and killed before it has saved anything, in its own folder RUN or in another
# one, NEW; and what the same command takes after that, typed as it was, or on other devices.
IN_PLACE, FROM = "--output-dir RUN", "--output-dir NEW --resume RUN"
MOVES = {
    "on two ranks": ("own spawn", IN_PLACE, "own spawn"),
    "on two ranks, then on one": ("own spawn", IN_PLACE, "plain"),
    "with -j 2": ("plain", f"-j 2 {IN_PLACE}", "plain"),
    "with -b 4": ("plain", f"-b 4 {IN_PLACE}", "plain"),
    "in another folder": ("plain", FROM, "plain"),
    "in another folder, on two ranks, then on one": ("own spawn", FROM, "plain"),
    "in another folder, with other options": ("plain", f"{FROM} --momentum 0.5", "plain"),
    "in another folder, from a file": ("plain", f"{FROM}/checkpoint.pt", "plain"),
}
PROGRESS = [*NET, "--global-batch", 8, "--steps-per-epoch", 40, "--checkpoint-minutes", 0]
PROGRESS += ["--epochs", 9]


def taken(way, folder, more):
    """Starts a run and kills it at once; returns [folder, file, epoch] that it resumed from."""
    job = Job([*start(way), *PROGRESS, *more.split()], folder)
    job.is_there(lambda: GREETING in job.text(), 240)
    job.end()
    found = re.search(r"Resuming (\S+) after (\d+) of", job.text())
    return [Path(found[1]).parent.name, Path(found[1]).name, int(found[2])] if found else [""]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run that ended in its third epoch, whose best is older, if it was taken."""
    folder = tmp_path_factory.mktemp("ended")
    job = Job([*start("plain"), *PROGRESS, "--output-dir", "run"], folder)
    job.wait_for("3/9  step 5 ")
    kill(job.process, signal.SIGTERM)
    assert job.wait() == 143, job.text()
    run = folder / "run"
    torch.save(load(run / "checkpoint.pt") | {"epoch": 1, "step": 0}, run / "model_best.pt")
    return run


@pytest.mark.parametrize("move", trials(itertools.product(MOVES), [*itertools.product(MOVES)][::5]))
def test_progress(move, ended, tmp_path, row):
    """Kills a resumed run before it has saved anything: the next start takes the newest checkpoint,
    not the best, which is older, and no other folder is made."""
    way, more, back = MOVES[move]
    shutil.copytree(ended, tmp_path / "run")
    more = more.replace("RUN", "run").replace("NEW", "new")
    taken(way, tmp_path, more)
    found, there = taken(back, tmp_path, more), [path.name for path in tmp_path.glob("*/")]
    said = f"went on from {found[1]}, epoch {found[2]}" if found[1:] else "began anew"
    ok = found == ["run", "checkpoint.pt", 2] and {*there} == {"run", "new"} - {
        "new" * ("new" not in more)
    }
    row(f"gone on {move}, killed before its first save, started again", said, ok)


# ------------------------------------------------------------------------- nodes, and odd logs


def run_tests(file, chosen, folder, row):
    """Runs tests of several hosts or of Slurm, which need root; each is a row."""
    report = folder / "report.xml"
    words = [sys.executable, "-m", "pytest", "-n", "0", "-m", "slow or not slow", "-k", chosen]
    words += [f"--junitxml={report}", ROOT / "tests" / file]
    subprocess.run(words, cwd=ROOT, check=False)
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        what, bracket, parameter = case.get("name").removeprefix("test_").partition("[")
        what = what.replace("_", " ") + bracket + parameter
        (outcome,) = [*case] or [None]
        if outcome is None:
            row(what, f"passed in {float(case.get('time')):.0f} s", True)
        else:
            skipped = outcome.tag == "skipped"
            said = outcome.get("message", "").splitlines()[0][:200]
            row(what, f"{outcome.tag}: {said}", None if skipped else False)


@pytest.mark.chaos
def test_nodes(tmp_path, row):
    run_tests("test_nodes.py", "", tmp_path, row)


@pytest.mark.chaos
def test_slurm(tmp_path, row):
    run_tests("test_slurm.py", "job", tmp_path, row)


@pytest.mark.chaos
def test_logs(tmp_path, row):
    """Gives make_results.py malformed and malicious logs: it shows the others."""
    for what, held in hostile_logs(tmp_path):
        row(f"make_results.py: {what}", "named, or shown as text; others are shown", held)


@pytest.mark.slow
def test_hostile_logs(tmp_path):
    """The same, in `make test`."""
    found = hostile_logs(tmp_path)
    assert found and not [what for what, held in found if not held]
