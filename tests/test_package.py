"""trainparts as a package: what its wheel holds, what a script says without it, and that no text
says to install it by its name."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import (
    BIN,
    ROOT,
    SCRIPTS,
    SMALL,
    TEXT_SCRIPTS,
    copy_script,
    environment,
    events,
    free_port,
    load,
    record,
    run,
    start,
    write_file,
)

from tools import sync_copies
from trainparts import VERSION, package_digest
from trainparts.runs import event_log

NAME = "trainparts"
PROJECT = (ROOT / "pyproject.toml").read_text()


def tracked(*patterns):
    """Returns the paths that git tracks, relative to the repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    words = ["git", "ls-files", "-z", "--", *patterns]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if (ROOT / name).is_file()]


# --------------------------------------------------------------------------------------- the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The folder of an unpacked wheel. It is built from a copy, because setuptools leaves build/
    beside its sources, and puts what is in there into later wheels; and by the setuptools of this
    environment, because pip would download another for each build."""
    folder = tmp_path_factory.mktemp("a wheel")
    for name in "pyproject.toml", "LICENSE":
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / NAME, folder / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-build-isolation"]
    run([*words, "--no-deps", "-w", folder / "wheels", folder], folder, env={"PYTHONPATH": ""})
    (path,) = folder.glob("wheels/*.whl")
    with zipfile.ZipFile(path) as content:
        content.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_the_wheel_has_what_git_tracks(wheel):
    found = {str(path.relative_to(wheel)) for path in wheel.rglob("*") if path.is_file()}
    version = re.search(r'^version = "(.*)"$', PROJECT, re.MULTILINE)[1]
    assert version == VERSION, "pyproject.toml has it, too: an image is built before it has modules"
    metadata = {name for name in found if name.startswith(f"{NAME}-{version}.dist-info/")}
    assert metadata
    assert found - metadata == {*tracked(NAME)}, "a new file needs `git add`"


def test_importing_the_package_imports_nothing():
    for path in (ROOT / NAME).rglob("__init__.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        assert not any(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes), path


# ------------------------------------------------------------------------------ a script without it

# This stands in each script that imports the package, before all imports but the standard
# library's.
GUARD = """
try:
    PARTS = "0.9"  # the version of trainparts/ that this script is written for
    from trainparts import VERSION
except ImportError:  # there is none, or an empty folder
    VERSION = "none"
if VERSION.rpartition(".")[0] != PARTS:
    if os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(5)  # rank 0 prints the same, and the launcher ends this process meanwhile
    print(
        f"{Path(__file__).name}: error: needs trainparts/ of version {PARTS}, which stood beside "
        f"it, and finds {VERSION}: copy that folder, too (unless PYTHONSAFEPATH is set), or "
        "pip install PATH_OF_THE_CLONE",
        file=sys.stderr,
    )
    sys.exit(2)
"""
LINE = (
    "{}: error: needs trainparts/ of version 0.9, which stood beside it, and finds none: copy that "
    "folder, too (unless PYTHONSAFEPATH is set), or pip install PATH_OF_THE_CLONE\n"
)
STAND_IN = f"""
import os
import sys
import time
from pathlib import Path
{GUARD}
from trainparts import runs

print("found", runs.__file__)
"""
# On PYTHONPATH, hides every trainparts that is not beside the script, such as this environment's.
SITECUSTOMIZE = """
import os
import sys


class Beside:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        spec = self.finder.find_spec(name, path, target)
        if name == "trainparts" and spec:
            if os.environ["BESIDE"] not in map(os.path.dirname, spec.submodule_search_locations):
                return None
        return spec


