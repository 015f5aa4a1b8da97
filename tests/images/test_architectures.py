"""trainparts/images/architectures.py: models by name, and what their libraries say of images."""

import importlib.util

import pytest
import timm
import torch
from torch import nn
from torchvision import models

from trainparts import errors
from trainparts.images import architectures
from trainparts.images.architectures import Preset

MEAN, STD, HALF = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), (0.5, 0.5, 0.5)


# -------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "arch", ["resnet18", "vit_b_16", "timm/resnet10t", "timm/resnet10t.c3_in1k", "timm/test_vit"]
)
def test_a_known_name_is_not_complained_of(arch):
    assert architectures.why_unknown(arch) is None


@pytest.mark.parametrize(
    ("arch", "similar"),
    [
        ("resnet19", "resnet18, resnet152, resnet101, resnet50, resnet34"),
        ("ResNet18", "resnet18, resnet152, resnet101, resnet50, resnet34"),
        ("fcn_resnet50", "resnet50, wide_resnet50_2, resnet152, resnet101, resnet34"),
        ("zzzz", ", ".join(sorted(models.list_models(module=models))[:20])),
    ],
)
def test_an_unknown_name_is_answered_by_similar_ones(arch, similar):
    """By the first of all where none is similar; a model of segmentation is no classifier."""
    line = f"-a {arch}: no such classifier; similar names: {similar}"
    assert architectures.why_unknown(arch) == line


@pytest.mark.parametrize("name", ["resnet19", "resnet10t.foo", "regnet_y_400mf"])
def test_a_name_of_timms_is_looked_for_among_timms(name):
    line = architectures.why_unknown(f"timm/{name}")
    first, _, similar = line.partition("; similar names: ")
    assert first == f"-a timm/{name}: no such classifier"
    known = {*timm.list_models(), *timm.list_pretrained()}
    assert len(similar.split(", ")) == 5 and {*similar.split(", ")} <= known
    assert name != "resnet10t.foo" or similar.startswith("resnet10t, ")


def test_a_name_of_timms_alone_is_none_of_torchvisions():
    assert "no such classifier" in architectures.why_unknown("resnet10t")


def test_a_missing_timm_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = "timm/resnet10t needs timm: pip install timm"
    assert architectures.why_unknown("timm/resnet10t") == line
    assert architectures.why_unknown("resnet18") is None


# ------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("arch", "library"),
    [("squeezenet1_1", models.squeezenet1_1), ("timm/test_resnet", timm.models.test_resnet)],
)
def test_a_model_is_the_librarys_with_random_weights(arch, library):
    torch.manual_seed(0)
    model = architectures.make_model(arch, num_classes=3)
    torch.manual_seed(0)
    expected = library(num_classes=3)
    assert type(model) is type(expected)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_pretrained_weights_are_the_first_that_torchvision_publishes(tmp_path, monkeypatch):
    """mobilenet_v3_large has two."""
    files = {1: "mobilenet_v3_large-8738ca79.pth", 2: "mobilenet_v3_large-5c1a4163.pth"}
    hub = tmp_path / "hub" / "checkpoints"
    hub.mkdir(parents=True)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    state = models.mobilenet_v3_large().state_dict()
    for version, name in files.items():
        state["classifier.3.bias"].fill_(version)
        torch.save(state, hub / name)
    found = architectures.make_model("mobilenet_v3_large", pretrained=True).state_dict()
    assert found["classifier.3.bias"].unique().tolist() == [1]
    assert torch.equal(found["classifier.0.weight"], state["classifier.0.weight"])


@pytest.mark.parametrize("arch", ["squeezenet1_1", "timm/test_resnet"])
def test_an_option_that_the_library_does_not_take_is_its_error(arch):
    with pytest.raises(TypeError, match="odd_option"):
        architectures.make_model(arch, odd_option=1)


@pytest.mark.parametrize(
    ("arch", "size", "about", "zero_init", "expected"),
    [
        ("resnet18", 64, {}, False, {}),
        ("resnet18", 64, {}, True, {"zero_init_residual": True}),
        ("vit_b_16", 64, {}, False, {"image_size": 64}),
        ("maxvit_t", 64, {}, False, {"input_size": (64, 64)}),
        ("timm/vit_tiny_patch16_224", 96, {}, False, {"img_size": 96}),
        ("timm/test_resnet", 64, {}, False, {}),
        # Sizes are this run's, and other options are believed if this architecture has them.
        ("vit_b_16", 32, {"model_options": {"image_size": 64}}, False, {"image_size": 32}),
        (
            "maxvit_t",
            32,
            {"model_options": {"input_size": (64, 64)}},
            False,
            {"input_size": (32, 32)},
        ),
        (
            "timm/vit_tiny_patch16_224",
            96,
            {"model_options": {"img_size": 64, "checkpoint_path": "x"}},
            False,
            {"img_size": 96},
        ),
        (
            "resnet18",
            64,
            {"model_options": {"zero_init_residual": False, "weights": "x"}},
            True,
            {"zero_init_residual": False},
        ),
        ("resnet18", 64, {"model_options": {"zero_init_residual": True}}, False, {}),
    ],
)
def test_a_model_is_built_with_what_its_images_and_its_file_ask(
    arch, size, about, zero_init, expected
):
    assert architectures.model_options(arch, size, about, zero_init) == expected


