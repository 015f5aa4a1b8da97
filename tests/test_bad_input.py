"""Bad input ends in one line that says what, where and what to do, with exit status 2."""

import os
import shutil
import socket
import subprocess
import sys

import pytest
import torch
from conftest import (
    HOROVOD,
    ROOT,
    Hostile,
    command,
    complaint,
    environment,
    free_port,
    run,
    the_line,
    write_images,
)

import imagenet_nd as nd

# SqueezeNet has few weights, and no BatchNorm.
TINY = ["-a", "squeezenet1_1", "--image-size", "32", "-b", "2", "--epochs", "1", "-j", "0"]
TINY += ["--no-accel"]
ND, DDP, APEX = "imagenet_nd.py", "imagenet_ddp.py", "imagenet_ddp_apex.py"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """An ImageFolder of two classes, of 8 and 4 images."""
    return write_images(tmp_path_factory.mktemp("images"))


# ----------------------------------------------------------------------------------------- options

OPTIONS = {
    ND: [
        ("-a resnet51", "resnet50"),
        ("-a efficientnet", "efficientnet_"),
        ("-b 0", "-b"),
        ("-b -3", "-3"),
        ("-b many", "many"),
        ("--desired-acc 75", "--desired-acc: 75"),
        ("--desired-acc 0", "--desired-acc: 0"),
        ("--desired top2 75", "--desired takes one of top1, top5, loss, and a number: 'top2'"),
        ("--desired top1 75%", "and a number: 75% is no float"),
        ("--best accuracy", "--best: invalid choice: 'accuracy'"),
        ("--lr nan", "nan"),
        ("--lr inf", "inf"),
        ("--lr 0", "--lr"),
        ("--epochs 0", "--epochs"),
        ("--momentum -1", "--momentum"),
        ("--seed -1", "--seed"),
        ("--seed 12345678901234567890123", "--seed"),
        ("--workers -1", "--workers"),
        ("--timeout -1", "--timeout"),
        ("--amp int8", "bfloat16"),
        ("--lr-schedule square", "cosine"),
        ("--warmup-epochs 2", "--warmup-epochs 2 is beyond --epochs 1"),
        ("--mixup -0.1", "--mixup"),
        ("--mixup 0.2 -b 3", "take pairs, and of 3 images on a device"),
        ("--cutmix 1 --global-batch 6 -b 1", "take pairs, and of 1 images on a device"),
        ("--cutmix 1 -b 6 --mix-group 3", "3 mixed alike a number is odd"),
        ("--mixup 1 -b 6 --repeated-aug 2", "3 mixed alike a number is odd"),
        ("--mix-group 0", "--mix-group"),
        ("--mix-group 8", "--mix-group is for --mixup and --cutmix"),
        ("--bce-threshold 0.2", "--bce-threshold is for --loss bce"),
        ("--bce-threshold 1 --loss bce", "--bce-threshold"),
        ("--bce-threshold 0 --loss bce", "--bce-threshold"),
        ("--auto-augment rand-m6.5", "--auto-augment rand-m6.5: there is off, trivial"),
        ("--auto-augment rand-n2.5", "--auto-augment rand-n2.5: there is off, trivial"),
        ("-a RESNET18", "near: resnet18"),
        ("--label-smoothing 1.1", "--label-smoothing"),
        ("--random-erase 2", "--random-erase"),
        ("--min-crop 0", "--min-crop"),
        ("--ema 1", "--ema"),
        ("--clip-grad -1", "--clip-grad"),
        ("--repeated-aug 3 -b 4", "--repeated-aug 3: does not divide 4 images"),
        ("--val-size 64 --val-resize 48", "--val-resize 48"),
        ("--freeze", "--freeze needs --pretrained"),
        ("--freeze --resume auto", "--freeze needs --pretrained"),
        ("--optimizer nesterov --momentum 0", "Nesterov momentum requires a momentum"),
        ("--optimizer adam", "adamw"),
        ("--loss mse", "bce"),
        ("-a timm/resnet51", "resnet50"),
        (
            "--compile --compile-mode reduce-overhead --start-size 24",
            "--compile-mode reduce-overhead and --start-size exclude",
        ),
        ("@nothing.txt", "No such file or directory: 'nothing.txt'"),
        ("--opt-level O2", "--opt-level"),
        ("--no-such-option", "--no-such-option"),
        ("--model resnet50 --data-path x", "unrecognized arguments: --model --data-path"),
        ("--lr-scheduler cosineannealinglr", "unrecognized arguments: --lr-scheduler"),
        ("--auto-augment rand-m6-q3", "rand-m6-mstd0.5-inc1"),
        ("--bce-threshold 2", "--bce-threshold"),
        ("--gpu 0 --no-accel", "exclude each other"),
        ("--pretrained --weights x.pt", "exclude each other"),
        ("--global-batch 8 --accumulation 2", "exclude each other"),
        ("-b 100", "training has 8 images, fewer than a global batch, 100"),
        ("--sync-bn", "unrecognized arguments: --sync-bn"),
        ("--prof 3", "unrecognized arguments: --prof"),
        ("--val-resize 16", "--val-resize 16"),
        ("--log-dir /dev/null/runs", "--log-dir /dev/null/runs"),
        ("--resume nothing.pt", "nothing.pt cannot be loaded: No such file"),
        ("--weights nothing.pt", "nothing.pt cannot be loaded: No such file"),
        (f"--resume {300 * 'a'}", "cannot be loaded: File name too long"),
        ("--start-epoch 1000", "--start-epoch 1000 is not below --epochs"),
    ],
    "imagenet_dp.py": [("--compile", "--compile")],
    APEX: [
        ("--opt-level 02", "O0, O1, O2 or O3"),
        ("--opt-level O4", "letter O"),
        ("--opt-level O1 --keep-batchnorm-fp32 True", "O1"),
        ("--opt-level O3 --sync-bn", "--keep-batchnorm-fp32 True"),
        ("--keep-batchnorm-fp32 maybe", "True"),
        ("--loss-scale 0", "above 0"),
        ("--loss-scale -8", "above 0"),
        ("--loss-scale nan", "above 0"),
        ("--loss-scale inf", "above 0"),
        ("--loss-scale big", "dynamic"),
        ("--half-dtype float8", "bfloat16"),
        ("--opt-level O3 --half-dtype float16 --optimizer adamw", "take O2"),
        ("--dist-backend nccl", "nccl"),
        ("--sync-bn", "GPUs only"),
    ],
    DDP: [
        ("--world-size 2 --rank 2 --dist-url tcp://localhost:1", "--rank 2"),
        ("--world-size 0", "--world-size: 0"),
        ("--world-size 2 --rank 0", "--dist-url"),
        ("--dist-url localhost:99", "tcp://HOST:PORT"),
        ("--dist-url tcp://localhost:port", "tcp://HOST:PORT"),
        ("--dist-url tcp://localhost:99999", "tcp://HOST:PORT"),
        ("--dist-backend carrier-pigeon", "carrier-pigeon"),
        ("--nproc-per-node -1", "-1 is no int from 1"),
        ("--nproc-per-node 0", "0 is no int from 1"),
        ("--freeze --weights x.pt --sync-bn", "exclude each other"),
    ],
    "imagenet_fsdp.py": [("--compile --compile-mode reduce-overhead", "gathered weights")],
    "imagenet_horovod.py": [
        ("--use-adasum --amp float16", "bfloat16"),
        ("--use-adasum --gradient-predivide-factor 2", "--use-adasum"),
        ("--gradient-predivide-factor 0", "0 is no float from 1e-06"),
    ],
}


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [(script, *case) for script, cases in OPTIONS.items() for case in cases],
    ids=str,
)
def test_options(script, options, words, images, complaint_here):
    if script == "imagenet_horovod.py" and not HOROVOD:
        pytest.skip("Horovod is not built: `make horovod`")
    assert words in complaint_here(script, *TINY, *options.split(), images)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--zero-init", "zero_init_residual"),
        ("-a vit_b_16 --image-size 100", "Input shape indivisible by patch size!"),
        ("-a vit_b_16 --val-size 48", "Wrong image height! Expected 32 but got 48!"),
        ("-a alexnet", "Output size is too small"),
        ("-a inception_v3 --image-size 64", "Kernel size can't be greater than actual input size"),
        ("-a resnet18 -b 1", "Expected more than 1 value per channel when training"),
        ("--num-classes 1", "Target 1 is out of bounds"),
    ],
)
def test_a_model_that_does_not_fit(options, words, images, tmp_path):
    """The images, the batch or the classes: as the library says it, in one line."""
    start = [*command(ND), *TINY, *options.split(), images]
    assert words in complaint(start, tmp_path, only=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--epochs 2\n--no-such-option 3\n", "unrecognized arguments: --no-such-option"),
        ("--lr -1", "argument --lr/--learning-rate: -1"),
        ("--weights 'x.pt", "an option file: No closing quotation"),
        ("--log-dir bob's\n--lr 2\n# alice's\n", "an option file: No closing quotation"),
        ("@my.txt", "an option file: maximum recursion depth"),
        ("@other.txt", "No such file or directory: 'other.txt'"),
        ("--epochs 2 \\\n--lr 1\n", "an option file: No escaped character"),
    ],
)
def test_an_option_file(text, words, images, tmp_path, complaint_here):
    (tmp_path / "my.txt").write_text(text)
    assert words in complaint_here(ND, *TINY, "@my.txt", images)


