"""Tools beside training: shards, profiles."""

import bz2
import errno
import gzip
import importlib
import io
import json
import lzma
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import PIL.Image
import pytest
from conftest import (
    ROOT,
    SCRIPTS,
    command,
    complaint,
    damage,
    flip,
    interrupted,
    locked,
    members,
    needs_horovod,
    no_table,
    run,
    words_of,
    write_file,
    write_tar,
)

from reporting import logs
from trainparts import errors
from trainparts.images import image_files
from trainparts.runs import checkpointing


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
    source = image_files.open_source(out / "train")
    assert source.classes == ["a", "b"] and source.target.tolist() == [0] * 5 + [1] * 5
    assert [source.read(index) for index in range(10)] == [path.read_bytes() for path in files]
    same = f"{out}: sizes and checksums are as they were written\n"
    assert tool("make_shards", "--check", out) == same


def test_a_worker_ends_with_what_has_started_it(call_tool, monkeypatch):
    """It leaves Ctrl-C to that, and would stay behind if that was killed."""
    call_tool("make_shards", "--help")
    program, done = sys.modules["make_shards"], []
    monkeypatch.setattr(program.endings, "end_with_parent", lambda signum: done.append(signum))
    monkeypatch.setattr(program.signal, "signal", lambda *words: done.append(words))
    program.start_worker()
    ignored = (signal.SIGINT, signal.SIG_IGN), (signal.SIGTERM, signal.SIG_DFL)
    assert done == [*ignored, signal.SIGKILL]


def test_resized_and_raw_shards(tmp_path, tool):
    """What cannot be read is kept as it is."""
    folder = write_set(tmp_path / "data")
    broken = folder / "train" / "a" / "2.JPEG"
    damage(broken, -40)
    tool("make_shards", folder, tmp_path / "small", "--resize", 32, "--quality", 80)
    tool("make_shards", folder, tmp_path / "raw", "--raw", 32)
    small, raw = (image_files.open_source(tmp_path / name / "train") for name in ("small", "raw"))
    whole = image_files.open_source(folder / "train")
    for index in range(len(whole.target)):
        if whole.path(index) == str(broken):
            assert small.read(index) == raw.read(index) == broken.read_bytes()
            continue
        one, other = (PIL.Image.open(io.BytesIO(each.read(index))) for each in (small, raw))
        assert (one.format, one.size) == ("JPEG", (32, 24))
        assert (other.format, other.size) == ("PPM", (42, 32))
        expected = PIL.Image.open(whole.path(index)).resize((42, 32), PIL.Image.BILINEAR)
        assert np.abs(np.asarray(other) - np.asarray(expected, int)).mean() < 1
    endings = {name.split(".")[1] for name in members(tmp_path / "raw" / "train" / "000000.tar")}
    assert endings == {"ppm", "cls", "jpeg"}


def test_check_finds_what_has_changed(tmp_path, tool):
    out = tmp_path / "out"
    tool("make_shards", write_set(tmp_path / "data"), out)
    for path, how, message in (
        ("000000.tar", flip(1000), "val/000000.tar is not what was written: its checksum differs"),
        ("000000.tar", -512, "000000.tar has changed since"),
        ("index.npz", None, "val has no index.npz"),
    ):
        damage(out / "val" / path, how)
        assert message in tool("make_shards", "--check", out, status=2)


@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_verify_names_each_image_that_cannot_be_used(kind, tmp_path, call_tool):
    folder = write_set(tmp_path / "data")
    output, errors = call_tool("make_shards", "--verify", folder, "-j", 2)
    assert output.endswith(f"{folder}: 0 of 14 images cannot be used\n")
    bad = {"train": folder / "train" / "b" / "2.JPEG", "val": folder / "val" / "a" / "0.JPEG"}
    for path in bad.values():
        damage(path, -40)
    cut = {split: path.read_bytes() for split, path in bad.items()}
    if kind == "shards":
        call_tool("make_shards", folder, tmp_path / "out", "--images", 4, "-j", 2)
        folder = tmp_path / "out"
    before = content_of(folder)
    output, errors = call_tool("make_shards", "--verify", folder, "-j", 2, status=1)
    *lines, last = output.splitlines()
    for line, split in zip(lines, bad, strict=True):
        source = image_files.open_source(folder / split)
        (number,) = (n for n in range(len(source.target)) if source.read(n) == cut[split])
        assert line.startswith(f"{source.path(number)}: image {number} cannot be used: ")
    assert last == f"{folder}: 2 of 14 images cannot be used"
    assert content_of(folder) == before, "nothing is written"
    assert "give DIR and OUT" in call_tool("make_shards", "--verify", folder, "x", status=2)[1]


