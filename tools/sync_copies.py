"""Keep the scripts TASK_STRATEGY.py a grid: what they share is copied, and equal to the byte.

    python tools/sync_copies.py                         # check; prints what differs, status 1
    python tools/sync_copies.py --from imagenet_ddp.py  # write its sections where they belong
    python tools/sync_copies.py --new text_fsdp.py      # put a script together from two others

A script is docstring and imports, then six sections: step (how one step is trained and validated:
equal in all tasks of one strategy), loop (how steps become a run: equal everywhere), task (what is
trained: equal in all strategies of one task), optimizer (how gradients change weights: equal
everywhere), start (from the options to a run: equal everywhere), launch (how processes start and
meet: equal in all tasks of one strategy). There is no original: edit a section in whichever script
you are reading, then propagate it.

Checked as well: each strategy and each task defines what STEP, LAUNCH and TASK list, and the other
sections use nothing else of it; helpers of one name are equal in all strategies; no name is defined
twice; sections that are not a strategy's name no backend, and those that are equal everywhere name
nothing of images. The package trainparts/ does not train, names no strategy and no task outside the
folders that are about one, and imports no script; its imports lead one way; it defines nothing that
another module defines, or a script of images or text (a task of one's own may). In both, no
parameter and no local has the name of something that its file defines or imports, and the package's
modules are imported, not their names. Only --from and --new write.
"""

import argparse
import ast
import copy
import difflib
import graphlib
import importlib.util
import itertools
import os
import re
import subprocess
import symtable
import sys
from pathlib import Path

# What each strategy defines: functions, with these parameters, and no other public function.
STEP = {
    "prepare": "args, place, data",
    "precision": "args, device",
    "train_step": "model, objective, optimizer, scaler, micro_batches, accumulation_steps, args",
    "validate_step": "model, objective, inputs, target, args",
    "all_reduce_sum": "tensor",
    "broadcast_object": "value",
    "tell_others": "line, status",
    "trained_state": "run",
    "full_state": "run",
    "load_state": "run, state",
    "cleanup": "",
}
LAUNCH = {
    "add_parallel_options": "parser",
    "launch": "run_rank, args",
    "init_distributed": "args",
}
# What each task defines, and may have more: functions, and classes and constants (None).
TASK = {
    "DEFAULTS": None,
    "WARMUP": None,
    "add_task_options": "parser",
    "check_task_options": "args, parser",
    "list_sources": "args, place",
    "Data": None,
    "open_data": "args, place, sources, batches, metadata=None",
    "batch_multiple": "args",
    "load_batches": "args, place, data, schedule",
    "finish_batch": "inputs, target, args, data, split, epoch, position",
    "dummy_batch": "args, data, items, device, split='train'",
    "training_flops": "args, data",
    "build_model": "args, data, load=True",
    "SUMS": None,
    "BEST": None,
    "criterion": "output, target, args=None",
    "compute_metrics": "sums",
    "format_metrics": "values, digits=1",
    "MUST_FIT": None,
    "about_model": "args, data",
    "about_data": "data",
}
# The line that each section begins with; above the first are docstring and imports.
SECTIONS = {
    section: re.compile(rf"^# ==== {section}: .*$", re.MULTILINE)
    for section in ("step", "loop", "task", "optimizer", "start", "launch")
}
OF_A_STRATEGY = ("step", "launch")
# A script of these names that has lost all its sections is still one.
STRATEGIES = "nd dp ddp ddp_apex horovod fsdp pipeline exchange".split()
# What sections must not name: the words of one strategy, and of one task.
BACKENDS = re.compile(
    r"\b(?:dist|distributed|ddp|DDP|DistributedDataParallel|dp|DataParallel|apex|amp_C|hvd|horovod|"
    r"nccl|gloo|torchrun|fsdp|fully_shard|DTensor|pipelining|deepspeed)\b",
    re.IGNORECASE,
)
IMAGES = re.compile(  # also as parts of names: image_size, ImageFolder, best_top1
    r"(?<![A-Za-z])(?i:imagenet|images?|imgs?|jpe?gs?|pngs?|pil|pictures?|crops?|cropped|pixels?|"
    r"torchvision|mixup|cutmix|top[-_]?[15](?!\d))(?![a-z])"
)
FORBIDDEN = {
    "task": [BACKENDS],
    **dict.fromkeys(("loop", "optimizer", "start"), [BACKENDS, IMAGES]),
}
# The folder beside the scripts, with what is not training; and words that it has not, but for those
# that a folder in it is about.
PACKAGE = "trainparts"
TRAINING = re.compile(
    r"backward\(|optimizer\.step|zero_grad|GradScaler|all_reduce|broadcast\(|barrier\("
)
ABOUT = {"images": IMAGES, "launch": re.compile("dist|distributed|gloo|torchrun")}


