"""Makes DIR, as the scripts read it, of images whose labels are in a table, or in folders' names.

    python tools/prepare_folder.py labels.csv DIR --file image_id --label diagnosis --val 0.1
    python tools/prepare_folder.py train.csv DIR --images FOLDER --val-from val.csv
    python tools/prepare_folder.py FOLDER DIR --val 0.1    # FOLDER/<class>/*
    python tools/prepare_folder.py FOLDER DIR              # FOLDER/Train/<class>/*, valid/<class>/*

A table is CSV with a header row (separated by commas, tabs, semicolons or |), JSON Lines, a JSON
list of such records, or COCO's JSON, which iNaturalist has. DIR gets links to the images; --copy
and --upright make copies.

Mistakes are printed first, of each kind the first five, and then nothing is made. A part is named
train.unfinished until it is whole: if this program is interrupted, or if images are added to
SOURCE, start it again, and it completes DIR.
"""

import argparse
import collections
import contextlib
import csv
import functools
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import sys
import unicodedata
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import NamedTuple

import PIL.Image
import PIL.ImageOps
from commandline import end, make_parser
from torchvision.datasets.folder import IMG_EXTENSIONS
from tqdm import tqdm

from trainparts import errors, option_types
from trainparts.images import decoding, image_files

# The parts of a DIR, and what others call them. No script trains on test/, or validates on it.
PARTS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
SEPARATORS = ",\t;|"
JSON = ".json", ".jsonl", ".ndjson"
SEVERAL = "several tags per image are another task (docs/data.md)"
SHOWN = 5  # mistakes of each kind


class Labelled(NamedTuple):
    """An image and what is known of it."""

    path: str
    key: str  # its path below the folder of images: the same wherever that folder lies
    below: str  # its path below the folder of its class, in DIR
    label: str
    part: str  # one of PARTS, or "": train, or what --val decides
    group: str  # images of a group are in one part; "" = it is one by itself
    where: str  # that says so


class Mistakes:
    """Collects the user's mistakes, to print all of them at once."""

    def __init__(self):
        self.lines = collections.defaultdict(list)

    def add(self, kind, line):
        """Adds a line; of each kind the first few are printed."""
        self.lines[kind].append(line)

    def stop(self, prog):
        """Prints a line for each mistake, and raises BadInput if there is any."""
        for kind, lines in self.lines.items():
            for line in lines[:SHOWN]:
                say(f"{prog}: {line}", sys.stderr)
            if len(lines) > SHOWN:
                say(f"{prog}: {len(lines) - SHOWN:,} more: {kind}", sys.stderr)
        if count := sum(map(len, self.lines.values())):
            what = "1 mistake" if count == 1 else f"{count:,} mistakes"
            raise errors.BadInput(f"{what}, as above: nothing was made")


class Wrong(Exception):
    """A mistake in a row: its kind, and what it is."""


def say(line, file=None):
    """Prints a line; what cannot be printed of the names in it is escaped."""
    errors.print_line(errors.printable(line), file)


def part_of(name):
    """Returns which of PARTS a name means, "" if none."""
    return next((part for part, names in PARTS.items() if name.strip().lower() in names), "")


# ------------------------------------------------------------------------------------------- files


def is_image(path):
    """Returns whether the scripts read a file, by its name."""
    return str(path).lower().endswith(IMG_EXTENSIONS)


def is_image_inside(path):
    """Returns whether Pillow takes a file with another suffix, such as .jfif, for an image."""
    with contextlib.suppress(Exception), PIL.Image.open(path, formats=decoding.FORMATS):
        return True
    return False


def is_visible(name):
    """Returns whether a name is neither hidden nor what macOS adds to an archive."""
    return name[0] != "." and name != "__MACOSX"


def is_same(path, other):
    """Returns whether two paths are of one file or folder that exists."""
    return other.exists() and path.samefile(other)


def files_below(folder, without=None):
    """Yields the paths of all files below a folder, except hidden ones and those in `without`, in
    order. Links are followed. Raises OSError."""

    def raise_it(error):
        raise error

    skipped = without and os.path.abspath(without)
    for path, folders, files in os.walk(folder, onerror=raise_it, followlinks=True):
        there = (name for name in folders if os.path.abspath(os.path.join(path, name)) != skipped)
        folders[:] = sorted(filter(is_visible, there))
        yield from (os.path.join(path, name) for name in sorted(filter(is_visible, files)))


