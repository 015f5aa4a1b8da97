"""make_results.py: what it reads from logs, good and damaged, and what it makes of them."""

import contextlib
import html
import importlib
import io
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

import chaos_logs
import conftest
import markdown
import numpy as np
import PIL.Image
import PIL.PngImagePlugin
import pytest
import scipy.stats
from conftest import ROOT
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import summary as torch_summary

import imagenet_nd as nd
import make_results
from reporting import claims, draw, page, read, report, text, training

V100 = ROOT.parent / "shared" / "data" / "v100_logs"
needs_v100 = pytest.mark.skipif(not V100.exists(), reason=f"{V100} is not here")
IO_CSV = [V100 / "io" / f"{name}_gpux64_cpu20_aprl30.csv" for name in ("bandwidth", "iops")]
LOGS = ROOT / "logs"
NETWORK = "Network/sent_MB_per_step"
NAME = "Jan01_00-00-00_host_resnet50_gpux{}_b100_cpu4_optO2"


def about(script="nd", ranks=1, **more):
    """Returns what the scripts log of themselves, the least of it, on a GPU."""
    place = {"device": "cuda:0", "ranks": ranks, "devices": 1, "local_ranks": ranks}
    command = ["python", f"imagenet_{script}.py"]
    options = {"arch": "resnet18", "batch_size": 32, "precision": "float32", **more}
    sizes = {"global_batch": 32 * ranks, "gradient_bytes": 46_758_000}
    return {"command": command, "place": place, "options": options} | sizes


def write_run(folder, tags, began=1e9, epoch_seconds=100, first=1, **texts):
    """Writes an event file of {tag: values}, one an epoch from `first` on, and of texts, made to
    JSON; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{began:.0f}.host.1.0"
    with open(path, "wb") as file:
        writer = RecordWriter(file)
        events = [Event(wall_time=began, file_version="brain.Event:2")]
        for tag, values in tags.items():
            for place, value in enumerate(values):
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                wall = began + (place + 1) * epoch_seconds
                events.append(Event(wall_time=wall, step=first + place, summary=summary))
        for tag, content in texts.items():
            text = f"```json\n{json.dumps(content)}\n```"
            summary = torch_summary.text(tag, text)
            events.append(Event(wall_time=began, summary=summary))
        for event in sorted(events, key=lambda event: event.wall_time):
            writer.write(event.SerializeToString())
    return path


def usual(epochs, rate=1000.0):
    """Returns the tags of a run of so many epochs, top-1 rising by 10 %."""
    top1 = [10.0 * (epoch + 1) for epoch in range(epochs)]
    tags = {"Loss/train": top1, "Loss/val": top1, "Top1/train": top1, "Top1/val": top1}
    return {**tags, "Top5/train": top1, "Top5/val": top1, "Throughput/train": [rate] * epochs}


def results(*folders, desired=None):
    """Returns (text of RESULTS.md, {figure: panels}, runs, warnings) of folders of logs."""
    runs, warnings = read.read_runs(folders, desired)
    text, figures, _ = page.make_results(runs, warnings, None, "COMMAND")
    return text, figures, runs, warnings


def in_full(name, *folders, desired=None):
    """Returns what --show NAME prints."""
    runs, warnings = read.read_runs(folders, desired)
    *_, sections = page.make_results(runs, warnings, None, "COMMAND")
    return "\n".join(page.in_full(name, runs, sections))


def panel(figures, ylabel, name="figures/runs"):
    """Returns the panel of a figure whose axis is labelled so; None where there is none."""
    return next((each for each in figures[name] if each["ylabel"].startswith(ylabel)), None)


def rows(text, first_cell="run"):
    """Returns the rows, {header: cell}, of the first table whose header starts so."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_cell} |"))
    lines = itertools.takewhile(lambda line: line.startswith("|"), lines[start:])
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def cli(*words, status=0):
    """Runs make_results.py, in this process; returns what it printed."""
    printed, before = io.StringIO(), sys.argv
    sys.argv = ["make_results.py", *map(str, words)]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            make_results.main()
        ended = 0
    except SystemExit as end:
        ended = end.code or 0
        if isinstance(ended, str):  # the interpreter prints it, and ends with 1
            print(ended, file=printed)
            ended = 1
    finally:
        sys.argv = before
    assert ended == status, printed.getvalue()
    return printed.getvalue()


# --------------------------------------------------------------------------------- the V100 logs


@needs_v100
def test_v100_numbers():
    """As read by TensorBoard's EventAccumulator."""
    table = rows(in_full("runs", V100 / "runs", desired=0.75))
    assert [row["GPUs"] for row in table] == ["2", "4", "8", "16", "32", "64"]
    rates = []
    for row in table:
        name = row["run"]
        events = EventAccumulator(str(V100 / "runs" / name), size_guidance={"scalars": 0}).Reload()
        values = {tag: events.Scalars(tag) for tag in ("Throughput/train", "Top1/val", "Top5/val")}
        rate = np.array([event.value for event in values["Throughput/train"]][1:])
        rates.append(rate.mean() / int(row["GPUs"]))
        assert row["images/s"] == f"{rate.mean():,.0f} ± {rate.std():,.0f}"
        assert row["efficiency"] == f"{100 * rates[-1] / rates[0]:.1f} %"
        assert row["speed-up"] == f"{rates[-1] / rates[0] * int(row['GPUs']) / 2:.2f}"
        for top in "15":
            of_epochs = [event.value for event in values[f"Top{top}/val"]]
            cell = f"{of_epochs[-1]:.2f} / {max(of_epochs):.2f}"
            assert row[f"val top-{top}, last / best, %"] == cell
        (path,) = (V100 / "runs" / name).iterdir()
        began = int(path.name.split(".")[3])
        hours, minutes, seconds = map(int, row["training time"].split(":"))
        took = values["Top1/val"][-1].wall_time - began
        assert 3600 * hours + 60 * minutes + seconds == pytest.approx(took, abs=2)
        first = next(event for event in values["Top1/val"] if event.value >= 75)
        hours, minutes, seconds = map(int, row["time to desired accuracy"].split()[0].split(":"))
        reached = 3600 * hours + 60 * minutes + seconds
        assert reached == pytest.approx(first.wall_time - began, abs=2)


@needs_v100
def test_v100_scaling_model():
    """Fitted on 2 to 16 GPUs; the errors at 32 and 64 are those of a plain least squares here."""
    text, (_, figures, runs, _) = in_full("runs", V100 / "runs"), results(V100 / "runs")
    devices = np.array([2, 4, 8, 16, 32, 64])
    seconds = 208 * devices / np.array([run.throughput[0] for run in runs])
    hops = 2 * (devices - 1)
    terms = np.stack([np.full(6, 208), hops / devices, hops], axis=1)
    weighted = terms[:4] / seconds[:4, None]
    plain = np.linalg.lstsq(weighted / [1, 1e-4, 1e-4], np.ones(4), rcond=None)[0] / [1, 1e-4, 1e-4]
    errors = seconds / (terms @ plain) - 1
    shown = [row["error"] for row in rows(text, "GPUs | measured, images/s")]
    assert shown == [f"{100 * error:+.1f} %" for error in errors[4:]]
    assert shown == ["+10.2 %", "+20.0 %"]  # as the README says
    gradient = 25_557_032 * 2  # bytes: ResNet-50's parameters, half under O2
    limits = np.sqrt(np.diag(np.linalg.inv(weighted.T @ weighted)))
    limits *= scipy.stats.t.ppf(0.975, 1) * np.linalg.norm(weighted @ plain - 1)  # one run to spare
    of_4, of_6 = rows(text, "fitted on GPUs")
    shown = f"{1e5 * plain[2]:.0f}0 ± {1e5 * limits[2]:.0f}0"  # to the digit that its limits leave
    assert of_4["latency, µs/message"] == shown
    rate = gradient / plain[1] / 1e9
    assert of_4["bandwidth, GB/s"] == f"{rate:.1f} ± {rate * limits[1] / plain[1]:.1f}"
    assert of_6["volume, ms"] == "not identified" and of_6["bandwidth, GB/s"] == "–"
    (axes,) = figures["figures/model"]
    assert axes["lines"][1]["x"][-1] == pytest.approx(640)  # a decade beyond
    low, high, y = axes["band"]["low"], axes["band"]["high"], axes["lines"][1]["y"]
    worst = np.abs(errors).max()  # of the larger runs
    assert (y / low > 1 + 0.99 * worst).all() and high[-1] / y[-1] > 1 + worst
    assert (high >= y).all() and (high <= axes["lines"][2]["y"] * 1.001).all()  # nor beyond ideal


