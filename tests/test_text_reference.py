"""The language model against plain programs that share no code with the scripts: GPT-2, AdamW,
clipping and schedules written out, tensor by tensor."""

import math

import numpy as np
import pytest
import torch
from conftest import checkpoint, command, run, scalars

import text_nd

# ----------------------------------------------------------------------------------- the reference


def layer_norm(x, scale):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * scale


def gpt(weights, blocks, heads, tokens):
    """Returns the logits (N, L, vocabulary) of GPT-2 without biases. `weights` are its token and
    position embeddings, last norm and output layer; `blocks` of each block two norms and matrices:
    [norm, queries keys and values, projection, norm, four times as wide, projection]."""
    token, position, last_norm, head = weights
    length = tokens.shape[1]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    x = token[tokens] + position[:length]
    for norm, qkv, projection, norm_2, wide, narrow in blocks:
        q, k, v = (
            each.unflatten(-1, (heads, -1)).transpose(1, 2)
            for each in (layer_norm(x, norm) @ qkv.T).chunk(3, -1)
        )
        scores = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(future, -math.inf)
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ projection.T
        h = layer_norm(x, norm_2) @ wide.T
        x = x + h * (1 + torch.erf(h / 2**0.5)) / 2 @ narrow.T
    return layer_norm(x, last_norm) @ head.T


def draw_weights(vocabulary, length, layers, width):
    """Returns (weights, blocks) of a model whose embedding and output layer are tied, as section
    2.3 of GPT-2's paper draws them."""

    def draw(*shape, scale=1.0):
        return (0.02 * scale * torch.randn(shape)).requires_grad_()

    def ones():
        return torch.ones(width, requires_grad=True)

    token, small, blocks = draw(vocabulary, width), (2 * layers) ** -0.5, []
    for _ in range(layers):
        attention = [ones(), draw(3 * width, width), draw(width, width, scale=small)]
        network = [ones(), draw(4 * width, width), draw(width, 4 * width, scale=small)]
        blocks.append(attention + network)
    return (token, draw(length, width), ones(), token), blocks


def reading(model):
    """Returns copies of the script's GPT's weights, as gpt() takes them."""
    copies = {id(w): w.detach().clone().requires_grad_() for w in model.parameters()}
    of = {name: copies[id(w)] for name, w in model.named_parameters(remove_duplicate=False)}
    numbers = range(len(model.blocks))
    blocks = [[w for name, w in of.items() if name.startswith(f"blocks.{n}.")] for n in numbers]
    return [of[name] for name in ("token.weight", "position", "norm.weight", "head.weight")], blocks


def mean_loss(logits, target):
    of_target = logits.gather(-1, target[..., None])[..., 0]
    return (logits.logsumexp(-1) - of_target).mean()


class AdamW:
    """Loshchilov and Hutter 2019, with clipping; vectors do not decay."""

    def __init__(self, weights, beta2, wd, clip):
        self.weights, self.beta2, self.wd, self.clip = weights, beta2, wd, clip
        self.norms = []  # of all gradients, before they are clipped
        self.mean, self.square = ([torch.zeros_like(w) for w in weights] for _ in range(2))

    @torch.no_grad()
    def step(self, rate):
        norm = math.sqrt(sum(w.grad.double().square().sum().item() for w in self.weights))
        self.norms.append(norm)
        steps = len(self.norms)
        for w, mean, square in zip(self.weights, self.mean, self.square, strict=True):
            gradient = w.grad * min(1, self.clip / norm)
            mean.copy_(0.9 * mean + 0.1 * gradient)
            square.copy_(self.beta2 * square + (1 - self.beta2) * gradient**2)
            w -= rate * self.wd * (w.ndim > 1) * w
            unbiased = square / (1 - self.beta2**steps)
            w -= rate * mean / (1 - 0.9**steps) / (unbiased.sqrt() + 1e-8)
            w.grad = None


def rate_at(kind, peak, warmup, progress):
    """Returns the learning rate after a part of all steps, of which the first `warmup` warm up."""
    if progress < warmup:
        return peak * progress / warmup
    done = (progress - warmup) / (1 - warmup)
    return peak * {"linear": 1 - done, "cosine": math.cos(math.pi / 2 * done) ** 2}[kind]


def read_bytes(folder):
    """Returns the tokens of train.txt and val.txt."""
    return [torch.tensor([*(folder / f"{name}.txt").read_bytes()]) for name in ("train", "val")]


