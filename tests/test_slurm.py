"""slurm/train.sbatch: checked, and run by a Slurm of its own, of two nodes on this machine."""

import importlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import torch
from conftest import BY_TORCHRUN, ROOT, SCRIPTS, environment, needs_horovod, run
from hosts import Host, skip_without
from torch.distributed.run import get_args_parser

FILE = ROOT / "slurm" / "train.sbatch"
ALONE = "imagenet_nd.py", "imagenet_dp.py"  # on one node, in one process
SRUN, TORCHRUN, HOROVODRUN = "srun", "torchrun", "horovodrun"
LAUNCHER_OF = dict.fromkeys(SCRIPTS, SRUN) | {"imagenet_horovod.py": HOROVODRUN}
LAUNCHER_OF |= dict.fromkeys(["imagenet_ddp_apex.py", *BY_TORCHRUN], TORCHRUN)
ONE_EACH = "imagenet_ddp.py", "imagenet_fsdp.py", "imagenet_horovod.py"  # of each launcher


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck():
    run(["shellcheck", FILE], ROOT)


def batch(script, folder, srun, gpus=None, more=(), size=None, **env):
    """Runs the file as Slurm would, its copy in the spool, on so many nodes with so many tasks
    each, with a soft limit of 256 open files and an srun that does what is given; returns its exit
    status, and writes what it prints into `folder`/output."""
    nodes, tasks = size or ("11" if script in ALONE else "24")
    sets = {"JOB_ID": "123456", "JOB_NODELIST": "node[1-2]", "JOB_NUM_NODES": nodes}
    sets |= {"NTASKS_PER_NODE": tasks, "CPUS_PER_TASK": "3"}
    sets |= {"GPUS_ON_NODE": gpus} if gpus else {}
    scontrol = "[ $1 = requeue ] && touch $1-$2; printf 'node1\\nnode2\\n'"
    for name, does in {"scontrol": scontrol, "python": "exit", "srun": srun}.items():
        (folder / name).write_text(f"#!/bin/bash\n{does}\n")
        (folder / name).chmod(0o755)
    env |= {f"SLURM_{name}": value for name, value in sets.items()}
    env["PATH"] = f"{folder}:{os.environ['PATH']}"
    (folder / script).touch()
    (folder / "spool").mkdir()
    spooled = shutil.copy(FILE, folder / "spool" / "slurm_script")
    limited = ["bash", "-c", 'ulimit -Sn 256; exec bash -u "$@"', "batch"]
    words = [*limited, spooled, script, "-a", "resnet50", "--epochs", "3", "a folder", *more]
    with open(folder / "output", "w") as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        return subprocess.run(words, cwd=folder, env=environment(**env), **streams).returncode


@pytest.mark.parametrize("gpus", [None, "2"])
@pytest.mark.parametrize(
    ("script", "named"),
    [
        *[(script, {}) for script in SCRIPTS],
        *[(script, {"LAUNCHER": SRUN}) for script in ("mine.py", "imagenet_horovod.py")],
        *[(script, {"LAUNCHER": TORCHRUN}) for script in ("imagenet_ddp.py", "imagenet_nd.py")],
        ("mine.py", {"LAUNCHER": HOROVODRUN}),
        ("mine.py", {}),
    ],
)
def test_options_parse(script, named, gpus, tmp_path):
    """srun is called with words that it, the launcher and the script understand. LAUNCHER counts
    where the script's name leaves a choice."""
    free = script in ("mine.py", "imagenet_ddp.py")
    launcher = LAUNCHER_OF.get(script, TORCHRUN)
    launcher = named.get("LAUNCHER", launcher) if free else launcher
    does = "printf '%s\\0' \"$@\" > words; env -0 > env; ulimit -Sn > open_files"
    assert batch(script, tmp_path, does, gpus, **named) == 0
    assert "train.sbatch: " not in (tmp_path / "output").read_text()
    most = subprocess.check_output(["bash", "-c", "ulimit -Hn"], text=True)
    assert (tmp_path / "open_files").read_text() == most
    words = (tmp_path / "words").read_text().split("\0")[:-1]
    env = dict(each.split("=", 1) for each in (tmp_path / "env").read_text().split("\0") if each)
    first = words.index(script)
    module = importlib.import_module(script.removesuffix(".py").replace("mine", "imagenet_nd"))
    args = module.parse_args(words[first + 1 :])
    read = args.resume, args.log_dir, args.epochs, args.dir
    assert read == ("auto", "runs", 3, "a folder")
    ranks = int(gpus or 4)
    tasks = 1 if launcher == TORCHRUN or script in ALONE else ranks
    nodes = 1 if script in ALONE else 2
    assert {f"--ntasks={tasks * nodes}", f"--ntasks-per-node={tasks}"} < {*words}
    assert f"--cpus-per-task={3 * ranks if launcher == TORCHRUN else 3}" in words
    if launcher == TORCHRUN:
        started = get_args_parser().parse_args(words[words.index("torchrun") + 1 :])
        assert (started.nnodes, started.nproc_per_node) == ("2", str(ranks))
        assert (started.master_addr, started.master_port) == ("node1", 23456)
        assert started.training_script == script
    elif launcher == SRUN:
        assert words[first - 1] == "python"
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("node1", "23456")
    else:
        server = env["HOROVOD_GLOO_RENDEZVOUS_ADDR"], env["HOROVOD_GLOO_RENDEZVOUS_PORT"]
        assert server == ("node1", "23456")
        sizes = [env[f"HOROVOD_{name}SIZE"] for name in ("", "LOCAL_", "CROSS_")]
        assert sizes == [str(2 * ranks), str(ranks), "2"]


