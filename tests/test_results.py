"""make_results.py: what it reads from logs, good and damaged, and what it makes of them. The page
of logs/ itself is compared by `make_results.py logs --check`."""

import functools
import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
import urllib.parse
from types import SimpleNamespace
from unittest import mock

import markdown
import numpy as np
import pandas as pd
import PIL.Image
import pytest
import scipy.stats
from conftest import ROOT, command, complaint, events, run
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL.PngImagePlugin import PngInfo
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import summary as torch_summary

import make_results
from reporting import figures, findings, lessons, logs, page, peaks, scaling, tables

LOGS, V100 = ROOT / "logs", ROOT / "logs" / "v100_imagenet"
NAME = "Jan01_00-00-00_host_resnet50_gpux{}_b100_cpu4_optO2"


once = functools.cache(logs.read_events)


@functools.cache
def made():
    """Returns (the text of RESULTS.md, the figures' panels, {script: its claim}) that the
    repository's logs give."""
    runs, (bench, _) = logs.read_runs([LOGS])[0], logs.read_benchmarks([LOGS])
    return page.make_page(runs, bench, logs.read_study_io([LOGS]), [], "COMMAND")


def about(script="nd", ranks=1, **more):
    """Returns what the scripts log about themselves, the least of it, on a GPU."""
    place = {"device": "cuda:0", "ranks": ranks, "devices": 1, "local_ranks": ranks}
    options = {"arch": "resnet18", "batch_size": 32, "precision": "float32", **more}
    command = ["python", f"imagenet_{script}.py"]
    return {"command": command, "place": place, "options": options, "global_batch": 32 * ranks}


def write_run(folder, tags, began=1e9, epoch_seconds=100, steps=None, **texts):
    """Writes an event file of {tag: values}, one an epoch, or at `steps`, and of texts, made to
    JSON; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{began:.0f}.host.1.0"
    written = [Event(wall_time=began, file_version="brain.Event:2")]
    for tag, content in texts.items():
        summary = torch_summary.text(tag, f"```json\n{json.dumps(content)}\n```")
        written.append(Event(wall_time=began, summary=summary))
    longest = max(map(len, tags.values()), default=0)
    for place, step in enumerate(steps or range(1, longest + 1)):
        for tag, values in tags.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=values[place])])
            wall = began + (place + 1) * epoch_seconds
            written.append(Event(wall_time=wall, step=step, summary=summary))
    with open(path, "wb") as file:
        writer = RecordWriter(file)
        for event in written:
            writer.write(event.SerializeToString())
    return path


def usual(epochs, rate=1000.0):
    """Returns the tags of a run of so many epochs, top-1 rising by 10 %."""
    top1 = [10.0 * (epoch + 1) for epoch in range(epochs)]
    tags = ("Loss/train", "Loss/val", "Top1/train", "Top1/val", "Top5/train", "Top5/val")
    return dict.fromkeys(tags, top1) | {"Throughput/train": [rate] * epochs}


def one_run(folder):
    """Returns (the only run in a folder, warnings)."""
    (run,), warnings = logs.read_runs([folder])
    return run, warnings


def rows(text, first):
    """Returns the rows, {header: cell}, of the first table whose header begins so."""
    lines = text[text.index(f"\n| {first} |") + 1 :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


@pytest.fixture(autouse=True)
def repositorys_logs_are_read_once(monkeypatch):
    """Reading their events is most of the time of make_results.py."""

    def read(path, read=logs.read_events):
        return (once if LOGS in path.parents else read)(path)

    monkeypatch.setattr(logs, "read_events", read)


@pytest.fixture(autouse=True)
def figures_are_of_one_pixel(monkeypatch):
    """Drawing them is half the time of make_results.py. Each has its fingerprint all the same."""

    def write(panels, path):
        about = PngInfo()
        about.add_text("Description", figures.fingerprint(panels))
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.new("L", (1, 1)).save(path, pnginfo=about)

    monkeypatch.setattr(make_results, "draw", write)


@pytest.fixture
def cli(call_tool):
    """cli(*words, status=0) runs make_results.py in this process; returns what it prints."""

    def call(*words, status=0):
        output, errors = call_tool("make_results", *words, status=status)
        return errors if status else output

    return call


# --------------------------------------------------------------------------------- the V100's logs


def test_v100_numbers(cli):
    """As read by TensorBoard's EventAccumulator."""
    shown = rows(cli(LOGS, "--show", "v100_imagenet", "--desired-acc", "0.75"), "name")
    on_page, rates = rows((ROOT / "RESULTS.md").read_text(), "GPUs"), []
    assert [row["GPUs"] for row in on_page] == ["2", "4", "8", "16", "32", "64"]
    # By https://github.com/richardkxu/distributed-pytorch.
    published = "76.28 76.24 76.29 76.27 75.91 75.14".split()
    assert [row["last top-1, %"] for row in on_page] == published
    for row, cells in zip(shown, on_page, strict=True):
        folder, gpus = V100 / row["name"], int(row["devices"])
        logged = events(folder)
        tags = "Throughput/train", "Top1/val", "Top5/val"
        values = {tag: [event.value for event in logged.Scalars(tag)] for tag in tags}
        rate = np.array(values["Throughput/train"][1:])
        rates.append(rate.mean() / gpus)
        speed = f"{rate.mean():,.0f} ± {rate.std():,.0f}"
        assert (row["images/s"], cells["images/s"]) == (speed, speed)
        share = 100 * rates[-1] / rates[0]
        assert (row["efficiency"], cells["efficiency"]) == (f"{share:.1f} %", f"{share:.0f} %")
        for top in "15":
            last, best = (f"{each(values[f'Top{top}/val']):.2f}" for each in (lambda v: v[-1], max))
            assert cells[f"last top-{top}, %"] == last
            ends = f"{last} / {best}"
            assert (row[f"val top{top}, last / best"], cells[f"best top-{top}, %"]) == (ends, best)
        (path,) = folder.iterdir()
        began, seconds = int(path.name.split(".")[3]), {}
        for event in logged.Scalars("Top1/val"):
            seconds["all"] = event.wall_time - began
            if event.value >= 75:
                seconds.setdefault("75 %", event.wall_time - began)
        assert row["training time"] == cells["time, h:m:s"]
        goal, _, reached = row["desired"].partition(" in ")
        assert goal == "75 %"
        for clock, expected in (row["training time"], "all"), (reached, "75 %"):
            hours, minutes, rest = map(int, clock.split(":"))
            spent = 3600 * hours + 60 * minutes + rest
            assert spent == pytest.approx(seconds[expected], abs=2)


def test_the_last_epoch_is_the_headline():
    """The best one, which val/ itself has selected, stands beside it; also in typed pages."""
    text, runs = made()[0], logs.read_runs([V100])[0]
    last = {run.devices: [float(run.values(f"Top{n}/val")[-1]) for n in (1, 5)] for run in runs}
    best = {run.devices: run.values("Top1/val").max() for run in runs}
    eight, many = f"{last[8][0]:.1f}", f"{last[64][0]:.1f}"
    assert eight != f"{best[8]:.1f}" and many != f"{best[64]:.1f}"  # or nothing would be told apart
    assert f"- **{eight} % top-1** after the last of 90 epochs on 8 GPUs in 5:48:32" in text
    assert f"{many} % on 64 in 1:08:11. Their best epochs, selected on val/ itself:" in text
    assert f": {best[8]:.1f} and {best[64]:.1f} %." in text
    for row in rows(text, "GPUs"):
        (run,) = (run for run in runs if run.devices == int(row["GPUs"]))
        for n in "15":
            values = run.values(f"Top{n}/val")
            shown = [row[f"{which} top-{n}, %"] for which in ("last", "best")]
            assert shown == [f"{values[-1]:.2f}", f"{max(values):.2f}"]
    titles = [panel["title"] for panel in figures.accuracy(runs)]
    tops = [last[size][0] for size in last]
    assert f"{min(tops):.1f} to {max(tops):.1f} % top-1 after the last epoch" in titles[0]
    recipes = " ".join((ROOT / "docs" / "recipes.md").read_text().split())
    assert f"{eight} % after the last epoch in 5 h 49 min on 8, {many} % in 1 h 8 min" in recipes
    readme = " ".join((ROOT / "README.md").read_text().split())
    share, times = (
        re.search(r"64 GPUs reach (\d+) % of ideal", text)[1],
        r"(\d\.\d) times as fast as",
    )
    assert f"{eight} % top-1 in 5 h 49 min on 8, and {share} % of ideal scaling on 64." in readme
    speed = re.search(r"On one NVIDIA H200, ResNet-50 trains at ([\d,]+) images/s", text)[1]
    assert f"One NVIDIA H200: ResNet-50 trains at {speed} images/s on synthetic images" in readme
    loading = re.search(rf"{times} DALI, {times} FFCV .*?; {times} pytorch/examples", text).groups()
    assert loading[1:2] + loading[:1] != loading[:2]
    for factor, other in zip(loading, ("by DALI", "by FFCV", "in pytorch/ex"), strict=True):
        assert f"{factor} times as fast as {other}" in readme
    lessons = " ".join((ROOT / "docs" / "lessons.md").read_text().split())
    ends = f"{eight} % top-1 on 8 GPUs with 1,664 images per step, and at {many} % on 64 GPUs"
    assert f"ended at {ends}" in lessons
    learned = logs.read_runs([LOGS / "text_cpu"])[0]
    assert {run.options["task"]: f"{run.values('Loss/val')[-1]:.2f}" for run in learned}["lm"] in (
        re.findall("validation loss of (.*?) nats", text)
    )


