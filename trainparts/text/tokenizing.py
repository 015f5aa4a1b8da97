"""From text to tokens: by a tokenizer in a folder as Hugging Face's, or by the words of a text.

Use it to load or make a tokenizer, to tell two apart, and to encode a text of any size in little
memory, or the rows of a table.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from trainparts import errors
from trainparts.text import hf_folders, text_corpus

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Token = TypeVar("Token", int, str)  # a number, or a word


class Encoder(NamedTuple):
    """What makes tokens of a text."""

    words: list[str] | None  # by token, where tokens are words
    vocabulary: int  # number of possible tokens
    tokenizer: str | None  # a digest of it, of digest_of(); None for words
    encode: Callable[[Iterable[str]], Iterator[list[int]]]  # of a text that comes in chunks


# --------------------------------------------------------------------------------------- tokenizers


def load_tokenizer(
    folder: str | os.PathLike[str], tell: Callable[[str], None]
) -> PreTrainedTokenizerBase:
    """Returns the tokenizer in a folder with Hugging Face's files. If its vocabulary has capitals,
    and no file says whether to keep those of a text, it keeps them, and tell() is called with a
    line that says so, because an error may follow. Raises BadInput or Fault if there is no usable
    tokenizer."""
    library = hf_folders.transformers().AutoTokenizer
    names = "tokenizer_config.json", "tokenizer.json"
    try:
        says, made = (errors.look_at(f"{folder}/{name}") for name in names)
        says = "do_lower_case" in Path(folder, names[0]).read_text("utf-8") if says else False
        tokenizer = library.from_pretrained(folder, trust_remote_code=False)
        if len(tokenizer) < len(tokenizer.all_special_ids) + 3:
            files = "tokenizer.json, or vocab.txt, or vocab.json and merges.txt, or a *.model"
            raise ValueError(f"it needs {files}; without, it would know no word")
        if not (says or made) and lowers_cased(tokenizer):
            tokenizer = library.from_pretrained(
                folder, trust_remote_code=False, do_lower_case=False
            )
            line = f"{folder}: its vocabulary has capitals, so text keeps its own; if this is wrong"
            tell(f'{line}, write {{"do_lower_case": true}} into its tokenizer_config.json')
            if lowers_cased(tokenizer):
                raise ValueError("its vocabulary has capitals, and it would not use them")
        return tokenizer
    except Exception as error:  # libraries may raise anything
        raise errors.storage_error(f"{folder} has no tokenizer", error, typed=True) from None


def lowers_cased(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Returns whether a tokenizer makes no difference between A and a, though its vocabulary
    does."""
    vocabulary = tokenizer.get_vocab()
    capitals = sum(re.fullmatch(r"(##|\W)?[A-Z][a-z]*", token) is not None for token in vocabulary)
    letters = "A B C D E F G H"
    same = tokenizer.tokenize(letters) == tokenizer.tokenize(letters.lower())
    return same and capitals > len(vocabulary) / 100


def digest_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns a hash, of 16 characters, of a tokenizer's vocabulary and of what it makes of a
    sentence."""
    sentence = " The 2 caf\u00e9s\n\n opened EARLY:\tdon't   wait (e.g. at 10:30)!\n"
    tokens = tokenizer(sentence, add_special_tokens=False).input_ids
    content = sorted(tokenizer.get_vocab().items()), tokens
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def word_tokenizer(texts: Iterable[str] | Iterable[list[str]]) -> PreTrainedTokenizerBase:
    """Returns a tokenizer for the words, split at white space, of some texts."""
    tokenizers = importlib.import_module("tokenizers")
    marks = {f"{kind}_token": f"<{kind}>" for kind in ("pad", "cls", "sep", "unk")}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    options = {"special_tokens": [*marks.values()], "show_progress": False}
    trainer = tokenizers.trainers.WordLevelTrainer(vocab_size=10**9, **options)
    tokenizer.train_from_iterator(texts, trainer)
    # <cls> first <sep> second <sep>, by the marks' numbers in the vocabulary.
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("<sep>", 2), ("<cls>", 1))
    return hf_folders.transformers().PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)


def tokenizer_of_bytes() -> PreTrainedTokenizerBase:
    """Returns a tokenizer whose tokens are the bytes of a text in UTF-8."""
    tokenizers = importlib.import_module("tokenizers")
    library = hf_folders.transformers()
    # Its model knows characters; ByteLevel has one for each byte.
    characters = importlib.import_module("transformers.convert_slow_tokenizer").bytes_to_unicode()
    vocabulary = {character: byte for byte, character in characters.items()}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return library.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def tokenizer_of_words(words: Sequence[str]) -> PreTrainedTokenizerBase:
    """Returns a tokenizer for these words, by token, which splits a text as split_words() does; the
    first stands for unknown ones."""
    tokenizers = importlib.import_module("tokenizers")
    index = {word: token for token, word in enumerate(words)}
    model = tokenizers.models.WordLevel(index, unk_token=words[0])
    tokenizer = tokenizers.Tokenizer(model)
    replace, regex = tokenizers.normalizers.Replace, tokenizers.Regex
    # Python's split() takes four control characters for white space, Unicode does not.
    steps = replace("\n", " <eos> "), replace(regex("[\x1c-\x1f]"), " ")
    tokenizer.normalizer = tokenizers.normalizers.Sequence([*steps])
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library = hf_folders.transformers()
    return library.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=words[0])


# ------------------------------------------------------------------------------------------- a text


def make_encoder(
    name: str | os.PathLike[str],
    chunks: Iterable[str],
    tell: Callable[[str], None],
) -> Encoder:
    """Returns the Encoder called `name`: "words", for the words in `chunks` of a text, or a folder
    with a tokenizer, which load_tokenizer() loads, and whose errors this raises. The Encoder's
    `encode` takes a text in chunks and yields lists of tokens."""
    if name != "words":
        tokenizer = load_tokenizer(name, tell)

        def encode(texts: list[str]) -> list[list[int]]:
            return tokenizer(texts, add_special_tokens=False, verbose=False).input_ids

        digest = digest_of(tokenizer)
        return Encoder(None, len(tokenizer), digest, lambda chunks: tokenize(chunks, encode))

    # Without a library of tokenizers, which takes ten times as long.
    def find_words(chunks: Iterable[str]) -> Iterator[list[str]]:
        return tokenize(chunks, lambda texts: [*map(split_words, texts)])

    every = itertools.chain.from_iterable(find_words(chunks))
    words = [*dict.fromkeys(itertools.chain(["<unk>"], every))]
    index = {word: token for token, word in enumerate(words)}
    return Encoder(
        words,
        len(words),
        None,
        lambda chunks: ([index.get(word, 0) for word in found] for found in find_words(chunks)),
    )


def split_words(text: str) -> list[str]:
    """Returns a text's words, split at white space; the end of a line is a word, too."""
    return text.replace("\n", " <eos> ").split()


