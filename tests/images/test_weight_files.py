"""trainparts/images/weight_files.py: what a file of weights says, and what of it fits a model."""

import argparse
import errno
import importlib.util
import itertools
import os
import re
import shlex
import sys
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from conftest import ROOT, Hostile, run
from huggingface_hub import constants
from torch import nn
from torchvision import models

from trainparts import errors
from trainparts.images import architectures, weight_files

MEAN, STD, HALF = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], [0.5, 0.5, 0.5]
NORMAL = {"mean": MEAN, "std": STD}


class Net(nn.Module):
    """A model of eleven tensors, of which evaluation does not use `aid`."""

    def __init__(self, classes=3):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8)
        self.aid, self.fc = nn.Linear(8, 9), nn.Linear(8, classes)

    def forward(self, x):
        features = self.norm(self.stem(x)).mean(dim=(2, 3))
        return (self.fc(features), self.aid(features)) if self.training else self.fc(features)


def net(seed=1, model=Net, **options):
    """Returns a model with values of its own in each tensor."""
    torch.manual_seed(seed)
    model = model(**options)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                for tensor in module.weight, module.running_mean, module.running_var:
                    tensor.uniform_(0.5, 1.5)
    return model


@pytest.fixture(autouse=True)
def printed(monkeypatch):
    """What the package logs is printed, as scripts have it."""
    monkeypatch.setattr(errors.LOG, "handlers", [])
    monkeypatch.setattr(errors.LOG, "propagate", True)
    errors.print_log()


def without(state, *names):
    """Returns a state dict less these names."""
    return {name: state[name] for name in state if name not in names}


@torch.no_grad()
def assert_alike(model, other, size=32):
    batch = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.eval()(batch), other.eval()(batch))


def load(saved, size=None, model=None, what="x.pth"):
    """Returns a model of other weights that has loaded these."""
    model = net(2) if model is None else model
    weight_files.load_weights(model, saved=saved, what=what, size=size)
    return model


def refusal(call, *words, **options):
    """Returns the line of the BadInput that a call raises."""
    with pytest.raises(errors.BadInput) as raised:
        call(*words, **options)
    return str(raised.value)


# ----------------------------------------------------------------------- what a file says of itself


OWN = {
    "arch": "resnet18",
    "model_options": {"zero_init_residual": True},
    "num_classes": 3,
    "classes": ["a", "b", "c"],
    "image_size": 64,
    "val_resize": 72,
    "interpolation": "bicubic",
    "mean": [0.1, 0.2, 0.3],
    "std": [0.4, 0.5, 0.6],
}


def test_all_that_an_own_checkpoint_says_is_believed():
    saved = OWN | {"epoch": 3, "state_dict": {}, "args": {"lr": 1}}
    assert weight_files.about_file("x.pt", saved=saved, arch="vit_b_16") == OWN | {
        "published": False
    }
    assert weight_files.about_file("resnet18-f37072fd.pth", saved=OWN)["published"] is False


def test_synthetic_images_have_no_names_of_classes():
    expected = OWN | {"published": False}
    del expected["classes"]
    assert weight_files.about_file("x.pt", saved=OWN | {"classes": []}) == expected


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("arch", 7, "7"),
        ("model_options", [], "[]"),
        ("num_classes", 0, "0"),
        ("num_classes", "3", "'3'"),
        ("classes", 10, "10"),
        ("classes", ["a", 1], "['a', 1]"),
        ("classes", [1] * 90, f"[{'1, ' * 26}1"),  # 80 characters
        ("image_size", "x", "'x'"),
        ("image_size", -1, "-1"),
        ("val_resize", 7.5, "7.5"),
        ("interpolation", "nearest", "'nearest'"),
        ("interpolation", None, "None"),
        ("mean", (0.1, 0.2, 0.3), "(0.1, 0.2, 0.3)"),
        ("std", 0.5, "0.5"),
    ],
)
def test_a_value_that_is_never_written_is_refused(name, value, shown):
    line = f"some/x.pt cannot be used: its {name} is {shown}"
    assert refusal(weight_files.about_file, "some/x.pt", saved=OWN | {name: value}) == line


@pytest.mark.parametrize(
    "odd",
    [
        {"mean": [0.5]},
        {"mean": [0.5], "std": [0.5]},
        {"mean": [0.5] * 4, "std": [0.5] * 4},
        {"std": [1.0, 0.0, 1.0]},
        {"std": [1.0, -1.0, 1.0]},
        {"mean": ["a"] * 3},
        {"mean": [None] * 3},
        {"mean": [0.5, float("nan"), 0.5]},
        {"std": [0.5, float("inf"), 0.5]},
    ],
)
def test_a_mean_and_std_that_are_not_three_numbers_each_are_refused(odd):
    line = "x.pt cannot be used: its mean and std are not three numbers each"
    assert refusal(weight_files.about_file, "x.pt", saved={"model_options": {}} | odd) == line


def test_a_mean_alone_is_believed():
    saved = {"model_options": {}, "mean": [0.0] * 3}
    assert weight_files.about_file("x.pt", saved=saved) == saved | {"published": False}


def test_a_checkpoint_of_another_task_is_refused():
    saved = {"model_options": {}, "task": "next-token"}
    line = "x.pt is a checkpoint of scripts for another task"
    assert refusal(weight_files.about_file, "x.pt", saved=saved) == line


