"""The scripts against a plain training loop, which shares no code with them, but is written from
docs/data.md ("What is drawn from what") and docs/recipes.md ("What a step computes"): what is equal
in all scripts may be wrong in all. It is also a short account of what they compute."""

import copy
import functools
import hashlib
import itertools
import math
import os
import random
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest
import timm
import torch
from allpairspy import AllPairs
from conftest import checkpoint, command, events, run, the_run
from timm.optim import param_groups_layer_decay
from torch import nn
from torchvision import datasets, models
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

# ----------------------------------------------------------------------------------- the reference

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BILINEAR, BICUBIC = functional.InterpolationMode.BILINEAR, functional.InterpolationMode.BICUBIC
DEFAULTS = {
    **{"seed": 0, "start_size": None, "val_size": None, "val_resize": None, "min_crop": 0.08},
    **{"flip": "random", "auto_augment": "off", "random_erase": 0, "repeated_aug": 1, "mixup": 0},
    **{"cutmix": 0, "accumulation": 1, "lr": 0.1, "base_lr": None, "lr_scaling": "linear"},
    **{"lr_schedule": "step", "warmup_epochs": None, "optimizer": "sgd", "momentum": 0.9},
    **{"wd": 1e-4, "norm_wd": None, "clip_grad": None, "loss": "ce", "label_smoothing": 0},
    **{"ema": 0, "best": "top1", "mix_group": None, "bce_threshold": None, "layer_decay": 1},
    **{"mean": MEAN, "std": STD, "interpolation": BILINEAR},  # the architecture's
    **{"amp": "float32"},
}


# torch.manual_seed() formats a stack for each kind of device that is not there, too.
seed_torch = torch.default_generator.manual_seed


def seed_from(*numbers):
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def draw_box(height, width, rng, least, most, longest):
    """Returns (top, left, height, width) of a crop, or of what is erased."""
    for _ in range(10):
        area = rng.uniform(least, most) * height * width
        ratio = math.exp(rng.uniform(-math.log(longest), math.log(longest)))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 1 <= w <= width and 1 <= h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    w, h = min(width, round(height * longest)), min(height, round(width * longest))
    return (height - h) // 2, (width - w) // 2, h, w


def decode(path):
    """Returns uint8 (3, H, W), in memory with channels last."""
    return torch.from_numpy(np.array(PIL.Image.open(path).convert("RGB"))).permute(2, 0, 1)


def training_image(args, epoch, path, key):
    rng = random.Random(f"{args.seed} {epoch} {key}")
    mirrored = rng.random() < 0.5
    if args.flip == "alternate":
        mirrored = (random.Random(f"{args.seed} {key}").random() < 0.5) == (epoch % 2 == 0)
    image, size = decode(path), crop_size(args, epoch)
    box = draw_box(*image.shape[1:], rng, args.min_crop, 1, 4 / 3)
    sides = [size, size]
    image = functional.resized_crop(image, *box, sides, args.interpolation, antialias=True)
    if mirrored and args.flip != "off":
        image = functional.horizontal_flip(image)
    if args.auto_augment != "off":
        policy = {"trivial": v2.TrivialAugmentWide, "rand": v2.RandAugment}[args.auto_augment]
        policy = policy(interpolation=BILINEAR)
        seed_torch(rng.getrandbits(63))
        image = functional.pil_to_tensor(policy(functional.to_pil_image(image)))
    if rng.random() < args.random_erase:
        box = draw_box(size, size, rng, 0.02, 0.33, 3.3)
        grey = torch.tensor([round(255 * each) for each in args.mean], dtype=torch.uint8)
        image = functional.erase(image, *box, grey.view(3, 1, 1))
    return image


