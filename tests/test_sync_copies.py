"""tools/sync_copies.py on a grid of tiny scripts: what it reports, and what it writes."""

import argparse
import ast
import os
import re
import runpy
import sys

import pytest
from conftest import ROOT, THEN_RUN, complaint, run

TOOL = ROOT / "tools" / "sync_copies.py"
sync_copies = argparse.Namespace(**runpy.run_path(str(TOOL)))
DIST = "import torch.distributed as dist"
HVD = """

try:
    import horovod.torch as hvd
except ImportError:  # works without it
    hvd = None"""
LOOK = """# The package beside the scripts.
try:
    from trainparts import VERSION
except ImportError:
    VERSION = None
if not VERSION:
    os._exit(2)"""
WAYS = {  # end of the first line, launcher, what its functions return, imports for it
    "nd": ("on one device: a GPU.", "python", "json.dumps({})", "import json", ""),
    "fsdp": ("with FSDP2: in shards.", "torchrun --nproc_per_node=2", "dist.barrier()", DIST, ""),
    "pipeline": ("in stages.", "torchrun --nproc_per_node=4", "hvd or dist.barrier()", DIST, HVD),
}
TASKS = {  # what is trained, options, what its functions return, import for it
    "imagenet": ("an ImageNet classifier", "-a x DIR", "nn.ReLU()", "from torch import nn"),
    "text": ("a text model", "--task cola DIR", "re.compile('')", "import re"),
}
NAMES = [f"{task}_{way}.py" for task in TASKS for way in WAYS]


def defined(contract, body):
    """Returns the text that defines all names of a contract."""
    return "\n\n\n".join(
        f"{name} = None" if parameters is None else f"def {name}({parameters}):\n    {body}"
        for name, parameters in contract.items()
    )


STEP = {"train_step": "model", "leave": ""}
LAUNCH = {"launch": "worker, args"}
TASK = {"SUMS": None, "build_model": "args, data"}


def script(name, step=STEP, launch=LAUNCH, task=TASK):
    """Returns the text of a tiny script, whose sections define what these tables list."""
    task_name, way_name = name.removesuffix(".py").split("_")
    how, launcher, call, way_import, after = WAYS[way_name]
    what, options, model, task_import = TASKS[task_name]
    standard = {"import json", "import re"} & {way_import, task_import}
    others = {"import torch", way_import, task_import} - standard
    others = sorted(others, key=lambda line: (line.startswith("from"), line))
    imports = "\n".join([*sorted(standard | {"import os"}), "", LOOK, "", *others])
    helper, first = "", ""
    if way_name != "nd":
        helper = "def _meet():\n    return torch.ones(1)\n\n\n"
        first = "def _sent():\n    return _meet()\n\n\n"
    return f'''"""Train {what} {how}

Choose this script, or {task_name}_nd.py.

    {launcher} {name} {options}
    {launcher} {name} \\\\
        {options}
"""

{imports}{after}

# ==== step: equal in all tasks


{first}{defined(step, f"return {call}")}


# ==== loop: equal in all scripts


def train():
    """Trains."""
    train_step(build_model)  # of the way, and of the task


# ==== task: {what}, equal in all ways of it


{defined(task, f"return {model}")}


# ==== optimizer: equal in all scripts


def learning_rate():
    """Decays."""


# ==== start: equal in all scripts


def main():
    """Begins."""
    launch(train, torch)


# ==== launch: equal in all tasks


{helper}{defined(launch, f"return {call}")}
'''


TEXTS = {name: script(name) for name in NAMES}


def check(texts):
    return sync_copies.check(texts, STEP, LAUNCH, TASK)


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        text = script(name, sync_copies.STEP, sync_copies.LAUNCH, sync_copies.TASK)
        (tmp_path / name).write_text(text)
    (tmp_path / "make_results.py").write_text("is no script of the grid\n")
    return tmp_path


