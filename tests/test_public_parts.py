"""What docs/parts.md promises to other people's loops of the names in each module's __all__."""

import ast
import inspect
import re
import sys

import pytest
from conftest import ROOT, copy_script, nd, run

from trainparts import errors

PAGE = (ROOT / "docs" / "parts.md").read_text()
PACKAGE = ROOT / "trainparts"
MODULES = {
    path: names
    for path in sorted(PACKAGE.rglob("*.py"))
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    for names in [ast.literal_eval(node.value)]
}
# What Python calls, by position.
CALLED = {"on_signal", "first_line", "seed_from"}


def module_of(path):
    """Returns the module of a file of the package."""
    return sys.modules[".".join(path.relative_to(ROOT).with_suffix("").parts)]


PUBLIC = [
    (path.stem, name, getattr(module_of(path), name)) for path in MODULES for name in MODULES[path]
]
FUNCTIONS = [each for each in PUBLIC if inspect.isfunction(each[2])]


def test_there_are_public_parts():
    assert len(MODULES) >= 9 and len(FUNCTIONS) >= 15
    assert nd.image_loading.load_images in {each for *_, each in FUNCTIONS}


@pytest.mark.parametrize(("module", "name", "function"), FUNCTIONS)
def test_arguments_after_the_first_are_given_by_name(module, name, function):
    first, *others = inspect.signature(function).parameters.values()
    assert first.kind != first.KEYWORD_ONLY and inspect.getdoc(function)
    if name not in CALLED:
        assert all(each.kind == each.KEYWORD_ONLY for each in others)


@pytest.mark.parametrize(("module", "name", "function"), FUNCTIONS)
def test_the_page_has_each_function_with_its_arguments(module, name, function):
    """By the names that it shows: those that are required, and no others that are not there."""
    if name == "first_line":
        return
    calls = re.findall(rf"`?{module}\.{name}\(([^`\n]*)\)", PAGE)
    assert calls or name == "on_signal", f"docs/parts.md does not show {module}.{name}()"
    parameters = inspect.signature(function).parameters.values()
    named = {each.name for each in parameters if each.kind == each.KEYWORD_ONLY}
    needed = {
        each.name
        for each in parameters
        if each.kind == each.KEYWORD_ONLY and each.default is each.empty
    }
    for call in calls:
        shown = {*re.findall(r"(\w+)=", call)}
        assert needed <= shown <= named, call


def test_the_page_has_no_name_that_is_not_public():
    shown = {*re.findall(r"`?(\w+)\.(\w+)\(", PAGE)} - {
        ("torch", "save"),
        ("logging", "getLogger"),
        ("functools", "partial"),
        ("accelerator", "prepare"),
        ("strategy", "broadcast"),
    }
    public = {(module, name) for module, name, _ in PUBLIC}
    assert shown and shown <= public, shown - public


USED = """
import hashlib, io, json, os, signal, sys
from pathlib import Path
import numpy as np, PIL.Image, torch

def state():
    signals = {each.name: str(signal.getsignal(each)) for each in signal.Signals}
    signals.pop("SIGCHLD")  # PyTorch's DataLoader has a handler of it
    descriptors = [os.readlink(f"/proc/self/fd/{each}") for each in range(3)]
    hook, threads = sys.excepthook is sys.__excepthook__, torch.get_num_threads()
    return signals, dict(os.environ), descriptors, hook, threads

before = state()
from trainparts import devices, endings, errors, safe_files
from trainparts.images import decoding, image_files, image_loading, weight_files
from trainparts.runs import checkpointing, run_folder

def crop(out, key, epoch):
    region = yield lambda height, width: (0, 0, height, width)
    decoding.resize(region, size=out.shape[:2], mode="bilinear", out=out)
    yield

if __name__ == "__main__":
    file = io.BytesIO()
    PIL.Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(file, "JPEG")
    decoding.decode(file.getvalue(), choose=lambda height, width: (0, 0, 3, 4))
    Path("a/b").mkdir(parents=True)
    Path("a/b/1.jpg").write_bytes(file.getvalue())
    source = image_files.open_source(Path("a"))
    words = {"sources": {"train": source}, "crops": {"train": crop}, "size_of": lambda *_: 4}
    words |= {"batch_bytes": 48, "workers": WORKERS, "device": torch.device("cpu")}
    assert len([*image_loading.load_images([("train", 0, 0, [0])], **words)]) == 1
    folder = Path("run")
    run_folder.open_folder(folder)
    checkpointing.write_newest(folder, checkpoint={"step": 1, "w": torch.ones(2)})
    (folder / "checkpoint-1.pt").write_bytes((folder / "checkpoint.pt").read_bytes())
    (folder / "checkpoint.pt").write_bytes(b"damaged")
    path, saved = checkpointing.newest_checkpoint(folder, needs={"step", "w"})
    assert path.name == "checkpoint-1.pt" and saved["w"].tolist() == [1, 1]
    model = torch.nn.Linear(2, 2)
    weight_files.load_weights(model, saved=model.state_dict() | {"more": saved["w"]}, what="x.pt")
    after = state()
    assert before == after, [pair for pair in zip(before, after) if pair[0] != pair[1]]
    print("done")
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_of_the_process_changes_and_nothing_is_printed(workers, tmp_path):
    """What is said goes to logging: unless a program says otherwise, warnings to stderr."""
    text = USED.replace("WORKERS", str(workers))
    script = copy_script("own_parts.py", tmp_path, text)
    printed = run([sys.executable, script], tmp_path).splitlines()
    said = [line for line in printed if " skips " in line or "do not fit" in line]
    assert printed[-1] == "done" and len(said) == 2 == len(printed) - 1, printed


def test_what_is_logged_has_a_name_and_a_level(caplog, tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"damaged")
    with pytest.raises(errors.BadInput):
        nd.checkpointing.newest_checkpoint(tmp_path, needs={"step"})
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("trainparts", "WARNING")
