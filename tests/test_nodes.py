"""Several nodes for real: the commands of README.md and docs/, each on a host of its own."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
import torch
from conftest import BY_TORCHRUN, ROOT, checkpoint, environment, needs_horovod, run, scalars
from hosts import Host, address, skip_without
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_clusters import action, pod


class Cluster:
    """Hosts on one network, whose switch is a host as well."""

    def __init__(self, folder):
        self.folder, self.hosts = folder, []
        self.switch = Host("switch", folder)

    def add(self):
        if not self.hosts:
            self.switch.command("ip link add bridge type bridge")
            self.switch.command("ip link set bridge up")
        number = len(self.hosts) + 1
        host = Host(f"host{number}", self.folder)
        self.hosts.append(host)
        ends = f"port{number} netns {self.switch.process} type veth peer name eth0"
        link = f"ip link add name {ends} netns {host.process}"
        subprocess.run(link.split(), check=True, capture_output=True)
        host.command(f"ip address add {address(number)}/24 dev eth0")
        host.command("ip link set eth0 up")
        self.plug(number, "up")
        for script in ROOT.glob("imagenet_*.py"):
            shutil.copy(script, host.folder)

    def plug(self, number, state):
        """Connects a host with the network (up), or cuts it off (down)."""
        self.switch.command(f"ip link set port{number} master bridge {state}")

    def remove(self):
        for host in (*self.hosts, self.switch):
            host.remove()


@pytest.fixture(scope="module")
def possible(tmp_path_factory):
    """Skips where there can be no such hosts."""
    skip_without(tmp_path_factory.mktemp("trial"))


@pytest.fixture
def cluster(possible, tmp_path):
    """Returns a function that makes so many hosts."""
    made = Cluster(tmp_path)

    def make(count):
        for _ in range(count):
            made.add()
        return made

    yield make
    made.remove()


# --------------------------------------------------------------------------------------- commands

# For hosts without GPUs; the last of several counts.
CPU = ["--no-accel", "-a", "vit_b_16", "--image-size", "32", "-j", "1", "-p", "1", "--seed", "3"]


def by_dist_url(data, nodes=2):
    """Returns the words for each node, as for all that follow."""
    words = [sys.executable, "imagenet_ddp.py", "--dist-url", f"tcp://{address(1)}:29500"]
    words += ["--dist-backend", "gloo", "--world-size", nodes]
    return [[*words, "--rank", node, data] for node in range(nodes)]


def by_launch(data):
    words = [sys.executable, "-m", "torch.distributed.launch", "--nproc_per_node=1", "--nnodes=2"]
    where = [f"--master_addr={address(1)}", "--master_port=8888"]
    script = ["imagenet_ddp_apex.py", "--opt-level", "O0", data]
    return [[*words, f"--node_rank={node}", *where, *script] for node in range(2)]


def by_torchrun(data, nodes="2", restarts=0):
    words = ["torchrun", "--nproc_per_node=1", f"--nnodes={nodes}", f"--max-restarts={restarts}"]
    where = ["--rdzv-backend=c10d", "--rdzv-endpoint=host1:29400", "--rdzv-id=7"]
    return [[*words, *where, "imagenet_ddp.py", data]] * 2


def by_static_torchrun(script):
    def lines(data):
        words = ["torchrun", "--nproc_per_node=1", "--nnodes=2", "--master_port=29500"]
        words.append(f"--master_addr={address(1)}")
        return [[*words, f"--node_rank={node}", script, data] for node in range(2)]

    return lines


def by_horovodrun(data):
    words = ["horovodrun", "-np", 2, "-H", "host1:1,host2:1"]
    return [[*words, sys.executable, "imagenet_horovod.py", data]]


def start(cluster, lines, *options, **more):
    """Starts each line on a host of its own; returns the jobs."""
    hosts = cluster.hosts[: len(lines)]
    pairs = zip(hosts, lines, strict=True)
    return [host.start([*line, *CPU, *options], **more) for host, line in pairs]


@pytest.fixture
def ssh(tmp_path):
    """Returns a function that starts sshd on all hosts of a cluster, and returns the environment in
    which `ssh` reaches them; no file of the user's is read or written."""

    def reach(cluster):
        server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
        if not (server and shutil.which("ssh") and shutil.which("ssh-keygen")):
            pytest.skip("sshd, ssh or ssh-keygen is not installed")
        folder = tmp_path / "ssh"
        folder.mkdir()
        for name in "host_key", "user_key":
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
            subprocess.run(words, check=True)
        (folder / "sshd_config").write_text(
            f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/user_key.pub\n"
            "PermitRootLogin yes\nStrictModes no\nUsePAM no\nPidFile none\n"
        )
        (folder / "ssh_config").write_text(
            f"IdentityFile {folder}/user_key\nUserKnownHostsFile {os.devnull}\nLogLevel ERROR\n"
        )
        # horovodrun calls the first `ssh` on PATH.
        (folder / "ssh").write_text(
            f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n'
        )
        (folder / "ssh").chmod(0o755)
        words = [server, "-D", "-e", "-f", folder / "sshd_config"]
        for host in cluster.hosts:
            host.start(words).says("listening on 0.0.0.0")
        path = f"{folder}{os.pathsep}{environment()['PATH']}"
        return {"PATH": path, "HOME": str(folder)}

    return reach


