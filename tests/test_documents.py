"""Links in what people read lead somewhere, and pages say whose results they show."""

import re

import pytest
from conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "RESULTS.md", ROOT / "CONTRIBUTING.md"]
PAGES += [ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
# All that people read, docstrings and templates of pages included, but for tests.
READ = [*PAGES, *ROOT.glob("logs/*/README.md"), *ROOT.glob("*/*.j2"), *ROOT.glob("*.py")]
READ += [
    path
    for folder in ("tools", "reporting", "benchmarks", "trainparts", "trainparts/runs")
    for path in ROOT.glob(f"{folder}/*.py")
]
OLD = (
    r"(?i)(earlier|older|previous) versions\b|ancestor|(runs|results) of 2020"
    r"|times pytorch/examples\b"
)
WHOSE = "measured in 2020 by the project whose design these scripts follow"
LINKS = {page: re.findall(r"\]\(([^)\s]+)\)", page.read_text()) for page in PAGES}


def anchors(page):
    """Returns the names of a page's headings, as GitHub makes them, and of its `<a id>`."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return {*names, *re.findall(r'<a id="([^"]+)"', text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in LINKS[page]:
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_functions_that_are_named_exist():
    """Those in the tables of where things stand."""
    programs = [*ROOT.glob("*.py"), *ROOT.glob("tools/*.py"), *ROOT.glob("tests/*.py")]
    programs += ROOT.glob("trainparts/**/*.py")
    texts = "".join(path.read_text() for path in programs)
    defined = {*re.findall(r"(?:def|class) (\w+)", texts)}
    named = [
        name
        for page in (ROOT / "docs" / "reading.md", ROOT / "CONTRIBUTING.md")
        for name in re.findall(r"`(?:\w+\.)*(\w+)\(\)`", page.read_text())
    ]
    assert len(named) > 30
    assert {*named} <= defined


def test_there_are_links():
    assert len([link for links in LINKS.values() for link in links if "#" in link]) > 20


@pytest.mark.parametrize("path", READ, ids=lambda path: str(path.relative_to(ROOT)))
def test_results_of_another_project_are_called_so(path):
    """In one wording, with the address. No page compares what has an option with what lacks it, as
    "3.0 times pytorch/examples" did."""
    text = path.read_text()
    assert not (found := re.search(OLD, " ".join(text.split()))), found
    paragraphs = re.split(r"\n\s*\n|\n(?=- |# |## |\| )", text)
    about = [each for each in paragraphs if re.search(r"\b2020\b", each)]
    about = [each for each in about if re.search("V100|GPU|cluster", each)]
    if about and path in PAGES:
        assert all(re.search(r"\bproject\b", each) for each in about), about
        assert WHOSE in " ".join(text.split())
        assert re.search("richardkxu/distributed-pytorch|RESULTS.md#scaling", text)


def test_pages_say_whose_results_they_show():
    texts = {path: " ".join(path.read_text().lower().split()) for path in READ}
    pages = [path for path in texts if WHOSE in texts[path]]
    names = "README.md RESULTS.md lessons.md recipes.md results.md".split()
    assert {path.name for path in pages} == {*names} and len(pages) == 6  # logs/'s README, too


def test_a_clone_needs_no_history():
    lines = [
        line for page in PAGES for line in page.read_text().splitlines() if "git clone" in line
    ]
    assert lines and all("--depth 1" in line for line in lines)
