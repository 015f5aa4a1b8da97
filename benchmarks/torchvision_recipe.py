"""torchvision's second recipe by imagenet_nd.py, and by a plain loop of torchvision's own parts:
how far both train a ResNet-18 on CIFAR-10 in the same number of steps.

    python benchmarks/torchvision_recipe.py --dir cifar10    # DIR: see benchmarks/studies.py

Both are as on four GPUs of 32 images each: BatchNorm, mixup and CutMix see 32 images at a time, and
a step's gradients are those of 128. Sizes of images are to each other as the recipe's.
"""

import functools
import itertools
import math
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from common import ROOT, BadInput, about, count, interleave, option_parser, select, write
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader, default_collate
from torchvision import datasets, models
from torchvision.ops._utils import split_normalization_params
from torchvision.transforms import v2

from imagenet_nd import parse_args

PARTS, IMAGES = 4, 32  # of a step, and of a part
SIZES = f"-a resnet18 -b {IMAGES} --global-batch {PARTS * IMAGES} --epochs 2 --warmup-epochs 0.5"
SIZES += " --lr 0.05 --lr-scaling none --lr-schedule cosine -j 1"
RECIPES = {
    "torchvision-v2": "--image-size 25 --val-size 32 --val-resize 33 --auto-augment trivial "
    "--random-erase 0.1 --mixup 0.2 --cutmix 1 --label-smoothing 0.1 --wd 2e-5 --norm-wd 0 "
    f"--repeated-aug {PARTS} --mix-group {IMAGES} --ema 0.5",
    "plain": "--image-size 32 --val-size 32 --val-resize 32",
}


def with_few(folder, images, scratch):
    """Makes scratch/train and scratch/val/ of links: all of a folder's training images, and so many
    of its validation's, of each class as many."""
    (scratch / "train").symlink_to((folder / "train").resolve())
    if not all((folder / split).is_dir() for split in ("train", "val")):
        raise BadInput(f"{folder} has no train/ and val/: give --dir a folder that has")
    classes = sorted((folder / "val").iterdir())
    for path in classes:
        (scratch / "val" / path.name).mkdir(parents=True)
        for image in sorted(path.iterdir())[: max(1, images // len(classes))]:
            (scratch / "val" / path.name / image.name).symlink_to(image.resolve())
    return scratch


def ours(args, words, seed):
    """Returns the top-1 in % of imagenet_nd.py's last epoch."""
    with tempfile.TemporaryDirectory() as scratch:
        words = [*words, "--steps-per-epoch", args.steps, "--seed", seed, "--log-dir", scratch]
        script = [sys.executable, ROOT / "imagenet_nd.py", *words, args.dir.absolute()]
        # In a folder of its own: a run leaves nothing beside its log.
        done = subprocess.run([str(word) for word in script], cwd=scratch)
        if done.returncode:
            raise BadInput("imagenet_nd.py failed: see above")
        (events,) = Path(scratch).glob("*/*tfevents*")
        return EventAccumulator(str(events)).Reload().Scalars("Top1/val")[-1].value


def loaders(args, options):
    """Returns (training batches: PARTS times as many as steps, validation's), as torchvision's
    references load them on so many GPUs, of which each has another crop of an image."""
    preset = models.ResNet18_Weights.DEFAULT.transforms(
        crop_size=options.val_size, resize_size=options.val_resize
    )
    steps = [v2.RandomResizedCrop(options.image_size), v2.RandomHorizontalFlip()]
    if options.auto_augment == "trivial":
        steps.append(v2.TrivialAugmentWide(interpolation=preset.interpolation))
    steps += [v2.PILToTensor(), v2.ToDtype(torch.float, scale=True)]
    steps += [v2.Normalize(preset.mean, preset.std), v2.RandomErasing(options.random_erase)]
    train = datasets.ImageFolder(args.dir / "train", v2.Compose(steps))
    val = datasets.ImageFolder(args.dir / "val", preset)
    mixers = [
        mixer(alpha=alpha, num_classes=len(train.classes))
        for mixer, alpha in ((v2.MixUp, options.mixup), (v2.CutMix, options.cutmix))
        if alpha
    ]

    def collate(batch):
        images, target = default_collate(batch)
        return v2.RandomChoice(mixers)(images, target) if mixers else (images, target)

    batches = []
    for _ in range(options.epochs):
        order = torch.randperm(len(train)).split(IMAGES)
        repeated = [items.tolist() for items in order for _ in range(options.repeated_aug)]
        batches += repeated[: PARTS * args.steps]
    workers = {"num_workers": 1, "multiprocessing_context": "fork"}
    loader = DataLoader(train, batch_sampler=batches, collate_fn=collate, **workers)
    return loader, DataLoader(val, batch_size=IMAGES, **workers)


def theirs(args, words, seed):
    """Returns the top-1 in % after the last epoch, of the average where there is one."""
    options = parse_args(words)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    torch.manual_seed(seed)
    loader, val = loaders(args, options)
    model = models.resnet18(num_classes=len(val.dataset.classes)).to(device)
    groups = [{"params": model.parameters()}]
    if options.norm_wd is not None:
        norms, others = split_normalization_params(model)
        groups = [{"params": others}, {"params": norms, "weight_decay": options.norm_wd}]
    optimizer = torch.optim.SGD(groups, options.lr, options.momentum, weight_decay=options.wd)
    warmup = round(options.warmup_epochs * args.steps)
    schedules = [
        lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=warmup),
        lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * args.steps - warmup),
    ]
    scheduler = lr_scheduler.SequentialLR(optimizer, schedules, milestones=[warmup])
    criterion = nn.CrossEntropyLoss(label_smoothing=options.label_smoothing)
    average_of = swa_utils.get_ema_multi_avg_fn(options.ema)
    average = swa_utils.AveragedModel(model, multi_avg_fn=average_of, use_buffers=True)
    model.train()
    batches = iter(loader)
    for epoch, step in itertools.product(range(options.epochs), range(args.steps)):
        for images, target in itertools.islice(batches, PARTS):
            loss = criterion(model(images.to(device)), target.to(device))
            (loss / PARTS).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 32 == 0:
            average.update_parameters(model)
            if epoch < options.warmup_epochs:
                average.n_averaged.fill_(0)  # copies until then
    return evaluate(average if options.ema else model, val, device)


