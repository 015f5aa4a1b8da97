"""The scripts as users run them: resuming, evaluating, logs, stopping. Few starts, many checks."""

import gc
import importlib
import json
import os
import re
import shutil
import time
import types
import weakref
from pathlib import Path
from unittest import mock

import pytest
import torch
from conftest import (
    EARLY,
    ROOT,
    SCRIPTS,
    TEXT_SCRIPTS,
    THEN_RUN,
    checkpoint,
    command,
    events,
    load,
    needs_bfloat16,
    needs_horovod,
    points,
    record,
    run,
    scalars,
    the_line,
    the_run,
    write_images,
)
from tensorboard.plugins.custom_scalar import layout_pb2

import imagenet_nd as nd
import imagenet_pipeline as pipeline
import text_nd as text
from trainparts import batch_plan, devices, endings, errors, progress_meter, safe_files
from trainparts.runs import state_trees

# ViT has neither BatchNorm, whose statistics are each device's own by design, nor dropout.
VIT = ["-a", "vit_b_16", "--image-size", "32", "--no-accel", "-j", "0"]
# Three epochs of a run that others are compared with. The learning rate depends on no epoch's end.
RUN = [*VIT, *"--epochs 3 --steps-per-epoch 4 -p 1 --lr 2 --warmup-epochs 0".split()]
ND = "imagenet_nd.py"
EACH = [
    pytest.param(script, marks=needs_horovod if "horovod" in script else ()) for script in SCRIPTS
]


def level(script):
    """Returns the options for float32 throughout."""
    return ["--opt-level", "O0"] if "apex" in script else []


def one_data_rank(script):
    """Returns the words that start `script` with one data rank, of two stages in a pipeline."""
    return command(script, 2 if "pipeline" in script else 1)


@pytest.fixture(scope="module")
def whole(demo, tmp_path_factory):
    """The folder in which imagenet_nd.py trained three epochs, and what it printed."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run([*command(ND), *RUN, "-b", "16", demo], folder)


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of that run's folder, in runs/."""
    return the_run(shutil.copytree(whole[0] / "runs", tmp_path / "runs"))


@pytest.fixture
def again(demo, tmp_path):
    """again(*words, status=0, env=()): imagenet_nd.py with the same and more options."""

    def train(*words, **more):
        return run([*command(ND), *RUN, "-b", "16", demo, *words], tmp_path, **more)

    return train


# -------------------------------------------------------------------------------------- the log


def test_log_and_output_agree(whole, demo):
    folder, output = whole
    logs = the_run(folder / "runs")
    name = r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_.+_vit_b_16_gpux1_b16_cpu0_optfloat32"
    assert re.fullmatch(name, logs.name)
    files = {path.name for path in logs.iterdir() if "tfevents" not in path.name}
    modes = {(logs / name).stat().st_mode for name in (".lock", "checkpoint.pt")}
    assert len(modes) == 1, "the lock is a file as others are"
    names = "checkpoint.pt checkpoint-1.pt checkpoint-2.pt model_best.pt"
    assert files - {".lock"} == {*names.split()}
    assert [load(logs / name)["epoch"] for name in names.split()[:3]] == [3, 2, 1]
    assert record(logs, "about")["packages"]["pytest"] == pytest.__version__
    log, logged = events(logs), points(logs)
    both = {f"{tag}/{split}" for tag in TAGS for split in ("train", "val")}
    per_epoch = both | {"Lr", "Data/wait", "Steps/skipped", "IO/read_MBps", "IO/read_iops"}
    network = not os.path.exists("/sys/class/infiniband")  # which the kernel does not count
    if network:
        per_epoch |= {"Network/sent_MB_per_step", "Network/received_MB_per_step"}
    assert per_epoch | {"Loss/step"} <= logged.keys()
    values = {tag: [value for _, value in logged[tag]] for tag in logged}
    for tag in per_epoch:
        assert [step for step, _ in logged[tag]] == [1, 2, 3], tag
    steps = values["Loss/step"]
    assert len(steps) == 12
    for epoch in range(3):
        of_epoch = steps[4 * epoch : 4 * epoch + 4]
        assert values["Loss/train"][epoch] == pytest.approx(sum(of_epoch) / 4, rel=1e-5)
        # images/s x seconds per step = images per step
        images = values["Throughput/train"][epoch] * values["Time/train"][epoch]
        assert images == pytest.approx(16, rel=1e-4)
        assert 0 <= values["Data/wait"][epoch] <= 1
        assert values["IO/read_MBps"][epoch] > 0 and values["IO/read_iops"][epoch] > 0
        assert not network or values["Network/sent_MB_per_step"][epoch] >= 0
        assert values["Top1/val"][epoch] <= values["Top5/val"][epoch] <= 100
        # 40 images: each counted once.
        correct = 0.4 * values["Top1/val"][epoch]
        assert correct == pytest.approx(round(correct), abs=1e-4)
        line = rf"^{epoch + 1}/3  train loss {values['Loss/train'][epoch]:.2f}  val "
        line += rf"top-1 {values['Top1/val'][epoch]:.1f} %, top-5 {values['Top5/val'][epoch]:.1f} %"
        line += rf", loss {values['Loss/val'][epoch]:.3f}"
        line += r"  [\d,]+ images/s  left \d:\d\d:\d\d$"
        assert re.search(line, output, re.MULTILINE), line
        for number, loss in enumerate(of_epoch, 1):
            line = rf"^{epoch + 1}/3  step {number}  loss {loss:.4f}  mean: top-1 ([\d.]+) %, "
            line += r"top-5 ([\d.]+) %, loss [\d.]+  [\d,]+ images/s  wait \d+ %$"
            found = re.search(line, output, re.MULTILINE)
            assert found, line
        # The last step's are the whole epoch's.
        percent = [f"{values[f'{tag}/train'][epoch]:.1f}" for tag in ("Top1", "Top5")]
        assert [*found.groups()] == percent and percent[0] != percent[1]
    assert values["Steps/skipped"] == [0, 0, 0]
    best = {tag: max(values[f"{tag}/val"]) for tag in ("Top1", "Top5")}
    last = {tag: values[f"{tag}/val"][-1] for tag in ("Top1", "Top5", "Loss")}
    line = f"top-1 {last['Top1']:.3f} %, top-5 {last['Top5']:.3f} %, loss {last['Loss']:.5f}; "
    line += f"model_best.pt: top-1 {best['Top1']:.3f} %\n"
    assert re.search(r"^all epochs are done: 3/3 epochs in 0:", output, re.MULTILINE)
    assert f"(h:m:s); {line}" in output
    header = "images x devices x accumulated = 16 x 1 x 1 = global batch 16; --lr 2.0 linear"
    assert f"\n{header} -> peak learning rate 0.125\n" in output
    about, end = record(logs, "about"), record(logs, "end")
    weights = torch.load(logs / "checkpoint.pt", weights_only=True)["state_dict"].values()
    assert about["gradient_bytes"] == sum(weight.nbytes for weight in weights), "ViT has no buffers"
    assert about["options"]["batch_size"] == about["global_batch"] == 16
    assert about["torch"] == torch.__version__
    assert about["command"].endswith(f" -b 16 {demo}"), "one line, to be copied"
    assert about["data"] == str(demo)
    (script,) = log.Tensors("script/text_summary")
    assert (ROOT / ND).read_text() in script.tensor_proto.string_val[0].decode()
    assert (end["reason"], end["epochs"]) == ("all epochs are done", 3)
    best["Loss"] = min(values["Loss/val"])
    for tag, value in best.items():
        assert end[f"best_{tag.lower()}"] == pytest.approx(value, rel=1e-6)
    texts = {f"{name}/text_summary" for name in ("about", "script", "end")}
    assert {tag for tag in log.Tags()["tensors"] if "text" in tag} == texts


