"""Bad input ends in one line that says what, where and what to do, with exit status 2."""

import importlib
import socket
import subprocess
import sys

import pytest
import torch
from conftest import HOROVOD, ROOT, command, complaint, environment, free_port, run, write_images

TINY = ["-a", "vit_b_16", "--image-size", "32", "-b", "2", "--epochs", "1", "-j", "0"]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def trained(images, tmp_path_factory):
    """A checkpoint of two classes."""
    folder = tmp_path_factory.mktemp("trained")
    run([*command("imagenet_nd.py"), *TINY, images], folder)
    return next(folder.glob("runs/*/checkpoint.pt"))


@pytest.fixture
def complaint_here(tmp_path, monkeypatch, capfd):
    """complaint(), in this process: it saves the imports. All these end before others start."""

    def complain(words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(words[0].removesuffix(".py")).main()
        out, error = capfd.readouterr()
        assert ended.value.code == 2
        assert (out + error).count("\n") == 1
        assert ".py: error: " in error
        assert {path.name for path in tmp_path.glob("runs/*")} <= {".index"}, "no run is begun"
        return error

    return complain


OPTIONS = {
    "imagenet_nd.py": [
        (["-a", "resnet51"], "resnet50"),
        (["-a", "efficientnet"], "efficientnet_"),
        (["-b", "0"], "-b"),
        (["-b", "-3"], "above 0"),
        (["-b", "many"], "many"),
        (["--desired-acc", "75"], "0.75 for 75 %"),
        (["--desired-acc", "0"], "fraction"),
        (["--lr", "nan"], "nan"),
        (["--lr", "inf"], "above 0"),
        (["--epochs", "0"], "--epochs"),
        (["--momentum", "-1"], "--momentum"),
        (["--seed", "-1"], "--seed"),
        (["--workers", "-1"], "--workers"),
        (["--amp", "int8"], "bfloat16"),
        (["--lr-schedule", "linear"], "cosine"),
        (["--opt-level", "O2"], "unrecognized"),
        (["--gpu", "0", "--no-accel"], "exclude"),
        (["--resume", "nothing.pt"], "no such file"),
        (["--num-classes", "1"], "--num-classes 1"),
        (["-b", "100"], "global batch"),
        (["--sync-bn"], "GPUs only"),
        (["--prof", "5"], "--prof"),
        (["--log-dir", "/dev/null/runs"], "--log-dir"),
        (["--start-epoch", "1"], "--start-epoch 1"),
        (["--val-resize", "16"], "--val-resize 16"),
        (["--compile-mode", "max-autotune"], "--compile-mode max-autotune needs --compile"),
        (["--max-bad-images", "1.5"], "fraction in [0, 1]"),
        (["--timeout", "-1"], "from 0 on"),
        (["--max-hours", "0"], "above 0"),
        (["--requeue"], "SLURM_JOB_ID"),
        (["--resume", "auto", "--start-epoch", "0"], "exclude each other"),
        (["--bench", "--evaluate"], "--evaluate, --prof and --bench exclude one another"),
        (["-a", "alexnet"], "alexnet does not go with --image-size 32"),
        (["-a", "inception_v3", "--image-size", "64"], "inception_v3 does not go with"),
    ],
    "imagenet_dp.py": [(["--sync-bn"], "imagenet_ddp.py")],
    "imagenet_ddp_apex.py": [
        (["--opt-level", "02"], "O0, O1, O2 or O3"),
        (["--opt-level", "O4"], "letter O"),
        (["--opt-level", "O1", "--keep-batchnorm-fp32", "True"], "O1"),
        (["--keep-batchnorm-fp32", "maybe"], "True"),
        (["--loss-scale", "0"], "above 0"),
        (["--loss-scale", "-8"], "above 0"),
        (["--loss-scale", "nan"], "above 0"),
        (["--loss-scale", "big"], "dynamic"),
        (["--half-dtype", "float8"], "bfloat16"),
    ],
    "imagenet_ddp.py": [
        (["--world-size", "2", "--rank", "2", "--dist-url", "tcp://localhost:1"], "--rank 2"),
        (["--world-size", "0"], "nodes"),
        (["--world-size", "2", "--rank", "0"], "--dist-url"),
        (["--dist-url", "localhost:99"], "tcp://HOST:PORT"),
        (["--dist-url", "tcp://localhost:port"], "tcp://HOST:PORT"),
        (["--dist-url", "tcp://no.such.host.invalid:9876"], "not known"),
        (["--dist-backend", "carrier-pigeon"], "carrier-pigeon"),
        (["--nproc-per-node", "-1"], "1 or more"),
        (["--nproc-per-node", "0"], "1 or more"),
    ],
}


@pytest.mark.parametrize(
    ("script", "options", "say"),
    [(script, *case) for script, cases in OPTIONS.items() for case in cases],
    ids=str,
)
def test_options(script, options, say, images, complaint_here):
    assert say in complaint_here([script, *TINY, *options, images])


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("script", "options", "say"),
    [
        ("imagenet_nd.py", ["--gpu", "0"], "no GPU"),
        ("imagenet_ddp.py", ["--gpu", "0"], "no GPU"),
        ("imagenet_ddp.py", ["--dist-backend", "nccl"], "nccl"),
        ("imagenet_ddp_apex.py", ["--dist-backend", "nccl"], "nccl"),
    ],
)
def test_gpu_where_there_is_none(script, options, say, images, tmp_path):
    assert say in complaint([sys.executable, ROOT / script, *TINY, *options, images], tmp_path)


