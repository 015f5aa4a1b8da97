"""ImageNet in the forms that people have it: image-net.org's tar files, Kaggle's folder, Hugging
Face's parquet, timm's tar files."""

import errno
import gzip
import importlib.resources
import io
import json
import os
import re
import shutil
import signal
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import PIL.Image
import pyarrow
import pytest
import scipy.io
import torch
import torchvision
from conftest import ROOT, damage, flip, interrupted, members, run, write_file, write_tar
from pyarrow import parquet

from trainparts.images import image_files

IDS = "n01440764", "n02110185", "n07753592"  # in ImageNet's order
TINY = "-a squeezenet1_1 --image-size 32 --val-resize 32 -b 4 -j 0 --epochs 1 --no-accel".split()
CSV, DATA = "LOC_val_solution.csv", "ILSVRC/Data/CLS-LOC"
TRAIN, VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"


def pictures(train=4, val=2):
    """Returns {part: [(name of the file, class, JPEG)]}, all of which differ, in no order."""
    found = {}
    for part, count, seed in ("train", train, 0), ("val", val, 100):
        rows = []
        for number, label in enumerate([*range(len(IDS))] * count, 1):
            rng = np.random.default_rng(seed + number)
            pixels = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
            file = io.BytesIO()
            PIL.Image.fromarray(pixels).resize((40, 36)).save(file, "JPEG")
            name = f"{IDS[label]}_{number}" if part == "train" else f"ILSVRC2012_val_{number:08}"
            rows.append((f"{name}.JPEG", label, file.getvalue()))
        found[part] = rows
    return found


PICTURES = pictures()


def write_tars(folder, pictures=PICTURES):
    """Writes PICTURES as image-net.org has them: a tar of a tar a class, one of val's, and the
    devkit, whose classes are numbered in an order of their own."""
    folder.mkdir()
    names = {1: IDS[2], 2: IDS[0], 3: IDS[1]}
    kinds = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children"]
    rows = [(each, name, "word", "gloss", 0, []) for each, name in names.items()]
    rows.append((4, "n00001740", "entity", "gloss", 2, [1, 2]))
    synsets = np.empty((len(rows), 1), [(kind, "O") for kind in kinds])
    synsets[:, 0] = rows
    mat, numbers = io.BytesIO(), {name: each for each, name in names.items()}
    scipy.io.savemat(mat, {"synsets": synsets})
    truth = "".join(f"{numbers[IDS[label]]}\n" for _, label, _ in pictures["val"]).encode()
    inside = f"{DEVKIT.removesuffix('.tar.gz')}/data"
    kit = {f"{inside}/meta.mat": mat.getvalue()}
    kit[f"{inside}/ILSVRC2012_validation_ground_truth.txt"] = truth
    write_tar(folder / DEVKIT, kit, "w:gz")
    outer = {}
    for at, name in enumerate(IDS):
        images = {name: content for name, label, content in pictures["train"] if label == at}
        outer[f"{name}.tar"] = write_tar(folder / TRAIN, images).read_bytes()
    write_tar(folder / TRAIN, outer)
    write_tar(folder / VAL, {name: content for name, _, content in pictures["val"]})


def write_kaggle(folder, pictures=PICTURES):
    """Writes PICTURES as Kaggle's challenge has them, with a flat test/, whose classes are secret;
    returns the folder of train/."""
    data = folder / DATA
    lines = ["ImageId,PredictionString"]
    for name, label, content in pictures["train"]:
        write_file(data / "train" / IDS[label] / name, content)
    for part in "val", "test":
        for name, _, content in pictures["val"]:
            write_file(data / part / name.replace("val", part), content)
    for name, label, _ in reversed(pictures["val"]):  # in an order of its own
        lines.append(f"{name.removesuffix('.JPEG')},{IDS[label]} 1 2 3 4 {IDS[label]} 5 6 7 8 ")
    (folder / CSV).write_text("\n".join(lines) + "\n")
    return data


def write_parquet(folder, pictures=PICTURES, name=lambda part, name: name):
    """Writes PICTURES as Hugging Face has ImageNet, in two files a part, rows in groups of five."""
    (folder / "data").mkdir(parents=True)
    for part, title, cut in ("train", "train", 7), ("val", "validation", 2):
        for number, some in enumerate((pictures[part][:cut], pictures[part][cut:])):
            image = [{"bytes": content, "path": name(part, each)} for each, _, content in some]
            made = {"image": image, "label": [label for _, label, _ in some]}
            path = folder / "data" / f"{title}-{number:05}-of-00002.parquet"
            parquet.write_table(pyarrow.table(made), path, row_group_size=5)
    return folder


def write_timm(folder, pictures=PICTURES):
    """Writes PICTURES as timm has ImageNet: jpg, cls and json, of both parts in one folder."""
    folder.mkdir(parents=True)
    for part, first in ("train", "imagenet1k-train-0000"), ("val", "imagenet1k-validation-00"):
        for number, some in enumerate((pictures[part][:3], pictures[part][3:])):
            content = {}
            for at, (name, label, image) in enumerate(some):
                about = json.dumps({"filename": name, "label": label, "width": 40})
                key = f"{first}-{number}{at:05}"
                content |= {f"{key}.jpg": image, f"{key}.cls": b"%d" % label}
                content |= {f"{key}.json": about.encode()}
            write_tar(folder / f"{first[:-1]}{number}.tar", content)
    (folder / "_info.json").write_text("{}")
    return folder


