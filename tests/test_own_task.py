"""A task of one's own, as CONTRIBUTING.md says: its section is written, all ways train it.

REGRESSION is the shortest task there is: a line through random points, or a small network.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SCRIPTS, command, copy_script, needs_horovod, run, scalars

REGRESSION = '''# ==== task: a regression on random numbers

DEFAULTS = {"epochs": 3, "batch_size": 16, "optimizer": "sgd", "lr": 1.0, "wd": 0.0}
DEFAULTS |= {"lr_scaling": "linear", "lr_schedule": "linear"}
WARMUP = 0, 1
SUMS = ("loss", "points")
BEST = {"Loss": ("best_loss", math.inf, 0.0)}


def add_task_options(parser):
    add = parser.add_argument_group("task").add_argument
    add("dir", metavar="DIR", nargs="?", help="not read: the points are random")
    add("-a", "--arch", choices=["line", "network"], default="network", help="the model")
    add("--width", type=option_types.positive_int, default=8, help="numbers that each point has")
    return [], ["dir", "workers"]


def check_task_options(args, parser):
    """All of them go together."""


class Source(NamedTuple):
    points: torch.Tensor  # (N, width)
    target: torch.Tensor  # (N, 1)

    def digest(self):
        return f"{len(self.target)} points, {self.target.sum():g}"


class Data(NamedTuple):
    train: Source
    val: Source
    steps: int
    device_batch: int
    accumulation_steps: int
    global_batch: int
    repeats: int = 1
    workers: int = 0
    model_options: dict = {}


def list_sources(args, place):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(400, args.width, generator=generator)
    target = points.sin().sum(dim=1, keepdim=True)
    return Source(points[:301], target[:301]), Source(points[301:], target[301:])


def open_data(args, place, sources, batches, metadata=None):
    return Data(*sources, steps_per_epoch(args, sources[0], batches[-1]), *batches)


def batch_multiple(args):
    return 1


def load_batches(args, place, data, schedule):
    for split, epoch, position, keys in schedule:
        source, keys = getattr(data, split), torch.tensor(list(keys), dtype=torch.int64)
        yield source.points[keys], source.target[keys], split, epoch, position


def finish_batch(inputs, target, args, data, split, epoch, position):
    return inputs, target


def dummy_batch(args, data, items, device, split="train"):
    return torch.randn(items, args.width, device=device), torch.zeros(items, 1, device=device)


def training_flops(args, data):
    return None


def build_model(args, data, load=True):
    if args.arch == "line":
        return nn.Linear(args.width, 1)
    return nn.Sequential(nn.Linear(args.width, 32), nn.Tanh(), nn.Linear(32, 1))


def criterion(output, target, args=None):
    loss = (output - target).square().sum()
    sums = torch.stack([loss.detach().double(), torch.tensor(len(target)).double()])
    return loss / len(target), sums


def compute_metrics(sums):
    return {"Loss": sums["loss"] / max(1, sums["points"])}


def format_metrics(values, digits=1):
    return f"error {values['Loss']:.{digits}f}"


def about_model(args, data):
    return {"arch": args.arch, "width": args.width}


MUST_FIT = ("arch", "width")


def about_data(data):
    return [f"{len(data.train.target)} points"]


'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the imagenet_*.py and the regression on one device."""
    folder = tmp_path_factory.mktemp("own task")
    for script in SCRIPTS:
        copy_script(script, folder)
    text = (ROOT / "imagenet_nd.py").read_text()
    until, others = text.index("# ==== task:"), text.index("# ==== optimizer:")
    (folder / "regression_nd.py").write_text(text[:until] + REGRESSION + text[others:])
    return folder


def losses(folder, script, ranks, tmp_path):
    """Returns what a way logs of three epochs of a global batch of 32."""
    own = str(folder / script.replace("imagenet", "regression"))
    if not Path(own).exists():  # put together, with the grid in order
        tool = [sys.executable, ROOT / "tools" / "sync_copies.py", "--folder", folder]
        subprocess.run([*tool, "--new", Path(own).name], check=True)
    words = [own if word == str(ROOT / script) else word for word in command(script, ranks)]
    own_level = ["--opt-level", "O0"] if "apex" in script else []
    words += ["--no-accel", "--global-batch", "32", "-p", "1", "--lr", "0.5", *own_level]
    if "pipeline" in script:
        words += ["--microbatches", "2"]
    run(words, tmp_path)
    logged = [scalars(tmp_path / "runs", tag) for tag in ("Loss/step", "Loss/val")]
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
def test_all_ways_train_a_task_of_ones_own(script, ranks, folder, tmp_path, one_device):
    found = losses(folder, script, ranks, tmp_path)
    assert len(found) == 3 * (301 // 32) + 3
    torch.testing.assert_close(found, one_device, rtol=1e-5, atol=0)


@pytest.fixture(scope="module")
def one_device(folder, tmp_path_factory):
    found = losses(folder, "imagenet_nd.py", 1, tmp_path_factory.mktemp("nd"))
    assert found[-1] < 0.3 * found[0], "it learns"
    return found
