"""The data path: decoding, crops, transport, listings, shards, the verdict."""

import http.server
import importlib
import io
import itertools
import json
import math
import multiprocessing
import os
import re
import shutil
import sys
import tarfile
import threading
from collections import Counter
from functools import partial

import numpy as np
import PIL.Image
import pytest
import scipy.stats
import torch
import torchvision
from conftest import ROOT, command, complaint, run, scalars, write_images
from torchvision.transforms import v2

SAMPLE = ROOT.parent / "shared" / "data" / "imagenet_sample.tar"
CPU = torch.device("cpu")


@pytest.fixture
def nd(monkeypatch):
    script = importlib.import_module("imagenet_nd")
    monkeypatch.setattr(script, "keep_freed_memory", lambda: None)  # it would hold for all tests
    yield script
    script.region_decoder.cache_clear()


@pytest.fixture(params=["nvImageCodec", "torchvision"])
def decoder(request, nd, monkeypatch):
    """Runs a test with each of the decoders."""
    nd.region_decoder.cache_clear()
    if request.param == "torchvision":
        monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
        assert nd.region_decoder() is None
    elif nd.region_decoder() is None:
        pytest.skip("nvImageCodec is not installed")
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


def encoded(pixels, kind="JPEG", **options):
    """Returns an image file's bytes."""
    image = pixels if isinstance(pixels, PIL.Image.Image) else PIL.Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pillow(file):
    return np.asarray(PIL.Image.open(io.BytesIO(file)).convert("RGB"))


def load(nd, words, rank=0, ranks=1):
    """Returns (Data, place) of one rank."""
    place = nd.Place(CPU, rank, ranks, rank, ranks)
    return nd.load_data(nd.parse_args([str(word) for word in words]), place)


# ----------------------------------------------------------------------------------- decode, crop


@pytest.mark.parametrize(
    "kind",
    ["plain", "grey", "progressive", "4:4:4", "CMYK", "restarts", "turned", "damaged EXIF"],
)
def test_a_part_of_a_jpeg_is_that_part_of_the_whole(kind, nd, decoder):
    pixels = PIL.Image.fromarray(photo(203, 307))
    exif = PIL.Image.Exif()
    exif[0x112] = 6
    options = {
        "progressive": {"progressive": True},
        "4:4:4": {"subsampling": 0},
        "restarts": {"restart_marker_rows": 1},
        "turned": {"exif": exif},
        "damaged EXIF": {"exif": b"Exif\0\0MM\0*\xff\xff\xff\xff\1"},
    }
    mode = {"grey": "L", "CMYK": "CMYK"}.get(kind, "RGB")
    file = encoded(pixels.convert(mode), **options.get(kind, {}))
    whole = pillow(file)
    for box in (0, 0, 203, 307), (17, 33, 101, 64), (202, 306, 1, 1), (0, 200, 203, 107):
        top, left, height, width = box
        part = nd.decode(file, "a.jpg", lambda *size, box=box: box)
        assert part.dtype == torch.uint8
        expected = whole[top : top + height, left : left + width]
        assert np.abs(part.numpy().astype(int) - expected).max() <= (1 if mode == "CMYK" else 0)


@pytest.mark.parametrize("size", [(10, 10_000), (10_000, 10), (1, 1), (2, 3)])
def test_odd_sizes_are_cropped(size, nd, decoder):
    file = encoded(photo(*size))
    assert nd.Crop(224, "bilinear")(file, "a.jpg", 0).shape == (224, 224, 3)
    image = nd.Centre(32, "bilinear", 36)(file, "a.jpg", 0)
    centre = [v2.Resize(36, antialias=True), v2.CenterCrop(32)]
    expected = v2.Compose(centre)(torch.from_numpy(pillow(file).copy()).permute(2, 0, 1))
    assert image.shape == (32, 32, 3)
    assert (image.permute(2, 0, 1).int() - expected.int()).abs().max() <= 2


