"""A run is a folder: what --output-dir begins, resumes, refuses and leaves alone, sentence by
sentence of docs/reliability.md, and what is printed as advice, typed."""

import os
import re
import shlex
import shutil
import sys
import time
from unittest import mock

import pytest
import torch
from conftest import (
    ALIKE,
    DDP,
    EARLY,
    ND,
    ROOT,
    RUN,
    SLOW,
    WAYS,
    command,
    copy_script,
    damage,
    flip,
    load,
    locked,
    points,
    record,
    refused,
    run,
    scalars,
    start,
    start_ranks,
    the_line,
)

from trainparts import errors
from trainparts.runs import event_log

TO_TYPE = r"--output-dir (\S+)"


def kept(folder):
    """Returns {path: (bytes, time of writing)} of all in a folder."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def equal(one, other, names=("checkpoint.pt", "model_best.pt")):
    """Asserts that two runs' folders have equal checkpoints, to the bit, and equal losses."""
    for name in names:
        pair = [load(folder / name) for folder in (one, other)]
        for key in "epoch", "step", "best_acc1", "best_acc5", "best_loss", "global_batch":
            assert pair[0][key] == pair[1][key], (name, key)
        for key in "state_dict", "optimizer":
            torch.testing.assert_close(*(each[key] for each in pair), rtol=0, atol=0)
    for tag in "Loss/step", "Loss/train", "Loss/val", "Top1/val", "Lr":
        assert points(one)[tag] == points(other)[tag], tag


# ------------------------------------------------------------------------------ begun and resumed