def test_the_page_begins_with_the_cluster():
    """What richardkxu/distributed-pytorch published of its runs, from logs/v100_imagenet."""
    page, figures, *_ = results(LOGS / "v100_imagenet")
    table = rows(page, "GPUs | images/s")
    assert [row["GPUs"] for row in table] == ["2", "4", "8", "16", "32", "64"]
    rates = ["1,582 ± 1", "3,004 ± 8", "5,809 ± 21", "11,253 ± 67", "19,495 ± 321", "33,088 ± 886"]
    assert [row["images/s"] for row in table] == rates
    shares = ["100 %", "95 %", "92 %", "89 %", "77 %", "65 %"]
    assert [row["efficiency"] for row in table] == shares
    tops = ["76.28", "76.35", "76.36", "76.27", "75.91", "75.23"]
    assert [row["top-1, %"] for row in table] == tops
    whose = " (2020, ancestors of these scripts)"
    times = ["18:47:24", "11:06:43", "5:48:32", "3:03:07", "1:51:02", "1:08:11"]
    assert [row["time, h:m:s"] for row in table] == times
    assert f"**33,088 images/s**{whose}: resnet50 on 64 NVIDIA V100, 20.9 times 2 of them" in page
    assert f"**76.4 % top-1**{whose}, the best of 90 epochs on 8 GPUs in 5:48:32" in page
    assert "https://github.com/richardkxu/distributed-pytorch" in page
    assert {f"figures/{name}" for name in ("accuracy", "top1_top5", "scaling", "model")} <= {
        *figures
    }
    ends, _ = figures["figures/scaling"]
    assert ends["lines"][1]["y"][-1] == pytest.approx(33088, abs=1)


def test_the_page_has_the_file_systems_counters(tmp_path):
    """Of the study that it shows, or of --io-csv where there are no studies."""
    shutil.copytree(LOGS / "v100_imagenet", tmp_path / "v100")
    write_run(tmp_path / "others" / "run", usual(2))
    runs, warnings = read.read_runs([tmp_path])
    ios, _ = read.read_study_io([tmp_path])
    text, figures, _ = page.make_results(runs, warnings, None, "COMMAND", [], ios)
    assert "![reads over time](figures/io.png)" in text
    titles = ["4.8 GB/s are read at most", "53,465 reads/s at most"]
    assert [axes["title"] for axes in figures["figures/io"]] == titles
    runs, warnings = read.read_runs([tmp_path / "others"])
    _, figures, _ = page.make_results(runs, warnings, ios["v100"], "COMMAND")
    assert [axes.get("title") for axes in figures["figures/runs"][-2:]] == titles


def test_the_page_sets_losses_beside_each_other(tmp_path):
    """Against the first run on the fewest devices, step by step; BatchNorm's apart."""
    for serial, (arch, script, ranks, off) in enumerate(
        [("vit_b_16", "nd", 1, 0), ("vit_b_16", "ddp", 2, 2e-7), ("vit_b_16", "horovod", 2, 0)]
        + [("resnet18", "nd", 1, 0), ("resnet18", "ddp", 2, 0.25)]
    ):
        of = about(script, ranks, arch=arch, workers=1) | {"global_batch": 64}
        losses = [4.0 * (1 + off), 2.0, 1.0]
        write_run(tmp_path / "parity" / f"Jan0{serial + 1}", {"Loss/step": losses}, about=of)
    text, figures, *_ = results(tmp_path)
    table = rows(text, "model")
    shown = [(row["model"], row["script"], row["largest relative difference"]) for row in table]
    assert shown == [
        ("vit_b_16", "imagenet_ddp.py", "2e-07"),
        ("vit_b_16", "imagenet_horovod.py", "0"),
        ("resnet18", "imagenet_ddp.py", "0.2"),
    ]
    assert {row["accumulated"] for row in table} <= {"1", "2"}
    (axes,) = figures["figures/parity"]
    assert axes["title"] == "2 ways, without BatchNorm: losses within 2e-07"
    assert min(line["y"].min() for line in axes["lines"]) == 1e-9


def test_the_page_says_what_each_component_gains(tmp_path):
    """Against the plain recipe at the better of its learning rates, by the mean over the seeds; a
    figure counts options where a name would take its width."""
    zero = {"zero_init": True}
    for serial, (options, last) in enumerate(
        [
            ({"lr": 0.1, "older": False}, 60),
            ({"lr": 0.2}, 61),
            ({"lr": 0.2, "seed": 1}, 63),
            ({"lr": 0.4}, 59),
        ]
        + [({"lr": 0.2, "mixup": 0.2}, 60.5), ({"lr": 0.2, **zero}, 64)]
        + [({"lr": 0.1, "recipes": {"@recipes/x.txt": "--mixup 1"}, "mixup": 1.0} | zero, 65.5)]
    ):
        of = {"mixup": 0.0, "zero_init": False, "recipes": {}, "seed": 0, **options}
        of = about("ddp_apex", 2, **of) | {"steps_per_epoch": 200, "image_size": 32}
        of |= {"data": "cifar10", "num_classes": 10}
        logged = {"Top1/val": [70.0, last], "Loss/val": [2.0, 1.0]}
        write_run(tmp_path / "recipe_x" / f"Jan0{serial + 1}", logged, about=of)
    of = about("ddp_apex", 2, lr=0.1, mixup=1.0, recipes={"@recipes/x.txt": "--mixup 1"})
    of |= {"steps_per_epoch": 390, "image_size": 64, "data": "cifar10", "num_classes": 10}
    logged = {"Top1/val": [50.0, 70, 80], "Loss/val": [3.0, 2, 1]}
    write_run(tmp_path / "recipe_x" / "foreign", logged)
    write_run(tmp_path / "recipe_x" / "Jan09", logged, about=of)  # a longer one, by itself
    text, figures, *_ = results(tmp_path)
    table = rows(text, "added to plain")
    assert [[*row.values()] for row in table] == [
        ["plain", "0.2", "2", "62.00", "+0.00"],
        ["--mixup 1 --zero-init", "0.1", "1", "65.50", "+3.50"],
        ["--zero-init", "0.2", "1", "64.00", "+2.00"],
        ["--mixup 0.2", "0.2", "1", "60.50", "-1.50"],
        ["3 epochs, 64 pixels: @recipes/x.txt", "0.1", "1", "80.00", "–"],
    ]
    gains, curves = figures["figures/recipe"]
    assert gains["title"] == "2 options together: +3.5 points"
    ticks = ["--mixup 0.2", "plain", "--zero-init", "2 options together"]
    assert gains["yticks"] == [*enumerate(ticks)]
    names = ["plain: 62.0 %", "2 options together: 65.5 %", "3 epochs, 64 pixels: 80.0 %"]
    assert [line["label"] for line in curves["lines"]] == names
    assert curves["lines"][2]["x"].tolist() == pytest.approx([100 / 60, 200 / 60, 300 / 60])
    for day, size, last in (10, 128, 70.0), (11, 96, 90.0):  # one more than there are colours
        logged["Top1/val"] = [50.0, 60, last]
        write_run(tmp_path / "recipe_x" / f"Jan{day}", logged, about=of | {"image_size": size})
    curves = results(tmp_path)[1]["figures/recipe"][1]
    assert len(curves["lines"]) == 4 and curves["title"].startswith("80.0 % in 5 minutes")


def test_the_page_says_what_weights_are_worth(tmp_path):
    """By the accuracy on test/, that the log ends with, not by validation's."""
    ways = {"from scratch": {}, "fine-tuned": {"weights": "b.pt"}}
    ways["last layer alone"] = {"weights": "b.pt", "freeze": True}
    logs = [("before", {}, 75.0)]
    logs += [
        (f"few{shots}", more, 10.0 * len(str(shots)) + place)
        for shots in (10, 1000)
        for place, more in enumerate(ways.values())
    ]
    logs += [("new", {"weights": "b.pt", "budget_hours": 1 / 6}, 66.0)] * 2
    for serial, (data, more, accuracy) in enumerate(logs):
        ranks = 1 if serial == len(logs) - 1 else 2
        of = about("ddp_apex", ranks, lr=0.1, **more) | {
            "data": f"parts/{data}",
            "steps_per_epoch": 39,
        }
        of |= {"num_classes": 5, "image_size": 32}
        end = {"reason": "all epochs are done", "epochs": 2.5}
        end |= {"test_top1": accuracy} if serial else {}
        logged = {"Top1/val": [60.0, 90], "Loss/val": [0.5, 0.75], "Throughput/train": [300.0, 400]}
        folder = tmp_path / "transfer_cpu" / f"Jan{serial + 10}"
        write_run(folder, logged, about=of, end=end)
    text, figures, *_ = results(tmp_path)
    assert [[*row.values()] for row in rows(text, "images a class")] == [
        ["10", "20.0", "21.0", "22.0"],
        ["1,000", "40.0", "41.0", "42.0"],
    ]
    assert "66.00 % on test/ after 2.5 epochs by 1 GPU, 66.00 % on test/ after 2.5" in text
    full = in_full("transfer_cpu", tmp_path)
    assert [[*row.values()] for row in rows(full, "ranks")] == [
        ["1", "32", "400", "2.5", "0.500", "66.00"],
        ["2", "64", "400", "2.5", "0.500", "66.00"],
    ]
    assert "trained on five classes of CIFAR-10 (90.0 % in validation)" in text
    by_images, by_epochs = figures["figures/transfer"]
    assert by_images["title"] == "10 images a class: 22 % last layer alone, 20 % from scratch"
    assert [line["label"] for line in by_images["lines"]] == [*ways]
    assert [line["y"].tolist() for line in by_epochs["lines"]] == [[60, 90]] * 3
    assert [*figures] == ["figures/transfer"], "what has a section is not drawn again"


