"""Builds the ghost GPU: one library in place of the CUDA runtime, the driver, cuBLAS and NCCL."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
# Of these PyTorch takes functions; what is not written in C here is generated.
ENTRY = re.compile(r"\b(?:cuda|cublas|nccl|cu(?=[A-Z]))\w+")


def missing():
    """Returns why it cannot be built here, or None; imports nothing of PyTorch."""
    for program in "gcc", "nm":
        if not shutil.which(program):
            return f"no {program}"
    if not (_folder("torch") / "lib" / "libtorch_cuda.so").exists():
        return "torch is not a CUDA build"
    for header in "cuda_runtime_api.h", "nccl.h":
        if not any((folder / header).exists() for folder in _headers()):
            return f"no {header}, which comes with PyTorch's CUDA wheel"
    return None


def _folder(package):
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec else Path("nowhere")


def _headers():
    """The headers of NVIDIA's packages, which PyTorch's CUDA wheel needs, and of Triton's."""
    nvidia = sorted(_folder("nvidia").glob("*/include"))
    return [*nvidia, _folder("triton") / "backends" / "nvidia" / "include"]


def _symbols(library, which):
    """Returns the functions that a library takes of others (-u), or gives (--defined-only)."""
    listed = subprocess.check_output(["nm", "-D", which, library], text=True)
    return set(ENTRY.findall(re.sub("@.*", "", listed, flags=re.MULTILINE)))


def build(folder):
    """Builds the library in a folder; returns its path, for LD_PRELOAD.

    Functions that nobody wrote fail, and by that tell that they are needed; those of cuBLAS, which
    compute, do nothing, as kernels do. The library bears the driver's name, and so takes its place.
    """
    library, rest = folder / "ghost.so", folder / "rest.c"
    sources = [str(HERE / name) for name in ("runtime.c", "libraries.c", "nccl.c")]
    words = ["gcc", "-O2", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library)]
    words += [word for each in _headers() for word in ("-isystem", str(each))]
    subprocess.run([*words, *sources, "-lpthread", "-lrt"], check=True)
    taken = set()
    for each in (_folder("torch") / "lib").glob("*.so"):
        taken |= _symbols(each, "-u")
    lines = []
    for name in sorted(taken - _symbols(library, "--defined-only")):
        status = 0 if re.match("cublas|cu[A-Z]", name) else 801 if name.startswith("cuda") else 3
        lines.append(f"int {name}(void) {{ return {status}; }}\n")
    rest.write_text("".join(lines))
    subprocess.run([*words, *sources, str(rest), "-lpthread", "-lrt"], check=True)
    return library