# ------------------------------------------------------------------------------------------ tables


def read_table(path, wanted):
    """Returns [(number of the row, {column: value})], of which a value is text, or what else JSON
    has. Raises BadInput if it is no table, or if it lacks a column of {option: column}."""
    try:
        text = path.read_text("utf-8-sig")
        if pointer := errors.lfs_pointer(text[:100].encode()):
            raise ValueError(f"it {pointer}")
        if "\0" in text:
            raise UnicodeError
        rows = (read_json if path.suffix.lower() in JSON else read_csv)(text)
    except UnicodeError:
        raise errors.BadInput(f"{path} is no text in UTF-8: save the table as CSV, UTF-8") from None
    except ValueError as error:
        raise errors.BadInput(f"{path}: {errors.first_line(error)}") from None
    for option, column in wanted.items():
        if column not in rows[0][1]:
            names = ", ".join(rows[0][1])[:300]
            what = f"{path} has no column {column}; {option} takes one that its first row names"
            what += f": {names}"
            raise errors.BadInput(what)
    return rows


def read_csv(text):
    """Returns the rows of a table with a header row."""
    header = text.lstrip().split("\n", 1)[0]
    # strict: an open quote would take the rest of the file for one value.
    form = {"delimiter": max(SEPARATORS, key=header.count), "strict": True}
    reader = csv.reader(io.StringIO(text, newline=""), **form)
    try:
        lines = [(number, [*map(str.strip, line)]) for number, line in enumerate(reader, 1)]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None
    lines = [(number, line) for number, line in lines if any(line)]
    columns = lines[0][1] if lines else []
    counts = collections.Counter(filter(None, columns))
    if double := next((name for name, count in counts.items() if count > 1), None):
        raise ValueError(f"two columns are called {double}")
    rows = []
    for number, line in lines[1:]:
        if len(line) != len(columns):
            raise ValueError(f"row {number} has {len(line)} values, and the header {len(columns)}")
        pairs = zip(columns, line, strict=True)
        rows.append((number, {name: value for name, value in pairs if name}))  # pandas' index
    if not rows:
        raise ValueError(f"it has no rows below a header: {header[:100]!r}")
    return rows


def read_json(text):
    """Returns the rows of JSON: a record a line, a list of records, or COCO's, of which an
    annotation is a row, with `file`, `label` and all that its image and its category have."""
    content = parse_json(text)
    if isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys():
        content = [*join_coco(content)]
    elif isinstance(content, dict):
        content = [content]
    if not (isinstance(content, list) and content and all(isinstance(x, dict) for x in content)):
        need = "a list of them, one a line, or COCO's images, annotations and categories"
        raise ValueError(f"it holds no records; needed are {need}")
    rows, columns = [], dict.fromkeys(name for record in content for name in record)
    for number, record in enumerate(content, 1):
        values = {name: record.get(name) for name in columns}
        for name, value in values.items():
            if not isinstance(value, (list, dict)):
                values[name] = "" if value is None else str(value).strip()
                values[name].encode()  # \ud800 is no text
        rows.append((number, values))
    return rows


def parse_json(text):
    """Returns what JSON or JSON Lines hold."""
    try:
        return json.loads(text)
    except ValueError as error:
        if not re.match(r"\s*\{.*\}\s*\n", text):
            raise ValueError(f"it is no JSON: {error}") from None
    records = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            records += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON: {error}") from None
    return records


def join_coco(content):
    """Yields the record of each annotation of COCO's JSON."""
    try:
        images = {each["id"]: each for each in content["images"]}
        categories = {each["id"]: each for each in content["categories"]}
        for each in content["annotations"]:
            image, category = images[each["image_id"]], categories[each["category_id"]]
            yield {**image, **category, "file": image["file_name"], "label": category["name"]}
    except (KeyError, TypeError) as error:
        lacks = f": it lacks {error}" if isinstance(error, KeyError) else ""
        raise ValueError(f"it is not COCO's JSON{lacks}") from None


CURE = "--images takes the folder below which the table's paths are, and may be given again"


