"""Files of tensors: written as a whole or not at all, and loaded only if they are intact."""

import argparse
import errno
import functools
import json
import multiprocessing
import os
import pickle
import re
import resource
import shlex
import sys
import warnings
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import safetensors.torch
import torch
from conftest import FETCH, POINTER, Hostile, flip, load

from trainparts import errors, safe_files

# -------------------------------------------------------------------------------------- writing


def test_a_file_is_replaced_by_what_is_written(tmp_path):
    path = tmp_path / "checkpoint.pt"
    for content in b"one", b"two, which is longer", b"3":
        safe_files.write_atomically(path, save=lambda file, content=content: file.write(content))
        assert path.read_bytes() == content
        assert [*tmp_path.iterdir()] == [path]


def test_no_link_is_followed_in_writing(tmp_path):
    """Nor is what a killed process has left, kept."""
    path, other = tmp_path / "checkpoint.pt", tmp_path / "other"
    other.write_bytes(b"of somebody else")
    (tmp_path / "checkpoint.tmp").symlink_to(other)
    safe_files.write_atomically(path, save=lambda file: file.write(b"one"))
    assert (path.read_bytes(), other.read_bytes()) == (b"one", b"of somebody else")
    assert not path.is_symlink()
    (tmp_path / "checkpoint.tmp").write_bytes(b"left by a process that was killed")
    safe_files.write_atomically(path, save=lambda file: file.write(b"two"))
    assert path.read_bytes() == b"two" and {*tmp_path.iterdir()} == {path, other}


def test_a_file_called_tmp_is_replaced_as_a_whole(tmp_path):
    """Its name may be text."""
    path = tmp_path / "one.tmp"
    path.write_bytes(b"before")
    with pytest.raises(ZeroDivisionError):
        safe_files.write_atomically(str(path), save=lambda file: 1 / 0)
    assert path.read_bytes() == b"before"
    safe_files.write_atomically(str(path), save=lambda file: file.write(b"after"))
    assert path.read_bytes() == b"after" and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_no_part_of_a_file_stays_that_could_not_be_written(error, tmp_path):
    """It would keep a full disk full."""
    path = tmp_path / "a\nb.pt"
    path.write_bytes(b"before")
    with pytest.raises((errors.Fault, KeyboardInterrupt)) as raised:
        safe_files.write_atomically(path, save=raising(error))
    assert [*tmp_path.iterdir()] == [path] and path.read_bytes() == b"before"
    if isinstance(error, OSError):
        line = f"{tmp_path}/a\\nb.pt cannot be written; the previous one is intact: full"
        assert str(raised.value) == line, "a name does not break the line"


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_a_pointer_of_git_lfs_is_called_so(name, tmp_path):
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(errors.Damaged) as raised:
        safe_files.load_file(tmp_path / name)
    assert str(raised.value) == f"{tmp_path / name} {FETCH}"


def test_a_file_is_whole_before_it_is_flushed_to_the_disk(tmp_path, monkeypatch):
    """Or a power failure would leave its name to a file without its end."""
    sizes, fsync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: sizes.append((os.fstat(fd).st_size, path.exists())) or fsync(fd)
    )
    path = tmp_path / "checkpoint.pt"
    safe_files.write_atomically(path, save=lambda file: file.write(b"whole"))
    assert sizes[0] == (5, False) and len(sizes) == 2 and sizes[1][1], "then the folder"


def test_a_folder_that_cannot_be_flushed_is_no_failure(tmp_path, monkeypatch):
    fsync = mock.Mock(side_effect=[None, OSError(errno.EINVAL, "Invalid argument")])
    monkeypatch.setattr(os, "fsync", fsync)
    before = os.listdir("/proc/self/fd")
    safe_files.write_atomically(tmp_path / "one.pt", save=lambda file: file.write(b"whole"))
    assert (tmp_path / "one.pt").read_bytes() == b"whole" and fsync.call_count == 2
    assert len(os.listdir("/proc/self/fd")) == len(before), "the folder is closed"


