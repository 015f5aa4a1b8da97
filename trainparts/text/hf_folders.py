"""Models of transformers, in folders as Hugging Face's or new: loaded, adapted, tried out.

Use it to load the weights and the names of classes that a folder has, without running its code, and
to find out by a call what no library says: how many tokens a model takes, where it has dropout.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import nn

from trainparts import errors
from trainparts.text import text_corpus

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def transformers() -> ModuleType:
    """Returns the library, silent and offline."""
    # Imported only if needed, as it takes seconds. Set before the import, this keeps it offline.
    os.environ["HF_HUB_OFFLINE"] = "1"
    # It imports torchao, where that is installed, of which PyTorch then says two lines.
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    library = importlib.import_module("transformers")
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    return library


@contextlib.contextmanager
def in_one_line(arch: str) -> Generator[None, None, None]:
    """Turns any exception of a library about a model into the BadInput or Fault of -a."""
    try:
        yield
    except Exception as error:  # libraries may raise anything
        if "weights_only" in str(error):  # PyTorch's advice would be to trust the file
            error = errors.BadInput("Python objects beside its weights, which could run code")
        raise errors.storage_error(f"-a {arch}", error, typed=True) from None


# ----------------------------------------------------------------------------------- configurations


def make_config(arch: str, sizes: Mapping[str, int | float]) -> PreTrainedConfig:
    """Returns the configuration of a kind of encoder, such as bert, with these `sizes`, {name:
    value}. Raises BadInput if the kind does not take them."""
    auto = transformers().AutoConfig
    with in_one_line(arch):
        return auto.for_model(arch, **sizes)


def read_config(folder: str) -> PreTrainedConfig:
    """Returns the configuration in a folder's config.json. Raises BadInput or Fault if it cannot be
    read, or if it would run code of the folder's."""
    auto = transformers().AutoConfig
    with in_one_line(folder):
        return auto.from_pretrained(folder, trust_remote_code=False)  # runs none of its code


def adapt_config(
    config: PreTrainedConfig,
    arch: str,
    *,
    labels: Sequence[str],
    vocabulary: int,
    same: bool = False,
    dropout: float | None = None,
) -> None:
    """Changes a configuration to that of a classifier: `labels` are the names of its outputs, and
    all rates of dropout in it become `dropout`, or stay, if it is None. Raises BadInput if it has
    no padding token, or fewer tokens than a tokenizer's `vocabulary`; if `same`, also if more."""
    with in_one_line(arch):
        if config.pad_token_id is None or config.pad_token_id < 0:
            raise ValueError("it has no padding token: is it an encoder?")
        size = config.vocab_size
        if vocabulary > size or (same and vocabulary != size):
            raise ValueError(f"its vocabulary has {size} tokens, the tokenizer {vocabulary}")
        config.id2label = dict(enumerate(labels))
        config.label2id = {name: number for number, name in config.id2label.items()}
        # A folder may name attention code to fetch and run, and may return tuples.
        config.update({"_attn_implementation": None, "return_dict": True})
        if dropout is not None:
            rates = re.compile("dropout|pdrop")
            found = {name: value for name, value in config.to_dict().items() if rates.search(name)}
            rated = [name for name in found if type(found[name]) in (int, float, type(None))]
            config.update(dict.fromkeys(rated, dropout))


# ------------------------------------------------------------------------------------------ classes


def numbered(some: Sequence[str]) -> bool:
    """Returns whether names are 0, 1 ... or LABEL_0, LABEL_1 ..., in this order."""
    return all(re.fullmatch(f"(label_)?{n}", name.lower()) for n, name in enumerate(some))


def read_labels(folder: str) -> list[str]:
    """Returns the names of the classes in the order of the outputs of a folder's model, as its
    config.json has them. Raises BadInput or Fault if it cannot be read, or has two orders."""
    config = read_config(folder)
    with in_one_line(folder):
        by_number, by_name = config.id2label or {}, config.label2id or {}
        if not by_number or not by_name:
            raise ValueError("its config.json names no classes")
        found = [str(name) for _, name in sorted(by_number.items())]
        numbers = [str(name) for _, name in sorted((n, k) for k, n in by_name.items())]
    if numbered(found):  # either may say it
        found = numbers
    elif numbers != found and not numbered(numbers):
        raise errors.BadInput(
            f"-a {folder}: its config.json has one order in id2label, another in label2id"
        )
    return found


def match_labels(
    found: Sequence[str], names: Sequence[str], given: Sequence[str]
) -> Sequence[str] | None:
    """Returns a task's classes, `names`, in the order in which they were `found`. They may be found
    in any spelling, and by the alternative names `given`, which are in the order of `names`.
    Returns `names` as they are if only numbers were found, in order, and None if other names
    were."""
    plain = [re.sub("[^a-z0-9]+", "_", name.lower()).strip("_") for name in found]
    for known in names, given:
        if sorted(plain) == sorted(known):
            return [names[known.index(name)] for name in plain]
    if numbered(plain):
        return names
    return None


# ------------------------------------------------------------------------------------------- models


def new_encoder(arch: str, config: PreTrainedConfig) -> PreTrainedModel:
    """Returns a model with a classifier on top and random weights, in float32. Raises BadInput if
    it cannot be built."""
    auto = transformers().AutoModelForSequenceClassification
    with in_one_line(arch):
        return auto.from_config(config, dtype=torch.float32)


