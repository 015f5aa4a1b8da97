"""On PYTHONPATH, makes torchvision's ViTs small (2 layers, 32 wide), so that tests of the scripts
are quick: ViT is the family with neither BatchNorm nor dropout. Nothing in the scripts changes.
$SIGTERM_AT=7, or $SIGKILL_AT, has a process that trains send itself this signal at the seventh
event: it begins to train or to validate, or has read the sums of a step.
$STORAGE="read EIO checkpoint.pt 2" has reading fail with this error, of files whose path has this
in it, from the third time on that one is opened; or "open", also of folders, or "write".
$NO_FLOCK=ENOSYS has locking fail with this error.
$ONLY_FROM=FOLDER has reading the code of any trainparts/ fail that is not in this folder.
$FLOAT64=FILE has float64 computed where a script computes in float32, and writes the step and the
loss of each line of the log into this file, all digits of them.
$FLOAT8_EMULATED=1 has torchao emulate float8, on any device, as its `emulate=True` does."""

import argparse
import builtins
import errno
import fcntl
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import signal
import sys

gc.set_threshold(100_000)  # a fifth of the time that importing torch and torchvision takes


class SmallViT(importlib.abc.MetaPathFinder):
    """Lets torchvision.models.vision_transformer load as ever, then shrinks what it builds."""

    def find_spec(self, name, path, target=None):
        if name != "torchvision.models.vision_transformer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            build = module._vision_transformer
            size = {"num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
            module._vision_transformer = lambda **options: build(**(options | size))

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, SmallViT())


class NotInstalled(importlib.abc.MetaPathFinder):
    """Finds trainparts beside the script and on PYTHONPATH alone, whatever is installed: what is
    installed may be another checkout, which a fault that is planted in this one does not reach."""

    def find_spec(self, name, path, target=None):
        if name != "trainparts":
            return None
        folders = [each for each in sys.path if not each.endswith("-packages")]
        if found := importlib.machinery.PathFinder.find_spec(name, folders):
            return found
        raise ModuleNotFoundError(f"tests find no trainparts/ in {folders}", name=name)


sys.meta_path.insert(0, NotInstalled())


def send_at(event, signum):
    """Has a process send itself a signal at this event of its progress bars, counted from 1."""
    import tqdm

    count = 0

    def counted(method):
        def call(*args, **options):
            nonlocal count
            count += 1
            if count == event:
                os.kill(os.getpid(), signum)
            return method(*args, **options)

        return call

    tqdm.tqdm.__init__ = counted(tqdm.tqdm.__init__)
    tqdm.tqdm.update = counted(tqdm.tqdm.update)


class Broken(io.FileIO):
    """A file that is open, and cannot be read, or written, any more."""

    kind, number = None, 0

    def fail(self, kind):
        if kind == self.kind:
            raise OSError(self.number, os.strerror(self.number))

    def readinto(self, buffer):
        self.fail("read")
        return super().readinto(buffer)

    def readall(self):
        self.fail("read")
        return super().readall()

    def write(self, content):
        self.fail("write")
        return super().write(content)


def break_storage(kind, name, part, whole="0"):
    """Has opening, reading or writing of some paths fail with an error of the system, of this name,
    after so many were opened well."""
    number, opened, before = getattr(errno, name), 0, io.open
    Broken.kind, Broken.number = kind, number

    def counted(path):
        nonlocal opened
        opened += isinstance(path, str | bytes | os.PathLike) and part in os.fsdecode(path)
        return opened > int(whole) and part in os.fsdecode(path)

    def refuse(event, values):
        names = "open", "os.listdir", "os.scandir"
        if event in names and isinstance(values[0], str | bytes) and counted(values[0]):
            raise OSError(number, os.strerror(number), values[0])

    def broken(path, mode="r", *more, **options):
        if isinstance(path, int) or "b" not in mode or not counted(path):
            return before(path, mode, *more, **options)
        file = Broken(path, mode.replace("b", ""))
        return io.BufferedWriter(file) if file.writable() else io.BufferedReader(file)

    if kind == "open":
        sys.addaudithook(refuse)
    else:
        builtins.open = io.open = broken


def no_flock(name):
    """Has locking fail with this error."""

    def flock(file, kind):
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))

    fcntl.flock = flock


def only_from(folder):
    """Has reading the code of a trainparts/ fail that is not in this folder."""
    folder = os.path.join(os.path.realpath(folder), "")

    def refuse(event, values):
        if event == "open" and isinstance(values[0], str) and "/trainparts/" in values[0]:
            path = os.path.realpath(values[0])
            if path.endswith((".py", ".pyc")) and not path.startswith(folder):
                raise RuntimeError(f"{path} is not in {folder}")

    sys.addaudithook(refuse)


def given_dtype(method, dtype):
    """Returns a method that always gets this dtype."""

    def call(*args, **options):
        return method(*args, **(options | {"dtype": dtype}))

    return call


def in_float64(path):
    """Has float64 take the place of float32, except in checkpoints."""
    import torch
    from torch.utils.tensorboard import SummaryWriter
    from transformers import PreTrainedModel

    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    for name in "_from_config", "from_pretrained":  # encoders, which hf_folders asks for float32
        method = given_dtype(getattr(PreTrainedModel, name).__func__, torch.float64)
        setattr(PreTrainedModel, name, classmethod(method))
    parse_args = argparse.ArgumentParser.parse_args

    def parse(*words, **options):
        args = parse_args(*words, **options)
        # *_exchange.py sends gradients in the type that it is told; DDP in that of the weights.
        if getattr(args, "exchange_dtype", "") == "float32" and args.exchange != "ddp":
            args.exchange_dtype = "float64"
        return args

    argparse.ArgumentParser.parse_args = parse
    add_scalar = SummaryWriter.add_scalar  # which keeps 24 bits of a value

    def add(log, tag, value, step):
        if tag == "Loss/step":
            with open(path, "a") as file:
                file.write(f"{step} {value!r}\n")
        add_scalar(log, tag, value, step)

    SummaryWriter.add_scalar = add


def emulate_float8():
    """Has torchao's configurations emulate, and a script take this device for one with float8."""
    from torchao.float8 import Float8LinearConfig

    complete = Float8LinearConfig.__post_init__

    def emulated(config):
        object.__setattr__(config, "emulate", True)
        complete(config)

    Float8LinearConfig.__post_init__ = emulated
    sys.meta_path.insert(0, OnAnyDevice())


class OnAnyDevice(importlib.abc.MetaPathFinder):
    """Lets trainparts.float8_support load as ever, then has each device have float8."""

    def find_spec(self, name, path, target=None):
        if name != "trainparts.float8_support":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.has_float8 = lambda device: True

        spec.loader.exec_module = exec_module
        return spec


if "FLOAT8_EMULATED" in os.environ:
    emulate_float8()
if "FLOAT64" in os.environ:
    in_float64(os.environ["FLOAT64"])
if "ONLY_FROM" in os.environ:
    only_from(os.environ["ONLY_FROM"])
if "NO_FLOCK" in os.environ:
    no_flock(os.environ["NO_FLOCK"])
if "STORAGE" in os.environ:
    break_storage(*os.environ["STORAGE"].split())
for name in "SIGTERM", "SIGKILL":
    if f"{name}_AT" in os.environ:
        send_at(int(os.environ[f"{name}_AT"]), getattr(signal, name))
