"""The text_*.py: one loss curve for all ways of running, resuming to the bit, what is measured and
what models are given. tests/test_text_reference.py compares with loops of its own."""

import functools
import itertools
import math
import random
import re
import sys

import pytest
import torch
import torchmetrics.text
from chaos.checkpoints import lost
from conftest import (
    EARLY,
    ROOT,
    checkpoint,
    command,
    copy_script,
    events,
    load,
    losses_in_float64,
    needs_horovod,
    run,
    scalars,
    the_run,
)
from torch import nn
from torchmetrics.functional import classification

import text_nd as nd
from trainparts import batch_plan
from trainparts.text import hf_folders

LOOP = "--global-batch 24 --epochs 2 --steps-per-epoch 10 -p 1 --no-accel --warmup-epochs 0"
TINY = "--layers 2 --hidden-size 64 --heads 2 --max-length 32".split()
# A limit that some steps' gradients are above and some are below: AdamW alone would not notice
# gradients of twice the size, nor if all were scaled down to one norm.
LM = [*TINY, *LOOP.split(), "--lr", "3e-3", "--clip-grad", "2.5"]
COLA = [*LM, "--lr", "5e-4", "--task", "cola", "--dropout", "0"]
EXCHANGES = "gather all_reduce async bucket ring rows ddp".split()
SCHEDULES = "gpipe 1f1b interleaved".split()
FOLDER = "FOLDER"  # stands for that of encoder()


def way(name, ranks, *options, slow=False):
    """Returns a test case: `name` is that of a script's way, and what else tells it apart."""
    how = name.split()[0]
    marks = [pytest.mark.slow] * slow + [needs_horovod] * (how == "horovod")
    return pytest.param(f"text_{how}.py", ranks, options, id=f"{name}, {ranks}", marks=marks)


@pytest.fixture(scope="module")
def logged(text, tmp_path_factory):
    """Returns a function that gives {tag: [values]} of one way of running, and its folder. Losses
    of steps are of float64."""
    folder = tmp_path_factory.mktemp("parity")

    @functools.cache
    def train(script, ranks, *options):
        logs = folder / f"{sum(1 for _ in folder.iterdir())}"
        words = [*command(script, ranks), *options, "--output-dir", logs, text]
        steps = losses_in_float64(words, folder, logs.with_suffix(".losses"))
        tags = events(the_run(logs)).Tags()["scalars"]
        of_time = "Time/val", "Throughput/val"
        tags = [tag for tag in tags if tag.endswith(("/step", "/val")) and tag not in of_time]
        found = {tag: [*scalars(logs, tag).values()] for tag in tags}
        return found | {"Loss/step": [*steps.values()]}, logs

    return train


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A folder of Hugging Face's with an encoder and its tokenizer."""
    return write_encoder(tmp_path_factory.mktemp("encoder") / "model", "roberta")


def assert_same_curve(found, expected, tags):
    """Of 20 steps and two validations, that have learned."""
    assert found.keys() == expected.keys() == {"Loss/step", *(f"{tag}/val" for tag in tags)}
    assert [len(expected[tag]) for tag in expected] == [20, *[2] * len(tags)]
    for tag in expected:  # what is not of steps has 24 bits in the log
        rel = 1e-12 if tag == "Loss/step" else 1e-6
        assert found[tag] == pytest.approx(expected[tag], rel=rel), tag
    first, *_, last = expected["Loss/step"]
    assert last < 0.8 * first, "it must learn, or equality says little"


# ----------------------------------------------------------------------------------------- parity


