"""Started by conftest.run(): imports once what the scripts import, and forks for each command.

An import of PyTorch and torchvision takes three seconds; what most tests have a script do, less
than one. What runs is a process of its own, with its own folder, arguments, output and status, in
which `__main__` is the script, read anew. The processes that it starts import for themselves.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import threading
import types
from pathlib import Path

ROOT = Path(__file__).parents[1]


def preload():
    """Imports the programs, for what they import, and forgets the programs."""
    path = sys.path[1:]
    sys.path.insert(0, str(ROOT))
    for program in "make_results", *(path.stem for path in ROOT.glob("imagenet_*.py")):
        importlib.import_module(program)
        del sys.modules[program]
    importlib.import_module("torch.distributed.run")
    assert len(os.listdir("/proc/self/task")) == 1, "imports start threads, which forks are without"
    return path


def serve(control):
    """Takes commands until the tests end. Returns, in a new process each, the command's words."""
    while True:
        request, files, *_ = socket.recv_fds(control, 1 << 20, 1)
        if not request:
            os._exit(0)
        words, folder = json.loads(request)
        process = os.fork()
        if not process:
            control.close()
            os.dup2(files[0], 1)
            os.dup2(files[0], 2)
            os.close(files[0])
            os.chdir(folder)
            return words
        os.close(files[0])
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        control.sendall(str(status).encode())


def execute(words, elsewhere):
    """Runs a program as `python` would; returns its status."""
    sys.orig_argv, (_, *sys.argv) = words, words
    importlib.import_module("multiprocessing.process").ORIGINAL_DIR = os.getcwd()
    try:
        if sys.argv[0] == "-m":
            sys.path, sys.argv = [os.getcwd(), *elsewhere], sys.argv[1:]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path = [os.path.dirname(sys.argv[0]), *elsewhere]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            main.__file__ = sys.argv[0]
            exec(compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec"), main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


if __name__ == "__main__":
    elsewhere = preload()
    gc.freeze()  # or collections would copy all that the forks share
    status = execute(serve(socket.socket(fileno=int(sys.argv[1]))), elsewhere)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # without taking down all that was imported, which takes a second
