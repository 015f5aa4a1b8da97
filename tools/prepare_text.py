"""Makes what text_*.py read: GLUE's tables, or the tokens of a text.

    hf download nyu-mll/glue --repo-type dataset --local-dir GLUE
    python tools/prepare_text.py glue GLUE OUT                     # OUT/CoLA/train.tsv, dev.tsv ...
    python tools/prepare_text.py lm input.txt OUT                  # OUT/train.txt, OUT/val.txt
    python tools/prepare_text.py lm TEXT OUT --tokenizer FOLDER    # train.bin, val.bin, meta.json
    python tools/prepare_text.py lm TEXT OUT --tokenizer words     # the same, of words

OUT then is a DIR of the scripts. TEXT is a file, or a folder: its train.txt and its val.txt or
valid.txt stay apart; without these, all its *.txt are one text, each from a line of its own, of
which the end is for validation. The scripts tokenize a text at each start on each rank, in memory;
OUT's tokens are the same, made once: those of the whole text, though it is read in pieces. The
layout is nanoGPT's: tokens end to end, 16 bits each, or 32 where there are more than 65,536.
"""

import argparse
import codecs
import contextlib
import functools
import json
import math
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
from commandline import make_parser, one_line
from tqdm import tqdm

import text_nd as nd
from trainparts import errors, option_types, safe_files
from trainparts.text import text_corpus, tokenizing

PIECE = 1 << 20  # bytes of a text at a time
# Where the columns of text are called otherwise than GLUE's.
PARQUET = {"mrpc": ["sentence1", "sentence2"], "mnli": ["premise", "hypothesis"]}


@contextlib.contextmanager
def new_folder(out):
    """Gives a folder to fill, which is named `out` when it is whole, and else removed."""
    for folder in out, out.parent / f"{out.name}.unfinished":
        if folder.exists():
            why = "nothing is overwritten; remove it, or name another folder"
            raise errors.BadInput(f"{folder} is there already: {why}")
    try:
        folder.mkdir(parents=True)
        yield folder
        folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -------------------------------------------------------------------------------------------- GLUE


def list_shards(folder, split):
    """Returns the paths of train-00000-of-00002.parquet and its kin, none of which is missing."""
    last = max(folder.glob(f"{split}-?????-of-?????.parquet"), default=Path("of-00001")).stem[-5:]
    names = [f"{split}-{number:05}-of-{last}.parquet" for number in range(int(last))]
    if missing := [name for name in names if not (folder / name).exists()]:
        raise errors.BadInput(f"{folder} has no {missing[0]}")
    return [folder / name for name in names]


def read_parquet(path, columns):
    """Yields the rows of a file, some thousands at a time."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise errors.BadInput("GLUE's files are parquet: pip install pyarrow") from None
    try:
        for batch in ParquetFile(path).iter_batches(4096, columns=columns):
            yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
    except Exception as error:  # whatever a library makes of a damaged file
        raise errors.BadInput(f"{path} cannot be read: {errors.first_line(error)}") from None


def write_table(task, paths, name, file):
    """Writes the rows of some files as one of GLUE's, in which quotes quote nothing."""
    columns, label, classes = nd.GLUE[task]
    count = changed = 0
    if task != "cola":  # its files begin with their first row
        file.write("\t".join(["index", *columns, label]).encode() + b"\n")
    for path in paths:
        for number, *texts in read_parquet(path, ["label", *PARQUET.get(task, columns)]):
            if number not in range(len(classes)) or None in texts:
                wrong = f"label {number}, none of 0 to {len(classes) - 1}, or a sentence is missing"
                raise errors.BadInput(f"{path}: row {count} of {name}: {wrong}")
            clean = [re.sub("[\t\r\n]", " ", text) for text in texts]
            changed += clean != texts
            if task == "cola":  # the source, and by its own mark what is no sentence
                cells = ["glue", classes[number], "" if number else "*", *clean]
            else:
                cells = [str(count), *clean, classes[number]]
            file.write("\t".join(cells).encode() + b"\n")
            count += 1
    blanks = f", in {changed} of which tabs or ends of lines became blanks" if changed else ""
    errors.print_line(f"{name}: {count} rows{blanks}")


def prepare_glue(args):
    """Writes the tables of all tasks that are there as Hugging Face's parquet."""
    tasks = {task: args.input / task.replace("-", "") for task in nd.GLUE}
    if not any(map(Path.is_dir, tasks.values())):
        names = ", ".join(path.name for path in tasks.values())
        raise errors.BadInput(f"{args.input} has none of the folders {names}")
    with new_folder(args.out) as out:
        for task, folder in tasks.items():
            for kind in ("_matched", "_mismatched") if task == "mnli" else ("",):
                for split, part in ("train", "train"), (f"validation{kind}", f"dev{kind}"):
                    path = out / {"cola": "CoLA"}.get(task, task.upper()) / f"{part}.tsv"
                    if folder.is_dir() and not path.exists():
                        path.parent.mkdir(exist_ok=True)
                        words = task, list_shards(folder, split), path.relative_to(out)
                        safe_files.write_atomically(
                            path, save=functools.partial(write_table, *words)
                        )


# ------------------------------------------------------------------------------------------ a text


