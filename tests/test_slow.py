"""Trials of minutes: `make test-all`."""

import shutil
import sys

import pytest
import torch
from conftest import ROOT, command, needs_bfloat16, run, scalars
from torchvision import models

pytestmark = pytest.mark.slow

# Pixels, where a classifier does not take 64.
SIZES = {"inception_v3": 160, "maxvit_t": 224, "vit_h_14": 56}
LARGEST = ["regnet_y_128gf", "vit_h_14"]  # 640 million weights, 13 GB: one after the other


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "archs",
    [
        *(each for each in models.list_models(module=models) if each not in LARGEST),
        " ".join(LARGEST),
    ],
)
def test_every_classifier_trains_a_step(archs, tmp_path):
    few = ["--dummy", "--num-classes", "7", "-b", "2", "--epochs", "1", "--steps-per-epoch", "1"]
    for arch in archs.split():
        size = ["-a", arch, "--image-size", SIZES.get(arch, 64)]
        words = [*command("imagenet_nd.py"), *size, *few, "--no-accel", "--output-dir", arch]
        run(words, tmp_path, env={"PYTHONPATH": ""}, timeout=800)  # not the small ViTs
        assert 0 < scalars(tmp_path / arch, "Loss/train")[1] < 100  # two images, at random
        shutil.rmtree(tmp_path / arch)  # up to 10 GB


@pytest.mark.parametrize(
    "arch", ["alexnet", "densenet121", "efficientnet_b0", "googlenet", "inception_v3", "resnet18"]
)
def test_pretrained(arch, demo, tmp_path):
    """torchvision's own loading, of weights that stand where it would have downloaded them: all of
    them but the last layer's, which has another number of classes."""
    weights = next(iter(models.get_model_weights(arch)))
    torch.manual_seed(1)
    quick = {"init_weights": False} if arch in ("googlenet", "inception_v3") else {}
    donor = models.get_model(arch, **quick).state_dict()
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(donor, tmp_path / "hub" / "checkpoints" / weights.url.rsplit("/", 1)[1])
    # A learning rate that changes nothing.
    words = [*command("imagenet_nd.py"), "-a", arch, "--pretrained", "--no-accel", "-j", "0"]
    words += ["--epochs", "1", "--steps-per-epoch", "1", "-b", "2", "--lr", "1e-12", "--wd", "0"]
    words += ["--image-size", SIZES.get(arch, 64), demo]
    output = run(words, tmp_path, env={"TORCH_HOME": str(tmp_path)})
    assert "do not fit and are left out: " in output
    saved = torch.load(next(tmp_path.glob("runs/*/checkpoint.pt")), weights_only=True)["state_dict"]
    learned = [name for name in saved if "running" not in name and "num_batches" not in name]
    new = {name for name in learned if not close(saved[name], donor[name])}
    last = learned[-1].rsplit(".", 1)[0]
    assert new == {f"{last}.weight", f"{last}.bias"}


def close(one, other):
    """Returns whether two tensors are the same but for a step with hardly any learning rate."""
    return one.shape == other.shape and torch.allclose(one, other, atol=1e-7)


@needs_bfloat16
def test_gpu_study_and_its_results_on_the_cpu(demo, tmp_path):
    """make study-precision_gpu, with options that a CPU bears, and what make_results.py makes."""
    words = [sys.executable, ROOT / "benchmarks" / "studies.py", "precision_gpu", "--dir", demo]
    trial = "--no-accel --epochs 1 --steps-per-epoch 2 -b 4 --image-size 32 --val-resize 32"
    run([*words, "--logs", tmp_path / "logs", "--", *trial.split()], tmp_path, timeout=1200)
    assert not list(tmp_path.rglob("*.pt"))
    run([sys.executable, ROOT / "make_results.py", tmp_path / "logs", "--out", tmp_path], tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.count("| ddp_apex | ") == 8 and "| ratio to " in text
