"""Keep the scripts TASK_WAY.py a grid: what they share is copied, and equal to the byte.

    python tools/sync_copies.py                         # check; prints what differs, status 1
    python tools/sync_copies.py --from imagenet_ddp.py  # write its sections where they belong
    python tools/sync_copies.py --new text_fsdp.py      # put a script together from two others

A script is docstring and imports, then three sections: parallel (how it runs: equal in all tasks of
one way), task (what is trained: equal in all ways of one task), loop (equal everywhere). There is
no original: edit a section in whichever script you are reading, then propagate it.

Checked as well: each way and each task defines what PARALLEL and TASK list, and the other sections
use nothing else of it; helpers of one name are equal in all ways; no name is defined twice; task
and loop name no backend, and the loop nothing of images; no section is longer than LIMITS. Only
--from and --new write.
"""

import argparse
import ast
import difflib
import importlib.util
import io
import os
import re
import subprocess
import symtable
import sys
import tokenize
from pathlib import Path

# What each way of running defines: functions, with these parameters, and no other public function.
PARALLEL = {
    "add_parallel_options": "parser",
    "launch": "worker, args",
    "join": "args",
    "prepare": "args, place, data",
    "precision": "args, device",
    "train_step": "model, criterion, optimizer, scaler, parts, args",
    "validate_step": "model, criterion, images, target, args",
    "sum_over_ranks": "tensor",
    "from_rank_0": "value",
    "trained_state": "run",
    "full_state": "run",
    "load_state": "run, state",
    "leave": "",
}
# What each task defines, and may have more: functions, and classes and constants (None).
TASK = {
    "DEFAULTS": None,
    "add_task_options": "parser",
    "check_task_options": "args, parser",
    "Source": None,
    "Data": None,
    "open_data": "args, place, global_batch",
    "digest": "source",
    "batch_multiple": "args",
    "load_batches": "args, place, data, schedule",
    "finish_batch": "inputs, target, args, epoch, step",
    "noise": "args, data, n, device",
    "build_model": "args, data",
    "model_options": "args, data",
    "criterion": "output, target",
    "SUMS": None,
    "measures": "sums",
    "describe_task": "run",
    "check_checkpoint": "head, args, data",
}
# Lines of code, without comments and blank lines, that a section may have.
LIMITS = {
    "parallel nd": 85,
    "parallel dp": 110,
    "parallel ddp": 290,
    "parallel ddp_apex": 330,
    "parallel horovod": 140,
    "parallel fsdp": 250,
    "parallel pipeline": 400,
    "parallel exchange": 300,
    "task imagenet": 560,
    "task text": 470,
    "loop": 1100,
}
SECTIONS = {  # the line that each begins with; above the first are docstring and imports
    "parallel": re.compile(r"^# -+ parallel section$", re.MULTILINE),
    "task": re.compile(r"^# ==== task: .*$", re.MULTILINE),
    "loop": re.compile(r"^# ==== loop: .*$", re.MULTILINE),
}
# What sections must not name: the words of one way of running, and of one task.
BACKENDS = re.compile(
    r"\b(?:dist|distributed|ddp|DDP|DistributedDataParallel|dp|DataParallel|apex|amp_C|hvd|horovod|"
    r"nccl|gloo|torchrun|fsdp|fully_shard|DTensor|pipelining|deepspeed)\b",
    re.IGNORECASE,
)
IMAGES = re.compile(  # also as parts of names: max_bad_images, ImageFolder, best_top1
    r"(?<![A-Za-z])(?i:imagenet|images?|imgs?|jpe?gs?|pngs?|pil|pictures?|crops?|cropped|pixels?|"
    r"torchvision|mixup|cutmix|top[-_]?[15](?!\d))(?![a-z])"
)
FORBIDDEN = {"task": [BACKENDS], "loop": [BACKENDS, IMAGES]}


def split(text):
    """Returns {section: its text}, "head" first, or None unless each begins once, in order."""
    found = [[match.start() for match in mark.finditer(text)] for mark in SECTIONS.values()]
    if [len(starts) for starts in found] != [1, 1, 1] or sorted(found) != found:
        return None
    ends = [0, *(start for [start] in found), len(text)]
    names = ["head", *SECTIONS]
    return {name: text[ends[i] : ends[i + 1]] for i, name in enumerate(names)}


def place(name):
    """Returns (task, way) of a script's name: ("imagenet", "ddp_apex") of imagenet_ddp_apex.py."""
    task, _, way = name.removesuffix(".py").partition("_")
    return task, way


def belongs(section, name):
    """Returns what all scripts that have this script's text of a section have in common."""
    task, way = place(name)
    return {"parallel": f"parallel {way}", "task": f"task {task}"}.get(section, section)


