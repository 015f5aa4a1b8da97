"""For whoever copies one file to where they train: a script with what it uses of trainparts/.

    python tools/one_file.py imagenet_ddp.py > my/imagenet_ddp.py
    make flat                       # each script, in flat/

The file trains exactly as the script does, resumes the script's runs, and needs no trainparts/, but
the packages that pyproject.toml lists. It has the script's sections, and below them the modules
that it uses; `errors.BadInput` is called BadInput there. So no name may stand for two things: where
one would, or where the file could do another thing than the script, a line says what to change. The
trainparts/ beside the script is used, or else that of this checkout.
"""

import ast
import builtins
import re
import shlex
import symtable
import sys
import tokenize
from pathlib import Path

from commandline import ROOT, make_parser, one_line

from trainparts import package_digest

PACKAGE = "trainparts"
# In a docstring, in whose places the file says what it was made of, and what it needs.
BESIDE = (
    "What is not training is in trainparts/, the folder beside this script: copy the two together."
)
INSTALL = re.compile(r"pip install (\.|\"\.\[(\w+)\]\")$", re.MULTILINE)
MADE = "by tools/one_file.py."  # so ends what the docstring of one file says of it
BINDING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# What a script looks for the package by, and its own names, which each file has.
GUARD = {"PARTS", "VERSION"}
PUBLIC = "__all__"  # of a module
OWN = {"__file__", "__name__", "__doc__"}


class Refused(Exception):
    """Why a script cannot be one file, in a line."""


class Part:
    """A script, or a module of the package, with the edits of its text."""

    def __init__(self, path, name=""):
        self.path = path
        self.name = name  # the module's, as trainparts.runs.event_log; of a script ""
        self.content = path.read_bytes()
        try:
            with open(path, "rb") as file:
                encoding, _ = tokenize.detect_encoding(file.readline)
            self.tree = ast.parse(self.content)
            symbols = symtable.symtable(self.content.decode(), str(path), "exec").get_symbols()
        except (SyntaxError, ValueError) as error:
            raise Refused(f"{path} is no Python in UTF-8: {error}") from None
        if encoding != "utf-8":
            raise Refused(f"{path} is no Python in UTF-8: it says {encoding}")
        self.starts = [0]  # bytes before each line
        for line in self.content.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.edits = {}  # {(start, end) in bytes: text, or [(old, new)] in an f-string}
        self.modules = {}  # {name here: the package's module}
        self.imports = []  # (module or "", name, name here or None)
        self.statements = []  # at the top, without docstring, imports and guard
        self.parts = None  # the script's PARTS
        self.docstring = ast.get_docstring(self.tree, clean=False)
        done = 0
        for node in self.tree.body:
            if node.lineno <= done:
                raise self.refused(node, "two statements are on one line")
            done = node.end_lineno
            self.read(node)
        self.check_annotations()
        # What it defines at its top, also where it imports what may be missing, and by `global`.
        bound = {bound_by(*each)[0] for each in self.imports} | self.modules.keys()
        self.top = {x.get_name() for x in symbols if x.is_assigned() or x.is_imported()} - GUARD
        self.top -= {PUBLIC} if self.name else set()
        for node in ast.walk(self.tree):
            self.top |= {*node.names} if isinstance(node, ast.Global) else set()
        for node in self.statements:
            again = {node.name} if isinstance(node, BINDING) else bound_in(node)
            self.top |= again
            if both := sorted(again & bound):
                raise self.refused(node, f"{both[0]} is imported, and another thing here")
        self.top -= bound

    def read(self, node):
        """Notes what a statement at the top is; what is not to stay is taken out of the text."""
        if self.docstring is not None and node is self.tree.body[0]:
            return
        if isinstance(node, ast.Import | ast.ImportFrom):
            if any(not isinstance(each, ast.Try) for each in self.statements):
                raise self.refused(node, "an import stands below other code")
            self.read_import(node)
        elif not self.name and is_guard(node):
            for each in ast.walk(node):
                if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "PARTS":
                    self.parts = ast.literal_eval(each.value)
        elif self.name and bound_in(node) == {PUBLIC}:
            pass  # for those who import the module
        elif not self.name and GUARD & (read_in(node) | bound_in(node)):
            raise self.refused(node, "PARTS and VERSION are those of the package")
        else:
            self.statements.append(node)
            return
        self.edits[self.lines(node)] = ""

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
                raise self.refused(node, f"{PACKAGE} is imported as a whole")

    def check_annotations(self):
        """Raises Refused if annotations are evaluated, as in the one file they are not."""
        if ("__future__", "annotations", None) not in self.imports:
            for node in ast.walk(self.tree):
                if getattr(node, "annotation", None) or getattr(node, "returns", None):
                    raise self.refused(
                        node, "annotations without `from __future__ import annotations`"
                    )

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

    def shorten(self, node, formatted):
        """Takes the module off a name; `formatted` is the f-string around it, or None."""
        old = f"{node.value.id}.{node.attr}"
        if formatted:  # before Python 3.12, nodes in it have no right positions
            self.edits.setdefault(self.span(formatted), []).append((old, node.attr))
            return
        begin, end = self.span(node)
        if self.content[begin:end] != old.encode():
            raise self.refused(node, f"{old} is not written in one piece")
        self.edits[begin, end] = node.attr

    def shorten_in(self, formatted, names):
        """Returns the text of an f-string, with shorter names."""
        begin, end = self.span(formatted)
        text = self.content[begin:end].decode()
        texts = [each.value for each in ast.walk(formatted) if isinstance(each, ast.Constant)]
        for old, new in {*names}:
            pattern = rf"(?<![\w.]){re.escape(old)}(?!\w)"
            alike = len(re.findall(pattern, text)) == names.count((old, new))
            if not alike or any(old in str(each) for each in texts):
                raise self.refused(formatted, f"an f-string has {old} in its text, too")
            text = re.sub(pattern, new, text)
        return text

    def text(self, begin, end):
        """Returns the text between two positions, in bytes, edited."""
        pieces = []
        for (first, last), new in sorted(self.edits.items()):
            if begin <= first < end:
                pieces += [self.content[begin:first].decode(), new]
                begin = last
        return "".join([*pieces, self.content[begin:end].decode()]).strip()


