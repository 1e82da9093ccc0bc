#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks a GPU machine, from a bundle (scripts/bundle.sh) or a build. Needs neither network nor package manager.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu_check.sh [--call 1|2|3]... [--stage STAGE]... [--out DIR] [--from DIR] [--again]
  --call N       runs the parts of a call, most important first, for machines with a limit of 600 s per command; each call ends within 570 s:
                 1  tests of kernels, a GPT-2 124M step and PyTorch's, kernels with their bounds and PyTorch's, the table of
                    products, the step with that table, a Llama 1.2B step, profiles of four kernels and of one overlapped step
                 2  communication of 0.6 of the backward pass, two NCCL ranks on one GPU, the order of tasks on three, emulated
                    links in three forms, the table of Llama's products and the step with it, overlap on two ranks
                 3  compute-sanitizer: memcheck, racecheck, initcheck, synccheck
  --stage STAGE  kernels   the tests of one process: every kernel, streams, golden values, waits of the host
                 nccl      the communicator's laws, the equivalence table and a training run on 1, 2 and 4 ranks of one GPU, and
                           the order of tasks on 3
                 sanitize  compute-sanitizer over the kernel tests
                 bench     kernels, GPT-2 124M and overlap, compared with PyTorch if python3 has it
                 all       all four, in this order (default)
  --out DIR      folder of the results (default: gpu_check)
  --from DIR     results of an earlier call to continue from (default: results/ of the bundle, if it has that folder)
  --again        discard earlier results of the requested parts
  In the environment: SLIPSTREAM_BUILD=DIR, a build directory to use outside of a bundle (default: build);
  SLIPSTREAM_STAGE_SECONDS=N, seconds after which a stage starts no test (default: 420); SLIPSTREAM_CHECK_SCALE=F, a factor on every
  time limit (default: 1); SLIPSTREAM_CHECK_FILE_MIB=N, the largest file that a test may write (default: 4096)

Results, at most 8 files: DIR/found.txt; kernels.txt, nccl.txt, sanitize.txt and bench.txt with a line per test, its numbers and the
end of its output; kernels.csv; measured.csv ("what,value,unit", a later line replaces an earlier one); products.json. Each is
written before the next test begins. The next call continues: tests that never ran come first, then those that
failed or were refused. scripts/gpu_summary.py DIR makes a page of them. Exit code: 0 all passed, 1 something failed, 2 a wrong argument, or DIR
holds results of another bundle or GPU, 3 not finished, 7 something is missing on this machine.
TEXT
}

out=gpu_check
from=""
again=0
plans=()  # "call N" and "stage NAME", in the requested order
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --call)
      case "${2:-}" in
        1 | 2 | 3) plans+=("call $2") ;;
        *) echo "gpu_check: unknown call '${2:-}'. Use 1, 2 or 3." >&2; usage >&2; exit 2 ;;
      esac
      shift 2 ;;
    --stage)
      case "${2:-}" in
        kernels | nccl | sanitize | bench) plans+=("stage $2") ;;
        all) plans+=("stage kernels" "stage nccl" "stage sanitize" "stage bench") ;;
        *) echo "gpu_check: unknown stage '${2:-}'" >&2; usage >&2; exit 2 ;;
      esac
      shift 2 ;;
    --out) out=${2:?--out needs a directory}; shift 2 ;;
    --from) from=${2:?--from needs a directory}; shift 2 ;;
    --again) again=1; shift ;;
    *) usage >&2; exit 2 ;;
  esac
