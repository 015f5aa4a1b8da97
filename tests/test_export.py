"""tools/look.py export: what timm, transformers, torchvision and ONNX Runtime do with what it has
written is what the checkpoint's model does, and what the scripts say of it."""

import importlib
import json
import math
import re
import types

import numpy as np
import PIL.Image
import pytest
import safetensors
import safetensors.torch
import timm
import torch
import torchvision
import transformers
from conftest import checkpoint, command, load, run, scalars, write_file
from test_look import MEAN, STD, make, read_table, write, write_pictures
from torch.utils.tensorboard import SummaryWriter

from trainparts import errors, safe_files

NAMES = ["ant", "bee", "cat", "dog"]


@pytest.fixture
def look(tool, tmp_path, monkeypatch):
    """look(*words, status=0) in tmp_path: returns what is printed, or the one line of an error."""
    monkeypatch.chdir(tmp_path)
    return lambda *words, **more: tool("look", *words, **more)


@pytest.fixture
def ten(tmp_path):
    """Ten pictures that differ, of two formats."""
    paths = write_pictures(tmp_path / "png", NAMES, 2)
    return paths + write_pictures(tmp_path / "jpg", NAMES[:2], 1, "jpg")


def predicted(look, path, pictures):
    """Returns ({name: column}, probabilities (N, C)) of predict."""
    look("predict", path, *pictures, "--csv", "table.csv")
    rows = read_table("table.csv")
    names = [name for name in rows[0] if name not in ("file", "class")]
    return names, torch.tensor([[float(row[name]) for name in names] for row in rows])


def by_timm(folder, pictures):
    """Returns (names, probabilities) of timm's model and transforms."""
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    images = torch.stack([transform(PIL.Image.open(path).convert("RGB")) for path in pictures])
    with torch.no_grad():
        return model.pretrained_cfg.get("label_names"), model(images).softmax(dim=1)


def by_transformers(folder, pictures):
    """Returns (names, probabilities) of transformers' pipeline."""
    classify = transformers.pipeline("image-classification", model=str(folder), device="cpu")
    names = [name for _, name in sorted(classify.model.config.id2label.items())]
    found = classify([str(path) for path in pictures], top_k=None)
    scores = [{each["label"]: each["score"] for each in one} for one in found]
    return names, torch.tensor([[one[name] for name in names] for one in scores])


