"""The scripts as texts and as modules: copies, options, launch lines, models, schedule, images."""

import argparse
import importlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest
import torch
from conftest import ROOT, SCRIPTS, run
from torchvision import models

MODULES = [name.removesuffix(".py") for name in SCRIPTS]
sync_copies = argparse.Namespace(**runpy.run_path(str(ROOT / "tools" / "sync_copies.py")))


@pytest.fixture(scope="module")
def nd():
    return importlib.import_module("imagenet_nd")


# ------------------------------------------------------------------------------------------ copies


def texts():
    return {name: (ROOT / name).read_text() for name in SCRIPTS}


def test_copies_are_equal():
    assert len(SCRIPTS) == 5
    assert sync_copies.check(texts()) == []


@pytest.mark.parametrize(
    ("old", "new", "say"),
    [
        ('group["lr"] = rate(', 'group["lr"] = 2 * rate(', '+            group["lr"] = 2 * rate('),
        ("def leave():", "def leave(group):", "leave(group) in imagenet_"),
        ("def leave():", "def depart():", "leave(is missing)"),
        ("# ---- shared", "# ---- spared", "imagenet_ddp.py: needs one divider"),
        ("# ---- shared", "# ---- shared: twice\n# ---- shared", "imagenet_ddp.py: needs one"),
        ("if __name__", "# all_reduce of torch.distributed\nif __name__", "names distributed"),
        ("if __name__", "\nif __name__", "below its divider"),
    ],
)
def test_copies_that_drift(old, new, say):
    scripts = texts()
    assert old in scripts["imagenet_ddp.py"]
    scripts["imagenet_ddp.py"] = scripts["imagenet_ddp.py"].replace(old, new)
    said = "\n".join(sync_copies.check(scripts))
    assert say in said


def test_copy_tool(tmp_path):
    tool = [sys.executable, ROOT / "tools" / "sync_copies.py", "--folder", tmp_path]
    assert "found 0" in run(tool, tmp_path, status=1)
    for name in SCRIPTS:
        shutil.copy(ROOT / name, tmp_path)
    changed = tmp_path / "imagenet_dp.py"
    changed.write_text(changed.read_text().replace("at == 0 and", "at == 1 and"))
    before = {name: (tmp_path / name).read_bytes() for name in SCRIPTS}
    assert "+        if at == 1 and" in run(tool, tmp_path, status=1)
    assert before == {name: (tmp_path / name).read_bytes() for name in SCRIPTS}, "it only reads"
    run([*tool, "--from", "imagenet_dp.py"], tmp_path)
    for name in SCRIPTS:
        head, _, tail = sync_copies.split((tmp_path / name).read_text())
        assert head == sync_copies.split(texts()[name])[0]
        assert "if at == 1 and" in tail
    assert "no such script" in run([*tool, "--from", "imagenet_xx.py"], tmp_path, status=2)


def test_diff_is_one_region():
    """What differs stands in one region, from the docstring to the divider, and nowhere else."""
    for name in SCRIPTS[1:]:
        words = ["diff", ROOT / "imagenet_nd.py", ROOT / name]
        hunks = re.findall(
            r"^\d+(?:,\d+)?[acd](\d+)(?:,(\d+))?$",
            subprocess.run(words, capture_output=True, text=True).stdout,
            re.MULTILINE,
        )
        head = sync_copies.split(texts()[name])[0].count("\n")
        assert all(int(last or first) <= head for first, last in hunks)


