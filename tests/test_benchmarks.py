"""Benchmarks: their tables and files, and the commands that measure loading and decoding.

What they measure is not tested: it belongs to quiet machines.
"""

import importlib.util
import json
import math
import os
import re
import shutil
import sys
import types

import numpy as np
import pytest
import torch
import torchvision
from conftest import ROOT, run
from test_results import NAME, cli, results, write_run

from reporting import claims, read, report, training
from reporting.language import TITLES as OF_TEXT
from reporting.language import language_section
from reporting.parallel import TITLES, parallel_section

sys.path.insert(0, str(ROOT / "benchmarks"))
import common  # noqa: E402
import data_loading  # noqa: E402
import decoders  # noqa: E402
import parallel  # noqa: E402
import recipe_memory  # noqa: E402
import text as of_text  # noqa: E402
import torchvision_recipe  # noqa: E402

ABOUT = {"command": ["python", "benchmarks/x.py", "a b"], "processor": "CPU", "commit": ""}
ROWS = [
    {"name": "new", "values": [30.0, 90.0, 60.0], "error": 0.01234, "not measured": ""},
    {"name": "old", "values": [20.0, 10.0, 2000.0], "batches": "uint8"},
    {"name": "x|y", "values": [], "not measured": "x is not installed"},
]


def benchmark(**more):
    """Returns a benchmark's content."""
    content = {"title": "Speed", "unit": "images/s", "baseline": "old", "note": "Noted."}
    return {**content, "about": ABOUT, "rows": ROWS, **more}


def make_logs(folder, **more):
    """Writes logs with a run and a benchmark; returns the benchmark's path."""
    write_run(folder / NAME.format(1), {"Lr": [1, 2]})
    path = folder / "benchmarks" / "speed.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(benchmark(**more)))
    return path


# ------------------------------------------------------------------------------------------ tables


def test_table_has_ratios_medians_and_ranges():
    assert report.benchmark_table(benchmark()) == [
        "|  | ratio | images/s | range | error | not measured | batches |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| new | 3.00 | 60.0 | 30.0 to 90.0 | 0.0123 | – | – |",
        "| old | 1.00 | 20.0 | 10.0 to 2,000 | – | – | uint8 |",
        "| x\\|y | – | – | – | – | x is not installed | – |",
    ]


def test_table_without_its_baseline_has_no_ratios():
    lines = report.benchmark_table(benchmark(baseline="x|y"))
    assert lines[0].startswith("|  | images/s | range |") and "| new | 60.0 |" in lines[2]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0.00"), (12345.6, "12,346"), (574.4, "574"), (12.54, "12.5"), (0.01234, "0.0123")],
)
def test_three_significant_digits(number, text):
    assert report.significant(number) == text


