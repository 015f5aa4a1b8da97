"""tools/look.py: what it says of checkpoints is what the model itself and the scripts say."""

import argparse
import collections
import copy
import csv
import functools
import importlib
import json
import os
import pathlib
import re
import shutil
import sys
import types

import matplotlib.figure
import numpy as np
import PIL.Image
import pytest
import torch
import torchvision
from conftest import ROOT, begin, command, copy_script, environment, run, scalars, the_run
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter
from torchvision.transforms import v2

from trainparts import errors, safe_files
from trainparts.runs import event_log

CLASSES = ["ant", "bee", "cat", "dog"]
NET = "squeezenet1_1"  # where it does not matter: 0.7 million weights, of ResNet-18's 11
SIZE, RESIZE, MEAN, STD = 64, 72, [0.5, 0.4, 0.3], [0.2, 0.3, 0.25]
about = {"classes": CLASSES, "image_size": SIZE, "val_resize": RESIZE, "mean": MEAN, "std": STD}


@pytest.fixture
def look(call_tool, monkeypatch, tmp_path):
    """look(*words, status=0) in tmp_path: returns (stdout, stderr). With --script it may start
    itself again, so it is called in a process of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*words, status=0):
        if "--script" not in words:
            return call_tool("look", *words, status=status)
        words, errors = [sys.executable, ROOT / "tools" / "look.py", *words], tmp_path / "errors"
        errors.unlink(missing_ok=True)
        process = begin([*map(str, words)], tmp_path, environment(), errors=errors)
        output, _ = process.communicate()
        assert process.returncode == status, errors.read_text()
        return output, errors.read_text()

    return call


@pytest.fixture
def figures(monkeypatch):
    """A list to which each figure is added as it is saved."""
    saved, savefig = [], matplotlib.figure.Figure.savefig

    def save(figure, *words, **options):
        saved.append(figure)
        savefig(figure, *words, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", save)
    return saved


def make(arch=NET, seed=0, classes=4):
    """Returns a model in evaluation mode whose answers differ from image to image."""
    return copy.deepcopy(made(arch, seed, classes))


@functools.lru_cache(4)
def made(arch, seed, classes):
    torch.manual_seed(seed)
    model = torchvision.models.get_model(arch, num_classes=classes)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.weight.data.uniform_(0.5, 1.5)
    return model.eval()


def write(path, model, arch=NET, **more):
    """Writes a checkpoint as the scripts do."""
    state = {"arch": arch, "num_classes": 4, "state_dict": model.state_dict(), "ema": {}}
    state["model_options"] = {}
    torch.save({**state, **about, **more}, path)
    return path


def write_pictures(folder, names=CLASSES, each=3, kind="png"):
    """Writes pictures that differ, so many a class; returns their paths."""
    paths, rng = [], np.random.default_rng(0)
    for label, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
            pixels[..., label % 3] //= 1 + label
            image = PIL.Image.fromarray(pixels).resize((110, 90), PIL.Image.BICUBIC)
            paths.append(folder / name / f"{number}.{kind}")
            image.save(paths[-1])
    return paths


@pytest.fixture
def picture(tmp_path):
    """The path of one picture, of the first class."""
    (path,) = write_pictures(tmp_path / "pictures", CLASSES[:1], 1)
    return path


def answers(model, paths):
    """Returns the probabilities (N, C) that torchvision's own transforms lead to."""
    steps = [v2.Resize(RESIZE), v2.CenterCrop(SIZE), v2.PILToTensor()]
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    images = torch.stack([v2.Compose(steps)(PIL.Image.open(path)) for path in paths])
    with torch.no_grad():
        return model(images).softmax(dim=1)


def said(output):
    """Returns [{class: probability}] of what predict printed."""
    lines = [line.split(": ")[1] for line in output.splitlines()]
    found = [re.findall(r"(\w+) ([\d.]+) %", line) for line in lines]
    return [{name: float(share) / 100 for name, share in each} for each in found]


def test_predictions_are_those_of_the_model(tmp_path, look):
    model, paths = make("resnet18"), write_pictures(tmp_path / "pictures")
    checkpoint = write(tmp_path / "model_best.pt", model, "resnet18")
    (tmp_path / "odd.jpg").write_text("no picture")
    output, errors = look("predict", checkpoint, *paths[:5], "odd.jpg", *paths[5:], status=2)
    assert "odd.jpg cannot be read" in errors and len(errors.splitlines()) == 1
    lines = output.splitlines()
    assert [line.split(": ")[0] for line in lines] == [str(path) for path in paths]
    for found, wanted in zip(said(output), answers(model, paths), strict=True):
        assert [*found] == [CLASSES[label] for label in wanted.argsort(descending=True)]
        assert [found[name] for name in CLASSES] == pytest.approx(wanted.tolist(), abs=0.01)
    assert len({line.split(": ")[1] for line in lines}) == len(lines), "each picture by itself"


def read_table(path):
    """Returns the rows of a table, each as {column: text}."""
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        return [*csv.DictReader(file)]


def test_a_folder_as_a_table(tmp_path, look, monkeypatch):
    """Below it at any depth, in batches; each probability with all its digits."""
    monkeypatch.setattr(os, "cpu_count", lambda: 0)  # pytest captures no loader process's lines
    names = ["ant, red", 'b"ee', "cat", "dog"]
    model = make()
    checkpoint = write(tmp_path / "model_best.pt", model, classes=names)
    paths = write_pictures(tmp_path / "pictures", ["a", "b", "b/c"], each=22)
    paths[0] = paths[0].rename(tmp_path / "pictures" / "a" / "z.PNG")
    odd = tmp_path / "pictures" / "b" / os.fsdecode(b"\xff\n.png")
    paths[1] = paths[1].rename(odd)
    (tmp_path / "pictures" / "a" / "notes.txt").write_text("not looked at")
    (tmp_path / "pictures" / "a" / "odd.jpg").write_text("no picture")
    (tmp_path / "alone.png").write_bytes(paths[3].read_bytes())
    (tmp_path / "pictures" / "b" / "above").symlink_to("..")
    words = ["predict", checkpoint, "alone.png", "./pictures/"]
    output, errors = look(*words, "--csv", "out.csv", status=2)
    assert output == "table: out.csv\n"
    assert errors.startswith("./pictures/a/odd.jpg cannot be read: ") and errors.count("\n") == 1
    rows, folder = read_table("out.csv"), tmp_path / "pictures"
    found = [f"./pictures/{path.relative_to(folder)}" for path in sorted([*folder.glob("a/*.*")])]
    found += [f"./pictures/{path.relative_to(folder)}" for path in sorted(folder.glob("b/*.png"))]
    found += [f"./pictures/b/c/{path.name}" for path in sorted(folder.glob("b/c/*.png"))]
    some = [name for name in found if not name.endswith((".txt", "odd.jpg"))]
    assert [row["file"] for row in rows] == ["alone.png", *some] and len(some) == 66
    assert [*rows[0]] == ["file", "class", *names]
    tool = importlib.import_module("look")
    trained = tool.open_checkpoint(checkpoint)
    images, sizes = [], []
    for crops, numbers in tool.crops(trained, [row["file"] for row in rows]):
        images.append(tool.normalised(trained, crops))
        sizes.append(len(numbers))
    assert sizes == [64, 3]
    with torch.no_grad():
        wanted = model(torch.cat(images)).softmax(dim=1)
    values = np.array([[row[name] for name in names] for row in rows], np.float32)
    assert np.abs(values.sum(axis=1) - 1).max() < 1e-6
    torch.testing.assert_close(torch.from_numpy(values), wanted, rtol=1e-5, atol=1e-7)
    assert [row["class"] for row in rows] == [names[label] for label in values.argmax(axis=1)]
    output = look(*words, status=2)[0].splitlines()
    assert len(output) == 67 and any(r"b/\udcff\n.png: " in line for line in output)
    (tmp_path / "empty").mkdir()
    (line,) = look("predict", checkpoint, "empty", status=2)[1].splitlines()
    assert line.startswith("look.py: error: empty has no image (*.jpg, *.jpeg, ")