@pytest.mark.parametrize(
    ("arch", "believed"),
    [
        ("resnet18", "resnet18"),
        ("resnet50d", "timm/resnet50d"),  # timm writes its own names so
        ("ResNet", None),  # a class's name
        ("fcn_resnet50", None),  # no classifier
        (7, None),
        (None, None),
    ],
)
def test_of_another_projects_file_the_architecture_alone_is_believed(arch, believed):
    """Their mean may be of pixels from 0 to 255, and their classes a number."""
    theirs = {"mean": [123.7, 116.3, 103.5], "classes": 10, "image_size": (9, 9), "task": "x"}
    saved = {"state_dict": {}, "arch": arch} | theirs
    expected = {"published": False} | ({"arch": believed} if believed else {})
    assert weight_files.about_file("x.pth", saved=saved, arch="resnet18") == expected


def test_without_timm_a_name_that_torchvision_lacks_may_be_timms(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    expected = {"arch": "timm/Any", "published": False}
    assert weight_files.about_file("x.pth", saved={"arch": "Any"}) == expected
    expected["arch"] = "resnet18"
    assert weight_files.about_file("x.pth", saved={"arch": "resnet18"}) == expected


@pytest.mark.parametrize("saved", [None, 5, "text", [1], torch.zeros(2)])
def test_a_file_of_something_else_says_nothing(saved):
    assert weight_files.about_file("x", saved=saved) == {"published": False}


@pytest.mark.parametrize(
    ("arch", "name", "sizes"),
    [
        ("resnet50", "resnet50-0676ba61.pth", (224, 256, "bilinear")),
        ("resnet50", "resnet50-11ad3fa6.pth", (224, 232, "bilinear")),
        ("vit_b_16", "vit_b_16_swag-9ac1b537.pth", (384, 384, "bicubic")),
        ("efficientnet_b1", "efficientnet_b1_rwightman-bac287d4.pth", (240, 256, "bicubic")),
    ],
)
def test_a_published_file_says_its_preprocessing(arch, name, sizes, tmp_path):
    """By its name, or by one that a link has or leads to. Its outputs are counted instead."""
    size, resize, how = sizes
    expected = {"image_size": size, "val_resize": resize, "interpolation": how, "published": True}
    blob, cached, link = tmp_path / "blob", tmp_path / "cache" / name, tmp_path / "link.pth"
    (tmp_path / "cache").mkdir()
    (tmp_path / name).touch()
    blob.touch()
    cached.symlink_to(blob)
    link.symlink_to(tmp_path / name)
    for path in tmp_path / name, cached, link, str(link), f"no/such/folder/{name}", name:
        found = weight_files.about_file(path, saved={}, arch=arch)
        assert {each: found[each] for each in expected} == expected, path
        assert found.keys() - expected.keys() == {"mean", "std"}
    assert weight_files.about_file(blob, saved={}, arch=arch) == {"published": False}
    assert weight_files.about_file(tmp_path / name, saved={}, arch="alexnet") == {
        "published": False
    }
    assert weight_files.about_file(tmp_path / name, saved={}) == {"published": False}
    assert weight_files.about_file(name, saved={"arch": arch})["published"] is True


def test_files_are_published_by_torchvision_alone():
    assert weight_files.published_files("resnet50") == {
        "resnet50-0676ba61.pth": models.ResNet50_Weights.IMAGENET1K_V1,
        "resnet50-11ad3fa6.pth": models.ResNet50_Weights.IMAGENET1K_V2,
    }
    for arch in "timm/resnet50", "resnet50d", "fcn_resnet50", None:
        assert weight_files.published_files(arch) == {}


# ----------------------------------------------------------------------- what a run says of weights


def test_a_checkpoint_is_called_by_its_path_and_epoch():
    metadata = OWN | {"path": "run/checkpoint.pt", "epoch": 7}
    expected = OWN | {"published": False, "what": "run/checkpoint.pt, epoch 7"}
    for evaluate in False, True:
        found = weight_files.read_about("resnet18", metadata=metadata, evaluate=evaluate)
        assert found == expected
    assert weight_files.read_about("resnet18", metadata=metadata, path="no such") == expected
    line = "run/checkpoint.pt, epoch 7 has another architecture than -a vit_b_16: type -a resnet18"
    options = {"metadata": metadata, "evaluate": True}
    assert refusal(weight_files.read_about, "vit_b_16", **options) == line
    assert weight_files.read_about("vit_b_16", metadata=metadata) == expected


def test_random_weights_say_nothing():
    for evaluate in False, True:
        found = weight_files.read_about("resnet18", evaluate=evaluate)
        assert found == {"published": False, "what": "random weights"}


def test_published_weights_say_their_preprocessing_in_an_evaluation():
    """Of timm's, the sizes of its own evaluation."""
    what = {"published": True, "what": "published weights"}
    assert weight_files.read_about("resnet18", pretrained=True) == what
    own = {"image_size": 224, "val_resize": 256, "interpolation": "bilinear", "num_classes": 1000}
    found = weight_files.read_about("resnet18", pretrained=True, evaluate=True)
    assert found == what | own | NORMAL
    own |= {"val_resize": 235, "interpolation": "bicubic"}
    found = weight_files.read_about("timm/resnet10t.c3_in1k", pretrained=True, evaluate=True)
    assert found == what | own | NORMAL


@pytest.mark.parametrize(
    "name", ["bare.pth", "squeezenet1_1-b8a52dc0.pth", "wrapped.pth", "own.pt"]
)
def test_outputs_of_a_file_are_counted_in_an_evaluation(name, tmp_path):
    """Whatever else the file says, and whatever it is called."""
    state = models.squeezenet1_1(num_classes=3).state_dict()
    about = {"bare.pth": {}, "wrapped.pth": {"arch": "squeezenet1_1"}}.get(name)
    if name == "own.pt":
        about = {"model_options": {}, "arch": "squeezenet1_1"}
    saved = {**about, "state_dict": state} if about else state
    path = str(tmp_path / name)
    torch.save(saved, path)
    options = {"path": path, "pretrained": True}
    found = weight_files.read_about("squeezenet1_1", **options, evaluate=True)
    assert (found["num_classes"], found["what"]) == (3, path)
    assert found["published"] == (name[0] == "s")
    found = weight_files.read_about("squeezenet1_1", **options)
    assert "num_classes" not in found and found["what"] == path


def test_the_number_of_outputs_that_a_file_says_is_believed(tmp_path):
    saved = {"model_options": {}, "num_classes": 5}
    torch.save(saved | {"state_dict": net().state_dict()}, tmp_path / "x.pt")
    found = weight_files.read_about("resnet18", path=str(tmp_path / "x.pt"), evaluate=True)
    assert found["num_classes"] == 5


def test_outputs_that_cannot_be_counted_are_not_said(tmp_path):
    torch.save({"state_dict": net().state_dict()}, tmp_path / "x.pth")
    path = str(tmp_path / "x.pth")
    found = weight_files.read_about("squeezenet1_1", path=path, evaluate=True)
    assert found == {"published": False, "what": path}


@pytest.mark.parametrize(
    ("typed", "named", "own", "advice"),
    [
        ("timm/resnet50d", "resnet50d", False, None),
        ("timm/resnet18", "resnet18", False, None),
        ("resnet50", "resnet50d", False, "timm/resnet50d"),
        ("timm/resnet34", "resnet18", False, "timm/resnet18"),
        ("timm/resnet34", "timm/resnet18", True, "timm/resnet18"),
        ("resnet18", "timm/resnet18", True, "timm/resnet18"),
        ("timm/resnet18", "resnet18", True, "resnet18"),
        ("resnet34", "resnet18", False, "resnet18"),
        ("resnet18", "resnet18", True, None),
    ],
)
def test_the_line_says_which_architecture_to_type(typed, named, own, advice, tmp_path):
    """timm writes its names without timm/, and has names that torchvision has."""
    saved = {"arch": named, "state_dict": {}} | ({"model_options": {}} if own else {})
    torch.save(saved, path := str(tmp_path / "some.pth"))
    if advice:
        line = f"{path} has another architecture than -a {typed}: type -a {advice}"
        assert refusal(weight_files.read_about, typed, path=path, evaluate=True) == line
    else:
        weight_files.read_about(typed, path=path, evaluate=True)
    assert weight_files.read_about(typed, path=path)["what"] == path


SIZES = {"what": "w.pt", "image_size": 224, "val_resize": 256}


@pytest.mark.parametrize(
    ("about", "arch", "sizes", "lines"),
    [
        (SIZES, "resnet18", (224, 256), ["crops of 224 pixels, resized to 256, bilinear"]),
        (
            SIZES,
            "resnet18",
            (224, 224),
            [
                "crops of 224 pixels, resized to 224, bilinear",
                "Its own are crops of 224 pixels, resized to 256",
            ],
        ),
        (
            SIZES,
            "resnet18",
            (96, 256),
            [
                "crops of 96 pixels, resized to 256, bilinear",
                "Its own are crops of 224 pixels, resized to 256",
            ],
        ),
        ({"what": "w.pt"}, "resnet18", (96, 110), ["crops of 96 pixels, resized to 110, bilinear"]),
        (
            {"what": "w.pt"},
            "timm/convnextv2_nano.fcmae_ft_in22k_in1k_384",
            (96, 96),
            ["crops of 96 pixels, resized to 96, bilinear, squashed"],
        ),
    ],
)
def test_lines_on_an_evaluation_name_the_sizes_and_other_ones_of_the_weights(
    about, arch, sizes, lines
):
    lines[0] = f"Validating w.pt: {lines[0].removeprefix('Validating w.pt: ')}"
    assert weight_files.about_evaluation(about, arch, sizes, "bilinear") == lines


def test_lines_on_pixels_have_other_means_than_the_architectures():
    for about in {}, NORMAL:
        assert weight_files.about_pixels({"what": "w.pt", **about}, "resnet18") == []
    about = {"what": "w.pt", "mean": HALF, "std": HALF}
    lines = [f"w.pt has a mean of {HALF}, not {MEAN}", f"w.pt has a std of {HALF}, not {STD}"]
    assert weight_files.about_pixels(about, "resnet18") == lines
    assert weight_files.about_pixels({**about, "std": STD}, "resnet18") == lines[:1]
    assert weight_files.about_pixels(about, "timm/test_vit") == []


@pytest.mark.parametrize("arch", ["googlenet", "inception_v3"])
def test_whose_inputs_are_transformed(arch):
    """What a file does not record is assumed aloud; by a published name nothing is."""
    name = {
        "googlenet": "googlenet-1378be20.pth",
        "inception_v3": "inception_v3_google-0cc3c7bd.pth",
    }
    for path, saved, expected, assumed in (
        (name[arch], {}, True, False),
        (f"/some/where/{name[arch]}", {"state_dict": {}}, True, False),
        (name["googlenet" if arch == "inception_v3" else "inception_v3"], {}, False, True),
        ("model_best.pth.tar", {"arch": arch, "state_dict": {}}, False, True),
        ("a.pt", {"model_options": {"transform_input": True, "aux_logits": False}}, True, False),
        (name[arch], {"model_options": {"transform_input": False}}, False, False),
    ):
        about = weight_files.about_file(path, saved=saved, arch=arch)
        options = architectures.model_options(arch, 224, about)
        assert options["transform_input"] is expected, path
        line = (
            f"{path} does not say whether its {arch} has transform_input: False is assumed, as in "
            "a training from scratch; published weights have True, and are called " + name[arch]
        )
        assert weight_files.assumptions(path, arch, options, about) == [line] * assumed


@pytest.mark.parametrize("arch", ["vit_b_16", "maxvit_t", "resnet18", "timm/test_resnet"])
def test_nothing_is_assumed_of_sizes_nor_of_timms(arch):
    options = architectures.model_options(arch, 64, {})
    assert weight_files.assumptions("x.pth", arch, options, {"published": False}) == []


def test_an_option_that_is_not_passed_is_not_assumed():
    assert weight_files.assumptions("x.pth", "googlenet", {}, {"published": False}) == []


# -------------------------------------------------------------------------------- published weights


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder where PyTorch keeps what it has fetched, and timm too; there is no network."""

    def fail(*words, **options):
        raise urllib.error.URLError(OSError(errno.ENETUNREACH, "Network is unreachable"))

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0")
    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    return tmp_path / "hub" / "checkpoints"


def test_published_weights_are_torchvisions(home):
    state = models.squeezenet1_1().state_dict()
    torch.save(state, home / "squeezenet1_1-b8a52dc0.pth")
    for found in (
        weight_files.published_weights("squeezenet1_1", {"image_size": 64}),
        weight_files.read_weights("squeezenet1_1", None, {})[1],
    ):
        torch.testing.assert_close(dict(found), dict(state), rtol=0, atol=0)
    assert weight_files.read_weights("squeezenet1_1", None, {})[0] == "--pretrained"


def test_timm_resamples_positions_for_images_of_another_size(home, tmp_path):
    name = timm.get_pretrained_cfg("test_vit").hf_hub_id.replace("/", "--")
    folder = tmp_path / "hf" / f"models--{name}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0")
    (folder / "snapshots" / "0").mkdir(parents=True)
    torch.manual_seed(0)
    model = timm.create_model("test_vit")
    safetensors.torch.save_model(model, folder / "snapshots" / "0" / "model.safetensors")
    for size, positions in (160, 101), (96, 37):
        options = {"img_size": size, "aux_logits": False} if size != 160 else {}
        found = weight_files.published_weights("timm/test_vit", options)
        assert found["pos_embed"].shape[1] == positions
        expected = timm.create_model("test_vit", pretrained=True, img_size=size).state_dict()
        torch.testing.assert_close(dict(found), dict(expected), rtol=0, atol=0)


def test_no_code_of_the_hubs_cache_is_run(home, tmp_path):
    torch.save({"a": Hostile(tmp_path / "ran")}, home / "squeezenet1_1-b8a52dc0.pth")
    line = f"--pretrained: cannot load squeezenet1_1 from {home}: the file there has Python objects"
    assert refusal(weight_files.published_weights, "squeezenet1_1", {}) == (
        f"{line}, which could run code; if {home}/squeezenet1_1-b8a52dc0.pth is damaged, remove it"
    )
    assert not (tmp_path / "ran").exists()


def test_weights_that_cannot_be_fetched_are_one_line(home):
    line = f"--pretrained: cannot load squeezenet1_1 from {home}: <urlopen error [Errno 101] "
    line += "Network is unreachable>"
    assert refusal(weight_files.published_weights, "squeezenet1_1", {}) == line
    (home / "resnet50-11ad3fa6.pth").write_bytes(b"other weights, which are not read")
    found = refusal(weight_files.published_weights, "resnet50", {})
    assert found == line.replace("squeezenet1_1", "resnet50")
    found = refusal(weight_files.published_weights, "timm/test_vit", {})
    cache = "Hugging Face's hub, or its cache in $HF_HOME"
    assert found.startswith(f"--pretrained: cannot load timm/test_vit from {cache}: ")
    assert "\n" not in found
    (home / "squeezenet1_1-b8a52dc0.pth").write_bytes(b"no weights")
    found = refusal(weight_files.published_weights, "squeezenet1_1", {})
    assert found.startswith(f"--pretrained: cannot load squeezenet1_1 from {home}: ")
    assert found.endswith(f"; if {home}/squeezenet1_1-b8a52dc0.pth is damaged, remove it")


def test_a_disk_that_fails_is_a_fault(home, monkeypatch):
    def fail(*words, **options):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    with pytest.raises(errors.Fault, match="^--pretrained: cannot load squeezenet1_1 from .*: Inp"):
        weight_files.published_weights("squeezenet1_1", {})


def test_weights_of_a_file_are_read_by_its_path(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "x.pth")
    what, found = weight_files.read_weights("resnet18", str(tmp_path / "x.pth"), {})
    assert what == f"--weights {tmp_path / 'x.pth'}" and found["a"].tolist() == [1, 1]


# ------------------------------------------------------------------------------------------ outputs


@pytest.mark.parametrize(
    "arch", ["regnet_y_400mf", "squeezenet1_1", "densenet121", "vit_b_16", "timm/test_resnet"]
)
def test_outputs_are_the_rows_of_the_last_layer(arch):
    """Whatever the order of a file's tensors, and in any wrapper."""
    with torch.device("meta" if arch != "regnet_y_400mf" else "cpu"):
        model, few = (architectures.make_model(arch, num_classes=n) for n in (10, 3))
    state = few.state_dict()
    backwards = dict(reversed([*state.items()]))
    wrapped = {"state_dict": {f"module.{name}": state[name] for name in state}}
    for saved in state, backwards, wrapped, {"ema": state, "state_dict": model.state_dict()}:
        assert weight_files.count_outputs(model, saved, "W") == 3
    headless = {name: state[name] for name in state if state[name].shape[:1] != (3,)}
    assert weight_files.count_outputs(model, headless, "W") is None


@pytest.mark.parametrize("saved", [None, [1], {}, {"fc.weight": torch.tensor(3.0)}, {"a": "b"}])
def test_what_is_no_layer_has_no_outputs(saved):
    assert weight_files.count_outputs(net(), saved, "W") is None


def test_a_bias_has_no_say_on_the_outputs():
    state = without(net(classes=3).state_dict(), "fc.weight")
    assert weight_files.count_outputs(net(classes=5), state, "W") is None


def test_either_of_two_classifiers_says_the_outputs():
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=7)
    state = model.state_dict()
    for gone in "head", "head_dist":
        few = without(state, f"{gone}.weight", f"{gone}.bias")
        assert weight_files.count_outputs(model, few, "W") == 7


