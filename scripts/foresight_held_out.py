#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Errors of forecasts whose constants were fitted without the source of the forecast run.

    scripts/foresight_held_out.py RUNS_CSV [--program build/slipstream] [--jobs 2] [--csv OUT] [--work DIR]

For every source of RUNS_CSV (both releases of a page are one source): fits the constants to the rows of all other
sources, writes machine files and software profiles with them, and forecasts the rows of the source. Constants start
from PRIOR, which no run of the table gave, and keep its value where no other source tells more. Slopes of the fit come
from plans with one kind of constant about 10 % larger or smaller.
"""
import argparse
import collections
import csv
import json
import math
import pathlib
import re
import statistics
import tempfile

import foresight
from foresight import MACHINES, ROOT, number, precision_of, software_of

BUILT_IN = {"megatron": 2.4, "fsdp": 4.7, "llmq": 1.0}  # moved_bytes_factor, trainer/planner/forecast/software.cpp
STEP = {"speed_spread": 2.0, "matmul_efficiency": 0.9, "fp8_efficiency": 0.9}  # times the constant; the others: 1.1
# Median and standard deviation of the logarithm. Products: cuBLAS alone at 8192^3 reaches 0.80 on a cold H100 (fast.cu),
# a training step less; fp8: 0.71 (ml-engineering). Bytes: a program without fusion moves 2 to 4 times as much. The spread
# of the speed of cards is one number for all types.
PRIOR = {"matmul_efficiency": (0.75, 0.2), "fp8_efficiency": (0.71, 0.2), "moved_bytes_factor": (2.8, 0.35),
         "host": (100.0, 0.7), "speed_spread": (0.01, 0.7)}
SAME_CHIP = {"h200x8": "h100x8"}  # with other memory
POWER_LIMITED = {"h100_500w_x8": "h100x8"}  # attention is slower as products are
ROUNDS = 60


def source_of(row):
    return row["source"].split(" @")[0]


def read_constants(machines):
    """{(kind, file or profile): value} of the repository's files."""
    found = {}
    for machine in sorted(set(MACHINES.values())):
        text = (machines / f"{machine}.toml").read_text()
        for kind in ("matmul_efficiency", "fp8_efficiency"):
            match = re.search(rf"^{kind} = ([\d.]+)", text, re.M)
            if match and machine not in SAME_CHIP:
                found[kind, machine] = float(match[1])
        match = re.search(r"^speed_spread = ([\d.]+)", text, re.M)
        if match:
            found["speed_spread", "all"] = float(match[1])
    for name, value in BUILT_IN.items():
        found["moved_bytes_factor", name] = value
    for path in sorted((ROOT / "configs/software").glob("*.toml")):
        text = path.read_text()
        match = re.search(r"^moved_bytes_factor = ([\d.]+)", text, re.M)
        if match:
            found["moved_bytes_factor", f"configs/software/{path.name}"] = float(match[1])
        match = re.search(r'^host = "([\d.]+)us"', text, re.M)
        if match:
            found["host", f"configs/software/{path.name}"] = float(match[1])
    return found


def write_files(constants, folder, machines):
    """Copies of the machine files and profiles with these constants; the map of profile names to the copies."""
    folder.mkdir(parents=True, exist_ok=True)
    for machine in sorted(set(MACHINES.values())):
        text = (machines / f"{machine}.toml").read_text()
        for kind in ("matmul_efficiency", "fp8_efficiency"):
            key = kind, SAME_CHIP.get(machine, machine)
            if key in constants:
                text = re.sub(rf"^{kind} = [\d.]+", f"{kind} = {min(1.0, constants[key]):.5f}", text, flags=re.M)
        if machine in POWER_LIMITED:
            full = POWER_LIMITED[machine]
            whole = float(re.search(r"^attention_efficiency = ([\d.]+)", (machines / f"{full}.toml").read_text(), re.M)[1])
            share = constants["matmul_efficiency", machine] / constants["matmul_efficiency", full]
            text = re.sub(r"^attention_efficiency = [\d.]+", f"attention_efficiency = {min(whole, whole * share):.5f}", text,
                          flags=re.M)
        if ("speed_spread", "all") in constants:
            text = re.sub(r"^speed_spread = [\d.]+", f"speed_spread = {constants['speed_spread', 'all']:.5f}", text,
                          flags=re.M)
        (folder / f"{machine}.toml").write_text(text)
    names = {}
    for kind, name in constants:
        if kind != "moved_bytes_factor":
            continue
        path = folder / (pathlib.Path(name).stem + "_profile.toml")
        text = (ROOT / name).read_text() if name.startswith("configs/") else f'base = "{name}"\nmoved_bytes_factor = 1\n'
        text = re.sub(r"^moved_bytes_factor = [\d.]+", f"moved_bytes_factor = {constants[kind, name]:.5f}", text,
                      flags=re.M)
        if ("host", name) in constants:
            text = re.sub(r'^host = "[\d.]+us"', f'host = "{constants["host", name]:.2f}us"', text, flags=re.M)
        path.write_text(text)
        for end in ("", "+fp8"):
            names[name + end] = str(path) + end
    return names


