"""Runs a program in a fork of a process that has imported torch, torchvision, timm and
transformers, which is most of a start; the ranks that it starts are forks, too. Each is a process
of its own, as a user's is, but for what Python and libraries read from the environment as they
start or print as they are imported, Python's seed of hashes, and files that are inherited."""

import atexit
import contextlib
import functools
import importlib
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import numpy as np
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

CONTEXT, FORK = map(multiprocessing.get_context, ("forkserver", "fork"))
PRELOADED = ["absent", "torch", "torchvision.transforms.v2", "torch.utils.tensorboard", "psutil"]
PRELOADED += ["torch.distributed.pipelining", "torch.distributed.algorithms.ddp_comm_hooks"]
PRELOADED += ["torch.distributed.run", "tensorboard.backend.event_processing.event_accumulator"]
PRELOADED += ["timm", "transformers.models.auto.tokenization_auto"]
PRELOADED += ["transformers.models.bert.modeling_bert"]  # and what it imports for other models
PRELOADED += ["matplotlib.figure", "torchmetrics.classification"]  # as tools/look.py
PRELOADED += ["torchao.float8"]
PRELOADED += ["horovod.torch"]  # where it is installed
PRELOADED += ["checksums", "compiled"]
READ = {"encoding": "utf-8", "errors": "replace", "closefd": False}
TORCHRUN = str(Path(sys.executable).parent / "torchrun")
# Of this project.
PROGRAM = r"(imagenet|text|tags|make|plain|own)_\w+|(tools|benchmarks|ghost)/\w+|horovodrun"
PROGRAM = re.compile(rf"(^|/)({PROGRAM})\.py$")
# The package that programs import: each process imports it anew, from the folder of its script.
PACKAGE = re.compile(r"trainparts(\.|$)")  # as a module's name


def start_server(env):
    """Starts the process that others are forked from, if it does not run."""
    CONTEXT.set_forkserver_preload(PRELOADED)
    env = env | {"HF_HUB_OFFLINE": "1"}  # as text_*.py set it before they import transformers
    with mock.patch.dict(os.environ, env, clear=True):
        forkserver._forkserver.ensure_running()


def keep_server():
    """Has a fork of the process that started the server use that one."""
    forkserver._forkserver.ensure_running = lambda: None


def can_run(words):
    """Returns whether a command is one of python SCRIPT ..., python -c CODE ..., torchrun ... and
    python -m torch.distributed.launch ..., SCRIPT being one of this project's programs."""
    start = after_u(words)
    script = start and PROGRAM.search(start[0])
    code = start[:1] == ["-c"]
    launcher = start[:2] == ["-m", "torch.distributed.launch"]
    return words[0] == TORCHRUN or words[0] == sys.executable and bool(script or code or launcher)


def after_u(words):
    """Returns the words of a command of Python after `python` and -u, which launchers add."""
    return words[1 + (words[1:2] == ["-u"]) :]


class Process:
    """What subprocess.Popen() is for one of multiprocessing's."""

    def __init__(self, process):
        self.process = process
        process.start()
        self.pid = process.pid

    def poll(self):
        return self.process.exitcode

    returncode = property(poll)

    def wait(self, timeout=None):
        self.process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("a fork", timeout)
        return self.poll()

    def send_signal(self, signum):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, signum)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Script(Process):
    """A command, as a fork of the server, its output going to a pipe, or to the end of a file, what
    it writes to stderr to another file if asked for, in a session of its own if asked for. The
    words are those that can_run() knows; nohup may come before them."""

    def __init__(self, words, cwd, env, file=None, errors=None, own_session=False):
        self.words, (self.output, writer) = words, CONTEXT.Pipe(duplex=False)
        self.own_session = own_session
        for each in filter(None, (file, errors)):
            open(each, "a").close()
        about = words, cwd, env, writer, file, errors, own_session
        super().__init__(CONTEXT.Process(target=be_script, args=about))
        writer.close()

    def communicate(self, timeout=600):
        """Returns (what it and the processes that it has left have printed, None). It is killed
        after `timeout` seconds, as by subprocess.run(), with its session if that is its own."""
        late = threading.Event()

        def end():
            late.set()
            self.process.kill()
            if self.own_session:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)

        alarm = threading.Timer(timeout, end)
        alarm.start()
        try:
            with open(self.output.fileno(), **READ) as file:
                printed = file.read()  # until no process has the other end
            self.process.join()
        finally:
            alarm.cancel()
        if late.is_set():
            raise subprocess.TimeoutExpired(self.words, timeout, printed)
        return printed, None