def test_the_highest_last_epoch_counts(tmp_path, cli):
    """Not the run with the best epoch, whose last is the lowest."""
    for devices, last in (2, 20), (4, 50), (8, 30):
        tops = usual(3, 100 * devices) | {"Top1/val": [10, 90 if devices == 2 else 15, last]}
        write_run(tmp_path / "logs" / NAME.format(devices), tops)
    cli(tmp_path / "logs", "--out", tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    assert "**50.0 % top-1** after the last of 3 epochs on 4 GPUs" in text
    assert "; 30.0 % on 8 in " in text and "itself: 50.0 and 30.0 %." in text


def test_all_figures_of_the_cluster_say_whose_it_is():
    said = {name: {each.get("caption") for each in panels} for name, panels in made()[1].items()}
    theirs = {"accuracy", "scaling", "model", "io"}
    ours = {"speed", "parity", "recipe", "transfer", "bubble"}
    assert set.union(*(said[name] for name in ours)) == {None}
    (caption,) = set.union(*(said[name] for name in theirs))
    assert "2020 by the project whose design these scripts follow (https://" in caption


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_caption_stands_once_below_all_panels(count, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "Figure", lambda **look: drawn.append(Figure(**look)) or drawn[0])
    each = figures.panel({"a": [1, 2]}, "title", "x", "y", caption="measured by JO " * 20)
    figures.draw([each] * count, tmp_path / "a.png")
    (text,) = (text for text in drawn[0].findobj(Text) if "JO" in text.get_text())
    box = text.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= drawn[0].bbox.x1 and 0 <= box.y0
    assert all(box.y1 <= axes.get_tightbbox().y0 for axes in drawn[0].axes)


def test_v100_scaling_model(cli):
    """Fitted on 2 to 16 GPUs; the errors at 32 and 64 are those of a plain least squares here."""
    runs, _ = logs.read_runs([V100])
    devices = np.array([2, 4, 8, 16, 32, 64])
    seconds = 208 * devices / np.array([run.rate for run in runs])
    hops = 2 * (devices - 1)
    terms = np.stack([np.full(6, 208), hops / devices, hops], axis=1)
    weighted = terms[:4] / seconds[:4, None]
    plain = np.linalg.lstsq(weighted / [1, 1e-4, 1e-4], np.ones(4), rcond=None)[0] / [1, 1e-4, 1e-4]
    errors = seconds / (terms @ plain) - 1
    text = cli(LOGS, "--show", "v100_imagenet")
    shown = [row["error"] for row in rows(text, "devices")]
    assert shown == [f"{100 * error:+.1f} %" for error in errors[4:]] == ["+10.2 %", "+20.0 %"]
    limits = np.sqrt(np.diag(np.linalg.inv(weighted.T @ weighted)))
    limits *= scipy.stats.t.ppf(0.975, 1) * np.linalg.norm(weighted @ plain - 1)  # one run to spare
    of_4, of_6 = rows(text, "fitted on devices")
    for name, value, limit in zip(("compute", "volume", "latency"), plain, limits, strict=True):
        assert of_4[f"{name}, ms"] == f"{1e3 * value:.4g} ± {1e3 * limit:.2g}"
    assert of_6["volume, ms"] == "not identified"
    (panel,) = figures.model(scaling.study_scaling(runs))
    x, low, high = panel["band"]
    y, ideal = panel["curves"]["fitted on all"].array, panel["curves"]["ideal"].array
    assert x[-1] == pytest.approx(128)  # twice the largest
    worst = np.abs(errors).max()  # of the larger runs
    assert (y / low > 1 + 0.99 * worst).all() and high[-1] / y[-1] > 1 + worst
    assert (high >= y).all() and (high <= ideal * 1.001).all()


def test_a_cluster_is_shown_whatever_its_facts(tmp_path, cli):
    """Runs alone, without a study.json, and with a file system's counters; a larger run of another
    study has a section of its own, however that is called."""
    for devices in (2, 4, 8):
        write_run(tmp_path / "logs" / NAME.format(devices), usual(3, 100 * devices))
    write_run(tmp_path / "logs" / "parity of mine" / NAME.format(16), usual(3))
    counters = V100 / "bandwidth.csv", V100 / "iops.csv"
    cli(tmp_path / "logs", "--io-csv", *counters, "--out", tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    assert "**800 images/s**: resnet50 on 8 GPUs, 4.0 times the speed of 2, 100 % of ideal" in text
    assert "data not logged" in text and len(rows(text, "GPUs")) == 3
    made = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert made == {"accuracy", "scaling", "model", "io", "parity_of_mine"}
    assert [row["name"] for row in rows(text, "name")] == [NAME.format(16)]


READS = "; the scripts of today only read its logs"


@pytest.mark.parametrize("study", ["theirs", "sent", "today"])
def test_it_is_said_whose_runs_are_shown(study, tmp_path, cli):
    """By study.json beside them or above: on the page, and in each figure of the runs. Only of logs
    that no script of today wrote is it said that these read them. Braces, HTML are text."""
    whose = {"year": 1999, "by": "{<Jo>} O'Hara", "source": "https://a.b/c_d", "note": "It rained."}
    for devices in (2, 4, 8):
        logged = {} if study == "theirs" else {"about": about("ddp", devices)}
        name = f"{devices}" if study == "sent" else NAME.format(devices)
        rate = None if study == "sent" else 100 * devices
        tags = usual(3, rate) if rate else {"Loss/train": [3.0, 2.0, 1.0]}
        write_run(tmp_path / "logs" / study / name, tags, **logged)
    cli(tmp_path / "logs", "--out", tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    drawn = {path: figures.read_fingerprint(path) for path in tmp_path.rglob("*.png")}
    assert "measured in" not in text and "read its logs" not in text
    (tmp_path / "logs" / study / "study.json").write_text(json.dumps(whose))
    cli(tmp_path / "logs", "--out", tmp_path)
    after = (tmp_path / "RESULTS.md").read_text().splitlines()
    said = "measured in 1999 by \\{&lt;Jo&gt;\\} O'Hara (https://a.b/c_d)"
    said += READS if study == "theirs" else ""
    rained = "It rained." if study != "sent" else "It rained.*"
    new = [line for line in after if line not in text.splitlines() and "| study" not in line]
    assert f"{'*' if study == 'sent' else ''}These runs were {said}. {rained}" in new
    assert (f"**A GPU cluster**, {said}:" in new) == (study != "sent")
    assert (sum("(another project's runs, 1999)" in line for line in new)) == (study == "theirs")
    assert all(drawn[path] != figures.read_fingerprint(path) for path in drawn)
    of_cluster = {"accuracy", "model", "scaling"}
    assert {path.stem for path in drawn} == ({"sent"} if study == "sent" else of_cluster)


def test_runs_of_several_people(tmp_path, cli):
    """The nearest study.json counts; who is not named is not credited with others' runs."""
    for name in ("a/x", "b/deep/y", "z"):
        write_run(tmp_path / "logs" / "C" / name, usual(2), about=about("fsdp"))
    for place, by in ("a", "ALICE"), ("b", "BOB"):
        (tmp_path / "logs" / "C" / place / "study.json").write_text(json.dumps({"by": by}))
    cli(tmp_path / "logs", "--out", tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    assert "*x: measured by ALICE. y: measured by BOB.*" in text
    (tmp_path / "logs" / "study.json").write_text(json.dumps({"by": "CLARA", "note": "A night."}))
    cli(tmp_path / "logs", "--out", tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    said = "*x: measured by ALICE. y: measured by BOB. z: measured by CLARA. A night.*"
    assert said in text
    (panels,) = (figures.study(logs.read_runs([tmp_path / "logs"])[0]),)
    assert "caption" not in panels[0]  # which the page adds


def test_other_names_of_study_json_and_none_are_passed_over(tmp_path):
    """So is what LOGS is: also where it is one run, study.json beside it counts."""
    path = write_run(tmp_path / "C" / "run", usual(2), about=about())
    content = {"by": "Jo", "source": None, "lr": [0.1, 0.2], "more": {"a": 0.5}}
    (tmp_path / "C" / "study.json").write_text(json.dumps(content))
    for place in tmp_path, tmp_path / "C", path.parent:
        run, warnings = one_run(place)
        assert (run.facts, warnings) == ({"by": "Jo"}, [])


@pytest.mark.parametrize("content", ["[]", "3", "null", '{"by": ["a"]}', '{"year": true}', "{", ""])
def test_a_study_json_that_is_none(content, tmp_path, cli):
    """Its runs are left out, with a warning that names the folder; others are shown."""
    for name in ("good/run", "odd/run"):
        write_run(tmp_path / "logs" / name, usual(2), about=about())
    (tmp_path / "logs" / "odd" / "study.json").write_text(content)
    cli(tmp_path / "logs", "--out", tmp_path)
    runs, warnings = logs.read_runs([tmp_path / "logs"])
    assert [run.study for run in runs] == ["good"] and len(warnings) == 1
    assert str(tmp_path / "logs" / "odd" / "run") in warnings[0] and "left out" in warnings[0]
    assert "study.json" in warnings[0] or content in ("{", "")  # where JSON's own error is shown


def test_what_scripts_claim_is_of_this_project(tmp_path):
    """Runs that somebody else has sent are on the page, and in no docstring or typed sentence; of a
    language model and a classifier the last epoch counts, which need not be the best."""
    lm = {"Loss/val": [2.0, 1.0, 1.5], "Perplexity/val": [7.4, 2.7, 4.5], "Loss/train": [1.0] * 3}
    cola = {"Accuracy/val": [50.0, 90.0, 80.0], "Loss/val": [1.0] * 3, "Loss/train": [1.0] * 3}
    more = {"steps_per_epoch": 9, "data": "/d/mine", "device": "a GPU", "image_size": 32}
    for study, tags, script, options in (
        ("text_cpu", lm, "text_nd", {"task": "lm"}),
        ("text_cpu", cola, "text_nd", {"task": "cola"}),
        ("mine", usual(3), "imagenet_dp", {}),
    ):
        logged = about(**options) | more
        logged["command"][1] = f"{script}.py"
        write_run(tmp_path / study / f"{script}{options}", tags, about=logged)
        larger = logged | {"steps_per_epoch": 99, "data": "/d/theirs"}
        write_run(tmp_path / "sent" / f"{script}{options} sent", tags, about=larger)
    (tmp_path / "sent" / "study.json").write_text('{"by": "Jo"}')
    text, _, claims = page.make_page(logs.read_runs([tmp_path])[0], {}, {}, [], "COMMAND")
    assert claims["imagenet_dp.py"].startswith(
        "resnet18 to 30.0 % top-1 on mine (32 pixels), 3 x 9"
    )
    assert "validation loss 1.50 (perplexity 4.5) on mine" in claims["text_nd.py"]
    assert "to 80.0 % validation accuracy on cola" in claims["text_nd.py"]
    assert "theirs" not in "".join(claims.values()) and "theirs" in text


def test_runs_that_were_killed_early(tmp_path, cli):
    """Before their first epoch, so that no figure can be drawn; and a cluster of which only one run
    has trained all epochs."""
    write_run(tmp_path / "logs" / "killed" / "run", {"Loss/step": [4.0, 3.0]}, about=about())
    for devices in (2, 4, 8):
        write_run(tmp_path / "logs" / NAME.format(devices), usual(devices, 100 * devices))
    cli(tmp_path / "logs", "--out", tmp_path)
    cli(tmp_path / "logs", "--out", tmp_path, "--check")
    text = (tmp_path / "RESULTS.md").read_text()
    assert "killed.png" not in text
    assert len(rows(text, "name")) == 1 and len(rows(text, "GPUs")) == 3
    _, hours = figures.accuracy(findings.cluster_of(logs.read_runs([tmp_path / "logs"])[0]))
    assert hours["title"] == "8 GPUs take 0.2 hours"


# ------------------------------------------------------------------------- folders of any name


@pytest.mark.parametrize("name", ["the 3rd try, é", NAME.format(64), "2026-11-23_a_gpux8_b2_optO1"])
@pytest.mark.parametrize("silent", [(), ("arch", "batch_size", "precision")])
def test_a_log_counts_and_its_folder_s_name_does_not(name, silent, tmp_path, cli):
    """Also where the name is that of a run of 2020 and differs, or the log lacks what it has."""
    logged = about("ddp", 2)
    logged["options"] = {
        option: value for option, value in logged["options"].items() if option not in silent
    }
    write_run(tmp_path / "logs" / "mine" / name, usual(3), about=logged)
    run, warnings = one_run(tmp_path / "logs")
    assert (run.name, run.study, run.devices, warnings) == (name, "mine", 2, [])
    expected = ("", None, "") if silent else ("resnet18", 32, "float32")
    assert (run.arch, run.batch, run.precision) == expected
    (row,) = rows("\n" + cli(tmp_path / "logs", "--show", "mine"), "name")
    assert (row["script"], row["devices"], row["global batch"]) == ("ddp", "2", "64")
    assert row["name"] == str(tables.escape(name))
    write_run(tmp_path / "old" / NAME.format(64), usual(3))  # says nothing
    run, _ = one_run(tmp_path / "old")
    assert (run.arch, run.devices, run.batch, run.precision) == ("resnet50", 64, 100, "O2")


def test_runs_of_the_scripts_in_folders_of_their_own(tmp_path, cli):
    """One whose checkpoints were moved away is shown, as is one that begins from them."""
    few = "-a gpt --layers 1 --hidden-size 32 --heads 2 --max-length 32 -b 4 --no-accel".split()
    words = [*command("text_nd.py"), *few, "--steps-per-epoch", "2"]
    first = [*words, "--epochs", "1", "--output-dir", "my run"]
    run(first, tmp_path)
    (tmp_path / "moved").mkdir()
    for path in (tmp_path / "my run").glob("*.pt"):
        path.rename(tmp_path / "moved" / path.name)
    assert "and no checkpoint" in complaint(first, tmp_path, only=False)
    run([*words, "--epochs", "2", "--resume", "moved", "--output-dir", NAME.format(64)], tmp_path)
    (after, before), warnings = logs.read_runs([tmp_path])
    assert not warnings
    assert (before.name, before.epochs) == ("my run", 1)
    assert (after.name, after.epochs) == (NAME.format(64), 2)
    assert before.end["reason"] == after.end["reason"] == "all epochs are done"
    assert after.about["resumed"]["epoch"] == 1
    assert before.group == after.group and before.arch == "gpt" and after.devices == 1
    assert "--output-dir" in cli(tmp_path, "--show", "my run")


def test_runs_of_two_studies_have_the_same_names(tmp_path):
    """As numbered folders do: each study keeps its order, and parity its reference, the first."""
    for study, names in ("parity_x", "01_nd 02_nd 03_nd"), ("y", "01_nd"), ("z", "other"):
        for number, name in enumerate(names.split()):
            tags = {"Loss/step": [4.0 + number, 2.0 + number], "Throughput/train": [9.0, 9.0]}
            write_run(tmp_path / study / name, tags, about=about())
    runs, _ = logs.read_runs([tmp_path])
    first, *others = ("parity_x/01_nd", "parity_x/02_nd", "parity_x/03_nd")
    assert [run.name for run in runs] == [first, *others, "y/01_nd", "other"]
    apart = {row["run"].name: row["largest"] for row in findings.parity_of(runs)}
    assert apart == dict(zip(others, (0.5, 1.0), strict=True))
    *_, speed = figures.study(runs[:3])
    assert [*speed["curves"][""].index] == ["01_nd", "02_nd", "03_nd"]


def test_a_recipe_does_not_consist_of_folders(tmp_path):
    """Of logs with --log-dir and with --output-dir: equal runs are one row, with its seeds."""
    more = {"steps_per_epoch": 9, "image_size": 32, "data": "cifar10"}
    kinds = [{}, {"seed": 1}, {"seed": 2}, {"ema": 0.9}]
    for number, added in enumerate(kinds):
        option = "log_dir" if number in (1, 2) else "output_dir"
        where = {option: f"logs/x/{number}"}
        logged = about(lr=0.1, **{"seed": 0, "ema": 0} | added | where) | more
        write_run(tmp_path / "recipe_x" / f"{number}", usual(3), about=logged)
    recipe = findings.recipe_of(logs.read_runs([tmp_path])[0])
    assert ([run.name for run in recipe.plain], [*recipe.found]) == (["0", "1", "2"], ["--ema 0.9"])


def test_lessons_know_runs_that_have_folders():
    """By their commands, as studies.py types them now."""
    runs, (bench, _) = logs.read_runs([LOGS])[0], logs.read_benchmarks([LOGS])
    text = lessons.make_lessons(runs, bench)
    for number, each in enumerate(each for each in runs if each.study == "lessons_cpu"):
        assert each.about["command"][-2] == "--log-dir"
        each.about["command"][-2:] = ["--output-dir", f"logs/lessons_cpu/{number:02}_imagenet_nd"]
    assert lessons.make_lessons(runs, bench) == text != ""


# -------------------------------------------------------------------------------- scaling models


def test_scaling_models_are_of_one_script(tmp_path):
    """Horovod's numbers do not enter the model of DDP; imagenet_nd.py starts both; it takes three
    numbers of devices."""
    rates = [("nd", 1, 1000), ("ddp", 2, 1800), ("horovod", 2, 1000), ("horovod", 4, 2000)]
    for script, devices, rate in rates:
        write_run(tmp_path / f"{script}{devices}", usual(3, rate), about=about(script, devices))
    ((script, (_, small, large, _)),) = scaling.scaling_models(logs.read_runs([tmp_path])[0])
    assert script == "imagenet_horovod.py"
    assert [run.rate for run in [*small, *large]] == [1000, 1000, 2000]


def test_efficiency_compares_what_may_be_compared(tmp_path):
    """With the fastest of those on the fewest devices; an O3 run is no baseline of O2 runs."""
    runs = ("a", 1, "O2", 900), ("b", 1, "O2", 1000), ("c", 4, "O2", 3000), ("d", 1, "O3", 9000)
    for name, ranks, precision, rate in runs:
        write_run(tmp_path / name, usual(3, rate), about=about("ddp", ranks, precision=precision))
    table = rows("\n" + tables.runs_table(logs.read_runs([tmp_path])[0]), "name")
    assert [row["efficiency"] for row in table] == ["90.0 %", "100.0 %", "75.0 %", "–"]


# -------------------------------------------------------------------------- restarts, damaged files


@pytest.mark.parametrize(("step", "rate"), [(0, 500), (3, 450)])
def test_a_run_that_went_on_with_other_devices(step, rate, tmp_path):
    """Its throughput is that of the epochs that the last ones trained, its devices both."""
    name = tmp_path / "run"
    tag = "Throughput/train"
    write_run(name, {tag: [1000.0, 1000.0]}, about=about("ddp", 8) | {"device_batch": 32})
    resumed = {"resumed": {"epoch": 2, "step": step, "seconds": 200}, "device_batch": 64}
    more = {"began": 1e9 + 500, "steps": range(3, 7), "about": about("ddp", 4) | resumed}
    write_run(name, {tag: [700.0, 600.0, 400.0, 500.0]}, **more)
    run, _ = one_run(tmp_path)
    assert (run.devices, run.all_devices) == (4, "8, then 4")
    assert "| 8, then 4 |" in tables.runs_table([run])
    assert run.rate == rate, "without the first of them"


def test_restarts_are_stitched(tmp_path):
    """Six epochs, then, a day later, epochs 4 to 8 again from a checkpoint, twice as fast."""
    write_run(tmp_path / "run", {"Top1/val": [1, 2, 3, 4, 5, 6]}, end={"reason": "preempted"})
    again = {"Top1/val": [40, 50, 60, 70, 80]}
    more = {"began": 1e9 + 86400, "epoch_seconds": 50, "steps": range(4, 9), "about": about()}
    write_run(tmp_path / "run", again, **more)
    run, _ = one_run(tmp_path)
    series = run.series["Top1/val"]
    assert series.step.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert series.value.tolist() == [1, 2, 3, 40, 50, 60, 70, 80]
    assert series.seconds.tolist() == [100, 200, 300, 350, 400, 450, 500, 550]
    assert run.training_seconds == 550 and run.end == {}  # it has not ended as it did before


@pytest.mark.parametrize(
    "options", [{"desired_acc": 0.2}, {"desired": [["Loss", 9.0], ["Top1", 20.0]]}]
)
def test_a_run_resumed_in_another_folder_goes_on_from_its_seconds(options, tmp_path):
    resumed = about(**options) | {"resumed": {"epoch": 4, "seconds": 400.0}}
    write_run(tmp_path / "run", usual(2), steps=[5, 6], about=resumed)
    run, _ = one_run(tmp_path)
    assert (run.epochs, run.training_seconds, run.seconds_to_desired) == (6, 600, 600)
    again = about(**options) | {"resumed": {"epoch": 6, "seconds": 600.0}}  # in its own folder
    write_run(tmp_path / "run", usual(1), began=1e9 + 86400, steps=[7], about=again)
    run, _ = one_run(tmp_path)
    assert (run.epochs, run.training_seconds, run.seconds_to_desired) == (7, 700, 600)


def test_an_accuracy_that_is_just_reached_is_reached(tmp_path):
    """100 x 0.55 is more than 55 in floating point."""
    points = usual(2) | {"Top1/val": [50, 55]}
    write_run(tmp_path / "run", points, about=about(desired=[["Top1", 55.0]]))
    run, _ = one_run(tmp_path)
    assert run.seconds_to_desired == run.training_seconds


def test_samples_of_a_killed_epoch_do_not_count(tmp_path):
    """Sampled at steps 10 to 60, then again, from step 35 on, at 45 and 55."""
    tag = "Network/sent_MB_per_step"
    sampled = {tag: [1, 1, 1, 9, 9, 9], "Loss/step": [1] * 6}
    write_run(tmp_path / "run", sampled, epoch_seconds=5, steps=range(10, 70, 10))
    write_run(tmp_path / "run", {tag: [2, 2]}, began=2e9, epoch_seconds=5, steps=[45, 55])
    series = one_run(tmp_path)[0].series[tag]
    assert series.step.tolist() == [10, 20, 30, 40, 45, 55]
    assert series.seconds.tolist() == [5, 10, 15, 20, 25, 30]


def test_an_event_file_that_is_cut_off(tmp_path):
    path = write_run(tmp_path / NAME.format(1), {"Top1/val": [10, 20, 30, 40]})
    whole = path.read_bytes()
    for cut in range(1, 30):
        path.write_bytes(whole[:-cut])
        run, (warning,) = one_run(tmp_path)
        assert run.values("Top1/val").tolist() == [10, 20, 30]
        assert str(path) in warning and "cut off" in warning
    path.write_bytes(whole[:-20] + b"\0" + whole[-19:])  # as long, but with other bits
    run, (warning,) = one_run(tmp_path)
    assert run.values("Top1/val").tolist() == [10, 20, 30] and str(path) in warning


@pytest.mark.parametrize("content", [b"", b"no event file at all", b"\0" * 100])
def test_damaged_files_beside_good_ones(content, tmp_path):
    write_run(tmp_path / NAME.format(1), usual(2))
    for devices in 1, 2:
        (tmp_path / NAME.format(devices)).mkdir(exist_ok=True)
        (tmp_path / NAME.format(devices) / "events.out.tfevents.1.host.2.0").write_bytes(content)
    run, warnings = one_run(tmp_path)
    assert (run.name, run.epochs, len(warnings)) == (NAME.format(1), 2, 3)


def test_odd_values_names_and_links(tmp_path):
    """Values that are not finite are left out; runs of one name have their folders' before it."""
    tags = usual(4) | {"Loss/train": [2, float("nan"), float("inf"), 1]}
    write_run(tmp_path / "a" / "run", tags)
    write_run(tmp_path / "b" / "run", usual(3, rate=0.0))
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "c").symlink_to(tmp_path / "b")
    (first, second), warnings = logs.read_runs([tmp_path])
    assert ([first.name, second.name], warnings) == (["a/run", "b/run"], [])
    assert first.values("Loss/train").tolist() == [2, 1] and second.rate is None


# ---------------------------------------------------------------------------- a file system's CSVs


@pytest.mark.parametrize(
    "text",
    [
        '"Time";"Read"\n"2020-04-30T16:22:00-05:00";1.5\n"2020-04-30T16:24:00-05:00";2.5\n',
        "Read,Time\n1.5,2020-04-30T21:22:00Z\n2.5,2020-04-30T21:24:00Z\n",
        '"Time";"Read"\n1588281720;1,5\n1588281840;2,5\n',
        "Time\tWrite\tRead\n1588281720000\t9\t1.5\n1588281840000\t9\t2.5\n",
        "Time|Read\n1588281720|1.5\n1588281840|2.5\n",
    ],
)
def test_io_csv_separators(text, tmp_path):
    (tmp_path / "io.csv").write_text(text)
    (minutes, reads), _ = logs.read_io_csv(tmp_path / "io.csv", tmp_path / "io.csv")
    assert (minutes.tolist(), reads.tolist()) == ([0, 2], [1.5, 2.5])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--io-csv {0}/none.csv {0}/none.csv", "none.csv: no columns Time and Read"),
        ("--io-csv {0}/odd.csv {0}/odd.csv", "odd.csv: no columns Time and Read"),
        ("--desired-acc 75", "--desired-acc 75.0 is not a fraction"),
        ("--show thing", "--show thing: nothing is called so; did you mean runs"),
        ("--out {0}/odd.csv", "odd.csv"),
        ("{0}/nowhere", "nowhere: there is no such folder"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path, cli):
    write_run(tmp_path / "runs" / NAME.format(1), usual(2))
    (tmp_path / "odd.csv").write_text("Time;Read\nMonday;2\n")
    (line,) = cli(tmp_path / "runs", *words.format(tmp_path).split(), status=2).splitlines()
    assert message in line


# ------------------------------------------------------------------------------- what is shown


def test_stale_results_are_found(tmp_path, cli):
    folder = tmp_path / "logs" / NAME.format(1)
    write_run(folder, {"Top1/val": [10, 20], "Throughput/train": [900, 900]})
    words, drawn = [tmp_path / "logs", "--out", tmp_path], tmp_path / "figures"
    cli(*words)
    made = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    PIL.Image.new("RGB", (9, 9)).save(drawn / "mine.png")
    cli(*words)
    cli(*words, "--check")
    assert all(path.read_bytes() == content for path, content in made.items())
    for name, spoil in {
        "RESULTS.md": lambda path: path.write_text(path.read_text().replace("900", "901", 1)),
        "runs.png": lambda path: path.unlink(),
        "old.png": lambda path: shutil.copy(drawn / "runs.png", path),
    }.items():
        spoil((tmp_path if name.endswith("md") else drawn) / name)
        assert f"mends it: {name}" in cli(*words, "--check", status=1)
        cli(*words)
    assert {path.name for path in drawn.iterdir()} == {"runs.png", "mine.png"}
    write_run(folder, {"Top1/val": [10, 20, 30], "Throughput/train": [900] * 3})
    line = cli(*words, "--check", status=1)
    assert "RESULTS.md" in line and "runs.png" in line


def test_claims_and_results_of_other_logs(tmp_path, cli, monkeypatch):
    """A stale claim in a docstring is named; a page of other logs is not replaced unasked."""
    shutil.copy(ROOT / "text_fsdp.py", tmp_path)
    claim = next(
        each for each in cli(LOGS, "--show", "claims").split("Measured: ") if "47 MB" in each
    )
    write_run(tmp_path / "runs" / NAME.format(1), usual(2))
    monkeypatch.setattr(make_results, "HERE", tmp_path)
    claims = {"text_fsdp.py": f"Measured: {claim.strip()}"}
    assert make_results.stale_claims(claims) == []
    assert "nothing, since no log is of it" in make_results.stale_claims({})[0]
    changed = {"text_fsdp.py": claims["text_fsdp.py"].replace("47 MB", "48 MB")}
    assert "text_fsdp.py: what was measured should be" in make_results.stale_claims(changed)[0]
    shutil.copy(ROOT / "RESULTS.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "RESULTS.md here is of other logs" in cli("runs", status=2)
    assert NAME.format(1) in cli("runs", "--out", ".") + (tmp_path / "RESULTS.md").read_text()


def test_a_failed_trial_is_counted(tmp_path, cli):
    trials = {"kills": [["a", "b", True], ["c", "d", False], ["e", "f", None]]}
    content = {"title": "Faults", "facts": {}, "about": {"command": ["make"]}, "commits": {}}
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "chaos.json").write_text(json.dumps({**content, "trials": trials}))
    cli(tmp_path / "logs", "--out", tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    assert "1 of 2 fault-injection trials passed" in text
    assert [*rows(text, "fault injected")[0].values()][1:] == ["2", "1"]


def test_each_kind_of_trial_has_a_row():
    template = (ROOT / "reporting" / "RESULTS.md.j2").read_text()
    kinds = [kind for line in re.findall(r'": "([a-z_ ]+)"', template) for kind in line.split()]
    logged = json.loads((LOGS / "benchmarks" / "chaos.json").read_text())["trials"]
    assert sorted(kinds) == sorted(logged)


# Of the repository's logs, beside which others may send theirs.
STUDIES = "lessons_cpu parity_cpu precision_cpu recipe_cifar10 scaling_cpu text_cpu".split()
STUDIES += ["transfer_cpu", "v100_imagenet"]


def test_all_that_is_shown_is_what_it_was():
    """If it was meant to change: the sum is of what `--show all` prints of these studies."""
    runs = [run for run in logs.read_runs([LOGS])[0] if run.study in STUDIES]
    shown = tables.in_full("all", runs, logs.read_benchmarks([LOGS])[0]) + "\n"
    assert str(ROOT) not in shown
    assert hashlib.sha256(shown.encode()).hexdigest()[:16] == "3e7e2b6b79c7f8a8"


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ([30, 31, 32, 33, 34], [10, 15, 16, 17, 18], "2.0 times as fast as"),
        ([999] * 5, [1172] * 5, "0.85 times as fast as"),
        ([102, 112, 92, 132, 82], [100, 110, 90, 130, 80], "1.02 times as fast as"),
        ([102, 112, 92, 132, 79], [100, 110, 90, 130, 80], "as fast as"),
        ([100, 120, 80, 90, 131], [108, 109, 90, 80, 130], "0.93 times as fast as"),
        ([98, 108], [100, 110], "as fast as"),  # two rounds say nothing
    ],
)
def test_speed_is_compared_round_by_round(ours, theirs, words):
    assert findings.against(ours, theirs) == words


def test_what_was_not_measured_is_not_compared():
    rows = [{"name": "ours", "values": [2.0] * 5}, {"name": "timm", "values": []}]
    rows.append({"name": "pytorch/examples' loop", "values": [1.0] * 5})
    peers = ["timm", "pytorch/examples' loop", "missing"]
    said = findings.beside({"rows": rows}, "ours", peers)
    assert said == "2.0 times as fast as pytorch/examples"


def test_headlines_compare_at_equal_options():
    """Ratios of medians, by the logs: in float32 with pytorch/examples, in bfloat16 and
    channels_last with timm, whose row has both. What two options gain is called that."""
    name = "training_resnet18_jpegs"
    measured = json.loads((LOGS / "benchmarks" / f"{name}.json").read_text())["rows"]
    medians = {row["name"]: np.median(row["values"]) for row in measured}
    (text, _, claims), peers = made(), ("pytorch/examples", "timm")
    bases = [medians["pytorch/examples' loop"], medians["timm's loop, bfloat16, channels_last"]]
    for script in "nd", "dp", "ddp", "ddp_apex", "horovod":
        mine = [row for row in medians if row.split()[0] == f"imagenet_{script}.py"]
        claim = claims[f"imagenet_{script}.py"]
        form = r"([\d.]+) images/s in {}, (?:([\d.]+) times )?as fast as {}; "
        said = [re.search(form.format("float32", peers[0]), claim)]
        said += [re.search(form.format("bfloat16 and channels_last", peers[1]), claim)]
        assert all(said), claim
        for row, found, base in zip(sorted(mine, key=medians.get), said, bases, strict=True):
            assert found[1] == f"{medians[row]:.1f}", row
            ratio = medians[row] / base
            assert found[2] == f"{ratio:.2f}" if found[2] else abs(ratio - 1) < 0.05
        assert len(re.findall("as fast as", claim)) == 2
    (heading,) = re.findall("^## (.*training ResNet-18 .*)$", text, re.MULTILINE)
    ours = ["imagenet_nd.py", "imagenet_nd.py --amp bfloat16 --channels-last"]
    plain, half = (medians[row] / base for row, base in zip(ours, bases, strict=True))
    equal = f"{plain:.2f} times as fast as pytorch/examples in float32, "
    equal += f"{half:.2f} times as fast as timm in bfloat16 and channels_last"
    assert heading.startswith("At equal options, ") and equal in heading
    (line,) = re.findall(r".*two options that pytorch/examples lacks.*", text)
    gained = f"{medians[ours[1]] / bases[0]:.1f} times as fast as pytorch/examples"
    assert f"{gained} in float32." in line and equal in line and text.count(gained) == 1
    rows = json.loads((LOGS / "benchmarks" / "data_loading.json").read_text())["rows"]
    medians = {row["name"]: np.median(row["values"]) for row in rows}
    (heading,) = re.findall("^## (.*loads JPEGs into.*)$", text, re.MULTILINE)
    ours = medians["this project, folder"]
    compared = [
        f"{ours / medians[row]:.1f} times as fast as {peer}"
        for row, peer in (("NVIDIA DALI, CPU", "DALI"), ("FFCV, full-size JPEGs", "FFCV"))
    ]
    assert ", ".join(compared) in heading and "into uint8 batches" in heading
    assert "pytorch" not in heading, "whose batches are float32"
    assert not {row["batches"] for row in rows if row["name"] in findings.UINT8} - {"uint8"}
    assert not {row["batches"] for row in rows if row["name"] in findings.FLOAT32} - {"float32"}


def test_the_figure_compares_at_equal_options():
    """Each of the project's bars of training stands above the peer's with its options, and has the
    ratio to it; bars of loading are in order, each with its dtype."""
    bench, _ = logs.read_benchmarks([LOGS / "benchmarks"])
    for name in "data_loading", "training_resnet18_jpegs":
        bench[name]["about"]["processor"] = f"processor of {name}"
    loading, training = figures.speed(bench)
    assert loading["xlabel"].endswith("cores of processor of data_loading")
    assert training["xlabel"].endswith("cores of processor of training_resnet18_jpegs")
    rates = training["curves"][""]
    assert [*rates.index] == [
        "imagenet_nd.py, float32",
        "pytorch/examples' loop, float32",
        "imagenet_nd.py --amp bfloat16 --channels-last",
        "timm's loop, bfloat16, channels_last",
    ]
    for bar, peer in (0, "pytorch/examples"), (2, "timm"):
        compared = f"{rates.iat[bar] / rates.iat[bar + 1]:.2f} x {peer}"
        assert training["texts"][bar].endswith(f"({compared})") and compared in training["title"]
        assert "x" not in training["texts"][bar + 1]
    assert training["colors"] == [figures.TEAL, figures.LIGHT] * 2
    rows = {row["name"]: row for row in findings.rows_of(bench, "data_loading")}
    rates = loading["curves"][""]
    assert [*rates] == sorted(rates, reverse=True) and len(rates) == 9
    for name, text, colour in zip(rates.index, loading["texts"], loading["colors"], strict=True):
        own = name.replace("without nvImageCodec", "Pillow").replace("re-encoded", "full-size")
        row = {each.replace(" reference preset", ""): rows[each] for each in rows}[own]
        used = f"{row['processor time, ms per image']:.1f} ms"
        assert text.split("  ") == [tables.significant(row["median"]), row["batches"], used]
        assert (colour == figures.TEAL) == name.startswith("this project")
    ours, plain = rates["this project, folder"], rates["pytorch/examples"]
    pillow = rates["this project, folder, without nvImageCodec"] / plain
    said = f"{ours / rates['NVIDIA DALI, CPU']:.1f} x DALI, "
    said += f"{ours / rates['FFCV, re-encoded JPEGs']:.1f} x FFCV (re-encoded JPEGs); "
    said += f"{ours / plain:.1f} x pytorch/examples, whose batches are float32"
    assert f"uint8 batches: {said} ({pillow:.1f} x without nvImageCodec)" in loading["title"]


@pytest.mark.parametrize(
    ("without", "loading", "training"),
    [
        ("DALI|FFCV", "batches\n", 2),
        ("pytorch/examples|timm", r"batches N as fast as DALI, N as fast as FFCV \(", 0),
        ("timm", r"batches N as fast as DALI, N as fast as FFCV \(re-encoded JPEGs\)\n", 1),
        ("Pillow", r"batches N as fast as DALI, N as fast as FFCV \(re-encoded JPEGs\)\n", 2),
        ("this project, folder$|imagenet_nd.py$", "batches\n", 1),
        ("project|imagenet_nd|DALI|FFCV|pytorch", "batches\n", 0),
        ("nothing", r"batches N as fast as DALI, N as fast as FFCV \(re-encoded JPEGs\)\n", 2),
    ],
)
def test_what_was_not_measured_is_not_in_a_sentence(without, loading, training):
    """Rows without values, as of libraries that are not installed, leave no holes. Rows with other
    options are not taken for those that a peer has."""
    bench, _ = logs.read_benchmarks([LOGS / "benchmarks"])
    for name in "data_loading", "training_resnet18_jpegs":
        for row in bench[name]["rows"]:
            if re.search(without, row["name"]):
                row |= {"values": [], "median": None}
    odd = [
        {"name": f"imagenet_nd.py {more}", "values": [99.0] * 5, "median": 99.0}
        for more in ("--compile", "--amp bfloat16")
    ]
    bench["training_resnet18_jpegs"]["rows"][:0] = odd
    text, drawn, claims = page.make_page([], bench, {}, [], "COMMAND")
    (heading,) = re.findall("^## (.*loads JPEGs into.*\n)", text, re.MULTILINE)
    (other,) = re.findall("^## (.*raining ResNet-18 .*\n)", text, re.MULTILINE)
    assert re.search(loading.replace("N ", r"[\d.]+ times "), heading)
    assert other.count("as fast as") == training == other.count(" in ")
    assert other == "Training ResNet-18 on JPEGs\n" if not training else other[:2] == "At"
    assert not re.search(r": [,;.]|: $|[ (][,;)]|  ", "".join([heading, other])), (heading, other)
    assert len(drawn["speed"]) == 1 + (training > 0)
    for panel in drawn["speed"]:
        assert len(panel["texts"]) == len(panel["colors"]) == len(panel["curves"][""])
        assert not re.search(r": [,;.]|: $|[ (][,;)]|  |times", panel["title"]), panel["title"]
    claim = claims.get("imagenet_nd.py", "")
    assert claim.count("as fast as") == training and "99" not in claim


def test_parts_of_a_step_are_of_their_rows():
    logged = json.loads((LOGS / "benchmarks" / "overhead_loop.json").read_text())["rows"]
    outside = {row["name"]: f"{np.median(row['values']):.0f} µs of" for row in logged}
    whole = {row["name"]: row["all of a step, µs"] for row in logged}
    ours, theirs, text = "imagenet_nd.py", "pytorch/examples", made()[0]
    assert f"{whole[ours] / whole[theirs]:.1f} times as much processor time as in" in text
    assert f"*{whole[ours]:,.0f} µs in {ours}, {whole[theirs]:,.0f} µs in {theirs}, " in text
    assert f" {outside[ours]} {ours} are outside train_step(): TensorBoard" in text
    assert f" {outside[theirs]} {theirs} are outside forward, loss, backward" in text


def test_no_section_of_the_page_is_left_out():
    """The repository has logs for each, which a template that fails would leave out in silence. Of
    one_gpu.py's it may lack some: test_one_gpu.py has sections made of them."""
    template, text = (ROOT / "reporting" / "RESULTS.md.j2").read_text(), made()[0]
    ids = [re.findall('<a id="(.+?)">', each) for each in (text, template)]
    assert ids[0] == ids[1] and len(ids[0]) > 8
    there = {path.stem for path in [*LOGS.iterdir(), *(LOGS / "benchmarks").iterdir()]}
    sections = re.split("(?m)^(?=###? )|^{##}\n", template)
    of_gpu = [{*re.findall(r"(?:bench|studies)\.(gpu_\w+)", each)} for each in sections]
    shown = [each for each, names in zip(sections, of_gpu, strict=True) if names <= there]
    assert len(shown) >= len(sections) - 9
    lines = "".join(shown)
    titles = re.findall(r"^(?:\{#.*?#\})?#+ (?:<a.*?</a>)?(.*)$", lines, re.MULTILINE)
    for title in titles:
        parts = [part.strip() for part in re.split(r"\{[{%].*?[%}]\}", title)]
        if "Warnings" not in title and any(len(part) > 5 for part in parts):  # else a study's name
            assert max(parts, key=len) in text, title
    parts = (
        "**This project**",
        "- **Training ResNet-18",
        "fault-injection trials passed**",
        "**One GPU**",
    )
    assert all(part in text for part in [*parts, "**A GPU cluster**", "(`--budget-hours`)"])


# ------------------------------------------------------------------------------- logs of strangers


IMAGE = "<img src=x onerror=alert(1)>"
ODD = [IMAGE, "[x](javascript:alert(1))", "[x]: javascript:alert(1)", "\\\\<b>", "# b"]
ODD += ["- b", "1. b", "---", "> b", "```", "`b`", "a | b", "*b* __b__ _b_", "&lt;b&gt;"]
ODD += ["a_b, 1 %"]


@pytest.mark.parametrize("odd", ODD)
def test_text_is_shown_as_text(odd):
    """By a renderer that sanitises nothing: the same text, no elements but those around it."""
    for before, after, tags in (
        ("", "", ["p"]),
        ("### ", "", ["h3"]),
        ("| a |\n| --- |\n| ", " |", "table thead tr th tbody tr td".split()),
    ):
        source = before + tables.escape(odd) + after
        made = markdown.markdown(source, extensions=["tables", "fenced_code", "attr_list"])
        assert re.findall(r"<(\w+)", made) == tags, source
        plain = html.unescape(re.sub(r"<[^>]+>", "", made))
        assert odd in re.sub(r"\\(?=[|~=])", "", plain).replace("\n", ""), source


def test_names_become_files_and_links(tmp_path, cli):
    for name in f"é {IMAGE}", "\x1b[31m", "x" * 255, "a b", "a_b":
        write_run(tmp_path / "logs" / name / "run", {"Top1/val": [1, 2]})
    assert "\x1b" not in cli(tmp_path / "logs", "--out", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"logs", "out"}
    links = re.findall(r"!\[.*\]\(figures/(\S+)\)", (tmp_path / "out" / "RESULTS.md").read_text())
    made = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert len(links) == 5 and {*map(urllib.parse.unquote, links)} == made
    assert {"a_b.png", "a_b_.png", f"{'x' * 140}.png", "_x1b_31m.png"} < made


@pytest.mark.slow
def test_results_in_another_time_zone(tmp_path):
    words = [sys.executable, "make_results.py", "logs", "--check"]
    environment = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PATH": ""}
    subprocess.run(words, env=environment, cwd=ROOT, check=True)


def outside(folder, names):
    """Returns the names in a folder that a copy lacks; trainparts/runs is no folder of runs."""
    here = {".git", ".venv", "logs", "runs", "tests"} if str(folder) == str(ROOT) else set()
    return [name for name in names if name in here or "cache" in name]


def test_a_log_that_is_sent(demo, tmp_path):
    """docs/send_a_log.md as typed, in a copy where a script has run: the page and a figure have the
    run, and say whose it is; docstrings do not change."""
    text = (ROOT / "docs" / "send_a_log.md").read_text()
    (typed,) = re.findall("^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    copy = shutil.copytree(ROOT, tmp_path / "a copy", ignore=outside)
    (copy / ".venv" / "bin").mkdir(parents=True)  # as make would, with this Python
    (copy / ".venv" / "bin" / "python").write_text(f"#!/bin/sh\nexec '{sys.executable}' \"$@\"\n")
    (copy / ".venv" / "bin" / "python").chmod(0o755)
    (copy / ".venv" / "installed").touch()
    (copy / "logs").mkdir()
    for study in LOGS.iterdir():
        (copy / "logs" / study.name).symlink_to(study)
    words = (
        "-a resnet18 --image-size 32 --no-accel -j 0 -b 8 --epochs 2 --steps-per-epoch 2".split()
    )
    run([*command("imagenet_nd.py"), *words, "--output-dir", "runs/r50-o2", demo], copy)
    shown = subprocess.check_output(["bash", "-ec", typed], cwd=copy, text=True)
    assert (
        re.search(r"RESULTS.md and \d+ figures, from \d+ runs\n", shown) and "packages: " in shown
    )
    ((sent,), warnings) = logs.read_runs([copy / "logs" / "CLUSTER"])
    last = f"{sent.values('Top1/val')[-1]:.2f}"
    text = (copy / "RESULTS.md").read_text()
    assert not warnings and f"| {last} / " in text and "![CLUSTER](figures/CLUSTER.png)" in text
    assert "*These runs were measured in 2026 by YOUR NAME (https://ADDRESS).*" in text
    assert (copy / "figures" / "CLUSTER.png").exists()
    for path in ROOT.glob("*.py"):
        assert (copy / path.name).read_text() == path.read_text()


# ---------------------------------------------------------------------------- how figures are drawn


def drawn(curves, xlabel="x", **look):
    """Returns the axes into which a panel of these curves is drawn."""
    figure = Figure(figsize=(6, 4))
    axes = figure.add_subplot()
    figures.draw_panel(axes, figures.panel(curves, "title", xlabel, "y", **look))
    figure.draw_without_rendering()
    return axes


def shown_ticks(axis):
    """Returns the labels of the ticks that are within an axis."""
    low, high = axis.get_view_interval()
    ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [label.get_text() for at, label in ticks if low <= at <= high]


@pytest.fixture
def sheet(tmp_path, monkeypatch):
    """sheet(panels) draws a figure into a file; returns it as matplotlib's Figure."""

    def draw(panels):
        made = []
        monkeypatch.setattr(figures, "Figure", lambda **k: made.append(Figure(**k)) or made[0])
        figures.draw(panels, tmp_path / "a.png")
        return made[0]

    return draw


def test_bars_stand_in_order_each_with_its_name_and_text():
    rates = pd.Series({"first": 20.0, "second": 10.0, "third": 30.0})
    look = {"texts": ["20 a", "10 b", "30 c"], "colors": ["#111111", "#222222", "#333333"]}
    axes = drawn({"": rates}, **look)
    assert [bar.get_width() for bar in axes.patches] == [20, 10, 30]
    assert [to_hex(bar.get_facecolor()) for bar in axes.patches] == look["colors"]
    bars = [bar.get_window_extent() for bar in axes.patches]
    assert bars[0].y0 > bars[1].y1 and bars[1].y0 > bars[2].y1, "from the top"
    assert [text.get_text() for text in axes.texts] == look["texts"]
    names = axes.get_yticklabels()
    assert [name.get_text() for name in names] == [*rates.index]
    for bar, text, name in zip(bars, axes.texts, names, strict=True):
        box = text.get_window_extent()
        assert bar.x1 < box.x0 and box.x1 < axes.bbox.x1
        for each in box, name.get_window_extent():
            assert bar.y0 < (each.y0 + each.y1) / 2 < bar.y1


def test_curves_have_their_colours_and_what_is_one_value_is_a_dot():
    curves = {"one": pd.Series([5.0], [3]), "more": pd.Series([1.0, 2.0], [7, 9])}
    first, second = drawn(curves, colors=["#111111", "#222222"]).lines
    assert (first.get_color(), second.get_color()) == ("#111111", "#222222")
    assert (first.get_marker(), second.get_marker()) == ("o", "None")
    assert second.get_xydata().tolist() == [[7, 1], [9, 2]]
    (line,) = drawn({"one": curves["one"]}, styles=["x"]).lines
    assert line.get_marker() == "x", "as was asked for"


def test_spans_notes_and_a_band_stand_at_their_data():
    look = {"spans": [(2, 3, 7, "#ff0000")], "notes": [(1, 5, "here")]}
    look["band"] = [1, 2], [4, 5], [6, 8]
    axes = drawn({"a": pd.Series([5.0, 6.0], [1, 2])}, **look)
    spans, band = (
        next(each for each in axes.collections if isinstance(each, kind))
        for kind in (LineCollection, PolyCollection)
    )
    assert [each.tolist() for each in spans.get_segments()] == [[[2, 3], [2, 7]]]
    assert to_hex(spans.get_color()[0]) == "#ff0000"
    corners = {tuple(each) for each in band.get_paths()[0].vertices.tolist()}
    assert corners == {(1, 4), (1, 6), (2, 5), (2, 8)}
    assert [(text.xy, text.get_text()) for text in axes.texts] == [((1, 5), "here")]


@pytest.mark.parametrize("axis", ["x", "y"])
def test_one_axis_is_logarithmic_alone(axis):
    """Its ticks are numbers that are easy to read: 1, 2 and 5 of each decade, or decades alone."""
    for ends, ticks in (
        ([0.3, 800.0], "0.5 1 2 5 10 20 50 100 200 500 1,000"),
        ([0.02, 3000.0], "0.1 1 10 100 1,000"),
    ):
        axes = drawn({"a": pd.Series(ends, ends)}, **{f"log{axis}": True})
        scales = {each.axis_name: each.get_scale() for each in (axes.xaxis, axes.yaxis)}
        assert scales == {"x": "linear", "y": "linear"} | {axis: "log"}
        assert shown_ticks(getattr(axes, f"{axis}axis")) == ticks.split()


def test_ticks_of_epochs_and_steps_are_whole_numbers():
    for xlabel, whole in ("epoch", True), ("step", True), ("minutes", False):
        axes = drawn({"a": pd.Series([1.0, 2.0], [1, 2])}, xlabel)
        assert all(at % 1 == 0 for at in axes.get_xticks()) == whole


def test_what_is_asked_of_axes_and_the_legend():
    curves = {f"{n}": pd.Series([5.0, 6.0], [1, 1000]) for n in range(20)}
    curves["_a"] = pd.Series([5.0])
    look = {"zero": True, "xticks": [1, 1000]}
    axes = drawn(curves, **look)
    assert axes.get_ylim()[0] == 0 < drawn(curves).get_ylim()[0]
    assert shown_ticks(axes.xaxis) == ["1", "1,000"]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == [f"{n}" for n in range(16)], "more would cover the curves"
    axes = drawn({"_a": curves["_a"]}, yticks=([5, 7], ["five", "seven"]))
    assert axes.get_legend() is None
    axes.set_ylim(4, 8)
    assert shown_ticks(axes.yaxis) == ["five", "seven"]


def test_shades_can_be_told_apart_and_seen_on_white():
    for count in 1, 2, 9:
        light = [np.dot([0.299, 0.587, 0.114], to_rgb(each)) for each in figures.shades(count)]
        assert len(light) == count and light == sorted({*light}) and light[-1] < 0.75


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (2, 1), (3, 2), (5, 3)])
def test_panels_stand_two_by_two_in_reading_order(count, rows, sheet):
    panels = [figures.panel({"a": [1, 2]}, f"{n}", "x", "y") for n in range(count)]
    axes = sheet(panels).axes
    assert [each.get_title(loc="left") for each in axes] == [f"{n}" for n in range(count)]
    specs = [each.get_subplotspec() for each in axes]
    places = [(spec.rowspan.start, spec.colspan.start) for spec in specs]
    assert places == [divmod(n, 2) for n in range(count)]
    assert specs[0].get_gridspec().get_geometry() == (rows, min(2, count))


def test_a_caption_of_any_panel_is_drawn_and_a_dollar_begins_no_formula(sheet):
    panels = [figures.panel({"_": [1, 2]}, r"5 $\frac$ 6", "x", "y") for _ in range(3)]
    panels[1]["caption"] = r"by $\JO$"
    texts = [text.get_text() for text in sheet(panels).findobj(Text)]
    assert texts.count(r"by $\JO$") == 1 and texts.count(r"5 $\frac$ 6") == 3


def test_what_changes_a_figure_changes_its_fingerprint():
    """Not the digits in which machines differ."""

    def printed(value=1.23456, name="a", title="t", note="n", at=2.5, **look):
        curves = {name: pd.Series([value, 2.0], [1, 2])}
        look = {"colors": ["#111111"], "notes": [(1, at, note)], **look}
        return figures.fingerprint([figures.panel(curves, title, "x", "y", **look)])

    assert printed() == printed(value=1.23456 + 1e-9) == printed(at=2.5 + 1e-9)
    odd = [{"value": 1.23457}, {"name": "b"}, {"title": "u"}, {"note": "m"}, {"at": 2.50001}]
    odd += [{"colors": ["#111112"]}, {"logx": True}, {"xticks": [1]}, {"caption": "by JO"}]
    assert len({printed(), *(printed(**each) for each in odd)}) == 1 + len(odd)


# -------------------------------------------------------------------------------- what figures show


def data(series):
    """Returns a curve's data as {x: y}, to six digits."""
    return {float(f"{x:.6g}"): float(f"{y:.6g}") for x, y in series.items()}


def trained(top1, epoch_seconds=60, **more):
    """Returns a run with these values of top-1 in validation, one an epoch."""
    count = len(top1)
    columns = {"step": range(1, count + 1), "value": [float(each) for each in top1]}
    frame = pd.DataFrame(columns | {"seconds": [epoch_seconds * (n + 1) for n in range(count)]})
    known = {"epochs": count, "training_seconds": count * epoch_seconds, "facts": {}}
    run = SimpleNamespace(series={"Top1/val": frame}, **{**known, **more})
    run.values = lambda tag: run.series[tag].value.to_numpy()
    return run


def test_a_study_names_its_curves_by_what_differs(tmp_path):
    """By the folder where that does not tell runs apart; in one legend."""
    for name, script, ranks in ("a", "nd", 1), ("b", "ddp", 2), ("c", "ddp", 4), ("d", "ddp", 4):
        write_run(tmp_path / "s" / name, usual(2, 100 * ranks), about=about(script, ranks))
    first, *others, speed = figures.study(logs.read_runs([tmp_path])[0])
    names = ["nd 1 x -b 32", "ddp 2 x -b 32", "c", "d"]
    assert [*first["curves"]] == names == [*speed["curves"][""].index]
    assert all([*panel["curves"]] == [f"_{name}" for name in names] for panel in others)
    assert [*speed["curves"][""]] == [100, 200, 400, 400]
    assert speed["texts"] == ["100", "200", "400", "400"]


def test_each_curve_is_of_its_tag_and_of_its_time(tmp_path):
    """Whatever the others lack: a run with --dummy shows what it waited for and read, no accuracy;
    one that logged a single epoch, or no number at all, stands beside the whole ones."""
    tags = ["Top1/val", "Loss/val", "Loss/train", "Data/wait", "IO/read_MBps"]
    values = {tag: [10.0 * n + 1, 10.0 * n + 2] for n, tag in enumerate(tags)}
    rate = {"Throughput/train": [100.0, 200.0]}
    short = {tag: values[tag][:1] for tag in tags}
    for name, logged, options in (
        ("a_whole", values, {}),
        ("b_dummy", values | rate, {"dummy": True}),
        ("c_short", short, {}),
        ("d_nan", dict.fromkeys(tags, [float("nan")] * 2) | rate, {}),
    ):
        write_run(tmp_path / name, logged, epoch_seconds=90, about=about(**options))
    runs, warnings = logs.read_runs([tmp_path])
    assert not warnings and [run.name for run in runs] == ["a_whole", "b_dummy", "c_short", "d_nan"]
    panels = figures.study(runs)
    shown = {(panel["ylabel"], panel["xlabel"]): panel for panel in panels[:-1]}
    of_tag = {
        "Top1/val": ("validation top-1, %", "epoch"),
        "Loss/val": ("validation loss", "epoch"),
        "Loss/train": ("training loss", "epoch"),
        "Data/wait": ("waiting for data, share of the epoch", "epoch"),
    }
    minutes = {"Top1/val": "validation top-1, %", "IO/read_MBps": "read, MB/s"}
    of_tag = [*of_tag.items(), *((tag, (name, "minutes")) for tag, name in minutes.items())]
    assert {*shown} == {place for _, place in of_tag}
    for tag, place in of_tag:
        x = [1.5, 3] if place[1] == "minutes" else [1, 2]
        both, one = dict(zip(x, values[tag], strict=True)), {x[0]: values[tag][0]}
        expected = {"a_whole": both, "b_dummy": both, "c_short": one}
        if not tag.startswith(("Data", "IO")):
            del expected["b_dummy"]
        curves = shown[place]["curves"]
        assert {name.strip("_"): data(each) for name, each in curves.items()} == expected, place
        colours = dict(zip(expected, shown[place]["colors"], strict=True))
        assert all(colours[name] == figures.shades(4)["abcd".index(name[0])] for name in colours)
    assert [*panels[-1]["curves"][""].index] == ["b_dummy", "d_nan"]
    assert panels[-1]["colors"] == [figures.shades(4)[1], figures.shades(4)[3]]


def test_counters_of_a_file_system_have_times_of_their_own():
    """A missing value hides no other."""
    read = np.array([0.0, 1.0, 2.0]), np.array([1e9, np.nan, 2.5e9])
    calls = np.array([5.0, 7.0]), np.array([np.nan, 4000.0])
    bandwidth, reads = figures.io([read, calls])
    titles = ["2.5 GB/s are read at most", "4,000 reads/s at most"]
    assert [bandwidth["title"], reads["title"]] == titles
    both = [panel["curves"]["_"] for panel in (bandwidth, reads)]
    assert [[*each.index] for each in both] == [[0, 1, 2], [5, 7]]
    assert both[0].iat[2] == 2.5 and both[1].iat[1] == 4


TERMS = 1e-3, 2e-2, 5e-4  # seconds: compute an image, volume, latency


def of_terms(sizes, factors=(), total=None):
    """Returns runs of 32 images a device, or of `total` images, as fast as TERMS say, the last ones
    by factors of it."""
    factors = [1] * (len(sizes) - len(factors)) + [*factors]
    runs = []
    for devices, factor in zip(sizes, factors, strict=True):
        images = total or 32 * devices
        hops = 2 * (devices - 1)
        seconds = np.dot(TERMS, [images / devices, hops / devices, hops])
        look = {"devices": devices, "global_batch": images, "rate": factor * images / seconds}
        runs.append(SimpleNamespace(**look, crowded=False, on_cpu=False, items="images"))
    return runs


def test_a_scaling_model_finds_what_runs_were_made_of():
    model = scaling.fit_scaling(of_terms([1, 2, 4, 8, 16]))
    assert (model.compute, model.volume, model.latency) == pytest.approx(TERMS, rel=1e-5)
    errors = scaling.prediction_errors(model, of_terms([32, 64], [0.8, 1.25]))
    assert errors == pytest.approx([0.25, -0.2], rel=1e-4), "of the prediction, against the run"


@pytest.mark.parametrize(
    ("sizes", "small"), [([1, 2, 4], 2), ([1, 2, 4, 8], 3), ([1, 2, 4, 8, 16], 4), ([1, 2], None)]
)
def test_two_thirds_of_the_sizes_are_fitted(sizes, small):
    """Without runs that share cores, or that have no throughput."""
    left_out = [SimpleNamespace(devices=3, rate=9.0, global_batch=9, crowded=True)]
    left_out += [SimpleNamespace(devices=5, rate=None, global_batch=9, crowded=False)]
    runs = of_terms(sizes)
    found = scaling.study_scaling(left_out + runs)
    if small is None:
        assert found is None
    else:
        assert (found[1], found[2]) == (runs[:small], runs[small:])


@pytest.mark.parametrize(
    ("factor", "off"), [(0.8, "25 % too high on 64"), (1.25, "20 % too low on 64")]
)
def test_the_figure_of_a_scaling_model(factor, off):
    """The title has the error on most devices; what was fitted on few devices goes on as they were,
    what was fitted on all does not; ideal scaling begins at the smallest run."""
    runs = of_terms([2, 4, 8, 16, 32, 64], [1.0, factor])
    (panel,) = figures.model(scaling.study_scaling(runs))
    assert panel["title"] == f"Fitted on up to 16 GPUs, the model is {off}"
    few, every, ideal, measured = panel["curves"].values()
    assert [*panel["curves"]] == ["fitted on 2 to 16", "fitted on all", "ideal", "measured"]
    assert data(measured) == {run.devices: float(f"{run.rate:.6g}") for run in runs}
    plain = of_terms([2, 128])
    assert [few.iat[0], few.iat[-1]] == pytest.approx([run.rate for run in plain], rel=1e-3)
    assert few.index[-1] == pytest.approx(128), "twice the largest"
    assert (every.iat[-1] < few.iat[-1]) == (factor < 1)
    assert ideal.iat[0] == every.iat[0] and ideal.iat[-1] == pytest.approx(64 * ideal.iat[0])
    assert panel["xticks"] == [2, 4, 8, 16, 32, 64, 128] and "band" in panel


def test_a_scaling_model_of_one_global_batch_ends_where_a_device_has_an_image():
    runs = of_terms([2, 4, 8, 16], total=24)
    (panel,) = figures.model(scaling.study_scaling(runs))
    assert panel["curves"]["fitted on all"].index[-1] == pytest.approx(24)
    assert panel["xticks"] == [2, 4, 8, 16]
    assert "band" not in panel, "of one run more than terms"


@pytest.fixture
def cluster(tmp_path):
    """Runs on 2, 4 and 8 GPUs, of which that on 4 was cut short; all their numbers differ."""
    for devices, epochs in (2, 4), (4, 3), (8, 4):
        tags = {
            f"Top{top}/{part}": [10 * devices + top + more + epoch / 8 for epoch in range(epochs)]
            for top in (1, 5)
            for part, more in (("train", 0), ("val", 2))
        }
        tags["Throughput/train"] = [1.0, *(90 * devices + 7 * epoch for epoch in range(1, epochs))]
        write_run(tmp_path / NAME.format(devices), tags, epoch_seconds=7200 // devices)
    return findings.cluster_of(logs.read_runs([tmp_path])[0])


def test_a_cluster_s_accuracy_over_epochs_and_hours(cluster):
    epochs, hours = figures.accuracy(cluster)
    assert epochs["title"].startswith("23.4 to 83.4 % top-1 after the last epoch, on 2 to 8 GPUs")
    assert hours["title"] == "8 GPUs take 1.0 hours, 2 take 4"
    assert figures.accuracy(cluster[:2])[1]["title"] == "2 GPUs take 4.0 hours", "4 was cut short"
    values = [23, 23.125, 23.25, 23.375]
    assert [*epochs["curves"]] == ["2 GPUs", "4 GPUs", "8 GPUs"]
    assert data(epochs["curves"]["2 GPUs"]) == dict(zip((1, 2, 3, 4), values, strict=True))
    assert [*data(hours["curves"]["_4"])] == [0.5, 1, 1.5]
    assert data(hours["curves"]["_8"]) == {0.25: 83, 0.5: 83.125, 0.75: 83.25, 1: 83.375}


def test_a_cluster_s_speed_and_time(cluster):
    speed, time = figures.scaling(cluster)
    rates = {2: 194, 4: 370.5, 8: 734}
    assert data(speed["curves"]["measured"]) == rates
    assert data(speed["curves"]["ideal"]) == {2: 194, 4: 388, 8: 776}
    assert speed["notes"] == [(2, 194, "100 %"), (4, 370.5, "95 %"), (8, 734, "95 %")]
    spread = {2: np.std([187, 194, 201]), 4: 3.5, 8: np.std([727, 734, 741])}
    for (devices, low, high, _), size in zip(speed["spans"], rates, strict=True):
        ends = [rates[size] - spread[size], rates[size] + spread[size]]
        assert devices == size and [low, high] == pytest.approx(ends)
    assert speed["title"] == "734 images/s on 8 GPUs, 95 % of ideal"
    assert time["xlabel"] == "GPUs (not shown: of 4, ended at epoch 3)"
    assert data(time["curves"]["_"]) == {2: 4, 8: 1}
    assert time["notes"] == [(2, 4, "4:00:00"), (8, 1, "1:00:00")]
    assert time["title"] == "4 epochs in 1:00:00 on 8 GPUs"


def test_what_a_study_reaches(tmp_path):
    """Over epochs and over time, each with its finding; of runs without an accuracy all panels."""
    for number, top1 in enumerate(([10, 50], [20, 40], [30, 45])):
        tags = {"Top1/val": top1, "Loss/val": [2, 1], "Throughput/train": [9, 9]}
        name = NAME.format(2 * (number + 1))
        write_run(tmp_path / "with" / name, tags, epoch_seconds=(120, 60, 600)[number])
        write_run(tmp_path / "without" / name, {"Loss/val": [2, 1]})
    runs = logs.read_runs([tmp_path / "with"])[0]
    over_epochs, over_time = figures.reached(runs)
    assert over_epochs["title"] == "40.0 to 50.0 % after the last epoch"
    names = [*over_epochs["curves"]]
    assert over_time["title"] == f"{names[1]} takes 2.0 minutes, {names[2]} 20.0"
    (alone, time) = figures.reached(runs[:1])
    assert time["title"].endswith(" takes 4.0 minutes") and alone["xlabel"] == "epoch"
    others = logs.read_runs([tmp_path / "without"])[0]
    assert len(figures.reached(others)) == len(figures.study(others)) > 0


def test_the_figure_of_parity():
    """Differences of 0 have a place on its logarithmic axis; the title is of rows without
    BatchNorm."""
    rows = [
        {"run": SimpleNamespace(arch="vit"), "batchnorm": False, "apart": [0, 3e-7]},
        {"run": SimpleNamespace(arch="vit"), "batchnorm": False, "apart": [1e-7, 2e-7]},
        {"run": SimpleNamespace(arch="ViT"), "batchnorm": False, "apart": [0, 1e-8]},
        {"run": SimpleNamespace(arch="resnet"), "batchnorm": True, "apart": [0.01, 0.02]},
    ]
    (panel,) = figures.parity([row | {"steps": [5, 9], "largest": row["apart"][1]} for row in rows])
    assert panel["title"] == "3 ways, without BatchNorm: losses within 3e-07"
    shown = {name: data(each) for name, each in panel["curves"].items()}
    assert shown == {
        "vit, largest of 2 runs": {5: 1e-7, 9: 3e-7},
        "ViT": {5: 1e-9, 9: 1e-8},
        "resnet, BatchNorm": {5: 0.01, 9: 0.02},
    }
    assert panel["colors"] == [figures.TEAL, figures.TEAL, figures.ORANGE] and panel["logy"]


def test_the_figure_of_a_recipe():
    """Components stand in the order of their mean gains, with a dot a seed."""
    plain = [trained([10, 50]), trained([10, 52])]
    found = {
        "--a 1": [trained([20, 60]), trained([20, 46])],
        "--b": [trained([20, 54]), trained([20, 56])],
        "--c --d 2": [trained([20, 70]), trained([20, 74])],
    }
    gains = {added: [findings.final(run) - 51 for run in runs] for added, runs in found.items()}
    known = {"plain": plain, "base": 51.0, "found": found, "gains": gains}
    (dots,) = figures.recipe(SimpleNamespace(**known))
    assert dots["title"] == "2 options together: +21.0 points"
    assert [*dots["yticks"][1]] == ["plain", "--a 1", "--b", "2 options together"]
    places = {name: data(each) for name, each in dots["curves"].items() if name != "_0"}
    assert places == {
        "_plain": {-1: 0, 1: 0},
        "_--a 1": {9: 1, -5: 1},
        "_--b": {3: 2, 5: 2},
        "_--c --d 2": {19: 3, 23: 3},
    }
    known |= {"found": {"--b": found["--b"]}, "gains": {"--b": gains["--b"]}}
    assert figures.recipe(SimpleNamespace(**known))[0]["title"] == "--b: +4.0 points"


def test_the_figure_of_transfer():
    tests = {10: [20.0, 40.0, 50.0], 100: [60.0, 80.0, 70.0]}
    few = {
        shots: {
            way: trained([shots, top1 - 1], end={"test_top1": top1})
            for way, top1 in zip(findings.WAYS, each, strict=True)
        }
        for shots, each in tests.items()
    }
    ends, epochs = figures.transfer(SimpleNamespace(few=few))
    assert ends["title"] == "10 images a class: 50 % last layer alone, 20 % from scratch"
    for place, way in enumerate(findings.WAYS):
        assert data(ends["curves"][way]) == {10: tests[10][place], 100: tests[100][place]}
        assert data(epochs["curves"][f"_{way}"]) == {1: 10, 2: tests[10][place] - 1}
    assert ends["xticks"] == [10, 100]


def exchanged():
    """Returns a benchmark of exchanging gradients, at two batches, whose numbers all differ."""
    rows = []
    for batch, way, ranks, values, link, formula, losses in (
        (64, "gather", 1, [100.0, 80.0, 160.0], 0.0, 0.0, "2.5 1.0"),
        (64, "gather", 2, [200.0, 160.0, 250.0], 41.0, 40.0, "2.5 1.0"),
        (64, "ring", 2, [125.0, 100.0, 500.0], 42.0, 43.0, "2.5 1.0"),
        (64, "gather", 4, [400.0, 320.0, 800.0], 121.0, 120.0, "2.5 1.0"),
        (64, "ring", 4, [160.0, 125.0, 200.0], 61.0, 60.0, "2.0 1.5"),
        (32, "gather", 4, [30.0, 20.0, 40.0], 121.0, 120.0, "4.0 1.0"),
        (32, "ring", 4, [30.0, 20.0, 40.0], 61.0, 60.0, "4.0 1.25"),
    ):
        row = {"way": way, "ranks": f"{ranks}", "batch": f"{batch}", "first losses": losses}
        row |= {"values": values, "median": float(np.median(values))}
        rows.append({**row, "busiest link, MB/step": link, "by formula, MB/step": formula})
    return {"exchange": {"rows": rows}}


def test_what_exchanging_gradients_takes():
    """Speeds are relative to one rank's at the largest batch; gather's busiest link has the
    gradients of all other ranks."""
    found = findings.exchange_of(exchanged())
    assert dict(found.last.speed) == {"ring": 0.625, "gather": 0.25}
    assert dict(found.fewest.speed) == {"ring": 0.8, "gather": 0.5}
    assert [*found.last.index] == ["ring", "gather"], "the fastest first"
    assert found.gradients == 40 and found.apart == pytest.approx({64: 0.5, 32: 0.25})
    assert findings.exchange_of({}) is None


def test_the_figure_of_the_bubble():
    rows = [
        {"way": "gpipe", "micro-batches": "1", "values": [52.0, 47.0, 60.0], "median": 52.0},
        {"way": "gpipe", "micro-batches": "8", "values": [13.0, 12.0, 20.0], "median": 13.0},
        {"way": "1f1b", "micro-batches": "16", "values": [7.0, 5.0, 9.0], "median": 7.0},
        {"way": "1f1b", "micro-batches": "8", "values": [14.0, 11.0, 15.0], "median": 14.0},
    ]
    (panel,) = figures.bubble(rows)
    assert panel["title"] == "Idle time of two stages: 52 % with 1, 7 % with 16 micro-batches"
    for stages, one, eight in (2, 50, 100 / 9), (4, 75, 300 / 11), (8, 87.5, 700 / 15):
        curve = panel["curves"][f"{stages} stages, formula"]
        assert (curve[1], curve[8]) == pytest.approx((one, eight))
    assert data(panel["curves"]["2 stages, gpipe"]) == {1: 52, 8: 13}
    later = panel["curves"]["2 stages, 1f1b"]
    assert [*later] == [7, 14] and (later.index > [16, 8]).all(), "bars side by side"
    gpipe, other = figures.WAY_COLOURS["gpipe"], figures.WAY_COLOURS["1f1b"]
    assert panel["spans"][:2] == [(1, 47, 60, gpipe), (8, 12, 20, gpipe)]
    assert [span[1:] for span in panel["spans"][2:]] == [(5, 9, other), (11, 15, other)]


# ------------------------------------------------------------------------------------ what logs say


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"system": "Linux-4.4.0-x86_64"}, "a CPU in a sandbox"),
        ({"system": "Linux-6.1.0-fc-x86_64"}, "a CPU in a sandbox"),
        ({"system": "Linux-14.4.0-x86_64"}, "a CPU"),
        ({"system": "Linux-6.8.0-generic", "accelerator": "NVIDIA L4"}, "NVIDIA L4"),
        ({"accelerator": "NVIDIA H200"}, "NVIDIA H200"),
    ],
)
def test_a_sandbox_is_told(about, said):
    known = {"torch": "2.9.0+cu130", "date": "2026-11-01", **about}
    assert findings.machine(known) == f"{said}, PyTorch 2.9.0, 2026-11-01"


