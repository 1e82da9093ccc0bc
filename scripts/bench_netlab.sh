#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures training over a real 1 Gbit/s link on one machine: two processes of one thread, each in its own network
# namespace.
#
# The script interleaves our steps, issued in a row (data parallelism with float32 and bfloat16 on the wire, ZeRO), with
# PyTorch's DDP and FSDP2 (gloo) and its flat all-reduce. All have the same weights and batches, the same clock, and one
# core each. Our steps are compared with their rehearsal, for which `slipstream calibrate` measures computing times and
# the link beforehand. The bound transfers all bytes at the line rate as early as it can.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

methods=ours,zero1,zero2,zero3,bf16,ddp,flat,fsdp
usage() {
  echo "usage: scripts/bench_netlab.sh [--model gpt2|small] [--rounds 3] [--steps 4] [--rate 1Gbit] [--layers N] [--only METHODS] [--csv FILE]"
  echo "  gpt2   GPT-2 124M, batch 4 x 64 tokens per process, vocabulary 50257"
  echo "  small  6 layers, width 384, batch 8 x 64; a functional test of one minute"
  echo "  METHODS, separated by commas: $methods. fsdp needs PyTorch 2.6."
  echo "  Needs root (namespaces, tc). PYTHON and SLIPSTREAM replace python3 and build/slipstream."
}
model=gpt2 rounds=3 steps=4 rate=1Gbit only=$methods csv= fewer=
while (($#)); do
  case "$1" in
    --model) model=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --steps) steps=$2; shift 2 ;;
    --rate) rate=$2; shift 2 ;;
    --layers) fewer=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --csv) csv=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
case "$model" in # layers heads width batch vocabulary
  gpt2) shape=(12 12 768 4 50257) ;;
  small) shape=(6 6 384 8 256) ;;
  *) usage >&2; exit 2 ;;
esac
program=$(realpath -- "${SLIPSTREAM:-build/slipstream}")
[[ -x $program ]] || { echo "bench_netlab: $program does not exist. Build it (ninja -C build) or set SLIPSTREAM." >&2; exit 2; }
wants() { [[ ,$only, == *,$1,* ]]; }
# shellcheck source=scripts/netlab.sh
source scripts/netlab.sh
# shellcheck source=scripts/pytorch.sh
source scripts/pytorch.sh
if wants ddp || wants flat || wants fsdp; then
  require_pytorch
  if wants fsdp && ! "${pytorch[@]}" -c 'from torch.distributed.fsdp import fully_shard' 2>/dev/null; then
    [[ $only == "$methods" ]] || { echo "bench_netlab: fsdp needs PyTorch 2.6 or later. Set PYTHON to a Python that has it." >&2; exit 2; }
    echo "bench_netlab: without fsdp, which needs PyTorch 2.6 or later in PYTHON" >&2
    only=${only/,fsdp/}
  fi
fi

netlab_require bench_netlab
(($(nproc) >= 2)) || { echo "bench_netlab: needs 2 cores, one per process, but this machine has $(nproc)." >&2; exit 7; }

work=$(mktemp -d)
trap 'netlab_down; rm -rf "$work"' EXIT
netlab_up bench_netlab 2 "$rate"

read -r layers heads width batch vocab <<<"${shape[*]}"
layers=${fewer:-$layers}
flags=(configs/runs/gpt2_124m.toml --set train.dtype=float32 --set device.threads=1 --set "model.layers=$layers" --set "model.heads=$heads"
  --set "model.width=$width" --set model.context=64 --set train.sequence_length=64 --set "train.micro_batch_size=$batch"
  --set "model.vocab_size=$vocab" --set optimizer.grad_clip=0 --set overlap.split_tied_embedding=true)
field() { awk -F, -v name="$2" 'NR==1 {for (i=1;i<=NF;++i) if ($i==name) at=i} NR==2 {print $at}' "$1"; }
# The settings of our methods.
settings() {
  case "$1" in
    ours) echo "--set comm.grad_dtype=float32" ;;
    bf16) echo "--set comm.grad_dtype=bfloat16" ;;
    zero*) echo "--set comm.grad_dtype=float32 --set zero.stage=${1#zero}" ;;
  esac
}
ours() { # method; prints "loss ms"
  local more=()
  [[ $1 == zero* ]] || more=(--export "$work/start")
  # shellcheck disable=SC2046  # words
  netlab_mpirun "$program" bench step "${flags[@]}" $(settings "$1") --set device.machine="$work/link.toml" --set train.global_batch_size=$((2 * batch)) --steps 1 --in-a-row "$steps" --csv "$work/ours.csv" "${more[@]}" \
    >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }
  echo "$(field "$work/ours.csv" loss) $(field "$work/ours.csv" step_ms)"
}
theirs() { # ddp | flat | fsdp; prints "loss ms"
  local i pids=()
  for i in 0 1; do
    OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=wire ip netns exec "$(netlab_host $i)" timeout 900 taskset -c $i "${pytorch[@]}" scripts/bench_vs_pytorch.py "$work/start" \
      --threads 1 --steps "$steps" --method "$1" --rank $i --world 2 --address "tcp://$netlab_net.1:29500" >"$work/out$i" 2>"$work/err$i" </dev/null &
    pids+=($!)
  done
  wait "${pids[0]}" && wait "${pids[1]}" || { cat "$work/err0" "$work/err1" >&2; return 1; }
  cat "$work/out0"
}
alone() { # method; prints "bound wire step" of one process without the link
  # shellcheck disable=SC2046  # words
  taskset -c 0 "$program" bench step "${flags[@]}" $(settings "$1") --set "train.global_batch_size=$batch" --steps "$steps" \
    --line-rate "${rate%/s}/s" --ranks 2 --csv "$work/alone.csv" >"$work/log" 2>&1 </dev/null || { cat "$work/log" >&2; return 1; }
  echo "$(field "$work/alone.csv" bound_ms) $(field "$work/alone.csv" wire_ms) $(field "$work/alone.csv" step_ms)"
}
rehearsed() { # method; prints ms
  # shellcheck disable=SC2046  # words
  "$program" plan "${flags[@]}" $(settings "$1") --set train.global_batch_size=$((2 * batch)) --ranks 2 --machine "$work/link.toml" --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["rehearsed"]["step_ms"])'
}
median() { sort -g | awk '{v[NR]=$1} END {print NR % 2 ? v[(NR+1)/2] : (v[NR/2]+v[NR/2+1])/2}'; }