TAGS = "Top1 Top5 Loss Throughput Time".split()


def test_tensorboard_has_training_and_validation_in_one_chart(whole):
    """As its own plugin reads the log."""
    log = events(the_run(whole[0] / "runs"))
    layout = layout_pb2.Layout.FromString(
        log.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    )
    charts = [[*chart.multiline.tag] for group in layout.category for chart in group.chart]
    assert charts == [[f"{tag}/train", f"{tag}/val"] for tag in TAGS]


def test_checkpoint_says_what_it_needs_to_be_used_without_the_script(whole):
    saved = load(checkpoint(whole[0] / "runs"))
    assert saved["arch"] == "vit_b_16"
    assert saved["classes"] == sorted(f"class{number}" for number in range(10))
    assert saved["image_size"] == 32
    assert saved["mean"] == pytest.approx([0.485, 0.456, 0.406])
    assert saved["std"] == pytest.approx([0.229, 0.224, 0.225])
    assert (saved["epoch"], saved["step"]) == (3, 0)
    top1 = scalars(whole[0] / "runs", "Top1/val")
    assert saved["best_acc1"] == pytest.approx(max(top1[1], top1[2]), rel=1e-6), "saved before"
    best = load(checkpoint(whole[0] / "runs", "model_best.pt"))
    assert best["epoch"] == max(top1, key=lambda epoch: (top1[epoch], epoch))
    assert best["best_acc1"] == pytest.approx(max(top1.values()), rel=1e-6)
    assert not [name for name in saved["state_dict"] if name.startswith("module.")]


# --------------------------------------------------------------------------------------- resuming


def test_one_run_through_several_scripts(whole, demo, tmp_path):
    """Begun by two ranks, ended by SIGTERM in mid-epoch, gone on with by one rank in the same
    folder, then by another script: the curve is that of one uninterrupted run."""
    words = [*RUN, "-b", "8", "--output-dir", "first", demo]
    output = run([*command("imagenet_ddp.py", 2), *words], tmp_path, 143, EARLY)
    first = tmp_path / "first"
    marker = json.loads((first / "PREEMPTED").read_text())
    assert (marker["why"], marker["epoch"]) == ("SIGTERM", 0)
    assert 0 < marker["step"] < 4
    assert re.search(rf"stopped by SIGTERM.* step {marker['step']}\b", output)
    # One device keeps the global batch, accumulated of two. --desired-acc ends it with its epoch.
    output = run([*command(ND), *words, "--desired-acc", "0.001"], tmp_path)
    assert f" after 0 of 3 epochs and {marker['step']} steps\n" in output
    assert "images x devices x accumulated = 8 x 1 x 2 = global batch 16" in output
    assert "target reached: " in output
    third = [*command("imagenet_ddp_apex.py"), *RUN, *level("apex"), "-b", "16"]
    third += ["--resume", first / "checkpoint.pt", "--output-dir", "third", demo]
    output = run(third, tmp_path)
    assert f"Resuming {first / 'checkpoint.pt'} after 1 of 3 epochs\n" in output
    assert "precision (float32, here O0)" in output, "options that differ are printed"
    losses = scalars(first, "Loss/step") | scalars(tmp_path / "third", "Loss/step")
    assert losses == pytest.approx(scalars(whole[0] / "runs", "Loss/step"), rel=1e-5)
    ends = [load(checkpoint(logs)) for logs in (whole[0] / "runs", tmp_path / "third")]
    assert ends[0]["best_acc1"] == ends[1]["best_acc1"]
    # The interrupted epoch's means are over all of its images.
    means = [scalars(each, "Loss/train")[1] for each in (first, whole[0] / "runs")]
    assert means[0] == pytest.approx(means[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("script", EACH)
def test_checkpoints_go_from_any_script_to_any_other(script, whole, demo, tmp_path):
    words = [*RUN, "-b", "16", demo, "--output-dir"]
    end = ["--desired-acc", "0.001"]
    run([*one_data_rank(script), *level(script), *words, "first", *end], tmp_path)
    expected = scalars(whole[0] / "runs", "Loss/step")
    for other in (param.values[0] for param in EACH):
        if other == "imagenet_horovod.py" and needs_horovod.args[0]:
            continue
        resume = ["--resume", checkpoint(tmp_path / "first")]
        run([*one_data_rank(other), *level(other), *words, other, *resume], tmp_path)
        losses = scalars(tmp_path / other, "Loss/step")
        assert list(losses) == list(range(4, 12)), "no step twice"
        for step, loss in losses.items():
            assert loss == pytest.approx(expected[step], rel=1e-5), (other, step)


def test_a_folder_is_named_after_what_is_trained(monkeypatch):
    here = types.SimpleNamespace(args=None, options={"precision": "float32"})
    here.place = nd.Place(torch.device("cpu"))
    here.data = types.SimpleNamespace(device_batch=16, workers=0)
    monkeypatch.setattr(nd, "about_model", lambda args, data: {"arch": "timm/vit"})
    assert nd.name_of(here).endswith("_timm-vit_gpux1_b16_cpu0_optfloat32")


def test_a_signal_while_evaluating(copied, again):
    output = again("-b", "4", "-e", "--output-dir", copied, status=143, env=EARLY)
    assert "stopped by SIGTERM; nothing is saved" in output


def test_resume_file_takes_the_command_lines_rates(whole, again, tmp_path):
    """Peers take the file's learning rate for the typed one."""
    saved = load(checkpoint(whole[0] / "runs", "checkpoint-2.pt"))
    assert saved["epoch"] == 1
    torch.save(saved, tmp_path / "edited.pt")
    rates = ["--lr", "0.8", "--momentum", "0.5", "--lr-schedule", "cosine", "--start-epoch", "2"]
    output = again(*rates, "--resume", tmp_path / "edited.pt")
    for option in "rate (0.125, here 0.05)", "lr-schedule (step, here cosine)", "momentum (0.9, h":
        assert option in output
    # 0.8 x 16 / 256, in the last step of the last of three epochs.
    rate = 0.05 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * (2 + 3.5 / 4) / 3)).item())
    assert scalars(tmp_path / "runs", "Lr") == {3: pytest.approx(rate, rel=1e-4)}
    after = load(checkpoint(tmp_path / "runs"))
    assert after["epoch"] == 3
    assert after["optimizer"]["param_groups"][0]["momentum"] == 0.5


def half_an_epoch(step, seconds):
    """Returns what a checkpoint holds that was saved at a step, of 32 images and a loss of 100."""
    sums = dict.fromkeys(nd.SUMS, 32.0) | {"loss": 100.0, "top1": 8.0, "top5": 16.0}
    sums |= {"skipped": 0.0, "waited": 0.25 * seconds}
    partial = {"sums": sums, "seconds": seconds, "traffic": [1e6 * seconds, 8.0, 0, 0]}
    return {"epoch": 1, "step": step, "partial": partial}


