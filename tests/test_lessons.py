"""docs/lessons.md: its commands run as typed, and print what it says. What it has of the logs,
`make_results.py logs --check` compares."""

import importlib
import re
import subprocess
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import HOROVOD, ROOT, environment, run

from reporting import lessons

TEXT = (ROOT / "docs" / "lessons.md").read_text()
PARTS = re.findall(r"^## (\d+) (.*?)(?=^## \d|\Z)", TEXT, re.S | re.M)
LESSONS = {int(number): text for number, text in PARTS}
FIRST = {number: 1 for number in (1, 2, 3, 4, 7, 8, 9, 10)} | {11: 11}  # whose first loss it has


def section(number, name):
    """Returns what a lesson has between this heading and the next."""
    return re.search(rf"^\*\*{name}\.?\*\*(.*?)(?=^\*\*|\Z)", LESSONS[number], re.S | re.M)[1]


def fenced(number, name):
    """Returns the commands in a part of a lesson."""
    return "".join(re.findall(r"^```bash\n(.*?)^```", section(number, name), re.S | re.M))


def test_each_lesson_has_all_of_its_parts():
    assert [*LESSONS] == [*range(1, 12)]
    assert len(TEXT.splitlines()) < 500
    for number, text in LESSONS.items():
        assert 25 <= len(text.strip().splitlines()) <= 60, number
        assert all(len(section(number, name)) > 20 for name in ("Question", "See", "Exercise"))
        assert text.count("<summary>Answer</summary>") == text.count("</details>") == 1


@pytest.mark.parametrize("number", LESSONS)
def test_what_is_read_is_there(number):
    """A page or less of each: a name that is no longer there would print nothing, or all."""
    for command in re.sub(r"\\\n\s*", " ", fenced(number, "Read")).splitlines():
        words = {"capture_output": True, "text": True, "env": environment(), "cwd": ROOT}
        printed = subprocess.run(["bash", "-c", command], **words)
        least = 3 if command.startswith("diff") and "text_" in command else 10
        assert least <= len(printed.stdout.splitlines()) <= 50 and not printed.stderr, command


@pytest.fixture
def copy(request, tmp_path, demo):
    """A copy of the repository, by links, on a path with a space; its lessons take two steps an
    epoch, but the one that is killed, and validate ten images."""
    steps = 20 if request.node.callspec.params["number"] == 10 else 2
    folder = tmp_path / "a copy"
    (folder / "recipes" / "lessons").mkdir(parents=True)
    for path in ROOT.glob("[a-z]*"):
        if path.name not in ("recipes", "runs", "logs", "demo_data", "demo_shards"):
            (folder / path.name).symlink_to(path)
    for path in (ROOT / "recipes" / "lessons").iterdir():
        shorter = f"{path.read_text()}\n--epochs 1 --steps-per-epoch {steps}\n"
        (folder / "recipes" / "lessons" / path.name).write_text(shorter)
    for label in (demo / "val").iterdir():
        (folder / "demo_data" / "val" / label.name).mkdir(parents=True)
        image = min(label.iterdir())
        (folder / "demo_data" / "val" / label.name / image.name).symlink_to(image)
    (folder / "demo_data" / "train").symlink_to(demo / "train")
    return folder


