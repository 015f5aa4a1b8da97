"""equal.py on runs that are made up: it reports each kind of difference, and only these."""

import functools
import itertools
import json
import re
import shutil
import subprocess
import sys
from unittest import mock

import conftest
import equal
import pytest
import torch
from torch.utils.tensorboard import SummaryWriter


def made_up(seconds=1.0):
    """Returns what a run prints, logs and saves, which took so many seconds."""
    weights = {"head.weight": torch.arange(6.0).reshape(2, 3), "head.bias": torch.zeros(2)}
    moments = {"momentum_buffer": torch.ones(2), "step": torch.tensor(12.0)}
    group = {"lr": 0.1, "betas": (0.9, 0.999), "params": [0]}
    return {
        "lines": [
            f"1/2  step 1  loss 2.5000  {8 / seconds:,.0f} images/s  wait {seconds:.0f} %",
            f"all epochs are done: 2/2 epochs in 0:00:0{seconds:.0f} (h:m:s): loss 1.125",
        ],
        "scalars": {
            "Loss/step": {step: 2.5 - step / 8 for step in range(12)},
            "Loss/val": {1: 2.0, 2: 1.0},
            "Lr": {1: 0.1, 2: 0.01},
            "Throughput/val": {1: 8 / seconds, 2: 9 / seconds},
        },
        "script": "```python\nscript\n```",
        "about": {"place": {"ranks": 1}, "resumed": None, "options": {"lr": 0.1}},
        "checkpoint": {
            "epoch": 2,
            "step": 0,
            "best_loss": 1.0,
            "scaler": {"scale": 1.0},
            "seconds": seconds,
            "partial": {"sums": {"loss": 96.0, "waited": seconds}, "seconds": seconds},
            "args": {"lr": 0.1, "checkpoint_minutes": 15, "desired": []},
            "state_dict": weights,
            "ema": {name: weight + 1 for name, weight in weights.items()},
            "optimizer": {"state": {0: moments}, "param_groups": [group]},
        },
    }


def write(made, folder):
    """Logs and saves into a folder what is made up."""
    (folder / "run").mkdir(parents=True, exist_ok=True)
    with SummaryWriter(folder / "run") as log:
        log.add_text("about", f"```json\n{json.dumps(made['about'])}\n```")
        log.add_text("script", made["script"])
        for tag, points in made["scalars"].items():
            for step, value in points.items():
                log.add_scalar(tag, value, step)
    torch.save(made["checkpoint"], folder / "run" / "checkpoint.pt")


def read(made, folder):
    """Returns the Run of what is made up."""
    write(made, folder)
    return equal.read_run(folder, "\n".join(made["lines"]), "", {})


def flip(tensor):
    """Changes the last bit of a tensor's first element."""
    tensor.view(torch.int32).view(-1)[0] ^= 1


NEXT = torch.nextafter(torch.tensor(2.25), torch.tensor(3.0)).item()  # as a float32


PT = "run/checkpoint.pt"