@pytest.mark.parametrize("way", WAYS)
def test_the_same_command_begins_and_resumes(way, trained, typed, tmp_path):
    """In mid-epoch, twice; in validation; after the end. Then it equals an uninterrupted run, to
    the bit; and once more it says in one line that it is over, and writes nothing."""
    words = ["--output-dir", "run"]
    folder, steps = tmp_path / "run", []
    # The bar of training is the first event, then there are up to four steps, and validation.
    for event in "1", "1", "3":
        output = typed(*words, way=way, status=143, env={"SIGTERM_AT": event})
        step = load(folder / "checkpoint.pt")["step"]
        line = f"stopped by .* at step {step or 4}, saved; the same command again resumes it\n"
        assert re.search(line, output)
        steps.append(step)
    assert 0 < steps[0] < 4 and steps[1:] == [0, 0]
    typed(*words, way=way)
    equal(folder, trained(way))
    assert {path.name for path in folder.glob("[!e.]*")} == {
        *"checkpoint.pt checkpoint-1.pt checkpoint-2.pt model_best.pt".split()
    }
    before = kept(folder)
    line = "run: all epochs are done (3/3 epochs); to train longer, change what ended it: "
    assert typed(*words, way=way) == f"{line}nothing is left to do\n"
    assert kept(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "no other folder is made"


def test_a_run_that_ended_is_over_until_what_ended_it_is_another(typed, one):
    output = typed("--output-dir", "one", "--epochs", "4")
    assert "--epochs 4, before 3: the learning rate follows the new one\n" in output
    assert "Resuming one/checkpoint.pt after 3 of 4 epochs\n" in output
    assert record(one, "end")["epochs"] == 4
    # Killed before it has saved anything, it is not over.
    typed("--output-dir", "one", "--epochs", "5", status=-9, env={"SIGKILL_AT": "1"})
    assert "all epochs are done" in typed("--output-dir", "one", "--epochs", "5")
    assert "nothing is left to do" in typed("--output-dir", "one", "--epochs", "5")
    before = kept(one)
    line = "one: 5 epochs are done; to train longer, raise --epochs 2: nothing is left to do\n"
    assert typed("--output-dir", "one", "--epochs", "2") == line
    assert kept(one) == before


@pytest.mark.parametrize(
    ("ends", "goes_on"),
    [
        (["--desired-acc", "0.001"], ["--desired-acc", "0.9999"]),  # the option is named
        (
            ["--patience", "1", "--clip-grad", "1e-300"],
            ["--patience", "9", "--clip-grad", "1e-300"],
        ),
    ],
)
def test_what_ended_early_says_what_to_type_to_train_on(ends, goes_on, typed, tmp_path):
    output = typed(*ends)
    (folder,) = set(re.findall(f"{TO_TYPE}\n", output))
    last = output.splitlines()[-1]
    assert last.startswith(f"To train longer, change {ends[0][:9]}")
    assert "nothing is left to do" in typed(*ends, "--output-dir", folder)
    assert "all epochs are done" in typed(*goes_on, "--output-dir", folder)
    assert [*(tmp_path / "runs").iterdir()] == [tmp_path / folder]


@pytest.mark.parametrize("way", ALIKE)
def test_without_a_folder_a_line_says_how_to_resume(way, trained, typed, tmp_path):
    """Where the folder is named, and where it was saved."""
    output = typed(way=way, status=143, env=EARLY)
    name = r"runs/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\S+_vit_b_16_gpux\d_b\d+_cpu0_optfloat32"
    how = f"; to resume it, add to the command: --output-dir ({name})\n"
    (header,) = re.findall(f"^Logs and checkpoints of this run{how}", output, re.MULTILINE)
    assert re.findall(f", saved{how}", output) == [header]
    again = typed(way=way)
    assert "Resuming" not in again and len([*(tmp_path / "runs").iterdir()]) == 2, "a new run"
    typed("--output-dir", header, way=way)
    equal(tmp_path / header, trained(way))
    assert len([*(tmp_path / "runs").iterdir()]) == 2


def test_a_folder_with_a_space_is_printed_as_it_is_typed(typed, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "a b").mkdir()
    (tmp_path / "runs").rmdir()
    (tmp_path / "runs").symlink_to("a b")
    output = typed("--output-dir", "runs/my run", status=143, env=EARLY)
    assert "Logs and checkpoints: runs/my run; the same command again" in output
    assert (tmp_path / "a b" / "my run" / "checkpoint.pt").exists()


@pytest.mark.parametrize(
    "words", ["--resume auto", "--log-dir runs", "--log-dir=runs", "@options", "--resume=auto"]
)
def test_what_was_typed_before_names_what_to_type(words, typed, tmp_path):
    (tmp_path / "options").write_text("--log-dir runs")
    line = the_line(typed(*words.split(), status=2))
    assert "--output-dir FOLDER, and the same command again resumes it" in line


def test_ranks_that_a_launcher_restarts_need_a_folder(typed, one):
    """Not under --evaluate, nor where it never restarts them."""
    env = {"TORCHELASTIC_MAX_RESTARTS": "3"}
    for more in env, {"TORCHELASTIC_RESTART_COUNT": "1"}:
        assert "give --output-dir FOLDER" in the_line(typed(status=2, env=more))
    assert "nothing is left" in typed("--output-dir", "one", env=env)
    assert "validation: " in typed("-e", "--resume", "one", env=env)
    typed(status=143, env=EARLY | {"TORCHELASTIC_MAX_RESTARTS": "0"})


@pytest.mark.slow
@pytest.mark.parametrize("folder", [[], ["--output-dir", "run"]], ids=["none", "run"])
def test_torchrun_with_restarts(folder, demo, tmp_path):
    """Killed in its third epoch by a fault of a rank, torchrun starts the ranks again."""
    torchrun = [command("imagenet_exchange.py", 2)[0], "--standalone", "--nproc_per_node=2"]
    words = [*torchrun, "--max-restarts=1", ROOT / DDP, *RUN, "-b", "8", demo, *folder]
    if not folder:
        assert "give --output-dir FOLDER" in run(words, tmp_path, 1)
        assert not [*tmp_path.iterdir()]
        return
    output = run(words, tmp_path, 1, {"SIGKILL_AT": "40"})  # both ranks, in both starts
    assert output.count("Resuming run/checkpoint.pt") == 1
    steps = [step for step, _ in points(tmp_path / "run")["Loss/step"]]
    assert steps == sorted({*steps}), "no step twice"


# ------------------------------------------------------------------------------------ another run


@pytest.mark.parametrize("way", ALIKE)
def test_other_options_are_refused_by_name(way, trained, typed, tmp_path):
    """And what the line says to type begins another run from this one."""
    folder = shutil.copytree(trained(way), tmp_path / "run")
    before = kept(folder)
    line = refused(typed("--output-dir", "run", "--momentum", "0.5", way=way, status=2))
    assert "--output-dir run was trained with other options: momentum (0.9, here 0.5); " in line
    assert kept(folder) == before
    (more,) = re.findall(r"give another --output-dir, with (--resume run) to begin there", line)
    words = ["--output-dir", "other", "--momentum", "0.5", *more.split(), "--epochs", "4"]
    output = typed(*words, way=way)
    assert "run/checkpoint.pt was trained with other options: momentum (0.9, here 0.5)\n" in output
    assert "Resuming run/checkpoint.pt after 3 of 4 epochs\n" in output
    assert kept(folder) == before
    after = load(tmp_path / "other" / "checkpoint.pt")
    assert after["epoch"] == 4
    assert after["optimizer"]["param_groups"][0]["momentum"] == 0.5


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--seed 1", "seed (0, here 1)"),
        ("-a vit_b_32", "arch (vit_b_16, here vit_b_32)"),  # from which none can begin
        ("--lr 1", "peak learning rate (0.125, here 0.0625)"),
        ("--lr-scaling none", "peak learning rate (0.125, here 2.0)"),
        ("--global-batch 32", "global-batch (16, here 32), peak learning rate (0.125, here 0.25)"),
        ("--wd 0.5 --norm-wd 0", "wd (0.0001, here 0.5), norm-wd (None, here 0.0)"),
        ("--steps-per-epoch 5", "steps-per-epoch (4, here 5)"),
        ("--amp bfloat16", "precision (float32, here bfloat16)"),
    ],
)
def test_what_defines_a_run(words, named, typed, one):
    line = refused(typed("--output-dir", "one", *words.split(), status=2))
    assert f"other options: {named}; give another --output-dir" in line
    assert ("with --resume one to begin there" in line) == ("-a" not in words.split())


