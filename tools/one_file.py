"""For whoever copies one file to where they train: a script with what it uses of trainparts/.

    python tools/one_file.py imagenet_ddp.py > my/imagenet_ddp.py
    make flat                       # each script, in flat/

The file trains exactly as the script does, resumes the script's runs, and needs no trainparts/, but
the packages that pyproject.toml lists. It has the script's sections, and below them the modules
that it uses; `errors.BadInput` is called BadInput there. A name that something else has as well
gets that of its module before it. What cannot be renamed so is refused. It uses the trainparts/
beside the script, or else that of this checkout.
"""

import ast
import builtins
import re
import shlex
import symtable
import sys
from pathlib import Path

from commandline import ROOT, make_parser, one_line

from trainparts import package_digest

PACKAGE = "trainparts"
# In a docstring, in whose places the file says what it was made of, and what it needs.
BESIDE = (
    "What is not training is in trainparts/, the folder beside this script: copy the two together."
)
INSTALL = re.compile(r"pip install (\.|\"\.\[(\w+)\]\")$", re.MULTILINE)
BINDING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
MADE = "by tools/one_file.py."  # so ends what the docstring of one file says of it
GUARD = {"PARTS", "VERSION"}  # what a script looks for the package by


class Refused(Exception):
    """Why a script cannot be one file, in a line."""


class Part:
    """A script, or a module of the package, with the edits of its text."""

    def __init__(self, path, name=""):
        self.path = path
        self.name = name  # the module's, as trainparts.runs.event_log; of a script ""
        self.content = path.read_bytes()
        self.starts = [0]  # bytes before each line
        for line in self.content.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.edits = {}  # {(start, end) in bytes: text, or [(old, new)] in an f-string}
        self.modules = {}  # {name here: the package's module}
        self.imports = []  # (module or "", name, name here or None)
        self.statements = []  # at the top, without docstring and imports
        try:
            self.tree = ast.parse(self.content)
            symbols = symtable.symtable(self.content.decode(), str(path), "exec").get_symbols()
        except (SyntaxError, ValueError) as error:
            raise Refused(f"{path} is no Python: {error}") from None
        self.docstring = ast.get_docstring(self.tree, clean=False)
        done = 0
        for node in self.tree.body:
            if node.lineno <= done:
                raise self.refused(node, "two statements on a line")
            done = node.end_lineno
        for node in self.tree.body[self.docstring is not None :]:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.read_import(node)
                self.edits[self.lines(node)] = ""
            elif not name and is_guard(node):
                self.edits[self.lines(node)] = ""
            elif not name and GUARD & bound_or_read(node):
                raise self.refused(node, "PARTS and VERSION are those of the package")
            else:
                self.statements.append(node)
        bound = {bound_by(*each)[0] for each in self.imports} | self.modules.keys()
        defined = (each for each in symbols if each.is_assigned() or each.is_imported())
        # What it defines at its top, or imports there where it may be missing.
        self.top = {each.get_name() for each in defined} - bound - GUARD

    def read_import(self, node):
        """Notes what an import at the top imports."""
        module = getattr(node, "module", "")
        for each in node.names:
            if module is None or getattr(node, "level", 0) or each.name == "*":
                raise self.refused(node, "a relative import, or one of all names")
            first = (module or each.name).partition(".")[0]
            if first != PACKAGE:
                self.imports.append((module, each.name, each.asname))
            elif module and each.name == "VERSION" and not each.asname:
                pass  # of package_digest, which becomes constants
            elif module:
                self.modules[each.asname or each.name] = f"{module}.{each.name}"
            else:
                raise self.refused(node, f"{PACKAGE} as a whole")

    def lines(self, node):
        """Returns where the lines of a statement begin and end, in bytes."""
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        return self.starts[first - 1], self.starts[node.end_lineno]

    def span(self, node):
        """Returns where a node begins and ends, in bytes."""
        begin = self.starts[node.lineno - 1] + node.col_offset
        return begin, self.starts[node.end_lineno - 1] + node.end_col_offset

    def refused(self, node, why):
        """Returns why this part cannot be in one file."""
        return Refused(f"{self.path}, line {node.lineno}: cannot be put into one file: {why}")

    def replace(self, node, old, new, formatted):
        """Replaces a name, `old`; `formatted` is the f-string around it, or None."""
        if formatted:  # before Python 3.12, nodes in it have no right positions
            self.edits.setdefault(self.span(formatted), []).append((old, new))
            return
        begin, end = self.span(node)
        if isinstance(node, BINDING):  # its name is the last word before (, : or [
            begin, end = (
                re.compile(rb"(?:\w+\s+)+?(\w+)\s*[(:[]").match(self.content, begin).span(1)
            )
        if self.content[begin:end] != old.encode():
            raise self.refused(node, f"{old} is not written in one piece")
        self.edits[begin, end] = new

    def replace_in(self, begin, end, names):
        """Returns the text of an f-string with other names in it."""
        text = self.content[begin:end].decode()
        for old, new in {*names}:
            pattern = rf"(?<![\w.]){re.escape(old)}(?!\w)"
            if len(re.findall(pattern, text)) != names.count((old, new)):
                line = self.content[:begin].count(b"\n") + 1
                what = f"the f-string has {old} in its text, too"
                raise Refused(f"{self.path}, line {line}: cannot be put into one file: {what}")
            text = re.sub(pattern, new, text)
        return text

    def text(self):
        """Returns the text behind the docstring, edited."""
        done = self.lines(self.tree.body[0])[1] if self.docstring is not None else 0
        pieces = []
        for (begin, end), new in sorted(self.edits.items()):
            new = self.replace_in(begin, end, new) if isinstance(new, list) else new
            pieces += [self.content[done:begin].decode(), new]
            done = end
        return "".join([*pieces, self.content[done:].decode()]).strip()


