"""Weights of files: those that a library publishes, and those of these scripts and of others.

Use it to load the weights that fit into a model, to learn what a file says of its model and its
images, and to refuse what would give another number than the file's own.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import inspect
import itertools
import math
import os
import re
import shlex
import sys
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn
from torchvision import models

from trainparts import errors, option_types, safe_files
from trainparts.images import architectures

__all__ = ["about_file", "load_weights"]

Weights = dict[str, torch.Tensor]  # by name, a state dict


def read_about(
    arch: str,
    *,
    metadata: dict | None = None,
    path: str | None = None,
    pretrained: bool = False,
    evaluate: bool = False,
) -> architectures.About:
    """Returns about_file() of the weights that a run of `arch` begins with, and "what" they are:
    those of the checkpoint with this metadata, else of the file `path`, else the published ones if
    it is `pretrained`, else random ones. To `evaluate`, the number of a file's outputs is counted.
    Raises BadInput if they are to be evaluated and are of another architecture."""
    saved: safe_files.Content = metadata
    if metadata:
        what = f"{metadata['path']}, epoch {metadata['epoch']}"
        about = about_file(metadata["path"], saved=saved, arch=arch)
    elif path:
        what = path
        saved = safe_files.load_file(path)
        about = about_file(path, saved=saved, arch=arch)
    else:
        what = "published weights" if pretrained else "random weights"
        about: architectures.About = {"published": pretrained}
        if pretrained and evaluate:
            about = {**architectures.preset_of(arch, test=True).about(), "published": True}
    theirs, same = about.get("arch", arch), [arch]
    if "model_options" not in about and arch == f"timm/{theirs}":  # as timm writes its names
        same.append(theirs)
    if evaluate and theirs not in same:
        if "model_options" not in about and arch.startswith("timm/"):
            theirs = f"timm/{theirs.removeprefix('timm/')}"
        raise errors.BadInput(f"{what} has another architecture than -a {arch}: type -a {theirs}")
    if path and evaluate and "num_classes" not in about:
        if outputs := count_outputs(architectures.make_model(arch), saved, path):
            about["num_classes"] = outputs
    about["what"] = what
    return about


# What a checkpoint of these scripts says of its model and its images, and of which type it is.
ABOUT: dict[str, type] = {
    "arch": str,
    "model_options": dict,
    "num_classes": int,
    "classes": list,
    "image_size": int,
    "val_resize": int,
    "interpolation": str,
    "mean": list,
    "std": list,
}


def about_file(
    path: str | os.PathLike[str], *, saved: safe_files.Content, arch: str | None = None
) -> architectures.About:
    """Returns {name: value} of what a file says of its model, with the names of ABOUT. Of another
    project's file only the architecture is believed: its mean, for one, may be of pixels from 0 to
    255. A file with the name of one that torchvision publishes for `arch` is "published", and
    torchvision says the rest. Raises BadInput if a value is not one that these scripts write."""
    saved = saved if isinstance(saved, dict) else {}
    if "model_options" not in saved:
        about: architectures.About = {}
        name = saved.get("arch")
        if name in models.list_models(module=models):
            about["arch"] = name
        elif isinstance(name, str):  # timm writes its own names without timm/, others a class's
            timm = importlib.util.find_spec("timm") and importlib.import_module("timm")
            if not timm or timm.is_model(name):
                about["arch"] = f"timm/{name}"
        files = published_files(arch or about.get("arch"))
        names = os.path.basename(path), os.path.basename(os.path.realpath(path))
        theirs = [files[name] for name in names if name in files]
        if theirs:
            about.update(architectures.preset_in(theirs[0]).about())
            del about["num_classes"]  # count_outputs() knows it, whatever the file's name
        about["published"] = bool(theirs)
        return about
    if "task" in saved:  # of text_*.py
        raise errors.BadInput(f"{path} is a checkpoint of scripts for another task")
    found = {name: saved[name] for name in ABOUT if name in saved}
    for name, value in found.items():
        odd = not isinstance(value, ABOUT[name]) or (isinstance(value, int) and value < 1)
        odd = odd or (name == "interpolation" and value not in ("bilinear", "bicubic"))
        odd = odd or (name == "classes" and not all(isinstance(each, str) for each in value))
        if odd:
            raise errors.BadInput(f"{path} cannot be used: its {name} is {value!r:.80}")
    if not found.get("classes"):  # of synthetic images
        found.pop("classes", None)
    try:
        scale = np.array([found.get("mean", [0.0] * 3), found.get("std", [1.0] * 3)], float)
        good = scale.shape == (2, 3) and np.isfinite(scale).all() and (scale[1] > 0).all()
    except (ValueError, TypeError):
        good = False
    if not good:
        raise errors.BadInput(f"{path} cannot be used: its mean and std are not three numbers each")
    return cast(architectures.About, found | {"published": False})


def published_files(arch: str | None) -> dict[str, models.WeightsEnum]:
    """Returns {file name: weights} of what torchvision publishes for an architecture."""
    several = models.get_model_weights(arch) if arch in models.list_models(module=models) else []
    return {os.path.basename(weights.url): weights for weights in several}


def about_evaluation(
    about: architectures.About, arch: str, sizes: tuple[int, int], interpolation: str
) -> list[str]:
    """Returns lines on an evaluation: which weights are evaluated, by read_about()'s `about`, and
    on which images. `sizes` are those of a crop and of the shorter side before it, in pixels. A
    second line has the weights' own sizes, if they are others."""
    text = "crops of {} pixels, resized to {}"
    how = interpolation + ", squashed" * architectures.preset_of(arch).squash
    lines = [f"Validating {about['what']}: {text.format(*sizes)}, {how}"]
    own = about.get("image_size", sizes[0]), about.get("val_resize", sizes[1])
    return lines + [f"Its own are {text.format(*own)}"] * (own != sizes)


