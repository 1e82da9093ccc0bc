#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The parts of scripts/gpu_check.sh, which sources this file: the tests of each part, and the calls and stages that they
# form.

refuse() { printf 'echo %q; exit 99' "$1"; }
nothing_to_run() { run_test "programs of $1" bash -c "$(refuse "this build has no program for $1")"; }

# Runs every op once, with limits of the host, because a kernel that hangs must not cost the call. mma.sync comes first,
# because the first process on a machine starts the driver.
part_canary() {
  local path golden bench
  golden=$(tests_of tests | grep '/gpu_attention_golden_test$')
  for path in mma hopper; do
    [[ $path == mma || $hopper == 1 || $pass == forget ]] || continue
    if [[ -n $golden ]]; then
      run_test "canary: attention $path" env SLIPSTREAM_ATTENTION="$path" "$golden"
    else
      run_test "canary: attention $path" bash -c "$(refuse "this build has no gpu_attention_golden_test")"
    fi
  done
  choose_attention
  bench=$(tests_of bench | grep '/gpu_kernels_bench$')
  [[ -z $bench ]] || run_test "canary: every op" "$bench" /dev/null trial
}
# Chooses the kernels of attention for all other tests. Kernels whose canary is wrong or hangs are passed over.
choose_attention() {
  local path next reason
  for path in hopper mma; do
    [[ $path == mma || $hopper == 1 ]] || continue
    reason=${state[canary: attention $path]:-}
    [[ $reason == failed || $reason == timeout ]] || return 0
    next=$([[ $path == hopper ]] && echo mma || echo plain)
    export SLIPSTREAM_ATTENTION=$next
    reason="attention: $next, because the canary of $path ${reason/timeout/timed out}"
    grep -Fx "$reason" "$found" >/dev/null || note "$reason"
  done
}

