"""Train a language model in pipeline stages: each rank holds some of the layers.

Use this script when a model fits on no GPU and the links between GPUs are slow: only activations
cross them, between neighbours. Otherwise text_fsdp.py is simpler. The model is cut into stages of
nearly equal work, and each batch into micro-batches, so that all stages compute at once. Ranks
beyond the stages train replicas. DIR holds train.txt and val.txt; a task of GLUE's cannot be cut.

    pip install ".[text]"
    torchrun --nproc_per_node=2 --master_port=29500 \\
        text_pipeline.py --no-accel  # without DIR: a small GPT, on a demo
    torchrun --nproc_per_node=4 --master_port=29500 \\
        text_pipeline.py --layers 24 --hidden-size 2048 --heads 16 \\
        --lr 6e-4 --max-length 1024 --tokenizer FOLDER -b 32 --microbatches 16 --amp bfloat16 DIR
    torchrun --nproc_per_node=8 --master_port=29500 \\
        text_pipeline.py --stages 4 --schedule 1f1b DIR  # two replicas
    torchrun --nnodes 2 --node_rank 0 --nproc_per_node=1 --master_addr MASTER_IP \\
        --master_port 29500 text_pipeline.py DIR  # node 0 of 2

Measured: a language model of two layers takes 332 ms a batch in two stages, 4 micro-batches, 193 on
one device; losses within 3e-04; 2 cores of AMD EPYC.

To change       edit
    loss            losses_of()
    model           GPT, or build_model()
    text            list_blocks(), or list_rows() for sentences; load_batches()
    schedule        learning_rate()
    optimizer       build_optimizer()
    measure         SUMS and measure(), compute_metrics(), format_metrics(), BEST

What is not training is in trainparts/, the folder beside this script: copy the two together.
Read it from the top: a step, the loop, the task; then optimizer, start and launch, to look up.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import difflib
import fnmatch
import functools
import gc
import importlib.util
import itertools
import json
import math
import os
import platform
import sys
import time
import types
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

try:
    PARTS = "0.9"  # the version of trainparts/ that this script is written for
    from trainparts import VERSION
except ImportError:  # there is none, or an empty folder
    VERSION = "none"
if VERSION.rpartition(".")[0] != PARTS:
    if os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(5)  # rank 0 prints the same, and the launcher ends this process meanwhile
    print(
        f"{Path(__file__).name}: error: needs trainparts/ of version {PARTS}, which stood beside "
        f"it, and finds {VERSION}: copy that folder, too (unless PYTHONSAFEPATH is set), or "
        "pip install PATH_OF_THE_CLONE",
        file=sys.stderr,
    )
    sys.exit(2)

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.tensorboard import SummaryWriter

from trainparts import (
    activation_checkpointing,
    batch_plan,
    device_peaks,
    devices,
    endings,
    errors,
    model_flops,
    option_types,
    package_digest,
    progress_meter,
    run_options,
    safe_files,
    standard_streams,
)
from trainparts.launch import local_processes, rendezvous, store_broadcast
from trainparts.runs import checkpointing, event_log, run_folder, run_messages, state_trees
from trainparts.text import hf_folders, text_corpus, text_weights, tokenizing

# ==== step: how a step is trained and validated in pipeline stages; equal in all *_pipeline.py


SCHEDULES = {  # and how many stages a rank has
    "gpipe": (pipelining.ScheduleGPipe, 1),
    "1f1b": (pipelining.Schedule1F1B, 1),
    "interleaved": (pipelining.ScheduleInterleaved1F1B, 2),
}


def prepare(
    args: Namespace, place: Place, data: Data
) -> tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
    """Returns (model, optimizer, scaler). The model has all its tensors; those that other ranks
    hold are on the meta device, without values. Its `pipeline` is what this rank computes."""
    width = place.ranks // place.data_ranks  # ranks of a replica
    model = build_model(args, data)
    stages = _plan(model, width * SCHEDULES[args.schedule][1], args, place, data)
    pipeline = types.SimpleNamespace(holder={}, device=place.device, batch=data.device_batch)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        # Stage n is held by rank n % width of each replica; what no stage uses is with stage 0.
        number = next((n for n, calls in enumerate(stages) if _holds(calls, name)), 0)
        pipeline.holder[name] = number % width
        mine = pipeline.holder[name] == place.rank % width
        kept = tensor.detach().to(place.device if mine else "meta")
        kept.copy_(_sent(tensor.detach(), 0, place))
        module, _, leaf = name.rpartition(".")
        if isinstance(tensor, nn.Parameter):
            kept = nn.Parameter(kept, tensor.requires_grad)
        setattr(model.get_submodule(module), leaf, kept)
    model.pipeline = _schedule(pipeline, model, stages, args, place)
    optimizer = build_optimizer(args, model)
    # Also for weights on the meta device, so that all ranks have the same names.
    make_optimizer_state(optimizer)
    # A disabled scaler does nothing, so that no branch is needed later.
    scaler = torch.amp.GradScaler(place.device.type, enabled=args.precision == "float16")
    scaler.scale(torch.zeros(1, device=place.device))  # or only the last stage would have a scale
    return model, optimizer, scaler


def _plan(model, stages, args, place, data):
    """Returns [calls] of each of this many stages, which cost nearly the same."""
    micro, left = divmod(data.device_batch, args.microbatches)
    if left:
        what = f"the batch of {data.device_batch} that a replica takes at a time"
        raise errors.BadInput(f"--microbatches {args.microbatches} does not divide {what}")
    try:
        pieces = _pieces(model)
    except Exception as error:  # whatever a model does with what stands for its input
        raise errors.BadInput(f"{args.arch} cannot be cut: {errors.first_line(error)}") from None
    if len(pieces) < stages:
        raise errors.BadInput(f"{args.arch} can be cut into {len(pieces)} stages, not {stages}")
    single = [_Stage(model, piece, args) for piece in pieces]
    for split in "val", "train":  # for shapes of both; the costs are those of training
        x = dummy_batch(args, data, micro, place.device, split)[0]
        try:
            costs = _measure(single, x, split)
        except ValueError as error:  # of BatchNorm, which needs more than one value
            if micro > 1 or args.microbatches == 1:
                raise
            one = f"--microbatches {args.microbatches}: each has one of {data.device_batch} {ITEMS}"
            raise errors.BadInput(
                f"{one}, and {errors.first_line(error)}: lower it, or raise -b"
            ) from None
    cuts = [0, *_balance(costs, stages)]
    for number, (first, end) in enumerate(itertools.pairwise(cuts)):
        percent = 100 * sum(costs[first:end]) / sum(costs)
        if place.rank == 0:
            errors.print_line(
                f"stage {number}: {percent:.0f} % of the work, up to {pieces[end - 1][-1]}"
            )
    return [sum(pieces[first:end], []) for first, end in itertools.pairwise(cuts)]


def _pieces(model):
    """Returns the model as pieces, lists of consecutive calls. It is cut wherever a single value
    passes on, unless a piece would have no weights."""
    nodes = [*_Tracer().trace(model).nodes]
    weights = [name for name, _ in model.named_parameters()]
    last_use = {used: i for i, node in enumerate(nodes) for used in node.all_input_nodes}
    pieces, calls = [], []
    for i, node in enumerate(nodes[1:-1], 1):  # the first stands for the input
        calls.append(node)
        # Later calls need one value alone, and this piece computes it.
        needed = [value for value in nodes[: i + 1] if last_use.get(value, 0) > i]
        if len(needed) == 1 and needed[0] in calls and any(_holds(calls, name) for name in weights):
            pieces.append(calls)
            calls = []
    pieces[-1] += calls
    return pieces


class _Tracer(fx.Tracer):
    """Records a model as calls of functions and of modules without children."""

    def is_leaf_module(self, module, name):
        return super().is_leaf_module(module, name) or not [*module.children()]


def _holds(calls, name):
    """Returns whether these calls use the parameter or buffer of this name."""
    used = [call.target for call in calls if call.op in ("call_module", "get_attr")]
    return any(f"{name}.".startswith(f"{target}.") for target in used)


class _Stage(nn.Module):
    """Consecutive calls of a model, as a module that computes in the precision of `args`."""

    def __init__(self, model, calls, args):
        super().__init__()
        own = set(calls)
        # The nodes of the model's graph whose values this stage takes and gives.
        self.taken = next(x for call in calls for x in call.all_input_nodes if x not in own)
        self.given = next(call for call in calls if not own.issuperset(call.users))
        graph = fx.Graph()
        values = {self.taken: graph.placeholder("taken")}
        for call in calls:
            values[call] = graph.node_copy(call, values.get)
        graph.output(values[self.given])
        self.computed = fx.GraphModule(model, graph)  # it has the model's modules
        self.args = args

    def forward(self, x):
        """Returns what the calls give, laid out so that it can be sent."""
        with precision(self.args, x.device):
            # What is received is a leaf, which a ReLU may not change in place.
            x = x.clone() if x.requires_grad else x
            return self.computed(x).contiguous()


# Counted by FLOPs alone, BatchNorm and activations would be free, but they take time to read and
# write memory. So a byte that is saved for backward() counts as 20 FLOPs. With that, the slowest of
# 2 or 4 stages of ResNet-50 and ViT-B/16 takes as long as with cuts by times measured on an AMD
# EPYC.
FLOPS_PER_BYTE = 20


def _measure(stages, x, split):
    """Returns the cost of each stage, in FLOPs, for a micro-batch like x. Stores the shape and type
    of what a stage takes and gives in `node.meta[split]` of its nodes `taken` and `given`.

    Fake tensors have no values. So this takes no time or memory of a device, and finds the same on
    every rank and at every start: a resumed run has the same cuts as before.
    """
    costs = []
    fake = FakeTensorMode()
    x = fake.from_tensor(x)
    for stage in stages:
        tensors = itertools.chain(stage.named_parameters(), stage.named_buffers())
        tensors = {name: fake.from_tensor(tensor).to(x.device) for name, tensor in tensors}
        flops = FlopCounterMode(display=False)
        kept = []  # what backward() needs
        keep = torch.autograd.graph.saved_tensors_hooks(kept.append, kept.append)
        # The only attention backend whose FLOPs are counted on all devices.
        with fake, flops, keep, sdpa_kernel(SDPBackend.MATH):
            y = functional_call(stage, tensors, x)
        costs.append(flops.get_total_flops() + FLOPS_PER_BYTE * sum(saved.nbytes for saved in kept))
        for node, value in (stage.taken, x), (stage.given, y):
            like = {"dtype": value.dtype, "requires_grad": value.requires_grad}
            node.meta[split] = torch.empty(value.shape, **like, device="meta")
        x = y
    return costs


def _balance(costs, stages):
    """Returns the ends of so many consecutive stages, cut so that the most expensive stage costs as
    little as possible."""

    @functools.cache
    def best(first, stages):
        if stages == 1:
            return sum(costs[first:]), (len(costs),)
        found = []
        for end in range(first + 1, len(costs) - stages + 2):
            dearest, ends = best(end, stages - 1)
            found.append((max(sum(costs[first:end]), dearest), (end, *ends)))
        return min(found)

    return best(0, stages)[1]


def _schedule(pipeline, model, calls, args, place):
    """Adds to `pipeline` its groups, and the schedules of training and validation."""
    width = place.ranks // place.data_ranks
    names = ("replicas", "stages")
    sizes = (place.data_ranks, width)
    mesh = init_device_mesh(place.device.type, sizes, mesh_dim_names=names)
    pipeline.replicas, pipeline.stages = (mesh[name].get_group() for name in names)
    # NCCL may connect a group as late as in its first collective: better here than in a step.
    _sum(torch.zeros(1, device=place.device), pipeline.stages)
    mine = range(place.rank % width, len(calls), width)
    stages = {number: _Stage(model, calls[number], args) for number in mine}
    if args.checkpoint_activations:
        for stage in stages.values():
            activation_checkpointing.recompute(stage)
    pipeline.first, pipeline.last = 0 in mine, len(calls) - 1 in mine

    def build(kind, split, **options):
        made = []
        for number, stage in stages.items():
            where = number, len(calls), place.device
            # With their shapes: the library would otherwise compute on noise to find them.
            ends = stage.taken.meta[split], stage.given.meta[split]
            made.append(pipelining.PipelineStage(stage, *where, *ends, group=pipeline.stages))
        return kind(made if len(made) > 1 else made[0], args.microbatches, **options)

    kind, per_rank = SCHEDULES[args.schedule]
    # train_step() sets `pipeline.loss`, which divides by the number of micro-batches itself.
    pipeline.train = build(kind, "train", loss_fn=lambda *x: pipeline.loss(*x), scale_grads=False)
    # Without backward passes, 1F1B is GPipe.
    pipeline.validate = build(kind if per_rank > 1 else pipelining.ScheduleGPipe, "val")
    return pipeline


def precision(args: Namespace, device: torch.device) -> contextlib.AbstractContextManager:
    """The context of the forward pass and the loss."""
    if args.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, args.precision))


def train_step(
    model: nn.Module,
    objective: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    micro_batches: Iterable[tuple[Tensor, Tensor]],
    accumulation_steps: int,
    args: Namespace,
) -> Tensor:
    """Trains one step on this replica's `accumulation_steps` batches (inputs, target), each in
    --microbatches. Returns the sums of what criterion() measured, zeros but on the last stage."""
    pipeline, device = model.pipeline, model.pipeline.device
    sums = torch.zeros(len(SUMS), dtype=devices.exact_dtype(device), device=device)

    def loss_of(output, target):
        with precision(args, output.device):
            loss, measured = objective(output, target)
        sums.add_(measured)
        return scaler.scale(loss / (accumulation_steps * args.microbatches))

    pipeline.loss = loss_of
    for inputs, target in micro_batches:
        given = [inputs] if pipeline.first else []
        wanted = {"target": target} if pipeline.last else {}
        pipeline.train.step(*given, **wanted, return_outputs=False)
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    gradients = gradients or [torch.zeros(1, device=device)]  # a rank's stages may be frozen
    if pipeline.replicas.size() > 1:
        _average(gradients, pipeline.replicas)
    if scaler.is_enabled():  # if one stage overflows, all skip
        scaler.unscale_(optimizer)
        found = scaler._found_inf_per_device(optimizer)
        found.setdefault(device, torch.zeros(1, device=device))  # without gradients it has none
        for each in found.values():
            dist.all_reduce(each)
    if args.clip_grad:
        clip_gradients(gradients, args.clip_grad, functools.partial(_sum, group=pipeline.stages))
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return sums


def _average(gradients, group):
    """Averages the gradients over replicas, in one all-reduce."""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    means = flat.div_(group.size()).split([gradient.numel() for gradient in gradients])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))


def validate_step(
    model: nn.Module,
    objective: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    inputs: Tensor,
    target: Tensor,
    args: Namespace,
) -> Tensor:
    """Returns the sums of one validation batch, on the last stage; the others' are zeros."""
    pipeline = model.pipeline
    # Stages have a fixed batch size.
    missing = pipeline.batch - len(inputs)
    padded = nn.functional.pad(inputs, (0, 0) * (inputs.ndim - 1) + (0, missing))
    output = pipeline.validate.eval(*([padded] if pipeline.first else []))
    if not pipeline.last:
        return torch.zeros(
            len(SUMS), dtype=devices.exact_dtype(inputs.device), device=inputs.device
        )
    with precision(args, inputs.device):
        return objective(output[: len(inputs)], target)[1]


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Returns the sum of all ranks' tensors, the same on every rank; this rank may hold none."""
    if tensor.is_meta:
        device = dist.distributed_c10d._get_object_coll_device()  # which the backend sends from
        tensor = torch.zeros_like(tensor, device=device)
    return _sum(tensor)


