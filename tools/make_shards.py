"""Writes an ImageNet folder as WebDataset shards, or the index of shards that exist already.

    python tools/make_shards.py DIR OUT                              # the files as they are
    python tools/make_shards.py DIR OUT --resize 500 --quality 90    # smaller JPEGs
    python tools/make_shards.py DIR OUT --raw 256                    # pixels, for fast disks
    python tools/make_shards.py --index OUT                          # of tar files that exist
    python tools/make_shards.py --check OUT                          # compares sizes and checksums
    python tools/make_shards.py --verify DIR                         # decodes every image

OUT then is a DIR of the scripts: `python imagenet_nd.py OUT`. It holds train/000000.tar, ..., each
image as <key>.jpg (or its own suffix) and <key>.cls, the number of its class; train/index.npz,
which says where each image lies; and the same of val. Images keep DIR's order, so that a training
from OUT reads the same images at each step as one from DIR.
"""

import collections
import concurrent.futures
import functools
import hashlib
import io
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import PIL.Image
import tarfiles
import torch
from commandline import end, make_parser
from torchvision.datasets.folder import IMG_EXTENSIONS
from tqdm import tqdm

from trainparts import endings, errors, option_types
from trainparts.images import class_names, decoding, image_files

PARTS = ("train", "val")
PER_IMAGE = ("offset", "length", "target")  # arrays of index.npz; the others are per tar file
SIGNALS = (signal.SIGINT, signal.SIGTERM)
MOST_CLASSES = 1_000_000  # of them the index has a list of names
UPRIGHT = "a DIR that tools/prepare_folder.py --upright makes has turned copies of them"
WORDNET_ID = re.compile(r"(?<![A-Za-z0-9])n\d{8}(?!\d)")  # in n01440764_10026.JPEG


