"""Apex's opt levels against a plain reference of each: its formulas, step by step, in float32."""

import functools
import importlib
import math
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from chaos.checkpoints import lost
from conftest import EARLY, checkpoint, command, needs_bfloat16, run, scalars

LR, MOMENTUM, WD = 0.1, 0.9, 1e-2


@pytest.fixture(scope="module")
def apex():
    script = importlib.import_module("imagenet_ddp_apex")
    script.init_distributed(script.parse_args(["--no-accel"]))
    yield script
    script.cleanup()


class Net(torch.nn.Module):
    """Convolution, BatchNorm, linear layer: a float tensor of each kind that the levels treat."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.bn = torch.nn.BatchNorm2d(4)
        self.fc = torch.nn.Linear(4 * 36, 5)

    def forward(self, x):
        return self.fc(self.bn(self.conv(x)).relu().flatten(1)) * gain(x)


def gain(x):
    """Returns 100 for bright images, whose scaled float16 gradients then overflow; else 1."""
    return 100 if x.abs().amax() > 20 else 1


def batches(steps, bright):
    """Returns batches, of bright images in the steps that are `bright`."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for step in range(steps):
        x = torch.randn(8, 3, 8, 8, generator=generator)
        target = torch.randint(5, (8,), generator=generator)
        made.append((x * (20 if step in bright else 1), target))
    return made


def reference(level, half, keep_bn, scale, data):
    """Trains by the formulas of apex/amp; returns (losses, weights, scales), step by step.

    `scale` is "dynamic" or a number. Weights are float32 masters under O2, else as they are used.
    """
    torch.manual_seed(0)
    net = Net()
    cast = {"O0": torch.float32, "O1": torch.float32, "O2": half, "O3": half}[level]
    compute = torch.float32 if level == "O0" else half
    kept = [name for name in dict(net.named_parameters()) if "bn" in name and keep_bn]
    used_type = {n: torch.float32 if n in kept else cast for n, _ in net.named_parameters()}
    stored = {n: p.detach().clone() for n, p in net.named_parameters()}
    if level == "O3":
        stored = {n: w.to(used_type[n]) for n, w in stored.items()}
    sgd = torch.optim.SGD(stored.values(), LR, MOMENTUM, weight_decay=WD, foreach=False)
    dynamic = scale == "dynamic"
    scale = 2.0**16 if dynamic else float(scale)
    losses, weights, scales = [], [], []
    for x, target in data:
        used = {n: w.to(used_type[n], copy=True).requires_grad_() for n, w in stored.items()}
        h = F.conv2d(x.to(compute), used["conv.weight"].to(compute), used["conv.bias"].to(compute))
        h = F.batch_norm(h, None, None, used["bn.weight"], used["bn.bias"], True).relu()
        logits = F.linear(
            h.flatten(1).to(compute), used["fc.weight"].to(compute), used["fc.bias"].to(compute)
        )
        loss = F.cross_entropy((logits * gain(x)).float(), target)
        grads = torch.autograd.grad(loss * scale, list(used.values()))
        overflow = dynamic and not all(grad.isfinite().all() for grad in grads)
        if not overflow:
            for weight, grad in zip(stored.values(), grads, strict=True):
                weight.grad = (grad.float() / scale).to(weight.dtype)
            sgd.step()
        scale = scale / 2 if overflow else scale
        losses.append(loss.item())
        weights.append({n: w.float().clone() for n, w in stored.items()})
        scales.append(scale)
    return losses, weights, scales


def prepared(apex, net, *options):
    """Returns the script's Run of a model, what there is of it, in one process on the CPU."""
    args = apex.parse_args(["--no-accel", *options])
    data = SimpleNamespace(device_batch=8, accumulation_steps=args.accumulation, image_size=8)
    data.mean, data.std = (0.5, 0.5, 0.5), (0.2, 0.2, 0.2)
    place = apex.Place(torch.device("cpu"), precision=args.precision)
    sgd = functools.partial(torch.optim.SGD, lr=LR, momentum=MOMENTUM, weight_decay=WD)
    with mock.patch.multiple(
        apex,
        build_model=lambda args, data: net,
        build_optimizer=lambda args, model, weights: sgd(weights),
    ):
        model, optimizer, scaler = apex.prepare(args, place, data)
    held = {"model": model, "optimizer": optimizer, "scaler": scaler, "ema": {}}
    return SimpleNamespace(args=args, place=place, data=data, **held)


