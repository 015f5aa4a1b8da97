"""Bad input ends in one line that says what, where and what to do, with exit status 2."""

import argparse
import contextlib
import importlib
import itertools
import os
import pickle
import shutil
import socket
import sys
import zipfile

import pytest
import torch
from conftest import (
    HOROVOD,
    SCRIPTS,
    TEXT_SCRIPTS,
    Hostile,
    checkpoint,
    command,
    complaint,
    free_port,
    run,
    start,
    start_ranks,
    the_line,
    write_images,
)

import imagenet_nd as nd
from trainparts import errors
from trainparts.runs import checkpointing

# SqueezeNet has few weights, and no BatchNorm.
TINY = "-a squeezenet1_1 --image-size 32 -b 2 --epochs 1 -j 0 --no-accel".split()
LM = "--layers 1 --hidden-size 16 --heads 2 --max-length 16 -b 4 --epochs 1 --no-accel".split()
LM += ["--tokenizer", "words"]
ND, DDP, APEX, TEXT = "imagenet_nd.py", "imagenet_ddp.py", "imagenet_ddp_apex.py", "text_nd.py"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """An ImageFolder of two classes, of 8 and 4 images."""
    return write_images(tmp_path_factory.mktemp("images"))


# ----------------------------------------------------------------------------------------- options

# What options of numbers take of NUMBERS.
NUMBERS = "-1 0 0.5 1 2 9999999999999999999999 inf nan x".split()
RANGES = {
    "-1 0 1 2 9999999999999999999999": "local_rank",
    "0 1 2": "gpu rank seed start_epoch workers",
    "1 2": "accumulation batch_size epochs global_batch heads hidden_size hybrid image_size "
    "keep_every layers max_length microbatches mix_group nproc_per_node num_classes patience "
    "print_freq repeated_aug start_size steps_per_epoch val_resize val_size world_size",
    "2": "stages",
    "0 0.5 1 2": "checkpoint_minutes clip_grad cutmix mixup momentum norm_wd timeout warmup_epochs "
    "wd",
    "0.5 1 2": "base_lr bucket_mb budget_hours gradient_predivide_factor lr",
    "0.5 1 2 9999999999999999999999": "loss_scale",
    "0 0.5 1": "beta2 label_smoothing random_erase",
    "0.5 1": "desired layer_decay min_crop",
    "0 0.5": "dropout ema",
    "0.5": "bce_threshold",
    "": "precision",
}


@pytest.mark.parametrize("script", [*SCRIPTS, *TEXT_SCRIPTS])
def test_ranges(script):
    ranges = {name: taken for taken, names in RANGES.items() for name in names.split()}
    for action in importlib.import_module(script.removesuffix(".py")).make_parser()._actions:
        if action.type and action.dest not in ("resume", argparse.SUPPRESS):  # which take texts
            taken = []
            for number in NUMBERS:
                with contextlib.suppress(ValueError, argparse.ArgumentTypeError):
                    action.type(number)
                    taken.append(number)
            assert taken == ranges.get(action.dest, "").split(), action.option_strings


