"""Tools beside training: shards, ILSVRC2012's tar files into folders, profiles."""

import contextlib
import functools
import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import numpy as np
import PIL.Image
import pytest
import scipy.io
from conftest import ROOT, SCRIPTS, command, complaint, environment, needs_horovod, run

import imagenet_nd as nd
from reporting import logs


@pytest.fixture
def tool(call_tool):
    """tool(program, *words, status=0): returns the last line printed, the only one of stderr where
    the status is 2."""

    def call(program, *words, status=0):
        output, errors = call_tool(program, *words, status=status)
        if status:
            (line,) = errors.splitlines()
            return line
        return output.splitlines()[-1]

    return call


def write_set(folder, names=("b", "a"), train=5, val=2, sizes=(60, 45)):
    """Writes JPEGs that differ, so many a class."""
    serial = 0
    for part, count in ("train", train), ("val", val):
        for name in names:
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                serial += 1
                pixels = np.random.default_rng(serial).integers(0, 256, (3, 4, 3), dtype=np.uint8)
                image = PIL.Image.fromarray(pixels).resize(sizes, PIL.Image.BICUBIC)
                image.save(folder / part / name / f"{number}.JPEG", quality=90)
    return folder


def members(path):
    """Returns {name: bytes} of a tar file."""
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def write_tar(path, content, mode="w"):
    """Writes a tar file of {name: bytes}."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:
        for name, inside in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(inside)
            tar.addfile(member, io.BytesIO(inside))
    return path


# ----------------------------------------------------------------------------------------- shards


def test_shards_hold_the_files_in_the_folders_order(tmp_path, tool):
    folder, out = write_set(tmp_path / "data"), tmp_path / "out"
    # From another folder, as users start it.
    words = [sys.executable, ROOT / "tools" / "make_shards.py", "data", "out", "--images", 4]
    assert run(words, tmp_path).splitlines()[-1] == "out: 14 images"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out"]
    names = ["000000.tar", "000001.tar", "000002.tar"]
    assert sorted(path.name for path in (out / "train").iterdir()) == [*names, "index.npz"]
    content = {}
    for name in names:
        content |= members(out / "train" / name)
    files = sorted((folder / "train").glob("*/*"))
    wanted = {}
    for serial, path in enumerate(files):
        wanted[f"{serial:08}.jpeg"] = path.read_bytes()
        wanted[f"{serial:08}.cls"] = b"%d" % "ab".index(path.parent.name)
    assert [*content.items()] == [*wanted.items()]
    source = nd.open_source(out / "train")
    assert source.classes == ["a", "b"] and source.target.tolist() == [0] * 5 + [1] * 5
    assert [source.read(index) for index in range(10)] == [path.read_bytes() for path in files]
    assert tool("make_shards", "--check", out).endswith(
        "sizes and checksums are as they were written"
    )


def test_resized_and_raw_shards(tmp_path, tool):
    folder = write_set(tmp_path / "data")
    broken = folder / "train" / "a" / "2.JPEG"
    broken.write_bytes(broken.read_bytes()[:-40])
    tool("make_shards", folder, tmp_path / "small", "--resize", 32, "--quality", 80)
    tool("make_shards", folder, tmp_path / "raw", "--raw", 32)
    small, raw = (nd.open_source(tmp_path / name / "train") for name in ("small", "raw"))
    whole = nd.open_source(folder / "train")
    for index in range(len(whole.target)):
        if whole.path(index) == str(broken):
            assert small.read(index) == raw.read(index) == broken.read_bytes()
            continue
        image = PIL.Image.open(whole.path(index))
        with PIL.Image.open(io.BytesIO(small.read(index))) as other:
            assert (other.format, other.size) == ("JPEG", (32, 24))
        with PIL.Image.open(io.BytesIO(raw.read(index))) as other:
            assert (other.format, other.size) == ("PPM", (42, 32))
            expected = np.asarray(image.resize((42, 32), PIL.Image.BILINEAR), int)
            assert np.abs(np.asarray(other) - expected).mean() < 1
    pair = {name.split(".")[1] for name in members(tmp_path / "raw" / "train" / "000000.tar")}
    assert pair == {"ppm", "cls", "jpeg"}, "what cannot be read is kept as it is"


def test_check_finds_what_has_changed(tmp_path, tool):
    out = tmp_path / "out"
    tool("make_shards", write_set(tmp_path / "data"), out)
    shard = out / "val" / "000000.tar"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    line = tool("make_shards", "--check", out, status=2)
    assert "val/000000.tar is not what was written: its checksum differs" in line
    shard.write_bytes(content[:-512])
    assert "000000.tar is another file now" in tool("make_shards", "--check", out, status=2)
    (out / "val" / "index.npz").unlink()
    assert "val has no index.npz" in tool("make_shards", "--check", out, status=2)


@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_verify_names_each_image_that_cannot_be_used(kind, tmp_path, call_tool):
    folder = write_set(tmp_path / "data")
    bad = {"train": folder / "train" / "b" / "2.JPEG", "val": folder / "val" / "a" / "0.JPEG"}
    cut = {split: path.read_bytes()[:-40] for split, path in bad.items()}
    files = {path: path.read_bytes() for path in folder.rglob("*.JPEG")}
    output, errors = call_tool("make_shards", "--verify", folder, "-j", 2)
    assert output.endswith(f"{folder}: 0 of {len(files)} images cannot be used\n")
    for split, path in bad.items():
        path.write_bytes(cut[split])
    if kind == "shards":
        call_tool("make_shards", folder, tmp_path / "out", "--images", 4, "-j", 2)
        folder = tmp_path / "out"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    output, errors = call_tool("make_shards", "--verify", folder, "-j", 2, status=1)
    *lines, last = output.splitlines()
    for line, split in zip(lines, bad, strict=True):
        source = nd.open_source(folder / split)
        (number,) = (n for n in range(len(source.target)) if source.read(n) == cut[split])
        assert line.startswith(f"{source.path(number)}: image {number} cannot be used: ")
    assert last == f"{folder}: 2 of {len(files)} images cannot be used"
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert after == before, "nothing is written"
    assert "give DIR and OUT" in call_tool("make_shards", "--verify", folder, "x", status=2)[1]


def test_nothing_is_overwritten_and_nothing_half_made_is_left(tmp_path, tool):
    folder, out = write_set(tmp_path / "data"), tmp_path / "out"
    out.mkdir()
    assert "out is there already" in tool("make_shards", folder, out, status=2)
    out.rmdir()
    (tmp_path / "out.unfinished").mkdir()  # of one that was killed, or still works
    assert "out.unfinished is there already" in tool("make_shards", folder, out, status=2)
    (tmp_path / "out.unfinished").rmdir()
    (folder / "val" / "b" / "9.jpg").symlink_to("nowhere")
    assert "No such file" in tool("make_shards", folder, out, status=2)
    (folder / "val" / "b" / "9.jpg").unlink()
    shutil.rmtree(folder / "val" / "b")
    assert "differ in their classes" in tool("make_shards", folder, out, status=2)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data", "give DIR and OUT to make shards, one of them for --index, --check"),
        ("--check data out", "give DIR and OUT to make shards, one of them for --index, --check"),
        ("data out --raw 3 --resize 3", "--resize: not allowed with argument --raw"),
        ("data out --images 0", "--images: 0 is no int from 1 to "),
        ("data out --quality 1000", "--quality: 1000 is no int from 1 to 95"),
        ("data out -j 100000", "-j/--workers: 100000 is no int from 1 to 1024"),
        ("absent out", "absent/train: [Errno 2] No such file"),
    ],
)
def test_shards_of_bad_words(words, message, tmp_path, tool, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = tool("make_shards", *words.split(), status=2)
    assert line.startswith("make_shards.py: error: ") and message in line


def test_shards_among_the_images_are_refused(tmp_path, tool):
    """They would be a class."""
    folder = write_set(tmp_path / "data")
    (tmp_path / "link").symlink_to(folder / "val")
    for out in folder / "train" / "x", folder / "train" / "a" / "x", tmp_path / "link" / "x":
        assert "give a folder beside it" in tool("make_shards", folder, out, status=2)
        assert not out.exists()
    assert tool("make_shards", folder, folder / "x").endswith("x: 14 images")


def test_a_shard_has_ten_thousand_images(tmp_path, tool):
    """So that ImageNet is 129 files, which a loader process can keep open."""
    folder = write_set(tmp_path / "data", names=["a"], train=1, val=1)
    for number in range(1, 10_001):
        os.link(folder / "train" / "a" / "0.JPEG", folder / "train" / "a" / f"{number}.JPEG")
    assert tool("make_shards", folder, tmp_path / "out").endswith("out: 10002 images")
    source = nd.open_source(tmp_path / "out" / "train")
    assert np.bincount(source.file).tolist() == [10_000, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_shards_leave_nothing(number, tmp_path):
    """Ctrl-C reaches all processes, SIGTERM the first alone; none of them lives on."""
    folder = write_set(tmp_path / "data", names=["a"], train=1, sizes=(1000, 800))
    for other in range(1, 5000):  # a minute's work at least
        os.link(folder / "train" / "a" / "0.JPEG", folder / "train" / "a" / f"{other}.JPEG")
    words = [sys.executable, ROOT / "tools" / "make_shards.py", "data", "out", "--raw", "700"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(
        [*words, "--images", "100", "-j", "2"],
        cwd=tmp_path,
        env=environment(),
        start_new_session=True,
        **streams,
    )
    try:
        while not [*tmp_path.glob("out.unfinished/train/000000.tar")] and process.poll() is None:
            time.sleep(0.05)
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        # The end of the pipe comes when no process has it.
        assert process.communicate(timeout=120)[0] == f"make_shards.py: ended by {number.name}\n"
        assert process.returncode == 128 + number
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def existing(folder, content):
    """Writes tar files of others: train/x-0.tar as given, and a val/x-0.tar of one image."""
    write_tar(folder / "train" / "x-0.tar", content)
    write_tar(folder / "val" / "x-0.tar", {"v/1.png": b"picture", "v/1.cls": b"2\n"})
    return folder


def test_a_link_to_a_tar_is_no_other_tar_and_empty_classes_are_named(tmp_path, call_tool):
    content = {"1.jpg": b"first", "1.cls": b"0", "2.jpg": b"second", "2.cls": b"99"}
    folder = existing(tmp_path / "data", content)
    (folder / "train" / "y-0.tar").symlink_to("x-0.tar")
    output, _ = call_tool("make_shards", "--index", folder)
    assert output.splitlines()[:2] == [
        f"{folder}/train: 98 of 100 classes have no image",
        f"{folder}/val: 99 of 100 classes have no image",
    ]
    assert len(nd.open_source(folder / "train").target) == 2


def test_index_of_tars_that_exist(tmp_path, tool):
    content = {"./n1_7.jpg": b"first", "./n1_7.json": b"{}", "./n1_7.cls": b"1"}
    content |= {
        "./n0_9.cls": b" 0 ",
        "./n0_9.JPEG": b"second",
        "readme.txt": b"",
        ".hidden.jpg": b"",
    }
    folder = existing(tmp_path / "data", content)
    assert tool("make_shards", "--index", folder).endswith("data: 3 images")
    source = nd.open_source(folder / "train")
    assert source.classes == ["0", "1", "2"] and source.target.tolist() == [1, 0]
    assert [source.read(index) for index in range(2)] == [b"first", b"second"]
    assert nd.open_source(folder / "val").classes == source.classes
    assert "sizes" in tool("make_shards", "--check", folder)
    assert "index.npz already" in tool("make_shards", "--index", folder, status=2)
    for part in "train", "val":
        (folder / part / "index.npz").unlink()
    (tmp_path / "names").write_text("ant\nbee\ncat\n")
    tool("make_shards", "--index", folder, "--classes", tmp_path / "names")
    assert nd.open_source(folder / "train").classes == ["ant", "bee", "cat"]
    (folder / "train" / "index.npz").unlink()
    (folder / "val" / "index.npz").unlink()
    (tmp_path / "names").write_text("ant\nbee\nbee\n")
    line = tool("make_shards", "--index", folder, "--classes", tmp_path / "names", status=2)
    assert "names needs 3 names or more, no two alike" in line
    (tmp_path / "names").write_bytes(b"\xff\xfe\x00")
    line = tool("make_shards", "--index", folder, "--classes", tmp_path / "names", status=2)
    assert line.endswith("names is no text in UTF-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a.jpg": b"x"}, "1 without an image or a .cls, as a"),
        ({"a.jpg": b"x", "a.cls": b"0", "b.cls": b"0"}, "1 without an image or a .cls, as b"),
        ({"a.jpg": b"x", "a.png": b"x", "a.cls": b"0"}, "there are two of a"),
        ({"a.v2.jpg": b"x", "a.v2.cls": b"0"}, "1 have a dot in their key, as a.v2.jpg"),
        ({"a.txt": b"x"}, "there is no image in the files of train"),
        ({"a.jpg": b"x", "a.cls": b"1_0"}, "a.cls holds no class, a number from 0 to 999999"),
        ({"a.jpg": b"x", "a.cls": b"cat"}, "a.cls holds no class, a number from 0 to 999999"),
        ({"a.jpg": b"x", "a.cls": b"-1"}, "a.cls holds no class, a number from 0 to 999999"),
        ({"a.jpg": b"x", "a.cls": b"200000000"}, "a.cls holds no class, a number from 0 to"),
        ({"a.jpg": b"x", "a.cls": b"1" + b"0" * 30}, "a.cls holds no class, a number from 0 to"),
        ("compressed", "no uncompressed, whole tar file of images"),
        ("cut off in an image", "no uncompressed, whole tar file of images"),
        ("cut off after an image", "no uncompressed, whole tar file of images"),
        ("no tar", "no uncompressed, whole tar file of images"),
    ],
)
def test_index_of_bad_tars(content, message, tmp_path, tool):
    good = {"a.cls": b"0", "a.jpg": b"x" * 2000, "b.cls": b"0", "b.jpg": b"x"}
    folder = existing(tmp_path, good if isinstance(content, str) else content)
    path = folder / "train" / "x-0.tar"
    if isinstance(content, dict):
        pass
    elif content == "compressed":
        write_tar(path, good, "w:gz")
    elif content.startswith("cut off"):
        path.write_bytes(path.read_bytes()[: 2000 if "in" in content.split() else 7 * 512])
    elif content == "no tar":
        path.write_bytes(b"no tar" * 1000)
    line = tool("make_shards", "--index", folder, status=2)
    assert (str(path) in line or "in the files of" in line) and message in line
    assert not [*folder.glob("*/index*")]


# --------------------------------------------------------------------------------------- ImageNet

CLASSES = {1: "n02119789", 2: "n02100735", 3: "n02110185"}  # as in ILSVRC2012: not in sorted order
TRUTH = [2, 3, 1, 1, 2, 3, 3]  # of the validation images

# The same as Kaggle has it.
SOLUTION = "ImageId,PredictionString\n" + "".join(
    f"ILSVRC2012_val_{number:08},{CLASSES[label]} 1 2 30 40 {CLASSES[label]} 5 6 70 80 \n"
    for number, label in enumerate(TRUTH, 1)
)


def write_archives(folder, classes=CLASSES, truth=TRUTH):
    """Writes small tars in ILSVRC2012's layout; returns ({path: bytes} of train/, of val/)."""
    kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("gloss", "O")]
    kinds += [("num_children", "O"), ("children", "O"), ("wordnet_height", "O")]
    rows = [(each, name, "word", "gloss", 0, [], 0) for each, name in classes.items()]
    rows.append((len(rows) + 1, "n00001740", "entity", "gloss", 2, [1, 2], 1))
    synsets = np.empty((len(rows), 1), kinds)
    for number, row in enumerate(rows):
        synsets[number, 0] = row
    mat = io.BytesIO()
    scipy.io.savemat(mat, {"synsets": synsets})
    labels = "".join(f"{each}\n" for each in truth).encode()
    inside = "ILSVRC2012_devkit_t12/data"
    kit = {f"{inside}/meta.mat": mat.getvalue()}
    kit[f"{inside}/ILSVRC2012_validation_ground_truth.txt"] = labels
    write_tar(folder / "ILSVRC2012_devkit_t12.tar.gz", kit, "w:gz")
    train, outer = {}, {}
    for name in sorted(classes.values()):
        images = {f"{name}_{each}.JPEG": f"{name} {each}".encode() * 300 for each in (18, 2, 7)}
        train |= {f"{name}/{image}": content for image, content in images.items()}
        outer[f"{name}.tar"] = write_tar(folder / "inner.tar", images).read_bytes()
    (folder / "inner.tar").unlink()
    write_tar(folder / "ILSVRC2012_img_train.tar", outer)
    numbers = range(1, len(truth) + 1)
    flat = {f"ILSVRC2012_val_{each:08}.JPEG": f"{each}".encode() * 500 for each in numbers}
    write_tar(folder / "ILSVRC2012_img_val.tar", flat)
    named = zip(flat, truth, strict=True)
    return train, {f"{classes[label]}/{image}": flat[image] for image, label in named}


