"""The data path: decoding, crops, the order of images, batch buffers, listings, damaged images.

Where the scripts say what is right by what they print, they are run; what a step reads is looked
at through the functions that give it.
"""

import contextlib
import ctypes
import functools
import importlib
import io
import itertools
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import time
import warnings
import zipfile
import zlib
from collections import Counter
from types import SimpleNamespace

import numpy as np
import PIL.features
import PIL.Image
import PIL.ImageDraw
import pytest
import scipy.stats
import torch
import torchvision
from conftest import ROOT, Hostile, command, complaint, no_table, run
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import imagenet_nd as nd
from trainparts import batch_plan, errors
from trainparts.images import (
    architectures,
    augmentation_policies,
    decoding,
    image_files,
    image_loading,
)

SAMPLE = ROOT.parent / "shared" / "data" / "imagenet_sample.tar"
CPU = torch.device("cpu")
TINY = "-a squeezenet1_1 --image-size 32 --epochs 1 --no-accel".split()
SCALE = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}  # of ImageNet


def evaluate(folder):
    """Returns the options to evaluate weights of TINY's architecture, which it writes."""
    weights = architectures.make_model("squeezenet1_1", num_classes=2).state_dict()
    torch.save(weights, folder / "weights.pt")
    return ["--evaluate", "--weights", folder / "weights.pt"]


@pytest.fixture(autouse=True)
def own_decoder():
    """Each test, and each loader worker that it forks, makes its own decoder."""
    decoding.region_decoder.cache_clear()
    yield
    decoding.region_decoder.cache_clear()


@pytest.fixture(params=["nvImageCodec", "Pillow"])
def decoder(request, monkeypatch):
    """Runs a test with each of the decoders."""
    if request.param == "Pillow":
        monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
        assert decoding.region_decoder() is None
    elif sys.platform == "linux":
        assert decoding.region_decoder(), "nvImageCodec is missing: pip install ."
    else:
        pytest.skip("pyproject.toml has nvImageCodec for Linux alone")
    return request.param


def photo(height, width, seed=0):
    """Returns pixels (H, W, 3) with shapes of all sizes, edges and noise, as photographs have."""
    rng = np.random.default_rng(seed)
    image = PIL.Image.new("RGB", (width, height), (120, 130, 90))
    canvas = PIL.ImageDraw.Draw(image)
    for radius in np.geomspace(min(height, width) / 3, 2, 60):
        x, y, colour = rng.uniform(0, width), rng.uniform(0, height), rng.integers(0, 256, 3)
        canvas.ellipse([x - radius, y - radius, x + radius, y + radius], tuple(colour.tolist()))
    noisy = np.asarray(image) + rng.normal(0, 6, (height, width, 3))
    return noisy.clip(0, 255).astype(np.uint8)


def encode(pixels, kind="JPEG", **options):
    """Returns an image file's bytes."""
    image = pixels if isinstance(pixels, PIL.Image.Image) else PIL.Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pillow(encoded):
    """Returns the pixels as Pillow converts them to RGB."""
    return np.asarray(PIL.Image.open(io.BytesIO(encoded)).convert("RGB"))


def whole(height, width):
    """The region that is the image."""
    return 0, 0, height, width


def open_data(args, place, global_batch=None):
    """Returns the Data of these options, as the scripts open it."""
    sharing, multiple = place.data_ranks * place.devices, nd.device_multiple(args)
    batches = batch_plan.split_batch(
        args.batch_size, sharing, args.accumulation, global_batch, multiple
    )
    return nd.open_data(args, place, nd.list_sources(args, place), batches)


def open_batches(folder, rank=0, ranks=1, workers=0, epoch=0, step=0, words=()):
    """Returns (schedule, iterator over batches) of a rank's slice of a global batch of 12."""
    decoding.region_decoder.cache_clear()
    words = ["-b", 12, "--global-batch", 12, "-j", workers, "--image-size", 24, *words, folder]
    args, place = nd.parse_args([str(word) for word in words]), nd.Place(CPU)
    place = place._replace(data_rank=rank, data_ranks=ranks)
    data = open_data(args, place, args.global_batch)
    over = functools.partial(bool, args.evaluate)
    schedule = [*nd.schedule_batches(args, place, data, epoch, step, over)]
    return schedule, nd.load_batches(args, place, data, iter(schedule))


class Loader(image_loading.Images):
    """An Images, as load_batches() makes it of options and of a Data, which tests may change."""

    def __init__(self, args, data):
        self.args, self.data = args, data
        self.policy = augmentation_policies.make_policy(
            args.auto_augment, data.interpolation, nd.mean_colour(data)
        )

    @property
    def sources(self):
        return {"train": self.data.train, "val": self.data.val}

    @property
    def mode(self):
        return self.data.interpolation

    @property
    def crops(self):
        return {"train": self.random_crop, "val": self.central_crop}

    def random_crop(self, *job):
        return nd.random_crop(self.args, self.data, self.policy, *job)

    def central_crop(self, *job):
        return nd.central_crop(self.args, self.data, *job)


def images_of(mode="bilinear"):
    """Returns what loads images of 224 pixels, in validation of those whose shorter side is 256."""
    data = nd.Data(*[None] * len(nd.Data._fields))._replace(val_resize=256, **SCALE)
    return Loader(nd.parse_args([]), data._replace(interpolation=mode))


