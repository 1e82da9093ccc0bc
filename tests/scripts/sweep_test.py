#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/sweep.py with a program of known times: killed and resumed at every point, failures, refusals, job arrays."""
import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "sweep.py"
EVERYTHING = "SLIPSTREAM_TEST_ALL" in os.environ

sys.dont_write_bytecode = True
sys.path.insert(0, str(SCRIPT.parent))
import sweep

# The step time is 1000 / ranks + layers; the second of two counted steps takes 2 ms more. Each start adds a line to
# "starts".
PROGRAM = """#!/bin/sh
[ "$1" = --version ] && { echo "program $VERSION"; exit 0; }
command=$1
dir= layers=0 ranks=${RANKS:-1}
for word; do
  case $word in
    output.dir=*) dir=${word#output.dir=}; dir=${dir#?}; dir=${dir%?} ;;
    model.layers=*) layers=${word#model.layers=} ;;
    --paced) echo paced >> paced ;;
    model.leyers=*) echo "slipstream: [config] --set unknown key 'model.leyers', did you mean 'model.layers'?" >&2; exit 2 ;;
  esac
done
[ "$command" = plan ] && { [ "$layers" = 66 ] && { echo "slipstream: [config] too deep." >&2; exit 2; }
  [ "$layers" -ge 70 ] && [ "$layers" -le 72 ] && {
    echo '{"plan_hash": "'$((layers / 71))'", "notes": ["--set model.layers='$layers' changes nothing: it is one plan"]}'; exit 0; }
  echo '{}'; exit 0; }
echo "$ranks $layers" >> starts
[ "$layers" = 99 ] && { echo first; echo "slipstream: [nan] step 3 has no finite loss." >&2; echo "mpirun: ended" >&2; exit 5; }
[ "$layers" = 98 ] && exec sleep 100
[ "$layers" = 97 ] && kill -KILL $$
mkdir -p "$dir/checkpoints"
ms=$((1000 / ranks + layers))
for step in 1 2; do echo '{"step": '$step', "loss": 5.0, "step_ms": 77777}'; done > "$dir/metrics.jsonl"
echo '{"step": 3, "loss": 4.0, "hidden": null, "step_ms": '$((ms - 1))'}' >> "$dir/metrics.jsonl"
echo '{"step": 4, "loss": 3.5, "val_loss": 3.25, "hidden": null, "step_ms": '$((ms + 1))'}' >> "$dir/metrics.jsonl"
echo '{"format": 1, "step_ns": 5000000, "stages": [{"memory_bytes": {"params": 10, "grads": 5}},
      {"memory_bytes": {"params": 20, "grads": 5}}]}' > "$dir/plan.json"
[ "$layers" = 96 ] && echo damaged > "$dir/metrics.jsonl"
exit 0
"""
LAUNCHER = '#!/bin/sh\n[ "$1" = -n ] || exit 9\nexport RANKS=$2\nshift 2\nexec "$@"\n'
# Kills the interpreter before its N-th change of a file below FOLDER, and before its N-th start of a program.
KILLER = """
import os, runpy, signal, sys
left, folder = int(sys.argv[1]), sys.argv[2]
def watch(event, args):
    global left
    writes = event == "open" and isinstance(args[0], str) and folder in args[0] and args[2] & (os.O_WRONLY | os.O_RDWR)
    if writes or event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "subprocess.Popen"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
sys.argv = sys.argv[3:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Folder(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="slipstream_sweep_")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        for name, text in (("program", PROGRAM), ("launch", LAUNCHER), ("killer.py", KILLER), ("run.toml", "")):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    def command(self, text, *flags, out="out"):
        (self.folder / "sweep.toml").write_text('run = "run.toml"\n' + text)
        return [str(SCRIPT), "sweep.toml", "--dir", out, "--program", "./program", "--launcher", "./launch", *flags]

    def sweep(self, text, *flags, code=0, out="out", prefix=(), environment=()):
        done = subprocess.run([sys.executable, *prefix, *self.command(text, *flags, out=out)], cwd=self.folder, text=True,
                              capture_output=True, timeout=100, env=dict(os.environ, **dict(environment)))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def starts(self):
        path = self.folder / "starts"
        return path.read_text().splitlines() if path.exists() else []

    def rows(self, out="out"):
        with open(self.folder / out / "sweep.csv", newline="") as file:
            return list(csv.DictReader(file))


GRID = 'repeats = 2\n[grid]\nranks = [1, 2]\n"model.layers" = [3]\n'


class Runs(Folder):
    def test_rows_have_the_figures_of_all_runs_in_interleaved_order(self):
        done = self.sweep('repeats = 3\n[set]\n"model.width" = 8\n[grid]\nranks = [1, 4]\n"model.layers" = [10, 20]\n')
        rows = self.rows()
        self.assertEqual([(row["ranks"], row["model.layers"]) for row in rows], [("1", "10"), ("1", "20"), ("4", "10"), ("4", "20")])
        for row in rows:
            ms = 1000 // int(row["ranks"]) + int(row["model.layers"])
            self.assertEqual([float(row[key]) for key in ("step_ms", "step_ms_low", "step_ms_high")], [ms] * 3)
            self.assertEqual((row["loss"], row["val_loss"], row["forecast_ms"], row["memory_bytes"]), ("3.5", "3.25", "5", "25"))
            self.assertEqual((row["runs"], row["failed"], row["why"]), ("3", "0", ""))
        there = ["1 10", "1 20", "4 10", "4 20"]
        self.assertEqual(self.starts(), there + there[::-1] + there)
        self.assertIn("12 of 12 runs", done.stdout)
        record = json.loads((self.folder / "out/sweep.json").read_text())
        self.assertEqual(record["varied"], ["ranks", "model.layers"])
        self.assertEqual(record["points"][3]["figures"]["memory.params"]["median"], 20)
        self.assertEqual(list(self.folder.glob("out/trials/*/run/checkpoints")), [])

    def test_points_with_one_plan_are_named_with_the_planners_reason(self):
        printed = self.sweep('repeats = 1\n[grid]\n"model.layers" = [70, 71, 72]\n').stdout
        self.assertEqual([line for line in printed.splitlines() if line.startswith("note: ")],
                         ["note: model.layers=72 changes nothing: it is one plan"])
        self.assertFalse((self.folder / "paced").exists())

    def test_paced_sweeps_train_with_paced(self):
        self.sweep("paced = true\n" + GRID)
        self.assertEqual((self.folder / "paced").read_text(), "paced\n" * 4)

    def test_points_are_combined_with_the_grid(self):
        self.sweep('repeats = 1\n[grid]\nranks = [1, 2]\n[[points]]\nmodel.layers = 1\n[[points]]\n"model.layers" = 5\n"zero.stage" = 1\n')
        self.assertEqual([(row["ranks"], row["model.layers"], row["zero.stage"]) for row in self.rows()],
                         [("1", "1", ""), ("2", "1", ""), ("1", "5", "1"), ("2", "5", "1")])
        self.assertEqual(self.rows()[0]["step_ms_low"], "")  # one run has no interval

    def test_a_sweep_killed_at_every_point_ends_with_the_same_table(self):
        text = 'repeats = 2\n[grid]\nranks = [2]\n"model.layers" = [3]\n'
        self.sweep(text)
        expected, trials = (self.folder / "out/sweep.csv").read_bytes(), 2
        kills = 0
        for number in range(0, 200, 1 if EVERYTHING else 4):
            (self.folder / "starts").unlink()
            out = f"out{number}"
            prefix = [self.folder / "killer.py", str(number), out]
            done = subprocess.run([sys.executable, *map(str, prefix), *self.command(text, out=out)], cwd=self.folder, text=True,
                                  capture_output=True, timeout=100)
            if done.returncode == 0:
                break
            self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)
            kills += 1
            finished = len(list(self.folder.glob(f"{out}/trials/*/trial.json")))
            before = len(self.starts())
            self.sweep(text, out=out)
            self.assertEqual((self.folder / out / "sweep.csv").read_bytes(), expected)
            self.assertEqual(len(self.starts()) - before, trials - finished, f"killed before event {number}")
        self.assertGreater(kills, 30 if EVERYTHING else 7)
        print(f"COUNTED {kills} points at which a sweep was killed and resumed")

    def test_a_stopped_sweep_ends_its_run_and_continues(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            out = f"out{int(number)}"
            text = 'repeats = 1\n[grid]\n"model.layers" = [98, 4]\n'
            process = subprocess.Popen([sys.executable, *self.command(text, out=out)], cwd=self.folder, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            deadline = time.monotonic() + 30
            while not self.sleepers() and time.monotonic() < deadline:
                time.sleep(0.02)
            self.assertTrue(self.sleepers())
            busy = subprocess.run(self.command(text, out=out), cwd=self.folder, text=True, capture_output=True)
            self.assertEqual(busy.returncode, 7)
            self.assertIn("another sweep runs in this folder", busy.stderr)
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 75 if number == signal.SIGTERM else -9)
            if number == signal.SIGTERM:
                self.assertIn("The same command continues", errors)
            deadline = time.monotonic() + 30
            while self.sleepers() and time.monotonic() < deadline:
                time.sleep(0.02)
            self.assertEqual(self.sleepers(), [])
            self.sweep(text.replace("repeats", "timeout_seconds = 0.3\nrepeats"), out=out, code=137)
            self.assertEqual([row["runs"] for row in self.rows(out)], ["0", "1"])
            self.assertEqual(self.rows(out)[0]["why"], "ended after timeout_seconds = 0.3")

    def sleepers(self):
        """Processes of the run that sleeps, in this test's folder."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "cmdline").read_bytes() == b"sleep\x00100\x00" and os.readlink(entry / "cwd") == str(self.folder):
                    found.append(entry.name)
            except OSError:
                pass
        return found

    def test_failed_runs_are_recorded_and_the_sweep_goes_on(self):
        text = 'repeats = 2\n[grid]\n"model.layers" = [99, 97, 96, 66, 5]\n'
        done = self.sweep(text, code=5)
        rows = self.rows()
        self.assertEqual([(row["runs"], row["failed"]) for row in rows], [("0", "2")] * 4 + [("2", "0")])
        self.assertEqual(rows[0]["why"], "slipstream: [nan] step 3 has no finite loss.")
        self.assertIn("failed with code 137", done.stdout)
        self.assertIn("its metrics cannot be read", rows[2]["why"])
        self.assertEqual(rows[3]["why"], "slipstream: [config] too deep.")
        self.assertNotIn("1 66", self.starts())  # the planner refused it
        self.assertEqual((rows[0]["step_ms"], rows[4]["step_ms"]), ("", "1005"))
        count = len(self.starts())
        self.sweep(text, code=5)
        self.assertEqual(len(self.starts()), count)
        self.sweep(text, "--retry", code=5)
        self.assertEqual(len(self.starts()), count + 6)

    def test_points_that_all_fail_alike_end_the_sweep(self):
        text = 'repeats = 2\n[grid]\n"model.layers" = [99]\nranks = [1, 2, 3, 4, 5]\n'
        for flags in ((), (), ("--retry",)):  # the same command does not go on through the others
            done = self.sweep(text, *flags, code=5)
            self.assertEqual(done.stderr, "sweep: the first 3 points fail alike, so the others are left out: [nan] step 3 has no "
                                          "finite loss. After the repair, --retry runs all of them.\n")
        self.assertEqual(self.starts(), ["1 99", "2 99", "3 99"] * 2)
        (self.folder / "program").write_text(PROGRAM.replace("= 99 ]", "= 9999 ]"))
        self.sweep(text, "--retry")
        self.assertEqual({row["runs"] for row in self.rows()}, {"2"})
        # Points that fail in other ways, or do not fail, are all measured.
        self.sweep('repeats = 1\n[grid]\n"model.layers" = [97, 96, 66, 95]\n', out="b", code=137)
        self.assertEqual([row["runs"] for row in self.rows("b")], ["0", "0", "0", "1"])

    def test_failures_name_retry(self):
        done = self.sweep('repeats = 2\n[grid]\n"model.layers" = [99, 3]\n', code=5)
        self.assertIn("sweep: 2 of 4 runs failed, the first with: [nan] step 3 has no finite loss. --retry runs them again.",
                      done.stderr)

    def test_the_text_is_there_before_the_first_run(self):
        (self.folder / "run.toml").write_text('[data]\ntrain = "absent.txt"\n')
        text = 'repeats = 1\n[grid]\n"model.layers" = [3]\n'
        done = self.sweep(text, code=3)
        self.assertIn("the text absent.txt does not exist. Create it, or name another one", done.stderr)
        self.assertEqual(self.starts(), [])
        (self.folder / "shard-0.bin").write_text("")
        self.sweep(text + '[set]\n"data.train" = "shard-*.bin"\n')
        (self.folder / "absent.txt").write_text("one")
        self.sweep(text, out="b")
        (self.folder / "absent.txt").write_text("three")
        self.assertIn("another text", self.sweep(text, out="b", code=2).stderr)

    def test_one_slow_round_moves_no_figure(self):
        (self.folder / "program").write_text(PROGRAM.replace("ms=$((", 'slow=0; [ $(wc -l < starts) = 2 ] && slow=5000\nms=$((slow + '))
        self.sweep('repeats = 3\n[grid]\n"model.layers" = [3]\nranks = [2]\n')
        row = self.rows()[0]
        self.assertEqual([row[key] for key in ("step_ms", "step_ms_low", "step_ms_high")], ["503", "503", "5503"])

    def test_more_points_and_rounds_keep_finished_runs(self):
        self.sweep(GRID)
        self.sweep(GRID.replace("[3]", "[3, 4]").replace("repeats = 2", "repeats = 3"))
        self.assertEqual(sorted(self.starts()), sorted(["1 3", "2 3", "1 4", "2 4"] * 3))

    def test_runs_of_another_program_are_not_mixed(self):
        self.sweep(GRID)
        done = self.sweep(GRID, code=2, environment={"VERSION": "2"})
        self.assertIn("out has runs of another program, another run.toml or another text", done.stderr)
        (self.folder / "run.toml").write_text("# changed")
        self.sweep(GRID, code=2)
        self.sweep(GRID, "--again")
        self.assertEqual(len(self.starts()), 8)

    def test_job_arrays(self):
        (self.folder / "sbatch").write_text(
            '#!/bin/sh\ngrep "#SBATCH" "$1" >> asked\nlast=$(sed -n "s/.*--array=0-\\([0-9]*\\).*/\\1/p" "$1")\n'
            'for task in $(seq 0 $last); do SLURM_ARRAY_TASK_ID=$task bash "$1" || echo "failed $task"; done >> tasks\n')
        (self.folder / "sbatch").chmod(0o755)
        path = {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        text = GRID.replace("[3]", "[3, 99, 66]") + '[slurm]\noptions = ["--partition=fast"]\nat_once = 1\n'
        self.sweep(text, "--slurm", environment=path)
        asked = (self.folder / "asked").read_text()
        for line in ("#SBATCH --ntasks=1 --array=0-3%1", "#SBATCH --ntasks=2 --array=0-3%1", "#SBATCH --partition=fast"):
            self.assertIn(line + "\n", asked)
        self.sweep(text, "--collect", code=5)
        self.assertEqual([(row["runs"], row["failed"]) for row in self.rows()], [("2", "0"), ("0", "2"), ("0", "2")] * 2)
        self.assertEqual(sorted(self.starts()), sorted(["1 3", "2 3", "1 99", "2 99"] * 2))


class Refusals(Folder):
    def refused(self, text, sentence, *flags, code=2):
        done = self.sweep(text, *flags, code=code)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(sentence, done.stderr)
        self.assertEqual(self.starts(), [])

    def test_each_is_one_sentence_before_the_first_run(self):
        for text, sentence in [
            ("", "has neither a [grid] nor [[points]]"),
            ("[grid]\nranks = []\n", "grid.ranks is empty, so the sweep has no point"),
            ("[grid]\nranks = 3\n", "grid.ranks must be a list, for instance [3]."),
            ("[grid]\nranks = [0]\n", "ranks = 0 must be a whole number from 1."),
            ("[grid]\nranks = [1, 1]\n", "points 1 and 2 are equal"),
            ("repeat = 3\n[grid]\nranks = [1]\n", "unknown key 'repeat'; did you mean 'repeats'?"),
            ("repeats = true\n[grid]\nranks = [1]\n", "repeats must be an integer."),
            ("paced = 1\n[grid]\nranks = [1]\n", "paced must be true or false."),
            ("repeats = 0\n[grid]\nranks = [1]\n", "repeats = 0 must be from 1 to 1000."),
            ("[grid]\nrank = [1]\n", "'rank', which is neither ranks nor a key TABLE.KEY"),
            ('[grid]\n"output.dir" = ["a"]\n', "sets output.dir, which the sweep gives"),
            ('[grid]\n"model.leyers" = [1]\n', "unknown key 'model.leyers', did you mean 'model.layers'?"),
            ('[grid]\n"model.layers" = [66]\n', "every point is refused, the first with: [config] too deep."),
            ('[grid]\n"model.layers" = [2026-01-01]\n', "has a value of the type date"),
            ("[grid]\nranks = [1]\n[[points]]\nranks = 2\n", "ranks is in [grid] and in [[points]]"),
            ("points = []\n[grid]\nranks = [1]\n", "points is empty"),
            ("[slurm]\nat_one = 1\n[grid]\nranks = [1]\n", "unknown key 'slurm.at_one'; did you mean 'at_once'?"),
            ("[grid\n", "cannot be read"),
            ("[grid]\nranks = [" + ", ".join(map(str, range(1, 40002))) + "]\n", "more than 100000 runs"),
        ]:
            with self.subTest(text=text[:80]):
                self.refused(text, sentence)

    def test_missing_programs_and_files(self):
        text = "[grid]\nranks = [1]\n"
        self.refused(text, "./absent is no program", "--program", "./absent")
        self.refused(text, "--launcher './absent -x' is no program", "--launcher", "./absent -x")
        self.refused(text, "--trial abc is no run of sweep.toml", "--trial", "abc")
        self.refused(text, "unrecognized arguments: --nonsense", "--nonsense")
        (self.folder / "run.toml").unlink()
        self.refused(text, "the run file run.toml of sweep.toml cannot be read: No such file or directory.")
        (self.folder / "run.toml").write_text("")
        (self.folder / "out").write_text("a file")
        self.refused(text, "cannot be written", code=7)


class Reasons(unittest.TestCase):
    """The line that matters in the output of a failed run."""

    RULE = "-" * 74

    def test_lines(self):
        killed = "mpirun noticed that process rank 1 with PID 0 on node a exited on signal 9 (Killed)."
        rows = {
            f"step 1\nslipstream: [comm] rank 1 is gone.\nslipstream: rank 1: [nan] no finite loss.\n{self.RULE}\nPrimary job":
                "slipstream: rank 1: [nan] no finite loss.",
            "slipstream: [watchdog] rank 1 does not answer.\nmpirun: ended": "slipstream: [watchdog] rank 1 does not answer.",
            f"warning: [straggler] slow\n{self.RULE}\n{killed}\n{self.RULE}\n": killed,
            f"{self.RULE}\nThere are not enough slots available\nto satisfy the 4 slots:\n\n  program\n{self.RULE}\n":
                "There are not enough slots available to satisfy the 4 slots:",
            "sh: 1: program: not found\n\n": "sh: 1: program: not found",
            "": "no output",
        }
        with tempfile.TemporaryDirectory() as folder:
            for text, expected in rows.items():
                (pathlib.Path(folder) / "log").write_text(text)
                self.assertEqual(sweep.reason(pathlib.Path(folder) / "log"), expected)


class Intervals(unittest.TestCase):
    def test_the_interval_of_a_median_covers_95_percent_of_all_samples(self):
        """Each value lies below the true median with the chance 1/2. The interval covers it unless fewer values than its
        rank lie on one side: counted over all 2^n cases, for the interval and for the next narrower one."""
        for count in range(6, 15):
            _, low, high = sweep.interval(list(range(1, count + 1)))
            self.assertEqual(low + high, count + 1)
            covered = [sum(rank <= case.bit_count() <= count - rank for case in range(2**count)) for rank in (low, low + 1)]
            self.assertGreaterEqual(covered[0], 0.95 * 2**count, count)
            self.assertLess(covered[1], 0.95 * 2**count, count)
        self.assertEqual(sweep.interval([3.0, 900.0, 1.0]), (3.0, 1.0, 900.0))  # one slow round moves no median
        self.assertEqual(sweep.interval([2.0]), (2.0, None, None))


class Committed(unittest.TestCase):
    def test_every_sweep_of_the_repository_is_read(self):
        root = SCRIPT.parents[1]
        os.chdir(root)
        files = sorted(root.glob("configs/sweeps/*.toml"))
        self.assertGreaterEqual(len(files), 4)
        for file in files:
            with self.subTest(file=file.name):
                self.assertGreater(len(sweep.Sweep(file).points), 1)


if __name__ == "__main__":
    unittest.main()