def test_an_option_file_may_quote_and_comment_and_name_another(tmp_path):
    text = f"""# it's a "comment
    --log-dir "run #1"  # another

    @{tmp_path / "other.txt"}
    """
    (tmp_path / "my.txt").write_text(text)
    (tmp_path / "other.txt").write_text("--epochs 3")
    args = nd.parse_args([f"@{tmp_path / 'my.txt'}", "-b", "7"])
    assert (args.log_dir, args.epochs, args.batch_size) == ("run #1", 3, 7)


@pytest.mark.parametrize("words", ["-a timm/resnet18", "--optimizer lamb", "--optimizer lars"])
def test_what_is_timms_without_timm(words, images, complaint_here, monkeypatch):
    for name in "timm", "timm.optim":  # another test may have imported it
        monkeypatch.setitem(sys.modules, name, None)
    assert "timm" in complaint_here(ND, *TINY, *words.split(), images)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("script", [ND, APEX])
def test_gpu_where_there_is_none(script, images, complaint_here):
    options = [each for each in TINY if each != "--no-accel"]
    assert "no GPU" in complaint_here(script, *options, "--gpu", "0", images)


# -------------------------------------------------------------------------------------------- data


def plant(folder, fault):
    """Plants a fault in an ImageFolder."""
    train, val = folder / "train", folder / "val"
    if fault in ("no train", "no val"):
        (folder / fault[3:]).rename(folder / "other")
    if fault == "empty class":
        (train / "bird").mkdir()
    if fault == "empty":
        shutil.rmtree(train)
        train.mkdir()
    if fault == "other classes":
        (val / "dog").rename(val / "fox")
    if fault == "validation":
        val.rename(folder / "validation")
    if fault == "flat":
        for path in val.glob("*/*"):
            path.rename(val / f"{path.parent.name}{path.name}")
        for path in val.iterdir():
            if path.is_dir():
                path.rmdir()
    if fault == "tar":
        shutil.rmtree(folder)
        folder.write_bytes(b"tar")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no train", ["{}/train: ", "No such file", "train/ and val/ hold <class>/*"]),
        ("no val", ["{}/val: ", "No such file", "train/ and val/ hold <class>/*"]),
        ("empty class", ["{}/train", "bird"]),
        ("empty", ["{}/train: Couldn't find any class folder"]),
        ("other classes", ["differ in 2 classes, as dog"]),
        ("validation", ["{}/val: ", "No such file", "train/ and val/ hold <class>/*"]),
        ("flat", ["{}/val: Couldn't find any class folder", "prepare_imagenet.py"]),
        ("tar", ["{}/train: ", "prepare_imagenet.py"]),
    ],
)
def test_folder(fault, words, tmp_path, complaint_here):
    folder = write_images(tmp_path / "images.tar")
    plant(folder, fault)
    line = complaint_here(ND, *TINY, folder)
    for each in words:
        assert each.format(folder) in line


def test_dir_that_is_not_there_and_not_utf8(tmp_path):
    words = [os.fsencode(each) for each in [*command(ND), *TINY]]
    words.append(os.fsencode(tmp_path) + b"/caf\xe9")
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, timeout=300)
    assert done.returncode == 2
    line = the_line((done.stdout + done.stderr).decode())  # what is printed is UTF-8
    assert "caf" in line and "No such file" in line


# ------------------------------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def trained(images, tmp_path_factory):
    """A checkpoint of two classes."""
    folder = tmp_path_factory.mktemp("trained")
    run([*command(ND), *TINY, images], folder)
    return next(folder.glob("runs/*/checkpoint.pt"))


