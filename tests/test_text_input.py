"""Bad input of text_*.py ends in one line, with exit status 2; GLUE's files are read rightly."""

import itertools
import json
import shutil
import sys

import numpy as np
import pytest
import torch
from conftest import command, damage, flip, run, start_ranks, the_line, the_run

import text_nd
from trainparts.text import tokenizing

ND = "text_nd.py"
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
    """Writes a folder of {name: text, bytes, or None for no such file}."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        if content is not None:
            content = content if isinstance(content, bytes) else content.encode()
            (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """A small BERT with its tokenizer, as Hugging Face saves them; never changed."""
    import transformers

    folder, tokenizer = tmp_path_factory.mktemp("hf") / "bert", tokenizing.word_tokenizer(WORDS)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=len(tokenizer), intermediate_size=32, **sizes)
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


def sources(*options):
    """Returns (train, val) of a run with these options."""
    args = text_nd.parse_args([*map(str, options)])
    return text_nd.list_sources(args, text_nd.Place(torch.device("cpu")))


def prepared(*options):
    """Returns (args, data) of a run with these options."""
    args = text_nd.parse_args([*map(str, options)])
    place = text_nd.Place(torch.device("cpu"))
    return args, text_nd.open_data(args, place, text_nd.list_sources(args, place), (4, 1, 4))


def test_the_data_is_counted(text):
    """Blocks of 32 bytes; the last of training is whole, the last of validation may be ragged."""
    _, data = prepared("--max-length", 32, text)
    train, val = (len((text / f"{part}.txt").read_bytes()) - 1 for part in ("train", "val"))
    counts = f"{train // 32} training and {-(-val // 32)} validation sequences"
    assert text_nd.about_data(data) == [f"{counts}, a vocabulary of 256"]


# ----------------------------------------------------------------------------------------- options

OPTIONS = [
    ("--task lm -a bert", "--task lm needs -a gpt"),
    ("--task cola", "--task cola needs -a FOLDER"),
    ("-a gtp", "similar names: gpt"),
    ("--task cola -a bert-base-cased", "hf download bert-base-cased --local-dir"),
    ("--task cola -a bert --tokenizer bytes", "--tokenizer bytes: no folder"),
    ("--tokenizer nothing", "--tokenizer nothing: no folder"),
    ("--tokenizer /dev/null", "--tokenizer /dev/null: no folder"),
    ("--task cola -a bert --tied", "--tied is for -a gpt"),
    ("--task cola -a bert --max-length 1", "--max-length"),
    ("--hidden-size 30 --heads 4", "--heads 4 does not divide --hidden-size 30"),
    ("--desired-acc 0.5", "--task lm measures only loss perplexity"),
    ("--task mnli -a bert --desired mcc 0.5", "--task mnli measures only loss accuracy"),
    ("--task cola -a bert --best perplexity", "--task cola measures only loss accuracy f1 mcc"),
    ("--resume ''", "--resume"),
    ("--evaluate", "--evaluate needs --resume, --output-dir, --weights or -a FOLDER"),
    ("-b 4000 --max-length 8", "training has 94 sequences, fewer than a global batch, 4000"),
    ("--max-length 100000", "too few for --max-length 100000"),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS, ids=str)
def test_options(options, words, text, complaint_here):
    options = [each.strip("'") for each in options.split()]
    assert words in complaint_here(ND, *TRAIN, *options, text)


def test_sizes_of_a_folder(bert, pairs, complaint_here):
    assert "-a " in complaint_here(ND, *RTE, bert, "--layers", "3", pairs)
    line = complaint_here(ND, *RTE, bert, "--max-length", "600", pairs)
    assert "--max-length 600 is more than its 512 positions" in line


def test_without_transformers(pairs, text, complaint_here, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for options in [*COLA, pairs], [*LM, "--tokenizer", pairs, text]:
        assert "pip install 'transformers>=5'" in complaint_here(ND, *options)


def test_a_task_without_a_demo(complaint_here):
    assert "--task rte needs DIR" in complaint_here(ND, *TRAIN, "--task", "rte", "-a", "bert")


# -------------------------------------------------------------------------------------------- data

TEXTS = {  # of a language model: what is wrong => train.txt, val.txt, options, words of the line
    "nothing in it": (None, None, "", "has no train.txt, which --task lm reads"),
    "no val": (TEXT, None, "", "has no val.txt"),
    "blanks": (" " * 99, TEXT, "words", "train.txt has 0 tokens"),
    "a mark, folder": ("\ufeff", TEXT, "FOLDER", "train.txt has 0"),
    "unknown words": (
        TEXT,
        "ein Hund\n" * 9,
        "words",
        "val.txt: more than half of its words do not",
    ),
    "a folder without": (TEXT, TEXT, "EMPTY", "has no tokenizer"),
}


@pytest.mark.parametrize("fault", TEXTS)
def test_texts(fault, bert, tmp_path, complaint_here):
    train, val, tokenizer, words = TEXTS[fault]
    folder = write(tmp_path / "lm", {"train.txt": train, "val.txt": val})
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
    assert val.tokens[2] == tokenizing.word_tokenizer(["a"]).unk_token_id


@pytest.mark.parametrize(
    ("words", "rate"), [("bert", 3e-3), ("FOLDER", 2e-5), ("FOLDER --lr 3e-3", 3e-3)]
)
def test_a_trained_model_has_a_rate_of_its_own(words, rate, tmp_path, monkeypatch):
    (tmp_path / "FOLDER").mkdir()
    monkeypatch.chdir(tmp_path)
    assert text_nd.parse_args(["--task", "cola", "-a", *words.split()]).lr == rate


def test_a_name_that_is_too_long(complaint_here):
    assert "has no train.txt" in complaint_here(ND, *LM, "x" * 300)


ROWS = {  # of a task of GLUE: what is wrong => the task, train.tsv, dev.tsv, words of the line
    "nothing in it": ("cola", None, None, "has no train.tsv, which --task cola reads"),
    "no dev": ("cola", ROW * 9, None, "has no dev.tsv"),
    "no rows": ("cola", ROW * 9, "\n\n", "dev.tsv has no rows"),
    "columns": ("cola", ROW * 3 + "gj04\t1\ta cat\n" + ROW, ROW, "line 4 has 3 columns, not 4"),
    "a terminal's": ("cola", "gj04\t\x1b[31m\t\ta\n" * 9, ROW, "the label '\\x1b[31m'"),
    "unknown": ("cola", ROW * 9, "gj04\t1\t\tein Hund sieht dich\n", "dev.tsv: more than half"),
    "few": ("cola", ROW * 3, ROW, "training has 3 sequences, fewer than a global batch, 4"),
}


@pytest.mark.parametrize("fault", ROWS)
def test_rows(fault, tmp_path, complaint_here):
    task, train, dev, words = ROWS[fault]
    folder = write(tmp_path / "glue", {"train.tsv": train, "dev.tsv": dev})
    line = complaint_here(ND, *COLA, "--task", task, folder)
    assert words in line and len(line) < 400 + len(str(folder))


def write_bins(folder, meta=META, train=None, dtype=np.uint16):
    """Writes train.bin, val.bin and meta.json."""
    tokens = TOKENS.astype(dtype).tobytes()
    train = tokens if train is None else train
    return write(folder, {"train.bin": train, "val.bin": tokens, "meta.json": meta})


def test_a_token_beyond_the_vocabulary(tmp_path, complaint_here):
    """It is seen where it is read, in training."""
    folder = write_bins(tmp_path / "bins", META.replace("19", "18"))
    line = complaint_here(ND, *LM, "--output-dir", tmp_path / "logs", folder, only=False)
    assert "train.bin has a token 18 of 18" in line


def test_files_that_do_not_belong_together(tmp_path, complaint_here):
    folder = write_bins(tmp_path / "bins")
    (folder / "val.bin").rename(folder / "val.txt")
    assert "has no val.bin" in complaint_here(ND, *LM, folder)
    assert "has no train.txt" in complaint_here(ND, *LM, "--tokenizer", "words", folder)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_good_tokens_in_files(dtype, tmp_path):
    words = [*"abcdefghijklmnopqrs"]
    meta = json.dumps({"vocabulary": 19, "dtype": np.dtype(dtype).name, "words": words})
    train, val = sources(*LM, write_bins(tmp_path / "bins", meta, dtype=dtype))
    assert np.array_equal(train.tokens, TOKENS) and np.array_equal(val.tokens, TOKENS)
    assert train.vocabulary == 19 and train.words == words
    assert len(train.target) == 399 // 16 and len(val.target) == -(-399 // 16)


def test_sequences_too_long_are_cut_and_counted(tmp_path, capfd):
    """In one line a file; the first tokens and both marks stay."""
    long = "0\tthe cat\ta dog runs " + "the owl " * 20 + "\tentailment\n"
    folder = write(tmp_path / "rte", {"train.tsv": PAIRS + long * 2, "dev.tsv": PAIRS})
    train, val = sources(*RTE, "bert", "--max-length", "16", folder)
    printed = "".join(capfd.readouterr()).splitlines()
    assert printed == [f"{folder}/train.tsv: 2 of 14 sequences fill --max-length, or were cut"]
    assert [*train.length[-3:]] == [8, 16, 16] and [*train.second[-3:]] == [4, 4, 4]
    assert max(val.length) == 8
    short, cut = (train.tokens[at : at + 7] for at in train.offset[-3:-1])
    assert [*short] == [*cut] and train.tokens[-1] == train.tokens[train.offset[0] + 3]


# ---------------------------------------------------------------------------- GLUE, as it comes

PARSED = "index,promptID,pairID,genre,sentence1_binary_parse,sentence2_binary_parse,sentence1_parse"
PARSED += ",sentence2_parse,sentence1,sentence2,label1"
GLUE = {  # the header of the files, columns of text and of the label, classes in order
    "cola": ("source,label,star,sentence", [3], 1, "0 1"),
    "sst-2": ("sentence,label", [0], 1, "0 1"),
    "mrpc": ("Quality,#1 ID,#2 ID,#1 String,#2 String", [3, 4], 0, "0 1"),
    "qqp": ("id,qid1,qid2,question1,question2,is_duplicate", [3, 4], 5, "0 1"),
    "mnli": (f"{PARSED},gold_label", [8, 9], -1, "entailment neutral contradiction"),
    "qnli": ("index,question,sentence,label", [1, 2], 3, "entailment not_entailment"),
    "rte": ("index,sentence1,sentence2,label", [1, 2], 3, "entailment not_entailment"),
    "wnli": ("index,sentence1,sentence2,label", [1, 2], 3, "0 1"),
}
# Quotes quote nothing, and of the ends of lines that Unicode has none ends a row.
ODD = ['He said " the cat', 'a "b" c \'', "\u2028one\x85 two", '" it']


def write_glue(task, path, header, columns, label, classes):
    """Writes a file of a task as it is downloaded; returns its rows."""
    header, train = header.split(","), "train" in path.name
    rows = [classes[:1] * len(header) for _ in range(2 * len(ODD))]
    for number, row in enumerate(rows):
        row[label] = classes[number % len(classes)]
        for at, column in enumerate(columns):
            row[column] = ODD[(number + at) % len(ODD)]
    lines = [header] * (task != "cola") + rows
    if task == "qqp" and train:  # a row in two halves
        lines[3:3] = [["4", "5", "6", "lost half"], ["half of it", "1"]]
    end, mark = ("\r\n", "\ufeff") if train else ("\n", "")
    text = mark + end.join("\t".join(line) for line in [*lines, [], []])
    path.write_text(text, newline="")
    return rows


@pytest.mark.parametrize("task", [*GLUE, "cola, own release"])
def test_glue_as_it_is_downloaded(task, tmp_path, capfd):
    """Sentences and classes in Hugging Face's order: by the words of each sequence, since equal
    words are equal tokens."""
    task, _, own = task.partition(", ")
    header, columns, label, classes = GLUE[task]
    headers = {"train.tsv": header, "dev.tsv": header}
    if own:
        headers = {f"in_domain_{name}": header for name in headers}
    if task == "mnli":
        of_dev = f"{PARSED},label2,label3,label4,label5,gold_label"
        headers = {"train.tsv": header, "dev_matched.tsv": of_dev}
    how = columns, label, classes.split()
    tables = [write_glue(task, tmp_path / name, headers[name], *how) for name in headers]
    found = sources("--task", task, "-a", "bert", tmp_path)
    left_out = f"{tmp_path}/train.tsv: 2 incomplete rows are left out\n"
    assert "".join(capfd.readouterr()) == left_out * (task == "qqp")
    numbers = {}
    for rows, source in zip(tables, found, strict=True):
        assert [*source.target] == [classes.split().index(row[label]) for row in rows]
        for number, row in enumerate(rows):
            sentences = [[*row[column].split(), "<sep>"] for column in columns]
            words = ["<cls>", *itertools.chain(*sentences)]
            assert len(columns) == 1 or source.second[number] == 1 + len(sentences[0])
            at = source.offset[number]
            tokens = source.tokens[at : at + source.length[number]].tolist()
            for word, token in zip(words, tokens, strict=True):
                assert numbers.setdefault(word, token) == token, word
    assert len({*numbers.values()}) == len(numbers), "different words are different tokens"


# ---------------------------------------------------------------------------- Hugging Face's files


DAMAGED = {  # what is done to a file of each kind
    "config.json": -9,
    "model.safetensors": flip(4),
    "tokenizer.json": b"\xff\0junk",
    "train.txt": "folder",
    "train.tsv": "link to itself",
    "meta.json": None,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(name, another, tmp_path, complaint_here):
    """Details are in tests/text."""
    files = {"train.tsv": PAIRS, "dev.tsv": PAIRS, "train.txt": TEXT, "val.txt": TEXT}
    folder = write(tmp_path / "data", {} if name == "meta.json" else files)
    if name == "meta.json":
        folder = write_bins(tmp_path / "bins")
    path, how = (folder if (folder / name).exists() else another) / name, DAMAGED[name]
    damage(path, None if isinstance(how, str) else how)
    if isinstance(how, str):
        path.mkdir() if how == "folder" else path.symlink_to(path.name)
    options = LM if name in ("train.txt", "meta.json") else [*RTE, another]
    assert str(path.parent) in complaint_here(ND, *options, folder)


def test_another_vocabulary(bert, another, pairs, complaint_here):
    """Of another size, by --tokenizer; or of other words, which would all be unknown."""
    saved = json.loads((another / "tokenizer.json").read_text())
    words = saved["model"]["vocab"]
    saved["model"]["vocab"] = {f"x{w}" if w in WORDS else w: n for w, n in words.items()}
    (another / "tokenizer.json").write_text(json.dumps(saved))
    assert "more than half of it is unknown" in complaint_here(ND, *RTE, another, pairs)
    saved["model"]["vocab"] = {w: n for w, n in words.items() if w != WORDS[-1]}
    (another / "tokenizer.json").write_text(json.dumps(saved))
    line = complaint_here(ND, *RTE, bert, "--tokenizer", another, pairs)
    assert "its vocabulary has 12 tokens, the tokenizer 11" in line


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
    text_nd.build_model(*prepared(*RTE, another, *scratch, pairs))
    assert not marker.exists()


def test_no_evaluation_of_a_classifier_that_is_new(bert, another, pairs, complaint_here, capfd):
    """Nothing would train it; in training a line says that it is."""
    import transformers

    model = transformers.BertForSequenceClassification.from_pretrained(bert)
    model.bert.save_pretrained(another)
    new = f"-a {another}: 2 weights are new: classifier.bias, classifier.weight"
    line = complaint_here(ND, *RTE, another, "--evaluate", pairs, only=False)
    assert line.endswith(f"{new}: its answers would be random")
    text_nd.build_model(*prepared(*RTE, another, pairs))
    assert capfd.readouterr().out == f"{new}\n"
    text_nd.build_model(*prepared(*RTE, bert, "--evaluate", pairs))
    assert capfd.readouterr().out == ""


# ------------------------------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def trained(text, pairs, tmp_path_factory):
    """The runs of a language model, on words, and of a classifier: {task: folder}."""
    logs = tmp_path_factory.mktemp("trained")
    options = {"lm": [*LM, "--tokenizer", "words", text], "rte": [*COLA, "--task", "rte", pairs]}
    for task, words in options.items():
        run([*command(ND), *words, "--output-dir", logs / task], logs)
    return {task: the_run(logs / task) for task in options}


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


# ------------------------------------------------------------------------------------------- ranks


@pytest.mark.slow
def test_ranks_say_it_once(another, tmp_path):
    """What is printed of the data comes from one rank; damaged weights end all in one line."""
    damage(another / "model.safetensors", -9)
    table = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tlost\n"
    table += "1\t2\t3\tthe cat sees\ta dog runs the owl likes the cat\t1\n" * 9
    folder = write(tmp_path / "qqp", {"train.tsv": table, "dev.tsv": table})
    words = [*TRAIN, "--task", "qqp", "-a", another, "--max-length", "8", folder]
    ranks = start_ranks("text_ddp.py", tmp_path, words, words)
    printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert ranks[0].returncode == 2 and ranks[1].returncode, printed
    lines = printed[0].splitlines()
    assert all("1 incomplete rows are left out" in line for line in lines[:2])
    assert all("9 of 9 sequences fill --max-length, or were cut" in line for line in lines[2:4])
    assert str(another) in the_line(printed[0], only=False) and len(lines) == 5
    assert len(printed[1].splitlines()) == 1 and "Traceback" not in printed[1]
