"""The scripts as users run them: validation, checkpoints, logs, learning, launching."""

import importlib
import io
import json
import re
import shutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest
import torch
from conftest import (
    BIN,
    ROOT,
    SCRIPTS,
    checkpoint,
    command,
    environment,
    free_port,
    needs_horovod,
    run,
    scalars,
    the_run,
    write_images,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

VIT = ["-a", "vit_b_16", "--image-size", "32", "--no-accel", "-j", "0"]
EACH = [
    pytest.param(script, marks=needs_horovod if "horovod" in script else ()) for script in SCRIPTS
]
ONE_DEVICE = "imagenet_nd.py", "imagenet_dp.py"
ACCURACY = re.compile(r" \* Acc@1 (\S+) Acc@5 (\S+)")


# ------------------------------------------------------------------------------------- validation


def count_validated(args):
    """A worker for imagenet_ddp.launch(): validates sets of 1 to 50 images; writes what it saw."""
    script = sys.modules["imagenet_ddp"]
    place = script.join(args)
    seen = []
    for size in range(1, 51):
        args.dir = f"{args.log_dir}/{size}"
        data = script.load_data(args, place)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16, 3))
        with torch.no_grad():  # ranks must not depend on who initialises what
            model[1].weight.copy_(torch.linspace(-1, 1, 3 * 48).view(3, 48))
            model[1].bias.zero_()
        model = torch.nn.parallel.DistributedDataParallel(model)
        model.broadcast_buffers = False
        criterion = script.build_criterion(args)
        run_ = script.Run(args, place, data, model, criterion, None, None, None, None, None)
        mine = [index for keys in data.val.batch_sampler for _, index in keys]
        entries = script.validate(run_)  # raises unless the count is the set's size
        everyone = torch.zeros(size, dtype=torch.float64)
        everyone[mine] += 1
        once = bool((script.sum_over_ranks(everyone) == 1).all())
        seen.append((once, entries["Top1/val"], entries["Top5/val"], entries["Loss/val"]))
    if place.rank == 0:
        with open(f"{args.log_dir}/seen{place.ranks}.json", "w") as file:
            json.dump(seen, file)
    script.leave()


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    """For 1 to 4 ranks and 1 to 50 images: (each once, top-1, top-5, loss)."""
    folder = tmp_path_factory.mktemp("validated")
    whole = write_images(folder / "whole", 1, 17, ("a", "b", "c"), (4, 4))
    images = sorted((whole / "val").glob("*/*.jpg"))
    for size in range(1, 51):
        shutil.copytree(whole / "train", folder / str(size) / "train")
        for name in "abc":
            (folder / str(size) / "val" / name).mkdir(parents=True)
        chosen = [images[(number * 17 + number // 3) % 51] for number in range(size)]
        for number, image in enumerate(chosen):
            shutil.copy(image, folder / str(size) / "val" / image.parent.name / f"{number}.jpg")
        for name in "abc":  # a class without images is an error: its own image, seldom needed
            if not any((folder / str(size) / "val" / name).iterdir()):
                shutil.rmtree(folder / str(size) / "val" / name)
                shutil.rmtree(folder / str(size) / "train" / name)
    seen = {}
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]; import imagenet_ddp as s, test_training as t; "
    )
    code += "args = s.parse_args(sys.argv[3:]); s.launch(t.count_validated, args)"
    options = ["-b", "4", "-j", "0", "--image-size", "4", "--val-resize", "4", "--evaluate"]
    for ranks in 1, 2, 3, 4:
        starter = folder / "starter.py"
        starter.write_text(f"if __name__ == '__main__':\n    {code}\n")
        words = [sys.executable, starter, ROOT, ROOT / "tests", *options, "--num-classes", "3"]
        run([*words, "--nproc-per-node", str(ranks), "--log-dir", folder], folder)
        seen[ranks] = json.loads((folder / f"seen{ranks}.json").read_text())
    return seen


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_image_is_validated_once(validated, ranks):
    assert len(validated[ranks]) == 50
    for size, (mine, alone) in enumerate(zip(validated[ranks], validated[1], strict=True), 1):
        assert mine[0], f"{size} images on {ranks} ranks"
        assert mine[1:3] == alone[1:3], f"{size} images on {ranks} ranks"
        assert mine[3] == pytest.approx(alone[3], rel=1e-6)
    assert len({top1 for _, top1, _, _ in validated[1]}) > 5, "accuracies must tell sizes apart"


@pytest.fixture(scope="module")
def trained(demo, tmp_path_factory):
    """A checkpoint of ResNet-18 after a few steps on the demo set."""
    folder = tmp_path_factory.mktemp("trained")
    options = ["-b", "32", "--epochs", "1", "--steps-per-epoch", "12", "--image-size", "32"]
    run([*command("imagenet_nd.py"), *options, "--warmup-epochs", "0", demo], folder)
    return checkpoint(folder / "runs")


def test_the_same_accuracy_from_all_scripts(demo, trained, tmp_path):
    options = ["-b", "48", "--image-size", "32", "--evaluate", "--resume", trained, demo]
    said = {}
    for script in SCRIPTS:
        for ranks in 1, 3:
            if ranks > 1 and script in ONE_DEVICE:
                continue
            if script == "imagenet_horovod.py" and needs_horovod.args[0]:
                continue
            level = ["--opt-level", "O0"] if "apex" in script else []
            output = run([*command(script, ranks), *options, *level], tmp_path)
            said[script, ranks] = ACCURACY.search(output).groups()
    assert len(set(said.values())) == 1, said
    assert 15 < float(said["imagenet_nd.py", 1][0]) < 100, "an accuracy that says something"
    assert {path.name for path in tmp_path.glob("runs/*")} <= {".index"}, (
        "--evaluate leaves no run behind"
    )


# ------------------------------------------------------------------------------------ checkpoints


@pytest.mark.parametrize("script", EACH)
def test_checkpoints_go_from_script_to_script(script, demo, tmp_path):
    """Trained by `script` for an epoch, gone on with in DDP: as if DDP had trained throughout."""
    options = [*VIT, "--epochs", "2", "--steps-per-epoch", "5", "-p", "1"]
    level = ["--opt-level", "O0"] if "apex" in script else []
    one = ["-b", "8", "--desired-acc", "0.0001", "--log-dir", "first"]
    run([*command(script), *options, *level, *one, demo], tmp_path)
    two = ["-b", "4", "--resume", checkpoint(tmp_path / "first"), "--log-dir", "second"]
    run([*command("imagenet_ddp.py", 2), *options, *two, demo], tmp_path)
    run([*command("imagenet_nd.py"), *options, "-b", "8", "--log-dir", "whole", demo], tmp_path)
    whole, second = (
        scalars(tmp_path / "whole", "Loss/step"),
        scalars(tmp_path / "second", "Loss/step"),
    )
    assert list(second) == [5, 6, 7, 8, 9]
    for step, loss in second.items():
        assert loss == pytest.approx(whole[step], rel=1e-5)
    saved, other = (
        torch.load(checkpoint(tmp_path / name), weights_only=True) for name in ("second", "whole")
    )
    assert saved["best_acc1"] == other["best_acc1"]
    assert saved["epoch"] == 2
    assert saved["seconds"] > 0


def test_best_accuracy_and_command_line_survive_resuming(demo, trained, tmp_path):
    """Not forgotten: the best accuracy. Not taken from the file: the learning rate and its kin."""
    saved = torch.load(trained, weights_only=True)
    saved["best_acc1"], saved["best_acc5"] = 99.5, 99.75
    torch.save(saved, tmp_path / "best.pt")
    options = ["-b", "32", "--epochs", "2", "--steps-per-epoch", "1", "--image-size", "32"]
    rates = ["--lr", "0.8", "--warmup-epochs", "0", "--lr-schedule", "cosine", "--momentum", "0.5"]
    words = [*command("imagenet_nd.py"), *options, *rates, "--resume", tmp_path / "best.pt", demo]
    output = run(words, tmp_path)
    assert "best top-1 99.500 %" in output
    after = torch.load(checkpoint(tmp_path / "runs"), weights_only=True)
    assert (after["best_acc1"], after["best_acc5"], after["epoch"]) == (99.5, 99.75, 2)
    assert after["optimizer"]["param_groups"][0]["momentum"] == 0.5
    assert not checkpoint(tmp_path / "runs", "model_best.pt").exists()
    # 0.8 x 32 / 256, in the middle of the second and last epoch
    assert scalars(tmp_path / "runs", "Lr")[2] == pytest.approx(0.1 * 0.146447, rel=1e-4)


def test_a_run_goes_on_in_its_folder(demo, tmp_path):
    options = [*VIT, "-b", "8", "--steps-per-epoch", "2", "--epochs", "3"]
    run([*command("imagenet_nd.py"), *options, "--desired-acc", "0.0001", demo], tmp_path)
    first = checkpoint(tmp_path / "runs")
    run([*command("imagenet_nd.py"), *options, "--resume", first, demo], tmp_path)
    assert checkpoint(tmp_path / "runs") == first
    assert list(scalars(tmp_path / "runs", "Top1/val")) == [1, 2, 3]
    assert not list(first.parent.glob("*.tmp"))
    best = first.parent / "model_best.pt"
    newest = first.read_bytes()
    for elsewhere in best, shutil.copy(first, tmp_path / "runs" / "moved.pt"):
        run(
            [*command("imagenet_nd.py"), *options, "--epochs", "4", "--resume", elsewhere, demo],
            tmp_path,
        )
        assert first.read_bytes() == newest, "another file's run has a folder of its own"
    assert not list((tmp_path / "runs").glob("*tfevents*"))


@pytest.mark.parametrize("before", [True, False])
def test_layout_may_change_on_resuming(before, demo, tmp_path):
    """The fused optimizer takes a momentum of another layout than its weight's for flat memory."""
    options = [
        "--image-size",
        "32",
        "-b",
        "8",
        "--epochs",
        "2",
        "--steps-per-epoch",
        "4",
        "-p",
        "1",
    ]
    layouts = [[], ["--channels-last"]]
    words = [*command("imagenet_nd.py"), *options, demo]
    first = ["--desired-acc", "0.0001", "--log-dir", "first"]
    run([*words, *first, *layouts[before]], tmp_path)
    for name, layout in ("kept", layouts[before]), ("changed", layouts[not before]):
        resume = ["--resume", checkpoint(tmp_path / "first"), "--log-dir", name]
        run([*words, *resume, *layout], tmp_path)
    kept, changed = (scalars(tmp_path / name, "Loss/step") for name in ("kept", "changed"))
    assert list(changed.values()) == pytest.approx(list(kept.values()), rel=1e-3)


def test_mnasnet_goes_on(demo, tmp_path):
    """Its state dict loads only with the metadata that PyTorch hides in it."""
    options = ["-a", "mnasnet0_5", "--image-size", "32", "-b", "8", "--steps-per-epoch", "1"]
    words = [*command("imagenet_nd.py"), *options, "-j", "0", demo]
    run([*words, "--epochs", "1"], tmp_path)
    run([*words, "--epochs", "2", "--resume", checkpoint(tmp_path / "runs")], tmp_path)


def test_loss_scale_goes_from_script_to_script():
    """A dynamic scale of torch.amp.GradScaler continues under Apex's levels, and back."""
    script = importlib.import_module("imagenet_ddp_apex")
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    grad_scaler.scale(torch.ones(()))
    ours = script.LossScaler("dynamic")
    ours.load_state_dict(grad_scaler.state_dict())
    assert (ours.loss_scale, ours.unskipped) == (1024.0, 0)
    ours.update(False)
    ours.update(True)
    ours.update(False)
    grad_scaler.load_state_dict(ours.state_dict())
    assert grad_scaler.get_scale() == 512.0
    assert grad_scaler.state_dict()["_growth_tracker"] == 1
    static = script.LossScaler("128")
    static.update(False)
    assert "scale" not in static.state_dict(), "a static scale is the command line's"
    other = script.LossScaler("64")
    other.load_state_dict(static.state_dict())
    assert (other.loss_scale, other.unskipped) == (64.0, 1)


# ------------------------------------------------------------------------------ logs and stopping


@pytest.mark.alone
def test_logs(demo, tmp_path):
    options = [
        "--epochs",
        "2",
        "--steps-per-epoch",
        "3",
        "--image-size",
        "32",
        "-p",
        "2",
        "-j",
        "1",
    ]
    words = [*command("imagenet_ddp_apex.py", 2), *options, "-b", "16", "--opt-level", "O2", demo]
    output = run(words, tmp_path)
    folder = the_run(tmp_path / "runs")
    name = r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_.+_resnet18_gpux2_b16_cpu1_optO2"
    assert re.fullmatch(name, folder.name)
    assert {path.name for path in folder.iterdir() if "tfevents" not in path.name} == {
        "checkpoint.pt",
        "checkpoint-1.pt",
        "model_best.pt",
    }
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    per_epoch = {
        f"{tag}/{part}"
        for tag in ("Throughput", "Time", "Loss", "Top1", "Top5")
        for part in ("train", "val")
    } | {"Lr", "Data/wait", "Steps/skipped"}
    traffic = {f"IO/{name}" for name in ("read_MBps", "disk_MBps", "read_iops")}
    network = [f"Network/{name}_MB_per_step" for name in ("sent", "received", "expected")]
    assert set(events.Tags()["scalars"]) == per_epoch | {"Loss/step"} | traffic | set(network)
    sent, received, expected = ([each.value for each in events.Scalars(tag)] for tag in network)
    # Two ranks each send a half gradient (2 bytes a number, 2 x 1/2 of it) over loopback.
    assert expected[0] == pytest.approx(2 * 11_181_642 * 2 / 1e6, rel=0.01)
    for step in -1, -2:
        assert sent[step] == pytest.approx(received[step])
        assert 1 < sent[step] / expected[step] < 1.5
    for tag in per_epoch:
        assert [event.step for event in events.Scalars(tag)] == [1, 2]
    seconds = events.Scalars("Time/train")[1].value
    assert events.Scalars("Throughput/train")[1].value == pytest.approx(32 / seconds, rel=1e-4)
    assert 0 <= events.Scalars("Data/wait")[1].value <= 1
    layout = events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    charts = [chart for part in Layout.FromString(layout).category for chart in part.chart]
    for pattern in (pattern for chart in charts for pattern in chart.multiline.tag):
        assert any(re.fullmatch(pattern, tag) for tag in events.Tags()["scalars"]), pattern
    assert ["Top1/train", "Top1/val"] in [chart.multiline.tag for chart in charts]
    texts = {
        tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in events.Tags()["tensors"]
        if tag.endswith("text_summary")
    }
    about = json.loads(texts["about/text_summary"].strip("`json\n"))
    assert about["options"]["batch_size"] == 16
    assert about["global_batch"] == 32
    assert about["torch"] == torch.__version__
    assert about["command"][-1] == str(demo)
    assert (ROOT / "imagenet_ddp_apex.py").read_text() in texts["script/text_summary"]
    assert json.loads(texts["end/text_summary"].strip("`json\n"))["epochs"] == 2
    peers = r"Epoch: \[1\]\[2/3\]\tTime +\S+ \( *\S+\)\tData +\S+ \( *\S+\)\tLoss \S+ \(\S+\)\t"
    assert re.search(peers + r"Acc@1 +\S+ \( *\S+\)\tAcc@5 +\S+ \( *\S+\)\n", output)
    assert len(ACCURACY.findall(output)) == 2, "rank 0 alone speaks"


def test_first_batch_is_logged_as_a_picture(tmp_path):
    """Images of one colour each: whatever the crop, the picture has those colours."""
    data = write_images(tmp_path / "data", train=4, classes=("blue", "red"))
    for path in (data / "train").rglob("*.jpg"):
        colour = (200, 30, 30) if path.parent.name == "red" else (30, 30, 200)
        PIL.Image.new("RGB", (40, 40), colour).save(path, quality=95)
    options = [*VIT, "-b", "8", "--epochs", "2", "--log-dir", "runs", data]
    run([*command("imagenet_nd.py"), *options], tmp_path)
    events = EventAccumulator(str(checkpoint(tmp_path / "runs").parent)).Reload()
    (logged,) = events.Images("first_batch")
    picture = PIL.Image.open(io.BytesIO(logged.encoded_image_string)).convert("RGB")
    colours = [picture.getpixel((2 + 34 * column + 16, 18)) for column in range(8)]
    red = [colour for colour in colours if colour[0] > 100]
    assert len(red) == 4
    for colour in colours:
        wanted = (200, 30, 30) if colour in red else (30, 30, 200)
        assert max(abs(a - b) for a, b in zip(colour, wanted, strict=True)) < 6


@pytest.mark.parametrize("workers", [0, 2])
def test_reads_are_those_of_rank_and_workers(workers, tmp_path, monkeypatch):
    """Traffic's bytes and calls, of files that are in the page cache."""
    script = importlib.import_module("imagenet_nd")
    for serial in range(400):
        noise = np.random.default_rng(serial).integers(256, size=(64, 64, 3), dtype=np.uint8)
        path = tmp_path / "data" / "class" / f"{serial}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(noise).save(path)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.png"))
    source = script.Folder(tmp_path / "data", script.list_images(tmp_path / "data"))
    images = script.Images(source, lambda encoded, *_: len(encoded), seed=0)
    keys = [[(0, index) for index in range(first, first + 20)] for first in range(0, 400, 20)]
    kept = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = torch.utils.data.DataLoader(images, batch_sampler=keys, **kept)
    logged = {}
    log = SimpleNamespace(add_scalar=lambda tag, value, step: logged.update({tag: value}))
    traffic = script.Traffic(script.Place(torch.device("cpu")), gradient_bytes=1000)
    list(loader)  # what starting workers import is read too

    def sample(step, now):
        with monkeypatch.context() as clock:
            clock.setattr(script.time, "perf_counter", lambda: now)
            traffic.sample(log, step, after_seconds=2)

    sample(0, 100.0)
    assert not logged
    for attempt in range(1, 6):
        list(loader)
        sample(20 * attempt, 100.0 + 2 * attempt)
        assert logged["IO/read_MBps"] == pytest.approx(size / 2 / 1e6, rel=0.05)
        assert 400 <= logged["IO/read_iops"] * 2 < 400 * 6
        if logged["IO/disk_MBps"] < 0.1:  # else pages of programs, which were short of memory
            break
    assert logged["IO/disk_MBps"] < 0.1
    assert logged["Network/expected_MB_per_step"] == 0
    logged.clear()
    sample(200, 101.0 + 2 * attempt)
    assert not logged, "one second after the last"


