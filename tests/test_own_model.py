"""A model of one's own in build_model(): with weights that forward() does not use, frozen ones, and
layers with rates of their own; and one whose gradients no loss scale makes finite."""

import importlib
import re
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from conftest import (
    ROOT,
    checkpoint,
    command,
    copy_script,
    load,
    needs_horovod,
    run,
    scalars,
    the_line,
    the_run,
)
from torch import nn
from torchvision.models import VisionTransformer

from trainparts import errors

MADE = "    model = architectures.make_model("
MADE += "args.arch, num_classes=data.num_classes, **data.model_options)\n"
# Of a ViT, which has no BatchNorm: its convolution and its first block are frozen.
VIT = """
    model.extra = nn.Linear(4, 4)
    for part in (model.conv_proj, model.encoder.layers[0]):
        part.requires_grad_(False)
    model.group_matcher = lambda coarse: {
        "stem": "class_token|conv_proj|encoder.pos", "blocks": r"encoder\\.layers\\.\\w+?_(\\d+)"
    }
"""
OPTIONS = ["-a", "vit_b_16", "--image-size", "32", "--no-accel", "-j", "0", "-p", "1", "--lr", "2"]
OPTIONS += ["--epochs", "2", "--steps-per-epoch", "3", "--wd", "0.01", "--norm-wd", "0"]
OPTIONS += ["--ema", "0.9", "--layer-decay", "0.5", "--clip-grad", "2", "--warmup-epochs", "0"]


def own(script, ranks, code, folder):
    """Returns the command that starts the script with `code` behind make_model()."""
    text = (ROOT / script).read_text()
    assert text.count(MADE) == 1
    copy_script(script, folder, text.replace(MADE, MADE + code))
    return [str(word).replace(str(ROOT / script), script) for word in command(script, ranks)]


def summary(folder):
    """Returns what is compared: losses, and the last checkpoint's tensors."""
    saved = load(checkpoint(folder))
    tensors = {
        f"{part} {name}": each
        for part in ("state_dict", "ema")
        for name, each in saved[part].items()
    }
    for number, state in saved["optimizer"]["state"].items():
        tensors |= {f"{name} of {number}": each for name, each in state.items()}
    return scalars(folder, "Loss/step"), tensors