def test_more_ranks_on_a_node_than_gpus(monkeypatch):
    script = pytest.importorskip("imagenet_ddp_apex")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    args = script.parse_args([])
    assert script.pick_device(args, 1, 2) == torch.device("cuda", 1)
    with pytest.raises(script.BadInput, match="4 processes on a node of 2 GPUs: start 2 there"):
        script.pick_device(args, 3, 4)
    with pytest.raises(script.BadInput, match="--gpu 2"):
        script.pick_device(script.parse_args(["--gpu", "2"]))
    with pytest.raises(script.BadInput, match="--gpu 0: 2 processes"):
        script.pick_device(script.parse_args(["--gpu", "0"]), 0, 2)


def broken(folder, how):
    """Returns an ImageFolder that is broken, and what the complaint must name."""
    if how == "missing":
        return folder / "nowhere", "nowhere"
    write_images(folder)
    if how in ("no train", "no val"):
        (folder / how[3:]).rename(folder / "other")
        return folder, str(folder / how[3:])
    if how == "empty class":
        (folder / "train" / "bird").mkdir()
        return folder, "bird"
    if how == "no class":
        (folder / "train").rename(folder / "other")
        (folder / "train").mkdir()
        return folder, "train"
    (folder / "val" / "dog").rename(folder / "val" / "fox")
    return folder, "dog"


@pytest.mark.parametrize(
    "how", ["missing", "no train", "no val", "empty class", "no class", "other classes"]
)
def test_folder(how, tmp_path, complaint_here):
    folder, say = broken(tmp_path / "images", how)
    assert say in complaint_here(["imagenet_nd.py", *TINY, folder])


def test_one_rank_speaks_for_all(tmp_path):
    words = [*command("imagenet_ddp.py", 2), *TINY, tmp_path / "nowhere"]
    assert "nowhere" in complaint(words, tmp_path)


@pytest.mark.parametrize("script", ["imagenet_nd.py", "imagenet_ddp.py"])
@pytest.mark.parametrize("workers", ["0", "2"])
def test_file_that_is_no_image(script, workers, tmp_path):
    folder = write_images(tmp_path / "images")
    bad = folder / "train" / "dog" / "3.jpg"
    bad.write_text("this is not a JPEG")
    words = [sys.executable, ROOT / script, *TINY, "-j", workers, folder]
    if script == "imagenet_ddp.py":
        words += ["--nproc-per-node", "2"]
    assert str(bad) in complaint(words, tmp_path, only=False)


def test_checkpoints(trained, images, tmp_path, complaint_here):
    resume = ["imagenet_nd.py", *TINY, images, "--resume"]
    whole = trained.read_bytes()
    cut = tmp_path / "cut.pt"
    for size in 0, 1, 100, len(whole) // 2, len(whole) - 1:
        cut.write_bytes(whole[:size])
        assert "cut.pt: damaged" in complaint_here([*resume, cut])
    torch.save({"state_dict": {}, "epoch": 3}, tmp_path / "foreign.pt")
    assert "foreign.pt: damaged, or no" in complaint_here([*resume, tmp_path / "foreign.pt"])
    torch.save([1, 2], tmp_path / "list.pt")
    assert "list.pt" in complaint_here([*resume, tmp_path / "list.pt"])
    (tmp_path / "text.pt").write_text("weights")
    assert "text.pt" in complaint_here([*resume, tmp_path / "text.pt"])
    assert "holds no good checkpoint" in complaint_here([*resume, tmp_path])
    assert trained.read_bytes() == whole


