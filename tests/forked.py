"""Runs a script in a fork of a process that has imported torch and torchvision, which take three
seconds of each start. It is a process of its own, as a user's is, but for what Python and libraries
read from the environment as they start, Python's seed of hashes and NumPy's of random numbers."""

import importlib
import multiprocessing
import os
import runpy
import sys
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

CONTEXT = multiprocessing.get_context("forkserver")


def start_server(env):
    """Starts the process that others are forked from, if it does not run."""
    CONTEXT.set_forkserver_preload(["torch", "torchvision", "torch.utils.tensorboard"])
    with mock.patch.dict(os.environ, env):
        forkserver.ensure_running()


def run(words, cwd, env, output, timeout):
    """Runs the words of a command, python SCRIPT ..., its output going to a file; returns its exit
    status."""
    process = CONTEXT.Process(target=be_script, args=(words, cwd, env, output))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"{words} took more than {timeout} s")
    return process.exitcode


def be_script(words, cwd, env, output):
    """The process: it gets what execve() would have given it."""
    multiprocessing.set_start_method(None, force=True)  # the system's
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.orig_argv, sys.argv = words, words[1:]
    installed = [each for each in sys.path if each.startswith((sys.prefix, sys.base_prefix))]
    sys.path = [str(Path(words[1]).parent), *env["PYTHONPATH"].split(os.pathsep), *installed]
    importlib.reload(importlib.import_module("sitecustomize"))  # reads the environment
    runpy.run_path(words[1], run_name="__main__")
