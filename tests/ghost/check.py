"""What the ghost promises, checked by two ranks: values by NCCL, and copies that come late."""

import os

import torch
import torch.distributed as dist
from run import counts

FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64
WHOLE = torch.uint8, torch.int8, torch.int32, torch.int64
LONG = 5_000_001  # float32 numbers: more than lie in shared memory at once


def values(rank, dtype=torch.float32, size=5):
    """Returns numbers that all types have exactly, other ones for each rank."""
    return ((torch.arange(size) % 7 + 1) * (rank + 1)).to(dtype)


def check_reductions(rank):
    """All types and operations, over both ranks."""
    for dtype in (*FLOATS, *WHOLE):
        first, second = values(0, dtype), values(1, dtype)
        expected = {"SUM": first + second, "MAX": second, "MIN": first, "PRODUCT": first * second}
        if dtype in FLOATS:
            expected["AVG"] = (first + second) / 2
        for name, result in expected.items():
            mine = values(rank, dtype).cuda()
            dist.all_reduce(mine, getattr(dist.ReduceOp, name))
            assert torch.equal(mine.cpu(), result), (name, dtype)


def check_collectives(rank, size):
    """Who gets what, in messages of so many numbers."""
    mine, both = values(rank, size=size).cuda(), [values(0, size=size), values(1, size=size)]
    gathered = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(gathered, mine)
    assert all(map(torch.equal, map(torch.Tensor.cpu, gathered), both))
    whole = torch.empty(2 * size, device="cuda")
    dist.all_gather_into_tensor(whole, mine)
    assert torch.equal(whole.cpu(), torch.cat(both))
    part = torch.empty(size, device="cuda")
    dist.reduce_scatter_tensor(part, whole)
    assert torch.equal(part.cpu(), 2 * both[rank])
    for root in range(2):
        sent = values(rank, size=size).cuda()
        dist.broadcast(sent, root)
        assert torch.equal(sent.cpu(), both[root])
        dist.reduce(mine, root)
        if rank == root:
            assert torch.equal(mine.cpu(), sum(both))
        mine = values(rank, size=size).cuda()
        taken = [torch.empty_like(mine) for _ in range(2)] if rank == root else None
        dist.gather(mine, taken, root)
        assert not taken or all(map(torch.equal, map(torch.Tensor.cpu, taken), both))
        part = torch.empty_like(mine)
        dist.scatter(part, taken, root)
        assert torch.equal(part.cpu(), both[rank])
    received = torch.empty_like(mine)
    to, of = dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)
    for work in dist.batch_isend_irecv([to, of]):
        work.wait()
    assert torch.equal(received.cpu(), both[1 - rank])


def check_copies():
    """A copy to pinned memory comes with the first wait that it is part of; a source that changes
    before is noticed."""
    device, host = torch.ones(4).cuda(), torch.zeros(4).pin_memory()
    other, before, after = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
    before.record()
    host.copy_(device, non_blocking=True)
    after.record()
    before.synchronize()
    other.synchronize()
    assert host.isnan().all() and not after.query()
    other.wait_event(after)
    other.synchronize()
    assert host.eq(1).all() and after.query()
    for changed in False, True:
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        device.copy_(host, non_blocking=True)
        if changed:
            host.zero_()
        torch.cuda.synchronize()
        assert counts()["overwritten"] == changed


def main():
    """Joins the other rank, and checks all."""
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    check_reductions(rank)
    for size in 5, LONG:
        check_collectives(rank, size)
    group = dist.new_group([1, 0])
    total = values(rank).cuda()
    dist.all_reduce(total, group=group)
    assert torch.equal(total.cpu(), values(0) + values(1))
    check_copies()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
