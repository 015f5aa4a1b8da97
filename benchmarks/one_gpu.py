"""What one GPU shall show in ten minutes: speed, loading, accuracy, text, what never ran on one.

    python benchmarks/one_gpu.py --data FOLDER --out FOLDER                  # make gpu
    python benchmarks/one_gpu.py --data FOLDER --out FOLDER --only text      # one stage
    python benchmarks/one_gpu.py --data FOLDER --out FOLDER --rehearse       # in small, on the CPU

It runs under any Python that has what the scripts need, and installs nothing. FOLDER of --data
holds what there is of these files; a stage whose files are missing is left to another command:

    imagenet_sample.tar    imagenet_sample/train/<class>/*.JPEG, images of ImageNet's size
    cifar10_jpeg.tar.gz    cifar10/train/<class>/*.jpg and cifar10/val/
    shakespeare.txt.gz     the text on which nanoGPT's character model is trained
    *.whl                  packages that this Python lacks, such as nvImageCodec, unpacked for the
                           stages; `zip -d WHEEL '*cpython-39*'` makes such a file smaller

A stage has so many seconds, its start and its data included; then it is ended. It packs its logs
into STAGE.tar, in FOLDER of --out: `tar -xf STAGE.tar -C logs && make results` puts them on the
page. The next command does the stages that are not complete there; --renew does a stage again. The
logs of a second time go into STAGE-2.tar, and the older ones stay: unpack one of the two. Where
time is left, further stages follow.
"""

import argparse
import dataclasses
import datetime
import gzip
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import shutil
import signal
import string
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 580  # of a command: 20 more than its stages', to import PyTorch and to pack logs
GRACE = 5  # s from SIGTERM, on which the scripts end their logs, to SIGKILL
SLOWER = 10  # a rehearsal may take so many times as long, since the CPU may be busy
IMAGENET, CIFAR10, TEXT = "imagenet_sample.tar", "cifar10_jpeg.tar.gz", "shakespeare.txt.gz"
# Packages that must be there, and that a stage may need, by the names that one imports.
NEEDED = "torch torchvision tensorboard numpy PIL psutil tqdm".split()
TABLES = ("pandas", "scipy")  # the benchmarks print their tables by reporting/, which needs these
CODEC, HOROVOD = "nvidia.nvimgcodec", "horovod.torch"
OPTIONAL = (*TABLES, CODEC, HOROVOD, "timm", "torchao")


class BadInput(Exception):
    """The user's mistake, in one line."""


# ------------------------------------------------------------------------------------- the stages


@dataclasses.dataclass
class Command:
    """A command of a stage, its words as a shell splits them. $DATA has the unpacked files of
    --data, and $LOGS becomes a part of logs/."""

    words: str
    real: str = ""  # words that a rehearsal leaves out
    small: str = ""  # words that it adds
    makes: str = ""  # a folder of $DATA: if it is there, the command is passed over

    def split(self, data, logs, rehearsal):
        """Returns the words, of this Python."""
        words = shlex.split(f"{self.words} {self.small if rehearsal else self.real}")
        words = [string.Template(word).safe_substitute(DATA=data, LOGS=logs) for word in words]
        return [sys.executable if word == "python" else word for word in words]


@dataclasses.dataclass
class Stage:
    """A part of this program."""

    what: str  # it shows
    seconds: int  # it may take
    commands: list
    data: tuple = ()  # files that --data must have
    packages: tuple = ()  # that must be there
    float8: bool = False  # whether it needs a GPU with float8: no rehearsal has it


HALF = "--amp bfloat16 --channels-last"
LITTLE = "-a squeezenet1_1 -b 2 --image-size 32"
SHORT = "--epochs 1 --steps-per-epoch 2 --warmup-epochs 0 --no-accel"
LITTLE_GPT = f"{SHORT} --layers 1 --hidden-size 16 --heads 1 --max-length 16 -b 2 --global-batch 2"


def speed(out, words, rows):
    """Returns the command that measures rows of gpu.py, of which a rehearsal has one."""
    words = f"python benchmarks/gpu.py {words} --out $LOGS/benchmarks/{out}.json"
    small = f"{LITTLE} --steps 1 --minutes 12 --only '{rows[-1]}'"
    return Command(words, real=shlex.join(["--only", *rows]), small=small)