def ours(apex, options, data):
    """The same as reference() from the script's own prepare() and train_step()."""
    torch.manual_seed(0)
    run = prepared(apex, Net(), *options)
    losses, weights, scales = [], [], []
    trained, number = (run.model, apex.criterion, run.optimizer, run.scaler), run.args.accumulation
    for x, target in data:
        micro_batches = zip(x.chunk(number), target.chunk(number), strict=True)
        sums = apex.train_step(*trained, micro_batches, number, run.args)
        losses.append((sums[0] / sums[3]).item())
        state = apex.full_state(run)["state_dict"]
        weights.append({name: state[name].clone() for name, _ in Net().named_parameters()})
        scales.append(run.scaler.loss_scale)
    return losses, weights, scales


# Case: (options after --opt-level and the level, type, BatchNorm in float32, loss scale).
STATIC, BN = "--loss-scale {}", "--keep-batchnorm-fp32 {}"
CASES = {
    "O0": ("", torch.float32, True, 1.0),
    "O1 float16": ("", torch.float16, True, "dynamic"),
    "O1 static": (STATIC.format(128), torch.float16, True, 128),
    "O2 float16": ("", torch.float16, True, "dynamic"),
    "O2 static": (STATIC.format(128), torch.float16, True, 128),
    "O2 half BatchNorm": (BN.format(False), torch.float16, False, "dynamic"),
    "O3 float16": ("", torch.float16, False, 1.0),
    "O3 static": (STATIC.format(96), torch.float16, False, 96),
    "O3 float32 BatchNorm, dynamic": (
        f"{BN.format(True)} {STATIC.format('dynamic')}",
        *(torch.float16, True, "dynamic"),
    ),
    "O1 bfloat16": ("", torch.bfloat16, True, 1.0),
    "O2 bfloat16": ("", torch.bfloat16, True, 1.0),
    "O3 bfloat16": ("", torch.bfloat16, False, 1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_level_equals_its_reference(apex, case, capsys):
    words, half, keep_bn, scale = CASES[case]
    level = case.split()[0]
    options = ["--opt-level", level, *words.split()]
    if half != torch.float32:
        options = [*options, "--half-dtype", str(half).removeprefix("torch.")]
    bright = (4, 9) if scale == "dynamic" else ()
    data = batches(20, bright)
    losses, weights, scales = ours(apex, options, data)
    expected_losses, expected, expected_scales = reference(level, half, keep_bn, scale, data)
    assert scales == expected_scales
    close = {"rtol": 2e-5, "atol": 2e-6}
    for step in range(20):
        assert losses[step] == pytest.approx(expected_losses[step], rel=2e-5), step
        for name, weight in weights[step].items():
            torch.testing.assert_close(weight, expected[step][name], **close, msg=f"{step} {name}")
    skipped = capsys.readouterr().out.count("Gradient overflow.  Skipping step, loss scaler 0")
    before = [2.0**16 if scale == "dynamic" else scale, *scales[:-1]]
    assert skipped == sum(new < old for old, new in zip(before, scales, strict=True))
    if scale == "dynamic":
        assert skipped >= 1, "no overflow: the case shows nothing"


class Partly(Net):
    """With a weight that the output does not need."""

    def __init__(self):
        super().__init__()
        self.extra = torch.nn.Linear(4, 4)
        self.last = torch.nn.BatchNorm1d(3)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_a_weight_that_is_not_used_changes_nothing(level, apex, monkeypatch):
    options = ["--opt-level", level, "--half-dtype", "float16", "--clip-grad", "0.5"]
    data = batches(20, (4, 9))
    expected = ours(apex, options, data)
    torch.manual_seed(0)
    begun = Partly().state_dict()
    monkeypatch.setitem(globals(), "Net", Partly)
    losses, weights, scales = ours(apex, options, data)
    assert (losses, scales) == (expected[0], expected[2])
    for name, weight in weights[-1].items():
        other = begun[name] if name not in expected[1][-1] else expected[1][-1][name]
        assert torch.equal(weight, other.to(weight.dtype)) or level == "O3", name
        assert torch.equal(weight, other.half().float()) or level != "O3", name


def test_a_master_without_a_gradient_rests(apex):
    """Of a weight that is used in some steps only, under O2."""
    run = prepared(apex, Net(), "--opt-level", "O2", "--half-dtype", "float16")
    run.model = run.model.module  # DDP asks for the same weights in each step
    data, moved = batches(4, ()), []
    bias = next(w for w in run.optimizer.param_groups[0]["params"] if w.shape == (5,))
    for step, (x, target) in enumerate(data):
        before = bias.detach().clone()
        if step % 2:
            run.model.fc.bias.requires_grad_(False)
        trained = run.model, apex.criterion, run.optimizer, run.scaler
        apex.train_step(*trained, [(x, target)], 1, run.args)
        moved.append(not torch.equal(before, bias))
        run.model.fc.bias.requires_grad_(True)
    assert moved == [True, False, True, False]


def test_a_master_of_a_frozen_weight_is_frozen(apex):
    net = Net()
    net.fc.weight.requires_grad_(False)
    run = prepared(apex, net, "--opt-level", "O2", "--half-dtype", "float16")
    held = {weight.shape: weight for weight in run.optimizer.param_groups[0]["params"]}
    begun = {shape: weight.detach().clone() for shape, weight in held.items()}
    for batch in batches(2, ()):
        trained = run.model, apex.criterion, run.optimizer, run.scaler
        apex.train_step(*trained, [batch], 1, run.args)
    still = [torch.equal(held[shape], begun[shape]) for shape in held]
    frozen = [shape == net.fc.weight.shape for shape in held]
    assert still == frozen and sum(frozen) == 1
    # Those that build_optimizer() takes.
    assert [weight.requires_grad for weight in held.values()] == [not each for each in frozen]


def test_scaler_doubles_after_2000_clean_steps_up_to_its_cap(apex):
    scaler = apex.LossScaler("dynamic")
    for _ in range(1999):
        scaler.update(False)
    assert (scaler.loss_scale, scaler.unskipped) == (2.0**16, 1999)
    scaler.update(False)
    assert scaler.state_dict()["loss_scaler0"] == {"loss_scale": 2.0**17, "unskipped": 0}
    for _ in range(20 * 2000):
        scaler.update(False)
    assert scaler.loss_scale == 2.0**24
    for _ in range(30):  # no floor
        scaler.update(True)
    assert scaler.loss_scale == 2.0**-6


@pytest.mark.parametrize("dtypes", [(torch.float16, torch.float32), (torch.float32, torch.float16)])
def test_an_overflow_in_either_type_skips(dtypes, apex):
    """O3 with BatchNorm in float32 has gradients of both."""
    for values in (1.0, math.inf), (math.inf, 1.0), (1.0, 1.0):
        pairs = zip(values, dtypes, strict=True)
        gradients = [torch.tensor([value]).to(kind) for value, kind in pairs]
        assert apex.LossScaler("dynamic").unscale(gradients) == (math.inf in values)


def test_static_scale_neither_checks_nor_moves(apex):
    scaler = apex.LossScaler("128")
    gradient = torch.tensor([256.0, torch.inf])
    assert scaler.unscale([gradient]) is False
    scaler.update(False)
    assert (gradient.tolist(), scaler.loss_scale) == ([2.0, torch.inf], 128)


def test_static_scale_that_is_no_power_of_two_divides_in_float32(apex):
    """1 / 1000, rounded to float16 first, is 0.04 % too large."""
    exact = torch.linspace(1, 60_000, 10_001).half()
    gradient = exact.clone()
    apex.LossScaler("1000").unscale([gradient])
    error = gradient.double() * 1000 / exact.double() - 1
    assert error.abs().max() < 1.01 * 2**-11, "one rounding to float16"
    assert error.mean().abs() < 2e-5


def test_levels_cast_what_apex_casts(apex):
    """Every float parameter and buffer but those of affine BatchNorm."""
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4, affine=False)
    )
    net.append(torch.nn.Flatten())  # so that it gives logits
    net.register_buffer("table", torch.zeros(2))
    run = prepared(apex, net, "--opt-level", "O2")
    half = {name for name, x in net.state_dict().items() if x.dtype == torch.bfloat16}
    assert half == {"0.weight", "0.bias", "2.running_mean", "2.running_var", "table"}
    assert {master.dtype for master in run.optimizer.param_groups[0]["params"]} == {torch.float32}
    assert run.model(torch.randn(2, 3, 8, 8)).dtype == torch.float32


