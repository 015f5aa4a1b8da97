"""What weights say of themselves: numbers are those of plain loops, or there is none."""

import argparse
import contextlib
import io
import os
import pickle
import re
import shutil
import signal
import zipfile
from pathlib import Path
from unittest import mock

import conftest
import numpy as np
import PIL.Image
import pytest
import safetensors.torch
import timm
import torch
import torchvision
from conftest import EARLY, Hostile, command, load, the_run, words_of
from torchvision import models
from torchvision.transforms import v2

import imagenet_nd as nd
from trainparts import batch_plan, endings, errors, safe_files
from trainparts.images import class_names, decoding, image_files, weight_files

CLASSES = ["bird", "cat", "dog"]
IDS = class_names.IMAGENET
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SIZES = "--image-size 64 --val-resize 72 --no-accel -j 0 -b 5".split()
ND = command("imagenet_nd.py")


def draw(folder, counts, size=(80, 72)):
    """Writes so many PNGs of each class, {name: images}, that differ."""
    rng = np.random.default_rng(0)
    for label, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (9, 10, 3), dtype=np.uint8)
            pixels[..., label % 3] //= 4
            PIL.Image.fromarray(pixels).resize(size).save(folder / name / f"{number}.png")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """An ImageFolder of three classes, of 6, 3 and 1 images in val/."""
    folder = tmp_path_factory.mktemp("images") / "three classes"
    draw(folder / "train", dict.fromkeys(CLASSES, 8))
    draw(folder / "val", dict(zip(CLASSES, (6, 3, 1), strict=True)))
    return folder


def make(arch, classes=3, seed=1, **options):
    """Returns a model whose answers differ from image to image."""
    torch.manual_seed(seed)
    library = timm.create_model if arch.startswith("timm/") else models.get_model
    model = library(arch.removeprefix("timm/"), num_classes=classes, **options)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.momentum = None  # the statistics are this batch's
        model.train()(torch.randn(8, 3, 64, 64))
        layers = torch.nn.Linear, torch.nn.Conv2d
        *_, last = (module for module in model.modules() if isinstance(module, layers))
        last.weight.mul_(4)
    return model.eval()


@torch.no_grad()
def plain(model, folder, outputs=CLASSES, size=64, resize=72, mean=MEAN, std=STD):
    """Returns what a loop of torchvision measures: [top-1, top-5 in %, loss]."""
    steps = [v2.Resize(resize, antialias=True), v2.CenterCrop(size), v2.PILToTensor()]
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    paths = sorted(folder.glob("*/*.png"))
    batch = torch.stack([v2.Compose(steps)(PIL.Image.open(path).convert("RGB")) for path in paths])
    target = torch.tensor([outputs.index(path.parent.name) for path in paths])
    logits = torch.cat([model.eval()(each) for each in batch.split(5)])
    ranks = (logits > logits.gather(1, target[:, None])).sum(dim=1)
    right = [100 * (ranks < n).double().mean().item() for n in (1, 5)]
    return [*right, torch.nn.functional.cross_entropy(logits, target).item()]


def measured(output):
    """Returns what -e or look.py's classes prints: [top-1, top-5 in %, loss]."""
    top5 = r"(?:, top-5 ([\d.]+) %)?"  # look.py leaves it out of up to five classes
    (found,) = re.findall(
        rf": top-1 ([\d.]+) %(?:, balanced accuracy [\d.]+ %)?{top5}, loss ([\d.]+)", output
    )
    return [float(each or 100) for each in found]


def near(expected, loss=1e-5):
    """Returns what is equal to [top-1, top-5, loss], as they are printed."""
    shares = [pytest.approx(share, abs=6e-4) for share in expected[:2]]
    return [*shares, pytest.approx(expected[2], rel=loss, abs=6e-6)]


def run(words, cwd, **options):
    """Runs a command, evaluations on one device in this process, which saves the start of each."""
    words = [str(word) for word in words]
    if words[: len(ND)] == ND and "-e" in words:
        return evaluated(words[len(ND) :], cwd, **options)
    return conftest.run(words, cwd, **options)


def complaint(words, cwd, only=True, **options):
    """Returns the line in which a command ends that must fail, likewise."""
    words = [str(word) for word in words]
    if words[: len(ND)] != ND or "-e" not in words:
        return conftest.complaint(words, cwd, only, **options)
    with pytest.raises(errors.BadInput) as raised:
        evaluated(words[len(ND) :], cwd, **options)
    assert "\n" not in str(raised.value)
    return f"imagenet_nd.py: error: {raised.value}"