def tool(folder, *options):
    return [sys.executable, TOOL, "--folder", folder, *options]


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def refused(folder, *options):
    """Returns the line that says why nothing was written."""
    before = contents(folder)
    line = complaint(tool(folder, *options), folder)
    assert contents(folder) == before
    return line


def test_a_grid_agrees(folder):
    before = contents(folder)
    assert run(tool(folder), folder) == "6 scripts agree\n"
    assert contents(folder) == before
    (folder / "imagenet_dp.py").write_text("")
    assert "imagenet_dp.py: is no Python, or lacks" in run(tool(folder), folder, status=1)
    for name in [*NAMES, "imagenet_dp.py"]:
        (folder / name).unlink()
    assert "no scripts" in run(tool(folder), folder, status=1)


def test_others_files_are_passed_over(folder):
    """Backups of editors and systems, text of another encoding, a folder."""
    (folder / ".#imagenet_nd.py").symlink_to("nobody@nowhere.1")
    (folder / "._imagenet_nd.py").write_bytes(b"\x00\x05\x16\xff")
    (folder / "my_notes.py").write_bytes("# \xe9t\xe9\n".encode("latin-1"))
    (folder / "text_prepare.py").write_text("print()\n")
    (folder / "old_runs.py").mkdir()
    assert run(tool(folder), folder) == "6 scripts agree\n"


def test_line_endings_of_another_system_are_mended(folder):
    path = folder / "imagenet_nd.py"
    text = path.read_bytes()
    path.write_bytes(text.replace(b"\n", b"\r\n"))
    assert "imagenet_nd.py" in run(tool(folder), folder, status=1)
    run(tool(folder, "--from", "imagenet_fsdp.py"), folder, status=None)
    run(tool(folder, "--from", "text_nd.py"), folder, status=None)
    run(tool(folder, "--from", "imagenet_pipeline.py"), folder, status=None)
    head, _, sections = path.read_bytes().partition(b"# ==== loop: ")
    assert b"\r" not in sections.partition(b"# ==== launch: ")[0] and b"\r" in head


@pytest.mark.parametrize("options", [("--from", "imagenet_fsdp.py"), ("--new", "text_fsdp.py")])
def test_a_full_disk_leaves_what_was_there(folder, options):
    """A limit of a file's size, which ends a write in its middle as a full disk does."""
    (folder / "text_fsdp.py").unlink()
    path = folder / "imagenet_fsdp.py"
    path.write_text(path.read_text().replace("Trains.", "Trains all."))
    before = contents(folder)
    words = [sys.executable, "-c", LIMITED + THEN_RUN, *map(str, tool(folder, *options)[1:])]
    (line,) = run(words, folder, status=2).splitlines()
    assert "File too large" in line
    assert contents(folder) == before


LIMITED = """
import resource, signal, sys
sys.argv = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
"""

