"""Recipes: augmentation, mixing, losses, optimizers, averages; that they keep parity, and what the
option files of recipes/ expand to."""

import json
import shlex
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import (
    ROOT,
    checkpoint,
    command,
    events,
    needs_bfloat16,
    needs_horovod,
    run,
    scalars,
    the_run,
)
from test_data import CPU, open_batches, pictures  # noqa: F401
from torch import nn

import imagenet_nd as nd

ALL = "--flip alternate --auto-augment trivial --random-erase 0.5 --repeated-aug 2 --mixup 0.4"
ALL = f"{ALL} --cutmix 1 --min-crop 0.2 --start-size 16 --image-size 24 --val-size 32 --epochs 5"


def load(pictures, words, **more):  # noqa: F811
    """Returns [(epoch, images, target)] of a rank's training, as the model gets them."""
    args = nd.parse_args(words)
    group = args.mix_group or 12 // args.repeated_aug
    data = SimpleNamespace(global_batch=12, mix_group=group)
    batches = open_batches(pictures, words=words, **more)[1]
    return [
        (epoch, images.clone(), target.clone())
        for split, epoch, images, target in nd.to_device(batches, args, data, CPU, [])
        if split == "train"
    ]


@pytest.mark.parametrize(("ranks", "workers"), [(1, 1), (2, 0), (3, 2)])
def test_augmented_and_mixed_images_are_the_same_whoever_loads_them(ranks, workers, pictures):  # noqa: F811
    """To the bit, and from mid-epoch too."""
    words = ALL.split()
    expected = load(pictures, words)
    sizes = [images.shape[2] for _, images, _ in expected]
    assert sizes == [16] * 16 + [24] * 4, "steps of 16 pixels between: none here"
    for step in 0, 2:
        found = [
            load(pictures, words, rank=rank, ranks=ranks, workers=workers, step=step)
            for rank in range(ranks)
        ]
        for (epoch, images, target), *theirs in zip(expected[step:], *found, strict=True):
            assert {each[0] for each in theirs} == {epoch}
            assert torch.equal(images, torch.cat([each[1] for each in theirs]))
            assert torch.equal(target, torch.cat([each[2] for each in theirs]))


def keys(pictures, *words):  # noqa: F811
    """Returns the keys of each training step of one epoch."""
    words = [*words, "--epochs", "1"]
    return [job[3] for job in open_batches(pictures, words=words)[0] if job[0] == "train"]


def test_repeats_are_other_crops_of_half_as_many_images(pictures):  # noqa: F811
    plain, steps = keys(pictures), keys(pictures, "--repeated-aug", "2")
    assert len(steps) == len(plain), "an epoch costs the same"
    for step in steps:
        images = [key % 50 for key in step]
        assert images[:6] == images[6:] and len(set(images)) == 6
        assert all(one != other for one, other in zip(images[::2], images[1::2], strict=True))
    ((_, images, _), *_) = load(pictures, ["--repeated-aug", "2", "--epochs", "1"])
    assert not torch.equal(images[:6], images[6:])


def sides(pictures, flip):  # noqa: F811
    """Returns for two epochs {image: whether it is mirrored}, of crops of the whole."""
    found = []
    for epoch in 0, 1:
        schedule, batches = open_batches(
            pictures, epoch=epoch, words=["--epochs", epoch + 1, "--flip", flip, "--min-crop", 1]
        )
        mirrored = {}
        for (split, _, _, indices), (images, *_) in zip(schedule, batches, strict=True):
            if split == "train":
                for index, image in zip(indices, images, strict=True):
                    mirrored[index] = image.float()
        found.append(mirrored)
    both = found[0].keys() & found[1].keys()
    assert len(both) > 40

    def close(one, other):
        return (one - other).abs().mean() < 12

    return [
        (close(found[0][each], found[1][each]), close(found[0][each], found[1][each].flip(1)))
        for each in both
    ]


