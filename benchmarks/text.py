"""What the text_*.py send, gather and take: logs/benchmarks/text_KIND.json, for RESULTS.md.

    python benchmarks/text.py exchange  # also: make study-text_exchange; needs root and iproute2
    python benchmarks/text.py traffic   # bert-base's gradients, byte by byte; root too
    python benchmarks/text.py albert    # sequences/s by batch, precision and ranks
    python benchmarks/text.py gathers   # what FSDP2 gathers of ALBERT and of BERT
    python benchmarks/text.py stages    # a language model on one device, by DDP, in two stages
    python benchmarks/text.py ngrams    # the demo's text, by counts alone
    python benchmarks/text.py albert --accel --layers 12 --hidden-size 768 --heads 12 \\
        --max-length 128 --batch 2 4 8 16 32 64 96 --ranks 1 2  # on GPUs, a rank each

Nothing is fetched: RTE is a made-up one of as many rows, and models are built by configuration.
"""

import functools
import importlib.util
import itertools
import json
import os
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import ways
from common import ROOT, UNMEASURED, count, option
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from ways import EXCHANGES, STANDALONE, Kind, expected, losses_and_times

import text_nd
from trainparts import errors
from trainparts.text import hf_folders, text_corpus, tokenizing

RTE_ROWS = 2490, 277  # of train.tsv and dev.tsv
WORDS = 28_996  # bert-base-cased's vocabulary
# As google-bert/bert-base-cased and albert/albert-base-v2 have it in config.json.
CONFIGS = {
    "bert-base": {"model_type": "bert", "vocab_size": WORDS},
    "albert-base": {
        "model_type": "albert",
        "vocab_size": 30_000,
        "embedding_size": 128,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
    },
}
# The course report's, of 2 layers; without warm-up, and the rate as it is after the first epoch.
LANGUAGE = "--layers 2 --hidden-size 200 --heads 2 --max-length 35 --tokenizer words"
LANGUAGE += " --optimizer sgd --momentum 0 --lr 5 --wd 0 --clip-grad 0.5 --warmup-epochs 0"
LINES, DROPOUT = 20, 0.2  # of a batch
# The assignment's, of AdamW from 2e-5 on to 0.
ASSIGNED = "--lr 2e-5 --wd 0 --warmup-epochs 0 --clip-grad 1 --pad-to-max"
BATCH = 64  # of exchange, of all ranks


# ------------------------------------------------------------------------------- data and models


def word(number):
    """Returns a made-up word of three syllables, another for each number."""
    syllables = [a + b for a in "bdfghjklmnprstvwxyzc" for b in "aeiou"]
    places = number // 10_000, number // 100 % 100, number % 100
    return "".join(syllables[place] for place in places)


def make_rte(folder, most=4000, counts=RTE_ROWS):
    """Writes train.tsv and dev.tsv in RTE's format and of its size. Words are as frequent as
    Zipf's law has it; of an entailed sentence all are in the first, of others half."""
    rng = np.random.default_rng(0)
    odds = 1 / (np.arange(most) + 2.7)
    folder.mkdir(parents=True)
    for name, rows in zip(("train", "dev"), counts, strict=True):
        lines = ["index\tsentence1\tsentence2\tlabel"]
        for number in range(rows):
            first = rng.choice(most, rng.integers(20, 60), p=odds / odds.sum())
            second = rng.choice(first, rng.integers(5, 12))
            entailed = rng.random() < 0.5
            if not entailed:
                second[::2] = rng.choice(most, len(second[::2]))
            texts = [" ".join(map(word, each)) for each in (first, second)]
            label = "entailment" if entailed else "not_entailment"
            lines.append("\t".join([str(number), *texts, label]))
        (folder / f"{name}.tsv").write_text("\n".join([*lines, ""]))
    return folder


def make_model(folder, kind):
    """Makes a folder as Hugging Face's, of a configuration and a made-up tokenizer alone."""
    library, sizes = hf_folders.transformers(), dict(CONFIGS[kind])
    auto = library.AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    auto.save_pretrained(folder)
    marks = 4  # the tokenizer adds, such as <pad>
    tokenizer = tokenizing.word_tokenizer([[word(n)] for n in range(auto.vocab_size - marks)])
    if len(tokenizer) != auto.vocab_size:
        raise errors.BadInput(
            f"{kind}: a tokenizer of {len(tokenizer)} words, not {auto.vocab_size}"
        )
    tokenizer.save_pretrained(folder)
    return folder


def there(args):
    """Returns the scripts' options of every run: each step is logged."""
    return [*([] if args.accel else ["--no-accel"]), "-p", 1, "--seed", 0]


