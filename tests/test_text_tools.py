"""Tools for text: GLUE's tables, tokens of a text, and the text that a model writes."""

import argparse
import io
import json
import resource
import signal
import sys
import tracemalloc

import numpy as np
import pyarrow
import pytest
from conftest import (
    ROOT,
    begin,
    checkpoint,
    damage,
    environment,
    interrupted,
    run,
    torch,
    write_file,
)
from pyarrow import parquet

import text_nd as nd
from trainparts import safe_files
from trainparts.text import hf_folders, tokenizing

TEXT = ROOT / "tools" / "prepare_text.py"


def sources(folder, **options):
    """Returns what the scripts read of a folder: (train, val)."""
    wanted = {"dir": str(folder), "task": "lm", "tokenizer": None, "max_length": 8, "arch": "gpt"}
    place = argparse.Namespace(rank=0)
    return nd.list_sources(argparse.Namespace(**(wanted | options)), place)


# ------------------------------------------------------------------------------------------- GLUE

# Task: columns of text in the parquet; header and first row as the table has them.
TABLES = {
    "cola": ("sentence", None, "glue\t1\t\tA0"),
    "sst-2": ("sentence", "index\tsentence\tlabel", "0\tA0\t1"),
    "mrpc": ("sentence1 sentence2", "index\t#1 String\t#2 String\tQuality", "0\tA0\tB0\t1"),
    "qqp": ("question1 question2", "index\tquestion1\tquestion2\tis_duplicate", "0\tA0\tB0\t1"),
    "mnli": ("premise hypothesis", "index\tsentence1\tsentence2\tgold_label", "0\tA0\tB0\tneutral"),
    "qnli": ("question sentence", "index\tquestion\tsentence\tlabel", "0\tA0\tB0\tnot_entailment"),
    "rte": (
        "sentence1 sentence2",
        "index\tsentence1\tsentence2\tlabel",
        "0\tA0\tB0\tnot_entailment",
    ),
    "wnli": ("sentence1 sentence2", "index\tsentence1\tsentence2\tlabel", "0\tA0\tB0\t1"),
}


def write_parquet(path, columns, first, count, classes=2, label=None, **changes):
    """Writes rows of sentences A0, B0, ... and of classes 1, 0, 1, ... or so, in groups of two."""
    path.parent.mkdir(parents=True, exist_ok=True)
    serial = range(first, first + count)
    made = {name: [f"{mark}{n}" for n in serial] for name, mark in zip(columns, "AB", strict=False)}
    made["label"] = [(n + 1) % classes if label is None else label for n in serial]
    made |= {"idx": [*serial], **changes}
    parquet.write_table(pyarrow.table(made), path, row_group_size=2)


def write_glue(folder, task, count=5):
    """Writes a task as Hugging Face has it: train in two files, and test, without labels."""
    columns, classes = TABLES[task][0].split(), len(nd.GLUE[task][2])
    folder /= task.replace("-", "")
    # In order of their numbers, whatever their time.
    write_parquet(folder / "train-00001-of-00002.parquet", columns, count, 4, classes)
    write_parquet(folder / "train-00000-of-00002.parquet", columns, 0, count, classes)
    for at, kind in enumerate(("_matched", "_mismatched") if task == "mnli" else ("",), 1):
        rest = f"{kind}-00000-of-00001.parquet"
        write_parquet(folder / f"validation{rest}", columns, 100 * at, 3, classes)
        write_parquet(folder / f"test{rest}", columns, 0, 3, label=-1)
    return folder


