"""Files of text and of tokens, blocks of a language model, tables of rows, and the demos."""

import errno
import importlib
import itertools
import json
import os
import re

import numpy as np
import pytest
from conftest import FETCH, POINTER

from trainparts import errors
from trainparts.text import text_corpus


def refusal(kind, call, *given, **named):
    """Returns the text of the BadInput or Fault that a call raises."""
    with pytest.raises((errors.BadInput, errors.Fault)) as found:
        call(*given, **named)
    assert found.type is kind
    return str(found.value)


def fail_with(number):
    """Returns a function that fails as a system call does."""

    def fail(path, *given, **named):
        raise OSError(number, os.strerror(number), os.fspath(path))

    return fail


# -------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ("dev.tsv", "dev.tsv"),
        ("dev_matched.tsv", "dev_matched.tsv"),
        ("dev_matched.tsv dev.tsv", "dev.tsv"),
        ("MNLI/dev.tsv", "MNLI/dev.tsv"),
        ("MNLI/dev.tsv dev_matched.tsv", "dev_matched.tsv"),
        ("MNLI/dev_matched.tsv MNLI/dev.tsv train.tsv", "MNLI/dev.tsv"),
    ],
)
def test_a_file_is_found_by_the_first_of_its_names_and_in_the_folder_itself_first(
    there, found, tmp_path
):
    (tmp_path / "MNLI").mkdir()
    for name in there.split():
        (tmp_path / name).write_text("")
    for folder in tmp_path, str(tmp_path):
        path = text_corpus.find_text(folder, ["dev.tsv", "dev_matched.tsv"], "MNLI", "it")
        assert path == tmp_path / found


def test_a_file_that_is_not_found_is_named_with_what_reads_it(tmp_path):
    (tmp_path / "dev.tsv").symlink_to("nothing")
    (tmp_path / "MNLI").symlink_to("MNLI")
    (tmp_path / "train.tsv").write_text("")
    long = tmp_path / ("x" * 300)
    for folder in tmp_path, long, tmp_path / "train.tsv", "a\0b":
        line = refusal(
            errors.BadInput,
            text_corpus.find_text,
            folder,
            ("dev.tsv", "dev_matched.tsv"),
            "MNLI",
            "--task mnli",
        )
        name = errors.printable(str(folder))
        assert line == f"{name} has no dev.tsv, which --task mnli reads"


