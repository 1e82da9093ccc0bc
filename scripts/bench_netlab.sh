#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures data parallelism over a real 1 Gbit/s link on one machine: two processes of one thread, each in its own
# network namespace.
#
# Interleaves our steps (float32 and bfloat16 on the wire) with PyTorch's DDP (gloo) and its flat all-reduce: same
# weights and batches, same clock, one core each. The bound transfers gradients at the line rate as soon as each is
# complete.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: scripts/bench_netlab.sh [--model gpt2|small] [--rounds 3] [--steps 4] [--rate 1Gbit] [--only ours,bf16,ddp,flat] [--csv FILE]"
  echo "  gpt2   GPT-2 124M, batch 4 x 64 tokens per process, vocabulary 50257"
  echo "  small  6 layers, width 384, batch 8 x 64; a functional test of one minute"
  echo "  Needs root (namespaces, tc). PYTHON and SLIPSTREAM replace python3 and build/slipstream."
}
model=gpt2 rounds=3 steps=4 rate=1Gbit only=ours,bf16,ddp,flat csv=
while (($#)); do
  case "$1" in
    --model) model=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --steps) steps=$2; shift 2 ;;
    --rate) rate=$2; shift 2 ;;
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
if wants ddp || wants flat; then require_pytorch; fi

netlab_require bench_netlab
(($(nproc) >= 2)) || { echo "bench_netlab: needs 2 cores, one per process, but this machine has $(nproc)." >&2; exit 7; }

work=$(mktemp -d)
trap 'netlab_down; rm -rf "$work"' EXIT
netlab_up bench_netlab 2 "$rate"

read -r layers heads width batch vocab <<<"${shape[*]}"
flags=(configs/runs/gpt2_124m.toml --set train.dtype=float32 --set device.threads=1 --set "model.layers=$layers" --set "model.heads=$heads"
  --set "model.width=$width" --set model.context=64 --set train.sequence_length=64 --set "train.micro_batch_size=$batch"
  --set "model.vocab_size=$vocab" --set optimizer.grad_clip=0 --set overlap.split_tied_embedding=true)
field() { awk -F, -v name="$2" 'NR==1 {for (i=1;i<=NF;++i) if ($i==name) at=i} NR==2 {print $at}' "$1"; }
ours() { # dtype of the wire; prints "loss ms"
  netlab_mpirun "$program" bench step "${flags[@]}" --set comm.grad_dtype="$1" --set train.global_batch_size=$((2 * batch)) --steps "$steps" --csv "$work/ours.csv" --export "$work/start" \
    >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }
  echo "$(field "$work/ours.csv" loss) $(field "$work/ours.csv" step_ms)"
}
theirs() { # ddp | flat; prints "loss ms"
  local i pids=()
  for i in 0 1; do
    OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=wire ip netns exec "$(netlab_host $i)" timeout 900 taskset -c $i "${pytorch[@]}" scripts/bench_vs_pytorch.py "$work/start" \
      --threads 1 --steps "$steps" --method "$1" --rank $i --world 2 --address "tcp://$netlab_net.1:29500" >"$work/out$i" 2>"$work/err$i" </dev/null &
    pids+=($!)
  done
  wait "${pids[0]}" && wait "${pids[1]}" || { cat "$work/err0" "$work/err1" >&2; return 1; }
  cat "$work/out0"
}
alone() { # dtype of the wire; prints "bound wire step" of one process without the link
  taskset -c 0 "$program" bench step "${flags[@]}" --set comm.grad_dtype="$1" --set "train.global_batch_size=$batch" --steps "$steps" \
    --line-rate "${rate%/s}/s" --ranks 2 --csv "$work/alone.csv" >"$work/log" 2>&1 </dev/null || { cat "$work/log" >&2; return 1; }
  echo "$(field "$work/alone.csv" bound_ms) $(field "$work/alone.csv" wire_ms) $(field "$work/alone.csv" step_ms)"
}
median() { sort -g | awk '{v[NR]=$1} END {print NR % 2 ? v[(NR+1)/2] : (v[NR/2]+v[NR/2+1])/2}'; }

declare -A loss
for ((r = 0; r < rounds; ++r)); do
  for wire in float32 bfloat16; do
    read -r bound bytes step < <(alone "$wire")
    echo "$bound" >>"$work/bound.$wire"
    echo "$bytes" >>"$work/wire.$wire"
    echo "$step" >>"$work/alone"
  done
  # Our run comes first and writes the weights and batches for PyTorch.
  for method in ours bf16 ddp flat; do
    wants "$method" || continue
    case "$method" in
      ours) result=$(ours float32) ;;
      bf16) result=$(ours bfloat16) ;;
      *) result=$(theirs "$method") ;;
    esac
    read -r l ms <<<"$result"
    loss[$method]=$l
    echo "$ms" >>"$work/ms.$method"
    echo "round $((r + 1))/$rounds: $method $ms ms, loss $l" >&2
  done
done

echo "$model: $layers layers, width $width, $batch x 64 tokens per process, vocabulary $vocab; 2 processes x 1 thread, $rate, medians of $rounds rounds x $steps steps"
echo "one process without the link: $(median <"$work/alone") ms; all gradients at the line rate: $(median <"$work/wire.float32") ms in float32, $(median <"$work/wire.bfloat16") ms in bfloat16"
printf '%-34s%12s%12s%12s%12s\n' implementation "step ms" "bound ms" "/ bound" "DDP / this"
[[ -z $csv ]] || echo "implementation,model,rate,step_ms,bound_ms,step_over_bound,ddp_over_step,loss" >"$csv"
ddp=0
[[ ! -e $work/ms.ddp ]] || ddp=$(median <"$work/ms.ddp")
for method in ours bf16 ddp flat; do
  [[ -e $work/ms.$method ]] || continue
  ms=$(median <"$work/ms.$method")
  bound=$(median <"$work/bound.$([[ $method == bf16 ]] && echo bfloat16 || echo float32)")
  case "$method" in
    ours) name="slipstream, float32 on the wire" ;;
    bf16) name="slipstream, bfloat16 on the wire" ;;
    ddp) name="PyTorch DDP (gloo)" ;;
    flat) name="PyTorch, flat all-reduce" ;;
  esac
  read -r over times < <(awk -v m="$ms" -v b="$bound" -v d="$ddp" 'BEGIN {printf "%.3f %.2f\n", m / b, d / m}')
  printf '%-34s%12.1f%12.1f%12s%12s\n' "$name" "$ms" "$bound" "$over" "$times"
  [[ -z $csv ]] || echo "$name,$model,$rate,$ms,$bound,$over,$times,${loss[$method]}" >>"$csv"
done
for method in bf16 ddp flat; do
  [[ -n ${loss[$method]:-} && -n ${loss[ours]:-} ]] || continue
  awk -v a="${loss[ours]}" -v b="${loss[$method]}" 'BEGIN {d = a - b; exit !(d < 1e-4 && d > -1e-4)}' ||
    { echo "bench_netlab: the losses of step 1 are ${loss[ours]} (ours) and ${loss[$method]} ($method), more than 1e-4 apart. The runs did not do the same work." >&2; exit 1; }
done