def loading(out, words, small):
    """Returns the command that measures by numbers of loader processes."""
    command = f"python benchmarks/gpu_loading.py $DATA/imagenet_sample {words}"
    small = f"{LITTLE} --images 64 --seconds 900 -j {small}"
    return Command(f"{command} --out $LOGS/benchmarks/{out}.json", small=small)


def train_cifar10(seed):
    """Returns the commands that train on CIFAR-10. The budget ends a training that would not fit,
    with a validation; two files are read faster than 60,000."""
    make = "python tools/make_shards.py $DATA/jpegs/cifar10 $DATA/cifar10 --raw 32"
    train = f"""python imagenet_nd.py @recipes/cifar10-gpu.txt {HALF} --budget-hours 0.04
        --seed {seed} --output-dir $LOGS/gpu_accuracy/seed_{seed} $DATA/cifar10"""
    small = f"{SHORT} -b 4 --global-batch 4 --image-size 32 --val-size 32 --val-resize 32 -j 1"
    return [Command(make, makes="cifar10"), Command(train, small=small)]


def train_gpt(out, words):
    """Returns the command that trains a language model."""
    command = f"python text_nd.py --amp bfloat16 --seed 0 --output-dir $LOGS/{out}/text_nd {words}"
    return Command(command, real="--compile", small=LITTLE_GPT)


# Random tokens, as many different ones as GPT-2 has: a step takes as long for all tokens.
MAKE_TOKENS = """
import json, pathlib, sys, numpy
folder, numbers = pathlib.Path(sys.argv[1]), numpy.random.default_rng(0)
folder.mkdir()
for name, count in ("train", 4194305), ("val", 4097):
    numbers.integers(50257, size=count, dtype="<u2").tofile(folder / (name + ".bin"))
(folder / "meta.json").write_text(json.dumps({"vocabulary": 50257, "dtype": "uint16"}))
"""
EAGER = [f"--{half} --channels-last -b" for half in ("opt-level O1", "amp float16", "amp bfloat16")]
MODES = ("default", "reduce-overhead")
COMPILED = [f"--amp float16 --compile --compile-mode {mode} --channels-last" for mode in MODES]
PREPARE = "python tools/prepare_text.py lm $DATA/shakespeare.txt $DATA/shakespeare"
GPT2 = """-a gpt --layers 12 --hidden-size 768 --heads 12 --tied --max-length 1024 -b 32 --epochs 3
    --steps-per-epoch 40 --lr 1e-4 $DATA/random"""
# Wide enough for float8: matrices of 2,048 x 6,144 and 2,048 x 8,192.
WIDE = """-a gpt --layers 8 --hidden-size 2048 --heads 16 --tied --max-length 1024 -b 16 --epochs 2
    --steps-per-epoch 20 --lr 1e-4 --seed 0 --compile $DATA/random"""
DECODE = "python benchmarks/gpu_decoding.py $DATA/imagenet_sample --out $LOGS/benchmarks"
UNTRIED = f"""python imagenet_horovod.py -a resnet50 {HALF} --dummy --epochs 2 --steps-per-epoch 10
    -b 64 --lr 0.001 --lr-scaling none --output-dir $LOGS/gpu_untried/imagenet_horovod"""