def swap(state):
    """Moves the first entry of a dict behind the others."""
    first = next(iter(state))
    state[first] = state.pop(first)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda run: None, [], id="nothing"),
        pytest.param(
            lambda run: flip(run["checkpoint"]["state_dict"]["head.weight"]),
            [f"{PT}: state_dict.head.weight: 1 of 6 elements differ, by 1.4e-45 at most"],
            id="a bit of a weight",
        ),
        pytest.param(
            lambda run: flip(run["checkpoint"]["ema"]["head.bias"]),
            [f"{PT}: ema.head.bias: 1 of 2 elements differ, by 1.19e-07 at most"],
            id="a bit of an average",
        ),
        pytest.param(
            lambda run: flip(run["checkpoint"]["optimizer"]["state"][0]["momentum_buffer"]),
            [
                f"{PT}: optimizer.state.0.momentum_buffer: "
                "1 of 2 elements differ, by 1.19e-07 at most"
            ],
            id="a bit of the momentum",
        ),
        pytest.param(
            lambda run: run["checkpoint"]["optimizer"]["state"][0].update(step=torch.tensor(12)),
            [f"{PT}: optimizer.state.0.step: torch.float32 () before, torch.int64 () after"],
            id="a dtype",
        ),
        pytest.param(
            lambda run: run["checkpoint"]["ema"].pop("head.bias"),
            [f"{PT}: ema.head.bias: only before"],
            id="an average less",
        ),
        pytest.param(
            lambda run: swap(run["checkpoint"]["state_dict"]),
            [
                f"{PT}: state_dict.head.weight before, "
                f"but in its place {PT}: state_dict.head.bias after"
            ],
            id="the order of weights",
        ),
        pytest.param(
            lambda run: run["checkpoint"]["args"].update(lr=0.2),
            [f"{PT}: args.lr: 0.1 before, 0.2 after"],
            id="an option",
        ),
        pytest.param(
            lambda run: run["checkpoint"]["scaler"].update(scale=1),
            [f"{PT}: scaler.scale: 1.0 before, 1 after"],
            id="a type",
        ),
        pytest.param(
            lambda run: run["checkpoint"]["optimizer"]["param_groups"][0].update(lr=0.2),
            [f"{PT}: optimizer.param_groups[0].lr: 0.1 before, 0.2 after"],
            id="the optimizer's rate",
        ),
        pytest.param(
            lambda run: run["checkpoint"].update(digest="1234"),
            [f"{PT}: digest: only after"],
            id="a new name",
        ),
        pytest.param(lambda run: run["scalars"].pop("Lr"), ["Lr: only before"], id="a tag less"),
        pytest.param(
            lambda run: run["scalars"].pop("Throughput/val"),
            ["Throughput/val: only before"],
            id="a tag of time less",
        ),
        pytest.param(
            lambda run: run["scalars"]["Throughput/val"].pop(2),
            ["Throughput/val: steps [1, 2] before, [1] after"],
            id="a step less",
        ),
        pytest.param(
            lambda run: run["scalars"]["Loss/step"].update({2: NEXT, 5: 0.0}),
            [
                f"Loss/step: at step 2 2.25 before, {NEXT} after, and 1 other steps differ",
            ],
            id="a loss",
        ),
        pytest.param(
            lambda run: run["about"]["place"].update(ranks=2),
            ["about: place.ranks: 1 before, 2 after"],
            id="what the log says of the run",
        ),
        pytest.param(
            lambda run: run["lines"].insert(1, "a line more"),
            ["only after: a line more"],
            id="a line more",
        ),
        pytest.param(
            lambda run: run["lines"].__setitem__(0, run["lines"][0].replace("2.5000", "2.5001")),
            [
                "only before: 1/2  step 1  loss 2.5000  N images/s  wait N %",
                "only after: 1/2  step 1  loss 2.5001  N images/s  wait N %",
            ],
            id="a printed loss",
        ),
    ],
)
def test_each_difference_is_reported_alone(change, expected, tmp_path):
    """Between runs whose times differ, too."""
    before, after = made_up(), made_up(seconds=4.0)
    change(after)
    runs = [read(made, tmp_path / name) for made, name in ((before, "a"), (after, "b"))]
    assert [*itertools.chain(*equal.differences_of_runs(*runs))] == expected


class MadeUp(equal.Comparer):
    """A Comparer whose commands leave what is made up, changed by change(made, folder)."""

    def __init__(self, folder, change=lambda made, folder: None, ended=4):
        trees = [equal.Tree(name, folder / name) for name in ("before", "after")]
        for tree in trees:
            tree.root.mkdir()
            (tree.root / "text_nd.py").write_text("script")
        super().__init__(*trees, folder)
        self.change, self.ended = change, ended

    def run(self, tree, words, folder, status=0, env=()):
        made = made_up(seconds=2.0 if tree.name == "after" else 1.0)
        self.change(made, folder.relative_to(self.folder / "runs"))
        if env:  # ended by a signal, and logged again when it is resumed
            made["scalars"] = {}
            made["checkpoint"] |= {"epoch": 1, "step": self.ended}
        write(made, folder)
        return "\n".join(made["lines"]), ""


SIGTERM = "text_nd, resumed after SIGTERM"


@pytest.mark.parametrize("name", ["text_nd", SIGTERM, "text_nd, resumed after SIGKILL"])
def test_equal_runs(name, tmp_path, capsys):
    assert equal.report(name, MadeUp(tmp_path).comparisons()[name])
    line = capsys.readouterr().out
    assert line.startswith(f"equal      {name}: ")
    assert line.endswith("12 steps, 4 tags, 6 tensors, 19 other values, 2 lines, 0 s\n")


