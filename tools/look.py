"""For whoever has a trained model: what it sees, where it errs, and how others can use it.

    python tools/look.py predict model_best.pt cat.jpg dog.jpg        # the five likeliest classes
    python tools/look.py predict model_best.pt FOLDER --csv out.csv   # probabilities, as a table
    python tools/look.py classes model_best.pt DIR                    # accuracy class by class
    python tools/look.py classes model_best.pt DIR --csv confusion.csv
    python tools/look.py classes runs/NAME/model_best.pt DIR --part test --save
    python tools/look.py cam resnet18.pt resnet50.pt cat.jpg dog.jpg  # where models see a class
    python tools/look.py cam model_best.pt cat.jpg --size 128         # one trained at 32 pixels
    python tools/look.py export model_best.pt model.onnx     # or model.safetensors, model.pt2
    python tools/look.py export model_best.pt FOLDER         # for timm and transformers
    python tools/look.py average A/model_best.pt B/model_best.pt mean.pt

A checkpoint of these scripts says itself how to use it: architecture, classes, size of images, mean
and standard deviation. For others, such as pytorch/examples' and torchvision's, what is missing is
that of torchvision's weights of the architecture; files of bare weights need -a. Pictures are
resized and cropped as in validation. With --ema the averages are used, as validation does.

Model, crop, normalisation and loss are imagenet_nd.py's; trainparts/ decodes. If a changed script
trained the model, add --script FILE, which imports that script, with the trainparts/ beside it, and
uses its functions instead.
"""

import argparse
import collections
import contextlib
import csv
import functools
import importlib
import importlib.util
import itertools
import json
import os
import re
import shlex
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import exporting
import matplotlib
import matplotlib.figure
import numpy as np
import one_file
import torch
import torchvision
from commandline import CONTROL, OWN, make_parser, one_line, use_package_of
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch import nn
from torchmetrics.classification import MulticlassConfusionMatrix

from trainparts import errors, option_types, safe_files
from trainparts.images import architectures, class_names, image_files, image_loading, weight_files

nd = importlib.import_module("imagenet_nd") if OWN else None  # or --script, which main() puts here
# Of files, as in model_best.pth.tar; others are pictures.
CHECKPOINTS = (".pt", ".pth", ".tar", ".safetensors")
IMAGES = torchvision.datasets.folder.IMG_EXTENSIONS  # of files in folders, as the scripts list them
PICTURES = matplotlib.figure.Figure().canvas.get_supported_filetypes()


class Trained(NamedTuple):
    """A checkpoint, and the model that it holds."""

    path: Path
    about: dict  # what the file says of its model
    args: argparse.Namespace  # the script's options
    data: NamedTuple  # the script's Data, with sizes and pixels, but no images
    model: nn.Module  # in evaluation mode
    classes: list  # (C,) names, as the folders were called


def open_checkpoint(path, arch=None, saved=None):
    """Returns the Trained of a checkpoint, on the CPU, after trying it. `saved` is what the file
    holds, if it has been read."""
    saved = saved or safe_files.load_file(path)
    try:
        if not weight_files.weights_in(saved)[1]:
            raise ValueError("it holds no weights by name")
        about = weight_files.about_file(path, saved=saved, arch=arch)
        if "model_options" in saved and (line := other_script(path)):
            errors.print_line(line, sys.stderr)
        arch = arch or about.get("arch")
        if arch is None:
            raise ValueError("it does not say its architecture: give -a")
        usual = architectures.preset_of(arch).about()
        size = about.get("image_size", usual["image_size"])
        resize = round(size * usual["val_resize"] / usual["image_size"])
        resize = about.get("val_resize", resize)
        if resize < size:
            raise ValueError(f"its images of {resize} pixels are less than the crop, {size}")
        options = architectures.model_options(arch, size, about)
        count = about.get("num_classes")
        if not count:
            bare = architectures.make_model(arch, **options)
            count = weight_files.count_outputs(bare, saved, str(path)) or 1000
        classes = about.get("classes", [])
        if not classes and count == 1000:
            classes = torchvision.models.ResNet50_Weights.DEFAULT.meta["categories"]
        classes = classes + [str(each) for each in range(len(classes), count)]
        args = options_of(saved, arch)
        data = nd.Data(
            **dict.fromkeys(nd.Data._fields)
            | {"from_checkpoint": True, "model_options": options, "num_classes": count}
            | {"image_size": size, "val_size": size, "val_resize": resize}
            | {"interpolation": about.get("interpolation", usual["interpolation"])}
            | {name: tuple(about.get(name, usual[name])) for name in ("mean", "std")}
        )
        model = nd.build_model(args, data, load=False).eval()
        for line in weight_files.assumptions(path, arch, options, about):
            errors.print_line(line, sys.stderr)
        with contextlib.redirect_stdout(sys.stderr):
            weight_files.load_weights(model, saved=saved, what=str(path), size=size)
        with torch.no_grad():
            model(torch.zeros(1, 3, size, size))
    except Exception as error:  # of a file that may hold anything
        line = errors.first_line(error)
        if not line.startswith(str(path)):
            line = f"{path} cannot be used: {line}"
        raise errors.BadInput(line) from None
    return Trained(path, about, args, data, model, classes)


