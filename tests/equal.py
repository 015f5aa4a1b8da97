"""Compares what the scripts of this working tree train with what those of another commit train.

    python tests/equal.py 86e46ec                    # all comparisons
    python tests/equal.py 86e46ec -k "ddp recipe"    # those that have this text in their names
    make equal COMMIT=86e46ec K="ddp recipe"         # the same
    python tests/equal.py flat                       # the scripts with their one files, `make flat`

It proves that a change, such as a move of code, changes no training. Both trees run the same
commands on the same small models and data, each in an empty folder, on the CPU, with two ranks
where a script has ranks. Then these must be equal:

- all printed lines, and --help, except for times and rates;
- all values in the log; of times, rates and traffic only the tags and steps;
- all files in the folder, and all values in each checkpoint, except for times and traffic; tensors
  must be equal bit for bit.

A run that one tree began, and that SIGTERM or SIGKILL ended in the middle of an epoch, is resumed
by the other tree. Its log and its checkpoints must equal those of an uninterrupted run.

Both trees are copied into a temporary folder: the commit as `git archive` writes it, and the
working tree's code as it is, with uncommitted changes and new files. Every command is a new
process, at most two run at once, and none can read trainparts/ of another folder (ONLY_FROM in
tests/small_models). Apart from their code, both trees have the same environment, with the
tests/small_models of the working tree.

Each comparison prints a line, and below it what differs. The exit status is 0 if all is equal; 1 if
something differs or a command fails, as Horovod's commands do where it is not built; 2 for bad use.
"""

import argparse
import concurrent.futures
import contextlib
import difflib
import functools
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import conftest
import numpy as np
import PIL.Image
import torch

sys.path.append(str(conftest.ROOT / "tools"))
import one_file  # noqa: E402

logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it prints the points that it purges

# Intended differences: regular expressions that match all of "NAME: DIFFERENCE" as it would be
# printed, such as r"help \w+: only after:   --new-option .*". They fail no comparison, whose line
# counts them.
# Which trainparts it was: another one wherever a file of the package differs.
PERMITTED = [
    r".*: (about|\S+\.pt): trainparts: .*",
    r".*: only (before|after): It was saved with trainparts .*",
]

CODE = ["*.py", "trainparts", "tools"]  # what is copied of the working tree
LONGEST = 600  # seconds that a command may take
SHOWN = 6  # differences that are printed of each kind; lines of a command that fails


class Tree(NamedTuple):
    """The files of the commit, or of the working tree."""

    name: str  # before, after
    root: Path


class BadUse(Exception):
    """What was typed cannot be compared."""


class Failed(Exception):
    """A command did not do what it should, so there is nothing to compare."""


# ------------------------------------------------------------------------------ what is compared


class Case(NamedTuple):
    """A command that both trees run."""

    options: str
    data: str = "images"  # DIR, in the folder of write_data(); without one, the script's demo set
    steps: int = 6  # in each of two epochs; 0: it does not train
    first: str = ""  # a program that is run before the script, and writes DIR in the empty folder
    needs: str = ""  # a case whose run is {needs} in the options


RANKS = {"nd": 1, "dp": 1, "ddp": 2, "ddp_apex": 2, "horovod": 2}
RANKS |= {"fsdp": 2, "pipeline": 2, "exchange": 2}
SCRIPTS = [f"imagenet_{way}" for way in RANKS]
SCRIPTS += [f"text_{way}" for way in RANKS if way not in ("dp", "ddp_apex")]

# Each step trains on eight samples; those of a device come in two batches.
LOOP = "--no-accel --epochs 2 -p 1 --seed 3 --warmup-epochs 0.5"
STEPS = f"{LOOP} --steps-per-epoch 6 --accumulation 2"
IMAGES = f"{STEPS} --image-size 32 --lr 1 -j 1"
VIT = f"{IMAGES} -a vit_b_16"  # made small by tests/small_models
CONVOLUTIONS = f"{IMAGES} -a shufflenet_v2_x0_5"  # with BatchNorm
TEXT = f"{STEPS} --max-length 32 --dropout 0.1"
# A model with BatchNorm and dropout; crops grow in the second epoch; averages are copies of the
# weights until step 32, and become averages in step 64.
RECIPE = f"""{LOOP} -a mobilenet_v3_small --image-size 80 --start-size 32 --val-size 64
    --val-resize 72 -j 2 --lr 4 --lr-schedule cosine --optimizer nesterov --momentum 0.8 --wd 0.01
    --norm-wd 0 --clip-grad 1 --mixup 0.2 --cutmix 1 --mix-group 4 --label-smoothing 0.1
    --repeated-aug 2 --random-erase 0.3 --auto-augment rand --min-crop 0.3 --flip alternate
    --channels-last --ema 0.9 --best loss --keep-every 1"""


