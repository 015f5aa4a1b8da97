"""Models of transformers in folders and new: configurations, names of classes, weights, dropout,
and what a call finds out."""

import errno
import json
import os
import pickle
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from conftest import ROOT, Hostile, flip
from torch import nn

from trainparts import errors
from trainparts.text import hf_folders, text_corpus

transformers.utils.logging.disable_progress_bar()
MNLI = ["entailment", "neutral", "contradiction"]
NUMBERED = [f"LABEL_{n}" for n in range(3)]


def refusal(call, *given, kind=errors.BadInput, **named):
    with pytest.raises((errors.BadInput, errors.Fault)) as found:
        call(*given, **named)
    assert found.type is kind and "\n" not in str(found.value)
    return str(found.value)


def configure(kind="bert", **options):
    """Returns the configuration of a tiny encoder of 17 tokens and three classes."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 64}
    sizes |= {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}  # GPT-2's names
    if kind in ("bart", "xlnet", "funnel"):  # whose sizes have other names
        sizes = {"d_model": 32, "d_inner": 64, "n_layer": 2, "n_head": 2, "d_head": 16}
        sizes |= {"encoder_layers": 2, "decoder_layers": 2}
        if kind == "funnel":
            sizes = {"d_model": 32, "d_inner": 64, "n_head": 2, "d_head": 16, "block_sizes": [1, 1]}
        if kind == "bart":
            sizes |= {"eos_token_id": 3, "bos_token_id": 2, "decoder_start_token_id": 2}
            sizes |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    named = {"id2label": dict(enumerate(MNLI))} | {"label2id": {n: k for k, n in enumerate(MNLI)}}
    common = {"vocab_size": 17, "pad_token_id": 0, "initializer_range": 0.5} | named
    return transformers.AutoConfig.for_model(kind, **(common | sizes | options))


def build(config):
    torch.manual_seed(1)
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


@pytest.fixture
def bert(tmp_path):
    """A folder with a tiny BERT."""
    build(configure()).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def edit(folder, **changes):
    """Changes values in a folder's config.json; those of None are removed."""
    path = folder / "config.json"
    held = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: held[name] for name in held if held[name] is not None}))


