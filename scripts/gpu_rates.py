#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rates and assumptions of the GPU forecast (gpu_forecast.py), each with an interval and its basis."""

MULTIPROCESSORS, SCHEDULERS = 132, 4

# name: (slow end, expected, fast end), basis
RATES = {
    "h200": {"product ceiling, TFLOP/s": ((690, 740, 790), "fitted to 14 products of 2026-11-27-h200.md; there 8192^3 reaches 688 at 700 W, elsewhere 769 to 798 for some ms"),
             "copy, TB/s": ((4.15, 4.24, 4.4), "2026-11-27-h200.md: 4.24; datasheet 4.8")},
    "h100": {"product ceiling, TFLOP/s": ((690, 740, 790), "as on an H200, whose multiprocessors and power limit are the same; 795 measured elsewhere"),
             "copy, TB/s": ((2.9, 3.0, 3.1), "measured on a cloud GPU: 3.0; datasheet 3.35")},
}
SOURCED = {  # the expected value is a published or counted figure, or lies beside the figures named
    "clock, GHz": ((1.60, 1.755, 1.98), "note-0018-data.md; H100 SXM boosts to 1.98, less under load"),
    "attention forward of bound": ((0.58, 0.64, 0.70), "2026-11-27-h200.md: 0.61 with heads of 64 and 0.67 with 128"),
    "attention backward of bound": ((0.43, 0.49, 0.56), "2026-11-27-h200.md: 0.45 with heads of 64 and 0.54 with 128"),
    "forward loop run": ((1.1, 1.0, 0.97), "counted: the loop of steps without mask; steps on the diagonal have a loop of their own"),
    "backward loop run": ((1.0, 0.57, 0.50), "counted: 495 of 943 and 541 of 1130; masks run on the diagonal, rounding in the first block of keys"),
    "mma.sync of dense": ((0.56, 0.62, 0.66), "arXiv:2402.13499, as in note 0018"),
    "mma.sync forward of bound": ((0.50, 0.60, 0.72), "FlashAttention-2 without mask, 16k tokens: 324 and 370 TFLOP/s are 0.61 and 0.63 of the bounds here"),
    "mma.sync backward of bound": ((0.42, 0.52, 0.64), "FlashAttention-2 without mask: 264 (2k tokens) and 310 TFLOP/s (4k) are 0.45 and 0.53 of five products"),
    "torch: attention, TFLOP/s": ((288, 263, 210), "forward and backward of PyTorch's choice (cuDNN): 158 and 528 us in 2026-11-27-h200.md"),
    "edge of a product, k": ((260, 180, 140), "fitted to the same products: a tile's first loads and its epilogue take as long as 180 steps of k, 19 % at k = 768"),
    "edge beside an aux result": ((3.0, 2.7, 2.2), "the same: the product with GELU and its input as a second result, 330 us where 274 were counted"),
    "split sums": ((1.0, 1.1, 1.2), "the same: weight gradients, beside their waves; above 1 the library splits more finely than this count"),
    "algorithm without table": ((0.93, 0.97, 1.0), "the same; the table of products made no product of a layer more than 10 % faster, and the step not at all"),
    "fused GELU gradient won": ((0.0, 0.3, 0.6), "2026-11-27-h200.md: 554 us fused, 595 apart"),
    "fused bias gradient won": ((0.0, 0.0, 0.2), "the same: 460 us fused, 401 apart"),
    "not counted": ((0.11, 0.08, 0.03), "fitted to two steps of 2026-11-27-h200.md, which run at 690 of 700 W: their kernels are 4 to 6 % faster alone"),
    "loss loops run": ((1.0, 0.90, 0.80), "counted: the gradient executes 61 of 77 instructions; the sum skips the branch of a new maximum"),
    "exposed beside this count": ((1.10, 1.0, 0.90), "counted: the rehearsal of the plan exposes 0.94 to 1.06 times as much"),
}
JUDGED = {  # no source has the expected value
    "steps more for a block of queries": ((2.0, 0.8, 0.3), "FlashAttention-3, 512 and 1k tokens: 2.0 and 2.1; here the next block's queries and keys are loaded ahead"),
    "steps more for a block of keys": ((2.5, 1.0, 0.5), "FlashAttention-3, 512 and 1k tokens: 5.9 and 4.9, with kernels before and after it"),
    "streaming of copy": ((0.85, 0.93, 0.97), "one pass, 16 bytes a thread; QuACK's kernels reach 3.0 TB/s on an H100, as a copy does"),
    "column sums of copy": ((0.55, 0.75, 0.90), "192 to 768 blocks of 256 threads, unequal on 132 multiprocessors"),
    "memory latency, us": ((1.1, 0.8, 0.65), "under load; note 0018 counts with 1"),
    "instructions per clock of a warp": ((0.35, 0.50, 0.70), "dependent float instructions of 4 clocks or more, two or three in flight"),
    "issue of a mixed kernel": ((0.70, 0.85, 0.95), "instructions per scheduler and clock with many warps"),
    "kernel gap, us": ((3.0, 1.8, 1.0), "start, first loads and last blocks between kernels of a graph; machine files have 3"),
    "host part of a measured step, ms": ((0.5, 0.2, 0.05), "bench step launches a step on an idle GPU and waits for its end"),
    "torch: pointwise of copy": ((0.95, 0.85, 0.75), "for torch.compile; its slow end makes our ratio high"),
    "start of a transfer, us": ((60, 20, 5), "emulated link: two events and a word from the host"),
    "slow-down by waits": ((0.015, 0.005, 0.0), "of compute while a link is busy: events between streams"),
    "slow-down by copies": ((0.06, 0.03, 0.0), "in addition: 1 GB out and in beside 20 GB, a third of the step is memory-bound"),
    "slow-down by blocks": ((0.40, 0.20, 0.03), "in addition: 4 of 132 multiprocessors are 3 % if work spreads evenly; PyTorch issue 179937 reports 30 to 40 %"),
}
ASSUMED = SOURCED | JUDGED


class Values(dict):
    """Value of every assumption."""

    def __init__(self, card, moved=None, end=1):
        table = ASSUMED | RATES[card]
        super().__init__({name: ends[end if name == moved else 1] for name, (ends, _) in table.items()})
        self.clock = self["clock, GHz"] * 1e9
        self.copy = self["copy, TB/s"] * 1e12
        self.gap = self["kernel gap, us"] * 1e-6
        self.issue = MULTIPROCESSORS * SCHEDULERS * self.clock  # warp instructions a second

    def stream(self, size):
        return size / (self.copy * self["streaming of copy"])
