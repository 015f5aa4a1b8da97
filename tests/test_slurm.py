"""slurm/train.sbatch: checked, and run by a Slurm of its own, of two nodes on this machine."""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import torch
from conftest import BY_TORCHRUN, ROOT, SCRIPTS, copy_script, environment, needs_horovod, run
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


def batch(script, folder, srun, /, gpus=None, more=(), size=None, job="123456", **env):
    """Runs the file as Slurm would, its copy in the spool, on so many nodes with so many tasks
    each, with a soft limit of 256 open files and an srun that does what is given; returns its exit
    status, and writes what it prints into `folder`/output."""
    nodes, tasks = size or ("11" if script in ALONE else "24")
    sets = {"JOB_ID": job, "JOB_NODELIST": "node[1-2]", "JOB_NUM_NODES": nodes}
    sets |= {"NTASKS_PER_NODE": tasks, "CPUS_PER_TASK": "3"}
    sets |= {"GPUS_ON_NODE": gpus} if gpus else {}
    scontrol = "[ $1 = requeue ] && touch $1-$2; printf 'node1\\nnode2\\n'"
    for name, does in {"scontrol": scontrol, "python": "exit", "srun": srun}.items():
        (folder / name).write_text(f"#!/bin/bash\n{does}\n")
        (folder / name).chmod(0o755)
    env |= {f"SLURM_{name}": value for name, value in sets.items()}
    env["PATH"] = f"{folder}:{os.environ['PATH']}"
    (folder / script).touch()
    (folder / "spool").mkdir(exist_ok=True)
    spooled = shutil.copy(FILE, folder / "spool" / "slurm_script")
    limited = ["bash", "-c", 'ulimit -Sn 256; exec bash -u "$@"', "batch"]
    words = [*limited, spooled, script, "-a", "resnet50", "--epochs", "3", "a folder", *more]
    with open(folder / "output", "w") as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        return subprocess.run(words, cwd=folder, env=environment(**env), **streams).returncode


WORDS = "printf '%s\\0' \"$@\" > words; "  # what srun does for called()


def called(script, folder):
    """Returns (the words that srun was called with, the options that the script reads in them)."""
    words = (folder / "words").read_text().split("\0")[:-1]
    module = importlib.import_module(script.removesuffix(".py").replace("mine", "imagenet_nd"))
    return words, module.parse_args(words[words.index(script) + 1 :])


FIRST_LINE = (
    "train.sbatch: the run is in runs/123456; to resume it in another job, add to the command: "
    "--output-dir runs/123456\n"
)


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
    does = WORDS + "env -0 > env; ulimit -Sn > open_files"
    assert batch(script, tmp_path, does, gpus, **named) == 0
    printed = (tmp_path / "output").read_text()
    assert printed.startswith(FIRST_LINE) and printed.count("train.sbatch: ") == 1
    most = subprocess.check_output(["bash", "-c", "ulimit -Hn"], text=True)
    assert (tmp_path / "open_files").read_text() == most
    words, args = called(script, tmp_path)
    env = dict(each.split("=", 1) for each in (tmp_path / "env").read_text().split("\0") if each)
    first = words.index(script)
    read = args.resume, args.output_dir, args.epochs, args.dir
    assert read == (None, "runs/123456", 3, "a folder")
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


ONE = "{} is one process: sbatch --nodes=1 --ntasks-per-node=1 ..."
FILES = {"@one": "--output-dir elsewhere\n", "@two": "--lr 0.2\n--seed 1 '--output-dir=a b'\n"}
FILED = "{}: type its --output-dir behind {{}}, where this file can read it"


@pytest.mark.parametrize(
    ("script", "given", "line"),
    [
        *[(script, {"size": "14"}, ONE) for script in (*ALONE, "text_dp.py")],
        ("text_nd.py", {"size": "21"}, ONE),
        ("mine.py", {"LAUNCHER": "mpirun"}, "LAUNCHER=mpirun: it is srun, torchrun or horovodrun"),
        # The file could not know in which folder to look for the marker.
        *[("imagenet_ddp.py", {"more": ["@no", each]}, FILED.format(each)) for each in FILES],
    ],
)
def test_refused(script, given, line, tmp_path):
    for name, content in FILES.items():
        (tmp_path / name[1:]).write_text(content)
    (tmp_path / "no").write_text("--lr 0.2  # not --output-dir\n")
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


