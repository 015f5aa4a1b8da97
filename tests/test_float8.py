"""--amp float8, as torchao emulates it on the CPU: against plain loops with torchao, which share no
code with the scripts; what is converted; checkpoints."""

import dataclasses
import functools
import importlib
import math
from types import SimpleNamespace

import conftest
import numpy as np
import pytest
import test_reference
import torch
from conftest import checkpoint, command, complaint, load, nd, run, scalars
from test_float8_support import emulated  # noqa: F401
from torch import nn

import text_nd

torchao = pytest.importorskip("torchao.float8")
EMULATED = {"FLOAT8_EMULATED": "1"}
FLOAT8 = ["--amp", "float8", "--no-accel", "-p", "1"]


def convert(model, scaling, names):
    """Has torchao convert the layers of these names."""
    config = torchao.Float8LinearConfig.from_recipe_name(scaling)
    torchao.convert_to_float8_training(
        model,
        config=dataclasses.replace(config, emulate=True),
        module_filter_fn=lambda layer, name: name in names,
    )
    kinds = {name: type(layer).__name__ for name, layer in model.named_modules()}
    assert {name for name in kinds if kinds[name] == "Float8Linear"} == {*names}
    return model


# ------------------------------------------------------------------------- against plain loops

folder = test_reference.folder  # of images
MLPS = [f"encoder.layers.encoder_layer_{n}.mlp.{at}" for n in (0, 1) for at in (0, 3)]
SGD = {"lr": 2.0, "warmup_epochs": 0}
ADAMW = {"optimizer": "adamw", "lr": 0.003, "lr_scaling": "none", "ema": 0.5, "warmup_epochs": 0}
CASES = {
    "tensorwise": {**ADAMW, "clip_grad": 0.5, "epochs": 4},
    "rowwise": {**SGD, "accumulation": 2, "batch_size": 4, "epochs": 3},
    "two ranks": {**ADAMW, "ranks": 2, "batch_size": 4, "epochs": 3},
}


@pytest.mark.parametrize("case", CASES)
def test_a_vit_trains_as_in_a_plain_loop(case, folder, tmp_path):  # noqa: F811
    options = {"arch": "vit_b_16", "image_size": 32, "batch_size": 8} | CASES[case]
    ranks, scaling = options.pop("ranks", 1), "rowwise" if case == "rowwise" else "tensorwise"
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    words += [*FLOAT8, "--float8-scaling", scaling, "-j", "0", "--output-dir", "here", folder]
    script = "imagenet_nd.py" if ranks == 1 else "imagenet_ddp.py"
    output = run([*command(script, ranks), *words], tmp_path, env=EMULATED)
    assert output.count("4 linear layers multiply in float8; --compile makes them fast") == 1

    def build(classes):
        return convert(test_reference.build(options, classes), scaling, MLPS)

    options["amp"] = "bfloat16"  # of all else
    expected = test_reference.train(folder, build, ranks, **options)
    same(scalars(tmp_path / "here", "Loss/step"), expected.steps)
    # Other images are together in a rank's batch of validation, and so share a scale.
    val, rel = [each["Loss"] for each in expected.val], 1e-6 if ranks == 1 else 1e-3
    assert [*scalars(tmp_path / "here", "Loss/val").values()] == pytest.approx(val, rel=rel)
    saved = load(checkpoint(tmp_path / "here"))
    for which in "state_dict", "ema":
        assert saved[which].keys() == getattr(expected, which).keys()
        for name, tensor in getattr(expected, which).items():
            torch.testing.assert_close(saved[which][name], tensor, rtol=1e-5, atol=1e-7)
    if case == "rowwise":  # the shortest
        build = functools.partial(test_reference.build, options)
        plain_loop = test_reference.train(folder, build, ranks, **options)
        assert plain_loop.steps != expected.steps, "float8 is felt"


def same(logged, expected):
    """Compares all bits that a log keeps of a value."""
    assert [*logged.values()] == [float(np.float32(each)) for each in expected]


