"""The weights of text_*.py's GPT by Hugging Face's names for GPT-2, and back.

Use it to give a language model to programs that read GPT-2, and to take one back. A GPT of these
scripts is a GPT-2 whose biases are 0 and whose GELU is exact. GPT-2's layers keep their weights
transposed, as (inputs, outputs).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

# Of what is not in a block, and of a block; {} is the number of the block.
OURS_TO_GPT2 = {
    "token.weight": "transformer.wte.weight",
    "position": "transformer.wpe.weight",
    "blocks.{}.attention.0.weight": "transformer.h.{}.ln_1.weight",
    "blocks.{}.attention.1.weight": "transformer.h.{}.attn.c_attn.weight",
    "blocks.{}.attention.3.weight": "transformer.h.{}.attn.c_proj.weight",
    "blocks.{}.mlp.0.weight": "transformer.h.{}.ln_2.weight",
    "blocks.{}.mlp.1.weight": "transformer.h.{}.mlp.c_fc.weight",
    "blocks.{}.mlp.3.weight": "transformer.h.{}.mlp.c_proj.weight",
    "norm.weight": "transformer.ln_f.weight",
    "head.weight": "lm_head.weight",
}
GPT2_TO_OURS = {theirs: ours for ours, theirs in OURS_TO_GPT2.items()}


def renamed(
    weights: Mapping[str, torch.Tensor], names: Mapping[str, str]
) -> dict[str, torch.Tensor] | None:
    """Returns weights by their names in the other form, with the layers' transposed; None if one
    has a name that `names` lacks."""
    found = {}
    for name, tensor in weights.items():
        other = names.get(re.sub(r"\.\d+\.(?=\w+\.)", ".{}.", name, count=1))
        if other is None:
            return None
        block = re.search(r"\.(\d+)\.", name)
        inside = block and ".c_" in name + other
        found[other.format(block and block[1])] = tensor.T.contiguous() if inside else tensor
    return found


def to_gpt2(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
    """Returns the weights of a GPT, {name: tensor}, as those of a GPT2LMHeadModel; None if they are
    no GPT's. What GPT-2 has beyond these is biases, which are 0."""
    return renamed(weights, OURS_TO_GPT2)


def from_gpt2(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
    """Returns the weights of a GPT2LMHeadModel, {name: tensor}, as those of a GPT; None if they are
    not a GPT-2's, or if it has biases that are not 0. A file of a model with one weight for
    embedding and output layer has it once; here it is there twice."""
    biases = {name for name in weights if name.endswith(".bias")}
    if any(weights[name].any() for name in biases):
        return None
    found = renamed({each: weights[each] for each in weights if each not in biases}, GPT2_TO_OURS)
    if found and "token.weight" in found:
        found.setdefault("head.weight", found["token.weight"])
    return found