FORMS = {"tars": write_tars, "kaggle": write_kaggle, "parquet": write_parquet, "timm": write_timm}
LINKED = "kaggle", "timm"  # of which nothing is copied


def held(folder, part):
    """Returns what the scripts read of a part: [(class, encoded image)], sorted."""
    source = image_files.open_source(folder / part)
    return sorted(
        (source.classes[label], source.read(at)) for at, label in enumerate(source.target.tolist())
    )


def wanted(part):
    return sorted((IDS[label], content) for _, label, content in PICTURES[part])


@pytest.fixture
def prepare(tool):
    """prepare(*words, status=0): returns the lines printed, or what follows `error: `."""

    def call(*words, status=0):
        said = tool("prepare_imagenet", *words, status=status)
        return said.partition(" error: ")[2] if status else said.splitlines()

    return call


def files(folder):
    """Returns {path below the folder: (size, time of change)} of its files."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): path.stat()[6:9:2] for path in paths}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_same_images_and_classes(form, tmp_path, prepare):
    source, data = tmp_path / "source", tmp_path / "data"
    FORMS[form](source)
    before = files(source)
    lines = prepare(source, data)
    assert [line for line in lines if "images of" in line] == [
        f"{data}/train: 12 images of 3 classes",
        f"{data}/val: 6 images of 3 classes",
    ]
    stays = any(str(source) in line and "must stay" in line for line in lines)
    assert stays == (form in LINKED)
    for part in "train", "val":
        assert held(data, part) == wanted(part)
        assert image_files.open_source(data / part).classes == [*IDS]
    assert files(source) == before and sorted(os.listdir(data)) == ["train", "val"]
    if form in LINKED:  # a folder with both can be moved
        assert not [
            path for path in data.rglob("*.JPEG") if not path.resolve().is_relative_to(source)
        ]
        (tmp_path / "other").mkdir()
        for each in source, data:
            each.rename(tmp_path / "other" / each.name)
        source, data = tmp_path / "other" / "source", tmp_path / "other" / "data"
        assert held(data, "val") == wanted("val")
    made = files(data)
    prepare(source, data)  # again: nothing is written
    assert files(data) == made


def test_look_measures_the_same_on_what_came_of_each_form(tmp_path, prepare, call_tool):
    model = tmp_path / "model.pt"
    state = torchvision.models.squeezenet1_1(num_classes=3).state_dict()
    about = {"arch": "squeezenet1_1", "classes": [*IDS], "model_options": {}}
    torch.save(about | {"state_dict": state}, model)
    found = set()
    for form, write in FORMS.items():
        write(tmp_path / form)
        prepare(tmp_path / form, tmp_path / f"from_{form}")
        words = "classes", model, tmp_path / f"from_{form}", "--out", tmp_path / "confusion.png"
        lines = call_tool("look", *words)[0].splitlines()
        found.add((lines[0].partition(": ")[2], *lines[1:-1]))
    ((first, *rest),) = found
    assert first.endswith("; images: 6") and all(any(each in line for line in rest) for each in IDS)


def test_kaggle_sorted_in_place(tmp_path, prepare):
    data = write_kaggle(tmp_path / "kaggle")
    test = files(data / "test")
    assert prepare(data, data, "--only", "train")[-1].endswith("train: 12 images of 3 classes")
    assert held(data, "train") == wanted("train")
    (data / "val").rename(data / "val.unfinished")  # as when it is interrupted
    name, label, _ = PICTURES["val"][0]
    (data / "val.unfinished" / IDS[label]).mkdir()
    (data / "val.unfinished" / name).rename(data / "val.unfinished" / IDS[label] / name)
    for source in tmp_path / "kaggle", data:  # the second time it is sorted
        lines = prepare(source, data)
        assert lines[0] == f"{data}: val/ is sorted in place"
        assert held(data, "val") == wanted("val") and files(data / "test") == test
    assert not [path for path in (data / "val").rglob("*") if path.is_symlink()]
    prepare(data, tmp_path / "data")  # of what is sorted, links to two folders
    assert held(tmp_path / "data", "val") == wanted("val")
    assert all((tmp_path / "data" / part).is_symlink() for part in ("train", "val"))


def test_what_was_missing_in_place_is_added(tmp_path, prepare):
    data = write_kaggle(tmp_path / "kaggle")
    name, _, content = PICTURES["val"][1]
    (data / "val" / name).unlink()
    assert f"val lacks 1 images, as {name}: get it again" in prepare(data, data, status=2)
    (data / "val").mkdir()
    (data / "val" / name).write_bytes(content)
    prepare(data, data)
    assert held(data, "val") == wanted("val")


def test_a_flat_val_of_others_is_never_moved(tmp_path, prepare):
    """Where DIR's val/ is a link to it."""
    data = write_kaggle(tmp_path / "kaggle")
    before = files(data)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "val").symlink_to(data / "val")
    line = prepare(data, tmp_path / "data", "--only", "val", status=2)
    assert "val and LOC_val_solution.csv differ in 3 classes" in line and files(data) == before
    for part in "train", "val":
        line = prepare(data, data / part / "new", status=2)
        assert f"new lies in {data / part}: give a folder beside it" in line
    assert files(data) == before


