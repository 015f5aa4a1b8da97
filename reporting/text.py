"""Text that comes from logs: pages and terminals show it as it is, whatever it is."""

import html
import json
import re
import urllib.parse

LONGEST = 4000  # characters of one text, beyond which it is cut: figures have labels of them


class Markdown(str):
    """Markdown of our own in a table, whose other cells are text."""


def visible(text):
    """Returns text in one line, with escapes such as \\x1b for whatever does not print."""
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    if text.isprintable():
        return text
    escapes = (each.encode("unicode_escape").decode() for each in text)
    return "".join(
        each if each.isprintable() else code for each, code in zip(text, escapes, strict=True)
    )


def escape(text):
    """Returns Markdown that shows a text as it is: no markup, HTML, cell or block of its own.

    Entities for HTML, since not every renderer takes a backslash before `<`. An underscore between
    letters and digits is no markup.
    """
    text = html.escape(visible(text).lstrip(), quote=False)
    text = re.sub(r"[\\`*\[\]{}|#~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)
    return re.sub(r"^(\d*)([-+=.)])(?=\s|[-=\s]*$)", r"\1\\\2", text)  # list, line, heading


def singular(text):
    """Returns a text in which no number 1 has a plural, as in "1 ranks"."""
    things = "core|device|epoch|file|GPU|image|node|part|rank|round|stage|step|thread|worker"
    return re.sub(rf"(?<![\w.,-])1 ({things})s\b", r"1 \1", text)


def code(text):
    """Returns a text as code, or escaped where a renderer could see more than code in it."""
    return escape(text) if re.search("[`<&]", text) else f"`{text}`"


def fence(lines):
    """Returns the Markdown lines of a block of shell commands."""
    longest = max(map(len, re.findall("`+", "\n".join(lines))), default=0)
    marks = "`" * max(3, longest + 1)
    return [f"{marks}bash", *lines, marks]


def image(text, path):
    """Returns the Markdown of a picture, with what is shown in its place."""
    return f"![{escape(text)}]({urllib.parse.quote(path)})"


def file_name(text):
    """Returns a name that all file systems take, with room for what is added to it."""
    name = re.sub(r"[^\w.-]+", "_", text).encode()[:140].decode(errors="ignore")
    return name.strip(".") or "_"


def reason(error):
    """Returns what an exception says, in one short line."""
    return (str(error).splitlines() or [repr(error)])[0][:200]


def read_json(text):
    """Returns what a text in JSON says, all text in it visible()."""
    return _clean(json.loads(text))


def _clean(content):
    if isinstance(content, dict):
        return {visible(name): _clean(each) for name, each in content.items()}
    if isinstance(content, list):
        return [_clean(each) for each in content]
    return visible(content) if isinstance(content, str) else content
