"""Recipes: that augmentation, mixing, losses, optimizers and averages keep parity, and that the
option files of recipes/ are taken. What each computes, test_reference.py and test_torchvision.py
compare."""

import functools
import shlex
from types import SimpleNamespace

import pytest
import torch
import torchvision
from conftest import (
    ROOT,
    checkpoint,
    command,
    load,
    needs_bfloat16,
    needs_horovod,
    record,
    run,
    scalars,
    the_run,
)
from test_data import CPU, open_batches, pictures  # noqa: F401
from torch import nn

import imagenet_nd as nd
from trainparts import batch_plan
from trainparts.images import architectures

ALL = "--flip alternate --auto-augment trivial --random-erase 0.5 --repeated-aug 2 --mixup 0.4"
ALL = f"{ALL} --cutmix 1 --min-crop 0.2 --start-size 16 --image-size 24 --val-size 32 --epochs 5"


def read_training(pictures, words, **more):  # noqa: F811
    """Returns [(epoch, images, target)] of a rank's training, as the model gets them."""
    args = nd.parse_args(words)
    group = args.mix_group or 12 // args.repeated_aug
    scale = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    data = SimpleNamespace(global_batch=12, mix_group=group, **scale)
    batches = open_batches(pictures, words=words, **more)[1]
    finish = functools.partial(nd.finish_batch, args=args, data=data)
    return [
        (epoch, images.clone(), target.clone())
        for split, epoch, images, target in batch_plan.to_device(batches, finish, CPU, [])
        if split == "train"
    ]


@pytest.mark.parametrize(("ranks", "workers"), [(1, 1), (2, 0), (3, 2)])
def test_augmented_and_mixed_images_are_the_same_whoever_loads_them(ranks, workers, pictures):  # noqa: F811
    """To the bit, and from mid-epoch too."""
    words = ALL.split()
    expected = read_training(pictures, words)
    sizes = [images.shape[2] for _, images, _ in expected]
    assert sizes == [16] * 16 + [24] * 4, "steps of 16 pixels between: none here"
    for step in 0, 2:
        found = [
            read_training(pictures, words, rank=rank, ranks=ranks, workers=workers, step=step)
            for rank in range(ranks)
        ]
        for (epoch, images, target), *theirs in zip(expected[step:], *found, strict=True):
            assert {each[0] for each in theirs} == {epoch}
            assert torch.equal(images, torch.cat([each[1] for each in theirs]))
            assert torch.equal(target, torch.cat([each[2] for each in theirs]))


# ------------------------------------------------------------------------- losses and optimizers


