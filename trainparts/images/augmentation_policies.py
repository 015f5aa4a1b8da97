"""Augmentation by a policy: a random choice among changes of colour and shape.

Use it for torchvision's and timm's policies, with draws that a seed decides.
"""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Callable

import numpy as np
import PIL.Image
import torch
from torchvision.transforms import InterpolationMode, v2

Policy = Callable[[PIL.Image.Image], PIL.Image.Image]

# torchvision's policies. Its reference scripts call some by other names (docs/recipes.md).
TORCHVISIONS = {
    "trivial": v2.TrivialAugmentWide,
    "rand": v2.RandAugment,
    "auto": v2.AutoAugment,
    "augmix": v2.AugMix,
}
TIMMS = r"rand(-((m|n|inc)\d+|(p|mstd|mmax)\d+(\.\d+)?))+"
NAMES = f"off, {', '.join(TORCHVISIONS)}, or one of timm's such as rand-m6-mstd0.5-inc1"


def is_known(name: str) -> bool:
    """Whether make_policy() knows this name."""
    return name == "off" or name in TORCHVISIONS or bool(re.fullmatch(TIMMS, name))


def make_policy(name: str, interpolation: str, mean_colour: tuple[int, int, int]) -> Policy | None:
    """Returns the policy of this name, or None for "off". torchvision's policies resample as
    `interpolation` says, like its reference scripts, but AugMix bilinearly: torchvision computes it
    on tensors, which it does not resample bicubically. timm's policies fill with `mean_colour`,
    (R, G, B) from 0 to 255. Raises ImportError if timm is needed and not installed."""
    if name == "off":
        return None
    if name in TORCHVISIONS:
        mode = "bilinear" if name == "augmix" else interpolation
        return TORCHVISIONS[name](interpolation=InterpolationMode(mode))
    theirs = importlib.import_module("timm.data.auto_augment")
    policy = theirs.rand_augment_transform(name, {"img_mean": mean_colour})
    for op in policy.ops:  # Pillow refuses 0 bits, so 1 is used
        if op.name.startswith("Posterize"):
            op.level_fn = lambda *drawn, bits=op.level_fn: (max(1, *bits(*drawn)),)
    return policy


def apply_policy(policy: Policy, image: torch.Tensor, *, seed: int) -> None:
    """Changes an image, uint8 (H, W, 3), in place, by what a policy draws from `seed`, at most
    2**63 - 1. Seeds Python's and numpy's generators, and leaves PyTorch's as it was."""
    # torchvision's policies draw from PyTorch's generator, which dropout uses too, under -j 0 in
    # the same process. timm's draw from Python's and numpy's, which nothing else uses.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        augmented = policy(PIL.Image.fromarray(image.numpy()))  # faster than on tensors
    image.copy_(torch.from_numpy(np.array(augmented)))