def test_flips(pictures):  # noqa: F811
    pairs = {flip: sides(pictures, flip) for flip in ("off", "alternate", "random")}
    same = {flip: sum(a and not b for a, b in pairs[flip]) for flip in pairs}
    other = {flip: sum(b and not a for a, b in pairs[flip]) for flip in pairs}
    assert same["off"] > 15 and other["off"] == 0
    assert same["alternate"] == 0 and other["alternate"] > 15
    assert same["random"] > 5 and other["random"] > 5


# ------------------------------------------------------------------------------------------ mixing


def mixed(words, steps=200):
    """Yields (images before, after, classes, what mix_pairs() returns) of many steps."""
    torch.manual_seed(0)
    for step in range(steps):
        images, classes = torch.randn(6, 3, 20, 20), torch.randint(10, (6,))
        after = images.clone()
        args = nd.parse_args(words)
        yield images, after, classes, nd.mix_pairs(after, classes, args, f"0 3 {step}")


def test_mixup_blends_pairs_as_the_target_says():
    shares = []
    for before, after, classes, target in mixed(["--mixup", "0.4"]):
        kept = target[:, 2].view(-1, 1, 1, 1)
        neighbours = before.view(3, 2, 3, 20, 20).flip(1).view_as(before)
        assert torch.allclose(after, kept * before + (1 - kept) * neighbours, atol=1e-5)
        assert torch.equal(target[:, 0], classes.float())
        assert torch.equal(target[:, 1], classes.view(3, 2).flip(1).reshape(6).float())
        assert len(set(target[:, 2].tolist())) == 1, "one share a step, as torchvision's"
        shares.append(float(target[0, 2]))
    shares = torch.tensor(shares)
    assert abs(shares.mean() - 0.5) < 0.1
    assert abs(shares.var() - 0.25 / 1.8) < 0.03, "that of Beta(0.4, 0.4): 1 / 4 (2 a + 1)"


def test_cutmix_pastes_as_much_as_the_target_says():
    areas = []
    for before, after, _, target in mixed(["--cutmix", "1"]):
        pasted = (after != before).any(dim=1)
        neighbours = before.view(3, 2, 3, 20, 20).flip(1).view_as(before)
        assert torch.equal(after, torch.where(pasted[:, None], neighbours, before))
        rows, columns = pasted[0].any(1).sum(), pasted[0].any(0).sum()
        assert pasted[0].sum() == rows * columns, "a rectangle"
        assert torch.allclose(pasted.float().mean((1, 2)), 1 - target[:, 2])
        areas.append(float(1 - target[0, 2]))
    assert 0.2 < sum(areas) / len(areas) < 0.5 and max(areas) > 0.7


def test_both_take_turns():
    pasted = [
        bool((before == after).any())
        for before, after, *_ in mixed(["--mixup", "1", "--cutmix", "1"])
    ]
    assert 60 < sum(pasted) < 140


# ------------------------------------------------------------------------- losses and optimizers


def dense(target, smoothing):
    """Returns the target of mix_pairs() as (N, C) shares, smoothed."""
    hot = nn.functional.one_hot
    (one, other), share = target[:, :2].long().T, target[:, 2:]
    mixed = share * hot(one, 10) + (1 - share) * hot(other, 10)
    return mixed * (1 - smoothing) + smoothing / 10


