#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The printed overlap of two pipeline stages on a slow link equals what their traces contain.

Arguments: the program and mpirun. Reads only the traces: a replay without the time of communication, written apart from
the program's, gives the exposed time.
"""

import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM, MPIRUN = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
FIRST, LAST = 4, 13  # traced steps; those between them are compared

RUN_FILE = """
[model]
family = "gpt2"
layers = 4
heads = 4
width = 128
context = 64
[data]
train = "text.txt"
tokenizer = "bytes"
[train]
steps = 14
micro_batch_size = 3
global_batch_size = 12
log_interval = 1
eval_batches = 1
[parallel]
pipeline = 2
[comm.emulate]
bandwidth = "BANDWIDTH"
[trace]
steps = [4, 13]
[output]
dir = "run"
"""


def merged(intervals):
    """The union of intervals, as disjoint intervals in order."""
    result = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([begin, end])
    return result


def length(intervals):
    return sum(end - begin for begin, end in merged(intervals))


def common(a, b):
    return sum(max(0, min(x[1], y[1]) - max(x[0], y[0])) for x in merged(a) for y in merged(b))


def rendezvous(rank, name):
    """Equal on the members of a communication."""
    operation, what = name.split(".", 1)
    if operation in ("send", "recv"):
        return (rank if operation == "send" else 1 - rank, what)
    return name


class Rank:
    """The works and waits of a trace, by channel and step. Times are in milliseconds."""

    def __init__(self, path):
        events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
        self.works, self.waits, self.awaited = {}, collections.defaultdict(list), collections.defaultdict(set)
        self.order = collections.defaultdict(list)  # by channel
        self.is_task, self.spans = {}, collections.defaultdict(list)
        for event in sorted(events, key=lambda e: e["ts"]):
            step, channel = event["args"]["step"], event["tid"]
            begin, end = event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3
            if event["cat"] == "wait":
                waiter, awaited = event["name"].split("_wait_")
                self.awaited[waiter].add(awaited)
                if channel == 0:
                    self.waits[step].append((begin, end, waiter, awaited))
                continue
            item = event["name"].split("/work")[0]
            key = (step, self.item_of(event))
            if channel == 0:
                self.spans[step].append((begin, end))
            if key in self.works:
                self.works[key][1] = end
            else:
                self.works[key] = [begin, end]
                self.order[channel].append(key)
                self.is_task[key] = event["cat"] == "communication" and "Collective name" in event["args"]

    @staticmethod
    def item_of(event):
        """Works are named item/work, and names of items may contain a slash and the micro-batch."""
        parts = event["name"].split("/")
        return "/".join(parts[:2]) if len(parts) > 1 and parts[1].isdigit() else parts[0]

    def begin(self, step):
        return min(begin for begin, _ in self.spans[step])

    def first(self, step):
        return next(key for key in self.order[0] if key[0] == step)


def replay(ranks):
    """When every item begins on an infinitely fast network: {(rank, key): begin}."""
    entries = collections.defaultdict(list)  # the members of a communication
    for r, rank in enumerate(ranks):
        for key in rank.works:
            if rank.is_task[key]:
                entries[(key[0], rendezvous(r, key[1]))].append((r, key))
    before = collections.defaultdict(set)
    for r, rank in enumerate(ranks):
        for channel in rank.order.values():
            for earlier, later in zip(channel, channel[1:]):
                before[(r, later)].add(earlier)
        for key, (begin, _) in rank.works.items():
            for awaited in rank.awaited[key[1]]:
                # The awaited item is in the same step, or in the step before if that one is later.
                for step in (key[0], key[0] - 1):
                    found = rank.works.get((step, awaited))
                    if found and found[0] < begin:
                        before[(r, key)].add((step, awaited))
                        break
    begins, ends = {}, {}
    everything = sorted(((times[0], True, r, key) for r, rank in enumerate(ranks) for key, times in rank.works.items()),
                        key=lambda e: e[0])
    pending = list(everything)
    while pending:
        left = []
        for entry in pending:
            measured, _, r, key = entry
            rank = ranks[r]
            if any((r, other) not in ends for other in before[(r, key)]):
                left.append(entry)
                continue
            begin = measured
            if before[(r, key)]:
                ready = max(rank.works[other][1] for other in before[(r, key)])
                begin = min(measured, max(ends[(r, other)] for other in before[(r, key)]) + max(0, measured - ready))
            begins[(r, key)] = begin
            if not rank.is_task[key]:
                ends[(r, key)] = begin + rank.works[key][1] - rank.works[key][0]
                continue
            members = entries[(key[0], rendezvous(r, key[1]))]
            if all(member in begins for member in members):
                for member in members:
                    ends[member] = max(begins[m] for m in members)
        assert len(left) < len(pending), "the traces contain a cycle"
        pending = left
    return begins


class TraceAgrees(unittest.TestCase):
    def compare(self, bandwidth):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "run.toml").write_text(RUN_FILE.replace("BANDWIDTH", bandwidth))
            (folder / "text.txt").write_text("To be, or not to be, that is the question. " * 2000)
            environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
            done = subprocess.run([MPIRUN, "--oversubscribe", "-np", "2", PROGRAM, "train", "run.toml"], cwd=folder,
                                  env=environment, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            ranks = [Rank(folder / "run" / "trace" / f"rank000{r}.json") for r in range(2)]
            lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        steps = range(FIRST + 1, LAST)
        begins = replay(ranks)
        sums = collections.Counter()
        for step in steps:
            members = collections.defaultdict(list)
            for r, rank in enumerate(ranks):
                for key, (begin, _) in rank.works.items():
                    if rank.is_task[key] and key[0] == step:
                        members[rendezvous(r, key[1])].append(begin)
            for r, rank in enumerate(ranks):
                begin, end = rank.begin(step), rank.begin(step + 1)
                tasks = [(max(members[rendezvous(r, key[1])]), times[1]) for key, times in rank.works.items()
                         if rank.is_task[key] and key[0] == step]
                sums["step_ms"] += (end - begin) / 2
                sums["compute_ms"] += length(rank.spans[step]) / 2
                sums["comm_ms"] += length(tasks) / 2
                sums["hidden_ms"] += common(tasks, rank.spans[step]) / 2
                sums["instant_ms"] += (begins[(r, rank.first(step + 1))] - begins[(r, rank.first(step))]) / 2
                sums["waits_ms"] += sum(min(wait[1], end) - max(wait[0], begin) for s in (step, step + 1)
                                        for wait in rank.waits[s] if wait[1] > begin and wait[0] < end
                                        and ("." in wait[3] and wait[3].split(".")[0] in
                                             ("send", "recv", "all_reduce"))) / 2
        printed = collections.Counter()
        for line in lines:
            if line["step"] in steps:
                for field in ("step_ms", "compute_ms", "comm_ms", "exposed_ms", "other_ms"):
                    printed[field] += line[field]
                printed["bubble_ms"] += line.get("bubble_ms", 0)
                printed["hidden_ms"] += line["hidden"] * line["comm_ms"]
                self.assertLessEqual(line["hidden"], 1)
                self.assertLessEqual(line.get("bound_ms", 0), line["step_ms"])
        exposed_ms = sums["step_ms"] - sums["instant_ms"]
        report = {k: (round(printed[k] / len(steps), 3), round(sums[k] / len(steps), 3)) for k in
                  ("step_ms", "compute_ms", "comm_ms", "hidden_ms")}
        report["exposed"] = (round(printed["exposed_ms"] / len(steps), 3), round(exposed_ms / len(steps), 3))
        report["waits"] = (round((printed["exposed_ms"] + printed["bubble_ms"]) / len(steps), 3),
                           round(sums["waits_ms"] / len(steps), 3))
        report["other"] = round(printed["other_ms"] / len(steps), 3)
        print(bandwidth, report)
        for field in ("step_ms", "compute_ms", "comm_ms", "hidden_ms"):
            self.assertAlmostEqual(printed[field], sums[field], delta=0.01 * sums["step_ms"], msg=f"{field}: {report}")
        self.assertAlmostEqual(printed["exposed_ms"] + printed["bubble_ms"], sums["waits_ms"],
                               delta=0.01 * sums["step_ms"], msg=str(report))
        # A gap in which a host was late is the host's, also where a faster network would have made it shorter.
        late_ms = printed["other_ms"]
        self.assertLessEqual(printed["exposed_ms"] - exposed_ms, 0.03 * sums["step_ms"], msg=str(report))
        self.assertLessEqual(exposed_ms - printed["exposed_ms"], late_ms + 0.03 * sums["step_ms"], msg=str(report))

    def test_a_link_of_400_mbit(self):
        self.compare("400Mbit/s")

    def test_a_link_of_100_mbit(self):
        self.compare("100Mbit/s")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
