#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the bubble of every schedule on stages that sleep for equal times, and the cost of transfers of 0.1 to 0.5 of a
# forward pass.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: scripts/bench_pipeline.sh [--steps 5] [--stages 2,4] [--micro-batches 16] [--compute paced|real] [--forward-ms 20] [--ratios 0.1,0.25,0.5] [--out runs/bench_pipeline] [-- FLAGS]"
  echo "  Writes a text and a CSV per number of stages to --out. Stages sleep for --forward-ms and may outnumber the cores. With --compute real they"
  echo "  run the kernels, and times include contention for cores. FLAGS go to slipstream bench pipeline. SLIPSTREAM replaces"
  echo "  build/slipstream."
}
steps=5 stages=2,4 micro_batches=16 compute=paced forward_ms=20 ratios=0.1,0.25,0.5 out=runs/bench_pipeline
# shellcheck source=scripts/on_ranks.sh
source scripts/on_ranks.sh
take_options "steps stages micro_batches compute forward_ms ratios out" "$@"
set -- ${flags[@]+"${flags[@]}"}
mkdir -p "$out"
kind=(--compute "$compute")
[[ $compute == real ]] || kind+=(--forward-ms "$forward_ms")
for p in ${stages//,/ }; do
  {
    on_ranks "$p" bench pipeline configs/runs/quickstart.toml \
      --steps "$steps" --ratios "$ratios" "${kind[@]}" --csv "$out/pipeline_${p}stages_$compute.csv" --set model.layers=$((2 * p)) \
      --set train.micro_batch_size=1 --set train.global_batch_size="$micro_batches" "$@"
  } | tee "$out/pipeline_${p}stages_$compute.txt"
done
