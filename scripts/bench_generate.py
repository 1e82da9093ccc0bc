#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of `slipstream generate` on the CPU as a share of its bound: the time in which the same threads only read the
weights, keys and values of a step.

usage: scripts/bench_generate.py PROGRAM... --text TEXT [--tokenizer tokenizer.json] [--rounds 5] [--tokens 40]
Every model is trained for one step on the text by the first program. Each round then runs all programs one after the
other, and each run measures its own bound. Prints medians.
"""

import argparse
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

# name: layers, heads, width, whether it has the tokenizer's vocabulary; otherwise 256 bytes
SHAPES = {"124M": (12, 12, 768, True), "30M": (6, 6, 384, True), "5M, bytes": (6, 4, 256, False)}
TEXTS = ["The first", "When all of this", "In the end", "Then he said that", "And she", "Now it is", "But", "So we"]


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def make_model(program, folder, shape, text, tokenizer):
    layers, heads, width, large = shape
    chosen = tokenizer if large and tokenizer else "bytes"
    file = folder / "run.toml"
    file.write_text(
        f'[model]\nfamily = "gpt2"\nlayers = {layers}\nheads = {heads}\nwidth = {width}\ncontext = 1024\n'
        f'[data]\ntrain = "{text}"\ntokenizer = "{chosen}"\n'
        "[train]\nsteps = 1\nmicro_batch_size = 1\nsequence_length = 16\neval_batches = 1\n"
        f'[output]\ndir = "{folder / "run"}"\n')
    run(program, "train", file)
    return folder / "run"


def measure(program, model, prompts, batch, dtype, options):
    printed = run(program, "generate", model, "--prompts", prompts, "--batch", batch, "--tokens", options.tokens,
                  "--temperature", options.temperature, "--dtype", dtype, "--device", "cpu", "--bound")
    rate = re.search(r"\d+ tokens, ([\d.]+) tokens/s\s", printed.split("prompts:")[-1].split("\n", 1)[1])
    bound = re.search(r"bound: ([\d.]+) tokens/s .* at ([\d.]+) GB/s; (\d+)% of it", printed)
    return float(rate[1]), float(bound[2]), float(rate[1]) / float(bound[1])


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("programs", nargs="+", type=pathlib.Path)
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--folder", type=pathlib.Path, help="keeps the models, and uses those that are there")
    options = parser.parse_args()
    programs = [program.resolve() for program in options.programs]
    print("| model | dtype | batch | " + " | ".join(f"{p.name}: tokens/s | GB/s | of bound" for p in programs) + " |")
    print("|---|---|--:|" + "--:|" * (3 * len(programs)))
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.shapes:
            folder = (options.folder or pathlib.Path(temporary)) / name.split(",")[0]
            folder.mkdir(parents=True, exist_ok=True)
            model = folder / "run"
            if not model.exists():
                make_model(programs[0], folder, SHAPES[name], options.text.resolve(), options.tokenizer)
            for dtype in ("float32", "bfloat16"):
                for batch in options.batches:
                    prompts = folder / "prompts.txt"
                    prompts.write_text("".join(f"{TEXTS[i % len(TEXTS)]}\n" for i in range(batch)))
                    seen = [[] for _ in programs]
                    for _ in range(options.rounds):
                        for program, rows in zip(programs, seen):
                            rows.append(measure(program, model, prompts, batch, dtype, options))
                    cells = ""
                    for rows in seen:
                        rate, read, share = (statistics.median(column) for column in zip(*rows))
                        cells += f" {rate:.1f} | {read:.2f} | {100 * share:.0f} % |"
                    print(f"| {name} | {dtype} | {batch} |{cells}", flush=True)


if __name__ == "__main__":
    main()
