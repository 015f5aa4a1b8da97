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

import markdown
import numpy as np
import PIL.Image
import pytest
import scipy.stats
from conftest import ROOT, command, complaint, events, run
from matplotlib.figure import Figure
from matplotlib.text import Text
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import summary as torch_summary

import make_results
from reporting import figures, findings, lessons, logs, page, scaling, tables

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
    titles = [panel["title"] for panel in [*figures.accuracy(runs), *figures.top1_top5(runs)]]
    tops = [last[size][0] for size in last]
    assert f"{min(tops):.1f} to {max(tops):.1f} % top-1 after the last epoch" in titles[0]
    for place, title in enumerate(titles[2:]):
        ends = f"{last[2][place]:.1f} % on 2 GPUs, {last[64][place]:.1f} % on 64 GPUs"
        assert title.endswith(f"after the last epoch: {ends}")
    recipes = " ".join((ROOT / "docs" / "recipes.md").read_text().split())
    assert f"{eight} % after the last epoch in 5 h 49 min on 8, {many} % in 1 h 8 min" in recipes
    readme = " ".join((ROOT / "README.md").read_text().split())
    ends = f"needed 5 h 49 min for the same 90 epochs, and ended at {eight} % top-1."
    assert f"On 8 V100, the project of 2020 {ends}" in readme
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
    theirs = {"accuracy", "top1_top5", "scaling", "model", "io"}
    ours = {"speed", "parity", "recipe", "transfer", "exchange", "ring", "bubble"}
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
    assert x[-1] == pytest.approx(640)  # a decade beyond
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
    assert made == {"accuracy", "top1_top5", "scaling", "model", "io", "parity_of_mine"}
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
    of_cluster = {"accuracy", "model", "scaling", "top1_top5"}
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
    assert hashlib.sha256(shown.encode()).hexdigest()[:16] == "090adb9e6d2cfe0e"


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
    (heading,) = re.findall("^## (.*loads JPEGs.*)$", text, re.MULTILINE)
    ours, pillow = "this project, folder", "this project, folder, Pillow"
    theirs = medians["pytorch/examples"]
    assert (
        f"{medians[ours] / theirs:.1f} times as fast as pytorch/examples, whose batches" in heading
    )
    assert "into uint8 batches" in heading and "are float32" in heading
    assert f"({medians[pillow] / theirs:.1f} times as fast without nvImageCodec)" in heading
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
        ("DALI|FFCV", r"batches N as fast as pytorch/examples, whose batches are float32 \(", 2),
        ("pytorch/examples|timm", r"batches N as fast as DALI, N as fast as FFCV \(", 0),
        ("timm", r"are float32 \(N as fast without nvImageCodec\)\n", 1),
        ("Pillow", "N as fast as pytorch/examples, whose batches are float32\n", 2),
        ("this project, folder$|imagenet_nd.py$", "batches\n", 1),
        ("project|imagenet_nd|DALI|FFCV|pytorch", "batches\n", 0),
        ("nothing", r"FFCV \(re-encoded JPEGs\); N as fast as pytorch/examples, whose batches", 2),
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
    (heading,) = re.findall("^## (.*loads JPEGs.*\n)", text, re.MULTILINE)
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
    assert len(shown) >= len(sections) - 8
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
    checked = [sys.executable, "make_results.py", "logs", "--check"]
    subprocess.run(checked, cwd=copy, check=True)