# -------------------------------------------------------------------------------- entries of a file


NAMES = ["ema", "state_dict_ema", "model_ema", "state_dict", "model", "net", "model_state_dict"]


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_the_first_entry_of_these_names_that_has_tensors(name):
    """Averages come first, as in validation; what is before them is of another kind."""
    ours, other = {"a": torch.ones(1)}, {"a": torch.zeros(1)}
    odd = [torch.zeros(3), "resnet18", {"name": "resnet18"}, {"shadow": {"a": ours["a"]}}, {}, None]
    saved = {each: other for each in reversed(NAMES[NAMES.index(name) + 1 :])}
    saved[name] = ours
    saved |= dict(zip(NAMES[: NAMES.index(name)], odd, strict=False))
    found = weight_files.weights_in(saved)
    assert found[0] == name and found[1]["a"] is ours["a"]


def test_a_state_dict_has_no_name():
    saved = {"a": torch.ones(1), 5: torch.zeros(1), "epoch": 3, "net": "resnet18"}
    name, found = weight_files.weights_in(saved)
    assert name is None and [*found] == ["a", "5"] and found["5"] is saved[5]


@pytest.mark.parametrize("saved", [None, 5, [{"a": 1}], "text"])
def test_a_file_of_something_else_has_no_weights(saved):
    assert weight_files.weights_in(saved) == (None, {})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"a": torch.ones(1), "n": 3}, True),
        ({"n": 3, "a": torch.ones(1)}, True),
        ({"n": 3}, False),
        ({}, False),
        (torch.ones(1), False),
        ([torch.ones(1)], False),
        (None, False),
    ],
)
def test_an_entry_has_tensors_if_it_is_a_dict_of_some(found, expected):
    assert weight_files.has_tensors(found) is expected


