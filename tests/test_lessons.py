"""docs/lessons.md: its commands run as they are typed, and its numbers are those of the logs."""

import importlib
import re
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import HOROVOD, ROOT, environment, run

from reporting import page, parallel
from reporting.read import read_runs
from reporting.report import read_benchmarks

TEXT = (ROOT / "docs" / "lessons.md").read_text()
PARTS = re.split(r"^## (\d+) ", TEXT, flags=re.M)
LESSONS = dict(zip(map(int, PARTS[1::2]), PARTS[2::2], strict=True))
# Those whose first loss is lesson 1's; the others train another model, batch or text.
EQUAL = 1, 2, 3, 4, 7, 8, 9, 10


def section(number, name):
    """Returns what a lesson has between this heading and the next."""
    found = re.search(rf"^\*\*{name}(?:\.\*\*|\*\*)(.*?)(?=^\*\*|\Z)", LESSONS[number], re.S | re.M)
    return found[1]


def fenced(number, name):
    """Returns the commands in a part of a lesson."""
    return "".join(re.findall(r"^```bash\n(.*?)^```", section(number, name), re.S | re.M))


# --------------------------------------------------------------------------------------- commands


def test_each_lesson_has_all_of_its_parts():
    assert [*LESSONS] == [*range(1, 12)]
    assert len(TEXT.splitlines()) < 470
    for number, text in LESSONS.items():
        assert 25 <= len(text.strip().splitlines()) <= 51, number
        for name in "Question", "See", "Exercise":
            assert len(section(number, name)) > 20, (number, name)
        assert text.count("<summary>Answer</summary>") == text.count("</details>") == 1


@pytest.mark.parametrize("number", LESSONS)
def test_what_is_read_is_there(number):
    """A page or less of each: a name that is no longer there would print nothing, or all."""
    for command in re.sub(r"\\\n\s*", " ", fenced(number, "Read")).splitlines():
        words = {"capture_output": True, "text": True, "env": environment(), "cwd": ROOT}
        printed = subprocess.run(["bash", "-c", command], **words)
        assert not printed.stderr
        least = 3 if command.startswith("diff") and "text_" in command else 10
        assert least <= len(printed.stdout.splitlines()) <= 50, command


@pytest.fixture
def copy(request, tmp_path, demo):
    """A copy of the repository, by links, on a path with a space; its lessons take two steps an
    epoch, but the one that is killed, and validate ten images."""
    steps = 20 if request.node.callspec.params["number"] == 10 else 2
    folder = tmp_path / "a copy"
    for place in "recipes/lessons", "demo_data/val":
        (folder / place).mkdir(parents=True)
    for path in ROOT.glob("[a-z]*"):
        if path.name not in ("recipes", "runs", "logs", "demo_data", "demo_shards"):
            (folder / path.name).symlink_to(path)
    for path in (ROOT / "recipes" / "lessons").iterdir():
        shorter = f"{path.read_text()}\n--epochs 1 --steps-per-epoch {steps}\n"
        (folder / "recipes" / "lessons" / path.name).write_text(shorter)
    (folder / "demo_data" / "train").symlink_to(demo / "train")
    for label in (demo / "val").iterdir():
        (folder / "demo_data" / "val" / label.name).mkdir()
        image = min(label.iterdir())
        (folder / "demo_data" / "val" / label.name / image.name).symlink_to(image)
    return folder


@pytest.mark.parametrize(
    "number",
    [number if number == 1 else pytest.param(number, marks=pytest.mark.slow) for number in LESSONS],
)
def test_commands_run_as_typed(number, copy):
    command = fenced(number, "Run")
    if not HOROVOD:
        command = re.sub("^horovodrun.*\n", "", command, flags=re.M)
    output = run(["bash", "-c", command], copy, timeout=900)
    trainings = len(re.findall(r"\.py [^\n]*@", command)) + 3 * command.count("$way.py")
    trainings -= command.count("kill -KILL")
    ended = re.findall(r"^(?:\[0\]<stdout>:)?all epochs are done: ", output, re.M)
    assert len(ended) == trainings, output
    assert "error: " not in output and "Traceback" not in output, output
    losses = [float(loss) for loss in re.findall(r"1/\d  step 1  loss (\S+)", output)]
    assert len(losses) == trainings, output
    wanted = first_loss(1 if number in EQUAL else 11)
    if number in (*EQUAL, 11):
        assert losses == pytest.approx([wanted] * len(losses), abs=2e-4)
    # Three words or more between backticks are printed; names and options are shorter.
    printed = " ".join(output.split())
    spans = [" ".join(line.split()) for line in re.findall(r"`([^`]+)`", section(number, "See"))]
    for line in spans:
        assert line in printed or line.count(" ") < 2, (line, output)
    if number == 10:
        end = re.search(r"end at a loss of ([\d.]+)", " ".join(section(10, "See").split()))[1]
        assert f"3/3  loss {end}  " in output, output