def test_checkpoints(trained, images, tmp_path, complaint_here):
    """Damaged, hostile, or others': refused by name, without touching the file or running it."""
    path, whole = tmp_path / "bad.pt", trained.read_bytes()
    saved = torch.load(trained, weights_only=True)
    resume = [ND, *TINY, images, "--resume"]
    for size in 0, 1, 100, len(whole) // 2, len(whole) - 1:
        path.write_bytes(whole[:size])
        assert "bad.pt cannot be loaded: " in complaint_here(*resume, path)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 16
    path.write_bytes(flipped)
    assert "bad.pt cannot be loaded: " in complaint_here(*resume, path)
    path.write_text("weights")
    assert "bad.pt cannot be loaded: " in complaint_here(*resume, path)
    for content in [1, 2], {"arch": "squeezenet1_1"}, {"arch": Hostile(tmp_path / "run")}:
        torch.save(content, path)
        assert "bad.pt" in complaint_here(*resume, path)
    assert not (tmp_path / "run").exists(), "nothing in the file is run"
    assert path.stat().st_size > 0
    theirs = {name: saved[name] for name in ("epoch", "arch", "best_acc1", "optimizer")}
    theirs["state_dict"] = {f"module.{name}": each for name, each in saved["state_dict"].items()}
    torch.save(theirs | {"scheduler": {}}, path)
    line = complaint_here(*resume, path)
    assert "pytorch/examples" in line and "--weights" in line
    assert "no good checkpoint in" in complaint_here(*resume, images)
    others = {
        ("-a", "resnet18"): "differs in arch (squeezenet1_1, here resnet18)",
        ("--num-classes", "5"): "differs in num-classes (2, here 5)",
    }
    for other, why in others.items():
        line = complaint_here(*resume, trained, *other, only=False)  # which options differ, too
        assert why in line
    assert trained.read_bytes() == whole


