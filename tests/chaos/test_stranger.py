"""A stranger who reaches the ports of a run, in network namespaces: no code of it is run."""

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time

import pytest
from conftest import free_port

from chaos.jobs import NET, Job, stage, start, trials

pytestmark = pytest.mark.timeout(3600)
HOME, AWAY = "10.213.7.1", "10.213.7.2"


@pytest.fixture(scope="module")
def namespaces():
    """Two network namespaces, joined by a cable: their names."""
    names = [f"chaos{os.getpid()}{each}" for each in ("home", "away")]
    if os.geteuid() or not (shutil.which("ip") and shutil.which("ss")):
        pytest.skip("namespaces need root, and `ip` and `ss` (iproute2)")
    home, away = names
    lines = [f"netns add {name}" for name in names]
    lines += [f"-n {home} link add veth0 type veth peer veth0 netns {away}"]
    for name, address in (home, HOME), (away, AWAY):
        lines += [f"-n {name} address add {address}/24 dev veth0"]
        lines += [f"-n {name} link set {device} up" for device in ("veth0", "lo")]
    try:
        for line in lines:
            if subprocess.run(["ip", *line.split()], capture_output=True).returncode:
                pytest.skip(f"no right to `ip {line}`")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@pytest.fixture
def inside(namespaces, tmp_path):
    """The words that start a command at home, where this machine has an address."""
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{HOME} {platform.node()}\n")
    words = ["ip", "netns", "exec", namespaces[0], "sh", "-c"]
    return [*words, 'mount --bind "$0" /etc/hosts; exec "$@"', tmp_path / "hosts"]


@contextlib.contextmanager
def stranger(code, namespace, folder, *words):
    """Runs a stranger's program in a namespace."""
    (folder / "stranger.py").write_text(STRANGER + code)
    inside = ["ip", "netns", "exec", namespace]
    job = Job([*inside, sys.executable, folder / "stranger.py", *words], folder / "stranger")
    job.wait_for("ready")
    yield job
    job.end()


# Arguments: whom it tries, the namespace that it is told the ports of, and the file that its code
# would make where it is unpickled.
STRANGER = """
import base64, datetime, pickle, socket, subprocess, sys, threading, time
import torch.distributed as dist
host, namespace, marker, *more = sys.argv[1:]
class Planted:
    def __reduce__(self):
        return open, (marker, "w")
def listed():
    words = ["ip", "netns", "exec", namespace, "ss", "-ltnH"]
    listed = subprocess.run(words, capture_output=True, text=True).stdout
    return {int(line.split()[3].rpartition(":")[2]) for line in listed.splitlines()}
def reach(port):
    socket.create_connection((host, port), 2).close()
    print("reached", port, flush=True)
    soon = datetime.timedelta(seconds=3)
    return dist.TCPStore(host, port, None, False, soon, wait_for_workers=False)
pickled = pickle.dumps(Planted())
print("ready", flush=True)
"""

# ------------------------------------------------------------------------- torchrun's own store

# It leaves code in the state of c10d rendezvous, in each store that has one: a pickle in base 64.
OF_RENDEZVOUS = """
code = base64.b64encode(pickled)
while True:
    for port in listed():
        try:
            store = reach(port)
            print("reached a store", flush=True)
            for key in store.list_keys():
                store.set(key, code if "torch.rendezvous" in key else pickled)
        except (OSError, RuntimeError):
            pass
    time.sleep(0.05)
"""


@pytest.mark.chaos
def test_stranger__at_torchruns_own_store(namespaces, inside, tmp_path, row):
    """By static rendezvous: in c10d's, a stranger runs code in torchrun itself, which no script can
    change; docs/reliability.md says how to start it."""
    home, away = namespaces
    marker = tmp_path / "code_was_run"
    words = ["torchrun", "--nproc_per_node=2", "--master_port=29500", stage() / "imagenet_ddp.py"]
    words += NET
    with stranger(OF_RENDEZVOUS, away, tmp_path, HOME, home, marker) as thief:
        job = Job([*inside, *words, "--epochs", 1, "--steps-per-epoch", 10], tmp_path / "node")
        status = job.wait()
    ran, reached = marker.exists(), "reached a store" in thief.text()
    said = f"status {status}; {'reached' if reached else 'not reached'}; "
    said += f"code {'was' if ran else 'was not'} run in torchrun"
    what = "torchrun's own store, static rendezvous, --master_port; a stranger in another namespace"
    row(what, said, reached and not ran)


# ---------------------------------------------------------------------------- the scripts' ports

