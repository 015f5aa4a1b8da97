"""Runs a script on ghost GPUs: LD_PRELOAD=ghost.so run.py REPORT SCRIPT words...

A line of JSON goes to the file REPORT after each step.
"""

import contextlib
import ctypes
import importlib.util
import json
import sys
import threading
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
FAKE = torch._C._TorchDispatchModeKey.FAKE
AS_IS = (
    "c10d::",
    "_c10d_functional::",
    "aten::record_stream",
)  # which move data, or none, themselves

ghost = ctypes.CDLL(None)
NAMES = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(ghost, "ghost_names")))
NAMES = NAMES.decode().split()


def on_cuda(value):
    """Returns whether a value is a tensor on, or the name of, a CUDA device."""
    device = value.device if isinstance(value, torch.Tensor) else value
    return isinstance(device, torch.device) and device.type == "cuda"


def on_cpu(value):
    """Returns a CUDA tensor's values as a CPU tensor of the same memory; of CUDA's device the CPU;
    of its generator none; anything else as it is."""
    if isinstance(value, torch.Generator):
        return value if value.device.type == "cpu" else None
    if not on_cuda(value):
        return value
    if isinstance(value, torch.device):
        return torch.device("cpu")
    storage = value.untyped_storage()
    size = storage.nbytes()
    if not size or not storage.data_ptr():
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    memory = (ctypes.c_char * size).from_address(storage.data_ptr())
    whole = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    empty = torch.empty(0, dtype=value.dtype)
    return empty.set_(whole, value.storage_offset(), value.shape, value.stride())


@contextlib.contextmanager
def inert():
    """Within, what PyTorch's CUDA code copies or sets on a device is left out: kernels that did
    nothing have made it."""
    ghost.ghost_set_inert(1)
    try:
        yield
    finally:
        ghost.ghost_set_inert(0)


class Compute(TorchDispatchMode):
    """Computes each operator on the CPU, in the device's memory; then runs PyTorch's CUDA code for
    it, which launches kernels that do nothing, but may wait for the device, as it would."""

    def __torch_dispatch__(self, function, kinds, words=(), options=None):
        options = options or {}
        flat = tree_flatten((words, options))[0]
        tensors = [each for each in flat if isinstance(each, torch.Tensor)]
        if any(isinstance(each, DTensor) for each in tensors):
            return NotImplemented  # it calls the operators of its parts
        as_is = function.is_view or function.name().startswith(AS_IS)
        as_is = as_is or any(isinstance(each, FakeTensor) for each in tensors)  # has no values
        # DTensor tries operators on tensors without values, to learn their shapes.
        if as_is or torch._C._get_dispatch_mode(FAKE) or not any(map(on_cuda, flat)):
            return function(*words, **options)
        if to_host := self.to_host(function, words, options):
            return to_host()
        inputs = {each.untyped_storage()._cdata for each in tensors}
        mine, more = tree_map(on_cpu, (words, options))
        more.pop("pin_memory", None)
        computed = function(*mine, **more)
        with inert():
            given = function(*words, **options)
        outputs, structure = tree_flatten(given)
        for i, (output, value) in enumerate(zip(outputs, tree_flatten(computed)[0], strict=True)):
            if not isinstance(output, torch.Tensor):
                outputs[i] = value
            elif output.untyped_storage()._cdata not in inputs and value.numel():
                if output.shape != value.shape:  # it depends on values, as of nonzero()
                    outputs[i] = output = output.new_empty(value.shape)
                on_cpu(output).copy_(value)
        return structure.unflatten(outputs)

    def to_host(self, function, words, options):
        """Returns how to copy to the host, if that is what the operator does. The copy itself takes
        the values as they are, late; what is computed, their type and order, comes before it."""
        if function is aten._local_scalar_dense.default:
            return lambda: function(*words)
        if function is aten._to_copy.default and options.get("device") == torch.device("cpu"):
            source, dtype = words[0], options.get("dtype")
            with self:
                source = source.to(dtype or source.dtype).contiguous()
            return lambda: function(source, **options)
        if function is aten.copy_.default and on_cuda(words[1]) and not on_cuda(words[0]):
            target, source = words[:2]
            with self:
                source = source.to(target.dtype).expand_as(target).contiguous()
            if target.is_contiguous():
                return lambda: function(target, source, *words[2:])
            return lambda: target.copy_(source.cpu())
        return None


def counts():
    """Returns {what: how often so far}."""
    return dict(zip(NAMES, numbers("ghost_counts", len(NAMES)), strict=True))


def numbers(name, size, kind=ctypes.c_long):
    """Returns the first numbers of an array in the library."""
    return [*(kind * size).in_dll(ghost, name)]


def report_steps(module, path):
    """Has a script's steps reported, with the seeds of all generators as they are when a step
    begins; what saving between two of them waits for is left out."""
    queue_step, train_step, before, seeds = module.queue_step, module.train_step, {}, []

    def finish_and_report(run, meter, sums, *skipped):
        queue_step(run, meter, sums, *skipped)
        now = counts()
        made = numbers("ghost_communicators_made", 1, ctypes.c_int)[0]
        line = {
            "title": meter.title,
            "device": run.place.device.index,
            "initialized": torch.cuda.is_initialized(),
            "communicators": numbers("ghost_communicators", made, ctypes.c_int),
            "allocated": numbers("ghost_allocated", 8),
            "seeds": [*seeds],
            "counts": {name: now[name] - before.get(name, 0) for name in now},
        }
        before.update(now)
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")

    def note_and_train(*values):
        generators = torch.default_generator, *torch.cuda.default_generators
        seeds[:] = [each.initial_seed() for each in generators]
        return train_step(*values)

    def forgetting(save):
        def save_and_forget(run):
            save(run)
            before.update(counts())

        return save_and_forget

    module.queue_step, module.train_step = finish_and_report, note_and_train
    for name in "save_checkpoint", "save_best":
        setattr(module, name, forgetting(getattr(module, name)))


def compute_in_threads():
    """Has threads compute too, as those of DataParallel: modes are a thread's own."""
    run = threading.Thread.run

    def run_and_compute(thread):
        with Compute():
            run(thread)

    threading.Thread.run = run_and_compute


def avoid_libraries():
    """Has PyTorch compute by its own kernels alone: those of other libraries are not there."""
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)  # of attention, too
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.cuda._device_count_nvml = lambda: -1  # where there are GPUs, their driver would be asked


def main():
    """Runs the script."""
    path, script, *words = sys.argv[1:]
    avoid_libraries()
    sys.argv = [script, *words]
    sys.path[0] = str(Path(script).resolve().parent)  # where its package lies, as for `python FILE`
    spec = importlib.util.spec_from_file_location(Path(script).stem, script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    report_steps(module, path)
    compute_in_threads()
    with Compute():
        module.main()


if __name__ == "__main__":
    main()
