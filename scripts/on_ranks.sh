# SPDX-License-Identifier: Apache-2.0
# This file is sourced by the scripts that start ranks. A script first defines `usage` and its variables with their
# defaults.

# take_options "NAMES" ARGUMENTS: --some-name VALUE sets the variable some_name; arguments after -- go to the array
# flags.
take_options() {
  local names=" $1 " name
  shift
  flags=()
  while (($#)); do
    case "$1" in
      -h | --help) usage; exit 0 ;;
      --) shift; flags=("$@"); return ;;
    esac
    name=${1#--}
    name=${name//-/_}
    [[ $1 == --?* && $names == *" $name "* && $# -ge 2 ]] || { usage >&2; exit 2; }
    printf -v "$name" %s "$2"
    shift 2
  done
}

# on_ranks N ARGUMENTS: runs slipstream ARGUMENTS on N ranks, after a line with version, cores, load and date.
program=${SLIPSTREAM:-build/slipstream}
on_ranks() {
  local ranks=$1
  shift
  [[ -x $program ]] || { echo "${0##*/}: $program does not exist. Build it (ninja -C build) or set SLIPSTREAM." >&2; exit 2; }
  command -v mpirun >/dev/null || { echo "${0##*/}: mpirun is missing. Run scripts/setup.sh." >&2; exit 2; }
  echo "$("$program" --version), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), $(date -u +%F)"
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe --bind-to none -np "$ranks" "$program" "$@"
}