def test_nothing_is_overwritten_and_nothing_half_made_is_left(tmp_path, tool):
    folder, out = write_set(tmp_path / "data"), tmp_path / "out"
    for there in out, tmp_path / "out.unfinished":  # of one that was killed, or still works
        there.mkdir()
        assert f"{there} is there already" in tool("make_shards", folder, out, status=2)
        there.rmdir()
    (folder / "val" / "b" / "9.jpg").symlink_to("nowhere")
    assert "No such file" in tool("make_shards", folder, out, status=2)
    (folder / "val" / "b").rename(folder / "val" / "c")
    line = tool("make_shards", folder, out, status=2)
    assert f"{folder}/val: 1 of 2 classes are not in train/, as c" in line
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data", "give DIR and OUT to make shards, one of them for --index, --check"),
        ("data out --raw 3 --resize 3", "--resize: not allowed with argument --raw"),
        ("data out --images 0", "--images: 0 is no int from 1 to "),
        ("data out --quality 1000", "--quality: 1000 is no int from 1 to 95"),
        ("data out -j 100000", "-j/--workers: 100000 is no int from 1 to 1024"),
        ("absent out", "absent/train: No such file"),
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
    assert tool("make_shards", folder, folder / "x").endswith("x: 14 images\n")


def test_a_shard_has_ten_thousand_images(tmp_path, tool):
    """So that ImageNet is 129 files, which a loader process can keep open."""
    folder = write_set(tmp_path / "data", names=["a"], train=1, val=1)
    for number in range(1, 10_001):
        os.link(folder / "train" / "a" / "0.JPEG", folder / "train" / "a" / f"{number}.JPEG")
    assert tool("make_shards", folder, tmp_path / "out").endswith("out: 10002 images\n")
    source = image_files.open_source(tmp_path / "out" / "train")
    assert np.bincount(source.file).tolist() == [10_000, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_shards_leave_nothing(number, tmp_path):
    """None of the processes lives on."""
    folder = write_set(tmp_path / "data", names=["a"], train=1, sizes=(1000, 800))
    for other in range(1, 5000):  # a minute's work at least
        os.link(folder / "train" / "a" / "0.JPEG", folder / "train" / "a" / f"{other}.JPEG")
    words = [sys.executable, ROOT / "tools" / "make_shards.py", "data", "out", "--raw", "700"]
    begun = (tmp_path / "out.unfinished" / "train" / "000000.tar").exists
    ended = interrupted([*words, "--images", "100", "-j", "2"], begun, number, tmp_path)
    assert ended == (128 + number, f"make_shards.py: ended by {number.name}\n")
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
        f"{folder}/train: 2 of 100 classes have images; without: 1, 2, 3, ...",
        f"{folder}/val: 1 of 100 classes have images; without: 0, 1, 3, ...",
    ]
    assert len(image_files.open_source(folder / "train").target) == 2


def test_classes_that_count_from_one(tmp_path, call_tool):
    """Models would have an output too many. What is printed as advice is typed."""
    content = {"1.jpg": b"first", "1.cls": b"1", "2.jpg": b"second", "2.cls": b"3"}
    folder = existing(tmp_path / "some data", content)
    output, _ = call_tool("make_shards", "--index", folder)
    what = f"{folder}: no image is of class 0, which models will have; if classes count from 1: "
    (typed,) = (line.removeprefix(what) for line in output.splitlines() if line.startswith(what))
    typed = typed.replace(
        "python tools/", f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT))}/tools/"
    )
    assert f"{folder}/train: 2 of 4 classes have images; without: 0, 2" in output.splitlines()
    assert image_files.open_source(folder / "train").classes == ["0", "1", "2", "3"]
    remove, typed = typed.split(" && ")
    subprocess.run(remove, shell=True, check=True)
    output = run(words_of(typed, tmp_path), tmp_path)
    source = image_files.open_source(folder / "train")
    assert source.target.tolist() == [0, 2] and len(source.classes) == 3
    assert "no image is of class 0" not in output
    (folder / "train" / "index.npz").unlink()
    (folder / "val" / "index.npz").unlink()
    write_tar(folder / "val" / "x-1.tar", {"z.jpg": b"third", "z.cls": b"0"})
    words = "make_shards", "--index", folder, "--first-class", 1
    (line,) = call_tool(*words, status=2)[1].splitlines()
    assert f"--first-class 1: {folder}/val/x-1.tar has an image of class 0" in line
    (line,) = call_tool("make_shards", folder, "out", "--first-class", 1, status=2)[1].splitlines()
    assert "--first-class is of --index" in line


def test_ids_follow_the_classes_that_count_from_one(tmp_path, tool):
    """Of images that are named after them."""
    ids = "n01440764", "n01443537"
    content = {
        f"{name}_{n}.{kind}": value
        for n, name in enumerate(ids, 1)
        for kind, value in (("jpg", b"x"), ("cls", b"%d" % n))
    }
    for part in "train", "val":
        write_tar(tmp_path / part / "x.tar", content)
    tool("make_shards", "--index", tmp_path, "--first-class", 1)
    assert image_files.open_source(tmp_path / "val").classes == [*ids]


