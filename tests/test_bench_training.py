"""benchmarks/training.py and benchmarks/gpu.py: their paths on the CPU, and what they compute.

What they measure is not tested: it belongs to quiet machines.
"""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, environment, needs_horovod, run, write_images

sys.path.insert(0, str(ROOT / "benchmarks"))
import gpu  # noqa: E402

TRAINING = [sys.executable, ROOT / "benchmarks" / "training.py", "-a", "resnet18", "-b", "4"]
TRAINING += ["--image-size", "32", "--steps", "2", "--rounds", "2", "-j", "1"]
GPU = [sys.executable, ROOT / "benchmarks" / "gpu.py", "-a", "resnet18", "-b", "4"]
GPU += ["--image-size", "32", "--steps", "2"]
ARGS = SimpleNamespace(arch="resnet18", image_size=32, steps=2)
JOB = {"precision": "O1", "channels_last": True, "mode": "off", "batch": 2}
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch finds a GPU here")


def read(path, rounds, measured=True):
    """Returns a benchmark's rows by name, having checked what make_results.py needs of it."""
    content = json.loads(path.read_text())
    assert set(content) == {"title", "unit", "baseline", "note", "about", "rows"}
    assert content["unit"] == "images/s"
    rows = {row["name"]: row for row in content["rows"]}
    assert len(rows) == len(content["rows"]) and content["baseline"] in rows
    for row in rows.values():
        wanted = rounds if measured and "not measured" not in row else 0
        assert len(row["values"]) == wanted and all(value > 0 for value in row["values"])
    return rows


def test_training_measures_ours_and_the_peers(tmp_path):
    pytest.importorskip("timm")
    images = write_images(tmp_path / "images", train=3)  # 6 in all, and 8 are wanted
    only = ["--only", "imagenet_nd.py --amp", "timm"]
    run([*TRAINING, images, *only, "--out", tmp_path / "out" / "t.json"], tmp_path)
    names = {"pytorch/examples' loop", "imagenet_nd.py --amp bfloat16 --channels-last"}
    names.add("timm's loop, bfloat16, channels_last")
    for source in ("synthetic", "jpegs"):
        assert set(read(tmp_path / "out" / f"t_resnet18_{source}.json", 2)) == names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "out"]  # no logs here


@needs_horovod
def test_training_measures_every_script_twice(tmp_path):
    once = ["--steps", "1", "--rounds", "1", "--out", tmp_path / "t.json"]
    run([*TRAINING, "--only", "imagenet_", *once], tmp_path)
    rows = read(tmp_path / "t_resnet18_synthetic.json", 1)
    scripts = [name.split()[0] for name in rows if name.startswith("imagenet_")]
    assert sorted(scripts) == sorted(2 * [path.name for path in ROOT.glob("imagenet_*.py")])


def test_training_measures_the_overhead(tmp_path):
    run([*TRAINING, "--overhead", "--out", tmp_path / "t.json"], tmp_path)
    rows = list(read(tmp_path / "t_resnet18_overhead.json", 2).values())
    bare, whole = rows[0]["values"], rows[2]["values"]
    assert rows[0]["added, % (range)"] == "0.00 (0.00 to 0.00)"
    rounds = [100 * (before / after - 1) for before, after in zip(bare, whole, strict=True)]
    added = f"{sum(rounds) / 2:.2f} ({min(rounds):.2f} to {max(rounds):.2f})"
    assert rows[2]["added, % (range)"] == added


def test_training_tells_a_folder_without_images(tmp_path):
    out = run([*TRAINING, tmp_path], tmp_path, status=2)
    assert out.splitlines()[-1].startswith(f"training.py: error: {tmp_path} has no images")


@pytest.mark.slow
def test_gpu_measures_on_the_cpu(tmp_path):
    only = ["--only", "bfloat16 --channels-last -b 4", "decode"]
    run([*GPU, *only, "--minutes", "5", "--out", tmp_path / "g.json"], tmp_path)
    rows = read(tmp_path / "g.json", gpu.BLOCKS)
    names = ["imagenet_ddp_apex.py --opt-level O0 -b 4"]
    assert list(rows) == [*names, "imagenet_nd.py --amp bfloat16 --channels-last -b 4"]
    assert {row["of bf16 peak, %"] for row in rows.values()} == {"-"} or torch.cuda.is_available()
    loads = read(tmp_path / "g_decode.json", gpu.BLOCKS)
    assert "not measured" not in loads["imagenet_nd.py --decode cpu -b 4"]
    if not torch.cuda.is_available():  # a failure is recorded, and ends nothing
        why = loads["imagenet_nd.py --decode cuda -b 4"]["not measured"]
        assert why.startswith("BadInput: --decode cuda needs an NVIDIA GPU")


def test_gpu_without_time_measures_nothing(tmp_path):
    run([*GPU, "--minutes", "0", "--out", tmp_path / "g.json"], tmp_path)
    rows = read(tmp_path / "g.json", 0, measured=False)
    rows |= read(tmp_path / "g_decode.json", 0, measured=False)
    assert len(rows) == 5 * 2 * 3 + 2  # precisions, layouts, modes; decoders
    assert {row["not measured"] for row in rows.values()} == {"out of time"}


@no_gpu
def test_gpu_without_a_gpu_ends_in_one_line(tmp_path):
    words = [sys.executable, str(ROOT / "benchmarks" / "gpu.py")]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.count("\n") == 1 and "PyTorch finds no CUDA GPU here" in done.stderr


def test_gpu_worker_outlives_failures_and_keeps_the_deadline(tmp_path):
    worker = gpu.Worker(ARGS, str(tmp_path))
    try:
        assert worker.ask(JOB | {"precision": "O9"}, 60) == {"not measured": "KeyError: 'O9'"}
        assert len(worker.ask(JOB, 60)["values"]) == gpu.BLOCKS
        worker.process.kill()
        died = worker.ask(JOB, 60)
        assert died == {"not measured": "its process ended with status -9"}
        assert worker.ask(JOB, 0.1) == {"not measured": "out of time"} and worker.process is None
    finally:
        worker.stop()


def test_gpu_measures_first_what_matters_most():
    args = SimpleNamespace(batch_size=[256, 1024], only=None)
    names = [gpu.name_of(job) for job in gpu.jobs_of(args)]
    assert len(set(names)) == len(names) == 5 * 2 * 3 * 2 + 2
    assert names[0] == "imagenet_ddp_apex.py --opt-level O0 -b 256"  # what the others compare with
    eager = [f"--opt-level {level} --channels-last -b 256" for level in ("O2", "O1", "O3", "O0")]
    wanted = ["--amp bfloat16 --channels-last -b 256", *eager, "--decode cpu", "--decode cuda"]
    assert all(want in name for want, name in zip(wanted, names[1:], strict=False))
    assert all("--compile-mode" in name for name in names[8:10])


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