def test_a_disk_that_does_not_answer_is_no_missing_file(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", fail_with(errno.EIO))
        line = refusal(errors.Fault, text_corpus.find_text, tmp_path, ["a"], "A", "it")
    assert line == f"{tmp_path / 'a'}: Input/output error"


def test_bytes_are_mapped_and_not_changed(tmp_path):
    path = tmp_path / "some text"
    path.write_bytes(bytes(range(256)) * 3)
    for given in path, str(path):
        found = text_corpus.map_bytes(given)
        assert (found.dtype, found.tolist()) == (np.uint8, [*range(256)] * 3)
        assert isinstance(found, np.memmap) and not found.flags.writeable


READERS = [text_corpus.map_bytes, text_corpus.read_text]


@pytest.mark.parametrize("read", READERS)
def test_what_cannot_be_read_is_one_line(read, tmp_path, monkeypatch):
    folder, empty = tmp_path / "folder", tmp_path / "empty"
    folder.mkdir()
    empty.write_bytes(b"")
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    for path, why in (
        (tmp_path / "link", "No such file or directory"),
        (tmp_path / "loop", "Too many levels of symbolic links"),
        (tmp_path / "absent", "No such file or directory"),
        (folder, "Is a directory"),
        (empty / "below", "Not a directory"),
        (empty, "cannot mmap an empty file"),
    ):
        assert refusal(errors.BadInput, read, path) == f"{path} cannot be read: {why}"
    (tmp_path / "train.txt").write_bytes(POINTER)
    assert refusal(errors.BadInput, read, tmp_path / "train.txt") == f"{tmp_path}/train.txt {FETCH}"
    monkeypatch.setattr(np, "memmap", fail_with(errno.EIO))
    assert refusal(errors.Fault, read, empty) == f"{empty} cannot be read: Input/output error"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"one\r\ntwo\rthree\n", "one\r\ntwo\rthree\n"),
        (b"\xef\xbb\xbfgr\xc3\xbc\xc3\x9fe", "gr\u00fc\u00dfe"),
        (b"\xef\xbb\xbf", ""),
        (b"\xef\xbb\xbf\xef\xbb\xbfa\xef\xbb\xbf", "\ufeffa\ufeff"),
        (b"\xf0\x9f\x98\x80\0", "\U0001f600\0"),
    ],
)
def test_a_text_is_read_as_it_stands_but_for_a_mark_at_its_beginning(raw, text, tmp_path):
    (tmp_path / "a").write_bytes(raw)
    assert text_corpus.read_text(tmp_path / "a") == text


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("ab\n".encode("utf-16"), "can't decode byte 0xff in position 0: invalid start byte"),
        (b"caf\xe9", "can't decode byte 0xe9 in position 3: unexpected end of data"),
    ],
)
def test_what_is_no_utf_8_is_one_line(raw, why, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(raw)
    line = refusal(errors.BadInput, text_corpus.read_text, path)
    assert line == f"{path} cannot be read: 'utf-8' codec {why}"


# ------------------------------------------------------------------------------------------- tokens


TOKENS = np.arange(400) % 19
META = {"vocabulary": 19, "dtype": "uint16"}
ADVICE = '; for GPT-2\'s tokens it says {"vocabulary": 50257, "dtype": "uint16"}'


def write_bins(folder, meta=META, dtype="<u2", **parts):
    """Writes files of tokens, or of bytes; returns what view_bins() takes."""
    paths = []
    for name, tokens in (parts or {"train": TOKENS, "val": TOKENS[:40]}).items():
        paths.append(folder / f"{name}.bin")
        held = tokens if isinstance(tokens, bytes) else np.asarray(tokens, dtype).tobytes()
        paths[-1].write_bytes(held)
    if meta is not None:
        meta = meta if isinstance(meta, bytes | str) else json.dumps(meta)
        (folder / "meta.json").write_bytes(meta.encode() if isinstance(meta, str) else meta)
    return paths, [*map(text_corpus.map_bytes, paths)]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_files_of_tokens_are_what_meta_json_says(dtype, tmp_path):
    words = [*"abcdefghijklmnopqrs"]
    paths, raw = write_bins(tmp_path, META | {"dtype": dtype, "words": words}, dtype)
    found = text_corpus.view_bins(paths, raw)
    assert found[:3] == (words, 19, None)
    assert [array.tolist() for array in found.arrays] == [TOKENS.tolist(), TOKENS[:40].tolist()]
    assert all(np.shares_memory(*pair) for pair in zip(found.arrays, raw, strict=True))
    paths, raw = write_bins(tmp_path, META | {"dtype": dtype, "tokenizer": "0123abcd"}, dtype)
    assert text_corpus.view_bins(paths, raw)[:3] == (None, 19, "0123abcd")


def test_tokens_have_their_low_byte_first(tmp_path):
    given = {"train": bytes([1, 2, 3, 0]), "val": bytes([0, 1, 0, 0])}
    for dtype, tokens in ("uint16", [[513, 3], [256, 0]]), ("uint32", [[197_121], [256]]):
        paths, raw = write_bins(tmp_path, {"vocabulary": 1 << 16, "dtype": dtype}, **given)
        found = text_corpus.view_bins(paths, raw)
        assert [array.tolist() for array in found.arrays] == tokens
    large = {"train": b"\xff\xff\xff\xff", "val": b"\xff\xff\xff\xff"}
    paths, raw = write_bins(tmp_path, {"vocabulary": 2**32, "dtype": "uint32"}, **large)
    assert text_corpus.view_bins(paths, raw).arrays[0].tolist() == [2**32 - 1]


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        (None, "No such file or directory"),
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        ("[" * 10**5, "maximum recursion depth exceeded"),
        ("[]", "list indices must be integers or slices, not str"),
        ({"vocabulary": 19}, "'dtype'"),
        ({"dtype": "uint16"}, "'vocabulary'"),
        (META | {"dtype": "int7"}, "'int7'"),
        ('{"vocabulary": Infinity, "dtype": "uint16"}', "cannot convert float infinity to integer"),
        (META | {"words": "abc"}, 'can only concatenate list (not "str") to list'),
        (META | {"words": ["a"] * 18}, "it has 18 words, and a vocabulary of 19"),
        (META | {"words": ["a"] * 20}, "it has 20 words, and a vocabulary of 19"),
        (META | {"vocabulary": 0}, "a vocabulary of 0 does not fit into uint16"),
        (META | {"vocabulary": -5}, "a vocabulary of -5 does not fit into uint16"),
        (META | {"vocabulary": 65_537}, "a vocabulary of 65537 does not fit into uint16"),
        (
            {"vocabulary": 2**32 + 1, "dtype": "uint32"},
            "a vocabulary of 4294967297 does not fit into uint32",
        ),
    ],
)
def test_what_meta_json_does_not_say_is_one_line_with_an_example(meta, why, tmp_path):
    paths, raw = write_bins(tmp_path, meta)
    line = refusal(errors.BadInput, text_corpus.view_bins, paths, raw)
    begin = f"{tmp_path / 'meta.json'}: {why}"
    assert line.startswith(begin) and line.endswith(ADVICE)
    assert line == begin + ADVICE or "recursion" in why


