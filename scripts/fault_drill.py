#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills runs at random, resumes them with --resume, and demands the metrics of uninterrupted runs, bit for bit.

usage: scripts/fault_drill.sh [--program PATH] [--kills N] [--seed S] [--csv FILE] [--relaunch]

Every round trains one of four layouts to its end through a series of faults:
  step       SIGKILL of a rank between steps         save      SIGKILL of a rank in a phase of a save
  random     SIGKILL of a rank at a random time      double    SIGKILL of all ranks at once, at a random time
  recovery   SIGKILL of a rank while it resumes      damage    a byte of the newest checkpoint changes, or its end is cut
Every other round has checkpoint.peer_interval = 1 and two more faults:
  peer       SIGKILL of a rank in a phase of a snapshot in memory          keeper    SIGKILL of the keeper of that memory
With --relaunch, scripts/slipstream-run resumes the runs. SIGKILL comes at random times
  rank       to a rank          ranks      to all ranks          launcher   to mpirun
A round is survived if its last run ends with 0 and loss, gradient norm and params_hash of all steps equal those of the
run without faults. The table has for each class: faults, survived rounds, the time from the fault to the end of the
launcher, and the steps that were trained again. Exit code 1 if a round is not survived.
"""
import argparse
import collections
import csv
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS, INTERVAL = 12, 3
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]
LAYOUTS = [(1, []), (2, ["zero.stage=1"]), (2, ["parallel.pipeline=2"]), (3, ["zero.stage=3", "train.global_batch_size=12"])]
PHASES = ["save.begun", "save.in_file", "save.file", "save.gathered", "save.manifest", "save.renamed", "save.committed", "remove.renamed"]
PEER_PHASES = ["keep.snapshot", "keep.seal", "keep.exchange", "keep.all_reduce", "keep.mark", "keep.marked"]
RUN = """[model]
family = "gpt2"
layers = 2
heads = 2
width = 16
context = 16
[data]
train = "{text}"
[train]
steps = {steps}
micro_batch_size = 2
global_batch_size = 4
eval_batches = 2
hash_interval = 1
log_interval = 1
[optimizer]
learning_rate = 3e-3
warmup_steps = 2
[overlap]
bucket_size = "8KiB"
first_bucket_size = "2KiB"
[checkpoint]
interval = {interval}
[device]
threads = 1
"""


def trajectory(folder):
    """Everything that training computed, by step; times left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    lines = []
    for text in path.read_text().splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            break  # half a line of a killed run
        lines.append({key: line.get(key) for key in ("step", "loss", "lr", "grad_norm", "val_loss", "params_hash")})
    return lines


