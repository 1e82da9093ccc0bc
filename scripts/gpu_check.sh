#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks a GPU machine, from a bundle (scripts/bundle.sh) or from a build. It needs neither network nor package manager.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu_check.sh [--call 1|2]... [--stage STAGE]... [--seconds N] [--out DIR] [--from DIR] [--again] [--bundle FILE]
  --call N       for a machine that is lent for fifteen minutes: call 1, and directly after it call 2. Their parts, with their seconds:
                 1 (590 s)   15  canary: every kernel once. It chooses the kernels of attention for all other tests
                             30  a step of GPT-2 124M
                             70  tests of kernels, a process per op, attention last; beside them torch.compile fills its cache
                             60  PyTorch's step, eager and compiled
                             60  kernels beside their bounds, and PyTorch's
                            130  the table of products
                             30  the step of GPT-2 124M with that table
                             40  a step of Llama 1.2B
                             45  the step of GPT-2 124M with early launches, without, and with attention backward by 128 queries
                             30  Nsight Compute of attention
                 2 (150 s)   40  communication of 0.6 of the backward pass, emulated by blocks
                             40  NCCL's laws on two ranks of one GPU
                             50  memcheck of attention and products
  --stage STAGE  everything of a kind, 590 s each; the default is all four:
                 kernels   canary, and tests of one process: kernels, streams, golden values, waits of the host
                 nccl      NCCL's laws, the equivalence table and a training run on 1, 2 and 4 ranks of one GPU; the order of tasks on 3
                 sanitize  compute-sanitizer over the kernel tests: memcheck, racecheck, initcheck, synccheck
                 bench     kernels, steps, tables of products, PyTorch, profiles, and overlap on emulated links
                 all       all four, in this order
  --seconds N    end within N seconds (at least 30; default: the sum of the above). Parts are cut off from the end
  --out DIR      folder of the results (default: gpu_check)
  --from DIR     results of an earlier call to continue from (default: results/ of the bundle, if it has that folder)
  --again        discard earlier results of the requested parts
  --bundle FILE  unpack this bundle into slipstream-gpu/ beside it, and run the check from there. Needs tar with xz, or python3
  In the environment: SLIPSTREAM_BUILD=DIR, a build directory to use outside of a bundle (default: build);
  SLIPSTREAM_CHECK_SCALE=F, a factor on every time limit (default: 1); SLIPSTREAM_CHECK_FILE_MIB=N, the largest file that a test may
  write (default: 4096)

A test that hangs, crashes or fills the disk stops no other. Time that a part leaves goes at the end to tests that never ran or were cut
off, then to those that failed in an earlier call. What had no time is named before the summary; the next call continues with it.

Seven files: DIR/found.txt; tests.txt, for each test a line, its numbers, the GPU's clocks beside it and the end of its output;
kernels.csv; measured.csv ("what,value,unit", a later line replaces an earlier one); products.json; clocks.csv, clocks and power of each
second; summary.md, which is printed last. All but the last are written as they are measured.
Exit code: 0 all passed, 1 something failed, 2 a wrong argument, or DIR holds results of another bundle or GPU, 3 not finished, 7
something is missing on this machine.
TEXT
}

out=gpu_check from="" again=0 bundle="" seconds=0
plans=()  # "call N" and "stage NAME", in the requested order
arguments=("$@")
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --call)
      case "${2:-}" in
        1 | 2) plans+=("call $2") ;;
        *) echo "gpu_check: unknown call '${2:-}'. Use 1 or 2." >&2; usage >&2; exit 2 ;;
      esac
      shift 2 ;;
    --stage)
      case "${2:-}" in
        kernels | nccl | sanitize | bench) plans+=("stage $2") ;;
        all) plans+=("stage kernels" "stage nccl" "stage sanitize" "stage bench") ;;
        *) echo "gpu_check: unknown stage '${2:-}'" >&2; usage >&2; exit 2 ;;
      esac
      shift 2 ;;
    --seconds)
      if [[ ! ${2:-} =~ ^[0-9]{2,6}$ ]] || ((10#$2 < 30)); then echo "gpu_check: --seconds '${2:-}' must be a whole number of at least 30." >&2; exit 2; fi
      seconds=$((10#$2))
      shift 2 ;;
    --out) out=${2:?--out needs a directory}; shift 2 ;;
    --from) from=${2:?--from needs a directory}; shift 2 ;;
    --again) again=1; shift ;;
    --bundle) bundle=${2:?--bundle needs a file}; shift 2 ;;
    *) usage >&2; exit 2 ;;
  esac
