#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares whole training steps (forward, backward, AdamW) with PyTorch's on this machine, interleaved and with the same
# weights, batch and clock.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: scripts/bench_vs_pytorch.sh [--rows small,middle,gpt2,bf16] [--threads 1,2] [--rounds 5] [--csv FILE]"
  echo "  small   4 layers, 4 heads, width 128, context 64, batch 12, vocabulary 65"
  echo "  middle  6 layers, 6 heads, width 384, context 256, batch 8, vocabulary 256"
  echo "  gpt2    GPT-2 124M: 12 layers, 12 heads, width 768, context 64, batch 4, vocabulary 50257"
  echo "  bf16    the same model compared with our own float32 instead of PyTorch"
  echo "  Installs the PyTorch of scripts/pytorch.sh in the user's cache folder. PYTHON and SLIPSTREAM select other programs."
}
rows=small,middle,gpt2,bf16 threads=1,2 rounds=5 csv=
while (($#)); do
  case "$1" in
    --rows) rows=$2; shift 2 ;;
    --threads) threads=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --csv) csv=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
program=${SLIPSTREAM:-build/slipstream}
[[ -x $program ]] || { echo "bench_vs_pytorch: $program does not exist. Build it (ninja -C build) or set SLIPSTREAM." >&2; exit 2; }
# shellcheck source=scripts/pytorch.sh
source scripts/pytorch.sh
require_pytorch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

median() { sort -g | awk '{v[NR]=$1} END {print NR % 2 ? v[(NR+1)/2] : (v[NR/2]+v[NR/2+1])/2}'; }
field() { awk -F, -v name="$2" 'NR==1 {for (i=1;i<=NF;++i) if ($i==name) at=i} NR==2 {print $at}' "$1"; }
shape_of() { # layers heads width context batch vocabulary, steps of a round
  case "$1" in
    small) echo "4 4 128 64 12 65 40" ;;
    middle) echo "6 6 384 256 8 256 5" ;;
    gpt2 | bf16) echo "12 12 768 64 4 50257 4" ;;
    *) usage >&2; exit 2 ;;
  esac
}
cores() { echo "0-$(($1 - 1))"; }

ours() { # dtype threads steps layers heads width context batch vocabulary [more flags]; prints "loss ms"
  local set=(--set train.dtype="$1" --set device.threads="$2" --set model.layers="$4" --set model.heads="$5" --set model.width="$6"
    --set model.context="$7" --set train.sequence_length="$7" --set train.micro_batch_size="$8" --set train.global_batch_size="$8"
    --set model.vocab_size="$9" --set optimizer.grad_clip=0)
  taskset -c "$(cores "$2")" "$program" bench step configs/runs/gpt2_124m.toml --steps "$3" --csv "$work/ours.csv" "${set[@]}" "${@:10}" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
  echo "$(field "$work/ours.csv" loss) $(field "$work/ours.csv" step_ms)"
}
theirs() { # threads steps
  OMP_NUM_THREADS=$1 taskset -c "$(cores "$1")" "${pytorch[@]}" scripts/bench_vs_pytorch.py "$work/start" --threads "$1" --steps "$2"
}

OMP_NUM_THREADS=${threads##*,} "${pytorch[@]}" scripts/bench_vs_pytorch.py - --about --threads "${threads##*,}"
echo "$("$program" --version), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), medians of $rounds interleaved rounds; ratio: speed relative to the first column"
printf '%-8s%-36s%8s%14s%14s%8s%12s%12s%12s\n' row "layers heads width context batch vocab" threads "peer ms" "ours ms" ratio "peer loss" "our loss" differ
[[ -z $csv ]] || echo "row,threads,peer,peer_ms,ours_ms,ratio,peer_loss,our_loss" >"$csv"
failed=0
for row in ${rows//,/ }; do
  shape=$(shape_of "$row")
  read -ra s <<<"$shape"
  for n in ${threads//,/ }; do
    ((n <= $(nproc))) || { echo "$row: skipped on $n threads, this machine has $(nproc) cores"; continue; }
    peer_ms=() our_ms=() peer=PyTorch dtype=float32
    [[ $row != bf16 ]] || { peer="our float32"; dtype=bfloat16; }
    for ((r = 0; r < rounds; ++r)); do
      # Our first run writes the weights and the batch with which both sides start.
      read -r our_loss ms < <(ours "$dtype" "$n" "${s[6]}" "${s[@]:0:6}" --export "$work/start")
      our_ms+=("$ms")
      if [[ $row == bf16 ]]; then
        read -r peer_loss ms < <(ours float32 "$n" "${s[6]}" "${s[@]:0:6}")
      else
        read -r peer_loss ms < <(theirs "$n" "${s[6]}")
      fi
      peer_ms+=("$ms")
    done
    x=$(printf '%s\n' "${peer_ms[@]}" | median) y=$(printf '%s\n' "${our_ms[@]}" | median)
    # bfloat16 keeps 8 bits, so its loss may differ by a rounding of the logits.
    tolerance=1e-4
    [[ $row != bf16 ]] || tolerance=2e-2
    read -r differ equal ratio < <(awk -v a="$peer_loss" -v b="$our_loss" -v t="$tolerance" -v x="$x" -v y="$y" \
      'BEGIN {d = a > b ? a - b : b - a; printf "%.1e %d %.2f\n", d, d <= t, x / y}')
    printf '%-8s%-36s%8s%14.2f%14.2f%8s%12.6f%12.6f%12s\n' "$row" "${s[*]:0:6}" "$n" "$x" "$y" "$ratio" "$peer_loss" "$our_loss" "$differ"
    [[ -z $csv ]] || echo "$row,$n,$peer,$x,$y,$ratio,$peer_loss,$our_loss" >>"$csv"
    ((equal)) || { echo "bench_vs_pytorch: $row: the losses of step 1 are $peer_loss and $our_loss, more than $tolerance apart: the two did not do the same work." >&2; failed=1; }
  done
done
exit $failed
