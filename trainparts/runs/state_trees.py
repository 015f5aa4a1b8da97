"""Nested dicts of tensors, such as the states of a model and an optimizer: copied, walked, paired.

Use it to put a saved state into a model and an optimizer whose tensors are elsewhere: on another
device, in another dtype, in shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import overload

import torch

from trainparts import errors, safe_files

Names = tuple[str | int, ...]  # the keys that lead to a tensor


@overload
def in_float32(tree: torch.Tensor) -> torch.Tensor: ...
@overload
def in_float32(tree: dict) -> dict: ...
@overload
def in_float32(tree: safe_files.Content) -> safe_files.Content: ...
def in_float32(tree: safe_files.Content) -> safe_files.Content:
    """Copies nested dicts to host memory, floating-point tensors as float32."""
    if isinstance(tree, dict):
        return {key: in_float32(value) for key, value in tree.items()}
    if not isinstance(tree, torch.Tensor):
        return tree
    dtype = torch.float32 if tree.is_floating_point() else tree.dtype
    return tree.detach().to("cpu", dtype, copy=True)


def leaves(tree: safe_files.Content, path: Names = ()) -> Iterator[tuple[Names, torch.Tensor]]:
    """Yields (path, tensor) of nested dicts."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, dict):
        for name, branch in tree.items():
            yield from leaves(branch, (*path, name))


@overload
def saved_pairs(
    optimizer: torch.optim.Optimizer,
    weights: Mapping[str, torch.Tensor],
    averages: Mapping[str, torch.Tensor],
    state: dict,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]: ...
@overload
def saved_pairs(
    optimizer: torch.optim.Optimizer,
    weights: Mapping[str, torch.Tensor],
    averages: Mapping[str, torch.Tensor],
    state: dict | None,
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]: ...
def saved_pairs(
    optimizer: torch.optim.Optimizer,
    weights: Mapping[str, torch.Tensor],
    averages: Mapping[str, torch.Tensor],
    state: dict | None,
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Yields (tensor, saved) for all that is trained, in the same order on every rank: `weights`
    and `averages`, {name: tensor}, and the moments that `optimizer` has. `saved` is from `state`,
    on rank 0 {"state_dict", "optimizer", "ema"}, and is None on the other ranks."""
    updated = [weight for group in optimizer.param_groups for weight in group["params"]]
    moments = {number: optimizer.state[weight] for number, weight in enumerate(updated)}
    own = {"state_dict": weights, "ema": averages, "optimizer": {"state": moments}}
    own = dict(leaves(own))  # {path: tensor}
    saved = {}
    if state is not None:
        for path, tensor in leaves(state):
            if path in own or path[0] != "optimizer":  # not another optimizer's moments
                saved[path] = tensor
        for path, tensor in own.items():
            if path[0] == "optimizer":  # moments that the file lacks begin at zero
                saved.setdefault(path, torch.zeros(tensor.shape))
        # All names and shapes are compared before any tensor is changed.
        mine, theirs = ({path: [*t.shape] for path, t in tree.items()} for tree in (own, saved))
        both = [*mine, *(path for path in theirs if path not in mine)]
        if wrong := [path for path in both if mine.get(path) != theirs.get(path)]:
            named = {".".join(map(str, path[1:])): path for path in reversed(wrong)}
            names = sorted(named)
            here, there = (tree.get(named[names[0]], "missing") for tree in (mine, theirs))
            line = f"the checkpoint: {len(names)} weights do not fit: {', '.join(names[:4])}; "
            line += f"{names[0]} is {there} there, {here} here"
            if all(path[0] == "optimizer" for path in wrong):
                line += (
                    "; the optimizer's state is of other weights, as after --freeze or with "
                    "another --norm-wd or --layer-decay: --weights takes the weights alone"
                )
            raise errors.BadInput(line)
    for path, tensor in own.items():
        yield tensor, saved.get(path)
