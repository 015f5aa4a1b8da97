"""Keep the imagenet_*.py equal where they must be: below the divider, to the byte.

    python tools/sync_copies.py                         # check; prints what differs, status 1
    python tools/sync_copies.py --from imagenet_ddp.py  # write its tail into the others

There is no original: edit the loop in whichever script you are reading, then propagate it. Checked
as well: one divider in each; the same functions with the same parameters above it; no name of a
backend below it. Only --from writes.
"""

import argparse
import ast
import difflib
import re
import sys
from pathlib import Path

DIVIDER = re.compile(r"^# ---- shared: .*\n", re.MULTILINE)
# The words of one way of running, which the shared tail must not know.
BACKENDS = re.compile(
    r"\b(?:dist|distributed|ddp|DDP|DistributedDataParallel|dp|DataParallel|apex|amp_C|hvd|horovod|"
    r"nccl|gloo|torchrun|fsdp|fully_shard|DTensor|pipelining|deepspeed)\b",
    re.IGNORECASE,
)


def split(text):
    """Returns (head, divider line, tail), or None unless there is one divider."""
    found = list(DIVIDER.finditer(text))
    if len(found) != 1:
        return None
    return text[: found[0].start()], found[0].group(), text[found[0].end() :]


def functions(head):
    """Returns {name: its parameters} of the functions at the top level of a script's head."""
    nodes = [node for node in ast.parse(head).body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.unparse(node.args) for node in nodes if not node.name.startswith("_")}


def check(scripts):
    """Returns a list of complaints about {name: text}; empty when all is well."""
    if len(scripts) < 2:
        return [f"found {len(scripts)} imagenet_*.py, need two or more to compare"]
    parts = {name: split(text) for name, text in scripts.items()}
    complaints = [f"{name}: needs one divider line" for name in parts if not parts[name]]
    parts = {name: part for name, part in parts.items() if part}
    if not parts:
        return complaints
    tails = [part[1:] for part in parts.values()]
    first = max(parts, key=lambda name: tails.count(parts[name][1:]))  # what most have is right
    head, divider, tail = parts[first]
    for name, (other_head, other_divider, other_tail) in parts.items():
        if divider + tail != other_divider + other_tail:
            lines = difflib.unified_diff(
                (divider + tail).splitlines(),
                (other_divider + other_tail).splitlines(),
                f"{first} below its divider",
                f"{name} below its divider",
                lineterm="",
            )
            complaints.append("\n".join(lines) or f"{name}: line endings differ from {first}")
        mine, other = functions(head), functions(other_head)
        for function in mine.keys() | other.keys():
            if mine.get(function) != other.get(function):
                complaints.append(
                    f"{function}({mine.get(function, 'is missing')}) in {first}, "
                    f"{function}({other.get(function, 'is missing')}) in {name}"
                )
        for number, line in enumerate(other_tail.splitlines(), 1):
            for word in BACKENDS.findall(line):
                complaints.append(f"{name}: line {number} below the divider names {word}: {line}")
    return complaints


def main():
    """Checks, or with --from propagates and then checks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--from", dest="source", metavar="SCRIPT", help="write its tail to the rest"
    )
    parser.add_argument("--folder", default=Path(__file__).parents[1], type=Path)
    args = parser.parse_args()
    paths = sorted(args.folder.glob("imagenet_*.py"))
    scripts = {path.name: path.read_bytes().decode() for path in paths}
    if args.source:
        name = Path(args.source).name
        without = [other for other in scripts if not split(scripts[other])]
        if name not in scripts or without:
            parser.error(f"{', '.join(without) or name}: no such script, or not one divider in it")
        _, divider, tail = split(scripts[name])
        for path in paths:
            new = split(scripts[path.name])[0] + divider + tail
            if new != scripts[path.name]:
                path.write_bytes(new.encode())
                print(f"{path.name}: took the tail of {name}")
            scripts[path.name] = new
    complaints = check(scripts)
    print("\n".join(complaints) or f"{len(scripts)} scripts agree")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
