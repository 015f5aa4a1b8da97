"""Bad input of text_*.py ends in one line, with exit status 2; GLUE's files are read rightly."""

import csv
import json
import pickle
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, Hostile, command, environment, free_port, run, the_line, write_images

import text_nd

ND, PIPELINE = "text_nd.py", "text_pipeline.py"
TRAIN = ["--no-accel", "-b", "4", "--epochs", "1"]
SMALL = ["--layers", "1", "--hidden-size", "16", "--heads", "2"]
LM = [*TRAIN, *SMALL, "--max-length", "16"]
COLA = [*TRAIN, *SMALL, "--task", "cola", "-a", "bert", "--max-length", "16"]
RTE = [*TRAIN, "--task", "rte", "-a"]
WORDS = "the a cat dog owl sees likes runs".split()
TEXT = "the cat sees a dog\n" * 40
ROW = "gj04\t1\t\tthe cat sees a dog\n"
PAIRS = "index\tsentence1\tsentence2\tlabel\n" + "0\tthe cat\ta dog runs\tentailment\n" * 12
TOKENS = np.arange(400) % 19
META = json.dumps({"vocabulary": 19, "dtype": "uint16"})


def write(folder, files):
    """Writes a folder of {name: text or bytes}."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        content = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """A small BERT with its tokenizer, as Hugging Face saves them; never changed."""
    import tokenizers
    import transformers

    folder, marks = tmp_path_factory.mktemp("hf") / "bert", ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    index = {word: number for number, word in enumerate([*marks, *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(index, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), marks, strict=True))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(
        folder
    )
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=len(index), intermediate_size=32, **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture
def another(bert, tmp_path):
    """A copy of that folder, to be damaged."""
    return shutil.copytree(bert, tmp_path / "hf")


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """A folder of RTE, of 12 pairs."""
    return write(tmp_path_factory.mktemp("glue") / "rte", {"train.tsv": PAIRS, "dev.tsv": PAIRS})


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A folder of a language model."""
    files = {"train.txt": TEXT, "val.txt": TEXT[:200]}
    return write(tmp_path_factory.mktemp("texts") / "lm", files)


