"""Says whether a changed copy of a script still keeps what the scripts promise.

    python tools/check_script.py mine.py              # against imagenet_nd.py or text_nd.py
    python tools/check_script.py --own mine.py        # its loss, model or data are its own
    python tools/check_script.py mine.py -- -a timm/test_vit2 DIR    # with these options

It trains two epochs of five steps a few times, on the CPU, on one rank and on two, and prints a
line for each promise: the same losses as the script for one device; step k has the same data on any
number of ranks; validation counts each item once; a run that is killed resumes to the bit. A line
begins with "kept", "BROKEN", or "n/a" if the trial cannot show it. Exit status 1 if one is broken.
Options after `--` replace those of the trial; its model must have no BatchNorm and no dropout,
which differ by the number of ranks by design.
"""

import contextlib
import difflib
import importlib.util
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import commandline
import psutil
import torch
from commandline import ROOT
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainparts.images import image_files

EPOCHS, STEPS, BATCH = 2, 10, 16
SAME = 1e-5  # relative, of losses in float32 whose sums are made in another order
ALL = f"--no-accel --epochs {EPOCHS} --steps-per-epoch {STEPS // EPOCHS} -p 1 --seed 3"
IMAGES = "-j 1 --image-size 32 --val-resize 32 --lr 0.05 --warmup-epochs 0.2 --min-crop 0.3"
IMAGES += " --label-smoothing 0.1"  # which validation must not have
TEXT = "--max-length 16 --dropout 0 --lr 3e-3"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
ALONE = {  # strategies of one process, and what that leaves untried
    "nd": "this strategy has one rank: micro-batches of two sizes are compared instead",
    "dp": "the trial is on the CPU, and DataParallel needs two GPUs: micro-batches of two sizes "
    "are compared instead",
}


class Broken(Exception):
    """How a promise is broken, in a line."""


def strategy_of(text, family):
    """Returns the strategy, as "ddp", whose script of this family has the likest last section."""

    def launch(text):
        return text.partition("# ==== launch")[2].splitlines()

    def likeness(path):
        return difflib.SequenceMatcher(None, launch(path.read_text()), launch(text)).ratio()

    best = max(sorted(ROOT.glob(f"{family}_*.py")), key=likeness)
    return best.stem.partition("_")[2]