class Classifier(nn.Module):
    """What the scripts wrap an encoder in: of tokens (N, L + 1), padded with -1."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, inputs):
        tokens, mask = inputs[:, :-1], inputs[:, :-1] >= 0
        return self.encoder(tokens.clip(min=0), attention_mask=mask.long()).logits


def sequences(*lengths):
    """Returns the Sequences of rows of tokens 2, 5 ... 5, 3, the next with 6 for 5, and so on."""
    rows = [[2, *[5 + n] * (length - 2), 3] for n, length in enumerate(lengths)]
    count = np.array(lengths)
    zeros = 0 * count
    return text_corpus.Sequences(
        "x", np.concatenate(rows), count.cumsum() - count, count, count, zeros, 17
    )


# -------------------------------------------------------------------------------------- the library


def test_the_library_is_offline_and_silent_and_not_imported_before():
    """It reads that when it is imported: after a script, which is imported without it."""
    code = "import sys, text_nd; from trainparts.text import hf_folders; "
    code += "assert 'huggingface_hub' not in sys.modules; library = hf_folders.transformers(); "
    code += "assert sys.modules['huggingface_hub'].constants.HF_HUB_OFFLINE; "
    code += "logs = library.utils.logging; assert not logs.is_progress_bar_enabled(); "
    code += "assert logs.get_verbosity() == logs.ERROR"
    words = [sys.executable, "-c", code]
    env = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (ValueError("a\nb"), errors.BadInput, "-a x: a"),
        (KeyError("key"), errors.BadInput, "-a x: 'key'"),
        (RuntimeError(), errors.BadInput, "-a x: RuntimeError"),
        (errors.BadInput("no"), errors.BadInput, "-a x: no"),
        (OSError("no file named y"), errors.BadInput, "-a x: no file named y"),
        (FileNotFoundError(2, "No such file", "y"), errors.BadInput, "-a x: y: No such file"),
        (
            OSError(errno.EIO, "Input/output error", "y"),
            errors.Fault,
            "-a x: y: Input/output error",
        ),
        (
            pickle.UnpicklingError("pass weights_only=False to trust it"),
            errors.BadInput,
            "-a x: Python objects beside its weights, which could run code",
        ),
    ],
)
def test_whatever_a_library_raises_is_one_line(error, kind, line):
    def call():
        with hf_folders.in_one_line("x"):
            raise error

    assert refusal(call, kind=kind) == line


def test_what_raises_nothing_goes_on_and_ctrl_c_is_no_error():
    with hf_folders.in_one_line("x"):
        pass
    with pytest.raises(KeyboardInterrupt), hf_folders.in_one_line("x"):
        raise KeyboardInterrupt


# ----------------------------------------------------------------------------------- configurations


def test_a_kind_has_the_sizes_that_are_given():
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "initializer_range": 0.25}
    config = hf_folders.make_config("bert", sizes | {"vocab_size": 99})
    assert isinstance(config, transformers.BertConfig)
    assert {name: getattr(config, name) for name in sizes} == sizes and config.vocab_size == 99
    assert hf_folders.make_config("roberta", {}).hidden_size == 768


def test_a_kind_that_is_none_or_sizes_that_are_none_are_one_line():
    line = refusal(hf_folders.make_config, "berd", {})
    assert line.startswith("-a berd: Unrecognized model identifier: berd.")
    line = refusal(hf_folders.make_config, "bert", {"hidden_size": "16"})
    assert line.startswith("-a bert: ") and "hidden_size" in line


def test_a_folders_configuration_is_read(bert):
    config = hf_folders.read_config(str(bert))
    assert config.id2label == dict(enumerate(MNLI)) and config.hidden_size == 32


OTHERS = {  # what is no file
    "absent": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
}
DAMAGED = OTHERS | {
    "empty": b"",
    "cut": b'{"model_type": "be',
    "junk": b"\xff\0junk",
    "a list": b"[1]",
    "an unknown model": b'{"model_type": "nothing"}',
    "no model": b"{}",
}


def replace(path, how):
    """Puts bytes in the place of a file, or what is no file."""
    path.unlink()
    how(path) if callable(how) else path.write_bytes(how)


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_configuration_is_one_line(how, bert):
    replace(bert / "config.json", DAMAGED[how])
    for read in hf_folders.read_config, hf_folders.read_labels:
        assert refusal(read, str(bert)).startswith(f"-a {bert}: ")
    assert how != "an unknown model" or "`nothing`" in refusal(hf_folders.read_config, str(bert))


def test_code_of_a_folder_is_not_run(bert, tmp_path):
    """Nor is anybody asked whether it may be. What needs it ends in one line; what does not need it
    is read without it."""
    marker = tmp_path / "run"
    code = f"import transformers\nopen({str(marker)!r}, 'w').close()\n"
    code += "class Config(transformers.BertConfig):\n    model_type = 'evil'\n"
    code += "class Model(transformers.BertForSequenceClassification):\n    config_class = Config\n"
    (bert / "evil.py").write_text(code)
    auto = {"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"}
    edit(bert, auto_map=auto)
    model, lines = hf_folders.load_encoder(str(bert), hf_folders.read_config(str(bert)))
    assert type(model) is transformers.BertForSequenceClassification and lines == []
    edit(bert, model_type="evil")
    assert "contains custom code" in refusal(hf_folders.read_config, str(bert))
    assert not marker.exists()


def adapt(config, **more):
    hf_folders.adapt_config(config, "x", **{"labels": MNLI, "vocabulary": 17} | more)
    return config


def test_a_configuration_becomes_that_of_a_classifier():
    config = configure(id2label={0: "a"}, return_dict=False)
    config._attn_implementation = "evil/kernel"
    adapt(config, labels=["one", "two"])
    assert config.id2label == {0: "one", 1: "two"} and config.label2id == {"one": 0, "two": 1}
    assert config.num_labels == 2 and config.return_dict is True
    assert config._attn_implementation is None


@pytest.mark.parametrize(
    ("vocabulary", "same", "fits"),
    [(17, False, True), (16, False, True), (18, False, False)]
    + [(17, True, True), (16, True, False), (18, True, False)],
)
def test_a_vocabulary_fits_or_is_refused(vocabulary, same, fits):
    """A model may have more tokens than its own tokenizer, but not than another, `same`."""
    if fits:
        adapt(configure(), vocabulary=vocabulary, same=same)
    else:
        line = refusal(adapt, configure(), vocabulary=vocabulary, same=same)
        assert line == f"-a x: its vocabulary has 17 tokens, the tokenizer {vocabulary}"


@pytest.mark.parametrize("number", [None, -1])
def test_a_model_without_padding_is_no_encoder(number):
    line = refusal(adapt, configure("gpt2", pad_token_id=number))
    assert line == "-a x: it has no padding token: is it an encoder?"
    adapt(configure("gpt2", pad_token_id=0))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "bert",
            "hidden_dropout_prob attention_probs_dropout_prob classifier_dropout",
        ),
        ("gpt2", "resid_pdrop embd_pdrop attn_pdrop summary_first_dropout"),
        ("distilbert", "dropout attention_dropout seq_classif_dropout qa_dropout"),
        ("xlnet", "dropout summary_last_dropout"),
    ],
)
def test_all_rates_of_dropout_are_set_by_whatever_name(kind, names):
    for rate in 0.0, 0.25:
        config = adapt(configure(kind), dropout=rate)
        assert {name: getattr(config, name) for name in names.split()} == dict.fromkeys(
            names.split(), rate
        )
    before = configure(kind).to_dict()
    after = adapt(configure(kind)).to_dict()
    assert [after[name] for name in names.split()] == [before[name] for name in names.split()]


def test_what_is_no_rate_is_left():
    config = configure(use_dropout=True, dropout_kind="plain", dropout_of={"a": 1}, drop=0.75)
    adapt(config, dropout=0.5)
    left = config.use_dropout, config.dropout_kind, config.dropout_of, config.drop
    assert left == (True, "plain", {"a": 1}, 0.75) and config.hidden_dropout_prob == 0.5


# ------------------------------------------------------------------------------------------ classes


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["0", "1", "2"], True),
        (NUMBERED, True),
        (["label_0", "Label_1"], True),
        (["1", "0"], False),
        (["LABEL_0", "LABEL_2", "LABEL_1"], False),
        (["LABEL_0", "1"], True),
        (["label_0x", "label_1"], False),
        (["00", "1"], False),
        (MNLI, False),
    ],
)
def test_names_that_are_numbers(names, expected):
    assert hf_folders.numbered(names) == expected


@pytest.mark.parametrize(
    ("by_number", "by_name", "expected"),
    [
        ({0: "b", 1: "a"}, {"b": 0, "a": 1}, ["b", "a"]),
        ({1: "a", 0: "b"}, {"a": 1, "b": 0}, ["b", "a"]),
        (dict(enumerate(NUMBERED)), dict(zip("cab", (2, 0, 1), strict=True)), ["a", "b", "c"]),
        ({0: "b", 1: "a"}, {"LABEL_0": 0, "LABEL_1": 1}, ["b", "a"]),
        (dict(enumerate(NUMBERED)), {name: n for n, name in enumerate(NUMBERED)}, NUMBERED),
        ({n: f"c{n}" for n in range(11)}, {f"c{n}": n for n in range(11)}, None),
    ],
)
def test_names_are_read_of_either_table(by_number, by_name, expected, bert):
    """transformers' own run_glue.py reads label2id."""
    numbers = {str(number): name for number, name in by_number.items()}
    edit(bert, id2label=numbers, label2id=by_name)
    assert hf_folders.read_labels(str(bert)) == (expected or [f"c{n}" for n in range(11)])


