#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures ZeRO's overlap on an emulated link with paced layers: 12 layers with gathers of 0.2 to 1 of a layer at
# prefetch depths 1 and 2; 24 layers of 8 ms with gathers of 2 ms at depth 1; stages 0 and 2; int8 on the wire; and each
# overlap setting changed, one at a time.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: scripts/bench_zero.sh [--steps 30] [--ranks 4] [--out runs/bench_zero] [-- FLAGS]"
  echo "  Writes tables and their CSV to --out. Goals: step / plan at most 1.03, step / ideal at most 1.08, exposed gathers of ZeRO-1 at"
  echo "  most 5 %. FLAGS go to slipstream bench overlap. SLIPSTREAM replaces build/slipstream."
}
steps=30 ranks=4 out=runs/bench_zero
# shellcheck source=scripts/on_ranks.sh
source scripts/on_ranks.sh
take_options "steps ranks out" "$@"
set -- ${flags[@]+"${flags[@]}"}
mkdir -p "$out"
bench() {
  local name=$1
  shift
  {
    # The layers are small and have given times, because moving their bytes must not need the cores of four ranks.
    on_ranks "$ranks" bench overlap configs/runs/quickstart.toml \
      --steps "$steps" --csv "$out/$name.csv" --set model.width=64 --set model.heads=4 --set train.micro_batch_size=1 --set train.global_batch_size="$ranks" \
      --set overlap.bucket_size=256KiB --set overlap.first_bucket_size=64KiB --set comm.emulate.latency=50us "$@"
  } | tee "$out/$name.txt"
}
layers=(--set model.layers=12)
bench sweep_12_layers --zero 1,3 --prefetch 1,2 --ratios 0.2,0.4,0.6,0.8,1 "${layers[@]}" "$@"
bench zero3_24_layers --zero 3 --prefetch 1 --ratios 0.25 --set model.layers=24 "$@"
bench stages_0_2 --zero 0,2 --ratios 0.2,0.6,1 "${layers[@]}" "$@"
bench int8_12_layers --zero 1,3 --prefetch 1 --ratios 0.2,0.6,1 "${layers[@]}" --set zero.stage=1 --set comm.quantize=int8 --set comm.error_feedback=true \
  --set zero.gather_dtype=int8 "$@"
for stage in 0 1 2 3; do
  bench "ablation_stage$stage" --ablate --ratios 0.5 "${layers[@]}" --set zero.stage="$stage" "$@"
done
# These settings need groups of data ranks, pipeline stages, or tensor ranks.
bench ablation_groups --ablate --ratios 0.5 "${layers[@]}" --set zero.stage=3 --set zero.shard_size=2 --set zero.persistence_threshold=2KiB "$@"
link=(--set comm.emulate.bandwidth=100Mbit/s)
bench ablation_pipeline --ablate "${link[@]}" "${layers[@]}" --set parallel.pipeline=2 --set train.global_batch_size=$((ranks * 2)) "$@"
bench ablation_tensor --ablate "${link[@]}" "${layers[@]}" --set parallel.tensor=2 --set overlap.tensor_chunks=4 "$@"
