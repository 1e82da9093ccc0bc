#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Profiles a few steps of a run with Nsight Systems, once with reductions after the backward pass (naive) and once with
# reductions during it (bucketed).
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/profile_overlap.sh [--ranks N] [--program PATH] [--out DIR] RUN.toml [--set KEY=VALUE]...
  --ranks N        ranks under mpirun (default: 2)
  --program PATH   the program (default: build/slipstream)
  --out DIR        folder of the reports (default: profile)

Profiles rank 0 with `nsys`: kernels, copies, NCCL, and the program's own NVTX ranges (one per step, "step 7", the launches in it)
and stream names. Steps run task by task (device.graph = false), because graphs lose the launches' ranges. Open the two reports, DIR/naive.nsys-rep and DIR/bucketed.nsys-rep, in
Nsight Systems one above the other. Text files beside them summarize the kernels. Exit code: 7 without nsys or a GPU.
TEXT
}

ranks=2 program=build/slipstream out=profile run=""
sets=()
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --ranks) ranks=${2:?--ranks needs a number}; shift 2 ;;
    --program) program=${2:?--program needs a path}; shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --set) sets+=(--set "${2:?--set needs KEY=VALUE}"); shift 2 ;;
    -*) usage >&2; exit 2 ;;
    *) run=$1; shift ;;
  esac
done
[[ -n $run ]] || { usage >&2; exit 2; }
[[ -x $program ]] || { echo "profile_overlap: $program does not exist. Build first, or give its path with --program." >&2; exit 7; }
nsys=$(command -v nsys || true)
for place in /usr/local/cuda/bin /opt/nvidia/nsight-systems/*/bin; do
  [[ -z $nsys && -x $place/nsys ]] && nsys=$place/nsys
done
[[ -n $nsys ]] || { echo "profile_overlap: this machine has no nsys. Install Nsight Systems, or set trace.steps for the program's own timeline." >&2; exit 7; }
command -v nvidia-smi >/dev/null || { echo "profile_overlap: this machine has no NVIDIA driver." >&2; exit 7; }
mkdir -p "$out"
# Open MPI refuses to run as root without these variables.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

for way in naive bucketed; do
  command=("$program" train "$run" "${sets[@]}" --set "overlap.grad_reduce=$way" --set train.steps=12 --set device.kind=cuda --set device.graph=false
    --set train.eval_batches=1 --set "output.dir=$out/$way" --set "checkpoint.dir=$out/$way/weights")
  profiled=("$nsys" profile --force-overwrite=true --trace=cuda,nvtx,osrt --sample=none --output="$out/$way" "${command[@]}")
  if ((ranks > 1)); then
    mpirun -np 1 "${profiled[@]}" : -np $((ranks - 1)) "${command[@]}"
  else
    "${profiled[@]}"
  fi
  "$nsys" stats --force-export=true --report cuda_gpu_kern_sum,nvtx_sum --format table "$out/$way.nsys-rep" >"$out/$way.txt" || true
  grep -o '"step": [0-9]*\|"step_ms": [0-9.]*\|"exposed_ms": [0-9.]*' "$out/$way/metrics.jsonl" | paste - - - | tail -n 5
done