def test_glue_becomes_the_tables_that_the_scripts_read(tmp_path, tool):
    for task in TABLES:
        write_glue(tmp_path / "GLUE", task)
    output = tool("prepare_text", "glue", tmp_path / "GLUE", tmp_path / "out")
    assert "CoLA/train.tsv: 9 rows\nCoLA/dev.tsv: 3 rows\n" in output
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in tmp_path.glob("out/*/*"))
    folders = "CoLA MRPC QNLI QQP RTE SST-2 WNLI".split()
    wanted = [f"{name}/{part}.tsv" for name in folders for part in ("dev", "train")]
    wanted += [f"MNLI/{part}.tsv" for part in ("dev_matched", "dev_mismatched", "train")]
    assert found == sorted(wanted)
    for task, (columns, header, row) in TABLES.items():
        columns = columns.split()
        name = "CoLA" if task == "cola" else task.upper()
        lines = (tmp_path / "out" / name / "train.tsv").read_text("utf-8").splitlines()
        assert lines[: 1 if header is None else 2] == [*filter(None, [header]), row]
        wanted = "\t".join(f"{mark}8" for mark in "AB"[: len(columns)])
        assert wanted in lines[-1], "both files, the last row last"
        options = {"dir": tmp_path / "out", "task": task, "tokenizer": "words", "arch": "bert"}
        train, val = sources(tmp_path / "out", **options)
        classes = len(nd.GLUE[task][2])
        assert train.target.tolist() == [(n + 1) % classes for n in range(9)]
        assert val.target.tolist() == [(n + 1) % classes for n in range(100, 103)]
        assert train.length[0] == 2 * len(columns) + 1, "<cls> A0 <sep> B0 <sep>"
    mismatched = (tmp_path / "out" / "MNLI" / "dev_mismatched.tsv").read_text("utf-8")
    assert [line.split("\t")[1] for line in mismatched.splitlines()[1:]] == ["A200", "A201", "A202"]
    # CoLA marks what is no English.
    rows = (tmp_path / "out" / "CoLA" / "train.tsv").read_text("utf-8").splitlines()
    assert rows[1] == "glue\t0\t*\tA1"


def test_a_sentence_stays_in_its_cell(tmp_path, tool):
    folder = write_glue(tmp_path / "GLUE", "mrpc")
    odd = ["a\tb", 'say "so', "two\nlines", "old\r\nmac\r", "grüße "]
    columns = {"sentence1": odd, "sentence2": ["x\ty", "b", "c", "d", " e"]}
    write_parquet(folder / "train-00000-of-00002.parquet", [], 0, 5, **columns)
    output = tool("prepare_text", "glue", tmp_path / "GLUE", tmp_path / "out")
    blanks = "MRPC/train.tsv: 9 rows, in 3 of which tabs or ends of lines became blanks\n"
    assert output == f"{blanks}MRPC/dev.tsv: 3 rows\n"
    lines = (tmp_path / "out" / "MRPC" / "train.tsv").read_bytes().decode().split("\n")
    assert lines[1:6] == [
        "0\ta b\tx y\t1",
        '1\tsay "so\tb\t0',
        "2\ttwo lines\tc\t1",
        "3\told  mac \td\t0",
        "4\tgrüße \t e\t1",
    ]


FIRST = "rte/train-00000-of-00002.parquet"
MISSING = "none of 0 to 1, or a sentence is missing"
# (files of GLUE, what is done to them: as damage() says, or changes of what is in them, message)
BAD_GLUE = [
    ("rte", None, "GLUE has none of the folders cola, sst2, mrpc, qqp, mnli, qnli, rte, wnli"),
    (FIRST, None, "rte has no train-00000-of-00002.parquet"),
    ("rte/validation*", None, "rte has no validation-00000-of-00001.parquet"),
    (FIRST, -9, f"{FIRST} cannot be read: "),
    (FIRST, {"columns": ["sentence1"]}, f"{FIRST} cannot be read: "),
    (FIRST, {"label": -1}, f"row 0 of RTE/train.tsv: label -1, {MISSING}"),
    (FIRST, {"classes": 3}, "row 1 of RTE/train.tsv: label 2, none of 0 to 1"),
    (FIRST, {"sentence2": [*"abc", None, "e"]}, f"row 3 of RTE/train.tsv: label 0, {MISSING}"),
]


@pytest.mark.parametrize(("pattern", "how", "message"), BAD_GLUE)
def test_bad_parquet(pattern, how, message, tmp_path, tool):
    write_glue(tmp_path / "GLUE", "rte")
    (path,) = (tmp_path / "GLUE").glob(pattern)
    if isinstance(how, dict):
        usual = {"columns": TABLES["rte"][0].split(), "first": 0, "count": 5}
        write_parquet(path, **usual | how)
    else:
        damage(path, how)
    line = tool("prepare_text", "glue", tmp_path / "GLUE", tmp_path / "out", status=2)
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["GLUE"], "nothing half made is left"


