"""What a FOLDER of Hugging Face's, a text and --weights say of themselves; numbers are those of
transformers, called for one sentence at a time."""

import argparse
import functools
import itertools
import json
import shutil
import sys

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from conftest import ROOT, command, load, run
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

import text_nd as nd
from trainparts import errors
from trainparts.text import hf_folders, text_corpus, tokenizing

ND = command("text_nd.py")
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
transformers.utils.logging.disable_progress_bar()
SAY = "--no-accel -b 4 --max-length 32".split()
WORDS = "the cat dog bird sees hears likes a small red old tree".split()
MNLI = ["entailment", "neutral", "contradiction"]
NUMBERED = [f"LABEL_{n}" for n in range(3)]


def write_model(folder, kind="bert", names=NUMBERED, cased=(), **options):
    """Writes a tiny classifier with random weights that differ; returns it."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *cased]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
    sizes |= {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}  # GPT-2's names
    if kind in ("bart", "xlnet", "funnel"):  # whose sizes have other names
        sizes = {"d_model": 32, "d_inner": 64, "n_layer": 2, "n_head": 2, "d_head": 16}
        sizes |= {"encoder_layers": 2, "decoder_layers": 2, "pad_token_id": 0}
        if kind == "funnel":
            sizes = {"d_model": 32, "d_inner": 64, "n_head": 2, "d_head": 16, "block_sizes": [1, 1]}
            sizes["pad_token_id"] = 0
        if kind == "bart":
            sizes |= {"eos_token_id": 3, "bos_token_id": 2, "decoder_start_token_id": 2}
    config = transformers.AutoConfig.for_model(
        kind,
        vocab_size=len(vocabulary),
        initializer_range=0.5,
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
        **(sizes | options),
    )
    torch.manual_seed(1)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    if kind != "bert":
        numbered = {word: number for number, word in enumerate(vocabulary)}
        transformers.BertTokenizer(vocab=numbered).save_pretrained(folder)
    return model.eval()


def write_rows(folder, labels, task="mnli", count=24, words=WORDS):
    """Writes a task of pairs, labelled in turn or by a function of two sentences."""
    columns, label, _ = nd.GLUE[task]
    rng = np.random.default_rng(0)
    rows = []
    for number in range(count):
        texts = [" ".join(rng.choice(words, rng.integers(2, 9))) for _ in columns]
        name = labels(*texts) if callable(labels) else labels[number % len(labels)]
        rows.append([str(number), *texts, name])
    table = "\n".join("\t".join(row) for row in [["index", *columns, label], *rows]) + "\n"
    folder.mkdir(exist_ok=True)
    for name in ("train.tsv", "dev_matched.tsv" if task == "mnli" else "dev.tsv"):
        (folder / name).write_text(table)
    return rows


@torch.no_grad()
def logits_of(model, folder, texts):
    """Returns what transformers says of one sentence or pair."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return model(**tokenizer(*texts, return_tensors="pt", truncation=True, max_length=32)).logits[0]


def measured(output):
    """Returns what -e prints: (accuracy, loss)."""
    line = output.splitlines()[-1]
    assert line.startswith("validation: accuracy "), output
    return float(line.split()[2]), float(line.split()[-1])


@pytest.fixture
def refused(complaint_here, tmp_path):
    """refused(folder, *options) returns the line in which a run in a folder ends, in a place of its
    own with links to what is in the folder."""

    def call(folder, *options):
        for path in folder.iterdir():
            (tmp_path / path.name).is_symlink() or (tmp_path / path.name).symlink_to(path)
        return complaint_here("text_nd.py", *options, only=False, begun=True)

    return call


# -------------------------------------------------------------------------------- classes by name


ORDERS = [((0, 1, 2), str.title), ((2, 1, 0), str.upper), ((1, 2, 0), str)]


@pytest.mark.parametrize(("order", "spelling"), ORDERS)
def test_classes_are_scored_by_their_names(order, spelling, tmp_path):
    """In whatever order FOLDER has them, as roberta-large-mnli's and the cross-encoders'."""
    names = [spelling(MNLI[n]) for n in order]
    model = write_model(tmp_path / "model", names=names)

    def answer(*texts):
        return MNLI[order[int(logits_of(model, tmp_path / "model", texts).argmax())]]

    rows = write_rows(tmp_path / "data", answer)
    assert len({row[-1] for row in rows}) > 1
    losses = []
    for _, *texts, name in rows:
        target = torch.tensor([order.index(MNLI.index(name))])
        logits = logits_of(model, tmp_path / "model", texts)[None]
        losses.append(torch.nn.functional.cross_entropy(logits, target).item())
    words = [*SAY, "--task", "mnli", "-a", "model", "-e", "data"]
    accuracy, loss = measured(run([*ND, *words], tmp_path))
    assert accuracy == 100 and loss == pytest.approx(np.mean(losses), abs=6e-6)
    if spelling is str.upper:
        assert measured(run([*command("text_ddp.py", 2), *words], tmp_path)) == (accuracy, loss)


