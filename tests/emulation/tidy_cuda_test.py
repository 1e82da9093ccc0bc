# SPDX-License-Identifier: Apache-2.0
"""CUDA sources launch through launch() and keep inline PTX in two headers, whose twins have the same functions."""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
problems = []
sources = [p for folder in ("engine", "kernels", "comm", "models", "cli") for p in (root / folder).rglob("*") if p.suffix in (".cu", ".cuh", ".h", ".cpp")]
for path in sources:
    name = path.relative_to(root).as_posix()
    text = path.read_text()
    if "<<<" in text:
        problems.append(f"{name} launches with <<<>>>: use launch() of kernels/cuda/launch.h.")
    if re.search(r"\basm\b\s*(volatile)?\s*\(", text) and name not in ("kernels/cuda/ptx.h", "kernels/cuda/hopper.h") and not name.startswith("engine/base/"):
        if path.suffix in (".cu", ".cuh") or name.startswith("kernels/cuda/"):
            problems.append(f"{name} has inline PTX: move it to kernels/cuda/ptx.h or hopper.h.")
    if path.suffix == ".cu" and re.search(r"^\s*(extern\s+)?__shared__", text, re.M):
        for array in re.findall(r"__shared__\s+\w+\s+([^;]+);", text):
            for one in re.findall(r"(\w+)\[", array):
                if not re.search(rf"\w+\({one}\)", text):
                    problems.append(f"{name}: shared array {one} is not viewed through Shared<T>, so the emulator cannot check it.")


def functions(path):
    return set(re.findall(r"^(?:template[^\n]*\n)?(?:__device__ __forceinline__|inline|)\s*(?:void|float|uint32_t|uint64_t|Words)\s+(\w+)\(", path.read_text(), re.M))


count = 0
for header in ("ptx.h", "hopper.h"):
    real, twin = functions(root / "kernels/cuda" / header), functions(root / "tests/emulation" / header)
    missing = real - twin - {"shared_address", "pin"}
    if missing:
        problems.append(f"tests/emulation/{header} lacks the twins of {', '.join(sorted(missing))}.")
    count += len(real)
print("\n".join(problems) or f"{len(sources)} sources, {count} functions of ptx.h and hopper.h: in order")
sys.exit(bool(problems))