def plain_case(script):
    """Returns a Case of the options that all scripts have."""
    task, _, way = script.partition("_")
    devices = 1 if way == "pipeline" else RANKS[way]  # a pipeline's ranks share each batch
    if task == "text":
        return Case(f"{TEXT} -b {4 // devices}", "text")
    # What these scripts do for each layer takes longer.
    model = VIT if f"{script}.py" in conftest.BY_TORCHRUN else CONVOLUTIONS
    return Case(f"{model} -b {4 // devices}")


# {name: Case}; the name's first word is the script.
CASES = {script: plain_case(script) for script in SCRIPTS}
CASES |= {
    "imagenet_nd recipe": Case(f"{RECIPE} -b 8", steps=34),
    "imagenet_ddp recipe": Case(f"{RECIPE} -b 4", steps=34),
    "imagenet_nd float16": Case(f"{VIT} -b 4 --amp float16 --optimizer adamw --lr 0.1"),
    "imagenet_nd shards": Case(
        f"{VIT} -b 4",
        data="shards",
        first="tools/make_shards.py {data}/images shards --images 100",
    ),
    "imagenet_nd weights": Case(
        f"{IMAGES} -b 4 -a mobilenet_v3_small --freeze --weights {{needs}}/model_best.pt",
        needs="imagenet_nd recipe",
    ),
    "imagenet_nd evaluate": Case(
        "--no-accel -b 8 -a mobilenet_v3_small --evaluate --resume {needs}/checkpoint.pt",
        steps=0,
        needs="imagenet_nd recipe",
    ),
    "imagenet_nd demo": Case(f"{VIT} -b 4", data=""),
    "imagenet_ddp_apex O1": Case(f"{VIT} -b 2 --opt-level O1"),
    "imagenet_ddp_apex O2": Case(f"{VIT} -b 2 --opt-level O2 --half-dtype float16"),
    "text_nd cola": Case(f"{TEXT} -b 4 --task cola -a bert", "text"),
    "text_nd cola FOLDER": Case(f"{TEXT} -b 4 --task cola -a {{data}}/model", "text"),
    "text_ddp cola": Case(f"{TEXT} -b 2 --task cola -a albert", "text"),
    "text_nd evaluate": Case(
        f"{TEXT} -b 4 --evaluate --resume {{needs}}/checkpoint.pt", "text", 0, needs="text_nd"
    ),
    "text_nd demo": Case(f"{TEXT} -b 4", data=""),
}

# Of these cases, an interrupted run is compared with the uninterrupted one: {case: {signal: at
# which event of tests/small_models}}, in the second epoch and in the first.
RESUMED = {
    "imagenet_nd recipe": {"SIGTERM": 50, "SIGKILL": 12},
    "imagenet_ddp recipe": {"SIGTERM": 50},
    "imagenet_ddp": {"SIGKILL": 6},  # a shorter run
    "text_nd": {"SIGTERM": 21, "SIGKILL": 6},
}
# With these options SIGKILL leaves a checkpoint in the middle of an epoch.
SAVE_OFTEN = "--checkpoint-minutes 1e-9".split()
# What an interrupted run has like an uninterrupted one, besides the log.
RESULTS = re.compile(r"run/(checkpoint|model_best)\.pt: (?!args\.checkpoint_minutes).*")