@pytest.mark.parametrize("name", sorted(nd.METADATA | nd.TENSORS))
def test_a_checkpoint_that_lacks_a_name(name, trained, tmp_path):
    saved = torch.load(trained, weights_only=True)
    del saved[name]
    torch.save(saved, tmp_path / "bad.pt")
    with pytest.raises(nd.BadInput, match="bad.pt is no checkpoint of these scripts"):
        nd.read_checkpoint(tmp_path / "bad.pt")


def test_weights_that_do_not_fit(trained, images, tmp_path, complaint_here):
    """A weight of another shape, one more, one less, a moment of another shape."""
    saved = torch.load(trained, weights_only=True)
    weights, moments = saved["state_dict"], saved["optimizer"]["state"]
    (first, weight), *others = weights.items()
    for name, held in {
        first: {"state_dict": weights | {first: weight[1:]}},
        "layer9.weight": {"state_dict": weights | {"layer9.weight": weight}},
        others[0][0]: {"state_dict": {first: weight} | dict(others[1:])},
        "state.1.momentum_buffer": {
            "optimizer": saved["optimizer"]
            | {"state": moments | {1: {"momentum_buffer": torch.zeros(3)}}}
        },
    }.items():
        torch.save(saved | held, tmp_path / "bad.pt")
        line = complaint_here(ND, *TINY, images, "--resume", tmp_path / "bad.pt")
        assert f"--resume: 1 weights do not fit: {name}" in line


