"""For forked.py, which imports this module first: timm imports these where they are installed, for
which the scripts have no use; a server that is smaller is forked faster. PyTorch says nothing of
torchao, which the server imports."""

import logging
import sys

NAMES = ("wandb",)

logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
for name in NAMES:
    sys.modules[name] = None