@pytest.mark.parametrize(
    ("script", "ranks", "options"),
    [
        way("nd in parts", 1, "-b", "6", slow=True),
        way("ddp in parts", 2, "-b", "4"),
        way("horovod", 2, slow=True),
        way("fsdp", 2),
        way("pipeline", 2),
        way("exchange rows", 2, "--exchange", "rows", slow=True),
        way("ddp", 1, slow=True),
        way("fsdp", 1, slow=True),
        way("exchange", 1, slow=True),
        way("horovod", 1, slow=True),
        *(way(each, ranks, slow=True) for each in ("ddp", "fsdp") for ranks in (3, 4)),
        *(way("horovod in parts", ranks, "-b", "2", slow=True) for ranks in (3, 4)),
        *(
            way(f"exchange {each}", ranks, "--exchange", each, slow=True)
            for each, ranks in zip(EXCHANGES, (3, 2, 2, 4, 3, 3, 2), strict=True)
        ),
        way("fsdp hybrid, in parts", 4, "--hybrid", "2", "-b", "3", slow=True),
        *(way(f"pipeline {each}", 2, "--schedule", each, slow=True) for each in SCHEDULES),
        way("pipeline replicas", 4, "--stages", "2", "--microbatches", "3", slow=True),
        way("pipeline in parts", 3, "-b", "8", "--schedule", "1f1b", slow=True),
    ],
)
def test_all_ways_train_the_same_language_model(script, ranks, options, logged):
    """Of 41 blocks of validation, which no number of ranks divides."""
    expected, _ = logged("text_nd.py", 1, *LM)
    found, _ = logged(script, ranks, *LM, *options)
    assert_same_curve(found, expected, ["Loss", "Perplexity"])


def test_another_seed_gives_another_curve(logged):
    """From the first step on, of other weights and sequences."""
    expected, _ = logged("text_nd.py", 1, *LM)
    found, _ = logged("text_nd.py", 1, *LM, "--seed", "1", "--epochs", "1")
    assert found["Loss/step"][0] != pytest.approx(expected["Loss/step"][0], rel=1e-6)
    assert found["Loss/step"][9] != pytest.approx(expected["Loss/step"][9], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["text_ddp.py", "text_fsdp.py", "text_exchange.py"])
def test_tied_weights(script, logged):
    """One matrix, also after FSDP2 has sharded it."""
    expected, logs = logged("text_nd.py", 1, *LM, "--tied")
    found, others = logged(script, 2, *LM, "--tied")
    assert_same_curve(found, expected, ["Loss", "Perplexity"])
    assert expected["Loss/step"] != logged("text_nd.py", 1, *LM)[0]["Loss/step"]
    for folder in logs, others:
        state = load(checkpoint(folder))["state_dict"]
        assert torch.equal(state["head.weight"], state["token.weight"])


@pytest.mark.parametrize("arch", ["gpt", "bert", "distilbert", "roberta"])
def test_embeddings_are_the_lowest_layer_and_the_classifier_the_highest(arch):
    """Of a model of two blocks, under --layer-decay."""
    args = nd.parse_args(["--layer-decay", "0.5"])
    if arch == "gpt":
        model = nd.GPT(100, 8, 0.0, 2, 8, 2, True)
    else:
        small = {"vocab_size": 100, "num_hidden_layers": 2, "hidden_size": 8, "n_layers": 2}
        small |= {"num_attention_heads": 2, "n_heads": 2, "dim": 8, "hidden_dim": 8}
        auto = hf_folders.transformers().AutoModelForSequenceClassification
        config = hf_folders.transformers().AutoConfig.for_model(arch, **small, intermediate_size=8)
        model = nd.Classifier(auto.from_config(config), [0, 1])
    for (name, _), scale in zip(
        model.named_parameters(), nd.layer_scales(args, model), strict=True
    ):
        block = re.search(r"\.(\d)\.", name)
        embedding = re.search("embeddings|^token|^position", name)
        assert scale == (0.125 if embedding else 0.25 * 2 ** int(block[1]) if block else 1), name


def test_positions_are_counted_from_the_first_token():
    model, tokens = nd.GPT(50, 16, 0.0, 2, 32, 2, False), torch.randint(50, (3, 16))
    assert torch.allclose(model(tokens[:, :5]), model(tokens)[:, :5], atol=1e-6)


def test_a_pipeline_refuses_tied_weights(complaint_here):
    assert "--tied: a pipeline cannot train a weight in" in complaint_here(
        "text_pipeline.py", "--tied", "--no-accel"
    )


