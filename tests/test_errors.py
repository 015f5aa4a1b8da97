"""trainparts/errors.py: the line and the status that a program ends with."""

import builtins
import errno
import os
import re
import signal
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
import torch
import torchvision
from conftest import ROOT

from trainparts import errors


@pytest.fixture
def report(monkeypatch, capsys):
    """report(error, rank="0"): returns (exit status, stderr, what others are told, seconds slept)
    of report_error() in a script train.py."""

    def report(error, rank="0"):
        told, slept = [], []
        monkeypatch.setattr(sys, "argv", ["a folder/train.py", "--lr", "1"])
        if rank is None:
            monkeypatch.delenv("RANK", raising=False)
        else:
            monkeypatch.setenv("RANK", rank)
        monkeypatch.setattr(time, "sleep", slept.append)
        before = signal.getsignal(signal.SIGTERM)
        try:
            status = errors.report_error(error, lambda *words: told.append(words))
            heeds = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        finally:
            signal.signal(signal.SIGTERM, before)
        assert heeds or not slept, "a launcher's signal ends it meanwhile"
        output, line = capsys.readouterr()
        assert output == ""
        return status, line, told, slept

    return report


def test_statuses_tell_mistakes_from_faults():
    assert (errors.BadInput.status, errors.Damaged.status, errors.Fault.status) == (2, 2, 1)
    assert issubclass(errors.Damaged, errors.BadInput)
    assert not issubclass(errors.Fault, errors.BadInput)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.BadInput("--lr: give a number"), 2),
        (errors.Damaged("--lr: give a number"), 2),
        (errors.Fault("--lr: give a number"), 1),
    ],
)
@pytest.mark.parametrize("rank", ["0", None])
def test_what_ends_a_run_is_a_line(error, status, rank, report):
    told = [("--lr: give a number", status)]
    assert report(error, rank) == (status, "train.py: error: --lr: give a number\n", told, [])


@pytest.mark.parametrize(
    ("error", "status", "line", "told"),
    [
        (errors.Fault("no answer"), 1, "no answer", None),
        (RuntimeError("Timed out"), 1, "rank 3: {timeout} (Timed out)", None),
    ],
)
def test_another_rank_leaves_rank_0_the_time_to_print_it(error, status, line, told, report):
    """And tells nobody: rank 0 alone does."""
    line = line.format(timeout="another rank did not answer within --timeout")
    assert report(error, "3") == (status, f"train.py: error: {line}\n", [], [5])


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_bug_is_a_traceback_at_once(rank, report):
    def cause():
        raise LookupError("no such thing\nat all")

    with pytest.raises(LookupError) as raised:
        cause()
    status, printed, told, slept = report(raised.value, rank)
    assert status == 1 and slept == []
    assert printed.startswith("Traceback (most recent call last):\n")
    assert ", in cause\n" in printed and printed.endswith("LookupError: no such thing\nat all\n\n")
    assert told == ([("rank 0: no such thing", 1)] if rank == "0" else [])


