"""Tokenizers of folders and of words, a text encoded in pieces, and the rows of a table."""

import errno
import itertools
import json
import os
import tracemalloc

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors, trainers

from trainparts import errors
from trainparts.text import text_corpus, tokenizing

transformers.utils.logging.disable_progress_bar()
WORDS = "the cat dog bird sees hears likes a small red old tree".split()
CASED = ["The", "Cat", "Dog", "##s"]


def write_vocabulary(folder, *more, kind="bert"):
    """Writes a folder with a vocabulary as BERT's is published, and nothing that says more."""
    folder.mkdir(exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *more]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return folder


def word_level(vocabulary, lower=False, **marks):
    """Returns a tokenizer of words and punctuation."""
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lower)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **marks)


def refusal(call, *given):
    with pytest.raises(errors.BadInput) as found:
        call(*given)
    return str(found.value)


# --------------------------------------------------------------------------------------- tokenizers


@pytest.mark.parametrize("kind", "bert roberta deberta longformer gpt2 mpnet albert xlnet".split())
def test_a_folder_without_its_tokenizer_is_one_line(kind, tmp_path):
    transformers.AutoConfig.for_model(kind, pad_token_id=1).save_pretrained(tmp_path)
    told = []
    line = refusal(tokenizing.load_tokenizer, tmp_path, told.append)
    files = "tokenizer.json, or vocab.txt, or vocab.json and merges.txt, or a *.model"
    why = f"it needs {files}; without, it would know no word"
    assert (line, told) == (f"{tmp_path} has no tokenizer: {why}", [])


@pytest.mark.parametrize(
    "how",
    [b"", b'{"version": "1.0", ', b"\xff\0junk", b"[1]", "folder", "nothing", "itself"],
    ids=str,
)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_one_line(name, how, tmp_path):
    """A folder or a link in its place is one, too; the configuration alone may be missing."""
    folder = tmp_path / "hf"
    tokenizing.word_tokenizer(WORDS).save_pretrained(folder)
    path = folder / name
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif isinstance(how, str):
        path.symlink_to(name if how == "itself" else how)
    else:
        path.write_bytes(how)
    if name == "tokenizer_config.json" and how in ("nothing", "itself"):
        assert len(tokenizing.load_tokenizer(folder, None)) == 4 + len(WORDS)
        return
    line = refusal(tokenizing.load_tokenizer, folder, None)
    assert line.startswith(f"{folder} has no tokenizer: ") and "\n" not in line


def test_a_tokenizer_in_python_is_loaded(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    assert len(tokenizing.load_tokenizer(tmp_path, None)) == 384


def test_a_tokenizer_is_loaded_as_it_was_saved(tmp_path):
    saved, told = tokenizing.word_tokenizer(WORDS), []
    saved.save_pretrained(tmp_path)
    for folder in tmp_path, str(tmp_path):
        found = tokenizing.load_tokenizer(folder, told.append)
        assert found.get_vocab() == saved.get_vocab()
        assert found("a cat", "zebra").input_ids == saved("a cat", "zebra").input_ids
    assert told == []


def test_a_disk_that_does_not_answer_is_no_mistake(tmp_path, monkeypatch):
    (tmp_path / "tokenizer_config.json").write_text("{}")

    def fail(path, *given, **named):
        raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))

    path = tmp_path / "tokenizer_config.json"
    for what, name, line in (
        (type(tmp_path), "read_text", f"{tmp_path} has no tokenizer: {path}: Input/output error"),
        (errors.os, "stat", f"{path}: Input/output error"),
    ):
        with monkeypatch.context() as patched, pytest.raises(errors.Fault) as found:
            patched.setattr(what, name, fail)
            tokenizing.load_tokenizer(tmp_path, None)
        assert str(found.value) == line


def test_code_of_a_folder_is_not_run(tmp_path):
    """Nor is anybody asked whether it may be; what does not need it is read without it."""
    folder, marker = tmp_path / "hf", tmp_path / "run"
    tokenizing.word_tokenizer(WORDS).save_pretrained(folder)
    code = f"import transformers\nopen({str(marker)!r}, 'w').close()\n"
    code += "class Tokenizer(transformers.PreTrainedTokenizerFast):\n    pass\n"
    (folder / "evil.py").write_text(code)
    path = folder / "tokenizer_config.json"
    auto = {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}
    changed = {"auto_map": auto, "tokenizer_class": "Tokenizer"}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    assert "contains custom code" in refusal(tokenizing.load_tokenizer, folder, None)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    assert tokenizing.load_tokenizer(folder, None).tokenize("a cat") == ["a", "cat"]
    assert not marker.exists()


