"""A run is a folder: what --output-dir begins, resumes, refuses and leaves alone, sentence by
sentence of docs/reliability.md, and what is printed as advice, typed."""

import re
import shlex
import shutil
import sys

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
)

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
    # Killed before it has saved anything, it is not over.
    output = typed("--output-dir", "one", "--epochs", "4", status=-9, env={"SIGKILL_AT": "1"})
    assert "--epochs 4, before 3: the learning rate follows the new one\n" in output
    assert "Resuming one/checkpoint.pt after 3 of 4 epochs\n" in output
    assert "all epochs are done" in typed("--output-dir", "one", "--epochs", "4")
    assert record(one, "end")["epochs"] == 4
    before = kept(one)
    line = "one: 4 epochs are done; to train longer, raise --epochs 2: nothing is left to do\n"
    assert typed("--output-dir", "one", "--epochs", "2") == line
    assert kept(one) == before


@pytest.mark.parametrize(
    "ends", [["--desired-acc", "0.001"], ["--patience", "1", "--clip-grad", "1e-300"]]
)
def test_what_ended_early_says_what_to_type_to_train_on(ends, typed, tmp_path):
    output = typed(*ends)
    (folder,) = set(re.findall(f"{TO_TYPE}\n", output))
    last = output.splitlines()[-1]
    assert last.startswith(f"To train longer, change {ends[0][:9]}")  # the option is named
    if ends[0] == "--desired-acc":
        assert "nothing is left to do" in typed(*ends, "--output-dir", folder)
        goes_on = ["--desired-acc", "0.9999", "--output-dir", folder]
        assert f"Resuming {folder}/checkpoint.pt" in typed(*goes_on, status=143, env=EARLY)
    assert [*(tmp_path / "runs").iterdir()] == [tmp_path / folder]


@pytest.mark.parametrize("way", ALIKE)
def test_without_a_folder_a_line_says_how_to_resume(way, trained, typed, tmp_path):
    """Where the folder is named, and where it was saved."""
    output = typed(way=way, status=143, env=EARLY)
    name = r"runs/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\S+_vit_b_16_gpux\d_b\d+_cpu0_optfloat32"
    how = f"; to resume it, add to the command: --output-dir ({name})\n"
    (header,) = re.findall(f"^Logs and checkpoints of this run{how}", output, re.MULTILINE)
    assert re.findall(f", saved{how}", output) == [header]
    again = typed(way=way, status=143, env=EARLY)
    assert "Resuming" not in again and len([*(tmp_path / "runs").iterdir()]) == 2, "a new run"
    typed("--output-dir", header, way=way)
    equal(tmp_path / header, trained(way))
    assert len([*(tmp_path / "runs").iterdir()]) == 2


def test_ranks_that_a_launcher_restarts_need_a_folder(typed, one, demo, complaint_here):
    """Not under --evaluate, nor where it never restarts them."""
    env = {"TORCHELASTIC_MAX_RESTARTS": "3"}
    for more in env, {"TORCHELASTIC_RESTART_COUNT": "1"}:
        line = complaint_here(ND, *RUN, "-b", "16", demo, **more)
        assert "give --output-dir FOLDER" in line
    assert "nothing is left" in typed("--output-dir", "one", env=env)
    assert "validation: " in typed("-e", "--resume", "one", env=env)
    typed(status=143, env=EARLY | {"TORCHELASTIC_MAX_RESTARTS": "0"})


@pytest.mark.slow
@pytest.mark.parametrize("folder", [[], ["--output-dir", "run"]], ids=["none", "run"])
def test_torchrun_with_restarts(folder, demo, tmp_path):
    """Killed in its second epoch by a fault of a rank, torchrun starts the ranks again."""
    torchrun = [command("imagenet_exchange.py", 2)[0], "--standalone", "--nproc_per_node=2"]
    words = [*torchrun, "--max-restarts=1", ROOT / DDP, *RUN, "-b", "8", demo, *folder]
    if not folder:
        assert "give --output-dir FOLDER" in run(words, tmp_path, 1)
        assert not [*tmp_path.iterdir()]
        return
    output = run(words, tmp_path, 1, {"SIGKILL_AT": "12"})  # both ranks, in both starts
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


