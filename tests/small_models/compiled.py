"""The code of this project's programs and of trainparts/, for forked.py: compiling either takes up
to a tenth of a second in each start. So does a collection of garbage that looks at all that the
server has imported, and copies its memory: this module, which the server imports last, leaves none
of that to its forks."""

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
