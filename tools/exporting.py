"""What `look.py export` writes: a model as other libraries read it, and a card that describes it.

Each model is read back by the library that it is for, and compared with the checkpoint's, before it
gets its name. docs/export.md says which library reads what.
"""

import argparse
import contextlib
import importlib
import itertools
import json
import math
import os
import tempfile
import types
from pathlib import Path

import commandline  # noqa: F401  # finds trainparts/
import torch

from trainparts import errors
from trainparts.images import architectures, class_names
from trainparts.text import gpt2_names, hf_folders, text_corpus, text_weights, tokenizing

FILES = ".pt2", ".onnx", ".safetensors"  # how their names end; a folder's has no ending
# What timm says of a model's published weights stays out of a folder: tag, source, license, papers.
OF_MODEL = "fixed_input_size", "pool_size", "first_conv", "classifier", "num_classes"


def check_out(out, kinds=FILES):
    """Raises BadInput if a path has no ending of `kinds`, nor none at all, or if it is taken."""
    if out.suffix not in ("", *kinds):
        these = ", ".join(kinds)
        raise errors.BadInput(f"{out} ends in none of {these}; the name of a FOLDER has no dot")
    if os.path.lexists(out):
        raise errors.BadInput(f"{out} is there already: nothing is overwritten")
    try:
        str(out).encode()
    except UnicodeError:
        raise errors.BadInput(f"{out} is no UTF-8, which libraries take for names alone") from None


def chosen(saved, args):
    """Returns a checkpoint's content with the weights to export: the averages that validation
    takes, or with --trained the weights beside them. Raises BadInput if there are none."""
    if not args.trained:
        return saved
    if not (isinstance(saved, dict) and saved.get("ema")):
        raise errors.BadInput(f"--trained: {args.checkpoint} has no averages beside its weights")
    return saved | {"ema": {}, "state_dict": saved.get("trained", saved.get("state_dict"))}


@contextlib.contextmanager
def moved_to(out):
    """Yields a path to write to, in a new folder beside `out`. When the block ends without an
    error, what it has written there is moved to its place. Raises BadInput if that is taken, and
    Fault for whatever else a library raises in the block."""
    with tempfile.TemporaryDirectory(prefix=".export-", dir=out.parent) as folder:
        try:
            yield Path(folder) / out.name
        except (errors.BadInput, errors.Fault, OSError):
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {errors.first_line(error)}"
            raise errors.Fault(f"{out} cannot be written: {why}") from None
        written = sorted(Path(folder).iterdir())  # ONNX has a second file beyond 2 GB
        for path in written:
            check_out(out.with_name(path.name), [path.suffix])
        for path in written:
            os.rename(path, out.with_name(path.name))


def needs(*modules):
    """Returns these modules. Raises BadInput with pip's line if one is not installed."""
    try:
        return [importlib.import_module(name) for name in modules]
    except ImportError as error:
        raise errors.BadInput(f"{error}: pip install '.[export]'") from None


def compare(found, wanted, out, checkpoint):
    """Returns the largest error of an answer, relative to the largest number in the one that is
    `wanted`. Raises Fault if it is another model's."""
    error = ((found - wanted).abs().max() / wanted.abs().max()).item()
    if not error < 1e-4:
        why = f"relative error {error:.1g}: it is not written"
        raise errors.Fault(f"{out} answers otherwise than {checkpoint}: {why}")
    return error


def write_tensors(path, tensors, about):
    """Writes a state dict as safetensors, with what load_file() then returns beside it."""
    (safetensors,) = needs("safetensors.torch")
    copies = {name: each.detach().contiguous().clone() for name, each in tensors.items()}
    metadata = {"format": "pt", "about": json.dumps(about)}
    path.unlink(missing_ok=True)
    path.write_bytes(safetensors.save(copies, metadata))  # save_file() lets no others read it


# ------------------------------------------------------------------------------------------ images