def content_of(folder):
    """Returns {path below the folder: bytes}."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_imagenet_is_unpacked_into_classes(tmp_path, tool):
    train, val = write_archives(tmp_path / "tars")
    words = [sys.executable, ROOT / "tools" / "prepare_imagenet.py", "tars", "data"]
    lines = run(words, tmp_path).splitlines()
    assert lines[-2:] == ["data/train: 9 images of 3 classes", "data/val: 7 images of 3 classes"]
    assert content_of(tmp_path / "data" / "train") == train
    assert content_of(tmp_path / "data" / "val") == val
    shutil.rmtree(tmp_path / "tars" / "ILSVRC2012_img_train.tar", ignore_errors=True)
    assert "7 images" in tool("prepare_imagenet", tmp_path / "tars", tmp_path / "data")


@pytest.mark.parametrize("fault", ["a bit", "cut off", "no table"])
def test_a_damaged_devkit_names_no_classes(fault, tmp_path, tool):
    """tarfile reads to the end of the members, and so not gzip's checksum."""
    write_archives(tmp_path / "tars")
    path = tmp_path / "tars" / "ILSVRC2012_devkit_t12.tar.gz"
    whole = bytearray(path.read_bytes())
    if fault == "a bit":
        whole[-6] ^= 1  # of the checksum: any other bit changes it
    path.write_bytes(whole[:-9] if fault == "cut off" else whole)
    if fault == "no table":
        write_tar(path, {"ILSVRC2012_devkit_t12/data/readme.txt": b""}, "w:gz")
    line = tool("prepare_imagenet", tmp_path / "tars", tmp_path / "data", status=2)
    assert "ILSVRC2012_devkit_t12.tar.gz is cut off or damaged (" in line
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("tar", ["img_train.tar", "img_val.tar"])
def test_an_interrupted_unpacking_goes_on(tar, tmp_path, tool):
    """What is cut off does not get its name; with the whole tar file, the rest comes."""
    train, val = write_archives(tmp_path / "tars")
    part = "train" if "train" in tar else "val"
    path, data = tmp_path / "tars" / f"ILSVRC2012_{tar}", tmp_path / "data"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 + 99])
    line = tool("prepare_imagenet", path.parent, data, "--only", part, status=2)
    assert re.search(r"tar file of train is cut off or damaged|img_val.tar lacks \d images", line)
    assert [each.name for each in data.iterdir()] == [f"{part}.unfinished"]
    path.write_bytes(whole)
    tool("prepare_imagenet", path.parent, data, "--only", part)
    assert content_of(data) == {
        f"{part}/{n}": v for n, v in {"train": train, "val": val}[part].items()
    }


