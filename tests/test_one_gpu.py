"""one_gpu.py: a rehearsal of all its stages, its limits, and what it leaves; the measurements of
its programs on a ghost GPU; what the page makes of their logs."""

import contextlib
import gzip
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
import torchvision
from conftest import HOROVOD, ROOT, complaint, needs_bfloat16, popen, run, write_images
from test_ghost import GHOST, library, server, start  # noqa: F401
from test_ghost import pytestmark as needs_ghost
from test_results import about, write_run
from torch._subclasses import FakeTensorMode
from torch.autograd import DeviceType
from torch.utils.flop_counter import FlopCounterMode

from reporting import findings, logs, page, peaks

sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]
import common  # noqa: E402
import gpu  # noqa: E402
import gpu_decoding  # noqa: E402
import gpu_loading  # noqa: E402
import one_gpu  # noqa: E402

import text_nd  # noqa: E402

NAMES = [*one_gpu.EVERY]
# That can run here, where no device has float8.
HERE = [name for name in NAMES if name != "float8" and (name != "horovod" or HOROVOD)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """What --data may hold, in small."""
    folder, images = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("images")
    (images / "imagenet_sample").mkdir()
    write_images(images / "imagenet_sample", train=6, val=1)
    write_images(images / "cifar10", train=8, val=2, size=(32, 32))
    for name, what in (one_gpu.IMAGENET, "imagenet_sample"), (one_gpu.CIFAR10, "cifar10"):
        with tarfile.open(folder / name, "w:gz" if name.endswith("gz") else "w") as archive:
            archive.add(images / what, what)
    with gzip.open(folder / one_gpu.TEXT, "wt") as file:
        file.write("To be, or not to be, that is the question.\n" * 40)
    return folder


def files(folder):
    """Returns {name: bytes} of a folder's files."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def stage_log(file, name):
    """Returns a stage's own log, from its tar file."""
    with tarfile.open(file) as archive:
        return json.load(archive.extractfile(f"benchmarks/gpu_stage_{name}.json"))


# ----------------------------------------------------------------------------------- the program


@needs_bfloat16
@pytest.mark.timeout(1200)
def test_a_rehearsal_runs_all_stages(data, tmp_path, monkeypatch, capsys):
    """In a copy of the repository without .git and .venv, on a path with a space; the page that its
    logs give has their sections; the next command has nothing to do."""
    copy, out = tmp_path / "a copy", tmp_path / "out"
    ignored = shutil.ignore_patterns(".*", "logs", "tests", "runs", "docs", "figures", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignored)
    words = ["one_gpu.py", "--data", str(data), "--out", str(out), "--rehearse"]
    for name in "PYTHONPATH", "CUDA_VISIBLE_DEVICES":  # which it changes
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(one_gpu, "ROOT", copy)
    processes = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    monkeypatch.setattr(one_gpu, "subprocess", processes)
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        one_gpu.main()
    printed = capsys.readouterr().out
    assert ended.value.code == 0 and "NOT COMPLETE" not in printed, printed
    assert {path.name for path in out.iterdir()} == {f"{name}.tar" for name in HERE}
    unpacked = tmp_path / "logs"
    for name in HERE:
        found = stage_log(out / f"{name}.tar", name)
        assert found["facts"]["complete"] and found["facts"]["rehearsal"]
        assert [row["status"] for row in found["rows"]] == ["0"] * len(found["rows"])
        assert str(tmp_path) not in json.dumps(found)
        with tarfile.open(out / f"{name}.tar") as archive:
            archive.extractall(unpacked, filter="data")
    assert not [*unpacked.rglob("*.pt")]
    bench, warnings = logs.read_benchmarks([unpacked])
    assert not warnings
    names = "precision precision_operators compiled loading workers decoding".split()
    assert bench.keys() == {f"gpu_{name}" for name in [*names, *(f"stage_{each}" for each in HERE)]}
    for name in names:
        rows = findings.rows_of(bench, f"gpu_{name}")
        assert rows and all(value > 0 for row in rows for value in row["values"])
    assert bench["gpu_decoding"]["rows"][1]["largest difference"] == 0
    runs, warnings = logs.read_runs([unpacked])
    assert not warnings
    studies = ["gpu_accuracy"] * 3 + ["gpu_gpt2", "gpu_text"] + ["gpu_untried"] * HOROVOD
    assert [each.study for each in runs] == studies
    text, _, _ = page.make_page(runs, bench, {}, [], "COMMAND")
    titles = "Fed from JPEGs", "on CIFAR-10; the aim", "character model: loss", "GPT-2's 124"
    for title in (*titles, "ResNet-50 in float16 beside", "nvImageCodec's decoders beside"):
        assert re.search(f"(?m)^### .*{re.escape(title)}", text), title
    before = files(out)
    words[:1] = [sys.executable, copy / "benchmarks" / "one_gpu.py"]
    assert run(words, tmp_path).count("left out: done before") == len(HERE)
    assert files(out) == before


def test_limits_fit_into_ten_minutes():
    assert sum(stage.seconds for stage in one_gpu.STAGES.values()) == 560
    assert 560 < one_gpu.SECONDS < 600
    # What the programs themselves take leaves them ten seconds to start.
    for stage in one_gpu.EVERY.values():
        for command in stage.commands:
            (words,) = [f"{command.words} {command.real}"]
            minutes = re.search(r"--minutes (\S+)", words)
            hours = re.search(r"--budget-hours (\S+)", words)
            own = 60 * float(minutes[1]) if minutes else 3600 * float(hours[1]) if hours else 0
            seconds = re.search(r"--seconds (\S+)", words)
            assert own <= stage.seconds - 10 and float(seconds[1] if seconds else 0) < stage.seconds


@pytest.mark.parametrize("name", NAMES)
def test_programs_take_the_commands(name, monkeypatch):
    """Those of a GPU, not of a rehearsal."""
    monkeypatch.chdir(ROOT)
    taken = []

    def take(args, scratch):
        taken[:] = [args]

    for command in one_gpu.EVERY[name].commands:
        words = command.split("data", "logs", rehearsal=False)
        assert words[0] == sys.executable and "$" not in " ".join(words[2:3] + words[4:])
        module = words[1].rpartition("/")[2].removesuffix(".py")
        if words[1].startswith("benchmarks/"):
            program = importlib.import_module(module)
            monkeypatch.setattr(sys, "argv", [words[1], *words[2:]])
            common.main(program.__doc__, take, "", program.OPTIONS)
            assert taken[0].out.name.startswith("gpu_")
            if module == "gpu":
                args = taken[0]
                args.batch_size = [256, 1024]
                names = [gpu.name_of(job) for job in gpu.jobs_of(args)]
                assert len(names) == 6
                assert bool(args.float8) == any("--amp float8" in each for each in names)
        elif module.startswith(("imagenet", "text")):
            importlib.import_module(module).parse_args(words[2:])
        else:
            assert words[1] == "-c" or (ROOT / words[1]).exists()


@pytest.fixture
def call(data, tmp_path, monkeypatch, capfd):
    """call(*words, stages=..., status=0) runs main() with stages of these commands in place of its
    own, as rehearsals at the limits' own speed; returns what it prints."""
    monkeypatch.setattr(one_gpu, "SLOWER", 1)
    monkeypatch.setattr(one_gpu, "GRACE", 1)
    for name in "PYTHONPATH", "CUDA_VISIBLE_DEVICES":  # which it changes
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*words, stages, status=0, more=()):
        made = {
            name: one_gpu.Stage(name, seconds, [one_gpu.Command(f"python -c '{code}'")], *needs)
            for name, (seconds, code, *needs) in stages.items()
        }
        monkeypatch.setattr(one_gpu, "EVERY", made)
        monkeypatch.setattr(one_gpu, "MORE", {name: made[name] for name in more})
        words = ["--data", data, "--out", tmp_path / "out", *words]
        monkeypatch.setattr(sys, "argv", ["one_gpu.py", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            one_gpu.main()
        printed = "".join(capfd.readouterr())
        assert ended.value.code == status, printed
        return printed

    return call


HANGS = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(90)"])
print("child", child.pid, flush=True)
time.sleep(90)
"""


def test_a_stage_that_hangs_is_ended(call, tmp_path):
    """With all that it has started; its log says so, the next stage runs, and the next command does
    it again."""
    stages = {"hangs": (4, HANGS), "prints": (60, "print(1)")}
    begun = time.monotonic()
    printed = call("--rehearse", stages=stages, status=1)
    assert "  NOT COMPLETE, out of time: python -c" in printed
    assert time.monotonic() - begun < 60, "it would have taken longer"
    found = stage_log(tmp_path / "out" / "hangs.tar", "hangs")
    assert not found["facts"]["complete"] and found["rows"][0]["status"] == "out of time"
    with tarfile.open(tmp_path / "out" / "hangs.tar") as archive:
        said = archive.extractfile("benchmarks/gpu_stage_hangs.txt").read().decode()
    child = int(re.search(r"(?m)^child (\d+)$", said)[1])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"
    assert stage_log(tmp_path / "out" / "prints.tar", "prints")["facts"]["complete"]
    stages["hangs"] = 60, "print(2)"
    assert "prints     prints: left out: done before" in call("--rehearse", stages=stages)
    assert {*files(tmp_path / "out")} == {"hangs.tar", "hangs-2.tar", "prints.tar"}


ENDS = """
import signal, sys, time
def end(*_):
    time.sleep(0.3)
    print("ended", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, end)
time.sleep(60)
"""


def test_a_stage_may_end_its_logs(call, tmp_path):
    """It is asked to end before its time is over."""
    assert "out of time" in call("--rehearse", stages={"a": (6, ENDS)}, status=1)
    with tarfile.open(tmp_path / "out" / "a.tar") as archive:
        said = archive.extractfile("benchmarks/gpu_stage_a.txt").read().decode()
    assert said.endswith("\nended\n")


def test_logs_of_before_stay(call, tmp_path):
    stages = {"a": (60, "print(1)"), "b": (60, "print(2)")}
    call("--rehearse", "--only", "a", stages=stages)
    before = files(tmp_path / "out")
    assert [*before] == ["a.tar"]
    call("--rehearse", "--renew", "a", stages=stages)
    after = files(tmp_path / "out")
    assert [*after] == ["a-2.tar", "a.tar", "b.tar"] and after["a.tar"] == before["a.tar"]
    done = [one_gpu.is_complete(tmp_path / "out", "b", rehearsal) for rehearsal in (True, False)]
    assert done == [True, False], "a rehearsal counts for a rehearsal alone"


def test_a_command_that_fails_is_named(call, tmp_path):
    """Logs have no path of this machine."""
    stages = {"a": (60, "import sys; sys.exit(3)"), "b": (60, 'print("$DATA")')}
    printed = call("--rehearse", stages=stages, status=1)
    assert re.search(r"(?m)^  NOT COMPLETE, 3: python -c 'import sys; sys.exit\(3\)'$", printed)
    assert not stage_log(tmp_path / "out" / "a.tar", "a")["facts"]["complete"]
    (row,) = stage_log(tmp_path / "out" / "b.tar", "b")["rows"]
    assert row["name"] == """python -c 'print("data")'"""


def test_what_a_stage_lacks_is_said(call, tmp_path):
    stages = {
        "a": (60, "1", ["absent.tar"], ["pandas"]),
        "b": (60, "1", [], [one_gpu.CODEC]),
        "c": (10**6, "1"),
        "d": (60, "1"),
    }
    (lacking,) = [("nvidia.nvimgcodec",)]
    spec = importlib.util.find_spec
    with pytest.MonkeyPatch.context() as patch:
        absent = lambda name: None if name in lacking else spec(name)  # noqa: E731
        patch.setattr(importlib.util, "find_spec", absent)
        printed = call("--rehearse", stages=stages, more=["c", "d"])
    assert "a          a: left out: absent.tar is not in --data" in printed
    assert "b          b: left out: no nvidia.nvimgcodec" in printed
    assert re.search(r"(?m)^c: left out, since 5\d\d s are left$", printed)
    assert [*files(tmp_path / "out")] == ["d.tar"]


def test_a_stage_gets_what_is_left(call, monkeypatch, tmp_path):
    """Though its own limit would end later."""
    monkeypatch.setattr(one_gpu, "SECONDS", 8)
    begun = time.monotonic()
    printed = call("--rehearse", stages={"a": (40, HANGS), "b": (600, "1")}, status=1)
    assert time.monotonic() - begun < 30
    assert "NOT COMPLETE, out of time" in printed
    assert re.search(r"(?m)^b: left out, since -?\d s are left$", printed)


def test_wheels_are_unpacked_for_the_stages(call, data, tmp_path):
    """Nothing is installed; they count before what is installed."""
    wheel = data / "timm-99.5-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("timm/__init__.py", "NAME = 'unpacked'")
        archive.writestr("timm-99.5.dist-info/METADATA", "Name: timm\nVersion: 99.5\n")
    try:
        code = 'import timm; assert timm.NAME == chr(117) + "npacked", timm'
        assert "timm 99.5" in call("--rehearse", stages={"a": (60, code)})
    finally:
        wheel.unlink()
    assert "timm 99.5" not in call("--rehearse", "--renew", "a", stages={"a": (60, "1")})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data absent --out out", "absent is no folder: the top of one_gpu.py says"),
        ("--data . --out file/out", "file"),
        (
            "--data . --out out --only accuracy",
            "PyTorch finds no CUDA GPU here; --rehearse tries all on the CPU",
        ),
        ("--data . --out out --only speed", "argument --only: invalid choice: 'speed'"),
        ("--data . --out out --renew speed", "argument --renew: invalid choice: 'speed'"),
        ("--out out", "--data"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path):
    (tmp_path / "file").touch()
    words = [sys.executable, one_gpu.__file__, *words.split()]
    assert message in complaint(words, tmp_path, only=False, env={"CUDA_VISIBLE_DEVICES": ""})


def test_a_python_without_what_the_scripts_need(call, monkeypatch):
    monkeypatch.setattr(one_gpu, "NEEDED", ["torch", "nonesuch"])
    printed = call("--rehearse", stages={}, status=2)
    assert re.search(r"error: this Python lacks nonesuch: .*python\S*$", printed)


def test_a_damaged_file_is_named(call, data, tmp_path):
    (data / "torn.tar").write_bytes(b"torn")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.tar").write_bytes(b"torn")
    stages = {"a": (60, "print(1)", ["torn.tar"]), "b": (60, "print(2)")}
    printed = call("--rehearse", stages=stages, status=1)
    assert "NOT COMPLETE" in printed and "torn.tar" in printed
    assert stage_log(tmp_path / "out" / "b-2.tar", "b")["facts"]["complete"]
    wheel = data / "torn.whl"
    wheel.write_bytes(b"torn")
    try:
        assert "torn.whl: File is not a zip file" in call("--rehearse", stages=stages, status=2)
    finally:
        wheel.unlink()


# ------------------------------------------------------------------------------- what is measured


@needs_ghost
def test_measurements_on_a_ghost_gpu(start, tmp_path):  # noqa: F811
    """The CUDA branches of gpu.py and gpu_loading.py."""
    write_images(tmp_path / "images", train=16, val=1)
    start([GHOST / "bench.py", "report", tmp_path / "images"], ranks=1, gpus=1)
    lines = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    float16, level, synthetic, fed = lines
    for row in float16, level:
        assert len(row["values"]) == gpu.BLOCKS and float(row["peak memory, GiB"]) > 0
        assert row["operators"] == {}, "the ghost runs no kernels, so no operator takes time"
    assert synthetic.keys() == {"images/s"}
    assert fed.keys() == {"images/s", gpu_loading.WAIT, gpu_loading.USED, gpu_loading.BY_CODEC}


def test_operators_of_a_step():
    """Those that take longest in any column have rows, of which the sum is the whole."""
    profiles = {
        "float16 -b 8": {f"op{n}": float(n) for n in range(20)},
        "bfloat16 -b 8": {"op0": 99.0},
    }
    rows = gpu.operator_rows(profiles)
    names = [row["name"] for row in rows]
    assert names[0] == "op0, float16 -b 8" and names[1] == "op19, float16 -b 8"
    assert len(names) == len({*names}) == 2 * (gpu.OPERATORS + 2)
    values = {row["name"]: row["values"][0] for row in rows}
    assert values["all, float16 -b 8"] == sum(range(20))
    assert values["all others, float16 -b 8"] == sum(range(1, 9))
    assert values["op0, bfloat16 -b 8"] == values["all, bfloat16 -b 8"] == 99


def test_operators_are_those_of_the_network(tmp_path):
    """On the CPU their own times, of as many steps as are said."""
    args = SimpleNamespace(arch="resnet18", image_size=32, steps=1, profile=True)
    job = {"precision": "O0", "channels_last": False, "mode": "off", "batch": 2}
    begun = time.perf_counter()
    _, operators = gpu.train(args, str(tmp_path), job)
    milliseconds = 1e3 * (time.perf_counter() - begun)
    assert any("convolution_backward" in name for name in operators)
    assert 0 < sum(operators.values()) < milliseconds / gpu.PROFILED_STEPS


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_times_of_operators_are_of_a_step(device, monkeypatch):
    """In ms, of three steps; those of kernels are their operators'."""
    cpu, cuda = DeviceType.CPU, DeviceType.CUDA
    times = {"self_cpu_time_total": 6000, "self_device_time_total": 9000}
    events = [
        SimpleNamespace(key="aten::mm", device_type=cpu, **times),
        SimpleNamespace(key="a kernel", device_type=cuda, **times),
        SimpleNamespace(key="aten::view", device_type=cpu, **dict.fromkeys(times, 0)),
    ]

    class Profile(contextlib.nullcontext):
        def key_averages(self):
            return events

    steps = []
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: Profile(Profile()))
    monkeypatch.setattr(common, "train_steps", lambda script, run, count: steps.append(count))
    run = SimpleNamespace(place=SimpleNamespace(device=torch.device(device)))
    assert gpu.profile(None, run) == {"aten::mm": {"cpu": 2.0, "cuda": 3.0}[device]}
    assert steps == [3]


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="torch is not a CUDA build")
def test_batch_normalization_is_by_cudnn_in_float16_alone():
    """As docs/precision.md says; PyTorch chooses without a GPU, too."""
    chosen = {}
    with FakeTensorMode():
        for half in torch.float16, torch.bfloat16:
            for dtype in torch.float32, half:
                images = torch.empty(8, 64, 8, 8, device="cuda", dtype=half)
                weights = [torch.empty(64, device="cuda", dtype=dtype) for _ in range(4)]
                backend = torch._C._select_batch_norm_backend(images, *weights, True, 1e-5)
                chosen[half, dtype] = backend.name
    assert [each for each in chosen if chosen[each] == "Cudnn"] == [(torch.float16, torch.float32)]