def test_cores_are_those_of_most_loader_processes():
    used = "processor time of the loader, ms per image"
    rows = [{"name": "synthetic images", "median": 2000.0}]
    for form, workers, spent in ("JPEGs", 16, 3.0), ("JPEGs", 8, 2.0), ("--raw 256", 2, 0.5):
        rows.append({"name": f"{form}, -j {workers}", "median": 900.0, used: spent})
    assert findings.cores_to_feed(rows) == {"--raw 256": 1, "JPEGs": 6}
    assert findings.cores_to_feed(rows[1:]) == {}


def test_a_language_model_s_share_of_the_peak():
    """GPT-2's 124 million weights, of which those of positions are not multiplied with."""
    flops = peaks.gpt_flops(12, 768, 50257, 1024)
    weights = 12 * (4 + 8) * 768**2 + 50257 * 768
    assert flops == 6 * weights + 12 * 12 * 768 * 1024
    options = {"layers": 12, "hidden_size": 768, "max_length": 1024}
    about = {"vocabulary": 50257, "device": "NVIDIA A100-SXM4-80GB"}
    run = SimpleNamespace(rate=100.0, options=options, about=about)
    assert findings.gpt_share(run) == f"{100 * 102400 * flops / 312e12:.1f}" == "28.0"
    for name in "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA L40", "an NVIDIA L4", "nvidia l4":
        about["device"] = name
        assert findings.gpt_share(run) == "-", "a part, or another card"


