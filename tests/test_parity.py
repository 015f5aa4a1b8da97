"""Parity: the same seed and global batch give the same loss curve and the same validation accuracy,
whichever script, however many ranks, loader workers and accumulated batches.

Curves are compared in float64, where rounding stays below what a mistake does. In float32 it grows
from step to step, in some models to a percent within 20 steps, with nothing wrong. These have no
float64, and are compared by themselves, as they are:

- --amp (here), --param-dtype (test_parallel.py): half the numbers are of 16 bits
- Apex's opt levels O1 to O3 (test_apex_levels.py, to the bit with a reference)
- imagenet_exchange.py --exchange-dtype, Horovod's --fp16-allreduce: gradients are sent in 16 bits
- --optimizer muon: its updates are of bfloat16
"""

import functools

import pytest
from conftest import (
    ROOT,
    by_horovodrun,
    command,
    copy_script,
    losses_in_float64,
    needs_horovod,
    run,
    scalars,
)

GLOBAL_BATCH = 16
# ViT has neither BatchNorm, whose statistics are each device's own by design, nor dropout.
# Some of its steps are clipped, and some not, in which a factor of the gradients counts.
OPTIONS = [
    *("-a", "vit_b_16", "--image-size", "32", "--epochs", "1", "--lr", "2", "--no-accel"),
    *("--warmup-epochs", "0", "-p", "1", "--seed", "3", "--clip-grad", "2.2"),
]
O0 = ["--opt-level", "O0"]
# (script, ranks, batches accumulated in a step, loader workers, further options)
WAYS = {
    "nd, 4 of a global batch": ("imagenet_nd.py", 1, 4, 0, ["--global-batch", GLOBAL_BATCH]),
    "dp": ("imagenet_dp.py", 1, 1, 1, []),
    "ddp, 2 ranks, 2 accumulated": ("imagenet_ddp.py", 2, 2, 1, []),
    "apex O0, 2 ranks, 2 accumulated": ("imagenet_ddp_apex.py", 2, 2, 0, O0),
    "horovod, 2 ranks, 2 accumulated": ("imagenet_horovod.py", 2, 2, 0, []),
    "fsdp, 2 ranks, 2 accumulated": ("imagenet_fsdp.py", 2, 2, 1, []),
}
# Those of `make test` run once more here, for longer.
SLOW = WAYS | {
    "nd, 0 workers": ("imagenet_nd.py", 1, 1, 0, []),
    "nd, 1 worker": ("imagenet_nd.py", 1, 1, 1, []),
    "dp, 2 accumulated": ("imagenet_dp.py", 1, 2, 2, []),
    "ddp, 1 rank": ("imagenet_ddp.py", 1, 1, 1, []),
    "ddp, 2 ranks": ("imagenet_ddp.py", 2, 1, 3, []),
    "ddp, 4 ranks": ("imagenet_ddp.py", 4, 1, 1, []),
    "ddp, 4 ranks, 2 of a global batch": (
        *("imagenet_ddp.py", 4, 2, 0),
        ["--global-batch", GLOBAL_BATCH],
    ),
    "apex O0, 2 ranks": ("imagenet_ddp_apex.py", 2, 1, 0, O0),
    "apex O0, 1 rank": ("imagenet_ddp_apex.py", 1, 1, 1, O0),
    "apex O0, 2 ranks, 4 accumulated": ("imagenet_ddp_apex.py", 2, 4, 1, O0),
    "apex O0, 4 ranks": ("imagenet_ddp_apex.py", 4, 1, 0, O0),
    "horovod, 1 rank": ("imagenet_horovod.py", 1, 1, 1, []),
    "horovod, 2 ranks": ("imagenet_horovod.py", 2, 1, 1, []),
    "horovod, 4 ranks": ("imagenet_horovod.py", 4, 1, 0, []),
    "pipeline, 2 replicas of 2 stages": (
        *("imagenet_pipeline.py", 4, 1, 0),
        ["--stages", "2", "--microbatches", "2", "-b", GLOBAL_BATCH // 2],
    ),
}


def cases(ways, steps, *marks):
    """Returns a test case for each way of running, of so many steps."""
    return [
        pytest.param(way, steps, marks=[*marks, *([needs_horovod] if "horovod" in way else [])])
        for way in ways
    ]


@pytest.fixture(scope="module")
def curve(short_demo, tmp_path_factory):
    """Returns a function that gives ({step: loss}, {epoch: top-1}) of one way of running, in
    float64 unless the options say another type."""
    folder = tmp_path_factory.mktemp("parity")

    @functools.cache
    def measure(script, ranks, *options):
        logs = folder / f"{sum(1 for _ in folder.iterdir())}"
        words = [*command(script, ranks), *OPTIONS, *options, "--output-dir", logs, short_demo]
        if "--amp" in options:
            run(by_horovodrun(words) if "horovod" in script else words, folder)
            losses = scalars(logs, "Loss/step")
        else:
            losses = losses_in_float64(words, folder, logs.with_suffix(".losses"))
        return losses, scalars(logs, "Top1/val")

    return measure


def sized(way, steps):
    """Returns the words of one of the ways above, for curve()."""
    script, ranks, accumulated, workers, options = way
    sizes = ["-b", GLOBAL_BATCH // ranks // accumulated, "-j", workers, *options]
    if "--global-batch" not in options:
        sizes += ["--accumulation", accumulated]
    return script, ranks, *sizes, "--steps-per-epoch", steps


REFERENCE = ("imagenet_nd.py", 1, 1, 3, [])


@pytest.mark.parametrize(
    ("way", "steps"), [*cases(WAYS, 8), *cases(SLOW, 20, pytest.mark.slow)], ids=str
)
def test_same_loss_curve(way, steps, curve):
    losses, top1 = curve(*sized(SLOW[way], steps))
    expected, expected_top1 = curve(*sized(REFERENCE, steps))
    assert list(losses) == list(expected) == list(range(steps))
    for step in range(steps):
        assert losses[step] == pytest.approx(expected[step], rel=1e-12), f"step {step}"
    assert top1 == expected_top1
    assert min(expected.values()) < 0.95 * expected[0], "it must learn, or equality says little"


MIXED = ["--mixup", "0.4", "--cutmix", "1", "--mix-group", "6"]
# Ways to take 24 images, four groups: (script, ranks, batch of a device, further options).
GROUPED = {
    "nd": ("imagenet_nd.py", 1, 24, []),
    "ddp, 3 ranks": ("imagenet_ddp.py", 3, 8, []),  # of which two begin inside a group
    "nd, 2 parts": ("imagenet_nd.py", 1, 12, ["--accumulation", 2]),
    "nd, 6 parts": ("imagenet_nd.py", 1, 4, ["--accumulation", 6]),
    "dp": ("imagenet_dp.py", 1, 24, []),
    "ddp, 2 ranks": ("imagenet_ddp.py", 2, 12, []),
    "ddp, 2 ranks, 3 parts": ("imagenet_ddp.py", 2, 4, ["--accumulation", 3]),
    "ddp, 4 ranks": ("imagenet_ddp.py", 4, 6, []),
    "exchange, 3 ranks, 2 parts": ("imagenet_exchange.py", 3, 4, ["--accumulation", 2]),
    "fsdp, 3 ranks": ("imagenet_fsdp.py", 3, 8, []),
    "pipeline, 2 stages": ("imagenet_pipeline.py", 2, 24, []),
}


@pytest.mark.parametrize(
    "way", ["ddp, 3 ranks", *(pytest.param(way, marks=pytest.mark.slow) for way in [*GROUPED][2:])]
)
def test_same_loss_curve_mixed_by_groups(way, curve):
    """Wherever ranks' shares and parts begin."""
    found = []
    for script, ranks, batch, more in GROUPED["nd"], GROUPED[way]:
        words = [*MIXED, "-b", batch, *more, "-j", 1, "--steps-per-epoch", 5]
        found.append(curve(script, ranks, *words)[0])
    assert list(found[0]) == list(range(5))
    assert found[1] == pytest.approx(found[0], rel=1e-12)


# float16 scales the loss: so gradients are clipped after they are unscaled.
CLIPPED = ["--amp", "float16", "--clip-grad", "0.5", "-j", 0, "--steps-per-epoch", 8]
IN_HALF = {
    "dp": ("imagenet_dp.py", 1, ["-b", 16]),
    "ddp, 2 ranks": ("imagenet_ddp.py", 2, ["-b", 4, "--accumulation", 2]),
    "exchange, 2 ranks": ("imagenet_exchange.py", 2, ["-b", 4, "--accumulation", 2]),
    "fsdp, 2 ranks": ("imagenet_fsdp.py", 2, ["-b", 4, "--accumulation", 2]),
    "horovod, 2 ranks": ("imagenet_horovod.py", 2, ["-b", 4, "--accumulation", 2]),
    "pipeline, 2 stages": ("imagenet_pipeline.py", 2, ["-b", 16, "--microbatches", 2]),
}


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[needs_horovod] * ("horovod" in way)) for way in IN_HALF],
)
def test_same_loss_curve_in_float16_clipped(way, curve):
    """Up to the rounding of float16, of which test_reference.py has one device's to the bit."""
    expected, _ = curve("imagenet_nd.py", 1, *CLIPPED, "-b", 16)
    script, ranks, words = IN_HALF[way]
    losses, _ = curve(script, ranks, *CLIPPED, *words)
    assert list(losses) == list(expected) == list(range(8))
    assert losses == pytest.approx(expected, rel=2e-3)
    assert min(expected.values()) < 0.99 * expected[0], "it must learn, or equality says little"