def convert(encoded, size, quality, raw):
    """Returns (suffix, content): a JPEG whose longer side has `size` pixels at most; or a PPM whose
    shorter side has, resized as validation resizes."""
    pixels = decoding.decode_by_pillow(encoded, whole)
    side = (min if raw else max)(pixels.shape[:2])
    if side > size:
        to = [max(1, size * each // side) for each in pixels.shape[:2]]
        resized = torch.empty(*to, 3, dtype=torch.uint8)
        decoding.resize(pixels, size=to, mode="bilinear", out=resized)
        pixels = resized.numpy()
    if raw:
        return ".ppm", b"P6 %d %d 255\n" % pixels.shape[1::-1] + pixels.tobytes()
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return ".jpg", file.getvalue()


def whole(height, width):
    """Returns the region of decode_by_pillow() that is all of an image."""
    return 0, 0, height, width


def changed(first, source, change):
    """Yields what write_tar() takes of a source, of which the first image has this number, changed
    by a function unless it is None."""
    torch.set_num_threads(1)
    for index, target in enumerate(source.target.tolist()):
        suffix, content = Path(source.path(index)).suffix.lower(), source.read(index)
        try:
            suffix, content = change(content) if change else (suffix, content)
        except errors.BadInput as error:  # training ends at it, as it would in DIR
            why = f"is written as it is, though it cannot be decoded: {error}"
            errors.print_line(f"{source.path(index)} {why}", sys.stderr)
        yield f"{first + index:08}", suffix, content, target


def write_shard(path, first, source, change):
    """Writes a tar file of a source, as changed() and write_tar() say."""
    return write_tar(path, changed(first, source, change))


def write_tar(path, samples):
    """Writes samples (key, suffix, content, class); returns what read_tar() does, and the
    checksum."""
    with open(path, "xb") as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for key, suffix, content, target in samples:
                for ending, inside in (suffix, content), (".cls", b"%d" % target):
                    member = tarfile.TarInfo(f"{key}{ending}")
                    member.size = len(inside)
                    tar.addfile(member, io.BytesIO(inside))
        file.flush()
        os.fsync(file.fileno())
    return read_tar(path) | {"sha256": checksum(path)}


def read_tar(path):
    """Returns {size: bytes, offset, length, target: arrays over a tar's images in its order, ids:
    pairs (class, WordNet id) of names and .json members that have one id, not_read: {suffix:
    members that belong to no image}}."""
    images, targets, words, other = {}, {}, {}, {}
    suffixes = collections.defaultdict(list)  # of a key
    try:
        with open(path, "rb") as file, tarfiles.open_tar(file, path.resolve()) as tar:
            for member in tarfiles.members(tar, path, belongs):
                # WebDataset's convention: what belongs together has one name up to the first dot.
                named = re.fullmatch(r"((?:.*/)?[^/.]+)(\.[^/]+)", member.name)
                if not named:
                    continue
                suffix = named[2].lower()
                suffixes[named[1]].append(suffix)
                if suffix == ".json":  # as timm's: {"filename": "n01440764_10026.JPEG", ...}
                    text = tar.extractfile(member).read().decode(errors="replace")
                    words[named[1]] = f"{named[1]} {text}"
                if suffix.count(".") > 1 and suffix.endswith(IMG_EXTENSIONS):
                    other[named[1]] = member.name  # such as 1.seg.png beside 1.jpg
                if suffix not in (*IMG_EXTENSIONS, ".cls"):
                    continue
                if member.issparse():  # an image would be its first pieces, and then the next
                    raise tarfiles.Odd(f"{path}: {member.name} is sparse: pack it without --sparse")
                found = targets if suffix == ".cls" else images
                if named[1] in found:
                    raise errors.BadInput(f"{path}: there are two of {named[1]}")
                entry = member.offset_data, member.size
                if found is targets:
                    entry = tar.extractfile(member).read().strip()
                    if not re.fullmatch(rb"0*\d{1,6}", entry):  # up to MOST_CLASSES
                        why = f"holds no class, a number from 0 to {MOST_CLASSES - 1}"
                        raise errors.BadInput(f"{path}: {member.name} {why}")
                found[named[1]] = entry
    except tarfiles.Odd as error:
        raise errors.BadInput(str(error)) from None
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise errors.BadInput(
            f"{path} is no uncompressed, whole tar file of images: {error}"
        ) from None
    if dotted := sorted(other.keys() - images.keys()):
        raise errors.BadInput(
            f"{path}: {len(dotted)} have a dot in their key, as {other[dotted[0]]}"
        )
    if alone := sorted(images.keys() ^ targets.keys()):
        what = f"{len(alone)} without an image or a .cls, as {alone[0]}"
        has = f"which has {', '.join(suffixes[alone[0]])}; images are {', '.join(IMG_EXTENSIONS)}"
        raise errors.BadInput(f"{path}: {what}, {has}")
    targets = {key: int(target) for key, target in targets.items()}
    rows = np.array([[*images[key], targets[key]] for key in images], np.int64).reshape(-1, 3)
    named = {key: {*WORDNET_ID.findall(words.get(key, key))} for key in images}
    ids = {(targets[key], *names) for key, names in named.items() if len(names) == 1}
    size = path.stat().st_size
    lone = [f"*{suffix}" for key in suffixes if key not in images for suffix in suffixes[key]]
    about = {"size": size, "ids": ids, "not_read": collections.Counter(lone)}
    return about | dict(zip(PER_IMAGE, rows.T, strict=True))


def belongs(name):
    """Returns whether a member of this name is an image, or says something about one."""
    return name.lower().endswith((*IMG_EXTENSIONS, ".cls", ".json"))


def checksum(path):
    """Returns a file's SHA-256."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def name_classes(out, parts):
    """Returns the names of the classes of {part: what read_tar() returned}: those of the part that
    is in `out` already; else the WordNet ids of their images' names, if each has one; else
    ImageNet's, if there are as many; else numbers."""
    for part, tars in parts.items():
        if not sum(len(tar["target"]) for tar in tars):
            raise errors.BadInput(f"there is no image in the files of {part}")
    tars = [tar for each in parts.values() for tar in each]
    count = 1 + max(tar["target"].max() for tar in tars if len(tar["target"]))
    pairs = set().union(*(tar["ids"] for tar in tars))
    for part in PARTS:
        if part not in parts and (out / part / "index.npz").exists():
            names = image_files.open_source(out / part).classes
            known = [*map(str, range(len(names)))]
            if len(names) < count or names != known and any(names[n] != name for n, name in pairs):
                why = f"has other classes than {', '.join(parts)}: make both in one run"
                raise errors.BadInput(f"{out / part} {why}")
            return names
    ids, imagenet = dict(pairs), class_names.IMAGENET
    if len(pairs) == len(ids) == len({*ids.values()}) == count:
        return [ids[label] for label in range(count)]
    if count == len(imagenet) and all(imagenet[label] == name for label, name in pairs):
        return imagenet
    return [str(label) for label in range(count)]


def write_index(folder, classes, paths, tars):
    """Writes folder/index.npz, from which the scripts read: whole, or not at all."""
    content = {name: np.concatenate([tar[name] for tar in tars]) for name in PER_IMAGE}
    content["file"] = np.repeat(np.arange(len(tars)), [len(tar["target"]) for tar in tars])
    content["classes"] = np.array(classes)
    content["names"] = np.array([os.fsencode(path.name) for path in paths])
    content["sizes"] = np.array([tar["size"] for tar in tars])
    if "sha256" in tars[0]:
        content["sha256"] = np.array([tar["sha256"] for tar in tars])
    with open(folder / "index.tmp", "wb") as file:
        with zipfile.ZipFile(file, "w") as archive:  # np.savez() takes no array named file
            for name, array in content.items():
                with archive.open(f"{name}.npy", "w") as entry:
                    np.lib.format.write_array(entry, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    os.rename(folder / "index.tmp", folder / "index.npz")


def shares(source, images):
    """Yields (number of the first, Source) of so many images each."""
    for first in range(0, len(source.target), images):
        some = slice(first, first + images)
        share = {name: getattr(source, name)[some] for name in ("file", *PER_IMAGE)}
        share |= {"names": source.names[share["file"]], "file": np.arange(images)}
        yield first, source._replace(**share)


def open_parts(folder):
    """Returns {part: Source} of DIR; prints what is not there."""
    sources = dict(zip(PARTS, image_files.open_sources(folder), strict=True))
    for source in sources.values():
        for line in source.gaps():
            errors.print_line(line)
    return sources


def make(args, pool):
    """Writes OUT; returns the number of images."""
    sources = open_parts(args.dir)
    classes = sources["train"].classes
    if (args.dir / "train" / "index.npz").exists():
        raise errors.BadInput(f"{args.dir} holds shards: give the folder that they were made of")
    # Renamed at the end: what a killed run leaves behind does not look whole.
    unfinished, written, change = args.out.with_name(f"{args.out.name}.unfinished"), {}, None
    for there in args.out, unfinished:
        if there.exists():
            raise errors.BadInput(
                f"{there} is there already: nothing is overwritten; remove it first"
            )
    for part in PARTS:  # where it would be a class
        if args.out.resolve().is_relative_to((args.dir / part).resolve()):
            raise errors.BadInput(f"{args.out} lies in {args.dir / part}: give a folder beside it")
    if args.raw or args.resize:
        size = args.raw or args.resize
        change = functools.partial(convert, size=size, quality=args.quality, raw=args.raw)
    try:
        for part, source in sources.items():
            (unfinished / part).mkdir(parents=True)
            jobs, paths = [], []
            for first, share in shares(source, args.images):
                paths.append(unfinished / part / f"{len(paths):06}.tar")
                jobs.append(pool.submit(write_shard, paths[-1], first, share, change))
            written[part] = paths, [job.result() for job in tqdm(jobs, part, disable=None)]
        for part in PARTS:
            write_index(unfinished / part, classes, *written[part])
        unfinished.rename(args.out)
    except Exception:
        pool.shutdown(cancel_futures=True)
        raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return sum(len(source.target) for source in sources.values())


def make_index(args, pool, parts=PARTS):
    """Writes the index of tar files that exist; returns the number of images."""
    found = {}
    for part in parts:
        named = sorted((args.out / part).glob("*.tar"), reverse=True)
        try:
            tarfiles.refuse_others((args.out / part).rglob("*"), named)
        except tarfiles.Odd as error:
            raise errors.BadInput(str(error)) from None
        paths = sorted({path.resolve(): path for path in named}.values())  # a link counts once
        if not paths or (args.out / part / "index.npz").exists():
            why = "has an index.npz already: remove it first" if paths else "has no *.tar"
            raise errors.BadInput(f"{args.out / part} {why}")
        tars = list(tqdm(pool.map(read_tar, paths), part, len(paths), disable=None))
        found[part] = paths, tars
        if not_read := sum((tar["not_read"] for tar in tars), collections.Counter()):
            print(
                f"{args.out / part}: files that are not read: {image_files.most_frequent(not_read)}"
            )
    from_one = count_from(args, found)
    classes = name_classes(args.out, {part: tars for part, (_, tars) in found.items()})
    if args.classes:
        count = len(classes)
        try:
            # Lines end as in text files alone: str.splitlines() would divide names, too.
            lines = args.classes.read_text("utf-8-sig").rstrip().split("\n")
            classes = [line.strip() for line in lines]
        except UnicodeDecodeError:
            raise errors.BadInput(f"{args.classes} is no text in UTF-8") from None
        if len(set(classes)) < len(classes) or len(classes) < count or not all(classes):
            raise errors.BadInput(f"{args.classes} needs {count} names or more, no two alike")
    for part, (paths, tars) in found.items():
        write_index(args.out / part, classes, paths, tars)
        for line in image_files.open_source(args.out / part).gaps():
            print(line)
    if from_one:
        print(from_one)
    return sum(len(tar["target"]) for _, tars in found.values() for tar in tars)


def count_from(args, found):
    """Makes the classes in {part: (paths, what read_tar() returned)} count from 0, if --first-class
    says that they count from 1. Returns a line if they look like that, and it does not; else ''."""
    pairs = [pair for paths, tars in found.values() for pair in zip(paths, tars, strict=True)]
    lowest, path = min((tar["target"].min(initial=MOST_CLASSES), path) for path, tar in pairs)
    if args.first_class:
        if lowest == 0:
            raise errors.BadInput(f"--first-class 1: {path} has an image of class 0")
        for _, tar in pairs:
            tar["target"] -= 1
            tar["ids"] = {(label - 1, name) for label, name in tar["ids"]}
        return ""
    again = shlex.join(["rm", *(f"{args.out / part / 'index.npz'}" for part in found)])
    again += f" && python tools/make_shards.py --first-class 1 --index {shlex.quote(str(args.out))}"
    what = f"{args.out}: no image is of class 0, which models will have; if classes count from 1"
    return f"{what}: {again}" if lowest == 1 else ""


def check(out):
    """Compares the tar files with the index; returns what was compared."""
    for part in PARTS:
        if not (out / part / "index.npz").exists():
            raise errors.BadInput(f"{out / part} has no index.npz")
        image_files.open_source(out / part)  # compares the sizes
        with np.load(out / part / "index.npz") as index:
            names, sums = index["names"], index["sha256"] if "sha256" in index else []
        for name, right in zip(names, sums, strict=False):
            path = out / part / os.fsdecode(name)
            if checksum(path) != right:
                raise errors.BadInput(f"{path} is not what was written: its checksum differs")
    return "sizes and checksums" if len(sums) else "sizes (of checksums, --index keeps none)"


def decode_all(first, source):
    """Returns (a line for each image of a source that cannot be used, the number of images that
    are not stored upright)."""
    torch.set_num_threads(1)
    lines, turned = [], 0
    for index in range(len(source.target)):
        try:
            encoded = source.read(index)
            decoding.decode_by_pillow(encoded, whole)
            turned += decoding.orientation(io.BytesIO(encoded)) != 1
        except (OSError, errors.BadInput) as error:
            lines.append(f"{source.path(index)}: image {first + index} cannot be used: {error}")
    return lines, turned


def verify(folder, pool):
    """Decodes every image, whole, and names those that cannot be; returns (images, bad ones)."""
    sources, bad, turned = open_parts(folder), 0, 0
    for part, source in sources.items():
        jobs = [pool.submit(decode_all, *share) for share in shares(source, 1000)]
        for job in tqdm(jobs, part, disable=None):
            lines, count = job.result()
            turned += count
            for line in lines:
                tqdm.write(line)
                bad += 1
    if turned:
        what = f"{turned:,} images are to be turned, as their EXIF orientation says"
        print(f"{folder}: {what}, and are read as they are: {UPRIGHT}")
    return sum(len(source.target) for source in sources.values()), bad


def stop(signum, _):
    """Ends the processes at once, then this one in order."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    sys.exit(128 + signum)


def start_worker():
    """Leaves Ctrl-C to the process that started this one, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    endings.end_with_parent(signal.SIGKILL)


def main():
    """Reads the options, makes or checks."""
    parser = make_parser(__doc__ and __doc__.split("\n\n")[0])
    count = option_types.number_between(int, 1, 2**31)
    add, add_one = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    add("dir", metavar="DIR", type=Path, nargs="?", help="has train/ and val/, class by class")
    add("out", metavar="OUT", type=Path, help="has train/*.tar and val/*.tar, or is made")
    add_one("--resize", type=count, help="write JPEGs, the longer side so many pixels at most")
    add_one("--raw", type=count, help="write PPMs, the shorter side so many pixels at most")
    add_one("--index", action="store_true", help="write the index of OUT's tar files alone")
    add_one("--check", action="store_true", help="compare OUT with its index, write nothing")
    every = "decode every image of this DIR and name the bad ones, write nothing"
    add_one("--verify", action="store_true", help=every)
    quality = "of --resize's JPEGs, 1 to 95 (%(default)s)"
    add("--quality", type=option_types.number_between(int, 1, 95), default=90, help=quality)
    names = "of --index: a name on each line (default: the WordNet ids in the images' names or in "
    names += ".json members; of a thousand classes, ImageNet's; else the numbers)"
    add("--classes", type=Path, help=names)
    first = "of --index: the number of the first class in .cls, which is 0 by default"
    add("--first-class", type=option_types.number_between(int, 0, 1), default=0, help=first)
    add("--images", type=count, default=10_000, help="per tar file (%(default)s)")
    processes = option_types.number_between(int, 1, 1024)
    add("-j", "--workers", type=processes, help="processes (default: as many as cores)")
    args = parser.parse_args()
    if (args.dir is None) != (args.index or args.check or args.verify):
        parser.error("give DIR and OUT to make shards, one of them for --index, --check, --verify")
    if args.first_class and not args.index:
        parser.error("--first-class is of --index")
    try:
        if args.check:
            print(f"{args.out}: {check(args.out)} are as they were written")
            return
        pool = concurrent.futures.ProcessPoolExecutor(args.workers, initializer=start_worker)
        if args.verify:
            images, bad = verify(args.out, pool)
            print(f"{args.out}: {bad} of {images} images cannot be used")
        else:
            images, bad = (make_index if args.index else make)(args, pool), 0
            print(f"{args.out}: {images} images")
        pool.shutdown()
    except (errors.BadInput, errors.Fault, OSError, RuntimeError) as error:
        end(parser, error)
    except SystemExit as ended:  # of stop()
        name = signal.Signals(ended.code - 128).name
        print(f"{parser.prog}: ended by {name}", file=sys.stderr, flush=True)
        os._exit(ended.code)  # a normal end would wait for what the processes were given to do
    if bad:
        sys.exit(1)


if __name__ == "__main__":
    for each in SIGNALS:
        signal.signal(each, stop)
    main()