def test_nobody_has_to_be_told(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setenv("RANK", "0")
    assert errors.report_error(errors.BadInput("x")) == 2
    assert capsys.readouterr().err == "train.py: error: x\n"


def test_a_name_can_neither_break_the_line_nor_send_commands(report):
    bad = "\N{SNOWMAN}\n\x1b[31m\x9b0.png is bad\r\0\x7f\t"
    status, line, ((told, _),), _ = report(errors.BadInput(bad))
    escaped = r"\n\x1b[31m\x9b0.png is bad\r\x00\x7f\t"
    assert status == 2 and told == f"\N{SNOWMAN}{escaped}"
    assert line == f"train.py: error: \N{SNOWMAN}{escaped}\n"
    _, line, *_ = report(RuntimeError("Timed out\x1b[2J"), "0")  # what a library says
    assert line.endswith(" (Timed out\\x1b[2J)\n")


def test_a_name_that_is_no_text_is_printed(tmp_path):
    program = "from trainparts import errors; errors.report_error(errors.BadInput('\\udcff.png'))"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
    assert done.stderr.startswith(b"-c: error: ") and done.stderr.endswith(b".png\n")


# What libraries raise, to the word, and what it means.
MEMORY = 2, "no memory: lower -b or -j"
GONE = 1, "another rank is gone"
LATE = 1, "another rank did not answer within --timeout"
LIMIT = 2, "raise a limit of `ulimit -a`"
SMALL = 2, "the model cannot take this size of batch or input"
FEW = 2, "the model has too few outputs"
LIBRARIES = [
    (
        RuntimeError("DataLoader worker (pid 71) is killed by signal: Killed."),
        (1, "a loader worker died: out of memory? lower -j"),
    ),
    (
        RuntimeError("DataLoader worker (pid(s) 71, 72) exited unexpectedly"),
        (1, "a loader worker died: out of memory? lower -j"),
    ),
    (RuntimeError("[../gloo/unbound_buffer.cc:81] Timed out waiting 5000ms for recv"), LATE),
    (torch.distributed.DistStoreError("wait timeout after 60000ms, keys: /0"), LATE),
    (torch.distributed.DistBackendError("Watchdog caught collective operation timeout"), LATE),
    (RuntimeError("Connect time out"), LATE),
    (RuntimeError("[../gloo/pair.cc:534] Connection closed by peer [10.0.0.2]:46733"), GONE),
    (torch.distributed.DistNetworkError("Connection was likely closed. Did the remote"), GONE),
    (torch.distributed.DistNetworkError("Failed to recv, got 0 bytes"), GONE),
    (RuntimeError("Read error [10.0.0.2]:1: Connection reset by peer"), GONE),
    (RuntimeError("NCCL error: remote process exited or there was a network error"), GONE),
    (RuntimeError("Horovod has been shut down. This was caused by an exception"), GONE),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), GONE),
    (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), GONE),
    (OSError(errno.EMFILE, "Too many open files"), LIMIT),
    (RuntimeError("unable to open shared memory object: Too many open files (24)"), LIMIT),
    (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), LIMIT),
    (RuntimeError("can't start new thread"), LIMIT),
    (RuntimeError("Failed to start the watchdog thread"), LIMIT),
    (OSError(errno.EFBIG, "File too large"), LIMIT),
    (RuntimeError("Permission denied"), (2, "no permission for this file or folder")),
    (
        RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation"),
        (2, "--deterministic: PyTorch cannot train this deterministically"),
    ),
    (MemoryError(), MEMORY),
    (np._core._exceptions._ArrayMemoryError((9,), np.dtype("i8")), MEMORY),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0"), MEMORY),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), MEMORY),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), MEMORY),
    (RuntimeError("Storage size calculation overflowed with sizes=[1]"), MEMORY),
    (RuntimeError("could not create a primitive"), MEMORY),
    (
        RuntimeError("unable to write to file </torch_1_2>: unable to allocate shared memory(shm)"),
        (2, "too little shared memory: docker run --shm-size=8g, or -j 0"),
    ),
    (RuntimeError("No space left on device"), (1, "logs cannot be written")),
    (RuntimeError("Read-only file system"), (1, "logs cannot be written")),
    (RuntimeError("Disk quota exceeded"), (1, "logs cannot be written")),
    (RuntimeError("Given input size: (64x1x1). Output size is too small"), SMALL),
    (RuntimeError("output size is too small"), SMALL),
    (RuntimeError("Kernel size can't be greater than actual input size"), SMALL),
    (ValueError("Expected more than 1 value per channel when training"), SMALL),
    (AssertionError("Input shape indivisible by patch size!"), SMALL),
    (AssertionError("Wrong image height! Expected 32 but got 48!"), SMALL),
    (AssertionError("Wrong image width! Expected 32 but got 48!"), SMALL),
    (RuntimeError("The size of tensor a (7) must match the size of tensor b (8)"), SMALL),
    (AssertionError("Input height (48) doesn't match model (224)."), SMALL),
    (AssertionError("Input height (50) should be divisible by patch size (16)."), SMALL),
    (AssertionError("Input height (50) should be divisible by window"), SMALL),
    (IndexError("Target 7 is out of bounds."), FEW),
    (RuntimeError("Class values must be smaller than num_classes."), FEW),
    (
        RuntimeError("Expected to have finished reduction in the prior iteration before"),
        (
            2,
            "forward() uses a weight in some steps only: write find_unused_parameters=True in "
            "prepare()",
        ),
    ),
]


@pytest.mark.parametrize(("error", "meaning"), LIBRARIES, ids=lambda each: str(each)[:40])
def test_what_a_library_says_has_a_meaning(error, meaning, report):
    """Beside which stands the first line of what it said."""
    said = (str(error) or type(error).__name__).splitlines()[0]
    status, line, told, _ = report(error)
    expected = f"rank 0: {meaning[1]} ({said})"
    assert (status, line) == (meaning[0], f"train.py: error: {expected}\n")
    assert told == [(expected, meaning[0])]