class Folders:
    """The files below the folders of images: each is found by its path, with or without suffix."""

    def __init__(self, folders, without):
        self.folders = folders
        self.paths, self.stems = {}, collections.defaultdict(list)
        for folder in folders:
            for path in files_below(folder, without):
                key = os.path.relpath(path, folder)
                self.paths[folder, key] = path
                if is_image(path):
                    self.stems[folder, os.path.splitext(key)[0]].append((key, path))

    def find(self, name):
        """Returns [(key, path)] of the files that a table's value names."""
        found = {}
        for folder, path in itertools.product(self.folders, {name, name.replace("\\", "/")}):
            # An absolute path is found if it lies in the folder.
            key = os.path.relpath(os.path.join(folder, path), folder)
            there = self.paths.get((folder, key))
            pairs = [(key, there)] if there else self.stems.get((folder, key), [])
            found |= {at: (key, at) for key, at in pairs}
        return [*found.values()]

    @functools.cached_property
    def by_stem(self):
        """{name of a file without its suffix: the first path that has it}."""
        return {Path(path).stem: path for path in reversed(self.paths.values())}

    def why_missing(self, name):
        """Returns why find() finds nothing."""
        what = f"there is no {name} in {' or '.join(map(str, self.folders))}"
        parts = Path(name.replace("\\", "/")).parts[1:]  # one was not found as a whole
        tails = ("/".join(parts[first:]) for first in range(len(parts)))
        found = (self.paths.get((folder, tail)) for tail in tails for folder in self.folders)
        if other := next(filter(None, found), None):
            return f"{what}, but {other}: {CURE}"
        if not (other := self.by_stem.get(Path(name).stem)):
            return what
        if Path(other).suffix != Path(name).suffix != "":
            return f"{what}, but {other}, with another suffix"
        return f"{what}, but {other}: {CURE}"


def from_table(path, folders, args, mistakes, part=""):
    """Returns the images of a table; adds its mistakes. `part`: all are of this one."""
    wanted = {
        "--file": args.file,
        "--label": None if args.one_hot else args.label,
        "--split": None if part else args.split,
        "--group-column": args.group_column,
    }
    wanted = {option: column for option, column in wanted.items() if column}
    images, rows, missing = [], read_table(path, wanted), 0
    for number, row in tqdm(rows, path.name, disable=None, leave=False):
        where = f"{path.name}: row {number}"
        try:
            image = read_row(row, where, folders, wanted, part)
        except Wrong as wrong:
            kind, what = wrong.args
            if kind == MISSING and args.skip_missing:
                missing += 1
            else:
                mistakes.add(kind, f"{where}: {what}")
        else:
            images.append(image)
    if missing:
        what = "rows have no label, or name no file, and are left out"
        say(f"{path}: {missing:,} of {len(rows):,} {what}")
        if missing == len(rows):
            mistakes.add("no row is left", f"{path} names no file that is there, with a label")
    return images


MISSING = "no file or label (--skip-missing leaves such rows out)"


def read_row(row, where, folders, wanted, part):
    """Returns the image of a row; raises Wrong."""
    for column in wanted.values():
        if not isinstance(row[column], str):
            raise Wrong("no text", f"{column} is {row[column]}, not one text; {SEVERAL}")
    name = row[wanted["--file"]]
    if not name:
        raise Wrong(MISSING, "it names no file")
    if not (found := folders.find(name)):
        raise Wrong(MISSING, folders.why_missing(name))
    if len(found) > 1:
        raise Wrong("several files", f"{name} may be any of {', '.join(path for _, path in found)}")
    key, path = found[0]
    if not is_image(path) and not is_image_inside(path):
        raise Wrong("no image", f"{path} is no image that the scripts read")
    label = row[wanted["--label"]] if "--label" in wanted else one_hot(row, wanted.values())
    if not label:
        raise Wrong(MISSING, "the label is empty")
    if column := wanted.get("--split"):
        if not (part := part_of(row[column])):
            known = ", ".join(name for names in PARTS.values() for name in names)
            raise Wrong("no part", f"{column} is {row[column] or 'empty'}, none of {known}")
    group = ""
    if column := wanted.get("--group-column"):
        if not (group := row[column]):
            raise Wrong("no group", f"column {column} is empty")
    return Labelled(path, key, key, label, part, group, where)


def one_hot(row, others):
    """Returns the one column that is 1, where all are 0 but some others."""
    tags = [column for column in row if column not in others]
    if odd := [tag for tag in tags if not re.fullmatch(r"[01](\.0*)?", str(row[tag]))]:
        raise Wrong("not 0 or 1", f"{odd[0]} is {row[odd[0]] or 'empty'}, not 0 or 1")
    if len(ones := [tag for tag in tags if row[tag][0] == "1"]) != 1:
        raise Wrong("not one class", f"{len(ones)} columns are 1 ({', '.join(ones)}); {SEVERAL}")
    return ones[0]