def be_script(words, cwd, env, output, file, errors, own_session):
    """The process: it gets what a shell would have given it, its output going to a connection, or
    to files."""
    multiprocessing.set_start_method(None, force=True)  # the system's
    if own_session:
        os.setsid()
    nohup = words[0] == "nohup"
    signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where tests run behind `&`
    words = words[nohup:]
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, name in (1, file), (2, errors or file):
        opened = os.open(name, os.O_WRONLY | os.O_APPEND) if name else output.fileno()
        os.dup2(opened, descriptor)
    output.close()
    sys.path[:0] = python_path()
    importlib.reload(importlib.import_module("sitecustomize"))  # reads the environment
    # Else each script would run with what the server has imported, whatever lies beside it.
    assert not any(map(PACKAGE.match, sys.modules)), "the server has imported trainparts"
    if "STORAGE" not in env:  # which counts the files that a launcher opens, too
        begin = functools.partial(begin_rank, subprocess.Popen)
        subprocess.Popen = subprocess_handler.Popen = begin
        subprocess.run = functools.partial(run_program, subprocess.run)
    os.execve = functools.partial(become, os.execve)
    run_to_exit(words if words[0] == sys.executable else [sys.executable, *words])


def run_to_exit(words):
    """Does what Python does with a command, from its start to its exit."""
    atexit._clear()  # of the process that this one is a fork of
    try:
        be_python(words)
    finally:
        atexit._run_exitfuncs()


def python_path():
    """Returns the folders of $PYTHONPATH."""
    return [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def be_python(words):
    """Does what Python does with a command, python FILE ..., python -m MODULE ... or
    python -c CODE ...."""
    sys.orig_argv, start = words, after_u(words)
    module = start[0] == "-m"
    sys.argv = ["-c", *start[2:]] if start[0] == "-c" else start[module:]
    folder = os.getcwd() if start[0] in ("-m", "-c") else str(Path(start[0]).resolve().parent)
    installed = [each for each in sys.path if each.startswith((sys.prefix, sys.base_prefix))]
    sys.path = [folder, *python_path(), *installed]
    np.random.seed()
    if module:
        runpy.run_module(start[1], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if start[0] == "-c":
        exec(start[1], vars(main))
    else:
        main.__file__ = start[0]
        exec(importlib.import_module("compiled").code_of(start[0]), vars(main))


def begin_rank(popen, args, **options):
    """Stands for subprocess.Popen() in launchers: a rank is a fork of its launcher, whose script it
    runs."""
    given = {name for name, value in options.items() if value is not None}
    if "env" in given and given <= {"env", "start_new_session"} and can_run([*args]):
        return Rank(args, options["env"], options.get("start_new_session"))
    return popen(args, **options)


def run_program(run, words, **options):
    """Stands for subprocess.run() in programs: one of this project's is a fork of them."""
    words, given = [*map(str, words)], {"stdout", "stderr", "text", "check"}
    if not can_run(words) or options.keys() - given or options.get("stdout") == subprocess.PIPE:
        return run(words, **options)
    with tempfile.TemporaryFile("w+") as errors, open(os.devnull, "w") as nowhere:
        files = {None: None, subprocess.PIPE: errors, subprocess.DEVNULL: nowhere}
        files = [files.get(options.get(name), options.get(name)) for name in ("stdout", "stderr")]
        process = FORK.Process(target=be_program, args=(words, files))
        process.start()
        process.join()
        errors.seek(0)
        done = subprocess.CompletedProcess(words, process.exitcode, None, errors.read())
    if options.get("check"):
        done.check_returncode()
    return done


def be_program(words, files):
    """The process of a program that another runs, whose output and errors go to these files."""
    for descriptor, file in enumerate(files, 1):
        if file:
            os.dup2(file.fileno(), descriptor)
    be_rank(words, dict(os.environ), None)


class Rank(Process):
    """What a launcher takes for the subprocess.Popen() of a rank."""

    def __init__(self, words, env, own_session):
        super().__init__(FORK.Process(target=be_rank, args=([*words], env, own_session)))
        while own_session and os.getsid(self.pid) == os.getsid(0):
            time.sleep(0.001)


def be_rank(words, env, own_session):
    """The process of a rank."""
    if own_session:
        os.setsid()
    forget(env)
    run_to_exit(words)


def become(execve, path, words, env):
    """Stands for os.execve(), by which a program starts itself again."""
    if not can_run(words):
        execve(path, words, env)
    forget(env)
    try:
        be_python(words)
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    os._exit(status or 0)


def forget(env):
    """Has a fork of a process that has run one program run another, with this environment."""
    for signum in signal.valid_signals():
        handler = signal.getsignal(signum)
        if callable(handler) and handler is not signal.default_int_handler:
            signal.signal(signum, signal.SIG_DFL)
    for name, module in [*sys.modules.items()]:  # what it has imported
        if PACKAGE.match(name) or PROGRAM.search(getattr(module, "__file__", None) or ""):
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(env)