def test_each_meaning_is_one_that_a_library_says():
    said = [f"{type(error).__name__}: {error}" for error, _ in LIBRARIES]
    first = [next(key for key in errors.MEANINGS if re.search(key, each)) for each in said]
    assert {*first} == {*errors.MEANINGS}


F = torch.nn.functional
FITS = torch.zeros(1, 3, 8, 8)


def vit(size):
    made = torchvision.models.VisionTransformer(size, 4, 1, 1, 4, 4, num_classes=2)
    return made._process_input


@pytest.mark.parametrize(
    ("call", "meaning"),
    [
        (lambda: F.max_pool2d(FITS, 9), SMALL),
        (lambda: F.conv2d(FITS, torch.zeros(3, 3, 9, 9)), SMALL),
        (lambda: F.batch_norm(torch.zeros(1, 3), None, None, training=True), SMALL),
        (lambda: vit(16)(FITS), SMALL),
        (lambda: vit(6)(torch.zeros(1, 3, 6, 6)), SMALL),
        (lambda: FITS + torch.zeros(7), SMALL),
        (lambda: F.cross_entropy(torch.zeros(1, 3), torch.tensor([3])), FEW),
        (lambda: F.one_hot(torch.tensor([3]), 3), FEW),
        (lambda: torch.empty(2**50), MEMORY),
        (lambda: torch.empty(2**62, 4), MEMORY),
        (lambda: np.empty(2**50), MEMORY),
    ],
)
def test_what_libraries_say_is_what_these_ones_do(call, meaning, report):
    """By their own words, which change from version to version."""
    with pytest.raises(Exception) as raised:  # noqa: B017, PT011
        call()
    status, line, _, _ = report(raised.value)
    assert status == meaning[0]
    assert line.startswith(f"train.py: error: rank 0: {meaning[1]} (")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("could not create a primitive descriptor for a convolution"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        KeyError("layers"),
        RuntimeError(""),
    ],
)
def test_what_means_nothing_else_is_a_bug(error, report):
    status, printed, told, _ = report(error)
    assert status == 1 and printed.rstrip().splitlines()[-1].startswith(type(error).__name__)
    assert told == [(f"rank 0: {str(error) or 'RuntimeError'}", 1)]


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (OSError(errno.EIO, "Input/output error"), 1, "a log or another file: Input/output error"),
        (OSError(errno.ENOSPC, "No space"), 1, "a log or another file: No space"),
        (FileNotFoundError(errno.ENOENT, "No such file"), 1, "a log or another file: No such file"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 1, "x: Permission denied"),
        (OSError(errno.EIO, "Input/output error", b"x.jpg"), 1, "x.jpg: Input/output error"),
        (
            OSError(errno.EMFILE, "Too many open files", "x"),
            2,
            f"{LIMIT[1]} ([Errno 24] Too many open files: 'x')",
        ),
        # Connections are PyTorch's.
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
            1,
            f"{GONE[1]} ([Errno 111] Connection refused)",
        ),
    ],
)
def test_an_error_of_a_file_is_a_line(error, status, line, report):
    expected = f"rank 0: {line}"
    assert report(error) == (status, f"train.py: error: {expected}\n", [(expected, status)], [])


# ----------------------------------------------------------------------------------------- storage

TYPED = "ENOENT ENOTDIR EISDIR EEXIST EACCES ENAMETOOLONG ELOOP EINVAL".split()
LIMITED = "EMFILE EFBIG EAGAIN ENOMEM".split()
PASSING = "EIO ESTALE ETIMEDOUT EHOSTDOWN ENOSPC EROFS EDQUOT ENODEV EPERM ENOTCONN".split()


@pytest.mark.parametrize("name", [*TYPED, *LIMITED, *PASSING])
@pytest.mark.parametrize("typed", [False, True])
def test_what_a_user_can_mend_is_a_mistake_and_all_else_a_fault(name, typed):
    """A path is the user's if it was typed; a limit of the system always is."""
    number = getattr(errno, name)
    error = OSError(number, os.strerror(number), "folder/x.pt")
    made = errors.storage_error("--resume folder/x.pt", error, typed, ": try another")
    mistake = name in LIMITED or (typed and name in TYPED)
    line = f"--resume folder/x.pt: {os.strerror(number)}"
    assert type(made) is (errors.BadInput if mistake else errors.Fault)
    assert str(made) == line + (": try another" if mistake else "")
    assert errors.system_name(error) == name


