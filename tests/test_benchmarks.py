"""The benchmarks: each program on little, what they count and compute, and their tables.

What they measure is not tested: it belongs to quiet machines.
"""

import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision
from conftest import (
    EMULATED,
    EMULATES,
    HOROVOD,
    ROOT,
    complaint,
    copy_script,
    locked,
    needs_bfloat16,
    run,
    run_forked,
    write_images,
)

from reporting.logs import read_benchmarks
from reporting.tables import benchmark_table, significant

sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]
import common  # noqa: E402
import find_bottleneck  # noqa: E402
import gpu  # noqa: E402
import recipe_memory  # noqa: E402
import studies  # noqa: E402
import text as of_text  # noqa: E402
import training  # noqa: E402
import ways  # noqa: E402

from trainparts.text import text_corpus, tokenizing  # noqa: E402

LOGS = ROOT / "logs" / "benchmarks"
slow = pytest.mark.slow


# ------------------------------------------------------------------------------------------ tables

ROWS = [
    {"name": "new", "values": [30.0, 90.0, 60.0], "error": 0.01234, "not measured": ""},
    {"name": "old", "values": [20.0, 10.0, 2000.0], "batches": "uint8"},
    {"name": "x|y", "values": [], "not measured": "x is not installed"},
]
SPEED = {"title": "Speed", "unit": "images/s", "baseline": "old", "facts": {}, "rows": ROWS}


def test_table_has_ratios_medians_and_ranges():
    assert benchmark_table(SPEED).splitlines() == [
        "|  | ratio | images/s | range | error | not measured | batches |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| new | 3.00 | 60.0 | 30.0 to 90.0 | 0.0123 | – | – |",
        "| old | 1.00 | 20.0 | 10.0 to 2,000 | – | – | uint8 |",
        "| x\\|y | – | – | – | – | x is not installed | – |",
    ]
    without = benchmark_table({**SPEED, "baseline": "x|y"})
    assert without.startswith("|  | images/s | range |") and "| new | 60.0 |" in without


def test_three_significant_digits():
    found = [significant(number) for number in (0, 12345.6, 574.4, 12.54, 0.01234)]
    assert found == ["0.00", "12,346", "574", "12.5", "0.0123"]


ANOTHER = """
import sys
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, "benchmarks")
import data_loading
seen = []
data_loading.this_project = lambda folder, args, by: seen.append(by)
data_loading.another_commit("", SimpleNamespace(checkout=Path(sys.argv[1])))
print(seen[0].nd.__file__, seen[0].nd.checkpointing.__file__)
"""