def about_pixels(about: architectures.About, arch: str) -> list[str]:
    """Returns a line each for the mean and the standard deviation of pixels in `about`, from
    read_about(), if they are not those of the architecture's published weights."""
    lines, preset = [], architectures.preset_of(arch)
    for name in "mean", "std":
        usual = [*getattr(preset, name)]
        if about.get(name, usual) != usual:
            lines.append(f"{about['what']} has a {name} of {about[name]}, not {usual}")
    return lines


def assumptions(
    path: str,
    arch: str,
    options: dict[str, option_types.Value],
    about: architectures.About,
) -> list[str]:
    """Returns a line for each of the `options`, from architectures.model_options(), that the file
    at `path` does not record, and whose value differs from the published weights'."""
    if not (files := published_files(arch)):  # no architecture of torchvision
        return []
    theirs = architectures.model_options(arch, None, about | {"published": True})
    name = " or ".join(files)
    return [
        f"{path} does not say whether its {arch} has {option}: {options[option]} is assumed, as in "
        f"a training from scratch; published weights have {theirs[option]}, and are called {name}"
        for option in theirs
        if "size" not in option and options.get(option, theirs[option]) != theirs[option]
    ]


def published_weights(arch: str, options: Mapping[str, option_types.Value]) -> Weights:
    """Returns the state dict that an architecture's library publishes. For a model that is built
    with `options` of architectures.timm_size(), timm resamples the embeddings of positions."""
    sizes = {name: options[name] for name in options if name == "img_size"}
    # PyTorch would else run what lies in its cache, under the name of published weights.
    force = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before, os.environ[force] = os.environ.get(force), "1"
    try:
        return architectures.make_model(arch, pretrained=True, **sizes).state_dict()
    except Exception as error:  # no network, or a file that may hold anything
        cache = f"{torch.hub.get_dir()}/checkpoints"
        if arch.startswith("timm/"):
            cache = "Hugging Face's hub, or its cache in $HF_HOME"
        what = f"--pretrained: cannot load {arch} from {cache}"
        if "Weights only" in str(error):  # PyTorch's advice would be to trust it
            error = ValueError("the file there has Python objects, which could run code")
        names = published_files(arch)
        there = [path for name in names if os.path.isfile(path := os.path.join(cache, name))]
        read = bool(there) and not isinstance(error, OSError)  # not only asked for
        cure = f"; if {' or '.join(there)} is damaged, remove it" * read
        raise errors.storage_error(what, error, typed=True, advice=cure) from None
    finally:
        del os.environ[force]
        if before is not None:
            os.environ[force] = before


