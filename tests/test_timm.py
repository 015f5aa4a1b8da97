"""timm's models do here what timm's own programs make of them."""

import io
import shutil
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest
import safetensors.torch
import timm
import torch
from conftest import command, load
from test_weights import IDS, complaint, draw, make, measured, near, run
from timm.data import create_transform, resolve_data_config
from timm.optim import create_optimizer_v2, param_groups_weight_decay

import imagenet_nd as nd
from trainparts.images import architectures, image_loading

ND = command("imagenet_nd.py")
SLOW, MORE = pytest.mark.slow, ("ddp", "ddp_apex", "exchange")
SAY = "--no-accel -j 0 -b 5".split()


def whole_transform(name, **options):
    """Returns timm's own transformation for validation with published weights."""
    config = timm.get_pretrained_cfg(name).to_dict()
    config = resolve_data_config(pretrained_cfg=config, use_test_size=True)
    return create_transform(**config, **options)


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "convnext_atto", "resnet18", "beit_base_patch16_224"]
)
def test_layers_have_timms_rates_and_decay(name):
    """Of each weight, also where some are frozen."""
    with torch.device("meta"):
        model = timm.create_model(name)
    args = nd.parse_args(["--layer-decay", "0.6", "--wd", "0.05", "--norm-wd", "0"])
    for frozen in 0, 3:
        for weight in [*model.parameters()][:frozen]:
            weight.requires_grad_(False)
        theirs = create_optimizer_v2(model, "sgd", 0.1, 0.05, layer_decay=0.6)
        found = []
        for optimizer in nd.build_optimizer(args, model), theirs:
            found.append(
                {
                    weight: (group["lr_scale"], group["weight_decay"])
                    for group in optimizer.param_groups
                    for weight in group["params"]
                }
            )
        assert found[0] == found[1] and len(found[0]) == len([*model.parameters()]) - frozen
        assert len({scale for scale, _ in found[0].values()}) > 4


def test_a_model_that_does_not_say_its_layers_has_no_layer_decay(complaint_here):
    words = "--layer-decay 0.7 --no-accel -b 8 -j 0 --epochs 1 --steps-per-epoch 1".split()
    line = complaint_here("imagenet_nd.py", *words, only=False)
    assert "--layer-decay: resnet18 has no group_matcher()" in line


def test_a_size_that_does_not_fit_is_one_line(complaint_here, tmp_path):
    words = "-a timm/halonet26t --image-size 96 --dummy --steps-per-epoch 1 --no-accel".split()
    line = complaint_here("imagenet_nd.py", *words)
    assert "-a timm/halonet26t does not take images of 96 pixels (" in line
    assert "; its own have 256" in line
    assert not (tmp_path / "runs").exists()


def test_sizes_that_grow_to_that_of_a_fixed_model_are_one_line(tmp_path):
    words = "-a timm/vit_tiny_patch16_224 --image-size 64 --start-size 48 --epochs 9 -b 4".split()
    words += "--dummy --steps-per-epoch 1 --no-accel".split()
    line = complaint([*ND, *words], tmp_path, only=False)
    assert "the model cannot take this size of batch or input" in line


def test_find_bottleneck_says_it_in_one_line(demo, call_tool):
    words = "-a timm/halonet26t --image-size 96 --no-accel -j 0".split()
    _, errors = call_tool("find_bottleneck", *words, demo, status=2)
    assert "does not take images of 96 pixels" in errors and "Traceback" not in errors


