#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One Markdown page from a folder of gpu_check.sh: forecast, measurement and their ratio, worst first.

usage: gpu_summary.py DIR [--forecast FILE] >docs/benchmarks/DATE-CARD.md

The forecast is the CSV of gpu_forecast.py (default: that of the GPU in found.txt, docs/benchmarks/h100-forecast.csv for an H100,
otherwise h200-forecast.csv), with the columns name, unit, low, expected, high and basis. A name is one of measured.csv, or op and
shape of kernels.csv; a kernel has the units us, TFLOP/s, GB/s and "% of copy". Two more measurements follow from the others: the
step beside torch.compile, and the waits and launches of a step that the test gpu_host_waits requires.

The ratio is the reached fraction of the forecast speed; 1 or more meets it: forecast / measured where less is better (times, waits,
launches, slow-downs), measured / forecast for everything else. "inside" is yes if the measurement lies from low to high.

Exit code: 2 if DIR or a row of the forecast cannot be read.
"""
import argparse
import collections
import csv
import math
import pathlib
import re
import statistics
import sys

LESS_IS_BETTER = {"us", "ms", "s", "waits", "launches"}
COLUMNS = ["name", "unit", "low", "expected", "high", "basis"]
PEERS = ["torch", "cudnn", "flash", "torch-eager", "torch-compile", "torch-tuned"]
RESULT = re.compile(r"(ok|refused|cut|timeout|failed) +\d+ s  (.+)")
OUTCOMES = ["failed", "timeout", "cut", "refused", "ok"]


def refuse(sentence):
    print(f"gpu_summary: {sentence}", file=sys.stderr)
    sys.exit(2)


def finite(text):
    """The number, or None. A run that was cut off may leave half a line."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def positive(text):
    value = finite(text)
    return value if value and value > 0 else None


def results_of(folder):
    """[(result, test)]."""
    path = folder / "tests.txt"
    return [match.groups() for match in map(RESULT.fullmatch, path.read_text().splitlines()) if match] if path.exists() else []


def read_measured(folder):
    """{(what, unit): value} of both tables."""
    measured = {}
    kernels = folder / "kernels.csv"
    if kernels.exists():
        with open(kernels, newline="") as file:
            rows = list(csv.DictReader(file))
        copy = next((positive(row["gbytes"]) for row in rows if row["op"] == "copy"), None)
        for row in rows:
            what, rate = f"{row['op']} {row['shape']}", positive(row["gbytes"])
            for unit, value in (("us", row["us"]), ("TFLOP/s", row["tflops"]), ("GB/s", row["gbytes"]),
                                ("% of copy", 100 * rate / copy if rate and copy else None)):
                if positive(value):
                    measured[what, unit] = positive(value)
    numbers = folder / "measured.csv"
    if numbers.exists():
        for line in numbers.read_text().splitlines():
            cells = line.split(",")
            if len(cells) == 3 and finite(cells[1]) is not None:
                measured[cells[0], cells[2]] = finite(cells[1])
    return measured


def read_derived(folder, measured):
    """Adds what follows from other measurements."""
    ours, theirs = measured.get(("GPT-2 124M", "tokens/s")), measured.get(("torch-compile GPT-2 124M", "tokens/s"))
    if ours and theirs:
        measured["GPT-2 124M / torch-compile", "x"] = ours / theirs
    if ("ok", "gpu_host_waits_test") in results_of(folder):
        measured["host synchronisations a step", "waits"] = 0.0
        measured["graph launches a step", "launches"] = 1.0


def read_forecast(path):
    """[(name, unit, low, expected, high)]."""
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    if not rows or rows[0] != COLUMNS:
        refuse(f"{path}:1: the columns must be {','.join(COLUMNS)}.")
    forecast = []
    for number, row in enumerate(rows[1:], 2):
        low, expected, high = ((finite(cell) for cell in row[2:5]) if len(row) == len(COLUMNS) else (None, None, None))
        if None in (low, expected, high) or not 0 <= low <= expected <= high:
            refuse(f"{path}:{number}: the forecast of '{row[0] if row else ''}' needs numbers with 0 <= low <= expected <= high.")
        forecast.append((row[0], row[1], low, expected, high))
    return forecast


