"""Prepares ImageNet, in whichever form one has it, as a folder that the scripts read.

    python tools/prepare_imagenet.py SOURCE DIR               # makes DIR/train/ and DIR/val/
    python tools/prepare_imagenet.py SOURCE DIR --only val    # this one alone

SOURCE is one of four:

- image-net.org's ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and the devkit, which names the
  classes, ILSVRC2012_devkit_t12.tar.gz: unpacked to <part>/<class>/*.JPEG. With --only val, a
  DIR/val/ that is flat is sorted, without its tar file.
- Kaggle's imagenet-object-localization-challenge, unzipped, or ILSVRC/Data/CLS-LOC in it: train/
  is taken as it is, val/ is sorted by LOC_val_solution.csv. Nothing is copied: DIR has links to
  SOURCE; if DIR is CLS-LOC itself, the images of val/ are moved into its classes.
- Hugging Face's train-*.parquet and validation-*.parquet: copied, byte for byte, into shards
  (docs/data.md) of as many images; needs pyarrow.
- timm's imagenet1k-train-*.tar and imagenet1k-validation-*.tar, or WebDataset's tar files of other
  names with train and val in them: DIR has links to them, and their index.

A part is named train.unfinished or val.unfinished until it is whole (of links to tar files,
index.npz comes last): if this program is interrupted, start it again, and it goes on. In the end,
train/ has 1,281,167 images, val/ 50,000; where it does not, a line says so.
"""

import argparse
import concurrent.futures
import csv
import functools
import gzip
import io
import os
import re
import shutil
import tarfile
import zlib
from pathlib import Path
from types import SimpleNamespace

from commandline import end, make_parser
from tarfiles import NAMES, members, open_tar, refuse_others
from tqdm import tqdm

from trainparts import errors

TRAIN, VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT, DATA = "ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_devkit_t12/data"
SOLUTION = "LOC_val_solution.csv"
CLASSES, IMAGES = 1000, {"train": 1_281_167, "val": 50_000}  # (Russakovsky et al. 2015, table 2)


class BadInput(Exception):
    """The user's mistake, in one line."""


def read_devkit(path):
    """Returns (names of the classes, as n01440764; {validation image: class})."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise BadInput("the devkit is a MATLAB file: pip install scipy") from None
    try:
        whole = gzip.decompress(path.read_bytes())  # checks its sum, which tarfile would not read
        with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
            meta = io.BytesIO(tar.extractfile(f"{DATA}/meta.mat").read())
            truth = tar.extractfile(f"{DATA}/ILSVRC2012_validation_ground_truth.txt").read().split()
    except (OSError, EOFError, KeyError, zlib.error, tarfile.TarError) as error:
        raise BadInput(f"{path} is cut off or damaged ({error}): get it again") from None
    synsets = loadmat(meta, squeeze_me=True)["synsets"]
    leaves = [each for each in synsets if each["num_children"] == 0]  # the rest are groups of them
    names = {int(each["ILSVRC2012_ID"]): str(each["WNID"]) for each in leaves}
    images = {f"ILSVRC2012_val_{at:08}.JPEG": names[int(n)] for at, n in enumerate(truth, 1)}
    return set(names.values()), images


def read_solution(path):
    """Returns what read_devkit() does, of Kaggle's table: ILSVRC2012_val_00000001,n01751748 1 2 3 4
    says a class and its boxes."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [(row["ImageId"], row["PredictionString"]) for row in csv.DictReader(file)]
        pairs = {(f"{image}.JPEG", boxes.split()[0]) for image, boxes in rows}
        images = dict(pairs)
        lines = [f"{image} {label}" for image, label in images.items()]
        if not lines or not all(
            re.fullmatch(r"ILSVRC2012_val_\d{8}.JPEG n\d{8}", x) for x in lines
        ):
            raise ValueError
    except (ValueError, KeyError, IndexError, AttributeError, csv.Error):
        like = "ImageId,PredictionString and lines as ILSVRC2012_val_00000001,n01751748 1 2 3 4"
        raise BadInput(f"{path} is not ImageNet's, which has {like}") from None
    if len(images) < len(pairs):
        raise BadInput(
            f"{path} has two classes for {len(pairs) - len(images)} images: get it again"
        )
    return set(images.values()), images


