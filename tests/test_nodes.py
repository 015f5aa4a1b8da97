"""Several nodes for real: the commands of README.md and docs/, each on a host of its own."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
import torch
from conftest import BY_TORCHRUN, ROOT, copy_script, environment, needs_horovod, run, scalars
from hosts import Host, address, skip_without
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_clusters import action, pod


class Cluster:
    """Hosts on one network, whose switch is a host as well."""

    def __init__(self, folder, count):
        self.switch = Host("switch", folder)
        self.hosts = [Host(f"host{number + 1}", folder) for number in range(count)]
        self.switch.command("ip link add bridge type bridge")
        self.switch.command("ip link set bridge up")
        for number, host in enumerate(self.hosts, 1):
            ends = f"port{number} netns {self.switch.process} type veth peer name eth0"
            link = f"ip link add name {ends} netns {host.process}"
            subprocess.run(link.split(), check=True, capture_output=True)
            host.command(f"ip address add {address(number)}/24 dev eth0")
            host.command("ip link set eth0 up")
            self.plug(number, "up")
            for script in ROOT.glob("imagenet_*.py"):
                copy_script(script.name, host.folder)

    def plug(self, number, state):
        """Connects a host with the network (up), or cuts it off (down)."""
        self.switch.command(f"ip link set port{number} master bridge {state}")


@pytest.fixture(scope="module")
def possible(tmp_path_factory):
    """Skips where there can be no such hosts."""
    skip_without(tmp_path_factory.mktemp("trial"))


@pytest.fixture
def cluster(possible, tmp_path):
    """Returns a function that makes so many hosts."""
    made = []

    def make(count):
        made.append(Cluster(tmp_path, count))
        return made[0]

    yield make
    for each in made:
        for host in (*each.hosts, each.switch):
            host.remove()


# --------------------------------------------------------------------------------------- commands

# For hosts without GPUs; the last of several counts.
CPU = ["--no-accel", "-a", "vit_b_16", "--image-size", "32", "-j", "1", "-p", "1", "--seed", "3"]


def by_dist_url(data, nodes=2):
    """Returns the words for each node, as for all that follow."""
    words = [sys.executable, "imagenet_ddp.py", "--dist-url", f"tcp://{address(1)}:29500"]
    words += ["--dist-backend", "gloo", "--world-size", nodes]
    return [[*words, "--rank", node, data] for node in range(nodes)]


def by_torchrun(data, nodes="2", restarts=0):
    words = ["torchrun", "--nproc_per_node=1", f"--nnodes={nodes}", f"--max-restarts={restarts}"]
    where = ["--rdzv-backend=c10d", "--rdzv-endpoint=host1:29400", "--rdzv-id=7"]
    return [[*words, *where, "imagenet_ddp.py", data]] * 2


def by_node_rank(launcher, port, *script):
    def lines(data):
        words = [*launcher, "--nproc_per_node=1", "--nnodes=2", f"--master_addr={address(1)}"]
        words.append(f"--master_port={port}")
        return [[*words, f"--node_rank={node}", *script, data] for node in range(2)]

    return lines


LAUNCH = [sys.executable, "-m", "torch.distributed.launch"]
by_launch = by_node_rank(LAUNCH, 8888, "imagenet_ddp_apex.py", "--opt-level", "O0")


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
        # horovodrun calls the first `ssh` on PATH.
        (folder / "ssh").write_text(
            f"#!/bin/sh\nexec {shutil.which('ssh')} -F none -i {folder}/user_key "
            f'-o UserKnownHostsFile={os.devnull} -o LogLevel=ERROR "$@"\n'
        )
        (folder / "ssh").chmod(0o755)
        keys = f"HostKey={folder}/host_key", f"AuthorizedKeysFile={folder}/user_key.pub"
        options = *keys, "PermitRootLogin=yes", "StrictModes=no", "UsePAM=no", "PidFile=none"
        words = [server, "-D", "-e", "-f", os.devnull, *(f"-o{option}" for option in options)]
        for host in cluster.hosts:
            host.start(words).says("listening on 0.0.0.0")
        path = f"{folder}{os.pathsep}{environment()['PATH']}"
        return {"PATH": path, "HOME": str(folder)}

    return reach


# ---------------------------------------------------------------------------------------- parity

GLOBAL_BATCH, STEPS = 16, 8
NO_SPACES = pytest.mark.skipif(" " in sys.executable, reason="Horovod's ssh does not quote Python")
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


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 4])
def test_dist_url(nodes, cluster, demo, expected):
    hosts = cluster(nodes)
    jobs = start(hosts, by_dist_url(demo, nodes), *OPTIONS, "-b", GLOBAL_BATCH // nodes)
    check(hosts, jobs, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(by_launch, id="launch"),
        pytest.param(by_torchrun, id="torchrun"),
        *[pytest.param(by_node_rank(["torchrun"], 29500, each), id=each) for each in BY_TORCHRUN],
        pytest.param(by_horovodrun, id="horovodrun", marks=[needs_horovod, NO_SPACES]),
    ],
)
def test_launchers(lines, cluster, ssh, demo, expected):
    hosts = cluster(2)
    reached = ssh(hosts) if lines is by_horovodrun else {}
    size = ["-b", GLOBAL_BATCH // 2, "--global-batch", GLOBAL_BATCH]
    check(hosts, start(hosts, lines(demo), *OPTIONS, *size, **reached), expected)
    printed = "".join(path.read_text() for path in hosts.hosts[1].folder.glob("*.err"))
    assert ("Accepted publickey" in printed) == bool(reached)


# ----------------------------------------------------------------- Debian's and Ubuntu's /etc/hosts


def as_debian_writes(cluster):
    """Gives each host a list of names in which its own is 127.0.1.1."""
    for number, host in enumerate(cluster.hosts, 1):
        others = [f"{address(each)} host{each}\n" for each in range(1, 5) if each != number]
        path = host.folder.with_suffix(".hosts")
        path.write_text(f"127.0.0.1 localhost\n127.0.1.1 host{number}\n" + "".join(others))
        host.command(f"mount --bind '{path}' /etc/hosts")


def by_name(data):
    """As by_dist_url(), where host1 knows itself by 127.0.1.1."""
    words = [
        [str(word).replace(address(1), "host1") for word in line] for line in by_dist_url(data)
    ]
    return words


FSDP = by_node_rank(["torchrun"], 29500, "imagenet_fsdp.py", "--dist-backend", "gloo")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "more"),
    [
        pytest.param(by_dist_url, [], id="dist_url"),
        pytest.param(by_name, ["--nproc-per-node", 2], id="by name, two ranks a node"),
        pytest.param(FSDP, [], id="fsdp"),
        pytest.param(by_torchrun, [], id="torchrun"),
    ],
)
def test_own_names_that_are_127_0_1_1(lines, more, cluster, demo, expected):
    """By them gloo would choose addresses that no other machine can reach."""
    hosts = cluster(2)
    as_debian_writes(hosts)
    size = ["-b", GLOBAL_BATCH // 2, "--global-batch", GLOBAL_BATCH]
    check(hosts, start(hosts, lines(demo), *OPTIONS, *size, *more), expected)


@pytest.mark.slow
def test_an_export_counts(cluster, demo):
    """Here of a wrong interface: a line on each node says what to export."""
    hosts = cluster(2)
    jobs = start(hosts, by_dist_url(demo), "--timeout", "10", GLOO_SOCKET_IFNAME="lo")
    for job in jobs:
        assert job.wait(120) == 1
        (line,) = [line for line in job.errors().splitlines() if "error: " in line]
        assert "GLOO_SOCKET_IFNAME" in line


@pytest.mark.slow
def test_a_node_that_does_not_come_is_named(cluster, demo):
    """By the numbers of its ranks, on all nodes that came; also if two have come as the same."""
    hosts = cluster(2)
    first, second = by_dist_url(demo)
    first[first.index("--world-size") + 1] = second[second.index("--world-size") + 1] = 3
    jobs = start(hosts, [first, second], "--nproc-per-node", 2, "--timeout", "15")
    for job in jobs:
        assert job.wait(120) == 1
        assert "rank 4, rank 5 did not come within --timeout" in job.errors()
        assert "Timeout (" not in job.errors() and "Traceback" not in job.errors()


# --------------------------------------------------------------------------------- a host is lost

TIMEOUT = 15  # --timeout
AT_WORK = r"1/90  step 20 "


@pytest.mark.slow
@pytest.mark.parametrize(
    "lines",
    [by_dist_url, by_launch, by_torchrun, pytest.param(by_horovodrun, marks=needs_horovod)],
    ids=["dist_url", "launch", "torchrun", "horovodrun"],
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
    job.says(f"= 32 x {devices} x {2 // devices} = global batch 64[,;]", 300, times)
    job.says(r"  step ", 100, job.output().count("  step ") + 30)


def events(folder):
    """Yields (step, loss) of all that was ever logged, whatever was taken back later."""
    log = EventAccumulator(str(folder), {"scalars": 0}, purge_orphaned_data=False)
    for event in log.Reload().Scalars("Loss/step"):
        yield event.step, event.value


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nodes_that_leave_and_join(cluster, demo, tmp_path):
    """A run on two nodes, one, two, one, two is the run of one node, step by step."""
    hosts = cluster(2)
    options = ["--epochs", "1000", "--warmup-epochs", "0", "--lr", "0.01"]
    safe = ["-b", "32", "--checkpoint-minutes", "0.02", "--timeout", TIMEOUT]
    safe += ["--output-dir", tmp_path / "run"]  # on storage that all nodes share
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
    assert first.output().count("Resuming ") == 4

    found = [*events(tmp_path / "run")]
    steps = {step for step, _ in found}
    alone = hosts.hosts[1].start(
        [sys.executable, "imagenet_nd.py", *CPU, *options, "-b", "64", "--output-dir", "run", demo]
    )
    epoch, step = divmod(max(steps) + 1, 20)
    alone.says(rf"\n{epoch + 1}/1000  step {step + 1} ", 600)
    alone.terminate()
    alone.wait(60)
    expected = dict(events(hosts.hosts[1].folder / "run"))
    assert steps == set(range(max(steps) + 1))
    for step, loss in found:
        assert loss == pytest.approx(expected[step], rel=1e-5), step


# -------------------------------------------------------------------------------------- Kubernetes


@pytest.mark.slow
@pytest.mark.parametrize("file", ["train.yaml", "torchrun.yaml"])
def test_pods(file, cluster, demo, tmp_path):
    """The commands of a manifest on two pods whose names come five seconds late. One is drained:
    both have saved, and end as podFailurePolicy expects. Started again, they end with the weights
    of a run that was never drained."""
    pods, path = cluster(2), ROOT / "kubernetes" / file
    by_torchrun = file == "torchrun.yaml"

    def start_all(folder):
        pairs = [pod(path, index, demo, tmp_path / folder) for index in range(2)]
        lines = [
            [
                word.replace("--nproc_per_node=8", "--nproc_per_node=1")
                for word in words
                if not word.startswith("--amp")  # slow on CPUs
            ]
            for words, _ in pairs
        ]
        few = ["--epochs", 2, "--steps-per-epoch", 30, "-b", 8, "-j", 0]
        return start(pods, lines, *few, **pairs[0][1])

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
    assert json.loads((tmp_path / "drained" / "PREEMPTED").read_text())["step"] > 0
    jobs = start_all("drained")
    assert end_all(jobs) == [0, 0], jobs[0].output()
    assert "Resuming " in jobs[0].output()
    assert end_all(start_all("whole")) == [0, 0]
    paths = [tmp_path / folder / "checkpoint.pt" for folder in ("drained", "whole")]
    pair = (torch.load(each, weights_only=True)["state_dict"] for each in paths)
    torch.testing.assert_close(*pair, rtol=0, atol=0)