def plan(rows, constants, options):
    """Predicted tokens/s of a GPU; None where the row cannot be planned."""
    with tempfile.TemporaryDirectory() as folder:
        names = write_files(constants, pathlib.Path(folder), options.machines)
        made = foresight.forecasts(rows, options.program, pathlib.Path(folder), names, options.jobs)
    return [m.get("tokens_per_s_per_rank") for m in made]


def used_constants(row):
    """The constants that a row's forecast reads."""
    name = software_of(row).removesuffix("+fp8")
    machine = SAME_CHIP.get(MACHINES[row["gpu"]], MACHINES[row["gpu"]])
    used = [("matmul_efficiency", machine), ("moved_bytes_factor", name), ("host", name), ("speed_spread", "all")]
    if precision_of(row) == "fp8":
        used.append(("fp8_efficiency", machine))
    return used


def fit(rows, errors, slopes, present):
    """Changes of the logarithms of the constants that minimise the sum of absolute errors, with one vote per source, by
    reweighted least squares from the priors. `errors`: ln(predicted / measured) with the constants of `present`;
    `slopes`: by kind of constant."""
    keys = sorted(present)
    place = {key: i for i, key in enumerate(keys)}
    many = collections.Counter(source_of(row) for row in rows)
    change = [0.0] * len(keys)
    for _ in range(ROUNDS):
        matrix = [[0.0] * len(keys) for _ in keys]
        right = [0.0] * len(keys)
        for key, i in place.items():
            middle, spread = PRIOR[key[0]]
            matrix[i][i] += 1 / spread**2
            right[i] += math.log(middle / present[key]) / spread**2
        for row, error, slope in zip(rows, errors, slopes):
            used = [(place[key], slope[key[0]]) for key in used_constants(row) if key in place]
            left = error + sum(change[i] * s for i, s in used)
            # A source counts as the square root of its rows: rows of a source share what their author did.
            weight = 1 / math.sqrt(many[source_of(row)]) / max(abs(left), 0.01) / 0.05
            for i, s in used:
                right[i] -= weight * s * error
                for j, t in used:
                    matrix[i][j] += weight * s * t
        change = solve(matrix, right)
    return {key: present[key] * math.exp(change[i]) for key, i in place.items()}


def solve(matrix, right):
    """Gauss elimination with pivots."""
    rows = [line[:] + [value] for line, value in zip(matrix, right)]
    for i in range(len(rows)):
        pivot = max(range(i, len(rows)), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(len(rows)):
            if k != i:
                factor = rows[k][i] / rows[i][i]
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i])]
    return [line[-1] / line[i] for i, line in enumerate(rows)]


def constant_of(rows, train):
    """Tokens/s from one utilisation per GPU and precision: the median over sources of `train`."""
    def utilisation(row):
        peak = next(v for k, v in foresight.PEAK.items() if row["gpu"].startswith(k))
        return number(row, "tok_s_gpu") * foresight.model_flops(row) / peak

    votes = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in train:
        votes[MACHINES[row["gpu"]], precision_of(row)][source_of(row)].append(utilisation(row))
    found = []
    for row in rows:
        sources = votes[MACHINES[row["gpu"]], precision_of(row)]
        peak = next(v for k, v in foresight.PEAK.items() if row["gpu"].startswith(k))
        middle = statistics.median(statistics.median(v) for v in sources.values()) if sources else None
        found.append(middle * peak / foresight.model_flops(row) if middle else None)
    return found