CALL = "train_step(build_model)"
MARKS = [f"# ==== {name}: " for name in sync_copies.SECTIONS]
FIRST, *_, LAST = MARKS
IMAGES = [f"names {word}:" for word in "image Image JPEGs IMAGENET top1 Top-5 DDP".split()]
PRIVATE = [f"loop uses {name}, which is private to" for name in "_meet Scaler GPT _read".split()]
TWICE = [f"{section} and start both define" for section in ("head", "step", "task")]
WRONG = "text_fsdp.py: is no Python, or lacks a section's first line"
DIFFERENT = [  # a case a rule: what stands in text_fsdp.py, what takes its place, what is reported
    ("return dist.barrier()\n\n\n# ==== loop", "return 0\n\n\n# ==== loop", "py: step fsdp"),
    ("args):\n    return dist", "args):\n    return hvd or dist", "+++ text_fsdp.py: launch fsdp"),
    ("a text model, equal", "a model, equal", "text_nd.py: task text"),
    ("Trains.", "Trains all.", "+++ text_fsdp.py: loop"),
    ("Begins.", "Begins here.", "+++ text_fsdp.py: start"),
    ("def _meet", "@torch.no_grad()\ndef _meet", "+++ text_fsdp.py: _meet"),
    ("def _sent", "@torch.no_grad()\ndef _sent", "+++ text_fsdp.py: _sent"),
    *((mark, f"# no {mark}", WRONG) for mark in MARKS),
    *((mark, f"{mark}\n{mark}", WRONG) for mark in MARKS),
    ('"""Trains."""', "nonlocal text", WRONG),
    ("leave():", "leave(group):", "step: leave(group), in its contract leave()"),
    ("launch(worker", "launch(rank", "launch: launch(rank, args), in its contract launch(worker, "),
    ("leave():", "depart():", "leave(is missing)", "depart(), in its contract depart(is missing)"),
    ("def _meet", "def meet", "launch: meet(), in its contract meet(is missing)"),
    ("(args, data)", "(args, data, more)", "build_model(args, data, more), in its contract build_"),
    ("SUMS", "SUM", "task: SUMS(is missing), in its contract SUMS(None)"),
    ("SUMS = None", "SUMS = hvd", "task text: line 52 names hvd: SUMS = hvd"),
    ("# of", "# image_size ImageFolder JPEGs IMAGENET_DIR best_top1 Top-5 DDP", *IMAGES),
    ("Begins.", "Begins on images by torchrun.", "names images:", "names torchrun:"),
    (CALL, f"_meet() + Scaler + GPT + _read + {CALL}", *PRIVATE),
    ("launch(train,", "launch(Scaler,", "start uses Scaler, which is private to step"),
    ("SUMS = None", "SUMS = _tail", "task uses _tail, which is private to start"),
    (
        "return dist.barrier()\n\n\n# ==== loop",
        "return GPT\n\n\n# ==== loop",
        "step uses GPT, which",
    ),
    ("return dist.barrier()\n", "return GPT\n", "launch uses GPT, which is private to task"),
    ("def main", "torch = leave = GPT = None\n\n\ndef main", *TWICE),
]


@pytest.mark.parametrize("case", DIFFERENT, ids=str)
def test_what_differs_is_reported(case):
    def private(text):
        """Gives each section something that the others must not use."""
        text = re.sub(f"{FIRST}.*", r"\g<0>\nScaler = None", text)
        text = text.replace("SUMS = None", "GPT = _read = None\nSUMS = None")
        return text.replace("def main", "_tail = None\n\n\ndef main")

    old, new, *expected = case
    texts = {name: private(text) for name, text in TEXTS.items()}
    assert check(texts) == []
    assert old in texts["text_fsdp.py"]
    texts["text_fsdp.py"] = texts["text_fsdp.py"].replace(old, new)
    found = "\n".join(check(texts))
    assert [each for each in expected if each not in found] == []


@pytest.mark.parametrize("first", range(5))
def test_sections_have_an_order(first):
    one, other = MARKS[first : first + 2]
    text = TEXTS["text_fsdp.py"].replace(one, "@").replace(other, one).replace("@", other)
    assert "text_fsdp.py: is no Python, or lacks" in check(TEXTS | {"text_fsdp.py": text})[0]


def test_names_of_its_own_are_free():
    def free(text):
        text = text.replace("def main", "def leave_all(GPT):\n    return GPT\n\n\ndef main")
        text = text.replace("SUMS = None", "GPT = None\nSUMS = None")
        text = text.replace("(args, data)", "(args, data, load=True)")
        return text.replace("# of the", "# imagery, reimaged, top10, top-k, stop1; of the")

    assert check({name: free(text) for name, text in TEXTS.items()}) == []


# ----------------------------------------------------------------------------------- the package