done
((${#plans[@]})) || plans=("stage kernels" "stage nccl" "stage sanitize" "stage bench")

# --- time: milliseconds, times the scale that rehearsals set

readonly scale=${SLIPSTREAM_CHECK_SCALE:-1}
now_ms() { local us=${EPOCHREALTIME//[.,]/}; echo $((us / 1000)); }
scaled_ms() { awk -v seconds="$1" -v scale="$scale" 'BEGIN { printf "%d", 1000 * seconds * scale }'; }
seconds_of() { printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); }
began_ms=$(now_ms)
readonly began_ms
# A stage begins no test after stage_seconds and ends last_seconds later; no test gets more than test_seconds.
readonly stage_seconds=${SLIPSTREAM_STAGE_SECONDS:-420} last_seconds=40 test_seconds=300 call_seconds=570
# A test that ignores its termination signal is killed after this time. CUDA and NCCL use memory files in addition to
# the tests' files.
readonly kill_seconds=3 file_kib=$((${SLIPSTREAM_CHECK_FILE_MIB:-4096} * 1024))

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$out"
out=$(cd -- "$out" && pwd)
# A program that was killed leaves the file that it was writing beside its results.
remove_unfinished() { rm -f -- "$out"/*.new "$out"/*.tmp-*; }
remove_unfinished
if [[ -z $from && -d $root/results ]]; then from=$root/results; fi
readonly result_files=(kernels.txt nccl.txt sanitize.txt bench.txt kernels.csv measured.csv products.json)

# Results hold for one bundle on one kind of GPU.
origin_of() { grep -E '^(bundle of commit|found: GPU) ' "$1" 2>/dev/null || true; }
readonly found=$out/found.txt
found_before=$(cat "$found" 2>/dev/null || true)
origin_before=$(origin_of "$found")
: >"$found"
note() { printf '%s\n' "$*" | tee -a "$found"; }

# --- what is here

missing=0
library_path=$root/lib
if [[ -f $root/MANIFEST ]]; then
  program=$root/bin/slipstream
  tests_of() { find "$root/$1" -maxdepth 1 -type f -perm -u+x 2>/dev/null | sort; }
  cuda_major=$(sed -n 's/^cuda_major=//p' "$root/MANIFEST")
  archs=$(sed -n 's/^archs=//p' "$root/MANIFEST")
  note "bundle of commit $(sed -n 's/^commit=//p' "$root/MANIFEST")"
  # Version of the build machine, which must not be newer than this machine's.
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
  # grep reads all of its input, because a reader that stops early would fail the pipe.
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
  # Code runs on later minor versions of its architecture; with "a" on that version alone, with "f" on its family.
  runs_on() {
    local arch=${1//[af]/} suffix=${1//[0-9]/} here=$2
    ((arch / 10 == here / 10)) && if [[ $suffix == a ]]; then ((arch == here)); else ((arch <= here)); fi
  }
  while read -r capability; do
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
# The last one: PMIx warns about a compression library that a bare machine lacks.
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
failed=0   # a test that failed or hung in this call
cut=0      # a test that this call began and did not finish
waiting=0  # tests that no time was left for
declare -A tried=()
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
readonly measured_csv=$out/measured.csv products_json=$out/products.json scratch=$work/scratch

# Records a number in a test's own process: WHAT VALUE UNIT. It is printed above the test's output.
measured() {
  printf '%s,%s,%s\n' "$1" "$2" "$3" >>"$measured_csv"
  printf '%s: %s %s\n' "$1" "$2" "$3" >>"$work/headline"
}

# The results without the lines of test $1.
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

# Runs a command as test NAME of a part, unless the file of results has it, within the part's time; writes "RESULT SECONDS NAME".
run_test() {
  local name=$1 code=0 result left limit cap began text
  shift
  if [[ $pass == forget ]]; then
    results_without "$name" | replace_results
    return 0
  fi
  if grep -E "^ok +[0-9]+ s  $name\$" "$results" >/dev/null; then return 0; fi
  if [[ -n ${tried[$results $name]:-} ]]; then return 0; fi
  if [[ $pass == first ]] && grep -E "^[a-z]+ +[0-9]+ s  $name\$" "$results" >/dev/null; then return 0; fi
  began=$(now_ms)
  if ((began >= begins_until)); then
    if [[ $pass == first ]]; then waiting=1; else cut=1; fi
    return 0
  fi
  tried[$results $name]=1
  cap=$test_ms
  if ((cap > part_ms)); then cap=$part_ms; fi
  left=$((ends_by - began))
  limit=$((left < cap ? left : cap))
  rm -rf -- "$scratch" "$work/headline"
  mkdir -p "$scratch"
  # Without standard input, from which mpirun would read the list of tests. The test's files go to a folder that is
  # removed afterwards. The outer redirection is for this shell's own line about a killed test.
  {
    (
      ulimit -f "$file_kib"
      TMPDIR=$scratch exec timeout -k "$(seconds_of "$(scaled_ms "$kill_seconds")")" "$(seconds_of "$limit")" "$@"
    ) </dev/null >"$work/log" 2>&1
  } 2>/dev/null
  code=$?
  rm -rf -- "$scratch"
  remove_unfinished
  case $code in
    0) result=ok ;;
    77 | 99) result=refused ;;  # 77: the test skips itself and prints the reason
    98) result=cut cut=1 ;;     # the test saved a part of its work, and continues in the next call
    124 | 137)
      # Ended by the part's time limit; the next call may give it more. The start of a part takes a little of its time.
      if ((10 * limit < 9 * cap)); then result=cut cut=1; else result=timeout failed=1; fi ;;
    *) result=failed failed=1 ;;
  esac
  # The numbers first, then what the test printed.
  text=$(
    printf '%-8s %4d s  %s\n' "$result" $((($(now_ms) - began) / 1000)) "$name"
    {
      cat "$work/headline" 2>/dev/null
      if [[ $result != ok ]]; then tail -n 40 "$work/log"; elif [[ ${keep_output:-0} == 1 ]]; then head -n 400 "$work/log"; fi
    } | cut -c 1-400 | sed 's/^/    | /'
  )
  # One line per test; a later run replaces results other than ok.
  { results_without "$name"; printf '%s\n' "$text"; } | replace_results
  printf '%s\n' "$text"
}
refuse() { printf 'echo %q; exit 99' "$1"; }

# --- parts; each sets the file of its results

nothing_to_run() { run_test "programs of $1" bash -c "$(refuse "this build has no program for $1")"; }

part_kernels() {
  local results=$out/kernels.txt path any=0
  while read -r path; do
    any=1
    run_test "$(basename "$path")" "$path"
  done < <(tests_of tests)
  ((any)) || nothing_to_run kernels
}

launch_on() {
  local ranks=$1
  shift
  if ((ranks == 1)); then SLIPSTREAM_SHARE_GPU=1 "$@"; return; fi
  SLIPSTREAM_SHARE_GPU=1 mpirun --oversubscribe --bind-to none -np "$ranks" "$@"
}

write_run_file() {
  # Text that every machine has.
  seq 1 100000 | sed 's/$/ follows what came before it./' >"$work/text.txt"
  cat >"$work/run.toml" <<TOML
[model]
family = "gpt2"
layers = 2
heads = 2
width = 128
context = 64
[data]
train = "$work/text.txt"
tokenizer = "bytes"
[train]
steps = 5
global_batch_size = 8
eval_batches = 1
log_interval = 1
TOML
}
# Trains a few steps on `ranks` ranks of one GPU; the losses go to losses.RANKS.
train_on() {
  local ranks=$1
  launch_on "$ranks" "$program" train "$work/run.toml" --set "output.dir=\"$work/run.$ranks\"" \
    --set "train.micro_batch_size=$((8 / ranks))" --set "checkpoint.dir=\"$work/run.$ranks/weights\"" --set "device.kind=\"$kind\"" || return
  sed -n 's/.*"loss": *\([-+.0-9e]*\).*/\1/p' "$work/run.$ranks/metrics.jsonl" >"$work/losses.$ranks"
  [[ -s $work/losses.$ranks ]]
}
# The losses of two runs agree step by step, but not bit for bit, because ranks add gradients in a different order.
same_losses() {
  paste "$work/losses.$1" "$work/losses.$2" | awk '
    { d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d; if (NF != 2 || !(d <= 1e-3 * $1)) bad = 1 }
    END { printf "%d steps, largest difference %g\n", NR, worst; exit bad || NR == 0 }'
}
equivalence() {
  # A later call no longer has the losses of one rank.
  if [[ ! -s $work/losses.1 ]]; then train_on 1 || return; fi
  if [[ $1 != 1 ]]; then train_on "$1" && same_losses 1 "$1"; fi
}
# NCCL tests whose file names match the pattern, on the given number of ranks. `--list RANKS` names the groups of a
# test.
nccl_tests() {
  local results=$out/nccl.txt pattern=$1 path ranks group
  shift
  while read -r path; do
    [[ $(basename "$path") =~ $pattern ]] || continue
    for ranks in "$@"; do
      for group in $(timeout 30 "$path" --list "$ranks"); do
        keep_output=1 run_test "$(basename "$path") $group on $ranks" bash -c "launch_on $ranks '$path' $group"
      done
    done
  done < <(tests_of nccl)
}
part_nccl() { nccl_tests 'contract|equivalence' 1 2 4; }
part_two_ranks() { nccl_tests 'contract|equivalence' 2; }
part_order() { nccl_tests order 3; }
training_on() {
  local results=$out/nccl.txt ranks
  write_run_file
  for ranks in "$@"; do
    run_test "training on $ranks" bash -c "equivalence $ranks"
  done
}
part_training() { training_on 1 2 4; }
part_training_on_two() { training_on 2; }

# A machine may refuse the tool's way of tracing; that is not a failure.
sanitized() {
  local tool=$1 path=$2 code=0
  "$sanitizer" --tool "$tool" --error-exitcode 86 "$path" >"$scratch/sanitizer" 2>&1 || code=$?
  cat "$scratch/sanitizer"
  if grep -E "not supported|permission|Unable to|Target application terminated before first instrumented" "$scratch/sanitizer" >/dev/null \
      && [[ $code != 86 ]]; then
    return 99
  fi
  return "$code"
}
tool_of() {
  local place
  command -v "$1" && return
  for place in "${CUDA_HOME:-/usr/local/cuda}"/bin /usr/local/cuda-*/bin /opt/nvidia/nsight-compute/* /opt/nvidia/nsight-systems/*/bin; do
    [[ -x $place/$1 ]] && { echo "$place/$1"; return; }
  done
}
# The kernel tests under one tool. Their sizes are those of the emulated device, small enough for racecheck.
sanitize_with() {
  local results=$out/sanitize.txt tool=$1 path any=0
  sanitizer=$(tool_of compute-sanitizer)
  if [[ -z $sanitizer ]]; then
    run_test "compute-sanitizer $tool" bash -c "$(refuse "this machine has no compute-sanitizer")"
    return
  fi
  results_without "compute-sanitizer $tool" | replace_results  # of a machine without
  while read -r path; do
    any=1
    run_test "$(basename "$path") $tool" bash -c "sanitized $tool '$path'"
  done < <(tests_of tests | grep -v -E '/gpu_(device|generation|golden|host_waits)_test$')
  ((any)) || nothing_to_run sanitize
}
part_memcheck() { sanitize_with memcheck; }
part_racecheck() { sanitize_with racecheck; }
part_initcheck() { sanitize_with initcheck; }
part_synccheck() { sanitize_with synccheck; }

# A benchmark of a model: GPT-2 124M with 64 sequences of 1024 tokens a step, or Llama 1.2B with 8 of 2048.
on_model() {
  local model=$1 command=$2 micro_batch=$3 table=$4 sets
  shift 4
  case $model in
    "GPT-2 124M") sets=(gpt2_124m.toml --set model.vocab_size=50304 --set train.global_batch_size=64) ;;
    "Llama 1.2B") sets=(llama_1b.toml --set train.sequence_length=2048 --set train.global_batch_size=8) ;;
  esac
  "$program" bench "$command" "$root/configs/runs/${sets[0]}" "${sets[@]:1}" --set "device.kind=$kind" \
    --set "device.algorithms=\"$table\"" --set "train.micro_batch_size=$micro_batch" "$@"
}
micro_batch_before() { sed -n "s/^$1 micro-batch,\([0-9]*\),.*/\1/p" "$measured_csv" 2>/dev/null | tail -n 1; }
# With a table of algorithms (empty: none), under a name.
bench_step() {
  local model=$1 micro_batch tokens sizes tokens_of_step csv=$work/step.csv
  case $model in
    "GPT-2 124M") sizes="64 32 16 8" tokens_of_step=65536 ;;
    "Llama 1.2B") sizes="8 4 2 1" tokens_of_step=16384 csv=$work/llama.csv ;;
  esac
  for micro_batch in $sizes; do
    on_model "$model" step "$micro_batch" "$2" --steps "$4" --in-a-row 5 --csv "$csv" || continue  # the largest that fits
    tokens=$(awk -F, -v tokens="$tokens_of_step" 'NR == 2 { printf "%.0f", 1e3 * tokens / $5 }' "$csv")
    measured "$3" "$tokens" tokens/s
    measured "$model micro-batch" "$micro_batch" sequences
    return 0
  done
  return 1
}
# The fastest algorithm of every product of that step. The program writes the table after each product and continues an
# incomplete table.
bench_products() {
  local micro_batch
  set -o pipefail
  micro_batch=$(micro_batch_before "$1")
  on_model "$1" products "${micro_batch:-$2}" "$products_json" --steps 3 --seconds "$3" | tee "$scratch/products" || return
  measured "products timed" "$(sed -n 's/^\([0-9]*\) of [0-9]* products timed: .*/\1/p' "$scratch/products")" products
  if grep '^[0-9]* products left' "$scratch/products" >/dev/null; then return 98; fi
}
# The tests of a model: a step without a table, the table of its products, and the step with it.
without_table() {
  local results=$out/bench.txt
  keep_output=1 run_test "$1 without a table" bash -c "bench_step '$1' '' '$1 without a table' $2"
}
timed_products() {
  local results=$out/bench.txt
  keep_output=1 run_test "$1" bash -c "bench_products '$2' $3 $(seconds_of $((part_ms * 8 / 10)))"
}
with_table() {
  local results=$out/bench.txt
  keep_output=1 run_test "$1" bash -c \
    "if [[ -s \$products_json ]]; then bench_step '$1' \"\$products_json\" '$1' $2; else echo 'skipped: there is no table of products'; exit 77; fi"
}
part_step() { without_table "GPT-2 124M" 8; }
part_products() { timed_products "products" "GPT-2 124M" 16; }
part_tabled() { with_table "GPT-2 124M" 8; }
part_llama() { without_table "Llama 1.2B" 4; }
part_llama_products() { timed_products "products of Llama 1.2B" "Llama 1.2B" 2; }
part_llama_tabled() { with_table "Llama 1.2B" 4; }

