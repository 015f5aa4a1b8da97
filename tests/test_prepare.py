"""ImageNet in the forms that people have it: Kaggle's folder, Hugging Face's parquet, timm's tar
files; image-net.org's are in test_tools.py."""

import importlib.resources
import io
import json
import os
import shutil
import sys
import tarfile

import numpy as np
import PIL.Image
import pyarrow
import pytest
import torchvision
from conftest import checkpoint, command, run, scalars
from pyarrow import parquet

import imagenet_nd as nd

IDS = "n01440764", "n02110185", "n07753592"  # in ImageNet's order
TINY = "-a squeezenet1_1 --image-size 32 --val-resize 32 -b 4 -j 0 --epochs 1 --no-accel".split()
CSV = "LOC_val_solution.csv"


def pictures(train=4, val=2):
    """Returns {part: [(name of the file, class, JPEG)]}, all of which differ, in no order."""
    found, serial = {}, 0
    for part, count in ("train", train), ("val", val):
        rows = []
        for label in [*range(len(IDS))] * count:
            serial += 1
            pixels = np.random.default_rng(serial).integers(0, 256, (3, 4, 3), dtype=np.uint8)
            file = io.BytesIO()
            PIL.Image.fromarray(pixels).resize((40, 36)).save(file, "JPEG")
            name = f"{IDS[label]}_{serial}.JPEG"
            name = name if part == "train" else f"ILSVRC2012_val_{serial:08}.JPEG"
            rows.append((name, label, file.getvalue()))
        found[part] = rows
    return found


PICTURES = pictures()


def write_kaggle(folder):
    """Writes PICTURES as Kaggle's challenge has them, with a flat test/, whose classes are secret;
    returns the folder of train/."""
    data = folder / "ILSVRC" / "Data" / "CLS-LOC"
    lines = ["ImageId,PredictionString"]
    for name, label, content in PICTURES["train"]:
        (data / "train" / IDS[label]).mkdir(parents=True, exist_ok=True)
        (data / "train" / IDS[label] / name).write_bytes(content)
    for part in "val", "test":
        (data / part).mkdir()
        for name, _, content in PICTURES["val"]:
            (data / part / name.replace("val", part)).write_bytes(content)
    for name, label, _ in reversed(PICTURES["val"]):  # in an order of its own
        lines.append(f"{name.removesuffix('.JPEG')},{IDS[label]} 1 2 3 4 {IDS[label]} 5 6 7 8 ")
    (folder / CSV).write_text("\n".join(lines) + "\n")
    return data


def write_parquet(folder, columns=None, name=lambda part, name, label: name):
    """Writes PICTURES as Hugging Face has ImageNet, in two files a part, rows in groups of five."""
    (folder / "data").mkdir(parents=True)
    for part, title in ("train", "train"), ("val", "validation"):
        rows = PICTURES[part]
        for number, some in enumerate(
            (rows[:7], rows[7:]) if part == "train" else (rows[:2], rows[2:])
        ):
            image = [{"bytes": content, "path": name(part, each, at)} for each, at, content in some]
            made = columns or {"image": image, "label": [label for _, label, _ in some]}
            path = folder / "data" / f"{title}-{number:05}-of-00002.parquet"
            parquet.write_table(pyarrow.table(made), path, row_group_size=5)
    return folder