def described(trained):
    """Returns what a checkpoint says of its images, and the architecture."""
    data = trained.data
    about = {"arch": trained.args.arch, "interpolation": data.interpolation}
    about |= {"image_size": data.val_size, "val_resize": data.val_resize}
    return about | {"mean": [*data.mean], "std": [*data.std]}


def options_of(saved, arch):
    """Returns the script's options by name: those that it was trained with, which a changed script
    may read to decode images, else their defaults; but none that only training needs."""
    args = nd.make_parser().parse_args([])
    theirs = saved.get("args") if "model_options" in saved else None
    for name, value in theirs.items() if isinstance(theirs, dict) else ():
        if name in args and isinstance(value, str | int | float | None):
            setattr(args, name, value)
    vars(args).update(arch=arch, auto_augment="off", channels_last=False, compile=False)
    args.freeze = False
    return args


# ----------------------------------------------------------------------------------------- scripts


def load_script(path):
    """Returns the module of a script, which is executed up to its main(). Raises BadInput if it
    lacks a name that this program uses."""
    name = "script_of_the_user"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if not (spec and path.is_file()):
        raise errors.BadInput(f"--script {path} is no file that ends in .py")
    if one_file.MADE in path.read_text(errors="replace"):
        what = "made by tools/one_file.py: give the script it was made of"
        raise errors.BadInput(f"--script {path} was {what}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for it
    sys.path.insert(0, str(path.resolve().parent))  # as `python FILE` does
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a script does
        why = f"{type(error).__name__}: {errors.first_line(error)}"
        raise errors.BadInput(f"--script {path} cannot be imported: {why}") from None
    used = {*re.findall(r"\bnd\.(\w+)", Path(__file__).read_text())}
    if missing := sorted(name for name in used if not hasattr(module, name)):
        what = f"it lacks {len(missing)} names, as {', '.join(missing[:3])}"
        raise errors.BadInput(f"--script {path} is no imagenet_*.py: {what}")
    return module


def other_script(checkpoint):
    """Returns a line to print if the log beside a checkpoint says that a script with another task
    section, or with other modules of images/, trained it, else None, as without a log.
    Nothing of the log is executed."""
    about, trained_by, modules = last_start(checkpoint.resolve().parent)
    mine = Path(nd.__file__).read_text()
    own = [path.read_text() for path in Path(image_files.__file__).parent.glob("*.py")]
    if one_file.MADE in trained_by:  # then names are without those of modules, which are sections
        with contextlib.suppress(one_file.Refused):
            mine = one_file.write(Path(nd.__file__))
        own, modules = (re.split("^(?=# ==== )", text, flags=re.M) for text in (mine, trained_by))
        own = [text for text in own if text.startswith("# ==== trainparts/images/")]
    same = task_section(trained_by) == task_section(mine)
    if not trained_by or (same and {*own} <= {*modules}):
        return None
    try:
        name = shown(shlex.split(json.loads(about)["command"])[1])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # anyone's text
        name = "the script"
    return (
        f"{shown(str(checkpoint))}: {name}, which trained it, has another "
        f"{'trainparts/images' if same else 'task section'} than {shown(nd.__file__)}, so answers "
        "may differ: type --script FILE to use that script (its text is in the run's log)"
    )


def last_start(folder):
    """Returns ("about" as JSON, text of the script, texts of the modules of trainparts/), empty if
    unknown, as the run in a folder logged them when it was last started."""
    with contextlib.suppress(Exception):  # of files that may hold anything
        for log in sorted(folder.glob("*tfevents*"), reverse=True):  # names have the time
            texts = {}
            # A start logs them first; other programs' logs, however long, have none.
            for event in itertools.islice(EventFileLoader(str(log)).Load(), 8):
                for value in event.summary.value:
                    texts[value.tag.removesuffix("/text_summary")] = value.tensor.string_val
            if texts.get("script"):
                both = (texts.get(name, [b""])[0].decode() for name in ("about", "script"))
                about, code = (re.sub(r"\A```\w+\n|\n```\Z", "", text) for text in both)
                script, *modules = code.split("\n```\n```python\n")
                return about, script, modules
    return "", "", []


def task_section(text):
    """Returns a script's section from "# ==== task" to the next one, which is equal in all
    imagenet_*.py; all of a text that has none."""
    found = re.search(r"^# ==== task: .*?(?=^# ==== )", text, re.MULTILINE | re.DOTALL)
    return found[0] if found else text


# -------------------------------------------------------------------------------- names and tables


def shown(text):
    """Returns a text on one line, of which nothing can send a terminal commands."""
    text = text.encode(errors="backslashreplace").decode()  # names of files may be no text
    return text.replace("\n", r"\n").translate(CONTROL)


def shown_name(trained, label):
    """Returns the name of a class; of ImageNet's, which are folders as n02123045, the word too."""
    name = shown(trained.classes[label])
    words = torchvision.models.ResNet50_Weights.DEFAULT.meta
    named = len(trained.classes) == 1000 and re.fullmatch(r"n\d{8}", name)
    return f"{words['categories'][label]} ({name})" if named else name


@contextlib.contextmanager
def open_table(path):
    """Yields a csv.writer; its table takes the place of `path` when the `with` ends without an
    error. A pipe or a device, such as /dev/stdout, is written at once. Without a path yields None.
    Raises BadInput if it cannot be written."""
    if path is None:
        yield None
        return
    if path.suffix.lower() in (*CHECKPOINTS, *IMAGES):  # a forgotten FILE would be its victim
        raise errors.BadInput(f"--csv {path} is no name for a table: give FILE.csv")
    target = Path(os.path.realpath(path))  # a link stays one
    at_once = os.path.exists(path) and not os.path.isfile(path)
    out = path if at_once else target.with_name(f"{target.name}.tmp")
    try:
        if os.path.isfile(path):  # what is protected is not replaced
            open(path, "ab").close()
        file = open(out, "w", newline="", encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise errors.BadInput(f"--csv {path} cannot be written: {error.strerror}") from None
    try:
        with file:
            yield csv.writer(file, lineterminator="\n")
        if not at_once:
            os.replace(out, target)
            errors.print_line(f"table: {shown(str(path))}")
    except BaseException as error:
        if not at_once:
            out.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise errors.storage_error(f"--csv {path} cannot be written", error) from None
        raise


# ------------------------------------------------------------------------------------------ images


def images_in(path):
    """Returns the paths of the images below a folder, at any depth, in ImageFolder's order, each
    beginning with the folder as typed; of what is no folder, the path itself."""
    if not os.path.isdir(path):
        return [path]

    def fail(error):
        raise error

    walked = []
    for folder, below, names in os.walk(path, followlinks=True, onerror=fail):
        walked.append((folder, names))
        for name in [*below]:
            target = os.path.realpath(os.path.join(folder, name))
            if os.path.commonpath([target, os.path.realpath(folder)]) == target:
                below.remove(name)  # a link to a folder above, which has no end
    walked.sort()
    pairs = ((folder, name) for folder, names in walked for name in sorted(names))
    found = [os.path.join(*pair) for pair in pairs if pair[1].lower().endswith(IMAGES)]
    if not found:
        raise errors.BadInput(f"{path} has no image (*{', *'.join(IMAGES)}) at any depth")
    return found


def read_file(paths, index):
    """Returns the bytes of one of several files."""
    return Path(paths[index]).read_bytes()


class Pictures(torch.utils.data.Dataset):
    """Central crops, uint8 (size, size, 3), and their numbers; -1 of what cannot be read."""

    def __init__(self, trained, paths, read):
        self.crop = functools.partial(nd.central_crop, trained.args, trained.data)
        self.size = trained.data.val_size
        self.paths, self.read = paths, read  # read(index) returns the bytes of an image

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        crop = torch.zeros(self.size, self.size, 3, dtype=torch.uint8)
        try:
            image_loading.load_alone(self.read(index), self.crop(crop))
        except (OSError, errors.BadInput) as error:
            why = getattr(error, "strerror", None) or error
            errors.print_line(f"{shown(str(self.paths[index]))} cannot be read: {why}", sys.stderr)
            return crop, -1
        return crop, index


def crops(trained, paths, read=None):
    """Yields (crops uint8 (N, size, size, 3), numbers (N,) int64) of the pictures in batches;
    read(index) returns the bytes of one."""
    pictures = Pictures(trained, paths, read or functools.partial(read_file, paths))
    # Workers that are not forked would import the script by a name, which --script's has not.
    fork = sys.platform == "linux"
    workers = min(os.cpu_count(), len(paths) // 64) if fork or nd.__name__ == "imagenet_nd" else 0
    yield from torch.utils.data.DataLoader(
        pictures,
        batch_size=max(1, 64 // max(1, pictures.size // 224) ** 2),  # of large crops as much memory
        num_workers=workers,
        multiprocessing_context="fork" if workers and fork else None,
    )


def normalised(trained, images):
    """Returns crops as the model takes them, by the script: (N, 3, size, size) float32, on the
    model's device."""
    images = images.to(next(trained.model.parameters()).device)
    target = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    return nd.finish_batch(images, target, trained.args, trained.data, "val", None, 0)[0]


def finite(trained, logits):
    """Returns a model's outputs. Raises BadInput if they are not finite, as of finite weights that
    are too large."""
    if not logits.isfinite().all():
        raise errors.BadInput(f"{trained.path} cannot be used: its outputs are not finite")
    return logits


def on_best_device(trained):
    """Moves the model to the GPU, where there is one."""
    trained.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return trained


# --------------------------------------------------------------------------------------- commands
# Each returns the number of pictures that could not be read.


@torch.no_grad()
def predict(args):
    """Prints a line for each picture: its five likeliest classes, and their probabilities. With
    --csv those of all classes are written as a table instead; with --outputs as well, the model's
    outputs, before the softmax."""
    if args.outputs and not args.csv:
        raise errors.BadInput("--outputs are written by --csv FILE")
    paths = [path for each in args.paths for path in images_in(each)]
    with open_table(args.csv) as table:
        trained, odd = on_best_device(open_checkpoint(args.checkpoint, args.arch)), 0
        if table:
            table.writerow(["file", "class", *columns(trained, "file", "class")])
        for images, numbers in crops(trained, paths):
            logits = finite(trained, trained.model(normalised(trained, images)))
            values = (logits if args.outputs else logits.softmax(dim=1)).cpu()
            for number, chances in zip(numbers.tolist(), values, strict=True):
                if number < 0:
                    odd += 1
                elif table:  # of float32 csv writes as many digits as tell it from others
                    name = trained.classes[chances.argmax()]
                    table.writerow([paths[number], name, *chances.numpy()])
                else:
                    errors.print_line(f"{shown(paths[number])}: {likeliest(trained, chances)}")
    return odd


def columns(trained, *others):
    """Returns the names of a table's columns of the classes. A class that is called as another
    column gets underscores, so that whoever reads by name does not take one for the other."""
    names, taken = [], {*others, *trained.classes}
    for name in trained.classes:
        column = name
        while column in others or (column != name and column in taken):
            column += "_"
        names.append(column)
    return names


def likeliest(trained, chances):
    """Returns the five likeliest classes and their probabilities as text."""
    best = chances.topk(min(5, len(chances)))
    pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
    return ", ".join(
        f"{shown_name(trained, label)} {100 * chance:.1f} %" for chance, label in pairs
    )


@torch.no_grad()
def classes(args):
    """Prints the accuracy of each class, worst first, and the pairs that are most often confused;
    draws the confusion matrix, and writes its counts with --csv. The balanced accuracy is the mean
    of the classes' top-1. With --save the accuracy of all is written beside the checkpoint."""
    if args.save and args.part != "test":  # the only part that make_results.py reads
        raise errors.BadInput("--save writes test.json: it goes with --part test alone")
    with open_table(args.csv) as table:
        trained = on_best_device(open_checkpoint(args.checkpoint, args.arch))
        source = open_part(args, trained)
        if not ("classes" in trained.about or trained.about["published"]):
            trained = trained._replace(classes=source.classes)  # as many, in DIR's order
        matrix, found = measure(trained, source)
        names = [shown_name(trained, label) for label in range(len(matrix))]
        print_classes(source.folder, names, matrix, found)
        if table:
            table.writerow(["class", *columns(trained, "class")])
            table.writerows(
                [name, *row] for name, row in zip(trained.classes, matrix.tolist(), strict=True)
            )
    draw_matrix(args.out, names, matrix, found)
    if args.save:
        out = args.checkpoint.with_name(f"{args.part}.json")
        text = json.dumps({"checkpoint": args.checkpoint.name, **found}, indent=1, allow_nan=False)
        safe_files.write_atomically(out, save=lambda file: file.write(f"{text}\n".encode()))
        errors.print_line(f"accuracy: {out}")
    return len(source.target) - found["count"]


def open_part(args, trained):
    """Returns the Source of DIR/PART, its targets in the order of the model's classes."""
    folder = args.dir / args.part
    if not folder.is_dir():
        raise errors.BadInput(f"{folder} is no folder: DIR holds {args.part}/<class>/")
    source = image_files.open_source(folder, allow_empty=True)
    # As in -e: the file says its classes, or DIR's folders do.
    named = image_files.name_classes(args.dir / "train") or source.classes
    about = trained.about | {"what": args.checkpoint}
    known = class_names.order_classes(named, len(trained.classes), about)
    source = source.in_classes(known, args.checkpoint)
    for line in (*class_names.order_of_numbers(known), *source.gaps()):
        errors.print_line(line)
    return source


def measure(trained, source):
    """Returns (counts (C, C) of images of a class (row) that were taken for one (column), {name:
    accuracy in %, loss, or count of the images that could be read})."""
    target = torch.from_numpy(source.target)
    paths = [source.path(index) for index in range(len(target))]
    count, sums = MulticlassConfusionMatrix(max(2, len(trained.classes))), 0
    for images, numbers in crops(trained, paths, source.read):
        readable = numbers >= 0
        wanted = target[numbers[readable]]
        logits = finite(trained, trained.model(normalised(trained, images)))[readable]
        sums += nd.criterion(logits, wanted.to(logits.device))[1].cpu()
        count.update(logits.argmax(dim=1).cpu(), wanted)
    several = slice(len(trained.classes))  # torchmetrics counts two classes at least
    matrix = count.compute().numpy()[several, several]
    loss, top1, top5, total = sums.tolist()
    if not total:
        raise errors.BadInput(f"{source.folder} has no picture that can be read")
    images = matrix.sum(axis=1)
    there = images > 0
    balanced = float((matrix.diagonal()[there] / images[there]).mean())
    found = {"top1": 100 * top1 / total, "balanced_accuracy": 100 * balanced}
    found |= {"top5": 100 * top5 / total, "loss": loss / total, "count": int(total)}
    return matrix, found


def print_classes(folder, names, matrix, found):
    """Prints what classes() found."""
    accuracy = "top-1 {top1:.3f} %, balanced accuracy {balanced_accuracy:.3f} %".format(**found)
    if len(names) > 5:  # of five it is 100 % always
        accuracy += ", top-5 {top5:.3f} %".format(**found)
    images, right = matrix.sum(axis=1), matrix.diagonal()
    errors.print_line(f"{folder}: {accuracy}, loss {found['loss']:.4f}; images: {found['count']:,}")
    wide = max(len(name) for name in ("class", *names))
    errors.print_line(f"{'class':{wide}}  images  top-1, %")
    there = images.nonzero()[0]
    for label in sorted(there, key=lambda label: right[label] / images[label]):
        share = 100 * right[label] / images[label]
        errors.print_line(f"{names[label]:{wide}}  {images[label]:6}  {share:8.2f}")
    wrong = matrix - np.diag(right)
    if wrong.any():
        errors.print_line("most often confused:")
    for place in np.argsort(-wrong, axis=None, kind="stable")[:10]:
        label, other = divmod(int(place), len(matrix))
        if number := wrong[label, other]:
            errors.print_line(
                f"  {names[label]} taken for {names[other]}: {number} of {images[label]}"
            )


def draw_matrix(out, names, matrix, found):
    """Draws the confusion matrix of the classes that have images, in % of a class's."""
    figure = matplotlib.figure.Figure(figsize=(8, 7), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.15)  # inches, around all
    axes = figure.add_subplot()
    there = matrix.sum(axis=1).nonzero()[0]
    shares = 100 * matrix[np.ix_(there, there)] / matrix.sum(axis=1)[there, None]
    drawn = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100, interpolation="nearest")
    figure.colorbar(drawn, label="of a class's images, %")
    if len(there) <= 50:
        labels = [names[label] for label in there]
        axes.set_xticks(range(len(there)), labels, rotation=90)
        axes.set_yticks(range(len(there)), labels)
    if len(there) <= 20:
        for (row, column), share in np.ndenumerate(shares):
            colour = "white" if share > 50 else "black"
            axes.text(column, row, f"{share:.0f}", ha="center", va="center", color=colour)
    axes.set_title(f"top-1 {found['top1']:.2f} %; images: {found['count']:,}")
    axes.set(xlabel="taken for", ylabel="class")
    figure.savefig(out, dpi=150)
    errors.print_line(f"confusion matrix: {out}")


@torch.no_grad()
def activation_maps(trained, images):
    """Returns (logits (N, C), class activation maps (N, C, h, w)) of normalised images.

    M_c(x, y) = sum_k w_ck f_k(x, y) (Zhou et al. 2016, equation 2), of the features f before the
    global average pooling and the last layer's weights w: so that a map's mean and the bias are the
    logit. In SqueezeNet the last layer comes before the pooling: its output is the map. The
    features are found by their mean, since networks pool by modules and by functions.
    """
    leaves = [each for each in trained.model.modules() if not [*each.children()]]
    *_, last = (each for each in leaves if [*each.parameters()])
    seen, given = collections.deque(maxlen=16), []  # what the last layers take and return
    hooks = [
        each.register_forward_hook(lambda _, inputs, output: seen.extend([*inputs, output]))
        for each in leaves
    ]
    hooks.append(last.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0])))
    logits = finite(trained, trained.model(images))
    for hook in hooks:
        hook.remove()
    linear = isinstance(last, nn.Linear)
    wanted, found = (given[-1] if linear else logits), None
    for output in seen:
        if isinstance(output, torch.Tensor) and output.ndim == 4:
            for features in output, output.relu():
                mean = features.mean(dim=(2, 3))
                same = mean.shape == wanted.shape and mean.allclose(wanted, 1e-3, 1e-3)
                if same and features[0, 0].numel() > 1:  # not the mean itself
                    found = features
    if found is None:
        why = "its last layer does not take the mean of features over several positions"
        arch, size = trained.args.arch, trained.data.val_size
        if size < architectures.preset_of(arch).image_size:
            why += f"; it may have some at --size {max(64, 4 * size)}"
        what = f"{arch} at {size} pixels"
        raise errors.BadInput(f"{trained.path}: no class activation maps of {what}: {why}")
    return logits, torch.einsum("nkhw,ck->nchw", found, last.weight) if linear else found


