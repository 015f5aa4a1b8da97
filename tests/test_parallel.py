"""FSDP2, pipeline stages and the exchange by hand: what the step section of each does."""

import copy
import importlib
import itertools
import re
import sys
from types import SimpleNamespace
from unittest import mock

import forked
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import (
    BY_TORCHRUN,
    ROOT,
    checkpoint,
    command,
    environment,
    free_port,
    needs_bfloat16,
    run,
    scalars,
    start_ranks,
    write_images,
)
from torchvision import models

from trainparts import errors

EXCHANGE, FSDP, PIPELINE = BY_TORCHRUN
OTHERS = EXCHANGE, PIPELINE, "text_exchange.py", "text_fsdp.py", "text_pipeline.py"
NET = ["--image-size", "32", "--no-accel", "-j", "0", "-p", "1", "--warmup-epochs", "0"]
VIT = ["-a", "vit_b_16", *NET, "--lr", "2"]


@pytest.fixture(scope="module")
def pipeline():
    return importlib.import_module("imagenet_pipeline")


@pytest.fixture(scope="module")
def fsdp():
    return importlib.import_module("imagenet_fsdp")


# -------------------------------------------------------------------------------------- one run


@pytest.mark.parametrize(
    "script", [FSDP, *(pytest.param(s, marks=pytest.mark.slow) for s in OTHERS)]
)
def test_torch_distributed_launch(script, demo, text, tmp_path):
    """It gives each rank a --local-rank of its own."""
    words = [sys.executable, "-m", "torch.distributed.launch", f"--master_port={free_port()}"]
    words += ["--nproc_per_node=2", ROOT / script, "--no-accel", "-b", "4", "--epochs", "1"]
    words += ["--steps-per-epoch", "2", "--output-dir", "run"]
    if script.startswith("imagenet"):
        words += ["-a", "vit_b_16", "--image-size", "32", "-j", "0", demo]
    else:
        words += ["--max-length", "32", "--hidden-size", "16", text]
    words += ["--microbatches", "2"] * ("pipeline" in script)
    assert "all epochs are done" in run(words, tmp_path)


# ---------------------------------------------------------------------------------------- stages


def test_the_best_cut(pipeline):
    """Against all cuts."""
    generator = torch.Generator().manual_seed(1)
    for stages in 1, 2, 3, 5:
        seconds = torch.rand(9, generator=generator).tolist()

        def slowest(cut, seconds=seconds):
            return max(sum(seconds[a:b]) for a, b in itertools.pairwise([0, *cut, 9]))

        *ends, last = pipeline._balance(tuple(seconds), stages)
        assert (len(ends), last) == (stages - 1, 9)
        every = itertools.combinations(range(1, 9), stages - 1)
        assert slowest(ends) == pytest.approx(min(map(slowest, every)))


FAMILIES = {  # and in how many pieces they can be cut
    "resnet18": 11,
    "vit_b_16": 9,  # of two layers, here
    "convnext_tiny": 28,
    "swin_t": 34,
    "efficientnet_b0": 61,
    "densenet121": 14,
    "googlenet": 16,
}


@pytest.mark.parametrize("arch", FAMILIES)
def test_stages_compute_what_the_model_does(arch, pipeline):
    """In training and in validation; each weight in one stage; buffers and all are the model's."""
    more = {"aux_logits": False, "init_weights": False} if arch == "googlenet" else {}
    more |= {"image_size": 32} if arch == "vit_b_16" else {}
    torch.manual_seed(0)
    model, args = models.get_model(arch, **more), SimpleNamespace(precision="float32")
    if arch == "vit_b_16":
        model.encoder.layers = model.encoder.layers[:2]
    pieces = pipeline._pieces(model)
    assert len(pieces) == FAMILIES[arch]
    pieces = [sum(each, []) for each in (pieces[:2], pieces[2:-3], pieces[-3:])]
    for name in model.state_dict():
        assert sum(pipeline._holds(piece, name) for piece in pieces) == 1, name
    stages = [pipeline._Stage(model, piece, args) for piece in pieces]
    images = torch.randn(4, 3, 32, 32)
    for training in True, False:
        twin = copy.deepcopy(model).train(training)
        model.train(training)
        torch.manual_seed(1)
        expected = twin(images)
        torch.manual_seed(1)
        value = images
        for stage in stages:
            value = stage(value)
        assert torch.equal(value, expected)
        found = model.state_dict()
        for name, tensor in twin.state_dict().items():
            assert torch.equal(found[name], tensor), name


