"""tools/one_file.py: what it writes trains, to the bit, as the script with trainparts/ does, and
needs no trainparts/; what it cannot rename is refused."""

import ast
import contextlib
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import equal
import pytest
from conftest import (
    ROOT,
    SCRIPTS,
    TEXT_SCRIPTS,
    begin,
    copy_script,
    environment,
    events,
    load,
    locked,
    run,
    the_run,
)

from trainparts import VERSION, package_digest
from trainparts.images import class_names

TOOL = ROOT / "tools" / "one_file.py"
EVERY = [*SCRIPTS, *TEXT_SCRIPTS]
NAMES = {path.stem for path in ROOT.glob("trainparts/**/[!_]*.py")}


def write(path, status=0):
    """Returns what the program prints of a script; or its line, where the status is another."""
    with mock.patch.object(sys, "path", [str(TOOL.parent), *sys.path]):
        program = importlib.import_module("one_file")
    output, line, ended = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", [str(TOOL), str(path)]),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(line),
    ):
        try:
            program.main()
        except SystemExit as end:
            ended = end.code
    text, line = output.buffer.getvalue().decode(), line.getvalue()
    assert ended == status, line
    assert bool(text) != bool(line)
    return line if status else text


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    """A folder with the one files of all scripts, and nothing else: one of all processes of pytest
    writes them."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_TESTRUNUID" in os.environ else base
    with locked(base):
        if not (base / "flat").exists():
            (base / "unfinished").mkdir(exist_ok=True)
            for name in EVERY:
                (base / "unfinished" / name).write_text(write(ROOT / name))
            (base / "unfinished").rename(base / "flat")
    return base / "flat"


def test_make_flat_writes_all_of_them(tmp_path):
    """In a clone, by one program, which here writes nothing but what it was called with."""
    folder = tmp_path / "a clone"
    (folder / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "tools" / "one_file.py").write_text("import sys\nprint(sys.argv[1:])\n")
    for name in EVERY:
        (folder / name).touch()
    run(["make", "flat", f"PYTHON={sys.executable}"], folder)
    written = {path.name: path.read_text() for path in (folder / "flat").iterdir()}
    assert written == {name: f"['{name}']\n" for name in EVERY}


@pytest.mark.parametrize("script", EVERY)
def test_the_sections_are_those_of_the_script(script, flat):
    """But for the names of modules before a name; below them is each module that is used, once."""
    marks = re.compile(r"^# ==== ", re.MULTILINE)
    wanted = marks.split((ROOT / script).read_text().rpartition("\n\n\nif __name__")[0])[1:]
    _, *found = marks.split((flat / script).read_text())
    qualified = re.compile(rf"\b({'|'.join(NAMES)})\.(?=\w)")
    for own, other in zip(wanted, found, strict=False):
        # Comments and docstrings are as they were.
        assert qualified.sub("", own).strip() == qualified.sub("", other).strip()
    titles = [text.splitlines()[0] for text in found[len(wanted) :]]
    assert len({*titles}) == len(titles) > 10
    assert all((ROOT / title).is_file() for title in titles)
    assert titles[0] == "trainparts/errors.py"


@pytest.mark.parametrize("script", EVERY)
def test_the_docstring_says_what_it_was_made_of_and_what_it_needs(script, flat):
    own, other = (
        ast.get_docstring(ast.parse((folder / script).read_text())) for folder in (ROOT, flat)
    )
    made = f"Made of {script} and trainparts {package_digest.IDENTITY} by tools/one_file.py."
    beside = "What is not training is in trainparts/, the folder beside this script: copy the two "
    assert beside in own and beside not in other and made in other
    (packages,) = re.findall("^    pip install (.*)$", other, re.MULTILINE)
    needed = "numpy nvidia-nvimgcodec-cu13>=0.9 pillow psutil tensorboard torch>=2.10"
    needed = [*needed.split(), "torchvision>=0.24", "tqdm"] + ["transformers>=5"] * (
        "text" in script
    )
    assert packages.replace("'", "").split() == needed
    changed = other.replace(made, f"{beside}together.").replace(packages, "...")
    assert changed == re.sub("pip install .*", "pip install ...", own)


def test_no_name_is_unknown_and_no_import_is_left_over(flat):
    """By ruff, which knows nothing of how the files were made. None imports trainparts."""
    words = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", flat]
    assert run(words, flat) == "All checks passed!\n"
    for script in EVERY:
        text = (flat / script).read_text()
        assert not re.search(r"^\s*(from|import) trainparts", text, re.MULTILINE)
        assert "PYTHONSAFEPATH" not in text  # the line of a script without the package


def test_version_digest_and_data_are_constants(flat):
    for script in EVERY:
        text = (flat / script).read_text()
        assert f"\nIDENTITY = {package_digest.IDENTITY!r}\n" in text
        if "text" not in script:
            (ids,) = re.findall(
                r'^IMAGENET = """(.*?)"""\.split\(\)$', text, re.MULTILINE | re.DOTALL
            )
            assert ids.split() == class_names.IMAGENET
            assert re.findall(r"^n\d{8}$", text, re.MULTILINE) == class_names.IMAGENET, "for grep"
            assert text.count(ids) == 1
    assert package_digest.IDENTITY.startswith(f"{VERSION}+")


# ------------------------------------------------------------------------------ it trains the same


class Forks(equal.Comparer):
    """Runs commands in forks."""

    def begin(self, words, folder, env):
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            errors = Path(file.name)
        process = begin(words, folder, env, errors=errors, own_session=True)
        communicate = process.communicate
        process.communicate = lambda **options: (communicate(**options)[0], errors.read_text())
        process.wait = lambda: process.process.join()
        return process


@pytest.fixture
def comparer(tmp_path):
    """Compares scripts with their one files, each of which is alone in its folder."""
    trees = equal.Tree("script", tmp_path / "script"), equal.Tree("one file", tmp_path / "alone")
    found = Forks(*trees, tmp_path)
    yield found
    found.close()


def differences(comparer, case, *interrupted):
    """Returns how a script and its one file, each alone, differ in what they train, print and save;
    or runs that one began and the other resumed, from one that was not interrupted."""
    script, whole = f"{equal.script_of(case)}.py", comparer.trees[1].root
    comparer.trees[0].root.mkdir(exist_ok=True)
    whole.mkdir(exist_ok=True)
    (whole / script).write_text(write(copy_script(script, comparer.trees[0].root)))
    assert [path.name for path in whole.iterdir()] == [script]
    compare = comparer.resumed if interrupted else comparer.case
    kinds, size = compare(case, *interrupted)
    steps = 2 * equal.CASES[case].steps
    assert f"{steps} steps" in size and "tensors" in size
    return [each for kind in kinds for each in kind]


def test_the_cards_command_trains_the_same(comparer, monkeypatch):
    """On two ranks, by torch.distributed.launch, where importing trainparts raises. A run that one
    of the two began is resumed by the other."""
    name = "imagenet_ddp_apex O2"
    options = equal.CASES[name].options.replace("--steps-per-epoch 6", "--steps-per-epoch 3")
    case = equal.Case(options.replace("-j 1", "-j 0"), steps=3)
    monkeypatch.setitem(equal.CASES, name, case)
    equal.write_data(comparer.folder / "data")
    assert differences(comparer, name) == []
    assert differences(comparer, name, "SIGKILL", 4) == []


def test_what_is_compared_differs_where_a_fault_is_planted(comparer):
    equal.write_data(comparer.folder / "data")
    differences(comparer, "text_nd")
    path = comparer.trees[1].root / "text_nd.py"
    text = path.read_text()
    assert text.count("yield tensor, saved.get(path)") == 1  # of trainparts/runs/state_trees.py
    path.write_text(text.replace("yield tensor, saved.get(path)", "yield tensor, 0 * saved[path]"))
    comparer.uninterrupted.clear()
    shutil.rmtree(comparer.folder / "runs")
    kinds, _ = comparer.resumed("text_nd", "SIGTERM", 21)
    assert any("state_dict" in each for kind in kinds for each in kind)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_scripts_train_the_same(capsys):
    """All comparisons of tests/equal.py: each script, recipes, weights, -e, signals."""
    assert equal.main(["flat"]) == 0
    assert "48 comparisons with flat" in capsys.readouterr().out


def test_importing_trainparts_raises_where_one_file_is_tested(flat, tmp_path):
    (tmp_path / "alone.py").write_text("import trainparts\n")
    env = {"ONLY_FROM": str(tmp_path)}
    words = [sys.executable, "-c", "import runpy; runpy.run_path('alone.py')"]
    assert "tests find no trainparts/ in [" in run(words, tmp_path, status=1, env=env)


def test_the_log_has_the_one_file_and_whose_parts_it_has(flat, tmp_path):
    shutil.copy(flat / "text_nd.py", tmp_path)
    words = "--no-accel -b 4 --max-length 32 --epochs 1 --steps-per-epoch 1 --output-dir run"
    run([sys.executable, "text_nd.py", *words.split()], tmp_path)
    log = events(the_run(tmp_path / "run"))
    (logged,) = log.Tensors("script/text_summary")
    text = (tmp_path / "text_nd.py").read_text()
    assert logged.tensor_proto.string_val[0].decode() == f"```python\n{text}\n```"
    assert load(tmp_path / "run" / "checkpoint.pt")["trainparts"] == package_digest.IDENTITY


# ---------------------------------------------------------------------- what is renamed, or refused


LAUNCH = 'if __name__ == "__main__":'
SHORT = '''"""A script of a user's own."""