MODULES = {
    "trainparts/errors.py": "import os\n\n\nclass Fault(Exception):\n    os = None\n",
    "trainparts/devices.py": "from trainparts import VERSION, errors\n\n\ndef pick(n):\n    pass\n",
    "trainparts/runs/event_log.py": "from trainparts import devices, errors\n\nLAST = 1\n",
    "trainparts/images/decoding.py": "from trainparts import errors\n\nSIZE = 'pixels'\n",
    "trainparts/launch/processes.py": "import torch.distributed as dist\n\nSTORE = dist\n",
}
USE = "import torch\n"
USES = USE + "from trainparts import errors\nfrom trainparts.runs import event_log\n"
PLANTED = [  # where, a text there, another in its place, what is reported
    ("errors", "os = None", "step = 'optimizer.step'", "line 5 names optimizer.step"),
    ("errors", "os = None", "ways = 'FSDP'", "line 5 names FSDP"),
    ("errors", "os = None", "task = 'ImageNet'", "line 5 names ImageNet"),
    ("decoding", "'pixels'", "'torchrun'", "line 3 names torchrun"),
    ("processes", "STORE = dist", "STORE = 'jpeg'", "line 3 names jpeg"),
    ("processes", "STORE = dist", "STORE = dist.all_reduce", "line 3 names all_reduce"),
    ("decoding", "SIZE", "import imagenet_ddp\nSIZE", "imports a script, imagenet_ddp"),
    ("devices", "    pass", "    import text_nd", "imports a script, text_nd"),
    ("devices", "    pass", "    from trainparts.errors import Fault", "errors.Fault: import"),
    ("devices", "    pass", "    import trainparts.errors", "errors as a whole: "),
    ("devices", "errors\n", "errors, gone\n", "imports trainparts.gone: import its module"),
    ("errors", "import os", "import os\nfrom trainparts import devices", "and all import it"),
    ("devices", "    pass", "    from trainparts.runs import event_log", "imports in a circle"),
    ("decoding", "SIZE", "from trainparts.runs import event_log\nSIZE", "event_log.py, of another"),
    ("event_log", "LAST", "from trainparts.launch import processes\nLAST", "of another folder"),
    ("decoding", "SIZE", "LAST", "event_log.py, trainparts/images/decoding.py: each defines LAST"),
    ("text_fsdp", "def main", "LAST = 1\n\n\ndef main", "text_fsdp.py: each defines LAST"),
    ("text_fsdp", USES, USES + "import imagenet_nd\n", "py: imports a script, imagenet_nd"),
    ("text_fsdp", "event_log", "LAST", "text_fsdp.py: imports trainparts.runs.LAST: import its"),
    ("text_fsdp", "def main():", "def main(torch):", "py: main() has a local torch, which"),
    ("devices", "(n)", "(errors)", "devices.py: pick() has a local errors, which the file"),
    ("devices", "    pass", "    def pick(): pass", "pick() has a local pick, which"),
    ("devices", "    pass", "    for errors in (): pass", "pick() has a local errors, which"),
    ("devices", "    pass", "    return [0 for pick in ()]", "has a local pick, which"),
    ("devices", "    pass", "    return lambda pick: 0", "lambda() has a local pick, which"),
    ("devices", "    pass", "    import errors", "pick() has a local errors, which"),
    ("errors", "os = None", "def os(self, Fault): pass", "os() has a local Fault, which"),
]


@pytest.mark.parametrize("case", PLANTED, ids=str)
def test_what_is_wrong_in_the_package_is_reported(case):
    name, old, new, expected = case
    modules, texts = dict(MODULES), {name: TEXTS[name].replace(USE, USES) for name in TEXTS}
    assert sync_copies.check_package(modules, texts) == []
    for files in modules, texts:
        for path in files:
            if path.endswith(f"{name}.py"):
                assert old in files[path]
                files[path] = files[path].replace(old, new)
    found = sync_copies.check_package(modules, texts)
    assert expected in "\n".join(found)
    assert len(found) == 1 or "circle" in expected or "all import it" in expected


