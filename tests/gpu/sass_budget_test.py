# SPDX-License-Identifier: Apache-2.0
"""scripts/sass_budget.py with a stand-in for nvcc that writes a kernel of known instructions: verdicts, sentences, codes and --update.

usage: sass_budget_test.py SOURCE_ROOT
"""
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / "tests"))
from checks import all_hold, check  # noqa: E402

script = pathlib.Path(sys.argv[1]) / "scripts" / "sass_budget.py"
SOURCE = "kernels/attention/attention_mma_forward.cu"
# Code is: a wait for earlier kernels (BEGIN), an HMMA, a loop of two HMMA, SPARE additions and the branch back, EXIT, a branch to itself, padding. With
# NESTED, six additions and a branch to the beginning stand before EXIT. With MEMORY, the three HMMA are an LDG of 16 bytes, one of 4 and a STG of 16 ("LDG.E.128" has 0x1d00 in its upper half),
# and the branch waits for scoreboard 0; with MEMORY=stores, the second is a STG of 16, too. With LOOP, its instructions stand before the loop's additions. The branches are as nvdisasm prints them: a branch to itself is 0xfffffffc00fc7947 for sm_90 and 0xfffffff000007947 for sm_80.
NVCC = """#!/usr/bin/env python3
import os, struct, sys
if "--version" in sys.argv:
    sys.exit(print("Cuda compilation tools, release " + os.environ.get("RELEASE", "13.0") + ", V1"))
spare, registers = int(os.environ.get("SPARE", 1)), os.environ.get("REGISTERS", "40")
old = any("sm_80" in a for a in sys.argv)
branch = lambda offset: 0x7947 | ((offset & 0xffffffff) << 32 if old else (offset // 4 & 0xff) << 16 | (offset // 1024 & 0x3fffffff) << 34)
work = [(0x7981, 0x1d00), (0x7986, 0x1d00) if os.environ.get("MEMORY") == "stores" else (0x7981, 0x1900), (0x7986, 0x1d00)] if "MEMORY" in os.environ else [(0x23c, 0)] * 3
nested = [0x7210] * 6 + [branch(-16 * (spare + 11))] if "NESTED" in os.environ else []
inner = [tuple(int(half, 16) for half in pair.split(":")) for pair in os.environ.get("LOOP", "").split()]
back = -16 * (spare + len(inner) + 3)
begin = [(int(word, 16), 0) for word in os.environ.get("BEGIN", "782e").split()]
words = begin + work + inner + [(0x7210, 0)] * spare + [(branch(back), (1 << 52) * ("MEMORY" in os.environ))] + [(w, 0) for w in nested + [0x794d, branch(-16), 0x7918, 0x7918]]
code = b"".join(struct.pack("<QQ", *w) for w in words)
name = b".text._Z5thingILi64EEvPf"
strings = b"\\0" + name + b"\\0"
header = 64 + len(strings) + len(code)
host, elf = b"\\x7fELF" + bytes(60), bytearray(64)  # an object holds the cubin as it is
elf[:4] = host[:4]
struct.pack_into("<Q", elf, 40, header)
struct.pack_into("<HHH", elf, 58, 64, 2, 0)
section = lambda at, offset, size: struct.pack("<IIQQQQ", at, 0, 0, 0, offset, size) + bytes(24)
open(sys.argv[sys.argv.index("-o") + 1], "wb").write(host + bytes(elf) + strings + code + section(0, 64, len(strings)) + section(1, 64 + len(strings), len(code)))
print("ptxas info    : Compiling entry function '_Z5thingILi64EEvPf' for 'sm_90a'\\n    8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\\n"
      "ptxas info    : Used " + registers + " registers, used 1 barriers", file=sys.stderr)
"""
HEAD = "# CUDA 13.0\nsource,architecture,kernel,registers,spill_bytes,instructions,loop_instructions,loop_work,bytes_in_flight,beside_products\n"