@pytest.mark.parametrize(
    "words",
    [
        "-b 8",
        "-b 4 --accumulation 3",  # the checkpoint's global batch counts
        "-b 64",
        "--global-batch 16",
        "--global-batch 16 -b 2",
        "--lr 0.125 --lr-scaling none",
        "--base-lr 0.125",
        "--base-lr 0.0625 -b 8",
        "-j 1 --checkpoint-minutes 0 --timeout 99 --deterministic --keep-every 1 -p 2 --best loss",
    ],
)
def test_what_may_change_when_a_run_is_resumed(words, typed, one):
    """The global batch and the peak rate are what was trained, however they are typed."""
    output = typed("--output-dir", "one", "--epochs", "4", *words.split())
    whose = "" if "--global-batch" in words else ", the checkpoint's"
    assert f" = global batch 16{whose}; " in output
    assert "-> peak learning rate 0.125\n" in output and "other options" not in output
    assert load(one / "checkpoint.pt")["epoch"] == 4


def test_begun_in_mid_epoch_of_another_batch(typed, tmp_path):
    """As many images are left as in the file: half the steps of twice the batch."""
    typed("--output-dir", "run", status=143, env=EARLY)
    saved = load(tmp_path / "run" / "checkpoint.pt")
    assert saved["epoch"] == 0 and 0 < saved["step"] < 4
    output = typed("--resume", "run", "--global-batch", "32", status=143, env=EARLY)
    assert f" after 0 of 3 epochs and {(saved['step'] + 1) // 2} steps\n" in output


def test_an_option_of_one_script_has_its_default_in_another(typed, one, demo, tmp_path):
    words = [*command("imagenet_fsdp.py"), *RUN, "-b", "16", demo, "--output-dir", "one"]
    line = refused(run([*words, "--param-dtype", "bfloat16"], tmp_path, 2))
    assert "options: param-dtype (None, here bfloat16); give another --output-dir" in line
    assert "Resuming one/checkpoint.pt" in run([*words, "--epochs", "4"], tmp_path, 143, EARLY)
    run([*words[:-1], "two", "--param-dtype", "bfloat16"], tmp_path, 143, EARLY)
    line = refused(typed("--output-dir", "two", status=2))
    assert "options: param-dtype (bfloat16, here None); give another --output-dir" in line


def test_a_clock_that_is_behind(one, monkeypatch):
    """By less than a minute it is waited for: TensorBoard would drop what it has read before."""
    name = max(path.name for path in one.glob("*tfevents*"))
    began = int(name.split(".")[3])
    slept = mock.Mock()
    monkeypatch.setattr(time, "sleep", slept)
    for now, wait in (began + 1.5, 0), (began + 0.25, 0.75), (began - 50, 51):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        event_log.wait_for_clock(one)
        slept.assert_called_once_with(wait)
        slept.reset_mock()
    monkeypatch.setattr(time, "time", lambda: began - 300)
    with pytest.raises(errors.Fault, match="was started 301 s from now: set this clock"):
        event_log.wait_for_clock(one)
    event_log.wait_for_clock(one.parent)  # no log


def test_what_another_optimizer_s_groups_cannot_resume_begins_from_the_weights(typed, one):
    line = refused(typed("--norm-wd", "0", "--output-dir", "one", status=2))
    advice = re.search(r"or (--weights \S+) from its weights alone$", line)[1].split()
    typed("--norm-wd", "0", "--output-dir", "new", *advice, status=143, env=EARLY)


def test_base_lr_is_refused_with_the_value_that_is_the_same(typed, one, tmp_path):
    line = refused(typed("--output-dir", "one", "--base-lr", "0.125", "-b", "8", status=2))
    assert "peak learning rate (0.125, here 0.25), which --base-lr 0.0625 keeps" in line
    output = typed("--output-dir", "one", "--base-lr", "0.0625", "-b", "8", "--epochs", "4")
    assert "8 x 1 x 2 = global batch 16, the checkpoint's; --base-lr 0.0625 -> peak" in output


def test_other_data_are_refused(typed, one, demo, tmp_path):
    data = shutil.copytree(demo, tmp_path / "moved")
    words = [*command(ND), *RUN, "-b", "16", "--output-dir", "one", data]
    assert "nothing is left" in run(words, tmp_path), "where they are does not count"
    (data / "train" / "class3" / "0.jpg").unlink()
    line = refused(run(words, tmp_path, 2))
    assert re.search(r"options: data \(1280 images, \w{8}, here 1279 images, \w{8}\); ", line)
    shutil.copy(demo / "train" / "class3" / "0.jpg", data / "train" / "class3")
    next(data.glob("val/class3/*")).unlink()  # or bests of two sets would be compared
    line = refused(run(words, tmp_path, 2))
    assert re.search(r"options: val-data \(\d+ images, \w{8}, here \d+ images, \w{8}\); ", line)


def test_on_another_number_of_devices(trained, typed, demo, tmp_path):
    """The global batch stays the checkpoint's; where devices cannot share it, a line names the
    numbers that can."""
    folder = shutil.copytree(trained("two ranks"), tmp_path / "run")
    words = [*RUN, "-b", "8", "--epochs", "4", "--output-dir", "run", demo]
    line = refused(run([*command(DDP, 3), *words], tmp_path, 2))
    assert (
        "3 devices cannot share a global batch of 16; these numbers of devices can: 1, 2, 4" in line
    )
    output = run([*command(ND), *words], tmp_path)
    assert "8 x 1 x 2 = global batch 16, the checkpoint's; " in output
    shutil.copytree(trained("one device"), tmp_path / "more")
    typed("--output-dir", "more", "--epochs", "4")
    losses = scalars(folder, "Loss/step"), scalars(tmp_path / "more", "Loss/step")
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