def test_two_orders_in_one_configuration_are_refused(bert):
    edit(
        bert, id2label=dict(enumerate(MNLI)), label2id={name: 2 - n for n, name in enumerate(MNLI)}
    )
    line = refusal(hf_folders.read_labels, str(bert))
    assert line == f"-a {bert}: its config.json has one order in id2label, another in label2id"


def test_a_configuration_that_names_no_classes_is_refused(bert):
    edit(bert, id2label={}, label2id={})
    line = refusal(hf_folders.read_labels, str(bert))
    assert line == f"-a {bert}: its config.json names no classes"


PAIR = ["entailment", "not_entailment"]
BINARY = ["unacceptable", "acceptable"]


@pytest.mark.parametrize(
    ("found", "names", "given", "expected"),
    [
        (MNLI[::-1], MNLI, MNLI, MNLI[::-1]),
        (["CONTRADICTION", "Entailment", "neutral"], MNLI, MNLI, ["contradiction", *MNLI[:2]]),
        (["Not-Entailment", "Entailment"], PAIR, PAIR, PAIR[::-1]),
        ([" not  entailment!", "entailment"], PAIR, PAIR, PAIR[::-1]),
        (["acceptable", "unacceptable"], BINARY, ["0", "1"], BINARY[::-1]),
        (["1", "0"], BINARY, ["0", "1"], BINARY[::-1]),
        (["0", "1"], BINARY, ["0", "1"], BINARY),
        (["LABEL_0", "LABEL_1"], BINARY, ["0", "1"], BINARY),
        (["LABEL_1", "LABEL_0"], BINARY, ["0", "1"], None),
        (NUMBERED, MNLI, MNLI, MNLI),
        (["LABEL_0", "LABEL_2", "LABEL_1"], MNLI, MNLI, None),
        (["joy", "anger", "fear"], MNLI, MNLI, None),
        ([*MNLI[:2], "unknown"], MNLI, MNLI, None),
        (MNLI[:2], MNLI, MNLI, None),
        ([*MNLI, "entailment"], MNLI, MNLI, None),
    ],
)
def test_classes_are_matched_by_their_names_in_any_spelling(found, names, given, expected):
    assert hf_folders.match_labels(found, names, given) == expected


