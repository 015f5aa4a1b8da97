"""tools/check_script.py: the scripts keep their promises, and forks that break one are told so."""

import importlib
import subprocess
import sys
from types import SimpleNamespace

import conftest
import pytest
from conftest import ROOT, copy_script

SCALED = "scaler.scale(loss / accumulation_steps)"
PAIRS = "state_trees.saved_pairs(run.optimizer, trained_state(run), run.ema, state):"
DRAWN = 'rng = random.Random(f"{args.seed} {epoch} {key}")'
SLICES = "return Place(device, *numbers, data_rank=rank, data_ranks=ranks)"
COUNTED = "return math.ceil(len(data.val.target) / place.data_ranks / at_once)"
VALIDATED = "range(place.data_rank, len(data.val.target), place.data_ranks)"
ORDER = "manual_seed(devices.seed_from(args.seed, epoch))"
GUARD = 'raise RuntimeError(f"validated '


@pytest.fixture
def check(monkeypatch, tmp_path, capsys):
    """check(script, *words): returns (exit status, {promise: how it is broken, or None})."""

    def begin(words, cwd, env, **options):
        own_session = options["start_new_session"]
        return conftest.begin(words, cwd, conftest.with_small(env), own_session=own_session)

    monkeypatch.syspath_prepend(ROOT / "tools")
    tool = importlib.import_module("check_script")
    monkeypatch.setattr(tool, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": begin}))

    def call(script, *words):
        monkeypatch.setattr(sys, "argv", ["check_script.py", *words, str(script)])
        with pytest.raises(SystemExit) as ended:
            tool.main()
        first, *lines = capsys.readouterr().out.splitlines()
        found, alone = {}, [line for line in lines if line.startswith("n/a     two ranks: ")]
        assert len(alone) == first.endswith(("*_nd.py", "*_dp.py")), lines
        for line in lines[: len(lines) - len(alone)]:
            name, _, why = line[8:].partition(": ")
            found[name] = None if line.startswith("kept ") else why
        assert [*found] == ["losses", "data of a step", "validation", "resuming"], lines
        return int(ended.value.code), found

    return call


def fork(folder, name, edits):
    """Writes a script with these edits, {old: new}, into a folder; returns its path."""
    text = (ROOT / name).read_text()
    for old, new in edits.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return copy_script("imagenet_mine.py", folder, text)


QUICK = ("imagenet_ddp.py",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.slow] * (name not in QUICK)
            + [conftest.needs_horovod] * ("horovod" in name),
        )
        for name in (*conftest.SCRIPTS, *conftest.TEXT_SCRIPTS)
    ],
)
def test_the_scripts_keep_all_of_them(name, check):
    status, found = check(ROOT / name)
    assert status == 0 and not any(found.values()), found


@pytest.mark.parametrize(
    ("name", "edits", "broken"),
    [
        pytest.param(
            "imagenet_nd.py",
            {
                SCALED: SCALED.replace("loss", "2 * loss"),  # on one rank and on two
                PAIRS: PAIRS.replace("state):", 'state | {"optimizer": {"state": {}}}):'),
                VALIDATED: VALIDATED.replace("range(", "sorted(n // 2 * 2 for n in range(") + ")",
            },
            # Though the script counts as many images as there are.
            {
                "losses": "step 2 has a loss of ",
                "validation": "top-1 ",
                "resuming": "killed after ",
            },
            id="twice the loss, no momentum, and some images twice",
        ),
        pytest.param(
            "imagenet_nd.py",
            {DRAWN: "rng = random.Random()"},
            {
                "losses": "step 1 has a loss of ",
                "data of a step": "step 1 has a loss of ",
                "resuming": "killed after ",
            },
            id="drawn anew",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "imagenet_ddp.py",
            {SLICES: SLICES.replace("data_rank=rank", "data_rank=0")},
            {
                "losses": "it ended with status 1: ",  # which counts what it validates
                "data of a step": "it ended with status 1: ",
                "validation": "it ended with status 1: ",
                "resuming": "it ended with status 1: ",
            },
            id="one slice",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "imagenet_nd.py",
            {COUNTED: COUNTED.replace("math.ceil", "math.floor")},  # without the last, ragged batch
            {"validation": "top-1 "},
            id="last batch dropped",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "imagenet_nd.py",
            # A resumed run begins with the first order.
            {ORDER: ORDER.replace("epoch)", "epoch - first_epoch)")},
            {"resuming": "killed after 1 epochs and "},
            id="epoch forgotten",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_fork_that_breaks_one_is_told_so(name, edits, broken, check, tmp_path):
    script = fork(tmp_path, name, edits)
    if COUNTED in edits:  # the script would say so itself
        text = script.read_text()
        assert text.count(GUARD) == 1
        script.write_text(text.replace(GUARD, f"errors.print_line({GUARD.partition('(')[2]}"))
    status, found = check(script)
    assert status == 1
    assert {promise for promise, why in found.items() if why} == {*broken}, found
    assert all(found[promise].startswith(line) for promise, line in broken.items()), found


@pytest.mark.slow
def test_a_loss_of_its_own_is_compared_with_itself_alone(check, tmp_path):
    script = fork(tmp_path, "imagenet_nd.py", {SCALED: SCALED.replace("loss", "2 * loss")})
    status, found = check(script, "--own")
    assert status == 0 and not any(found.values()), found


def test_what_starts_the_ranks_of_horovod_may_be_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "tools")
    tool = importlib.import_module("check_script")
    monkeypatch.setattr(tool, "HOROVODRUN", tmp_path / "horovodrun")
    monkeypatch.setattr(sys, "argv", ["check_script.py", str(ROOT / "text_horovod.py")])
    with pytest.raises(SystemExit) as ended:
        tool.main()
    printed, line = capsys.readouterr()
    assert (ended.value.code, printed) == (2, "")
    assert "text_horovod.py needs Horovod, and there is no " in line and line.count("\n") == 1


def test_ranks_in_sessions_of_their_own_are_killed(monkeypatch, tmp_path):
    """As launchers start them; or they would end by a signal, saved."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    tool = importlib.import_module("check_script")
    line = "setsid sh -c 'sleep 1; touch saved' & echo; wait"
    launcher = subprocess.Popen(["sh", "-c", line], cwd=tmp_path, stdout=subprocess.PIPE)
    launcher.stdout.readline()
    tool.kill(launcher)  # returns when nobody has the other end of the pipe
    assert not [*tmp_path.iterdir()]