# This machine's PyTorch, if it sees the GPU; checked once.
torch_state=""
has_torch() {
  if [[ -z $torch_state ]]; then
    torch_state=no
    timeout 60 "${python[@]}" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1 && torch_state=yes
  fi
  [[ $torch_state == yes ]]
}
torch_test() {
  local name=$1
  shift
  if [[ $pass == forget ]] || has_torch; then
    keep_output=1 run_test "$name" "${python[@]}" "$root/scripts/bench_gpu_pytorch.py" "$@" --measured "$measured_csv"
  else
    run_test "$name" bash -c "$(refuse "python3 has no PyTorch that sees this GPU")"
  fi
}
part_torch() {
  local results=$out/bench.txt mode
  for mode in eager default; do
    torch_test "PyTorch: GPT-2 124M $mode" step "$work/step.csv" --modes "$mode"
  done
}
# Minutes of tuning: no part of a call.
part_torch_tuned() {
  local results=$out/bench.txt
  torch_test "PyTorch: GPT-2 124M max-autotune-no-cudagraphs" step "$work/step.csv" --modes max-autotune-no-cudagraphs
}
part_compare() {
  local results=$out/bench.txt path any=0
  while read -r path; do
    any=1
    keep_output=1 run_test "$(basename "$path")" "$path" "$out/kernels.csv"
  done < <(tests_of bench)
  ((any)) || nothing_to_run bench
  torch_test "PyTorch: kernels" kernels "$out/kernels.csv"
}