TOGETHER = "--flip alternate --min-crop 0.35 --optimizer nesterov --zero-init"


def test_our_recipe_holds_what_gains():
    """As the logs of its study say: what gains a point or more, and nothing that costs one, which
    is twice the standard deviation of an accuracy of 10,000 images; and together more than seeds
    differ."""
    runs = [run for run in read.read_runs([LOGS / "recipe_cifar10"])[0] if run.epochs == 10]
    found = training.recipes_of(runs)
    plain, ours = found.pop(""), found.pop(TOGETHER)
    recipe = vars(nd.parse_args([f"@{ROOT / 'recipes' / 'cifar10-first.txt'}"]))
    default = vars(nd.parse_args([]))
    for component, same in found.items():
        given = vars(nd.parse_args(component.split()))
        held = all(recipe[name] == given[name] for name in given if given[name] != default[name])
        gain = training.mean_final(same) - training.mean_final(plain)
        assert abs(gain) < 1 or held == (gain > 0), component
    assert {run.options["seed"] for run in plain} == {run.options["seed"] for run in ours} == {0, 1}
    assert min(map(training.final, ours)) > max(map(training.final, plain))


def test_a_cluster_of_which_something_is_missing(tmp_path):
    """Without top-5 the page has no cluster; odd facts and counters are left out, with a line."""
    logs = shutil.copytree(LOGS / "v100_imagenet", tmp_path / "logs" / "v100")
    for path in logs.glob("*_resnet50_*.csv"):
        path.write_text(path.read_text().replace("Top5/val", "Mine/val"))
    (logs / "study.json").write_text('{"device": [1], "source": 3, "data": null}')
    (logs / "io.csv").write_text("minutes,read MB/s,reads/s\n0,x,1\n")
    printed = cli(tmp_path / "logs", "--out", tmp_path / "out")
    assert "io.csv: " in printed and "not used" in printed
    assert [path.name for path in (tmp_path / "out" / "figures").iterdir()] == ["v100.png"]


@needs_v100
def test_converted_logs_are_those_of_the_source(tmp_path):
    tool = [sys.executable, ROOT / "tools" / "convert_runs.py", V100 / "runs", tmp_path]
    conftest.run([*tool, "--io", *IO_CSV], tmp_path)
    made = sorted(tmp_path.glob("*.csv"))
    assert len(made) == 7
    for path in made:
        assert path.read_text() == (LOGS / "v100_imagenet" / path.name).read_text(), path.name


@pytest.mark.parametrize("what", ["nothing", "no epochs", "damaged", "twice"])
def test_conversion_of_what_is_no_run(what, tmp_path):
    (tmp_path / "runs").mkdir()
    if what != "nothing":
        path = write_run(tmp_path / "runs" / NAME.format(1), {"Mine": [1, 2]})
    if what == "damaged":
        path.write_bytes(path.read_bytes()[:-9])
    if what == "twice":
        shutil.copytree(path.parent, tmp_path / "runs" / "other" / path.parent.name)
    tool = [sys.executable, ROOT / "tools" / "convert_runs.py", tmp_path / "runs", tmp_path / "out"]
    line = conftest.complaint(tool, tmp_path)
    words = {"nothing": "holds no event files", "no epochs": "has no scalars of epochs"}
    words["twice"] = f"two folders are called {NAME.format(1)}"
    assert words.get(what, "damaged or cut off") in line


@pytest.mark.parametrize(
    "content",
    ["", "epoch,seconds,Top1/val\n1,2,x\n", "epoch\n1\n", "epoch,seconds,Top1/val\n1,nan,2\n"]
    + ["epoch,seconds,Top1/val\n1,2\n"],
)
def test_a_compact_log_that_is_damaged(content, tmp_path):
    write_run(tmp_path / NAME.format(2), usual(2))
    (tmp_path / f"{NAME.format(1)}.csv").write_text(content)
    _, _, (run,), warnings = results(tmp_path)
    assert run.name == NAME.format(2) and any(".csv: " in each for each in warnings)


@needs_v100
@pytest.mark.slow
def test_v100_command(tmp_path):
    """All of it as a user runs it."""
    words = [sys.executable, ROOT / "make_results.py", V100 / "runs"]
    words += ["--io-csv", *IO_CSV, "--out", tmp_path]
    conftest.run(words, tmp_path)
    shown = set(re.findall(r"!\[.*?\]\((.+?)\)", (tmp_path / "RESULTS.md").read_text()))
    names = ("accuracy", "top1_top5", "scaling", "model", "io", "runs")
    assert {f"figures/{name}.png" for name in names} == shown
    for name in shown:
        with PIL.Image.open(tmp_path / name) as image:
            grey = np.asarray(image.convert("L"))
        assert min(grey.shape) > 400 and grey.std() > 10
    conftest.run([*words, "--check"], tmp_path, env={"TZ": "Asia/Tokyo", "LC_ALL": "C"})


# -------------------------------------------------------------------------------- scaling models


def test_scaling_model_recovers_what_made_the_logs(tmp_path):
    compute, volume, latency = 1.5e-3, 40e-3, 300e-6
    for devices in (1, 2, 4, 8, 16, 32):
        hops = 2 * (devices - 1)
        seconds = 100 * compute + volume * hops / devices + latency * hops
        write_run(tmp_path / NAME.format(devices), usual(3, 100 * devices / seconds))
    text = in_full("runs", tmp_path)
    for fitted in rows(text, "fitted on GPUs"):
        assert float(fitted["compute, ms/image"]) == pytest.approx(1.5, abs=1e-3)
        assert float(fitted["volume, ms"]) == pytest.approx(40, abs=0.01)
        assert float(fitted["latency, µs/message"]) == pytest.approx(300, abs=0.1)
    errors = [float(row["error"].split()[0]) for row in rows(text, "GPUs | measured, images/s")]
    assert errors == pytest.approx([0, 0], abs=0.05)


def test_scaling_model_takes_three_sizes(tmp_path):
    for devices in (1, 2):
        write_run(tmp_path / NAME.format(devices), usual(3, 1000 * devices))
    why = "cannot be fitted, it takes three sizes, and there are 1 and 2"
    assert why in in_full("runs", tmp_path)
    write_run(tmp_path / NAME.format(4), usual(3, 3000))
    (row,) = rows(in_full("runs", tmp_path), "GPUs | measured, images/s")
    assert row["measured, images/s"] == "3,000"


def test_scaling_models_are_of_one_script(tmp_path):
    """Horovod's numbers do not enter the model of DDP; imagenet_nd.py starts both."""
    for script, devices, rate in [("nd", 1, 1000)] + [
        (script, devices, rate * devices)
        for script, rate in (("ddp", 900), ("horovod", 500))
        for devices in (2, 4)
    ]:
        write_run(tmp_path / f"{script} {devices}", usual(3, rate), about=about(script, devices))
    text, figures = in_full("runs", tmp_path), results(tmp_path)[1]
    assert "Scaling model of imagenet_ddp.py" in text and "of imagenet_horovod.py:" in text
    assert "of imagenet_nd.py" not in text
    models = [each for each in figures["figures/runs"] if "Fitted" in each.get("title", "")]
    ddp, horovod = (each["lines"][-1]["y"] for each in models)
    assert (ddp, horovod) == ([1000, 1800, 3600], [1000, 1000, 2000])
    assert [each["title"].split(":")[0] for each in models] == [
        "imagenet_ddp.py",
        "imagenet_horovod.py",
    ]


def test_groups_are_what_may_be_compared(tmp_path):
    """An O3 run is no baseline of O2 runs."""
    write_run(tmp_path / NAME.format(2), usual(3, 1000))
    write_run(tmp_path / NAME.format(4), usual(3, 1600))
    write_run(tmp_path / NAME.format(1).replace("O2", "O3"), usual(3, 5000))
    text, *_ = results(tmp_path)
    shares = {row["precision"]: [] for row in rows(text)}
    for row in rows(text):
        shares[row["precision"]].append(row["efficiency"])
    assert shares == {"O2": ["100.0 %", "80.0 %"], "O3": ["–"]}
    assert in_full("runs", tmp_path).count("**resnet50, hardware not logged, O") == 2
    assert "Images/s, and how many times" not in text  # no pair of one size


