"""The code of this project's programs and of trainparts/, for forked.py: compiling either takes up
to a tenth of a second in each start. So does a collection of garbage that looks at all that the
server has imported, and copies its memory: this module, which the server imports last, leaves none
of that to its forks."""

import ctypes
import gc
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import absent

CODE = {}  # {(path, content): code}


def code_of(path):
    """Returns a program's code."""
    key = str(path), Path(path).read_bytes()
    if key not in CODE:
        CODE[key] = compile(key[1], key[0], "exec")
    return CODE[key]


def join_pages():
    """Joins this process's memory in pages of 2 MiB, where Linux can: a fork copies the table of
    its pages, and frees it, which takes two thirds of an empty fork's time with pages of 4 KiB."""
    maps, madvise, size = Path("/proc/self/maps"), ctypes.CDLL(None).madvise, 2 << 20
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for line in maps.read_text().splitlines() if maps.exists() else ():
        place, mode, _, _, inode, *_ = line.split()
        first, end = (int(address, 16) for address in place.split("-"))
        if mode.startswith("rw") and inode == "0":  # of no file
            for address in range(-(-first // size) * size, end - size + 1, size):
                madvise(address, size, 25)  # MADV_COLLAPSE


compile_anew = SourceFileLoader.source_to_code


def source_to_code(loader, content, path, *more, **options):
    """Does what import does with a module's source, unless this very file was compiled here."""
    return CODE.get((path, content)) or compile_anew(loader, content, path, *more, **options)


for pattern in "*_*.py", "trainparts/**/*.py", "tests/small_models/*.py":
    for program in Path(__file__).parents[2].glob(pattern):
        code_of(program)
SourceFileLoader.source_to_code = source_to_code
for name in absent.NAMES:
    del sys.modules[name]
gc.freeze()
join_pages()
