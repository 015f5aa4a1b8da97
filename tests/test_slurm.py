"""The files in slurm/: checked, and run by a Slurm of their own, of two nodes on this machine."""

import importlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import torch
from conftest import BY_TORCHRUN, ROOT, SCRIPTS, environment, needs_horovod, run
from torch.distributed.run import get_args_parser

FILES = sorted((ROOT / "slurm").glob("*.sbatch"))
ALONE = "imagenet_nd.py", "imagenet_dp.py"  # on one node, in one process
LAUNCHED = "imagenet_ddp_apex.py", *BY_TORCHRUN  # by one torchrun a node
FILE_OF = dict.fromkeys(SCRIPTS, "srun.sbatch") | dict.fromkeys(LAUNCHED, "torchrun.sbatch")
FILE_OF["imagenet_horovod.py"] = "horovodrun.sbatch"


def test_files_differ_in_head_and_launcher_alone():
    divider, shared = r"^(?=#SBATCH --job|# ----)", set()
    for path in FILES:
        head, *parts = re.split(divider, path.read_text(), flags=re.MULTILINE)
        job, site, same, _launcher, end = parts
        assert f"slurm/{path.name} imagenet_" in head
        assert site.endswith(f"\nfile={path.name}\n\n")
        site = re.sub(r"(?:GLOO_SOCKET_IFNAME|HOROVOD_GLOO_IFACE)=ib0|file=.*", "", site)
        shared.add((job, site, same, end))
    assert len(shared) == 1 and {path.name for path in FILES} == {*FILE_OF.values()}


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck():
    run(["shellcheck", *FILES], ROOT)


def batch(script, folder, srun, gpus=None, more=(), file=None, size=None):
    """Runs a file as Slurm would, its copy in the spool, on so many nodes with so many tasks each,
    with a soft limit of 256 open files and an srun that does what is given; returns its exit
    status, and writes what it prints into `folder`/output."""
    nodes, tasks = size or ("11" if script in ALONE else "24")
    sets = {"JOB_ID": "123456", "JOB_NODELIST": "node[1-2]", "JOB_NUM_NODES": nodes}
    sets |= {"NTASKS_PER_NODE": tasks, "CPUS_PER_TASK": "3"}
    sets |= {"GPUS_ON_NODE": gpus} if gpus else {}
    scontrol = "[ $1 = requeue ] && touch $1-$2; printf 'node1\\nnode2\\n'"
    for name, does in {"scontrol": scontrol, "python": "exit", "srun": srun}.items():
        (folder / name).write_text(f"#!/bin/bash\n{does}\n")
        (folder / name).chmod(0o755)
    env = environment(**{f"SLURM_{name}": value for name, value in sets.items()})
    env["PATH"] = f"{folder}:{os.environ['PATH']}"
    (folder / script).touch()
    (folder / "spool").mkdir()
    spooled = folder / "spool" / "slurm_script"
    shutil.copy(ROOT / "slurm" / (file or FILE_OF[script]), spooled)
    limited = ["bash", "-c", 'ulimit -Sn 256; exec bash -u "$@"', "batch"]
    words = [*limited, spooled, script, "-a", "resnet50", "--epochs", "3", "a folder", *more]
    with open(folder / "output", "w") as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        return subprocess.run(words, cwd=folder, env=env, **streams).returncode