def test_another_dropout_in_each_step_and_none_in_validation():
    torch.manual_seed(0)
    model, tokens = nd.GPT(50, 16, 0.5, 2, 32, 2, False), torch.randint(50, (3, 16))
    plain = nd.GPT(50, 16, 0.0, 2, 32, 2, False)
    plain.load_state_dict(model.state_dict())
    expected = plain(tokens)
    assert not torch.allclose(model(tokens), model(tokens), atol=1e-3)
    torch.testing.assert_close(model.eval()(tokens), expected)
    several = [m for m in model.modules() if isinstance(m, nn.Dropout | nd.CausalAttention)]
    assert len(several) == 1 + 2 * 3
    for module in several:  # each alone
        model.eval()
        module.train()
        assert not torch.allclose(model(tokens), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("script", "ranks", "options"),
    [
        way("ddp in parts", 2, "-a", "bert", "-b", "4"),
        way("ddp", 3, "-a", "bert", slow=True),
        way("ddp padded", 2, "-a", "bert", "--pad-to-max", slow=True),
        way("nd padded", 1, "-a", "bert", "--pad-to-max", slow=True),
        way("nd in parts", 1, "-a", "bert", "-b", "6", slow=True),
        way("horovod", 2, "-a", "bert", slow=True),
        way("horovod in parts", 3, "-a", "bert", "-b", "2", slow=True),
        way("fsdp", 4, "-a", "bert", slow=True),
        way("fsdp hybrid, in parts", 4, "-a", "bert", "--hybrid", "2", "-b", "3", slow=True),
        way("exchange gather", 2, "-a", "bert", "--exchange", "gather", slow=True),
        way("exchange rows", 3, "-a", "bert", "--exchange", "rows", "-b", "4", slow=True),
        way("ddp albert", 2, "-a", "albert", slow=True),
        way("fsdp albert", 2, "-a", "albert", slow=True),
        way("ddp folder", 2, "-a", FOLDER, slow=True),
        way("fsdp folder", 3, "-a", FOLDER, slow=True),
    ],
)
def test_all_ways_train_the_same_classifier(script, ranks, options, logged, text, encoder):
    """Of sentences that each part pads to a length of its own; 61 for validation."""
    options = [str(encoder) if each == FOLDER else each for each in options]
    expected, _ = logged("text_nd.py", 1, *COLA, *options[:2])
    found, logs = logged(script, ranks, *COLA, *options)
    assert_same_curve(found, expected, ["Loss", "Accuracy", "F1", "MCC"])
    # The logged measures are those of the checkpoint's model, by torchmetrics.
    args = nd.parse_args([*COLA, *options[:2], str(text)])
    data = read(args)
    model = nd.build_model(args, data).eval()
    model.load_state_dict(load(checkpoint(logs))["state_dict"])
    with torch.no_grad():
        pairs = [(model(inputs), target) for inputs, target in batches(args, data, "val")]
    output, target = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
    assert len(target) == 61
    measured = measure(output, target)
    assert measured["MCC"] > 0, "or equality says little"
    for tag, value in measured.items():
        assert found[f"{tag}/val"][-1] == pytest.approx(value, rel=1e-5), tag


def test_an_error_of_a_millionth_in_one_gradient_of_an_encoder_is_seen(logged, text, tmp_path):
    """Which would pass in float32."""
    script = (ROOT / "text_ddp.py").read_text()
    step = "    scaler.step(optimizer)"
    assert script.count(step) == 1
    wrong = "    next(model.parameters()).grad.mul_(1 + 1e-6)\n"
    path = copy_script("text_ddp.py", tmp_path, script.replace(step, wrong + step))
    options = [*COLA, "-a", "bert"]
    words = [sys.executable, path, "--nproc-per-node", "2", "-b", "4", *options, text]
    found = [*losses_in_float64(words, tmp_path, tmp_path / "losses").values()]
    expected = logged("text_nd.py", 1, *options)[0]["Loss/step"]
    assert found == pytest.approx(expected, rel=1e-5) != pytest.approx(expected, rel=1e-12)


def read(args, place=None):
    """Returns what a script reads of DIR."""
    place = place or nd.Place(torch.device("cpu"))
    sizes = batch_plan.split_batch(
        args.batch_size, place.data_ranks, args.accumulation, args.global_batch
    )
    return nd.open_data(args, place, nd.list_sources(args, place), sizes)


def batches(args, data, split, place=None):
    """Yields (inputs, target) of one rank's validation or first epoch of training."""
    place = place or nd.Place(torch.device("cpu"))
    schedule = nd.schedule_batches(args, place, data, 0, 0, over=lambda: False)
    for inputs, target, of, epoch, _ in nd.load_batches(args, place, data, schedule):
        if of == split and epoch in (None, 0):
            yield inputs, target
        elif epoch:
            run.no_more_steps = True
            return


# ---------------------------------------------------------------------------------------- measures