def test_a_truncated_jpeg_is_told(nd, decoder):
    file = encoded(photo(200, 300))
    with pytest.raises(nd.BadInput, match=r"a.jpg cannot be read as an image .*mend or remove it"):
        nd.decode(file[: len(file) // 2], "a.jpg", lambda *size: (150, 0, 50, 300))


def samples(tmp_path):
    """Yields JPEG files: drawn ones and, where they are, real ones of ImageNet."""
    for seed in range(6):
        yield encoded(photo(375, 500, seed), quality=95)
    if SAMPLE.exists():
        shutil.unpack_archive(SAMPLE, tmp_path)
        for path in sorted((tmp_path / "imagenet_sample" / "val").rglob("*.JPEG"))[:20]:
            yield path.read_bytes()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_quality_is_pillows(mode, nd, decoder, tmp_path):
    """Mean error against decode, crop and antialiased resize in float64, in grey levels."""
    ours, pillows = [], []
    for seed, file in enumerate(samples(tmp_path)):
        whole, crop = pillow(file), nd.Crop(224, mode)
        top, left, height, width = crop.box(*whole.shape[:2], seed)
        part = torch.from_numpy(whole.copy()).double().permute(2, 0, 1)[None]
        part = part[:, :, top : top + height, left : left + width]
        size = (224, 224)
        exact = torch.nn.functional.interpolate(part, size, mode=mode, antialias=True)
        exact = exact[0].permute(1, 2, 0).clamp(0, 255).numpy()
        box = (left, top, left + width, top + height)
        filters = {"bilinear": PIL.Image.BILINEAR, "bicubic": PIL.Image.BICUBIC}
        theirs = np.asarray(PIL.Image.fromarray(whole).crop(box).resize(size, filters[mode]))
        image = crop(file, "a.jpg", seed)
        image = image.flip(1) if crop.mirrored(seed) else image
        ours.append(np.abs(image.numpy() - exact).mean())
        pillows.append(np.abs(theirs - exact).mean())
    assert np.mean(ours) < np.mean(pillows) + 0.5
    assert np.max(ours) < 1


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (60, 500), (500, 40)])
def test_crops_are_distributed_as_torchvisions(height, width, nd):
    """The same shares of each measure (Kolmogorov-Smirnov), also where ten draws do not fit."""
    crop, theirs = nd.Crop(224, "bilinear"), v2.RandomResizedCrop(224)
    shape, expected = torch.empty(3, height, width, device="meta"), []
    seeds = [f"7 3 {number}" for number in range(4000)]  # as Images has them
    ours = np.array([crop.box(height, width, seed) for seed in seeds], float)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for _ in range(4000):
            drawn = theirs.make_params([shape])
            expected.append([drawn[name] for name in ("top", "left", "height", "width")])
    expected = np.array(expected, float)
    measures = {
        "area": lambda box: box[:, 2] * box[:, 3],
        "ratio": lambda box: box[:, 3] / box[:, 2],
        "top": lambda box: box[:, 0],
        "left": lambda box: box[:, 1],
        "bottom": lambda box: box[:, 0] + box[:, 2],
        "right": lambda box: box[:, 1] + box[:, 3],
    }
    for name, measure in measures.items():
        p = scipy.stats.ks_2samp(measure(ours), measure(expected)).pvalue
        assert p > 1e-3, name
    mirrored = np.array([crop.mirrored(seed) for seed in seeds])
    assert abs(mirrored.sum() - 2000) < 4 * 1000**0.5
    area = measures["area"](ours)
    assert scipy.stats.ks_2samp(area[mirrored], area[~mirrored]).pvalue > 1e-3, "independent draws"


# -------------------------------------------------------------------------------------- transport


@pytest.mark.parametrize("layout", ["--channels-last", "--num-classes=2"])
def test_batches_are_shared_bytes_channels_last(layout, nd, tmp_path):
    folder = write_images(tmp_path / "data")
    words = ["-b", 4, "-j", 1, "--image-size", 24, "--log-dir", tmp_path, layout, folder]
    data = load(nd, words)
    batches = list(data.train)
    assert len(batches) == 2
    for images, target, seconds, bad in batches:
        assert not any(bad)
        assert images.dtype == torch.uint8
        assert images.shape == (4, 24, 24, 3)
        assert images.is_contiguous()
        assert images.is_shared(), "workers hand memory over, they do not send it"
        assert target.dtype == torch.int64
        assert (seconds > 0).all()
    args = nd.parse_args([layout])
    place = nd.Place(CPU)
    run_ = nd.Run(args, place, data, None, None, None, None, None, None, None)
    ((images, target),) = nd.on_device([batches[0][:2]], run_)
    planes = batches[0][0].permute(0, 3, 1, 2).float() / 255
    mean, std = (
        torch.tensor(each).view(1, 3, 1, 1)
        for each in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    )
    assert torch.allclose(images, (planes - mean) / std, atol=1e-5)
    last = images.is_contiguous(memory_format=torch.channels_last)
    assert last == (layout == "--channels-last")
    assert images.is_contiguous() != last


