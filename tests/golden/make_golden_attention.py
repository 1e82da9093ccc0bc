#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/attention.{json,bin}: PyTorch's outputs and gradients of causal attention with heads of 64 and 128.

Rows hold [q heads | k heads | v heads]. Inputs follow from a formula that the test repeats, exactly in bfloat16; PyTorch
computes in float64, and the file has its results rounded to bfloat16. Needs python3-torch; run it again only to change
the cases:

    /usr/bin/python3 tests/golden/make_golden_attention.py tests/golden
"""
import json
import pathlib
import sys

import torch

from make_golden import attention, merge, split

# Heads of 64, which share keys and values, have more than a tile of 128 keys; heads of 128 have less, because the file
# is small.
CASES = [{"tokens": 131, "heads": 2, "kv_heads": 1, "head_dim": 64}, {"tokens": 93, "heads": 1, "kv_heads": 1, "head_dim": 128}]


def values(count, seed):
    """Odd multiples of 1/128 between -2 and 2."""
    n = (torch.arange(count, dtype=torch.int64) + 1 + (seed << 24)) * 0x9E3779B1 & 0xFFFFFFFF
    n = (n ^ n >> 15) * 0x85EBCA77 & 0xFFFFFFFF
    n = n ^ n >> 13
    return (2 * (n >> 24) - 255).double() / 128


def results(case, seed):
    tokens, heads, kv_heads, size = (case[key] for key in ("tokens", "heads", "kv_heads", "head_dim"))
    width = (heads + 2 * kv_heads) * size
    qkv = values(tokens * width, seed).view(1, tokens, width).requires_grad_()
    dout = values(tokens * heads * size, seed + 1).view(1, tokens, heads * size)
    q, k, v = qkv.split([heads * size, kv_heads * size, kv_heads * size], -1)
    repeated = lambda x: split(x, kv_heads).repeat_interleave(heads // kv_heads, 1)
    out = merge(attention(split(q, heads), repeated(k), repeated(v)))
    out.backward(dout)
    return out.detach(), qkv.grad


def main(folder):
    index, data = [], b""
    for number, case in enumerate(CASES):
        out, gradients = results(case, 2 * number)
        index.append({**case, "seed": 2 * number, "begin_elems": len(data) // 2})
        data += b"".join(t.bfloat16().contiguous().view(torch.int16).numpy().tobytes() for t in (out, gradients))
    rows = ",\n".join("  " + json.dumps(row) for row in index)
    made = f"tests/golden/make_golden_attention.py, PyTorch {torch.__version__.split('+')[0]}"
    (folder / "attention.json").write_text(f'{{\n "made_with": "{made}",\n "cases": [\n{rows}\n ]\n}}\n')
    (folder / "attention.bin").write_bytes(data)
    print(f"{len(data)} bytes")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden"))