def is_script(name, text):
    """Returns whether a file is of the grid: by its name, or by any line that begins a section."""
    known = {belongs("task", name), belongs("parallel", name)} & LIMITS.keys()
    return bool(known) or any(mark.search(text) for mark in SECTIONS.values())


def names(text):
    """Returns what a section defines at its top level, {name: parameters, None without any}, and
    the set of global names that it uses."""
    tables, used = [symtable.symtable(text, "section", "exec")], set()
    symbols = tables[0].get_symbols()
    own = [each.get_name() for each in symbols if each.is_assigned() or each.is_imported()]
    for table in tables:
        tables += table.get_children()
        used |= {
            each.get_name()
            for each in table.get_symbols()
            if each.is_referenced() and each.is_global()
        }
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return dict.fromkeys(own) | {node.name: ast.unparse(node.args) for node in functions}, used


def helpers(text):
    """Returns {name: text} of a section's private functions and classes."""
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        if getattr(node, "name", "").startswith("_"):
            first = min(each.lineno for each in [node, *node.decorator_list])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def compare(texts, what):
    """Returns a diff for each of {script: text} that has another text than most have."""
    every = list(texts.values())
    right = max(texts, key=lambda name: every.count(texts[name]))
    complaints = []
    for name, text in texts.items():
        if text != texts[right]:
            before, after = texts[right].splitlines(), text.splitlines()
            titles = f"{right}: {what}", f"{name}: {what}"
            lines = list(difflib.unified_diff(before, after, *titles, lineterm=""))
            complaints += lines or [f"{name}: {what}: line endings differ from {right}"]
    return complaints


