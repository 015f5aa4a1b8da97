"""Images in folders, as torchvision's ImageFolder lists them, or in tar shards with an index.

Use it to list train/ and val/ once, in arrays that all processes share, and to read an image's
bytes; and to make the demo set, where there are no images.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import io
import itertools
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import PIL.Image
import PIL.ImageColor
from torchvision import datasets

from trainparts import errors

__all__ = ["Source", "open_source", "source_of_table"]


class Source(NamedTuple):
    """The images of train/ or val/: image i is `length[i]` bytes from `offset[i]` of the file
    `names[file[i]]`. Lists, whose reference counts change, would be copied into every worker."""

    folder: str
    classes: list[str]  # (C,)
    names: np.ndarray  # (F,) bytes: paths below the folder
    file: np.ndarray  # (N,)
    offset: np.ndarray  # (N,) bytes
    length: np.ndarray  # (N,) bytes; -1 = to the end of the file
    target: np.ndarray  # (N,) classes; or (N, C), 1 where an image has the class
    not_read: str = ""  # files that are there, but not in this list

    def path(self, index: int) -> str:
        """Returns the path of the file that holds an image: its own, or a shard."""
        return os.path.join(self.folder, os.fsdecode(self.names[self.file[index]]))

    def read(self, index: int) -> bytes:
        """Returns the bytes of an image, as they are in its file; raises OSError."""
        if self.length[index] < 0:
            with open(self.path(index), "rb", buffering=0) as file:
                return file.read()
        shard = open_shard(self.path(index))
        return os.pread(shard.fileno(), self.length[index], self.offset[index])

    def digest(self) -> str:
        """Returns "N images, HASH", a hash of classes, positions and some file sizes."""
        hashed = hashlib.sha256(repr(self.classes).encode())
        for array in self[2:-1]:
            hashed.update(array.tobytes())
        for index in range(0, len(self.length), len(self.length) // 100 + 1):
            hashed.update(b"%d " % os.path.getsize(self.path(index)))
        return f"{len(self.target)} images, {hashed.hexdigest()[:8]}"

    def gaps(self) -> list[str]:
        """Returns lines that say which files are not read, and which classes have no image; what
        cannot be printed of a name is escaped."""
        lines = [f"{self.folder}: files that are not read: {self.not_read}"] * bool(self.not_read)
        if self.target.ndim == 1:
            images = np.bincount(self.target, minlength=len(self.classes))
        else:
            images = self.target.sum(axis=0)
        if empty := [name for name, count in zip(self.classes, images, strict=True) if not count]:
            names = ", ".join(empty[:3]) + ", ..." * (len(empty) > 3)
            there = f"{len(images) - len(empty):,} of {len(images):,} classes have images"
            lines.append(f"{self.folder}: {there}; without: {names}")
        return [errors.printable(line) for line in lines]

    def in_classes(self, classes: list[str], whose: str) -> Source:
        """Returns the Source with targets that are positions in `classes`, by name. Raises BadInput
        if one of its classes is not in them; `whose` says of what they are."""
        if self.classes == classes:
            return self
        labels = {name: label for label, name in enumerate(classes)}
        if strange := [name for name in self.classes if name not in labels]:
            what = f"{len(strange):,} of {len(self.classes):,} classes are not in {whose}"
            name, known = first_three(strange[:1]), first_three(classes)
            raise errors.BadInput(f"{self.folder}: {what}, as {name}; known are {known}")
        positions = np.array([labels[name] for name in self.classes])
        if self.target.ndim == 1:
            target = positions[self.target]
        else:
            target = np.zeros((len(self.target), len(classes)), self.target.dtype)
            target[:, positions] = self.target
        return self._replace(classes=classes, target=target)


def is_in_part(path: str, folder: str) -> bool:
    """Returns whether a path is in train/ or val/ of DIR, `folder`, whose folders are classes."""
    with contextlib.suppress(ValueError):  # a NUL, of which another line is printed
        there = os.path.realpath(path)
        parts = (os.path.realpath(os.path.join(folder, part)) for part in ("train", "val"))
        return any(os.path.commonpath([there, part]) == part for part in parts)
    return False


# Each worker opens a shard once: on a network file system, opening takes longer than reading.
open_shard = functools.lru_cache(512)(lambda path: open(path, "rb", buffering=0))


def synthetic_source(images: int) -> Source:
    """Returns the Source of so many images that are in no file, for image_loading.repeat_images():
    without the names of classes."""
    nothing = np.empty(0)
    target = np.zeros(images, np.int8)
    return Source("synthetic images", [], nothing, nothing, nothing, nothing, target)


def open_sources(
    folder: Path,
    evaluate: bool = False,
    open_part: Callable[..., Source] | None = None,
    name_part: Callable[[Path], list[str]] | None = None,
) -> tuple[Source, Source]:
    """Returns (train, val), the Sources of DIR; val/ may lack some of train/'s classes. To
    evaluate, train/ is only read for the names of the classes, and its Source has no images; if
    there is no train/, val/ names the classes. `open_part` and `name_part` replace open_source()
    and name_classes(), and take the same arguments."""
    open_part, name_part = open_part or open_source, name_part or name_classes
    if not evaluate:
        train = open_part(folder / "train")
        val = open_part(folder / "val", allow_empty=True)
        return train, val.in_classes(train.classes, "train/")
    val = open_part(folder / "val", allow_empty=True)
    nothing = {name: getattr(val, name)[:0] for name in Source._fields[3:-1]}
    train = val._replace(**nothing, not_read="")
    if names := name_part(folder / "train"):
        train = train._replace(folder=str(folder / "train"), classes=names)
    return train, val


def open_source(folder: str | os.PathLike[str], *, allow_empty: bool = False) -> Source:
    """Returns the Source of a folder: of tar shards with an index, or as ImageFolder lists it.
    Raises BadInput if it is neither, or, unless `allow_empty`, if a class has no image."""
    folder = Path(folder)
    try:
        if "index.npz" in os.listdir(folder):
            return open_shards(folder)
        return list_images(folder, allow_empty)
    except Exception as error:  # a damaged index may raise anything
        raise no_part(folder, error) from None


def name_classes(folder: Path) -> list[str]:
    """Returns the names of the classes of a folder that open_source() opens, though they may have
    no images; none if there is no such folder."""
    try:
        if "index.npz" in os.listdir(folder):
            with open_index(folder) as index:
                return index["classes"].tolist()
        return class_folders(folder)[0]
    except Exception as error:  # a damaged index may raise anything
        if isinstance(error, FileNotFoundError) and not os.path.islink(folder):
            return []
        raise no_part(folder, error) from None


def no_part(folder: Path, error: Exception) -> errors.BadInput | errors.Fault:
    """Returns what to raise for an error of listing train/ or val/."""
    holds = (
        "; train/ and val/ hold <class>/* (tools/prepare_imagenet.py makes them from ImageNet in "
        "any form, tools/prepare_folder.py from a table of labels or from one folder of classes), "
        "or tars and index.npz (tools/make_shards.py --index)"
    )
    return errors.storage_error(folder, error, typed=True, advice=holds)


def list_images(folder: Path, allow_empty: bool = False) -> Source:
    """Returns the Source of <class>/*: the files, classes and order of torchvision's ImageFolder.
    Raises OSError if a folder cannot be read, where ImageFolder would take it for an empty one."""
    suffixes, not_read = datasets.folder.IMG_EXTENSIONS, collections.Counter()

    def is_read(name: str) -> bool:
        return name.lower().endswith(suffixes)

    def fail(error: OSError) -> NoReturn:
        raise error

    classes, files = class_folders(folder)
    if not classes:
        raise ValueError("Couldn't find any class folder")
    files = [name for name in files if name[0] != "."]
    not_read["images beside the classes"] = sum(map(is_read, files))
    names, target, empty = [], [], []
    for label, name in enumerate(classes):
        before = len(names)
        for path, _, files in sorted(os.walk(folder / name, onerror=fail, followlinks=True)):
            below = os.path.relpath(path, folder)
            for file in sorted(files):
                if is_read(file):
                    names.append(os.fsencode(os.path.join(below, file)))
                elif "/." not in f"/{below}/{file}":  # hidden files are of other programs
                    suffix = os.path.splitext(file)[1].lower()
                    not_read[f"*{suffix}" if suffix else "without a suffix"] += 1
        target += [label] * (len(names) - before)
        if before == len(names):
            empty.append(name)
    if not names or (empty and not allow_empty):
        wanted = ", *".join(suffixes)
        left_out = most_frequent(not_read)
        others = f"; files that are not read: {left_out}" if left_out else ""
        raise ValueError(f"no image (*{wanted}) in {len(empty)} classes, as {empty[0]}{others}")
    zeros = np.zeros(len(names), int)
    return Source(
        str(folder),
        classes,
        np.array(names),
        file=np.arange(len(names)),  # each image is a whole file
        offset=zeros,
        length=zeros - 1,
        target=np.array(target),
        not_read=most_frequent(not_read),
    )


def source_of_table(
    folder: str | os.PathLike[str],
    *,
    paths: Sequence[str],
    labels: Sequence[str] | Sequence[int] | np.ndarray,
) -> Source:
    """Returns the Source of images that a table lists: their paths below a folder, and their
    labels, whose names are the classes. Numbers are sorted as numbers, so labels from 0 without a
    gap are the targets; text is sorted as text, as ImageFolder sorts folders."""
    named = np.asarray([*labels])  # an array of objects may have numbers alone
    if not np.issubdtype(named.dtype, np.number):
        named = named.astype(str)
    classes, target = np.unique(named, return_inverse=True)
    zeros = np.zeros(len(target), int)
    return Source(
        str(folder),
        classes.astype(str).tolist(),
        np.array([os.fsencode(path) for path in paths]),
        file=np.arange(len(target)),  # each image is a whole file
        offset=zeros,
        length=zeros - 1,
        target=target,
    )


def class_folders(folder: Path) -> tuple[list[str], list[str]]:
    """Returns (names of the folders in a folder, sorted as text, as ImageFolder does; others)."""
    with os.scandir(folder) as entries:
        folders = {entry.name: entry.is_dir() for entry in entries}
    names = sorted(name for name, is_folder in folders.items() if is_folder)
    return names, [name for name, is_folder in folders.items() if not is_folder]


def most_frequent(kinds: collections.Counter[str]) -> str:
    """Returns the most frequent of {kind: count} as text."""
    several = [f"{count:,} {kind}" for kind, count in kinds.most_common(5) if count]
    if other := kinds.total() - sum(count for _, count in kinds.most_common(5)):
        several.append(f"{other:,} of other kinds")
    return ", ".join(several)


def first_three(names: Sequence[str]) -> str:
    """Returns the first names as text; what cannot be printed of them is escaped."""
    return ", ".join(ascii(name)[1:-1] for name in names[:3]) + ", ..." * (len(names) > 3)


def open_index(folder: Path) -> np.lib.npyio.NpzFile:
    """Returns the index that tools/make_shards.py has written."""
    return np.load(io.BytesIO((folder / "index.npz").read_bytes()))  # zipfile hides a disk's error


def open_shards(folder: Path) -> Source:
    """Returns the Source that tools/make_shards.py has written into index.npz."""
    with open_index(folder) as index:
        names, file, offset, length, target = (index[name] for name in Source._fields[2:-1])
        source = Source(str(folder), index["classes"].tolist(), names, file, offset, length, target)
        labels = {*source.target.tolist()}
        if not labels or not labels <= {*range(len(source.classes))}:
            raise ValueError("its images are of other classes")
        for name, size in zip(source.names, index["sizes"], strict=True):
            if os.path.getsize(folder / os.fsdecode(name)) != size:
                raise ValueError(f"{os.fsdecode(name)} has changed since")
    return source


def make_demo_set(folder: Path) -> None:
    """Writes ten classes of 128 + 32 JPEGs of 64 x 64 pixels: a square of one colour on noise."""
    rng = np.random.default_rng(0)
    # Several ranks on several nodes may write at once, each its own; one of them is renamed.
    unfinished = Path(f"{folder}.{platform.node()}.{os.getpid()}")
    try:
        for label, serial in itertools.product(range(10), range(160)):
            pixels = rng.integers(48, 208, (64, 64, 3), dtype=np.uint8)
            top, left, size = rng.integers((0, 0, 20), (36, 36, 28))
            hue = (36 * label + rng.integers(-9, 10)) % 360
            colour = PIL.ImageColor.getrgb(f"hsv({hue}, 80%, 90%)")
            pixels[top : top + size, left : left + size] = colour
            into = unfinished / ("train" if serial < 128 else "val") / f"class{label}"
            into.mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(pixels).save(into / f"{serial}.jpg", quality=90)
        unfinished.rename(folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if not folder.exists():
            what = "no DIR, and a demo set cannot be written"
            raise errors.storage_error(what, error, typed=True) from None