def evaluated(words, cwd, env=()):
    """Does what main() does under -e, less ending the process; returns what is printed."""
    before, handlers = dict(os.environ), {each: signal.getsignal(each) for each in conftest.SIGNALS}
    os.environ.update(dict(env))
    image_files.open_shard.cache_clear()
    decoding.region_decoder.cache_clear()
    here, printed = os.getcwd(), io.StringIO()
    os.chdir(cwd)
    try:
        untimed = mock.patch.object(endings, "arm_timeout")  # it needs a stderr with a number
        log = mock.patch.multiple(errors.LOG, handlers=[], propagate=True)
        with untimed, log, contextlib.redirect_stdout(printed):
            errors.print_log()
            started = nd.build_run(nd.parse_args(words))
            print(f"validation: {nd.format_metrics(nd.validate(started), 3)}")
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)
        for each, handler in handlers.items():
            signal.signal(each, handler)
    return printed.getvalue()


def evaluate(*words, cwd, ways=ND, **options):
    """Returns (what -e measures, its output)."""
    output = run([*ways, *SIZES, "-e", *words], cwd, **options)
    return measured(output), output


def write(path, model, arch, **more):
    """Writes a checkpoint as the scripts do, without what resuming needs."""
    about = {"arch": arch, "model_options": {}, "num_classes": 3, "classes": CLASSES}
    about |= {"image_size": 64, "val_resize": 72, "mean": MEAN, "std": STD}
    torch.save({**about, "state_dict": model.state_dict(), **more}, path)
    return path


