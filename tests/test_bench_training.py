"""The benchmarks that train: their paths on the CPU, and what they compute.

What they measure is not tested: it belongs to quiet machines.
"""

import json
import re
import signal
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, needs_bfloat16, needs_horovod, run, write_images

sys.path.insert(0, str(ROOT / "benchmarks"))
import bottleneck  # noqa: E402
import gpu  # noqa: E402
import saving  # noqa: E402
import training  # noqa: E402

TRAINING = [sys.executable, ROOT / "benchmarks" / "training.py", "-a", "resnet18", "-b", "4"]
TRAINING += ["--image-size", "32", "--steps", "2", "--rounds", "2", "-j", "1"]
GPU = "-a resnet18 -b 4 --image-size 32 --steps 2"


@pytest.fixture
def call(monkeypatch, capsys):
    """call(program, options, status=0) in this process; returns what it prints, or its one line."""

    def main(program, options, status=0):
        handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        monkeypatch.setattr(sys, "argv", [program.__file__, *map(str, options)])
        ended = 0
        try:
            program.main()
        except SystemExit as end:
            ended = end.code
        for each, handler in handlers.items():
            signal.signal(each, handler)
        output, errors = capsys.readouterr()
        assert ended == status, errors
        assert not status or errors.count("\n") == 1, errors
        return errors if status else output

    return main


def read(path, rounds, measured=True):
    """Returns a benchmark's rows by name, having checked what make_results.py needs of it."""
    content = json.loads(path.read_text())
    assert set(content) == {"title", "unit", "baseline", "note", "about", "rows"}
    rows = {row["name"]: row for row in content["rows"]}
    assert len(rows) == len(content["rows"]) and content["baseline"] in rows
    for row in rows.values():
        wanted = rounds if measured and "not measured" not in row else 0
        assert len(row["values"]) == wanted and all(value > 0 for value in row["values"])
    return rows


@needs_bfloat16
@pytest.mark.slow
def test_training_measures_ours_and_the_peers(tmp_path):
    images = write_images(tmp_path / "images", train=3)  # 6 in all, and more are wanted
    only = ["--only", "imagenet_nd.py --amp", *(["timm"] if training.timm else [])]
    run([*TRAINING, images, *only, "--rounds", "1", "--out", tmp_path / "out" / "t.json"], tmp_path)
    names = {training.PLAIN, "imagenet_nd.py --amp bfloat16 --channels-last"}
    names |= {training.TIMM} if training.timm else set()
    for source in ("synthetic", "jpegs"):
        assert set(read(tmp_path / "out" / f"t_resnet18_{source}.json", 1)) == names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "out"]  # no logs here


@pytest.mark.slow
@needs_horovod
@needs_bfloat16
def test_training_measures_five_scripts_twice(tmp_path):
    once = ["--steps", "1", "--rounds", "1", "--out", tmp_path / "t.json"]
    run([*TRAINING, "--only", "imagenet_", *once], tmp_path)
    rows = read(tmp_path / "t_resnet18_synthetic.json", 1)
    scripts = [name.split()[0] for name in rows if name.startswith("imagenet_")]
    ways = "nd", "dp", "ddp", "ddp_apex", "horovod"  # benchmarks/parallel.py measures the others
    assert sorted(scripts) == sorted(2 * [f"imagenet_{way}.py" for way in ways])


@pytest.mark.slow
@needs_bfloat16
def test_training_measures_the_overhead(tmp_path):
    run([*TRAINING, "--overhead", "--out", tmp_path / "t.json"], tmp_path)
    rows = list(read(tmp_path / "t_resnet18_overhead.json", 2).values())
    bare, whole = rows[0]["values"], rows[2]["values"]
    assert rows[0]["added, % (range)"] == "0.00 (0.00 to 0.00)"
    rounds = [100 * (before / after - 1) for before, after in zip(bare, whole, strict=True)]
    added = f"{sum(rounds) / 2:.2f} ({min(rounds):.2f} to {max(rounds):.2f})"
    assert rows[2]["added, % (range)"] == added