class Drill:
    def __init__(self, program, scratch, seed, relaunches):
        self.program, self.scratch, self.random = program, scratch, random.Random(seed)
        self.relaunches, self.lost_s = relaunches, 0.0
        self.peers, self.rounds = [], 0
        self.faults, self.survived = collections.Counter(), collections.Counter()
        self.detected_s, self.lost_steps = collections.defaultdict(list), collections.defaultdict(list)
        text = scratch / "text.txt"
        words = ["sail", "wind", "harbour", "grain", "salt", "quiet", "every", "carries"]
        text.write_text(" ".join(self.random.choice(words) for _ in range(6000)))
        self.file = scratch / "run.toml"
        self.file.write_text(RUN.format(text=text, steps=STEPS, interval=INTERVAL))

    def command(self, layout, folder, resume):
        ranks, sets = LAYOUTS[layout]
        command = [*MPIRUN, "-np", str(ranks)] if ranks > 1 else []
        if self.relaunches:
            command = [str(ROOT / "scripts" / "slipstream-run"), "-np", str(ranks), "--launcher", shlex.join(MPIRUN),
                       "--backoff", "0", "--limit", "100"]
        command += [str(self.program), "train", str(self.file), "--set", f"output.dir={folder}"]
        for setting in [*sets, *self.peers]:
            command += ["--set", setting]
        return command + (["--resume"] if resume else [])

    def run(self, layout, folder, resume, fail_point="", kill=None):
        """One start. Returns its exit code and the seconds from the kill to the end of the launcher."""
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        environment.pop("SLIPSTREAM_FAIL_POINT", None)
        if fail_point:
            environment["SLIPSTREAM_FAIL_POINT"] = fail_point
        log = open(self.scratch / "log.txt", "ab")
        process = subprocess.Popen(self.command(layout, folder, resume), env=environment, stdout=log, stderr=log)
        killed_at, over = [None], threading.Event()
        killer = threading.Thread(target=kill, args=(over, folder, killed_at)) if kill else None
        if killer:
            killer.start()
        code = process.wait(timeout=120)
        ended = time.monotonic()
        over.set()  # the next run in this folder is not the killer's
        if killer:
            killer.join()
        return code, ended - killed_at[0] if killed_at[0] else 0.0

    def killer(self, everyone, earliest_s, latest_s):
        delay, pick = self.random.uniform(earliest_s, latest_s), self.random.random()

        def kill(over, folder, killed_at):
            if over.wait(delay):
                return
            ranks = self.ranks_of(folder)
            for pid in ranks if everyone else ranks[int(pick * len(ranks)):][:1]:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed_at[0] = killed_at[0] or time.monotonic()
                except ProcessLookupError:
                    pass
        return kill

    def repeated_killer(self, faults):
        """Kills until the run ends, six times at most. Appends the classes to `faults`."""
        def kill(over, folder, killed_at):
            while len(faults) < 6 and not over.wait(self.random.uniform(0.3, 1.5)):
                kind, pick = self.random.choice(["rank", "ranks", "launcher"]), self.random.random()
                found = self.ranks_of(folder, MPIRUN[0] if kind == "launcher" else None)
                found = found[int(pick * len(found)):][:1] if kind == "rank" else found
                faults.extend([kind] if found else [])
                for pid in found:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
        return kill

    def ranks_of(self, folder, program=None):
        """Processes of the program, or of another one, that train in `folder`."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words[0].decode() == (program or str(self.program)) and f"output.dir={folder}".encode() in words:
                    found.append(int(entry.name))
        return sorted(found)

    def damage(self, folder):
        """Changes a byte or the length of a file of the newest checkpoint, if an older one is left."""
        checkpoints = sorted((folder / "checkpoints").glob("step-*[0-9]"))
        if len(checkpoints) < 2:
            return False
        file = self.random.choice(sorted(checkpoints[-1].iterdir()))
        content = bytearray(file.read_bytes())
        if self.random.random() < 0.5 and content:
            content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
        else:
            content = content[:self.random.randrange(len(content))]
        file.write_bytes(bytes(content))
        return True

    def kill_keepers(self, folder):
        """Ends the keepers of a run. True if there was one."""
        try:
            run = json.loads((folder / "run.json").read_text())["run_id"]
        except (OSError, ValueError, KeyError):
            return False
        found = False
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    if words[1:3] == [b"keeper", run.encode()]:
                        os.kill(int(entry.name), signal.SIGKILL)
                        found = True
                except (OSError, ProcessLookupError):
                    continue
        return found

    def empty_folder(self):
        for old in self.scratch.glob("run*"):
            if old.is_dir():
                shutil.rmtree(old)
        (self.scratch / "run.events.jsonl").unlink(missing_ok=True)
        return self.scratch / "run"

    def relaunched_round(self, layout, whole):
        """Trains to the end under slipstream-run. Returns the number of faults."""
        folder, classes = self.empty_folder(), []
        code, _ = self.run(layout, folder, False, kill=self.repeated_killer(classes))
        self.faults.update(classes)
        self.lost_s += json.loads((self.scratch / "run.events.jsonl").read_text().splitlines()[-1])["seconds_lost"]
        return self.judge(layout, folder, classes, code, whole)

    def round(self, layout, whole):
        """Trains to the end through faults. Returns their number."""
        folder = self.empty_folder()
        ranks, classes, resume = LAYOUTS[layout][0], [], False
        self.rounds += 1
        self.peers = ["checkpoint.peer_interval=1"] if self.rounds % 2 == 0 else []
        while True:
            kind = self.random.choice(["step", "save", "random", "double", "recovery", "damage"]
                                      + (["peer", "keeper"] if self.peers else []))
            if len(classes) >= 6:
                kind = "none"
            fail_point, kill = "", None
            if kind == "step":
                fail_point = f"step@{self.random.randrange(ranks)}#{self.random.randrange(STEPS)}"
            elif kind == "save":
                fail_point = f"{self.random.choice(PHASES)}@{self.random.randrange(ranks)}#{self.random.randrange(3)}"
            elif kind == "random":
                kill = self.killer(False, 0.0, 0.6 if ranks == 1 else 1.5)
            elif kind == "double":
                kill = self.killer(True, 0.0, 0.6 if ranks == 1 else 1.5)
            elif kind == "recovery" and resume:
                kill = self.killer(self.random.random() < 0.3, 0.0, 0.15 if ranks == 1 else 0.5)
            elif kind == "peer":
                fail_point = f"{self.random.choice(PEER_PHASES)}@{self.random.randrange(ranks)}#{self.random.randrange(40)}"
            elif kind == "keeper" and resume and self.kill_keepers(folder):
                self.faults[kind] += 1
                classes.append(kind)
            elif kind == "damage" and resume and self.damage(folder):
                self.faults[kind] += 1
                classes.append(kind)
            code, seconds = self.run(layout, folder, resume, fail_point, kill)
            if code == 0:
                break
            if not fail_point and not kill:
                print(f"a run without a kill ended with {code}: see {self.scratch}/log.txt")
                break
            self.faults[kind] += 1
            classes.append(kind)
            self.detected_s[kind].append(seconds)
            reached = len(trajectory(folder))
            steps = [int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*[0-9]") if (path / "manifest.json").exists()]
            if not self.peers:
                self.lost_steps[kind].append(max(0, reached - max(steps, default=0)))
            resume = True
        return self.judge(layout, folder, classes, code, whole)

    def judge(self, layout, folder, classes, code, whole):
        good = code == 0 and trajectory(folder) == whole
        for kind in set(classes):
            self.survived[kind] += good
        if not good:
            print(f"layout {LAYOUTS[layout]} through {classes}: exit code {code}, the metrics differ from the run without faults")
        return len(classes), good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "slipstream")
    parser.add_argument("--kills", type=int, default=20, help="faults to inject in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=pathlib.Path)
    parser.add_argument("--relaunch", action="store_true", help="scripts/slipstream-run resumes the runs")
    options = parser.parse_args()
    layouts = list(range(len(LAYOUTS))) if shutil.which("mpirun") else [0]
    with tempfile.TemporaryDirectory(prefix="slipstream_drill_") as name:
        drill = Drill(options.program.resolve(), pathlib.Path(name), options.seed, options.relaunch)
        train = drill.relaunched_round if options.relaunch else drill.round
        whole = {}
        for layout in layouts:
            folder = drill.scratch / f"whole{layout}"
            code, _ = drill.run(layout, folder, False)
            whole[layout] = trajectory(folder)
            if code != 0 or len(whole[layout]) != STEPS:
                print((drill.scratch / "log.txt").read_text()[-3000:])
                sys.exit(f"the run without faults of layout {LAYOUTS[layout]} ended with {code}")
        done, rounds, good = 0, 0, 0
        while done < options.kills:
            faults, ok = train(layouts[rounds % len(layouts)], whole[layouts[rounds % len(layouts)]])
            done, rounds, good = done + faults, rounds + 1, good + ok
            if not ok:
                print((drill.scratch / "log.txt").read_text()[-3000:])
                break
        rows = [{"class": kind, "faults": drill.faults[kind],
                 "seconds_to_end": round(statistics.median(drill.detected_s[kind]), 2) if drill.detected_s[kind] else "",
                 "steps_lost_mean": round(statistics.mean(drill.lost_steps[kind]), 2) if drill.lost_steps[kind] else ""}
                for kind in sorted(drill.faults)]
        for row in rows:
            print("  ".join(f"{key} {value}" for key, value in row.items()))
        print(f"{done} faults in {rounds} rounds with seed {options.seed}: {good} rounds ended with the bits of the run without faults")
        if options.relaunch:
            print(f"seconds lost per fault: {drill.lost_s / max(1, done):.2f}")
        if options.csv:
            with open(options.csv, "w", newline="") as file:
                writer = csv.DictWriter(file, fieldnames=["class", "faults", "seconds_to_end", "steps_lost_mean"], lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        sys.exit(0 if good == rounds else 1)


if __name__ == "__main__":
    main()