STAGES = {
    "precision": Stage(
        "ResNet-50 in float16 and bfloat16, and what each operator takes",
        90,
        [speed("gpu_precision", "--profile --minutes 1.2", EAGER)],
        packages=TABLES,
    ),
    "loading": Stage(
        "ResNet-50 fed from JPEGs",
        120,
        [loading("gpu_loading", "", "1 2")],
        data=(IMAGENET,),
        packages=TABLES,
    ),
    "accuracy": Stage("ResNet-18 on CIFAR-10", 200, train_cifar10(0), data=(CIFAR10,)),
    "text": Stage(
        "nanoGPT's character model on Shakespeare",
        110,
        [
            Command(PREPARE, makes="shakespeare"),
            train_gpt("gpu_text", "@recipes/text/gpt-char-gpu.txt $DATA/shakespeare"),
        ],
        data=(TEXT,),
    ),
    "decoding": Stage(
        "nvImageCodec's decoders on the GPU",
        20,
        [Command(f"{DECODE}/gpu_decoding.json", small="--images 8 -b 4 --rounds 1")],
        data=(IMAGENET,),
        packages=(*TABLES, CODEC),
    ),
    "horovod": Stage(
        "imagenet_horovod.py, one rank",
        20,
        [Command(UNTRIED, small=f"{SHORT} {LITTLE} --val-size 32")],
        packages=(HOROVOD,),
    ),
}
MORE = {  # where time is left
    "seed_1": Stage("CIFAR-10, another seed", 175, train_cifar10(1), data=(CIFAR10,)),
    "seed_2": Stage("CIFAR-10, a third seed", 175, train_cifar10(2), data=(CIFAR10,)),
    "compiled": Stage(
        "ResNet-50 in float16 and bfloat16, compiled",
        110,
        [speed("gpu_compiled", "--minutes 1.6", [*COMPILED, EAGER[-1]])],
        packages=TABLES,
    ),
    "workers": Stage(
        "ResNet-50 fed by more numbers of loader processes",
        90,
        [loading("gpu_workers", "-j 2 8 12 --seconds 75", "1")],
        data=(IMAGENET,),
        packages=TABLES,
    ),
    "gpt2": Stage(
        "GPT-2's 124 million weights",
        75,
        [
            Command(f"python -c {shlex.quote(MAKE_TOKENS)} $DATA/random", makes="random"),
            train_gpt("gpu_gpt2", GPT2),
        ],
    ),
    "float8": Stage(
        "ViT-L/16 and a wide GPT in float8 and bfloat16, compiled",
        240,
        [
            Command(
                "python benchmarks/gpu.py -a vit_l_16 -b 128 --steps 10 --float8 --minutes 1.8 "
                "--out $LOGS/benchmarks/gpu_float8.json"
            ),
            Command(f"python -c {shlex.quote(MAKE_TOKENS)} $DATA/random", makes="random"),
            *(
                Command(f"python text_nd.py --amp {amp} --output-dir $LOGS/gpu_float8/{amp} {WIDE}")
                for amp in ("bfloat16", "float8")
            ),
        ],
        packages=(*TABLES, "torchao"),
        float8=True,
    ),
}
EVERY = STAGES | MORE


# --------------------------------------------------------------------------------------- a machine


def version_of(name):
    """Returns the version of a package, None if it is not there, or cannot be imported. Those that
    a stage may need are only looked for: nvImageCodec prints which of its parts lack a library."""
    try:
        if name in OPTIONAL:
            return version_of_spec(name) if importlib.util.find_spec(name) else None
        return str(importlib.import_module(name).__version__)
    except Exception:  # whatever it raises, it is of no use
        return None


def version_of_spec(name):
    """Returns the version of the installed package that has this module."""
    known = {}
    for each in importlib.metadata.distributions():
        known.setdefault(each.name.lower(), each.version)  # the first on the path
    begin = name.removesuffix(".torch").replace(".", "-")  # or NAME-cu13
    return next((known[each] for each in sorted(known) if each.startswith(begin)), "there")


def lacking(stage, data, versions, float8):
    """Returns what a stage lacks, in words, "" if nothing. `float8`: whether the device has it."""
    files = [f"{name} is not in --data" for name in stage.data if not (data / name).is_file()]
    files += ["no float8 on this device"] * (stage.float8 and not float8)
    return ", ".join(files + [f"no {name}" for name in stage.packages if not versions[name]])


def has_float8():
    """Returns whether the GPU multiplies in float8, as trainparts/float8_support.py has it."""
    import torch

    if not torch.cuda.is_available():
        return False
    return bool(torch.version.hip) or torch.cuda.get_device_capability() >= (8, 9)


