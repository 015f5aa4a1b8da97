"""A GPT of text_*.py is transformers' GPT-2 by other names, and comes back as it was."""

import pytest
import torch
import transformers

import text_nd
from trainparts.text import gpt2_names, text_weights


def gpt(tied=False):
    """Returns a small GPT of eleven layers, whose weights all differ from where they began."""
    torch.manual_seed(0)
    model = text_nd.GPT(20, 6, 0.0, layers=11, hidden_size=8, heads=2, tied=tied)
    for weight in model.parameters():
        weight.data += 0.3 * torch.randn_like(weight)
    return model.eval()


def same(found, wanted):
    """Returns whether two state dicts are equal."""
    return found.keys() == wanted.keys() and all(torch.equal(found[n], wanted[n]) for n in found)


@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_gpt2_computes_what_a_gpt_does(tied):
    model, sizes = gpt(tied), {"n_embd": 8, "n_layer": 11, "n_head": 2}
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=6, activation_function="gelu", tie_word_embeddings=tied, **sizes
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    for weight in theirs.parameters():
        weight.zero_()
    missing, extra = theirs.load_state_dict(gpt2_names.to_gpt2(model.state_dict()), strict=False)
    assert not extra and all(name.endswith(".bias") for name in missing)
    tokens = torch.randint(20, (3, 6))
    torch.testing.assert_close(theirs(tokens).logits, model(tokens), rtol=1e-5, atol=1e-5)
    assert same(gpt2_names.from_gpt2(theirs.state_dict()), model.state_dict())
    # As a file has the weights of one that ties them.
    held = {name: each for name, each in theirs.state_dict().items() if name != "lm_head.weight"}
    if tied:
        assert same(gpt2_names.from_gpt2(held), model.state_dict())
    assert same(text_weights.find_weights(theirs.state_dict())[1], model.state_dict())


def test_what_is_no_gpt_stays_as_it_is():
    state = gpt().state_dict()
    assert gpt2_names.to_gpt2(state | {"blocks.0.gate.weight": torch.ones(1)}) is None
    theirs = gpt2_names.to_gpt2(state)
    assert (
        gpt2_names.from_gpt2(theirs | {"transformer.h.0.attn.c_attn.bias": torch.ones(3)}) is None
    )
    assert gpt2_names.from_gpt2(theirs | {"score.weight": torch.ones(3)}) is None
    assert gpt2_names.from_gpt2(state) is None, "names of these scripts are none of GPT-2's"
    assert same(text_weights.find_weights(state)[1], state)
    assert text_weights.find_weights({}) == (None, {})
