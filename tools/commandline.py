"""What the tools' command lines have in common: whatever goes wrong is one line."""

import argparse
import contextlib
import errno

# What no line sends to a terminal, which would take it for commands.
CONTROL = {n: f"\\x{n:02x}" for n in (*range(9), *range(11, 32), *range(127, 160))}


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