def test_a_solution_saved_by_excel(tmp_path, prepare):
    write_kaggle(tmp_path / "kaggle")
    table = tmp_path / "kaggle" / CSV
    lines = table.read_text().splitlines()
    table.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*lines, lines[-1]]).encode())
    prepare(tmp_path / "kaggle", tmp_path / "data")
    assert held(tmp_path / "data", "val") == wanted("val")


@pytest.mark.parametrize("name", ["interval-{}-0.tar", "trainval_{}.tar", "{}0.tar", "a.{}.tar"])
def test_parts_of_tar_files_are_words_of_their_names(name, tmp_path, prepare):
    source = write_timm(tmp_path / "source")
    for word, part in ("train", "train"), ("validation", "val"):
        first, second = sorted(source.glob(f"*-{word}-*"))
        first.rename(source / name.format(part))
        second.rename(source / name.format(f"1-{part}"))
    prepare(source, tmp_path / "data")
    for part in "train", "val":
        assert held(tmp_path / "data", part) == wanted(part)


@pytest.mark.parametrize("form", ["parquet", "timm"])
def test_parts_made_one_by_one_have_the_same_classes(form, tmp_path, prepare):
    """Where the second's names say less."""
    val = [(f"{number}.JPEG", *rest) for number, (_, *rest) in enumerate(PICTURES["val"])]
    FORMS[form](tmp_path / "source", PICTURES | {"val": val})
    for part in "train", "val":
        prepare(tmp_path / "source", tmp_path / "data", "--only", part)
        assert held(tmp_path / "data", part) == wanted(part)
    shutil.rmtree(tmp_path / "data" / "train")
    other = [(name.replace(*IDS[:2]), *rest) for name, *rest in PICTURES["train"]]
    FORMS[form](tmp_path / "other", PICTURES | {"train": other})
    line = prepare(tmp_path / "other", tmp_path / "data", "--only", "train", status=2)
    assert "val has other classes than train: make both in one run" in line


@pytest.mark.parametrize("words", [("", "data"), (".", "")])
def test_an_empty_word_names_no_folder(words, prepare):
    assert prepare(*words, status=2).endswith(": it is empty")


def test_tar_files_of_one_folder_stay_where_they_are(tmp_path, prepare):
    source = write_timm(tmp_path / "source")
    before = {path.name for path in source.iterdir()}
    prepare(source, source, "--only", "train")
    prepare(source, source)
    assert {path.name for path in source.iterdir()} == before | {"train", "val"}
    assert held(source, "train") == wanted("train")
    assert sorted(image for _, image in held(source, "val")) == sorted(
        row[2] for row in PICTURES["val"]
    )


@pytest.mark.parametrize("form", ["parquet", "timm"])
def test_a_thousand_classes_are_imagenets(form, tmp_path, prepare):
    """Where no name says them; else what the names say. The table is as timm's, and in the order of
    torchvision's words, which look.py prints."""
    rows = [(f"{label}.JPEG", label, b"image") for label in range(1000)]
    table = importlib.resources.files("timm.data") / "_info" / "imagenet_synsets.txt"
    ids = table.read_text().split()
    words = torchvision.models.ResNet50_Weights.DEFAULT.meta["categories"]
    assert (ids[207], words[207]) == ("n02099601", "golden retriever")
    for change in (lambda label: "x", lambda label: ids[-1 - label]):
        named = [(f"{change(label)}_{label}.JPEG", label, image) for _, label, image in rows]
        folder = tmp_path / change(0)
        FORMS[form](folder / "source", {"train": named, "val": named})
        lines = prepare(folder / "source", folder / "data")
        expected = ids if change(0) == "x" else ids[::-1]
        assert image_files.open_source(folder / "data" / "val").classes == expected
        assert "train is not whole, or not ILSVRC2012's, which has 1281167 images" in lines[-3]
        assert "val is not whole, or not ILSVRC2012's, which has 50000 images" in lines[-1]


@pytest.mark.parametrize("name", [lambda part, name: None, lambda part, name: IDS[0] + name[9:]])
def test_classes_without_names_are_numbers(name, tmp_path, prepare):
    """Or all of one class by their names."""
    prepare(write_parquet(tmp_path / "source", name=name), tmp_path / "data")
    assert image_files.open_source(tmp_path / "data" / "train").classes == ["0", "1", "2"]


def test_parquet_goes_on_where_it_was_interrupted(tmp_path, prepare):
    source, data = write_parquet(tmp_path / "source"), tmp_path / "data"
    bad = source / "data" / "train-00001-of-00002.parquet"
    whole = bad.read_bytes()
    at = parquet.read_metadata(bad).row_group(0).column(0).data_page_offset
    bad.write_bytes(whole[:at] + bytes(64) + whole[at + 64 :])
    assert "train-00001-of-00002.parquet is damaged (" in prepare(source, data, status=2)
    first = data / "train.unfinished" / "train-00000-of-00002.tar"
    before = first.stat().st_mtime_ns
    assert sorted(path.name for path in data.iterdir()) == ["train.unfinished"]
    bad.write_bytes(whole)
    prepare(source, data)
    assert (data / "train" / first.name).stat().st_mtime_ns == before
    assert held(data, "train") == wanted("train") and held(data, "val") == wanted("val")
    assert sorted(os.listdir(data)) == ["train", "val"]