def kinds_without(rows, train):
    """True for rows whose GPU, precision or software no row of `train` has: nothing held back can tell about them."""
    def kind_of(row):
        return SAME_CHIP.get(MACHINES[row["gpu"]], MACHINES[row["gpu"]]) + " " + precision_of(row)

    seen = {kind_of(row) for row in train}
    programs = {software_of(row).removesuffix("+fp8") for row in train}
    return [kind_of(row) not in seen or software_of(row).removesuffix("+fp8") not in programs for row in rows]


def slopes_of(rows, present, options):
    """ln(predicted / measured) and the slopes by kind, from a file in --work if an earlier call wrote it."""
    path = options.work / "slopes.json" if options.work else None
    if path and path.exists():
        return json.loads(path.read_text())
    base = plan(rows, present, options)
    changed = {}
    for kind in PRIOR:
        made = plan(rows, {key: value * (STEP.get(kind, 1.1) if key[0] == kind else 1) for key, value in present.items()}, options)
        changed[kind] = made
        print(f"slopes: {kind}", flush=True)
    found = []
    for i, row in enumerate(rows):
        if base[i] is None:
            found.append(None)
            continue
        found.append([math.log(base[i] / number(row, "tok_s_gpu")),
                      {kind: math.log(made[i] / base[i]) / math.log(STEP.get(kind, 1.1)) for kind, made in changed.items()}])
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return found


def describe(name, done):
    errors = [abs(ratio - 1) for _, ratio, _, _ in done]
    flat = [abs(c - 1) for _, _, c, _ in done if c]
    print(f"{name[:60]:60} {foresight.summary(errors)} | constant {foresight.summary(flat)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs")
    parser.add_argument("--program", default=str(ROOT / "build/slipstream"))
    parser.add_argument("--machines", type=pathlib.Path, default=ROOT / "configs/machines")
    parser.add_argument("--without", default="vTrain", help="sources with this text are left out")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--csv", help="write one line per row")
    parser.add_argument("--work", type=pathlib.Path, help="folder that keeps the slopes for the next call")
    options = parser.parse_args()
    with open(options.runs, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file)
                if foresight.run_file(row) and not (options.without and options.without in row["source"])]
    present = read_constants(options.machines)
    known = slopes_of(rows, present, options)
    rows, known = zip(*[(row, k) for row, k in zip(rows, known) if k is not None])
    everything = fit(rows, [k[0] for k in known], [k[1] for k in known], present)
    print("constants fitted to all rows (and present ones)")
    for key, value in everything.items():
        print(f"  {key[0]:20} {key[1]:36} {value:8.3f} ({present[key]})")
    done = []
    for source in sorted({source_of(row) for row in rows}):
        own = [row for row in rows if source_of(row) == source]
        others = [(row, k) for row, k in zip(rows, known) if source_of(row) != source]
        train = [row for row, _ in others]
        constants = fit(train, [k[0] for _, k in others], [k[1] for _, k in others], present)
        predicted, flat, alone = plan(own, constants, options), constant_of(own, train), kinds_without(own, train)
        part = [(row, p / number(row, "tok_s_gpu"), c / number(row, "tok_s_gpu") if c else None, a)
                for row, p, c, a in zip(own, predicted, flat, alone)]
        describe(source, part)
        done += part
    print()
    describe("all", done)
    describe("another source has the GPU, the precision and the software", [d for d in done if not d[3]])
    foresight.intervals([(row, ratio, flat) for row, ratio, flat, _ in done])
    if options.csv:
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(["source", "model", "gpu", "gpus", "tp", "pp", "vpp", "cp", "dp", "micro_batch", "precision",
                          "as", "measured_tok_s_gpu", "held_out_tok_s_gpu", "constant_tok_s_gpu", "kind_in_others"])
            for row, ratio, flat, alone in done:
                tok = number(row, "tok_s_gpu")
                out.writerow([row[k] for k in ("source", "model", "gpu", "gpus", "tp", "pp", "vpp", "cp", "dp",
                                               "micro_batch", "precision")] +
                             [software_of(row), f"{tok:.5g}", f"{tok * ratio:.5g}", f"{tok * flat:.5g}" if flat else "",
                              "no" if alone else "yes"])


if __name__ == "__main__":
    main()
