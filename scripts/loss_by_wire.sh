#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the effect of rounding on the wire on the loss: same model, text and batches with gradients as float32,
# bfloat16 and int8, with and without error feedback, and with int8 parameters.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: scripts/loss_by_wire.sh [--steps 300] [--ranks 2] [--stage 1] [--seeds 1] [--formats all] [--text data/quickstart.txt]"
  echo "                               [--out runs/loss_by_wire] [--csv FILE] [-- FLAGS]"
  echo "  Trains configs/runs/quickstart.toml with ZeRO of a stage once per format and seed and prints validation losses. Lists have"
  echo "  commas, such as --seeds 1,2,3 and --formats float32,bfloat16; the CSV has a row per run. FLAGS go to slipstream train."
}
steps=300 ranks=2 stage=1 seeds=1 formats=all text=data/quickstart.txt out=runs/loss_by_wire csv=""
# shellcheck source=scripts/on_ranks.sh
source scripts/on_ranks.sh
take_options "steps ranks stage seeds formats text out csv" "$@"
set -- ${flags[@]+"${flags[@]}"}
mkdir -p "$out"
every=(
  "float32|comm.grad_dtype=float32"
  "bfloat16|comm.grad_dtype=bfloat16"
  "int8|comm.quantize=int8"
  "int8, fed back|comm.quantize=int8|comm.error_feedback=true"
  "int8, fed back, parameters int8|comm.quantize=int8|comm.error_feedback=true|zero.gather_dtype=int8"
)
chosen=()
for format in "${every[@]}"; do
  if [[ $formats == all || ,$formats, == *",${format%%|*},"* ]]; then chosen+=("$format"); fi
done
((${#chosen[@]})) || { echo "loss_by_wire: no format is named in '$formats'. Use all, float32, bfloat16 or int8." >&2; exit 2; }
for seed in ${seeds//,/ }; do
  for format in "${chosen[@]}"; do
    IFS='|' read -ra parts <<<"$format"
    name=${parts[0]} sets=()
    for set in "${parts[@]:1}"; do sets+=(--set "$set"); done
    dir=$out/$seed/${name//[ ,]/_}
    mkdir -p "$out/$seed"
    on_ranks "$ranks" train configs/runs/quickstart.toml --set data.train="$text" --set zero.stage="$stage" --set overlap.split_tied_embedding=false \
      --set train.steps="$steps" --set optimizer.decay_steps="$steps" --set train.eval_interval=$((steps / 3)) --set 'trace.steps=[]' \
      --set train.seed="$seed" --set comm.emulate.bandwidth= --set output.dir="$dir" --set checkpoint.dir="$dir/checkpoints" "${sets[@]}" "$@" >"$dir.txt" 2>&1
  done
done
python3 - "$out" "$ranks" "$stage" "$seeds" "$csv" "${chosen[@]}" <<'PYTHON'
import csv, json, re, statistics, sys
out, ranks, stage, seeds, path, *formats = sys.argv[1:]
names = [f.split("|")[0] for f in formats]
rows = []
for seed in seeds.split(","):
    for name in names:
        folder = f"{out}/{seed}/{re.sub('[ ,]', '_', name)}"
        lines = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]
        sent = re.search(r"(\d+) counted", open(f"{folder}.txt").read())
        rows.append({"ranks": ranks, "zero_stage": stage, "seed": seed, "gradients": name, "bytes_sent": sent.group(1) if sent else 0,
                     **{f"val_loss_{l['step']}": l["val_loss"] for l in lines if l.get("val_loss") is not None}})
if path:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
losses = [key for key in rows[0] if key.startswith("val_loss")]
first = {row["seed"]: row for row in rows if row["gradients"] == names[0]}
print("| gradients | bytes sent | " + " | ".join(f"validation, step {key.removeprefix('val_loss_')}" for key in losses) + f" | off {names[0]} at the end |")
print("|---" * (len(losses) + 3) + "|")
for name in names:
    mine = [row for row in rows if row["gradients"] == name]
    off = [100 * (row[losses[-1]] / first[row["seed"]][losses[-1]] - 1) for row in mine]
    sent = statistics.mean(int(row["bytes_sent"]) / max(1, int(first[row["seed"]]["bytes_sent"])) for row in mine)
    print(f"| {name} | {sent:.2f} | " + " | ".join(" ".join(f"{row[key]:.4f}" for row in mine) for key in losses) + " | " + " ".join(f"{o:+.2f}" for o in off) + " % |")
ends = [row[losses[-1]] for row in first.values()]
if len(ends) > 1:
    print(f"{names[0]} over seeds at the end: {statistics.mean(ends):.4f}, standard deviation {100 * statistics.stdev(ends) / statistics.mean(ends):.2f} %")
PYTHON