def test_a_task_of_ones_own_may_define_what_the_package_does():
    text = TEXTS["text_fsdp.py"].replace(USE, USES).replace("def main", "LAST = 1\n\n\ndef main")
    assert sync_copies.check_package(MODULES, {"tags_fsdp.py": text}) == []
    assert len(sync_copies.check_package(MODULES, {"imagenet_fsdp.py": text})) == 1


def test_one_line_tells_which_scripts_are_wrong_alike():
    texts = {name: TEXTS[name].replace("def main()", "def main(torch)") for name in TEXTS}
    (line,) = sync_copies.check_package({}, texts)
    assert line.startswith(", ".join(texts))


def test_scripts_are_mended_before_they_are_checked(folder):
    """--from writes, and what it has written agrees."""
    for name in NAMES:
        path = folder / name
        path.write_text(path.read_text().replace("def train():", "def train(torch=None):"))
    assert "train() has a local torch" in run(tool(folder), folder, status=1)
    path.write_text(path.read_text().replace("(torch=None)", "()"))
    assert run(tool(folder, "--from", path), folder).endswith("\n6 scripts agree\n")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("_own.py", "import os\n\n\ndef start(os):\n    pass\n", "start() has a local os, which"),
        ("own.py", "x = (\n", "own.py: is no Python"),
        ("own.py", "from . import errors\n", "line 1 imports by dots: write trainparts"),
        ("own.py", "from imagenet_mine import x\n", "imports a script, imagenet_mine"),
        (".own.py", "x = (\n", None),
        (".checkpoints/own.py", "x = (\n", None),
    ],
)
def test_a_module_of_a_users_own(name, text, says, folder):
    path = folder / "trainparts" / "images" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    output = run(tool(folder), folder, status=1 if says else 0)
    assert says in output if says else output == "6 scripts agree\n"


def test_the_package_is_read(folder):
    path = folder / "trainparts" / "runs" / "event_log.py"
    path.parent.mkdir(parents=True)
    path.write_text("import os\n\n\ndef start(os):\n    pass\n")
    (path.parent / "__init__.py").write_text('"""Names FSDP."""\n')
    (path.parent / ".#event_log.py").symlink_to("nobody@nowhere.1")
    printed = run(tool(folder), folder, status=1)
    what = "start() has a local os, which the file defines or imports at its top"
    assert printed == f"{os.path.join('trainparts', 'runs', 'event_log.py')}: {what}\n"


def test_line_endings_and_last_lines_are_compared():
    texts = TEXTS | {"text_fsdp.py": TEXTS["text_fsdp.py"] + "\n"}
    assert "+++ text_fsdp.py: launch fsdp" in "\n".join(check(texts))
    before, _, last = TEXTS["text_fsdp.py"].partition(LAST)
    texts = TEXTS | {"text_fsdp.py": before + LAST + last.replace("\n", "\r\n")}
    assert any("line endings" in each for each in check(texts))


def test_what_most_have_is_right():
    texts = TEXTS | {"imagenet_fsdp.py": TEXTS["imagenet_fsdp.py"].replace("Trains.", "Ends.")}
    diff = "\n".join(check(texts))
    assert "+++ imagenet_fsdp.py: loop" in diff and '-    """Trains."""' in diff


# ------------------------------------------------------------------------------------------ --from