def raising(error, context=None):
    """Returns a save() that writes a part, and raises an error, as one of another."""

    def save(file):
        file.write(b"a part")
        try:
            if context:
                raise context
        finally:
            raise error

    return save


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
LIMIT = OSError(errno.EFBIG, os.strerror(errno.EFBIG))
PYTORCH_S = RuntimeError("PytorchStreamWriter failed writing file data/1")


@pytest.mark.parametrize(
    ("error", "context", "raised", "why"),
    [
        (FULL, None, errors.Fault, "No space left on device"),
        (PYTORCH_S, FULL, errors.Fault, "No space left on device"),
        (LIMIT, None, errors.BadInput, "File too large"),
        (PYTORCH_S, LIMIT, errors.BadInput, "File too large"),
        (OSError(errno.EIO, "Input/output error"), None, errors.Fault, "Input/output error"),
    ],
    ids="full full-by-pytorch limit limit-by-pytorch disk".split(),
)
def test_what_cannot_be_written_leaves_the_previous_file(error, context, raised, why, tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"before")
    line = f"^{path} cannot be written; the previous one is intact: {why}$"
    with pytest.raises(raised, match=line):
        safe_files.write_atomically(path, save=raising(error, context))
    assert path.read_bytes() == b"before"


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    path = tmp_path / "gone" / "checkpoint.pt"
    line = f"{path} cannot be written; the previous one is intact: "
    line += f"{tmp_path}/gone/checkpoint.tmp: No such file or directory"
    with pytest.raises(errors.Fault, match=f"^{re.escape(line)}$"):
        safe_files.write_atomically(path, save=lambda file: file.write(b"whole"))


@pytest.mark.parametrize("context", [None, ValueError("of something else")])
def test_a_bug_in_saving_is_no_failure_of_the_disk(context, tmp_path):
    error = RuntimeError("cannot serialize this")
    with pytest.raises(RuntimeError, match="^cannot serialize this$"):
        safe_files.write_atomically(tmp_path / "one.pt", save=raising(error, context))
    assert not (tmp_path / "one.pt").exists()


def save_up_to_a_limit(folder, told):
    """Tells what saving 400 kB ends with in a process whose files may have 4 kB."""
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
    save = functools.partial(torch.save, {"weight": torch.zeros(100_000)})
    try:
        safe_files.write_atomically(Path("checkpoint.pt"), save=save)
    except Exception as error:
        told.send(f"{type(error).__name__} {error}")


def test_a_full_disk_fails_in_training_within_a_file(tmp_path):
    """There PyTorch raises an error of its own after the file's, so a real limit is used."""
    ours, its = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=save_up_to_a_limit, args=(tmp_path, its))
    process.start()
    process.join()
    assert process.exitcode == 0 and ours.poll()
    line = "checkpoint.pt cannot be written; the previous one is intact: File too large"
    assert ours.recv() == f"BadInput {line}"


# -------------------------------------------------------------------------------------- loading


@pytest.fixture
def saved(tmp_path):
    """The path of a file of tensors, numbers and text."""
    weights = {"weight": torch.arange(2000.0).reshape(40, 50), "bias": torch.tensor([1, -1])}
    path = tmp_path / "saved.pt"
    torch.save({"state_dict": weights, "epoch": 3, "lr": 0.5, "arch": "vit", "no": None}, path)
    return path


def refusal(path, kind=errors.Damaged, **options):
    """Returns the line of what a path is refused with, of just this type."""
    with pytest.raises(kind) as refused:
        safe_files.load_file(path, **options)
    assert type(refused.value) is kind
    return str(refused.value)


@pytest.mark.parametrize("way", [str, Path])
def test_what_was_saved_is_loaded(way, saved):
    found = safe_files.load_file(way(saved))
    assert found == load(saved) | {"state_dict": found["state_dict"]}
    weights = found["state_dict"]
    assert torch.equal(weights["weight"], torch.arange(2000.0).reshape(40, 50))
    assert torch.equal(weights["bias"], torch.tensor([1, -1]))
    assert {each.device.type for each in weights.values()} == {"cpu"}