from trainparts import errors, option_types


def main():
    print(option_types.number_between(int, 1, 3)("2"), errors.first_line(errors.Fault()))
    print(errors.GONE)


if __name__ == "__main__":
    main()
'''
PRINTED = "2 Fault\nanother rank is gone\n"
# What a user may add to a script: code, what it prints, what must stand in the one file.
DEFINED = {
    "an f-string": (
        "print(f'{errors.first_line(OSError(3))} {errors.GONE:>30}')",
        "3           another rank is gone",
        "{first_line(OSError(3))} {GONE:>30}",
    ),
    "f-strings in f-strings": (
        "print(f'a{f\"b{errors.LIMIT:.5}\"}' f'{errors.GONE:{len(errors.SMALL) - 30}}.' 'c')",
        "abraiseanother rank is gone.c",
        "{LIMIT:.5}",
    ),
    "attributes": (
        "class Own(errors.Fault):\n    errors = devices = 3\n\n    def tell(self):\n"
        "        return errors.first_line(self)\nprint(Own('why').tell(), Own.errors)",
        None,
        "errors is a module, and a local here",
    ),
    "attributes that are not read": (
        "class Own:\n    errors = 3\nprint(Own.errors)",
        "3",
        "    errors = 3",
    ),
    "other letters": (
        "é = errors.first_line(KeyError('ü'))\nprint('é', é)",
        "é 'ü'",
        "é = first_line(",
    ),
    "what is called at once": (
        "def inner():\n    return errors.Fault.status\n\n\ndef outer():\n    return inner()\n\n\n"
        "STATUS = outer()\nLATER = (lambda: print(STATUS))()",
        "1",
        "return Fault.status",
    ),
    "a variable that modules may read": (
        "import os\nos.environ['OWN'] = '1'\nprint(os.environ['OWN'])",
        "1",
        "os.environ['OWN'] = '1'",
    ),
    "another import": (
        "import re as regular\nprint(regular.sub('a', 'b', 'a'))",
        "b",
        "regular.sub(",
    ),
    "what is imported if it is there": (
        "try:\n    import gone_for_good\nexcept ImportError:\n    gone_for_good = None\n"
        "print(gone_for_good)",
        "None",
        "gone_for_good = None",
    ),
    "a pattern of a class": (
        "def tell(it):\n    match it:\n        case errors.Fault():\n            return 'fault'\n"
        "print(tell(errors.Fault()))",
        "fault",
        "case Fault():",
    ),
    "a local elsewhere": (
        "def number():\n    first_line = 3\n    return first_line\n".replace("number", "own")
        + "print(own(), errors.first_line(KeyError()))",
        "3 KeyError",
        "first_line = 3",
    ),
    "several lines": ("print(errors\n      .GONE)", None, "GONE is not written in one piece"),
}


@pytest.mark.parametrize("case", DEFINED)
def test_names_of_a_users_own(case, tmp_path):
    """The script and its one file do the same, or a line says why there is none."""
    code, printed, stands = DEFINED[case]
    path = copy_script(
        "mine.py", tmp_path, SHORT.replace("\n\ndef main", f"\n{code}\n\n\ndef main")
    )
    alone = tmp_path / "alone" / "mine.py"
    alone.parent.mkdir()
    if printed is None:
        assert stands in write(path, status=2)
        return
    alone.write_text(write(path))
    assert stands in alone.read_text()
    for each in path, alone:
        assert run([sys.executable, each], tmp_path) == f"{printed}\n{PRINTED}"


REFUSED = {  # what a user may add to a script: what the line says
    "VERSION = 'mine'": "PARTS and VERSION are those of the package",
    "def tell():\n    return PARTS": "PARTS and VERSION are those of the package",
    "print(vars(errors))": "errors is used as a value, or changed",
    "errors.first_line = repr": "errors is used as a value, or changed",
    "errors = 3": "errors is imported, and another thing here",
    "import time\nprint()\ntime = time.time": "time is imported, and another thing here",
    "import os\ndel os": "os is imported, and another thing here",
    "def tell(errors):\n    return errors.GONE": "errors is a module, and a local here",
    "def tell():\n    from trainparts import errors": "is imported within something",
    "import trainparts.errors": "trainparts is imported as a whole",
    "from . import errors": "a relative import, or one of all names",
    "from json import *": "a relative import, or one of all names",
    "print(3)\nimport queue": "an import stands below other code",
    "import queue; print(3)": "two statements are on one line",
    "errors.gone()": "errors.py does not define gone",
    "errors.os.getcwd()": "errors.py does not define os",
    "from trainparts import gone": "gone.py is no file",
    "import json as re": "imports as re another thing than other files",
    # One name, two things.
    "def number_between():\n    pass": "option_types.py defines number_between, which ",
    "class Fault:\n    pass": "errors.py defines Fault, which ",
    "for GONE in ():\n    pass": "errors.py defines GONE, which ",
    "LIST = [GONE := x for x in 'ab']": "errors.py defines GONE, which ",
    "def tell():\n    global GONE\n    GONE = 3": "errors.py defines GONE, which ",
    "def contextlib():\n    pass": "defines contextlib, which trainparts has",
    "def isinstance():\n    pass": "defines isinstance, which ",
    "def tell(first_line=errors.first_line):\n    pass": "first_line is another thing here than",
    "def tell():\n    first_line = errors.first_line": "first_line is another thing here than",
    "LIST = [GONE for GONE in errors.GONE]": "errors.py defines GONE, which ",
    "LAST = lambda GONE: errors.GONE": "errors.py defines GONE, which ",
    "class Own:\n    GONE = 3\n    other = errors.GONE": "GONE is another thing here than",
    "class Own:\n    def GONE(self): pass\n    other = errors.GONE": "GONE is another thing here",
    "def tell(x):\n    try: pass\n    except OSError as GONE: errors.GONE": "GONE is another thing",
    "def tell(x):\n    match x:\n        case errors.GONE: pass": "GONE is another thing here than",
    "def tell(x):\n    match x:\n        case {errors.GONE: 3}: pass": "GONE is another thing here",
    # What is text.
    "print(f'{errors.GONE} of errors.GONE')": "has errors.GONE in its text, too",
    "print(f'{errors.GONE=}')": "has errors.GONE in its text, too",
    "print(__import__('trainparts.errors'))": "the string 'trainparts.errors' names a module",
    "print(eval('errors.GONE'))": "the string 'errors.GONE' names a module",
    "def tell(x: int):\n    pass": "annotations without `from __future__ import annotations`",
    "x = (": "is no Python",
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_would_be_another_thing_is_refused(code, tmp_path):
    says = REFUSED[code]
    text = SHORT.replace("\n\n\ndef main", f"\n{code}\n\n\ndef main")
    line = write(copy_script("mine.py", tmp_path, text), status=2)
    assert line.startswith("one_file.py: error: ") and says in line and line.count("\n") == 1


PART = [  # a module, a text there, another, what the line says
    ("errors", "class Fault(", "HERE = __file__\n\n\nclass Fault(", "__file__ would be the script"),
    ("errors", "class Fault(", "HERE = __name__\n\n\nclass Fault(", "__name__ would be the script"),
    (
        "errors",
        "import re\n",
        "import re\nfrom trainparts import devices\n",
        "which imports it",
    ),
    (
        "option_types",
        "def number_between(",
        "GONE = 3\n\n\ndef number_between(",
        "defines GONE, which ",
    ),
    ("__init__", 'VERSION = "0.9', 'VERSION = "0.90', "needs trainparts 0.9, and "),
    (
        "__init__",
        'VERSION = "0.9.0"',
        'VERSION = "0.9.0"\nprint(3)',
        "more than a docstring, or no",
    ),
    ("__init__", 'VERSION = "0.9.0"', "", "more than a docstring, or no VERSION"),
    ("runs/__init__", '"""\n', '"""\n\nONE = 1\n', "more than a docstring, or no VERSION"),
]


@pytest.mark.parametrize(("module", "old", "new", "says"), PART)
def test_the_package_beside_the_script_is_used(module, old, new, says, tmp_path):
    path = copy_script("text_nd.py", tmp_path)
    part = tmp_path / "trainparts" / f"{module}.py"
    before = part.read_text()
    assert old in before
    part.write_text(before[::-1].replace(old[::-1], new[::-1], 1)[::-1])
    assert says in write(path, status=2)
    part.write_text(before + "\n# of a fork\n")
    assert package_digest.IDENTITY not in write(path)


def test_a_guard_with_more_in_it(tmp_path):
    text = (ROOT / "text_nd.py").read_text()
    for old, new in (
        (
            "    from trainparts import VERSION\n",
            "    from trainparts import VERSION\n    print(3)\n",
        ),
        ('    VERSION = "none"\n', '    VERSION = "none"\nelse:\n    print(3)\n'),
    ):
        assert text.count(old) == 1
        line = write(copy_script("mine.py", tmp_path, text.replace(old, new)), status=2)
        assert "PARTS and VERSION are those of the package" in line
    path = copy_script("mine.py", tmp_path, text.replace('PARTS = "0.9"', "PARTS = '0.1'"))
    assert "needs trainparts 0.1, and " in write(path, status=2)


def test_make_flat_ends_with_what_fails(tmp_path):
    """Without text's scripts, and with a script that is refused: what was there stays."""
    for name in "Makefile", "pyproject.toml":
        shutil.copy(ROOT / name, tmp_path)
    for name in "trainparts", "tools":
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "imagenet_my copy.py").write_text(SHORT)
    (tmp_path / "imagenet_nd.py").write_text(SHORT)
    words = ["make", "flat", f"PYTHON={sys.executable}"]
    run(words, tmp_path)
    made = (tmp_path / "flat" / "imagenet_my copy.py").read_text()
    assert "imagenet_my copy.py" in made
    (tmp_path / "imagenet_my copy.py").write_text(f"{SHORT}\nprint(errors)\n")
    assert "errors is used as a value" in run(words, tmp_path, status=2)
    assert (tmp_path / "flat" / "imagenet_my copy.py").read_text() == made


def test_it_is_written_in_utf_8(tmp_path):
    path = copy_script("mine.py", tmp_path, SHORT.replace("own.", "own: é."))
    options = {"capture_output": True, "env": environment(PYTHONIOENCODING="latin-1")}
    done = subprocess.run([sys.executable, TOOL, path], **options)
    assert "own: é." in done.stdout.decode()
    path.write_bytes(b"# -*- coding: latin-1 -*-\n" + path.read_bytes())
    assert "is no Python in UTF-8: it says iso-8859-1" in write(path, status=2)


def test_what_stands_above_the_docstring_stays(tmp_path):
    path = copy_script("mine.py", tmp_path, f"#!/usr/bin/env python3\n# Mine.\n{SHORT}")
    assert write(path).startswith('#!/usr/bin/env python3\n# Mine.\n"""A script of')


@pytest.mark.parametrize(
    "docstring", ['r"""Of \\d and \\\\."""', '\'Of """ and "\'', '"""Of é,\n\nand more."""', ""]
)
def test_a_docstring_of_a_users_own(docstring, tmp_path):
    _, _, code = SHORT.partition("\n")
    path = copy_script("mine.py", tmp_path, f"{docstring}{code}\n\nprint(__doc__)\n")
    (tmp_path / "alone").mkdir()
    alone = tmp_path / "alone" / "mine.py"
    alone.write_text(write(path))
    made = f"Made of mine.py and trainparts {package_digest.IDENTITY} by tools/one_file.py."
    own, other = (run([sys.executable, each], tmp_path) for each in (path, alone))
    assert made in other
    assert own.removesuffix("None\n").split() == other.replace(made, "").split()


def test_what_a_script_sets_below_its_imports_is_no_matter_for_modules(tmp_path):
    code = "import os\n\nos.environ['OWN'] = '1'\n\n\ndef main"
    text = SHORT.replace("\n\ndef main", code).replace("errors.GONE", "errors.FOUND")
    path = copy_script("mine.py", tmp_path, text)
    with open(tmp_path / "trainparts" / "errors.py", "a") as file:
        file.write("\n\nFOUND = os.environ.get('OWN')\n")
    (tmp_path / "alone").mkdir()
    alone = tmp_path / "alone" / "mine.py"
    alone.write_text(write(path))
    for each in path, alone:
        assert run([sys.executable, each], tmp_path) == "2 Fault\nNone\n"


def test_what_has_nothing_of_the_package(tmp_path):
    path = copy_script("mine.py", tmp_path, "import json\n")
    assert write(path).endswith(" import annotations\n\nimport json\n")


def test_one_file_of_one_file(flat):
    assert "text_nd.py is one file already" in write(flat / "text_nd.py", status=2)


def test_a_file_that_is_not_there(tmp_path):
    assert "No such file" in write(tmp_path / "gone.py", status=2)
    assert "Is a directory" in write(tmp_path, status=2)