# The kernels of one op under Nsight Compute: the number of launches in the benchmark's first call.
profile_kernels() {
  local ncu=$1 op=$2 launches=$3 path=$4
  "$ncu" --launch-count "$launches" --kill yes --section SpeedOfLight --section MemoryWorkloadAnalysis --section Occupancy \
    --section WarpStateStats "$path" /dev/null "$op" >"$scratch/ncu" 2>&1
  grep -v '^==PROF==' "$scratch/ncu"
  if grep -E 'ERR_NVGPUCTRPERM|not supported' "$scratch/ncu" >/dev/null; then return 99; fi
  grep 'Duration' "$scratch/ncu" >/dev/null
}
# Eight ranks' plan on one GPU, the others imitated, with a link of half the compute's time.
profile_step() {
  local nsys=$1
  # shellcheck disable=SC2016  # the profiled bash expands it
  "$nsys" profile --force-overwrite=true --trace=cuda,nvtx --sample=none --output="$scratch/step" bash -c \
    'on_model "GPT-2 124M" overlap 8 "$products_json" --ranks 8 --forms copies --ratios 0.5 --steps 1 --set device.graph=false' || return
  "$nsys" stats --force-export=true --report cuda_gpu_kern_sum,nvtx_sum --format table "$scratch/step.nsys-rep"
}
part_profile() {
  local results=$out/bench.txt path row ncu nsys
  path=$(tests_of bench | head -n 1)
  ncu=$(tool_of ncu)
  nsys=$(tool_of nsys)
  # The op and its launches.
  for row in "attention_forward 1" "attention_backward 2" "layer_norm_backward 2" "cross_entropy 2"; do
    if [[ -n $ncu && -n $path ]]; then
      keep_output=1 run_test "ncu ${row% *}" bash -c "profile_kernels '$ncu' $row '$path'"
    else
      run_test "ncu ${row% *}" bash -c "$(refuse "this machine has no ncu, or the build has no bench")"
    fi
  done
  if [[ -n $nsys ]]; then
    keep_output=1 run_test "nsys overlapped step" bash -c "profile_step '$nsys'"
  else
    run_test "nsys overlapped step" bash -c "$(refuse "this machine has no nsys")"
  fi
}

