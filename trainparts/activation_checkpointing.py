"""Activation checkpointing: blocks that keep only their inputs, and compute the rest again.

Use it to train a larger model or batch in the same memory, for the time of a second forward pass.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainparts import errors

ROWS = (nn.Sequential, nn.ModuleList)


def checkpoint_blocks(model: nn.Module) -> None:
    """Applies recompute() to each block of a model, such as a ViT's (Chen et al. 2016). Call it
    before the model is sharded. Raises BadInput if the model has no blocks."""
    if not has_blocks(model):
        where = "no nn.Sequential or nn.ModuleList has modules that have modules of their own"
        raise errors.BadInput(f"--checkpoint-activations: this model has no blocks: {where}")
    for block in [*blocks(model)]:  # found by classes, before one has another
        recompute(block)


def has_blocks(model: nn.Module) -> bool:
    """Returns whether checkpoint_blocks() would take this model."""
    return any(True for _ in blocks(model))


def recompute(module: nn.Module) -> None:
    """Has a module keep only its inputs for the backward pass, which calls forward() again. What is
    computed stays the same, bit for bit: dropout draws the same again, and buffers that forward()
    changes, such as BatchNorm's statistics, are changed once, which PyTorch's checkpoint() alone
    does twice. The output must not depend on such a buffer, as spectral_norm()'s does. A model with
    such modules cannot be pickled as a whole."""
    # Another class, not another `forward` of this object, so that replicas have it.
    module.__class__ = _recomputed(type(module))


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the blocks of a model, such as a ResNet's bottlenecks: modules in a row (an
    nn.Sequential or nn.ModuleList) that have modules of their own. What mostly is a row of several
    such modules of one class is a stage, such as a ConvNeXt's, and its blocks are yielded."""
    for child in module.children():
        if isinstance(module, ROWS) and _has_modules(child) and not _is_stage(child):
            yield child
        else:
            yield from blocks(child)


def _has_modules(module: nn.Module) -> bool:
    return not isinstance(module, ROWS) and any(True for _ in module.children())


def _is_stage(module: nn.Module) -> bool:
    for row in module.modules():
        if isinstance(row, ROWS) and 2 * _size(row) > _size(module):  # unlike a list of heads
            kinds = [type(each) for each in row if _has_modules(each)]
            if len(kinds) > len(set(kinds)):
                return True
    return False


def _size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


@functools.cache
def _recomputed(kind: type[nn.Module]) -> type[nn.Module]:
    """Returns a subclass for recompute()."""

    def forward(self: nn.Module, *inputs: object, **options: object) -> object:
        own = functools.partial(kind.forward, self, **options)
        if not torch.is_grad_enabled():
            return own(*inputs)
        if torch.compiler.is_compiling():  # it updates statistics once
            return checkpoint(own, *inputs, use_reentrant=False)
        of_calls = contextlib.nullcontext(), _BuffersKept(self)
        return checkpoint(own, *inputs, use_reentrant=False, context_fn=lambda: of_calls)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


class _BuffersKept(contextlib.AbstractContextManager):
    """Has forward() change copies of a module's buffers."""

    def __init__(self, module: nn.Module):
        self.module = module

    def __enter__(self) -> None:
        self.kept = [
            (each, name, buffer)
            for each in self.module.modules()
            for name, buffer in each.named_buffers(recurse=False)
        ]
        for each, name, buffer in self.kept:
            setattr(each, name, buffer.clone())

    def __exit__(self, *_: object) -> None:
        for each, name, buffer in self.kept:
            setattr(each, name, buffer)