def test_processor_time_is_of_the_checkout(tmp_path, monkeypatch, capsys):
    """Each value is of the code of its checkout: here the program's own has a script and a package
    that say that they ran. It measures one pass instead of ten."""
    own, ran = tmp_path / "own", tmp_path / "ran"
    for name in "benchmarks", "tools", "reporting", "trainparts":
        shutil.copytree(ROOT / name, own / name)
    for path in (ROOT / "imagenet_nd.py", ROOT / "trainparts" / "images" / "image_loading.py"):
        head, mark, rest = path.read_text().partition("\nimport torch\n")
        says = f"open({str(ran)!r}, 'a').write('{path.stem} ')\n"
        (own / path.relative_to(ROOT)).write_text(f"{head}\n{says}{mark}{rest}")
    path = own / "benchmarks" / "processor_time.py"
    text = path.read_text()
    assert text.count("BATCH, PASSES = 32, 10\n") == 1
    path.write_text(text.replace("BATCH, PASSES = 32, 10\n", "BATCH, PASSES = 32, 1\n"))
    images = write_images(tmp_path / "images", train=16)
    spec = importlib.util.spec_from_file_location("processor_time", path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    forks = SimpleNamespace(**{**vars(subprocess), "run": run_forked})
    monkeypatch.setattr(program, "subprocess", forks)
    words = ["processor_time.py", ROOT, images, "--pairs", "1", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", [*map(str, words)])
    program.main()
    printed = capsys.readouterr().out
    lines, number = re.findall(".*: median .*", printed), r"\d+\.\d{3}"
    units = "image", "image, of two loader processes", "step", "--help"
    for line, unit in zip(lines, units, strict=True):
        ratio = re.fullmatch(
            rf"ms an? {unit}: median ratio ({number}) of 1 pairs: ({number}) ({number})", line
        )
        ratio, earlier, after = map(float, ratio.groups())
        half = 0.00051  # of a thousandth, to which all three are rounded
        least, most = (after - half) / (earlier + half), (after + half) / max(earlier - half, 1e-9)
        assert least - half <= ratio <= most + half
    assert ran.read_text().split() == ["imagenet_nd", "image_loading"] * 4


def test_pairs_are_before_and_after_whichever_came_first(monkeypatch, tmp_path, capsys):
    program = importlib.import_module("processor_time")
    (tmp_path / "imagenet_nd.py").touch()
    (tmp_path / "train").mkdir()
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "common.py").touch()
    seconds = {tmp_path: 1.0, ROOT: 2.0}
    monkeypatch.setattr(program, "measure", lambda kind, checkout, *_: seconds[checkout])
    words = ["processor_time.py", str(tmp_path), str(tmp_path), "--only", "step", "--pairs", "2"]
    monkeypatch.setattr(sys, "argv", words)
    program.main()
    wanted = "ms a step: median ratio 2.000 of 2 pairs: 1.000 2.000; 1.000 2.000\n"
    assert capsys.readouterr().out == wanted


def test_another_commit_is_measured_with_its_own_package(tmp_path):
    """Else it would be compared with itself."""
    for name in "benchmarks", "reporting", "tools", "trainparts":
        shutil.copytree(ROOT / name, tmp_path / name)
    copy_script("imagenet_nd.py", tmp_path)
    found = run([sys.executable, "-c", ANOTHER, tmp_path], ROOT).split()
    assert found == [f"{tmp_path}/imagenet_nd.py", f"{tmp_path}/trainparts/runs/checkpointing.py"]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        *((content, True) for content in (b"", b"\xff\xfe{}", b'{"title": "x", "rows":')),
        *(({"rows": rows}, True) for rows in (1, [{"name": "Pillow"}])),
        *(({"rows": [{"name": "x", "values": v}]}, True) for v in (["1"], 3, [np.nan], [np.inf])),
        *(({name: odd}, False) for name in ("about", "facts") for odd in ({}, "unknown")),
        *((content, False) for content in (b"[1]", b'"x"', b'{"title": "x"}', b'{"rows": []}')),
    ],
)
def test_damaged_json_beside_a_good_one(content, named, tmp_path, call_tool):
    """The good one is shown; damaged ones are named, those of other programs are not."""
    logs = tmp_path / "logs" / "benchmarks"
    logs.mkdir(parents=True)
    shutil.copy(LOGS / "memory.json", logs)
    if isinstance(content, dict):
        content = json.dumps(json.loads((LOGS / "dtype.json").read_text()) | content).encode()
    (logs / "dtype.json").write_bytes(content)
    _, errors = call_tool("make_results", tmp_path / "logs", "--out", tmp_path)
    assert ("dtype.json" in errors) == named
    shown, _ = call_tool("make_results", tmp_path / "logs", "--show", "memory")
    assert benchmark_table(json.loads((LOGS / "memory.json").read_text())) in shown


# ---------------------------------------------------------------------------------- each on little


def case(words, count, **rows):
    """Returns a program's words, how many values its rows have, and how rows of each file begin."""
    return pytest.param(words, count, rows, marks=slow, id="_".join(rows))