def is_guard(node):
    """Returns whether a statement is one of the two by which a script looks for the package."""
    if isinstance(node, ast.Try):
        return f"from {PACKAGE} import VERSION" in map(ast.unparse, node.body)
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith(" != PARTS")


def bound_or_read(node):
    """Returns all names in a statement, with those that it imports."""
    return bound_in(node) | {each.id for each, *_ in find_names(node)}


def bound_in(node):
    """Returns the names that a statement gives to something, in any scope within it; of a class's
    attributes, which functions in it do not see, those that the class itself reads."""
    names = {each.id for each, *_ in find_names(node) if not isinstance(each.ctx, ast.Load)}
    methods = set()
    for each in ast.walk(node):
        if isinstance(each, ast.ClassDef):
            methods |= {one for one in each.body if isinstance(one, BINDING)}
            read = {name for one in each.body for name in read_at_import(one)}
            names |= {one.id for one in attributes_of(each)} & read
        elif isinstance(each, ast.arg):
            names.add(each.arg)
        elif isinstance(each, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            names.add(each.name)
        elif isinstance(each, ast.MatchMapping):
            names.add(each.rest)
        elif isinstance(each, ast.Import | ast.ImportFrom):
            names |= {(one.asname or one.name).partition(".")[0] for one in each.names}
        if isinstance(each, BINDING) and each is not node and each not in methods:
            names.add(each.name)
    return names - {None}


def attributes_of(node):
    """Returns the names, as nodes, to which the body of a class assigns."""
    targets = []
    for each in node.body:
        targets += getattr(each, "targets", [getattr(each, "target", None)])
    return {each for each in targets if isinstance(each, ast.Name)}


def read_at_import(node):
    """Yields the names that a statement at the top reads when it is executed. Annotations, which
    are not, are left out."""
    inside = ast.iter_child_nodes(node)
    if isinstance(node, FUNCTIONS):
        inside = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        inside += getattr(node, "decorator_list", [])
    elif isinstance(node, ast.AnnAssign):
        inside = filter(None, [node.value])
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for each in inside:
        yield from read_at_import(each)


def find_names(node, formatted=None, parent=None):
    """Yields (node, its parent, the f-string around it or None) of all names in a tree but those of
    attributes, in a class's body."""
    if isinstance(node, ast.Name):
        yield node, parent, formatted
    if isinstance(node, ast.JoinedStr):
        formatted = formatted or node
    for each in ast.iter_child_nodes(node):
        if not (isinstance(parent, ast.ClassDef) and each in attributes_of(parent)):
            yield from find_names(each, formatted, node)


def collect(script, folder):
    """Returns the modules that a script uses, {name: Part}, each below those that it imports."""
    found = {}

    def visit(part):
        for name in part.modules.values():
            if name not in found:
                path = folder.joinpath(*name.split(".")[1:]).with_suffix(".py")
                if not path.is_file():
                    raise Refused(f"{part.path} imports {name}, but {path} is no file")
                module = Part(path, name)
                visit(module)
                found[name] = module

    visit(script)
    return found


def bound_by(module, name, own):
    """Returns (name, what it stands for) of an import."""
    if own or module:
        return own or name, (module, name)
    return (name.partition(".")[0],) * 2


def choose_names(script, modules):
    """Returns {(module, name): its name in the one file} of all that modules define."""
    every, imported = [script, *modules.values()], {}
    for part in every:
        for name, what in (bound_by(*each) for each in part.imports):
            if imported.setdefault(name, what) != what:
                raise Refused(f"{part.path} imports as {name} another thing than the others")
    names = {node.id for part in modules.values() for node, *_ in find_names(part.tree)}
    builtin = names & {*dir(builtins)}
    if both := sorted(script.top & imported.keys() | (script.top | imported.keys()) & builtin):
        raise Refused(f"{script.path} defines {both[0]}, which {PACKAGE} uses: rename it")
    # Per part, {(module, name): names that are bound where it is used}.
    used = {}
    for part in every:
        for statement in part.statements:
            for node, parent, _ in find_names(statement):
                if node.id in part.modules and isinstance(parent, ast.Attribute):
                    key = part.modules[node.id], parent.attr
                    used.setdefault(key, set()).update(bound_in(statement))
    chosen = {}
    for part in modules.values():
        for name in part.top:
            taken = {*dir(builtins), *imported, *used.get((part.name, name), ())}
            taken = taken.union(*(each.top for each in every if each is not part))
            new = name
            if name in taken:
                new = f"{part.name.rpartition('.')[2]}_{name}"
            classes = (each.name for each in part.statements if isinstance(each, ast.ClassDef))
            if new != name and name in classes:  # whose name programs print
                raise Refused(
                    f"{script.path} uses {name}, a class of {part.path}, for another thing"
                )
            if new in taken - {name} or (new != name and new in part.top):
                raise Refused(f"{part.path} defines {name}, which others define, and {new}, too")
            chosen[part.name, name] = new
    return chosen


def rename(part, modules, chosen):
    """Edits the names in a part's text."""
    renamed = {name for name in part.top if chosen.get((part.name, name), name) != name}
    for statement in part.statements:
        if part.edits.get(part.lines(statement)) is not None:  # a constant takes its place
            continue
        bound = bound_in(statement)
        for each in ast.walk(statement):
            if isinstance(each, ast.Import | ast.ImportFrom) and PACKAGE in ast.unparse(each):
                raise part.refused(each, f"{PACKAGE} is imported within something")
            if isinstance(each, ast.Global) and renamed & {*each.names}:
                raise part.refused(each, f"global {', '.join(each.names)}")
        if both := sorted(bound & part.modules.keys()):
            raise part.refused(statement, f"{both[0]} is a module, and a local here")
        if isinstance(statement, BINDING):
            if both := sorted(bound & renamed):
                raise part.refused(statement, f"{both[0]} is a local, and a name of the module")
            if statement.name in renamed:
                part.replace(statement, statement.name, chosen[part.name, statement.name], None)
        for node, parent, formatted in find_names(statement):
            if node.id == "__file__" and part.name:
                raise part.refused(node, "it uses a file beside it")
            if node.id in renamed:
                part.replace(node, node.id, chosen[part.name, node.id], formatted)
            if node.id in part.modules:
                module = modules[part.modules[node.id]]
                if not isinstance(parent, ast.Attribute) or not isinstance(parent.ctx, ast.Load):
                    raise part.refused(node, f"{node.id} is used as a value, or changed")
                if parent.attr not in module.top:
                    raise part.refused(node, f"{module.path} does not define {parent.attr}")
                old = f"{node.id}.{parent.attr}"
                part.replace(parent, old, chosen[module.name, parent.attr], formatted)


def put_constants(modules, folder, identity):
    """Replaces what modules read beside them by what they read."""
    ids = folder / "images" / "imagenet_classes.txt"
    constants = {
        "package_digest.read_package": "",
        "package_digest.hash_texts": "",
        "package_digest.TEXTS": "TEXTS = {}  # all is in this file\n",
        "package_digest.IDENTITY": f"IDENTITY = {identity!r}\n",
        "images.class_names.IMAGENET_FILE": "IMAGENET_FILE = Path(__file__)\n",
        "images.class_names.IMAGENET": f'IMAGENET = """\n{ids.read_text()}""".split()\n',
    }
    for part in modules.values():
        for node in part.statements:
            names = [getattr(node, "name", None)]
            names += [getattr(each, "id", None) for each in getattr(node, "targets", [])]
            for name in names:
                text = constants.get(f"{part.name.partition('.')[2]}.{name}")
                if text is not None:
                    part.edits[part.lines(node)] = text


def needed_at_import(script):
    """Returns the names that a script reads when it is imported, itself or in what it may call."""
    definitions = {each.name: each for each in script.statements if isinstance(each, BINDING)}
    todo = [name for each in script.statements for name in read_at_import(each)]
    found = {*todo}
    for name in todo:
        if name in definitions:
            more = {node.id for node, *_ in find_names(definitions[name])} - found
            found |= more
            todo += more
    return found


def is_main(statement):
    """Returns whether a statement is `if __name__ == "__main__"`."""
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def import_lines(parts):
    """Returns the imports of all parts, as text."""
    plain, names_of = set(), {}
    for part in parts:
        for module, name, own in part.imports:
            if module == "__future__":
                continue
            renamed = f" as {own}" if own else ""
            if module:
                names_of.setdefault(module, set()).add(f"{name}{renamed}")
            else:
                plain.add(f"import {name}{renamed}")
    lines = sorted(plain)
    lines += [
        f"from {module} import {', '.join(sorted(names_of[module]))}" for module in sorted(names_of)
    ]
    standard = [line for line in lines if re.split(r"[ .]", line)[1] in sys.stdlib_module_names]
    others = [line for line in lines if line not in standard]
    return "\n".join([*standard, "", *others])


def write_docstring(script, identity):
    """Returns a script's docstring, which says what this file was made of, and what it needs."""
    text = script.docstring or ""
    if MADE in text:
        raise Refused(f"{script.path} is one file already")
    made = f"Made of {script.path.name} and {PACKAGE} {identity} {MADE}"
    text = text.replace(BESIDE, made) if BESIDE in text else f"{text.rstrip()}\n\n{made}\n"
    text = INSTALL.sub(lambda found: f"pip install {packages(found[2])}", text)
    text = text.lstrip().replace("\\", "\\\\").replace('"""', r"\"\"\"")
    return f'"""{text}\n"""' if text.endswith('"') else f'"""{text}"""'


def packages(extra=None):
    """Returns the names of the packages that scripts need, as a shell takes them."""
    project = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)[1]
    if extra:
        listed += re.search(rf"^{extra} = (\[.*?\])", project, re.MULTILINE | re.DOTALL)[1]
    names = re.findall(r"(?:^ *|\[)\"([^\";]+)", listed, re.MULTILINE)
    return shlex.join(names)