def test_tables_are_whole(tmp_path, look, monkeypatch, picture):
    """They are refused before a model is used, and replace what was there when they are complete;
    a pipe has no place of its own."""
    checkpoint = write(tmp_path / "model.pt", make())
    (tmp_path / "table.csv").write_text("before")
    (tmp_path / "link.csv").symlink_to("table.csv")
    words = ["predict", checkpoint, picture, "--csv"]
    look(*words, "link.csv")
    assert (tmp_path / "link.csv").is_symlink()
    whole = (tmp_path / "table.csv").read_bytes().decode()
    assert whole.startswith(f"file,class,ant,bee,cat,dog\n{picture},")
    reads, writes = os.pipe()
    assert not look(*words, f"/dev/fd/{writes}")[0]
    os.close(writes)
    with open(reads, newline="") as pipe:
        assert pipe.read().splitlines() == whole.splitlines()
    tool = importlib.import_module("look")

    def fail(*_):
        raise RuntimeError("used")

    for program in ["predict", checkpoint, picture], ["classes", checkpoint, "absent"]:
        with monkeypatch.context() as patched:
            patched.setattr(tool, "open_checkpoint", fail)
            for name, why in (
                ("pictures", "cannot be written: Is a directory"),
                ("absent/t.csv", "cannot be written: No such file or directory"),
                ("model.pt/t.csv", "cannot be written: Not a directory"),
                ("cat.jpg", "is no name for a table: give FILE.csv"),
                ("model.pt", "is no name for a table: give FILE.csv"),
            ):
                (line,) = look(*program, "--csv", name, status=2)[1].splitlines()
                assert line == f"look.py: error: --csv {name} {why}"
    monkeypatch.setattr(tool, "likeliest", fail)
    monkeypatch.setattr(tool, "crops", fail)
    assert "error: used" in look(*words, "table.csv", status=2)[1]
    assert (tmp_path / "table.csv").read_text() == whole
    assert not [*tmp_path.rglob("*.tmp")]


def test_averages_are_taken_where_there_are_any(tmp_path, look, picture):
    trained, averaged = make(seed=1), make(seed=2)
    checkpoint = write(tmp_path / "checkpoint.pt", trained, ema=averaged.state_dict())
    found, wanted = said(look("predict", checkpoint, picture)[0]), answers(averaged, [picture])[0]
    assert [found[0][name] for name in CLASSES] == pytest.approx(wanted.tolist(), abs=0.01)


def test_foreign_checkpoints(tmp_path, look):
    """Of pytorch/examples, of torchvision's references, and bare weights."""
    model = make(classes=1000)
    state = {f"module.{name}": each for name, each in model.state_dict().items()}
    torch.save({"arch": NET, "state_dict": state, "epoch": 3}, tmp_path / "a.pth.tar")
    args = argparse.Namespace(model=NET, lr=0.1)
    torch.save({"model": model.state_dict(), "epoch": 3, "args": args}, tmp_path / "b.pth")
    torch.save(model.state_dict(), tmp_path / "c.pth")
    (path,) = write_pictures(tmp_path / "pictures", CLASSES[:1], 1, "jpg")
    first = look("predict", "a.pth.tar", path)[0]
    assert first == look("predict", "b.pth", path, "-a", NET)[0]
    assert first == look("predict", "c.pth", path, "-a", NET)[0]
    transform = torchvision.models.get_model_weights(NET).DEFAULT.transforms()
    with torch.no_grad():
        likely = model(transform(PIL.Image.open(path))[None]).softmax(dim=1)
    name = torchvision.models.ResNet18_Weights.DEFAULT.meta["categories"][likely.argmax()]
    assert first.startswith(f"{path}: {name} {100 * likely.max():.1f} %")
    assert "give -a" in look("predict", "c.pth", path, status=2)[1]


def test_classes_are_counted_and_drawn(tmp_path, look, figures):
    """As the predictions say; that they are the scripts' is the next test's."""
    model, folder = make("resnet18", seed=1), tmp_path / "data"
    paths = write_pictures(folder / "val", each=20)
    # No class is the likeliest of all.
    model.fc.bias.data -= answers(model, paths).log().mean(dim=0)
    checkpoint = write(tmp_path / "model_best.pt", model, "resnet18")
    output, _ = look("classes", checkpoint, folder, "--out", "matrix.png")
    taken = [max(each, key=each.get) for each in said(look("predict", checkpoint, *paths)[0])]
    pairs = collections.Counter(zip((path.parent.name for path in paths), taken, strict=True))
    right = collections.Counter({(name, name): pairs[name, name] for name in CLASSES})
    assert len(set(taken)) > 1, "or the test could not fail"
    for name in CLASSES:
        assert re.search(rf"^{name} +20 +{5 * right[name, name]:.2f}$", output, re.M), output
    (((label, other), most),) = (pairs - right).most_common(1)
    assert f"confused:\n  {label} taken for {other}: {most} of 20" in output
    picture = np.asarray(PIL.Image.open(tmp_path / "matrix.png").convert("L")).copy()
    assert picture.shape == (1050, 1200)
    picture[15:-15, 15:-15] = 255
    assert picture.min() == 255, "no label touches an edge"
    axes, _ = figures[0].axes
    wanted = [f"{5 * pairs[row, column]}" for row in CLASSES for column in CLASSES]
    assert [text.get_text() for text in axes.texts] == wanted
    assert axes.get_title() == f"top-1 {5 / 4 * right.total():.2f} %; images: 80"


def test_no_column_is_taken_for_another(tmp_path, look):
    names = ["class", "file", "class_", "cat"]
    folder = tmp_path / "data"
    write_pictures(folder / "val", names, each=2)
    checkpoint = write(tmp_path / "model_best.pt", make(seed=1), classes=names)
    look("predict", checkpoint, folder / "val", "--csv", "out.csv")
    columns = ["class__", "file_", "class_", "cat"]
    for row in read_table("out.csv"):
        assert [*row] == ["file", "class", *columns] and row["file"].startswith(str(folder))
        chances = [float(row[column]) for column in columns]
        assert sum(chances) == pytest.approx(1, abs=1e-5)
        assert row["class"] == names[np.argmax(chances)]
    look("classes", checkpoint, folder, "--csv", "confusion.csv")
    rows = read_table("confusion.csv")
    assert [row["class"] for row in rows] == names
    assert [*rows[0]] == ["class", "class__", "file", "class_", "cat"]
    assert sum(int(row[name]) for row in rows for name in [*row][1:]) == 8