def test_the_lowest_loss_is_the_best():
    series = {"Loss/val": pd.DataFrame({"value": [3.0, 1.0, 2.0]})}
    run = SimpleNamespace(values=lambda tag: series[tag].value.to_numpy())
    assert findings.best_loss(run) == 1
    assert findings.mean_final([trained([9, 1]), trained([9, 2]), trained([0, 6])]) == 3


def test_the_cluster_is_the_study_with_most_gpus():
    """Of three sizes or more, each with all tags; not the one with most runs."""
    tags = dict.fromkeys(["Top1/val", "Top5/val", "Top1/train", "Top5/train"])

    def study(name, sizes, **more):
        known = {"study": name, "group": (name,), "rate": 1.0, "on_cpu": False, "series": tags}
        return [SimpleNamespace(**{**known, "devices": size, **more}) for size in sizes]

    runs = study("many", [1, 2, 4, 8]) + study("two", [1, 64])
    assert findings.cluster_of(runs) == runs[:4]
    large = study("large", [32, 2, 16])
    assert [run.devices for run in findings.cluster_of(runs + large)] == [2, 16, 32]
    for more in {"on_cpu": True}, {"rate": None}, {"series": {"Top1/val": None}}:
        assert findings.cluster_of(study("x", [1, 2, 64], **more)) == []
    assert findings.cluster_of([]) == []


