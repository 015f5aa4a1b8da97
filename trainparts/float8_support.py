"""Float8 for training, by torchao: whether this device can, and which layers it would reach.

Use it before torchao converts a model.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.func import functional_call

from trainparts import devices, errors

OPTION = "--amp float8"
LEAST = (8, 9)  # compute capability, of NVIDIA's Ada; Hopper has 9.0


def has_float8(device: torch.device) -> bool:
    """Returns whether a device multiplies in float8. Of AMD's, multiplying shows it."""
    if device.type != "cuda":
        return False
    return bool(torch.version.hip) or torch.cuda.get_device_capability(device) >= LEAST


def load_torchao(scaling: str, device: torch.device) -> ModuleType:
    """Returns the module torchao.float8, after it has trained a layer on the device by the recipe
    `scaling`. Raises BadInput if the device has no float8, if torchao is not installed, or if its
    version does not fit PyTorch's."""
    if not has_float8(device):
        name = devices.device_name(device)
        able = f"GPUs of compute capability {'.'.join(map(str, LEAST))} or more, or AMD's MI300"
        raise errors.BadInput(f"{OPTION}: {name} cannot, it needs {able}: use --amp bfloat16")
    try:
        version = importlib.metadata.version("torchao")
    except importlib.metadata.PackageNotFoundError:
        raise errors.BadInput(f"{OPTION} needs torchao: pip install torchao") from None
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # two lines on the import
    try:
        torchao = importlib.import_module("torchao.float8")
        config = torchao.Float8LinearConfig.from_recipe_name(scaling)
        layer = nn.Sequential(nn.Linear(32, 32, device=device))
        torchao.convert_to_float8_training(layer, config=config)
        inputs = torch.ones(32, 32, device=device, requires_grad=True)
        with torch.autocast(device.type, torch.bfloat16):
            output = layer(inputs)
        torch.autograd.grad(output.sum(), [inputs, *layer.parameters()])
    except Exception as error:  # whatever one of the two lacks
        versions = f"torchao {version} does not work with torch {torch.__version__} here"
        why = f"{type(error).__name__}: {errors.first_line(error)}"
        advice = "pip install --upgrade torchao, or use --amp bfloat16"
        raise errors.BadInput(f"{OPTION}: {versions} ({why}): {advice}") from None
    return torchao


def called_layers(model: nn.Module, inputs: Tensor) -> set[nn.Linear]:
    """Returns the linear layers of a model that its forward() calls, as seen without computing
    anything: nn.MultiheadAttention, for example, reads a layer's weights. Returns all of them if
    the model needs values, as those of transformers do. Subclasses of nn.Linear do not count, as
    they may compute otherwise. Inputs are on the meta device."""
    layers = {layer for layer in model.modules() if type(layer) is nn.Linear}
    called: set[nn.Linear] = set()
    hooks = [layer.register_forward_pre_hook(lambda each, _: called.add(each)) for layer in layers]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    shapes = {name: tensor.to("meta") for name, tensor in tensors}
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            functional_call(model, shapes, (inputs,))
    except Exception:
        return layers
    finally:
        for hook in hooks:
            hook.remove()
    return called