# ----------------------------------------------------------------------------- --resume, going back


@pytest.mark.parametrize(
    ("path", "way"),
    [
        ("run/checkpoint-1.pt", "one device"),
        ("run", "one device"),
        pytest.param("run/checkpoint-1.pt", "two ranks", marks=SLOW),
        pytest.param("run", "two ranks", marks=SLOW),
    ],
)
def test_a_command_that_begins_from_a_file_resumes_when_typed_again(
    path, way, trained, typed, tmp_path
):
    """Also where that file is gone by then."""
    first = shutil.copytree(trained(way), tmp_path / "run")
    words = ["--resume", path, "--output-dir", "next", "--epochs", "5"]
    output = typed(*words, way=way, status=143, env=EARLY)
    assert f"Resuming {path.partition('/')[0]}/checkpoint" in output
    saved = load(tmp_path / "next" / "checkpoint.pt")
    shutil.rmtree(first)
    output = typed(*words, way=way)
    assert f"--resume {path} is ignored: next has checkpoints of its own\n" in output
    at = f"{saved['epoch']} of 5 epochs" + f" and {saved['step']} steps" * bool(saved["step"])
    assert f"Resuming next/checkpoint.pt after {at}\n" in output
    assert load(tmp_path / "next" / "checkpoint.pt")["epoch"] == 5


@pytest.mark.parametrize("start", ["next/first", "next/start.pt"])
def test_what_began_a_run_may_be_in_its_folder(start, one, typed, tmp_path):
    """A folder, or a file by a name of its own: typed again, it is not going back."""
    (tmp_path / "next").mkdir()
    first = (one, one / "checkpoint-1.pt")["start" in start]
    (shutil.copytree if first.is_dir() else shutil.copy)(first, tmp_path / start)
    words = ["--resume", start, "--output-dir", "next", "--epochs", "4"]
    assert f"Resuming {start}" in typed(*words, status=143, env=EARLY)
    assert "Resuming next/checkpoint.pt" in typed(*words)
    assert load(tmp_path / "next" / "checkpoint.pt")["epoch"] == 4
    words[1] = f"./{start}"  # which the run has not begun with, as far as it knows
    if first.is_dir():
        assert f"--resume {start} is ignored: next has checkpoints" in typed(*words)
    else:
        assert f"--resume {start}: next resumes from checkpoint.pt; " in refused(
            typed(*words, status=2)
        )


def test_folders_of_odd_names(typed):
    """TensorBoard takes the first for a file, and cannot write in the second; the third is named on
    one line."""
    words = "--epochs", "1", "--output-dir"
    typed(*words, "my_tfevents", status=143, env=EARLY)
    assert "Resuming my_tfevents/checkpoint.pt" in typed(*words, "my_tfevents")
    for _ in range(2):
        assert r"x\udcff" in refused(typed(*words, os.fsdecode(b"x\xff"), status=2))
    assert r"there is no folder a\nb" in refused(typed(*words, "a\nb/run", status=2))


def test_resume_alone_begins_in_a_new_folder(typed, one, tmp_path):
    """With the file's global batch, unless it is typed; the header says how to go on."""
    torch.save(load(one / "checkpoint.pt") | {"best_acc1": 99.5}, one / "checkpoint.pt")
    before = kept(one)
    words = ["--resume", "one", "--epochs", "4"]
    output = typed(*words, "-b", "8")
    assert "The same command again begins from one again, in another folder\n" in output
    (folder,) = re.findall(f"Logs and checkpoints of this run; .*: {TO_TYPE}\n", output)
    assert "8 x 1 x 2 = global batch 16, the checkpoint's; " in output
    assert "model_best.pt: top-1 99.5" not in output, "its best is its own"
    assert kept(one) == before
    assert f"--resume one is ignored: {folder} has" in typed(*words, "--output-dir", folder)
    output = typed(*words, "--global-batch", "32")
    assert "one/checkpoint.pt was trained with other options: global-batch (16, here 32)" in output
    assert " = global batch 32; " in output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--resume one/checkpoint-1.pt", "--resume one/checkpoint-1.pt: one resumes from checkpo"),
        ("--resume {one}/checkpoint-2.pt", "one resumes from checkpoint.pt; to go back, give anot"),
        ("--resume one/model_best.pt", "one resumes from checkpoint.pt; "),
        ("--start-epoch 1", "--start-epoch 1: one/checkpoint.pt is of epoch 3; to go back, give"),
        ("--start-epoch 0 --resume one", "and an older checkpoint as --resume"),
    ],
)
def test_going_back_needs_another_folder(words, why, typed, one):
    before = kept(one)
    words = words.format(one=one).split()
    assert why in refused(typed("--output-dir", "one", *words, status=2))
    assert kept(one) == before
    (one / "latest.pt").symlink_to("checkpoint.pt")
    for newest in (
        ["--resume", "one/checkpoint.pt"],
        ["--resume", one],
        ["--resume", "one/latest.pt"],
    ):
        assert "is ignored" not in typed("--output-dir", "one", *newest)