def test_classes_of_unequal_size(tmp_path, look):
    """Balanced accuracy is the mean of classes; the matrix has the counts of all classes."""
    names = ["dog", "ant, red", "cat", "bee"]  # a checkpoint's need not be sorted
    model, folder = make("resnet18", seed=1), tmp_path / "data"
    paths = write_pictures(folder / "val", names[:3], each=20)
    model.fc.bias.data -= answers(model, paths).log().mean(dim=0)
    for path in paths[5:20] + paths[30:40]:
        path.unlink()
    checkpoint = write(tmp_path / "model_best.pt", model, "resnet18", classes=names)
    output, _ = look("classes", checkpoint, folder, "--csv", "confusion.csv")
    look("predict", checkpoint, folder / "val", "--csv", "each.csv")
    pairs = collections.Counter(
        (row["file"].split("/")[-2], row["class"]) for row in read_table("each.csv")
    )
    expected = [{"class": row} | {name: str(pairs[row, name]) for name in names} for row in names]
    assert read_table("confusion.csv") == expected and pairs.total() == 35
    right = [pairs[name, name] / images for name, images in zip(names, (5, 10, 20), strict=False)]
    top1 = 100 * sum(pairs[name, name] for name in names) / 35
    assert top1 != pytest.approx(100 * np.mean(right), abs=1), "or the test could not fail"
    line = f"val: top-1 {top1:.3f} %, balanced accuracy {100 * np.mean(right):.3f} %, loss "
    assert line in output and "top-5" not in output
    worst_first = re.findall(r"^(\S.*?) +\d+ +[\d.]+$", output, re.MULTILINE)
    counts = [pairs[name, name] for name in worst_first]
    shares = [pairs[name, name] / [5, 10, 20][names.index(name)] for name in worst_first]
    assert len(counts) == 3 and counts != sorted(counts), "or the test could not fail"
    assert shares == sorted(shares)
    several = [f"c{number}" for number in range(6)]
    write(checkpoint, make(classes=6), num_classes=6, classes=several)
    write_pictures(tmp_path / "six" / "val", several, 1)
    assert re.search(r"%, top-5 [\d.]+ %, loss", look("classes", checkpoint, "six")[0])


@pytest.mark.parametrize(
    "options",
    [pytest.param([], marks=pytest.mark.slow), ["--ema", "0.9"]],
    ids=["plain", "averages"],
)
def test_what_is_saved_is_what_the_script_validates(options, demo, tmp_path, look):
    """To the digit, of the averages too: test/ is here what the script had as val/."""
    net = ["-a", "shufflenet_v2_x0_5", "--image-size", 32, "--no-accel"]
    words = [*command("imagenet_nd.py"), *net, *options]
    # After step 32 averages stay behind.
    words += ["-j", 0, "-b", 4, "--epochs", 1, "--steps-per-epoch", 40]
    data = shutil.copytree(demo, tmp_path / "data")
    for path in [*data.glob("val/*/*.jpg")]:  # of 64 images and more there are loader processes
        shutil.copy(path, path.with_name(f"again {path.name}"))
    run([*words, data], tmp_path)
    folder = the_run(tmp_path / "runs")
    (data / "val" / "class3" / "bad.jpg").write_text("no picture")  # which counts nowhere
    shutil.copytree(data / "val", tmp_path / "other" / "test")
    words = ["classes", folder / "model_best.pt", "other", "--part", "test", "--save"]
    assert not look(*words, status=2)[1]  # loader processes print what cannot be read
    copy_script("changed.py", tmp_path, changed("SUMS =", "SUM = 1\nSUMS ="))
    line, unread = look(*words, "--script", "changed.py", status=2)[1].splitlines()
    assert "bad.jpg cannot be read" in unread  # by a loader process, in a program of its own
    assert "imagenet_nd.py, which trained it, has another task section than" in line
    error = look("classes", folder / "model_best.pt", "data", "--save", status=2)[1]
    assert "--part test alone" in error and not (folder / "val.json").exists()
    text = (folder / "test.json").read_text()
    saved = json.loads(text)
    for name in "Top1", "Top5", "Loss":
        found = np.float32(saved.pop(name.lower()))  # as it is logged
        wanted = scalars(tmp_path / "runs", f"{name}/val")[1]
        assert found == pytest.approx(wanted, rel=1e-6 if name == "Loss" else 1e-7), name
    # Each class has as many images.
    assert saved.pop("balanced_accuracy") == pytest.approx(json.loads(text)["top1"])
    assert saved == {"checkpoint": "model_best.pt", "count": 80}
    assert text.endswith("}\n") and not [*folder.glob("*.tmp")]


def test_nothing_is_saved_of_what_cannot_be_measured(tmp_path, look):
    checkpoint = write(tmp_path / "model.pt", make())
    write_pictures(tmp_path / "other" / "test", ["dog", "eel"], 1)
    write_pictures(tmp_path / "bad" / "test", ["dog"], 1, "jpg")[0].write_text("no picture")
    for folder, message in (
        ("absent", "absent/test is no folder: DIR holds test/<class>/"),
        ("other", "model.pt, as eel; known are ant, bee, cat, ..."),
        ("bad", "bad/test has no picture that can be read"),
    ):
        words = ["classes", checkpoint, folder, "--part", "test", "--save"]
        assert message in look(*words, status=2)[1].splitlines()[-1]
    assert not [*tmp_path.rglob("*.json")]


def test_some_of_the_classes_by_name(tmp_path, look, figures):
    """A folder may have fewer classes than the checkpoint."""
    checkpoint = write(tmp_path / "model_best.pt", make())
    write_pictures(tmp_path / "few" / "test", ["dog", "bee"], 2)
    output, _ = look("classes", checkpoint, "few", "--part", "test")
    assert sorted(re.findall(r"^(\w+) +2 ", output, re.M)) == ["bee", "dog"]
    assert not [*tmp_path.rglob("*.json")], "without --save"
    look("classes", checkpoint, "few", "--part", "test", "--save")
    assert json.loads((tmp_path / "test.json").read_text())["count"] == 4
    one = write(tmp_path / "one.pt", make(classes=1), num_classes=1, classes=["dog"])
    write_pictures(tmp_path / "one" / "val", ["dog"], 2)
    exact = "one/val: top-1 100.000 %, balanced accuracy 100.000 %, loss 0.0000; images: 2"
    assert exact in look("classes", one, "one")[0]
    names = [f"c{number:02}" for number in range(21)]
    write_pictures(tmp_path / "many" / "val", names, 1)
    write(checkpoint, make(classes=21), num_classes=21, classes=names)
    look("classes", checkpoint, "many")
    assert not figures[-1].axes[0].texts, "no numbers where cells are small"


# ------------------------------------------------------------------------------- changed scripts


def changed(*pairs, script="imagenet_nd.py"):
    """Returns the text of a script with (old, new) texts replaced, each of which stands once."""
    text = (ROOT / script).read_text()
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def log_start(folder, script, about="{}", images=None):
    """Logs the start of a run as the scripts do: each in a second of its own, by which logs are
    sorted."""
    event_log.wait_for_clock(folder)
    log = SummaryWriter(folder, filename_suffix=f".{len([*folder.glob('*tfevents*')])}")
    log.add_text("about", f"```json\n{about}\n```")
    own = (path.read_text() for path in (ROOT / "trainparts" / "images").glob("*.py"))
    texts = script, *(images or own), "modules = 'of other folders'"
    log.add_text("script", "\n".join(f"```python\n{text}\n```" for text in texts))
    log.close()


def test_a_changed_script_has_the_package_beside_it(tmp_path, look, picture):
    """Which may have changed, too."""
    text = changed("\nimport numpy as np\n", "\nimport numpy as np\nfrom trainparts import own\n")
    copy_script("mine.py", tmp_path, text)
    (tmp_path / "trainparts" / "own.py").touch()
    checkpoint = write(tmp_path / "model.pt", make())
    assert look("predict", checkpoint, picture, "--script", "mine.py")[0]
    assert look("predict", checkpoint, picture)[0], "the repository's again"