def count_unnamed(folders, images):
    """Prints how many images no row names."""
    named = {os.path.realpath(image.path) for image in images}
    every = {path for each in folders for path in each.paths.values() if is_image(path)}
    if unnamed := sorted(path for path in every if os.path.realpath(path) not in named):
        first = ", ".join(unnamed[:3]) + ", ..." * (len(unnamed) > 3)
        say(f"images that no row names: {len(unnamed):,} ({first})")


# ----------------------------------------------------------------------------------------- folders


def from_folder(folder, args, mistakes):
    """Returns the images of <class>/*, or of Train/<class>/*, valid/<class>/* and so on."""
    names = class_folders(folder, args.dir)
    parts = {name: part for name in names if (part := part_of(name))}
    found = {*parts.values()}
    if not parts or (len(found) == 1 and len(parts) < len(names)):  # a class is called Train
        for name in parts:
            other = next(each for each in names if each not in parts)
            say(f"{folder / name} is read as a class, beside {folder / other}")
        return from_classes(folder, args, mistakes)
    if len(found) < len(parts):
        raise errors.BadInput(f"{folder} has {' and '.join(parts)}: remove or rename one of them")
    if odd := [name for name in names if name not in parts]:
        say(f"{folder}: folders that are not read: {', '.join(odd)}")
    images = []
    for name, part in parts.items():
        if not (args.val_from and is_same(folder / name, args.val_from)):
            images += from_classes(folder / name, args, mistakes, part)
    return images


def class_folders(folder, without):
    """Returns the names of the folders in a folder, except hidden ones and DIR."""
    names = filter(is_visible, image_files.class_folders(folder)[0])
    return [name for name in names if not is_same(folder / name, without)]


def from_classes(folder, args, mistakes, part=""):
    """Returns the images of <class>/*."""
    names = class_folders(folder, args.dir)
    if part == "test" and not names:
        say(f"{folder} has no folders of classes, and is left out")
        return []
    images, not_read = [], collections.Counter()
    beside = filter(is_visible, image_files.class_folders(folder)[1])
    not_read["images beside the classes"] = sum(map(is_image, beside))
    for name in tqdm(names, folder.name, unit=" classes", disable=None, leave=False):
        for path in files_below(folder / name, args.dir):
            if is_image(path) or is_image_inside(path):
                key, below = (os.path.relpath(path, start) for start in (folder, folder / name))
                images.append(Labelled(path, key, below, name, part, "", path))
            else:
                suffix = Path(path).suffix.lower()
                not_read[f"*{suffix}" if suffix else "without a suffix"] += 1
    if left_out := image_files.most_frequent(not_read):
        say(f"{folder}: files that are not read: {left_out}")
    labels = {image.label for image in images}
    if not images:
        tables = sorted(path for at in (folder, folder.parent) for path in at.glob("*.[ct]sv"))
        give = f"give it: {tables[0]}" if tables else "give it in place of the folder"
        what = f"{folder} has no images in folders of classes; if a table has the labels, {give}"
        mistakes.add("no images", what)
    elif len(labels) == 1 and part in ("", "train"):
        below = folder / min(labels)
        what = f"{folder} has one class, {below.name}; if that holds the classes, give {below}"
        mistakes.add("one class", what)
    elif all("/" in image.below for image in images):
        say(f"{folder}: all images lie deeper than these classes: {', '.join(sorted(labels)[:3])}")
    return images


# ---------------------------------------------------------------------------------------- the plan


def make_plan(args, mistakes):
    """Returns plan_files() of SOURCE; adds all mistakes."""
    if args.source.is_dir() and is_same(args.source, args.dir):
        raise errors.BadInput(f"{args.dir} is SOURCE itself: give another DIR")
    given = {"": args.source} | ({"val": args.val_from} if args.val_from else {})
    if missing := next((path for path in given.values() if not path.exists()), None):
        raise errors.BadInput(f"there is no {missing}")
    images, folders = [], {}
    for part, path in given.items():
        if part and any(image.part == part for image in images):
            raise errors.BadInput(f"{args.source} has a val/, and --val-from is another")
        if path.is_dir():
            read = functools.partial(from_classes, part=part) if part else from_folder
            images += read(path, args, mistakes)
        else:
            roots = tuple(args.images or [path.parent])
            folders[roots] = folders.get(roots) or Folders(roots, args.dir)
            images += from_table(path, folders[roots], args, mistakes, part)
    count_unnamed(folders.values(), images)
    images = divide(without_doubles(images, mistakes), args, mistakes)
    classes = name_classes(images, mistakes)
    images = check_parts(images, args, mistakes)
    return plan_files(images, classes, args.balance, mistakes)


