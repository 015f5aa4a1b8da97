"""The programs of examples/, which docs/parts.md shows: other people's loops, with parts of the
package. They are killed, resumed, and given what goes wrong with data, disks and checkpoints."""

import io
import re
import signal
import sys
import time

import numpy as np
import PIL.Image
import pyarrow
import pyarrow.parquet
import pytest
import torch
from conftest import BIN, ROOT, copy_script, free_port, run, start, start_ranks

from trainparts.images import decoding
from trainparts.runs import checkpointing

PLAIN, OWN = "examples/plain_loop.py", "examples/own_images.py"
SIZES = {PLAIN: "= 224, 32, 1000, 100, 2, 0", OWN: "= 224, 64, 1000, 100, 2, 0"}
# A small network, with dropout where each step draws the same on any number of ranks.
NETWORK = {PLAIN: "squeezenet1_1(", OWN: "squeezenet1_1(dropout=0.0, "}
STEPPED = "        step += 1\n"


def program(folder, example, *edits):
    """Writes an example into a folder, with small sizes and these edits; returns its path."""
    text = (ROOT / example).read_text()
    for old, new in (
        (SIZES[example], "= 32, 8, 7, 3, 1, 0"),
        ("resnet18(", NETWORK[example]),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    folder.mkdir(exist_ok=True)
    return copy_script(example.partition("/")[2], folder, text)


def at_step(step, code):
    """Returns the edit by which a loop executes code when a step is done."""
    return STEPPED, f"{STEPPED}        if step == {step}:\n            {code}\n"


def by_two(script):
    """Returns the words that start an example on two ranks."""
    port = f"--master_port={free_port()}"
    return [str(BIN / "torchrun"), port, "--nproc_per_node=2", script]


def saved(folder):
    """Returns the step of the newest checkpoint, and its tensors, flat."""
    loaded = torch.load(folder / "checkpoint.pt")
    model, momentum = loaded["model"], loaded["optimizer"]["state"]
    return loaded["step"], [
        *model.values(),
        *(each["momentum_buffer"] for each in momentum.values()),
    ]


def assert_equal(one, other):
    (step, tensors), (same, others) = saved(one), saved(other)
    assert step == same and len(tensors) == len(others)
    assert all(map(torch.equal, tensors, others))


def encoded(rng, kind="JPEG"):
    """Returns the bytes of an image of noise."""
    file, size = io.BytesIO(), (40, 30, 3)
    PIL.Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(file, kind)
    return file.getvalue()


def write_rows(path, images, labels):
    """Writes a Parquet file as Hugging Face has them."""
    rows = {"image": [{"bytes": each, "path": None} for each in images], "label": labels}
    pyarrow.parquet.write_table(pyarrow.table(rows), path)


@pytest.fixture
def rows(tmp_path):
    rng = np.random.default_rng(0)
    kinds = ["JPEG", "PNG", "WEBP", "JPEG"] * 8
    write_rows(tmp_path / "rows.parquet", [encoded(rng, kind) for kind in kinds], [0, 1, 2, 3] * 8)
    return tmp_path / "rows.parquet"


@pytest.fixture(scope="module")
def whole(demo, tmp_path_factory):
    """The folder of plain_loop.py's run, which nothing has interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    run([sys.executable, program(folder, PLAIN), demo / "train", "run"], folder)
    return folder / "run"


@pytest.mark.parametrize("step", [1, 3, 5])
@pytest.mark.parametrize("signum", ["SIGKILL", "SIGTERM"])
def test_a_plain_loop_is_killed_and_resumed_to_the_bit(signum, step, whole, demo, tmp_path):
    """By the same command. A signal loses no step; SIGKILL those since the last checkpoint."""
    kill = f"import os; os.kill(os.getpid(), {int(getattr(signal, signum))})"
    killed = program(tmp_path, PLAIN, at_step(step, kill))
    words = [sys.executable, killed, demo / "train", "run"]
    run(words, tmp_path, status=-9 if signum == "SIGKILL" else 143)
    left = tmp_path / "run" / "checkpoint.pt"
    assert (saved(left.parent)[0] if left.exists() else 0) == (
        step if signum == "SIGTERM" else step // 3 * 3 - 3 * (step % 3 == 0)
    )
    program(tmp_path, PLAIN)
    printed = run(words, tmp_path)
    assert printed.splitlines()[-1].startswith("step 7  loss ")
    assert_equal(tmp_path / "run", whole)
    assert run(words, tmp_path) == "", "nothing is left to train"


def test_a_second_process_is_refused(demo, tmp_path):
    """While the first one lives, which waits for a file."""
    wait = "import pathlib, time; pathlib.Path('begun').touch(); "
    wait += "[time.sleep(0.02) for _ in iter(pathlib.Path('go').exists, True)]"
    begun = program(tmp_path, PLAIN, at_step(1, wait))
    first = start([sys.executable, begun, demo / "train", "run"], tmp_path)
    while not (tmp_path / "begun").exists() and first.poll() is None:
        time.sleep(0.02)
    wait = "import time, trainparts.runs.run_folder\ntime.monotonic = lambda: 1e9 * time.time()\n"
    second = program(
        tmp_path / "second", PLAIN, ("import functools\n", f"import functools\n{wait}")
    )
    printed = run([sys.executable, second, demo / "train", tmp_path / "run"], tmp_path, status=1)
    line = f"trainparts.errors.Fault: {tmp_path}/run: another run is writing there"
    assert printed.splitlines()[-1] == line
    (tmp_path / "go").touch()
    assert first.communicate()[0].endswith("\n") and first.returncode == 0


def test_own_images_train_on_two_ranks_as_on_one_and_resume(rows, tmp_path):
    """The same images in the same steps: without dropout, the same losses. Rank 0's checkpoint
    resumes both."""
    run([*by_two(program(tmp_path, OWN)), rows, "two"], tmp_path)
    run(
        [
            *by_two(program(tmp_path, OWN))[:2],
            "--nproc_per_node=1",
            *[tmp_path / "own_images.py"],
            rows,
            "one",
        ],
        tmp_path,
    )
    (step, tensors), (same, others) = saved(tmp_path / "two"), saved(tmp_path / "one")
    assert step == same == 7
    for one, other in zip(tensors, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    killed = program(tmp_path, OWN, at_step(5, "raise SystemExit(rank or 3)"))
    run([*by_two(killed), rows, "killed"], tmp_path, status=1)
    assert saved(tmp_path / "killed")[0] == 3
    run([*by_two(program(tmp_path, OWN)), rows, "killed"], tmp_path)
    assert_equal(tmp_path / "killed", tmp_path / "two")


def functions_of(example):
    """Returns {name: value} of an example, which is not run."""
    values = {"__name__": "example"}
    exec(compile((ROOT / example).read_text(), example, "exec"), values)
    return values


@pytest.mark.parametrize("example", [PLAIN, OWN])
def test_the_order_of_an_epoch_is_drawn_once_and_has_each_image_once(example, monkeypatch):
    """Whatever the step at which it begins; in batches of all ranks together."""
    values, drawn, randperm = functions_of(example), [], torch.randperm
    batch = values["BATCH"]
    monkeypatch.setattr(torch, "randperm", lambda *a, **k: drawn.append(a) or randperm(*a, **k))
    ranks = [(), ()] if example == PLAIN else [(0, 2), (1, 2)]
    parts = [list(values["schedule"](4 * batch + 1, step, *ranks[0])) for step in (0, 6)]
    assert parts[0][6:] == parts[1] and len(parts[0]) == values["STEPS"]
    epochs = {epoch for _, epoch, *_ in parts[0]}
    assert len(drawn) == len(epochs) + len(epochs - {0})
    one_epoch = [*parts[0][4:8]]
    if example == OWN:
        one_epoch += list(values["schedule"](4 * batch + 1, 0, *ranks[1]))[4:8]
    keys = [key for *_, keys in one_epoch for key in keys]
    assert len({*keys}) == len(keys) == 4 * batch and {each[1] for each in one_epoch} == {1}


@pytest.mark.parametrize(("images", "ranks"), [(5, 1), (32, 3)])
def test_batches_that_cannot_be_are_one_line(images, ranks, tmp_path, monkeypatch):
    """Too few images, or more ranks than divide a batch; nothing is begun."""
    write_rows(tmp_path / "rows.parquet", [b""] * images, [0] * images)
    values = functions_of(OWN)
    values["BATCH"] = 8
    stood_in = {"init_process_group": None, "get_rank": 0, "get_world_size": ranks}
    for name, value in stood_in.items():
        monkeypatch.setattr(torch.distributed, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["own_images.py", str(tmp_path / "rows.parquet"), "run"])
    monkeypatch.chdir(tmp_path)
    line = f"^{images} images on {ranks} ranks cannot have batches of 8: change BATCH$"
    with pytest.raises(SystemExit, match=line):
        values["main"]()
    assert not (tmp_path / "run").exists()


def test_fewer_images_than_a_batch_are_one_line(demo, tmp_path, monkeypatch):
    values = functions_of(PLAIN)
    values["BATCH"] = 10_000
    values["torchvision"] = None  # no model is made
    monkeypatch.setattr(sys, "argv", ["plain_loop.py", str(demo / "train"), str(tmp_path / "run")])
    with pytest.raises(SystemExit, match=r"has \d+ images, fewer than a batch of 10000$"):
        values["main"]()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("constant", ["SEED", "BATCH"])
def test_a_run_with_other_batches_is_not_resumed(constant, demo, tmp_path, monkeypatch):
    """Which would be another training, and nobody would notice."""
    about = {"seed": 0, "batch": 32, "size": 224, "images": 1280}
    saved = {"step": 1, "about": about, "model": {}, "optimizer": {}}
    (tmp_path / "run").mkdir()
    checkpointing.write_newest(tmp_path / "run", checkpoint=saved)
    values = functions_of(PLAIN)
    values[constant] = 16
    monkeypatch.setattr(sys, "argv", ["plain_loop.py", str(demo / "train"), str(tmp_path / "run")])
    line = f"checkpoint.pt is of .*, not .*'{constant.lower()}': 16.*: give another RUN$"
    with pytest.raises(SystemExit, match=line):
        values["main"]()
    opened = functions_of(OWN)["open_run"]
    assert opened(tmp_path / "run", about)["step"] == 1
    with pytest.raises(ValueError, match=line):
        opened(tmp_path / "run", about | {constant.lower(): 16})


def test_rows_are_the_images_of_their_file(rows, tmp_path):
    """read() gives what Pillow decodes; a region is a part of it."""
    example = functions_of(OWN)
    opened = example["Rows"](str(rows))
    assert opened.target.tolist() == [0, 1, 2, 3] * 8
    for index in range(32):
        pixels = np.asarray(PIL.Image.open(io.BytesIO(opened.read(index))).convert("RGB"))
        region = decoding.decode(opened.read(index), choose=lambda *size: (3, 4, 10, 20))
        assert np.array_equal(region, pixels[3:13, 4:24])


FULL = """
def fail(*_):
    raise OSError(errno.ENOSPC, "No space left")


os.fsync = fail
"""


@pytest.mark.parametrize(
    ("edits", "last"),
    [
        (  # an exception in a crop keeps its type
            [("    yield\n\n\n@functools", "    raise KeyError('mine')\n\n\n@functools")],
            r"KeyError: 'mine'",
        ),
        (  # a loader process that is killed
            [("    yield\n\n\n@functools", "    os.kill(os.getpid(), 9)\n\n\n@functools")],
            r"RuntimeError: DataLoader worker \(pid.*\) .*(unexpectedly|by signal.*)",
        ),
        (  # a disk that is full
            [("import numpy", f"import errno\n{FULL}\nimport numpy")],
            "errors.Fault: run/checkpoint.pt cannot be written; the previous one is intact: No "
            "space left",
        ),
    ],
)
def test_what_goes_wrong_ends_in_an_exception_that_says_what(edits, last, rows, tmp_path):
    script = program(tmp_path, OWN, *edits)
    words = [*by_two(script)[:2], "--nproc_per_node=1", script, rows, "run"]
    printed = run(words, tmp_path, status=1)
    assert any(re.search(f"{last}$", line) for line in printed.splitlines()), printed


def by_themselves(script, rows, folder):
    """Returns what each of two ranks prints that end in an error. They have no launcher, which
    would end the second as soon as the first has ended."""
    processes = start_ranks(script, folder, [rows, "run"], [rows, "run"])
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [1, 1], printed
    return printed


def test_a_save_that_fails_ends_both_ranks(rows, tmp_path):
    """With what failed; none waits for the other."""
    full = [("import numpy", f"import errno\n{FULL}\nimport numpy")]
    for printed in by_themselves(program(tmp_path, OWN, *full), rows, tmp_path):
        assert "errors.Fault: run/checkpoint.pt cannot be written; the previous" in printed


def test_an_image_that_cannot_be_decoded_is_named(tmp_path):
    rng = np.random.default_rng(0)
    write_rows(tmp_path / "a\nb.parquet", [encoded(rng)] * 7 + [b"no image"], [0, 1] * 4)
    script = program(tmp_path, OWN)
    words = [*by_two(script)[:2], "--nproc_per_node=1", script, "a\nb.parquet", "run"]
    printed = run(words, tmp_path, status=1)
    assert "b.parquet, row 7: image 7 cannot be used: Pillow cannot identify it" in printed


def test_a_folder_of_another_program_s_checkpoints_is_not_begun_anew(rows, tmp_path):
    """Both ranks end with what is wrong, and nothing is overwritten."""
    (tmp_path / "run").mkdir()
    torch.save({"state_dict": {}}, tmp_path / "run" / "checkpoint.pt")
    before = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    each = by_themselves(program(tmp_path, OWN), rows, tmp_path)
    for printed in each:
        assert "trainparts.errors.BadInput: run: none of its 1 checkpoints is intact" in printed
    lacks = "it lacks about, model, optimizer, step"
    skipped = f"checkpoint.pt is not a checkpoint of this program: {lacks}"
    assert f"run skips run/{skipped}\n" in each[0]
    assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == before