class GPT(nn.Module):
    """GPT-2 without biases, with the weights' names of text_nd.py."""

    def __init__(self, vocabulary, length, width, heads, layers):
        super().__init__()
        self.heads = heads
        self.token, self.position = (
            nn.Embedding(vocabulary, width),
            nn.Parameter(torch.empty(length, width)),
        )
        norm = functools.partial(nn.LayerNorm, width, bias=False)
        linear = functools.partial(nn.Linear, bias=False)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "attention": nn.ModuleDict(
                        {"0": norm(), "1": linear(width, 3 * width), "3": linear(width, width)}
                    ),
                    "mlp": nn.ModuleDict(
                        {"0": norm(), "1": linear(width, 4 * width), "3": linear(4 * width, width)}
                    ),
                }
            )
            for _ in range(layers)
        )
        self.norm, self.head = norm(), linear(width, vocabulary)

    def forward(self, tokens):
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            norm, wide, narrow = block["attention"].values()
            q, k, v = (
                each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for each in wide(norm(x)).chunk(3, -1)
            )
            found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + narrow(found.transpose(1, 2).flatten(2))
            norm, wide, narrow = block["mlp"].values()
            x = x + narrow(nn.functional.gelu(wide(norm(x))))
        return self.head(self.norm(x))


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_a_language_model_trains_as_in_a_plain_loop(scaling, text, tmp_path):
    sizes = "--layers 2 --hidden-size 64 --heads 2 --max-length 32".split()
    words = [*sizes, *"-b 16 --epochs 1 --steps-per-epoch 8 --wd 0 --lr 1e-3".split()]
    words += "--lr-schedule linear --warmup-epochs 0 --clip-grad 1e9".split()
    more = ["--float8-scaling", scaling, "--output-dir", "here", text]
    run([*command("text_nd.py"), *words, *FLOAT8, *more], tmp_path, env=EMULATED)
    torch.manual_seed(0)
    begin = text_nd.GPT(256, 32, 0.0, 2, 64, 2, False).state_dict()
    model = GPT(256, 32, 64, 2, 2)
    model.load_state_dict(begin)
    names = [
        f"blocks.{n}.{part}.{at}" for n in (0, 1) for part in ("attention", "mlp") for at in (1, 3)
    ]
    convert(model, scaling, names)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.999), weight_decay=0)
    tokens = torch.tensor([*(text / "train.txt").read_bytes()])
    seed = np.random.SeedSequence((0, 0)).generate_state(1, np.uint64)[0]
    generator, losses = torch.Generator().manual_seed(int(seed)), []
    order = torch.randperm((len(tokens) - 1) // 32, generator=generator).tolist()
    for step in range(8):
        rows = [tokens[32 * i : 32 * i + 33] for i in order[16 * step : 16 * step + 16]]
        batch = torch.stack(rows)
        with torch.autocast("cpu", torch.bfloat16):
            logits, wanted = model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
            each = nn.functional.cross_entropy(logits, wanted, reduction="none")
            loss = each.sum() / len(wanted)
        loss.backward()
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 - (step + 0.5) / 8)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(each.double().mean().item())
    same(scalars(tmp_path / "here", "Loss/step"), losses)
    assert losses[-1] < losses[0] - 0.2 and not math.isnan(losses[-1])


# ------------------------------------------------------------------------------ what is converted


def converted(script, words, emulated, **known):  # noqa: F811
    """Returns the model that prepare() of a script returns, and the names of what is converted."""
    args = script.parse_args(["--amp", "float8", *words.split()])
    known = {"from_checkpoint": False, "device_batch": 16, "model_options": {}} | known
    place = script.Place(torch.device("cpu"))
    model, _, scaler = script.prepare(args, place, SimpleNamespace(**known))
    assert not scaler.is_enabled()
    kinds = {name: type(layer).__name__ for name, layer in model.named_modules()}
    return model, [name for name in kinds if kinds[name] == "Float8Linear"]


IMAGES = {"num_classes": 16, "image_size": 32, "mean": (0.5,) * 3, "std": (0.5,) * 3}


def images_of(arch, emulated, words="", **known):  # noqa: F811
    return converted(nd, f"-a {arch} --image-size 32 {words}", emulated, **IMAGES | known)


@pytest.mark.parametrize(
    ("arch", "inside"),
    [
        (  # nn.MultiheadAttention reads its weights without calling the layers
            "vit_b_16",
            [f"encoder.layers.encoder_layer_{n}.mlp.{at}" for n in range(12) for at in (0, 3)],
        ),
        (
            "timm/test_vit",
            [
                f"blocks.{n}.{name}"
                for n in range(6)
                for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
            ],
        ),
        (
            "timm/test_convnext",  # the 24 channels of the first stage are no multiple of 16
            [
                f"stages.{stage}.blocks.{n}.mlp.fc{i}"
                for stage, blocks in ((1, 2), (2, 4), (3, 2))
                for n in range(blocks)
                for i in (1, 2)
            ],
        ),
    ],
)
def test_layers_of_blocks_are_converted(arch, inside, emulated):  # noqa: F811
    """And not the last, whose sides fit, too."""
    model, names = images_of(arch, emulated)
    assert names == inside
    assert all(type(weight) is nn.Parameter for weight in model.parameters())
    plain = nd.build_model(
        nd.parse_args(["-a", arch]),
        SimpleNamespace(from_checkpoint=False, model_options={}, **IMAGES),
    )
    assert [*model.state_dict()] == [*plain.state_dict()]


