#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/slipstream-run with scripted ends: final exit codes, pauses, hosts to blame, spares and smaller layouts."""
import collections
import importlib.machinery
import importlib.util
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "slipstream-run"

sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("slipstream_run", str(SCRIPT))
slipstream_run = importlib.util.module_from_spec(importlib.util.spec_from_loader("slipstream_run", loader))
loader.exec_module(slipstream_run)


class Folder(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="slipstream_run_")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "run.toml").write_text(f'[checkpoint]\ninterval = 3\n[output]\ndir = "{self.folder}/run"\n')

    def hosts(self, text):
        """The path of a host file: "a:2 b:2" has two hosts of two slots."""
        path = self.folder / "hosts"
        path.write_text("".join("{} slots={}\n".format(*each.split(":")) for each in text.split()))
        return str(path)

    def events(self):
        return [json.loads(line) for line in (self.folder / "run.events.jsonl").read_text().splitlines()]

    def names(self):
        return [event["event"] for event in self.events()]


class Scripted(slipstream_run.Relauncher):
    """Starts end as written: (exit code, lines on standard error, step of a checkpoint that they leave)."""

    def __init__(self, arguments, starts, legal=None):
        super().__init__(slipstream_run.parse(arguments))
        self.starts, self.commands, self.pauses, self.printed = list(starts), [], [], []
        self.legal = legal or {}

    def tell(self, line):
        self.printed.append(line)

    def launch(self, command):
        self.commands.append(command)
        code, lines, step = self.starts.pop(0)
        if callable(lines):
            lines = lines() or []
        if step:
            folder = self.run.checkpoints / f"step-{step:08}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "manifest.json").write_text("{}")
        return code, lines

    def sleep(self, seconds):
        self.pauses.append(seconds)

    def ask_plan(self, ranks, sets):
        if ranks not in self.legal:
            return 2, None, f"{ranks} ranks are illegal"
        code, fits = self.legal[ranks]
        layout = {"data": ranks // 2, "tensor": 2, "pipeline": 1, "context": 1}
        return code, {"layout": layout, "global_batch_size": 24, "fits": fits, "rehearsed": {"step_ms": 2.5}}, "no room"


class Policy(Folder):
    def scripted(self, starts, options="", train="", hosts="", legal=None):
        arguments = ["-np", "4", "--launcher", "true", *options.split()]
        if hosts:
            arguments += ["--hostfile", self.hosts(hosts)]
        command = [sys.executable, "train", str(self.folder / "run.toml"), *train.split()]
        return Scripted([*arguments, *command], starts, legal)

    def test_exit_codes_that_end_the_run_at_once(self):
        for code in (0, 2, 3, 4, 5, 7, 70, 126, 127, 75):
            run = self.scripted([(code, [], 0)])
            self.assertEqual(run.until_it_ends(), code)
            self.assertEqual(run.pauses, [])
            self.assertEqual(self.names()[-3:], ["start", "exit", {0: "done", 75: "stop"}.get(code, "give_up")])

    def test_other_exit_codes_are_tried_again_up_to_the_limit(self):
        for code in (1, 6, 134, 137, 139, 255):
            run = self.scripted([(code, [], 0)] * 3)
            self.assertEqual(run.until_it_ends(), code)
            self.assertEqual(run.starts, [])
            self.assertEqual(self.names()[-9:], ["start", "exit", "backoff", "relaunch", "exit", "backoff", "relaunch",
                                                 "exit", "give_up"])

    def test_resources_are_tried_again_after_a_checkpoint_or_on_another_host(self):
        run = self.scripted([(7, [], 3), (7, [], 0), (0, [], 0)])
        self.assertEqual(run.until_it_ends(), 0)
        lines = ["slipstream: on rank 3: [cuda] the copy failed: an illegal address"]
        run = self.scripted([(7, lines, 0), (0, [], 0)], "--blames 1", hosts="a:2 b:2 c:2")
        self.assertEqual(run.until_it_ends(), 0)
        self.assertIn("a:2,c:2", run.commands[1])
        for step, where in enumerate(("disk", "output", "checkpoint"), 4):  # all hosts share the file
            lines = [f"slipstream: on rank 3: [{where}] run/metrics.jsonl cannot be written"]
            run = self.scripted([(7, lines, step), (0, [], 0)], "--blames 1", hosts="a:2 b:2 c:2")
            self.assertEqual(run.until_it_ends(), 0)
            self.assertIn("a:2,b:2", run.commands[1])

    def test_pauses_double_until_a_newer_checkpoint_exists(self):
        starts = [(6, [], 0), (6, [], 0), (6, [], 30), (6, [], 0), (6, [], 30), (6, [], 20), (6, [], 60), (0, [], 0)]
        run = self.scripted(starts, "--limit 5 --backoff 2 --backoff-max 9")
        self.assertEqual(run.until_it_ends(), 0)
        self.assertEqual(run.pauses, [2, 4, 2, 4, 8, 9, 2])
        pauses = [event["seconds"] for event in self.events() if event["event"] == "backoff"]
        self.assertEqual(pauses, run.pauses)
        self.assertEqual([event["step"] for event in self.events() if event["event"] == "exit"],
                         [0, 0, 30, 30, 30, 30, 60, 60])

    def test_a_checkpoint_that_is_written_again_is_no_progress(self):
        run = self.scripted([(6, [], 30), (6, [], 30), (6, [], 20), (6, [], 0)], "--limit 3", "--resume")
        self.assertEqual(run.until_it_ends(), 6)
        self.assertEqual(len(run.starts), 1)

    def test_a_damaged_checkpoint_that_is_written_again_is_no_progress(self):
        damaged = self.folder / "run" / "checkpoints" / "step-00000030" / "manifest.json"
        run = self.scripted([(6, [], 30), (6, damaged.unlink, 20), (6, [], 30), (6, [], 0)], "--limit 3")
        self.assertEqual(run.until_it_ends(), 6)
        self.assertEqual(len(run.starts), 1)

    def test_a_step_resumed_from_memory_is_named_and_is_progress(self):
        def resumes(step):
            def write():
                time.sleep(0.02)
                run = {"resumed_step": step, "resumed_from": "memory of 3 hosts"}
                (self.folder / "run").mkdir(exist_ok=True)
                (self.folder / "run" / "run.json").write_text(json.dumps(run))
            return write
        starts = [(6, [], 0), (6, resumes(57), 0), (6, resumes(57), 0), (6, resumes(58), 0), (6, [], 0), (0, [], 0)]
        run = self.scripted(starts, "--limit 3 --backoff 2", "--set checkpoint.peer_interval=1")
        self.assertEqual(run.until_it_ends(), 0)
        self.assertEqual(run.pauses, [2, 2, 4, 2, 4])
        exits = [event for event in self.events() if event["event"] == "exit"]
        self.assertEqual([event["resumed"] and event["resumed"]["step"] for event in exits],
                         [None, 57, 57, 58, None, None])
        self.assertIn("continued from step 57 (memory of 3 hosts)", exits[1]["why"])
        whys = [event["why"] for event in self.events() if event["event"] in ("start", "relaunch")]
        self.assertIn("begins at step 1", whys[0])
        self.assertIn("continues from memory", whys[1])

    def test_lost_seconds_are_those_since_the_newest_checkpoint_and_pauses(self):
        works = lambda: time.sleep(0.5)
        run = self.scripted([(6, works, 3), (6, works, 0), (0, works, 0)])
        run.sleep = lambda _: time.sleep(0.2)
        self.assertEqual(run.until_it_ends(), 0)
        first, again, second, last, done = [e for e in self.events() if e["event"] in ("exit", "relaunch")]
        self.assertLess(first["seconds_lost"], 0.5 * first["seconds"])  # the checkpoint came at its end
        self.assertGreater(again["seconds_lost"], first["seconds_lost"] + 0.19)
        self.assertAlmostEqual(second["seconds_lost"] - again["seconds_lost"], second["seconds"], delta=0.01)
        self.assertGreater(last["seconds_lost"], second["seconds_lost"] + 0.19)
        self.assertEqual(done["seconds_lost"], last["seconds_lost"])

    def test_resume_follows_the_first_start(self):
        run = self.scripted([(6, [], 0), (6, [], 0), (0, [], 0)])
        run.until_it_ends()
        self.assertEqual(["--resume" in command for command in run.commands], [False, True, True])
        run = self.scripted([(6, [], 0), (0, [], 0)], train="--resume")
        run.until_it_ends()
        self.assertEqual([command.count("--resume") for command in run.commands], [1, 1])

    def test_checkpoints_of_an_older_run_are_not_resumed(self):
        checkpoints = self.folder / "run" / "checkpoints"
        (checkpoints / "step-00000040").mkdir(parents=True)
        (checkpoints / "step-00000040" / "manifest.json").write_text("{}")

        def moved():
            checkpoints.rename(self.folder / "older")
        run = self.scripted([(6, [], 0), (6, moved, 3), (0, [], 0)])
        self.assertEqual(run.until_it_ends(), 0)
        self.assertEqual(["--resume" in command for command in run.commands], [False, False, True])
        self.assertEqual([event["step"] for event in self.events()], [0] * 4 + [3] * 5)

    def test_the_host_of_a_fault(self):
        hosts = [("n1.cluster", 2), ("n2.cluster", 2)]
        silent, named = "slipstream: [watchdog] ", "(process 7)"
        mpirun = "mpirun noticed that process rank 3 with PID 0 on node {} exited on signal 9 (Killed)."
        sentences = [
            (6, silent + f"rank 2 on host other {named} does not answer; its last message came", "n2.cluster"),
            (6, f"slipstream: on rank 1: [watchdog] rank 0 on host n1 {named} does not answer; its", "n1.cluster"),
            (6, silent + f"ranks 2, 3: rank 2 on host n2 {named} has ended without notice", "n2.cluster"),
            (6, silent + "rank 3 does not answer. Look for", "n2.cluster"),
            (6, silent + f"rank 1 on host n1 {named} has not begun reduce.3 (all_reduce", "n1.cluster"),
            (6, silent + f"rank 1 on host n1 {named} has not left the exchange of votes", "n1.cluster"),
            (6, silent + "ranks 0, 1 are in reduce.3 (all_reduce of 3 MiB) on channel reduce", None),
            (6, silent + "rank 1 on host n1 is in step 3 and no rank waits for another", None),
            (6, "slipstream: on rank 1: [transport] the connection to rank 2 has ended", None),
            (137, mpirun.format("n2"), "n2.cluster"),
            (137, mpirun.format("elsewhere"), "n2.cluster"),
            (137, "prterun noticed that process rank 1 with PID 12 on node n2 exited on", "n2.cluster"),
            (1, "  Remote daemon: [[123,0],1] on node n2", "n2.cluster"),
            (255, "ssh: connect to host n2 port 22: No route to host", "n2.cluster"),
            (255, "ssh: Could not resolve hostname n2: Name or service not known", "n2.cluster"),
            (255, "ssh: connect to host n9 port 22: No route to host", None),
        ]
        for code, line, host in sentences:
            cause = slipstream_run.find_cause(code, ["noise", line])
            found = cause and slipstream_run.host_of(hosts, cause[0], cause[1])
            self.assertEqual(found, host, line)
        addresses = [("10.0.0.1", 2), ("10.0.0.2", 2)]
        self.assertEqual(slipstream_run.host_of(addresses, None, "10.0.0.2"), "10.0.0.2")
        # mpirun kills the rank that the watchdog has named, or another one.
        self.assertEqual(slipstream_run.find_cause(6, [mpirun.format("n2"), sentences[4][1]])[0], 1)

    def test_a_host_that_fails_twice_is_replaced(self):
        fault = "mpirun noticed that process rank {} with PID 1 on node x exited on signal 9 (Killed)."
        starts = [(137, [fault.format(rank)], 0) for rank in (3, 0, 3, 3)] + [(0, [], 0)]
        run = self.scripted(starts, "--limit 3", hosts="a:2 b:2 c:1 d:5")
        self.assertEqual(run.until_it_ends(), 0)
        self.assertEqual([command[2] for command in run.commands], ["a:2,b:2"] * 3 + ["a:2,c:1,d:1"] * 2)
        spares = [event["host"] for event in self.events() if event["event"] == "spare"]
        self.assertEqual(spares, ["c", "d"])

    def test_without_a_spare_the_largest_legal_layout_follows(self):
        fault = ["slipstream: [watchdog] rank 7 does not answer."]
        legal = {8: (0, True), 6: (7, False), 4: (0, True), 2: (0, True)}
        arguments = ["-np", "8", "--launcher", "true", "--blames", "1", "--hostfile", self.hosts("a:3 b:4 c:1")]
        run = Scripted([*arguments, sys.executable, "train", str(self.folder / "run.toml"), "--set", "parallel.data=4"],
                       [(6, fault, 0), (6, fault, 0), (0, [], 0)], legal)
        self.assertEqual(run.until_it_ends(), 0)
        # Without c there are 7 slots, but 6 ranks do not fit into memory. Later, rank 7 does not exist.
        self.assertEqual(run.commands[1][1:5], ["-H", "a:3,b:1", "-np", "4"])
        self.assertEqual(run.commands[1][-5:],
                         ["--set", "parallel.data=2", "--set", "train.global_batch_size=24", "--resume"])
        self.assertEqual(self.names(), ["start", "exit", "blame", "drop", "shrink", "backoff", "relaunch", "exit",
                                        "backoff", "relaunch", "exit", "done"])
        shrink = self.events()[4]
        self.assertEqual((shrink["ranks"], shrink["step_ms"], shrink["hosts"]), (4, 2.5, {"a": 3, "b": 1}))
        self.assertIn("refused: 6 ranks: no room", shrink["why"])

    def test_a_planner_that_cannot_judge_the_memory_decides_by_the_layout(self):
        fault = ["slipstream: [watchdog] rank 3 does not answer."]
        run = self.scripted([(6, fault, 0), (0, [], 0)], "--blames 1", hosts="a:2 b:2",
                            legal={4: (7, False), 2: (7, False)})
        self.assertEqual(run.until_it_ends(), 0)
        self.assertEqual(run.ranks, 2)

    def test_a_host_stays_when_no_other_layout_is_legal(self):
        fault = ["slipstream: [watchdog] rank 3 does not answer."]
        run = self.scripted([(6, fault, 0)] * 3, "--blames 1 --limit 3", hosts="a:2 b:2", legal={4: (0, True)})
        self.assertEqual(run.until_it_ends(), 6)
        self.assertEqual(collections.Counter(self.names())["keep"], 3)
        self.assertIn("2 ranks are illegal", [e for e in self.events() if e["event"] == "keep"][0]["why"])
        self.assertEqual(run.commands[2][2], "a:2,b:2")

    def test_the_lock_of_a_dropped_host_is_removed_and_no_other(self):
        lock = self.folder / "run" / "lock"
        lock.parent.mkdir()
        silent = ["[watchdog] rank 3 does not answer"]  # rank 3 is on b

        def run_with(lines):
            run = self.scripted([(6, lines, 0), (0, [], 0)], "--blames 1", hosts="a:2 b:2 c:2")
            self.assertEqual(run.until_it_ends(), 0)
            return lock.exists()

        self.assertFalse(run_with(lambda: lock.write_text("b 77 2026-11-24T00:00:00Z\n") and silent))
        self.assertTrue(run_with(lambda: lock.write_text("a 77 2026-11-24T00:00:01Z\n") and silent))
        lock.write_text("b 5 2026-11-24T00:00:02Z\n")  # the lock of another job, made before the start
        self.assertTrue(run_with(silent))

    def test_a_folder_that_the_start_before_still_holds_is_tried_again(self):
        lock = self.folder / "run" / "lock"
        lock.parent.mkdir()
        holds = lambda: lock.write_text("b 77 2026-11-24T00:00:00Z\n") and []
        self.assertEqual(self.scripted([(1, holds, 0), (4, [], 0), (0, [], 0)]).until_it_ends(), 0)

    def test_a_signal_ends_the_wait(self):
        run = self.scripted([(6, [], 0)])
        run.sleep = lambda _: run.on_signal(signal.SIGTERM, None)
        self.assertEqual(run.until_it_ends(), 75)
        self.assertEqual(self.names(), ["start", "exit", "backoff", "stop"])

    def test_after_a_signal_no_start_follows(self):
        for step, (code, ends) in enumerate(((137, 75), (75, 75), (0, 0), (7, 7), (5, 5)), 1):
            run = self.scripted([(code, lambda: run.on_signal(signal.SIGUSR1, None), step)])
            self.assertEqual(run.until_it_ends(), ends)
            self.assertEqual(run.pauses, [])

    def test_folders_come_from_the_run_file_and_the_command_line(self):
        def folders(train):
            run = self.scripted([], train=train)
            return str(run.run.output), str(run.run.checkpoints), str(run.events_path)

        run = str(self.folder / "run")
        self.assertEqual(folders(""), (run, run + "/checkpoints", run + ".events.jsonl"))
        self.assertEqual(folders("--set output.dir=x --set output.dir='y'"), ("y", "y/checkpoints", "y.events.jsonl"))
        self.assertEqual(folders("--set=output.dir=0x7/ --set=output.dir=0x7 --set checkpoint.dir=\"z\""), ("0x7", "z", "0x7.events.jsonl"))

    def test_events_that_cannot_be_written_stop_no_run(self):
        run = self.scripted([(6, [], 0), (0, [], 0)], "--events /dev/full")
        self.assertEqual(run.until_it_ends(), 0)
        self.assertEqual(len([line for line in run.printed if "/dev/full cannot be written" in line]), 1)


class Command(Folder):
    def refused(self, *arguments):
        done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertTrue(done.stderr.startswith("slipstream-run: "), done.stderr)
        return done.stderr

    def test_wrong_command_lines(self):
        train = [sys.executable, "train", str(self.folder / "run.toml")]
        self.assertIn("belong into --launcher", self.refused("-np", "2", "--bind-to", "none", *train))
        self.assertIn("whole number", self.refused("-np", "0", *train))
        self.assertIn("needs seconds", self.refused("-np", "2", "--backoff", "nan", *train))
        self.assertIn("PROGRAM train", self.refused("-np", "2", sys.executable, "plan", "x"))
        self.assertIn("is no program", self.refused("-np", "2", "/nothing", "train", "x"))
        self.assertIn("cannot be read", self.refused("-np", "2", sys.executable, "train", "/nothing.toml"))
        self.assertIn("--launcher nothing -x", self.refused("-np", "2", "--launcher", "nothing -x", *train))
        self.assertIn("--launcher", self.refused("-np", "2", "--launcher", "'open", *train))
        hosts = ["-np", "4", "--launcher", "true", "--hostfile", self.hosts("a:1 b:2"), *train]
        self.assertIn("3 slots for 4 ranks", self.refused(*hosts))
        for line in ("a", "a slots=x", "a slots=0"):
            (self.folder / "hosts").write_text(f"# hosts\nb slots=2\n{line}\n")
            self.assertIn("hosts:3: a needs slots=N", self.refused(*hosts))


if __name__ == "__main__":
    unittest.main()