def test_workers_are_forked_once_and_first(nd, tmp_path):
    """In a process whose threads are busy, a fork may hang: see start_workers()."""
    folder = write_images(tmp_path / "data", val=3)
    before = set(multiprocessing.active_children())
    data = load(nd, ["-b", 2, "-j", 2, "--image-size", 8, "--log-dir", tmp_path, folder])
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 4, "two for training, two for validation"
    for data.order.epoch in range(2):
        assert sum(len(target) for _, target, *_ in data.train) == 8
        assert sum(len(target) for _, target, *_ in data.val) == 6
        assert set(multiprocessing.active_children()) - before == workers
    del data
    evaluate = ["-e", "-b", 2, "-j", 2, "--image-size", 8, "--log-dir", tmp_path, folder]
    before = set(multiprocessing.active_children())
    data = load(nd, evaluate)
    assert len(set(multiprocessing.active_children()) - before) == 2
    assert sum(len(target) for _, target, *_ in data.val) == 6


def test_the_host_waits_for_the_device_one_step_late_and_to_print(nd, tmp_path, monkeypatch):
    folder = write_images(tmp_path / "data", train=20)
    words = ["-a", "squeezenet1_1", "-b", 2, "-j", 0, "-p", 5, "--image-size", 32, "--no-accel"]
    args = nd.parse_args([str(word) for word in [*words, "--log-dir", tmp_path / "runs", folder]])
    run_ = nd.set_up(args, nd.Place(CPU))
    waits = Counter()
    for name in ("item", "tolist"):
        method = getattr(torch.Tensor, name)

        def counted(tensor, method=method, name=name):
            if tensor.dtype == torch.float64:  # metrics; what the sampler and crops draw is not
                waits[name] += 1
            return method(tensor)

        monkeypatch.setattr(torch.Tensor, name, counted)
    monkeypatch.setattr(nd.Traffic, "sample", lambda *_, **__: None)
    nd.train_one_epoch(run_, 0)
    read = "each of 20 steps is told, every 5th printed, and the epoch's sums"
    assert waits == {"tolist": 20 + 4 + 1}, read


def test_what_a_step_tells_is_read_one_step_later(nd, tmp_path):
    """When the GPU has computed it anyway: the host may run one step ahead."""
    args = nd.parse_args([])
    watch = nd.Watch(args, nd.Place(CPU))
    run_ = nd.Run(args, watch.place, None, None, None, None, None, None, None, None)
    meter = nd.Meter("Epoch: [0]", [], run_, nd.sum_over_ranks)
    sums, no_skip = torch.ones(4, dtype=torch.float64), torch.tensor(False)
    assert watch.tell(meter, sums * math.nan, no_skip) is None
    assert watch.tell(meter, sums, no_skip).broken == 1
    assert watch.last().broken == 0
    assert watch.last() is None, "told once"


# ---------------------------------------------------------------------------- decoding on the GPU


def test_decode_cuda_gives_what_the_cpu_gives(nd, tmp_path, monkeypatch):
    """nvJPEG stands in for by torchvision on the CPU, refusing what nvJPEG does."""
    folder = tmp_path / "data"
    for part, label in itertools.product(("train", "val"), ("a", "b")):
        (folder / part / label).mkdir(parents=True)
        for serial in range(6):
            image = PIL.Image.fromarray(photo(90 + serial, 120, serial))
            image.save(folder / part / label / f"{serial}.jpg")
    inside = folder / "train" / "a"
    PIL.Image.open(inside / "0.jpg").convert("CMYK").save(inside / "0.jpg")
    PIL.Image.open(inside / "1.jpg").save(inside / "1.jpg", "PNG")
    refused = encoded(photo(70, 80, 3), comment=b"refused")
    (inside / "2.jpg").write_bytes(refused)
    original, calls = torchvision.io.decode_jpeg, []

    def decode_jpeg(files, mode, device):
        calls.append(len(files))
        assert str(device) == "pretended"
        modes = {PIL.Image.open(io.BytesIO(file.numpy().tobytes())).mode for file in files}
        assert modes == {"RGB"}, "what nvJPEG may take for something else is not given to it"
        if any(b"refused" in file.numpy().tobytes() for file in files):
            raise RuntimeError("nvJPEG does not")
        return [original(file, mode) for file in files]

    monkeypatch.setattr(torchvision.io, "decode_jpeg", decode_jpeg)
    words = ["-b", 6, "-j", 1, "--image-size", 64, "--log-dir", tmp_path, folder]
    on_cpu = list(load(nd, words).train)
    data = load(nd, ["--decode", "cuda", *words])
    device = "pretended"
    real_to = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor,
        "to",
        lambda tensor, what, **more: tensor if what == device else real_to(tensor, what, **more),
    )
    packed = list(data.train)
    assert len(packed) == len(on_cpu) == 2
    for (images, target, *_), (files, same_target, *_) in zip(on_cpu, packed, strict=True):
        decoded = nd.decode_on_device(files, data.view, device)
        assert decoded.dtype == torch.uint8
        assert torch.equal(target, same_target)
        difference = decoded.double() - images.double()
        assert difference.abs().max() <= 1
        assert difference.mean().abs() < 0.1, "rounded, not cut off"
    assert max(calls) > 1, "a batch is decoded at once"
    assert 1 in calls, "one by one, where one of them is refused"


