#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tunes AdamW and Muon on the character recipe and compares the steps in which they reach a validation loss.

Both search their learning rates with TUNING_STEPS steps and train the best settings for STEPS steps. Muon gets SHARE of
the steps of AdamW in every run, and every run ends its own decay. Writes OUT/muon-runs.csv (validation losses of all
runs) and OUT/muon.svg (curves of the best of both), and prints the table of the page. Needs only Python.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLORS = {"AdamW": "#3b82c4", "Muon": "#d9480f"}


def train(options, name, steps, interval, sets):
    """Validation losses by step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(options.program), "train", str(options.recipe)]
        for key in [f"data.train={options.text}", f"output.dir={folder}/run", f"train.steps={steps}",
                    f"optimizer.decay_steps={steps}", f"train.eval_interval={interval}", "device.threads=1",
                    "device.kind=cpu", f"train.seed={options.seed}", *sets]:
            command += ["--set", key]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1"})
        if result.returncode not in (0, 5):  # 5: the loss is not finite
            sys.exit(f"{name}: exit code {result.returncode}\n{result.stdout}")
        metrics = pathlib.Path(folder, "run/metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        losses = {line["step"]: line["val_loss"] for line in lines if line.get("val_loss") is not None}
        if result.returncode == 5:
            losses = {steps: float("inf")}
    print(f"{name}: {losses[max(losses)]:.4f} after {max(losses)} steps", file=sys.stderr, flush=True)
    return losses


def draw(path, curves, target):
    """`curves`: {label: (color, {step: loss})}."""
    width, height, left, top, right, bottom = 720, 380, 56, 20, 24, 44
    steps_max = max(max(losses) for _, losses in curves.values())
    points = [loss for _, losses in curves.values() for step, loss in losses.items() if step >= steps_max / 8]
    low, high = min(points) - 0.02, max(points) + 0.02
    x = lambda step: left + (width - left - right) * step / steps_max
    y = lambda loss: top + (height - top - bottom) * (high - loss) / (high - low)
    rows = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
            f'font-size="12"><title>Validation loss by step</title><rect width="{width}" height="{height}" fill="#fff"/>']
    for i in range(5):
        step = steps_max * i // 4
        rows.append(f'<text x="{x(step):.0f}" y="{height - 24}" text-anchor="middle">{step}</text>')
        loss = low + (high - low) * i / 4
        rows.append(f'<path d="M{left} {y(loss):.1f}H{width - right}" stroke="#d0d7de"/>'
                    f'<text x="{left - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
    rows.append(f'<text x="{(left + width) / 2:.0f}" y="{height - 6}" text-anchor="middle">step</text>')
    rows.append(f'<path d="M{left} {y(target):.1f}H{width - right}" stroke="#59636e" stroke-dasharray="4 3"/>')
    for i, (label, (color, losses)) in enumerate(curves.items()):
        line = " ".join(f"{x(s):.1f},{y(loss):.1f}" for s, loss in sorted(losses.items()) if loss <= high)
        rows.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>'
                    f'<text x="{width - right - 8}" y="{top + 20 + 18 * i}" text-anchor="end" fill="{color}">{label}</text>')
    path.write_text("\n".join(rows) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/slipstream", metavar="PROGRAM")
    parser.add_argument("--recipe", type=pathlib.Path, default=ROOT / "configs/runs/shakespeare_char.toml")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="tiny shakespeare; the recipe names its source")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/benchmarks")
    parser.add_argument("--steps", type=int, default=2000, help="AdamW steps; default: %(default)s")
    parser.add_argument("--share", type=float, default=0.75, help="Muon steps / AdamW steps; default: %(default)s")
    parser.add_argument("--tuning-steps", type=int, default=500, help="AdamW steps of the search; default: %(default)s")
    parser.add_argument("--best", type=int, default=3, help="best settings per optimizer that are trained at full length; default: %(default)s")
    parser.add_argument("--interval", type=int, default=125, help="steps between validations; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--adamw", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3, 6e-3, 8e-3, 16e-3], metavar="RATE")
    parser.add_argument("--muon", type=float, nargs="+", default=[4e-3, 8e-3, 16e-3, 32e-3], metavar="RATE")
    parser.add_argument("--others", type=float, nargs="+", default=[2e-3, 4e-3, 8e-3], metavar="RATE",
                        help="learning rates of the parameters that Muon leaves to AdamW")
    options = parser.parse_args()
    rows = []  # optimizer, learning rate, that of the others, steps, losses

    def run(name, rate, others, steps, interval):
        sets = [f"optimizer.learning_rate={rate:g}", f"optimizer.min_learning_rate={rate / 10:g}"]
        if name == "Muon":
            sets += ["optimizer.name=muon", f"optimizer.adamw_learning_rate={others:g}"]
        losses = train(options, f"{name} {rate:g}, others {others:g}", steps, interval, sets)
        rows.append((name, rate, others, steps, losses))

    settings = {"AdamW": [(rate, rate) for rate in options.adamw],
                "Muon": [(rate, others) for rate in options.muon for others in options.others]}
    share = {"AdamW": 1, "Muon": options.share}
    final = lambda row: row[4][max(row[4])]
    for name, rates in settings.items():
        for rate, others in rates:
            run(name, rate, others, round(options.tuning_steps * share[name]), 0)
        tuned = sorted((row for row in rows if row[0] == name), key=final)
        for _, rate, others, _, _ in tuned[:options.best]:
            run(name, rate, others, round(options.steps * share[name]), options.interval)
    options.out.mkdir(parents=True, exist_ok=True)
    lines = ["optimizer,learning_rate,adamw_learning_rate,steps,step,validation_loss"]
    for name, rate, others, steps, losses in rows:
        lines += [f"{name},{rate:g},{others:g},{steps},{step},{loss:.5f}" for step, loss in sorted(losses.items())]
    (options.out / "muon-runs.csv").write_text("\n".join(lines) + "\n")
    best = {name: min((row for row in rows if row[0] == name and row[3] == round(options.steps * share[name])),
                      key=final) for name in settings}
    target = final(best["AdamW"])
    reached = [step for step, loss in sorted(best["Muon"][4].items()) if loss <= target]
    draw(options.out / "muon.svg",
         {f"{name}, learning rate {row[1]:g}" + (f", others {row[2]:g}" if name == "Muon" else ""):
              (COLORS[name], row[4]) for name, row in best.items()}, target)
    print("| optimizer | learning rate | of the others | steps | validation loss |\n|---|---|---|---|---|")
    for name, rate, others, steps, losses in rows:
        print(f"| {name} | {rate:g} | {others:g} | {steps} | {losses[max(losses)]:.4f} |")
    print(f"\nAdamW ends at {target:.4f} after {options.steps} steps. " +
          (f"Muon is at {best['Muon'][4][reached[0]]:.4f} after {reached[0]} steps, "
           f"{100 * reached[0] / options.steps:.0f} % of them." if reached else
           f"Muon ends at {final(best['Muon']):.4f} after {best['Muon'][3]}."))


if __name__ == "__main__":
    main()