def crop_size(args, epoch):
    """Returns --start-size in the first 40 % of epochs, --image-size in the last 20 %, and between
    them two sizes, multiples of 16 pixels larger than the first."""
    start, fifth = args.start_size or args.image_size, 5 * epoch // args.epochs
    between = [(args.image_size - start) * n // 3 // 16 * 16 + start for n in (1, 2)]
    return [start, start, *between, args.image_size][fifth]


def validation_image(args, path, key):
    size = args.val_size or args.image_size
    shorter = args.val_resize or round(size * 256 / 224)
    image = functional.resize(decode(path), [shorter], args.interpolation, antialias=True)
    return functional.center_crop(image, size)


def load(args, samples, keys, image_of):
    """Returns normalised images, and their classes."""
    paths, classes = zip(*(samples[key % len(samples)] for key in keys), strict=True)
    batch = torch.stack([image_of(path, key) for path, key in zip(paths, keys, strict=True)])
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (args.mean, args.std))
    return batch * (1 / (255 * std)) - mean / std, torch.tensor(classes)


def mix(args, images, classes, epoch, step):
    """Returns images mixed in pairs, their partners' classes, and the share of each one's own."""
    size = args.mix_group or len(images) // args.repeated_aug
    groups = zip(images.split(size), classes.split(size), strict=True)
    seed = f"{args.seed} {epoch} {step}"
    seeds = [f"{seed} {n}" if n else seed for n in range(len(images) // size)]
    mixed = [mix_group(args, *group, seed) for group, seed in zip(groups, seeds, strict=True)]
    return [torch.cat(each) for each in zip(*mixed, strict=True)]


def mix_group(args, images, classes, seed):
    rng, partner = random.Random(seed), torch.arange(len(images)) ^ 1
    cutmix = rng.random() < 0.5 if args.mixup and args.cutmix else args.cutmix > 0
    alpha, size = args.cutmix if cutmix else args.mixup, images.shape[2]
    given = 1 - rng.betavariate(alpha, alpha)
    if cutmix:
        y, x, half = rng.randrange(size), rng.randrange(size), int(given**0.5 / 2 * size)
        rows, columns = (slice(max(0, at - half), min(size, at + half)) for at in (y, x))
        given = (rows.stop - rows.start) * (columns.stop - columns.start) / size**2
        mixed = images.clone()
        mixed[:, :, rows, columns] = images[partner][:, :, rows, columns]
    given = torch.full((len(images),), given)
    if not cutmix:
        mixed = images.lerp(images[partner], given.view(-1, 1, 1, 1))
    return mixed, classes[partner], 1 - given


def loss_of(args, output, classes, others, share):
    """Returns the sum of the images' losses."""
    if args.loss == "ce":
        options = {"label_smoothing": args.label_smoothing, "reduction": "none"}
        losses = functools.partial(nn.functional.cross_entropy, output, **options)
        return (share * losses(target=classes) + (1 - share) * losses(target=others)).sum()
    every = torch.arange(output.shape[1])
    wanted = share[:, None] * (classes[:, None] == every)
    wanted = wanted + (1 - share[:, None]) * (others[:, None] == every)
    wanted = wanted * (1 - args.label_smoothing) + args.label_smoothing / output.shape[1]
    if args.bce_threshold is not None:
        wanted = (wanted > args.bce_threshold).float()
    each = nn.functional.binary_cross_entropy_with_logits(output, wanted, reduction="none")
    return each.mean(1).sum()


def warmup(args):
    return args.epochs * 5 / 90 if args.warmup_epochs is None else args.warmup_epochs


def rate_at(args, global_batch, progress):
    """Returns the learning rate after `progress` epochs."""
    scale = {"linear": global_batch / 256, "sqrt": (global_batch / 256) ** 0.5, "none": 1}
    peak = args.lr * scale[args.lr_scaling]
    if args.base_lr:
        peak = args.base_lr * global_batch / args.batch_size
    if progress < warmup(args):
        return peak * progress / warmup(args)
    done = (progress - warmup(args)) / (args.epochs - warmup(args))
    tenths = sum(progress > cut / 90 * args.epochs for cut in (30, 60, 80))
    curves = {"cosine": (1 + math.cos(math.pi * done)) / 2, "linear": 1 - done}
    return peak * (curves | {"step": 0.1**tenths})[args.lr_schedule]


def make_optimizer(args, model):
    weights = list(model.parameters())
    groups = [{"params": weights, "weight_decay": args.wd}]
    if args.layer_decay != 1:
        groups = param_groups_layer_decay(model, args.wd, layer_decay=args.layer_decay)
        groups.sort(key=lambda group: group["weight_decay"] == 0)  # in the scripts' order
    elif args.norm_wd is not None:
        vectors = [each for each in weights if each.ndim == 1]
        groups[0]["params"] = [each for each in weights if each.ndim != 1]
        groups.append({"params": vectors, "weight_decay": args.norm_wd})
    if args.optimizer == "adamw":
        return torch.optim.AdamW(groups)
    return torch.optim.SGD(groups, momentum=args.momentum, nesterov=args.optimizer == "nesterov")


def measure(output, classes, loss):
    """Returns the sums of a batch: loss, correct in top 1, correct in top 5, images."""
    correct, ones = output.topk(5).indices == classes[:, None], torch.ones(len(classes))
    return torch.stack([e.double().sum() for e in (loss, correct[:, 0], correct, ones)])


def means(sums):
    """Returns {tag: value}, as it is logged: accuracies in percent."""
    loss, top1, top5 = (sums[:3] / sums[3]).tolist()
    return {"Loss": loss, "Top1": 100 * top1, "Top5": 100 * top5}


def half(args):
    """Returns the context of the forward pass and the loss."""
    return torch.autocast("cpu", getattr(torch, args.amp), enabled=args.amp != "float32")


@torch.no_grad()
def validate(args, model, val):
    model.eval()
    sums = 0
    for first in range(0, len(val), args.batch_size):
        keys = range(first, min(first + args.batch_size, len(val)))
        images, classes = load(args, val, keys, functools.partial(validation_image, args))
        with half(args):
            output = model(images)
            loss = nn.functional.cross_entropy(output, classes, reduction="sum")
        sums += measure(output, classes, loss)
    return means(sums)


def train(folder, build, ranks=1, **options):
    """Trains what `build(classes)` returns under these options of the scripts."""
    args = SimpleNamespace(**DEFAULTS | options)
    train, val = (datasets.ImageFolder(folder / split).samples for split in ("train", "val"))
    seed_torch(args.seed)
    model = build(1 + max(label for _, label in train))
    optimizer, average = make_optimizer(args, model), None
    scale = 2.0**16 if args.amp == "float16" else 1.0  # it grows after 2,000 steps
    global_batch = args.batch_size * args.accumulation * ranks
    steps, distinct = len(train) // global_batch, global_batch // args.repeated_aug
    found = SimpleNamespace(steps=[], rates=[], train=[], val=[])
    for epoch in range(args.epochs):
        generator = torch.Generator().manual_seed(seed_from(args.seed, epoch))
        order, epoch_sums = torch.randperm(len(train), generator=generator).tolist(), 0
        for step in range(steps):
            taken = order[step * distinct : (step + 1) * distinct]
            keys = [each + len(train) * n for n in range(args.repeated_aug) for each in taken]
            images, classes = load(
                args, train, keys, functools.partial(training_image, args, epoch)
            )
            others, share = classes, torch.ones(global_batch)
            if args.mixup or args.cutmix:
                images, others, share = mix(args, images, classes, epoch, step)
            model.train()
            sums, of_ranks = 0, []
            for turn, some in enumerate(torch.arange(global_batch).split(args.batch_size)):
                rank, turn = divmod(turn, args.accumulation)
                if turn == 0:
                    seed_torch(seed_from(args.seed, epoch, step, rank))
                with half(args):
                    output = model(images[some])
                    loss = loss_of(args, output, classes[some], others[some], share[some])
                # In float16, what is too large for it depends on the factor: a rank's mean.
                (loss / (global_batch // ranks) * scale).backward()
                sums += measure(output, classes[some], loss.detach())
                if turn == args.accumulation - 1:  # ranks add up their sums
                    of_ranks.append([weight.grad for weight in model.parameters()])
                    optimizer.zero_grad()
                if rank == 0:  # whose running statistics are the model's
                    statistics = [buffer.clone() for buffer in model.buffers()]
            for buffer, own in zip(model.buffers(), statistics, strict=True):
                buffer.copy_(own)
            gradients = [sum(each) / (scale * ranks) for each in zip(*of_ranks, strict=True)]
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight.grad = gradient
            finite = all(each.isfinite().all() for each in gradients)
            if args.clip_grad and finite:
                norm = torch.cat([each.double().flatten() for each in gradients]).norm().item()
                for each in gradients:
                    each *= min(1, args.clip_grad / norm)
            rate = rate_at(args, global_batch, epoch + (step + 0.5) / steps)
            for group in optimizer.param_groups:
                group["lr"] = rate * group.get("lr_scale", 1)
            if finite:
                optimizer.step()
            else:
                scale /= 2
            optimizer.zero_grad()
            found.steps.append(means(sums)["Loss"])
            epoch_sums += sums
            number = len(found.steps)
            if number <= 32 or number % 32 == 0:
                kept = args.ema if number > 32 and epoch >= warmup(args) else 0  # else a copy
                before, average = average, copy.deepcopy(model.state_dict())
                for name, each in average.items():
                    if kept and each.is_floating_point():
                        each.lerp_(before[name], kept)
        found.rates.append(rate)
        found.train.append(means(epoch_sums))
        trained = copy.deepcopy(model.state_dict())
        if args.ema:
            model.load_state_dict(average)
        found.val.append(validate(args, model, val))
        model.load_state_dict(trained)
    found.state_dict, found.ema = trained, average if args.ema else {}
    found.optimizer = optimizer.state_dict()
    return found


# ---------------------------------------------------------------------------------- the comparison


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight classes of 8 + 5 PNGs, which all programs decode alike."""
    folder, rng = tmp_path_factory.mktemp("reference") / "data", np.random.default_rng(0)
    for label in range(8):
        colour = rng.integers(0, 256, 3)
        for number in range(13):
            path = folder / ("train" if number < 8 else "val") / f"class{label}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            size = 36 + number, 60 - 2 * number, 3
            pixels = (2 * rng.integers(0, 256, size) + colour) // 3
            PIL.Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


CASES = {
    "step, sgd": {
        **{"arch": "vit_b_16", "image_size": 32, "batch_size": 8, "epochs": 9, "lr": 2.0},
        **{"wd": 0.01, "ema": 0.8, "label_smoothing": 0.1, "seed": 3},
    },
    "cosine, nesterov, mixed": {
        **{"arch": "timm/test_efficientnet_ln", "start_size": 16, "image_size": 64},
        **{"val_size": 48, "val_resize": 55, "interpolation": BICUBIC},
        **{"epochs": 5, "batch_size": 4, "accumulation": 2, "lr_schedule": "cosine", "lr": 0.2},
        **{"warmup_epochs": 1.5, "lr_scaling": "sqrt", "optimizer": "nesterov", "momentum": 0.8},
        **{"wd": 0.01, "norm_wd": 0, "clip_grad": 8, "mixup": 0.4, "cutmix": 1, "ema": 0.8},
    },
    "linear, adamw, bce": {
        **{"arch": "vit_b_16", "image_size": 32, "batch_size": 8, "epochs": 12, "lr": 0.002},
        **{"lr_schedule": "linear", "warmup_epochs": 11, "lr_scaling": "none", "ema": 0.5},
        **{"seed": 4},
        **{"wd": 0.3, "norm_wd": 0.1, "loss": "bce", "label_smoothing": 0.1, "val_resize": 50},
        **{"repeated_aug": 2, "flip": "alternate", "random_erase": 0.5, "min_crop": 0.3},
        **{"auto_augment": "trivial", "optimizer": "adamw"},
        **{"mixup": 0.8, "bce_threshold": 0.2},
    },
    "base rate, cutmix": {
        **{"arch": "vit_b_16", "image_size": 32, "batch_size": 4, "accumulation": 3, "epochs": 5},
        **{
            "mix_group": 6,
            "base_lr": 0.05,
            "cutmix": 0.7,
            "flip": "off",
            "auto_augment": "rand",
            "best": "loss",
        },
    },
    "layers": {
        **{"arch": "timm/test_resnet", "image_size": 32, "batch_size": 8, "epochs": 3, "lr": 1.0},
        **{"layer_decay": 0.5, "norm_wd": 0, "wd": 0.1, "val_resize": 40, "warmup_epochs": 0},
        **{"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
    },
    "float16, clipped": {
        **{"arch": "vit_b_16", "image_size": 32, "batch_size": 4, "accumulation": 2, "epochs": 3},
        **{"amp": "float16", "clip_grad": 0.5, "lr": 2.0, "warmup_epochs": 0, "ema": 0.5},
    },
    "two ranks": {
        **{"ranks": 2, "arch": "mobilenet_v3_small", "image_size": 32, "batch_size": 4},
        **{"lr": 0.0003, "optimizer": "adamw", "lr_scaling": "none", "warmup_epochs": 0},
        **{"epochs": 3},
    },
}


def build(options, classes):
    """Returns the model that the script builds, of ViT that of tests/small_models."""
    if options["arch"] == "vit_b_16":
        return models.VisionTransformer(
            options["image_size"], 16, 2, 2, 32, 64, num_classes=classes
        )
    if options["arch"].startswith("timm/"):
        return timm.create_model(options["arch"].removeprefix("timm/"), num_classes=classes)
    return models.get_model(options["arch"], num_classes=classes)


# Pairs of these are tried with each other: a mistake that one option makes in what another does.
PAIRED = {
    "arch": ["vit_b_16", "timm/test_resnet"],  # without BatchNorm, and with it
    "ranks": [1, 2],
    "amp": ["float32", "float16"],
    "clip_grad": [None, 0.3],
    "accumulation": [1, 2],
    "ema": [0, 0.5],
    "mixed": [{}, {"mixup": 0.4}, {"cutmix": 1, "mix_group": 4}],
    "loss": ["ce", "bce"],
    "label_smoothing": [0, 0.1],
    "optimizer": ["sgd", "nesterov", "adamw"],
    "lr_schedule": ["step", "cosine", "linear"],
    "lr_scaling": ["linear", "sqrt"],
    "warmup_epochs": [0, 1],
    "norm_wd": [None, 0],
    "repeated_aug": [1, 2],
    "random_erase": [0, 0.5],
    "flip": ["random", "alternate"],
    "best": ["top1", "loss"],
}
PAIRS = [
    {"image_size": 32, "val_resize": 40, "batch_size": 4, "epochs": 2, "wd": 0.05}
    | {name: value for name, value in case._asdict().items() if name != "mixed"}
    | case.mixed
    | {"lr": 0.003 if case.optimizer == "adamw" else 0.5}
    | ({"mean": (0.5,) * 3, "std": (0.5,) * 3} if "timm/" in case.arch else {})
    for case in AllPairs(OrderedDict(PAIRED))
]


def test_each_pair_of_options_is_tried():
    for (one, values), (two, others) in itertools.combinations(PAIRED.items(), 2):
        if "mixed" not in (one, two):
            tried = {(case[one], case[two]) for case in PAIRS}
            assert tried == {*itertools.product(values, others)}, (one, two)


@pytest.mark.parametrize("case", range(len(PAIRS)))
def test_pairs_of_options(case, folder, tmp_path):
    trains_as_the_reference(PAIRS[case], folder, tmp_path, rel=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_the_script_trains_as_the_reference(case, folder, tmp_path):
    expected = trains_as_the_reference(CASES[case], folder, tmp_path)
    assert min(each["Top5"] for each in expected.train + expected.val) < 100, "or equal is little"
    assert len({each["Loss"] for each in expected.val}) > 1
    if CASES[case].get("ranks", 1) == 1:
        assert len({each["Top1"] for each in expected.val}) > 1, "images must be felt in validation"


def kept(train, folder, build, ranks, **options):
    """Returns what train() does, or has done before under the same options, where $REFERENCES is a
    folder: planted_faults.py plants nothing that it reads."""
    if not (references := os.environ.get("REFERENCES")):
        return train(folder, build, ranks, **options)
    name = hashlib.sha256(repr((ranks, options)).encode()).hexdigest()
    path = Path(references) / name
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        torch.save(train(folder, build, ranks, **options), part)
        part.rename(path)
    return torch.load(path, weights_only=False)


def trains_as_the_reference(options, folder, tmp_path, rel=1e-6):
    """Compares a run with these options with train(), whose findings it returns; `rel` is the
    relative difference of losses that is left to rounding."""
    options = options.copy()
    ranks = options.pop("ranks", 1)
    script = "imagenet_nd.py" if ranks == 1 else "imagenet_ddp.py"
    words = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in options.items()
        if name not in ("mean", "std", "interpolation") and value not in (None, "float32")
    ]
    more = ["--no-accel", "-j", "0", "-p", "1"]
    run([*command(script, ranks), *words, *more, folder], tmp_path)
    expected = kept(train, folder, functools.partial(build, options), ranks, **options)
    log = events(the_run(tmp_path / "runs"))

    def logged(tag):
        return [event.value for event in log.Scalars(tag)]

    assert logged("Loss/step") == pytest.approx(expected.steps, rel=rel)
    assert logged("Lr") == pytest.approx(expected.rates, rel=rel)
    for split in "train", "val":
        for tag in "Loss", "Top1", "Top5":
            values = [each[tag] for each in getattr(expected, split)]
            assert logged(f"{tag}/{split}") == pytest.approx(values, rel=rel), f"{tag}/{split}"
    images = options["batch_size"] * options.get("accumulation", 1) * ranks
    for speed, seconds in zip(logged("Throughput/train"), logged("Time/train"), strict=True):
        assert speed * seconds == pytest.approx(images, rel=1e-4)
    saved = torch.load(checkpoint(tmp_path / "runs"), weights_only=True)
    for which in "state_dict", "ema":
        assert saved[which].keys() == getattr(expected, which).keys()
        for name, tensor in getattr(expected, which).items():
            if which == "ema" and not tensor.is_floating_point():  # averages of counts mean nothing
                continue
            assert torch.allclose(saved[which][name], tensor, 10 * rel, rel / 10), (
                f"{which}: {name}"
            )
    momenta = saved["optimizer"]["state"]
    assert momenta.keys() == expected.optimizer["state"].keys()
    for number, state in expected.optimizer["state"].items():
        for name, tensor in state.items():
            assert torch.allclose(momenta[number][name], tensor, 10 * rel, rel / 1000), (
                f"{name} of {number}"
            )
    losses, top1, top5 = ([each[tag] for each in expected.val] for tag in ("Loss", "Top1", "Top5"))
    best = losses.index(min(losses))
    if options.get("best") != "loss":
        best = max(range(len(top1)), key=lambda epoch: (top1[epoch], epoch))  # the last of equals
    model = torch.load(checkpoint(tmp_path / "runs", "model_best.pt"), weights_only=True)
    assert model["epoch"] == best + 1
    until = slice(best + 1)  # it is of its epoch
    assert model["best_loss"] == pytest.approx(min(losses[until]), rel=rel)
    tops = max(top1[until]), max(top5[until])
    assert (model["best_acc1"], model["best_acc5"]) == pytest.approx(tops)
    return expected