def write(tar, member, path):
    """Writes a tar's member to a path, unless it is there: whole, or not at all. A file that had
    its name before a power loss may have lost its content: its size tells."""
    if not path.exists() or path.stat().st_size != member.size:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".tmp"), "wb") as file:
            shutil.copyfileobj(tar.extractfile(member), file)
        os.rename(file.name, path)


def unpack_train(tars, folder, classes):
    """Unpacks the tar of one tar per class."""
    path = tars / TRAIN
    with open(path, "rb") as file, open_tar(file, path) as outer:
        every = members(outer, path)
        for member in tqdm(every, "train", len(classes), unit=" classes", disable=None):
            name, within = Path(member.name).stem, f"{path}: {member.name} in it"
            if name not in classes:
                raise BadInput(f"{path} holds {member.name}, no class of ILSVRC2012")
            try:
                with open_tar(outer.extractfile(member), within) as inner:
                    for image in members(inner, within):
                        write(inner, image, folder / name / Path(image.name).name)
            except tarfile.TarError:
                raise BadInput(f"{within} is cut off or damaged: get it again") from None


def sort_val(folder, truth):
    """Moves what lies flat in the folder into its classes; returns the paths of all images."""
    for name, label in truth.items():
        if (folder / name).exists():
            (folder / label).mkdir(exist_ok=True)
            os.rename(folder / name, folder / label / name)
    return [folder / label / name for name, label in truth.items()]


def unpack_val(tars, folder, truth):
    """Unpacks the images that are not there."""
    made = sort_val(folder, truth)
    if all(path.exists() and path.stat().st_size for path in made):
        return
    path = tars / VAL
    with open(path, "rb") as file, open_tar(file, path) as tar:
        for image in tqdm(members(tar, path), "val", len(truth), disable=None):
            name = Path(image.name).name
            if name not in truth:
                raise BadInput(f"{path} holds {image.name}, no image of ILSVRC2012")
            write(tar, image, folder / truth[name] / name)
    check_val(path, made)


def check_val(source, made):
    """Ends where an image is missing."""
    if missing := [path.name for path in made if not path.exists()]:
        raise BadInput(f"{source} lacks {len(missing)} images, as {missing[0]}: get it again")


def link(path, target):
    """Makes path a link to target: relative, so that a folder with both in it can be moved."""
    if not path.exists():  # also where it links to what was moved
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.symlink(os.path.relpath(target.resolve(), path.parent.resolve()), path)


def link_val(flat, folder, truth):
    """Links to the images of a flat folder, class by class."""
    made = sort_val(folder, truth)  # if it is the same folder
    for path in tqdm(made, "val", disable=None):
        if (flat / path.name).exists():
            link(path, flat / path.name)
    check_val(flat, made)


def prepare(folder, part, classes, table, fill):
    """Makes folder/part by fill(folder/part.unfinished), unless it is there with all classes of a
    table."""
    whole, unfinished = folder / part, folder / f"{part}.unfinished"
    if part == "val" and any(whole.glob("*.JPEG")) and not whole.is_symlink():
        if unfinished.exists():  # what was missing from it
            for path in whole.iterdir():
                os.rename(path, unfinished / path.name)
            whole.rmdir()
        else:
            os.rename(whole, unfinished)
    if not whole.exists():
        unfinished.mkdir(parents=True, exist_ok=True)
        try:
            fill(unfinished)
        except FileNotFoundError as error:
            missing = Path(error.filename)
            refuse_others(missing.parent.glob(f"{missing.name}.*"), [])  # it may be there, packed
            why = "--only val and --only train make one part alone"
            raise BadInput(f"there is no {error.filename}: {why}") from None
        except tarfile.TarError as error:
            why = f"is cut off or damaged ({error}): get it again"
            raise BadInput(f"the tar file of {part} {why}") from None
    there = (whole if whole.exists() else unfinished).iterdir()
    made = {path.name for path in there if path.is_dir()}
    if odd := sorted(made ^ classes):
        what = f"differ in {len(odd)} classes, as {odd[0]}"
        raise BadInput(f"{folder / part} and {table.name} {what}")
    if not whole.exists():
        os.sync()  # all images are on the disk before the folder has its name
        os.rename(unfinished, whole)
    report(part, whole, sum(1 for _ in whole.glob("*/*")), len(classes))