def test_a_flat_val_is_sorted_also_without_its_tar(tmp_path, tool):
    _, val = write_archives(tmp_path / "tars")
    folder = tmp_path / "data" / "val"
    folder.mkdir(parents=True)
    for name, content in members(tmp_path / "tars" / "ILSVRC2012_img_val.tar").items():
        (folder / name).write_bytes(content)
    (tmp_path / "tars" / "ILSVRC2012_img_val.tar").unlink()
    (folder / "valprep.sh").write_text("#!/bin/bash")  # which many have there
    tool("prepare_imagenet", tmp_path / "tars", tmp_path / "data", "--only", "val")
    (folder / "valprep.sh").unlink()
    assert content_of(folder) == val
    shutil.rmtree(folder / CLASSES[1])
    line = tool("prepare_imagenet", tmp_path / "tars", tmp_path / "data", "--only", "val", status=2)
    assert f"val and ILSVRC2012_devkit_t12.tar.gz differ in 1 classes, as {CLASSES[1]}" in line


def test_a_class_cut_off_between_two_images(tmp_path, tool):
    """tarfile takes it for whole."""
    train, _ = write_archives(tmp_path / "tars")
    path, data = tmp_path / "tars" / "ILSVRC2012_img_train.tar", tmp_path / "data"
    whole = path.read_bytes()
    classes = members(path)
    with tarfile.open(fileobj=io.BytesIO(classes["n02110185.tar"])) as tar:
        third = tar.getmembers()[2].offset
    classes["n02110185.tar"] = classes["n02110185.tar"][:third]
    write_tar(path, classes)
    line = tool("prepare_imagenet", path.parent, data, "--only", "train", status=2)
    assert line.endswith("img_train.tar: n02110185.tar in it is cut off or damaged: get it again")
    assert len([*data.glob("train.unfinished/n02110185/*.JPEG")]) == 2
    path.write_bytes(whole)
    tool("prepare_imagenet", path.parent, data, "--only", "train")
    assert content_of(data / "train") == train