def test_a_vocabulary_that_just_fits(tmp_path):
    for vocabulary, dtype in (65_536, "uint16"), (2**32, "uint32"), (1, "uint16"), (1, "uint32"):
        zeros = {"train": [0] * 400, "val": [0] * 40}
        paths, raw = write_bins(tmp_path, {"vocabulary": vocabulary, "dtype": dtype}, dtype)
        if vocabulary == 1:
            paths, raw = write_bins(tmp_path, {"vocabulary": 1, "dtype": dtype}, dtype, **zeros)
        assert text_corpus.view_bins(paths, raw).vocabulary == vocabulary


@pytest.mark.parametrize("link", [None, "nothing", "meta.json"])
def test_what_stands_in_the_place_of_meta_json_is_one_line(link, tmp_path):
    paths, raw = write_bins(tmp_path, None)
    path = tmp_path / "meta.json"
    path.symlink_to(link) if link else path.mkdir()
    why = {None: "Is a directory", "nothing": "No such file or directory"}
    why["meta.json"] = "Too many levels of symbolic links"
    line = refusal(errors.BadInput, text_corpus.view_bins, paths, raw)
    assert line == f"{path}: {why[link]}{ADVICE}"


def test_a_disk_that_does_not_answer_is_no_fault_of_meta_json(tmp_path, monkeypatch):
    paths, raw = write_bins(tmp_path)
    monkeypatch.setattr(type(tmp_path), "read_text", fail_with(errno.EIO))
    line = refusal(errors.Fault, text_corpus.view_bins, paths, raw)
    assert line == f"{tmp_path / 'meta.json'}: Input/output error"


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("cut", ["train", "val", "train val"])
def test_a_file_that_ends_within_a_token_is_named(dtype, cut, tmp_path):
    size = np.dtype(dtype).itemsize
    parts = {"train": TOKENS, "val": TOKENS}
    parts |= dict.fromkeys(cut.split(), bytes(size * 20 + size - 1))
    paths, raw = write_bins(tmp_path, META | {"dtype": dtype}, dtype, **parts)
    line = refusal(errors.BadInput, text_corpus.view_bins, paths, raw)
    assert line == f"{tmp_path / cut.split()[0]}.bin ends within a token"