def report(part, whole, count, classes):
    """Prints how many images there are, and whether ImageNet has as many."""
    print(f"{whole}: {count} images of {classes} classes")
    if classes == CLASSES and count != IMAGES[part]:
        print(f"{whole} is not whole, or not ILSVRC2012's, which has {IMAGES[part]} images")


def from_tars(source, folder, parts):
    """Makes class folders of image-net.org's tar files."""
    if (table := source / DEVKIT).exists():
        classes, truth = read_devkit(table)
    elif (table := source / SOLUTION).exists():
        classes, truth = read_solution(table)
    else:
        where = "image-net.org has it beside the tar files, as Development kit (Task 1 & 2)"
        why = f"which names the classes: {where}; Kaggle's {SOLUTION} serves as well"
        raise BadInput(f"{source} has no {DEVKIT}, {why}")
    fill = {"train": functools.partial(unpack_train, source, classes=classes)}
    fill["val"] = functools.partial(unpack_val, source, truth=truth)
    for part in parts:
        prepare(folder, part, classes, table, fill[part])


def find_kaggle(source):
    """Returns the folder of Kaggle's train/ and val/; None if there is none."""
    for below in "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "CLS-LOC", ".":
        if any((source / below / part).is_dir() for part in IMAGES):
            return source / below
    return None


def from_kaggle(source, folder, parts):
    """Makes class folders of Kaggle's, by links, or by moving images where DIR is that folder."""
    data = find_kaggle(source)
    above = [data, *data.resolve().parents[:3]]
    table = next((each / SOLUTION for each in above if (each / SOLUTION).exists()), None)
    if not table:
        why = f"hold {SOLUTION}, which Kaggle has beside ILSVRC/, and which names val/'s classes"
        raise BadInput(f"neither {data} nor the folders above it {why}")
    if inside := [
        part for part in IMAGES if folder.resolve().is_relative_to(data.resolve() / part)
    ]:
        raise BadInput(f"{folder} lies in {data / inside[0]}: give a folder beside it")
    classes, truth = read_solution(table)
    in_place = folder.resolve() == data.resolve()
    how = "val/ is sorted in place" if in_place else f"has links to {data}, which must stay"
    print(f"{folder}: {how}")
    for part in parts:
        there, unfinished = data / part, folder / f"{part}.unfinished"
        if not there.is_dir() and not unfinished.is_dir():
            raise BadInput(f"{there} is no folder: --only makes one part alone")
        if not in_place and not unfinished.exists() and not any(there.glob("*.JPEG")):
            if not any(each.is_dir() for each in there.iterdir()):
                raise BadInput(
                    f"{there} holds neither classes nor *.JPEG: unzip Kaggle's file again"
                )
            link(folder / part, there)
        prepare(folder, part, classes, table, functools.partial(link_val, there, truth=truth))


def find_parquet(source, part=""):
    """Returns the paths of a part's parquet files, or of all."""
    folder = source / "data" if any((source / "data").glob("*.parquet")) else source
    return sorted(folder.glob(f"{part}*.parquet"))


def find_tars(source, part, kind=re.compile(r"\.tar$")):
    """Returns the paths of a part's tar files in WebDataset's format, of which it is a word."""
    name = {"train": "train", "val": "val(idation)?"}[part]
    word = rf"(?<![A-Za-z]){name}(?![A-Za-z])"
    tars, below = (
        [p for p in at.glob("*") if kind.search(p.name)] for at in (source, source / part)
    )
    return sorted(path for path in tars if re.search(word, path.stem)) or sorted(below)