@pytest.mark.slow
def test_bottleneck_measures_loader_model_and_both(tmp_path):
    images = write_images(tmp_path / "images", train=40)
    words = [
        sys.executable,
        bottleneck.__file__,
        "-a",
        "squeezenet1_1",
        "--image-size",
        32,
        "-b",
        4,
    ]
    output = run([*words, "-j", 1, "--no-accel", "--steps", 2, images], tmp_path).splitlines()
    assert re.fullmatch(r"images/s: loader [\d,]+ \(-j 1\), model [\d,]+, both [\d,]+", output[0])
    assert re.match(r"The (model|loader) limits; -j \d+ would do", output[1])
    assert [path.name for path in tmp_path.iterdir()] == ["images"], "no logs are left"


def test_bottleneck_advises():
    model = bottleneck.advice(loader=2000, model=500, workers=4, cores=8)
    assert model == "The model limits; -j 2 would do."  # 500 images/s a core, and a tenth to spare
    assert bottleneck.advice(1000, 1400, 4, 8) == "The loader limits; -j 7 would do."
    more = bottleneck.advice(1000, 2400, 4, 8)
    assert "-j 11 would do on as many cores, here are 8: tools/make_shards.py" in more
    # Processes beyond the cores load nothing more.
    assert bottleneck.advice(1000, 500, 8, 2) == "The model limits; -j 2 would do."


def test_bad_input_of_the_benchmarks_is_one_line(tmp_path, call):
    line = call(bottleneck, ["-a", "resnet19", tmp_path], status=2)
    assert "no such classifier" in line
    line = call(bottleneck, ["-b", 4, "-a", "squeezenet1_1", tmp_path / "absent"], status=2)
    assert "absent" in line
    line = call(training, [tmp_path, "-a", "resnet18"], status=2)
    assert line.startswith(f"training.py: error: {tmp_path} has no images")
    if not torch.cuda.is_available():
        assert "PyTorch finds no CUDA GPU here" in call(gpu, [], status=2)


def test_saving_measures_the_stall(tmp_path, call):
    out = tmp_path / "s.json"
    call(saving, ["-a", "squeezenet1_1", "--rounds", 2, "--log-dir", tmp_path, "--out", out])
    assert list(read(out, 2)) == [
        "copy to host memory",
        "save_checkpoint()",
        "save_checkpoint(), the best so far",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]


@pytest.mark.slow
@needs_bfloat16
def test_gpu_measures_on_the_cpu(tmp_path):
    words = [sys.executable, gpu.__file__, *GPU.split(), "--minutes", "5"]
    only = ["--only", "bfloat16 --channels-last -b 4", "O2 --channels-last -b 4"]
    run([*words, *only, "--out", tmp_path / "g.json"], tmp_path)
    rows = read(tmp_path / "g.json", gpu.BLOCKS)
    names = ["imagenet_ddp_apex.py --opt-level O0 -b 4"]
    names += ["imagenet_nd.py --amp bfloat16 --channels-last -b 4"]
    assert list(rows) == [*names, "imagenet_ddp_apex.py --opt-level O2 --channels-last -b 4"]
    assert {row["of bf16 peak, %"] for row in rows.values()} == {"-"} or torch.cuda.is_available()


def test_gpu_without_time_measures_nothing(tmp_path, call):
    call(gpu, [*GPU.split(), "--minutes", 0, "--out", tmp_path / "g.json"])
    rows = read(tmp_path / "g.json", 0, measured=False)
    assert len(rows) == (5 * 2 + 1) * 3  # precisions, layouts, the recipe; modes
    assert {row["not measured"] for row in rows.values()} == {"out of time"}