MARKER = '{{"why": "{}", "epoch": 0, "step": 3}}\n'
ONES = [
    (["--output-dir", "my run"], "my run"),
    (["--output-dir=my run"], "my run"),
    (["--output-dir=other", "--output-dir", "my run"], "my run"),  # the last one counts
    (["--output-dir", "other", "--seed=1", "--output-dir=my run"], "my run"),
    (["--resume", "other/checkpoint.pt", "--output-dir", "my run"], "my run"),
    (["--resume=other"], "runs/123456"),
    (["@no"], "runs/123456"),
    (["@in_another"], "runs/123456"),  # which the file does not read: what it adds counts
]


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize(("more", "expected"), ONES)
def test_folder(more, expected, marked, tmp_path, monkeypatch):
    """The script writes where the file looks for the marker, which counts there alone."""
    (tmp_path / "no").write_text("--lr 0.2  # not --output-dir\n")
    (tmp_path / "in_another").write_text("@one\n")
    (tmp_path / "one").write_text(FILES["@one"])
    folders = "my run", "other", "runs/123456", "runs/123455", "runs"
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / "marker").write_text(MARKER.format("SIGUSR1"))
    places = [f'"{folder}"' for folder in folders if (folder == expected) == marked]
    does = (
        WORDS + f'for place in {" ".join(places)}; do cp marker "$place/PREEMPTED"; done; exit 143'
    )
    # A variable that has the name of one in the file changes nothing.
    env = {"folder": "other", "previous": "--output-dir"}
    assert batch("imagenet_ddp.py", tmp_path, does, more=more, **env) == 143
    monkeypatch.chdir(tmp_path)
    assert called("imagenet_ddp.py", tmp_path)[1].output_dir == expected
    assert (tmp_path / "requeue-123456").exists() == marked
    printed = (tmp_path / "output").read_text()
    assert printed.startswith(FIRST_LINE if expected == "runs/123456" else "")
    assert printed.count("train.sbatch: ") == (expected == "runs/123456")


def test_what_the_first_line_says_to_type(tmp_path):
    """In another job it is the same folder; queued again, the job has the same without it."""
    script = "imagenet_fsdp.py"
    for _ in range(2):
        assert batch(script, tmp_path, WORDS) == 0
        assert called(script, tmp_path)[1].output_dir == "runs/123456"
    words = (tmp_path / "output").read_text().splitlines()[0].split("add to the command: ")[1]
    assert batch(script, tmp_path, WORDS, more=shlex.split(words), job="123457") == 0
    assert called(script, tmp_path)[1].output_dir == "runs/123456"
    assert (tmp_path / "output").read_text() == ""
    assert not (tmp_path / "runs").exists()  # the script makes it


@pytest.mark.parametrize("evaluate", ["-e", "--evaluate"])
def test_evaluation_gets_no_folder(evaluate, tmp_path):
    """It would be looked for a checkpoint."""
    script = "imagenet_ddp.py"
    assert batch(script, tmp_path, WORDS, more=[evaluate, "--pretrained"]) == 0
    assert called(script, tmp_path)[1].output_dir is None
    assert batch(script, tmp_path, WORDS, more=["--output-dir", "my run", evaluate]) == 0
    assert called(script, tmp_path)[1].output_dir == "my run"
    assert (tmp_path / "output").read_text() == ""


