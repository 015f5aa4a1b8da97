"""docs/lessons.md from its template, docs/lessons.md.j2, and the logs."""

import numpy as np

from reporting.page import environment


def loss(run, step):
    """Returns the loss of a step, counted from 1."""
    return run.series["Loss/step"].set_index("step").value[step - 1]


def apart(runs):
    """Returns how far losses of runs are apart at most, relative to the first's; 1e-6 if less."""
    losses = np.array([run.values("Loss/step") for run in runs])
    return max(1e-6, np.max(np.ptp(losses, axis=0) / losses[0]))


def row(benchmark, name):
    """Returns a row of a benchmark."""
    return {each["name"]: each for each in benchmark["rows"]}[name]


def turns_in_ring(ranks):
    """Returns what ranks send in each turn of `_add_up_in_a_ring()` of imagenet_exchange.py: by
    turn and rank (chunk, the ranks whose gradients are summed in it)."""
    turns = []
    for turn in range(2 * ranks - 2):
        chunks = [(rank - turn) % ranks for rank in range(ranks)]
        summed = min(turn + 1, ranks)  # from the rank whose number the chunk has
        turns.append([(each, [(each + n) % ranks for n in range(summed)]) for each in chunks])
    return turns


def make_lessons(runs, bench):
    """Returns the text of docs/lessons.md; "" where there are no runs of the lessons."""
    studies, lesson = {}, {}
    for run in runs:
        studies.setdefault(run.study, []).append(run)
    for run in studies.get("lessons_cpu", []):  # by its command, less option file and folder
        words = [word for word in run.about["command"][1:-2] if "/" not in word]
        lesson[" ".join(words)] = run
    known = {"runs": runs, "studies": studies, "lesson": lesson, "bench": bench}
    known |= {"loss": loss, "apart": apart, "row": row, "turns": turns_in_ring}
    return environment().get_template("lessons.md.j2").render(known) if lesson else ""
