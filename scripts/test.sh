#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs, builds and runs the tests. The last line is `N passed, N failed, N skipped`.
set -euo pipefail

usage() {
  echo "usage: scripts/test.sh [--all] [NAME...]"
  echo "  Runs a representative sample of every suite. The build is in build-tests/."
  echo "  --all    every row and every mutation: hidden cases and the tests of the suite 'all' too"
  echo "  NAME     only the tests whose name or suite contains NAME"
}

all=()
names=()
for argument in "$@"; do
  case "$argument" in
    --all) all=(--all) ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) names+=("$argument") ;;
  esac
done

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
scripts/setup.sh --tests
if command -v ccache >/dev/null && [[ -z "${CC:-}${CXX:-}" ]]; then
  export CC="ccache gcc" CXX="ccache g++" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
fi
# lld takes a quarter of the time for linking.
if command -v ld.lld >/dev/null && [[ -z "${CXX_LD:-}" ]]; then export CXX_LD=lld; fi
build=build-tests
if [[ ! -f $build/build.ninja ]]; then
  rm -rf "$build"
  cuda=disabled
  if nvidia-smi -L >/dev/null 2>&1; then cuda=auto; fi
  meson setup "$build" -Dtests=true -Dwerror=true -Dcuda=$cuda -Dnccl=$cuda >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
  mv "$build.log" "$build/setup.log"
fi
started=$SECONDS
ninja -C "$build"
echo "built in $((SECONDS - started)) s"
# Open MPI refuses to run as root, and more ranks than cores, without these variables.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
exec python3 scripts/run_tests.py "$build" "${all[@]}" "${names[@]}"
