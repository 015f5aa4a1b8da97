"""tools/prepare_folder.py: DIR made of tables, in the forms of public data sets, and of folders."""

import collections
import csv
import errno
import hashlib
import io
import json
import os
import re
import shutil
import time

import numpy as np
import PIL.Image
import pytest

from trainparts.images import decoding, image_files

OTHER = "give another DIR, or remove it first, if this program made it"
ROWS = [(f"{n}.jpg", ("cat", "dog", "owl")[n % 3]) for n in range(12)]


def write_photo(path, number=0):
    """Writes a JPEG that differs from those of other numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", (8, 6), (20 * number % 256, number // 12, 90)).save(path, "JPEG")
    return path


def write_csv(path, rows, header=("file", "label"), delimiter=",", encoding="utf-8"):
    with open(path, "w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with images/0.jpg to images/11.jpg, in which the program is started."""
    for number in range(12):
        write_photo(tmp_path / "images" / f"{number}.jpg", number)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def prepare(call_tool):
    """prepare(*words, status=0): returns the lines of stdout; of stderr where the status is 2."""

    def call(*words, status=0):
        output, printed = call_tool("prepare_folder", *words, status=status)
        return (printed if status else output).splitlines()

    return call


def held(folder, part):
    """Returns what the scripts read of a part: [(class, encoded image)], sorted."""
    source = image_files.open_source(folder / part, allow_empty=True)
    pairs = enumerate(source.target.tolist())
    return sorted((source.classes[label], source.read(at)) for at, label in pairs)


def wanted(folder, rows, images="images"):
    return sorted((label, (folder / images / file).read_bytes()) for file, label in rows)


def draws(key, share):
    """Returns whether --val takes a path or a group."""
    return int(hashlib.sha256(key.encode()).hexdigest()[:16], 16) / 16**16 < share


# ------------------------------------------------------------------------------------------ tables


def one_hot(rows):
    return [(file, *(int(label == tag) for tag in ("cat", "dog", "owl"))) for file, label in rows]


def write_coco(path, rows):
    names = sorted({label for _, label in rows}, reverse=True)
    categories = [{"id": 7 + n, "name": name, "family": name[0]} for n, name in enumerate(names)]
    images = [{"id": 100 - n, "file_name": file, "width": 8} for n, (file, _) in enumerate(rows)]
    kinds = {each["name"]: each["id"] for each in categories}
    pairs = [
        {"id": n, "image_id": 100 - n, "category_id": kinds[label]}
        for n, (_, label) in enumerate(rows)
    ]
    content = {"images": images, "annotations": pairs[::-1], "categories": categories}
    path.write_text(json.dumps(content))


def write_lines(path, rows):
    path.write_text("".join(f"{json.dumps({'file': f, 'label': label})}\n" for f, label in rows))