@pytest.mark.parametrize("changed", [0, 3])
def test_pixels_are_compared(changed):
    images = [np.full((4, 5, 3), 7, np.uint8), np.zeros((2, 5, 3), np.uint8)]
    others = [each.copy() for each in images]
    others[1][0, :changed, 0] = [250, 5, 15][:changed]
    share, largest, mean = gpu_decoding.compare(others, images)
    assert share == pytest.approx(100 * changed / 90)
    assert (largest, mean) == ((250, pytest.approx(3)) if changed else (0, 0))
    assert gpu_decoding.compare(images, others) == (share, largest, mean)
    with pytest.raises(Exception, match=r"decodes to \(4, 5, 3\), Pillow to \(5, 4, 3\)"):
        gpu_decoding.compare(images[:1], [images[0].transpose(1, 0, 2)])


def test_rows_say_which_decoder_decoded(tmp_path, monkeypatch):
    """A row by Pillow is called so, though nvImageCodec was wanted; --raw has pixels."""
    jpegs, pngs = write_images(tmp_path / "jpegs", train=8), tmp_path / "pngs"
    shutil.copytree(jpegs, pngs)
    for path in [*pngs.rglob("*.jpg"), *pngs.rglob("*.JPEG")]:
        torchvision.io.write_png(torchvision.io.read_image(str(path)), str(path))
    words = [sys.executable, gpu_loading.__file__, "-a", "vit_b_16", "-b", "2", "-j", "1"]
    words += ["--image-size", "32", "--images", "40", "--seconds", "600", "--amp", "bfloat16"]
    found = {}
    for folder in jpegs, pngs:
        run([*words, folder, "--out", tmp_path / "out.json"], tmp_path)
        content = json.loads((tmp_path / "out.json").read_text())
        found[folder.name] = {row["name"]: row for row in content["rows"]}
    assert [*found["jpegs"]] == [
        "synthetic images",
        "folder, -j 1",
        "raw 256, -j 1",
        "folder, Pillow, -j 1",
    ]
    assert found["jpegs"]["folder, -j 1"][gpu_loading.BY_CODEC] == 100
    assert found["jpegs"]["raw 256, -j 1"][gpu_loading.BY_CODEC] is None
    assert found["jpegs"]["folder, Pillow, -j 1"][gpu_loading.BY_CODEC] == 0
    assert found["pngs"]["folder, Pillow, -j 1"][gpu_loading.BY_CODEC] == 0
    assert [*found["pngs"]] == ["synthetic images", "folder, Pillow, -j 1", "raw 256, -j 1"]
    for row in found["jpegs"].values():
        if row["name"] != "synthetic images":
            assert 0 <= row[gpu_loading.WAIT] <= 100
            assert 0 <= row[gpu_loading.USED] < 1000  # the kernel counts in 10 ms