def load_encoder(
    folder: str, config: PreTrainedConfig, evaluate: bool = False
) -> tuple[PreTrainedModel, list[str]]:
    """Returns the model in a folder, with a classifier on top, in float32, and a line if some of
    its weights are new because the folder's do not fit, such as those of another task's last layer.
    Raises BadInput or Fault if the folder cannot be read, or if most weights do not fit. To
    `evaluate` the model as it is, all weights must fit, and none of the folder's layers may be left
    out."""
    auto = transformers().AutoModelForSequenceClassification
    with in_one_line(folder):
        options = {"config": config, "dtype": torch.float32, "trust_remote_code": False}
        # Another task's last layer does not fit.
        options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        model, info = auto.from_pretrained(folder, **options)
        left = [*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])]
        # Heads for other uses are left out, but not layers, which config.json counts.
        layers = [name for name in info["unexpected_keys"] if re.search(r"\.\d+\.", name)]
        if layers and evaluate:
            what = f"{len(layers)} weights are of layers that config.json does not have"
            raise errors.BadInput(f"{what}: {min(layers)}")
    if len(left) > len(model.state_dict()) / 2:
        raise errors.BadInput(f"-a {folder}: {len(left)} weights do not fit: {min(left)}")
    line = f"-a {folder}: {len(left)} weights are new: {', '.join(sorted(left)[:4])}"
    if left and evaluate:
        raise errors.BadInput(f"{line}: its answers would be random")
    return model, [line] if left else []


def set_dropout(model: nn.Module, rate: float) -> None:
    """Gives all modules of dropout in a model a rate."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = rate


def try_out(
    model: nn.Module,
    source: text_corpus.Sequences,
    *,
    arch: str,
    max_length: int,
    positions: int,
    dropout: float | None = None,
) -> list[str]:
    """Calls a model on a sequence, to find out what no library says for all models. The model takes
    tokens (N, L + 1): the last column is where the second sentence begins, and padding is -1.
    Returns a line if padding changes the output. Raises BadInput if the model does not take
    `max_length` tokens (`positions` is how many it has), if `dropout` is given and some dropout in
    the model has another rate, or if padding changes the output and the tokenizer pads on the left.
    A model on the meta device is not called."""
    if next(model.parameters()).is_meta:  # rank 0 has the weights
        return []
    rates = Rates()
    longest = source.length.argmax()
    tokens = source.tokens[source.offset[longest] :][: source.length[longest]].tolist()
    # Some models note what they have seen, such as the range of activations.
    before = [
        (part._buffers, name, tensor.clone())
        for part in model.modules()
        for name, tensor in part.named_buffers(recurse=False)
    ]

    def call(length: int, padding: int = 0) -> torch.Tensor:
        # A sequence's first and last tokens are marks. Between them it is cut, or one is repeated.
        inside = tokens[1:-1][: length - 2]
        inside += inside[:1] * (length - 2 - len(inside))
        inputs = [*tokens[:1], *inside, *tokens[-1:], *[-1] * padding, length]
        with torch.no_grad(), torch.random.fork_rng(devices=[]), rates:
            return model(torch.tensor([inputs]))

    def fails(length: int) -> Exception | None:
        try:
            model.train()
            call(length)
        except Exception as error:  # whatever a model says of it
            return error
        return None

    why = fails(max_length)
    if why:
        most = min(max_length, positions)
        # RoBERTa and its kin do not use two of their positions or more.
        fits = next((length for length in range(most, most - 8, -1) if not fails(length)), 0)
        if fits > 0:
            given = f"--max-length {max_length} is more than its {fits} positions"
            raise errors.BadInput(f"-a {arch}: {given}")
        raise errors.BadInput(f"-a {arch} cannot be called: {errors.first_line(why)}")
    if dropout is not None and not rates.found <= {dropout}:
        others = ", ".join(f"{rate:g}" for rate in sorted(rates.found - {dropout}))
        what = f"--dropout {dropout} does not reach all dropout of -a {arch}"
        raise errors.BadInput(f"{what}: {others} is in its code, or in config.json by another name")
    if dropout and not rates.found:
        raise errors.BadInput(f"--dropout {dropout}: -a {arch} has no dropout")
    model.eval()
    half = max_length // 2
    alone, padded = call(half), call(half, max_length - half)
    for buffers, name, tensor in before:
        buffers[name] = tensor
    model.train()
    if (alone - padded).abs().max() > 1e-3 * alone.abs().max():
        if source.pads_left:
            raise errors.BadInput(f"-a {arch} needs padding on the left, which is not done here")
        what = "padding changes its output, which so depends on -b and on what else is in a batch"
        return [f"-a {arch}: {what}"]
    return []


class Rates(torch.overrides.TorchFunctionMode):
    """Notes the rates of dropout by which a model is trained, whoever calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[float] = set()

    def __torch_function__(
        self,
        func: Callable[..., torch.Tensor],
        types: tuple[type, ...],
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> torch.Tensor:
        """Calls the function, like PyTorch without this mode."""
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        if "dropout" in name and named.get("training", True) and "p" in named:
            self.found.add(named["p"])
        if "attention" in name and named.get("dropout_p"):
            self.found.add(named["dropout_p"])
        return func(*args, **named)