# {name: (file, how it is written, options)}
FORMS = {
    "csv": ("t.csv", write_csv, ""),
    "mark": ("t.csv", lambda at, rows: write_csv(at, rows, encoding="utf-8-sig"), ""),
    "tabs": ("t.tsv", lambda at, rows: write_csv(at, rows, delimiter="\t"), ""),
    "semicolons": ("t.csv", lambda at, rows: write_csv(at, rows, delimiter=";"), ""),
    "bars": ("t.txt", lambda at, rows: write_csv(at, rows, delimiter="|"), ""),
    "blanks": (
        "t.csv",
        lambda at, rows: at.write_text(
            "\n file , label \n\n" + "".join(f" {f} , {label} \n" for f, label in rows) + "\n , \n"
        ),
        "",
    ),
    "columns": (
        "t.csv",
        lambda at, rows: write_csv(
            at, [(n, label, f, "a, b") for n, (f, label) in enumerate(rows)], ("", "dx", "id", "x")
        ),
        "--file id --label dx",
    ),
    "no suffix": ("t.csv", lambda at, rows: write_csv(at, [(f[:-4], n) for f, n in rows]), ""),
    "above": (
        "t.csv",
        lambda at, rows: write_csv(at, [(f"images/./{f}", n) for f, n in rows]),
        "--images .",
    ),
    "backslashes": (
        "t.csv",
        lambda at, rows: write_csv(at, [(f"images\\{f}", n) for f, n in rows]),
        "--images .",
    ),
    "absolute": (
        "t.csv",
        lambda at, rows: write_csv(
            at, [(os.path.abspath(f"images/{f}"), label) for f, label in rows]
        ),
        "",
    ),
    "one-hot": (
        "t.csv",
        lambda at, rows: write_csv(at, one_hot(rows), ("file", "cat", "dog", "owl")),
        "--one-hot",
    ),
    "one-hot, floats": (
        "t.csv",
        lambda at, rows: write_csv(
            at,
            [(f, *map(float, ones)) for f, *ones in one_hot(rows)],
            ("file", "cat", "dog", "owl"),
        ),
        "--one-hot",
    ),
    "json lines": ("t.jsonl", write_lines, ""),
    "json": (
        "t.json",
        lambda at, rows: at.write_text(json.dumps([{"id": f, "n": label} for f, label in rows])),
        "--file id --label n",
    ),
    "coco": ("t.json", write_coco, ""),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_table_becomes_folders(name, folder, prepare):
    file, write, options = FORMS[name]
    write(folder / file, ROWS[:9])
    write(folder / f"val_{file}", ROWS[9:])
    options = options.split() if "--images" in options else ["--images", "images", *options.split()]
    lines = prepare(file, "DIR", "--val-from", f"val_{file}", *options)
    assert lines[-2:] == ["DIR/train: 9 images of 3 classes", "DIR/val: 3 images of 3 classes"]
    for part, rows in ("train", ROWS[:9]), ("val", ROWS[9:]):
        assert held(folder / "DIR", part) == wanted(folder, rows)


def test_any_column_of_coco_is_a_label(folder, prepare):
    write_coco(folder / "t.json", [(f, f"{label}{n % 2}") for n, (f, label) in enumerate(ROWS)])
    prepare("t.json", "DIR", "--images", "images", "--label", "family", "--val", 0.4)
    both = held(folder / "DIR", "train") + held(folder / "DIR", "val")
    assert sorted(both) == wanted(folder, [(file, label[0]) for file, label in ROWS])


def test_images_in_several_folders(folder, prepare):
    for number in range(6, 12):
        os.renames(f"images/{number}.jpg", f"more/{number}.jpg")
    write_csv(folder / "t.csv", [(file[:-4], label) for file, label in ROWS])
    prepare("t.csv", "DIR", "--images", "images", "--images", "more", "--val", 0.3)
    shutil.copytree("images", "all")
    shutil.copytree("more", "all", dirs_exist_ok=True)
    both = held(folder / "DIR", "train") + held(folder / "DIR", "val")
    assert sorted(both) == wanted(folder, ROWS, "all")


def test_a_column_says_the_part(folder, prepare):
    parts = ["train", "Training", "VALID", "val", "test", "dev", "validation", "testing"]
    rows = [(*row, parts[n % 8]) for n, row in enumerate(ROWS)]
    rows += [(f"more/{n}.jpg", label, "train") for n, label in enumerate(("cat", "dog", "owl"))]
    for n in range(3):
        write_photo(folder / "images" / "more" / f"{n}.jpg", 50 + n)
    write_csv(folder / "t.csv", rows, ("file", "label", "set"))
    lines = prepare("t.csv", "DIR", "--images", "images", "--split", "set")
    meant = {"train": parts[:2], "val": [*parts[2:4], *parts[5:7]], "test": [parts[4], parts[7]]}
    for part, names in meant.items():
        some = [row[:2] for row in rows if row[2] in names]
        assert held(folder / "DIR", part) == wanted(folder, some)
        assert f"DIR/{part}: {len(some)} images of" in "\n".join(lines)


def test_the_header_says_what_separates_columns(folder, prepare):
    rows = [(*row, ("train", "val")[n % 2], "a, b, c, d, e, f") for n, row in enumerate(ROWS)]
    write_csv(folder / "t.csv", rows, ("file", "label", "set", "note"), ";")
    prepare(*"t.csv DIR --images images --split set".split())
    assert held(folder / "DIR", "val") == wanted(folder, ROWS[1::2])


@pytest.mark.parametrize("header", [("file", "label"), ("file", "label", "set")])
def test_a_table_of_val_is_val_whatever_it_says(header, folder, prepare):
    rows = [(*row, "train") for row in ROWS]
    write_csv(folder / "t.csv", rows[:8], ("file", "label", "set"))
    write_csv(folder / "v.csv", [row[: len(header)] for row in rows[8:]], header)
    prepare(*"t.csv DIR --images images --split set --val-from v.csv".split())
    assert held(folder / "DIR", "val") == wanted(folder, ROWS[8:])


def test_the_table_that_is_printed(folder, prepare):
    rows = [("0.jpg", "all"), ("1.jpg", "all"), ("2.jpg", "ox"), ("1.jpg", "all")]
    write_csv(folder / "t.csv", rows)
    write_csv(folder / "v.csv", [("3.jpg", "ox")])
    words = "t.csv DIR --images images --val-from v.csv --balance train --dry-run".split()
    lines = prepare(*words)
    assert lines[1:] == [
        "rows or links that name an image again, with the same label: 1 (t.csv: row 5)",
        "class  train  files in train  val",
        "all        2               2    0",
        "ox         1               2    1",
        "all        3               4    1",
        "classes without images in val/: 1",
    ]
    first = "images/10.jpg, images/11.jpg, images/4.jpg, ..."
    assert lines[0] == f"images that no row names: 8 ({first})"
    assert not (folder / "DIR").exists()


# ---------------------------------------------------------------------------------------- mistakes

MISSING = "there is no {} in images"
LABELS = {  # {kind: (labels of 0.jpg, 1.jpg, ..., line without the program's name)}
    "empty": (["a", " "], "t.csv: row 3: the label is empty"),
    "dot": ([".", "a"], "t.csv: row 2: '.' cannot be the name of a class"),
    "hidden": ([".net", "a"], "t.csv: row 2: '.net' cannot be the name of a class"),
    "dots": (["a", ".."], "t.csv: row 3: '..' cannot be the name of a class"),
    "long": (["a", "é" * 128], f"t.csv: row 3: '{'é' * 128}' cannot be the name of a class"),
    "meet": (
        ["a/b", "c", "a_b"],
        "t.csv: row 4: a_b and a/b (t.csv: row 2) would both be the class a_b",
    ),
}


@pytest.mark.parametrize("kind", LABELS)
def test_a_label_that_is_no_folder(kind, folder, prepare):
    labels, line = LABELS[kind]
    write_csv(folder / "t.csv", [(f"{n}.jpg", label) for n, label in enumerate(labels)])
    write_csv(folder / "v.csv", [("9.jpg", "a")])
    lines = prepare(*"t.csv DIR --images images --val-from v.csv".split(), status=2)
    suffix = "" if kind in ("meet", "empty") else " (images that have it: 1)"
    assert f"prepare_folder.py: {line}{suffix}" in lines
    assert not (folder / "DIR").exists()


def test_labels_that_are_paths_or_have_blanks(folder, prepare):
    labels = "Tomato/healthy", "Tomato/blight", "Tomato/healthy ", "ox", "Ox"
    write_csv(folder / "t.csv", [(f"{n}.jpg", label) for n, label in enumerate(labels)])
    write_csv(folder / "v.csv", [("9.jpg", "ox")])
    lines = prepare(*"t.csv DIR --images images --val-from v.csv".split())
    made = [label.replace("/", "_").strip() for label in labels]
    assert held(folder / "DIR", "train") == wanted(
        folder, [(f"{n}.jpg", name) for n, name in enumerate(made)]
    )
    assert "the classes 'ox' and 'Ox' look alike: are they one?" in lines


def test_each_mistake_is_a_line(folder, prepare):
    write_photo(folder / "images" / "below" / "x.jpg")
    for suffix in ".png", ".jpg":
        write_photo(folder / "images" / f"two{suffix}")
    rows = [
        ("0.jpg", "cat", "train"),
        ("x.jpg", "cat", "train"),
        ("two", "cat", "train"),
        ("0.jpg", "dog", "train"),
        ("0.jpg", "cat", "val"),
        ("1.jpg", "cat", "fold 1"),
        ("", "cat", "train"),
        ("2.jpg", "emu", "val"),
    ]
    rows += [(f"gone{n}", "cat", "train") for n in range(9)]
    write_csv(folder / "t.csv", rows, ("file", "label", "set"))
    lines = prepare(*"t.csv DIR --images images --split set".split(), status=2)
    x = "images/below/x.jpg: --images takes the folder below which the table's paths are, and may "
    x += "be given again"
    several = "several tags per image are another task (docs/data.md)"
    known = "train, training, val, valid, validation, dev, test, testing"
    assert lines == [
        f"prepare_folder.py: {line}"
        for line in [
            f"t.csv: row 3: {MISSING.format('x.jpg')}, but {x}",
            "t.csv: row 8: it names no file",
            *(f"t.csv: row {10 + n}: {MISSING.format(f'gone{n}')}" for n in range(3)),
            "6 more: no file or label (--skip-missing leaves such rows out)",
            "t.csv: row 4: two may be any of images/two.jpg, images/two.png",
            f"t.csv: row 7: set is fold 1, none of {known}",
            f"t.csv: row 5: images/0.jpg is dog there, and cat in t.csv: row 2; {several}",
            "t.csv: row 6: images/0.jpg is in val there, and in train in t.csv: row 2",
            "class emu has images in val/, and none in train/",
            "error: 16 mistakes, as above: nothing was made",
        ]
    ]
    assert not (folder / "DIR").exists()


def test_rows_without_a_file_may_be_left_out(folder, prepare):
    write_csv(folder / "t.csv", [*ROWS[:6], ("gone.jpg", "cat"), ("", "dog"), ("11.jpg", " ")])
    write_csv(folder / "v.csv", ROWS[6:9])
    words = "t.csv DIR --images images --val-from v.csv --skip-missing".split()
    assert (
        prepare(*words)[0] == "t.csv: 3 of 9 rows have no label, or name no file, and are left out"
    )
    assert held(folder / "DIR", "train") == wanted(folder, ROWS[:6])


NO_FILE = "t.csv has no column file; --file takes one that its first row names: "
NO_TEXT = "t.csv is no text in UTF-8: save the table as CSV, UTF-8"
LFS = "t.csv: it is a pointer of Git LFS: `git lfs pull` in its folder fetches the file"
NO_TABLES = {
    "columns": ("id;class\n0.jpg;a\n", f"{NO_FILE}id, class"),
    "no header": ("0.jpg,a\n1.jpg,b\n", f"{NO_FILE}0.jpg, a"),
    "twice": ("file,label,label\n0.jpg,a,b\n", "t.csv: two columns are called label"),
    "short": ("file,label\n0.jpg,a\n1.jpg\n", "t.csv: row 3 has 1 values, and the header 2"),
    "long": ("file,label\n0.jpg,a,b\n", "t.csv: row 2 has 3 values, and the header 2"),
    "quote": ('file,label\n"0.jpg,a\n1.jpg,b\n', "t.csv: line 3: unexpected end of data"),
    "nothing": ("", "t.csv: it has no rows below a header: ''"),
    "a header": ("file,label\n", "t.csv: it has no rows below a header: 'file,label'"),
    "utf-16": ("file,label\n".encode("utf-16"), NO_TEXT),
    "latin": ("file,label\n0.jpg,\xe9\n".encode("latin-1"), NO_TEXT),
    "pointer": ("version https://git-lfs.github.com/spec/v1\n", LFS),
}


@pytest.mark.parametrize("kind", NO_TABLES)
def test_what_is_no_table(kind, folder, prepare):
    content, line = NO_TABLES[kind]
    (folder / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    (printed,) = prepare(*"t.csv DIR --images images --val 0.1".split(), status=2)
    assert printed == f"prepare_folder.py: error: {line}"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[1, 2]", "it holds no records"),
        ("[]", "it holds no records"),
        (
            '{"a.jpg": "cat",\n"b.jpg": "dog"}',
            "--file takes one that its first row names: a.jpg, b.jpg",
        ),
        ('{"file": "a"}\n{"file"', "line 2 is no JSON: Expecting"),
        ('[{"file": "a"},\n{"file"', "it is no JSON: Expecting"),
        (r'{"file": "\ud800"}', "is no text in UTF-8"),
        ('{"images": "x", "annotations": [1], "categories": []}', "it is not COCO's JSON"),
        ('{"images": [], "annotations": [{"image_id": 3}], "categories": []}', "it lacks 3"),
        ("{", "it is no JSON: Expecting"),
    ],
)
def test_what_is_no_json(content, why, folder, prepare):
    (folder / "t.json").write_text(content)
    (printed,) = prepare("t.json", "DIR", "--val", 0.1, status=2)
    assert printed.startswith("prepare_folder.py: error: t.json") and why in printed