def first_loss(number):
    """Returns the loss that a lesson promises of its first step."""
    return float(re.search(r"(\d\.\d{4}) at step 1", " ".join(section(number, "See").split()))[1])


# ---------------------------------------------------------------------------------------- numbers


@pytest.fixture(scope="module")
def logs():
    """What the logs hold: `lesson`, the runs of the study by their commands, `runs` by study,
    `median` of a row of a benchmark."""
    runs, _ = read_runs([ROOT / "logs"])
    benchmarks, _ = read_benchmarks([ROOT / "logs"])
    lesson, studies = {}, {}
    for each in runs:
        studies.setdefault(each.study, []).append(each)
        if each.study == page.LESSONS:
            words = [word for word in each.about["command"][1:-2] if "/" not in word]
            lesson[" ".join(words)] = each
    rows = {each["file"]: each["rows"] for each in benchmarks if "rows" in each}

    def row(benchmark, name):
        (found,) = (rows[str(ROOT / "logs" / "benchmarks" / f"{benchmark}.json")],)
        return next(each for each in found if each["name"] == name)

    def median(benchmark, name):
        return float(np.median(row(benchmark, name)["values"]))

    tried = page.count_trials(benchmarks)
    trials = [sum(each[place] for each in tried) for place in (1, 2)]
    return SimpleNamespace(
        lesson=lesson, studies=studies, row=row, median=median, trials=trials, benchmarks=benchmarks
    )


def loss_of(run, step):
    """Returns the loss of a step, counted from 1."""
    series = run.series["Loss/step"]
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))[step - 1]


def top1(run):
    return run.values("Top1/val")[-1]


def apart(runs):
    """Returns how far the logged losses of runs are apart, relative to the first's."""
    losses = np.array([run.series["Loss/step"].values for run in runs])
    return float(np.max(np.ptp(losses, axis=0) / losses[0]))


