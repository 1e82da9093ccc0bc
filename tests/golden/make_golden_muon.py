#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/muon.{json,bin}: weights and momenta of small matrices after steps of torch.optim.Muon.

Every case is computed twice: as PyTorch is, which multiplies in bfloat16, and in float64 throughout, by the same code
with torch.bfloat16 replaced while the optimizer runs. The second has no rounding but that of the file, which is
float32. Needs PyTorch 2.9 or later; run it again only to change the cases:

    python3 tests/golden/make_golden_muon.py tests/golden
"""
import json
import pathlib
import struct
import sys

import torch

CASES = [  # rows, cols, scaling, nesterov, learning rate, weight decay, steps
    (16, 16, "match_rms_adamw", True, 1e-2, 0.1, 4),
    (8, 24, "original", True, 2e-2, 0.1, 3),
    (24, 8, "original", True, 2e-2, 0.1, 3),
    (24, 8, "match_rms_adamw", False, 1e-2, 0.0, 3),
    (13, 31, "match_rms_adamw", True, 1e-2, 0.5, 3),
    (1, 7, "original", False, 1e-2, 0.1, 2),
]
MOMENTUM = 0.95


def train(case, start, gradients, dtype):
    """Weights and momentum after the steps of `case`, in the type of the parameters `dtype`."""
    _, _, scaling, nesterov, rate, decay, _ = case
    weight = torch.nn.Parameter(start.to(dtype).clone())
    optimizer = torch.optim.Muon([weight], lr=rate, weight_decay=decay, momentum=MOMENTUM, nesterov=nesterov, adjust_lr_fn=scaling)
    multiplied, torch.bfloat16 = torch.bfloat16, torch.float64 if dtype == torch.float64 else torch.bfloat16
    try:
        for gradient in gradients:
            weight.grad = gradient.to(dtype)
            optimizer.step()
    finally:
        torch.bfloat16 = multiplied
    return weight.detach(), optimizer.state[weight]["momentum_buffer"]


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.manual_seed(20261123)
    data, rows = bytearray(), []

    def write(tensor):
        begin = len(data) // 4
        values = tensor.to(torch.float32).flatten().tolist()
        data.extend(struct.pack(f"<{len(values)}f", *values))
        return begin

    for case in CASES:
        shape, steps = case[:2], case[6]
        start = torch.randn(shape, dtype=torch.float32)
        gradients = [torch.randn(shape, dtype=torch.float32) for _ in range(steps)]
        exact, momentum = train(case, start, gradients, torch.float64)
        rounded, _ = train(case, start, gradients, torch.float32)
        difference = (rounded.double() - exact).abs().max() / (start.double() - exact).abs().max()
        assert 1e-4 < difference < 0.1, "the float64 steps multiplied in bfloat16, or the matrices are ill-conditioned"
        print(f"{case}: bfloat16 products change the update by {difference:.1e} of its largest element")
        rows.append({"rows": case[0], "cols": case[1], "scaling": case[2], "nesterov": case[3], "learning_rate": case[4],
                     "weight_decay": case[5], "steps": steps, "begin_elems": write(start),
                     "gradients": [write(gradient) for gradient in gradients], "momentum": write(momentum),
                     "float64": write(exact), "bfloat16": write(rounded)})
    (folder / "muon.bin").write_bytes(data)
    text = {"made_with": f"tests/golden/make_golden_muon.py, PyTorch {torch.__version__.split('+')[0]}", "momentum": MOMENTUM, "cases": rows}
    (folder / "muon.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