def test_a_library_is_given_no_name_of_a_checkpoint(trained, images, tmp_path):
    """Such as a file that it would load, and run what is in it."""
    saved = torch.load(trained, weights_only=True)
    saved["model_options"] = {"checkpoint_path": str(tmp_path / "none")}
    torch.save(saved, tmp_path / "edited.pt")
    run(
        [*command(ND), *TINY, "--epochs", "2", images, "--resume", tmp_path / "edited.pt"], tmp_path
    )


def test_a_place_for_no_demo_set():
    assert "a demo set cannot be written" in complaint([*command(ND), *TINY], "/proc", only=False)


def test_limits_of_the_system(images, tmp_path):
    """Rank 0 has a connection for each rank and a worker some files: the hard limit is taken. Where
    that is too low, a loader that has begun to start is not waited for."""
    train = [*command(ND), *TINY, images, "-j", "16"]
    words = ["bash", "-c", 'ulimit -S -n 64; exec "$@"', "bash", *train]
    run(words, tmp_path)
    words[2] = 'ulimit -n 64; exec "$@"'
    output = run(words, tmp_path, status=2, timeout=120)
    assert "a limit of `ulimit -a` ([Errno 24] Too many open files)" in output
    assert "Traceback" not in output


def test_weights_that_are_no_state_dict(images, tmp_path, complaint_here):
    for saved in [1, 2], torch.zeros(2), {"a": 1}, {"conv1.weight": [0]}, {"state_dict": None}:
        torch.save(saved, tmp_path / "w.pt")
        line = complaint_here(ND, *TINY, "--weights", tmp_path / "w.pt", images)
        assert "weights do not fit" in line


def test_a_log_dir_that_leads_nowhere(images, tmp_path, complaint_here):
    (tmp_path / "runs").symlink_to("unmounted")
    assert "--log-dir" in complaint_here(ND, *TINY, "--log-dir", tmp_path / "runs", images)


def test_weights_of_another_architecture(trained, images, complaint_here):
    line = complaint_here(ND, *TINY, "-a", "resnet18", "--weights", trained, images)
    assert str(trained) in line and "weights do not fit" in line


def test_pretrained_weights_that_cannot_be_fetched(images, tmp_path, complaint_here):
    (tmp_path / "file").touch()
    line = complaint_here(ND, *TINY, "--pretrained", images, TORCH_HOME=str(tmp_path / "file"))
    assert (
        "--pretrained: cannot fetch the weights of squeezenet1_1" in line
        and str(tmp_path / "file") in line
    )


# -------------------------------------------------------------------------------------- launchers

LAUNCHER = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("script", "change", "words"),
    [
        (DDP, {"MASTER_ADDR": None}, "MASTER_ADDR"),
        (APEX, {"MASTER_PORT": None}, "MASTER_PORT"),
        (DDP, {"RANK": "x"}, "'RANK': 'x'"),
        (APEX, {"WORLD_SIZE": ""}, "'WORLD_SIZE': ''"),
        (DDP, {"MASTER_PORT": "99999"}, "99999"),
        (APEX, {"MASTER_PORT": "99999"}, "99999"),
    ],
    ids=str,
)
def test_environment(script, change, words, images, complaint_here):
    variables = {name: value for name, value in (LAUNCHER | change).items() if value is not None}
    assert words in complaint_here(script, *TINY, images, **variables)


def test_launcher_and_options_that_contradict(images, complaint_here):
    for options in ["--world-size", "2"], ["--dist-url", "tcp://127.0.0.1:1"]:
        line = complaint_here(DDP, *TINY, *options, images, **LAUNCHER)
        assert "leave out --dist-url" in line