# ------------------------------------------------------------------------------------- exchange


def on_hosts(names, words, way, args, scratch):
    """Trains by one way on a rank a host; returns (losses, ms of the steps, MB a step over rank 0's
    card by the log, MB of the gradients)."""
    script = [ROOT / "text_exchange.py", "--task", "rte", "--exchange", way, *there(args), *words]
    folder, _ = ways.launch(names, script, scratch)
    log = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    sent = [
        max(event.value for event in log.Scalars(f"Network/{each}_MB_per_step"))
        for each in ("sent", "received")
    ]
    about = log.Tensors("about/text_summary")[0].tensor_proto.string_val[0].decode()
    megabytes = json.loads(about.strip("`json\n"))["gradient_bytes"] / 1e6
    return *losses_and_times(folder), max(sent), megabytes


def exchange(args, scratch):
    """Yields the rows: a small BERT, trained by each way."""
    epochs = 2  # one of RTE has 38 steps
    steps = args.steps // epochs + 2
    sizes = ["-a", "bert", "--layers", args.layers, "--hidden-size", args.hidden_size]
    sizes += ["--heads", args.heads, "--max-length", args.max_length, *ASSIGNED.split()]
    sizes += ["--global-batch", BATCH, "--epochs", epochs, "--steps-per-epoch", steps]
    sizes.append(make_rte(scratch / "rte"))
    (ranks,) = args.ranks
    with ways.hosts(ranks) as names:
        first = None
        for way in args.only or WAYS:
            losses, times, sent, megabytes = on_hosts(names, sizes, way, args, scratch)
            # Without an epoch's first step, and its last two, which are logged together.
            kept = [times[n : n + steps - 2] for n in range(0, epochs * steps, steps)]
            first = first or losses
            apart = [abs(a - b) / b for a, b in zip(losses, first, strict=True)]
            row = {"name": way, "values": [*itertools.chain(*kept)]}
            row |= {"rank 0's link, MB/step": sent, "gradients, MB": megabytes}
            row |= {"relative difference of losses": f"{max(apart):.1e}"}
            yield row | {"first losses": " ".join(f"{loss:.6f}" for loss in losses[:5])}


WAYS = (*EXCHANGES[:-1], "rows", "ddp")


def traffic(args, scratch):
    """Yields the rows: bert-base by its configuration, few and short sequences: what is sent does
    not depend on them."""
    folder, data = make_model(scratch / "bert-base", "bert-base"), make_rte(scratch / "rte")
    (ranks,) = args.ranks
    words = ["-a", folder, "--from-scratch", "--max-length", 8, *ASSIGNED.split()]
    words += ["--global-batch", ranks, "--epochs", 1, "--steps-per-epoch", args.steps, data]
    with ways.hosts(ranks) as names:
        for way in args.only or ("gather", "all_reduce", "ring"):
            *_, sent, megabytes = on_hosts(names, words, way, args, scratch)
            row = {"name": way, "values": [sent], "gradients, MB": megabytes, "ranks": str(ranks)}
            row |= {"by formula, MB/step": expected(way, ranks, megabytes)}
            for batch in args.batch:
                of_epoch = RTE_ROWS[0] // batch  # what does not fill a batch is left out
                row[f"GB an epoch at {batch}"] = sent * of_epoch / 1000
                row[f"by formula at {batch}"] = row["by formula, MB/step"] * of_epoch / 1000
            yield row


# ----------------------------------------------------------------------------- within the scripts


def one_step(module, run, batch):
    """Trains a step on so many sequences of noise; returns its seconds."""
    micro_batch = module.dummy_batch(run.args, run.data, batch, run.place.device)
    criterion = functools.partial(module.criterion, args=run.args)
    module.all_reduce_sum(torch.zeros(1, device=run.place.device)).item()  # all begin together
    started = time.perf_counter()
    rest = [micro_batch], 1, run.args
    sums = module.train_step(run.model, criterion, run.optimizer, run.scaler, *rest)
    module.all_reduce_sum(sums).sum().item()
    return time.perf_counter() - started


def rates(module, run, batches, steps):
    """Returns {batch: sequences/s of all ranks, step by step}, batches in turn."""
    run.model.train()
    found = {batch: [] for batch in batches}
    for _, batch in itertools.product(range(steps + 1), batches):
        found[batch].append(run.place.ranks * batch / one_step(module, run, batch))
    return {batch: values[1:] for batch, values in found.items()}


