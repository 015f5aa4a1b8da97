"""What a FOLDER of Hugging Face's, a text and --weights say of themselves; numbers are those of
transformers, called for one sentence at a time."""

import argparse
import functools
import json
import shutil
import sys

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from conftest import ROOT, command, load, run
from tokenizers import models, pre_tokenizers

import text_nd as nd
from trainparts import errors

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


def test_classes_are_scored_by_their_names(tmp_path):
    """In whatever order FOLDER has them, as roberta-large-mnli's and the cross-encoders'; here in
    one whose inverse is another."""
    order = 1, 2, 0
    names = [MNLI[n].upper() for n in order]
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


OTHERS = [slow(["joy", "anger", "fear"]), ["entailment", "neutral", "unknown"], slow(["a", "b"])]


@pytest.mark.parametrize("names", OTHERS)
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


@pytest.mark.parametrize("names", [["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], ["a", "b"]])
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


def test_worst_values_are_printed():
    """No right answer is 0 %, an F1 of 0 %, and a correlation of -1 or 0."""
    values = nd.compute_metrics(dict.fromkeys(nd.SUMS, 0) | {"fp": 3, "fn": 4, "sequences": 7})
    assert (
        nd.format_metrics(values, 3) == "accuracy 0.000 %, F1 0.000 %, MCC -1.00000, loss 0.00000"
    )


# -------------------------------------------------------------------------------------- tokenizers


CASED = ["The", "Cat", "Dog", "##s"]


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


TXT, BINS = ["--tokenizer", "{}", "text"], ["bin {}"]


@pytest.mark.parametrize(
    ("way", "data"), [("-e --output-dir run", TXT), ("--resume", TXT), ("--weights", BINS)]
)
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


# ------------------------------------------------------------------------------ dropout, positions


def prepared(*words):
    """Returns (args, data) of a run with these options."""
    args = nd.parse_args([*map(str, [*SAY, *words])])
    place = nd.Place(torch.device("cpu"))
    return args, nd.open_data(args, place, nd.list_sources(args, place), (4, 1, 4))


def classify(kind, folder, *more):
    """Returns (args, data) of a classifier of this kind."""
    write_model(folder / "model", kind)
    write_rows(folder / "data", MNLI)
    return prepared("--task", "mnli", "-a", folder / "model", *more, folder / "data")


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


def test_padding_that_changes_the_output_is_said(tmp_path, capfd):
    """FNet mixes all positions."""
    args, data = classify("fnet", tmp_path, "--max-length", "32")
    nd.build_model(args, data)
    what = "padding changes its output, which so depends on -b and on what else is in a batch"
    assert f"-a {args.arch}: {what}\n" in capfd.readouterr().out


def test_positions_that_a_model_does_not_use_are_refused(tmp_path):
    """RoBERTa's first, of 64."""
    args, data = classify("roberta", tmp_path, "--max-length", "64")
    with pytest.raises(errors.BadInput, match="--max-length 64 is more than its 63 positions"):
        nd.build_model(args, data)


def test_a_folder_with_the_name_of_an_architecture(tmp_path, monkeypatch):
    """A line says which of the two is taken; what it names is the other."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "bert")
    write_rows(tmp_path / "data", MNLI)
    for folder in "words", "lm":
        (tmp_path / folder).mkdir()
    for name in "train", "val":
        (tmp_path / "lm" / f"{name}.txt").write_text("the cat sees a dog\n" * 40)
    task = "--task", "mnli", "data"
    for words, lines in (
        ([*task, "-a", "bert"], ["-a bert is not the folder bert, which is -a ./bert"]),
        ([*task, "-a", "./bert"], []),
        ([*task, "-a", "./bert", "--from-scratch", "--tokenizer", "./bert"], []),
        (
            ["--tokenizer", "words", "lm"],
            ["--tokenizer words is not the folder words, which is --tokenizer ./words"],
        ),
    ):
        _, data = prepared(*words)
        assert nd.about_data(data)[:-1] == lines


# ------------------------------------------------------------------------------------------- a tool


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
    resumed = run([*ND, *LM, "-e", "--output-dir", "averaged", "text"], begun)
    output = run([*ND, *LM, "-e", "--weights", "averaged/checkpoint.pt", "text"], begun)
    assert output.splitlines()[-1] == resumed.splitlines()[-1]
    assert "Validating averaged/checkpoint.pt: up to 32 tokens\n" in output
    assert "--weights averaged/checkpoint.pt: its averages, ema, are taken\n" in output


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
    assert f"loss {total / (len(tokens) - 1):.5f}" in output and "averages" not in output
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


@torch.no_grad()
def answers(folder, weights):
    """Returns the logits (3, 3) that a folder's classifier gives under --weights."""
    words = "--task", "mnli", "-a", folder / "model", "-e", folder / "mnli"
    args, data = prepared(*words, "--weights", folder / weights)
    torch.manual_seed(0)
    return nd.build_model(args, data).eval()(torch.randint(5, 17, (3, 9)))


def test_the_order_of_the_outputs_is_that_of_the_weights(tmp_path):
    """A checkpoint's, whatever FOLDER's is; without its names, that of the task, in which all were.
    Weights as Hugging Face has them, without the prefix of these scripts, are in FOLDER's."""
    model = write_model(tmp_path / "model", names=MNLI[::-1])
    write_rows(tmp_path / "mnli", MNLI)
    bare = model.state_dict()
    state = {f"encoder.{name}": bare[name] for name in bare}
    args, data = prepared("--task", "mnli", "-a", tmp_path / "model", tmp_path / "mnli")
    assert data.labels == MNLI[::-1]
    torch.save(nd.about_model(args, data) | {"state_dict": state}, tmp_path / "named.pt")
    torch.save(
        nd.about_model(args, data) | {"state_dict": state, "labels": None}, tmp_path / "older.pt"
    )
    torch.save(bare, tmp_path / "bare.pt")
    named, older, of_folder = (answers(tmp_path, f"{x}.pt") for x in ("named", "older", "bare"))
    assert torch.equal(named, older.flip(1)) and torch.equal(of_folder, named)
    write_model(tmp_path / "model", names=MNLI)
    assert torch.equal(answers(tmp_path, "named.pt"), named)
    assert torch.equal(answers(tmp_path, "older.pt"), older)
    assert torch.equal(answers(tmp_path, "bare.pt"), older)


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
