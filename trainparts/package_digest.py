"""Which trainparts this is: its version, and a digest of its files.

Use it to note beside a result what made it, and to tell two copies of the package apart.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from trainparts import VERSION


def read_package(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Returns {path below it: text} of the files of a package in a folder: Python and data, but no
    compiled code, and nothing hidden, such as an editor's locks."""
    texts, folder = {}, Path(folder)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in name.parts)
        if path.suffix in (".py", ".txt") and path.is_file() and not hidden:
            texts[str(name)] = path.read_text("utf-8", errors="replace")
    return texts


def hash_texts(texts: Mapping[str, str]) -> str:
    """Returns the first 12 hexadecimal digits of SHA-256 over {path: text}."""
    return hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:12]


# Read when this is imported: a run lasts longer than its package may stay as it is. In a script of
# one file these are constants: there is no other file to read.
TEXTS = read_package(Path(__file__).parent)
IDENTITY = f"{VERSION}+{hash_texts(TEXTS)}"