def test_layers_of_a_language_model(emulated):  # noqa: F811
    options = {"layers": 1, "hidden_size": 32, "heads": 2, "tied": True}
    known = {"model_options": options, "train": SimpleNamespace(vocabulary=64)}
    model, names = converted(text_nd, "--max-length 16", emulated, **known)
    assert names == [f"blocks.0.{part}.{at}" for part in ("attention", "mlp") for at in (1, 3)]
    assert model.head.weight is model.token.weight


@pytest.mark.parametrize("arch", ["resnet18", "vgg11"])
def test_models_without_such_layers_are_refused(arch, emulated):  # noqa: F811
    line = f"--amp float8: {arch} has no block with a linear layer whose sides are multiples of 16"
    with pytest.raises(nd.errors.BadInput, match=f"{line}: use --amp bfloat16"):
        images_of(arch, emulated)


@pytest.mark.parametrize(("batch", "padded"), [(16, False), (48, False), (8, True), (17, True)])
@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_configurations(batch, padded, scaling, emulated):  # noqa: F811
    words = f"--float8-scaling {scaling}"
    model, names = images_of("timm/test_vit", emulated, words, device_batch=batch)
    expected = dataclasses.replace(
        torchao.Float8LinearConfig.from_recipe_name(scaling), pad_inner_dim=padded
    )
    assert {model.get_submodule(name).config for name in names} == {expected}


def test_only_bfloat16_is_beside_float8():
    context = nd.precision(nd.parse_args(["--amp", "float8"]), torch.device("cpu"))
    with context:
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        assert torch.is_autocast_enabled("cpu")


OTHERS = [
    name
    for name in (*conftest.SCRIPTS, *conftest.TEXT_SCRIPTS)
    if not name.endswith(("_nd.py", "_ddp.py", "_fsdp.py"))
]


@pytest.mark.parametrize("script", OTHERS)
def test_other_scripts_say_which_have_it(script, complaint_here):
    line = complaint_here(script, "--amp", "float8")
    assert line.endswith("; --amp float8 is for scripts that end in _nd.py, _ddp.py and _fsdp.py")
    assert "float8" not in (conftest.ROOT / script).read_text()


@pytest.mark.parametrize("words", ["", "--amp bfloat16", "--amp float8 --float8-scaling rowwise"])
def test_what_gathering_needs(words, complaint_here):
    line = complaint_here("imagenet_fsdp.py", "--float8-gather", "--no-accel", *words.split())
    assert "--float8-gather needs --amp float8 and --float8-scaling tensorwise" in line


def test_a_device_without_float8_is_refused(complaint_here):
    line = complaint_here("imagenet_nd.py", *FLOAT8, "-a", "vit_b_16", "--dummy", only=False)
    assert "--amp float8: " in line and line.endswith(": use --amp bfloat16")


# -------------------------------------------------------------------------- runs and checkpoints

VIT = "-a vit_b_16 --image-size 32 -j 0 -p 1 --no-accel --ema 0.5 --warmup-epochs 0".split()
VIT += "--optimizer adamw --lr 0.003 --lr-scaling none --epochs 2 --steps-per-epoch 3".split()


def trained(script, ranks, folder, words, tmp_path, status=0, env=(), timeout=300):
    """Runs a script in float8, or as typed; returns (output, losses, checkpoint)."""
    words = [*command(script, ranks), *VIT, "--output-dir", folder, *words]
    output = run(words, tmp_path, status, EMULATED | dict(env), timeout)
    return output, scalars(tmp_path / folder, "Loss/step"), load(checkpoint(tmp_path / folder))


def equal(one, other):
    """Compares all tensors of two checkpoints, which are plain, and of float32 or integers."""
    for which in "state_dict", "ema":
        assert one[which].keys() == other[which].keys()
        for name, tensor in one[which].items():
            assert type(tensor) is torch.Tensor and tensor.dtype == torch.float32
            assert torch.equal(tensor, other[which][name]), (which, name)
    for number, state in one["optimizer"]["state"].items():
        for name, tensor in state.items():
            assert type(tensor) is torch.Tensor
            assert torch.equal(tensor, other["optimizer"]["state"][number][name]), (number, name)


