#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats every C++ and CUDA source by .clang-format, or lists the sources that differ.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  echo "usage: scripts/format.sh [--check]"
  echo "  Formats all sources in place with clang-format 14 (other versions break lines differently)."
  echo "  --check  changes nothing; exit code 1 if a source would change. Without clang-format 14 it prints a message and passes."
}

options=(-i)
case "${1:-}" in
  "") ;;
  --check) options=(--dry-run -Werror) ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac

for tool in clang-format-14 clang-format; do
  if command -v "$tool" >/dev/null && [[ "$("$tool" --version)" == *"version 14."* ]]; then
    find comm engine kernels models trainer tests -name '*.cpp' -o -name '*.h' -o -name '*.hpp' -o -name '*.cu' -o -name '*.cuh' |
      sort | xargs "$tool" "${options[@]}"
    exit
  fi
done
echo "format: clang-format 14 is missing; scripts/setup.sh --tests installs it if the distribution has it" >&2
[[ "${1:-}" == --check ]]