def test_masters_survive_saving_and_loading(apex):
    """After load_state() the masters are what full_state() returned, and the weights those rounded,
    whatever was in them: an overflow may have left NaN there."""
    pair = []
    for seed in 0, 1:
        torch.manual_seed(seed)
        pair.append(prepared(apex, Net(), "--opt-level", "O2", "--half-dtype", "float16"))
    first, second = pair
    trained = first.model, apex.criterion, first.optimizer, first.scaler
    for batch in batches(3, ()):
        apex.train_step(*trained, [batch], 1, first.args)
    with torch.no_grad():
        second.model.module.fc.weight.fill_(torch.nan)
    state = apex.full_state(first)
    apex.load_state(second, state)
    equal = functools.partial(torch.testing.assert_close, rtol=0, atol=0)
    equal(*([*each.model.parameters()] for each in pair))
    equal(*(each.optimizer.param_groups[0]["params"] for each in pair))
    equal(state["optimizer"]["state"], apex.full_state(second)["optimizer"]["state"])


def test_dynamic_scale_goes_from_script_to_script(apex):
    """From torch.amp.GradScaler, as the other scripts have it, to Apex's scaler, and back."""
    theirs, ours = torch.amp.GradScaler("cpu", init_scale=1024.0), apex.LossScaler("dynamic")
    theirs.scale(torch.ones(()))
    ours.load_state_dict(ours.state_dict() | theirs.state_dict())
    assert (ours.loss_scale, ours.unskipped) == (1024.0, 0)
    for overflow in False, True, False:
        ours.update(overflow)
    theirs.load_state_dict(ours.state_dict())
    assert (theirs.get_scale(), theirs.state_dict()["_growth_tracker"]) == (512.0, 1)
    static, other = apex.LossScaler("128"), apex.LossScaler("64")
    other.load_state_dict(static.state_dict())
    assert other.loss_scale == 64, "a static scale is the command line's"