# --------------------------------------------------------------------------------- names of weights


WRAPPERS = ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model.", "net."]
ARCHS = "timm/efficientvit_b0 timm/legacy_seresnet18 timm/iformer_t densenet121 swin_t".split()


@pytest.mark.parametrize("arch", [*ARCHS, "timm/iformer_m_distilled", "squeezenet1_1"])
def test_names_are_taken_as_they_are_and_wrappers_from_the_front(arch):
    with torch.device("meta"):
        model = architectures.make_model(arch, num_classes=3)
    state = model.state_dict()
    for wrapper, other in itertools.product(
        [*WRAPPERS, "model.module.", "net.model.module."], ({}, {"loss.weight": torch.ones(2)})
    ):
        wrapped = {f"{wrapper}{name}": weight for name, weight in state.items()} | other
        found = weight_files.named_as_in(model, wrapped)
        assert {name: found[name] for name in state} == state, wrapper
        if wrapper not in ("", "_orig_mod."):
            assert len(found) == len(state), "what is beside the model in a module is not its own"
    first = next(iter(state)).split(".")[0]
    parts = {name.replace(f"{first}.", f"{first}._orig_mod.", 1): state[name] for name in state}
    assert weight_files.named_as_in(model, parts) == state, "of a part that was compiled"


def test_names_stay_where_a_model_has_a_wrappers_name_itself():
    model = nn.ModuleDict({"model": nn.Linear(2, 3), "module": nn.ModuleDict({"net": Net()})})
    state = model.state_dict()
    assert weight_files.named_as_in(model, state) == state
    wrapped = {f"module.{name}": state[name] for name in state}
    assert weight_files.named_as_in(model, wrapped) == state