class Trials:
    """Runs of a script, and of the reference, in a folder."""

    def __init__(self, script, options, folder):
        text = script.read_text()
        self.family = "text" if "text_corpus" in text else "imagenet"
        self.script, self.folder = script, folder
        self.strategy = strategy_of(text, self.family)
        self.reference = ROOT / f"{self.family}_nd.py"
        # Without BatchNorm; a pipeline cannot cut timm's small ViT.
        small = "timm/test_efficientnet_ln" if self.strategy == "pipeline" else "timm/test_vit"
        model = small if importlib.util.find_spec("timm") else "vit_b_16"
        usual = f"-a {model} {IMAGES}" if self.family == "imagenet" else TEXT
        self.alike = False  # whether losses are on one rank and on two, as check_losses() finds
        self.options = [*shlex.split(ALL), *shlex.split(usual), *options]
        self.data = []
        if self.family == "imagenet" and not any(Path(word).is_dir() for word in options):
            image_files.make_demo_set(folder / "demo")
            for path in sorted((folder / "demo" / "val").glob("*/*"))[:-37]:
                path.unlink()  # a number that no batch divides
            self.data = [folder / "demo"]

    def words(self, script, strategy, ranks, batch=None):
        """Returns how a script is started, and its options, so that a step has BATCH items, in two
        micro-batches of each rank. A rank of a pipeline is a replica, of two processes."""
        own = batch or BATCH // ranks // 2
        start, split = [sys.executable, script], ["-b", own]
        if strategy == "pipeline":
            start = [*TORCHRUN, f"--nproc_per_node={2 * ranks}", script]
            split += ["--stages", 2, "--microbatches", math.gcd(2, own)]
        elif strategy == "ddp" and ranks > 1:
            split += ["--nproc-per-node", ranks]
        elif strategy == "horovod" and ranks > 1:
            start = [HOROVODRUN, "-np", ranks, *start]
        elif strategy not in ALONE and ranks > 1:
            start = [*TORCHRUN, f"--nproc_per_node={ranks}", script]
        return [*start, *self.options, *split, "--global-batch", BATCH]

    def start(self, words, more):
        """Starts a command in the folder; returns the process."""
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        words = [*map(str, [*words, *more, *self.data])]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(words, cwd=self.folder, env=env, start_new_session=True, **pipe)

    def run(self, words, *more):
        """Runs a command to its end; returns what it prints. Raises Broken if it fails."""
        process = self.start(words, more)
        printed = process.communicate()[0]
        if process.returncode:
            lines = printed.splitlines() or ["nothing is printed"]
            said = [line for line in lines if re.search(r"\w*[eE]rror: ", line)]
            why = said[0] if said else lines[-1]
            raise Broken(f"it ended with status {process.returncode}: {why}")
        return printed

    def train(self, name, ranks, reference=False, *more):
        """Trains a run of this name; returns the losses of its steps."""
        words = self.words(self.script, self.strategy, ranks)
        if reference:
            words = self.words(self.reference, "nd", 1, BATCH)
        self.run(words, "--output-dir", name, *more)
        log = EventAccumulator(f"{self.folder / name}{os.sep}", size_guidance={"scalars": 0})
        losses = [event.value for event in log.Reload().Scalars("Loss/step")]
        if len(losses) != STEPS:
            raise Broken(f"it logged {len(losses)} of {STEPS} steps")
        return losses

    def evaluate(self, name, ranks, batch=None, reference=False):
        """Returns the line of measures of a run's checkpoint, and its numbers, the loss last."""
        words = self.words(self.script, self.strategy, ranks, batch)
        if reference:
            words = self.words(self.reference, "nd", 1, batch)
        # If the model is not in eval mode, dropout tells.
        drops = ["--dropout", 0.5] if self.family == "text" else []
        printed = self.run(words, "--output-dir", name, "-e", *drops)
        line = re.findall(r"\bvalidation: (.*)", printed)[-1]  # horovodrun names the rank before it
        return line, [float(each) for each in re.findall(r" (-?[\d.]+)", line)]


def compare(losses, others, what):
    """Raises Broken at the first step in which losses differ."""
    for step, (one, other) in enumerate(zip(losses, others, strict=True), 1):
        if not abs(one - other) <= SAME * abs(other):
            raise Broken(f"step {step} has a loss of {one:.6f}, and {other:.6f} {what}")


def check_losses(trials, own):
    """The same losses as the script for one device, or on one rank and two."""
    one, two = trials.train("one", 1), trials.train("two", 2)
    compare(two, one, "on one rank" if trials.strategy not in ALONE else "in larger micro-batches")
    trials.alike = True
    if not own:
        compare(one, trials.train("reference", 1, True), f"in {trials.reference.name}")


def check_data(trials, own):
    """Step k has the same data on one rank and on two: nothing is learned, so losses tell."""
    if trials.alike:  # then these would be
        return
    still = ["--lr", 1e-12]
    compare(
        trials.train("still two", 2, False, *still),
        trials.train("still one", 1, False, *still),
        "on one rank, though nothing is learned: it has other data",
    )


def check_validation(trials, own):
    """Each item once, as the script for one device, one by one; or parts add up to the whole."""
    line, values = trials.evaluate("one", 2)
    alone_line, alone = trials.evaluate("one", 1, batch=1, reference=not own)
    near = (  # the loss has five decimals
        math.isclose(*pair, rel_tol=1e-5, abs_tol=2e-5) for pair in zip(values, alone, strict=False)
    )
    if len(values) != len(alone) or not all(near):
        where = "by itself" if own else f"in {trials.reference.name}"
        raise Broken(f"{line} in batches on two ranks; one by one {where} {alone_line}")
    if not own or not trials.data:
        return
    whole, (folder,), total, count = trials.data, trials.data, 0, 0
    paths = sorted((folder / "val").glob("*/*"))
    try:
        for name, part in ("a", paths[:5]), ("b", paths[5:]):
            for path in part:
                copy = folder.parent / name / "val" / path.parent.name / path.name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
            (folder.parent / name / "train").symlink_to(folder / "train")
            trials.data = [folder.parent / name]
            total += len(part) * trials.evaluate("one", 2)[1][-1]
            count += len(part)
    finally:
        trials.data = whole
    if abs(total / count - values[-1]) > 1e-4:
        line = f"two parts of {count} images have a mean loss of {total / count:.5f}"
        raise Broken(f"{line}, all of them {values[-1]:.5f}: not each is counted once")