def test_another_seed_gives_another_curve(curve):
    other, _ = curve(*sized(("imagenet_nd.py", 1, 1, 0, ["--seed", "4"]), 8))
    assert other[7] != pytest.approx(curve(*sized(REFERENCE, 8))[0][7], rel=1e-3)


@pytest.mark.slow
def test_shards_give_the_curve_of_the_folder_they_were_made_of(curve, demo, tmp_path, tool):
    tool("make_shards", demo, tmp_path / "shards", "--images", 500)
    size = ["-b", GLOBAL_BATCH, "-j", "2", "--steps-per-epoch", "20", tmp_path / "shards"]
    words = [*command("imagenet_nd.py"), *OPTIONS, *size]
    losses = losses_in_float64(words, tmp_path, tmp_path / "losses")
    assert losses == curve(*sized(REFERENCE, 20))[0]


def test_an_error_of_a_millionth_in_one_gradient_is_seen(curve, short_demo, tmp_path):
    """Which would pass in float32."""
    text = (ROOT / "imagenet_ddp.py").read_text()
    step = "    scaler.step(optimizer)"
    assert text.count(step) == 1
    wrong = "    next(model.parameters()).grad.mul_(1 + 1e-6)\n"
    path = copy_script("imagenet_ddp.py", tmp_path, text.replace(step, wrong + step))
    script, ranks, *words = sized(SLOW["ddp, 2 ranks"], 8)
    python, _, *launch = command(script, ranks)
    words = [python, path, *launch, *OPTIONS, *words, short_demo]
    found = losses_in_float64(words, tmp_path, tmp_path / "losses")
    expected, _ = curve(*sized(REFERENCE, 8))
    assert found == pytest.approx(expected, rel=1e-5) != pytest.approx(expected, rel=1e-12)


