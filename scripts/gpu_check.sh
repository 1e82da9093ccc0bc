#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks a GPU machine, from a bundle (scripts/bundle.sh) or a build: needs neither network nor package manager.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu_check.sh [--stage STAGE]... [--out DIR] [--again]
  --stage STAGE  kernels   the tests of one process: every kernel, streams, golden values, waits of the host
                 nccl      the communicator's laws, the equivalence table and a training run on 1, 2 and 4 ranks of one GPU, and
                           the order of tasks on 3
                 sanitize  compute-sanitizer (memcheck, racecheck, synccheck) over the kernel tests
                 bench     kernels, GPT-2 124M and overlap, beside PyTorch where python3 has it
                 all       all four, in this order (default)
  --out DIR      where the results go (default: gpu_check)
  --again        forget earlier results of the stages asked for
  In the environment: SLIPSTREAM_BUILD=DIR, a build directory to use outside of a bundle (default: build);
  SLIPSTREAM_STAGE_SECONDS=N, after so many a stage begins no test (default: 420)

Results: DIR/found.txt, one DIR/STAGE.txt per stage with a line per test, and DIR/kernels.csv, step.csv and torch.csv of the
benchmarks: at most 8 files, each line written before the next test begins. A stage ends within 8 minutes; call again and it goes
on where it stopped. Exit code: 0 all passed, 1 something failed, 3 a stage is not finished, 7 something is missing on this machine.
TEXT
}

out=gpu_check
again=0
stages=()
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --stage)
      case "${2:-}" in
        kernels | nccl | sanitize | bench) stages+=("$2") ;;
        all) stages+=(kernels nccl sanitize bench) ;;
        *) echo "gpu_check: there is no stage '${2:-}'" >&2; usage >&2; exit 2 ;;
      esac
      shift 2 ;;
    --out) out=${2:?--out needs a directory}; shift 2 ;;
    --again) again=1; shift ;;
    *) usage >&2; exit 2 ;;
  esac