def open_text(path):
    """Returns a file's bytes (N,) uint8, without a mark of their order at the beginning."""
    raw = text_corpus.map_bytes(path)
    return raw[3 * raw[:3].tobytes().startswith(codecs.BOM_UTF8) :]


def split_text(path, share):
    """Returns {"train", "val": [(path, bytes (N,) uint8)]}: files of these names, or beginning and
    end of all there is, with an end of line between files."""
    train, *vals = (path / name for name in ("train.txt", "val.txt", "valid.txt"))
    if any(map(Path.exists, (train, *vals))):
        if share:
            raise errors.BadInput(f"{path} has a part for validation: --val is for one text")
        val = next(filter(Path.exists, vals), vals[0])
        return {"train": [(train, open_text(train))], "val": [(val, open_text(val))]}
    paths = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    texts = [(each, open_text(each)) for each in paths if each == path or each.stat().st_size]
    texts = [(each, raw) for each, raw in texts if len(raw)]
    line = np.frombuffer(b"\n", np.uint8)
    for number, (_, raw) in reversed([*enumerate(texts[:-1], 1)]):
        if raw[-1:].tobytes() != b"\n":
            texts.insert(number, (texts[number - 1][0], line))
    parts = {"train": [], "val": []}
    left = int(sum(len(raw) for _, raw in texts) * (1 - (share or 0.1)))  # as nanoGPT cuts
    for each, raw in texts:
        at = min(left, len(raw))
        while 0 < at < len(raw) and raw[at] & 0xC0 == 0x80:  # within a character
            at += 1
        parts["train"].append((each, raw[:at]))
        parts["val"].append((each, raw[at:]))
        left = max(0, left - at)
    return parts


def read_text(parts, part):
    """Yields the text of a part in pieces, files end to end."""
    size = math.ceil(sum(len(raw) for _, raw in parts[part]) / PIECE)
    with tqdm(desc=part, total=size, unit=" MB", disable=None) as bar:
        for path, raw in parts[part]:
            decode = codecs.getincrementaldecoder("utf-8")().decode
            try:
                for start in range(0, len(raw), PIECE):
                    end = start + PIECE
                    yield decode(raw[start:end].tobytes(), final=end >= len(raw))
                    bar.update()
            except UnicodeError as error:
                raise errors.BadInput(f"{path} is no UTF-8: {errors.first_line(error)}") from None


def prepare_lm(args):
    """Writes both parts of a text: its tokens, or the text where bytes are tokens."""
    parts = split_text(args.input, args.val)
    if args.tokenizer == "bytes":
        if (args.input / "train.txt").exists():
            raise errors.BadInput(
                f"{args.input} is a DIR of the scripts as it is: give --tokenizer"
            )
        suffix, size, about = "txt", 1, {"vocabulary": 256}
        contents = {part: [raw for _, raw in texts] for part, texts in parts.items()}
    else:
        if args.tokenizer != "words" and not Path(args.tokenizer).is_dir():
            raise errors.BadInput(f"--tokenizer {args.tokenizer}: no folder, nor words or bytes")
        read = read_text(parts, "train")
        made = tokenizing.make_encoder(args.tokenizer, read, tell=errors.print_line)
        about = made._asdict()
        encode = about.pop("encode")
        about = {name: value for name, value in about.items() if value}
        wide = about["vocabulary"] > 1 << 16
        suffix, size, about = "bin", 2 + 2 * wide, about | {"dtype": "uint32" if wide else "uint16"}
        contents = {
            part: (np.array(ids, f"<u{size}") for ids in encode(read_text(parts, part)))
            for part in parts
        }
    tokens = {}
    with new_folder(args.out) as out:
        for part, content in contents.items():
            path = out / f"{part}.{suffix}"
            safe_files.write_atomically(
                path, save=lambda file, content=content: file.writelines(content)
            )
            tokens[part] = path.stat().st_size // size
            if not tokens[part]:
                raise errors.BadInput(f"{args.input} has no *.txt, or too little: {part} is empty")
        if suffix == "bin":
            content = json.dumps(about).encode()
            safe_files.write_atomically(out / "meta.json", save=lambda file: file.write(content))
    both = f"{tokens['train']} tokens to train on, {tokens['val']} to validate"
    errors.print_line(f"{args.out}: {both}, of {about['vocabulary']} that there are")


def main():
    """Reads the command line and runs the command."""
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, way in ("glue", prepare_glue), ("lm", prepare_lm):
        words = {"help": way.__doc__, "description": way.__doc__, "prog": f"{parser.prog} {name}"}
        one = commands.add_parser(name, **words, usage=argparse.SUPPRESS, allow_abbrev=False)
        one.set_defaults(way=way)
        one.add_argument("input", type=Path, metavar="IN", help="what there is")
        one.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    names = "a FOLDER of Hugging Face's, words or bytes (%(default)s)"
    one.add_argument("--tokenizer", metavar="NAME", default="bytes", help=names)
    share = "share of a text that is for validation, at its end (0.1)"
    one.add_argument("--val", type=option_types.fraction, help=share)
    args = parser.parse_args()
    with one_line(parser, errors.BadInput, errors.Fault, OSError):
        args.way(args)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is half made is removed
    main()
