#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the cpu device and the thread communicator under ThreadSanitizer and runs their contracts and the table of
# ZeRO. Eigen computes the products, and OpenMP is not linked, because the sanitizer cannot observe oneDNN and OpenMP.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: scripts/tsan.sh [--all] [NAME...]"
  echo "  A sample of tests/equivalence/zero_table_test.cpp. --all: every row of it, and all of equivalence_test;  NAME: cases of equivalence_test"
  echo "  instead. The build is in build-tsan/. scripts/test.sh runs this, with --all when it has --all."
}
all=${SLIPSTREAM_TEST_ALL:-}
names=()
for argument in "$@"; do
  case "$argument" in
    --all) all=1 ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) names+=("$argument") ;;
  esac
done

# With strong address randomisation, a library may occupy the memory range of the sanitizer. The script then disables
# randomisation, or skips the run.
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo '#include <thread>
int main() { int i = 0; std::thread([&] { i = 1; }).join(); return i - 1; }' >"$probe/probe.cpp"
run=()
if ! "${TSAN_CXX:-g++}" -fsanitize=thread -pthread -o "$probe/probe" "$probe/probe.cpp" 2>"$probe/log"; then
  echo "SKIPPED tsan: this compiler has no thread sanitizer: $(tail -n 1 "$probe/log")"
  exit 77
elif ! "$probe/probe" 2>"$probe/log"; then
  run=(setarch -R)
  if ! "${run[@]}" "$probe/probe" 2>>"$probe/log"; then
    echo "SKIPPED tsan: a program of two threads does not start under the thread sanitizer here: $(grep -m 1 . "$probe/log")"
    exit 77
  fi
fi

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
tests=(contract/cpu_stream_test contract/thread_communicator_test)
if ((${#names[@]} == 0)); then tests+=(equivalence/zero_table_test); fi
if [[ $all || ${#names[@]} -gt 0 ]]; then tests+=(equivalence/equivalence_test); fi
started=$SECONDS
ninja -C "$build" "${tests[@]/#/tests/}"
echo "built in $((SECONDS - started)) s"
# A race ends the program immediately with this exit code.
export TSAN_OPTIONS="halt_on_error=1 exitcode=66 ${TSAN_OPTIONS:-}" SLIPSTREAM_ISA=baseline
if [[ $all ]]; then export SLIPSTREAM_TEST_ALL=1; fi
for test in "${tests[@]}"; do
  began=$SECONDS
  if [[ $test == *equivalence_test ]]; then
    "${run[@]}" "$build/tests/$test" "${names[@]}"
  else
    "${run[@]}" "$build/tests/$test"
  fi
  echo "$test: $((SECONDS - began)) s"
done
# The control test: the sanitizer must detect a missing wait.
if ((${#names[@]} == 0)); then
  code=0
  "${run[@]}" "$build/tests/equivalence/zero_table_test" "[race]" >"$probe/control" 2>&1 || code=$?
  if ((code != 66)) || ! grep -q "WARNING: ThreadSanitizer: data race" "$probe/control"; then
    cat "$probe/control" >&2
    echo "tsan: a plan without waits ended with exit code $code, and should have raced (66)" >&2
    exit 1
  fi
fi
echo "no data race"
