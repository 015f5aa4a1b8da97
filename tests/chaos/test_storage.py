"""Checkpoints that are damaged, forged or half written; disks that fill; limits of the system."""

import contextlib
import functools
import itertools
import os
import random
import re
import shlex
import shutil
import zipfile
from pathlib import Path

import pytest
from conftest import THEN_RUN, load

from chaos.checkpoints import damage_at_random, differences, lost, saved, verdict
from chaos.jobs import NET, Job, mount, stage, start, trials, unmount

pytestmark = pytest.mark.timeout(3600)

# ----------------------------------------------------------------------------------------- files

SMALL = [*NET, "-a", "squeezenet1_1", "--image-size", 64, "--steps-per-epoch", 2, "--epochs", 1]


@pytest.mark.parametrize("count", trials([(240,)], [(40,)]))
def test_files(count, tmp_path, row):
    """Damages checkpoints, of which none may be taken: kept epochs of one folder, all of them newer
    than an intact checkpoint."""
    words = [*start("plain"), *SMALL]
    job = Job(words, tmp_path)
    assert job.wait() == 0, job.text()
    good, rng, folder = saved(tmp_path / "runs"), random.Random(0), tmp_path / "damaged"
    reference = load(good)
    shares = {"truncated": count // 2, "flipped": count // 4}
    shares["flipped in the directory"] = count - sum(shares.values())
    for how, share in shares.items():
        refused = identical = wrong = number = 0
        while number < share:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for _ in range(min(30, share - number)):
                number += 1
                path = shutil.copy(good, folder / f"epoch-{number + 9}.pt")
                damage_at_random(Path(path), how, rng)
            shutil.copy(good, folder / "epoch-9.pt")
            while True:
                job = Job([*words, "--output-dir", folder, "--evaluate"], tmp_path)
                assert job.wait() == 0, job.text()
                (taken,) = map(Path, re.findall(r"Validating (\S+), epoch", job.text()))
                if taken.name == "epoch-9.pt":
                    break
                same = not differences(load(taken), reference)
                identical, wrong = identical + same, wrong + (not same)
                taken.unlink()
            refused += job.text().count(" skips ")
        said = f"{refused} refused, {identical} with the same content, {wrong} loaded wrongly"
        ok = not wrong and refused + identical == share
        row(f"{share} checkpoints {how}", f"{said}; the one before was taken", ok)


# ------------------------------------------------------------------------------------------ disk


def fill(run):
    """Fills the disk; a run's folder is in another one, at its root."""
    with open(run.parents[1] / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(2**12)):
            pass


def turn_read_only(run):
    # Mounted over itself, since a remount is refused while the log is open for writing.
    assert mount("--bind", run, run) and mount("-o", "remount,bind,ro", run)


TAKEN = {  # how, and how it is given back
    "full disk": (fill, lambda run: (run.parents[1] / "filler").unlink()),
    "disk that turns read-only": (turn_read_only, unmount),
}
CLOSED, FULL = "stdout closed by `| head -1`", "stdout on a full disk"
DISK = [*itertools.product([*TAKEN, CLOSED, FULL], ["own spawn"])]


@pytest.mark.parametrize(("what", "way"), trials(DISK, [*DISK, ("full disk", "plain")]))
def test_disk(what, way, tmp_path, row):
    """Takes away what a run writes to: the names or the disk of its checkpoints, or its output."""
    room = tmp_path / "room"
    room.mkdir()
    if "disk" in what and not mount("-t", "tmpfs", "-o", "size=90m", "tmpfs", room):
        pytest.skip("no right to mount a disk")
    words = [*start(way), *NET, "--epochs", 4, "--steps-per-epoch", 20]
    words += ["--checkpoint-minutes", 0.02, "--output-dir"]
    try:
        row(what, *(survive if what in TAKEN else ignore)(what, words, tmp_path, room))
    finally:
        unmount(room)


def survive(what, words, folder, room):
    """The run ends in one line, and resumes once it has its disk back."""
    take, give_back = TAKEN[what]
    run = room / "runs" / "run"
    run.parent.mkdir()
    job = Job([*words, run], folder)
    job.wait_for("2/4  step 5 ")
    take(run)
    status, lines = job.wait(120), [*job.errors(), "no line says so"]
    whole = [load(path) for path in run.glob("*.pt")]  # or it raises
    give_back(run)
    again = Job([*words, run], folder)
    ended, on = again.wait(), "Resuming " in again.text()
    said = f"status {status}: {lines[0]}; {len(whole)} checkpoints whole; the same command "
    said += f"went on to status {ended}" if on else "did not go on"
    ok = status == 1 and lines[1:] and whole and on and ended == 0 and not job.traceback()
    return said, ok


def ignore(what, words, folder, room):
    """The run goes on without its output."""
    words, output = [*words, "run"], None
    if what == FULL:
        output = room / "output.txt"
        fill(room / "runs" / "run")
    else:
        shell = f"{shlex.join(map(str, words))} 2> errors.txt | head -1; exit ${{PIPESTATUS[0]}}"
        words = ["bash", "-c", shell]
    status, path = Job(words, folder, output).wait(), saved(folder / "run")
    said = f"status {status}, epoch {load(path)['epoch'] if path else 0} of 4 saved"
    return said, said == "status 0, epoch 4 of 4 saved"


# ----------------------------------------------------------------------------- system calls

# Runs a script whose n-th call of a function is the last thing that its process does.
WRAPPER = """
import io, os, signal, sys, torch
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
"""
CALLS = [("save", "within", number) for number in (1, 2, 4)]
CALLS += [("replace", when, number) for when in ("before", "after") for number in (1, 2, 4)]
CALLS += [("fsync", when, number) for when in ("before", "after") for number in (1, 6)]
CALLS += [("link", "before", 4), ("link", "after", 4)]  # the first three have no file yet
CUT = [("imagenet_nd.py", *call) for call in CALLS]
CUT += [("imagenet_pipeline.py", *CALLS[each]) for each in (1, 3, 5, 8, -1)]
SAVING = [*NET, "--ema", 0.9, "--epochs", 2, "--steps-per-epoch", 4, "--timeout", 20]
SAVING += ["--output-dir", "run"]


def start_saving(script):
    return start("plain" if script == "imagenet_nd.py" else "static", script)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Returns a function of a script that gives the folder of its uninterrupted run."""

    @functools.cache
    def train(script):
        folder = tmp_path_factory.mktemp("whole")
        assert Job([*start_saving(script), *SAVING], folder).wait() == 0
        return folder / "run"

    return train


@pytest.mark.parametrize(("script", "name", "when", "number"), trials(CUT, CUT[1:14:4]))
def test_syscalls(script, name, when, number, uninterrupted, tmp_path, row):
    """SIGKILLs rank 0 right before, after or within a call that saving makes; then resumes."""
    wrapper, run = tmp_path / "wrapper.py", tmp_path / "run"
    wrapper.write_text(WRAPPER + THEN_RUN)
    words = [*start_saving(script)[:-1], wrapper, name, when, number, stage() / script]
    status, found = Job([*words, *SAVING], tmp_path).wait(), [*run.glob("*.pt")]
    left = len([*run.glob("*.tmp")])
    bad = [path.name for path in found if not whole(path)]
    again = Job([*start_saving(script), *SAVING], tmp_path)
    ended, odd = again.wait(), bad or lost(uninterrupted(script), run)
    over = again.text().count(" skips ")
    said = f"{len(bad)} of {len(found)} files damaged" if bad else f"{len(found)} files whole"
    said += f", {left} *.tmp left; went on to status {ended}"
    ok = status not in (0, None) and not bad and not over and ended == 0 and not odd
    call = f"torch.{name}()" if name == "save" else f"os.{name}()"
    what = f"{script}: SIGKILL {when} {call} number {number}"
    row(what, f"{said}; {verdict(odd)}", ok and not again.traceback())


def whole(path):
    """Returns whether a checkpoint's records match their checksums, and it loads."""
    with contextlib.suppress(Exception), zipfile.ZipFile(path) as archive:
        return archive.testzip() is None and bool(load(path))
    return False


# ---------------------------------------------------------------------------------------- limits

# Root has no limit of processes. This user has none of its rights but to read its files.
NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=+dac_override "
NOBODY += "--ambient-caps=+dac_override"
PRIVATE = "unshare --mount"  # whose mounts nobody else sees
READ_ONLY = 'mount --bind . . && mount -o remount,bind,ro . && cd "$PWD" && unset IMAGENET_DIR'
# Deleted once all is imported, since PyTorch's import needs a folder. $1 is Python, $2 the script.
GONE = f"""mkdir gone && cd gone && set -- $1 -c '
import os, sys, torch, torchvision
os.rmdir("../gone")
sys.argv[:] = sys.argv[1:]
{THEN_RUN}' "${{@:2}}" """
# By what the shell is started, what it does first, and options.
LIMITS = {
    "ulimit -n 64, -j 16": ("", "ulimit -n 64", ["-j", 16]),
    "ulimit -n 64, -j 16, two ranks": ("", "ulimit -n 64", ["-j", 16]),
    "ulimit -u 1": (NOBODY, "ulimit -u 1", []),
    "ulimit -u 9, -j 16": (NOBODY, "ulimit -u 9", ["-j", 16]),
    "ulimit -f 1 KB": ("", "exec > >(cat) 2>&1 && ulimit -f 1", []),
    "ulimit -f 4 MB": ("", "exec > >(cat) 2>&1 && ulimit -f 4000", []),
    "/dev/shm of 64 KB": (PRIVATE, "mount -t tmpfs -o size=64k tmpfs /dev/shm", []),
    "no DIR, a folder that cannot be written": (PRIVATE, READ_ONLY, ["--output-dir", "../run"]),
    "a folder that is deleted": ("", GONE, []),
}


@pytest.mark.parametrize(
    "what", trials(itertools.product(LIMITS), [*itertools.product(LIMITS)][::3])
)
def test_limits(what, tmp_path, row):
    """Starts a run where something has run out: it ends in one line, before any time-out."""
    before, shell, more = LIMITS[what]
    if before and os.geteuid():
        pytest.skip(f"{what} needs root")
    ranks = 2 if "two ranks" in what else 1
    words = [*before.split(), "bash", "-c", f'{shell} && exec "$@"', "-"]
    words += [*start("own spawn" if ranks > 1 else "plain"), *NET, "--epochs", 1]
    here = tmp_path / "here"
    job = Job([*words, "--steps-per-epoch", 4, "--timeout", 15, *more], here)
    status, lines, left = job.wait(120), job.errors(), job.left()
    stood, traced = "Timeout (" in job.text(), "Traceback" in job.text()
    said = f"{'a traceback; ' * traced}status {status}{', stood still' * stood}: "
    said += f"{(lines or ['no line'])[0]}{f'; {left} processes left' if left else ''}"
    ok = status in (1, 2) and 0 < len(lines) <= ranks and not (left or stood or traced)
    row(what, said[:240], ok)