sys.meta_path[:] = map(Beside, sys.meta_path)
"""
IMPORT = re.compile(r"^ *(?:from|import) trainparts\b", re.MULTILINE)
TEXTS = {name: (ROOT / name).read_text() for name in (*SCRIPTS, *TEXT_SCRIPTS)}
USERS = [name for name, text in TEXTS.items() if IMPORT.search(text)]
ALONE = ["imagenet_stand_in.py", *USERS]  # the first is STAND_IN


def end_alone(script, folder, launcher=(), **env):
    """Copies a script into an empty folder, unless it is there, and runs it, where no trainparts is
    found but one beside it; returns what subprocess.run() does."""
    (folder / script).write_text(TEXTS.get(script, STAND_IN))
    (folder / "hidden").mkdir(exist_ok=True)
    (folder / "hidden" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    env = {"PYTHONPATH": str(folder / "hidden"), "BESIDE": str(folder), **env}
    words = [*(launcher or [sys.executable]), str(folder / script)]
    options = {"capture_output": True, "text": True, "timeout": 300}
    return subprocess.run(words, cwd="/", env=environment(**env), **options)


def test_scripts_look_for_the_package_before_they_import_others():
    assert len(USERS) in (0, len(TEXTS)), "all import it, or none yet"
    for script in USERS:
        head, guard, _ = TEXTS[script].partition(GUARD)
        assert guard and not IMPORT.search(head), script
        imported = re.findall(r"^(?:import|from) (\w+)", head, re.MULTILINE)
        assert {*imported} <= sys.stdlib_module_names, script


@pytest.mark.parametrize("script", ALONE)
def test_a_script_alone_says_in_a_line_what_it_needs(script, tmp_path):
    (tmp_path / "alone").mkdir()
    done = end_alone(script, tmp_path / "alone")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", LINE.format(script))
    # An empty folder is left where git has removed the files of one that had compiled code.
    (tmp_path / "left" / NAME / "__pycache__").mkdir(parents=True)
    done = end_alone(script, tmp_path / "left")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", LINE.format(script))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")
@pytest.mark.parametrize("script", ALONE)
def test_under_pythonsafepath_a_script_does_not_find_what_is_beside_it(script, tmp_path):
    shutil.copytree(ROOT / NAME, tmp_path / NAME)
    done = end_alone(script, tmp_path, PYTHONSAFEPATH="1")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", LINE.format(script))


def test_a_script_finds_the_package_beside_it(tmp_path):
    shutil.copytree(ROOT / NAME, tmp_path / NAME)
    done = end_alone(ALONE[0], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"found {tmp_path / NAME / 'runs' / '__init__.py'}\n"


@pytest.mark.parametrize(
    ("version", "fits"), [("0.1.9", 0), ("0.90.0", 0), ("1.2.0", 0), ("0.9", 0), ("0.9.17", 1)]
)
def test_a_script_needs_the_first_two_numbers_of_its_version(version, fits, tmp_path):
    """Before it imports a module, which another version may lack."""
    (tmp_path / NAME / "runs").mkdir(parents=True)
    (tmp_path / NAME / "__init__.py").write_text(f"VERSION = {version!r}\n")
    (tmp_path / NAME / "runs" / "__init__.py").touch()
    done = end_alone(ALONE[0], tmp_path)
    line = "" if fits else LINE.format(ALONE[0]).replace("finds none", f"finds {version}")
    assert (done.returncode, done.stderr) == (0 if fits else 2, line)


@pytest.mark.parametrize(
    "launcher", [[str(BIN / "torchrun")], [sys.executable, "-m", "torch.distributed.launch"]]
)
def test_two_ranks_print_one_line(launcher, tmp_path):
    words = [*launcher, f"--master_port={free_port()}", "--nproc_per_node=2"]
    done = end_alone(ALONE[0], tmp_path, words)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count(LINE.format(ALONE[0])) == 1, done.stderr
    assert done.stderr.count("needs trainparts/") == 1 and not done.stdout


def test_a_rank_whose_launcher_does_not_end_it_prints_the_line_too(tmp_path):
    """Such as one on another node than rank 0's, which may have the folder."""
    done = end_alone(ALONE[0], tmp_path, LOCAL_RANK="1")
    assert (done.returncode, done.stderr) == (2, LINE.format(ALONE[0]))


# ------------------------------------------------------------------------------ how it is installed

# Nobody has registered the name on an index. Whoever does would run code wherever it is typed.
TOOL, VERB = r"\b(?:pip[\d.]*|pipx|uv|poetry|conda|mamba)", "(?:install|download|wheel|add)"
COMMAND = re.compile(rf"{TOOL}\b[^`;&|]*?\b{VERB}\b([^`;&|]*)")
BARE = re.compile(rf"(?<![\w./-]){NAME}(?![\w/-])(?!\.\w)", re.IGNORECASE)
NEXT = re.compile(rf"{TOOL} (?:-\S+ )*{VERB} (?:-\S+ )*{NAME}(?![\w/-])", re.IGNORECASE)