@pytest.mark.parametrize("gpus", [None, "2"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_options_parse(script, gpus, tmp_path):
    """srun is called with words that it, the launcher and the script understand."""
    does = "printf '%s\\0' \"$@\" > words; env -0 > env; ulimit -Sn > open_files"
    assert batch(script, tmp_path, does, gpus) == 0
    assert ".sbatch: " not in (tmp_path / "output").read_text()
    most = subprocess.check_output(["bash", "-c", "ulimit -Hn"], text=True)
    assert (tmp_path / "open_files").read_text() == most
    words = (tmp_path / "words").read_text().split("\0")[:-1]
    env = dict(each.split("=", 1) for each in (tmp_path / "env").read_text().split("\0") if each)
    first = words.index(script)
    args = importlib.import_module(script.removesuffix(".py")).parse_args(words[first + 1 :])
    read = args.resume, args.log_dir, args.epochs, args.dir
    assert read == ("auto", "runs", 3, "a folder")
    ranks = int(gpus or 4)
    tasks = 2 if script in LAUNCHED else 1 if script in ALONE else 2 * ranks
    assert f"--ntasks={tasks}" in words
    cores = 3 * ranks if script in LAUNCHED else 3
    assert f"--cpus-per-task={cores}" in words
    if script in LAUNCHED:
        started = get_args_parser().parse_args(words[words.index("torchrun") + 1 :])
        assert (started.nnodes, started.nproc_per_node) == ("2", str(ranks))
        assert (started.master_addr, started.master_port) == ("node1", 23456)
        assert started.training_script == script
    elif script != "imagenet_horovod.py":
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("node1", "23456")
    else:
        server = env["HOROVOD_GLOO_RENDEZVOUS_ADDR"], env["HOROVOD_GLOO_RENDEZVOUS_PORT"]
        assert server == ("node1", "23456")
        sizes = [env[f"HOROVOD_{name}SIZE"] for name in ("", "LOCAL_", "CROSS_")]
        assert sizes == [str(2 * ranks), str(ranks), "2"]


SRUN, TORCHRUN, HOROVODRUN = "srun.sbatch", "torchrun.sbatch", "horovodrun.sbatch"
ONE = " is one process: sbatch --nodes=1 --ntasks-per-node=1 ... srun.sbatch"


@pytest.mark.parametrize(
    ("file", "script", "size", "line"),
    [
        *[(SRUN, script, "14", ONE) for script in ALONE],
        (SRUN, "text_nd.py", "21", ONE),
        (TORCHRUN, "imagenet_dp.py", "14", ONE),
        (TORCHRUN, "imagenet_nd.py", "11", f": {SRUN} is the file for it"),
        *[(SRUN, script, "24", f": {TORCHRUN} is the file for it") for script in LAUNCHED],
        (HOROVODRUN, "text_fsdp.py", "24", f": {TORCHRUN} is the file for it"),
        (HOROVODRUN, "imagenet_ddp.py", "24", f": {SRUN} is the file for it"),
        (SRUN, "imagenet_horovod.py", "24", f": {HOROVODRUN} is the file for it"),
        (TORCHRUN, "text_horovod.py", "24", f": {HOROVODRUN} is the file for it"),
        *[(FILE_OF[script], script, None, None) for script in SCRIPTS],
        *[(file, "mine.py", "24", None) for file in (SRUN, TORCHRUN, HOROVODRUN)],
        (TORCHRUN, "imagenet_ddp.py", "24", None),
        (SRUN, "text_dp.py", "11", None),
    ],
)
def test_a_script_in_the_wrong_file_is_refused(file, script, size, line, tmp_path):
    status = batch(script, tmp_path, "touch called", file=file, size=size)
    assert (status, (tmp_path / "called").exists()) == ((2, False) if line else (0, True))
    output = (tmp_path / "output").read_text()
    assert output == f"{file}: error: {script}{line}\n" if line else "error" not in output


TEXTS = [*FILES, ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
LINE = re.compile(r"^[# ]*sbatch (.*)slurm/(\S+) (\w+\.py) ([^#\n]+)", re.MULTILINE)
LINES = sorted({each for path in TEXTS for each in LINE.findall(path.read_text())})


@pytest.mark.parametrize("line", LINES)
def test_lines_of_files_and_documents(line, tmp_path):
    options, file, script, arguments = line
    sizes = dict(re.findall(r"--(nodes|ntasks-per-node)=(\w+)", options))
    size = sizes.get("nodes", "1").replace("N", "2") + sizes.get("ntasks-per-node", "4")
    assert batch(script, tmp_path, "touch called", file=file, size=size) == 0
    assert (tmp_path / "called").exists()
    importlib.import_module(script.removesuffix(".py")).parse_args(arguments.split())


def test_there_are_lines():
    assert {file for _, file, *_ in LINES} == {path.name for path in FILES}


@pytest.mark.parametrize("words", [["-a", "resnet50"], ["imagenet_ddp.py"], []])
def test_a_script_that_is_not_there_is_one_line(words, tmp_path):
    line = run(["bash", ROOT / "slurm" / SRUN, *words], tmp_path, status=2)
    first = (words or [""])[0]
    assert line == (
        f"{SRUN}: error: no script '{first}' in {tmp_path}: it comes first, as imagenet_ddp.py\n"
    )
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("typed", ["--resume=x.pt", "--log-dir"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_what_the_file_gives_is_refused(script, typed, tmp_path):
    """A typed checkpoint would be taken again whenever the job is queued again."""
    assert batch(script, tmp_path, "touch called", more=[typed, "other"]) == 2
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_option_file_does_not_take_the_place_of_auto(script, tmp_path, monkeypatch):
    """With a checkpoint of its own, the job would begin there again whenever it is queued again."""
    (tmp_path / "one.txt").write_text("--lr 0.2  # not --resume\n")
    (tmp_path / "two.txt").write_text("--resume x.pt\n--log-dir elsewhere\n")
    does = "printf '%s\\0' \"$@\" > words"
    assert batch(script, tmp_path, does, more=["@one.txt", "@two.txt"]) == 0
    lines = (tmp_path / "output").read_text().splitlines()
    (line,) = (line for line in lines if ".sbatch: " in line)
    assert line.startswith(f"{FILE_OF[script]}: @two.txt: its --resume or --log-dir is passed over")
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
        (None, 1, False),  # an error; a marker is there from before
    ],
)
@pytest.mark.parametrize("script", SCRIPTS)
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
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobRequeue=1
OverTimeLimit=0
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=node1 NodeHostname=head Port=7001 CPUs=16 Gres=gpu:2
NodeName=node2 NodeHostname=head Port=7002 CPUs=16 Gres=gpu:2
PartitionName=all Nodes=node[1-2] Default=YES State=UP
"""
GPUS = "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n"
HOSTS = "127.0.0.1 localhost\n10.0.0.1 node1\n10.0.0.2 node2\n10.0.0.3 head\n"
# In namespaces of its own: network, /etc/hosts, name and processes, which all end with this shell,
# when its input does. The addresses lie on the loopback interface.
BOOT = """
cd "$1"
hostname head
ip link set lo up
for host in 1 2 3; do ip address add "10.0.0.$host" dev lo; done
mount --bind hosts /etc/hosts
munged --foreground --force --key-file="$1/munge.key" --socket="$1/munge.socket" \
    --pid-file="$1/munged.pid" --log-file="$1/munged.log" --seed-file="$1/munged.seed" &
until [ -S munge.socket ]; do sleep 0.1; done
slurmctld -D &
slurmd -D -N node1 &
slurmd -D -N node2 &
cat
exit  # the shell waits for cat, and meanwhile for whatever process has lost its parent
"""
PROGRAMS = "munged", "slurmctld", "slurmd", "sbatch", "srun", "unshare", "nsenter", "ip"
SEPARATE = ["--net", "--mount", "--uts", "--pid"]


class Slurm:
    """A cluster of two nodes on this machine."""

    def __init__(self, folder):
        (folder / "state").mkdir()
        (folder / "hosts").write_text(HOSTS)
        (folder / "slurm.conf").write_text(CONF.format(folder=folder))
        (folder / "gres.conf").write_text(GPUS)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}
        words = ["unshare", *SEPARATE, "--mount-proc", "--fork", "--kill-child", "bash", "-c", BOOT]
        self.shell = subprocess.Popen(
            [*words, "boot", folder],
            env=environment(**self.env),
            stdin=subprocess.PIPE,
            stdout=open(folder / "boot.log", "w"),
            stderr=subprocess.STDOUT,
        )
        self.folder, self.inside = folder, None
        self.wait("two idle nodes", lambda: self("sinfo", "-h", "-o", "%D %T") == "2 idle", 60)

    def __call__(self, *words, cwd="/"):
        """Returns what a command inside prints, whatever its status."""
        if self.inside is None:  # the first process there
            children = psutil.Process(self.shell.pid).children()
            self.inside = str(children[0].pid) if children else None
        words = ["nsenter", "--target", self.inside or "0", *SEPARATE, f"--wdns={cwd}", *words]
        return run(words, cwd, None, self.env).strip()

    def wait(self, what, there, seconds):
        until = time.monotonic() + seconds
        while not there():
            assert time.monotonic() < until, f"no {what}: {self.logs()}"
            time.sleep(1)

    def logs(self):
        logs = [self.folder / "boot.log", self.folder / "slurmctld.log"]
        return "\n".join(path.read_text()[-3000:] for path in logs if path.exists())

    def submit(self, script, cwd, options, arguments):
        """Returns the number of the job that runs `script`, copied into `cwd`, by its file."""
        shutil.copy(ROOT / script, cwd)
        words = [*options, ROOT / "slurm" / FILE_OF[script], script, *arguments]
        said = self("sbatch", *map(str, words), cwd=cwd)
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

    def stop(self):
        self.shell.stdin.close()
        self.shell.wait(60)


@pytest.fixture(scope="module")
def slurm():
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if subprocess.run(["unshare", *SEPARATE, "--fork", "true"], capture_output=True).returncode:
        pytest.skip("namespaces need root")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        cluster = Slurm(Path(folder))
        try:
            yield cluster
        finally:
            cluster.stop()


MARKS = {"imagenet_horovod.py": needs_horovod}
SMALL = ["-a", "vit_b_16", "--image-size", 32, "--val-resize", 32, "--no-accel", "-j", 1, "-b", 8]


def differences(one, two, at=""):
    """Names what differs, to the bit, in two nested dicts and lists of tensors."""
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        return [each for key in one for each in differences(one[key], two[key], f"{at}/{key}")]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        pairs = enumerate(zip(one, two, strict=True))
        return [each for n, pair in pairs for each in differences(*pair, f"{at}/{n}")]
    same = torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
    return [] if same else [at]


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
    assert "Resuming from" in outputs["short"]
    assert "stopped by" not in outputs["long"]
    saved = [next(folders[way].glob("runs/*/checkpoint.pt")) for way in jobs]
    assert not (saved[0].parent / "PREEMPTED").exists()
    one, two = (torch.load(path, weights_only=True) for path in saved)
    assert one["epoch"] == two["epoch"] == epochs
    for part in "state_dict", "optimizer", "scaler":
        assert differences(one[part], two[part]) == []


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