def test_decode_cuda_needs_a_gpu(tmp_path):
    words = [*command("imagenet_nd.py"), "--no-accel", "--decode", "cuda"]
    assert "--decode cuda needs an NVIDIA GPU" in run(words, tmp_path, status=2)


# --------------------------------------------------------------------------------------- listings


def odd_folder(folder):
    """Makes an image folder with all that ImageFolder knows how to take or leave."""
    first = ("b/2.JPEG", "b/10.jpeg", "b/x.PNG", "b/notes.txt", "b/in/1.jpg", "b/in/er/a.bmp")
    second = ("b/Z.jpg", "a/ä.jpg", "a/1.webp", "a/dir.jpg/2.tif", "B/0.ppm", "loose.jpg")
    for name in (*first, *second):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "c").symlink_to(folder / "b" / "in")
    os.utime(folder, (1e9, 1e9))
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9))
    return folder


def test_listed_as_imagefolder_lists(nd, tmp_path):
    folder = odd_folder(tmp_path / "data")
    expected = torchvision.datasets.ImageFolder(folder)
    found = nd.Folder(folder, nd.list_images(folder))
    assert found.classes == expected.classes
    assert [found.path(index) for index in range(len(found))] == [
        path for path, _ in expected.samples
    ]
    assert found.targets.tolist() == expected.targets


def test_listed_once_on_a_node_and_for_the_next_run(nd, tmp_path, monkeypatch, capsys):
    folder, keep = odd_folder(tmp_path / "data"), tmp_path / "runs" / ".index"
    listed = tmp_path / "listed"

    def counted(folder, list_images=nd.list_images):
        with open(listed, "a") as file:
            file.write("once\n")
        return list_images(folder)

    monkeypatch.setattr(nd, "list_images", counted)
    find = partial(nd.find_images, folder, keep, nd.Place(CPU))
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=find) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
    once = find()
    assert listed.read_text() == "once\n"
    (index,) = keep.glob("*.npz")
    for change in "add", "in/er", "remove", "damage", "empty":
        if change == "add":
            (folder / "a" / "new.jpg").touch()
        elif change == "in/er":
            (folder / "b" / "in" / "er" / "new.jpg").touch()
        elif change == "remove":
            (folder / "b" / "2.JPEG").unlink()
        else:
            index.write_bytes(index.read_bytes()[: 100 if change == "damage" else 0])
        for path in folder, *folder.rglob("*"):
            if path.is_dir() and path.stat().st_mtime > 2e9 - 1e9:  # an hour old, but changed
                os.utime(path, (1.5e9 + len(change), 1.5e9))
        listed.unlink()
        capsys.readouterr()
        again = find()
        assert listed.read_text() == "once\n", change
        assert "has changed since" in capsys.readouterr().out
        assert len(again["targets"]) == len(torchvision.datasets.ImageFolder(folder))
    assert set(once) == set(nd.INDEX)
    assert len(list(keep.iterdir())) == 2, "the index and its lock"


def test_a_folder_just_changed_is_not_kept(nd, tmp_path):
    """Its next change may bear the same time."""
    folder = write_images(tmp_path / "data") / "train"
    assert len(nd.find_images(folder, tmp_path / "keep", nd.Place(CPU))["targets"]) == 8
    assert not list((tmp_path / "keep").glob("*.npz"))
    (tmp_path / "file").touch()
    listed = nd.find_images(folder, tmp_path / "file" / "keep", nd.Place(CPU))
    assert len(listed["targets"]) == 8, "where no index can be kept"