def read(*given, **more):
    """Returns (training steps, validations) of two epochs of a rank, each a list of what it reads:
    (hash of the pixels, class)."""
    schedule, batches = open_batches(*given, words=["--epochs", 2], **more)
    train, val, training = [], [], True
    for (split, *_), (images, target, *_) in zip(schedule, batches, strict=True):
        pixels = [hash(image.numpy().tobytes()) for image in images]  # the buffer is used again
        found = [*zip(pixels, target.tolist(), strict=True)]
        if split == "train":
            train.append(found)
        elif training:
            val.append(found)
        else:
            val[-1] += found
        training = split == "train"
    return train, val


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A set of 2 x 25 + 2 x 11 images of several sizes and types, no two alike."""
    folder, serials = tmp_path_factory.mktemp("pictures") / "data", itertools.count()
    train = itertools.product(["train"], "ab", range(25))
    for split, label, number in (*train, *itertools.product(["val"], "ab", range(11))):
        path = folder / split / label / f"{number}.{'png' if number == 3 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = 30 + number, 40 - number
        PIL.Image.fromarray(photo(*size, next(serials))).save(path, quality=90)
    return folder


# ----------------------------------------------------------------------------- what a step reads


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 1), (2, 2), (4, 3)])
def test_a_step_reads_the_same_images_whoever_loads_them(ranks, workers, pictures):
    """To the bit, in the same order, for any number of ranks and workers, also from mid-epoch."""
    train, val = read(pictures)
    assert [len(step) for step in train] == [12] * 8, "of 50 images, the ragged step is left out"
    for step in 0, 2:
        found = [read(pictures, rank, ranks, workers, 0, step) for rank in range(ranks)]
        joined = [sum(slices, []) for slices in zip(*(each[0] for each in found), strict=True)]
        assert joined == train[step:]
        for number in range(2):
            assert Counter(sum((each[1][number] for each in found), [])) == Counter(val[number])


def test_epochs_differ_in_order_and_crops(pictures):
    train, val = read(pictures)
    first, second = sum(train[:4], []), sum(train[4:], [])
    assert len({pixels for pixels, _ in first + second}) == 96
    assert len(set(val[0])) == 22 and val[0] == val[1]
    assert read(pictures, epoch=1, step=3) == (train[7:], val[1:]), "resumed in the second epoch"
    schedule = open_batches(pictures, words=["--epochs", 2])[0]
    one, two = schedule[0][3], next(keys for _, epoch, _, keys in schedule if epoch == 1)
    other = open_batches(pictures, words=["--seed", 1])[0][0][3]
    assert one != two and one != other and one != sorted(one)


@pytest.mark.parametrize("size", [1, 7, 24, 50])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("batch", [1, 4])
def test_validation_has_every_image_once(size, ranks, batch, pictures, monkeypatch):
    def source(folder, **_):
        target = np.zeros(100 if folder.name == "train" else size, np.int32)
        return image_files.Source(str(folder), ["a"], *[target] * 4, target)

    monkeypatch.setattr(image_files, "open_source", source)
    monkeypatch.setattr(image_files, "name_classes", lambda folder: ["a"])
    args = nd.parse_args(["--evaluate", "--resume", "x", "-b", str(batch), str(pictures)])
    found, steps = [], set()
    for rank in range(ranks):
        place = nd.Place(CPU, data_rank=rank, data_ranks=ranks)
        data = open_data(args, place)
        batches = [*nd.schedule_batches(args, place, data, 0, 0, over=lambda: True)]
        steps |= {len(batches), nd.val_steps(place, data)}
        assert {job[:2] for job in batches} == {("val", None)}
        assert all(len(indices) <= batch for *_, indices in batches)
        found += itertools.chain(*(indices for *_, indices in batches))
    assert sorted(found) == [*range(size)]
    assert len(steps) == 1, "as many batches for every rank"


@pytest.mark.parametrize("workers", [0, 2])
def test_an_accumulated_step_has_the_same_images(workers, pictures):
    """Its micro-batches are loaded one at a time: -b is what memory has to hold."""
    for ranks in 1, 2:
        sizes = {"workers": workers, "ranks": ranks}
        batches = itertools.islice(open_batches(pictures, **sizes)[1], 4)  # an epoch
        expected = [images.clone() for images, *_ in batches]
        schedule, batches = open_batches(pictures, **sizes, words=["-b", 3, "--epochs", 1])
        found = {}
        for (split, _, position, _), (images, *_) in zip(schedule, batches, strict=True):
            assert len(images) <= 3
            if split == "train":
                found.setdefault(position // 12, []).append(images.clone())
        steps = [torch.cat(micro_batches) for micro_batches in found.values()]
        assert len(steps[0]) == 12 // ranks
        assert all(map(torch.equal, steps, expected))


def test_augmenting_leaves_dropouts_generator_alone(pictures):
    """Both draw from torch's, in one process where there are no loader processes."""
    schedule, batches = open_batches(pictures, words=["--auto-augment", "trivial"])
    torch.manual_seed(7)  # as build_run() does, once the loader is there
    before = torch.get_rng_state()
    next(batches)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("fewer", [0, 1])
def test_batch_buffers_are_enough_and_not_one_too_many(fewer, pictures, monkeypatch):
    """A batch is overwritten while the caller has it, where there is a buffer fewer."""
    allocate, made = torch.empty, []

    def empty(*size, **more):
        if not made and size[0] == 2 * 2 + 1:
            made.append(size)
            size = size[0] - fewer, *size[1:]
        return allocate(*size, **more)

    monkeypatch.setattr(torch, "empty", empty)
    batches = open_batches(pictures, workers=2, words=["--epochs", 3])[1]
    monkeypatch.undo()
    assert made, "buffers are no longer allocated like this: bring this trial up to date"
    overwritten = False
    for images, *_ in itertools.islice(batches, 8):
        before, until = images.clone(), time.monotonic() + (10 if fewer else 0.2)
        while torch.equal(before, images) and time.monotonic() < until:
            time.sleep(0.01)  # workers take milliseconds
        overwritten = overwritten or not torch.equal(before, images)
        if overwritten:
            break
    assert overwritten == bool(fewer)


@pytest.mark.parametrize("layout", [[], ["--channels-last"]])
def test_batches_on_the_device_are_normalised(layout, pictures):
    args = nd.parse_args(layout)
    images, target, *_ = next(open_batches(pictures)[1])
    assert images.dtype == torch.uint8 and images.shape == (12, 24, 24, 3)
    waits = []
    batch = images, target, "train", 0, 0
    finish = functools.partial(nd.finish_batch, args=args, data=SimpleNamespace(**SCALE))
    ((*job, ready, same),) = batch_plan.to_device([batch], finish, CPU, waits)
    assert job == ["train", 0]
    expected = functional.normalize(images.permute(0, 3, 1, 2).float() / 255, **SCALE)
    assert torch.allclose(ready, expected, atol=1e-5) and torch.equal(same, target)
    assert ready.is_contiguous(memory_format=torch.channels_last) == bool(layout)
    assert len(waits) == 1 and 0 <= waits[0] < 60


@pytest.mark.parametrize("layout", [[], ["--channels-last"]])
def test_noise_is_like_the_batches_of_its_split(layout, pictures):
    """In shape, type and layout: it stands for them where stages or buckets are measured."""
    args, data = nd.parse_args(layout), SimpleNamespace(image_size=24, val_size=32, **SCALE)
    batches = open_batches(pictures, words=["--epochs", 1, "--val-size", 32, *layout])[1]
    finish = functools.partial(nd.finish_batch, args=args, data=data)
    for split, _, *batch in batch_plan.to_device(batches, finish, CPU, []):
        noise = nd.dummy_batch(args, data, len(batch[0]), CPU, split)
        for one, other in zip(noise, batch, strict=True):
            assert one.shape == other.shape and one.dtype == other.dtype
            assert one.stride() == other.stride()


# --------------------------------------------------------------------------------- decode, resize


@pytest.mark.parametrize(
    "kind",
    ["plain", "grey", "progressive", "4:4:4", "CMYK", "restarts", "turned", "damaged EXIF", "PNG"],
)
def test_a_region_is_that_part_of_what_pillow_decodes(kind, decoder):
    exif = PIL.Image.Exif()
    exif[0x112] = 6
    options = {
        "progressive": {"progressive": True},
        "4:4:4": {"subsampling": 0},
        "restarts": {"restart_marker_rows": 1},
        "turned": {"exif": exif},
        "damaged EXIF": {"exif": b"Exif\0\0MM\0*\xff\xff\xff\xff\1"},
        "PNG": {"kind": "PNG"},
    }
    mode = {"grey": "L", "CMYK": "CMYK"}.get(kind, "RGB")
    image = PIL.Image.fromarray(photo(203, 307)).convert(mode)
    encoded = encode(image, **options.get(kind, {}))
    expected = pillow(encoded).astype(int)
    for box in whole(203, 307), (17, 33, 101, 64), (202, 306, 1, 1), (0, 200, 203, 107):
        top, left, height, width = box
        region = decoding.decode(encoded, lambda *size, box=box: box)
        assert region.dtype == np.uint8
        difference = region - expected[top : top + height, left : left + width]
        assert np.abs(difference).max() <= (kind == "CMYK"), box


