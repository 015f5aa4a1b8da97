"""What test_reference.py takes from docs/recipes.md is torchvision's, PyTorch's or timm's own:
distributions over many draws, and values where both are given the same draws. Seeds are fixed, and
so are p-values."""

import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import torch
from conftest import ROOT
from test_data import Loader
from torch import nn
from torchvision import models
from torchvision.ops._utils import split_normalization_params
from torchvision.transforms import v2

import imagenet_nd as nd
from trainparts.images import image_loading

# Of a rectangle.
MEASURES = {
    "area": lambda top, left, bottom, right: (bottom - top) * (right - left),
    "ratio": lambda top, left, bottom, right: (bottom - top) / (right - left + 1),
    "top": lambda top, left, bottom, right: top,
    "left": lambda top, left, bottom, right: left,
    "bottom": lambda top, left, bottom, right: bottom,
    "right": lambda top, left, bottom, right: right,
}
UNLIKELY = 1e-3  # of a p-value, where ours are distributed as theirs
CLASSES = 10
DATA = SimpleNamespace(interpolation="bilinear", mean=(0.485, 0.456, 0.406))


def alike(ours, theirs):
    """Whether two samples, or one and a distribution's cdf, may be of one distribution."""
    return scipy.stats.kstest(ours, theirs).pvalue > UNLIKELY


def as_often(values, kinds):
    """Whether values are of so many kinds, which may be equally likely."""
    counts = [*Counter(values).values()]
    return len(counts) == kinds and scipy.stats.chisquare(counts).pvalue > UNLIKELY


# ------------------------------------------------------------------------------------------ mixing


