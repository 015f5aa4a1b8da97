"""Writes an ImageNet folder as WebDataset shards, or as one memory-mapped file of pixels.

    python tools/make_shards.py DIR OUT                              # the files as they are
    python tools/make_shards.py DIR OUT --resize 500 --quality 90    # smaller JPEGs
    python tools/make_shards.py DIR OUT --raw 256                    # decoded, for fast disks
    python tools/make_shards.py --check OUT                          # compares counts and checksums

DIR holds train/<class>/*.JPEG and val/<class>/*.JPEG. OUT then is a DIR of the scripts, here or
wherever it is copied: `python imagenet_nd.py OUT`. It holds train/000000.tar, ..., val/000000.tar,
..., each image as <key>.jpg (or its own suffix) and <key>.cls, the class number; or train.raw,
train.npz and the same of val; and shards.json, written last, with classes, counts and checksums.
Images are in random order, so that a reader need shuffle no more than a thousand at a time.
"""

import concurrent.futures
import functools
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import PIL.Image
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
import imagenet_nd
from imagenet_nd import BadInput


def whole(path):
    """Returns an image file's pixels, uint8 (H, W, 3)."""
    return imagenet_nd.decode(Path(path).read_bytes(), path, lambda *size: (0, 0, *size))


def smaller(path, longer, quality):
    """Returns a JPEG of the image whose longer side has `longer` pixels at most."""
    pixels = whole(path)
    scale = min(1, longer / max(pixels.shape))
    if scale < 1:
        size = [max(1, round(side * scale)) for side in pixels.shape[:2]]
        pixels = imagenet_nd.resize(pixels, size, "bilinear")
    file = io.BytesIO()
    PIL.Image.fromarray(pixels.numpy()).save(file, "JPEG", quality=quality)
    return file.getvalue()