@pytest.mark.parametrize(
    ("says", "cased", "kept"),
    [
        (None, CASED, True),
        ({}, CASED, True),
        ({"do_lower_case": True}, CASED, False),
        ({"do_lower_case": False}, CASED, True),
        (None, [], False),
    ],
)
def test_a_vocabulary_with_capitals_is_used(says, cased, kept, tmp_path):
    """BioBERT and others are published without a word on it."""
    folder = write_vocabulary(tmp_path / "model", *cased)
    path = folder / "tokenizer_config.json"
    if says is not None:
        path.write_text(json.dumps(says))
    lines = []
    tokenizer = tokenizing.load_tokenizer(str(folder), tell=lines.append)
    found = tokenizer.tokenize("The Cat a")
    assert found == (["The", "Cat", "a"] if kept else ["the", "cat", "a"])
    line = f"{folder}: its vocabulary has capitals, so text keeps its own; if this is wrong, "
    line += 'write {"do_lower_case": true} into its tokenizer_config.json'
    assert lines == [line] * (kept and "do_lower_case" not in (says or {}))
    if lines:  # what it advises
        path.write_text(lines.pop().split("write ")[1].split(" into")[0])
        tokenizer = tokenizing.load_tokenizer(str(folder), tell=lines.append)
        assert (tokenizer.tokenize("The"), lines) == (["the"], [])


def test_a_whole_tokenizer_is_believed_as_it_is(tmp_path):
    """tokenizer.json says all of it."""
    vocabulary = {name: number for number, name in enumerate(["[UNK]", *WORDS, *CASED])}
    word_level(vocabulary, lower=True).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    told = []
    tokenizer = tokenizing.load_tokenizer(tmp_path, told.append)
    assert (tokenizer.tokenize("The CAT"), told) == (["the", "cat"], [])


def test_capitals_that_cannot_be_used_are_one_line(tmp_path):
    """OpenAI's first GPT has small letters, whatever its vocabulary."""
    letters = [f"{c}{end}" for c in "abcdefghABCDEFGH" for end in ("", "</w>")]
    vocabulary = {name: number for number, name in enumerate(["<unk>", *letters])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "config.json").write_text('{"model_type": "openai-gpt"}')
    told = []
    line = refusal(tokenizing.load_tokenizer, tmp_path, told.append)
    why = "its vocabulary has capitals, and it would not use them"
    assert line == f"{tmp_path} has no tokenizer: {why}" and len(told) == 1


@pytest.mark.parametrize(
    ("lower", "capitals", "expected"),
    [
        (True, ["The", "Cat"], True),
        (True, ["The"], False),
        (True, ["##Th", "\u2581The"], True),
        (True, [".A", "B"], True),
        (True, ["THE", "CAT"], False),
        (True, ["aB", "[UNK2]"], False),
        (False, ["The", "Cat"], False),
    ],
)
def test_more_than_a_hundredth_of_a_cased_vocabulary_begins_with_capitals(
    lower, capitals, expected
):
    """Of 100 tokens."""
    words = ["[UNK]", *capitals, *"abcdefgh"]
    words += [f"w{'x' * n}" for n in range(100 - len(words))]
    vocabulary = {name: number for number, name in enumerate(words)}
    tokenizer = word_level(vocabulary, lower)
    if not lower:  # that makes a difference: not all of them are unknown
        tokenizer = word_level(vocabulary | {"A": 100}, lower)
    assert tokenizing.lowers_cased(tokenizer) == expected


def test_a_tokenizer_that_lowers_is_another():
    """Of one vocabulary; or one whose words the sentence of the digest does not have."""
    digests = []
    for lower, word in (False, "EARLY"), (True, "EARLY"), (True, "EARLY"), (True, "other"):
        made = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "don": 1}, unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase=lower)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.model = models.WordLevel({"[UNK]": 0, "early": 1, word: 2}, unk_token="[UNK]")
        digests.append(
            tokenizing.digest_of(transformers.PreTrainedTokenizerFast(tokenizer_object=made))
        )
    assert digests[1] == digests[2] != digests[0] and digests[2] != digests[3]


