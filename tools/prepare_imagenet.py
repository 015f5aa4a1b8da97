"""Unpacks ILSVRC2012's tar files into the folders that the scripts read.

    python tools/prepare_imagenet.py TARS DIR               # makes DIR/train/ and DIR/val/
    python tools/prepare_imagenet.py TARS DIR --only val    # also sorts a DIR/val/ that is flat

TARS holds ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz, as
image-net.org hands them out: the devkit, which names the classes, and what is to be made. Each
image comes to <part>/<class>/, where the part is named train.unfinished or val.unfinished until it
is whole: if this program is interrupted, start it again, and it goes on. In the end, train/ has
1,281,167 images, val/ 50,000; where it does not, a line says so.
"""

import argparse
import io
import os
import shutil
import tarfile
from pathlib import Path

from tqdm import tqdm

TRAIN, VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT, DATA = "ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_devkit_t12/data"
CLASSES, IMAGES = 1000, {"train": 1_281_167, "val": 50_000}  # (Russakovsky et al. 2015, table 2)


class BadInput(Exception):
    """The user's mistake, in one line."""


def read_devkit(path):
    """Returns (names of the classes, as n01440764; {validation image: class})."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise BadInput("the devkit is a MATLAB file: pip install scipy") from None
    with tarfile.open(path, "r:gz") as tar:
        meta = io.BytesIO(tar.extractfile(f"{DATA}/meta.mat").read())
        truth = tar.extractfile(f"{DATA}/ILSVRC2012_validation_ground_truth.txt").read().split()
    synsets = loadmat(meta, squeeze_me=True)["synsets"]
    leaves = [each for each in synsets if each["num_children"] == 0]  # the rest are groups of them
    names = {int(each["ILSVRC2012_ID"]): str(each["WNID"]) for each in leaves}
    images = {f"ILSVRC2012_val_{at:08}.JPEG": names[int(n)] for at, n in enumerate(truth, 1)}
    return set(names.values()), images


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
    with tarfile.open(tars / TRAIN, "r:") as outer:
        for member in tqdm(outer, "train", len(classes), unit=" classes", disable=None):
            name = Path(member.name).stem
            if name not in classes:
                raise BadInput(f"{tars / TRAIN} holds {member.name}, no class of the devkit")
            with tarfile.open(fileobj=outer.extractfile(member), mode="r:") as inner:
                for image in filter(tarfile.TarInfo.isreg, inner):
                    write(inner, image, folder / name / Path(image.name).name)
                inner.fileobj.seek(inner.offset)
                if inner.fileobj.read(512) != bytes(512):  # tarfile takes any end for the end
                    raise BadInput(f"{tars / TRAIN}: {member.name} in it is cut off or damaged")


def unpack_val(tars, folder, truth):
    """Sorts what lies flat in the folder into classes, and unpacks the rest."""
    for name, label in truth.items():
        if (folder / name).exists():
            (folder / label).mkdir(exist_ok=True)
            os.rename(folder / name, folder / label / name)
    made = [folder / label / name for name, label in truth.items()]
    if all(path.exists() and path.stat().st_size for path in made):
        return
    with tarfile.open(tars / VAL, "r:") as tar:
        for image in tqdm(filter(tarfile.TarInfo.isreg, tar), "val", len(truth), disable=None):
            name = Path(image.name).name
            if name not in truth:
                raise BadInput(f"{tars / VAL} holds {image.name}, no image of the devkit")
            write(tar, image, folder / truth[name] / name)
    if missing := [path.name for path in made if not path.exists()]:
        raise BadInput(f"{tars / VAL} lacks {len(missing)} images, as {missing[0]}")


def prepare(tars, folder, part, classes, truth):
    """Makes folder/part, unless it is there with all classes."""
    whole, unfinished = folder / part, folder / f"{part}.unfinished"
    if part == "val" and any(whole.glob("*.JPEG")):
        os.rename(whole, unfinished)
    if not whole.exists():
        unfinished.mkdir(parents=True, exist_ok=True)
        try:
            if part == "train":
                unpack_train(tars, unfinished, classes)
            else:
                unpack_val(tars, unfinished, truth)
        except tarfile.TarError as error:
            raise BadInput(
                f"{tars}: the tar file of {part} is cut off or damaged: {error}"
            ) from None
    there = (whole if whole.exists() else unfinished).iterdir()
    made = {path.name for path in there if path.is_dir()}
    if odd := sorted(made ^ classes):
        raise BadInput(f"{folder / part} and the devkit differ in {len(odd)} classes, as {odd[0]}")
    if not whole.exists():
        os.sync()  # all images are on the disk before the folder has its name
        os.rename(unfinished, whole)
    count = sum(1 for _ in whole.glob("*/*"))
    print(f"{whole}: {count} images of {len(classes)} classes")
    if len(classes) == CLASSES and count != IMAGES[part]:
        print(f"{whole} is not whole, or not ILSVRC2012's, which has {IMAGES[part]} images")


def main():
    """Reads the options, prepares train/ and val/."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.usage = argparse.SUPPRESS  # errors of one line
    parser.add_argument("tars", metavar="TARS", type=Path, help="has the tar files")
    parser.add_argument("dir", metavar="DIR", type=Path, help="where train/ and val/ are made")
    parser.add_argument("--only", choices=["train", "val"], help="make this one alone")
    args = parser.parse_args()
    try:
        classes, truth = read_devkit(args.tars / DEVKIT)
        for part in [args.only] if args.only else ["train", "val"]:
            prepare(args.tars, args.dir, part, classes, truth)
    except (BadInput, OSError, EOFError, KeyError, ValueError, tarfile.TarError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: interrupted: start it again, and it goes on\n")


if __name__ == "__main__":
    main()
