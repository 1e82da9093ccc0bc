#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the cpu device and the thread communicator under ThreadSanitizer and runs the equivalence table with them.
# Eigen makes the products: the sanitizer does not see into OpenMP. Part of scripts/test.sh --all; alone:
#   scripts/tsan.sh [NAME...]   only the cases of equivalence_test that match
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
if command -v ccache >/dev/null && [[ -z "${CC:-}${CXX:-}" ]]; then
  export CC="ccache gcc" CXX="ccache g++" CCACHE_NOHASHDIR=1
fi
build=build-tsan
if [[ ! -f $build/build.ninja ]]; then
  rm -rf "$build"
  meson setup "$build" -Dtests=true -Dmpi=disabled -Dcuda=disabled -Dnccl=disabled -Ddnnl=disabled -Doptimization=1 \
    -Db_sanitize=thread -Db_lundef=false
fi
ninja -C "$build" tests/equivalence/equivalence_test tests/contract/cpu_stream_test tests/contract/thread_communicator_test
# A race ends the program with this exit code, at once.
export TSAN_OPTIONS="halt_on_error=1 exitcode=66 ${TSAN_OPTIONS:-}"
"$build/tests/contract/cpu_stream_test"
"$build/tests/contract/thread_communicator_test"
exec "$build/tests/equivalence/equivalence_test" "$@"
