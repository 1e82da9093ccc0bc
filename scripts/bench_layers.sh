#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures hidden communication inside layers whose compute sleeps: tensor parallelism by token chunks, and the ring of
# context parallelism.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: scripts/bench_layers.sh [--steps 10] [--tensor 2,4] [--context 4] [--out runs/bench_layers] [-- FLAGS]"
  echo "  Writes a text and a CSV per number of ranks to --out. Goals: with communication at 0.3 of compute, at least 80 % hidden with the best number of"
  echo "  chunks; at least 90 % in a ring whose transfers take less than a block. FLAGS go to slipstream bench layers. SLIPSTREAM selects another"
  echo "  program than build/slipstream."
}
steps=10 tensor=2,4 context=4 out=runs/bench_layers
# shellcheck source=scripts/on_ranks.sh
source scripts/on_ranks.sh
take_options "steps tensor context out" "$@"
set -- ${flags[@]+"${flags[@]}"}
mkdir -p "$out"
bench() {
  local name=$1 ranks=$2
  shift 2
  # The layers are small and have given times, because moving their bytes must not need the cores of all ranks.
  on_ranks "$ranks" bench layers configs/runs/quickstart.toml --steps "$steps" --csv "$out/$name.csv" --set model.width=64 --set model.heads=4 \
    --set comm.emulate.latency=50us "$@" | tee "$out/$name.txt"
}
for t in ${tensor//,/ }; do
  bench "tensor_$t" "$t" --layer-ms 40 --ratios 0.3,0.43 --chunks 1,2,4,8,16 --set train.micro_batch_size=8 --set train.global_batch_size=8 "$@"
done
for c in ${context//,/ }; do
  bench "ring_$c" "$c" --layer-ms 40 --ratios 0.25,0.5,0.9 --set parallel.context="$c" --set model.context=4096 --set train.sequence_length=4096 \
    --set train.micro_batch_size=1 --set train.global_batch_size=1 "$@"
done
