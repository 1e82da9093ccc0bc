#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares forecasts of published training runs with their measurements.

    scripts/foresight.py RUNS_CSV [--program build/slipstream] [--csv OUT] [--markdown OUT]

Every row of RUNS_CSV becomes a run file, `slipstream plan --batch` forecasts all of them, and the script prints the
errors by source, GPU and layout, beside those of one constant per GPU and precision. docs/FORESIGHT.md has the result.
"""
import argparse
import collections
import csv
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MACHINES = {
    "A100-SXM (8 per node)": "a100x8",
    "A100-SXM-80GB": "a100x8",
    "H100-SXM-80GB": "h100x8",
    "H100-96GB-HBM2e-500W": "h100_500w_x8",
    "H200-SXM-141GB": "h200x8",
    "RTX 4090": "rtx4090x4",
}
PEAK = {"A100": 312e12, "H100": 989.4e12, "H200": 989.4e12, "RTX": 165.2e12}  # bf16, dense


def number(row, key, default=0):
    return float(row[key]) if row[key] else default


def whole(row, key, default=1):
    return int(float(row[key])) if row[key] else default


def software_of(row):
    """The profile for --as: the program that made the run, its variants from configs/software."""
    source, notes = row["source"], row["notes"]
    if "llmq" in source or "llm.c" in source:
        name = "llmq"
    elif "maxtext" in source or "paxml" in source:
        name = f"configs/software/{'maxtext' if 'maxtext' in source else 'paxml'}.toml"
    elif "torchtitan" in source:
        name = "configs/software/fsdp_eager.toml" if "eager" in notes else "fsdp"
    elif "vTrain" in source or "sc21" in source or "2205.05198" in source or "2201.11990" in source:
        name = "configs/software/megatron_2021.toml"  # before fused attention
    else:
        name = "megatron"
    return name + ("+fp8" if row["precision"].startswith("fp8") else "")


def overlaps_tensor(row):
    """Recipes of NeMo and asynchronous tensor parallelism send chunks under the next product."""
    return "dgxc" in row["source"] or bool(re.search("async ?tp", row["notes"], re.I))


def recomputation(row):
    recomputed = row["recompute"]
    if recomputed in ("full", "block") or "maxtext" in row["source"] or "paxml" in row["source"]:
        return "full"  # the recipes of MaxText and Paxml recompute whole layers
    if "layer" in recomputed or "ffn" in recomputed or "norm" in recomputed or "swiglu" in recomputed:
        return "selective"
    return "none"


def layers_of_parts(layers, parts):
    """Parts that are as equal as possible. The first and the last part have fewer layers, because of the embedding and
    the head."""
    each, more = divmod(layers, parts)
    counts = [each] * parts
    for i in range(more):
        counts[(parts - more) // 2 + i] += 1
    return counts


def run_file(row):
    """The run file of a row, or None if the row lacks a number that the plan needs."""
    seq, gpus = whole(row, "seq", 0), whole(row, "gpus", 0)
    if not seq or not gpus or not row["layers"] or not number(row, "tok_s_gpu"):
        return None
    tp, pp, cp, vpp, dp = (whole(row, key) for key in ("tp", "pp", "cp", "vpp", "dp"))
    gpt = row["model"].startswith(("GPT", "MT-NLG"))
    micro = whole(row, "micro_batch")
    batch = whole(row, "global_batch", dp * micro)
    if not row["micro_batch"] and pp > 1 and "torchtitan" in row["source"]:
        micro = batch // (dp * pp)  # its default: as many micro-batches as pipeline ranks
    layers, heads, width = (whole(row, key) for key in ("layers", "heads", "hidden"))
    ffn = whole(row, "ffn")
    if row["model"].startswith("Nemotron"):  # two matrices of the given width, not three
        ffn = ffn * 2 // 3
    if not row["vpp"]:
        vpp = 2
    zero = whole(row, "zero", 3 if dp > 1 and tp * pp == 1 else 1) if dp * cp > 1 else 0
    text = ["[model]", f'family = "{"gpt2" if gpt else "llama"}"', f"layers = {layers}", f"heads = {heads}"]
    if not gpt:
        text.append(f"kv_heads = {whole(row, 'kv_heads', heads)}")
    text += [f"width = {width}", f"ffn_width = {ffn}", f"context = {seq}", f"vocab_size = {whole(row, 'vocab')}"]
    text += ["[data]", 'train = "tokens.bin"', "[train]", "steps = 10", f"sequence_length = {seq}"]
    text += [f"micro_batch_size = {micro}", f"global_batch_size = {batch}", 'dtype = "bfloat16"']
    text += [f'recompute = "{recomputation(row)}"']
    text += ["[parallel]", f"data = {dp}", f"tensor = {tp}", f"pipeline = {pp}", f"context = {cp}"]
    selene = "2205.05198" in row["source"] and "SP" in row["recompute"]
    if tp > 1 and (selene or row["precision"] != "fp16"):
        text.append("sequence_parallel = true")
    text += ["[zero]", f"stage = {zero}"]
    if zero == 3 and pp > 1:
        text.append("reshard_after_forward = false")
    if zero == 3 and "maxtext" in row["source"] and dp > 256:
        text.append("shard_size = 256" if gpus != 512 else "shard_size = 128")
    text += ["[overlap]", f"tensor_chunks = {4 if overlaps_tensor(row) else 1}"]
    if pp > 1:
        text.append("[pipeline]")
        if vpp > 1:
            text += ['schedule = "interleaved_1f1b"', f"virtual_stages = {vpp}"]
        if layers % (pp * vpp):
            text.append(f"layers = {layers_of_parts(layers, pp * vpp)}")
    return "\n".join(text) + "\n"


def model_flops(row):
    """The operations of one token, forward and backward, with the scores of all pairs."""
    return 6e9 * number(row, "params_b") + 12 * whole(row, "layers") * whole(row, "hidden") * whole(row, "seq")


def forecasts(rows, program, machine_dir, replace=None, jobs=1):
    """One dict per row: the line of `plan --batch`. `replace` maps names of software; `jobs` processes share the
    rows."""
    with tempfile.TemporaryDirectory() as folder:
        lines, wanted = [], []
        for i, row in enumerate(rows):
            text = run_file(row)
            if text is None:
                continue
            path = pathlib.Path(folder) / f"run{i}.toml"
            path.write_text(text)
            machine = machine_dir / (MACHINES[row["gpu"]] + ".toml")
            name = (replace or {}).get(software_of(row), software_of(row))
            if "202506" in row["source"]:  # changes the memory only
                name = re.sub(r"^fsdp(?=\+|$)", "configs/software/fsdp_compiled_loss.toml", name)
            if name.startswith("configs/"):
                name = str(ROOT / name)
            sets = [f"overlap.tensor_chunks={4 if overlaps_tensor(row) else 1}"]
            extra = "".join(f" --set {key}" for key in sets)
            lines.append(f"{path} --ranks {whole(row, 'gpus')} --machine {machine} --as {name}{extra}")
            wanted.append(i)
        started = []
        for job in range(jobs):
            batch = pathlib.Path(folder) / f"batch{job}.txt"
            batch.write_text("".join(line + "\n" for line in lines[job::jobs]))
            started.append(subprocess.Popen([str(program), "plan", "--batch", str(batch)], text=True,
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        made = [{"error": "the row lacks a number"} for _ in rows]
        for job, process in enumerate(started):
            out, err = process.communicate()
            if process.returncode != 0:
                sys.exit(f"foresight: {program} plan --batch ended with {process.returncode}: {err.strip()}")
            for i, line in zip(wanted[job::jobs], out.splitlines()):
                made[i] = json.loads(line)
        return made


def cells_of(rows):
    """The fastest row of each model, GPU, number of GPUs, sequence length, batch and precision."""
    groups = collections.defaultdict(list)
    for row in rows:
        if run_file(row) is not None:
            groups[tuple(row[k] for k in ("model", "gpu", "gpus", "seq", "global_batch", "precision"))].append(row)
    return [max(group, key=lambda row: number(row, "tok_s_gpu")) for group in groups.values()]


def search(rows, program, machine_dir, seconds):
    """Searches a layout for the model and the number of GPUs of every cell, and compares it with the best published
    layout: with its forecast, and with its measurement."""
    cells = cells_of(rows)
    made = forecasts(cells, program, machine_dir)
    print("model, GPUs, best published tokens/s per GPU: measured, forecast; proposed: forecast, layout")
    at_least_forecast = at_least_measured = done = 0
    for row, m in zip(cells, made):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "run.toml"
            # The published layout is left out.
            plain = dict(row, tp="1", pp="1", cp="1", vpp="1", dp=row["gpus"], micro_batch="1", recompute="", zero="0")
            path.write_text(run_file(plain))
            name = software_of(row)
            machine = machine_dir / (MACHINES[row["gpu"]] + ".toml")
            out = subprocess.run([str(program), "plan", str(path), "--ranks", str(whole(row, "gpus")), "--machine",
                                  str(machine), "--as",
                                  str(ROOT / name) if name.startswith("configs/") else name, "--search", "--seconds",
                                  str(seconds), "--rows", "1", "--json"], text=True, capture_output=True, check=False)
        # Other programs keep states in fewer bytes, or in host memory.
        has = 1e9 * float(re.search(r'^memory = "([\d.]+)GB"', machine.read_text(), re.M)[1])
        need = m.get("software_memory_bytes", m.get("memory_bytes", 0))
        if need > has:
            print(f"{row['model'][:24]:24} {row['gpus']:>5} the published layout needs {need / 1e9:.0f} of "
                  f"{has / 1e9:.0f} GB here")
            continue
        if "error" in m or out.returncode != 0:
            print(f"{row['model']} on {row['gpus']}: {m.get('error', out.stderr)[:160].strip()}")
            continue
        found = json.loads(out.stdout)["rows"][0]
        proposed, measured = found["tokens_per_s_per_rank"], number(row, "tok_s_gpu")
        done += 1
        at_least_forecast += proposed >= 0.999 * m["tokens_per_s_per_rank"]
        at_least_measured += proposed >= measured
        layout = " ".join(text.split(".")[1] for text in found["sets"] if text.split("=")[1] not in ("1", "0"))
        print(f"{row['model'][:24]:24} {row['gpus']:>5} {measured:9.0f} {m['tokens_per_s_per_rank']:9.0f} "
              f"{proposed:9.0f}  {layout}")
    print(f"{done} cells: the proposed layout's forecast is at least the forecast of the best published one in "
          f"{at_least_forecast}, at least its measurement in {at_least_measured}")


def precision_of(row):
    return "fp8" if row["precision"].startswith("fp8") else "16 bits"


def baseline(rows):
    """Tokens/s per GPU from one constant per GPU and precision, fitted without the row's own source."""
    def utilisation(row):
        peak = next(v for k, v in PEAK.items() if row["gpu"].startswith(k))
        return number(row, "tok_s_gpu") * model_flops(row) / peak

    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in rows:
        if number(row, "tok_s_gpu") and row["seq"]:
            groups[MACHINES[row["gpu"]], precision_of(row)][row["source"]].append(utilisation(row))
    out = []
    for row in rows:
        others = groups[MACHINES[row["gpu"]], precision_of(row)]
        # This is the median over sources of their medians, so that a source with many rows has one vote.
        votes = [statistics.median(v) for s, v in others.items() if s != row["source"]]
        peak = next(v for k, v in PEAK.items() if row["gpu"].startswith(k))
        out.append(statistics.median(votes) * peak / model_flops(row) if votes and row["seq"] else None)
    return out


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def summary(errors):
    return (f"{len(errors):5d} {100 * statistics.median(errors):7.1f} {100 * quantile(errors, 0.9):7.1f}"
            if errors else "    0       -       -")


