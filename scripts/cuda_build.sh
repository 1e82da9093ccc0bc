#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the whole program and the GPU tests with CUDA, with warnings as errors, and starts the tests. Without a
# driver they skip themselves with the reason. Without nvcc the script is skipped with the reason (code 77).
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  echo "usage: scripts/cuda_build.sh [DIR [ARCHITECTURES]]   (default: build-cuda 80,90a,100, all that we support)"
  exit 0
fi
build=${1:-build-cuda} architectures=${2:-80,90a,100}

nvcc=$(command -v nvcc || true)
if [[ -z $nvcc && -x /usr/local/cuda/bin/nvcc ]]; then nvcc=/usr/local/cuda/bin/nvcc; fi
[[ -n $nvcc ]] || { echo "SKIPPED: no nvcc in PATH or /usr/local/cuda/bin"; exit 77; }
if command -v ccache >/dev/null && [[ -z "${CC:-}${CXX:-}" ]]; then
  export CC="ccache gcc" CXX="ccache g++" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
fi
if [[ ! -f $build/build.ninja ]]; then
  mkdir -p "$(dirname -- "$build")"
  rm -rf "$build"
  meson setup "$build" -Dcuda=enabled -Dnccl=auto -Dgpu_archs="$architectures" -Dtests=true -Dwerror=true >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
  mv "$build.log" "$build/setup.log"
fi
mapfile -t tests < <(ninja -C "$build" -t targets all | sed -n 's|^\(tests/gpu/gpu_[a-z_]*\): .*|\1|p')
((${#tests[@]})) || { echo "cuda_build: the build has no GPU tests"; exit 1; }
started=$SECONDS
ninja -C "$build" slipstream "${tests[@]}"
echo "compiled with $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/CUDA \1/p') in $((SECONDS - started)) s"
"$build/slipstream" --version
if nvidia-smi -L >/dev/null 2>&1; then exit 0; fi
for test in "${tests[@]}"; do
  code=0
  output=$("$build/$test" 2>&1) || code=$?
  if [[ $code != 77 || $output != skipped:* ]]; then
    echo "$test without a GPU: exit code $code, need 77 and the reason. Its output: $output"
    exit 1
  fi
done
echo "${#tests[@]} GPU tests skip themselves without a GPU"
