#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the step times of two programs by pairs of short runs on one rank and on two, old and new in turn.

Prints new/old for each number of ranks: the median of the ratios of the pairs, their quartiles, and the extremes. A
ratio is that of the medians of step_ms after the warm-up. Which program of a pair runs first alternates. The last ratio
compares the fastest tenth of all steps: neighbours on a shared host lengthen steps and never shorten one. With --taken,
another program has that many cores all the time; `--sets-of-new device.threads=1` compares thread counts of one
program.
"""
import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from same_bits import program_at, train, write_text

RUN = """[model]
layers = 4
heads = 4
width = 128
context = 128
[data]
train = "{folder}/text.txt"
[train]
micro_batch_size = 4
global_batch_size = 8
[overlap]
bucket_size = "512KiB"
first_bucket_size = "128KiB"
[device]
kind = "cpu"
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=program_at, metavar="OLD_PROGRAM")
    parser.add_argument("new", type=program_at, metavar="NEW_PROGRAM")
    parser.add_argument("run", type=pathlib.Path, nargs="?", metavar="RUN.toml",
                        help="default: a GPT-2 of 0.8 million parameters")
    parser.add_argument("--pairs", type=int, default=10, help="default: 10")
    parser.add_argument("--steps", type=int, default=40, help="steps of a run; default: 40")
    parser.add_argument("--warmup", type=int, default=10, help="steps that are not counted; default: 10")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="sets",
                        help="overrides one key")
    parser.add_argument("--sets-of-new", action="append", default=[], metavar="KEY=VALUE",
                        help="overrides one key of the new program only")
    parser.add_argument("--taken", type=int, default=0, metavar="CORES",
                        help="the last cores run another program meanwhile; default: 0")
    options = parser.parse_args()
    if options.pairs < 2 or not 0 <= options.warmup < options.steps:
        parser.error("needs at least 2 pairs and more steps than --warmup")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as others:
        for core in sorted(os.sched_getaffinity(0))[::-1][:options.taken]:
            other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            others.callback(other.kill)
            os.sched_setaffinity(other.pid, {core})
        folder = pathlib.Path(name)
        run = options.run or folder / "run.toml"
        if not options.run:
            write_text(folder / "text.txt")
            run.write_text(RUN.format(folder=folder))
        sets = [f"train.steps={options.steps}", "train.eval_interval=0", "train.eval_batches=1", "trace.steps=[]",
                *options.sets]

        def steps_ms(side, ranks):
            output = pathlib.Path(tempfile.mkdtemp(dir=folder))
            own = [*sets, *(options.sets_of_new if side else []), f"checkpoint.dir={output}/checkpoints"]
            metrics, _ = train((options.old, options.new)[side], ranks, run, output, own, {})
            return [line["step_ms"] for line in metrics[options.warmup:]]

        for ranks in (1, 2):
            ratios, old_ms, steps = [], [], ([], [])
            for pair in range(options.pairs):
                runs = {}
                for side in (0, 1) if pair % 2 == 0 else (1, 0):
                    runs[side] = steps_ms(side, ranks)
                    steps[side].extend(runs[side])
                ratios.append(statistics.median(runs[1]) / statistics.median(runs[0]))
                old_ms.append(statistics.median(runs[0]))
            fast_old, fast_new = (statistics.quantiles(side, n=10)[0] for side in steps)
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
            print(f"{ranks} rank{'s' if ranks > 1 else ''}: new/old {middle:.3f}, quartiles {low:.3f} to {high:.3f}, "
                  f"extremes {min(ratios):.3f} to {max(ratios):.3f}, {options.pairs} pairs; "
                  f"old {statistics.median(old_ms):.2f} ms a step; fastest tenth {fast_new / fast_old:.3f} "
                  f"of {fast_old:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
