#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every kernel and compares its machine code with the budgets in kernels/sass_budget.csv.

usage: scripts/sass_budget.py [--update] [--nvcc PATH] [--root DIR] [ARCHITECTURE...]

A row is a kernel on an architecture: registers at the launch (setmaxnreg moves them between warpgroups later), spilled
bytes (stores and loads), instructions in all and in the main loop, and the work of that loop: its tensor instructions
(HMMA, HGMMA), or, in kernels without them, its accesses of 16 bytes of global memory. The main loop has the most work
per instruction among the loops with at least a third of the most work that any loop has: a persistent kernel's loop over
blocks also holds the first and the last step of its inner loop, and masked steps have a loop of their own. Kernels without work have no main loop.
Bytes in flight are the most bytes that the warps of a multiprocessor have requested from global memory and not waited
for, at any instruction of the loop of loads, which is chosen like the main loop, by bytes and from a half of the most; without such a loop, of the
kernel. All lanes load, and as many warps run as the registers allow (shared memory may allow fewer). A wait is an
instruction that waits for the scoreboard of a load, or for groups of copies to shared memory. TMA loads have no size in
the code: the bytes that one pass of the loop announces at its barriers count once, for one thread block.
Exponentials beside products are those of the main loop that stand after a product of a warpgroup and before the wait for
all products: the softmax of attention hides there, unless ptxas moves the wait ahead.
From sm_90 on every kernel waits for the kernels before it in its stream (ACQBULK) before it accesses global memory, ends,
or lets the next kernel begin (PREEXIT); one that does not is worse, too.
More registers, spills or instructions than the budget, a smaller share of work, fewer bytes in flight or fewer
exponentials beside products are worse: code 1. So are a row without a kernel and a kernel without a row.
--update tightens the budgets of kernels that got better and adds rows of new kernels. A budget is loosened, and the row
of a deleted kernel removed, by hand.
Counts depend on the compiler: another CUDA release than the table's, or no nvcc, is skipped with the reason (code 77),
as are architectures without a budget.
"""
import argparse
import concurrent.futures
import csv
import dataclasses
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

COLUMNS = ["source", "architecture", "kernel", "registers", "spill_bytes", "instructions", "loop_instructions", "loop_work",
           "bytes_in_flight", "beside_products"]
ELF = b"\x7fELF"
# The low 12 bits of an instruction. An ARRIVE with a register announces the bytes of TMA loads.
BRANCH, NO_OPERATION, MOVES, ARRIVE = 0x947, 0x918, {0x424, 0x802}, 0x9A7
TENSOR, LOAD, STORE, COPY, END_OF_GROUP, WAIT_FOR_GROUPS = {0x23C, 0x9F0, 0xDF0}, 0x981, 0x986, 0xFAE, 0x9AF, 0x91A  # LDG, STG, LDGSTS, LDGDEPBAR, DEPBAR
PRODUCTS, WAIT_FOR_PRODUCTS, FUNCTION, EXPONENTIAL = {0x9F0, 0xDF0}, 0x9C5, 0x308, 8  # HGMMA, WARPGROUP.DEPBAR, MUFU, its EX2
EXIT, WAIT_FOR_KERNELS, LET_KERNELS_BEGIN = 0x94D, 0x82E, 0x82D
# The low 9 bits, which hold no form of the operands: LD, LDG, ST, STG, REDG, LDGSTS, ATOMG, UTMALDG, UTMASTG, UTMAREDG,
# UBLKCP, UBLKRED.
GLOBAL = {0x180, 0x181, 0x185, 0x186, 0x18E, 0x1A6, 0x1AE, 0x1A3, 0x1A8, 0x1A9, 0x1B4, 0x1B5, 0x1B6, 0x1BA, 0x1BB}
LANES, NO_REGISTER, NO_SCOREBOARD = 32, 0xFF, 7


@dataclasses.dataclass
class Counts:
    registers: int
    spill_bytes: int
    instructions: int
    loop_instructions: int
    loop_work: int
    bytes_in_flight: int
    beside_products: int

    def work_share(self):
        return self.loop_work / self.loop_instructions if self.loop_instructions else 0.0

    def worse_than(self, budget):
        """The counts that are worse than `budget`, in words."""
        units = {"registers": "registers", "spill_bytes": "spilled bytes", "instructions": "instructions", "loop_instructions": "instructions in the main loop"}
        words = [f"{getattr(self, field)} {unit}, budget {getattr(budget, field)}" for field, unit in units.items() if getattr(self, field) > getattr(budget, field)]
        if self.work_share() < budget.work_share():
            words.append(f"tensor instructions or 16-byte accesses are {self.loop_work} of {self.loop_instructions} in the main loop ({self.work_share():.1%}), "
                         f"budget {budget.loop_work} of {budget.loop_instructions} ({budget.work_share():.1%})")
        if self.bytes_in_flight < budget.bytes_in_flight:
            words.append(f"{self.bytes_in_flight} bytes in flight, budget {budget.bytes_in_flight}")
        if self.beside_products < budget.beside_products:
            words.append(f"{self.beside_products} exponentials beside products, budget {budget.beside_products}")
        return "; ".join(words)


def branch_offset(word, architecture):
    """Bytes from the next instruction to the target: the low 64 bits of a BRA hold them from bit 32 on before sm_90, later divided by 4 in bits 16-23 and 34-63."""
    if architecture < 90:
        return struct.unpack("<i", struct.pack("<I", word >> 32))[0]
    high = word >> 34
    return 4 * ((high - (1 << 30 if high >> 29 else 0)) * 256 + (word >> 16 & 0xFF))


def size_of(high):
    """Bytes of an access of a lane: bits 73-75 of its instruction."""
    return (1, 1, 2, 2, 4, 8, 16, 16)[high >> 9 & 7]


def announced(pairs, i):
    """Bytes of TMA loads that instruction `i` announces: the immediate last moved to its register."""
    word = pairs[i][0]
    register = word >> 32 & 0xFF
    if word & 0xFFF != ARRIVE or register == NO_REGISTER:
        return 0
    for before, _ in reversed(pairs[:i]):
        if before & 0xFFF in MOVES and before >> 16 & 0xFF == register:
            return before >> 32
    raise SystemExit("sass_budget: an ARRIVE announces bytes that no MOV gives its register. Extend announced() for this compiler.")


def densest(loops, weights, part):
    """The first and last instruction of the loop with the most weight per instruction, among those with a `part`-th of the most; none without weight."""
    weighed = [(sum(weights[begin:end + 1]), begin, end) for begin, end in loops]
    most = max((weight for weight, *_ in weighed), default=0)
    return max((loop for loop in weighed if most and part * loop[0] >= most), key=lambda loop: loop[0] / (loop[2] + 1 - loop[1]), default=None)


def most_in_flight(code, is_loop):
    """The most bytes that a lane has requested and not waited for; a loop runs often enough to fill every group."""
    loads, groups, group, most = {}, [], 0, 0  # bytes by scoreboard, of groups in order, of the group not yet ended
    scoreboard_of_groups = NO_SCOREBOARD
    turns = 2 + max([word >> 38 & 0x3F for word, _ in code if word & 0xFFF == WAIT_FOR_GROUPS], default=0)
    for word, high in code * (turns if is_loop else 1):
        operation, written, awaited = word & 0xFFF, high >> 46 & 7, high >> 52 & 0x3F
        for scoreboard in [scoreboard for scoreboard in loads if awaited >> scoreboard & 1]:
            del loads[scoreboard]
        if operation == WAIT_FOR_GROUPS:
            groups = groups[max(0, len(groups) - (word >> 38 & 0x3F)):]
        elif awaited >> scoreboard_of_groups & 1:
            groups = []
        if operation == LOAD:
            loads[written] = loads.get(written, 0) + size_of(high)
        elif operation == COPY:
            group += size_of(high)
        elif operation == END_OF_GROUP:
            groups, group, scoreboard_of_groups = [*groups, group], 0, written
        most = max(most, sum(loads.values()) + sum(groups) + group)
    return most


def begins_wrong(operations):
    """The fault in the beginning of a kernel that may begin before the kernels before it have ended; empty if there is none."""
    if WAIT_FOR_KERNELS not in operations:
        return "it never waits for the kernels before it: its first statement must be ptx::after_earlier_kernels"
    for operation in operations[:operations.index(WAIT_FOR_KERNELS)]:
        if operation & 0x1FF in GLOBAL:
            return "an access to global memory comes before its wait for the kernels before it"
        if operation in {EXIT, LET_KERNELS_BEGIN}:
            return f"it {'ends' if operation == EXIT else 'lets later kernels begin'} before its wait for the kernels before it"
    return ""


def exponentials_beside(code):
    """Exponentials between a product of a warpgroup and the wait for all products."""
    in_flight, count = False, 0
    for word, high in code:
        operation = word & 0xFFF
        if operation in PRODUCTS:
            in_flight = True
        elif operation == WAIT_FOR_PRODUCTS and not high >> 8 & 7:  # of groups that may remain
            in_flight = False
        count += in_flight and operation == FUNCTION and high >> 8 & 0x3F == EXPONENTIAL
    return count


def counted(code, architecture, registers):
    """Instructions, of the main loop instructions and work, bytes in flight and exponentials beside products of a kernel's code: 16 bytes
    an instruction."""
    pairs = list(struct.iter_unpack("<QQ", code))
    while pairs and pairs[-1][0] & 0xFFF == NO_OPERATION:  # padding
        pairs.pop()
    operations = [word & 0xFFF for word, _ in pairs]
    work = [operation in TENSOR for operation in operations]
    if not any(work):
        work = [operation in {LOAD, STORE, COPY} and size_of(high) == 16 for operation, (_, high) in zip(operations, pairs)]
    loops = []
    for i, (word, _) in enumerate(pairs):
        target = i + 1 + branch_offset(word, architecture) // 16
        if word & 0xFFF == BRANCH and 0 <= target < i:
            loops.append((target, i))
    held, begin, end = densest(loops, work, 3) or (0, 0, -1)
    tiles = [announced(pairs, i) for i in range(len(pairs))]
    loads = [tile + (LANES * size_of(high) if operation in {LOAD, COPY} else 0) for tile, operation, (_, high) in zip(tiles, operations, pairs)]
    loop = densest(loops, loads, 2)
    first, last = loop[1:] if loop else (0, len(pairs) - 1)
    # A quarter of a multiprocessor has 16384 registers, allocates 256 at a time, and has room for 16 warps.
    warps = 4 * min(16, 16384 // (-(-registers // 8) * 8 * LANES))
    in_flight = warps * LANES * most_in_flight(pairs[first:last + 1], loop is not None) + sum(tiles[first:last + 1])
    return len(pairs), end + 1 - begin, held, in_flight, exponentials_beside(pairs[begin:end + 1])


def code_of(elf):
    """The code of every kernel of the device code in an object file, by mangled name: the ELF file inside the ELF file, not compressed."""
    cubin = elf[elf.index(ELF, len(ELF)):]
    begin, size, count, names = struct.unpack_from("<Q", cubin, 40)[0], *struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, begin + i * size) for i in range(count)]
    strings = sections[names][4]
    code = {}
    for name_at, _, _, _, offset, length in sections:
        name = cubin[strings + name_at:cubin.index(b"\0", strings + name_at)].decode()
        if name.startswith(".text."):
            code[name[len(".text."):]] = cubin[offset:offset + length]
    return code


def short_names(mangled):
    """norm_kernel<64, true> of its mangled name: without namespaces, the type it returns and its parameters."""
    lines = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout.splitlines()
    short = {}
    for name, line in zip(mangled, lines):
        line = re.sub(r"^void ", "", line).replace("(anonymous namespace)::", "").replace("slipstream::kernels::", "").replace("slipstream::", "")
        line = re.sub(r"\((bool|int)\)", "", line)
        depth, end = 0, len(line)
        for i, c in enumerate(line):
            depth += (c == "<") - (c == ">")
            if c == "(" and depth == 0:
                end = i
                break
        short[name] = line[:end]
    return short


def compiled(nvcc, root, source, architecture, folder):
    """Counts of every kernel of `source` and how it begins wrong, by short name; the flags are those of meson.build that change code."""
    # ccache keeps objects with the output of ptxas, but no cubins. Relative paths hit in every checkout.
    built = folder / f"{source.replace('/', '_')}.{architecture}.o"
    command = [*nvcc, "-c", "-std=c++20", "-O3", "-Xptxas=-v", "-Xfatbin=--compress=false", "-Xcompiler=-w", "-I.", "-Ikernels/cuda",
               f"-gencode=arch=compute_{architecture},code=sm_{architecture}", "-o", str(built), source]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=root, env={**os.environ, "CCACHE_NOHASHDIR": "1"})
    if ran.returncode:
        raise SystemExit(f"sass_budget: nvcc does not compile {source} for sm_{architecture}:\n{ran.stderr}")
    resources = {}
    for block in re.split(r"Compiling entry function '", ran.stderr)[1:]:
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", block)
        resources[block[:block.index("'")]] = int(re.search(r"Used (\d+) registers", block)[1]), int(spills[1]) + int(spills[2])
    code = code_of(built.read_bytes())
    names = short_names(list(resources))
    number = int(re.match(r"\d+", architecture)[0])
    counts = {names[mangled]: Counts(*of, *counted(code[mangled], number, of[0])) for mangled, of in resources.items()}
    return counts, {names[mangled]: begins_wrong([word & 0xFFF for word, _ in struct.iter_unpack("<QQ", code[mangled])]) for mangled in resources if number >= 90}


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--nvcc", help="without ccache; default: the nvcc in PATH or /usr/local/cuda/bin, with ccache where it is installed")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent, help="of a tree with kernels/**/*.cu and kernels/sass_budget.csv")
    parser.add_argument("architectures", nargs="*")
    args = parser.parse_args()

    nvcc = args.nvcc or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    ccache = None if args.nvcc else shutil.which("ccache")
    table = args.root / "kernels" / "sass_budget.csv"
    lines = table.read_text().splitlines(keepends=True)
    comment = lines[0]
    release = re.search(r"CUDA (\d+\.\d+)", comment)
    if not release:
        sys.exit(f"sass_budget: the first line of {table} must name the release whose code it counts, as in '# CUDA 13.0'")
    budgets = {(row["source"], row["architecture"], row["kernel"]): Counts(*(int(row[field]) for field in COLUMNS[3:])) for row in csv.DictReader(lines[1:])}
    if not shutil.which(nvcc):
        print("SKIPPED: no nvcc in PATH or /usr/local/cuda/bin")
        sys.exit(77)
    present = re.search(r"release (\d+\.\d+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout)[1]
    if present != release[1]:
        print(f"SKIPPED: the budgets count the code of CUDA {release[1]}; {nvcc} is CUDA {present}")
        sys.exit(77)

    known = sorted({architecture for _, architecture, _ in budgets})
    architectures = [architecture for architecture in known if not args.architectures or architecture in args.architectures]
    if not architectures:
        print(f"SKIPPED: {table.name} has no budget for {' '.join(args.architectures)}; it has {', '.join(known) or 'none'}")
        sys.exit(77)
    pairs = [(str(path.relative_to(args.root)), architecture) for path in sorted(args.root.glob("kernels/**/*.cu")) for architecture in architectures]
    problems, better, found = [], 0, {}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for pair, kernels in zip(pairs, pool.map(lambda pair: compiled([ccache, nvcc] if ccache else [nvcc], args.root, *pair, pathlib.Path(folder)), pairs)):
            found |= {(*pair, kernel): counts for kernel, counts in kernels[0].items()}
            problems += [f"{kernel} of {pair[0]} on sm_{pair[1]} begins wrong: {how}." for kernel, how in kernels[1].items() if how]
    for key in sorted(budgets.keys() | found.keys()):
        source, architecture, kernel = key
        if architecture not in architectures:
            continue
        where = f"{kernel} of {source} on sm_{architecture}"
        if key not in found:
            problems.append(f"{where} has a budget and no longer exists: remove its row from {table.name}.")
        elif key not in budgets:
            if args.update:
                budgets[key], better = found[key], better + 1
            else:
                problems.append(f"{where} has no budget: add it with scripts/sass_budget.py --update.")
        elif worse := found[key].worse_than(budgets[key]):
            problems.append(f"{where} is worse than its budget: {worse}.")
        elif found[key] != budgets[key]:
            better += 1
            if args.update:
                budgets[key] = found[key]
    if args.update and better:
        with table.open("w", newline="") as file:
            file.write(comment)
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows([*key, *dataclasses.astuple(budgets[key])] for key in sorted(budgets))
    print("\n".join(problems), end="\n" if problems else "")
    hint = "" if args.update or not better else ": tighten them with --update"
    print(f"{len(found)} kernels compiled, {len(problems)} worse or without a match, {better} {'written' if args.update else 'better than their budget'}{hint}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
