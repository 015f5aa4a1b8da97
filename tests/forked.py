"""Runs a script in a fork of a process that has imported torch and torchvision, which take three
seconds of each start. It is a process of its own, as a user's is, but for what Python and libraries
read from the environment as they start, and Python's seed of hashes."""

import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import numpy as np

CONTEXT, FORK = map(multiprocessing.get_context, ("forkserver", "fork"))
PRELOADED = ["torch", "torchvision.transforms.v2", "torch.utils.tensorboard", "psutil"]
PRELOADED += ["tensorboard.backend.event_processing.event_accumulator"]


def start_server(env):
    """Starts the process that others are forked from, if it does not run."""
    CONTEXT.set_forkserver_preload(PRELOADED)
    with mock.patch.dict(os.environ, env, clear=True):
        forkserver._forkserver.ensure_running()


def keep_server():
    """Has a fork of the process that started the server use that one."""
    forkserver._forkserver.ensure_running = lambda: None


def run(words, cwd, env, timeout):
    """Runs the words of a command, python SCRIPT ...; returns its exit status and what it and the
    processes that it has left have printed. It is killed after `timeout` seconds, as by
    subprocess.run()."""
    reader, writer = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=be_script, args=(words, cwd, env, writer))
    process.start()
    writer.close()
    late = threading.Event()
    alarm = threading.Timer(timeout, lambda: (late.set(), process.kill()))
    alarm.start()
    try:
        with open(reader.fileno(), encoding="utf-8", errors="replace", closefd=False) as file:
            output = file.read()  # until no process has the other end
        process.join()
    finally:
        process.kill()
        alarm.cancel()
    if late.is_set():
        raise subprocess.TimeoutExpired(words, timeout, output)
    return process.exitcode, output


def be_script(words, cwd, env, output):
    """The process: it gets what execve() would have given it, its output going to a connection."""
    multiprocessing.set_start_method(None, force=True)  # the system's
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor in 1, 2:
        os.dup2(output.fileno(), descriptor)
    output.close()
    sys.orig_argv, sys.argv = words, words[1:]
    installed = [each for each in sys.path if each.startswith((sys.prefix, sys.base_prefix))]
    sys.path = [str(Path(words[1]).parent), *env["PYTHONPATH"].split(os.pathsep), *installed]
    np.random.seed()
    importlib.reload(importlib.import_module("sitecustomize"))  # reads the environment
    again, popen = [sys.executable, *words[1:]], subprocess.Popen
    if "STORAGE" not in env:  # which counts the files that the launcher opens, too
        subprocess.Popen = lambda command, **options: (Rank if command == again else popen)(
            command, **options
        )
    runpy.run_path(words[1], run_name="__main__")


class Rank:
    """What a launcher takes for the subprocess.Popen() of this command again: its own fork."""

    def __init__(self, words, env):
        self.process = FORK.Process(target=be_rank, args=(words, env))
        self.process.start()

    def poll(self):
        return self.process.exitcode

    def wait(self):
        self.process.join()
        return self.process.exitcode

    def send_signal(self, signum):
        if self.poll() is None:
            os.kill(self.process.pid, signum)


def be_rank(words, env):
    """The process of a rank."""
    for signum in signal.valid_signals():
        handler = signal.getsignal(signum)
        if callable(handler) and handler is not signal.default_int_handler:
            signal.signal(signum, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    np.random.seed()
    runpy.run_path(words[1], run_name="__main__")
