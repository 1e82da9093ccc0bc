#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nothing is lost, and nothing of another run is changed: moved and copied folders, signals, locks, leftovers.

Arguments: the program and mpirun, which may be empty.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, MPIRUN = str(pathlib.Path(sys.argv[1]).resolve()), sys.argv[2] if len(sys.argv) > 2 else ""
PREEMPTED = 75
KEEPS = ["checkpoint.peer_interval=1", "checkpoint.interval=3", "checkpoint.async=false", "train.hash_interval=1"]

RUN_FILE = """[model]
family = "gpt2"
layers = 2
heads = 2
width = 16
context = 16
[data]
train = "{folder}/text.txt"
[train]
steps = 8
micro_batch_size = 2
global_batch_size = 4
eval_batches = 2
log_interval = 1
[optimizer]
learning_rate = 3e-3
min_learning_rate = 1e-3
warmup_steps = 2
[device]
threads = 1
[output]
dir = "{folder}/run"
"""


def digest(folder):
    """Every file below a folder with its bytes, and every folder."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in sorted(folder.rglob("*"))}


def losses(run):
    return [(line["step"], line["loss"], line.get("params_hash")) for line in lines_of(run)]


def lines_of(run):
    try:
        text = (run / "metrics.jsonl").read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def checkpoints(run):
    return sorted(path.parent.name for path in (run / "checkpoints").glob("step-????????/manifest.json"))


def end_keepers(run):
    """Ends the processes that hold snapshots of a run that does not go on."""
    name = json.loads((run / "run.json").read_text())["keeper"]
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if words[1:3] == [b"keeper", name.encode()]:
                os.kill(int(entry.name), signal.SIGTERM)
        except OSError:
            pass


class Job:
    """A run of the program, alone or under mpirun."""

    def __init__(self, test, *arguments, ranks=1, fail="", environment=None):
        environment = {**os.environ, **(environment or {}), "OMPI_ALLOW_RUN_AS_ROOT": "1",
                       "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **({"SLIPSTREAM_FAIL_POINT": fail} if fail else {})}
        launcher = [MPIRUN, "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] if ranks > 1 else []
        self.log = open(test.folder / f"log{test.jobs}", "w+")
        test.jobs += 1
        def heed_signals():  # those that a caller in the background, or nohup, ignores
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)

        self.process = subprocess.Popen([*launcher, PROGRAM, *map(str, arguments)], stdout=self.log, stderr=self.log,
                                        stdin=subprocess.DEVNULL, env=environment, preexec_fn=heed_signals)
        test.addCleanup(self.end)

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def wait(self):
        """Blocks. The exit code, negative after a signal."""
        return self.process.wait(timeout=120)

    def until(self, condition):
        """Blocks until it holds, or the job has ended."""
        while not condition():
            if self.process.poll() is not None:
                raise AssertionError(f"the job ended with {self.process.returncode}:\n{self.text()}")
            time.sleep(0.01)

    def ranks(self):
        """The processes of the program itself."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    if parent == self.process.pid and os.readlink(entry / "exe") == PROGRAM:
                        found.append(int(entry.name))
                except OSError:
                    pass
        return found

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Lost(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slipstream_lost_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.jobs = 0
        words = "the wind carries every sail before a quiet harbour of grain and salt".split()
        state, text = 1, ""
        while len(text) < 20000:
            state = (state * 1664525 + 1013904223) % 2**32
            text += words[(state >> 16) % len(words)] + " "
        (self.folder / "text.txt").write_text(text)
        self.file = self.folder / "run.toml"
        self.file.write_text(RUN_FILE.format(folder=self.folder))
        self.run_dir = self.folder / "run"

    def job(self, *sets, flags=(), **options):
        pairs = [word for each in sets for word in ("--set", each)]
        return Job(self, "train", self.file, *pairs, *flags, **options)

    def train(self, *sets, code=0, **options):
        """Blocks. Trains, compares the exit code, and returns what was printed."""
        job = self.job(*sets, **options)
        self.assertEqual(job.wait(), code, job.text())
        return job.text()

    def training(self, *sets, **options):
        """A job that has written lines of metrics and a checkpoint, and trains for long."""
        job = self.job("train.steps=1000000", "checkpoint.interval=20", *sets, **options)
        job.until(lambda: len(lines_of(self.run_dir)) > 25 and checkpoints(self.run_dir))
        return job

    def test_a_moved_and_replaced_folder_is_left_alone(self):
        for ranks in (1, 2) if MPIRUN else (1,):
            job = self.training(ranks=ranks)
            moved = self.folder / f"moved{ranks}"
            self.run_dir.rename(moved)
            self.train("train.steps=3", "train.seed=99")
            others = digest(self.run_dir)
            self.assertEqual(job.wait(), 4, job.text())
            self.assertIn(f"was moved to {moved} while this run used it", job.text())
            self.assertEqual(digest(self.run_dir), others)
            # The moved folder is whole: the run goes on in it.
            shutil.rmtree(self.run_dir)
            self.assertRegex(self.train(f"output.dir={moved}", "train.steps=1", flags=["--resume"]), "nothing is left")

    def test_a_removed_folder_ends_the_run_and_is_not_made_again(self):
        for part, key in ((self.run_dir, "output.dir"), (self.run_dir / "checkpoints", "checkpoint.dir")):
            job = self.training()
            shutil.rmtree(part, ignore_errors=True)
            while part.exists():  # the run was writing into it
                shutil.rmtree(part, ignore_errors=True)
            self.assertEqual(job.wait(), 4, job.text())
            self.assertRegex(job.text(), rf"{key} = \S+ was removed")
            self.assertFalse(part.exists())
            shutil.rmtree(self.run_dir, ignore_errors=True)

    def test_a_job_that_has_lost_its_lock_ends_and_changes_nothing(self):
        job = self.training()
        lock = self.run_dir / "lock"
        job.process.send_signal(signal.SIGSTOP)
        lock.unlink()
        lock.write_text("elsewhere 12 2026-01-01T00:00:00Z boot:1 - 0 7 120\n")
        metrics = self.run_dir / "metrics.jsonl"
        kept = metrics.read_bytes()
        metrics.rename(self.run_dir / "older")
        metrics.write_bytes(kept)  # as another job would continue them
        before = checkpoints(self.run_dir)
        job.process.send_signal(signal.SIGCONT)
        self.assertEqual(job.wait(), 4, job.text())
        self.assertIn("belongs to another job", job.text())
        self.assertEqual(metrics.read_bytes(), kept)
        self.assertTrue(lock.read_text().startswith("elsewhere"))
        self.assertLessEqual(len(set(checkpoints(self.run_dir)) - set(before)), 1)  # one may have been on its way

    def test_snapshots_in_memory_belong_to_one_folder(self):
        sets = KEEPS
        self.train(*sets, f"output.dir={self.folder}/whole")
        self.train(*sets, code=-9, fail="step#5")
        copy = self.folder / "copy"
        shutil.copytree(self.run_dir, copy)
        rate = "optimizer.learning_rate=0.05"
        text = self.train(*sets, rate, f"output.dir={copy}", code=-9, flags=["--resume"], fail="step#2")
        self.assertRegex(text, r"resumed from \S+/copy/checkpoints/step-00000003 ")
        end_keepers(copy)
        # The original finds its own memory, and ends as if it had not been interrupted.
        text = self.train(*sets, flags=["--resume"])
        self.assertRegex(text, r"resumed from memory of 1 host \(step 4,")
        self.assertEqual([line[1:] for line in losses(self.run_dir)],
                         [line[1:] for line in losses(self.folder / "whole")])

    def test_a_restored_folder_does_not_get_the_memory_of_later_starts(self):
        sets = KEEPS
        self.train(*sets, f"output.dir={self.folder}/whole")
        self.train(*sets, code=-9, fail="step#4")
        backup = self.folder / "backup"
        shutil.copytree(self.run_dir, backup)
        self.train(*sets, code=-9, flags=["--resume"], fail="step#2")
        for entry in list(self.run_dir.iterdir()):  # the folder stays, but has the files of the backup
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        shutil.copytree(backup, self.run_dir, dirs_exist_ok=True)
        text = self.train(*sets, flags=["--resume"])
        self.assertRegex(text, r"resumed from \S+/checkpoints/step-00000003 ")
        self.assertEqual(losses(self.run_dir), losses(self.folder / "whole"))

    def test_a_flag_ignores_memory_and_disk_wins_a_conflict(self):
        sets = KEEPS
        self.train(*sets, f"output.dir={self.folder}/whole")
        self.train(*sets, code=-9, fail="step#5")
        text = self.train(*sets, code=-9, flags=["--resume", "--ignore-memory"], fail="step#1")
        self.assertRegex(text, r"resumed from \S+/checkpoints/step-00000003 ")
        # The run has another rate, so its snapshots conflict with the run file.
        self.train(*sets, "optimizer.learning_rate=0.05", code=-9, flags=["--resume", "--ignore-memory"], fail="step#2")
        text = self.train(*sets, flags=["--resume"])
        self.assertIn("in memory is not used, because this start conflicts with it", text)
        self.assertRegex(text, r"resumed from \S+/checkpoints/step-00000003 ")
        self.assertEqual(losses(self.run_dir), losses(self.folder / "whole"))

    def test_a_run_that_ends_with_a_nan_has_saved_the_checkpoint_on_its_way(self):
        # Each update multiplies the weights by -9, until no loss is finite.
        diverges = ["optimizer.learning_rate=1", "optimizer.min_learning_rate=1", "optimizer.warmup_steps=0",
                    "optimizer.weight_decay=10", "optimizer.grad_clip=0", "train.steps=200"]
        step = int(re.search(r"\[train\] step (\d+): the ", self.train(*diverges, code=5))[1])
        self.assertGreater(step, 4)
        # At one byte per second the file is not complete when the run ends, and no other save is due before.
        text = self.train(*diverges, f"checkpoint.interval={step - 2}", "checkpoint.bandwidth=1B/s", code=5)
        self.assertIn(f"[train] step {step}: the ", text)
        self.assertEqual(checkpoints(self.run_dir), [f"step-{step - 2:08}"], text)

    def test_a_signal_before_the_first_step_is_preemption(self):
        for ranks in (1, 2) if MPIRUN else (1,):
            for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGTERM) if ranks == 1 else \
                    (signal.SIGUSR1,):
                job = self.job(ranks=ranks, fail="train.begun=60000")
                job.until(lambda: job.text().count("[fail point]") == ranks)
                job.process.send_signal(number)
                self.assertEqual(job.wait(), PREEMPTED, job.text())
                self.assertIn("nothing new to save", job.text())
                self.assertFalse(self.run_dir.exists())

    def test_a_request_to_save_after_the_end_changes_no_exit_code(self):
        job = self.job(fail="end.left=1500")
        job.until(lambda: "[fail point]" in job.text())
        job.process.send_signal(signal.SIGUSR1)
        self.assertEqual(job.wait(), 0, job.text())

    def test_the_first_signal_saves_and_the_second_ends(self):
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            job = self.training()
            job.process.send_signal(number)
            self.assertEqual(job.wait(), PREEMPTED, job.text())
            step = int(re.search(r"a signal ended the run after step (\d+), which is saved", job.text())[1])
            self.assertIn(f"step-{step:08}", checkpoints(self.run_dir))
            self.assertEqual(lines_of(self.run_dir)[-1]["step"], step)
            shutil.rmtree(self.run_dir)
        # The step in which the first signal comes does not end.
        job = self.job(fail="step#3=60000")
        job.until(lambda: "[fail point]" in job.text())
        job.process.send_signal(signal.SIGINT)
        job.until(lambda: "a signal asks the run to end" in job.text())
        job.process.send_signal(signal.SIGINT)
        self.assertEqual(job.wait(), -signal.SIGINT, job.text())

    @unittest.skipUnless(MPIRUN, "no mpirun in this build")
    def test_ranks_that_a_launcher_is_about_to_kill_save_first(self):
        # Open MPI passes SIGINT on as SIGTERM and kills a second later, which a busy machine may need for a step.
        job = self.training(ranks=2)
        job.process.send_signal(signal.SIGINT)
        self.assertNotEqual(job.wait(), 0)
        self.assertIn("a signal asks the run to end", job.text())
        if saved := re.search(r"a signal ended the run after step (\d+), which is saved", job.text()):
            self.assertIn(f"step-{int(saved[1]):08}", checkpoints(self.run_dir))

    def test_a_lock_is_taken_over_from_an_owner_that_is_gone(self):
        lock, started = self.run_dir / "lock", "2026-01-01T00:00:00Z"
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        here = f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
        born = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        no_locks = "lock.unsupported"  # a file system without locks

        def left_by(line, age_seconds):
            self.run_dir.mkdir(exist_ok=True)
            lock.write_text(line + "\n")
            then = time.time() - age_seconds
            os.utime(lock, (then, then))

        def free(why, **options):
            text = self.train("train.steps=1", **options)
            self.assertIn(f"This run takes it over: {why}", text)
            self.assertFalse(lock.exists())

        def refused(remedy, **options):
            text = self.train("train.steps=1", code=4, **options)
            self.assertIn("is in use by process 12 on host elsewhere", text)
            self.assertIn(remedy, text)
            self.assertTrue(lock.exists())

        # The owner is on another host: the lease alone decides.
        left_by(f"elsewhere 12 {started} other:1 - 0 7 120", 20)
        refused("or start again 120 s after that")
        left_by(f"elsewhere 12 {started} other:1 - 0 7 120", 500)
        free("it has not renewed its claim for 500 s, more than the 120 s of its lease")
        left_by(f"elsewhere 12 {started} other:1 - 0", 5000)  # of an older version, which renews nothing
        refused("delete ")
        # The owner has this kernel under another name, as pods have: its lock would be seen, or its process.
        left_by(f"elsewhere 12 {started} {here} - 0 7 120", 0)
        free("its process has ended")
        left_by(f"elsewhere 4194305 {started} {here} - 0 7 120", 0)
        free("its process has ended", fail=no_locks)
        left_by(f"elsewhere {os.getpid()} {started} {here} - 0 7 120", 0)  # a younger process has the same number
        free("its process has ended", fail=no_locks)
        left_by(f"elsewhere {os.getpid()} {started} {here} - 0 {born} 120", 0)
        text = self.train("train.steps=1", code=4, fail=no_locks)
        self.assertIn(f"is in use by process {os.getpid()}", text)

    def test_a_lock_is_renewed(self):
        job = self.training()
        lock = self.run_dir / "lock"
        os.utime(lock, (1, 1))
        job.until(lambda: lock.stat().st_mtime > 1)

    def test_temporary_files_of_killed_jobs_go_and_others_stay(self):
        space = os.stat("/proc/self/ns/pid").st_ino
        gone = [self.run_dir / "run.json.tmp-12", self.run_dir / "flight/rank0001.json.tmp-4",
                self.run_dir / "checkpoints/final.tmp-34/model.safetensors",
                self.run_dir / "checkpoints/model/config.json.tmp-5"]
        stays = [self.run_dir / "notes.tmp-12", self.run_dir / "run.json.tmp", self.run_dir / "checkpoints/final.tmp-x"]
        shared = pathlib.Path("/dev/shm")
        if MPIRUN and shared.is_dir():
            gone.append(shared / f"slipstream-{space}-4194305-0")
            stays.append(shared / f"slipstream-{space}-{os.getpid()}-0")
        for path in gone + stays:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        try:
            self.train("train.steps=1", ranks=2 if MPIRUN else 1)
            for path in gone:
                self.assertFalse(path.exists(), path)
            for path in stays:
                self.assertTrue(path.exists(), path)
        finally:
            for path in gone + stays:
                if path.parent == shared:
                    path.unlink(missing_ok=True)

    def test_timelines_of_earlier_starts_stay(self):
        timeline = self.run_dir / "trace" / "rank0000.json"
        window = ["trace.steps=[2,4]", "checkpoint.interval=3", "checkpoint.async=false"]
        # The timeline is complete while the run goes on.
        self.train(*window, code=-9, fail="step#7")
        whole = timeline.read_bytes()
        self.assertEqual({event["args"]["step"] for event in json.loads(whole)["traceEvents"] if event["ph"] == "X"},
                         {2, 3, 4})
        earlier = self.run_dir / "trace" / "earlier-1" / "rank0000.json"
        shutil.rmtree(self.run_dir / "checkpoints" / "step-00000006")
        self.train(*window, flags=["--resume"])  # begins after step 3, so steps 4 and later run
        self.assertEqual(earlier.read_bytes(), whole)
        self.assertEqual({event["args"]["step"] for event in json.loads(timeline.read_text())["traceEvents"]
                          if event["ph"] == "X"}, {4})
        behind = timeline.read_bytes()
        self.train(*window, "train.steps=12", flags=["--resume"])  # all steps are after the window
        self.assertEqual(timeline.read_bytes(), behind)

    def test_a_comparison_has_a_page_of_its_own(self):
        other = self.folder / "other"
        self.train("train.steps=3")
        self.train("train.steps=3", f"output.dir={other}")
        self.assertEqual(Job(self, "report", self.run_dir).wait(), 0)
        page = (self.run_dir / "report.html").read_bytes()
        self.assertEqual(Job(self, "report", self.run_dir, other).wait(), 0)
        self.assertEqual((self.run_dir / "report.html").read_bytes(), page)
        self.assertTrue((self.run_dir / "report-with-other.html").exists())

    def test_tokenize_names_shards_before_it_removes_them(self):
        shards = self.folder / "shards" / "text"
        self.assertEqual(Job(self, "tokenize", self.folder / "text.txt", shards, "--shard-tokens", "5000").wait(), 0)
        job = Job(self, "tokenize", self.folder / "text.txt", shards, "--shard-tokens", "10000")
        self.assertEqual(job.wait(), 0)
        for number in (3, 4):
            self.assertIn(f"text-{number:05}.bin of an earlier command is removed", job.text())
            self.assertFalse(pathlib.Path(f"{shards}-{number:05}.bin").exists())
        self.assertNotIn("text-00001.bin of", job.text())

    @unittest.skipUnless(MPIRUN, "no mpirun in this build")
    def test_a_rank_that_stops_at_the_end_is_named(self):
        for place in ("end.mpi@1", "end.left@1", "end.mpi@0"):
            text = self.train("train.steps=1", "comm.save_timeout_seconds=2", code=6, ranks=2, fail=f"{place}=stop")
            rank = place[-1]
            self.assertRegex(text, rf"\[watchdog\] rank {rank} (on host \S+ \(process \d+\) )?"
                             r"(does not answer|has not left)")
            self.assertIn("comm.save_timeout_seconds", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