WORKER = """
import multiprocessing, pathlib
import numpy as np, psutil, torch
import imagenet_nd as nd

classes, each = 1000, 1281
serials = [(10**8 + label, serial) for label in range(classes) for serial in range(each)]
names = b"".join(b"%d_%d.JPEG\\0" % each for each in serials)
names = np.frombuffer(names, np.uint8)
folders = np.array([b"", *(b"n%08d" % label for label in range(classes))])
places = np.repeat(np.arange(1, classes + 1, dtype=np.int32), each)
listed = {"classes": folders[1:], "folders": folders, "names": names, "places": places}
listed |= {"starts": np.append(0, np.flatnonzero(names == 0) + 1), "targets": places - 1}
folder = nd.Folder(pathlib.Path("data"), listed)

class Paths(torch.utils.data.Dataset):
    def __getitem__(self, key):
        return len(folder.path(key[1]))

order = nd.TrainOrder(len(folder), 1281, 1000, nd.Place(torch.device("cpu")), 0)
loader = torch.utils.data.DataLoader(Paths(), batch_sampler=order, num_workers=1)
loaded = iter(loader)
next(loaded)
worker = psutil.Process(multiprocessing.active_children()[0].pid)
before = worker.memory_full_info().uss
for step, lengths in enumerate(loaded):
    if step == 1275:  # the epoch has 1281, and the worker ends with it
        print("grown by", worker.memory_full_info().uss - before)
"""