def without_doubles(images, mistakes):
    """Returns the images once each; two that contradict each other are mistakes."""
    found, again = {}, []
    for image in images:
        try:
            first = found.setdefault(os.path.realpath(image.path, strict=True), image)
        except OSError as error:
            mistakes.add("a link to nothing", f"{image.path}: {error.strerror}")
            continue
        if first.label != image.label:
            what = f"{image.path} is {image.label} there, and {first.label} in {first.where}"
            mistakes.add("two labels", f"{image.where}: {what}; {SEVERAL}")
        elif first.part != image.part:
            what = f"{image.path} is in {image.part or 'train'} there"
            what += f", and in {first.part or 'train'} in {first.where}"
            mistakes.add("two parts", f"{image.where}: {what}")
        elif first is not image:
            again.append(image.where)
    if again:
        first = ", ".join(again[:3]) + ", ..." * (len(again) > 3)
        say(
            f"rows or links that name an image again, with the same label: {len(again):,} ({first})"
        )
    return [*found.values()]


def share_of(name):
    """Returns a number from 0 to 1 that is drawn from a name: the first 8 bytes of its SHA-256."""
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def divide(images, args, mistakes):
    """Returns the images, each with its part. A hash of its path or its group decides whether --val
    takes a training image, whichever others there are."""
    if args.val and any(image.part == "val" for image in images):
        raise errors.BadInput(f"{args.source} says which images are val/: --val is not needed")
    divided, groups = [], {}
    for image in images:
        part, group = image.part or "train", image.group
        if args.group:
            found = args.group.search(image.key)
            group = found and found[min(1, args.group.groups)]
            if not group:
                mistakes.add("no group", f"{image.where}: --group does not match {image.key}")
                continue
        if args.val and part == "train" and share_of(group or image.key) < args.val:
            part = "val"
        image = image._replace(part=part, group=group)
        first = groups.setdefault(group, image) if group else image
        if first.part != image.part:
            what = f"group {group} is in {image.part} there, and in {first.part} in {first.where}"
            mistakes.add("a group in two parts", f"{image.where}: {what}")
        divided.append(image)
    return keep_in_train(divided) if args.val else divided


def keep_in_train(images):
    """Returns the images, those of a class that --val took as a whole in train/, unless that would
    divide a group: a class of one image is no mistake."""
    trained = {image.label for image in images if image.part == "train"}
    kept = {image.label for image in images if image.part == "val" and not image.group} - trained
    if kept:
        say(f"classes that stay in train/, since --val would take all of their images: {len(kept)}")
    return [image._replace(part="train") if image.label in kept else image for image in images]


def name_classes(images, mistakes):
    """Returns {label: name of its folder}. A label that is a path gets _ for each /; labels that
    would meet in one folder are mistakes."""
    rows, classes, labels, alike = {}, {}, {}, {}
    count = collections.Counter(image.label for image in images)
    for image in images:
        rows.setdefault(image.label, image.where)
    for label, where in rows.items():
        name = label.replace("/", "_")
        if not name or name[0] == "." or "\0" in name or len(os.fsencode(name)) > 255:
            what = (
                f"{label!r} cannot be the name of a class (images that have it: {count[label]:,})"
            )
            mistakes.add("no class", f"{where}: {what}")
        elif other := labels.get(name):
            what = f"{label} and {other} ({rows[other]}) would both be the class {name}"
            mistakes.add("two labels of one name", f"{where}: {what}")
        classes[label], labels[name] = name, label
        plain = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        if other := alike.get(plain):
            say(f"the classes {other!r} and {name!r} look alike: are they one?")
        alike.setdefault(plain, name)
    if odd := [label for label in classes if "|" in label]:
        say(f"classes such as {odd[0]!r} ({len(odd):,}) may be several tags; {SEVERAL}")
    return classes