def test_a_digest_stays_what_it_is():
    """It stands in checkpoints and in meta.json; 4 of the words are in its sentence."""
    vocabulary = {"[UNK]": 0, "The": 1, "don": 2, ":": 3, "30": 4, "other": 5}
    assert tokenizing.digest_of(word_level(vocabulary)) == "00546d2da71ed394"
    marked = word_level(vocabulary)
    marked._tokenizer.post_processor = processors.TemplateProcessing(
        single="[UNK] $A", special_tokens=[("[UNK]", 0)]
    )
    assert marked("a").input_ids[0] == 0
    assert tokenizing.digest_of(marked) == "00546d2da71ed394", "marks are none of its tokens"


def test_words_are_numbered_after_the_marks():
    tokenizer = tokenizing.word_tokenizer(["b a b", "c\tb\n", ""])
    names = ["<pad>", "<cls>", "<sep>", "<unk>"]
    assert tokenizer.convert_ids_to_tokens([*range(4)]) == names
    assert {*tokenizer.get_vocab()} == {*names, *"abc"} and len(tokenizer) == 7
    marks = tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id
    assert (*marks, tokenizer.unk_token_id) == (0, 1, 2, 3)
    a, b, c = tokenizer.convert_tokens_to_ids([*"abc"])
    found = tokenizer("a zz  b", "C c", return_token_type_ids=True)
    assert found.input_ids == [1, a, 3, b, 2, 3, c, 2]
    assert found.token_type_ids == [0, 0, 0, 0, 0, 1, 1, 1]
    assert tokenizer("a").input_ids == [1, a, 2]


def test_all_words_are_known_however_many():
    words = [f"w{n}" for n in range(40_000)]
    tokenizer = tokenizing.word_tokenizer(words[at : at + 100] for at in range(0, 40_000, 100))
    assert len(tokenizer) == 40_004 and {*words} < {*tokenizer.get_vocab()}


# ------------------------------------------------------------------------------------------- a text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The END\n of  it\n", ["The", "END", "<eos>", "of", "it", "<eos>"]),
        ("\n\n", ["<eos>", "<eos>"]),
        ("a\tb\r\nc\u2028d", ["a", "b", "<eos>", "c", "d"]),
        ("no end", ["no", "end"]),
        ("a<eos>", ["a<eos>"]),
        ("", []),
    ],
)
def test_words_are_the_texts(text, words):
    """Capitals count, as in the literature's perplexities; the end of a line is a word."""
    assert tokenizing.split_words(text) == words


def test_words_are_numbered_as_they_come():
    chunks = ["b a\nb", " c", "d "]  # a word goes on in the next chunk
    made = tokenizing.make_encoder("words", iter(chunks), None)
    assert made[:3] == (["<unk>", "b", "a", "<eos>", "cd"], 5, None)
    for given, tokens in (
        (chunks, [1, 2, 3, 1, 4]),
        (["a A\n"], [2, 0, 3]),
        (["<unk> c", "d"], [0, 4]),
        ([], []),
    ):
        assert [*itertools.chain(*made.encode(iter(given)))] == tokens


def test_a_folder_encodes_without_marks(tmp_path):
    """What BERT's tokenizer would add around each line, no language model sees."""
    folder = write_vocabulary(tmp_path / "model", *CASED)
    told = []
    made = tokenizing.make_encoder(folder, None, told.append)
    loaded = tokenizing.load_tokenizer(folder, told.append)
    assert (made.words, made.vocabulary) == (None, 5 + len(WORDS) + len(CASED))
    assert made.tokenizer == tokenizing.digest_of(loaded)
    ids = loaded.convert_tokens_to_ids(["The", "cat", "##s", "[UNK]", "tree"])
    assert [*itertools.chain(*made.encode(["The cat", "s zz tree"]))] == ids
    assert len(told) == 2 and told[0] == told[1] and " has capitals" in told[0]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert refusal(tokenizing.make_encoder, empty, None, None).startswith(f"{empty} has no token")