@pytest.mark.parametrize(
    ("task", "names", "order"),
    [
        ("rte", ["not_entailment", "entailment"], [1, 0]),
        ("rte", ["Not-Entailment", "Entailment"], [1, 0]),
        ("sst-2", ["NEGATIVE", "POSITIVE"], [0, 1]),
        ("sst-2", ["positive", "negative"], [1, 0]),
        ("cola", ["acceptable", "unacceptable"], [1, 0]),
        ("mrpc", ["0", "1"], [0, 1]),
        ("mrpc", ["1", "0"], [1, 0]),
        ("qqp", ["LABEL_0", "LABEL_1"], [0, 1]),
        ("wnli", ["entailment", "not_entailment"], [1, 0]),
    ],
)
def test_names_of_two_classes(task, names, order, tmp_path):
    """`order` are the outputs of the task's classes 0 and 1."""
    write_model(tmp_path / "model", names=names)
    args = argparse.Namespace(task=task, arch=str(tmp_path / "model"), from_scratch=False)
    args.evaluate, args.weights = True, None
    classes = nd.name_labels(args, None, [])
    theirs = nd.CLASSES.get(task, nd.GLUE[task][2])
    assert [classes.index(name) for name in theirs] == order


def test_names_in_one_of_two_tables(tmp_path, complaint_here):
    """transformers' own run_glue.py reads label2id; two tables that differ are refused."""
    id2label = dict(enumerate(NUMBERED))
    write_model(tmp_path / "model", names=MNLI)
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    config |= {"id2label": id2label, "label2id": {name: 2 - n for n, name in enumerate(MNLI)}}
    path.write_text(json.dumps(config))
    args = argparse.Namespace(task="mnli", arch=str(tmp_path / "model"), from_scratch=False)
    args.evaluate, args.weights = True, None
    assert nd.name_labels(args, None, []) == MNLI[::-1]
    path.write_text(json.dumps(config | {"id2label": dict(enumerate(MNLI))}))
    write_rows(tmp_path / "data", MNLI)
    line = complaint_here("text_nd.py", *SAY, "--task", "mnli", "-a", "model", "data")
    assert line.endswith("its config.json has one order in id2label, another in label2id")


OTHERS = [slow(["joy", "anger", "fear"]), ["entailment", "neutral", "unknown"], slow(["a", "b"])]


@pytest.mark.parametrize("names", [*OTHERS, ["LABEL_0", "LABEL_2", "LABEL_1"]])
def test_other_names_are_not_evaluated(names, tmp_path, complaint_here):
    write_model(tmp_path / "model", names=names)
    write_rows(tmp_path / "data", MNLI)
    words = [*SAY, "--task", "mnli", "-a", "model", "data"]
    line = complaint_here("text_nd.py", *words, "-e")
    told = f"-a model has the classes {', '.join(names)}, --task mnli {', '.join(MNLI)}"
    assert line.endswith(f"{told}: its answers would mean something else")
    output = run([*ND, *words, "--epochs", "1", "--output-dir", "run"], tmp_path)
    assert (f"{told}: its last layer starts from theirs\n" in output) == (len(names) == 3)
    saved = load(tmp_path / "run" / "model_best.pt")
    assert saved["labels"] == MNLI
    output = run([*ND, *words, "-e", "--output-dir", "run"], tmp_path)
    assert measured(output), "what was trained is of the task's classes"


def save_as_the_page_says(tmp_path, monkeypatch, folder, path):
    """Runs the code of docs/text.md that saves a trained model as a FOLDER."""
    text = (ROOT / "docs" / "text.md").read_text()
    (code,) = [block for block in text.split("```python\n")[1:] if "save_pretrained" in block]
    monkeypatch.chdir(tmp_path)
    code = code.split("```")[0].replace('"runs/NAME/model_best.pt"', repr(str(path)))
    exec(code.replace('"FOLDER"', repr(str(folder))), {})