def test_section_tells_how_to_repeat_it(tmp_path):
    make_logs(tmp_path / "logs")
    cli(tmp_path / "logs", "--out", tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    section = text[text.index("## Benchmarks") : text.index("## Runs")]
    assert "### Speed\n" in section and "| new | 3.00 | 60.0 |" in section
    assert "Medians of 3; ratios to old. Noted. In full: `python make_results.py " in section
    shown = cli(tmp_path / "logs", "--show", "speed")
    assert "| new | 3.00 | 60.0 |" in shown and "ratios to old. Noted.\n" in shown
    assert "```bash\npython benchmarks/x.py 'a b'\n```\n\nprocessor CPU.\n" in shown


def test_a_table_on_the_page_is_short():
    """Rows that are a grid become one, of medians; of others it has the first."""
    grid = [
        {"name": f"{model}, {ranks} ranks, {kind}", "values": [ranks, 9]}
        for model in ("a", "b")
        for ranks in (2, 4, 8)
        for kind in ("x", "y")
    ]
    assert report.benchmark_table(benchmark(rows=grid), 6) == [
        "|  | x | y |",
        "| --- | --- | --- |",
        *(
            f"| {m}, {n} ranks | {(n + 9) / 2:.2f} | {(n + 9) / 2:.2f} |"
            for m in "ab"
            for n in (2, 4, 8)
        ),
    ]
    assert report.grid_table(grid[:-1], 6) == [], "a cell is missing"
    assert report.grid_table(grid, 2) == [], "six columns are too wide"
    rows = [{"name": f"row {n}", "values": [n] * (n != 2)} for n in range(1, 9)]
    lines = report.benchmark_table(benchmark(rows=rows, baseline="row 1"), 3)
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| row 1", "| row 2", "| row 3"]
    assert len(report.benchmark_table(benchmark(rows=rows))) == 10


def test_benchmarks_need_no_runs(tmp_path):
    make_logs(tmp_path)
    cli(tmp_path / "benchmarks", "--out", tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    assert "### Speed" in text and "All runs" not in text and "## Runs" not in text


def test_json_of_others_changes_nothing(tmp_path):
    path = make_logs(tmp_path)
    path.rename(tmp_path / NAME.format(1) / "trace.json")  # beside event files
    for serial, content in enumerate(([1], {"title": "x"}, "x")):
        (tmp_path / f"{serial}.json").write_text(json.dumps(content))
    assert report.read_benchmarks([tmp_path]) == ([], [])
    assert "Benchmarks" not in results(tmp_path)[0]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe{}",
        json.dumps(benchmark())[:-9].encode(),
        *(
            json.dumps(benchmark(**more)).encode()
            for more in (
                {"rows": []},
                {"rows": [{"name": "new"}]},
                {"rows": [{"name": "new", "values": ["1", "2"]}]},
                {"rows": [{"name": "new", "values": 3}]},
                {"rows": [{"name": "new", "values": [math.nan]}]},
                {"rows": [{"name": "new", "values": [math.inf]}]},
                {"rows": [{"name": "new", "values": [1.0], "error": {"a": 1}}]},
                {"about": {}},
                {"about": "unknown"},
                {"about": ["unknown"]},
            )
        ),
        b'{"title": "no more than that", "rows": 1}',
    ],
)
def test_damaged_json_beside_a_good_one(content, tmp_path):
    path = make_logs(tmp_path)
    damaged = path.with_name("damaged.json")
    damaged.write_bytes(content)
    found, (warning,) = report.read_benchmarks([tmp_path, path.parent])
    assert found == [benchmark() | {"file": str(path)}]
    assert str(damaged) in warning and "\n" not in warning


def test_damaged_json_is_named(tmp_path):
    damaged = make_logs(tmp_path)
    damaged.write_text("{")
    assert f"warning: {damaged}" in cli(tmp_path, "--out", tmp_path)
    assert str(damaged) in (tmp_path / "RESULTS.md").read_text()


def test_results_are_stale_when_a_benchmark_changes(tmp_path):
    path, words = make_logs(tmp_path / "logs"), [tmp_path / "logs", "--out", tmp_path]
    cli(*words)
    cli(*words, "--check")
    path.write_text(path.read_text().replace("60.0", "61.0"))
    assert "RESULTS.md" in cli(*words, "--check", status=1)
    path.unlink()
    assert "RESULTS.md" in cli(*words, "--check", status=1)


# ------------------------------------------------------------------------------------------ common


def test_written_benchmark_is_read_and_printed(tmp_path, capsys):
    path = tmp_path / "new" / "x.json"
    common.write(path, "Speed", "images/s", ROWS, "old", ABOUT, "Noted.")
    assert report.read_benchmarks([tmp_path]) == ([benchmark() | {"file": str(path)}], [])
    table = "\n".join(report.benchmark_table(benchmark()))
    assert capsys.readouterr().out == f"Speed:\n\n{table}\n"


def test_ways_take_turns():
    calls = []
    ways = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    assert common.interleave(ways, 2) == {"a": [1, 3], "b": [2, 4]} and calls == list("abab")


def test_about_tells_versions_and_no_folders(monkeypatch, tmp_path):
    script, out = ROOT / "benchmarks" / "x.py", ROOT / "logs" / "x.json"
    words = [str(script), str(tmp_path / "imagenet"), f"--out={out}", "-b", "64", "a/b"]
    monkeypatch.setattr(sys, "argv", words)
    about = common.about("pytest", "no-such-package")
    wanted = ["benchmarks/x.py", "imagenet", "--out=logs/x.json", "-b", "64", "a/b"]
    assert about["command"][1:] == wanted and "/" not in about["command"][0]
    assert about["pytest"] == pytest.__version__ and "no-such-package" not in about
    assert {"date", "processor", "cores", "torch", "torchvision", "commit"} <= set(about)
    monkeypatch.chdir(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["x.py"])
    assert common.about()["command"][1:] == ["benchmarks/x.py"]


