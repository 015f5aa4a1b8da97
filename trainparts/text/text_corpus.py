"""Text in files: of a language model, as bytes or as tokens that were made once; tables of rows.

Use it to find and read train and val, to cut a language model's text into blocks, and to read the
rows of TSV files; and to make the demo's text and rows, where there are no files.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import random
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainparts import errors


class Sequences(NamedTuple):
    """Sequence i of training or validation has `length[i]` tokens from `offset[i]` on."""

    path: str
    tokens: np.ndarray  # (T,) all, end to end
    offset: np.ndarray  # (N,)
    length: np.ndarray  # (N,)
    second: np.ndarray  # (N,) tokens before the second sentence of a pair
    target: np.ndarray  # (N,) classes; zeros for a language model
    vocabulary: int  # number of possible tokens
    words: list[str] | None = None  # a language model's words, by token
    tokenizer: str | None = None  # a digest of it, of digest_of(); None = not known, or words
    pad: int = 0  # the token that fills an encoder's sequence
    pads_left: bool = False  # its tokenizer would fill it on the left

    def digest(self) -> str:
        """Returns "N sequences, HASH", a hash of positions, classes and up to 4 million tokens."""
        hashed = hashlib.sha256(b"%d" % self.vocabulary)
        for array in self[2:6]:
            hashed.update(array.tobytes())
        for start in range(0, len(self.tokens), max(4096, len(self.tokens) // 1000)):
            hashed.update(self.tokens[start : start + 4096].astype(np.int64).tobytes())
        return f"{len(self.target)} sequences, {hashed.hexdigest()[:8]}"


class Row(NamedTuple):
    """A row of a table."""

    label: int  # its class
    sentences: tuple[str, ...]  # one or two


class Bins(NamedTuple):
    """The tokens of several files without a header, and what meta.json says of them."""

    words: list[str] | None  # by token, where tokens are words
    vocabulary: int  # number of possible tokens
    tokenizer: str | None  # a digest of it, of digest_of(); None = not known, or words
    arrays: list[np.ndarray]  # (T,) tokens of each file


# -------------------------------------------------------------------------------------------- files


def find_text(
    folder: str | os.PathLike[str], names: Sequence[str], below: str, reader: str
) -> Path:
    """Returns the path of the first of these names in a folder, or in the folder `below` in it. If
    there is none, raises BadInput with a line that says that `reader` reads such a file."""
    folders = Path(folder), Path(folder) / below
    if found := [*filter(errors.look_at, (path / name for path in folders for name in names))]:
        return found[0]
    raise errors.BadInput(f"{folder} has no {names[0]}, which {reader} reads")


def map_bytes(path: str | os.PathLike[str]) -> np.ndarray:
    """Returns a file's bytes, (N,) uint8, mapped, so that they may exceed the memory. Raises
    BadInput or Fault if the file cannot be read or is empty."""
    try:
        content = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:  # also an empty file
        raise errors.storage_error(f"{path} cannot be read", error, typed=True) from None
    if pointer := errors.lfs_pointer(content[:100].tobytes()):
        raise errors.BadInput(f"{path} {pointer}")
    return content


def read_text(path: str | os.PathLike[str]) -> str:
    """Returns the text of a file in UTF-8, without the byte order mark that it may begin with.
    Raises BadInput or Fault if it cannot be read."""
    raw = map_bytes(path)
    try:
        return str(raw.data, "utf-8-sig")
    except ValueError as error:  # not in UTF-8
        raise errors.storage_error(f"{path} cannot be read", error, typed=True) from None


def view_bins(paths: Sequence[Path], raw: Sequence[np.ndarray]) -> Bins:
    """Returns the Bins of files without a header, like nanoGPT's, from their bytes, (N,) uint8.
    meta.json beside the first file, which tools/prepare_text.py writes, says what the files
    contain. Raises BadInput or Fault if meta.json does not say it, or if the files do not match
    it."""
    meta = paths[0].with_name("meta.json")
    try:
        about = json.loads(meta.read_text())
        dtype = {"uint16": "<u2", "uint32": "<u4"}[about["dtype"]]
        words = [] + about.get("words", [])  # must be a list
        vocabulary, digest = int(about["vocabulary"]), about.get("tokenizer")
        size = np.dtype(dtype).itemsize
        if cut := [str(path) for path, each in zip(paths, raw, strict=True) if each.size % size]:
            raise errors.BadInput(f"{cut[0]} ends within a token")
        arrays = [array.view(dtype) for array in raw]
        if words and len(words) != vocabulary:
            raise ValueError(f"it has {len(words)} words, and a vocabulary of {vocabulary}")
        if not 0 < vocabulary <= 256**size:
            raise ValueError(f"a vocabulary of {vocabulary} does not fit into {about['dtype']}")
        halves = np.concatenate([array.view("<u2")[1 : 10**6 : 2] for array in arrays])
        if dtype == "<u2" and vocabulary > 1 and len(halves) > 64 and not halves.any():
            raise ValueError("every second token is 0: the files are of uint32, not of uint16")
        return Bins(words or None, vocabulary, digest, arrays)
    except errors.BadInput:
        raise
    except Exception as error:  # the file may hold anything
        wanted = '; for GPT-2\'s tokens it says {"vocabulary": 50257, "dtype": "uint16"}'
        raise errors.storage_error(meta, error, typed=True, advice=wanted) from None


# ------------------------------------------------------------------------------------------- blocks


def cut_blocks(
    path: str | os.PathLike[str],
    tokens: np.ndarray,
    length: int,
    *,
    vocabulary: int,
    words: list[str] | None = None,
    tokenizer: str | None = None,
    to_end: bool = False,
) -> Sequences:
    """Returns the Sequences of a language model: tokens (T,) in blocks of `length` targets. Block i
    begins at token i x length, and ends with the first token of the next block, so every token but
    the first is a target once. An incomplete last block is left out, but kept if `to_end`. Raises
    BadInput if there is no block, or if more than half of the words are unknown."""
    rounded = math.ceil if to_end else math.floor
    offset = length * np.arange(rounded((len(tokens) - 1) / length))
    if not len(offset):
        raise errors.BadInput(f"{path} has {len(tokens)} tokens, too few for --max-length {length}")
    if words and (tokens[: 10**6] == 0).mean() > 0.5:
        raise errors.BadInput(f"{path}: more than half of its words do not occur in training")
    zeros = np.zeros(len(offset), np.int8)
    return Sequences(
        str(path),
        tokens,
        offset,
        length=np.minimum(length + 1, len(tokens) - offset),
        second=zeros,
        target=zeros,
        vocabulary=vocabulary,
        words=words,
        tokenizer=tokenizer,
    )


def demo_text() -> list[np.ndarray]:
    """Returns 90 % and 10 % of Python's language reference, each as bytes (N,) uint8 in UTF-8."""
    topics = importlib.import_module("pydoc_data.topics").topics
    raw = np.frombuffer("\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8)
    return np.split(raw, [len(raw) // 10 * 9])


# --------------------------------------------------------------------------------------------- rows


def read_rows(
    path: str | os.PathLike[str],
    columns: Sequence[str],
    label: str,
    classes: Sequence[str],
    header: Sequence[str] | None = None,
    some_are_cut: bool = False,
) -> tuple[list[Row], list[str]]:
    """Returns the rows of a TSV file, in which quotes have no meaning, and lines that say what is
    left out or looks wrong. `columns` have the sentences; the column `label` has one of `classes`,
    or -, where annotators did not agree. `header` has the names of the columns if the file's first
    row does not. If `some_are_cut`, rows with too few cells are left out. Raises BadInput if the
    file is not such a table."""
    rows_of_text = read_text(path).replace("\r\n", "\n").split("\n")
    first = 1
    if header is None:
        header, first = rows_of_text.pop(0).split("\t"), 2
    check_columns(path, (*columns, label), header)
    rows = []
    short = unlabeled = quoted = 0
    for number, line in enumerate(rows_of_text, first):
        cells = line.split("\t")
        row = dict(zip(header, cells, strict=False))
        if not line or (some_are_cut and len(cells) < len(header)):
            short += bool(line)
        elif len(cells) != len(header):
            raise errors.BadInput(
                f"{path}: line {number} has {len(cells)} columns, not {len(header)}"
            )
        elif row[label] == "-":  # in SNLI and MultiNLI, where annotators did not agree
            unlabeled += 1
        elif row[label] not in classes:
            given = f"line {number} has the label {row[label][:50]!r}"
            raise errors.BadInput(f"{path}: {given}, none of {', '.join(classes)}")
        else:
            rows.append(Row(classes.index(row[label]), tuple(row[name] for name in columns)))
            quoted += any(re.fullmatch('".*"".*"', row[name]) is not None for name in columns)
    lines = []
    if short:
        lines.append(f"{path}: {short} incomplete rows are left out")
    if unlabeled:
        lines.append(f"{path}: {unlabeled} rows with the label - are left out")
    if quoted:
        how = 'read as they stand, as in GLUE; to_csv(..., sep="\\t", quoting=3) writes none'
        lines.append(f"{path}: {quoted} sentences are in quotes, with quotes doubled: {how}")
    return rows, lines


def check_columns(
    path: str | os.PathLike[str], names: Iterable[str], header: Collection[str]
) -> None:
    """Raises BadInput if a table's header does not have each of these names once."""
    found = [*header]
    counted = {name: found.count(name) for name in names}
    if missing := [name for name in counted if not counted[name]]:
        given = ", ".join(found)[:200]
        raise errors.BadInput(
            f"{path} has no column {missing[0]!r}, but {given} (test.tsv has no labels)"
        )
    if twice := [name for name in counted if counted[name] > 1]:
        raise errors.BadInput(f"{path} has the column {twice[0]!r} more than once")


def demo_rows() -> tuple[list[Row], list[Row]]:
    """Returns 4,000 sentences for training and 1,000 for validation: of class 0 if they have a
    fault, else of class 1."""
    # A fault is a wrong article, a wrong order, a repeated word, or a verb in the wrong number,
    # which a noun in between may hide.
    rows = []
    rng = random.Random(0)
    nouns = "cat dog artist engineer owl bird uncle teacher ant actor farmer elephant".split()
    for _ in range(5000):
        fault = rng.choice([*"article order twice".split() * 2, "number", *[None] * 16])
        subject, between, thing = rng.choices(nouns, k=3)
        many = rng.random() < 0.5
        words = ["the", subject + "s" * many]
        words += rng.choice(([], ["near", "the", between], ["behind", "the", between + "s"]))
        words += [rng.choice(("see", "like", "follow")) + "s" * (many == (fault == "number"))]
        words += ["an" if (thing[0] in "aeou") != (fault == "article") else "a", thing]
        at = rng.randrange(len(words) - 1)
        if fault == "order":
            words[at : at + 2] = words[at + 1], words[at]
        elif fault == "twice":
            words.insert(at, words[at])
        rows.append(Row(int(fault is None), (" ".join(words),)))
    return rows[:4000], rows[4000:]