@pytest.mark.parametrize("arch", ["googlenet", "inception_v3"])
@pytest.mark.parametrize(
    ("about", "transform", "heads"),
    [
        ({}, False, False),
        ({"published": False}, False, False),
        ({"published": True}, True, False),
        ({"model_options": {"transform_input": True}, "published": False}, True, False),
        ({"model_options": {"transform_input": False}, "published": True}, False, False),
        ({"model_options": {"aux_logits": True, "weights": "x"}}, False, True),
    ],
)
def test_inputs_are_transformed_for_published_weights(arch, about, transform, heads):
    """A file's own word goes first."""
    expected = {"aux_logits": heads, "init_weights": True, "transform_input": transform}
    assert architectures.model_options(arch, 224, about) == expected


# One of each family that takes images of another size than its own only if it is built for it.
FIXED = {
    "vit_tiny_patch16_224": 256,
    "swin_tiny_patch4_window7_224": 96,
    "mixer_s16_224": 64,
    "maxvit_rmlp_pico_rw_256": 96,
    "eva02_tiny_patch14_224": 98,
    "levit_128s": 96,
}


@pytest.mark.parametrize(("name", "size"), FIXED.items())
def test_models_of_fixed_size_are_built_for_images_of_another(name, size):
    own = timm.get_pretrained_cfg(name).input_size[1]
    assert architectures.model_options(f"timm/{name}", size, {}) == {"img_size": size}
    assert architectures.model_options(f"timm/{name}", own, {}) == {}


@pytest.mark.parametrize("name", ["resnet10t", "xcit_nano_12_p8_224", "crossvit_tiny_240"])
def test_other_models_are_built_as_they_are(name):
    """crossvit's would break with img_size."""
    assert architectures.model_options(f"timm/{name}", 96, {}) == {}


def test_a_size_that_does_not_fit_is_one_line():
    """Whatever PyTorch says of it."""
    with pytest.raises(errors.BadInput) as raised:
        architectures.model_options("timm/efficientformer_l1", 96, {})
    line = str(raised.value)
    assert line.startswith("-a timm/efficientformer_l1 does not take images of 96 pixels (")
    assert line.endswith("); its own have 224") and "\n" not in line


@pytest.mark.parametrize(
    ("name", "size", "why", "own"),
    [
        ("halonet26t", 96, "AssertionError", 256),
        ("vit_tiny_patch16_224", 8, "Input height (8) doesn't match model (224).", 224),
    ],
)
def test_the_line_has_the_words_of_the_model_as_it_is(name, size, why, own):
    with pytest.raises(errors.BadInput) as raised:
        architectures.timm_size(f"timm/{name}", size)
    line = f"-a timm/{name} does not take images of {size} pixels ({why}); its own have {own}"
    assert str(raised.value) == line


# ------------------------------------------------------------------------------------ preprocessing


@pytest.mark.parametrize(
    ("arch", "test", "expected"),
    [
        ("resnet18", False, Preset(224, 256, "bilinear", MEAN, STD, 1000)),
        ("resnet18", True, Preset(224, 256, "bilinear", MEAN, STD, 1000)),
        ("inception_v3", False, Preset(299, 342, "bilinear", MEAN, STD, 1000)),
        ("efficientnet_b1", False, Preset(240, 256, "bicubic", MEAN, STD, 1000)),
        ("swin_t", False, Preset(224, 232, "bicubic", MEAN, STD, 1000)),
        ("timm/resnet10t.c3_in1k", False, Preset(176, 201, "bicubic", MEAN, STD, 1000)),
        ("timm/resnet10t.c3_in1k", True, Preset(224, 235, "bicubic", MEAN, STD, 1000)),
        ("timm/resnet18.a1_in1k", True, Preset(288, 288, "bicubic", MEAN, STD, 1000)),
        (
            "timm/vit_tiny_patch16_224",
            True,
            Preset(224, 248, "bicubic", HALF, HALF, 1000, fixed=True),
        ),
        (
            "timm/convnextv2_nano.fcmae_ft_in22k_in1k_384",
            True,
            Preset(384, 384, "bicubic", MEAN, STD, 1000, squash=True),
        ),
        (
            "timm/vit_so400m_patch14_siglip_378.webli_ft_in1k",
            True,
            Preset(378, 378, "bicubic", HALF, HALF, 1000, squash=True, fixed=True),
        ),
        ("timm/tf_efficientnetv2_s.in21k", False, Preset(300, 300, "bicubic", HALF, HALF, 21843)),
        ("timm/tf_efficientnetv2_s.in21k", True, Preset(384, 384, "bicubic", HALF, HALF, 21843)),
        (
            "timm/vit_small_patch14_dinov2.lvd142m",
            False,
            Preset(518, 518, "bicubic", MEAN, STD, 0, fixed=True),
        ),
    ],
)
def test_a_preset_is_what_the_library_publishes(arch, test, expected):
    """The shorter side is rounded down, as in timm; a test of timm's may have sizes of its own."""
    assert architectures.preset_of(arch, test=test) == expected
    assert architectures.preset_of(arch, test) == expected