def test_one_hot_rows_have_one_class(folder, prepare):
    rows = [("0.jpg", 1, 0), ("1.jpg", 1, 1), ("2.jpg", 0, 0), ("3.jpg", -1, 1), ("4.jpg", "", 1)]
    write_csv(folder / "t.csv", rows, ("file", "a", "b"))
    lines = prepare(*"t.csv DIR --images images --one-hot --val 0.5".split(), status=2)
    several = "several tags per image are another task (docs/data.md)"
    for line in (
        f"t.csv: row 3: 2 columns are 1 (a, b); {several}",
        f"t.csv: row 4: 0 columns are 1 (); {several}",
        "t.csv: row 5: a is -1, not 0 or 1",
        "t.csv: row 6: a is empty, not 0 or 1",
    ):
        assert f"prepare_folder.py: {line}" in lines


# ------------------------------------------------------------------------------------ train and val


def test_an_image_stays_in_its_part(folder, prepare):
    write_csv(folder / "t.csv", ROWS)
    words = "t.csv DIR --images images --val 0.4".split()
    prepare(*words)
    taken = [row for row in ROWS if draws(row[0], 0.4)]
    assert 0 < len(taken) < 12
    assert held(folder / "DIR", "val") == wanted(folder, taken)
    more = [(f"more/{n}.jpg", "cat") for n in range(200)]
    for n, (file, _) in enumerate(more):
        write_photo(folder / "images" / file, 12 + n)
    write_csv(folder / "t.csv", [*more, *ROWS])
    prepare(*words)
    every = [*more, *ROWS]
    for part, is_val in ("train", False), ("val", True):
        rows = [row for row in every if draws(row[0], 0.4) == is_val]
        assert held(folder / "DIR", part) == wanted(folder, rows)