def test_a_region_of_a_ppm_is_a_view():
    pixels = photo(20, 30)
    encoded = encode(pixels, "PPM")
    assert encoded.startswith(b"P6\n"), "Pillow's, which Pillow decodes"
    assert (decoding.decode(encoded, whole) == pixels).all()
    ours = b"P6 30 20 255\n" + pixels.tobytes()
    region = decoding.decode(ours, lambda *size: (3, 4, 10, 5))
    assert (region == pixels[3:13, 4:9]).all() and not region.flags.owndata
    with pytest.raises(errors.BadInput):
        decoding.decode(ours[:-1], whole)
    assert (decoding.decode(ours + b"another image", whole) == pixels).all(), "as Pillow reads it"


def samples(folder):
    """Returns JPEG files: generated ones and, where they are at hand, real ones of ImageNet."""
    files = [encode(photo(375, 500, seed), quality=95) for seed in range(4)]
    if SAMPLE.exists():
        shutil.unpack_archive(SAMPLE, folder)
        paths = sorted((folder / "imagenet_sample" / "val").rglob("*.JPEG"))[:16]
        files += [path.read_bytes() for path in paths]
    return files


def test_crops_and_centres_are_torchvisions_and_pillows(decoder, tmp_path):
    """Within a grey level of torchvision's on uint8; on average, within half of one of Pillow's."""
    modes = {"bilinear": PIL.Image.BILINEAR, "bicubic": PIL.Image.BICUBIC}
    images = [images_of(mode) for mode in modes]
    out = torch.empty(224, 224, 3, dtype=torch.uint8)
    for seed, encoded in enumerate(samples(tmp_path)):
        pixels = pillow(encoded)
        planes = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        for loader in images:
            rng = nd.random.Random(f"0 0 {seed}")
            mirrored = rng.random() < 0.5
            top, left, height, width = nd.crop_box(*pixels.shape[:2], rng)
            image_loading.load_alone(encoded, loader.random_crop(out, seed, 0))
            crop = (out.flip(1) if mirrored else out).clone()
            size = {
                "size": [224, 224],
                "interpolation": v2.InterpolationMode(loader.mode),
            }
            theirs = functional.resized_crop(planes, top, left, height, width, **size)
            assert (crop.permute(2, 0, 1).int() - theirs.int()).abs().max() <= 1
            box = (left, top, left + width, top + height)
            theirs = PIL.Image.fromarray(pixels).crop(box).resize((224, 224), modes[loader.mode])
            assert np.abs(crop.numpy().astype(int) - np.asarray(theirs)).mean() < 0.5
            image_loading.load_alone(encoded, loader.central_crop(out))
            resize = v2.Resize(256, v2.InterpolationMode(loader.mode), antialias=True)
            theirs = v2.CenterCrop(224)(resize(planes))
            assert (out.permute(2, 0, 1).int() - theirs.int()).abs().max() <= 1


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (60, 500), (500, 40)])
def test_crops_are_distributed_as_torchvisions(height, width):
    """The same shares of each measure (Kolmogorov-Smirnov), also where ten draws do not fit."""
    theirs, shape, expected = v2.RandomResizedCrop(224), torch.empty(3, height, width), []
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for _ in range(2000):
            drawn = theirs.make_params([shape])
            expected.append([drawn[name] for name in ("top", "left", "height", "width")])
    # Seeded as Images seeds them, one generator per image.
    ours = [nd.crop_box(height, width, nd.random.Random(f"7 3 {each}")) for each in range(2000)]
    ours, expected = np.array(ours, float).T, np.array(expected, float).T

    def measures(top, left, height, width):
        ends = {"bottom": top + height, "right": left + width}
        return {"area": height * width, "ratio": width / height, "top": top, "left": left} | ends

    expected = measures(*expected)
    for name, found in measures(*ours).items():
        assert scipy.stats.ks_2samp(found, expected[name]).pvalue > 1e-3, name


def chunk(kind, content):
    """Returns a chunk of a PNG."""
    sum_of = zlib.crc32(kind + content).to_bytes(4, "big")
    return len(content).to_bytes(4, "big") + kind + content + sum_of