def test_counters_go_on_in_mid_epoch(copied, again):
    """Sums, seconds, waits, traffic, the best: of a checkpoint whose own are unlike any of this
    run. Throughput and IO are those of the epoch's whole time."""
    for path in *copied.glob("*tfevents*"), copied / "model_best.pt":
        path.unlink()
    saved = load(copied / "checkpoint-2.pt") | half_an_epoch(1, 3e6)
    saved |= {"seconds": 7.2e6, "best_acc1": 0.0, "best_acc5": 101.0}
    saved |= {"best_loss": 0.001, "monitor": "Loss"}
    torch.save(saved, copied / "checkpoint.pt")
    words = "--epochs 2 --best loss --budget-hours 2500 --output-dir".split()
    assert "all epochs are done" in again(*words, copied), "2,000 of 2,500 hours are over"
    logged = points(copied)
    values = {tag: logged[tag][-1][1] for tag in logged}
    assert [step for step, _ in logged["Loss/step"]] == [5, 6, 7]
    steps = [loss for _, loss in logged["Loss/step"]]
    assert values["Loss/train"] == pytest.approx((100 + 16 * sum(steps)) / 80, rel=1e-5)
    assert values["Throughput/train"] == pytest.approx(80 / 3e6, rel=1e-2)
    assert values["Time/train"] == pytest.approx(3e6 / 4, rel=1e-2)
    assert values["IO/read_MBps"] == pytest.approx(1, rel=1e-2)
    assert values["Data/wait"] == pytest.approx(0.25, rel=1e-2)
    end = record(copied, "end")
    assert end["seconds"] > 7.2e6 and end["epochs"] == 2 and end["best_loss"] == 0.001
    assert end["best_top1"] == pytest.approx(values["Top1/val"]) and end["best_top5"] == 101
    assert load(copied / "checkpoint.pt")["seconds"] > 7.2e6
    assert not (copied / "model_best.pt").exists()


def test_an_epoch_that_resumes_after_its_last_step_keeps_its_time(copied, again):
    """Of a checkpoint whose sums and seconds are unlike any of this run."""
    for path in *copied.glob("*tfevents*"), copied / "model_best.pt":
        path.unlink()
    torch.save(load(copied / "checkpoint-2.pt") | half_an_epoch(0, 1e-6), copied / "checkpoint.pt")
    again("--epochs", "1", "--output-dir", copied)
    logged = points(copied)
    assert logged["Throughput/train"] == [(1, pytest.approx(32e6, rel=1e-3))]
    assert logged["Loss/train"] == [(1, pytest.approx(100 / 32, rel=1e-5))]


def test_a_spent_budget_ends_in_mid_epoch(whole, again, tmp_path):
    """The epoch under way is validated; lines have two decimals of it, the log has all. Started
    again, it validates, and ends as before; with a larger budget it goes on."""
    saved = load(checkpoint(whole[0] / "runs", "checkpoint-2.pt"))
    spent = {"seconds": 7200.0}  # of an earlier start, which counts
    torch.save(saved | half_an_epoch(3, 9.0) | spent, tmp_path / "edited.pt")
    words = "--steps-per-epoch 7 --output-dir run --resume edited.pt --budget-hours".split()
    output = again(*words, "1.9")
    for hours in "1.95", "2":
        assert re.search(r"^1\.43/3  train loss 3\.12  val top-1 ", output, re.MULTILINE), output
        assert re.search(r"^the budget is spent: 1\.43/3 epochs in ", output, re.MULTILINE)
        output = again(*words, hours)
    folder = tmp_path / "run"
    assert "the budget is spent (1.43/3 epochs); to train longer" in again(*words, "2")
    assert record(folder, "end")["epochs"] == pytest.approx(10 / 7, rel=1e-12)
    logged = points(folder)
    for tag in "Loss/train", "Loss/val", "Top1/val", "Throughput/train", "Lr":
        assert len(logged[tag]) == 1, tag
    output = again(*words, "3")
    assert " after 1 of 3 epochs and 3 steps\n" in output and "all epochs are done" in output
    assert list(scalars(folder, "Loss/step")) == list(range(10, 21))


def test_signals_and_kills_around_validation(whole, again, tmp_path):
    """SIGTERM as validation begins and in its midst; a kill before the best is written, and after
    the epoch was logged: the log and the files of an uninterrupted run, and no point twice."""
    auto, one_epoch = ("--output-dir", "run"), ("--desired-acc", "0.001")
    # Of an epoch the bar of training is the first event, then steps, validation, 3 batches: the
    # second start has no step left.
    for number in 6, 3:
        output = again(*auto, status=143, env={"SIGTERM_AT": str(number)})
        assert "stopped by SIGTERM at step 4, saved" in output
    first = tmp_path / "run"
    again(*auto, *one_epoch)
    (first / "model_best.pt").unlink()  # as if it was killed before
    for accuracy in "0.002", "0.003":
        assert "target reached" in again(*auto, "--desired-acc", accuracy)
        assert (first / "model_best.pt").exists()
    again(*auto)
    log, other = points(first), points(the_run(whole[0] / "runs"))
    for tag in "Loss/step", "Loss/train", "Loss/val", "Top1/val", "Top5/val", "Lr":
        assert log[tag] == other[tag], tag
    for name in "checkpoint.pt", "model_best.pt":
        pair = [load(logs / name) for logs in (first, the_run(whole[0] / "runs"))]
        for key in "epoch", "step", "best_acc1", "best_acc5", "best_loss":
            assert pair[0][key] == pair[1][key], (name, key)
        torch.testing.assert_close(*(each["state_dict"] for each in pair), rtol=0, atol=0)


def test_the_log_of_a_run_that_was_killed_nine_times(whole, again, tmp_path):
    """In steps, saving, validation, and as an epoch was logged: no point twice, and no gap."""
    words = "--output-dir run --checkpoint-minutes 1e-9".split()  # after every step
    for number in 5, 4, 3, 2, 6, 8, 10, 6, 8:
        again(*words, status=-9, env={"SIGKILL_AT": str(number)})
    again(*words)
    log, other = points(tmp_path / "run"), points(the_run(whole[0] / "runs"))
    for tag in log:
        assert [step for step, _ in log[tag]] == [step for step, _ in other[tag]], tag
        if tag.startswith(("Loss", "Top", "Lr")):
            assert log[tag] == other[tag], tag


def test_steps_that_are_trained_again_are_logged_once(whole, copied, again):
    """All steps of that epoch are in the log of before, from the first on."""
    (copied / "checkpoint-1.pt").rename(copied / "checkpoint.pt")
    again("--output-dir", copied)
    assert points(copied)["Loss/step"] == points(the_run(whole[0] / "runs"))["Loss/step"]


