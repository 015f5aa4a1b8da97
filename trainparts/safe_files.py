"""Files of tensors, written as a whole or not at all, and read only if they are intact.

Use it to save and load what torch.save() writes. Nothing in a file that is loaded is executed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import shlex
import sys
import warnings
import zipfile
from collections.abc import Callable
from io import BufferedWriter
from pathlib import Path

import numpy as np
import torch

from trainparts import errors

__all__ = ["load_file", "write_atomically"]

# What torch.load() returns where it executes nothing; a dict or a list may have more of it.
Content = dict | list | torch.Tensor | str | float | None


def write_atomically(
    path: str | os.PathLike[str], *, save: Callable[[BufferedWriter], object]
) -> None:
    """Atomically replaces a file by what save(file) writes, which is on the disk before it gets the
    file's name. Raises Fault or BadInput if it cannot be written; the previous file is intact
    then."""
    path = Path(path)
    temporary = path.with_suffix(".tmp.tmp" if path.suffix == ".tmp" else ".tmp")
    try:
        temporary.unlink(missing_ok=True)  # what a killed process left, or a link to another file
        with open(temporary, "xb") as file:
            save(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        directory = os.open(path.parent, os.O_RDONLY)
        with contextlib.suppress(OSError):  # some file systems cannot fsync() a folder
            os.fsync(directory)
        os.close(directory)
    except (OSError, RuntimeError) as error:
        # After the file's error PyTorch raises one of its own.
        failed = error if isinstance(error, OSError) else error.__context__
        if not isinstance(failed, OSError):
            raise
        what = f"{path} cannot be written; the previous one is intact"
        raise errors.storage_error(what, failed) from None
    finally:
        with contextlib.suppress(OSError):  # a part of it would keep a full disk full
            temporary.unlink(missing_ok=True)


def load_file(path: str | os.PathLike[str], *, typed: bool = True) -> Content:
    """Returns what torch.save() wrote, with its tensors in host memory, or the tensors of a
    *.safetensors file; of one of tools/look.py also what a checkpoint says of its model. Nothing in
    the file is executed. Raises Damaged if the file is damaged or of another kind; BadInput if the
    path is wrong and `typed`, one that the user has typed; and Fault if it cannot be read now."""
    # The file is read as a whole first. If a disk does not answer, zipfile and torch.load() would
    # say that the file is damaged, and then an older one would be taken.
    try:
        content = io.BytesIO(Path(path).read_bytes())
    except (OSError, ValueError, MemoryError) as error:
        raise errors.storage_error(f"{path} cannot be loaded", error, typed) from None
    if pointer := errors.lfs_pointer(content.getvalue()):
        raise errors.Damaged(f"{path} {pointer}")
    try:
        if zipfile.is_zipfile(content):  # files from before 2020 are none, and have no checksums
            with zipfile.ZipFile(content) as archive:  # torch.load() does not compare checksums
                # PyTorch reads a record with the attributes of a folder as empty.
                records = archive.infolist()
                folders = (each.filename for each in records if each.external_attr & 0x10)
                if damaged := archive.testzip() or next(folders, None):
                    raise ValueError(f"{damaged} is damaged")
                if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                    weights = f"torch.jit.load({str(path)!r}, 'cpu').state_dict()"
                    out = f"{Path(path).stem}_weights.pt"
                    code = f"import torch; torch.save({weights}, open({out!r}, 'xb'))"
                    command = shlex.join([sys.executable, "-c", code])
                    what = f"{path} is a program of TorchScript"
                    raise errors.Damaged(f"{what}: {command} writes its weights into {out}")
        content.seek(0)
        if Path(path).suffix == ".safetensors":
            return read_safetensors(content.getvalue())
        # Other projects save their options, and numbers of NumPy: none of it runs code.
        numbers: list = [np.dtype, type(np.dtype("float64")), type(np.dtype("float32"))]
        scalar = np.float64(0).__reduce__()[0]
        numbers += [scalar, (scalar, "numpy.core.multiarray.scalar")]
        # One line says what is wrong, not PyTorch's warnings of odd tensors and pickles.
        with torch.serialization.safe_globals([argparse.Namespace, *numbers]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.load(content, map_location="cpu", weights_only=True)
    except errors.Damaged:
        raise
    except ImportError:
        raise errors.BadInput(f"{path} needs safetensors: pip install safetensors") from None
    except Exception as error:  # a damaged file may raise anything
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise errors.BadInput(f"{path} cannot be loaded: no memory for it") from None
        why = f"damaged, or no checkpoint ({errors.first_line(error)})"
        if "Weights only" in why:  # PyTorch's advice would be to trust it
            why = "no checkpoint, or one with Python objects, which could run code"
        raise errors.Damaged(f"{path} cannot be loaded: {why}") from None


def read_safetensors(content: bytes) -> Content:
    """Returns {name: tensor} of a file in this format. If its metadata have an "about" with what a
    checkpoint says of its model, as JSON, that is returned, with the tensors as "state_dict"."""
    tensors = importlib.import_module("safetensors.torch").load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    try:
        about = json.loads(header.get("__metadata__", {}).get("about", "null"))
    except ValueError:  # another program's, in a form of its own
        about = None
    if isinstance(about, dict) and "model_options" in about:
        return about | {"state_dict": tensors}
    return tensors


def weight_fits(weight: torch.Tensor, own: torch.Tensor) -> bool:
    """Returns whether a weight from a file fits one of a model's, `own`: it is dense, has the same
    shape, and is floating-point if `own` is. Integers in place of floating-point numbers are
    quantised, and their scale is stored elsewhere."""
    real = weight.is_floating_point() or not own.is_floating_point()
    return weight.shape == own.shape and real and weight.layout == torch.strided