# ------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", None])
def test_a_model_is_in_float32_whatever_its_folder(dtype, bert, tmp_path):
    """Ranks of two types would exchange bytes that do not fit."""
    if dtype:
        model = transformers.BertForSequenceClassification.from_pretrained(bert)
        model.to(getattr(torch, dtype)).save_pretrained(bert)
    for make in (
        lambda config: hf_folders.new_encoder("x", config),
        lambda config: hf_folders.load_encoder(str(bert), config)[0],
    ):
        model = make(hf_folders.read_config(str(bert)))
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
        assert model.classifier.weight.shape == (3, 32)


def test_a_new_model_is_random_and_what_cannot_be_built_is_one_line():
    config = configure()
    one, two = (hf_folders.new_encoder("x", config).state_dict() for _ in range(2))
    assert not torch.equal(one["classifier.weight"], two["classifier.weight"])
    config.num_attention_heads = 3
    line = refusal(hf_folders.new_encoder, "x", config)
    why = "The hidden size (32) is not a multiple of the number of attention heads (3)"
    assert line.startswith(f"-a x: {why}")
    assert "boom" in refusal(hf_folders.new_encoder, "x", configure(hidden_act="boom"))


def test_a_folders_weights_are_loaded(bert):
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(bert).state_dict()
    for evaluate in False, True:
        config = hf_folders.read_config(str(bert))
        model, lines = hf_folders.load_encoder(str(bert), config, evaluate)
        assert lines == [] and model.state_dict().keys() == theirs.keys()
        found = model.state_dict()
        assert all(torch.equal(found[name], theirs[name]) for name in theirs)


def load(folder, evaluate=False):
    return hf_folders.load_encoder(str(folder), hf_folders.read_config(str(folder)), evaluate)


def test_a_classifier_that_is_new_is_said_and_not_evaluated(bert):
    """Of a folder without one, or with one for another number of classes."""
    model = transformers.BertForSequenceClassification.from_pretrained(bert)
    base = model.bert
    line = f"-a {bert}: 2 weights are new: classifier.bias, classifier.weight"
    for write in base.save_pretrained, build(configure(num_labels=2)).save_pretrained:
        write(bert)
        edit(bert, id2label=dict(enumerate(MNLI)), label2id={n: k for k, n in enumerate(MNLI)})
        found, lines = load(bert)
        assert lines == [line] and found.classifier.weight.shape == (3, 32)
        assert refusal(load, bert, True) == f"{line}: its answers would be random"
    model.save_pretrained(bert)
    assert load(bert, True)[1] == []


def test_four_of_the_new_weights_are_named_in_their_order(bert):
    config = hf_folders.read_config(str(bert))
    config.num_hidden_layers = 3
    _, (line,) = hf_folders.load_encoder(str(bert), config)
    begin = "bert.encoder.layer.2.attention.output."
    names = [f"{begin}{name}" for name in ("LayerNorm.bias", "LayerNorm.weight", "dense.bias")]
    names.append(f"{begin}dense.weight")
    assert line == f"-a {bert}: 16 weights are new: {', '.join(names)}"


def test_weights_most_of_which_do_not_fit_are_refused(bert):
    build(configure(hidden_size=64)).save_pretrained(bert)
    edit(bert, hidden_size=32)
    count = len(build(configure()).state_dict())
    line = refusal(load, bert)
    unchanged = 3  # biases, of the classifier and of what is within a block, have its size
    least = "bert.embeddings.LayerNorm.bias"
    assert line == f"-a {bert}: {count - unchanged} weights do not fit: {least}"