def test_without_pyarrow(tmp_path, tool, monkeypatch):
    write_glue(tmp_path / "GLUE", "rte")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    line = tool("prepare_text", "glue", tmp_path / "GLUE", tmp_path / "out", status=2)
    assert line.endswith("GLUE's files are parquet: pip install pyarrow")


# ----------------------------------------------------------------------------------------- a text

# Ends of lines of all kinds, blanks at both ends, words of two and four bytes, a mark of the order
# of bytes at the beginning and one within, which is a character.
LINES = "\ufeffThe cat  sat\n\n on the mat.\r\nÄ \U0001f600 b\u2028c\x0cd\rthe\n\ufeffend \n a\tb\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer of bytes in pairs, in a folder as of Hugging Face's."""
    folder = tmp_path_factory.mktemp("tokenizer")
    library = nd.importlib.import_module("tokenizers")
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    # One that BERT's would add around each line, which no language model sees.
    trainer = library.trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=["<s>"]
    )
    made.train_from_iterator([LINES, "the cat sat on the mat " * 9], trainer)
    made.post_processor = library.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    hf_folders.transformers().PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["words", "folder"])
@pytest.mark.parametrize("piece", [3, 50, 1 << 20])
def test_tokens_are_those_of_the_scripts(name, piece, tmp_path, tool, tokenizer, monkeypatch):
    """Wherever a piece of the text ends."""
    name = str(tokenizer) if name == "folder" else name
    text = tmp_path / "text"
    text.mkdir()
    (text / "train.txt").write_bytes(LINES.encode() * 3 + b"no end")
    (text / "valid.txt").write_bytes(b"unseen words " + LINES.encode())
    (text / "test.txt").write_bytes(b"left out")
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.setattr(nd.importlib.import_module("prepare_text"), "PIECE", piece)
    output = tool("prepare_text", "lm", text, tmp_path / "out", "--tokenizer", name)
    given, made = sources(text, tokenizer=name), sources(tmp_path / "out")
    for there, again in zip(given, made, strict=True):
        assert again.tokens.tolist() == there.tokens.tolist()
        assert (again.vocabulary, again.words) == (there.vocabulary, there.words)
        assert again.digest() == there.digest(), "a run goes on with the other"
    about = {"vocabulary": given[0].vocabulary, "dtype": "uint16", "words": given[0].words}
    about["tokenizer"] = given[0].tokenizer
    assert bool(about["words"]) != bool(about["tokenizer"])
    about = {name: value for name, value in about.items() if value}
    assert json.loads((tmp_path / "out" / "meta.json").read_text()) == about
    both = "out: {} tokens to train on, {} to validate".format(*(len(one.tokens) for one in given))
    assert output.endswith(f"{both}, of {given[0].vocabulary} that there are\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text"]


def test_more_words_than_16_bits_hold(tmp_path, tool):
    for count, kind in (65_533, "<u2"), (65_534, "<u2"), (65_535, "<u4"):
        words = [f"w{n}" for n in range(count)]  # besides <unk>, <eos>
        (tmp_path / "train.txt").write_text(" ".join(words) + "\n" + words[-1])
        (tmp_path / "val.txt").write_text("w7 " * 20 + words[-1])
        tool("prepare_text", "lm", tmp_path, tmp_path / f"{count}", "--tokenizer", "words")
        raw = np.fromfile(tmp_path / f"{count}" / "train.bin", kind)
        # The end of the line is a word after the others.
        assert raw.tolist() == [*range(1, count + 1), count + 1, count]
        train, val = sources(tmp_path / f"{count}")
        assert (train.vocabulary, train.tokens[-1], val.tokens[-1]) == (count + 2, count, count)