def edit(path, **changes):
    """Changes values in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# ----------------------------------------------------------------------------------------- options

OPTIONS = [
    ("--task lm -a bert", "--task lm needs -a gpt"),
    ("--task cola", "--task cola needs -a FOLDER"),
    ("-a gtp", "near: gpt"),
    ("--task cola -a bert-base-cased", "hf download bert-base-cased --local-dir"),
    ("--task cola -a brt", "near: bert, albert"),
    ("--task sts-b", "invalid choice: 'sts-b'"),
    ("--task cola -a bert --tokenizer bytes", "--tokenizer bytes: no folder"),
    ("--task cola -a bert --tied", "--tied is for -a gpt"),
    ("--task cola -a bert --max-length 1", "--max-length"),
    ("--heads 3", "--heads 3 does not divide --hidden-size"),
    ("--hidden-size 30 --heads 4", "--heads 4 does not divide --hidden-size 30"),
    ("--tokenizer nothing", "--tokenizer nothing: no folder"),
    ("--desired-acc 0.5", "--task lm measures loss perplexity alone"),
    ("--desired mcc 0.5", "--task lm measures loss perplexity alone"),
    ("--task mnli -a bert --desired mcc 0.5", "--task mnli measures loss accuracy alone"),
    ("--best mcc", "--task lm measures loss perplexity alone"),
    ("--task mnli -a bert --best f1", "--task mnli measures loss accuracy alone"),
    ("--task cola -a bert --best perplexity", "--task cola measures loss accuracy f1 mcc alone"),
    ("--max-length 0", "--max-length: 0"),
    ("--dropout 1", "--dropout: 1"),
    ("--hidden-size 0", "--hidden-size: 0"),
    ("--desired perplexity low", "a number: low is no float"),
    ("--resume ''", "--resume"),
    ("--resume nothing.pt", "nothing.pt cannot be loaded: No such file"),
    ("-b 4000 --max-length 8", "training has 94 sequences, fewer than a global batch, 4000"),
    ("--max-length 100000", "too few for --max-length 100000"),
    ("--image-size 32", "unrecognized arguments: --image-size"),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS, ids=str)
def test_options(options, words, text, complaint_here):
    options = [each.strip("'") for each in options.split()]
    assert words in complaint_here(ND, *TRAIN, *options, text)


def test_sizes_of_a_folder(bert, pairs, complaint_here):
    assert "-a " in complaint_here(ND, *RTE, bert, "--layers", "3", pairs)
    line = complaint_here(ND, *RTE, bert, "--max-length", "600", pairs)
    assert "--max-length 600 is more than its 512 positions" in line


def test_tied_weights_in_a_pipeline(text, complaint_here):
    assert "--tied" in complaint_here(PIPELINE, *LM, "--tied", text)


def test_without_transformers(pairs, text, complaint_here, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for options in [*COLA, pairs], [*LM, "--tokenizer", pairs, text]:
        assert "pip install -r requirements-text.txt" in complaint_here(ND, *options)


def test_a_task_without_a_demo(complaint_here):
    assert "--task rte needs DIR" in complaint_here(ND, *TRAIN, "--task", "rte", "-a", "bert")


# -------------------------------------------------------------------------------------------- data

TEXTS = {  # of a language model: what is wrong => files, options, words of the line
    "no folder": (None, "", "has no train.txt, which --task lm reads"),
    "nothing in it": ({}, "", "has no train.txt"),
    "no val": ({"train.txt": TEXT}, "", "has no val.txt"),
    "an empty text": ({"train.txt": "", "val.txt": TEXT}, "", "train.txt cannot be read"),
    "an empty val": ({"train.txt": TEXT, "val.txt": ""}, "", "val.txt cannot be read"),
    "three bytes": ({"train.txt": "abc", "val.txt": TEXT}, "", "train.txt has 3 tokens"),
    "one token": ({"train.txt": TEXT, "val.txt": "a"}, "", "val.txt has 1 tokens"),
    "blanks": ({"train.txt": " " * 99, "val.txt": TEXT}, "words", "train.txt has 0 tokens"),
    "UTF-16": (
        {"train.txt": TEXT.encode("utf-16"), "val.txt": TEXT},
        "words",
        "'utf-8' codec can't",
    ),
    "a mark alone": ({"train.txt": "\ufeff", "val.txt": TEXT}, "words", "train.txt has 0 tokens"),
    "a mark, folder": ({"train.txt": "\ufeff", "val.txt": TEXT}, "FOLDER", "train.txt has 0"),
    "unknown words": (
        {"train.txt": TEXT, "val.txt": "ein Hund sieht dich\n" * 9},
        "words",
        "val.txt: more than half of its words are not in training's",
    ),
    "a folder without": ({"train.txt": TEXT, "val.txt": TEXT}, "EMPTY", "has no tokenizer"),
}


@pytest.mark.parametrize("fault", TEXTS)
def test_texts(fault, bert, tmp_path, complaint_here):
    files, tokenizer, words = TEXTS[fault]
    folder = tmp_path / "lm" if files is None else write(tmp_path / "lm", files)
    named = {"FOLDER": bert, "EMPTY": folder}.get(tokenizer, tokenizer)
    line = complaint_here(ND, *LM, *(["--tokenizer", named] if tokenizer else []), folder)
    assert words in line and str(folder) in line


def test_words_of_dev_alone_are_unknown(tmp_path):
    rows = {"train.tsv": "gj04\t1\t\ta dog sees a cat\n" * 9, "dev.tsv": "gj04\t1\t\ta bird sees\n"}
    args = text_nd.parse_args([*"--task cola -a bert".split(), str(write(tmp_path / "cola", rows))])
    train, val = text_nd.list_sources(args, text_nd.Place("cpu"))
    assert train.vocabulary == val.vocabulary
    known = {*train.tokens.tolist()}
    assert [token in known for token in val.tokens.tolist()] == [True, True, False, True, True]
    assert val.tokens[2] == text_nd.word_tokenizer(["a"]).unk_token_id


@pytest.mark.parametrize(
    ("words", "rate"), [("bert", 3e-3), ("FOLDER", 2e-5), ("FOLDER --lr 3e-3", 3e-3)]
)
def test_a_trained_model_has_a_rate_of_its_own(words, rate, tmp_path, monkeypatch):
    (tmp_path / "FOLDER").mkdir()
    monkeypatch.chdir(tmp_path)
    assert text_nd.parse_args(["--task", "cola", "-a", *words.split()]).lr == rate


@pytest.mark.parametrize("kind", ["folder", "link to nothing", "link to itself"])
@pytest.mark.parametrize("name", ["train.txt", "train.tsv", "meta.json", "config.json"])
def test_what_is_no_file(kind, name, bert, tmp_path, complaint_here):
    files = {"val.txt": TEXT, "dev.tsv": ROW * 9, "train.tsv": ROW * 9}
    if name == "meta.json":
        files |= {f"{split}.bin": TOKENS.astype(np.uint16).tobytes() for split in ("train", "val")}
    folder = write(tmp_path / "data", {each: files[each] for each in files if each != name})
    path = folder / name
    if name == "config.json":
        path = shutil.copytree(bert, tmp_path / "hf") / name
        path.unlink()
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(name if "itself" in kind else "nothing")
    options = {"train.txt": LM, "meta.json": LM, "train.tsv": COLA}
    line = complaint_here(ND, *options.get(name, [*COLA[:-4], path.parent]), folder)
    assert str(folder) in line or str(path.parent) in line


def test_a_name_that_is_too_long(complaint_here):
    assert "has no train.txt" in complaint_here(ND, *LM, "x" * 300)


ROWS = {  # of a task of GLUE: what is wrong => the task, train.tsv, dev.tsv, words of the line
    "nothing in it": ("cola", None, None, "has no train.tsv, which --task cola reads"),
    "no dev": ("cola", ROW * 9, None, "has no dev.tsv"),
    "empty": ("cola", "", ROW, "train.tsv cannot be read"),
    "no rows": ("cola", "\n\n", ROW, "train.tsv has no rows"),
    "no rows to validate": ("cola", ROW * 9, "\n", "dev.tsv has no rows"),
    "a header alone": ("rte", PAIRS[: PAIRS.find("\n")], PAIRS, "train.tsv has no rows"),
    "columns": ("cola", ROW * 3 + "gj04\t1\ta cat\n" + ROW, ROW, "line 4 has 3 columns, not 4"),
    "columns below a header": ("rte", PAIRS + "0\ta\n", PAIRS, "line 14 has 2 columns, not 4"),
    "ends of old Macs": ("cola", ROW.replace("\n", "\r") * 9, ROW, "line 1 has 28 columns, not 4"),
    "a label": ("cola", ROW * 3 + "gj04\t7\t\ta\n", ROW, "line 4 has the label '7', none of 0, 1"),
    "a label of WNLI": ("rte", PAIRS.replace("entailment", "1"), PAIRS, "'1', none of entailment"),
    "a terminal's": ("cola", "gj04\t\x1b[31m\t\ta\n" * 9, ROW, "the label '\\x1b[31m'"),
    "a column": (
        "rte",
        PAIRS.replace("sentence2", "s"),
        PAIRS,
        "no column 'sentence2', but index,",
    ),
    "another task": ("qnli", PAIRS, PAIRS, "no column 'question', but index, sentence1"),
    "test.tsv": ("rte", PAIRS, "index\tsentence1\tsentence2\n0\ta\tb\n", "test.tsv has no labels"),
    "test.tsv of CoLA": ("cola", ROW * 9, "index\tsentence\n0\tthe cat\n", "line 1 has 2 columns"),
    "UTF-16": ("cola", (ROW * 9).encode("utf-16"), ROW, "train.tsv cannot be read: 'utf-8'"),
    "Latin 1": (
        "cola",
        (ROW * 9).replace("dog", "d\xf6g").encode("latin1"),
        ROW,
        "'utf-8' codec can't",
    ),
    "unknown": ("cola", ROW * 9, "gj04\t1\t\tein Hund sieht dich\n", "dev.tsv: more than half"),
    "few": ("cola", ROW * 3, ROW, "training has 3 sequences, fewer than a global batch, 4"),
}


@pytest.mark.parametrize("fault", ROWS)
def test_rows(fault, tmp_path, complaint_here):
    task, train, dev, words = ROWS[fault]
    files = {"train.tsv": train, "dev.tsv": dev}
    files = {name: content for name, content in files.items() if content is not None}
    folder = write(tmp_path / "glue", files)
    line = complaint_here(ND, *COLA, "--task", task, folder)
    assert words in line and len(line) < 400 + len(str(folder))


def test_a_long_label(tmp_path, complaint_here):
    files = {"train.tsv": f"gj04\t{'7' * 10**5}\t\ta\n", "dev.tsv": ROW}
    assert len(complaint_here(ND, *COLA, write(tmp_path / "glue", files))) < 500


BINS = {  # what is wrong => meta.json, words of the line
    "no meta.json": (None, "No such file"),
    "no JSON": ("{", "meta.json"),
    "no UTF-8": (b"\xff", "meta.json"),
    "deep": ("[" * 10**5, "meta.json"),
    "a list": ("[]", "meta.json"),
    "a number": ("3", "meta.json"),
    "no type": ('{"vocabulary": 19}', "dtype"),
    "another type": ('{"vocabulary": 19, "dtype": "int7"}', "int7"),
    "a type in a list": ('{"vocabulary": 19, "dtype": ["uint16"]}', "meta.json"),
    "a vocabulary of text": ('{"vocabulary": "x", "dtype": "uint16"}', "meta.json"),
    "an infinite one": ('{"vocabulary": Infinity, "dtype": "uint16"}', "meta.json"),
    "words as one": ('{"vocabulary": 19, "dtype": "uint16", "words": "abc"}', "list"),
    "words that are numbered": ('{"vocabulary": 19, "dtype": "uint16", "words": {"a": 0}}', "list"),
    "none that is a number": ('{"vocabulary": NaN, "dtype": "uint16"}', "meta.json"),
}


def write_bins(folder, meta=META, train=None, dtype=np.uint16):
    """Writes train.bin, val.bin and meta.json."""
    tokens = TOKENS.astype(dtype).tobytes()
    files = {"train.bin": tokens if train is None else train, "val.bin": tokens}
    return write(folder, files | ({"meta.json": meta} if meta is not None else {}))


@pytest.mark.parametrize("fault", BINS)
def test_tokens_in_files(fault, tmp_path, complaint_here):
    meta, words = BINS[fault]
    line = complaint_here(ND, *LM, write_bins(tmp_path / "bins", meta))
    assert words in line and '{"vocabulary": 50257, "dtype": "uint16"}' in line


def test_half_a_token(tmp_path, complaint_here):
    folder = write_bins(tmp_path / "bins", train=bytes(801))
    assert str(folder) in complaint_here(ND, *LM, folder)


def test_a_token_beyond_the_vocabulary(tmp_path, complaint_here):
    """It is seen where it is read, in training."""
    folder = write_bins(tmp_path / "bins", META.replace("19", "18"))
    line = complaint_here(ND, *LM, "--log-dir", tmp_path / "logs", folder, only=False)
    assert "train.bin has a token 18 of 18" in line


def test_files_that_do_not_belong_together(tmp_path, complaint_here):
    folder = write_bins(tmp_path / "bins")
    (folder / "val.bin").rename(folder / "val.txt")
    assert "has no val.bin" in complaint_here(ND, *LM, folder)
    assert "has no train.txt" in complaint_here(ND, *LM, "--tokenizer", "words", folder)


def sources(*options):
    """Returns (train, val) of a run with these options."""
    args = text_nd.parse_args([*map(str, options)])
    return text_nd.list_sources(args, text_nd.Place(torch.device("cpu")))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_good_tokens_in_files(dtype, tmp_path):
    meta = json.dumps(
        {"vocabulary": 19, "dtype": np.dtype(dtype).name, "words": [*"abcdefghijklmnopqrs"]}
    )
    train, val = sources(*LM, write_bins(tmp_path / "bins", meta, dtype=dtype))
    assert np.array_equal(train.tokens, TOKENS) and np.array_equal(val.tokens, TOKENS)
    assert train.vocabulary == 19 and train.words == [*"abcdefghijklmnopqrs"]
    assert len(train.target) == 399 // 16 and len(val.target) == -(-399 // 16)


def test_sequences_too_long_are_cut_and_counted(tmp_path, capfd):
    """In one line a file; the first tokens and both marks stay."""
    long = "0\tthe cat\ta dog runs " + "the owl " * 20 + "\tentailment\n"
    folder = write(tmp_path / "rte", {"train.tsv": PAIRS + long * 2, "dev.tsv": PAIRS})
    train, val = sources(*RTE, "bert", "--max-length", "16", folder)
    printed = "".join(capfd.readouterr()).splitlines()
    assert printed == [f"{folder}/train.tsv: 2 of 14 sequences are of --max-length, or cut to it"]
    assert [*train.length[-3:]] == [8, 16, 16] and [*train.second[-3:]] == [4, 4, 4]
    assert max(val.length) == 8
    short, cut = (train.tokens[at : at + 7] for at in train.offset[-3:-1])
    assert [*short] == [*cut] and train.tokens[-1] == train.tokens[train.offset[0] + 3]


# ---------------------------------------------------------------------------- GLUE, as it comes

QUOTES = ['He said " the cat', 'a "b" c \'', '" it " is', "x y"]
NUL = "\u2028one\x85 two"  # ends no line
LAYOUTS = {  # files as GLUE's download has them; columns of text and of the label, classes in order
    "cola": (
        {
            "train.tsv": 'gj04\t1\t\tThe cat "sees.\ngj04\t0\t*\tSees cat the.\n\n',
            "dev.tsv": 'clc95\t0\t*\tThe cat "sees\nclc95\t1\t\tSees "cat the.',
        },
        [3],
        1,
        "0 1",
        0,
    ),
    "sst-2": (
        {
            "train.tsv": f'sentence\tlabel\nhide new "secretions \t0\n{NUL} wit \t1\n',
            "dev.tsv": "sentence\tlabel\nunflinchingly bleak \t0\n",
        },
        [0],
        1,
        "0 1",
        1,
    ),
    "mrpc": (
        {
            "train.tsv": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
            '1\t702876\t702977\tAmrozi said " no\tReferring to him "\r\n0\t1\t2\ta b\tc d e\r\n',
            "dev.tsv": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t3\t4\the\tshe did\n",
        },
        [3, 4],
        0,
        "0 1",
        1,
    ),
    "qqp": (
        {
            "train.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
            '1\t2\t3\tHow is "it ?\tWhy ?\t0\n4\t5\t6\tlost half\n'
            "half of it\t1\n7\t8\t9\tWho\tWho is\t1\n",
            "dev.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta b\tc\t1\n",
        },
        [3, 4],
        5,
        "0 1",
        1,
    ),
    "mnli": (
        {
            "train.tsv": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\t"
            "sentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2\t"
            "label1\tgold_label\n"
            '0\t1\t1n\tgov\t( a )\t( b )\t(R a)\t(R b)\tone "two\tthree\tneutral\tneutral\n'
            "1\t1\t1e\tgov\t( a )\t( b )\t(R a)\t(R b)\tp q\tr s t\tentailment\tentailment\n"
            "2\t1\t1c\tgov\t( a )\t( b )\t(R a)\t(R b)\tu\tv\tneutral\tcontradiction\n",
            "dev_matched.tsv": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\t"
            "sentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2\t"
            "label1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n"
            "0\t1\t1n\tgov\t( a )\t( b )\t(R a)\t(R b)\tx y\tz\tneutral\tneutral\tneutral\t"
            "neutral\tneutral\tcontradiction\n",
        },
        [8, 9],
        -1,
        "entailment neutral contradiction",
        1,
    ),
    "qnli": (
        {
            "train.tsv": "index\tquestion\tsentence\tlabel\n"
            '0\tWhen was it ?\tIt was " then\tnot_entailment\n1\tWho ?\tHe "did" it\tentailment\n',
            "dev.tsv": "index\tquestion\tsentence\tlabel\n0\tWhat ?\tThat\tnot_entailment\n",
        },
        [1, 2],
        3,
        "entailment not_entailment",
        1,
    ),
    "rte": (
        {
            "train.tsv": "index\tsentence1\tsentence2\tlabel\n"
            '0\tNo "weapons were\tWeapons .\tnot_entailment\n'
            '1\tA place of\tPope "so"\tentailment\n',
            "dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tDana\tDana R\tnot_entailment\n",
        },
        [1, 2],
        3,
        "entailment not_entailment",
        1,
    ),
    "wnli": (
        {
            "train.tsv": "index\tsentence1\tsentence2\tlabel\n"
            '0\tI stuck "a pin\tIt had a\t1\n1\tJohn could\tI see\t0\n',
            "dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tThe drain\tIt is clogged\t0\n",
        },
        [1, 2],
        3,
        "0 1",
        1,
    ),
}
COLAS_OWN = {f"in_domain_{name}": text for name, text in LAYOUTS["cola"][0].items()}


@pytest.mark.parametrize("task", [*LAYOUTS, "cola, own release"])
def test_glue_as_it_is_downloaded(task, tmp_path, capfd):
    """Sentences and classes as an independent reader has them, in Hugging Face's order: by the
    words of each sequence, since equal words are equal tokens."""
    files, columns, label, classes, header = LAYOUTS[task.split(",")[0]]
    files = COLAS_OWN if "own" in task else files
    folder = write(tmp_path / "glue", files)
    found = sources("--task", task.split(",")[0], "-a", "bert", folder)
    printed = "".join(capfd.readouterr())
    assert printed == (
        f"{folder}/train.tsv: 2 rows are too short, and are left out\n" * (task == "qqp")
    )
    numbers, known = {}, set()
    for (name, _), source in zip(files.items(), found, strict=True):
        with open(folder / name, newline="", encoding="utf-8-sig") as file:
            rows = [*csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
        rows = [row for row in rows[header:] if len(row) == len(rows[0])]
        assert [*source.target] == [classes.split().index(row[label]) for row in rows]
        for number, row in enumerate(rows):
            words = ["<cls>"]
            for column in columns:
                words += [*row[column].split(), "<sep>"]
            if len(columns) > 1:
                second = len(row[columns[0]].split()) + 2
                assert source.second[number] == second
            at = source.offset[number]
            tokens = source.tokens[at : at + source.length[number]].tolist()
            assert len(tokens) == len(words), words
            for word, token in zip(words, tokens, strict=True):
                if name.endswith("train.tsv") or word in known:  # others are unknown
                    assert numbers.setdefault(word, token) == token, word
            known |= {*words} if name.endswith("train.tsv") else set()
    assert len({*numbers.values()}) == len(numbers), "different words are different tokens"


# ---------------------------------------------------------------------------- Hugging Face's files


def half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[5] ^= 255
    path.write_bytes(content)


DAMAGES = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "half": half,
    "flipped": flip,
    "junk": lambda path: path.write_bytes(b"\xff\0junk"),
    "a list": lambda path: path.write_text("[1]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_damaged_folders(name, damage, another, pairs, complaint_here):
    DAMAGES[damage](another / name)
    assert str(another) in complaint_here(ND, *RTE, another, pairs)


CONFIGS = {  # what config.json is made to hold => words of the line
    "heads that do not divide": ({"num_attention_heads": 3}, "multiple of the number of attention"),
    "a size of text": ({"hidden_size": "16"}, "hidden_size"),
    "a size below 0": ({"hidden_size": -1}, ""),
    "another size": ({"hidden_size": 32}, "weights"),
    "few tokens": ({"vocab_size": 7}, "its vocabulary has 7 tokens, the tokenizer 12"),
    "an unknown model": ({"model_type": "nothing"}, "nothing"),
    "an unknown function": ({"hidden_act": "boom"}, "boom"),
    "a library that is missing": ({"quantization_config": {"quant_method": "awq"}}, ""),
}


@pytest.mark.parametrize("held", CONFIGS)
def test_configurations(held, another, pairs, complaint_here):
    changes, words = CONFIGS[held]
    edit(another / "config.json", **changes)
    line = complaint_here(ND, *RTE, another, pairs)
    assert str(another) in line and words in line


def test_another_vocabulary(bert, another, pairs, complaint_here):
    """Of another size, by --tokenizer; or of other words, which would all be unknown."""
    saved = json.loads((another / "tokenizer.json").read_text())
    words = saved["model"]["vocab"]
    saved["model"]["vocab"] = {f"x{w}" if w in WORDS else w: n for w, n in words.items()}
    (another / "tokenizer.json").write_text(json.dumps(saved))
    assert "more than half is unknown" in complaint_here(ND, *RTE, another, pairs)
    saved["model"]["vocab"] = {w: n for w, n in words.items() if w != WORDS[-1]}
    (another / "tokenizer.json").write_text(json.dumps(saved))
    line = complaint_here(ND, *RTE, bert, "--tokenizer", another, pairs)
    assert "its vocabulary has 12 tokens, the tokenizer 11" in line


def test_a_tokenizer_in_python(another, pairs, complaint_here):
    (another / "tokenizer.json").unlink()
    (another / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    assert "the tokenizer 3" in complaint_here(ND, *RTE, another, pairs)  # it works: of 384 tokens


def test_a_decoder(another, pairs, complaint_here):
    """It would read its last token, wherever padding stands."""
    edit(another / "config.json", pad_token_id=None)
    assert "it has no token for padding" in complaint_here(ND, *RTE, another, pairs)


def test_positions_that_are_left_out(another, tmp_path, complaint_here):
    """RoBERTa and its kin count from 2."""
    folder = write(tmp_path / "rte", {"train.tsv": PAIRS, "dev.tsv": PAIRS})
    for kind in "roberta", "xlm-roberta", "camembert":
        edit(another / "config.json", model_type=kind, max_position_embeddings=514)
        line = complaint_here(ND, *RTE, another, "--max-length", "513", folder)
        assert "--max-length 513 is more than its 512 positions" in line


CODE = """
import transformers
open({marker!r}, "w").close()
class Config(transformers.BertConfig):
    model_type = "evil"