OPTIONS = {
    ND: [
        ("-a resnet51", "resnet50"),
        ("-a RESNET18", "similar names: resnet18"),
        ("-a timm/resnet51", "resnet50"),
        ("-b -3", "argument -b/--batch-size/--b: -3 is no int from 1"),
        ("-b 100", "training has 8 images, fewer than a global batch, 100"),
        ("--optimizer adam", "adamw"),
        ("--desired top2 75", "--desired top2: it takes one of top1, top5, loss, and a number"),
        ("--desired top1 75%", "--desired top1: 75% is no float from 0.0 to 100.0 %"),
        ("--warmup-epochs 2", "--warmup-epochs 2 is beyond --epochs 1"),
        ("--start-epoch 1000", "--start-epoch 1000 is not below --epochs"),
        ("--mixup 0.2 -b 3", "need even numbers: 3 images on a device"),
        ("--cutmix 1 --global-batch 6 -b 1", "need even numbers: 1 images on a device"),
        ("--cutmix 1 -b 6 --mix-group 3", "even numbers: 6 images on a device, 3 mixed"),
        ("--mixup 1 -b 6 --repeated-aug 2", "even numbers: 6 images on a device, 3 mixed"),
        ("--mix-group 8", "--mix-group is for --mixup and --cutmix"),
        ("--bce-threshold 0.2", "--bce-threshold is for --loss bce"),
        ("--auto-augment rand-m6.5", "--auto-augment rand-m6.5: give off, trivial"),
        ("--auto-augment rand-m6-q3", "rand-m6-mstd0.5-inc1"),
        ("--repeated-aug 3 -b 4", "--repeated-aug 3: does not divide 4 images"),
        ("--val-size 64 --val-resize 48", "--val-resize 48"),
        ("--freeze", "--freeze needs --pretrained"),
        ("--freeze --output-dir x", "--freeze needs --pretrained"),
        ("--optimizer nesterov --momentum 0", "Nesterov momentum requires a momentum"),
        (
            "--compile --compile-mode reduce-overhead --start-size 24",
            "--compile-mode reduce-overhead and --start-size exclude",
        ),
        ("--gpu 0 --no-accel", "exclude each other"),
        ("--pretrained --weights x.pt", "exclude each other"),
        ("--global-batch 8 --accumulation 2", "exclude each other"),
        ("--model resnet50 --data-path x", "unrecognized arguments: --model --data-path"),
        ("--lr-sched cosine", "unrecognized arguments: --lr-sched"),
        ("@nothing.txt", "@nothing.txt: No such file or directory"),
        ("--output-dir /dev/null/runs", "--output-dir /dev/null/runs"),
        ("--output-dir nothing/run", "nothing/run: there is no folder nothing: mount its disk"),
        ("--output-dir=", "--resume and --output-dir need a name"),
        ("--resume=", "--resume and --output-dir need a name"),
        ("--evaluate", "--evaluate needs --resume, --output-dir, --weights or --pretrained"),
        ("--resume nothing.pt", "nothing.pt cannot be loaded: No such file"),
        ("--weights nothing.pt", "nothing.pt cannot be loaded: No such file"),
        (f"--resume {300 * 'a'}", "cannot be loaded: File name too long"),
    ],
    "imagenet_dp.py": [("--compile", "--compile")],
    APEX: [
        ("--opt-level 02", "O0, O1, O2 or O3, with the letter O"),
        ("--opt-level O1 --keep-batchnorm-fp32 True", "O1"),
        ("--opt-level O3 --sync-bn", "--keep-batchnorm-fp32 True"),
        ("--loss-scale -8", "neither dynamic nor a number above 0"),
        ("--opt-level O3 --half-dtype float16 --optimizer adamw", "use O2"),
        ("--dist-backend nccl", "nccl"),
        ("--sync-bn", "only on GPUs"),
    ],
    DDP: [
        ("--world-size 2 --rank 2 --dist-url tcp://localhost:1", "--rank 2"),
        ("--world-size 2 --rank 0", "--dist-url"),
        ("--dist-url localhost:99", "tcp://HOST:PORT"),
        ("--dist-url tcp://localhost:99999", "tcp://HOST:PORT"),
        ("--freeze --weights x.pt --sync-bn", "exclude each other"),
    ],
    "imagenet_fsdp.py": [("--compile --compile-mode reduce-overhead", "gathered weights")],
    "imagenet_horovod.py": [
        ("--use-adasum --amp float16", "bfloat16"),
        ("--use-adasum --gradient-predivide-factor 2", "--use-adasum"),
        ("--use-adasum --amp bfloat16 --clip-grad 1", "--clip-grad: --use-adasum combines"),
        ("--use-adasum --clip-grad 1", "--clip-grad: --use-adasum combines updates"),
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
        ("-a resnet18 -b 1", "Expected more than 1 value per channel when training"),
        ("--num-classes 1", "Target 1 is out of bounds"),
    ],
)
def test_a_model_that_does_not_fit(options, words, images, complaint_here):
    """As it is built, or in the first step: as the library says it, in one line."""
    assert words in complaint_here(ND, *TINY, *options.split(), images, only=False, begun=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--epochs 2\n--no-such-option 3\n", "unrecognized arguments: --no-such-option"),
        ("--output-dir bob's\n--lr 2\n# alice's\n", "my.txt, line 1: No closing quotation"),
        ("@my.txt", "my.txt contains @my.txt, which contains it"),
        ("--epochs 2 \\\n--lr 1\n", "my.txt, line 1: No escaped character: '--epochs 2"),
    ],
)
def test_an_option_file(text, words, images, tmp_path, complaint_here):
    (tmp_path / "my.txt").write_text(text)
    assert words in complaint_here(ND, *TINY, "@my.txt", images)