def deep_png(channels, bits=16, first=b""):
    """Returns a PNG of 2 x 3 pixels with 16 bits a channel, which no library here writes; `first`
    is a chunk before its header, which Pillow allows."""
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + b"\x0f\xff"[-bits // 8 :] * 3 * channels for _ in range(2))
    head = (3).to_bytes(4, "big") + (2).to_bytes(4, "big") + bytes([bits, colour, 0, 0, 0])
    parts = first, chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def deep_tiff():
    """Returns a TIFF of 2 x 3 pixels of three channels of 16 bits."""
    pixels, entries = b"\xff\x0f" * 18, 8
    after = 8 + 2 + 12 * entries + 4
    tags = [(256, 3, 1, 3), (257, 3, 1, 2), (258, 3, 3, after), (259, 3, 1, 1), (262, 3, 1, 2)]
    tags += [(273, 4, 1, after + 6), (277, 3, 1, 3), (279, 4, 1, len(pixels))]
    ifd = struct.pack("<H", entries) + b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return (
        b"II*\0" + struct.pack("<I", 8) + ifd + bytes(4) + struct.pack("<3H", 16, 16, 16) + pixels
    )


TEXT = chunk(b"tEXt", b"comment\0" + b"z" * 20)
DEEP = {
    "I;16": lambda: encode(PIL.Image.new("I;16", (3, 2), 4095), "PNG"),
    "PGM": lambda: b"P5 2 1 65535\n" + b"\x0f\xff" * 2,
    "grey and alpha": lambda: deep_png(2),
    "RGB": lambda: deep_png(3),
    "RGBA": lambda: deep_png(4),
    "RGB behind text": lambda: deep_png(3, first=TEXT),
    "RGB, TIFF": deep_tiff,
    **{
        f"{kind.__name__}, TIFF": lambda kind=kind: encode(
            PIL.Image.fromarray(np.arange(64).reshape(8, 8).astype(kind)), "TIFF"
        )
        for kind in (np.uint16, np.int32, np.float32)
    },
}


@pytest.mark.parametrize("kind", DEEP)
def test_images_of_more_than_8_bits_are_refused(kind):
    """Nobody knows what is white; Pillow would clip them at 255, or take the upper 8 bits."""
    encoded = DEEP[kind]()
    assert pillow(encoded).shape[2] == 3, "Pillow reads it"
    cure = "convert it to 8 bits, by a range that you choose"
    with pytest.raises(errors.BadInput, match=f"more than 8 bits a channel, .*{cure}"):
        decoding.decode(encoded, whole)


def test_a_range_that_the_file_says_is_used():
    """A PPM has its largest value in its header; 5, 6 and 5 bits of a BMP are 16 a pixel."""
    ppm = b"P6 2 1 4095\n" + b"\x0f\xff" * 3 + b"\x08\x00" * 3
    assert decoding.decode(ppm, whole).tolist() == [[[255] * 3, [128] * 3]]
    head = struct.pack("<IiiHHIIiiII", 40, 2, 1, 1, 16, 3, 4, 0, 0, 0, 0)
    head += struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    bmp = b"BM" + struct.pack("<IHHI", 70, 0, 0, 66) + head + b"\xff\xff\0\0"
    assert decoding.decode(bmp, whole).tolist() == [[[255] * 3, [0] * 3]]
    assert decoding.decode(deep_png(3, 8, TEXT), whole).tolist() == 2 * [3 * [[255] * 3]]


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF"])
def test_formats_of_pillow(kind):
    if kind == "AVIF" and not PIL.features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    encoded = encode(photo(40, 50), kind)
    found = decoding.decode(encoded, lambda height, width: (3, 4, 30, 20))
    assert (found == pillow(encoded)[3:33, 4:24]).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_a_region_of_every_mode_is_converted_like_the_whole(mode, decoder):
    kind = {"CMYK": "TIFF", "YCbCr": "TIFF"}.get(mode, "PNG")
    encoded = encode(PIL.Image.fromarray(photo(40, 50)).convert(mode), kind)
    found = decoding.decode(encoded, lambda height, width: (3, 4, 30, 20))
    assert (found == pillow(encoded)[3:33, 4:24]).all()
    assert (decoding.decode(encoded, whole) == pillow(encoded)).all()


@pytest.mark.parametrize(
    ("encoded", "why"),
    [
        (b"", "Pillow cannot identify it: it begins with b''"),
        (b"<!DOCTYPE html><html>", "Pillow cannot identify it: it begins with b'<!DOCTYPE html><'"),
        (b"\0\0\0\x18ftypheic", r"it begins with b'\x00\x00\x00\x18ftypheic'"),
        (encode(photo(8, 8), "TGA"), "it is TGA, not one of JPEG, PNG, "),
        (encode(photo(8, 8), "ICO"), "it is ICO, not one of JPEG, PNG, "),
    ],
)
def test_what_a_file_is_that_is_not_read(encoded, why):
    with pytest.raises(errors.BadInput, match=re.escape(why)):
        decoding.decode(encoded, whole)


def test_no_image_has_another_program_run(monkeypatch):
    """Pillow goes by what is in a file, not by its name: PostScript would go to Ghostscript."""
    started = []
    plugin = importlib.import_module("PIL.EpsImagePlugin")
    monkeypatch.setattr(plugin, "Ghostscript", lambda *given: started.append(given))
    encoded = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n"
    with pytest.raises(errors.BadInput):
        decoding.decode(encoded, whole)
    assert not started


# ------------------------------------------------------------------------------- lists of images


def of_all_kinds():
    """Returns files of every way that a list may go: what it takes, what it leaves out because of
    its kind or its size, and what libjpeg warns of."""
    good = encode(photo(90, 70))
    half = len(good) // 2
    files = [good, encode(photo(60, 80), "PNG"), good[:half] + bytes(64) + good[half + 64 :]]
    files += [encode(photo(900, 700)), encode(PIL.Image.fromarray(photo(50, 40)).convert("CMYK"))]
    files += [encode(photo(40 + each, 90 - each, each)) for each in range(40)]
    return files + [b"P6 30 20 255\n" + photo(20, 30).tobytes(), encode(photo(30, 40)[..., 0])]


def loader_of(files, words=()):
    """Returns an Images that reads these files, in training and validation."""
    source = SimpleNamespace(target=np.arange(len(files)), path=str, read=files.__getitem__)
    loader = images_of()
    loader.args = nd.parse_args([*words])
    loader.data = loader.data._replace(train=source, val=source, val_resize=32)
    return loader


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_list_gives_what_each_image_gives_alone(split, decoder, monkeypatch, capfd):
    """To the bit, in its order; each file is read once. Of what libjpeg warns, Pillow decodes."""
    files = of_all_kinds()
    loader, reads = loader_of(files), []
    loader.pixels = lambda *job: batch
    loader.data.train.read = loader.data.val.read = lambda key: reads.append(key) or files[key]
    keys = [*range(len(files))][::-1]
    batch = torch.zeros(len(files), 24, 24, 3, dtype=torch.uint8)
    *_, target = loader[0, split, 3, 0, keys]
    assert target == keys and reads == keys
    for out, key in zip(batch, keys, strict=True):
        crop, alone = loader.random_crop if split == "train" else loader.central_crop, out.clone()
        image_loading.load_alone(files[key], crop(alone.zero_(), key, 3))
        assert torch.equal(out, alone) and out.any(), key
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="nvImageCodec is for Linux")
def test_a_region_is_chosen_once_though_two_decoders_try(monkeypatch):
    """Of an image that libjpeg warns of, and Pillow reads: its crop is that of Pillow alone."""
    good = encode(photo(90, 70))
    loader = loader_of([good[:-2] + bytes([18] * 20) + good[-2:]] * 40)
    batches = []
    for _ in range(2):
        batches.append(torch.zeros(40, 24, 24, 3, dtype=torch.uint8))
        loader.pixels = lambda *job: batches[-1]
        loader[0, "train", 0, 0, [*range(40)]]
        monkeypatch.setattr(decoding, "region_decoder", lambda: None)
    assert torch.equal(*batches) and batches[0].any()


@pytest.mark.parametrize("side", range(48, 60))
def test_central_crops_are_torchvisions_to_the_pixel(side):
    """Also where what is left is odd: half of it is rounded to even."""
    pixels = photo(side, side + 13)
    for size in 24, 33:
        loader, out = loader_of([pixels]), torch.zeros(size, size, 3, dtype=torch.uint8)
        loader.data = loader.data._replace(val_resize=side)  # as it is
        write = loader.central_crop(out)
        next(write)
        write.send(pixels)
        planes = torch.from_numpy(pixels).permute(2, 0, 1)
        expected = functional.center_crop(planes, [size, size]).permute(1, 2, 0)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("sides", [(100, 1001), (999, 223), (300, 1201), (64, 1200)], ids=str)
def test_central_crops_of_long_images_are_torchvisions(sides):
    """Up to 20:1; of a longer one all that is farther from the middle is cut off first."""
    pixels = photo(*sides)
    loader, out = loader_of([pixels]), torch.zeros(64, 64, 3, dtype=torch.uint8)
    loader.data = loader.data._replace(val_resize=73)
    write = loader.central_crop(out)
    top, left, height, width = next(write)(*sides)
    write.send(pixels[top : top + height, left : left + width])
    image = v2.Resize(73, antialias=True)(torch.from_numpy(pixels).permute(2, 0, 1))
    expected = v2.CenterCrop(64)(image).permute(1, 2, 0)
    assert (out.int() - expected.int()).abs().max() <= 1
    assert (height, width) == sides


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "trivial", "augmix"])
def test_policies_draw_from_the_image_alone(policy, monkeypatch):
    """Whatever was drawn before, from any generator."""
    files = [encode(photo(60, 50, each)) for each in range(8)]
    batches = []
    for seed in 1, 2:
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        loader = loader_of(files)
        data = loader.data._replace(interpolation="bilinear")
        made = Loader(nd.parse_args(["--auto-augment", policy]), data)
        batches.append(torch.zeros(8, 24, 24, 3, dtype=torch.uint8))
        made.pixels = lambda *job: batches[-1]
        made[0, "train", 1, 0, [*range(8)]]
    assert torch.equal(*batches) and batches[0].float().std() > 10


def test_the_digest_is_of_the_classes_of_images_and_of_their_names_too(tmp_path):
    """Shards that are labelled anew in place are other data, and so are files in another order."""
    for name in "xy":
        (tmp_path / name).touch()  # of one size
    ones, names = np.ones(2, np.int64), np.array([b"x", b"y"])
    source = image_files.Source(str(tmp_path), ["a", "b"], names, 0 * ones, 0 * ones, ones, ones)
    for other in (
        source._replace(target=np.array([1, 0])),
        source._replace(names=names[::-1].copy()),
    ):
        assert source.digest() != other.digest()
    assert source.digest() == source._replace(target=ones.copy()).digest()


