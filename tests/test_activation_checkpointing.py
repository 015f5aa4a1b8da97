"""trainparts/activation_checkpointing.py: the same is computed again, and less is kept."""

import conftest
import pytest
import timm
import torch
from conftest import checkpoint, scalars
from torch import nn
from torchvision import models

from trainparts import activation_checkpointing, errors

SIZE = {"num_classes": 3}


def made(name):
    """Returns a small model, with random weights that are the same in each call."""
    torch.manual_seed(0)
    if name == "convnext":
        return timm.models.ConvNeXt(depths=(2, 2, 2, 2), dims=(8, 8, 8, 8), **SIZE)
    if name == "vit":
        small = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}
        return models.VisionTransformer(32, 16, dropout=0.5, **small, **SIZE)
    if name == "no momentum":  # BatchNorm's mean of all batches: it counts them
        model = models.get_model("squeezenet1_1", **SIZE)
        for block in activation_checkpointing.blocks(model):
            block.squeeze_activation = nn.BatchNorm2d(block.squeeze.out_channels, momentum=None)
        return model
    return models.get_model(name, **SIZE)


def trained(model, steps=3):
    """Returns the losses of training on noise, with dropout of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        loss = (model(torch.randn(2, 3, 32, 32)) - 1).square().mean()  # heads of ViTs are 0
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def kept(model):
    """Returns the bytes that the forward pass keeps for the backward pass, besides weights."""
    found = {}

    def note(tensor):
        found[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, note):
        output = model(torch.randn(2, 3, 32, 32))
    del output
    weights = {weight.data_ptr() for weight in model.parameters()}
    return sum(size for at, size in found.items() if at not in weights)


@pytest.mark.parametrize("name", ["resnet18", "vit", "convnext", "no momentum"])
def test_losses_weights_and_statistics_are_the_same_to_the_bit(name):
    plain, other = made(name), made(name)
    activation_checkpointing.checkpoint_blocks(other)
    assert kept(other) < 0.8 * kept(plain)
    plain, again = made(name), made(name)
    activation_checkpointing.checkpoint_blocks(again)
    assert trained(plain) == trained(again)
    assert [*plain.state_dict()] == [*again.state_dict()]
    others = again.state_dict()
    for key, tensor in plain.state_dict().items():
        assert torch.equal(tensor, others[key]), key
    if name == "vit":
        assert len(set(trained(made(name)))) == 3, "dropout is drawn"
    again.eval()
    plain.eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(plain(images), again(images))


def test_autocast_is_that_of_the_forward_pass():
    losses = []
    for checkpointed in (False, True):
        model = made("vit")
        if checkpointed:
            activation_checkpointing.checkpoint_blocks(model)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.ones(2, 3, 32, 32)).float().square().mean()
        loss.backward()
        losses.append([weight.grad for weight in model.parameters()])
    assert all(map(torch.equal, *losses))


@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [
        ("resnet18", "BasicBlock", 8),
        ("vit", "EncoderBlock", 2),
        ("convnext", "ConvNeXtBlock", 8),  # and not its four stages
        ("efficientnet_b0", "MBConv", 16),  # and not what such a block has in a row
        ("vgg11", None, 0),
    ],
)
def test_blocks_of_a_model(name, kind, number):
    with torch.device("meta"):
        model = models.get_model(name) if name in ("efficientnet_b0", "vgg11") else made(name)
    found = [*activation_checkpointing.blocks(model)]
    assert [type(block).__name__ for block in found] == [kind] * number
    assert activation_checkpointing.has_blocks(model) == bool(number)


def test_stages_of_one_block_are_blocks_or_hold_them():
    """A timm stage that has a single block is as good a unit as its block."""
    with torch.device("meta"):
        model = timm.models.ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 8, 8, 8))
    assert len([*activation_checkpointing.blocks(model)]) == 4


def test_a_block_with_a_list_of_heads_is_one():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 8) for _ in range(2))
            self.mlp = nn.Sequential(nn.Linear(8, 256), nn.Linear(256, 8))

    model = nn.Sequential(Heads(), Heads())
    assert [*activation_checkpointing.blocks(model)] == [*model]


def test_two_backward_passes_compute_twice_and_change_no_statistics():
    model = made("resnet18")
    activation_checkpointing.checkpoint_blocks(model)
    loss = model(torch.randn(2, 3, 32, 32)).square().mean()
    before = model.layer1[0].bn1.running_mean.clone()
    loss.backward(retain_graph=True)
    once = model.conv1.weight.grad.clone()
    loss.backward()
    assert torch.equal(model.conv1.weight.grad, 2 * once)
    assert torch.equal(model.layer1[0].bn1.running_mean, before)


def test_a_block_that_stands_in_two_rows_is_computed_again_once():
    block, calls = nn.TransformerEncoderLayer(8, 2, 8), []
    block.linear1.register_forward_pre_hook(lambda *_: calls.append(1))
    model = nn.Sequential(nn.Sequential(block), nn.Sequential(block))
    activation_checkpointing.checkpoint_blocks(model)
    model(torch.randn(1, 3, 8)).sum().backward()
    assert len(calls) == 4, "two passes of two calls"


def test_a_model_without_blocks_is_refused():
    with pytest.raises(errors.BadInput, match="--checkpoint-activations: this model has no blocks"):
        activation_checkpointing.checkpoint_blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def test_a_row_that_is_replicated_computes_with_its_own_weights():
    """As DataParallel's replicas are: a copy of the module's dictionary, with other weights."""
    block = nn.Sequential(nn.Linear(2, 2, bias=False))
    activation_checkpointing.recompute(block)
    replica = block._replicate_for_data_parallel()
    replica._modules = {"0": nn.Linear(2, 2, bias=False)}
    inputs = torch.ones(1, 2)
    assert torch.equal(replica(inputs), replica[0](inputs))
    assert not torch.equal(replica(inputs), block(inputs))


# Of each strategy one of its two scripts; and BatchNorm, dropout, Apex's levels.
IMAGES = "--image-size 32 -b 4 --epochs 1 --steps-per-epoch 3 --ema 0.9 -j 0 -a"
TEXT = "--max-length 32 -b 4 --epochs 1 --steps-per-epoch 3 --ema 0.9 --dropout 0.1"
RUNS = {
    "imagenet_nd.py": f"{IMAGES} timm/test_resnet --accumulation 2",
    "imagenet_ddp.py": f"{IMAGES} vit_b_16 --accumulation 2 --amp float16",
    "imagenet_ddp_apex.py": f"{IMAGES} vit_b_16 --opt-level O2",
    "imagenet_pipeline.py": f"{IMAGES} timm/test_resnet --microbatches 2",
    "imagenet_fsdp.py": f"{IMAGES} timm/test_resnet",
    "imagenet_exchange.py": f"{IMAGES} vit_b_16 --accumulation 2",
    "imagenet_dp.py": f"{IMAGES} timm/test_resnet",
    "imagenet_horovod.py": f"{IMAGES} vit_b_16",
    "text_nd.py": f"{TEXT} --amp bfloat16",
    "text_ddp.py": f"{TEXT} --accumulation 2",
    "text_fsdp.py": TEXT,
    "text_exchange.py": TEXT,
    "text_pipeline.py": f"{TEXT} --layers 4 --microbatches 2",
    "text_horovod.py": TEXT,
}
QUICK = {"imagenet_nd.py", "text_fsdp.py", "imagenet_pipeline.py"}


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            script,
            marks=[pytest.mark.slow] * (script not in QUICK)
            + [conftest.needs_horovod] * ("horovod" in script),
        )
        for script in RUNS
    ],
)
def test_a_script_trains_the_same_to_the_bit(script, short_demo, text, tmp_path):
    """Of one device also a run that is interrupted, and resumed without it."""
    ranks = 1 if script.endswith(("_nd.py", "_dp.py")) else 2
    words = [*conftest.command(script, ranks), "--no-accel", *RUNS[script].split()]
    words.append(short_demo if script.startswith("imagenet") else text)
    for folder, more in ("plain", []), ("other", ["--checkpoint-activations"]):
        conftest.run([*words, "--output-dir", folder, *more], tmp_path)
    assert scalars(tmp_path / "plain", "Loss/step") == scalars(tmp_path / "other", "Loss/step")
    one, other = (
        torch.load(checkpoint(tmp_path / folder), weights_only=True)
        for folder in ("plain", "other")
    )
    for tree in "state_dict", "ema":
        assert one[tree].keys() == other[tree].keys()
        for name, tensor in one[tree].items():
            assert torch.equal(tensor, other[tree][name]), (tree, name)
    if script != "imagenet_nd.py":
        return
    conftest.run([*words, "--output-dir", "third", *more], tmp_path, 143, conftest.EARLY)
    conftest.run([*words, "--output-dir", "third"], tmp_path)
    third = torch.load(checkpoint(tmp_path / "third"), weights_only=True)
    for name, tensor in one["state_dict"].items():
        assert torch.equal(tensor, third["state_dict"][name]), name


@pytest.mark.slow
def test_compiled_it_is_the_same():
    losses = []
    for checkpointed in (False, True):
        model = made("resnet18")
        if checkpointed:
            activation_checkpointing.checkpoint_blocks(model)
        model.compile(dynamic=False)
        losses.append([trained(model), *model.state_dict().values()])
    assert losses[0][0] == losses[1][0]
    assert all(map(torch.equal, losses[0][1:], losses[1][1:]))