# ---------------------------------------------------------------------------------- planted faults


def test_truncated_event_file(tmp_path):
    path = write_run(tmp_path / NAME.format(1), {"Top1/val": [10, 20, 30, 40]})
    whole = path.read_bytes()
    for cut in range(1, 30):
        path.write_bytes(whole[:-cut])
        _, _, (run,), (warning,) = results(tmp_path)
        assert run.values("Top1/val").tolist() == [10, 20, 30]
        assert str(path) in warning and "cut off" in warning
    path.write_bytes(whole[:-20] + b"\0" + whole[-19:])  # as long, but with other bits
    _, _, (run,), (warning,) = results(tmp_path)
    assert run.values("Top1/val").tolist() == [10, 20, 30]
    assert str(path) in warning


@pytest.mark.parametrize("content", [b"", b"no event file at all", b"\0" * 100])
def test_damaged_files_beside_good_ones(content, tmp_path):
    write_run(tmp_path / NAME.format(1), usual(2))
    (tmp_path / NAME.format(1) / "events.out.tfevents.1.host.2.0").write_bytes(content)
    (tmp_path / NAME.format(2)).mkdir()
    (tmp_path / NAME.format(2) / "events.out.tfevents.1.host.3.0").write_bytes(content)
    text, _, runs, warnings = results(tmp_path)
    assert [run.name for run in runs] == [NAME.format(1)]
    assert len(runs[0].values("Top1/val")) == 2
    assert len(warnings) == 3
    assert warnings[2] == f"{tmp_path / NAME.format(2)}: {NAME.format(2)} has no values: left out"
    assert all(warning in text for warning in warnings)


def test_missing_tags(tmp_path):
    write_run(tmp_path / NAME.format(1), {"Top1/val": [10, 20]})
    text, figures, *_ = results(tmp_path)
    assert "Not logged: Throughput/train, Throughput/val, Time/train" in in_full("all", tmp_path)
    (row,) = rows(text)
    assert row["val top-1, last / best, %"] == "20.00 / 20.00"
    assert "images/s" not in row  # empty columns are left out
    assert panel(figures, "top-1") and not panel(figures, "loss")


def test_two_runs_of_one_name(tmp_path):
    for folder, rate in ("monday", 1000), ("tuesday/again", 2000):
        write_run(tmp_path / folder / NAME.format(1), usual(3, rate))
    text, _, runs, _ = results(tmp_path)
    names = [f"monday/{NAME.format(1)}", f"tuesday/again/{NAME.format(1)}"]
    assert [run.name for run in runs] == names
    assert [run.study for run in runs] == ["monday", "tuesday"]
    assert [run.throughput[0] for run in runs] == [1000, 2000]
    assert [run.devices for run in runs] == [1, 1]
    assert len({run.label for run in runs}) == 2
    _, _, runs, _ = results(tmp_path / "monday", tmp_path / "tuesday" / "again", tmp_path)
    assert [run.name for run in runs] == [NAME.format(1), f"{NAME.format(1)} (2)"]
    assert [run.devices for run in runs] == [1, 1]


def test_restarts_are_stitched(tmp_path):
    """Six epochs, then, a day later, epochs 4 to 8 again from a checkpoint, twice as fast."""
    folder = tmp_path / NAME.format(1)
    write_run(folder, {"Top1/val": [1, 2, 3, 4, 5, 6]}, began=1e9)
    again = {"Top1/val": [40, 50, 60, 70, 80]}
    write_run(folder, again, began=1e9 + 86400, epoch_seconds=50, first=4)
    text, _, (run,), _ = results(tmp_path)
    series = run.series["Top1/val"]
    assert series.steps.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert series.values.tolist() == [1, 2, 3, 40, 50, 60, 70, 80]
    assert series.seconds.tolist() == [100, 200, 300, 350, 400, 450, 500, 550]
    (row,) = rows(text)
    assert (row["epochs"], row["training time"]) == ("8", "0:09:10")
    # The files' order on the disk, or their names, do not matter.
    for path in folder.iterdir():
        path.rename(folder / f"{1 - int(path.name[-1])}{path.name[::-1].replace('.', '-')}tfevents")
    assert results(tmp_path)[2][0].series["Top1/val"].values.tolist() == series.values.tolist()


def test_values_that_are_not_finite(tmp_path):
    tags = usual(4) | {"Loss/train": [2, float("nan"), float("inf"), 1], "Top1/val": [float("nan")]}
    write_run(tmp_path / NAME.format(1), tags | {"Top5/val": [10, 30, float("nan"), 20]})
    _, _, (run,), warnings = results(tmp_path)
    assert run.values("Loss/train").tolist() == [2, 1]
    assert "2 values of Loss/train, " in warnings[0]
    (row,) = rows(in_full("runs", tmp_path))
    assert row["val top-5, last / best, %"] == "20.00 / 30.00"
    assert "nan" not in json.dumps(row).lower()


def test_resumed_run_has_not_ended_as_before(tmp_path):
    end = {"reason": "all 2 epochs are done"}
    write_run(tmp_path / "run", usual(2), about=about(), end=end)
    assert rows(in_full("runs", tmp_path))[0]["ended"] == "all 2 epochs are done"
    write_run(tmp_path / "run", usual(1), began=2e9, first=3, about=about())
    (row,) = rows(in_full("runs", tmp_path))
    assert (row["ended"], row["epochs"]) == ("not logged", "3")


def test_run_resumed_in_another_folder(tmp_path):
    """Its times go on from those that its checkpoint brought."""
    resumed = {"epoch": 4, "seconds": 400.0}
    write_run(
        tmp_path / "a", usual(2), first=5, about=about(desired_acc=0.2) | {"resumed": resumed}
    )
    write_run(tmp_path / "b", usual(2), first=5, about=about())
    _, _, runs, (warning,) = results(tmp_path)
    table = {row["run"]: row for row in rows(in_full("runs", tmp_path))}
    assert (table["a"]["epochs"], table["a"]["training time"]) == ("6", "0:10:00")
    assert table["a"]["time to desired accuracy"] == "0:10:00 (20 %)"
    assert warning == "b: its log starts at epoch 5, and its times lack what came before"


def test_all_starts_of_a_run_are_told(tmp_path):
    first, second = about("ddp_apex", 2), about("ddp_apex", 2)
    first["command"] += ["--epochs", "4", "--local-rank=0"]
    # Today's logs have a line; older ones, as the first, a list of words.
    second["command"] = "python imagenet_ddp_apex.py --resume 'my run/checkpoint.pt'"
    for each in first, second:
        each["environment"] = {"TORCHELASTIC_RUN_ID": "none"}
    write_run(tmp_path / "run", usual(2), about=first)
    write_run(tmp_path / "run", usual(2), began=2e9, first=3, about=second)
    text = in_full("run", tmp_path)
    start = "torchrun --nproc_per_node=2 imagenet_ddp_apex.py"
    assert f"```bash\n{start} --epochs 4\n{start} --resume 'my run/checkpoint.pt'\n```" in text
    assert "Started 2 times." in text


def test_samples_of_a_killed_epoch_do_not_count(tmp_path):
    """Sampled at steps 10 to 60, then again, from step 35 on, at 45 and 55."""
    for began, first, values in (1e9, 1, [1, 1, 1, 9, 9, 9]), (2e9, 4.5, [2, 2]):
        path = write_run(tmp_path / "run", {}, began=began)
        with open(path, "ab") as file:
            for place, value in enumerate(values):
                summary = Summary(value=[Summary.Value(tag=NETWORK, simple_value=value)])
                step, wall = int(10 * (first + place)), began + 5 * (place + 1)
                event = Event(wall_time=wall, step=step, summary=summary)
                RecordWriter(file).write(event.SerializeToString())
    (run,) = results(tmp_path)[2]
    series = run.series[NETWORK]
    assert series.steps.tolist() == [10, 20, 30, 40, 45, 55]
    assert series.seconds.tolist() == [5, 10, 15, 20, 25, 30]


@pytest.mark.parametrize("by_epoch", [False, True])
def test_traffic_of_a_run_resumed_in_another_folder(by_epoch, tmp_path):
    """Its first sample weighs what it took, not what came before; logged now and then, or once an
    epoch."""
    resumed = about() | {"resumed": {"epoch": 4, "seconds": 400.0}, "steps_per_epoch": 100}
    tags = {"Top1/val": [1, 2], "Lr": [1, 1], NETWORK: [1, 3], "IO/read_MBps": [1, 3]}
    path = write_run(tmp_path / "run", {}, about=resumed)
    with open(path, "ab") as file:
        for tag, values in tags.items():
            for place, value in enumerate(values):
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                step = 5 + place if by_epoch or tag in ("Top1/val", "Lr") else 500 + 100 * place
                event = Event(wall_time=1e9 + 50 * (place + 1), step=step, summary=summary)
                RecordWriter(file).write(event.SerializeToString())
    (run,) = results(tmp_path)[2]
    assert (run.mean(NETWORK), run.mean("IO/read_MBps"), run.training_seconds) == (2, 2, 500)