DEFINE = "--seed 1 --wd 0.5 --steps-per-epoch 5 --global-batch 32 --lr-scaling none"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            f"{DEFINE} --norm-wd 0 --amp bfloat16",
            {
                "seed (0, here 1)",
                "wd (0.0001, here 0.5)",
                "steps-per-epoch (4, here 5)",
                "norm-wd (None, here 0.0)",
                "precision (float32, here bfloat16)",
                "global-batch (16, here 32)",
                "peak learning rate (0.125, here 2.0)",
            },
        ),
        ("-a vit_b_32", {"arch (vit_b_16, here vit_b_32)"}),  # from which none can begin
    ],
)
def test_what_defines_a_run(words, named, typed, one):
    line = refused(typed("--output-dir", "one", *words.split(), status=2))
    differ, advice = re.search("other options: (.*); give another --output-dir(.*)$", line).groups()
    assert {*re.findall(r"[\w -]+? \([^)]*\)", differ.replace("), ", ")"))} == named
    assert advice.startswith(", with --resume one to begin there") == ("-a" not in words.split())


@pytest.mark.parametrize(
    "words",
    [
        "-b 4 --accumulation 3",  # the checkpoint's global batch counts
        "-b 64 --lr 0.125 --lr-scaling none",
        "--global-batch 16 -b 2 -j 1 --checkpoint-minutes 0 --timeout 99 --deterministic "
        "--keep-every 1 -p 2 --best loss",
    ],
)
def test_what_may_change_when_a_run_is_resumed(words, typed, one):
    """The global batch and the peak rate are what was trained, however they are typed."""
    words = ["--output-dir", "one", "--epochs", "4", *words.split()]
    output = typed(*words, status=143, env=EARLY)
    whose = "" if "--global-batch" in words else ", the checkpoint's"
    assert f" = global batch 16{whose}; " in output
    assert "-> peak learning rate 0.125\n" in output and "other options" not in output
    assert load(one / "checkpoint.pt")["epoch"] == 3 and "Resuming one/checkpoint.pt" in output


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
    run([*words[:-1], "two", "--param-dtype", "bfloat16"], tmp_path, 143, EARLY)
    line = refused(typed("--output-dir", "two", status=2))
    assert "options: param-dtype (bfloat16, here None); give another --output-dir" in line


def test_base_lr_is_refused_with_the_value_that_is_the_same(typed, one, tmp_path):
    line = refused(typed("--output-dir", "one", "--base-lr", "0.125", "-b", "8", status=2))
    assert "peak learning rate (0.125, here 0.25), which --base-lr 0.0625 keeps" in line
    words = "--output-dir one --base-lr 0.0625 -b 8 --epochs 4".split()
    output = typed(*words, status=143, env=EARLY)
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
    output = typed(*words, way=way, status=143, env=EARLY)
    assert f"--resume {path} is ignored: next has checkpoints of its own\n" in output
    at = f"{saved['epoch']} of 5 epochs" + f" and {saved['step']} steps" * bool(saved["step"])
    assert f"Resuming next/checkpoint.pt after {at}\n" in output


def test_what_began_a_run_may_be_in_its_folder(one, typed, tmp_path):
    """By a name of its own: typed again, it is not going back."""
    (tmp_path / "next").mkdir()
    shutil.copy(one / "checkpoint-1.pt", tmp_path / "next" / "start.pt")
    words = ["--resume", "next/start.pt", "--output-dir", "next", "--epochs", "4"]
    assert "Resuming next/start.pt" in typed(*words, status=143, env=EARLY)
    assert "Resuming next/checkpoint.pt" in typed(*words, status=143, env=EARLY)