def add(tar, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def write_timm(folder, endings=("jpg", "cls", "json")):
    """Writes PICTURES as timm has ImageNet: jpg, cls and json, of both parts in one folder."""
    folder.mkdir(parents=True)
    for part, first in ("train", "imagenet1k-train-0000"), ("val", "imagenet1k-validation-00"):
        for number, some in enumerate((PICTURES[part][:3], PICTURES[part][3:])):
            with tarfile.open(folder / f"{first[:-1]}{number}.tar", "w") as tar:
                for at, (name, label, content) in enumerate(some):
                    about = json.dumps({"filename": name, "label": label, "width": 40})
                    held = {"jpg": content, "cls": b"%d" % label, "json": about.encode()}
                    for ending in endings:
                        add(tar, f"{first}-{number}{at:05}.{ending}", held[ending])
    (folder / "_info.json").write_text("{}")
    return folder


FORMS = {"kaggle": write_kaggle, "parquet": write_parquet, "timm": write_timm}


def held(folder, part):
    """Returns what the scripts read of a part: [(class, encoded image)], sorted."""
    source = nd.open_source(folder / part)
    return sorted(
        (source.classes[label], source.read(at)) for at, label in enumerate(source.target.tolist())
    )


def wanted(part):
    return sorted((IDS[label], content) for _, label, content in PICTURES[part])


@pytest.fixture
def prepare(call_tool):
    """prepare(*words, status=0): returns the lines printed; where the status is 2, the one line of
    stderr."""

    def call(*words, status=0):
        output, errors = call_tool("prepare_imagenet", *words, status=status)
        if status:
            (line,) = errors.splitlines()
            return line.removeprefix("prepare_imagenet.py: error: ")
        return output.splitlines()

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
    assert form == "parquet" or any(str(source) in line and "must stay" in line for line in lines)
    for part in "train", "val":
        assert held(data, part) == wanted(part)
        assert nd.open_source(data / part).classes == [*IDS]
    assert files(source) == before and sorted(os.listdir(data)) == ["train", "val"]
    if form != "parquet":  # links: nothing is copied, and a folder with both can be moved
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


def test_what_came_of_each_form_is_trained_on(tmp_path, prepare, call_tool):
    """A run goes on from one form to the others, since their classes have the same names; and
    look.py measures the same on all."""
    for form, write in FORMS.items():
        write(tmp_path / form)
        prepare(tmp_path / form, tmp_path / f"from_{form}")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "train").symlink_to(tmp_path / "from_parquet" / "train")
    (mixed / "val").symlink_to(tmp_path / "from_timm" / "val")
    words = [*command("imagenet_nd.py"), *TINY]
    run([*words, "--log-dir", "first", tmp_path / "from_kaggle"], tmp_path)
    model = checkpoint(tmp_path / "first")
    more = "--log-dir", "second", "--epochs", "2", "--resume", model, mixed
    assert "all epochs are done" in run([*words, *more], tmp_path)
    assert len(scalars(tmp_path / "second", "Loss/val")) == 2, "the first epoch is validated again"
    found = set()
    for form in FORMS:
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
    with pytest.MonkeyPatch.context() as patch:
        val = [(f"{number}.JPEG", *rest) for number, (_, *rest) in enumerate(PICTURES["val"])]
        patch.setattr(sys.modules[__name__], "PICTURES", PICTURES | {"val": val})
        FORMS[form](tmp_path / "source")
    for part in "train", "val":
        prepare(tmp_path / "source", tmp_path / "data", "--only", part)
        assert held(tmp_path / "data", part) == wanted(part)
    shutil.rmtree(tmp_path / "data" / "train")
    with pytest.MonkeyPatch.context() as patch:
        other = [(name.replace(*IDS[:2]), *rest) for name, *rest in PICTURES["train"]]
        patch.setattr(sys.modules[__name__], "PICTURES", PICTURES | {"train": other})
        FORMS[form](tmp_path / "other")
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
        with pytest.MonkeyPatch.context() as patch:
            named = [(f"{change(label)}_{label}.JPEG", label, image) for _, label, image in rows]
            patch.setattr(sys.modules[__name__], "PICTURES", {"train": named, "val": named})
            folder = tmp_path / change(0)
            FORMS[form](folder / "source")
            lines = prepare(folder / "source", folder / "data")
        expected = ids if change(0) == "x" else ids[::-1]
        assert nd.open_source(folder / "data" / "val").classes == expected
        assert "train is not whole, or not ILSVRC2012's, which has 1281167 images" in lines[-3]
        assert "val is not whole, or not ILSVRC2012's, which has 50000 images" in lines[-1]


