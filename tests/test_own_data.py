"""docs/data.md, "Your own data": its programs and commands run as typed, on small data."""

import csv
import re
import shlex
import shutil
import sys

import numpy as np
import PIL.Image
import pytest
import torch
from conftest import ROOT, copy_script, free_port, locked, run, write_images, write_text

import imagenet_nd as nd
from trainparts import errors
from trainparts.images import decoding

PAGE = (ROOT / "docs" / "data.md").read_text()
SECTION = re.search(r"^## Your own data\n(.*?)(?=^## )", PAGE, re.S | re.M)[1]
PARTS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", SECTION, re.S | re.M))
SMALL = "-a shufflenet_v2_x0_5 --image-size 32 --no-accel -j 0".split()
SHORT = {
    "imagenet_ddp.py": [*SMALL, *"--epochs 1 -b 9 --lr 1 --warmup-epochs 0".split()],
    "text_nd.py": "--epochs 1 --max-length 32 --layers 1 --no-accel".split(),
}
LABELS = "Labels in a table, or one folder"
# Of each class so many images in train.csv and in val.csv; --balance makes them equal.
TABLE = {"normal": 18, "nodule": 3, "effusion": 1}


def test_each_part_has_a_test():
    tested = [
        LABELS,
        "A CSV instead of folders",
        "Images of 16 bits",
        "A second validation set",
        "New images",
    ]
    elsewhere = "Several tags per image"  # test_own_tags.py
    assert {*PARTS} == {*tested, "A new corpus", elsewhere}
    assert all("```" in text for text in PARTS.values())


def program(part, *replaced):
    """Returns the words that run a part's program in Python, with (old, new) texts replaced."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PARTS[part], re.S | re.M)
    for old, new in replaced:
        assert old in code
        code = code.replace(old, new)
    return [sys.executable, "-c", code]


def commands(part):
    """Returns [[script, word, ...], ...] of the commands of a part, without `python`."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PARTS[part], re.S | re.M)
    lines = re.sub(r"\\\n\s*", " ", "".join(blocks)).splitlines()
    typed = [shlex.split(line, comments=True) for line in lines]
    assert {python for python, *_ in typed} == {"python"}
    return [words for _, *words in typed]