@pytest.mark.parametrize("kind", ["ce", "bce"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_are_pytorchs_of_dense_targets(kind, smoothing):
    args = nd.parse_args(["--loss", kind, "--label-smoothing", str(smoothing)])
    torch.manual_seed(1)
    output, classes = torch.randn(8, 10, dtype=torch.float64), torch.randint(10, (8,))
    share = torch.rand(8)
    mixed = torch.stack([classes, classes.flip(0), share], dim=1)
    one, other = nn.functional.one_hot(torch.stack([classes, classes.flip(0)]), 10)
    share = share[:, None].double()
    for given, wanted in (classes, one), (mixed, share * one + (1 - share) * other):
        wanted = wanted * (1 - smoothing) + smoothing / 10
        expected = nn.functional.cross_entropy(output, wanted)
        if kind == "bce":
            expected = nn.functional.binary_cross_entropy_with_logits(output, wanted)
        loss, sums = nd.criterion(output, given, args)
        assert sums.dtype == torch.float64, "exact, also over all of ImageNet"
        assert float(loss) == pytest.approx(float(expected), rel=1e-6)
        assert sums[1] == (output.argmax(1) == classes).sum() and sums[3:].tolist() == [8]
    expected = nn.functional.cross_entropy(output, classes)
    assert float(nd.criterion(output, classes)[0]) == pytest.approx(float(expected)), "validation's"


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adamw", "lamb", "lars"])
def test_weight_decay_of_norms_and_biases(name):
    if name in ("lamb", "lars"):
        pytest.importorskip("timm")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    model[3].weight.requires_grad_(False)
    for words, groups in ([], [(5, 1e-4)]), (["--norm-wd", "0"], [(1, 1e-4), (4, 0)]):
        args = nd.parse_args(["--optimizer", name, *words])
        optimizer = nd.build_optimizer(args, model)
        found = [(len(each["params"]), each["weight_decay"]) for each in optimizer.param_groups]
        assert found == groups
        assert all(each["lr"] == 0.1 for each in optimizer.param_groups)
        assert optimizer.param_groups[0].get("momentum", 0.9) == 0.9
    assert optimizer.param_groups[0]["params"][0] is model[0].weight


def test_a_norm_of_millions_is_exact():
    """Summed up in float32, that of these is off by 7e-5."""
    gradient = torch.full((2**22,), 1e-3)
    nd.clip_gradients([gradient], 1.0)
    assert gradient.double().norm().item() == pytest.approx(1.0, rel=1e-6)


def test_crops_grow_after_fifths_of_all_epochs():
    args = nd.parse_args(["--epochs", "18", "--start-size", "64"])
    data = SimpleNamespace(image_size=128)
    sizes = [nd.crop_size(args, data, "train", epoch) for epoch in range(18)]
    assert sizes == [64] * 8 + [80] * 3 + [96] * 4 + [128] * 3


# ----------------------------------------------------------------------------- the scripts, parity

RECIPE = (
    "--flip alternate --auto-augment rand --random-erase 0.3 --repeated-aug 2 --mixup 0.2 "
    "--cutmix 1 --label-smoothing 0.1 --optimizer nesterov --lr 1 --norm-wd 0 --clip-grad 0.5 "
    "--ema 0.5 --lr-schedule linear --val-size 32 --min-crop 0.2 --seed 3 --warmup-epochs 0 "
    "-p 1 --no-accel"
).split()
VIT = ["-a", "vit_b_16", "--image-size", "32"]
# (script, ranks, batches accumulated in a step, further options)
WAYS = {
    "ddp, 2 ranks, 2 accumulated": ("imagenet_ddp.py", 2, 2, []),
    "apex O0, 2 ranks": ("imagenet_ddp_apex.py", 2, 1, ["--opt-level", "O0"]),
    "dp": ("imagenet_dp.py", 1, 1, []),
    "nd, 4 accumulated": ("imagenet_nd.py", 1, 4, []),
    "ddp, 4 ranks": ("imagenet_ddp.py", 4, 1, []),
    "horovod, 2 ranks, 2 accumulated": ("imagenet_horovod.py", 2, 2, []),
}


def train(way, log_dir, *words, steps=20, epochs=1):
    """Runs the recipe one of these ways, on the demo set's 16 images a step; as in a container, in
    a folder that has none above it."""
    script, ranks, accumulated, more = way
    sizes = ["-b", 16 // ranks // accumulated, "--accumulation", accumulated]
    sizes += ["-j", 1, "--epochs", epochs]
    sizes += ["--steps-per-epoch", steps, "--output-dir", log_dir]
    return run([*command(script, ranks), *VIT, *RECIPE, *more, *sizes, *words], "/")


ND = ("imagenet_nd.py", 1, 1, [])


@pytest.fixture(scope="module")
def reference(demo, tmp_path_factory):
    """Returns the log folder of two epochs of the recipe on one device."""
    folder = tmp_path_factory.mktemp("recipe") / "runs"
    train(ND, folder, demo, epochs=2)
    return folder


@pytest.mark.parametrize(
    "way",
    [
        "ddp, 2 ranks, 2 accumulated",
        *(
            pytest.param(way, marks=[pytest.mark.slow, *[needs_horovod] * ("horovod" in way)])
            for way in [*WAYS][1:]
        ),
    ],
)
def test_same_loss_curve_with_all_of_the_recipe(way, reference, demo, tmp_path):
    train(WAYS[way], tmp_path / "runs", demo, epochs=2)
    for tag in "Loss/step", "Loss/val":
        expected = scalars(reference, tag)
        assert scalars(tmp_path / "runs", tag) == pytest.approx(expected, rel=1e-5), tag
    assert scalars(tmp_path / "runs", "Top1/val") == scalars(reference, "Top1/val")
    assert scalars(reference, "Loss/val")[2] < 2.2, "it must learn, or equality says little"


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_average_is_exact_after_a_restart_and_best_in_model_best(reference, demo, tmp_path):
    whole = load(checkpoint(reference))
    first = checkpoint(reference, "checkpoint-1.pt")
    assert load(first)["epoch"] == 1
    train(ND, tmp_path / "again", "--resume", first, demo, epochs=2)
    again = load(checkpoint(tmp_path / "again"))
    assert same(again["ema"], whole["ema"]) and same(again["state_dict"], whole["state_dict"])
    assert not same(whole["ema"], whole["state_dict"])
    best = load(checkpoint(reference, "model_best.pt"))
    validated = {1: load(first), 2: whole}[best["epoch"]]
    assert same(best["state_dict"], validated["ema"])
    logged = scalars(reference, "Top1/val")
    words = ["-e", "--resume", checkpoint(reference, "model_best.pt"), demo]
    output = run([*command("imagenet_nd.py"), *VIT[:2], "--no-accel", *words], tmp_path)
    assert f"top-1 {logged[best['epoch']]:.3f} %" in output, "without --ema: what was validated"


def test_under_o2_masters_are_averaged(demo, tmp_path):
    """The first updates are copies, all of them when training is this short."""
    way = ("imagenet_ddp_apex.py", 1, 1, ["--opt-level", "O2", "--half-dtype", "bfloat16"])
    train(way, tmp_path / "runs", demo)
    saved = load(checkpoint(tmp_path / "runs"))
    assert same(saved["ema"], saved["state_dict"])
    weights = saved["ema"]["heads.head.weight"]
    assert not torch.equal(weights, weights.bfloat16().float()), "not rounded"


# ------------------------------------------------------------------------------------ option files


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "recipes").glob("*.txt")))
def test_option_files_are_taken(name):
    """Learning rates are for the global batch that is given, which devices and groups divide."""
    args = nd.parse_args([f"@{ROOT / 'recipes' / name}"])
    for share in args.batch_size, args.mix_group:
        assert args.global_batch % (share or 2) == 0
    with torch.device("meta"):
        architectures.make_model(
            args.arch, **architectures.model_options(args.arch, args.image_size or 224, {})
        )