# ---------------------------------------------------------------------------------------- commands


def read_rows(path):
    """Returns a benchmark's rows by name, having checked that make_results.py takes it."""
    (content,), warnings = report.read_benchmarks([path])
    assert not warnings and content["baseline"] in {row["name"] for row in content["rows"]}
    return {row["name"]: row for row in content["rows"]}


def test_data_loading_measures_by_each_loader(demo, tmp_path):
    words = [sys.executable, data_loading.__file__, demo, "-b", 4, "--images", 32, "--workers", 1]
    only = "this project, raw 256", "FFCV, raw 256", f"{ROOT.name}, folder"
    words += ["--rounds", 1, "--only", *only, "--checkout", ROOT]
    run([*words, "--out", tmp_path / "out" / "x.json"], tmp_path)
    rows = read_rows(tmp_path / "out" / "x.json")
    kinds = {"pytorch/examples": "float32", "this project, raw 256": "uint8"}
    kinds[f"{ROOT.name}, folder"] = "uint8"
    for name, kind in kinds.items():
        assert len(rows[name]["values"]) == 1 and min(rows[name]["values"]) > 0, rows[name]
        assert rows[name]["batches"] == kind and rows[name][data_loading.USED] >= 0
    if importlib.util.find_spec("ffcv") is None:
        assert rows["FFCV, raw 256"]["values"] == []
        assert rows["FFCV, raw 256"]["not measured"] == "ffcv is not installed"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # no logs, no links


def test_images_are_picked_again_where_there_are_too_few(demo):
    images = common.pick_images(demo, 1290)  # the demo set has 1280
    assert len(set(images)) == 1280 and images[:10] == images[1280:]
    assert images[:5] == common.pick_images(demo, 5)


def test_decoders_are_measured_with_their_errors(demo, tmp_path, monkeypatch):
    words = [decoders.__file__, demo, "--images", 4, "--rounds", 2, "--out", tmp_path / "x.json"]
    words += ["--only", "torchvision.io", "draft"]
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    monkeypatch.setattr(decoders.torch, "set_num_threads", lambda threads: None)
    decoders.main()
    rows = read_rows(tmp_path / "x.json")
    assert list(rows) == ["Pillow", "Pillow, draft", "torchvision.io"]
    for row in rows.values():
        assert len(row["values"]) == 2 and 0.1 < row["error, grey levels"] < 1  # rounding: 0.25


@pytest.mark.parametrize("program", [data_loading, decoders])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{tmp_path}/absent", "{tmp_path}/absent has no images in train/<class>/"),
        ("{tmp_path}", "{tmp_path} has no images in train/<class>/"),
        ("{demo} --only TensorFlow", "--only TensorFlow: no row has that in its name"),
        ("{demo} --rounds 0", "0 is not a whole number from 1 on"),
        ("{demo} --images none", "none is not a whole number from 1 on"),
    ],
)
def test_bad_input_is_one_line(program, words, message, demo, tmp_path, monkeypatch, capsys):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "notes.txt").touch()
    names = {"demo": demo, "tmp_path": tmp_path}
    line = complaint(program, words.format(**names), monkeypatch, capsys)
    assert message.format(**names) in line


def complaint(program, words, monkeypatch, capsys):
    """Returns the one line with which a program ends."""
    monkeypatch.setattr(sys, "argv", [program.__file__, *words.split()])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("gpus", [1, 4])