def test_flags_of_a_step(monkeypatch):
    """The seconds that a rank of four waited are its share of the mean; the first clock by which it
    is time saves or ends the budget for all, and any rank that has a signal ends all. In
    validation, where all is saved, only saving is not due."""
    monkeypatch.setattr(endings, "arm_timeout", lambda *args, **options: None)
    now = time.monotonic()
    for rank, age, signals, training, expected in (
        (0, 179, [], True, [0, 0, 0]),
        (0, 181, [], True, [0, 1, 1]),
        (1, 181, [], True, [0, 1, 1]),
        (1, 0, [("SIGTERM", now)], True, [1, 0, 0]),
        (1, 181, [("SIGTERM", now)], False, [1, 0, 1]),
    ):
        args = nd.parse_args(["--checkpoint-minutes", "3", "--budget-hours", "0.05"])
        place = nd.Place(torch.device("cpu"), rank, ranks=4)
        here = types.SimpleNamespace(args=args, place=place, data_waits=[5.0, 3.0], signals=signals)
        here.saved_at, here.deadline, here.pending = now - age, time.perf_counter() + 180 - age, []
        here.interrupted, here.save_due, here.meter = False, False, object()
        here.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
        meter = here.meter if training else object()
        nd.queue_step(here, meter, torch.zeros(len(nd.SUMS), dtype=torch.float64))
        *_, scale, waited, stop, save, spent = here.pending[0][0].tolist()
        assert (scale, waited, [stop, save, spent]) == (2.0**30, 2, expected)


def test_each_rank_and_step_has_a_seed_of_its_own(monkeypatch):
    """Also the stages of a replica, which have the same slice of the data: what one drops is not
    what the next one drops."""
    seeds = []
    for name in "queue_step", "count_queued_steps", "train_step", "values_of":
        monkeypatch.setattr(nd, name, mock.MagicMock())
    monkeypatch.setattr(progress_meter, "Meter", mock.MagicMock())
    monkeypatch.setattr(endings, "arm_timeout", mock.Mock())
    monkeypatch.setattr(devices, "seed_generators", lambda seed, device: seeds.append(seed))
    data = types.SimpleNamespace(global_batch=8, steps=3, accumulation_steps=1)
    for rank in 0, 1:
        place = nd.Place("cpu", rank, ranks=2, data_rank=0, data_ranks=1)
        here = types.SimpleNamespace(args=nd.parse_args([]), data=data, place=place)
        here.epoch, here.step, here.no_more_steps, here.ema, here.partial = 0, 0, False, {}, None
        here.model, here.scaler, here.data_waits = mock.Mock(), None, []
        here.optimizer = mock.Mock(param_groups=[{"lr": 0.0}])
        nd.train_one_epoch(here)
    assert len({*seeds}) == 6


@pytest.mark.parametrize("words", [[], ["--ema", "0.9"]])
def test_the_best_model_costs_no_copy_in_validation_and_is_not_read(words, tmp_path, monkeypatch):
    """No checkpoint is kept in memory during validation; none is loaded to be written."""
    copies, in_float32, validate = [], state_trees.in_float32, nd.validate

    def keep_track(tree):
        copied = in_float32(tree)
        if isinstance(tree, torch.Tensor):
            copies.append(weakref.ref(copied))
        return copied

    def check(run):
        gc.collect()
        assert copies and not any(copy() is not None for copy in copies)
        with monkeypatch.context() as patch:
            patch.setattr(nd, "full_state", None)
            return validate(run)

    monkeypatch.setattr(endings, "arm_timeout", mock.Mock())
    monkeypatch.setattr(state_trees, "in_float32", keep_track)
    monkeypatch.setattr(nd, "validate", check)
    monkeypatch.setattr(safe_files, "load_file", None)
    monkeypatch.chdir(tmp_path)
    words = ["-a", "squeezenet1_1", "--image-size", "32", "-b", "4", "--no-accel", *words]
    images = str(write_images(tmp_path / "images", train=2, val=2))
    made = nd.build_run(nd.parse_args([*words, images, "--epochs", "2", "--output-dir", "run"]))
    nd.train(made)
    best = torch.load(tmp_path / "run" / "model_best.pt", weights_only=True)
    assert best["best_loss"] == made.best["Loss"] and best["stale_epochs"] == -1
    newest = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert newest["epoch"] == 2 and ("trained" in best) == bool(made.ema)


@pytest.mark.parametrize(
    ("words", "own", "top1"),
    [("", True, 50), ("", False, 0), ("--best loss", True, 0), ("--desired loss 1", True, 0)],
)
def test_a_best_by_another_measure_is_not_carried_over(words, own, top1, monkeypatch):
    """Or no file would be written until what another measure chose is surpassed by chance."""
    monkeypatch.setattr(nd, "load_state", lambda *of_run: None)
    here = types.SimpleNamespace(scaler=mock.Mock(), optimizer=mock.Mock(param_groups=[]))
    here.args, here.best = nd.parse_args(words.split()), {tag: nd.BEST[tag][1] for tag in nd.BEST}
    here.scaler.state_dict.return_value = {}
    here.stale_epochs, here.place, here.monitor = 0, nd.Place("cpu"), None
    saved = {"scaler": {}, "group": {}, "in_place": own, "monitor": "Top1", "best_acc1": 50}
    nd.restore(here, saved | {"stale_epochs": 3}, None)
    nd.judge(here, {"Top1": 10.0, "Top5": 20.0, "Loss": 2.0})
    assert here.best == {"Top1": top1 or 10, "Top5": 20, "Loss": 2}
    assert here.stale_epochs == (4 if top1 else 0)


