"""Apex's opt levels against a plain reference of each: its formulas, step by step, in float32."""

import importlib

import pytest
import torch
import torch.nn.functional as F
from conftest import checkpoint, command, run

LR, MOMENTUM, WD = 0.1, 0.9, 1e-2


@pytest.fixture(scope="module")
def apex():
    script = importlib.import_module("imagenet_ddp_apex")
    script.join(script.parse_args(["--no-accel"]))
    yield script
    script.leave()


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
    moments = {n: torch.zeros_like(w) for n, w in stored.items()}
    dynamic = scale == "dynamic"
    scale, clean = 2.0**16 if dynamic else float(scale), 0
    losses, weights, scales = [], [], []
    for x, target in data:
        used = {n: w.to(used_type[n]).requires_grad_() for n, w in stored.items()}
        h = F.conv2d(x.to(compute), used["conv.weight"].to(compute), used["conv.bias"].to(compute))
        h = F.batch_norm(h, None, None, used["bn.weight"], used["bn.bias"], True).relu()
        logits = F.linear(
            h.flatten(1).to(compute), used["fc.weight"].to(compute), used["fc.bias"].to(compute)
        )
        loss = F.cross_entropy((logits * gain(x)).float(), target)
        grads = torch.autograd.grad(loss * scale, list(used.values()))
        overflow = dynamic and not all(grad.isfinite().all() for grad in grads)
        if not overflow:
            for (name, weight), grad in zip(stored.items(), grads, strict=True):
                if level == "O3":  # unscaled in the type of the weights
                    grad = grad * (1 / scale)
                grad = grad.float() / (1 if level == "O3" else scale) + WD * weight.float()
                moment = MOMENTUM * moments[name].float() + grad
                moments[name] = moment.to(weight.dtype)
                stored[name] = (weight.float() - LR * moment).to(weight.dtype)
        clean = 0 if overflow else clean + 1
        scale = scale / 2 if overflow else scale
        losses.append(loss.item())
        weights.append({n: w.float() for n, w in stored.items()})
        scales.append(scale)
    return losses, weights, scales


def ours(apex, options, data):
    """The same from the script's own prepare() and train_step()."""
    momentum = ["--momentum", str(MOMENTUM), "--wd", str(WD), "--lr", str(LR)]
    args = apex.parse_args(["--no-accel", *options, *momentum])
    place = apex.Place(torch.device("cpu"))
    torch.manual_seed(0)
    build = lambda w: torch.optim.SGD(w, LR, MOMENTUM, weight_decay=WD, fused=True)  # noqa: E731
    model, optimizer, scaler = apex.prepare(Net(), build, args, place)
    criterion = apex.build_criterion(args)
    losses, weights, scales = [], [], []
    for x, target in data:
        sums = apex.train_step(model, criterion, optimizer, scaler, x, target, args)
        losses.append((sums[0] / sums[3]).item())
        state = apex.in_float32(apex.full_state(model, optimizer))
        weights.append({n: state[n].clone() for n, _ in Net().named_parameters()})
        scales.append(scaler.loss_scale)
    return losses, weights, scales


CASES = {
    "O0": (["--opt-level", "O0"], ("O0", torch.float32, True, 1.0)),
    "O1 float16": (["--opt-level", "O1"], ("O1", torch.float16, True, "dynamic")),
    "O1 static": (["--opt-level", "O1", "--loss-scale", "128"], ("O1", torch.float16, True, 128)),
    "O2 float16": (["--opt-level", "O2"], ("O2", torch.float16, True, "dynamic")),
    "O2 static": (["--opt-level", "O2", "--loss-scale", "128"], ("O2", torch.float16, True, 128)),
    "O2 half BatchNorm": (
        ["--opt-level", "O2", "--keep-batchnorm-fp32", "False"],
        ("O2", torch.float16, False, "dynamic"),
    ),
    "O3 float16": (["--opt-level", "O3"], ("O3", torch.float16, False, 1.0)),
    "O3 float32 BatchNorm, dynamic": (
        ["--opt-level", "O3", "--keep-batchnorm-fp32", "True", "--loss-scale", "dynamic"],
        ("O3", torch.float16, True, "dynamic"),
    ),
    "O1 bfloat16": (["--opt-level", "O1"], ("O1", torch.bfloat16, True, 1.0)),
    "O2 bfloat16": (["--opt-level", "O2"], ("O2", torch.bfloat16, True, 1.0)),
    "O3 bfloat16": (["--opt-level", "O3"], ("O3", torch.bfloat16, False, 1.0)),
}