# The plan of 8 ranks on this GPU, with 7 imitated ranks and an emulated link of form $1: for every ratio of $2 the ratio,
# the hidden share and the slow-down of compute, both in %, to $scratch/overlap. Columns are found by name.
bench_link() {
  local form=$1 ratios=$2
  shift 2
  on_model "GPT-2 124M" overlap 8 "$([[ -s $products_json ]] && echo "$products_json")" --ranks 8 --forms "$form" --ratios "$ratios" --steps 6 \
    --csv "$scratch/link.csv" "$@" || return
  awk -F, '
    NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next }
    $1 == "no_communication" { alone = $at["compute_ms"] }
    $1 == "bucketed" && alone > 0 { printf "%s %.1f %.1f\n", $at["ratio"], 100 * $at["hidden_fraction"], 100 * ($at["compute_ms"] / alone - 1) }
  ' "$scratch/link.csv" >"$scratch/overlap"
}
bench_form() {
  local ratio hidden slower
  bench_link "$1" 0.25,0.5,1 || return
  while read -r ratio hidden slower; do
    measured "overlap $1 $ratio hidden" "$hidden" %
    measured "overlap $1 $ratio compute slow-down" "$slower" %
  done <"$scratch/overlap"
}
# Blocks occupy multiprocessors, as NCCL does.
bench_goal() {
  local ratio hidden slower
  bench_link blocks 0.6 --ratio-of backward || return
  read -r ratio hidden slower <"$scratch/overlap" || return
  measured "communication hidden at 0.6 of backward" "$hidden" %
  measured "compute slow-down at 0.6 of backward" "$slower" %
  measured "communication / compute at 0.6 of backward" "$ratio" x
}
# Through NCCL. The ranks share the GPU, so only the order is realistic.
bench_overlap_shared() {
  launch_on 2 "$program" bench overlap "$work/run.toml" --steps 6 --set "device.kind=$kind" --set train.micro_batch_size=4
}
part_links() {
  local results=$out/bench.txt form
  for form in gate copies blocks; do
    keep_output=1 run_test "overlap of 8 ranks, 7 imitated, $form" bash -c "bench_form $form"
  done
}
part_goal() {
  local results=$out/bench.txt
  keep_output=1 run_test "overlap at 0.6 of backward" bash -c bench_goal
}
part_shared() {
  local results=$out/bench.txt
  write_run_file
  keep_output=1 run_test "overlap on 2 ranks" bash -c bench_overlap_shared
}

