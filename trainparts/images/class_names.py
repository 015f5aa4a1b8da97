"""Classes by name: those of folders, and those of a model's outputs.

Use it to give each image the number that a model's outputs have for its class, or to say in a line
why that number is not known.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from trainparts import errors
from trainparts.images import architectures, image_files

# ILSVRC2012's ids, one in a line, in the order in which meta.mat of its devkit and Kaggle's
# LOC_synset_mapping.txt have the classes: that of the ids as text.
IMAGENET_FILE = Path(__file__).with_name("imagenet_classes.txt")
IMAGENET = IMAGENET_FILE.read_text().split()


def name_outputs(
    train: image_files.Source,
    val: image_files.Source,
    about: architectures.About,
    typed: int | None,
    folder: str | None,
) -> tuple[image_files.Source, image_files.Source, int]:
    """Returns (train, val, number of outputs) for an evaluation, with outputs of the weights as
    targets. Classes are matched by the names that the weights' file has, or, if it has none, by the
    folders in DIR, `folder`, which must then be as many as the outputs. `typed` is --num-classes,
    or None."""
    outputs = typed or about.get("num_classes") or len(train.classes) or 1000
    if outputs != about.get("num_classes", outputs):
        raise errors.BadInput(
            f"{about['what']} has {about['num_classes']} outputs: omit --num-classes"
        )
    if not train.classes:  # synthetic images
        return train, val, outputs
    classes, whose = order_classes(train.classes, about), "train/"
    if "classes" in about:
        whose = about["what"]
    elif outputs != len(classes):
        raise unnamed_outputs(about["what"], outputs, classes, folder)
    train, val = (each.in_classes(classes, whose) for each in (train, val))
    return train, val, outputs


def order_classes(found: list[str], about: architectures.About) -> list[str]:
    """Returns the classes in the order of a model's outputs: as its file says, in `about`, or as
    the folders were `found`, in ImageFolder's order, which nearly all weights have. For published
    weights of 1,000 classes, the folders must be ImageNet's: named by WordNet's ids, or from 0 to
    999."""
    if "classes" in about or not about["published"] or len(found) != 1000:
        return about.get("classes", found)
    numbers = [str(number) for number in range(1000)]
    if sorted(numbers) == sorted(found):
        return numbers
    if [name[:9] for name in found] != IMAGENET:  # a word may follow
        names = f"their folders are called as in {IMAGENET_FILE}, or 0 to 999"
        raise errors.BadInput(f"published weights are of ImageNet's 1,000 classes: {names}")
    return found


def unnamed_outputs(
    what: str, outputs: int, classes: Sequence[str], folder: str | None, part: str = "val"
) -> errors.BadInput:
    """Returns the BadInput of weights that say no classes, and whose outputs DIR does not name."""
    named = f"{len(classes):,} classes: {image_files.first_three(classes)}"
    line = f"{what} has {outputs:,} outputs, and DIR names {named}"
    if outputs != 1000:
        return errors.BadInput(f"{line}; give train/ a folder for each output, which may be empty")
    measured = shlex.quote(os.path.abspath(os.path.join(folder or "demo_data", part)))
    numbers = all(map(str.isdecimal, classes))
    ids = f"grep -xE 'n[0-9]{{8}}' {shlex.quote(str(IMAGENET_FILE))}"
    every = "seq 0 999" if numbers else ids
    place = f"NEW/{shlex.quote(part)}"
    make = f"mkdir -p NEW/train {place} && ln -sfn {measured}/* {place}/"
    make += f" && {every} | (cd NEW/train && xargs mkdir -p)"
    return errors.BadInput(f"{line}; to name ImageNet's 1,000: {make}; then NEW is the DIR")


def about_images(train: image_files.Source, val: image_files.Source, num_classes: int) -> list[str]:
    """Returns lines on the images of a run: how many there are, in which order their classes, and
    what of DIR is not read. `train` has none in an evaluation; `num_classes` is that of a model on
    synthetic images."""
    images = f"{len(val.target):,} validation images"
    if len(train.target):
        images = f"{len(train.target):,} training and {images}"
    if not train.classes:
        return [f"{images}, {num_classes:,} classes, all synthetic"]
    gaps = [*(train.gaps() if len(train.target) else []), *val.gaps()]
    lines = [f"{images}, {len(train.classes):,} classes"]
    return [*lines, *order_of_numbers(train.classes), *gaps]


def order_of_numbers(classes: Sequence[str]) -> list[str]:
    """Returns a line on the order of classes that are numbers, where text has another."""
    if not all(map(str.isdecimal, classes)) or sorted(classes) == sorted(classes, key=int):
        return []
    how = "numbers"
    if classes == sorted(classes):
        how = "text, as torchvision does, where timm sorts them as numbers"
    return [f"Classes are sorted as {how}: {', '.join(classes[:3])}, ..."]