with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    nvcc, table = folder / "nvcc", folder / "kernels/sass_budget.csv"
    (folder / SOURCE).parent.mkdir(parents=True)
    (folder / SOURCE).touch()
    nvcc.write_text(NVCC)
    nvcc.chmod(0o755)

    def run(rows, *args, **env):
        if rows is not None:
            table.write_text(HEAD + "".join(row + "\n" for row in rows))
        ran = subprocess.run([sys.executable, script, "--nvcc", nvcc, "--root", folder, *args], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **env})
        return ran.returncode, ran.stdout + ran.stderr

    def row(arch, *numbers, kernel="thing<64>", source=SOURCE, in_flight=0, beside=0):
        return ",".join([source, arch, kernel, *map(str, numbers), str(in_flight), str(beside)])

    for arch in ("80", "90a"):  # 3 HMMA, 1 addition, branch, EXIT, branch to itself; the loop holds the last 2 HMMA
        check(run([row(arch, 40, 12, 8, 4, 2)])[0] == 0, run(None))
        for numbers, sentence in {(39, 12, 8, 4, 2): "40 registers, budget 39", (40, 11, 8, 4, 2): "12 spilled bytes, budget 11", (40, 12, 7, 4, 2): "8 instructions, budget 7",
                                  (40, 12, 8, 3, 1): "4 instructions in the main loop, budget 3",
                                  (40, 12, 8, 4, 3): "tensor instructions or 16-byte accesses are 2 of 4 in the main loop (50.0%), budget 3 of 4 (75.0%)"}.items():
            code, printed = run([row(arch, *numbers)])
            check(code == 1 and f"thing<64> of {SOURCE} on sm_{arch} is worse than its budget: {sentence}." in printed, code, printed)
        # 40 registers leave room for 48 warps, 32 lanes each, which load 4 bytes in the loop.
        check(run([row(arch, 40, 12, 8, 4, 1, in_flight=48 * 32 * 4)], MEMORY="1")[0] == 0, run(None, MEMORY="1"))
        # A loop without loads: those of the kernel count.
        check(run([row(arch, 40, 12, 8, 4, 2, in_flight=48 * 32 * 16)], MEMORY="stores")[0] == 0, run(None, MEMORY="stores"))
        # The inner loop has 2 HMMA in 4 instructions, the outer one 3 in 12. With 20 additions: 2 in 23 and 3 in 31.
        check(run([row(arch, 40, 12, 15, 4, 2)], NESTED="1")[0] == 0, run(None, NESTED="1"))
        check(run([row(arch, 40, 12, 34, 31, 3)], NESTED="1", SPARE="20")[0] == 0, run(None, NESTED="1", SPARE="20"))
        code, printed = run([row(arch, 40, 12, 8, 4, 2)], MEMORY="1")
        check(code == 1 and "tensor instructions or 16-byte accesses are 1 of 4 in the main loop (25.0%), budget 2 of 4 (50.0%)" in printed, printed)
        # Instructions of a loop, and the bytes of a lane in flight: two loads of 16 bytes, of which the second outlives the wait that the third follows;
        # copies of 16 bytes in groups, one and none of which is left by the wait; 32 KiB of TMA, announced by a register and not by none.
        load, copy, group, wait, kept = "7981:{:x}", "7fae:1c00", "79af:0", "{:x}:0", 1 << 38 | 0x791a
        into, awaits = lambda scoreboard, size: load.format(scoreboard << 46 | size << 9), lambda *scoreboards: f"7210:{sum(1 << 52 + s for s in scoreboards):x}"
        for inner, in_flight in (([into(1, 6), into(2, 6), awaits(1), into(1, 4), awaits(1, 2)], 48 * 32 * 32), ([into(1, 6), awaits(1), into(2, 6), awaits(2)], 48 * 32 * 16),
                                 ([copy, group, wait.format(kept)], 48 * 32 * 32), ([copy, group, wait.format(0x791a)], 48 * 32 * 16),
                                 (["800000037424:0", "3000379a7:0", "ff000379a7:0"], 0x8000), (["800000037802:0", "3000379a7:0"], 0x8000)):
            numbers = (40, 12, 8 + len(inner), 4 + len(inner), 2)
            check(run([row(arch, *numbers, in_flight=in_flight)], LOOP=" ".join(inner)) == (0, "1 kernels compiled, 0 worse or without a match, 0 better than their budget\n"), inner, run(None, LOOP=" ".join(inner)))
            code, printed = run([row(arch, *numbers, in_flight=in_flight + 1)], LOOP=" ".join(inner))
            check(code == 1 and f"is worse than its budget: {in_flight} bytes in flight, budget {in_flight + 1}." in printed, printed)
        # An HGMMA, the wait that leaves one group, an exponential, the wait for all, an exponential and a reciprocal; then the two waits swapped.
        first, all_, exponential, reciprocal = "79c5:10100", "79c5:10000", "7308:800", "7308:1000"
        for waits, beside in (((first, all_), 1), ((all_, first), 0)):
            inner, numbers = " ".join(["9f0:0", waits[0], exponential, waits[1], exponential, reciprocal]), (40, 12, 14, 10, 3)
            check(run([row(arch, *numbers, beside=beside)], LOOP=inner)[0] == 0, inner, run(None, LOOP=inner))
            code, printed = run([row(arch, *numbers, beside=beside + 1)], LOOP=inner)
            check(code == 1 and f"is worse than its budget: {beside} exponentials beside products, budget {beside + 1}." in printed, printed)
        check("an ARRIVE announces bytes that no MOV gives its register" in run([row(arch, 40, 12, 9, 5, 2)], LOOP="3000379a7:0")[1])
    # Where a kernel waits for those before it: code for sm_80 cannot. An LDG and a PREEXIT may come after it only.
    for arch, begin, sentence in (("80", "7210", ""), ("90a", "782e", ""), ("90a", "7210", "it never waits for the kernels before it"), ("90a", "782e 7981", ""),
                                  ("90a", "7981 782e", "an access to global memory comes before its wait"), ("90a", "782d 782e", "it lets later kernels begin before its wait"),
                                  ("90a", "794d 782e", "it ends before its wait"), ("90a", "782e 782d", "")):
        code, printed = run([row(arch, 40, 12, 9, 4, 2, in_flight=0)], BEGIN=begin)
        check(code == bool(sentence) and ("begins wrong: " + sentence in printed) == bool(sentence), arch, begin, printed)
    budget = [row("90a", 40, 12, 8, 4, 2)]
    code, printed = run(budget, SPARE="5", REGISTERS="41")
    check(code == 1 and "41 registers, budget 40; 12 instructions, budget 8; 8 instructions in the main loop, budget 4" in printed, printed)
    code, printed = run(budget + [row("90a", 1, 0, 1, 0, 0, kernel="gone")])
    check(code == 1 and f"gone of {SOURCE} on sm_90a has a budget and no longer exists" in printed, printed)
    code, printed = run(budget + [row("90a", 1, 0, 1, 0, 0, source="kernels/gone.cu")])
    check(code == 1 and "thing<64> of kernels/gone.cu on sm_90a has a budget and no longer exists" in printed, printed)
    code, printed = run([row("90a", 40, 12, 8, 4, 2, kernel="other")])
    check(code == 1 and "thing<64> of " + SOURCE + " on sm_90a has no budget" in printed, printed)

    (folder / "kernels/new.cu").touch()
    code, printed = run(budget)
    check(code == 1 and "thing<64> of kernels/new.cu on sm_90a has no budget: add it with scripts/sass_budget.py --update." in printed, printed)
    (folder / "kernels/new.cu").unlink()

    check(run([row("90a", 44, 12, 10, 6, 2)])[1].count("1 better than their budget") == 1)
    check(table.read_text() == HEAD + row("90a", 44, 12, 10, 6, 2) + "\n", "a comparison wrote the table")
    check(run(None, "--update")[0] == 0 and table.read_text() == HEAD + row("90a", 40, 12, 8, 4, 2) + "\n", table.read_text())
    code, printed = run(None, "--update", SPARE="2")
    check(code == 1 and table.read_text() == HEAD + row("90a", 40, 12, 8, 4, 2) + "\n", "--update raised a budget", printed)

    check(run(budget, RELEASE="12.9") == (77, f"SKIPPED: the budgets count the code of CUDA 13.0; {nvcc} is CUDA 12.9\n"))
    check(run(budget, "86") == (77, "SKIPPED: sass_budget.csv has no budget for 86; it has 90a\n"))
    check(run(budget, "86", "90a")[0] == 0)
    table.write_text("source\n")
    check("must name the release" in run(None)[1])
all_hold("sass_budget.py")