def test_advice_is_find_bottleneck_s(monkeypatch, tmp_path):
    """From the loader's own images/s, and those of synthetic images."""
    answers = [{"images/s": 100.0}, {"images/s": 40.0, "loader": 50.0}, {"images/s": 100.0}]

    class Server:
        def __init__(self, *words, **options):
            pass

        def ask(self, *words, seconds):
            return answers.pop(0), ""

        def stop(self):
            pass

    monkeypatch.setattr(common, "Server", Server)
    monkeypatch.setattr(
        gpu_loading, "make_forms", lambda args, scratch: {"folder": "x", "raw": "y"}
    )
    monkeypatch.setattr(gpu_loading.decoding, "region_decoder", lambda: None)
    monkeypatch.setattr(gpu_loading.devices, "cores_per_rank", lambda: 16)
    args = SimpleNamespace(arch="resnet18", image_size=32, batch_size=2, workers=[1], images=99)
    args = SimpleNamespace(**vars(args), amp="bfloat16", seconds=60, out=tmp_path / "out.json")
    gpu_loading.measure(args, tmp_path)
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row.get(gpu_loading.ADVICE) for row in rows] == [None, "3", None]  # 1.1 x 100 / 50
    assert [row["values"] for row in rows] == [[100.0], [40.0], [100.0]]


