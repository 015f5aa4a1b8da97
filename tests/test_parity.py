"""Same seed and global batch, same loss curve: whichever script, however many ranks or workers."""

import hashlib
import importlib

import pytest
import torch
from conftest import command, needs_horovod, run, scalars

GLOBAL_BATCH = 16
STEPS = 20
# ViT has neither BatchNorm, whose statistics are each device's own by design, nor dropout.
OPTIONS = [
    *("-a", "vit_b_16", "--image-size", "32", "--epochs", "1", "--steps-per-epoch", str(STEPS)),
    *("--warmup-epochs", "0", "--lr", "0.5", "-p", "1", "--seed", "3", "--no-accel"),
]
WAYS = {
    "nd, 0 workers": ("imagenet_nd.py", 1, 1, ["-j", "0"]),
    "nd, 1 worker": ("imagenet_nd.py", 1, 1, ["-j", "1"]),
    "nd, 4 parts": ("imagenet_nd.py", 1, 4, ["-j", "2"]),
    "dp": ("imagenet_dp.py", 1, 1, ["-j", "1"]),
    "ddp, 1 rank": ("imagenet_ddp.py", 1, 1, ["-j", "1"]),
    "ddp, 2 ranks": ("imagenet_ddp.py", 2, 1, ["-j", "3"]),
    "ddp, 2 ranks, 2 parts": ("imagenet_ddp.py", 2, 2, ["-j", "0"]),
    "ddp, 4 ranks": ("imagenet_ddp.py", 4, 1, ["-j", "1"]),
    "apex O0, 1 rank": ("imagenet_ddp_apex.py", 1, 1, ["-j", "1", "--opt-level", "O0"]),
    "apex O0, 2 ranks": ("imagenet_ddp_apex.py", 2, 1, ["-j", "1", "--opt-level", "O0"]),
    "apex O0, 4 ranks": ("imagenet_ddp_apex.py", 4, 1, ["-j", "0", "--opt-level", "O0"]),
    "horovod, 1 rank": ("imagenet_horovod.py", 1, 1, ["-j", "1"]),
    "horovod, 2 ranks": ("imagenet_horovod.py", 2, 1, ["-j", "1"]),
    "horovod, 2 ranks, 2 parts": ("imagenet_horovod.py", 2, 2, ["-j", "0"]),
}


@pytest.fixture(scope="module")
def curve(demo, tmp_path_factory):
    """Returns a function that gives the {step: loss} of one way of running, and its top-1s."""
    folder = tmp_path_factory.mktemp("law")

    def losses(script, ranks, parts, options, name):
        batch = GLOBAL_BATCH // ranks // parts
        sizes = ["-b", batch, "--accumulation", parts, "--log-dir", folder / name]
        run([*command(script, ranks), *OPTIONS, *options, *sizes, demo], folder)
        return scalars(folder / name, "Loss/step"), scalars(folder / name, "Top1/val")

    return losses


@pytest.fixture(scope="module")
def reference(curve):
    return curve("imagenet_nd.py", 1, 1, ["-j", "3"], "reference")


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=needs_horovod if way.startswith("horovod") else ()) for way in WAYS],
)
def test_same_loss_curve(way, curve, reference):
    losses, top1 = curve(*WAYS[way], way)
    expected, expected_top1 = reference
    assert list(losses) == list(range(STEPS))
    for step in range(STEPS):
        assert losses[step] == pytest.approx(expected[step], rel=1e-5), f"step {step}"
    assert top1 == expected_top1
    assert expected[STEPS - 1] < 0.9 * expected[0], "the model must learn, or equality says little"


def test_another_seed_gives_another_curve(curve, reference):
    losses, _ = curve("imagenet_nd.py", 1, 1, ["-j", "0", "--seed", "4"], "another seed")
    assert losses[5] != pytest.approx(reference[0][5], rel=1e-5)


def digests(demo, ranks, workers, steps=3):
    """Returns, for each step, the digests of its images and classes over all ranks, in order."""
    script = importlib.import_module("imagenet_nd")
    options = ["--steps-per-epoch", str(steps), "-b", str(12 // ranks), "-j", str(workers)]
    args = script.parse_args([*options, "--seed", "5", str(demo)])
    shares = []
    for rank in range(ranks):
        place = script.Place(torch.device("cpu"), rank, ranks, rank, ranks)
        data = script.load_data(args, place)
        data.order.epoch = 2
        shares.append(
            [(image, int(y)) for x, t, *_ in data.train for image, y in zip(x, t, strict=True)]
        )
    count = 12 // ranks
    return [
        [
            (hashlib.sha256(image.numpy().tobytes()).hexdigest(), label)
            for share in shares
            for image, label in share[step * count : (step + 1) * count]
        ]
        for step in range(steps)
    ]


@pytest.mark.parametrize(("ranks", "workers"), [(1, 1), (1, 3), (2, 0), (2, 1), (3, 1), (4, 0)])
def test_same_images_to_the_bit(demo, ranks, workers):
    assert digests(demo, ranks, workers) == digests(demo, 1, 0)


def test_an_epoch_takes_every_image_once_in_an_order_of_its_own(demo):
    script = importlib.import_module("imagenet_nd")
    args = script.parse_args(["-b", "10", str(demo)])
    data = script.load_data(args, script.Place(torch.device("cpu")))
    epochs = []
    for epoch in 0, 1, 0:
        data.order.epoch = epoch
        epochs.append([index for batch in data.order for _, index in batch])
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(1280))
    assert epochs[0] == epochs[2] != epochs[1]