def test_options_and_numbers_of_other_projects_are_loaded(tmp_path):
    """None of which runs code."""
    theirs = {"args": argparse.Namespace(lr=0.5), "loss": np.float64(0.25), "top": np.float32(7)}
    torch.save(theirs, tmp_path / "theirs.pth")
    assert safe_files.load_file(tmp_path / "theirs.pth") == theirs


def test_safetensors_are_loaded(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"weight": torch.tensor([1.5, 2.5])}, path)
    found = safe_files.load_file(path)
    assert [*found] == ["weight"] and found["weight"].tolist() == [1.5, 2.5]
    path.write_bytes(path.read_bytes()[:-1])
    assert refusal(path).startswith(f"{path} cannot be loaded: damaged, or no checkpoint (")
    for about, wanted in (
        ({"model_options": {}, "arch": "x"}, {"model_options": {}, "arch": "x"}),
        ({"state_dict": 1, "model_options": {}}, {"model_options": {}}),  # tensors come first
        ({"arch": "x"}, None),  # another program's
        ([1], None),
    ):
        metadata = {"format": "pt", "about": json.dumps(about)}
        safetensors.torch.save_file({"weight": torch.tensor([1.5])}, path, metadata)
        found = safe_files.load_file(path)
        assert (found.pop("state_dict") if wanted else found) == {"weight": torch.tensor([1.5])}
        assert wanted is None or found == wanted
    safetensors.torch.save_file({"weight": torch.tensor([1.5])}, path, {"about": "a cat"})
    assert [*safe_files.load_file(path)] == ["weight"]
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    line = f"{path} needs safetensors: pip install safetensors"
    assert refusal(path, errors.BadInput) == line


def test_a_bit_that_has_changed_is_damage(saved):
    """Which torch.load() does not see, as it compares no checksums."""
    whole = saved.read_bytes()
    saved.write_bytes(flip(whole.index(np.arange(1000.0, 1010, dtype="f4").tobytes()))(whole))
    assert not torch.equal(load(saved)["state_dict"]["weight"].flatten(), torch.arange(2000.0))
    line = f"{saved} cannot be loaded: damaged, or no checkpoint (saved/data/0 is damaged)"
    assert refusal(saved) == line


