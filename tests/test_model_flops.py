"""trainparts/model_flops.py: the FLOPs of known models."""

import math
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn
from torchvision import models

import imagenet_nd as nd
import text_nd
from reporting import peaks
from trainparts import model_flops


def test_a_convolution():
    with torch.device("meta"):
        convolution, images = nn.Conv2d(3, 8, 3, padding=1), torch.empty(1, 3, 10, 10)
    once = 2 * 8 * 10 * 10 * 3 * 3 * 3
    assert model_flops.count_training(convolution, images) == 2 * once  # and the weight's gradient
    images.requires_grad_()
    assert model_flops.count_training(convolution, images) == 2 * once, "nobody needs the images'"


@pytest.mark.parametrize("name", ["resnet50", "vit_b_16", "convnext_tiny", "efficientnet_b0"])
def test_known_networks(name):
    """torchvision publishes the multiply-adds of a forward pass; the gradients take twice as many.
    Those of the images are not computed, nor does torchvision's number lack normalisation."""
    published = next(iter(models.get_model_weights(name))).meta["_ops"]
    with torch.device("meta"):
        model, images = models.get_model(name), torch.empty(2, 3, 224, 224)
    assert model_flops.count_training(model, images) / 2 == pytest.approx(
        3 * 2e9 * published, rel=0.02
    )


def test_a_frozen_layer_has_fewer():
    model = nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 30)).to("meta")
    inputs = torch.empty(4, 10, device="meta")
    first, second = 2 * 4 * 10 * 20, 2 * 4 * 20 * 30
    assert model_flops.count_training(model, inputs) == 2 * first + 3 * second
    model[0].requires_grad_(False)
    assert model_flops.count_training(model, inputs) == first + 2 * second


def test_of_several_outputs_the_first_counts():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.auxiliary = nn.Linear(4, 5), nn.Linear(4, 6)

        def forward(self, x):
            return self.main(x), self.auxiliary(x)

    with torch.device("meta"):
        model, inputs = Two(), torch.empty(1, 4)
    assert model_flops.count_training(model, inputs) == 2 * 2 * 4 * 5 + 2 * 4 * 6


def data_of(script, words, **known):
    """Returns (options, an object with what the task's functions read of Data)."""
    return script.parse_args(words.split()), type("Data", (), known)


def test_an_image_of_a_script():
    """Whatever is typed that changes how, and not what, is computed."""
    known = {"num_classes": 1000, "model_options": {}, "from_checkpoint": False, "image_size": 224}
    known |= {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    for more in ("", "--compile --channels-last", "--checkpoint-activations --amp bfloat16"):
        args, data = data_of(nd, f"-a resnet50 {more}", **known)
        assert nd.training_flops(args, data) == pytest.approx(6 * 4.09e9, rel=0.02)
    args, data = data_of(nd, "-a resnet50 --freeze --pretrained", **known)
    assert nd.training_flops(args, data) == pytest.approx(2 * 4.09e9, rel=0.02)
    args, data = data_of(nd, "-a resnet50 --start-size 128", **known)
    assert nd.training_flops(args, data) is None


def test_a_sequence_of_a_script():
    sizes = {"layers": 2, "hidden_size": 64, "heads": 2, "tied": True}
    known = {"model_options": sizes, "from_checkpoint": False}
    known["train"] = type("Source", (), {"vocabulary": 100})
    args, data = data_of(text_nd, "--max-length 128", **known)
    each = peaks.gpt_flops(2, 64, 100, 128)
    assert text_nd.training_flops(args, data) == pytest.approx(128 * each, rel=1e-3)
    args, data = data_of(text_nd, "--task sst-2 -a bert --max-length 128 DIR", **known)
    assert text_nd.training_flops(args, data) is None


def test_a_share_of_the_peak_is_that_of_all_devices(monkeypatch):
    monkeypatch.setattr(nd.device_peaks, "peak_tflops", {"a GPU": 2}.get)
    monkeypatch.setattr(nd.devices, "device_name", lambda device: "a GPU")
    monkeypatch.setattr(nd, "training_flops", lambda args, data: 4e9)
    place = nd.Place(torch.device("cpu"), ranks=3, devices=2)
    here = SimpleNamespace(place=place, args=None, data=None)
    assert nd.find_peak_share(here) == pytest.approx(4e9 / (2e12 * 6))
    monkeypatch.setattr(nd, "training_flops", lambda args, data: None)
    assert math.isnan(nd.find_peak_share(here))
    monkeypatch.setattr(nd, "training_flops", mock.Mock(side_effect=RuntimeError("needs values")))
    assert math.isnan(nd.find_peak_share(here))
    monkeypatch.setattr(nd.devices, "device_name", lambda device: "another")
    assert math.isnan(nd.find_peak_share(here))


@pytest.mark.parametrize("share", [7e-4, math.nan])
def test_an_epoch_s_line_and_its_values_have_it(share, monkeypatch, capsys):
    logged = {}
    monkeypatch.setattr(
        nd.event_log, "log_epoch_values", lambda _, values, __: logged.update(values)
    )
    training = {"Loss": 2.0, "Top1": 5.0, "Throughput": 600.0, "Steps/skipped": 0.0, "Lr": 0.1}
    here = SimpleNamespace(epoch=1, step=0, epochs_logged=[], log=None, started=0.0)
    here.data, here.args = SimpleNamespace(steps=4), SimpleNamespace(epochs=2)
    here.peak_share = share
    val = {"Loss": 2.0, "Top1": 5.0, "Throughput": 900.0}
    nd.log_epoch(here, training, val, trained=True)
    line = capsys.readouterr().out
    if math.isnan(share):
        assert "MFU/train" not in logged and "peak" not in line
    else:
        assert logged["MFU/train"] == pytest.approx(42.0)
        assert "  600 images/s  42.0 % of the peak  left " in line