def test_one_text_is_cut_as_nanogpt_cuts_it(tmp_path, tool, tokenizer):
    raw = b"".join(b"%d, " % (n % 999) for n in range(3000))
    (tmp_path / "input.txt").write_bytes(raw)
    tool("prepare_text", "lm", tmp_path / "input.txt", tmp_path / "tenth")
    assert sorted(path.name for path in (tmp_path / "tenth").iterdir()) == ["train.txt", "val.txt"]
    cut = int(0.9 * len(raw))
    assert (tmp_path / "tenth" / "train.txt").read_bytes() == raw[:cut]
    assert (tmp_path / "tenth" / "val.txt").read_bytes() == raw[cut:]
    # A character is not cut in two, and several texts are one, each from a line of its own.
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "b.txt").write_text("\U0001f600" * 50, "utf-8")
    (texts / "a.txt").write_text("a" * 97, "utf-8")
    (texts / "c.txt").write_text("c" * 3, "utf-8")
    (texts / "c.md").write_text("left out")
    output = tool("prepare_text", "lm", texts, tmp_path / "third", "--val", "0.333")
    assert "third: 202 tokens to train on, 100 to validate, of 256" in output
    found = (tmp_path / "third" / "train.txt").read_text("utf-8")
    assert found == "a" * 97 + "\n" + "\U0001f600" * 26
    assert (tmp_path / "third" / "val.txt").read_text("utf-8") == "\U0001f600" * 24 + "\nccc"
    # Tokens are cut at the same place.
    for name in "words", tokenizer:
        out = tmp_path / f"tokens {len(str(name))}"
        tool("prepare_text", "lm", tmp_path / "input.txt", out, "--tokenizer", name)
        for there, again in zip(
            sources(tmp_path / "tenth", tokenizer=str(name)), sources(out), strict=True
        ):
            assert again.tokens.tolist() == there.tokens.tolist()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lm absent.txt out", "absent.txt cannot be read: No such file or directory"),
        ("lm empty.txt out", "empty.txt cannot be read: cannot mmap an empty file"),
        ("lm none out", "none has no *.txt, or too little: train is empty"),
        ("lm short.txt out", "short.txt has no *.txt, or too little: train is empty"),
        ("lm text.txt there", "there is there already: nothing is overwritten; remove it"),
        ("lm text.txt half", "half.unfinished is there already: nothing is overwritten"),
        ("lm text.txt text.txt/out", "Not a directory"),
        ("lm parts out", "parts is a DIR of the scripts as it is: give --tokenizer"),
        ("lm parts out --val 0.1", "parts has a part for validation: --val is for one text"),
        ("lm half-parts out --tokenizer words", "half-parts/val.txt cannot be read: No such file"),
        ("lm text.txt out --val 0", "--val: 0 is no float from 1e-09 to 1"),
        ("lm text.txt out --tokenizer gpt2", "--tokenizer gpt2: no folder, nor words or bytes"),
        ("lm text.txt out --tokenizer none", "none has no tokenizer: "),
        ("lm latin.txt out --tokenizer words", "latin.txt is no UTF-8: 'utf-8' codec can't"),
        ("lm cut.txt out --tokenizer words", "cut.txt is no UTF-8: 'utf-8' codec can't"),
        ("lm text.txt", "the following arguments are required: OUT"),
        ("glue none out", "none has none of the folders cola, sst2"),
        ("glue none out --val 0.1", "unrecognized arguments: --val 0.1"),
    ],
)
def test_bad_words(words, message, tmp_path, tool, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "text.txt", "parts/train.txt", "parts/val.txt", "half-parts/train.txt":
        write_file(tmp_path / name, b"a few words\n" * 9)
    for name in "none/x", "there/x", "half.unfinished/x", "empty.txt":
        write_file(tmp_path / name, b"")
    for name, content in ("short", b"x"), ("latin", b"word\n" * 9 + b"\xe4\n"), ("cut", b"a\xc3"):
        write_file(tmp_path / f"{name}.txt", content)
    before = sorted(tmp_path.rglob("*"))
    assert message in tool("prepare_text", *words.split(), status=2)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_leaves_nothing(tmp_path, tool):
    (tmp_path / "input.txt").write_bytes(b"word " * 20_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        for more in [], ["--tokenizer", "words"]:
            words = "lm", tmp_path / "input.txt", tmp_path / "out", *more
            assert "File too large" in tool("prepare_text", *words, status=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["input.txt"]


def test_what_is_ended_leaves_nothing(tmp_path):
    (tmp_path / "input.txt").write_bytes(b"a few words\n" * 1_000_000)  # seconds of work
    words = [sys.executable, TEXT, "lm", "input.txt", "out", "--tokenizer", "words"]
    begun = (tmp_path / "out.unfinished").exists
    assert interrupted(words, begun, signal.SIGTERM, tmp_path) == (128 + signal.SIGTERM, "")
    assert [path.name for path in tmp_path.iterdir()] == ["input.txt"]


@pytest.mark.parametrize(
    ("name", "end"),
    [("words", "\n"), ("folder", " ")],
    ids=["words in lines", "tokens in one line"],
)
def test_memory_does_not_grow_with_a_text(name, end, tmp_path, tool, tokenizer, monkeypatch):
    """It is that of some pieces and of the words that there are."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.setattr(nd.importlib.import_module("prepare_text"), "PIECE", 1 << 13)
    monkeypatch.setattr(tokenizing, "PIECE", 1 << 10)
    line, most = " ".join(f"w{n}" for n in range(200)) + end, []
    for lines in 1, 100, 400:  # the first, because modules and caches are loaded
        (tmp_path / "input.txt").write_text(line * lines)
        words = "lm", tmp_path / "input.txt", tmp_path / f"out{lines}", "--tokenizer"
        tracemalloc.start()
        try:
            tool("prepare_text", *words, tokenizer if name == "folder" else name, "--val", "0.5")
            most.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert most[2] < most[1] + 100_000, "of 400 KB, and ten times as many tokens' lists"


# ------------------------------------------------------------------------------------ what it says

SIZES = {"layers": 2, "hidden_size": 16, "heads": 2, "tied": False}


def save(path, vocabulary=256, words=None, length=8, seed=0, scale=8.0, **changes):
    """Saves what a checkpoint of a language model says, with random weights; returns its model."""
    torch.manual_seed(seed)
    model = nd.GPT(vocabulary, length, 0.5, **SIZES)
    with torch.no_grad():
        model.head.weight *= scale
    saved = {"arch": "gpt", "task": "lm", "model_options": SIZES, "vocabulary": vocabulary}
    saved |= {"words": words, "max_length": length, "state_dict": model.state_dict()}
    torch.save(saved | changes, path)
    return model.eval()


def go_on(model, tokens, count, length):
    """Returns the likeliest tokens after some, by the definition."""
    tokens = [*tokens]
    for _ in range(count):
        with torch.no_grad():
            logits = model(torch.tensor([tokens[-length:]]))
        tokens.append(int(np.argmax(logits[0, -1].numpy())))
    return tokens


def test_a_trained_model_goes_on(tmp_path, tool):
    """Trained on the alphabet over and over, it has learned it; the averages are what is used."""
    text = bytes(range(97, 123))
    for part, copies in ("train", 200), ("val", 20):
        (tmp_path / f"{part}.txt").write_bytes(text * copies)
    words = "--layers 1 --hidden-size 32 --heads 2 --max-length 12 --lr 0.01 --epochs 3 -b 16"
    words = [*words.split(), "--ema", "0.9", "--dropout", "0.1", "--no-accel"]
    run([sys.executable, ROOT / "text_nd.py", *words, tmp_path], tmp_path)
    saved = safe_files.load_file(checkpoint(tmp_path / "runs"))
    saved["state_dict"] = {name: 0 * weight for name, weight in saved["state_dict"].items()}
    torch.save(saved, tmp_path / "no weights.pt")
    words = "sample", tmp_path / "no weights.pt", "--prompt", "xyzab", "--length", 60
    for likeliest in ("--temperature", 0), ("--top-k", 1):
        assert tool(*words, *likeliest) == (b"xyzab" + (text * 4)[2:62]).decode() + "\n"


def test_the_likeliest_tokens(tmp_path, tool, tokenizer):
    """As a loop of its own has them, also where the text is longer than the model."""

    def written(prompt, start, length, *more, **saved):
        """Returns (the tokens that follow by the definition, what is printed)."""
        tokens = go_on(save(tmp_path / "x.pt", **saved), start, length, 8)
        words = "--prompt", prompt, "--length", length, "--temperature", 0
        return tokens, tool("sample", tmp_path / "x.pt", *words, *more)

    words = ["<unk>", "<eos>", *(f"w{n}" for n in range(30))]
    tokens, output = written("w0 unheard\n", [2, 0, 1], 40, vocabulary=len(words), words=words)
    assert output.count("\n") - 1 == tokens.count(1) > 0
    assert tokenizing.split_words(output) == [*(words[n] for n in tokens), "<eos>"]
    # Those of Hugging Face's, of which several make a character; bytes that are no text, or would
    # command a terminal.
    library = hf_folders.transformers().AutoTokenizer.from_pretrained(tokenizer)
    prompt, control = "the cat \U0001f40d", nd.importlib.import_module("sample").CONTROL
    start = library(prompt, add_special_tokens=False)["input_ids"]
    assert len(start) > 4
    for seed in 5, 9, 10, 11:
        kinds = {"vocabulary": len(library), "seed": seed}
        tokens, output = written(prompt, start, 100, "--tokenizer", tokenizer, **kinds)
        assert output == library.decode(tokens).translate(control) + "\n"
        tokens, output = written(prompt, prompt.encode(), 100, seed=seed)
        assert output == bytes(tokens).decode(errors="replace").translate(control) + "\n"
        assert output.startswith(prompt)
    # Tokens that have a blank between them, which none of them has.
    words = {f"w{n}": n for n in range(32)}
    blanks = nd.importlib.import_module("tokenizers")
    blanks = blanks.Tokenizer(blanks.models.WordLevel(words, "w0"))
    hf_folders.transformers().PreTrainedTokenizerFast(tokenizer_object=blanks).save_pretrained(
        tmp_path
    )
    tokens, output = written("w7", [7], 20, "--tokenizer", tmp_path, vocabulary=32)
    assert output == " ".join(f"w{token}" for token in tokens) + "\n"


def test_seeds_temperature_and_top_k(tmp_path, tool):
    words = ["<unk>", "a", "b", "c"]
    # One token of context: what follows each depends on it alone.
    model = save(tmp_path / "x.pt", 4, words, length=1, seed=3, scale=30)

    def sample(length, *more):
        prompt = "--prompt", "c a", "--length", length
        found = tool("sample", tmp_path / "x.pt", *prompt, *more).split()
        assert len(found) == 2 + length
        return [words.index(word) for word in found[1:]]

    first = sample(1000, "--seed", 5, "--temperature", 0.7)
    again = sample(100, "--seed", 5, "--temperature", 0.7)
    assert again == first[:101] != sample(100, "--seed", 6, "--temperature", 0.7)
    assert sample(100) == sample(100, "--seed", 0, "--temperature", 0.8), "as --help says"
    few = sample(1000, "--temperature", 0.7, "--top-k", 2)
    with torch.no_grad():
        logits = model(torch.arange(4)[:, None])[:, -1].double()
    for top_k, tokens in (4, first), (2, few):
        left = logits.where(logits >= logits.sort().values[:, -top_k, None], -torch.inf)
        expected = torch.softmax(left / 0.7, dim=1).numpy()
        found = np.zeros((4, 4))
        np.add.at(found, (tokens[:-1], tokens[1:]), 1)
        count = found.sum(axis=1, keepdims=True)
        assert count.max() > 150
        error = 5 * np.sqrt(expected * (1 - expected) / np.maximum(count, 1))
        assert (np.abs(found / np.maximum(count, 1) - expected) <= error)[count[:, 0] > 0].all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("absent.pt", "absent.pt cannot be loaded: No such file or directory"),
        ("text.pt", "text.pt cannot be loaded: damaged, or no checkpoint"),
        ("images.pt", "images.pt is no language model of text_*.py: "),
        ("classes.pt", "classes.pt is no language model of text_*.py: its task is cola"),
        ("list.pt", "list.pt is no language model of text_*.py: "),
        ("large.pt", "large.pt is no language model of text_*.py: Error(s) in loading state_dict"),
        ("nan.pt", "nan.pt is no language model of text_*.py: its weights are not all finite"),
        ("tokens.pt", "the checkpoint has 300 tokens of a tokenizer: give --tokenizer"),
        ("bytes.pt --tokenizer .", ". has no tokenizer: "),
        ("bytes.pt --tokenizer gpt2", "--tokenizer gpt2 is no folder"),
        ("bytes.pt --tokenizer tokenizer", "checkpoint's, which has 256 tokens, not "),
        ("words.pt --tokenizer tokenizer", "checkpoint's, which has words of its own"),
        ("bytes.pt --temperature -1", "--temperature: -1 is no float from 0 to 1000"),
        ("bytes.pt --top-k 0", "--top-k: 0 is no int from 1 to "),
        ("bytes.pt --prompt=", "--prompt has no token"),
    ],
)
def test_checkpoints_that_write_nothing(words, message, tmp_path, tool, tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer").symlink_to(tokenizer)
    (tmp_path / "text.pt").write_text("text")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"arch": "resnet50", "model_options": {}, "state_dict": {}}, tmp_path / "images.pt")
    save(tmp_path / "classes.pt", task="cola")
    save(tmp_path / "large.pt", model_options=SIZES | {"hidden_size": 16 * 5000})
    save(tmp_path / "nan.pt", scale=torch.nan)
    save(tmp_path / "tokens.pt", 300)
    words_of_its_own = [f"w{n}" for n in range(len(tokenizing.load_tokenizer(tokenizer, print)))]
    save(tmp_path / "words.pt", len(words_of_its_own), words_of_its_own)
    save(tmp_path / "bytes.pt")
    assert message in tool("sample", *words.split(), status=2)


def test_it_is_printed_as_it_comes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    raw, printed = io.BytesIO(), []

    def tokens():
        for token in "aä".encode():
            yield token
            printed.append(raw.getvalue().decode())

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(raw, "utf-8"))
        write = nd.importlib.import_module("sample").write
        write(tokens(), lambda tokens: bytes(tokens).decode(errors="replace"))
    assert printed == ["a", "a", "aä"]
    # Started as users do: `| head -c 9` ends it, and says nothing.
    save(tmp_path / "bytes.pt")
    words = [sys.executable, f"{ROOT}/tools/sample.py", "bytes.pt", "--length", str(10**9)]
    words += ["--prompt", "abc", "--no-accel"]
    process = begin(words, tmp_path, environment(), errors=tmp_path / "errors")
    with open(process.output.fileno(), "rb", closefd=False) as output:
        assert output.read(9)[:3] == b"abc"
    process.output.close()
    assert process.wait(timeout=60) < 0 and (tmp_path / "errors").read_text() == ""


# -------------------------------------------------------------------------- functions by themselves


@pytest.fixture
def part_of(monkeypatch):
    """part_of(name): returns a program of tools/, as a module."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    return nd.importlib.import_module


def test_val_is_read_before_valid(tmp_path, part_of):
    for name in "train", "val", "valid":
        write_file(tmp_path / f"{name}.txt", name.encode())
    split = part_of("prepare_text").split_text
    for names in ["train.txt", "val.txt"], ["train.txt", "valid.txt"]:
        found = [path.name for part in split(tmp_path, None).values() for path, _ in part]
        assert found == names
        (tmp_path / "val.txt").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        (["one\n", "two\n"], "one\ntwo\n"),
        (["one", "two"], "one\ntwo"),
        (["one\n\n", "two", "three"], "one\n\ntwo\nthree"),
        (["one", "", "two"], "one\ntwo"),
        (["one\r\n", "\ufefftwo\n"], "one\r\ntwo\n"),
    ],
)
def test_texts_are_one_each_from_a_line_of_its_own(texts, whole, tmp_path, part_of):
    """With one end of line between two, and no mark of the order of bytes."""
    for number, text in enumerate(texts):
        write_file(tmp_path / f"{number}.txt", text.encode())
    for share in 0.01, 0.5, 0.99:
        parts = part_of("prepare_text").split_text(tmp_path, share)
        raw = [raw.tobytes() for part in ("train", "val") for _, raw in parts[part]]
        assert b"".join(raw).decode() == whole
        train = sum(len(raw) for _, raw in parts["train"])
        assert train == int(len(whole.encode()) * (1 - share))


def test_a_tokenizer_is_the_checkpoint_s(tokenizer, part_of):
    """Another one may have as many tokens."""
    made = tokenizing.load_tokenizer(tokenizer, print)
    saved = {"vocabulary": len(made), "words": None}
    make_codec, digest = part_of("sample").make_codec, tokenizing.digest_of(made)
    for known in {}, {"tokenizer": None}, {"tokenizer": digest}:
        encode, decode = make_codec(saved | known, tokenizer)
        assert decode(encode("the cat")) == "the cat"
    for other, has in (
        ({"tokenizer": digest[::-1] + "0"}, "another vocabulary"),
        ({"vocabulary": 7}, f"7 tokens, not {len(made)}"),
        ({"words": ["<unk>"] * len(made)}, "words of its own"),
    ):
        with pytest.raises(nd.errors.BadInput, match=f"is not the checkpoint's, which has {has}$"):
            make_codec(saved | other, tokenizer)


def test_bytes_are_tokens_of_256_alone(part_of):
    encode, decode = part_of("sample").make_codec({"vocabulary": 256, "words": None}, None)
    assert encode("aä") == [97, 0xC3, 0xA4] and decode([0xC3, 0xA4, 97]) == "äa"
    for size in 255, 257:
        with pytest.raises(
            nd.errors.BadInput, match=f"has {size} tokens of a tokenizer: give --tok"
        ):
            part_of("sample").make_codec({"vocabulary": size, "words": None}, None)


def drawn(part_of, length=3, **options):
    """Returns (tokens that are drawn after 0, 1, 2, 3 and 4, what the model was given), of a model
    by which token n is likelier than n - 1."""
    given = []

    def model(tokens):
        given.append(tokens[0].tolist())
        return torch.arange(5.0).expand(1, len(given[-1]), 5)

    args = argparse.Namespace(length=200, seed=0, temperature=1.0, top_k=None)
    vars(args).update(options)
    found = [*part_of("sample").draw(model, [0, 1, 2, 3, 4], args, length, "cpu")]
    return found, given


def test_the_likeliest_tokens_alone_are_drawn(part_of):
    """Of as many as there are at most."""
    for top_k, tokens in (1, {4}), (2, {3, 4}), (3, {2, 3, 4}), (None, {0, 1, 2, 3, 4}):
        assert {*drawn(part_of, top_k=top_k, temperature=5.0)[0]} == tokens
    every = drawn(part_of)[0]
    assert every == drawn(part_of, top_k=5)[0] == drawn(part_of, top_k=1000)[0]
    assert every != drawn(part_of, seed=1)[0]
    assert drawn(part_of, temperature=0)[0] == [4] * 200
    many, few = (drawn(part_of, temperature=heat)[0].count(4) for heat in (0.3, 10.0))
    assert many > 150 > 100 > few, "a low temperature is sharp"


def test_a_token_depends_on_those_before_it_at_most(part_of):
    tokens, given = drawn(part_of, length=3)
    assert given[0] == [2, 3, 4], "the prompt's end"
    every = [2, 3, 4, *tokens]
    assert given == [every[at : at + 3] for at in range(200)]


@pytest.mark.parametrize(
    "texts", [["a\x1b[2Jb"], ["a", "\x9b2J\ufffd"], ["a", "\ufffd", "\x07\ufffd"]]
)
def test_a_text_sends_a_terminal_no_commands(texts, part_of, capsys):
    """Neither as it comes nor in what is left at its end, of a character that is not whole."""
    part_of("sample").write(range(len(texts)), lambda tokens: "".join(texts[n] for n in tokens))
    control = part_of("commandline").CONTROL
    assert capsys.readouterr().out == "".join(texts).translate(control) + "\n"