@pytest.mark.parametrize(
    ("name", "where", "begins"),
    [
        ("text_nd", "text_nd/after", ""),
        (SIGTERM, "text_nd SIGTERM/after", "begun after, ended at epoch 1, step 4: "),
        (SIGTERM, "text_nd SIGTERM/before", "begun before, ended at epoch 1, step 4: "),
    ],
)
def test_a_bit_in_one_of_the_runs(name, where, begins, tmp_path, capsys):
    def change(made, folder):
        if str(folder) == where:
            flip(made["checkpoint"]["ema"]["head.bias"])

    compare = MadeUp(tmp_path, change).comparisons()[name]
    what = f"{PT}: ema.head.bias: 1 of 2 elements differ, by 1.19e-07 at most"
    assert not equal.report(name, compare)
    line, *differences = capsys.readouterr().out.splitlines()
    assert line.startswith(f"DIFFERENT  {name}: ")
    assert differences == [f"    {begins}{what}"]
    # Unless it is permitted, as a whole.
    with mock.patch.object(equal, "PERMITTED", [f"{name}: .*ema.head.bias: .* at"]):
        assert not equal.report(name, compare)


def test_a_permitted_difference(tmp_path, capsys):
    def change(made, folder):
        if folder.name == "after":
            made["lines"].append("a new line")
            made["checkpoint"]["digest"] = "1234"

    compare = MadeUp(tmp_path, change).comparisons()["text_nd"]
    permitted = ["text_nd: only after: a new line", r"text_nd: run/.*\.pt: digest: only after"]
    for few in permitted:
        with mock.patch.object(equal, "PERMITTED", [few]):
            assert not equal.report("text_nd", compare)
    with mock.patch.object(equal, "PERMITTED", permitted):
        assert equal.report("text_nd", compare)
    assert ", 2 permitted differences, " in capsys.readouterr().out.splitlines()[-1]


def test_the_code_in_the_log_is_that_of_the_tree(tmp_path, capsys):
    """Whatever it is: the log of a tree with trainparts/ has its modules, too."""
    comparer = MadeUp(tmp_path, lambda made, folder: made.update(script=logged[folder.name]))
    compare = comparer.comparisons()["text_nd"]
    after = comparer.trees[1].root
    conftest.write_file(after / "text_nd.py", b"another script")
    conftest.write_file(after / "trainparts" / "runs" / "log.py", b"a module")
    logged = {"before": "```python\nscript\n```"}
    logged["after"] = "```python\nanother script\n```\n```python\na module\n```"
    assert equal.report("text_nd", compare)
    comparer.uninterrupted.clear()
    shutil.rmtree(tmp_path / "runs")
    logged["after"] = logged["after"].replace("a module", "another module")
    assert not equal.report("text_nd", compare)
    assert "\n    script: '```python\\nSCRIPT\\n```' before, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("part", "name", "value", "why"),
    [
        ("scalars", "Loss/step", {0: 1.0}, "steps [0] were logged, not 2 x 6"),
        ("about", "place", {"ranks": 2}, "2 ranks trained, not 1"),
    ],
)
def test_runs_that_train_something_else_prove_nothing(part, name, value, why, tmp_path, capsys):
    def change(made, folder):
        made[part][name] = value

    assert not equal.report("text_nd", MadeUp(tmp_path, change).comparisons()["text_nd"])
    assert capsys.readouterr().out == f"FAILED     text_nd: before: {why}\n"


@pytest.mark.parametrize("ended", [0, 6])
def test_a_run_that_is_ended_after_an_epoch_proves_nothing(ended, tmp_path, capsys):
    assert not equal.report(SIGTERM, MadeUp(tmp_path, ended=ended).comparisons()[SIGTERM])
    why = f"before: SIGTERM at event 21 ended it at epoch 1, step {ended}, no middle"
    assert capsys.readouterr().out == f"FAILED     {SIGTERM}: {why}\n"