def check_parts(images, args, mistakes):
    """Returns the images without those of test/ whose classes are not trained; adds what the
    scripts would refuse: a class of val/ without training images, no val/."""
    labels = {part: {image.label for image in images if image.part == part} for part in PARTS}
    if images and not labels["val"]:
        cure = "--val 0.1 takes a tenth of the images, --val-from another table or folder"
        if args.val:
            cure = f"none of the {len(images):,} images was drawn, so give a larger --val"
        elif labels["test"] and args.source.is_dir():
            cure += f"; {args.source} has a test/, which --val-from may take"
        mistakes.add("no val", f"no image is of val/: {cure}")
    elif images and not labels["train"]:
        mistakes.add("no train", "no image is of train/")
    else:
        for label in sorted(labels["val"] - labels["train"]):
            what = f"class {label} has images in val/, and none in train/"
            mistakes.add("a class without training images", what)
        if len({*labels["train"], *labels["val"]}) == 1 and not args.source.is_dir():
            mistakes.add("one class", f"all images are of one class, {min(labels['train'])}")
    if strange := labels["test"] - labels["train"]:
        first = ", ".join(sorted(strange)[:3]) + ", ..." * (len(strange) > 3)
        say(f"images of test/ whose classes are not in train/ are left out: {first}")
    return [image for image in images if image.part != "test" or image.label not in strange]


def plan_files(images, classes, balance, mistakes):
    """Returns {path below DIR: the image}. Under --balance all classes of a part get as many files
    as the largest has."""
    several = collections.defaultdict(list)
    for image in sorted(images, key=lambda image: image.key):
        several[image.part, classes[image.label]].append(image)
    most = collections.Counter()
    for (part, _), some in several.items():
        most[part] = max(most[part], len(some))
    plan = {}
    for (part, name), some in several.items():
        for number in range(most[part] if part in balance else len(some)):
            image, times = some[number % len(some)], 1 + number // len(some)
            below, suffix = os.path.splitext(image.below)
            suffix += "" if is_image(image.below) else ".jpg"
            again = f".{times}" if times > 1 else ""
            path = os.path.join(part, name, f"{below}{again}{suffix}")
            while again and path in plan:  # an image is called so
                again = f"_{again}"
                path = os.path.join(part, name, f"{below}{again}{suffix}")
            if path in plan:
                what = f"{image.path} and {plan[path].path} would both be {path}: rename one"
                mistakes.add("two images of one name", f"{image.where}: {what}")
            plan[path] = image
    return plan


def print_plan(plan):
    """Prints how many images, and files of them, each class has in each part."""
    files, images = collections.Counter(), collections.defaultdict(set)
    for path, image in plan.items():
        part, name, _ = path.split("/", 2)
        for each in name, None:  # None: all classes
            files[part, each] += 1
            images[part, each].add(image.path)
    names = [*sorted({name for _, name in files if name}), None]
    columns = {"class": [name or "all" for name in names]}
    for part in PARTS:
        if files[part, None]:
            columns[part] = [f"{len(images[part, name]):,}" for name in names]
        if files[part, None] > len(images[part, None]):
            columns[f"files in {part}"] = [f"{files[part, name]:,}" for name in names]
    widths = [max(map(len, (head, *cells))) for head, cells in columns.items()]
    for name, *cells in zip(*([head, *cells] for head, cells in columns.items()), strict=True):
        numbers = (f"{each:>{width}}" for each, width in zip(cells, widths[1:], strict=True))
        say("  ".join([f"{name:{widths[0]}}", *numbers]))
    if without := [name for name in names if not files["val", name]]:
        say(f"classes without images in val/: {len(without):,}")


# ------------------------------------------------------------------------------------------ making


class Job(NamedTuple):
    """A file to make in train/, val/ or test/ of DIR."""

    below: str  # its path there
    source: str
    kind: str  # "link", "copy", "turned copy"

    def is_made(self, folder):
        """Returns whether it is in a folder."""
        path = folder / self.below
        if not path.exists():
            return False
        if path.is_symlink() or self.kind == "link":
            return path.is_symlink() and self.kind == "link" and path.samefile(self.source)
        before, made = os.stat(self.source), path.stat()
        if self.kind == "copy":
            return made.st_size == before.st_size
        return made.st_mtime >= before.st_mtime and is_upright(path)

    def make(self, folder):
        """Makes it in a folder: whole, or not at all."""
        path = folder / self.below
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{share_of(path.name)}.tmp")  # a name may have 255 bytes
        unfinished.unlink(missing_ok=True)
        if self.kind == "link":  # relative, so that a folder with both in it can be moved
            start = os.path.realpath(path.parent)
            os.symlink(os.path.relpath(os.path.realpath(self.source), start), unfinished)
        elif self.kind == "copy" or not turn_upright(self.source, unfinished):
            shutil.copyfile(self.source, unfinished)
        os.replace(unfinished, path)