def test_a_file_that_was_replaced_is_read_anew(tmp_path, monkeypatch):
    """A shard for another attempt, an image each time, which also leaves no file open."""
    target = np.zeros(1, np.int64)
    images = image_files.Source(
        str(tmp_path), ["a"], np.array([b"x"]), target, target, target - 1, target
    )
    shard = images._replace(length=target + 4)
    monkeypatch.setattr(nd.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(image_loading, "load_alone", lambda encoded, write: encoded)
    for number, content in enumerate((b"old.", b"new.")):
        (tmp_path / "y").write_bytes(content)
        (tmp_path / "y").replace(tmp_path / "x")
        assert images.read(0) == content
        assert shard.read(0) == b"old.", "it is open"
        if number:
            assert (
                image_loading.load_again(shard, 0, lambda: None, errors.BadInput("damaged"))
                == content
            )
    image_files.open_shard.cache_clear()
    before = len(os.listdir("/dev/fd"))
    assert images.read(0) and len(os.listdir("/dev/fd")) == before


@pytest.mark.skipif(sys.platform != "linux", reason="nvImageCodec is for Linux")
def test_lists_are_as_long_as_memory_allows(monkeypatch):
    """32 images of half a megapixel at most, and of 1.5 MB; what is larger is decoded alone."""
    files = of_all_kinds()[3:]
    files += [encode(photo(512, 1024)), encode(photo(512, 1025))]
    small = encode(photo(64, 48))
    files += [
        small[:2] + 30 * (b"\xff\xef\xff\xff" + bytes(0xFFFD)) + small[2:]
    ]  # 2 MB of a maker's
    loader, lists, decode_regions = loader_of(files), [], decoding.decode_regions

    def decode(regions):
        lists.append(decode_regions(regions))
        return [*lists[-1]]

    monkeypatch.setattr(decoding, "decode_regions", decode)
    loader.pixels = lambda *job: torch.zeros(len(files), 24, 24, 3, dtype=torch.uint8)
    loader[0, "val", 0, 0, [*range(len(files))]]
    sizes = [[math.prod(image.shape[:2]) for image in images] for images in lists]
    alone = [size for size in sizes if len(size) == 1]
    assert sorted(alone) == [[64 * 48], [512 * 1025], [900 * 700]]
    listed = [size for size in sizes if len(size) > 1]
    assert len(listed) == 2 and sum(map(len, listed)) == len(files) - 4, "all but the PPM"
    assert max(map(len, listed)) <= 32 and max(map(max, listed)) == 2**19


def test_damaged_images_of_a_list_are_named(decoder, monkeypatch):
    """Those that nobody can decode end the run, by name, after another attempt."""
    pauses, files = [], of_all_kinds()
    monkeypatch.setattr(nd.time, "sleep", pauses.append)
    for bad in files[0][:400] + b"\xff\xd9", no_table(files[0]), b"", b"no picture":
        for at in 0, 7, 40:
            some = [*files[:at], bad, *files[at + 1 :]]
            loader = loader_of(some)
            batch = torch.zeros(len(files), 24, 24, 3, dtype=torch.uint8)
            loader.pixels = lambda *job, batch=batch: batch
            *_, error = loader[0, "val", 0, 0, [*range(len(some))]]
            assert isinstance(error, errors.BadInput), error
            assert str(error).startswith(f"{at}: image {at} cannot be used: ")
    assert pauses == [1] * 12


def test_an_image_read_again_draws_the_same(monkeypatch):
    """Also if what was read first was another image, of another size."""
    monkeypatch.setattr(nd.time, "sleep", lambda seconds: None)
    right, wrong = encode(photo(90, 70)), no_table(encode(photo(64, 200)))
    for first in wrong, wrong[:500], OSError(5, "Input/output error"):
        reads = [first, right]

        def read(index, reads=reads):
            if isinstance(content := reads.pop(0), Exception):
                raise content
            return content

        loader, (out, alone) = loader_of([right]), torch.zeros(2, 1, 24, 24, 3, dtype=torch.uint8)
        loader.data.train.read = read
        loader.load("train", 2, [0], out)
        image_loading.load_alone(right, loader.random_crop(alone[0], 0, 2))
        assert torch.equal(out, alone) and not reads


# -------------------------------------------------------------------------------- damaged images


def grown(work):
    """Returns (what `work` returns, or why it is refused, MB that it took), measured in a fork."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def measure():
        torch.set_num_threads(1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB
        try:
            result = work()
        except errors.BadInput as error:
            result = f"refused: {error}"
        took = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        theirs.send((result, took / 1000))

    process = context.Process(target=measure)
    process.start()
    answer = ours.recv()
    process.join()
    return answer


@pytest.mark.parametrize("kept", [0, 2, 100, 0.3, 0.9, -2])
def test_a_truncated_jpeg_cannot_be_read(kept, decoder):
    encoded = encode(photo(200, 300))
    end = int(kept * len(encoded)) if isinstance(kept, float) else kept
    for region in whole(200, 300), (0, 0, 10, 10):
        with pytest.raises(errors.BadInput):
            decoding.decode(encoded[:end], lambda *size, region=region: region)


@pytest.mark.parametrize("kind", ["plain", "4:4:4", "progressive", "grey"])
def test_a_jpeg_that_is_damaged_in_its_middle_is_never_half_grey(kind, decoder):
    """Refused where the damage is in the region or above it; what is decoded above it is right."""
    pixels = photo(200, 160)[..., 0] if kind == "grey" else photo(200, 160)
    options = {"4:4:4": {"subsampling": 0}, "progressive": {"progressive": True}}.get(kind, {})
    good = encode(pixels, **options)
    damaged, right = no_table(good), pillow(good)
    for top, left, height, width in whole(200, 160), (150, 0, 40, 160), (190, 70, 10, 5):
        with pytest.raises(errors.BadInput, match="broken data stream"):
            decoding.decode(damaged, lambda *_, box=(top, left, height, width): box)
    box = 0, 30, 16, 70
    try:
        region = decoding.decode(damaged, lambda *_: box)
    except errors.BadInput:
        assert decoder == "Pillow" or kind == "progressive"
    else:
        assert (region == right[:16, 30:100]).all()


@pytest.mark.skipif(sys.platform != "linux", reason="nvImageCodec is for Linux")
def test_only_libjpeg_turbo_decodes_regions(monkeypatch, capfd):
    """Also if it printed nothing where it fails, no other decoder of nvImageCodec goes on."""
    monkeypatch.setattr(decoding, "hushed", lambda: contextlib.nullcontext([]))
    good = encode(photo(64, 64))
    assert decoding.decode_region(good, whole) is not None
    assert decoding.decode_region(no_table(good), whole) is None
    assert "Bogus marker length" in capfd.readouterr().err


def test_one_region_is_drawn_though_two_decoders_try():
    """Or the crop would depend on whether nvImageCodec is installed."""
    encoded, chosen = encode(photo(64, 64)), []

    def choose(height, width):
        chosen.append((height, width))
        return 34 + len(chosen), 2, 29, 20

    half = len(encoded) // 2  # libjpeg warns of it, and reads it
    second = encoded[:half] + bytes(64) + encoded[half + 64 :]
    assert decoding.decode_region(second, lambda *_: (35, 2, 29, 20)) is None
    assert (decoding.decode(second, choose) == pillow(second)[35:64, 2:22]).all()
    assert chosen == [(64, 64)]


def test_damaged_jpegs_are_read_as_pillow_reads_them(capfd, decoder):
    """Or as it refuses them, in its words; without a warning that does not say of which file."""
    rng, refused, read = random.Random(0), 0, 0
    images = [encode(photo(96, 128, seed), progressive=seed == 1) for seed in range(4)]
    for number in range(120):
        encoded, other = images[number % 4], images[(number + 1) % 4]
        at, length = rng.randrange(700, len(encoded) - 600), 2 ** rng.randrange(3, 9)
        put = [rng.randbytes(length), other[:length], b"", bytes(length)][number // 4 % 4]
        damaged = encoded[:at] + put + encoded[at + length :]
        try:
            expected = pillow(damaged)
        except OSError as error:
            refused += 1
            with pytest.raises(errors.BadInput, match=re.escape(str(error).split(" <_io")[0])):
                decoding.decode(damaged, whole)
        else:
            read += 1
            assert (decoding.decode(damaged, whole) == expected).all()
    assert refused > 20 and read > 20
    assert capfd.readouterr() == ("", "")
    ctypes.CDLL(None).perror(b"C libraries")
    assert capfd.readouterr().err.startswith("C libraries: "), "print when nothing is decoded"


def test_the_decoder_leaves_the_environment_and_no_files(tmp_path, monkeypatch):
    """OpenCV elsewhere in the process keeps its limit, which is not a part of this one."""
    limit = "OPENCV_IO_MAX_IMAGE_PIXELS"
    for before in None, "12345":
        monkeypatch.delenv(limit, raising=False)
        if before:
            monkeypatch.setenv(limit, before)
        decoding.region_decoder.cache_clear()
        decoding.region_decoder()
        assert os.environ.get(limit) == before
    code = "import os, signal, tempfile; from trainparts.images import decoding\n"
    code += "before = os.listdir(tempfile.gettempdir())\n"  # PyTorch has a folder there
    code += "assert decoding.region_decoder() and os.listdir(tempfile.gettempdir()) == before\n"
    code += "os.kill(os.getpid(), signal.SIGKILL)"
    env = {"TMPDIR": tmp_path, "PYTHONPATH": ROOT}
    run([sys.executable, "-c", code], tmp_path, status=-signal.SIGKILL, env=env)


def test_pillows_warnings_are_not_printed():
    """They do not say of which file. A palette whose transparency has levels, for one."""
    image = PIL.Image.fromarray(photo(8, 8)).convert("P")
    encoded = encode(image, "PNG", transparency=bytes(range(256)))
    with pytest.warns(UserWarning, match="Palette images with Transparency"):
        pillow(encoded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoding.decode(encoded, whole)


@pytest.mark.parametrize("compression", ["tiff_lzw", "group4"])
def test_libtiff_does_not_print(compression, capfd):
    """It would not say of which file."""
    image = PIL.Image.fromarray(photo(64, 64)).convert("1" if compression == "group4" else "RGB")
    encoded = encode(image, "TIFF", compression=compression)
    half = len(encoded) // 2
    damaged = encoded[:half] + b"\xff\x0f\xff" + encoded[half + 3 :]
    with contextlib.suppress(OSError):
        pillow(damaged)
    assert capfd.readouterr().err, "libtiff prints"
    with contextlib.suppress(errors.BadInput):
        decoding.decode(damaged, whole)
    assert capfd.readouterr() == ("", "")


def test_without_glibc_its_libraries_print(monkeypatch, capfd):
    """And images are read."""
    monkeypatch.setattr(decoding.ctypes, "CDLL", lambda name: object())
    decoding.c_stderr.cache_clear()
    try:
        encoded = encode(photo(64, 64))
        assert (decoding.decode(encoded, whole) == pillow(encoded)).all()
        with pytest.raises(errors.BadInput):
            decoding.decode(no_table(encoded), whole)
        assert decoding.c_stderr()[0] is None
    finally:
        decoding.c_stderr.cache_clear()


def test_a_huge_claim_takes_the_memory_that_the_page_says(decoder):
    """13,000 x 13,000 pixels in the header of a small file are below Pillow's limit."""
    encoded = bytearray(encode(photo(60, 60)))
    at = encoded.index(b"\0\x3c\0\x3c")
    encoded[at : at + 4] = (13_000).to_bytes(2, "big") * 2
    for region, most in (whole(13_000, 13_000), 2000), ((6000, 6000, 100, 100), 800):

        def work(region=region):
            return decoding.decode(bytes(encoded), lambda *_: region).shape

        shape, megabytes = grown(work)
        assert shape == (*region[2:], 3) and megabytes < most


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_header_of_too_many_pixels_is_refused_unread(kind, monkeypatch):
    encoded = bytearray(encode(photo(40, 50), kind))
    sides = {"JPEG": b"\0\x28\0\x32", "PNG": b"\0\0\0\x32\0\0\0\x28"}[kind]
    at, half = encoded.index(sides), len(sides) // 2
    encoded[at : at + 2 * half] = (30_000).to_bytes(half, "big") * 2
    if kind == "PNG":
        encoded[29:33] = zlib.crc32(encoded[12:29]).to_bytes(4, "big")
    answer, megabytes = grown(lambda: decoding.decode(bytes(encoded), whole) is None)
    assert str(answer).startswith("refused") and megabytes < 200, answer


def test_a_long_thin_image_is_validated_in_little_memory():
    encoded, images = encode(photo(1, 30_000)), images_of()

    def load():
        out = torch.zeros(224, 224, 3, dtype=torch.uint8)
        image_loading.load_alone(encoded, images.central_crop(out))
        return bool(out.any())

    answer, megabytes = grown(load)
    assert answer is True and megabytes < 200


@pytest.mark.parametrize(("kind", "workers"), [("folder", 2), ("shards", 0)])
def test_an_image_that_cannot_be_decoded_ends_the_run(kind, workers, pictures, tmp_path):
    """In one line that names it, in val/ alike; nothing trains without it in silence."""
    folder = shutil.copytree(pictures, tmp_path / "data")
    paths = {split: folder / split / "b" / "7.jpg" for split in ("train", "val")}
    for path in paths.values():
        path.write_bytes(path.read_bytes()[:300])
    if kind == "shards":
        make_shards(folder, folder := tmp_path / "shards")
        paths = {split: folder / split / "000000.tar" for split in paths}
    words = [*command("imagenet_nd.py"), *TINY, "-b", 10, "-j", workers, folder]
    for split, more in ("train", []), ("val", evaluate(tmp_path)):
        line = complaint([*words, *more], tmp_path, only=False)
        assert f"error: {paths[split]}: image " in line and "cannot be used: " in line
        assert "truncated" in line.lower()


def test_an_image_that_cannot_be_decoded_ends_all_ranks(pictures, tmp_path):
    """Though one rank alone reads it."""
    folder = shutil.copytree(pictures, tmp_path / "data")
    path = folder / "val" / "b" / "7.jpg"
    path.write_text("no picture")
    words = [*command("imagenet_ddp.py", 2), *TINY, "-b", 5, "-j", 1, "--steps-per-epoch", 1]
    output = run([*words, folder], tmp_path, status=2)
    assert f"error: {path}: image " in output and "Traceback" not in output


def failing(monkeypatch, *faults):
    """Returns (an image's loader, the pauses that it makes), whose reads fail one after the other:
    by an error, or by other bytes; the next ones are right."""
    pauses, faults, encoded = [], [*faults], encode(photo(40, 50))

    class Files:
        target = np.zeros(8, int)

        def read(self, index):
            fault = faults.pop(0) if faults else encoded
            if isinstance(fault, Exception):
                raise fault
            return fault

        def path(self, index):
            return f"{index}.jpg"

    monkeypatch.setattr(nd.time, "sleep", pauses.append)
    loader = images_of()
    loader.data = loader.data._replace(train=Files(), val=Files(), val_resize=32)
    out = torch.zeros(1, 24, 24, 3, dtype=torch.uint8)
    return lambda split: loader.load(split, 0, [11], out), pauses


STALE = OSError(116, "Stale file handle")


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize(
    ("faults", "waited", "kind"),
    [
        ([], [], None),
        ([STALE] * 2, [1, 5], None),
        ([STALE] * 3, [1, 5, 20], None),
        ([STALE] * 4, [1, 5, 20], errors.Fault),
        ([b"no picture"], [1], None),
        ([b"no picture"] * 2, [1], errors.BadInput),
    ],
    ids=str,
)
def test_a_read_that_fails_is_tried_again(split, faults, waited, kind, monkeypatch):
    """One that fails for a while ends no run."""
    load, pauses = failing(monkeypatch, *faults)
    if kind:
        with pytest.raises(kind, match="3.jpg: image 3 cannot be used: "):  # of key 11, of 8
            load(split)
    else:
        assert load(split) == [0]
    assert pauses == waited


@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_a_fault(pictures, tmp_path):
    """Status 1: a later start may find it."""
    folder = shutil.copytree(pictures, tmp_path / "data")
    path = folder / "val" / "b" / "7.jpg"
    path.unlink()
    path.symlink_to("nowhere")
    words = [*command("imagenet_nd.py"), *TINY, "-b", 10, "-j", 2, *evaluate(tmp_path), folder]
    line = complaint(words, tmp_path, only=False, status=1)
    assert str(path) in line and "No such file" in line


# ------------------------------------------------------------------------------ folders and shards


def make_shards(*words):
    """Runs tools/make_shards.py in this process."""
    decoding.region_decoder.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        patch.setattr(sys, "argv", ["make_shards.py", *map(str, words), "-j", "2"])
        importlib.import_module("make_shards").main()


@pytest.fixture(scope="module")
def shards(pictures):
    """What tools/make_shards.py makes of the pictures, in several tar files."""
    out = pictures.parent / "shards"
    make_shards(pictures, out, "--images", 15)
    return out


@pytest.mark.parametrize("kind", ["shards", "existing tars", "raw"])
def test_shards_give_what_the_folder_gives(kind, pictures, shards, tmp_path):
    """The same images at each step, to the bit: so the same loss curve."""
    folder = shards
    if kind == "raw":  # larger than any of the pictures: their very pixels
        make_shards(pictures, folder := tmp_path / "raw", "--raw", 256)
    elif kind == "existing tars":
        shutil.copytree(shards, folder := tmp_path / "copy", ignore=lambda *_: ["index.npz"])
        make_shards("--index", folder)
    assert read(folder, workers=1) == read(pictures)
    halves = [read(folder, rank, 2, 0, 0, 3)[0] for rank in range(2)]
    assert [sum(pair, []) for pair in zip(*halves, strict=True)] == read(pictures)[0][3:]


@pytest.mark.parametrize("order", [sorted, lambda found: sorted(found)[::-1]], ids=["up", "down"])
def test_listed_as_imagefolder_lists(order, tmp_path, monkeypatch):
    """With all that it takes or leaves, in whatever order the file system has it."""
    first = ("b/2.JPEG", "b/10.jpeg", "b/x.PNG", "b/notes.txt", "b/in/1.jpg", "b/in/er/a.bmp")
    second = ("b/Z.jpg", "a/ä.jpg", "a/1.webp", "a/dir.jpg/2.tif", "B/0.ppm", "loose.jpg")
    for name in (*first, *second):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "c").symlink_to(tmp_path / "b" / "in")
    expected, walk = torchvision.datasets.ImageFolder(tmp_path), os.walk
    monkeypatch.setattr(os, "walk", lambda *words, **more: order(walk(*words, **more)))
    found = image_files.open_source(tmp_path)
    assert found.classes == expected.classes
    paths = [found.path(index) for index in range(len(found.target))]
    assert [*zip(paths, found.target.tolist(), strict=True)] == expected.samples


