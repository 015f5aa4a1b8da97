"""trainparts/batch_plan.py: how a global batch is split, and how batches reach a device."""

import pytest
import torch

from trainparts import batch_plan, errors


@pytest.mark.parametrize(
    ("batch", "devices", "more", "expected"),
    [
        (256, 1, {}, (256, 1, 256)),
        (32, 8, {}, (32, 1, 256)),
        (16, 4, {"accumulation": 3}, (16, 3, 192)),
        (1, 1, {"accumulation": 5}, (1, 5, 5)),
        # A global batch decides, and the batch of a device adapts: of several, the largest.
        (256, 2, {"global_batch": 512}, (256, 1, 512)),
        (256, 1, {"global_batch": 512}, (256, 2, 512)),
        (100, 1, {"global_batch": 512}, (64, 8, 512)),
        (5, 2, {"global_batch": 24}, (4, 3, 24)),
        (5, 2, {"global_batch": 26}, (1, 13, 26)),
        (64, 3, {"global_batch": 9}, (3, 1, 9)),  # fewer than -b
        (8, 1, {"global_batch": 8, "accumulation": 4}, (8, 1, 8)),
        (7, 4, {"global_batch": 4}, (1, 1, 4)),
        (6, 1, {"global_batch": 24, "multiple": 4}, (4, 6, 24)),
        (12, 1, {"global_batch": 24, "multiple": 4}, (12, 2, 24)),
        (11, 1, {"global_batch": 24, "multiple": 2}, (8, 3, 24)),
        (10, 1, {"global_batch": 24, "multiple": 3}, (6, 4, 24)),
        (3, 1, {"global_batch": 6, "multiple": 4}, (1, 6, 6)),  # none is a multiple
        (6, 2, {"multiple": 4}, (6, 1, 12)),  # what is typed is kept
    ],
)
def test_a_global_batch_is_split(batch, devices, more, expected):
    made = batch_plan.split_batch(batch, devices, **more)
    assert made == expected
    assert made == (made.device_batch, made.accumulation_steps, made.global_batch)


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("multiple", [1, 2, 3])
def test_the_largest_batch_that_fits_is_taken(devices, multiple):
    """Of all splits whose steps have the same items, as they are listed one by one."""
    for in_step in range(multiple, 40, multiple):
        for batch in range(multiple, 45):
            made = batch_plan.split_batch(
                batch, devices, global_batch=in_step * devices, multiple=multiple
            )
            every = [
                (size, steps, in_step * devices)
                for size in range(1, batch + 1)
                for steps in range(1, in_step + 1)
                if size * steps == in_step and size / multiple == size // multiple
            ]
            assert made == max(every)


@pytest.mark.parametrize(
    ("devices", "global_batch", "fit"),
    [
        (2, 9, "1, 3, 9"),
        (5, 32, "1, 2, 4, 8, 16, 32"),
        (3, 7, "1, 7"),
        (3, 8192, "1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096"),
    ],
)
def test_a_global_batch_that_does_not_divide_names_the_counts_that_fit(devices, global_batch, fit):
    """As far as 4,096, or a large one's would fill the terminal."""
    with pytest.raises(errors.BadInput) as raised:
        batch_plan.split_batch(256, devices, global_batch=global_batch)
    assert str(raised.value) == (
        f"{devices} devices cannot share a global batch of {global_batch}; "
        f"these numbers of devices can: {fit}"
    )


@pytest.mark.parametrize(
    ("batch", "multiple", "half"),
    [(256, 1, 128), (5, 1, 2), (2, 1, 1), (1, 1, 0), (250, 2, 124), (2, 2, 0), (12, 4, 4)]
    + [(16, 4, 8), (7, 4, 0), (18, 3, 9), (20, 3, 9)],
)
def test_half_of_a_batch_is_rounded_down_to_a_multiple(batch, multiple, half):
    assert batch_plan.smaller_batch(batch, multiple) == half


CPU = torch.device("cpu")


def loaded(number, split="train", epoch=3):
    """Returns a batch as a loader yields it: its number, its label, and where it is from."""
    return torch.full((2, 3), float(number)), torch.tensor([number] * 2), split, epoch, 2 * number


def as_it_is(inputs, target, **where):
    return inputs, target


def test_batches_come_in_their_order_as_they_were_finished():
    asked = []

    def finish(inputs, target, *, split, epoch, position):
        asked.append((inputs[0, 0].item(), split, epoch, position))
        return inputs * 10, target + 1

    given = [loaded(0), loaded(1), loaded(2, "val", None)]
    made = [*batch_plan.to_device(given, finish, CPU, [])]
    assert [each[:2] for each in made] == [("train", 3), ("train", 3), ("val", None)]
    assert [each[2].tolist() for each in made] == [[[10.0 * n] * 3] * 2 for n in range(3)]
    assert [each[3].tolist() for each in made] == [[n + 1] * 2 for n in range(3)]
    assert asked == [(0, "train", 3, 0), (1, "train", 3, 2), (2, "val", None, 4)]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_no_batch_is_lost_or_made_up(count):
    waits = []
    made = batch_plan.to_device(map(loaded, range(count)), as_it_is, CPU, waits)
    assert [each[3][0].item() for each in made] == [*range(count)]
    assert len(waits) == count


def test_one_batch_is_prepared_while_the_one_before_is_used():
    """One, and no more: a device's memory holds two."""
    read = []

    def batches():
        for number in range(4):
            read.append(number)
            yield loaded(number)

    made = batch_plan.to_device(batches(), as_it_is, CPU, [])
    assert read == []
    for number, known in enumerate([[0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]):
        assert next(made)[3][0] == number and read == known
    assert next(made, None) is None


def test_only_waiting_for_data_counts_as_such(monkeypatch):
    """Neither the step that is trained meanwhile, nor what is done to a batch that has come."""
    now, waits = [100.0], []
    monkeypatch.setattr(batch_plan.time, "perf_counter", lambda: now[0])

    def batches():
        for number, seconds in enumerate([2.0, 0.25, 0.5]):
            now[0] += seconds
            yield loaded(number)

    def finish(inputs, target, **where):
        now[0] += 16
        return inputs, target

    for _ in batch_plan.to_device(batches(), finish, CPU, waits):
        now[0] += 64
    assert waits == [2.0, 0.25, 0.5]


def test_what_a_loader_raises_comes_through():
    def batches():
        yield loaded(0)
        yield loaded(1)
        raise errors.Fault("a disk does not answer")

    made = batch_plan.to_device(batches(), as_it_is, CPU, [])
    assert next(made)[3][0] == 0
    with pytest.raises(errors.Fault, match="a disk does not answer"):
        next(made)


def test_batches_are_on_the_device():
    """A device that has no memory stands for one that has its own."""
    made = batch_plan.to_device([loaded(0)], as_it_is, torch.device("meta"), [])
    ((_, _, inputs, target),) = made
    assert inputs.device.type == target.device.type == "meta"