def by_name(text):
    """Returns the commands in a text that would install the package from an index: a line, with the
    lines that it continues on; or words that follow each other, also in a list of strings."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    found = [each[0] for line in lines for each in COMMAND.finditer(line) if BARE.search(each[1])]
    return found + NEXT.findall(re.sub(r"[\s\"'`,\\#\[\]]+", " ", text))


@pytest.mark.parametrize(
    "planted",
    [
        "pip install NAME",
        "Type `pip install NAME`.",
        "needs NAME/: pip install -U NAME",
        'pip  install "NAME[text]"',
        "python -m pip install -q 'NAME>=0.3'",
        "pip3.12 install --target FOLDER NAME==0.3.0",
        "RUN pip install --no-cache-dir \\\n    torch \\\n    NAME",
        "or `pip\n    install NAME`",
        "# or pip install\n# NAME",
        '["python", "-m", "pip", "install", "NAME"]',
        "pip wheel NAME -w wheels",
        "pip install torch NAME",
        "uv add NAME",
        "uv pip install NAME[results]",
        f"pip install {NAME.upper()}.",
    ],
)
def test_a_text_that_installs_the_package_by_its_name_is_found(planted):
    assert by_name(f"Some text.\n{planted.replace('NAME', NAME)}\nMore.")


@pytest.mark.parametrize(
    "right",
    [
        "pip install .",
        "needs NAME/: copy that folder, too, or pip install PATH_OF_THE_CLONE",
        "`pip install .` installs NAME with what it needs.",
        "pip install .\nimport NAME",
        "pip install --no-index wheels/NAME-0.3.0-py3-none-any.whl",
        "pip install -e ../NAME",
        "pip uninstall NAME",
        "A module of NAME needs timm: pip install timm",
    ],
)
def test_a_text_that_installs_a_path_is_right(right):
    assert by_name(f"Some text.\n{right.replace('NAME', NAME)}\nMore.") == []


def test_no_text_installs_the_package_by_its_name():
    found, read = {}, 0
    for name in tracked():
        content = (ROOT / name).read_bytes()
        if b"\0" not in content:
            found[name] = by_name(content.decode(errors="replace"))
            read += NAME.encode() in content
    assert {name: commands for name, commands in found.items() if commands} == {}
    assert read > 5 and "README.md" in found


def test_extras_that_are_installed_exist():
    """pip only warns of others."""
    part = PROJECT.partition("\n[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = {*re.findall(r"^([a-z0-9]+) = \[", part, re.MULTILINE)}
    named = set()
    for name in tracked("*.md", "*.py", "*.sh", "Makefile", "Dockerfile", "pyproject.toml"):
        text = (ROOT / name).read_text()
        for found in re.findall(rf"[\"'](?:\.|{NAME})\[([a-z0-9,]+)\]", text):
            named |= {*found.split(",")}
    for word in re.findall(r"\.venv/installed-(\w+)", (ROOT / "Makefile").read_text()):
        named |= {word} - {"horovod"}
    assert named == extras


# ------------------------------------------------------------------ programs of this checkout


@pytest.mark.parametrize("folder", ["tools", "benchmarks"])
def test_programs_use_the_package_of_their_checkout(folder, tmp_path):
    """From any folder, where none is installed or another one is, without a line of their own for
    it: one helper of each folder has it."""
    helper = {"tools": "commandline", "benchmarks": "common"}[folder]
    uses = re.compile(r"^ *(?:import|from) (?:trainparts|imagenet_nd|text_nd)\b", re.MULTILINE)
    texts = {path.name: path.read_text() for path in (ROOT / folder).glob("*.py")}
    users = [name for name in texts if uses.search(texts[name]) and name != f"{helper}.py"]
    assert len(users) > 4
    for name in users:
        asks = re.search(rf"^(?:import|from) {helper}\b", texts[name], re.MULTILINE)
        assert asks.start() < uses.search(texts[name]).start(), name
        others = re.findall(r"sys\.path.*", texts[name])
        assert not any(re.search("__file__|ROOT", line) for line in others), name
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "__init__.py").write_text("raise SystemExit('another package')")
    program = ROOT / folder / {"tools": "make_shards.py", "benchmarks": "overhead.py"}[folder]
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{SMALL}"}
    run([sys.executable, program, "--help"], tmp_path, env=env)
    end = run([sys.executable, "-c", f"import {NAME}"], tmp_path, status=1, env=env)
    assert end == "another package\n"


# ------------------------------------------------------------------------------------- its rules


def test_sync_copies_checks_the_package():
    """Its rules are planted in test_sync_copies.py; here it must have read each module."""
    modules = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in ROOT.glob("trainparts/**/[!_]*.py")
    }
    assert len(modules) > 20
    wrong = {path: text + "\n# backward()\n" for path, text in modules.items()}
    complaints = sync_copies.check_package(wrong, TEXTS)
    assert len(complaints) == len(modules)
    for path, complaint in zip(modules, complaints, strict=True):
        assert complaint.startswith(path) and "names backward(" in complaint


def functions_of(text):
    """Yields (name, function) of a module's public functions, and of its classes' methods. Those of
    a Protocol describe another library's."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
            yield node.name, node
        elif isinstance(node, ast.ClassDef) and "Protocol" not in map(ast.unparse, node.bases):
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name != "__torch_function__":
                    yield f"{node.name}.{each.name}", each


