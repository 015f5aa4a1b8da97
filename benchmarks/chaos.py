"""Breaks runs in every way that they must survive, and prints what became of them.

    make chaos                                       # all trials, over an hour on two CPU cores
    python benchmarks/chaos.py kills signals         # some of them
    python benchmarks/chaos.py --list

The real scripts are started as users start them, on the CPU, and killed, frozen, starved or fed
damaged files; the table counts what was done and what held. From logs/benchmarks/chaos.json, where
it goes, make_results.py takes it into RESULTS.md. tests/test_chaos.py runs shorter versions.
"""

import argparse
import io
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import PIL.Image
import psutil
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from common import about  # noqa: E402

import imagenet_nd as nd  # noqa: E402
from make_results import HOLDS  # noqa: E402

BIN = Path(sys.executable).parent
LOG = ROOT / "logs" / "benchmarks" / "chaos.json"
# BatchNorm, dropout, float32 masters and a loss scale that moves: all that a checkpoint must hold.
NET = ["-a", "mobilenet_v3_small", "--image-size", "32", "--no-accel", "-j", "1", "-b", "8"]
NOTE = (
    "Signals: the step of the checkpoint, of as many as had been shown when the run ended; "
    "horovodrun, once gone, passes on no more lines."
)
O2 = ["--opt-level", "O2", "--loss-scale", "dynamic"]