class Branch(torch.nn.Module):
    """What goes another way for other inputs."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("model", "options", "complaint"),
    [
        (Branch, {}, "resnet18 cannot be cut"),
        (models.resnet18, {"microbatches": 3}, "--microbatches 3 does not divide the batch of 8"),
        (models.resnet18, {"ranks": 12}, "resnet18 can be cut into 11 stages, not 12"),
        (models.resnet18, {"microbatches": 8}, "--microbatches 8: each has one of 8 images, and "),
    ],
)
def test_pipelines_that_cannot_be(model, options, complaint, pipeline, monkeypatch):
    monkeypatch.setattr(pipeline, "build_model", lambda args, data: model())
    args = {"arch": "resnet18", "schedule": "gpipe", "microbatches": 4, "ranks": 2}
    args = vars(pipeline.parse_args([])) | args | options
    sizes = {"device_batch": 8, "image_size": 32, "val_size": 32, "num_classes": 10}
    sizes |= {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2)}
    args, data = SimpleNamespace(**args), SimpleNamespace(**sizes)
    place = SimpleNamespace(rank=0, ranks=args.ranks, data_ranks=1, device=torch.device("cpu"))
    with pytest.raises(errors.BadInput, match=re.escape(complaint)):
        pipeline.prepare(args, place, data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["-b", "4"], "--microbatches 4: each has one of 4 images, and Expected more than 1 value"),
        (["-b", "8", "--microbatches", "1", "--schedule", "1f1b"], "Number of microbatches (1)"),
        (["-b", "10", "--microbatches", "5", "--schedule", "interleaved"], "Interleaved 1F1B"),
    ],
)
def test_micro_batches_that_cannot_be(options, complaint, demo, tmp_path):
    """All ranks find it by themselves, and end with one line."""
    line = [*command(PIPELINE, 2), "-a", "resnet18", *NET, *options, demo]
    output = run(line, tmp_path, 1)  # torchrun's status
    assert complaint in output and output.count("imagenet_pipeline.py: error:") == 1
    assert len(re.findall("^Traceback", output, re.MULTILINE)) == 1, "torchrun's own"
    assert re.search(r"exitcode *: 2", output)


# ---------------------------------------------------------------------------------------- shards


@pytest.mark.parametrize(
    ("arch", "blocks", "kinds"),
    [
        ("resnet18", 8, {"BasicBlock"}),
        ("swin_t", 15, {"SwinTransformerBlock", "PatchMerging"}),
        ("convnext_tiny", 18, {"CNBlock"}),
        ("efficientnet_b0", 16, {"MBConv"}),
        ("vit_b_16", 12, {"EncoderBlock"}),
    ],
)
def test_blocks(arch, blocks, kinds, fsdp):
    with torch.device("meta"):
        found = [*fsdp._blocks(models.get_model(arch))]
    assert len(found) == blocks
    assert {type(each).__name__ for each in found} == kinds


@pytest.mark.parametrize(
    ("words", "sizes"), [("", {"shards": 8}), ("--hybrid 4", {"replicas": 2, "shards": 4})]
)
def test_a_hybrid_has_so_many_shards(words, sizes, fsdp, monkeypatch):
    """Within the ranks of a node; the nodes are replicas."""
    mesh = mock.Mock()
    monkeypatch.setattr(fsdp, "init_device_mesh", mesh)
    monkeypatch.setattr(fsdp, "fully_shard", mock.Mock())
    args = fsdp.parse_args(["--no-accel", *words.split()])
    fsdp._shard(models.resnet18(), args, fsdp.Place(torch.device("cpu"), ranks=8))
    assert mesh.call_args.args == ("cpu", (*sizes.values(),))
    assert mesh.call_args.kwargs == {"mesh_dim_names": (*sizes,)}


def test_the_norm_of_a_hybrid_counts_each_shard_once(fsdp, monkeypatch):
    """Two replicas of four shards: eight ranks, whose gradients have a norm of 5 each."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 8)
    monkeypatch.setattr(fsdp, "all_reduce_sum", lambda tensor: 8 * tensor)
    mesh, local = SimpleNamespace(size=(2, 4).__getitem__), torch.tensor([3.0, 4.0])
    gradient = SimpleNamespace(device_mesh=mesh, to_local=lambda: local)
    model = SimpleNamespace(parameters=lambda: [SimpleNamespace(grad=gradient)])
    args = fsdp.parse_args(["--clip-grad", "1"])
    fsdp.train_step(model, None, mock.Mock(), mock.Mock(), [], 1, args)
    assert local.tolist() == pytest.approx([0.3, 0.4])  # of a norm of 10


