#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures sums of a tensor over links of a given rate: our direct exchange, our ring and MPI_Allreduce, interleaved, by
# size and number of hosts. The bound is 2 (n-1)/n of the bytes at TCP's share of the line rate.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: scripts/bench_collectives.sh [--hosts 2,3,4] [--rate 1Gbit]"
  echo "  Needs root (namespaces, tc) and the test build build-tests, which scripts/test.sh creates. BUILD selects another build."
}
hosts=2,3,4 rate=1Gbit
while (($#)); do
  case "$1" in
    --hosts) hosts=$2; shift 2 ;;
    --rate) rate=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
# shellcheck source=scripts/netlab.sh
source scripts/netlab.sh
netlab_require bench_collectives
build=${BUILD:-build-tests}
[[ -f $build/build.ninja ]] || { echo "bench_collectives: $build contains no build. Run scripts/test.sh, or set BUILD." >&2; exit 2; }
ninja -C "$build" tests/bench/mpi_bench >/dev/null
program=$(realpath -- "$build/tests/bench/mpi_bench")
trap netlab_down EXIT
for n in ${hosts//,/ }; do
  netlab_up bench_collectives "$n" "$rate"
  echo "$n hosts, $rate, all_reduce of float32:"
  netlab_mpirun "$program"
done