@pytest.mark.parametrize(
    "names", [["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], NUMBERED, ["a", "b"]]
)
def test_what_is_saved_names_its_classes(names, tmp_path, monkeypatch):
    """As transformers reads the config.json that the page's code writes."""
    write_model(tmp_path / "model", names=names)
    rows = write_rows(tmp_path / "data", lambda first, *_: MNLI[len(first.split()) % 3])
    words = [*SAY, "--task", "mnli", "-a", "model", "data"]
    run([*ND, *words, *"--epochs 2 --lr 3e-3 --output-dir run".split()], tmp_path)
    found = measured(run([*ND, *words, "-e", "--output-dir", "run"], tmp_path))
    save_as_the_page_says(tmp_path, monkeypatch, "model", "run/model_best.pt")
    mine = transformers.AutoModelForSequenceClassification.from_pretrained("mine").eval()
    assert sorted(mine.config.id2label.values()) == sorted(MNLI)
    guessed = [
        mine.config.id2label[int(logits_of(mine, "mine", texts).argmax())] for _, *texts, _ in rows
    ]
    right = np.mean([name == row[-1] for name, row in zip(guessed, rows, strict=True)])
    assert 100 * right == pytest.approx(found[0], abs=6e-4)
    again = run([*ND, *SAY, "--task", "mnli", "-a", "mine", "-e", "data"], tmp_path)
    assert measured(again) == pytest.approx(found, abs=2e-5)


def test_worst_values_are_printed(tmp_path):
    """No right answer is 0 %, an F1 of 0 %, and a correlation of -1 or 0."""
    values = nd.compute_metrics(dict.fromkeys(nd.SUMS, 0) | {"fp": 3, "fn": 4, "sequences": 7})
    assert (
        nd.format_metrics(values, 3) == "accuracy 0.000 %, F1 0.000 %, MCC -1.00000, loss 0.00000"
    )
    model = write_model(tmp_path / "model", names=MNLI)

    def wrong(*texts):
        return MNLI[(int(logits_of(model, tmp_path / "model", texts).argmax()) + 1) % 3]

    write_rows(tmp_path / "data", wrong)
    output = run([*ND, *SAY, "--task", "mnli", "-a", "model", "-e", "data"], tmp_path)
    assert "validation: accuracy 0.000 %, loss " in output


# -------------------------------------------------------------------------------------- tokenizers


@pytest.mark.parametrize("kind", "bert roberta deberta longformer gpt2 mpnet albert xlnet".split())
def test_a_folder_without_its_tokenizer_is_one_line(kind, tmp_path, complaint_here):
    folder = tmp_path / "model"
    transformers.AutoConfig.for_model(kind, pad_token_id=1).save_pretrained(folder)
    write_rows(tmp_path / "data", MNLI)
    line = complaint_here("text_nd.py", *SAY, "--task", "mnli", "-a", folder, "data")
    assert f"{folder} has no tokenizer: it needs tokenizer.json, or vocab.txt, " in line


CASED = ["The", "Cat", "Dog", "##s"]


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
    write_model(tmp_path / "model", cased=cased)
    if says is not None:
        (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(says))
    lines = []
    tokenizer = tokenizing.load_tokenizer(str(tmp_path / "model"), tell=lines.append)
    found = tokenizer.tokenize("The Cat a")
    assert found == (["The", "Cat", "a"] if kept else ["the", "cat", "a"])
    line = "model: its vocabulary has capitals, so text keeps its own; if this is wrong, write "
    assert [line in each for each in lines] == [True] * (
        kept and "do_lower_case" not in (says or {})
    )
    if lines:  # what it advises
        content = lines.pop().split("write ")[1].split(" into")[0]
        (tmp_path / "model" / "tokenizer_config.json").write_text(content)
        tokenizer = tokenizing.load_tokenizer(str(tmp_path / "model"), tell=lines.append)
        assert (tokenizer.tokenize("The"), lines) == (["the"], [])


@pytest.mark.parametrize("task", ["mnli", "lm"])
def test_what_is_done_with_capitals_is_printed(task, tmp_path, capfd):
    write_model(tmp_path / "model", cased=CASED)
    write_rows(tmp_path / "data", MNLI)
    for name in "train.txt", "val.txt":
        (tmp_path / "data" / name).write_text("The Cat a The Dog\n" * 99)
    arch = ["-a", tmp_path / "model"] if task == "mnli" else ["--tokenizer", tmp_path / "model"]
    args = nd.parse_args([*map(str, [*SAY, "--task", task, *arch, tmp_path / "data"])])
    nd.list_sources(args, nd.Place(torch.device("cpu")))
    assert "model: its vocabulary has capitals, so text keeps its own" in capfd.readouterr().out


def byte_pairs(folder, order):
    """Writes a tokenizer of bytes and some words, in an order of its own."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*letters, *(f"{a}{b}" for a, b in ["th", "he", "in", "er"][::order])]
    numbered = {name: number for number, name in enumerate(["<pad>", *names])}
    pairs = [tuple(name) for name in names[len(letters) :]]
    made = tokenizers.Tokenizer(models.BPE(vocab=numbered, merges=pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>")
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A folder with tokenizers A and B of one size, a text, its .bin files, and a run with A."""
    folder = tmp_path_factory.mktemp("told")
    byte_pairs(folder / "A", 1)
    byte_pairs(folder / "B", -1)
    (folder / "text").mkdir()
    for name in "train", "val":
        (folder / "text" / f"{name}.txt").write_text("the inner mother in the heather\n" * 40)
    for name in "AB":
        prepare = [sys.executable, ROOT / "tools" / "prepare_text.py", "lm", "text", f"bin {name}"]
        run([*prepare, "--tokenizer", name], folder)
    words = [*ND, *SAY, "--epochs", "1", "--tokenizer", "A", "--output-dir", "run", "text"]
    run(words, folder)
    return folder


@pytest.mark.parametrize("data", [["--tokenizer", "{}", "text"], ["bin {}"]], ids=["txt", "bin"])
@pytest.mark.parametrize("way", ["-e --output-dir run", "-e --weights", "--resume", "--weights"])
def test_another_tokenizer_of_the_same_size_is_refused(way, data, told, refused):
    best = [] if "output-dir" in way else ["run/model_best.pt"]
    words = [*SAY, *way.split(), *best, "--epochs", "2"]
    line = refused(told, *words, *(word.format("B") for word in data))
    assert "differs in tokenizer (" in line
    if way != "--resume":
        same = [*words, *(word.format("A") for word in data)]
        run([*ND, *same, *["--output-dir", "new"] * ("-e" not in words)], told)
        shutil.rmtree(told / "new", ignore_errors=True)


def test_sample_takes_its_own_tokenizer_alone(told, call_tool, monkeypatch):
    monkeypatch.chdir(told)
    words = ["run/model_best.pt", "--length", "3", "--prompt", "the", "--tokenizer"]
    _, errors = call_tool("sample", *words, "B", status=2)
    assert "--tokenizer B is not the checkpoint's, which has another vocabulary" in errors
    output, _ = call_tool("sample", *words, "A")
    assert output.startswith("th")


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


TOKENS = np.arange(400) % 19
BINS = [
    ({"vocabulary": 151936, "dtype": "uint16"}, np.uint16, "a vocabulary of 151936 does not fit"),
    ({"vocabulary": 0, "dtype": "uint16"}, np.uint16, "a vocabulary of 0 does not fit"),
    ({"vocabulary": 19, "dtype": "uint16", "words": ["a"] * 18}, np.uint16, "it has 18 words"),
    ({"vocabulary": 19, "dtype": "uint16"}, np.uint32, "are of uint32, not of uint16"),
]


@pytest.mark.parametrize(("meta", "dtype", "told"), BINS)
def test_files_of_tokens_that_contradict_themselves(meta, dtype, told, tmp_path, complaint_here):
    for name in "train", "val":
        (tmp_path / f"{name}.bin").write_bytes(TOKENS.astype(dtype).tobytes())
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    line = complaint_here("text_nd.py", *SAY, tmp_path)
    assert told in line and f"{tmp_path / 'meta.json'}" in line
    good = {"vocabulary": 19, "dtype": dtype.__name__}
    (tmp_path / "meta.json").write_text(json.dumps(good))
    assert (
        text_corpus.view_bins([tmp_path / "train.bin"], [TOKENS.astype(dtype).view(np.uint8)])[1]
        == 19
    )


# ------------------------------------------------------------------------------ dropout, positions

KINDS = "bert roberta gpt2 openai-gpt electra distilbert esm xlnet deberta funnel bart".split()


def classify(kind, folder, *more):
    """Returns (args, data) of a classifier of this kind."""
    write_model(folder / "model", kind)
    write_rows(folder / "data", MNLI)
    words = [*SAY, "--task", "mnli", "-a", folder / "model", *more, folder / "data"]
    args = nd.parse_args([*map(str, words)])
    place = nd.Place(torch.device("cpu"))
    return args, nd.open_data(args, place, nd.list_sources(args, place), (4, 1, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_reaches_all_of_it(kind, tmp_path):
    """Without it, two passes in training are equal; with it they differ, more with more."""
    inputs = torch.randint(5, 17, (4, 9))
    inputs[:, 7:] = torch.tensor([3, 8])  # the mark of the end, and no second sentence
    apart = []
    for rate in "0", "0.1", "0.6":
        args, data = classify(kind, tmp_path, "--dropout", rate)
        torch.manual_seed(0)
        model = nd.build_model(args, data).train()
        with torch.no_grad():
            found = torch.stack([model(inputs) for _ in range(20)])
        apart.append(found.std(dim=0).mean().item() / found.mean(dim=0).abs().mean().item())
        shutil.rmtree(tmp_path / "model")
    assert apart[0] < 1e-6 < 1e-3 < apart[1] < apart[2]


def test_dropout_that_cannot_be_reached_is_one_line(tmp_path, monkeypatch):
    args, data = classify("bert", tmp_path, "--dropout", "0.5")
    attention = transformers.models.bert.modeling_bert.BertSelfOutput
    forward = attention.forward
    hidden = lambda self, *given: nd.nn.functional.dropout(forward(self, *given), 0.25)  # noqa: E731
    monkeypatch.setattr(attention, "forward", hidden)
    with pytest.raises(
        errors.BadInput, match=r"--dropout 0.5 does not reach all .*: 0.25 is in its code"
    ):
        nd.build_model(args, data)
    monkeypatch.setattr(attention, "forward", forward)
    nd.build_model(args, data)
    none = mock_dropout(monkeypatch)
    with pytest.raises(errors.BadInput, match=r"--dropout 0.5: -a .* has no dropout"):
        nd.build_model(args, data)
    assert none


def test_dropout_that_no_config_names_is_reached(tmp_path, monkeypatch):
    """A module with a rate of its own."""
    args, data = classify("bert", tmp_path, "--dropout", "0.5")
    part = transformers.models.bert.modeling_bert.BertSelfOutput
    begin = part.__init__

    def own(self, config):
        begin(self, config)
        self.dropout = torch.nn.Dropout(0.25)

    monkeypatch.setattr(part, "__init__", own)
    parts = nd.build_model(args, data).modules()
    assert {each.p for each in parts if isinstance(each, torch.nn.Dropout)} == {0.5}


def test_rates_are_noted_whoever_calls():
    x = torch.ones(2, 1, 4, 8)
    rates, functional = hf_folders.Rates(), torch.nn.functional
    with rates:
        functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3)
        functional.scaled_dot_product_attention(x, x, x, dropout_p=0.0)
        functional.dropout(x, 0.2, training=False)
        functional.dropout(x, 0.1)
        torch.nn.Dropout(0.4)(x)
        torch.nn.Dropout(0.5).eval()(x)
    assert rates.found == {0.3, 0.1, 0.4}


def mock_dropout(monkeypatch):
    """Makes dropout of all modules do nothing."""
    monkeypatch.setattr(nd.nn.Dropout, "forward", lambda self, x: x)
    attention = nd.nn.functional.scaled_dot_product_attention
    plain = lambda *given, dropout_p=0.0, **more: attention(*given, **more)  # noqa: E731
    monkeypatch.setattr(nd.nn.functional, "scaled_dot_product_attention", plain)
    return True


@pytest.mark.parametrize("kind", ["bert", "roberta", "data2vec-text", "ibert", "xmod", "electra"])
@pytest.mark.parametrize("spare", [0, 1, 2])
def test_all_positions_run_or_are_refused(kind, spare, tmp_path):
    """RoBERTa and its kin do not use their first positions, whatever they are called."""
    pad = 1 if kind in ("roberta", "data2vec-text", "ibert", "xmod") else 0
    used = 24 - 2 * pad
    options = {"max_position_embeddings": 24, "pad_token_id": pad}
    if kind == "xmod":
        options |= {"languages": ["en_XX"], "default_language": "en_XX"}
    write_model(tmp_path / "model", kind, **options)
    write_rows(tmp_path / "data", MNLI)
    words = [*SAY, "--task", "mnli", "-a", tmp_path / "model", "--max-length", used + spare]
    args = nd.parse_args([*map(str, [*words, tmp_path / "data"])])
    place = nd.Place(torch.device("cpu"))
    data = nd.open_data(args, place, nd.list_sources(args, place), (4, 1, 4))
    if not spare:
        assert nd.build_model(args, data)(torch.full((1, used + 1), 7)).shape == (1, 3)
        return
    told = f"--max-length {used + spare} is more than its {used} positions"
    with pytest.raises(errors.BadInput, match=told):
        nd.build_model(args, data)


def test_a_folder_with_the_name_of_an_architecture(tmp_path):
    """A line says which of the two is taken; what it names is the other."""
    write_model(tmp_path / "bert")
    write_rows(tmp_path / "data", MNLI)
    words = [*ND, *SAY, "--task", "mnli", "--epochs", "1", "data"]
    line = "-a bert is not the folder bert, which is -a ./bert\n"
    assert line in run([*words, "-a", "bert"], tmp_path)
    output = run([*words, "-a", "./bert"], tmp_path)
    assert "not the folder" not in output and "peak learning rate 2e-05" in output
    (tmp_path / "words").mkdir()
    output = run([*words, "-a", "./bert", "--from-scratch", "--tokenizer", "./bert"], tmp_path)
    assert "not the folder" not in output
    (tmp_path / "lm").mkdir()
    for name in "train", "val":
        (tmp_path / "lm" / f"{name}.txt").write_text("the cat sees a dog\n" * 40)
    output = run([*ND, *SAY, "--epochs", "1", "--tokenizer", "words", "lm"], tmp_path)
    assert "--tokenizer words is not the folder words, which is --tokenizer ./words\n" in output


def test_a_model_is_as_it_was_after_it_was_tried(tmp_path):
    """I-BERT notes the range of what it has seen, and XLNet reads the last position."""
    args, data = classify("ibert", tmp_path, "--max-length", "32")
    model = nd.build_model(args, data)
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(args.arch)
    theirs = dict(plain.named_buffers())
    found = {name.removeprefix("encoder."): each for name, each in model.named_buffers()}
    assert len(found) == len(theirs) > 9
    for name in theirs:
        torch.testing.assert_close(found[name], theirs[name], rtol=0, atol=0)
    assert model.training


def test_padding_that_changes_the_output_is_said(tmp_path, capfd):
    """FNet mixes all positions; XLNet, whose tokenizer pads on the left, is refused."""
    line = "padding changes its output, which so depends on -b and on what else is in a batch\n"
    for kind, said in ("bert", False), ("fnet", True):
        nd.build_model(*classify(kind, tmp_path, "--max-length", "32"))
        assert (line in capfd.readouterr().out) == said
        shutil.rmtree(tmp_path / "model")
    args, data = classify("xlnet", tmp_path, "--max-length", "32")
    data = data._replace(train=data.train._replace(pads_left=True))
    with pytest.raises(errors.BadInput, match="needs padding on the left, which is not done here"):
        nd.build_model(args, data)
    path = tmp_path / "model" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"padding_side": "left"}))
    place = nd.Place(torch.device("cpu"))
    assert nd.list_sources(args, place)[0].pads_left