def heading(folder):
    """Returns the lines on the data of a folder, and its train and val."""
    data = open_data(nd.parse_args(["-b", "2", str(folder)]), nd.Place(CPU))
    return nd.about_data(data), data.train, data.val


def test_what_is_read_is_counted_and_what_is_not(pictures, tmp_path):
    folder = shutil.copytree(pictures, tmp_path / "data")
    counts = "50 training and 22 validation images, 2 classes"
    assert heading(folder)[0] == [counts]
    for name in ("a/1.jfif", "b/2.JFIF", "b/in/3.gif", "a/README", "a/.DS_Store", "loose.jpg"):
        (folder / "val" / name).parent.mkdir(exist_ok=True)
        (folder / "val" / name).touch()
    for name in ("a/.cache/x.txt", "a/._1.txt", ".cache.jpg"):  # of other programs
        (folder / "train" / name).parent.mkdir(exist_ok=True)
        (folder / "train" / name).touch()
    (first, second), *sources = heading(folder)
    assert first == counts
    what, _, kinds = second.rpartition(": ")
    assert what == f"{folder}/val: files that are not read"
    assert kinds.startswith("2 *.jfif, ") and set(kinds.split(", ")[1:]) == {
        "1 *.gif",
        "1 images beside the classes",
        "1 without a suffix",
    }
    assert [each.digest() for each in sources] == [each.digest() for each in heading(pictures)[1:]]
    for name in (
        *(f"a/1.{n}" for n in range(100)),
        "a/2.a\nb",
        "a/3.a\nb",
        os.fsdecode(b"b/4.\xe9"),
    ):
        (folder / "train" / name).touch()
    kinds = r"2 *.a\nb, 1 *.0, 1 *.1, 1 *.10, 1 *.11, 97 of other kinds"
    assert heading(folder)[0][1] == f"{folder}/train: files that are not read: {kinds}"