def test_resume_alone_begins_in_a_new_folder(typed, one, tmp_path):
    """With the file's global batch, unless it is typed; the header says how to go on."""
    torch.save(load(one / "checkpoint.pt") | {"best_acc1": 99.5}, one / "checkpoint.pt")
    before = kept(one)
    words = ["--resume", "one", "--epochs", "4"]
    output = typed(*words, "-b", "8")
    assert "The same command again begins from one again, in another folder\n" in output
    assert re.search(f"Logs and checkpoints of this run; .*: {TO_TYPE}\n", output)
    assert "8 x 1 x 2 = global batch 16, the checkpoint's; " in output
    assert "model_best.pt: top-1 99.5" not in output, "its best is its own"
    assert kept(one) == before
    output = typed(*words, "--global-batch", "32", status=143, env=EARLY)
    assert "one/checkpoint.pt was trained with other options: global-batch (16, here 32)" in output
    assert " = global batch 32; " in output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--resume one/checkpoint-1.pt", "--resume one/checkpoint-1.pt: one resumes from checkpo"),
        ("--start-epoch 1", "--start-epoch 1: one/checkpoint.pt is of epoch 3; to go back, give"),
    ],
)
def test_going_back_needs_another_folder(words, why, typed, one):
    before = kept(one)
    assert why in refused(typed("--output-dir", "one", *words.split(), status=2))
    assert kept(one) == before


def test_going_back(typed, one, trained, tmp_path):
    """To the end of the first epoch, in another folder, by what the line says."""
    typed("--output-dir", "back", "--resume", "one/checkpoint-2.pt")
    for tag in "Loss/step", "Top1/val":
        whole, back = (scalars(folder, tag) for folder in (one, tmp_path / "back"))
        assert back == {step: whole[step] for step in back}
    words = ["--output-dir", "again", "--resume", "one", "--start-epoch", "1"]
    typed(*words, status=143, env={"SIGTERM_AT": "7"})
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


def test_a_folder_with_the_best_alone(typed, tmp_path):
    """As somebody leaves it who has cleaned up: under --ema, what was trained goes on."""
    more = "--epochs 3 --steps-per-epoch 1 --ema 0.5 --lr 1e-9 --output-dir".split()
    typed(*more, "whole")
    typed(*more, "cut", "--budget-hours", "1")
    for path in tmp_path.glob("cut/*"):
        if path.name != "model_best.pt":
            path.unlink()
    epoch = load(tmp_path / "cut" / "model_best.pt")["epoch"]
    output = typed(*more, "cut")
    assert f"Resuming cut/model_best.pt after {epoch} of 3 epochs\n" in output
    pair = [load(tmp_path / each / "checkpoint.pt") for each in ("whole", "cut")]
    for key in "state_dict", "optimizer", "ema":
        torch.testing.assert_close(pair[0][key], pair[1][key], rtol=0, atol=0)


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


def test_only_the_folder_itself_is_made(typed, tmp_path):
    line = refused(typed("--output-dir", "disk/run", status=2))
    assert "--output-dir disk/run: there is no folder disk: mount its disk, or make it" in line
    assert not [*tmp_path.iterdir()]


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
    output = typed(*words, "elsewhere.pt", "--epochs", "4", status=143, env=EARLY)
    assert "Resuming run/checkpoint.pt" in output
    fetched = ["--pretrained", "-a", "vit_b_16", "--epochs", "4"]
    for path in one.glob("*.pt"):  # as --pretrained leaves it
        saved = load(path)
        torch.save(saved | {"args": saved["args"] | {"pretrained": True}}, path)
    env = EARLY | {"TORCH_HOME": "/dev/null"}
    output = typed("--output-dir", "one", *fetched, status=143, env=env)
    assert "Resuming one/checkpoint.pt" in output


# -------------------------------------------------------------------------------------- two at once


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


