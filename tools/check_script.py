"""Says whether a changed copy of a script still keeps what the scripts promise.

    python tools/check_script.py mine.py              # against imagenet_nd.py or text_nd.py
    python tools/check_script.py --own mine.py        # its loss, model or data are its own
    python tools/check_script.py mine.py -- -a resnet18 --dropout 0 DIR    # with these options

It trains ten steps a few times, on the CPU, on one rank and on two, and prints a line for each
promise: the same losses as the script for one device; step k has the same data on any number of
ranks; validation counts each item once; a run that is killed resumes to the bit. Exit status 1 if
one is broken. Options after `--` replace those of the trial; its model must have no BatchNorm and
no dropout, which differ by the number of ranks by design.
"""

import contextlib
import difflib
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import commandline
import torch
from commandline import ROOT
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainparts.images import image_files

STEPS, BATCH = 10, 16
SAME = 1e-5  # relative, of losses in float32 whose sums are made in another order
ALL = f"--no-accel --epochs 1 --steps-per-epoch {STEPS} -p 1 --seed 3"
IMAGES = "-j 1 --image-size 32 --val-resize 32 --lr 0.05 --warmup-epochs 0.2 --min-crop 0.3"
TEXT = "--max-length 16 --dropout 0 --lr 3e-3"
TORCHRUN = f"{shlex.quote(sys.executable)} -m torch.distributed.run --nproc_per_node=2"


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
        model = "timm/test_vit" if importlib.util.find_spec("timm") else "vit_b_16"
        usual = f"-a {model} {IMAGES}" if self.family == "imagenet" else TEXT
        self.options = [*shlex.split(ALL), *shlex.split(usual), *options]
        self.data = []
        if self.family == "imagenet" and not any(Path(word).is_dir() for word in options):
            image_files.make_demo_set(folder / "demo")
            for path in sorted((folder / "demo" / "val").glob("*/*"))[:-37]:
                path.unlink()  # a number that no batch divides
            self.data = [folder / "demo"]

    def words(self, script, strategy, ranks):
        """Returns how a script is started, and its options, so that a step has BATCH items."""
        python, own = [sys.executable, script], BATCH // ranks
        if strategy == "pipeline":
            start, split = [*shlex.split(TORCHRUN), script], ["--microbatches", 2, "-b", own]
        elif strategy in ("nd", "dp") or ranks == 1:
            start, split = python, ["-b", own]
        elif strategy == "ddp":
            start, split = [*python, "--nproc-per-node", 2], ["-b", own]
        elif strategy == "horovod":
            start, split = ["horovodrun", "-np", "2", *python], ["-b", own]
        else:
            start, split = [*shlex.split(TORCHRUN), script], ["-b", own]
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
        nd = ROOT / f"{self.family}_nd.py"
        script, strategy = (nd, "nd") if reference else (self.script, self.strategy)
        self.run(self.words(script, strategy, ranks), "--output-dir", name, *more)
        log = EventAccumulator(f"{self.folder / name}{os.sep}", size_guidance={"scalars": 0})
        losses = [event.value for event in log.Reload().Scalars("Loss/step")]
        if len(losses) != STEPS:
            raise Broken(f"it logged {len(losses)} of {STEPS} steps")
        return losses

    def evaluate(self, name, ranks, *more):
        """Returns the validation loss of a run's checkpoint."""
        words = self.words(self.script, self.strategy, ranks)
        printed = self.run(words, "--output-dir", name, "-e", *more)
        return float(re.findall(r"^validation: .*?loss ([\d.]+)", printed, re.M)[-1])


def compare(losses, others, what):
    """Raises Broken at the first step in which losses differ."""
    for step, (one, other) in enumerate(zip(losses, others, strict=True), 1):
        if not abs(one - other) <= SAME * abs(other):
            raise Broken(f"step {step} has a loss of {one:.6f}, and {other:.6f} {what}")


def check_losses(trials, own):
    """The same losses as the script for one device, or on one rank and two."""
    one, two = trials.train("one", 1), trials.train("two", 2)
    if not own:
        reference = trials.train("reference", 1, reference=True)
        compare(one, reference, f"in {trials.family}_nd.py")
    compare(two, one, "on one rank")


def check_data(trials, own):
    """Step k has the same data on one rank and on two: nothing is learned, so losses tell."""
    still = ["--lr", 1e-12]
    compare(
        trials.train("still two", 2, False, *still),
        trials.train("still one", 1, False, *still),
        "on one rank, though nothing is learned: it has other data",
    )


def check_validation(trials, own):
    """Each item once, whatever the batch is: parts add up to the whole."""
    alone, by_two = trials.evaluate("one", 1, "-b", 1), trials.evaluate("one", 2)
    if abs(alone - by_two) > 1e-4:
        raise Broken(f"the loss is {alone} one by one, {by_two} in batches on two ranks")
    if not trials.data:
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
            total += len(part) * trials.evaluate("one", 2)
            count += len(part)
    finally:
        trials.data = whole
    if abs(total / count - by_two) > 1e-4:
        line = f"two parts of {count} images have a mean loss of {total / count:.5f}"
        raise Broken(f"{line}, all of them {by_two:.5f}: not each is counted once")


def check_resuming(trials, own):
    """A run that is killed with SIGKILL resumes, and ends equal bit for bit."""
    words = trials.words(trials.script, trials.strategy, 1)
    often = ["--output-dir", "killed", "--checkpoint-minutes", 1e-6]
    victim = trials.start(words, often)
    checkpoint = trials.folder / "killed" / "checkpoint.pt"
    while not checkpoint.exists() and victim.poll() is None:
        time.sleep(0.001)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(victim.pid, signal.SIGKILL)
    victim.communicate()
    if victim.returncode == 0:  # ten short steps: as if it had been killed before it last saved
        for name in "checkpoint.pt", "model_best.pt":
            (trials.folder / "killed" / name).unlink(missing_ok=True)
        checkpoint = trials.folder / "killed" / "checkpoint-1.pt"
    if not checkpoint.exists():
        raise Broken("it saved no checkpoint within the epoch")
    epoch, step = (torch.load(checkpoint)[name] for name in ("epoch", "step"))
    resumed = trials.run(words, *often)
    if "Resuming" not in resumed:
        raise Broken("the same command does not resume the run")
    saved = [torch.load(trials.folder / name / "checkpoint.pt") for name in ("one", "killed")]

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
        print(f"{args.script}: launched as *_{trials.strategy}.py", flush=True)
        for name, check in CHECKS.items():
            try:
                check(trials, args.own)
                print(f"kept    {name}", flush=True)
            except Broken as error:
                broken = True
                print(f"BROKEN  {name}: {error}", flush=True)
    sys.exit(broken)


if __name__ == "__main__":
    main()
