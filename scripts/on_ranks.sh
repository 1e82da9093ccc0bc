# SPDX-License-Identifier: Apache-2.0
# Sourced by the benchmarks that start ranks: $program, and `on_ranks N ARGUMENTS`, which prints what was measured where first.
program=${SLIPSTREAM:-build/slipstream}
[[ -x $program ]] || { echo "${0##*/}: $program is not there. Build it (ninja -C build) or set SLIPSTREAM." >&2; exit 2; }
command -v mpirun >/dev/null || { echo "${0##*/}: mpirun is missing. Run scripts/setup.sh." >&2; exit 2; }
on_ranks() {
  local ranks=$1
  shift
  echo "$("$program" --version), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), $(date -u +%F)"
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe --bind-to none -np "$ranks" "$program" "$@"
}