def facts(logs):
    """Yields (lesson, what it says by the logs)."""
    lesson, median, row = logs.lesson, logs.median, logs.row
    one, ddp = lesson["imagenet_nd.py"], lesson["imagenet_ddp.py --nproc-per-node 2"]
    first, later = loss_of(one, 1), loss_of(one, 16)
    yield 1, f"a loss of {first:.4f} at step 1 and of {later:.4f} at step 16"
    yield 1, f"{top1(one):.1f} % top-1 in validation"
    yield 1, f"No: {loss_of(lesson['imagenet_nd.py -b 64'], 1):.4f}."
    vits = [each for each in logs.studies["parity_cpu"] if each.arch == "vit_b_16"]
    vits.sort(key=lambda each: (each.devices, each.name))  # page.parity_groups()
    most = max(max(page.differences(each, vits[0])[1]) for each in vits[1:])
    yield 1, f"within {most:.0e} over 20 steps"
    sent = row("exchange", "gather, 4 ranks, batch 64")["by formula, MB/step"]
    yield 2, f"{sent / 3:.1f} MB of weights leave the first device"
    again = [
        ddp,
        lesson["imagenet_exchange.py --exchange ring"],
        lesson["imagenet_fsdp.py"],
        lesson["imagenet_pipeline.py -b 64 --microbatches 2"],
    ]
    assert apart([one, *again]) < 1e-6
    yield 3, "the losses of lesson 1, within 1e-06 over the epoch"
    yield 3, f"is the top-1 in validation {top1(ddp):.1f} % now, and was {top1(one):.1f} %"
    yield 4, f"{1e6 * sent / 3 / 4:,.0f} numbers, {1e6 * sent / 3:,.0f} bytes a step"
    for way in "gather", "all_reduce", "bucket", "ring", "ddp":
        name = f"{way}, 4 ranks, batch 64"
        busy = float(f"{row('exchange', name)['busiest link, MB/step']:.3g}")
        yield 4, f"| `{way}` | {busy:g} | {median('exchange', name):.0f} |"
    yield 4, f"14/8 x {sent / 3:.1f} = {14 / 8 * sent / 3:.1f} MB"
    yield 4, f"7 times them, {7 * sent / 3:.0f} MB"
    (overflow,) = [run for words, run in lesson.items() if "--half-dtype float16" in words]
    skipped = int(overflow.values("Steps/skipped").sum())
    yield 5, f"in {skipped} of {len(overflow.series['Loss/step'].steps)} steps"
    yield 5, f"from 65,536 to {65536 // 2**skipped:,}"
    rates = [each.throughput[0] for each in logs.studies["precision_cpu"]]  # O0 to O3
    times = [f"{rate / rates[0]:.2f}" for rate in rates[1:]]
    yield 5, f"{times[0]} (O1), {times[1]} (O2) and {times[2]} (O3) times as fast as float32"
    for words, batch, rate in (
        ("--lr 0.05", 64, 0.0125),
        ("--lr 0.05 --global-batch 256", 256, 0.05),
        ("--lr 0.0125 --lr-scaling none --global-batch 256", 256, 0.0125),
        ("--global-batch 256", 256, 0.2),
        ("--global-batch 256 --warmup-epochs 1", 256, 0.2),
    ):
        run = lesson[f"imagenet_nd.py --epochs 3 {words}"]
        assert run.global_batch == batch
        losses = ", ".join(f"{loss:.2f}" for loss in run.values("Loss/train"))
        steps = 3 * run.about["steps_per_epoch"]
        typed = re.sub("--global-batch 256|--lr-scaling none", "", words).strip()
        typed = f" `{typed}`" if typed else ""
        yield 6, f"| {batch} | {steps} |{typed} | {rate:g} | {losses} | {top1(run):.1f} |"
    v100 = {each.devices: each for each in logs.studies["v100_imagenet"]}
    best = {number: v100[number].values("Top1/val").max() for number in (8, 64)}
    batch = {number: f"{v100[number].global_batch:,}" for number in best}
    yield 6, f"with {batch[8]} images a step reached {best[8]:.1f} % top-1 on ImageNet"
    yield 6, f"on 64 with {batch[64]} only {best[64]:.1f} %"
    alone = lesson["imagenet_nd.py -j 0"]
    waits = [100 * each.values("Data/wait")[0] for each in (one, alone)]
    yield 7, f"{waits[0]:.0f} % with a loader process"
    yield 7, f"decodes the images itself: {waits[1]:.0f} %"
    for shown, name in (
        ("a folder, by pytorch/examples' loader", "pytorch/examples"),
        ("a folder", "this project, folder"),
        ("shards", "this project, shards"),
        ("shards of pixels (`--raw 256`): nothing to decode", "this project, raw 256"),
    ):
        yield 7, f"| {shown} | {median('data_loading', name):,.0f} |"
    for arch, way in ("ResNet-18", "DDP"), ("ResNet-18", "FSDP2"), ("ResNet-50", "FSDP2"):
        name = f"{arch.lower().replace('-', '')}, {way.lower().removesuffix('2')}"
        held = [f"{median('memory', f'{name}, {ranks} ranks'):.1f}" for ranks in (1, 2, 4)]
        yield 8, f"| {arch}, {way} | {' | '.join(held)} |"
    parts = ("gpipe, 1", "gpipe, 2", "gpipe, 4", "1f1b, 8")
    idle = [f"{median('bubble', f'{each} micro-batches'):.0f} %" for each in parts]
    yield 9, f"{idle[0]} of the time with 1 micro-batch, {idle[1]} with 2, {idle[2]} with 4"
    yield 9, f"{idle[3]} with 8 by the schedule `1f1b`"
    formula = "(p - 1)/(m + p - 1), %"
    by = [f"{row('bubble', f'{each} micro-batches')[formula]:.0f}" for each in parts]
    yield 9, f"The formula has {', '.join(by[:3])} and {by[3]} %"
    whole = lesson["imagenet_nd.py --epochs 3"]
    yield 10, f"a loss of {loss_of(whole, 1):.4f} at step 1"
    yield 10, f"3 epochs end at a loss of {whole.values('Loss/train')[-1]:.2f} and "
    yield 10, f"{top1(whole):.1f} % top-1"
    tried, held = logs.trials
    yield 10, f"tries {tried} harms, and {held} times the run does what is promised"
    texts = [run for words, run in lesson.items() if words.startswith("text_")]
    assert len(texts) == 6
    yield 11, f"{loss_of(texts[0], 1):.4f} at step 1, {loss_of(texts[0], 41):.4f} at step 41"
    yield 11, f"{texts[0].values('Loss/val')[-1]:.2f} in validation"
    assert apart(texts) < 1e-6
    yield 11, "the same losses six times, within 1e-06"
    rates = {run.script: run.throughput[0] for run in texts}
    yield 11, f"{rates['nd']:.0f} sequences/s on one device, {rates['ddp']:.0f} by DDP"
    yield 11, f"{rates['pipeline']:.0f} in two stages"