def test_an_option_file_is_logged_and_what_follows_it_counts(demo, tmp_path):
    file = tmp_path / "my recipe.txt"
    file.write_text("--epochs 2  # two\n\n# nothing\n--label-smoothing 0.1 -b 16 --output-dir a\n")
    words = [f"@{file}", "--epochs", "1", "--steps-per-epoch", "2", "--no-accel", "-j", "0"]
    run([*command("imagenet_nd.py"), *VIT, *words, "--output-dir", "runs", demo], tmp_path)
    about = record(the_run(tmp_path / "runs"), "about")
    assert about["options"]["epochs"] == 1 and about["options"]["label_smoothing"] == 0.1
    assert f"@{file}" in shlex.split(about["command"])


# ----------------------------------------------------------------------------------- models, budget


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(command("imagenet_nd.py")),
        pytest.param([*command("imagenet_ddp_apex.py"), "--opt-level", "O2"], marks=needs_bfloat16),
        # Of its ranks one loads the weights.
        pytest.param(command("imagenet_fsdp.py", 2), marks=pytest.mark.slow),
    ],
    ids=["one_device", "apex", "fsdp"],
)
def test_freeze_trains_the_last_layer_alone(way, demo, tmp_path):
    words = ["--freeze", "--weights", tmp_path / "weights.pt", "-b", "8", "--steps-per-epoch", "2"]
    donor = torchvision.models.resnet18(num_classes=4)
    torch.save(donor.state_dict(), tmp_path / "weights.pt")
    words += ["--epochs", "1", "--image-size", "32", "-j", "0", "--no-accel", "--ema", "0.9", demo]
    run([*way, *words], tmp_path)
    saved = load(checkpoint(tmp_path / "runs"))
    for name, weight in donor.state_dict().items():
        last = name.startswith("fc.")
        assert last != torch.equal(saved["state_dict"][name], weight), name
    assert len(saved["optimizer"]["param_groups"][0]["params"]) == 2


