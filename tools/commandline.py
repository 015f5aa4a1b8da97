"""What the tools' command lines have in common: whatever goes wrong is one line."""

import argparse
import contextlib

# What no line sends to a terminal, which would take it for commands.
CONTROL = {n: f"\\x{n:02x}" for n in (*range(9), *range(11, 32), *range(127, 160))}


def make_parser(description):
    """Returns a parser whose errors are one line, and which keeps the lines of its description."""
    options = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser(description=description, **options)
    parser.usage = argparse.SUPPRESS
    return parser


@contextlib.contextmanager
def one_line(parser, *mistakes):
    """Ends the program where one of these is raised, with status 2; after Ctrl-C with 130."""
    try:
        yield
    except mistakes as error:
        text = str(error).strip() or type(error).__name__
        parser.error(text.splitlines()[0].translate(CONTROL))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