def test_sections_go_where_they_belong(folder):
    before = contents(folder)
    new = before["text_fsdp.py"].replace("dist.barrier()", "dist.barrier() or 2")
    new = new.replace("Begins.", "Begins here.")
    new = new.replace("re.compile('')", "re.compile('x')").replace("Trains.", "Trains all.")
    new = new.replace("Choose this", "Never choose this")
    (folder / "text_fsdp.py").write_text(new)
    printed = run(tool(folder, "--from", "text_fsdp.py"), folder)
    assert printed.splitlines() == [
        "imagenet_fsdp.py: took step, loop, start, launch of text_fsdp.py",
        "imagenet_nd.py: took loop, start of text_fsdp.py",
        "imagenet_pipeline.py: took loop, start of text_fsdp.py",
        "text_nd.py: took loop, task, start of text_fsdp.py",
        "text_pipeline.py: took loop, task, start of text_fsdp.py",
        "6 scripts agree",
    ]
    for name in NAMES:
        wanted = before[name].replace("Trains.", "Trains all.").replace("Begins.", "Begins here.")
        if "text" in name:
            wanted = wanted.replace("re.compile('')", "re.compile('x')")
        if "fsdp" in name:
            wanted = wanted.replace("dist.barrier()", "dist.barrier() or 2")
        assert (folder / name).read_text() == (new if name == "text_fsdp.py" else wanted)


@pytest.mark.parametrize(("broken", "lacks"), [("text_nd.py", FIRST), ("imagenet_nd.py", MARKS[3])])
def test_nothing_is_written_where_a_section_lacks(folder, broken, lacks):
    path = folder / broken
    path.write_text(path.read_text().replace(lacks, "# ").replace("Trains.", "Trains all."))
    line = refused(folder, "--from", "text_nd.py")
    assert f"{broken}: no such script, or not each section in it" in line


def test_from_a_script_that_there_is_not(folder):
    assert "text_xx.py: no such" in refused(folder, "--from", "text_xx.py")
    assert "make_results.py: no" in refused(folder, "--from", "make_results.py")
    assert "not allowed" in refused(folder, "--from", NAMES[0], "--new", "a_b.py")


# ------------------------------------------------------------------------------------------- --new


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_put_together(folder, name):
    path = folder / name
    wanted = path.read_text()
    path.unlink()
    printed = run(tool(folder, "--new", name), folder)
    assert "6 scripts agree" in printed and "read its docstring" in printed
    assert path.read_text() == wanted


def test_a_task_of_a_users_own(folder):
    text = contents(folder)["text_nd.py"].replace("return re.compile('')", "return ONE")
    text = text.replace(f"\n\n{FIRST}", f"{HVD}\n\nONE = 1\n\n{FIRST}")
    (folder / "regression_nd.py").write_text(text.replace("text_", "regression_"))
    assert "7 scripts agree" in run(tool(folder), folder)
    assert "8 scripts agree" in run(tool(folder, "--new", "regression_pipeline.py"), folder)
    new = (folder / "regression_pipeline.py").read_text()
    assert "return hvd or dist.barrier()" in new and "return ONE" in new and "import re" not in new
    assert new.count(f"{HVD}\n\nONE = 1\n\n{FIRST}") == new.count("import horovod") == 1


def test_a_script_of_the_first_task_and_strategy_alone(folder):
    for name in NAMES:
        if name not in ("imagenet_fsdp.py", "text_nd.py"):
            (folder / name).unlink()
    run(tool(folder, "--new", "text_fsdp.py"), folder)
    assert (folder / "text_fsdp.py").read_text().startswith('"""Train a text model on one device:')


def test_a_script_that_cannot_be_put_together(folder):
    for name, words in {
        "text_nd.py": "text_nd.py is there already",
        "text_dp.py": "a whole script of its strategy, *_dp.py, and one of its task, text_*.py",
        "audio_nd.py": "one of its task, audio_*.py",
        "text_fsdp": "text_fsdp: is made",
        "fsdp.py": "fsdp.py: is made",
    }.items():
        assert words in refused(folder, "--new", name)
    (folder / "imagenet_dp.py").write_text("import json\n\n" + "x\n".join(MARKS) + "x")
    assert "imagenet_dp.py: needs a docstring" in refused(folder, "--new", "text_dp.py")
    head = '"""One."""\n\nTEXT = """Two."""\n'
    (folder / "imagenet_dp.py").write_text(head + "x\n".join(MARKS) + "x")
    assert "imagenet_dp.py: needs a docstring" in refused(folder, "--new", "text_dp.py")