def write_data(folder):
    """Writes images/, text/ and model/ into a folder."""
    rng = np.random.default_rng(0)
    for label in range(7):
        for serial in range(42):
            path = folder / "images" / ("train" if serial < 39 else "val") / f"class{label}"
            path.mkdir(parents=True, exist_ok=True)
            # Each region of an image has other colours.
            coarse = rng.integers(0, 256, (7, 7, 3), dtype=np.uint8)
            image = PIL.Image.fromarray(coarse).resize(rng.integers(36, 72, 2), PIL.Image.BICUBIC)
            if serial % 13 == 0:
                image.convert("L").save(path / f"{serial}.jpg")
            elif serial % 13 == 1:
                image.save(path / f"{serial}.png")
            else:
                image.save(path / f"{serial}.jpg", quality=90)
    conftest.write_text(folder / "text")
    write_model(folder / "model", (folder / "text" / "train.txt").read_text().split())


def write_model(folder, words):
    """Writes a small BERT with random weights, in the form of Hugging Face."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers  # takes seconds

    transformers.utils.logging.disable_progress_bar()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({*words})]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 64}
    config = transformers.BertConfig(vocab_size=len(vocabulary), **sizes)
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")


# ----------------------------------------------------------------------------------- comparisons


class Comparer:
    """Runs the commands of two trees in a folder, two at once, and compares what they leave."""

    def __init__(self, before, after, folder):
        self.trees = before, after
        self.folder = folder
        self.uninterrupted = {}  # {name of a case: [Run before, Run after], None if one failed}
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.lock = threading.Lock()
        self.processes = []
        self.closed = False

    def comparisons(self):
        """Returns {name: function that returns ([differences of a kind], how much is compared)}."""
        found = {f"help {script}": functools.partial(self.help, script) for script in SCRIPTS}
        found |= {name: functools.partial(self.case, name) for name in CASES}
        for name, events in RESUMED.items():
            for signum, event in events.items():
                compare = functools.partial(self.resumed, name, signum, event)
                found[f"{name}, resumed after {signum}"] = compare
        return found

    def help(self, script):
        """Compares what --help prints."""

        def ask(tree, _other):
            words = [sys.executable, tree.root / f"{script}.py", "--help"]
            printed = self.run(tree, words, self.folder)
            return masked("".join(printed), {str(tree.root): "TREE"}).splitlines()

        before, after = self.both(ask)
        return [differences_of_lines(before, after)], f"{len(before)} lines"

    def case(self, name):
        """Compares the runs of a case."""
        before, after = self.runs(name)
        return differences_of_runs(before, after), size_of(before)

    def resumed(self, name, signum, event):
        """Compares two runs that one tree began and the other resumed with an uninterrupted one,
        and with each other what these two printed: after SIGKILL, only when they were resumed."""
        whole, _ = self.runs(name)
        often = SAVE_OFTEN if signum == "SIGKILL" else []
        status = 143
        if signum == "SIGKILL":  # of a rank, which its launcher reports
            status = 1 if ranks_of(name) > 1 else -signal.SIGKILL

        def begin_and_resume(first, second):
            folder = self.make_folder(f"{name} {signum}", first)
            begin, resume = ([*self.words(tree, name), *often] for tree in (first, second))
            begun = self.run(first, begin, folder, status, {f"{signum}_AT": str(event)})
            saved = conftest.load(folder / "run" / "checkpoint.pt")
            if not 0 < saved["step"] < CASES[name].steps:
                at = f"epoch {saved['epoch']}, step {saved['step']}"
                raise Failed(f"{first.name}: {signum} at event {event} ended it at {at}, no middle")
            printed = self.run(second, resume, folder)
            if signum == "SIGTERM":  # after SIGKILL a launcher may report either rank
                printed = map("".join, zip(begun, printed, strict=True))
            places = places_of(first, name, folder) | places_of(second, name, folder)
            run = read_run(folder, *printed, places)
            return run, f"epoch {saved['epoch']}, step {saved['step']}"

        chains = self.both(begin_and_resume)
        kinds, sides = [], ("uninterrupted", "resumed")
        for (run, ended), tree in zip(chains, self.trees, strict=True):
            for found in (
                differences_of_scalars(whole.scalars, run.scalars, sides),
                differences_of_values(results_of(whole), results_of(run), sides),
            ):
                kinds.append([f"begun {tree.name}, ended at {ended}: {each}" for each in found])
        kinds.append(differences_of_lines(*(run.printed for run, _ in chains)))
        return kinds, f"ended at {chains[0][1]}, {size_of(whole)}"

    def runs(self, name):
        """Returns the two Runs of a case; they are run once."""
        if name not in self.uninterrupted:
            if CASES[name].needs:
                self.runs(CASES[name].needs)
            self.uninterrupted[name] = None
            self.uninterrupted[name] = self.both(functools.partial(self.run_case, name))
        if self.uninterrupted[name] is None:
            raise Failed(f"{name} has failed")
        return self.uninterrupted[name]

    def run_case(self, name, tree, _other):
        """Returns a tree's Run of a case."""
        case, folder = CASES[name], self.make_folder(name, tree)
        if case.first:
            program, *words = case.first.split()
            words = [word.format(data=self.folder / "data") for word in words]
            having = (
                tree if (tree.root / program).exists() else self.trees[0]
            )  # one files have none
            self.run(having, [sys.executable, having.root / program, *words], folder)
        printed = self.run(tree, self.words(tree, name), folder)
        run = read_run(folder, *printed, places_of(tree, name, folder))
        if case.steps:  # that are trained, or equality would prove little
            steps = [step for step, _ in run.scalars.get("Loss/step", [])]
            if steps != [*range(2 * case.steps)]:
                raise Failed(f"{tree.name}: steps {steps} were logged, not 2 x {case.steps}")
            ranks = run.values.get("about: place.ranks")
            if ranks != ranks_of(name):
                raise Failed(f"{tree.name}: {ranks} ranks trained, not {ranks_of(name)}")
            if not any(each.endswith("/checkpoint.pt: epoch") for each in run.values):
                raise Failed(f"{tree.name}: no checkpoint was saved")
        return run

    def words(self, tree, name):
        """Returns the command of a case."""
        case, script = CASES[name], f"{script_of(name)}.py"
        places = {"data": self.folder / "data", "needs": self.place(case.needs, "before") / "run"}
        words = conftest.command(script, ranks_of(name))
        words[words.index(str(conftest.ROOT / script))] = str(tree.root / script)
        words += [word.format(**places) for word in case.options.split()]
        if case.steps and case.data:
            words += ["--output-dir", "run"]
        if case.data:
            words.append("shards" if case.first else str(self.folder / "data" / case.data))
        return words

    def place(self, name, kind):
        """Returns the folder of a case's run."""
        return self.folder / "runs" / name / kind

    def make_folder(self, name, tree):
        """Makes the folder of a run."""
        folder = self.place(name, tree.name)
        folder.mkdir(parents=True)
        return folder

    def both(self, function):
        """Returns [function(before, after), function(after, before)], which run at once."""
        return [*self.pool.map(function, self.trees, self.trees[::-1])]

    def run(self, tree, words, folder, status=0, env=()):
        """Runs a command, which must end with this status; returns what it printed, as (output,
        errors)."""
        if any(str(word).endswith("_horovod.py") for word in words) and not conftest.HOROVOD:
            raise Failed("Horovod is not built: `make horovod` builds it")
        env = conftest.environment(ONLY_FROM=str(tree.root), COLUMNS="80", **dict(env))
        with self.lock:
            if self.closed:
                raise Failed("the comparison is over")
            process = self.begin([*map(str, words)], folder, env)
            self.processes.append(process)
        try:
            printed = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            kill(process)
            process.wait()
            raise Failed(f"{tree.name}: {words} did not end within {LONGEST} s") from None
        finally:
            self.processes.remove(process)
        if process.returncode != status:
            command = " ".join(map(str, words))
            how = f"ended with status {process.returncode}, not {status}"
            last = [line for each in printed for line in each.strip().splitlines()[-SHOWN:]]
            raise Failed("\n    ".join([f"{tree.name}: {command} {how}", *last]))
        return printed

    def begin(self, words, folder, env):
        """Starts a command."""
        return subprocess.Popen(
            words,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # with its ranks, so that all of them can be killed
        )

    def close(self):
        """Kills what still runs."""
        with self.lock:
            self.closed = True
            for process in [*self.processes]:
                kill(process)
        self.pool.shutdown()


