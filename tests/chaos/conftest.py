"""What all trials need: a log of their rows, and an end of the processes that they leave."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from chaos.jobs import Job
from reporting.findings import place

ROWS = pytest.StashKey()


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Kills what is left of a trial's jobs, however the trial ended."""
    yield
    while Job.begun:
        Job.begun.pop().end()


@pytest.fixture
def row(request, tmp_path):
    """Returns a function that takes a row: what was done, what came of it, and whether that is what
    was promised, None where it was not tried. The trial fails if a row does not hold."""
    rows = request.node.stash.setdefault(ROWS, [])

    def add(what, said, holds):
        rows.append(
            [what, said.replace(f"{tmp_path}/", ""), holds if holds is None else bool(holds)]
        )
        print(*rows[-1], sep=" | ")

    return add


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    yield
    held = [row[2] for row in item.stash.get(ROWS, [])]
    if False in held:
        pytest.fail("a row does not hold", pytrace=False)
    if None in held:
        pytest.skip("some of it was not tried")


# ------------------------------------------------------------------------------------------ log


def pytest_addoption(parser):
    parser.addoption("--chaos-log", type=Path, help="JSON file that the rows of trials go into")


def pytest_configure(config):
    if path := config.getoption("chaos_log", None):
        if config.option.numprocesses or "[" in "".join(config.args):
            raise pytest.UsageError("--chaos-log needs -n 0, and trials as a whole")
        config.pluginmanager.register(Log(path))


def trial(item):
    """Returns the name of a trial: that of its function, up to two underscores; None for tests that
    `make chaos` does not run."""
    name = item.originalname.removeprefix("test_").partition("__")[0]
    return name if item.get_closest_marker("chaos") else None


class Log:
    """Writes the rows of each trial in place of its old ones, once all of its tests have run. A
    trial that was chosen in part, or interrupted, keeps its old rows."""

    def __init__(self, path):
        sys.path.insert(0, str(ROOT / "benchmarks"))
        self.path, self.rows, self.in_part = path, {}, set()
        self.about = importlib.import_module("common").about("psutil")
        self.about["command"] = ["make", "chaos"]
        self.commit = self.about.pop("commit")  # before the log changes

    def pytest_deselected(self, items):
        self.in_part |= {trial(item) for item in items}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        """A trial that breaks down is a row that does not hold."""
        report = yield
        rows = item.stash.setdefault(ROWS, [])
        held = [row[2] for row in rows]
        if report.failed and False not in held:
            error = f"{call.excinfo.typename}: {call.excinfo.value}"[:300]
            rows.append([item.name, error, False])
        elif report.skipped and None not in held:
            rows.append([item.name, f"not tried: {call.excinfo.value}", None])
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        result, name = (yield), trial(item)
        self.rows.setdefault(name, []).extend(item.stash[ROWS])
        if name and name not in self.in_part and not (nextitem and trial(nextitem) == name):
            self.write(name)
        return result

    def write(self, name):
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        content = {"title": "Faults, and what became of the runs", "facts": {}, "about": self.about}
        content["trials"] = known.get("trials", {}) | {name: self.rows[name]}
        content["commits"] = known.get("commits", {}) | {name: self.commit}
        content["dates"] = known.get("dates", {}) | {name: self.about["date"]}
        before = dict.fromkeys(content["trials"], place(known)) if known else {}
        content["places"] = before | known.get("places", {}) | {name: place(content)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