def test_differences_of_parity_are_relative_to_the_run_on_fewest_devices():
    """At the steps that both have; a pipeline's stages share a batch, and a model of text, or a
    vision transformer, has no BatchNorm."""

    def run(name, losses, devices=1, arch="resnet18", place=None, **more):
        frame = pd.DataFrame({"step": range(1, len(losses) + 1), "value": losses})
        known = {"study": "parity_cpu", "items": "images", "batch": 8, "global_batch": 32}
        known |= {"about": {"place": place} if place else {}, "series": {"Loss/step": frame}}
        known |= {"name": name, "devices": devices, "arch": arch, **more}
        return type("Run", (), known)()

    pipeline = {"ranks": 4, "devices": 1, "data_ranks": 2}
    runs = [
        run("c", [4.0, 2.0, 1.0], 4, place=pipeline),
        run("b", [5.0, 1.0], 4),
        run("a", [4.0, 2.0, 1.0], 1),
        run("e", [2.0, 1.0], 2, arch="vit_tiny"),
        run("d", [1.0, 1.0], 1, arch="vit_tiny"),
        run("f", [1.0, 1.0], 1, study="other"),
        run("g", [1.0, 2.0], 2, arch="gpt", items="sequences"),
        run("h", [1.0, 1.0], 1, arch="gpt", items="sequences"),
    ]
    found = findings.parity_of(runs)
    shown = [(row["run"].name, row["batchnorm"], row["largest"]) for row in found]
    assert {*shown[:2]} == {("e", False, 1), ("g", False, 1)}
    assert shown[2:] == [("b", True, 0.5), ("c", True, 0)]
    b, c = found[2:]
    assert ([*b["steps"]], [*b["apart"]]) == ([1, 2], [0.25, 0.5])
    assert (b["accumulated"], c["accumulated"]) == (1, 2)