@pytest.mark.parametrize("case", CASES)
def test_level_equals_its_reference(apex, case, capsys):
    options, (level, half, keep_bn, scale) = CASES[case]
    if half != torch.float32:
        options = [*options, "--half-dtype", str(half).removeprefix("torch.")]
    bright = (4, 9) if scale == "dynamic" else ()
    data = batches(20, bright)
    losses, weights, scales = ours(apex, options, data)
    expected_losses, expected, expected_scales = reference(level, half, keep_bn, scale, data)
    assert scales == expected_scales
    exact = level in ("O0", "O1", "O2")
    close = {"rtol": 2e-5, "atol": 2e-6} if exact else {"rtol": 2e-2, "atol": 2e-3}
    for step in range(20):
        assert losses[step] == pytest.approx(expected_losses[step], rel=1e-3), step
        for name, weight in weights[step].items():
            torch.testing.assert_close(weight, expected[step][name], **close, msg=f"{step} {name}")
    skipped = capsys.readouterr().out.count("Gradient overflow.  Skipping step, loss scaler 0")
    before = [2.0**16 if scale == "dynamic" else scale, *scales[:-1]]
    assert skipped == sum(new < old for old, new in zip(before, scales, strict=True))
    if scale == "dynamic":
        assert skipped >= 1, "no overflow: the case shows nothing"


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


def test_static_scale_neither_checks_nor_moves(apex):
    scaler = apex.LossScaler("128")
    gradient = torch.tensor([256.0, float("inf")])
    assert scaler.unscale([gradient]) is False
    scaler.update(False)
    assert gradient.tolist() == [2.0, float("inf")]
    assert scaler.loss_scale == 128


def test_levels_cast_what_apex_casts(apex):
    """Every float parameter and buffer but those of affine BatchNorm."""
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4, affine=False)
    )
    net.register_buffer("table", torch.zeros(2))
    args = apex.parse_args(["--no-accel", "--opt-level", "O2"])
    sgd = lambda weights: torch.optim.SGD(weights, 0.1)  # noqa: E731
    model, optimizer, _ = apex.prepare(net, sgd, args, apex.Place(torch.device("cpu")))
    half = {name for name, x in model.module.state_dict().items() if x.dtype == torch.bfloat16}
    assert half == {"0.weight", "0.bias", "2.running_mean", "2.running_var", "table"}
    assert {master.dtype for master in optimizer.param_groups[0]["params"]} == {torch.float32}
    output = model(torch.randn(2, 3, 8, 8))
    assert output.dtype == torch.float32


def same(first, second):
    """Asserts that two checkpoints hold the same state, to the bit."""
    first, second = (torch.load(path, weights_only=True) for path in (first, second))
    assert first["state_dict"].keys() == second["state_dict"].keys()
    for name, tensor in first["state_dict"].items():
        assert torch.equal(tensor, second["state_dict"][name]), name
    moments, others = first["optimizer"]["state"], second["optimizer"]["state"]
    for index in moments:
        assert torch.equal(moments[index]["momentum_buffer"], others[index]["momentum_buffer"])
    assert first["scaler"] == second["scaler"]
    assert (first["epoch"], first["best_acc1"]) == (second["epoch"], second["best_acc1"])


@pytest.mark.parametrize("ranks", [1, 2])
def test_resumed_o2_equals_uninterrupted_o2_to_the_bit(demo, tmp_path, ranks):
    options = [
        *("-a", "resnet18", "--opt-level", "O2", "--loss-scale", "dynamic", "--no-accel"),
        *("-b", "8", "--steps-per-epoch", "10", "--epochs", "2", "--image-size", "32", "-j", "1"),
    ]
    start = [*command("imagenet_ddp_apex.py", ranks), *options]
    run([*start, "--log-dir", "whole", demo], tmp_path)
    run([*start, "--log-dir", "cut", "--desired-acc", "0.0001", demo], tmp_path)
    saved = torch.load(checkpoint(tmp_path / "cut"), weights_only=True)
    assert saved["epoch"] == 1, "must have ended after ten steps"
    assert {tensor.dtype for tensor in saved["state_dict"].values()} == {torch.float32, torch.int64}
    start = [*command("imagenet_ddp_apex.py", ranks), *options]
    resume = ["--resume", checkpoint(tmp_path / "cut"), "--log-dir", "on"]
    run([*start, *resume, demo], tmp_path)
    same(checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "on"))