@pytest.fixture
def look(call_tool, monkeypatch, tmp_path):
    """look(*words, status=0) in tmp_path: returns (stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    return lambda *words, status=0: call_tool("look", *words, status=status)


# ----------------------------------------------------------------------- what a file says of itself


@pytest.fixture(scope="module")
def googlenet(images, tmp_path_factory):
    """(model with the published normalisation, DIR that names 1,000 classes)."""
    folder = tmp_path_factory.mktemp("named")
    model = make("googlenet", 1000, transform_input=True, init_weights=False)
    for name in IDS:
        (folder / "train" / name).mkdir(parents=True)
    (folder / "val").mkdir()
    for name, each in zip(IDS[::400], CLASSES, strict=True):
        (folder / "val" / name).symlink_to(images / "val" / each)
    return model, folder, IDS


def test_googlenet_s_published_file(googlenet, tmp_path, look):
    """By its own name it is torchvision's, as by --pretrained; by another, somebody's training."""
    model, folder, names = googlenet
    hub = tmp_path / "hub" / "checkpoints"
    hub.mkdir(parents=True)
    path = hub / "googlenet-1378be20.pth"
    torch.save(model.state_dict(), path)
    right = plain(model, folder / "val", names)
    model.transform_input = False
    wrong = plain(model, folder / "val", names)
    model.transform_input = True
    assert abs(right[2] - wrong[2]) > 1e-3 * right[2]
    words = ["-a", "googlenet", folder]
    found, output = evaluate("--weights", path, *words, cwd=tmp_path)
    assert found == near(right) and "is assumed" not in output
    assert "10 validation images, 1,000 classes" in output
    assert "val: 3 of 1,000 classes have images; without: n01443537, " in output
    home = {"TORCH_HOME": str(tmp_path)}
    two = command("imagenet_fsdp.py", 2)  # of which one rank loads the weights
    assert evaluate("--pretrained", *words, cwd=tmp_path, env=home, ways=two)[0] == near(right)
    other = path.rename(tmp_path / "mine.pth")
    found, output = evaluate("--weights", other, *words, cwd=tmp_path)
    assert found == near(wrong)
    assumed = f"{other} does not say whether its googlenet has transform_input: False is assumed"
    assert output.count(assumed) == 1 and "and are called googlenet-1378be20.pth" in output
    assert assumed in look("classes", other, folder, "-a", "googlenet")[1]


def test_fine_tuned_googlenet_keeps_its_inputs(images, tmp_path, look):
    """From the published file and from the checkpoint of that, in -e and look.py, too."""
    donor = make("googlenet", transform_input=True, init_weights=False)
    torch.save(donor.state_dict(), tmp_path / "googlenet-1378be20.pth")
    words = [*SIZES, "-a", "googlenet", "--epochs", "1", "--steps-per-epoch", "1", images]
    run([*ND, *words, "--weights", "googlenet-1378be20.pth", "--output-dir", "one"], tmp_path)
    run([*ND, *words, "--weights", "one/model_best.pt", "--output-dir", "two"], tmp_path)
    for run_folder in "one", "two":
        path = tmp_path / run_folder / "checkpoint.pt"
        saved = torch.load(path, weights_only=True)
        assert saved["model_options"]["transform_input"] is True
    model = models.googlenet(
        num_classes=3, transform_input=True, aux_logits=False, init_weights=False
    )
    model.load_state_dict(saved["state_dict"])
    right = plain(model, images / "val")
    found, output = evaluate("-a", "googlenet", "--resume", path, images, cwd=tmp_path)
    assert found == near(right) and "assumed" not in output
    assert measured(look("classes", path, images)[0]) == near(right, loss=1e-4)


def test_a_published_file_says_its_preprocessing(images, tmp_path):
    """In an evaluation. In training the sizes are the architecture's, since a resumed run does not
    read the file."""
    path = tmp_path / "vit_b_16_swag-9ac1b537.pth"
    torch.save({}, path)
    data = opened(["-a", "vit_b_16", "--weights", path, "-e", "--dummy"])
    assert (data.val_size, data.val_resize, data.interpolation) == (384, 384, "bicubic")
    data = opened(["-a", "vit_b_16", "--weights", path, "-b", 4, images])
    assert (data.image_size, data.val_resize, data.interpolation) == (224, 256, "bilinear")


def opened(words, metadata=None):
    """Returns the Data of a command."""
    args, place = nd.parse_args([*map(str, words)]), nd.Place(torch.device("cpu"))
    sources = nd.list_sources(args, place)
    sizes = batch_plan.split_batch(args.batch_size, 1, args.accumulation)
    return nd.open_data(args, place, sources, sizes, metadata)


def test_sizes_mean_and_std_are_those_of_the_file(images, tmp_path, look):
    """By --weights as by --resume and in look.py; what is typed counts more, and a line says so."""
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.25]
    model = make("squeezenet1_1")
    about = {"image_size": 48, "val_resize": 60, "mean": mean, "std": std}
    path = write(tmp_path / "own.pt", model, "squeezenet1_1", **about)
    few = [
        "--no-accel",
        "-j",
        "0",
        "-b",
        "5",
        "-a",
        "squeezenet1_1",
        "-e",
        "--weights",
        path,
        images,
    ]
    output = run([*ND, *few], tmp_path)
    own = plain(model, images / "val", CLASSES, 48, 60, mean, std)
    assert measured(output) == near(own, loss=1e-4)
    assert f"Validating {path}: crops of 48 pixels, resized to 60, bilinear\n" in output
    assert f"{path} has a mean of {mean}, not {MEAN}\n" in output
    assert measured(look("classes", path, images)[0]) == near(own, loss=1e-4)
    output = run([*ND, *few, "--val-size", "64", "--val-resize", "72"], tmp_path)
    assert measured(output) == near(plain(model, images / "val", mean=mean, std=std))
    assert "Its own are crops of 48 pixels, resized to 60\n" in output
    # One size typed: the other one keeps the architecture's proportion.
    data = opened(["-a", "squeezenet1_1", "--val-size", 64, "-e", "--weights", path, images])
    assert (data.val_size, data.val_resize) == (64, 73)
    data = opened(["-a", "squeezenet1_1", "--val-size", 48, "-e", "--weights", path, images])
    assert (data.image_size, data.val_size, data.val_resize) == (48, 48, 60), "its own"
    # In training a larger size is wanted, but not another normalisation.
    words = [*SIZES, "-a", "squeezenet1_1", "--epochs", "1", "--lr", "1e-9", images]
    output = run([*ND, *words, "--weights", path], tmp_path)
    saved = torch.load(the_run(tmp_path / "runs") / "checkpoint.pt", weights_only=True)
    assert {name: saved[name] for name in about} == about | {"image_size": 64, "val_resize": 72}
    assert saved["interpolation"] == "bilinear"
    expected = plain(model, images / "val", mean=mean, std=std)
    assert float(re.search(r"loss ([\d.]+);", output)[1]) == pytest.approx(expected[2], rel=1e-3)


# ---------------------------------------------------------------------------- what the output needs


def test_weights_of_a_deeper_model_are_not_evaluated(images, tmp_path, look):
    """They have all names and shapes of this one, from which it may be trained."""
    torch.save(says(0).state_dict() | {"deeper.weight": torch.ones(1)}, tmp_path / "w.pth")
    words = [*SIZES, *SAY, "--weights", "w.pth", images]
    other = "w.pth: 1 weights do not fit: the file is of another model, which has deeper.weight"
    assert other in complaint([*ND, *words, "-e"], tmp_path)
    train = [*words, "--epochs", "1", "--steps-per-epoch", "1"]
    assert "1 weights do not fit and are left out: deeper.weight" in run([*ND, *train], tmp_path)
    assert other in look("predict", "w.pth", *SAY, "x.png", status=2)[1]


def test_the_classifier_says_how_many_classes_there_are(images, tmp_path, look):
    """Whatever the order of a file's tensors; without it, there is no prediction."""
    arch, picture = "shufflenet_v2_x0_5", next((images / "val").glob("*/*.png"))
    state = make(arch).state_dict()
    torch.save(state, tmp_path / "m.pth")
    safetensors.torch.save_file(state, tmp_path / "m.safetensors")
    last = [*torch.load(tmp_path / "m.safetensors", weights_only=True)][-1]
    assert last != [*state][-1]
    words = ["-a", arch, picture]
    one, two = (look("predict", path, *words) for path in ("m.pth", "m.safetensors"))
    assert one == two and re.fullmatch(r".*: \d [\d.]+ %, \d [\d.]+ %, \d [\d.]+ %\n", one[0])
    assert not one[1]
    few = {name: state[name] for name in state if state[name].shape[:1] != (3,)}
    torch.save(few, tmp_path / "headless.pth")
    assert "do not fit" in look("predict", "headless.pth", *words, status=2)[1]