def cells(trained, paths, label):
    """Yields (path, crop (size, size, 3), title, map (size, size)) of each readable picture: of the
    class `label`, or of the likeliest one."""
    for images, numbers in crops(trained, paths):
        logits, maps = activation_maps(trained, normalised(trained, images))
        for image, number, chances, of_classes in zip(
            images, numbers, logits.softmax(dim=1), maps, strict=True
        ):
            if number < 0:
                continue
            one = trained.classes.index(label) if label else int(chances.argmax())
            title = f"{shown_name(trained, one)}, {100 * chances[one]:.1f} %"
            whole = nn.functional.interpolate(
                of_classes[None, one : one + 1], image.shape[:2], mode="bilinear"
            )
            yield paths[number], image.numpy(), title, whole[0, 0].numpy()


def resized(trained, size):
    """Returns a Trained that takes larger or smaller crops, of the same part of a picture."""
    data = trained.data
    resize = round(size * data.val_resize / data.val_size)
    trained = trained._replace(data=data._replace(val_size=size, val_resize=resize))
    try:
        with torch.no_grad():
            trained.model(torch.zeros(1, 3, size, size))
    except Exception as error:  # whatever a model does with what it is not made for
        why = f"{trained.args.arch} takes no such crops: {errors.first_line(error)}"
        raise errors.BadInput(f"--size {size}: {why}") from None
    return trained