def train(words, folder):
    """Runs a script, with options behind what is typed that make it short; returns its output."""
    script, *options = words
    if script == "imagenet_ddp.py":
        options += ["--dist-url", f"tcp://127.0.0.1:{free_port()}"]
    return run([sys.executable, ROOT / script, *options, *SHORT[script]], folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with images/, tables, and what the first part makes: DIR and a run; its output."""
    folder = tmp_path_factory.mktemp("own data")
    for part in "train", "val":
        rows = [(f"{part}/{label}{n}.png", label) for label in TABLE for n in range(TABLE[label])]
        (folder / "images" / part).mkdir(parents=True)
        for number, (name, _) in enumerate(rows):
            PIL.Image.new("RGB", (40, 36), (9 * number, 90, 200)).save(folder / "images" / name)
        with open(folder / f"{part}.csv", "w", newline="", encoding="utf-8-sig") as file:
            csv.writer(file).writerows([("file", "label"), *rows])
    prepare, script, _ = commands(LABELS)
    run([sys.executable, ROOT / prepare[0], *prepare[1:]], folder)
    return folder, train(script, folder)


def numbers_of(folder):
    """Returns {class: number of links} that lead to images of this class."""
    links = {label.name: [*label.rglob("*.png")] for label in folder.iterdir()}
    for label, paths in links.items():
        assert all(path.is_symlink() and label in path.resolve().name for path in paths)
    return {label: len(paths) for label, paths in links.items()}


def test_a_table_becomes_links(trained):
    folder, output = trained
    assert numbers_of(folder / "DIR" / "train") == dict.fromkeys(TABLE, 18)
    assert numbers_of(folder / "DIR" / "val") == TABLE
    assert "54 training and 22 validation images, 3 classes\n" in output


def test_top1_of_balanced_links_is_the_balanced_accuracy(trained, tmp_path, call_tool, monkeypatch):
    folder, _ = trained
    prepare, _, (tool, *words) = commands(LABELS)
    assert tool == "tools/look.py"
    monkeypatch.chdir(folder)
    output, _ = call_tool("look", *words)
    accuracies = [float(each) for each in re.findall(r"^\w+ +\d+ +(\d+\.\d\d)$", output, re.M)]
    assert len(accuracies) == 3
    (tmp_path / "images").symlink_to(folder / "images")
    for name in "train.csv", "val.csv":
        (tmp_path / name).symlink_to(folder / name)
    monkeypatch.chdir(tmp_path)
    call_tool("prepare_folder", *prepare[1:], "--balance", "val")
    assert numbers_of(tmp_path / "DIR" / "val") == dict.fromkeys(TABLE, 18)
    words = ["-e", "--resume", folder / "runs/NAME/model_best.pt", "DIR"]
    balanced = run([sys.executable, ROOT / "imagenet_nd.py", *SMALL, *words], tmp_path)
    (top1,) = re.findall(r"^validation: top-1 (\S+) %", balanced, re.M)
    assert float(top1) == pytest.approx(np.mean(accuracies), abs=0.02)
    assert f"top-1 {top1}" not in output, "the classes are of different sizes in DIR/val"


def test_each_way_of_the_table_makes_dir(tmp_path, call_tool, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = [(n, f"{n}.png", ("cat", "dog")[n % 2], ("train", "val")[n // 20]) for n in range(40)]
    rows = [(n, label, file, label, part) for n, file, label, part in images]
    header = "image_id", "diagnosis", "file", "label", "part"
    tables = {"labels": rows, "train": rows[:20], "val": rows[20:]}
    for name, some in tables.items():
        with open(f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([header, *some])
    for n, file, label, part in images:
        other = {"train": "Train", "val": "valid"}[part]
        for path in f"images/{file}", f"classes/{label}/{file}", f"parts/{other}/{label}/{file}":
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.new("RGB", (8, 8), (n, 0, 0)).save(tmp_path / path)
    typed = re.findall(r"\| `python (tools/prepare_folder.py .*?)` \|", PARTS[LABELS])
    sources = ["labels.csv", "train.csv", "labels.csv", "classes", "parts"]
    assert len(typed) == len(sources)
    for number, (line, source) in enumerate(zip(typed, sources, strict=True)):
        _, typed_source, folder, *options = line.split()
        assert (typed_source.replace("FOLDER", source), folder) == (source, "DIR")
        words = [source, f"DIR{number}", *options]
        call_tool("prepare_folder", *words)
        train, val = (
            {
                path.name: path.parent.name
                for path in (tmp_path / f"DIR{number}" / part).rglob("*.*")
            }
            for part in ("train", "val")
        )
        assert train | val == {file: label for _, file, label, _ in images}
        if "--val" not in words:
            assert [*sorted(val)] == sorted(file for _, file, _, part in images if part == "val")


def test_a_window_makes_8_bits(tmp_path):
    (tmp_path / "images").mkdir()
    values = np.arange(0, 4800, 8, dtype=np.uint16).reshape(20, 30)
    PIL.Image.fromarray(values).save(tmp_path / "images" / "deep.png")
    run(program("Images of 16 bits", ("0, 4095", "1000, 3550")), tmp_path)

    def decoded(folder):
        encoded = (tmp_path / folder / "deep.png").read_bytes()
        return decoding.decode(encoded, choose=lambda height, width: (0, 0, height, width))

    with pytest.raises(errors.BadInput, match="more than 8 bits a channel"):
        decoded("images")
    found = decoded("images8")
    wanted = [min(255, max(0, round((value - 1000) / 10))) for value in values.flatten().tolist()]
    assert (found == np.reshape(wanted, (20, 30, 1))).all()


def test_a_second_set_is_measured_while_a_run_trains(trained):
    folder, _ = trained
    write_images(folder / "DIR2", classes=("normal", "effusion"))
    (folder / "DIR2" / "train").rename(folder / "not used")
    with locked(folder / "runs" / "NAME"):
        (words,) = commands("A second validation set")
        output = train(words, folder)
    assert "4 validation images, 3 classes\n" in output and "validation: top-1 " in output


def test_new_images_into_a_table(trained, call_tool, monkeypatch):
    folder, _ = trained
    for number in range(3):
        (folder / "FOLDER").mkdir(exist_ok=True)
        PIL.Image.new("RGB", (40, 36), (90 * number, 90, 9)).save(folder / f"FOLDER/{number}.png")
    ((tool, *words),) = commands("New images")
    assert tool == "tools/look.py"
    monkeypatch.chdir(folder)
    call_tool("look", *words)
    with open(folder / "predictions.csv", newline="") as file:
        header, *rows = csv.reader(file)
    classes = sorted(TABLE)
    assert header == ["file", "class", *classes] and len(rows) == 3
    for name, best, *words in rows:
        assert re.search(r"\b[012]\.png$", name)
        shares = [float(word) for word in words]
        assert sum(shares) == pytest.approx(1, abs=1e-3)
        assert best == classes[np.argmax(shares)]


def test_a_csv_trains_as_folders_do(tmp_path):
    """The same images in the same order, so the same losses. val.csv may lack a class, but has none
    that train.csv lacks."""
    data = write_images(tmp_path / "DIR", train=6, val=3, classes=("ant", "bee", "cat"))
    for part in "train", "val":
        paths = sorted(data.glob(f"{part}/*/*.jpg"))
        rows = [f"{path.relative_to(data)},{path.parent.name}" for path in paths]
        (data / f"{part}.csv").write_text("\n".join(["file,label", *rows]) + "\n")
    (code,) = re.findall(r"^```python\n(.*?)^```", PARTS["A CSV instead of folders"], re.S | re.M)
    names, args, place = vars(nd).copy(), nd.parse_args([str(data)]), nd.Place(torch.device("cpu"))
    exec(code, names)

    def listed(list_sources):
        sources = list_sources(args, place)
        return [
            (each.classes, each.target.tolist(), [*map(each.path, range(len(each.target)))])
            for each in sources
        ]

    train, val = listed(names["list_sources"])
    assert [train, val] == listed(nd.list_sources)
    assert train[:2] == (["ant", "bee", "cat"], [*6 * [0], *6 * [1], *6 * [2]])
    text = (ROOT / "imagenet_nd.py").read_text()
    before = re.search(r"^def list_sources\(.*?(?=^class Data)", text, re.S | re.M)[0]
    script = copy_script("own_nd.py", tmp_path, text.replace(before, f"{code}\n\n"))
    shutil.rmtree(data / "val" / "bee")
    (data / "val" / "ant" / "0.jpg").rename(data / "val" / "ant" / "no. 1, #2.jpg")
    (data / "val.csv").write_bytes(
        b'\xef\xbb\xbf"file","label"\r\n"val/ant/no. 1, #2.jpg","ant"\r\n'
    )
    output = run([sys.executable, script, *SMALL, *"--epochs 1 -b 6".split(), data], tmp_path)
    assert "18 training and 1 validation images, 3 classes\n" in output
    (data / "val.csv").write_text("file,label\nval/ant/2.jpg,dog\nval/ant/1.jpg,ant\n")
    with pytest.raises(errors.BadInput) as refused:
        names["list_sources"](args, place)
    why = "1 of 2 classes are not in train.csv, as dog; known are ant, bee, cat"
    assert str(refused.value) == f"{data}: {why}"


def test_a_new_corpus_continues(tmp_path):
    """Both ways begin from the first run's weights, so their first losses are equal, and below that
    of random weights."""
    write_text(tmp_path / "DIR")
    write_text(tmp_path / "DIR2")
    text = (tmp_path / "DIR2" / "train.txt").read_text()
    (tmp_path / "DIR2" / "train.txt").write_text(text.replace("cat", "owl"))
    outputs = [train(words, tmp_path) for words in commands("A new corpus")]
    first = [float(re.search(r"step 1  loss (\S+)", output)[1]) for output in outputs]
    assert first[1] == first[2] < first[0] - 1