def test_traffic_is_sampled_by_steps_done(demo, tmp_path):
    script, steps = importlib.import_module("imagenet_nd"), []
    options = ["--steps-per-epoch", "5", "-p", "2", "-b", "4", "--log-dir", str(tmp_path)]
    args = script.parse_args([*VIT, *options, str(demo)])
    run = script.set_up(args, script.join(args))
    run.traffic = SimpleNamespace(sample=lambda log, step, after_seconds: steps.append(step))
    script.train_one_epoch(run, epoch=1)
    assert steps == [6, 8, 10], "five before this epoch, and 1, 3 and 5 in it"


def test_desired_accuracy_ends_all_ranks_after_the_epoch_that_reached_it(demo, tmp_path):
    words = [*command("imagenet_ddp.py", 2), "-b", "16", "--epochs", "40", "--image-size", "32"]
    output = run([*words, "--desired-acc", "0.4", "--lr", "0.4", demo], tmp_path)
    top1 = list(scalars(tmp_path / "runs", "Top1/val").values())
    assert top1[-1] >= 40
    assert all(value < 40 for value in top1[:-1])
    assert len(top1) < 40
    assert re.search(rf"desired accuracy reached: .*; {len(top1)} epochs in \d+:\d\d:\d\d", output)
    assert torch.load(checkpoint(tmp_path / "runs"), weights_only=True)["epoch"] == len(top1)