@pytest.mark.parametrize("kind", ["ce", "bce"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_are_pytorchs_of_dense_targets(kind, smoothing):
    args = nd.parse_args(["--loss", kind, "--label-smoothing", str(smoothing)])
    torch.manual_seed(1)
    output, classes = torch.randn(8, 10, dtype=torch.float64), torch.randint(10, (8,))
    share = torch.rand(8)
    plain = torch.stack([classes, classes, torch.ones(8)], dim=1)
    mixed = torch.stack([classes, classes.flip(0), share], dim=1)
    for given, target in (classes, plain), (mixed, mixed):
        wanted = dense(target.double(), smoothing)
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
        optimizer = nd.build_optimizer(args, model.parameters())
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
    sizes = [nd.train_size(args, data, epoch) for epoch in range(18)]
    assert sizes == [64] * 8 + [80] * 3 + [96] * 4 + [128] * 3


@pytest.mark.parametrize("limit", [0.1, 1e6])
def test_gradients_are_clipped_as_pytorch_does_in_float64(limit):
    torch.manual_seed(2)
    weights = [nn.Parameter(torch.randn(size)) for size in ((300, 70), (70,), (5, 3, 2))]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    expected = [nn.Parameter(weight.detach().double()) for weight in weights]
    for weight, exact in zip(weights, expected, strict=True):
        exact.grad = weight.grad.double()
    nn.utils.clip_grad_norm_(expected, limit)
    nd.clip_gradients([weight.grad for weight in weights], limit)
    for weight, exact in zip(weights, expected, strict=True):
        assert torch.allclose(weight.grad.double(), exact.grad, rtol=2e-5)


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
}
SLOW = {
    "apex O0, 2 ranks": ("imagenet_ddp_apex.py", 2, 1, ["--opt-level", "O0"]),
    "dp": ("imagenet_dp.py", 1, 1, []),
    "nd, 4 accumulated": ("imagenet_nd.py", 1, 4, []),
    "ddp, 4 ranks": ("imagenet_ddp.py", 4, 1, []),
    "horovod, 2 ranks, 2 accumulated": ("imagenet_horovod.py", 2, 2, []),
}


def train(way, log_dir, *words, steps=40, epochs=1):
    """Runs the recipe one of these ways, on the demo set's 16 images a step; as in a container, in
    a folder that has none above it."""
    script, ranks, accumulated, more = way
    sizes = ["-b", 16 // ranks // accumulated, "--accumulation", accumulated]
    sizes += ["-j", 1, "--epochs", epochs]
    sizes += ["--steps-per-epoch", steps, "--log-dir", log_dir]
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
        *WAYS,
        *(pytest.param(way, marks=[pytest.mark.slow]) for way in SLOW if "horovod" not in way),
        *(
            pytest.param(way, marks=[pytest.mark.slow, needs_horovod])
            for way in SLOW
            if "hor" in way
        ),
    ],
)
def test_same_loss_curve_with_all_of_the_recipe(way, reference, demo, tmp_path):
    train((WAYS | SLOW)[way], tmp_path / "runs", demo, epochs=2)
    for tag in "Loss/step", "Loss/val":
        expected = scalars(reference, tag)
        assert scalars(tmp_path / "runs", tag) == pytest.approx(expected, rel=1e-5), tag
    assert scalars(tmp_path / "runs", "Top1/val") == scalars(reference, "Top1/val")
    assert scalars(reference, "Loss/val")[2] < 2.2, "it must learn, or equality says little"


def load_weights(path):
    return torch.load(path, weights_only=True)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_average_is_exact_after_a_restart_and_best_in_model_best(reference, demo, tmp_path):
    whole = load_weights(checkpoint(reference))
    first = checkpoint(reference, "checkpoint-1.pt")
    assert load_weights(first)["epoch"] == 1
    train(ND, tmp_path / "again", "--resume", first, demo, epochs=2)
    again = load_weights(checkpoint(tmp_path / "again"))
    assert same(again["ema"], whole["ema"]) and same(again["state_dict"], whole["state_dict"])
    assert not same(whole["ema"], whole["state_dict"])
    best = load_weights(checkpoint(reference, "model_best.pt"))
    logged = scalars(reference, "Top1/val")
    words = ["-e", "--resume", checkpoint(reference, "model_best.pt"), demo]
    output = run([*command("imagenet_nd.py"), *VIT[:2], "--no-accel", *words], tmp_path)
    assert f"top-1 {logged[best['epoch']]:.3f} %" in output, "without --ema: what was validated"