# ---------------------------------------------------------------------------------- classes by name


def says(number, classes=3):
    """Returns a model that always says the same class."""
    model = models.squeezenet1_1(num_classes=classes)
    torch.nn.init.zeros_(model.classifier[1].weight)
    model.classifier[1].bias.data = torch.eye(classes)[number]
    return model


SAY = ["-a", "squeezenet1_1"]


def test_classes_are_compared_by_name(images, tmp_path, look):
    """A class of val/ that the weights do not know, or of train/, ends; fewer are measured against
    all outputs."""
    path = write(tmp_path / "abc.pt", says(0), "squeezenet1_1")
    assert evaluate(*SAY, "--weights", path, images, cwd=tmp_path)[0][0] == 60
    other = shutil.copytree(images, tmp_path / "other")
    for part in "train", "val":
        (other / part / "bird").rename(other / part / "zbird")
    for way in ND, command("imagenet_ddp.py", 2):
        line = complaint([*way, *SIZES, *SAY, "-e", "--weights", path, other], tmp_path, only=False)
        assert f"{other}/train: 1 of 3 classes are not in {path}, as zbird; known are bird" in line
    assert "are not in abc.pt, as zbird" in look("classes", "abc.pt", other, status=2)[1]
    (line,) = opened([*SAY, "-b", 4, "--weights", path, other]).lines  # a new last layer is wanted
    assert line == f"{path} has other classes: its last layer starts from theirs"
    assert not opened([*SAY, "-b", 4, "--weights", path, images]).lines
    shutil.rmtree(other / "train")
    line = complaint([*ND, *SIZES, *SAY, "-e", "--weights", path, other], tmp_path)
    assert f"{other}/val: 1 of 3 classes are not in {path}, as zbird; known are bird" in line
    shutil.rmtree(other / "val" / "zbird")
    write(path, says(1), "squeezenet1_1")
    found, output = evaluate(*SAY, "--weights", path, other, cwd=tmp_path)
    assert found[0] == 75
    assert f"{other}/val: 2 of 3 classes have images; without: bird\n" in output
    assert "\n4 validation images, 3 classes\n" in output
    assert measured(look("classes", path, other)[0])[0] == 75


def test_classes_in_another_order():
    """As shards may have them: targets are numbers of names."""
    nothing, target = np.zeros(3, int), np.array([0, 1, 0])
    source = image_files.Source("val", ["dog", "bird"], nothing, nothing, nothing, nothing, target)
    for order, expected in (CLASSES, [2, 0, 2]), (["bird", "dog"], [1, 0, 1]):
        found = source.in_classes(order, "x.pth")
        assert found.target.tolist() == expected and found.classes == order


def test_train_names_classes_alone(images, tmp_path, look):
    """It may be missing, or have nothing but empty folders; its images are not listed."""
    weights = tmp_path / "bare.pth"
    torch.save(says(1).state_dict(), weights)
    folder = shutil.copytree(images, tmp_path / "data")
    words = [*SAY, "--weights", weights, folder]
    assert evaluate(*words, cwd=tmp_path)[0][0] == 30
    for path in (folder / "train").glob("*/*.png"):
        path.unlink()
    assert evaluate(*words, cwd=tmp_path)[0][0] == 30
    shutil.rmtree(folder / "val" / "bird")
    assert evaluate(*words, cwd=tmp_path)[0][0] == 75, "by train's names"
    assert measured(look("classes", weights, folder, *SAY)[0])[0] == 75
    for empty in (folder / "train").iterdir():
        empty.rmdir()
    line = complaint([*ND, *SIZES, "-e", *words], tmp_path)
    assert (
        f"{weights}: its number of outputs is 3, that of DIR's classes is 2 (cat, dog): give train/"
        in line
    )
    (folder / "train").rmdir()
    assert "is 3, that of DIR's classes is 2 (" in complaint([*ND, *SIZES, "-e", *words], tmp_path)
    (folder / "train").symlink_to("unmounted")
    assert "train: No such file" in complaint([*ND, *SIZES, "-e", *words], tmp_path)
    (folder / "train").unlink()
    shutil.copytree(images / "val" / "bird", folder / "val" / "bird")
    assert evaluate(*words, cwd=tmp_path)[0][0] == 30, "by val's"