# --------------------------------------------------------------------------------------- launching


def test_two_nodes_by_dist_url(demo, tmp_path):
    """imagenet_ddp.py on two nodes of one process each, by pytorch/examples' options."""
    url = ["--dist-url", f"tcp://127.0.0.1:{free_port()}", "--dist-backend", "gloo"]
    options = [
        *VIT,
        *url,
        "--world-size",
        "2",
        "--epochs",
        "1",
        "--steps-per-epoch",
        "2",
        "-b",
        "4",
    ]
    words = [sys.executable, str(ROOT / "imagenet_ddp.py"), *options, str(demo)]
    nodes = [
        subprocess.Popen(
            [*words, "--rank", str(rank), "--log-dir", f"log{rank}"],
            cwd=tmp_path,
            env=environment(),
        )
        for rank in (0, 1)
    ]
    assert [node.wait(120) for node in nodes] == [0, 0]
    assert checkpoint(tmp_path / "log0").exists()
    assert {path.name for path in tmp_path.glob("log1/*")} <= {".index"}, (
        "global rank 0 alone writes"
    )
    for tag in "IO/read_MBps", "IO/read_MBps/node1", "Network/sent_MB_per_step/node1":
        assert scalars(tmp_path / "log0", tag)[2] > 0


def test_two_nodes_by_launch(demo, tmp_path):
    """imagenet_ddp_apex.py by one torch.distributed.launch per node, two processes each."""
    options = [*VIT, "--b", "2", "--opt-level", "O2", "--epochs", "1", "--steps-per-epoch", "2"]
    master = ["--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    launcher = [sys.executable, "-m", "torch.distributed.launch", "--nproc_per_node=2", *master]
    script = [str(ROOT / "imagenet_ddp_apex.py"), *options, str(demo)]
    nodes = [
        subprocess.Popen(
            [*launcher, "--nnodes=2", f"--node_rank={node}", *script, "--log-dir", f"log{node}"],
            cwd=tmp_path,
            env=environment(),
        )
        for node in (0, 1)
    ]
    assert [node.wait(120) for node in nodes] == [0, 0]
    assert "_gpux4_b2_" in checkpoint(tmp_path / "log0").parent.name
    assert {path.name for path in tmp_path.glob("log1/*")} <= {".index"}, (
        "global rank 0 alone writes"
    )


@pytest.mark.parametrize("script", ["imagenet_ddp.py", "imagenet_ddp_apex.py"])
def test_torchrun(script, demo, tmp_path):
    options = [*VIT, "--epochs", "1", "--steps-per-epoch", "2", "-b", "4", demo]
    port = f"--master_port={free_port()}"
    run([BIN / "torchrun", port, "--nproc_per_node=2", ROOT / script, *options], tmp_path)
    assert "_gpux2_" in checkpoint(tmp_path / "runs").parent.name


def test_slurm(demo, tmp_path):
    """Two tasks of one srun, by the variables that Slurm sets."""
    words = [sys.executable, str(ROOT / "imagenet_ddp.py"), *VIT, "--epochs", "1", "-b", "4"]
    words += ["--steps-per-epoch", "2", str(demo)]
    port = free_port()
    tasks = []
    for task in 0, 1:
        slurm = {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task), "SLURM_NTASKS": "2"}
        slurm |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2"}
        slurm |= {"MASTER_PORT": str(port)}
        tasks.append(subprocess.Popen(words, cwd=tmp_path, env=environment(**slurm)))
    assert [task.wait(120) for task in tasks] == [0, 0]
    assert "_gpux2_" in checkpoint(tmp_path / "runs").parent.name


