"""RESULTS.md, docs/lessons.md and the scripts' claims from their templates, with the figures."""

import functools
import re
import urllib.parse
from collections import defaultdict
from pathlib import Path

import jinja2

from reporting import figures, findings, scaling, tables
from reporting.tables import Markdown, escape

# Studies that the templates have sections of, beside those that findings finds.
OWN = {"lessons_cpu", "scaling_cpu", "text_cpu", "gpu_accuracy", "gpu_text", "gpu_gpt2"}
FOLDERS = [Path(__file__).parent, Path(__file__).parents[1] / "docs"]


def environment(finalize=None):
    """Returns the environment of templates: all functions of findings, scaling and tables."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDERS),
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for module in findings, scaling, tables:
        env.globals |= {each: vars(module)[each] for each in vars(module) if each[0] != "_"}
    env.globals["max"] = max
    env.filters["final"] = findings.final
    return env


@functools.cache
def compiled(text, finalize):
    """Returns the template of a text; a process that makes several pages compiles it once."""
    return environment(finalize).from_string(text)


def render(name, known, finalize=None):
    """Returns the text of a template. A section, from a heading or {##} to the next, is left out
    where logs lack what it says."""
    env, parts = environment(), []
    for part in re.split("(?m)^(?=###? )|^{##}\n", env.loader.get_source(env, name)[0]):
        try:
            parts.append(compiled(part, finalize).render(known))
        except jinja2.UndefinedError:
            continue
    blocks = re.sub(r"\n\s*", "\n", "\n".join(parts).strip())
    # A row of a table, and of a list, follows the one before it without a blank line.
    return re.sub(r"(?m)^(?!([|-] ).*\n\1)(.*)\n", r"\2\n\n", blocks) + "\n"


def make_page(runs, bench, ios, warnings, command):
    """Returns (text of RESULTS.md, {name of a figure: its panels}, {script: its claim}); `ios` are
    the file systems' counters of studies."""
    studies = defaultdict(list)
    for run in runs:
        studies[run.study].append(run)
    cluster = findings.cluster_of(runs)
    parity, exchange = findings.parity_of(runs), findings.exchange_of(bench)
    recipe, transfer = findings.recipe_of(runs), findings.transfer_of(runs)
    sources = {figures.speed: bench, figures.parity: parity, figures.recipe: recipe}
    sources |= {figures.transfer: transfer, figures.bubble: findings.rows_of(bench, "bubble")}
    sources |= {figures.accuracy: cluster, figures.scaling: cluster}
    model = scaling.study_scaling(cluster)
    counters = cluster and ios.get(cluster[0].study)
    sources |= {figures.model: model, figures.io: counters}
    drawn = {draw.__name__: draw(source) for draw, source in sources.items() if source}
    of_cluster = {"accuracy", "scaling", "model", "io"} & drawn.keys()
    shown = dict.fromkeys(of_cluster, cluster)  # {figure: the runs in it}
    precisions = {
        name: same
        for name, same in sorted(studies.items())
        if name.startswith("precision_") and all(run.rate for run in same)
        if len({run.arch for run in same}) == 1 < len({run.precision for run in same})
    }
    told = {*OWN, *precisions} | {row["run"].study for row in parity}
    told |= {run.study for run in cluster[:1] + (recipe.plain if recipe else [])}
    told |= {"transfer_cpu"} if transfer else set()
    others = {name: studies[name] for name in sorted(studies) if name not in told}
    files = {name: name for name in drawn}
    for name in [*others, *precisions, *({"scaling_cpu"} & studies.keys())]:
        files[name] = file_name(name or "runs")
        while files[name] in drawn:  # two studies whose names differ in odd characters alone
            files[name] += "_"
        if name in others:
            drawn[files[name]] = figures.study(studies[name], ios.get(name))
        else:  # the page has a table of their speed
            drawn[files[name]] = figures.reached(studies[name])
        shown[files[name]] = studies[name]
    for name, members in shown.items():
        said = dict.fromkeys(filter(None, map(findings.whose, members)))
        if said:
            drawn[name] = [each | {"caption": "; ".join(said)} for each in drawn[name]]

    def figure(name, text):
        if name not in files:
            raise jinja2.UndefinedError(name)
        if not drawn[files[name]]:  # of runs that were killed before they had logged an epoch
            return ""
        link = urllib.parse.quote(f"figures/{files[name]}.png")
        return Markdown(f"![{escape(text)}]({link})")

    known = {"cluster": cluster, "parity": parity, "recipe": recipe, "transfer": transfer}
    known |= {
        "counters": counters,
        "exchange": exchange,
        "others": others,
        "precisions": precisions,
        "model": model,
    }
    own = [run for run in runs if not run.facts.get("by")]  # what scripts claim is no one else's
    for task in "lm", "cola":
        of_demos = [run for run in own if not run.study.startswith("gpu_")]
        known[task] = findings.most_trained(of_demos, "text_nd.py", task)
    known |= {"trials": findings.trials_of(bench), "warnings": warnings}
    known = {name: each for name, each in known.items() if each}
    known |= {"bench": bench, "studies": dict(sorted(studies.items())), "runs": own}
    known |= {"figure": figure, "command": command}
    lines = render("claims.j2", known).splitlines()
    claims = dict(each.split(": ", 1) for each in lines if ".py: " in each)
    text = render("RESULTS.md.j2", known, escape_text)
    return text, {name: panels for name, panels in drawn.items() if panels}, claims


def escape_text(value):
    """Returns what a template shows of a value: text from logs is no markup."""
    return escape(value) if isinstance(value, str) else value


def file_name(text):
    """Returns a name that all file systems take, with room for what is added to it."""
    return re.sub(r"[^\w.-]+", "_", text).encode()[:140].decode(errors="ignore").strip(".") or "_"