def open_parquet(path):
    """Returns the ParquetFile, whose columns are as Hugging Face's."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise BadInput(f"{path.parent} holds parquet: pip install pyarrow") from None
    try:
        # By default all row groups are read ahead.
        file = ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    except (OSError, ValueError) as error:
        why = f"is cut off or damaged ({errors.first_line(error)}): get it again"
        raise BadInput(f"{path} {why}") from None
    found = {column.name: str(column.type) for column in file.schema_arrow}
    image, label = found.get("image", ""), found.get("label", "")
    binary = re.match("struct<(.*, )?bytes: (large_)?binary(_view)?[,>]", image)
    if not binary or not re.match("u?int", label):
        need = "image, a struct of bytes and path, and label, a whole number"
        raise BadInput(f"{path} has the columns {', '.join(found)}; needed are {need}")
    return file


def read_parquet(path, file, first, shards):
    """Yields (key, suffix, encoded image, class) of each row, of which the first has this number.
    The key has the file's name, and so its WordNet id."""
    number = first
    try:
        for batch in file.iter_batches(16, columns=["image", "label"]):
            for image, label in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                known = label is not None and 0 <= label < shards.MOST_CLASSES
                if not (known and image and image["bytes"]):
                    raise BadInput(f"{path}: row {number - first} has no image or no class")
                name = Path(str(image.get("path") or ""))
                suffix = name.suffix.lower()
                suffix = suffix if suffix in shards.IMG_EXTENSIONS else ".jpg"
                key = re.sub(r"[^\w-]", "_", f"{number:08}_{name.stem}")
                yield key, suffix, image["bytes"], label
                number += 1
    except (OSError, ValueError) as error:
        why = f"is damaged ({errors.first_line(error)}): get it again"
        raise BadInput(f"{path} {why}") from None


def check_numbers(paths):
    """Ends where files named as train-00000-of-00294 are not all of one set, each once."""
    names = {path.stem for path in paths}
    found = filter(None, (re.fullmatch(r"(.*-)(\d+)(-of-)(\d+)", each) for each in sorted(names)))
    if not (first := next(found, None)):
        return
    head, number, of, count = first.groups()
    if int(count) <= len(paths):
        wanted = {f"{head}{n:0{len(number)}}{of}{count}" for n in range(int(count))}
        if odd := sorted(names - wanted):
            what = f"{odd[0]}.parquet, none of the {int(count)} {head}*.parquet: move it away"
            raise BadInput(f"{paths[0].parent} has {what}")
    if int(count) != len(paths):
        what = f"{len(paths)} of the {int(count)} {head}*.parquet: get the rest, or --only"
        raise BadInput(f"{paths[0].parent} has {what}")


def copy_parquet(source, folder, parts, shards):
    """Writes shards of Hugging Face's parquet: a tar file for each file."""
    rows = {}
    for part in parts:
        paths = find_parquet(source, part)
        if not paths:
            raise BadInput(f"{source} has none of the {part}*.parquet: get them, or --only")
        check_numbers(paths)
        if (folder / part).exists():
            raise BadInput(f"{folder / part} is there, without index.npz: give another DIR")
        rows[part] = {path: open_parquet(path).metadata.num_rows for path in paths}
    made = {}
    for part, counts in rows.items():
        unfinished, first, made[part] = folder / f"{part}.unfinished", 0, {}
        unfinished.mkdir(parents=True, exist_ok=True)
        for path, count in tqdm(counts.items(), part, disable=None):
            tar, whole = unfinished / "unfinished", unfinished / f"{path.stem}.tar"
            if whole.exists():
                about = shards.read_tar(whole) | {"sha256": shards.checksum(whole)}
            else:
                tar.unlink(missing_ok=True)
                samples = read_parquet(path, open_parquet(path), first, shards)
                about = shards.write_tar(tar, samples)
                tar.rename(whole)
            made[part][whole] = about
            if len(about["target"]) != count:
                raise BadInput(f"{whole} is of another {path.name}: remove it")
            first += count
    tars = {part: [*each.values()] for part, each in made.items()}
    classes = shards.name_classes(folder, tars)
    for part in made:
        shards.write_index(
            folder / f"{part}.unfinished", classes, [*made[part]], [*made[part].values()]
        )
    for part in made:
        (folder / f"{part}.unfinished").rename(folder / part)


