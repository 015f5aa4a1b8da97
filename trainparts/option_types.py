"""Types of options for argparse: numbers from a range.

Use it as `type=` of an option, so that a wrong value ends in a line with the range.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable

# What an option may be, and what else is logged of a run, as JSON has it.
Value = str | float | bool | list | tuple | dict | None


def number_between(
    kind: type[int] | type[float], least: float, most: float
) -> Callable[[str], float]:
    """Returns an argparse type: a `kind` (int, float) from `least` to `most`."""

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):  # no number
            if least <= kind(text) <= most:
                return kind(text)
        raise argparse.ArgumentTypeError(f"{text} is no {kind.__name__} from {least} to {most}")

    return parse


non_negative_int = number_between(int, 0, 2**63 - 1)
positive_int = number_between(int, 1, 2**63 - 1)
non_negative = number_between(float, 0, 1e12)
positive = number_between(float, 1e-12, 1e12)
zero_to_1 = number_between(float, 0, 1)
fraction = number_between(float, 1e-9, 1)