def test_synthetic_images_are_as_many_as_imagenets():
    args = nd.parse_args(["--dummy"])
    data = open_data(args, nd.Place(CPU))
    images = "1,281,167 training and 50,000 validation images, 1,000 classes"
    assert nd.about_data(data) == [f"{images}, all synthetic"]


def test_the_counts_are_printed_once(pictures, tmp_path):
    words = [*command("imagenet_ddp.py", 2), *TINY, "-b", "2", "-j", "0", "--steps-per-epoch", "1"]
    output = run([*words, pictures], tmp_path)
    assert output.count("50 training and 22 validation images, 2 classes\n") == 1


@pytest.mark.parametrize("kind", ["folder", "no folder", "shards"])
def test_a_class_without_validation_images_is_a_line(kind, pictures, tmp_path):
    """And the others keep their numbers."""
    folder = shutil.copytree(pictures, tmp_path / "data")
    for each in (folder / "val" / "a").iterdir():
        each.unlink()
    if kind == "no folder":
        (folder / "val" / "a").rmdir()
    elif kind == "shards":
        make_shards(folder, folder := tmp_path / "shards")
    lines, train, val = heading(folder)
    assert lines == [
        "50 training and 11 validation images, 2 classes",
        f"{folder}/val: 1 of 2 classes have images; without: a",
    ]
    assert val.classes == train.classes == ["a", "b"] and set(val.target.tolist()) == {1}
    model = architectures.make_model("squeezenet1_1", num_classes=2)
    torch.nn.init.zeros_(model.classifier[1].weight)
    model.classifier[1].bias.data = torch.tensor([0.0, 1.0])  # says b, whatever it sees
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    words = [*TINY, "-b", "4", "-j", "0", "-e", "--weights", tmp_path / "weights.pt", folder]
    output = run([*command("imagenet_nd.py"), *words], tmp_path)
    assert "validation: top-1 100.000 %" in output
    assert "\n11 validation images, 2 classes\n" + lines[1] in output