def is_upright(path):
    """Returns whether an image is stored as viewers show it."""
    with open(path, "rb") as file:
        return decoding.orientation(file) == 1


def turn_upright(path, out):
    """Writes an image upright, in its own format, without its EXIF data; returns whether it could
    be decoded. Raises OSError if it cannot be written."""
    try:
        with decoding.hushed(), PIL.Image.open(path, formats=decoding.FORMATS) as image:
            form = "JPEG" if image.format == "MPO" else image.format  # a phone's, of two images
            profile = image.info.get("icc_profile")
            PIL.ImageOps.exif_transpose(image).save(out, form, quality=95, icc_profile=profile)
            return True
    except Exception as error:  # Pillow's decoders raise errors of any kind
        if getattr(error, "errno", None):
            raise
        say(f"{path} stays as it is: it cannot be turned: {errors.first_line(error)}")
        return False


def plan_jobs(plan, args):
    """Returns {part: Jobs}."""
    turned = set()
    if args.upright:
        paths = sorted({image.path for image in plan.values()})
        with ThreadPool() as pool:
            upright = pool.imap(is_upright, paths, 16)
            upright = tqdm(upright, "orientation", len(paths), disable=None, leave=False)
            turned = {path for path, each in zip(paths, upright, strict=True) if not each}
    jobs, kind = {part: [] for part in PARTS}, "copy" if args.copy else "link"
    for path, image in plan.items():
        part, below = path.split("/", 1)
        how = "turned copy" if image.path in turned else kind
        jobs[part].append(Job(below, image.path, how))
    return {part: every for part, every in jobs.items() if every}


def parts_of(folder, part):
    """Returns (train/, train.unfinished/, the one that is there) of DIR."""
    whole, unfinished = folder / part, folder / f"{part}.unfinished"
    return whole, unfinished, whole if whole.exists() else unfinished


def check_dir(folder, jobs, mistakes):
    """Adds what DIR has beside these jobs: an image of an earlier plan may be in two parts now, and
    a file of others would be lost."""
    cure = "give another DIR, or remove it first, if this program made it"
    if folder.exists() and not folder.is_dir():
        mistakes.add("DIR", f"{folder} is no folder: give another DIR")
    sources = {os.path.dirname(job.source) for every in jobs.values() for job in every}
    sources = {os.path.join(os.path.realpath(source), "") for source in sources}
    for part in PARTS:
        whole, unfinished, there = parts_of(folder, part)
        inside = tuple(os.path.join(os.path.realpath(each), "") for each in (whole, unfinished))
        if any(source.startswith(inside) for source in sources):
            what = f"images of SOURCE lie in {there}, which this program would make"
            mistakes.add("DIR", f"{what}: give another DIR")
        elif whole.is_symlink() or (whole.exists() and unfinished.exists()):
            what = "is a link" if whole.is_symlink() else f"and {unfinished.name} are both there"
            mistakes.add("DIR", f"{whole} {what}: {cure}")
        elif there.exists():
            check_part(there, jobs.get(part, []), mistakes, cure)


def check_part(there, jobs, mistakes, cure):
    """Adds what a part that is there has beside these jobs."""
    classes = {job.below.split("/", 1)[0] for job in jobs}
    for name in sorted(os.listdir(there)):
        if name not in classes and is_visible(name):
            what = f"{there / name} is none of the classes that these options make"
            mistakes.add("DIR has other classes", f"{what}: {cure}")
    known = {str(there / job.below): job for job in jobs}
    folders = [there / name for name in sorted(classes) if (there / name).exists()]
    for path in (path for folder in folders for path in files_below(folder)):
        if not (job := known.get(path)):
            what = f"{path} is none of the files that these options make"
            mistakes.add("DIR has other files", f"{what}: {cure}")
        elif job.kind != "turned copy" and not os.path.islink(path) and not job.is_made(there):
            what = f"{path} is no {job.kind} of {job.source}"
            mistakes.add("DIR has other files", f"{what}: {cure}")