# Models that let rounding grow: (architecture, further options).
AMPLIFY = {"GroupNorm": "timm/test_efficientnet_gn", "LayerNorm": "timm/test_efficientnet_ln"}
REORDERED = {
    "ddp, 2 ranks": ("imagenet_ddp.py", 2, ["-b", 8]),
    "fsdp, 2 ranks": ("imagenet_fsdp.py", 2, ["-b", 8]),
    "exchange, 4 ranks": ("imagenet_exchange.py", 4, ["-b", 4]),
    "horovod, 2 ranks": ("imagenet_horovod.py", 2, ["-b", 8]),
}


@pytest.mark.parametrize("arch", AMPLIFY.values(), ids=AMPLIFY)
@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[pytest.mark.slow] * (way != "ddp, 2 ranks")) for way in REORDERED],
)
def test_models_that_let_rounding_grow(way, arch, curve):
    """Curves differ by at most a thousand times what another order of the sums does, on one device:
    a batch in four parts for one in two."""
    script, ranks, words = REORDERED[way]
    more = ["-a", arch, "--lr", "0.2", "-j", 0, "--steps-per-epoch", 20]
    parts = [
        curve("imagenet_nd.py", 1, *more, "-b", size, "--accumulation", 16 // size)[0]
        for size in (8, 4)
    ]
    found, _ = curve(script, ranks, *more, *words)
    differ = [
        max(abs(each[step] - parts[0][step]) for step in range(20)) for each in (parts[1], found)
    ]
    assert found.keys() == parts[0].keys() and 0 < differ[0] < 1e-6
    assert differ[1] <= 1000 * differ[0]
    assert parts[0][19] < 0.999 * parts[0][0], "it must learn, or equality says little"