def measure(output, target):
    """Returns {tag: value} as torchmetrics has them."""
    guess, classes = output.argmax(1), output.shape[1]
    found = {"Loss": nn.functional.cross_entropy(output.double(), target)}
    kind = {"task": "multiclass" if classes > 2 else "binary", "num_classes": classes}
    found["Accuracy"] = 100 * classification.accuracy(guess, target, **kind)
    if classes == 2:
        found["F1"] = 100 * classification.f1_score(guess, target, **kind)
        found["MCC"] = classification.matthews_corrcoef(guess, target, **kind)
    return {tag: value.item() for tag, value in found.items()}


def summed(pairs):
    """Returns compute_metrics() of all sums of (output, target)."""
    sums = sum(nd.criterion(output, target)[1] for output, target in pairs).tolist()
    return nd.compute_metrics(dict(zip(nd.SUMS, sums, strict=True)))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_measures_are_those_of_torchmetrics(classes, seed):
    """Of batches of several sizes; under the last seed all guesses are one class."""
    torch.manual_seed(seed)
    target = torch.randint(classes, (97,))
    target[40:] = target[40:].clip(max=1)
    output = torch.randn(97, classes) + (seed < 3) * nn.functional.one_hot(target, classes)
    output[:, 0] += 20 * (seed == 3)
    pairs = [*zip(output.split([8, 1, 30, 58]), target.split([8, 1, 30, 58]), strict=True)]
    found = summed(pairs)
    expected = measure(output, target)
    if seed == 3 and classes == 2:
        expected["MCC"] = 0.0  # as in the field; torchmetrics adds something to 0 / 0
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert ("MCC" in found) == ("F1" in found) == (classes == 2)
    assert seed == 3 or 40 < found["Accuracy"] < 100
    for some, of_some in pairs:
        loss, sums = nd.criterion(some, of_some)
        assert loss.item() == pytest.approx(measure(some, of_some)["Loss"], rel=1e-5)
        assert sums.dtype == torch.float64 and sums[-1] == len(of_some)


def test_losses_are_summed_in_float64():
    """In float32 a loss of 0.7 is lost beside one of 2**24."""
    output = torch.tensor([[0, 2.0**24], [0, 0]])
    total = nd.criterion(output, torch.tensor([0, 0]))[1][0].item()
    assert total - 2.0**24 == pytest.approx(math.log(2), rel=1e-6)


def test_perplexity_is_that_of_torchmetrics():
    """Of sequences whose last is cut short: -1 counts nowhere."""
    torch.manual_seed(0)
    output, target = 3 * torch.randn(9, 7, 11), torch.randint(11, (9, 7))
    target[-1, 3:] = -1
    expected = torchmetrics.text.Perplexity(ignore_index=-1)(output, target).item()
    found = summed(zip(output.split([4, 5]), target.split([4, 5]), strict=True))
    assert found.keys() == {"Loss", "Perplexity"}
    assert found["Perplexity"] == pytest.approx(expected, rel=1e-5)
    assert found["Loss"] == pytest.approx(math.log(expected), rel=1e-5)
    loss, _ = nd.criterion(output[:4], target[:4])
    plain = nn.functional.cross_entropy(output[:4].flatten(0, 1), target[:4].flatten())
    assert loss.item() == pytest.approx(plain.item(), rel=1e-6)


def test_a_loss_that_is_no_number_has_a_perplexity_that_is_none():
    sums = dict.fromkeys(nd.SUMS, 0.0) | {"loss": math.nan, "tokens": 10.0}
    assert math.isnan(nd.compute_metrics(sums)["Perplexity"])


@pytest.mark.parametrize("loss", [709.5, 1e9, math.inf])
def test_a_diverged_model_has_no_perplexity_of_304_digits(loss):
    sums = dict.fromkeys(nd.SUMS, 0.0) | {"loss": 10 * loss, "tokens": 10.0}
    values = nd.compute_metrics(sums)
    assert values == {"Loss": loss, "Perplexity": math.inf}
    assert nd.format_metrics({"Perplexity": math.inf}) == "perplexity inf"
    assert nd.compute_metrics(sums | {"loss": 7000.0})["Perplexity"] == math.exp(700)