def test_a_changed_script_s_code_is_used(tmp_path, look, picture):
    """Its model, its crop with its own option's value in the checkpoint, and its normalisation."""
    model = make("resnet18")
    model.fc = torch.nn.Sequential(torch.nn.Linear(512, 3), torch.nn.Linear(3, 4))
    args = {"mask": 255, "mixup": torch.ones(2)}
    checkpoint = write(tmp_path / "model.pt", model, "resnet18", args=args)
    own = "model.fc = nn.Sequential(nn.Linear(512, helper.WIDTH), nn.Linear(helper.WIDTH, 4))"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "helper.py").write_text("WIDTH = 3")
    copy_script(
        "mine.py",
        tmp_path / "own",
        changed(
            "import numpy as np\n",
            "import numpy as np\nimport helper\n",
            "    if load and not data.from_checkpoint and",
            f"    {own}\n    if load and not data.from_checkpoint and",
            "out.copy_(resized[top : top + len(out), left : left + len(out)])",
            "out.copy_(resized[top : top + len(out), left : left + len(out)] ^ args.mask)",
            'add(\n        "-j",\n',
            'add("--mask", type=int, default=0, help="XOR")\n    add(\n        "-j",\n',
            ".float().mul_(scale).add_(shift)",
            ".float().mul_(scale).add_(shift).mul_(2)",
        ),
    )
    shutil.rmtree(tmp_path / "own" / "trainparts")  # which may also be the repository's
    steps = [v2.Resize(RESIZE), v2.CenterCrop(SIZE), v2.PILToTensor(), v2.RandomInvert(1)]
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    with torch.no_grad():
        image = 2 * v2.Compose(steps)(PIL.Image.open(picture))[None]
        wanted = model(image).softmax(dim=1)[0]
    own = "--script", "own/mine.py"
    found = said(look("predict", checkpoint, picture, *own)[0])[0]
    assert [found[name] for name in CLASSES] == pytest.approx(wanted.tolist(), abs=0.01)
    assert "weights do not fit" in look("predict", checkpoint, picture, status=2)[1]
    folder = tmp_path / "data"
    for label, name in enumerate(CLASSES):
        (folder / "val" / name).mkdir(parents=True)
        if label == wanted.argmax():
            shutil.copy(picture, folder / "val" / name)
    assert "val: top-1 100.000 %" in look("classes", checkpoint, folder, *own)[0]
    look("export", checkpoint, "model.pt2", *own)
    exported = torch.export.load(tmp_path / "model.pt2").module()(image.expand(2, -1, -1, -1))
    torch.testing.assert_close(exported.softmax(dim=1)[0], wanted)
    look("average", checkpoint, checkpoint, "mean.pt", *own)
    assert "no class activation maps" in look("cam", "mean.pt", picture, *own, status=2)[1]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("absent.py", None, "--script absent.py is no file that ends in .py"),
        ("script.txt", "", "--script script.txt is no file that ends in .py"),
        ("odd.py", "def", "--script odd.py cannot be imported: SyntaxError: "),
        ("odd.py", "import nonesuch", "cannot be imported: ModuleNotFoundError: No module"),
        ("odd.py", "raise SystemExit(0)", "--script odd.py cannot be imported: SystemExit: 0"),
        (ROOT / "text_nd.py", None, "text_nd.py is no imagenet_*.py: it lacks "),
    ],
)
def test_no_script_of_images(name, text, message, look, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    (line,) = look("predict", "model.pt", "a.jpg", "--script", name, status=2)[1].splitlines()
    assert line.startswith("look.py: error: --script ") and message in line


def test_a_log_with_another_package(tmp_path, look, picture):
    """A line where a module of images/ differs, or is missing as in logs of before it; by --script,
    the package beside that script counts."""
    folder = tmp_path / "run"
    folder.mkdir()
    words = ["predict", write(folder / "model.pt", make()), picture]
    script = (ROOT / "imagenet_nd.py").read_text()
    copy_script("mine.py", tmp_path, script)
    module = tmp_path / "trainparts" / "images" / "decoding.py"
    module.write_text(module.read_text() + "# changed\n")
    texts = [path.read_text() for path in module.parent.glob("*.py")]
    for images, wrong, right in (
        (texts, [], ["--script", "mine.py"]),
        (None, ["--script", "mine.py"], []),
        (texts[1:], ["--script", "mine.py"], None),
    ):
        log_start(folder, script, images=images)
        assert "which trained it, has another trainparts/images than" in look(*words, *wrong)[1]
        assert right is None or not look(*words, *right)[1]
    for text, why in ("def (", "SyntaxError: "), ("", "AttributeError: "):
        module.write_text(text)
        *_, line = look(*words, "--script", "mine.py", status=2)[1].splitlines()
        assert f"error: {tmp_path}/trainparts does not fit this program ({why}" in line
    module.unlink()
    (line,) = look(*words, "--script", "mine.py", status=2)[1].splitlines()
    assert line == (
        f"look.py: error: {tmp_path / 'trainparts'} is of another version, and lacks 1 modules, as "
        "images/decoding.py: use this program of its own checkout"
    )


def test_a_log_with_one_file(tmp_path, look, picture):
    """What tools/one_file.py makes of a script is the same as the script; with --script, which
    needs the script's modules, it is refused."""
    folder = tmp_path / "run"
    folder.mkdir()
    words = ["predict", write(folder / "model.pt", make()), picture]
    whole = run(
        [sys.executable, ROOT / "tools" / "one_file.py", ROOT / "imagenet_ddp.py"], tmp_path
    )
    for old, new, says in (
        ("def train_one_epoch(", "def train_an_epoch(", None),
        ("\ndef handle_signals(", "\nCHANGED = 1\n\n\ndef handle_signals(", None),
        ("def mean_colour(data):", "def mean_colour(data, low=0):", "another task section than"),
        ("\ndef resize(", "\nCHANGED = 1\n\n\ndef resize(", "another trainparts/images than"),
    ):
        assert whole.count(old) == 1
        log_start(folder, whole.replace(old, new), images=[""])
        line = look(*words)[1]
        assert says in line if says else not line
    (tmp_path / "whole.py").write_text(whole)
    (line,) = look(*words, "--script", "whole.py", status=2)[1].splitlines()
    made = "was made by tools/one_file.py: give the script it was made of"
    assert line == f"look.py: error: --script whole.py {made}"


def test_a_log_with_another_script(tmp_path, look, picture):
    """A line where the task section differs, whatever else does; nothing of it is executed."""
    folder = tmp_path / "run"
    folder.mkdir()
    checkpoint, words = write(folder / "model.pt", make()), ["predict", "run/model.pt", picture]
    assert not look(*words)[1], "no log"
    same = (
        (ROOT / "imagenet_nd.py").read_text(),
        (ROOT / "imagenet_ddp.py").read_text(),
        changed("def train_one_epoch(run):", "def train_an_epoch(run):"),
        changed("def main():", "def begin():"),
    )
    for text in same:
        log_start(folder, text)
        assert not look(*words)[1]
    bare = re.sub("(?m)^# ==== .*\n", "", same[0])  # all of it is compared, without the package
    log_start(folder, bare)
    copy_script("bare.py", tmp_path, bare)
    assert not look(*words, "--script", "bare.py")[1]
    ran = "open('ran', 'w')\n"
    other = changed("def mean_colour(data):", f"{ran}def mean_colour(data, low=0):")
    about = json.dumps({"command": "python '../own/mi\x1bne.py' -a resnet18 DIR"})
    log_start(folder, other, about)
    (line,) = look(*words)[1].splitlines()
    used = ROOT / "imagenet_nd.py"
    assert line.startswith(
        rf"run/model.pt: ../own/mi\x1bne.py, which trained it, has another task section than {used}"
    )
    assert "type --script FILE to use that script" in line and not (tmp_path / "ran").exists()
    copy_script("mine.py", tmp_path, other.replace(ran, ""))
    assert "has another task section than" in look(*words, "--script", "mine.py")[1]
    copy_script("mine.py", tmp_path, other)
    assert not look(*words, "--script", "mine.py")[1]
    (tmp_path / "ran").unlink()  # by what was typed alone
    (tmp_path / "mine.pt").symlink_to(checkpoint)
    assert "mine.pt: ../own/mi" in look("predict", "mine.pt", picture)[1]
    shutil.copy(checkpoint, tmp_path / "copy.pt")
    assert not look("predict", "copy.pt", picture)[1]
    for odd in "[]", "text", '{"command": "a"}', '{"command": 1}', '{"command": "\'"}':
        log_start(folder, "other", odd)
        assert "the script, which trained it, has another" in look(*words)[1]
    write(folder / "w.pth", make())
    saved = torch.load(folder / "w.pth")
    torch.save(saved["state_dict"], folder / "w.pth")  # not of a run
    assert not look("predict", "run/w.pth", picture, "-a", NET)[1]
    for damage in b"no log" * 9, b"":
        for path in folder.glob("*tfevents*"):
            path.write_bytes(damage)
        assert not look(*words)[1]
    with open(folder / "tfevents", "wb") as file:  # named last
        RecordWriter(file).write(b"no event")
    assert not look(*words)[1] and not (tmp_path / "ran").exists()


def test_names_send_a_terminal_no_commands(tmp_path, look):
    """Neither those of a checkpoint nor those of folders."""
    names, seen = ["a\x1b[2Jt", "b\nee", "c\x9b2J", "dog"], [r"a\x1b[2Jt", r"b\nee", r"c\x9b2J"]
    checkpoint = write(tmp_path / "model.pt", make(), classes=names)
    folder = tmp_path / "data"
    paths = write_pictures(folder / "val", names)
    for words in ["predict", checkpoint, paths[0], paths[3]], ["classes", checkpoint, folder]:
        output, _ = look(*words)
        assert all(name in output for name in seen), output
        assert not set("\x1b\x9b") & set(output)
    assert re.search(r"^b\\nee +3 +\d", output, re.M)
    write_pictures(tmp_path / "other" / "val", ["e\x1bl"], 1)
    (line,) = look("classes", checkpoint, "other", status=2)[1].splitlines()
    assert line.endswith(r"model.pt, as e\x1bl; known are a\x1b[2Jt, b\nee, c\x9b2J, ...")


def test_a_checkpoint_names_no_other_file(tmp_path, look, picture):
    """timm would load it, older releases with the code that it holds."""
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnet10t", num_classes=4)
    checkpoint = write(tmp_path / "model.pt", model, "timm/resnet10t", model_options={})
    expected = look("predict", checkpoint, picture)[0]
    (tmp_path / "other.pt").write_text("what no library can load")
    for options in {"checkpoint_path": "other.pt"}, {"pretrained_cfg": {"file": "other.pt"}}:
        write(checkpoint, model, "timm/resnet10t", model_options=options)
        assert look("predict", checkpoint, picture)[0] == expected


@pytest.mark.parametrize("arch", ["resnet18", "squeezenet1_1", "densenet121", "mobilenet_v2"])
def test_maps_are_the_features_weighted(arch, tmp_path, look):
    """By the definition (Zhou et al. 2016), whether the mean is a module's or a function's; and
    what is drawn is each picture's map of its likeliest class, or of the class asked for."""
    model, paths = make(arch), write_pictures(tmp_path / "pictures", CLASSES[:3], 1)
    checkpoint = write(tmp_path / f"{arch}.pt", model, arch)
    output, errors = look("cam", checkpoint, checkpoint, *paths, paths[0], "--class", "bee")
    assert output == "class activation maps: cam.png\n" and not errors
    assert PIL.Image.open(tmp_path / "cam.png").size == (3 * 480, 3 * 540 + 45)
    tool = importlib.import_module("look")
    trained, images = tool.open_checkpoint(checkpoint), torch.randn(2, 3, SIZE, SIZE)
    logits, maps = tool.activation_maps(trained, images)
    with torch.no_grad():
        torch.testing.assert_close(logits, model(images))
        if arch == "squeezenet1_1":
            expected = model.classifier[:3](model.features(images))
        else:
            stem = torch.nn.Sequential(*[*model.children()][:-2])  # without the pool
            features = (stem if arch == "resnet18" else model.features)(images).relu()
            last = {"resnet18": "fc", "mobilenet_v2": "classifier.1"}.get(arch, "classifier")
            weights = model.get_submodule(last).weight
            expected = torch.nn.functional.conv2d(features, weights[:, :, None, None])
    torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-5)
    likely = answers(model, paths)
    for label in None, "bee":
        drawn = tool.cells(trained, paths, label)
        for path, chances, cell in zip(paths, likely, drawn, strict=True):
            one = CLASSES.index(label) if label else int(chances.argmax())
            assert cell[0] == path and cell[1].shape == (SIZE, SIZE, 3)
            assert cell[2].startswith(f"{CLASSES[one]}, ")
            assert float(cell[2].split()[-2]) == pytest.approx(100 * float(chances[one]), abs=1)
            crop = torch.from_numpy(cell[1])[None]
            _, of_all = tool.activation_maps(trained, tool.normalised(trained, crop))
            assert cell[3].shape == (SIZE, SIZE)
            assert cell[3].mean() == pytest.approx(float(of_all[0, one].mean()), rel=0.2, abs=0.01)