def test_moments_that_a_file_lacks_begin_at_zero_and_anothers_are_left_out():
    """As of a run without momentum, or of another optimizer."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    args = nd.parse_args([])
    here = types.SimpleNamespace(args=args, model=model, optimizer=optimizer, ema={})
    first = {"momentum_buffer": torch.full((2, 3), 5.0), "exp_avg": torch.ones(2, 3)}
    weights = {"weight": torch.full((2, 3), 7.0), "bias": torch.full((2,), 7.0)}
    nd.load_state(here, {"state_dict": weights, "ema": None, "optimizer": {"state": {0: first}}})
    moments = [optimizer.state[weight]["momentum_buffer"] for weight in model.parameters()]
    assert (moments[0] == 5).all() and (moments[1] == 0).all()
    assert all((weight == 7).all() for weight in model.parameters())


def test_averages_are_validated_with_rank_0s_statistics(monkeypatch):
    """On the second of two ranks, whose own are averaged too."""
    model, seen = torch.nn.BatchNorm1d(2), []
    here = types.SimpleNamespace(model=model, args=nd.parse_args(["--ema", "0.5"]))
    here.ema = {name: 3 * torch.ones_like(each) for name, each in model.state_dict().items()}
    here.place, here.data_waits = nd.Place("cpu", 1, ranks=2, data_rank=1, data_ranks=2), []
    here.data = types.SimpleNamespace(val=types.SimpleNamespace(target=[0, 1]))
    for name in "queue_step", "count_queued_steps", "values_of":
        monkeypatch.setattr(nd, name, mock.Mock())
    monkeypatch.setattr(endings, "arm_timeout", mock.Mock())
    meter = mock.Mock(sums={nd.ITEMS: 2})
    monkeypatch.setattr(progress_meter, "Meter", lambda *of_run: meter)
    monkeypatch.setattr(nd, "val_steps", lambda *of_run: 1)
    monkeypatch.setattr(nd, "next_batch", lambda *of_run: (torch.ones(1, 2), torch.zeros(1)))
    monkeypatch.setattr(nd, "all_reduce_sum", lambda tensor: tensor + 7)  # rank 0's
    monkeypatch.setattr(
        nd,
        "validate_step",
        lambda *of_run: seen.extend(model.running_mean.tolist() + model.weight.tolist()),
    )
    nd.validate(here)
    assert seen == [7, 7, 3, 3] and not model.running_mean.any()


def test_a_signal_in_validation_saves_nothing(monkeypatch):
    """All is saved already, and under --ema the model holds the averages then."""
    for name in "save_checkpoint", "end_early":
        monkeypatch.setattr(nd, name, mock.Mock())
    here = types.SimpleNamespace(args=nd.parse_args([]), log=None, pending=[])
    here.no_more_steps = here.interrupted = here.save_due = False
    here.place, here.meter, here.scale = nd.Place(torch.device("cpu")), mock.Mock(steps=1), 1.0
    total = torch.ones(len(nd.SUMS) + len(nd.FLAGS))
    for meter, saves in (mock.Mock(steps=1), 0), (here.meter, 1):
        here.pending.append((total, None))
        nd.count_queued_steps(here, meter)
        assert nd.save_checkpoint.call_count == saves
    assert nd.end_early.call_count == 2


@pytest.mark.parametrize("wish", [None, "save", "stop"])
def test_a_step_is_counted_when_the_next_one_is_queued(wish, monkeypatch):
    """In their order. Where a rank wants to save or to stop at the second step, the third, which is
    queued by then, is counted before; and what was wished for is done once. Each step begins the
    time anew after which a run that hangs ends."""
    done, counted = [], []
    monkeypatch.setattr(nd, "save_checkpoint", lambda run: done.append(("save", counted.copy())))
    monkeypatch.setattr(nd, "end_early", lambda run: done.append(("stop", counted.copy())))
    monkeypatch.setattr(endings, "arm_timeout", mock.Mock())
    here = types.SimpleNamespace(args=nd.parse_args(["--checkpoint-minutes", "1"]), log=None)
    here.place, here.data_waits, here.pending = nd.Place(torch.device("cpu")), [], []
    here.scaler, here.scale = torch.amp.GradScaler("cpu", enabled=False), 1.0
    here.no_more_steps = here.interrupted = here.save_due = False
    here.meter = mock.Mock(steps=1, add=lambda step: counted.append(step["loss"]))
    behind = []
    for number in range(1, 5):
        now = number == 2
        here.signals = [("SIGTERM", 0)] if now and wish == "stop" else []
        here.saved_at = time.monotonic() - (100 if now and wish == "save" else 0)
        here.deadline = time.perf_counter() + 100
        sums = torch.zeros(len(nd.SUMS), dtype=torch.float64)
        sums[0], sums[-1] = number, 1
        nd.queue_step(here, here.meter, sums)
        behind.append(len(counted))
        if wish == "stop" and done:
            break
    expected = {None: [], "save": [("save", [1, 2, 3])]}
    expected["stop"] = [("save", [1, 2, 3]), ("stop", [1, 2, 3])]
    assert done == expected[wish]
    assert behind == {None: [0, 1, 2, 3], "save": [0, 1, 3, 3], "stop": [0, 1, 3]}[wish]
    assert here.save_due is False
    assert endings.arm_timeout.call_count == len(behind)
    nd.count_queued_steps(here, here.meter)
    assert counted == [1, 2, 3, 4][: 3 if wish == "stop" else 4]


def test_a_save_begins_the_minutes_anew(monkeypatch):
    """Or after the first --checkpoint-minutes, each step would be saved."""
    for name in "about_model", "full_state", "peak_learning_rate":
        monkeypatch.setattr(nd, name, lambda *of_run: {})
    monkeypatch.setattr(endings, "arm_timeout", mock.Mock())
    here = types.SimpleNamespace(args=nd.parse_args([]), data=mock.Mock(steps=5), epoch=0, step=3)
    here.meter, here.scaler, here.options = mock.Mock(), mock.Mock(), {}
    here.best, here.stale_epochs, here.started = dict.fromkeys(nd.BEST, 0.0), 0, 0.0
    here.monitor = "Top1"
    here.log, here.saved_at = None, time.monotonic() - 1000
    nd.save_checkpoint(here)
    assert time.monotonic() - here.saved_at < 500


def by_script():
    for script in (*SCRIPTS, *TEXT_SCRIPTS):
        if "pipeline" not in script:  # whose stages have their own precision
            yield pytest.param(script, marks=[needs_horovod] * ("horovod" in script))


@pytest.mark.parametrize("script", [*by_script()])
def test_validation_computes_as_training_does(script):
    module = importlib.import_module(script.removesuffix(".py"))
    words = ["--amp", "bfloat16"]
    if "apex" in script:
        words = ["--opt-level", "O1", "--half-dtype", "bfloat16"]
    args = module.parse_args([*words, "--no-accel"])
    model, seen = torch.nn.Linear(2, 2), []
    model.register_forward_hook(lambda layer, inputs, output: seen.append(output.dtype))
    batch = torch.ones(3, 2), torch.zeros(3)
    found = module.validate_step(model, lambda output, target: (0, output.sum()), *batch, args)
    assert seen == [torch.bfloat16] and found.ndim == 0


def test_without_stderr(demo, tmp_path):
    """As daemons start programs: Python then has None for it."""
    closed = "import os, sys\nos.close(2)\nsys.stderr = sys.__stderr__ = None\ndel sys.argv[0]"
    words = [nd.sys.executable, "-c", closed + THEN_RUN, *command("imagenet_nd.py")[1:], *VIT]
    run([*words, "-b", "8", "--output-dir", "one", demo], tmp_path, 143, EARLY)
    assert (tmp_path / "one" / "checkpoint.pt").exists()


def test_cores_are_shared_by_the_ranks_of_a_node(monkeypatch):
    """Threads and loader processes: not by those of all nodes."""
    place, shared = nd.Place(torch.device("cpu"), ranks=8, local_ranks=2), mock.Mock()
    shared.side_effect = errors.Fault("here")
    monkeypatch.setattr(nd.os, "sched_getaffinity", lambda pid: range(8), raising=False)
    monkeypatch.setattr(nd, "init_distributed", lambda args: place)
    monkeypatch.setattr(endings, "arm_timeout", mock.Mock())
    monkeypatch.setattr(devices, "choose_kernels", mock.Mock())
    monkeypatch.setattr(devices, "share_cores", shared)
    args = nd.parse_args(["--dummy"])
    with pytest.raises(errors.Fault, match="here"):
        nd.build_run(args)
    shared.assert_called_once_with(place.device, 2)
    sizes = batch_plan.split_batch(args.batch_size, 8)
    assert nd.open_data(args, place, nd.list_sources(args, place), sizes).workers == 4


def test_moments_begin_at_zero_and_counts_go_on(monkeypatch):
    """After make_optimizer_state(), the next step is a fresh optimizer's; restore() brings the
    number of steps that timm's optimizers count in their groups, as what it is."""
    stepped = []
    for prepare in nd.make_optimizer_state, lambda optimizer: None:
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(layer.parameters(), 0.1, weight_decay=0.3)
        prepare(optimizer)
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        for moments in optimizer.state.values():
            assert not any(moment.any() for moment in moments.values())
        layer(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        stepped.append(layer.weight.detach())
    assert torch.equal(*stepped)
    monkeypatch.setattr(nd, "load_state", lambda *of_run: None)
    groups = [{"lr": 0.5, "step": 0, "weight_decay": 0.1}, {"lr": 0.5, "step": torch.tensor(0.0)}]
    here = types.SimpleNamespace(scaler=mock.Mock(), optimizer=mock.Mock(param_groups=groups))
    here.scaler.state_dict.return_value, here.args = {}, nd.parse_args([])
    saved = {"scaler": {}, "group": {"lr": 0.25, "step": 9.0}, "in_place": False}
    nd.restore(here, saved, None)
    assert groups[0] == {"lr": 0.25, "step": 9, "weight_decay": 0.1}
    assert torch.is_tensor(groups[1]["step"]) and groups[1]["step"] == 9 and groups[1]["lr"] == 0.25


def test_a_resumed_run_has_the_scale_of_its_checkpoint(monkeypatch):
    monkeypatch.setattr(nd, "load_state", lambda *of_run: None)
    scaler, saved = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (8.0, 1024.0))
    here = types.SimpleNamespace(scaler=scaler, optimizer=mock.Mock(param_groups=[]))
    here.args = nd.parse_args([])
    nd.restore(here, {"scaler": saved.state_dict(), "group": {}, "in_place": False}, None)
    assert scaler.get_scale() == 1024