LOCAL = r"127\.|\[::1\]|\[::ffff:127\."
# It tries each port until it has found so many stores, and leaves code there for whoever reads it.
AT_PORTS = """
found, tried = [], set()
def plant(port):
    try:
        store = reach(port)
        found.append(port)
        while True:
            for key in [f"{group}call {n}" for n in range(1, 20) for group in ("0//", "")]:
                store.set(key, pickled)
            print("planted in", len(found), "stores", flush=True)
            time.sleep(0.01)
    except (OSError, RuntimeError):
        return  # out of reach, no store, or gone
while len(found) < int(more[0]):
    ports = listed() - tried
    for port in ports:
        threading.Thread(target=plant, args=(port,)).start()
    tried |= ports
"""
BY_TORCHRUN = [f"imagenet_{each}.py" for each in ("ddp", "fsdp", "exchange", "pipeline")]
STARTS = [("own spawn", "imagenet_ddp.py"), *(("static", each) for each in BY_TORCHRUN)]
OUTSIDE, ON_LOOPBACK = "in another namespace", "on loopback"
PLACES = {(1, OUTSIDE): 5, (1, ON_LOOPBACK): 2, (2, OUTSIDE): 5}  # and how many of the starts
ALL = [(*place, *each) for place, most in PLACES.items() for each in STARTS[:most]]
SOME = [case for case in ALL if case[2:] in STARTS[: 1 if case[1] == ON_LOOPBACK else 2]]


@pytest.mark.parametrize(("nodes", "where", "way", "script"), trials(ALL, SOME))
def test_stranger(nodes, where, way, script, namespaces, inside, tmp_path, row):
    """The ports of one node are out of reach from another namespace; and where there are two nodes,
    or the stranger is on this one, no code is run."""
    home, away = namespaces
    marker, stores = tmp_path / "code_was_run", 2 if way == "static" else 1
    address, namespace = ("127.0.0.1", home) if where == ON_LOOPBACK else (HOME, away)
    starts = [start(way, script)] if nodes == 1 else two_nodes(way, script)
    train, jobs, listened = (
        [*NET, "--epochs", 1, "--steps-per-epoch", 10, "--timeout", 20],
        [],
        set(),
    )
    with stranger(AT_PORTS, namespace, tmp_path, address, home, marker, stores) as thief:
        for node, words in enumerate(starts):
            jobs.append(Job([*inside, *words, *train], tmp_path / f"node{node}"))
        while any(job.process.poll() is None for job in jobs):
            listened |= listening(home)
            time.sleep(0.1)
    statuses, lines = [job.wait() for job in jobs], [line for job in jobs for line in job.errors()]
    torchruns = re.findall(r"--master_port=(\d+)", " ".join(map(str, starts[0])))
    reached = {*re.findall(r"reached (\d+)", thief.text())} - {*torchruns}
    odd = [each for each in listened if not re.match(LOCAL, each)]
    odd = [each for each in odd if each.rpartition(":")[2] not in torchruns]
    planted = f"planted in {stores} stores" in thief.text()
    said = f"status {', '.join(map(str, statuses))}; "
    if (nodes, where) == (1, OUTSIDE):
        said += f"{len(listened)} ports, {len(odd)} of them not on loopback alone, "
        said += f"{len(reached)} reached; "
        ok = statuses == [0] and listened and not odd and not reached
        ok = ok and not any(job.traceback() for job in jobs)
    else:
        said += f"{'planted' if planted else 'not planted'} in rank 0's store; "
        # A traceback is fine: the run ends, and nothing that was planted is run.
        ok = planted and 0 not in statuses
        ok = ok and not any(line.startswith("Timeout (") for line in lines)
    said += f"code {'was' if marker.exists() else 'was not'} run"
    what = f"{script}, {way}, on {nodes} node{'s' * (nodes - 1)}; a stranger {where}"
    row(what, ": ".join([said, *lines[:1]])[:200], ok and not marker.exists())


def two_nodes(way, script):
    """Returns the words that start one rank on each of two nodes."""
    port = free_port()
    if way == "own spawn":
        url = ["--dist-url", f"tcp://{HOME}:{port}", "--world-size", 2, "--rank"]
        return [[sys.executable, stage() / script, *url, node] for node in range(2)]
    words = ["torchrun", "--nnodes=2", "--nproc_per_node=1", f"--master_addr={HOME}"]
    words += [f"--master_port={port}"]
    return [[*words, f"--node_rank={node}", stage() / script] for node in range(2)]


def listening(namespace):
    """Returns the addresses that are listened on in a namespace."""
    words = ["ip", "netns", "exec", namespace, "ss", "-ltnH"]
    listed = subprocess.run(words, capture_output=True, text=True).stdout
    return {line.split()[3] for line in listed.splitlines()}