def test_layers_that_have_versions(tmp_path, look, picture):
    checkpoint = write(tmp_path / "model.pt", make("mnasnet0_5"), "mnasnet0_5")
    assert look("predict", checkpoint, picture)[0].startswith(str(picture))


def test_googlenet_s_published_weights(tmp_path, look, picture):
    """It expects another normalisation, pools what is put together, and has more heads."""
    with pytest.warns(FutureWarning):
        model = torchvision.models.googlenet(num_classes=4, transform_input=True).eval()
    torch.save(model.state_dict(), tmp_path / "g.pth")
    output, errors = look("predict", "g.pth", picture, "-a", "googlenet")
    assert "are left out: aux1" in errors
    transform = torchvision.models.GoogLeNet_Weights.DEFAULT.transforms()
    with torch.no_grad():
        likely = model(transform(PIL.Image.open(picture))[None]).softmax(dim=1)[0]
    found = said(output)[0]
    assert [found[str(label)] for label in range(4)] == pytest.approx(likely.tolist(), abs=0.01)
    tool = importlib.import_module("look")
    trained = tool.open_checkpoint(tmp_path / "g.pth", "googlenet")
    assert tool.activation_maps(trained, torch.randn(1, 3, 224, 224))[1].shape == (1, 4, 7, 7)


@pytest.mark.parametrize("arch", ["mobilenet_v3_small", "convnext_tiny"])
def test_no_maps_of_others(arch, tmp_path, look, picture):
    """Several layers follow the mean, or another one."""
    checkpoint = write(tmp_path / "model.pt", make(arch), arch)
    (line,) = look("cam", checkpoint, picture, status=2)[1].splitlines()
    assert f"no class activation maps of {arch}" in line