@pytest.mark.parametrize("more", [["--output-dir="], ["--output-dir"]])
def test_refused_by_the_script(more, tmp_path):
    """What the file adds takes the place of nothing that was typed."""
    assert batch("imagenet_ddp.py", tmp_path, WORDS, more=more) == 0
    with pytest.raises(SystemExit) as ended:
        called("imagenet_ddp.py", tmp_path)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("why", "status", "requeued"),
    [
        *[("SIGUSR1", status, True) for status in (1, 137, 139, 143)],  # 1 is torchrun's own
        *[("a signal to another rank", status, True) for status in (1, 137, 139, 143)],
        *[("SIGTERM", status, False) for status in (1, 137, 139, 143)],  # of scancel
        ("SIGINT", 143, False),
        *[("SIGUSR1", status, False) for status in (0, 2)],  # done, or a mistake of the user
        *[(None, status, False) for status in (1, 137, 139, 143)],  # the marker is from before
    ],
)
@pytest.mark.parametrize("script", ONE_EACH)
def test_queued_again(script, why, status, requeued, tmp_path):
    marker = tmp_path / "runs" / "123456" / "PREEMPTED"
    marker.parent.mkdir(parents=True)
    marker.write_text(MARKER.format("SIGUSR1"))
    (tmp_path / "new").write_text(MARKER.format(why))
    write = "cp new runs/123456/PREEMPTED; "
    assert batch(script, tmp_path, f"{write if why else ''}exit {status}") == status
    assert (tmp_path / "requeue-123456").exists() == requeued
    assert [*(tmp_path / "runs").glob("**/*")] == [marker.parent, marker]


@pytest.mark.parametrize(
    ("does", "requeued"),
    [
        ("cp PREEMPTED new; touch -d @1 new; cat new > PREEMPTED; touch -d @1 PREEMPTED", True),
        ("cp -p PREEMPTED new; mv new PREEMPTED", True),  # in the same tick of a clock
        ("rm PREEMPTED", False),
        (":", False),
    ],
)
def test_no_clock_says_which_start_has_left_a_marker(does, requeued, tmp_path):
    """Those of a file server and of a node may differ."""
    marker = tmp_path / "runs" / "123456" / "PREEMPTED"
    marker.parent.mkdir(parents=True)
    marker.write_text(MARKER.format("SIGUSR1"))
    os.utime(marker, (9e9, 9e9))
    assert batch("imagenet_ddp.py", tmp_path, f"cd {marker.parent}; {does}; exit 143") == 143
    assert (tmp_path / "requeue-123456").exists() == requeued


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
        copy_script(script, cwd)
        said = self("sbatch", *options, FILE, script, *arguments, cwd=cwd)
        assert re.fullmatch(r"Submitted batch job \d+", said), said
        return said.split()[-1]

    def job(self, number):
        """Returns what Slurm has to say of a job."""
        said = self("scontrol", "--oneliner", "show", "job", number)
        return dict(each.split("=", 1) for each in said.split() if "=" in each)

    def log(self, number, cwd):
        """Returns what a job has printed so far."""
        path = cwd / f"train-{number}.log"
        return path.read_text() if path.exists() else ""

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
        interrupted = int(slurm.job(jobs["short"])["Restarts"])
        if not interrupted and "all epochs are done" in outputs["short"]:
            continue  # where the signal meets the end of a run, the launcher's status is 1
        for way, number in jobs.items():
            assert slurm.job(number)["JobState"] == "COMPLETED", outputs[way][-5000:]
    assert "stopped by SIGUSR1" in outputs["short"]
    assert "Resuming " in outputs["short"]
    assert "stopped by" not in outputs["long"]
    one, two = (folders[way] / "runs" / number for way, number in jobs.items())
    assert check_equal(one, two) == epochs


def check_equal(one, two):
    """Checks that two runs have ended equal, to the bit; returns their epochs."""
    assert not (one / "PREEMPTED").exists()
    one, two = (torch.load(run / "checkpoint.pt", weights_only=True) for run in (one, two))
    assert one["epoch"] == two["epoch"]
    for part in "state_dict", "optimizer", "scaler":
        torch.testing.assert_close(one[part], two[part], rtol=0, atol=0)
    return one["epoch"]


# Two ranks, for so long that a signal meets them at work.
PAIR = ["--gpus-per-node=0", "--ntasks-per-node=2", "--cpus-per-task=1"]
EPOCHS = 10
LONG = [*SMALL, "--epochs", EPOCHS, "--keep-every", 1]