def test_going_back(typed, one, trained, tmp_path):
    """To the end of the first epoch, in another folder, by what the line says."""
    typed("--output-dir", "back", "--resume", "one/checkpoint-2.pt")
    for tag in "Loss/step", "Top1/val":
        whole, back = (scalars(folder, tag) for folder in (one, tmp_path / "back"))
        assert back == {step: whole[step] for step in back}
    words = ["--output-dir", "again", "--resume", "one", "--start-epoch", "1"]
    typed(*words, status=143, env={"SIGTERM_AT": "9"})
    assert "Resuming again/checkpoint.pt after 2 of 3 epochs\n" in typed(*words), "not from 1 again"
    assert list(scalars(tmp_path / "again", "Loss/step")) == list(range(4, 12))


# --------------------------------------------------------------------------- what a folder may hold


@pytest.mark.parametrize("way", ALIKE)
def test_damaged_checkpoints(way, trained, typed, tmp_path):
    """The newest intact one is taken; where none is, no run begins."""
    folder = shutil.copytree(trained(way), tmp_path / "run")
    words = ["--output-dir", "run", "--keep-every", "1", "--epochs", "4"]
    for path, how in (folder / "checkpoint.pt", 100), (folder / "checkpoint-1.pt", flip(5000)):
        damage(path, how)
    output = typed(*words, way=way)
    for name in "checkpoint.pt", "checkpoint-1.pt":
        assert f"--output-dir run skips run/{name} cannot be loaded: " in output
    # The best is newer than checkpoint-2.pt, unless it is of the first epoch.
    best = load(trained(way) / "model_best.pt")["epoch"]
    name = "model_best.pt" if best > 1 else "checkpoint-2.pt"
    assert f"Resuming run/{name} after {max(best, 1)} of 4 epochs\n" in output
    assert load(folder / "checkpoint.pt")["epoch"] == 4
    for path in folder.glob("*.pt"):
        damage(path, b"PK")
    before = kept(folder)
    line = refused(typed(*words, way=way, status=2))
    assert re.search(r"--output-dir run: none of its \d checkpoints is intact$", line)
    assert kept(folder) == before


@pytest.mark.parametrize("ema", [[], ["--ema", "0.5"]])
@pytest.mark.parametrize("name", ["epoch-10.pt", "model_best.pt"])
def test_a_folder_with_one_kind_of_checkpoint(name, ema, typed, tmp_path):
    """As somebody leaves it who has cleaned up: of epochs the newest by number, of the best under
    --ema what was trained."""
    more = ["--epochs", "11", "--steps-per-epoch", "1", "--keep-every", "1", *ema]
    more += ["--lr", "1e-9"] if "best" in name else []
    typed(*more, "--output-dir", "whole")
    typed(*more, "--output-dir", "cut", "--budget-hours", "1")
    cut = tmp_path / "cut"
    epoch = load(cut / name)["epoch"]
    for path in cut.glob("*"):
        if path.name not in (name, "epoch-9.pt", "epoch-2.pt") or "best" in name != path.name:
            path.unlink()
    output = typed(*more, "--output-dir", "cut")
    assert f"Resuming cut/{name} after {epoch} of 11 epochs\n" in output
    pair = [load(tmp_path / each / "checkpoint.pt") for each in ("whole", "cut")]
    for key in "state_dict", "optimizer", "ema":
        torch.testing.assert_close(pair[0][key], pair[1][key], rtol=0, atol=0)


@pytest.mark.parametrize("way", ALIKE)
def test_checkpoints_that_were_moved_away(way, trained, typed, tmp_path):
    """A log of finished epochs is somebody's: no run begins over it, and it is still shown."""
    folder = shutil.copytree(trained(way), tmp_path / "run")
    for path in folder.glob("*.pt"):
        path.unlink()
    before = kept(folder)
    line = refused(typed("--output-dir", "run", way=way, status=2))
    assert "--output-dir run has a log of 3 epochs, and no checkpoint: move it back, or" in line
    assert kept(folder) == before
    words = [sys.executable, ROOT / "make_results.py", "run", "--out", "page"]
    run(words, tmp_path)
    assert "| 3 | " in (tmp_path / "page" / "RESULTS.md").read_text()


@pytest.mark.parametrize("way", ALIKE)
def test_a_log_of_steps_alone(way, trained, typed, tmp_path):
    """Killed before the first epoch's checkpoint: the run begins, and TensorBoard shows one run."""
    words = ["--output-dir", "run", "--checkpoint-minutes", "0"]
    typed(*words, way=way, status=None, env={"SIGKILL_AT": "4"})
    folder = tmp_path / "run"
    (folder / "notes.tmp").write_text("mine")
    assert points(folder)["Loss/step"] and not [*folder.glob("*.pt")]
    assert "Resuming" not in typed(*words, way=way)
    assert (folder / "notes.tmp").read_text() == "mine"
    equal(folder, trained(way))


