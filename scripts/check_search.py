#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the winner of `plan --search` on this host with the fastest of all layouts, by the clock.

    scripts/forecast_host.py calibrate --work DIR            # DIR/machine.toml
    scripts/check_search.py search --work DIR                # winner and forecasts, before anything runs
    scripts/check_search.py measure --work DIR               # every layout once, then the fastest and the winner
    scripts/check_search.py compare --work DIR

The layouts are enumerated here, not by the search: ranks of every axis, ZeRO stage, micro-batch and schedule on four
ranks, with the run of forecast_host.py and an emulated link.
"""
import argparse
import collections
import csv
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import time

import forecast_host
from forecast_host import ROOT, Watch, flags, kendall_tau, measured_ms, write_run

RANKS = 4
BATCH = 16
MICRO_BATCHES = (1, 4)
FINALISTS = 8
SAME = [f"train.global_batch_size={BATCH}", "comm.emulate.bandwidth=2Gbit/s", "comm.emulate.latency=50us"]


def layouts():
    """--set values of every layout that has another step."""
    rows = []
    for tensor, pipeline, context in itertools.product((1, 2, 4), repeat=3):
        if RANKS % (tensor * pipeline * context):
            continue
        data = RANKS // (tensor * pipeline * context)
        for stage, micro, schedule in itertools.product((0, 1, 2, 3), MICRO_BATCHES, ("1f1b", "zb_h1")):
            if stage > 0 and data * context == 1 or stage > 1 and pipeline > 1:
                continue
            if schedule != "1f1b" and pipeline == 1 or BATCH % (micro * data):
                continue
            rows.append([f"parallel.tensor={tensor}", f"parallel.pipeline={pipeline}", f"parallel.context={context}",
                         f"parallel.data={data}", f"parallel.sequence_parallel={'true' if tensor > 1 else 'false'}",
                         f"zero.stage={stage}", f"train.micro_batch_size={micro}", f"pipeline.schedule={schedule}"])
    return rows


def search(options):
    run = write_run(options, "search", 1)
    command = [options.program, "plan", run, "--ranks", str(RANKS), "--json"]
    found = json.loads(subprocess.run(command + flags(SAME) + ["--search", "--rows", "1"], capture_output=True,
                                      text=True, check=True).stdout)
    with (options.work / "search.csv").open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["sets", "forecast_ms"])
        winner = found["rows"][0]
        for sets in [winner["sets"]] + layouts():
            made = subprocess.run(command + flags(SAME + sets), capture_output=True, text=True, check=False)
            if made.returncode != 0:
                sys.exit(f"{' '.join(sets)}: {made.stderr}")
            out.writerow([" ".join(sets), f"{json.loads(made.stdout)['rehearsed']['step_ms']:.3f}"])
    print(f"winner of {len(layouts())} layouts here: {' '.join(winner['sets'])}")


def read_forecasts(options):
    with (options.work / "search.csv").open() as file:
        return [(row["sets"], float(row["forecast_ms"])) for row in csv.DictReader(file)]


def read_times(options):
    times = collections.defaultdict(list)
    with (options.work / "search_measured.csv").open() as file:
        for row in csv.DictReader(file):
            times[row["sets"]].append(float(row["step_ms"]))
    return times


def measure(options):
    run = write_run(options, "measure", options.steps)
    path = options.work / "search_measured.csv"
    if not path.exists():
        path.write_text("sets,step_ms\n")
    names = list(dict.fromkeys(sets for sets, _ in read_forecasts(options)))
    winner = names[0]
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        times = read_times(options)
        waiting = [name for name in names if name not in times]
        if not waiting:
            fastest = sorted(names, key=lambda name: statistics.median(times[name]))[:FINALISTS]
            waiting = [name for name in {winner, *fastest} if len(times[name]) < options.rounds]
        if not waiting:
            break
        name = min(waiting, key=lambda each: (len(times.get(each, [])), names.index(each)))
        subprocess.run(["rm", "-rf", str(options.work / "run")], check=True)
        watch = Watch()
        median, _ = measured_ms(options, run, RANKS, SAME + name.split(" "))
        if watch.others() > forecast_host.MOST_OTHERS:
            print(f"again: other programs used {100 * watch.others():.0f} % of the cores", flush=True)
            continue
        with path.open("a") as file:
            csv.writer(file, lineterminator="\n").writerow([name, f"{median:.3f}"])


def compare(options):
    forecasts, times = read_forecasts(options), read_times(options)
    winner = forecasts[0][0]
    rows = sorted((statistics.median(times[name]), made, name) for name, made in dict(forecasts).items()
                  if name in times)
    print("| measured ms | forecast ms | measurements | layout |\n|--:|--:|--:|---|")
    for taken, made, name in rows:
        print(f"| {taken:.1f} | {made:.1f} | {len(times[name])} | {'**winner** ' if name == winner else ''}{name} |")
    best, own = rows[0][0], statistics.median(times[winner])
    errors = sorted(abs(made / taken - 1) for taken, made, _ in rows)
    print(f"\nwinner {own:.1f} ms, fastest of {len(rows)} layouts {best:.1f} ms: {100 * (own / best - 1):+.1f} %; errors: "
          f"median {100 * statistics.median(errors):.1f} %, worst {100 * errors[-1]:.1f} %, "
          f"tau {kendall_tau([(made, taken) for taken, made, _ in rows]):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "measure", "compare"])
    parser.add_argument("--work", required=True, type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--program", default=str(ROOT / "build" / "slipstream"))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1e9, help="of measuring; the next call goes on")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of the fastest layouts and of the winner")
    options = parser.parse_args()
    options.text = str(options.work / "text.txt")  # written by forecast_host.py calibrate
    {"search": search, "measure": measure, "compare": compare}[options.what](options)


if __name__ == "__main__":
    main()