def test_evaluate_gives_the_logged_accuracy(whole, demo, tmp_path):
    """Of a checkpoint, by another script, at the sizes that it was validated at; and of its weights
    as pytorch/examples saves them."""
    path = checkpoint(whole[0] / "runs")
    saved = load(path)
    theirs = {f"module.{name}": each for name, each in saved["state_dict"].items()}
    torch.save({"epoch": 3, "arch": "vit_b_16", "state_dict": theirs}, tmp_path / "theirs.pt")
    top1, top5 = (scalars(whole[0] / "runs", f"Top{top}/val")[3] for top in (1, 5))
    net, held = (
        "-a vit_b_16 -b 50 -j 0 --no-accel".split(),
        f"{path}, epoch 3: crops of 32 pixels, resized to ",
    )
    size = ["--image-size", "32"]
    for script, words, what in (
        ("imagenet_dp.py", ["--resume", path], f"{held}37"),
        ("imagenet_dp.py", ["--resume", path, "--val-resize", "48"], f"{held}48"),
        (ND, ["--weights", "theirs.pt", *size], "theirs.pt: crops of 32 pixels, resized to 37"),
    ):
        output = run([*command(script), *net, "--evaluate", *words, demo], tmp_path)
        assert f"Validating {what}, bilinear\n" in output
        assert not re.search("Resuming|learning rate|other options", output)
        same = f"validation: top-1 {top1:.3f} %, top-5 {top5:.3f} %" in output
        assert same == what.endswith("37")
    assert {path.name for path in tmp_path.iterdir()} == {"theirs.pt"}, "no run is begun"


def test_an_evaluation_makes_no_state_of_the_optimizer(tmp_path, monkeypatch):
    """Gradients and moments would take the memory of three models."""
    monkeypatch.setattr(endings, "arm_timeout", mock.Mock())
    monkeypatch.chdir(tmp_path)
    words = "-a squeezenet1_1 --image-size 32 -b 4 --no-accel -j 0 --dummy --optimizer adamw"
    words = [*words.split(), "--output-dir", "run"]
    made = nd.build_run(nd.parse_args(words))
    made.meter = types.SimpleNamespace(state={"sums": {}, "seconds": 0.0, "traffic": [0.0] * 4})
    nd.save_checkpoint(made)
    made.log.close()
    seen = nd.build_run(nd.parse_args([*words, "--evaluate"]))
    assert not any(seen.optimizer.state.values())
    assert all(weight.grad is None for weight in seen.model.parameters())
    saved = load(tmp_path / "run" / "checkpoint.pt")["state_dict"]
    torch.testing.assert_close(dict(seen.model.state_dict()), dict(saved), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ([], (40, 50)),
        (["--image-size", "48"], (48, 55)),
        (["--val-size", "48"], (48, 55)),
        (["--val-resize", "60"], (40, 60)),
        (["--resume", "x.pt"], (224, 256)),  # training, with which this head goes on
    ],
)
def test_a_checkpoint_is_evaluated_at_its_sizes(words, sizes, demo):
    """Where no size is typed: a resize belongs to a size."""
    how = [] if "--resume" in words else ["--evaluate", "--resume", "x.pt"]
    args, place = nd.parse_args([*how, *words, str(demo)]), nd.Place(torch.device("cpu"))
    head = {"path": "x.pt", "epoch": 3, "model_options": {}, "image_size": 40, "val_resize": 50}
    data = nd.open_data(args, place, nd.list_sources(args, place), (8, 1, 8), head)
    assert (data.val_size, data.val_resize) == sizes


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--optimizer adamw", True),
        ("--optimizer adamw --lr 0.001", False),
        ("--optimizer adamw --base-lr 0.001", False),
    ],
)
def test_a_rate_of_sgd_for_another_optimizer_is_named(words, named, capsys):
    assert (" is meant for sgd, not for " in header(nd, words, capsys)) == named


def header(script, words, capsys):
    """Returns what a script prints as a run with these options begins."""
    run = types.SimpleNamespace(
        args=script.parse_args(["--no-accel", *words.split()]),
        data=types.SimpleNamespace(device_batch=8, accumulation_steps=2, global_batch=16),
        place=script.Place(torch.device("cpu")),
        options={"precision": "float32"},
        folder=None,
    )
    with mock.patch.object(script, "about_data", lambda data: []):
        script.print_header(run, None)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "words", "goals"),
    [
        (nd, "", None),
        (nd, "--desired-acc 0.75", "top-1 75.000 %"),
        (nd, "--desired-acc 0.005", "top-1 0.500 %"),
        (nd, "--desired loss 1.25 --desired top5 90.125", "top-5 90.125 %, loss 1.25000"),
        (
            text,
            "--task cola -a bert --desired mcc -0.5 --desired f1 83",
            "F1 83.000 %, MCC -0.50000",
        ),
        (text, "--task lm -a gpt --desired perplexity 20", "perplexity 20.000"),
    ],
)
def test_goals_are_printed_with_their_units(script, words, goals, capsys):
    found = re.findall(
        "(?m)^Ends after an epoch that is at least as good as (.*)$", header(script, words, capsys)
    )
    assert found == [goals] * bool(goals)