def test_index_of_tars_that_exist(tmp_path, tool):
    content = {"./n0_9.cls": b" 0 ", "./n1_7.jpg": b"first", "./n1_7.json": b"{}"}
    content |= {"./n1_7.cls": b"1", "./n0_9.JPEG": b"second"}
    content |= {"readme.txt": b"", ".hidden.jpg": b""}
    folder = existing(tmp_path / "data", content)
    output = tool("make_shards", "--index", folder)
    assert output.endswith("data: 3 images\n")
    assert f"{folder}/train: files that are not read: 1 *.txt\n" in output
    source = image_files.open_source(folder / "train")
    assert source.classes == ["0", "1", "2"] and source.target.tolist() == [1, 0]
    assert [source.read(index) for index in range(2)] == [b"first", b"second"]
    assert image_files.open_source(folder / "val").classes == source.classes
    assert "sizes" in tool("make_shards", "--check", folder)
    assert "index.npz already" in tool("make_shards", "--index", folder, status=2)
    words = "make_shards", "--index", folder, "--classes", tmp_path / "names"
    for names, message in (
        (b"ant\nbee\nbee\n", "names needs 3 names or more, no two alike"),
        (b"\xff\xfe\x00", "names is no text in UTF-8"),
        (b"ant\n\nbee\n", "names needs 3 names or more, no two alike"),
        (b"ant\nbee \nbee\n", "names needs 3 names or more, no two alike"),
        ("\ufeffant \r\n bee\x85\u2028wasp\r\ncat\r\n\r\n".encode(), None),  # as Notepad writes
    ):
        (tmp_path / "names").write_bytes(names)
        for part in "train", "val":
            (folder / part / "index.npz").unlink(missing_ok=True)
        assert message is None or message in tool(*words, status=2)
    tool(*words)
    assert image_files.open_source(folder / "train").classes == ["ant", "bee\x85\u2028wasp", "cat"]


GOOD = {"a.cls": b"0", "a.jpg": b"x" * 2000, "b.cls": b"0", "b.jpg": b"x"}
NO_CLASS = "a.cls holds no class, a number from 0 to 999999"
NO_TAR = "no uncompressed, whole tar file of images"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a.jpg": b"x"}, "1 without an image or a .cls, as a, which has .jpg; images are .jpg, "),
        ({"a.jpg": b"x", "a.cls": b"0", "b.cls": b"0"}, "1 without an image or a .cls, as b"),
        ({"a.gif": b"x", "a.cls": b"0"}, "as a, which has .gif, .cls; images are .jpg, .jpeg, "),
        ({"a.jpg": b"x", "a.png": b"x", "a.cls": b"0"}, "there are two of a"),
        ({"a.v2.jpg": b"x", "a.v2.cls": b"0"}, "1 have a dot in their key, as a.v2.jpg"),
        ({"a.txt": b"x"}, "there is no image in the files of train"),
        ({"a.jpg": b"x", "a.cls": b"1_0"}, NO_CLASS),
        ({"a.jpg": b"x", "a.cls": b"cat"}, NO_CLASS),
        ({"a.jpg": b"x", "a.cls": b"-1"}, NO_CLASS),
        ({"a.jpg": b"x", "a.cls": b"200000000"}, NO_CLASS),
        (gzip.compress, "x-0.tar is compressed: gunzip < FILE > OTHER, and put OTHER"),
        (bz2.compress, "x-0.tar is compressed: bunzip2 < FILE > OTHER, and put OTHER"),
        (lzma.compress, "x-0.tar is compressed: unxz < FILE > OTHER, and put OTHER"),
        (lambda tar: tar + tar, "goes on after its end: join tar files by tar -A, not by cat"),
        (lambda tar: tar + bytes(3 << 20) + b"garbage", "goes on after its end"),
        (2000, NO_TAR),  # in an image
        (7 * 512, NO_TAR),  # after an image
        (b"no tar" * 1000, NO_TAR),
    ],
)
def test_index_of_bad_tars(content, message, tmp_path, tool):
    made = isinstance(content, dict)
    folder = existing(tmp_path, content if made else GOOD)
    if not made:
        damage(folder / "train" / "x-0.tar", content)
    line = tool("make_shards", "--index", folder, status=2)
    assert message in line and ("x-0.tar" in line or "in the files of" in line)
    assert not [*folder.glob("*/index*")]


SAMPLES = {
    f"{key}.{kind}": value
    for key in "abc"
    for kind, value in (("ppm", b"P6 1 1 255\n123"), ("cls", b"0"))
}
GNU_TAR = shutil.which("tar")