def test_an_option_file_may_quote_and_comment_and_name_another(tmp_path):
    text = f"""# it's a "comment
    --output-dir "run #1"  # another

    @{tmp_path / "other.txt"}
    """
    (tmp_path / "my.txt").write_text(text)
    (tmp_path / "other.txt").write_text("--epochs 3")
    args = nd.parse_args([f"@{tmp_path / 'my.txt'}", "-b", "7"])
    assert (args.output_dir, args.epochs, args.batch_size) == ("run #1", 3, 7)


@pytest.mark.parametrize("words", ["-a timm/resnet18", "--optimizer lamb"])
def test_what_is_timms_without_timm(words, images, complaint_here, monkeypatch):
    for name in "timm", "timm.optim":  # another test may have imported it
        monkeypatch.setitem(sys.modules, name, None)
    assert "timm" in complaint_here(ND, *TINY, *words.split(), images)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("script", [ND, APEX])
def test_gpu_where_there_is_none(script, images, complaint_here):
    options = [each for each in TINY if each != "--no-accel"]
    assert "no GPU" in complaint_here(script, *options, "--gpu", "0", images)


@pytest.mark.parametrize("script", [ND, TEXT])
def test_an_empty_name(script, complaint_here, monkeypatch):
    """As of a variable of the shell that is not set: not the demo. One of its own may be empty."""
    assert "DIR" in complaint_here(script, "--no-accel", "")
    module = importlib.import_module(script.removesuffix(".py"))
    for name in "IMAGENET_DIR", "TEXT_DIR":
        monkeypatch.setenv(name, "")
    assert module.parse_args(["--no-accel"]).dir is None


# -------------------------------------------------------------------------------------------- data


def flatten(folder):
    """Has no folders of classes in val/, as image-net.org's archive."""
    for path in [*folder.glob("val/*/*")]:
        path.rename(folder / "val" / f"{path.parent.name}{path.name}")
    for path in folder.glob("val/*/"):
        path.rmdir()


def archive(folder):
    """Puts a file in the folder's place."""
    shutil.rmtree(folder)
    folder.write_bytes(b"tar")


HOLD = ["No such file", "train/ and val/ hold <class>/*"]
FOLDERS = {  # what is done to an ImageFolder => words of the line
    "no train": (lambda folder: shutil.rmtree(folder / "train"), ["{}/train: ", *HOLD]),
    "validation": (lambda folder: (folder / "val").rename(folder / "x"), ["{}/val: ", *HOLD]),
    "empty class": (lambda folder: (folder / "train" / "bird").mkdir(), ["{}/train", "bird"]),
    "other classes": (
        lambda folder: (folder / "val" / "dog").rename(folder / "val" / "fox"),
        ["{}/val: 1 of ", "classes are not in train/, as fox"],
    ),
    "flat": (flatten, ["{}/val: Couldn't find any class folder", "prepare_folder.py"]),
    "tar": (archive, ["{}/train: ", "prepare_imagenet.py"]),
}


@pytest.mark.parametrize("fault", FOLDERS)
def test_folder(fault, tmp_path, complaint_here):
    plant, words = FOLDERS[fault]
    folder = write_images(tmp_path / "images.tar")
    plant(folder)
    line = complaint_here(ND, *TINY, folder)
    assert [each for each in words if each.format(folder) not in line] == []