netlab_mpirun "$program" calibrate "${flags[@]}" --out "$work/link.toml" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
declare -A loss planned
for ((r = 0; r < rounds; ++r)); do
  # Our run of stage 0 comes first and writes the weights and batches for PyTorch.
  for method in ${methods//,/ }; do
    wants "$method" || continue
    case "$method" in
      ddp | flat | fsdp) result=$(theirs "$method") ;;
      *)
        read -r bound bytes step < <(alone "$method")
        echo "$bound" >>"$work/bound.$method"
        echo "$step" >>"$work/alone"
        planned[$method]=$(rehearsed "$method")
        result=$(ours "$method") ;;
    esac
    read -r l ms <<<"$result"
    loss[$method]=$l
    echo "$ms" >>"$work/ms.$method"
    echo "round $((r + 1))/$rounds: $method $ms ms, loss $l" >&2
  done
done

echo "$model: $layers layers, width $width, $batch x 64 tokens per process, vocabulary $vocab; 2 processes x 1 thread, $rate, medians of $rounds rounds x $steps steps"
[[ ! -e $work/alone ]] || echo "one process without the link: $(median <"$work/alone") ms"
grep '^verb' "$work/link.toml" | awk '{printf "%s between the hosts: %.1f us, %.1f MB/s, %.2f ns of a core per byte\n", $2, $4 / 1e3, $5 / 1e6, $7}'
printf '%-34s%12s%12s%14s%12s%12s%16s\n' implementation "step ms" "rehearsed" "/ rehearsed" "bound ms" "/ bound" "PyTorch / this"
[[ -z $csv ]] || echo "implementation,model,layers,rate,step_ms,rehearsed_ms,step_over_rehearsed,bound_ms,step_over_bound,pytorch_over_step,loss" >"$csv"
step_of() { [[ ! -e $work/ms.$1 ]] && echo 0 || median <"$work/ms.$1"; }
over() { awk -v a="$1" -v b="$2" 'BEGIN {if (a > 0 && b > 0) printf "%.3f\n", a / b; else print "-"}'; }
for method in ${methods//,/ }; do
  [[ -e $work/ms.$method ]] || continue
  ms=$(step_of "$method")
  bound=0 rehearsal=${planned[$method]:-0} pytorch_ms=$(step_of ddp)
  [[ ! -e $work/bound.$method ]] || bound=$(median <"$work/bound.$method")
  case "$method" in
    ours) name="slipstream, float32 on the wire" ;;
    bf16) name="slipstream, bfloat16 on the wire" ;;
    zero*) name="slipstream, ZeRO-${method#zero}" ;;
    ddp) name="PyTorch DDP (gloo)" ;;
    flat) name="PyTorch, flat all-reduce" ;;
    fsdp) name="PyTorch FSDP2 (gloo)" ;;
  esac
  [[ $method != zero3 && $method != fsdp ]] || pytorch_ms=$(step_of fsdp)
  row=("$(over "$ms" "$rehearsal")" "$(over "$ms" "$bound")" "$(over "$pytorch_ms" "$ms")")
  printf '%-34s%12.1f%12.1f%14s%12.1f%12s%16s\n' "$name" "$ms" "$rehearsal" "${row[0]}" "$bound" "${row[1]}" "${row[2]}"
  [[ -z $csv ]] || echo "\"$name\",$model,$layers,$rate,$ms,$rehearsal,${row[0]},$bound,${row[1]},${row[2]},${loss[$method]}" >>"$csv"
done
for method in ${methods//,/ }; do
  [[ -n ${loss[$method]:-} && -n ${loss[ours]:-} ]] || continue
  awk -v a="${loss[ours]}" -v b="${loss[$method]}" 'BEGIN {d = a - b; exit !(d < 1e-4 && d > -1e-4)}' ||
    { echo "bench_netlab: the losses of step 1 are ${loss[ours]} (ours) and ${loss[$method]} ($method), more than 1e-4 apart. The runs did not do the same work." >&2; exit 1; }
done
