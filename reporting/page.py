"""RESULTS.md from its template, the figures in it, and what --show prints."""

import re
import shlex
import urllib.parse
from collections import defaultdict
from pathlib import Path

import jinja2

from reporting import figures, findings, tables
from reporting.scaling import efficiency, study_scaling
from reporting.tables import Markdown, code, escape

HERE = Path(__file__).resolve().parent
# Studies and benchmarks that the template has a section of.
STUDIES = "v100_imagenet", "recipe_cifar10", "transfer_cpu", "parity_cpu", "text_cpu", "lessons_cpu"


def environment(finalize=lambda value: escape(value) if isinstance(value, str) else value):
    """Returns the environment of templates, by default of Markdown, in which text is escaped."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader([HERE, HERE.parent / "docs"]),
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for module in findings, tables:
        env.globals |= {name: each for name, each in vars(module).items() if name[0] != "_"}
    env.globals |= {"efficiency": efficiency}
    return env


def file_name(text):
    """Returns a name that all file systems take, with room for what is added to it."""
    name = re.sub(r"[^\w.-]+", "_", text).encode()[:140].decode(errors="ignore")
    return name.strip(".") or "_"


def make_page(runs, bench, ios, warnings, command):
    """Returns (text of RESULTS.md, {name of a figure: figure}); `ios` are the file systems'
    counters of studies."""
    studies = defaultdict(list)
    for run in runs:
        studies[run.study].append(run)
    cluster = findings.cluster_of(runs)
    known = {
        "cluster": cluster,
        "parity": findings.parity_of(runs),
        "recipe": findings.recipe_of(runs),
        "transfer": findings.transfer_of(runs),
        "learned": findings.learned_of(runs),
        "trials": findings.trials_of(bench),
        "speed": findings.speed_of(bench),
        "exchange": findings.exchange_of(bench),
    }
    drawn = {}
    if known["speed"]:
        drawn["speed"] = figures.speed(known["speed"], {"loading": "", "training": ""})
    if cluster:
        for draw in figures.accuracy, figures.top1_top5, figures.scaling:
            drawn[draw.__name__] = draw(cluster)
        if scaling := study_scaling(cluster)[1]:
            drawn["model"] = figures.model(scaling)
        if counters := ios.get(cluster[0].study):
            drawn["io"] = figures.io(counters)
    for draw in figures.parity, figures.recipe, figures.transfer:
        if known[draw.__name__]:
            drawn[draw.__name__] = draw(known[draw.__name__])
    if known["exchange"]:
        drawn["exchange"] = figures.exchange(known["exchange"], bench["exchange"]["about"]["cores"])
        drawn["ring"] = figures.ring()
    if rows := findings.rows_of(bench, "bubble"):
        drawn["bubble"] = figures.bubble(rows)
    others = {study: runs for study, runs in sorted(studies.items()) if study not in STUDIES}
    for study, members in others.items():
        if made := figures.study(members, ios.get(study)):
            drawn[file_name(study or "runs")] = made

    def median(name, row):
        return next(each["median"] for each in bench[name]["rows"] if each["name"] == row)

    def place(name):
        return f"{bench[name]['about']['cores']} cores of {bench[name]['about']['processor']}"

    def figure(name, text):
        link = urllib.parse.quote(f"figures/{file_name(name)}.png")
        return Markdown(f"![{escape(text)}]({link})")

    known |= {"runs": runs, "studies": studies, "others": others, "bench": bench}
    known |= {"figures": drawn, "figure": figure, "command": command, "warnings": warnings}
    known |= {"rows": lambda name: findings.rows_of(bench, name)}
    known |= OLD(known)
    known |= {"place": place, "median": median}
    lines = environment(finalize=None).get_template("claims.j2").render(known).splitlines()
    claims = dict(line.split(": ", 1) for line in lines)
    return environment().get_template("RESULTS.md.j2").render(known), drawn, claims


def OLD(known):
    import numpy as np
    bench=known["bench"]
    albert=defaultdict(dict)
    for row in known["rows"]("text_albert"):
        albert[row["way"],row["precision"],row["ranks"]][row["batch"]]=tables.digits(row["median"])
    shown="exchange memory bubble chaos torchvision_recipe data_loading_avx2".split()
    rest={k:v for k,v in bench.items() if k not in shown and not k.startswith("text_")}
    def avx(name,each):
        if name!="data_loading": return each
        held={r["name"]:r["median"] for r in bench["data_loading_avx2"]["rows"]}
        return {**each,"rows":[{**r,"images/s, held to AVX2":held[r["name"]]} for r in each["rows"]]}
    def brief(others):
        rows=[]
        for m in others.values(): rows+=tables.run_rows(m)
        cols=["run","study","what","script","processes","-b","precision","epochs","images/s","efficiency","training time","val top-1, last / best, %"]
        return [{c:r[c] for c in cols} for r in rows]
    return dict(albert=albert,rest_of_bench=rest,with_avx2=avx,brief=brief,HALF="imagenet_nd.py --amp bfloat16 --channels-last",
      best_top1=lambda r:r.values("Top1/val").max(), best_of=lambda c:max(c,key=lambda r:r.values("Top1/val").max()),
      furthest=lambda n: max(float(r["relative difference of losses"]) for r in known["rows"](n)),
      formula_error=lambda b: 100*max(abs(r["median"]/r["by formula, MB"]-1) for r in b["rows"]))


def in_full(name, runs, bench):
    """Returns the Markdown of a study, a benchmark or a run in full, or of all of them; "" where
    nothing has the name."""
    sections = {}
    for run in runs:
        sections.setdefault(run.study or "runs", []).append(run)
    sections = {each: tables.study_section(each, members) for each, members in sections.items()}
    sections |= {each: tables.benchmark_section(each, content) for each, content in bench.items()}
    sections |= {run.name: tables.run_section(run) for run in runs}
    wanted = sections if name == "all" else [name]
    return "\n\n".join(part for each in wanted for part in sections.get(each, []))
