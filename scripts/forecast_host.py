#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forecasts steps on this host, then measures them.

    scripts/forecast_host.py calibrate --work DIR            # DIR/machine.toml, in under a minute
    scripts/forecast_host.py forecast --work DIR             # DIR/forecast.csv; prints its SHA-256: commit that first
    scripts/forecast_host.py measure --work DIR [--seconds 170] [--rounds 2]  # adds rows to DIR/measured.csv
    scripts/forecast_host.py compare --work DIR              # errors, from the two files

No step of the settings has run when the forecasts are written: calibration times works with imitated peers, and verbs
between threads. The settings are four ways of reducing gradients, ZeRO 0 to 3, pipelines, tensor and context
parallelism and accumulation, on 1 to 4 ranks and emulated links of four speeds. Measurements beside which other
programs used more than 3 % of the cores are repeated, whatever their result.
"""
import argparse
import collections
import csv
import hashlib
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUN = """
[model]
family = "gpt2"
layers = 4
heads = 8
width = 256
context = 256
vocab_size = 512
[data]
train = "{text}"
tokenizer = "bytes"
[train]
steps = {steps}
sequence_length = 256
micro_batch_size = 4
global_batch_size = 4
eval_interval = 0
[optimizer]
learning_rate = 1e-4
[device]
kind = "cpu"
machine = "{machine}"
[output]
dir = "{out}"
"""
LINKS = {"8G": "8Gbit/s", "2G": "2Gbit/s", "1G": "1Gbit/s", "500M": "500Mbit/s"}
WARM_UP = 3
MOST_OTHERS = 0.03  # share of the cores; a measurement beside more than that is repeated


def settings():
    """Name, ranks and --set values of every setting."""
    rows = []

    def add(name, ranks, micro_batches, *sets, link=None):
        layout = dict(s.split("=") for s in sets)
        divided = 1
        for axis in ("tensor", "pipeline", "context"):
            divided *= int(layout.get(f"parallel.{axis}", 1))
        all_sets = list(sets) + [f"train.global_batch_size={4 * micro_batches * ranks // divided}"]
        if link:
            all_sets += [f"comm.emulate.bandwidth={LINKS[link]}", "comm.emulate.latency=50us"]
        rows.append((f"{name}, {link or 'shared memory' if ranks > 1 else 'alone'}", ranks, all_sets))

    for way in ("naive", "flat", "per_parameter", "bucketed"):
        for link in LINKS:
            add(f"data 2, {way}", 2, 1, f"overlap.grad_reduce={way}", "overlap.bucket_size=2MiB", link=link)
    for stage in (1, 2, 3):
        for link in ("8G", "2G", "1G"):
            add(f"data 2, ZeRO-{stage}", 2, 1, f"zero.stage={stage}", "overlap.bucket_size=2MiB", link=link)
    add("one rank", 1, 1)
    add("one rank, 4 micro-batches", 1, 4)
    for link in ("2G", "500M"):
        add("data 2, 4 micro-batches", 2, 4, link=link)
    add("data 2, ZeRO-3, 2 micro-batches", 2, 2, "zero.stage=3", link="2G")
    for schedule in ("gpipe", "1f1b", "zb_h1"):
        for link in ("8G", "500M"):
            add(f"pipeline 2, {schedule}", 2, 4, "parallel.pipeline=2", f"pipeline.schedule={schedule}", link=link)
    for link in ("8G", "500M"):
        add("pipeline 4, 1f1b", 4, 8, "parallel.pipeline=4", link=link)
    for axis in ("tensor", "context"):
        for link in (None, "8G", "2G"):
            add(f"{axis} 2", 2, 1, f"parallel.{axis}=2", link=link)
    for link in (None, "8G", "1G"):
        add("data 4", 4, 1, "overlap.bucket_size=2MiB", link=link)
    add("data 4, ZeRO-3", 4, 1, "zero.stage=3", link="2G")
    add("data 4, ZeRO-1", 4, 1, "zero.stage=1", link="2G")
    add("data 2, tensor 2", 4, 1, "parallel.tensor=2", link="8G")
    add("data 2, pipeline 2", 4, 4, "parallel.pipeline=2", link="2G")
    add("data 2, context 2", 4, 1, "parallel.context=2", link="8G")
    add("data 2, bucketed", 2, 1, "overlap.bucket_size=2MiB")
    return rows


def write_run(options, name, steps):
    work = pathlib.Path(options.work).resolve()
    path = work / f"{name}.toml"
    path.write_text(RUN.format(text=options.text, steps=steps, machine=work / "machine.toml", out=work / "run"))
    return str(path)


def flags(sets):
    return [word for s in sets for word in ("--set", s)]


def calibrate(options):
    run = write_run(options, "calibrate", 1)
    kept = [line for line in pathlib.Path(run).read_text().splitlines() if not line.startswith("machine =")]
    pathlib.Path(run).write_text("\n".join(kept) + "\n")
    watch = Watch()
    subprocess.run([options.program, "calibrate", run, "--ranks", "4", "--out", f"{options.work}/machine.toml"],
                   check=True)
    print(f"other programs used {100 * watch.others():.0f} % of the cores")


def forecast(options):
    run = write_run(options, "forecast", 1)
    path = pathlib.Path(options.work) / "forecast.csv"
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["setting", "ranks", "sets", "forecast_ms"])
        for name, ranks, sets in settings():
            made = subprocess.run([options.program, "plan", run, "--ranks", str(ranks), "--json"] + flags(sets),
                                  capture_output=True, text=True)
            if made.returncode != 0:
                sys.exit(f"{name}: {made.stderr}")
            out.writerow([name, ranks, " ".join(sets), f"{json.loads(made.stdout)['rehearsed']['step_ms']:.3f}"])
    print(hashlib.sha256(path.read_bytes()).hexdigest())


def core_seconds():
    """Of all programs since the start of the machine, and of this script's programs that have ended."""
    ticks = sum(int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:4])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ticks / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


