#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats every C++ and CUDA source as .clang-format says, or says which are not.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  echo "usage: scripts/format.sh [--check]"
  echo "  Formats all sources in place with clang-format 14 (other versions break lines elsewhere)."
  echo "  --check  changes nothing; exit code 1 if a source would change. Without clang-format 14 it says so and passes."
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
    find bench cli comm engine kernels models planner runtime tests -name '*.cpp' -o -name '*.h' -o -name '*.hpp' -o -name '*.cu' -o -name '*.cuh' |
      sort | xargs "$tool" "${options[@]}"
    exit
  fi
done
echo "format: no clang-format 14 here; scripts/setup.sh --tests installs it where the distribution has it" >&2
[[ "${1:-}" == --check ]]