class Model(transformers.BertForSequenceClassification):
    config_class = Config
class Tokenizer(transformers.PreTrainedTokenizerFast):
    pass
"""
CLASSES = {"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"}


@pytest.mark.parametrize("scratch", [[], ["--from-scratch"]], ids=str)
def test_code_of_a_model_is_not_run(scratch, bert, another, pairs, tmp_path, complaint_here):
    """Nor is anybody asked whether it may be. What needs it ends in one line; what does not need it
    is read without it."""
    marker = tmp_path / "run"
    (another / "evil.py").write_text(CODE.format(marker=str(marker)))
    edit(another / "config.json", model_type="evil", auto_map=CLASSES)
    line = complaint_here(ND, *RTE, another, *scratch, pairs)
    assert "contains custom code" in line
    auto = {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}
    edit(another / "config.json", model_type="bert", auto_map=CLASSES)
    edit(another / "tokenizer_config.json", auto_map=auto, tokenizer_class="Tokenizer")
    args = text_nd.parse_args([*map(str, [*RTE, another, *scratch, pairs])])
    place = text_nd.Place(torch.device("cpu"))
    found = text_nd.list_sources(args, place)
    text_nd.build_model(args, text_nd.open_data(args, place, found, (4, 1, 4)))
    assert not marker.exists()


@pytest.mark.parametrize("name", ["_attn_implementation", "attn_implementation"])
def test_an_attention_that_a_folder_names_is_not_fetched(name, another, pairs, monkeypatch):
    """Nor has its saved way to return logits any say."""
    edit(another / "config.json", **{name: "evil/kernel", "return_dict": False})
    monkeypatch.setattr(socket, "getaddrinfo", None)
    args = text_nd.parse_args([*map(str, [*RTE, another, pairs])])
    place = text_nd.Place(torch.device("cpu"))
    data = text_nd.open_data(args, place, text_nd.list_sources(args, place), (4, 1, 4))
    model = text_nd.build_model(args, data)
    assert model.encoder.config._attn_implementation == "sdpa"
    assert model(text_nd.dummy_batch(args, data, 3, "cpu")[0]).shape == (3, 2)


def test_what_is_imported_of_hugging_faces_is_offline(tmp_path):
    """It reads that when it is imported: after a script, which is imported without it."""
    code = "import {0}, sys; assert 'huggingface_hub' not in sys.modules; {0}.transformers()"
    code += "; assert sys.modules['huggingface_hub'].constants.HF_HUB_OFFLINE"
    run([sys.executable, "-c", code.format("text_nd")], ROOT)


def test_weights_that_are_a_pickle_are_not_run(another, pairs, tmp_path, complaint_here):
    (another / "model.safetensors").unlink()
    path = another / "pytorch_model.bin"
    torch.save({"classifier.bias": Hostile(tmp_path / "run")}, path)
    line = complaint_here(ND, *RTE, another, pairs)
    assert str(another) in line
    path.write_bytes(pickle.dumps({"classifier.bias": Hostile(tmp_path / "run")}, protocol=2))
    assert str(another) in complaint_here(ND, *RTE, another, pairs, only=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [[], ["--from-scratch"]], ids=str)
@pytest.mark.parametrize("load", [True, False])
def test_a_folder_in_half_precision_trains_in_float32(options, load, bert, pairs, tmp_path):
    """Whatever rank loads it: ranks of two types would exchange bytes that do not fit."""
    import transformers

    folder = shutil.copytree(bert, tmp_path / "hf")
    model = transformers.BertForSequenceClassification.from_pretrained(bert)
    model.to(torch.bfloat16).save_pretrained(folder)
    args = text_nd.parse_args([*map(str, [*RTE, folder, *options, pairs])])
    place = text_nd.Place(torch.device("cpu"))
    data = text_nd.open_data(args, place, text_nd.list_sources(args, place), (4, 1, 4))
    built = text_nd.build_model(args, data, load=load)
    assert {weight.dtype for weight in built.parameters()} == {torch.float32}


# ------------------------------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def trained(text, pairs, tmp_path_factory):
    """The runs of a language model, on words, and of a classifier: {task: folder}."""
    logs = tmp_path_factory.mktemp("trained") / "runs"
    options = {"lm": [*LM, "--tokenizer", "words", text], "rte": [*COLA, "--task", "rte", pairs]}
    folders = {}
    for task, words in options.items():
        run([*command(ND), *words, "--log-dir", logs / task], logs.parent)
        (folders[task],) = (logs / task).iterdir()
    return folders


BY_HAND = {  # names of a checkpoint and what they are made to hold; None: it is left out
    "a size of text": {"model_options": {"layers": "1"}},
    "a size that is true": {"model_options": {"layers": True}},
    "another option": {"model_options": {"layers": 1, "path": "x"}},
    "sizes in a list": {"model_options": [1]},
    "no sizes": {"model_options": None},
    "a vocabulary of text": {"vocabulary": "10"},
    "a vocabulary that is not whole": {"vocabulary": 10.0},
    "no vocabulary": {"vocabulary": None},
    "words that are numbers": {"words": [1, 2]},
    "words that are a number": {"words": 7},
    "no words": {"words": None},
    "a length of text": {"max_length": "16"},
    "a length that is true": {"max_length": True},
    "no length": {"max_length": None},
    "a task that is a number": {"task": 7},
    "no task": {"task": None},
    "an architecture in a list": {"arch": ["gpt"]},
    "no architecture": {"arch": None},
    "no weights": {"state_dict": None},
}


@pytest.mark.parametrize("held", BY_HAND)
def test_checkpoints_made_by_hand(held, trained, text, tmp_path, complaint_here):
    saved = torch.load(trained["lm"] / "checkpoint.pt", weights_only=True)
    for name, value in BY_HAND[held].items():
        saved[name] = value
        if value is None:
            del saved[name]
    torch.save(saved, tmp_path / "bad.pt")
    options = [*LM, "--tokenizer", "words", "--resume", tmp_path / "bad.pt"]
    assert "bad.pt" in complaint_here(ND, *options, text, only=False)


def test_checkpoints_of_something_else(trained, text, pairs, bert, tmp_path, complaint_here):
    """Of another task, vocabulary, model or length: named in a line, after what options differ."""
    lm = [ND, *LM, "--resume", trained["lm"] / "checkpoint.pt"]
    words = ["--tokenizer", "words"]
    other = write(tmp_path / "other", {"train.txt": TEXT.replace("cat", "ox"), "val.txt": TEXT})
    more = write(tmp_path / "more", {"train.txt": TEXT + "an ox\n" * 9, "val.txt": TEXT})
    rte = trained["rte"] / "checkpoint.pt"
    for options, name in (
        ([*lm, *words, "--layers", "2", text], "model_options"),
        ([*lm, *words, "--tied", text], "model_options"),
        ([*lm, *words, "--max-length", "8", text], "max_length"),
        ([*lm, *words, other], "words"),
        ([*lm, *words, more], "vocabulary"),
        ([*lm, text], "vocabulary"),
        ([ND, *LM, *words, "--resume", rte, text], "arch"),
        ([ND, *COLA, "--task", "rte", *lm[-2:], pairs], "arch"),
        ([ND, *RTE, bert, "--resume", rte, pairs], ""),
        ([ND, *COLA, "--task", "rte", "-a", "electra", "--resume", rte, pairs], "arch"),
    ):
        line = complaint_here(*options, only=False)
        assert f"checkpoint.pt differs in {name.replace('_', '-')}" in line, line
    table = (pairs / "train.tsv").read_text().replace("\tentailment", "\t1")
    folder = write(tmp_path / "wnli", {"train.tsv": table, "dev.tsv": table})
    line = complaint_here(ND, *COLA, "--task", "wnli", "--resume", rte, folder, only=False)
    assert "differs in task (rte, here wnli)" in line


def test_images_and_text(trained, text, tmp_path, complaint_here):
    """A checkpoint of the one is none of the other."""
    images = write_images(tmp_path / "images")
    options = ["-a", "squeezenet1_1", "--image-size", "32", "-b", "2", "--epochs", "1", "-j", "0"]
    options += ["--no-accel", images]
    run([*command("imagenet_nd.py"), *options, "--log-dir", "logs"], tmp_path)
    (saved,) = tmp_path.glob("logs/*/checkpoint.pt")
    for path in saved, saved.parent:
        line = complaint_here(ND, *LM, "--resume", path, text, only=False)
        assert "checkpoint.pt differs in arch (squeezenet1_1, here gpt)" in line
    options += ["--resume", trained["lm"] / "checkpoint.pt"]
    line = complaint_here("imagenet_nd.py", *options, only=False)
    assert "checkpoint.pt differs in arch (gpt, here squeezenet1_1)" in line


# -------------------------------------------------------------------------------------------- logs


def test_results_of_text(trained, tmp_path):
    """make_results.py reads the runs: with their perplexity and no accuracy that there is not."""
    logs = trained["lm"].parents[1]
    run([sys.executable, ROOT / "make_results.py", logs, "--out", tmp_path], tmp_path)
    page = (tmp_path / "RESULTS.md").read_text()
    for folder in trained.values():
        assert folder.name in page or folder.parent.name in page
    assert "nan" not in page.lower().split() and "inf" not in page.lower().split()


# ------------------------------------------------------------------------------------------- ranks


@pytest.mark.slow
def test_ranks_say_it_once(another, tmp_path):
    """What is printed of the data comes from one rank; damaged weights end all in one line."""
    half(another / "model.safetensors")
    table = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tlost\n"
    table += "1\t2\t3\tthe cat sees\ta dog runs the owl likes the cat\t1\n" * 9
    folder = write(tmp_path / "qqp", {"train.tsv": table, "dev.tsv": table})
    port, ranks = str(free_port()), []
    words = [*TRAIN, "--task", "qqp", "-a", another, "--max-length", "8", folder]
    for rank in range(2):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        env = environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **place)
        started = [sys.executable, str(ROOT / "text_ddp.py"), *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ranks.append(subprocess.Popen(started, cwd=tmp_path, env=env, **pipes))
    printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert ranks[0].returncode == 2 and ranks[1].returncode, printed
    lines = printed[0].splitlines()
    assert [line.split(": ")[1] for line in lines[:2]] == [
        "1 rows are too short, and are left out"
    ] * 2
    assert all("9 of 9 sequences are of --max-length, or cut to it" in line for line in lines[2:4])
    assert str(another) in the_line(printed[0], only=False) and len(lines) == 5
    assert len(printed[1].splitlines()) == 1 and "Traceback" not in printed[1]
