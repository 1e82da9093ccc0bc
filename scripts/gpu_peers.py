#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the model of gpu_forecast.py on other programs, and gives the probability of every goal.

usage: gpu_peers.py    prints two Markdown tables

First table: the forecast of the model, with its expected values, for programs of others, beside their published or measured speed.
llm.c is counted from its source (karpathy/llm.c, train_gpt2.cu); attention of FlashAttention-3 and cuDNN is the model of our own
kernel on their shape, so that its error contains how differently they are built.

Second table: P(goal) of a normal distribution whose 10th and 90th percentile are the ends of the forecast's interval, each side with its
own deviation.
"""
import math
import sys

import gpu_forecast as g
from gpu_counts import BF16, F32, MODELS, parameters_of, works_of

P90 = 1.2815515655446004  # deviations from the median to the 90th percentile
# Where, what, tokens of a batch of 16k, head, measured TFLOP/s. H100: flash-attention/assets/flash3_fp16_fwd.png
# (causal).
ATTENTION = [("h100", "FlashAttention-3", 1024, 64, 265), ("h100", "cuDNN", 1024, 64, 288), ("h100", "FlashAttention-3", 16384, 64, 473),
             ("h100", "FlashAttention-3", 2048, 128, 521), ("h100", "cuDNN", 2048, 128, 484), ("h100", "FlashAttention-3", 16384, 128, 616)]
GOALS = {"h200": {"GPT-2 124M": 560e3, "GPT-2 124M / torch-compile": 1.15, "Llama 1.2B": 66e3},
         "h100": {"GPT-2 124M": 560e3, "GPT-2 124M, stretch": 600e3, "GPT-2 124M / torch-compile": 1.15, "Llama 1.2B": 66e3}}


def llm_c_seconds(v):
    """A step of llm.c on one of eight H100, 64 x 1024 tokens each, ZeRO-1, cuDNN attention, without communication. Passes of rows x 768 bf16
    elements in a layer: residual and norm 2 x 4, GELU 2 x 4, its gradient 3 x 4, gradients of biases 3 + 1 + 4 + 1, norm backward 2 x 5."""
    m = MODELS["gpt2"]
    rows = m["batch"] * m["tokens"]
    products = sum(g.product_seconds(v, table=False, **(work.shape | {"aux": False})) for work in works_of(m) if work.kind == "product")
    passes = m["layers"] * (8 + 8 + 12 + 9 + 10) * BF16 * rows * m["width"] + 2 * BF16 * rows * m["vocab"]
    update = (4 * F32 + 2 * BF16) * parameters_of(m) / 8 + F32 * parameters_of(m)
    forward = 2 * m["batch"] * m["heads"] * m["tokens"] ** 2 * m["head"]
    attention = m["layers"] * forward * (1 / 288e12 + 2.5 / 245e12)  # cuDNN, as published and as measured
    return (products + v.stream(passes + update) + attention + 500 * v.gap) * (1 + v["not counted"])


def peers():
    rows = []
    for card in ("h100", "h200"):
        v = g.Values(card)
        if card == "h100":
            rows.append((card, "llm.c, GPT-2 124M, ms a step of 65,536 tokens", 1e3 * llm_c_seconds(v), 140.0, "modded-nanogpt, 2024-10-13_llmc: 8 GPUs"))
            for _, who, tokens, head, reached in ATTENTION:
                sizes = dict(batch=16384 // tokens, tokens=tokens, heads=2048 // head, kv_heads=2048 // head, head=head)
                ours = g.attention_operations("forward", sizes) / g.attention_seconds(v, "forward", **sizes) / 1e12
                rows.append((card, f"{who}, forward, head {head}, {tokens} tokens, TFLOP/s", ours, reached, "flash-attention/assets/flash3_fp16_fwd.png"))
        else:
            rows.append((card, "torch.compile, GPT-2 124M, ms a step", 1e3 * g.torch_seconds(v), 122.2, "2026-11-27-h200.md"))
            for who, form, index, us in (("cuDNN", "forward", 0, 158.8), ("cuDNN", "backward", 1, 526.5), ("cuDNN", "forward", 2, 220.3), ("cuDNN", "backward", 3, 676.3)):
                sizes = g.ATTENTION[index][1]
                rows.append((card, f"{who}, {form}, {sizes['tokens']} tokens, head {sizes['head']}, us", 1e6 * g.attention_seconds(v, form, **sizes), us, "2026-11-27-h200.md"))
    return rows


def probability(low, expected, high, goal):
    """P(value >= goal)."""
    deviation = ((expected - low) if goal < expected else (high - expected)) / P90
    return 0.5 * math.erfc((goal - expected) / deviation / math.sqrt(2))


def main():
    print("| card | what | model | measured | model / measured | source |\n|---|---|---:|---:|---:|---|")
    for card, what, model, measured, source in peers():
        print(f"| {card.upper()} | {what} | {model:,.1f} | {measured:,.1f} | {model / measured:.2f} | {source} |")
    print("\n| card | goal | at least | forecast | P |\n|---|---|---:|---:|---:|")
    for card, goals in GOALS.items():
        rows = {name: (low, expected, high) for name, _, low, expected, high, _ in g.forecast(card)}
        for name, goal in goals.items():
            low, expected, high = rows[name.split(",")[0]]
            print(f"| {card.upper()} | {name} | {g.shown(goal)} | {g.shown(expected)} ({g.shown(low)} to {g.shown(high)}) | "
                  f"{100 * probability(low, expected, high, goal):.0f} % |")


if __name__ == "__main__":
    sys.exit(main())