def test_a_folder_of_classes_is_divided(folder, prepare):
    for n, (file, label) in enumerate(ROWS * 4):
        write_photo(folder / "classes" / label / f"{n}" / file, n)
    write_photo(folder / "classes" / ".hidden" / "a.jpg")
    write_photo(folder / "classes" / "cat" / "._0.jpg")
    (folder / "classes" / "cat" / "Thumbs.db").write_text("")
    lines = prepare("classes", "DIR", "--val", 0.3)
    assert "classes: files that are not read: 1 *.db" in lines
    for part, is_val in ("train", False), ("val", True):
        rows = [(f"{label}/{n}/{file}", label) for n, (file, label) in enumerate(ROWS * 4)]
        some = [row for row in rows if draws(row[0], 0.3) == is_val]
        assert held(folder / "DIR", part) == wanted(folder, some, "classes")


@pytest.mark.parametrize("by", ["path", "group", "column"])
def test_a_group_is_in_one_part(by, folder, prepare):
    rows = [(f"patient{n // 4}/{n}.jpg", ("sick", "well")[n % 2], f"p{n // 4}") for n in range(80)]
    for n, (file, _, _) in enumerate(rows):
        write_photo(folder / "images" / file, n)
    write_csv(folder / "t.csv", rows, ("file", "label", "who"))
    option = {"path": ["--group", r"patient\d+"], "group": ["--group", r"patient(\d+)/"]}
    words = option.get(by, ["--group-column", "who"])
    prepare(*"t.csv DIR --images images --val 0.3".split(), *words)
    for part, is_val in ("train", False), ("val", True):
        form = {"path": "patient{}", "group": "{}", "column": "p{}"}[by]
        some = [row[:2] for n, row in enumerate(rows) if draws(form.format(n // 4), 0.3) == is_val]
        assert held(folder / "DIR", part) == wanted(folder, some) and some


def test_a_group_in_two_parts_is_a_mistake(folder, prepare):
    rows = [("0.jpg", "a", "train", "p"), ("1.jpg", "b", "train", "q"), ("2.jpg", "a", "val", "p")]
    write_csv(folder / "t.csv", rows, ("file", "label", "set", "who"))
    words = "t.csv DIR --images images --split set --group-column who".split()
    line = "t.csv: row 4: group p is in val there, and in train in t.csv: row 2"
    assert prepare(*words, status=2)[0] == f"prepare_folder.py: {line}"
    words = ["t.csv", "DIR", "--images", "images", "--split", "set", "--group", "^[01]"]
    line = "t.csv: row 4: --group does not match 2.jpg"
    assert prepare(*words, status=2)[0] == f"prepare_folder.py: {line}"


def test_val_must_come_from_somewhere(folder, prepare):
    write_csv(folder / "t.csv", ROWS)
    words = "t.csv DIR --images images".split()
    line = (
        "no image is of val/: --val 0.1 takes a tenth of the images, --val-from another table or "
        "folder"
    )
    assert prepare(*words, status=2)[0] == f"prepare_folder.py: {line}"
    write_csv(folder / "v.csv", [ROWS[0]])
    lines = prepare(*words, "--val-from", "v.csv", status=2)
    both = "v.csv: row 2: images/0.jpg is in val there, and in train in t.csv: row 2"
    assert lines[0] == f"prepare_folder.py: {both}"


def test_an_image_with_several_labels_is_a_mistake(folder, prepare):
    records = [{"file": "0.jpg", "label": ["a", "b"]}, {"file": {"0": "1.jpg"}, "label": "a"}]
    (folder / "t.json").write_text(json.dumps(records))
    lines = prepare("t.json", "DIR", "--images", "images", "--val", 0.4, status=2)
    several = "several tags per image are another task (docs/data.md)"
    assert lines[:2] == [
        f"prepare_folder.py: t.json: row 1: label is ['a', 'b'], not one text; {several}",
        f"prepare_folder.py: t.json: row 2: file is {{'0': '1.jpg'}}, not one text; {several}",
    ]


def test_labels_that_may_be_several(folder, prepare):
    write_csv(folder / "t.csv", [(f, f"{label}|big") for f, label in ROWS])
    line = "classes such as 'cat|big' (3) may be several tags; several tags per image are another "
    assert f"{line}task (docs/data.md)" in prepare(*"t.csv DIR --images images --val 0.4".split())
    write_csv(folder / "t.csv", [(f, "cat") for f, _ in ROWS])
    line = "prepare_folder.py: all images are of one class, cat"
    assert line in prepare(*"t.csv D2 --images images --val 0.4".split(), status=2)


def test_the_hint_names_the_file_that_a_path_ends_in(folder, prepare):
    for n in range(3):
        write_photo(folder / "images" / f"patient{n}" / "front.jpg", 50 + n)
    (folder / "images" / "5.png").write_bytes((folder / "images" / "5.jpg").read_bytes())
    (folder / "images" / "5.jpg").unlink()
    rows = [("set/patient1/front.jpg", "a"), ("x/patient2/front.jpg", "b"), ("5.jpg", "a")]
    write_csv(folder / "t.csv", rows)
    lines = prepare(*"t.csv DIR --images images --val 0.4".split(), status=2)
    for n, (name, other) in enumerate(zip(rows, (1, 2), strict=False)):
        there = f"but images/patient{other}/front.jpg: --images takes"
        assert f"row {n + 2}: there is no {name[0]} in images, {there}" in lines[n]
    assert lines[2].endswith("no 5.jpg in images, but images/5.png, with another suffix")


@pytest.mark.parametrize("name", [".", "..", "/", "a\\b", "./."])
def test_a_path_of_no_file_is_a_mistake(name, folder, prepare):
    write_csv(folder / "t.csv", [*ROWS, (name, "cat")])
    lines = prepare(*"t.csv DIR --images images --val 0.4".split(), status=2)
    assert lines[0] == f"prepare_folder.py: t.csv: row 14: {MISSING.format(name)}"


def test_a_name_may_have_a_backslash(folder, prepare):
    (folder / "images" / "0.jpg").rename(folder / "images" / "a\\b.jpg")
    rows = [("a\\b.jpg", "cat"), *ROWS[1:]]
    write_csv(folder / "t.csv", rows)
    prepare(*"t.csv DIR --images images --val 0.4".split())
    both = held(folder / "DIR", "train") + held(folder / "DIR", "val")
    assert sorted(both) == wanted(folder, rows)


def test_a_file_that_is_no_image_is_a_mistake(folder, prepare):
    (folder / "images" / "scan.dcm").write_text("no image")
    write_csv(folder / "t.csv", [*ROWS, ("scan.dcm", "cat")])
    words = "t.csv DIR --images images --val 0.4".split()
    line = "t.csv: row 14: images/scan.dcm is no image that the scripts read"
    assert prepare(*words, status=2)[0] == f"prepare_folder.py: {line}"


def test_no_file_at_all_is_a_mistake(folder, prepare):
    write_csv(folder / "t.csv", ROWS)
    (folder / "elsewhere").mkdir()
    lines = prepare(*"t.csv DIR --images elsewhere --skip-missing --val 0.4".split(), status=2)
    assert lines[0] == "prepare_folder.py: t.csv names no file that is there, with a label"


def test_columns_without_a_name_are_left_out(folder, prepare):
    """As pandas writes its index, and Excel its empty columns."""
    rows = [(n, *row, "") for n, row in enumerate(one_hot(ROWS))]
    write_csv(folder / "t.csv", rows, ("", "file", "cat", "dog", "owl", ""))
    prepare(*"t.csv DIR --images images --one-hot --val 0.4".split())
    both = held(folder / "DIR", "train") + held(folder / "DIR", "val")
    assert sorted(both) == wanted(folder, ROWS)


def test_one_image_is_in_one_part_whatever_its_path(folder, prepare):
    write_csv(folder / "t.csv", ROWS)
    write_csv(folder / "v.csv", [(str(folder / "images" / file), label) for file, label in ROWS])
    (folder / "again").symlink_to("images")
    lines = prepare("t.csv", "DIR", "--val-from", "v.csv", "--images", folder / "images", status=2)
    assert "is in val there, and in train in t.csv: row 2" in lines[0]
    write_csv(folder / "v.csv", [(f"again/{file}", label) for file, label in ROWS])
    write_csv(folder / "t.csv", [(f"images/{file}", label) for file, label in ROWS])
    lines = prepare("t.csv", "DIR", "--val-from", "v.csv", status=2)
    assert len(lines) == 8 and lines[-1].endswith("error: 13 mistakes, as above: nothing was made")
    for n, (file, label) in enumerate(ROWS):
        path = folder / "links" / label / f"{n}-{file}"
        path.parent.mkdir(parents=True, exist_ok=True)
        for again in path, path.with_name(f"again-{path.name}"):
            again.symlink_to(folder / "images" / file)
    line = (
        "rows or links that name an image again, with the same label: 12 (links/cat/again-0-0.jpg"
    )
    found = [each for each in prepare("links", "DIR", "--val", 0.4) if each.startswith("rows or")]
    assert len(found) == 1 and found[0].startswith(line) and found[0].endswith(", ...)")
    assert len(held(folder / "DIR", "train") + held(folder / "DIR", "val")) == 12


def test_a_class_keeps_an_image_to_train_on(folder, prepare):
    rows = [(f"{n}.jpg", "many" if n < 8 else f"one{n}") for n in range(12)]
    write_csv(folder / "t.csv", rows)
    lines = prepare(*"t.csv DIR --images images --val 0.5".split())
    alone = sum(draws(file, 0.5) for file, label in rows if label != "many")
    assert alone, "or the test could not fail"
    line = f"classes that stay in train/, since --val would take all of their images: {alone}"
    assert line in lines
    taken = [(file, label) for file, label in rows if label == "many" and draws(file, 0.5)]
    assert held(folder / "DIR", "val") == wanted(folder, taken)
    groups = [(file, label, "a" if n % 2 else "b") for n, (file, label) in enumerate(rows)]
    write_csv(folder / "t.csv", groups, ("file", "label", "who"))
    share = min(draw for draw in (0.1, 0.3, 0.5, 0.7, 0.9) if draws("a", draw) != draws("b", draw))
    words = ["t.csv", "D2", "--images", "images", "--val", share, "--group-column", "who"]
    lines = prepare(*words, status=2)
    assert any(line.endswith("has images in val/, and none in train/") for line in lines)


def test_val_divides_train_alone(folder, prepare):
    rows = [(*row, ("train", "test")[n % 2]) for n, row in enumerate(ROWS)]
    write_csv(folder / "t.csv", rows, ("file", "label", "set"))
    prepare(*"t.csv DIR --images images --split set --val 0.4".split())
    taken = [row[:2] for row in rows[::2] if draws(row[0], 0.4)]
    assert held(folder / "DIR", "val") == wanted(folder, taken) and taken
    assert held(folder / "DIR", "test") == wanted(folder, ROWS[1::2])
    assert any(draws(file, 0.4) for file, _ in ROWS[1::2]), "or the test could not fail"
    few = "no image is of val/: none of the 12 images was drawn, so give a larger --val"
    words = "t.csv D2 --images images --split set --val 0.0001".split()
    assert prepare(*words, status=2)[0] == f"prepare_folder.py: {few}"


# ----------------------------------------------------------------------------------------- folders


def write_parts(folder, parts, images=2):
    """Writes FOLDER/<part>/<class>/*.jpg."""
    for n, part in enumerate(parts):
        for label in "cat", "dog":
            for number in range(images):
                write_photo(folder / "FOLDER" / part / label / f"{number}.jpg", 8 * n + number)


@pytest.mark.parametrize(
    "names", [("Train", "valid"), ("training", "Validation"), ("train", "dev", "Test")]
)
def test_parts_of_other_names(names, folder, prepare):
    write_parts(folder, names)
    (folder / "FOLDER" / "notes").mkdir()
    lines = prepare("FOLDER", "DIR")
    assert "FOLDER: folders that are not read: notes" in lines
    for name, part in zip(names, ("train", "val", "test"), strict=False):
        rows = [(f"{label}/{n}.jpg", label) for label in ("cat", "dog") for n in range(2)]
        assert held(folder / "DIR", part) == wanted(folder / "FOLDER", rows, name)
    assert (folder / "DIR" / "test").exists() == (len(names) == 3)


def test_train_and_test_alone(folder, prepare):
    write_parts(folder, ["train", "test"], 8)
    line = prepare("FOLDER", "DIR", status=2)[0]
    assert line.endswith("; FOLDER has a test/, which --val-from may take")
    prepare("FOLDER", "DIR", "--val-from", "FOLDER/test")
    assert len(held(folder / "DIR", "val")) == 16 and not (folder / "DIR" / "test").exists()
    prepare("FOLDER", "DIR2", "--val", 0.5)
    parts = {part: held(folder / "DIR2", part) for part in ("train", "val", "test")}
    assert parts["test"] == held(folder / "DIR", "val")
    assert sorted(parts["train"] + parts["val"]) == held(folder / "DIR", "train")


def test_a_test_without_classes_is_left_out(folder, prepare):
    write_parts(folder, ["train", "val"])
    write_photo(folder / "FOLDER" / "test" / "0.jpg")
    assert "FOLDER/test has no folders of classes, and is left out" in prepare("FOLDER", "DIR")


def test_classes_of_test_that_are_not_trained_are_left_out(folder, prepare):
    write_parts(folder, ["train", "val", "test"])
    write_photo(folder / "FOLDER" / "test" / "unknown" / "0.jpg", 90)
    line = "images of test/ whose classes are not in train/ are left out: unknown"
    assert line in prepare("FOLDER", "DIR")
    assert [label for label, _ in held(folder / "DIR", "test")] == ["cat"] * 2 + ["dog"] * 2


def test_val_may_have_one_class(folder, prepare):
    write_parts(folder, ["train", "other"])
    shutil.rmtree(folder / "FOLDER" / "other" / "dog")
    prepare("FOLDER/train", "DIR", "--val-from", "FOLDER/other")
    assert [label for label, _ in held(folder / "DIR", "val")] == ["cat", "cat"]


def test_a_link_to_nothing_is_a_mistake(folder, prepare):
    write_parts(folder, ["train", "val"])
    (folder / "FOLDER" / "train" / "cat" / "gone.jpg").symlink_to("nowhere")
    line = "FOLDER/train/cat/gone.jpg: No such file or directory"
    assert prepare("FOLDER", "DIR", status=2)[0] == f"prepare_folder.py: {line}"


def test_classes_one_folder_deeper(folder, prepare):
    for kind in "colour", "grey":
        for n in range(12):
            write_photo(folder / "FOLDER" / kind / ("cat", "dog")[n % 2] / f"{n}.jpg", n)
    line = "FOLDER: all images lie deeper than these classes: colour, grey"
    assert line in prepare("FOLDER", "DIR", "--val", 0.4)


def test_what_lies_beside_the_classes_is_counted(folder, prepare):
    write_parts(folder, ["train", "val"])
    write_photo(folder / "FOLDER" / "train" / "beside.jpg")
    line = "FOLDER/train: files that are not read: 1 images beside the classes"
    assert line in prepare("FOLDER", "DIR")


def test_dir_may_lie_in_source(folder, prepare):
    write_parts(folder, ["train"], 12)
    for _ in range(2):
        prepare("FOLDER", "FOLDER/DIR", "--val", 0.3)
    assert len(held(folder / "FOLDER/DIR", "train") + held(folder / "FOLDER/DIR", "val")) == 24


@pytest.mark.parametrize(
    "source", ["FOLDER", "FOLDER/train", "FOLDER/train.unfinished", "labels.csv"]
)
def test_what_source_has_is_never_in_the_way(source, folder, prepare):
    write_parts(folder, [source.removeprefix("FOLDER").strip("/") or "train"], 4)
    at = folder / "FOLDER" if source != "labels.csv" else folder / "FOLDER" / source
    write_parts(folder, ["other"])
    before = {path: path.read_bytes() for path in folder.rglob("*.jpg")}
    words = [source, "FOLDER"]
    if source == "labels.csv":
        (folder / "FOLDER" / "labels.csv").rename(folder / "FOLDER" / "train")
        rows = [(f"train/{label}/{n}.jpg", label) for label in ("cat", "dog") for n in range(4)]
        write_csv(folder / "FOLDER" / "labels.csv", rows)
        before = {path: path.read_bytes() for path in folder.rglob("*.jpg")}
        words = ["FOLDER/labels.csv", "FOLDER"]
    lines = prepare(*words, "--val-from", "FOLDER/other", "--copy", "--upright", status=2)
    assert at and "give another DIR" in lines[0] and "remove" not in lines[0]
    assert {path: path.read_bytes() for path in folder.rglob("*.jpg")} == before


def test_a_class_may_be_called_train(folder, prepare):
    for label in "Train", "Bus":
        for n in range(20):
            write_photo(folder / "FOLDER" / label / f"{n}.jpg", n)
    lines = prepare("FOLDER", "DIR", "--val", 0.5)
    assert "FOLDER/Train is read as a class, beside FOLDER/Bus" in lines
    assert sorted(os.listdir("DIR/train")) == sorted(os.listdir("DIR/val")) == ["Bus", "Train"]


FOLDERS = {  # {kind: (paths in FOLDER, the line)}
    "flat": (
        ["a.jpg"],
        "FOLDER has no images in folders of classes; if a table has the labels, give it in place "
        "of the folder",
    ),
    "a table": (
        ["train/a.jpg", "test/b.jpg", "labels.csv"],
        "FOLDER/train has no images in folders of classes; if a table has the labels, give it: "
        "FOLDER/labels.csv",
    ),
    "nested": (
        ["data/cat/a.jpg", "data/dog/a.jpg"],
        "FOLDER has one class, data; if that holds the classes, give FOLDER/data",
    ),
    "nested parts": (
        [f"{part}/images/{label}/a.jpg" for part in ("train", "val") for label in ("cat", "dog")],
        "FOLDER/train has one class, images; if that holds the classes, give FOLDER/train/images",
    ),
    "two": (
        ["val/a/a.jpg", "train/a/a.jpg", "valid/a/a.jpg"],
        "error: FOLDER has train and val and valid: remove or rename one of them",
    ),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_that_holds_something_else(kind, folder, prepare):
    paths, line = FOLDERS[kind]
    for path in paths:
        write_photo(folder / "FOLDER" / path)
    divided = kind not in ("two", "nested parts")
    lines = prepare("FOLDER", "DIR", *(["--val", 0.1] if divided else []), status=2)
    assert lines[0] == f"prepare_folder.py: {line}"


def test_options_that_do_not_go_together(folder, prepare):
    write_parts(folder, ["train", "val"])
    for words, why in (
        (["--label", "x"], "--label is for tables, and SOURCE is a folder"),
        (["--one-hot"], "--one-hot is for tables, and SOURCE is a folder"),
        (["--val", 0.1], "FOLDER says which images are val/: --val is not needed"),
        (["--val-from", "images"], "FOLDER has a val/, and --val-from is another"),
        (["--val", 0.1, "--val-from", "x"], "argument --val-from: not allowed with argument --val"),
        (["--val", 1], "argument --val: 1 is no float from 0.0001 to 0.9"),
        (["--group", "("], "argument --group: ( is no regular expression"),
    ):
        (line,) = prepare("FOLDER", "DIR", *words, status=2)
        assert line.startswith(f"prepare_folder.py: error: {why}")
    assert prepare("gone", "DIR", status=2) == ["prepare_folder.py: error: there is no gone"]
    line = "prepare_folder.py: error: FOLDER is SOURCE itself: give another DIR"
    assert prepare("FOLDER", "FOLDER", status=2) == [line]


def test_files_of_other_suffixes_are_linked_as_jpg(folder, prepare):
    for label in "cat", "dog":
        for part in "train", "val":
            at = folder / "FOLDER" / part / label
            PIL.Image.open(write_photo(at / "a.jfif")).save(at / "b.gif")
            (at / "c.txt").write_text("no image")
    assert "FOLDER/train: files that are not read: 2 *.txt" in prepare("FOLDER", "DIR")
    assert sorted(os.listdir("DIR/val/dog")) == ["a.jfif.jpg", "b.gif.jpg"]


# ------------------------------------------------------------------------------------------ making


def test_balance_links_rare_classes_as_often(folder, prepare):
    rows = [*[(f"{n}.jpg", "often") for n in range(7)], ("7.jpg", "rare"), ("8.jpg", "rare")]
    write_photo(folder / "images" / "7.2.jpg", 40)  # a name that a second link might have had
    write_csv(folder / "t.csv", [*rows, ("7.2.jpg", "rare")])
    write_csv(folder / "v.csv", [("9.jpg", "often"), ("10.jpg", "often"), ("11.jpg", "rare")])
    words = "t.csv DIR0 --images images --val-from v.csv --balance train".split()
    prepare(*words)
    three = [*rows[7:], ("7.2.jpg", "rare")]
    found = collections.Counter(held(folder / "DIR0", "train"))
    assert found.total() == 14 and {*found} == {*wanted(folder, [*rows, three[2]])}
    assert [found[each] for each in wanted(folder, three)] in ([3, 2, 2], [2, 3, 2], [2, 2, 3])
    write_csv(folder / "t.csv", rows)
    words[1] = "DIR"
    prepare(*words)
    assert held(folder / "DIR", "train") == wanted(folder, [*rows[:7], *[*rows[7:] * 4][:7]])
    assert len(held(folder / "DIR", "val")) == 3
    prepare(*words[:1], "DIR2", *words[2:], "--balance", "val")
    assert len(held(folder / "DIR2", "val")) == 4


def test_again_completes_what_was_interrupted(folder, prepare, monkeypatch):
    write_csv(folder / "t.csv", ROWS)
    words = "t.csv DIR --images images --val 0.4".split()
    real, made = os.symlink, []

    def symlink(*args):
        made.append(args)
        if len(made) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", "DIR")
        real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(os, "symlink", symlink)
        prepare(*words, status=1)
    assert not (folder / "DIR" / "train").exists(), "half of it would look whole"
    prepare(*words)
    assert sorted(os.listdir("DIR")) == ["train", "val"]
    both = held(folder / "DIR", "train") + held(folder / "DIR", "val")
    assert sorted(both) == wanted(folder, ROWS)
    before = {path: path.lstat().st_mtime_ns for path in (folder / "DIR").rglob("*")}
    prepare(*words)
    assert {path: path.lstat().st_mtime_ns for path in (folder / "DIR").rglob("*")} == before


def test_again_gives_a_whole_part_its_name(folder, prepare):
    write_parts(folder, ["train", "val"])
    prepare("FOLDER", "DIR")
    (folder / "DIR" / "train").rename(folder / "DIR" / "train.unfinished")
    prepare("FOLDER", "DIR")
    assert sorted(os.listdir("DIR")) == ["train", "val"] and len(held(folder / "DIR", "train")) == 4


def test_dir_behind_a_link(folder, prepare):
    write_parts(folder, ["train", "val"])
    (folder / "disk" / "deep").mkdir(parents=True)
    (folder / "data").symlink_to("disk/deep")
    prepare("FOLDER", "data/DIR")
    assert len(held(folder / "data" / "DIR", "train")) == 4


def test_dir_has_nothing_of_other_options(folder, prepare):
    write_csv(folder / "t.csv", ROWS)
    words = "t.csv DIR --images images".split()
    prepare(*words, "--val", 0.4)
    before = held(folder / "DIR", "train")
    lines = prepare(*words, "--val", 0.6, status=2)
    assert re.fullmatch(
        r"prepare_folder.py: DIR/train/\w+/\d+.jpg is none of the files that these options make: "
        f"{OTHER}",
        lines[0],
    )
    path = next((folder / "DIR" / "train").glob("*/*.jpg"))
    path.unlink()
    path.write_text("mine")
    at = path.relative_to(folder)
    line = f"{at} is no link of images/{path.name}: {OTHER}"
    assert prepare(*words, "--val", 0.4, status=2)[0] == f"prepare_folder.py: {line}"
    assert path.read_text() == "mine"
    path.unlink()
    prepare(*words, "--val", 0.4)
    assert held(folder / "DIR", "train") == before
    (folder / "DIR" / "train").rename(folder / "moved")
    (folder / "DIR" / "train").symlink_to(folder / "moved")
    line = f"DIR/train is a link: {OTHER}"
    assert prepare(*words, "--val", 0.4, status=2)[0] == f"prepare_folder.py: {line}"


def test_dir_has_no_other_classes(folder, prepare):
    write_csv(folder / "t.csv", ROWS)
    (folder / "DIR" / "train" / "emu").mkdir(parents=True)
    words = "t.csv DIR --images images --val 0.4".split()
    line = f"DIR/train/emu is none of the classes that these options make: {OTHER}"
    assert prepare(*words, status=2)[0] == f"prepare_folder.py: {line}"
    shutil.rmtree("DIR")
    (folder / "DIR").write_text("")
    line = "prepare_folder.py: DIR is no folder: give another DIR"
    assert prepare(*words, "--dry-run", status=2)[0] == line


def test_links_and_copies(folder, prepare):
    write_csv(folder / "t.csv", ROWS)
    prepare(*"t.csv DIR --images images --val 0.4".split())
    prepare(*"t.csv COPY --images images --val 0.4 --copy".split())
    (folder / "elsewhere").mkdir()
    for name in "images", "DIR":
        (folder / name).rename(folder / "elsewhere" / name)
    found = {part: held(folder / "elsewhere" / "DIR", part) for part in ("train", "val")}
    shutil.rmtree(folder / "elsewhere")
    assert found == {part: held(folder / "COPY", part) for part in ("train", "val")}


def test_dir_beside_the_table_is_not_read(folder, prepare):
    """By default images are below the table's folder, where DIR may be, too."""
    write_csv(folder / "images" / "t.csv", ROWS)
    for _ in range(2):
        lines = prepare("images/t.csv", "images/DIR", "--val", 0.4)
        assert not any("no row names" in line for line in lines)


# ------------------------------------------------------------------------------------- orientation

# {orientation: what turns the stored pixels upright} (EXIF 2.3, table 6)
TURN = {
    1: lambda pixels: pixels,
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels.swapaxes(0, 1)[:, ::-1],
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: pixels.swapaxes(0, 1)[::-1],
}


def photo(kind, orientation):
    """Returns (encoded photo that is to be turned so, its stored pixels): four quarters."""
    pixels = np.zeros((32, 48, 3), np.uint8)
    pixels[:16, :24], pixels[:16, 24:], pixels[16:, :24] = (200, 0, 0), (0, 200, 0), (0, 0, 200)
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    lossless = {"lossless": True} if kind == "WEBP" else {"quality": 95, "subsampling": 0}
    PIL.Image.fromarray(pixels).save(file, kind, exif=exif, **lossless)
    return file.getvalue(), pixels


def whole(height, width):
    return 0, 0, height, width


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_upright_turns_copies(kind, folder, prepare, call_tool):
    rows, stored = [], {}
    for orientation in (*TURN, 9):
        for part in "train", "val":
            name = f"{part}{orientation}.{kind.lower()}"
            encoded, stored[name] = photo(kind, orientation)
            (folder / "images" / name).write_bytes(encoded)
            rows.append((name, f"class{orientation}", part))
    write_csv(folder / "t.csv", rows, ("file", "label", "set"))
    words = "t.csv DIR --images images --split set".split()
    prepare(*words)
    turned = {"TIFF": 0}.get(kind, 7)  # of a part; Pillow itself turns a TIFF
    output, _ = call_tool("make_shards", "--verify", "DIR", "-j", 1)
    line = f"DIR: {2 * turned} images are to be turned, as their EXIF orientation says, and are "
    assert (line in output) == bool(turned)
    lines = prepare(*words, "--upright")
    ends = f", {turned} of them turned upright" if turned else ""
    assert f"DIR/train: 9 images of 9 classes{ends}" in lines
    for name, label, part in rows:
        path, orientation = folder / "DIR" / part / label / name, int(label[-1])
        upright = TURN.get(orientation, TURN[1])(stored[name]).astype(int)
        found = decoding.decode(path.read_bytes(), choose=whole).astype(int)
        assert found.shape == upright.shape and np.abs(found - upright).mean() < 4
        turns = kind != "TIFF" and 2 <= orientation <= 8
        assert path.is_symlink() != turns
        if kind != "TIFF":
            assert decoding.orientation(io.BytesIO(path.read_bytes())) == 1
            raw = decoding.decode((folder / "images" / name).read_bytes(), choose=whole).astype(int)
            assert np.abs(raw - stored[name]).mean() < 4, "as torchvision reads it"
    for options in ["--copy"], ["--copy", "--upright"]:
        prepare("t.csv", "COPY", *words[2:], *options)
    assert held(folder / "COPY", "train") == held(folder / "DIR", "train")
    before = {path: path.lstat().st_mtime_ns for path in (folder / "DIR").rglob("*")}
    prepare(*words, "--upright")
    assert {path: path.lstat().st_mtime_ns for path in (folder / "DIR").rglob("*")} == before


def test_a_photo_that_cannot_be_turned_stays_as_it_is(folder, prepare):
    exif, file = PIL.Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    PIL.Image.effect_noise((160, 90), 50).save(file, "JPEG", exif=exif)
    encoded = file.getvalue()
    for part in "train", "val":
        for label in "cat", "dog":
            at = write_photo(folder / "FOLDER" / part / label / "0.jpg")
            at.with_name("1.jpg").write_bytes(encoded[: len(encoded) // 2])
    lines = prepare("FOLDER", "DIR", "--upright")
    path = "FOLDER/train/cat/1.jpg"
    assert any(f"{path} stays as it is: it cannot be turned: " in line for line in lines)
    assert (folder / "DIR/train/cat/1.jpg").read_bytes() == (folder / path).read_bytes()


def test_a_replaced_photo_is_turned_again(folder, prepare):
    write_parts(folder, ["train", "val"])
    path = folder / "FOLDER" / "train" / "cat" / "0.jpg"
    for orientation in 6, 3:
        path.write_bytes(photo("JPEG", orientation)[0])
        os.utime(path, ns=(time.time_ns() + 10**9 * (orientation == 3),) * 2)
        prepare("FOLDER", "DIR", "--upright")
        upright = TURN[orientation](photo("JPEG", 1)[1]).astype(int)
        found = decoding.decode((folder / "DIR/train/cat/0.jpg").read_bytes(), choose=whole).astype(
            int
        )
        assert found.shape == upright.shape and np.abs(found - upright).mean() < 4