def trained_tokenizers(text):
    """Yields (name, tokenizer) of five ways in which tokens join over lines or words."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    more = {"show_progress": False, "initial_alphabet": alphabet, "vocab_size": 900}
    gpt2 = tokenizers.Tokenizer(models.BPE())
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    gpt2.train_from_iterator([text], trainers.BpeTrainer(**more))
    yield "gpt2", gpt2
    # The pattern of GPT-4 and Llama 3: ends of lines join.
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    pattern += r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    llama3 = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    after = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    llama3.pre_tokenizer = pre_tokenizers.Sequence([split, after])
    llama3.train_from_iterator([text], trainers.BpeTrainer(**more))
    yield "llama3", llama3
    unigram = tokenizers.Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    options = {"vocab_size": 600, "show_progress": False, "unk_token": "<unk>"}
    trainer = trainers.UnigramTrainer(special_tokens=["<unk>"], **options)
    unigram.train_from_iterator([text], trainer)
    yield "sentencepiece", unigram
    # Llama 2: a mark before the whole text, and no words.
    llama2 = tokenizers.Tokenizer(models.BPE())
    marked = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    llama2.normalizer = normalizers.Sequence(marked)
    llama2.pre_tokenizer = pre_tokenizers.Split(Regex("\u2581"), "merged_with_next")
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    options = {"vocab_size": 900, "show_progress": False, "special_tokens": special}
    llama2.train_from_iterator([text], trainers.BpeTrainer(**options))
    content = json.loads(llama2.to_str()) | {"pre_tokenizer": None}
    content["model"] |= {"byte_fallback": True, "unk_token": "<unk>"}
    yield "llama2", tokenizers.Tokenizer.from_str(json.dumps(content))
    pieces = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer = normalizers.BertNormalizer()
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    options = {"vocab_size": 600, "show_progress": False, "special_tokens": ["[UNK]"]}
    pieces.train_from_iterator([text], trainers.WordPieceTrainer(**options))
    yield "wordpiece", pieces


def test_tokens_of_pieces_are_those_of_the_whole(monkeypatch):
    """Of paragraphs, indented code, one long line, no white space, odd ends of lines."""
    text = str(text_corpus.demo_text()[1], "utf-8")[:12_000]
    odd = "\n".join(
        f"  x = '{c}'\n\n\n\tend  \r\n" for c in "\xe4\xdf\u6f22\U0001f600\x0b\x1c\u2028"
    )
    texts = [text, text.replace("\n\n", "\n \n"), text.replace("\n", " "), odd * 30]
    texts += ["\u6f22\u5b57\u304b\u306a" * 800, text[:3000].replace(" ", "").replace("\n", "")]
    texts += [" " * 3000 + "end", "", "\n"]
    for name, tokenizer in trained_tokenizers(text):

        def encode(several, tokenizer=tokenizer):
            return [one.ids for one in tokenizer.encode_batch(several, add_special_tokens=False)]

        for number, given in enumerate(texts):
            (whole,) = encode([given])
            for piece in 1 << 10, 1 << 12:
                monkeypatch.setattr(tokenizing, "PIECE", piece)
                chunks = [given[at : at + 5000] for at in range(0, len(given), 5000)]
                found = [*itertools.chain(*tokenizing.tokenize(chunks, encode))]
                assert found == whole, (name, number, piece)


def test_pieces_of_words_are_those_of_the_whole(monkeypatch):
    monkeypatch.setattr(tokenizing, "PIECE", 1 << 10)
    text = str(text_corpus.demo_text()[1], "utf-8")[:20_000]
    for given in text, text.replace("\n", " "), text.replace(" ", "\t"), "xy" * 5000:
        words, size, digest, encode = tokenizing.make_encoder("words", [given], print)
        assert (words, digest) == (
            [*dict.fromkeys(["<unk>", *tokenizing.split_words(given)])],
            None,
        )
        found = [words[token] for ids in encode([given]) for token in ids]
        assert found == tokenizing.split_words(given) and size == len(words)


def letters_of(texts):
    return [[*text] for text in texts]


@pytest.mark.parametrize("size", [1, 7, 1000, 5000, 10**6])
def test_pieces_are_the_text_each_with_what_is_before_it(size, monkeypatch):
    monkeypatch.setattr(tokenizing, "PIECE", 1000)
    text = str(text_corpus.demo_text()[1], "utf-8")[:20_000]
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    pieces = [*tokenizing.cut_text(iter(chunks), letters_of)]
    assert "".join(piece for _, piece in pieces) == text
    at = 0
    for before, piece in pieces:
        assert before == text[max(0, at - 256) : at]
        at += len(piece)
    assert max(len(piece) for _, piece in pieces) < 2000 and len(pieces) > 20


def test_a_text_is_cut_where_little_joins(monkeypatch):
    """After a line with text on both sides, else before a word, else between two characters that
    differ, and where there is nothing of this, nowhere; at the last such place but `near`."""
    monkeypatch.setattr(tokenizing, "PIECE", 100)
    line, word, odd = "ab cd\nef gh", "ab cd  ef", "aaaab"
    for text, ends in (
        ("x" * 40 + line + "y" * 60, ["x" * 40 + "ab cd\n"]),
        ("x" * 40 + word + "y" * 60, ["x" * 40 + "ab"]),
        ("a" * 40 + odd + "b" * 60, ["a" * 44]),
        ("a" * 110, []),
        ("ab\n" * 34, ["ab\n" * 29]),
    ):
        pieces = [piece for _, piece in tokenizing.cut_text([text], letters_of, near=10)]
        assert pieces[:-1] == ends and "".join(pieces) == text, text
    assert [*tokenizing.cut_text([], letters_of)] == [("", "")]


def test_a_text_is_not_cut_where_nothing_comes_before_or_tokens_join(monkeypatch):
    """A library that drops white space finds no token of it alone."""
    monkeypatch.setattr(tokenizing, "PIECE", 100)
    text = " " * 60 + "\t" * 50
    none = lambda texts: [each.split() for each in texts]  # noqa: E731
    assert [*tokenizing.cut_text([text], none, near=10)] == [("", text)]
    whole = lambda texts: [[each] for each in texts]  # noqa: E731
    text = "ab\n" * 60
    assert [*tokenizing.cut_text([text], whole, near=10)] == [("", text)]


@pytest.mark.parametrize("end", ["\n", " "], ids=["lines", "one line"])
def test_memory_does_not_grow_with_a_text(end, monkeypatch):
    """It is that of some pieces and of the words that there are."""
    monkeypatch.setattr(tokenizing, "PIECE", 1 << 10)
    line = " ".join(f"w{n}" for n in range(200)) + end
    most = []
    for lines in 1, 30, 100:
        tracemalloc.start()
        try:
            made = tokenizing.make_encoder("words", itertools.repeat(line, lines), None)
            count = sum(map(len, made.encode(itertools.repeat(line, lines))))
            most.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert count == (200 + (end == "\n")) * lines
    assert most[2] < most[1] + 100_000, "of 90 KB, whose tokens' lists are ten times as large"


# ------------------------------------------------------------------------------------------ a table


def test_rows_become_sequences_with_marks():
    tokenizer = tokenizing.word_tokenizer(["a b c d"])
    ids = dict(zip("abcd", tokenizer.convert_tokens_to_ids([*"abcd"]), strict=True))
    rows = [text_corpus.Row(2, ("a b", "c")), text_corpus.Row(0, ("d", "zz a b"))]
    source, lines = tokenizing.encode_rows("x.tsv", rows, tokenizer, 16)
    first = [1, ids["a"], ids["b"], 2, ids["c"], 2]
    assert source.tokens.tolist() == [*first, 1, ids["d"], 2, 3, ids["a"], ids["b"], 2]
    assert (source.offset.tolist(), source.length.tolist()) == ([0, 6], [6, 7])
    assert (source.second.tolist(), source.target.tolist()) == ([4, 3], [2, 0])
    assert (source.path, source.vocabulary, source.words) == ("x.tsv", 8, None)
    assert source.tokenizer == tokenizing.digest_of(tokenizer)
    assert (source.pad, source.pads_left, lines) == (0, False, [])


def test_one_sentence_has_no_second_one():
    """So all its tokens have the type of the first; of a pair, the second has the other type."""
    tokenizer = tokenizing.word_tokenizer(["a b c"])
    one = [text_corpus.Row(0, ("a b",)), text_corpus.Row(1, ("c",))]
    source, _ = tokenizing.encode_rows("one.tsv", one, tokenizer, 16)
    assert source.second.tolist() == source.length.tolist() == [4, 3]
    pair = [text_corpus.Row(0, ("a b", "c"))]
    source, _ = tokenizing.encode_rows("two.tsv", pair, tokenizer, 16)
    assert source.second.tolist() == [4] and source.length.tolist() == [6]


def test_sequences_too_long_are_cut_and_counted(tmp_path):
    """The first tokens and all marks stay, and the longer sentence loses more."""
    tokenizer = tokenizing.word_tokenizer(["a b"])
    a, b = tokenizer.convert_tokens_to_ids(["a", "b"])
    texts = [("a a", "b b"), ("a a a", "b b"), ("a", "b " * 9), ("a a", "b " * 20)]
    rows = [text_corpus.Row(0, pair) for pair in texts]
    source, lines = tokenizing.encode_rows(tmp_path / "x.tsv", rows, tokenizer, 8)
    assert lines == [f"{tmp_path}/x.tsv: 3 of 4 sequences fill --max-length, or were cut"]
    assert source.length.tolist() == [7, 8, 8, 8] and source.second.tolist() == [4, 5, 3, 4]
    assert np.split(source.tokens, source.offset)[3].tolist() == [1, a, 2, b, b, b, b, 2]
    assert source.path == f"{tmp_path}/x.tsv"


def test_many_rows_are_those_of_one_at_a_time():
    """They are encoded some thousand at a time."""
    tokenizer = tokenizing.word_tokenizer(WORDS)
    rng = np.random.default_rng(0)
    rows = []
    for number in range(4_100):
        rows.append(text_corpus.Row(number % 3, (" ".join(rng.choice(WORDS, number % 5 + 1)),)))
    source, _ = tokenizing.encode_rows("x.tsv", rows, tokenizer, 16)
    assert source.target.tolist() == [number % 3 for number in range(4_100)]
    cut = [array.tolist() for array in np.split(source.tokens, source.offset[1:])]
    for number in 0, 1, 4_094, 4_095, 4_096, 4_097, 4_099:
        assert cut[number] == tokenizer(rows[number].sentences[0]).input_ids
    assert len(cut) == 4_100 and source.length.tolist() == [*map(len, cut)]


def test_a_tokenizer_may_have_no_token_for_padding_or_pad_on_the_left():
    vocabulary = {"[UNK]": 0, "a": 1, "[PAD]": 2}
    rows = [text_corpus.Row(0, ("a",))]
    source, _ = tokenizing.encode_rows("x", rows, word_level(vocabulary), 9)
    assert (source.pad, source.pads_left) == (0, False)
    padded = word_level(vocabulary, pad_token="[PAD]", padding_side="left")
    source, _ = tokenizing.encode_rows("x", rows, padded, 9)
    assert (source.pad, source.pads_left) == (2, True)


def test_a_table_that_is_mostly_unknown_is_refused():
    """To more than a half; a tokenizer of bytes has no token for what is unknown."""
    tokens = np.array([3, 4, 3, 5])
    source = text_corpus.cut_blocks("x.tsv", tokens, 1, vocabulary=9)
    tokenizing.check_known(source, 3)
    source = source._replace(tokens=np.array([3, 4, 3]))
    line = refusal(tokenizing.check_known, source, 3)
    assert line == "x.tsv: more than half of it is unknown to the tokenizer"
    tokenizing.check_known(source, 4)
    tokenizing.check_known(source, None)


def test_a_tokenizer_of_bytes_has_each_byte():
    made = tokenizing.tokenizer_of_bytes()
    texts = ["", "a  b\r\n\tc", "caf\u00e9 \U0001f40d\x00\x7f", "<s></s>\u0120"]
    for text in texts:
        assert made(text).input_ids == [*text.encode()]
        assert made.decode([*text.encode()]) == text
    assert len(made) == 256 and made.decode([233]) == "\ufffd"


def test_a_tokenizer_of_words_splits_as_split_words():
    words = ["<unk>", "a", "<eos>", "b", "\u00e9"]
    made, index = tokenizing.tokenizer_of_words(words), {word: n for n, word in enumerate(words)}
    for text in "a b\n\n a", "\ta\u00a0b\u2003\u00e9\x1cb\x85a", "A a? \u200b", "<unk> <eos>", "":
        wanted = [index.get(word, 0) for word in tokenizing.split_words(text)]
        assert made(text).input_ids == wanted, text
    assert len(made) == 5 and made.unk_token_id == 0
