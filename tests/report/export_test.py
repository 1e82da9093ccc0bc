#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exported traces: arrows join a gradient, its bucket and its update; clocks that differ are aligned; and
HolisticTraceAnalysis finds the overlap that metrics.jsonl has.

Arguments: the program, mpirun and scripts/export_traces.py.
"""

import collections
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM, MPIRUN, EXPORT = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], pathlib.Path(sys.argv[3]).resolve()
FIRST, LAST = 6, 17  # traced steps

RUN_FILE = f"""
[model]
family = "gpt2"
layers = 4
heads = 2
width = 128
context = 64
[data]
train = "text.txt"
tokenizer = "bytes"
[train]
steps = 18
micro_batch_size = 4
global_batch_size = 8
log_interval = 18
eval_interval = 0
eval_batches = 1
[overlap]
bucket_size = "256KiB"
first_bucket_size = "64KiB"
[comm.emulate]
bandwidth = "1Gbit/s"
[trace]
steps = [{FIRST}, {LAST}]
[output]
dir = "run"
"""


class Exports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        (cls.folder / "run.toml").write_text(RUN_FILE)
        (cls.folder / "text.txt").write_text("To be, or not to be, that is the question. " * 2000)
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        done = subprocess.run([MPIRUN, "--oversubscribe", "-np", "2", PROGRAM, "train", "run.toml"], cwd=cls.folder,
                              env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def export(self, run, code=0):
        out = self.folder / f"out-{run.name}"
        done = subprocess.run([sys.executable, EXPORT, run, out], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return out, done.stdout + done.stderr

    @staticmethod
    def communication(path):
        """Length of the union of a rank's communication."""
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in json.loads(path.read_text())["traceEvents"]
                       if e["ph"] == "X" and e["name"].startswith("nccl"))
        total, end = 0.0, float("-inf")
        for begin, until in spans:
            total += max(0.0, until - max(begin, end))
            end = max(end, until)
        return total

    def test_arrows_join_gradient_bucket_and_update(self):
        out, _ = self.export(self.folder / "run")
        events = json.loads((out / "merged.json").read_text())["traceEvents"]
        names = {(e["pid"], e["name"]): e["args"] for e in events if e["ph"] == "M"}
        self.assertEqual({rank: names[(rank, "process_name")]["name"] for rank in (0, 1)}, {0: "rank 0", 1: "rank 1"})
        slices = collections.defaultdict(list)
        for event in events:
            if event["ph"] == "X":
                slices[(event["pid"], event["tid"])].append(event)

        def at(flow):
            """The slice that a viewer attaches the end of an arrow to."""
            inside = [e for e in slices[(flow["pid"], flow["tid"])] if e["cat"] != "wait"
                      and e["ts"] - 1e-6 <= flow["ts"] <= e["ts"] + e["dur"] + 1e-6]
            self.assertTrue(inside, flow)
            return max(inside, key=lambda e: e["ts"])["args"]["item"]

        starts = {e["id"]: e for e in events if e["ph"] == "s"}
        ends = {e["id"]: e for e in events if e["ph"] == "f"}
        self.assertEqual(starts.keys(), ends.keys())
        self.assertGreater(len(starts), 0)
        into, out_of = collections.Counter(), collections.Counter()
        for number, start in starts.items():
            self.assertLessEqual(start["ts"], ends[number]["ts"] + 0.003)
            into[at(ends[number])] += 1
            out_of[at(start)] += 1
        buckets = {e["args"]["item"] for e in events if e["ph"] == "X" and e["name"].startswith("all_reduce.bucket")}
        self.assertGreater(len(buckets), 3)
        for bucket in buckets:
            self.assertGreaterEqual(into[bucket], 2 * (LAST - FIRST + 1), f"gradient ready -> {bucket}")
        self.assertGreaterEqual(sum(out_of[bucket] for bucket in buckets), 2 * (LAST - FIRST + 1), "bucket -> update")

    def test_clocks_are_aligned(self):
        shifted = self.folder / "shifted"
        (shifted / "trace").mkdir(parents=True)
        (shifted / "plan.json").write_text((self.folder / "run" / "plan.json").read_text())
        for rank, ahead_us in ((0, 0.0), (1, 7_000_000.5)):
            name = f"rank000{rank}.json"
            trace = json.loads((self.folder / "run" / "trace" / name).read_text())
            for event in trace["traceEvents"]:
                if "ts" in event:
                    event["ts"] += ahead_us
            (shifted / "trace" / name).write_text(json.dumps(trace))
        plain, _ = self.export(self.folder / "run")
        moved, text = self.export(shifted)
        apart_us = float(re.search(r"apart by at most ([0-9.]+) us", text)[1])
        self.assertAlmostEqual(apart_us, 7_000_000.5, delta=1000)  # members of a communication end at different times
        of = lambda folder: [e["ts"] for e in json.loads((folder / "merged.json").read_text())["traceEvents"]
                             if e["ph"] == "X"]
        for a, b in zip(of(plain), of(moved)):
            self.assertAlmostEqual(a, b, delta=0.01)

    def test_a_folder_without_a_trace_is_refused(self):
        (self.folder / "none").mkdir()
        _, text = self.export(self.folder / "none", code=3)
        self.assertIn("has no trace. Set trace.steps in the run file.", text)

    def test_holistic_trace_analysis_finds_the_same_overlap(self):
        if not importlib.util.find_spec("hta"):
            print("SKIPPED overlap of HolisticTraceAnalysis: the package is not installed (pip).")
            self.skipTest("HolisticTraceAnalysis is not installed")
        from hta.trace_analysis import TraceAnalysis
        out, _ = self.export(self.folder / "run")
        table = TraceAnalysis(trace_dir=str(out / "hta")).get_comm_comp_overlap(visualize=False)
        lines = [json.loads(line) for line in (self.folder / "run" / "metrics.jsonl").read_text().splitlines()]
        lines = [line for line in lines if FIRST <= line["step"] <= LAST]
        ours = 100 * sum(line["hidden"] * line["comm_ms"] for line in lines) / sum(line["comm_ms"] for line in lines)
        # The table has a share of each rank's communication, metrics.jsonl the share of all ranks'.
        weights = {rank: self.communication(out / "hta" / f"rank{rank:04}.json") for rank in (0, 1)}
        theirs = sum(row.comp_comm_overlap_pctg * weights[row.rank] for row in table.itertuples()) / sum(weights.values())
        print(f"hidden: {ours:.2f} % here, {theirs:.2f} % in HolisticTraceAnalysis")
        self.assertLess(abs(ours - theirs), 1.0)


if __name__ == "__main__":
    if not MPIRUN:
        print("SKIPPED exports of traces: mpirun is not installed.")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