def test_runs_without_throughput_or_epochs(tmp_path):
    """Zero images/s, and a run that ended in its first epoch."""
    write_run(tmp_path / "still", usual(4, rate=0.0), about=about())
    write_run(tmp_path / "young", {"Loss/step": [3, 2]}, about=about() | {"steps_per_epoch": 9})
    table = rows(results(tmp_path)[0])
    assert sorted(row["epochs"] for row in table) == ["4", "–"]
    assert all("images/s" not in row for row in table)  # an empty column


def test_unknown_tags_are_told(tmp_path):
    write_run(tmp_path / "logs" / "run", {"train/loss": [3, 2, 1], "acc": [1, 2, 3]})
    assert "of its tags, acc, train/loss, none" in cli(tmp_path / "logs", "--out", tmp_path / "out")
    assert (tmp_path / "out" / "RESULTS.md").exists()


def test_unknown_tags_beside_known_ones_are_told(tmp_path):
    write_run(tmp_path / "run", {**usual(3), "acc": [1], "Norm/weights": [2]})
    assert results(tmp_path)[3] == [
        "run: tags that these scripts do not log are not used: Norm/weights, acc"
    ]
    write_run(tmp_path / "run", {**usual(3), "Lr": [1], "Loss/step": [2], NETWORK: [3]})
    assert not results(tmp_path)[3]


def test_runs_of_one_epoch_are_drawn_as_points(tmp_path):
    write_run(tmp_path / "one", usual(1))
    write_run(tmp_path / "two", usual(2))
    axes = panel(results(tmp_path)[1], "validation top-1")
    assert [bool(line["marker"]) for line in axes["lines"]] == [True, False]


def test_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = write_run(tmp_path / NAME.format(1), usual(2))
    write_run(tmp_path / NAME.format(2), usual(2))

    def refuse(file):
        if file == str(path):
            raise PermissionError("may not be read")
        return loader(file)

    loader = read.RawEventFileLoader
    monkeypatch.setattr(read, "RawEventFileLoader", refuse)
    _, _, (run,), warnings = results(tmp_path)
    assert run.name == NAME.format(2)
    assert f"{path}: cannot be read further (may not be read)" in warnings


def of_text(task, arch, **more):
    """Returns what text_nd.py logs of itself, on a GPU."""
    found = about(task=task, arch=arch, **more)
    found |= {"command": ["python", "text_nd.py"], "data": "/x/RTE/train.tsv", "vocabulary": 39}
    return found | {"steps_per_epoch": 77, "device": "V100"}


CLASSES = {"Accuracy": [70, 93, 91], "F1": [80, 95, 94], "MCC": [0, 0.8, 0.7]}


def test_runs_of_text_among_others(tmp_path):
    """Each measure has its place, nothing is called unknown or missing that a task has not."""
    losses = {f"Loss/{part}": [3, 2, 2.5] for part in ("train", "val")}
    rate = {"Throughput/train": [100.0] * 3, "Throughput/val": [1] * 3, "Lr": [1] * 3}
    times = {f"Time/{part}": [1] * 3 for part in ("train", "val")}
    usual_of_text = losses | rate | times
    both = [(tag, part) for tag in CLASSES for part in ("train", "val")]
    classes = usual_of_text | {f"{tag}/{part}": CLASSES[tag] for tag, part in both}
    blocks = usual_of_text | {f"Perplexity/{part}": [20, 7, 12] for part in ("train", "val")}
    write_run(tmp_path / "bert", classes, about=of_text("rte", "bert", desired_acc=0.9))
    write_run(tmp_path / "gpt", blocks, about=of_text("lm", "gpt"))
    text, figures, runs, warnings = results(tmp_path)
    assert warnings == [] and [run.items for run in runs] == ["sequences"] * 2
    bert, gpt = rows(text)
    assert bert["validation, last / best"] == "accuracy 91.00 / 93.00 %" and "top-1" not in text
    assert gpt["validation, last / best"] == "perplexity 12.00 / 7.00"
    assert bert["sequences/s"] == "100 ± 0" and bert["what"] == "bert, rte: RTE (vocabulary 39)"
    assert [run.seconds_to_desired for run in runs] == [200, None]
    for label in "accuracy, %", "MCC", "perplexity", "validation accuracy":
        assert panel(figures, label)["lines"], label
    assert "Not logged" not in in_full("bert", tmp_path) + in_full("gpt", tmp_path)
    write_run(tmp_path / "resnet", usual(3), about=about())
    text, _, runs, warnings = results(tmp_path)
    assert warnings == [] and [row["items/s"] for row in rows(text)].count("1,000 ± 0") == 1
    (resnet,) = [row for row in rows(text) if row["run"] == "resnet"]
    assert resnet["val top-1, last / best, %"] == "30.00 / 30.00"
    assert resnet["validation, last / best"] == "–"
    write_run(tmp_path / "odd", blocks, about=of_text(["lm"], "gpt") | {"vocabulary": "many"})
    text, _, runs, warnings = results(tmp_path)
    assert len(rows(text)) == 4 and "options.task is ['lm']" in " ".join(warnings)


def test_links_to_folders(tmp_path):
    write_run(tmp_path / "elsewhere" / NAME.format(1), usual(2))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "logs" / "loop").symlink_to(tmp_path / "logs")
    _, _, (run,), warnings = results(tmp_path / "logs")
    assert (run.name, run.study, warnings) == (NAME.format(1), "linked", [])


def test_precisions_side_by_side(tmp_path):
    """Against the full precision of the same script; no ratio where that is missing."""
    for script, precision, rate in [
        ("nd", "float32", 100),
        ("nd", "bfloat16", 150),
        ("ddp_apex", "O1", 300),
        ("ddp_apex", "O3", 400),
    ]:
        run = about(script, precision=precision)
        write_run(tmp_path / f"{script} {precision}", usual(3, rate), about=run)
    (apex, nd) = rows(results(tmp_path)[0], "model")
    assert (nd["float32"], nd["bfloat16"]) == ("100 (1.00)", "150 (1.50)")
    assert (apex["O1 float16"], apex["O3 float16"]) == ("300", "400")


def test_many_runs_on_one_device(tmp_path):
    """As a study of throughput has them: every one is shown."""
    for serial in range(48):
        run = about(batch_size=serial + 1, dummy=True)
        write_run(tmp_path / f"run{serial}", usual(2, serial + 1), about=run)
    text, figures, *_ = results(tmp_path)
    (axes,) = figures["figures/runs"]  # synthetic images teach nothing: no curves
    assert sorted(value for _, value, *_ in axes["bars"]) == list(range(1, 49))
    assert len({colour for _, _, colour, _ in axes["bars"]}) == 48
    assert "±" not in text.split("## All runs")[1] and len(rows(text)) == 48


def test_imagenet_dir_is_named(tmp_path):
    run = about() | {"data": "/data/imagenet", "num_classes": 1000, "image_size": 224}
    run["environment"] = {"IMAGENET_DIR": "/data/imagenet", "OMP_NUM_THREADS": "4"}
    write_run(tmp_path / "run", usual(2), about=run)
    text = in_full("all", tmp_path)
    assert "**resnet18, imagenet (1000 classes, 224 pixels), " in text
    repeated = "OMP_NUM_THREADS=4 IMAGENET_DIR=/data/imagenet python imagenet_nd.py"
    assert f"```bash\n{repeated}\n```" in text


@pytest.mark.parametrize("words", [["nowhere"], ["."], ["empty.csv"], [".", "--desired-acc", "75"]])
def test_bad_input_is_one_line(words, tmp_path):
    (tmp_path / "empty.csv").touch()
    (tmp_path / "folder").mkdir()
    words = [tmp_path / words[0], *words[1:]]
    (line,) = cli(*words, "--out", tmp_path / "out", status=2).splitlines()
    assert line.startswith("make_results.py: error: ")
    assert not (tmp_path / "out").exists()


# --------------------------------------------------------------------------------------- CSV files