def count_outputs(model: nn.Module, saved: safe_files.Content, what: str) -> int | None:
    """Returns the number of outputs of the model in a file, as the rows of its last layer; None if
    it has no such layer."""
    weights = named_as_in(model, weights_in(saved)[1], what)
    names = {module: name for name, module in model.named_modules()}
    for layer in reversed([*architectures.classifier(model).modules()]):
        weight = weights.get(f"{names.get(layer)}.weight")
        if weight is not None and weight.ndim:
            return len(weight)
    return None


# The names under which files have weights: averages first, as in validation. "ema" is these
# scripts' name, "state_dict_ema" timm's; "model_ema" and "model" are those of torchvision's
# references.
AVERAGES = ("ema", "state_dict_ema", "model_ema")
WEIGHTS = (*AVERAGES, "state_dict", "model", "net", "model_state_dict")


def read_weights(
    arch: str, path: str | None, options: Mapping[str, option_types.Value]
) -> tuple[str, safe_files.Content]:
    """Returns (what is read, its content): the weights in a file, or without a path those that are
    published for an architecture, built with `options` of architectures.model_options()."""
    if path:
        return f"--weights {path}", safe_files.load_file(path)
    return "--pretrained", published_weights(arch, options)


def load_weights(
    model: nn.Module,
    *,
    saved: safe_files.Content,
    what: str | os.PathLike[str],
    size: int | None = None,
) -> None:
    """Loads the weights of a file that fit into a model, and logs the others, such as those of
    another last layer; errors call the file `what`. If the model is to be evaluated as it is, on
    images of `size` pixels, raises BadInput if its output needs weights that the file lacks, or the
    file has those of another model. Where it raises, the model has the weights that it had."""
    what = os.fsdecode(what)
    saved = saved if isinstance(saved, dict) else {}
    name, found = weights_in(saved)
    weights, own = named_as_in(model, found, what), model.state_dict()
    both = own.keys() & weights.keys()
    odd = {each for each in both if not safe_files.weight_fits(weights[each], own[each])}
    state = collections.OrderedDict((each, weights[each]) for each in weights if each not in odd)
    # The version of the model, but none of its layers: they then rename what older releases saved.
    state._metadata = {"": own._metadata[""]}  # pyrefly: ignore[missing-attribute]
    with restored_if_refused(model):
        try:
            dense = (each for each in weights.values() if each.layout == torch.strided)
            if not all(each.isfinite().all() for each in dense if not each.is_quantized):
                raise errors.BadInput(f"{what}: its weights are not all finite")
            for each in state:
                if each.endswith("running_var") and (state[each] < 0).any():
                    raise errors.BadInput(f"{what}: {each}, a variance, is negative")
            missing, extra = model.load_state_dict(state, strict=False)
        except RuntimeError as error:  # sparse tensors, for one
            raise errors.BadInput(f"{what}: {errors.first_line(error)}") from None
        left = sorted({*missing, *extra} | odd)
        line = f"{what}: {len(left)} weights do not fit"
        names = ", ".join(left[:4])
        if len(missing) >= len(own) / 2:
            holds = [*(weights or saved)] or ["nothing by name"]
            raise errors.BadInput(
                f"{line}: {names}; the file holds {', '.join(map(str, holds[:4]))}"
            )
        if size:
            # Counters and tables are integers, and auxiliary heads are for training.
            other = [each for each in extra if weights[each].is_floating_point()]
            other = [each for each in other if "aux" not in each.lower()]
            if other:
                raise errors.BadInput(
                    f"{line}: the file is of another model, which has {', '.join(other[:4])}"
                )
            if output_needs(model, missing, size):
                raise errors.BadInput(f"{line}: {names}; without them the output is random")
    if os.environ.get("RANK", "0") == "0":
        if left:
            errors.LOG.warning("%s and are left out: %s", line, names)
        if name in AVERAGES and "model_options" not in saved:  # whose "ema" -e always takes
            others = command_for_others(saved, what)
            errors.LOG.warning("%s: its averages, %s, are taken%s", what, name, others)