PIECE = 1 << 16  # characters of a text at a time


def tokenize(
    chunks: Iterable[str], encode: Callable[[list[str]], list[list[Token]]]
) -> Iterator[list[Token]]:
    """Yields lists of tokens, together those of the whole text, which comes in chunks. A part of
    the text is encoded at a time, because `encode` takes a hundred times as much memory as its
    input."""
    pieces = cut_text(chunks, encode)
    while several := [*itertools.islice(pieces, 16)]:  # a library encodes them in parallel
        known = encode([before for before, _ in several])
        whole = encode([before + piece for before, piece in several])
        yield from (ids[len(seen) :] for ids, seen in zip(whole, known, strict=True))


def cut_text(
    chunks: Iterable[str],
    encode: Callable[[list[str]], list[list[Token]]],
    near: int = 256,
) -> Iterator[tuple[str, str]]:
    """Cuts a text into pieces of about PIECE characters. Yields (before, piece); `before` has the
    last `near` characters ahead of the piece. A text is cut only where tokens do not join: `encode`
    must find the same tokens before the cut whether or not the text after it follows."""

    def is_cut(text: str, at: int) -> bool:
        before = text[max(0, at - near) : at]
        alone, joined = encode([before, before + text[at : at + near]])
        return bool(alone) and joined[: len(alone)] == alone

    before = text = ""
    for chunk in chunks:
        for start in range(0, len(chunk), PIECE):
            text += chunk[start : start + PIECE]
            if len(text) < PIECE:
                continue
            # After a line, before a word, else anywhere.
            within, first = text[-PIECE + near : -near], len(text) - PIECE + near
            for pattern in r"\S\n(?=\S)", r"\S(?= \S)", r"(.)(?=.)(?!\1)":
                ends = [first + match.end() for match in re.finditer(pattern, within, re.DOTALL)]
                if at := next((end for end in ends[:-5:-1] if is_cut(text, end)), None):
                    yield before, text[:at]
                    before, text = text[max(0, at - near) : at], text[at:]
                    break
    yield before, text


# ------------------------------------------------------------------------------------------ a table


def encode_rows(
    path: str | os.PathLike[str],
    rows: Sequence[text_corpus.Row],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> tuple[text_corpus.Sequences, list[str]]:
    """Returns the Sequences of a table's rows, each with the tokenizer's marks and cut to
    `max_length` tokens, and a line if some have so many."""
    tokens, second = [], []
    for start in range(0, len(rows), 4096):  # encodings take far more memory than tokens
        several = (row.sentences for row in rows[start : start + 4096])
        columns = map(list, zip(*several, strict=True))
        options = {"truncation": True, "max_length": max_length}
        found = tokenizer(*columns, return_token_type_ids=True, **options)
        tokens += [np.array(row) for row in found["input_ids"]]
        second += [row.index(1) if 1 in row else len(row) for row in found["token_type_ids"]]
    length = np.array([len(row) for row in tokens])
    source = text_corpus.Sequences(
        str(path),
        np.concatenate(tokens),
        offset=length.cumsum() - length,
        length=length,
        second=np.array(second),
        target=np.array([row.label for row in rows]),
        vocabulary=len(tokenizer),
        tokenizer=digest_of(tokenizer),
        pad=tokenizer.pad_token_id or 0,
        pads_left=tokenizer.padding_side == "left",
    )
    lines = []
    if full := (length == max_length).sum():
        lines.append(f"{path}: {full} of {len(rows)} sequences fill --max-length, or were cut")
    return source, lines


def check_known(source: text_corpus.Sequences, unknown: int | None) -> None:
    """Raises BadInput if more than half of the tokens are `unknown`, the tokenizer's token for
    unknown text."""
    if (source.tokens == unknown).mean() > 0.5:
        raise errors.BadInput(f"{source.path}: more than half of it is unknown to the tokenizer")
