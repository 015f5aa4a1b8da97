#!/usr/bin/env bash
# Build Horovod 0.28.1 for the PyTorch of this Python, and install it.
#
#   bash tools/install_horovod.sh [PYTHON]                      # CPU (gloo)
#   HOROVOD_GPU_OPERATIONS=NCCL bash tools/install_horovod.sh   # with a CUDA toolkit and NCCL
#   HOROVOD_WITH_MPI=1 bash tools/install_horovod.sh            # with MPI too, for --use-adasum
#
# pip alone cannot: Horovod's last release (2023) asks for C++14, PyTorch 2.1 and later need more
# (horovod#3996, #4014). Needs g++ and make; takes minutes, once: the wheel is kept, one for each
# Python and PyTorch, in $HOROVOD_WHEELS (default ~/.cache/horovod-wheels).
set -euo pipefail
python=$("${1:-python3}" -c 'import sys; print(sys.executable)')  # absolute: we change folder
version=0.28.1
wheels=${HOROVOD_WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/horovod-wheels}

built_for=$("$python" -c 'import torch; print(torch.__version__.replace("+", "."))') || {
  echo "install_horovod.sh: $python has no PyTorch: run pip install . in the clone first" >&2
  exit 2
}
command -v g++ >/dev/null || {
  echo "install_horovod.sh: g++ is missing: apt-get install g++ make" >&2
  exit 2
}
tag=$("$python" -c 'import sys; print(f"cp{sys.version_info[0]}{sys.version_info[1]}")')
label=torch$built_for${HOROVOD_GPU_OPERATIONS:+.gpu}${HOROVOD_WITH_MPI:+.mpi}
pip=("$python" -m pip --disable-pip-version-check -q)
mkdir -p "$wheels"
shopt -s nullglob
found=("$wheels/horovod-$version+$label-$tag-"*.whl)

if [ ${#found[@]} -eq 0 ]; then
  echo "Building Horovod $version for PyTorch $built_for, a few minutes ..."
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "${pip[@]}" install 'setuptools<80' wheel cloudpickle psutil pyyaml packaging 'cffi>=1.4'
  command -v cmake >/dev/null || "${pip[@]}" install 'cmake<4'
  "${pip[@]}" download --no-deps --no-binary horovod -d "$work" "horovod==$version"
  tar -xzf "$work/horovod-$version.tar.gz" -C "$work"
  cd "$work/horovod-$version"
  sed -i 's/CMAKE_CXX_STANDARD 1[47])/CMAKE_CXX_STANDARD 20)/' \
    CMakeLists.txt horovod/torch/CMakeLists.txt
  if [ -z "${HOROVOD_GPU_OPERATIONS:-}" ]; then # a CUDA build of PyTorch, but no CUDA toolkit
    sed -i -e 's/^string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)/set(Pytorch_CUDA FALSE)/' \
      -e 's/CUDAExtension/CppExtension/' cmake/Modules/FindPytorch.cmake
  fi
  [ -n "${HOROVOD_WITH_MPI:-}" ] || export HOROVOD_WITHOUT_MPI=1 HOROVOD_CPU_OPERATIONS=GLOO
  export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_WITH_GLOO=1 HOROVOD_LOCAL_VERSION=$label CMAKE_POLICY_VERSION_MINIMUM=3.5 \
    PATH="$(dirname "$(command -v "$python")"):$PATH"
  if ! "${pip[@]}" wheel --no-build-isolation --no-deps -w "$work" . >"$work/log" 2>&1; then
    tail -n 40 "$work/log" >&2
    echo "install_horovod.sh: the build failed, see above" >&2
    exit 1
  fi
  cd / # or `import horovod` below would find the sources
  mv "$work"/horovod-*.whl "$wheels/"
  found=("$wheels/horovod-$version+$label-$tag-"*.whl)
fi
"${pip[@]}" install --force-reinstall --no-deps "${found[0]}"
"${pip[@]}" install cloudpickle psutil pyyaml packaging 'cffi>=1.4'
"$python" -c 'import horovod.torch; print("Horovod", horovod.__version__, "is installed")'