def test_images_of_all_parquet_files_are_numbered_on(tmp_path, prepare):
    source, data = tmp_path / "source", tmp_path / "data"
    source.mkdir()
    for number, count in enumerate((2, 3, 1, 2)):
        table = pyarrow.table(
            {"image": [{"bytes": b"x", "path": None}] * count, "label": [0] * count}
        )
        parquet.write_table(table, source / f"train-{number:05}-of-00004.parquet")
    prepare(source, data, "--only", "train")
    names = [name for tar in sorted((data / "train").glob("*.tar")) for name in members(tar)]
    assert [int(re.search(r"\d+", name)[0]) for name in names if "cls" not in name] == [*range(8)]


def test_parquet_is_read_a_few_rows_at_a_time(tmp_path, prepare):
    source, image = tmp_path / "source", {"bytes": os.urandom(200_000), "path": None}
    source.mkdir()
    table = pyarrow.table({"image": [image] * 200, "label": [0] * 200})
    parquet.write_table(table, source / "train-00000-of-00001.parquet", row_group_size=10)
    before = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(before)
    pyarrow.set_memory_pool(pool)
    try:
        lines = prepare(source, tmp_path / "data", "--only", "train")
        assert lines[-1].endswith("200 images of 1 classes")
    finally:
        pyarrow.set_memory_pool(before)
    assert 0 < pool.max_memory() < 20e6  # of 40e6 bytes


IMAGE, NONE = {"bytes": b"image", "path": "a.jpg"}, {"bytes": None, "path": "a.jpg"}
NOT_IMAGENETS = f"{CSV} is not ImageNet's, which has ImageId,"
COLUMNS = "has the columns image, label; needed are image, a struct of"
ROW, FILES, HEAD = "row 1 has no image or no class", "data/train*", b"ImageId,PredictionString\n"
# (form, files of it, what is done to them: columns for parquet, or as damage() says, message)
FAULTS = [
    ("kaggle", CSV, None, f"{CSV}, which Kaggle has beside ILSVRC/"),
    ("kaggle", CSV, HEAD + b"fd162df2a4fdb29d,/m/05s2s 0.9 1 2 3 4\n", NOT_IMAGENETS),
    ("kaggle", CSV, b"id,breed\n000621fb3cbb32d8935728e48679680e,boxer\n", NOT_IMAGENETS),
    ("kaggle", CSV, HEAD, NOT_IMAGENETS),
    ("kaggle", CSV, HEAD + b"\xff\xfe,\x00\n", NOT_IMAGENETS),
    ("kaggle", CSV, lambda text: text.replace(b"02,", b"01,"), "has two classes for 1 images: get"),
    ("kaggle", f"{DATA}/val/*", None, "val holds neither classes nor *.JPEG: unzip Kaggle's file"),
    ("kaggle", f"{DATA}/val/*2.JPEG", None, "val lacks 1 images, as ILSVRC2012_val_00000002.JPEG"),
    ("kaggle", f"{DATA}/train/{IDS[1]}", None, f"train and {CSV} differ in 1 classes, as {IDS[1]}"),
    ("kaggle", f"{DATA}/val", None, "val is no folder: --only makes one part alone"),
    ("parquet", "data/train-00001*", -300, "00001-of-00002.parquet is cut off or damaged ("),
    ("parquet", FILES, {"img": [IMAGE], "fine": [1]}, "has the columns img, fine; needed are"),
    ("parquet", FILES, {"image": ["a.jpg"], "label": [1]}, COLUMNS),
    ("parquet", FILES, {"image": [IMAGE], "label": ["cat"]}, COLUMNS),
    ("parquet", FILES, {"image": [{"bytes": [b"image"]}], "label": [1]}, COLUMNS),
    ("parquet", FILES, {"image": [IMAGE] * 2, "label": [1, 10**12]}, ROW),
    ("parquet", FILES, {"image": [IMAGE] * 2, "label": [1, -1]}, ROW),
    ("parquet", FILES, {"image": [IMAGE, NONE], "label": [1, 1]}, ROW),
    ("parquet", FILES, {}, "there is no image in the files of train"),
    ("parquet", "data/train-00000*", None, "has 1 of the 2 train-*.parquet: get the rest, or"),
    ("parquet", "data/train-00000-of-00002 (1).parquet", b"", "(1).parquet, none of the 2 train-*"),
    ("parquet", "data/val*", None, "has none of the val*.parquet: get them, or --only"),
    ("parquet", "../data/train/cat/0", b"", "data/train is there, without index.npz: give another"),
    ("timm", "train-val.tar", b"", "train-val.tar: is it of train or of val? Rename it"),
    ("timm", "*train-0001.tar", 1500, "0001.tar is no uncompressed, whole tar file of images"),
    ("timm", "*val*", None, "has no *val*.tar: get them, or --only"),
    ("timm", "../data/train/cat/0", b"", "data/train holds cat, not of "),
    ("tars", DEVKIT, None, f"has no {DEVKIT}, which names the classes: image-net.org has"),
    ("tars", DEVKIT, -9, f"{DEVKIT} is cut off or damaged ("),
    # Of the checksum, which tarfile does not read: any other bit changes it.
    ("tars", DEVKIT, flip(-6), f"{DEVKIT} is cut off or damaged ("),
    ("tars", DEVKIT, gzip.compress(bytes(1024), mtime=0), f"{DEVKIT} is cut off or damaged ("),
    ("tars", VAL, None, "img_val.tar: --only val and --only train make one part alone"),
]


