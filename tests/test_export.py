"""tools/look.py export: what timm, transformers, torchvision and ONNX Runtime do with what it has
written is what the checkpoint's model does, and what the scripts say of it."""

import argparse
import importlib
import json
import os
import re
from unittest import mock

import numpy as np
import PIL.Image
import pytest
import safetensors
import safetensors.torch
import timm
import torch
import torchvision
import transformers
from conftest import ROOT, command, load, run, write_file
from test_look import MEAN, STD, make, read_table, write, write_pictures
from test_text_folders import MNLI, logits_of, write_model, write_rows
from torch.utils.tensorboard import SummaryWriter

import text_nd
from trainparts import batch_plan, errors, safe_files
from trainparts.text import text_corpus, tokenizing

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
    "size of a tag": ("timm/test_vit.r160_in1k", 160, {}),
    "squashed": ("timm/convnextv2_nano.fcmae_ft_in22k_in1k_384", 64, {}),
}


@pytest.mark.parametrize("case", SHARED)
def test_timm_and_transformers_predict_as_look_does(case, look, ten, tmp_path):
    arch, size, options = SHARED[case]
    resize = RESIZE * (1 + size // 100)
    if arch.startswith("timm/"):
        path = timm_checkpoint(tmp_path / "m.pt", arch[5:], size, resize, options)
    else:
        path = write(tmp_path / "m.pt", make(arch), arch, image_size=size, val_resize=resize)
    for picture in ten:
        image = PIL.Image.open(picture)
        if case == "squashed":  # of one that is not square, both sides are resized
            image = image.crop((0, 0, RESIZE, RESIZE))
        image.resize([side * resize // RESIZE for side in image.size]).save(picture)
    output = look("export", path, "folder")
    assert output.startswith("folder: a folder for timm and transformers")
    names, wanted = predicted(look, path, ten)
    assert names == NAMES and wanted.std(dim=0).max() > 0.01
    for found in by_timm("folder", ten), by_transformers("folder", ten):
        assert found[0] == NAMES
        torch.testing.assert_close(found[1], wanted, rtol=0, atol=1e-5)
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert config["pretrained_cfg"]["crop_mode"] == ("squash" if case == "squashed" else "center")
    # The bare weights in it are a checkpoint to these programs.
    again = predicted(look, "folder/model.safetensors", ten)
    assert again[0] == NAMES and torch.equal(again[1], wanted)


def test_a_folder_says_how_images_are_resized(look, ten, tmp_path):
    """Of pictures that must be resized, single pixels differ by a level or two."""
    path = write(tmp_path / "m.pt", make("resnet18"), "resnet18", image_size=64, val_resize=72)
    look("export", path, "folder")
    (resize, crop, *_) = timm.data.create_transform(
        **timm.data.resolve_model_data_config(timm.create_model("local-dir:folder"))
    ).transforms
    assert (
        resize.size == 72 and resize.interpolation.value == "bilinear" and [*crop.size] == [64, 64]
    )
    _, wanted = predicted(look, path, ten)
    torch.testing.assert_close(by_timm("folder", ten)[1], wanted, rtol=0, atol=0.02)


def test_imagenet_s_classes_have_the_libraries_names(look, tmp_path):
    ids = [f"n{number:08}" for number in range(1000)]
    for classes, first in (
        (importlib.import_module("trainparts.images.class_names").IMAGENET, "tench, Tinca tinca"),
        (ids, ids[0]),  # a thousand others
    ):
        model, known = make("resnet18", classes=1000), {"num_classes": 1000, "classes": classes}
        path = write(tmp_path / "m.pt", model, "resnet18", **known)
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
    path = timm_checkpoint(tmp_path / "m.pt", "test_resnet", 64, RESIZE, {})
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
    (logits,) = session.run(["logits"], {"images": np.stack(images).astype(np.float32)})
    names, wanted = predicted(look, path, ten)
    assert known["classes"] == names
    found = torch.from_numpy(logits).softmax(dim=1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


KINDS = "m.pt2", "m.onnx", "m.safetensors", "folder"


@pytest.mark.parametrize("out", KINDS)
def test_nothing_is_overwritten(out, look, tmp_path, monkeypatch):
    path = timm_checkpoint(tmp_path / "m.pt", "test_resnet", 64, RESIZE, {})
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
    # Of a model that answers otherwise nothing is left.
    tool = importlib.import_module("exporting")
    compare = tool.compare
    monkeypatch.setattr(tool, "compare", lambda found, *more: compare(found + 1, *more))
    assert f"{out} answers otherwise than {path}" in look("export", path, out, status=1)
    assert [each.name for each in tmp_path.iterdir()] == ["m.pt"]


def test_what_is_there_only_when_all_is_written_stays(look, tmp_path, monkeypatch):
    path, tool = write(tmp_path / "m.pt", make()), importlib.import_module("exporting")
    compare = tool.compare

    def late(*words):
        write_file(tmp_path / "m.safetensors", b"mine")
        return compare(*words)

    monkeypatch.setattr(tool, "compare", late)
    assert "m.safetensors is there already" in look("export", path, "m.safetensors", status=2)
    assert (tmp_path / "m.safetensors").read_bytes() == b"mine"


def test_what_a_library_raises_is_one_line(look, tmp_path, monkeypatch):
    """As of a full disk; nothing is left. Files are as readable as others are."""
    path = write(tmp_path / "m.pt", make("resnet18"), "resnet18")
    for out in "folder", "m.safetensors":
        with monkeypatch.context() as patch:
            error = safetensors.SafetensorError("I/O error: No space left on device")
            patch.setattr(safetensors.torch, "save", mock.Mock(side_effect=error))
            line = look("export", path, out, status=1)
            assert f"{out} cannot be written: SafetensorError: I/O error: No space" in line
        assert [each.name for each in tmp_path.iterdir()] == ["m.pt"]
    look("export", path, "folder")
    modes = {each.stat().st_mode & 0o777 for each in (tmp_path / "folder").iterdir()}
    assert modes == {path.stat().st_mode & 0o777}
    assert "is no UTF-8" in look("export", path, os.fsdecode(b"o\xfe"), status=2)


@pytest.mark.parametrize(
    ("arch", "options"), [("squeezenet1_1", {}), ("inception_v3", {"transform_input": True})]
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
    if not options:  # as the line says; test_look.py exports this network to ONNX
        look("export", path, "m.safetensors")


@pytest.mark.parametrize("name", ["zero_init_residual", "transform_input"])
def test_options_of_torchvision_s_are_none_of_timm_s(name, look, tmp_path):
    arch, options = "resnet18", {"zero_init_residual": True}
    if name == "transform_input":
        arch, options = "inception_v3", {"aux_logits": False, "init_weights": False, name: False}
    model = torchvision.models.get_model(arch, num_classes=4, **options)
    sizes = {"image_size": 80, "val_resize": 90}
    look("export", write(tmp_path / "m.pt", model, arch, model_options=options, **sizes), "folder")
    found = timm.create_model("local-dir:folder", pretrained=True).state_dict()
    assert all(torch.equal(each, found[name]) for name, each in model.state_dict().items())


def test_a_library_that_is_missing_is_one_line(look, tmp_path, monkeypatch):
    path = write(tmp_path / "m.pt", make())
    for out, module in ("m.onnx", "onnxscript"), ("folder", "timm"), ("m.safetensors", None):
        with monkeypatch.context() as patch:
            patch.setitem(importlib.sys.modules, module or "safetensors.torch", None)
            assert "pip install '.[export]'" in look("export", path, out, status=2)
    assert [each.name for each in tmp_path.iterdir()] == ["m.pt"]


def test_averages_are_exported_unless_trained_weights_are_asked_for(look, ten, tmp_path):
    """Of both files of a run: in model_best.pt the averages are state_dict, too."""
    arch = "squeezenet1_1"
    average, raw = make(arch, seed=1), make(arch, seed=2)
    both = {"arch": arch, "ema": average.state_dict()}
    write(tmp_path / "checkpoint.pt", raw, **both)
    write(tmp_path / "model_best.pt", average, **both, trained=raw.state_dict())
    wanted = [
        predicted(look, write(tmp_path / "m.pt", each, arch), ten)[1] for each in (average, raw)
    ]
    for name in "checkpoint", "model_best":
        for number, words in enumerate(([], ["--trained"])):
            out = f"{name}{number}.safetensors"
            look("export", f"{name}.pt", out, *words)
            assert torch.equal(predicted(look, out, ten)[1], wanted[number])
    line = look("export", tmp_path / "m.pt", "n.pt2", "--trained", status=2)
    assert "--trained" in line and "no averages" in line


WAYS = {
    "nd": ("imagenet_nd.py", 1, "resnet18", ["-b", "16"]),
    "pipeline": ("imagenet_pipeline.py", 2, "timm/test_resnet", "-b 8 --microbatches 2".split()),
    "fsdp": ("imagenet_fsdp.py", 2, "timm/test_resnet", ["-b", "8"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_leaves_and_comes_back(way, look, demo, tmp_path):
    """Whatever strategy trained it, under --ema: its validation is that of the exported weights,
    by --weights and by timm."""
    script, ranks, arch, words = WAYS[way]
    options = f"-a {arch} --image-size 32 --no-accel -j 0 --epochs 1 --steps-per-epoch 2 --ema 0.5"
    words = [*command(script, ranks), *options.split(), *words, "--output-dir", "run"]
    run([*words, demo], tmp_path)
    look("export", "run/model_best.pt", "folder")
    again = f"-a {arch} --no-accel -j 0 -e --weights".split()
    output = run([*command("imagenet_nd.py"), *again, "folder/model.safetensors", demo], tmp_path)
    saved = load(tmp_path / "run" / "model_best.pt")
    (line,) = re.findall(r"^top-1.*|^.*top-1 [\d.]+ %.*$", output, re.MULTILINE)[-1:]
    assert f"{saved['best_acc1']:.3f}"[:5] in line and f"{saved['best_loss']:.5f}"[:6] in line
    model = timm.create_model("local-dir:folder", pretrained=True).state_dict()
    assert all(torch.equal(each, model[name]) for name, each in saved["ema"].items())
    card = (tmp_path / "folder" / "README.md").read_text()
    assert f"| Top1 of validation | {saved['best_acc1']:.4g} % |" in card
    assert f"| script | {script} |" in card and "moving averages" in card


# -------------------------------------------------------------------------------------------- text

TEXT = "--no-accel -b 8 --epochs 1 --steps-per-epoch 20 --output-dir run".split()


def trained_text(tmp_path, *words):
    """Trains a text model for a moment; returns the checkpoint's content."""
    run([*command("text_nd.py"), *TEXT, *words], tmp_path)
    return load(tmp_path / "run" / "model_best.pt")


def validated(tmp_path, *words):
    """Returns what text_nd.py -e prints of a model."""
    return run([*command("text_nd.py"), *TEXT[:3], "-e", *words], tmp_path).splitlines()[-1]


@pytest.mark.parametrize("kind", text_nd.ENCODERS)
def test_transformers_classifies_as_the_script_does(kind, look, tmp_path):
    """By names of classes, sentences of any length, alone and padded."""
    words = ["--task", "cola", "-a", kind, "--max-length", "32"]
    args, place = text_nd.make_parser().parse_args(words), argparse.Namespace(rank=0)
    sources = text_nd.list_sources(args, place)
    data = text_nd.open_data(args, place, sources, batch_plan.Batches(1, 1, 1))
    torch.manual_seed(0)
    model = text_nd.build_model(args, data).eval()
    path = tmp_path / "run" / "model_best.pt"
    if kind == "bert":  # a run; of the others a checkpoint alone
        saved = trained_text(tmp_path, *words, "--ema", "0.5", "--lr", "0.01")
        model.load_state_dict(saved["ema"])
    else:
        path.parent.mkdir()
        numbers = dict.fromkeys(["epoch", "step", "seconds", "global_batch", "peak_lr"], 1)
        more = {"args": vars(args), "state_dict": model.state_dict(), "not_default": {}}
        torch.save(text_nd.about_model(args, data) | numbers | more, path)
    output = look("export", path, "folder")
    assert "folder: a folder for transformers" in output
    sentences = [row.sentences[0] for row in text_corpus.demo_rows()[1][:10]]
    classify = transformers.pipeline("text-classification", model="folder", device="cpu")
    both = [classify(sentences, top_k=None, batch_size=each) for each in (1, 10)]
    for number, sentence in enumerate(sentences):
        source, length = data.val, data.val.length[number]
        tokens = source.tokens[source.offset[number] :][:length].tolist()
        with torch.no_grad():
            wanted = model(torch.tensor([[*tokens, length]])).softmax(dim=1)[0].tolist()
        for found in both:
            scores = {each["label"]: each["score"] for each in found[number]}
            scores = [scores[name] for name in ("unacceptable", "acceptable")]
            assert scores == pytest.approx(wanted, abs=1e-5), sentence
    # A pair: the second sentence is marked for models that take such marks alone.
    tokens = transformers.AutoTokenizer.from_pretrained("folder")(*sentences[:2])["input_ids"]
    second = tokens.index(tokens[-1]) + 1  # behind the first end of a sentence
    with torch.no_grad():
        wanted = model(torch.tensor([[*tokens, second]])).softmax(dim=1)[0].max().item()
    found = classify({"text": sentences[0], "text_pair": sentences[1]})
    assert found["score"] == pytest.approx(wanted, abs=1e-5)
    if kind == "bert":
        again = [
            validated(tmp_path, *words, "--weights", each)
            for each in (path, "folder/model.safetensors")
        ]
        again.append(validated(tmp_path, "--task", "cola", "-a", "folder", *words[-2:]))
        assert len({*again}) == 1 and f"loss {saved['best_loss']:.5f}" in again[0], again


def test_a_fine_tuned_model_leaves_with_its_classes_in_their_order(look, tmp_path):
    """Hugging Face's FOLDER, found again or given; pairs of sentences; another order of classes."""
    names = [MNLI[number] for number in (1, 2, 0)]
    write_model(tmp_path / "start", names=names)
    rows = write_rows(tmp_path / "data", MNLI)
    words = ["--task", "mnli", "-a", "start", "--max-length", "32"]
    trained_text(tmp_path, *words, "data")
    look("export", "run/model_best.pt", "folder")
    wanted = validated(tmp_path, *words, "--weights", "run/model_best.pt", "data")
    assert validated(tmp_path, "--task", "mnli", "-a", "folder", *words[-2:], "data") == wanted
    config = transformers.AutoConfig.from_pretrained("folder")
    assert [config.id2label[number] for number in range(3)] == names
    model = transformers.AutoModelForSequenceClassification.from_pretrained("folder")
    right = 0
    for _, *texts, label in rows:
        right += names[int(logits_of(model, "folder", texts).argmax())] == label
    assert f"accuracy {100 * right / len(rows):.3f}"[:13] in wanted
    (tmp_path / "start").rename(tmp_path / "moved")
    line = look("export", "run/model_best.pt", "other", status=2)
    assert "was made of start, which is not there: give -a FOLDER" in line
    look("export", "run/model_best.pt", "other", "-a", "moved")
    theirs = [
        safetensors.torch.load_file(f"{each}/model.safetensors") for each in ("folder", "other")
    ]
    assert all(torch.equal(each, theirs[1][name]) for name, each in theirs[0].items())


def test_words_of_a_table_must_be_those_that_were_trained_with(look, tmp_path):
    write_rows(tmp_path / "data", ["entailment", "not_entailment"], "rte")
    words = ["--task", "rte", "-a", "bert", "--max-length", "32", "data"]
    trained_text(tmp_path, *words)
    (tmp_path / "data").rename(tmp_path / "moved")
    assert "give --data DIR" in look("export", "run/model_best.pt", "folder", status=2)
    write_rows(tmp_path / "data", ["entailment", "not_entailment"], "rte", words=["a", "b"])
    assert "give --data DIR" in look("export", "run/model_best.pt", "folder", status=2)
    look("export", "run/model_best.pt", "folder", "--data", "moved")
    classify = transformers.pipeline("text-classification", model="folder", device="cpu")
    (found,) = classify([{"text": "the cat", "text_pair": "dog"}])
    assert found["label"] in ("entailment", "not_entailment")


def greedy(folder, prompt, length):
    """Returns the text that transformers' pipeline goes on with, and its prompt."""
    go_on = transformers.pipeline("text-generation", model=folder, device="cpu")
    options = {"do_sample": False, "pad_token_id": 0}
    options |= {"max_new_tokens": length} if length else {}
    return go_on(prompt, **options)[0]["generated_text"]


@pytest.mark.parametrize("tied", [[], pytest.param(["--tied"], marks=pytest.mark.slow)])
def test_transformers_goes_on_as_sample_does(tied, look, tool, tmp_path):
    """A language model of bytes; and validation knows the exported weights."""
    words = ["--max-length", "64", "--layers", "3", "--heads", "4", *tied]
    saved = trained_text(tmp_path, *words, "--lr", "0.02")
    look("export", "run/model_best.pt", "folder")
    prompt = "caf\u00e9 \U0001f40d \t\n  x = "
    tokenizer = transformers.AutoTokenizer.from_pretrained("folder")
    assert tokenizer(prompt).input_ids == [*prompt.encode()]
    assert tokenizer.decode([*prompt.encode()]) == prompt
    wanted = tool(
        "sample", "run/model_best.pt", "--prompt", prompt, "--temperature", 0, "--length", 20
    )
    assert greedy("folder", prompt, 20) == wanted[:-1]
    # Without a length it ends where positions do.
    assert len(greedy("folder", "ab", None)) <= 64
    again = tool(
        "sample", "folder/model.safetensors", "--prompt", prompt, "--temperature", 0, "--length", 20
    )
    assert again == wanted
    both = [
        validated(tmp_path, *words, "--weights", each)
        for each in ("run/model_best.pt", "folder/model.safetensors")
    ]
    assert both[0] == both[1] and f"perplexity {saved['best_perplexity']:.3f}" in both[0]
    model = transformers.AutoModelForCausalLM.from_pretrained("folder")
    assert model.config.activation_function == "gelu"  # "gelu_new" differs by 1e-3
    assert model.config.n_positions == 64 and tokenizer.model_max_length == 64
    card = (tmp_path / "folder" / "README.md").read_text()
    assert f"| Perplexity of validation | {saved['best_perplexity']:.4g} |" in card
    assert f"| Loss of validation | {saved['best_loss']:.4g} nats |" in card


def test_words_are_split_as_the_script_splits_them(look, tmp_path, text):
    trained_text(tmp_path, "--tokenizer", "words", "--max-length", "16", text)
    look("export", "run/model_best.pt", "folder")
    words = load(tmp_path / "run" / "model_best.pt")["words"]
    tokenizer = transformers.AutoTokenizer.from_pretrained("folder")
    line = (
        f"{words[3]} {words[2]}\n\n  {words[1]}\t{words[4]}\x1c{words[5]} unheard \u00a0{words[3]}"
    )
    index = {word: token for token, word in enumerate(words)}
    wanted = [index.get(word, 0) for word in tokenizing.split_words(line)]
    assert tokenizer(line).input_ids == wanted and wanted.count(0) == 1
    assert transformers.AutoModelForCausalLM.from_pretrained("folder").config.vocab_size == len(
        words
    )


def test_a_tokenizer_must_be_the_checkpoint_s(look, tmp_path, text):
    write_model(tmp_path / "tokens", cased=["q"])
    write_model(tmp_path / "others", cased=["z"])
    trained_text(tmp_path, "--tokenizer", "tokens", "--max-length", "16", text)
    look("export", "run/model_best.pt", "folder")
    found, own = (transformers.AutoTokenizer.from_pretrained(each) for each in ("folder", "tokens"))
    assert found("the cat q").input_ids == own("the cat q").input_ids
    assert "is not the checkpoint's" in look(
        "export", "run/model_best.pt", "more", "--tokenizer", "others", status=2
    )
    (tmp_path / "tokens").rename(tmp_path / "moved")
    line = look("export", "run/model_best.pt", "more", status=2)
    assert "tokens, which is no folder here: give --tokenizer FOLDER" in line
    look("export", "run/model_best.pt", "more", "--tokenizer", "moved")
    # Tokens of which nobody knows the tokenizer, as of nanoGPT's, have at least a number.
    saved = load(tmp_path / "run" / "model_best.pt")
    bare = {"task": "lm", "words": None, "tokenizer": None, "vocabulary": saved["vocabulary"] + 1}
    with pytest.raises(errors.BadInput, match="not the checkpoint's, which has"):
        importlib.import_module("exporting").tokenizer_in(bare, "moved")


def test_text_leaves_as_a_folder_alone(look, tmp_path):
    torch.save({"task": "lyrics", "model_options": {}, "state_dict": {}}, tmp_path / "own.pt")
    assert "own.pt is no checkpoint of text_*.py's, but of --task lyrics" in look(
        "export", "own.pt", "folder", status=2
    )
    saved = trained_text(tmp_path, "--max-length", "8")
    for name, value in ("vocabulary", -1), ("words", 5), ("max_length", "x"):
        torch.save(saved | {name: value}, tmp_path / "odd.pt")
        line = look("export", "odd.pt", "folder", status=2)
        assert "odd.pt is no language model" in line or "odd.pt cannot be used" in line
    assert "leaves as a FOLDER" in look("export", "run/model_best.pt", "m.onnx", status=2)
    words = "folder", "--script", ROOT / "imagenet_nd.py"
    assert "--script: a text model leaves" in look("export", "run/model_best.pt", *words, status=2)
    assert not (tmp_path / "folder").exists()


# -------------------------------------------------------------------------------------------- card


def log(folder, values, **about):
    """Writes a log of validations: {tag: values of the epochs from 1}."""
    writer = SummaryWriter(folder)
    known = {
        "options": {"arch": "resnet18"},
        "command": "python train.py",
        "data": "/x/cats & dogs",
    }
    known |= {"place": {"ranks": 2, "devices": 1, "device": "cuda", "precision": "bfloat16"}}
    known |= {"device": "NVIDIA *H200*", "torch": "2.14", "num_classes": 4} | about
    writer.add_text("about", f"```json\n{json.dumps(known)}\n```")
    for tag, each in values.items():
        for epoch, value in enumerate(each, 1):
            writer.add_scalar(f"{tag}/val", value, epoch)
    writer.close()


def small_model():
    """Returns a model that is quickly exported."""
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=4).eval()


def card_of(look, tmp_path, *words, **more):
    """Returns the rows of the card, {name: text}, of a checkpoint of the third epoch."""
    known = {"epoch": 3, "step": 0, "best_acc1": 60.0, "best_acc5": 95.5, "best_loss": 1.25}
    known |= {"seconds": 3723.0, "global_batch": 512, "peak_lr": 0.5}
    known |= {"args": {"epochs": 90, "seed": 7}, "not_default": {"label_smoothing": 0.1}} | more
    out = f"folder{len([*tmp_path.iterdir()])}"
    path = write(tmp_path / "m.pt", small_model(), "timm/test_resnet", **known)
    look("export", path, out, *words)
    text = (tmp_path / out / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: timm\npipeline_tag: image-classification\n---\n")
    assert "license:" not in text.split("---")[1] and "License: the model's author has not" in text
    return dict(re.findall(r"^\| ([^|]+) \| (.+) \|$", text, re.MULTILINE))


def test_a_card_has_the_epoch_s_measures_and_what_trained(look, tmp_path):
    log(tmp_path, {"Top1": [40, 60, 55, 70], "Top5": [95, 95.5, 94, 99], "Loss": [2, 1.25, 1.5, 1]})
    card = card_of(look, tmp_path)
    assert card["Top1 of validation"] == "55 %" and card["Top5 of validation"] == "94 %"
    assert card["Loss of validation"] == "1.5 nats"
    assert card["data"] == "cats &amp; dogs (4 classes)"
    assert card["hardware"] == r"2 GPUs: NVIDIA \*H200\*" and card["precision"] == "bfloat16"
    assert card["epochs"] == "3 of 90" and card["training time (h:m:s)"] == "1:02:03"
    assert card["options"] == "--label-smoothing 0.1" and card["seed"] == "7"
    assert card["global batch"] == "512" and card["peak learning rate"] == "0.5"
    assert card["classes"] == "4" and card["images"] == "64 pixels, resized to 72, bilinear"
    assert "weights" not in card


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"best_acc1": 61.0}, []),  # of another run
        ({"best_acc1": 40.0}, []),  # which has been in this folder before
        ({"step": 5}, []),  # within an epoch
        ({"epoch": 5}, []),  # not validated
        ({"epoch": 0, "best_acc1": 0.0, "best_acc5": 0.0, "best_loss": float("inf")}, []),
        ({"args": {"ema": 0.9}, "ema": "model", "trained": "model"}, ["--trained"]),
    ],
)
def test_a_measure_of_something_else_is_not_in_a_card(more, words, look, tmp_path):
    state = small_model().state_dict()
    more = {name: state if value == "model" else value for name, value in more.items()}
    log(tmp_path, {"Top1": [40, 60, 55], "Top5": [95, 95.5, 94], "Loss": [2, 1.25, 1.5]})
    card = card_of(look, tmp_path, *words, **more)
    assert not [name for name in card if "validation" in name]
    assert ("data" in card) == ("best_acc1" not in more and more.get("epoch") != 0)
    assert "5 steps of the next" in card["epochs"] or "step" not in more


def test_a_card_without_a_log_has_what_the_checkpoint_says(look, tmp_path):
    assert card_of(look, tmp_path)["options"] == "--label-smoothing 0.1"
    (tmp_path / "events.out.tfevents.1").write_bytes(b"no log")
    more = {"tokenizer": "/home/me/secret/tokens", "channels_last": True, "arch": "resnet18"}
    more = {"not_default": more, "args": {"epochs": 90, "seed": 0}}
    card = card_of(look, tmp_path, ema=small_model().state_dict(), **more)
    assert card["seed"] == "0"
    assert card["options"] == "--tokenizer tokens, --channels-last"
    assert card["weights"].startswith("moving averages") and "hardware" not in card
    torch.save(
        {"arch": "resnet18", "epoch": 7, "state_dict": make("resnet18").state_dict()}, "theirs.pt"
    )
    look("export", "theirs.pt", "other")  # of pytorch/examples
    assert "epochs" not in (tmp_path / "other" / "README.md").read_text()