def test_workers_do_not_copy_the_listing(tmp_path):
    """What a worker has for itself grows by less than 20 MB in an epoch of ImageNet's length."""
    output = run([sys.executable, "-c", WORKER], tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert 0 < int(output.split("grown by")[1].split()[0]) < 20e6


# ----------------------------------------------------------------------------------------- shards


@pytest.mark.parametrize(("begin", "end"), [(0, 96), (96, 192), (5, 6), (7, 7), (3, 50)])
@pytest.mark.parametrize("workers", [0, 1, 3, 7])
def test_runs_of_shards_share_out_without_overlap(begin, end, workers, nd):
    order = nd.ShardOrder(begin, end, 8, workers)
    batches = list(order)
    assert len(batches) == len(order) == -(-(end - begin) // 8)
    taken = [start + offset for keys in batches for _, (start, _, offset) in keys]
    assert sorted(taken) == list(range(begin, end))
    assert all(len(keys) == 8 for keys in batches[:-1])
    for worker in range(max(1, workers)):
        mine = [
            start + offset
            for keys in batches[worker :: max(1, workers)]
            for _, (start, _, offset) in keys
        ]
        assert mine == list(range(mine[0], mine[0] + len(mine))) if mine else True
    order.first = len(order) // 2
    assert list(order) == batches[len(batches) // 2 :]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A set of 70 + 22 images, no two alike, and what tools/make_shards.py makes of it."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for part, count in ("train", 35), ("val", 11):
        for label, serial in itertools.product("ab", range(count)):
            path = folder / "data" / part / label / f"{serial}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (4 + serial % 3, 5, 3), dtype=np.uint8)
            PIL.Image.fromarray(pixels).resize((40, 30 + serial)).save(path)
    tool = [sys.executable, ROOT / "tools" / "make_shards.py", folder / "data"]
    run([*tool, folder / "shards", "--images", 15, "-j", 2], folder)
    run([*tool, folder / "raw", "--raw", 32, "-j", 2], folder)
    run([*tool, folder / "small", "--resize", 32, "--quality", 80, "-j", 2], folder)
    return folder


def images_of(nd, folder, runs, ranks, workers, epoch=0, part="train", first=0):
    """Returns a list over steps of the images and classes of all ranks, as hashable values."""
    steps = []
    for rank in range(ranks):
        words = ["-b", 12 // ranks, "-j", workers, "--image-size", 24, "--log-dir", runs, folder]
        words += ["--allow-pipe"] if str(folder).startswith("pipe:") else []
        data = load(nd, words, rank, ranks)
        data.order.epoch, data.order.first = epoch, first
        for step, (images, target, *_) in enumerate(getattr(data, part)):
            steps += [[]] if step == len(steps) else []
            steps[step] += [
                (image.numpy().tobytes(), int(label))
                for image, label in zip(images, target, strict=True)
            ]
    return steps


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 2), (2, 1), (3, 2)])
def test_shards_give_every_image_once(ranks, workers, nd, pictures, tmp_path):
    get = partial(images_of, nd, pictures / "shards", tmp_path, ranks, workers)
    train = list(itertools.chain(*get()))
    assert len(set(train)) == len(train) == 60, "70 less the ragged last batch"
    assert Counter(itertools.chain(*get(part="val"))) == Counter(
        itertools.chain(*images_of(nd, pictures / "data", tmp_path, 1, 0, part="val"))
    )
    assert get(first=2) == get()[2:], "resumed in mid-epoch"
    again = list(itertools.chain(*get(epoch=1)))
    assert not set(again) & set(train), "each epoch draws its crops"


def test_shards_and_blocks_are_shuffled_from_seed_and_epoch(nd, pictures):
    def numbers(seed, *epochs):
        source, _ = nd.open_shards(nd.Url(f"{pictures}/shards/"), None, seed)
        source.block_size = 15
        return [
            [source.read(epoch, (0, 70, offset))[3] for offset in range(70)] for epoch in epochs
        ]

    first, *later = numbers(0, 0, 1, 2, 3, 4, 5)
    (other,) = numbers(1, 0)
    assert [first] == numbers(0, 0)
    assert [later[1]] == numbers(0, 2), "whatever was read before"
    for each in first, *later, other:
        assert sorted(each) == list(range(70))
    assert first[:15] != sorted(first[:15]), "a block is shuffled"
    assert len({frozenset(each[:15]) for each in (first, *later)}) > 2, "so are the shards"
    assert first != other


def test_an_images_crop_is_the_same_for_any_split_of_shards(nd, pictures, tmp_path):
    splits = [
        set(itertools.chain(*images_of(nd, pictures / "shards", tmp_path, ranks, workers)))
        for ranks, workers in ((1, 0), (1, 3), (2, 2), (4, 1))
    ]
    for other in splits[1:]:  # all but those that the ragged last batch leaves out
        assert len(splits[0] & other) == 60


def test_raw_pixels_hold_the_whole_law(nd, pictures, tmp_path):
    """And pixels stored smaller are what validation resizes to."""
    reference = images_of(nd, pictures / "raw", tmp_path, 1, 0)
    for ranks, workers in (1, 2), (2, 0), (3, 1):
        assert images_of(nd, pictures / "raw", tmp_path, ranks, workers) == reference
    with np.load(pictures / "raw" / "val.npz") as index:
        assert index["shapes"].min(1).max() == 32
    words = ["-b", 11, "-j", 0, "--image-size", 32, "--val-resize", 32, "--log-dir", tmp_path]
    val = [
        Counter(
            image.numpy().tobytes()
            for images, *_ in load(nd, [*words, pictures / name]).val
            for image in images
        )
        for name in ("raw", "data")
    ]
    assert val[0] == val[1]


def test_resized_shards_are_small_jpegs(nd, pictures):
    with tarfile.open(pictures / "small" / "train" / "000000.tar") as tar:
        sizes = [
            PIL.Image.open(tar.extractfile(member)).size
            for member in tar
            if member.name.endswith(".jpg")
        ]
    assert len(sizes) == 70
    assert {max(size) for size in sizes} == {32}
    listed = json.loads((pictures / "small" / "shards.json").read_text())
    assert (listed["resize"], listed["quality"], listed["classes"]) == (32, 80, ["a", "b"])


def test_shards_by_pattern_pipe_s3_and_http(nd, pictures, tmp_path, monkeypatch):
    get = partial(images_of, nd, runs=tmp_path, ranks=1, workers=1)
    reference = get(pictures / "shards")
    pattern = f"{pictures}/shards/train/{{000000..000004}}.tar"
    assert get(pattern) == reference
    assert get(f"pipe:cat {pattern}") == reference
    for scheme in "pipe", "PIPE", " pipe":
        with pytest.raises(nd.BadInput, match="--allow-pipe"):
            load(nd, [f"{scheme}:cat {pattern}"])
    aws = tmp_path / "bin" / "aws"
    aws.parent.mkdir()
    aws.write_text(f'#!/bin/sh\nexec cat "{pictures}/${{3#s3://bucket/}}"\n')
    aws.chmod(0o755)
    monkeypatch.setenv("PATH", f"{aws.parent}{os.pathsep}{os.environ['PATH']}")
    assert get("s3://bucket/shards") == reference, "by `aws s3 cp URL -`"
    some = get(f"{pictures}/shards/train/{{000001..000002}}.tar")
    assert len(list(itertools.chain(*some))) == 24, "of 30 images"
    if not shutil.which("curl"):
        pytest.skip("curl is not installed: http is not tried")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=pictures)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert get(f"http://127.0.0.1:{server.server_port}/shards") == reference
        server.shutdown()