def different(weights, blocks):
    """Returns a list of all weights, each once."""
    return list({id(w): w for w in (*weights, *sum(blocks, []))}.values())


def validate(model, tokens, length):
    """Returns the mean loss of all tokens but the first, in blocks of so many."""
    losses = []
    with torch.no_grad():
        for first in range(0, len(tokens) - 1, length):
            block = tokens[first : first + length + 1]
            loss = mean_loss(model(block[None, :-1]), block[None, 1:])
            losses += [loss.item()] * (len(block) - 1)
    return sum(losses) / len(losses)


# ---------------------------------------------------------------------------------- the comparison

CASES = {
    "linear": "--lr 3e-3 --warmup-epochs 0 --wd 0.1 --clip-grad 2.5",
    "cosine, tied": "--lr 2e-3 --lr-schedule cosine --warmup-epochs 0.5 --beta2 0.95 --tied "
    "--seed 7 --clip-grad 2.5",
}
SIZES = "--layers 2 --hidden-size 64 --heads 2 --max-length 32".split()


@pytest.mark.parametrize(
    "case", [pytest.param("linear", marks=pytest.mark.slow), "cosine, tied"], ids=str
)
def test_the_script_trains_as_the_reference(case, text, tmp_path):
    words = [*SIZES, *CASES[case].split(), "-b", "24", "--epochs", "2", "--steps-per-epoch", "10"]
    run([*command("text_nd.py"), *words, "-p", "1", "--no-accel", text], tmp_path)
    args = text_nd.parse_args(words)
    train, val = read_bytes(text)
    torch.manual_seed(args.seed)
    theirs = text_nd.GPT(256, 32, 0.0, 2, 64, 2, args.tied)
    weights, blocks = reading(theirs)
    every = different(weights, blocks)
    assert (weights[0] is weights[3]) == args.tied
    optimizer = AdamW(every, args.beta2, args.wd, args.clip_grad)

    def model(tokens):
        return gpt(weights, blocks, 2, tokens)

    losses, found = [], []
    for epoch in range(2):
        seed = np.random.SeedSequence((args.seed, epoch)).generate_state(1, np.uint64)[0]
        generator = torch.Generator().manual_seed(int(seed))
        order = torch.randperm((len(train) - 1) // 32, generator=generator)
        for step in range(10):
            rows = [train[32 * i : 32 * i + 33] for i in order[24 * step : 24 * step + 24].tolist()]
            batch = torch.stack(rows)
            loss = mean_loss(model(batch[:, :-1]), batch[:, 1:])
            loss.backward()
            progress = (epoch + (step + 0.5) / 10) / 2
            optimizer.step(rate_at(args.lr_schedule, args.lr, args.warmup_epochs / 2, progress))
            losses.append(loss.item())
        found.append(validate(model, val, 32))
    logs = tmp_path / "runs"
    assert list(scalars(logs, "Loss/step").values()) == pytest.approx(losses, rel=1e-6)
    assert list(scalars(logs, "Loss/val").values()) == pytest.approx(found, rel=1e-6)
    perplexity = scalars(logs, "Perplexity/val").values()
    assert list(perplexity) == pytest.approx([*map(math.exp, found)], rel=1e-5)
    theirs.load_state_dict(torch.load(checkpoint(logs), weights_only=True)["state_dict"])
    torch.testing.assert_close(every, different(*reading(theirs)), rtol=1e-4, atol=1e-5)
    assert losses[-1] < 0.8 * losses[0], "it must learn, or equality says little"
    least, most = min(optimizer.norms), max(optimizer.norms)
    assert least < args.clip_grad < most, "some gradients are clipped, some are not"


def test_weights_begin_as_those_of_gpt_2():
    """Each with the same mean and deviation, but for chance."""
    torch.manual_seed(0)
    for layers in 2, 6:
        found = different(*reading(text_nd.GPT(99, 64, 0.0, layers, 96, 3, True)))
        expected = different(*draw_weights(99, 64, layers, 96))
        assert [each.shape for each in found] == [each.shape for each in expected]
        for own, theirs in zip(found, expected, strict=True):
            assert own.std().item() == pytest.approx(theirs.std().item(), rel=0.05)
            assert own.mean().item() == pytest.approx(theirs.mean().item(), abs=0.002)