def kill(victim):
    """Kills a process with all that it has started: launchers start ranks in their own sessions."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(victim.pid)
        for each in [process, *process.children(recursive=True)]:  # first what would see them end
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    victim.communicate()


def check_resuming(trials, own):
    """A run that is killed with SIGKILL in its second epoch resumes, and ends equal bit for bit."""
    name, ranks = ("one", 1) if trials.strategy in (*ALONE, "pipeline") else ("two", 2)
    words = trials.words(trials.script, trials.strategy, ranks)
    often = ["--output-dir", "killed", "--checkpoint-minutes", 1e-6]
    victim = trials.start(words, often)
    folder = trials.folder / "killed"
    checkpoint = folder / "checkpoint.pt"
    while victim.poll() is None:
        if checkpoint.exists():
            saved = torch.load(checkpoint, mmap=True)
            if saved["epoch"] and saved["step"]:
                break
        time.sleep(0.001)
    kill(victim)
    if victim.returncode == 0:  # short steps: as if it had been killed before it saved the epoch
        for each in "checkpoint.pt", "checkpoint-1.pt", "model_best.pt":
            (folder / each).unlink(missing_ok=True)
        checkpoint = folder / "checkpoint-2.pt"
    if not checkpoint.exists():
        raise Broken("it saved no checkpoint within the epoch")
    epoch, step = (torch.load(checkpoint)[name] for name in ("epoch", "step"))
    resumed = trials.run(words, *often)
    if "Resuming" not in resumed:
        raise Broken("the same command does not resume the run")
    if not (trials.folder / name / "checkpoint.pt").exists():
        trials.train(name, ranks)
    saved = [torch.load(trials.folder / each / "checkpoint.pt") for each in (name, "killed")]

    def flat(tree, path=""):
        if isinstance(tree, torch.Tensor):
            return {path: tree}
        if not isinstance(tree, dict):
            return {}
        parts = (flat(each, f"{path}.{name}" if path else str(name)) for name, each in tree.items())
        return {name: tensor for part in parts for name, tensor in part.items()}

    one, other = ({**flat(each)} for each in saved)
    differing = [
        name for name in one if name not in other or not torch.equal(one[name], other[name])
    ]
    if differing or one.keys() != other.keys():
        where = f"killed after {epoch} epochs and {step} steps"
        name = (differing or sorted(one.keys() ^ other.keys()))[0]
        raise Broken(f"{where}, {len(differing)} tensors differ in the end, as {name}")


CHECKS = {
    "losses": check_losses,
    "data of a step": check_data,
    "validation": check_validation,
    "resuming": check_resuming,
}


def main():
    """Checks a script."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = commandline.make_parser(__doc__)
    parser.add_argument("script", type=Path, metavar="SCRIPT")
    parser.add_argument("--own", action="store_true", help="compare it with itself alone")
    args = parser.parse_args(words[:cut])
    if not args.script.is_file():
        parser.error(f"there is no script {args.script}")
    broken = False
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = [
            os.path.abspath(each) if os.path.isdir(each) else each for each in words[cut + 1 :]
        ]
        trials = Trials(args.script.resolve(), options, Path(folder))
        if trials.strategy == "horovod" and not HOROVODRUN.exists():
            builds = "`bash tools/install_horovod.sh` builds it for this environment's PyTorch"
            parser.error(f"{args.script} needs Horovod, and there is no {HOROVODRUN}: {builds}")
        print(f"{args.script}: launched as *_{trials.strategy}.py", flush=True)
        for name, check in CHECKS.items():
            try:
                check(trials, args.own)
                print(f"kept    {name}", flush=True)
            except Broken as error:
                broken = True
                print(f"BROKEN  {name}: {error}", flush=True)
        if why := ALONE.get(trials.strategy):
            print(f"n/a     two ranks: {why}", flush=True)
    sys.exit(broken)


if __name__ == "__main__":
    main()
