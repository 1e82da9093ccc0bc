#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Delays a rank of small runs, and demands that the run names this rank and the cause, and no other.

usage: scripts/drill_stragglers.py [--program PATH] [--delays N] [--clean N] [--causes LIST] [--seed S] [--csv FILE]

Each run trains one of six layouts on 2 to 4 ranks with an emulated link. A delay is one of
  compute    the first work of a step computes longer        backward   so does one work of the backward pass
  link       the first transfer of a step takes longer       input      the loader fills a batch later
  host       the host issues a step later               stop       SIGSTOP of the process for 2 s
and lasts 0.8 to 2 s in one step, or 200 ms in each of 8 to 16 steps (input: 500 ms in 4 to 8, because the loader works
ahead), but at least twice the median step of the layout's last run without delay: on a busy machine steps are long. A
run without a delay must report nothing. All runs of a layout must end with the same bits. Exit code 1 if less than 98 %
of the delays are named, if a run without delay reports a straggler, or if bits differ.
"""
import argparse
import collections
import csv
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = 40
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]
LAYOUTS = {
    "data 2": (2, []),
    "data 3": (3, ["train.global_batch_size=6"]),
    "data 4": (4, ["train.global_batch_size=8"]),
    "ZeRO-3 3": (3, ["zero.stage=3", "train.global_batch_size=6"]),
    "pipeline 2": (2, ["parallel.pipeline=2", "train.global_batch_size=8"]),
    "tensor 2": (2, ["parallel.tensor=2"]),
}
CAUSES = ["compute", "backward", "link", "input", "host", "stop"]
STOPPED_STEPS = 1500  # so that the run lasts until it is stopped
BACKWARD = ["attention_gradient", "matmul_weight_gradient", "matmul_gelu_gradient", "layer_norm_gradient"]
RUN = """[model]
family = "gpt2"
layers = 2
heads = 2
width = 16
context = 16
[data]
train = "{text}"
[train]
steps = {steps}
micro_batch_size = 2
global_batch_size = 4
eval_batches = 2
log_interval = 10
[comm.emulate]
bandwidth = "200MB/s"
latency = "10us"
[device]
threads = 1
"""


class Drill:
    def __init__(self, program, scratch, seed):
        self.program, self.scratch, self.random = program, scratch, random.Random(seed)
        words = ["sail", "wind", "harbour", "grain", "salt", "quiet", "every", "carries"]
        text = scratch / "text.txt"
        text.write_text(" ".join(self.random.choice(words) for _ in range(6000)))
        self.file = scratch / "run.toml"
        self.file.write_text(RUN.format(text=text, steps=STEPS))
        self.bits, self.step_ms = {}, {}

    def stop(self, process, rank, folder):
        """Stops a rank for 2 s once steps have ended."""
        metrics = folder / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > 15000):
            time.sleep(0.02)
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].decode() == str(self.program) and f"output.dir={folder}".encode() in words \
                    and f"OMPI_COMM_WORLD_RANK={rank}".encode() in variables:
                os.kill(int(entry.name), signal.SIGSTOP)
                time.sleep(2)
                os.kill(int(entry.name), signal.SIGCONT)

    def run(self, layout, delay, stopped=None):
        """Returns the reported stragglers, and whether the run ended with the bits of the layout's other runs."""
        ranks, sets = LAYOUTS[layout]
        folder = self.scratch / "run"
        shutil.rmtree(folder, ignore_errors=True)
        command = [*MPIRUN, "-np", str(ranks), str(self.program), "train", str(self.file),
                   "--set", f"output.dir={folder}"]
        steps = STEPS if stopped is None else STOPPED_STEPS
        for setting in sets + [f"train.steps={steps}"]:
            command += ["--set", setting]
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        environment.pop("SLIPSTREAM_DELAY", None)
        if delay:
            environment["SLIPSTREAM_DELAY"] = delay
        log = self.scratch / "log.txt"
        with open(log, "wb") as out:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        if stopped is not None:
            self.stop(process, stopped, folder)
        if process.wait(timeout=300) != 0:
            sys.exit(f"{layout} with SLIPSTREAM_DELAY={delay} ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        last = lines[-1]
        if not delay and stopped is None:
            self.step_ms[layout] = statistics.median(line["step_ms"] for line in lines)
        bits = (last["loss"], last["params_hash"])
        records = folder / "stragglers.jsonl"
        found = [json.loads(line) for line in records.read_text().splitlines()] if records.exists() else []
        return found, bits == self.bits.setdefault((layout, steps), bits)

    def delay(self, layout, cause):
        """A request for SLIPSTREAM_DELAY, its rank, and its first step."""
        rank = self.random.randrange(LAYOUTS[layout][0])
        if cause == "stop":
            return "", rank, None
        place = {"link": "link/recv" if "pipeline" in layout else "link",
                 "backward": f"compute/{self.random.choice(BACKWARD)}"}.get(cause, cause)
        first = self.random.randrange(5, STEPS - 22)
        least_ms = round(2 * self.step_ms[layout])
        if self.random.random() < 0.5:
            return f"{place}@{rank}#{first}:{max(least_ms, self.random.randrange(800, 2000))}", rank, first
        steps, ms = (self.random.randrange(4, 8), 500) if cause == "input" else (self.random.randrange(8, 16), 200)
        ms = max(ms, least_ms)
        return f"{place}@{rank}#{first}-{first + steps - 1}:{ms}", rank, first


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "slipstream")
    parser.add_argument("--delays", type=int, default=10, help="runs with a delay")
    parser.add_argument("--clean", type=int, default=10, help="runs without a delay")
    parser.add_argument("--causes", default=",".join(CAUSES), help="of the delays, separated by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=pathlib.Path)
    options = parser.parse_args()
    layouts, causes = list(LAYOUTS), options.causes.split(",")
    if unknown := [cause for cause in causes if cause not in CAUSES]:
        parser.error(f"unknown cause '{unknown[0]}'; there are {', '.join(CAUSES)}")
    runs, named, wrong = collections.Counter(), collections.Counter(), collections.Counter()
    behind = collections.defaultdict(list)
    same = True
    with tempfile.TemporaryDirectory(prefix="slipstream_stragglers_") as name:
        drill = Drill(options.program.resolve(), pathlib.Path(name), options.seed)
        cases = [(causes[i % len(causes)], layouts[i // len(causes) % len(layouts)]) for i in range(options.delays)]
        cases += [("none", layouts[i % len(layouts)]) for i in range(options.clean)]
        drill.random.shuffle(cases)
        for layout in layouts:  # bits and step times
            drill.run(layout, "")
        for cause, layout in cases:
            request, rank, first = drill.delay(layout, cause) if cause != "none" else ("", -1, 0)
            found, equal = drill.run(layout, request, rank if cause == "stop" else None)
            expected = {"backward": "compute", "stop": "host"}.get(cause, cause)
            others = [one for one in found if (one["rank"], one["cause"]) != (rank, expected)]
            runs[cause] += 1
            wrong[cause] += bool(others)
            named[cause] += bool(found) and not others
            if found and not others and first is not None:
                behind[cause].append(found[0]["step"] - first)
            if others or not equal or (cause != "none" and not found):
                print(f"{layout}, {request or cause}: {json.dumps(found)}{'' if equal else ', OTHER BITS'}",
                      flush=True)
            same = same and equal
        rows = [{"delay": cause, "runs": runs[cause], "named": named[cause], "other_named": wrong[cause],
                 "steps_behind": statistics.median(behind[cause]) if behind[cause] else ""}
                for cause in CAUSES + ["none"] if runs[cause]]
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    delayed = sum(runs[cause] for cause in CAUSES)
    right = sum(named[cause] for cause in CAUSES)
    print(f"seed {options.seed}: {right} of {delayed} delays named with rank and cause; "
          f"{wrong['none']} of {runs['none']} runs without delay reported one; bits {'equal' if same else 'DIFFER'}")
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    sys.exit(0 if same and wrong["none"] == 0 and right >= 0.98 * delayed else 1)


if __name__ == "__main__":
    main()
