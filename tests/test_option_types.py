"""Types of options: which texts are numbers of a range, and the line on others."""

import argparse
import re

import pytest

from trainparts import option_types

MOST = 9223372036854775807  # of 64 bits


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("non_negative_int", "0", 0),
        ("non_negative_int", str(MOST), MOST),
        ("positive_int", "1", 1),
        ("positive_int", " 12 ", 12),
        ("non_negative", "0", 0.0),
        ("non_negative", "1e12", 1e12),
        ("positive", "1e-12", 1e-12),
        ("zero_to_1", "0", 0.0),
        ("zero_to_1", "1", 1.0),
        ("fraction", "1e-9", 1e-9),
        ("fraction", "1", 1.0),
        ("fraction", ".25", 0.25),
    ],
)
def test_a_number_of_the_range_is_taken_its_ends_included(kind, text, value):
    found = getattr(option_types, kind)(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "range_"),
    [
        ("non_negative_int", "-1", f"int from 0 to {MOST}"),
        ("non_negative_int", str(MOST + 1), f"int from 0 to {MOST}"),
        ("non_negative_int", "1.0", f"int from 0 to {MOST}"),
        ("positive_int", "0", f"int from 1 to {MOST}"),
        ("positive_int", "", f"int from 1 to {MOST}"),
        ("non_negative", "-1e-9", "float from 0 to 1000000000000.0"),
        ("non_negative", "1.1e12", "float from 0 to 1000000000000.0"),
        ("non_negative", "nan", "float from 0 to 1000000000000.0"),
        ("non_negative", "inf", "float from 0 to 1000000000000.0"),
        ("positive", "0", "float from 1e-12 to 1000000000000.0"),
        ("zero_to_1", "1.001", "float from 0 to 1"),
        ("zero_to_1", "half", "float from 0 to 1"),
        ("fraction", "0", "float from 1e-09 to 1"),
        ("fraction", "-nan", "float from 1e-09 to 1"),
    ],
)
def test_another_text_ends_in_a_line_with_the_range(kind, text, range_):
    with pytest.raises(
        argparse.ArgumentTypeError, match=f"^{re.escape(f'{text} is no {range_}')}$"
    ):
        getattr(option_types, kind)(text)


def test_a_range_is_of_its_kind_and_ends():
    parse = option_types.number_between(int, -3, 5)
    assert (parse("-3"), parse("5")) == (-3, 5)
    with pytest.raises(argparse.ArgumentTypeError, match=r"^6 is no int from -3 to 5$"):
        parse("6")