@pytest.mark.parametrize(("form", "pattern", "how", "message"), FAULTS)
def test_bad_input_ends_in_one_line(form, pattern, how, message, tmp_path, prepare):
    source, data = tmp_path / "source", tmp_path / "data"
    FORMS[form](source)
    for path in [*source.glob(pattern)] or [source / pattern]:
        if isinstance(how, dict):
            table = pyarrow.table(how or {"image": [IMAGE], "label": [1]})
            parquet.write_table(table[: len(how)], path)
        else:
            damage(path, how)
    before = files(source)
    assert message in prepare(source, data, status=2)
    assert files(source) == before
    assert not [path for path in data.rglob("*") if path.is_symlink() and form == "timm"]
    if pattern.endswith(("val", "/val*", "*val*", VAL)):  # what is there can be had
        lines = prepare(source, data, "--only", "train")
        assert lines[-1] == f"{data}/train: 12 images of 3 classes"


def test_folders_without_imagenet_and_parquet_without_its_library(tmp_path, prepare, monkeypatch):
    line = prepare(tmp_path / "absent", tmp_path / "data", status=2)
    assert "absent is no folder: give the one that holds ImageNet's files" in line
    line = prepare(tmp_path, tmp_path / "data", status=2)
    assert "holds neither ILSVRC2012_img_*.tar, ILSVRC/Data/CLS-LOC, train-*.parquet nor" in line
    write_parquet(tmp_path / "source")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    line = prepare(tmp_path / "source", tmp_path / "data", status=2)
    assert "data holds parquet: pip install pyarrow" in line


# ----------------------------------------------------------------------- image-net.org's tar files


def cut_between_images(content):
    """Returns a tar file's bytes up to its third member, which tarfile takes for whole."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return content[: tar.getmembers()[2].offset]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (TRAIN, None, f"{TRAIN}: {IDS[1]}.tar in it is cut off or damaged: get it again"),
        (TRAIN, cut_between_images, f"{TRAIN}: {IDS[1]}.tar in it is cut off or damaged: get it"),
        (TRAIN, lambda content: None, f"train and {DEVKIT} differ in 1 classes, as {IDS[1]}"),
        (VAL, None, "the tar file of val is cut off or damaged ("),
        (VAL, lambda content: None, "img_val.tar lacks 1 images, as ILSVRC2012_val_00000002.JPEG"),
    ],
)
def test_an_interrupted_unpacking_goes_on(name, change, message, tmp_path, prepare):
    """What is cut off does not get its name; with the whole tar file, the rest comes, and what a
    power loss has emptied."""
    write_tars(tmp_path / "tars")
    path, part = tmp_path / "tars" / name, "train" if name == TRAIN else "val"
    words = path.parent, tmp_path / "data", "--only", part
    whole = path.read_bytes()
    if change:
        content = members(path)
        second = [*content][1]
        content[second] = change(content[second])
        write_tar(path, {name: inside for name, inside in content.items() if inside})
    else:
        damage(path, len(whole) // 2 + 99)
    assert message in prepare(*words, status=2)
    (unfinished,) = (tmp_path / "data").iterdir()
    assert unfinished.name == f"{part}.unfinished"
    damage(min(unfinished.glob("*/*.JPEG")), b"")
    path.write_bytes(whole)
    prepare(*words)
    assert held(tmp_path / "data", part) == wanted(part)


def with_second(change):
    """Returns a function for damage(): it changes the second tar file of a tar file."""

    def pack(content):
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            inside = {member.name: tar.extractfile(member).read() for member in tar}
        return tar_of(
            {
                name: change(each) if name == f"{IDS[1]}.tar" else each
                for name, each in inside.items()
            }
        )

    return pack


def tar_of(content, *links):
    """Returns a tar file of {name: bytes}, and of links (name, type, to what)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, inside in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(inside)
            tar.addfile(member, io.BytesIO(inside))
        for name, kind, to in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, to
            tar.addfile(member)
    return file.getvalue()


GUNZIP = "is compressed: gunzip < FILE > OTHER, and put OTHER in the place of FILE"
CAT = "goes on after its end: join"
LINK = "is a link: pack it by tar --dereference --hard-dereference"