class Job:
    """A command in a session of its own, with what it says."""

    def __init__(self, words, folder, **env):
        unset = ("IMAGENET_DIR", "RANK", "WORLD_SIZE", "LOCAL_RANK", "PYTHONPATH")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
        environment |= {"OMP_NUM_THREADS": "1", "CHAOS": str(folder), **env}
        self.folder, self.said = folder, folder / f"said{time.monotonic_ns()}.txt"
        with open(self.said, "w") as file:
            self.process = subprocess.Popen(
                [str(word) for word in words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self):
        return self.said.read_text(errors="replace")

    def wait_for(self, pattern, seconds=240):
        """Waits until it has said something that matches."""
        until = time.monotonic() + seconds
        while not re.search(pattern, self.text()):
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no {pattern!r} in:\n{self.text()[-3000:]}")
            time.sleep(0.05)

    def wait(self, seconds=600):
        """Returns its exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise RuntimeError(f"still running after {seconds} s:\n{self.text()[-3000:]}") from None

    def everyone(self):
        """Returns this job's processes, orphans too: they have its environment."""
        mine = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("CHAOS") == str(self.folder):
                    mine += [process] if process.status() != psutil.STATUS_ZOMBIE else []
            except (psutil.Error, OSError):
                pass
        return mine

    def ranks(self):
        """Returns its ranks: Python processes of a script that a launcher has started."""
        found = []
        for process in self.everyone():
            try:
                words = process.cmdline()
                script = any(re.search(r"imagenet_\w+\.py$", word) for word in words)
                spawned = any("spawn_main" in word for word in words)
                launcher = any(
                    re.search("torchrun|horovodrun|distributed.launch", w) for w in words
                )
                parent = process.parent()
                worker = parent and parent.cmdline() == words
                if (script or spawned) and not launcher and not worker:
                    if not script or words[0].endswith(
                        ("python", "python3", Path(sys.executable).name)
                    ):
                        found.append(process)
            except psutil.Error:
                pass
        return found

    def rank(self, number):
        """Returns one of the ranks that imagenet_ddp.py has started by itself, in their order."""
        return sorted(self.ranks(), key=lambda each: each.pid)[-2:][number]

    def end(self):
        """Kills what is left of it."""
        for process in self.everyone():
            try:
                process.kill()
            except psutil.Error:
                pass
        self.process.wait()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(way, script, ranks, *launcher_options):
    """Returns the words that start a script with so many ranks in one of five ways."""
    path = ROOT / script if not Path(script).is_absolute() else script
    python = sys.executable
    return {
        "plain": [python, path],
        "own spawn": [python, path, "--nproc-per-node", ranks],
        "one rank": [python, path, "--nproc-per-node", ranks],
        "torchrun": [
            *("torchrun", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"),
            *(f"--nproc_per_node={ranks}", *launcher_options, path),
        ],
        "launch": [
            *(python, "-m", "torch.distributed.launch", f"--master_port={free_port()}"),
            *(f"--nproc_per_node={ranks}", *launcher_options, path),
        ],
        "horovodrun": ["horovodrun", "-np", ranks, python, path],
    }[way]


def checkpoints(folder, log_dir):
    """Returns the run's checkpoints, the newest first."""
    names = ("checkpoint.pt", "checkpoint-1.pt", "checkpoint-2.pt")
    return [path for name in names for path in sorted((folder / log_dir).glob(f"*/{name}"))]


def differences(one, other, where=""):
    """Returns where two checkpoints' contents differ, times and options aside."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in {**one, **other} if key not in ("args", "seconds")]
        return [
            each
            for key in keys
            for each in differences(one.get(key), other.get(key), f"{where}/{key}")
        ]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and torch.equal(one, other)
    else:
        same = type(one) is type(other) and one == other
    return [] if same else [where]


def final(folder, log_dir):
    """Returns the contents of a run's last checkpoint."""
    return torch.load(checkpoints(folder, log_dir)[0], weights_only=True)


def damage(path, how, rng):
    """Truncates, empties or flips one bit of a file, in place."""
    content = bytearray(path.read_bytes())
    if how == "emptied":
        content = b""
    elif how == "truncated":
        del content[rng.randrange(1, len(content)) :]
    else:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


# ------------------------------------------------------------------------------------------- trials


def kills(folder, ranks=2, kills=20, damaged=0, epochs=12, steps=40, seed=0):
    """SIGKILLs random ranks at random moments under torchrun --max-restarts."""
    rng = random.Random(seed)
    more = ["--epochs", epochs, "--steps-per-epoch", steps, "-p", 1]
    words = [*NET, *O2, *more, "--checkpoint-minutes", "0.02", "--resume", "auto"]
    restarts = f"--max-restarts={2 * kills + 5}"
    way = start("torchrun", "imagenet_ddp_apex.py", ranks, restarts)
    Job([*way, *words, "--log-dir", "whole"], folder).wait(1800)
    job, landed, hurt, last = Job([*way, *words, "--log-dir", "cut"], folder), 0, [], 0
    while landed < kills and job.process.poll() is None:
        # Half of the kills come at any moment after the start, half while it trains.
        if landed % 2:
            until = time.monotonic() + 120
            while job.text().count("Epoch:") <= last and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(rng.uniform(0, 3))
        else:
            time.sleep(rng.uniform(0.5, 12))
        # The last kills are kept for the damage that is still to be done.
        until = time.monotonic() + 120
        while kills - landed <= damaged - len(hurt) and time.monotonic() < until:
            saved = checkpoints(folder, "cut")
            if len(saved) > 1 and saved[0].stat().st_mtime_ns not in hurt:
                break
            time.sleep(0.05)
        victims = job.ranks()
        if len(victims) < ranks:
            continue
        last = job.text().count("Epoch:")
        try:
            rng.choice(victims).kill()
        except psutil.Error:
            continue
        landed += 1
        saved = checkpoints(folder, "cut")
        if len(hurt) < damaged and len(saved) > 1 and saved[0].stat().st_mtime_ns not in hurt:
            damage(saved[0], ("truncated", "flipped", "emptied")[len(hurt) % 3], rng)
            hurt.append(saved[0].stat().st_mtime_ns)  # one is damaged once
        time.sleep(1)
    status = job.wait(1800)
    passed_over = job.text().count("passes over")
    lost = differences(final(folder, "whole"), final(folder, "cut"))
    what = f"{landed} SIGKILLs landed on {ranks} ranks"
    if damaged:
        what += f", {len(hurt)} newest checkpoints damaged, {passed_over} passed over"
    ok = status == 0 and not lost and landed == kills and len(hurt) == damaged
    return [(what, "equal to the uninterrupted run to the bit" if not lost else f"{lost[:3]}", ok)]


OMISSIONS = {
    "the seed of a step's random numbers": (
        "        torch.manual_seed(mix(args.seed, epoch, step, run.place.rank))\n",
        "",
    ),
    "the position in the epoch": (
        "order.epoch, order.first = epoch, run.step",
        "order.epoch, order.first = epoch, 0",
    ),
    "the loss scaler": ('run.scaler.state_dict() | saved["scaler"]', "run.scaler.state_dict()"),
    "the float32 masters": (
        "    state = full_state(run.model, run.optimizer)\n    partial",
        "    state = run.model.module.state_dict()\n    partial",
    ),
    "nothing": ("", ""),
}


def omissions(folder, names=tuple(OMISSIONS), steps=12):
    """Interrupts and resumes scripts that leave something out of the checkpoint: each must differ
    from its own uninterrupted run, or the comparison shows nothing."""
    rows = []
    for name in names:
        old, new = OMISSIONS[name]
        text = (ROOT / "imagenet_ddp_apex.py").read_text()
        assert old in text, f"{name}: the script has changed, and this trial with it"
        here = folder / name.replace(" ", "_")
        here.mkdir()
        script = here / "imagenet_ddp_apex.py"
        script.write_text(text.replace(old, new, 1))
        words = [*NET, *O2, "--epochs", 2, "--steps-per-epoch", steps, "-p", 1]
        way = [sys.executable, script]
        Job([*way, *words, "--log-dir", "whole"], here).wait()
        job = Job([*way, *words, "--log-dir", "cut"], here)
        job.wait_for(rf"Epoch: \[1\]\[ *{steps // 3}/")
        job.process.terminate()
        assert job.wait() == 143, job.text()
        Job([*way, *words, "--log-dir", "cut", "--resume", "auto"], here).wait()
        lost = differences(final(here, "whole"), final(here, "cut"))
        said = f"differs in {len(lost)} entries" if lost else "equal to the bit"
        rows.append((f"{name} left out", said, bool(lost) == (name != "nothing")))
    return rows


WAYS = {
    "plain": "imagenet_nd.py",
    "own spawn": "imagenet_ddp.py",
    "one rank": "imagenet_ddp.py",
    "torchrun": "imagenet_ddp.py",
    "launch": "imagenet_ddp_apex.py",
    "horovodrun": "imagenet_horovod.py",
}


def signals(folder, ways=tuple(WAYS), names=("TERM", "INT", "USR1", "KILL")):
    """Sends each signal to each launcher in mid-epoch."""
    rows = []
    for way, name in itertools.product(ways, names):
        here = folder / f"{way}-{name}".replace(" ", "_")
        here.mkdir()
        words = [*start(way, WAYS[way], 2), *NET, "-p", 1, "--epochs", 50]
        job = Job(words, here)
        job.wait_for(r"Epoch: \[0\]\[ *8/")
        before = len(re.findall(r"Epoch: \[0\]", job.text()))
        target = job.process.pid if way != "one rank" else job.rank(1).pid
        os.kill(target, getattr(signal, f"SIG{name}"))
        started, status = time.monotonic(), job.wait(60)
        while job.everyone() and time.monotonic() < started + 10:
            time.sleep(0.1)
        seconds, left = time.monotonic() - started, job.everyone()
        markers = [json.loads(path.read_text()) for path in here.glob("runs/*/PREEMPTED")]
        can = not (way in ("plain", "one rank") and name == "KILL")  # nobody is left to save
        ok = not left and status != 0 and len(markers) == can
        said = f"status {status}, {len(left)} processes after {seconds:.1f} s"
        if markers and can:
            step, saved = markers[0]["step"], final(here, "runs")["step"]
            at = max(map(int, re.findall(r"Epoch: \[0\]\[ *(\d+)/", job.text()))) + 1
            late = 5 if way == "horovodrun" else 1  # gone, it passes on no more lines
            ok = ok and step == saved and before <= step and -1 <= step - at <= late
            said = f"checkpoint at step {saved} of {at}, {said}"
        rows.append((f"SIG{name} to {way}", said, ok))
        job.end()
    return rows


def frozen(folder, what=("rank", "loader worker", "dead loader worker"), timeout=12):
    """Freezes a rank or a loader worker by SIGSTOP, or kills the latter."""
    rows = []
    for victim in what:
        here = folder / victim.replace(" ", "_")
        here.mkdir()
        words = [*start("own spawn", "imagenet_ddp.py", 2), *NET, "-p", 1, "--epochs", 50]
        job = Job([*words, "--timeout", timeout], here)
        job.wait_for(r"Epoch: \[0\]\[ *8/")
        rank = job.rank(1)
        workers = [each for each in rank.children() if each.cmdline() == rank.cmdline()]
        chosen = [rank] if victim == "rank" else workers
        for process in chosen:
            process.send_signal(signal.SIGKILL if "dead" in victim else signal.SIGSTOP)
        started = time.monotonic()
        status, seconds = job.wait(timeout + 60), time.monotonic() - started
        told = re.findall(r"error: (.*)", job.text())
        named = [line for line in told if "rank 1" in line]
        time.sleep(1)
        left = job.everyone()
        said = f"status {status} after {seconds:.0f} s, {len(left)} processes left: {told[0]}"
        rows.append((f"{victim} of rank 1", said, status > 0 and bool(named) and not left))
        job.end()
    return rows


def files(folder, trials=120, seed=0):
    """Truncates and flips checkpoints; offers a hostile one."""
    job = Job(
        [*start("plain", "imagenet_nd.py", 1), *NET, "--epochs", 1, "--steps-per-epoch", 2], folder
    )
    assert job.wait() == 0, job.text()
    whole, copy, rng = checkpoints(folder, "runs")[0], folder / "copy.pt", random.Random(seed)
    _, reference = nd.read_checkpoint(whole)
    rows = []
    for how in "truncated", "flipped":
        refused = identical = wrong = 0
        for _ in range(trials):
            shutil.copy(whole, copy)
            damage(copy, how, rng)
            try:
                _, loaded = nd.read_checkpoint(copy)
                same = not differences(reference, loaded)
                identical, wrong = identical + same, wrong + (not same)
            except nd.BadInput:
                refused += 1
        said = f"{refused} refused, {identical} identical, {wrong} loaded wrongly"
        rows.append((f"{trials} checkpoints {how}", said, wrong == 0))

    class Hostile:
        def __reduce__(self):
            return (open, (str(folder / "owned"), "w"))

    torch.save({"arch": Hostile()}, copy)
    job = Job([*start("plain", "imagenet_nd.py", 1), *NET, "--resume", copy], folder)
    status, ran = job.wait(), (folder / "owned").exists()
    rows.append(
        (
            "hostile pickle",
            f"status {status}, {'run' if ran else 'not run'}",
            status == 2 and not ran,
        )
    )
    return rows


def disk(folder, megabytes=90):
    """Fills the disk of the checkpoints in mid-training, and frees it again."""
    room = folder / "room"
    room.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", room]
    if subprocess.run(list(map(str, mount)), capture_output=True).returncode:
        return [("full disk", "not tried: no right to mount a tmpfs", None)]
    try:
        words = [*start("own spawn", "imagenet_ddp.py", 2), *NET, "-p", 1, "--epochs", 10]
        more = ["--steps-per-epoch", 20, "--checkpoint-minutes", "0.02", "--log-dir", room / "runs"]
        job = Job([*words, *more], folder)
        job.wait_for(r"Epoch: \[1\]\[ *2/")
        filler = room / "filler"
        with open(filler, "wb", buffering=0) as file:
            try:
                while file.write(bytes(2**12)):
                    pass
            except OSError:
                pass
        job.wait_for("cannot be written")
        kept = checkpoints(room, "runs")
        for path in kept:
            nd.read_checkpoint(path)  # raises where one is damaged
        seen = job.text().count("Epoch:")
        while job.text().count("Epoch:") < seen + 10 and job.process.poll() is None:
            time.sleep(0.1)
        filler.unlink()
        status = job.wait()
        ended = final(room, "runs")["epoch"]
        said = f"told; {len(kept)} checkpoints intact; training went on to status {status}, "
        said += f"epoch {ended} saved"
        return [("full disk", said, status == 0 and ended == 10 and bool(kept))]
    finally:
        job.end()
        subprocess.run(["umount", "-l", str(room)], check=False)


def images(folder, truncated=200):
    """Trains on truncated and odd images."""
    rng = np.random.default_rng(0)
    data, good = folder / "data", 300
    for part, label in itertools.product(("train", "val"), "ab"):
        (data / part / label).mkdir(parents=True)
        for serial in range(good if part == "train" else 8):
            pixels = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
            image = PIL.Image.fromarray(pixels).resize((60, 48))
            image.save(data / part / label / f"{serial:04}.JPEG", quality=90)
    victims = sorted((data / "train").glob("*/*.JPEG"))[:: 2 * good // truncated][:truncated]
    for path in victims:
        content = path.read_bytes()
        path.write_bytes(content[: int(rng.integers(1, len(content) - 2))])
    odd = sorted((data / "train").glob("*/*1.JPEG"))
    odd = [path for path in odd if path not in victims][:12]
    for number, path in enumerate(odd):
        image = PIL.Image.open(path)
        kind = ("CMYK", "L", "PNG", "exif", "zeros", "trailing")[number % 6]
        encoded = io.BytesIO()
        if kind in ("CMYK", "L"):
            image.convert(kind).save(encoded, "JPEG")
        elif kind == "PNG":
            image.save(encoded, "PNG")
        else:
            exif = b"Exif\0\0broken" if kind == "exif" else b""
            image.save(encoded, "JPEG", exif=exif)
        content = encoded.getvalue()
        content = content[:-300] + bytes(1300) if kind == "zeros" else content
        path.write_bytes(content + (b"more" if kind == "trailing" else b""))
    words = [*NET, "--epochs", 2, "--image-size", "32", "--max-bad-images", "0.5"]
    job = Job([*start("own spawn", "imagenet_ddp.py", 2), *words, data], folder)
    status = job.wait()
    (named,) = folder.glob("runs/*/bad_images.txt")
    lines = named.read_text().splitlines()
    wrong = {line.split("\t")[0] for line in lines} ^ {str(path) for path in victims}
    ok = status == 0 and not wrong and len(lines) == len(victims)
    rows = [
        (
            f"{len(victims)} truncated images of {2 * good}, two epochs",
            f"{len(lines)} named, once each",
            ok,
        )
    ]
    equal = 0
    for path in odd:
        reference = np.asarray(PIL.Image.open(path).convert("RGB")).astype(int)
        read = nd.decode(path.read_bytes(), str(path), lambda height, width: (0, 0, height, width))
        equal += np.abs(read.numpy() - reference).max() <= 4
    rows.append((f"{len(odd)} odd images", f"{equal} read as Pillow does", equal == len(odd)))
    job = Job([*start("plain", "imagenet_nd.py", 1), *NET, "--epochs", 1, data], folder)
    status, told = job.wait(), re.findall(r"error: (.*)", job.text())
    said = f"status {status}: {told[-1].split(': ')[0] if told else ''}"
    rows.append(("the same with --max-bad-images 0.001", said, status == 2))
    return rows


def tests(folder, file, chosen=""):
    """Runs tests of several hosts or of Slurm, which need root; each is a row."""
    report = folder / "report.xml"
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-m",
        "slow or not slow",
        "-k",
        chosen,
        f"--junitxml={report}",
    ]
    subprocess.run(
        [*words, ROOT / "tests" / file], cwd=ROOT, stdout=subprocess.DEVNULL, check=False
    )
    rows = []
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        what, bracket, parameter = case.get("name").removeprefix("test_").partition("[")
        what = what.replace("_", " ") + bracket + parameter
        (outcome,) = [*case] or [None]
        if outcome is None:
            rows.append((what, f"passed in {float(case.get('time')):.0f} s", True))
        else:
            skipped = outcome.tag == "skipped"
            said = outcome.get("message", "").splitlines()[0][:200]
            rows.append((what, f"{outcome.tag}: {said}", None if skipped else False))
    return rows


TRIALS = {
    "kills": lambda folder: kills(folder, 2, 20),
    "kills_damaged": lambda folder: kills(folder, 2, 20, damaged=9, seed=1),
    "kills_4_ranks": lambda folder: kills(folder, 4, 5, epochs=6, seed=2),
    "omissions": omissions,
    "signals": signals,
    "frozen": frozen,
    "files": files,
    "disk": disk,
    "images": images,
    "nodes": lambda folder: tests(folder, "test_nodes.py"),
    "slurm": lambda folder: tests(folder, "test_slurm.py", "time_limit or cancelled"),
}


def attempt(name):
    """Returns the rows (what, what became of it, whether it holds) of a trial, in a folder of its
    own; a trial that breaks down is a row that does not hold."""
    folder = Path(tempfile.mkdtemp(prefix="chaos_"))
    try:
        rows = TRIALS[name](folder)
        return [(what, said, None if holds is None else bool(holds)) for what, said, holds in rows]
    except Exception as error:
        return [(name, f"{type(error).__name__}: {str(error)[:300]}", False)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=f"of {', '.join(TRIALS)}")
    parser.add_argument("--list", action="store_true", help="print the names of the trials")
    parser.add_argument("--log", type=Path, default=LOG, help="JSON file that the rows go into")
    args = parser.parse_args()
    if unknown := set(args.trials) - TRIALS.keys():
        parser.error(f"no trial {unknown.pop()}: there are {', '.join(TRIALS)}")
    if args.list:
        print(*TRIALS, sep="\n")
        return
    known = json.loads(args.log.read_text()) if args.log.exists() else {"trials": {}, "commits": {}}
    rows, commits = known["trials"], known["commits"]
    made_with = {**about("psutil"), "command": ["make", "chaos"]}
    commit = made_with.pop("commit")  # before the log changes
    print("| trial | outcome | holds |\n|---|---|---|")
    for name in args.trials or TRIALS:
        rows[name] = attempt(name)
        for row in rows[name]:
            print("|", " | ".join([*row[:2], HOLDS[row[2]]]), "|", flush=True)
        content = {"title": "Faults, and what became of the runs", "note": NOTE}
        content["about"], commits[name] = made_with, commit
        content["trials"] = {name: rows[name] for name in TRIALS if name in rows}
        content["commits"] = commits
        args.log.parent.mkdir(parents=True, exist_ok=True)
        args.log.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(row[2] is False for name in args.trials or TRIALS for row in rows[name]))


if __name__ == "__main__":
    main()