class Table(torch.nn.Module):
    """Has a buffer of each type."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        self.norm.num_batches_tracked.fill_(7)
        self.register_buffer("table", torch.arange(6))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("scale", torch.tensor([0.5, 0.25]))


def test_a_sharded_model_has_the_values_of_the_whole(fsdp, monkeypatch):
    """Of parameters, and of buffers of all types."""
    args = fsdp.parse_args(["--no-accel"])
    place = fsdp.init_distributed(args)
    try:
        torch.manual_seed(0)
        model = Table()
        wanted = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        monkeypatch.setattr(fsdp, "build_model", lambda args, data, load: model)
        monkeypatch.setattr(fsdp, "build_optimizer", lambda args, model: None)
        sharded, *_ = fsdp.prepare(args, place, None)
        found = sharded.state_dict()
        for name in wanted:
            whole = getattr(found[name], "full_tensor", lambda name=name: found[name])()
            assert torch.equal(whole, wanted[name]), name
    finally:
        fsdp.cleanup()


def test_float32_buffers_are_not_computed_with_in_16_bits(fsdp):
    args = fsdp.parse_args(["--no-accel", "--param-dtype", "bfloat16", "-a", "swin_v2_t"])
    place = fsdp.init_distributed(args)
    try:
        with torch.device("meta"), pytest.raises(errors.BadInput, match="swin_v2_t.*use --amp"):
            fsdp._shard(models.swin_v2_t(), args, place)
        with torch.device("meta"):  # of BatchNorm they are computed with in float32
            fsdp._shard(models.resnet18(), args, place)
    finally:
        fsdp.cleanup()


def test_validation_of_a_ragged_set(tmp_path):
    """Nine images: the second rank's last batch is empty, and a pipeline's has one image of eight.
    The model that they measure is one rank's."""
    data = write_images(tmp_path / "images", train=8, val=3, classes=("cat", "cow", "dog"))
    words, found = [*VIT, "--epochs", "1", "--steps-per-epoch", "1", data], {}
    for script, ranks, batch in ("imagenet_nd.py", 1, 8), (FSDP, 2, 4), (PIPELINE, 2, 8):
        run([*command(script, ranks), *words, "-b", batch, "--output-dir", script], tmp_path)
        found[script] = scalars(tmp_path / script, "Loss/val")[1]
    assert found == pytest.approx(dict.fromkeys(found, found["imagenet_nd.py"]), rel=1e-5)


# -------------------------------------------------------------------------------------- exchange


