"""Trials of minutes: `make test-all`."""

import sys
import tarfile

import pytest
from conftest import ROOT, command, needs_horovod, run, scalars

pytestmark = pytest.mark.slow
CIFAR = ROOT.parent / "shared" / "data" / "cifar10_jpeg.tar.gz"


@pytest.mark.timeout(3600)
@pytest.mark.skipif(not CIFAR.exists(), reason=f"{CIFAR} is not here")
def test_cifar10_over_58_percent_in_five_epochs(tmp_path):
    """A bare loop with bfloat16 autocast, batch 128 and peak learning rate 0.05 got 61.9 %."""
    with tarfile.open(CIFAR) as archive:
        archive.extractall(tmp_path, filter="data")
    recipe = ["--opt-level", "O1", "-b", "64", "--lr", "0.1", "--lr-schedule", "cosine"]
    size = ["--epochs", "5", "--image-size", "32", "--val-resize", "32", "--channels-last"]
    words = [*command("imagenet_ddp_apex.py", 2), *recipe, *size, "--no-accel"]
    run([*words, tmp_path / "cifar10"], tmp_path, timeout=3500)
    assert max(scalars(tmp_path / "runs", "Top1/val").values()) > 58


@pytest.mark.parametrize("arch", ["inception_v3", "googlenet", "maxvit_t", "swin_v2_t", "vgg11"])
@pytest.mark.parametrize(
    "script",
    [
        "imagenet_ddp.py",
        "imagenet_ddp_apex.py",
        pytest.param("imagenet_horovod.py", marks=needs_horovod),
    ],
)
def test_other_families_train_on_two_ranks(script, arch, tmp_path):
    level = ["--opt-level", "O2"] if "apex" in script else ["--amp", "bfloat16"]
    options = ["-a", arch, "-b", "2", "--dummy", "--num-classes", "7", "--steps-per-epoch", "2"]
    run([*command(script, 2), *options, *level, "--epochs", "1", "--no-accel"], tmp_path)
    assert 0 < scalars(tmp_path / "runs", "Loss/train")[1] < 10


def test_opt_levels_benchmark(tmp_path):
    """Its CPU path; the figures belong to machines with a GPU."""
    words = [sys.executable, ROOT / "benchmarks" / "opt_levels.py", "-a", "vit_b_16", "-b", "2"]
    table = run([*words, "--image-size", "32", "--steps", "2"], tmp_path, timeout=600)
    rows = [line for line in table.splitlines() if line.startswith("| imagenet_")]
    assert len(rows) == 12
    assert all(float(row.split("|")[3]) > 0 for row in rows)


def test_gpu_study_and_its_results_on_the_cpu(demo, tmp_path):
    """make study-precision_gpu, with options that a CPU bears, and what make_results.py makes."""
    words = [sys.executable, ROOT / "benchmarks" / "studies.py", "precision_gpu", "--dir", demo]
    trial = "--no-accel --epochs 1 --steps-per-epoch 2 -b 4 --image-size 32 --val-resize 32"
    run([*words, "--logs", tmp_path / "logs", "--", *trial.split()], tmp_path, timeout=1200)
    assert not list(tmp_path.rglob("*.pt"))
    run([sys.executable, ROOT / "make_results.py", tmp_path / "logs", "--out", tmp_path], tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.count("torchrun --nproc_per_node=1 imagenet_ddp_apex.py") == 8
    assert "Images/s, and how many times those of full precision:" in text