def timm_checkpoint(path, name, size, resize, options):
    """Writes a checkpoint of one of timm's models, with weights that tell images apart."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=4, **options).eval()
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    sizes = {"image_size": size, "val_resize": resize, "interpolation": "bicubic"}
    return write(path, model, f"timm/{name}", model_options=options, **sizes)


RESIZE = 90  # the shorter side of the pictures: so no program's way of resizing counts
# Architecture, the crop, and what the model is built with: one of torchvision's; a crop by whose
# share timm would resize to 89; a model of a fixed size that is another than the published; and one
# whose images are squashed.
SHARED = {
    "torchvision": ("resnet18", 64, {}),
    "crop_pct in floats": ("resnet18", 55, {}),
    "fixed size": ("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", 64, {"img_size": 64}),
    "squashed": ("timm/convnextv2_nano.fcmae_ft_in22k_in1k_384", 64, {}),
}


@pytest.mark.parametrize("case", SHARED)
def test_timm_and_transformers_predict_as_look_does(case, look, ten, tmp_path):
    arch, size, options = SHARED[case]
    if arch.startswith("timm/"):
        path = timm_checkpoint(tmp_path / "m.pt", arch[5:], size, RESIZE, options)
    else:
        path = write(tmp_path / "m.pt", make(arch), arch, image_size=size, val_resize=RESIZE)
    if case == "squashed":
        for picture in ten:  # of one that is not square, both sides are resized
            PIL.Image.open(picture).crop((0, 0, RESIZE, RESIZE)).save(picture)
    output = look("export", path, "folder")
    assert output.startswith("folder: a folder for timm and transformers")
    names, wanted = predicted(look, path, ten)
    assert names == NAMES and wanted.std(dim=0).max() > 0.01
    for found in by_timm("folder", ten), by_transformers("folder", ten):
        assert found[0] == NAMES
        torch.testing.assert_close(found[1], wanted, rtol=0, atol=1e-5)
    # The bare weights in it are a checkpoint to these programs.
    again = predicted(look, "folder/model.safetensors", ten)
    assert again[0] == NAMES and torch.equal(again[1], wanted)


def test_a_folder_says_how_images_are_resized(look, ten, tmp_path):
    """Of pictures that must be resized, single pixels differ by a level or two."""
    path = write(tmp_path / "m.pt", make(), image_size=64, val_resize=72, interpolation="bicubic")
    look("export", path, "folder")
    (squash, crop, *_) = timm.data.create_transform(
        **timm.data.resolve_model_data_config(timm.create_model("local-dir:folder"))
    ).transforms
    assert (
        squash.size == 72 and squash.interpolation.value == "bicubic" and [*crop.size] == [64, 64]
    )
    _, wanted = predicted(look, path, ten)
    torch.testing.assert_close(by_timm("folder", ten)[1], wanted, rtol=0, atol=0.02)


def test_imagenet_s_classes_have_the_libraries_names(look, tmp_path):
    ids = [f"n{number:08}" for number in range(1000)]
    for classes, first in (
        (importlib.import_module("trainparts.images.class_names").IMAGENET, "tench, Tinca tinca"),
        (ids, ids[0]),  # a thousand others
    ):
        path = write(tmp_path / "m.pt", make(classes=1000), num_classes=1000, classes=classes)
        folder = f"folder_{first[:3]}"
        look("export", path, folder)
        config = transformers.AutoConfig.from_pretrained(folder)
        assert len(config.id2label) == 1000 and config.id2label[0] == first
        assert safe_files.load_file(f"{folder}/model.safetensors")["classes"] == classes


def test_safetensors_are_torchvision_s_and_a_checkpoint(look, ten, tmp_path):
    model = make("squeezenet1_1")
    path = write(tmp_path / "m.pt", model, "squeezenet1_1")
    look("export", path, "m.safetensors")
    names, wanted = predicted(look, path, ten)
    again = predicted(look, "m.safetensors", ten)
    assert again[0] == names == NAMES and torch.equal(again[1], wanted)
    theirs = torchvision.models.squeezenet1_1(num_classes=4)
    theirs.load_state_dict(safetensors.torch.load_file("m.safetensors"))
    state = model.state_dict()
    assert all(torch.equal(each, state[name]) for name, each in theirs.state_dict().items())
    with safetensors.safe_open("m.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"
        known = json.loads(file.metadata()["about"])
    assert known["mean"] == MEAN and known["std"] == STD and known["classes"] == NAMES


def test_onnx_runtime_predicts_as_look_does(look, ten, tmp_path):
    """With the file alone: what its metadata say of images suffices."""
    pytest.importorskip("onnxscript")
    path = write(tmp_path / "m.pt", make(), image_size=64, val_resize=RESIZE)
    look("export", path, "m.onnx")
    session = importlib.import_module("onnxruntime").InferenceSession("m.onnx")
    known = json.loads(session.get_modelmeta().custom_metadata_map["about"])
    assert known["val_resize"] == RESIZE  # as the pictures are
    images, size = [], known["image_size"]
    for picture in ten:
        pixels = np.array(PIL.Image.open(picture).convert("RGB"), np.float32) / 255
        top, left = (round((side - size) / 2) for side in pixels.shape[:2])
        crop = pixels[top : top + size, left : left + size]
        images.append(((crop - known["mean"]) / known["std"]).transpose(2, 0, 1))
    (logits,) = session.run(None, {"images": np.stack(images).astype(np.float32)})
    names, wanted = predicted(look, path, ten)
    assert known["classes"] == names
    found = torch.from_numpy(logits).softmax(dim=1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


KINDS = "m.pt2", "m.onnx", "m.safetensors", "folder"


@pytest.mark.parametrize("out", KINDS)
def test_nothing_is_overwritten(out, look, tmp_path, monkeypatch):
    path = write(tmp_path / "m.pt", make())
    for make_it in (
        lambda: write_file(tmp_path / out, b"mine"),
        lambda: (tmp_path / out).mkdir(),
        lambda: (tmp_path / out).symlink_to("nowhere"),
    ):
        make_it()
        before = sorted(each.name for each in tmp_path.iterdir())
        assert f"{out} is there already" in look("export", path, out, status=2)
        assert sorted(each.name for each in tmp_path.iterdir()) == before
        kept = tmp_path / out
        if kept.is_dir():
            kept.rmdir()
        else:
            assert kept.is_symlink() or kept.read_bytes() == b"mine"
            kept.unlink()
    # One that is there only when all is written stays, too.
    tool = importlib.import_module("exporting")
    compare = tool.compare

    def late(*words):
        write_file(tmp_path / out, b"mine")
        return compare(*words)

    monkeypatch.setattr(tool, "compare", late)
    assert f"{out} is there already" in look("export", path, out, status=2)
    assert (tmp_path / out).read_bytes() == b"mine"
    (tmp_path / out).unlink()
    # Of a model that answers otherwise nothing is left.
    monkeypatch.setattr(tool, "compare", lambda found, *more: compare(found + 1, *more))
    assert f"{out} answers otherwise than {path}" in look("export", path, out, status=1)
    assert [each.name for each in tmp_path.iterdir()] == ["m.pt"]


@pytest.mark.parametrize(
    ("arch", "options"), [("convnext_tiny", {}), ("inception_v3", {"transform_input": True})]
)
def test_what_timm_has_not_is_one_line(arch, options, look, tmp_path):
    options = {"aux_logits": False, "init_weights": False} | options if options else {}
    torch.manual_seed(0)
    model = torchvision.models.get_model(arch, num_classes=4, **options)
    sizes = {"image_size": 80, "val_resize": 90}
    path = write(tmp_path / "m.pt", model, arch, model_options=options, **sizes)
    line = look("export", path, "folder", status=2)
    assert f"no {arch} as torchvision's" in line and "OUT.safetensors" in line
    assert "OUT.onnx" in line and not (tmp_path / "folder").exists()


def test_a_library_that_is_missing_is_one_line(look, tmp_path, monkeypatch):
    path = write(tmp_path / "m.pt", make())
    for out, module in ("m.onnx", "onnxscript"), ("folder", "timm"), ("m.safetensors", None):
        with monkeypatch.context() as patch:
            patch.setitem(importlib.sys.modules, module or "safetensors.torch", None)
            assert "pip install '.[export]'" in look("export", path, out, status=2)
    assert [each.name for each in tmp_path.iterdir()] == ["m.pt"]


def test_averages_are_exported_unless_trained_weights_are_asked_for(look, ten, tmp_path):
    """Of both files of a run: in model_best.pt the averages are state_dict, too."""
    average, raw = make(seed=1), make(seed=2)
    both = {"ema": average.state_dict()}
    write(tmp_path / "checkpoint.pt", raw, **both)
    write(tmp_path / "model_best.pt", average, **both, trained=raw.state_dict())
    wanted = [predicted(look, write(tmp_path / "m.pt", each), ten)[1] for each in (average, raw)]
    for name in "checkpoint", "model_best":
        for number, words in enumerate(([], ["--trained"])):
            out = f"{name}{number}.safetensors"
            look("export", f"{name}.pt", out, *words)
            assert torch.equal(predicted(look, out, ten)[1], wanted[number])
    line = look("export", tmp_path / "m.pt", "n.pt2", "--trained", status=2)
    assert "--trained" in line and "no averages" in line


WAYS = {
    "nd": ("imagenet_nd.py", 1, ["-b", "16"]),
    "pipeline": ("imagenet_pipeline.py", 2, ["-b", "8", "--microbatches", "2"]),
    "fsdp": ("imagenet_fsdp.py", 2, ["-b", "8"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_leaves_and_comes_back(way, look, demo, tmp_path):
    """Whatever strategy trained it, under --ema: its validation is that of the exported weights,
    by --weights and by timm."""
    script, ranks, words = WAYS[way]
    options = "-a resnet18 --image-size 32 --no-accel -j 0 --epochs 1 --steps-per-epoch 2 --ema 0.5"
    words = [*command(script, ranks), *options.split(), *words, "--output-dir", "run"]
    run([*words, demo], tmp_path)
    look("export", "run/model_best.pt", "folder")
    again = "-a resnet18 --no-accel -j 0 -e --weights".split()
    output = run([*command("imagenet_nd.py"), *again, "folder/model.safetensors", demo], tmp_path)
    saved = load(tmp_path / "run" / "model_best.pt")
    (line,) = re.findall(r"^top-1.*|^.*top-1 [\d.]+ %.*$", output, re.MULTILINE)[-1:]
    assert f"{saved['best_acc1']:.3f}"[:5] in line and f"{saved['best_loss']:.5f}"[:6] in line
    model = timm.create_model("local-dir:folder", pretrained=True).state_dict()
    assert all(torch.equal(each, model[name]) for name, each in saved["ema"].items())
    card = (tmp_path / "folder" / "README.md").read_text()
    assert f"| Top1 of validation | {saved['best_acc1']:.4g} % |" in card
    assert f"| script | {script} |" in card and "moving averages" in card