def write_image_model(trained, about, saved, args, best):
    """Writes the model of a Trained of look.py to --out, in the form that its name says, with what
    the checkpoint is `about`. Of a folder's card, `saved` is the file's content, and `best` the
    script's BEST. Returns the relative error of its outputs."""
    write = {".pt2": write_program, ".onnx": write_onnx, ".safetensors": write_bare}
    write, out = write.get(args.out.suffix, write_timm_folder), args.out
    with moved_to(out) as path, torch.no_grad():
        answer, error = write(trained, about, path), 0.0
        if path.is_dir():
            size = "{image_size} pixels, resized to {val_resize}, {interpolation}".format(**about)
            more = [("images", size), ("mean and std", f"{about['mean']}, {about['std']}")]
            more = [("classes", len(trained.classes)), *more]
            write_card(path, saved, args, best, TIMM, more)
        size = trained.data.val_size
        for number in 1, 3:
            images = torch.randn(number, 3, size, size)
            wanted = trained.model(images)
            error = max(error, compare(answer(images), wanted, out, trained.path))
    return error


def write_program(trained, about, path):
    """Writes torch.export's program, for batches of any size; returns what it does, from the
    file."""
    size, options = trained.data.val_size, {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    program = torch.export.export(trained.model, (torch.randn(2, 3, size, size),), **options)
    torch.export.save(program, path, extra_files={"about.json": json.dumps(about)})
    return torch.export.load(path).module()


def write_onnx(trained, about, path):
    """Writes ONNX, for batches of any size; returns what ONNX Runtime does with the file."""
    runtime, *_ = needs("onnxruntime", "onnxscript")
    size, options = trained.data.val_size, {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    options |= {"input_names": ["images"], "output_names": ["logits"]}
    example = (torch.randn(2, 3, size, size),)
    program = torch.onnx.export(trained.model, example, dynamo=True, verbose=False, **options)
    program.model.metadata_props["about"] = json.dumps(about)
    program.save(path)
    session = runtime.InferenceSession(path)
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def write_bare(trained, about, path):
    """Writes safetensors with the names of the model's own library; returns what a new model does
    with them."""
    write_tensors(path, trained.model.state_dict(), for_scripts(trained, about))
    options = trained.data.model_options
    model = architectures.make_model(trained.args.arch, num_classes=len(trained.classes), **options)
    model.load_state_dict(needs("safetensors.torch")[0].load_file(path))
    return model.eval()


def for_scripts(trained, about):
    """Returns what the scripts need to take a file as one of their own checkpoints."""
    more = {"num_classes": len(trained.classes), "model_options": trained.data.model_options}
    return about | more | {"classes": trained.about.get("classes", [])}


def write_timm_folder(trained, about, path):
    """Writes a folder that timm and transformers load; returns what timm's model does. Raises
    BadInput if timm has no such model."""
    (timm,) = needs("timm")
    arch, data = trained.args.arch, trained.data
    options = data.model_options if arch.startswith("timm/") else {}  # torchvision's are others
    model = timm_model(timm, trained, options)
    path.mkdir()
    timm.models.save_for_hf(model, path, safe_serialization=True)
    write_tensors(path / "model.safetensors", model.state_dict(), for_scripts(trained, about))
    config = json.loads((path / "config.json").read_text())
    # transformers gives the number of classes itself, and takes no argument twice.
    config["model_args"] = config.get("model_args", {}) | options
    config["model_args"].pop("num_classes", None)
    config["pretrained_cfg"] = {
        **{name: config["pretrained_cfg"].get(name) for name in OF_MODEL},
        "input_size": [3, data.val_size, data.val_size],
        "crop_pct": share_of_crop(data.val_size, data.val_resize),
        "crop_mode": "squash" if architectures.preset_of(arch).squash else "center",
        **{name: about[name] for name in ("interpolation", "mean", "std")},
    }
    # Of ImageNet's 1,000 classes both libraries have names of their own.
    if trained.classes not in imagenet_names():
        config["label_names"] = trained.classes
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return timm.create_model(f"local-dir:{path}", pretrained=True).eval()


def timm_model(timm, trained, options):
    """Returns timm's model, built with `options`, with the weights of a Trained: of an architecture
    of timm's, or of one of torchvision's that timm has with the same names and shapes."""
    arch, state = trained.args.arch, trained.model.state_dict()
    name, model = arch.removeprefix("timm/"), None
    if timm.is_model(name.partition(".")[0]):
        model = timm.create_model(name, num_classes=len(trained.classes), **options)
    shapes = [
        {name: tensor.shape for name, tensor in each.items()}
        for each in (state, model.state_dict() if model else {})
    ]
    if shapes[0] != shapes[1] or trained.data.model_options.get("transform_input"):
        others = "OUT.safetensors, for torchvision, or OUT.onnx, for ONNX Runtime"
        raise errors.BadInput(
            f"timm and transformers have no {arch} as torchvision's: give {others}"
        )
    model.load_state_dict(state)
    return model.eval()


def share_of_crop(crop, resize):
    """Returns the crop_pct by which timm resizes to `resize` pixels, which is floor(crop / it)."""
    share = crop / resize
    return share if math.floor(crop / share) == resize else crop / (resize + 0.5)


def imagenet_names():
    """Returns the names that ImageNet's 1,000 classes have in folders, and in torchvision."""
    words = importlib.import_module("torchvision").models.ResNet50_Weights.DEFAULT.meta
    return class_names.IMAGENET, words["categories"]


# -------------------------------------------------------------------------------------------- text


def write_text_folder(text, saved, args):
    """Writes the model and the tokenizer of a checkpoint of text_*.py as a folder that transformers
    loads; `text` is the script. Returns the relative error of its outputs. Raises BadInput if the
    checkpoint's tokenizer, or the folder that its model was made of, is not found."""
    needed = {*text.MUST_FIT, "args", "epoch", "step"}
    if not needed <= saved.keys() or saved["task"] not in ("lm", *text.GLUE):
        why = f"no checkpoint of text_*.py's, but of --task {saved['task']}"
        raise errors.BadInput(f"{args.checkpoint} is {why}: transformers has no form of it")
    if args.out.suffix or args.script:
        why = "a text model leaves as a FOLDER, whose model.safetensors has the weights"
        raise errors.BadInput(f"{'--script' if args.script else args.out}: {why}")
    safetensors, _ = needs("safetensors.torch", "transformers")
    make = make_gpt2 if saved["task"] == "lm" else make_classifier
    try:
        model, answer, tokenizer = make(text, saved, args)
    except (errors.BadInput, errors.Fault, OSError):
        raise
    except Exception as error:  # of a file that may hold anything
        why = f"{type(error).__name__}: {errors.first_line(error)}"
        raise errors.BadInput(f"{args.checkpoint} cannot be used: {why}") from None
    tokenizer.model_max_length = saved["max_length"]
    with moved_to(args.out) as path, torch.no_grad():
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        # As in the script's Classifier, a second sentence is marked where the model knows marks.
        marks = ["token_type_ids"] if getattr(model.config, "type_vocab_size", 1) > 1 else []
        names = ["input_ids", *marks, "attention_mask"]
        config = json.loads((path / "tokenizer_config.json").read_text("utf-8"))
        config = json.dumps(config | {"model_input_names": names}, indent=2)
        (path / "tokenizer_config.json").write_text(config + "\n", "utf-8")
        file = path / "model.safetensors"
        about = {name: saved[name] for name in text.MUST_FIT}
        write_tensors(file, safetensors.load_file(file), about)
        write_card(path, saved, args, text.BEST, LANGUAGE if saved["task"] == "lm" else CLASSIFIER)
        found = type(model).from_pretrained(path).eval()
        tokens = torch.randint(saved["vocabulary"], (3, min(16, saved["max_length"])))
        return compare(found(tokens).logits, answer(tokens), args.out, args.checkpoint)


def option(saved, name):
    """Returns an option that a checkpoint was trained with, None if it does not say."""
    theirs = saved.get("args")
    return theirs.get(name) if isinstance(theirs, dict) else None


def make_gpt2(text, saved, args):
    """Returns (transformers' GPT-2, the script's model, the tokenizer) of a language model's
    checkpoint."""
    sample = importlib.import_module("sample")
    saved, model = sample.open_checkpoint(args.checkpoint, saved)
    sizes = saved["model_options"]
    options = {"n_embd": sizes["hidden_size"], "n_layer": sizes["layers"], "n_head": sizes["heads"]}
    options |= {"vocab_size": saved["vocabulary"], "n_positions": saved["max_length"]}
    options |= {"tie_word_embeddings": sizes["tied"], "activation_function": "gelu"}
    options |= {"bos_token_id": None, "eos_token_id": None}
    config = hf_folders.make_config("gpt2", options)
    gpt2 = hf_folders.transformers().AutoModelForCausalLM.from_config(config).eval()
    # Its biases, which a GPT does not have, begin at 0.
    gpt2.load_state_dict(gpt2_names.to_gpt2(model.state_dict()), strict=False)
    gpt2.generation_config.max_length = saved["max_length"]  # it has no more positions
    if args.tokenizer or not (saved["words"] or saved["tokenizer"] == "bytes"):
        return gpt2, model, tokenizer_in(saved, args.tokenizer or option(saved, "tokenizer"))
    words = saved["words"]
    made = tokenizing.tokenizer_of_words(words) if words else tokenizing.tokenizer_of_bytes()
    return gpt2, model, made


def make_classifier(text, saved, args):
    """Returns (transformers' classifier, a function from tokens to the logits that the script's
    model has, the tokenizer) of a checkpoint of a task of GLUE."""
    options = argparse.Namespace(**vars(text.make_parser().parse_args([])) | saved["args"])
    options.evaluate, options.from_scratch, options.weights = True, False, None
    if args.arch or options.arch not in text.ARCHS:
        options.arch = args.arch or options.arch
        if not os.path.isdir(options.arch):
            why = f"its model was made of {options.arch}, which is not there: give -a FOLDER"
            raise errors.BadInput(f"{args.checkpoint}: {why}")
    own = (None, "words") if options.arch in text.ARCHS else ("words",)
    if args.tokenizer or options.tokenizer not in own:
        tokenizer = tokenizer_in(saved, args.tokenizer or options.tokenizer or options.arch)
    else:
        tokenizer = tokenizer_of_table(text, saved, options, args)
    pad = tokenizer.pad_token_id or 0
    sizes = types.SimpleNamespace(vocabulary=len(tokenizer), pad=pad)
    data = types.SimpleNamespace(train=sizes, labels=saved["labels"])
    config = text.build_config(options, data)
    encoder = hf_folders.new_encoder(options.arch, config).eval()
    weights = text_weights.find_weights(saved)[1]
    weights = {name.removeprefix("encoder."): each for name, each in weights.items()}
    text_weights.load_fitting(encoder, weights, str(args.checkpoint), evaluate=True)
    script = text.Classifier(encoder, [])  # with the outputs in the encoder's order

    def answer(tokens):
        lengths = torch.full((len(tokens), 1), tokens.shape[1])
        return script(torch.cat([tokens, lengths], dim=1))

    return encoder, answer, tokenizer


def tokenizer_in(saved, folder):
    """Returns the tokenizer in a folder, which a checkpoint was trained with. Raises BadInput if it
    is another one, or if there is no folder."""
    if not (folder and os.path.isdir(folder)):
        what = f"tokenizer {folder}, which is no folder here" if folder else "a tokenizer"
        raise errors.BadInput(
            f"the checkpoint's tokens are those of {what}: give --tokenizer FOLDER"
        )
    return importlib.import_module("sample").known_tokenizer(saved, folder)


def tokenizer_of_table(text, saved, options, args):
    """Returns the tokenizer of the words in a task's train.tsv, or in the demo's. Raises BadInput
    if it is not the checkpoint's."""
    options.dir = args.data or options.dir
    rows = text_corpus.demo_rows()[0]
    if options.dir:
        try:
            path = text.find_file(options, "train.tsv", "in_domain_train.tsv")
            rows = text.read_table(path, options.task, argparse.Namespace(rank=0))
        except errors.BadInput as error:
            more = "its words are the checkpoint's tokens: give --data DIR"
            raise errors.BadInput(f"{error}; {more}") from None
    sentences = itertools.chain(*(row.sentences for row in rows))
    tokenizer = tokenizing.word_tokenizer(sentences)
    if saved["tokenizer"] != tokenizing.digest_of(tokenizer):
        where = f"{options.dir}/train.tsv" if options.dir else "the demo"
        what = "are not those that the checkpoint was trained with: give --data DIR"
        raise errors.BadInput(f"the words of {where} {what}")
    return tokenizer


# -------------------------------------------------------------------------------------------- card

# (library, its task, how to load the folder from Python)
TIMM = (
    "timm",
    "image-classification",
    """\
model = timm.create_model("local-dir:FOLDER", pretrained=True)
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
classify = transformers.pipeline("image-classification", model="FOLDER")""",
)
CLASSIFIER = (
    "transformers",
    "text-classification",
    """\
model = transformers.AutoModelForSequenceClassification.from_pretrained("FOLDER")
classify = transformers.pipeline("text-classification", model="FOLDER")""",
)
LANGUAGE = (
    "transformers",
    "text-generation",
    """\
model = transformers.AutoModelForCausalLM.from_pretrained("FOLDER")
write = transformers.pipeline("text-generation", model="FOLDER")""",
)


def write_card(folder, saved, args, best, how, more=()):
    """Writes a model card, README.md: what trained the model, as the checkpoint and the log beside
    it say, and its measures of validation. `best` is the script's BEST, which has their names;
    `how` is one of the three above; `more` are further rows, (name, text)."""
    logs, tables = (importlib.import_module(f"reporting.{name}") for name in ("logs", "tables"))
    run = log_of(logs, saved, args.checkpoint.resolve().parent, best)
    library, task, code = how
    rows = [("architecture", saved.get("arch")), *more]
    rows += measures(saved, run, best, trained=args.trained)
    if run:
        each = tables.device_word([run], run.devices)
        rows += [("data", run.data), ("script", run.file), ("PyTorch", run.about.get("torch"))]
        rows += [("hardware", f"{run.devices} {each}: {run.hardware}")]
        rows += [("precision", run.precision)]
    if {"model_options", "args"} <= saved.keys():  # of these scripts, from training
        steps = f", and {saved['step']} steps of the next" if saved["step"] else ""
        rows += [("epochs", f"{saved['epoch']} of {option(saved, 'epochs')}{steps}")]
        rows += [("training time (h:m:s)", tables.clock(saved["seconds"]))]
        rows += [("global batch", saved["global_batch"]), ("peak learning rate", saved["peak_lr"])]
        rows += [("options", options_of(saved)), ("seed", option(saved, "seed"))]
        if saved.get("ema"):
            rows += [("weights", "moving averages of the trained weights (--ema)")]
    text = "".join(
        f"| {name} | {tables.escape(logs.visible(str(value)))} |\n"
        for name, value in rows
        if value not in (None, "")
    )
    (folder / "README.md").write_text(
        f"""---
library_name: {library}
pipeline_tag: {task}
---

# {tables.escape(logs.visible(str(saved.get("arch"))))}

| | |
|---|---|
{text}
License: the model's author has not stated one.

FOLDER is this folder, or its name on a hub:

```python
import {library if library == "transformers" else "timm, transformers"}

{code}
```
"""
    )


def options_of(saved):
    """Returns the options that a checkpoint's run did not have at their defaults; of paths the last
    part."""
    found, words = saved.get("not_default"), []
    for name, value in found.items() if isinstance(found, dict) else ():
        if name == "arch":  # which the card has
            continue
        value = os.path.basename(value) if isinstance(value, str) else value
        words.append(f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}"))
    return ", ".join(words)


def log_of(logs, saved, folder, best):
    """Returns the Run whose log is in a checkpoint's folder; None if there is none, or if the best
    that the checkpoint knows is not the log's, or if the checkpoint has not been validated."""
    with contextlib.suppress(Exception):  # of files that may hold anything
        run, _ = logs.read_run(folder, folder, sorted(folder.glob("*tfevents*")), None)
        shared = [tag for tag in best if f"{tag}/val" in run.series]
        known = [tag for tag in shared if saved[best[tag][0]] != best[tag][1]]
        same = [is_best_of(saved, run.series[f"{tag}/val"], *best[tag]) for tag in known]
        if run.about and same and all(same):
            return run
    return None


def is_best_of(saved, values, name, worst, perfect):
    """Returns whether a checkpoint's best is that of logged values until its epoch, or of those
    before: it may have been saved before its validation."""
    choose = min if worst > perfect else max
    until = (values.value[values.step <= saved["epoch"] - late] for late in (0, 1))
    return any(math.isclose(saved[name], choose([worst, *some]), rel_tol=1e-5) for some in until)


def measures(saved, run, best, trained):
    """Returns rows (measure, value with its unit) of the validation of a checkpoint's weights, as
    logged after its epoch: none within an epoch, nor for trained weights beside averages, which
    validation takes."""
    if not run or saved.get("step") or (trained and option(saved, "ema")):
        return []
    rows = []
    for tag, (_, _, perfect) in best.items():
        values = run.series.get(f"{tag}/val", {"step": [], "value": []})
        found = dict(zip(values["step"], values["value"], strict=True)).get(saved["epoch"])
        if found is not None:
            unit = " %" if perfect == 100 else " nats" if tag == "Loss" else ""
            rows.append((f"{tag} of validation", f"{found:.4g}{unit}"))
    return rows
