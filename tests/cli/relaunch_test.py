#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs that scripts/slipstream-run starts again after faults: their bits, their events, and processes that they leave.

Arguments: the program and mpirun. Hosts are names that the launcher of this test removes before it calls mpirun, so one
machine plays several.
"""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "slipstream-run"
PROGRAM, MPIRUN = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
ALL = "SLIPSTREAM_TEST_ALL" in os.environ
STEPS, INTERVAL = 60 if ALL else 12, 3
KILLS = 15
WIDEST = 4 if ALL else 3  # ranks of a run that loses one host after another until two are left

RUN_FILE = """[model]
layers = 2
heads = 2
width = 16
context = 16
[data]
train = "{folder}/text.txt"
[train]
steps = {steps}
micro_batch_size = 1
global_batch_size = 12
eval_batches = 1
hash_interval = 1
[optimizer]
learning_rate = 3e-3
warmup_steps = 2
[checkpoint]
interval = {interval}
[device]
kind = "cpu"
threads = 1
[output]
dir = "{folder}/run"
"""

# The launcher injects the next fault. It removes the host names, unless a program plays ssh.
LAUNCHER = """#!/usr/bin/env python3
import json, os, pathlib, sys
folder, arguments = pathlib.Path("{folder}"), sys.argv[1:]
options, agent = ["--oversubscribe", "--bind-to", "none"], folder / "remote_shell"  # plays ssh
if agent.exists():
    options += ["--mca", "plm_rsh_agent", str(agent)]
elif arguments[0] == "-H":
    arguments = arguments[2:]