def takes_objects(text):
    """Returns what a module's functions take that is no value: something of a script's, which they
    would pick from, or something of which the type says nothing."""
    wrong, forbidden = [], r"\b(Namespace|Any|Run|Data|Place)\b|^object( \||$)"
    for name, function in functions_of(text):
        given = function.args
        for each in [*given.posonlyargs, *given.args, *given.kwonlyargs]:
            kind = ast.unparse(each.annotation) if each.annotation else "Any"
            if each.arg != "self" and (
                each.arg in ("args", "run", "data", "place") or re.search(forbidden, kind)
            ):
                wrong.append(f"{name}({each.arg}: {kind})")
    return wrong


def test_the_package_takes_values():
    wrong = {path.name: takes_objects(path.read_text()) for path in ROOT.glob("trainparts/**/*.py")}
    # Of event_log.describe(), `place` is {name: value}, which the log has under this name.
    assert wrong.pop("event_log.py") == ["describe(place: Mapping[str, object])"]
    assert {name: each for name, each in wrong.items() if each} == {}


@pytest.mark.parametrize(
    "planted",
    [
        "def f(args: dict): ...",
        "def f(options: argparse.Namespace): ...",
        "def f(*, options: Any): ...",
        "def f(options): ...",
        "def f(run: int): ...",
        "def f(found: object): ...",
        "def f(found: object | None): ...",
        "def f(here: Place): ...",
        "class C:\n    def f(self, data): ...",
    ],
)
def test_what_is_no_value_is_found(planted):
    assert takes_objects(planted)


def test_functions_of_the_contracts_are_annotated():
    names, seen = sync_copies.STEP | sync_copies.LAUNCH | sync_copies.TASK, set()
    for script in SCRIPTS + TEXT_SCRIPTS:
        for name, function in functions_of(Path(ROOT, script).read_text()):
            if name in names:
                seen.add((script, name))
                kinds = [each.annotation for each in function.args.args]
                assert None not in [*kinds, function.returns], (script, name)
    functions = [name for name, parameters in names.items() if parameters is not None]
    assert len(seen) == len(functions) * len(SCRIPTS + TEXT_SCRIPTS)


PLANTED_TYPES = [
    (
        "imagenet_nd.py",
        "arm_timeout(args.timeout, compiles=args.compile)",
        "arm_timeout()",
        "missing-arg",
    ),
    ("imagenet_nd.py", "devices.pick_device(args.gpu", 'devices.pick_device("0"', "bad-arg"),
    ("imagenet_nd.py", "errors.report_error(", "errors.report(", "missing-attribute"),
    ("trainparts/endings.py", "seconds: float", "seconds: Any", "unknown-name"),
    ("trainparts/endings.py", "signum: int) ->", "signum) ->", "implicit-any-parameter"),
    ("trainparts/errors.py", "-> str | None", "-> str", "bad-return"),
    ("trainparts/text/tokenizing.py", "words(text: str)", "words(text)", "implicit-any-param"),
]