def test_loss_that_is_not_finite_leaves_the_checkpoint_before(copied, again):
    """Resuming in the run's folder, with a learning rate beyond reason."""
    path = copied / "checkpoint.pt"
    for each in copied.glob("*.pt"):  # a rate beyond reason, as it would be from the start
        torch.save(load(each) | {"peak_lr": 6.25e10}, each)
    kept = load(path)["state_dict"]
    words = "--epochs 9 --lr 1e12 --output-dir".split()
    line = the_line(again(*words, copied, status=2), only=False)
    assert "the loss is not finite" in line and "lower --lr" in line
    assert load(path)["epoch"] == 3
    torch.testing.assert_close(load(path)["state_dict"], kept, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("batch", "words", "named"),
    [
        (250, "--mixup 0.2", "-b 124 --global-batch 500"),
        (5, "", "-b 2 --global-batch 500"),
        (8, "--base-lr 0.5 -b 8", "-b 4 --global-batch 500 --base-lr 0.25"),
        (8, "--accumulation 3", "-b 4 --global-batch 500 --accumulation 1"),
        (
            8,
            "--compile --compile-mode max-autotune",
            "-b 4 --global-batch 500 --compile-mode defau",
        ),
        (5, "-e --resume x", "-b 2 "),
        (2, "--mixup 0.2", None),
        (1, "", None),
    ],
)
def test_a_batch_half_as_large_is_even_under_mixing(batch, words, named, monkeypatch, capsys):
    args = nd.parse_args(words.split())
    data = types.SimpleNamespace(device_batch=batch, global_batch=500)
    here = types.SimpleNamespace(args=args, data=data, place=nd.Place("cpu"), folder=None)
    here.model = torch.nn.Identity()  # without blocks
    monkeypatch.setattr(nd, "build_run", lambda args: here)
    full = mock.Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    monkeypatch.setattr(nd, "train", full)
    monkeypatch.setattr(nd, "validate", full)
    ended = mock.Mock(side_effect=SystemExit)
    monkeypatch.setattr(nd.os, "_exit", ended)
    with pytest.raises(SystemExit):
        nd.train_rank(args)
    ended.assert_called_with(2)
    advice = f"add to the command: {named}" if named else "CUDA out of memory"
    advice = "add -b 2 to the command\n" if "-e" in words else advice
    assert f"error: no memory at -b {batch}: {advice}" in capsys.readouterr().err


def test_a_smaller_batch_of_a_pipeline_has_whole_micro_batches():
    """What is advised when memory is out, and what a kept global batch is divided into."""
    args = pipeline.parse_args("--microbatches 4 -b 6".split())
    data, multiple = mock.Mock(device_batch=12, global_batch=24), pipeline.device_multiple(args)
    model = pipeline.architectures.make_model("squeezenet1_1")
    here = types.SimpleNamespace(args=args, data=data, folder=Path("runs/a b"), model=model)
    less = pipeline.with_less_memory(here)
    words = "-b 4 --global-batch 24 --output-dir 'runs/a b': the run resumes on the same curve"
    assert less.startswith(f"add to the command: {words}, except for BatchNorm's statistics; or ")
    words = "--checkpoint-activations --output-dir 'runs/a b': the run resumes on the same curve"
    assert less.endswith(f"; or add to the command: {words}, slower by a second forward pass")
    here.args.checkpoint_activations = True
    assert "--checkpoint-activations" not in pipeline.with_less_memory(here)
    here.data.device_batch, here.args.checkpoint_activations = 4, False
    assert pipeline.with_less_memory(here).startswith("add to the command: --checkpoint-activat")
    assert batch_plan.split_batch(6, 1, 1, 24, multiple) == (4, 6, 24)


