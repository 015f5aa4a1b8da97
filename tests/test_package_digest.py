"""trainparts/package_digest.py: which texts make a package what it is, and the digest of them."""

import hashlib
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

import trainparts
from trainparts import package_digest


@pytest.fixture
def package(tmp_path):
    """The folder of a package, with what is beside its modules in practice."""
    folder = tmp_path / "a package"
    for name in ".git", "inner/.cache", "inner/__pycache__", "empty", "named.py":
        (folder / name).mkdir(parents=True)
    written = {
        "__init__.py": b"A = 1\n",
        "inner/part.py": "# caf\xe9\r\n".encode(),
        "inner/names.txt": b"cat\ndog\n",
        "inner/bad.py": b"# \xff\n",
        # Of none of these does the digest know.
        "inner/__pycache__/part.cpython-311.pyc": b"compiled",
        "compiled.so": b"\x7fELF",
        "read.md": b"text",
        ".hidden.py": b"an editor's",
        ".git/config.txt": b"git's",
        "inner/.cache/part.py": b"a tool's",
        "named.py/data.bin": b"in a folder whose name ends in .py",
    }
    for name, content in written.items():
        (folder / name).write_bytes(content)
    (folder / "inner" / ".#part.py").symlink_to("nobody@nowhere.1")
    (folder / "gone.py").symlink_to("nothing.py")
    return folder


TEXTS = {
    "__init__.py": "A = 1\n",
    "inner/bad.py": "# \ufffd\n",
    "inner/names.txt": "cat\ndog\n",
    "inner/part.py": "# caf\xe9\n",
}


@pytest.mark.parametrize("kind", [str, os.fsencode, lambda path: path])
def test_python_and_data_are_read_and_nothing_hidden_or_compiled(kind, package):
    folder = kind(package)
    if isinstance(folder, bytes):
        folder = os.fsdecode(folder)
    assert package_digest.read_package(folder) == TEXTS


def test_a_folder_below_a_hidden_one_is_read(package, tmp_path):
    """As an environment's often is, such as .venv/lib/."""
    hidden = package.rename(tmp_path / ".venv")
    assert package_digest.read_package(hidden) == TEXTS


def test_a_folder_that_is_not_there_has_no_texts(tmp_path):
    assert package_digest.read_package(tmp_path / "none") == {}


def test_a_digest_is_of_names_and_texts():
    texts = {"b.py": "two\n", "a.txt": "o\"n'e"}
    listed = """[('a.txt', 'o"n\\'e'), ('b.py', 'two\\n')]"""
    expected = hashlib.sha256(listed.encode()).hexdigest()[:12]
    assert package_digest.hash_texts(texts) == expected
    assert package_digest.hash_texts(dict(reversed([*texts.items()]))) == expected, "in any order"
    others = [
        {"b.py": "two\n", "a.py": "o\"n'e"},
        {"b.py": "two", "a.txt": "o\"n'e"},
        {"b.py": "o\"n'e", "a.txt": "two\n"},
        {"b.py": "two\n"},
        {},
    ]
    seen = {package_digest.hash_texts(each) for each in others}
    assert len(seen) == len(others) and expected not in seen
    assert all(re.fullmatch("[0-9a-f]{12}", each) for each in seen)


def test_each_change_of_a_package_is_another_digest(package):
    def digest():
        return package_digest.hash_texts(package_digest.read_package(package))

    seen = [digest()]
    for name in "__init__.py", "inner/names.txt":
        with open(package / name, "a") as file:
            file.write("\n")
        seen.append(digest())
    (package / "inner" / "part.py").rename(package / "inner" / "other.py")
    seen.append(digest())
    (package / "read.md").write_text("another")
    assert digest() == seen[-1]
    assert len({*seen}) == 4


def test_the_identity_is_of_this_package():
    folder = ROOT / "trainparts"
    paths = [path for path in folder.rglob("[!.]*") if path.suffix in (".py", ".txt")]
    assert {*package_digest.TEXTS} == {path.relative_to(folder).as_posix() for path in paths}
    for name in "errors.py", "launch/rendezvous.py", "images/imagenet_classes.txt":
        assert package_digest.TEXTS[name] == (folder / name).read_text("utf-8")
    version, _, digest = package_digest.IDENTITY.partition("+")
    assert version == trainparts.VERSION
    listed = repr(sorted(package_digest.TEXTS.items()))
    assert digest == hashlib.sha256(listed.encode()).hexdigest()[:12]


def test_the_identity_stays_while_files_change(tmp_path):
    """It is of what a run was started with."""
    folder = tmp_path / "trainparts"
    folder.mkdir()
    for name in "__init__.py", "package_digest.py":
        (folder / name).write_text((ROOT / "trainparts" / name).read_text())
    program = """
from trainparts import package_digest as digest
before = digest.IDENTITY
open(digest.__file__, "a").write("# changed")
now = digest.hash_texts(digest.read_package("trainparts"))
print(before == digest.IDENTITY, before.endswith(now), sorted(digest.TEXTS))
"""
    words = [sys.executable, "-c", program]
    output = subprocess.check_output(words, cwd=tmp_path, text=True)
    assert output == "True False ['__init__.py', 'package_digest.py']\n"


def test_the_package_says_which_it_is():
    words = [sys.executable, "-m", "trainparts"]
    printed = subprocess.check_output(words, cwd=ROOT, text=True, env={"PATH": os.environ["PATH"]})
    assert printed == f"trainparts {package_digest.IDENTITY} in {ROOT / 'trainparts'}\n"