@pytest.mark.parametrize("script", [DDP, APEX])
def test_port_in_use(script, images, complaint_here):
    """Of status 1: it passes when the old process of a job that is queued again has saved."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        env = LAUNCHER | {"MASTER_PORT": port}
        assert port in complaint_here(script, *TINY, images, status=1, **env)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"MASTER_ADDR": "no.such.host.invalid"}, "no.such.host.invalid port 1: [Errno -"),
        ({}, "127.0.0.1 port 1: [Errno 111] Connection refused"),
    ],
)
def test_a_peer_that_does_not_come(change, words, images, tmp_path):
    """It is asked for again until --timeout; then one line of status 1, and no stack of C++."""
    env = LAUNCHER | {"RANK": "1"} | change
    start = [*command(APEX), *TINY, "--timeout", "2", images]
    assert words in complaint(start, tmp_path, status=1, env=env)


def test_a_node_whose_first_does_not_come(images, tmp_path):
    url = ["--dist-url", "tcp://no.such.host.invalid:9876", "--world-size", "2", "--rank", "1"]
    start = [*command(DDP), *TINY, *url, "--timeout", "2", images]
    assert "no.such.host.invalid port 9876" in complaint(start, tmp_path, status=1)


def start_ranks(cwd, *options):
    """Starts imagenet_ddp.py as a launcher would, each rank with options of its own."""
    port, ranks = str(free_port()), []
    for rank, own in enumerate(options):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(options))}
        env = environment(**LAUNCHER | {"MASTER_PORT": port} | place)
        words = [sys.executable, str(ROOT / DDP), *TINY, *map(str, own)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ranks.append(subprocess.Popen(words, cwd=cwd, env=env, **pipes))
    return ranks


def test_ranks_that_differ(images, tmp_path):
    """In an option, or in one image: they would train something else, in silence."""
    other = write_images(tmp_path / "other")
    (other / "train" / "dog" / "3.jpg").rename(other / "train" / "dog" / "4.jpg")
    val = write_images(tmp_path / "val")
    next((val / "val" / "dog").iterdir()).unlink()
    ranks = start_ranks(tmp_path, [images], [images, "--seed", "7"], [other], [val])
    printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 2, 2, 2], printed
    assert "another rank is gone" in the_line(printed[0])
    assert "rank 1 differs from rank 0 in seed (0, here 7)" in the_line(printed[1])
    assert "rank 2 differs from rank 0 in data (8 images" in the_line(printed[2])
    assert "rank 3 differs from rank 0 in val (4 images" in the_line(printed[3])
    assert not (tmp_path / "runs").exists()


def test_global_batch_that_does_not_divide_names_the_counts_that_fit(images, tmp_path):
    words = [images, "--global-batch", "9"]
    ranks = start_ranks(tmp_path, words, words)
    printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert ranks[0].returncode == 2, printed
    assert ranks[1].returncode, "which may see no more than that rank 0 is gone"
    line = the_line(printed[0])
    assert "2 devices cannot share a global batch of 9" in line and line.endswith(": 1, 3, 9")


@pytest.mark.slow
def test_nodes_of_different_world_sizes(images, tmp_path):
    """Two nodes, one of which expects three: both end, and one says so."""
    url = ["--dist-url", f"tcp://127.0.0.1:{free_port()}", "--timeout", "20"]
    nodes = []
    for rank, size in (0, 2), (1, 3):
        words = [*command(DDP), *TINY, *url, images]
        words += ["--world-size", size, "--rank", rank]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        env = environment()
        nodes.append(subprocess.Popen(list(map(str, words)), cwd=tmp_path, env=env, **pipes))
    printed = [node.communicate(timeout=500)[0] for node in nodes]
    assert all(node.returncode for node in nodes), printed
    line = the_line(printed[1])
    assert "rank 1 expects 3 ranks" in line and "rank 0 2 ranks" in line


def test_without_horovod(images, tmp_path):
    """One line says how to install it."""
    hidden = tmp_path / "hidden" / "horovod"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden by a test')")
    words, env = command("imagenet_horovod.py"), {"PYTHONPATH": str(hidden.parent)}
    assert "tools/install_horovod.sh" in complaint([*words, *TINY, images], tmp_path, env=env)


@pytest.mark.parametrize("why", ["Failed to recv, got 0 bytes", "Connection was likely closed"])
def test_a_rank_that_died_in_set_up_is_one_line(why, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [ND])
    assert nd.report_error(torch.distributed.DistNetworkError(why)) == 1
    assert "another rank is gone" in the_line(capsys.readouterr().err)


def test_a_gpu_without_memory_left_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [ND])
    why = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.11 GiB in all. Of it, ..."
    assert nd.report_error(torch.OutOfMemoryError(why)) == 2
    line = the_line(capsys.readouterr().err)
    assert "no memory: lower -b" in line and "2.00 GiB" in line