def test_a_vit_of_another_size_trains_resumes_and_is_looked_at(
    demo, tmp_path, call_tool, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # where look.py writes its picture
    words = [*ND, "-a", "timm/vit_tiny_patch16_224", "--image-size", "32", "-j", "0", "-b", "16"]
    words += ["--steps-per-epoch", "2", "--no-accel", "--output-dir", "run", demo]
    run([*words, "--epochs", "1"], tmp_path)
    assert "2/2  train loss" in run([*words, "--epochs", "2"], tmp_path)
    best = tmp_path / "run" / "model_best.pt"
    assert load(best)["model_options"] == {"img_size": 32}
    output, _ = call_tool("look", "classes", best, demo)
    assert measured(output)
    evaluated = [*ND, *SAY, "-a", "timm/vit_tiny_patch16_224", "-e", "--weights", best, demo]
    # look.py prints four digits of the loss behind the point.
    assert measured(run(evaluated, tmp_path)) == near(measured(output), loss=5e-5)


# ----------------------------------------------------------------------- published weights under -e


@pytest.mark.parametrize("shape", [(300, 500), (700, 400), (90, 90), (30, 300)])
@pytest.mark.parametrize(
    "name", ["resnet10t.c3_in1k", "vit_so400m_patch14_siglip_378.webli_ft_in1k"]
)
def test_images_of_validation_are_timms(name, shape):
    """Of the same size and part, squashed where timm squashes; values differ by rounding."""
    rough = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    picture = PIL.Image.fromarray(rough).resize(shape[::-1], PIL.Image.Resampling.BICUBIC)
    theirs = whole_transform(name, normalize=False)(picture).permute(1, 2, 0)
    preset = architectures.preset_of(f"timm/{name}", test=True)
    assert preset.squash == ("siglip" in name)
    fields = {"interpolation": preset.interpolation, "val_resize": preset.val_resize}
    data = SimpleNamespace(mean=preset.mean, std=preset.std, **fields)
    ours = torch.empty(preset.image_size, preset.image_size, 3, dtype=torch.uint8)
    picture.save(encoded := io.BytesIO(), "PNG")
    if not preset.squash and max(shape) > 4 * min(shape):
        theirs = whole_transform(name, normalize=False)(picture.crop((90, 0, 210, 30)))
        theirs = theirs.permute(1, 2, 0)
    args = nd.parse_args(["-a", f"timm/{name}"])
    image_loading.load_alone(encoded.getvalue(), nd.central_crop(args, data, ours))
    assert theirs.shape == ours.shape
    assert (theirs.int() - ours.int()).abs().max() <= 2


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """hub(name, model) puts weights where timm looks for those that are published."""
    constants = pytest.importorskip("huggingface_hub.constants")
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))

    def publish(name, model):
        folder = cache / f"models--timm--{name}"
        snapshot = folder / "snapshots" / "0"
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("0")
        safetensors.torch.save_model(model, snapshot / "model.safetensors")

    yield publish
    shutil.rmtree(cache, ignore_errors=True)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """A DIR of ImageNet's classes with six images, none of which is square."""
    folder = tmp_path_factory.mktemp("ids")
    for name in IDS:
        (folder / "train" / name).mkdir(parents=True)
    draw(folder / "val", dict.fromkeys(IDS[::400], 2), size=(300, 260))
    return folder


@torch.no_grad()
def validated(model, name, folder, **options):
    """Returns what timm's validate.py measures: [top-1, top-5 in %, loss]."""
    transform = whole_transform(name, **options)
    paths = sorted((folder / "val").glob("*/*.png"))
    batch = torch.stack([transform(PIL.Image.open(path).convert("RGB")) for path in paths])
    target = torch.tensor([IDS.index(path.parent.name) for path in paths])
    logits = model.eval()(batch)
    ranks = (logits > logits.gather(1, target[:, None])).sum(dim=1)
    right = [100 * (ranks < n).double().mean().item() for n in (1, 5)]
    return [*right, torch.nn.functional.cross_entropy(logits, target).item()]


def test_published_weights_are_measured_as_timm_does(hub, imagenet, tmp_path):
    """At another size than they are trained at."""
    name = "resnet10t.c3_in1k"
    model = make("timm/resnet10t", 1000)
    hub(name, model)
    right = validated(model, name, imagenet)
    words = [*ND, *SAY, "-e", "-a", f"timm/{name}", "--pretrained"]
    output = run([*words, imagenet], tmp_path)
    assert measured(output) == near(right, loss=3e-3)
    said = "crops of 224 pixels, resized to 235"
    assert f"Validating published weights: {said}, bicubic\n" in output
    output = run([*words, "--image-size", "96", imagenet], tmp_path)
    assert f"Its own are {said}" in output


def test_a_vit_published_at_one_size_is_measured_at_another(hub, imagenet, tmp_path):
    """timm resamples the embeddings of its positions."""
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    hub(name, timm.create_model("vit_tiny_patch16_224"))
    words = [*ND, *SAY, "-e", "-a", f"timm/{name}", "--pretrained", "--val-size", "96"]
    output = run([*words, imagenet], tmp_path)
    model = timm.create_model(name, pretrained=True, img_size=96)
    half = (0.5,) * 3
    transform = create_transform(
        (3, 96, 96), crop_pct=96 / 106.5, interpolation="bicubic", mean=half, std=half
    )
    paths = sorted((imagenet / "val").glob("*/*.png"))
    batch = torch.stack([transform(PIL.Image.open(path).convert("RGB")) for path in paths])
    target = torch.tensor([IDS.index(path.parent.name) for path in paths])
    with torch.no_grad():
        right = torch.nn.functional.cross_entropy(model.eval()(batch), target).item()
    assert measured(output)[2] == pytest.approx(right, rel=1e-3)