EXPORTS = {
    "comma": "Wall time,Step,Value\n1000000100.5,1,10.5\n1000000200.5,2,20.5\n",
    "semicolon": "Wall time;Step;Value\n1000000100.5;1;10.5\n1000000200.5;2;20.5\n",
    "decimal comma": "Wall time;Step;Value\n1000000100,5;1;10,5\n1000000200,5;2;20,5\n",
    "tab": "Wall time\tStep\tValue\r\n1000000100.5\t1\t10.5\r\n1000000200.5\t2\t20.5\r\n",
    "quotes": '\ufeff"Step","Wall time","Value"\n"1","1000000100.5","10.5"\n2,1000000200.5,20.5\n',
    "cut off": "Wall time,Step,Value\n1000000100.5,1,10.5\n1000000200.5,2,20.5\n10000",
    "words": "Wall time,Step,Value\n1000000100.5,1,10.5\n1000000200.5,2,20.5\n3,what,no\n",
}


@pytest.mark.parametrize("kind", EXPORTS)
def test_csv_exports(kind, tmp_path):
    for tag in "Top1_val", "Throughput_train":
        (tmp_path / f"run-{NAME.format(8)}-tag-{tag}.csv").write_text(EXPORTS[kind])
    _, _, (run,), warnings = results(tmp_path)
    assert (run.name, run.devices, sorted(run.series)) == (
        NAME.format(8),
        8,
        ["Throughput/train", "Top1/val"],
    )
    series = run.series["Top1/val"]
    assert (series.steps.tolist(), series.values.tolist()) == ([1, 2], [10.5, 20.5])
    assert series.seconds.tolist() == [100, 200]  # the first epoch is taken for a usual one
    assert len(warnings) == (2 if kind in ("cut off", "words") else 0)


def test_csv_exports_sorted_by_tag(tmp_path):
    """Five runs of three tags, a folder for each tag, are five runs; and two studies' stay two."""
    for tag in "Top1_val", "Loss_val", "Throughput_train":
        (tmp_path / "sorted" / tag).mkdir(parents=True)
        for devices in range(1, 6):
            name = f"run-{NAME.format(devices)}-tag-{tag}.csv"
            (tmp_path / "sorted" / tag / name).write_text(EXPORTS["comma"])
    (tmp_path / "sorted" / f"run-{NAME.format(1)}-tag-Lr.csv").write_text(EXPORTS["comma"])
    _, _, runs, warnings = results(tmp_path)
    assert [run.name for run in runs] == [NAME.format(devices) for devices in range(1, 6)]
    assert [len(run.series) for run in runs] == [4, 3, 3, 3, 3] and not warnings
    assert {run.study for run in runs} == {"sorted"}
    for study in "first", "second":
        (tmp_path / "two" / study).mkdir(parents=True)
        path = tmp_path / "two" / study / f"run-{NAME.format(1)}-tag-Top1_val.csv"
        path.write_text(EXPORTS["comma"])
    assert {run.study for run in results(tmp_path / "two")[2]} == {"first", "second"}


@pytest.mark.parametrize("text", ["", "Time,Count\n1,2\n", "Wall time:Step:Value\n1:1:1\n"])
def test_csv_exports_that_are_none(text, tmp_path):
    write_run(tmp_path / NAME.format(1), usual(2))
    path = tmp_path / f"run-{NAME.format(8)}-tag-Lr.csv"
    path.write_text(text)
    _, _, runs, warnings = results(tmp_path)
    assert [run.name for run in runs] == [NAME.format(1)]
    assert str(path) in warnings[0]


@pytest.mark.parametrize(
    "text",
    [
        '"Time";"Read"\n"2020-04-30T16:22:00-05:00";1.5\n"2020-04-30T16:24:00-05:00";2.5\n',
        "Read,Time\n1.5,2020-04-30T21:22:00Z\n2.5,2020-04-30T21:24:00Z\n",
        '"Time";"Read"\n1588281720;1,5\n1588281840;2,5\n',
        "Time\tWrite\tRead\n1588281720000\t9\t1.5\n1588281840000\t9\t2.5\n",
    ],
)
def test_io_csv_separators(text, tmp_path):
    (tmp_path / "io.csv").write_text(text)
    (minutes, reads), _ = read.read_io_csv(tmp_path / "io.csv", tmp_path / "io.csv")
    assert (minutes.tolist(), reads.tolist()) == ([0, 2], [1.5, 2.5])


@pytest.mark.parametrize("text", [None, "", "Time;Write\n1;2\n", "Time;Read\nMonday;2\n"])
def test_io_csv_that_is_none(text, tmp_path):
    write_run(tmp_path / "runs" / NAME.format(1), usual(2))
    path = tmp_path / "io.csv"
    if text is not None:
        path.write_text(text)
    (line,) = cli(tmp_path / "runs", "--io-csv", path, path, status=2).splitlines()
    assert str(path) in line


# ------------------------------------------------------------------------------- logs of strangers

UNDRAWN = [sys.executable, "-c", "import sys, make_results; sys.argv[0] = 'make_results.py'; "]
UNDRAWN[2] += "make_results.draw = lambda *_: None; make_results.main()"  # drawing takes long


def test_hostile_logs(tmp_path, monkeypatch):
    """All of them in one start: each is named or shown as text, and the others are shown."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    rows = chaos_logs.hostile_logs(tmp_path, UNDRAWN)
    assert len(rows) > 50 and not [what for what, held in rows if not held]


def test_hostile_texts_are_drawn(tmp_path):
    """Names of studies become files in the folder of figures, and links lead to them."""
    names = f"é {chaos_logs.IMAGE}", "\x1b[31m", "x" * 255, "..."
    for name in names:
        write_run(tmp_path / "logs" / name / name, {"Top1/val": [1, 2]})
    assert "\x1b" not in cli(tmp_path / "logs", "--out", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"logs", "out"}
    page = (tmp_path / "out" / "RESULTS.md").read_text()
    links = re.findall(r"!\[.*\]\((\S+)\)", page)
    assert len(links) == 4 and "/%C3%A9_" in page
    for link in links:
        made = tmp_path / "out" / urllib.parse.unquote(link)
        assert (tmp_path / "out" / "figures") in made.resolve().parents
        assert PIL.Image.open(made).size[0] > 400


ODD_TEXTS = [chaos_logs.IMAGE, "[x](javascript:alert(1))", "[x]: javascript:alert(1)", "\\<b>"]
ODD_TEXTS += [
    "<javascript:alert(1)>",
    "a\n\n# b",
    "# b",
    "- b",
    "1. b",
    "---",
    "===",
    "> b",
    "    b",
]
ODD_TEXTS += ["```", "`b`", "a | b | c", "a\\b", "*b* __b__ _b_", "&lt;b&gt;"]
ODD_TEXTS += ["{: onclick=alert(1) }", "plain_name-of_a run, 1.5 (x)"]


@pytest.mark.parametrize("odd", ODD_TEXTS)
def test_text_is_shown_as_text(odd):
    """By a renderer that sanitises nothing: the same text, no elements but those around it."""
    shown = text.visible(odd).strip()
    for before, after, tags in (
        ("", "", ["p"]),
        ("### ", "", ["h3"]),
        ("x\n\n", ": (y)", ["p", "p"]),
        ("| a |\n| --- |\n| ", " |", "table thead tr th tbody tr td".split()),
    ):
        source = before + text.escape(odd) + after
        made = markdown.markdown(source, extensions=["tables", "fenced_code", "attr_list"])
        assert re.findall(r"<(\w+)", made) == tags, source
        plain = html.unescape(re.sub(r"<[^>]+>", "", made))
        assert shown in re.sub(r"\\(?=[|~=])", "", plain).replace("\n", ""), source
    assert text.escape("Nov22_gpux2_b8, 1.5 % (-3)") == "Nov22_gpux2_b8, 1.5 % (-3)"


def test_a_block_of_code_has_no_end_within():
    lines = text.fence(["python x.py '", "````", "<b>'"])
    assert lines[0] == "`````bash" and lines[-1] == "`````"
    assert text.code("a") == "`a`" and "`" not in text.code("a`<b>").replace("\\`", "")


def test_mutated_texts(tmp_path):
    """Each value of "about" and "end", absent and of other types, in one start: all runs that are
    as they should be are shown, and no exception ends it."""
    full = chaos_logs.ABOUT | {"resumed": {"epoch": 1, "seconds": 5}, "cores": 2, "threads": 1}
    full["options"] = full["options"] | {"lr": 0.1, "desired_acc": 0.5, "recipes": {}, "mixup": 0}
    full["environment"] = {"OMP_NUM_THREADS": "1"}
    whole = {"about": full, "end": {"reason": "done", "epochs": 2, "test_top1": 5.0}}
    paths = [(tag, name) for tag in whole for name in whole[tag]]
    paths += [("about", *each) for each in [("place", name) for name in full["place"]]]
    paths += [("about", "options", name) for name in full["options"]]
    odd = [None, "x", -1, 1e400, [[]], {"x": []}, "absent"]
    for serial, (path, value) in enumerate((path, value) for path in paths for value in odd):
        texts = json.loads(json.dumps(whole))
        *above, last = path
        inside = texts
        for name in above:
            inside = inside[name]
        inside.pop(last) if value == "absent" else inside.update({last: value})
        study = ("parity", "recipe_x", "transfer_cpu", "scaling")[serial % 4]
        write_run(tmp_path / study / f"run{serial}", usual(2) | {"Loss/step": [1.0, 0]}, **texts)
    for devices in 1, 2, 4:
        write_run(tmp_path / "scaling" / NAME.format(devices), usual(2))
    _, _, runs, warnings = results(tmp_path)
    everything = in_full("all", tmp_path)
    shown = {*re.findall(r"(?m)^\| run(\d+) \|", everything)}
    named = set(re.findall(r"\brun(\d+)\b", " ".join(warnings)))
    assert named | shown == set(map(str, range(serial + 1))) and len(shown) > serial / 2
    assert all(f"\n| {NAME.format(devices)} |" in everything for devices in (1, 2, 4))


def test_traffic_that_is_not_counted(tmp_path):
    """On GPUs nothing says what was sent: the other counters are shown, old logs' traffic too."""
    expected = {"Network/expected_MB_per_step": [50.0, 50], "IO/read_MBps": [7.0, 7]}
    write_run(tmp_path / "new", usual(2) | expected, about=about("ddp", 2))
    _, _, (run,), warnings = results(tmp_path)
    (row,) = rows(in_full("runs", tmp_path), "run | what | read, MB/s")
    assert row["read, MB/s"] == "7.00" and not [name for name in row if "MB/step" in name]
    assert not warnings and run.mean(NETWORK) is None
    sent = {NETWORK: [60.0, 60], "Network/received_MB_per_step": [55.0, 55]}
    write_run(tmp_path / "old", usual(2) | expected | sent, about=about("ddp", 2))
    new, old = rows(in_full("runs", tmp_path), "run | what | read, MB/s")
    assert (old["sent, MB/step"], old["sent / expected"]) == ("60.00", "1.200")
    assert new["sent, MB/step"] == new["received, MB/step"] == "–"