@pytest.mark.slow
@needs_bfloat16
def test_gpu_worker_outlives_failures_and_keeps_the_deadline(tmp_path):
    args = SimpleNamespace(arch="resnet18", image_size=32, steps=2)
    job = {"precision": "O1", "channels_last": True, "mode": "off", "batch": 2}
    worker = gpu.Worker(args, str(tmp_path))
    try:
        assert worker.ask(job | {"precision": "O9"}, 60) == {"not measured": "KeyError: 'O9'"}
        assert len(worker.ask(job, 120)["values"]) == gpu.BLOCKS
        worker.process.kill()
        died = worker.ask(job, 60)
        assert died == {"not measured": "its process ended with status -9"}
        assert worker.ask(job, 0.1) == {"not measured": "out of time"} and worker.process is None
    finally:
        worker.stop()


def test_gpu_measures_first_what_matters_most():
    args = SimpleNamespace(batch_size=[256, 1024], only=None)
    names = [gpu.name_of(job) for job in gpu.jobs_of(args)]
    assert len(set(names)) == len(names) == (5 * 2 + 1) * 3 * 2
    assert names[0] == "imagenet_ddp_apex.py --opt-level O0 -b 256"  # what the others compare with
    eager = [f"--opt-level {level} --channels-last -b 256" for level in ("O2", "O1", "O3", "O0")]
    recipe = f"{gpu.RECIPE} --channels-last -b 256"
    wanted = ["--amp bfloat16 --channels-last -b 256", recipe, *eager]
    assert all(want in name for want, name in zip(wanted, names[1:], strict=False))
    assert all("--compile-mode" in name for name in names[7:9])


def test_flops_of_known_networks():
    convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
    once = 2 * 8 * 10 * 10 * 3 * 3 * 3
    assert gpu.count_flops(convolution, 10) == 2 * once  # forward, and backward for the weight
    # 4.09 GMAC forward, as torchvision's page of models says; backward is twice as much, less the
    # gradient of the images, which nobody needs: 64 kernels of 7 x 7 x 3 at 112 x 112 places.
    wanted = 3 * 2 * 4.09e9 - 2 * 64 * 7 * 7 * 3 * 112 * 112
    flops = gpu.count_flops(torch.nn.Module.to(gpu.models.resnet50(), "meta"), 224)
    assert flops == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize(
    ("device", "share"),
    [
        ("NVIDIA H200", "1.0"),
        ("NVIDIA H100 80GB HBM3", "1.0"),
        ("NVIDIA H100 PCIe", "1.3"),
        ("NVIDIA A100-SXM4-80GB", "3.2"),
        ("NVIDIA A100 80GB PCIe", "3.2"),
        ("NVIDIA L40S", "2.7"),
        ("NVIDIA L4", "8.2"),
        ("Tesla V100-SXM2-16GB", "7.9"),
        ("NVIDIA GeForce RTX 9090", "-"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "-"),
        ("Intel(R) Xeon(R) Processor", "-"),
    ],
)
def test_share_of_the_peak(device, share):
    assert gpu.share_of_peak(1000, 9.89e9, device) == share  # 9.89 TFLOPS


@pytest.mark.slow
def test_components_measures_loading_and_training_with_each(tmp_path):
    images = write_images(tmp_path / "images")
    few = [
        "--rounds",
        2,
        "--steps",
        2,
        "--loader-steps",
        2,
        "-b",
        4,
        "--only",
        "alternate",
        "mixup",
    ]
    words = [sys.executable, ROOT / "benchmarks" / "components.py", images, *few]
    run([*words, "--out", tmp_path / "c.json"], tmp_path)
    for kind, row in ("loader", "--flip alternate"), ("training", "--mixup 0.2"):
        content = json.loads((tmp_path / f"c_{kind}.json").read_text())
        assert [each["name"] for each in content["rows"]] == [content["baseline"], row]
        assert all(len(each["values"]) == 2 for each in content["rows"])
        assert all(value > 0 for each in content["rows"] for value in each["values"])