# ---------------------------------------------------------------------------------------- parity

GLOBAL_BATCH, STEPS = 16, 8
OPTIONS = ["--epochs", 1, "--steps-per-epoch", STEPS, "--warmup-epochs", 0, "--lr", 0.5]


@pytest.fixture(scope="module")
def expected(possible, demo, tmp_path_factory):
    """Returns the losses of one host."""
    folder = tmp_path_factory.mktemp("one")
    words = [sys.executable, ROOT / "imagenet_nd.py", *CPU, *OPTIONS, "-b", GLOBAL_BATCH, demo]
    run(words, folder)
    return scalars(folder / "runs", "Loss/step")


def check(cluster, jobs, expected):
    """Checks the loss curve, and that the first host alone has written."""
    for job in jobs:
        assert job.wait(300) == 0, job.output()
    losses = scalars(cluster.hosts[0].folder / "runs", "Loss/step")
    assert list(losses) == list(range(STEPS))
    assert losses == pytest.approx(expected, rel=1e-5)
    for host in cluster.hosts[1:]:
        assert not [*host.folder.glob("runs/*")]


@pytest.mark.parametrize("nodes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_dist_url(nodes, cluster, demo, expected):
    hosts = cluster(nodes)
    jobs = start(hosts, by_dist_url(demo, nodes), *OPTIONS, "-b", GLOBAL_BATCH // nodes)
    check(hosts, jobs, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lines",
    [by_launch, by_torchrun, *map(by_static_torchrun, BY_TORCHRUN)],
    ids=["launch", "torchrun", *BY_TORCHRUN],
)
def test_launchers(lines, cluster, demo, expected):
    hosts = cluster(2)
    size = ["-b", GLOBAL_BATCH // 2, "--global-batch", GLOBAL_BATCH]
    check(hosts, start(hosts, lines(demo), *OPTIONS, *size), expected)


@pytest.mark.slow
@needs_horovod
@pytest.mark.skipif(" " in sys.executable, reason="over ssh Horovod does not quote Python's path")
def test_horovodrun(cluster, ssh, demo, expected):
    hosts = cluster(2)
    reached = ssh(hosts)
    jobs = start(hosts, by_horovodrun(demo), *OPTIONS, "-b", GLOBAL_BATCH // 2, **reached)
    check(hosts, jobs, expected)
    printed = [path.read_text() for path in hosts.hosts[1].folder.glob("*.err")]
    assert "Accepted publickey" in "".join(printed)


# --------------------------------------------------------------------------------- a host is lost

TIMEOUT = 15  # --timeout
AT_WORK = r"1/90  step 20 "


@pytest.mark.slow
@pytest.mark.parametrize(
    "lines",
    [by_dist_url, by_launch, by_torchrun, pytest.param(by_horovodrun, marks=needs_horovod)],
)
def test_host_that_is_cut_off(lines, cluster, ssh, demo):
    """All ranks end, and the host that can be seen says that another does not answer."""
    hosts = cluster(2)
    reached = ssh(hosts) if lines is by_horovodrun else {}
    jobs = start(hosts, lines(demo), "-b", "8", "--timeout", TIMEOUT, **reached)
    jobs[0].says(AT_WORK)
    hosts.plug(2, "down")
    until = time.monotonic() + TIMEOUT + 60
    # torchrun itself does not notice that its store does not answer any more: it waits on.
    waits = lines is by_torchrun
    for job in jobs[:1] if waits else jobs:
        assert job.wait(until - time.monotonic()) not in (0, None), job.output()
    while any(running := [host.ranks() for host in hosts.hosts]):
        assert time.monotonic() < until, running
        time.sleep(0.2)
    if lines is not by_horovodrun:  # Python's time-out prints where it stands
        assert "error: rank 0: another rank did not answer within --timeout" in jobs[0].errors()
    if waits:
        assert jobs[1].process.poll() is None


# ---------------------------------------------------------------------------------------- elastic


def at_work(job, devices, times):
    """Waits until the run has been started with so many devices so many times, and has done a
    number of steps."""
    job.says(f"= 32 x {devices} x {2 // devices} = global batch 64;", 300, times)
    job.says(r"  step ", 100, job.output().count("  step ") + 30)


def events(folder):
    """Yields (step, loss) of all that was ever logged, whatever was taken back later."""
    for run_folder in folder.glob("runs/*_vit_b_16_*"):
        log = EventAccumulator(str(run_folder), {"scalars": 0}, purge_orphaned_data=False)
        for event in log.Reload().Scalars("Loss/step"):
            yield event.step, event.value


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nodes_that_leave_and_join(cluster, demo):
    """A run on two nodes, one, two, one, two is the run of one node, step by step."""
    hosts = cluster(2)
    options = ["--epochs", "1000", "--warmup-epochs", "0", "--lr", "0.01"]
    safe = ["-b", "32", "--checkpoint-minutes", "0.02", "--timeout", TIMEOUT, "--resume", "auto"]
    lines = by_torchrun(demo, "1:2", 10)
    lets_in = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # torchrun, new nodes
    first, _ = start(hosts, lines, *options, *safe, **lets_in)
    at_work(first, 2, 1)
    hosts.plug(2, "down")
    at_work(first, 1, 1)
    assert not hosts.hosts[1].ranks()
    assert "another rank did not answer within --timeout" in first.errors()
    hosts.hosts[1].kill()  # its torchrun is there still, and may or may not notice
    hosts.plug(2, "up")
    second = hosts.hosts[1].start([*lines[1], *CPU, *options, *safe], **lets_in)
    at_work(first, 2, 2)
    hosts.hosts[1].kill()
    at_work(first, 1, 2)
    second = hosts.hosts[1].start([*lines[1], *CPU, *options, *safe], **lets_in)
    at_work(first, 2, 3)
    for job in first, second:
        job.terminate()
    assert first.wait(60) and second.wait(60)
    assert first.output().count("Going on from") == 4

    found = [*events(hosts.hosts[0].folder)]
    steps = {step for step, _ in found}
    alone = hosts.hosts[1].start(
        [sys.executable, "imagenet_nd.py", *CPU, *options, "-b", "64", demo]
    )
    epoch, step = divmod(max(steps) + 1, 20)
    alone.says(rf"\n{epoch + 1}/1000  step {step + 1} ", 600)
    alone.terminate()
    alone.wait(60)
    expected = dict(events(hosts.hosts[1].folder))
    assert steps == set(range(max(steps) + 1))
    for step, loss in found:
        assert loss == pytest.approx(expected[step], rel=1e-5), step


# -------------------------------------------------------------------------------------- Kubernetes


@pytest.mark.parametrize(
    "file", ["train.yaml", pytest.param("torchrun.yaml", marks=pytest.mark.slow)]
)
def test_pods(file, cluster, demo, tmp_path):
    """The commands of a manifest on two pods whose names come five seconds late. One is drained:
    both have saved, and end as podFailurePolicy expects. Started again, they end with the weights
    of a run that was never drained."""
    pods, path = cluster(2), ROOT / "kubernetes" / file
    by_torchrun = file == "torchrun.yaml"

    def start_all(logs, *more):
        jobs = []
        for index, host in enumerate(pods.hosts):
            words, env = pod(path, index, demo, tmp_path / logs)
            words = [word.replace("--nproc_per_node=8", "--nproc_per_node=1") for word in words]
            words = [word for word in words if not word.startswith("--amp")]  # slow on CPUs
            few = ["--epochs", 2, "--steps-per-epoch", 30, "-b", 8, "-j", 0, *more]
            jobs.append(host.start([*words, *CPU, *few], **env))
        return jobs

    def end_all(jobs):
        return [job.wait(300) for job in jobs]

    jobs = start_all("drained")
    time.sleep(5)
    with open(tmp_path / "hosts", "a") as names:
        names.writelines(f"{address(index + 1)} train-{index}.train\n" for index in range(2))
    jobs[0].says(r"1/2  step 3 ")
    jobs[1].terminate()
    statuses = end_all(jobs)
    assert statuses == ([1, 1] if by_torchrun else [143, 143]), jobs[0].output()
    assert [action(path, each) for each in statuses] == ["Count" if by_torchrun else "Ignore"] * 2
    (marker,) = (tmp_path / "drained").glob("*/PREEMPTED")
    assert json.loads(marker.read_text())["step"] > 0
    jobs = start_all("drained")
    assert end_all(jobs) == [0, 0], jobs[0].output()
    assert "Going on from " in jobs[0].output()
    assert end_all(start_all("whole")) == [0, 0]
    paths = [checkpoint(tmp_path / logs) for logs in ("drained", "whole")]
    one, other = (torch.load(each, weights_only=True)["state_dict"] for each in paths)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