def test_a_preset_of_torchvisions_weights_is_theirs_and_not_the_first():
    found = architectures.preset_in(models.ResNet50_Weights.IMAGENET1K_V2)
    assert found == Preset(224, 232, "bilinear", MEAN, STD, 1000)
    found = architectures.preset_in(models.ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1)
    assert found == Preset(384, 384, "bicubic", MEAN, STD, 1000)


def test_a_preset_says_what_a_checkpoint_says():
    """Of JSON's kinds: lists, and not whether images are squashed."""
    preset = Preset(176, 201, "bicubic", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 7, True, True)
    assert preset.about() == {
        "image_size": 176,
        "val_resize": 201,
        "interpolation": "bicubic",
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "num_classes": 7,
    }


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("vit_base_patch16_sapiens2.fb", "1024 x 768 pixels, crop mode squash"),
        ("deepseek_vit_412m", "546 x 546 pixels, crop mode border"),
    ],
)
def test_images_that_are_not_made_here_are_refused_in_a_test_alone(name, images):
    with pytest.raises(errors.BadInput) as raised:
        architectures.preset_of(f"timm/{name}", test=True)
    line = f"-a timm/{name} is published for images of {images}: these scripts do not make them"
    assert str(raised.value) == line
    assert architectures.preset_of(f"timm/{name}").image_size in (1024, 546)


def test_images_of_other_channels_are_refused_in_a_test(monkeypatch):
    config = timm.get_pretrained_cfg("test_resnet").to_dict() | {"input_size": (1, 160, 160)}
    config |= {"test_input_size": None}
    config = timm.models.PretrainedCfg(**config)
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: config)
    with pytest.raises(errors.BadInput, match="is published for images of 160 x 160 pixels"):
        architectures.preset_of.__wrapped__("timm/test_resnet", test=True)


PRESET = Preset(224, 256, "bilinear", MEAN, STD, 1000)
THEIRS = {"image_size": 48, "val_resize": 60}


@pytest.mark.parametrize(
    ("about", "typed", "expected"),
    [
        ({}, {}, (224, 224, 256)),
        ({}, {"image_size": 64}, (64, 64, 73)),  # 64 * 256 / 224 = 73.1
        ({}, {"val_size": 100}, (224, 100, 114)),  # 114.3
        ({}, {"val_size": 110}, (224, 110, 126)),  # 125.7
        ({}, {"val_resize": 240}, (224, 224, 240)),
        ({}, {"val_resize": 224}, (224, 224, 224)),
        (THEIRS, {}, (48, 48, 60)),
        (THEIRS, {"image_size": 64}, (64, 64, 73)),
        (THEIRS, {"val_size": 64}, (48, 64, 73)),
        (THEIRS, {"image_size": 64, "val_size": 48}, (64, 48, 60)),
        (THEIRS, {"val_resize": 50}, (48, 48, 50)),
        ({"image_size": 48}, {}, (48, 48, 55)),  # 54.9
        ({"val_resize": 60}, {}, (224, 224, 256)),
    ],
)
def test_sizes_are_what_is_typed_then_the_files_then_the_usual(about, typed, expected):
    """The file's shorter side belongs to its crop; to another, the preset's proportion."""
    assert architectures.choose_sizes(PRESET, about, 224, **typed) == expected


def test_the_usual_size_may_be_another_than_the_presets():
    assert architectures.choose_sizes(PRESET, {}, 112) == (112, 112, 128)


@pytest.mark.parametrize("typed", [{"val_resize": 223}, {"val_resize": 99, "val_size": 100}])
def test_a_crop_is_no_larger_than_the_side(typed):
    crop = typed.get("val_size", 224)
    with pytest.raises(errors.BadInput) as raised:
        architectures.choose_sizes(PRESET, {}, 224, **typed)
    assert str(raised.value) == f"--val-resize {typed['val_resize']} is less than the crop, {crop}"


# -------------------------------------------------------------------------------------- last layers


@pytest.mark.parametrize(
    ("arch", "names"),
    [
        ("resnet18", ["fc"]),
        ("squeezenet1_1", ["classifier.1"]),  # a ReLU and a pooling follow it
        ("mobilenet_v3_small", ["classifier.3"]),
        ("vit_b_16", ["heads.head"]),
        ("timm/resnet10t", ["fc"]),
        ("timm/deit_tiny_distilled_patch16_224", ["head", "head_dist"]),
        ("timm/iformer_m_distilled", ["head"]),
    ],
)
def test_the_classifier_is_the_last_layer_or_what_timm_calls_so(arch, names):
    with torch.device("meta"):
        model = architectures.make_model(arch)
    layers = architectures.classifier(model)
    assert isinstance(layers, nn.ModuleList)
    assert [*layers] == [model.get_submodule(name) for name in names]


def test_the_classifier_of_a_model_is_its_last_layer_with_weights_of_its_own():
    model = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 3), nn.Softmax(1)))
    assert [*architectures.classifier(model)] == [model[1][0]]
