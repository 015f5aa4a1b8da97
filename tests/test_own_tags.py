"""Several tags per image, as docs/data.md says: docs/several_tags.diff makes the task, all ways
train it alike, and its measures and average precision are those of plain definitions."""

import csv
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from conftest import (
    ROOT,
    SCRIPTS,
    VIT,
    command,
    copy_script,
    load,
    needs_horovod,
    run,
    scalars,
    words_of,
)
from test_own_data import PARTS, program
from torchvision.models import VisionTransformer
from torchvision.transforms import v2

from trainparts import errors

BLOCKS = re.findall(r"^```bash\n(.*?)^```", PARTS["Several tags per image"], re.S | re.M)
MAKE, ASSEMBLE, TRAIN = BLOCKS[0].splitlines()
LOOK = BLOCKS[1].strip()
TAGS = ["red", "green", "blue"]
# No image is resized in validation.
SMALL = [*VIT, *"--val-resize 32 --epochs 4 --global-batch 16 -p 1".split()]
SMALL += "--optimizer adamw --lr 0.003 --lr-scaling none --warmup-epochs 0".split()


def make_script(folder):
    """Makes tags_nd.py from the imagenet_nd.py in a folder, by the page's command."""
    words = {"cwd": folder, "capture_output": True, "text": True}
    env = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(["bash", "-c", MAKE], env=env, **words)
    refresh = "docs/several_tags.diff no longer applies: refresh it, as its first lines say"
    assert done.returncode == 0, f"{refresh}\n{done.stderr}"
    return (folder / "tags_nd.py").read_text()


def write_tags(folder, part, images):
    """Writes images of 32 x 32 pixels and their table. A tag brightens its colour; a tenth of the
    tags are wrong, so that no model is always right."""
    rng = np.random.default_rng(images)
    (folder / part).mkdir(parents=True)
    shown = rng.random((images, 3)) < 1 / 3
    wrong = rng.random((images, 3)) < 1 / 10
    for number, row in enumerate(shown):
        pixels = rng.integers(0, 128, (32, 32, 3)) + 120 * row
        PIL.Image.fromarray(pixels.astype(np.uint8)).save(folder / part / f"{number}.png")
    columns = [0, 1, 2] if part == "train" else [2, 0, 1]  # known by name, not by place
    with open(folder / f"{part}.csv", "w", newline="", encoding="utf-8-sig") as table:
        writer = csv.writer(table)
        writer.writerow(["file", *(TAGS[column] for column in columns)])
        for number, row in enumerate((shown ^ wrong)[:, columns].astype(int).tolist()):
            writer.writerow([f"{number}.png", *row])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the imagenet_*.py, tags_nd.py and DIR; of its 49 validation images, the second
    of two ranks has 24, so its last batch of 8 is empty."""
    folder = tmp_path_factory.mktemp("own tags")
    for script in SCRIPTS:
        copy_script(script, folder)
    for name in "docs", "tools":
        (folder / name).symlink_to(ROOT / name)
    make_script(folder)
    write_tags(folder / "DIR", "train", 160)
    write_tags(folder / "DIR", "val", 49)
    return folder


@pytest.fixture(scope="module")
def one_device(folder):
    """What the training on one device prints; its run is runs/NAME."""
    line = TRAIN.replace("tags_ddp.py", "tags_nd.py")
    return run(words_of(" ".join([line, *SMALL]), folder), folder)


def losses(folder):
    """Returns the losses of a run's steps and validations."""
    logged = [scalars(folder, tag) for tag in ("Loss/step", "Loss/val")]
    return torch.tensor([value for curve in logged for value in curve.values()])


@pytest.mark.parametrize(
    ("script", "ranks"),
    [
        *(
            pytest.param(script, 1 if script == "imagenet_dp.py" else 2, marks=pytest.mark.slow)
            for script in SCRIPTS
            if script not in ("imagenet_nd.py", "imagenet_horovod.py")
        ),
        pytest.param("imagenet_horovod.py", 2, marks=[pytest.mark.slow, needs_horovod]),
    ],
)
def test_all_ways_train_alike(script, ranks, folder, one_device, tmp_path):
    own = script.replace("imagenet", "tags")
    run(["bash", "-c", ASSEMBLE.replace("tags_ddp.py", own)], folder)
    words = [
        folder / own if word == str(ROOT / script) else word for word in command(script, ranks)
    ]
    words += [*SMALL, *(["--opt-level", "O0"] if "apex" in script else [])]
    words += ["--microbatches", "2"] if "pipeline" in script else []
    run([*words, "--output-dir", tmp_path / "run", folder / "DIR"], tmp_path)
    wanted = losses(folder / "runs" / "NAME")
    assert len(wanted) == 4 * 10 + 4
    torch.testing.assert_close(losses(tmp_path / "run"), wanted, rtol=1e-5, atol=0)


def average_precision(scores, wanted):
    """Returns the mean, over the images with the tag, of the precision among all that score at
    least as high."""
    cuts = [scores >= score for score in scores[wanted]]
    return np.mean([wanted[cut].mean() for cut in cuts])