def test_standalone():
    """Nothing is imported but the standard library and requirements.txt (and what runs them)."""
    listed = re.findall(r"^[a-z]+", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    allowed = set(sys.stdlib_module_names) | set(listed) | {"PIL", "horovod", "apex", "amp_C"}
    for name, text in texts().items():
        found = re.findall(r"^\s*(?:import|from) ([a-zA-Z_]+)", text, re.MULTILINE)
        assert set(found) <= allowed, name


# ----------------------------------------------------------------------------------- launch lines


def launch_lines():
    """Yields (where, words) of the launch lines in docstrings and README."""
    for path in [*(ROOT / name for name in SCRIPTS), ROOT / "README.md"]:
        text = path.read_text()
        if path.suffix == ".py":
            text = importlib.import_module(path.stem).__doc__
        else:
            text = "\n".join(re.findall(r"^```(?:bash|sh)?\n(.*?)^```", text, re.DOTALL | re.M))
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            if re.search(r"imagenet_\w+\.py", line) and re.match(
                r"\s*(?:[A-Z_]+=\S+ )*(?:python|torchrun|horovodrun|srun) ", line
            ):
                yield f"{path.name}: {line.strip()}", shlex.split(line, comments=True)


LINES = dict(launch_lines())


def test_there_are_launch_lines():
    for name in SCRIPTS:
        assert sum(where.startswith(name) for where in LINES) >= 3
        assert any(where.startswith("README") and name in where for where in LINES)


@pytest.mark.parametrize("where", LINES)
def test_launch_line_parses(where):
    words = LINES[where]
    (at,) = (i for i, word in enumerate(words) if re.fullmatch(r"imagenet_\w+\.py", word))
    script = importlib.import_module(words[at].removesuffix(".py"))
    options = [word for word in words[at + 1 :] if word not in ("2>&1", "|", "&")]
    script.parse_args(options)
    before = [word for word in words[:at] if not re.match("[A-Z_]+=", word)]
    if "torch.distributed.launch" in before or before[0] == "torchrun":
        from torch.distributed.run import get_args_parser

        start = before.index("torch.distributed.launch") if "-m" in before else 0
        get_args_parser().parse_args([*before[start + 1 :], words[at]])
    elif before[0] == "horovodrun":
        assert before[1] == "-np" and before[-1] == "python"
    else:
        assert before[-1] == "python"


# ----------------------------------------------------------------------------------------- options

PEERS = (
    "-a resnet50 -j 4 --epochs 2 --start-epoch 1 -b 8 --learning-rate 0.1 --momentum 0.9 "
    "--weight-decay 1e-4 -p 5 --resume x.pt -e --pretrained --seed 1 --gpu 0 --dummy DIR"
)
COMMANDS = {
    "imagenet_nd.py": [PEERS, "-a resnet50 --wd 1e-4 --lr 0.2 --no-accel DIR", "--workers 3 DIR"],
    "imagenet_dp.py": [PEERS],
    "imagenet_ddp.py": [
        f"{PEERS} --world-size 1 --rank 0 --dist-url tcp://127.0.0.1:1 --dist-backend nccl",
        "--multiprocessing-distributed --desired-acc 0.75 DIR",
    ],
    "imagenet_ddp_apex.py": [
        "-a resnet50 --b 208 --workers 20 --opt-level O2 --local_rank=3 DIR",
        "--local-rank 1 --sync_bn --opt-level O3 --keep-batchnorm-fp32 True --loss-scale 128.0",
        "--sync-bn --loss-scale dynamic --channels-last --deterministic --prof 3 --opt-level O0",
    ],
    "imagenet_horovod.py": [
        "--fp16-allreduce --batches-per-allreduce 4 --use-adasum --gradient-predivide-factor 2.0 "
        "--base-lr 0.0125 --warmup-epochs 5 --wd 0.00005 --seed 42 DIR"
    ],
}


@pytest.mark.parametrize("script", COMMANDS)
def test_peers_commands_parse(script):
    module = importlib.import_module(script.removesuffix(".py"))
    for line in COMMANDS[script]:
        module.parse_args(shlex.split(line))


def test_studies_parse(tmp_path):
    """The commands of benchmarks/studies.py, those for a GPU too."""
    studies = argparse.Namespace(**runpy.run_path(str(ROOT / "benchmarks" / "studies.py")))
    assert {study: len(commands) for study, commands in studies.STUDIES.items()} == {
        "scaling_cpu": 7,
        "precision_cpu": 4,
        "precision_gpu": 8,
        "throughput_gpu": 48,
    }
    for words in (words for commands in studies.STUDIES.values() for words in commands):
        script = next(word for word in words if word.endswith(".py"))
        module = importlib.import_module(script.removesuffix(".py"))
        args = module.parse_args(words[words.index(script) + 1 :])
        assert args.desired_acc or args.dummy
    words = [sys.executable, ROOT / "benchmarks" / "studies.py", "scaling_cpu", "--dir", "nowhere"]
    assert "holds no train/" in run([*words, "--logs", tmp_path / "logs"], tmp_path, status=2)
    assert not (tmp_path / "logs").exists()


def test_defaults_are_frozen():
    """A change of a default changes what people's commands do: it must be meant."""
    shared = {
        "dir": None, "workers": None, "image_size": None, "val_resize": None, "num_classes": None,
        "dummy": False, "arch": "resnet18", "pretrained": False, "sync_bn": False,
        "channels_last": False, "epochs": 90, "start_epoch": None, "batch_size": 256,
        "accumulation": 1, "lr": 0.1, "lr_scaling": "linear", "base_lr": None,
        "lr_schedule": "step", "warmup_epochs": None, "momentum": 0.9, "wd": 1e-4,
        "desired_acc": None, "steps_per_epoch": None, "resume": None, "evaluate": False,
        "decode": "cpu", "compile": False, "compile_mode": "default", "bench": False,
        "log_dir": "runs", "print_freq": 10, "prof": None, "gpu": None, "no_accel": False,
        "seed": 0, "deterministic": False, "max_bad_images": 0.001, "allow_pipe": False,
        "checkpoint_minutes": 15, "max_hours": None, "requeue": False, "timeout": 600,
    }  # fmt: skip
    own = {
        "imagenet_nd": {"precision": "float32"},
        "imagenet_dp": {"precision": "float32"},
        "imagenet_ddp": {
            "precision": "float32", "dist_url": None, "dist_backend": None, "world_size": None,
            "rank": None, "nproc_per_node": None, "multiprocessing_distributed": False,
            "local_rank": None,
        },
        "imagenet_ddp_apex": {
            "precision": "O1", "keep_batchnorm_fp32": None, "loss_scale": None, "half_dtype": None,
            "local_rank": None, "dist_backend": None,
        },
        "imagenet_horovod": {
            "precision": "float32", "fp16_allreduce": False, "use_adasum": False,
            "gradient_predivide_factor": 1.0,
        },
    }  # fmt: skip
    for name in MODULES:
        assert vars(importlib.import_module(name).parse_args([])) == shared | own[name], name


# ------------------------------------------------------------------------------------------ models


def buildable():
    """All architectures; RegNet reads its widths off tensors, so only its small ones are built."""
    known = models.list_models(module=models)
    return [arch for arch in known if not arch.startswith("regnet") or arch.endswith("_400mf")]


@pytest.mark.parametrize("arch", buildable())
def test_every_classifier_can_be_built(arch, nd):
    args = nd.parse_args(["-a", arch])
    size = nd.preset_of(arch).crop_size[0]
    with torch.device("cpu" if arch.startswith("regnet") else "meta"):
        data = nd.Data(None, None, None, 0, 7, size, 0, 0, "", None)
        model = nd.build_model(args, data).eval()
        assert model(torch.empty(2, 3, size, size)).shape == (2, 7)


@pytest.mark.parametrize(("arch", "weight"), [("inception_v3", 0.4), ("googlenet", 0.3)])
def test_auxiliary_loss(arch, weight, nd):
    args = nd.parse_args(["-a", arch])
    size = nd.preset_of(arch).crop_size[0]
    assert size == {"inception_v3": 299, "googlenet": 224}[arch]
    torch.manual_seed(0)
    model = nd.build_model(args, nd.Data(None, None, None, 0, 6, size, 0, 0, "", None))
    target = torch.tensor([1, 5])
    output = model(torch.randn(2, 3, size, size))
    loss, sums = nd.build_criterion(args)(output, target)
    cross = [torch.nn.functional.cross_entropy(each, target) for each in output]
    assert loss.item() == pytest.approx((cross[0] + weight * sum(cross[1:])).item(), rel=1e-5)
    assert (sums[0] / sums[3]).item() == pytest.approx(loss.item(), rel=1e-6)


FAMILIES = [
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s"),
    *("googlenet", "inception_v3", "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small"),
    *("regnet_y_400mf", "resnet18", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1"),
    *("swin_t", "swin_v2_t", "vgg11", "vit_b_32", "wide_resnet50_2"),
]


@pytest.mark.parametrize("arch", FAMILIES)
def test_pretrained(arch, nd, tmp_path, monkeypatch):
    """torchvision's own loading, of weights that stand where it would have downloaded them."""
    weights = next(iter(models.get_model_weights(arch)))
    torch.manual_seed(1)
    quick = {"init_weights": False} if arch in nd.AUXILIARY_WEIGHT else {}
    donor = models.get_model(arch, **quick).state_dict()
    (tmp_path / "checkpoints").mkdir()
    torch.save(donor, tmp_path / "checkpoints" / weights.url.rsplit("/", 1)[1])
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    args = nd.parse_args(["-a", arch, "--pretrained"])
    size = nd.preset_of(arch).crop_size[0]
    for classes in 1000, 7:
        torch.manual_seed(2)
        data = nd.Data(None, None, None, 0, classes, size, 0, 0, "", None)
        model = nd.build_model(args, data).state_dict()
        new = {name for name, tensor in donor.items() if not same(tensor, model[name])}
        assert model.keys() == donor.keys()
        if classes == 1000:
            assert new == set()
        else:
            heads = {name.rsplit(".", 1)[0] for name in new}
            assert len(heads) == {"googlenet": 3, "inception_v3": 2}.get(arch, 1), new
            assert all(len(model[name]) == classes for name in new)


def same(one, other):
    return one.shape == other.shape and torch.equal(one, other)


# ---------------------------------------------------------------------------------- learning rate


def test_learning_rate(nd):
    data = nd.Data(None, None, None, 0, 10, 224, 0, 1024, "", None)
    rate = lambda *words: nd.peak_learning_rate(nd.parse_args([*words]), data)  # noqa: E731
    assert rate("--lr", "0.1") == pytest.approx(0.4)
    assert rate("--lr", "0.1", "--lr-scaling", "sqrt") == pytest.approx(0.2)
    assert rate("--lr", "0.1", "--lr-scaling", "none") == pytest.approx(0.1)
    assert rate("--base-lr", "0.0125", "-b", "32") == pytest.approx(0.0125 * 32)
    args = nd.parse_args(["--epochs", "90"])
    at = lambda progress: nd.learning_rate(args, 0.4, progress)  # noqa: E731
    assert at(2.5) == pytest.approx(0.2)
    assert at(5) == at(29.99) == pytest.approx(0.4)
    assert [at(30.01), at(60.01), at(80.01)] == pytest.approx([0.04, 0.004, 0.0004])
    args = nd.parse_args(["--epochs", "10", "--warmup-epochs", "2", "--lr-schedule", "cosine"])
    assert at(1) == pytest.approx(0.2)
    assert [at(2), at(6), at(10)] == pytest.approx([0.4, 0.2, 0])
    args = nd.parse_args(["--epochs", "10", "--warmup-epochs", "0"])
    assert at(0.01) == pytest.approx(0.4)


# ------------------------------------------------------------------------------------------ images


def read(nd, path):
    """Returns a whole image as the scripts decode it, uint8 (H, W, 3)."""
    return nd.decode(
        path.read_bytes(), str(path), lambda height, width: (0, 0, height, width)
    ).numpy()


@pytest.mark.parametrize(
    ("mode", "name"),
    [("RGB", "a.jpg"), ("L", "a.jpg"), ("CMYK", "a.jpg"), ("P", "a.png"), ("RGBA", "a.png"),
     ("I;16", "a.png"), ("1", "a.png"), ("L", "a.bmp"), ("RGB", "a.webp"), ("P", "a.gif")],
)  # fmt: skip
@pytest.mark.parametrize("size", [(31, 17), (1, 1)])
def test_images_are_read_as_pillow_reads_them(mode, name, size, nd, tmp_path):
    rng = np.random.default_rng(0)
    smooth = PIL.Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8)).resize(size, 2)
    image = smooth.convert("L").convert(mode) if mode == "I;16" else smooth.convert(mode)
    image.save(tmp_path / name)
    expected = np.asarray(PIL.Image.open(tmp_path / name).convert("RGB"))
    pixels = read(nd, tmp_path / name)
    assert pixels.dtype == np.uint8
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected).max() <= (4 if mode == "CMYK" else 2)