def cam(args):
    """Draws class activation maps: a row for each picture, a column for each model."""
    paths = [path for path in args.files if path.suffix in CHECKPOINTS]
    pictures = [path for path in dict.fromkeys(args.files) if path.suffix not in CHECKPOINTS]
    if not (paths and pictures):
        raise errors.BadInput(f"cam takes checkpoints ({', '.join(CHECKPOINTS)}) and pictures")
    models, rows = [open_checkpoint(path, args.arch) for path in paths], {}
    names = [trained.args.arch for trained in models]
    if len({*names}) < len(names):  # by file, less the folders that all are in
        above = os.path.commonpath([path.absolute().parent for path in paths])
        names = [shown(str(path.absolute().relative_to(above))) for path in paths]
    if args.size:
        models = [resized(trained, args.size) for trained in models]
        names = [f"{name} at {args.size} pixels" for name in names]
    names = [textwrap.fill(name, 40) for name in names]
    lines = 1 + max(name.count("\n") + 1 for name in names)  # of titles
    for trained in models:
        if args.label and args.label not in trained.classes:
            raise errors.BadInput(f"{trained.path} has no class {args.label}")
        for path, *cell in cells(trained, [*rows] or pictures, args.label):
            rows.setdefault(path, []).append(cell)
    if rows:
        size = 3.2 * (1 + len(models)), (3.2 + 0.2 * lines) * len(rows) + 0.3
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(rows), 1 + len(models), squeeze=False)
        for path, (first, *others), row in zip(rows, grid, rows.values(), strict=True):
            first.imshow(row[0][0])
            first.set_title(path.name, fontsize=9)
            for axes, name, (image, title, of_class) in zip(others, names, row, strict=True):
                axes.imshow(image)
                axes.imshow(of_class, cmap="inferno", alpha=0.55)
                axes.set_title(f"{name}\n{title}", fontsize=9)
        for axes in grid.flat:
            axes.set_axis_off()
        bright = "bright: what speaks most for the class named above; dark: least; map by map"
        figure.supxlabel(bright, fontsize=9)
        figure.savefig(args.out, dpi=150)
        errors.print_line(f"class activation maps: {args.out}")
    return len(pictures) - len(rows)