def kill(process):
    """Kills a command with all processes that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def script_of(name):
    """Returns the script of a case, without its suffix."""
    return name.split()[0]


def ranks_of(name):
    """Returns the number of ranks of a case."""
    return RANKS[script_of(name).partition("_")[2]]


# --------------------------------------------------------------------------------- what a run left


class Run(NamedTuple):
    """What a run left."""

    printed: list  # lines, without times and rates
    scalars: dict  # {tag: [(step, value)]} of the log
    values: dict  # {name: value} of checkpoints, other files, and texts of the log


# What differs in printed lines between two runs of one tree.
MASKS = [
    (r"[\d,]+ (images|sequences)/s", r"N \1/s"),
    (r"wait \d+ %", "wait N %"),
    (r"left (\d+ days?, )?\d+:\d\d:\d\d", "left TIME"),
    (r"in (\d+ days?, )?\d+:\d\d:\d\d \(h:m:s\)", "in TIME (h:m:s)"),
    (r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_", "DATE_"),  # of a folder in runs/
    (r"\.py:\d+: (\w+Warning)", r".py:LINE: \1"),
]
# Tags and names whose values differ between two runs of one tree: only that they are there is
# compared, and the tags' steps.
TIMED = re.compile(r"(Throughput|Time|Data/wait|IO|Network)(/.*)?")
NOT_COMPARED = re.compile(
    r"\S+: (seconds|resumed\.seconds|partial\.(seconds|traffic\[\d\]|sums\.waited))"
)


def read_run(folder, output, errors, places):
    """Returns the Run of a command that was run in a folder and printed `output` and `errors`;
    `places` is places_of()'s."""
    scalars, values, logs = {}, {}, set()
    for path in sorted(folder.rglob("*")):
        name = masked(str(path.relative_to(folder)), places)
        if "tfevents" in name:
            logs.add(path.parent)
        elif path.suffix == ".pt":
            values |= named(conftest.load(path), name)
        elif path.is_file():
            values[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    for log in logs:  # one, or none
        scalars = conftest.points(log)
        values |= read_texts(log, places)
    printed = masked(output, places).splitlines()
    # Several ranks write to stderr, in any order.
    printed += sorted(f"stderr: {line}" for line in masked(errors, places).splitlines())
    return Run(printed, scalars, values)


def places_of(tree, name, folder):
    """Returns {text: what stands for it} of what each tree has of its own: the script, and behind
    it the modules of trainparts/, which the log has, and paths."""
    modules = [path.read_text() for path in (tree.root / "trainparts").rglob("*.py")]
    places = {f"\n```python\n{module}\n```": "" for module in modules}
    places[(tree.root / f"{script_of(name)}.py").read_text()] = "SCRIPT"
    return places | {str(tree.root): "TREE", str(folder): "HERE"}


def masked(text, places):
    """Returns text without what differs between two runs of one tree, or between trees."""
    for own, name in places.items():
        text = text.replace(own, name)
    for pattern, name in MASKS:
        text = re.sub(pattern, name, text)
    return text


def read_texts(folder, places):
    """Returns {name: value} of what a log holds besides scalars."""
    found, log = {}, conftest.events(folder)
    for tag in log.Tags()["tensors"]:
        content = b"".join(log.Tensors(tag)[-1].tensor_proto.string_val)
        if not tag.endswith("/text_summary"):
            found[tag] = content
            continue
        text, name = masked(content.decode(), places), tag.removesuffix("/text_summary")
        if name in ("about", "end"):
            found |= named(json.loads(text.strip("`json\n")), name)
        else:
            found[name] = text
    return found


def named(values, name):
    """Returns {name: value} of all that nested dicts, lists and tuples hold."""
    found = {}

    def visit(value, path):
        if isinstance(value, dict) and value:
            for key, inner in value.items():  # the key 1 is another than "1"
                visit(inner, f"{path}.{key}" if isinstance(key, str) else f"{path}.{key!r:}")
        elif isinstance(value, list | tuple) and value:
            left, right = "[]" if isinstance(value, list) else "()"
            for number, inner in enumerate(value):
                visit(inner, f"{path}{left}{number}{right}")
        else:
            found[path] = value

    for key, value in values.items():
        visit(value, f"{name}: {key}")
    return found


def results_of(run):
    """Returns {name: value} of what a run must have like one that was interrupted."""
    return {name: value for name, value in run.values.items() if RESULTS.fullmatch(name)}


def size_of(run):
    """Returns how much a Run has, as text."""
    tensors = sum(isinstance(each, torch.Tensor) for each in run.values.values())
    counts = {
        "steps": len(run.scalars.get("Loss/step", [])),
        "tags": len(run.scalars),
        "tensors": tensors,
        "other values": len(run.values) - tensors,
        "lines": len(run.printed),
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


# ------------------------------------------------------------------------------------- differences


SIDES = ("before", "after")


def differences_of_runs(before, after):
    """Returns how two Runs differ: a list of text for each kind of difference."""
    return [
        differences_of_scalars(before.scalars, after.scalars),
        differences_of_values(before.values, after.values),
        differences_of_lines(before.printed, after.printed),
    ]


def differences_of_lines(before, after):
    """Returns how two lists of printed lines differ."""
    changes = [*difflib.unified_diff(before, after, n=0, lineterm="")][2:]
    only = {"-": "only before", "+": "only after"}
    return [f"{only[line[0]]}: {line[1:]}" for line in changes if line[0] in only]


def differences_of_scalars(before, after, sides=SIDES):
    """Returns how two logs differ, both {tag: [(step, value)]}."""
    found = differences_of_names(before, after, sides)
    for tag in [tag for tag in before if tag in after]:
        steps = [[step for step, _ in points[tag]] for points in (before, after)]
        if steps[0] != steps[1]:
            found.append(f"{tag}: steps {steps[0]} {sides[0]}, {steps[1]} {sides[1]}")
        elif not TIMED.fullmatch(tag):
            pairs = zip(before[tag], after[tag], strict=True)
            odd = [pair for pair in pairs if not same(*(value for _, value in pair))]
            if odd:
                (step, one), (_, other) = odd[0]
                more = f", and {len(odd) - 1} other steps differ" if odd[1:] else ""
                found.append(
                    f"{tag}: at step {step} {one!r} {sides[0]}, {other!r} {sides[1]}{more}"
                )
    return found


def differences_of_values(before, after, sides=SIDES):
    """Returns how two {name: value} differ, and their tensors as bits."""
    found = differences_of_names(before, after, sides)
    for name in [name for name in before if name in after]:
        one, other = before[name], after[name]
        if NOT_COMPARED.fullmatch(name) or same(one, other):
            continue
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            found.append(f"{name}: {difference_of_tensors(one, other, sides)}")
        else:
            found.append(f"{name}: {one!r:.200} {sides[0]}, {other!r:.200} {sides[1]}")
    # A run that resumes pairs its tensors with those of its checkpoint in their order.
    orders = [
        [name for name, value in values.items() if isinstance(value, torch.Tensor)]
        for values in (before, after)
    ]
    if not found and orders[0] != orders[1]:
        one, other = next(pair for pair in zip(*orders, strict=True) if pair[0] != pair[1])
        found.append(f"{one} {sides[0]}, but in its place {other} {sides[1]}")
    return found


def differences_of_names(before, after, sides):
    """Returns the names that only one of two dicts has."""
    found = [f"{name}: only {sides[0]}" for name in before if name not in after]
    return found + [f"{name}: only {sides[1]}" for name in after if name not in before]


def same(one, other):
    """Returns whether two values are equal, numbers and tensors bit for bit."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and repr(one) == repr(other)  # a NaN equals a NaN
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and torch.equal(as_bytes(one), as_bytes(other))


def as_bytes(tensor):
    """Returns the bytes of a tensor's elements, (N, bytes per element) uint8."""
    return tensor.contiguous().flatten().view(torch.uint8).reshape(-1, tensor.element_size())


def difference_of_tensors(one, other, sides):
    """Returns how two tensors differ, as text."""
    if one.dtype != other.dtype or one.shape != other.shape:
        kinds = [f"{each.dtype} {tuple(each.shape)}" for each in (one, other)]
        return f"{kinds[0]} {sides[0]}, {kinds[1]} {sides[1]}"
    count = (as_bytes(one) != as_bytes(other)).any(1).sum()
    most = (one.double() - other.double()).abs().max()
    return f"{count} of {one.numel()} elements differ, by {most:.3g} at most"


# -------------------------------------------------------------------------------------------- trees


def git(*words):
    """Returns what git prints of this repository, as bytes."""
    done = subprocess.run(["git", "-C", conftest.ROOT, *words], capture_output=True)
    if done.returncode:
        raise BadUse(done.stderr.decode().strip().splitlines()[0])
    return done.stdout


def copy_commit(commit, folder):
    """Writes the files of a commit into a new folder."""
    packed = folder.with_suffix(".tar")
    packed.write_bytes(git("archive", "--format=tar", f"{commit}^{{commit}}"))
    shutil.unpack_archive(packed, folder)
    packed.unlink()


def copy_working_tree(folder):
    """Copies the code of the working tree into a folder."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *CODE)
    for name in sorted({*os.fsdecode(listed).split("\0")} - {""}):
        path = conftest.ROOT / name
        if path.is_file():  # not removed since it was added
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / name)


def write_one_files(source, folder):
    """Writes the scripts of a folder, each as one file, into another folder."""
    folder.mkdir()
    for path in sorted(source.glob("*_*.py")):
        if path.stem in SCRIPTS:
            (folder / path.name).write_text(one_file.write(path))


# --------------------------------------------------------------------------------------------- main


def report(name, compare):
    """Makes a comparison and prints what it found; returns whether all is equal."""
    started = time.monotonic()
    try:
        kinds, size = compare()
    except Exception as error:
        why = error if isinstance(error, Failed) else traceback.format_exc()
        print(f"FAILED     {name}: {why}", flush=True)
        return False
    left = [[each for each in kind if not is_permitted(name, each)] for kind in kinds]
    permitted = len([*itertools.chain(*kinds)]) - len([*itertools.chain(*left)])
    size += f", {permitted} permitted differences" if permitted else ""
    verdict = "DIFFERENT " if any(left) else "equal     "
    print(f"{verdict} {name}: {size}, {time.monotonic() - started:.0f} s")
    for kind in left:
        for each in kind[:SHOWN]:
            print(f"    {each}")
        if kind[SHOWN:]:
            print(f"    and {len(kind) - SHOWN} more of this kind")
    sys.stdout.flush()
    return not any(left)


def is_permitted(name, difference):
    """Returns whether a difference is one of PERMITTED."""
    return any(re.fullmatch(pattern, f"{name}: {difference}") for pattern in PERMITTED)


def main(argv=None):
    """Compares; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="equal.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("commit", metavar="COMMIT", help="whose scripts are compared with; or flat")
    parser.add_argument("-k", default="", metavar="TEXT", help="only comparisons of this name")
    args = parser.parse_args(argv)
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="equal-"))
    before, after = (Tree(name, folder / "trees" / name) for name in ("before", "after"))
    comparer = Comparer(before, after, folder)
    comparisons = comparer.comparisons()
    chosen = [name for name in comparisons if args.k in name]
    different = None
    try:
        if not chosen:
            raise BadUse(f"no comparison has {args.k!r} in its name")
        before.root.parent.mkdir()
        if args.commit == "flat":
            copy_working_tree(before.root)
            write_one_files(before.root, after.root)
        else:
            copy_commit(args.commit, before.root)
            copy_working_tree(after.root)
        write_data(folder / "data")
        if any("apex" in name for name in chosen):
            print("Apex's opt levels run in PyTorch's form: Apex itself needs a GPU", flush=True)
        different = [name for name in chosen if not report(name, comparisons[name])]
    except BadUse as error:
        parser.error(str(error))
    finally:
        comparer.close()
        if not different:
            shutil.rmtree(folder, ignore_errors=True)
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    verdict = f"not equal: {'; '.join(different)}" if different else "all are equal"
    print(f"{len(chosen)} comparisons with {args.commit} in {minutes}:{seconds:02}: {verdict}")
    if different:
        print(f"The runs are in {folder}")
    return 1 if different else 0


if __name__ == "__main__":
    for signum in signal.SIGINT, signal.SIGTERM:  # so that what runs is killed
        signal.signal(signum, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
