"""Hosts on this machine, for tests of several nodes: commands on each, and what they print.

A host is a set of Linux namespaces: a network card, an address and a name of its own, and processes
that see one another alone. All of it goes when its first process does, which reads from this one.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time

import psutil
import pytest
from conftest import environment

TOOLS = "ip", "unshare", "nsenter", "ps"
SEPARATE = "--net", "--mount", "--uts", "--pid"
# Every host knows all others by name, and has folders for sshd of its own.
FIRST_PROCESS = """
mount --bind "$0" /etc/hosts
mount -t tmpfs none /run
mkdir -p /run/sshd
hostname "$1"
ip link set lo up
trap "" CHLD  # or processes that lose their parent would stay, as zombies; dash does not do it
echo ready
exec cat > /dev/null
"""


def address(number):
    """Returns host 1's address, 192.168.100.11, or one that follows it."""
    return f"192.168.100.{10 + number}"


class Job:
    """A command under way, with what it prints."""

    def __init__(self, words, folder, **env):
        serial = len([*folder.glob("*.out")])
        self.paths = [folder / f"{serial}.{stream}" for stream in ("out", "err")]
        with open(self.paths[0], "w") as out, open(self.paths[1], "w") as err:
            self.process = subprocess.Popen(
                [*map(str, words)],
                env=environment(PYTHONUNBUFFERED="1", **env),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def output(self):
        return "".join(path.read_text(errors="replace") for path in self.paths)

    def errors(self):
        return self.paths[1].read_text(errors="replace")

    def terminate(self):
        """Sends SIGTERM to the command, a child of nsenter."""
        (command,) = psutil.Process(self.process.pid).children()
        command.terminate()

    def wait(self, seconds):
        """Returns the exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds:.0f} s:\n{self.output()}")

    def says(self, pattern, seconds=120, times=1):
        """Waits until the output has this pattern so many times."""
        until = time.monotonic() + seconds
        while len(re.findall(pattern, self.output())) < times:
            assert self.process.poll() is None, f"ended without {pattern}:\n{self.output()}"
            assert time.monotonic() < until, f"no {pattern} in {seconds} s:\n{self.output()}"
            time.sleep(0.1)


class Host:
    """A host whose user works in a folder of its own; `folder`/hosts is its list of names."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder / name
        self.folder.mkdir()
        known = [f"{address(number)} host{number}\n" for number in range(1, 5)]
        if not (folder / "hosts").exists():
            (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(known))
        first = ["bash", "-ec", FIRST_PROCESS, folder / "hosts", name]
        words = ["unshare", *SEPARATE, "--fork", "--kill-child", "--mount-proc", *first]
        pipes = {each: subprocess.PIPE for each in ("stdin", "stdout", "stderr")}
        self.outer = subprocess.Popen(words, **pipes, text=True)
        if self.outer.stdout.readline() != "ready\n":
            raise OSError(self.outer.communicate()[1])
        (process,) = psutil.Process(self.outer.pid).children()
        self.process = process.pid  # the first

    def inside(self, folder):
        """Returns the words before a command that is to run there, in a folder."""
        words = ["nsenter", "--target", self.process, *SEPARATE]
        return [*map(str, words), "sh", "-c", 'cd "$0" && exec "$@"', str(folder)]

    def start(self, words, **env):
        """Starts a command there, in the user's folder."""
        return Job([*self.inside(self.folder), *words], self.folder, **env)

    def command(self, line, **env):
        """Runs a line to its end."""
        job = self.start(shlex.split(line), **env)
        assert job.wait(60) == 0, job.output()

    def ranks(self):
        """Returns the processes that train, with their options; not their launchers."""
        listed = [*self.inside("/"), "ps", "-eo", "stat=,args=", "--cols", "200"]
        lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        found = [line for line in lines.splitlines() if re.search(r"imagenet_\w+\.py", line)]
        return [line for line in found if not re.match("Z|.*(torchrun|launch|horovodrun) ", line)]

    def kill(self):
        """Kills all its processes but the first, as if it had been switched off and on."""
        subprocess.run([*self.inside("/"), "sh", "-c", "kill -KILL -1"], check=False)

    def remove(self):
        self.outer.communicate()  # closes the first process' input


def skip_without(folder, *programs):
    """Skips the test where there can be no such hosts, or where these programs are missing."""
    missing = [each for each in (*TOOLS, *programs) if not shutil.which(each)]
    if sys.platform != "linux" or missing or os.geteuid():
        pytest.skip(f"hosts of their own need Linux, root and {', '.join(missing or TOOLS)}")
    try:
        Host("trial", folder).remove()
    except OSError as error:
        pytest.skip(f"no namespaces here: {error}")