def _sum(tensor, group=None):
    total = tensor.clone()
    dist.all_reduce(total, group=group)
    return total


def broadcast_object(value: object) -> Any:
    """Returns rank 0's small value on every rank, as JSON, or raises what ended rank 0."""
    return store_broadcast.broadcast_value(value)


def tell_others(line: str, status: int) -> None:
    """Sends why rank 0 ends to ranks that wait for its value."""
    store_broadcast.broadcast_end(line, status)


def trained_state(run: Run) -> dict[str, Tensor]:
    """Returns the model's state dict, with the tensors that the optimizer updates, not copies. A
    tensor that another rank holds is on the meta device: it has a shape, but no values."""
    return run.model.state_dict()


def full_state(run: Run) -> dict:
    """Returns {state_dict, optimizer, ema} on rank 0: complete, in float32, on the CPU."""

    def gathered(tree, source=None):
        if isinstance(tree, dict):
            return {key: gathered(tree[key], holder.get(key, source)) for key in tree}
        tensor = _sent(tree, source, run.place) if isinstance(tree, torch.Tensor) else tree
        return state_trees.in_float32(tensor) if run.place.rank == 0 else None

    optimizer = run.optimizer.state_dict()
    holder = run.model.pipeline.holder
    weights = [weight for group in run.optimizer.param_groups for weight in group["params"]]
    names = {weight: name for name, weight in run.model.named_parameters()}
    # The optimizer's state has numbers for names.
    holder = holder | {number: holder[names[weight]] for number, weight in enumerate(weights)}
    return gathered({"state_dict": trained_state(run), "ema": run.ema, "optimizer": optimizer})


def load_state(run: Run, state: dict | None) -> None:
    """Loads what full_state() returned; each rank takes what it holds. An evaluation has no
    optimizer's state."""
    if not run.args.evaluate:
        make_optimizer_state(run.optimizer)
    for tensor, saved in state_trees.saved_pairs(run.optimizer, trained_state(run), run.ema, state):
        tensor.copy_(_sent(tensor, 0, run.place, saved))


def _sent(tensor, source, place, value=None):
    """Returns rank `source`'s tensor, or its `value`, on all ranks."""
    sent = torch.empty(tensor.shape, dtype=tensor.dtype, device=place.device)
    if place.rank == source:
        sent.copy_(tensor if value is None else value)
    dist.broadcast(sent, source)
    return sent


def cleanup() -> None:
    """Closes the group, if there is one."""
    dist.destroy_process_group()


# ==== loop: how steps become a run that validates, saves and ends; equal in all scripts
#
# train() alternates train_one_epoch() and validate() until the run ends. A Run is what lives from
# step to step; its Place says which of the ranks this process is. Before train(), main() has read
# the options, launch() has started the ranks, and build_run() has made data, model, optimizer and
# log. Options that all scripts have, such as --output-dir and --seed, are in
# trainparts/run_options.py.
#
# Rank 0 writes into the run's folder: checkpoint.pt, the two before it (checkpoint-1.pt and -2.pt),
# model_best.pt, epoch-N.pt of --keep-every, TensorBoard's log, PREEMPTED after a signal, and .lock.
# To resume, build_run() loads the newest intact checkpoint in --output-dir; if there is none, a new
# run begins from --resume's. Both have what make_checkpoint() lists: model, optimizer, loss scale,
# averages, epoch and step, the best values, and the sums and the clock of an interrupted epoch.
# Under --evaluate, no run is written: validate(), instead of train(), measures --resume's
# checkpoint, or else the newest intact one in --output-dir. That is checkpoint.pt; it is
# model_best.pt only if checkpoint.pt is damaged or missing and no other file is newer. If the
# checkpoint has averages of --ema, these are evaluated, whatever is typed.
#
# Two rules hold everywhere:
# - What must not depend on the number of ranks is a function of seed, epoch and step: the order of
#   the data (schedule_batches()), augmentation, the learning rate. So a run resumes by beginning at
#   a step. Only dropout also depends on the rank: each draws for its part of a batch or a model.
# - What ranks must decide together, such as to save or to stop, is summed over them with the step's
#   losses in queue_step(). All ranks read the same sums one step later, and act alike. Before the
#   first step, rank 0 decides, and sends it by broadcast_object().


class Place(NamedTuple):
    """Where this process stands among those that train together."""

    device: torch.device
    rank: int = 0  # of this process, among all
    ranks: int = 1  # processes in all
    local_rank: int = 0  # of this process, among those on this node
    local_ranks: int = 1  # processes on this node
    devices: int = 1  # used by this process
    data_rank: int = 0  # which slice of every global batch this process trains on
    data_ranks: int = 1  # slices
    precision: str | None = None  # if it depends on the device, and not on an option alone


@dataclasses.dataclass
class Run:
    """The state of a training run."""

    args: Namespace
    place: Place
    data: Data
    options: dict  # those that define what is trained
    epoch: int = 0  # epochs done
    step: int = 0  # steps done in the current epoch
    no_more_steps: bool = False  # the run has ended or its budget is spent: no step is trained
    interrupted: bool = False  # a rank got a signal: the run saves, and its processes exit
    save_due: bool = False  # it is time for a checkpoint: the run saves, and continues
    model: nn.Module = dataclasses.field(init=False)  # this and the next two are prepare()'s
    optimizer: torch.optim.Optimizer = dataclasses.field(init=False)
    scaler: Any = dataclasses.field(init=False)  # torch.amp.GradScaler, or one with its methods
    scale: float = 1.0  # the loss scale after the last step that was counted
    ema: dict = dataclasses.field(default_factory=dict)  # --ema's averages of the state dict
    batches: Iterator[batch_plan.OnDevice] = dataclasses.field(init=False)  # to the run's end
    data_waits: list = dataclasses.field(default_factory=list)  # seconds, for a step's batches
    pending: list = dataclasses.field(default_factory=list)  # steps' sums and flags, not yet read
    meter: progress_meter.Meter | None = None  # of the current epoch's training
    partial: dict | None = None  # sums and clock of an interrupted epoch, until its meter has them
    signals: list = dataclasses.field(default_factory=list)  # (name, time) of those that end it
    folder: Path | None = None  # for checkpoints and logs; only rank 0 writes there
    log: SummaryWriter | None = None  # on rank 0
    epochs_logged: list = dataclasses.field(default_factory=list)  # from 1, before it was resumed
    # {tag: the best value so far}, at first the worst that BEST lists.
    best: dict = dataclasses.field(default_factory=lambda: {tag: BEST[tag][1] for tag in BEST})
    monitor: str | None = None  # what selected model_best.pt before the run was resumed
    stale_epochs: int = 0  # since --best improved
    saved_at: float = 0.0  # monotonic() when the last checkpoint was begun
    started: float = 0.0  # perf_counter() at the start, minus the checkpoint's seconds
    deadline: float = math.inf  # perf_counter() when --budget-hours are over
    peak_share: float = math.nan  # of its devices' peak, that one item a second takes; on rank 0


def train(run):
    """Trains until --epochs, --desired, --patience or --budget-hours; saves and logs each epoch."""
    args = run.args
    monitor = monitor_of(args)  # the measure that selects the best model
    reason, val = None, {}  # why the run ends before --epochs; the values of the last epoch
    # A resumed run may have no budget left. The clocks of ranks differ, so rank 0's decides.
    run.no_more_steps = broadcast_object(time.perf_counter() > run.deadline)
    # An epoch that was interrupted (run.step > 0) is validated even if the budget is spent.
    while run.epoch < args.epochs and (run.step or not run.no_more_steps):
        began = run.step
        values = train_one_epoch(run)
        # Saved before validation, so that nothing is lost while it runs: a run that resumes here
        # trains no step of this epoch, and validates again.
        save_checkpoint(run)
        val = validate(run)
        reason = judge(run, val)
        if val[monitor] == run.best[monitor]:  # judge() has updated the best; equal epochs count
            save_best(run)
        if run.log:
            log_epoch(run, values, val, trained=run.step > began)
        run.no_more_steps |= reason is not None
        if run.no_more_steps:
            break
        run.epoch, run.step = run.epoch + 1, 0
    if run.log:
        log_end(run, reason, val)


def judge(run, val):
    """Updates the best values; returns why the run ends here, as all of --desired is reached or
    --patience is over, or None. All ranks have the same sums, so all of them return the same."""
    monitor = monitor_of(run.args)
    if run.monitor not in (None, monitor):  # the best by another measure is replaced
        run.best, run.stale_epochs = {tag: BEST[tag][1] for tag in BEST}, 0
    run.monitor = monitor
    before, goals, met = run.best[monitor], dict(run.args.desired), []
    for tag, (_name, worst, ideal) in BEST.items():
        better = max if ideal > worst else min
        run.best[tag] = better(run.best[tag], val.get(tag, worst))
        if tag in goals:
            met.append(better(val[tag], goals[tag]) == val[tag])  # as good as the goal, or better
    run.stale_epochs = 0 if run.best[monitor] != before else run.stale_epochs + 1
    if met and all(met):
        return "target reached"
    if run.stale_epochs >= (run.args.patience or math.inf):
        return f"no better {monitor.lower()} in {run.stale_epochs} epochs"
    return None


def monitor_of(args):
    """Returns the tag that selects model_best.pt: --best, the first --desired, or BEST's first."""
    if args.best:
        return next(tag for tag in BEST if tag.lower() == args.best)
    return args.desired[0][0] if args.desired else next(iter(BEST))