THEIR_LOOP = """
def train(train_loader, model, criterion, optimizer, epoch, device, args):
    model.train()
    for images, target in train_loader:
        loss = criterion(model(images.to(device)), target.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
NET, HALF = "squeezenet1_1", "imagenet_nd.py --amp bfloat16 --channels-last"
LITTLE = "-a resnet18 -b 4 --image-size 32 --steps 2"
PARTS = f"-a {NET} --archs {NET} --steps 2 --ranks 2 --batch 16 --image-size 64"
OF_ALBERT = ["ddp", "fsdp", "horovod"]
APEX = "imagenet_ddp_apex.py --opt-level"
PEERS = [training.PLAIN, HALF, *([training.TIMM] if training.timm else [])]
TWICE = "nd nd dp dp ddp. ddp. ddp_apex ddp_apex".split() + HOROVOD * ["horovod", "horovod"]
REASONS = "ffcv is not installed", "Horovod is not built: `make horovod`", EMULATED
OF_GPU = {"title": "Training resnet18 on synthetic images of 32 pixels", "facts": {"minutes": 1.0}}
OF_GPU["rows"] = [dict.fromkeys(["name", "values", "peak memory, GiB", "of bf16 peak, %"])]


def known(row):
    """Returns those columns of a measured row that are known beforehand."""
    sent = row.get("busiest link, MB/step", row["values"][0])
    floats = "pytorch/examples", "torchvision's loader"
    is_float = row["name"] in floats or row["name"].startswith("plain_loop.py")
    kind = "float32" if is_float else "uint8"
    columns = {
        "batches": "4" if "script" in row else kind,  # of text a number
        "by formula, MB": pytest.approx(row["values"][0], rel=0.02),
        "by formula, MB/step": pytest.approx(sent, rel=0.1),
        # Each of 12 blocks, in both passes if it is resharded, and the rest once.
        "gathers a step": "13" if "not resharded" in row["name"] else "25",
    }
    return {name: value for name, value in columns.items() if name in row}


@pytest.mark.parametrize(
    ("words", "count", "rows"),
    [
        case(
            "data_loading DEMO -b 4 --images 32 -j 1 --rounds 1 --checkout ROOT "
            "--only 'raw 256' commit",
            1,
            data_loading=["pytorch/examples", "FFCV, raw", "this project, raw"]
            + ["this project, folder, another commit"],
        ),
        case(
            "parts DEMO -b 4 --images 32 -j 1 --rounds 1 --only plain_loop",
            1,
            parts=["torchvision's loader", "plain_loop.py without", "plain_loop.py"],
        ),
        case(f"gpu {LITTLE} --minutes 0", 0, gpu=39 * ["imagenet_"]),  # 13 layouts in 3 modes
        case(
            f"gpu {LITTLE} --minutes 5 --only '16 --channels-last -b' 'O2 --channels-last -b'",
            gpu.BLOCKS,
            gpu=[
                f"{HALF} -b 4",
                f"{HALF.replace('bf', 'f')} -b 4",
                f"{APEX} O2 --channels-last -b 4",
            ],
        ),
        case(
            f"training DEMO {LITTLE} --rounds 1 -j 1 --only '{HALF}' timm",
            1,
            training_resnet18_synthetic=PEERS,
            training_resnet18_jpegs=PEERS,
        ),
        case(
            f"training {LITTLE} --rounds 1 -j 1 --only imagenet_",
            1,
            training_resnet18_synthetic=[training.PLAIN, *(f"imagenet_{way}" for way in TWICE)],
        ),
        case("recipe_memory RECIPE --gpus 1 2", 1, recipe_memory=["cifar10, 1", "cifar10, 2"]),
        case(f"parallel memory {PARTS}", 1, memory=[f"{NET}, ddp", f"{NET}, fsdp"]),
        case(f"parallel bubble {PARTS}", 2, bubble=4 * ["gpipe"] + 3 * ["1f1b"]),
        case(f"parallel dtype {PARTS}", 2, dtype=2 * [NET]),
        case(f"parallel exchange {PARTS} --only gather ring", 2, exchange=["gather", "ring"]),
        case(
            "text exchange --only ring rows --steps 4 --ranks 2", 4, text_exchange=["ring", "rows"]
        ),
        case("text traffic --only ring --steps 1 --ranks 2", 1, text_traffic=["ring"]),
        case("text albert --batch 2 --ranks 2 --steps 1", 1, text_albert=sorted(2 * OF_ALBERT)),
        case("text gathers", 1, text_gathers=2 * ["bert-base"] + 2 * ["albert-base"]),
        case("text stages --steps 4 --rounds 1", 4, text_stages=["one device", "DDP", "two st"]),
        case("text ngrams", 1, text_ngrams=["unigram", "bigram"]),
        case(
            "overhead loop --examples EXAMPLES --steps 20 --rounds 1",
            1,
            overhead_loop=["pytorch/examples", "imagenet_nd.py"],
        ),
        case(
            f"overhead saving --archs {NET} --rounds 1",
            1,
            overhead_saving=[f"{NET}, write() and fsync()", f"{NET}, save_checkpoint()"]
            + [f"{NET}, save_best()"],
        ),
        case(
            "overhead files --files 20000 --classes 3 --rounds 1",
            1,
            overhead_files=["torchvision's ImageFolder", "this project"],
        ),
    ],
)
def test_a_program_measures(words, count, rows, demo, tmp_path, tmp_path_factory):
    """make_results.py reads what it writes, with the facts and columns that logs/ have."""
    examples = tmp_path_factory.mktemp("examples") / "main.py"
    examples.write_text(THEIR_LOOP)
    places = {"DEMO": demo, "ROOT": ROOT, "RECIPE": ROOT / "recipes" / "cifar10.txt"}
    places["EXAMPLES"] = examples
    program, *words = [places.get(word, word) for word in shlex.split(words)]
    if {"exchange", "traffic"} & {*words} and (os.geteuid() or not shutil.which("ip")):
        pytest.skip("network namespaces take root and iproute2")
    if program in ("gpu", "training") and count and EMULATES:
        pytest.skip(EMULATED)
    if program == "text":
        pytest.importorskip("transformers")
    name = next(iter(rows)) if program in ("text", "parallel", "overhead") else program
    script = [sys.executable, ROOT / "benchmarks" / f"{program}.py", *words]
    printed = run([*script, "--out", tmp_path / "out" / f"{name}.json"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "no logs are left"
    found, warnings = read_benchmarks([tmp_path])
    assert not warnings
    assert found.keys() == rows.keys()
    for name, content in found.items():
        log = LOGS / f"{name}.json"
        like = OF_GPU if name == "gpu" else json.loads(log.read_text())
        assert content["title"].split(",")[0] == like["title"].split(",")[0]
        kinds, wanted = ([*map(type, each["facts"].values())] for each in (content, like))
        assert ([*content["facts"]], kinds) == ([*like["facts"]], wanted)
        assert f"{content['title']}:\n\n{benchmark_table(content)}" in printed
        assert content["baseline"] in ["", content["rows"][0]["name"]]
        assert len({row["name"] for row in content["rows"]}) == len(content["rows"])
        for row, begin in zip(content["rows"], rows[name], strict=True):
            assert row["name"].startswith(begin)
            if why := row.get("not measured"):
                assert not row["values"]
                assert why in (REASONS if count else ["out of time"])
                continue
            assert [*row] == [*like["rows"][0], "median"]
            assert len(row["values"]) == count
            assert all(0 < value < math.inf for value in row["values"])
            columns = known(row)
            assert {name: row[name] for name in columns} == columns
            assert float(row.get("relative difference of losses", 0)) < 1e-6


@slow
def test_bottleneck_measures_loader_model_and_both(tmp_path):
    images = write_images(tmp_path / "images", train=40)
    words = f"-a {NET} --image-size 32 -b 4 -j 1 --no-accel --output-dir run".split()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.pt").write_text("neither read nor written")
    with locked(tmp_path / "run"):  # that run goes on meanwhile
        words = [sys.executable, find_bottleneck.__file__, *words, images]
        advice = re.search("give (--steps 5 -j 1)$", complaint(words, tmp_path))[1]
        lines = run([*words, *advice.split()], tmp_path).splitlines()
        assert {path.name for path in (tmp_path / "run").iterdir()} == {"checkpoint.pt", ".lock"}
    assert (tmp_path / "run" / "checkpoint.pt").read_text() == "neither read nor written"
    assert re.fullmatch(r"images/s: loader [\d,]+ \(-j 1\), model [\d,]+, both [\d,]+", lines[0])
    assert re.match(r"The (model|loader) limits; -j \d+ would do", lines[1])
    assert {path.name for path in tmp_path.iterdir()} == {"images", "run"}, "no logs are left"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data_loading ABSENT", "ABSENT has no images in train/<class>/"),
        ("data_loading EMPTY", "EMPTY has no images in train/<class>/"),
        ("data_loading DEMO --only TensorFlow", "--only TensorFlow: no row has that in its name"),
        ("data_loading DEMO --checkout EMPTY", "--checkout EMPTY has no imagenet_nd.py"),
        ("data_loading DEMO --rounds 0", "0 is not a whole number from 1 on"),
        ("data_loading DEMO --images none", "none is not a whole number from 1 on"),
        ("data_loading DEMO --images 511", "--images 511: 512 or more"),
        ("find_bottleneck -a resnet19 EMPTY", "no such classifier"),
        (f"find_bottleneck -e --dummy --no-accel -b 4 -a {NET}", "--evaluate trains no steps"),
        (f"find_bottleneck -e --resume x.pt -b 4 -a {NET} DEMO", "--evaluate trains no steps"),
        (f"find_bottleneck -b 4 -a {NET} ABSENT", "ABSENT"),
        (
            "find_bottleneck -b 4 -a vit_b_16 --image-size 32 --start-size 16 --epochs 9 --dummy "
            "--no-accel -j 0 --steps 1",
            "the model cannot take this size of batch or input (Wrong image height! Expected 32",
        ),
        (
            f"find_bottleneck -b 32 -j 2 -a {NET} DEMO",
            "an epoch has 40 steps, fewer than are needed",
        ),
        (f"find_bottleneck -b 32 -j 2 -a {NET} DEMO", ", 74: give --steps 13 -j 2"),
        (f"find_bottleneck -b 128 -j 2 -a {NET} DEMO", ", 74: give --steps 2 -j 0"),
        (f"find_bottleneck -b 512 -j 2 -a {NET} DEMO", ", 74: lower -b, or give more images"),
        ("training EMPTY -a resnet18", "training.py: error: EMPTY has no images"),
        ("parallel bubble --accel --out ABSENT", "--accel: bubble is measured on the CPU"),
        ("text ngrams --ranks 1 2 --out ABSENT", "--ranks: ngrams takes one number"),
        ("overhead loop", "loop takes --examples MAIN.PY, imagenet/main.py of pytorch/examples"),
        ("gpu", "PyTorch finds no CUDA GPU here"),
        ("processor_time EMPTY DEMO", "processor_time.py: error: EMPTY has no imagenet_nd.py"),
        ("processor_time ROOT DEMO --pairs 0", "--pairs: 0 is not a whole number from 1 on"),
        ("processor_time ROOT ABSENT", "processor_time.py: error: ABSENT has no train"),
    ],
)
def test_bad_input_is_one_line(words, message, demo, tmp_path, complaint_here):
    if words == "gpu" and torch.cuda.is_available():
        pytest.skip("there is one")
    places = {"DEMO": demo, "ROOT": ROOT, "ABSENT": tmp_path / "absent"}
    places["EMPTY"] = tmp_path / "empty"
    (places["EMPTY"] / "train" / "cat").mkdir(parents=True)
    (places["EMPTY"] / "train" / "cat" / "notes.txt").write_text("no image")
    program, *words = [places.get(word, word) for word in words.split()]
    for name, path in places.items():
        message = message.replace(name, str(path))
    assert message in complaint_here(f"{program}.py", *words)


@pytest.mark.parametrize("study", studies.STUDIES)
def test_scripts_take_the_commands_of_a_study(study, monkeypatch):
    monkeypatch.chdir(ROOT)
    commands = studies.read_commands(studies.STUDIES[study])
    assert len({*map(tuple, commands)}) == len(commands) > 1
    for words in commands:
        assert not re.search(r"[{}$]", " ".join(words))
        (at,) = [number for number, word in enumerate(words) if word.endswith(".py")]
        importlib.import_module(words[at].removesuffix(".py")).parse_args(words[at + 1 :])


@pytest.fixture
def study(monkeypatch, tmp_path):
    """study(*words, fails=()) runs studies.py on three commands; those in the folders `fails` fail.
    Returns (exit status, {folder: its files}, folders of the runs that were started)."""
    file = tmp_path / "x_cpu.txt"
    file.write_text("python imagenet_nd.py -b {1,2}\nhorovodrun -np 2 python text_horovod.py DIR\n")
    (tmp_path / "data" / "train").mkdir(parents=True)
    monkeypatch.setattr(studies, "STUDIES", {"x_cpu": file})

    def call(*words, fails=()):
        started = []

        def train(words, cwd, env):
            option, folder = words[-2:]
            assert option == "--output-dir" and (cwd / folder).parent.is_dir()
            started.append((cwd / folder).name)
            (cwd / folder).mkdir(exist_ok=True)
            for name in "events.out.tfevents.1", "checkpoint.pt", "epoch-1.pt", ".lock", "a.png":
                (cwd / folder / name).touch()
            return SimpleNamespace(returncode=int(started[-1] in fails))

        monkeypatch.setattr(studies.subprocess, "run", train)
        words = ["x_cpu", "--dir", tmp_path / "data", "--logs", tmp_path / "logs", *words]
        monkeypatch.setattr(sys, "argv", ["studies.py", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            studies.main()
        found = (tmp_path / "logs" / "x_cpu").iterdir()
        files = {each.name: sorted(path.name for path in each.iterdir()) for each in found}
        return ended.value.code, files, started

    return call


def test_a_study_has_a_folder_for_each_run(study):
    """Which is resumed if it had failed, and left alone if it is complete."""
    first, second, third = names = ["01_imagenet_nd", "02_imagenet_nd", "03_text_horovod"]
    status, files, started = study("--", "--epochs", "1", fails=[second])
    done = ["events.out.tfevents.1"]
    every = sorted([*done, "checkpoint.pt", "epoch-1.pt", ".lock", "a.png"])
    assert files == {first: done, second: every, third: done} and started == names
    assert re.search("failed:\npython imagenet_nd.py -b 2 --epochs 1 --output-dir .*  # 2$", status)
    assert study("--first", "2") == (0, dict.fromkeys(names, done), [second])
    assert study()[0] == 2, "it is there already"


def test_ways_take_turns():
    calls = []
    ways = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    assert common.interleave(ways, 2) == {"a": [1, 3], "b": [2, 4]}
    assert calls == list("abab")


def test_about_tells_versions_and_no_folders(monkeypatch, tmp_path):
    script, out = ROOT / "benchmarks" / "x.py", ROOT / "logs" / "x.json"
    words = [str(script), str(tmp_path / "imagenet"), f"--out={out}", "-b", "64", "a/b"]
    monkeypatch.setattr(sys, "argv", words)
    about = common.about("pytest", "no-such-package")
    wanted = ["benchmarks/x.py", "imagenet", "--out=logs/x.json", "-b", "64", "a/b"]
    assert about["command"][1:] == wanted
    assert "/" not in about["command"][0]
    assert about["pytest"] == pytest.__version__
    assert "no-such-package" not in about
    assert {"date", "processor", "cores", "torch", "torchvision", "commit"} <= set(about)
    monkeypatch.chdir(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["x.py"])
    assert common.about()["command"][1:] == ["benchmarks/x.py"]


def test_images_are_picked_again_where_there_are_too_few(demo):
    images = common.pick_images(demo, 1290)  # the demo set has 1280
    assert len(set(images)) == 1280
    assert images[:10] == images[1280:]
    assert images[:5] == common.pick_images(demo, 5)


def test_bottleneck_advises():
    model = find_bottleneck.advice(loader=2000, model=500, workers=4, cores=8)
    assert model == "The model limits; -j 2 would do."  # 500 images/s a core, and a tenth to spare
    assert find_bottleneck.advice(1000, 1400, 4, 8) == "The loader limits; -j 7 would do."
    more = find_bottleneck.advice(1000, 2400, 4, 8)
    assert "-j 11 would do on as many cores, here are 8: tools/make_shards.py" in more
    # Processes beyond the cores load nothing more.
    assert find_bottleneck.advice(1000, 500, 8, 2) == "The model limits; -j 2 would do."


@pytest.mark.parametrize(
    ("rates", "line"),
    [
        ((1000, 500, 4, 8), "The model limits; -j 3 would do."),
        ((551, 500, 8, 8), "The model limits; -j 8 would do."),
        ((549, 500, 8, 8), "The loader limits; -j 9 would do on as many cores, here are 8: "),
        ((549, 500, 4, 8), "The loader limits; -j 5 would do."),
        ((100, 700, 1, 8), "The loader limits; -j 8 would do."),
        ((100, 100, 0, 8), "The loader limits; -j 2 would do."),  # it loads in its own process
    ],
)
def test_a_tenth_is_to_spare(rates, line):
    assert find_bottleneck.advice(*rates).startswith(line)


def test_rates_are_of_the_steps_after_those_to_warm_up(monkeypatch):
    """Batches that were loaded ahead are none of them."""
    data = SimpleNamespace(workers=5, global_batch=8)
    done = []

    def work(run, steps):
        done.append((run, steps))
        clock[0] += 3 * steps if len(done) > 1 else 1000

    clock, run = [50.0], SimpleNamespace(data=data)
    monkeypatch.setattr(find_bottleneck.time, "perf_counter", lambda: clock[0])
    assert find_bottleneck.images_per_second(work, run, 7) == pytest.approx(8 / 3)
    assert done == [(run, 3 + 2 * 5), (run, 7)]


def test_loaded_batches_are_steps_of_the_epoch():
    batches = iter([(None, torch.zeros(1, 1, 1, 1), None)] * 9)
    run = SimpleNamespace(batches=batches, step=4)
    find_bottleneck.load(run, 3)
    assert run.step == 7 and len([*batches]) == 6


@pytest.mark.parametrize(
    ("workers", "there", "cure"),
    [
        (2, 34, None),  # twice 10 steps, 3 to warm up, and 2 that each process loads ahead
        (2, 33, "33 steps, fewer than are needed, 34: give --steps 9 -j 2"),
        (2, 16, "16 steps, fewer than are needed, 34: give --steps 1 -j 2"),
        (2, 15, "15 steps, fewer than are needed, 34: give --steps 4 -j 0"),
        (2, 8, "8 steps, fewer than are needed, 34: give --steps 1 -j 0"),
        (2, 7, "7 steps, fewer than are needed, 34: lower -b, or give more images"),
        (0, 26, None),
    ],
)
def test_an_epoch_is_long_enough_to_measure(workers, there, cure, monkeypatch):
    """What the line says is enough. The three rates are the loader's, the model's and both."""
    words, killed = [], []

    def start(script, typed):
        words.append(typed)
        return SimpleNamespace(
            data=SimpleNamespace(workers=workers, steps=there), dummy="--dummy" in typed
        )

    rates = {(find_bottleneck.train, False): "both", (find_bottleneck.load, False): "loader"}
    rates[find_bottleneck.train, True] = "model"
    monkeypatch.setattr(find_bottleneck, "start", start)
    monkeypatch.setattr(
        find_bottleneck, "images_per_second", lambda work, run, steps: rates[work, run.dummy]
    )
    monkeypatch.setattr(find_bottleneck, "kill_workers", lambda: killed.append(len(words)))
    if cure is None:
        found = find_bottleneck.measure(["-b", "4"], 10, "F")
        assert found == ("loader", "model", "both", workers) and killed == [1]
        return
    with pytest.raises(find_bottleneck.errors.BadInput, match=f"^an epoch has {cure}$"):
        find_bottleneck.measure(["-b", "4"], 10, "F")
    if typed := re.search(r"--steps (\d+) -j (\d+)", cure):
        workers = int(typed[2])
        assert find_bottleneck.measure([], int(typed[1]), "F")[0] == "loader"


@pytest.mark.parametrize("steps", ["0", "-1"])
def test_a_bottleneck_is_measured_over_a_step_at_least(steps, tool):
    line = tool("find_bottleneck", f"--steps={steps}", status=2)
    assert line == f"find_bottleneck.py: error: --steps {steps}: 1 or more"


@pytest.mark.parametrize("gpus", [1, 4])
def test_memory_of_a_recipe_is_what_autograd_keeps(gpus, tmp_path):
    """As counted over a forward pass that is computed, and by formula."""
    recipe = tmp_path / "x.txt"
    recipe.write_text("-a resnet18 --image-size 64 -b 4 --global-batch 8 --ema 0.9")
    row = recipe_memory.memory(recipe, gpus)
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
    assert loss.isfinite()
    assert row["state, GB"] == pytest.approx(state / 1e9)
    found = 1e9 * row["values"][0] - state
    assert found == pytest.approx(sum(kept.values()), rel=1e-3)


def test_memory_under_checkpoint_activations(tmp_path, monkeypatch):
    """Another block adds its input, in bfloat16; without it, what it keeps."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(192, 192)

        def forward(self, x):
            return self.layer(x.sigmoid().sigmoid())

    recipe = tmp_path / "x.txt"
    recipe.write_text("-a resnet18 --image-size 8 -b 4")
    found = []
    for number in (2, 3):
        blocks = torch.nn.Sequential(torch.nn.Linear(192, 192), *(Block() for _ in range(number)))
        model = torch.nn.Sequential(torch.nn.Flatten(), blocks)
        monkeypatch.setattr(recipe_memory.architectures, "make_model", lambda *_, m=model, **__: m)
        rows = [recipe_memory.memory(recipe, 1, again) for again in (False, True)]
        found.append([1e9 * (row["values"][0] - row["state, GB"]) for row in rows])
    size = 2 * 4 * 192  # bytes of one output
    weight = 2 * 192 * 192  # as autocast keeps it
    assert found[1][0] - found[0][0] == pytest.approx(2 * size + weight)
    assert found[1][1] - found[0][1] == pytest.approx(size)