def test_a_padding_token_that_is_none(tmp_path, complaint_here):
    write_model(tmp_path / "model", "gpt2")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token_id": -1}))
    write_rows(tmp_path / "data", MNLI)
    line = complaint_here("text_nd.py", *SAY, "--task", "mnli", "-a", "model", "data", only=False)
    assert "it has no padding token" in line


# ------------------------------------------------------------------------------------------ pieces


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
    text = str(text_corpus.demo_text()[1], "utf-8")[:30_000]
    odd = "\n".join(
        f"  x = '{c}'\n\n\n\tend  \r\n" for c in "\xe4\xdf\u6f22\U0001f600\x0b\x1c\u2028"
    )
    texts = [text, text.replace("\n\n", "\n \n"), text.replace("\n", " "), odd * 60]
    texts += ["\u6f22\u5b57\u304b\u306a" * 2000, text[:3000].replace(" ", "").replace("\n", "")]
    texts += [" " * 3000 + "end", "", "\n"]
    for name, tokenizer in trained_tokenizers(text):

        def encode(several, tokenizer=tokenizer):
            return [one.ids for one in tokenizer.encode_batch(several, add_special_tokens=False)]

        for number, given in enumerate(texts):
            (whole,) = encode([given])
            for piece in 1 << 10, 1 << 13:
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