def test_dir_that_is_not_there_and_not_utf8(tmp_path, complaint_here):
    line = complaint_here(ND, *TINY, os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    assert "caf" in line and "No such file" in line


# ------------------------------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def trained(images, text, tmp_path_factory):
    """{script: (the words that have trained, their checkpoint)} of images and of text."""
    folder = tmp_path_factory.mktemp("trained")
    words = {ND: [*TINY, images], TEXT: [*LM, text]}
    for script in words:
        run([*command(script), *words[script], "--output-dir", folder / script], folder)
    return {script: (words[script], checkpoint(folder / script)) for script in words}


def test_damaged_checkpoints(trained, images, tmp_path, complaint_here):
    """Damaged, hostile, or others': refused by name, without touching the file or running it."""
    path, (_, good) = tmp_path / "bad.pt", trained[ND]
    resume, whole = [ND, *TINY, images, "--resume"], good.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 16
    for content in b"", whole[: len(whole) // 2], whole[:-1], flipped, b"weights":
        path.write_bytes(content)
        assert "bad.pt cannot be loaded: " in complaint_here(*resume, path)
    for content in [1, 2], {"arch": "squeezenet1_1"}:
        torch.save(content, path)
        assert "bad.pt" in complaint_here(*resume, path)
    hostile = {"arch": Hostile(tmp_path / "run"), "state_dict": {}}
    for option in "--resume", "--weights":
        for write in (
            lambda: torch.save(hostile, path),
            lambda: torch.save(hostile, path, _use_new_zipfile_serialization=False),
            lambda: path.write_bytes(pickle.dumps(hostile, protocol=2)),
        ):
            write()
            line = complaint_here(*resume[:-1], option, path, only=False)
            assert "bad.pt cannot be loaded: no checkpoint, or one with Python" in line
    assert not (tmp_path / "run").exists(), "nothing in the file is run"
    assert path.stat().st_size > 0
    saved = torch.load(good, weights_only=True)
    theirs = {name: saved[name] for name in ("epoch", "arch", "best_acc1", "optimizer")}
    theirs["state_dict"] = {f"module.{name}": each for name, each in saved["state_dict"].items()}
    torch.save(theirs | {"scheduler": {}}, path)
    line = complaint_here(*resume, path)
    assert "those of other projects" in line and "--weights" in line
    assert f"--resume {images} has no checkpoint" in complaint_here(*resume, images)
    assert good.read_bytes() == whole


LIES = {  # attributes of a checkpoint's largest record, and what is done to its bytes
    "says that it is a folder": (0x10, bytes),  # PyTorch takes it for empty
    "has half of its bytes": (0, lambda content: content[: len(content) // 2]),
    "has a byte less": (0, lambda content: content[:-1]),
    "has no bytes": (0, lambda content: b""),
    "has twice its bytes": (0, lambda content: content * 2),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_record_that_lies(lie, trained, images, tmp_path, complaint_here):
    """A checksum that fits says nothing of it."""
    (attributes, change), path = LIES[lie], tmp_path / "bad.pt"
    with zipfile.ZipFile(trained[ND][1]) as good, zipfile.ZipFile(path, "w") as bad:
        largest = max(good.infolist(), key=lambda record: record.file_size).filename
        for name in good.namelist():
            content = good.read(name)
            bad.writestr(name, change(content) if name == largest else content)
            bad.getinfo(name).external_attr = attributes if name == largest else 0
    assert "bad.pt" in complaint_here(ND, *TINY, images, "--resume", path)


@pytest.mark.parametrize(
    ("script", "must_fit"),
    [
        (ND, "arch num_classes classes"),
        (TEXT, "arch task model_options vocabulary words max_length"),
    ],
)
def test_forged_checkpoints(script, must_fit, trained, tmp_path, complaint_here):
    """A name that is not there, or holds what is of another model, or of no model at all."""
    (words, good), path = trained[script], tmp_path / "bad.pt"
    saved = torch.load(good, weights_only=True)
    for name in checkpointing.METADATA | checkpointing.TENSORS:
        torch.save({each: saved[each] for each in saved if each != name}, path)
        with pytest.raises(errors.BadInput, match="bad.pt is not a checkpoint of these scripts"):
            checkpointing.read_checkpoint(path)
    values = None, 7, "1", ["x"], {"layers": True}
    for name, value in itertools.product(must_fit.split(), values):
        forged = saved | {name: value}
        if value is None:
            del forged[name]
        torch.save(forged, path)
        line = complaint_here(script, *words, "--resume", path, only=False)
        differs = f"bad.pt differs in {name.replace('_', '-')} ({value}, here "
        assert differs in line or f"bad.pt cannot be used: its {name} is {value!r}" in line


def test_a_checkpoint_of_images_or_of_text(trained, complaint_here):
    """One is none of the other's, by a file's name or by its folder's."""
    for script, other in (ND, TEXT), (TEXT, ND):
        words, path = trained[script][0], trained[other][1]
        for each in path, path.parent:
            for more in [], ["-e"]:
                line = complaint_here(script, *words, "--resume", each, *more, only=False)
                assert line.endswith("checkpoint.pt is a checkpoint of scripts for another task")


def test_weights_that_do_not_fit(trained, images, tmp_path, complaint_here):
    """A weight of another shape, one more, one less, a moment of another shape."""
    saved = torch.load(trained[ND][1], weights_only=True)
    weights, optimizer = saved["state_dict"], saved["optimizer"]
    (first, weight), *others = weights.items()
    moments = optimizer["state"] | {1: {"momentum_buffer": torch.zeros(3)}}
    for name, held in {
        first: {"state_dict": weights | {first: weight[1:]}},
        "layer9.weight": {"state_dict": weights | {"layer9.weight": weight}},
        others[0][0]: {"state_dict": {first: weight} | dict(others[1:])},
        "state.1.momentum_buffer": {"optimizer": optimizer | {"state": moments}},
    }.items():
        torch.save(saved | held, tmp_path / "bad.pt")
        line = complaint_here(ND, *TINY, "--epochs", "9", images, "--resume", tmp_path / "bad.pt")
        assert f"the checkpoint: 1 weights do not fit: {name}; {name} is " in line


def test_a_library_is_given_no_name_of_a_checkpoint(trained, images, tmp_path):
    """Such as a file that it would load, and run what is in it."""
    path, saved = tmp_path / "edited.pt", torch.load(trained[ND][1], weights_only=True)
    torch.save(saved | {"model_options": {"checkpoint_path": str(tmp_path / "none")}}, path)
    run([*command(ND), *TINY, "--epochs", "2", images, "--resume", path], tmp_path)


@pytest.mark.parametrize("part", ["train", "val/dog"])
def test_a_run_is_no_class(part, images, tmp_path, complaint_here):
    """Nothing is made there: the next run would refuse DIR, as it has a class without images."""
    before = {*images.rglob("*")}
    line = complaint_here(ND, *TINY, "--output-dir", images / part / "out", images)
    assert "must not be in train/ or val/ of DIR, where it would be a class" in line
    assert {*images.rglob("*")} == before


def test_a_place_for_no_demo_set():
    assert "a demo set cannot be written" in complaint([*command(ND), *TINY], "/proc", only=False)


@pytest.mark.slow
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


def test_folders_that_lead_nowhere(images, tmp_path, complaint_here):
    """To a disk that is not mounted: it may be, later."""
    (tmp_path / "run").symlink_to("unmounted")
    where = ["--output-dir", tmp_path / "run"]
    line = complaint_here(ND, *TINY, *where, images, status=1)
    assert "run leads to " in line and "/unmounted, which is missing: mount its disk" in line
    (tmp_path / "runs").symlink_to("unmounted")
    line = complaint_here(ND, *TINY, images, status=1, only=False)
    assert "runs leads to " in line and "/unmounted, which is missing: mount its disk" in line


def test_weights_of_another_architecture(trained, images, complaint_here):
    path = trained[ND][1]
    line = complaint_here(ND, *TINY, "-a", "resnet18", "--weights", path, images)
    assert str(path) in line and "weights do not fit" in line


def test_pretrained_weights_that_cannot_be_fetched(images, tmp_path, complaint_here):
    home = tmp_path / "file"
    home.touch()
    line = complaint_here(ND, *TINY, "--pretrained", images, TORCH_HOME=str(home))
    assert "--pretrained: cannot load squeezenet1_1 from" in line and str(home) in line


# -------------------------------------------------------------------------------------- launchers

LAUNCHER = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("script", "change", "options", "words"),
    [
        (DDP, {"MASTER_ADDR": None}, [], "MASTER_ADDR"),
        (APEX, {"MASTER_PORT": None}, [], "MASTER_PORT"),
        (DDP, {"RANK": "x"}, [], "'RANK': 'x'"),
        (APEX, {"WORLD_SIZE": ""}, [], "'WORLD_SIZE': ''"),
        (DDP, {"MASTER_PORT": "99999"}, [], "99999"),
        (APEX, {"MASTER_PORT": "99999"}, [], "99999"),
        (DDP, {}, ["--world-size", "2"], "omit --dist-url"),
        (DDP, {}, ["--dist-url", "tcp://127.0.0.1:1"], "omit --dist-url"),
    ],
    ids=str,
)
def test_environment(script, change, options, words, images, complaint_here):
    variables = {name: value for name, value in (LAUNCHER | change).items() if value is not None}
    assert words in complaint_here(script, *TINY, *options, images, **variables)


@pytest.mark.parametrize("script", [DDP, APEX])
def test_port_in_use(script, images, complaint_here):
    """Of status 1: it passes when the old process of a job that is queued again has saved."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        env = LAUNCHER | {"MASTER_PORT": port}
        assert port in complaint_here(script, *TINY, images, status=1, **env)


def test_a_peer_that_does_not_come(images, complaint_here):
    """It is asked for again until --timeout; then one line of status 1, and no stack of C++."""
    words = "127.0.0.1 port 1: [Errno 111] Connection refused"
    env = LAUNCHER | {"RANK": "1"}
    assert words in complaint_here(APEX, *TINY, "--timeout", "1", images, status=1, **env)


def test_ranks_that_differ(images, tmp_path):
    """In an option, or in one image: they would train something else, in silence."""
    other = write_images(tmp_path / "other")
    (other / "train" / "dog" / "3.jpg").rename(other / "train" / "dog" / "4.jpg")
    val = write_images(tmp_path / "val")
    next((val / "val" / "dog").iterdir()).unlink()
    words = [images], [images, "--seed", "7"], [other], [val]
    ranks = start_ranks(DDP, tmp_path, *([*TINY, *own] for own in words))
    printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 2, 2, 2], printed
    assert "another rank is gone" in the_line(printed[0])
    assert "rank 1 differs from rank 0 in seed (0, here 7)" in the_line(printed[1])
    assert "rank 2 differs from rank 0 in data (8 images" in the_line(printed[2])
    assert "rank 3 differs from rank 0 in val-data (4 images" in the_line(printed[3])
    assert not (tmp_path / "runs").exists()


def test_all_ranks_end_as_rank_0_does(images, tmp_path):
    """By its line and status, where no launcher ends them, as on other nodes; c10d's warning of a
    store that is gone, with its stack of C++, would be below the line."""
    (tmp_path / "no.pt").write_text("no checkpoint")
    words = [*TINY, "--resume", "no.pt", images]
    ranks = start_ranks(DDP, tmp_path, words, words)
    lines = {the_line(rank.communicate(timeout=300)[0]) for rank in ranks}
    assert len(lines) == 1 and "no.pt cannot be loaded: no checkpoint" in lines.pop()
    assert [rank.returncode for rank in ranks] == [2, 2]


@pytest.mark.slow
def test_nodes_of_different_world_sizes(images, tmp_path):
    """Two nodes, one of which expects three: both end, and one says so."""
    url = ["--dist-url", f"tcp://127.0.0.1:{free_port()}", "--timeout", "20"]
    words = [*command(DDP), *TINY, *url, images]
    nodes = [
        start([*words, "--world-size", size, "--rank", rank], tmp_path)
        for rank, size in ((0, 2), (1, 3))
    ]
    printed = [node.communicate(timeout=500)[0] for node in nodes]
    assert all(node.returncode for node in nodes), printed
    line = the_line(printed[1])
    assert "rank 1 expects 3 ranks" in line and "rank 0 2 ranks" in line


def test_without_horovod(images, complaint_here, monkeypatch):
    """One line says how to install it."""
    monkeypatch.setattr(importlib.import_module("imagenet_horovod"), "hvd", None)
    line = complaint_here("imagenet_horovod.py", *TINY, images)
    assert "tools/install_horovod.sh" in line
