"""For forked.py, which imports this module first: timm and transformers import these where they are
installed, for which the scripts have no use; a server that is smaller is forked faster."""

import sys

NAMES = "wandb", "torchao"

for name in NAMES:
    sys.modules[name] = None
