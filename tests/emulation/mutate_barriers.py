# SPDX-License-Identifier: Apache-2.0
"""Changes every barrier, wait and commit of every kernel in turn and requires that a test fails.

usage: mutate_barriers.py SOURCE_ROOT [--sample] [--shard I/N] TEST...

A synchronization is a kernel, an operation and a line. The emulator records those that each case of the tests runs, and performs one change per run (Change in machine.h).
One that never stands behind an access or a wait of its thread cannot come early.
Cases that run the synchronization are repeated, fast ones first, until one fails. A change that no case sees means that the synchronization is redundant or that a test is missing:
both fail, except the changes of ORDER_NO_MEMORY and HARMLESS. A barrier in kernels/ that no case runs fails too.
--sample makes one change of each synchronization in the cases of SAMPLE. --shard 2/8 makes every eighth change, from the second on.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

CHANGES = {
    "__syncthreads": ["removed", "weakened", "early", "late"],
    "__syncwarp": ["removed", "early", "late"],
    "wait_group": ["removed", "weakened", "late"],
    "commit_group": ["removed"],
    "barrier_init_fence": ["removed"],
    "barrier_arrive": ["removed", "early"],
    "barrier_arrive_expect": ["removed", "weakened"],
    "barrier_wait": ["removed", "late"],
    "named_barrier_arrive": ["removed", "early"],
    "named_barrier_sync": ["removed", "weakened", "early", "late"],
    "fence_async": ["removed", "early", "late"],
    "wgmma_fence": ["removed"],
    "wgmma_commit": ["removed"],
    "wgmma_wait": ["removed", "weakened", "late"],
    "tma_store_commit": ["removed"],
    "tma_store_wait_read": ["removed", "weakened"],
    "tma_store_wait": ["removed", "weakened"],
    "wait_until": ["removed", "late"],
    "store_release": ["removed", "early"],
    "after_earlier_kernels": ["removed"],
    "wait_for_earlier_kernels": ["removed"],
}
CALLS = {r"\b" + operation + r"[(<]": operation for operation in CHANGES if not operation.endswith("_group")}
CALLS |= {r"copy_async_wait<": "wait_group", r"copy_async_commit\(": "commit_group"}
# Barriers that pace threads until the host's word, and barriers that keep the compiler from holding values in registers.
ORDER_NO_MEMORY = ("hold_kernel __syncthreads", "held_norm_backward_kernel __syncwarp")
# Changes that another synchronization makes harmless, as change, kernel and a part of the line.
HARMLESS = ()
LIMIT_S = 600
SAMPLE = ("attention: scores far apart", "attention, tensor cores: several steps", "attention, sm_90a: scores far apart", "attention, sm_90a: heads of 128", "sum of squares: the CPU's bits", "matmul: gradients", "cross-entropy: parts", "norms: forward", "hopper: a pipelined product")


def run(test, case, **environment):
    """The exit code, the output and seconds; no code if it did not end in time."""
    started = time.monotonic()
    # Commas and brackets of a name are operators of Catch's filters.
    command = [test, re.sub(r"([,\[\]\\])", r"\\\1", case), "--abort"]
    try:
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, errors="replace", timeout=LIMIT_S)
        text = " ".join((done.stdout + done.stderr).split())  # Catch wraps its lines
        return done.returncode, text, time.monotonic() - started
    except subprocess.TimeoutExpired:
        return None, "", time.monotonic() - started


def cases_of(test):
    """The names of the cases that run kernels, by the option of Catch2 2 or that of Catch2 3."""
    for options in (["--list-test-names-only"], ["--list-tests", "--verbosity", "quiet"]):
        listed = subprocess.run([test, *options, "~[cpu]"], capture_output=True, text=True).stdout
        if "Usage" not in listed and listed.strip():
            return [line.strip() for line in listed.splitlines() if line.strip()]
    sys.exit(f"mutate_barriers: {test} does not list its cases")


def recorded(test, case):
    """Seconds and synchronizations of a case."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "synchronizations"
        code, text, seconds = run(test, case, SLIPSTREAM_SYNCHRONIZATIONS=str(file))
        if code != 0:
            sys.exit(f"mutate_barriers: the case '{case}' of {test} fails without a mutation, or takes more than {LIMIT_S} s\n{text}")
        return seconds, file.read_text().splitlines() if file.exists() else []


