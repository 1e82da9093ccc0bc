#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one run file at many settings and collects the measured steps in one table with confidence intervals.

  scripts/sweep.py configs/sweeps/strong_scaling.toml      measures the missing runs, in runs/sweeps/strong_scaling
  build/slipstream report runs/sweeps/strong_scaling       draws the results

A sweep file is TOML:

  run = "configs/runs/quickstart.toml"       # from the current folder, as all paths
  repeats = 5                                # default: 3
  timeout_seconds = 600                      # of one run; default: 3600
  paced = true                               # train --paced: works sleep for their planned times; default: false
  [set]                                      # --set of every run, and ranks (default: 1)
  "train.steps" = 40
  [grid]                                     # lists; the sweep runs all combinations
  ranks = [1, 2, 4]
  "overlap.bucket_size" = ["1MiB", "4MiB"]
  [[points]]                                 # combined with the grid; for settings that change together
  "zero.stage" = 1
  [slurm]                                    # for --slurm
  options = ["--partition=gpu"]              # of sbatch
  at_once = 4                                # runs of an array; default: no limit

Every round visits all points, and every second round visits them backwards, so that a drift of the machine affects all
of them. An interrupted sweep continues where it stopped. If a run fails, the sweep records the reason and continues
with the other runs. If the first points all fail for the same reason, it leaves out the others. It ends with the exit
code of the first failed run, and --retry runs the failed runs again. The table has medians. Checkpoints of the runs are
deleted. Exit codes: those of slipstream.
"""
import argparse
import csv
import ctypes
import datetime
import fcntl
import glob
import hashlib
import io
import itertools
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # beside an installed sweep_file.py
from sweep_file import Refusal, Sweep, plain, toml_text, tomllib

USAGE, DATA, RESOURCES, PREEMPTED = 2, 3, 7, 75
ROOT = pathlib.Path(__file__).resolve().parent.parent
# The installed command is a link beside the program; in the checkout, the program is in build/.
BESIDE = pathlib.Path(__file__).parent / "slipstream"
PROGRAM = str(BESIDE.absolute() if BESIDE.is_file() else ROOT / "build/slipstream")
WARM_STEPS = 2  # left out of medians, as of the means in slipstream report
ALIKE = 3  # so many points must fail for the same reason before the others are left out
MEDIANS = ("step_ms", "tokens_per_s", "compute_ms", "comm_ms", "exposed_ms", "hidden", "bubble_ms", "input_ms", "other_ms",
         "skew_ms", "bound_ms", "mfu")
LASTS = ("tokens", "loss", "val_loss")


def interval(values):
    """(median, low, high). low and high are its 95 % confidence interval, from the order of the values alone, or, with
    fewer than six values, which have no such interval, the smallest and the largest value. None for one value."""
    ordered, count = sorted(values), len(values)
    if count < 2:
        return ordered[0], None, None
    # The median of what is measured lies outside of the k-th smallest and largest of `count` values with the chance that
    # fewer than k of them fall on one side of it.
    outside, k = 2 / 2**count, 1
    while outside + 2 * math.comb(count, k) / 2**count <= 0.05:
        outside += 2 * math.comb(count, k) / 2**count
        k += 1
    return statistics.median(ordered), ordered[k - 1], ordered[-k]


# ---- one run ---------------------------------------------------------------------------------------------------------


def end_with(parent):
    """For a child: SIGTERM when this process dies, even by SIGKILL. mpirun then ends its ranks."""
    libc, pr_set_pdeathsig = ctypes.CDLL(None), 1

    def prepare():
        libc.prctl(pr_set_pdeathsig, int(signal.SIGTERM))
        if os.getppid() != parent:
            os._exit(1)
    return prepare


def write_whole(path, text):
    """Writes a file so that it has its old or its new text, wherever this process is killed."""
    other = path.with_name(f"{path.name}.{os.getpid()}.new")
    with open(other, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(other, path)


def read_object(path):
    """The JSON object in a file; None if it has none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def figures_of(folder):
    """The figures of a finished run. Medians leave out the first steps."""
    lines = {}
    for text in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        lines[line["step"]] = line
    steps = [lines[step] for step in sorted(lines)]
    figures = {}
    for key in MEDIANS:
        values = [line[key] for line in steps[WARM_STEPS if len(steps) > WARM_STEPS else 0:] if is_number(line.get(key))]
        if values:
            figures[key] = statistics.median(values)
    for key in LASTS:
        values = [line[key] for line in steps if is_number(line.get(key))]
        if values:
            figures[key] = values[-1]
    plan = read_object(folder / "plan.json") or {}
    if is_number(plan.get("step_ns")) and plan["step_ns"] > 0:
        figures["forecast_ms"] = plan["step_ns"] / 1e6
    # The memory of the pipeline stage that needs the most.
    stages = [stage["memory_bytes"] for stage in plan.get("stages", []) if isinstance(stage.get("memory_bytes"), dict)]
    if stages:
        largest = max(stages, key=lambda stage: sum(stage.values()))
        figures["memory_bytes"] = sum(largest.values())
        figures.update({f"memory.{owner}": size for owner, size in largest.items()})
    if "step_ms" not in figures:
        raise ValueError("metrics.jsonl has no step with its time")
    return figures