@pytest.mark.parametrize("content", [b"", b"PK", b"a text", b"\0" * 5000, "cut", "half"])
def test_what_is_no_whole_file_is_damaged(content, saved):
    whole = saved.read_bytes()
    cuts = {"cut": whole[:-1], "half": whole[: len(whole) // 2]}
    saved.write_bytes(cuts.get(content, content))
    line = refusal(saved)
    assert line.startswith(f"{saved} cannot be loaded: ") and "\n" not in line


def pack(path, other, attributes):
    """Writes the records of a file into another, as a program for archives does."""
    with zipfile.ZipFile(path) as one, zipfile.ZipFile(other, "w") as two:
        for name in one.namelist():
            record = zipfile.ZipInfo(name)
            record.external_attr = attributes(name)
            two.writestr(record, one.read(name))
    return other


def test_a_file_that_was_packed_again_is_as_good_as_before(saved, tmp_path):
    """With the modes of its files."""
    other = pack(saved, tmp_path / "other.pt", lambda name: 0o600 << 16)
    assert safe_files.load_file(other)["state_dict"]["weight"].sum() == 1999 * 1000


def test_a_record_that_is_a_folder_is_damaged(saved, tmp_path):
    """Which PyTorch reads as empty."""
    other = pack(saved, tmp_path / "other.pt", lambda name: 0x10 * name.endswith("data/0"))
    assert refusal(other).endswith("damaged, or no checkpoint (saved/data/0 is damaged)")


def test_nothing_in_a_file_is_executed(tmp_path):
    made = tmp_path / "made"
    for write in torch.save, lambda what, path: path.write_bytes(pickle.dumps(what, 2)):
        write({"state_dict": Hostile(made)}, tmp_path / "hostile.pt")
        line = refusal(tmp_path / "hostile.pt")
        why = "no checkpoint, or one with Python objects, which could run code"
        assert line == f"{tmp_path}/hostile.pt cannot be loaded: {why}"
    assert not made.exists()


def test_a_program_is_named_with_the_command_that_writes_its_weights(tmp_path, monkeypatch):
    path = tmp_path / "a model.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 3), torch.ones(1, 2)), path)
    line = refusal(path)
    about, command, into = re.fullmatch("(.*?): (.*) writes its weights into (.*)", line).groups()
    assert (about, into) == (f"{path} is a program of TorchScript", "a model_weights.pt")
    python, option, code = shlex.split(command)
    assert (python, option) == (sys.executable, "-c")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code, {})
        with pytest.raises(FileExistsError):  # nothing is overwritten
            exec(code, {})
    assert {name: [*each.shape] for name, each in safe_files.load_file(into).items()} == {
        "weight": [3, 2],
        "bias": [3],
    }


@pytest.mark.parametrize("kind", ["sparse", "quantised", "pickle"])
def test_no_warning_stands_before_the_line(kind, tmp_path):
    path = tmp_path / "odd.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "sparse":
            torch.save({"weight": torch.eye(2).to_sparse_csr()}, path)
        elif kind == "quantised":
            torch.save(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), path)
        else:
            path.write_bytes(pickle.dumps({"weight": torch.ones(2)}, protocol=4))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if kind == "pickle":
            assert refusal(path).startswith(f"{path} cannot be loaded: ")
        else:
            safe_files.load_file(path)
    assert not found


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "no memory for it"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "no memory for it"),
    ],
)
def test_too_little_memory_is_no_damage(error, line, saved, monkeypatch):
    monkeypatch.setattr(torch, "load", mock.Mock(side_effect=error))
    assert refusal(saved, errors.BadInput) == f"{saved} cannot be loaded: {line}"


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize(
    ("name", "why", "mistake"),
    [
        ("missing.pt", "No such file or directory", True),
        ("saved.pt/more", "Not a directory", True),
        ("loop", "Too many levels of symbolic links", True),
        ("x" * 300, "File name too long", True),
        (".", "Is a directory", True),
        ("/proc/self/mem", "Input/output error", False),  # which opens, and cannot be read
    ],
)
def test_a_file_that_cannot_be_read_is_not_damaged(name, why, mistake, typed, saved, tmp_path):
    """A path that was typed may be mended, one of a run's own folder may come back."""
    (tmp_path / "loop").symlink_to("loop")
    kind = errors.BadInput if mistake and typed else errors.Fault
    path = tmp_path / name
    assert refusal(path, kind, typed=typed) == f"{path} cannot be loaded: {why}"


def test_a_limit_of_the_system_is_the_user_s_to_raise(saved, monkeypatch):
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(saved))
    monkeypatch.setattr(Path, "read_bytes", mock.Mock(side_effect=error))
    line = f"{saved} cannot be loaded: Too many open files"
    assert refusal(saved, errors.BadInput, typed=False) == line


def test_a_path_with_a_nul_is_no_file():
    line = r"a\x00b cannot be loaded: embedded null byte"
    assert refusal("a\0b", errors.BadInput) == line


# ---------------------------------------------------------------------------------- what fits


@pytest.mark.parametrize(
    ("weight", "own", "fits"),
    [
        (torch.ones(2, 3), torch.ones(2, 3), True),
        (torch.ones(2, 3, dtype=torch.float16), torch.ones(2, 3), True),
        (torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bfloat16), True),
        (torch.ones(3, 2), torch.ones(2, 3), False),
        (torch.ones(1, 3), torch.ones(2, 3), False),
        (torch.ones(6), torch.ones(2, 3), False),
        (torch.ones(2, dtype=torch.int8), torch.ones(2), False),
        (torch.ones(2, dtype=torch.bool), torch.ones(2), False),
        (torch.ones(2, dtype=torch.complex64), torch.ones(2), False),
        (torch.tensor(5), torch.tensor(7), True),
        (torch.tensor(5.0), torch.tensor(7), True),  # a counter, in half precision
        (torch.eye(2).to_sparse(), torch.ones(2, 2), False),
    ],
)
def test_a_weight_fits_by_shape_kind_and_layout(weight, own, fits):
    assert safe_files.weight_fits(weight, own) is fits