def unpack_wheels(data, folder):
    """Puts the wheels of --data on the path of this Python, and of all that it starts."""
    for wheel in sorted(data.glob("*.whl")):
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
        except zipfile.BadZipFile as error:
            raise BadInput(f"{wheel}: {error}") from None
        sys.path.insert(0, str(folder))
        paths = [str(folder), os.environ.get("PYTHONPATH")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def unpack(file, folder, until):
    """Unpacks a file of --data into the folder, unless it is there."""
    done = folder / f".{file.name}"
    if done.exists():
        return
    if file.name == TEXT:
        with gzip.open(file) as packed, open(folder / file.stem, "wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    else:
        into = folder / "jpegs" if file.name == CIFAR10 else folder
        into.mkdir(exist_ok=True)
        words = ["tar", "-xf", file, "-C", into, "--no-same-owner"]
        subprocess.run(words, check=True, timeout=max(1, until - time.monotonic()))
    done.touch()


def about_machine(versions):
    """Returns what a log says of the machine, as benchmarks/common.py does."""
    import torch

    found = {"date": datetime.date.today().isoformat(), "cores": len(os.sched_getaffinity(0))}
    if torch.cuda.is_available():
        found["accelerator"] = torch.cuda.get_device_name()
    found |= {"system": platform.platform(), "python": platform.python_version()}
    return found | {name: version for name, version in versions.items() if version}


# ------------------------------------------------------------------------------------------- to run


def run_command(words, output, until):
    """Runs a command until then, with a group of its own; returns its exit status, or why it was
    ended."""
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(max(0, until - GRACE - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(max(0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass  # it hangs
        return "out of time"
    finally:  # of this program's own end, too; a group without processes is gone
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def run_stage(name, args, scratch, about, seconds):
    """Runs a stage for so many seconds at most, and packs its logs into a file of --out. Returns
    the rows of its own log: commands, seconds, exit status."""
    stage, started, rows = EVERY[name], time.monotonic(), []
    until, logs, data = started + seconds, scratch / "logs" / name, scratch / "data"
    log = log_of(logs, name)
    for folder in log.parent, data:
        folder.mkdir(parents=True, exist_ok=True)
    with open(log.with_suffix(".txt"), "w") as output:
        try:
            for file in stage.data:
                unpack(args.data / file, data, until)
            for command in stage.commands:
                words = command.split(data, logs, args.rehearse)
                if not (command.makes and (data / command.makes).exists()):
                    shown = shlex.join(["python", *words[1:]]).replace(f"{scratch}/", "")
                    print(f"$ {shown}", file=output, flush=True)
                    if "--output-dir" in words:
                        study = Path(words[words.index("--output-dir") + 1]).parent
                        study.mkdir(exist_ok=True)
                    begun, status = time.monotonic(), run_command(words, output, until)
                    took = time.monotonic() - begun
                    rows.append({"name": shown, "values": [took], "status": str(status)})
        except (OSError, EOFError, subprocess.SubprocessError) as error:
            why = str(error).replace(f"{scratch}/", "")
            rows.append({"name": "unpacking", "values": [], "status": why})
    complete = all(row["status"] == "0" for row in rows)
    facts = {"complete": complete, "rehearsal": args.rehearse, "limit, s": stage.seconds}
    facts["seconds"] = round(time.monotonic() - started, 1)
    content = {"title": f"{stage.what}: its commands", "unit": "s", "baseline": "", "facts": facts}
    text = json.dumps(content | {"about": about, "rows": rows}, indent=1) + "\n"
    log.write_text(text, encoding="utf-8")
    pack(logs, free_name(args.out, name))
    return facts["seconds"], rows


def log_of(logs, name):
    """Returns the path of a stage's own log, from which the page has the GPU, versions and date; a
    file beside it has what its commands print."""
    return logs / "benchmarks" / f"gpu_stage_{name}.json"


def pack(logs, file):
    """Writes a folder of logs into a tar file, without checkpoints."""
    part = file.with_name(f"{file.name}.part")
    with tarfile.open(part, "w") as archive:
        for path in sorted(logs.rglob("*")):
            if path.is_file() and path.suffix != ".pt" and path.name != ".lock":
                archive.add(path, path.relative_to(logs))
    part.rename(file)


def files_of(out, name):
    """Returns the files of a stage's logs, of each time that it ran."""
    return [*out.glob(f"{name}.tar"), *out.glob(f"{name}-[0-9]*.tar")]


def free_name(out, name):
    """Returns the path of a stage's next file: what is there stays."""
    number = 1
    while (file := out / (f"{name}-{number}.tar" if number > 1 else f"{name}.tar")).exists():
        number += 1
    return file


def is_complete(out, name, rehearsal):
    """Returns whether a file has all of a stage's logs; a rehearsal's count for a rehearsal."""
    for file in files_of(out, name):
        try:
            with tarfile.open(file) as archive:
                facts = json.load(archive.extractfile(str(log_of(Path(), name))))["facts"]
        except (tarfile.TarError, KeyError, ValueError):  # no log of a stage
            continue
        if facts["complete"] and facts["rehearsal"] == rehearsal:
            return True
    return False


# --------------------------------------------------------------------------------------------- main


def plan(args, versions):
    """Prints what will be done, and what not and why; returns the names of the stages."""
    names, float8 = [], not args.rehearse and has_float8()
    for name in args.only or EVERY:
        stage, why = EVERY[name], lacking(EVERY[name], args.data, versions, float8)
        if not why and name not in args.renew and is_complete(args.out, name, args.rehearse):
            why = "done before"
        shown = f"left out: {why}" if why else f"{stage.seconds:3} s at most"
        shown += ", if time is left" if name in MORE and not why and not args.only else ""
        print(f"{name:10} {stage.what}: {shown}")
        if not why:
            names.append(name)
    return names


def run_all(args):
    """Runs the stages; returns the exit status."""
    started = time.monotonic()
    faster = SLOWER if args.rehearse else 1
    if args.rehearse:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if not args.data.is_dir():
        raise BadInput(
            f"--data {args.data} is no folder: the top of one_gpu.py says what it may hold"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        scratch = Path(scratch)
        unpack_wheels(args.data, scratch / "packages")
        versions = {name: version_of(name) for name in (*NEEDED, *OPTIONAL)}
        print(", ".join(f"{name} {version or '-'}" for name, version in versions.items()))
        if missing := [name for name in NEEDED if not versions[name]]:
            raise BadInput(f"this Python lacks {', '.join(missing)}: {sys.executable}")
        about = about_machine(versions)
        print(f"{about.get('accelerator', 'no GPU')}, {about['cores']} cores", flush=True)
        if not ("accelerator" in about or args.rehearse):
            raise BadInput("PyTorch finds no CUDA GPU here; --rehearse tries all on the CPU")
        names, complete = plan(args, versions), True
        for name in names:
            limit = faster * EVERY[name].seconds
            left = started + faster * SECONDS - time.monotonic()
            if left < (limit if name in MORE else 2 * GRACE):
                print(f"{name}: left out, since {left:.0f} s are left", flush=True)
                continue
            seconds, rows = run_stage(name, args, scratch, about, min(limit, left))
            bad = [row for row in rows if row["status"] != "0"]
            complete = complete and not bad
            print(f"{name}: {seconds} s")
            for row in bad:
                print(f"  NOT COMPLETE, {row['status']}: {row['name']}")
            sys.stdout.flush()
    return 0 if complete else 1


def main():
    """Parses the options, runs the stages."""
    doc = __doc__ and __doc__.split("\n\n")[0]
    parser = argparse.ArgumentParser(description=doc, usage=argparse.SUPPRESS, allow_abbrev=False)
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="FOLDER", help="has the files of the stages")
    add("--out", type=Path, required=True, metavar="FOLDER", help="gets STAGE.tar of each")
    help_ = f"these stages alone: {', '.join(EVERY)}"
    add("--only", nargs="+", choices=EVERY, metavar="STAGE", help=help_)
    add("--renew", nargs="+", choices=EVERY, metavar="STAGE", default=[], help="do these again")
    add("--rehearse", action="store_true", help="all in small, on the CPU")
    args = parser.parse_args()
    for name in "data", "out":
        setattr(args, name, getattr(args, name).absolute())
    for name in "IMAGENET_DIR", "TEXT_DIR":
        os.environ.pop(name, None)
    try:
        sys.exit(run_all(args))
    except (BadInput, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