def reason(log):
    """The line of a failed run that names the cause: the error of slipstream, preferably of the rank that failed and
    not of its peers; else the launcher's first sentence; else the last line."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    own = [line for line in lines if line.startswith("slipstream:")]
    causes = [line for line in own if not re.search(r"\[(watchdog|comm|mpi)\]", line)] or own
    if causes:
        return causes[0][:500]
    if killed := next((line for line in lines if "noticed that process rank" in line), None):
        return killed[:500]
    # mpirun prints its messages between lines of dashes.
    rule = next((i for i, line in enumerate(lines) if re.fullmatch("-{20,}", line)), None)
    if rule is not None:
        paragraph = []
        for line in lines[rule + 1 :]:
            if paragraph and (not line or re.fullmatch("-{20,}", line)):
                break
            paragraph += [line] if line else []
        if paragraph:
            return " ".join(paragraph)[:500]
    return next((line for line in reversed(lines) if line), "no output")[:500]


def texts_of(run_text, settings):
    """The texts and patterns that a run names."""
    try:
        data = dict(tomllib.loads(run_text.decode(errors="replace")).get("data", {}))
    except ValueError:
        return []
    data.update({key.removeprefix("data."): value for key, value in settings.items() if key.startswith("data.")})
    sources = data.get("sources")
    named = [data.get("train"), data.get("validation"), *(sources if isinstance(sources, list) else [])]
    return [path for path in named if isinstance(path, str) and path]


def text_problem(run_text, settings):
    """A sentence about a text of the run that does not exist; None if all do."""
    for path in texts_of(run_text, settings):
        if not os.path.exists(path) and not glob.glob(path):
            remedy = "scripts/quickstart.sh writes it, or" if path == "data/quickstart.txt" else "Create it, or"
            return f"the text {path} does not exist. {remedy} name another one: \"data.train\" = \"FILE\" below [set]."
    return None


class Runner:
    def __init__(self, sweep, options):
        self.sweep, self.options = sweep, options
        self.folder = pathlib.Path(options.dir or pathlib.Path("runs/sweeps", sweep.path.stem))
        self.program, self.launcher = options.program, options.launcher
        if not shutil.which(self.program):
            raise Refusal(f"{self.program} is no program. Build it (ninja -C build), or give its path with --program.")
        if not options.slurm and not (self.launcher and shutil.which(self.launcher[0])):
            raise Refusal(f"--launcher '{shlex.join(self.launcher)}' is no program. Install Open MPI, or give its path.")
        self.cores = len(os.sched_getaffinity(0))
        version = subprocess.run([self.program, "--version"], capture_output=True, text=True).stdout.strip()
        texts = [(os.path.realpath(path), os.path.getsize(path)) for path in texts_of(sweep.run_text, {}) if os.path.isfile(path)]
        self.identity = hashlib.sha256(version.encode() + b"\0" + sweep.run_text + repr(texts).encode()).hexdigest()[:16]
        self.process, self.stops = None, False

    def name(self, point, number):
        return f"{point.id}-r{number}"

    def record(self, point, number):
        """The finished trial, or None if it has not run to its end."""
        found = read_object(self.folder / "trials" / self.name(point, number) / "trial.json")
        return found if found and isinstance(found.get("code"), int) and isinstance(found.get("figures"), dict) else None

    def lock(self, path):
        """Locks the folder until this process ends."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.held = open(path, "w")
        except OSError as error:
            raise Refusal(f"{path} cannot be written: {error.strerror}. Give --dir a folder that can.", RESOURCES) from error
        try:
            fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refusal(f"{path} is locked: another sweep runs in this folder. Wait for its end, or use --dir.", RESOURCES) from None

    def refuse_other_trials(self):
        for point, number in self.sweep.trials():
            record = self.record(point, number)
            if record and record.get("identity") != self.identity:
                if self.options.again:
                    shutil.rmtree(self.folder / "trials" / self.name(point, number))
                else:
                    raise Refusal(f"{self.folder} has runs of another program, another {self.sweep.run} or another text. Use --dir for a "
                                  "new folder, or --again to measure them again.")
            if record and self.options.retry and record["code"] != 0:
                shutil.rmtree(self.folder / "trials" / self.name(point, number))

    def planned(self, point):
        """(code, sentence) of a point that the planner refuses; None if it is legal. An unknown key ends the sweep."""
        command = [self.program, "plan", str(self.sweep.run), "--ranks", str(point.ranks), "--json", *point.sets()]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            try:
                point.plan = json.loads(done.stdout)["plan_hash"]
            except (ValueError, KeyError, TypeError):
                point.plan = None
            return None
        said = [line for line in done.stderr.splitlines() if line.startswith("slipstream:")] or done.stderr.splitlines() or ["no reason"]
        if done.returncode == USAGE and re.search(r"[Uu]nknown key", said[0]):
            raise Refusal(f"{self.sweep.path}: {said[0].removeprefix('slipstream: ')}")
        return done.returncode, said[0]

    def environment(self, ranks):
        """Open MPI refuses root, and more ranks than cores, without these variables. Launchers with a host list have
        better values."""
        environment = dict(os.environ)
        if os.path.basename(self.launcher[0]) == "mpirun" and not any("host" in word for word in self.launcher):
            if os.geteuid() == 0:
                environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
                environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            if ranks > self.cores:
                environment.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
                environment.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")  # Open MPI 5
        return environment

    def measure(self, point, number):
        """Blocks. Runs one trial and writes its record. None if a signal ended it."""
        folder = self.folder / "trials" / self.name(point, number)
        for _ in range(50):  # ranks of a killed sweep may still be writing
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)
        folder.mkdir(parents=True)
        command = [*self.launcher, "-n", str(point.ranks), self.program, "train", str(self.sweep.run),
                   *(["--paced"] if self.sweep.paced else []), *point.sets(), "--set", f"output.dir={toml_text('', str(folder / 'run'))}"]
        began, now = time.monotonic(), datetime.datetime.now(datetime.timezone.utc)
        refused = self.refused.get(point.id)
        code, why, figures = (*refused, {}) if refused else (0, "", {})
        if not refused:
            with open(folder / "log.txt", "wb") as log:
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                                env=self.environment(point.ranks), start_new_session=True, preexec_fn=end_with(os.getpid()))
                code = self.wait()
            if self.stops or code == PREEMPTED:
                self.stops = True
                return None
            if code is None:
                code, why = 128 + signal.SIGKILL, f"ended after timeout_seconds = {self.sweep.timeout_s:g}"
            elif code != 0:
                why = reason(folder / "log.txt")
            else:
                try:
                    figures = figures_of(folder / "run")
                except (OSError, ValueError, KeyError, TypeError) as error:
                    code, why = DATA, f"the run ended without an error, but its metrics cannot be read: {error}"
            shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)
        record = {"ranks": point.ranks, "settings": point.settings, "round": number, "code": code, "why": why,
                  "time": now.isoformat(timespec="seconds"), "seconds": round(time.monotonic() - began, 3),
                  "identity": self.identity, "command": shlex.join(command), "figures": figures}
        write_whole(folder / "trial.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        return record

    def wait(self):
        """Blocks. The exit code; 128 + N after signal N; None after the time limit."""
        process, late = self.process, False
        try:
            code = process.wait(self.sweep.timeout_s)
        except subprocess.TimeoutExpired:
            late = True
            self.end()
            code = process.wait()
        try:  # what a launcher left behind
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process = None
        return None if late else code if code >= 0 else 128 - code

    def end(self):
        """Ends the run. mpirun ends its ranks on SIGTERM."""
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def on_signal(self, *_):
        self.stops = True
        if self.process:
            self.process.terminate()

    # ---- results -----------------------------------------------------------------------------------------------------

    def collect(self):
        """Writes sweep.csv and sweep.json from the records. Returns (finished trials, exit code of the first failed
        one)."""
        rows, finished, failed_code = [], 0, 0
        for point in self.sweep.points:
            records = [each for number in range(1, self.sweep.repeats + 1) if (each := self.record(point, number))]
            failed = [each for each in records if each["code"] != 0]
            finished += len(records)
            figures = {}
            for key in dict.fromkeys(key for each in records for key in each["figures"]):
                values = [each["figures"][key] for each in records if is_number(each["figures"].get(key))]
                if values:
                    figures[key] = interval(values)
            rows.append({"ranks": point.ranks, "settings": {key: plain(value) for key, value in point.settings.items()},
                         "runs": len(records) - len(failed), "failed": len(failed), "why": failed[0]["why"] if failed else "",
                         "trials": [self.name(point, each["round"]) for each in records if each["code"] == 0],
                         "figures": {key: {"median": median, "low": low, "high": high} for key, (median, low, high) in figures.items()}})
            failed_code = failed_code or (failed[0]["code"] if failed else 0)
        self.failures = [(row["failed"], row["why"]) for row in rows if row["failed"]]
        name = self.sweep.path.stem
        write_whole(self.folder / "sweep.json", json.dumps(
            {"format": 1, "name": name, "run": str(self.sweep.run), "repeats": self.sweep.repeats, "varied": self.sweep.varied,
             "points": rows}, indent=1, ensure_ascii=False) + "\n")
        keys = [key for key in (*MEDIANS, *LASTS, "forecast_ms", "memory_bytes") if any(key in row["figures"] for row in rows)]
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        settings = [key for key in self.sweep.varied if key != "ranks"]
        writer.writerow(["ranks", *settings, "runs", "failed", "why", *(f"{key}{part}" for key in keys for part in ("", "_low", "_high"))])
        for row in rows:
            shown = [number for key in keys for number in row["figures"].get(key, dict.fromkeys(("median", "low", "high"))).values()]
            writer.writerow([row["ranks"], *(row["settings"].get(key, "") for key in settings), row["runs"], row["failed"], row["why"],
                             *("" if number is None else f"{number:.9g}" for number in shown)])
        write_whole(self.folder / "sweep.csv", table.getvalue())
        return finished, failed_code

    def missing(self):
        return [(point, number) for point, number in self.sweep.trials() if not self.record(point, number)]

    def check_points(self, points):
        """Asks the planner about every point before the first run, so that a refusal does not come only at its turn."""
        self.refused = {}
        for point in points:
            if refusal := self.planned(point):
                self.refused[point.id] = refusal
        if points and len(self.refused) == len(points) == len(self.sweep.points):
            code, sentence = self.refused[self.sweep.points[0].id]
            raise Refusal(f"{self.sweep.path}: every point is refused, the first with: {sentence.removeprefix('slipstream: ')}", code)
        for point in points:
            if point.id not in self.refused and (problem := text_problem(self.sweep.run_text, point.settings)):
                raise Refusal(f"{self.sweep.path}: {problem}", DATA)
        self.note_equal_plans(points)

    def note_equal_plans(self, points):
        """Finds points that differ in one setting and have the same plan, and thus measure the same. The planner has
        the reason."""
        for earlier, later in itertools.combinations(points, 2):
            plan = getattr(later, "plan", None)
            keys = [key for key in later.settings if later.settings[key] != earlier.settings.get(key)]
            if not plan or getattr(earlier, "plan", None) != plan or earlier.ranks != later.ranks or len(keys) != 1 \
                    or set(earlier.settings) != set(later.settings):
                continue
            given = f"{keys[0]}={toml_text(keys[0], later.settings[keys[0]])}"
            command = [self.program, "plan", str(self.sweep.run), "--ranks", str(later.ranks), "--json", *earlier.sets(), "--set", given]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
            try:
                notes = [note for note in json.loads(done.stdout)["notes"] if note.startswith(f"--set {given} changes nothing")]
            except (ValueError, KeyError, TypeError):
                notes = []
            if notes:
                print(f"note: {notes[0].removeprefix('--set ')}", flush=True)

    def run_all(self):
        self.lock(self.folder / "lock")
        self.refuse_other_trials()
        trials = self.missing()
        total = len(self.sweep.points) * self.sweep.repeats
        self.check_points(list({point.id: point for point, _ in trials}.values()))
        self.collect()
        if (most := max(point.ranks for point in self.sweep.points)) > self.cores and trials:
            print(f"note: {most} ranks share {self.cores} cores, so that a step waits for cores as well", flush=True)
        took = []
        for point, number in trials:
            if (alike := self.all_alike()) and point.id not in self.refused:
                code, why, count = alike
                print(f"sweep: the first {count} points fail alike, so the others are left out: {why.removeprefix('slipstream: ')} "
                      "After the repair, --retry runs all of them.", file=sys.stderr)
                return code
            if self.stops or (record := self.measure(point, number)) is None:
                break
            finished, _ = self.collect()
            took.append(record["seconds"])
            left = statistics.fmean(took) * (total - finished)
            result = f"{record['figures']['step_ms']:.2f} ms" if record["code"] == 0 else f"failed with code {record['code']}: {record['why']}"
            print(f"[{finished}/{total}] {point.label}, round {number}: {result}" + (f" | eta {left:.0f}s" if left else ""), flush=True)
        return self.verdict(total)

    def all_alike(self):
        """(exit code, reason, points) if every measured point failed for one reason, and there are enough of them."""
        records = [each for point, number in self.sweep.trials() if point.id not in self.refused
                   and (each := self.record(point, number))]
        points = {json.dumps([each["ranks"], each["settings"]]) for each in records}
        if len(points) < min(ALIKE, len(self.sweep.points)) or any(each["code"] == 0 for each in records):
            return None
        if len({(each["code"], re.sub("[0-9]+", "", each["why"])) for each in records}) > 1:
            return None
        return records[0]["code"], records[0]["why"], len(points)

    def verdict(self, total):
        finished, failed_code = self.collect()
        print(f"{self.folder}/sweep.csv: {finished} of {total} runs. Draw it: {self.program} report {self.folder}")
        if self.failures:
            count = sum(failed for failed, _ in self.failures)
            print(f"sweep: {count} of {total} runs failed, the first with: {self.failures[0][1].removeprefix('slipstream: ')} "
                  "--retry runs them again.", file=sys.stderr)
        if finished < total:
            print("sweep: stopped early. The same command continues.", file=sys.stderr)
            return PREEMPTED
        return failed_code

    def run_one(self, name):
        """A task of an array."""
        found = [(point, number) for point, number in self.sweep.trials() if self.name(point, number) == name]
        if not found:
            raise Refusal(f"--trial {name} is no run of {self.sweep.path}. Submit the sweep again.")
        point, number = found[0]
        self.lock(self.folder / "trials" / f"{name}.lock")
        if self.record(point, number):
            return 0
        self.refused = {}
        if (record := self.measure(point, number)) is None:
            return PREEMPTED
        self.collect()
        return record["code"]

    def submit(self):
        """One array for each number of ranks, because all tasks of an array have the same size."""
        self.lock(self.folder / "lock")
        self.refuse_other_trials()
        trials = self.missing()
        self.check_points(list({point.id: point for point, _ in trials}.values()))
        for point, number in trials:
            if point.id in self.refused:
                self.measure(point, number)
        self.collect()
        by_ranks = {}
        for point, number in trials:
            if point.id not in self.refused:
                by_ranks.setdefault(point.ranks, []).append(self.name(point, number))
        for ranks, names in by_ranks.items():
            script = self.folder / f"ranks-{ranks}.sbatch"
            command = [sys.executable, str(pathlib.Path(__file__).resolve()), str(self.sweep.path), "--dir", str(self.folder),
                       "--program", self.program, "--launcher", shlex.join(self.launcher), "--trial"]
            limit = f"%{self.sweep.at_once}" if self.sweep.at_once else ""
            lines = ["#!/usr/bin/env bash", f"#SBATCH --ntasks={ranks} --array=0-{len(names) - 1}{limit}",
                     f"#SBATCH --output={self.folder}/array-%A-%a.log", *(f"#SBATCH {option}" for option in self.sweep.options),
                     f"trials=({' '.join(names)})", f'exec {shlex.join(command)} "${{trials[$SLURM_ARRAY_TASK_ID]}}"']
            write_whole(script, "\n".join(lines) + "\n")
            done = subprocess.run(["sbatch", str(script)], capture_output=True, text=True)
            if done.returncode != 0:
                raise Refusal(f"sbatch refuses {script}: {done.stderr.strip()}", RESOURCES)
            print(f"{len(names)} runs on {ranks} ranks: {done.stdout.strip()}", flush=True)
        print(f"When the arrays have ended: {shlex.join([sys.argv[0], str(self.sweep.path), '--dir', str(self.folder), '--collect'])}")
        return 0


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(USAGE, f"sweep: {message}. See --help.\n")


def parse(arguments):
    parser = Parser(prog=pathlib.Path(sys.argv[0]).name, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("sweep", metavar="SWEEP.toml", help="sweep file, or the name of a shipped one, such as bucket_size")
    parser.add_argument("--dir", metavar="FOLDER", help="folder of the results; default: runs/sweeps/NAME")
    parser.add_argument("--program", default=PROGRAM, metavar="PATH",
                        help="default: build/slipstream, or the installed one")
    parser.add_argument("--launcher", type=shlex.split, metavar="COMMAND",
                        help="launcher that takes -n; default: 'mpirun --bind-to none', with --slurm 'srun --mpi=pmix'")
    parser.add_argument("--slurm", action="store_true", help="submit the missing runs as job arrays")
    parser.add_argument("--retry", action="store_true", help="run failed runs again")
    parser.add_argument("--again", action="store_true", help="measure runs of another program, run file or text again")
    parser.add_argument("--collect", action="store_true", help="only write the tables of the finished runs")
    parser.add_argument("--trial", help=argparse.SUPPRESS)  # of an array
    options = parser.parse_args(arguments)
    if options.launcher is None:
        options.launcher = ["srun", "--mpi=pmix"] if options.slurm else ["mpirun", "--bind-to", "none"]
    return options


def main():
    options = parse(sys.argv[1:])
    try:
        if options.slurm and not shutil.which("sbatch"):
            raise Refusal("--slurm needs sbatch, which is not installed. Leave --slurm out to use mpirun.")
        runner = Runner(Sweep(options.sweep), options)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, runner.on_signal)
        if options.collect:
            runner.lock(runner.folder / "lock")
            sys.exit(runner.verdict(len(runner.sweep.points) * runner.sweep.repeats))
        sys.exit(runner.run_one(options.trial) if options.trial else runner.submit() if options.slurm else runner.run_all())
    except Refusal as refusal:
        print(f"sweep: {refusal}", file=sys.stderr)
        sys.exit(refusal.code)
    except OSError as error:
        print(f"sweep: {error.filename or 'a file'} cannot be used: {error.strerror}.", file=sys.stderr)
        sys.exit(RESOURCES)


if __name__ == "__main__":
    main()