def test_memory_of_a_recipe_is_what_autograd_keeps(gpus, tmp_path):
    """As counted over a forward pass that is computed, and by formula."""
    recipe = tmp_path / "x.txt"
    recipe.write_text("-a resnet18 --image-size 64 -b 4 --global-batch 8 --ema 0.9")
    row = recipe_memory.measure(recipe, gpus)
    batch = 4 if gpus == 1 else 2
    assert (row["images a GPU"], row["parts"]) == (str(batch), str(8 // gpus // batch))
    model, kept = torchvision.models.resnet18(), {}
    own = {each.data_ptr() for each in [*model.parameters(), *model.buffers()]}

    def keep(tensor):
        place = tensor.untyped_storage().data_ptr()
        kept.update({} if place in own else {place: tensor.untyped_storage().nbytes()})
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        with torch.autocast("cpu", torch.bfloat16):
            output = model(torch.randn(batch, 3, 64, 64))
            loss = torch.nn.functional.cross_entropy(output, torch.zeros(batch, dtype=torch.long))
    state = 4 * 4 * sum(each.numel() for each in model.parameters())  # and momentum, averages
    assert loss.isfinite() and row["state, GB"] == pytest.approx(state / 1e9)
    found = 1e9 * row["values"][0] - state
    assert found == pytest.approx(sum(kept.values()), rel=1e-3)


def test_the_page_says_what_torchvisions_parts_train_to():
    rows = [
        {"name": "v2, theirs", "values": [40.04, 41.0]},
        {"name": "v2, ours", "values": [39.96]},
    ]
    lines = training.by_parts([benchmark(), benchmark(title=training.BY_PARTS, rows=rows)])
    assert lines == ["Noted. v2, theirs: 40.0, 41.0 %; v2, ours: 40.0 %.", ""]
    assert training.by_parts([benchmark()]) == []


def test_torchvisions_parts_need_a_folder_of_images(tmp_path, monkeypatch, capsys):
    line = complaint(torchvision_recipe, f"--dir {tmp_path}", monkeypatch, capsys)
    assert f"{tmp_path} has no train/ and val/: give --dir a folder that has" in line


@pytest.mark.slow
def test_a_recipe_is_trained_by_torchvisions_parts(demo, tmp_path):
    words = "--steps 2 --seeds 1 --val 20 --only v2 --dir".split()
    run([sys.executable, torchvision_recipe.__file__, *words, demo, "--out", "x.json"], tmp_path)
    content = json.loads((tmp_path / "x.json").read_text())
    assert content["title"] == training.BY_PARTS and "after 2 epochs of 2 steps" in content["note"]
    assert [len(row["values"]) for row in content["rows"]] == [1, 1]
    assert report.read_benchmarks([tmp_path])[1] == []


def test_data_loading_takes_more_than_is_loaded_ahead(demo, monkeypatch, capsys):
    line = complaint(data_loading, f"{demo} --images 511", monkeypatch, capsys)
    assert "--images 511: 512 or more" in line


def test_decoders_tell_a_broken_image(tmp_path, monkeypatch, capsys):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "1.jpg").write_text("no image")
    assert "1.jpg" in complaint(decoders, str(tmp_path), monkeypatch, capsys)


# ------------------------------------------------------------------------------ ways to be parallel


def test_the_page_says_what_ways_to_be_parallel_send():
    """The busiest link, speed against one rank, memory and idle time are the rows' medians."""
    rows = [{"name": "gather, 1 ranks", "way": "gather", "ranks": "1", "values": [10, 20, 90]}]
    for way, ranks, link, times in [
        ("gather", 2, 45.0, [40, 40]),
        ("gather", 4, 134.0, [80, 80]),
        ("ring", 2, 45.5, [30, 30]),
        ("ring", 4, 67.0, [25, 25]),
    ]:
        rows.append({"name": f"{way}, {ranks} ranks", "way": way, "ranks": str(ranks)})
        rows[-1] |= {"values": times, "busiest link, MB/step": link}
    for row in rows:
        row |= {"batch": "64", "by formula, MB/step": 44.7, "all ranks sent, MB/step": 268.0}
        row["first losses"] = "2.5 2.4"
    held = [
        {"name": f"resnet50, {way}, {ranks} ranks", "values": [found], "by formula, MB": formula}
        for way, ranks, found, formula in [
            ("ddp", 1, 306.7, 306.7),
            ("fsdp", 1, 306.7, 306.7),
            ("ddp", 4, 306.7, 306.7),
            ("fsdp", 4, 76.7, 76.63),
        ]
    ]
    idle = [
        {"name": "gpipe, 2", "way": "gpipe", "micro-batches": "2", "values": [30, 34, 31]},
        {"name": "gpipe, 8", "way": "gpipe", "micro-batches": "8", "values": [12, 12.4, 13]},
    ]
    titles = TITLES
    benchmarks = [
        benchmark(title=titles["exchange"], rows=rows, about=ABOUT | {"cores": 2}),
        benchmark(title=titles["memory"], rows=held),
        benchmark(title=titles["bubble"], rows=idle),
    ]
    figures = {}
    text = "\n".join(parallel_section(benchmarks, figures))
    assert "| gather | 134 | 44.7 | 268 | 80.0 | 0.25 |" in text
    assert "| ring | 67.0 | 44.7 | 268 | 25.0 | 0.80 |" in text
    assert "losses of all ways are within 0.0e+00 of each other: " in text
    assert "| resnet50, ddp | 307 | 307 |" in text and "| resnet50, fsdp | 307 | 76.7 |" in text
    assert "its share, within 0.1 %." in text
    links, speeds = figures["figures/exchange"]
    assert links["title"] == "gather: 134 MB a step on one link, ring 67"
    assert [[*line["y"]] for line in speeds["lines"]] == [[1, 0.5, 0.25], [1, 20 / 30, 0.8]]
    least, most = speeds["lines"][0]["errors"]
    assert ([*least], [*most]) == ([0, 0, 0], [0, 0, 0]), "each way took the same each time"
    (stages,) = figures["figures/bubble"]
    assert stages["title"] == "Idle time of two stages: 31 % with 2, 12 % with 8 micro-batches"
    two = next(line for line in stages["lines"] if line["label"].startswith("2 stages"))
    assert (two["y"][0], two["y"][7]) == (pytest.approx(50), pytest.approx(100 / 9))
    rows[-1]["first losses"] = "2.5 2.3"
    for losses in "2.5 2.4", "2.5 2.0":  # of a smaller batch
        rows.append({**rows[-1], "batch": "32", "first losses": losses})
    text = "\n".join(parallel_section(benchmarks, {}))
    assert "within 4.3e-02 of each other (2.0e-01 with 32)" in text
    assert "wait for each message" not in text
    assert "(14.9 MB of gradients, which `--list-tensors` lists)" in text  # a third of gather's
    rows += [{**rows[2], "way": "all_reduce", "name": "all_reduce, 4 ranks", "values": [81]}]
    rows[-1]["busiest link, MB/step"] = 67.5
    text = "\n".join(parallel_section(benchmarks, {}))
    assert "all_reduce's ring has 6 in turn for each tensor, gather 2, to rank 0 and back." in text
    rows[-1]["values"] = [79]
    assert "wait for each message" not in "\n".join(parallel_section(benchmarks, {}))
    assert parallel_section([benchmark()], {}) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "bubble", "dtype", "exchange"])
