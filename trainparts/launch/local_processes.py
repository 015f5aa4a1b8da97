"""Processes of one node: started here, or found as torchrun, srun or another launcher started them.

Use it to start a script once for each GPU without a launcher, and under any launcher to learn which
of the ranks this process is. Launchers say it by environment variables, of which torchrun's are
used.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping
from types import FrameType

import torch

from trainparts import endings, errors

# What is likely where a signal has ended a rank.
CRASHES = {
    "SIGKILL": "out of memory?",
    "SIGBUS": "was a file cut short, or is /dev/shm full?",
}


def started_several() -> bool:
    """Returns whether a launcher has started several processes, of which this is one."""
    sizes = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE", "SLURM_STEP_NUM_TASKS")
    return any((os.environ.get(name) or "1") != "1" for name in sizes)


def may_restart() -> bool:
    """Returns whether a launcher restarts the ranks that it has started, or has done so."""
    counts = map(os.environ.get, ("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT"))
    return bool({*counts} - {None, "0"})


def follow_torchrun(local_rank: int | None = None) -> None:
    """Does what follow_launcher() does, for scripts that only torchrun may start as several
    processes. Raises BadInput if another launcher has started several."""
    if "RANK" not in os.environ and started_several():
        raise errors.BadInput("this launcher sets no RANK: start this script with torchrun")
    follow_launcher(local_rank)


def follow_launcher(local_rank: int | None = None) -> bool:
    """Makes this process end when its launcher ends. Returns whether the launcher is
    start_this_node(), not torchrun. `local_rank` is the value of the option that old launchers
    pass."""
    launched = os.environ.get("TORCHELASTIC_RUN_ID")
    if launched:
        # A killed launcher would leave its processes behind.
        endings.end_with_parent(signal.SIGTERM)
    own = (launched or "").startswith("process ")
    # If it was killed before the line above, no signal comes.
    if own and launched != f"process {os.getppid()}":
        raise errors.Fault("the launcher was killed")
    if local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(local_rank))
    return own


def own_numbers() -> list[int]:
    """Returns (rank, ranks, local rank, local ranks) of this process from a launcher's variables;
    without them it is alone. Raises BadInput if they are no numbers that fit together."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    values = {name: os.environ.get(name, alone[name]) for name in alone}
    numbers = [int(value) for value in values.values() if value.isdecimal()]
    if len(numbers) < 4 or numbers[0] >= numbers[1]:
        raise errors.BadInput(f"a launcher sets these to numbers, RANK below WORLD_SIZE: {values}")
    return numbers


def follow_slurm(env: MutableMapping[str, str], tasks: str, no_accel: bool) -> None:
    """Sets torchrun's variables from those of srun, which started one task per rank. Raises
    BadInput if they are not as srun sets them."""
    try:
        env.update(variables_of_slurm(env, tasks, no_accel))
    except (KeyError, ValueError, TypeError) as error:
        why = f"{type(error).__name__}: {errors.first_line(error)}"
        raise errors.BadInput(
            f"SLURM_STEP_NUM_TASKS is {tasks}, but srun's other variables are not as it sets them "
            f"({why}); without srun, unset SLURM_STEP_NUM_TASKS"
        ) from None


def variables_of_slurm(env: Mapping[str, str], tasks: str, no_accel: bool) -> dict[str, str]:
    """Returns torchrun's variables, which `env` may have already, from srun's in it."""
    nodes = env.get("SLURM_STEP_NODELIST", "127.0.0.1")
    first = re.sub(r"\[(\d+)[^]]*\]", r"\1", nodes).split(",")[0]  # gpu[07-09,12]-ib -> gpu07-ib
    port = str(20000 + int(env.get("SLURM_JOB_ID", 0)) % 10000)
    # Where Slurm has bound one GPU to each task, it is number 0 of 1 for its task.
    alone = torch.accelerator.device_count() == 1 and not no_accel
    tasks_here = int(re.split(r"\D", env["SLURM_STEP_TASKS_PER_NODE"])[0])
    return {
        "MASTER_ADDR": env.get("MASTER_ADDR", first),
        "MASTER_PORT": env.get("MASTER_PORT", port),
        "RANK": env["SLURM_PROCID"],
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": "0" if alone else env["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": "1" if alone else str(tasks_here),
    }


def start_this_node(
    processes: int, found: int, nodes: int = 1, node: int = 0, url: str | None = None
) -> int:
    """Runs this command again, with torchrun's variables, once for each of the `processes` of this
    node, on which so many GPUs were `found`. Returns the exit status of the first process that
    fails, or of one that fails while signals end the others. Node number `node` of `nodes` meets
    the others at `url`, tcp://HOST:PORT of node 0. Raises BadInput if these do not fit together,
    and Fault if a rank crashed."""
    if node >= nodes or (nodes > 1 and not url):
        what = "nodes count from 0, and all need node 0's --dist-url"
        raise errors.BadInput(f"--rank {node} of --world-size {nodes}: {what}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = url or f"tcp://127.0.0.1:{free.getsockname()[1]}"
    address = re.fullmatch(r"tcp://\[?([^][/]+)\]?:(\d+)/?", url)
    if not address or not 0 < int(address[2]) < 65536:
        raise errors.BadInput(f"--dist-url {url} is not of the form tcp://HOST:PORT")
    if processes > found > 0:
        raise errors.BadInput(
            f"--nproc-per-node {processes}: this node has {found} GPUs, or --no-accel"
        )
    env = {
        "MASTER_ADDR": address[1],
        "MASTER_PORT": address[2],
        "WORLD_SIZE": str(nodes * processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "TORCHELASTIC_RUN_ID": f"process {os.getpid()}",  # by which follow_launcher() knows it
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # no stack trace when a connection closes
    }
    ranks = []  # processes
    came = []  # (time, number) of signals

    def pass_on(signum: int, frame: FrameType | None) -> None:
        """Asks the ranks to save and end; an alarm or a second Ctrl-C kills them."""
        came.append((time.monotonic(), signum))
        # Within a second of the first signal, it is that Ctrl-C again, sent by a launcher too.
        again = signum == signal.SIGINT and came[-1][0] > came[0][0] + 1
        for process in ranks:
            process.send_signal(signal.SIGKILL if again or signum == signal.SIGALRM else signum)
        if again:
            os._exit(130)

    endings.handle_signals(pass_on)
    signal.signal(signal.SIGALRM, pass_on)
    for local_rank in range(processes):
        env |= {"LOCAL_RANK": str(local_rank), "RANK": str(node * processes + local_rank)}
        before = len(came)
        ranks.append(subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=os.environ | env))
        if came[before:]:  # while it was started
            ranks[-1].send_signal(came[-1][1])
    # Until all have ended, or one has failed.
    while None in (statuses := [process.poll() for process in ranks]) and not any(statuses):
        time.sleep(0.1)
    failed = [*filter(None, statuses)]
    pass_on(signal.SIGTERM, None)  # to the others
    signal.alarm(30)  # after which pass_on() kills those that neither save nor print why
    statuses = failed + [process.wait() for process in ranks]
    signal.alarm(0)
    crashed = [status for status in failed if status < 0 and -status not in endings.SIGNALS]
    if crashed:
        name = signal.Signals(-crashed[0]).name
        why = CRASHES.get(name, "a library crashed; PYTHONFAULTHANDLER=1 has Python print where")
        raise errors.Fault(f"a rank was ended by {name}: {why}")
    # A mistake of the user (2) says more than that a rank is gone (1); both more than a signal.
    status = next((known for known in (2, 1) if known in statuses), statuses[0])
    return status if status >= 0 else 128 - status