@pytest.fixture(scope="module")
def whole(slurm, demo, tmp_path_factory):
    """Returns the folder of a run that nothing has interrupted."""
    cwd = tmp_path_factory.mktemp("whole")
    number = slurm.submit("imagenet_ddp.py", cwd, PAIR, [*LONG, demo])
    slurm.wait("end", lambda: slurm.ended(number), 600)
    assert slurm.job(number)["JobState"] == "COMPLETED", slurm.log(number, cwd)[-5000:]
    return cwd / "runs" / number


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_cancelled_job_is_resumed_by_another(slurm, whole, demo, tmp_path):
    """scancel sends SIGTERM, on which the run saves too, but is not queued again. Submitted with
    what the log's first line says to type, it ends as if it had not been cancelled."""
    number = slurm.submit("imagenet_ddp.py", tmp_path, PAIR, [*LONG, demo])
    slurm.wait("training", lambda: "  step " in slurm.log(number, tmp_path), 300)
    slurm("scancel", number)
    slurm.wait("PREEMPTED", (tmp_path / "runs" / number / "PREEMPTED").exists, 60)
    slurm.wait("end", lambda: slurm.job(number)["JobState"] != "COMPLETING", 60)
    log = slurm.log(number, tmp_path)
    assert slurm.job(number)["JobState"] == "CANCELLED", log[-5000:]
    words = log.splitlines()[0].split("add to the command: ")[1]
    again = slurm.submit("imagenet_ddp.py", tmp_path, PAIR, [*LONG, demo, *shlex.split(words)])
    slurm.wait("end", lambda: slurm.ended(again), 600)
    assert f"Resuming runs/{number}/checkpoint.pt" in slurm.log(again, tmp_path)
    assert check_equal(tmp_path / "runs" / number, whole) == EPOCHS


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_chain(slurm, whole, demo, tmp_path):
    """A job that may not be queued again, and one that waits for it, in the same folder. It is
    signalled as before a time limit: its tasks are, and not the batch file."""
    arguments = [*LONG, demo, "--output-dir", "my run"]
    first = slurm.submit("imagenet_ddp.py", tmp_path, [*PAIR, "--no-requeue"], arguments)
    wait = f"--dependency=afterany:{first}"
    second = slurm.submit("imagenet_ddp.py", tmp_path, [*PAIR, wait], arguments)
    slurm.wait("training", lambda: "  step " in slurm.log(first, tmp_path), 300)
    assert slurm.job(second)["JobState"] == "PENDING"
    slurm("scancel", "--signal=USR1", first)
    for number, state in {first: "FAILED", second: "COMPLETED"}.items():
        slurm.wait("end", lambda number=number: slurm.ended(number), 600)
        assert slurm.job(number)["JobState"] == state, slurm.log(number, tmp_path)[-5000:]
    assert "stopped by SIGUSR1" in slurm.log(first, tmp_path)
    assert "Resuming my run/checkpoint.pt" in slurm.log(second, tmp_path)
    assert check_equal(tmp_path / "my run", whole) == EPOCHS


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_job_that_begins_from_a_file(slurm, whole, demo, tmp_path):
    """Queued again, it goes on from its own checkpoint, not from the file's again."""
    begin = [*LONG, "--resume", whole / "epoch-1.pt", demo]
    number = slurm.submit("imagenet_ddp.py", tmp_path, PAIR, begin)
    slurm.wait("training", lambda: f"\n2/{EPOCHS}  step " in slurm.log(number, tmp_path), 300)
    slurm("scancel", "--signal=USR1", number)
    slurm.wait("end", lambda: slurm.ended(number), 600)
    log = slurm.log(number, tmp_path)
    job = slurm.job(number)
    assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "1"), log[-5000:]
    resumed = re.findall(r"^Resuming (.*) after (.*)$", log, re.MULTILINE)
    assert resumed[0] == (str(whole / "epoch-1.pt"), f"1 of {EPOCHS} epochs")
    assert resumed[1][0] == f"runs/{number}/checkpoint.pt" and len(resumed) == 2
    assert f"--resume {whole / 'epoch-1.pt'} is ignored" in log
    assert check_equal(tmp_path / "runs" / number, whole) == EPOCHS