def test_ways_to_be_parallel_are_measured(kind, tmp_path):
    """A little of each; what must be exact is."""
    few = ["--archs", "squeezenet1_1", "-a", "squeezenet1_1", "--steps", "2", "--ranks", "2"]
    few += ["--batch", "16", "--image-size", "64", "--out", tmp_path / "found.json"]
    words = [sys.executable, parallel.__file__, kind, *few]
    if kind == "exchange":
        if os.geteuid() or not shutil.which("ip"):
            pytest.skip("network namespaces take root and iproute2")
        words += ["--only", "gather", "ring"]
    run(words, tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["title"] == TITLES[kind]
    assert all(value > 0 for row in found["rows"] for value in row["values"])
    for row in found["rows"]:
        if kind == "memory":
            assert row["values"] == [pytest.approx(row["by formula, MB"], rel=0.02)]
        if kind == "exchange":
            formula = row["by formula, MB/step"]
            assert row["busiest link, MB/step"] == pytest.approx(formula, rel=0.1)


# -------------------------------------------------------------------------------------------- text


def rows_of_text():
    """Returns {kind: rows} as benchmarks/text.py writes them."""

    def row(name, values, **more):
        return {"name": name, "values": values, **more}

    apart, link = "relative difference of losses", "rank 0's link, MB/step"
    epoch = {"GB an epoch at 64": 49.6, "by formula at 64": 49.4, "ranks": "4"}
    size = {"gradients, MB": 433.24724}
    albert = [
        row(f"{way} {ranks} {precision} {batch}", [rate, rate + 2], way=way, ranks=str(ranks))
        | {"precision": precision, "batch": str(batch)}
        for way, ranks, precision, batch, rate in [
            ("ddp", 1, "float32", 2, 10),
            ("ddp", 1, "float32", 64, 99),
            ("ddp", 2, "float32", 2, 20),
            ("ddp", 2, "float32", 64, 149),
            ("horovod", 2, "float32", 64, 100),
            ("horovod", 2, "fp16 exchange", 64, 75),
        ]
    ]
    gathers = [
        row(name, [times], **{"gathers a step": calls, "model, MB": megabytes})
        for name, times, calls, megabytes in [
            ("bert-base, resharded", 1.9, 24, 433.2),
            ("albert-base, resharded", 14.95, 25, 46.7),
            ("albert-base, not resharded", 8.2, 13, 46.7),
        ]
    ]
    return {
        "exchange": [
            row("gather", [800, 700, 1000], **{apart: "0.0e+00", link: 51.4}),
            row("rows", [600, 200, 590], **{apart: "1.7e-07", link: 20.7}),
        ],
        "traffic": [
            row("gather", [1306.0], **size, **epoch, **{"by formula, MB/step": 1299.7}),
            row("ring", [653.1], **size, **epoch, **{"by formula, MB/step": 649.9}),
        ],
        "albert": [*albert, row("fsdp", [], way="fsdp", **{"not measured": "emulated"})],
        "gathers": gathers,
        "stages": [
            row("one device", [30, 31, 90], script="text_nd.py", **{apart: "0.0e+00"}),
            row("two stages", [50, 51], script="text_pipeline.py", **{apart: "2.1e-07"}),
        ],
        "ngrams": [row("unigram", [3.25]), row("bigram", [2.32])],
    }


def test_each_kind_has_a_title_and_a_target():
    (kinds,) = re.findall("(?m)^TEXT := (.*)", (ROOT / "Makefile").read_text())
    assert {*kinds.split()} == {*of_text.KINDS} == {*OF_TEXT}


def test_the_page_says_what_text_takes(tmp_path):
    """Medians, ratios to the first way, formulas in brackets, what was not measured; and claims."""
    benchmarks = [
        benchmark(title=OF_TEXT[kind], rows=rows, about=ABOUT | {"cores": 2})
        for kind, rows in rows_of_text().items()
    ]
    text = "\n".join(language_section([], benchmarks))
    assert "| gather | 800 | 1.00 | 51.4 |\n| rows | 590 | 0.74 | 20.7 |" in text
    assert "Losses of all 2 ways are within 2e-07 of each other." in text
    assert "| ring | 653.1 (649.9) | 49.6 (49.4) |" in text and "433,247,240 bytes of" in text
    assert (
        "| ddp | float32 | 2 | 21 | 150 |" in text and "| horovod | float32 | 2 | – | 101 |" in text
    )
    assert "Not measured: emulated." in text
    assert "albert-base, its blocks not resharded: 13 gathers, 8.2 times its 46.7 MB" in text
    assert "one device 31 ms, two stages 50 ms." in text.replace("50.5", "50")
    assert "by bigrams" not in text, "there is no run that it could be set beside"
    found = {
        script: " ".join(claim.split()) for script, claim in claims.claims([], benchmarks).items()
    }
    for script, claim in {
        "text_ddp.py": "ranks that share the cores train 150 sequences/s, 1.50 times those of 1; 2",
        "text_exchange.py": "send 1,306 MB a step over rank 0's link by gather, 653 MB by ring;",
        "text_fsdp.py": "albert-base's 47 MB are gathered 14.9 times a step, in 25 parts; bert-ba",
        "text_horovod.py": "sequences/s at a batch of 64, 0.75 at 64 (101 in float32); 2",
        "text_pipeline.py": "50 ms a batch in two stages, 31 on one device; losses within 2e-07",
    }.items():
        assert claim in found.pop(script), script
    assert not found
    for kind, rows in rows_of_text().items():  # of which others are missing
        language_section([], [benchmark(title=OF_TEXT[kind], rows=rows)])
        claims.claims([], [benchmark(title=OF_TEXT[kind], rows=rows[:1])])
    assert language_section([], [benchmark()]) == []


def test_the_page_says_what_the_demos_are_learned_to(tmp_path):
    """The run on most sequences of each task, beside what counts alone reach."""
    of = {"command": ["python", "text_nd.py"], "steps_per_epoch": 10, "data": "demo", "cores": 2}
    of |= {"place": {"device": "cpu", "ranks": 1, "devices": 1, "local_ranks": 1}}
    of |= {"global_batch": 8, "device": "CPU"}
    for name, task, tags in [
        ("short", "lm", {"Loss/val": [1.0], "Perplexity/val": [2.7]}),
        ("long", "lm", {"Loss/val": [2.5, 2.1], "Perplexity/val": [12.2, 8.2]}),
        ("cola", "cola", {"Loss/val": [0.3], "Accuracy/val": [91.7]}),
    ]:
        options = {"arch": "gpt" if task == "lm" else "bert", "task": task}
        write_run(tmp_path / name, tags, about=of | {"options": options})
    runs, warnings = read.read_runs([tmp_path])
    counts = benchmark(title=OF_TEXT["ngrams"], rows=rows_of_text()["ngrams"])
    text = "\n".join(language_section(runs, [counts]))
    assert not warnings and "gpt to validation loss 2.10 (perplexity 8.2) on demo in" in text
    assert "bert to 91.7 % validation accuracy on cola: demo in 0:01:40." in text
    assert "loss is 3.25 by unigrams, 2.32 by bigrams." in text
    claim = claims.claims(runs, [])["text_nd.py"]
    assert (
        claim.startswith("Measured: gpt to validation loss 2.10") and "; 2 cores of CPU." in claim
    )


def test_made_up_data_have_the_sizes_of_the_real(tmp_path):
    """RTE's rows, which text_nd.py takes for RTE's; as many tensors and bytes as bert-base."""
    pytest.importorskip("transformers")
    of_text.make_rte(tmp_path / "rte")
    place = of_text.text_nd.Place(of_text.torch.device("cpu"))
    for name, count in ("train", 2490), ("dev", 277):
        rows, target = of_text.text_nd.read_rows(tmp_path / "rte" / f"{name}.tsv", "rte", place)
        assert len(rows) == count and 0.4 < sum(target) / count < 0.6
    assert len({of_text.word(number) for number in range(0, 30_000)}) == 30_000
    for kind, tensors, numbers in ("bert-base", 201, 108_311_810), ("albert-base", 27, 11_685_122):
        folder = of_text.make_model(tmp_path / kind, kind)
        words = ["--task", "rte", "-a", str(folder), "--from-scratch", str(tmp_path / "rte")]
        args = of_text.text_nd.parse_args([*words, "--max-length", "8"])
        tokenizer = of_text.text_nd.load_tokenizer(folder)
        data = types.SimpleNamespace(train=types.SimpleNamespace(vocabulary=len(tokenizer), pad=0))
        with torch.device("meta"):
            model = of_text.text_nd.build_model(args, data)
        weights = [*model.parameters()]
        assert (len(weights), sum(each.numel() for each in weights)) == (tensors, numbers)
    size = 433.24724
    assert of_text.expected("gather", 4, size) == pytest.approx(1299.74, abs=0.01)
    assert of_text.expected("ring", 4, size) == pytest.approx(649.87, abs=0.01)


def test_ngrams_are_those_of_the_text(monkeypatch):
    """Two letters that take turns: each is one of two, and follows from the other."""
    text = np.frombuffer(b"ab" * 5000, np.uint8)
    monkeypatch.setattr(of_text.text_nd, "demo_text", lambda: np.split(text, [9000]))
    single, pairs = of_text.ngrams(None, None)
    assert single["values"] == [pytest.approx(math.log(2), abs=0.01)]
    assert pairs["values"] == [pytest.approx(0, abs=0.01)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exchange", "albert", "gathers", "stages"])
def test_text_is_measured(kind, tmp_path):
    """A little of each; what must be exact is."""
    pytest.importorskip("transformers")
    words = [sys.executable, of_text.__file__, kind, "--out", tmp_path / "found.json"]
    few = {
        "exchange": "--only gather rows --steps 4 --ranks 2 --hidden-size 32 --layers 1",
        "albert": "--batch 2 --ranks 2 --steps 1 --hidden-size 32 --max-length 8",
        "gathers": "",
        "stages": "--steps 4 --rounds 1",
    }
    if kind == "exchange" and (os.geteuid() or not shutil.which("ip")):
        pytest.skip("network namespaces take root and iproute2")
    run([*words, *few[kind].split()], tmp_path)
    rows = read_rows(tmp_path / "found.json")
    for row in rows.values():
        assert min(row["values"], default=1) > 0
        assert float(row.get("relative difference of losses", 0)) < 1e-6
    if kind == "gathers":  # each of 12 calls, in both passes, and the rest once
        assert rows["albert-base, resharded"]["gathers a step"] == "25"
        assert rows["albert-base, not resharded"]["gathers a step"] == "13"
