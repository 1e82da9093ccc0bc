#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures saves and resumes of a GPT-2 on one rank beside what the disk and the rehearsal allow.

usage: scripts/bench_checkpoint.py [--program PATH] [--dir FOLDER] [--parts write,resume,beside] [--rounds N]

  write    a checkpoint that training waits for, beside fio writing a file of the same size with one fsync, in turn
  resume   the time in which a resume has the checkpoint open, beside fio reading the same file, both from disk
  beside   the step time of runs that save in the background beside runs that do not, in turn, and the rehearsal

write needs fio; resume needs fio, strace and root, because it empties the page cache. FOLDER is on the disk to measure and holds about 8 GB.
"""
import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUN = """[model]
family = "gpt2"
layers = {layers}
heads = {heads}
width = {width}
context = 64
vocab_size = {vocab}
[data]
train = "{folder}/text.txt"
[train]
steps = {steps}
sequence_length = 64
micro_batch_size = {batch}
global_batch_size = {batch}
eval_batches = 1
log_interval = 1
[checkpoint]
keep = 1
"""
SIZES = {"124m": {"layers": 12, "heads": 12, "width": 768, "vocab": 50257},
         "tiny": {"layers": 2, "heads": 2, "width": 16, "vocab": 256}}  # for the test of this script
SAVE_EVERY = 20
TOOLS = {"write": ["fio"], "resume": ["fio", "strace"], "beside": []}


def run(command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"bench_checkpoint: {' '.join(map(str, command))} ended with code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        (folder / "text.txt").write_text("the wind carries every sail before a quiet harbour of grain\n" * 4000)

    def train(self, name, steps, *settings, prefix=(), resume=False):
        """Trains in FOLDER/name and returns its run folder."""
        out = self.folder / name
        if not resume:
            shutil.rmtree(out, ignore_errors=True)
        file = self.folder / f"{name}.toml"
        file.write_text(RUN.format(folder=self.folder, steps=steps, batch=self.options.batch, **SIZES[self.options.size]))
        command = [*prefix, self.options.program, "train", file, "--set", f"output.dir={out}"]
        for setting in settings:
            command += ["--set", setting]
        run(command + (["--resume"] if resume else []), timeout=1800)
        return out

    def plan(self, *settings):
        file = self.folder / "plan.toml"
        file.write_text(RUN.format(folder=self.folder, steps=100, batch=self.options.batch, **SIZES[self.options.size]))
        words = [word for setting in settings for word in ("--set", setting)]
        return json.loads(run([self.options.program, "plan", file, "--ranks", 1, "--json", *words]))

    def fio(self, kind, path, size):
        """Seconds that fio needs for the file. One fsync at the end of a write, as a checkpoint has."""
        out = run(["fio", "--name=file", f"--filename={path}", f"--rw={kind}", f"--size={size}", f"--bs={min(size, 1 << 20)}", "--ioengine=psync",
                   "--end_fsync=1", "--invalidate=1", "--output-format=json"])
        job = json.loads(out[out.index("{"):])["jobs"][0]
        return job["job_runtime"] / 1e3

    def write(self):
        for number in range(self.options.rounds):
            out = self.train("write", 1, "checkpoint.async=false")
            folder = out / "checkpoints/step-00000001"
            file = folder / "rank-0000.safetensors"
            # The file is created when writing begins; the folder gets its name when everything is on disk.
            began = float(run(["stat", "-c", "%.9W", file]))
            ended = float(run(["stat", "-c", "%.9Z", folder]))
            size = file.stat().st_size
            shutil.rmtree(folder)
            seconds = self.fio("write", self.folder / "fio.bin", size)
            (self.folder / "fio.bin").unlink()
            yield {"part": "write", "round": number, "bytes": size, "seconds": ended - began, "fio_seconds": seconds,
                   # Times of files are those of the last timer tick, so small files may take none.
                   "share_of_disk": seconds / (ended - began) if ended > began else None}

    def resume(self):
        self.train("resume", 1)
        for number in range(self.options.rounds):
            # Each run resumes the newest checkpoint and trains one more step.
            newest = max((self.folder / "resume/checkpoints").glob("step-*"))
            file = newest / "rank-0000.safetensors"
            size = file.stat().st_size
            drop_caches()
            fio_seconds = self.fio("read", file, size)
            drop_caches()
            calls = self.folder / "calls.txt"
            self.train("resume", number + 2, prefix=["strace", "-f", "-ttt", "-e", "trace=openat,close,munmap", "-y", "-o", calls],
                       resume=True)
            seconds = reading_seconds(calls.read_text(), str(file))
            yield {"part": "resume", "round": number, "bytes": size, "seconds": seconds, "fio_seconds": fio_seconds,
                   "times_read": seconds / fio_seconds}

    def beside(self):
        steps = 3 * SAVE_EVERY + 5
        costs = self.plan(f"checkpoint.interval={SAVE_EVERY}").get("checkpoint", {})
        added_ms = costs["added_ms"] + costs["writer_ms"] if "added_ms" in costs else None
        for number in range(self.options.rounds):
            ms = {}
            for name, interval in (("plain", 0), ("saving", SAVE_EVERY)) if number % 2 else (("saving", SAVE_EVERY), ("plain", 0)):
                out = self.train(name, steps, f"checkpoint.interval={interval}")
                lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
                # Whole periods after the first save; the last step also waits for the final save.
                ms[name] = [line["step_ms"] for line in lines[SAVE_EVERY:3 * SAVE_EVERY]]
            plain, saving = statistics.mean(ms["plain"]), statistics.mean(ms["saving"])
            yield {"part": "beside", "round": number, "step_ms": plain, "saving_step_ms": saving,
                   "added_share": saving / plain - 1,
                   "planned_share": None if added_ms is None else added_ms / SAVE_EVERY / plain}


def reading_seconds(calls, path):
    """How long the file was open, from strace's lines. Between two readings the program builds the rank, as a new run does."""
    seconds, opened, began = 0.0, 0, 0.0
    for line in calls.splitlines():
        found = re.search(r"(\d+\.\d+) (openat|close)", line)
        if not found or path not in line:
            continue
        if found[2] == "openat" and opened == 0:
            began = float(found[1])
        opened += 1 if found[2] == "openat" else -1
        if opened == 0:
            seconds += float(found[1]) - began
    if seconds == 0 or opened != 0:
        sys.exit(f"bench_checkpoint: strace did not see {path} opened and closed equally often.")
    return seconds