@pytest.mark.parametrize("part", ["train", "val"])
def test_images_that_a_power_loss_has_emptied(part, tmp_path, tool):
    train, val = write_archives(tmp_path / "tars")
    wanted, data = {"train": train, "val": val}[part], tmp_path / "data"
    words = "prepare_imagenet", tmp_path / "tars", data, "--only", part
    tool(*words)
    (data / part).rename(data / f"{part}.unfinished")
    emptied = data / f"{part}.unfinished" / [*wanted][1]
    emptied.write_bytes(b"")
    tool(*words)
    assert content_of(data / part) == wanted


def test_an_unpacking_ends_by_ctrl_c_in_one_line(tmp_path, tool):
    train, _ = write_archives(tmp_path / "tars")
    path, data = tmp_path / "tars" / "ILSVRC2012_img_train.tar", tmp_path / "data"
    path.rename(tmp_path / "whole")
    os.mkfifo(path)  # it waits for
    words = [sys.executable, ROOT / "tools" / "prepare_imagenet.py", path.parent, data]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also behind `&`
    words = [*words, "--only", "train"]
    process = subprocess.Popen(words, env=environment(), preexec_fn=heeds, **streams)
    while not (data / "train.unfinished").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    line = "prepare_imagenet.py: interrupted: start it again, and it goes on\n"
    assert process.communicate(timeout=120)[0] == line and process.returncode == 130
    (tmp_path / "whole").rename(path)
    tool("prepare_imagenet", path.parent, data, "--only", "train")
    assert content_of(data / "train") == train