@pytest.fixture(scope="module")
def expected(demo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    words = own("imagenet_nd.py", 1, VIT, folder)
    run([*words, *OPTIONS, "-b", "8", "--output-dir", "one", demo], folder)
    return summary(folder / "one")


def test_what_is_frozen_or_unused_stays_as_it_was(expected):
    _, tensors = expected
    torch.manual_seed(0)
    model = VisionTransformer(32, 16, 2, 2, 32, 64, num_classes=10)
    model.extra = nn.Linear(4, 4)
    for name, begun in model.state_dict().items():
        kept = re.match(r"extra|conv_proj|encoder.layers.encoder_layer_0", name) is not None
        assert kept == torch.equal(begun, tensors[f"state_dict {name}"]), name


APEX = "imagenet_ddp_apex.py"
WAYS = {
    "ddp, 1 rank": ("imagenet_ddp.py", 1, []),
    "ddp, 2 ranks": ("imagenet_ddp.py", 2, ["--accumulation", "2", "-b", "2"]),
    "apex O0": (APEX, 2, ["--opt-level", "O0"]),
    "pipeline": ("imagenet_pipeline.py", 2, ["-b", "8", "--microbatches", "2"]),
    "fsdp": ("imagenet_fsdp.py", 2, []),
    "exchange": ("imagenet_exchange.py", 2, []),
    "exchange, by DDP": ("imagenet_exchange.py", 2, ["--exchange", "ddp"]),
    "dp": ("imagenet_dp.py", 1, []),
    "horovod": ("imagenet_horovod.py", 2, []),
    "pipeline, frozen stages": (
        *("imagenet_pipeline.py", 2),
        ["-b", "8", "--microbatches", "2", "--schedule", "interleaved"],
    ),
}
FAST = "ddp, 2 ranks", "pipeline"


def cases():
    marks = {"horovod": [needs_horovod]}
    for way in WAYS:
        slow = [] if way in FAST else [pytest.mark.slow]
        yield pytest.param(way, marks=[*slow, *marks.get(way, [])])


@pytest.mark.parametrize("way", [*cases()])
def test_an_own_model_trains_in_all_ways(way, expected, demo, tmp_path):
    """Also resumed, after its first epoch."""
    script, ranks, more = WAYS[way]
    words = [*own(script, ranks, VIT, tmp_path), *OPTIONS, "-b", 8 // ranks, *more, demo]
    words.append("--output-dir")
    run([*words, "whole"], tmp_path)
    losses, tensors = summary(tmp_path / "whole")
    assert losses == pytest.approx(expected[0], rel=1e-5)
    assert tensors.keys() >= expected[1].keys()
    for name, tensor in tensors.items():
        # Horovod sends zeros for gradients that are missing, so weight decay trains these weights.
        if way == "horovod" and ("extra" in name or name not in expected[1]):
            continue
        if name not in expected[1]:  # the pipeline's momentum of what is not used
            assert script == "imagenet_pipeline.py" and not tensor.any(), name
            continue
        torch.testing.assert_close(
            tensor, expected[1][name], rtol=1e-4, atol=1e-5, msg=f"{name} {tensor}"
        )
    if way == "ddp, 2 ranks":
        return
    first = checkpoint(tmp_path / "whole", "checkpoint-1.pt")
    run([*words, "again", "--resume", first], tmp_path)
    again, found = summary(tmp_path / "again")
    assert again == {step: losses[step] for step in (3, 4, 5)}
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


HALF = ["--amp", "float16"]
FROZEN = """
    for part in (model.conv_proj, model.encoder.layers[0]):
        part.requires_grad_(False)
    model.class_token.requires_grad_(False)
    model.encoder.pos_embedding.requires_grad_(False)
"""


@pytest.mark.parametrize(
    ("ranks", "more"), [(2, []), pytest.param(4, ["--stages", "2"], marks=pytest.mark.slow)]
)
def test_a_stage_without_gradients_trains_with_the_others(ranks, more, demo, tmp_path):
    """Clipped, and in float16: its rank has no norm and no overflow of its own."""
    found = []
    for script, count, words in (
        ("imagenet_nd.py", 1, ["-b", "8"]),
        ("imagenet_pipeline.py", ranks, ["-b", 16 // ranks, *more, "--microbatches", "2"]),
    ):
        start = [*own(script, count, FROZEN, tmp_path), *OPTIONS[:-6], *words, "--epochs", "1"]
        run([*start, "--clip-grad", "0.5", *HALF, "--output-dir", script[:12], demo], tmp_path)
        found.append(scalars(tmp_path / script[:12], "Loss/step"))
    assert found[1] == pytest.approx(found[0], rel=2e-3)


ONE_USES_IT = """
    model.extra = nn.Parameter(torch.zeros(1))
    whole = model.forward
    model.forward = lambda x: whole(x) + (model.extra if os.environ["RANK"] == "0" else 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", ["imagenet_ddp.py", APEX])
def test_a_weight_that_one_rank_uses_trains(script, demo, tmp_path):
    """All ranks look for it, or DDP's exchanges would not match."""
    words = [*own(script, 2, ONE_USES_IT, tmp_path), *OPTIONS[:-6], "-b", "4", "--epochs", "1"]
    run([*words, "--output-dir", "one", demo], tmp_path)
    extra = load(checkpoint(tmp_path / "one"))["state_dict"]["extra"]
    assert extra.isfinite().all()


SOMETIMES = """
    model.extra, model.calls = nn.Parameter(torch.zeros(1)), 0
    whole = model.forward
    def forward(x):
        model.calls += 1
        return whole(x) + (model.extra if model.calls % 2 else 0)
    model.forward = forward
"""


def test_a_weight_that_some_steps_use_trains_by_what_the_line_says(demo, tmp_path):
    words = [*own("imagenet_ddp.py", 1, SOMETIMES, tmp_path), *OPTIONS[:-6], "-b", "4"]
    words += ["--epochs", "1", demo]
    line = the_line(run(words, tmp_path, 2), only=False)
    write = re.search(r"write (find_unused_parameters=True) in prepare\(\)", line)[1]
    script = tmp_path / "imagenet_ddp.py"
    text = script.read_text()
    assert text.count("find_unused_parameters=unused") == 1
    script.write_text(text.replace("find_unused_parameters=unused", write))
    run([*words, "--output-dir", "one"], tmp_path)
    assert load(checkpoint(tmp_path / "one"))["state_dict"]["extra"].any()


HOOKED = """
    from torch.utils.checkpoint import checkpoint
    torch.nn.utils.parametrizations.weight_norm(model.encoder.layers[1].mlp[0])
    model.encoder.layers[1].register_forward_hook(lambda layer, inputs, output: 0.5 * output)
    first = model.encoder.layers[0]
    forward = first.forward
    first.forward = lambda x: checkpoint(forward, x, use_reentrant=True)
"""


@pytest.mark.slow
def test_the_step_on_noise_leaves_hooks_and_recomputed_layers_as_they_are(demo, tmp_path):
    found = []
    for script, ranks in ("imagenet_nd.py", 1), ("imagenet_ddp.py", 2), (APEX, 2):
        words = [*own(script, ranks, HOOKED, tmp_path), *OPTIONS[:-6], "-b", 8 // ranks, demo]
        words += ["--opt-level", "O0"] * (script == APEX)
        run([*words, "--output-dir", script[:-3]], tmp_path)
        found.append(scalars(tmp_path / script[:-3], "Loss/step"))
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert found[2] == pytest.approx(found[0], rel=1e-5)


def test_a_group_whose_rate_is_zero_rests(demo, tmp_path):
    """Also after it is resumed, where the file's rate of that group is 0."""
    words = [*own("imagenet_nd.py", 1, "", tmp_path), *OPTIONS[:-6], "-b", "8", demo]
    script, made = (
        tmp_path / "imagenet_nd.py",
        "    return model, build_optimizer(args, model), scaler\n",
    )
    text = script.read_text()
    assert text.count(made) == 1
    rests = "    optimizer.param_groups[0]['lr_scale'] = 0  # all but biases and norms\n"
    ends = made.replace("build_optimizer(args, model)", "optimizer")
    make = "    optimizer = build_optimizer(args, model)\n"
    script.write_text(text.replace(made, make + rests + ends))
    run([*words, "--output-dir", "one"], tmp_path, 143, {"SIGTERM_AT": "4"})
    run([*words, "--output-dir", "one"], tmp_path)
    last = load(checkpoint(tmp_path / "one"))
    torch.manual_seed(0)
    begun = VisionTransformer(32, 16, 2, 2, 32, 64, num_classes=10).state_dict()
    moved = {name for name in begun if not torch.equal(last["state_dict"][name], begun[name])}
    # The last layer's weights begin at 0, and rest: no gradient comes to the layers before.
    assert last["epoch"] == 2 and moved == {"heads.head.bias"}
    assert min(scalars(tmp_path / "one", "Lr").values()) > 0


# ------------------------------------------------------------------------------------- loss scale

NAN = """
    class Root(nn.Module):
        def forward(self, x):
            return x + (x * 0).sqrt()  # whose gradient at 0 is infinite, times 0

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), Root(),
        nn.Linear(8, data.num_classes),
    )
"""
SCALED = {
    "nd": ("imagenet_nd.py", 1, HALF),
    "dp": ("imagenet_dp.py", 1, HALF),
    "ddp": ("imagenet_ddp.py", 2, HALF),
    "horovod": ("imagenet_horovod.py", 2, HALF),
    "fsdp": ("imagenet_fsdp.py", 2, HALF),
    "exchange": ("imagenet_exchange.py", 2, HALF),
    "pipeline": ("imagenet_pipeline.py", 2, [*HALF, "--microbatches", "2"]),
    "apex": (APEX, 1, ["--opt-level", "O1", "--half-dtype", "float16"]),
}
SCALED = [
    pytest.param(
        *SCALED[way],
        marks=[*([] if way in ("nd", "pipeline") else [pytest.mark.slow])]
        + [*([needs_horovod] if way == "horovod" else [])],
        id=way,
    )
    for way in SCALED
]


@pytest.mark.parametrize(("script", "ranks", "more"), SCALED)
def test_a_loss_scale_that_collapses_ends_the_run(script, ranks, more, demo, tmp_path):
    words = [*own(script, ranks, NAN, tmp_path), "--image-size", "32", "-b", "4", "--no-accel"]
    words += ["-j", "0", "--epochs", "9", "--steps-per-epoch", "10", "-p", "10", *more, demo]
    status = 1 if re.search("torchrun|horovodrun", str(words)) else 2  # the launcher's own
    output = run([*words, "--output-dir", "one"], tmp_path, status=status)
    assert "  10 steps skipped  " in output
    line = "gradients are NaN or infinite at any loss scale (2/9, step 7: loss scale 0.5): use bfl"
    assert f"{script}: error: {line}" in output
    assert scalars(the_run(tmp_path / "one"), "Steps/skipped") == {1: 10}
    assert load(checkpoint(tmp_path / "one"))["epoch"] == 1


@pytest.mark.parametrize(
    ("scales", "skipped", "ends"),
    [
        ([8, 8, 16, 16], 0, False),  # it grows
        ([8, 16, 8, 8], 1, False),
        ([8, 4, 4, 2], 2, False),
        ([2, 1, 1, 2], 1, False),
        ([1, 0.5], 1, True),
        ([0.5, 0.5, 1], 0, False),  # a static scale, or one that a checkpoint had
        ([0.5, 0.25], 1, True),
        ([0.1, 0.1], 0, False),  # six of them, divided by six, are less
    ],
)
def test_steps_that_a_scale_skipped_are_counted(scales, skipped, ends):
    """On six ranks; a scale that a step does not find finite gradients for falls below 1."""
    nd = importlib.import_module("imagenet_nd")
    here = SimpleNamespace(args=nd.parse_args([]), place=nd.Place("cpu", ranks=6), log=None)
    here.scale, here.interrupted, here.save_due, here.no_more_steps = (
        float(scales[0]),
        False,
        False,
        False,
    )
    here.meter, added = object(), []
    meter = mock.Mock(steps=2, title="1/9", add=lambda step: added.append(step["skipped"]))
    ended = False
    for scale in scales[1:]:
        sums = [2.0] * len(nd.SUMS) + [sum([scale] * 6), 0, 0, 0, 0]
        here.pending = [(torch.tensor(sums, dtype=torch.float64), None)]
        try:
            nd.count_oldest_step(here, meter)
        except errors.BadInput as error:
            ended = True
            assert "(1/9, step 2: loss scale" in str(error)
    assert (sum(added), ended) == (skipped, ends)
