"""Links in what people read lead somewhere."""

import re

import pytest
from conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "RESULTS.md", ROOT / "CONTRIBUTING.md"]
PAGES += sorted((ROOT / "docs").glob("*.md"))
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
    """Those in README's and CONTRIBUTING's tables of where things stand."""
    programs = [*ROOT.glob("*.py"), *ROOT.glob("tools/*.py"), *ROOT.glob("tests/*.py")]
    texts = "".join(path.read_text() for path in programs)
    defined = {*re.findall(r"(?:def|class) (\w+)", texts)}
    named = [
        name
        for page in PAGES[:3:2]
        for name in re.findall(r"`(?:\w+\.)*(\w+)\(\)`", page.read_text())
    ]
    assert len(named) > 30
    assert {*named} <= defined


def test_there_are_links():
    assert len([link for links in LINKS.values() for link in links if "#" in link]) > 20