def test_measures_are_those_of_the_scores(folder, one_device):
    """Of scores that torchvision's model and transforms give."""
    f1 = [*scalars(folder / "runs" / "NAME", "F1/val").values()]
    assert max(f1) > f1[0] + 5 and max(f1) > 75, "it learns"
    run(words_of(LOOK, folder), folder)
    printed = run(program("Several tags per image"), folder)
    with open(folder / "outputs.csv", newline="") as table:
        header, *rows = csv.reader(table)
    assert header == ["file", "class", *TAGS]
    rows = sorted((int(Path(row[0]).stem), *row[2:]) for row in rows)  # as val.csv has them
    scores = torch.tensor([[float(output) for output in row[1:]] for row in rows])
    scores = scores.double().sigmoid().numpy()

    saved = load(folder / "runs" / "NAME" / "model_best.pt")
    sizes = {"image_size": 32, "patch_size": 16, "num_layers": 2, "num_heads": 2}
    model = VisionTransformer(**sizes, hidden_dim=32, mlp_dim=64, num_classes=3).eval()
    model.load_state_dict(saved["state_dict"])
    images = [PIL.Image.open(folder / "DIR" / "val" / f"{name}.png") for name, *_ in rows]
    steps = v2.ToImage(), v2.ToDtype(torch.float32, scale=True)
    transform = v2.Compose([*steps, v2.Normalize(saved["mean"], saved["std"])])
    batch = torch.stack([transform(image) for image in images])
    with torch.no_grad():
        np.testing.assert_allclose(model(batch).sigmoid(), scores, rtol=1e-4)

    with open(folder / "DIR" / "val.csv", newline="", encoding="utf-8-sig") as table:
        wanted = np.array([[int(row[tag]) for tag in TAGS] for row in csv.DictReader(table)]) > 0
    found = scores > 0.5
    exact = 100 * (found == wanted).all(axis=1).mean()
    f1 = 100 * 2 * (found & wanted).sum() / (found.sum() + wanted.sum())
    loss = -np.log(np.where(wanted, scores, 1 - scores)).mean()
    words = [sys.executable, "tags_nd.py", "-e", "--resume", "runs/NAME/model_best.pt", *SMALL]
    evaluated = run([*words, "DIR"], folder)
    assert f"validation: F1 {f1:.3f} %, exact {exact:.3f} %, loss {loss:.5f}" in evaluated

    each = [average_precision(scores[:, tag], wanted[:, tag]) for tag in range(3)]
    assert 0.3 < min(each) < 0.99, "no trivial number"
    numbers = [float(each) for each in re.findall(r"\d\.\d+(?:e-\d+)?", printed)]
    assert numbers == pytest.approx([*each, np.mean(each)], abs=1e-6)


WRONG_TABLES = {
    "uncertain": ("file,red,blue\n0.png,1,0\n1.png,0,-1\n", "row 3: 1.png has '-1', not 0 or 1"),
    "empty": ("file,red,blue\n0.png,,0\n", "row 2: 0.png has '', not 0 or 1"),
    "semicolons": ("file;red;blue\n0.png;1;0\n", "it has 1 rows, of the columns ['file;red;blue']"),
    "no rows": ("file,red\n", "it has 0 rows, of the columns ['file', 'red']"),
    "twice": ("file,red,red\n0.png,1,0\n", "it has 1 rows, of the columns ['file', 'red', 'red']"),
    "contradict": (
        "file,red\n0.png,1\n1.png,0\n0.png,1\n1.png,1\n",
        "row 5: 1.png has other tags than in an earlier row",
    ),
}


@pytest.mark.parametrize("kind", WRONG_TABLES)
def test_a_line_names_what_is_wrong_in_a_table(kind, folder, tmp_path, monkeypatch):
    content, why = WRONG_TABLES[kind]
    (tmp_path / "train.csv").write_text(content)
    spec = importlib.util.spec_from_file_location("tags_nd", folder / "tags_nd.py")
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tags_nd", script)
    spec.loader.exec_module(script)
    holds = "; train.csv and val.csv have a column of files, and one of 0 and 1 for each tag"
    with pytest.raises(errors.BadInput) as raised:
        script.open_table(tmp_path / "train")
    assert str(raised.value) == f"{tmp_path}/train.csv: {why}{holds}"


def test_it_applies_though_other_places_change(tmp_path):
    """Lines above, between and below its hunks, in other sections and in the task; and it changes
    the task alone."""
    text = (ROOT / "imagenet_nd.py").read_text()
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    for at in (
        "# ==== step:",
        "def build_model(",
        "def list_sources(",
        "def crop_box(",
        "DEFAULTS: ",
    ):
        assert text.count(f"\n{at}") == 1
        text = text.replace(f"\n{at}", "\n" + 40 * "# A line more.\n" + at)
    (tmp_path / "imagenet_nd.py").write_text(text)
    made = make_script(tmp_path).replace("# A line more.\n", "")
    (tmp_path / "imagenet_nd.py").write_text(text.replace("# A line more.\n", ""))
    assert made == make_script(tmp_path)
    for part in (
        lambda text: text.split("# ==== task:")[0],
        lambda text: text.split("# ==== optimizer")[1],
    ):
        assert part(made) == part((tmp_path / "imagenet_nd.py").read_text())