@pytest.mark.parametrize(
    ("what", "error", "line"),
    [
        ("a.pt", OSError(errno.EIO, "Input/output error", "b.pt"), "a.pt: b.pt: Input/output"),
        ("a.pt", OSError(errno.EIO, "Input/output error", b"a.pt"), "a.pt: Input/output"),
        ("x/a.pt", OSError(errno.EIO, "Input/output error", "a.pt"), "x/a.pt: Input/output"),
        ("a.pt", OSError(errno.EIO, "Input/output error", "x/a.pt"), "a.pt: x/a.pt: Input/output"),
        ("log", OSError(errno.EIO, "Input/output error"), "log: Input/output"),
    ],
)
def test_a_file_is_named_once(what, error, line):
    assert str(errors.storage_error(what, error)) == f"{line} error"


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ValueError("not a\nnumber"), "not a"),
        (KeyError("layers"), "'layers'"),
        (EOFError(), "EOFError"),
        (ValueError("x" * 999), "x" * 300),
        (OSError("cannot identify image file"), "cannot identify image file"),
    ],
)
def test_what_is_wrong_in_a_file_is_the_user_s_to_mend(error, why, typed):
    """Also where a library raises an OSError that is no system call's."""
    made = errors.storage_error("a.pt", error, typed, "; see the docs")
    assert type(made) is errors.BadInput and str(made) == f"a.pt: {why}; see the docs"
    assert errors.system_name(error) is None


def test_only_a_system_call_s_error_has_a_name():
    assert errors.system_name(OSError(errno.ENOENT, "x")) == "ENOENT"
    assert errors.system_name(FileNotFoundError("x")) is None
    assert errors.system_name(ValueError("x")) is None
    assert errors.system_name(OSError(0, "x")) is None
    assert errors.system_name(OSError(99999, "x")) is None


# -------------------------------------------------------------------------------------- small ones


def test_a_path_is_looked_at(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "gone").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    assert errors.look_at(tmp_path / "file").st_size == 5
    assert errors.look_at(str(tmp_path)).st_ino == os.stat(tmp_path).st_ino
    for name in "none", "file/below", "gone", "loop", "x" * 300, "a\0b":
        assert errors.look_at(f"{tmp_path}/{name}") is None, name


@pytest.mark.parametrize("name", ["EIO", "ESTALE", "ETIMEDOUT", "EHOSTDOWN"])
def test_a_disk_that_does_not_answer_is_no_path_that_is_missing(name, monkeypatch):
    error = OSError(getattr(errno, name), os.strerror(getattr(errno, name)), "disk/x")
    monkeypatch.setattr(os, "stat", mock.Mock(side_effect=error))
    try:
        with pytest.raises(errors.Fault) as raised:
            errors.look_at("disk/x")
    finally:
        monkeypatch.undo()
    assert str(raised.value) == f"disk/x: {error.strerror}"
    assert raised.value.__suppress_context__, "one line"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("\n  one  \ntwo\n"), "one  "),
        (ValueError(""), "ValueError"),
        (ValueError(" \n "), "ValueError"),
        (KeyError("x"), "'x'"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (OSError(errno.EIO, "Input/output error", "x"), "[Errno 5] Input/output error: 'x'"),
    ],
)
def test_the_first_line_of_an_error(error, line):
    assert errors.first_line(error) == line


def test_a_line_is_printed_at_once(monkeypatch, capsys):
    errors.print_line("to stdout")
    errors.print_line("to stderr", sys.stderr)
    assert capsys.readouterr() == ("to stdout\n", "to stderr\n")
    printed = mock.Mock()
    monkeypatch.setattr(builtins, "print", printed)
    errors.print_line("x", sys.stderr)
    printed.assert_called_once_with("x", file=sys.stderr, flush=True)


def test_a_line_that_cannot_be_printed_ends_nothing(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    file = os.fdopen(writing, "w", closefd=False)
    errors.print_line("x" * 100_000, file)
    os.close(writing)
    with open(tmp_path / "closed", "w") as closed:
        pass
    errors.print_line("x", closed)
    file.detach()


@pytest.mark.parametrize("kind", [errors.BadInput, errors.Damaged, errors.Fault])
def test_a_name_does_not_break_the_line_of_an_exception(kind):
    """Wherever it is printed; what can be printed stays."""
    assert str(kind("a\nb\x1b[2J/\udce9é.pt")) == "a\\nb\\x1b[2J/\\udce9é.pt"
    assert str(kind(ValueError("of another"))) == "of another"