def test_slurm_variables(monkeypatch):
    script = importlib.import_module("imagenet_ddp")
    slurm = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
    slurm |= {"SLURM_STEP_NODELIST": "gpu[07-09,12],cpu1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
    slurm |= {"SLURM_JOB_ID": "1234567"}
    bound = {**slurm, "SLURM_GPUS_PER_TASK": "1"}
    script._follow_slurm(slurm, slurm["SLURM_NTASKS"])
    assert (slurm["MASTER_ADDR"], slurm["MASTER_PORT"]) == ("gpu07", "24567")
    assert (slurm["RANK"], slurm["WORLD_SIZE"]) == ("5", "8")
    assert (slurm["LOCAL_RANK"], slurm["LOCAL_WORLD_SIZE"]) == ("1", "4")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    script._follow_slurm(bound, bound["SLURM_NTASKS"])  # each task sees its own GPU alone
    assert (bound["LOCAL_RANK"], bound["LOCAL_WORLD_SIZE"]) == ("0", "1")


def test_a_batch_script_without_srun_is_one_node(monkeypatch):
    """sbatch sets SLURM_PROCID and SLURM_NTASKS in the batch step too: nobody else will come."""
    script = importlib.import_module("imagenet_ddp")
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "ENVIRONMENT": "BATCH"}
    seen = []
    monkeypatch.setattr(script, "_start_this_node", lambda worker, args: seen.append("own"))
    monkeypatch.setattr(script, "_follow_slurm", lambda env, tasks: seen.append(tasks))
    args = script.parse_args([])
    for name, value in batch.items():
        monkeypatch.setenv(name, value)
    script.launch(lambda args: None, args)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    script.launch(lambda args: None, args)
    assert seen == ["own", "2"]