def test_processor_time_is_of_the_loader(monkeypatch):
    """User and system time of its processes, without that of theirs."""
    children = [SimpleNamespace(cpu_times=lambda: (1.0, 2.0, 4.0, 8.0))] * 2
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(children=lambda: children))
    assert gpu_loading.loader_seconds() == 6


def test_flops_of_a_language_model():
    """Counted in a model's matrix products, forward and backward."""
    layers, width, vocabulary, length = 3, 64, 100, 128
    with torch.device("meta"):
        model = text_nd.GPT(vocabulary, length, 0.0, layers, width, heads=2, tied=True)
        tokens = torch.zeros(1, length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    assert peaks.gpt_flops(layers, width, vocabulary, length) == pytest.approx(
        counter.get_total_flops() / length, rel=1e-3
    )


# ---------------------------------------------------------------------------------------- the page


def test_machines_are_said_to_be_sandboxes():
    about = {"accelerator": "NVIDIA H200", "torch": "2.11.0+cu130", "date": "2026-11-26"}
    for system, where in (
        ("Linux-6.18.44-fc-v657-gpu-x86_64-with-glibc2.39", "NVIDIA H200 in a sandbox"),
        ("Linux-4.4.0-x86_64-with-glibc2.39", "NVIDIA H200 in a sandbox"),
        ("Linux-6.8.0-45-generic-x86_64-with-glibc2.39", "NVIDIA H200"),
        ("Linux-5.14.4.0-x86_64", "NVIDIA H200"),
    ):
        wanted = f"{where}, PyTorch 2.11.0, 2026-11-26"
        assert findings.machine(about | {"system": system}) == wanted


def bench_of(rows, name, **facts):
    """Returns a benchmark as read_benchmarks() does."""
    about = {"accelerator": "NVIDIA H200", "torch": "2.11.0", "date": "2026-11-26"}
    for row in rows:
        row["median"] = float(np.median(row["values"]))
    content = {"title": name, "unit": "images/s", "baseline": rows[0]["name"], "facts": facts}
    return {name: content | {"about": about, "rows": rows}}


def test_the_page_says_how_many_cores_feed_a_gpu():
    """Processor time an image x images/s, of the row with most processes: 2 ms x 4,000 = 8."""
    used = gpu_loading.USED
    rows = [{"name": "synthetic images", "values": [4000.0]}]
    for name, milliseconds in (
        ("folder, -j 16", 2.0),
        ("raw 256, -j 16", 0.5),
        ("folder, -j 4", 9.0),
        ("folder, Pillow, -j 16", 4.0),
    ):
        rows.append({"name": name, "values": [3000.0], used: milliseconds})
    bench = bench_of(rows, "gpu_loading", batch=256, precision="bfloat16")
    text, _, _ = page.make_page([], bench, {}, [], "COMMAND")
    title = "needs 8.0 cores for folder, 2.0 cores for raw 256, 16.0 cores for folder, Pillow\n"
    assert title in text and "in a sandbox" not in text


def test_each_section_says_when_its_log_was_made(tmp_path):
    """And by which PyTorch, on which GPU: each log here has a date of its own."""
    columns = {gpu_loading.USED: 1.0}
    names = {
        "gpu": ["imagenet_ddp_apex.py --opt-level O0 -b 256"],
        "gpu_precision": ["imagenet_nd.py --amp bfloat16 --channels-last -b 1024"],
        "gpu_precision_operators": ["aten::mm, float16 -b 1024"],
        "gpu_loading": ["synthetic images", "folder, -j 1"],
        "gpu_decoding": ["Pillow"],
        "gpu_stage_accuracy": ["python imagenet_nd.py"],
        "gpu_stage_text": ["python text_nd.py"],
        "gpu_stage_gpt2": ["python text_nd.py"],
    }
    bench, dates = {}, {}
    facts = {"minutes": 1.2, "steps": 3, "batch": 2, "precision": "x", "images": 3, "pixels": 9.0}
    for day, (name, rows) in enumerate(names.items(), 1):
        made = [{"name": each, "values": [1.0]} for each in rows]
        made[-1] |= columns
        bench |= bench_of(made, name, **facts)
        dates[name] = f"2026-01-{day:02}"
        bench[name]["about"]["date"] = dates[name]
    gpt = {"arch": "gpt", "layers": 2, "hidden_size": 64, "max_length": 32, "seed": 0}
    lm = {"Loss/val": [2.0, 1.0], "Perplexity/val": [7.4, 2.7], "Throughput/train": [9.0, 9.0]}
    images = {"Top1/val": [90.0, 96.0], "Loss/val": [2.0, 1.0], "Throughput/train": [9.0, 9.0]}
    more = {"steps_per_epoch": 9, "device": "NVIDIA H200", "image_size": 32, "vocabulary": 99}
    for study, tags, options in (
        ("gpu_text", lm, gpt),
        ("gpu_gpt2", lm, gpt),
        ("gpu_accuracy", images, {"seed": 0}),
    ):
        logged = about("nd", **options) | more | {"data": "/d/mine"}
        logged["command"][1] = "text_nd.py" if tags is lm else "imagenet_nd.py"
        write_run(tmp_path / study / "run", tags, about=logged)
    text, _, _ = page.make_page(logs.read_runs([tmp_path])[0], bench, {}, [], "COMMAND")
    shown = text.split('\n## <a id="scaling"')[0].split("## Methods")[0]
    sections = {line[:28]: part for part in shown.split("\n#") if (line := part.lstrip("# "))}
    wanted = {
        '<a id="gpu"></a>On one NVIDI': "gpu",
        "ResNet-50 in float16 beside ": "gpu_precision",
        "Fed from JPEGs, ResNet-50 ne": "gpu_loading",
        "resnet18 reaches 96.00 % top": "gpu_stage_accuracy",
        "nanoGPT's character model: l": "gpu_stage_text",
        "GPT-2's 124 million weights ": "gpu_stage_gpt2",
        "nvImageCodec's decoders besi": "gpu_decoding",
    }
    for begin, name in wanted.items():
        assert re.findall(r"2026-01-\d\d", sections[begin]) == [dates[name]], begin
    head = sections["Results\n\n`COMMAND` generates"]
    found = re.findall(r"2026-01-\d\d", head)
    assert found == [dates[each] for each in ("gpu", "gpu_stage_accuracy", "gpu_stage_text")]


def test_only_a_device_with_float8_has_its_stage(monkeypatch):
    stage, versions = one_gpu.EVERY["float8"], dict.fromkeys([*one_gpu.TABLES, "torchao"], "1.0")
    assert one_gpu.lacking(stage, ROOT, versions, True) == ""
    assert one_gpu.lacking(stage, ROOT, versions, False) == "no float8 on this device"
    without = one_gpu.lacking(stage, ROOT, versions | {"torchao": None}, True)
    assert without == "no torchao"
    assert not one_gpu.has_float8()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, has in ((8, 0), False), ((8, 9), True), ((9, 0), True):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda found=capability: found)
        assert one_gpu.has_float8() == has
    assert [*one_gpu.MORE][-1] == "float8", "what is older is measured before it"