def shown(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def ratio_of(what, unit, forecast, measured):
    if unit in LESS_IS_BETTER or "slow-down" in what:
        forecast, measured = measured, forecast  # compute may be faster by chance
    return measured / forecast if forecast > 0 else math.inf if measured > 0 else 1.0


def table(columns, rows):
    """A Markdown table; columns of numbers are aligned to the right."""
    print("| " + " | ".join(columns) + " |")
    right = ("low", "forecast", "high", "measured", "ratio", "ours", "theirs", "ours is")
    print("|" + "|".join("---:" if name in right else "---" for name in columns) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def print_forecast(path, measured):
    print("## Forecast and measurement, worst first\n")
    if not path.exists():
        print(f"{path.name} has no forecast, so the measurements have no comparison.\n")
        return set()
    forecast = read_forecast(path)
    both = [(ratio_of(what, unit, value, measured[what, unit]), what, low, value, high, measured[what, unit], unit)
            for what, unit, low, value, high in forecast if (what, unit) in measured]
    table(["what", "low", "forecast", "high", "measured", "unit", "ratio", "inside"],
          [(what, shown(low), shown(value), shown(high), shown(found), unit, f"{ratio:.2f}", "yes" if low <= found <= high else "no")
           for ratio, what, low, value, high, found, unit in sorted(both)])
    if both:
        print(f"{sum(low <= found <= high for _, _, low, _, high, found, _ in both)} of {len(both)} measurements lie inside their interval.\n")
    # Parts of the step have no measurement of their own.
    absent = [f"{what} ({unit})" for what, unit, *_ in forecast if (what, unit) not in measured and not what.startswith("step part")]
    if absent:
        print(f"Not measured: {'; '.join(absent)}.\n")
    return {(row[1], row[-1]) for row in both}


def print_peers(measured):
    rows, seen = [], set()
    for (name, unit), theirs in measured.items():
        by, _, what = name.partition(" ")
        if by in PEERS:
            seen.add((name, unit))
            if (what, unit) in measured:
                ours = measured[what, unit]
                rows.append((ratio_of(what, unit, theirs, ours), what, ours, by, theirs, unit))
    if rows:
        print("## Beside PyTorch, worst first\n")
        table(["what", "ours", "by", "theirs", "unit", "ours is"],
              [(what, shown(ours), by, shown(theirs), unit, f"{ratio:.2f} x") for ratio, what, ours, by, theirs, unit in sorted(rows)])
    return seen


def print_tests(folder):
    print("## Tests\n")
    results = results_of(folder)
    count = collections.Counter(result for result, _ in results)
    print(", ".join(f"{count[outcome]} {outcome}" for outcome in reversed(OUTCOMES) if count[outcome]) or "none", end=".\n\n")
    bad = sorted((one for one in results if one[0] not in ("ok", "refused")), key=lambda one: OUTCOMES.index(one[0]))
    for result, name in bad:
        print(f"- {result}: {name}")
    if bad:
        print()


def print_clocks(folder):
    """The clocks while the GPU was busy: products at a low clock explain a missed forecast."""
    path = folder / "clocks.csv"
    rows = [line.split(", ") for line in path.read_text(errors="replace").splitlines()] if path.exists() else []
    # timestamp, SM clock, memory clock, power, temperature, utilisation in %
    busy = [(finite(row[1]), finite(row[3])) for row in rows if len(row) >= 6 and (finite(row[5]) or 0) >= 50]
    clocks = sorted(clock for clock, _ in busy if clock)
    if clocks:
        watts = max((power for _, power in busy if power), default=0)
        print(f"In {len(clocks)} s at 50 % utilisation or more: SM clock {clocks[0]:.0f} to {clocks[-1]:.0f} MHz, median {statistics.median(clocks):.0f}; "
              f"power at most {watts:.0f} W.\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=pathlib.Path, help="results of gpu_check.sh")
    arguments.add_argument("--forecast", type=pathlib.Path, help="the forecast, as CSV")
    options = arguments.parse_args()
    found = options.folder / "found.txt"
    if not found.exists():
        refuse(f"{options.folder} has no found.txt. Give an output folder of gpu_check.sh.")
    lines = found.read_text().splitlines()
    gpus = [line.removeprefix("found: GPU ") for line in lines if line.startswith("found: GPU ")]
    print("<!-- SPDX-License-Identifier: Apache-2.0 -->")
    print(f"# GPU check: {gpus[0].split(',')[0] if gpus else 'no GPU'}\n")
    print(f"{lines[0][0].upper() + lines[0][1:] if lines else 'Nothing found'}. GPUs: {'; '.join(gpus) or 'none'}.\n")
    for line in lines:
        if line.startswith("attention: "):
            print(f"A{line[1:]}.\n")
    print_clocks(options.folder)
    measured = read_measured(options.folder)
    read_derived(options.folder, measured)
    card = "h100" if gpus and "H100" in gpus[0] else "h200"
    path = options.forecast or pathlib.Path(__file__).resolve().parent.parent / f"docs/benchmarks/{card}-forecast.csv"
    shown_rows = print_forecast(path, measured) | print_peers(measured)
    print_tests(options.folder)
    rest = [(what, shown(value), unit) for (what, unit), value in sorted(measured.items()) if (what, unit) not in shown_rows]
    if rest:
        print("## Measured without a forecast\n")
        table(["what", "measured", "unit"], rest)


main()
