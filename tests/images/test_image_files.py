"""trainparts/images/image_files.py: lists of images in folders, shards and tables, and the demo."""

import os
import re
import shutil
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torchvision
from conftest import Hostile, write_tar

from trainparts import errors
from trainparts.images import image_files

HOLDS = (
    "; train/ and val/ hold <class>/* (tools/prepare_imagenet.py makes them from ImageNet in any "
    "form, tools/prepare_folder.py from a table of labels or from one folder of classes), or tars "
    "and index.npz (tools/make_shards.py --index)"
)
KINDS = "*.jpg, *.jpeg, *.png, *.ppm, *.bmp, *.pgm, *.tif, *.tiff, *.webp"


@pytest.fixture(autouse=True)
def shards_are_closed():
    yield
    image_files.open_shard.cache_clear()


def touch(folder, *names):
    """Makes empty files, and the folders that they need; returns the folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def refused(call, *given, kind=errors.BadInput, **more):
    """Returns the line of the exception that a call raises, of exactly this kind."""
    with pytest.raises(kind) as raised:
        call(*given, **more)
    assert type(raised.value) is kind
    return str(raised.value)


def paths_of(source):
    """Returns [(path, class), ...]."""
    return [(source.path(index), target) for index, target in enumerate(source.target.tolist())]


def source_of(classes, target, folder="DIR", **more):
    """Returns a Source of images that are in no file."""
    target = np.array(target)
    zeros = np.zeros(len(target), int)
    names = np.array([b"%d.jpg" % number for number in zeros.cumsum()])
    return image_files.Source(folder, classes, names, zeros, zeros, zeros - 1, target, **more)


# --------------------------------------------------------------------------------------- folders


@pytest.mark.parametrize("order", [sorted, lambda found: sorted(found)[::-1]], ids=["up", "down"])
def test_listed_as_imagefolder_lists(order, tmp_path, monkeypatch):
    """With all that it takes or leaves, in whatever order the file system has it."""
    first = ("b/2.JPEG", "b/10.jpeg", "b/x.PNG", "b/notes.txt", "b/in/1.jpg", "b/in/er/a.bmp")
    second = ("b/Z.jpg", "a/ä.jpg", "a/1.webp", "a/dir.jpg/2.tif", "B/0.ppm", "loose.jpg")
    touch(tmp_path, *first, *second)
    (tmp_path / "c").symlink_to(tmp_path / "b" / "in")
    expected, walk = torchvision.datasets.ImageFolder(tmp_path), os.walk
    monkeypatch.setattr(os, "walk", lambda *words, **more: order(walk(*words, **more)))
    found = image_files.open_source(tmp_path)
    assert found.classes == expected.classes and found.folder == str(tmp_path)
    assert paths_of(found) == expected.samples


def test_what_is_not_read_is_counted_by_its_suffix(tmp_path):
    touch(tmp_path, "a/1.jpg", "b/2.jpg")
    before = image_files.open_source(tmp_path)
    assert before.not_read == "" and before.gaps() == []
    touch(tmp_path, "a/1.jfif", "b/2.JFIF", "b/in/3.gif", "a/README", "a/.DS_Store", "loose.jpg")
    touch(tmp_path, "a/.cache/x.txt", "a/._1.txt", ".cache.jpg", "notes.txt")
    source = image_files.open_source(tmp_path)
    first, *others = source.not_read.split(", ")
    assert first == "2 *.jfif"
    assert {*others} == {"1 *.gif", "1 without a suffix", "1 images beside the classes"}
    assert source.gaps() == [f"{tmp_path}: files that are not read: {source.not_read}"]
    assert source.digest() == before.digest()


def test_the_five_most_frequent_kinds_are_named_and_others_counted(tmp_path):
    names = [*(f"a/1.{number}" for number in range(1100)), "a/2.a\nb", "a/3.a\nb", "a/4.jpg"]
    touch(tmp_path, *names, os.fsdecode(b"a/4.\xe9"))
    (line,) = image_files.open_source(tmp_path).gaps()
    kinds = r"2 *.a\nb, 1 *.0, 1 *.1, 1 *.10, 1 *.100, 1,097 of other kinds"
    assert line == f"{tmp_path}: files that are not read: {kinds}"


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({}, ""),
        ({"images beside the classes": 0}, ""),
        ({"*.gif": 1, "*.txt": 1200}, "1,200 *.txt, 1 *.gif"),
        (dict.fromkeys("abcde", 1), "1 a, 1 b, 1 c, 1 d, 1 e"),
        (dict.fromkeys("abcdefg", 1), "1 a, 1 b, 1 c, 1 d, 1 e, 2 of other kinds"),
    ],
)
def test_kinds_as_text(counts, text):
    assert image_files.most_frequent(Counter(counts)) == text


def test_a_class_without_images_ends_unless_it_may_be_empty(tmp_path):
    touch(tmp_path, "b/1.jpg", "d/2.jpg", "d/3.jpg")
    for name in "ac":
        (tmp_path / name).mkdir()
    why = f"{tmp_path}: no image ({KINDS}) in 2 classes, as a"
    assert refused(image_files.open_source, tmp_path) == f"{why}{HOLDS}"
    touch(tmp_path, "c/1.gif")
    others = "; files that are not read: 1 *.gif"
    assert refused(image_files.open_source, tmp_path) == f"{why}{others}{HOLDS}"
    source = image_files.open_source(tmp_path, allow_empty=True)
    assert source.classes == [*"abcd"] and source.target.tolist() == [1, 3, 3]
    line = f"{tmp_path}: 2 of 4 classes have images; without: a, c"
    assert source.gaps() == [f"{tmp_path}: files that are not read: 1 *.gif", line]


def test_a_part_without_any_image_ends_though_classes_may_be_empty(tmp_path):
    why = f"{tmp_path}: Couldn't find any class folder{HOLDS}"
    touch(tmp_path, "loose.jpg")
    assert refused(image_files.open_source, tmp_path, allow_empty=True) == why
    (tmp_path / "a").mkdir()
    found = refused(image_files.open_source, tmp_path, allow_empty=True)
    loose = "files that are not read: 1 images beside the classes"
    assert found == f"{tmp_path}: no image ({KINDS}) in 1 classes, as a; {loose}{HOLDS}"


def test_a_missing_part_is_the_users_mistake(tmp_path):
    line = refused(image_files.open_source, tmp_path / "train")
    assert line == f"{tmp_path}/train: No such file or directory{HOLDS}"


def test_a_class_that_cannot_be_listed_is_no_empty_one(tmp_path, monkeypatch):
    """A disk that does not answer is a fault, which a later start may not meet."""
    touch(tmp_path, "a/1.jpg", "b/2.jpg")
    scandir = os.scandir

    def fail(path="."):
        if os.fspath(path) == str(tmp_path / "b"):
            raise OSError(5, "Input/output error", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    line = refused(image_files.open_source, tmp_path, allow_empty=True, kind=errors.Fault)
    assert line == f"{tmp_path}: {tmp_path}/b: Input/output error"


def test_a_part_that_does_not_answer_is_a_fault(tmp_path, monkeypatch):
    def fail(path):
        raise OSError(116, "Stale file handle", str(path))

    monkeypatch.setattr(os, "listdir", fail)
    line = f"{tmp_path}: Stale file handle"
    assert refused(image_files.open_source, tmp_path, kind=errors.Fault) == line
    assert refused(image_files.name_classes, tmp_path, kind=errors.Fault) == line


# ------------------------------------------------------------------------------------ a Source


def test_gaps_name_three_empty_classes_of_more_and_escape_what_cannot_be_printed():
    names = ["a\nb", "b", "c\udce9", "d", "ä"]
    sources = source_of(names, [1, 1]), source_of(names, np.eye(5, dtype=int)[[1, 1]])
    for source in sources:
        assert source.gaps() == [r"DIR: 1 of 5 classes have images; without: a\nb, c\udce9, d, ..."]
    assert source_of([*"abcd"], [3]).gaps() == ["DIR: 1 of 4 classes have images; without: a, b, c"]
    many = source_of([f"{number:04}" for number in range(2000)], [*range(1, 2000)])
    assert many.gaps() == ["DIR: 1,999 of 2,000 classes have images; without: 0000"]
    assert source_of([*"ab"], [1, 0]).gaps() == []


def test_targets_become_positions_in_other_classes():
    source = source_of(["c", "a"], [0, 1, 1], not_read="1 *.gif")
    found = source.in_classes(["a", "b", "c"], "train/")
    assert found.classes == ["a", "b", "c"] and found.target.tolist() == [2, 0, 0]
    assert found.not_read == "1 *.gif" and found.names is source.names
    assert source.target.tolist() == [0, 1, 1] and source.in_classes(["c", "a"], "") is source


def test_columns_of_several_classes_go_to_their_positions():
    source = source_of(["c", "a"], np.array([[1, 0], [1, 1], [0, 0]], np.int8))
    found = source.in_classes(["a", "b", "c"], "train/")
    assert found.target.tolist() == [[0, 0, 1], [1, 0, 1], [0, 0, 0]]
    assert found.target.dtype == np.int8


def test_a_class_that_is_not_known_is_named():
    source = source_of(["a", "x\n", "y"], [0, 1, 2])
    why = r"DIR: 2 of 3 classes are not in train/, as x\n; known are a, b"
    assert refused(source.in_classes, ["a", "b"], "train/") == why
    known = source_of(["e"], [0])
    why = "DIR: 1 of 1 classes are not in the checkpoint, as e; known are a, b, c, ..."
    assert refused(known.in_classes, [*"abcd"], "the checkpoint") == why
    assert refused(known.in_classes, [*"abc"], "train/").endswith("known are a, b, c")


def on_disk(folder, count=2):
    """Returns a Source of files of one byte each, of two classes in turn."""
    for number in range(count):
        (folder / f"{number}").write_bytes(b"x")
    ones, names = np.ones(count, np.int64), np.array([b"%d" % each for each in range(count)])
    file = np.arange(count)
    return image_files.Source(str(folder), ["a", "b"], names, file, 0 * ones, -ones, file % 2)


def test_the_digest_is_of_classes_names_and_positions(tmp_path):
    """Shards that are labelled anew in place are other data, and so are files in another order."""
    source = on_disk(tmp_path)
    for other in (
        source._replace(classes=["a", "c"]),
        source._replace(names=source.names[::-1].copy()),
        source._replace(file=source.file[::-1].copy()),
        source._replace(offset=source.offset + 1),
        source._replace(length=source.length + 2),
        source._replace(target=source.target[::-1].copy()),
    ):
        assert source.digest() != other.digest()
    assert source.digest() == source._replace(target=source.target.copy()).digest()
    assert source.digest() == source._replace(not_read="1 *.gif").digest()
    assert re.fullmatch("2 images, [0-9a-f]{8}", source.digest())


def test_the_digest_is_the_same_wherever_the_folder_is(tmp_path):
    for name in "one", "two":
        (tmp_path / name).mkdir()
    assert on_disk(tmp_path / "one").digest() == on_disk(tmp_path / "two").digest()


@pytest.mark.parametrize("count", [1, 99, 100, 250])
def test_the_digest_is_of_the_sizes_of_a_hundred_files(count, tmp_path):
    """Of the first, too; of all, where they are fewer."""
    source = on_disk(tmp_path, count)
    digest, looked_at = source.digest(), 0
    for path in tmp_path.iterdir():
        path.write_bytes(b"xx")
        looked_at += source.digest() != digest
        path.write_bytes(b"x")
    assert looked_at == {1: 1, 99: 99, 100: 50, 250: 84}[count]
    (tmp_path / "0").unlink()
    with pytest.raises(FileNotFoundError):
        source.digest()


def test_an_image_is_read_each_time_and_left_closed(tmp_path):
    """Whole, as it is now; a shard stays open, and is opened once."""
    image = on_disk(tmp_path, 1)
    shard = image._replace(offset=image.offset + 1, length=image.length + 4)
    before = {*os.listdir("/dev/fd")}
    for number, content in enumerate((b"<old>", b"<new, longer>")):
        (tmp_path / "other").write_bytes(content)
        (tmp_path / "other").replace(tmp_path / "0")
        assert image.read(0) == content and len(os.listdir("/dev/fd")) == len(before) + number
        assert shard.read(0) == b"old"
    with pytest.raises(FileNotFoundError):
        image._replace(names=np.array([b"gone"])).read(0)


def test_a_name_of_any_bytes_is_a_path(tmp_path):
    path = tmp_path / os.fsdecode(b"\xe9 1.jpg")
    path.write_bytes(b"content")
    source = image_files.source_of_table(tmp_path, paths=[path.name], labels=["a"])
    assert source.path(0) == str(path) and source.read(0) == b"content"


# ----------------------------------------------------------------------------- train/ and val/


def test_validation_has_the_classes_of_training(tmp_path):
    touch(tmp_path, *(f"train/{name}/1.jpg" for name in "abc"), "val/c/1.jpg", "val/c/2.jpg")
    train, val = image_files.open_sources(tmp_path)
    assert train.classes == val.classes == [*"abc"]
    assert train.target.tolist() == [0, 1, 2] and val.target.tolist() == [2, 2]
    assert (train.folder, val.folder) == (f"{tmp_path}/train", f"{tmp_path}/val")
    touch(tmp_path, "val/d/1.jpg")
    why = f"{tmp_path}/val: 1 of 2 classes are not in train/, as d; known are a, b, c"
    assert refused(image_files.open_sources, tmp_path) == why


@pytest.mark.parametrize("empty", ["train", "val"])
def test_a_class_may_have_no_image_in_validation_alone(empty, tmp_path):
    touch(tmp_path, *(f"{part}/{name}/1.jpg" for part in ("train", "val") for name in "ab"))
    (tmp_path / empty / "a" / "1.jpg").unlink()
    if empty == "train":
        assert "/train: no image (" in refused(image_files.open_sources, tmp_path)
    else:
        assert image_files.open_sources(tmp_path)[1].target.tolist() == [1]


def test_to_evaluate_training_has_names_and_no_images(tmp_path):
    """Classes may be empty there, and what is not read there is no matter."""
    touch(tmp_path, "val/b/1.jpg", "val/b/2.gif", "train/a/1.gif", "train/c/1.jpg")
    (tmp_path / "train" / "b").mkdir()
    train, val = image_files.open_sources(tmp_path, evaluate=True)
    assert train.classes == [*"abc"] and train.folder == f"{tmp_path}/train"
    assert train.gaps() == [f"{tmp_path}/train: 0 of 3 classes have images; without: a, b, c"]
    for name in "file", "offset", "length", "target":
        assert len(getattr(train, name)) == 0
    assert val.classes == ["b"] and val.target.tolist() == [0] and val.not_read == "1 *.gif"


def test_to_evaluate_validation_names_the_classes_where_there_is_no_training(tmp_path):
    touch(tmp_path, "val/b/1.jpg", "val/c/1.jpg")
    train, val = image_files.open_sources(tmp_path, evaluate=True)
    assert train.classes == val.classes == [*"bc"] and train.folder == f"{tmp_path}/val"
    assert not len(train.target) and val.target.tolist() == [0, 1]


def test_to_evaluate_a_training_that_is_not_mounted_is_a_mistake(tmp_path):
    touch(tmp_path, "val/b/1.jpg")
    (tmp_path / "train").symlink_to(tmp_path / "not mounted")
    why = f"{tmp_path}/train: No such file or directory{HOLDS}"
    assert refused(image_files.open_sources, tmp_path, evaluate=True) == why


def test_an_own_reader_names_the_classes_of_an_evaluation(tmp_path):
    """Where the weights name none; val/ has fewer classes, in another order."""
    asked = []

    def name(folder):
        return ["a", "b", "c"] if folder.name == "train" else ["c", "a"]

    def read(folder, allow_empty=False):
        asked.append((folder, allow_empty))
        return source_of(name(folder), [1], str(folder))

    train, val = image_files.open_sources(tmp_path, True, read, name)
    assert train.classes == ["a", "b", "c"] and train.folder == str(tmp_path / "train")
    assert not len(train.target) and val.classes == ["c", "a"]
    assert asked == [(tmp_path / "val", True)]
    train, val = image_files.open_sources(tmp_path, False, read, name)
    assert asked[1:] == [(tmp_path / "train", False), (tmp_path / "val", True)]
    assert val.classes == train.classes == ["a", "b", "c"]
    assert train.target.tolist() == [1] and val.target.tolist() == [0]


# ---------------------------------------------------------------------------- tables, synthetic


@pytest.mark.parametrize(
    ("labels", "classes", "target"),
    [
        (["10", "2", "10"], ["10", "2"], [0, 1, 0]),  # as class folders are
        ([10, 2, 10], ["2", "10"], [1, 0, 1]),
        (np.array([10, 2, 10], np.int16), ["2", "10"], [1, 0, 1]),
        (np.array([10, 2, 10], object), ["2", "10"], [1, 0, 1]),
        (np.array([10, "b", 2], object), ["10", "2", "b"], [0, 2, 1]),
        (["b", None, "a"], ["None", "a", "b"], [2, 0, 1]),
    ],
)
def test_labels_of_a_table_are_sorted_as_text_and_numbers_as_numbers(labels, classes, target):
    paths = ["a.jpg", "b.jpg", "c.jpg"]
    source = image_files.source_of_table("DIR", paths=paths, labels=labels)
    assert source.classes == classes and source.target.tolist() == target
    assert [source.path(index) for index in range(3)] == ["DIR/a.jpg", "DIR/b.jpg", "DIR/c.jpg"]


def test_a_table_is_read_as_folders_are(tmp_path):
    names = ["train/ant/1.jpg", "train/bee/no. 1, #2.jpg", "train/ant/3.jpg"]
    touch(tmp_path, *names)
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(b"%d" % number)
    table = image_files.source_of_table(
        tmp_path, paths=names, labels=[name.split("/")[1] for name in names]
    )
    assert table.classes == image_files.open_source(str(tmp_path / "train")).classes
    assert [table.read(index) for index in range(3)] == [b"0", b"1", b"2"]
    assert table.target.tolist() == [0, 1, 0] and table.gaps() == []


def test_synthetic_images_have_no_file_and_one_class():
    source = image_files.synthetic_source(1000)
    assert source.target.tolist() == [0] * 1000
    assert source.classes == [] and source.folder == "synthetic images"


# --------------------------------------------------------------------------------------- shards


def write_index(folder, arrays, **how):
    """Writes index.npz."""
    with zipfile.ZipFile(folder / "index.npz", "w") as archive:
        for name, array in arrays.items():  # np.savez() takes no array named file
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, array, **how)


@pytest.fixture
def shards(tmp_path):
    """(A folder of two tar files and an index, the arrays in it): five images of classes b, c."""
    folder, contents = tmp_path / "train", [b"one", b"second", b"3rd", b"fourth image", b"5"]
    for name, some in ("000000.tar", contents[:3]), ("000001.tar", contents[3:]):
        write_tar(folder / name, {f"{content.decode()}.jpg": content for content in some})
    tars = [(folder / name).read_bytes() for name in ("000000.tar", "000001.tar")]
    file = [0, 0, 0, 1, 1]
    arrays = {
        "classes": np.array(["a", "b", "c"]),
        "names": np.array([b"000000.tar", b"000001.tar"]),
        "file": np.array(file),
        "offset": np.array(
            [tars[each].index(one + bytes(2)) for each, one in zip(file, contents, strict=True)]
        ),
        "length": np.array([len(one) for one in contents]),
        "target": np.array([2, 1, 1, 2, 1]),
        "sizes": np.array([len(tar) for tar in tars]),
    }
    write_index(folder, arrays)
    return folder, arrays


def test_an_image_of_a_shard_is_read_where_the_index_says(shards, monkeypatch):
    """A shard is opened once, in whatever order its images are read."""
    folder, _ = shards
    opened = []

    def count(path, *more, **options):
        opened.append(Path(path).name)
        return open(path, *more, **options)

    monkeypatch.setattr(image_files, "open", count, raising=False)
    source = image_files.open_source(folder)
    found = {index: source.read(index) for index in (3, 0, 4, 2, 1)}
    assert found == {0: b"one", 1: b"second", 2: b"3rd", 3: b"fourth image", 4: b"5"}
    assert opened == ["000001.tar", "000000.tar"]
    assert source.classes == ["a", "b", "c"] and source.target.tolist() == [2, 1, 1, 2, 1]
    assert paths_of(source)[3] == (f"{folder}/000001.tar", 2)
    assert source.gaps() == [f"{folder}: 2 of 3 classes have images; without: a"]


def without_images(arrays):
    return {name: arrays[name][:0] for name in ("file", "offset", "length", "target")}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda arrays: {"target": arrays["target"] + 1}, "its images are of other classes"),
        (lambda arrays: {"target": arrays["target"] - 2}, "its images are of other classes"),
        (without_images, "its images are of other classes"),
        (lambda arrays: {"sizes": arrays["sizes"] - [512, 0]}, "000000.tar has changed since"),
        (lambda arrays: {"sizes": arrays["sizes"] + [0, 512]}, "000001.tar has changed since"),
        (
            lambda arrays: {"names": np.array([b"000000.tar", b"gone.tar"])},
            "PATH/gone.tar: No such file or directory",
        ),
    ],
)
def test_an_index_that_does_not_fit_is_refused(change, why, shards):
    folder, arrays = shards
    write_index(folder, arrays | change(arrays))
    why = why.replace("PATH", str(folder))
    assert refused(image_files.open_source, folder) == f"{folder}: {why}{HOLDS}"


@pytest.mark.parametrize("kept", [0, 100, -512])
def test_a_damaged_index_is_refused(kept, shards):
    folder, _ = shards
    index = folder / "index.npz"
    index.write_bytes(index.read_bytes()[:kept])
    for call in image_files.open_source, image_files.name_classes:
        line = refused(call, folder)
        assert line.startswith(f"{folder}: ") and line.endswith(HOLDS)


def test_tars_without_an_index_are_no_classes(shards):
    folder, _ = shards
    (folder / "index.npz").unlink()
    why = f"{folder}: Couldn't find any class folder{HOLDS}"
    assert refused(image_files.open_source, folder) == why


def test_nothing_in_an_index_is_run(shards, tmp_path):
    """NumPy would unpickle arrays of objects, if it were told to."""
    folder, arrays = shards
    hostile = np.array([Hostile(tmp_path / "run")] * 2, object)
    write_index(folder, arrays | {"classes": hostile}, allow_pickle=True)
    for call in image_files.open_source, image_files.name_classes:
        line = refused(call, folder)
        assert line.startswith(f"{folder}: Object arrays cannot be loaded")
    assert not (tmp_path / "run").exists()


def test_a_disk_that_fails_is_no_damaged_index(shards, monkeypatch):
    folder, _ = shards

    def fail(path):
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(Path, "read_bytes", fail)
    line = f"{folder}: {folder}/index.npz: Input/output error"
    for call in image_files.open_source, image_files.name_classes:
        assert refused(call, folder, kind=errors.Fault) == line


def test_classes_are_named_without_their_images(shards, tmp_path):
    """Of an index without its tars, or of folders that may be empty; there may be no such part."""
    folder, _ = shards
    (folder / "000000.tar").unlink()
    assert image_files.name_classes(folder) == ["a", "b", "c"]
    touch(tmp_path, "val/b/1.jpg", "val/notes.txt")
    for name in "a", "B", "10", "9":
        (tmp_path / "val" / name).mkdir()
    assert image_files.name_classes(tmp_path / "val") == ["10", "9", "B", "a", "b"]
    assert image_files.name_classes(tmp_path / "none") == []
    (tmp_path / "empty").mkdir()
    assert image_files.name_classes(tmp_path / "empty") == []
    (tmp_path / "link").symlink_to(tmp_path / "none")
    why = f"{tmp_path}/link: No such file or directory{HOLDS}"
    assert refused(image_files.name_classes, tmp_path / "link") == why


@pytest.mark.parametrize(
    ("path", "within"),
    [
        ("DIR/train", True),
        ("DIR/train/out", True),
        ("DIR/val/cat/out", True),
        ("DIR/other/../train/out", True),
        ("link/out", True),
        ("DIR/out", False),
        ("DIR/training/out", False),
        ("train/out", False),
        ("runs", False),
        ("DIR/train/\0", False),
    ],
)
def test_folders_that_would_be_classes(path, within, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DIR" / "train").mkdir(parents=True)
    (tmp_path / "link").symlink_to("DIR/train")
    (tmp_path / "data").symlink_to("DIR")
    assert image_files.is_in_part(path, "DIR") == within
    assert image_files.is_in_part(path, "data") == within
    monkeypatch.chdir(tmp_path / "DIR" / "train")
    assert image_files.is_in_part("runs", "..")


# --------------------------------------------------------------------------------- the demo set


def test_the_demo_set_is_ten_classes_of_images_of_a_colour_each(tmp_path):
    image_files.make_demo_set(tmp_path / "demo")
    train, val = image_files.open_sources(tmp_path / "demo")
    assert train.classes == val.classes == [f"class{number}" for number in range(10)]
    assert np.bincount(train.target).tolist() == [128] * 10
    assert np.bincount(val.target).tolist() == [32] * 10
    hues = []
    for index in range(0, 1280, 64):
        image = PIL.Image.open(train.path(index))
        assert image.format == "JPEG" and image.size == (64, 64) and image.mode == "RGB"
        hsv = np.asarray(image.convert("HSV")).reshape(-1, 3).astype(int)
        square = hsv[(hsv[:, 1] > 170) & (hsv[:, 2] > 205)]
        expected = 36 * train.target[index]
        away = (square[:, 0] / 256 * 360 - expected + 180) % 360 - 180
        assert len(square) > 200 and abs(np.median(away)) <= 12
        hues.append(np.median(away))
    assert len({*hues}) > 5, "the classes' colours vary"


def test_a_demo_set_that_is_there_by_then_is_left_alone(tmp_path, monkeypatch):
    """Another rank has written it meanwhile: nothing of this one's is left."""
    monkeypatch.setattr(image_files.itertools, "product", lambda *_: [(0, 0), (0, 159)])
    folder = touch(tmp_path / "demo data", "train/class0/theirs.jpg")
    image_files.make_demo_set(folder)
    assert os.listdir(tmp_path) == ["demo data"]
    assert os.listdir(folder / "train" / "class0") == ["theirs.jpg"]
    shutil.rmtree(folder)
    image_files.make_demo_set(folder)
    assert os.listdir(tmp_path) == ["demo data"]
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg")) == [
        "train/class0/0.jpg",
        "val/class0/159.jpg",
    ]


def test_a_demo_set_that_cannot_be_written_is_a_line(tmp_path):
    touch(tmp_path, "file")
    line = refused(image_files.make_demo_set, tmp_path / "file" / "demo")
    assert re.fullmatch(
        rf"no DIR, and a demo set cannot be written: {tmp_path}/file/demo\S+: Not a directory", line
    )
    assert os.listdir(tmp_path) == ["file"]
