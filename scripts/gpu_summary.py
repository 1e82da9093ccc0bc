#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One Markdown page from a folder of gpu_check.sh: forecast, measurement and their ratio, worst first.

usage: gpu_summary.py DIR [--forecast FILE] >docs/benchmarks/DATE-CARD.md

The forecast is a Markdown page (default: docs/benchmarks/h200-forecast.md). Every table in it whose first three columns are named
"what", "forecast" and "unit" is read; further columns are for readers.

  | what                                       | forecast | unit     | counted from      |
  |--------------------------------------------|---------:|----------|-------------------|
  | `GPT-2 124M`                               |  640,000 | tokens/s | the sum below     |
  | `attention_forward B32 T1024 H12/12 x 64`  |      270 | TFLOP/s  | shared memory     |
  | `layer_norm_backward 32768 x 768`          |       85 | % of copy| bytes             |

"what" is a name in measured.csv, or op and shape in kernels.csv; backticks are dropped. A kernel has the units us, TFLOP/s, GB/s
and "% of copy". "forecast" is a positive number; commas may separate thousands.

The ratio is the reached fraction of the forecast speed; 1 or more meets it: forecast / measured for times and slow-downs,
measured / forecast for everything else. Exit code: 2 if DIR or a row of the forecast cannot be read.
"""
import argparse
import collections
import csv
import math
import pathlib
import re
import sys

TIMES = {"us", "ms", "s"}
PEERS = ["torch", "cudnn", "flash", "torch-eager", "torch-compile", "torch-tuned"]
RESULT = re.compile(r"(ok|refused|cut|timeout|failed) +\d+ s  (.+)")
STAGES = ["kernels", "nccl", "sanitize", "bench"]


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


def read_forecast(path):
    """[(what, value, unit)] of the tables of the page."""
    rows, inside = [], False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.lstrip().startswith("|"):
            inside = False
            continue
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        if cells[:3] == ["what", "forecast", "unit"]:
            inside = True
        elif inside and not set(cells[0]) <= set("-: "):
            value = positive(cells[1].replace(",", "")) if len(cells) >= 3 else None
            if not value:
                refuse(f"{path}:{number}: the forecast of '{cells[0]}' is not a positive number with a unit.")
            rows.append((cells[0], value, cells[2]))
    return rows


def shown(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def ratio_of(what, unit, forecast, measured):
    if unit in TIMES or what.endswith("slow-down"):
        return forecast / measured if measured > 0 else math.inf  # compute may be faster by chance
    return measured / forecast


def table(columns, rows):
    """A Markdown table; columns of numbers are aligned to the right."""
    print("| " + " | ".join(columns) + " |")
    print("|" + "|".join("---:" if name in ("forecast", "measured", "ratio", "ours", "theirs", "ours is") else "---" for name in columns) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def print_forecast(path, measured):
    print("## Forecast and measurement, worst first\n")
    if not path.exists():
        print(f"{path.name} has no forecast, so the measurements have no comparison.\n")
        return set()
    forecast = read_forecast(path)
    both = [(ratio_of(what, unit, value, measured[what, unit]), what, value, measured[what, unit], unit)
            for what, value, unit in forecast if (what, unit) in measured]
    table(["what", "forecast", "measured", "unit", "ratio"],
          [(what, shown(value), shown(found), unit, f"{ratio:.2f}") for ratio, what, value, found, unit in sorted(both)])
    absent = [f"{what} ({unit})" for what, _, unit in forecast if (what, unit) not in measured]
    if absent:
        print(f"Not measured: {'; '.join(absent)}.\n")
    return {(what, unit) for _, what, _, _, unit in both}


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
    counts, bad = [], []
    for stage in STAGES:
        path = folder / f"{stage}.txt"
        results = [match.groups() for match in map(RESULT.fullmatch, path.read_text().splitlines()) if match] if path.exists() else []
        count = collections.Counter(result for result, _ in results)
        counts.append((stage, *(str(count[result]) for result in ("ok", "failed", "timeout", "cut", "refused"))))
        bad += [(result, stage, name) for result, name in results if result not in ("ok", "refused")]
    table(["stage", "ok", "failed", "timeout", "cut", "refused"], counts)
    for result, stage, name in sorted(bad, key=lambda one: ["failed", "timeout", "cut"].index(one[0])):
        print(f"- {result}: {name} ({stage}.txt)")
    if bad:
        print()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=pathlib.Path, help="results of gpu_check.sh")
    arguments.add_argument("--forecast", type=pathlib.Path,
                           default=pathlib.Path(__file__).resolve().parent.parent / "docs/benchmarks/h200-forecast.md")
    options = arguments.parse_args()
    found = options.folder / "found.txt"
    if not found.exists():
        refuse(f"{options.folder} has no found.txt. Give an output folder of gpu_check.sh.")
    lines = found.read_text().splitlines()
    gpus = [line.removeprefix("found: GPU ") for line in lines if line.startswith("found: GPU ")]
    print("<!-- SPDX-License-Identifier: Apache-2.0 -->")
    print(f"# GPU check: {gpus[0].split(',')[0] if gpus else 'no GPU'}\n")
    print(f"{lines[0][0].upper() + lines[0][1:] if lines else 'Nothing found'}. GPUs: {'; '.join(gpus) or 'none'}.\n")
    measured = read_measured(options.folder)
    shown_rows = print_forecast(options.forecast, measured) | print_peers(measured)
    print_tests(options.folder)
    rest = [(what, shown(value), unit) for (what, unit), value in sorted(measured.items()) if (what, unit) not in shown_rows]
    if rest:
        print("## Measured without a forecast\n")
        table(["what", "measured", "unit"], rest)


main()