def test_classes_without_names_are_numbers(tmp_path, prepare):
    source = write_parquet(tmp_path / "source", name=lambda part, name, label: None)
    prepare(source, tmp_path / "data")
    assert nd.open_source(tmp_path / "data" / "train").classes == ["0", "1", "2"]
    source = write_parquet(tmp_path / "odd", name=lambda part, name, label: IDS[0] + name[9:])
    prepare(source, tmp_path / "other")  # all of one class by their names
    assert nd.open_source(tmp_path / "other" / "train").classes == ["0", "1", "2"]


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


def test_parquet_is_read_a_few_rows_at_a_time(tmp_path, prepare):
    source, image = tmp_path / "source", {"bytes": os.urandom(200_000), "path": None}
    source.mkdir()
    table = pyarrow.table({"image": [image] * 200, "label": [0] * 200})
    parquet.write_table(table, source / "train-00000-of-00001.parquet", row_group_size=10)
    before = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(before)
    pyarrow.set_memory_pool(pool)
    try:
        assert prepare(source, tmp_path / "data", "--only", "train")[-1].endswith(
            "200 images of 1 classes"
        )
    finally:
        pyarrow.set_memory_pool(before)
    assert 0 < pool.max_memory() < 20e6  # of 40e6 bytes


# Form: {fault: what is said of it}.
FAULTS = {
    "kaggle": {
        "no csv": "LOC_val_solution.csv, which Kaggle has beside ILSVRC/",
        "csv of another competition": "LOC_val_solution.csv is not ImageNet's, which has ImageId,",
        "other columns": "LOC_val_solution.csv is not ImageNet's, which has ImageId,",
        "csv of nothing": "LOC_val_solution.csv is not ImageNet's, which has ImageId,",
        "two classes": "LOC_val_solution.csv has two classes for 1 images: get it again",
        "an empty val": "val holds neither classes nor *.JPEG: unzip Kaggle's file anew",
        "csv of bytes": "LOC_val_solution.csv is not ImageNet's, which has ImageId,",
        "a missing image": "val lacks 1 images, as ILSVRC2012_val_00000014.JPEG: get it again",
        "a missing class": "train and LOC_val_solution.csv differ in 1 classes, as n02110185",
        "no val": "val is no folder: --only makes one part alone",
    },
    "parquet": {
        "no pyarrow": "data holds parquet: pip install pyarrow",
        "truncated": "train-00001-of-00002.parquet is cut off or damaged (",
        "other columns": "has the columns img, fine_label; needed are image, a struct of",
        "image is a path": "has the columns image, label; needed are image, a struct of",
        "labels are words": "has the columns image, label; needed are image, a struct of",
        "bytes are lists": "has the columns image, label; needed are image, a struct of",
        "too large a class": "parquet: row 1 has no image or no class",
        "no images": "there is no image in the files of train",
        "a file twice": "has train-00000-of-00002 (1).parquet, none of the 2 train-*.parquet: move",
        "no class": "parquet: row 1 has no image or no class",
        "no bytes": "parquet: row 1 has no image or no class",
        "a missing file": "has 1 of the 2 train-*.parquet: get the rest, or --only",
        "no val": "has none of the val*.parquet: get them, or --only",
        "a folder in the way": "data/train is there, without index.npz: give another DIR",
    },
    "timm": {
        "no classes": "imagenet1k-train-0000.tar: 3 without an image or a .cls, as imagenet1k-",
        "of both": "train-val.tar: is it of train or of val? Rename it",
        "truncated": "imagenet1k-train-0001.tar is no uncompressed, whole tar file of images",
        "no val": "has no *val*.tar: get them, or --only",
        "a folder in the way": "data/train holds cat, not of ",
    },
    "nothing": {
        "empty": "holds neither ILSVRC2012_img_*.tar, ILSVRC/Data/CLS-LOC, train-*.parquet nor",
        "absent": "is no folder: give the one that holds ImageNet's files",
    },
}