def test_of_learning_rates_the_best_counts(tmp_path):
    more = {"steps_per_epoch": 9, "image_size": 32, "data": "cifar10"}
    for name, lr, last, added in (
        ("0", 0.1, 50, {}),
        ("1", 0.1, 52, {"seed": 1}),
        ("2", 0.4, 40, {}),
        ("3", 0.1, 54, {"ema": 0.9}),
        ("4", 0.4, 60, {"ema": 0.9}),
        ("5", 0.1, 53, {"mixup": True}),
        ("6", 0.1, 58, {"erase": None}),
        ("7", 0.1, 59, {"cutmix": False}),
    ):
        base = {"seed": 0, "ema": 0, "mixup": False, "erase": 0.5, "cutmix": True}
        tags = usual(2) | {"Top1/val": [90, last]}
        logged = about(lr=lr, **base | added) | more
        write_run(tmp_path / "recipe_x" / name, tags, about=logged)
    write_run(tmp_path / "recipe_x" / "long", usual(3), about=about(lr=0.1, **base) | more)
    recipe = findings.recipe_of(logs.read_runs([tmp_path])[0])
    assert [run.name for run in recipe.plain] == ["0", "1"] and recipe.base == 51
    assert [*recipe.gains.items()] == [
        ("--mixup", [2]),
        ("without --erase", [7]),
        ("without --cutmix", [8]),
        ("--ema 0.9", [9]),
    ]
    assert [run.name for run in recipe.longer] == ["long"]
    assert findings.recipe_of([]) is None