# --- calls and stages

python=(env "LD_LIBRARY_PATH=$machine_library_path" python3)
export root out work program sanitizer="" kind=cuda measured_csv products_json scratch
export -f launch_on train_on same_losses equivalence sanitized measured on_model bench_step micro_batch_before bench_products \
  profile_kernels profile_step bench_link bench_form bench_goal bench_overlap_shared

# Runs part $1 in at most $2 ms, $3 ms of them for a last test to end, $4 ms for a test; no later than call_end.
run_part() {
  local part=$1 now file
  now=$(now_ms)
  part_ms=$2
  test_ms=$4
  ends_by=$((now + part_ms))
  if ((ends_by > call_end)); then ends_by=$call_end; fi
  begins_until=$((ends_by - $3))
  for file in kernels nccl sanitize bench; do touch "$out/$file.txt" 2>/dev/null; done
  "part_$part"
}
forget() {
  local pass=forget part
  ((again)) || return 0
  for part in "$@"; do run_part "${part%%:*}" 0 0 0; done
}

# "PART:SECONDS:SECONDS OF A TEST" in order, each within its own limits: a test that hangs leaves time for the part's others.
# The remaining time goes to tests that never ran.
run_call() {
  local row part seconds of_a_test pass
  call_end=$((began_ms + $(scaled_ms "$call_seconds")))
  forget "$@"
  for row in "$@"; do
    IFS=: read -r part seconds of_a_test <<<"$row"
    echo "== $part"
    pass=first run_part "$part" "$(scaled_ms "$seconds")" 0 "$(scaled_ms "$of_a_test")"
    pass=again "part_$part"
  done
  waiting=0
  for row in "$@"; do
    IFS=: read -r part seconds of_a_test <<<"$row"
    pass=first run_part "$part" $((call_end - $(now_ms))) 0 "$(scaled_ms "$of_a_test")"
  done
}
# The parts of a stage share its time.
run_stage() {
  local part pass stage_ms
  stage_ms=$(scaled_ms $((stage_seconds + last_seconds)))
  call_end=$(($(now_ms) + stage_ms))
  forget "${@:2}"
  echo "== $1"
  for pass in first again; do
    for part in "${@:2}"; do run_part "$part" "$stage_ms" "$(scaled_ms "$last_seconds")" "$(scaled_ms "$test_seconds")"; done
  done
}