def linked(content):
    """Returns a class's tar file whose last image is a link to its first."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        inside = {member.name: tar.extractfile(member).read() for member in tar}
    *others, last = inside
    return tar_of({name: inside[name] for name in others}, (last, tarfile.LNKTYPE, others[0]))


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        (TRAIN, gzip.compress, f"{TRAIN} {GUNZIP}"),
        (VAL, gzip.compress, f"{VAL} {GUNZIP}"),
        (TRAIN, with_second(gzip.compress), f"{TRAIN}: {IDS[1]}.tar in it {GUNZIP}"),
        (TRAIN, with_second(lambda tar: tar + tar), f"{TRAIN}: {IDS[1]}.tar in it {CAT}"),
        (TRAIN, lambda tar: tar + tar, f"{TRAIN} {CAT}"),
        (VAL, lambda tar: tar + b"more", f"{VAL} {CAT}"),
        (TRAIN, with_second(linked), LINK),
        (TRAIN, cut_between_images, "train is cut off or damaged (it is cut off): get it again"),
    ],
)
def test_what_would_be_left_out_of_a_tar(name, how, message, tmp_path, prepare):
    """With whole tar files, the rest comes."""
    write_tars(tmp_path / "tars")
    path, part = tmp_path / "tars" / name, "train" if name == TRAIN else "val"
    whole, words = path.read_bytes(), (path.parent, tmp_path / "data", "--only", part)
    damage(path, how)
    assert message in prepare(*words, status=2)
    if how == gzip.compress:
        typed = re.search("gunzip .* OTHER(?=,)", message)[0].replace("FILE", name)
        run(["sh", "-c", f"{typed} && mv OTHER {name}"], path.parent)
    else:
        path.write_bytes(whole)
    prepare(*words)
    assert held(tmp_path / "data", part) == wanted(part)


@pytest.mark.parametrize("devkit", [True, False])
def test_tars_that_are_packed_under_other_names(devkit, tmp_path, prepare):
    """As a browser may save them. They are read when unpacked as the line says."""
    write_tars(tmp_path / "tars")
    if not devkit:
        (tmp_path / "tars" / DEVKIT).rename(tmp_path / DEVKIT)
    for name in TRAIN, VAL:
        path = tmp_path / "tars" / name
        write_file(path.with_name(f"{name}.gz"), gzip.compress(path.read_bytes()))
        path.unlink()
    line = prepare(tmp_path / "tars", tmp_path / "data", status=2)
    assert f"{TRAIN}.gz: only *.tar are: gunzip, rename or move them" in line
    run(["gunzip", f"{VAL}.gz"], tmp_path / "tars")
    if devkit:  # what is not needed may stay packed
        prepare(tmp_path / "tars", tmp_path / "data", "--only", "val")
    run(["gunzip", f"{TRAIN}.gz"], tmp_path / "tars")
    if not devkit:
        (tmp_path / DEVKIT).rename(tmp_path / "tars" / DEVKIT)
    prepare(tmp_path / "tars", tmp_path / "data")
    assert held(tmp_path / "data", "train") == wanted("train")


def test_folders_in_tars_are_passed_over(tmp_path, prepare):
    write_tars(tmp_path / "tars")
    for name in TRAIN, VAL:
        content = members(tmp_path / "tars" / name)
        (tmp_path / "tars" / name).write_bytes(tar_of(content, ("x", tarfile.DIRTYPE, "")))
    prepare(tmp_path / "tars", tmp_path / "data")
    for part in "train", "val":
        assert held(tmp_path / "data", part) == wanted(part)


@pytest.mark.parametrize(
    "other", ["imagenet1k-train-9.tar.gz", "imagenet1k-train-9.TBZ2", "train/9.TAR"]
)
def test_other_tars_of_a_part_are_not_left_out(other, tmp_path, prepare):
    source = tmp_path / "source"
    write_timm(source)
    if other.startswith("train/"):
        for path in [*source.glob("*train*.tar")]:
            (source / "train").mkdir(exist_ok=True)
            path.rename(source / "train" / path.name)
    (source / other).touch()
    line = prepare(source, tmp_path / "data", status=2)
    assert f"1 tar files would not be read, as {source}/{other}: only *.tar are" in line
    prepare(source, tmp_path / "data", "--only", "val")
    (source / other).unlink()
    prepare(source, tmp_path / "data", "--only", "train")


def test_a_flat_val_is_sorted_also_without_its_tar(tmp_path, prepare):
    """By either's table of classes."""
    write_tars(tmp_path / "tars")
    write_kaggle(tmp_path / "kaggle")
    folder = tmp_path / "data" / "val"
    for name, content in members(tmp_path / "tars" / VAL).items():
        write_file(folder / name, content)
    (tmp_path / "tars" / VAL).unlink()
    (folder / "valprep.sh").write_text("#!/bin/bash")  # which many have there
    words = tmp_path / "tars", tmp_path / "data", "--only", "val"
    prepare(*words)
    assert held(tmp_path / "data", "val") == wanted("val") and (folder / "valprep.sh").exists()
    shutil.rmtree(folder / IDS[1])
    for table in DEVKIT, CSV:
        assert f"val and {table} differ in 1 classes, as {IDS[1]}" in prepare(*words, status=2)
        (tmp_path / "tars" / DEVKIT).unlink(missing_ok=True)
        shutil.copy(tmp_path / "kaggle" / CSV, tmp_path / "tars")


def test_an_unpacking_ends_by_ctrl_c_in_one_line(tmp_path, prepare):
    write_tars(tmp_path / "tars")
    path, data = tmp_path / "tars" / TRAIN, tmp_path / "data"
    path.rename(tmp_path / "whole")
    os.mkfifo(path)  # it waits for
    words = [sys.executable, ROOT / "tools" / "prepare_imagenet.py", "tars", "data"]
    words, begun = [*words, "--only", "train"], (data / "train.unfinished").exists
    line = "prepare_imagenet.py: interrupted: start it again, and it goes on\n"
    assert interrupted(words, begun, signal.SIGINT, tmp_path) == (130, line)
    (tmp_path / "whole").rename(path)
    prepare(path.parent, data, "--only", "train")
    assert held(data, "train") == wanted("train")


@pytest.mark.parametrize("form", FORMS)
def test_scripts_say_what_makes_a_dir_of_each_form(form, tmp_path, complaint_here):
    FORMS[form](tmp_path / "source")
    for folder in [tmp_path / "source", *(tmp_path / "source").rglob("CLS-LOC")][::-1]:
        line = complaint_here("imagenet_nd.py", *TINY, folder)
        assert f"error: {folder}/" in line and "tools/prepare_imagenet.py makes" in line