@pytest.mark.slow
def test_what_is_saved_during_validation_is_what_is_trained(demo, tmp_path):
    """With averages, and BatchNorm's statistics; the next save ends the epoch."""
    size = ["-a", "shufflenet_v2_x0_5", "--image-size", "32", "-b", "16", "--no-accel", "-j", "1"]
    words = [*size, "--ema", "0.9", "--warmup-epochs", "0", "--epochs", "1", demo]
    often = ["--checkpoint-minutes", "0.0001", "--lr", "0.5"]
    run([*command("imagenet_ddp.py", 2), *often, *words], tmp_path)
    end, before = (
        load_weights(checkpoint(tmp_path / "runs", name))
        for name in ("checkpoint.pt", "checkpoint-1.pt")
    )
    assert (before["epoch"], before["step"]) == (0, 40), "saved in validation"
    assert same(before["state_dict"], end["state_dict"]) and same(before["ema"], end["ema"])
    assert not same(end["state_dict"], end["ema"])
    best = checkpoint(tmp_path / "runs", "model_best.pt")
    logged = scalars(tmp_path / "runs", "Top1/val")[1]
    output = run([*command("imagenet_nd.py"), *size, "-e", "--resume", best, demo], tmp_path)
    assert f"validation: top-1 {logged:.3f} %" in output


@pytest.mark.slow
def test_averages_go_from_script_to_script(reference, demo, tmp_path):
    whole, first = (load_weights(checkpoint(reference)), checkpoint(reference, "checkpoint-1.pt"))
    other = tmp_path / "other"
    train(("imagenet_ddp.py", 2, 1, []), other, "--resume", first, demo, epochs=2)
    theirs = load_weights(checkpoint(other))["ema"]
    for name, average in whole["ema"].items():
        assert torch.allclose(theirs[name], average, rtol=1e-3, atol=1e-5), name


def test_under_o2_masters_are_averaged(demo, tmp_path):
    """The first updates are copies, all of them when training is this short."""
    way = ("imagenet_ddp_apex.py", 1, 1, ["--opt-level", "O2", "--half-dtype", "bfloat16"])
    train(way, tmp_path / "runs", demo, steps=20)
    saved = load_weights(checkpoint(tmp_path / "runs"))
    assert same(saved["ema"], saved["state_dict"])
    weights = saved["ema"]["heads.head.weight"]
    assert not torch.equal(weights, weights.bfloat16().float()), "not rounded"


# ------------------------------------------------------------------------------------ option files


def source(name):
    return nd.parse_args([f"@{ROOT / 'recipes' / name}.txt"])