def train_one_epoch(run):
    """Trains from run.step to the end of the epoch; returns {tag: value}."""
    args, data, epoch = run.args, run.data, run.epoch
    peak = peak_learning_rate(args, data.global_batch)
    objective = functools.partial(criterion, args=args)  # label smoothing and the like
    accumulation = data.accumulation_steps
    run.model.train()
    title, total = f"{epoch + 1}/{args.epochs}", data.steps * data.global_batch
    # An epoch that resumes in its middle continues its sums and its clock.
    rank, device = run.place.rank, run.place.device
    run.meter = progress_meter.Meter(
        title, total, ITEMS, rank, device, steps=run.step, state=run.partial
    )
    run.partial = None
    run.data_waits.clear()
    rate = run.optimizer.param_groups[0]["lr"]  # if no step is left, the checkpoint's
    # This timer ends the process if no step within --timeout starts it again.
    endings.arm_timeout(args.timeout, compiles=args.compile)
    for step in range(run.step, data.steps):
        if run.no_more_steps:
            break
        # Not a list, because all micro-batches of a step may not fit on the device at once.
        micro_batches = (next_batch(run, "train", epoch) for _ in range(accumulation))
        # The learning rate is that of the step's middle, so that neither the first step of the
        # warm-up nor the last one of a decay is lost at a rate of 0.
        rate = learning_rate(args, peak, epoch + (step + 0.5) / data.steps)
        for group in run.optimizer.param_groups:
            group["lr"] = rate * group.get("lr_scale", 1)  # timm's name
        # Dropout draws from this seed, so a resumed run draws what an uninterrupted one does.
        seed = devices.seed_from(args.seed, epoch, step, run.place.rank)
        devices.seed_generators(seed, run.place.device)
        sums = train_step(
            run.model, objective, run.optimizer, run.scaler, micro_batches, accumulation, args
        )
        run.step = step + 1
        if run.ema:
            update_ema(run)
        queue_step(run, run.meter, sums)
    count_queued_steps(run, run.meter)
    run.meter.bar.close()
    return values_of(run.meter) | {"Lr": rate}  # of the last step that was trained


@torch.no_grad()
def update_ema(run):
    """Updates the averages of --ema after a step: in each of the first 32 steps, then in every
    32nd, as in published recipes, so --ema is a decay per 32 steps."""
    done = run.epoch * run.data.steps + run.step
    if done > 32 and done % 32:
        return
    # In the first 32 steps and in warm-up they are copies of the weights, because early weights
    # would stay in them for long.
    early = done <= 32 or run.epoch < warmup_epochs(run.args)
    decay = 0 if early else run.args.ema
    for average, tensor in zip(run.ema.values(), trained_state(run).values(), strict=True):
        average.lerp_(tensor.to(average.dtype), 1 - decay)


def next_batch(run, *wanted):
    """Returns the next (inputs, target) of ("train", epoch) or ("val", None)."""
    # When the budget ends an epoch early, some of its batches have been loaded already: skip these.
    for split, epoch, inputs, target in run.batches:
        if (split, epoch) == wanted:
            return inputs, target
    raise RuntimeError(f"the schedule has no more batches of {wanted}")


def schedule_batches(args, place, data, first_epoch, first_step, over):
    """Yields what this data rank loads, from an epoch and a step of it to the end of the run, or
    until over() is true: ("train", epoch, position, keys), accumulation_steps times per step, and
    ("val", None, number, keys) for each validation batch, as many on all data ranks.

    The order of an epoch is one permutation from (seed, epoch). Step k takes its positions [k *
    global_batch, (k + 1) * global_batch) with any number of ranks; an incomplete last batch is
    dropped. In validation every item is in one batch of one data rank: a sampler that pads, or
    drops the last batch, would measure another set with 3 ranks than with 2. A key is an item and
    the number of its repeat in a step: key % items is the index of the item, key // items the
    number. `position` is that of the first key among all keys of the epoch.
    """
    distinct = data.global_batch // data.repeats  # items in a step, of all ranks
    mine = data.global_batch // place.data_ranks  # keys of this data rank in a step
    at_once = data.device_batch * place.devices  # keys of one batch of this process
    val_keys = range(place.data_rank, len(data.val.target), place.data_ranks)
    # Once at least: --evaluate may have a checkpoint of more epochs than --epochs.
    for epoch in range(first_epoch, max(args.epochs, first_epoch + 1)):
        generator = torch.Generator().manual_seed(devices.seed_from(args.seed, epoch))
        order = torch.randperm(len(data.train.target), generator=generator).numpy()
        for step in range(first_step, data.steps):
            if over():
                break
            # A slice of one order for any number of ranks; each sampler would have its own order.
            items = order[step * distinct : (step + 1) * distinct]
            keys = np.concatenate([items + len(order) * n for n in range(data.repeats)])
            for first in range(place.data_rank * mine, (place.data_rank + 1) * mine, at_once):
                micro_batch = keys[first : first + at_once].tolist()
                yield "train", epoch, step * data.global_batch + first, micro_batch
        for number in range(val_steps(place, data)):
            yield "val", None, number, val_keys[number * at_once : (number + 1) * at_once]
        if over():
            break
        first_step = 0