def test_the_log_of_another_program_is_left_alone(typed, tmp_path):
    log = torch.utils.tensorboard.SummaryWriter(tmp_path / "mine")
    log.add_scalar("mine", 1, 1)
    log.close()
    before = kept(tmp_path)
    line = refused(typed("--output-dir", "mine", status=2))
    assert "--output-dir mine has the log of something else, and no checkpoint: " in line
    assert {path: kept(tmp_path)[path] for path in before} == before


@pytest.mark.parametrize(
    ("folder", "status", "why"),
    [
        ("disk/run", 2, "--output-dir disk/run: there is no folder disk: mount its disk, or make"),
        ("link", 1, "/disk, which is missing: mount its disk"),
        ("link/run", 2, "there is no folder link: mount its disk"),
        ("file", 2, "--output-dir file: "),
        ("file/run", 2, "--output-dir file/run: "),
        ("a" * 300, 2, "File name too long"),
        ("runs/run", 143, ""),  # which is made where folders are that nobody named
        ("deep/run", 143, ""),
    ],
)
def test_only_the_folder_itself_is_made(folder, status, why, typed, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("disk")
    (tmp_path / "deep").mkdir()
    before = {*tmp_path.rglob("*")}
    output = typed("--output-dir", folder, status=status, env=EARLY)
    if why:
        assert why in refused(output) and {*tmp_path.rglob("*")} == before
    else:
        assert (tmp_path / folder / "checkpoint.pt").exists()


def test_a_start_that_fails_leaves_an_empty_folder(typed, tmp_path):
    line = refused(typed("--output-dir", "run", "--val-resize", "8", status=2))
    assert "--val-resize 8 is less than the crop" in line
    assert [path.name for path in (tmp_path / "run").iterdir()] in ([], [".lock"])
    typed("--output-dir", "run", status=143, env=EARLY)


def test_weights_are_not_read_once_there_is_a_checkpoint(one, typed, tmp_path):
    """Nor is their path compared; nor are published ones fetched, which would need a network."""
    shutil.copy(one / "model_best.pt", tmp_path / "before.pt")
    words = ["--output-dir", "run", "--weights"]
    output = typed(*words, "before.pt", status=143, env=EARLY)
    (tmp_path / "before.pt").unlink()
    output = typed(*words, "elsewhere.pt", "--epochs", "4")
    assert "Resuming run/checkpoint.pt" in output and "4/4 " in output
    fetched = ["--pretrained", "-a", "vit_b_16", "--epochs", "4"]
    for path in one.glob("*.pt"):  # as --pretrained leaves it
        saved = load(path)
        torch.save(saved | {"args": saved["args"] | {"pretrained": True}}, path)
    assert "4/4 " in typed("--output-dir", "one", *fetched, env={"TORCH_HOME": "/dev/null"})


# -------------------------------------------------------------------------------------- two at once


def test_a_run_waits_for_the_one_that_holds_its_folder(one, demo, tmp_path):
    """And looks at the folder after it."""
    newest = (one / "checkpoint.pt").read_bytes()
    (one / "checkpoint.pt").write_text("as that run had it when this one was started")
    words = [*command(ND), *RUN, "-b", "16", "--output-dir", "one", "--epochs", "4", demo]
    with locked(one):
        process = start(words, tmp_path)
        time.sleep(8)  # it has begun by then, or this says little
        (one / "checkpoint.pt").write_bytes(newest)
    output = process.communicate()[0]
    assert process.returncode == 0 and "skips" not in output
    assert "Resuming one/checkpoint.pt after 3 of 4 epochs\n" in output


@pytest.mark.parametrize("way", ALIKE)
def test_two_at_once_in_an_empty_folder(way, demo, tmp_path):
    """The second finds what the first has saved, and trains no step twice."""
    script, ranks, batch = WAYS[way]
    words = [*RUN, "--epochs", "1", "-b", batch, "--output-dir", "run", demo]  # within a minute
    both = [start([*command(script, ranks), *words], tmp_path) for _ in range(2)]
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sorted("nothing is left to do" in output for output in outputs) == [False, True]
    assert [step for step, _ in points(tmp_path / "run")["Loss/step"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("begun", [False, True])
def test_rank_0s_disk_counts(begun, trained, demo, tmp_path):
    """Where nodes have other disks: the folder of another rank is neither made nor read."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    if begun:
        shutil.copytree(trained("two ranks"), mine)
    else:
        shutil.copytree(trained("two ranks"), other)
    before = kept(tmp_path)
    words = [*RUN, "-b", "8", "--epochs", "4", demo, "--output-dir"]
    ranks = start_ranks(DDP, tmp_path, [*words, mine], [*words, other])
    outputs = [process.communicate()[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    assert ("Resuming" in outputs[0]) == begun
    assert load(mine / "checkpoint.pt")["epoch"] == 4
    assert other.exists() != begun
    assert begun or {path: kept(tmp_path)[path] for path in before} == before


# ----------------------------------------------------------------------------------------- evaluate


@pytest.mark.parametrize("way", ALIKE)
def test_evaluate(way, trained, typed, tmp_path):
    """A FILE, a FOLDER, or the run's newest; it makes, locks and writes nothing, and compares only
    what evaluation needs."""
    folder = shutil.copytree(trained(way), tmp_path / "run")
    shutil.copytree(folder, tmp_path / "older")
    for name in "checkpoint.pt", "checkpoint-1.pt":
        (tmp_path / "older" / name).unlink()
    shutil.move(tmp_path / "older" / "model_best.pt", tmp_path / "best.pt")
    before = kept(tmp_path)
    top1 = {epoch: f"top-1 {value:.3f} %" for epoch, value in scalars(folder, "Top1/val").items()}
    best = load(tmp_path / "best.pt")["epoch"]
    with locked(folder):
        for words, path, epoch in (
            ("--output-dir run", "run/checkpoint.pt", 3),
            ("--resume run", "run/checkpoint.pt", 3),
            ("--resume best.pt", "best.pt", best),
            ("--resume older --output-dir run", "older/checkpoint-2.pt", 1),
            ("--resume run/checkpoint-2.pt --output-dir run", "run/checkpoint-2.pt", 1),
            ("--output-dir run --weights best.pt", "run/checkpoint.pt", 3),
            ("--output-dir older --start-epoch 1", "older/checkpoint-2.pt", 1),
        ):
            more = ["--lr", "7", "--seed", "5", "-b", "10", "--global-batch", "20"]
            output = typed("-e", *words.split(), *more, way=way)
            assert f"Validating {path}, epoch {epoch}: " in output and "options" not in output
            assert f"validation: {top1[epoch]}" in output
    assert kept(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--output-dir none", "--output-dir none: No such file or directory"),
        ("--output-dir empty", "--output-dir empty has no checkpoint"),
        ("--resume empty", "--resume empty has no checkpoint"),
        ("--output-dir empty --weights one/checkpoint.pt", "--output-dir empty has no checkpoint"),
        ("", "--evaluate needs --resume, --output-dir, --weights or --pretrained"),
    ],
)
def test_evaluate_without_a_checkpoint(words, why, typed, one, tmp_path):
    (tmp_path / "empty").mkdir()
    before = {*tmp_path.rglob("*")}
    assert why in refused(typed("-e", *words.split(), status=2))
    assert {*tmp_path.rglob("*")} == before


def test_text_is_evaluated_and_resumed_alike(text, tmp_path):
    words = [*command("text_nd.py"), "--max-length", "32", "-b", "8", "--epochs", "2", text]
    words += ["--no-accel", "--hidden-size", "16", "--steps-per-epoch", "4"]
    assert "needs --resume, --output-dir, --weights or -a FOLDER" in the_line(
        run([*words, "-e"], tmp_path, 2)
    )
    words += ["--output-dir", "run"]
    run(words, tmp_path, 143, EARLY)
    assert "all epochs are done" in run(words, tmp_path)
    assert "nothing is left to do" in run(words, tmp_path)
    assert "peak learning rate" in refused(
        run([*words, "--beta2", "0.5", "--lr", "3"], tmp_path, 2)
    )
    loss = scalars(tmp_path / "run", "Loss/val")[2]
    assert f"{loss:.3f}" in run([*words, "-e"], tmp_path)


# ------------------------------------------------------------------------- memory, best, the log


FULL = 'raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")'


def without_memory(script, folder, images, first=0):
    """Writes a copy of a script that has no memory for more than so many images in a batch, from
    a step on; under --evaluate too."""
    text = (ROOT / script).read_text()
    for function, inputs in ("train_step", "target"), ("validate_step", "target"):
        line = re.search(rf"def {function}\(.*?\n( +)(with precision)", text, re.DOTALL)
        if function == "train_step":
            line = re.search(r"\n( +)(loss, measured = objective\()", text)
        full = f"if len({inputs}) > {images} and torch.initial_seed() not in EARLY:"
        at = line.start(2)
        text = text[:at] + f"{full}\n{line[1]}    {FULL}\n{line[1]}" + text[at:]
    seeds = f"[devices.seed_from(0, 0, step, rank) for step in range({first}) for rank in range(2)]"
    text = text.replace("def train_step(", "EARLY = []\n\n\ndef train_step(", 1)
    text = text.replace("\nif __name__", f"\nEARLY[:] = {seeds}\n\n\nif __name__", 1)
    copy_script(script, folder, text)


@pytest.mark.parametrize(
    ("first", "words", "named"),
    [
        pytest.param(0, "-b 8", "-b 4 --global-batch 16", marks=SLOW),
        pytest.param(2, "-b 8", "-b 4 --global-batch 16", marks=SLOW),
        pytest.param(2, "-b 8 --output-dir mine", "-b 4 --global-batch 16", marks=SLOW),
        (0, "-b 8 --output-dir mine", "-b 4 --global-batch 16"),
        pytest.param(2, "--global-batch 16 -b 99", "-b 4 --global-batch 16", marks=SLOW),
        pytest.param(
            2,
            "-b 8 --accumulation 2 --lr 1",
            "-b 4 --global-batch 32 --accumulation 1",
            marks=SLOW,
        ),
        (2, "-b 8 --base-lr 0.0625", "-b 4 --global-batch 16 --base-lr 0.03125"),
    ],
)
def test_the_advice_when_memory_is_out_goes_on_on_the_same_curve(
    first, words, named, trained, demo, tmp_path
):
    """Behind the same command, whatever was typed: from the last checkpoint, or from the start."""
    without_memory(DDP, tmp_path, 4, first)
    command = [sys.executable, "imagenet_ddp.py", "--nproc-per-node", "2", *RUN, *words.split()]
    command += ["--checkpoint-minutes", "1e-9", demo]  # after every step
    output = run(command, tmp_path, status=2)
    found = re.search(r"no memory at -b 8: add to the command: (.*): the run resumes on", output)
    advice, folder = shlex.split(found[1])[:-2], shlex.split(found[1])[-1]
    assert " ".join(advice) == named
    assert ("mine" in words) == (folder == "mine")
    output = run([*command, *shlex.split(found[1])], tmp_path)
    assert ("Resuming" in output) == (first > 0)
    assert "other options" not in output
    assert len([*(tmp_path / folder).parent.iterdir()]) < 4 or "mine" in words
    losses = scalars(tmp_path / folder, "Loss/step")
    assert len(losses) == 12
    if "--accumulation" not in words:
        whole = scalars(trained("one device"), "Loss/step")
        assert losses == pytest.approx(whole, rel=1e-5)


def test_the_advice_when_memory_is_out_in_validation_alone(one, demo, tmp_path):
    without_memory(ND, tmp_path, 4)
    words = [sys.executable, "imagenet_nd.py", *RUN, "-b", "8", "-e", "--output-dir", "one", demo]
    (named,) = re.findall(
        "no memory at -b 8: add (.*) to the command$", run(words, tmp_path, 2).strip()
    )
    assert named == "-b 4"
    assert "validation: " in run([*words, *named.split()], tmp_path)


def test_another_measure_replaces_the_best_with_a_line(typed, one):
    words, best = ["--output-dir", "one", "--epochs", "5"], load(one / "checkpoint.pt")["best_acc1"]
    line = "model_best.pt is the best top1; the best loss from here on replaces it\n"
    assert line in typed(*words, "--desired", "loss", "1e-9", status=143, env=EARLY)
    assert load(one / "model_best.pt")["monitor"] == "Top1"
    # No epoch was judged by it: typed again without it, nothing has happened.
    assert "replaces it" not in typed(*words, status=143, env=EARLY)
    saved = load(one / "checkpoint.pt")
    assert saved["monitor"] == "Top1" and saved["best_acc1"] == best > 0
    output = typed(*words, "--desired", "loss", "1e-9")
    assert line in output and "; model_best.pt: loss " in output
    assert load(one / "model_best.pt")["monitor"] == "Loss"
    assert "model_best.pt is the best loss; the best top1 from here on" in typed(*words)


def test_a_run_that_resumes_from_its_best_counts_no_epoch_twice(typed, tmp_path):
    """Its epoch is validated again, and is the best, not one without a better one."""
    words = ["--output-dir", "run", "--best", "loss", "--clip-grad", "1e-300"]
    typed(*words, "--epochs", "1")
    (tmp_path / "run" / "checkpoint.pt").unlink()
    output = typed(*words, "--patience", "1")
    assert "Resuming run/model_best.pt" in output
    assert "no better loss in 1 epochs: 2/3 epochs" in output


def test_later_epochs_of_the_log_are_named(one, typed):
    """Where only an older checkpoint is left."""
    for name in "checkpoint.pt", "checkpoint-1.pt", "model_best.pt":
        (one / name).unlink()
    output = typed("--output-dir", "one")
    assert "The log has later epochs: they are trained again\n" in output
    assert "Detected out of order" not in output, "a line of TensorBoard's"


def test_an_epoch_of_one_step_is_logged_once(typed, tmp_path):
    """Where TensorBoard's step of the next loss is the number of the last epoch."""
    words = ["--output-dir", "run", "--steps-per-epoch", "1", "--epochs"]
    typed(*words, "2")
    typed(*words, "3")
    logged = points(tmp_path / "run")
    for tag in "Lr", "Loss/val":
        assert [step for step, _ in logged[tag]] == [1, 2, 3], tag
    assert [step for step, _ in logged["Loss/step"]] == [0, 1, 2]


@pytest.mark.parametrize("way", ALIKE)
def test_a_resumed_epoch_is_logged_once_with_its_rate(way, typed, tmp_path):
    """Of a schedule that depends on --epochs: interrupted in validation, and when it was logged."""
    words = ["--output-dir", "run", "--lr-schedule", "cosine", "--epochs"]
    typed(*words, "2", way=way, status=143, env={"SIGTERM_AT": "7"})  # in validation
    assert "Lr" not in points(tmp_path / "run")
    typed(*words, "3", way=way)  # the first epoch with the rate that it had
    typed(*words, "4", way=way)
    logged = points(tmp_path / "run")
    for tag in "Lr", "Loss/train", "Loss/val", "Top1/val", "Throughput/train", "Time/val":
        assert [step for step, _ in logged[tag]] == [1, 2, 3, 4], tag
    assert [step for step, _ in logged["Loss/step"]] == list(range(16))

    def rate(epoch, epochs):  # in the middle of the last step
        return 0.125 * (1 + torch.cos(torch.tensor(torch.pi * (epoch - 0.125) / epochs)).item()) / 2

    rates = [rate(1, 2), rate(2, 3), rate(3, 3), rate(4, 4)]
    assert [value for _, value in logged["Lr"]] == pytest.approx(rates, rel=1e-5)