# ------------------------------------------------------------------------------------- staleness


def test_stale_results_are_found(tmp_path):
    for devices in (1, 2):
        tags = {"Top1/val": [10, 20], "Throughput/train": [900 * devices] * 2}
        write_run(tmp_path / "logs" / NAME.format(devices), tags)
    words, figures = [tmp_path / "logs", "--out", tmp_path], tmp_path / "figures"
    cli(*words)
    made = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    cli(*words)
    assert all(path.read_bytes() == content for path, content in made.items())
    for name, spoil in {
        "RESULTS.md": lambda path: path.write_text(path.read_text().replace("900", "901", 1)),
        "figures/runs.png": lambda path: path.unlink(),
        "figures/old.png": lambda path: shutil.copy(figures / "runs.png", path),
    }.items():
        spoil(tmp_path / name)
        line = cli(*words, "--check", status=1)
        assert "stale" in line and Path(name).stem in line
        cli(*words)
        cli(*words, "--check")
    assert not (figures / "old.png").exists()
    other = draw.study_panels(read.read_runs([tmp_path / "logs"])[0][:0], None)
    draw.draw([*other, {"xlabel": "x", "ylabel": "y", "lines": []}], figures / "runs")
    assert "figures/runs" in cli(*words, "--check", status=1)
    tags = {"Top1/val": [10, 20, 30], "Throughput/train": [1800] * 3}
    write_run(tmp_path / "logs" / NAME.format(2), tags)
    line = cli(*words, "--check", status=1)
    assert "RESULTS.md" in line and "figures/runs" in line


@pytest.mark.slow
def test_results_of_other_logs_are_not_replaced_unasked(tmp_path):
    write_run(tmp_path / "a" / NAME.format(1), {"Lr": [1, 2]})
    write_run(tmp_path / "b" / NAME.format(2), {"Lr": [1, 2]})
    start = {"cwd": tmp_path, "capture_output": True, "text": True}
    words = [sys.executable, ROOT / "make_results.py"]
    for more, status in (["a"], 0), (["b"], 2), (["a"], 0), (["b", "--out", "."], 0):
        done = subprocess.run([*words, *more], **start)
        assert done.returncode == status, done.stderr
        assert status == 0 or "give --out" in done.stderr
    assert NAME.format(2) in (tmp_path / "RESULTS.md").read_text()


def test_bars_have_their_names(tmp_path):
    for precision in "O0", "O1":
        write_run(tmp_path / "logs" / precision, usual(3), about=about(precision=precision))
    bars = next(each for each in results(tmp_path)[1]["figures/logs"] if "bars" in each)["bars"]
    assert [name for name, *_ in bars] == ["O0", "O1 float16"]
    axes = draw.Figure().subplots()
    draw.draw_bars(axes, bars)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["O0", "O1 float16"]


def test_curves_are_the_values(tmp_path):
    """However many: a moving average would end elsewhere."""
    top1 = [float(epoch % 7) for epoch in range(30)]
    write_run(tmp_path / "few", {"Top1/val": top1[:5]})
    write_run(tmp_path / "many", {"Top1/val": top1})
    axes = panel(results(tmp_path)[1], "top-1")
    assert [line["y"].tolist() for line in axes["lines"]] == [top1[:5], top1]


def test_figures_of_others_stay(tmp_path):
    write_run(tmp_path / "logs" / NAME.format(1), {"Lr": [1, 2]})
    (tmp_path / "figures").mkdir()
    info = PIL.PngImagePlugin.PngInfo()
    info.add_text("Description", "a picture of my own")
    PIL.Image.new("RGB", (9, 9)).save(tmp_path / "figures" / "own.png", pnginfo=info)
    cli(tmp_path / "logs", "--out", tmp_path)
    assert (tmp_path / "figures" / "own.png").exists()


def test_figures_depend_on_the_drawing_code(monkeypatch):
    panels = [{"xlabel": "x", "lines": [{"x": [1, 2], "y": [0.1 + 0.2, 1]}]}]
    same = [{"xlabel": "x", "lines": [{"x": np.array([1, 2]), "y": [0.3, 1]}]}]
    mark = draw.fingerprint(panels)
    assert mark == draw.fingerprint(same)
    assert mark != draw.fingerprint([{**panels[0], "xlabel": "z"}])
    monkeypatch.setattr(draw, "draw", results)
    assert mark != draw.fingerprint(panels)


# ----------------------------------------------------------------------------------- our own logs


def test_runs_named_otherwise(tmp_path):
    """What a run is, its log says, whatever its folder is called."""
    source = next((LOGS / "scaling_cpu").glob("*gpux4*"))
    shutil.copytree(source, tmp_path / "my run")
    _, _, (run,), _ = results(tmp_path)
    (there,) = (run for run in results(LOGS)[2] if run.name == source.name)
    assert run.name == "my run" and run.label == "my run"
    for name in "arch devices batch global_batch precision script hardware data".split():
        assert getattr(run, name) == getattr(there, name), name
    assert run.devices == 4 and run.precision == "float32"


def test_commands_repeat_the_runs(monkeypatch):
    """Each parses into the options that its run logged."""
    text, runs = in_full("all", LOGS), results(LOGS)[2]
    runs = [run for run in runs if run.about]  # the cluster's logged no command
    commands = re.findall(r"```bash\n(?:.+\n)*?(.+)\n```", text)  # each run's last
    assert len(commands) == len(runs) >= 11
    for command, run in zip(commands, runs, strict=True):
        words = shlex.split(command)
        script = next(n for n, word in enumerate(words) if word.endswith(".py"))
        module = importlib.import_module(words[script].removesuffix(".py"))
        parsed = vars(module.parse_args(words[script + 1 :]))
        newer = parsed.keys() - run.options.keys()  # options that came after the run
        defaults = vars(module.parse_args([]))
        left = run.options.keys() - parsed.keys()  # and that went
        assert left <= {"prof", "sync_bn"} and not any(run.options[name] for name in left)
        logged = {name: run.options[name] for name in parsed.keys() - newer}
        logged["recipes"] = {}
        assert parsed == logged | {name: defaults[name] for name in newer}
        ranks = re.search(r"(?:--nproc_per_node=|-np )(\d+)", " ".join(words[:script]))
        spawned = run.options.get("nproc_per_node") or 1
        assert run.devices == (int(ranks[1]) if ranks else spawned)


