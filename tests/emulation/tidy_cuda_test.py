# SPDX-License-Identifier: Apache-2.0
"""CUDA sources launch through launch() and keep inline PTX in two headers, whose twins have the same functions. Every rule of the emulated device has a source in sources.h."""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
problems = []
sources = [p for folder in ("engine", "kernels", "comm", "models", "trainer") for p in (root / folder).rglob("*") if p.suffix in (".cu", ".cuh", ".h", ".cpp")]
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
# An error of the emulated device, or a refusal of its libraries, is a rule; its first argument is the rule's source.
MANUALS = ("PTX ISA, ", "CUDA C++ Programming Guide, ", "CUDA driver API, ", "Compute Sanitizer, ", "cuBLAS, ", "a limit of the emulator")
RULE = re.compile(r"\b(?:fail(?:_quietly|_race|_async)?|refuse|throw Error)\(\s*([^;]{0,60})")
emulator = root / "tests/emulation"
table = dict(re.findall(r'constexpr Source (k\w+)\{"([^"]*)"\};', (emulator / "sources.h").read_text()))
rules, named = 0, set()
for name, text in table.items():
    if not (text.startswith(MANUALS) or (root / text).is_file()):
        problems.append(f"tests/emulation/sources.h: {name} names no manual and no file: {text}.")
for path in sorted(emulator.glob("*.cpp")) + sorted(emulator.glob("*.h")):
    if path.stem.endswith("_test") or path.name == "hopper_errors.h":
        continue
    text = re.sub("//.*", "", path.read_text())
    named |= set(re.findall(r"source::(k\w+)", text))
    for rule in RULE.finditer(text):
        first = rule[1]
        if re.match(r"(const )?(slipstream::emulation::)?Source&|source,", first):
            continue  # a declaration, or the source of the caller
        rules += 1
        if not re.match(r"(emulation::)?source::k\w+,|rule_of_wait\(\),", first):
            problems.append(f"tests/emulation/{path.name}:{text.count(chr(10), 0, rule.start()) + 1} is a rule without a source of sources.h.")
problems += [f"tests/emulation/sources.h: no rule has the source {name}." for name in sorted(table.keys() - named)]
print("\n".join(problems) or f"{len(sources)} sources, {count} functions of ptx.h and hopper.h, {rules} rules of the emulated device: in order")
sys.exit(bool(problems))