def test_files_of_uint32_are_not_read_as_uint16(tmp_path):
    """Every second half is 0, of more than 64 of both files."""
    line = f"{tmp_path / 'meta.json'}: every second token is 0: the files are of uint32, not of "
    line += f"uint16{ADVICE}"
    for count, refused in (33, True), (32, False):
        paths, raw = write_bins(tmp_path, META, "<u4", train=[7] * 32, val=[8] * count)
        if refused:
            assert refusal(errors.BadInput, text_corpus.view_bins, paths, raw) == line
        else:
            assert text_corpus.view_bins(paths, raw).arrays[1].tolist() == [8, 0] * count
    paths, raw = write_bins(tmp_path, META, "<u4", train=[7] * 400, val=[8] * 39 + [8 << 16])
    assert len(text_corpus.view_bins(paths, raw).arrays[0]) == 800, "one of them is not 0"


# ------------------------------------------------------------------------------------------- blocks


def cut(count, length, **more):
    return text_corpus.cut_blocks("a.txt", np.arange(count), length, vocabulary=count, **more)


@pytest.mark.parametrize(
    ("count", "to_end", "offset", "length"),
    [
        (10, False, [0, 3, 6], [4, 4, 4]),
        (10, True, [0, 3, 6], [4, 4, 4]),
        (11, False, [0, 3, 6], [4, 4, 4]),
        (11, True, [0, 3, 6, 9], [4, 4, 4, 2]),
        (12, False, [0, 3, 6], [4, 4, 4]),
        (12, True, [0, 3, 6, 9], [4, 4, 4, 3]),
        (4, False, [0], [4]),
        (2, True, [0], [2]),
    ],
)
def test_a_block_ends_with_the_first_token_of_the_next(count, to_end, offset, length):
    found = cut(count, 3, to_end=to_end)
    assert (found.offset.tolist(), found.length.tolist()) == (offset, length)
    assert not found.second.any() and not found.target.any()
    assert found.second.shape == found.target.shape == found.offset.shape