def test_wrong_types_are_found(tmp_path):
    """By `make test`, with the options in pyproject.toml."""
    shutil.copytree(ROOT / NAME, tmp_path / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    for name in "pyproject.toml", "imagenet_nd.py":
        shutil.copy(ROOT / name, tmp_path)
    for path, text, planted, _ in PLANTED_TYPES:
        before, _, after = (tmp_path / path).read_text().partition(text)
        assert after, (path, text)
        (tmp_path / path).write_text(before + planted + after)
    words = [BIN / "pyrefly", "check", "--python-interpreter-path", sys.executable]
    output = run([*words, "--output-format", "min-text"], tmp_path, status=None)
    found = re.findall(r"(?m)^ERROR (\S+?):.*\[([\w-]+)\]$", output)
    assert len(found) == len(PLANTED_TYPES), output
    for (path, kind), planted in zip(
        sorted(found), sorted(PLANTED_TYPES, key=lambda each: (each[0], each[3])), strict=True
    ):
        assert path == planted[0] and kind.startswith(planted[3])


# What an import must not change, in a process that has imported what is not of the package.
UNCHANGED = """
import gc, importlib, os, signal, sys, threading
import numpy, PIL.Image, psutil, tensorboard.backend.event_processing.event_accumulator, torch
import torch.distributed, torch.utils.tensorboard, torchvision.datasets, tqdm

def state():
    return {
        "handlers": {each: signal.getsignal(each) for each in signal.valid_signals()},
        "descriptors": {name: os.path.realpath(f"/proc/self/fd/{name}") for name in range(64)},
        "environment": dict(os.environ),
        "threads": (torch.get_num_threads(), threading.active_count()),
        "streams": (sys.stdout, sys.stderr),
        "folder": os.getcwd(),
        "seed": torch.initial_seed(),
        "elsewhere": {
            module.__file__ for name, module in sys.modules.items()
            if name.partition(".")[0] == "trainparts" and not module.__file__.startswith(folder)
        },
    }

folder, *names = sys.argv[1:]
sys.path.insert(0, folder)
gc.freeze()  # or each fork would copy the memory of what is imported here
for name in names:
    child = os.fork()  # in which this module is the first of the package
    if child == 0:
        try:
            before = state()
            importlib.import_module(name)
            after = state()
            print(name, [each for each in before if before[each] != after[each]], flush=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""


def imported(folder, where):
    """Returns {module: what importing it has changed} of the package in a folder."""
    names = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py")]
    names = sorted(".".join(name.parts).removesuffix(".__init__") for name in names)
    output = run([sys.executable, "-c", UNCHANGED, folder, *names], where)
    return dict(line.split(" ", 1) for line in output.splitlines() if line.startswith(NAME))


def test_a_module_is_usable_alone(wheel, tmp_path):
    """Each is imported with no script on the path, and changes nothing of its process. What it
    imports is in the wheel, too: else an editable installation would find it in the clone."""
    found = imported(wheel, tmp_path)
    assert len(found) > 25 and {*found.values()} == {"[]"}


def test_an_import_that_changes_its_process_is_found(tmp_path):
    package = tmp_path / "package" / NAME
    for name in "package/trainparts/__init__.py", "beside/there.py":
        write_file(tmp_path / name, b"")
    planted = {
        "handlers": "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "environment": "import os; os.environ['OMP_NUM_THREADS'] = '7'",
        "descriptors": "import os; os.dup2(1, 40)",
        "threads": "import torch; torch.set_num_threads(torch.get_num_threads() + 1)",
        "streams": "import sys; sys.stdout = open(1, 'w', closefd=False)",
        "folder": "import os; os.chdir('..')",
        "seed": "import torch; torch.manual_seed(7)",
        "elsewhere": "import trainparts; trainparts.__path__.append('beside')\n"
        "import trainparts.there",
    }
    for changed, code in planted.items():
        (package / f"{changed}.py").write_text(code + "\n")
    found = imported(package.parent, tmp_path)
    assert found == {NAME: "[]"} | {f"{NAME}.{each}": f"['{each}']" for each in planted}


@pytest.mark.parametrize("script", ["imagenet_nd", "text_nd"])
def test_the_tag_that_a_log_is_read_by_is_logged(script):
    tags = [f"{tag}/val" for tag in importlib.import_module(script).LOGGED]
    assert event_log.OF_EPOCHS in tags


def test_the_log_has_the_script_and_the_package(tmp_path):
    """But not what an editor leaves there while a file is open, a link to nothing."""
    copy_script("imagenet_nd.py", tmp_path)
    (tmp_path / "trainparts" / ".#errors.py").symlink_to("nobody@nowhere.1")
    (tmp_path / "trainparts" / "gone.py").symlink_to("nowhere")
    words = "-a squeezenet1_1 --image-size 32 -b 2 --no-accel --dummy --epochs 1".split()
    words += ["--steps-per-epoch", "1", "--output-dir", "run"]
    run([sys.executable, "imagenet_nd.py", *words], tmp_path)
    (logged,) = events(tmp_path / "run").Tensors("script/text_summary")
    text = logged.tensor_proto.string_val[0].decode()
    assert text.startswith('```python\n"""Train an ImageNet classifier on one device')
    for path in ROOT.glob("trainparts/**/*.py"):
        assert f"```python\n{path.read_text()}\n```" in text, path
    assert "n01440764" not in text, "data is not logged"
    assert record(tmp_path / "run", "about")["trainparts"] == package_digest.IDENTITY
    assert load(tmp_path / "run" / "checkpoint.pt")["trainparts"] == package_digest.IDENTITY


# ------------------------------------------------------------------------------- version and digest

TRAIN = "-a vit_b_16 --image-size 32 -b 4 --no-accel --dummy -j 0 --steps-per-epoch 1".split()


def test_a_digest_is_of_all_files(tmp_path):
    """Python and data; compiled code and editors' locks do not count."""
    folder = shutil.copytree(ROOT / NAME, tmp_path / NAME)
    (folder / "runs" / ".#event_log.py").symlink_to("nobody@nowhere.1")
    (folder / "runs" / "__pycache__").mkdir(exist_ok=True)
    (folder / "runs" / "__pycache__" / "event_log.cpython-311.pyc").touch()
    texts = package_digest.read_package(folder)
    assert package_digest.TEXTS == texts
    paths = [*(ROOT / NAME).rglob("[!.]*.py"), ROOT / NAME / "images" / "imagenet_classes.txt"]
    assert {*texts} == {str(path.relative_to(ROOT / NAME)) for path in paths}
    digest = package_digest.hash_texts(texts)
    assert package_digest.IDENTITY == f"{VERSION}+{digest}" and re.fullmatch("[0-9a-f]{12}", digest)
    seen = {digest}
    for path in "__init__.py", "images/imagenet_classes.txt", "launch/rendezvous.py":
        with open(folder / path, "a") as file:
            file.write("\n")
        seen.add(package_digest.hash_texts(package_digest.read_package(folder)))
    (folder / "errors.py").rename(folder / "mistakes.py")
    seen.add(package_digest.hash_texts(package_digest.read_package(folder)))
    assert len(seen) == 5


def change_package(folder):
    """Changes the package in a folder, as a fork may; returns the identity that it has then."""
    with open(folder / NAME / "devices.py", "a") as file:
        file.write("# changed\n")
    return f"{VERSION}+{package_digest.hash_texts(package_digest.read_package(folder / NAME))}"


def test_a_run_that_another_package_goes_on_with_says_so(tmp_path):
    """And goes on. A checkpoint of before, without a digest, is resumed as ever."""
    script = copy_script("imagenet_nd.py", tmp_path)
    words = [sys.executable, script, *TRAIN, "--output-dir", "run", "--epochs"]
    run([*words, "1"], tmp_path)
    assert "trainparts" not in run([*words, "2"], tmp_path)
    now = change_package(tmp_path)
    line = f"It was saved with trainparts {package_digest.IDENTITY}, this is {now}\n"
    assert f"\nResuming run/checkpoint.pt after 2 of 3 epochs\n{line}" in run(
        [*words, "3"], tmp_path
    )
    saved = load(tmp_path / "run" / "checkpoint.pt")
    assert saved.pop("trainparts") == now
    assert "trainparts" not in run([*words, "4"], tmp_path)
    words = [sys.executable, script, *TRAIN, "--epochs", "5", "--resume", "old.pt"]
    torch.save(saved, tmp_path / "old.pt")
    assert "trainparts" not in run(words, tmp_path)
    torch.save(saved | {"trainparts": "0.1.0+other"}, tmp_path / "old.pt")
    assert f"\nIt was saved with trainparts 0.1.0+other, this is {now}\n" in run(words, tmp_path)


def test_ranks_with_other_packages_do_not_train(tmp_path):
    """As on two nodes, of which one was not updated."""
    for name in "here", "there":
        (tmp_path / name).mkdir()
        copy_script("imagenet_ddp.py", tmp_path / name)
    other = change_package(tmp_path / "there")
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = []
    for rank, name in ("0", "here"), ("1", "there"):
        words = [sys.executable, tmp_path / name / "imagenet_ddp.py", *TRAIN, "--epochs", "1"]
        ranks.append(start(words, tmp_path, **env, RANK=rank, LOCAL_RANK=rank))
    printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 2], printed
    differs = f"trainparts ({package_digest.IDENTITY}, here {other})"
    line = f"imagenet_ddp.py: error: rank 1 differs from rank 0 in {differs}\n"
    assert printed[1] == line and "another rank is gone" in printed[0]
    assert not (tmp_path / "runs").exists()
