"""trainparts/images/image_loading.py: batches of a schedule, whoever loads them, or why not."""

import contextlib
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from types import SimpleNamespace
from unittest import mock

import numpy as np
import PIL.Image
import psutil
import pytest
import torch
from conftest import ROOT, no_table, run, write_images
from test_data import encode, photo, whole

from trainparts import errors
from trainparts.images import decoding, image_files, image_loading

pytestmark = pytest.mark.usefixtures("own_decoder")
CPU = torch.device("cpu")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="nvImageCodec is for Linux")
STALE, BAD = OSError(116, "Stale file handle"), b"no picture"


def random_crop(out, key, epoch):
    """A crop that draws, at first when it begins, then when it has an image's sides."""
    rng = random.Random(f"{epoch} {key}")
    mirrored = rng.random() < 0.5

    def choose(height, width):
        top = rng.choice((0, height - height // 2))  # libjpeg may warn at the image's end alone
        return top, rng.randrange(width // 2), height // 2, width // 2

    region = yield choose
    decoding.resize(
        region[:, :: -1 if mirrored else 1], size=out.shape[:2], mode="bilinear", out=out
    )
    yield


def whole_image(out, key, epoch):
    """A crop that is the image, resized."""
    decoding.resize((yield whole), size=out.shape[:2], mode="bilinear", out=out)
    yield


def loader_of(files, images=None):
    """Returns an Images of 24 pixels, with a buffer for a batch of so many (else of all files);
    reading one that is an exception raises it. In validation the class is the position."""

    def read(index):
        if isinstance(files[index], Exception):
            raise files[index]
        return files[index]

    source = SimpleNamespace(target=np.arange(len(files)), path="{}.jpg".format, read=read)
    buffers = torch.zeros(1, (images or len(files)) * 24 * 24 * 3, dtype=torch.uint8)
    crops = {"train": random_crop, "val": whole_image}
    return image_loading.Images(dict.fromkeys(crops, source), crops, lambda *_: 24, buffers)


@pytest.fixture
def pauses(monkeypatch):
    """The seconds that are waited for, and not waited here."""
    seconds = []
    monkeypatch.setattr(image_loading.time, "sleep", seconds.append)
    return seconds


# ---------------------------------------------------------------------------------------- batches


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """{split: Source} of images of one grey level each: 10 + their number, in train/ and val/."""
    folder, sources = tmp_path_factory.mktemp("colours of grey"), {}
    for split, images in ("train", 20), ("val", 7):
        names = [f"{split}{number}.png" for number in range(images)]
        for number, name in enumerate(names):
            PIL.Image.new("L", (9, 11), 10 + number).save(folder / name)
        labels = [str(number % 3) for number in range(images)]
        sources[split] = image_files.source_of_table(folder, paths=names, labels=labels)
    return sources


def marked_crop(out, key, epoch):
    """A crop that is the image, with its key and its epoch in one corner."""
    yield from whole_image_and(out, [key, 99 if epoch is None else epoch, 0])


def whole_image_and(out, corner):
    decoding.resize((yield whole), size=out.shape[:2], mode="bilinear", out=out)
    out[0, 0] = torch.tensor(corner, dtype=torch.uint8)
    yield


def process_crop(out, key, epoch):
    """A crop that is the image, with the number of the process that loads it in one corner."""
    yield from whole_image_and(out, [*os.getpid().to_bytes(3, "big")])


SCHEDULE = [
    ("train", 0, 0, [3, 19, 0, 7]),
    ("train", 0, 4, [20, 41, 12]),
    ("val", 0, 0, range(4)),
    ("val", 0, 4, range(4, 7)),
    ("train", 1, 0, [5, 3, 2, 1]),
    ("val", None, 0, []),
    ("val", None, 0, [6]),
]


def load(colours, workers, schedule=SCHEDULE, crop=marked_crop, size=6, images=4, device=CPU):
    """Returns load_images() of a schedule, with the signal's handler as it was before."""

    def size_of(split, epoch):
        return size + (split == "val") + (epoch or 0)

    before, bytes_of = signal.getsignal(signal.SIGCHLD), images * (size + 2) ** 2 * 3
    try:
        crops = {"train": crop, "val": crop}
        return image_loading.load_images(
            schedule,
            sources=colours,
            crops=crops,
            size_of=size_of,
            batch_bytes=bytes_of,
            workers=workers,
            device=device,
        )
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_are_those_of_the_schedule(workers, colours):
    """In its order, with the images and classes of the keys, of as many pixels as size_of() says;
    a key beyond the images is one of them again."""
    found = 0
    for job, batch in zip(SCHEDULE, load(colours, workers), strict=True):
        (split, epoch, position, keys), (images, target, *same) = job, batch
        assert same == [split, epoch, position]
        side = 6 + (split == "val") + (epoch or 0)
        assert images.shape == (len(keys), side, side, 3) and images.dtype == torch.uint8
        numbers = [key % {"train": 20, "val": 7}[split] for key in keys]
        assert target.dtype == torch.int64 and target.tolist() == [each % 3 for each in numbers]
        for image, key, number in zip(images, keys, numbers, strict=True):
            assert image[0, 0].tolist() == [key, 99 if epoch is None else epoch, 0]
            assert set(image.flatten()[3:].tolist()) == {10 + number}
            found += 1
    assert found == 4 + 3 + 4 + 3 + 4 + 1


@pytest.mark.parametrize("workers", [0, 2])
def test_so_many_processes_load(workers, colours):
    schedule = [("train", 0, each, [each]) for each in range(6)]
    batches = load(colours, workers, schedule, process_crop, images=1)
    loaders = [images[0, 0, 0].tolist() for images, *_ in batches]
    here = [*os.getpid().to_bytes(3, "big")]
    if workers:
        assert len({*map(tuple, loaders)}) == 2 and here not in loaders
        assert loaders[::2] == [loaders[0]] * 3 and loaders[1::2] == [loaders[1]] * 3, "in turn"
    else:
        assert loaders == [here] * 6


def test_without_processes_a_job_is_asked_for_when_its_batch_is(colours):
    """The schedule may depend on what training finds meanwhile, such as a signal."""
    asked = []
    schedule = (asked.append(job) or job for job in SCHEDULE)
    batches = load(colours, 0, schedule)
    assert asked == []
    next(batches), next(batches)
    assert asked == SCHEDULE[:2]


@pytest.mark.parametrize("fewer", [0, 1])
def test_batch_buffers_are_enough_and_not_one_too_many(fewer, colours, monkeypatch):
    """A batch is overwritten while the caller has it, where there is a buffer fewer."""
    allocate, made = torch.empty, []

    def empty(*size, **more):
        if not made and size[0] == 2 * 2 + 1:
            made.append(size)
            size = size[0] - fewer, *size[1:]
        return allocate(*size, **more)

    monkeypatch.setattr(torch, "empty", empty)
    schedule = [
        ("train", 0, step, [(4 * step + each) % 20 for each in range(4)]) for step in range(40)
    ]
    batches = load(colours, 2, schedule)
    monkeypatch.undo()
    assert made, "buffers are no longer allocated like this: bring this trial up to date"
    overwritten = False
    for _ in range(7):
        images, *_ = next(batches)
        before, until = images.clone(), time.monotonic() + (10 if fewer else 0.1)
        while torch.equal(before, images) and time.monotonic() < until:
            time.sleep(0.01)  # workers take milliseconds
        if overwritten := not torch.equal(before, images):
            break
    assert overwritten == bool(fewer)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_buffers_are_pinned_for_a_gpu_alone(kind, colours, monkeypatch):
    """All of them, which are in shared memory."""
    pinned, checked = [], []
    runtime = SimpleNamespace(cudaHostRegister=lambda *where: pinned.append(where) or 712)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", checked.append)
    batches = load(colours, 1, images=4, size=6, device=SimpleNamespace(type=kind))
    images = next(batches)[0]
    assert images.is_shared()
    if kind == "cuda":
        assert pinned == [(images.data_ptr(), 3 * 4 * 8 * 8 * 3, 0)] and checked == [712]
    else:
        assert pinned == checked == []


def be_worker(talk):
    """A process of a process: it says its number, then echoes."""
    image_loading.start_loader_worker(0)
    talk.send(os.getpid())
    while True:
        talk.send(talk.recv())


def be_trainer(talk):
    multiprocessing.get_context("fork").Process(target=be_worker, args=(talk,)).start()
    while True:
        signal.pause()


def test_a_loader_process_ignores_signals_and_ends_with_its_parent():
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    trainer = context.Process(target=be_trainer, args=(theirs,))
    trainer.start()
    try:
        worker = psutil.Process(ours.recv())
        for signum in signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP:
            worker.send_signal(signum)
        ours.send("alive")
        assert ours.poll(60) and ours.recv() == "alive"
    finally:
        trainer.kill()
        trainer.join()
    until = time.monotonic() + 60
    ended = False
    while not ended and time.monotonic() < until:
        with contextlib.suppress(psutil.NoSuchProcess):
            ended = worker.status() == psutil.STATUS_ZOMBIE
            time.sleep(0.01)
            continue
        ended = True
    if not ended:
        worker.kill()
    assert ended


def test_the_last_batch_of_synthetic_images_is_as_long_as_its_keys():
    schedule = [("train", 0, 0, range(4)), ("val", 1, 4, range(4, 7)), ("val", None, 0, [])]
    pixels, classes = torch.arange(4 * 4 * 4 * 3, dtype=torch.uint8), torch.arange(4) % 3
    batches = image_loading.repeat_images(
        schedule, pixels, classes, lambda split, epoch: 4 if split == "train" else 2
    )
    for job, side, count in zip(schedule, (4, 2, 2), (4, 3, 0), strict=True):
        images, target, *same = next(batches)
        assert same == [*job[:3]] and target.dtype == torch.int64
        assert target.tolist() == [0, 1, 2, 0][:count]
        expected = pixels[: count * side * side * 3].reshape(count, side, side, 3)
        assert torch.equal(images, expected) and images.shape == expected.shape
    assert [*batches] == []


def test_a_batch_may_have_several_classes_of_each_image():
    loader = loader_of([encode(photo(30, 40))] * 3)
    table = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], np.int8)
    loader.sources["val"] = SimpleNamespace(**{**vars(loader.sources["val"]), "target": table})
    ((_, target, *_),) = loader.batches([loader[0, "val", 0, 0, [2, 0]]])
    assert target.dtype == torch.int64 and target.tolist() == [[0, 1, 0], [1, 0, 1]]


# ---------------------------------------------------------------------------------------- lists


def of_all_kinds():
    """Returns files of every way that a list may go: what it takes, what it leaves out because of
    its kind or its size, and what libjpeg warns of."""
    good = encode(photo(90, 70))
    half = len(good) // 2
    files = [good, encode(photo(60, 80), "PNG"), good[:half] + bytes(64) + good[half + 64 :]]
    files += [encode(photo(900, 700)), encode(PIL.Image.fromarray(photo(50, 40)).convert("CMYK"))]
    files += [encode(photo(40 + each, 90 - each, each)) for each in range(40)]
    return files + [b"P6 30 20 255\n" + photo(20, 30).tobytes(), encode(photo(30, 40)[..., 0])]


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_list_gives_what_each_image_gives_alone(split, decoder, capfd):
    """To the bit, in its order; each file is read once. Of what libjpeg warns, Pillow decodes."""
    files, reads = of_all_kinds(), []
    loader = loader_of(files)
    loader.sources[split].read = lambda key: reads.append(key) or files[key]
    keys = [*range(len(files))][::-1]
    *same, target = loader[0, split, 3, 7, keys]
    assert same == [0, split, 3, 7] and target == keys and reads == keys
    for out, key in zip(loader.pixels(0, split, 3, len(keys)), keys, strict=True):
        alone = torch.zeros(24, 24, 3, dtype=torch.uint8)
        image_loading.load_alone(files[key], loader.crops[split](alone, key, 3))
        assert torch.equal(out, alone) and out.any(), key
    assert capfd.readouterr() == ("", "")


@ON_LINUX
def test_a_region_is_chosen_once_though_two_decoders_try(monkeypatch):
    """Of an image that libjpeg warns of, and Pillow reads: its crop is that of Pillow alone."""
    good = encode(photo(90, 70))
    batches = []
    for _ in range(2):
        loader = loader_of([good[:-2] + bytes([18] * 20) + good[-2:]] * 40)
        loader[0, "train", 0, 0, [*range(40)]]
        batches.append(loader.buffers)
        monkeypatch.setattr(decoding, "region_decoder", lambda: None)
    assert torch.equal(*batches) and batches[0].any()


@ON_LINUX
def test_lists_are_as_long_as_memory_allows(monkeypatch):
    """32 images of half a megapixel at most, and of 1.5 MB; what is larger is decoded alone."""
    files = of_all_kinds()[3:]
    files += [encode(photo(512, 1024)), encode(photo(512, 1025))]
    small = encode(photo(64, 48))
    two_megabytes = 30 * (b"\xff\xef\xff\xff" + bytes(0xFFFD))  # of a maker's
    files += [small[:2] + two_megabytes + small[2:]]
    loader, lists, decode_regions = loader_of(files), [], decoding.decode_regions

    def decode(regions):
        lists.append(decode_regions(regions))
        return [*lists[-1]]

    monkeypatch.setattr(decoding, "decode_regions", decode)
    loader[0, "val", 0, 0, [*range(len(files))]]
    sizes = [[math.prod(image.shape[:2]) for image in images] for images in lists]
    alone = [size for size in sizes if len(size) == 1]
    assert sorted(alone) == [[64 * 48], [512 * 1025], [900 * 700]]
    listed = [size for size in sizes if len(size) > 1]
    assert len(listed) == 2 and sum(map(len, listed)) == len(files) - 4, "all but the PPM"
    assert max(map(len, listed)) <= 32 and max(map(max, listed)) == 2**19


# ------------------------------------------------------------------------- what cannot be used


@pytest.mark.parametrize("at", [0, 7, 40])
@pytest.mark.parametrize("kind", ["cut", "no table", "empty", "no picture"])
def test_damaged_images_of_a_list_are_named(kind, at, decoder, pauses):
    """Those that nobody can decode end the run, by name, after another attempt."""
    good = encode(photo(90, 70))
    files = [encode(photo(40 + each, 90 - each, each)) for each in range(41)]
    files[at], why = {
        "cut": (good[:400] + b"\xff\xd9", "Truncated File Read"),
        "no table": (no_table(good), "broken data stream when reading image file"),
        "empty": (b"", "Pillow cannot identify it: it begins with b''"),
        "no picture": (BAD, "Pillow cannot identify it: it begins with b'no picture'"),
    }[kind]
    loader = loader_of(files)
    *_, error = loader[0, "val", 0, 0, [*range(len(files))]]
    assert isinstance(error, errors.BadInput) and pauses == [1]
    assert str(error) == f"{at}.jpg: image {at} cannot be used: {why}"
    with pytest.raises(errors.BadInput) as raised:
        next(loader.batches([(0, "val", 0, 0, error)]))
    assert raised.value is error, "where the trainer asks for the batch"


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_used_ends_at_its_batch(workers, colours, pauses):
    """Those before are there, and nothing is after it."""
    names = colours["train"].names.copy()
    names[7] = b"gone.png"
    sources = {**colours, "train": colours["train"]._replace(names=names)}
    schedule = [("train", 0, 0, [1, 2]), ("train", 0, 2, [6, 7]), ("train", 0, 4, [8, 9])]
    batches = load(sources, workers, schedule)
    assert next(batches)[1].tolist() == [1, 2]
    with pytest.raises(errors.Fault) as raised:
        next(batches)
    traceback.clear_frames(raised.tb)  # which have the loader: its processes end with it
    path = f"{colours['train'].folder}/gone.png"
    assert str(raised.value) == f"{path}: image 7 cannot be used: No such file or directory"
    assert [*batches] == []


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize(
    ("faults", "waited", "kind", "why"),
    [
        ([], [], None, ""),
        ([STALE] * 2, [1, 5], None, ""),
        ([STALE] * 3, [1, 5, 20], None, ""),
        ([STALE] * 4, [1, 5, 20], errors.Fault, "Stale file handle"),
        ([BAD], [1], None, ""),
        ([BAD] * 2, [1], errors.BadInput, f"Pillow cannot identify it: it begins with {BAD}"),
        ([BAD, STALE, STALE], [1, 5, 20], None, ""),
        ([BAD, STALE, b"other"], [1, 5], errors.BadInput, "it begins with b'other'"),
        ([OSError(24, "Too many open files")] * 4, [1, 5, 20], errors.BadInput, "Too many open"),
        ([OSError("no connection")] * 4, [1, 5, 20], errors.Fault, "no connection"),
    ],
    ids=str,
)
def test_a_read_that_fails_is_tried_again(split, faults, waited, kind, why, pauses):
    """One that fails for a while ends no run; what is read twice is tried no more."""
    faults, right = [*faults], encode(photo(40, 50))
    loader = loader_of([right] * 8, images=1)

    def read(index):
        fault = faults.pop(0) if faults else right
        if isinstance(fault, Exception):
            raise fault
        return fault

    loader.sources[split].read = read
    *_, target = loader[0, split, 0, 0, [11]]
    if kind:
        assert type(target) is kind and not faults
        assert str(target).startswith("3.jpg: image 3 cannot be used: ")  # of key 11, of 8
        assert why in str(target)
    else:
        assert target == [3] and loader.buffers.any()
    assert pauses == waited


def test_a_mistake_in_a_crop_is_no_image_s():
    """It is a bug, which has a traceback."""

    def crop(out, key, epoch):
        yield whole
        raise ZeroDivisionError

    loader = loader_of([encode(photo(40, 50))])
    loader.crops["val"] = crop
    with pytest.raises(ZeroDivisionError):
        loader[0, "val", 0, 0, [0]]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("where", ["choose", "crop"])
def test_an_error_of_a_crop_keeps_its_type(where, again, kind, decoder, pauses):
    """An OSError, too, which is not one of reading: nothing is read again, and no image blamed."""
    error = OSError(5, "of the crop")

    def fail(*sides):
        raise error

    def crop(out, key, epoch):
        yield fail if where == "choose" else whole
        fail()

    loader = loader_of([encode(photo(40, 50), kind)])
    loader.crops["val"] = crop
    if again:  # the first attempt to read fails
        encoded = loader.sources["val"].read(0)
        loader.sources["val"].read = mock.Mock(side_effect=[STALE, encoded])
    with pytest.raises(OSError, match="of the crop") as raised:
        loader[0, "val", 0, 0, [0]]
    assert raised.value is error and pauses == [1] * again


def forgets(out, key, epoch):
    """A crop that does not yield once more."""
    out.copy_(torch.from_numpy((yield whole)[:6, :6].copy()))


def ends_at_once(out, key, epoch):
    """A crop that yields nothing."""
    yield from ()


@pytest.mark.parametrize("crop", [forgets, ends_at_once])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_crop_that_ends_too_early_is_no_end_of_the_batches(workers, crop, colours):
    batches = load(colours, workers, [("train", 0, 0, [1])], crop)
    line = r"crops\['train'\] ended too early: a crop yields .*, and yields once more"
    with pytest.raises(errors.BadInput, match=line) as raised:
        next(batches)
    traceback.clear_frames(raised.tb)  # which have the loader: its processes end with it


@pytest.mark.parametrize("first", ["other sides", "truncated", "unreadable"])
def test_an_image_read_again_draws_the_same(first, pauses):
    """Also if what was read first was another image, of other sides."""
    right, wrong = encode(photo(90, 70)), no_table(encode(photo(64, 200)))
    error = OSError(5, "Input/output error")
    before = {"other sides": wrong, "truncated": wrong[:500], "unreadable": error}[first]
    loader, reads = loader_of([right]), [before, right]

    def read(index):
        if isinstance(content := reads.pop(0), Exception):
            raise content
        return content

    loader.sources["train"].read = read
    loader[0, "train", 2, 0, [0]]
    alone = torch.zeros(24, 24, 3, dtype=torch.uint8)
    image_loading.load_alone(right, random_crop(alone, 0, 2))
    assert torch.equal(loader.buffers.view_as(alone), alone) and not reads and pauses == [1]


# ---------------------------------------------------------------------------------------- shards


@pytest.fixture
def shard(tmp_path):
    """(Source of one image of a shard, of bytes 1 to 5 of a file of 6; its path)."""
    one = np.ones(1, np.int64)
    names = np.array([b"x"])
    image_files.open_shard.cache_clear()
    yield image_files.Source(str(tmp_path), ["a"], names, one - 1, one, 4 * one, one - 1)
    image_files.open_shard.cache_clear()


def write_anew(path, content):
    """Puts another file there, as a program does that replaces one."""
    other = path.with_name("other")
    other.write_bytes(content)
    other.replace(path)


def test_a_shard_that_was_replaced_is_read_anew_for_another_attempt(
    shard, tmp_path, pauses, monkeypatch
):
    monkeypatch.setattr(image_loading, "load_alone", lambda encoded, write: encoded)
    write_anew(tmp_path / "x", b"[old.]")
    assert shard.read(0) == b"old."
    write_anew(tmp_path / "x", b"[new.]")
    assert shard.read(0) == b"old.", "it is open"
    damaged = errors.BadInput("damaged")
    assert image_loading.load_again(shard, 0, lambda: None, damaged) == b"new."


def test_shards_are_closed_where_the_system_allows_no_more_files(
    shard, tmp_path, pauses, monkeypatch
):
    (tmp_path / "x").write_bytes(b"[img.]")
    full = [OSError(24, "Too many open files")]

    def count(path, *more, **options):
        if full:
            raise full.pop()
        return open(path, *more, **options)

    monkeypatch.setattr(image_files, "open", count, raising=False)
    monkeypatch.setattr(image_loading, "load_alone", lambda encoded, write: encoded)
    with pytest.raises(OSError, match="Too many open files") as raised:
        shard.read(0)
    assert image_loading.load_again(shard, 0, lambda: None, raised.value) == b"img."
    assert pauses == [1]


PROGRAM = """
import sys
sys.path.insert(0, {root!r})
import torch
from pathlib import Path
from trainparts.images import image_files, image_loading

def crop(out, key, epoch):
    image = yield lambda height, width: (0, 0, 8, 8)
    out.copy_(torch.from_numpy(image.copy()))
    yield

if __name__ == "__main__":
    sources = dict(zip(("train", "val"), image_files.open_sources(Path("data"))))
    jobs = [("train", 0, number, [0, 1]) for number in range(50)]
    size_of, device = (lambda split, epoch: 8), torch.device("cpu")
    crops = dict.fromkeys(sources, crop)
    batches = image_loading.load_images(
        jobs,
        sources=sources,
        crops=crops,
        size_of=size_of,
        batch_bytes=1000,
        workers=2,
        device=device,
    )
    print([*next(batches)[0].shape], flush=True)
    {ends}
"""


def test_a_program_ends_though_batches_are_left(tmp_path):
    """Loader workers ignore what multiprocessing ends them by, and would be waited for. A program
    that fails is run by Python itself, one that does not in a fork."""
    write_images(tmp_path / "data")
    words = [sys.executable, "-c", PROGRAM.format(root=str(ROOT), ends="raise ValueError")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "[2, 8, 8, 3]\n"), done.stderr
    words[-1] = PROGRAM.format(root=str(ROOT), ends="pass")
    assert run(words, tmp_path, timeout=120) == "[2, 8, 8, 3]\n"