def seen(site, change, cases):
    """How the change of a synchronization was seen; empty if it was not."""
    for _, test, case in sorted(cases):
        code, text, _ = run(test, case, SLIPSTREAM_MUTATION=f"{change} {site}")
        if code is None:
            return "hangs"
        if code != 0:
            for word in ("the kernels before this one", "with no store_release", "without a wait_until", "without a wait", "without a wgmma_wait", "without a fence_async", "without a wgmma_fence", "no barrier between", "no one wrote", "divergent", "deadlock", "is beyond the", "completes before", "twice", "it returns while", "without a barrier_init_fence", "out of bounds"):
                if word in text:
                    return word
            return "another result" if "[emulation]" not in text else "another error"
    return ""


def harmless(root, site, change):
    kernel, _, place = site.split()
    if (change, kernel) not in [entry[:2] for entry in HARMLESS]:
        return False
    file, number = place.rsplit(":", 1)
    line = (root / file).read_text().splitlines()[int(number) - 1]
    return any((change, kernel) == entry[:2] and entry[2] in line for entry in HARMLESS)


def in_sources(root):
    """Every barrier, wait and commit in the text of the kernels, as operation and place."""
    for path in sorted(root.glob("kernels/**/*.cu*")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for call, operation in CALLS.items():
                if re.search(call, line.split("//")[0]):
                    yield f"{operation} {path.relative_to(root)}:{number}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--shard", default="1/1", type=lambda text: tuple(map(int, text.split("/"))), metavar="I/N")
    parser.add_argument("tests", nargs="+")
    args = parser.parse_args()
    if len(args.shard) != 2 or not 1 <= args.shard[0] <= args.shard[1]:
        parser.error("--shard needs I/N with 1 <= I <= N, as in 2/8")
    cases, behind = collections.defaultdict(list), set()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        every = [(test, case) for test in args.tests for case in cases_of(test)]
        if args.sample:
            every = [(test, case) for test, case in every if case.startswith(SAMPLE)]
            if len(every) != len(SAMPLE):
                sys.exit(f"mutate_barriers: SAMPLE has {len(SAMPLE)} beginnings of names, and {len(every)} cases have them")
        for (test, case), (seconds, sites) in zip(every, pool.map(lambda pair: recorded(*pair), every)):
            for site in sites:
                if site.endswith(" behind"):
                    behind.add(site.removesuffix(" behind"))
                else:
                    cases[site].append((seconds, test, case))
        changes = {site: [c for c in CHANGES[site.split()[1]] if c != "early" or site in behind] for site in sorted(cases)}
        mutations = [(site, change) for site in changes for change in changes[site]]
        if args.sample:
            mutations = [(site, changes[site][i % len(changes[site])]) for i, site in enumerate(changes)]
        every_change = len(mutations)
        mutations = mutations[args.shard[0] - 1::args.shard[1]]
        print(f"{len(mutations)} of {every_change} changes of {len(cases)} barriers, waits and commits", flush=True)
        problems, counts = [], collections.Counter()
        for (site, change), how in zip(mutations, pool.map(lambda pair: seen(*pair, cases[pair[0]]), mutations)):
            print(f"{site:80} {change:9} {how or 'not seen'}", flush=True)
            counts[how] += 1
            if bool(how) == (site.startswith(ORDER_NO_MEMORY) or harmless(args.root, site, change)):
                problems.append(f"{site}, {change}: {how or 'no test sees it. Delete the synchronization, or add a test.'}")
    if not args.sample:
        run_somewhere = {site.split(" ", 1)[1] for site in cases}
        # scripts/sass_budget.py requires the wait of every kernel, also of those that no case runs.
        problems += [f"{site}: no test runs it" for site in in_sources(args.root) if site not in run_somewhere and "earlier_kernels " not in site]
    print("\n".join(problems))
    verdicts = ", ".join(f"{n} {how or 'not seen'}" for how, n in counts.most_common())
    print(f"COUNTED {len(mutations)} changes of {len(cases)} barriers, waits and commits: {verdicts}")
    return 1 if problems or not mutations else 0


if __name__ == "__main__":
    sys.exit(main())