@pytest.mark.parametrize(
    "number", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in range(2, 12))]
)
def test_commands_run_as_typed(number, copy):
    command = fenced(number, "Run")
    command = command if HOROVOD else re.sub("^horovodrun.*\n", "", command, flags=re.M)
    output = run(["bash", "-c", command], copy, timeout=900)
    trainings = len(re.findall(r"\.py [^\n]*@", command)) + 3 * command.count("$way.py")
    trainings -= command.count("kill -KILL")
    ended = re.findall(r"^(?:\[0\]<stdout>:)?all epochs are done: ", output, re.M)
    losses = [float(loss) for loss in re.findall(r"1/\d  step 1  loss (\S+)", output)]
    assert len(ended) == len(losses) == trainings, output
    assert "error: " not in output and "Traceback" not in output, output
    if number in FIRST:
        promised = re.search(r"(\d\.\d{4})\sat\sstep\s1\b", section(FIRST[number], "See"))
        assert losses == pytest.approx([float(promised[1])] * trainings, abs=2e-4)
    # Three words or more between backticks are printed; names and options are shorter.
    printed, see = " ".join(output.split()), " ".join(section(number, "See").split())
    for line in re.findall(r"`([^`]+)`", see):
        assert line in printed or line.count(" ") < 2, (line, output)
    if number == 10:
        epochs = re.findall(r"^\d/3  (train loss .*, loss \S+) ", output, re.M)
        assert len(epochs) == 6 and epochs[:3] == epochs[3:], output


def test_the_ring_that_is_drawn_is_the_script_s(monkeypatch):
    """Which chunk each of four ranks sends in each turn, by the table and by the function."""
    script, fake = importlib.import_module("imagenet_exchange"), mock.Mock()
    fake.configure_mock(P2POp=lambda *words: words, get_world_size=lambda: 4)
    fake.batch_isend_irecv.return_value = []
    monkeypatch.setattr(script, "dist", fake)
    sent = [set() for _ in range(6)]
    for rank in range(4):
        fake.get_rank.return_value = rank
        script._add_up_in_a_ring(torch.arange(4.0))
    for place, call in enumerate(fake.batch_isend_irecv.call_args_list):
        (rank, turn), ((kind, chunk, to), _) = divmod(place, 6), call.args[0]
        assert (kind, to) == (fake.isend, (rank + 1) % 4)
        sent[turn].add((rank, chunk.storage_offset()))
    turns = lessons.turns_in_ring(4)
    assert [{(rank, chunk) for rank, (chunk, _) in enumerate(turn)} for turn in turns] == sent
    # A rank adds its own gradients to what it was sent, until all are in.
    own = [[[rank] for _ in range(4)] for rank in range(4)]
    for number, turn in enumerate(turns):
        assert [summed for _, summed in turn] == [
            own[n][chunk] for n, (chunk, _) in enumerate(turn)
        ]
        for rank, (chunk, summed) in enumerate(turn):
            to = (rank + 1) % 4
            own[to][chunk] = [*summed, to] if number < 3 else summed
    assert all(sorted(own[rank][chunk]) == [0, 1, 2, 3] for rank in range(4) for chunk in range(4))


def test_losses_are_counted_from_the_first_step_and_compared_with_the_first_run_s():
    """As relative differences, of which less than 1e-6 is the digits that are shown."""

    def logged(*losses):
        steps = range(len(losses))  # as scripts log them
        frame = pd.DataFrame({"step": steps, "value": losses}).iloc[::-1].reset_index()
        return SimpleNamespace(
            series={"Loss/step": frame}, values=lambda tag: np.array(losses, float)
        )

    runs = [logged(4.0, 2.0, 1.0), logged(5.0, 2.0, 1.0), logged(4.0, 1.0, 1.0)]
    assert [lessons.loss(runs[1], step) for step in (1, 2, 3)] == [5, 2, 1]
    assert lessons.apart(runs) == 0.5 and lessons.apart(runs[:2]) == 0.25
    assert lessons.apart(runs[1::-1]) == 0.2, "of another first run"
    assert lessons.apart(runs[:1] * 2) == lessons.apart([runs[0], logged(4 + 1e-8, 2, 1)]) == 1e-6


def test_a_row_of_a_benchmark_is_found_by_its_whole_name():
    names = "nd", "nd, 2 ranks", "2 ranks"
    benchmark = {"rows": [{"name": name, "values": [n]} for n, name in enumerate(names)]}
    assert [lessons.row(benchmark, name)["values"] for name in names] == [[0], [1], [2]]