def test_what_is_not_all_of_ilsvrc2012_is_named(tmp_path, tool):
    """With its thousand classes, a set is taken for it."""
    classes = {each: f"n{each:08}" for each in range(1, 1001)}
    write_archives(tmp_path / "tars", classes, [*classes])
    line = tool("prepare_imagenet", tmp_path / "tars", tmp_path / "data", "--only", "val")
    assert "data/val is not whole, or not ILSVRC2012's, which has 50000 images" in line


def test_tars_that_lack_something_end_in_one_line(tmp_path, tool):
    write_archives(tmp_path / "tars")
    words = "prepare_imagenet", tmp_path / "tars", tmp_path / "data"
    outer = members(tmp_path / "tars" / "ILSVRC2012_img_train.tar")
    outer.pop("n02110185.tar")
    write_tar(tmp_path / "tars" / "ILSVRC2012_img_train.tar", outer)
    assert "differ in 1 classes, as n02110185" in tool(*words, status=2)
    flat = members(tmp_path / "tars" / "ILSVRC2012_img_val.tar")
    flat.pop("ILSVRC2012_val_00000003.JPEG")
    write_tar(tmp_path / "tars" / "ILSVRC2012_img_val.tar", flat)
    line = tool(*words, "--only", "val", status=2)
    assert "lacks 1 images, as ILSVRC2012_val_00000003.JPEG" in line
    assert {path.name for path in words[2].iterdir()} == {"train.unfinished", "val.unfinished"}
    (tmp_path / "tars" / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(b"no tar")
    assert tool(*words, status=2).startswith("prepare_imagenet.py: error: ")
    assert "absent is no folder" in tool(
        "prepare_imagenet", tmp_path / "absent", tmp_path, status=2
    )
    (tmp_path / "tars" / "ILSVRC2012_devkit_t12.tar.gz").unlink()
    line = tool(*words, status=2)
    assert "has no ILSVRC2012_devkit_t12.tar.gz, which names the classes: image-net.org has" in line
    (tmp_path / "tars" / "LOC_val_solution.csv").write_text(SOLUTION)
    (tmp_path / "tars" / "ILSVRC2012_img_train.tar").unlink()
    assert "img_train.tar: --only val" in tool(*words, status=2)


# ---------------------------------------------------------------------------------------- profiles

PROFILE = ROOT / "tools" / "profile_steps.py"
FEW = ["-a", "vit_b_16", "--image-size", "32", "--no-accel", "-j", "0", "-b", "4", "--epochs", "1"]
COMMON = "imagenet_ddp.py", "imagenet_nd.py"


def profiling(script, ranks, *options):
    """Returns the words that start `script` with so many ranks, in the profiler."""
    words = command(script, ranks)
    at = words.index(str(ROOT / script))
    return [*words[:at], str(PROFILE), *options, *words[at:]]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            script,
            marks=[
                *([] if script in COMMON else [pytest.mark.slow]),
                *([needs_horovod] if "horovod" in script else []),
            ],
        )
        for script in SCRIPTS
    ],
)
def test_a_profile_is_of_the_same_ten_steps(script, demo, tmp_path):
    """In each script, on all its ranks; and is no run for others."""
    ranks = 1 if script in ("imagenet_nd.py", "imagenet_dp.py") else 2
    words = [*profiling(script, ranks, "--from", "3"), *FEW, "--steps-per-epoch", "14", demo]
    output = run([*words, *(["--opt-level", "O0"] if "apex" in script else [])], tmp_path)
    (trace,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert re.fullmatch(r"runs/profile_[^/]+/trace.json.gz", str(trace.relative_to(tmp_path)))
    assert f"Trace of ten steps: {trace.relative_to(tmp_path)}" in output
    assert "aten::" in output and "# of Calls" in output
    with gzip.open(trace) as file:
        names = [each.get("name") for each in json.load(file)["traceEvents"]]
    steps = {name for name in names if str(name).startswith("ProfilerStep#")}
    assert steps == {f"ProfilerStep#{step}" for step in range(3, 13)}
    # A ViT has one convolution; a pipeline cuts a step into four.
    assert names.count("aten::convolution") == (40 if "pipeline" in script else 10)
    assert logs.read_runs([tmp_path / "runs"]) == ([], [])
    assert logs.read_benchmarks([tmp_path / "runs"]) == ({}, [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--from 4 imagenet_nd.py", "--from 4 needs ten steps: 13 are left of this epoch"),
        ("imagenet_ddp.py --nproc-per-node 2 --evaluate", "--evaluate trains no steps"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("--from 0 imagenet_nd.py", "--from 0 needs ten steps: 13 are left"),
                ("imagenet_nd.py --evaluate", "--evaluate trains no steps"),
                ("--from 1 imagenet_nd.py --budget-hours 1e-9", "over after 2 steps"),
                ("--from 3 imagenet_nd.py --log-dir /dev/null/runs", "--log-dir /dev/null/runs: "),
            )
        ),
    ],
)
def test_a_profile_that_cannot_be_ends_as_the_script_would(words, message, tmp_path):
    words = [str(ROOT / word) if word.endswith(".py") else word for word in words.split()]
    few = [*FEW, "--dummy", "--steps-per-epoch", "13", "--num-classes", "7"]
    line = complaint([sys.executable, PROFILE, *words, *few], tmp_path, only=False)
    assert re.match(r"imagenet_\w+\.py: error: ", line) and message in line
    assert not [*tmp_path.rglob("*")]


