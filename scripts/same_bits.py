#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the tiny runs of tests/golden/params_hashes.json and compares their last params_hash with the recorded one.

The bits of a run depend on the instruction set, the number of threads and the library of matrix products. Every run
fixes the first two: SLIPSTREAM_ISA chooses the kernels and bounds oneDNN, GLIBC_TUNABLES does the same for the C
library's mathematics. A run is skipped if its hash differs and was recorded with another products library.

--against compares with another program, on the best instruction set of this machine. --update records the hashes.
"""
import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/golden/params_hashes.json"
RUN_S_MAX = 120
WORDS = "the wind carries every sail before a quiet harbour of grain and salt".split()
RUN = """[model]
layers = 2
heads = 2
width = 16
context = 16
[data]
train = "{folder}/text.txt"
[train]
steps = 4
micro_batch_size = 2
eval_batches = 1
hash_interval = 2
[optimizer]
learning_rate = 3e-3
min_learning_rate = 1e-3
warmup_steps = 2
[overlap]
bucket_size = "8KiB"
first_bucket_size = "2KiB"
[device]
kind = "cpu"
threads = 1
"""
# The schedule by stage, for four micro-batches: forward (F), backward of activations (B), gradients of weights (W).
SCHEDULE = ["F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3", "F0 B0 F1 B1 W0 F2 B2 F3 W1 B3 W2 W3"]


def program_at(path):
    if not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(f"{path} is not a program that can run; build it first")
    return pathlib.Path(path).resolve()


def write_text(path):
    text, state = "", 1
    while len(text) < 20_000:
        state = (state * 1664525 + 1013904223) % 2**32
        text += WORDS[(state >> 16) % len(WORDS)] + (".\n" if (state >> 24) % 9 == 0 else " ")
    path.write_text(text)


def write_schedule(path):
    rows = [f"{stage},{position},{work[0]},0,{work[1:]}" for stage, works in enumerate(SCHEDULE)
            for position, work in enumerate(works.split())]
    path.write_text("\n".join(["stage,position,pass,chunk,micro_batch", *rows]) + "\n")


def train(program, ranks, run, output, sets, environment):
    """The lines of metrics.jsonl and the object of run.json. Raises RuntimeError with the output of a failed run."""
    command = ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", str(ranks)] if ranks > 1 else []
    command += [str(program), "train", str(run)]
    for word in [f"output.dir={output}", *sets]:
        command += ["--set", word]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    result = subprocess.run(command, env={**os.environ, **root, **environment}, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_S_MAX)
    if result.returncode != 0:
        lines = result.stdout.splitlines()
        message = " ".join([line for line in lines if "slipstream: " in line] or lines[-1:])
        raise RuntimeError(f"exit code {result.returncode}: {message}")
    metrics = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return metrics, json.loads((output / "run.json").read_text())


def hash_of(program, row, environment, folder):
    """The last params_hash of a run, and the library that multiplied its matrices."""
    output = pathlib.Path(tempfile.mkdtemp(dir=folder))
    sets = row["sets"].format(folder=folder).split()
    metrics, about = train(program, row["ranks"], folder / "run.toml", output, sets, environment)
    return metrics[-1]["params_hash"], f"{about['products_library']}, {platform.machine()}"


def write_golden(path, golden):
    rows = ",\n".join("    " + json.dumps(row) for row in golden["runs"])
    facts = "".join(f"  {json.dumps(key)}: {json.dumps(golden[key])},\n" for key in ("isa", "products"))
    path.write_text(f'{{\n{facts}  "runs": [\n{rows}\n  ]\n}}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="runs; default: all")
    parser.add_argument("--program", type=program_at, metavar="PROGRAM", default=str(ROOT / "build/slipstream"),
                        help="default: build/slipstream")
    parser.add_argument("--golden", type=pathlib.Path, metavar="FILE", default=GOLDEN,
                        help="default: tests/golden/params_hashes.json")
    parser.add_argument("--sample", action="store_true", help="run only the covering sample")
    parser.add_argument("--against", type=program_at, metavar="PROGRAM",
                        help="take the expected hashes from this program")
    parser.add_argument("--update", action="store_true", help="record the hashes of the program")
    options = parser.parse_args()
    golden = json.loads(options.golden.read_text())
    unknown = set(options.names) - {row["name"] for row in golden["runs"]}
    if unknown:
        parser.error(f"{options.golden} has no run {', '.join(sorted(unknown))}")
    environment = {"SLIPSTREAM_ISA": golden["isa"], "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA"}
    if options.against:
        environment = {}
    counts = dict.fromkeys(["same", "different", "failed", "skipped", "updated"], 0)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_text(folder / "text.txt")
        write_schedule(folder / "schedule.csv")
        (folder / "run.toml").write_text(RUN.format(folder=folder))
        for row in golden["runs"]:
            if row["name"] not in options.names if options.names else options.sample and not row["sample"]:
                continue
            try:
                expected, recorded = row["hash"], golden["products"]
                if options.against:
                    expected, recorded = hash_of(options.against, row, environment, folder)
                found, products = hash_of(options.program, row, environment, folder)
                if options.update:
                    verdict, text = "updated", found
                    row["hash"], golden["products"] = found, products
                elif found == expected:
                    verdict, text = "same", found
                elif products != recorded:
                    verdict, text = "skipped", f"the hash was recorded with {recorded}, this run used {products}"
                else:
                    verdict, text = "different", f"params_hash is {found}, expected {expected}"
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                verdict, text = "failed", error
            counts[verdict] += 1
            print(f"{verdict:9} {row['name']}: {text}", flush=True)
    if options.update and not counts["failed"]:
        write_golden(options.golden, golden)
    total = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    print(f"COUNTED params_hash of runs: {total}")
    return 1 if counts["different"] or counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