def check_text(section, text, line, limit):
    """Returns complaints about a section's text, which begins after so many lines of its script."""
    complaints, lines = [], text.splitlines()
    code = sum(not re.match(r"\s*(#|$)", each) for each in lines)
    if limit is not None and code > limit:
        complaints.append(f"{code} lines of code, {limit} are allowed")
    for number, each in enumerate(lines, line + 1):
        for words in FORBIDDEN.get(section, []):
            complaints += [f"line {number} names {word}: {each}" for word in words.findall(each)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.exact_type == tokenize.SEMI:
            complaints.append(
                f"line {line + token.start[0]} has a semicolon: {token.line.rstrip()}"
            )
    return complaints


def check_names(sections, parallel, task):
    """Returns complaints about what one script's sections define, and use of each other."""
    found = {section: names(text) for section, text in sections.items()}
    complaints = []
    for section, contract in {"parallel": parallel, "task": task}.items():
        here, more = found[section][0], []
        if section == "parallel":  # it has no other public functions
            more = [name for name, had in here.items() if had is not None and name[0] != "_"]
        for name in dict.fromkeys([*contract, *more]):
            got, wanted = (table.get(name, "is missing") for table in (here, contract))
            if got != wanted:
                complaints.append(f"{section}: {name}({got}), in its contract {name}({wanted})")
    for number, (section, (defined, _)) in enumerate(found.items()):
        public = {name for name in defined if name[0] != "_"}
        allowed = {"parallel": parallel.keys(), "task": task.keys()}.get(section, public)
        for other, (own, used) in found.items():
            for name in defined.keys() & used - own.keys() - allowed:
                complaints.append(f"{other} uses {name}, which is private to {section}")
            if other in list(found)[number + 1 :]:
                complaints += [f"{section} and {other} define {n}" for n in defined.keys() & own]
    return complaints


def check(scripts, parallel=PARALLEL, task=TASK, limits=LIMITS):
    """Returns a list of complaints about {name: text}; empty when all is well."""
    parts, complaints = {}, [] if scripts else ["found no scripts TASK_WAY.py"]
    for name, text in scripts.items():
        try:
            compile(text, name, "exec", dont_inherit=True)
            parts[name] = split(text)
        except (SyntaxError, ValueError) as error:
            complaints.append(f"{name}: does not parse: {error}")
        if name in parts and not parts[name]:
            needed = ", ".join(mark.pattern for mark in SECTIONS.values())
            complaints.append(f"{name}: needs each of these lines once, in order: {needed}")
            del parts[name]
    groups, private, seen = {}, {}, set()
    for name, sections in parts.items():
        line = 0
        for section, text in sections.items():
            group = belongs(section, name)
            if section != "head":
                groups.setdefault(group, {})[name] = text
                if (group, text) not in seen:  # once for all that have this text
                    found = check_text(section, text, line, limits.get(group))
                    complaints += [f"{name}: {group}: {each}" for each in found]
                    seen.add((group, text))
            line += text.count("\n")
        for helper, text in helpers(sections["parallel"]).items():
            private.setdefault(helper, {})[name] = text
        complaints += [f"{name}: {each}" for each in check_names(sections, parallel, task)]
    for what, texts in (groups | private).items():
        complaints += compare(texts, what)
    return complaints


def propagate(scripts, source):
    """Returns {name: (text, sections taken)} of the scripts that take sections of one of them."""
    changed, mine = {}, split(scripts[source])
    for name, text in scripts.items():
        parts = split(text)
        own = [each for each in SECTIONS if belongs(each, name) == belongs(each, source)]
        taken = [each for each in own if parts[each] != mine[each]]
        if taken:
            parts |= {each: mine[each] for each in taken}
            changed[name] = "".join(parts.values()), taken
    return changed


def read_head(name, text):
    """Returns (first line, prose below it, launch lines, imports) of a script."""
    text = split(text)["head"]
    if text.count('"""') != 2:
        raise ValueError(f"{name}: needs a docstring, and imports alone after it")
    _, words, imports = text.split('"""')
    prose, _, commands = words.rstrip().partition("\n\n    ")
    return *prose.partition("\n")[::2], commands, imports


def put_together(new, way_donor, task_donor, scripts):
    """Returns the text of a script with one script's way of running, another's task and the loop.

    The docstring is to be read and corrected: it has the first's prose, and the second's launch
    lines, started as the first's are.
    """
    way, task = split(scripts[way_donor]), split(scripts[task_donor])
    first, prose, started, imports = read_head(way_donor, scripts[way_donor])
    title, _, commands, more_imports = read_head(task_donor, scripts[task_donor])
    # imagenet_nd.py is to imagenet_fsdp.py as text_nd.py is to text_fsdp.py.
    corner = f"{place(way_donor)[0]}_{place(task_donor)[1]}.py"
    if corner in scripts:
        parallel = read_head(corner, scripts[corner])[0]
        same = os.path.commonprefix([first, parallel]).rpartition(" ")[0]
        title = title.removesuffix(parallel.removeprefix(same)) + first.removeprefix(same)
    prose = re.sub(rf"\b{place(way_donor)[0]}_(?=[\w*]+\.py\b)", f"{place(new)[0]}_", prose)
    launcher = started.partition(way_donor)[0]
    commands = re.sub(
        rf"^( *).*?\b{task_donor}", lambda found: found[1] + launcher + new, commands, flags=re.M
    )
    sections = way["parallel"] + task["task"] + task["loop"]
    # Of both imports those that are used, in ruff's order.
    config = Path(__file__).parents[1] / "pyproject.toml"
    ruff = [sys.executable, "-m", "ruff", "check", "--config", config, "--select", "I,F401"]
    fixed = subprocess.run(
        [*ruff, "--fix", "--exit-zero", "--quiet", "--stdin-filename", new, "-"],
        input=f"{imports}\n{more_imports}\n\n{sections}",
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    used = split(fixed.stdout)["head"].strip()
    return f'"""{title}\n{prose}\n\n    {commands}\n"""\n\n{used}\n\n{sections}'


def main():
    """Checks; with --from or --new writes before."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: error: {message}\n")
    write = parser.add_mutually_exclusive_group()
    write.add_argument(
        "--from", dest="source", metavar="SCRIPT", help="write its sections to others"
    )
    write.add_argument("--new", metavar="SCRIPT", help="put it together from two others")
    parser.add_argument("--folder", default=Path(__file__).parents[1], type=Path)
    args = parser.parse_args()
    texts = {path.name: path.read_bytes().decode() for path in sorted(args.folder.glob("*_*.py"))}
    scripts = {name: text for name, text in texts.items() if is_script(name, text)}
    whole = {name: text for name, text in scripts.items() if split(text)}
    if args.source:
        name = Path(args.source).name
        if name not in whole or len(whole) < len(scripts):
            without = ", ".join(scripts.keys() - whole) or name
            parser.error(f"{without}: no such script, or not each section in it once")
        for other, (text, taken) in propagate(scripts, name).items():
            (args.folder / other).write_bytes(text.encode())
            scripts[other] = text
            print(f"{other}: took {', '.join(taken)} of {name}")
    if args.new:
        name = Path(args.new).name
        task, way = place(name)
        of_way = [each for each in whole if place(each)[1] == way]
        of_task = [
            each for each in (f"{task}_nd.py", *whole) if each in whole and place(each)[0] == task
        ]
        if not re.fullmatch(r"[a-z]+_\w+\.py", name) or not of_way or not of_task:
            parser.error(
                f"{name}: needs a script of its way, *_{way}.py, and one of its task, {task}_*.py"
            )
        if not importlib.util.find_spec("ruff"):
            parser.error("--new sorts imports by ruff: pip install ruff")
        try:
            text = put_together(name, of_way[0], of_task[0], whole)
            with open(args.folder / name, "xb") as file:
                file.write(text.encode())
        except (OSError, ValueError) as error:
            parser.error(str(error))
        scripts[name] = text
        print(f"{name}: made of {of_way[0]} and {of_task[0]}; read its docstring, and correct it")
    complaints = check(scripts)
    print("\n".join(complaints) or f"{len(scripts)} scripts agree")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