def test_a_class_of_validation_that_is_not_trained_ends(pictures, tmp_path, complaint_here):
    folder = shutil.copytree(pictures, tmp_path / "data")
    shutil.copytree(folder / "val" / "b", folder / "val" / "c")
    line = complaint_here("imagenet_nd.py", *TINY, "-b", 2, folder)
    assert f"{folder}/val: 1 of 3 classes are not in train/, as c; known are a, b" in line
    for each in (folder / "train" / "a").iterdir():
        each.unlink()
    shutil.rmtree(folder / "val" / "c")
    line = complaint_here("imagenet_nd.py", *TINY, "-b", 2, folder)
    assert re.search(r"train: no image \(\*\.jpg, .*\) in 1 classes, as a; train/ and ", line), line
    (folder / "train" / "a" / "1.gif").touch()
    line = complaint_here("imagenet_nd.py", *TINY, "-b", 2, folder)
    assert ") in 1 classes, as a; files that are not read: 1 *.gif; train/ and " in line


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no index", r"train: .* tars and index\.npz \(tools/make_shards\.py --index"),
        ("missing tar", r"train: .*000001\.tar: No such file.* index\.npz .*make_shards\.py"),
        ("short tar", r"train: 000001\.tar has changed since; .* index\.npz .*make_shards\.py"),
        ("longer tar", r"train: 000001\.tar has changed since; .* index\.npz .*make_shards\.py"),
        ("damaged index", r"train: .* index\.npz .*make_shards\.py"),
        ("other classes", r"train: its images are of other classes; .*make_shards\.py"),
        ("negative classes", r"train: its images are of other classes; .*make_shards\.py"),
        ("no image", r"train: its images are of other classes; .*make_shards\.py"),
        ("empty index", r"train: .* index\.npz .*make_shards\.py"),
    ],
)
def test_the_message_says_what_to_do(fault, message, shards, tmp_path, complaint_here):
    folder = shutil.copytree(shards, tmp_path / "data")
    index, tar = folder / "train" / "index.npz", folder / "train" / "000001.tar"
    if fault in ("no index", "missing tar"):
        (index if fault == "no index" else tar).unlink()
    elif fault in ("other classes", "negative classes", "no image"):
        with np.load(index) as opened:
            arrays = dict(opened)
        some = slice(0, 0 if fault == "no image" else None)
        shift = {"other classes": 1, "negative classes": -1, "no image": 0}[fault]
        arrays["target"] = arrays["target"][some] + shift
        arrays |= {name: arrays[name][some] for name in ("file", "offset", "length")}
        with zipfile.ZipFile(index, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w") as entry:
                    np.lib.format.write_array(entry, array)
    elif fault == "longer tar":
        tar.write_bytes(tar.read_bytes() + bytes(512))
    else:
        cut = tar if fault == "short tar" else index
        cut.write_bytes(cut.read_bytes()[: 0 if fault == "empty index" else -512])
    line = complaint_here("imagenet_nd.py", *TINY, "-b", 2, folder)
    assert re.search(message, line), line


def test_nothing_in_an_index_is_run(shards, tmp_path, complaint_here):
    """NumPy would unpickle arrays of objects, if it were told to."""
    folder = shutil.copytree(shards, tmp_path / "data")
    index = folder / "train" / "index.npz"
    hostile = [Hostile(tmp_path / "run")] * 2
    with np.load(index) as opened:
        arrays = dict(opened) | {"classes": np.array(hostile, object)}
    with zipfile.ZipFile(index, "w") as archive:
        for name, array in arrays.items():  # np.savez() takes no array named file
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, array, allow_pickle=True)
    line = complaint_here("imagenet_nd.py", *TINY, "-b", 2, folder)
    assert f"{folder}/train: Object arrays cannot be loaded" in line
    assert not (tmp_path / "run").exists()


def test_a_shard_is_opened_once(shards, monkeypatch):
    """And again where the system allows no more files: those are closed that are open."""
    opened, full = [], []

    def count(path, *more, **options):
        if full:
            raise OSError(full.pop(), "Too many open files")
        opened.append(path)
        return open(path, *more, **options)

    args = nd.parse_args([str(shards)])
    source = nd.list_sources(args, nd.Place(CPU))[0]
    image_files.open_shard.cache_clear()
    monkeypatch.setattr(image_files, "open", count, raising=False)
    in_turn = sorted(range(len(source.target)), key=lambda index: source.offset[index])
    images = {index: source.read(index) for index in in_turn}
    assert len(opened) == len(source.names) > 1
    full.append(24)
    loader, found, expected = images_of(), *torch.zeros(2, 1, 24, 24, 3, dtype=torch.uint8)
    loader.data = loader.data._replace(val=source)
    last = int(np.flatnonzero(source.file == 1)[0])
    image_files.open_shard.cache_clear()
    monkeypatch.setattr(nd.time, "sleep", lambda seconds: None)
    loader.load("val", 0, [last], found)
    image_loading.load_alone(images[last], loader.central_crop(expected[0]))
    assert torch.equal(found, expected) and found.any() and not full


def test_the_last_batch_of_synthetic_images_is_as_long_as_its_keys():
    schedule = [("val", 0, 0, range(4)), ("val", 0, 4, range(4, 7))]
    pixels, classes = torch.zeros(4 * 2 * 2 * 3, dtype=torch.uint8), torch.arange(4)
    batches = image_loading.repeat_images(schedule, pixels, classes, lambda split, epoch: 2)
    assert [(len(images), len(target)) for images, target, *_ in batches] == [(4, 4), (3, 3)]


def test_an_own_reader_names_the_classes_of_an_evaluation(tmp_path):
    """Where the weights name none; val/ has fewer classes, in another order."""

    def name(folder):
        return ["a", "b", "c"] if folder.name == "train" else ["c", "a"]

    def read(folder, allow_empty=False):
        one = np.zeros(1, int)
        where = np.array([b"x"]), one, one, one - 1
        return image_files.Source(str(folder), name(folder), *where, np.array([1]))

    train, val = image_files.open_sources(tmp_path, True, read, name)
    assert train.classes == ["a", "b", "c"] and train.folder == str(tmp_path / "train")
    assert not len(train.target) and val.classes == ["c", "a"]