def export(args):
    """Writes the model for other libraries: as torch.export's program, as ONNX, as safetensors, or
    as a folder that timm and transformers load, with a model card; of text_*.py as a folder that
    transformers loads. What was written is compared with the model itself. Nothing is
    overwritten."""
    exporting.check_out(args.out)
    saved = exporting.chosen(safe_files.load_file(args.checkpoint), args)
    if isinstance(saved, dict) and "task" in saved:
        text = importlib.import_module("text_nd")
        error = exporting.write_text_folder(text, saved, args)
        takes = "a folder for transformers; its README.md is a model card"
    else:
        trained = open_checkpoint(args.checkpoint, args.arch, saved)
        about = {"classes": trained.classes, **described(trained)}
        error = exporting.write_image_model(trained, about, saved, args, nd.BEST)
        takes = "a folder for timm and transformers; its README.md is a model card"
        if args.out.suffix:
            size, data = trained.data.val_size, trained.data
            scale = f"(RGB / 255 - {[*data.mean]}) / {[*data.std]}"
            takes = f"takes float32 (N, 3, {size}, {size}): {scale}"
    errors.print_line(f"{args.out}: {takes}")
    errors.print_line(f"relative error of its output against the checkpoint's: {error:.1g}")
    return 0


def average(args):
    """Writes the mean of several checkpoints' weights and running statistics (model soups,
    Wortsman et al. 2022)."""
    if len(args.checkpoints) < 2:
        raise errors.BadInput("average takes two checkpoints or more, and the file to write")
    if args.out.exists():  # where OUT was forgotten it is a checkpoint
        raise errors.BadInput(f"{args.out} is there already: the last file is the one to write")
    first, *others = [open_checkpoint(path, args.arch) for path in args.checkpoints]
    total = first.model.state_dict()
    for other in others:
        mine, theirs = (
            described(each) | {"classes": each.classes, "model_options": each.data.model_options}
            for each in (first, other)
        )
        if odd := [name for name in mine if theirs[name] != mine[name]]:
            raise errors.BadInput(f"{other.path} differs from {first.path} in {odd[0]}")
    states = [each.model.state_dict() for each in (first, *others)]
    for name, tensor in total.items():
        if tensor.is_floating_point():  # and counts are the first's
            total[name] = sum(state[name].double() for state in states).div(len(states)).float()
    what = {"state_dict": total, "num_classes": len(first.classes), **described(first)}
    what |= {"classes": first.about.get("classes", []), "model_options": first.data.model_options}
    safe_files.write_atomically(args.out, save=functools.partial(torch.save, what))
    what = f"the mean of {len(states)} checkpoints; --weights and this program take it"
    errors.print_line(f"{args.out}: {what}")
    return 0