@pytest.mark.skipif(not GNU_TAR, reason="no tar here")
@pytest.mark.parametrize(
    ("plant", "options", "message"),
    [
        (
            "sparse",
            "--sparse --hole-detection=raw --format=gnu",
            "is sparse: pack it without --sparse",
        ),
        (
            "sparse",
            "--sparse --hole-detection=raw --format=pax",
            "is sparse: pack it without --sparse",
        ),
        ("hard", "", "is a link: pack it by tar --dereference --hard-dereference"),
        ("symbolic", "", "is a link: pack it by tar --dereference --hard-dereference"),
    ],
)
def test_tars_that_would_be_read_wrongly(plant, options, message, tmp_path, tool):
    """Packed as the line says, each has all its images."""
    from_files = tmp_path / "files"
    for name, content in SAMPLES.items():
        write_file(from_files / name, content)
    if plant == "sparse":
        with open(from_files / "b.ppm", "wb") as file:  # black but for its last pixels
            file.write(b"P6 256 256 255\n")
            file.seek(3 * 256 * 256 - 5, os.SEEK_CUR)
            file.write(b"white")
    else:
        link = os.link if plant == "hard" else lambda _, to: os.symlink(f"a{to.suffix}", to)
        for kind in "ppm", "cls":
            (from_files / f"c.{kind}").unlink()
            link(from_files / f"a.{kind}", from_files / f"c.{kind}")
    (tmp_path / "data" / "train").mkdir(parents=True)
    write_tar(tmp_path / "data" / "val" / "0.tar", SAMPLES)
    pack = ["tar", "-C", from_files, "-cf", tmp_path / "data" / "train" / "0.tar"]
    names = sorted(path.name for path in from_files.iterdir())
    run([*pack, *options.split(), *names], tmp_path)
    line = tool("make_shards", "--index", tmp_path / "data", status=2)
    assert message in line and "0.tar: " in line
    advice = [] if plant == "sparse" else re.findall("--[a-z-]+", message)
    run([*pack, *advice, *names], tmp_path)
    assert tool("make_shards", "--index", tmp_path / "data").endswith("data: 6 images\n")
    source = image_files.open_source(tmp_path / "data" / "train")
    wanted = [(from_files / f"{key}.ppm").read_bytes() for key in "abc"]
    assert [source.read(index) for index in range(3)] == wanted


def test_what_is_odd_and_does_not_matter(tmp_path, tool):
    """Sums beside tars, hidden files and folders; a link to no image; a name like bzip2's."""
    folder = existing(tmp_path / "data", GOOD | {"BZh1.jpg": b"x", "BZh1.cls": b"0"})
    for name in "y.tar.md5", ".y.tar.gz", ".cache/y.tar.metadata", "old.tgz/x":
        write_file(folder / "train" / name, b"")
    content = {"BZh1.jpg": b"x", "BZh1.cls": b"0"}
    with tarfile.open(write_tar(folder / "val" / "x-1.tar", content), "a") as tar:
        link = tarfile.TarInfo("README")
        link.type, link.linkname = tarfile.SYMTYPE, "docs/README"
        tar.addfile(link)
    assert tool("make_shards", "--index", folder).endswith("data: 5 images\n")


def test_joined_as_the_line_says(tmp_path, tool):
    """All images of both tar files are read."""
    folder = existing(tmp_path / "data", GOOD)
    path, other = folder / "train" / "x-0.tar", tmp_path / "other.tar"
    write_tar(other, {"z.jpg": b"x", "z.cls": b"0"})
    whole = path.read_bytes()
    path.write_bytes(whole + other.read_bytes())
    typed = re.search(
        "join tar files by (tar -A)", tool("make_shards", "--index", folder, status=2)
    )
    path.write_bytes(whole)
    run([*typed[1].split(), "-f", path, other], tmp_path)
    assert tool("make_shards", "--index", folder).endswith("data: 4 images\n")


@pytest.mark.parametrize("other", ["y.tar.gz", "y.tgz", "y.TAR", "below/y.tar", "y.tar.zst"])
def test_other_tars_beside_those_that_are_read(other, tmp_path, tool):
    folder = existing(tmp_path / "data", GOOD)
    write_file(folder / "train" / other, gzip.compress((folder / "train" / "x-0.tar").read_bytes()))
    line = tool("make_shards", "--index", folder, status=2)
    cure = "only *.tar are: gunzip, rename or move them"
    assert f"1 tar files would not be read, as {folder}/train/{other}: {cure}" in line
    if other == "y.tar.gz":
        run(["gunzip", folder / "train" / other], tmp_path)
    else:
        (folder / "train" / other).rename(tmp_path / "away")
    images = 5 if other == "y.tar.gz" else 3
    assert tool("make_shards", "--index", folder).endswith(f"data: {images} images\n")


def test_a_compressed_tar_is_read_when_unpacked_as_the_line_says(tmp_path, tool):
    folder = existing(tmp_path / "data", GOOD)
    path = folder / "train" / "x-0.tar"
    path.rename(tmp_path / "elsewhere.tar")
    path.symlink_to("../../elsewhere.tar")
    damage(tmp_path / "elsewhere.tar", gzip.compress)
    line = tool("make_shards", "--index", folder, status=2)
    named, typed = re.search(
        "error: (.*) is compressed: (.*), and put OTHER in the place", line
    ).groups()
    assert named == f"{tmp_path}/elsewhere.tar", "the file, not the link to it"
    run(["sh", "-c", typed.replace("FILE", named).replace("OTHER", "other")], folder)
    (folder / "other").replace(named)
    assert tool("make_shards", "--index", folder).endswith("data: 3 images\n")


def test_damaged_jpegs_are_found_whatever_decodes_them(tmp_path, call_tool):
    """And stay what they are: --resize would make clean files of them, half grey."""
    folder = write_set(tmp_path / "data", sizes=(300, 200))
    bad = folder / "train" / "b" / "2.JPEG"
    damage(bad, no_table)
    output, _ = call_tool("make_shards", "--verify", folder, "-j", 1, status=1)
    why = "broken data stream when reading image file"
    assert output.splitlines() == [
        f"{bad}: image 7 cannot be used: {why}",
        f"{folder}: 1 of 14 images cannot be used",
    ]
    for number, options in enumerate((["--resize", 48], ["--raw", 32])):
        out = tmp_path / f"out{number}"
        call_tool("make_shards", folder, out, *options, "-j", 1)
        assert image_files.open_source(out / "train").read(7) == bad.read_bytes()