done
((${#plans[@]})) || plans=("stage kernels" "stage nccl" "stage sanitize" "stage bench")

# --- time: milliseconds, multiplied by the scale that rehearsals set

scale=$(awk -v scale="${SLIPSTREAM_CHECK_SCALE:-1}" 'BEGIN { printf "%d", 1000 * scale }')
readonly scale
now_ms() { local us=${EPOCHREALTIME//[.,]/}; echo $((us / 1000)); }
scaled_ms() { echo $(($1 * scale)); }
seconds_of() { printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); }
began_ms=${SLIPSTREAM_CHECK_BEGAN_MS:-$(now_ms)}
readonly began_ms
# A test that ignores its termination signal is killed after kill_seconds. Tests end reserve_seconds before the time is
# over, which leaves time for the kill and for the summary.
readonly kill_seconds=3 reserve_seconds=8
# CUDA and NCCL use memory files in addition to the tests' files.
readonly file_kib=$((${SLIPSTREAM_CHECK_FILE_MIB:-4096} * 1024))

if [[ -n $bundle ]]; then
  [[ -f $bundle ]] || { echo "gpu_check: there is no bundle $bundle. scripts/bundle.sh makes one." >&2; exit 2; }
  here=$(dirname -- "$bundle")
  if [[ ! -f $here/slipstream-gpu/MANIFEST || $bundle -nt $here/slipstream-gpu/MANIFEST ]]; then
    rm -rf -- "$here/slipstream-gpu"
    if ! tar -C "$here" -xf "$bundle" 2>/dev/null \
        && ! python3 -W ignore -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$bundle" "$here"; then
      echo "gpu_check: cannot unpack $bundle: it needs tar with xz, or a python3 with lzma, and room in $here." >&2
      exit 7
    fi
    touch -- "$here/slipstream-gpu/MANIFEST"
  fi
  i=0
  while [[ ${arguments[i]} != --bundle ]]; do ((++i)); done
  SLIPSTREAM_CHECK_BEGAN_MS=$began_ms exec "$here/slipstream-gpu/scripts/gpu_check.sh" "${arguments[@]:0:i}" "${arguments[@]:i + 2}"
fi

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$out"
out=$(cd -- "$out" && pwd)
# A program that was killed leaves the file that it was writing beside its results.
remove_unfinished() { rm -f -- "$out"/*.new "$out"/*.tmp-*; }
remove_unfinished
if [[ -z $from && -d $root/results ]]; then from=$root/results; fi
readonly result_files=(tests.txt kernels.csv measured.csv products.json clocks.csv)

# Results are valid for one bundle on one kind of GPU.
origin_of() { grep -E '^(bundle of commit|found: GPU) ' "$1" 2>/dev/null || true; }
readonly found=$out/found.txt
found_before=$(cat "$found" 2>/dev/null || true)
origin_before=$(origin_of "$found")
: >"$found"
note() { printf '%s\n' "$*" | tee -a "$found"; }

# --- the programs, libraries and GPUs that are available

missing=0 hopper=0
library_path=$root/lib
if [[ -f $root/MANIFEST ]]; then
  program=$root/bin/slipstream
  tests_of() { find "$root/$1" -maxdepth 1 -type f -perm -u+x 2>/dev/null | sort; }
  cuda_major=$(sed -n 's/^cuda_major=//p' "$root/MANIFEST")
  archs=$(sed -n 's/^archs=//p' "$root/MANIFEST")
  note "bundle of commit $(sed -n 's/^commit=//p' "$root/MANIFEST")"
  # The glibc of the build machine, which must not be newer than this machine's.
  glibc_needed=$(sed -n 's/^glibc=//p' "$root/MANIFEST")
  glibc_here=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed -n 's/.* //p')
  if [[ -n $glibc_needed && $(printf '%s\n' "$glibc_needed" "${glibc_here:-0}" | sort -V | head -n 1) != "$glibc_needed" ]]; then
    note "missing: glibc $glibc_needed, which the bundle was built with; this machine has ${glibc_here:-none}. Build the bundle on a machine with an older one."
    missing=1
  fi
else
  build=$(realpath -m -- "${SLIPSTREAM_BUILD:-$root/build}")
  program=$build/slipstream
  tests_of() {
    case "$1" in
      tests) find "$build/tests" -type f -perm -u+x -name 'gpu_*' ! -name '*nccl*' ! -name '*_bench' 2>/dev/null | sort ;;
      nccl) find "$build/tests" -type f -perm -u+x -name 'gpu_*nccl*' 2>/dev/null | sort ;;
      bench) find "$build/tests" -type f -perm -u+x -name 'gpu_*_bench' 2>/dev/null | sort ;;
    esac
  }
  cuda_major=""
  archs=$(grep -o 'code=sm_[0-9]*[af]*' "$build/build.ninja" 2>/dev/null | sed 's/code=sm_//' | sort -u | paste -sd ' ') || true
  note "build $build"
fi
if [[ ! -x $program ]]; then
  note "missing: $program. Build it, or unpack the bundle again."
  exit 7
fi
if [[ -z $cuda_major ]]; then
  # grep must read all of its input, because a reader that stops early would make the pipe fail.
  cuda_major=$(ldd "$program" 2>/dev/null | sed -n 's/.*libcublas\.so\.\([0-9]*\).*/\1/p; s/.*libcudart\.so\.\([0-9]*\).*/\1/p' | sort -u | tail -n 1)
fi
if [[ -z $cuda_major || $cuda_major == none ]]; then
  note "missing: CUDA in the program itself. Build with -Dcuda=enabled."
  exit 7
fi

python_packages() {
  command -v python3 >/dev/null || return 0
  timeout 20 python3 -c 'import site, sys; print("\n".join(sorted(set(site.getsitepackages() + [site.getusersitepackages()] + [p for p in sys.path if p.endswith("-packages")]))))' 2>/dev/null || true
}
places=()
for place in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda "/usr/local/cuda-$cuda_major"* /opt/cuda; do
  [[ -n $place ]] && places+=("$place/lib64" "$place/lib" "$place/targets/x86_64-linux/lib")
done
places+=(/usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/lib /usr/lib/aarch64-linux-gnu)
while read -r packages; do
  # PyTorch's wheels: one folder for all of CUDA 13, one folder per library in older versions.
  [[ -d $packages/nvidia ]] && for place in "$packages"/nvidia/cu"$cuda_major"/lib "$packages"/nvidia/*/lib; do places+=("$place"); done
done < <(python_packages)

# Finds a library by its file name and appends its folder to the list.
find_library() {
  local place
  for place in "${places[@]}"; do
    if [[ -e $place/$1 ]]; then
      note "found: $1 in $place"
      case ":$library_path:" in *":$place:"*) ;; *) library_path+=":$place" ;; esac
      return 0
    fi
  done
  note "missing: $1 for CUDA $cuda_major. Install the CUDA $cuda_major toolkit or PyTorch's wheels for it, or set CUDA_HOME."
  missing=1
}
if command -v nvidia-smi >/dev/null && gpus=$(timeout 30 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1); then
  while read -r gpu; do note "found: GPU $gpu"; done <<<"$gpus"
  # Code runs on later minor versions of its architecture. Code with "a" runs only on its version, and code with "f" on
  # its family.
  runs_on() {
    local arch=${1//[af]/} suffix=${1//[0-9]/} here=$2
    ((arch / 10 == here / 10)) && if [[ $suffix == a ]]; then ((arch == here)); else ((arch <= here)); fi
  }
  while read -r capability; do
    [[ $capability == 9.* ]] && hopper=1
    [[ $capability =~ ^[0-9]+\.[0-9]$ && -n $archs ]] || continue
    here=${capability/./} fits=0
    for arch in $archs; do if runs_on "$arch" "$here"; then fits=1; fi; done
    if ((!fits)); then
      note "missing: code for compute capability $capability; this build has ${archs// /, }. Build with -Dgpu_archs=${here/#90/90a}."
      missing=1
    fi
  done < <(timeout 30 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u)
else
  note "missing: an NVIDIA driver with a GPU (nvidia-smi does not answer)."
  missing=1
fi
for library in "libcudart.so.$cuda_major" "libcublas.so.$cuda_major" "libcublasLt.so.$cuda_major" libnccl.so.2; do
  if ldd "$program" 2>/dev/null | grep -F "$library" >/dev/null; then find_library "$library"; fi
done
if [[ -d $root/openmpi ]]; then
  export OPAL_PREFIX=$root/openmpi PATH=$root/openmpi/bin:$PATH
fi
machine_library_path=${LD_LIBRARY_PATH:-}  # for programs of this machine, which may want a newer libstdc++ than the bundle's
export LD_LIBRARY_PATH=$library_path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} SLIPSTREAM_GOLDEN_DIR=$root/tests/golden
# The last variable is set because PMIx warns about a compression library that a bare machine lacks.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_pcompress_base_silence_warning=1
if ((missing)); then exit 7; fi

if [[ -n $origin_before && $(origin_of "$found") != "$origin_before" ]]; then
  if ((again)); then
    for file in "${result_files[@]}"; do [[ $file == products.json ]] || rm -f -- "$out/$file"; done
  else
    printf '%s\n' "$found_before" >"$found"
    echo "gpu_check: $out holds results of another bundle or GPU. Choose another folder with --out, or discard the results with --again." >&2
    exit 2
  fi
fi
if [[ -n $from && -d $from ]]; then
  if [[ $(origin_of "$from/found.txt") == "$(origin_of "$found")" ]]; then
    carried=("${result_files[@]}")
  else
    note "of $from only the table of products is used: its other results are of another bundle or GPU"
    carried=(products.json)  # names the GPU and the library that it is for; the program checks both
  fi
  for file in "${carried[@]}"; do
    if [[ -f $from/$file && ! -e $out/$file ]]; then cp -- "$from/$file" "$out/$file"; fi
  done
fi

# --- one test

# From here on, failures do not end the script, because a broken part must not stop the next one.
set +e
readonly results=$out/tests.txt measured_csv=$out/measured.csv products_json=$out/products.json clocks_csv=$out/clocks.csv
work=$(mktemp -d)
readonly scratch=$work/scratch
beside=()  # processes that run beside the tests
# shellcheck disable=SC2154  # the loop assigns it
trap 'for process in "${beside[@]}"; do kill "$process"; done 2>/dev/null; rm -rf -- "$work"' EXIT
failed=0             # a test that failed or hung in this call
declare -A state=()  # the result of every test in the file of results
declare -A tried=()  # tests that this call finished
declare -A cut=()    # tests that this call began and did not finish
unrun=()             # tests that no time was left for
touch "$results"
while read -r result _ _ name; do state[$name]=$result; done < <(grep -E '^[a-z]+ +[0-9]+ s  ' "$results")
kill_after=$(seconds_of "$(scaled_ms "$kill_seconds")")
readonly kill_after

# Records a number in a test's own process: WHAT VALUE UNIT. It is printed above the test's output.
measured() {
  printf '%s,%s,%s\n' "$1" "$2" "$3" >>"$measured_csv"
  printf '%s: %s %s\n' "$1" "$2" "$3" >>"$work/headline"
}

# Prints the results without the lines of test $1.
results_without() {
  awk -v name="s  $1" '/^    \|/ { if (!drop) print; next } { drop = substr($0, length($0) - length(name) + 1) == name } !drop' "$results"
}
# Replaces the file of results by standard input, or leaves it unchanged if the disk is full.
replace_results() {
  local text
  text=$(cat)
  if { printf '%s' "${text:+$text$'\n'}" >"$results.new"; } 2>/dev/null; then
    mv -f -- "$results.new" "$results"
  else
    rm -f -- "$results.new"
    echo "gpu_check: no room to write $results"
  fi
}

# Logs clocks and power each second, until the script ends. A driver may lack the last column.
log_clocks() {
  local columns=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu reasons=clocks_throttle_reasons.active
  timeout 10 nvidia-smi --id=0 --query-gpu=$columns,$reasons --format=csv >/dev/null 2>&1 && columns+=,$reasons
  stdbuf -oL nvidia-smi --id=0 --query-gpu=$columns --format=csv,nounits --loop=1 </dev/null >>"$clocks_csv" 2>/dev/null &
  beside+=($!)
}
# Prints "SM clock 1410 to 1980 MHz, at most 690 W" for the lines after line $1.
clocks_since() {
  tail -n +$(($1 + 1)) "$clocks_csv" 2>/dev/null | awk -F', ' '
    $2 ~ /^[0-9]+$/ { if (!n++ || $2 < low) low = $2; if ($2 > high) high = $2; if ($4 + 0 > watts) watts = $4 + 0 }
    END { if (n) printf "SM clock %d to %d MHz, at most %d W\n", low, high, watts }'
}

# Runs a command as test NAME of a part, within the part's time; writes "RESULT SECONDS NAME". Passes:
#   first   tests that have no result or were cut off
#   rest    the same, with all the time that is left
#   again   those that failed, timed out or were refused in an earlier call
#   forget  none: removes their results
run_test() {
  local name=$1 code=0 result earlier left limit began text clock_lines
  shift
  if [[ $pass == forget ]]; then
    if [[ -n ${state[$name]:-} ]]; then results_without "$name" | replace_results; fi
    unset "state[$name]"
    return 0
  fi
  earlier=${state[$name]:-}
  case $pass:$earlier in
    *:ok) return 0 ;;
    first: | first:cut | rest: | rest:cut) ;;
    first:* | rest:*) return 0 ;;
    *) if [[ -z $earlier || -n ${tried[$name]:-} ]]; then return 0; fi ;;
  esac
  began=$(now_ms)
  if ((began >= ends_by)); then
    if [[ $pass != first && -z ${cut[$name]:-} ]]; then unrun+=("$name"); fi
    return 0
  fi
  left=$((ends_by - began))
  limit=$((left < test_ms ? left : test_ms))
  rm -rf -- "$scratch" "$work/headline"
  mkdir -p "$scratch"
  clock_lines=$(wc -l 2>/dev/null <"$clocks_csv")
  # The test has no standard input, from which mpirun would read the list of tests. Its files go to a folder that is
  # removed afterwards. The outer redirection catches this shell's own line about a killed test.
  {
    (
      ulimit -f "$file_kib"
      TMPDIR=$scratch exec timeout -k "$kill_after" "$(seconds_of "$limit")" "$@"
    ) </dev/null >"$work/log" 2>&1
  } 2>/dev/null
  code=$?
  rm -rf -- "$scratch"
  remove_unfinished
  case $code in
    0) result=ok ;;
    77 | 99) result=refused ;;  # 77: the test skips itself and prints the reason
    98) result="cut" ;;         # the test saved a part of its work, and continues later
    124 | 137)
      # The end of its part or of the call cut it off. The start of a part takes a little of its time.
      if ((10 * limit < 9 * test_ms)); then result="cut"; else result=timeout; fi ;;
    *) result=failed ;;
  esac
  unset "cut[$name]"
  state[$name]=$result
  case $result in
    cut) cut[$name]=1 ;;
    failed | timeout) failed=1 tried[$name]=1 ;;
    *) tried[$name]=1 ;;
  esac
  # The numbers come first, and then the output of the test.
  text=$(
    printf '%-8s %4d s  %s\n' "$result" $((($(now_ms) - began) / 1000)) "$name"
    {
      cat "$work/headline" 2>/dev/null
      if [[ ${keep_output:-0} == 1 ]]; then clocks_since "${clock_lines:-0}"; fi
      if [[ $result != ok ]]; then tail -n 40 "$work/log"; elif [[ ${keep_output:-0} == 1 ]]; then head -n 400 "$work/log"; fi
    } | cut -c 1-400 | sed 's/^/    | /'
  )
  # There is one line per test. A later run replaces results other than ok.
  { results_without "$name"; printf '%s\n' "$text"; } | replace_results
  printf '%s\n' "$text"
}

# shellcheck source=scripts/gpu_parts.sh
source "$root/scripts/gpu_parts.sh"

# --- calls and stages

python=(env "LD_LIBRARY_PATH=$machine_library_path" python3)
export TORCHINDUCTOR_CACHE_DIR=$work/inductor TRITON_CACHE_DIR=$work/triton TORCHINDUCTOR_FX_GRAPH_CACHE=1 TORCHINDUCTOR_AUTOGRAD_CACHE=1
export root out work program sanitizer="" kind=cuda measured_csv products_json scratch
# Runs every row in its own time, and then all of them in the time that remains.
run_rows() {
  local row part of_part of_test pass
  for pass in forget first rest again; do
    [[ $pass != forget || $again == 1 ]] || continue
    if [[ $pass == first ]]; then choose_attention; fi
    for row in "$@"; do
      IFS=: read -r part of_part of_test <<<"$row"
      test_ms=$(scaled_ms "$of_test")
      ends_by=$call_end
      if [[ $pass == first ]]; then
        echo "== $part"
        ends_by=$(($(now_ms) + $(scaled_ms "$of_part")))
        if ((ends_by > call_end)); then ends_by=$call_end; fi
      fi
      "part_$part"
    done
  done
}

rows=() default_seconds=0
for plan in "${plans[@]}"; do
  read -ra more <<<"$(rows_of "$plan")"
  rows+=("${more[@]}")
  ((default_seconds += $([[ $plan == "call 2" ]] && echo 150 || echo 590)))
done
((seconds)) || seconds=$default_seconds
call_end=$((began_ms + $(scaled_ms $((seconds - reserve_seconds)))))
log_clocks
run_rows "${rows[@]}"

one_line() { printf '%s; ' "${@:1:20}" | sed 's/; $//'; (($# <= 20)) || printf ' and %d more' $(($# - 20)); }
if ((${#cut[@]})); then echo "cut off after $seconds s: $(one_line "${!cut[@]}")"; fi
if ((${#unrun[@]})); then echo "not run for lack of time: $(one_line "${unrun[@]}")"; fi
if ((${#cut[@]} + ${#unrun[@]})); then echo "not finished: call again with the same arguments"; fi
if command -v python3 >/dev/null && [[ -f $root/scripts/gpu_summary.py ]]; then
  summary=$(timeout 5 "${python[@]}" "$root/scripts/gpu_summary.py" "$out" 2>/dev/null)
  { printf '%s\n' "$summary" >"$out/summary.md"; } 2>/dev/null || rm -f -- "$out/summary.md"
  printf '%s\n' "$summary"
fi
if ((failed)); then exit 1; fi
if ((${#cut[@]} + ${#unrun[@]})); then exit 3; fi
exit 0