# -------------------------------------------------------------------------- functions by themselves


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("prepare_imagenet")


@pytest.mark.parametrize(
    ("names", "message"),
    [("ab", None), ("abc", "differ in 1 classes, as c"), ("bd", "differ in 2 classes, as a")],
)
def test_a_part_has_the_table_s_classes_and_no_other(names, message, tmp_path, program):
    def fill(folder):
        for name in names:
            (folder / name).mkdir()

    if message is None:
        program.prepare(tmp_path, "train", {*"ab"}, Path("table.csv"), fill)
        assert (tmp_path / "train").is_dir()
        return
    with pytest.raises(program.BadInput, match=f"train and table.csv {message}"):
        program.prepare(tmp_path, "train", {*"ab"}, Path("table.csv"), fill)
    assert not (tmp_path / "train").exists()


@pytest.mark.parametrize(
    ("part", "count", "classes", "others"),
    [
        ("val", 50_000, 1000, None),
        ("val", 49_999, 1000, 50_000),
        ("val", 50_001, 1000, 50_000),
        ("val", 1_281_167, 1000, 50_000),
        ("train", 1_281_167, 1000, None),
        ("train", 50_000, 1000, 1_281_167),
        ("train", 7, 999, None),
        ("train", 7, 1001, None),
    ],
)
def test_what_is_not_imagenet_whole_is_said(part, count, classes, others, program, capsys):
    """Of a thousand classes; of others nobody expects as many images."""
    program.report(part, Path("x"), count, classes)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"x: {count} images of {classes} classes"
    line = f"x is not whole, or not ILSVRC2012's, which has {others} images"
    assert rest == ([] if others is None else [line])


@pytest.mark.parametrize("below", ["ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "CLS-LOC", "."])
@pytest.mark.parametrize("part", ["train", "val"])
def test_kaggle_s_folder_is_found_from_each_above_it(below, part, tmp_path, program):
    assert program.find_kaggle(tmp_path) is None
    (tmp_path / below / part).mkdir(parents=True)
    assert program.find_kaggle(tmp_path) == tmp_path / below


@pytest.mark.parametrize("name", [TRAIN, VAL, DEVKIT])
def test_one_tar_file_of_image_net_org_s_tells_its_form(name, tmp_path, program):
    with pytest.raises(program.BadInput, match="holds neither ILSVRC2012_img"):
        program.find_way(tmp_path)
    (tmp_path / name).touch()
    assert program.find_way(tmp_path) is program.from_tars


def test_tar_files_whose_names_say_the_part_come_before_its_folder(tmp_path, program):
    for name in "train/a.tar", "train/val-0.tar", "val/b.tar", "validation-0.tar", "trainer.tar":
        write_file(tmp_path / name, b"")
    found = {part: program.find_tars(tmp_path, part) for part in ("train", "val")}
    assert found["train"] == [tmp_path / "train" / "a.tar", tmp_path / "train" / "val-0.tar"]
    assert found["val"] == [tmp_path / "validation-0.tar"]


def parquet_of(path, *rows, binary=None, number=None):
    """Writes rows (bytes, name, label) as Hugging Face has them; returns the path."""
    binary, number = binary or pyarrow.binary(), number or pyarrow.int64()
    inside = pyarrow.struct([("bytes", binary), ("path", pyarrow.string())])
    schema = pyarrow.schema([("image", inside), ("label", number)])
    made = [{"image": {"bytes": a, "path": b}, "label": label} for a, b, label in rows]
    parquet.write_table(pyarrow.Table.from_pylist(made, schema), path)
    return path


@pytest.mark.parametrize("binary", [pyarrow.binary(), pyarrow.large_binary()])
@pytest.mark.parametrize("number", [pyarrow.int64(), pyarrow.int8(), pyarrow.uint16()])
def test_parquet_has_bytes_and_whole_numbers_of_any_width(binary, number, tmp_path, program):
    path = parquet_of(tmp_path / "x.parquet", (b"x", "a", 7), binary=binary, number=number)
    assert program.open_parquet(path).metadata.num_rows == 1


@pytest.mark.parametrize("number", [pyarrow.float32(), pyarrow.string(), pyarrow.bool_()])
def test_parquet_of_other_numbers_is_refused(number, tmp_path, program):
    path = parquet_of(tmp_path / "x.parquet", number=number)
    with pytest.raises(program.BadInput, match="has the columns image, label; needed are image, a"):
        program.open_parquet(path)


def test_rows_of_parquet_have_keys_and_suffixes(tmp_path, program):
    """Suffixes as the scripts know them, a name's odd characters as lines; .jpg where none says."""
    shards = importlib.import_module("make_shards")
    names = ["n01_2.JPEG", "a b.PNG", "x.y.Bmp", "c.gif", None, ""]
    rows = [(b"%d" % n, name, n) for n, name in enumerate(names)]
    path = parquet_of(tmp_path / "x.parquet", *rows)
    found = [*program.read_parquet(path, program.open_parquet(path), 98, shards)]
    assert found == [
        ("00000098_n01_2", ".jpeg", b"0", 0),
        ("00000099_a_b", ".png", b"1", 1),
        ("00000100_x_y", ".bmp", b"2", 2),
        ("00000101_c", ".jpg", b"3", 3),
        ("00000102_", ".jpg", b"4", 4),
        ("00000103_", ".jpg", b"5", 5),
    ]


@pytest.mark.parametrize("bad", [(b"", "a", 1), (None, "a", 1), (b"x", "a", -1), (b"x", "a", None)])
def test_a_row_without_an_image_or_a_class_is_named_by_its_place_in_the_file(
    bad, tmp_path, program
):
    shards = importlib.import_module("make_shards")
    path = parquet_of(tmp_path / "x.parquet", (b"x", "a", 0), (b"x", "a", 999_999), bad)
    rows = program.read_parquet(path, program.open_parquet(path), 700, shards)
    assert [next(rows)[3], next(rows)[3]] == [0, 999_999]
    with pytest.raises(program.BadInput, match="x.parquet: row 2 has no image or no class"):
        next(rows)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([0, 1, 2], None),
        ([0, 2], "2 of the 3 train-"),
        ([0, 1, 5], "train-5-of-3.parquet, none of the 3 train-"),
        ([0, 1, 2, 3], "train-3-of-3.parquet, none of the 3 train-"),
    ],
)
def test_parquet_files_of_a_set_are_there_each_once(numbers, message, program):
    paths = [Path("x") / f"train-{number}-of-3.parquet" for number in numbers]
    if message is None:
        program.check_numbers(paths)
        program.check_numbers([Path("a.parquet"), Path("b.parquet")])
        return
    with pytest.raises(program.BadInput, match=f"^x has {message}"):
        program.check_numbers(paths)