def test_a_training_from_shards(pictures, tmp_path):
    words = ["-a", "squeezenet1_1", "-b", 6, "-j", 2, "--epochs", 2, "--image-size", 32, "-p", 1]
    run([*command("imagenet_ddp.py", 2), "--no-accel", *words, pictures / "shards"], tmp_path)
    assert len(scalars(tmp_path / "runs", "Loss/step")) == 2 * 5


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("missing shard", r"train/000001\.tar cannot be read: .*No such file"),
        ("short shard", r"train/000001\.tar (cannot be read: |has not the 15 images)"),
        ("counted wrongly", r"train/00000\d\.tar has not the \d+ images that shards\.json says"),
        ("no list", r"copy holds shards, and no shards\.json: tools/make_shards\.py makes both"),
        ("damaged list", r"shards\.json and what it lists cannot be read"),
        ("unknown shard", r"shards\.json lists no train/000005\.tar"),
        ("short raw", r"train\.raw is not as long as its index says"),
        ("damaged raw", r"shards\.json and what it lists cannot be read"),
        ("empty raw", r"shards\.json and what it lists cannot be read"),
        ("pattern of raw", r"shards\.json lists no train/000000\.tar: it is of --raw"),
    ],
)
def test_damaged_shards_are_told_in_one_line(fault, expected, pictures, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(pictures / ("raw" if "raw" in fault else "shards"), folder)
    shard, listed = folder / "train" / "000001.tar", folder / "shards.json"
    wanted = folder
    if fault == "missing shard":
        shard.unlink()
    elif fault == "short shard":
        shard.write_bytes(shard.read_bytes()[:5000])
    elif fault == "counted wrongly":
        text = json.loads(listed.read_text())
        for shard in text["train"]:
            shard["images"] += 1
        listed.write_text(json.dumps(text))
    elif fault == "no list":
        listed.unlink()
    elif fault == "damaged list":
        listed.write_text(listed.read_text()[:100])
    elif fault == "unknown shard":
        wanted = f"{folder}/train/{{000001..000009}}.tar"
    elif fault == "pattern of raw":
        wanted = f"{folder}/train/000000.tar"
    else:
        cut = folder / ("train.raw" if fault == "short raw" else "train.npz")
        cut.write_bytes(
            cut.read_bytes()[: {"short raw": -1, "damaged raw": 100, "empty raw": 0}[fault]]
        )
    words = [*command("imagenet_nd.py"), "-a", "squeezenet1_1", "-b", 12, "-j", 1, "--no-accel"]
    words += ["--image-size", 32, "--epochs", 1, wanted]
    assert re.search(expected, complaint(words, tmp_path, only=False))


def test_make_shards_checks_and_overwrites_nothing(pictures, tmp_path):
    def refused(*words):
        return complaint([*make_shards, *words], tmp_path)

    make_shards = sys.executable, ROOT / "tools" / "make_shards.py"
    folder = tmp_path / "copy"
    shutil.copytree(pictures / "shards", folder)
    assert "copy: 7 files are as they were written" in run(
        [*make_shards, "--check", folder], tmp_path
    )
    shard = folder / "val" / "000000.tar"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    assert "is not what was written" in refused("--check", folder)
    shard.unlink()
    assert "000000.tar is missing" in refused("--check", folder)
    assert "is there already" in refused(pictures / "data", folder)
    assert shard.parent.is_dir()
    (folder / "shards.json").write_text("{}")
    assert "shards.json cannot be read" in refused("--check", folder)
    assert "--quality is of --resize" in refused("--quality", 50, folder, tmp_path / "new")
    assert "DIR and OUT are needed" in refused(tmp_path / "new")
    broken = tmp_path / "data"
    shutil.copytree(pictures / "data", broken)
    (broken / "train" / "a" / "0.png").write_bytes(b"no image")
    small = refused("--resize", 16, broken, tmp_path / "new")
    assert "0.png cannot be read as an image" in small
    assert not (tmp_path / "new").exists(), "nothing is left of what was not finished"


# ---------------------------------------------------------------------------------------- verdict


def test_verdict(nd):
    place = nd.Place(CPU, ranks=2)
    line = nd.verdict(0.38, 1010.4, 2400.2, 505.2, place)
    assert line == (
        "input-bound: 38 % of the time waited for data; the loader gives 1,010 images/s, "
        "the model takes 2,400: about -j 3 would do"
    )
    assert nd.verdict(0.01, 3000, 900, 1500, place).startswith("compute-bound: 1 % of the time")


@pytest.mark.alone
def test_verdict_is_from_measured_times(nd, tmp_path, monkeypatch, capsys):
    """Two workers that sleep 100 ms over an image give 20 images/s at most."""
    folder = write_images(tmp_path / "data", train=20)

    class Slow(nd.Crop):
        def __call__(self, *image):
            nd.time.sleep(0.1)
            return super().__call__(*image)

    monkeypatch.setattr(nd, "Crop", Slow)
    words = ["-a", "squeezenet1_1", "-b", 4, "-j", 2, "--image-size", 32, "--no-accel", "-p", 100]
    args = nd.parse_args([str(word) for word in [*words, "--log-dir", tmp_path / "runs", folder]])
    run_ = nd.set_up(args, nd.Place(CPU))
    entries = nd.train_one_epoch(run_, 0)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "-bound" in line]
    waited, gives, takes, enough = (
        float(number.replace(",", ""))
        for number in re.fullmatch(
            r" \* input-bound: (\d+) % of the time waited for data; the loader gives (\S+) "
            r"images/s, the model takes (\S+): about -j (\d+) would do", line
        ).groups()
    )  # fmt: skip
    assert 5 < gives <= 20
    assert takes > gives
    assert enough == np.ceil(takes / (gives / 2)) or enough > 2
    assert waited == round(100 * entries["Data/wait"])
    seconds = 40 / entries["Throughput/train"]
    assert takes == pytest.approx(40 / (seconds * (1 - entries["Data/wait"])), rel=0.02)