def test_zero_init_begins_with_blocks_that_are_the_identity():
    args = nd.parse_args(["--zero-init", "-a", "resnet50"])
    model = architectures.make_model(
        "resnet50", **architectures.model_options(args.arch, 224, {}, args.zero_init)
    )
    last = [each.bn3.weight for each in model.modules() if hasattr(each, "bn3")]
    assert len(last) == 16 and not any(each.any() for each in last)


def test_timms_models_train_with_their_own_preprocessing(demo, tmp_path):
    timm = pytest.importorskip("timm")
    preset = architectures.preset_of("timm/vit_tiny_patch16_224")
    assert preset.mean == (0.5,) * 3 and (preset.image_size, preset.val_resize) == (224, 248)
    words = ["-a", "timm/resnet10t", "--image-size", "32", "-b", "8", "--optimizer", "lamb"]
    words += ["--steps-per-epoch", "4", "--epochs", "1", "-j", "0", "--no-accel", "--ema", "0.5"]
    run([*command("imagenet_nd.py"), *words, demo], tmp_path)
    path = checkpoint(tmp_path / "runs")
    assert "_timm-resnet10t_gpux1_b8_" in path.parent.name
    saved = load(path)
    model = timm.create_model("resnet10t", num_classes=10)
    model.load_state_dict(saved["state_dict"])
    assert saved["optimizer"]["param_groups"][0]["step"] == 4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arch"), [("lamb", "resnet18"), ("muon", "vit_b_16")])
def test_timms_optimizer_resumed_is_as_uninterrupted(name, arch, demo, tmp_path):
    """And Muon's losses are those of shards and of stages."""
    pytest.importorskip("timm")
    words = ["-a", arch, "--image-size", "32", "--optimizer", name, "-j", "0", "-p", "1"]
    words += ["--steps-per-epoch", "2", "--epochs", "2", "--no-accel", "--norm-wd", "0", demo]

    def train(folder, *more, script="imagenet_nd.py", ranks=1, batch=8):
        start = [*command(script, ranks), *words, "-b", batch, "--output-dir", folder]
        run([*start, *more], tmp_path)
        return load(checkpoint(tmp_path / folder))

    saved = train("whole")
    first = checkpoint(tmp_path / "whole", "checkpoint-1.pt")
    assert same(train("again", "--resume", first)["state_dict"], saved["state_dict"])
    if name == "muon":
        expected = scalars(tmp_path / "whole", "Loss/step")
        for script, batch in ("imagenet_fsdp.py", 4), ("imagenet_pipeline.py", 8):
            train(script, script=script, ranks=2, batch=batch)
            assert scalars(tmp_path / script, "Loss/step") == pytest.approx(expected, rel=1e-3)
        return
    train("sgd", "--optimizer", "sgd", "--resume", first)
    back = train("back", "--resume", checkpoint(tmp_path / "sgd"), "--epochs", "3")
    steps = back["optimizer"]["param_groups"][0]["step"]
    assert steps == 2, "another optimizer's state is no use"