def _exchange(rank, ranks, port):
    """One of the ranks that average gradients of odd sizes in all ways."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    script = importlib.import_module("imagenet_exchange")
    sizes = (3, 5), (7,), (1,), (64, 3, 3, 3), (2, 2)
    per_rank = [
        [torch.randn(size, generator=torch.Generator().manual_seed(17 * each)) for size in sizes]
        for each in range(ranks)
    ]
    expected = [torch.stack(each).double().mean(0).float() for each in zip(*per_rank, strict=True)]
    for kind, dtype in itertools.product(script.EXCHANGES, ("float32", "bfloat16")):
        model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(size)) for size in sizes])
        for weight, gradient in zip(model, per_rank[rank], strict=True):
            weight.grad = gradient.clone()
        model[3].grad = model[3].grad.to(memory_format=torch.channels_last)
        args = SimpleNamespace(exchange=kind, exchange_dtype=dtype, bucket_mb=1e-4)
        script._exchange(model, args)
        for weight, mean in zip(model, expected, strict=True):
            least = 1e-6 if dtype == "float32" else 3e-2
            assert torch.allclose(weight.grad, mean, atol=least), (kind, dtype)
        exact = all(torch.equal(w.grad, m) for w, m in zip(model, expected, strict=True))
        assert not (exact and dtype == "bfloat16"), "16 bits must be felt"
    for kind in script.EXCHANGES:  # of gradients whose sum is above float16's 65,504
        model = torch.nn.Linear(9, 9, bias=False)
        model.weight.grad = torch.full((9, 9), 4e4)
        args = SimpleNamespace(exchange=kind, exchange_dtype="float16", bucket_mb=1e-4)
        script._exchange(model, args)
        assert torch.allclose(model.weight.grad, torch.tensor(4e4), rtol=1e-2), kind
    dist.destroy_process_group()


def test_every_exchange_gives_the_mean_on_every_rank():
    forked.start_server(environment())
    mp.start_processes(_exchange, (3, free_port()), nprocs=3, start_method="forkserver")


# ------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("ranks", "options", "replicas"),
    [
        (1, "", None),
        (1, "--stages 2", None),
        (1, "--schedule interleaved --stages 2", None),
        (2, "--schedule interleaved --stages 2", 2),  # of one rank each
        (2, "--schedule interleaved --stages 4", 1),
        (2, "--stages 2", 1),
        (4, "--stages 2", 2),
        (4, "", 1),
    ],
)
def test_ranks_that_hold_stages(ranks, options, replicas, monkeypatch):
    pipeline = importlib.import_module("imagenet_pipeline")
    args = pipeline.parse_args(["--no-accel", *options.split()])
    place = pipeline.Place(torch.device("cpu"), rank=ranks - 1, ranks=ranks)
    monkeypatch.setattr(pipeline, "_place", lambda args: place)
    monkeypatch.setattr(pipeline, "_form_group", lambda args, place: None)
    if not replicas:
        with pytest.raises(errors.BadInput, match="use the script that ends in _nd.py"):
            pipeline.init_distributed(args)
    else:
        found = pipeline.init_distributed(args)
        assert (found.data_rank, found.data_ranks) == (replicas - 1, replicas)


@pytest.mark.parametrize(
    ("script", "options", "complaint"),
    [
        (FSDP, ["--hybrid", "3"], "--hybrid 3 does not divide the 4 ranks"),
        (PIPELINE, ["--stages", "3"], "4 ranks cannot hold 3 stages, 1 on each, evenly"),
        (PIPELINE, ["--schedule", "interleaved", "--stages", "5"], "cannot hold 5 stages, 2 on"),
        (PIPELINE, ["--start-size", "16"], "--start-size: a pipeline cannot train"),
        (PIPELINE, ["--freeze", "--pretrained"], "--freeze: a pipeline cannot train"),
        (PIPELINE, ["--compile"], "--compile: a pipeline cannot train"),
        (PIPELINE, ["--stages", "1"], "argument --stages: 1 is"),
        # Its norm of all gradients would be each stage's own.
        (PIPELINE, ["--optimizer", "lamb"], "--optimizer lamb"),
        (EXCHANGE, ["--bucket-mb", "0"], "argument --bucket-mb: 0 is"),
    ],
)
def test_four_ranks_refuse(script, options, complaint, complaint_here):
    env = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    assert complaint in complaint_here(script, "--no-accel", *options, **env)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "pair", "name"),
    [
        (FSDP, (["--hybrid", "1"], ["--hybrid", "2"]), "hybrid"),
        (PIPELINE, (["--schedule", "gpipe"], ["--schedule", "1f1b"]), "schedule"),
        (EXCHANGE, (["--exchange", "ring"], ["--exchange", "gather"]), "exchange"),
    ],
)
def test_ranks_started_otherwise_are_refused(script, pair, name, demo, tmp_path):
    """By hand, as on two nodes: they would wait for each other."""
    ranks = start_ranks(script, tmp_path, *([*VIT, "-b", "8", demo, *each] for each in pair))
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert ranks[1].returncode == 2, printed[1]
    assert f"rank 1 differs from rank 0 in {name} (" in printed[1]


@pytest.mark.parametrize("script", BY_TORCHRUN)
def test_a_launcher_without_ranks_is_refused(script, complaint_here):
    line = complaint_here(script, "--no-accel", SLURM_STEP_NUM_TASKS="2")
    assert "this launcher sets no RANK" in line
    if script == PIPELINE:
        line = complaint_here(script, "--no-accel")
        assert "use the script that ends in _nd.py" in line


# ---------------------------------------------------------------------------------- slow: parity

RESNET = ["-a", "resnet18", *NET, "--lr", "0.1"]
SLOW = {"--epochs": "1", "--steps-per-epoch": "20", "--seed": "3"}
SLOW = [word for pair in SLOW.items() for word in pair]


# Where four gradients are added in another order, BatchNorm and ReLU let the rounding grow step by
# step, whichever script adds them: imagenet_exchange.py's ways differ from one another as much. On
# processors without AVX-512 the second loss differs by 3e-6.
def assert_alike(found, expected, reordered, way):
    """Checks that a curve has the losses of another: of its 20 steps, or of the first two."""
    steps, rel = (range(2), 1e-5) if reordered else (range(20), 1e-6)
    for step in steps:
        assert found[step] == pytest.approx(expected[step], rel=rel), (way, step)


def curve(script, ranks, demo, folder, *options):
    """Returns {step: loss} of one way of running."""
    name = f"runs {sum(1 for _ in folder.iterdir())}"
    words = [*command(script, ranks), *SLOW, *options, "--output-dir", name, demo]
    run(words, folder)
    return scalars(folder / name, "Loss/step")


@pytest.mark.slow
@pytest.mark.parametrize("net", [VIT, RESNET], ids=["no BatchNorm", "BatchNorm"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_fsdp_has_the_losses_of_ddp(net, ranks, demo, tmp_path):
    size = [*net, "-b", 16 // ranks]
    expected = curve("imagenet_ddp.py", ranks, demo, tmp_path, *size)
    ways = [[], ["--no-reshard-after-forward"], ["--hybrid", "2"]]
    for way in ways[: 3 if ranks == 4 else 2]:
        found = curve(FSDP, ranks, demo, tmp_path, *way, *size)
        assert_alike(found, expected, net is RESNET and ranks == 4, way)
    if needs_bfloat16.args[0]:
        return
    half = curve("imagenet_ddp.py", ranks, demo, tmp_path, "--amp", "bfloat16", *size)
    for way in ["--amp", "bfloat16"], ["--param-dtype", "bfloat16"]:
        found = curve(FSDP, ranks, demo, tmp_path, *way, *size)
        assert found[0] == pytest.approx(half[0], rel=1e-2)
        assert found != expected, "16 bits must be felt"


@pytest.mark.slow
@pytest.mark.parametrize("net", [VIT, RESNET], ids=["no BatchNorm", "BatchNorm"])
def test_pipeline_has_the_losses_of_accumulated_batches(net, demo, tmp_path):
    accumulated = [*net, "-b", "4", "--accumulation", "4"]
    expected = curve("imagenet_nd.py", 1, demo, tmp_path, *accumulated)
    whole = [*net, "-b", "16", "--microbatches"]
    for ranks, way in [
        (2, [*whole, "4"]),
        (2, [*whole, "4", "--schedule", "1f1b"]),
        (2, [*whole, "4", "--schedule", "interleaved"]),
        (2, [*net, "-b", "8", "--accumulation", "2", "--microbatches", "2"]),
        (4, [*net, "-b", "8", "--stages", "2", "--microbatches", "2"]),
        (3, [*whole, "4"]),
    ]:
        found = curve(PIPELINE, ranks, demo, tmp_path, *way)
        assert_alike(found, expected, net is RESNET and "--stages" in way, way)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_stages_resume_equal_bit_for_bit(ranks, demo, tmp_path):
    """In another start, whose cuts are the same: each rank draws its stage's dropout."""
    words = [*command(PIPELINE, ranks), "-a", "efficientnet_b0", *NET, "-b", "8", "--epochs", "2"]
    words += ["--microbatches", "2", "--steps-per-epoch", "2", demo, "--output-dir"]
    outputs = [run([*words, "whole"], tmp_path)]
    first = checkpoint(tmp_path / "whole", "checkpoint-1.pt")
    outputs.append(run([*words, "again", "--resume", first], tmp_path))
    cuts = [re.findall("^stage .*", output, re.MULTILINE) for output in outputs]
    assert cuts[0] == cuts[1] and len(cuts[0]) == ranks
    pair = [torch.load(checkpoint(tmp_path / name))["state_dict"] for name in ("whole", "again")]
    torch.testing.assert_close(*pair, rtol=0, atol=0)
    whole, again = (scalars(tmp_path / name, "Loss/step") for name in ("whole", "again"))
    assert {step: whole[step] for step in (2, 3)} == again