@pytest.mark.parametrize("length", [1, 2, 7, 16])
@pytest.mark.parametrize("count", [17, 32, 33, 34])
def test_every_token_but_the_first_is_a_target_once(count, length):
    for to_end in True, False:
        found = cut(count, length, to_end=to_end)
        blocks = [
            found.tokens[at : at + size]
            for at, size in zip(found.offset, found.length, strict=True)
        ]
        pairs = [pair for block in blocks for pair in itertools.pairwise(block.tolist())]
        whole = [*itertools.pairwise(range(count))]
        assert pairs == (whole if to_end else whole[: (count - 1) // length * length])


def test_blocks_say_what_they_were_given(tmp_path):
    tokens = np.array([0, 1, 2, 1], np.uint16)
    more = {"vocabulary": 3, "words": [*"abc"], "tokenizer": "0123"}
    found = text_corpus.cut_blocks(tmp_path, tokens, 3, **more)
    assert found.path == str(tmp_path) and found.tokens is tokens
    assert (found.vocabulary, found.words, found.tokenizer) == (3, [*"abc"], "0123")
    assert (found.pad, found.pads_left) == (0, False)


@pytest.mark.parametrize(
    ("count", "length", "to_end"), [(3, 3, False), (1, 3, True), (1, 1, False), (0, 3, False)]
)
def test_a_text_without_a_block_is_refused(count, length, to_end):
    line = refusal(errors.BadInput, cut, count, length, to_end=to_end)
    assert line == f"a.txt has {count} tokens, too few for --max-length {length}"


def test_a_text_whose_words_are_mostly_unknown_is_refused():
    """Of its first million tokens; where tokens are words."""
    half = np.arange(100) % 2
    more = {"vocabulary": 2, "words": ["<unk>", "a"]}
    text_corpus.cut_blocks("a.txt", half, 9, **more)
    mostly = np.concatenate([half, [0]])
    line = refusal(errors.BadInput, text_corpus.cut_blocks, "a.txt", mostly, 9, **more)
    assert line == "a.txt: more than half of its words do not occur in training"
    text_corpus.cut_blocks("a.txt", mostly, 9, vocabulary=2)
    later = np.concatenate([np.ones(10**6, np.uint16), np.zeros(10**6 + 9, np.uint16)])
    text_corpus.cut_blocks("a.txt", later, 9, **more)


# -------------------------------------------------------------------------------------- the digest


def test_a_digest_is_that_of_the_data_whatever_its_files():
    """It is written into checkpoints, so it stays what it is."""
    found = cut(20, 4)
    assert found.digest() == "4 sequences, b3e18795"
    same = found._replace(tokens=found.tokens.astype(np.uint16), path="b.bin", words=["a"] * 20)
    assert same.digest() == found.digest()


def test_a_digest_tells_apart_what_differs():
    found = cut(20, 4)
    digests = [found.digest(), found._replace(vocabulary=21).digest()]
    for name in "tokens", "offset", "length", "second", "target":
        for at in 0, -1:
            changed = getattr(found, name).copy()
            changed[at] += 1
            digests.append(found._replace(**{name: changed}).digest())
    assert len({*digests}) == 12
    assert all(re.fullmatch("4 sequences, [0-9a-f]{8}", each) for each in digests)


def test_a_digest_reads_four_million_tokens_in_a_thousand_places():
    tokens = np.arange(5_000_000, dtype=np.int32)
    found = text_corpus.cut_blocks("a", tokens, 10**6, vocabulary=5_000_000)
    before = found.digest()
    for at, seen in (4_095, True), (4_096, False), (4_999, False), (5_000, True), (-5_000, True):
        tokens[at] += 1
        assert (found.digest() != before) == seen, at
        tokens[at] -= 1


# ---------------------------------------------------------------------------------------- the demos


def test_the_demo_text_is_pythons_reference_in_two_parts():
    topics = importlib.import_module("pydoc_data.topics").topics
    whole = "\n".join(text for _, text in sorted(topics.items()))
    parts = text_corpus.demo_text()
    assert b"".join(part.tobytes() for part in parts) == whole.encode()
    assert len(parts[0]) == len(whole.encode()) // 10 * 9 and len(parts) == 2
    assert "".join(str(part, "utf-8") for part in parts) == whole
    assert {part.dtype for part in parts} == {np.dtype(np.uint8)}


def is_right(sentence):
    """Returns whether a sentence of the demo has no fault, by a grammar of its own."""
    noun = "(cat|dog|artist|engineer|owl|bird|uncle|teacher|ant|actor|farmer|elephant)"
    between = rf"( near the {noun}| behind the {noun}s)?"
    end = rf"(see|like|follow)(s?) (an?) {noun}"
    found = re.fullmatch(rf"the {noun}(s?){between} {end}", sentence)
    if not found:
        return False
    plural, verb, article, thing = found[2], found[7], found[8], found[9]
    return bool(plural) != bool(verb) and (article == "an") == (thing[0] in "aeiou")


def test_the_demo_rows_have_the_class_of_what_they_say():
    train, val = text_corpus.demo_rows()
    assert (len(train), len(val)) == (4000, 1000)
    rows = train + val
    assert all(len(row.sentences) == 1 and type(row.label) is int for row in rows)
    assert [row.label for row in rows] == [int(is_right(*row.sentences)) for row in rows]
    for some in train, val:
        assert 0.65 < np.mean([row.label for row in some]) < 0.75
    assert len({*rows}) > 4000
    assert (train, val) == text_corpus.demo_rows(), "drawn alike each time"


# --------------------------------------------------------------------------------------------- rows

PAIR = ["s1", "s2"]
CLASSES = ["no", "yes"]


def read(tmp_path, text, *more, columns=PAIR, label="label", classes=CLASSES, **named):
    path = tmp_path / "t.tsv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return text_corpus.read_rows(path, columns, label, classes, *more, **named)


def test_rows_have_the_columns_and_the_number_of_the_class(tmp_path):
    table = "label\ts2\tid\ts1\nyes\ttwo\t7\tone\nno\tb\t8\ta\nyes\t\t9\t\n"
    rows, lines = read(tmp_path, table)
    assert rows == [(1, ("one", "two")), (0, ("a", "b")), (1, ("", ""))] and lines == []
    assert read(tmp_path, table, columns=["s2"])[0][0] == (1, ("two",))
    assert read(tmp_path, table, classes=CLASSES[::-1])[0][0].label == 0
    assert read(tmp_path, table, columns=PAIR[::-1])[0][0].sentences == ("two", "one")


def test_a_table_without_a_header_is_given_one(tmp_path):
    rows, lines = read(tmp_path, "one\ttwo\tno\nthree\tfour\tyes\n", [*PAIR, "label"])
    assert rows == [(0, ("one", "two")), (1, ("three", "four"))] and lines == []


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("last", ["", "END", "ENDEND"])
def test_rows_end_as_in_unix_or_windows_and_blank_ones_are_none(end, mark, last, tmp_path):
    text = f"{mark}s1\ts2\tlabel{end}a\tb\tno{end}{end}c\td\tyes" + last.replace("END", end)
    assert read(tmp_path, text) == ([(0, ("a", "b")), (1, ("c", "d"))], [])


def test_no_other_character_ends_a_row_or_has_a_meaning(tmp_path):
    odd = ["\u2028one\x85 two\x0b\x0c\x1c", '" it', 'a "b" c \'', "old\rmac", " blanks ", "#a\\t"]
    text = "s1\ts2\tlabel\n" + "".join(f"{cell}\t{cell}\tno\n" for cell in odd)
    rows, lines = read(tmp_path, text)
    assert rows == [(0, (cell, cell)) for cell in odd] and lines == []


@pytest.mark.parametrize("header", [None, [*PAIR, "label"]])
def test_a_row_of_another_width_is_named_by_its_line(header, tmp_path):
    first = "" if header else "s1\ts2\tlabel\n"
    for row, count in ("a\tb", 2), ("a", 1), ("a\tb\tno\td", 4), ("a\tb\tno\t", 4), (" ", 1):
        text = f"{first}a\tb\tno\n\n{row}\na\tb\tno\n"
        line = refusal(errors.BadInput, read, tmp_path, text, header)
        number = 3 if header else 4
        assert line == f"{tmp_path / 't.tsv'}: line {number} has {count} columns, not 3"


def test_rows_that_are_cut_are_left_out_where_that_is_known(tmp_path):
    text = "s1\ts2\tlabel\na\tb\tno\nc\nd\tyes\n\ne\tf\tyes\n"
    rows, lines = read(tmp_path, text, some_are_cut=True)
    assert rows == [(0, ("a", "b")), (1, ("e", "f"))]
    assert lines == [f"{tmp_path / 't.tsv'}: 2 incomplete rows are left out"]
    line = refusal(errors.BadInput, read, tmp_path, text + "a\tb\tno\t\n", some_are_cut=True)
    assert line.endswith("t.tsv: line 7 has 4 columns, not 3")


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("7", "'7'"),
        ("", "''"),
        ("No", "'No'"),
        (" no", "' no'"),
        ("--", "'--'"),
        ("\x1b[31m", "'\\x1b[31m'"),
        ("7" * 10**5, f"'{'7' * 50}'"),
    ],
)
def test_another_label_is_named_by_its_line(label, shown, tmp_path):
    line = refusal(errors.BadInput, read, tmp_path, f"s1\ts2\tlabel\na\tb\tno\na\tb\t{label}\n")
    assert line == f"{tmp_path / 't.tsv'}: line 3 has the label {shown}, none of no, yes"