def kendall(pairs):
    """Tau-a of (measured, predicted)."""
    agree = total = 0
    for i, (a, b) in enumerate(pairs):
        for c, d in pairs[i + 1:]:
            if a == c:
                continue
            total += 1
            agree += 1 if (a - c) * (b - d) > 0 else -1
    return agree / total if total else None


def evaluate(rows, made):
    """Rows with both numbers: (row, predicted / measured throughput, the constant's)."""
    constant = baseline(rows)
    return [(row, m["tokens_per_s_per_rank"] / number(row, "tok_s_gpu"),
             c / number(row, "tok_s_gpu") if c else None)
            for row, m, c in zip(rows, made, constant) if "error" not in m]


def base_of(row):
    """Software with an interval of its own (trainer/planner/forecast/forecast.cpp)."""
    name = software_of(row)
    return next((base for base in ("megatron", "llmq") if base in name), "fsdp")


def limit_of(sources):
    """The error that 80 % of the rows of a new source stay under, from lists of errors by source. The k-th of n sources
    covers k / (n + 1) on average (Weibull 1939), so the limit is at position 0.8 (n + 1) between sources. The rows of a
    source share its place."""
    votes = sorted((error, 1 / len(errors)) for errors in sources for error in errors)
    wanted = 0.8 * (len(sources) + 1) - 0.5  # the middle of source k is at k - 0.5
    seen, before = 0.0, (0.0, 0.0)
    for error, weight in votes:
        middle = seen + weight / 2
        if middle >= wanted:
            return before[1] + (wanted - before[0]) / (middle - before[0]) * (error - before[1])
        seen, before = seen + weight, (middle, error)
    return votes[-1][0]