def test_maps_of_what_can_be_read(tmp_path, look):
    checkpoint = write(tmp_path / "model.pt", make())
    paths = write_pictures(tmp_path / "pictures", CLASSES[:2], 1)
    paths[0].write_text("no picture")
    _, errors = look("cam", checkpoint, checkpoint, *paths, status=2)
    assert len(errors.splitlines()) == 1 and f"{paths[0]} cannot be read" in errors
    assert PIL.Image.open(tmp_path / "cam.png").size == (3 * 480, 540 + 45)


def test_maps_at_a_larger_size(tmp_path, look, figures, picture):
    """At 32 pixels ResNet's last map has one position."""
    sizes = {"image_size": 32, "val_resize": 36}
    checkpoint = write(tmp_path / "model.pt", make("resnet18"), "resnet18", **sizes)
    (line,) = look("cam", checkpoint, picture, status=2)[1].splitlines()
    assert "no class activation maps of resnet18 at 32 pixels" in line
    assert line.endswith("it may have some at --size 128") and not figures
    look("cam", checkpoint, picture, "--size", 128)
    whole, drawn = figures[0].axes
    title = drawn.get_title().splitlines()
    assert whole.get_title() == "0.png" and title[0] == "resnet18 at 128 pixels"
    assert figures[0].get_supxlabel().startswith("bright: what speaks most for the class")
    # The same part of the picture.
    tool = importlib.import_module("look")
    trained = tool.resized(tool.open_checkpoint(checkpoint), 128)
    assert (trained.data.val_size, trained.data.val_resize) == (128, 144)
    ((crops, _),) = tool.crops(trained, [picture])
    logits, maps = tool.activation_maps(trained, tool.normalised(trained, crops))
    assert np.array_equal(drawn.images[0].get_array(), crops[0])
    assert maps.shape == (1, 4, 4, 4)
    share, label = logits.softmax(dim=1)[0].max(dim=0)
    assert title[1] == f"{CLASSES[label]}, {100 * share:.1f} %"


def test_columns_have_names_that_differ(tmp_path, look, figures, picture):
    """By architecture, or by file where one stands twice: less the folders of all, in lines."""
    long = "Nov23_08-34-15_host_resnet18_gpux1_b32_cpu1_optfloat32"
    paths = [tmp_path / "runs" / name / "model_best.pt" for name in ("a$b$", long, "c")]
    for path, arch in zip(paths, ["resnet18", "resnet18", "squeezenet1_1"], strict=True):
        path.parent.mkdir(parents=True)
        write(path, make(arch), arch)
    for some, names in (
        (paths, ["a$b$/model_best.pt", f"{long}/model_best.pt", "c/model_best.pt"]),
        (paths[1:], ["resnet18", "squeezenet1_1"]),
    ):
        look("cam", *some, picture)
        titles = [axes.get_title().splitlines() for axes in figures[-1].axes[1:]]
        assert ["".join(title[:-1]) for title in titles] == names
        assert all(len(line) <= 40 for title in titles for line in title)


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_export_answers_as_the_model(kind, tmp_path, look, monkeypatch):
    if kind == "onnx":
        pytest.importorskip("onnxscript", reason="pip install onnx onnxscript onnxruntime")
    model = make("squeezenet1_1")
    checkpoint, out = write(tmp_path / "model.pt", model, "squeezenet1_1"), tmp_path / f"out.{kind}"
    (error,) = re.findall(r"checkpoint's: ([\d.e-]+)", look("export", checkpoint, out)[0])
    assert float(error) < 1e-4
    images = torch.randn(5, 3, SIZE, SIZE)
    if kind == "pt2":
        extra = {"about.json": ""}
        found = torch.export.load(out, extra_files=extra).module()(images)
        known = extra["about.json"]
    else:
        session = importlib.import_module("onnxruntime").InferenceSession(out)
        (name,) = (each.name for each in session.get_inputs())
        found = torch.from_numpy(session.run(None, {name: images.numpy()})[0])
        known = session.get_modelmeta().custom_metadata_map["about"]
    torch.testing.assert_close(found, model(images), rtol=1e-4, atol=1e-5)
    assert json.loads(known) == {**about, "arch": "squeezenet1_1", "interpolation": "bilinear"}
    if kind == "pt2":  # a program that answers otherwise is noticed
        other = torch.export.export(make("squeezenet1_1", seed=1), (images,))
        module = torch.export.ExportedProgram.module
        monkeypatch.setattr(torch.export.ExportedProgram, "module", lambda _: module(other))
        monkeypatch.setattr(torch, "randn", lambda *_: images)
        assert "answers otherwise" in look("export", checkpoint, "new.pt2", status=1)[1]
        assert not (tmp_path / "new.pt2").exists()


def test_average_is_the_mean(tmp_path, look, picture):
    net = "mobilenet_v3_small"  # with statistics of BatchNorm
    models = [make(net, seed) for seed in range(3)]
    paths = [write(tmp_path / f"{seed}.pt", model, net) for seed, model in enumerate(models)]
    look("average", *paths, "mean.pt")
    saved = torch.load(tmp_path / "mean.pt", weights_only=True)
    assert {name: saved[name] for name in about} == about
    states = [model.state_dict() for model in models]
    for name, mean in saved["state_dict"].items():
        wanted = torch.stack([state[name].double() for state in states]).mean(dim=0)
        torch.testing.assert_close(mean.double(), wanted, rtol=1e-6, atol=1e-7)
    assert look("predict", "mean.pt", picture)[0]
    torch.save({**torch.load(paths[0]), "classes": ["x", *CLASSES[1:]]}, "other.pt")
    line = look("average", paths[0], "other.pt", "no.pt", status=2)[1]
    assert "other.pt differs from" in line and "in classes" in line
    for each in models[:2]:  # without names of classes, which the mean does not invent
        torch.save({"state_dict": each.state_dict(), "arch": net}, f"{id(each)}.pth")
    look("average", *(f"{id(each)}.pth" for each in models[:2]), "bare.pt")
    assert not torch.load(tmp_path / "bare.pt", weights_only=True)["classes"]
    line = look("average", *paths, status=2)[1]  # OUT forgotten
    assert "2.pt is there already" in line
    assert "two checkpoints or more" in look("average", paths[0], "no.pt", status=2)[1]
    assert not (tmp_path / "no.pt").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"text", "bad.pt cannot be loaded"),
        ([1, 2], "it holds no weights by name"),
        ({"arch": NET, "state_dict": {"a": 1}}, "it holds no weights by name"),
        ({"arch": NET, "state_dict": {"a": torch.ones(4)}}, "weights do not fit"),
        ({"arch": "nonesuch", "state_dict": {"a": torch.ones(4)}}, "cannot be used: "),
        ({"num_classes": "x"}, "cannot be used: its num_classes is 'x'"),
        ({"classes": ["ant", 2]}, "cannot be used: its classes is ['ant', 2]"),
        ({"interpolation": "box"}, "cannot be used: its interpolation is 'box'"),
        ({1: torch.ones(4)}, "cannot be used: "),
        ({"image_size": "large"}, "cannot be used: "),
        ({"image_size": 100}, "its images of 72 pixels are less than the crop, 100"),
        ({"image_size": 4, "val_resize": 4, "arch": "squeezenet1_1"}, "cannot be used: "),
        ({"std": [1.0, 0.0, 1.0]}, "its mean and std are not three numbers each"),
        ({"mean": [0.5]}, "cannot be used: "),
        (
            {"ema": {"classifier.1.weight": torch.tensor([torch.nan])}},
            "its weights are not all finite",
        ),
        ({"state_dict": {}, "transform": re.compile}, "with Python objects, which could run code"),
    ],
)
def test_bad_checkpoints(content, message, tmp_path, look):
    path = tmp_path / "bad.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict) and not {"state_dict", 1} & content.keys():
        write(path, make(content.get("arch", NET)), **{"arch": NET, **content})
    else:
        torch.save(content, path)
    (line,) = look("predict", path, "picture.jpg", status=2)[1].splitlines()
    assert line.startswith("look.py: error: ") and message in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "required: COMMAND"),
        ("see model.pt", "invalid choice: 'see'"),
        ("predict absent.pt a.jpg", "absent.pt cannot be loaded: No such file"),
        ("cam model.pt", "cam takes checkpoints (.pt, .pth, .tar, .safetensors) and pictures"),
        ("cam model.pt a.jpg --class eel", "model.pt has no class eel"),
        ("cam model.pt a.jpg --size 1", "--size 1: squeezenet1_1 takes no such crops: "),
        ("cam model.pt a.jpg --size 2000", "2000 is no int from 1 to 1024"),
        ("export model.pt out.bin", "out.bin ends in none of .pt2, .onnx, .safetensors; "),
        ("export model.pt absent/out.pt2", "absent/out.pt2: there is no folder absent"),
        ("classes model.pt absent --out x.xyz", "--out x.xyz ends in none of "),
        ("cam model.pt a.jpg --out x.xyz", "--out x.xyz ends in none of "),
        ("classes model.pt absent", "absent/val is no folder"),
    ],
)
def test_bad_words(words, message, tmp_path, look):
    write(tmp_path / "model.pt", make("squeezenet1_1"), "squeezenet1_1")
    (line,) = look(*words.split(), status=2)[1].splitlines()
    assert "error: " in line and message in line