def albert(args, scratch):
    """Yields the rows: each way, precision and number of ranks, for each batch of a rank."""
    size = ["--task", "cola", "-a", "albert", "--layers", args.layers]
    size += ["--hidden-size", args.hidden_size, "--heads", args.heads]
    size += ["--max-length", args.max_length, *there(args)]
    units = torch.cpu.get_capabilities()
    emulated = not args.accel and not any(units[name] for name in units if "bf16" in name)
    cells = [
        ("text_ddp", "float32", []),
        ("text_ddp", "bfloat16", ["--amp", "bfloat16"]),
        ("text_fsdp", "float32", []),
        ("text_fsdp", "bfloat16", ["--param-dtype", "bfloat16"]),
        ("text_horovod", "float32", []),
        ("text_horovod", "fp16 exchange", ["--fp16-allreduce"]),
    ]
    for (script, precision, words), ranks in itertools.product(cells, args.ranks):
        way, why = script.removeprefix("text_"), ""
        if way == "horovod" and ranks == 1:
            continue  # nothing is exchanged
        if way == "horovod" and not importlib.util.find_spec("horovod"):
            why = "Horovod is not built: `make horovod`"
        if precision == "bfloat16" and emulated:
            why = "bfloat16 is emulated here"
        more = {"batches": args.batch, "steps": args.steps}
        given = rates, script, ranks, [*size, *words], scratch
        found = {} if why else ways.within(*given, **more)[0]
        for batch in args.batch:
            row = {"name": f"{way}, {ranks} ranks, {precision}, batch {batch}"}
            row |= {"values": found.get(str(batch), []), "way": way, "ranks": str(ranks)}
            row |= {"precision": precision, "batch": str(batch)}
            yield {**row, UNMEASURED: why} if why else row


def gathered(module, run):
    """Returns what two steps gather and reduce: the second one's calls and MB."""
    counts = {}

    def counting(names, what):
        (name,) = [name for name in names if hasattr(dist, name)][:1]
        function = getattr(dist, name)

        def counted(*tensors, **more):
            given = [*tensors, *more.values()]
            sizes = [each.nbytes for each in given if isinstance(each, torch.Tensor)]
            calls, megabytes = counts.get(what, (0, 0.0))
            counts[what] = calls + 1, megabytes + max(sizes) / 1e6  # not of a shard
            return function(*tensors, **more)

        setattr(dist, name, counted)

    # The first are FSDP2's since PyTorch 2.15.
    counting(("all_gather_single", "all_gather_into_tensor"), "gathers")
    counting(("reduce_scatter_single", "reduce_scatter_tensor"), "reductions")
    run.model.train()
    for _ in range(2):
        counts.clear()
        one_step(module, run, 2)
    whole = sum(weight.nbytes for weight in run.model.parameters()) / 1e6
    return counts, whole, len([*run.model.parameters()])


def gathers(args, scratch):
    """Yields the rows: both models, their blocks kept after the forward pass or not."""
    data = make_rte(scratch / "rte")
    for kind, again in itertools.product(CONFIGS, (True, False)):
        if not (folder := scratch / kind).exists():
            make_model(folder, kind)
        words = ["--task", "rte", "-a", folder, "--from-scratch", "--max-length", 8, "-b", 2]
        words += [*([] if again else ["--no-reshard-after-forward"]), *there(args), data]
        found = ways.within(gathered, "text_fsdp", args.ranks[0], words, scratch)
        counts, whole, tensors = found[0]
        if len(counts) < 2:
            raise errors.BadInput("FSDP2 gathers by functions of other names than gathered() has")
        calls, megabytes = counts["gathers"]
        row = {"name": f"{kind}, {'' if again else 'not '}resharded"}
        row |= {"values": [megabytes / whole], "gathers a step": str(calls)}
        row |= {"MB gathered": megabytes, "model, MB": whole, "tensors": str(tensors)}
        yield row | {"reductions a step": str(counts["reductions"][0])}


# --------------------------------------------------------------------------------------- stages


STAGES = {
    "one device": ("text_nd.py", 1),
    "DDP, 2 ranks": ("text_ddp.py", 2),
    "two stages, 4 micro-batches": ("text_pipeline.py", 2),
}


