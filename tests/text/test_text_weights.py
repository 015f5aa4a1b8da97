"""Weights of files found by their names, cut to a model's positions, and loaded if they fit."""

import math

import pytest
import torch
from torch import nn

from trainparts import errors
from trainparts.text import text_weights


class Model(nn.Module):
    """Tokens and positions, a layer, norms and an output layer, as a language model's."""

    def __init__(self, positions=4, outputs=3):
        super().__init__()
        self.token = nn.Embedding(5, 2)
        self.position = nn.Parameter(torch.zeros(positions, 2))
        self.layer = nn.Linear(2, 2)
        self.head = nn.Linear(2, outputs)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


NAMES = [*"head.bias head.weight layer.bias layer.weight position steps token.weight".split()]


def numbered(model, first=1.0):
    """Returns weights for a model, each of another number."""
    held = model.state_dict()
    return {name: torch.full_like(held[name], first + n) for n, name in enumerate(NAMES)}


def refusal(call, *given, **named):
    with pytest.raises(errors.BadInput) as found:
        call(*given, **named)
    return str(found.value)


# ------------------------------------------------------------------------------------ what is held


def tensors(*names):
    return {name: torch.tensor(float(n)) for n, name in enumerate(names)}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("ema state_dict model model_state_dict", "ema"),
        ("model_state_dict model state_dict ema", "ema"),
        ("model_state_dict model state_dict", "state_dict"),
        ("model_state_dict model", "model"),
        ("model_state_dict optimizer", "model_state_dict"),
        ("optimizer", None),
    ],
)
def test_averages_come_first_in_whatever_order_a_file_has_them(names, expected):
    saved = {name: {"weight": torch.tensor(float(n))} for n, name in enumerate(names.split())}
    held, weights = text_weights.find_weights({"epoch": 3} | saved)
    assert held == expected
    assert weights == (saved[expected] if expected else {})


@pytest.mark.parametrize("none", [None, {}, "text", 3, torch.zeros(2)])
def test_a_name_that_holds_no_weights_is_passed_over(none):
    saved = {"ema": none, "model": tensors("a", "b")}
    assert text_weights.find_weights(saved) == ("model", tensors("a", "b"))


def test_a_file_may_be_a_state_dict_itself():
    held, weights = text_weights.find_weights(tensors("a.weight", "b") | {"epoch": 3, "n": [1]})
    assert (held, weights) == (None, tensors("a.weight", "b"))
    assert text_weights.find_weights({}) == (None, {})
    assert text_weights.find_weights({"model": tensors("a") | {"x": "text"}})[1] == tensors("a")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("module.a.weight", "a.weight"),
        ("_orig_mod.a.weight", "a.weight"),
        ("_orig_mod.module.a", "a"),
        ("module._orig_mod.a", "a"),
        ("a._orig_mod.b", "a.b"),
        ("module.module.a", "module.a"),
        ("a.module.b", "a.module.b"),
        ("modules.a", "modules.a"),
        (7, "7"),
    ],
)
@pytest.mark.parametrize("held", ["state_dict", None])
def test_prefixes_of_wrappers_are_left_off(name, expected, held):
    given = {name: torch.ones(2)}
    found = text_weights.find_weights({held: given} if held else given)
    assert found[0] == held and [*found[1]] == [expected]


# -------------------------------------------------------------------------------------- positions


def positions(count, name="position", width=2):
    return {name: torch.arange(count * width).reshape(count, width).float()}