@needs_bfloat16
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_resumed_o2_equals_uninterrupted_o2_to_the_bit(demo, tmp_path, ranks):
    """Ended within its first epoch, and gone on with."""
    options = [
        *("-a", "shufflenet_v2_x0_5", "--opt-level", "O2", "--loss-scale", "dynamic", "--no-accel"),
        *("-b", "8", "--steps-per-epoch", "6", "--epochs", "2", "--image-size", "32", "-j", "1"),
    ]
    words = [*options, "--output-dir"]
    run([*command("imagenet_ddp_apex.py", ranks), *words, "whole", demo], tmp_path)
    status = 143 if ranks == 1 else 1  # the launcher's own
    start = command("imagenet_ddp_apex.py", ranks)
    run([*start, *words, "cut", demo], tmp_path, status, EARLY)
    saved = torch.load(checkpoint(tmp_path / "cut"), weights_only=True)
    assert (saved["epoch"], 0 < saved["step"] < 6) == (0, True)
    assert {tensor.dtype for tensor in saved["state_dict"].values()} == {torch.float32, torch.int64}
    run([*command("imagenet_ddp_apex.py", ranks), *words, "cut", demo], tmp_path)
    if ranks == 1:  # BatchNorm's statistics are saved, and used: the batch makes no difference
        resume = ["--evaluate", "-b", "50", "--resume", checkpoint(tmp_path / "cut")]
        output = run([*command("imagenet_ddp_apex.py"), *options, *resume, demo], tmp_path)
        top1 = scalars(tmp_path / "whole", "Top1/val")[2]
        assert f"validation: top-1 {top1:.3f} %" in output
    assert lost(tmp_path / "whole", tmp_path / "cut") == []