@pytest.mark.slow
def test_ddp_as_an_exchange_goes_on_equal_to_the_bit(demo, tmp_path):
    """Of three ranks, since the sum of two does not depend on the order."""
    words = [*command(EXCHANGE, 3), "-a", "resnet18", *NET, "--exchange", "ddp", "-b", "4"]
    words += ["--epochs", "2", "--steps-per-epoch", "6", demo, "--output-dir"]
    run([*words, "whole"], tmp_path)
    first = checkpoint(tmp_path / "whole", "checkpoint-1.pt")
    run([*words, "again", "--resume", first], tmp_path)
    pair = [torch.load(checkpoint(tmp_path / name))["state_dict"] for name in ("whole", "again")]
    torch.testing.assert_close(*pair, rtol=0, atol=0)


# ------------------------------------------------------------------------------ devices, replicas


def test_devices_of_one_process_drop_other_units(monkeypatch):
    """DataParallel's: the first has the step's seed, each other one its own."""
    dp = importlib.import_module("imagenet_dp")
    generators = [mock.Mock() for _ in range(3)]
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    torch.manual_seed(5)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    dp.train_step(mock.Mock(), None, mock.Mock(), scaler, [], 1, dp.parse_args([]))
    first, *others = generators
    assert not first.manual_seed.called
    seeds = {each.manual_seed.call_args.args[0] for each in others}
    assert len(seeds | {5}) == 3