@contextlib.contextmanager
def restored_if_refused(model: nn.Module) -> Generator[None]:
    """Gives a model the state that it had, if the block raises."""
    # By hand, because load_state_dict() calls the model's hooks, which may have raised.
    tensors = [each for each in model.state_dict().values() if torch.is_tensor(each)]
    kept = [tensor.clone() for tensor in tensors]
    try:
        yield
    except BaseException:
        for tensor, before in zip(tensors, kept, strict=True):
            tensor.copy_(before)
        raise


def command_for_others(saved: dict, what: str) -> str:
    """Returns how to take the weights beside the averages in a file, as text."""
    names = [name for name in WEIGHTS if name not in AVERAGES and has_tensors(saved.get(name))]
    if not names:
        return ""
    path = what.removeprefix("--weights ")
    out = f"{Path(path).stem}_{names[0]}.pth"
    loader = inspect.getfile(safe_files.load_file)
    code = (
        f"import runpy, sys, torch; sys.path.insert(0, {str(Path(loader).parents[1])!r}); "
        f"load = runpy.run_path({loader!r})['load_file']; "
        f"torch.save(load({path!r})[{names[0]!r}], open({out!r}, 'xb'))"
    )
    command = shlex.join([sys.executable, "-c", code])
    return f": {command} writes the others into {out}"


def output_needs(model: nn.Module, names: Iterable[str], size: int) -> bool:
    """Returns whether the output in evaluation depends on a tensor of these names: with NaN in
    these tensors, it is NaN. Only parameters and running statistics are tried, because no layer
    uses counters, and all other buffers are recomputed."""
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors |= {name: each for name, each in model.named_buffers() if "running_" in name}
    tensors = [tensors[name] for name in names if name in tensors]
    if not tensors:
        return False
    kept, training = [tensor.detach().clone() for tensor in tensors], model.training
    with torch.no_grad():
        try:
            for tensor in tensors:
                tensor.fill_(math.nan)
            output = model.eval()(torch.linspace(-1, 1, 3 * size * size).view(1, 3, size, size))
        finally:  # also where the model cannot take this size, or Ctrl-C comes
            for tensor, before in zip(tensors, kept, strict=True):
                tensor.copy_(before)
            model.train(training)
    return bool(output.isnan().any())


def weights_in(saved: safe_files.Content) -> tuple[str | None, Weights]:
    """Returns (name, {name: tensor}) of the weights in a file's content. The first name is one of
    WEIGHTS, or None if the file is a state dict itself."""
    saved = saved if isinstance(saved, dict) else {}
    name = next((name for name in WEIGHTS if has_tensors(saved.get(name))), None)
    found = saved if name is None else saved[name]
    return name, {str(each): found[each] for each in found if torch.is_tensor(found[each])}


def has_tensors(found: safe_files.Content) -> bool:
    """Returns whether an entry of a file is a dict with tensors."""
    return isinstance(found, dict) and any(map(torch.is_tensor, found.values()))


def named_as_in(model: nn.Module, weights: Weights, what: str = "the file") -> Weights:
    """Returns {name: tensor} with the model's names: as they are, or, if more of them fit so,
    without the prefixes of wrappers. Raises BadInput if two models in the file fit alike."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    ways = [weights]
    # torch.compile's prefix is in the middle of a name if only a part is compiled.
    ways.append({name.replace("_orig_mod.", ""): ways[-1][name] for name in ways[-1]})
    # torchvision renames what it has published of DenseNets: norm.1 is norm1.
    old = r"(denselayer\d+\.(?:norm|conv))\.(?=[12]\.)"
    ways.append({re.sub(old, r"\1", name): ways[-1][name] for name in ways[-1]})
    cut = ways[-1:]
    for _ in range(3):  # "module." is of parallel training, the others of Lightning
        pairs = itertools.product(cut, ("module.", "model.", "net."))
        cut = [
            {name.removeprefix(prefix): way[name] for name in way if name.startswith(prefix)}
            for way, prefix in pairs
        ]
        ways += cut

    def fitting(way: Weights) -> int:
        return sum(way[name].shape == shapes.get(name) for name in way)

    best = max(ways, key=fitting)
    for way in ways:
        other = [name for name in way if name in best and way[name] is not best[name]]
        if other and fitting(way) == fitting(best):
            raise errors.BadInput(f"{what} has two models that fit, both with a {other[0]}")
    return best
