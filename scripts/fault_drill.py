#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains through faults and demands the bits of runs without faults.

usage: scripts/fault_drill.sh [--program PATH] [--kills N] [--seed S] [--csv FILE] [--only CLASS,..] [--relaunch]

Every round trains one of six layouts to its end through a series of faults, and continues with --resume after each
fault that ends the run; scripts/faults/classes.py has the classes. With --relaunch, scripts/slipstream-run resumes the
runs after SIGKILL of a rank, of all ranks or of mpirun at random times.

A round is survived if its last run ends with 0, if the loss, gradient norm and params_hash of every step and the final
weights equal those of the run without faults, and if every fault had the effect that its class allows. For each class,
the table has the faults, the survived ones, the seconds from the fault to the first error line or the end of the
launcher (median and largest), and the steps that were trained again. The exit code is 1 if a round is not survived.
"""
import argparse
import collections
import contextlib
import csv
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

from faults.classes import FAULTS
from faults.damage import Damage
from faults.job import LAYOUTS, LIMIT_S, MPIRUN, PEERS, ROOT, STEPS, Jobs, Start, defect_of, steps_of, trajectory, weights_of

FAULTS_OF_ROUND = 6
COLUMNS = ["class", "faults", "survived", "seconds", "seconds_max", "steps_lost_mean"]


class Failed(Exception):
    """A fault was not survived."""


class Drill:
    def __init__(self, options, scratch, disk):
        self.random = random.Random(options.seed)
        self.scratch, self.disk = scratch, disk
        program = options.program.resolve()
        self.preload = options.preload or program.parent / "tests" / "faults" / "libslipstream_faults.so"
        self.jobs = Jobs(program, scratch, self.random, options.relaunch)
        self.damage = Damage(self.random)
        self.whole = {}
        self.faults, self.survived = collections.Counter(), collections.Counter()
        self.seconds, self.lost_steps = collections.defaultdict(list), collections.defaultdict(list)
        self.notes, self.lost_s, self.launchers_hung = [], 0.0, 0

    def note(self, text):
        self.notes.append(text)

    def require_no_defect(self, code, text, hung=False):
        if defect := defect_of(code, text, hung):
            self.note(text)
            raise Failed(f"a defect: {defect}")

    def learn(self, layout):
        """The run without faults."""
        start = self.jobs.run(Start(layout, self.scratch / f"whole{layout}", False))
        self.whole[layout] = trajectory(start.folder), weights_of(start.folder)
        if start.code != 0 or len(self.whole[layout][0]) != STEPS or not self.whole[layout][1]:
            sys.exit(f"{start.text[-3000:]}\nthe run without faults of layout {LAYOUTS[layout]} ended with {start.code}")

    def empty_folder(self, on_disk=False):
        for place in [self.scratch, *([self.disk] if self.disk else [])]:
            for old in place.glob("run*"):
                shutil.rmtree(old) if old.is_dir() else None
        (self.scratch / "run.events.jsonl").unlink(missing_ok=True)
        return (self.disk if on_disk else self.scratch) / "run"

    def judge(self, layout, folder, lines_lost=False):
        """The results of a complete run."""
        lines, (whole, weights) = trajectory(folder), self.whole[layout]
        if lines_lost:  # a bit of a digit changes a line of the steps before
            lines, whole = lines.get(STEPS), whole[STEPS]
        if lines != whole:
            raise Failed("the metrics differ from those of the run without faults")
        if weights_of(folder) != weights:
            raise Failed("the final weights differ from those of the run without faults")

    def round(self, layout, faults):
        """Trains to the end through the first of `faults` that fit, which are taken out. Returns their number."""
        ranks, resumes, folder, classes, lines_lost = LAYOUTS[layout][0], False, None, [], False
        self.notes = []
        try:
            while True:
                fitting = [fault for fault in faults if fault.ranks <= ranks and (resumes or not fault.resumes) and not (resumes and fault.fresh)
                           and fault.setting in ["", *LAYOUTS[layout][1]]]
                fault = fitting[0] if fitting and len(classes) < FAULTS_OF_ROUND else None
                folder = folder or self.empty_folder(fault is not None and fault.fresh)
                start = Start(layout, folder, resumes)
                if fault:
                    fault.arm(self, start)
                self.jobs.run(start)
                self.require_no_defect(start.code, start.text, start.hung)
                self.launchers_hung += start.launcher_hung
                self.note(f"{fault.name if fault else 'no fault'} {start.fail_point} {'happened' if start.happened else ''} exit code {start.code}")
                if fault and start.happened:
                    faults.remove(fault)
                    classes.append(fault.name)
                    self.faults[fault.name] += 1
                    if wrong := not start.launcher_hung and fault.judge(start):
                        raise Failed(f"{fault.name}: {wrong}")
                    lines_lost |= start.damaged == "metrics"
                    self.measure(fault.name, start)
                elif start.code != 0 and not start.launcher_hung:
                    raise Failed(f"a run without a fault ended with {start.code}")
                elif fault:  # the run ended before
                    faults.remove(fault)
                    faults.append(fault)
                if start.code == 0:
                    break
                # The remedies that refusals name.
                if "If it has ended, delete" in start.text:
                    (folder / "lock").unlink()
                resumes = "or start without --resume" not in start.text
            self.judge(layout, folder, lines_lost)
        except Failed as failure:
            print(f"layout {LAYOUTS[layout]}: {failure}\n  " + "\n  ".join(self.notes) + f"\n{start.text[-3000:]}", flush=True)
            return len(classes), False
        self.survived.update(classes)
        return len(classes), True

    def measure(self, kind, start):
        if start.code == 0:
            return
        if start.seconds() is not None:
            self.seconds[kind].append(start.seconds())
        if PEERS in LAYOUTS[start.layout][1]:
            return  # the next start continues from memory
        self.lost_steps[kind].append(max(0, max(trajectory(start.folder), default=0) - max(steps_of(start.folder), default=0)))

    # With slipstream-run:

    def repeated_killer(self, classes):
        """Kills until the run ends, six times at most. Appends the classes."""
        def during(start):
            while len(classes) < FAULTS_OF_ROUND and not start.over.wait(self.random.uniform(0.3, 1.5)):
                kind, pick = self.random.choice(["rank", "ranks", "launcher"]), self.random.random()
                found = self.jobs.ranks_of(start.folder, MPIRUN[0] if kind == "launcher" else None)
                found = found[int(pick * len(found)):][:1] if kind == "rank" else found
                classes.extend([kind] if found else [])
                for pid in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        return during

    def relaunched_round(self, layout, _):
        """Trains to the end under slipstream-run. Returns the number of faults."""
        classes = []
        start = self.jobs.run(Start(layout, self.empty_folder(), False, during=self.repeated_killer(classes)))
        self.faults.update(classes)
        self.lost_s += json.loads((self.scratch / "run.events.jsonl").read_text().splitlines()[-1])["seconds_lost"]
        try:
            self.require_no_defect(start.code, start.text, start.hung)
            if start.code != 0:
                raise Failed(f"exit code {start.code}")
            self.judge(layout, start.folder)
        except Failed as failure:
            print(f"layout {LAYOUTS[layout]} through {classes}: {failure}\n{start.text[-3000:]}")
            return len(classes), False
        self.survived.update(classes)
        return len(classes), True

    def rows(self):
        for kind in sorted(self.faults):
            seconds, steps = self.seconds[kind], self.lost_steps[kind]
            yield {"class": kind, "faults": self.faults[kind], "survived": self.survived[kind],
                   "seconds": round(statistics.median(seconds), 2) if seconds else "",
                   "seconds_max": round(max(seconds), 2) if seconds else "",
                   "steps_lost_mean": round(statistics.mean(steps), 2) if steps else ""}


@contextlib.contextmanager
def small_disk(scratch):
    """A mounted disk of 2 MiB, or None."""
    disk = scratch / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], capture_output=True).returncode == 0
    try:
        yield disk if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(disk)])


def supply(drill, fitting, kills):
    """`kills` faults, every class as often as the others, in a random order."""
    faults = [fitting[i % len(fitting)] for i in range(kills)]
    drill.random.shuffle(faults)
    return faults


def train_through(drill, options, fitting, layouts):
    """Returns the numbers of faults, of faults to inject, of rounds and of survived rounds."""
    wanted, left = options.kills, supply(drill, fitting, options.kills)
    done, rounds, good, idle = 0, 0, 0, 0
    while done < wanted and idle < 100:
        if not left:
            left = supply(drill, fitting, wanted - done)
        before = len(left)
        if not options.relaunch and all(fault.resumes for fault in left):
            left.insert(0, FAULTS[0])  # only a run that a fault has ended can be resumed
            wanted += 1
        layout = layouts[rounds % len(layouts)]
        faults, ok = (drill.relaunched_round if options.relaunch else drill.round)(layout, left)
        done, rounds, good = done + faults, rounds + 1, good + ok
        idle = 0 if (faults if options.relaunch else len(left) < before) else idle + 1
        if not ok and not options.keep_going:
            break
    return done, wanted, rounds, good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "slipstream")
    parser.add_argument("--preload", type=pathlib.Path, help="library of broken disks and clocks (default: beside the program)")
    parser.add_argument("--kills", type=int, default=20, help="faults to inject in all")
    parser.add_argument("--only", default="", help="classes, separated by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=pathlib.Path)
    parser.add_argument("--keep-going", action="store_true", help="also after a round that is not survived")
    parser.add_argument("--relaunch", action="store_true", help="scripts/slipstream-run resumes the runs")
    options = parser.parse_args()
    unknown = [name for name in options.only.split(",") if name and name not in [fault.name for fault in FAULTS]]
    if unknown:
        parser.error(f"unknown class {unknown[0]}; known: {', '.join(fault.name for fault in FAULTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # unmounts the disk
    layouts = list(range(len(LAYOUTS))) if shutil.which("mpirun") else [0]
    with tempfile.TemporaryDirectory(prefix="slipstream_drill_") as name, small_disk(pathlib.Path(name)) as disk:
        drill = Drill(options, pathlib.Path(name), disk)
        fitting = []
        for fault in FAULTS:
            missing = fault.needs(drill) if fault.needs else ""
            if missing:
                print(f"left out {fault.name}: {missing}")
            elif not options.only or fault.name in options.only.split(","):
                fitting.append(fault)
        for layout in layouts:
            drill.learn(layout)
        done, wanted, rounds, good = train_through(drill, options, fitting, layouts)
        rows = list(drill.rows())
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    print(f"{done} faults in {rounds} rounds with seed {options.seed}: {good} rounds ended with the bits of the run without faults")
    if drill.launchers_hung:
        print(f"{drill.launchers_hung} times mpirun did not end after its ranks, and was killed")
    print(f"seconds lost per fault: {drill.lost_s / max(1, done):.2f}" if options.relaunch else
          f"limit of a wait in the class stop: {LIMIT_S} s")
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    sys.exit(0 if good == rounds and done >= wanted else 1)


if __name__ == "__main__":
    main()