def test_layers_that_config_json_does_not_have_are_not_evaluated(bert):
    """The model would be another one, with answers all the same. Heads for other uses may be."""
    build(configure(num_hidden_layers=3)).save_pretrained(bert)
    edit(bert, num_hidden_layers=2)
    first = "bert.encoder.layer.2.attention.output.LayerNorm.bias"
    line = refusal(load, bert, True)
    what = "16 weights are of layers that config.json does not have"
    assert line == f"-a {bert}: {what}: {first}"
    model, lines = load(bert)  # to train, as some shorten a model
    assert lines == [] and len(model.bert.encoder.layer) == 2
    both = build(configure())
    state = both.state_dict() | {"cls.predictions.bias": torch.zeros(17)}
    both.save_pretrained(bert, state_dict=state)
    assert load(bert, True)[1] == []


SPOILT = {  # as weights may be, of whose bytes a function makes others
    "empty": lambda raw: b"",
    "cut": lambda raw: raw[:-9],
    "flipped": flip(4),
    "junk": lambda raw: b"\xff\0junk",
}


@pytest.mark.parametrize("how", OTHERS | SPOILT)
def test_damaged_weights_are_one_line(how, bert):
    path = bert / "model.safetensors"
    replace(path, OTHERS[how] if how in OTHERS else SPOILT[how](path.read_bytes()))
    assert refusal(load, bert).startswith(f"-a {bert}: ")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 3}, "multiple of the number of attention"),
        ({"hidden_size": "16"}, "hidden_size"),
        ({"hidden_size": -1}, ""),
        ({"hidden_act": "boom"}, "boom"),
        ({"quantization_config": {"quant_method": "awq"}}, ""),
    ],
    ids=str,
)
def test_a_model_that_its_configuration_does_not_make_is_one_line(changes, words, bert):
    edit(bert, **changes)
    line = refusal(load, bert)
    assert line.startswith(f"-a {bert}: ") and words in line


@pytest.mark.parametrize("protocol", [None, 2])
def test_weights_that_are_a_pickle_are_not_run(protocol, bert, tmp_path):
    """Nor does the line advise to trust them, as PyTorch does."""
    (bert / "model.safetensors").unlink()
    path, held = bert / "pytorch_model.bin", {"classifier.bias": Hostile(tmp_path / "run")}
    if protocol:
        path.write_bytes(pickle.dumps(held, protocol=protocol))
    else:
        torch.save(held, path)
    line = refusal(load, bert)
    why = "Python objects beside its weights, which could run code"
    assert line == f"-a {bert}: {why}" or (protocol and line.startswith(f"-a {bert}: "))
    assert "weights_only" not in line and not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["_attn_implementation", "attn_implementation"])
def test_an_attention_that_a_folder_names_is_not_fetched(name, bert, monkeypatch):
    """Nor has its saved way to return logits any say."""
    edit(bert, **{name: "evil/kernel", "return_dict": False})
    monkeypatch.setattr(socket, "getaddrinfo", None)
    config = adapt(hf_folders.read_config(str(bert)))
    for model in (
        hf_folders.load_encoder(str(bert), config)[0],
        hf_folders.new_encoder("x", config),
    ):
        assert model.config._attn_implementation == "sdpa"
        assert model(torch.full((3, 5), 7)).logits.shape == (3, 3)


# ------------------------------------------------------------------------------------------ dropout


def test_all_modules_of_dropout_have_the_rate():
    kinds = nn.Dropout, nn.Dropout1d, nn.AlphaDropout, nn.Dropout
    model = nn.Sequential(*(kind(0.25) for kind in kinds), nn.Linear(2, 2), nn.Sequential())
    model[-1].append(nn.Dropout(0.1))
    for rate in 0.5, 0.0:
        hf_folders.set_dropout(model, rate)
        found = [part.p for part in model.modules() if hasattr(part, "p")]
        assert found == [rate] * 5