@pytest.mark.parametrize("gather", [False, True])
def test_weights_to_gather_in_float8(gather, emulated):  # noqa: F811
    """Shards that FSDP2 asks for what it is to send; those of other layers are plain."""
    fsdp = importlib.import_module("imagenet_fsdp")
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        words = "-a timm/test_vit --image-size 32" + " --float8-gather" * gather
        model, names = converted(fsdp, words, emulated, **IMAGES)
        found = {
            name.removesuffix(".weight")
            for name, shard in model.state_dict().items()
            if hasattr(shard.to_local(), "fsdp_pre_all_gather")
        }
    finally:
        torch.distributed.destroy_process_group()
    assert found == ({*names} if gather else set()) and len(names) == 24


def test_fsdp_gathers_weights_in_float8_and_trains_the_same(short_demo, tmp_path):
    """And a run that gathers so, is interrupted, and goes on without it."""
    words = ["--amp", "float8", "-b", "8", "--clip-grad", "0.5", short_demo]
    words += ["--epochs", "1", "--steps-per-epoch", "4"]  # ended by the second, EARLY
    fsdp, more = ("imagenet_fsdp.py", 2), [*words, "--float8-gather"]
    _, losses, saved = trained(*fsdp, "gathered", more, tmp_path)
    assert len(losses) == 4
    trained(*fsdp, "both", more, tmp_path, 1, conftest.EARLY)  # torchrun's status
    _, others, resumed = trained(*fsdp, "both", words, tmp_path)
    assert losses == others
    val = [scalars(tmp_path / folder, "Loss/val") for folder in ("gathered", "both")]
    assert val[0] == val[1]
    equal(saved, resumed)


@pytest.mark.slow
def test_fsdp_trains_like_ddp_and_with_weights_in_bfloat16(short_demo, tmp_path):
    """Their gradients differ in the last bit, and some values then round to others."""
    words = ["--amp", "float8", "-b", "8", short_demo]
    _, losses, saved = trained("imagenet_ddp.py", 2, "ddp", words, tmp_path)
    for more in [], ["--param-dtype", "bfloat16"], ["--param-dtype", "bfloat16", "--float8-gather"]:
        folder = "_".join(["fsdp", *more])
        _, others, other = trained("imagenet_fsdp.py", 2, folder, [*words, *more], tmp_path)
        assert [*losses.values()] == pytest.approx([*others.values()], rel=0.02)
        assert other["state_dict"].keys() == saved["state_dict"].keys()


def test_checkpoints_go_from_any_precision_to_any(short_demo, tmp_path):
    one = "imagenet_nd.py", 1
    words = ["-b", "16", short_demo]
    _, _, saved = trained(*one, "float8", ["--amp", "float8", *words], tmp_path)
    again = ["--resume", "float8", "--epochs", "3", *words]
    for amp in ["--amp", "bfloat16"], ["--amp", "float16"], []:
        folder = amp[-1] if amp else "float32"
        output, losses, other = trained(*one, folder, [*amp, *again], tmp_path)
        assert f"precision (float8, here {folder})" in output
        assert [*losses] == [6, 7, 8] and all(map(math.isfinite, losses.values()))
        assert other["state_dict"].keys() == saved["state_dict"].keys()
        more = ["--amp", "float8", "--resume", folder, "--epochs", "4", *words]
        _, losses, _ = trained(*one, f"back from {folder}", more, tmp_path)
        assert [*losses] == [9, 10, 11]
    line = complaint(
        [*command(*one), *VIT, "--amp", "bfloat16", *words, "--output-dir", "float8"], tmp_path
    )
    assert "was trained with other options: precision (float8, here bfloat16)" in line


def test_activations_may_be_checkpointed(short_demo, tmp_path):
    words = ["--amp", "float8", "-b", "8", "--accumulation", "2", short_demo]
    one = "imagenet_nd.py", 1
    _, losses, saved = trained(*one, "plain", words, tmp_path)
    more = ["--checkpoint-activations", *words]
    _, others, same_saved = trained(*one, "other", more, tmp_path)
    assert losses == others
    equal(saved, same_saved)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_compiled_it_trains_nearly_the_same(short_demo, tmp_path):
    """Compiled, sums are in another order, and values round to others."""
    words = ["--amp", "float8", "-b", "16", "--epochs", "1", short_demo]
    one = "imagenet_nd.py", 1
    _, losses, _ = trained(*one, "plain", words, tmp_path)
    output, compiled, _ = trained(*one, "compiled", [*words, "--compile"], tmp_path, timeout=1500)
    assert "4 linear layers multiply in float8\n" in output
    assert [*compiled.values()] == pytest.approx([*losses.values()], rel=0.02)