def test_published_names_of_earlier_releases():
    """torchvision's DenseNets of 2017 and ViTs of 2022: --weights takes what --pretrained takes."""
    small = {"growth_rate": 4, "block_config": (2, 2), "num_init_features": 8, "num_classes": 3}
    model, other = (net(seed, models.DenseNet, **small) for seed in (1, 2))
    old = r"(denselayer\d+\.(?:norm|conv))(\d\.)"
    state = {re.sub(old, r"\1.\2", name): weight for name, weight in model.state_dict().items()}
    assert "features.denseblock1.denselayer2.norm.1.weight" in state
    assert_alike(load(state, 32, other), model)
    model, other = (
        net(seed, lambda: models.VisionTransformer(32, 16, 2, 2, 16, 32, num_classes=3))
        for seed in (1, 2)
    )
    state = model.state_dict()
    for new, before in {"mlp.0.": "mlp.linear_1.", "mlp.3.": "mlp.linear_2."}.items():
        state = {name.replace(new, before): weight for name, weight in state.items()}
    assert_alike(load(state, 32, other), model)


def test_two_models_in_a_file():
    """Which of them is meant, nothing says."""
    one, two = (net(seed).state_dict() for seed in (1, 2))
    both = {f"model.{n}": one[n] for n in one} | {f"net.{n}": two[n] for n in two}
    line = "x.pth has two models that fit, both with a stem.weight"
    assert refusal(load, {"state_dict": both}) == line
    line = line.replace("x.pth", "the file")
    assert refusal(weight_files.named_as_in, net(), both) == line
    both = {f"model.{n}": one[n] for n in one} | {f"teacher.{n}": two[n] for n in two}
    assert_alike(load({"state_dict": both}, model=net(3)), net(1))
    both = {f"model.{n}": one[n] for n in one} | {f"net.{n}": one[n] for n in one}
    assert weight_files.named_as_in(net(), both) == one, "the same one twice"
    less = without(two, "fc.bias")
    both = {f"model.{n}": less[n] for n in less} | {f"net.{n}": one[n] for n in one}
    assert weight_files.named_as_in(net(), both) == one, "the one that fits better"


