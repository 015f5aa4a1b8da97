"""Which trainparts this is: its version, and a digest of its files.

Use it to note beside a result what made it, and to tell two copies of the package apart.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from trainparts import VERSION


def read_package(folder):
    """Returns {path below it: text} of the files of a package in a folder: Python and data, but no
    compiled code, and no lock of an editor."""
    found = sorted(path for path in Path(folder).rglob("[!.]*") if path.suffix in (".py", ".txt"))
    return {str(path.relative_to(folder)): path.read_text() for path in found if path.is_file()}


def hash_texts(texts):
    """Returns the first 12 hexadecimal digits of SHA-256 over {path: text}."""
    return hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:12]


# Read when this is imported: a run lasts longer than its package may stay as it is. In a script of
# one file these are constants: there is no other file to read.
TEXTS = read_package(Path(__file__).parent)
IDENTITY = f"{VERSION}+{hash_texts(TEXTS)}"
