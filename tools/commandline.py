"""What the tools' command lines have in common: whatever goes wrong is one line, and `trainparts`
is this checkout's, also where none or another one is installed. Import this module before it."""

import argparse
import contextlib
import errno
import importlib.util
import os
import sys
from pathlib import Path

# What no line sends to a terminal, which would take it for commands.
CONTROL = {n: f"\\x{n:02x}" for n in (*range(9), *range(11, 32), *range(127, 160))}
ROOT = Path(__file__).resolve().parents[1]
_BESIDE = "TRAINPARTS_BESIDE"  # a folder, from use_package_of()
OWN = _BESIDE not in os.environ  # whether trainparts is this checkout's
FOLDER = os.environ.pop(_BESIDE, str(ROOT))  # where it is
sys.path.insert(0, FOLDER)
sys.path.append(str(ROOT))  # has reporting/, also where FOLDER is another


def _say_which_package(kind, error, trace):
    """The excepthook of a program that use_package_of() has started again: what would be a bug of
    its own package is another version of it, or a mistake in it."""
    if not issubclass(kind, (ImportError, SyntaxError, NameError, AttributeError, TypeError)):
        return sys.__excepthook__(kind, error, trace)
    why = f"{kind.__name__}: {(str(error).splitlines() or [''])[0]}".translate(CONTROL)
    line = f"{Path(sys.argv[0]).name}: error: {FOLDER}/trainparts does not fit this program ({why})"
    print(f"{line}: mend it, or use this program of its own checkout", file=sys.stderr, flush=True)
    os._exit(2)


if not OWN:
    sys.excepthook = _say_which_package


def make_parser(description):
    """Returns a parser whose errors are one line, and which keeps the lines of its description."""
    options = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser(description=description, **options)
    parser.usage = argparse.SUPPRESS
    return parser


# Errors of storage that the user must remove, as the scripts have them: all paths here were typed.
MISTAKES = "ENOENT ENOTDIR EISDIR EEXIST EACCES ENAMETOOLONG ELOOP EINVAL".split()
MISTAKES += "EMFILE EFBIG EAGAIN ENOMEM".split()


def end(parser, error, text=""):
    """Ends the program with one line: with status 1 if storage fails that may be well again, as of
    a training script's Fault, else with 2."""
    status = getattr(error, "status", 2)
    if isinstance(error, OSError) and error.errno:
        status = 2 if errno.errorcode.get(error.errno) in MISTAKES else 1
    text = text or str(error).strip() or type(error).__name__
    parser.exit(status, f"{parser.prog}: error: {text.splitlines()[0].translate(CONTROL)}\n")


@contextlib.contextmanager
def one_line(parser, *mistakes):
    """Ends the program where one of these is raised, by end(); after Ctrl-C with 130."""
    try:
        yield
    except mistakes as error:
        end(parser, error)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def use_package_of(script):
    """Starts the program again, with the same words, if trainparts/ beside a script is another than
    the program's. In one process a script of a fork would be mixed with this checkout's modules.
    Raises ValueError if it lacks a module that this checkout has."""
    there = Path(script).resolve().parent / "trainparts"
    mine = Path(importlib.util.find_spec("trainparts").origin).parent
    if not there.is_dir() or there.samefile(mine):
        return
    modules = (path.relative_to(mine) for path in sorted(mine.rglob("*.py")))
    if missing := [str(path) for path in modules if not (there / path).exists()]:
        what = f"{there} is of another version, and lacks {len(missing)} modules, as {missing[0]}"
        raise ValueError(f"{what}: use this program of its own checkout")
    sys.stdout.flush()
    sys.stderr.flush()
    beside = {_BESIDE: str(there.parent)}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | beside)