def test_option_files_are_what_their_sources_say():
    """Sources: see the files. Learning rates are for the global batch that is given."""
    plain = vars(nd.parse_args([]))
    v2 = {
        "arch": "resnet50", "epochs": 600, "batch_size": 128, "global_batch": 1024, "lr": 0.5,
        "lr_scaling": "none", "lr_schedule": "cosine", "warmup_epochs": 5, "wd": 2e-5, "norm_wd": 0,
        "image_size": 176, "val_size": 224, "val_resize": 232, "auto_augment": "trivial",
        "random_erase": 0.1, "mixup": 0.2, "cutmix": 1, "mix_group": 128, "label_smoothing": 0.1,
        "repeated_aug": 4, "ema": 0.998908,
    }  # fmt: skip
    expected = {
        "pytorch-examples": {
            "arch": "resnet50", "global_batch": 256, "lr_scaling": "none", "warmup_epochs": 0,
        },
        "torchvision-v2": v2,
        "convnext-tiny": v2 | {
            "arch": "convnext_tiny", "optimizer": "adamw", "lr": 1e-3, "wd": 0.05,
            "val_resize": 236,
        },
        "vit-b-16": {
            "arch": "vit_b_16", "epochs": 300, "batch_size": 64, "global_batch": 4096,
            "optimizer": "adamw", "lr": 3e-3, "lr_scaling": "none", "lr_schedule": "cosine",
            "warmup_epochs": 30, "wd": 0.3, "clip_grad": 1, "auto_augment": "rand", "mixup": 0.2,
            "cutmix": 1, "mix_group": 64, "label_smoothing": 0.11, "repeated_aug": 4,
            "ema": 0.991262,
        },
        "rsb-a3": {
            "arch": "resnet50", "epochs": 100, "global_batch": 2048, "optimizer": "lamb",
            "lr": 8e-3, "lr_scaling": "none", "lr_schedule": "cosine", "warmup_epochs": 5,
            "wd": 0.02, "norm_wd": 0, "image_size": 160, "val_size": 224, "val_resize": 236,
            "auto_augment": "rand-m6-mstd0.5-inc1", "mixup": 0.1, "cutmix": 1, "mix_group": 512,
            "loss": "bce", "bce_threshold": 0.2, "zero_init": True,
        },
    }  # fmt: skip
    expected["cifar10"] = {
        "arch": "resnet18", "epochs": 18, "batch_size": 128, "global_batch": 256, "lr": 0.2,
        "lr_schedule": "cosine", "wd": 5e-4, "label_smoothing": 0.1, "start_size": 64,
        "image_size": 128, "val_size": 144, "val_resize": 144, "min_crop": 0.5,
        "flip": "alternate", "optimizer": "nesterov", "zero_init": True,
    }  # fmt: skip
    expected["cifar10-first"] = {
        "arch": "resnet18", "epochs": 5, "batch_size": 64, "global_batch": 128, "lr": 0.2,
        "lr_schedule": "cosine", "image_size": 32, "val_resize": 32, "min_crop": 0.35,
        "flip": "alternate", "optimizer": "nesterov", "zero_init": True,
    }  # fmt: skip
    for epochs in 16, 88:
        expected[f"ffcv-{epochs}"] = {
            "arch": "resnet50", "epochs": epochs, "batch_size": 512, "global_batch": 4096,
            "lr": 1.7, "lr_scaling": "none", "lr_schedule": "linear", "warmup_epochs": 2,
            "norm_wd": 0, "start_size": 160, "image_size": 192, "val_size": 256,
            "val_resize": 293, "label_smoothing": 0.1,
        }  # fmt: skip
    files = {path.stem for path in (ROOT / "recipes").glob("*.txt")}
    assert files == expected.keys()
    for name, options in expected.items():
        found = vars(source(name))
        changed = {key for key in found if found[key] != plain[key]}
        assert {key: found[key] for key in changed} == {
            key: value for key, value in options.items() if value != plain[key]
        }, name


def test_an_option_file_is_logged_and_what_follows_it_counts(demo, tmp_path):
    file = tmp_path / "my recipe.txt"
    file.write_text("--epochs 2  # two\n\n# nothing\n--label-smoothing 0.1 -b 16 --log-dir a\n")
    words = [f"@{file}", "--epochs", "1", "--steps-per-epoch", "2", "--no-accel", "-j", "0"]
    words += ["--log-dir", "runs"]
    run([*command("imagenet_nd.py"), *VIT, *words, demo], tmp_path)
    (text,) = events(the_run(tmp_path / "runs")).Tensors("about/text_summary")
    about = json.loads(text.tensor_proto.string_val[0].decode().strip("`json\n"))
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
    donor = nd.models.resnet18(num_classes=4)
    torch.save(donor.state_dict(), tmp_path / "weights.pt")
    words += ["--epochs", "1", "--image-size", "32", "-j", "0", "--no-accel", "--ema", "0.9", demo]
    run([*way, *words], tmp_path)
    saved = load_weights(checkpoint(tmp_path / "runs"))
    for name, weight in donor.state_dict().items():
        last = name.startswith("fc.")
        assert last != torch.equal(saved["state_dict"][name], weight), name
    assert len(saved["optimizer"]["param_groups"][0]["params"]) == 2


def test_zero_init_begins_with_blocks_that_are_the_identity():
    args = nd.parse_args(["--zero-init", "-a", "resnet50"])
    model = nd.make_model("resnet50", **nd.model_options(args, 224))
    last = [each.bn3.weight for each in model.modules() if hasattr(each, "bn3")]
    assert len(last) == 16 and not any(each.any() for each in last)


