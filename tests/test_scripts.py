"""The scripts as texts and as commands: copies, options, launch lines, launchers, alone."""

import argparse
import ast
import importlib
import json
import math
import os
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch
from conftest import (
    HOROVOD,
    ROOT,
    SCRIPTS,
    TEXT_SCRIPTS,
    checkpoint,
    command,
    copy_script,
    needs_bfloat16,
    needs_horovod,
    run,
    scalars,
)

from trainparts import devices

sync_copies = argparse.Namespace(**runpy.run_path(str(ROOT / "tools" / "sync_copies.py")))
ALL = [*SCRIPTS, *TEXT_SCRIPTS]
TEXTS = {name: (ROOT / name).read_text() for name in ALL}
ONE_PROCESS = "imagenet_nd.py", "imagenet_dp.py", "text_nd.py"


def parse(script, words):
    """Returns the options that a script reads from a command line."""
    return importlib.import_module(script.removesuffix(".py")).parse_args(words)


# ------------------------------------------------------------------------------------------ copies


def test_copies_are_equal_and_each_stands_alone():
    assert (len(SCRIPTS), len(TEXT_SCRIPTS)) == (8, 6)
    assert sync_copies.check(TEXTS) == []
    project = (ROOT / "pyproject.toml").read_text()
    (listed,) = re.findall(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    listed = re.findall(r'^ +"([a-z]+)', listed, re.MULTILINE)
    assert len(listed) > 5
    # nvImageCodec is in nvidia.
    allowed = {*sys.stdlib_module_names, *listed, "PIL", "nvidia", "horovod", "apex", "amp_C"}
    allowed |= {"trainparts"}  # which lies beside them
    for name, text in TEXTS.items():
        imported = re.findall(r"^\s*(?:import|from) ([a-zA-Z_]+)", text, re.MULTILINE)
        assert set(imported) <= allowed, name
        assert max(map(len, text.splitlines())) <= 100, name


# --------------------------------------------------------------------------------- others' options


def test_others_options_have_a_table_and_are_none_here():
    """One that is an option here too would never be refused."""
    page = (ROOT / "docs" / "recipes.md").read_text().partition("## Coming from")[2]
    rows = dict(re.findall(r"^\| `([^`]+)` \| `?([^|`]+?)`? \|$", page, re.MULTILINE))
    assert len(rows) > 25
    for name in "imagenet_nd", "text_nd":
        parser = importlib.import_module(name).make_parser()
        own = {word for action in parser._actions for word in action.option_strings}
        assert not own & rows.keys()
        if name == "imagenet_nd":
            assert all(not here.startswith("-") or here.split()[0] in own for here in rows.values())


# ----------------------------------------------------------------------------------- launch lines


def launch_lines(name):
    """Returns the launch lines in a script's docstring or in a Markdown file, as lists of words."""
    text = (ROOT / name).read_text()
    if name.endswith(".py"):
        text = importlib.import_module(name.removesuffix(".py")).__doc__
    else:
        text = "\n".join(re.findall(r"^```(?:bash|sh)?\n(.*?)^```", text, re.DOTALL | re.M))
    launcher = (
        r"\s*(?:[A-Z_]+=\S+ )*(?:python|torchrun|horovodrun|srun) .*\b(imagenet|text)_\w+\.py\b"
    )
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [shlex.split(line, comments=True) for line in lines if re.match(launcher, line)]


@pytest.mark.parametrize("name", ALL)
def test_an_evaluation_trains_no_step_on_noise_or_zeros(name):
    """Which would take the memory of a step at a batch that only validation may fit."""
    tree = ast.parse((ROOT / name).read_text())
    (load_state,) = (each for each in tree.body if getattr(each, "name", "") == "load_state")
    (training,) = (
        each
        for each in load_state.body
        if isinstance(each, ast.If) and ast.unparse(each.test) == "not run.args.evaluate"
    )
    for step in "_rehearse", "make_optimizer_state":
        everywhere, here = (ast.unparse(each).count(f"{step}(") for each in (load_state, training))
        assert everywhere == here
    assert "make_optimizer_state(" in ast.unparse(training)


DOCUMENTS = ["README.md", *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]


def test_there_are_launch_lines():
    for name in ALL:
        assert sum(name in words for words in launch_lines(name)) >= 3
    for name in SCRIPTS:
        assert any(name in words for document in DOCUMENTS for words in launch_lines(document))


@pytest.mark.parametrize("name", [*ALL, *DOCUMENTS])
def test_launch_lines_parse(name, tmp_path, monkeypatch):
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    for model in "FOLDER", "bert-base-cased", "albert-base-v2":
        (tmp_path / model).mkdir()
    monkeypatch.chdir(tmp_path)
    for words in launch_lines(name):
        (at,) = (i for i, word in enumerate(words) if word in ALL)
        options = [word for word in words[at + 1 :] if word not in ("2>&1", "|", "&")]
        parse(words[at], [word.replace("$seed", "1") for word in options])
        before = [word for word in words[:at] if not re.match("[A-Z_]+=", word)]
        if "torch.distributed.launch" in before or before[0] == "torchrun":
            start = before.index("torch.distributed.launch") if "-m" in before else 0
            parser = importlib.import_module("torch.distributed.run").get_args_parser()
            parser.parse_args([*before[start + 1 :], words[at]])
        else:
            assert before[-1] == "python"
            assert before[0] != "horovodrun" or before[1] == "-np"


# ----------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("script", ALL)
def test_help_names_the_default_of_each_option(script):
    parser = importlib.import_module(script.removesuffix(".py")).make_parser()
    for action in parser._actions:
        text = action.help % {**vars(action), "prog": script}
        shown = str(action.default) in text if action.default else True
        assert action.nargs == 0 or ("default" in text and shown), action.option_strings


PEERS = (
    "-a resnet50 -j 4 --epochs 2 --start-epoch 1 -b 8 --learning-rate 0.1 --momentum 0.9 "
    "--weight-decay 1e-4 -p 5 --resume x.pt -e --pretrained --seed 1 --gpu 0 --dummy DIR"
)
COMMANDS = {
    "imagenet_nd.py": [PEERS, "-a resnet50 --wd 1e-4 --lr 0.2 --no-accel DIR", "--workers 3 DIR"],
    "imagenet_dp.py": [PEERS],
    "imagenet_ddp.py": [
        f"{PEERS} --world-size 1 --rank 0 --dist-url tcp://127.0.0.1:1 --dist-backend nccl",
        "-a resnet50 --dist-url tcp://MASTER_IP:9876 --dist-backend nccl --world-size 4 --rank 0 "
        "--multiprocessing-distributed --desired-acc 0.75 DIR",
        "--local_rank=0 DIR",
        "--local-rank=0 DIR",
    ],
    "imagenet_ddp_apex.py": [
        "-a resnet50 --b 208 --workers 20 --opt-level O2 --local_rank=3 DIR",
        "--local-rank 1 --sync_bn --opt-level O3 --keep-batchnorm-fp32 True --loss-scale 128.0",
        "--sync-bn --loss-scale dynamic --channels-last --deterministic --opt-level O0",
    ],
    "imagenet_horovod.py": [
        "--fp16-allreduce --batches-per-allreduce 4 --use-adasum --gradient-predivide-factor 2.0 "
        "--base-lr 0.0125 --warmup-epochs 5 --wd 0.00005 --seed 42 DIR"
    ],
}


def test_commands_of_peers_parse():
    """Those of pytorch/examples, of Apex's example and of Horovod's."""
    for script, lines in COMMANDS.items():
        for line in lines:
            parse(script, shlex.split(line))
    args = parse("imagenet_ddp_apex.py", shlex.split(COMMANDS["imagenet_ddp_apex.py"][0]))
    assert (args.batch_size, args.workers, args.precision, args.dir) == (208, 20, "O2", "DIR")
    assert parse("imagenet_nd.py", ["--learning-rate", "0.3", "--weight-decay", "1"]).lr == 0.3


# NAME=DEFAULT of all options, by the section that adds them: those that define what is trained;
# those that are free, so that they may change while a run goes on, but are the same on all ranks;
# those of which each rank may have its own.
OPTIONS = {
    "loop": (
        "beta2=0.999 clip_grad=None ema=0 layer_decay=1 lr_schedule=step momentum=0.9 norm_wd=None "
        "optimizer=sgd precision=float32 seed=0 steps_per_epoch=None warmup_epochs=None "
        "wd=0.0001",
        "accumulation=1 base_lr=None batch_size=256 best=None budget_hours=None desired=[] "
        "epochs=90 evaluate=False global_batch=None lr=0.1 lr_scaling=linear patience=None "
        "print_freq=10 resume=None start_epoch=None",
        "checkpoint_activations=False checkpoint_minutes=15 compile=False compile_mode=default "
        "deterministic=False gpu=None keep_every=None no_accel=False output_dir=None timeout=600",
    ),
    "imagenet": (
        "arch=resnet18 auto_augment=off bce_threshold=None cutmix=0 dummy=False flip=random "
        "freeze=False image_size=None label_smoothing=0 loss=ce min_crop=0.08 mix_group=None "
        "mixup=0 num_classes=None pretrained=False random_erase=0 repeated_aug=1 start_size=None "
        "val_resize=None val_size=None zero_init=False",
        "weights=None",
        "channels_last=False dir=None workers=None",
    ),
    "text": (
        "arch=gpt dropout=None from_scratch=False heads=2 hidden_size=64 layers=2 max_length=128 "
        "task=lm tied=False tokenizer=None",
        "pad_to_max=False weights=None",
        "dir=None",
    ),
    "nd": ("float8_scaling=tensorwise", "", ""),
    "dp": ("", "", ""),
    "ddp": (
        "float8_scaling=tensorwise sync_bn=False",
        "",
        "dist_backend=None dist_url=None local_rank=None multiprocessing_distributed=False "
        "nproc_per_node=None rank=None world_size=None",
    ),
    "ddp_apex": (
        "half_dtype=None keep_batchnorm_fp32=None loss_scale=None sync_bn=False",
        "",
        "dist_backend=None local_rank=None",
    ),
    "horovod": (
        "fp16_allreduce=False gradient_predivide_factor=1.0 sync_bn=False use_adasum=False",
        "",
        "",
    ),
    "fsdp": (
        "float8_scaling=tensorwise param_dtype=float32 sync_bn=False",
        "float8_gather=False hybrid=None reshard_after_forward=True",
        "dist_backend=None local_rank=None",
    ),
    "pipeline": (
        "microbatches=4",
        "schedule=gpipe stages=None",
        "dist_backend=None local_rank=None",
    ),
    "exchange": (
        "exchange_dtype=float32 sync_bn=False",
        "bucket_mb=25.0 exchange=bucket",
        "dist_backend=None list_tensors=False local_rank=None",
    ),
}
OTHER_DEFAULTS = {  # of options of the loop
    "text": "epochs=3 batch_size=32 optimizer=adamw lr=0.003 lr_scaling=none lr_schedule=linear "
    "wd=0.01 norm_wd=0.0 clip_grad=1.0",
    "ddp_apex": "precision=None",
}


def frozen(script):
    """Returns the three classes of a script's options, each {name: default}."""
    sections, classes = ("loop", *script.removesuffix(".py").split("_", 1)), []
    other = " ".join(OTHER_DEFAULTS.get(section, "") for section in sections)
    other = dict(word.split("=") for word in other.split())
    for place in range(3):
        words = " ".join(OPTIONS[section][place] for section in sections).split()
        defaults = dict(word.split("=") for word in words)
        classes.append({name: other.get(name, defaults[name]) for name in defaults})
    return classes


@pytest.mark.parametrize("script", ALL)
def test_options_and_defaults_are_frozen(script, capsys):
    """A change of a default changes what people's commands do: it must be meant."""
    found, (trained, free, own) = vars(parse(script, [])), frozen(script)
    assert {name: str(value) for name, value in found.items()} == trained | free | own
    with pytest.raises(SystemExit) as ended:
        parse(script, ["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    for name in found.keys() - {"dir", "precision"}:
        assert f"--{name.replace('_', '-')}" in text, "every option is in the help"


@pytest.mark.parametrize("script", ALL)
def test_options_keep_their_class(script):
    """What is trained (a run is resumed only with the same), what else all ranks must share, the
    rest."""
    parser = importlib.import_module(script.removesuffix(".py")).make_parser()
    _, free, own = frozen(script)
    assert (sorted(parser.free), sorted(parser.own)) == (sorted(free), sorted(own))


# ---------------------------------------------------------------------------------------- launchers


@pytest.mark.parametrize("script", ONE_PROCESS)
@pytest.mark.parametrize(
    "size", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE", "SLURM_STEP_NUM_TASKS"]
)
def test_scripts_of_one_process_refuse_a_launcher_of_two(script, size, complaint_here):
    assert "ends in _ddp.py" in complaint_here(script, "--no-accel", "nowhere", **{size: "2"})


# ------------------------------------------------------------------------------------------- alone

VIT = ["-a", "vit_b_16", "--image-size", "32", "--no-accel", "-j", "0"]


def alone(script, ranks, folder):
    """Copies a script and its package into a folder; returns the words that start it there."""
    if script == "imagenet_horovod.py" and not HOROVOD:
        pytest.skip("Horovod is not built: `make horovod`")
    copy_script(script, folder)
    return [word.replace(str(ROOT / script), script) for word in command(script, ranks)]


@pytest.mark.parametrize(
    ("script", "ranks", "options"),
    [
        ("imagenet_nd.py", 1, ["--amp", "float16", "--channels-last"]),
        ("imagenet_ddp.py", 2, ["--amp", "bfloat16"]),
        pytest.param("imagenet_ddp_apex.py", 1, ["--opt-level", "O2"], marks=pytest.mark.slow),
        pytest.param("imagenet_fsdp.py", 1, ["--amp", "bfloat16"], marks=pytest.mark.slow),
    ],
)
def test_alone_in_an_empty_folder_it_trains_an_epoch(script, ranks, options, tmp_path):
    """On the demo set, which it generates."""
    words = [*alone(script, ranks, tmp_path), *VIT, *options, "--epochs", "1", "-b", "32"]
    words += ["--steps-per-epoch", "2"]
    # SLURM_NTASKS alone is an interactive allocation: it stands for no launcher.
    output = run(words, tmp_path, env={"SLURM_NTASKS": "2"})
    assert "training on the demo set in " in output
    assert list(scalars(tmp_path / "runs", "Top1/val")) == [1]
    saved = torch.load(checkpoint(tmp_path / "runs"), weights_only=True)
    assert ("scale" in saved["scaler"]) == ("float16" in options)
    name = checkpoint(tmp_path / "runs").parent.name
    assert name.endswith(f"_opt{options[1]}")
    shutil.rmtree(tmp_path / "trainparts", ignore_errors=True)  # which alone() has put there
    assert {path.name for path in Path(tmp_path).iterdir()} == {script, "demo_data", "runs"}


def test_alone_a_language_model_needs_no_other_packages(tmp_path):
    """Neither those for encoders and parquet, nor those for images."""
    hidden = "transformers tokenizers pyarrow torchvision PIL timm".split()
    (tmp_path / "hidden").mkdir()
    code = f"import sys\nsys.modules.update(dict.fromkeys({hidden}))\n"
    (tmp_path / "hidden" / "sitecustomize.py").write_text(code)
    words = "--layers 1 --hidden-size 32 --epochs 1 --steps-per-epoch 2 -p 1 --no-accel".split()
    env = {"PYTHONPATH": str(tmp_path / "hidden")}
    output = run([*alone("text_nd.py", 1, tmp_path), *words], tmp_path, env=env)
    assert output.startswith("No DIR, no $TEXT_DIR: training on a demo of --task lm\n")
    assert list(scalars(tmp_path / "runs", "Perplexity/val")) == [1]
    saved = torch.load(checkpoint(tmp_path / "runs"), weights_only=True)
    assert (saved["arch"], saved["vocabulary"], saved["max_length"]) == ("gpt", 256, 128)
    shutil.rmtree(tmp_path / "trainparts", ignore_errors=True)  # which alone() has put there
    assert {path.name for path in tmp_path.iterdir()} == {"text_nd.py", "hidden", "runs"}


@pytest.mark.slow
@needs_bfloat16
@pytest.mark.parametrize("script", SCRIPTS)
def test_alone_in_an_empty_folder_it_learns_the_demo_set(script, tmp_path):
    ranks = 1 if script in ONE_PROCESS else 2
    words = [*alone(script, ranks, tmp_path), "-b", 64 // ranks, "--lr", "0.4"]
    words += ["--epochs", "8", "--lr-schedule", "cosine", "--desired-acc", "0.9", "--no-accel"]
    words += ["--opt-level", "O2"] if "apex" in script else ["--amp", "bfloat16"]
    assert "target reached" in run(words, tmp_path)
    assert max(scalars(tmp_path / "runs", "Top1/val").values()) >= 90


@pytest.mark.parametrize("script", SCRIPTS)
def test_options_stay_as_they_were_typed(script):
    """Nothing writes to args but the parser: what is derived from them has a name of its own."""
    tree = ast.parse((ROOT / script).read_text())
    stored = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and ast.unparse(node.value).endswith("args")
    ]
    assert stored == []
    assert not re.search(
        r"setattr\((run\.)?args|vars\((run\.)?args\)(\[|\.update)", ast.unparse(tree)
    )


# ------------------------------------------------------------------------------ what is sent

VALUES = """
import importlib, json, math, os, sys, time

script = importlib.import_module(os.environ["SCRIPT"])


def train(args):
    place = script.init_distributed(args)
    values = [math.inf, -math.inf, math.nan, 2**63, "\\udcff", None, [[1, [2]], {"a": (3,)}], True]
    received = script.broadcast_object(values if place.rank == 0 else None)
    os.write(1, f"got {json.dumps(received)}\\n".encode())  # at once, beside the other rank's
    script.all_reduce_sum(script.torch.zeros(1)).item()
    if place.ranks == 1 or "horovod" in script.__name__:
        script.tell_others("nobody waits", 2)
        return script.cleanup()
    for status in 1, 2:
        if place.rank == 0:
            script.tell_others(f"rank 0 ends by {status}", status)
            continue
        time.sleep(0.2)  # late
        try:
            script.broadcast_object(None)
        except (script.errors.BadInput, script.errors.Fault) as error:
            os.write(1, f"told {error}, {error.status}\\n".encode())
    os._exit(0)  # and with rank 0 the store


script.train_rank = train
if __name__ == "__main__":
    script.main()
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("imagenet_horovod.py", marks=[pytest.mark.slow, needs_horovod]),
        *(
            pytest.param(script, marks=pytest.mark.slow)
            for script in SCRIPTS
            if script != "imagenet_horovod.py"
        ),
    ],
)
def test_what_rank_0_sends_is_the_same_everywhere(script, tmp_path):
    """As JSON has it, in scripts of one process too; nothing that could be run. What ends rank 0
    reaches ranks that wait for its value, or will in a moment."""
    ranks = 1 if script in ONE_PROCESS else 2
    (tmp_path / "values.py").write_text(VALUES)
    words = [word.replace(str(ROOT / script), "values.py") for word in command(script, ranks)]
    env = {"SCRIPT": script.removesuffix(".py"), "PYTHONPATH": str(ROOT)}
    output = run([*words, "--no-accel"], tmp_path, env=env)
    values = [math.inf, -math.inf, math.nan, 2**63, "\udcff", None, [[1, [2]], {"a": [3]}], True]
    assert output.count(f"got {json.dumps(values)}") == ranks
    told = [f"rank 0 ends by {status}, {status}" for status in (1, 2)]
    known = ranks > 1 and script != "imagenet_horovod.py"  # which ends other ranks by itself
    assert re.findall("told (.*)", output) == (told if known else [])
    text = (ROOT / script).read_text()
    assert not re.search(r"pickle\.|\.\w+_object\((?!json)|object_list", text), (
        "nothing is sent as pickle"
    )


# ------------------------------------------------------------------------------------------ devices


def test_apexs_default_level_on_the_cpu(demo, tmp_path):
    """It is O0, by name: in the folder's name, and in what is compared when it is resumed."""
    apex = "imagenet_ddp_apex.py"
    words = ["-a", "squeezenet1_1", "--image-size", "32", "-b", "8", "--steps-per-epoch", "1"]
    words += ["--epochs", "1", "-j", "0", "--no-accel", demo]
    output = run([*command(apex), *words], tmp_path)
    assert "squeezenet1_1 (O0) on 1 x" in output
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("_optO0")
    assert not (folder / "checkpoint-1.pt").exists(), "saved once, at the end of its epoch"
    words += ["--output-dir", folder]
    output = run([*command(apex), "--opt-level", "O3", *words], tmp_path, 2)
    assert "other options: precision (O0, here O3); " in output
    for level in [], ["--opt-level", "O0"]:
        assert "nothing is left to do" in run([*command(apex), *level, *words], tmp_path)


def test_a_gpu_that_pytorch_cannot_use_is_named(monkeypatch, capsys):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **options: None)
    for found, no_accel, printed in (False, False, False), (True, False, True), (True, True, False):
        monkeypatch.setattr(os.path, "exists", lambda path, found=found: found)
        assert devices.pick_device(no_accel=no_accel).type == "cpu"
        assert ("cannot use this machine's GPU" in capsys.readouterr().err) == printed


@pytest.mark.parametrize("script", SCRIPTS + TEXT_SCRIPTS)
def test_each_timer_has_the_hour_of_a_compilation(script):
    """Which --compile adds to --timeout: a timer without it would end a run that compiles."""
    text = (ROOT / script).read_text()
    given = re.findall(r"arm_timeout\((.*)\)\n", text)
    assert len(given) >= 8 and {each.replace("run.args", "args") for each in given} == {
        "args.timeout, compiles=args.compile"
    }
    group = "(args.timeout or 10**8) + 3600 * args.compile"
    assert text.count(group) == ("meet_ranks(" in text)


HELP = """
import importlib.machinery, sys

original = importlib.machinery.SourceFileLoader.get_code

def get_code(loader, name):
    if not loader.path.startswith({folders}):
        return original(loader, name)
    return compile(loader.get_data(loader.path), loader.path, "exec", optimize=2)

importlib.machinery.SourceFileLoader.get_code = get_code
sys.path[:0] = [{root!r}, {tools!r}]
for program in {programs}:
    sys.argv = [program, "--help"]
    try:
        code = compile(open(program).read(), program, "exec", dont_inherit=True, optimize=2)
        exec(code, {{"__name__": "__main__", "__file__": program}})
    except SystemExit as ended:
        print(f"\\n{{program}} ended with {{ended.code}}")
print("a docstring:", __import__("trainparts").errors.BadInput.__doc__)
"""


def test_help_without_docstrings(tmp_path):
    """As `python -OO` compiles this project; to compile PyTorch, too, would take 20 seconds."""
    tools = [path for path in (ROOT / "tools").glob("*.py") if "__doc__" in path.read_text()]
    programs = [ROOT / "imagenet_nd.py", ROOT / "text_nd.py", ROOT / "make_results.py", *tools]
    given = {"root": str(ROOT), "tools": str(ROOT / "tools"), "programs": [*map(str, programs)]}
    given["folders"] = tuple(f"{ROOT / name}/" for name in ("trainparts", "tools", "reporting"))
    printed = run([sys.executable, "-c", HELP.format(**given)], tmp_path)
    assert printed.endswith("\na docstring: None\n")
    assert len(tools) > 8
    for program in programs:
        assert f"\n{program} ended with 0\n" in printed