def link_tars(source, folder, parts, shards):
    """Links to WebDataset's tar files, and writes their index."""
    print(f"{folder}: has links to the tar files of {source}, which must stay")
    if both := {*find_tars(source, "train")} & {*find_tars(source, "val")}:
        raise BadInput(f"{min(both)}: is it of train or of val? Rename it")
    links, found = [], {part: find_tars(source, part) for part in parts}
    for part, tars in found.items():
        if not tars:
            raise BadInput(f"{source} has no *{part}*.tar: get them, or --only")
        refuse_others(find_tars(source, part, NAMES), tars)
        names = {tar.name for tar in tars}
        if odd := [each.name for each in (folder / part).glob("*") if each.name not in names]:
            raise BadInput(f"{folder / part} holds {odd[0]}, not of {source}: give another DIR")
    for part, tars in found.items():
        for tar in tars:
            links += [] if (folder / part / tar.name).exists() else [folder / part / tar.name]
            link(folder / part / tar.name, tar)
    # Threads wait for the disk, and end soon after Ctrl-C.
    pool = concurrent.futures.ThreadPoolExecutor()
    try:
        shards.make_index(SimpleNamespace(out=folder, classes=None, first_class=0), pool, parts)
    except shards.errors.BadInput:
        for path in links:
            path.unlink()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def from_shards(source, folder, parts):
    """Makes shards of parquet, or an index of WebDataset's tar files."""
    import make_shards as shards  # and PyTorch, which tar files and folders do not need

    try:
        todo = [part for part in parts if not (folder / part / "index.npz").exists()]
        make = copy_parquet if find_parquet(source) else link_tars
        if todo:
            make(source, folder, todo, shards)
        for part in parts:
            made = shards.image_files.open_source(folder / part)
            if part == parts[0]:
                print(f"{folder}: classes {made.classes[0]} to {made.classes[-1]}")
            report(part, folder / part, len(made.target), len(made.classes))
    except shards.errors.BadInput as error:
        raise BadInput(str(error)) from None


def find_way(source):
    """Returns the function for what a folder holds."""
    if not source.is_dir():
        raise BadInput(f"{source} is no folder: give the one that holds ImageNet's files")
    if any((source / name).exists() for name in (TRAIN, VAL, DEVKIT)):
        return from_tars
    if find_parquet(source) or any(find_tars(source, part) for part in IMAGES):
        return from_shards
    if find_kaggle(source):
        return from_kaggle
    refuse_others(source.glob("*"), source.glob("*.tar"))
    kinds = "ILSVRC2012_img_*.tar, ILSVRC/Data/CLS-LOC, train-*.parquet nor *train*.tar"
    raise BadInput(f"{source} holds neither {kinds}: --help says what each is")


def named(text):
    """Returns a path, which an empty word, as of an unset variable, does not name."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return Path(text)


def main():
    """Reads the options, prepares train/ and val/."""
    parser = make_parser(__doc__)
    parser.add_argument("source", metavar="SOURCE", type=named, help="has ImageNet, as above")
    parser.add_argument("dir", metavar="DIR", type=named, help="where train/ and val/ are made")
    parser.add_argument("--only", choices=["train", "val"], help="make this one alone")
    args = parser.parse_args()
    try:
        make = find_way(args.source)
        make(args.source, args.dir, [args.only] if args.only else ["train", "val"])
    except (BadInput, OSError, EOFError, KeyError, ValueError, tarfile.TarError) as error:
        nowhere = isinstance(error, OSError) and error.filename is None  # such as a full disk
        end(parser, error, f"{args.dir}: {error}" if nowhere else "")
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: interrupted: start it again, and it goes on\n")


if __name__ == "__main__":
    main()
