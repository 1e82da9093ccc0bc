#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the effect of rounding on the wire on the loss: same model, text, seed and batches with gradients as float32,
# bfloat16 and int8, with and without error feedback, and with int8 parameters.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: scripts/loss_by_wire.sh [--steps 300] [--ranks 2] [--text data/quickstart.txt] [--out runs/loss_by_wire] [-- FLAGS]"
  echo "  Trains configs/runs/quickstart.toml with ZeRO-1 once per format and prints validation losses. FLAGS go to slipstream train."
}
steps=300 ranks=2 text=data/quickstart.txt out=runs/loss_by_wire
# shellcheck source=scripts/on_ranks.sh
source scripts/on_ranks.sh
take_options "steps ranks text out" "$@"
set -- ${flags[@]+"${flags[@]}"}
mkdir -p "$out"
formats=(
  "float32"
  "bfloat16|comm.grad_dtype=bfloat16"
  "int8|comm.quantize=int8"
  "int8, fed back|comm.quantize=int8|comm.error_feedback=true"
  "int8, fed back, parameters int8|comm.quantize=int8|comm.error_feedback=true|zero.gather_dtype=int8"
)
for format in "${formats[@]}"; do
  IFS='|' read -ra parts <<<"$format"
  name=${parts[0]} sets=()
  for set in "${parts[@]:1}"; do sets+=(--set "$set"); done
  dir=$out/${name//[ ,]/_}
  on_ranks "$ranks" train configs/runs/quickstart.toml --set data.train="$text" --set zero.stage=1 --set overlap.split_tied_embedding=false \
    --set train.steps="$steps" --set optimizer.decay_steps="$steps" --set train.eval_interval=$((steps / 3)) --set 'trace.steps=[]' \
    --set comm.emulate.bandwidth= --set output.dir="$dir" --set checkpoint.dir="$dir/checkpoints" "${sets[@]}" "$@" >"$dir.txt" 2>&1
done
python3 - "$out" "${formats[@]}" <<'PYTHON'
import json, re, sys
out, formats = sys.argv[1], sys.argv[2:]
rows = []
for name in (f.split("|")[0] for f in formats):
    folder = f"{out}/{re.sub('[ ,]', '_', name)}"
    lines = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]
    sent = re.search(r"(\d+) counted", open(f"{folder}.txt").read())
    rows.append((name, int(sent.group(1)) if sent else 0, {l["step"]: l["val_loss"] for l in lines if l.get("val_loss") is not None}))
steps = sorted(rows[0][2])
print("| gradients | bytes sent | " + " | ".join(f"validation, step {s}" for s in steps) + " | off float32 at the end |")
print("|---" * (len(steps) + 3) + "|")
for name, sent, losses in rows:
    end = steps[-1]
    print(f"| {name} | {sent / rows[0][1]:.2f} | " + " | ".join(f"{losses[s]:.4f}" for s in steps) + f" | {100 * (losses[end] / rows[0][2][end] - 1):+.2f} % |")
PYTHON