def test_as_many_outputs_as_the_file_has(images, tmp_path):
    """For synthetic images, too."""
    torch.save(says(1).state_dict(), tmp_path / "bare.pth")
    few = [*ND, *SIZES, *SAY, "-e", "--weights", "bare.pth"]
    output = run([*few, "--dummy", "--steps-per-epoch", "1"], tmp_path)
    assert "5 validation images, 3 classes, all synthetic" in output
    line = complaint([*few, "--num-classes", "4", images], tmp_path)
    assert line.endswith("bare.pth: its number of outputs is 3: omit --num-classes")


def test_classes_of_a_shard_s_index(images, tmp_path, tool):
    """val/ has images of two of them, and train/ is not there."""
    few = shutil.copytree(images, tmp_path / "few")
    for path in (few / "val" / "bird").iterdir():
        path.unlink()
    tool("make_shards", few, tmp_path / "shards")
    classes = sorted(path.name for path in (few / "train").iterdir())
    assert image_files.name_classes(tmp_path / "shards" / "train") == classes
    assert image_files.name_classes(tmp_path / "none") == []
    torch.save(says(1).state_dict(), tmp_path / "bare.pth")
    words = [*SAY, "--weights", "bare.pth", "shards"]
    for _ in range(2):
        found, output = evaluate(*words, cwd=tmp_path)
        assert found[0] == 75 and "2 of 3 classes have images; without: bird" in output
        shutil.rmtree(tmp_path / "shards" / "train", ignore_errors=True)


def test_weights_of_1000_outputs_on_some_of_imagenet_s_classes(tmp_path, look):
    """On three, with a word in their names. Predictions are among all 1,000, as a plain loop has
    them; published weights by -e on one rank and two, and by look.py."""
    few = [f"{name}_word" for name in IDS[38:49:5]]
    folder = tmp_path / "one's own"
    draw(folder / "train", dict.fromkeys(few, 1))
    draw(folder / "val", dict(zip(few, (4, 3, 3), strict=True)))
    ids = {name[:9]: name for name in few}
    outputs = [ids.get(name, name) for name in IDS]
    name = "squeezenet1_1-b8a52dc0.pth"
    hub = tmp_path / "hub" / "checkpoints"
    hub.mkdir(parents=True)
    model = make("squeezenet1_1", 1000)
    torch.save(model.state_dict(), hub / name)
    expected = plain(model, folder / "val", outputs)
    assert expected != near(plain(model, folder / "val", few))
    env = {"TORCH_HOME": str(tmp_path)}
    for way, weights in (
        (ND, ["--weights", hub / name]),
        (ND, ["--pretrained", "--num-classes", 1000]),
        (command("imagenet_ddp.py", 2), ["--pretrained"]),
    ):
        output = run([*way, *SIZES, *SAY, "-e", *weights, folder], tmp_path, env=env)
        assert measured(output) == near(expected), weights
        assert "val: 3 of 1,000 classes have images; without: " in output
    found = look("classes", hub / name, folder, "--part", "train", "-a", "squeezenet1_1")[0]
    assert measured(found) == near(plain(model, folder / "train", outputs, 224, 256), loss=1e-4)


def test_some_of_the_numbers(tmp_path):
    """As ImageNetV2's folders; all of them must be there."""
    folder = tmp_path / "it's"
    draw(folder / "val", {"7": 2, "11": 1, "999": 1})
    model = make("squeezenet1_1", 1000)
    name = "squeezenet1_1-b8a52dc0.pth"
    torch.save(model.state_dict(), tmp_path / name)
    words = [*SAY, "--weights", name, folder.name]
    assert "folder 11 is none: call" in complaint([*ND, *SIZES, "-e", *words], tmp_path)
    for number in range(1000):
        (folder / "val" / str(number)).mkdir(exist_ok=True)
    found, output = evaluate(*words, cwd=tmp_path)
    assert found == near(plain(model, folder / "val", [str(n) for n in range(1000)]))
    assert "sorted as numbers" in output and "val: 3 of 1,000 classes have images" in output