# ---------------------------------------------------------------------------- what the output needs


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("stem.weight", True),
        ("fc.bias", True),
        ("norm.running_mean", True),
        ("norm.running_var", True),
        ("norm.num_batches_tracked", False),
        ("aid.weight", False),
        ("no.such", False),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_the_output_needs_what_it_is_computed_from(name, needed, training):
    """And the model is as it was, whatever the trial has found."""
    model = net().train(training)
    before = {each: tensor.clone() for each, tensor in model.state_dict().items()}
    assert weight_files.output_needs(model, [name], 32) is needed
    assert weight_files.output_needs(model, [name, "aid.bias"], 32) is needed
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert {each.training for each in model.modules()} == {training}
    assert all(each.requires_grad and each.grad is None for each in model.parameters())


def test_the_output_needs_nothing_of_no_names():
    assert weight_files.output_needs(net(), [], 32) is False


def test_either_name_of_a_shared_weight_is_needed():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))
    model[1].weight = model[0].weight
    for name in "0.weight", "1.weight":
        assert weight_files.output_needs(model, [name], 8)


def test_tables_that_are_computed_are_not_needed():
    model = nn.Sequential(nn.Conv2d(3, 2, 1))
    model.register_buffer("table", torch.ones(2))
    model.forward = lambda x: model[0](x).mean(dim=(2, 3)) * model.table
    assert weight_files.output_needs(model, ["table"], 8) is False


@pytest.mark.parametrize("name", ["fc.weight", "norm.running_var", "stem.weight"])
def test_a_missing_weight_that_the_output_needs_ends_an_evaluation(name, capfd):
    """Training goes on."""
    few = without(net().state_dict(), name)
    line = f"x.pth: 1 weights do not fit: {name}; without them the output is random"
    assert refusal(load, few, 32) == line
    assert not capfd.readouterr().out
    load(few)
    line = f"x.pth: 1 weights do not fit and are left out: {name}\n"
    assert capfd.readouterr().out == line


def test_positions_of_another_size_end_an_evaluation():
    vit, larger = (
        models.VisionTransformer(size, 16, 2, 2, 16, 32, num_classes=3) for size in (32, 48)
    )
    line = "x.pth: 1 weights do not fit: encoder.pos_embedding; without them the output is random"
    assert refusal(load, vit.state_dict(), 48, larger) == line