def test_shards_say_what_of_a_folder_is_not_in_them(tmp_path, call_tool):
    folder = write_set(tmp_path / "data")
    (folder / "train" / "b" / "0.gif").touch()
    shutil.rmtree(folder / "val" / "a")
    lines = [
        f"{folder}/train: files that are not read: 1 *.gif",
        f"{folder}/val: 1 of 2 classes have images; without: a",
    ]
    for words in ("--verify", folder), (folder, tmp_path / "out"):
        output, _ = call_tool("make_shards", *words, "-j", 1)
        assert output.splitlines()[:2] == lines
    val = image_files.open_source(tmp_path / "out" / "val")
    assert val.classes == ["a", "b"] and val.target.tolist() == [1, 1]


# ---------------------------------------------------------------------------------------- profiles


def content_of(folder):
    """Returns {path below the folder: bytes}."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


PROFILE = ROOT / "tools" / "profile_steps.py"
FEW = ["-a", "vit_b_16", "--image-size", "32", "--no-accel", "-j", "0", "-b", "4", "--epochs", "1"]
COMMON = ("imagenet_nd.py",)


def profiling(script, ranks, *options):
    """Returns the words that start `script` with so many ranks, in the profiler."""
    words = command(script, ranks)
    at = words.index(str(ROOT / script))
    return [*words[:at], str(PROFILE), *options, *words[at:]]


@pytest.mark.parametrize(
    "script",
    [
        *COMMON,
        *(
            pytest.param(script, marks=[pytest.mark.slow, *[needs_horovod] * ("horovod" in script)])
            for script in SCRIPTS
            if script not in COMMON
        ),
    ],
)
def test_a_profile_is_of_the_same_ten_steps(script, demo, tmp_path):
    """In each script, on all its ranks; and is no run for others."""
    ranks = 1 if script in ("imagenet_nd.py", "imagenet_dp.py") else 2
    words = [*profiling(script, ranks, "--from", "3"), *FEW, "--steps-per-epoch", "14", demo]
    output = run([*words, *(["--opt-level", "O0"] if "apex" in script else [])], tmp_path)
    (trace,) = content_of(tmp_path)
    assert re.fullmatch(r"runs/profile_[^/]+/trace.json.gz", trace)
    assert f"Trace of ten steps: {trace}" in output
    assert "aten::" in output and "# of Calls" in output
    with gzip.open(tmp_path / trace) as file:
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


@pytest.mark.slow
def test_a_profile_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "runs").write_text("no folder")
    few = [*FEW, "--dummy", "--steps-per-epoch", "13", "--num-classes", "7"]
    words = profiling("imagenet_nd.py", 1, "--from", "3")
    assert "error: runs/profile_" in complaint([*words, *few], tmp_path, only=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: SCRIPT"),
        ("absent.py", "absent.py is none of the scripts"),
        ("other.py -a resnet50", "other.py is none of the scripts"),
        ("whole.py -a resnet50", "whole.py was made by tools/one_file.py: give the script it was"),
        ("--from ten other.py", "argument --from: invalid int value: 'ten'"),
    ],
)
def test_a_profile_of_no_such_script(words, message, tmp_path, tool, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.py").write_text("raise SystemExit('it was run')")
    made = '"""Made of mine.py and trainparts by tools/one_file.py."""\n'
    (tmp_path / "whole.py").write_text(f"{made}def launch(run_rank, args): print('it was run')\n")
    assert message in tool("profile_steps", *words.split(), status=2)


@pytest.mark.parametrize(("script", "ranks"), [("imagenet_nd.py", 1), ("imagenet_ddp.py", 2)])
def test_a_profile_begins_where_a_run_would_go_on_and_leaves_its_folder_as_it_is(
    script, ranks, demo, tmp_path
):
    """From its newest checkpoint on all ranks, whatever began the run, while the run goes on."""
    few = [*FEW, "--steps-per-epoch", "12", "--epochs", "2", "--output-dir", "run", demo]
    run([*command("imagenet_nd.py"), *few, "--desired-acc", "0.001"], tmp_path)
    before = content_of(tmp_path)
    words = [*profiling(script, ranks, "--from", "2"), *few]
    with locked(tmp_path / "run"):
        output = run([*words, "--resume", "absent.pt", "--start-epoch", "0"], tmp_path)
        after = content_of(tmp_path)
    assert "Resuming run/checkpoint.pt after 1 of 2 epochs" in output
    assert "a profile saves nothing" in output and "Trace of ten steps" in output
    assert {name: after.pop(name) for name in before} == before
    (trace,) = after
    assert re.fullmatch(r"runs/profile_[^/]+/trace.json.gz", trace)


@pytest.mark.slow
def test_a_profile_by_torchrun_with_restarts(demo, tmp_path):
    """As the script itself: a command without a folder is refused, one with a folder trains; but a
    profile does not make the folder."""
    words = profiling("imagenet_exchange.py", 2, "--from", "1")
    words.insert(1, "--max-restarts=1")
    few = [*FEW, "--steps-per-epoch", "11", demo]
    assert "ranks that are restarted would begin" in run([*words, *few], tmp_path, status=1)
    assert "Trace of ten steps" in run([*words, *few, "--output-dir", "run"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize("folder", ["tools", "benchmarks"])
def test_no_program_is_taken_for_a_package(folder, tmp_path):
    """A program's folder comes first where it imports: pandas, for one, asks for `bottleneck`."""
    run([sys.executable, "-c", "import pandas"], tmp_path, env={"PYTHONPATH": str(ROOT / folder)})