def test_hostile_checkpoint_is_not_run(images, tmp_path):
    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    torch.save({"arch": Hostile()}, tmp_path / "hostile.pt")
    words = [*command("imagenet_nd.py"), *TINY, images, "--resume", tmp_path / "hostile.pt"]
    assert "hostile.pt" in complaint(words, tmp_path)
    assert not (tmp_path / "owned").exists()


def test_checkpoint_of_another_model(trained, images, tmp_path):
    other = [*command("imagenet_nd.py"), *TINY, images, "--resume", trained]
    assert "vit_b_16 of 2 classes" in complaint([*other, "-a", "resnet18"], tmp_path)
    assert "vit_b_16 of 2 classes" in complaint([*other, "--num-classes", "5"], tmp_path)
    assert "damaged" in complaint([*other, "--image-size", "64"], tmp_path)


def test_pretrained_weights_that_cannot_be_fetched(images, tmp_path):
    environment = {"TORCH_HOME": str(tmp_path), "http_proxy": "", "https_proxy": "127.0.0.1:9"}
    words = [*command("imagenet_nd.py"), *TINY, "-a", "resnet18", "--pretrained", images]
    lines = run(words, tmp_path, status=2, env=environment).strip().splitlines()
    assert "Traceback" not in " ".join(lines)
    assert lines[-1].startswith("imagenet_nd.py: error: --pretrained: cannot fetch https://")


def test_image_size_that_does_not_suit_the_model(images, tmp_path):
    words = [*command("imagenet_nd.py"), *TINY, "--image-size", "30", images]
    assert "vit_b_16 does not go with --image-size 30" in complaint(words, tmp_path)


def test_port_in_use(images, tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        url = ["--dist-url", f"tcp://127.0.0.1:{port}"]
        assert str(port) in complaint(
            [*command("imagenet_ddp.py", 1), *TINY, *url, images], tmp_path
        )
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        words = [sys.executable, ROOT / "imagenet_ddp_apex.py", *TINY, images]
        assert str(port) in complaint(words, tmp_path, env=environment)


def test_world_sizes_that_do_not_match(images, tmp_path):
    """Two nodes, one of which was told of three: both end, and say so."""
    url = ["--dist-url", f"tcp://127.0.0.1:{free_port()}", "--no-accel", "--nproc-per-node", "1"]
    nodes = []
    for rank, size in (0, 2), (1, 3):
        words = [sys.executable, ROOT / "imagenet_ddp.py", *TINY, *url, images]
        words += ["--world-size", str(size), "--rank", str(rank)]
        pipe = {"stderr": subprocess.PIPE, "text": True, "env": environment()}
        nodes.append(subprocess.Popen(words, cwd=tmp_path, **pipe))
    said = [node.communicate(timeout=120)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [2, 2], said
    assert any("--world-size" in each for each in said), said


def test_launcher_and_options_that_contradict(images, tmp_path):
    environment = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    words = [sys.executable, ROOT / "imagenet_ddp.py", *TINY, "--world-size", "2", images]
    assert "leave out --dist-url" in complaint(words, tmp_path, env=environment)
    words[-3:-1] = ["--dist-url", "tcp://127.0.0.1:1"]
    assert "leave out --dist-url" in complaint(words, tmp_path, env=environment)


def test_without_horovod(images, tmp_path):
    """One line that says how to install it; --help works all the same."""
    hidden = tmp_path / "hidden" / "horovod"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden by a test')")
    words = [sys.executable, ROOT / "imagenet_horovod.py"]
    environment = {"PYTHONPATH": str(hidden.parent)}
    said = complaint([*words, *TINY, images], tmp_path, env=environment)
    assert "tools/install_horovod.sh" in said
    run([*words, "--help"], tmp_path, env=environment)


@pytest.mark.skipif(not HOROVOD, reason="Horovod is not built: `make horovod`")
@pytest.mark.parametrize(
    ("options", "say"),
    [
        (["--use-adasum", "--amp", "float16"], "bfloat16"),
        (["--use-adasum", "--gradient-predivide-factor", "2"], "--use-adasum"),
        (["--gradient-predivide-factor", "0"], "above 0"),
    ],
)
def test_horovod_options(options, say, images, tmp_path):
    words = [sys.executable, ROOT / "imagenet_horovod.py", *TINY, *options, images]
    assert say in complaint(words, tmp_path)