def is_guard(node):
    """Returns whether a statement is one of the two by which a script looks for the package."""
    if isinstance(node, ast.Try):
        body = [re.sub("=.*", "=", ast.unparse(each)) for each in node.body]
        wanted = ["PARTS =", f"from {PACKAGE} import VERSION"]
        return body == wanted and not node.orelse and not node.finalbody
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith(" != PARTS")


def read_in(node):
    """Returns the names that a tree reads."""
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in names if isinstance(each.ctx, ast.Load)}


def bound_in(node):
    """Returns the names that a statement gives to something, in any scope within it, attributes and
    methods of classes included; not its own."""
    names = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
            names.add(each.id)
        elif isinstance(each, ast.arg):
            names.add(each.arg)
        elif isinstance(each, ast.MatchMapping):
            names.add(each.rest)
        elif isinstance(each, ast.Import | ast.ImportFrom):
            names |= {(one.asname or one.name).partition(".")[0] for one in each.names}
        elif each is not node and isinstance(getattr(each, "name", None), str):
            names.add(each.name)  # of functions, classes, handlers, patterns, types
    return names - {None}


def read_at_import(node):
    """Yields the names that a statement at the top reads when it is executed, or may then call.
    Annotations, which are not evaluated, are left out."""
    inside = ast.iter_child_nodes(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        inside = [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.decorator_list]
    elif isinstance(node, ast.AnnAssign):
        inside = filter(None, [node.value])
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for each in inside:
        yield from read_at_import(each)


def find_names(node, formatted=None, parent=None):
    """Yields (node, its parent, the f-string around it or None) of all names in a tree."""
    if isinstance(node, ast.Name):
        yield node, parent, formatted
    if isinstance(node, ast.JoinedStr):
        formatted = formatted or node
    for each in ast.iter_child_nodes(node):
        yield from find_names(each, formatted, node)


def collect(script, folder):
    """Returns the modules that a script uses, {name: Part}, each below those that it imports."""
    found, begun = {}, []

    def visit(part):
        for name in part.modules.values():
            if name in begun:
                raise Refused(f"{part.path} imports {name}, which imports it")
            if name not in found:
                path = folder.joinpath(*name.split(".")[1:]).with_suffix(".py")
                if not path.is_file():
                    raise Refused(f"{part.path} imports {name}, but {path} is no file")
                begun.append(name)
                module = Part(path, name)
                visit(module)
                found[begun.pop()] = module

    visit(script)
    return found


def bound_by(module, name, own):
    """Returns (name, what it stands for) of an import."""
    if own or module:
        return own or name, (module, name)
    return (name.partition(".")[0],) * 2


def check_names(parts):
    """Raises Refused if a name at the top would stand for two things."""
    imported, owner, builtin = {}, {}, {}
    for part in parts:
        for name, what in (bound_by(*each) for each in part.imports):
            if imported.setdefault(name, what) != what:
                raise Refused(f"{part.path} imports as {name} another thing than other files")
        for name in read_in(part.tree) & {*dir(builtins)} - part.top:
            builtin.setdefault(name, part.path)
    for part in parts:
        for name in sorted(part.top):
            first = owner.setdefault(name, part.path)
            other = first if first != part.path else builtin.get(name)
            if other or name in imported:
                raise Refused(
                    f"{part.path} defines {name}, which {other or PACKAGE} has: rename it"
                )


def put_together(part, modules):
    """Takes the modules off the names in a part's text."""
    strange = re.compile(rf"\b{PACKAGE}\.\w|(?:{'|'.join(part.modules) or PACKAGE})\.\w+")
    for statement in part.statements:
        if part.lines(statement) in part.edits:  # a constant takes its place
            continue
        bound = bound_in(statement)
        if both := sorted(bound & part.modules.keys() & read_in(statement)):
            raise part.refused(statement, f"{both[0]} is a module, and a local here")
        patterns = set()
        for each in ast.walk(statement):
            if isinstance(each, ast.Import | ast.ImportFrom) and PACKAGE in ast.unparse(each):
                raise part.refused(each, f"{PACKAGE} is imported within something")
            if isinstance(each, ast.MatchValue | ast.MatchMapping):
                values = getattr(each, "keys", [getattr(each, "value", None)])
                patterns |= {one for value in values for one in ast.walk(value)}
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                if strange.fullmatch(each.value) or f"{PACKAGE}.errors" in each.value:
                    raise part.refused(each, f"the string {each.value!r:.40} names a module")
        for node, parent, formatted in find_names(statement):
            if node.id in OWN and part.name:
                raise part.refused(node, f"{node.id} would be the script's")
            if node.id not in part.modules or not isinstance(node.ctx, ast.Load):
                continue  # such as an attribute of a class that nothing reads by its name
            module = modules[part.modules[node.id]]
            if not isinstance(parent, ast.Attribute) or not isinstance(parent.ctx, ast.Load):
                raise part.refused(node, f"{node.id} is used as a value, or changed")
            if parent.attr not in module.top:
                raise part.refused(node, f"{module.path} does not define {parent.attr}")
            if parent.attr in bound or node in patterns:
                what = f"{parent.attr} is another thing here than in {module.name}"
                raise part.refused(node, f"{what}: rename it")
            part.shorten(parent, formatted)
    for node in ast.walk(part.tree):
        if isinstance(node, ast.JoinedStr) and isinstance(part.edits.get(part.span(node)), list):
            part.edits[part.span(node)] = part.shorten_in(node, part.edits[part.span(node)])


def put_constants(modules, folder, identity):
    """Replaces what modules read beside them by what they read."""
    ids = folder / "images" / "imagenet_classes.txt"
    constants = {
        "package_digest.read_package": "",
        "package_digest.hash_texts": "",
        "package_digest.TEXTS": "TEXTS = {}  # all is in this file\n",
        "package_digest.IDENTITY": f"IDENTITY = {identity!r}\n",
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


def needed_at_once(script):
    """Returns whether a script may need its modules as soon as it is imported: its top level reads
    one, itself or in what it may call, or does more than to define and to assign."""
    definitions = {each.name: each for each in script.statements if isinstance(each, BINDING)}
    todo = [name for each in script.statements for name in read_at_import(each)]
    found = {*todo}
    for name in todo:
        if name in definitions:
            more = read_in(definitions[name]) - found
            found |= more
            todo += more
    plain = (*BINDING, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Try)
    others = [each for each in script.statements if not isinstance(each, plain)]
    for each in script.statements:
        targets = getattr(each, "targets", [getattr(each, "target", None)])
        others += [one for one in targets if isinstance(one, ast.Attribute | ast.Subscript)]
    return bool(others or found & script.modules.keys())


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


def read_version(folder):
    """Returns the package's VERSION. Raises Refused if an __init__.py does more than to say it."""
    for path in [folder / "__init__.py", *folder.rglob("*/__init__.py")]:
        lines = [ast.unparse(each) for each in ast.parse(path.read_bytes()).body]
        lines = [line for line in lines if line[:1] not in "\"'"]
        versions = [re.fullmatch(r"VERSION = '(\d[^']*)'", line) for line in lines]
        if not all(versions) or len(versions) != (path.parent == folder):
            raise Refused(f"{path} has more than a docstring, or no VERSION of its own form")
        if versions:
            version = versions[0][1]
    return version


def write(path):
    """Returns the text of a script with what it uses of trainparts/."""
    folder = path.resolve().parent / PACKAGE
    folder = folder if folder.is_dir() else ROOT / PACKAGE
    version, script = read_version(folder), Part(path)
    if script.parts not in (None, version.rpartition(".")[0]):
        raise Refused(f"{path} needs {PACKAGE} {script.parts}, and {folder} is {version}")
    identity = f"{version}+{package_digest.hash_texts(package_digest.read_package(folder))}"
    modules = collect(script, folder)
    put_constants(modules, folder, identity)
    parts = [script, *modules.values()]
    check_names(parts)
    for part in parts:
        put_together(part, modules)
    begin, end = 0, len(script.content)
    if script.docstring is not None:
        begin, after = script.lines(script.tree.body[0])
    above = script.content[:begin].decode()  # such as the line with #!
    begin = after if script.docstring is not None else 0
    # Below the script's sections, where a reader comes to them last, and above its last lines; but
    # above all if they are needed as soon as the file is imported.
    if is_main(script.tree.body[-1]):
        script.statements.pop()
        end = script.lines(script.tree.body[-1])[0]
    pasted = [script.text(begin, end), *map(describe, modules.values())]
    if needed_at_once(script):
        pasted.append(pasted.pop(0))
    pasted.append(script.text(end, len(script.content)))
    head = [above + write_docstring(script, identity), "from __future__ import annotations"]
    text = "\n\n\n".join(filter(None, pasted))
    text = "\n\n".join([*head, import_lines(parts), text]).rstrip() + "\n"
    try:
        compile(text, path.name, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise Refused(f"{path} cannot be put into one file: {error}") from None
    return text


def is_main(statement):
    """Returns whether a statement is `if __name__ == "__main__"`."""
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def describe(part):
    """Returns a module's text, below its name and its docstring."""
    about = "\n".join(f"# {line}".rstrip() for line in (part.docstring or "").strip().splitlines())
    begin = 0 if part.docstring is None else part.lines(part.tree.body[0])[1]
    text = part.text(begin, len(part.content))
    return f"# ==== {part.name.replace('.', '/')}.py\n{about}\n\n\n{text}"


def main():
    """Prints one file."""
    parser = make_parser(__doc__)
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="imagenet_*.py, text_*.py")
    args = parser.parse_args()
    with one_line(parser, Refused, OSError):
        sys.stdout.buffer.write(write(args.script).encode())


if __name__ == "__main__":
    main()