def steps_per_epoch(args, source, global_batch):
    """Returns the number of steps in an epoch of training on `source`."""
    size = len(source.target)
    if size < global_batch and not args.evaluate:
        few = f"training has {size} {ITEMS}, fewer than a global batch, {global_batch}"
        raise errors.BadInput(f"{few}: lower -b or --accumulation, or use fewer devices")
    return min(size // global_batch, args.steps_per_epoch or size)


def val_steps(place, data):
    """Returns the number of validation batches of a data rank, the same on all of them."""
    at_once = data.device_batch * place.devices
    return math.ceil(len(data.val.target) / place.data_ranks / at_once)


@torch.no_grad()
def validate(run):
    """Evaluates the model, under --ema its averages, on each item of val/ once; returns {tag:
    value}. Under --evaluate, load_checkpoint() has given the model the averages."""
    run.model.eval()
    # The forward pass reads these. trained_state() may have others, such as float32 masters.
    tensors = [*run.model.state_dict().values()] if run.ema else []
    trained = [tensor.clone() for tensor in tensors]  # kept while the model has the averages
    for tensor, average in zip(tensors, run.ema.values(), strict=True):
        tensor.copy_(average)
    sync_statistics(run)
    rank, device = run.place.rank, run.place.device
    meter = progress_meter.Meter("val", len(run.data.val.target), ITEMS, rank, device)
    run.data_waits.clear()
    endings.arm_timeout(run.args.timeout, compiles=run.args.compile)
    for _ in range(val_steps(run.place, run.data)):
        inputs, target = next_batch(run, "val", None)
        empty = len(target) == 0  # other ranks have one more item, and may need this rank
        if empty:
            inputs = inputs.new_zeros(1, *inputs.shape[1:])
            target = target.new_zeros(1, *target.shape[1:])
        sums = validate_step(run.model, criterion, inputs, target, run.args)
        queue_step(run, meter, torch.zeros_like(sums) if empty else sums)
    count_queued_steps(run, meter)
    meter.bar.close()
    if meter.sums[ITEMS] != len(run.data.val.target):  # accuracy would depend on the ranks
        raise RuntimeError(f"validated {meter.sums[ITEMS]:.0f} {ITEMS}, not each once")
    for tensor, value in zip(tensors, trained, strict=True):
        tensor.copy_(value)
    return values_of(meter)


def values_of(meter):
    """Returns {tag: value} of the steps that a meter has counted, over all ranks."""
    return compute_metrics(meter.sums) | meter.rates()


@torch.no_grad()
def sync_statistics(run):
    """Gives all ranks BatchNorm's running statistics of data rank 0."""
    # Each rank has statistics of its own slices, which training never reads. Those of data rank 0
    # are in the checkpoint, so a resumed run validates the same model as this one. They are sent by
    # a sum to which other data ranks give zeros, not by a broadcast from rank 0: where ranks share
    # a model, another of them may hold this buffer.
    for buffer in run.model.buffers():
        if buffer.is_floating_point():
            if run.place.data_rank:
                buffer.zero_()
            buffer.copy_(all_reduce_sum(buffer))


# What ranks sum in a step besides the task's SUMS: the loss scale after it, the seconds waited for
# data, and how many want to stop because of a signal, to save, or to end because the budget is
# spent.
FLAGS = ("scale", "waited", "interrupted", "save_due", "budget_spent")


def queue_step(run, meter, sums):
    """Adds up this step's sums and flags over all ranks, and counts the step before; saves or
    stops, if a rank wants to."""
    # The host reads a step's sums when the next step is queued, so that the device has work
    # meanwhile. All ranks read the same sums at the same step, so all take the same decisions.
    cuda = sums.device.type == "cuda"
    waited = sum(run.data_waits) / run.place.ranks  # seconds, a mean over ranks
    run.data_waits.clear()
    training = meter is run.meter
    stop = bool(run.signals)
    save = training and 0 < 60 * run.args.checkpoint_minutes < time.monotonic() - run.saved_at
    spent = time.perf_counter() > run.deadline
    flags = torch.tensor([waited, stop, save, spent], dtype=sums.dtype)
    flags = flags.to(sums.device, non_blocking=cuda)
    scale = run.scaler.scale(sums.new_ones(1))  # get_scale() would wait for the device
    # One all-reduce for all: one more for the flags would cost a round trip per step.
    total = all_reduce_sum(torch.cat([sums, scale, flags])).to("cpu", non_blocking=cuda)
    copied = None
    if cuda:
        # Waiting for this event waits only for the copy, not for the next step; without `blocking`
        # the wait would use a core.
        copied = torch.cuda.Event(blocking=True)
        copied.record()
    run.pending.append((total, copied))
    if len(run.pending) > 1:
        count_oldest_step(run, meter)
    if run.interrupted or run.save_due:  # on all ranks, as they have read the same sums
        count_queued_steps(run, meter)
    endings.arm_timeout(run.args.timeout, compiles=run.args.compile)


def count_oldest_step(run, meter):
    """Counts the oldest step whose sums have not been read, and reads what ranks want."""
    total, copied = run.pending.pop(0)
    if copied:
        # Sync point: waits for this step. The next one is queued, except when count_queued_steps()
        # calls this function.
        copied.synchronize()
    step = dict(zip((*SUMS, *FLAGS), total.tolist(), strict=True))
    scale = step.pop("scale") / run.place.ranks  # which have the same
    # A dynamic scale is lower after a step whose gradients overflowed: that step was skipped.
    step["skipped"] = float(scale < 0.9 * run.scale)  # a mean is rounded
    run.scale = scale
    run.interrupted |= step.pop("interrupted") > 0
    run.save_due |= step.pop("save_due") > 0
    run.no_more_steps |= step.pop("budget_spent") > 0
    meter.add(step)
    loss = compute_metrics(step)["Loss"]
    check_numbers(run, meter, loss, step["skipped"])
    if (meter.steps - 1) % run.args.print_freq == 0:
        meter.show(loss)
        if run.log and meter is run.meter:
            meter.report(loss, format_metrics(compute_metrics(meter.sums)))
            run.log.add_scalar("Loss/step", loss, run.epoch * run.data.steps + meter.steps - 1)


def check_numbers(run, meter, loss, skipped):
    """Raises BadInput if a loss is not finite, or if gradients overflow at any loss scale."""
    at = f"{meter.title}, step {meter.steps}"
    if not math.isfinite(loss):
        why = "lower --lr; old checkpoints are intact"
        if run.args.evaluate:
            why = "these weights do not give numbers"
        raise errors.BadInput(f"the loss is not finite ({at}): {why}")
    # At a scale of 1 only gradients that are NaN, or themselves too large for float16, overflow. A
    # lower scale is of no use then: it would go on falling, to 0, and no step would train.
    if skipped and run.scale < 1:
        at += f": loss scale {run.scale:g}"
        why = "gradients are NaN or infinite at any loss scale"
        raise errors.BadInput(f"{why} ({at}): use bfloat16 or float32; old checkpoints are intact")


def count_queued_steps(run, meter):
    """Counts all steps; model, optimizer and sums then belong to the same step on all ranks. Saves
    or stops, if a rank wants to."""
    if not run.pending:  # resumed after its last step, an epoch keeps the checkpoint's time
        return
    while run.pending:
        count_oldest_step(run, meter)
    meter.read_clock()
    save_or_end(run, training=meter is run.meter)


def save_or_end(run, training):
    """Saves, and ends the run, as ranks want to; between two steps of `training` or validation."""
    if (run.interrupted or run.save_due) and training:  # in validation everything is saved already
        save_checkpoint(run)
    run.save_due = False
    if run.interrupted:
        end_early(run)


def end_early(run):
    """Ends the run because of a signal to any rank, after everything was saved. A Ctrl-C that comes
    more than a second after another does not come here: on_signal() ends the process at once."""
    why = run.signals[0][0] if run.signals else "a signal to another rank"
    saved = "; nothing is saved"  # under --evaluate
    if run.log:
        how = run_messages.how_to_resume(run.args.output_dir, run.folder)
        saved = f" at step {run.step}, saved; {how}"
        run_folder.mark_preempted(run.folder, why, run.epoch, run.step)
        run.log.close()
    if run.place.rank == 0:
        errors.print_line(f"stopped by {why}{saved}")
    sys.exit(143)  # the status after SIGTERM


def save_checkpoint(run):
    """Saves checkpoint.pt on rank 0. Every rank calls it."""
    run.saved_at = time.monotonic()
    checkpoint = make_checkpoint(run)
    if run.log:  # only after all ranks have given what they hold
        checkpointing.write_newest(
            run.folder, checkpoint=checkpoint, keep_every=run.args.keep_every
        )


def save_best(run):
    """Saves model_best.pt on rank 0: the checkpoint, with the averages as weights under --ema.
    Every rank calls it."""
    # Made again, because keeping it through validation would take as much memory as the model and
    # the optimizer, and reading it back would depend on the disk.
    saved = make_checkpoint(run)
    if run.log is None:
        return
    # A run that resumes from this file validates this epoch again. judge() then finds nothing
    # better than the best, which is this epoch's own, and adds 1: from -1 that is 0, as here.
    saved["stale_epochs"] = -1
    if run.ema:
        saved |= {"state_dict": saved["ema"], "trained": saved["state_dict"]}
    checkpointing.write_best(run.folder, checkpoint=saved)


def make_checkpoint(run):
    """Returns what a checkpoint has, with pytorch/examples' names; complete on rank 0. Every rank
    calls it, because each gives what it holds."""
    endings.arm_timeout(run.args.timeout, compiles=run.args.compile)
    # After an epoch's last step, this is step 0 of the next one. where_to_resume() turns that back
    # into all steps of this epoch: so it trains none of them, and validates it.
    epoch, step = divmod(run.epoch * run.data.steps + run.step, run.data.steps)
    return {
        **about_model(run.args, run.data),
        "epoch": epoch,
        "step": step,
        "global_batch": run.data.global_batch,
        "peak_lr": peak_learning_rate(run.args, run.data.global_batch),
        "partial": run.meter.state,
        "scaler": run.scaler.state_dict(),
        **{name: run.best[tag] for tag, (name, *_) in BEST.items()},
        "monitor": run.monitor or monitor_of(run.args),
        "stale_epochs": run.stale_epochs,
        "seconds": time.perf_counter() - run.started,
        "trainparts": package_digest.IDENTITY,
        "args": vars(run.args) | run.options,
        "not_default": run_options.not_default(run.options, make_parser()),
        **full_state(run),
    }


def restore(run, metadata, tensors):
    """Loads a checkpoint's state on all ranks. What options say, such as the weight decay, stays as
    typed: in --output-dir that is as before, or build_run() has ended the run. `metadata` has what
    make_checkpoint() saved, and load_checkpoint()'s additions: `path`; `in_place`, whether the file
    is of this run; and `group`, the learning rate, and the count of steps that some of timm's
    optimizers keep in their groups. load_state() changes both, so they are set again."""
    # Read before load_state(): there, _rehearse() in some scripts trains steps on noise, which
    # change the loss scale. Another script's checkpoint may lack some of the scaler's entries.
    scaler = run.scaler.state_dict() | metadata["scaler"]
    load_state(run, tensors)
    for group in run.optimizer.param_groups:
        for name in metadata["group"].keys() & group.keys():
            value = metadata["group"][name]
            if torch.is_tensor(group[name]):  # timm's count of steps, in newer releases
                group[name].fill_(value)
            else:
                group[name] = value
    run.scaler.load_state_dict(scaler)
    if metadata["in_place"]:  # the best of another run is not this one's
        run.best = {tag: metadata.get(name, worst) for tag, (name, worst, _) in BEST.items()}
        run.stale_epochs = metadata.get("stale_epochs", 0)
        run.monitor, monitor = metadata.get("monitor"), monitor_of(run.args)
        if run.monitor != monitor and run.place.rank == 0:
            names = str(run.monitor).lower(), f"the best {monitor.lower()} from here on"
            errors.print_line("model_best.pt is the best {}; {} replaces it".format(*names))


def log_epoch(run, training, val, trained):
    """Logs an epoch, or the part of it before the budget was spent, and prints its line. No step is
    `trained` if the run was resumed after the epoch's last one: then the log may have it."""
    done = epochs_done(run)
    # Of training only: the learning rate, and what Meter.rates() has of waiting, skips and traffic.
    alone = (tag for tag in training if tag == "Lr" or "/" in tag)
    values = {tag: training[tag] for tag in alone if math.isfinite(training[tag])}
    for tag in LOGGED:
        if tag in val:
            values |= {f"{tag}/train": training[tag], f"{tag}/val": val[tag]}
    of_peak = ""
    if math.isfinite(run.peak_share):
        values["MFU/train"] = 100 * training["Throughput"] * run.peak_share  # in %
        of_peak = f"{values['MFU/train']:.1f} % of the peak  "
    if trained or math.ceil(done) not in run.epochs_logged:
        event_log.log_epoch_values(run.log, values, math.ceil(done))
    seconds = (time.perf_counter() - run.started) / done
    left = datetime.timedelta(seconds=round(seconds * (run.args.epochs - done)))
    skipped = training["Steps/skipped"]
    skips = f"{skipped:,.0f} steps skipped  " if skipped else ""
    errors.print_line(
        f"{round(done, 2):g}/{run.args.epochs}  train loss {training['Loss']:.2f}  "
        f"val {format_metrics(val)}  {training['Throughput']:,.0f} {ITEMS}/s  {of_peak}{skips}"
        f"left {left}"
    )


def log_end(run, reason, val):
    """Logs and prints why a run ended, and what it reached: a `reason` before --epochs, or None."""
    done, monitor = epochs_done(run), monitor_of(run.args)
    seconds = time.perf_counter() - run.started
    if reason is None:
        reason = "the budget is spent" if done < run.args.epochs else "all epochs are done"
    end = {"reason": reason, "epochs": done, "seconds": seconds, "until": ends_by(run.args)}
    end |= {f"best_{tag.lower()}": run.best[tag] for tag in BEST if tag in val}
    run.log.add_text("end", f"```json\n{json.dumps(end, indent=1)}\n```")
    run.log.close()
    took = datetime.timedelta(seconds=round(seconds))
    line = f"{reason}: {round(done, 2):g}/{run.args.epochs} epochs in {took} (h:m:s)"
    if val:
        best = format_metrics({monitor: run.best[monitor]}, 3)
        line += f"; {format_metrics(val, 3)}; model_best.pt: {best}"
    errors.print_line(line)
    if done < run.args.epochs:
        options = {"target reached": "--desired", "the budget is spent": "--budget-hours"}
        change = f"To train longer, change {options.get(reason, '--patience')}"
        how = run_messages.how_to_resume(run.args.output_dir, run.folder)
        errors.print_line(f"{change}; {how}")


def epochs_done(run):
    """Returns the epochs that a run has trained, such as 29.5."""
    return run.epoch + run.step / run.data.steps


def ends_by(args):
    """Returns the options that decide when a run ends: a run that has ended stays so unless they
    change."""
    return {name: getattr(args, name) for name in run_options.ENDS_BY}


# ==== task: what is trained and measured; equal in all text_*.py

# -------------------------------------------------------------------------------------------- model


def build_model(args: Namespace, data: Data, load: bool = True) -> nn.Module:
    """Returns the model `-a` in float32 on the CPU, if `load` with FOLDER's or FILE's weights."""
    load = load and not data.from_checkpoint
    if args.task == "lm":
        sizes = data.train.vocabulary, args.max_length
        model = GPT(*sizes, args.dropout or 0.0, **data.model_options)
    else:
        names = CLASSES.get(args.task, GLUE[args.task][2])
        labels = data.labels or names
        order = [labels.index(name) for name in names]
        model = Classifier(build_encoder(args, data, load and not args.weights), order)
        config = model.encoder.config
        lines = hf_folders.try_out(
            model,
            data.train,
            arch=args.arch,
            max_length=args.max_length,
            positions=getattr(config, "max_position_embeddings", args.max_length),
            dropout=args.dropout,
        )
        print_once(*lines)
    if load and args.weights:
        load_fitting_weights(model, args, data)
    if args.compile:
        # Or, after another length, all later batches would run a slower graph.
        model.compile(mode=args.compile_mode, dynamic=False)
    return model


class GPT(nn.Module):
    """GPT-2 (Radford et al. 2019) without biases; tied, it is nanoGPT."""

    def __init__(self, vocabulary, length, dropout, layers, hidden_size, heads, tied):
        super().__init__()
        self.token = nn.Embedding(vocabulary, hidden_size)
        self.position = nn.Parameter(torch.empty(length, hidden_size))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(hidden_size, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden_size, bias=False)
        self.head = nn.Linear(hidden_size, vocabulary, bias=False)
        self.tied = tied
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02)
            # The sum of 2 x layers branches then has the size of one of them (section 2.3).
            if name.endswith(".3.weight"):
                weight.data /= math.sqrt(2 * layers)
        self.tie_weights()

    def tie_weights(self):
        """Makes embedding and output layer share one weight, under --tied."""
        if self.tied:
            self.head.weight = self.token.weight

    def group_matcher(self, coarse=False):
        """Returns patterns of the names in each layer, for --layer-decay; the rest is last."""
        return {"stem": "token|position", "blocks": r"blocks\.(\d+)"}

    def forward(self, tokens):
        """Takes tokens (N, L), returns logits (N, L, vocabulary)."""
        x = self.dropout(self.token(tokens) + self.position[: tokens.shape[1]])
        return self.head(self.norm(self.blocks(x)))


class Block(nn.Module):
    """Attention, then two linear layers, each with a residual connection."""

    def __init__(self, width, heads, dropout):
        super().__init__()

        def branch(wide, between, narrow):
            # Linear width -> wide, `between` wide -> narrow, linear narrow -> width. `last` is made
            # first, and so draws its random weights first.
            norm = nn.LayerNorm(width, bias=False)
            last = nn.Linear(narrow, width, bias=False)
            first = nn.Linear(width, wide, bias=False)
            return nn.Sequential(norm, first, between, last, nn.Dropout(dropout))

        self.attention = branch(3 * width, CausalAttention(heads, dropout), width)
        self.mlp = branch(4 * width, nn.GELU(), 4 * width)

    def forward(self, x):
        """Takes and returns (N, L, width)."""
        x = x + self.attention(x)
        return x + self.mlp(x)