def test_what_is_counted_or_computed_anew_is_not_needed():
    model = net()
    state = without(model.state_dict(), "norm.num_batches_tracked")
    assert_alike(load(state, 32), model)
    small = {"patch_size": [4, 4], "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 1]}
    small |= {"window_size": [4, 4], "num_classes": 3}
    model, other = (net(seed, models.SwinTransformer, **small) for seed in (1, 2))
    state = {n: w for n, w in model.state_dict().items() if "relative_position_index" not in n}
    assert len(state) < len(model.state_dict())
    assert_alike(load(state, 32, other), model)


def test_nothing_of_the_model_is_changed_by_the_trial(capfd):
    """Where a weight is missing that no output needs."""
    model, other = net(1), net(2).train()
    aid = other.aid.weight.detach().clone()
    load(without(model.state_dict(), "aid.weight", "aid.bias"), 32, other)
    line = "x.pth: 2 weights do not fit and are left out: aid.bias, aid.weight\n"
    assert capfd.readouterr().out == line
    assert torch.equal(other.aid.weight, aid) and other.training and other.norm.training
    assert_alike(other, model)


# -------------------------------------------------------------------------- weights that are loaded


def refuses(x):
    raise RuntimeError("of the model")


CASES = {
    "needed": (without(net(1).state_dict(), "fc.bias"), 32, errors.BadInput),
    "half is missing": ({"stem.weight": net(1).stem.weight}, None, errors.BadInput),
    "another model's": ({**net(1).state_dict(), "other": torch.ones(1)}, 32, errors.BadInput),
    "refused by the model": (without(net(1).state_dict(), "aid.bias"), 32, RuntimeError),
}


@pytest.mark.parametrize("case", CASES)
def test_where_weights_are_refused_the_model_is_as_it_was(case, monkeypatch):
    """Its mode, too."""
    saved, size, error = CASES[case]
    model, before = net(2), net(2).state_dict()
    if error is RuntimeError:
        monkeypatch.setattr(model, "forward", refuses)
    with pytest.raises(error):
        load(saved, size, model)
    assert model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_trial_of_an_output_gives_back_what_it_took(monkeypatch):
    model, before = net(2), net(2).state_dict()
    monkeypatch.setattr(model, "forward", refuses)
    with pytest.raises(RuntimeError, match="of the model"):
        weight_files.output_needs(model, ["fc.bias", "stem.weight"], 32)
    assert model.training
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_a_file_may_be_named_by_its_path(capfd):
    """Of which averages are taken, too."""
    load({"ema": net(1).state_dict(), "model": net(1).state_dict()}, what=Path("a") / "x.pth")
    first, _ = capfd.readouterr().out.split(" are taken: ")
    assert first == "a/x.pth: its averages, ema,"


def test_weights_that_fit_are_loaded_in_silence(capfd):
    model = net()
    for size in None, 32:
        found = load({"state_dict": model.state_dict(), "epoch": 3}, size)
        assert_alike(found, model)
        torch.testing.assert_close(found.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert capfd.readouterr() == ("", "")


def test_four_of_the_weights_that_do_not_fit_are_named(capfd):
    """Those that are missing, those that are strange, and those of another shape, sorted."""
    state = without(net().state_dict(), "stem.bias", "norm.bias")
    state |= {"fc.bias": torch.ones(5), "fc.weight": torch.ones(5, 8), "another": torch.ones(1)}
    before = net(2).state_dict()
    found = load(state).state_dict()
    line = "x.pth: 5 weights do not fit and are left out: another, fc.bias, fc.weight, norm.bias\n"
    assert capfd.readouterr().out == line
    for name in "stem.bias", "norm.bias", "fc.bias", "fc.weight":
        assert torch.equal(found[name], before[name])
    assert torch.equal(found["stem.weight"], state["stem.weight"])


def test_other_ranks_than_the_first_say_nothing(capfd, monkeypatch):
    few = {"ema": without(net().state_dict(), "aid.bias")}
    for rank, lines in ("1", 0), ("0", 2):
        monkeypatch.setenv("RANK", rank)
        load(few)
        assert len(capfd.readouterr().out.splitlines()) == lines


def test_less_than_half_of_the_weights_may_be_missing():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    state = model.state_dict()
    weight_files.load_weights(model, saved=without(state, "0.weight"), what="x.pth")
    few = without(state, "0.weight", "1.bias") | {"loss": torch.ones(1)}
    line = "x.pth: 3 weights do not fit: 0.weight, 1.bias, loss; the file holds 0.bias, 1.weight, "
    assert refusal(weight_files.load_weights, model, saved=few, what="x.pth") == f"{line}loss"


@pytest.mark.parametrize(
    ("saved", "holds"),
    [
        ({"weights": {}, "acc": 91.2, 3: 4, "d": 5, "e": 6}, "weights, acc, 3, d"),
        ({"state_dict": {f"body.{n}": w for n, w in Net().state_dict().items()}}, None),
        (None, "nothing by name"),
        (5, "nothing by name"),
        ([Net().state_dict()], "nothing by name"),
        ({}, "nothing by name"),
    ],
)
@pytest.mark.parametrize("size", [None, 32])
def test_a_file_without_the_models_weights_is_told_what_it_holds(saved, holds, size):
    names = [*Net().state_dict()]
    holds = holds or ", ".join(f"body.{name}" for name in names[:4])
    strange = [f"body.{name}" for name in names] if "body." in holds else []
    left = sorted([*without(dict.fromkeys(names), "norm.num_batches_tracked"), *strange])
    line = f"x.pth: {len(left)} weights do not fit: {', '.join(left[:4])}; the file holds {holds}"
    assert refusal(load, saved, size) == line


def test_weights_of_a_deeper_model_are_not_evaluated(capfd):
    """They have all names and shapes of this one; auxiliary heads and counters are no layers."""
    model, other = net(), {f"layer{number}.weight": torch.ones(1) for number in range(5)}
    heads = {"AuxLogits.fc.weight": torch.ones(2), "aux1.bias": torch.ones(2)}
    state = model.state_dict() | heads | {"steps": torch.tensor(3)}
    assert_alike(load(state, 32), model)
    line = "x.pth: 3 weights do not fit and are left out: AuxLogits.fc.weight, aux1.bias, steps\n"
    assert capfd.readouterr().out == line
    four = ", ".join([*other][:4])
    line = "x.pth: 8 weights do not fit: the file is of another model, which has "
    assert refusal(load, state | other, 32) == line + four
    load(state | other)
    assert "x.pth: 8 weights do not fit and are left out: AuxLog" in capfd.readouterr().out


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["fc.bias", "stranger"])
@pytest.mark.parametrize("size", [None, 32])
def test_weights_that_are_not_finite_are_refused(value, name, size):
    state = net().state_dict() | {name: torch.tensor([0.0, value, 0.0])}
    assert refusal(load, state, size) == "x.pth: its weights are not all finite"


@pytest.mark.parametrize("size", [None, 32])
def test_a_variance_is_not_negative(size, capfd):
    """Its root is no number: what is validated would be blamed on --lr."""
    name, state = "norm.running_var", net().state_dict()
    state[name][1] = -1e-6
    assert refusal(load, state, size) == f"x.pth: {name}, a variance, is negative"
    load(state | {name: -torch.ones(7)})
    assert f"1 weights do not fit and are left out: {name}\n" in capfd.readouterr().out


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64])
def test_weights_that_are_no_real_numbers_do_not_fit(dtype, capfd):
    """Whole numbers were quantised, and their scale is elsewhere."""
    state = net().state_dict()
    whole = {name: weight.to(dtype) for name, weight in state.items()}
    assert refusal(load, whole, 32).startswith("x.pth: 10 weights do not fit: aid.bias, aid.wei")
    state["fc.bias"] = state["fc.bias"].to(dtype)
    load(state)
    line = "x.pth: 1 weights do not fit and are left out: fc.bias\n"
    assert capfd.readouterr().out == line
    line = "x.pth: 1 weights do not fit: fc.bias; without them the output is random"
    assert refusal(load, state, 32) == line


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_precision_are_loaded(dtype, capfd):
    """A counter too."""
    state = {name: weight.to(dtype) for name, weight in net().state_dict().items()}
    found = load(state, 32).state_dict()
    assert not capfd.readouterr().out
    expected = {name: weight.to(found[name].dtype) for name, weight in state.items()}
    torch.testing.assert_close(dict(found), expected, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [None, 32])
