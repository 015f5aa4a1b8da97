"""Runs a script in a fork of a process that has imported torch and torchvision, which take three
seconds of each start. It is a process of its own, as a user's is, but for what Python and libraries
read from the environment as they start, and Python's seed of hashes."""

import importlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import numpy as np

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["torch", "torchvision", "torch.utils.tensorboard"]


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
    runpy.run_path(words[1], run_name="__main__")