def test_timms_models_train_with_their_own_preprocessing(demo, tmp_path):
    timm = pytest.importorskip("timm")
    preset = nd.preset_of("timm/vit_tiny_patch16_224")
    assert preset.mean == (0.5,) * 3 and preset.crop_size == [224] and preset.resize_size == [249]
    words = ["-a", "timm/resnet10t", "--image-size", "32", "-b", "8", "--optimizer", "lamb"]
    words += ["--steps-per-epoch", "4", "--epochs", "1", "-j", "0", "--no-accel", "--ema", "0.5"]
    run([*command("imagenet_nd.py"), *words, demo], tmp_path)
    path = checkpoint(tmp_path / "runs")
    assert "_timm-resnet10t_gpux1_b8_" in path.parent.name
    saved = load_weights(path)
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
    one = [*command("imagenet_nd.py"), *words, "-b", "8"]
    run(one, tmp_path)
    saved = load_weights(checkpoint(tmp_path / "runs"))
    first = checkpoint(tmp_path / "runs", "checkpoint-1.pt")
    again = ["--resume", first, "--log-dir", tmp_path / "again"]
    run([*one, *again], tmp_path)
    assert same(load_weights(checkpoint(tmp_path / "again"))["state_dict"], saved["state_dict"])
    if name == "muon":
        expected = scalars(tmp_path / "runs", "Loss/step")
        for script, batch in ("imagenet_fsdp.py", "4"), ("imagenet_pipeline.py", "8"):
            run([*command(script, 2), *words, "-b", batch, "--log-dir", script], tmp_path)
            losses = scalars(tmp_path / script, "Loss/step")
            assert losses == pytest.approx(expected, rel=1e-3)
        return
    sgd = ["--optimizer", "sgd", "--resume", first, "--log-dir", tmp_path / "sgd"]
    run([*one, *sgd], tmp_path)
    back = [
        "--resume",
        checkpoint(tmp_path / "sgd"),
        "--epochs",
        "3",
        "--log-dir",
        tmp_path / "back",
    ]
    run([*one, *back], tmp_path)
    steps = load_weights(checkpoint(tmp_path / "back"))["optimizer"]["param_groups"][0]["step"]
    assert steps == 2, "another optimizer's state is no use"


@pytest.mark.slow
def test_a_budget_ends_in_mid_epoch_and_validates(demo, tmp_path):
    words = [*VIT, "--no-accel", "-j", "1", "-b", "4", "--budget-hours", 4 / 3600, "-p", "1"]
    words += ["--epochs", "3", "--best", "loss", demo]
    output = run([*command("imagenet_ddp.py", 2), *words], tmp_path)
    (text,) = events(the_run(tmp_path / "runs")).Tensors("end/text_summary")
    end = json.loads(text.tensor_proto.string_val[0].decode().strip("`json\n"))
    assert end["reason"] == "the budget is spent" and 0 < end["epochs"] < 3
    top1, losses = (scalars(tmp_path / "runs", f"{tag}/val") for tag in ("Top1", "Loss"))
    best = min(losses, key=losses.get)
    look = [sys.executable, ROOT / "tools" / "look.py", "classes"]
    looked = run([*look, checkpoint(tmp_path / "runs", "model_best.pt"), demo], tmp_path)
    assert f"top-1 {top1[best]:.3f} %" in looked
    for tag, best in ("Top1", max), ("Top5", max), ("Loss", min):
        logged = scalars(tmp_path / "runs", f"{tag}/val")
        assert end[f"best_{tag.lower()}"] == pytest.approx(best(logged.values()), abs=1e-4)
    assert f"has the best loss, {end['best_loss']:.5g}" in output
    with_more = [*words, "--budget-hours", "1", "--log-dir", "other"]
    shutil.copytree(tmp_path / "runs", tmp_path / "more")
    more = run(
        [*command("imagenet_nd.py"), *with_more, "--resume", the_run(tmp_path / "more")], tmp_path
    )
    assert "all epochs are done" in more and "after 3/3 epochs in" in more, (
        "and the rest of the epoch"
    )
    again = run([*command("imagenet_nd.py"), *words, "--resume", "auto"], tmp_path)
    assert "the budget is spent" in again
    validated = scalars(tmp_path / "runs", "Top1/val")
    assert validated == pytest.approx(top1, abs=0.5), "the epoch that was under way, once more"