@pytest.mark.parametrize(("begun", "epochs"), [(False, 1), (True, 4)])
def test_rank_0s_disk_counts(begun, epochs, trained, demo, tmp_path):
    """Where nodes have other disks: the folder of another rank is neither made nor read."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    if begun:
        shutil.copytree(trained("two ranks"), mine)
    else:
        shutil.copytree(trained("two ranks"), other)
    before = kept(tmp_path)
    words = [*RUN, "-b", "8", "--epochs", epochs, demo, "--output-dir"]
    ranks = start_ranks(DDP, tmp_path, [*words, mine], [*words, other])
    outputs = [process.communicate()[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    assert ("Resuming" in outputs[0]) == begun
    assert load(mine / "checkpoint.pt")["epoch"] == epochs
    assert other.exists() != begun
    assert begun or {path: kept(tmp_path)[path] for path in before} == before


# ----------------------------------------------------------------------------------------- evaluate


@pytest.mark.parametrize("way", ALIKE)
def test_evaluate(way, trained, typed, tmp_path):
    """A FOLDER, or the run's newest; it makes, locks and writes nothing, and compares only what
    evaluation needs."""
    folder = shutil.copytree(trained(way), tmp_path / "run")
    shutil.copytree(folder, tmp_path / "older")
    for name in "checkpoint.pt", "checkpoint-1.pt":
        (tmp_path / "older" / name).unlink()
    shutil.copy(tmp_path / "older" / "checkpoint-2.pt", tmp_path / "older" / "model_best.pt")
    before = kept(tmp_path)
    top1 = {epoch: f"top-1 {value:.3f} %" for epoch, value in scalars(folder, "Top1/val").items()}
    with locked(folder):
        for words, path, epoch in (
            ("--output-dir run --weights older/model_best.pt", "run/checkpoint.pt", 3),
            ("--resume older --output-dir run --start-epoch 1", "older/checkpoint-2.pt", 1),
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
        ("", "--evaluate needs --resume, --output-dir, --weights or --pretrained"),
    ],
)
def test_evaluate_without_a_checkpoint(words, why, complaint_here, demo, tmp_path):
    assert why in complaint_here(ND, *RUN, "-b", "16", demo, "-e", *words.split())
    assert not [*tmp_path.iterdir()]


def test_text_is_evaluated_and_resumed_alike(text, tmp_path, complaint_here):
    words = ["--max-length", "32", "-b", "8", "--epochs", "2", text]
    words += ["--no-accel", "--hidden-size", "16", "--steps-per-epoch", "4"]
    line = complaint_here("text_nd.py", *words, "-e")
    assert "needs --resume, --output-dir, --weights or -a FOLDER" in line
    words = [*command("text_nd.py"), *words, "--output-dir", "run"]
    run(words, tmp_path, 143, EARLY)
    assert "all epochs are done" in run(words, tmp_path)
    assert "peak learning rate" in refused(
        run([*words, "--beta2", "0.5", "--lr", "3"], tmp_path, 2)
    )
    loss = scalars(tmp_path / "run", "Loss/val")[2]
    assert f"{loss:.3f}" in run([*words, "-e"], tmp_path)


# ------------------------------------------------------------------------- memory, best, the log


FULL = 'raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")'


def without_memory(script, folder, images, first=0):
    """Writes a copy of a script that has no memory for more than so many images in a batch, from
    a step on; under --evaluate too, but not under --checkpoint-activations."""
    text = (ROOT / script).read_text()
    for function, inputs in ("train_step", "target"), ("validate_step", "target"):
        line = re.search(rf"def {function}\(.*?\n( +)(with precision)", text, re.DOTALL)
        if function == "train_step":
            line = re.search(r"\n( +)(loss, measured = objective\()", text)
        full = f"if len({inputs}) > {images} and torch.initial_seed() not in EARLY"
        full += " and not args.checkpoint_activations:"
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
    full = run(command, tmp_path, status=2)
    found = re.search(r"no memory at -b 8: add to the command: (.*?): the run resumes on", full)
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
    if "mine" not in words:  # the other way, from the same start
        (named,) = re.findall("; or add to the command: (.*): the run resumes on", full)
        shutil.rmtree(tmp_path / folder)
        run([*command, *shlex.split(named)], tmp_path)
        assert scalars(tmp_path / folder, "Loss/step") == pytest.approx(losses, rel=1e-5)


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