def test_the_page_is_short_and_names_all():
    """RESULTS.md as committed: each run of a study without a section is a row, of the others
    --show has them, each study and benchmark has its --show, no table is long but that of runs, and
    no figure is there that is not shown."""
    text, runs = (ROOT / "RESULTS.md").read_text(), read.read_runs([LOGS])[0]
    assert text.count("\n") <= 400
    listed = rows(text)
    rest = [run for run in runs if f"\n## Study {run.study}\n" in text]
    assert [row["run"] for row in listed] == [run.name for run in rest] and len(rest) > 10
    for study in {run.study for run in runs} - {run.study for run in rest}:
        shown = in_full(study, LOGS)
        assert all(run.name in shown for run in runs if run.study == study)
    names = {run.study for run in runs} | {path.stem for path in (LOGS / "benchmarks").iterdir()}
    assert {*re.findall(r"`python make_results\.py logs --show (\S+)`", text)} == {*names, "NAME"}
    tables = re.findall(r"(?m)(?:^\|.*\n)+", text.partition("## Runs")[0])
    assert tables and max(table.count("\n") for table in tables) <= 2 + report.MOST
    order = "How fast accurate scales Same curve survives sends Text Methods Study Benchm Runs"
    assert re.search(order.replace(" ", ".*"), text, re.DOTALL)
    pages = [ROOT / name for name in ("RESULTS.md", "README.md", *(ROOT / "docs").glob("*.md"))]
    linked = {name for page in pages for name in re.findall(r"figures/\w+\.\w+", page.read_text())}
    assert linked == {f"figures/{path.name}" for path in (ROOT / "figures").iterdir()}


def test_show_prints_in_full(tmp_path):
    """A run with its command, options, end and epochs; what is called otherwise is one line."""
    of = about(lr=0.1) | {"steps_per_epoch": 9}
    write_run(tmp_path / "one" / NAME.format(1), usual(2), about=of, end={"reason": "done"})
    write_run(tmp_path / "two" / NAME.format(2), usual(2))
    shown = cli(tmp_path, "--show", NAME.format(1))
    assert "python imagenet_nd.py" in shown and "`arch=resnet18, " in shown
    assert "At the end: reason done." in shown
    assert [row["Top1/val"] for row in rows(shown, "epoch")] == ["10", "20"]
    assert [row["run"] for row in rows(cli(tmp_path, "--show", "two"))] == [NAME.format(2)]
    every = cli(tmp_path, "--show", "all")
    assert all(part in every for part in (shown, "## Study one", "## Study two"))
    for wrong, near in {"gpux2": NAME.format(2), "thwo": "two", "|": "one"}.items():
        (line,) = cli(tmp_path, "--show", wrong, status=2).splitlines()
        assert f"--show {wrong}: " in line and f"there are {near}" in line
    (line,) = cli(tmp_path, "--show", "", status=2).splitlines()
    assert "--show : nothing is called so" in line
    (line,) = cli(tmp_path, "--show", "one", "--check", status=2).splitlines()
    assert "not allowed with" in line
    assert not (tmp_path / "RESULTS.md").exists()


def test_a_test_beside_a_run(tmp_path):
    """As tools/look.py writes it: instead of what older scripts logged at their end."""
    end = {"reason": "done", "epochs": 2.0, "seconds": 9.0, "best_top1": 20.0, "best_loss": 1.0}
    test = {"checkpoint": "model_best.pt", "top1": 71.5, "top5": 90.2, "loss": 1.23, "count": 9}
    of = {"test_top1": 71.5, "test_top5": 90.2, "test_loss": 1.23}
    for name, logged, beside, wanted in [
        ("new", end, test, end | of),
        ("both", end | {"test_top1": 1.0}, test, end | of),
        ("old", end | {"test_top1": 1.0}, None, end | {"test_top1": 1.0}),
        ("odd", end, {"top1": 71.5}, end),
        ("text", end, test | {"top1": "high"}, end),
        ("large", end, test | {"top1": 1e99}, end),
    ]:
        write_run(tmp_path / name / name, usual(2), about=about(), end=logged)
        if beside:
            (tmp_path / name / name / "test.json").write_text(json.dumps(beside))
        _, _, (run,), warnings = results(tmp_path / name)
        assert run.end == wanted, name
        assert bool(warnings) == (name in ("odd", "text", "large"))
        assert all(f"{name}/test.json: " in warning for warning in warnings)


def test_claims_are_of_the_logs(tmp_path):
    """Of the run that trained on most images, and of benchmarks; scripts without logs have none."""
    sizes = {"data": "/x/cifar10", "image_size": 32, "device": "V100", "steps_per_epoch": 10}
    for name, script, epochs in ("a", "ddp", 2), ("b", "ddp", 3), ("c", "nd", 9), ("d", "fsdp", 9):
        folder = tmp_path / ("parity" if name == "c" else "mine") / name
        write_run(folder, usual(epochs), about=about(script, 2) | sizes)
    write_run(tmp_path / "mine" / "bare", usual(9), about=about("ddp", 2))  # on what, is not said
    runs, _ = read.read_runs([tmp_path])
    row = {"name": "imagenet_ddp.py --amp bfloat16", "values": [30.0]}
    loop = {"title": "Training resnet18 on JPEGs, 32 images of 224 pixels per step"}
    loop |= {"rows": [row, {"name": "theirs' loop", "values": [15.0]}], "baseline": "theirs' loop"}
    loop["about"] = {"cores": 2, "processor": "CPU"}
    expected = (
        "Measured: resnet18 to 30.0 % top-1 on cifar10 (32 pixels), 3 x 10 steps in 0:05:00, "
    )
    expected += (
        "2 GPUs; resnet18\nat 224 pixels: 30.0 images/s in bfloat16, 2.0 times theirs; V100; "
    )
    expected += "2 cores of CPU."
    found = claims.claims(runs, [loop])
    assert found == {"imagenet_ddp.py": expected}
    for script, docstring in [
        ("imagenet_ddp.py", f"Trains.\n\n{expected}\n\n    python x.py\n"),
        ("imagenet_nd.py", "Trains.\n"),
    ]:
        (tmp_path / script).write_text(f'"""{docstring}"""\n\nx = """Measured: no claim"""\n')
    assert claims.stale_claims(tmp_path, found) == []
    path = tmp_path / "imagenet_ddp.py"
    whole = path.read_text()
    for odd in (
        whole.replace("30.0 %", "31.0 %"),
        whole.replace("of CPU.", "of CPU. And"),
        '"""x"""',
    ):
        path.write_text(odd)
        (line,) = claims.stale_claims(tmp_path, found)
        assert line.startswith("imagenet_ddp.py: ") and line.endswith(expected)
    (line,) = (
        claims.stale_claims(tmp_path, {"imagenet_ddp.py": ""}) if path.write_text(whole) else []
    )
    assert line == "imagenet_ddp.py: what was measured is in no log: take it out"
    (tmp_path / "text_nd.py").write_text('"""Trains.\n\nMeasured: much.\n"""')
    (line,) = claims.stale_claims(tmp_path, found)
    assert line == "text_nd.py: what was measured is in no log: take it out"


def test_check_names_stale_claims(tmp_path, monkeypatch):
    """Of the scripts beside it, where the page beside it is checked."""
    of = about() | {"data": "x", "image_size": 32, "device": "V100", "steps_per_epoch": 10}
    write_run(tmp_path / "logs" / "a", usual(2), about=of)
    script = tmp_path / "imagenet_nd.py"
    script.write_text('"""Trains."""')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(make_results, "__file__", str(tmp_path / "make_results.py"))
    for out in [], ["--out", "out"]:
        cli("logs", *out)
        printed = cli("logs", *out, "--check", status=0 if out else 1)
        assert ("imagenet_nd.py: what was measured should be" in printed) == (not out)
    claim = cli("logs", "--show", "claims")
    assert claim.startswith("Measured: resnet18 to 20.0 % top-1")
    assert claim in cli("logs", "--check", status=1)
    script.write_text(f'"""Trains.\n\n{claim}"""')
    cli("logs", "--check")


def test_our_claims_fit():
    """Two lines each."""
    found = claims.claims(read.read_runs([LOGS])[0], report.read_benchmarks([LOGS])[0])
    assert len(found) >= 8
    for claim in found.values():
        assert claim.count("\n") < 2 and max(map(len, claim.splitlines())) <= 100


LONG = "scaling_cpu", "precision_cpu"  # studies of 500 steps or more


def test_our_logs_show_parity():
    """Same seed and global batch, same curve: one rank of any script is imagenet_nd.py, BatchNorm
    and all; two ranks of any are equal. (Four add up in another order, and 500 steps amplify.)"""
    runs = results(LOGS)[2]
    for ranks, scripts in (1, ["nd", "ddp", "horovod"]), (2, ["ddp_apex", "ddp", "horovod"]):
        same = [run for run in runs if run.devices == ranks and run.study.endswith("_cpu")]
        same = [run for run in same if run.arch == "resnet18" and run.study in LONG]
        same = [run for run in same if run.precision in ("float32", "O0")]
        assert sorted(run.script for run in same) == sorted(scripts)
        for tag in "Loss/train", "Loss/val", "Top1/val":
            for run in same:
                np.testing.assert_allclose(run.values(tag), same[0].values(tag), rtol=1e-5)