# ------------------------------------------------------------------------------------- slow trials


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_layout_may_change_on_resuming(before, demo, tmp_path):
    """Momentum goes into the layout of its weight, whatever layout it was saved in."""
    options = "--image-size 32 -b 8 --epochs 2 --steps-per-epoch 4 -p 1".split()
    layouts = [[], ["--channels-last"]]
    words = [*command(ND), *options, "--no-accel", demo]
    first = ["--desired-acc", "0.0001", "--output-dir", "first"]
    run([*words, *first, *layouts[before]], tmp_path)
    for name, layout in ("kept", layouts[before]), ("changed", layouts[not before]):
        resume = ["--resume", checkpoint(tmp_path / "first"), "--output-dir", name]
        run([*words, *resume, *layout], tmp_path)
    kept, changed = (scalars(tmp_path / name, "Loss/step") for name in ("kept", "changed"))
    assert list(changed.values()) == pytest.approx(list(kept.values()), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("script", [each for each in EACH if "apex" not in str(each.values)])
@pytest.mark.parametrize("precision", [pytest.param("bfloat16", marks=needs_bfloat16), "float16"])
def test_amp(script, precision, demo, tmp_path):
    options = ["--image-size", "32", "-b", "8", "--epochs", "1", "--steps-per-epoch", "3"]
    options += ["--amp", precision, "--channels-last", "-p", "1"]
    words = [*one_data_rank(script), *options, demo]
    run(words, tmp_path)
    losses = scalars(tmp_path / "runs", "Loss/step")
    assert all(0 < loss < 10 for loss in losses.values())
    assert (load(checkpoint(tmp_path / "runs"))["scaler"] != {}) == (precision == "float16")


@pytest.mark.slow
@pytest.mark.parametrize("script", EACH)
def test_compile(script, demo, tmp_path):
    """The same curve but for rounding, and a checkpoint that says nothing of it."""
    if script in ("imagenet_dp.py", "imagenet_pipeline.py"):
        pytest.skip("DataParallel and pipelines refuse --compile")
    words = [*command(script), *RUN, *level(script), "--epochs", "1", "-b", "16", demo]
    run([*words, "--output-dir", "plain"], tmp_path)
    run([*words, "--compile", "--output-dir", "compiled"], tmp_path, timeout=580)
    plain, compiled = (scalars(tmp_path / name, "Loss/step") for name in ("plain", "compiled"))
    assert compiled == pytest.approx(plain, rel=1e-3)
    states = [load(checkpoint(tmp_path / name))["state_dict"] for name in ("plain", "compiled")]
    assert states[0].keys() == states[1].keys()


@pytest.mark.parametrize(
    ("timeout", "seconds"), [("600", "660"), ("0.5", "60"), ("0", "100000060")]
)
def test_horovod_waits_a_minute_longer_than_timeout(timeout, seconds, monkeypatch):
    """Before it begins, or it would wait for 30 s."""
    horovod, found = importlib.import_module("imagenet_horovod"), []
    monkeypatch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", "30")

    def init():
        found.append(os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"])
        raise InterruptedError

    monkeypatch.setattr(horovod, "hvd", mock.Mock(init=init))
    with pytest.raises(InterruptedError):
        horovod.init_distributed(horovod.parse_args(["--no-accel", "--timeout", timeout]))
    assert found == [seconds]


@pytest.mark.slow
@needs_horovod
def test_horovod_options(demo, tmp_path):
    """Float16 exchange and pre-division change rounding alone."""
    options = [*VIT, "-b", "8", "--epochs", "1", "--steps-per-epoch", "5", "-p", "1", "--lr", "2"]
    ways = {"plain": [], "fp16": ["--fp16-allreduce"], "half": ["--gradient-predivide-factor", "2"]}
    ways["scaled"] = ["--amp", "float16"]
    losses = {}
    for way, extra in ways.items():
        words = [*command("imagenet_horovod.py", 2), *options, *extra, "--output-dir", way, demo]
        run(words, tmp_path)
        losses[way] = list(scalars(tmp_path / way, "Loss/step").values())
    assert losses["half"] == pytest.approx(losses["plain"], rel=1e-5)
    assert losses["fp16"] == pytest.approx(losses["plain"], rel=1e-2)
    assert losses["fp16"] != losses["plain"], "float16 must be felt"
    assert losses["scaled"] == pytest.approx(losses["plain"], rel=2e-2)


# Validation of four epochs. The best of each measure are never of one epoch.
EPOCHS = {
    nd: [(70.0, 95.0, 2.0), (75.0, 93.0, 1.6), (74.0, 94.0, 1.5), (75.0, 94.0, 1.5)],
    text: [(70.0, 0.4, 0.9), (83.0, 0.2, 0.9), (80.0, 0.4, 0.8), (83.0, 0.4, 0.8)],
}
MEASURES = {nd: ("Top1", "Top5", "Loss"), text: ("Accuracy", "MCC", "Loss")}


def of_epoch(script, values):
    """Returns an epoch of EPOCHS as validate() does."""
    return dict(zip(MEASURES[script], values, strict=True))


def in_four_epochs(script, words, folder, monkeypatch, **state):
    """Has train() go through EPOCHS; returns the Run, which began with `state`, and the epochs that
    model_best.pt was written after."""
    data = types.SimpleNamespace(steps=1)
    args = script.parse_args(["--epochs", "4", *words.split()])
    run = script.Run(args, script.Place("cpu"), data, {}, folder=folder, **state)
    run.log, saved, values = mock.Mock(), [], iter(EPOCHS[script])
    trained = dict.fromkeys(MEASURES[script], 99.0) | {"Loss": 0.0}
    monkeypatch.setattr(script, "train_one_epoch", lambda run: setattr(run, "step", 1) or trained)
    monkeypatch.setattr(script, "validate", lambda run: of_epoch(script, next(values)))
    for name in "save_checkpoint", "log_epoch":
        monkeypatch.setattr(script, name, lambda *of_run, **more: None)
    monkeypatch.setattr(script, "save_best", lambda run: saved.append(run.epoch))
    script.train(run)
    return run, saved


@pytest.mark.parametrize(
    ("script", "words", "epochs", "best"),
    [
        (nd, "", 4, "top-1 75.000 %"),
        (nd, "--desired-acc 0.75", 2, "top-1 75.000 %"),
        (nd, "--desired top1 75", 2, "top-1 75.000 %"),
        (nd, "--desired loss 1.5", 3, "loss 1.50000"),
        (nd, "--desired loss 1.5 --desired-acc 0.75", 4, "loss 1.50000"),
        (nd, "--desired-acc 0.75 --desired loss 1.5", 4, "top-1 75.000 %"),
        (nd, "--desired top1 76 --desired loss 1.5", 4, "top-1 75.000 %"),
        (nd, "--desired-acc 0.75 --best loss", 2, "loss 1.60000"),
        (text, "--desired-acc 0.83", 2, "accuracy 83.000 %"),
        (text, "--desired accuracy 80 --desired mcc 0.3", 3, "accuracy 83.000 %"),
        (text, "--desired mcc 0.4", 1, "MCC 0.40000"),
        (text, "--desired mcc 0.5", 4, "MCC 0.40000"),
        (text, "--desired loss 0.8 --desired mcc .4 --desired-acc 0.83", 4, "loss 0.80000"),
    ],
)
def test_one_epoch_has_all_that_is_desired(
    script, words, epochs, best, tmp_path, monkeypatch, capsys
):
    task = "--task cola -a bert " if script is text else ""
    run, saved = in_four_epochs(script, task + words, tmp_path, monkeypatch)
    line = capsys.readouterr().out
    shown = script.format_metrics(of_epoch(script, EPOCHS[script][epochs - 1]), 3)
    reached = "76" not in words and "mcc 0.5" not in words and words
    reason = "target reached" if reached else "all epochs are done"
    assert line.startswith(f"{reason}: {epochs}/4 epochs in ") and f"; {shown}; " in line
    assert f"; model_best.pt: {best}\n" in line
    assert float(re.findall(r"[\d.]+", best)[-1]) in EPOCHS[script][saved[-1]], (
        "model_best.pt is of this epoch"
    )
    so_far = zip(*EPOCHS[script][:epochs], strict=True)
    for tag, values in zip(MEASURES[script], so_far, strict=True):
        assert run.best[tag] == (min if tag == "Loss" else max)(values)


def test_the_least_of_a_measure_is_no_best():
    """So that whatever is measured first is better, and written to model_best.pt."""
    least = {"MCC": -1, "Loss": 1e300, "Perplexity": 1e300}
    for script in nd, text:
        for tag, (_, worst, ideal) in script.BEST.items():
            value = least.get(tag, 0)
            assert (max if ideal > worst else min)(worst, value) == value, tag


# Of a run that goes on: its best before, and for how many epochs it was no better.
GOES_ON = {"best": {"Top1": 74.5, "Top5": 0.0, "Loss": 1.0}, "stale_epochs": 1}


@pytest.mark.parametrize(
    ("words", "state", "end"),
    [
        ("--patience 1", {}, "no better top1 in 1 epochs: 3/4 epochs in "),
        ("--patience 2", {}, "no better top1 in 2 epochs: 4/4 epochs in "),
        ("--patience 3", {}, "all epochs are done: 4/4 epochs in "),
        ("--patience 1 --best loss", {}, "no better loss in 1 epochs: 4/4 epochs in "),
        ("--patience 1 --desired-acc 0.75", {}, "target reached: 2/4 epochs in "),
        ("--patience 2", GOES_ON, "no better top1 in 2 epochs: 1/4 epochs in "),
        ("--patience 3", GOES_ON, "all epochs are done: 4/4 epochs in "),
        ("--patience 4 --best loss", GOES_ON, "no better loss in 4 epochs: 3/4 epochs in "),
    ],
)
def test_patience(words, state, end, tmp_path, monkeypatch, capsys):
    """An epoch as good as the best is none that is better."""
    state = {name: value.copy() if name == "best" else value for name, value in state.items()}
    run, _ = in_four_epochs(nd, words, tmp_path, monkeypatch, **state)
    assert capsys.readouterr().out.startswith(end)
    (name, ended), _ = run.log.add_text.call_args
    assert name == "end" and f'"reason": "{end.partition(":")[0]}"' in ended


def test_patience_and_kept_epochs_of_a_run_that_goes_on(demo, tmp_path):
    """A model whose gradients are cut to nothing is never better: two ranks end after the same
    epoch, which counts once although the second start validates it again; each second is kept."""
    words = [*command("imagenet_ddp.py", 2), *VIT, "-b", "16", "--steps-per-epoch", "1"]
    words += "--clip-grad 1e-300 --patience 3 --keep-every 2 --output-dir run".split()
    folder = tmp_path / "run"
    for more in [], ["--budget-hours", "1"]:
        output = run([*words, *more, demo], tmp_path)
        assert "no better top1 in 3 epochs: 4/90 epochs" in output
        kept = {path.name: load(path)["epoch"] for path in folder.glob("epoch-*")}
        assert kept == {"epoch-2.pt": 2, "epoch-4.pt": 4}
    run([*command(ND), *VIT, "--evaluate", "--resume", folder / "epoch-2.pt", demo], tmp_path)