@pytest.mark.parametrize("written", ["--local_rank=0", "--local-rank=0"])
@pytest.mark.parametrize("script", ["imagenet_ddp.py", "imagenet_ddp_apex.py"])
def test_old_launchers_local_rank(script, written, demo, tmp_path):
    args = importlib.import_module(script.removesuffix(".py")).parse_args([written, str(demo)])
    assert args.local_rank == 0


# ---------------------------------------------------------------------------------- precision etc.


@pytest.mark.parametrize("script", [each for each in EACH if "apex" not in str(each.values)])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_amp(script, precision, demo, tmp_path):
    options = ["--image-size", "32", "-b", "8", "--epochs", "1", "--steps-per-epoch", "3"]
    words = [*command(script), *options, "--amp", precision, "--channels-last", "-p", "1", demo]
    run(words, tmp_path)
    losses = scalars(tmp_path / "runs", "Loss/step")
    assert all(0 < loss < 10 for loss in losses.values())
    saved = torch.load(checkpoint(tmp_path / "runs"), weights_only=True)
    assert (saved["scaler"] != {}) == (precision == "float16")
    assert checkpoint(tmp_path / "runs").parent.name.endswith(f"_opt{precision}")


@pytest.mark.parametrize("module", ["imagenet_nd", "imagenet_dp"])
def test_float16_may_overflow_in_the_first_step(module):
    """PyTorch's fused SGD then leaves momentum that it has just made uninitialised."""
    script = importlib.import_module(module)
    args = script.parse_args(["--amp", "float16", "--no-accel", "--wd", "0"])
    weights = {}
    for fused in True, False:
        torch.manual_seed(0)
        net = torch.nn.Linear(64, 10)
        build = lambda w, fused=fused: torch.optim.SGD(w, 0.1, 0.9, fused=fused)  # noqa: E731
        model, optimizer, scaler = script.prepare(
            net, build, args, script.Place(torch.device("cpu"))
        )
        if fused:
            script.fill_momentum(optimizer)
        for step in range(5):
            dirt = [torch.full((640,), 1e6) for _ in range(50)]  # for uninitialised memory to show
            del dirt
            x = torch.full((8, 64), 1e4 if step == 0 else 0.1)
            target = torch.arange(8)
            criterion = script.build_criterion(args)
            script.train_step(model, criterion, optimizer, scaler, x, target, args)
        assert scaler.get_scale() < 2**16, "the first step must overflow"
        weights[fused] = net.weight.detach().clone()
    torch.testing.assert_close(weights[True], weights[False])


