#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whole training steps beside PyTorch's on this machine, in turn: medians of each round, then the median of the rounds.
# usage: scripts/bench_vs_pytorch.sh [ROUNDS]   (needs python3-torch; PYTHON=/usr/bin/python3)
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
rounds=${1:-3}
python=${PYTHON:-/usr/bin/python3}
program=${SLIPSTREAM:-build/slipstream}
"$python" -c 'import torch' 2>/dev/null || { echo "bench_vs_pytorch: $python has no torch. Install python3-torch." >&2; exit 2; }
openmp=$(find /usr/lib -maxdepth 2 -type d -name openblas-openmp | head -n 1)
# Debian's PyTorch calls whatever BLAS it finds; with the reference BLAS it is twenty times slower, which proves nothing.
[[ -n $openmp ]] || { echo "bench_vs_pytorch: no OpenBLAS for PyTorch. Install libopenblas0-openmp." >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
head -c 2000000 /dev/urandom | base64 -w 0 >"$work/text.txt"

median() { sort -n | awk '{v[NR]=$1} END {print NR % 2 ? v[(NR+1)/2] : (v[NR/2]+v[NR/2+1])/2}'; }

ours() { # threads steps layers heads width context batch vocabulary
  "$program" train configs/runs/gpt2_124m.toml --set device.threads="$1" --set train.steps=$(($2 + 2)) --set model.layers="$3" \
    --set model.heads="$4" --set model.width="$5" --set model.context="$6" --set train.sequence_length="$6" \
    --set train.micro_batch_size="$7" --set train.global_batch_size="$7" --set model.vocab_size="$8" --set data.tokenizer=bytes \
    --set data.train="$work/text.txt" --set data.validation="" --set train.dtype=float32 --set trace.steps=[] --set train.eval_interval=0 --set train.eval_batches=1 \
    --set optimizer.warmup_steps=0 --set optimizer.decay_steps=0 --set checkpoint.dir="$work/weights" --set output.dir="$work/run" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
  tail -n +3 "$work/run/metrics.jsonl" | grep -o '"step_ms": [0-9.]*' | cut -d' ' -f2 | median
  rm -rf "$work"/run* "$work/weights"
}

theirs() { LD_LIBRARY_PATH="$openmp${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" OMP_NUM_THREADS=$1 "$python" scripts/bench_vs_pytorch.py "$@"; }

echo "PyTorch $("$python" -c 'import torch; print(torch.__version__)'), $(nproc) cores, $rounds rounds"
printf '%-40s%9s%14s%14s%9s\n' "layers heads width context batch vocab" threads "PyTorch ms" "ours ms" ratio
for row in "30 4 4 128 64 12 65" "6 6 6 384 256 8 256" "4 12 12 768 64 4 50257"; do
  read -r steps shape <<<"$row"
  # Bytes as tokens: a vocabulary of 65 becomes 256 on both sides.
  for threads in 1 2; do
    a=() b=()
    for ((r = 0; r < rounds; ++r)); do
      # shellcheck disable=SC2086
      a+=("$(theirs "$threads" "$steps" ${shape/ 65/ 256})")
      # shellcheck disable=SC2086
      b+=("$(ours "$threads" "$steps" ${shape/ 65/ 256})")
    done
    x=$(printf '%s\n' "${a[@]}" | median) y=$(printf '%s\n' "${b[@]}" | median)
    printf '%-40s%9s%14s%14s%9s\n' "${shape/ 65/ 256}" "$threads" "$x" "$y" "$(awk "BEGIN{printf \"%.2f\", $x/$y}")"
  done
done