def test_images_that_these_scripts_do_not_make_are_one_line(imagenet, tmp_path):
    words = [*ND, *SAY, "-e", "-a", "timm/deepseek_vit_412m", "--pretrained", imagenet]
    line = complaint(words, tmp_path)
    assert "-a timm/deepseek_vit_412m is published for images of 546 x 546 pixels, crop" in line


# ------------------------------------------------------------------------------------- weight decay


FAMILIES = "vit_tiny_patch16_224 deit_tiny_distilled_patch16_224 beit_base_patch16_224".split()
FAMILIES += "swin_tiny_patch4_window7_224 xcit_tiny_12_p16_224 convnext_atto resnet10t".split()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("masters", [False, True])
def test_what_timm_leaves_undecayed_is_left_so(name, masters):
    with torch.device("meta"):
        model = timm.create_model(name)
        copies = [torch.nn.Parameter(each.detach().clone()) for each in model.parameters()]
    held = copies if masters else [*model.parameters()]
    names = {id(one): name for (name, _), one in zip(model.named_parameters(), held, strict=True)}
    args = nd.parse_args(["--norm-wd", "0"])
    optimizer = nd.build_optimizer(args, model, copies if masters else None)
    ours = {
        names[id(weight)]: group["weight_decay"]
        for group in optimizer.param_groups
        for weight in group["params"]
    }
    listed = getattr(model, "no_weight_decay", set)()
    theirs = param_groups_weight_decay(model, args.wd, no_weight_decay_list=listed)
    own = {id(weight): name for name, weight in model.named_parameters()}
    assert ours == {
        own[id(weight)]: group["weight_decay"] for group in theirs for weight in group["params"]
    }


@pytest.mark.parametrize("way", ["fsdp", *(pytest.param(way, marks=SLOW) for way in MORE)])
def test_undecayed_weights_are_the_same_in_all_scripts(way, demo, tmp_path):
    """Those of the optimizer's group without weight decay."""
    counts = []
    words = "-a timm/test_vit --image-size 32 -b 4 --norm-wd 0 --epochs 1 --steps-per-epoch 1"
    words = [*words.split(), "--no-accel", "-j", "0"]
    for script, ranks in ("imagenet_nd.py", 1), (f"imagenet_{way}.py", 2):
        folder = tmp_path / script
        more = ["--global-batch", "8", "--output-dir", folder]
        run([*command(script, ranks), *words, *more, demo], tmp_path)
        state = load(folder / "checkpoint.pt")["optimizer"]
        sizes = {group["weight_decay"]: len(group["params"]) for group in state["param_groups"]}
        counts.append(sizes)
    assert counts[0] == counts[1]
    with torch.device("meta"):
        model = timm.create_model("test_vit")
    others = [n for n, w in model.named_parameters() if w.ndim < 2 or n in model.no_weight_decay()]
    assert counts[0][0] == len(others) and "pos_embed" in others


# ------------------------------------------------------------------------------ docs/recipes.md


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("sgd", "--optimizer nesterov"),
        ("momentum", "--optimizer sgd"),
        ("muon", "--optimizer muon --beta2 0.95"),
        ("adamw", "--optimizer adamw"),
        ("lamb", "--optimizer lamb"),
    ],
)
def test_optimizers_of_the_page_are_timms(there, here):
    """Six steps with timm's optimizer of this name, and with what the page says to type here."""
    trained = []
    for ours in True, False:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8))
        if ours:
            words = [*here.split(), "--lr", "0.05", "--wd", "0.05", "--norm-wd", "0"]
            optimizer = nd.build_optimizer(nd.parse_args(words), model)
        else:
            given = {"lr": 0.05, "weight_decay": 0.05, "momentum": 0.9}
            optimizer = timm.optim.create_optimizer_v2(model, there, **given)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.linspace(-1, 1, 24).view(4, 6)).square().sum().backward()
            optimizer.step()
        trained.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    torch.testing.assert_close(*trained, rtol=1e-5, atol=1e-6)
