# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_forecast.py: its operations and bytes are those of the program, its parts add up to its step, two rows agree with
sums made by hand, and the committed forecasts are complete and up to date.

usage: gpu_forecast_test.py SOURCE_ROOT SLIPSTREAM
"""
import csv
import json
import pathlib
import re
import subprocess
import sys
import tempfile

source, program = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path[:0] = [str(source / "scripts"), str(source / "tests")]
import gpu_forecast  # noqa: E402
from checks import all_hold, check, close  # noqa: E402

# The plan prices a step from the Cost of every op; the same sum here has the same operations and bytes in every piece. A step in
# which bytes cost almost nothing, and one in which operations do, see each apart.
RUNS = {"gpt2": ["configs/runs/gpt2_124m.toml", "model.vocab_size=50304", "train.micro_batch_size=64", "train.global_batch_size=64"],
        "llama": ["configs/runs/llama_1b.toml", "train.sequence_length=2048", "train.micro_batch_size=8", "train.global_batch_size=8"]}
MACHINE = """name = "one"
flops_per_second_f32 = 60e12
flops_per_second_bf16 = {peak}
matmul_efficiency = 1.0
memory_bandwidth = "{gigabytes}GB/s"
memory = "400GB"
launch = "{launch}us"
ranks_per_node = 1
[intra]
bandwidth = "100GB/s"
latency = "3us"
[inter]
bandwidth = "100GB/s"
latency = "3us"
"""
folder = tempfile.TemporaryDirectory()
machine = pathlib.Path(folder.name) / "machine.toml"
for model, (run, *settings) in RUNS.items():
    for peak, gigabytes, launch in ((8e14, 4000, 3), (1e13, 400000, 1), (8e17, 1000, 1)):
        machine.write_text(MACHINE.format(peak=peak, gigabytes=gigabytes, launch=launch))
        command = [program, "plan", source / run, "--ranks", "1", "--machine", machine, "--json"]
        for setting in settings:
            command += ["--set", setting]
        plan = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        ours = gpu_forecast.planned_ms(model, peak, gigabytes * 1e9, launch * 1e-6)
        check(plan["parameters"] == gpu_forecast.parameters_of(gpu_forecast.MODELS[model]), plan["parameters"])
        check(close(ours, plan["rehearsed"]["step_ms"], 1e-5), model, peak, ours, plan["rehearsed"]["step_ms"])

# The committed tables are those that the script writes, byte by byte.
for card in gpu_forecast.RATES:
    name = f"docs/benchmarks/{card}-forecast.csv"
    written = pathlib.Path(folder.name) / "written.csv"
    subprocess.run([sys.executable, source / "scripts/gpu_forecast.py", "--card", card, "--csv", written], check=True)
    check(written.read_bytes() == (source / name).read_bytes(), f"{name} is not what the script writes. Run: scripts/gpu_forecast.py --card {card} --csv {name}")
folder.cleanup()

# Parts add up to the step, and the step to tokens per second, at the expected values and at both ends of every assumption.
for card, rates in gpu_forecast.RATES.items():
    for name in [None, *gpu_forecast.ASSUMED, *rates]:
        for end in (0, 2) if name else (1,):
            rows = gpu_forecast.rows_of(gpu_forecast.Values(card, name, end))
            parts = [value for (what, _), (value, _) in rows.items() if what.startswith("step part") and what != "step part: all"]
            whole = rows["step part: all", "ms"][0]
            check(len(parts) >= 25 and min(parts) >= 0 and close(sum(parts), whole, 1e-12), card, name, end, sum(parts), whole)
            check(close(rows["GPT-2 124M", "tokens/s"][0] * whole, 64 * 1024 * 1e3, 1e-12), card, name, end)
            # Every kernel of every work once, with its gap; then the share that is not counted, and the host.
            values = gpu_forecast.Values(card, name, end)
            kernels = [part for work in gpu_forecast.works_of(gpu_forecast.MODELS["gpt2"]) for part in gpu_forecast.parts_of(values, work, True)]
            counted = 1e3 * sum(seconds + count * values.gap for _, seconds, count in kernels)
            host = values["host part of a measured step, ms"]
            check(close(counted * (1 + values["not counted"]) + host, whole, 1e-12), card, name, end, counted, host, whole)

# By hand, with assumptions of their own, so that a correction of the forecast changes no sum below.
values = gpu_forecast.Values("h200")
values.update({"copy, TB/s": 4.3, "product ceiling, TFLOP/s": 790, "attention forward of bound": 0.7, "attention backward of bound": 0.58,
               "forward loop run": 0.78, "edge of a product, k": 180, "split sums": 0.9, "fused bias gradient won": 0.4})
values.copy = 4.3e12
budget = dict(gpu_forecast.BUDGET)
gpu_forecast.BUDGET["hopper_forward_kernel<64, true, Masks<false, false> >"] = (2366, 601, 12)
gpu_forecast.BUDGET["hopper_backward_kernel<64, 64, Masks<false, false> >"] = (3555, 943, 24)
# AdamW reads and writes 30 bytes of 124,475,904 parameters: 3,734,277,120 bytes at 0.93 of 4.3 TB/s.
rows = gpu_forecast.rows_of(values)
check(close(rows["step part: AdamW", "ms"][0], 0.9338, 1e-4), rows["step part: AdamW", "ms"])
# Attention forward, head 64, 1024 tokens. A step of three warpgroups with 64 x 128 scores each: 2 x 2 x 192 x 128 x 64 operations at 4096 a
# clock are 1536 clocks, 192 x 128 exponentials at 16 the same, 3 x 601 x 0.78 = 1406.3 instructions, and 3 x (8 + 16 + 16) + 32 KiB at
# 128 bytes are 1216. Fourth powers: 1536 x (1 + 1 + 0.70275 + 0.39280)^0.25 = 2037.4; at 0.70 of the bound 2910.6 clocks.
bounds = gpu_forecast.attention_bounds(values, "forward", 64)
check(all(close(bounds[name], clocks, 1e-4) for name, clocks in
          {"products": 1536, "exponentials": 1536, "instructions": 1406.3, "shared memory": 1216}.items()) and len(bounds) == 4, bounds)
# Blocks end at 1024, 832, 640, 448, 256 and 64. Their warpgroups take 7, 8, 8; 6, 6, 7; 4, 5, 5; 3, 3, 4; 1, 2, 2; 1 steps: 72 / 3 = 24 a
# head. 384 heads and 0.8 steps for each of 2304 blocks are at least 83.78 steps of every thread block; their order takes 84.8.
steps = gpu_forecast.forward_steps(384, 1024, 64, 1, 0.8)
check((384 * 24 + 0.8 * 2304) / 132 < steps and close(steps, 84.8, 1e-3), steps)
# Heads of 256 tokens: a block that ends at 256 takes (1 + 2 + 2) / 3 steps, one that ends at 64 a third. Two heads on two multiprocessors
# take 2 steps, on one 4.
for multiprocessors, right in ((2, 2), (1, 4)):
    gpu_forecast.MULTIPROCESSORS = multiprocessors
    gpu_forecast.forward_steps.cache_clear()
    check(close(gpu_forecast.forward_steps(2, 256, 64, 1, 0.0), right, 1e-9))
gpu_forecast.MULTIPROCESSORS = 132
gpu_forecast.forward_steps.cache_clear()
# 84.8 x 2910.6 clocks of 1.755 GHz are 140.6 us, and 202.9 MB take 47.2 us beside them: 51.54 G operations in 141.1 us.
forward = 51.54e9 / gpu_forecast.attention_seconds(values, "forward", 32, 1024, 12, 12, 64) / 1e12
check(close(forward, 365.3, 1e-3), forward)
# Backward: five products of 64 x 128 x 64 are 1280 clocks. Two warpgroups read 8 + 8 KiB twice for scores and slopes, 8 twice for dv and
# dk, 16 + 8 for dq; 16 of slopes are written, 16 arrive: 2 x 72 + 32 KiB, 1408 clocks. 2 x 943 x 0.57 = 1075.0 instructions, 512 clocks of
# exponentials. Fourth powers: 1408 x (1 + 0.68303 + 0.33981 + 0.01749)^0.25 = 1682.8; at 0.58 of the bound 2901.4 clocks.
bounds = gpu_forecast.attention_bounds(values, "backward", 64)
check(all(close(bounds[name], clocks, 1e-4) for name, clocks in
          {"products": 1280, "exponentials": 512, "instructions": 1075.0, "shared memory": 1408}.items()) and len(bounds) == 4, bounds)
# One head of 256 tokens: the first block of keys begins with one step and adds to tiles 3, 2, 1 and 0 in steps 2 to 5; the other block, on
# another thread block, adds to tiles 3 and 2 right after it, in steps 2 and 3. On one multiprocessor they follow each other: 5 + 3.
check(gpu_forecast.backward_steps(1, 256, 64, 1, 1.0) == 5)
gpu_forecast.MULTIPROCESSORS = 1
check(gpu_forecast.backward_steps(2, 256, 64, 1, 1.0) == 16)
# Two multiprocessors, one head of 384 tokens that three blocks of keys see: 6 + 4 + 2 steps. The first one ends in step 7, the second one
# in step 5, and takes the third block, which adds to tiles 5 and 4 in steps 7 and 8.
gpu_forecast.MULTIPROCESSORS = 2
check(gpu_forecast.backward_steps(1, 384, 64, 1, 1.0) == 8, gpu_forecast.backward_steps(1, 384, 64, 1, 1.0))
gpu_forecast.MULTIPROCESSORS = 132
# Each of 384 heads has 16 + 14 + ... + 2 = 72 steps: at least 209.5 for each of 132; their order takes 234. These are 386.9 us, and 102.2 MB
# of the sums of dout x out 25.6 us at 0.93 x 4.3 TB/s: 128.85 G operations in 412.4 us, 0.02 % more with its bytes.
check(gpu_forecast.backward_steps(384, 1024, 64, 1, 1.0) == 234, gpu_forecast.backward_steps(384, 1024, 64, 1, 1.0))
backward = 128.85e9 / gpu_forecast.attention_seconds(values, "backward", 32, 1024, 12, 12, 64) / 1e12
check(close(backward, 312.4, 1e-3), backward)

# The path of mma.sync: 8 blocks of 128 queries take 2, 4, ..., 16 steps of 64 keys, 72 in all. With 913
# instructions a warp and step, 128 products of 4 clocks at 0.62 of the rate are 826 clocks: instructions decide, 913 / 0.6 = 1521.67
# clocks. Outside of the loop a block takes (3218 - 913) / 0.85 + 750 = 3461.8. The 32 x 12 heads, 384 x (72 x 1521.67 + 8 x 3461.8)
# = 52,705,958 clocks on 132 x 1.755 GHz, take 227.51 us for 51.54 G operations: 226.5 TFLOP/s. Bytes add less than 0.1 %.
gpu_forecast.BUDGET["forward_kernel<64, 2, 64, true, Masks<false, false> >"] = (3218, 913, 128)
gpu_forecast.BUDGET["key_kernel<64, 2, 32, true, Masks<false, false> >"] = (3636, 620, 128)
gpu_forecast.BUDGET["query_kernel<64, 2, 32, true, Masks<false, false> >"] = (2370, 476, 96)
forward = 51.54e9 / gpu_forecast.mma_seconds(values, "forward", 32, 1024, 12, 12, 64) / 1e12
check(close(forward, 226.5, 1e-3), forward)
# Backward: both kernels take 4 + 8 + ... + 32 = 144 steps of 128 x 32. Products decide: 128 x 4 / 0.62 / 0.52 = 1588.09 clocks and
# 96 x 4 / 0.62 / 0.52 = 1191.07. Outside: (3636 - 620) / 0.85 + 750 = 4298.2 and (2370 - 476) / 0.85 + 750 = 2978.2. 384 heads x
# (144 x (1588.09 + 1191.07) + 8 x (4298.2 + 2978.2)) clocks take 759.9 us, and 102.2 MB of the sums of dout x out 25.6 us at 0.93 x
# 4.3 TB/s: 128.85 G operations in 785.4 us.
backward = 128.85e9 / gpu_forecast.mma_seconds(values, "backward", 32, 1024, 12, 12, 64) / 1e12
check(close(backward, 164.05, 1e-3), backward)
# With 8 heads of keys for 32 of queries the steps are the same; 24 of 32 heads x 16 blocks of 128 keys x 8 sequences begin less often.
grouped, whole = (gpu_forecast.mma_seconds(values, "backward", 8, 2048, 32, kv_heads, 64) for kv_heads in (8, 32))
check(close(whole - grouped, 8 * 24 * 16 * 4298.2 / (132 * 1.755e9), 0.01), grouped, whole)
# Weight gradient of qkv, 2304 x 768 from k = 65,536: 54 tiles of 128 x 256 split in two are one wave of 132; five parts of 7.08 MB
# would not fit in 32 MiB. 16 waves for 2048 tiles and the edge make the multiprocessor's rate 790 x 1.03125 x 1.02197 / 132 = 6.3075
# TFLOP/s: (32,768 + 1.5 x 180) x 65,536 operations take 343.3 us. 28.3 MB of parts take 6.6 us and one gap 1.8 us. 351.7 / 0.9 =
# 390.7 us, 391.1 with its bytes, 12 times.
gradient = rows["step part: qkv weight gradient", "ms"][0]
check(close(gradient, 12 * 0.3911, 1e-3), gradient)

# Cross-entropy, 65536 x 50304: 13.187 GB at 0.93 of 4.3 TB/s take 3297.5 us. Of 512 threads a thread has 13 packs, 13 x (73 + 76) x 0.9
# = 1743.3 instructions; 65536 x 16 warps issue them at 132 x 4 x 0.85 x 1.755 GHz in 2320.8 us. 65536 / 264 rows in turn take two
# latencies and 1743.3 instructions at 0.5 a clock, 248.24 x 3.587 us = 890.4 us. Fourth powers: 3297.5 x (1 + 0.24535 + 0.00532)^0.25.
gpu_forecast.BUDGET["row_kernel<true, bfloat16>"] = (1426, 76, 2)
check(close(gpu_forecast.loss_seconds(values, 65536, 50304), 3487.2e-6, 1e-4), gpu_forecast.loss_seconds(values, 65536, 50304))
# A row of 128,256 logits, 251 KiB, leaves room for no second one: 16,384 / 132 rows wait for two latencies of 0.8 us each, 198.6 us.
# 8.406 GB take 2101.9 us. 32 packs a thread are 4291.2 instructions: issued in 1428.2 us, in turn 124.12 x 6.490 us = 805.6 us. Fourth
# powers: 2300.5 x (1 + 0.14854 + 0.01504)^0.25.
check(close(gpu_forecast.loss_seconds(values, 16384, 128256), 2389.3e-6, 2e-4), gpu_forecast.loss_seconds(values, 16384, 128256))
# Backward of a layer norm, 32768 x 768: 1024 blocks of 32 rows, of 1584 in three turns of 528. Four passes, statistics, and 1024 x 2 x 768
# floats are 207.9 MB: 51.99 us. Loop and rest of the kernel issue in (32768 x 690 + 4096 x 720) / 787.6 G/s = 32.45 us. Two turns of 8
# rows take (0.8^4 + (690 / 0.8775 GHz)^4)^0.25 = 0.9434 us each, 15.09 us. Together 51.99 x (1 + 0.15178 + 0.00710)^0.25 = 53.94 us. Then
# 720 / 0.8775 GHz = 0.8205 us, ceil(1024 / 256) = 4 latencies, and the gap of 1.8 us.
gpu_forecast.BUDGET["held_norm_backward_kernel<true, 1, 3, bfloat16>"] = (1410, 690, 18)
backward = gpu_forecast.norm_seconds(values, "backward", 32768, 768, True)
check(close(backward, 59.76e-6, 1e-3), backward)
# Ids by Zipf's law: a draw of 65,536 of 50,257 has 15,870 different ids and 4262 rows of id 0. Standard deviations
# are about 81 ids and 63 rows.
ids, most = gpu_forecast.zipf(65536, 50257)
check(close(ids, 15870, 0.02) and close(most, 4262, 0.03), ids, most)
# 65536 / 5280 warps with 3 + 4 x 0.24 loads in turn, 49.2, beside 2 + 32 + 3 x 16 = 82: fourth powers, 84.5. The most frequent id: 16
# + 4196.1 / 128 + 1 = 49.8. 134.3 x 0.8 us = 107.4 us, 49.4 us of bytes beside them.
seconds = gpu_forecast.embedding_seconds(values, 65536, 768, 50304)
check(close(seconds, 108.6e-6, 2e-3), seconds)

# More time for communication hides less of it; the share that is complete only at the end, the tied table and the positions, is
# 50304 x 768 + 1024 x 768 of 124,475,904 gradients, 31.7 %, and is never hidden.
hidden = [gpu_forecast.hidden_at(values, ratio) for ratio in (0.25, 0.5, 1, 2)]
check(hidden == sorted(hidden, reverse=True) and hidden[0] < 0.70 and hidden[-1] > 0.15, hidden)

# The committed forecasts: the columns of gpu_summary.py, intervals in order, every row of the goals, and names of ops and links
# that the benchmarks print.
bench = "".join((source / path).read_text() for path in ("trainer/bench/op_cases.cpp", "tests/gpu/cuda/kernels_bench.cpp"))
ratios = re.search(r'bench_link "\$1" ([\d.,]+)', (source / "scripts/gpu_parts.sh").read_text())[1].split(",")
GOALS = ["GPT-2 124M", "GPT-2 124M / torch-compile", "Llama 1.2B", "attention_forward B32 T1024 H12/12 x 64", "attention_backward B32 T1024 H12/12 x 64",
         "attention_forward B8 T2048 H12/12 x 128", "attention_backward B8 T2048 H12/12 x 128", "layer_norm_backward 32768 x 768", "cross_entropy 8192 x 50304",
         "adamw 124475904", "host synchronisations a step", "graph launches a step", "communication hidden at 0.6 of backward", "compute slow-down at 0.6 of backward"]
page = (source / "docs/benchmarks/h200-forecast.md").read_text()
gpu_forecast.BUDGET.update(budget)
for name, (ends, basis) in gpu_forecast.ASSUMED.items():
    check(f"| {name} | {', '.join(f'{end:g}' for end in ends)} | {basis} |" in page, name)
for line in gpu_forecast.attention_table(gpu_forecast.Values("h200")):
    check(line in page, line)
for card in gpu_forecast.RATES:
    with open(source / f"docs/benchmarks/{card}-forecast.csv", newline="") as file:
        table = list(csv.DictReader(file))
    check(list(table[0]) == ["name", "unit", "low", "expected", "high", "basis"], list(table[0]))
    names = {row["name"] for row in table}
    check(len(names) == len(table) and not set(GOALS) - names, set(GOALS) - names)
    for row in table:
        if row["name"] in GOALS or row["name"].startswith("step part") and row["name"] != "step part: batch and losses":  # numbers of both tables
            check(f"{gpu_forecast.shown(float(row['expected']))} ({gpu_forecast.shown(float(row['low']))} to {gpu_forecast.shown(float(row['high']))})" in page, row)
        check(0 <= float(row["low"]) <= float(row["expected"]) <= float(row["high"]) and row["basis"], row)
        words = row["name"].split()
        if row["unit"] in ("% of copy", "GB/s") or row["unit"] == "TFLOP/s":
            check(f'"{words[0]}"' in bench, row["name"])
        if words[0] == "overlap":
            check(words[1] in ("gate", "copies", "blocks") and words[2] in ratios, row["name"])
    total = sum(float(row["expected"]) for row in table if row["name"].startswith("step part") and row["name"] != "step part: all")
    check(close(total, next(float(row["expected"]) for row in table if row["name"] == "step part: all"), 1e-4), total)
all_hold("gpu_forecast.py")