def test_tools_end_with_the_status_of_storage(tmp_path, tool, monkeypatch):
    """1 where it may be well again, as scripts do; their lists of errors are the same."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    mistakes = importlib.import_module("commandline").MISTAKES
    for program in "look", "make_shards":  # before reading fails
        importlib.import_module(program)
    assert {*mistakes} == {*errors.WRONG_PATH, *errors.LIMITS}
    (tmp_path / "a.pt").touch()
    for name, status in ("EIO", 1), ("EACCES", 2), ("ENOSPC", 1), ("EMFILE", 2):
        number = getattr(errno, name)
        failed = mock.Mock(side_effect=OSError(number, os.strerror(number)))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", failed)
            line = tool("look", "predict", tmp_path / "a.pt", "b.jpg", status=status)
        assert f"a.pt cannot be loaded: {os.strerror(number)}" in line
        with monkeypatch.context() as patch:
            patch.setattr("os.listdir", failed)
            line = tool("make_shards", tmp_path, tmp_path / "out", status=status)
        assert f"train: {os.strerror(number)}" in line


# ------------------------------------------------------------------------------ functions of shards


@pytest.fixture
def part_of(monkeypatch):
    """part_of(name): returns a program of tools/, as a module."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module


def encoded(size, quality=90):
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    PIL.Image.fromarray(pixels).resize(size, PIL.Image.BICUBIC).save(file, "JPEG", quality=quality)
    return file.getvalue()


@pytest.mark.parametrize(
    ("size", "raw", "wanted"),
    [
        (59, None, (59, 44)),
        (60, None, (60, 45)),
        (61, None, (60, 45)),
        (44, 44, (58, 44)),
        (45, 45, (60, 45)),
        (50, 50, (60, 45)),
    ],
)
def test_images_are_made_smaller_and_never_larger(size, raw, wanted, part_of):
    convert = part_of("make_shards").convert
    for tall in False, True:
        content = encoded((45, 60) if tall else (60, 45))
        suffix, made = convert(content, size=size, quality=50, raw=raw)
        image = PIL.Image.open(io.BytesIO(made))
        assert image.size == (wanted[::-1] if tall else wanted)
        assert (suffix, image.format) == ((".ppm", "PPM") if raw else (".jpg", "JPEG"))


@pytest.mark.parametrize("quality", [1, 50, 95])
def test_jpegs_have_the_quality_that_is_typed(quality, part_of):
    _, made = part_of("make_shards").convert(encoded((60, 45)), size=40, quality=quality, raw=None)
    found, wanted = (
        PIL.Image.open(io.BytesIO(each)).quantization for each in (made, encoded((8, 8), quality))
    )
    assert found == wanted


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"0", 0),
        (b" 7\n", 7),
        (b"0000000012", 12),
        (b"999999", 999_999),
        (b"1000000", None),
        (b"", None),
        (b"1.0", None),
        (b"1 2", None),
    ],
)
def test_a_class_is_a_number_below_a_million(text, number, part_of, tmp_path):
    """With zeros before it, or blanks around it."""
    path = write_tar(tmp_path / "x.tar", {"a.jpg": b"x", "a.cls": text})
    if number is None:
        with pytest.raises(errors.BadInput, match="a.cls holds no class, a number from 0 to 9999"):
            part_of("make_shards").read_tar(path)
    else:
        assert part_of("make_shards").read_tar(path)["target"].tolist() == [number]


@pytest.mark.parametrize(
    ("key", "ids"),
    [
        ("n01440764_10026", {"n01440764"}),
        ("./a/x-n01440764", {"n01440764"}),
        ("n014407641", set()),
        ("n0144076", set()),
        ("pin01440764", set()),
        ("1n01440764", set()),
        ("n01440764_n01443537", set()),  # of which one?
    ],
)
def test_an_id_is_a_word_of_a_name(key, ids, part_of, tmp_path):
    path = write_tar(tmp_path / "x.tar", {f"{key}.jpg": b"x", f"{key}.cls": b"5"})
    assert part_of("make_shards").read_tar(path)["ids"] == {(5, each) for each in ids}


def labels(*numbers, ids=()):
    """Returns what stands in for what read_tar() says of a tar file."""
    return {"target": np.array(numbers, np.int64), "ids": {*ids}}