def test_twelve_folders_of_numbers(tmp_path, look):
    """A line where text and numbers differ, in training, -e and look.py."""
    names = [str(number) for number in range(12)]
    folder = tmp_path / "data"
    for part in "train", "val":
        draw(folder / part, dict.fromkeys(names, 2))
    torch.save(says(2, 12).state_dict(), tmp_path / "bare.pth")
    words = [*SAY, "--weights", "bare.pth", folder]
    found, output = evaluate(*words, cwd=tmp_path)
    trained = run([*ND, *SIZES, "--epochs", "1", "--steps-per-epoch", "1", *words], tmp_path)
    looked = look("classes", "bare.pth", folder, *SAY)[0]
    for each in output, trained, looked:
        assert "timm sorts them as numbers: 0, 1, 10, ..." in each
    model = torchvision.datasets.ImageFolder(folder / "val").classes
    assert f"{model[2]:<3}" in looked and found[0] == pytest.approx(100 / 12, abs=1e-3)
    assert re.search(r"^(\d+) +2 +100.00$", looked, re.M)[1] == model[2] == "10"


# -------------------------------------------------------------------- others' averages and wrappers


def test_averages_of_others_are_taken(images, tmp_path, look):
    """As torchvision's references save them; the line's command gives the others."""
    raw, averaged = says(0), says(1)
    wrapped = {f"module.{name}": weight for name, weight in averaged.state_dict().items()}
    saved = {"model": raw.state_dict(), "model_ema": {"n_averaged": torch.tensor(3), **wrapped}}
    path = tmp_path / "model 1.pth"
    torch.save(saved | {"args": argparse.Namespace(lr=1.0), "metric": np.float64(1)}, path)
    found, output = evaluate(*SAY, "--weights", path.name, images, cwd=tmp_path)
    assert found[0] == 30 and "do not fit" not in output
    (line,) = re.findall(".*its averages, model_ema, are taken: (.*) writes the others", output)
    run(words_of(line, tmp_path), tmp_path)
    found, output = evaluate(*SAY, "--weights", "model 1_model.pth", images, cwd=tmp_path)
    assert found[0] == 60 and "averages" not in output
    output, errors = look("classes", path, images, *SAY)
    assert measured(output)[0] == 30 and "its averages, model_ema, are taken" in errors
    words = [*SIZES, *SAY, "--epochs", "1", "--lr", "1e-9", "--weights", path, images]
    output = run([*command("imagenet_ddp.py", 2), *words], tmp_path)
    assert output.count("its averages, model_ema, are taken") == 1
    assert "top-1 30.000 %" in output


def test_wrappers_of_others(images, tmp_path, look):
    state = says(1).state_dict()
    lightning = {f"model.{name}": weight for name, weight in state.items()}
    saved = {"state_dict": lightning | {"loss.weight": torch.ones(3, 3)}}
    torch.save(saved | {"pytorch-lightning_version": "2"}, tmp_path / "w.pth")
    found, output = evaluate(*SAY, "--weights", "w.pth", images, cwd=tmp_path)
    assert found[0] == 30 and "do not fit" not in output
    output, errors = look("classes", "w.pth", images, *SAY)
    assert measured(output)[0] == 30 and not errors
    torch.save({"weights": state, "acc": 91.2}, tmp_path / "w.pth")
    for more in ["-e"], ["--epochs", "1"]:
        words = [*ND, *SIZES, *SAY, "--weights", "w.pth", *more, images]
        line = complaint(words, tmp_path, only=False)
        assert "weights do not fit: " in line and "; the file holds weights, acc" in line


@pytest.mark.parametrize(
    "way", [pytest.param(("imagenet_ddp.py", 2), marks=pytest.mark.slow), ("imagenet_fsdp.py", 2)]
)
def test_own_averages_are_evaluated_by_either_option(way, images, tmp_path, look):
    """As the run itself validates, though --ema is not typed again."""
    arch = ["-a", "mobilenet_v3_small"]
    words = [*SIZES, *arch, "--epochs", "1", "--steps-per-epoch", "1", "--ema", "0.5", images]
    run([*ND, *words, "--output-dir", "run"], tmp_path)
    path = tmp_path / "run" / "checkpoint.pt"
    saved, raw, averaged = load(path), make(arch[1], seed=1), make(arch[1], seed=2)
    saved["ema"] = {name: weight.float() for name, weight in averaged.state_dict().items()}
    torch.save(saved | {"state_dict": raw.state_dict()}, path)
    expected = plain(averaged, images / "val")
    assert expected[2] != pytest.approx(plain(raw, images / "val")[2], rel=1e-3)
    found = evaluate(*arch, "--resume", path, images, cwd=tmp_path, ways=command(*way))[0]
    assert found == near(expected)
    for words in (
        ["--resume", path],
        ["--output-dir", "run"],
        ["--weights", path],
        ["--resume", path, "--ema", "0.5"],
    ):
        assert evaluate(*arch, *words, images, cwd=tmp_path)[0] == near(expected), words
    assert measured(look("classes", path, images)[0]) == near(expected, loss=1e-4)


