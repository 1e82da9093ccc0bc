#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the speed of the GPU path on an H200 and an H100. The constants are corrected by measurements on an H200.

usage: gpu_forecast.py [--card h200|h100] [--csv FILE]   prints the forecast, or writes it for gpu_summary.py
       gpu_forecast.py [--card h200|h100] --attention    prints the bounds of attention
       gpu_forecast.py --planned gpt2|llama              prints the step in ms by the plan's prices

Operations and bytes are those of gpu_counts.py, instructions come from kernels/sass_budget.csv, rates and assumptions
from gpu_rates.py. The CSV has the columns name, unit, low, expected, high, basis. An interval moves one assumption at a time to
either end and adds the differences in squares, as for independent errors.
"""
import argparse
import collections
import csv
import functools
import heapq
import math
import pathlib
import sys

from gpu_counts import BF16, MODELS, attention_cost, norm_cost, parameters_of, planned_ms, product_cost, works_of
from gpu_rates import ASSUMED, MULTIPROCESSORS, RATES, SCHEDULERS, Values

ROOT = pathlib.Path(__file__).resolve().parent.parent
DENSE = 4096          # bf16 operations per clock and multiprocessor; 989.4 TFLOP/s at 1.83 GHz
PRODUCT = 16 * 8 * 16 * 2  # operations of an mma.sync.m16n8k16
WORKSPACE = 32 << 20  # bytes, kernels/cuda/workspace.h

# --- times

NORM_WARPS, NORM_TURNS, NORM_LANES = 16, 3, 32  # backward: warps of a multiprocessor, turns of blocks; lanes of a column in its last kernel
LOSS_THREADS, LOSS_SUM = 512, 73  # LOSS_SUM: the other loop of row_kernel, whose budget has the loop of the gradient
LOSS_STATIC, SHARED, SHARED_BLOCK = 128, 228 << 10, 227 << 10  # bytes
FEW, WINDOW, TILE = 64, 8192, 128  # rows of an id in one warp, of one list of rows, of one tile (kernels/embedding/embedding.cu)
EMBEDDING_WARPS = 40 * MULTIPROCESSORS
SUM_THREADS, SUM_BLOCK = 4, 4096
LATENCY_CLOCKS = 1500  # first loads of a block of mma.sync; the other block of the multiprocessor covers half
EXPONENTIALS, SHARED_BYTES = 16, 128  # a clock and multiprocessor
SCORES = 128  # keys of a step of attention forward, and of a block of its backward, whose steps have 64 queries
CACHE = 40 << 20  # keys and values of the heads that forward computes at a time; backward: sums of dq, of at least TOGETHER heads
TOGETHER = 16


def budget():
    """{kernel: (instructions, of the main loop, its tensor instructions or 16-byte accesses)} on sm_90a, whole sequences."""
    with open(ROOT / "kernels/sass_budget.csv", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {row["kernel"]: (int(row["instructions"]), int(row["loop_instructions"]), int(row["loop_work"])) for row in rows if row["architecture"] == "90a"}


BUDGET = budget()


def counts_of(kernel):
    if kernel not in BUDGET:
        sys.exit(f"gpu_forecast: kernels/sass_budget.csv has no row of {kernel} for 90a. Name the kernels of the tree here.")
    return BUDGET[kernel]


def longest(*seconds):
    """Bounds that are close to each other add a little: the norm of their fourth powers."""
    return sum(s ** 4 for s in seconds) ** 0.25


def product_seconds(v, form, rows, inner, out, aux=False, table=True, adds=False, **_):
    down, across, k = {"forward": (rows, out, inner), "input": (rows, inner, out), "weight": (out, inner, rows)}[form]
    edge = v["edge of a product, k"]
    of_square = math.ceil(2048 / MULTIPROCESSORS) * MULTIPROCESSORS / 2048 * (8192 + edge) / 8192  # what the ceiling itself loses
    rate = v["product ceiling, TFLOP/s"] * 1e12 * of_square / MULTIPROCESSORS
    edge *= v["edge beside an aux result"] if aux else 1.5 if form == "weight" else 1  # two results, or one of four bytes
    best = math.inf
    for tile_down, tile_across, of_rate in ((128, 256, 1), (256, 128, 1), (128, 128, 0.92)):
        tiles = math.ceil(down / tile_down) * math.ceil(across / tile_across)
        for split in range(1, 17 if form == "weight" else 2):
            if split > 1 and 4 * split * down * across > WORKSPACE:
                break
            waves = math.ceil(tiles * split / MULTIPROCESSORS)
            seconds = waves * (k / split + edge) * 2 * tile_down * tile_across / (rate * of_rate)
            if split > 1:
                seconds += 8 * split * down * across / v.copy + v.gap
            best = min(best, seconds)
    best /= v["split sums"] if form == "weight" else 1
    return longest(best / (1 if table else v["algorithm without table"]), product_cost(form, rows, inner, out, aux, adds=adds)[1] / v.copy)


def attention_bounds(v, form, head):
    """{bound: clocks of a multiprocessor} for a step of a thread block: two or three warpgroups with 64 queries each and 128 keys, or two
    warpgroups with 64 keys each and 64 queries."""
    tile = 2 * 64 * head  # bytes of 64 rows
    if form == "forward":
        groups, products = 3 if head == 64 else 2, 2
        loop = counts_of(f"hopper_forward_kernel<{head}, true, Masks<false, false> >")[1] * v["forward loop run"]
        # These are queries and keys, then values, for each warpgroup. Keys and values arrive once.
        shared = groups * (tile + 4 * tile) + 4 * tile
        scores = 64 * groups * SCORES
    else:
        groups, products, slopes = 2, 5, 2 * 64 * SCORES
        loop = counts_of(f"hopper_backward_kernel<{head}, 64, Masks<false, false> >")[1] * v["backward loop run"]
        # Each warpgroup reads keys and queries, values and gradients, gradients for dv, queries for dk, and, for dq,
        # all slopes and half of the columns of all keys. Slopes are written once; queries and gradients arrive once.
        shared = groups * (4 * tile + 2 * tile + slopes + tile) + slopes + 2 * tile
        scores = 64 * SCORES
    return {"products": 2 * products * scores * head / DENSE, "exponentials": scores / EXPONENTIALS,
            "instructions": groups * loop, "shared memory": shared / SHARED_BYTES}


@functools.cache
def forward_steps(heads, tokens, head, group, more):
    """Steps until the last thread block ends: blocks of queries in the order of item_of() in kernels/attention/attention_hopper_forward.cu,
    each taken by the first thread block that is free; a block takes `more` steps more. A warpgroup skips keys that its queries do not see."""
    groups = 3 if head == 64 else 2
    rows = 64 * groups
    blocks = math.ceil(tokens / rows)
    free = [0.0] * min(MULTIPROCESSORS, heads * blocks)
    together = max(1, min(len(free), CACHE // (4 * tokens * head) * group))
    for index in range(heads * blocks):
        first = index // (together * blocks) * together
        end = tokens - rows * ((index - first * blocks) // min(together, heads - first))
        begin = max(0, end - rows)
        steps = sum(math.ceil(min(begin + 64 * (i + 1), end) / SCORES) for i in range(groups) if begin + 64 * i < end) / groups
        heapq.heapreplace(free, free[0] + steps + more)
    return max(free)


@functools.cache
def backward_steps(heads, tokens, head, group, start):
    """Steps until the last thread block ends: blocks of keys in the order of item_of() in kernels/attention/hopper_backward.cuh, each passing
    through its tiles from the last one down. A step adds to dq of a tile after the block of keys before it; a block takes `start` steps more."""
    blocks, tiles = math.ceil(tokens / SCORES), math.ceil(tokens / 64)
    free = [0.0] * min(MULTIPROCESSORS, heads * blocks)
    of_turn = min(heads, max(TOGETHER, CACHE // (4 * group * tokens * head)))
    for first in range(0, heads, of_turn):
        together = min(of_turn, heads - first)
        added = [[0.0] * (group * tiles) for _ in range(together)]
        for index in range(together * blocks):
            block, now = index // together, heapq.heappop(free) + start
            of_head = added[index % together]
            for queries in range(group):
                for tile in reversed(range(queries * tiles + 2 * block, (queries + 1) * tiles)):
                    now = of_head[tile] = max(now + 1, of_head[tile])
            heapq.heappush(free, now)
    return max(free)


def attention_seconds(v, form, batch, tokens, heads, kv_heads, head):
    cost = attention_cost(2 if form == "forward" else 5, batch, tokens, heads, kv_heads, head)
    step = longest(*attention_bounds(v, form, head).values()) / v[f"attention {form} of bound"] / v.clock
    if form == "forward":
        seconds = step * forward_steps(batch * heads, tokens, head, heads // kv_heads, v["steps more for a block of queries"])
    else:
        seconds = step * backward_steps(batch * kv_heads, tokens, head, heads // kv_heads, v["steps more for a block of keys"])
        seconds += v.stream(BF16 * 2 * batch * tokens * heads * head + 4 * batch * heads * tokens)  # delta_kernel
    return longest(seconds, cost[1] / v.copy)


def mma_steps(rows, columns, tokens, keys):
    """Steps of the main loop over all blocks of a head: causal, a step skips what no row of the block sees."""
    blocks = range(math.ceil(tokens / rows))
    if keys:
        return sum(math.ceil((tokens - block * rows) / columns) for block in blocks)
    return sum(math.ceil(min(tokens, (block + 1) * rows) / columns) for block in blocks)


def mma_kernel(v, kernel, rows, columns, batch, tokens, heads, reach, keys=False, group=1):
    every, loop, tensor = counts_of(kernel)
    step = max(loop, tensor * PRODUCT * SCHEDULERS / DENSE / v["mma.sync of dense"])  # clocks of a scheduler
    outside = (every - loop) / v["issue of a mixed kernel"] + LATENCY_CLOCKS / 2
    clocks = mma_steps(rows, columns, tokens, keys) * group * step / reach + math.ceil(tokens / rows) * outside
    return batch * heads * clocks / (MULTIPROCESSORS * v.clock)


def mma_seconds(v, form, batch, tokens, heads, kv_heads, head):
    """Attention by kernels/attention/attention_mma_*.cu: the path of older GPUs, and of rows that TMA does not take."""
    sizes = dict(batch=batch, tokens=tokens)
    cost = attention_cost(2 if form == "forward" else 5, batch, tokens, heads, kv_heads, head)
    reach = v[f"mma.sync {form} of bound"]
    if form == "forward":
        keys = 64 if head == 64 else 32
        seconds = mma_kernel(v, f"forward_kernel<{head}, 2, {keys}, true, Masks<false, false> >", 128, keys, heads=heads, reach=reach, **sizes)
    else:
        tiles = 2 if head == 64 else 1
        seconds = mma_kernel(v, f"key_kernel<{head}, {tiles}, 32, true, Masks<false, false> >", 64 * tiles, 32, heads=kv_heads, reach=reach, keys=True, group=heads // kv_heads, **sizes)
        seconds += mma_kernel(v, f"query_kernel<{head}, {tiles}, 32, true, Masks<false, false> >", 64 * tiles, 32, heads=heads, reach=reach, **sizes)
        seconds += v.stream(BF16 * 2 * batch * tokens * heads * head + 4 * batch * heads * tokens)  # delta_kernel
    return longest(seconds, cost[1] / v.copy)


def norm_seconds(v, form, rows, width, centre, with_residual=True, sums=False):
    size = norm_cost(form, centre, rows, width, with_residual)[1]
    shared_by = 1 << max(0, math.ceil(math.log2(width / 1024)))  # warps of a row
    start = f"held_norm_{form}_kernel<{str(centre).lower()}, {shared_by}, "
    rate = v.issue * v["issue of a mixed kernel"]
    if form == "forward":
        return longest(v.stream(size), rows * shared_by * counts_of(start + "bfloat16>")[0] / rate)
    every, loop, _ = counts_of(start + f"{3 if width <= 768 * shared_by else 4}, bfloat16>")
    latency, alone = v["memory latency, us"] * 1e-6, v["instructions per clock of a warp"] * v.clock
    warps = max(4, shared_by)
    of_block = math.ceil(rows / min(math.ceil(rows / 32), NORM_TURNS * NORM_WARPS * MULTIPROCESSORS // warps))
    blocks = math.ceil(rows / of_block)
    issue = (shared_by * rows * loop + blocks * warps * (every - loop)) / rate
    turns = math.ceil(blocks * warps / (NORM_WARPS * MULTIPROCESSORS))
    in_turn = turns * math.ceil(of_block * shared_by / warps) * longest(latency, loop / alone)  # a row travels while another one is computed
    finish = (every - loop) / alone + math.ceil(blocks / (8 * NORM_LANES)) * latency + v.gap  # eight loads at once
    return longest(v.stream(size + 4 * (1 + centre + sums) * blocks * width), issue, in_turn) + finish


def loss_seconds(v, rows, vocab, **_):
    held = min(BF16 * vocab, SHARED_BLOCK - LOSS_STATIC) + LOSS_STATIC + 1024  # bytes of a block; the system takes 1024
    at_once = 2 if 2 * held <= SHARED else 1  # rows of a multiprocessor
    latency = v["memory latency, us"] * 1e-6
    loops = math.ceil(vocab / (8 * LOSS_THREADS)) * (LOSS_SUM + counts_of("row_kernel<true, bfloat16>")[1]) * v["loss loops run"]
    issue = rows * LOSS_THREADS / 32 * loops / (v.issue * v["issue of a mixed kernel"])
    in_turn = rows / MULTIPROCESSORS / at_once * (2 * latency + loops / (v["instructions per clock of a warp"] * v.clock))
    alone = rows / MULTIPROCESSORS * 2 * latency if at_once == 1 else 0.0  # no other row uses the memory meanwhile
    return longest(v.stream(2 * BF16 * rows * vocab) + alone, issue, in_turn)


def squares_seconds(v, elems):
    blocks, latency = elems / SUM_BLOCK, v["memory latency, us"] * 1e-6
    rounds = SUM_BLOCK / SUM_THREADS / 4 / 8  # eight loads of four floats at once
    finish = math.ceil(blocks / 256) * (256 * 8 / v.clock + latency)  # one thread adds 256 doubles
    return longest(v.stream(4 * elems), rounds * latency * max(1, blocks * SUM_THREADS / (MULTIPROCESSORS * 2048))) + finish


@functools.cache
def zipf(rows, vocab):
    """(different ids, rows of the most frequent id), expected of ids by Philox::zipf."""
    share = [math.log((k + 2) / (k + 1)) / math.log(vocab + 1) for k in range(vocab)]
    return sum(-math.expm1(rows * math.log1p(-p)) for p in share), rows * share[0]


def embedding_seconds(v, rows, width, vocab):
    ids, most = zipf(rows, vocab)
    columns = math.ceil(width / 256)  # of a warp, one after the other
    # Loads in turn: the id, the marks and ids of a chunk, then rows where the id is first. The longest one loads the
    # ids of two chunks, and then four rows at once.
    few = longest(rows / EMBEDDING_WARPS * (3 + ids / rows * (1 + columns)), 2 + FEW / 2 + columns * FEW / 4)
    frequent = 2 * math.ceil(rows / WINDOW) + most / TILE + 1
    return longest((few + frequent) * v["memory latency, us"] * 1e-6, v.stream((BF16 * rows + 8 * ids) * width))


def parts_of(v, work, table):
    """[(label, seconds, kernels)] of a work."""
    shape = work.shape
    if work.kind == "product":
        parts = [(work.label, product_seconds(v, table=table, **shape), 1)]
        if shape["gelu"]:
            apart = 1 - (v["fused GELU gradient won"] if table else 0)
            parts.append(("GELU gradient", apart * v.stream(3 * BF16 * shape["rows"] * shape["inner"]), 1 + apart))  # the last adds partial sums
        if shape["form"] == "weight" and shape["bias"]:
            apart = 1 - (v["fused bias gradient won"] if table else 0)
            parts.append(("bias gradients", apart * BF16 * shape["rows"] * shape["out"] / (v.copy * v["column sums of copy"]), 2 * apart))
        return parts
    if work.kind == "attention":
        return [(work.label, attention_seconds(v, **shape), 1 if shape["form"] == "forward" else 3)]
    if work.kind == "norm":
        return [(work.label, norm_seconds(v, **shape), 1 if shape["form"] == "forward" else 2)]
    if work.kind == "loss":
        return [(work.label, loss_seconds(v, **shape), 3)]
    if work.kind == "squares":
        return [(work.label, squares_seconds(v, **shape), 2)]
    if work.kind == "embedding":
        return [(work.label, embedding_seconds(v, **shape), 4)]
    return [(work.label, v.stream(work.cost[1]), 1)]


def step_of(v, model, table=True, batch=None):
    """({label: seconds}, kernels, [(piece, seconds)]) of a step."""
    m = dict(MODELS[model], **({"batch": batch} if batch else {}))
    groups, kernels, pieces = collections.defaultdict(float), 0, []
    for work in works_of(m):
        for label, seconds, count in parts_of(v, work, table):
            groups[label] += seconds
            kernels += count
            pieces.append((work.piece, seconds + count * v.gap))
    groups["gaps between kernels"] = kernels * v.gap
    groups["not counted"] = v["not counted"] * sum(groups.values())
    groups["host"] = v["host part of a measured step, ms"] * 1e-3
    return groups, kernels, pieces


def torch_seconds(v):
    """A step of scripts/bench_gpu_pytorch.py: float32 weights and residuals, bf16 products."""
    m = MODELS["gpt2"]
    rows = m["batch"] * m["tokens"]
    products = sum(product_seconds(v, table=False, **work.shape) for work in works_of({**m, "head_tokens": rows}) if work.kind == "product")
    u = BF16 * rows * m["width"]
    # norms 2 x 6 and 2 x 7, GELU 8, its gradient 12, bias gradients 9, q, k and v joined 6
    passes = m["layers"] * 61 * u + 4 * BF16 * rows * m["vocab"] + 55 * parameters_of(m)
    operations = sum(3.5 * 2 * m["batch"] * m["heads"] * m["tokens"] ** 2 * m["head"] for _ in range(m["layers"]))
    counted = products + passes / (v.copy * v["torch: pointwise of copy"]) + operations / (v["torch: attention, TFLOP/s"] * 1e12) + 400 * v.gap
    return counted * (1 + v["not counted"])


def backward_share(v):
    """Share of the backward pass in the compute of a rank with 8 sequences."""
    _, _, pieces = step_of(v, "gpt2", batch=8)
    return sum(seconds for piece, seconds in pieces if "gradient" in piece) / sum(seconds for _, seconds in pieces)


def hidden_at(v, ratio):
    """Share of the communication under compute: 8 ranks, 8 sequences each, reduced in the order of the backward pass, `ratio` times as
    long as compute. The tied table is complete after the last piece; the update begins when all is reduced."""
    _, _, pieces = step_of(v, "gpt2", batch=8)
    m = MODELS["gpt2"]
    whole, d, f = parameters_of(m), m["width"], m["hidden"]
    of_piece = {"mlp_down_gradient": d * f + d, "mlp_up_gradient": d * f + f, "norm_2_gradient": 2 * d, "attention_out_gradient": d * d + d,
                "attention_qkv_gradient": 3 * d * d + 3 * d, "norm_1_gradient": 2 * d, "final_norm_gradient": 2 * d,
                "embedding_gradient": (m["vocab"] + m["positions"]) * d}
    wire, start = ratio * sum(seconds for _, seconds in pieces), v["start of a transfer, us"] * 1e-6
    now = free = bucket = busy = 0.0
    last = [piece for piece, _ in pieces if "gradient" in piece][-1]
    ends = {}
    for piece, seconds in pieces:
        now += seconds
        ends[piece] = now
    for piece, end in ends.items():
        bucket += of_piece.get(piece.split(".")[0], 0)
        if 4 * bucket >= m["bucket"] or piece == last:
            took = start + wire * bucket / whole
            free = max(free, end) + took
            busy += took
            bucket = 0.0
    return 1 - v["exposed beside this count"] * max(0.0, free - ends[last]) / busy


# --- rows

ATTENTION = [(form, dict(batch=batch, tokens=tokens, heads=12, kv_heads=12, head=head))
             for batch, tokens, head in ((32, 1024, 64), (8, 2048, 128)) for form in ("forward", "backward")]


def attention_name(form, sizes):
    return "attention_{form} B{batch} T{tokens} H{heads}/{kv_heads} x {head}".format(form=form, **sizes)


def attention_operations(form, sizes):
    return (1 if form == "forward" else 2.5) * 2 * sizes["batch"] * sizes["heads"] * sizes["tokens"] ** 2 * sizes["head"]


def attention_table(v):
    """Markdown rows: clocks of every bound of a step, the bound without mask, the forecast, and that of mma.sync, in TFLOP/s."""
    lines = ["| | products | shared memory | instructions | exponentials | bound | forecast | `mma.sync` |", "|---|--:|--:|--:|--:|--:|--:|--:|"]
    for form, sizes in ATTENTION:
        bounds = attention_bounds(v, form, sizes["head"])
        whole = MULTIPROCESSORS * DENSE * v.clock / 1e12 * bounds["products"] / longest(*bounds.values())
        reached, mma = (attention_operations(form, sizes) / seconds(v, form, **sizes) / 1e12 for seconds in (attention_seconds, mma_seconds))
        clocks = " | ".join(f"{bounds[name]:.0f}" for name in ("products", "shared memory", "instructions", "exponentials"))
        lines.append(f"| {form}, head {sizes['head']} | {clocks} | {whole:.0f} | {reached:.0f} | {mma:.0f} |")
    return lines


def rows_of(v):
    """{(name, unit): (value, basis)} of all forecast goals."""
    rows = {}

    def row(name, unit, value, basis):
        rows[name, unit] = (value, basis)

    steps = {table: step_of(v, "gpt2", table) for table in (True, False)}
    tokens = MODELS["gpt2"]["batch"] * MODELS["gpt2"]["tokens"]
    seconds = {table: sum(groups.values()) for table, (groups, _, _) in steps.items()}
    row("GPT-2 124M", "tokens/s", tokens / seconds[True], "65,536 tokens / the sum of the parts")
    row("GPT-2 124M without a table", "tokens/s", tokens / seconds[False], "the library's first algorithms, no fused gradients")
    torch = torch_seconds(v)
    row("torch-compile GPT-2 124M", "tokens/s", tokens / torch, "products, 107 GB of passes, attention at 210 TFLOP/s")
    row("GPT-2 124M / torch-compile", "x", torch / seconds[True], "of the two rows above")
    for table, name in ((True, "Llama 1.2B"), (False, "Llama 1.2B without a table")):
        llama = sum(step_of(v, "llama", table)[0].values())
        row(name, "tokens/s", MODELS["llama"]["batch"] * MODELS["llama"]["tokens"] / llama, "8 x 2048 tokens, heads of 64, 8 for keys")
    for form, sizes in ATTENTION:
        row(attention_name(form, sizes), "TFLOP/s", attention_operations(form, sizes) / attention_seconds(v, form, **sizes) / 1e12,
            "products, shared memory, instructions and exponentials of a step; steps of causal blocks in the kernel's order")
    n, norm_rows, some = 124475904, 32768, 8192

    def share(name, size, seconds, basis):
        row(name, "% of copy", 100 * size / seconds / v.copy, basis)

    share("layer_norm_backward 32768 x 768", norm_cost("backward", True, norm_rows, 768, True)[1], norm_seconds(v, "backward", norm_rows, 768, True) + v.gap,
          "four passes and partial sums, or both loops; then sums of 521 blocks")
    share("rms_norm_backward 32768 x 1536", norm_cost("backward", False, norm_rows, 1536, True)[1], norm_seconds(v, "backward", norm_rows, 1536, False) + v.gap,
          "the same; two warps share a row")
    share("layer_norm_forward 32768 x 768", norm_cost("forward", True, norm_rows, 768, True)[1], norm_seconds(v, "forward", norm_rows, 768, True), "4 passes")
    share("cross_entropy 8192 x 50304", BF16 * some * (50257 + 50304) + 8 * some, loss_seconds(v, some, 50304) + v.gap, "logits read once, written once")
    share("adamw 124475904", 30 * n, v.stream(30 * n), "30 bytes a parameter, one launch")
    share("sum_squares 124475904", 4 * n + 8, squares_seconds(v, n) + v.gap, "one pass, then one thread adds 30,390 sums")
    row("copy 1024 MiB", "GB/s", v.copy / 1e9, "assumed")
    row("matmul_forward 8192 x 8192 x 8192", "TFLOP/s", v["product ceiling, TFLOP/s"], "assumed")
    for name, inner, out, of_rows in (("qkv", 768, 2304, 1), ("projection", 768, 768, 1), ("up", 768, 3072, 1), ("down", 3072, 768, 1), ("head", 768, 50304, 0.25)):
        of_rows = int(norm_rows * of_rows)
        for form, op in (("forward", "matmul_forward"), ("input", "matmul_backward_input"), ("weight", "matmul_backward_weight")):
            took = product_seconds(v, form, of_rows, inner, out, aux=name == "up" and form == "forward", table=False)
            if form == "weight" and name != "head":
                took += BF16 * of_rows * out / (v.copy * v["column sums of copy"]) + 2 * v.gap
            row(f"{op} {name} {of_rows} x {inner} x {out}", "TFLOP/s", 2 * of_rows * inner * out / took / 1e12, "tiles, waves, edges; the library's first algorithm")
    row("host synchronisations a step", "waits", 0, "the test gpu_host_waits requires it")
    row("graph launches a step", "launches", 1, "the same test")
    slower = {"gate": v["slow-down by waits"]}
    slower["copies"] = slower["gate"] + v["slow-down by copies"]
    slower["blocks"] = slower["gate"] + v["slow-down by blocks"]
    goal = 0.6 * backward_share(v)
    row("communication hidden at 0.6 of backward", "%", 100 * hidden_at(v, goal), "the tied table, 31 % of the bytes, is complete last")
    row("compute slow-down at 0.6 of backward", "%", 100 * goal * slower["blocks"], "4 of 132 multiprocessors taken for 0.6 of backward")
    for ratio in (0.25, 0.5, 1):
        hidden = 100 * hidden_at(v, ratio)
        for form, value in slower.items():
            row(f"overlap {form} {ratio:g} hidden", "%", hidden, "bytes ready before the end of backward; 8 ranks x 8 sequences")
            row(f"overlap {form} {ratio:g} compute slow-down", "%", 100 * ratio * value, "share of time with a busy link x its load")
    for label, value in sorted(steps[True][0].items(), key=lambda one: -one[1]):
        row(f"step part: {label}", "ms", 1e3 * value, "part of GPT-2 124M with a table")
    row("step part: all", "ms", 1e3 * seconds[True], f"{round(steps[True][1])} kernels")
    return rows


def forecast(card):
    """[(name, unit, low, expected, high, basis)]."""
    expected = rows_of(Values(card))
    down, up = collections.Counter(), collections.Counter()
    for name, (ends, _) in (ASSUMED | RATES[card]).items():
        moved = [rows_of(Values(card, name, end)) for end in (0, 2)]
        for key, (value, _) in expected.items():
            ends = [rows[key][0] - value for rows in moved]
            down[key] += min(0, *ends) ** 2
            up[key] += max(0, *ends) ** 2
    return [(name, unit, max(0.0, value - math.sqrt(down[name, unit])), value, value + math.sqrt(up[name, unit]), basis)
            for (name, unit), (value, basis) in expected.items()]


def shown(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" if value >= 1 else f"{value:.2g}"


def write_csv(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["name", "unit", "low", "expected", "high", "basis"])
        for name, unit, low, expected, high, basis in rows:
            writer.writerow([name, unit, *(f"{value:.5g}" if value < 1e4 else f"{value:.0f}" for value in (low, expected, high)), basis])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--card", choices=sorted(RATES), default="h200")
    arguments.add_argument("--attention", action="store_true", help="print the bounds of attention")
    arguments.add_argument("--csv", type=pathlib.Path, help="write the rows to this file")
    arguments.add_argument("--planned", nargs=4, metavar=("MODEL", "PEAK", "BYTES", "LAUNCH"),
                           help="print the step of gpt2 or llama in ms by the plan's prices: operations and bytes a second, seconds of a launch")
    options = arguments.parse_args()
    if options.planned:
        print(f"{planned_ms(options.planned[0], *map(float, options.planned[1:])):.6f}")
        return
    if options.attention:
        print("\n".join(attention_table(Values(options.card))))
        return
    rows = forecast(options.card)
    if options.csv:
        write_csv(options.csv, rows)
        return
    print("| what | low | forecast | high | unit |\n|---|---:|---:|---:|---|")
    for name, unit, low, expected, high, _ in rows:
        print(f"| {name} | {shown(low)} | {shown(expected)} | {shown(high)} | {unit} |")


if __name__ == "__main__":
    sys.exit(main())