@slow
@needs_bfloat16
def test_a_server_names_failures_and_keeps_the_deadline(tmp_path):
    """As gpu.py has it, in a process that is not forked; the next job has another."""
    args = SimpleNamespace(arch="resnet18", image_size=32, steps=2, profile=False)
    job = {"precision": "O1", "channels_last": True, "mode": "off", "batch": 2}

    def ask(job, seconds, before=lambda server: None):
        server = gpu.start(args, str(tmp_path))
        try:
            first = server.ask(job, seconds=seconds)
            return first, before(server)
        finally:
            server.stop()
            assert server.process.exitcode is not None

    def killed(server):
        server.process.kill()
        return server.ask(job, seconds=60)

    assert ask(job | {"precision": "O9"}, 60)[0] == (None, "KeyError: 'O9'")
    ((measured, _), why), died = ask(job, 120, killed)
    assert (len(measured["values"]), why) == (gpu.BLOCKS, "")
    assert died == (None, "its process ended with status -9")
    assert ask(job, 0.1)[0] == (None, "out of time")


def test_gpu_measures_first_what_matters_most():
    args = SimpleNamespace(batch_size=[256, 1024], only=None, float8=False)
    names = [gpu.name_of(job) for job in gpu.jobs_of(args)]
    assert len(set(names)) == len(names) == (6 * 2 + 1) * 3 * 2
    assert names[0] == "imagenet_ddp_apex.py --opt-level O0 -b 256"  # what the others compare with
    eager = [f"--opt-level {level} --channels-last -b 256" for level in ("O2", "O1", "O3", "O0")]
    recipe = f"{gpu.RECIPE} --channels-last -b 256"
    both = [f"--amp {half} --channels-last -b 256" for half in ("bfloat16", "float16")]
    wanted = [*both, recipe, *eager]
    assert all(want in name for want, name in zip(wanted, names[1:], strict=False))
    assert all("--compile-mode" in name for name in names[8:10])