def intervals(done):
    """By software: the factor of 80 % intervals, and the rows of every source that the factor of the others covers."""
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    for row, ratio, _ in done:
        groups[base_of(row)][row["source"].split(" @")[0]].append(abs(math.log(ratio)))
    print("\n80 % intervals: software, factor, rows that the factor of the other sources covers")
    every = []
    for base, sources in sorted(groups.items()):
        shares = [statistics.mean(error <= limit_of([e for s, e in sources.items() if s != source]) for error in errors)
                  for source, errors in sources.items() if len(sources) > 1]
        every += shares
        print(f"{base:10} {math.exp(limit_of(list(sources.values()))):6.3f} {100 * statistics.mean(shares or [0]):6.1f} %")
    print(f"{'all':10}        {100 * statistics.mean(every or [0]):6.1f} %")


def gain(done, one, other):
    """Predicted and measured gain of the row that `other` picks over the row that `one` picks, in percent."""
    def find(want):
        return next(((number(r, "tok_s_gpu"), number(r, "tok_s_gpu") * x) for r, x, _ in done if want(r)), None)
    a, b = find(one), find(other)
    return None if a is None or b is None else (100 * (b[0] / a[0] - 1), 100 * (b[1] / a[1] - 1))


def deltas(done):
    def tp(model, word):
        return lambda r: (r["source"].find("asyncTP") > 0 and r["model"] == model and r["precision"] == "bf16"
                          and word in r["notes"])

    def pipeline(word):
        return lambda r: r["model"] == "LLAMA3.1-405B" and r["gpus"] == "512" and r["seq"] == "8192" and word in r["notes"]

    def fsdp(gpus):
        return lambda r: (r["model"] == "LLAMA3-8B" and r["gpus"] == gpus and r["precision"] == "bf16"
                          and "torch.compile" in r["notes"])

    print("\nknown gains in percent: measured, predicted")
    for name, one, other in (
            ("asynchronous tensor parallelism, 70B", tp("LLAMA3-70B", "vanilla"), tp("LLAMA3-70B", "async")),
            ("asynchronous tensor parallelism, 8B", tp("LLAMA3-8B", "vanilla"), tp("LLAMA3-8B", "async")),
            ("interleaved instead of 1F1B, 405B", pipeline("; 1F1B"), pipeline("Interleaved")),
            ("8 to 128 GPUs, 8B", fsdp("8"), fsdp("128"))):
        both = gain(done, one, other)
        if both:
            print(f"{name:40} {both[0]:7.1f} {both[1]:7.1f}")