# -------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("tail", [0, 1, 15])
def test_every_token_but_the_first_is_a_target_once(ranks, tail, tmp_path):
    """Of words that are all different, in 11 blocks of 16 and a ragged one."""
    words = [f"w{number}" for number in range(3 * 11 * 16)]
    (tmp_path / "train.txt").write_text(" ".join(words))
    val = words[::-1][: 11 * 16 + 1 + tail]
    (tmp_path / "val.txt").write_text(" ".join(val))
    options = ["--tokenizer", "words", "--max-length", "16", "-b", "4", "--epochs", "1"]
    args = nd.parse_args([*options, str(tmp_path)])
    pairs = {}
    for split in "train", "val":
        pairs[split] = []
        for rank in range(ranks):
            place = nd.Place(torch.device("cpu"), rank, ranks, data_rank=rank, data_ranks=ranks)
            data = read(args, place)
            for inputs, target in batches(args, data, split, place):
                assert inputs.shape == target.shape and target.shape[1] == 16
                assert split == "val" or target.min() >= 0, "no block of training is padded"
                names, kept = data.train.words, target >= 0
                given, wanted = ([names[n] for n in each[kept]] for each in (inputs, target))
                pairs[split] += zip(given, wanted, strict=True)
    assert sorted(pairs["val"]) == sorted(itertools.pairwise(val))
    trained = set(pairs["train"])
    assert len(trained) == len(pairs["train"]) == 16 * (32 // (4 * ranks) * 4 * ranks)
    assert trained <= {*itertools.pairwise(words)}


# ---------------------------------------------------------------------------------------- encoders

WORDS = "the cat dog bird sees hears likes a small red old tree".split()


def write_encoder(folder, kind):
    """Writes a tiny encoder of transformers' with random weights, and its tokenizer."""
    library = hf_folders.transformers()
    if kind == "bert":
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
        numbered = {word: number for number, word in enumerate(vocabulary)}
        tokenizer = library.BertTokenizer(vocab=numbered)
    elif kind == "albert":
        vocabulary = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", *(f"\u2581{w}" for w in WORDS)]
        tokenizer = library.AlbertTokenizer(vocab=[(word, -1.0) for word in vocabulary])
    else:
        letters = sorted({*"\u0120".join(WORDS)})
        vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *letters, "<mask>"]
        numbered = {word: number for number, word in enumerate(vocabulary)}
        tokenizer = library.RobertaTokenizer(vocab=numbered, merges=[])
    config = library.AutoConfig.for_model(
        kind,
        vocab_size=len(vocabulary),
        pad_token_id=tokenizer.pad_token_id,
        type_vocab_size=1 if kind == "roberta" else 2,
        **{"hidden_size": 32, "embedding_size": 16, "intermediate_size": 64},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 130},
        initializer_range=0.3,  # large, so that what a model is given is felt
    )
    torch.manual_seed(0)
    library.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["bert", "roberta", "albert"])
def test_encoders_are_given_what_their_own_tokenizers_give(kind, tmp_path):
    """Pairs of sentences of different lengths: tokens, masks, segments; what is too long is cut."""
    rng = random.Random(0)
    lengths = [(rng.randrange(1, 14), rng.randrange(1, 14)) for _ in range(19)] + [(60, 30)]
    rows = [[" ".join(rng.choices(WORDS, k=length)) for length in pair] for pair in lengths]
    names = ["entailment", "not_entailment"]  # as Hugging Face numbers them
    classes = [rng.randrange(2) for _ in rows]
    lines = [f"0\t{a}\t{b}\t{names[n]}\n" for (a, b), n in zip(rows, classes, strict=True)]
    for name in "train", "dev":
        table = "index\tsentence1\tsentence2\tlabel\n" + "".join(lines)
        (tmp_path / f"{name}.tsv").write_text(table)
    folder = write_encoder(tmp_path / "model", kind)
    args = nd.parse_args(
        ["--task", "rte", "-a", str(folder), "--max-length", "64", "-b", "4", str(tmp_path)]
    )
    data, library = read(args), hf_folders.transformers()
    model = nd.build_model(args, data).eval()
    theirs = library.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        inputs, target = zip(*batches(args, data, "val"), strict=True)
        assert torch.cat(target).tolist() == classes
        found = torch.cat([*map(model, inputs)])
        options = {"padding": True, "truncation": True, "max_length": 64, "return_tensors": "pt"}
        # ALBERT was trained with segments, which its tokenizer in transformers 5 gives on request.
        options["return_token_type_ids"] = kind != "roberta"
        given = tokenizer(*map(list, zip(*rows, strict=True)), **options)
        expected = theirs(**given).logits
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        # That this says something: each input is felt.
        masked = theirs(**given | {"attention_mask": torch.ones_like(given["input_ids"])}).logits
        assert (masked - expected).abs().max() > 0.01
        if kind != "roberta":
            assert given["token_type_ids"].any()
            alike = theirs(**given | {"token_type_ids": 0 * given["token_type_ids"]}).logits
            assert (alike - expected).abs().max() > 0.01


