"""Weights of files for models of text: those of these scripts, and of other projects.

Use it to find the weights in what a file holds, and to load those that fit into a model.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from trainparts import errors, safe_files
from trainparts.text import gpt2_names

# By which names files have weights, averages first.
WEIGHT_NAMES = ("ema", "state_dict", "model", "model_state_dict")


def find_weights(saved: Mapping) -> tuple[str | None, dict[str, torch.Tensor]]:
    """Returns (name, {name: tensor}) of the weights in a file's content, without the prefixes of
    wrappers; those of a GPT that has left as a GPT-2 have their own names again. The first name is
    one of WEIGHT_NAMES, or None if the file is a state dict itself."""
    held = [name for name in WEIGHT_NAMES if isinstance(saved.get(name), dict) and saved[name]]
    found = saved[held[0]] if held else saved
    weights = {
        str(name).replace("_orig_mod.", "").removeprefix("module."): found[name]
        for name in found
        if torch.is_tensor(found[name])
    }
    return held[0] if held else None, gpt2_names.from_gpt2(weights) or weights


def cut_positions(
    weights: Mapping[str, torch.Tensor], model: nn.Module, max_length: int, what: str
) -> dict[str, torch.Tensor]:
    """Returns the weights, {name: tensor}, with the embeddings of positions cut to as many as a
    model of `max_length` tokens has. Raises BadInput, which names `what`, if the weights have
    fewer."""
    weights, own = dict(weights), model.state_dict()
    for name in own.keys() & weights.keys():
        there, here = weights[name].shape, own[name].shape
        if "position" in name and there[1:] == here[1:] and there != here:
            if len(weights[name]) < len(own[name]):
                most = max_length - len(own[name]) + len(weights[name])
                longer = f"--max-length {max_length} exceeds its {most} positions"
                raise errors.BadInput(f"{what}: {longer}")
            weights[name] = weights[name][: len(own[name])]
    return weights


def load_fitting(
    model: nn.Module,
    weights: Mapping[str, torch.Tensor],
    what: str,
    *,
    content: Mapping | None = None,
    evaluate: bool = False,
) -> list[str]:
    """Loads the weights that fit into a model, and returns a line if some do not, such as those of
    another task's last layer. Raises BadInput, which names `what`, if half of the model's weights
    or more are missing, if not all are finite, or, to `evaluate` the model as it is, if some do not
    fit. If the file has no weights, the error lists its `content`."""
    own = model.state_dict()
    fitting = {name: weights[name] for name in own.keys() & weights.keys()}
    fitting = {
        name: each for name, each in fitting.items() if safe_files.weight_fits(each, own[name])
    }
    left = sorted((own.keys() | weights.keys()) - fitting.keys())
    line = f"{what}: {len(left)} weights do not fit"
    if len(own.keys() - fitting.keys()) >= len(own) / 2:
        holds = ", ".join(map(str, [*(weights or content or ())][:4])) or "nothing by name"
        raise errors.BadInput(f"{line}: {', '.join(left[:4])}; the file holds {holds}")
    if left and evaluate:
        raise errors.BadInput(f"{line}: {', '.join(left[:4])}; without them the output is random")
    if not all(weight.isfinite().all() for weight in fitting.values()):
        raise errors.BadInput(f"{what}: its weights are not all finite")
    model.load_state_dict(fitting, strict=False)
    return [f"{line} and are left out: {', '.join(left[:4])}"] if left else []