def test_without_ruff(folder):
    (folder / "text_pipeline.py").unlink()
    before = contents(folder)
    words = tool(folder, "--new", "text_pipeline.py")
    words.insert(1, "-S")  # without site-packages
    assert "pip install ruff" in complaint(words, folder)
    assert contents(folder) == before


# --------------------------------------------------------------------------------- our own scripts

# Not those of a user's own task, which may stand in any order.
SCRIPTS = {
    path.name: path.read_text()
    for task in TASKS
    for path in ROOT.glob(f"{task}_*.py")
    if sync_copies.task_and_strategy(path.name)[1] in sync_copies.STRATEGIES
}
assert len(SCRIPTS) == 14
CONTRACTS = sync_copies.STEP | sync_copies.LAUNCH | sync_copies.TASK


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_function_stands_below_the_first_that_uses_it(name):
    """The order of a newspaper, within a part of a section; contracts have an order of their own,
    and a class is read before its use."""
    for part in re.split(r"(?m)^# (?:====|-{9,}) ", SCRIPTS[name])[1:]:
        nodes = ast.parse(part.partition("\n")[2]).body
        for place, node in enumerate(nodes):
            if not isinstance(node, ast.FunctionDef) or node.name in CONTRACTS:
                continue
            users = [
                number
                for number, other in enumerate(nodes)
                for each in ast.walk(other)
                if getattr(each, "id", None) == node.name and other is not node
            ]
            at_import = any(not hasattr(nodes[number], "name") for number in users)
            assert at_import or not users or min(users) < place, f"{node.name} stands too high"


def test_pages_list_the_sections():
    """In their order, with the parts of a task."""
    parts = sync_copies.split(SCRIPTS["imagenet_nd.py"])
    titles = {name: re.findall("^# -{9,} (.+)$", parts[name], re.MULTILINE) for name in parts}
    assert len(titles["task"]) == 6
    for page in "docs/reading.md", "CONTRIBUTING.md":
        rows = re.findall(r"^\| \*\*(\w+)\*\* \| (.+?) \|", (ROOT / page).read_text(), re.MULTILINE)
        assert [name for name, _ in rows] == list(sync_copies.SECTIONS), page
        assert dict(rows)["task"].endswith(": " + ", ".join(titles["task"])), page


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_docstring_ends_with_where_to_read(name):
    last = ast.get_docstring(ast.parse(SCRIPTS[name])).splitlines()[-1]
    assert last.startswith("Read it from the top: a step, the loop, the task;")


def test_the_first_145_lines_of_the_diff_are_ddp():
    """As docs/reading.md says; what follows is in the launch sections."""
    text = SCRIPTS["imagenet_nd.py"].splitlines()
    loop, launch = (
        next(number for number, line in enumerate(text, 1) if line.startswith(f"# ==== {name}"))
        for name in ("loop", "launch")
    )
    lines = run(["diff", "imagenet_nd.py", "imagenet_ddp.py"], ROOT, status=1).splitlines()
    hunks = {number: re.match(r"\d+", line) for number, line in enumerate(lines)}
    first = {number: int(found[0]) for number, found in hunks.items() if found}
    assert all(line < loop or line >= launch for line in first.values())
    assert min(number for number, line in first.items() if line >= launch) in range(140, 155)


def test_contributing_lists_the_contracts():
    """Each function, each constant, nothing else; signatures have the arguments."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    _, ways, tasks = re.split("(?m)^### The contract of a (?:strategy|task)$", page)
    step, launch = ways.split("and the section **launch**")
    for table, contract in (
        (step, sync_copies.STEP),
        (launch, sync_copies.LAUNCH),
        (tasks.split("\n### ")[0], sync_copies.TASK),
    ):
        rows = re.findall(r"^\| (`.*?)\|", table, re.MULTILINE)
        listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
        assert sorted(listed) == sorted({*contract} - {"Data"})