def drop_caches():
    run(["sync"])
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/slipstream")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp"))
    parser.add_argument("--parts", default="write,resume,beside")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a step (default: 4)")
    parser.add_argument("--size", choices=SIZES, default="124m")
    parser.add_argument("--json", type=pathlib.Path, help="also writes the rows into this file, a JSON line each")
    options = parser.parse_args()
    options.program = options.program.resolve()
    parts = options.parts.split(",")
    if unknown := [part for part in parts if part not in TOOLS]:
        parser.error(f"unknown part '{unknown[0]}'; there are {', '.join(TOOLS)}")
    for tool in sorted({tool for part in parts for tool in TOOLS[part]}):
        if not shutil.which(tool):
            sys.exit(f"bench_checkpoint: {tool} is not installed. Run: apt-get install fio strace")
    with tempfile.TemporaryDirectory(prefix="slipstream-checkpoint-", dir=options.dir) as folder:
        bench = Bench(options, pathlib.Path(folder))
        rows = []
        for part in parts:
            mine = []
            for row in getattr(bench, part)():
                print(json.dumps(row), flush=True)
                mine.append(row)
            rows += mine
            for key in ("share_of_disk", "times_read", "added_share", "planned_share"):
                values = [row[key] for row in mine if row.get(key) is not None]
                if values:
                    print(f"{part}: {key} median {statistics.median(values):.3f}, {min(values):.3f} to {max(values):.3f}", flush=True)
        if options.json:
            options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