KINDS = "bert roberta gpt2 openai-gpt electra distilbert esm xlnet deberta funnel bart".split()


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_reaches_all_of_it(kind):
    """Without it, two passes in training are equal; with it they differ, more with more."""
    tokens = torch.randint(5, 17, (4, 8))
    tokens[:, 7:] = 3  # the mark of the end
    apart = []
    for rate in 0.0, 0.1, 0.6:
        config = adapt(configure(kind), dropout=rate)
        torch.manual_seed(0)
        model = hf_folders.new_encoder("x", config).train()
        hf_folders.set_dropout(model, rate)
        with torch.no_grad():
            found = torch.stack([model(tokens).logits for _ in range(8)])
        apart.append(found.std(dim=0).mean().item() / found.mean(dim=0).abs().mean().item())
    assert apart[0] < 1e-6 < 1e-3 < apart[1] < apart[2]


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
        assert torch.equal(functional.relu(-x), 0 * x), "all else is called as it is"
    assert rates.found == {0.3, 0.1, 0.4}


# ------------------------------------------------------------------------------------ a trial call


class Plain(nn.Module):
    """Means of embeddings by position, with what a test adds; notes the inputs."""

    def __init__(self, positions=64, padded=False, rates=(), attention=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.position = nn.Embedding(17, 8), nn.Embedding(positions, 8)
        self.padded, self.rates, self.attention = padded, rates, attention
        self.register_buffer("seen", torch.zeros(()))
        self.given = []

    def forward(self, inputs):
        self.given.append((inputs.tolist(), self.training))
        self.seen += 1
        tokens, mask = inputs[:, :-1], inputs[:, :-1] >= 0
        x = self.token(tokens.clip(min=0)) + self.position.weight[: tokens.shape[1]]
        for rate in self.rates:
            x = nn.functional.dropout(x, rate, self.training)
        dropout = {"dropout_p": self.attention * self.training}
        x = x + 0 * nn.functional.scaled_dot_product_attention(x, x, x, **dropout)
        if self.padded:
            return x.mean(1)
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def try_out(model, source=None, max_length=12, positions=64, **more):
    source = source or sequences(6, 9, 4)
    sizes = {"max_length": max_length, "positions": positions}
    return hf_folders.try_out(model, source, arch="x", **sizes, **more)


def test_a_good_model_is_as_it_was(tmp_path):
    """In training, whatever it has counted; and the draws of the program are what they were."""
    model = Plain(rates=[0.5]).eval()
    held = model._buffers["seen"]
    before = {name: each.clone() for name, each in model.state_dict().items()}
    drawn = torch.get_rng_state()
    assert try_out(model) == []
    assert model.training and torch.equal(torch.get_rng_state(), drawn)
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert held.shape == model.seen.shape
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize(
    ("max_length", "inside", "half"), [(12, [6] * 10, 6), (7, [6] * 5, 3), (4, [6] * 2, 2)]
)
def test_it_is_called_with_the_longest_sequence_in_each_length(max_length, inside, half):
    """Whole, in training; then half as long, without and with padding, without dropout. The last
    column is where a second sentence would begin: nowhere."""
    model = Plain()
    try_out(model, max_length=max_length)
    alone = [2, *inside[: half - 2], 3]
    assert model.given == [
        ([[2, *inside, 3, max_length]], True),
        ([[*alone, half]], False),
        ([[*alone, *[-1] * (max_length - half), half]], False),
    ]


def test_a_model_without_weights_is_not_called():
    with torch.device("meta"):
        model = Plain(padded=True)
    assert try_out(model) == [] and model.given == []


@pytest.mark.parametrize("spare", [0, 1, 5])
def test_more_tokens_than_positions_are_refused(spare):
    model = Plain(positions=12)
    if not spare:
        assert try_out(model, max_length=12, positions=12) == []
        return
    line = refusal(try_out, model, max_length=12 + spare, positions=12)
    assert line == f"-a x: --max-length {12 + spare} is more than its 12 positions"


@pytest.mark.parametrize("unused", [1, 2, 7])
def test_positions_that_a_model_does_not_use_are_not_counted(unused):
    model = Plain(positions=20 - unused)
    for length in 20 - unused, 21 - unused, 20, 30:
        if length == 20 - unused:
            assert try_out(model, max_length=length, positions=20) == []
            continue
        line = refusal(try_out, model, max_length=length, positions=20)
        assert line == f"-a x: --max-length {length} is more than its {20 - unused} positions"


def test_a_model_that_cannot_be_called_says_why():
    model = Plain(positions=20 - 8)
    line = refusal(try_out, model, max_length=20, positions=20)
    assert line.startswith("-a x cannot be called: The size of tensor a (20) must match the size")
    model.forward = lambda inputs: [][inputs.shape[1]]
    assert refusal(try_out, model) == "-a x cannot be called: list index out of range"


@pytest.mark.parametrize(
    ("rates", "attention", "others"),
    [
        ([0.25], 0.0, "0.25"),
        ([0.5, 0.1], 0.0, "0.1"),
        ([0.5], 0.3, "0.3"),
        ([0.4], 0.2, "0.2, 0.4"),
    ],
)
def test_dropout_that_cannot_be_reached_is_one_line(rates, attention, others):
    what = "--dropout 0.5 does not reach all dropout of -a x"
    where = "is in its code, or in config.json by another name"
    model = Plain(rates=rates, attention=attention)
    assert refusal(try_out, model, dropout=0.5) == f"{what}: {others} {where}"
    assert try_out(model) == []


def test_a_model_has_the_dropout_that_is_asked_for():
    assert try_out(Plain(rates=[0.5], attention=0.5), dropout=0.5) == []
    assert try_out(Plain(rates=[0.0]), dropout=0.0) == [] == try_out(Plain(), dropout=0.0)
    line = refusal(try_out, Plain(), dropout=0.5)
    assert line == "--dropout 0.5: -a x has no dropout"
    what = "--dropout 0.0 does not reach all dropout of -a x"
    assert refusal(try_out, Plain(rates=[0.1]), dropout=0.0).startswith(f"{what}: 0.1 is in")


def test_padding_that_changes_the_output_is_said_or_refused():
    model = Plain(padded=True)
    what = "padding changes its output, which so depends on -b and on what else is in a batch"
    assert try_out(model) == [f"-a x: {what}"] and model.training and model.seen == 0
    left = sequences(6, 9)._replace(pads_left=True)
    line = refusal(try_out, model, left)
    assert line == "-a x needs padding on the left, which is not done here"
    assert try_out(Plain(), left) == []


@pytest.mark.parametrize("kind", ["bert", "roberta", "data2vec-text", "ibert", "xmod", "electra"])
def test_all_positions_of_a_kind_run_or_are_refused(kind):
    """RoBERTa and its kin do not use their first positions, whatever they are called."""
    pad = 1 if kind in ("roberta", "data2vec-text", "ibert", "xmod") else 0
    used = 24 - 2 * pad
    options = {"max_position_embeddings": 24, "pad_token_id": pad}
    if kind == "xmod":
        options |= {"languages": ["en_XX"], "default_language": "en_XX"}
    model = Classifier(build(configure(kind, **options)))
    assert try_out(model, max_length=used, positions=24) == []
    for spare in 1, 2:
        line = refusal(try_out, model, max_length=used + spare, positions=24)
        assert line == f"-a x: --max-length {used + spare} is more than its {used} positions"


def test_what_a_model_notes_is_put_back():
    """I-BERT notes the range of what it has seen."""
    model = Classifier(build(configure("ibert")))
    before = {name: each.clone() for name, each in model.named_buffers()}
    assert len(before) > 9
    try_out(model)
    after = dict(model.named_buffers())
    assert all(torch.equal(after[name], before[name]) for name in before)
    model.train()(torch.full((1, 9), 5))
    assert any(not torch.equal(each, before[name]) for name, each in model.named_buffers())


def test_padding_matters_to_fnet_and_not_to_bert():
    """FNet mixes all positions."""
    fnet = build(configure("fnet"))
    fnet_forward = fnet.forward
    fnet.forward = lambda tokens, attention_mask: fnet_forward(tokens)
    assert [len(try_out(Classifier(each))) for each in (fnet, build(configure()))] == [1, 0]


def test_dropout_of_a_real_encoder_is_seen():
    """In a module that no configuration names, and in attention."""
    model = Classifier(build(adapt(configure(), dropout=0.5)))
    assert try_out(model, dropout=0.5) == []
    model.encoder.dropout = nn.Dropout(0.25)
    assert ": 0.25 is in its code" in refusal(try_out, model, dropout=0.5)
    hf_folders.set_dropout(model, 0.5)
    assert try_out(model, dropout=0.5) == []
    mixed = configure(attention_probs_dropout_prob=0.125, hidden_dropout_prob=0.5)
    line = refusal(try_out, Classifier(build(mixed)), dropout=0.5)
    assert ": 0.125 is in its code" in line