def test_the_first_positions_are_taken():
    given = positions(6) | {"token.weight": torch.ones(9, 2)}
    found = text_weights.cut_positions(given, Model(), 4, "x")
    assert found["position"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert found["token.weight"] is given["token.weight"], "other names are left"
    assert given["position"].shape == (6, 2), "what is given is not changed"


@pytest.mark.parametrize(
    "given",
    [positions(4), positions(6, width=3), positions(6, "other_position"), {}],
    ids=["as many", "wider", "another name", "none"],
)
def test_what_is_no_more_positions_is_left(given):
    found = text_weights.cut_positions(given, Model(), 4, "x")
    assert found.keys() == given.keys() and all(found[name] is given[name] for name in given)


class Deep(nn.Module):
    """Has its positions as BERT does."""

    def __init__(self, positions):
        super().__init__()
        self.position_embeddings = nn.Embedding(positions, 2)


@pytest.mark.parametrize(("spare", "most"), [(0, 3), (2, 3)])
def test_more_tokens_than_positions_are_refused(spare, most):
    """A model may have positions that it does not use, as RoBERTa has."""
    given = positions(3 + spare, "position_embeddings.weight")
    line = refusal(text_weights.cut_positions, given, Deep(5 + spare), 5, "--weights x.pt")
    assert line == f"--weights x.pt: --max-length 5 exceeds its {most} positions"
    given = positions(9, "position_embeddings.weight")
    found = text_weights.cut_positions(given, Deep(5 + spare), 5, "x")
    assert len(found["position_embeddings.weight"]) == 5 + spare


# ------------------------------------------------------------------------------------------ loading


def load(model, weights, **more):
    return text_weights.load_fitting(model, weights, "--weights x.pt", **more)


@pytest.mark.parametrize("evaluate", [True, False])
def test_weights_that_fit_are_loaded(evaluate):
    model = Model()
    given = numbered(model)
    assert load(model, given, evaluate=evaluate) == []
    assert all(torch.equal(each, given[name]) for name, each in model.state_dict().items())


def test_weights_of_another_precision_are_loaded_in_the_models():
    model = Model()
    given = {name: each.to(torch.float16) for name, each in numbered(model).items()}
    given["steps"] = torch.tensor(6)
    assert load(model, given, evaluate=True) == []
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    assert model.token.weight.eq(7).all() and model.steps == 6


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"head.weight": torch.ones(9, 2), "head.bias": torch.ones(9)}, "head.bias head.weight"),
        ({"head.bias": None}, "head.bias"),
        ({"other.weight": torch.ones(2)}, "other.weight"),
        ({"layer.weight": torch.ones(2, 2, dtype=torch.int8)}, "layer.weight"),
        ({"layer.weight": torch.ones(2, 2).to_sparse()}, "layer.weight"),
        ({"head.bias": None, "zz": torch.ones(1), "aa": torch.ones(1)}, "aa head.bias zz"),
    ],
)
def test_what_does_not_fit_is_left_out_and_named(change, left):
    """Of the model and of the file, in the order of their names; in evaluation it is refused."""
    line = f"--weights x.pt: {len(left.split())} weights do not fit"
    listed = ", ".join(left.split())
    model = Model()
    given = {name: each for name, each in (numbered(model) | change).items() if each is not None}
    before = {name: each.clone() for name, each in model.state_dict().items()}
    why = f"{line}: {listed}; without them the output is random"
    assert refusal(load, model, given, evaluate=True) == why
    assert torch.equal(model.token.weight, before["token.weight"]), "nothing is loaded"
    assert load(model, given) == [f"{line} and are left out: {listed}"]
    for name, each in model.state_dict().items():
        expected = before[name] if name in left.split() else given[name]
        assert torch.equal(each, expected), name


def test_four_names_are_enough():
    model = Model()
    given = numbered(model) | {f"new.{n}": torch.ones(1) for n in range(5, 0, -1)}
    (line,) = load(model, given)
    listed = "new.1, new.2, new.3, new.4"
    assert line == f"--weights x.pt: 5 weights do not fit and are left out: {listed}"
    why = refusal(load, model, given, evaluate=True)
    assert (
        why == f"--weights x.pt: 5 weights do not fit: {listed}; without them the output is random"
    )


@pytest.mark.parametrize("missing", [3, 4, 7])
def test_half_of_the_weights_are_too_few(missing):
    """Of seven; what the file has besides is no help."""
    model = Model()
    given = {name: each for name, each in [*numbered(model).items()][missing:]}
    given |= {"other": torch.ones(1)}
    left = sorted([*NAMES[:missing], "other"])
    line = f"--weights x.pt: {len(left)} weights do not fit"
    if missing < 3.5:
        assert load(model, given) == [f"{line} and are left out: {', '.join(left[:4])}"]
        return
    holds = ", ".join([*given][:4])
    assert refusal(load, model, given) == f"{line}: {', '.join(left[:4])}; the file holds {holds}"
    assert refusal(load, model, given, evaluate=True).endswith(f"; the file holds {holds}")


def test_exactly_half_is_too_few():
    model = nn.Linear(2, 2)
    line = refusal(text_weights.load_fitting, model, {"bias": torch.ones(2)}, "x")
    assert line == "x: 1 weights do not fit: weight; the file holds bias"


@pytest.mark.parametrize(
    ("content", "holds"),
    [
        ({"epoch": 3, 7: "a", "b": [], "c": None, "d": 1}, "epoch, 7, b, c"),
        ({}, "nothing by name"),
        (None, "nothing by name"),
    ],
)
def test_a_file_without_weights_is_told_by_what_it_holds(content, holds):
    line = refusal(load, Model(), {}, content=content)
    listed = ", ".join(NAMES[:4])
    assert line == f"--weights x.pt: 7 weights do not fit: {listed}; the file holds {holds}"
    line = refusal(load, Model(), {"a": torch.ones(1)}, content=content)
    assert line.endswith("; the file holds a"), "its weights, if there are some"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_not_loaded(value):
    model = Model()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    given = numbered(model)
    given["layer.weight"][1, 1] = value
    for evaluate in True, False:
        line = refusal(load, model, given, evaluate=evaluate)
        assert line == "--weights x.pt: its weights are not all finite"
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    del given["layer.weight"]
    given["unused"] = torch.full((1,), value)
    assert len(load(model, given)) == 1, "what is left out may be anything"