@pytest.mark.parametrize(("words", "moved"), [("", 3), ("--clip-grad 1", 0.6)])
def test_gradients_are_averaged_over_the_replicas_of_a_stage(words, moved, pipeline, monkeypatch):
    """And their norm is that of one replica's stages."""
    replicas, stages = SimpleNamespace(size=lambda: 2), SimpleNamespace()
    model = torch.nn.Linear(2, 1, bias=False)
    begun = model.weight.detach().clone()

    def step(*batch, **options):
        model.weight.grad = torch.tensor([[1.0, 3.0]])

    model.pipeline = SimpleNamespace(device=torch.device("cpu"), first=True, last=True)
    model.pipeline.replicas, model.pipeline.train = replicas, SimpleNamespace(step=step)
    model.pipeline.stages = stages

    def all_reduce(tensor, group=None):
        if group is stages:
            tensor += 4**2  # the other stage's squares
        else:
            assert group is replicas, "stages hold other weights"
            tensor += torch.tensor([5.0, -3.0])  # the other replica's

    monkeypatch.setattr(pipeline.dist, "all_reduce", all_reduce)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    sgd = torch.optim.SGD(model.parameters(), 1.0)
    args = pipeline.parse_args(words.split())
    pipeline.train_step(model, None, sgd, scaler, [(None, None)], 1, args)
    torch.testing.assert_close(begun - model.weight, torch.tensor([[moved, 0.0]]))


# ------------------------------------------------------------------------------------ 16-bit sums


def test_fsdp_adds_gradients_up_in_float32(monkeypatch):
    fsdp = importlib.import_module("imagenet_fsdp")
    made = mock.Mock()
    monkeypatch.setattr(fsdp, "init_device_mesh", mock.Mock())
    monkeypatch.setattr(fsdp, "fully_shard", made)
    args = fsdp.parse_args(["--no-accel", "--param-dtype", "bfloat16"])
    fsdp._shard(models.vit_b_16(), args, fsdp.Place(torch.device("cpu"), ranks=2))
    policies = [call.kwargs["mp_policy"] for call in made.call_args_list]
    assert len(policies) > 2
    for policy in policies:
        assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(
    ("dtype", "name"), [("bfloat16", "bf16_compress_hook"), ("float16", "fp16_compress_hook")]
)
def test_ddp_as_an_exchange_sends_the_type_that_is_named(dtype, name, monkeypatch):
    exchange = importlib.import_module("imagenet_exchange")
    model = torch.nn.Linear(2, 1)
    model.register_comm_hook = mock.Mock()
    monkeypatch.setattr(exchange, "build_model", lambda args, data: model)
    monkeypatch.setattr(exchange, "_uses_all", lambda *given: True)
    monkeypatch.setattr(exchange, "DistributedDataParallel", lambda model, **options: model)
    monkeypatch.setattr(exchange.dist, "broadcast", mock.Mock())
    args = exchange.parse_args(["--no-accel", "--exchange", "ddp", "--exchange-dtype", dtype])
    exchange.prepare(args, exchange.Place(torch.device("cpu")), None)
    _, hook = model.register_comm_hook.call_args.args
    assert hook.__name__ == name
