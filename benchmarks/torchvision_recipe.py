"""torchvision's second recipe by imagenet_nd.py, and by a plain loop of torchvision's own parts:
the validation accuracy of a ResNet-18 on CIFAR-10, seed by seed.

    python benchmarks/torchvision_recipe.py --dir cifar10    # DIR: see benchmarks/studies.py

The plain loop is written after torchvision's references/classification/train.py, and shares nothing
with the scripts but their options. Images have 32 pixels, nothing is repeated, and each batch of 64
is mixed as on one GPU; the learning rate is the recipe's for 64 images.
"""

import functools
import itertools
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import common
import torch
from common import ROOT, BadInput, count, interleave, option, write
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader, default_collate
from torchvision import datasets, models
from torchvision.ops._utils import split_normalization_params
from torchvision.transforms import v2

from imagenet_nd import parse_args

RECIPE = f"@{ROOT}/recipes/torchvision-v2.txt"
SIZES = "-a resnet18 -b 64 --global-batch 64 --mix-group 64 --repeated-aug 1 --lr 0.03125"
SIZES += " --image-size 32 --val-size 32 --val-resize 32 --warmup-epochs 0.5 --ema 0.9 -j 1"


def ours(dataset, words, steps, seed):
    """Returns the top-1 in % of imagenet_nd.py's last epoch."""
    with tempfile.TemporaryDirectory() as scratch:
        words = [*words, "--steps-per-epoch", steps, "--seed", seed, "--log-dir", scratch]
        script = [sys.executable, ROOT / "imagenet_nd.py", *words, dataset.absolute()]
        # In a folder of its own: a run leaves nothing beside its log.
        done = subprocess.run([str(word) for word in script], cwd=scratch)
        if done.returncode:
            raise BadInput("imagenet_nd.py failed: see above")
        (events,) = Path(scratch).glob("*/*tfevents*")
        return EventAccumulator(str(events)).Reload().Scalars("Top1/val")[-1].value


def loaders(dataset, options):
    """Returns the loaders of training and of validation."""
    preset = models.ResNet18_Weights.DEFAULT.transforms(
        crop_size=options.val_size, resize_size=options.val_resize
    )
    augment = [v2.RandomResizedCrop(options.image_size), v2.RandomHorizontalFlip()]
    augment += [v2.TrivialAugmentWide(interpolation=preset.interpolation)]
    augment += [v2.PILToTensor(), v2.ToDtype(torch.float, scale=True)]
    augment += [v2.Normalize(preset.mean, preset.std), v2.RandomErasing(options.random_erase)]
    train = datasets.ImageFolder(dataset / "train", v2.Compose(augment))
    val = datasets.ImageFolder(dataset / "val", preset)
    classes = len(train.classes)
    mixup = v2.MixUp(alpha=options.mixup, num_classes=classes)
    mix = v2.RandomChoice([mixup, v2.CutMix(alpha=options.cutmix, num_classes=classes)])

    def collate(batch):
        return mix(*default_collate(batch))

    rest = {"num_workers": 1, "multiprocessing_context": "fork", "batch_size": options.batch_size}
    return (
        DataLoader(train, shuffle=True, drop_last=True, collate_fn=collate, **rest),
        DataLoader(val, **rest),
    )


def theirs(dataset, words, steps, seed):
    """Returns the top-1 in % of the averaged model after the last epoch."""
    options = parse_args(words)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    torch.manual_seed(seed)
    loader, val = loaders(dataset, options)
    model = models.resnet18(num_classes=len(val.dataset.classes)).to(device)
    norms, others = split_normalization_params(model)
    groups = [{"params": others}, {"params": norms, "weight_decay": options.norm_wd}]
    optimizer = torch.optim.SGD(groups, options.lr, options.momentum, weight_decay=options.wd)
    warmup = round(options.warmup_epochs * steps)
    schedules = [
        lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=warmup),
        lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * steps - warmup),
    ]
    scheduler = lr_scheduler.SequentialLR(optimizer, schedules, milestones=[warmup])
    criterion = nn.CrossEntropyLoss(label_smoothing=options.label_smoothing)
    average_of = swa_utils.get_ema_multi_avg_fn(options.ema)
    average = swa_utils.AveragedModel(model, multi_avg_fn=average_of, use_buffers=True)
    for epoch in range(options.epochs):
        model.train()
        for step, (images, target) in enumerate(itertools.islice(loader, steps)):
            loss = criterion(model(images.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if step % 32 == 0:
                average.update_parameters(model)
                if epoch < options.warmup_epochs:
                    average.n_averaged.fill_(0)  # copies until then
    return evaluate(average, val, device)


@torch.no_grad()
def evaluate(model, val, device):
    """Returns the top-1 in %."""
    model.eval()
    correct = 0
    for images, target in val:
        correct += (model(images.to(device)).argmax(1) == target.to(device)).sum().item()
    return 100 * correct / len(val.dataset)


def measure(args, _):
    """Trains in both ways, a seed after the other; writes the table."""
    if not all((args.dir / split).is_dir() for split in ("train", "val")):
        raise BadInput(f"{args.dir} has no train/ and val/: give --dir a folder that has")
    words = [RECIPE, *shlex.split(SIZES), "--epochs", str(args.epochs)]

    def way(train):
        seeds = itertools.count()
        return lambda: train(args.dir, words, args.steps, next(seeds))

    values = interleave({"these scripts": way(ours), "plain loop": way(theirs)}, args.seeds)
    rows = [{"name": name, "values": values[name]} for name in values]
    facts = {"epochs": args.epochs, "steps": args.steps, "options": SIZES}
    write(args.out, "torchvision's second recipe", "%", rows, "", facts)


OPTIONS = [
    option("--dir", default=ROOT / "cifar10", type=Path, help="CIFAR-10 as JPEG files"),
    option("--epochs", type=count, default=2),
    option("--steps", type=count, default=500, help="of an epoch"),
    option("--seeds", type=count, default=4),
]
main = functools.partial(common.main, __doc__, measure, "torchvision_recipe", OPTIONS)

if __name__ == "__main__":
    main()