def test_data_parallel_threads_take_over_the_type_of_autocast():
    """What torch.nn.parallel.parallel_apply does in each thread: autocast without its dtype."""
    script = importlib.import_module("imagenet_dp")
    args = script.parse_args(["--amp", "float16", "--no-accel"])
    build = lambda weights: torch.optim.SGD(weights, 0.1)  # noqa: E731
    place = script.Place(torch.device("cpu"), devices=2)
    model, _, _ = script.prepare(torch.nn.Linear(4, 2), build, args, place)
    seen = []

    def replica():
        with torch.amp.autocast("cpu", enabled=True):
            seen.append(model.module(torch.ones(1, 4)).dtype)

    thread = threading.Thread(target=replica)
    thread.start()
    thread.join()
    assert seen == [torch.float16]


@needs_horovod
def test_horovod_options(demo, tmp_path):
    """Float16 exchange and pre-division change rounding alone."""
    options = [*VIT, "-b", "8", "--epochs", "1", "--steps-per-epoch", "5", "-p", "1"]
    ways = {"plain": [], "fp16": ["--fp16-allreduce"], "half": ["--gradient-predivide-factor", "2"]}
    ways["scaled"] = ["--amp", "float16"]
    losses = {}
    for way, extra in ways.items():
        words = [*command("imagenet_horovod.py", 2), *options, *extra, "--log-dir", way, demo]
        run(words, tmp_path)
        losses[way] = list(scalars(tmp_path / way, "Loss/step").values())
    assert losses["half"] == pytest.approx(losses["plain"], rel=1e-5)
    assert losses["fp16"] == pytest.approx(losses["plain"], rel=1e-3)
    assert losses["fp16"] != losses["plain"], "float16 must be felt"
    assert losses["scaled"] == pytest.approx(losses["plain"], rel=2e-2)