def test_an_option_of_the_training_changes_no_model(call_tool):
    call_tool("look", "--help")
    theirs = {"compile": True, "channels_last": True, "freeze": True, "auto_augment": "rand"}
    look = importlib.import_module("look")
    args = look.options_of({"model_options": {}, "args": theirs}, "resnet18")
    assert not (args.compile or args.channels_last or args.freeze) and args.auto_augment == "off"


# -------------------------------------------------------------------------- functions by themselves


@pytest.fixture
def program(monkeypatch, tmp_path):
    """The module, in tmp_path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("look")


def named(*names, **more):
    """Returns what stands in for a Trained whose classes have these names."""
    return types.SimpleNamespace(classes=[*names], **more)


IMAGENET_STD = [0.229, 0.224, 0.225]


@pytest.mark.parametrize(
    ("said", "size", "resize", "interpolation"),
    [
        ({}, 224, 256, "bilinear"),
        ({"image_size": 112}, 112, 128, "bilinear"),
        ({"image_size": 64, "val_resize": 64}, 64, 64, "bilinear"),
        ({"image_size": 64, "val_resize": 100, "interpolation": "bicubic"}, 64, 100, "bicubic"),
        ({"std": [0.3, 0.2, 0.1], "classes": ["ant", "bee"]}, 224, 256, "bilinear"),
    ],
)
def test_what_a_file_does_not_say_is_the_architecture_s(
    said, size, resize, interpolation, program, tmp_path
):
    """A crop of another size is of the same part of a picture."""
    state = {"arch": "squeezenet1_1", "state_dict": make("squeezenet1_1").state_dict()}
    torch.save(state | {"num_classes": 4, "model_options": {}} | said, tmp_path / "model.pt")
    trained = program.open_checkpoint(tmp_path / "model.pt")
    about = program.described(trained)
    assert about["arch"] == "squeezenet1_1"
    assert (about["image_size"], about["val_resize"]) == (size, resize)
    assert (trained.data.val_size, trained.data.val_resize) == (size, resize)
    assert about["interpolation"] == interpolation
    assert trained.classes == [*said.get("classes", "01"), "2", "3"]
    assert (about["mean"], about["std"]) == ([0.485, 0.456, 0.406], said.get("std", IMAGENET_STD))


def test_words_beside_the_ids_of_a_thousand_classes_alone(program):
    assert program.shown_name(named("n01443537", "n01440764"), 0) == "n01443537"
    thousand = named("n01440764", "other", *map(str, range(998)))
    assert program.shown_name(thousand, 0) == "tench (n01440764)"
    assert program.shown_name(thousand, 1) == "other"


def test_five_likeliest_classes_likeliest_first(program):
    chances = torch.tensor([0.10, 0.30, 0.02, 0.21, 0.15, 0.126, 0.094])
    text = "b 30.0 %, d 21.0 %, e 15.0 %, f 12.6 %, a 10.0 %"
    assert program.likeliest(named(*"abcdefg"), chances) == text
    assert program.likeliest(named(*"ab"), torch.tensor([0.25, 0.75])) == "b 75.0 %, a 25.0 %"


@pytest.mark.parametrize("name", ["cat.JPG", "cat.Png", "Model.PT", "model_best.pth.TAR", "a.webp"])
def test_no_table_takes_the_place_of_a_picture_or_a_checkpoint(name, program, tmp_path):
    (tmp_path / name).write_text("before")
    with pytest.raises(errors.BadInput, match="is no name for a table: give FILE.csv"):
        with program.open_table(tmp_path / name):
            pass
    assert (tmp_path / name).read_text() == "before"


@pytest.mark.parametrize("odd", [torch.inf, -torch.inf, torch.nan])
def test_outputs_that_are_not_finite_are_no_predictions(odd, program):
    trained, outputs = named("a", path="model.pt"), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert program.finite(trained, outputs) is outputs
    outputs[1, 0] = odd
    with pytest.raises(errors.BadInput, match="model.pt cannot be used: its outputs are not fin"):
        program.finite(trained, outputs)


@pytest.mark.parametrize("part", ["val", "train", "tests", "Test"])
def test_accuracy_of_test_alone_is_saved(part, program):
    words = argparse.Namespace(save=True, part=part, csv=None, checkpoint="absent.pt", arch=None)
    with pytest.raises(errors.BadInput, match="--part test alone"):
        program.classes(words)


def test_outputs_go_with_a_table(program):
    words = argparse.Namespace(outputs=True, csv=None, paths=[], checkpoint="absent.pt", arch=None)
    with pytest.raises(errors.BadInput, match="--outputs are written by --csv FILE"):
        program.predict(words)


def test_labels_of_a_part_are_those_of_train(program, tmp_path):
    """Where the file says no classes, and the part has some of them."""
    write_pictures(tmp_path / "train", "abc", 1)
    write_pictures(tmp_path / "val", "bc", 2)
    words = argparse.Namespace(dir=tmp_path, part="val", checkpoint="model.pt")
    trained = named("0", "1", "2", about={"published": False})
    source = program.open_part(words, trained)
    assert source.classes == ["a", "b", "c"] and source.target.tolist() == [1, 1, 2, 2]


def test_pairs_that_are_confused_most(program, capsys):
    """Ten at most, each of the images of its own class; and no pair that never is."""
    matrix = np.diag([9, 18, 27, 36, 45])
    wrong = [(0, 1), (4, 0), (2, 3), (1, 2), (3, 0), (1, 4)]  # from the fewest on
    wrong += [(2, 0), (0, 4), (4, 3), (3, 1), (2, 4)]
    for count, place in enumerate(wrong, 2):
        matrix[place] = count
    found = {"top1": 61.25, "balanced_accuracy": 59.5, "top5": 100.0, "loss": 1.25, "count": 1234}
    program.print_classes("DIR/val", [*"abcde"], matrix, found)
    first, *lines = capsys.readouterr().out.splitlines()
    said = "top-1 61.250 %, balanced accuracy 59.500 %, loss 1.2500; images: 1,234"
    assert first == f"DIR/val: {said}"
    images = matrix.sum(axis=1)
    assert len({*images}) == 5, "or the test could not fail"
    assert lines[lines.index("most often confused:") + 1 :] == [
        f"  {'abcde'[row]} taken for {'abcde'[column]}: {matrix[row, column]} of {images[row]}"
        for row, column in wrong[:0:-1]
    ]
    program.print_classes("DIR/val", ["bee", "anteater"], np.array([[4, 0], [2, 3]]), found)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "class     images  top-1, %",
        "anteater       5     60.00",
        "bee            4    100.00",
        "most often confused:",
        "  anteater taken for bee: 2 of 5",
    ]
    program.print_classes("DIR/val", [*"ab"], np.array([[3, 0], [0, 4]]), found)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "class  images  top-1, %",
        "a           3    100.00",
        "b           4    100.00",
    ]


def test_what_is_drawn_of_a_matrix(program, figures, tmp_path):
    """Rows are classes, columns what they were taken for, of those that have images."""
    names = ["ant", "bee", "cat", "dog"]
    matrix = np.array([[6, 0, 3, 1], [0, 0, 0, 0], [2, 0, 1, 1], [0, 0, 1, 7]])
    program.draw_matrix(tmp_path / "m.png", names, matrix, {"top1": 63.6363, "count": 1022})
    axes, beside = figures[0].axes
    shares = np.array([[60, 30, 10], [50, 25, 25], [0, 12.5, 87.5]])
    (image,) = axes.images
    assert np.array_equal(image.get_array(), shares) and image.get_clim() == (0, 100)
    drawn = {tuple(map(int, text.get_position())): text for text in axes.texts}
    for (row, column), share in np.ndenumerate(shares):
        text = drawn.pop((column, row))
        assert text.get_text() == f"{share:.0f}"
        assert text.get_color() == ("white" if share > 50 else "black"), "it is read on its cell"
    assert not drawn
    for axis in axes.xaxis, axes.yaxis:
        assert [label.get_text() for label in axis.get_ticklabels()] == ["ant", "cat", "dog"]
        assert [*axis.get_ticklocs()] == [0, 1, 2]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("taken for", "class")
    assert axes.get_title() == "top-1 63.64 %; images: 1,022"
    assert beside.get_ylabel() == "of a class's images, %"


@pytest.mark.parametrize(("count", "names", "numbers"), [(20, 20, 400), (21, 21, 0), (50, 50, 0)])
def test_a_matrix_has_names_and_numbers_while_they_fit(count, names, numbers, program, figures):
    every = [f"c{number}" for number in range(count)]
    program.draw_matrix("m.png", every, np.eye(count, dtype=int), {"top1": 100, "count": count})
    axes = figures[0].axes[0]
    assert len(axes.texts) == numbers
    assert [label.get_text() for label in axes.get_yticklabels()] == every[:names]


def test_a_matrix_of_many_classes_has_no_names(program, figures):
    every = [f"c{number}" for number in range(51)]
    program.draw_matrix("m.png", every, np.eye(51, dtype=int), {"top1": 100, "count": 51})
    assert not {*every} & {label.get_text() for label in figures[0].axes[0].get_yticklabels()}


def test_maps_are_drawn_over_the_pictures(program, figures, monkeypatch):
    """A row for each picture that can be read, a column for each model; columns are told apart by
    their files, less the folders of all, where an architecture stands twice."""
    paths = [pathlib.Path("runs/a/model_best.pt"), pathlib.Path("runs/b/c/model_best.pt")]
    pictures = [pathlib.Path(f"{name}.png") for name in ("one", "odd", "two")]

    def cells(trained, paths, label):
        given.append([path.stem for path in paths])
        for at, path in enumerate(paths):
            if path.stem != "odd":
                image = np.full((4, 4, 3), 10 * at + (trained.path == second))
                title = f"ant of {path.stem} by {trained.path.parent.name}"
                yield path, image, title, image[..., 0] / 7

    second, given = paths[1], []
    arch = argparse.Namespace(arch="resnet18")
    monkeypatch.setattr(
        program, "open_checkpoint", lambda path, _: named("ant", path=path, args=arch)
    )
    monkeypatch.setattr(program, "cells", cells)
    words = argparse.Namespace(files=[*paths, *pictures, pictures[0]], arch=None, size=None)
    words.label, words.out = None, "cam.png"
    assert program.cam(words) == 1, "of one that cannot be read"
    assert given == [["one", "odd", "two"], ["one", "two"]], "which is said once"
    grid = np.reshape(figures[0].axes, (2, 3))
    for row, name in zip(grid, ("one", "two"), strict=True):
        assert row[0].get_title() == f"{name}.png" and len(row[0].images) == 1
        for axes, path, by in zip(row[1:], ("a", "b/c"), ("a", "c"), strict=True):
            assert axes.get_title() == f"{path}/model_best.pt\nant of {name} by {by}"
            below, above = axes.images
            assert below.get_array().shape == (4, 4, 3) and below.get_alpha() is None
            assert np.array_equal(above.get_array(), below.get_array()[..., 0] / 7)
            assert above.get_zorder() >= below.get_zorder() and 0 < above.get_alpha() < 1


class Means(torch.nn.Module):
    """Answers with the mean of each colour, times a number."""

    def __init__(self, factor):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(factor))

    def forward(self, images):
        return images.mean(dim=(2, 3)) * self.factor


def fake(path, factor=1.0, classes=("red", "green", "blue"), **more):
    """Returns what stands in for a Trained of such a model."""
    sizes = {"val_size": 4, "val_resize": 5, "interpolation": "bilinear", "model_options": {}}
    data = types.SimpleNamespace(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), **sizes)
    known = {"path": path, "model": Means(factor).eval(), "data": data, "about": {}}
    return named(*classes, **known | {"args": argparse.Namespace(arch="means")} | more)


def test_a_program_says_what_it_takes(program, monkeypatch, tmp_path, capsys):
    """One whose answers are not finite is none."""
    words = argparse.Namespace(out=tmp_path / "out.pt2", checkpoint="model.pt", arch=None)
    words.trained = False
    monkeypatch.setattr(safe_files, "load_file", lambda path: {})
    monkeypatch.setattr(program, "open_checkpoint", lambda path, *_: fake(path, torch.nan))
    with pytest.raises(errors.Fault, match="answers otherwise than model.pt: relative error nan"):
        program.export(words)
    assert not words.out.exists()
    monkeypatch.setattr(program, "open_checkpoint", lambda path, *_: fake(path))
    assert program.export(words) == 0 and words.out.exists()
    takes = "takes float32 (N, 3, 4, 4): (RGB / 255 - [0.1, 0.2, 0.3]) / [0.4, 0.5, 0.6]"
    assert f"{words.out}: {takes}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        ({"classes": ("red", "blue", "green")}, "classes"),
        ({"args": argparse.Namespace(arch="other")}, "arch"),
    ],
)
def test_each_of_several_is_compared_with_the_first(odd, what, program, monkeypatch, tmp_path):
    """Also the last."""
    made = {"1": fake("1"), "2": fake("2", 2.0), "3": fake("3", 6.0, **odd)}
    monkeypatch.setattr(program, "open_checkpoint", lambda path, _: made[path])
    words = argparse.Namespace(checkpoints=["1", "2", "3"], arch=None, out=tmp_path / "mean.pt")
    with pytest.raises(errors.BadInput, match=f"^3 differs from 1 in {what}$"):
        program.average(words)
    assert not words.out.exists()
    made["3"] = fake("3", 6.0)
    program.average(words)
    assert torch.load(words.out)["state_dict"]["factor"] == 3