GIVEN = "--resume auto and --log-dir are given here: RUNS=FOLDER sbatch ..."
ONE = "{} is one process: sbatch --nodes=1 --ntasks-per-node=1 ..."


@pytest.mark.parametrize(
    ("script", "given", "line"),
    [
        *[(script, {"size": "14"}, ONE) for script in (*ALONE, "text_dp.py")],
        ("text_nd.py", {"size": "21"}, ONE),
        ("mine.py", {"LAUNCHER": "mpirun"}, "LAUNCHER=mpirun: it is srun, torchrun or horovodrun"),
        # A checkpoint that is typed would be taken again whenever the job is queued again.
        ("imagenet_ddp.py", {"more": ["--resume=x.pt"]}, GIVEN),
        ("imagenet_fsdp.py", {"more": ["--log-dir", "other"]}, GIVEN),
    ],
)
def test_refused(script, given, line, tmp_path):
    assert batch(script, tmp_path, "touch called", **given) == 2
    assert (tmp_path / "output").read_text() == f"train.sbatch: error: {line.format(script)}\n"
    assert not (tmp_path / "called").exists() and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [["-a", "resnet50"], ["imagenet_ddp.py"], []])
def test_a_script_that_is_not_there_is_one_line(words, tmp_path):
    said = run(["bash", FILE, *words], tmp_path, status=2)
    line = f"no script '{(words or [''])[0]}' in {tmp_path}: it comes first, as imagenet_ddp.py"
    assert said == f"train.sbatch: error: {line}\n"
    assert not [*tmp_path.iterdir()]