def test_dummy_needs_no_images(tmp_path):
    options = ["--dummy", "-b", "4", "--epochs", "1", "--steps-per-epoch", "2", "--no-accel"]
    output = run([*command("imagenet_ddp.py", 2), *VIT, *options], tmp_path)
    assert ACCURACY.search(output)
    assert not (tmp_path / "demo_data").exists()


def test_profile(demo, tmp_path):
    options = [*VIT, "-b", "4", "--steps-per-epoch", "20", "--prof", "5", demo]
    output = run([*command("imagenet_nd.py"), *options], tmp_path)
    (trace,) = tmp_path.glob("runs/*/trace.json")
    assert f"Trace of steps 5 to 14: {trace.relative_to(tmp_path)}" in output
    assert json.loads(trace.read_text())["traceEvents"]


# ---------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("script", EACH)
def test_each_script_alone_trains_on_the_demo_set(script, tmp_path):
    """Copied into an empty folder, without DIR."""
    output = run([*alone(script, tmp_path), *VIT, "--epochs", 1, "-b", 4], tmp_path)
    assert "training on the demo set in " in output
    assert list(scalars(tmp_path / "runs", "Top1/val")) == [1]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(each, marks=[*([] if "apex" in each else [pytest.mark.slow]), *marks])
        for each, marks, _ in EACH
    ],
)
def test_each_script_alone_learns_the_demo_set(script, tmp_path):
    """Over 90 % on images it draws itself."""
    words, batch = alone(script, tmp_path), 64 if script in ONE_DEVICE else 32
    words += ["-b", batch, "--lr", "0.4", "--epochs", 8, "--lr-schedule", "cosine"]
    words += ["--opt-level", "O2"] if "apex" in script else ["--amp", "bfloat16"]
    output = run([*words, "--desired-acc", "0.9"], tmp_path)
    assert max(scalars(tmp_path / "runs", "Top1/val").values()) >= 90
    assert "desired accuracy reached" in output


def alone(script, folder):
    """Copies the script into the folder; returns the words that start it there."""
    shutil.copy(ROOT / script, folder)
    words = command(script, 1 if script in ONE_DEVICE else 2)
    return [word.replace(str(ROOT / script), script) for word in words]