def split(text):
    """Returns {section: its text}, "head" first; None unless each begins once, in order, and is
    Python by itself."""
    found = [[match.start() for match in mark.finditer(text)] for mark in SECTIONS.values()]
    if [len(starts) for starts in found] != [1] * len(SECTIONS) or sorted(found) != found:
        return None
    ends = [0, *(start for [start] in found), len(text)]
    names = ["head", *SECTIONS]
    parts = {name: text[ends[i] : ends[i + 1]] for i, name in enumerate(names)}
    try:
        for each in parts.values():
            compile(each, "section", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    return parts


def task_and_strategy(name):
    """Returns (task, strategy) of a script's name, ("imagenet", "fsdp") of imagenet_fsdp.py."""
    return name.removesuffix(".py").partition("_")[::2]


def belongs(section, name):
    """Returns what all scripts that have this script's text of a section have in common."""
    task, strategy = task_and_strategy(name)
    shared_by = dict.fromkeys(OF_A_STRATEGY, strategy) | {"task": task}
    return f"{section} {shared_by[section]}" if section in shared_by else section


def read_section(text):
    """Returns what a section defines at its top level, {name: parameters, None without any}, the
    set of global names that it uses, and {name: text} of its private functions and classes."""
    tables, used, helpers = [symtable.symtable(text, "section", "exec")], set(), {}
    own = [x.get_name() for x in tables[0].get_symbols() if x.is_assigned() or x.is_imported()]
    for table in tables:
        tables += table.get_children()
        used |= {x.get_name() for x in table.get_symbols() if x.is_referenced() and x.is_global()}
    defined, lines = dict.fromkeys(own), text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            defined[node.name] = name_parameters(node)
        if getattr(node, "name", "").startswith("_"):
            first = min(each.lineno for each in [node, *node.decorator_list])
            helpers[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return defined, used, helpers


def name_parameters(function):
    """Returns the parameters of a function as text, without their types."""
    bare = copy.deepcopy(function.args)
    for node in ast.walk(bare):
        if isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(bare)


def compare(texts, what):
    """Returns a diff for each of {script: text} that has another text than most have."""
    every, complaints = list(texts.values()), []
    right = max(texts, key=lambda name: every.count(texts[name]))
    for name, text in texts.items():
        if text != texts[right]:
            before, after = texts[right].splitlines(), text.splitlines()
            titles = f"{right}: {what}", f"{name}: {what}"
            lines = list(difflib.unified_diff(before, after, *titles, lineterm=""))
            complaints += lines or [f"{name}: {what}: line endings differ from {right}"]
    return complaints


def check_text(section, text, line):
    """Returns complaints about a section's text, which begins after so many lines of its script."""
    complaints = []
    for number, each in enumerate(text.splitlines(), line + 1):
        for words in FORBIDDEN.get(section, []):
            complaints += [f"line {number} names {word}: {each}" for word in words.findall(each)]
    return complaints


def check_names(found, contracts):
    """Returns complaints about what one script's sections define, and use of each other."""
    complaints = []
    for section, contract in contracts.items():
        here = found[section][0]
        functions = [name for name, had in here.items() if had is not None and name[0] != "_"]
        # The sections of a strategy have no other public functions.
        for name in dict.fromkeys([*contract, *(functions if section in OF_A_STRATEGY else [])]):
            got, wanted = (table.get(name, "is missing") for table in (here, contract))
            before, same, rest = str(got).partition(f"{wanted}, ")
            optional = same and not before and all("=" in each for each in rest.split(", "))
            if got != wanted and not (section == "task" and optional):
                complaints.append(f"{section}: {name}({got}), in its contract {name}({wanted})")
    for section, other in itertools.permutations(found, 2):
        if section in OF_A_STRATEGY and other in OF_A_STRATEGY:  # they may use each other's helpers
            continue
        defined, used = found[section][0], found[other][1]
        public = {name for name in defined if name[0] != "_"}
        allowed = contracts.get(section, public)
        for name in sorted(defined.keys() & used - {*allowed}):
            complaints.append(f"{other} uses {name}, which is private to {section}")
    for section, other in itertools.combinations(found, 2):
        for name in sorted(found[section][0].keys() & found[other][0].keys()):
            complaints.append(f"{section} and {other} both define {name}")
    return complaints


def check_locals(text):
    """Returns complaints about parameters and locals that hide what a file defines or imports: a
    reader takes the one for the other."""
    top = symtable.symtable(text, "file", "exec")
    own = {x.get_name() for x in top.get_symbols() if x.is_assigned() or x.is_imported()}
    complaints, tables = [], top.get_children()
    for table in tables:
        tables += table.get_children()
        if table.get_type() != "function":  # a class's names are attributes
            continue
        for each in table.get_symbols():
            bound = each.is_parameter() or each.is_assigned() or each.is_imported()
            if bound and each.is_local() and each.get_name() in own:
                what = f"a local {each.get_name()}, which the file defines or imports at its top"
                complaints.append(f"{table.get_name()}() has {what}")
    return complaints


def imports_of(text, known):
    """Returns the modules of the package that a file imports, and complaints, about imports of
    names, and of scripts. `known` are the package's modules, as trainparts.runs.event_log."""
    imported, complaints = set(), []
    for node in ast.walk(ast.parse(text)):
        if getattr(node, "level", 0):
            complaints.append(
                f"line {node.lineno} imports by dots: write {PACKAGE}, and the module"
            )
            continue
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            names = [f"{each.name} as a whole" for each in node.names]
        else:
            continue
        for name in names:
            first = name.partition(" ")[0].partition(".")[0]
            if re.fullmatch(rf"(imagenet|text)_\w+|[a-z]+_({'|'.join(STRATEGIES)})", first):
                complaints.append(f"imports a script, {first}")
            elif first == PACKAGE and name in known:
                imported.add(name)
            elif first == PACKAGE and name != f"{PACKAGE}.VERSION":
                complaints.append(f"imports {name}: import its module")
    return imported, complaints


def check_package(modules, scripts):
    """Returns complaints about {path below the scripts' folder: text} of the package's modules, and
    about {name: text} of scripts that import them."""
    complaints, used, owners, having = [], {}, {}, {}
    broken = {path: text for path, text in modules.items() if not is_python(text)}
    complaints += [f"{path}: is no Python" for path in broken]
    modules = {path: text for path, text in modules.items() if path not in broken}
    known = {path.removesuffix(".py").replace("/", "."): path for path in modules}
    for path, text in modules.items():
        allowed = ABOUT.get(Path(path).parent.name, re.compile("(?!)"))
        for number, line in enumerate(text.splitlines(), 1):
            for words in BACKENDS, IMAGES, TRAINING:
                found = [word for word in words.findall(line) if not allowed.fullmatch(word)]
                complaints += [f"{path}: line {number} names {word}: {line}" for word in found]
    for path, text in (modules | scripts).items():
        imported, wrong = imports_of(text, known)
        for each in [*wrong, *check_locals(text)]:
            having.setdefault(each, []).append(path)
        # Who writes a task of their own may edit a copy of a function of the package.
        if path in modules or task_and_strategy(path)[0] in ("imagenet", "text"):
            for name in read_section(text)[0].keys() - names_of_imports(text) - {"__all__"}:
                owners.setdefault(name, {})[path] = path in modules
        if path not in modules:
            continue
        used[path] = {known[name] for name in imported}
        # A folder's modules import each other, and those above all folders.
        for other in sorted(used[path]):
            if Path(other).parent not in (Path(PACKAGE), Path(path).parent):
                complaints.append(f"{path}: imports {other}, of another folder")
    if first := sorted(used.get(f"{PACKAGE}/errors.py", [])):
        complaints.append(f"{PACKAGE}/errors.py: imports {', '.join(first)}, and all import it")
    try:
        [*graphlib.TopologicalSorter(used).static_order()]
    except graphlib.CycleError as error:
        complaints.append(f"imports in a circle: {', '.join(error.args[1])}")
    complaints += [f"{', '.join(paths)}: {each}" for each, paths in having.items()]
    for name, places in owners.items():
        if any(places.values()) and len(places) > 1:
            complaints.append(f"{', '.join(places)}: each defines {name}")
    return complaints


def is_python(text):
    """Returns whether a text can be compiled."""
    try:
        compile(text, "module", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def names_of_imports(text):
    """Returns the names that imports give to what a file has at its top."""
    symbols = symtable.symtable(text, "file", "exec").get_symbols()
    return {each.get_name() for each in symbols if each.is_imported()}


def check(scripts, step=STEP, launch=LAUNCH, task=TASK):
    """Returns a list of complaints about {name: text}; empty when all is well."""
    parts = {name: split(text) for name, text in scripts.items()}
    wrong = "is no Python, or lacks a section's first line, or has it twice or out of order"
    complaints = [f"{name}: {wrong}" for name in parts if not parts[name]]
    equal, misused = {}, {}  # {what: {script: text}}, {complaint: scripts}
    for name, sections in parts.items():
        if not sections:
            continue
        line = sections["head"].count("\n")
        for section in SECTIONS:
            text, group = sections[section], belongs(section, name)
            others = equal.setdefault(group, {})
            if text not in others.values():  # one complaint for all that have this text
                found = check_text(section, text, line)
                complaints += [f"{name}: {group}: {each}" for each in found]
            others[name] = text
            line += text.count("\n")
        read = {section: read_section(text) for section, text in sections.items()}
        for section in OF_A_STRATEGY:
            for helper, text in read[section][2].items():
                equal.setdefault(helper, {})[name] = text
        for each in check_names(read, {"step": step, "launch": launch, "task": task}):
            misused.setdefault(each, []).append(name)
    complaints += [f"{', '.join(names)}: {each}" for each, names in misused.items()]
    for what, texts in equal.items():
        complaints += compare(texts, what)
    return complaints if scripts else ["found no scripts TASK_STRATEGY.py"]


def propagate(scripts, source):
    """Returns {name: (text, what is said of it)} of scripts that take sections of one of them."""
    changed, mine = {}, split(scripts[source])
    for name, text in scripts.items():
        parts = split(text)
        own = [each for each in SECTIONS if belongs(each, name) == belongs(each, source)]
        if taken := [each for each in own if parts[each] != mine[each]]:
            parts |= {each: mine[each] for each in taken}
            changed[name] = "".join(parts.values()), f"took {', '.join(taken)} of {source}"
    return changed


def read_head(name, text):
    """Returns (first line, prose below it, launch lines, imports, what follows them)."""
    head = split(text)["head"]
    if head.count('"""') != 2:
        raise ValueError(f"{name}: needs a docstring, and imports after it")
    _, words, code = head.split('"""')
    prose, _, commands = words.rstrip().partition("\n\n    ")
    lines, done, imports, others = code.splitlines(), 0, [], []
    for node in ast.parse(code).body:  # with the comments above it
        kind = imports if isinstance(node, ast.Import | ast.ImportFrom) else others
        text = "\n".join(lines[done : node.end_lineno])
        if kind is others and done and text.strip() == text:  # no blank line is between them
            text = f"{others.pop()}\n{text}"
        kind.append(text.strip())
        done = node.end_lineno
    return *prose.partition("\n")[::2], commands, imports, others


def put_together(new, strategy_donor, task_donor, scripts):
    """Returns the text of a script with one script's strategy and another's task.

    The docstring is to be read and corrected: it has the first's prose, and the second's launch
    lines, started as the first's are.
    """
    strategy, task = split(scripts[strategy_donor]), split(scripts[task_donor])
    first, prose, started, imports, others = read_head(strategy_donor, scripts[strategy_donor])
    title, _, commands, more_imports, more = read_head(task_donor, scripts[task_donor])
    # imagenet_nd.py is to imagenet_fsdp.py as text_nd.py is to text_fsdp.py.
    corner = f"{task_and_strategy(strategy_donor)[0]}_{task_and_strategy(task_donor)[1]}.py"
    if corner in scripts:
        parallel = read_head(corner, scripts[corner])[0]
        same = os.path.commonprefix([first, parallel]).rpartition(" ")[0]
        title = title.removesuffix(parallel.removeprefix(same)) + first.removeprefix(same)
    prose = re.sub(
        rf"\b{task_and_strategy(strategy_donor)[0]}_(?=[\w*]+\.py\b)",
        f"{task_and_strategy(new)[0]}_",
        prose,
    )
    launcher = started.partition(strategy_donor)[0]
    commands = re.sub(
        rf"^( *).*?\b{task_donor}", lambda found: found[1] + launcher + new, commands, flags=re.M
    )
    sections = "".join((strategy if name in OF_A_STRATEGY else task)[name] for name in SECTIONS)
    # Of the imports ruff leaves what is used, in its order. What looks for the package trainparts
    # stands below those of the standard library, other code below all.
    standard, later = [], []
    for each in imports + more_imports:
        top = re.search(r"^(?:from|import) (\w+)", each, re.MULTILINE)[1]
        (standard if top in sys.stdlib_module_names else later).append(each)
    code = dict.fromkeys(others + more)
    look = [each for each in code if f"from {PACKAGE} import VERSION" in each]
    code = [each for each in code if each not in look]
    head = "\n\n".join(["\n".join(standard), *look, "\n".join(later), *code])
    config = Path(__file__).parents[1] / "pyproject.toml"
    ruff = [sys.executable, "-m", "ruff", "check", "--select", "I,F401"]
    ruff += ["--config", config] if config.exists() else []
    ruff += ["--fix", "--exit-zero", "--quiet", "--stdin-filename", new, "-"]
    pipes = {"capture_output": True, "text": True, "encoding": "utf-8"}
    fixed = subprocess.run(ruff, input=f"{head}\n\n{sections}", **pipes)
    if fixed.returncode:
        raise ValueError(f"ruff cannot sort the imports: {fixed.stderr.strip()}")
    head = split(fixed.stdout)["head"].strip()
    return f'"""{title}\n{prose}\n\n    {commands}\n"""\n\n{head}\n\n{sections}'


def write_whole(path, text):
    """Writes a script, or leaves what was there: on a full disk half of it would stand there."""
    unfinished = path.with_suffix(".tmp")
    try:
        unfinished.write_bytes(text.encode(errors="surrogateescape"))
        if path.exists():
            unfinished.chmod(path.stat().st_mode)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def main():
    """Checks; with --from or --new writes before."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.split("\n\n")[0])
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: error: {message}\n")
    write = parser.add_mutually_exclusive_group()
    write.add_argument("--from", dest="source", metavar="SCRIPT", help="write its sections to all")
    write.add_argument("--new", metavar="SCRIPT", help="put it together from two others")
    parser.add_argument("--folder", default=Path(__file__).parents[1], type=Path)
    args = parser.parse_args()
    paths = sorted(filter(Path.is_file, args.folder.glob("[!.]*_*.py")))
    # Others' files may be in any encoding.
    texts = {path.name: path.read_bytes().decode(errors="surrogateescape") for path in paths}
    scripts = {
        name: text
        for name, text in texts.items()
        if task_and_strategy(name)[1] in STRATEGIES
        or any(mark.search(text) for mark in SECTIONS.values())
    }
    whole, changed = {name: text for name, text in scripts.items() if split(text)}, {}
    if args.source:
        name = Path(args.source).name
        if name not in whole or len(whole) < len(scripts):
            without = ", ".join(scripts.keys() - whole) or name
            parser.error(f"{without}: no such script, or not each section in it")
        changed = propagate(scripts, name)
    if args.new:
        name = Path(args.new).name
        task, strategy = task_and_strategy(name)
        of_strategy = [each for each in whole if task_and_strategy(each)[1] == strategy]
        of_task = [each for each in whole if task_and_strategy(each)[0] == task]
        if not re.fullmatch(r"[a-z]+_\w+\.py", name) or not of_strategy or not of_task:
            wanted = (
                f"a whole script of its strategy, *_{strategy}.py, and one of its task, {task}_*.py"
            )
            parser.error(f"{name}: is made of {wanted}")
        donors = of_strategy[0], f"{task}_nd.py" if f"{task}_nd.py" in whole else of_task[0]
        if not importlib.util.find_spec("ruff"):
            parser.error("--new sorts imports by ruff: pip install ruff")
        try:
            text = put_together(name, *donors, whole)
            if (args.folder / name).exists():
                raise ValueError(f"{name} is there already")
        except ValueError as error:
            parser.error(str(error))
        made = f"made of {' and '.join(donors)}; read its docstring, and correct it"
        changed = {name: (text, made)}
    for name, (text, what) in changed.items():
        try:
            write_whole(args.folder / name, text)
        except OSError as error:
            parser.error(f"{name} is as it was: {error}" if args.source else str(error))
        scripts[name] = text
        print(f"{name}: {what}")
    folder = args.folder / PACKAGE
    modules = {
        str(path.relative_to(args.folder)): path.read_text(errors="surrogateescape")
        for path in sorted(folder.rglob("*.py"))
        if path.is_file() and path.name != "__init__.py" and "/." not in str(path)
    }
    whole = {name: text for name, text in scripts.items() if split(text)}
    complaints = check(scripts) + check_package(modules, whole)
    print("\n".join(complaints) or f"{len(scripts)} scripts agree")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