def test_a_command_that_fails(tmp_path, capsys):
    comparer = equal.Comparer(
        *[equal.Tree(name, tmp_path) for name in ("before", "after")], tmp_path
    )
    code = "import sys; print('why'); sys.exit(3)"
    compare = functools.partial(
        comparer.run, comparer.trees[0], [sys.executable, "-c", code], tmp_path
    )
    assert not equal.report("any", compare)
    output = capsys.readouterr().out
    assert "ended with status 3, not 0\n    why\n" in output


def test_without_horovod_it_fails(capsys):
    """In all of its comparisons, and the others are made."""
    nothing = mock.patch.multiple(
        equal, copy_commit=mock.DEFAULT, copy_working_tree=mock.DEFAULT, write_data=mock.DEFAULT
    )
    with nothing, mock.patch.object(conftest, "HOROVOD", False):
        assert equal.main(["HEAD", "-k", "horovod"]) == 1
    *lines, last, folder = capsys.readouterr().out.splitlines()
    names = "help imagenet_horovod", "help text_horovod", "imagenet_horovod", "text_horovod"
    assert lines == [
        f"FAILED     {name}: Horovod is not built: `make horovod` builds it" for name in names
    ]
    assert re.match(rf"4 comparisons with HEAD in \d+:\d\d: not equal: {names[0]}; ", last)
    shutil.rmtree(folder.removeprefix("The runs are in "))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "the following arguments are required: COMMIT"),
        (["HEAD", "-k", "no such"], "no comparison has 'no such' in its name"),
        (["no-such"], "fatal: "),
        (["HEAD", "--no-such"], "unrecognized arguments: --no-such"),
    ],
)
def test_bad_use_is_one_line(words, why, capsys):
    with pytest.raises(SystemExit) as ended:
        equal.main(words)
    assert ended.value.code == 2
    output, (line,) = (each.splitlines() for each in capsys.readouterr())
    assert output == [] and line.startswith(f"equal.py: error: {why}")


def test_all_scripts_are_compared():
    assert (
        sorted(f"{name}.py" for name in equal.SCRIPTS) == conftest.SCRIPTS + conftest.TEXT_SCRIPTS
    )
    assert {equal.script_of(name) for name in equal.CASES} == {*equal.SCRIPTS}


def test_the_working_tree_as_it_is(tmp_path, monkeypatch):
    """What is changed, new or removed since the commit, in a folder with a space."""
    root = tmp_path / "a clone"
    root.mkdir()
    monkeypatch.setattr(conftest, "ROOT", root)
    made = {
        "imagenet_nd.py": "1",
        "text_nd.py": "1",
        "trainparts/ids.txt": "1",
        "docs/page.md": "1",
    }
    for name, text in made.items():
        conftest.write_file(root / name, text.encode())
    who = "-c user.name=n -c user.email=e".split()
    for words in ["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "m"]:
        equal.git(*words)
    conftest.write_file(root / "imagenet_nd.py", b"2")
    conftest.write_file(root / "trainparts" / "errors.py", b"2")
    (root / "text_nd.py").unlink()
    equal.copy_commit("HEAD", tmp_path / "before")
    equal.copy_working_tree(tmp_path / "after")
    found = []
    for name in "before", "after":
        files = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        found.append({str(path.relative_to(tmp_path / name)): path.read_text() for path in files})
    assert found[0] == made
    changed = {"imagenet_nd.py": "2", "trainparts/ids.txt": "1", "trainparts/errors.py": "2"}
    assert found[1] == changed


def test_code_of_another_tree_cannot_be_read(tmp_path):
    """Also where it was compiled before, as an installed package may be."""
    for name in "own", "other":
        conftest.write_file(tmp_path / name / "trainparts" / "__init__.py", b"")
        conftest.write_file(tmp_path / name / "script.py", b"import trainparts")
    for name, status in ("other", 1), ("own", 0):
        env = conftest.environment(ONLY_FROM=str(tmp_path / "own"))
        words = [sys.executable, tmp_path / name / "script.py"]
        for _ in range(2):
            done = subprocess.run(words, env=env, capture_output=True, text=True)
            assert done.returncode == status, done.stderr
            assert (f" is not in {tmp_path}/own/" in done.stderr) == bool(status)
            subprocess.run(words, env=conftest.environment(), check=True)  # it compiles