def test_a_profile_of_no_such_script(tmp_path, call_tool, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.py").write_text("raise SystemExit('it was run')")
    for words, message in (
        ("", "the following arguments are required: SCRIPT"),
        ("absent.py", "absent.py is none of the scripts"),
        ("other.py -a resnet50", "other.py is none of the scripts"),
        ("--from ten other.py", "argument --from: invalid int value: 'ten'"),
    ):
        (line,) = call_tool("profile_steps", *words.split(), status=2)[1].splitlines()
        assert line.startswith("profile_steps.py: error: ") and message in line


def test_a_profile_that_a_signal_ends_saves_nothing(tmp_path):
    words = [*profiling("imagenet_nd.py", 1, "--from", "300000"), *FEW, "--dummy"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(), **streams)
    assert any("peak learning rate" in line for line in process.stdout)
    process.terminate()
    output = process.communicate(timeout=120)[0]
    assert output.endswith("ended by SIGTERM: nothing is saved\n") and process.returncode == 143
    assert not [*tmp_path.rglob("*")]


@pytest.mark.slow
def test_a_profile_leaves_the_run_as_it_is_that_it_goes_on_from(demo, tmp_path):
    few = [*FEW, "--steps-per-epoch", "12", "--epochs", "2", demo]
    run([*command("imagenet_nd.py"), *few, "--desired-acc", "0.001"], tmp_path)
    before = content_of(tmp_path / "runs")
    words = [*profiling("imagenet_nd.py", 1, "--from", "2"), *few, "--resume", "auto"]
    output = run(words, tmp_path)
    assert "at epoch 1 step 0" in output and "Trace of ten steps" in output
    after = content_of(tmp_path / "runs")
    assert {name: after.pop(name) for name in before} == before and len(after) == 1
