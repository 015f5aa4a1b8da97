"""trainparts/float8_support.py: who can train in float8, and which layers a model calls."""

import importlib.metadata
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import timm
import torch
from torch import nn
from torchvision import models

from trainparts import errors, float8_support

torchao = pytest.importorskip("torchao.float8")
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def emulated(monkeypatch):
    """The CPU has float8, and torchao emulates it."""
    monkeypatch.setattr(float8_support, "has_float8", lambda device: True)
    complete = torchao.Float8LinearConfig.__post_init__

    def emulate(config):
        object.__setattr__(config, "emulate", True)
        complete(config)

    monkeypatch.setattr(torchao.Float8LinearConfig, "__post_init__", emulate)


def refused(device=CPU, scaling="tensorwise"):
    """Returns the line with which a device is refused."""
    with pytest.raises(errors.BadInput) as found:
        float8_support.load_torchao(scaling, device)
    (line,) = str(found.value).splitlines()
    assert "use --amp bfloat16" in line or "pip install torchao" in line
    return line


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_what_can_train_is_loaded(scaling, emulated):
    assert float8_support.load_torchao(scaling, CPU) is torchao


@pytest.mark.parametrize(
    ("capability", "hip", "able"),
    [((8, 0), None, False), ((8, 9), None, True), ((9, 0), None, True), ((9, 0), "6.4", True)],
)
def test_gpus_with_float8(capability, hip, able, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert float8_support.has_float8(GPU) == able
    if not able:
        monkeypatch.setattr(float8_support.devices, "device_name", lambda device: "NVIDIA A100")
        assert "--amp float8: NVIDIA A100 cannot, it needs GPUs of compute" in refused(GPU)


@pytest.mark.parametrize("kind", ["cpu", "mps", "xpu"])
def test_other_devices_have_none(kind):
    """PyTorch emulates it on the CPU, unasked, and slowly."""
    assert not float8_support.has_float8(torch.device(kind))


def test_a_cpu_is_refused_by_its_name():
    assert "8.9 or more, or AMD's MI300: use --amp bfloat16" in refused()


def test_without_torchao(emulated, monkeypatch):
    missing = mock.Mock(side_effect=importlib.metadata.PackageNotFoundError)
    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert refused() == "--amp float8 needs torchao: pip install torchao"


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (None, "ModuleNotFoundError: import of torchao.float8 halted"),
        (SimpleNamespace(), "AttributeError: "),  # an old one
    ],
)
def test_a_version_that_does_not_fit(module, why, emulated, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.float8", module)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.4.0")
    line = refused()
    assert f"torchao 0.4.0 does not work with torch {torch.__version__} here ({why}" in line
    assert "pip install --upgrade torchao" in line


@pytest.mark.parametrize("there", [0, 1])
def test_a_kernel_that_is_missing(there, emulated, monkeypatch):
    """As on a GPU for which no kernel is built: forward() or the gradients raise."""
    answers = [torch.zeros(32, 32)] * there + [RuntimeError("no kernel\nat all")]
    multiply, counted = torch.mm, iter(answers)

    def mm(*matrices, **options):
        if isinstance(matrices[0], torchao.Float8TrainingTensor):
            answer = next(counted)
            if isinstance(answer, Exception):
                raise answer
        return multiply(*matrices, **options)

    monkeypatch.setattr(torch, "mm", mm)
    assert "(RuntimeError: no kernel)" in refused()


class Frozen(nn.Module):
    """Calls a layer of two, and needs a buffer."""

    def __init__(self):
        super().__init__()
        self.called, self.read = nn.Linear(4, 4), nn.Linear(4, 4)
        self.own = type("Own", (nn.Linear,), {})(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.own(self.norm(self.called(x))) @ self.read.weight


def test_layers_that_are_called():
    model, inputs = Frozen(), torch.empty(2, 4, device="meta")
    compiled = mock.Mock(side_effect=lambda graph, inputs: graph)
    model.compile(backend=compiled)  # not for this
    before = {name: each.clone() for name, each in model.state_dict().items()}
    assert float8_support.called_layers(model, inputs) == {model.called}
    assert not compiled.called
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), "statistics are as before"
    assert not model.called._forward_pre_hooks


def test_layers_of_known_models():
    images = torch.empty(2, 3, 32, 32, device="meta")
    with torch.device("meta"):
        vit = models.VisionTransformer(32, 16, 1, 2, 32, 64)
        swin = models.SwinTransformer([4, 4], 16, [2], [2], [7, 7])
        other = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)
    for model, called in (
        (vit, ["encoder.layers.encoder_layer_0.mlp.0", "encoder.layers.encoder_layer_0.mlp.3"]),
        (
            swin,
            [f"features.1.{n}.mlp.{at}" for n in (0, 1) for at in (0, 3)],
        ),  # it reads those of attention
        (other, [f"blocks.0.{name}" for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")]),
    ):
        found = float8_support.called_layers(model, images)
        names = [name for name, layer in model.named_modules() if layer in found]
        assert [name for name in names if "head" not in name] == called
        assert len(names) == len(called) + 1


def test_a_model_that_needs_values_may_call_all():
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.one(x) if x.sum() > 0 else self.two(x)

    model = Asks()
    found = float8_support.called_layers(model, torch.empty(2, 4, device="meta"))
    assert found == {model.one, model.two}
    assert not model.one._forward_pre_hooks