def test_rows_on_which_annotators_did_not_agree_are_left_out_and_counted(tmp_path):
    rows, lines = read(tmp_path, "s1\ts2\tlabel\na\tb\t-\nc\td\tyes\ne\tf\t-\ng\th\t-\n")
    assert rows == [(1, ("c", "d"))]
    assert lines == [f"{tmp_path / 't.tsv'}: 3 rows with the label - are left out"]


@pytest.mark.parametrize(
    ("cell", "counted"),
    [
        ('"He said ""no"" to me"', True),
        ('""""', True),
        ('"quoted"', False),
        ('say ""so""', False),
        ('"a ""b"" c', False),
    ],
)
def test_quotes_that_a_program_wrote_are_counted_and_left(cell, counted, tmp_path):
    """A row once, whichever of its sentences they are in."""
    text = f"s1\ts2\tlabel\n{cell}\tb\tno\na\t{cell}\tno\n{cell}\t{cell}\tno\n"
    rows, lines = read(tmp_path, text)
    assert [row.sentences for row in rows] == [(cell, "b"), ("a", cell), (cell, cell)]
    how = 'read as they stand, as in GLUE; to_csv(..., sep="\\t", quoting=3) writes none'
    line = f"{tmp_path / 't.tsv'}: 3 sentences are in quotes, with quotes doubled: {how}"
    assert lines == [line] * counted


