"""What is changed in trainparts/ reaches every process that a test starts: scripts that are copied
alone, ranks, and what planted_faults.py runs, whatever package is installed."""

import sys

import planted_faults
import pytest
from conftest import ROOT, command, copy_script, run

from trainparts import errors

# The model refuses this size when the ranks have met; the line ends with first_line()'s text.
REFUSED = "--no-accel -a vit_b_16 --image-size 33 -b 4 --dummy --steps-per-epoch 1".split()
SAYS = "(Input shape indivisible by patch size!)"
FIRST_LINE = "    return (str(error).strip() or type(error).__name__).splitlines()[0]\n"
FAULT = "    return f\"planted, rank {os.environ.get('RANK')}\"\n"
PRINT = '\nos.write(1, f"imported {first_line(None)}\\n".encode())\n'  # in one piece


def refusal(folder, script, ranks=1):
    """Returns what a script there prints that ends in the line of that error."""
    words = [word.replace(str(ROOT / script), script) for word in command(script, ranks)]
    output = run([*words, *REFUSED], folder, status=None)
    assert "error: rank 0: the model cannot take this size" in output
    return output


def plant(folder):
    """Has the package beside a copied script say another text, and print that it is imported."""
    path = folder / "trainparts" / "errors.py"
    text = path.read_text()
    assert text.count(FIRST_LINE) == 1
    path.write_text(text.replace(FIRST_LINE, FAULT) + PRINT)


def test_first_line():
    assert errors.first_line(ValueError(" a\nb")) == "a"


def test_the_line_of_a_script_copied_alone(tmp_path):
    copy_script("imagenet_nd.py", tmp_path)
    assert SAYS in refusal(tmp_path, "imagenet_nd.py")


def test_a_script_copied_alone_runs_the_package_beside_it(tmp_path):
    copy_script("imagenet_nd.py", tmp_path)
    plant(tmp_path)
    assert "(planted, rank None)" in refusal(tmp_path, "imagenet_nd.py")
    assert SAYS in run([*command("imagenet_nd.py"), *REFUSED], tmp_path, 2)  # by the same server
    (tmp_path / "trainparts" / "__init__.py").write_text("raise SystemExit('this package')")
    words = [sys.executable, "-B", "imagenet_nd.py"]  # in no fork
    assert run(words, tmp_path, 1) == "this package\n"


@pytest.mark.parametrize(
    ("script", "launcher"), [("imagenet_ddp.py", ["None"]), ("imagenet_ddp_apex.py", [])]
)
def test_each_rank_imports_the_package_anew(script, launcher, tmp_path):
    """Also where its launcher is the script, which has imported it."""
    copy_script(script, tmp_path)
    plant(tmp_path)
    output = refusal(tmp_path, script, 2)
    assert "(planted, rank 0)" in output
    imported = [line for line in output.splitlines() if line.startswith("imported ")]
    assert sorted(imported) == [f"imported planted, rank {n}" for n in ("0", "1", *launcher)]


RUNNER = """
import sys
sys.path[0] = "tests"
import forked, planted_faults
forked.PRELOADED = forked.PRELOADED[:4] + forked.PRELOADED[-2:]  # what imagenet_nd.py imports
planted_faults.FAULTS = sys.argv.pop()
sys.argv += ["-n", "1"]
planted_faults.main()
"""


def test_a_fault_that_is_planted_in_the_package_is_seen():
    """By a test in pytest's own process, and by one that copies a script alone."""
    tests = "test_first_line", "test_the_line_of_a_script_copied_alone"
    fault = f"text => {FIRST_LINE.strip()} => return 'planted'"
    faults = "".join(f"tests/test_copies.py -k {test}\n  {fault}\n" for test in tests)
    printed = run([sys.executable, "-c", RUNNER, faults], ROOT)
    for test in tests:
        assert f" test_copies.py::{test}\n" in printed
    assert printed.endswith("\n2 of 2 faults are seen\n")


def test_words_that_name_no_test_are_refused():
    """Of tests that have other names now: the faults under them would not be seen."""
    assert planted_faults.stale("tests/test_parts.py -k 'parts and not (TOLD or batches)'") == [
        "TOLD"
    ]
    assert planted_faults.stale("tests/test_parts.py -m slow") == []


# Stands for what `pip install` and `pip install -e` leave in an environment.
INSTALLED = """
import importlib.util, sys
class Editable:
    def find_spec(name, path, target=None):
        if name == "trainparts":
            return importlib.util.spec_from_file_location(name, "site-packages/trainparts.py")
sys.path.append("site-packages")
sys.meta_path.append(Editable)
import trainparts
"""


@pytest.mark.parametrize("options", [[], ["-B"]], ids=["a fork", "no fork"])
def test_an_installed_package_is_refused(options, tmp_path):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "trainparts.py").touch()
    output = run([sys.executable, *options, "-c", INSTALLED], tmp_path, status=1)
    assert "ModuleNotFoundError: tests find no trainparts/ in [" in output
