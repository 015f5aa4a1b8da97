"""The data path of the scripts: crops, the order of images, listings, damaged images.

Where the scripts say what is right by what they print, they are run; what a step reads is looked
at through the functions that give it. tests/images/ is of the parts by themselves.
"""

import functools
import importlib
import io
import itertools
import multiprocessing
import random
import resource
import shutil
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import PIL.features
import PIL.Image
import PIL.ImageDraw
import pytest
import scipy.stats
import torch
from conftest import ROOT, command, complaint, run
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
pytestmark = pytest.mark.usefixtures("own_decoder")
SCALE = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}  # of ImageNet


def evaluate(folder):
    """Returns the options to evaluate weights of TINY's architecture, which it writes."""
    weights = architectures.make_model("squeezenet1_1", num_classes=2).state_dict()
    torch.save(weights, folder / "weights.pt")
    return ["--evaluate", "--weights", folder / "weights.pt"]


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


# ------------------------------------------------------------------------------------------ crops


def samples(folder):
    """Returns JPEG files: generated ones and, where they are at hand, real ones of ImageNet."""
    files = [encode(photo(375, 500, seed), quality=95) for seed in range(4)]
    if SAMPLE.exists():
        shutil.unpack_archive(SAMPLE, folder)
        paths = sorted((folder / "imagenet_sample" / "val").rglob("*.JPEG"))[:16]
        files += [path.read_bytes() for path in paths]
    return files


def test_crops_and_centres_are_torchvisions_and_pillows(tmp_path):
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


def loader_of(files, words=()):
    """Returns an Images that reads these files, in training and validation."""
    source = SimpleNamespace(target=np.arange(len(files)), path=str, read=files.__getitem__)
    loader = images_of()
    loader.args = nd.parse_args([*words])
    loader.data = loader.data._replace(train=source, val=source, val_resize=32)
    return loader


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


def test_a_long_thin_image_is_validated_in_little_memory():
    encoded, images = encode(photo(1, 30_000)), images_of()

    def load():
        out = torch.zeros(224, 224, 3, dtype=torch.uint8)
        image_loading.load_alone(encoded, images.central_crop(out))
        return bool(out.any())

    answer, megabytes = grown(load)
    assert answer is True and megabytes < 200


def test_an_image_that_cannot_be_decoded_ends_the_run(pictures, tmp_path, complaint_here):
    """In one line that names it, in val/ alike; nothing trains without it in silence."""
    folder = shutil.copytree(pictures, tmp_path / "data")
    paths = {split: folder / split / "b" / "7.jpg" for split in ("train", "val")}
    for path in paths.values():
        path.write_bytes(path.read_bytes()[:300])
    train = [*command("imagenet_nd.py"), *TINY, "-b", 10, "-j", 2, folder]
    val = "imagenet_nd.py", *TINY, "-b", 10, "-j", 0, *evaluate(tmp_path), folder
    lines = {"train": complaint(train, tmp_path, only=False)}
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    lines["val"] = complaint_here(*val, only=False)
    for split, line in lines.items():
        assert f"error: {paths[split]}: image " in line and "cannot be used: " in line
        assert "truncated" in line.lower()


def test_an_image_that_cannot_be_decoded_ends_all_ranks(pictures, tmp_path):
    """Though one rank alone reads it. What one rank prints stands there once."""
    folder = shutil.copytree(pictures, tmp_path / "data")
    path = folder / "val" / "b" / "7.jpg"
    path.write_text("no picture")
    words = [*command("imagenet_ddp.py", 2), *TINY, "-b", 5, "-j", 1, "--steps-per-epoch", 1]
    output = run([*words, folder], tmp_path, status=2)
    assert f"error: {path}: image " in output and "Traceback" not in output
    assert output.count("50 training and 22 validation images, 2 classes\n") == 1


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


def test_synthetic_images_are_as_many_as_imagenets():
    args = nd.parse_args(["--dummy"])
    data = open_data(args, nd.Place(CPU))
    images = "1,281,167 training and 50,000 validation images, 1,000 classes"
    assert nd.about_data(data) == [f"{images}, all synthetic"]


def test_a_class_without_validation_images_is_a_line(pictures, tmp_path):
    """And the others keep their numbers."""
    folder = shutil.copytree(pictures, tmp_path / "data")
    shutil.rmtree(folder / "val" / "a")
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


def test_shards_that_have_changed_since_end_the_run(shards, tmp_path, complaint_here):
    folder = shutil.copytree(shards, tmp_path / "data")
    tar = folder / "train" / "000001.tar"
    tar.write_bytes(tar.read_bytes()[:-512])
    line = complaint_here("imagenet_nd.py", *TINY, "-b", 2, folder)
    assert f"{folder}/train: 000001.tar has changed since; train/ and val/ hold " in line