def write(path):
    """Returns the text of a script with what it uses of trainparts/."""
    folder = path.resolve().parent / PACKAGE
    folder = folder if folder.is_dir() else ROOT / PACKAGE
    init = (folder / "__init__.py").read_text()
    version = re.search(r"^VERSION = \"(.+)\"$", init, re.MULTILINE)[1]
    script = Part(path)
    wanted = re.search(rb"^    PARTS = \"(.+)\"", script.content, re.MULTILINE)
    if wanted and version.rpartition(".")[0] != wanted[1].decode():
        raise Refused(f"{path} needs {PACKAGE} {wanted[1].decode()}, and {folder} is {version}")
    identity = f"{version}+{package_digest.hash_texts(package_digest.read_package(folder))}"
    modules = collect(script, folder)
    put_constants(modules, folder, identity)
    chosen = choose_names(script, modules)
    for part in script, *modules.values():
        rename(part, modules, chosen)
    # Below the script's sections, where a reader comes to them last; but above them if they are
    # needed as soon as the file is imported.
    body, end = script.text(), ""
    if any(map(is_main, script.statements[-1:])):
        script.statements.pop()
        body, mark, end = body.rpartition("\n\n\nif __name__")
        end = f"{mark}{end}".strip()
    pasted = [body, *map(describe, modules.values())]
    if needed_at_import(script) & script.modules.keys():
        pasted.append(pasted.pop(0))
    text = "\n\n\n".join(filter(None, [*pasted, end]))
    imports = import_lines([script, *modules.values()])
    future = "from __future__ import annotations"
    text = "\n\n".join([write_docstring(script, identity), future, imports, text])
    compile(text, path.name, "exec", dont_inherit=True)
    return f"{text.rstrip()}\n"


def describe(part):
    """Returns a module's text, below its name and its docstring."""
    about = "\n".join(f"# {line}".rstrip() for line in (part.docstring or "").strip().splitlines())
    return f"# ==== {part.name.replace('.', '/')}.py\n{about}\n\n\n{part.text()}"


def main():
    """Prints one file."""
    parser = make_parser(__doc__)
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="imagenet_*.py, text_*.py")
    args = parser.parse_args()
    with one_line(parser, Refused, OSError):
        sys.stdout.write(write(args.script))


if __name__ == "__main__":
    main()
