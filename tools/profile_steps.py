"""For whoever asks where a step's time goes: ten steps of any of the scripts, in a profiler.

    python tools/profile_steps.py imagenet_nd.py -a resnet50 DIR
    python tools/profile_steps.py --from 100 imagenet_ddp.py --nproc-per-node 4 -a resnet50 DIR
    torchrun --nproc_per_node=4 --master_port=29500 \\
        tools/profile_steps.py imagenet_fsdp.py -a resnet50 DIR
    horovodrun -np 4 python tools/profile_steps.py imagenet_horovod.py -a resnet50 DIR

Trains as the script does, on all its ranks, through ten steps; then prints what took rank 0 longest
and writes runs/profile_TIME/trace.json.gz, for https://ui.perfetto.dev. There is no log and no
checkpoint, so make_results.py does not take it for a run. A command with --output-dir may be typed
while that run goes on: the profile begins at the folder's newest checkpoint, if it has one, and
nothing is written there.
"""

import argparse
import functools
import importlib
import os
import re
import sys
import time
from pathlib import Path

import one_file
import torch
from commandline import make_parser


def profile(script, first, run):
    """In place of the script's training: trains up to step `first`, and ten steps in a profiler."""
    epoch, begun = divmod(run.epoch * run.data.steps + run.step, run.data.steps)
    left = run.data.steps - begun if epoch < run.args.epochs else 0
    if not 1 <= first <= left - 10:
        there = f"{left} are left of this epoch, of which the first is not profiled"
        raise script.errors.BadInput(f"--from {first} needs ten steps: {there}; lower --from or -b")
    if epoch != run.epoch:  # resumed at an epoch's end, which is validated first
        script.validate(run)
        run.epoch, run.step = epoch, begun
    train_step = script.train_step

    def counted(*words):
        sums = train_step(*words)
        profiler.step()
        return sums

    def end(_):
        run.no_more_steps = True  # on all ranks after the same step

    steps = torch.profiler.schedule(skip_first=first - 1, wait=0, warmup=1, active=10, repeat=1)
    with torch.profiler.profile(schedule=steps, on_trace_ready=end) as profiler:
        script.train_step = counted
        script.train_one_epoch(run)
    if run.step != begun + first + 10:
        raise script.errors.BadInput(f"the run's time was over after {run.step - begun} steps")
    if run.place.rank == 0:
        folder = Path("runs") / time.strftime("profile_%b%d_%H-%M-%S")
        table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=15)
        try:
            folder.mkdir(parents=True)
            # Compressed, it is a tenth as large.
            profiler.export_chrome_trace(str(folder / "trace.json.gz"))
        except OSError as error:
            raise script.errors.storage_error(folder, error, typed=True) from None
        script.errors.print_line(f"{table}\nTrace of ten steps: {folder / 'trace.json.gz'}")


def has_checkpoint(script, folder):
    """Returns whether there is a checkpoint in a folder, or in None."""
    known = "|".join([*map(re.escape, script.checkpointing.CHECKPOINTS), r"epoch-\d+\.pt"])
    names = os.listdir(folder) if folder and os.path.isdir(folder) else []
    return any(re.fullmatch(known, name) for name in names)


def list_sources(script, listed, args, place):
    """Does what the script's list_sources() does, on all ranks, before they look for a checkpoint:
    one in --output-dir counts before --start-epoch."""
    found = place.rank == 0 and has_checkpoint(script, args.output_dir)  # others' disks may differ
    if script.broadcast_object(found):
        args.start_epoch = None
    return listed(args, place)


def load_checkpoint(script, load, must_fit, *, output_dir, resume, **options):
    """Does what load_checkpoint() does, on rank 0: a profile begins where the run in --output-dir
    would go on, but neither makes nor locks that folder."""
    begin = output_dir if has_checkpoint(script, output_dir) else resume
    return load(must_fit, output_dir=None, resume=begin, **options)


def profile_rank(first, train_rank, args):
    """What a rank does in its process: the script's train_rank, with the above for training."""
    script = sys.modules[train_rank.__module__]
    script.list_sources = functools.partial(list_sources, script, script.list_sources)
    script.checkpointing.load_checkpoint = functools.partial(
        load_checkpoint, script, script.checkpointing.load_checkpoint
    )
    script.open_log = lambda run, metadata: None  # run.log and run.folder stay None
    script.run_messages.about_folder = lambda *of_run: ["Logs: a profile saves nothing"]
    script.train = functools.partial(profile, script, first)
    train_rank(args)


def main():
    """Starts the script with its options."""
    parser = make_parser(__doc__)
    first = "first step to profile, counted from 0 where training begins (%(default)s)"
    parser.add_argument("--from", dest="first", type=int, default=10, metavar="STEP", help=first)
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="imagenet_*.py, text_*.py")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="...", help="of the script")
    args, others = parser.parse_known_args()  # torch.distributed.launch puts --local-rank first
    if not args.script.is_file() or b"def launch(" not in args.script.read_bytes():
        parser.error(f"{args.script} is none of the scripts that train")
    if one_file.MADE.encode() in args.script.read_bytes():
        parser.error(f"{args.script} was made by tools/one_file.py: give the script it was made of")
    if not args.script.stem.isidentifier() or args.script.stem in sys.modules:
        parser.error(f"{args.script}: its name is no module's, or another's: rename it")
    sys.argv = [str(args.script), *others, *args.options]  # as the script itself would have them
    sys.path.insert(0, str(args.script.parent.resolve()))
    script = importlib.import_module(args.script.stem)
    launch = script.launch

    def launch_profiled(train_rank, options):
        if options.evaluate:
            raise script.errors.BadInput("--evaluate trains no steps")
        launch(functools.partial(profile_rank, args.first, train_rank), options)

    script.launch = launch_profiled
    script.main()


if __name__ == "__main__":
    main()