def test_weights_that_are_not_finite(images, tmp_path, look):
    state = says(1).state_dict()
    state["classifier.1.bias"][0] = torch.nan
    torch.save(state, tmp_path / "w.pth")
    words = [*ND, *SIZES, *SAY, "--weights", "w.pth", "-e", images]
    assert complaint(words, tmp_path, only=False).endswith("its weights are not all finite")
    assert "its weights are not all finite" in look("predict", "w.pth", *SAY, "x", status=2)[1]


def test_outputs_that_are_not_finite(images, tmp_path, look):
    """Of weights that are finite: those that a run left which went wrong."""
    state = says(1).state_dict()
    state = {name: 1e30 * weight if weight.ndim > 1 else weight for name, weight in state.items()}
    torch.save(state, tmp_path / "w.pth")
    line = complaint([*ND, *SIZES, *SAY, "-e", "--weights", "w.pth", images], tmp_path, only=False)
    assert line.endswith("the loss is not finite (val, step 1): these weights do not give numbers")
    picture = next(images.glob("val/*/*.png"))
    for words in (
        ("predict", "w.pth", picture),
        ("classes", "w.pth", images),
        ("cam", "w.pth", picture),
    ):
        out, errors = look(*words, *SAY, status=2)
        assert errors.endswith("w.pth cannot be used: its outputs are not finite\n") and not out


def test_odd_files_are_one_line(images, tmp_path):
    """Without the warnings of PyTorch: of sparse and quantised tensors, and of old pickles;
    and one that another program packed anew, with the modes of its files, is as good as before."""
    state = says(1).state_dict()
    sparse = {name: weight.to_sparse() for name, weight in state.items()}
    real = {name: weight for name, weight in state.items() if weight.is_floating_point()}
    small = {n: torch.quantize_per_tensor(real[n], 0.1, 0, torch.qint8) for n in real}
    words = [*SIZES, *SAY, "-e", "--weights", "w.pth", images]
    for saved in sparse, small:
        torch.save(saved, tmp_path / "w.pth")
        line = conftest.complaint([*ND, *words], tmp_path)
        assert "do not fit: " in line and len(line) < 300
    (tmp_path / "w.pth").write_bytes(pickle.dumps(state, protocol=4))
    assert "w.pth cannot be loaded: " in conftest.complaint([*ND, *words], tmp_path)
    torch.save(state, tmp_path / "one.pth")
    with (
        zipfile.ZipFile(tmp_path / "one.pth") as one,
        zipfile.ZipFile(tmp_path / "w.pth", "w") as two,
    ):
        for name in one.namelist():
            two.writestr(name, one.read(name))  # with the mode 0o600
    found = safe_files.load_file(tmp_path / "w.pth")
    torch.testing.assert_close(found, state, rtol=0, atol=0)


def test_a_checkpoint_of_text_is_none_of_images(text, tmp_path, look):
    words = "--layers 1 --hidden-size 16 --heads 1 --max-length 32 --epochs 1 --no-accel".split()
    conftest.run(
        [*command("text_nd.py"), *words, "--output-dir", "run", text], tmp_path, 143, EARLY
    )
    path = tmp_path / "run" / "checkpoint.pt"
    says_so = f"{path} is a checkpoint of scripts for another task"
    with pytest.raises(nd.errors.BadInput, match=re.escape(says_so)):
        weight_files.about_file(path, saved=load(path))
    errors = look("predict", path, "x.png", status=2)[1]
    assert errors.count("\n") == 1 and says_so in errors


def test_an_architecture_that_no_library_has(images, tmp_path, look):
    """As type(model).__name__, which templates write."""
    torch.save({"arch": "SqueezeNet", "state_dict": says(1).state_dict()}, tmp_path / "w.pth")
    assert measured(look("classes", "w.pth", images, *SAY)[0])[0] == 30
    assert look("classes", "w.pth", images, status=2)[1].endswith(": give -a\n")


def test_names_of_classes_are_those_of_the_folders(images, tmp_path, look):
    """Where the file says none, also beside 1,000 outputs, which need not be ImageNet's."""
    torch.save(says(1).state_dict(), tmp_path / "w.pth")
    output, _ = look("classes", "w.pth", images, *SAY, "--csv", "m.csv")
    assert re.findall(r"^(\S+) +\d+ +(\d+)\.00", output, re.M) == [
        ("bird", "0"),
        ("dog", "0"),
        ("cat", "100"),
    ]
    assert (tmp_path / "m.csv").read_text().splitlines()[0] == "class,bird,cat,dog"
    for number in range(1000):
        (tmp_path / "own" / "train" / f"thing{number:03}").mkdir(parents=True)
    (tmp_path / "own" / "val").mkdir()
    (tmp_path / "own" / "val" / "thing007").symlink_to(images / "val" / "dog")
    state = models.squeezenet1_1().state_dict()
    torch.save({"arch": "squeezenet1_1", "state_dict": state}, "w.pth")
    output, _ = look("classes", "w.pth", "own", "--csv", "m.csv")
    assert re.search(r"^thing007 +1 ", output, re.M) and "tench" not in output
    assert (tmp_path / "m.csv").read_text().startswith("class,thing000,thing001,")