part_kernels() {
  local path paths
  mapfile -t paths < <(tests_of tests | grep -v attention; tests_of tests | grep attention)
  for path in "${paths[@]}"; do run_test "$(basename "$path")" "$path"; done
  ((${#paths[@]})) || nothing_to_run kernels
}
# While the tests of kernels run, which are not timed, torch.compile of the step fills its cache.
part_kernels_beside_compile() {
  local warming=""
  if [[ $pass == first && -z ${state[PyTorch: GPT-2 124M default]:-} ]] && (($(now_ms) < ends_by)); then
    timeout -k "$kill_after" "$(seconds_of $((ends_by - $(now_ms))))" "${python[@]}" "$root/scripts/bench_gpu_pytorch.py" step none --modes default --warm \
      </dev/null >/dev/null 2>&1 &
    warming=$!
    beside+=("$warming")
  fi
  part_kernels
  if [[ -n $warming ]]; then wait "$warming" 2>/dev/null; fi
}

launch_on() {
  local ranks=$1
  shift
  if ((ranks == 1)); then SLIPSTREAM_SHARE_GPU=1 "$@"; return; fi
  SLIPSTREAM_SHARE_GPU=1 mpirun --oversubscribe --bind-to none -np "$ranks" "$@"
}

write_run_file() {
  # This text exists on every machine.
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
# Runs the NCCL tests whose file names match the pattern, on the given number of ranks. `--list RANKS` names the groups
# of a test.
nccl_tests() {
  local pattern=$1 path ranks group
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
part_contract() { nccl_tests contract 2; }
part_order() { nccl_tests order 3; }
part_training() {
  local ranks
  write_run_file
  for ranks in 1 2 4; do run_test "training on $ranks" bash -c "equivalence $ranks"; done
}

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
# Runs the kernel tests whose names match the pattern under one tool. Their sizes are those of the emulated device,
# which are small enough for racecheck.
sanitize_with() {
  local tool=$1 pattern=${2:-} path any=0
  sanitizer=$(tool_of compute-sanitizer)
  if [[ -z $sanitizer ]]; then
    run_test "compute-sanitizer $tool" bash -c "$(refuse "this machine has no compute-sanitizer")"
    return
  fi
  pass=forget run_test "compute-sanitizer $tool"  # of a machine without
  while read -r path; do
    any=1
    run_test "$(basename "$path") $tool" bash -c "sanitized $tool '$path'"
  done < <(tests_of tests | grep -v -E '/gpu_(device|generation|golden|host_waits)_test$' | grep -E "$pattern")
  ((any)) || nothing_to_run sanitize
}
part_memcheck() { sanitize_with memcheck; }
part_memcheck_some() { sanitize_with memcheck '/gpu_(attention|matmul)_test$'; }
part_racecheck() { sanitize_with racecheck; }
part_initcheck() { sanitize_with initcheck; }
part_synccheck() { sanitize_with synccheck; }

# Runs a benchmark of a model: GPT-2 124M with 64 sequences of 1024 tokens per step, or Llama 1.2B with 8 of 2048.
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
# Measures a step with a table of algorithms (empty: none), under a name.
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
# Finds the fastest algorithm of every product of that step. The program writes the table after each product and
# continues an incomplete table.
bench_products() {
  local micro_batch
  set -o pipefail
  micro_batch=$(micro_batch_before "$1")
  on_model "$1" products "${micro_batch:-$2}" "$products_json" --steps 3 --seconds "$3" | tee "$scratch/products" || return
  measured "products timed" "$(sed -n 's/^\([0-9]*\) of [0-9]* products timed: .*/\1/p' "$scratch/products")" products
  if grep '^[0-9]* products left' "$scratch/products" >/dev/null; then return 98; fi
}
# The tests of a model are a step without a table, the table of its products, and the step with it.
without_table() {
  keep_output=1 run_test "$1 without a table" bash -c "bench_step '$1' '' '$1 without a table' $2"
}
timed_products() {
  local left=$((ends_by - $(now_ms)))
  ((left < test_ms)) || left=$test_ms
  keep_output=1 run_test "$1" bash -c "bench_products '$2' $3 $(seconds_of $(((left > 0 ? left : 0) * 8 / 10)))"
}
with_table() {
  keep_output=1 run_test "$1" bash -c \
    "if [[ -s \$products_json ]]; then bench_step '$1' \"\$products_json\" '$1' $2; else echo 'skipped: there is no table of products'; exit 77; fi"
}
part_step() { without_table "GPT-2 124M" 8; }
# Measures each choice beside the other one, on a card that is warm by now.
chosen_step() {
  local name=$1
  shift
  keep_output=1 run_test "$name" env "$@" bash -c "bench_step 'GPT-2 124M' '' '$name' 8"
}
part_choices() {
  local choice
  for choice in on off; do chosen_step "GPT-2 124M early launch $choice" SLIPSTREAM_EARLY_LAUNCH=$choice; done
  chosen_step "GPT-2 124M attention backward by 128 queries" SLIPSTREAM_ATTENTION_QUERIES=128
}
part_products() { timed_products "products" "GPT-2 124M" 16; }
part_tabled() { with_table "GPT-2 124M" 8; }
part_llama() { without_table "Llama 1.2B" 4; }
part_llama_products() { timed_products "products of Llama 1.2B" "Llama 1.2B" 2; }
part_llama_tabled() { with_table "Llama 1.2B" 4; }

# The script itself refuses this if python3 has no PyTorch that sees this GPU.
torch_test() {
  local name=$1
  shift
  if command -v python3 >/dev/null; then
    keep_output=1 run_test "$name" "${python[@]}" "$root/scripts/bench_gpu_pytorch.py" "$@" --measured "$measured_csv"
  else
    run_test "$name" bash -c "$(refuse "this machine has no python3")"
  fi
}
part_torch() {
  local mode
  for mode in eager default; do
    torch_test "PyTorch: GPT-2 124M $mode" step "$work/step.csv" --modes "$mode"
  done
}
# This takes minutes of tuning, so it is no part of a call.
part_torch_tuned() {
  torch_test "PyTorch: GPT-2 124M max-autotune-no-cudagraphs" step "$work/step.csv" --modes max-autotune-no-cudagraphs
}
part_compare() {
  local path any=0
  while read -r path; do
    any=1
    keep_output=1 run_test "$(basename "$path")" "$path" "$out/kernels.csv"
  done < <(tests_of bench)
  ((any)) || nothing_to_run bench
  torch_test "PyTorch: kernels" kernels "$out/kernels.csv"
}

# Profiles the kernels of one op with Nsight Compute: those launched in the benchmark's first call.
profile_kernels() {
  local ncu=$1 op=$2 launches=$3 path=$4
  "$ncu" --launch-count "$launches" --kill yes --section SpeedOfLight --section MemoryWorkloadAnalysis --section Occupancy \
    --section WarpStateStats "$path" /dev/null "$op" >"$scratch/ncu" 2>&1
  grep -v '^==PROF==' "$scratch/ncu"
  if grep -E 'ERR_NVGPUCTRPERM|not supported' "$scratch/ncu" >/dev/null; then return 99; fi
  grep 'Duration' "$scratch/ncu" >/dev/null
}
# Profiles the plan of one of eight ranks on one GPU, with the others imitated, and with a link that takes half of the
# compute's time.
profile_step() {
  local nsys=$1
  # shellcheck disable=SC2016  # the profiled bash expands it
  "$nsys" profile --force-overwrite=true --trace=cuda,nvtx --sample=none --output="$scratch/step" bash -c \
    'on_model "GPT-2 124M" overlap 8 "$products_json" --ranks 8 --forms copies --ratios 0.5 --steps 1 --set device.graph=false' || return
  "$nsys" stats --force-export=true --report cuda_gpu_kern_sum,nvtx_sum --format table "$scratch/step.nsys-rep"
}
# Each row has an op and its number of launches.
profile_ops() {
  local row path ncu
  path=$(tests_of bench | head -n 1)
  ncu=$(tool_of ncu)
  for row in "$@"; do
    if [[ -n $ncu && -n $path ]]; then
      keep_output=1 run_test "ncu ${row% *}" bash -c "profile_kernels '$ncu' $row '$path'"
    else
      run_test "ncu ${row% *}" bash -c "$(refuse "this machine has no ncu, or the build has no bench")"
    fi
  done
}
part_profile_attention() { profile_ops "attention_forward 1" "attention_backward 2"; }
part_profile() {
  local nsys
  part_profile_attention
  profile_ops "layer_norm_backward 2" "cross_entropy 2"
  nsys=$(tool_of nsys)
  if [[ -n $nsys ]]; then
    keep_output=1 run_test "nsys overlapped step" bash -c "profile_step '$nsys'"
  else
    run_test "nsys overlapped step" bash -c "$(refuse "this machine has no nsys")"
  fi
}

# Measures the plan of 8 ranks on this GPU, with 7 imitated ranks and an emulated link of form $1. Writes a line to
# $scratch/overlap for every ratio of $2: the ratio, the hidden share and the slow-down of compute, both in %. Columns
# are found by name.
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
# This goes through NCCL. The ranks share the GPU, so only the order is realistic.
bench_overlap_shared() {
  launch_on 2 "$program" bench overlap "$work/run.toml" --steps 6 --set "device.kind=$kind" --set train.micro_batch_size=4
}
part_links() {
  local form
  for form in gate copies blocks; do
    keep_output=1 run_test "overlap of 8 ranks, 7 imitated, $form" bash -c "bench_form $form"
  done
}
part_goal() {
  keep_output=1 run_test "overlap at 0.6 of backward" bash -c bench_goal
}
part_shared() {
  write_run_file
  keep_output=1 run_test "overlap on 2 ranks" bash -c bench_overlap_shared
}

export -f launch_on train_on same_losses equivalence sanitized measured on_model bench_step micro_batch_before bench_products \
  profile_kernels profile_step bench_link bench_form bench_goal bench_overlap_shared

# The rows "PART:SECONDS:SECONDS OF A TEST" of a call or stage, by importance. If a test hangs, time remains for the
# others of its part.
rows_of() {
  case $1 in
    "call 1") echo canary:15:6 step:30:30 kernels_beside_compile:70:15 torch:60:45 compare:60:45 products:130:130 tabled:30:30 llama:40:40 \
      choices:45:15 profile_attention:30:15 ;;
    "call 2") echo goal:40:40 contract:40:40 memcheck_some:50:25 ;;
    "stage kernels") echo canary:40:15 kernels:540:300 ;;
    "stage nccl") echo nccl:360:100 order:100:60 training:120:60 ;;
    "stage sanitize") echo memcheck:210:60 racecheck:170:60 initcheck:130:60 synccheck:70:60 ;;
    "stage bench") echo compare:60:45 step:40:40 products:140:140 tabled:40:40 torch:60:45 llama:50:50 llama_products:60:60 llama_tabled:50:50 choices:45:15 \
      goal:40:40 links:130:50 shared:40:40 profile:90:20 torch_tuned:300:300 ;;
  esac
}