done
((${#stages[@]})) || stages=(kernels nccl sanitize bench)
# No test begins after so many seconds of a stage, none runs longer than test_seconds, and none beyond the stage's last second.
readonly stage_seconds=${SLIPSTREAM_STAGE_SECONDS:-420} test_seconds=300
readonly last_second=$((stage_seconds + 40))

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$out"
out=$(cd -- "$out" && pwd)
readonly found=$out/found.txt
: >"$found"
note() { printf '%s\n' "$*" | tee -a "$found"; }

# --- what is here

missing=0
library_path=$root/lib
if [[ -f $root/MANIFEST ]]; then
  program=$root/bin/slipstream
  tests_of() { find "$root/$1" -maxdepth 1 -type f -perm -u+x 2>/dev/null | sort; }
  cuda_major=$(sed -n 's/^cuda_major=//p' "$root/MANIFEST")
  note "bundle of commit $(sed -n 's/^commit=//p' "$root/MANIFEST")"
  # Of the machine that built it; the oldest of the two must be that one.
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
  note "build $build"
fi
if [[ ! -x $program ]]; then
  note "missing: $program. Build it, or unpack the bundle again."
  exit 7
fi
if [[ -z $cuda_major ]]; then
  # grep reads all of its input: a reader that leaves early would fail the pipe.
  cuda_major=$(ldd "$program" 2>/dev/null | sed -n 's/.*libcublas\.so\.\([0-9]*\).*/\1/p; s/.*libcudart\.so\.\([0-9]*\).*/\1/p' | sort -u | tail -n 1)
fi
if [[ -z $cuda_major || $cuda_major == none ]]; then
  note "missing: CUDA in the program itself. Build with -Dcuda=enabled."
  exit 7
fi

python_packages() {
  command -v python3 >/dev/null || return 0
  python3 -c 'import site, sys; print("\n".join(sorted(set(site.getsitepackages() + [site.getusersitepackages()] + [p for p in sys.path if p.endswith("-packages")]))))' 2>/dev/null || true
}
places=()
for place in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda "/usr/local/cuda-$cuda_major"* /opt/cuda; do
  [[ -n $place ]] && places+=("$place/lib64" "$place/lib" "$place/targets/x86_64-linux/lib")
done
places+=(/usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/lib /usr/lib/aarch64-linux-gnu)
while read -r packages; do
  # PyTorch's wheels: one folder for all of CUDA 13, one per library before.
  [[ -d $packages/nvidia ]] && for place in "$packages"/nvidia/cu"$cuda_major"/lib "$packages"/nvidia/*/lib; do places+=("$place"); done
done < <(python_packages)

# Finds a library by its file name; puts its folder behind those that are already there.
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
if command -v nvidia-smi >/dev/null && gpus=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1); then
  while read -r gpu; do note "found: GPU $gpu"; done <<<"$gpus"
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
# The last one: PMIx misses a compression that nobody needs, and a page of help to say so.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_pcompress_base_silence_warning=1
if ((missing)); then exit 7; fi

# --- stages

failed=0 unfinished=0
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

# Runs a command as test NAME of the stage, unless the stage's file has a result for it; writes "RESULT SECONDS NAME".
run_test() {
  local name=$1 began=$SECONDS code=0 result limit
  shift
  if grep -E "^(ok|refused) +[0-9]+ s  $name\$" "$results" >/dev/null; then return 0; fi
  if ((SECONDS - stage_began >= stage_seconds)); then
    unfinished=1
    return 0
  fi
  limit=$((last_second - (SECONDS - stage_began)))
  if ((limit > test_seconds)); then limit=$test_seconds; fi
  # Not its standard input: mpirun would read the list of tests.
  timeout -k 10 "$limit" "$@" </dev/null >"$work/log" 2>&1 || code=$?
  case $code in
    0) result=ok ;;
    77 | 99) result=refused ;;  # 77: the test skips itself and says why
    124 | 137)
      # Cut by the end of the stage: the next call gives it all the time there is.
      if ((limit < test_seconds)); then
        unfinished=1
        return 0
      fi
      result=timeout failed=1 ;;
    *) result=failed failed=1 ;;
  esac
  # One line per test: a later run replaces what was not ok.
  awk -v name="s  $name" '/^    \|/ { if (!drop) print; next } { drop = substr($0, length($0) - length(name) + 1) == name } !drop' \
    "$results" >"$work/kept"
  cp -- "$work/kept" "$results"
  printf '%-8s %4d s  %s\n' "$result" $((SECONDS - began)) "$name" | tee -a "$results"
  if [[ $result != ok ]]; then
    tail -n 40 "$work/log" | cut -c 1-400 | sed 's/^/    | /' | tee -a "$results"
  elif [[ ${keep_output:-0} == 1 ]]; then
    cut -c 1-400 "$work/log" | sed 's/^/    | /' | tee -a "$results"
  fi
}

nothing_to_run() { echo "nothing to run: this build has no program for stage $1" | tee -a "$results"; }

stage_kernels() {
  local path any=0
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
# The losses of two runs agree step by step: ranks add gradients in another order, so not bit for bit.
same_losses() {
  paste "$work/losses.$1" "$work/losses.$2" | awk '
    { d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d; if (NF != 2 || !(d <= 1e-3 * $1)) bad = 1 }
    END { printf "%d steps, largest difference %g\n", NR, worst; exit bad || NR == 0 }'
}
equivalence() {
  # A later call has not got the losses of one rank any more.
  if [[ ! -s $work/losses.1 ]]; then train_on 1 || return; fi
  if [[ $1 != 1 ]]; then train_on "$1" && same_losses 1 "$1"; fi
}
stage_nccl() {
  local path ranks counts group
  export -f launch_on
  # `--list RANKS` names the groups that a test has for so many ranks, one run each.
  while read -r path; do
    counts="1 2 4"
    if [[ $path == *order* ]]; then counts=3; fi
    for ranks in $counts; do
      for group in $("$path" --list $ranks); do
        keep_output=1 run_test "$(basename "$path") $group on $ranks" bash -c "launch_on $ranks '$path' $group"
      done
    done
  done < <(tests_of nccl)
  write_run_file
  export -f train_on same_losses equivalence
  export work program kind=cuda
  for ranks in 1 2 4; do
    run_test "training on $ranks" bash -c "equivalence $ranks"
  done
}

# A machine may refuse the tool's way of tracing; that is a fact about the machine.
sanitized() {
  local tool=$1 path=$2 code=0
  "$sanitizer" --tool "$tool" --error-exitcode 86 "$path" >"$work/sanitizer" 2>&1 || code=$?
  cat "$work/sanitizer"
  if grep -E "not supported|permission|Unable to|Target application terminated before first instrumented" "$work/sanitizer" >/dev/null \
      && [[ $code != 86 ]]; then
    return 99
  fi
  return $code
}
stage_sanitize() {
  local path tool any=0 place
  sanitizer=$(command -v compute-sanitizer || true)
  for place in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda-*; do
    [[ -z $sanitizer && -x $place/bin/compute-sanitizer ]] && sanitizer=$place/bin/compute-sanitizer
  done
  if [[ -z $sanitizer ]]; then
    echo "refused: this machine has no compute-sanitizer" | tee -a "$results"
    return 0
  fi
  export -f sanitized
  export sanitizer work
  for tool in memcheck racecheck synccheck; do
    while read -r path; do
      any=1
      run_test "$(basename "$path") $tool" bash -c "sanitized $tool '$path'"
    done < <(tests_of tests | grep -v -E '/gpu_(device|golden|host_waits)_test$')
  done
  ((any)) || nothing_to_run sanitize
}

# GPT-2 124M, 64 sequences of 1024 tokens a step.
gpt2() {
  local command=$1 micro_batch=$2
  shift 2
  "$program" bench "$command" "$root/configs/runs/gpt2_124m.toml" --set "device.kind=$kind" --set model.vocab_size=50304 \
    --set "train.micro_batch_size=$micro_batch" --set train.global_batch_size=64 "$@"
}
bench_step() {
  local micro_batch
  for micro_batch in 64 32 16 8; do
    gpt2 step "$micro_batch" --steps 30 --csv "$out/step.csv" || continue  # the largest that fits
    awk -F, -v m="$micro_batch" 'NR == 2 { printf "micro-batch %d, %.0f tokens/s\n", m, 65536e3 / $5 }' "$out/step.csv"
    return 0
  done
  return 1
}
# The fastest algorithm of every product of that step, kept in a table of this machine that later runs read.
bench_products() { gpt2 products "$(sed -n 's/.*micro-batch \([0-9]*\),.*/\1/p' "$results" | tail -n 1)" --steps 3; }
# The plan of 8 ranks on this one card, the others imitated: what a link of this share of compute exposes, by what it takes of the card.
bench_overlap() { gpt2 overlap 8 --ranks 8 --forms gate,copies,blocks --ratios 0.25,0.5,1 --steps 6; }
# Through NCCL; the ranks take turns on the card, so only the order is real.
bench_overlap_shared() {
  launch_on 2 "$program" bench overlap "$work/run.toml" --steps 6 --set "device.kind=$kind" --set train.micro_batch_size=4
}
stage_bench() {
  local path any=0 python torch=$root/scripts/bench_gpu_pytorch.py
  export -f launch_on gpt2 bench_step bench_products bench_overlap bench_overlap_shared
  export root out work program results kind=cuda
  while read -r path; do
    any=1
    keep_output=1 run_test "$(basename "$path")" "$path" "$out/kernels.csv"
  done < <(tests_of bench)
  ((any)) || nothing_to_run bench
  keep_output=1 run_test "GPT-2 124M, products as the library chooses" bash -c bench_step
  keep_output=1 run_test "products" bash -c bench_products
  keep_output=1 run_test "GPT-2 124M" bash -c bench_step
  keep_output=1 run_test "overlap of 8 ranks, 7 imitated" bash -c bench_overlap
  write_run_file
  keep_output=1 run_test "overlap on 2 ranks" bash -c bench_overlap_shared
  python=(env "LD_LIBRARY_PATH=$machine_library_path" python3)
  if ! "${python[@]}" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "refused: python3 has no PyTorch that sees this GPU" | tee -a "$results"
    return 0
  fi
  keep_output=1 run_test "PyTorch: GPT-2 124M" "${python[@]}" "$torch" step "$out/step.csv" --csv "$out/torch.csv"
  keep_output=1 run_test "PyTorch: kernels" "${python[@]}" "$torch" kernels "$out/kernels.csv"
}

for stage in "${stages[@]}"; do
  results=$out/$stage.txt
  if ((again)); then rm -f -- "$results"; fi
  touch "$results"
  echo "== $stage"
  stage_began=$SECONDS
  "stage_$stage"
done
if ((failed)); then exit 1; fi
if ((unfinished)); then
  echo "not finished: call again with the same arguments"
  exit 3
fi