def test_keys_of_a_part_go_on_from_file_to_file(tmp_path, prepare):
    data = tmp_path / "data"
    lines = prepare(write_parquet(tmp_path / "source"), data)
    assert f"{data}: classes {IDS[0]} to {IDS[-1]}" in lines
    keys = [
        int(name[:8])
        for path in sorted((data / "train").glob("*.tar"))
        for name in members(path)
        if name.endswith(".cls")
    ]
    assert keys == [*range(12)]


@pytest.mark.parametrize("count", [1, 6, 8, 20])
def test_a_shard_of_another_parquet_file_is_not_kept(count, tmp_path, prepare):
    """Of fewer or of more images."""
    source, data = write_parquet(tmp_path / "source"), tmp_path / "data"
    content = {f"{n}.{kind}": b"0" for n in range(count) for kind in ("jpg", "cls")}
    name = "train-00000-of-00002"
    write_tar(data / "train.unfinished" / f"{name}.tar", content)
    line = prepare(source, data, status=2)
    assert line.strip().endswith(f"{name}.tar is of another {name}.parquet: remove it")


def test_links_that_were_there_stay_where_others_fail(tmp_path, prepare):
    source, data = write_timm(tmp_path / "source"), tmp_path / "data"
    first, second = sorted(source.glob("*train*.tar"))
    (data / "train").mkdir(parents=True)
    (data / "train" / first.name).symlink_to(first)
    damage(second, 1500)
    prepare(source, data, "--only", "train", status=2)
    assert [path.name for path in (data / "train").iterdir()] == [first.name]


def test_an_error_without_a_file_names_the_folder_that_is_written(program, prepare, monkeypatch):
    """As of a full disk."""
    for error, status, said in (
        (OSError(errno.ENOSPC, "no space"), 1, "D: [Errno 28] no space"),
        (OSError(errno.ENOSPC, "no space", "S/x"), 1, "[Errno 28] no space: 'S/x'"),
        (ValueError("what is odd\nand more"), 2, "what is odd"),
    ):
        monkeypatch.setattr(program, "find_way", mock.Mock(side_effect=error))
        assert prepare("S", "D", status=status).strip() == said


def test_an_image_that_a_power_loss_has_emptied_is_unpacked_again(tmp_path, program):
    """Where all are whole, the tar file is not read."""
    write_tars(tmp_path / "tars")
    truth = {name: IDS[label] for name, label, _ in PICTURES["val"]}
    words = tmp_path / "tars", tmp_path / "val", truth
    (tmp_path / "val").mkdir()
    program.unpack_val(*words)
    whole = {path: path.read_bytes() for path in (tmp_path / "val").glob("*/*")}
    assert len(whole) == 6 and all(whole.values())
    for path in whole:
        path.write_bytes(b"")
        program.unpack_val(*words)
        assert {path: path.read_bytes() for path in whole} == whole
    (tmp_path / "tars" / VAL).unlink()
    program.unpack_val(*words)


@pytest.mark.parametrize(
    ("text", "line"),
    [("", "ValueError"), (" \n", "ValueError"), ("\n\n cut off\nat 3", "cut off"), ("a", "a")],
)
def test_an_error_of_parquet_may_have_odd_texts(text, line, program, tmp_path, monkeypatch):
    def fail(*of_file, **options):
        raise ValueError(text)

    monkeypatch.setattr(parquet, "ParquetFile", fail)
    why = re.escape(f"x is cut off or damaged ({line}): get it again")
    with pytest.raises(program.BadInput, match=f"{why}$"):
        program.open_parquet(tmp_path / "x")
    batches = SimpleNamespace(iter_batches=fail)
    with pytest.raises(program.BadInput, match=re.escape(f"x is damaged ({line}): get it again")):
        list(program.read_parquet(tmp_path / "x", batches, 0, None))