def once(train, args, words, serial):
    """Trains with the next seed; returns the top-1 in %."""
    return train(args, words, next(serial))


@torch.no_grad()
def evaluate(model, val, device):
    """Returns the top-1 in %."""
    model.eval()
    correct = 0
    for images, target in val:
        correct += (model(images.to(device)).argmax(1) == target.to(device)).sum().item()
    return 100 * correct / len(val.dataset)


def main():
    """Trains by each recipe in both ways, a seed after the other; writes the table."""
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("--dir", default=ROOT / "cifar10", type=Path, help="CIFAR-10 as JPEG files (%(default)s)")
    add("--steps", type=count, default=200, help="of an epoch, of which there are 2 (%(default)s)")
    add("--seeds", type=count, default=2, help="(%(default)s)")
    add("--only", nargs="+", metavar="NAME", help="recipes with these words")
    out = ROOT / "logs" / "benchmarks" / "torchvision_recipe.json"
    add("--out", type=Path, default=out, help="(%(default)s)")
    add("--val", type=count, default=2000, help="images of DIR/val/ (%(default)s)")
    args = parser.parse_args()
    ways = {}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            args.dir = with_few(args.dir, args.val, Path(scratch))
            for name, recipe in select(RECIPES, args.only, None).items():
                words = shlex.split(f"{SIZES} {recipe}")
                for loop, train in ("these scripts", ours), ("torchvision's parts", theirs):
                    serial = itertools.count()
                    ways[f"{name}, {loop}"] = functools.partial(once, train, args, words, serial)
            values = interleave(ways, args.seeds)
        except BadInput as error:
            parser.error(str(error))
    rows = [{"name": name, "values": values[name]} for name in values]
    epochs = parse_args(shlex.split(SIZES)).epochs
    share = rows[-1]["values"][-1] / 100
    spread = 100 * math.sqrt(share * (1 - share) / args.val)  # of a binomial distribution
    facts = {"images": args.val, "spread": round(spread, 1), "epochs": epochs}
    facts |= {"steps": args.steps, "batch": PARTS * IMAGES}
    write(args.out, "torchvision's second recipe", "%", rows, "", about(), facts)


if __name__ == "__main__":
    main()