def test_files_of_a_folder_are_joined_by_lines(tmp_path, call_tool, monkeypatch):
    """Marks of the order of bytes are left off, empty files out; one that is no UTF-8 is named."""
    monkeypatch.chdir(tmp_path)
    mark, folder = b"\xef\xbb\xbf", tmp_path / "texts"
    folder.mkdir()
    given = {"a": mark + b"one", "b": b"", "c": mark + b"two", "d": mark, "e": b"three\n"}
    given |= {"f": b"four"}
    for name, content in given.items():
        (folder / f"{name}.txt").write_bytes(content)
    for more, suffix in ([], "txt"), (["--tokenizer", "words"], "bin"):
        call_tool("prepare_text", "lm", "texts", f"out {suffix}", "--val", "0.3", *more)
    whole = b"".join(
        (tmp_path / "out txt" / f"{part}.txt").read_bytes() for part in ("train", "val")
    )
    assert whole == b"one\ntwo\nthree\nfour"
    words = json.loads((tmp_path / "out bin" / "meta.json").read_text())["words"]
    assert words[:4] == ["<unk>", "one", "<eos>", "two"]
    (folder / "g.txt").write_bytes("caf\xe9".encode("latin-1"))
    _, errors = call_tool("prepare_text", "lm", "texts", "new", "--tokenizer", "words", status=2)
    assert "texts/g.txt is no UTF-8: " in errors and not (tmp_path / "new").exists()


