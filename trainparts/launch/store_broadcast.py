"""Rank 0's small values for all ranks, by the store of torch.distributed's default group.

Use it where ranks must agree on a value before their first collective, and where one of them ends.
"""

from __future__ import annotations

import json
import time
from typing import TypeVar

import torch.distributed as dist

from trainparts import errors

Sent = TypeVar("Sent")  # what JSON has, or a TypedDict of that; a tuple becomes a list


def broadcast_value(value: Sent) -> Sent:
    """Returns rank 0's small value on every rank, as JSON has it: tuples become lists, and keys
    text. Raises what ended rank 0, a BadInput or a Fault."""
    # Not by PyTorch's broadcast of objects: it unpickles, so whoever reaches the port could have
    # code executed; and no collective may come before loader processes are forked.
    store = dist.distributed_c10d._get_default_store()  # which formed the group
    mine = f"values read by rank {dist.get_rank()}"
    number = store.add(mine, 0)
    if dist.get_rank() == 0:
        store.set(f"value {number}", json.dumps({"value": value}))
    sent = json.loads(store.get(f"value {number}"))
    store.add(mine, 1)
    if "error" in sent:
        wrong = sent["status"] == errors.BadInput.status
        raise (errors.BadInput if wrong else errors.Fault)(sent["error"])
    return sent["value"]


def broadcast_end(line: str, status: int) -> None:
    """Sends why rank 0 ends, with the store that it holds, to ranks that wait for its value."""
    if not dist.is_initialized():
        return
    store, until = dist.distributed_c10d._get_default_store(), time.monotonic() + 2
    number = store.add("values read by rank 0", 1) - 1
    store.set(f"value {number}", json.dumps({"error": line, "status": status}))
    others = [f"values read by rank {rank}" for rank in range(1, dist.get_world_size())]
    # They may have earlier values to read, or not ask at all.
    while any(store.add(each, 0) <= number for each in others) and time.monotonic() < until:
        time.sleep(0.01)
