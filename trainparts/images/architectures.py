"""Architectures of torchvision and timm by name: what they are built with, and their own sizes.

Use it to build a model by name, and to preprocess images as its library does for it.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import math
from typing import NamedTuple, TypedDict

import torch
from torch import nn
from torchvision import models
from torchvision.transforms import InterpolationMode

from trainparts import errors, option_types


class About(TypedDict, total=False):
    """What a file says of its model and its images."""

    what: str  # the file, or another source of the weights
    published: bool  # whether its library publishes them
    arch: str
    model_options: dict[str, option_types.Value]  # what the model is built with
    num_classes: int
    classes: list[str]
    image_size: int  # pixels
    val_resize: int  # pixels
    interpolation: str
    mean: list[float]  # of the pixels, from 0 to 1
    std: list[float]


def why_unknown(arch: str) -> str | None:
    """Returns why no model has this name, with similar ones, or None."""
    known = models.list_models(module=models)
    name = arch.removeprefix("timm/")
    if name != arch:
        if not importlib.util.find_spec("timm"):
            return f"{arch} needs timm: pip install timm"
        timm = importlib.import_module("timm")
        known = timm.list_models() + timm.list_pretrained()
    if name not in known:
        near = ", ".join(difflib.get_close_matches(name.lower(), known, 5, 0.4) or known[:20])
        return f"-a {arch}: no such classifier; similar names: {near}"
    return None


def make_model(arch: str, pretrained: bool = False, **options: option_types.Value) -> nn.Module:
    """Returns a model with random weights, or its library's pretrained one, which it may fetch. For
    timm's `arch` is timm/NAME. Raises what the library raises of options that it does not take."""
    if arch.startswith("timm/"):
        timm = importlib.import_module("timm")
        return timm.create_model(arch.removeprefix("timm/"), pretrained, **options)
    weights = next(iter(models.get_model_weights(arch))) if pretrained else None
    return models.get_model(arch, weights=weights, **options)


def model_options(
    arch: str, image_size: int | None, about: About, zero_init: bool = False
) -> dict[str, option_types.Value]:
    """Returns the arguments that a model of this architecture is built with, besides the number of
    classes. Those in `about`, what weight_files.about_file() says of a file's model, take
    precedence, but sizes are always this run's."""
    options: dict[str, option_types.Value] = {}
    if zero_init:  # only ResNets take it
        options = {"zero_init_residual": True}
    elif arch in ("googlenet", "inception_v3"):  # published weights expect another normalisation
        published = about.get("published", False)
        options = {"aux_logits": False, "init_weights": True, "transform_input": published}
    elif arch.startswith("vit_"):
        options = {"image_size": image_size}
    elif arch == "maxvit_t":
        options = {"input_size": (image_size, image_size)}
    elif arch.startswith("timm/"):
        options = {**timm_size(arch, image_size)}
    # No other options than these: one may name a file, which a library would load.
    theirs = about.get("model_options", {})
    believed = [name for name in options if name in theirs and "size" not in name]
    return options | {name: theirs[name] for name in believed}


@functools.cache
def timm_size(arch: str, image_size: int) -> dict[str, int]:
    """Returns {"img_size": pixels} if a model of timm's takes images of this size only when it is
    built for them, and {} if it takes them as it is. Raises BadInput if it does neither."""
    preset, wrong = preset_of(arch), []
    if image_size == preset.image_size:
        return {}
    for options in ({}, {"img_size": image_size})[: 1 + preset.fixed]:
        try:
            with torch.device("meta"), torch.no_grad():
                model = make_model(arch, False, **options).eval()
                model(torch.zeros(1, 3, image_size, image_size))
            return options
        except Exception as error:  # whatever a model says of a size
            wrong.append(errors.first_line(error))
    what = f"-a {arch} does not take images of {image_size} pixels"
    raise errors.BadInput(f"{what} ({wrong[0]}); its own have {preset.image_size}")


class Preset(NamedTuple):
    """The preprocessing of an architecture's images, as its library publishes it."""

    image_size: int  # pixels of a crop
    val_resize: int  # pixels of the shorter side, before the crop of validation
    interpolation: str
    mean: tuple[float, ...]  # of the pixels, from 0 to 1, by which they are normalised
    std: tuple[float, ...]
    num_classes: int  # outputs of the published weights
    squash: bool = False  # both sides are resized to val_resize, whatever the shape
    fixed: bool = False  # timm's model takes images of another size only if it is built for it

    def about(self) -> About:
        """Returns {name: value} of what a checkpoint says of images and outputs."""
        return About(
            image_size=self.image_size,
            val_resize=self.val_resize,
            interpolation=self.interpolation,
            mean=[*self.mean],
            std=[*self.std],
            num_classes=self.num_classes,
        )


def preset_in(weights: models.WeightsEnum) -> Preset:
    """Returns the Preset of weights that torchvision publishes, from their transforms()."""
    transforms = weights.transforms()
    return Preset(
        transforms.crop_size[0],
        transforms.resize_size[0],
        transforms.interpolation.value,
        tuple(transforms.mean),
        tuple(transforms.std),
        len(weights.meta["categories"]),
    )


@functools.cache
def preset_of(arch: str, test: bool = False) -> Preset:
    """Returns the Preset that belongs to `arch`. For a `test` of timm's published weights, it has
    the sizes of timm's validate.py."""
    if not arch.startswith("timm/"):
        return preset_in(next(iter(models.get_model_weights(arch))))
    config = importlib.import_module("timm").get_pretrained_cfg(arch.removeprefix("timm/"))
    shape, share = config.input_size, config.crop_pct
    if test:
        shape, share = config.test_input_size or shape, config.test_crop_pct or share
        if shape[0] != 3 or shape[1] != shape[2] or config.crop_mode not in ("center", "squash"):
            images = f"images of {shape[1]} x {shape[2]} pixels, crop mode {config.crop_mode}"
            raise errors.BadInput(
                f"-a {arch} is published for {images}: these scripts do not make them"
            )
    return Preset(
        shape[1],
        math.floor(shape[1] / share),
        InterpolationMode(config.interpolation).value,
        tuple(config.mean),
        tuple(config.std),
        config.num_classes,
        squash=config.crop_mode == "squash",
        fixed=config.fixed_input_size,
    )


def choose_sizes(
    preset: Preset,
    about: About,
    usual_size: int,
    image_size: int | None = None,
    val_size: int | None = None,
    val_resize: int | None = None,
) -> tuple[int, int, int]:
    """Returns (image size, size of validation's crops, shorter side before that crop), in pixels.
    Typed sizes come first, then those in `about`, what a file says of its model, then the usual
    size. If nothing gives the shorter side, it has the preset's proportion to the crop. Raises
    BadInput if the crop is larger than that side."""
    chosen = image_size or about.get("image_size") or usual_size
    crop = val_size or chosen
    side = val_resize
    if crop == about.get("image_size"):
        side = side or about.get("val_resize")
    side = side or round(crop * preset.val_resize / preset.image_size)
    if side < crop:
        raise errors.BadInput(f"--val-resize {side} is less than the crop, {crop}")
    return chosen, crop, side


def classifier(model: nn.Module) -> nn.ModuleList:
    """Returns the last layer in a list; timm's models say which it is, and some have two."""
    *_, last = (module for module in model.modules() if [*module.parameters(recurse=False)])
    own = getattr(model, "get_classifier", None)
    last = own() if callable(own) else last
    return nn.ModuleList(last if isinstance(last, tuple) else [last])