def test_ways_of_transfer_are_told_by_their_options(tmp_path):
    """A number of images for which one way is missing, or was not tested, is left out."""
    more = {"steps_per_epoch": 9, "image_size": 32}

    def write(name, data, top1, **options):
        logged = about(lr=0.1, **options) | more | {"data": data}
        end = {} if top1 is None else {"end": {"test_top1": top1}}
        write_run(tmp_path / "transfer_cpu" / name, usual(2), about=logged, **end)

    write("0", "/d/before", None)
    for shots, scale in (100, 1), (9, 2), (20, 3):
        write(f"{shots}a", f"/d/few{shots}", scale * 10.0)
        write(f"{shots}b", f"/d/few{shots}", scale * 11.0, weights="w.pt")
        write(f"{shots}c", f"/d/few{shots}", scale * 12.0, weights="w.pt", freeze=True)
    write("20c", "/d/few20", None, weights="w.pt", freeze=True)
    write_run(tmp_path / "transfer_cpu" / "20c", {}, end={}, began=2e9)
    write("budget", "/d/all", 70.0, weights="w.pt", budget_hours=0.5)
    found = findings.transfer_of(logs.read_runs([tmp_path])[0])
    tops = {
        shots: {way: run.end["test_top1"] for way, run in same.items()}
        for shots, same in found.few.items()
    }
    assert [*tops.items()] == [
        (9, dict(zip(findings.WAYS, (20, 22, 24), strict=True))),
        (100, dict(zip(findings.WAYS, (10, 11, 12), strict=True))),
    ]
    assert found.before.name == "0" and [run.name for run in found.budget] == ["budget"]


def test_the_run_that_trained_most_is_claimed(tmp_path):
    """Of equals the quickest; no run with --dummy, of parity, or of another task."""
    for study, name, steps, seconds, options in (
        ("a", "short", 10, 10, {}),
        ("a", "slow", 20, 90, {}),
        ("a", "quick", 20, 50, {}),
        ("a", "dummy", 99, 10, {"dummy": True}),
        ("a", "task", 99, 10, {"task": "lm"}),
        ("parity_cpu", "parity", 99, 10, {}),
        ("lessons_cpu", "lesson", 99, 10, {}),
    ):
        logged = about(**options) | {"steps_per_epoch": steps, "data": "/d/mine"}
        write_run(tmp_path / study / name, usual(2), epoch_seconds=seconds, about=logged)
    runs, _ = logs.read_runs([tmp_path])
    assert findings.most_trained(runs, "imagenet_nd.py").name == "quick"
    assert findings.most_trained(runs, "imagenet_nd.py", "lm").name == "task"
    assert findings.most_trained(runs, "imagenet_ddp.py") is None


def test_five_rounds_are_ahead_in_all_of_them():
    """Within 5 % in either direction; a round that is equal is no victory."""
    base = [100.0, 200, 300, 400, 500]
    for factor, words in (
        (1.04, "1.04 times as fast as"),
        (0.96, "0.96 times as fast as"),
        (1.2, "1.2 times as fast as"),
        (1.0, "as fast as"),
    ):
        assert findings.against([factor * each for each in base], base) == words
    for factor in 1.04, 0.96:
        four = [factor * each for each in base[:-1]]
        assert findings.against([*four, (2 - factor) * 500], base) == "as fast as"
        assert findings.against([*four, 500], base) == "as fast as"
    for factor in 1.06, 0.94:
        four = [factor * each for each in base[:-1]]
        assert findings.against([*four, 500], base) == f"{factor:.2f} times as fast as"


def test_the_largest_difference_counts_in_either_direction():
    name, formula = "relative difference of losses", "by formula, MB"
    rows = [
        {name: "1e-7", "median": 101.0, formula: 100.0},
        {name: "3e-6", "median": 190.0, formula: 200.0},
        {name: "2e-9", "median": 50.0, formula: 50.0},
    ]
    assert findings.furthest({"rows": rows}) == 3e-6
    assert findings.formula_error({"rows": rows}) == pytest.approx(5)


def test_trials_that_were_not_tried_do_not_count():
    bench = {
        "a": {"trials": {"kills": [["", "", True], ["", "", None], ["", "", False]]}},
        "b": {"trials": {"disks": [["", "", True], ["", "", True]]}, "rows": []},
        "c": {"rows": []},
    }
    trials = findings.trials_of(bench)
    assert trials == [
        {"kind": "kills", "tried": 2, "passed": 1},
        {"kind": "disks", "tried": 2, "passed": 2},
    ]
    assert (findings.passed(trials), findings.passed(trials[1:])) == ("3 of 4", "All 2")


# ----------------------------------------------------------------------------------- what logs hold


def test_what_a_library_says_of_odd_logs_is_one_line(tmp_path):
    """Whatever it says, also nothing, and many lines; the page's command prints it escaped."""
    write_run(tmp_path / "good" / "run", usual(2), about=about())
    path = write_run(tmp_path / "odd" / "run", usual(2), about=about())
    for text in "\n\n  many\nlines\x1b[31m", "", "  ", "x" * 9000:
        read = mock.Mock(wraps=logs.stitch, side_effect=[mock.DEFAULT, RuntimeError(text)])
        with mock.patch.object(logs, "stitch", read):
            runs, (warning,) = logs.read_runs([tmp_path])
        assert [run.study for run in runs] == ["good"]
        assert warning.startswith(f"{path.parent}: cannot be read (") and text in warning
        assert logs.visible(warning).isprintable() and len(logs.visible(warning)) <= 4000


def test_text_in_json_is_visible_wherever_it_is():
    text = '{"a\\n": ["b\\u001b", {"c\\t": ["d\\r", 1.5, null, true]}], "é": "é"}'
    assert logs.parse_json(text) == {
        "a\\n": ["b\\x1b", {"c\\t": ["d\\r", 1.5, None, True]}],
        "é": "é",
    }


