"""Claims of speed beside others: what may be said of made-up benchmarks, and what the page shows of
those that are held to fewer instructions of the CPU."""

import sys

import pytest
from test_benchmarks import ABOUT, benchmark, data_loading

from reporting import page, speed
from reporting.text import singular


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ([30, 31, 32], [10, 15, 16], "2.1 times"),
        ([30, 31, 32], [10, 15, 30], "as fast as"),  # they meet at 30
        ([10, 11, 29], [28, 30, 31], "as fast as"),
        ([1030, 1031, 1032], [1000, 1001, 1002], "as fast as"),  # 1.03 times, to two digits 1.0
        ([1060, 1061, 1062], [1000, 1001, 1002], "1.1 times"),
        ([10, 11, 12], [20, 21, 22], "0.5 times"),
    ],
)
def test_ranges_that_overlap_are_as_fast(ours, theirs, words):
    assert speed.against(ours, theirs) == words


LOADING = {
    "pytorch/examples": ([500, 510, 520], "float32"),
    "timm": ([505, 515, 525], "float32"),
    "NVIDIA DALI, CPU": ([900, 910, 920], "uint8"),
    "FFCV, full-size JPEGs": ([1000, 1100, 1300], "uint8"),
    "FFCV, raw 256": ([8000, 8100, 8200], "uint8"),
    "this project, folder, Pillow": ([905, 915, 925], "uint8"),
    "this project, folder": ([1250, 1260, 1270], "uint8"),
    "this project, raw 256": ([9000, 9100, 9200], "uint8"),
}


def loading(held="", **changed):
    """Returns a benchmark of loading; `changed` has other values of some rows, by first word."""
    rows = []
    for name, (values, kind) in LOADING.items():
        values = changed.get(name.partition(",")[0].rpartition(" ")[2], values)
        row = {"name": name, "values": values, "batches": kind}
        rows.append(row | ({} if values else {"not measured": "x is not installed"}))
    title = "Data loading, 2 workers" + (f", held to {held}" if held else "")
    about = {**ABOUT, "cores": 2} | ({"ATEN_CPU_CAPABILITY": held.lower()} if held else {})
    return benchmark(title=title, rows=rows, about=about, baseline="pytorch/examples")


def test_those_that_give_the_same_type_come_first():
    (claim,) = speed.speed_sentences([loading()])
    assert claim == (
        "**Loading JPEGs: 1.4 times DALI, as fast as FFCV (uint8 batches, as here), "
        "2.5 times pytorch/examples, 2.4 times timm (float32 batches)**; without nvImageCodec "
        "as fast as DALI, 0.8 times FFCV, 1.8 times pytorch/examples, 1.8 times timm "
        "(images/s, medians; 2 cores of CPU)."
    )


def test_what_was_not_measured_is_said():
    (claim,) = speed.speed_sentences([loading(FFCV=[])])
    assert "FFCV, " not in claim and claim.endswith(
        "; FFCV not measured (images/s, medians; 2 cores of CPU)."
    )
    (panel,) = speed.speed_panels([loading(FFCV=[])])
    name, rate, _, text = panel["bars"][-1]
    assert (name, rate, text) == ("FFCV, JPEGs of quality 90", 0, "not measured")
    assert speed.speed_sentences([loading(project=[])]) == []
    assert speed.speed_sentences([loading(**{"pytorch/examples": []})]) == []


def test_bars_are_of_the_same_files_and_say_their_type():
    (panel,) = speed.speed_panels([loading()])
    assert [name.replace("\n", " ") for name, *_ in panel["bars"]] == [
        "this project, folder",
        "FFCV, JPEGs of quality 90",
        "this project, folder, without nvImageCodec",
        "NVIDIA DALI, CPU",
        "timm",
        "pytorch/examples",
    ]
    coloured = [name for name, _, colour, _ in panel["bars"] if colour != "#b0b0b0"]
    assert len(coloured) == 2 and all(name.startswith("this project") for name in coloured)
    assert panel["bars"][0][3] == "1,260  (2.5 x)  uint8"
    assert max(map(len, panel["title"].splitlines())) < 47 and "\n" in panel["title"]


def training(**values):
    """Returns a benchmark of training; `values` are of rows, by a word of each."""
    names = {
        "examples": "pytorch/examples' loop",
        "timm": "timm's train.py --amp bfloat16 --channels-last",
        "plain": "imagenet_nd.py",
        "half": speed.HALF,
    }
    rows = [{"name": names[key], "values": each} for key, each in values.items()]
    about = {**ABOUT, "cores": 2}
    title = "Training resnet18 on JPEGs, batch 64"
    return benchmark(title=title, rows=rows, about=about, baseline=names["examples"])


def test_training_is_compared_in_the_same_precision_first():
    measured = training(examples=[10, 11], timm=[24, 25], plain=[10.5, 11.5], half=[23, 24.5])
    (claim,) = speed.speed_sentences([measured])
    assert claim == (
        "**Training ResNet-18 on JPEGs: as fast as pytorch/examples in float32, 2.3 times by two "
        "options that it lacks (--amp bfloat16 --channels-last), as fast as timm with the same** "
        "(images/s, medians; 2 cores of CPU)."
    )
    (claim,) = speed.speed_sentences([training(examples=[10, 11], half=[23, 24])])
    assert "JPEGs: 2.2 times pytorch/examples by two options that it lacks (" in claim
    assert "timm" not in claim
    assert speed.speed_sentences([training(examples=[10, 11], plain=[10, 11])]) == []


def test_libraries_held_back_are_a_column_and_no_claim():
    """Whichever file is read first."""
    whole, held = loading(), loading("AVX2", project=[], **{"pytorch/examples": [250]})
    assert speed.speed_sentences([held, whole]) == speed.speed_sentences([whole])
    lines = page.benchmark_part(whole, [held])
    header, _, first, *_ = (line.split(" | ") for line in lines[2:])
    assert header[-1] == "images/s, held to AVX2 |" and first[-1] == "250 |"
    (ours,) = (line for line in lines if line.startswith("| this project, folder |"))
    assert ours.endswith("| – |"), "of which nothing was measured"
    assert "Held to AVX2 by ATEN_CPU_CAPABILITY=avx2; " in lines[-2]


def test_libraries_held_back_are_named_so(demo, tmp_path, monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    monkeypatch.setattr(data_loading, "measure", lambda *_: [{"name": "a row", "values": [1.0]}])
    words = f"{demo} -b 4 --images 32 --workers 1 --out {tmp_path}/x.json"
    monkeypatch.setattr(sys, "argv", ["data_loading.py", *words.split()])
    data_loading.main()
    text = (tmp_path / "x.json").read_text()
    assert '"title": "Data loading, 1 workers, held to AVX2"' in text
    assert '"ATEN_CPU_CAPABILITY": "avx2"' in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Data loading, 1 workers", "Data loading, 1 worker"),
        ("11 workers, 1 ranks", "11 workers, 1 rank"),
        ("0.1 images, 2,001 images, -1 steps", "0.1 images, 2,001 images, -1 steps"),
        ("1 stepsize", "1 stepsize"),
    ],
)
def test_one_has_no_plural(text, expected):
    assert singular(text) == expected