def test_png_named_jpeg_and_animation(nd, tmp_path):
    image = PIL.Image.new("RGB", (9, 7), (10, 200, 30))
    image.save(tmp_path / "a.JPEG", format="PNG")
    assert read(nd, tmp_path / "a.JPEG")[3, 3].tolist() == [10, 200, 30]
    other = PIL.Image.new("RGB", (9, 7), (200, 10, 30))
    image.save(tmp_path / "a.gif", save_all=True, append_images=[other])
    assert read(nd, tmp_path / "a.gif").shape == (7, 9, 3)


def test_crops_are_drawn_from_seed_epoch_and_index(nd, demo):
    def crop(seed, key):
        args = nd.parse_args(["--seed", str(seed), "-b", "4", str(demo)])
        return nd.load_data(args, nd.Place(torch.device("cpu"))).train.dataset[key][0]

    state = torch.get_rng_state()
    first = crop(1, (0, 7))
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
    assert torch.equal(first, crop(1, (0, 7)))
    others = [crop(2, (0, 7)), crop(1, (1, 7)), crop(1, (0, 8))]
    assert not any(torch.equal(first, other) for other in others)


def test_demo_set_is_drawn_whole_or_not_at_all(nd, tmp_path):
    nd.draw_demo_set(tmp_path / "demo")
    assert len(list(tmp_path.glob("demo/train/*/*.jpg"))) == 1280
    assert len(list(tmp_path.glob("demo/val/*/*.jpg"))) == 320
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