def test_imagenets_classes_are_those_whose_ids_are_at_their_numbers(part_of, tmp_path):
    shards, thousand = part_of("make_shards"), [*range(1000)]
    for pairs, wanted in (
        ([], shards.class_names.IMAGENET),
        ([(0, "n01440764"), (1, "n01443537")], shards.class_names.IMAGENET),
        ([(0, "n01443537")], [*map(str, thousand)]),
    ):
        assert shards.name_classes(tmp_path, {"val": [labels(*thousand, ids=pairs)]}) == wanted
    few = [(0, "n00000001"), (1, "n00000002"), (1, "n00000003")]
    for pairs, wanted in (
        (few[:2], ["n00000001", "n00000002"]),
        (few, ["0", "1"]),  # two names of one class
        ([few[0], (1, few[0][1])], ["0", "1"]),  # one name of two
        (few[:1], ["0", "1"]),
    ):
        found = shards.name_classes(tmp_path, {"train": [labels(0, 1, ids=pairs)]})
        assert found == wanted


@pytest.mark.parametrize("names", [["0", "1"], ["n00000001", "n00000002"]])
def test_the_part_that_is_there_has_all_classes(names, part_of, tmp_path):
    shards = part_of("make_shards")
    tar = write_tar(tmp_path / "val" / "x.tar", {"a.jpg": b"x", "a.cls": b"1"})
    shards.write_index(tmp_path / "val", names, [tar], [shards.read_tar(tar)])
    ids = [(0, "n00000001")]
    assert shards.name_classes(tmp_path, {"train": [labels(0, 1, ids=ids)]}) == names
    with pytest.raises(errors.BadInput, match="val has other classes than train: make both in one"):
        shards.name_classes(tmp_path, {"train": [labels(0, 2, ids=ids)]})
    if names[0] != "0":
        with pytest.raises(errors.BadInput, match="val has other classes than train"):
            shards.name_classes(tmp_path, {"train": [labels(0, ids=[(0, "n00000002")])]})


def test_names_may_be_more_than_the_classes_with_images(part_of, tmp_path, capsys):
    """Of models that were trained on more."""
    shards, folder = part_of("make_shards"), existing(tmp_path / "data", GOOD)
    (tmp_path / "names").write_text("ant\nbee\ncat\ndog\n")
    words = SimpleNamespace(out=folder, classes=tmp_path / "names", first_class=0)
    assert shards.make_index(words, SimpleNamespace(map=map)) == 3
    assert image_files.open_source(folder / "val").classes == ["ant", "bee", "cat", "dog"]


@pytest.mark.parametrize(
    ("train", "val", "said"),
    [
        ([1, 3], [], True),
        ([], [1], True),
        ([1], [0], False),
        ([2, 3], [2], False),
        ([], [0], False),
    ],
)
def test_classes_that_look_as_if_they_count_from_one(train, val, said, part_of):
    """A tar file without an image has no class."""
    found = {"train": ([Path("t.tar")], [labels(*train)]), "val": ([Path("v.tar")], [labels(*val)])}
    line = part_of("make_shards").count_from(SimpleNamespace(first_class=0, out=Path("O")), found)
    assert bool(line) == said
    assert not said or line.startswith("O: no image is of class 0, which models will have; if ")


def test_a_check_says_what_it_compared(part_of, tmp_path, tool):
    folder = existing(tmp_path / "data", GOOD)
    tool("make_shards", "--index", folder)
    sizes = "sizes (of checksums, --index keeps none)"
    assert tool("make_shards", "--check", folder) == f"{folder}: {sizes} are as they were written\n"


def test_bad_images_have_their_numbers_in_the_part(part_of):
    content = [encoded((8, 6)), b"no image", encoded((8, 6)), b""]
    source = SimpleNamespace(target=[0] * 4, read=content.__getitem__, path="{}.jpg".format)
    lines, _ = part_of("make_shards").decode_all(2000, source)
    assert [line.partition(" cannot be used")[0] for line in lines] == [
        "1.jpg: image 2001",
        "3.jpg: image 2003",
    ]


@pytest.mark.parametrize(
    ("magic", "cure"),
    [
        (gzip.compress(b"x", mtime=0), "gunzip <"),
        (bz2.compress(b"x"), "bunzip2 <"),
        (lzma.compress(b"x"), "unxz <"),
        (b"\x28\xb5\x2f\xfd", "unzstd <"),
    ],
)
def test_what_a_tar_is_packed_by_is_named(magic, cure, part_of):
    tarfiles = part_of("tarfiles")
    with pytest.raises(tarfiles.Odd, match=f"^x.tar is compressed: {cure} FILE > OTHER"):
        tarfiles.open_tar(io.BytesIO(magic + bytes(2000)), "x.tar")


# ---------------------------------------------------------------------------- functions of profiles


