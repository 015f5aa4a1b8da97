"""What a forge and citations need: the workflow, CITATION.cff, CHANGELOG.md, pyproject.toml."""

import re
import sys

import pytest
from conftest import BIN, ROOT, run

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")
yaml = pytest.importorskip("yaml")
SCHEMAS = {
    ".github/workflows/test.yml": ("vendor.github-workflows", "runs-on: ", "runs_on: "),
    "CITATION.cff": ("vendor.citation-file-format", "authors:", "author:"),
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_file_is_what_its_schema_says(name, tmp_path):
    schema, key, misspelt = SCHEMAS[name]
    words = [BIN / "check-jsonschema", "--builtin-schema", schema]
    assert "ok" in run([*words, ROOT / name], tmp_path)
    text = (ROOT / name).read_text()
    assert key in text
    (tmp_path / "wrong.yml").write_text(text.replace(key, misspelt))
    run([*words, "wrong.yml"], tmp_path, status=1)


def test_each_python_that_is_allowed_is_tried():
    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]
    tried = jobs["test"]["strategy"]["matrix"]["python"]
    assert jobs["test"]["steps"][-1] == {"run": ".ci/run"}
    classifiers = re.findall(r"Python :: (\d\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert tried == classifiers and f">={tried[0]}" == PROJECT["requires-python"]
    assert f"Python {tried[0]} to {tried[-1]}" in " ".join((ROOT / "README.md").read_text().split())
    assert {*jobs["wheel"]["strategy"]["matrix"]["python"]} == {tried[0], tried[-1]}


def test_the_version_is_the_same_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    (version, date), *_ = re.findall(
        r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert version == cited["version"] == PROJECT["version"]
    assert date == str(cited["date-released"]) and cited["license"] == PROJECT["license"]