class CausalAttention(nn.Module):
    """Attention of each token to itself and those before it."""

    # It has no children, so a pipeline keeps it in one piece, and reads `training` in each step.
    def __init__(self, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout

    def forward(self, x):
        """Takes (N, L, 3 x width), queries, keys and values; returns (N, L, width)."""
        q, k, v = x.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (N, heads, L, size)
        options = {"dropout_p": self.dropout * self.training, "is_causal": True}
        x = nn.functional.scaled_dot_product_attention(q, k, v, **options)
        return x.transpose(1, 2).flatten(2)


def build_encoder(args, data, load):
    """Returns -a with a classifier on top, with random weights or FOLDER's."""
    config = build_config(args, data)
    if args.arch in ARCHS or args.from_scratch or not load:
        model = hf_folders.new_encoder(args.arch, config)  # whatever FOLDER's is
    else:
        model, lines = hf_folders.load_encoder(args.arch, config, args.evaluate)
        print_once(*lines)
    if args.dropout is not None:
        hf_folders.set_dropout(model, args.dropout)
    return model


def build_config(args, data):
    """Returns transformers' configuration of -a; raises BadInput if it does not fit the data."""
    if args.arch in ARCHS:
        width = args.hidden_size
        sizes = {"num_hidden_layers": args.layers, "num_attention_heads": args.heads}
        sizes |= {"hidden_size": width, "embedding_size": width}
        sizes |= {"intermediate_size": 4 * width, "hidden_dim": 4 * width}  # DistilBERT's name
        sizes |= {"vocab_size": data.train.vocabulary, "pad_token_id": data.train.pad}
        sizes |= {"max_position_embeddings": args.max_length + 2}  # RoBERTa does not use two
        # BERT's 0.02 is for a width of 768; with it, narrower models would learn slowly.
        config = hf_folders.make_config(args.arch, sizes | {"initializer_range": width**-0.5})
    else:
        config = hf_folders.read_config(args.arch)
    hf_folders.adapt_config(
        config,
        args.arch,
        labels=data.labels,
        vocabulary=data.train.vocabulary,
        same=bool(args.tokenizer),
        dropout=args.dropout,
    )
    return config


class Classifier(nn.Module):
    """An encoder of transformers that takes the one tensor of load_batches()."""

    def __init__(self, encoder, order):
        super().__init__()
        self.encoder = encoder
        self.order = order  # of the encoder's outputs, so that they are the task's classes

    def group_matcher(self, coarse=False):
        """Returns patterns of the names in each layer, for --layer-decay; the rest is last."""
        return {"stem": r".*(?:emb|wte|wpe)", "blocks": r".*?\.(\d+)\."}

    def forward(self, inputs):
        """Takes (N, L + 1), returns logits (N, classes)."""
        tokens, second = inputs[:, :-1], inputs[:, -1:]
        mask = tokens >= 0
        config = self.encoder.config
        given = {"input_ids": tokens.where(mask, config.pad_token_id)}
        if getattr(config, "type_vocab_size", 1) > 1:
            given["token_type_ids"] = (mask & (mask.cumsum(dim=1) > second)).long()
        logits = self.encoder(attention_mask=mask.long(), **given).logits
        return logits if self.order == sorted(self.order) else logits[:, self.order]


def load_fitting_weights(model, args, data):
    """Loads the weights of --weights FILE that fit, and prints the names of the others, such as
    those of another task's last layer. If FILE has more positions than --max-length, the first are
    taken. Raises BadInput if FILE is a checkpoint of these scripts for another model. To evaluate,
    also raises it if FILE is of another task, or if not all weights fit."""
    what, saved = f"--weights {args.weights}", safe_files.load_file(args.weights)
    saved = saved if isinstance(saved, dict) else {}
    about = about_model(args, data)
    free = {"max_length", "labels"}  # which open_data() has believed
    if not args.evaluate:
        free |= {"task"}
    if saved.get("tokenizer") is None:  # of files without a digest
        free |= {"tokenizer"}
    if "model_options" in saved:
        mine = {name: about[name] for name in MUST_FIT if about[name] and name not in free}
        if found := checkpointing.list_differences(saved, mine):
            raise errors.BadInput(f"{what} differs in {found}")
    held, weights = text_weights.find_weights(saved)
    if args.task != "lm" and not model.state_dict().keys() & weights.keys():
        weights = {f"encoder.{name}": weights[name] for name in weights}  # as Hugging Face has them
    weights = text_weights.cut_positions(weights, model, args.max_length, what)
    lines = text_weights.load_fitting(model, weights, what, content=saved, evaluate=args.evaluate)
    print_once(*lines)
    if held == "ema":
        print_once(f"{what}: its averages, ema, are taken")


def print_once(*lines):
    """Prints lines on rank 0."""
    if os.environ.get("RANK", "0") == "0":
        for line in lines:
            errors.print_line(line)


# --------------------------------------------------------------------------------- loss and metrics

# What measure() sums: the loss first; the last one counts the items, and names them.
# `tokens` are a language model's targets, `correct` a classifier's right answers; with two classes,
# 1 being positive, true and false positives and negatives are counted, too.
SUMS = ("loss", "tokens", "correct", "tn", "fp", "fn", "tp", "sequences")
# What can be best: its name in a checkpoint, the worst value and the best one; 100 is in %.
# model_best.pt is by default the best in the first one.
BEST = {
    "Loss": ("best_loss", math.inf, 0.0),
    "Perplexity": ("best_perplexity", math.inf, 1.0),
    "Accuracy": ("best_accuracy", 0.0, 100.0),
    "F1": ("best_f1", 0.0, 100.0),
    "MCC": ("best_mcc", -1.0, 1.0),
}


def criterion(
    output: Tensor, target: Tensor, args: Namespace | None = None
) -> tuple[Tensor, Tensor]:
    """Returns (loss to differentiate, a mean; SUMS of the batch) of N sequences: of logits (N,
    classes) and target (N,), or of (N, L, vocabulary) and (N, L), where targets of -1 do not
    count."""
    losses = losses_of(output, target)
    # All training sequences have the same number of targets, so the loss does not depend on how a
    # batch is split.
    return losses.sum() / target.numel(), measure(output, target, losses.detach())


def losses_of(output, target):
    """Returns the cross-entropy of each target, (N,) or (N * L,)."""
    options = {"ignore_index": -1, "reduction": "none"}
    return nn.functional.cross_entropy(output.flatten(0, -2), target.flatten(), **options)


def measure(output, target, losses):
    """Returns SUMS of a batch in exact_dtype(), so that they are exact over batches and ranks."""
    counts = target.new_zeros(len(SUMS) - 1)  # tokens, correct, tn, fp, fn, tp, sequences
    counts[-1] += len(target)
    if output.ndim == 3:
        counts[0] = (target >= 0).sum()
    else:
        guess = output.argmax(dim=1)
        counts[1] = (guess == target).sum()
        if output.shape[1] == 2:
            counts[2:6] = nn.functional.one_hot(2 * target + guess, 4).sum(dim=0)
    dtype = devices.exact_dtype(target.device)
    return torch.cat([losses.sum(dtype=dtype)[None], counts.to(dtype)])


def compute_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Returns {tag: value} of {name: sum}, for what the task measures: loss in nats per token or
    sequence, accuracy and F1 in %, Matthews' correlation (Matthews 1975) from -1 to 1."""
    loss = sums["loss"] / max(1, sums["tokens"] or sums["sequences"])
    if sums["tokens"]:
        return {"Loss": loss, "Perplexity": math.inf if loss > 709 else math.exp(loss)}
    values = {"Loss": loss, "Accuracy": 100 * sums["correct"] / max(1, sums["sequences"])}
    tp, fp, fn, tn = (sums[name] for name in ("tp", "fp", "fn", "tn"))
    if tp + fp + fn + tn:
        product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        values["F1"] = 100 * 2 * tp / max(1, 2 * tp + fp + fn)
        values["MCC"] = (tp * tn - fp * fn) / math.sqrt(product or 1)
    return values


def format_metrics(values: Mapping[str, float], digits: int = 1) -> str:
    """Returns the measures as text, without those that the task does not have."""
    forms = {"Perplexity": "perplexity {0:.{1}f}", "Accuracy": "accuracy {0:.{1}f} %"}
    forms |= {"F1": "F1 {0:.{1}f} %", "MCC": "MCC {0:.{2}f}", "Loss": "loss {0:.{2}f}"}
    return ", ".join(
        forms[tag].format(values[tag], digits, digits + 2) for tag in forms if tag in values
    )


# What a checkpoint must share with about_model().
MUST_FIT = "arch task labels model_options vocabulary words tokenizer max_length".split()


def about_model(args: Namespace, data: Data) -> dict[str, Any]:
    """Returns what a checkpoint says about the model, so that it is usable without this script."""
    return {
        "arch": os.path.basename(os.path.abspath(args.arch)),
        "task": args.task,
        "labels": data.labels,
        "model_options": data.model_options,
        "vocabulary": data.train.vocabulary,
        "words": data.train.words,
        "tokenizer": data.train.tokenizer,
        "max_length": args.max_length,
    }


def about_data(data: Data) -> list[str]:
    """Returns the lines that are printed on the data at the start."""
    training, validation = data.train, data.val
    counts = (
        f"{len(training.target):,} training and {len(validation.target):,} validation sequences"
    )
    return [*data.lines, f"{counts}, a vocabulary of {training.vocabulary:,}"]


# --------------------------------------------------------------------------------------------- data


def list_sources(
    args: Namespace, place: Place
) -> tuple[text_corpus.Sequences, text_corpus.Sequences]:
    """Returns (train, val) of DIR, or of a demo."""
    if not args.dir and place.rank == 0:
        errors.print_line(f"No DIR, no $TEXT_DIR: training on a demo of --task {args.task}")
    return list_blocks(args) if args.task == "lm" else list_rows(args, place)


def list_blocks(args):
    """Returns (train, val) of a language model: blocks of --max-length targets."""
    words, vocabulary, digest = None, 256, "bytes"
    is_text = args.tokenizer not in (None, "bytes")
    if args.dir:
        kind = "bin" if not args.tokenizer and errors.look_at(f"{args.dir}/train.bin") else "txt"
        paths = [find_file(args, f"train.{kind}"), find_file(args, f"val.{kind}", f"valid.{kind}")]
    else:
        paths = [Path("Python's language reference")] * 2
    if is_text:
        demo = (array.tobytes().decode() for array in text_corpus.demo_text())
        texts = [*(map(text_corpus.read_text, paths) if args.dir else demo)]
        made = tokenizing.make_encoder(args.tokenizer, texts[:1], tell=print_once)
        words, vocabulary, digest, encode = made
        as_array = functools.partial(np.array, dtype=np.int32)
        arrays = [np.concatenate([*map(as_array, encode([text]))]) for text in texts]
    else:
        arrays = [*(map(text_corpus.map_bytes, paths) if args.dir else text_corpus.demo_text())]
        if paths[0].suffix == ".bin":
            words, vocabulary, digest, arrays = text_corpus.view_bins(paths, arrays)
    about = {"vocabulary": vocabulary, "words": words, "tokenizer": digest}
    training, validation = (  # training omits the incomplete last block
        text_corpus.cut_blocks(path, tokens, args.max_length, **about, to_end=to_end)
        for path, tokens, to_end in zip(paths, arrays, (False, True), strict=True)
    )
    return training, validation


def list_rows(args, place):
    """Returns (train, val) of a task of GLUE."""
    if args.dir:
        paths = [find_file(args, "train.tsv", "in_domain_train.tsv")]
        paths += [find_file(args, "dev.tsv", "dev_matched.tsv", "in_domain_dev.tsv")]
        tables = [read_table(path, args.task, place) for path in paths]
    else:
        paths, tables = ["demo"] * 2, text_corpus.demo_rows()
    name = args.tokenizer or ("words" if args.arch in ARCHS else args.arch)
    if name == "words":
        sentences = itertools.chain(*(row.sentences for row in tables[0]))
        tokenizer = tokenizing.word_tokenizer(sentences)
    else:
        tokenizer = tokenizing.load_tokenizer(name, tell=print_once)
    sources = []
    for path, rows in zip(paths, tables, strict=True):
        source, lines = tokenizing.encode_rows(path, rows, tokenizer, args.max_length)
        for line in lines * (place.rank == 0):
            errors.print_line(line)
        tokenizing.check_known(source, tokenizer.unk_token_id)
        sources.append(source)
    training, validation = sources
    return training, validation


def read_table(path, task, place):
    """Returns the rows of a file of GLUE."""
    columns, label, classes = GLUE[task]
    # CoLA's files have no header, and some rows of QQP's are cut.
    header = "source label star sentence".split() if task == "cola" else None
    rows, lines = text_corpus.read_rows(
        path, columns, label, classes, header=header, some_are_cut=task == "qqp"
    )
    for line in lines * (place.rank == 0):
        errors.print_line(line)
    if not rows:
        raise errors.BadInput(f"{path} has no rows")
    return rows


def find_file(args, *names):
    """Returns the path of the first of these names in DIR, or in the task's folder in it."""
    below = {"cola": "CoLA"}.get(args.task, args.task.upper())
    return text_corpus.find_text(args.dir, names, below, f"--task {args.task}")


class Data(NamedTuple):
    """The data of a run, and its sizes."""

    train: text_corpus.Sequences
    val: text_corpus.Sequences
    steps: int  # per epoch
    device_batch: int  # sequences on a device at a time
    accumulation_steps: int  # such batches in a step
    global_batch: int  # sequences in a step, of all devices
    repeats: int  # of each sequence in a step
    workers: int  # loader processes: none
    from_checkpoint: bool  # its weights take the place of the model's
    model_options: dict  # what a model with random weights is built with
    labels: Sequence[str] | None  # names of the encoder's outputs
    lines: list  # printed at the start


def open_data(
    args: Namespace,
    place: Place,
    sources: tuple[text_corpus.Sequences, text_corpus.Sequences],
    batches: batch_plan.Batches,
    metadata: dict | None = None,
) -> Data:
    """Returns the Data for these options, with `batches` of batch_plan.split_batch()."""
    lines, about = [], metadata
    if args.weights and not metadata:
        saved = safe_files.load_file(args.weights) if place.rank == 0 else {}
        saved = saved if isinstance(saved, dict) else {}
        own = "model_options" in saved
        about = broadcast_object({"labels": saved.get("labels")} if own else None)
    if args.evaluate:
        if metadata:
            what = f"{metadata['path']}, epoch {metadata['epoch']}"
        else:
            what = "random weights" if args.arch in ARCHS or args.from_scratch else args.arch
            what = args.weights or what
        lines.append(f"Validating {what}: up to {args.max_length} tokens")
    for option, name in ("-a", args.arch), ("--tokenizer", args.tokenizer):
        if name in (*ARCHS, *OURS) and os.path.isdir(name):
            lines.append(f"{option} {name} is not the folder {name}, which is {option} ./{name}")
    options = {}
    if args.arch in ARCHS:
        options = {name: getattr(args, name) for name in (*SIZES, "tied")}
    steps = steps_per_epoch(args, sources[0], batches[-1])
    from_checkpoint = metadata is not None
    labels = None if args.task == "lm" else name_labels(args, about, lines)
    return Data(*sources, steps, *batches, 1, 0, from_checkpoint, options, labels, lines)


def name_labels(args, about, lines):
    """Returns the task's names of classes in the order of the encoder's outputs. That order is the
    one in `about`, from a checkpoint, or in FOLDER's config.json, if its names are the task's in
    any of GLUE's spellings. If they are LABEL_0, LABEL_1 ... or other names, the order is the
    task's; for other names, this function adds a line to `lines`. Raises BadInput if FOLDER's own
    classifier has other names and is to be evaluated."""
    given = GLUE[args.task][2]
    names = CLASSES.get(args.task, given)
    if about:  # its weights take the place of FOLDER's
        theirs = about.get("labels") or names
        return theirs if sorted(theirs) == sorted(names) else names
    if args.arch in ARCHS or args.from_scratch:
        return names
    found = hf_folders.read_labels(args.arch)
    order = hf_folders.match_labels(found, names, given)
    if order is not None:
        return order
    labels = f"{', '.join(found[:4])}, --task {args.task} {', '.join(names)}"
    line = f"-a {args.arch} has the classes {labels}"
    if args.evaluate and not args.weights:
        raise errors.BadInput(f"{line}: its answers would mean something else")
    if len(found) == len(names) and not args.weights:
        lines.append(f"{line}: its last layer starts from theirs")
    return names


def batch_multiple(args: Namespace) -> int:
    """Returns the number that must divide a device's batch: 1, as sequences are independent."""
    return 1


# ------------------------------------------------------------------------------------------ loading


def load_batches(
    args: Namespace, place: Place, data: Data, schedule: Iterable[batch_plan.Job]
) -> Iterator[batch_plan.Loaded]:
    """Yields (tokens, target, split, epoch, position) for each batch of the schedule, int64. For a
    language model both are (N, --max-length). Otherwise tokens are (N, L + 1), whose last column is
    where the second sentence begins, and target is (N,). Padding is -1."""
    # Without processes, because slicing an array takes almost no time.
    lm = args.task == "lm"
    most = args.max_length
    for split, epoch, position, keys in schedule:
        source = getattr(data, split)
        keys = np.array(keys, np.int64)
        length = source.length[keys, None]
        width = most + lm  # the last token of a block is only a target
        if not (lm or args.pad_to_max):  # multiples of 8, so that kernels see few shapes
            width = min(most, (length.max(initial=1) + 7) // 8 * 8)
        within = np.arange(width) < length
        at = np.where(within, source.offset[keys, None] + np.arange(width), 0)
        tokens = np.where(within, source.tokens[at].astype(np.int64), -1)
        if tokens.max(initial=0) >= source.vocabulary:
            raise errors.BadInput(
                f"{source.path} has a token {tokens.max()} of {source.vocabulary}"
            )
        if lm:
            inputs, target = tokens[:, :-1].clip(min=0), tokens[:, 1:]
        else:
            inputs, target = np.c_[tokens, source.second[keys]], source.target[keys]
        inputs, target = torch.tensor(inputs), torch.tensor(target)
        if place.device.type == "cuda":  # or the host would wait for the copy
            inputs, target = inputs.pin_memory(), target.pin_memory()
        yield inputs, target, split, epoch, position


def finish_batch(
    inputs: Tensor,
    target: Tensor,
    args: Namespace,
    data: Data,
    split: str,
    epoch: int | None,
    position: int,
) -> tuple[Tensor, Tensor]:
    """Returns what load_batches() yielded: nothing is left to do."""
    return inputs, target


def dummy_batch(
    args: Namespace, data: Data, items: int, device: torch.device, split: str = "train"
) -> tuple[Tensor, Tensor]:
    """Returns (inputs, target) of the shape of so many sequences."""
    shape = items, args.max_length + (args.task != "lm")
    inputs = torch.randint(data.train.vocabulary, shape, device=device)
    return inputs, inputs.new_zeros(shape if args.task == "lm" else items)


def training_flops(args: Namespace, data: Data) -> float | None:
    """Returns the FLOPs of training on a sequence, or None if they differ in length."""
    if args.task != "lm":
        return None
    with torch.device("meta"):  # which computes shapes alone
        model = build_model(args, data, load=False)
        tokens, _ = dummy_batch(args, data, 1, torch.device("meta"))
    return model_flops.count_training(model, tokens)


# ------------------------------------------------------------------------------------------ options

# Defaults of the loop's options, for fine-tuning BERT (Devlin et al. 2018, A.3). The learning rate
# is for small models with random weights; FINE_TUNING is for trained ones.
DEFAULTS: dict[str, Any] = {"epochs": 3, "batch_size": 32, "lr_scaling": "none"}
DEFAULTS |= {"lr_schedule": "linear", "optimizer": "adamw", "lr": 3e-3, "wd": 0.01}
DEFAULTS |= {"norm_wd": 0.0, "clip_grad": 1.0}
FINE_TUNING = 2e-5
WARMUP = 1, 10  # epochs of warm-up, of this many epochs
# Encoders of transformers that are built with random weights.
ENCODERS = "albert bert distilbert electra roberta".split()
ARCHS = ("gpt", *ENCODERS)
OURS = ("words", "bytes")  # tokenizers
SIZES = ("layers", "hidden_size", "heads")
# Tasks of GLUE (Wang et al. 2018): the columns of text, the label's column, and the classes, in
# Hugging Face's order.
GLUE = {
    "cola": (["sentence"], "label", ["0", "1"]),
    "sst-2": (["sentence"], "label", ["0", "1"]),
    "mrpc": (["#1 String", "#2 String"], "Quality", ["0", "1"]),
    "qqp": (["question1", "question2"], "is_duplicate", ["0", "1"]),
    "mnli": (["sentence1", "sentence2"], "gold_label", ["entailment", "neutral", "contradiction"]),
    "qnli": (["question", "sentence"], "label", ["entailment", "not_entailment"]),
    "rte": (["sentence1", "sentence2"], "label", ["entailment", "not_entailment"]),
    "wnli": (["sentence1", "sentence2"], "label", ["0", "1"]),
}


# How Hugging Face's GLUE names the classes that are numbers in GLUE's own files.
CLASSES = {
    "cola": ["unacceptable", "acceptable"],
    "sst-2": ["negative", "positive"],
    "mrpc": ["not_equivalent", "equivalent"],
    "qqp": ["not_duplicate", "duplicate"],
    "wnli": ["not_entailment", "entailment"],
}


class StoreArch(argparse.Action):
    """Stores -a. A FOLDER has trained weights, so --lr has another default."""

    def __call__(self, parser, namespace, value, option=None):
        namespace.arch = value
        if any(namespace.lr is default for default in (DEFAULTS["lr"], FINE_TUNING)):  # not typed
            namespace.lr = DEFAULTS["lr"] if value in ARCHS else FINE_TUNING


def add_task_options(parser: run_options.Parser) -> tuple[list[str], list[str]]:
    """Adds the task's options; returns the names of free ones and of each rank's own."""
    add = parser.add_argument_group("data").add_argument
    add(
        "dir",
        metavar="DIR",
        nargs="?",
        default=os.environ.get("TEXT_DIR") or None,
        help="has train.txt and val.txt, or GLUE's train.tsv, dev.tsv (default: $TEXT_DIR or demo)",
    )
    add("--task", choices=["lm", *GLUE], default="lm", help="lm: language model; or a task of GLUE")
    add(
        "--tokenizer",
        metavar="NAME",
        help="words, bytes, or a FOLDER of Hugging Face's "
        "(default: the model's, or words; lm: bytes)",
    )
    add(
        "--max-length",
        type=option_types.number_between(int, 1, 10**6),
        default=128,
        help="most tokens of a sequence; the length of a language model's blocks",
    )
    add(
        "--pad-to-max",
        action="store_true",
        help="pad all to --max-length: one shape, for --compile",
    )

    add = parser.add_argument_group("model").add_argument
    add(
        "-a",
        "--arch",
        default="gpt",
        action=StoreArch,
        help=f"gpt; or {', '.join(ENCODERS)} (random); a FOLDER, at --lr {FINE_TUNING} "
        "(default: %(default)s)",
    )
    add("--from-scratch", action="store_true", help="random weights for FOLDER's model")
    add("--weights", metavar="FILE", help="start from the weights in a file (default: none)")
    size = option_types.number_between(int, 1, 10**5)
    add("--layers", type=size, default=2, help="with random weights")
    add("--hidden-size", type=size, default=64, help="with random weights")
    add("--heads", type=size, default=2, help="with random weights")
    add(
        "--dropout",
        type=option_types.number_between(float, 0, 0.99),
        metavar="P",
        help="default: the model's, gpt 0",
    )
    add("--tied", action="store_true", help="gpt: share output layer and embedding (Press 2016)")

    add = parser.add_argument_group("accuracy").add_argument
    add(
        "--desired-acc",
        dest="desired",
        action="append",
        metavar="FRACTION",
        type=lambda text: ["accuracy", round(100 * option_types.fraction(text), 9)],
        help="0.9: as --desired accuracy 90 (default: none)",
    )
    return ["pad_to_max", "weights"], ["dir"]


def check_task_options(args: Namespace, parser: run_options.Parser) -> None:
    """Exits with one line if options exclude each other or name something unknown."""
    lm = args.task == "lm"
    task = f"--task {args.task}"
    known = args.arch in ARCHS
    if not known and not (errors.look_at(args.arch) and os.path.isdir(args.arch)):
        near = ", ".join(difflib.get_close_matches(args.arch, ARCHS, cutoff=0.4) or ARCHS)
        fetch = f"`hf download {args.arch} --local-dir FOLDER` fetches it, if it is Hugging Face's"
        parser.error(f"-a {args.arch}: no folder, no such model; similar names: {near}; {fetch}")
    width, heads = args.hidden_size, args.heads
    ours = (None, "words", "bytes") if lm else (None, "words")
    named = None if args.tokenizer in ours else args.tokenizer
    lost = named and not (errors.look_at(named) and os.path.isdir(named))
    missing = (named or not lm) and not importlib.util.find_spec("transformers")
    sized = any(getattr(args, name) != parser.get_default(name) for name in SIZES)
    untrained = known or args.from_scratch
    begun = args.resume or args.output_dir or args.weights
    tags = {"lm": "loss perplexity", "mnli": "loss accuracy"}.get(args.task, "loss accuracy f1 mcc")
    wanted = {args.best, *(tag.lower() for tag, _ in args.desired)} - {None}
    refused = {
        f"{task} needs -a gpt": lm and args.arch != "gpt",
        f"{task} needs -a FOLDER, or {', '.join(ENCODERS)}": not lm and args.arch == "gpt",
        f"{task} needs a --max-length of 8 or more": not lm and args.max_length < 8,
        f"{task} measures only {tags}": not wanted <= {*tags.split()},
        f"--tokenizer {named}: no folder, nor words or bytes": lost,
        "transformers is missing: pip install 'transformers>=5'": missing,
        f"-a {args.arch} has its own --layers, --hidden-size, --heads": sized and not known,
        f"--heads {heads} does not divide --hidden-size {width}": width % heads,
        "--tied is for -a gpt": args.tied and not lm,
        f"{task} needs --pad-to-max under --compile": args.compile and not (lm or args.pad_to_max),
        "DIR and --weights need a name": "" in (args.dir, args.weights),
        "--from-scratch and --weights exclude each other": args.from_scratch and args.weights,
        "--evaluate needs --resume, --output-dir, --weights or -a FOLDER: random weights have no "
        "accuracy worth a number": args.evaluate and untrained and not begun,
        f"{task} needs DIR with files of GLUE": not args.dir and args.task not in ("lm", "cola"),
    }
    for why, wrong in refused.items():
        if wrong:
            parser.error(why)


# ==== optimizer: how gradients change weights, at which rate; equal in all scripts


def add_optimization_options(parser):
    """Adds epochs, batch sizes, learning rate and optimizer; returns the names of free options and
    of each rank's own."""
    add = parser.add_argument_group("optimization").add_argument
    add("--epochs", type=option_types.number_between(int, 1, 10**6), help="number of epochs")
    add(
        "--start-epoch",
        type=option_types.non_negative_int,
        help="first epoch, from 0 (default: --resume's)",
    )
    add("-b", "--batch-size", "--b", type=option_types.positive_int, help="batch size per device")
    add(
        "--accumulation",
        "--batches-per-allreduce",
        type=option_types.positive_int,
        default=1,
        help="batches per device and step",
    )
    add(
        "--global-batch",
        type=option_types.positive_int,
        help="batch size of all devices, in parts of up to -b "
        "(default: devices x -b x accumulation)",
    )
    add(
        "--lr",
        "--learning-rate",
        type=option_types.positive,
        help="peak learning rate, before --lr-scaling",
    )
    add(
        "--lr-scaling",
        choices=["linear", "sqrt", "none"],
        help="scale --lr by global batch / 256: linear (Goyal 2017), sqrt (Krizhevsky 2014)",
    )
    add(
        "--base-lr",
        type=option_types.positive,
        help="peak learning rate for a batch of -b, instead of --lr (default: off)",
    )
    add(
        "--lr-schedule",
        choices=["step", "cosine", "linear"],
        help="step: divided by 10 after 30, 60, 80 of 90 epochs (Goyal 2017); others: to 0",
    )
    add(
        "--warmup-epochs",
        type=option_types.non_negative,
        help="epochs of linear warm-up from 0; 0 = off (default: {} of {})".format(*WARMUP),
    )
    add(
        "--optimizer",
        choices=["sgd", "nesterov", "adamw", "lamb", "lars", "muon"],
        help="lamb, lars and muon are timm's; muon takes the --lr of adamw",
    )
    add(
        "--momentum",
        type=option_types.non_negative,
        default=0.9,
        help="momentum of SGD, LARS and Muon",
    )
    add("--wd", "--weight-decay", type=option_types.non_negative, help="weight decay")
    add(
        "--beta2",
        type=option_types.zero_to_1,
        default=0.999,
        help="decay of the squared gradients of AdamW and Muon",
    )
    add(
        "--norm-wd",
        type=option_types.non_negative,
        help=f"weight decay of norms and biases (default: {DEFAULTS.get('norm_wd', '--wd')})",
    )
    add(
        "--layer-decay",
        type=option_types.number_between(float, 0.01, 1),
        default=1,
        metavar="D",
        help="multiply a layer's rate by D for each layer above it (Clark et al. 2020), where the "
        "model says which they are, as timm's do (needs timm); 1 = off",
    )
    add(
        "--clip-grad",
        type=option_types.non_negative,
        help=f"largest norm of gradients; 0 = off (default: {DEFAULTS.get('clip_grad', 'off')})",
    )
    add(
        "--ema",
        type=option_types.number_between(float, 0, 0.999999),
        default=0,
        metavar="DECAY",
        help="validate an average of the weights with this decay per 32 steps (Polyak 1992); "
        "0 = off",
    )
    # Batch sizes and rates may be typed differently when a run resumes: what they come to, the
    # global batch and the peak learning rate, is compared. Epochs may change.
    free = "accumulation base_lr batch_size epochs global_batch lr lr_scaling start_epoch"
    return free.split(), []


def build_optimizer(args, model, masters=None):
    """Returns the optimizer of a model's trainable weights, or of their `masters`, in a group for
    each pair of weight decay and share of the learning rate, `lr_scale`."""
    # Decay also pulls the scales of norms towards 0, so many recipes exclude them. Norms and biases
    # are the weights with one dimension, whatever their names; timm's models name others, such as
    # embeddings of positions, some by patterns.
    patterns = getattr(model, "no_weight_decay", tuple)()
    by_pair = {}
    for (name, weight), updated, share in zip(
        model.named_parameters(),
        masters or model.parameters(),
        layer_scales(args, model),
        strict=True,
    ):
        exempt = weight.ndim < 2 or any(fnmatch.fnmatch(name, each) for each in patterns)
        exempt = exempt and args.norm_wd is not None
        if updated.requires_grad:
            by_pair.setdefault((exempt, share), []).append(updated)
    groups = []
    for (exempt, share), weights in sorted(by_pair.items(), key=lambda each: each[0][0]):
        decay = args.norm_wd if exempt else args.wd
        groups.append({"params": weights, "weight_decay": decay, "lr_scale": share})
    if args.optimizer == "adamw":
        return torch.optim.AdamW(groups, args.lr, betas=(0.9, args.beta2))
    if args.optimizer == "lamb":
        return importlib.import_module("timm.optim").Lamb(groups, args.lr)
    if args.optimizer == "lars":
        return importlib.import_module("timm.optim").Lars(groups, args.lr, momentum=args.momentum)
    if args.optimizer == "muon":  # timm's updates norms and biases by AdamW
        muon = importlib.import_module("timm.optim").Muon
        return muon(groups, args.lr, momentum=args.momentum, betas=(0.9, args.beta2))
    nesterov = args.optimizer == "nesterov"
    return torch.optim.SGD(groups, args.lr, momentum=args.momentum, nesterov=nesterov)


def layer_scales(args, model):
    """Returns the share of the learning rate of each of model.parameters(). Under --layer-decay D
    it is D to the power of the number of layers above, where the model's group_matcher() says which
    layers it has; timm's models have one."""
    if args.layer_decay == 1:
        return [1.0 for _ in model.parameters()]
    if not (hasattr(model, "group_matcher") or hasattr(model, "pretrained_cfg")):
        what = f"--layer-decay: {args.arch} has no group_matcher()"
        raise errors.BadInput(f"{what}, which says what its layers are; timm's models need none")
    grouped = importlib.import_module("timm.optim").param_groups_layer_decay
    groups = grouped(model, layer_decay=args.layer_decay)
    shares = {weight: group["lr_scale"] for group in groups for weight in group["params"]}
    return [shares.get(weight, 1.0) for weight in model.parameters()]  # frozen ones have no group


def make_optimizer_state(optimizer):
    """Creates an optimizer's state of zeros by a step at rate 0 (PyTorch: _init_optim_state())."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()
    for _, moment in state_trees.leaves(optimizer.state):
        moment.zero_()


def clip_gradients(gradients, limit, over_all=lambda squares: squares):
    """Scales all gradients so that their total norm is at most `limit`. `over_all` adds up the
    squares of ranks that hold different gradients."""
    # In float32 the norm of millions depends on the order of summation in its fifth digit.
    dtype = devices.exact_dtype(gradients[0].device)
    norms = torch.stack(torch._foreach_norm(gradients, 2, dtype=dtype))
    norm = over_all(norms.square().sum()).sqrt()
    torch._foreach_mul_(gradients, (limit / norm).clamp(max=1).float())


def learning_rate(args, peak, progress):
    """Returns the learning rate after `progress` epochs, a float such as 29.5."""
    # Large rates diverge while the weights still change quickly (Goyal et al. 2017, section 2.2).
    warmup = warmup_epochs(args)
    if progress < warmup:
        return peak * progress / warmup
    left = (args.epochs - progress) / (args.epochs - warmup)
    if args.lr_schedule == "cosine":
        return peak * (1 - math.cos(math.pi * left)) / 2
    if args.lr_schedule == "linear":
        return peak * left
    return peak * 0.1 ** sum(progress > args.epochs * cut / 90 for cut in (30, 60, 80))


def peak_learning_rate(args, global_batch):
    """Returns the learning rate after warm-up, from --lr and the global batch, or --base-lr."""
    if args.base_lr:
        return args.base_lr * global_batch / args.batch_size
    # k times fewer steps are to get as far with k times the batch (Goyal et al. 2017, section 2.1).
    scale = global_batch / 256
    return args.lr * {"linear": scale, "sqrt": scale**0.5, "none": 1}[args.lr_scaling]


def warmup_epochs(args):
    """Returns the epochs of linear warm-up, as a float."""
    few, many = WARMUP
    return args.epochs * few / many if args.warmup_epochs is None else args.warmup_epochs


# ==== start: from the options to a Run, and to the end of a process; equal in all scripts

ITEMS = SUMS[-1]  # the name of what is counted
# Of train and val, once per epoch, if measured.
LOGGED = (*BEST, "Throughput", "Time")


def main():
    """Reads the options and launches the workers."""
    standard_streams.never_wait()
    try:
        args = parse_args()
        if local_processes.may_restart() and not (args.output_dir or args.evaluate):
            needs = "--output-dir FOLDER, on storage that all nodes share"
            raise errors.BadInput(
                f"ranks that are restarted would begin from scratch: give {needs}"
            )
        launch(train_rank, args)
    except (errors.BadInput, errors.Fault) as error:
        sys.exit(errors.report_error(error, tell_others))
    except KeyboardInterrupt:  # before training
        os._exit(130)  # a normal exit would wait for loader workers, which ignore it


def parse_args(argv=None):
    """Returns the options as typed; what is derived from them gets a name of its own."""
    parser = make_parser()
    args = run_options.read_options(parser, BEST, argv)
    check_task_options(args, parser)
    if (args.warmup_epochs or 0) > args.epochs:
        parser.error(f"--warmup-epochs {args.warmup_epochs:g} is beyond --epochs {args.epochs}")
    return args


def make_parser():
    """Returns the parser. Most options define what is trained: a run is resumed only with the same.
    The options in `parser.free` may change when it is resumed; those in `parser.own` may change,
    too, and may differ between ranks."""
    parser = run_options.new_parser(__doc__)
    added = [
        add_task_options(parser),
        add_optimization_options(parser),
        run_options.add_run_options(parser, [tag.lower() for tag in BEST]),
        add_parallel_options(parser),
    ]
    parser.free, parser.own = (sum(names, []) for names in zip(*added, strict=True))
    run_options.set_defaults(parser, **DEFAULTS)
    return parser


def train_rank(args):
    """Runs one rank, from joining the others to leaving them; ends the process."""
    endings.allow_open_files()
    status = 0
    try:
        run = build_run(args)
        gc.freeze()  # what is there stays: no collection goes through it in a step
        try:
            if not args.evaluate:
                train(run)
            else:
                val = validate(run)
                if run.place.rank == 0:
                    errors.print_line(f"validation: {format_metrics(val, 3)}")
        except SystemExit as ended:  # by a signal
            status = int(ended.code or 0)
        except torch.OutOfMemoryError as error:
            # The run does not shrink the batch by itself: other ranks wait in collectives.
            batch = run.data.device_batch
            advice = with_less_memory(run) or errors.first_line(error)
            raise errors.BadInput(f"no memory at -b {batch}: {advice}") from None
        leave_group(run.place)
    except SystemExit as ended:  # nothing was left to train: build_run() has left the group
        status = int(ended.code or 0)
    except Exception as error:
        # Python frees `error` after this block, and with its traceback a half-made loader, which
        # would wait for its workers. The name `failed` keeps them until the process ends.
        failed = error
        status = errors.report_error(failed, tell_others)
    endings.end_process(status)


def with_less_memory(run):
    """Returns what to add to the command to train the same curve in less memory, in words, or None
    if nothing helps."""
    args = run.args
    batch = batch_plan.smaller_batch(run.data.device_batch, device_multiple(args))
    if args.evaluate:
        return f"add -b {batch} to the command" if batch else None
    ways = []
    if batch:
        smaller = run_messages.with_smaller_batch(
            batch,
            run.data.global_batch,
            run.folder,
            accumulation=args.accumulation,
            base_lr=args.base_lr and args.base_lr * batch / args.batch_size,
            compile_mode=args.compile_mode,
        )
        ways.append(smaller)
    if not args.checkpoint_activations and activation_checkpointing.has_blocks(run.model):
        ways.append(run_messages.with_checkpointing(run.folder))
    return "; or ".join(ways) or None


def leave_group(place):
    """Leaves the group when all ranks are here: rank 0 has written all by then."""
    all_reduce_sum(torch.zeros(1, device=place.device)).item()
    cleanup()


def build_run(args):
    """Returns the Run, ready to train. The order of its steps is not free."""
    # 1. What must be set before a group exists: communicators choose algorithms as they form.
    endings.arm_timeout(args.timeout, compiles=args.compile)
    devices.choose_kernels(args.deterministic)
    place = init_distributed(args)
    devices.share_cores(place.device, place.local_ranks)

    # 2. Options and data are compared before anything depends on them.
    sources = list_sources(args, place)
    options = defining_options(args, place, sources)

    # 3. The checkpoint before the batch is split: a run keeps its global batch, on any number of
    #    devices. load_checkpoint() checks the file (the CRC of each of its parts; no code runs),
    #    and takes an older one if it is damaged; check_resumed() compares the options,
    #    check_model() what MUST_FIT lists, and restore() names and shapes of all tensors. If
    #    options that define what is trained differ, the run in --output-dir ends with an error; a
    #    new run from --resume prints how they differ, and begins.
    endings.arm_timeout(args.timeout, compiles=args.compile)
    metadata = tensors = None
    if place.rank == 0:
        metadata, tensors = checkpointing.load_checkpoint(
            MUST_FIT,
            output_dir=args.output_dir,
            resume=args.resume,
            evaluate=args.evaluate,
            start_epoch=args.start_epoch,
            optimizer=args.optimizer,
            averages=bool(args.ema),
        )
    metadata = broadcast_object(metadata)
    resumes = metadata is not None and not args.evaluate
    global_batch = args.global_batch or (metadata["global_batch"] if resumes else None)
    sizes = batch_plan.split_batch(
        args.batch_size,
        place.data_ranks * place.devices,
        args.accumulation,
        global_batch,
        device_multiple(args),
    )
    if resumes:
        changed = checkpointing.check_resumed(
            metadata,
            MUST_FIT,
            options=options,
            typed=run_options.not_default(options, make_parser()),
            global_batch=sizes.global_batch,
            peak=peak_learning_rate(args, sizes.global_batch),
            base_batch=args.batch_size if args.base_lr else None,
        )
        if changed and place.rank == 0:
            errors.print_line(f"{metadata['path']} was trained with other options: {changed}")
    if args.compile and args.compile_mode != "default" and sizes.accumulation_steps > 1:
        raise errors.BadInput(
            f"--compile-mode {args.compile_mode}: its graphs cannot accumulate batches"
        )

    # 4. The data before the model, which has as many outputs as there are classes.
    data = open_data(args, place, sources, sizes, metadata)
    # Under --evaluate no step is trained: the schedule has batches of validation alone.
    run = Run(args, place, data, options, args.start_epoch or 0, no_more_steps=args.evaluate)
    if metadata:
        checkpointing.check_model(metadata, MUST_FIT, about_model(args, data))
        if args.start_epoch is None or metadata["in_place"]:
            run.partial = metadata["partial"]
            run.epoch, run.step = checkpointing.where_to_resume(
                metadata, data.global_batch, data.steps
            )
        if resumes and not metadata["in_place"]:
            checkpointing.check_epochs_left(metadata, args.epochs, epochs_done(run))
        at = {"epochs": args.epochs, "epoch": run.epoch, "step": run.step, "steps": data.steps}
        if resumes and (why := run_messages.why_over(metadata, ends_by(args), **at)):
            if place.rank == 0:
                errors.print_line(f"{args.output_dir}: {why}: nothing is left to do")
            leave_group(place)
            sys.exit()

    # 5. Loader processes are forked before prepare(), which may call a collective: up to Python
    #    3.11, a fork hangs if a collective's thread waits for the interpreter's lock meanwhile.
    endings.arm_timeout(args.timeout, compiles=args.compile)
    try:
        begin = run.epoch, run.step
        schedule = schedule_batches(args, place, data, *begin, over=lambda: run.no_more_steps)
        batches = load_batches(args, place, data, schedule)
        finish = functools.partial(finish_batch, args=args, data=data)
        run.batches = batch_plan.to_device(batches, finish, place.device, run.data_waits)

        # 6. The seed is set right before the model, so that all scripts and ranks draw the same
        #    weights. Averages begin as copies of them, before a checkpoint is loaded into both.
        torch.manual_seed(args.seed)
        run.model, run.optimizer, run.scaler = prepare(args, place, data)
    except (ImportError, ValueError, TypeError) as error:  # libraries check what fits together
        what = f"{args.arch}, {args.optimizer}"
        raise errors.BadInput(f"{what}: {errors.first_line(error)}") from None
    endings.handle_signals(functools.partial(endings.on_signal, run.signals))
    if args.ema:
        run.ema = {name: own.clone().float() for name, own in trained_state(run).items()}
    if metadata:
        restore(run, metadata, tensors)
    run.scale = run.scaler.get_scale()
    run.saved_at = time.monotonic()
    run.started = time.perf_counter() - (metadata["seconds"] if metadata else 0)
    run.deadline = run.started + 3600 * (args.budget_hours or math.inf)

    # 7. The log comes last, so that a run that cannot start leaves no new folder in runs/.
    if not args.evaluate:
        open_log(run, metadata)
    if place.rank == 0:
        print_header(run, metadata)
    return run


def defining_options(args, place, sources):
    """Returns {name: value} of the options that define what is trained, with the precision and the
    data's digest, the same on all ranks."""
    parser = make_parser()
    digest, val_digest = (source.digest() for source in sources)
    endings.arm_timeout(args.timeout, compiles=args.compile)
    mine = {name: value for name, value in vars(args).items() if name not in parser.own}
    mine |= {"precision": place.precision or args.precision}
    mine |= {"data": digest, "val_data": val_digest}
    options = {name: value for name, value in mine.items() if name not in parser.free}
    # Ranks that differ would silently train something else, or hang in a collective.
    mine |= {"device": place.device.type, "trainparts": package_digest.IDENTITY}
    if found := checkpointing.list_differences(broadcast_object(mine), mine):
        raise errors.BadInput(f"rank {place.rank} differs from rank 0 in {found}")
    return options


def device_multiple(args):
    """Returns the number that must divide a device's batch: the task's, and a pipeline's."""
    return math.lcm(batch_multiple(args), getattr(args, "microbatches", 1))


def open_log(run, metadata):
    """Opens the log on rank 0, in --output-dir or a new folder, which all ranks learn."""
    args, data, place = run.args, run.data, run.place
    in_place = metadata and metadata["in_place"]
    if place.rank == 0:
        typed = args.output_dir and Path(args.output_dir)
        run.folder = typed or run_folder.new_folder(name_of(run))
        # TensorBoard drops what was logged from the number `purge` on; in a new run, all. Loss/step
        # has the number of a step: so what it had beyond the resumed step is dropped, and logged
        # again. Other tags have that of an epoch, mostly below `purge`: so epochs that are trained
        # again, after a fall-back to an older checkpoint, are in the log twice.
        purge = max(run.epoch + 1, run.epoch * data.steps + run.step) if in_place else 0
        run.log = event_log.start_log(run.folder, purge)
        logged = metadata["logged"] if in_place else []
        run.epochs_logged = [epoch for epoch in logged if epoch < purge]
        sizes = about_model(args, data) | data._asdict()
        about = event_log.describe(
            __file__,
            run.model,
            place.device,
            options=vars(args),
            place=place._asdict(),
            sizes=sizes,
            steps=data.steps,
            source=args.dir or "demo",
            metadata=metadata,
        )
        event_log.log_program(run.log, about, __file__, LOGGED)
        run.peak_share = find_peak_share(run)
    run.folder = Path(broadcast_object(str(run.folder)))


def find_peak_share(run):
    """Returns the share of the devices' peak that training on one item a second takes, without what
    --checkpoint-activations computes again; NaN if it is not known."""
    place = run.place
    peak = device_peaks.peak_tflops(devices.device_name(place.device))
    if not peak:
        return math.nan
    try:
        flops = training_flops(run.args, run.data)
    except Exception as error:  # whatever an own model does where tensors have no values
        errors.print_line(f"No share of the peak is logged: {errors.first_line(error)}")
        return math.nan
    return math.nan if flops is None else flops / (1e12 * peak * place.ranks * place.devices)


def name_of(run):
    """Returns what the name of a run's folder says: what is trained, on what."""
    args, place, data = run.args, run.place, run.data
    arch = about_model(args, data)["arch"].replace("/", "-")
    what = f"{platform.node()}_{arch}_gpux{place.ranks * place.devices}_b{data.device_batch}"
    return f"{what}_cpu{data.workers}_opt{run.options['precision']}"


def print_header(run, metadata):
    """Prints what is trained, on which devices, and where its logs are."""
    args, data, place = run.args, run.data, run.place
    on = f"{place.ranks * place.devices} x {devices.device_name(place.device)}"
    for line in f"{args.arch} ({run.options['precision']}) on {on}", *about_data(data):
        errors.print_line(line)
    if args.evaluate:
        return
    peak = peak_learning_rate(args, data.global_batch)
    if args.base_lr:
        rate, lines = f"--base-lr {args.base_lr}", []
    else:
        rate = f"--lr {args.lr} {args.lr_scaling}"
        usual = DEFAULTS["optimizer"], DEFAULTS["lr"]
        lines = run_messages.about_rate(args.optimizer, args.lr, *usual)
    factors = data.device_batch, place.data_ranks * place.devices, data.accumulation_steps
    whose = ", the checkpoint's" if metadata and not args.global_batch else ""
    lines.append(
        f"{ITEMS} x devices x accumulated = {' x '.join(map(str, factors))} = global batch "
        f"{data.global_batch}{whose}; {rate} -> peak learning rate {peak:g}"
    )
    if args.desired:
        goals = format_metrics(dict(args.desired), 3)
        lines.append(f"Ends after an epoch that is at least as good as {goals}")
    if metadata:
        at = {"epochs": args.epochs, "epoch": run.epoch, "step": run.step, "steps": data.steps}
        lines += run_messages.about_resuming(metadata, **at)
    for line in lines:
        errors.print_line(line)
    for line in run_messages.about_folder(run.folder, args.output_dir, args.resume):
        errors.print_line(line)


# ==== launch: how processes start and meet; equal in all *_pipeline.py


def add_parallel_options(parser: run_options.Parser) -> tuple[list[str], list[str]]:
    """Adds this strategy's options; returns the names of free options and of each rank's own."""
    add = parser.add_argument_group("distribution").add_argument
    add(
        "--dist-backend",
        choices=["nccl", "nccl-lazy", "gloo", "xccl", "ucc", "mpi"],
        help="default: the device's own",
    )
    add("--local-rank", "--local_rank", type=int, help="from old launchers (default: $LOCAL_RANK)")
    add = parser.add_argument_group("pipeline").add_argument
    add(
        "--stages",
        type=option_types.number_between(int, 2, 1e6),
        help="per replica (default: its ranks; interleaved: twice)",
    )
    add(
        "--schedule",
        choices=SCHEDULES,
        default="gpipe",
        help="gpipe: all forward, then all backward; 1f1b: in turn; "
        "interleaved: also 2 stages per rank",
    )
    add(
        "--microbatches",
        type=option_types.number_between(int, 1, 1e6),
        default=4,
        help="parts of a replica's batch, each with BatchNorm statistics of its own",
    )
    add = parser.add_argument_group("precision").add_argument
    add(
        "--amp",
        dest="precision",
        choices=["float16", "bfloat16"],
        default="float32",
        help="type of the forward pass; float16 scales the loss",
    )
    return ["schedule", "stages"], ["dist_backend", "local_rank"]


def launch(run_rank: Callable[[Namespace], NoReturn], args: Namespace) -> None:
    """torchrun has started this process, one of many; or it is alone."""
    local_processes.follow_torchrun(args.local_rank)
    refused = {
        "start_size": "sizes that grow",
        "freeze": "frozen layers",
        "compile": "a model in one piece",
        "tied": "a weight in two stages",
    }
    if args.optimizer == "lamb":
        raise errors.BadInput(
            "--optimizer lamb: it needs the norm of all gradients, a stage has its own"
        )
    for name, what in refused.items():
        if getattr(args, name, None):  # a task may not have it
            raise errors.BadInput(f"--{name.replace('_', '-')}: a pipeline cannot train {what}")
    run_rank(args)


def init_distributed(args: Namespace) -> Place:
    """Joins the group that the launcher's environment variables describe."""
    place = _place(args)
    ranks = place.ranks
    _, per_rank = SCHEDULES[args.schedule]
    stages = args.stages or per_rank * ranks
    width = stages // per_rank  # ranks of a replica
    if ranks == 1:
        raise errors.BadInput(
            "a pipeline needs two ranks: for one, use the script that ends in _nd.py"
        )
    if stages % per_rank or ranks % width:
        raise errors.BadInput(
            f"{ranks} ranks cannot hold {stages} stages, {per_rank} on each, evenly"
        )
    _form_group(args, place)
    return place._replace(data_rank=place.rank // width, data_ranks=ranks // width)


def _place(args):
    """Returns the Place of this process from a launcher's variables; without them it is alone."""
    numbers = local_processes.own_numbers()
    rank, ranks, *local = numbers
    device = devices.pick_device(args.gpu, args.no_accel, *local)
    return Place(device, *numbers, data_rank=rank, data_ranks=ranks)


def _form_group(args, place):
    """Forms the group of all ranks."""
    backend = args.dist_backend or dist.get_default_backend_for_device(place.device)
    # While one rank compiles, the others wait; with --timeout 0, for years.
    wait = datetime.timedelta(seconds=(args.timeout or 10**8) + 3600 * args.compile)
    gpu = place.device if backend == "nccl" else None  # or NCCL chooses one by the rank
    with rendezvous.meet_ranks(place.rank, place.ranks, place.local_ranks, backend, wait) as store:
        dist.init_process_group(backend, None, wait, place.ranks, place.rank, store, device_id=gpu)


if __name__ == "__main__":
    main()
