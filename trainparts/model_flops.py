"""The FLOPs of a model, counted without computing anything.

Use it beside device_peaks, to say which share of a device's peak a run uses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count


def count_training(model: nn.Module, inputs: Tensor) -> int:
    """Returns the FLOPs of the output and of its gradients, a multiply-add being two; those of a
    frozen layer are fewer. Model and inputs are on the meta device."""
    gradients = {torch.ops.aten.convolution_backward: _gradients_of_convolution}
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    with FlopCounterMode(display=False, custom_mapping=gradients) as counter:
        output = model.forward(inputs)  # Module.compile() changes __call__() alone
        # Of several outputs all but the first are auxiliary.
        output = output[0] if isinstance(output, tuple) else output
        torch.autograd.grad(output.sum(), weights, allow_unused=True)
    return counter.get_total_flops()


def _gradients_of_convolution(
    gradient: list[int],
    inputs: list[int],
    weight: list[int],
    bias: object,
    stride: object,
    padding: object,
    dilation: object,
    transposed: bool,
    added: object,
    groups: object,
    wanted: Sequence[bool],
    **_: object,
) -> int:
    """Returns the FLOPs of the gradients of inputs and weight, each as many as the output's, given
    shapes and options. PyTorch's own formula counts a depthwise convolution as a dense one."""
    output = conv_flop_count(inputs, weight, gradient, transposed=transposed)
    return output * sum(wanted[:2])