faults = json.loads((folder / "faults").read_text())
fault = faults.pop(0) if faults else {{}}
(folder / "faults").write_text(json.dumps(faults))
os.environ.update(fault.get("environment", {{}}), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
os.execv("{mpirun}", ["{mpirun}", *options, *arguments, *fault.get("more", [])])
"""
ENDLESS = {"more": ["--set", "train.steps=1000000", "--set", "checkpoint.interval=900000",
                    "--set", "train.hash_interval=0"]}


def killed(rank, step):
    """Kills a rank with SIGKILL before the step of this number, counted from 0 at its start."""
    return {"environment": {"SLIPSTREAM_FAIL_POINT": f"step@{rank}#{step}"}}


def trajectory(folder):
    """Everything that training computed, by step; times left out."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    fields = ("step", "loss", "lr", "grad_norm", "val_loss", "params_hash")
    return [{field: line.get(field) for field in fields} for line in lines]


class Relaunch(unittest.TestCase):
    whole = None

    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="slipstream_relaunch_")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        words = "the wind carries every sail before a quiet harbour of grain and salt".split()
        chosen = random.Random(1)
        (self.folder / "text.txt").write_text(" ".join(chosen.choice(words) for _ in range(4000)))
        (self.folder / "run.toml").write_text(RUN_FILE.format(folder=self.folder, steps=STEPS, interval=INTERVAL))
        launcher = self.folder / "launcher"
        launcher.write_text(LAUNCHER.format(folder=self.folder, mpirun=MPIRUN))
        launcher.chmod(0o755)
        self.addCleanup(self.end_all)

    def begin(self, ranks, faults, options="", train="", hosts=""):
        (self.folder / "faults").write_text(json.dumps(faults))
        command = [SCRIPT, "-np", str(ranks), "--launcher", str(self.folder / "launcher"), "--backoff", "0"]
        if hosts:
            (self.folder / "hosts").write_text("".join(f"{host} slots=1\n" for host in hosts))
            command += ["--hostfile", self.folder / "hosts"]
        command += [*options.split(), PROGRAM, "train", str(self.folder / "run.toml"), *train.split()]
        with open(self.folder / "log", "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self.addCleanup(process.kill)
        return process

    def wait(self, process):
        code = process.wait(timeout=180)
        self.log = (self.folder / "log").read_text(errors="replace")
        return code

    def processes(self):
        """{rank: process} of this test's run; the launcher is rank -1."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                if str(self.folder / "run.toml").encode() in words and str(SCRIPT).encode() not in words:
                    variables = (entry / "environ").read_bytes().split(b"\0")
                    rank = [word[21:] for word in variables if word.startswith(b"OMPI_COMM_WORLD_RANK=")]
                    found[int(rank[0]) if rank else -1] = int(entry.name)
            except OSError:
                pass
        return found

    def end_all(self):
        for process in self.processes().values():
            os.kill(process, signal.SIGKILL)

    def until(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, (self.folder / "log").read_text(errors="replace")[-3000:])
            time.sleep(0.01)

    def lines(self):
        metrics = self.folder / "run" / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    def starts(self):
        return sum(event["event"] in ("start", "relaunch") for event in self.events())

    def undisturbed(self):
        """The metrics of two ranks without faults."""
        if not Relaunch.whole:
            code = self.wait(self.begin(2, [], train=f"--set output.dir={self.folder}/whole"))
            self.assertEqual(code, 0, self.log)
            Relaunch.whole = trajectory(self.folder / "whole")
        return Relaunch.whole

    def events(self):
        path = self.folder / "run.events.jsonl"
        text = path.read_text() if path.exists() else ""
        whole = text[:text.rfind("\n") + 1]  # the last line may be half written
        return [json.loads(line) for line in whole.splitlines()]

    def check_events(self, expected):
        """The events in order, each with all fields."""
        events = self.events()
        self.assertEqual([event["event"] for event in events], expected, self.log[-3000:])
        attempt = 0
        for event in events:
            attempt += event["event"] in ("start", "relaunch")
            self.assertEqual(event["attempt"], attempt)
            for field, kind in (("time", str), ("ranks", int), ("hosts", dict), ("step", int), ("seconds_lost", float),
                                ("why", str)):
                self.assertIsInstance(event[field], kind, event)
            self.assertEqual(event["code"] is None, attempt == 1 and event["event"] == "start")
        self.assertEqual([event["step"] for event in events], sorted(event["step"] for event in events))
        self.assertEqual([event["seconds_lost"] for event in events], sorted(event["seconds_lost"] for event in events))
        return events

    def test_a_killed_and_a_stopped_rank_leave_the_bits_of_an_undisturbed_run(self):
        whole = self.undisturbed()
        process = self.begin(2, [killed(0, 6), ENDLESS], "--blames 100", "--set comm.timeout_seconds=2", hosts="ab")
        self.until(lambda: self.starts() == 2 and self.lines() > 20 and 1 in self.processes())
        os.kill(self.processes()[1], signal.SIGSTOP)
        self.assertEqual(self.wait(process), 0, self.log[-3000:])
        again = ["exit", "blame", "backoff", "relaunch"]
        events = self.check_events(["start", *again, *again, "exit", "done"])
        codes = [event["code"] for event in events if event["event"] == "exit"]
        self.assertIn(codes, ([137, 6, 0], [6, 6, 0]))  # mpirun or the other rank notices first that a rank was killed
        self.assertEqual([event["host"] for event in events if event["event"] == "blame"], ["a", "b"])
        self.assertGreaterEqual(events[4]["step"], INTERVAL)
        self.assertIn("does not answer", events[6]["why"])
        self.assertEqual(trajectory(self.folder / "run"), whole)

    @unittest.skipUnless(ALL, "in the long version")
    def test_many_killed_ranks_leave_the_bits_of_an_undisturbed_run(self):
        whole = self.undisturbed()
        chosen = random.Random(7)
        ranks = [chosen.randrange(2) for _ in range(KILLS)]
        faults = [killed(rank, chosen.randrange(4)) for rank in ranks]
        self.assertEqual(self.wait(self.begin(2, faults, "--limit 20 --blames 100", hosts="ab")), 0, self.log[-3000:])
        self.assertEqual(trajectory(self.folder / "run"), whole)
        events = self.check_events(["start", *["exit", "blame", "backoff", "relaunch"] * KILLS, "exit", "done"])
        blamed = [event["host"] for event in events if event["event"] == "blame"]
        self.assertEqual(blamed, ["ab"[rank] for rank in ranks])
        print(f"COUNTED {KILLS} kills in a run of {STEPS} steps")

    def test_without_spares_fewer_ranks_continue_with_the_same_samples(self):
        whole = self.undisturbed()
        faults = [killed(rank, 4) for rank in range(WIDEST - 1, 1, -1)]
        code = self.wait(self.begin(WIDEST, faults, "--blames 1", hosts="abcd"[:WIDEST]))
        self.assertEqual(code, 0, self.log[-3000:])
        again = ["exit", "blame", "drop", "shrink", "backoff", "relaunch"]
        events = self.check_events(["start", *again * len(faults), "exit", "done"])
        starts = [event["ranks"] for event in events if event["event"] in ("start", "relaunch")]
        self.assertEqual(starts, list(range(WIDEST, 1, -1)))
        self.assertEqual(events[-1]["hosts"], {"a": 1, "b": 1})
        self.assertGreater(events[4]["step_ms"], 0)
        reached = trajectory(self.folder / "run")
        self.assertEqual([line["step"] for line in reached], list(range(1, STEPS + 1)))
        for line, expected in zip(reached, whole):
            self.assertAlmostEqual(line["loss"] / expected["loss"], 1, delta=1e-5, msg=f"step {line['step']}")

    @unittest.skipUnless(ALL, "in the long version")
    def test_a_wrong_setting_is_not_tried_again(self):
        code = self.wait(self.begin(1, [], train="--set train.stepz=3"))
        self.assertEqual(code, 2, self.log)
        self.check_events(["start", "exit", "give_up"])
        self.assertIn("train.stepz", self.log)

    def test_sigterm_saves_and_leaves_no_process(self):
        process = self.begin(2, [ENDLESS])
        self.until(lambda: self.lines() > 0)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.wait(process), 75, self.log[-3000:])
        self.assertEqual(self.processes(), {})
        self.assertGreater(self.check_events(["start", "exit", "stop"])[-1]["step"], 0)

    def test_a_killed_launcher_or_slipstream_run_leaves_no_process(self):
        process = self.begin(2, [ENDLESS, ENDLESS])
        self.until(lambda: self.lines() > 0)
        before = set(self.processes().values())
        os.kill(self.processes()[-1], signal.SIGKILL)
        self.until(lambda: self.events()[-1]["event"] == "relaunch")
        self.assertFalse(before & set(self.processes().values()))
        self.until(lambda: len(self.processes()) == 3 and self.lines() > 0)
        process.kill()
        process.wait()
        self.until(lambda: not self.processes(), 20)

    @unittest.skipUnless(ALL, "in the long version")
    def test_an_unreachable_host_is_replaced(self):
        agent = self.folder / "remote_shell"  # plays ssh
        agent.write_text("#!/bin/sh\nhost=$1; shift\nif [ $host = b ]; then echo 'ssh: connect to host b port 22: "
                         "No route to host' >&2; exit 255; fi\nexec sh -c \"$*\"\n")
        agent.chmod(0o755)
        self.assertEqual(self.wait(self.begin(2, [], "--blames 1", hosts="abc")), 0, self.log[-3000:])
        self.check_events(["start", "exit", "blame", "drop", "spare", "backoff", "relaunch", "exit", "done"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