def test_numbers_of_numpy_are_no_code(tmp_path):
    """As home-made loops save their best accuracy."""
    saved = {"best": np.float64(91.2), "low": np.float32(0.5), "state_dict": {}}
    torch.save(saved, tmp_path / "w.pth")
    assert safe_files.load_file(tmp_path / "w.pth") == saved


def test_a_program_is_one_line(images, tmp_path, look):
    """TorchScript's: the command that is printed makes weights of it."""
    script = torch.jit.trace(says(1).eval(), torch.zeros(1, 3, 64, 64))
    torch.jit.save(script, tmp_path / "s.pt")
    words = [*ND, *SIZES, *SAY, "-e", "--weights", "s.pt", images]
    line = complaint(words, tmp_path)
    tried = re.search(r"TorchScript: (.*) writes its weights into s_weights.pt", line)[1]
    assert "is a program of TorchScript: " in look("predict", "s.pt", "x.png", status=2)[1]
    run(words_of(tried, tmp_path), tmp_path)
    assert evaluate(*SAY, "--weights", "s_weights.pt", images, cwd=tmp_path)[0][0] == 30
    run(words_of(tried, tmp_path), tmp_path, status=1)  # nothing is overwritten


# ------------------------------------------------------------------------------------- other advice


def test_no_code_of_the_hub_s_cache_is_run(images, tmp_path, look):
    hub = tmp_path / "hub" / "checkpoints"
    hub.mkdir(parents=True)
    path = hub / "squeezenet1_1-b8a52dc0.pth"
    torch.save({"a": Hostile(tmp_path / "ran")}, path)
    draw(tmp_path / "few" / "val", {IDS[0]: 1})
    words = [*ND, *SIZES, *SAY, "--pretrained", "-e", tmp_path / "few"]
    line = complaint(words, tmp_path, only=False, env={"TORCH_HOME": str(tmp_path)})
    assert f"--pretrained: cannot load squeezenet1_1 from {hub}: " in line
    why = "the file there has Python objects, which could run code"
    assert line.endswith(f"{why}; if {path} is damaged, remove it")
    assert (
        "with Python objects, which could run code" in look("predict", path, "x.png", status=2)[1]
    )
    assert not (tmp_path / "ran").exists()


def test_the_line_says_which_architecture_to_type(trained, demo, tmp_path):
    path = trained("one device") / "checkpoint.pt"
    words = [*ND, "--no-accel", "-j", "0", "--resume", path, demo]
    line = conftest.complaint([*words, "-e", "-a", "resnet18"], tmp_path, only=False)
    advice = re.search(r" than -a resnet18: type (-a \S+)$", line)[1]
    assert measured(conftest.run([*words, "-e", *advice.split()], tmp_path))
    line = conftest.complaint([*words, "--epochs", "2", "-a", "resnet18"], tmp_path, only=False)
    assert "differs in arch (vit_b_16, here resnet18)" in line
    assert re.search(r": type (-a \S+)$", line)[1] == advice


@pytest.mark.parametrize(
    ("first", "second"),
    [(["--freeze", "--weights", "w.pth"], []), ([], ["--norm-wd", "0"])],
    ids=["unfrozen", "norm-wd"],
)
def test_an_optimizer_of_other_weights(first, second, images, tmp_path):
    """The line says so, and the way that it names works."""
    torch.save(make("resnet18").state_dict(), tmp_path / "w.pth")
    words = [*ND, *SIZES, "--epochs", "2", "--steps-per-epoch", "1", images]
    run([*words, *first, "--epochs", "1", "--output-dir", "first"], tmp_path)
    line = complaint([*words, *second, "--resume", "first"], tmp_path, only=False)
    assert "the optimizer's state is of other weights, as after --freeze or with another" in line
    assert "--weights takes the weights alone" in line
    if first:
        run([*words, *second, "--weights", Path("first") / "checkpoint.pt"], tmp_path)


def test_no_evaluation_of_random_weights(images, tmp_path):
    for script in "imagenet_nd.py", "imagenet_ddp.py":
        line = conftest.complaint([*command(script), "-e", images], tmp_path)
        assert "--evaluate needs --resume, --output-dir, --weights or --pretrained" in line