for plan in "${plans[@]}"; do
  case $plan in
    "call 1") run_call kernels:90:45 step:40:40 torch:90:60 compare:70:45 products:140:140 tabled:40:40 llama:50:50 profile:50:30 ;;
    "call 2") run_call goal:30:30 two_ranks:160:60 order:60:40 training_on_two:40:40 links:130:50 llama_products:60:60 llama_tabled:50:50 shared:40:40 ;;
    "call 3") run_call memcheck:200:60 racecheck:160:60 initcheck:120:60 synccheck:70:60 ;;
    "stage kernels") run_stage kernels kernels ;;
    "stage nccl") run_stage nccl nccl order training ;;
    "stage sanitize") run_stage sanitize memcheck racecheck initcheck synccheck ;;
    "stage bench") run_stage bench compare step products tabled llama llama_products llama_tabled goal links shared torch torch_tuned ;;
  esac
done
for file in kernels.txt nccl.txt sanitize.txt bench.txt; do [[ -s $out/$file ]] || rm -f -- "$out/$file"; done
if command -v python3 >/dev/null && [[ -f $root/scripts/gpu_summary.py ]]; then
  timeout 20 "${python[@]}" "$root/scripts/gpu_summary.py" "$out" 2>/dev/null
fi
if ((failed)); then exit 1; fi
if ((cut || waiting)); then
  echo "not finished: call again with the same arguments"
  exit 3
fi
exit 0