@pytest.mark.alone
def test_bench(nd, tmp_path, capsys):
    folder = write_images(tmp_path / "data", train=20)
    words = ["-a", "squeezenet1_1", "-b", 4, "-j", 1, "--image-size", 32, "--no-accel", "--bench"]
    args = nd.parse_args([str(word) for word in [*words, "--log-dir", tmp_path / "runs", folder]])
    nd.bench(nd.set_up(args, nd.Place(CPU)), seconds=0.3)
    output = capsys.readouterr().out
    assert output.count("images/s, on synthetic images\n") == 1
    rates = re.search(r"loader (\S+), model (\S+), both (\S+) images/s\n", output).groups()
    loader, model, both = (float(rate.replace(",", "")) for rate in rates)
    assert 0 < both < 3 * min(loader, model)
    (line,) = re.findall("(?:input|compute)-bound: .*", output)
    assert f"the loader gives {loader:,.0f} images/s, the model takes {model:,.0f}: " in line
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [".index"], "no run is logged"


def test_bench_of_ranks_ends_together(tmp_path):
    words = ["-a", "squeezenet1_1", "-b", 4, "--image-size", 32, "--no-accel", "--bench", "--dummy"]
    output = run([*command("imagenet_ddp.py", 2), *words], tmp_path)
    assert len(re.findall(r"model \S+ images/s, on synthetic images\n", output)) == 1


@pytest.mark.slow
def test_compiled_is_the_same_training(demo, tmp_path):
    words = ["-a", "squeezenet1_1", "-b", 16, "-j", 1, "--epochs", 1, "--steps-per-epoch", 4]
    words += ["--image-size", 64, "--no-accel", "-p", 1, "--lr", 0.01, demo]
    for name, more in ("plain", []), ("compiled", ["--compile"]):
        run([*command("imagenet_nd.py"), *more, "--log-dir", name, *words], tmp_path)
    losses = [scalars(tmp_path / name, "Loss/step") for name in ("plain", "compiled")]
    assert losses[0].keys() == losses[1].keys()
    for step in range(4):
        assert losses[0][step] == pytest.approx(losses[1][step], rel=1e-3)
    (saved,) = tmp_path.glob("compiled/*/checkpoint.pt")
    names = torch.load(saved, weights_only=True)["state_dict"]
    assert not any("_orig_mod" in name for name in names)