def plant(form, fault, source, monkeypatch):
    """Writes a form with a fault in it."""
    if form == "nothing":
        return source.mkdir() if fault == "empty" else None
    if form == "timm":
        write_timm(source, ["jpg", "json"] if fault == "no classes" else ["jpg", "cls", "json"])
    elif form == "parquet":
        image, more = {"bytes": b"image", "path": "a.jpg"}, {"bytes": None, "path": "a.jpg"}
        columns = {
            "other columns": {"img": [image], "fine_label": [1]},
            "image is a path": {"image": ["a.jpg"], "label": [1]},
            "labels are words": {"image": [image], "label": ["cat"]},
            "bytes are lists": {"image": [{"bytes": [b"image"]}], "label": [1]},
            "too large a class": {"image": [image, image], "label": [1, 10**12]},
            "no images": {"image": pyarrow.array([image])[:0], "label": pyarrow.array([1])[:0]},
            "no class": {"image": [image, image], "label": [1, -1]},
            "no bytes": {"image": [image, more], "label": [1, 1]},
        }
        write_parquet(source, columns.get(fault))
    else:
        data = write_kaggle(source)
    if fault == "no csv":
        (source / CSV).unlink()
    if fault == "csv of another competition":
        (source / CSV).write_text(
            "ImageId,PredictionString\nfd162df2a4fdb29d,/m/05s2s 0.9 1 2 3 4\n"
        )
    if fault == "other columns" and form == "kaggle":
        (source / CSV).write_text("id,breed\n000621fb3cbb32d8935728e48679680e,boxer\n")
    if fault == "csv of nothing":
        (source / CSV).write_text("ImageId,PredictionString\n")
    if fault == "two classes":
        with open(source / CSV, "a") as file:
            file.write(f"ILSVRC2012_val_00000013,{IDS[2]} 1 2 3 4\n")
    if fault == "an empty val":
        for path in (data / "val").iterdir():
            path.unlink()
    if fault == "a file twice":
        (bad,) = source.rglob("train-00001*")
        bad.rename(bad.with_name("train-00000-of-00002 (1).parquet"))
    if fault == "of both":
        (source / "train-val.tar").touch()
    if fault == "csv of bytes":
        (source / CSV).write_bytes(b"ImageId,PredictionString\n\xff\xfe,\x00\n")
    if fault == "a missing image":
        (data / "val" / PICTURES["val"][1][0]).unlink()
    if fault == "a missing class":
        shutil.rmtree(data / "train" / IDS[1])
    if fault == "no val":
        for path in source.rglob("*val*" if form != "kaggle" else "val"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if fault == "no pyarrow":
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    if fault == "truncated":
        (bad,) = source.rglob("*train-*0001*")
        bad.write_bytes(bad.read_bytes()[: 1500 if form == "timm" else -300])
    if fault == "a missing file":
        (source / "data" / "train-00000-of-00002.parquet").unlink()
    if fault == "a folder in the way":
        (source.with_name("data") / "train" / "cat").mkdir(parents=True)


@pytest.mark.parametrize(
    ("form", "fault"), [(form, fault) for form, faults in FAULTS.items() for fault in faults]
)
def test_bad_input_ends_in_one_line(form, fault, tmp_path, prepare, monkeypatch):
    source, data = tmp_path / "source", tmp_path / "data"
    plant(form, fault, source, monkeypatch)
    before = files(source) if source.exists() else {}
    assert FAULTS[form][fault] in prepare(source, data, status=2)
    assert not source.exists() or files(source) == before
    assert not [path for path in data.rglob("*") if path.is_symlink() and form == "timm"]
    if fault == "no val":  # what is there can be had
        assert (
            prepare(source, data, "--only", "train")[-1] == f"{data}/train: 12 images of 3 classes"
        )


@pytest.mark.parametrize("form", FORMS)
def test_scripts_say_what_makes_a_dir_of_each_form(form, tmp_path, complaint_here):
    FORMS[form](tmp_path / "source")
    for folder in [tmp_path / "source", *(tmp_path / "source").rglob("CLS-LOC")][::-1]:
        line = complaint_here("imagenet_nd.py", *TINY, folder)
        assert f"error: {folder}/" in line and "tools/prepare_imagenet.py makes" in line
