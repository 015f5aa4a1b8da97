"""Classes by name: those of folders, and those of a model's outputs.

Use it to give each image the number that a model's outputs have for its class, or to say in a line
why that number is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainparts import errors
from trainparts.images import architectures, image_files

# ILSVRC2012's ids, one in a line, in the order in which meta.mat of its devkit and Kaggle's
# LOC_synset_mapping.txt have the classes: that of the ids as text.
IMAGENET = Path(__file__).with_name("imagenet_classes.txt").read_text().split()


def name_outputs(
    train: image_files.Source,
    val: image_files.Source,
    about: architectures.About,
    typed: int | None,
) -> tuple[image_files.Source, image_files.Source, int]:
    """Returns (train, val, number of outputs) for an evaluation, with outputs of the weights as
    targets, by order_classes() of the folders in DIR. `typed` is --num-classes, or None. Raises
    BadInput if it is not the number of outputs of the weights."""
    theirs = about.get("num_classes")  # 0 for a model that timm publishes without a classifier
    outputs = typed or theirs or len(train.classes) or 1000
    if theirs and outputs != theirs:
        raise errors.BadInput(
            f"{about['what']}: its number of outputs is {theirs:,}: omit --num-classes"
        )
    if not train.classes:  # synthetic images
        return train, val, outputs
    classes = order_classes(train.classes, outputs, about)
    whose = "train/" if classes == train.classes else about["what"]
    train, val = (each.in_classes(classes, whose) for each in (train, val))
    return train, val, outputs


def order_classes(found: list[str], outputs: int, about: architectures.About) -> list[str]:
    """Returns the names of a model's `outputs`, in their order. A file may say them, in `about`.
    Otherwise, 1,000 outputs of published weights are ImageNet's, by name_imagenet(). Outputs of
    other weights are the folders that were `found`, in ImageFolder's order, which nearly all
    weights have: of some of ImageNet's folders nobody knows whether they are the first outputs of a
    model trained on them. Raises BadInput if there are not as many folders as outputs."""
    if "classes" in about:
        return about["classes"]
    if outputs == 1000 and about["published"]:
        return name_imagenet(found, about["what"])
    if outputs != len(found):
        raise errors.BadInput(
            f"{about['what']}: its number of outputs is {outputs:,}, that of DIR's classes is "
            f"{len(found):,} ({image_files.first_three(found)}): give train/ a folder for each "
            "output, which may be empty"
        )
    return found


def name_imagenet(found: list[str], what: str) -> list[str]:
    """Returns the names of ImageNet's 1,000 classes, in the order of published weights, as folders
    are called. Folders called by WordNet's ids, which a word may follow, may be some of them.
    Folders called by numbers must be all, from 0 to 999: fewer are those of any data set. Raises
    BadInput, which says that `what` was to be evaluated."""
    numbers = [str(number) for number in range(1000)]
    if {*found} == {*numbers}:
        return numbers
    folders: dict[str, str] = {}
    for name in found:
        if name[:9] in folders or name[:9] not in IMAGENET:
            how = "is a second one" if name[:9] in folders else "is none"
            raise errors.BadInput(
                f"{what}: its outputs are ImageNet's 1,000 classes, and DIR's folder {name} {how}: "
                f"call each by its WordNet id, such as {IMAGENET[0]}, or call all by 0 to 999"
            )
        folders[name[:9]] = name
    return [folders.get(name, name) for name in IMAGENET]


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
    return [f"Classes are sorted as {how}: {image_files.first_three(classes)}"]