def test_a_file_may_be_as_large_as_the_limit_and_begin_with_a_mark(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LARGEST_FILE", 9)
    path = tmp_path / "a.json"
    for content, read in (b"\xef\xbb\xbf[1, 2]", "[1, 2]"), (b"123456789", "123456789"):
        path.write_bytes(content)
        assert logs.read_text(path) == read
    path.write_bytes(b"1234567890")
    for each in path, tmp_path, tmp_path / "none":
        with pytest.raises(OSError, match="it is no file, or larger than"):
            logs.read_text(each)


def test_a_run_that_several_folders_show_counts_once(tmp_path):
    """Through a folder and one above it, and through links."""
    write_run(tmp_path / "logs" / "a" / "run", usual(2), about=about())
    (tmp_path / "logs" / "b").symlink_to(tmp_path / "logs" / "a")
    for paths in [tmp_path / "logs"] * 2, [tmp_path / "logs" / "b", tmp_path], [tmp_path]:
        runs, warnings = logs.read_runs(paths)
        assert (len(runs), warnings) == (1, [])
    with pytest.raises(logs.BadInput, match="nowhere: there is no such folder"):
        logs.read_runs([tmp_path, tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("options", "device", "precision"),
    [
        ({"precision": "O0"}, "cuda:0", "O0"),
        ({"precision": "O1"}, "cuda:0", "O1 float16"),
        ({"precision": "O2"}, "cpu", "O2 bfloat16"),
        ({"precision": "O3", "half_dtype": "bfloat16"}, "cuda:0", "O3 bfloat16"),
        ({"precision": "O1", "half_dtype": "float16"}, "cpu", "O1 float16"),
        ({"precision": "bfloat16"}, "cpu", "bfloat16"),
    ],
)
def test_half_precision_is_named(options, device, precision, tmp_path):
    logged = about(**options)
    logged["place"]["device"] = device
    write_run(tmp_path / "run", usual(2), about=logged)
    assert one_run(tmp_path)[0].precision == precision


@pytest.mark.parametrize(
    ("rates", "rate", "spread"),
    [
        ([50.0], 50, 0),
        ([50.0, 80.0], 80, 0),
        ([50.0, 80.0, 100.0, 120.0], 100, np.std([80, 100, 120])),
        ([0.0], None, None),
        ([float("nan")] * 2, None, None),
        ([float("nan"), 70.0, 90.0], 90, 0),
    ],
)
def test_the_first_epoch_is_left_out_where_there_are_others(rates, rate, spread, tmp_path):
    """Its loaders start; what is no number is no epoch."""
    tags = {"Throughput/train": rates, "Loss/train": [1.0] * len(rates)}
    write_run(tmp_path / "run", tags, about=about())
    run, warnings = one_run(tmp_path)
    assert (run.rate, run.spread) == (rate, spread) and not warnings


@pytest.mark.parametrize(
    ("data", "more", "words"),
    [
        ("/d/sst2/train.tsv", {"task": "sst2", "num_classes": 2}, "sst2: sst2 (2 classes)"),
        ("/d/wiki/a.bin", {"task": "lm", "vocabulary": 99}, "lm: wiki (vocabulary 99)"),
        ("/d/wiki/a.txt", {"task": "lm"}, "lm: wiki"),
        ("/d/demo", {"task": "lm"}, "lm: demo"),
        ("/d/photos.txt", {"image_size": 32}, "photos.txt (32 pixels)"),
        ("/d/cifar10", {"num_classes": 10, "image_size": 32}, "cifar10 (10 classes, 32 pixels)"),
    ],
)
def test_data_are_named_by_their_folder(data, more, words):
    options = {"task": more.pop("task")} if "task" in more else {}
    assert logs.data_of({"data": data, "options": options, **more}) == words


def test_of_a_step_that_is_logged_twice_the_later_counts():
    """Within a file, too; what is not finite, or of no possible time or step, hides no other; a
    pause between two files is no training."""
    points = [
        ("Loss/val", 1, 1010.0, 5.0, 1000.0),
        ("Loss/val", 2, 1030.0, 4.0, 1000.0),
        ("Loss/val", 2, 1050.0, 3.0, 1000.0),
        ("Loss/val", 3, 9020.0, 2.0, 9000.0),
        ("Loss/val", 3, 9030.0, float("nan"), 9000.0),
        ("Loss/val", 4, 9040.0, float("-inf"), 9000.0),
        ("Loss/val", 5, 9050.0, 1e30, 9000.0),
        ("Loss/val", -1, 9060.0, 1.0, 9000.0),
        ("Loss/val", 6, 1e12, 1.0, 9000.0),
        ("Loss/val", 7, float("nan"), 1.0, 9000.0),
        ("Top1/val", 1, 1010.0, float("nan"), 1000.0),
    ]
    for order in points, points[::-1]:
        found = logs.stitch(order)
        assert [*found] == ["Loss/val"]
        assert found["Loss/val"].step.tolist() == [1, 2, 3]
        assert found["Loss/val"].value.tolist() == [5, 3, 2]
        assert found["Loss/val"].seconds.tolist() == [10, 50, 70]


def test_a_run_has_ended_if_nothing_began_after(tmp_path):
    """What tools/look.py found out later stands beside the reason."""
    path = write_run(tmp_path / "run", usual(1), about=about(), end={"reason": "done"})
    test = {"top1": 40, "top5": 80.5, "loss": 2, "classes": []}
    (path.parent / "test.json").write_text(json.dumps(test))
    tests = {"test_top1": 40, "test_top5": 80.5, "test_loss": 2}
    assert one_run(tmp_path)[0].end == {"reason": "done"} | tests
    write_run(path.parent, usual(1), began=2e9, steps=[2], about=about())
    assert one_run(tmp_path)[0].end == tests


def test_runs_are_in_the_order_of_their_numbers(tmp_path):
    for ranks, batch in (16, 8), (9, 16), (9, 8), (2, 128):
        logged = about("ddp", ranks, batch_size=batch)
        write_run(tmp_path / "s" / f"{ranks}_{batch}", usual(1), about=logged)
    names = [run.name for run in logs.read_runs([tmp_path])[0]]
    assert names == ["2_128", "9_8", "9_16", "16_8"]


def test_a_benchmark_s_rows_have_medians(tmp_path):
    """None where it was not measured; a file with what is no measurement is left out, with a
    warning that names it, beside the good ones; what is no benchmark is not mentioned."""
    good = {"title": "t", "rows": [{"name": "a", "values": [1, 9, 2]}, {"name": "b", "values": []}]}
    (tmp_path / "good.json").write_text(json.dumps(good))
    (tmp_path / "other.json").write_text('{"title": "of another program"}')
    (tmp_path / "list.json").write_text("[1]")
    for name, value in ("large", "1e31"), ("small", "-1e31"), ("nan", "NaN"), ("text", '"a"'):
        text = f'{{"title": "t", "rows": [{{"name": "a", "values": [1, {value}]}}]}}'
        (tmp_path / f"{name}.json").write_text(text)
    found, warnings = logs.read_benchmarks([tmp_path])
    assert {name: [row["median"] for row in each["rows"]] for name, each in found.items()} == {
        "good": [2, None]
    }
    assert [warning.partition(": ")[0] for warning in warnings] == [
        str(tmp_path / f"{name}.json") for name in ("large", "nan", "small", "text")
    ]


@pytest.mark.parametrize("empty", ["", "null", "undefined"])
def test_io_csv_with_a_minute_missing(empty, tmp_path):
    """Both begin at the first time of either; spaces and upper case in names do not matter."""
    (tmp_path / "a.csv").write_text(f" TIME ;Read \n1588281720;1\n1588281780;{empty}\n")
    (tmp_path / "b.csv").write_text("time,read\n1588281900,7\n1588281840,8\n")
    first, second = logs.read_io_csv(tmp_path / "a.csv", tmp_path / "b.csv")
    np.testing.assert_equal([*map(list, first)], [[0, 1], [1, np.nan]])
    assert [*map(list, second)] == [[3, 2], [7, 8]]
    swapped = logs.read_io_csv(tmp_path / "b.csv", tmp_path / "a.csv")
    assert [*map(list, swapped[0])] == [[3, 2], [7, 8]]


def test_a_study_s_bytes_and_reads_are_each_of_its_file(tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "bandwidth.csv").write_text("time,read\n1588281720,1000\n")
    (tmp_path / "study" / "iops.csv").write_text("time,read\n1588281720,7\n")
    (both,) = logs.read_study_io([tmp_path]).values()
    assert [[*map(list, each)] for each in both] == [[[0], [1000]], [[0], [7]]]


def test_a_number_in_study_json_is_a_fact(tmp_path):
    write_run(tmp_path / "run", usual(1), about=about())
    (tmp_path / "run" / "study.json").write_text('{"year": 2026, "by": "Jo"}')
    assert one_run(tmp_path)[0].facts == {"year": 2026, "by": "Jo"}


# --------------------------------------------------------------------------------- pages and tables


def test_a_study_s_file_name():
    """No more bytes than file systems take, and no half of a letter."""
    for text, name in {
        "a b/c": "a_b_c",
        "..": "_",
        ".hidden.": "hidden",
        "": "_",
        "é" * 200: "é" * 70,
        "a" + "é" * 200: "a" + "é" * 69,
        "A-1.b_c": "A-1.b_c",
    }.items():
        assert page.file_name(text) == name


def test_rows_follow_rows_and_all_else_has_blank_lines(monkeypatch):
    template = (
        "# a\nb\n| c |\n| - |\n| d |\ne\n- f\n- g\n| h |\n## i\n{{ missing }}\n{##}\nj\n\n\nk\n"
    )
    monkeypatch.setattr(page, "FOLDERS", [])
    loader = page.jinja2.DictLoader({"a": template})
    monkeypatch.setattr(page.jinja2, "FileSystemLoader", lambda _: loader)
    text = "# a\n\nb\n\n| c |\n| - |\n| d |\n\ne\n\n- f\n- g\n\n| h |\n\nj\n\nk\n"
    assert page.render("a", {}) == text


def test_studies_of_like_names_have_figures_of_their_own(tmp_path):
    """Their names are text on the page."""
    for name in "a b", "a_b", "a*b":
        write_run(tmp_path / name / "run", usual(2), about=about())
    text, drawn, _ = page.make_page(logs.read_runs([tmp_path])[0], {}, {}, [], "COMMAND")
    assert {*drawn} == {"a_b", "a_b_", "a_b__"}
    assert all(text.count(f"(figures/{name}.png)") == 1 for name in drawn)
    assert "| a\\*b |" in text and "a*b" not in text


def test_runs_of_one_model_in_several_precisions_are_a_study_of_these(tmp_path):
    """Its page has a section of them; of one precision, or of two models, it is like any other."""
    for study, archs, precisions in (
        ("precision_a", ["resnet18"] * 2, ["float32", "bfloat16"]),
        ("precision_b", ["resnet18"] * 2, ["float32", "float32"]),
        ("precision_c", ["resnet18", "resnet34"], ["float32", "bfloat16"]),
    ):
        for number, (arch, precision) in enumerate(zip(archs, precisions, strict=True)):
            logged = about(arch=arch, precision=precision)
            write_run(tmp_path / study / f"{number}", usual(2), about=logged)
    text, drawn, _ = page.make_page(logs.read_runs([tmp_path])[0], {}, {}, [], "COMMAND")
    assert {*drawn} == {"precision_a", "precision_b", "precision_c"}
    sections = [each.partition("\n")[0] for each in text.split("\n## ")[1:]]
    assert sections[0].startswith("float32 trains") and "\n## float32 trains" not in sections[1:]
    assert sections[1:] == ["resnet18", "resnet18", "Methods"]


def test_numbers_have_three_digits_and_plurals_are_of_more_than_one():
    said = [tables.significant(each) for each in (0, 0.012345, 1.2345, 12.345, 99.96, 123.45, -1.5)]
    assert said == ["0.00", "0.0123", "1.23", "12.3", "100.0", "123", "-1.50"]
    assert [tables.significant(each) for each in (12345.6, 1000, None)] == ["12,346", "1,000", "–"]
    assert [tables.clock(each) for each in (None, 0, 59.6, 3599.4, 90061)] == [
        "–", "0:00:00", "0:01:00", "0:59:59", "1 day, 1:01:01",
    ]  # fmt: skip
    cells = ["1 ranks", "11 ranks", "2.1 ranks", "a, 1 GPUs", "1 stepsize", "3-1 parts"]
    first = {"b": "–", "c": "1"}
    text = tables.table([{"a": cell, **(first if n == 0 else {})} for n, cell in enumerate(cells)])
    assert text.splitlines() == [
        "| a | c |",
        "| --- | --- |",
        "| 1 rank | 1 |",
        *(f"| {cell.replace('1 GPUs', '1 GPU')} | – |" for cell in cells[1:]),
    ]


def test_devices_and_rates_are_called_what_they_are():
    gpu, cpu, text = (
        SimpleNamespace(on_cpu=on_cpu, items=items)
        for on_cpu, items in ((False, "images"), (True, "images"), (True, "sequences"))
    )
    words = [tables.device_word(runs) for runs in ([gpu], [cpu], [cpu, gpu], [cpu, text])]
    assert words == ["GPUs", "processes", "devices", "processes"]
    assert [tables.device_word([each], 1) for each in (gpu, cpu)] == ["GPU", "process"]
    words = [tables.rate_word(runs) for runs in ([gpu, cpu], [text], [cpu, text])]
    assert words == ["images/s", "sequences/s", "items/s"]


def test_a_benchmark_s_table_and_grid():
    rows_ = [
        {"name": "resnet18, base, 2 ranks", "values": [10, 30, 20], "median": 20.0, "more": None},
        {"name": "resnet18, fast, 2 ranks", "values": [40], "median": 40.0, "more": 0.5},
        {"name": "resnet50, none, 2 ranks", "values": [], "median": None, "more": "text"},
    ]
    benchmark = {"rows": rows_, "baseline": rows_[0]["name"], "unit": "images/s"}
    base, fast, none = rows("\n" + tables.benchmark_table(benchmark), "")
    assert base == {
        "": rows_[0]["name"], "ratio": "1.00", "images/s": "20.0", "range": "10.0 to 30.0",
        "more": "–",
    }  # fmt: skip
    assert [fast[name] for name in ("ratio", "range", "more")] == ["2.00", "–", "0.500"]
    assert [none[name] for name in ("ratio", "images/s", "more")] == ["–", "–", "text"]
    assert rows("\n" + tables.grid(benchmark, 1), "") == [
        {"": "resnet18, base", "2 ranks": "20.0"},
        {"": "resnet18, fast", "2 ranks": "40.0"},
        {"": "resnet50, none", "2 ranks": "–"},
    ]
    first, second = rows("\n" + tables.grid(benchmark, 2), "")
    assert first == {"": "resnet18", "base, 2 ranks": "20.0", "fast, 2 ranks": "40.0"}
    assert second == {"": "resnet50", "base, 2 ranks": "–", "fast, 2 ranks": "–"}


def test_a_study_in_full(tmp_path):
    """Each run with its own best values, its aim, and the means of what it read and sent."""
    text = {"Perplexity/val": [9.0, 3.0, 5.0], "Loss/val": [3.0, 2.0, 1.0]}
    images = usual(2) | {"IO/read_MBps": [1.0, 3.0], "Network/sent_MB_per_step": [10.0, 40.0]}
    goal = [["Top1", 15.0]]
    write_run(tmp_path / "s" / "text", text, about=about())
    write_run(tmp_path / "s" / "images", images, about=about("ddp", 2, desired=goal))
    write_run(tmp_path / "s" / "never", usual(1), about=about("ddp", 4, desired=goal))
    runs = {run.name: run for run in logs.read_runs([tmp_path])[0]}
    shown, means = tables.show_study("s", [*runs.values()])[1:3]
    row = {each["name"]: each for each in rows("\n" + shown, "name")}
    assert row["text"]["val perplexity, last / best"] == "5.00 / 3.00"
    assert row["images"]["val top1, last / best"] == "20.00 / 20.00"
    aims = [row[name]["desired"] for name in ("text", "images", "never")]
    assert aims == ["–", "15 % in 0:03:20", "15 % in not reached"]
    (mean,) = [each for each in rows("\n" + means, "run") if each["run"] == "images"]
    means = {"IO/read_MBps": "2.00", "Network/sent_MB_per_step": "25.0"}
    assert mean == {"run": "images", **means}


def test_the_tables_of_a_scaling_model():
    """A term that may as well be nothing is not told."""
    found = scaling.study_scaling(of_terms([1, 2, 4, 8, 16, 32, 64], [0.8, 1.25]))
    fits, predicted = tables.scaling_tables(found)
    of_small, of_all = rows("\n" + fits, "fitted on devices")
    assert of_small["fitted on devices"] == "1, 2, 4, 8, 16"
    assert of_all["fitted on devices"] == "1, 2, 4, 8, 16, 32, 64"
    assert of_small["compute, ms"].startswith("1 ± ")
    assert of_small["latency, ms"].startswith("0.5 ± ")
    assert of_all["latency, ms"] == "not identified"
    plain = of_terms([32, 64])
    for row, by_terms, measured, error in zip(
        rows("\n" + predicted, "devices"), plain, found[2], ("+25.0 %", "-20.0 %"), strict=True
    ):
        rates = {"measured": f"{measured.rate:,.0f}", "predicted": f"{by_terms.rate:,.0f}"}
        assert row == {"devices": f"{measured.devices}", **rates, "error": error}


def test_a_run_in_full(tmp_path):
    """A tag that misses in an epoch has a dash; nothing ends a block of code."""
    tags = {"Loss/val": [1.25, float("nan"), 1e-7], "Lr": [0.1, 0.2, 0.3], "Mine/tag": [1, 2, 3]}
    write_run(tmp_path / "run", tags, about=about() | {"note": "a ``` b"}, end={"reason": "é"})
    heading, *blocks, table = tables.show_run(one_run(tmp_path)[0])
    assert heading == "### run" and len(blocks) == 2
    assert all(block.count("```") == 2 and "`" not in block[3:-3] for block in blocks)
    assert "note: \"a ''' b\"" in blocks[0] and blocks[1] == '```\nreason: "é"\n```'
    assert [[*row.values()] for row in rows("\n" + table, "epoch")] == [
        ["1", "1.25", "0.1"], ["2", "–", "0.2"], ["3", "1e-07", "0.3"],
    ]  # fmt: skip


# ------------------------------------------------------------------------------- the program itself


@pytest.mark.parametrize("given", ["0", "-0.1", "1.01", "nan", "1", "0.01"])
def test_an_accuracy_is_a_fraction_up_to_1(given, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["make_results.py", "logs", "--desired-acc", given])
    if given in ("1", "0.01"):
        assert make_results.parse_args()[0].desired_acc == float(given)
    else:
        with pytest.raises(SystemExit) as end:
            make_results.parse_args()
        (line,) = capsys.readouterr().err.splitlines()
        assert end.value.code == 2 and f"{float(given)} is not a fraction in (0, 1]" in line


def test_the_page_s_command_makes_the_page_again(tmp_path, cli, monkeypatch):
    """It has what was typed of its input; warnings of runs and of benchmarks are printed and on the
    page."""
    write_run(tmp_path / "my logs" / "run", usual(2), about=about())
    write_run(tmp_path / "my logs" / "other", {"Mine/tag": [1.0]})
    (tmp_path / "my logs" / "odd.json").write_text("{")
    (tmp_path / "io.csv").write_text("Time,Read\n1588281720,1\n")
    monkeypatch.chdir(tmp_path)
    words = ["my logs", "--io-csv", "io.csv", "io.csv", "--desired-acc", "0.15"]
    cli(*words, "--out", "out")
    text = (tmp_path / "out" / "RESULTS.md").read_text()
    typed = "python make_results.py 'my logs' --io-csv io.csv io.csv --desired-acc 0.15"
    assert f"`{typed}` generates this page" in text and "15 % in 0:03:20" in text
    warnings = text[text.index("### Warnings") :]
    assert "other: has no tag" in warnings and "odd.json: damaged, or no benchmark" in warnings
    (tmp_path / "out" / "RESULTS.md").write_text("stale")
    line = cli(*words, "--out", "out", "--check", status=1)
    assert f"`{typed} --out out` mends it: RESULTS.md\n" in line


def test_figures_that_are_left_over_are_stale_and_deleted(tmp_path, cli, monkeypatch):
    """Those alone that this program drew; what has not changed is not drawn again."""
    write_run(tmp_path / "logs" / "run", usual(2), about=about())
    words, drawn = [tmp_path / "logs", "--out", tmp_path], tmp_path / "figures"
    cli(*words)
    shutil.copy(drawn / "runs.png", drawn / "old.png")
    PIL.Image.new("RGB", (9, 9)).save(drawn / "mine.png")
    (drawn / "odd.png").write_bytes(b"no image")
    monkeypatch.setattr(make_results, "draw", lambda panels, path: pytest.fail("drawn again"))
    assert "mends it: old.png\n" in cli(*words, "--check", status=1)
    cli(*words)
    assert {path.name for path in drawn.iterdir()} == {"runs.png", "mine.png", "odd.png"}


def test_what_cannot_be_written_is_one_line(tmp_path, cli, monkeypatch):
    """Whatever the system says of it."""
    write_run(tmp_path / "logs" / "run", usual(2), about=about())
    for error in OSError(28, "No space left on device"), OSError(), OSError("\n\n many\nlines"):

        def fail(panels, path, error=error):
            raise error

        monkeypatch.setattr(make_results, "draw", fail)
        (line,) = cli(tmp_path / "logs", "--out", tmp_path / "out", status=2).splitlines()
        assert line.startswith(f"make_results.py: error: --out {tmp_path / 'out'}: ")


def test_claims_in_docstrings_are_those_of_the_logs(tmp_path, monkeypatch):
    """Once, and of each script; one without logs claims nothing."""
    monkeypatch.setattr(make_results, "HERE", tmp_path)
    right, old = "Measured: a\nb.", "Measured: c."
    for name, claims, stale in (
        ("imagenet_a.py", [right], False),
        ("imagenet_b.py", [old], True),
        ("imagenet_c.py", [right, old], True),
        ("imagenet_d.py", [], True),
        ("text_e.py", [old], True),
        ("text_f.py", [], False),
        ("other.py", [old], False),
    ):
        text = "\n\n".join(["A script.", *claims, "Usage."])
        (tmp_path / name).write_text(f'"""{text}\n"""\nx = """Measured: d."""\n', encoding="utf-8")
        wanted = {name: right} if name[-4] in "abcd" else {}
        lines = make_results.stale_claims(wanted)
        assert [line.partition(":")[0] for line in lines] == [name] * stale
        (tmp_path / name).unlink()