# ---------------------------------------------------------------------------------------- --weights

LM = [*SAY, "--lr", "1e-3"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with a text and runs of --max-length 32, with and without averages."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "text").mkdir()
    for name in "train", "val":
        (folder / "text" / f"{name}.txt").write_text("the inner mother in the heather\n" * 40)
    run([*ND, *LM, "--epochs", "2", "--output-dir", "run", "text"], folder)
    run([*ND, *LM, *"--epochs 2 --ema 0.5 --output-dir averaged text".split()], folder)
    return folder


def test_weights_are_measured_as_the_run_was(begun):
    for name in "run", "averaged":
        resumed = run([*ND, *LM, "-e", "--output-dir", name, "text"], begun)
        words = ["-e", "--weights", f"{name}/checkpoint.pt", "text"]
        output = run([*ND, *LM, *words], begun)
        assert output.splitlines()[-1] == resumed.splitlines()[-1]
        assert f"Validating {name}/checkpoint.pt: up to 32 tokens\n" in output
        taken = "its averages, ema, are taken"
        assert (taken in output) == (name == "averaged")


@pytest.mark.parametrize("way", ["ddp", *(slow(way) for way in ("fsdp", "pipeline", "exchange"))])
def test_all_ways_take_weights(way, begun):
    words = ["-e", "--weights", "averaged/checkpoint.pt", "text"]
    expected = run([*ND, *LM, *words], begun).splitlines()[-1]
    more = ["--microbatches", "2"] * (way == "pipeline")
    output = run([*command(f"text_{way}.py", 2), *LM, *more, *words], begun)
    assert expected.startswith("validation: ") and output.splitlines()[-1] == expected


def test_weights_of_longer_blocks_give_their_first_positions(begun, refused):
    saved = load(begun / "run" / "model_best.pt")
    short = ["--max-length", "16", "--weights", "run/model_best.pt", "text"]
    output = run([*ND, *LM, "-e", *short], begun)
    model = nd.GPT(256, 32, 0.0, **saved["model_options"]).eval()
    model.load_state_dict(saved["state_dict"])
    tokens = torch.frombuffer(
        bytearray((begun / "text" / "val.txt").read_bytes()), dtype=torch.uint8
    )
    tokens, total = tokens.long(), 0.0
    for at in range(0, len(tokens) - 1, 16):
        block = tokens[at : at + 17]
        logits = model(block[None, :-1])[0]
        total += torch.nn.functional.cross_entropy(logits, block[1:], reduction="sum").item()
    assert f"loss {total / (len(tokens) - 1):.5f}" in output
    longer = ["--max-length", "33", "--weights", "run/model_best.pt", "text"]
    for evaluate in [], ["-e"]:
        line = refused(begun, *LM, *evaluate, *longer)
        assert "--weights run/model_best.pt: --max-length 33 exceeds its 32 positions" in line


def test_weights_of_another_model_are_refused(begun, refused):
    words = [*LM, "--weights", "run/model_best.pt", "text"]
    for more, name in (
        (["--layers", "3"], "model-options"),
        (["--tied"], "model-options"),
        (["--tokenizer", "words"], "vocabulary"),
    ):
        line = refused(begun, *words, *more)
        assert f"--weights run/model_best.pt differs in {name}" in line
    torch.save({"weight": torch.zeros(3)}, begun / "odd.pt")
    line = refused(begun, *LM, "--weights", "odd.pt", "text")
    assert " weights do not fit: " in line and "; the file holds weight" in line
    saved = load(begun / "run" / "model_best.pt")["state_dict"]
    bare = {f"module.{name}": each for name, each in saved.items()}
    torch.save({"model": bare}, begun / "bare.pt")
    output = run([*ND, *LM, "-e", "--weights", "bare.pt", "text"], begun)
    assert output.splitlines()[-1] in run([*ND, *LM, "-e", "--output-dir", "run", "text"], begun)
    torch.save({"model": dict([*bare.items()][:-1])}, begun / "less.pt")
    line = refused(begun, *LM, "-e", "--weights", "less.pt", "text")
    assert "1 weights do not fit: " in line and "the output is random" in line
    bare[next(iter(bare))].fill_(float("nan"))
    torch.save(bare, begun / "nan.pt")
    line = refused(begun, *LM, "--weights", "nan.pt", "text")
    assert "its weights are not all finite" in line


def test_a_classifier_goes_on_with_another_task(tmp_path, complaint_here):
    """From MNLI to RTE, whose last layer is new; under -e it is refused."""
    write_model(tmp_path / "model", names=MNLI[::-1])
    write_rows(tmp_path / "mnli", MNLI)
    write_rows(tmp_path / "rte", MNLI[:1] + ["not_entailment"], "rte")
    run([*ND, *SAY, *"--task mnli -a model --epochs 1 --output-dir run mnli".split()], tmp_path)
    words = [*SAY, *"--task rte -a model --weights run/model_best.pt rte --epochs 1".split()]
    output = run([*ND, *words, "--output-dir", "next"], tmp_path)
    line = "2 weights do not fit and are left out: encoder.classifier.bias, "
    assert f"--weights run/model_best.pt: {line}" in output and "are new" not in output
    line = complaint_here("text_nd.py", *words, "-e", only=False)
    assert "--weights run/model_best.pt differs in task (mnli, here rte)" in line
    words = [*SAY, *"--task mnli -a model -e mnli".split()]
    found = run([*ND, *words, "--weights", "run/model_best.pt"], tmp_path)
    assert measured(found) == measured(run([*ND, *words, "--output-dir", "run"], tmp_path))
    # The order of the outputs is the checkpoint's, whatever FOLDER's is; without its names, that
    # of the task, in which all were.
    write_model(tmp_path / "model", names=MNLI)
    assert measured(run([*ND, *words, "--weights", "run/model_best.pt"], tmp_path)) == measured(
        found
    )
    assert measured(run([*ND, *words, "--output-dir", "run"], tmp_path)) == measured(found)
    saved = load(tmp_path / "run" / "model_best.pt")
    assert saved["labels"] == MNLI[::-1]
    state = saved["state_dict"]
    for name in "encoder.classifier.weight", "encoder.classifier.bias":
        state[name] = state[name].flip(0)
    del saved["labels"]
    torch.save(saved, tmp_path / "older.pt")
    write_model(tmp_path / "model", names=MNLI[::-1])
    assert measured(run([*ND, *words, "--weights", "older.pt"], tmp_path)) == measured(found)


def test_weights_as_hugging_face_has_them(tmp_path):
    """Without the prefix of these scripts; their order is FOLDER's."""
    model = write_model(tmp_path / "model", names=MNLI[::-1])
    write_rows(tmp_path / "mnli", MNLI)
    torch.save(model.state_dict(), tmp_path / "bare.pt")
    words = [*SAY, *"--task mnli -a model -e mnli".split()]
    found = run([*ND, *words, "--weights", "bare.pt"], tmp_path)
    assert measured(found) == measured(run([*ND, *words], tmp_path))


def test_nothing_left_to_train_is_said(begun, refused):
    """What the line advises trains."""
    words = [*LM, "--epochs", "2", "text", "--output-dir", "other"]
    line = refused(begun, *words, "--resume", "run/checkpoint.pt")
    assert "nothing is left to train: run/checkpoint.pt has 2 of --epochs 2; raise --epochs" in line
    assert line.endswith("or --weights run/checkpoint.pt starts from its weights")
    output = run([*ND, *words, "--weights", "run/checkpoint.pt"], begun)
    assert "2/2  train loss" in output
    shutil.rmtree(begun / "other")
    more = [*LM, "--epochs", "3", "text", "--output-dir", "other", "--resume", "run/checkpoint.pt"]
    assert "3/3  train loss" in run([*ND, *more], begun)


# ------------------------------------------------------------------------------------------- tables


def test_rows_without_a_label_are_left_out(tmp_path, capfd):
    """As SNLI and MultiNLI have where annotators did not agree; another label is a mistake."""
    write_rows(tmp_path, [*MNLI, "-"])
    place = nd.Place(torch.device("cpu"))
    assert len(nd.read_table(tmp_path / "train.tsv", "mnli", place)) == 18
    assert "train.tsv: 6 rows with the label - are left out\n" in capfd.readouterr().out


def test_a_table_of_an_old_mac_is_one_line(tmp_path, complaint_here):
    for name in "train", "dev":
        (tmp_path / f"{name}.tsv").write_text("index\tsentence\r0\ta cat\r1\ta dog\r")
    line = complaint_here("text_nd.py", *SAY, "--task", "sst-2", "-a", "bert", tmp_path)
    assert "has no column 'sentence', but index, sentence\\r0" in line
    for name in "train", "dev":
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\tlabel\na cat\t0\t1\n")
    line = complaint_here("text_nd.py", *SAY, "--task", "sst-2", "-a", "bert", tmp_path)
    assert line.endswith("train.tsv has the column 'label' more than once")


def test_quotes_that_pandas_wrote_are_named(tmp_path, capfd):
    place = nd.Place(torch.device("cpu"))
    table = 'index\tsentence1\tsentence2\tlabel\n0\t"He said ""no"" to me"\ta dog\tentailment\n'
    table += '1\t"quoted"\tsay "so"\tentailment\n'
    (tmp_path / "train.tsv").write_text(table)
    rows = nd.read_table(tmp_path / "train.tsv", "rte", place)
    assert rows[0].sentences[0] == '"He said ""no"" to me"'
    assert "train.tsv: 1 sentences are in quotes, with quotes doubled: " in capfd.readouterr().out


def test_one_sentence_has_no_second_one():
    """So all its tokens have the type of the first; of a pair, the second has the other type."""
    tokenizer = tokenizing.word_tokenizer(["a b c"])
    one = [text_corpus.Row(0, ("a b",)), text_corpus.Row(1, ("c",))]
    source, _ = tokenizing.encode_rows("one.tsv", one, tokenizer, 16)
    assert source.second.tolist() == source.length.tolist() == [4, 3]
    pair = [text_corpus.Row(0, ("a b", "c"))]
    source, _ = tokenizing.encode_rows("two.tsv", pair, tokenizer, 16)
    assert source.second.tolist() == [4] and source.length.tolist() == [6]