def test_sparse_and_quantised_tensors_are_one_line(size):
    state = without(net().state_dict(), "norm.num_batches_tracked")
    sparse = {name: weight.to_sparse() for name, weight in state.items()}
    small = {n: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8) for n, w in state.items()}
    for saved in sparse, small:
        line = refusal(load, saved, size)
        assert re.match(r"x.pth: \d+ weights do not fit: ", line) and "\n" not in line


def test_what_pytorch_says_of_weights_is_one_line():
    def fail(*words):
        raise RuntimeError("odd tensors\nand more")

    model = net()
    model.register_load_state_dict_pre_hook(fail)
    assert refusal(load, model.state_dict(), None, model) == "x.pth: odd tensors"


# --------------------------------------------------------------------------------- others' averages


@pytest.mark.parametrize(
    ("saved", "lines"),
    [
        ({"ema": 1}, ["x.pth: its averages, ema, are taken"]),
        ({"model_ema": 1, "model": "resnet18"}, ["x.pth: its averages, model_ema, are taken"]),
        ({"ema": 1, "model_ema": 2}, ["x.pth: its averages, ema, are taken"]),
        ({"ema": 1, "state_dict": 2, "model_options": {}}, []),
        ({"model": 1, "state_dict_ema": {}}, []),
        ({"state_dict": 1}, []),
    ],
)
def test_averages_of_others_are_taken_aloud(saved, lines, capfd):
    """Of an own checkpoint everybody evaluates them. A number here is a model's seed."""
    first = min(each for each in saved.values() if isinstance(each, int))
    saved = {n: net(v).state_dict() if isinstance(v, int) else v for n, v in saved.items()}
    assert_alike(load(saved, 32, net(5)), net(first))
    assert capfd.readouterr().out.splitlines() == lines


def test_the_lines_command_writes_what_is_beside_averages(tmp_path, capfd):
    """Of a file with numbers of NumPy and options, as timm saves it; it overwrites nothing."""
    wrapped = {f"module.{name}": weight for name, weight in net(1).state_dict().items()}
    saved = {"state_dict": net(2).state_dict(), "model": net(3).state_dict()}
    saved |= {"state_dict_ema": {"n_averaged": torch.tensor(3), **wrapped}}
    saved |= {"args": argparse.Namespace(lr=1.0), "metric": np.float64(1)}
    torch.save(saved, path := tmp_path / "it's 1.pth")
    what, content = weight_files.read_weights("resnet18", str(path), {})
    assert_alike(load(content, 32, net(4), what), net(1))
    out = "it's 1_state_dict.pth"
    before = f"--weights {path}: its averages, state_dict_ema, are taken: "
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith(before) and line.endswith(f" writes the others into {out}")
    command = line.removeprefix(before).removesuffix(f" writes the others into {out}")
    words = shlex.split(command)
    assert words[0] == sys.executable
    run(words, tmp_path)
    found = torch.load(tmp_path / out, weights_only=True)
    torch.testing.assert_close(dict(found), dict(net(2).state_dict()), rtol=0, atol=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(sys, "path", [*sys.path])
        with pytest.raises(FileExistsError):
            exec(words[2], {})
        assert sys.path[0] == str(ROOT), "where no package is installed, it is found all the same"


@pytest.mark.parametrize(
    ("others", "name"),
    [({"model": 1}, "model"), ({"net": 1, "model": {}}, "net"), ({"net": 2, "model": 1}, "model")],
)
def test_the_first_other_weights_are_those_of_the_command(others, name):
    saved = {"ema": net().state_dict(), "model_ema": net().state_dict()}
    for each, kind in others.items():
        saved[each] = net().state_dict() if kind else {}
    text = weight_files.command_for_others(saved, "--weights some/w.pth.tar")
    assert f"load('\"'\"'some/w.pth.tar'\"'\"')['\"'\"'{name}'\"'\"']" in text
    assert text.endswith(f" writes the others into w.pth_{name}.pth") and text.startswith(": ")