def missing(text, logs):
    """Returns what the logs say and the lessons do not; and the numbers in what is to be seen that
    no log says."""
    parts = re.split(r"^## (\d+) ", text, flags=re.M)
    flat = {
        int(n): " ".join(part.split()) for n, part in zip(parts[1::2], parts[2::2], strict=True)
    }
    absent = []
    for number, fact in facts(logs):
        absent += [] if fact in flat[number] else [(number, fact)]
        flat[number] = flat[number].replace(fact, "")
    for number, left in flat.items():
        seen = re.search(r"\*\*See\*\*(.*?)\*\*Exercise", left)[1]
        seen = re.sub(r"`[^`]*`|\(\.\./[^)]*\)", "", seen)
        odd = re.findall(r"\d[\d,]*\.\d+|\d+,\d{3}|\d+ (?:%|MB|ms)", seen)
        absent += [(number, each) for each in odd]
    return absent


def test_numbers_are_those_of_the_logs(logs):
    assert missing(TEXT, logs) == []


def test_a_number_that_no_log_has_is_found(logs):
    """Each one that is changed, and one that is added."""
    for number, fact in facts(logs):
        changed = re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + 1) % 10), fact)
        pattern = re.sub(r"(\\ )+", r"\\s+", re.escape(fact))
        text, times = re.subn(pattern, lambda _, new=changed: new, TEXT)
        assert times and (number, fact) in missing(text, logs), fact
    more = TEXT.replace("**Exercise.**", "It takes 12.5 % more.\n\n**Exercise.**", 1)
    assert missing(more, logs) == [(1, "12.5")]


def test_the_ring_that_is_drawn_is_the_script_s(monkeypatch):
    """Which chunk each of four ranks sends in each turn, by the arrows and by the function."""
    script = importlib.import_module("imagenet_exchange")
    panels = parallel.ring_panels()
    drawn = [
        sorted((-line["y"][0] // 1, line["x"][0]) for line in panel["lines"] if len(line["x"]) == 2)
        for panel in panels
    ]
    for rank in range(4):
        flat, sent = torch.arange(4.0), []
        fake = SimpleNamespace(
            get_rank=lambda rank=rank: rank,
            get_world_size=lambda: 4,
            isend="isend",
            irecv="irecv",
            P2POp=lambda kind, tensor, peer: (kind, tensor, peer),
            batch_isend_irecv=lambda pair, sent=sent: sent.append(pair) or [],
        )
        monkeypatch.setattr(script, "dist", fake)
        script._add_up_in_a_ring(flat)
        assert len(sent) == 6
        for turn, ((kind, chunk, to), _) in enumerate(sent[:4]):
            assert (kind, to) == ("isend", (rank + 1) % 4)
            assert (rank, chunk.storage_offset()) in drawn[turn]