@pytest.mark.parametrize(
    ("first", "epoch", "step", "left"),
    [(1, 0, 2, 10), (0, 0, 0, 12), (3, 0, 0, 12), (2, 1, 12, 0), (1, 2, 0, 0)],
)
def test_a_profile_needs_ten_steps_after_the_first_of_an_epoch_that_trains(
    first, epoch, step, left, part_of
):
    """At the end of the last epoch there are none."""
    data = SimpleNamespace(steps=12)
    run = SimpleNamespace(epoch=epoch, step=step, data=data, args=SimpleNamespace(epochs=2))
    script = SimpleNamespace(errors=errors)
    with pytest.raises(
        errors.BadInput, match=f"--from {first} needs ten steps: {left} are left of"
    ):
        part_of("profile_steps").profile(script, first, run)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("checkpoint.pt", True),
        ("epoch-7.pt", True),
        ("epoch-123.pt", True),
        ("epoch-.pt", False),
        ("my-epoch-7.pt", False),
        ("epoch-7.pt.tmp", False),
        ("checkpoint_pt", False),
    ],
)
def test_checkpoints_are_known_by_their_names(name, found, part_of, tmp_path):
    script = SimpleNamespace(checkpointing=checkpointing)
    known = part_of("profile_steps").has_checkpoint
    assert not known(script, tmp_path) and not known(script, None)
    assert not known(script, str(tmp_path / "absent"))
    (tmp_path / name).touch()
    assert known(script, str(tmp_path)) == found


# ----------------------------------------------------------------------------- what all tools share


def test_no_line_sends_a_terminal_a_command(part_of):
    """What moves the cursor or sets its colours is written as text; tabs and ends of lines stay."""
    every = {number: chr(number).translate(part_of("commandline").CONTROL) for number in range(512)}
    odd = {number for number, text in every.items() if text != chr(number)}
    assert odd == {*range(32), *range(127, 160)} - {ord("\t"), ord("\n")}
    assert all(every[number] == f"\\x{number:02x}" for number in odd)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (errors.BadInput("a mistake"), 2, "a mistake"),
        (errors.Fault("a fault"), 1, "a fault"),
        (OSError(errno.EIO, "bad disk"), 1, "[Errno 5] bad disk"),
        (OSError(errno.ENOENT, "none", "x"), 2, "[Errno 2] none: 'x'"),
        (OSError("of a library"), 2, "of a library"),
        (OSError(), 2, "OSError"),
        (ValueError(), 2, "ValueError"),
        (ValueError("  \n "), 2, "ValueError"),
        (ValueError("\n\n  what is wrong\nand where\n"), 2, "what is wrong"),
        (ValueError("red \x1b[31m\rtext"), 2, r"red \x1b[31m"),
        (ValueError("a\x9b2Jb"), 2, r"a\x9b2Jb"),
        (KeyboardInterrupt(), 130, None),
    ],
)
def test_an_error_is_one_line_whatever_its_text_is(error, status, said, part_of, capsys):
    commandline = part_of("commandline")
    parser = commandline.make_parser("What it does.")
    parser.prog = "x.py"
    with pytest.raises(SystemExit) as ended, commandline.one_line(parser, ValueError, OSError):
        with commandline.one_line(parser, errors.BadInput, errors.Fault):
            raise error
    assert ended.value.code == status
    output, line = capsys.readouterr()
    assert not output and line == ("" if said is None else f"x.py: error: {said}\n")


def test_an_error_of_a_package_that_does_not_fit_is_one_line(part_of, capsys, monkeypatch):
    commandline = part_of("commandline")
    statuses = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    monkeypatch.setattr(sys, "argv", ["/a/look.py"])
    fits = f"{commandline.FOLDER}/trainparts does not fit this program"
    for error, said in (
        (TypeError("f() got 3\nof 2"), "TypeError: f() got 3"),
        (AttributeError(""), "AttributeError: "),
        (ModuleNotFoundError("No module named 'x'"), "ModuleNotFoundError: No module named 'x'"),
    ):
        commandline._say_which_package(type(error), error, None)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"look.py: error: {fits} ({said}): mend it, or ")
    assert statuses == [2] * 3
    commandline._say_which_package(ZeroDivisionError, ZeroDivisionError("a bug"), None)
    assert "ZeroDivisionError: a bug" in capsys.readouterr().err and len(statuses) == 3


def test_a_package_beside_a_script_is_the_program_s_or_whole(part_of, tmp_path, monkeypatch):
    commandline = part_of("commandline")
    started = mock.Mock()
    monkeypatch.setattr(os, "execve", started)
    commandline.use_package_of(ROOT / "imagenet_nd.py")  # its own
    commandline.use_package_of(tmp_path / "x.py")  # none
    (tmp_path / "link").symlink_to(ROOT)
    commandline.use_package_of(tmp_path / "link" / "imagenet_nd.py")
    caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "trainparts", tmp_path / "trainparts", ignore=caches)
    assert not started.called
    commandline.use_package_of(tmp_path / "x.py")
    (program, words, env), _ = started.call_args
    assert program == sys.executable == words[0] and str(tmp_path) in env.values()
    for name in "errors.py", "images/decoding.py", "runs/event_log.py":
        (tmp_path / "trainparts" / name).unlink()
    with pytest.raises(ValueError, match="version, and lacks 3 modules, as errors.py: use this"):
        commandline.use_package_of(tmp_path / "x.py")
    assert started.call_count == 1