class Watch:
    """The share of the cores that other programs use meanwhile."""

    def __init__(self):
        self.begin, self.used = time.monotonic(), core_seconds()

    def others(self):
        (all_before, own_before), (all_now, own_now) = self.used, core_seconds()
        seconds = (time.monotonic() - self.begin) * os.cpu_count()
        return max(0.0, (all_now - all_before) - (own_now - own_before)) / seconds


def measured_ms(options, run, ranks, sets):
    command = [options.program, "train", run] + flags(sets)
    if ranks > 1:
        command = ["mpirun", "-np", str(ranks)] + command
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_rmaps_base_oversubscribe="1")
    made = subprocess.run(command, capture_output=True, text=True, env=environment)
    if made.returncode != 0:
        sys.exit(f"{' '.join(command)}: {made.stderr}")
    lines = (pathlib.Path(options.work) / "run" / "metrics.jsonl").read_text().splitlines()
    times = [json.loads(line)["step_ms"] for line in lines[WARM_UP:-1]]  # the last step is evaluated
    return statistics.median(times), min(times)


def measure(options):
    run = write_run(options, "measure", options.steps)
    path = pathlib.Path(options.work) / "measured.csv"
    if not path.exists():
        path.write_text("setting,ranks,step_ms,fastest_ms\n")
    taken = collections.Counter(row["setting"] for row in csv.DictReader(path.open()))
    end = time.monotonic() + options.seconds
    chosen = [s for s in settings() if options.only in s[0]]
    while time.monotonic() < end and any(taken[name] < options.rounds for name, _, _ in chosen):
        name, ranks, sets = min(chosen, key=lambda setting: taken[setting[0]])
        subprocess.run(["rm", "-rf", str(pathlib.Path(options.work) / "run")], check=True)
        watch = Watch()
        median, fastest = measured_ms(options, run, ranks, sets)
        if watch.others() > MOST_OTHERS:
            print(f"again: {name}: other programs used {100 * watch.others():.0f} % of the cores", flush=True)
            continue
        if time.monotonic() < end:  # a step that ends later may have met other programs
            with path.open("a") as file:
                csv.writer(file, lineterminator="\n").writerow([name, ranks, f"{median:.3f}", f"{fastest:.3f}"])
        taken[name] += 1


def kendall_tau(pairs):
    agree = 0
    for i, (a, b) in enumerate(pairs):
        for c, d in pairs[:i]:
            product = (a - c) * (b - d)
            agree += (product > 0) - (product < 0)
    return agree / (len(pairs) * (len(pairs) - 1) / 2)


def compare(options):
    work = pathlib.Path(options.work)
    forecasts = {row["setting"]: row for row in csv.DictReader((work / "forecast.csv").open())}
    times = {}
    for row in csv.DictReader((work / "measured.csv").open()):
        times.setdefault(row["setting"], []).append(float(row["step_ms"]))
    rows = [(name, float(forecasts[name]["forecast_ms"]), statistics.median(taken)) for name, taken in times.items()]
    errors = sorted(abs(made / taken - 1) for _, made, taken in rows)
    print("| setting | forecast ms | measured ms | error % |\n|---|--:|--:|--:|")
    for name, made, taken in sorted(rows, key=lambda row: -abs(row[1] / row[2] - 1)):
        print(f"| {name} | {made:.1f} | {taken:.1f} | {100 * (made / taken - 1):+.1f} |")
    tau = kendall_tau([(made, taken) for _, made, taken in rows])
    print(f"\n{len(rows)} settings: median error {100 * statistics.median(errors):.1f} %, worst {100 * errors[-1]:.1f} %, "
          f"Kendall tau {tau:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["calibrate", "forecast", "measure", "compare"])
    parser.add_argument("--work", required=True, help="folder of all files")
    parser.add_argument("--program", default=str(ROOT / "build" / "slipstream"))
    parser.add_argument("--text", default="", help="text to train on; default: a text of the repository")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=1e9, help="of measuring; the next call goes on")
    parser.add_argument("--rounds", type=int, default=1, help="measurements of every setting")
    parser.add_argument("--only", default="", help="settings that contain this text")
    options = parser.parse_args()
    pathlib.Path(options.work).mkdir(parents=True, exist_ok=True)
    if not options.text:
        path = pathlib.Path(options.work).resolve() / "text.txt"
        if not path.exists():
            pages = sorted((ROOT / "docs").rglob("*.md"))
            path.write_text("".join(page.read_text() for page in pages))
        options.text = str(path)
    {"calibrate": calibrate, "forecast": forecast, "measure": measure, "compare": compare}[options.what](options)


if __name__ == "__main__":
    main()