def test_share_of_the_peak():
    shares = {
        "NVIDIA H200": "1.0",
        "NVIDIA H100 80GB HBM3": "1.0",
        "NVIDIA H100 PCIe": "1.3",
        "NVIDIA A100-SXM4-80GB": "3.2",
        "NVIDIA A100 80GB PCIe": "3.2",
        "NVIDIA L40S": "2.7",
        "NVIDIA L4": "8.2",
        "Tesla V100-SXM2-16GB": "7.9",
        "NVIDIA GeForce RTX 9090": "-",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb": "-",
        "Intel(R) Xeon(R) Processor": "-",
    }
    assert shares == {name: gpu.share_of_peak(1000, 9.89e9, name) for name in shares}  # 9.89 TFLOPS


# -------------------------------------------------------------------------------------------- text


def test_each_kind_has_a_target():
    (kinds,) = re.findall("(?m)^TEXT := (.*)", (ROOT / "Makefile").read_text())
    assert {*kinds.split()} == {*of_text.KINDS}


def test_made_up_data_have_the_sizes_of_the_real(tmp_path):
    """RTE's rows, which text_nd.py takes for RTE's; as many tensors and bytes as bert-base."""
    pytest.importorskip("transformers")
    of_text.make_rte(tmp_path / "rte")
    columns, label, classes = of_text.text_nd.GLUE["rte"]
    for name, count in ("train", 2490), ("dev", 277):
        path = tmp_path / "rte" / f"{name}.tsv"
        rows, lines = text_corpus.read_rows(path, columns, label, classes)
        assert (len(rows), lines) == (count, [])
        assert 0.4 < sum(row.label for row in rows) / count < 0.6
    assert len({of_text.word(number) for number in range(0, 30_000)}) == 30_000
    for kind, tensors, numbers in ("bert-base", 201, 108_311_810), ("albert-base", 27, 11_685_122):
        folder = of_text.make_model(tmp_path / kind, kind)
        words = ["--task", "rte", "-a", str(folder), "--from-scratch", str(tmp_path / "rte")]
        args = of_text.text_nd.parse_args([*words, "--max-length", "8"])
        tokenizer = tokenizing.load_tokenizer(folder, print)
        train = SimpleNamespace(vocabulary=len(tokenizer), pad=0)
        labels = ["entailment", "not_entailment"]
        data = SimpleNamespace(train=train, from_checkpoint=False, labels=labels)
        with torch.device("meta"):
            model = of_text.text_nd.build_model(args, data)
        weights = [*model.parameters()]
        assert (len(weights), sum(each.numel() for each in weights)) == (tensors, numbers)
    size = 433.24724
    assert ways.expected("gather", 4, size) == pytest.approx(1299.74, abs=0.01)
    assert ways.expected("ring", 4, size) == pytest.approx(649.87, abs=0.01)


def test_ngrams_are_those_of_the_text(monkeypatch):
    """Two letters that take turns: each is one of two, and follows from the other."""
    text = np.frombuffer(b"ab" * 5000, np.uint8)
    monkeypatch.setattr(text_corpus, "demo_text", lambda: np.split(text, [9000]))
    single, pairs = of_text.ngrams(None, None)
    assert single["values"] == [pytest.approx(math.log(2), abs=0.01)]
    assert pairs["values"] == [pytest.approx(0, abs=0.01)]
