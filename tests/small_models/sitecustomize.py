"""On PYTHONPATH, makes torchvision's ViTs small (2 layers, 32 wide), so that tests of the scripts
are quick: ViT is the family with neither BatchNorm nor dropout. Nothing in the scripts changes.
$SIGTERM_AT=7, or $SIGKILL_AT, has a process that trains send itself this signal at the seventh
event: it begins to train or to validate, or has read the sums of a step."""

import gc
import importlib.abc
import importlib.util
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


for name in "SIGTERM", "SIGKILL":
    if f"{name}_AT" in os.environ:
        send_at(int(os.environ[f"{name}_AT"]), getattr(signal, name))