# ---------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize(
    ("script", "ranks", "options"),
    [
        way("nd", 1, "-b", "12", "--ema", "0.5"),
        way("ddp", 2, slow=True),
        way("ddp", 3, "--task", "cola", "-a", "bert", "--lr", "5e-4", slow=True),
        way("fsdp", 2, slow=True),
        way("fsdp albert", 2, "--task", "cola", "-a", "albert", "--lr", "5e-4", slow=True),
        way("horovod", 2, slow=True),
        way("exchange", 2, "--exchange", "rows", slow=True),
        # Each rank draws its own stages' dropout: the cuts must be the same.
        way("pipeline", 2, slow=True),
        way("pipeline interleaved", 2, "--schedule", "interleaved", slow=True),
    ],
)
def test_resumed_equals_uninterrupted_to_the_bit(script, ranks, options, text, tmp_path):
    """Weights, AdamW's state, averages and the log, with dropout, ended in mid-epoch."""
    words = [*command(script, ranks), *LM, "--dropout", "0.1", *options, text, "--output-dir"]
    run([*words, "whole"], tmp_path)
    early = run([*words, "cut"], tmp_path, None, EARLY)  # launchers have a status of their own
    step = int(re.search(r"stopped by SIGTERM at step (\d+), saved", early)[1])
    assert 0 < step < 10
    output = run([*words, "cut"], tmp_path)
    assert f" after 0 of 2 epochs and {step} steps\n" in output
    assert lost(tmp_path / "whole", tmp_path / "cut") == []
    for tag in "Loss/step", "Loss/train", "Loss/val":
        assert scalars(tmp_path / "cut", tag) == scalars(tmp_path / "whole", tag), tag


@pytest.mark.slow
def test_stages_validate_without_dropout(text, tmp_path):
    """What one device finds of their checkpoint."""
    words = [*LM, "--dropout", "0.5", text]
    run([*command("text_pipeline.py", 2), *words], tmp_path)
    perplexity = scalars(tmp_path / "runs", "Perplexity/val")[2]
    evaluate = ["--evaluate", "--resume", checkpoint(tmp_path / "runs")]
    output = run([*command("text_nd.py"), *words, *evaluate], tmp_path)
    assert f"validation: perplexity {perplexity:.3f}" in output


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_one_run_through_five_ways(reverse, text, tmp_path):
    """Each ended in mid-epoch: the curve is that of one left alone."""
    ways = [("nd", 1), ("ddp", 2), ("fsdp", 3), ("exchange", 2), ("pipeline", 2)]
    ways = ways[::-1] if reverse else ways
    run([*command("text_nd.py"), *LM, text, "--output-dir", "whole"], tmp_path)
    losses, resume = {}, []
    for how, ranks in ways:
        last = (how, ranks) == ways[-1]
        words = [*command(f"text_{how}.py", ranks), *LM, text, "--output-dir", how, *resume]
        run(words, tmp_path, *((0,) if last else (None, EARLY)))
        assert last or (the_run(tmp_path / how) / "PREEMPTED").exists()
        found = scalars(tmp_path / how, "Loss/step")
        assert not losses.keys() & found.keys()
        losses |= found
        resume = ["--resume", checkpoint(tmp_path / how)]
    assert list(losses) == list(range(20))
    assert losses == pytest.approx(scalars(tmp_path / "whole", "Loss/step"), rel=1e-6)
    for tag in "Loss/val", "Perplexity/val":
        pair = [scalars(tmp_path / each, tag)[2] for each in (how, "whole")]
        assert pair[0] == pytest.approx(pair[1], rel=1e-6)
    one, other = (load(checkpoint(tmp_path / each)) for each in (how, "whole"))
    torch.testing.assert_close(one["state_dict"], other["state_dict"], rtol=1e-4, atol=1e-5)
    moments = [each["optimizer"]["state"] for each in (one, other)]
    torch.testing.assert_close(*moments, rtol=1e-3, atol=1e-6)