def stages(args, scratch):
    """Yields the rows: ms a batch with the report's dropout, in turn; losses without."""
    times, losses = {name: [] for name in STAGES}, {}
    for dropout, name in itertools.product((0, *[DROPOUT] * args.rounds), STAGES):
        script, ranks = STAGES[name]
        folder = Path(tempfile.mkdtemp(dir=scratch))
        words = [*STANDALONE, f"--nproc_per_node={ranks}", ROOT / script, *LANGUAGE.split()]
        words += ["--dropout", dropout, *there(args), "--output-dir", folder]
        words += ["--global-batch", LINES, "--epochs", 1, "--steps-per-epoch", args.steps + 2]
        ways.run(name, scratch, *words)
        found = losses_and_times(folder)
        if dropout:
            times[name] += found[1]
        else:
            losses[name] = found[0]
    reference = np.array(losses["one device"])
    for name, (script, ranks) in STAGES.items():
        apart = np.max(np.abs(losses[name] - reference) / reference)
        row = {"name": name, "values": times[name], "script": script, "ranks": str(ranks)}
        yield row | {"relative difference of losses": f"{apart:.1e}", "batches": str(args.steps)}


# --------------------------------------------------------------------------------------- ngrams


def ngrams(args, scratch):
    """Yields the rows: nats a byte of the demo's validation part, by counts of its training part;
    a hundredth is added to each count, so that none is 0."""
    train, val = (part.astype(np.int64) for part in text_corpus.demo_text())
    single = np.bincount(train, minlength=256) + 0.01
    pairs = np.bincount(256 * train[:-1] + train[1:], minlength=256**2).reshape(256, 256) + 0.01
    bigram = pairs / pairs.sum(axis=1, keepdims=True)
    found = {
        "unigram": -np.log((single / single.sum())[val[1:]]).mean(),
        "bigram": -np.log(bigram[val[:-1], val[1:]]).mean(),
    }
    sizes = {"training, bytes": f"{len(train):,}", "validation, bytes": f"{len(val):,}"}
    for name, loss in found.items():
        yield {"name": name, "values": [float(loss)], **sizes}


# ----------------------------------------------------------------------------------------- main


def load():
    """Returns how many processes the machine runs, as a fact."""
    return {"load": round(os.getloadavg()[0], 1)}


def of_language(args):
    """Returns the facts of stages."""
    report = text_nd.parse_args(LANGUAGE.split())
    facts = {"layers": report.layers, "width": report.hidden_size, "batch": LINES}
    facts |= {"tokens": report.max_length, "dropout": DROPOUT}
    return facts | {"batches": args.steps, "runs": args.rounds} | load()


KINDS = {
    "exchange": Kind(
        *(exchange, "BERT on RTE by each way to average gradients", "ms a step"),
        {"steps": 40, "ranks": [4], "max_length": 32, "hidden_size": 256},
        lambda a: (
            {"layers": a.layers, "width": a.hidden_size, "ranks": a.ranks[0]}
            | {"global_batch": BATCH, "tokens": a.max_length, "steps": a.steps}
            | load()
        ),
    ),
    "traffic": Kind(
        *(traffic, "Bytes of bert-base's gradients", "MB/step"),
        {"steps": 3, "ranks": [4], "batch": [64, 32, 16]},
        lambda a: (
            {"model": "bert-base-cased", "ranks": a.ranks[0], "steps": a.steps}
            | {"rows": RTE_ROWS[0]}
            | load()
        ),
    ),
    "albert": Kind(
        *(albert, "ALBERT by batch, precision and ranks", "sequences/s"),
        {"steps": 4, "ranks": [1, 2], "batch": [2, 8, 32, 64], "max_length": 64}
        | {"hidden_size": 128},
        lambda a: (
            {"calls": a.layers, "width": a.hidden_size, "tokens": a.max_length}
            | {"steps": a.steps}
            | load()
        ),
        accel=True,
        several=True,
    ),
    "gathers": Kind(
        *(gathers, "What FSDP2 gathers in a step", "times the model's bytes"),
        {"ranks": [2], "steps": 1},
        lambda a: {"ranks": a.ranks[0], "steps": a.steps} | load(),
        accel=True,
    ),
    "stages": Kind(
        *(stages, "A language model in two stages", "ms a batch"),
        {"steps": 50, "ranks": [2]},
        of_language,
    ),
    "ngrams": Kind(
        *(ngrams, "The demo's text by counts alone", "nats a byte"),
        {"steps": 1, "ranks": [1]},
        lambda a: {"python": platform.python_version(), "validation_share": 0.1},
    ),
}
OPTIONS = [
    option("--rounds", type=count, default=2, help="of stages"),
    option("--layers", type=count, default=4, help="of exchange and albert"),
    option("--hidden-size", type=count, help="default: the kind's"),
    option("--heads", type=count, default=4),
    option("--max-length", type=count, help="tokens (default: the kind's)"),
    option("--only", nargs="+", choices=WAYS, help="ways of exchange and traffic"),
]
main = functools.partial(ways.main, __doc__, KINDS, "text_KIND", OPTIONS)

if __name__ == "__main__":
    main()
