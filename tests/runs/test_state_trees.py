"""Nested dicts of tensors: copied to float32, walked, and paired with what is trained."""

import re

import pytest
import torch

from trainparts import errors
from trainparts.runs import state_trees


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_copy_is_in_float32_and_shares_no_memory(dtype):
    weight = torch.tensor([[1.5, -2.0]], dtype=dtype, requires_grad=True)
    copy = state_trees.in_float32(weight)
    assert copy.dtype == torch.float32 and not copy.requires_grad and copy.device.type == "cpu"
    assert copy.tolist() == [[1.5, -2.0]]
    with torch.no_grad():
        weight.zero_()
    assert copy.tolist() == [[1.5, -2.0]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_a_copy_of_what_is_no_floating_point_keeps_its_dtype(dtype):
    own = torch.tensor([0, 1], dtype=dtype)
    copy = state_trees.in_float32(own)
    own.fill_(1)
    assert copy.dtype == dtype and copy.tolist() == [0, 1]


def test_a_copy_has_the_same_keys_and_what_is_no_tensor():
    tree = {0: {"a": torch.ones(2, dtype=torch.float64), "b": None}, "c": [3], "d": {}}
    copy = state_trees.in_float32(tree)
    assert copy[0]["a"].dtype == torch.float32
    assert copy[0] is not tree[0] and copy[0]["b"] is None
    assert [*copy] == [0, "c", "d"] and (copy["c"], copy["d"]) == ([3], {})


def test_leaves_are_the_tensors_in_order_with_their_keys():
    one, two, three = (torch.tensor(float(number)) for number in range(3))
    tree = {"z": {0: one, "rate": 0.5}, "a": two, "groups": [three], "none": None, "m": {1: {}}}
    found = [*state_trees.leaves(tree)]
    assert [path for path, _ in found] == [("z", 0), ("a",)]
    assert found[0][1] is one and found[1][1] is two
    assert [*state_trees.leaves(three)] == [((), three)]
    assert [*state_trees.leaves({"b": three}, ("a", 1))] == [(("a", 1, "b"), three)]
    assert [*state_trees.leaves(None)] == []


def trained(moments=True):
    """Returns (optimizer, weights, averages, state) of a layer; the state fits, and all of its
    tensors have another value."""
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    for weight in layer.parameters() if moments else ():
        optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    weights = {name: weight.detach() for name, weight in layer.named_parameters()}
    averages = {name: weight.clone() for name, weight in weights.items()}
    state = {
        "state_dict": {"weight": torch.full((2, 3), 1.0), "bias": torch.full((2,), 2.0)},
        "ema": {"bias": torch.full((2,), 4.0), "weight": torch.full((2, 3), 3.0)},
        "optimizer": {
            "param_groups": [{"lr": 0.1}],
            "state": {
                0: {"momentum_buffer": torch.full((2, 3), 5.0)},
                1: {"momentum_buffer": torch.full((2,), 6.0)},
            },
        },
    }
    return optimizer, weights, averages, state


def test_each_tensor_is_paired_with_what_was_saved_of_it():
    """By name, whatever the order in the file."""
    optimizer, weights, averages, state = trained()
    pairs = [*state_trees.saved_pairs(optimizer, weights, averages, state)]
    moments = [each["momentum_buffer"] for each in optimizer.state.values()]
    own = [*weights.values(), *averages.values(), *moments]
    assert [id(tensor) for tensor, _ in pairs] == [id(tensor) for tensor in own]
    values = [saved.unique().tolist() for _, saved in pairs]
    assert values == [[1], [2], [3], [4], [5], [6]]
    assert all(tensor.shape == saved.shape for tensor, saved in pairs)


def test_other_ranks_have_the_same_tensors_in_the_same_order_and_nothing_saved():
    optimizer, weights, averages, state = trained()
    first = [*state_trees.saved_pairs(optimizer, weights, averages, state)]
    other = [*state_trees.saved_pairs(optimizer, weights, averages, None)]
    assert [id(tensor) for tensor, _ in first] == [id(tensor) for tensor, _ in other]
    assert all(saved is None for _, saved in other)


def test_moments_that_a_file_lacks_begin_at_zero_and_another_s_are_left_out():
    """As of a run without momentum, or of another optimizer."""
    optimizer, weights, averages, state = trained()
    state["optimizer"]["state"] = {0: {"exp_avg": torch.ones(2, 3), "step": torch.tensor(7.0)}}
    *_, first, second = state_trees.saved_pairs(optimizer, weights, averages, state)
    assert first[1].shape == (2, 3) and second[1].shape == (2,)
    assert not first[1].any() and not second[1].any()


def test_moments_of_all_groups_are_paired():
    """As under --norm-wd, where biases are a group of their own."""
    _, weights, averages, state = trained()
    groups = [{"params": [weight]} for weight in weights.values()]
    optimizer = torch.optim.SGD(groups, 0.1, momentum=0.9)
    for weight in weights.values():
        optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    *_, first, second = state_trees.saved_pairs(optimizer, weights, averages, state)
    assert (first[1].unique().tolist(), second[1].unique().tolist()) == ([5], [6])


def test_a_run_without_moments_and_averages_takes_a_file_that_has_moments():
    optimizer, weights, _, state = trained(moments=False)
    state["ema"] = None
    pairs = [*state_trees.saved_pairs(optimizer, weights, {}, state)]
    assert [saved.unique().tolist() for _, saved in pairs] == [[1], [2]]


OPTIMIZER_S = (
    "; the optimizer's state is of other weights, as after --freeze or with another --norm-wd or "
    "--layer-decay: --weights takes the weights alone"
)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda state: state["state_dict"].update(bias=torch.zeros(3)),
            "1 weights do not fit: bias; bias is [3] there, [2] here",
        ),
        (
            lambda state: state["state_dict"].pop("weight"),
            "1 weights do not fit: weight; weight is missing there, [2, 3] here",
        ),
        (
            lambda state: state["state_dict"].update({f"more.{n}": torch.ones(1) for n in "edcba"}),
            "5 weights do not fit: more.a, more.b, more.c, more.d; more.a is [1] there, "
            "missing here",
        ),
        (
            lambda state: state["ema"].pop("bias"),
            "1 weights do not fit: bias; bias is missing there, [2] here",
        ),
        (
            lambda state: state.update(ema=None),
            "2 weights do not fit: bias, weight; bias is missing there, [2] here",
        ),
        (
            lambda state: state["optimizer"]["state"][1].update(momentum_buffer=torch.ones(2, 3)),
            "1 weights do not fit: state.1.momentum_buffer; state.1.momentum_buffer is [2, 3] "
            "there, [2] here" + OPTIMIZER_S,
        ),
        (
            lambda state: (
                state["optimizer"]["state"][1].update(momentum_buffer=torch.ones(2, 3)),
                state["state_dict"].update(bias=torch.ones(3)),
            ),
            "2 weights do not fit: bias, state.1.momentum_buffer; bias is [3] there, [2] here",
        ),
    ],
    ids="shape missing others average averages moment both".split(),
)
def test_what_does_not_fit_is_named_before_a_tensor_is_given(change, line):
    optimizer, weights, averages, state = trained()
    change(state)
    pairs = state_trees.saved_pairs(optimizer, weights, averages, state)
    with pytest.raises(errors.BadInput, match=f"^{re.escape('the checkpoint: ' + line)}$"):
        next(pairs)
