"""What the recipes need of a GPU's memory, counted without one, and without computing anything.

    python benchmarks/recipe_memory.py                  # recipes/*.txt on 1, 8 and 64 GPUs
    python benchmarks/recipe_memory.py recipes/vit-b-16.txt --gpus 4
    python benchmarks/recipe_memory.py recipes/vit-b-16.txt --gpus 4 --checkpoint-activations

Counted are weights, gradients, the optimizer's state and the average of weights in float32, and
what autograd keeps of a forward pass under autocast to bfloat16, at the largest size of images;
under --checkpoint-activations that is the inputs of blocks, and once all of the largest block.
Libraries' workspaces and the allocator's gaps come on top. Writes logs/benchmarks/.
"""

import functools
from pathlib import Path

import common
import torch
from common import ROOT, count, option
from torch._subclasses.fake_tensor import FakeTensorMode

import imagenet_nd as nd
from trainparts import activation_checkpointing, batch_plan
from trainparts.images import architectures

COPIES = {"sgd": 3, "nesterov": 3, "adamw": 4, "lamb": 4, "lars": 3}  # weights, gradients, state


def memory(file, gpus, checkpointing=False):
    """Returns a row of the table: bytes that a recipe takes on each of so many GPUs."""
    args = nd.parse_args([f"@{file}"])
    multiple = nd.device_multiple(args)
    batch, parts, _ = batch_plan.split_batch(
        args.batch_size, gpus, args.accumulation, args.global_batch, multiple
    )
    size = args.image_size or architectures.preset_of(args.arch).image_size
    # Each storage once; held, so that none is freed and its number given to another.
    kept, inside, largest = {}, [], 0

    def keep(tensor):
        known = inside[-1] if inside else kept
        known[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    def begin(_, inputs):  # a block that is computed again
        for each in filter(torch.is_tensor, inputs):
            keep(each)
        inside.append({})

    def end(*_):
        nonlocal largest
        again = {at: each for at, each in inside.pop().items() if at not in kept}
        largest = max(largest, nbytes(again))

    def nbytes(storages):
        weights = {each.untyped_storage()._cdata for each in own.values()}
        return sum(each.nbytes() for at, each in storages.items() if at not in weights)

    model = architectures.make_model(
        args.arch,
        num_classes=1000,
        **architectures.model_options(args.arch, size, {}, args.zero_init),
    )
    weights = sum(each.nbytes for each in model.parameters())
    for block in activation_checkpointing.blocks(model) if checkpointing else ():
        block.register_forward_pre_hook(begin)
        block.register_forward_hook(end)
    with FakeTensorMode() as mode, torch.autocast("cpu", torch.bfloat16):
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        own = {name: mode.from_tensor(each) for name, each in own.items()}
        images, target = torch.empty(batch, 3, size, size), torch.zeros(batch, dtype=torch.int64)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
            output = torch.func.functional_call(model, own, images)
            nd.criterion(output, target, args)
    state = weights * (COPIES[args.optimizer] + bool(args.ema))
    total = (state + nbytes(kept) + largest) / 1e9
    name = f"{Path(file).stem}, {gpus} GPU{'s' if gpus > 1 else ''}"
    row = {"name": name, "values": [total], "images a GPU": str(batch), "parts": str(parts)}
    return row | {"state, GB": state / 1e9}


def measure(args, _):
    """Counts, prints and writes."""
    files = args.files or sorted((ROOT / "recipes").glob("*.txt"))
    rows = [memory(file, gpus, args.checkpoint_activations) for file in files for gpus in args.gpus]
    title = "Memory that recipes need on a GPU"
    common.write(args.out, title, "GB", rows, rows[0]["name"], {}, "timm")


OPTIONS = [
    option("files", metavar="FILE", nargs="*", help="option files (default: recipes/*.txt)"),
    option("--gpus", nargs="+", type=count, default=[1, 8, 64]),
    option("--checkpoint-activations", action="store_true"),
]
main = functools.partial(common.main, __doc__, measure, "recipe_memory", OPTIONS)

if __name__ == "__main__":
    main()