def test_the_page_compares_float8_with_bfloat16():
    form = "imagenet_nd.py --amp {} --compile --compile-mode default -b 128"
    rates = {"bfloat16": 500.0, "float8": 600.0, "float8 --float8-scaling rowwise": 450.0}
    rows = [{"name": form.format(amp), "values": [rate]} for amp, rate in rates.items()]
    bench = bench_of(rows, "gpu_float8", minutes=1.8)
    text, _, _ = page.make_page([], bench, {}, [], "COMMAND")
    assert "ViT-L/16 in float8 beside bfloat16: 1.20 times the images/s\n" in text
    names = [form.format(amp) for amp in rates]
    args = SimpleNamespace(batch_size=[128], float8=True, only=None)
    assert [gpu.name_of(job) for job in gpu.jobs_of(args)] == names, "those that gpu.py measures"


def test_float8_is_refused_in_a_line(tmp_path):
    words = [
        sys.executable,
        ROOT / "benchmarks" / "gpu.py",
        "-a",
        "vit_l_16",
        "-b",
        "2",
        "--float8",
    ]
    line = complaint([*words, "--image-size", "32", "--out", tmp_path / "out.json"], tmp_path)
    assert "--amp float8: " in line and not [*tmp_path.iterdir()]


def test_the_page_compares_float16_with_bfloat16():
    rows = [
        {"name": f"imagenet_nd.py --amp {half} --channels-last -b 1024", "values": [rate]}
        for half, rate in (("bfloat16", 4000.0), ("float16", 5000.0))
    ]
    operators = [
        {"name": f"aten::{name}, {half} -b 1024", "values": [ms]}
        for half, ms in (("bfloat16", 3.0), ("float16", 1.5))
        for name in ("mm", "all")
    ]
    bench = bench_of(rows, "gpu_precision", minutes=1.2)
    bench |= bench_of(operators, "gpu_precision_operators", steps=3)
    text, _, _ = page.make_page([], bench, {}, [], "COMMAND")
    assert "ResNet-50 in float16 beside bfloat16: 1.25 times the images/s\n" in text
    assert "| aten::mm | 3.00 | 1.50 |" in text
