#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the overlap table: the four modes of gradient reduction at communication / compute = 0.25, 0.5, 1 and 2, on 2
# and 4 ranks.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: scripts/bench_overlap.sh [--steps 30] [--ranks 2,4] [--ratios 0.25,0.5,1,2] [--out runs/bench_overlap] [-- FLAGS]"
  echo "  Compute is real if every rank has its own core, else paced. Writes a text and a CSV per number of ranks to --out."
  echo "  FLAGS go to slipstream bench overlap, for instance --set model.layers=12. SLIPSTREAM replaces build/slipstream."
}
steps=30 ranks=2,4 ratios=0.25,0.5,1,2 out=runs/bench_overlap
# shellcheck source=scripts/on_ranks.sh
source scripts/on_ranks.sh
take_options "steps ranks ratios out" "$@"
set -- ${flags[@]+"${flags[@]}"}
mkdir -p "$out"
for n in ${ranks//,/ }; do
  compute=real
  ((n <= $(nproc))) || compute=paced
  {
    on_ranks "$n" bench overlap configs/runs/quickstart.toml \
      --steps "$steps" --ratios "$ratios" --compute "$compute" --csv "$out/overlap_${n}ranks.csv" --set device.threads=1 \
      --set model.layers=8 --set model.width=192 --set model.heads=6 \
      --set train.micro_batch_size=16 --set train.global_batch_size=$((16 * n)) \
      --set overlap.bucket_size=1MiB --set overlap.first_bucket_size=128KiB "$@"
  } | tee "$out/overlap_${n}ranks.txt"
done