def make_dir(folder, jobs):
    """Makes DIR; prints what it has then."""
    for part, every in jobs.items():
        whole, unfinished, there = parts_of(folder, part)
        if todo := [job for job in every if not job.is_made(there)]:
            if whole.exists():
                os.rename(whole, unfinished)
            unfinished.mkdir(parents=True, exist_ok=True)
            with ThreadPool() as pool:
                made = pool.imap_unordered(functools.partial(Job.make, folder=unfinished), todo, 16)
                collections.deque(tqdm(made, part, len(todo), disable=None, leave=False), 0)
            os.sync()  # all images are on the disk before the folder has its name
        if unfinished.exists():
            os.rename(unfinished, whole)
    for part, every in jobs.items():
        source = image_files.open_source(folder / part, allow_empty=part != "train")
        turned = sum(job.kind == "turned copy" for job in every)
        upright = f", {turned:,} of them turned upright" * bool(turned)
        count = f"{len(source.target):,} images of {len(source.classes):,} classes"
        say(f"{source.folder}: {count}{upright}")


# ----------------------------------------------------------------------------------------- options


def regex(text):
    """Returns a regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text} is no regular expression: {error}") from None


def read_options():
    """Returns (the parser, the options)."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("source", metavar="SOURCE", type=Path, help="a table of labels, or a folder")
    add("dir", metavar="DIR", type=Path, help="where train/ and val/ are made")
    add(
        "--images",
        metavar="FOLDER",
        type=Path,
        action="append",
        help="the folder below which the table's paths are; give it again for a second one "
        "(default: the folder of the table)",
    )
    add(
        "--file",
        metavar="COLUMN",
        default="file",
        help="the column with the paths of the images, with or without a suffix (default: file)",
    )
    add(
        "--label",
        metavar="COLUMN",
        default="label",
        help="the column with the classes (default: label)",
    )
    add(
        "--one-hot",
        action="store_true",
        help="every other column is a class, and has 1 in the rows of its images, otherwise 0",
    )
    add(
        "--split",
        metavar="COLUMN",
        help="the column that says train, val or test of each row (or training, valid, ...)",
    )
    add(
        "--skip-missing",
        action="store_true",
        help="leave out rows whose file or label is missing (default: it is a mistake)",
    )
    val = parser.add_mutually_exclusive_group().add_argument
    val(
        "--val",
        metavar="SHARE",
        type=option_types.number_between(float, 0.0001, 0.9),
        help="take this share of the training images for val/, such as 0.1; a hash of its path "
        "decides for each image, so that it stays in its part when others are added",
    )
    val(
        "--val-from",
        metavar="SOURCE2",
        type=Path,
        help="make val/ of another table, or of another folder of classes",
    )
    group = parser.add_mutually_exclusive_group().add_argument
    group(
        "--group",
        metavar="REGEX",
        type=regex,
        help="images in whose paths this matches the same text are in one part, such as "
        "'patient[0-9]+'; with (...), the text in the first one counts",
    )
    group(
        "--group-column",
        metavar="COLUMN",
        help="images of rows that have the same value here are in one part",
    )
    add(
        "--balance",
        action="append",
        default=[],
        choices=["train", "val"],
        help="link images of rare classes several times, so that each class has as many files in "
        "this part as the largest; give it again for the other part",
    )
    add("--copy", action="store_true", help="copy images (default: link to them)")
    add(
        "--upright",
        action="store_true",
        help="turn images as their EXIF orientation says, in copies of quality 95 (default: the "
        "scripts read images as they are stored, as torchvision does)",
    )
    add("--dry-run", action="store_true", help="print what would be made")
    args = parser.parse_args()
    if all(path.is_dir() for path in (args.source, args.val_from) if path):
        for name in "images file label one_hot split skip_missing group_column".split():
            if getattr(args, name) != parser.get_default(name):
                parser.error(f"--{name.replace('_', '-')} is for tables, and SOURCE is a folder")
    if args.one_hot and args.label != parser.get_default("label"):
        parser.error("--label names one column, and --one-hot takes all: give one of them")
    return parser, args


def main():
    """Plans, and makes DIR."""
    parser, args = read_options()
    try:
        mistakes = Mistakes()
        plan = make_plan(args, mistakes)
        jobs = plan_jobs(plan, args)
        check_dir(args.dir, jobs, mistakes)
        mistakes.stop(parser.prog)
        print_plan(plan)
        if not args.dry_run:
            make_dir(args.dir, jobs)
    except (errors.BadInput, errors.Fault, OSError) as error:
        end(parser, error)
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: interrupted: start it again, and it goes on\n")


if __name__ == "__main__":
    main()