def raw_pixels(path, shorter):
    """Returns uint8 (H, W, 3) whose shorter side has `shorter` pixels at most."""
    torch.set_num_threads(1)
    pixels = whole(path)
    least = min(pixels.shape[:2])
    if least > shorter:
        size = [side * shorter // least for side in pixels.shape[:2]]  # as validation resizes
        pixels = imagenet_nd.resize(pixels, size, "bilinear")
    return pixels.contiguous().numpy()


def write_shard(path, images, longer, quality):
    """Writes one tar file of images (path, class number); returns its entry of shards.json."""
    torch.set_num_threads(1)
    with tarfile.open(path, "w") as tar:
        for serial, (image, target) in enumerate(images):
            content = smaller(image, longer, quality) if longer else Path(image).read_bytes()
            suffix = ".jpg" if longer else Path(image).suffix.lower()
            for ending, inside in (suffix, content), (".cls", str(target).encode()):
                member = tarfile.TarInfo(f"{path.parent.name}{path.stem}{serial:06}{ending}")
                member.size = len(inside)
                tar.addfile(member, io.BytesIO(inside))
    return {"name": f"{path.parent.name}/{path.name}", "images": len(images), **measure(path)}


def write_raw(out, part, images, shorter, pool):
    """Writes part.raw and its index; returns their entries of shards.json."""
    shapes = np.zeros((len(images), 2), np.int32)
    raw, index = out / f"{part}.raw", out / f"{part}.npz"
    with open(raw, "wb") as file:
        for start in range(0, len(images), 1024):  # not all at once, which would fill the memory
            paths = [path for path, _ in images[start : start + 1024]]
            make = functools.partial(raw_pixels, shorter=shorter)
            for serial, pixels in enumerate(pool.map(make, paths, chunksize=16), start):
                shapes[serial] = pixels.shape[:2]
                file.write(pixels)
    offsets = np.concatenate([[0], np.cumsum(shapes.astype(np.int64).prod(1) * 3)])
    targets = np.array([target for _, target in images], np.int32)
    np.savez(index, offsets=offsets, shapes=shapes, targets=targets)
    return [{"name": each.name, "images": len(images), **measure(each)} for each in (raw, index)]


def measure(path):
    """Returns a file's length, bytes, and its checksum, once it is safe on the disk."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        while piece := file.read(1 << 20):
            digest.update(piece)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def make(args):
    """Writes OUT; returns the number of images."""
    sources = {
        part: imagenet_nd.Folder(args.dir / part, imagenet_nd.list_images(args.dir / part))
        for part in ("train", "val")
    }
    classes = sources["train"].classes
    if classes != sources["val"].classes:
        raise BadInput(f"{args.dir}: train/ and val/ differ in their classes")
    made = {"classes": classes, "resize": args.resize, "quality": args.resize and args.quality}
    made["raw"] = args.raw
    with concurrent.futures.ProcessPoolExecutor(args.workers) as pool:
        for part, source in sources.items():
            order = np.random.default_rng(0).permutation(len(source))
            images = [(source.path(index), int(source.targets[index])) for index in order]
            if args.raw:
                made[part] = write_raw(args.out, part, images, args.raw, pool)
                continue
            (args.out / part).mkdir()
            shares = [
                images[start : start + args.images] for start in range(0, len(images), args.images)
            ]
            paths = [args.out / part / f"{serial:06}.tar" for serial in range(len(shares))]
            write = functools.partial(write_shard, longer=args.resize, quality=args.quality)
            made[part] = list(pool.map(write, paths, shares))
    with open(args.out / "shards.json", "w") as file:
        json.dump(made, file, indent=1)
    return sum(map(len, sources.values()))


# What check() needs of an entry of shards.json.
ENTRY = ("name", "bytes", "sha256")


def check(out):
    """Compares all files with shards.json; returns the number of files."""
    try:
        listed = json.loads((out / "shards.json").read_text())
        entries = [{name: each[name] for name in ENTRY} for each in listed["train"] + listed["val"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = imagenet_nd.first_line(error)
        raise BadInput(f"{out / 'shards.json'} cannot be read ({why})") from None
    for entry in entries:
        path = out / entry["name"]
        if not path.is_file():
            raise BadInput(f"{path} is missing")
        if measure(path) != {name: entry[name] for name in ("bytes", "sha256")}:
            raise BadInput(f"{path} is not what was written: its length or checksum differs")
    return len(entries)


def main():
    """Reads the options, makes or checks."""
    count = imagenet_nd.number(int, "a whole number above 0", lambda value: value > 0)
    quality = imagenet_nd.number(int, "from 1 to 95", lambda value: 0 < value < 96)
    parser = imagenet_nd.OneLineParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("dir", metavar="DIR", type=Path, nargs="?", help="has train/ and val/, class by class")
    add("out", metavar="OUT", type=Path, help="made by this program")
    add("--images", type=count, default=1000, help="per shard (%(default)s)")
    add("--resize", type=count, help="re-encode, the longer side at most so many pixels")
    add("--quality", type=quality, help="of JPEGs re-encoded by --resize (90)")
    add("--raw", type=count, help="store pixels, the shorter side at most so many")
    add("-j", "--workers", type=count, help="processes (else: as many as cores)")
    add("--check", action="store_true", help="compare OUT with its shards.json")
    args = parser.parse_args()
    if not args.check and args.dir is None:
        parser.error("DIR and OUT are needed")
    if args.raw and args.resize:
        parser.error("--raw and --resize exclude each other")
    if args.quality and not args.resize:
        parser.error("--quality is of --resize: the files are else written as they are")
    args.quality = args.quality or 90
    try:
        if args.check:
            print(f"{args.out}: {check(args.out)} files are as they were written")
            return
        try:
            args.out.mkdir(parents=True)
        except FileExistsError:
            raise BadInput(f"{args.out} is there already: nothing is overwritten") from None
        try:
            print(f"{args.out}: {make(args)} images")
        except BaseException:
            shutil.rmtree(args.out)  # half of it would be of no use
            raise
    except (BadInput, OSError, ValueError, KeyError, RuntimeError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