TEXTS = [FILE, ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
LINE = r"^[# ]*(?:LAUNCHER=(\w+) )?sbatch (.*)slurm/train.sbatch (\w+\.py) ([^#\n]+)"
LINES = sorted({each for path in TEXTS for each in re.findall(LINE, path.read_text(), re.M)})


@pytest.mark.parametrize("line", LINES)
def test_lines_of_file_and_documents(line, tmp_path):
    launcher, options, script, arguments = line
    sizes = dict(re.findall(r"--(nodes|ntasks-per-node)=(\d+)", options))
    size = sizes.get("nodes", "1") + sizes.get("ntasks-per-node", "4")
    assert batch(script, tmp_path, "touch called", size=size, LAUNCHER=launcher) == 0
    assert (tmp_path / "called").exists()
    importlib.import_module(script.removesuffix(".py")).parse_args(arguments.split())


def test_there_are_lines():
    assert {LAUNCHER_OF[script] for _, _, script, _ in LINES} == {*LAUNCHER_OF.values()}


def test_an_option_file_does_not_take_the_place_of_auto(tmp_path, monkeypatch):
    """With a checkpoint of its own, the job would begin there again whenever it is queued again."""
    (tmp_path / "one.txt").write_text("--lr 0.2  # not --resume\n")
    (tmp_path / "two.txt").write_text("--resume x.pt\n--log-dir elsewhere\n")
    does, script = "printf '%s\\0' \"$@\" > words", "imagenet_fsdp.py"
    assert batch(script, tmp_path, does, more=["@one.txt", "@two.txt"]) == 0
    said = (tmp_path / "output").read_text()
    assert said == ("train.sbatch: @two.txt: its --resume or --log-dir is ignored, as given here\n")
    words = (tmp_path / "words").read_text().split("\0")[:-1]
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(script.removesuffix(".py"))
    args = module.parse_args(words[words.index(script) + 1 :])
    assert (args.resume, args.log_dir, args.lr) == ("auto", "runs", 0.2)


@pytest.mark.parametrize(
    ("why", "status", "requeued"),
    [
        ("SIGUSR1", 143, True),
        ("SIGUSR1", 1, True),  # torchrun's own status
        ("SIGTERM", 143, False),  # of scancel
        ("SIGUSR1", 0, False),  # another run's marker
        ("SIGUSR1", 2, False),  # the same, and a mistake of the user
        (None, 1, False),  # an error; a marker is there from before
    ],
)
@pytest.mark.parametrize("script", ONE_EACH)
def test_queued_again(script, why, status, requeued, tmp_path):
    for name in "before", "now":
        (tmp_path / "runs" / name).mkdir(parents=True)
    marker = tmp_path / "runs" / "before" / "PREEMPTED"
    marker.write_text('{"why": "SIGUSR1", "epoch": 0, "step": 3}\n')
    os.utime(marker, (1, 1))
    write = f"""echo '{{"why": "{why}", "epoch": 0, "step": 3}}' > runs/now/PREEMPTED; """
    does = f"sleep 0.1; {write if why else ''}exit {status}"
    assert batch(script, tmp_path, does) == status
    assert (tmp_path / "requeue-123456").exists() == requeued
    assert not [*(tmp_path / "runs").glob(".*")]


# ------------------------------------------------------------------------------------ a real Slurm

# Two slurmd are two nodes. They have GPUs for Slurm to count; the scripts do not use them.
# pgid signals the tasks alone, not what torchrun has started for them, as cgroup does, which most
# sites have. cred_expire is what a job that is queued again waits for, two minutes unless set.
CONF = """
ClusterName=test
SlurmctldHost=head
SlurmUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=node1 NodeHostname=head Port=7001 CPUs=16 Gres=gpu:2
NodeName=node2 NodeHostname=head Port=7002 CPUs=16 Gres=gpu:2
PartitionName=all Nodes=node[1-2] Default=YES State=UP
"""
GPUS = "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n"
HOSTS = "127.0.0.1 localhost\n10.0.0.1 node1\n10.0.0.2 node2\n10.0.0.3 head\n"
MUNGED = "munged --foreground --force --key-file={0}.key --socket={0}.socket --pid-file={0}.pid "
MUNGED += "--log-file={0}.log --seed-file={0}.seed"


class Slurm(Host):
    """A cluster of two nodes, which are one host: all addresses lie on its loopback interface."""

    def __init__(self, folder):
        (folder / "state").mkdir()
        (folder / "hosts").write_text(HOSTS)
        (folder / "slurm.conf").write_text(CONF.format(folder=folder))
        (folder / "gres.conf").write_text(GPUS)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        super().__init__("head", folder)
        for number in 1, 2, 3:
            self.command(f"ip address add 10.0.0.{number} dev lo")
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons = [self.start(MUNGED.format(folder / "munge").split())]
        self.wait("munge.socket", (folder / "munge.socket").exists, 60)
        for words in "slurmctld -D", "slurmd -D -N node1", "slurmd -D -N node2":
            self.daemons.append(self.start(words.split(), **self.env))
        self.wait("two idle nodes", lambda: self("sinfo", "-h", "-o", "%D %T") == "2 idle", 60)

    def __call__(self, *words, cwd="/"):
        """Returns what a command inside prints, whatever its status."""
        return run([*self.inside(cwd), *words], cwd, None, self.env).strip()

    def wait(self, what, there, seconds):
        until = time.monotonic() + seconds
        while not there():
            logs = "\n".join(daemon.output()[-3000:] for daemon in self.daemons)
            assert time.monotonic() < until, f"no {what}: {logs}"
            time.sleep(1)

    def submit(self, script, cwd, options, arguments):
        """Returns the number of the job that runs `script`, copied into `cwd`."""
        shutil.copy(ROOT / script, cwd)
        said = self("sbatch", *options, FILE, script, *arguments, cwd=cwd)
        assert re.fullmatch(r"Submitted batch job \d+", said), said
        return said.split()[-1]

    def job(self, number):
        """Returns what Slurm has to say of a job."""
        said = self("scontrol", "--oneliner", "show", "job", number)
        return dict(each.split("=", 1) for each in said.split() if "=" in each)

    def ended(self, number):
        # Between PENDING and these a job has states that last a moment, as SIGNALING.
        final = "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"
        return self.job(number)["JobState"] in final


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    programs = "munged", "slurmctld", "slurmd", "sbatch", "srun"
    skip_without(tmp_path_factory.mktemp("trial"), *programs)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        cluster = Slurm(Path(folder))
        yield cluster
        cluster.remove()


MARKS = {"imagenet_horovod.py": needs_horovod}
SMALL = ["-a", "vit_b_16", "--image-size", 32, "--val-resize", 32, "--no-accel", "-j", 1, "-b", 8]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "script", [pytest.param(each, marks=MARKS.get(each, ())) for each in SCRIPTS]
)
def test_job_goes_on_after_its_time_limit(script, slurm, demo, tmp_path):
    """Signalled before a limit of three minutes, it saves, is queued again, and ends with the same
    weights, to the bit, as a job that had time enough."""
    size = ["--gpus-per-node=1", "--cpus-per-task=2"]
    size += ["--ntasks-per-node=1"] if script in ALONE else ["--nodes=2"]
    epochs, interrupted = 6, False
    while not interrupted:  # until it takes longer than the limit, whatever the machine
        epochs *= 2
        jobs, folders = {}, {way: tmp_path / f"{way}-{epochs}" for way in ("short", "long")}
        for way, options in {"short": ["--time=3", "--signal=USR1@50"], "long": []}.items():
            folders[way].mkdir()
            arguments = [*SMALL, "--epochs", epochs, demo]
            jobs[way] = slurm.submit(script, folders[way], [*size, *options], arguments)
        for number in jobs.values():
            slurm.wait(f"end of job {number}", lambda number=number: slurm.ended(number), 1200)
        outputs = {way: [*folders[way].glob("*.log")][0].read_text() for way in jobs}
        for way, number in jobs.items():
            assert slurm.job(number)["JobState"] == "COMPLETED", outputs[way][-5000:]
        interrupted = int(slurm.job(jobs["short"])["Restarts"])
    assert "stopped by SIGUSR1" in outputs["short"]
    assert "Resuming " in outputs["short"]
    assert "stopped by" not in outputs["long"]
    saved = [next(folders[way].glob("runs/*/checkpoint.pt")) for way in jobs]
    assert not (saved[0].parent / "PREEMPTED").exists()
    one, two = (torch.load(path, weights_only=True) for path in saved)
    assert one["epoch"] == two["epoch"] == epochs
    for part in "state_dict", "optimizer", "scaler":
        torch.testing.assert_close(one[part], two[part], rtol=0, atol=0)


@pytest.mark.slow
def test_cancelled_job_does_not_come_back(slurm, demo, tmp_path):
    """scancel sends SIGTERM, on which the run saves too, but is not to be queued again."""
    size = ["--gpus-per-node=0", "--ntasks-per-node=2", "--cpus-per-task=1"]
    number = slurm.submit("imagenet_ddp.py", tmp_path, size, [*SMALL, "--epochs", 1000, demo])
    output = tmp_path / f"train-{number}.log"
    slurm.wait("training", lambda: output.exists() and "  step " in output.read_text(), 120)
    slurm("scancel", number)
    slurm.wait("PREEMPTED", lambda: [*tmp_path.glob("runs/*/PREEMPTED")], 60)
    slurm.wait("end", lambda: slurm.job(number)["JobState"] != "COMPLETING", 60)
    assert slurm.job(number)["JobState"] == "CANCELLED", output.read_text()[-5000:]