def mixed(words, groups=1500, size=40):
    """Yields (images before, images after, classes, target) of groups of a pair each, of which a
    step has 30."""
    args, data = nd.parse_args(words), SimpleNamespace(global_batch=60, mix_group=2)
    torch.manual_seed(0)
    for step in range(groups // 30):
        before, classes = torch.rand(60, 1, size, size), torch.randint(CLASSES, (60,))
        after = before.clone()
        target = nd.mix_groups(after, classes, args, data, 1, 60 * step)
        yield from zip(*(each.split(2) for each in (before, after, classes, target)), strict=True)


def box(before, after):
    """Returns [top, left, bottom, right] of what changed in an image; all 0 where nothing did."""
    at = np.argwhere((before != after).any(0).numpy())
    return [*at.min(0), *(at.max(0) + 1)] if len(at) else [0] * 4


def test_rectangles_of_cutmix_are_torchvisions():
    ours = np.array([box(before[0], after[0]) for before, after, *_ in mixed(["--cutmix", "1"])])
    torch.manual_seed(1)
    image, draw = torch.zeros(2, 3, 40, 40), v2.CutMix(num_classes=CLASSES)
    theirs = np.array([draw.make_params([image])["box"] for _ in range(1500)])[:, [1, 0, 3, 2]]
    theirs[(theirs[:, :2] == theirs[:, 2:]).any(1)] = 0
    for name, measure in MEASURES.items():
        assert alike(measure(*ours.T), measure(*theirs.T)), name


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("mixer", [v2.MixUp, v2.CutMix])
def test_images_and_losses_are_torchvisions_for_the_same_draws(mixer, smoothing):
    """Of two images, whose partners are each other in torchvision, too."""
    words = ["--mixup" if mixer is v2.MixUp else "--cutmix", "0.7"]
    theirs, loss_of = mixer(num_classes=CLASSES), nn.CrossEntropyLoss(label_smoothing=smoothing)
    for before, after, classes, target in mixed(words, groups=60, size=20):
        top, left, bottom, right = map(int, box(before[0], after[0]))
        share, area = float(target[0, 2]), (bottom - top) * (right - left) / 20**2
        params = {"lam": share}
        if mixer is v2.CutMix:
            params = {"box": (left, top, right, bottom), "lam_adjusted": 1 - area}
        theirs.make_params = lambda _, params=params: params
        images, soft = theirs(before, classes)
        assert torch.allclose(after, images, atol=1e-6)
        output = torch.randn(2, CLASSES)
        args = nd.parse_args(["--label-smoothing", str(smoothing)])
        loss = nd.criterion(output, target, args)[0]
        assert float(loss) == pytest.approx(float(loss_of(output, soft)), rel=1e-5)


@pytest.mark.parametrize("threshold", [None, 0.2])
def test_binary_losses_are_timms(threshold):
    timms = pytest.importorskip("timm.loss").BinaryCrossEntropy(0, threshold)
    torch.manual_seed(4)
    output, classes, share = torch.randn(30, CLASSES), torch.arange(30) % CLASSES, torch.rand(30)
    target = torch.stack([classes, classes.roll(1), share], dim=1)
    one, other = (nn.functional.one_hot(each, CLASSES) for each in (classes, classes.roll(1)))
    soft = share[:, None] * one + (1 - share[:, None]) * other
    given = ["--bce-threshold", str(threshold)] if threshold else []
    loss = nd.criterion(output, target, nd.parse_args(["--loss", "bce", *given]))[0]
    assert float(loss) == pytest.approx(float(timms(output, soft)), rel=1e-5)


# ------------------------------------------------------------------------------------ augmentation


def augmented(loader, size, images=1500):
    """Yields so many random crops of a black image, as a loader worker makes them."""
    file = b"P6 %d %d 255\n" % (size, size) + bytes(3 * size * size)
    for key in range(images):
        out = torch.empty(size, size, 3, dtype=torch.uint8)
        image_loading.load_alone(file, loader.random_crop(out, key, 3))
        yield out


def test_images_get_every_operation_of_timms_equally_often():
    """At its probability of 1/2, and with noise of a twentieth of the largest magnitude."""
    pytest.importorskip("timm")
    args, drawn = nd.parse_args(["--auto-augment", "rand-m6-mstd0.5-inc1"]), []
    loader = Loader(args, DATA)
    for each in loader.policy.ops:
        each.aug_fn = lambda image, *level, name=each.name, **_: (
            drawn.append((name, *level)) or image
        )
    list(augmented(loader, 8))
    assert scipy.stats.binomtest(len(drawn), 2 * 1500).pvalue > UNLIKELY
    assert as_often([name for name, *_ in drawn], 15)
    shear = [abs(level) for name, *levels in drawn if name == "ShearX" for level in levels]
    assert alike(shear, scipy.stats.norm(0.3 * 0.6, 0.3 * 0.05).cdf)


def test_erased_rectangles_are_torchvisions():
    size = 48
    loader = Loader(nd.parse_args(["--random-erase", "1"]), DATA)
    black = torch.zeros(3, size, size)
    ours = np.array([box(black, out.permute(2, 0, 1)) for out in augmented(loader, size)])
    torch.manual_seed(2)
    theirs = [v2.RandomErasing(p=1).make_params([black]) for _ in range(1500)]
    theirs = np.array([[p["i"], p["j"], p["i"] + p["h"], p["j"] + p["w"]] for p in theirs])
    for name, measure in MEASURES.items():
        assert alike(measure(*ours.T), measure(*theirs.T)), name


# ---------------------------------------------------------------------------------------- decays


@pytest.mark.parametrize("name", ["torchvision-v2", "convnext-tiny", "vit-b-16"])
def test_decays_of_averages_are_scaled_as_torchvisions_train_py_does(name):
    args = nd.parse_args([f"@{ROOT / 'recipes' / name}.txt"])
    moved = (1 - 0.99998) * args.global_batch * 32 / args.epochs
    assert args.ema == pytest.approx(1 - moved, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("resnet50", r"fc\.bias"),
        ("convnext_tiny", r".*\.bias"),
        ("vit_b_16", r".*\.(in_proj_)?bias"),
    ],
)
def test_what_torchvision_leaves_undecayed_is_left_so(name, more):
    """Theirs are the norms' weights and biases; ours all weights of one dimension: also `more`."""
    with torch.device("meta"):
        model = models.get_model(name)
    names = {id(weight): name for name, weight in model.named_parameters()}
    optimizer = nd.build_optimizer(nd.parse_args(["--norm-wd", "0"]), model)
    (ours,) = (group["params"] for group in optimizer.param_groups if not group["weight_decay"])
    ours = {names[id(weight)] for weight in ours}
    theirs = {names[id(weight)] for weight in split_normalization_params(model)[0]}
    assert theirs < ours
    assert all(re.fullmatch(more, name) for name in ours - theirs), ours - theirs