def test_all_that_looks_wrong_is_said_in_turn(tmp_path):
    text = 's1\ts2\tlabel\n"a ""b"""\tc\tno\nd\ne\tf\t-\n'
    _, lines = read(tmp_path, text, some_are_cut=True)
    assert [line.split(": ")[1].split()[1] for line in lines] == ["incomplete", "rows", "sentences"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("index\ts\nx\ty\n", "has no column 's1', but index, s (test.tsv has no labels)"),
        ("s1\ts\tlabel\n", "has no column 's2', but s1, s, label (test.tsv has no labels)"),
        ("s1\ts2\n", "has no column 'label', but s1, s2 (test.tsv has no labels)"),
        ("s1\rs2\tlabel\n", r"has no column 's1', but s1\rs2, label (test.tsv has no labels)"),
        ("s1\ts2\tlabel\tlabel\n", "has the column 'label' more than once"),
        ("s1\ts2\ts2\ts1\tlabel\n", "has the column 's1' more than once"),
        ("id\t" * 300 + "s1\n", f"has no column 's2', but {'id, ' * 50} (test.tsv has no labels)"),
    ],
)
def test_a_table_of_other_columns_is_refused(text, why, tmp_path):
    assert refusal(errors.BadInput, read, tmp_path, text) == f"{tmp_path / 't.tsv'} {why}"


def test_a_column_that_is_not_read_may_be_named_twice():
    text_corpus.check_columns("t.tsv", ["s1", "label"], ["id", "s1", "id", "label"])
    text_corpus.check_columns("t.tsv", iter(["s1"]), ("s1",))


def test_a_header_alone_has_no_rows_and_a_file_that_is_none_is_one_line(tmp_path):
    assert read(tmp_path, "s1\ts2\tlabel") == ([], [])
    assert read(tmp_path, "\n", [*PAIR, "label"]) == ([], [])
    line = refusal(errors.BadInput, read, tmp_path, "s1\ts2\tlabel\n".encode("utf-16"))
    path = tmp_path / "t.tsv"
    assert line.startswith(f"{path} cannot be read: 'utf-8' codec can't decode byte 0xff")
    assert refusal(errors.BadInput, read, tmp_path, b"").startswith(f"{path} cannot be read: ")
