#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the cpu device and the thread communicator under ThreadSanitizer and runs a sample of the equivalence table with them.
# Eigen makes the products and no OpenMP is linked: the sanitizer does not see into either of the other.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: scripts/tsan.sh [--all] [NAME...]"
  echo "  --all   the whole equivalence table instead of a sample;  NAME   cases of it to run instead. The build is in build-tsan/."
}
all=
names=()
for argument in "$@"; do
  case "$argument" in
    --all) all=1 ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) names+=("$argument") ;;
  esac
done
if command -v ccache >/dev/null && [[ -z "${CC:-}${CXX:-}" ]]; then
  export CC="ccache gcc" CXX="ccache g++" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
fi
build=build-tsan
if [[ ! -f $build/build.ninja ]]; then
  rm -rf "$build"
  meson setup "$build" -Dtests=true -Dmpi=disabled -Dcuda=disabled -Dnccl=disabled -Ddnnl=disabled -Doptimization=1 \
    -Db_sanitize=thread -Db_lundef=false >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
  mv "$build.log" "$build/setup.log"
fi
ninja -C "$build" tests/contract/cpu_stream_test tests/contract/thread_communicator_test tests/equivalence/equivalence_test
# A race ends the program with this exit code, at once.
export TSAN_OPTIONS="halt_on_error=1 exitcode=66 ${TSAN_OPTIONS:-}"
"$build/tests/contract/cpu_stream_test"
"$build/tests/contract/thread_communicator_test"
table=$build/tests/equivalence/equivalence_test
if ((${#names[@]})); then
  "$table" "${names[@]}"
elif [[ $all ]]; then
  "$table"
else
  # Every stage, several micro-batches, delays, hybrid groups, bfloat16 on the wire.
  "$table" "sharding survives random delays, and no clipping,sharded gradients of several micro-batches are the same mean,layers that are kept*,bfloat16 on the wire*"
fi
echo "no data race"