def memory(rows, made):
    """Estimated and published memory of a rank, where the notes of a row have it."""
    both = []
    for row, m in zip(rows, made):
        found = re.search(r"\bmem ([\d.]+) GiB", row["notes"])
        if found and "software_memory_bytes" in m:
            both.append((row, m["software_memory_bytes"] / 2**30, float(found[1])))
    if not both:
        return
    print("\nmemory of a rank in GiB: published, planned, ratio")
    for row, planned, published in both:
        print(f"{row['model'][:20]:20} {row['gpus']:>4} {row['seq']:>7} {precision_of(row):8} {published:7.1f} {planned:7.1f} "
              f"{planned / published:6.2f}")
    errors = [abs(planned / published - 1) for _, planned, published in both]
    print(f"{len(both)} rows: median error {100 * statistics.median(errors):.1f} %, within 10 %: "
          f"{sum(e <= 0.1 for e in errors)}")


def table(done, key, title):
    groups = collections.defaultdict(list)
    for row, ratio, constant in done:
        groups[key(row)].append((ratio, constant))
    print(f"\n{title:58} {'rows':>5} {'median':>7} {'p90':>7}   {'bias':>6} | constant: median, p90")
    for name, both in sorted(groups.items()):
        errors = [abs(r - 1) for r, _ in both]
        flat = [abs(c - 1) for _, c in both if c]
        bias = statistics.median(r for r, _ in both)
        print(f"{name[:58]:58} {summary(errors)}   {bias:6.2f} | {summary(flat)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs")
    parser.add_argument("--program", default=str(ROOT / "build/slipstream"))
    parser.add_argument("--machines", default=str(ROOT / "configs/machines"), help="folder of the machine files")
    parser.add_argument("--source", default="", help="only rows whose source has this text")
    parser.add_argument("--every", type=int, default=1, help="every n-th row of sources with more than 100 rows")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--csv", help="write one line per row")
    parser.add_argument("--search", type=float, metavar="SECONDS",
                        help="search a layout for every model and number of GPUs, and compare it with the best published one")
    args = parser.parse_args()
    with open(args.runs, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if args.source in row["source"]]
    count = collections.Counter(row["source"] for row in rows)
    rows = [row for i, row in enumerate(rows) if count[row["source"]] <= 100 or i % args.every == 0]
    if args.search:
        search(rows, args.program, pathlib.Path(args.machines), args.search)
        return
    made = forecasts(rows, args.program, pathlib.Path(args.machines), jobs=args.jobs)
    for row, m in zip(rows, made):
        if "error" in m:
            print(f"{row['source'][:40]} {row['model']} on {row['gpus']}: {m['error'][:200]}")
    done = evaluate(rows, made)
    table(done, lambda row: "all", "all")
    table(done, lambda row: row["source"].split(" @")[0][:52] + " " + precision_of(row), "source")
    table(done, lambda row: row["gpu"] + ", " + precision_of(row), "GPU")
    table(done, lambda row: " ".join(k for k, v in (("tensor", row["tp"]), ("pipeline", row["pp"]), ("context", row["cp"]))
                                     if v not in ("1", "")) or "data only", "layout")
    groups = collections.defaultdict(list)
    for row, ratio, _ in done:
        tok = number(row, "tok_s_gpu")
        groups[row["source"], row["model"], row["gpus"], row["seq"], precision_of(row)].append(
            (tok, tok * ratio, tuple(row[k] for k in ("tp", "pp", "dp", "cp", "vpp"))))
    taus = [kendall([(a, b) for a, b, _ in g]) for g in groups.values() if len({x[2] for x in g}) >= 3]
    taus = [t for t in taus if t is not None]
    if taus:
        print(f"\nKendall tau over {len(taus)} groups of one model and GPU count: mean {statistics.mean(taus):.2f}")
    intervals(done)
    deltas(done)
    memory(rows, made)
    if args.csv:
        with open(args.csv, "w", newline="", encoding="utf-8") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(["source", "model", "gpu", "gpus", "tp", "pp", "vpp", "cp", "dp", "micro_batch", "precision",
                          "as", "measured_tok_s_gpu", "predicted_tok_s_gpu", "constant_tok_s_gpu"])
            for row, ratio, constant in done:
                tok = number(row, "tok_s_gpu")
                out.writerow([row[k] for k in ("source", "model", "gpu", "gpus", "tp", "pp", "vpp", "cp", "dp",
                                               "micro_batch", "precision")] +
                             [software_of(row), f"{tok:.5g}", f"{tok * ratio:.5g}",
                              f"{tok * constant:.5g}" if constant else ""])


if __name__ == "__main__":
    main()