def main():
    """Reads the command line and runs the command."""
    global nd
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    checkpoint = {"type": Path, "metavar": "CHECKPOINT"}
    table = {"type": Path, "metavar": "FILE"}
    changed = "import this changed imagenet_*.py, which trained the model (default: imagenet_nd.py)"
    adds = {}
    for way in (predict, classes, cam, export, average):
        about = " ".join((way.__doc__ or "").split())  # -OO leaves none
        words = {"help": about, "description": about, "prog": f"{parser.prog} {way.__name__}"}
        one = commands.add_parser(way.__name__, **words)
        one.usage = argparse.SUPPRESS
        one.set_defaults(way=way)
        one.add_argument("-a", "--arch", help="of a file that does not say it, as resnet50")
        one.add_argument("--script", type=Path, metavar="FILE", help=changed)
        adds[way] = one.add_argument
    adds[predict]("checkpoint", **checkpoint)
    adds[predict](
        "paths", nargs="+", metavar="PATH", help="an image, or a folder with images below"
    )
    full = "write, in place of the lines: file, class, and the probability of each class"
    adds[predict]("--csv", **table, help=full)
    raw = "write the model's outputs in place of probabilities, as for several classes per image"
    adds[predict]("--outputs", action="store_true", help=raw)
    adds[classes]("checkpoint", **checkpoint)
    adds[classes]("dir", type=Path, metavar="DIR", help="has PART/<class>/")
    adds[classes]("--part", default="val", help="which folder of DIR's (%(default)s)")
    saves = "write PART.json, beside the checkpoint: accuracy and loss of all images"
    adds[classes]("--save", action="store_true", help=saves)
    adds[classes]("--out", type=Path, default=Path("confusion.png"), help="picture (%(default)s)")
    counts = "write the confusion matrix: images of a class (row) taken for one (column)"
    adds[classes]("--csv", **table, help=counts)
    adds[cam]("files", nargs="+", type=Path, metavar="CHECKPOINT... IMAGE...")
    adds[cam]("--class", dest="label", help="whose maps (default: each model's likeliest)")
    larger = "pixels of the crops; maps of more positions than at the size trained at (default)"
    adds[cam]("--size", type=option_types.number_between(int, 1, 1024), help=larger)
    adds[cam]("--out", type=Path, default=Path("cam.png"), help="picture (%(default)s)")
    adds[export]("checkpoint", **checkpoint)
    forms = "model.safetensors, model.onnx, model.pt2 (torch.export's), or a FOLDER to make"
    adds[export]("out", type=Path, metavar="OUT", help=forms)
    own = "the trained weights, where a run with --ema has averages beside them"
    adds[export]("--trained", action="store_true", help=own)
    tokens = "of a text model's tokens, if it is not where it was"
    adds[export]("--tokenizer", metavar="FOLDER", help=tokens)
    words = "with the train.tsv whose words are a text model's tokens, if it is not where it was"
    adds[export]("--data", metavar="DIR", help=words)
    adds[average]("checkpoints", nargs="+", **checkpoint)
    adds[average]("out", type=Path, metavar="OUT")
    args = parser.parse_args()
    errors.print_log()
    matplotlib.rcParams["text.parse_math"] = False  # names may have a $
    if args.script:
        with one_line(parser, errors.BadInput, OSError, ValueError):
            use_package_of(args.script)
            nd = load_script(args.script)
    with one_line(parser, errors.BadInput, errors.Fault, OSError, RuntimeError, ValueError):
        out = getattr(args, "out", Path("."))
        if not out.parent.is_dir():
            raise errors.BadInput(f"{out}: there is no folder {out.parent}")
        if args.way in (classes, cam) and out.suffix[1:] not in PICTURES:
            raise errors.BadInput(f"--out {out} ends in none of {', '.join(sorted(PICTURES))}")
        odd = args.way(args)
    sys.exit(2 if odd else 0)


if __name__ == "__main__":
    main()
