# SPDX-License-Identifier: Apache-2.0
"""Starts training runs, watches their processes and reads what they leave."""
import dataclasses
import json
import os
import pathlib
import shlex
import signal
import subprocess
import threading
import time
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STEPS, INTERVAL = 12, 3
LAUNCHER_S = 30  # without ranks, after which a launcher hangs
LIMIT_S = 4  # of a wait in a step and in a save, for stopped ranks
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]
PEERS = "checkpoint.peer_interval=1"  # snapshots in memory
LAYOUTS = [(1, []), (2, ["zero.stage=1"]), (2, ["parallel.pipeline=2"]), (3, ["zero.stage=3", "train.global_batch_size=12"]),
           (2, ["zero.stage=1", PEERS]), (3, ["zero.stage=3", "train.global_batch_size=12", PEERS])]
DEFECTS = ["[bug]", "terminate called", "Segmentation fault", "AddressSanitizer", "Traceback"]
DEFECT_CODES = [70, 128 + signal.SIGABRT, 128 + signal.SIGSEGV, 128 + signal.SIGBUS, 128 + signal.SIGFPE]
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
interval_minutes = 600
[device]
threads = 1
"""


@dataclasses.dataclass
class Start:
    """One start of a run. A class of faults fills in what goes wrong."""
    layout: int
    folder: pathlib.Path
    resumes: bool
    fail_point: str = ""
    environment: dict = dataclasses.field(default_factory=dict)
    settings: list = dataclasses.field(default_factory=list)
    flags: list = dataclasses.field(default_factory=list)
    during: typing.Optional[typing.Callable] = None  # runs beside the job; gets this start
    rank: int = -1  # that fails; -1: any
    damaged: str = ""  # kind of the file
    # The next fields are results.
    over: threading.Event = dataclasses.field(default_factory=threading.Event)
    code: int = -1
    text: str = ""
    hung: bool = False
    launcher_hung: bool = False  # Open MPI's mpirun may deadlock at its end; `code` is then 137
    happened: bool = False  # the fault came before the end
    fault_at: float = 0.0   # monotonic seconds; 0: unknown
    told_at: float = 0.0    # of the first error line, or of the end

    def ranks(self):
        return LAYOUTS[self.layout][0]

    def happens(self):
        self.happened = True
        self.fault_at = self.fault_at or time.monotonic()

    def seconds(self):
        """From the fault to the first error line or the end; None if the time of the fault is unknown."""
        return max(0.0, self.told_at - self.fault_at) if self.fault_at else None


def steps_of(folder):
    return [int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*[0-9]") if (path / "manifest.json").exists()]


def trajectory(folder):
    """{step: everything that training computed}; times left out."""
    lines = {}
    try:
        text = (folder / "metrics.jsonl").read_text()
    except (OSError, UnicodeDecodeError):
        return lines
    for line in text.splitlines():
        try:
            line = json.loads(line)
        except ValueError:
            break  # half a line of a killed run
        lines[line.get("step")] = {key: line.get(key) for key in ("step", "loss", "lr", "grad_norm", "val_loss", "params_hash")}
    return lines


def weights_of(folder):
    file = folder / "checkpoints" / "final" / "model.safetensors"
    return file.read_bytes() if file.exists() else b""


def state_of(pid):
    """R, S, T, Z, ..; empty if it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


class Jobs:
    """Runs of one program on one text."""

    def __init__(self, program, scratch, random, relaunches=False):
        self.program, self.scratch, self.relaunches, self.log = program, scratch, relaunches, scratch / "log.txt"
        text = scratch / "text.txt"
        words = ["sail", "wind", "harbour", "grain", "salt", "quiet", "every", "carries"]
        text.write_text(" ".join(random.choice(words) for _ in range(6000)))
        self.file = scratch / "run.toml"
        self.file.write_text(RUN.format(text=text, steps=STEPS, interval=INTERVAL))

    def command(self, start):
        ranks, settings = LAYOUTS[start.layout]
        command = [*MPIRUN, "-np", str(ranks)] if ranks > 1 else []
        if self.relaunches:
            command = [str(ROOT / "scripts" / "slipstream-run"), "-np", str(ranks), "--launcher", shlex.join(MPIRUN),
                       "--backoff", "0", "--limit", "100"]
        command += [str(self.program), "train", str(self.file)]
        for setting in [f"output.dir={start.folder}", *settings, *start.settings]:
            command += ["--set", setting]
        return command + start.flags + (["--resume"] if start.resumes else [])

    def run(self, start):
        """Blocks until the launcher has ended."""
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **start.environment}
        environment.pop("SLIPSTREAM_FAIL_POINT", None)
        if start.fail_point:
            environment["SLIPSTREAM_FAIL_POINT"] = start.fail_point
        process = subprocess.Popen(self.command(start), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        helpers = [threading.Thread(target=self.watch, args=(start,))] if start.fail_point else []
        helpers += [threading.Thread(target=start.during, args=(start,))] if start.during else []
        if start.ranks() > 1 and not self.relaunches:
            helpers.append(threading.Thread(target=self.end_launcher, args=(start, process)))
        for helper in helpers:
            helper.start()

        def give_up():
            start.hung = True
            process.kill()
        timer = threading.Timer(600, give_up)
        timer.start()
        lines = []
        for line in process.stdout:
            if b"slipstream: " in line and b"warning" not in line:
                start.told_at = start.told_at or time.monotonic()
            lines.append(line.decode(errors="replace"))
        start.code = process.wait()
        if start.code < 0:
            start.code = 128 - start.code
        timer.cancel()
        start.happened |= start.fail_point != "" and (start.code != 0 or "[fail point]" in "".join(lines))
        start.told_at = start.told_at or time.monotonic()
        start.over.set()
        for helper in helpers:
            helper.join()
        start.text = "".join(lines)
        with open(self.log, "a") as log:
            log.write(f"\n$ {shlex.join(self.command(start))}  # {start.fail_point} {start.environment}\n{start.text}exit code {start.code}\n")
        return start

    def end_launcher(self, start, process):
        """SIGKILL for a launcher whose ranks have all ended long ago; scripts/slipstream-run does the same."""
        seen, alone = False, 0
        while not start.over.wait(1):
            alive = any(state_of(pid) not in ("Z", "") for pid in self.ranks_of(start.folder))
            seen, alone = seen or alive, 0 if alive else alone + 1
            if seen and alone >= LAUNCHER_S:
                start.launcher_hung = True
                process.kill()
                return

    def watch(self, start):
        """Notes when a rank stops or ends."""
        ranks = []
        while not start.over.wait(0.02):
            if len(ranks) < start.ranks():
                ranks = self.ranks_of(start.folder)
            elif any(state_of(pid) in ("T", "Z", "") for pid in ranks):
                start.fault_at = time.monotonic()
                return

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

    def end_keepers(self, folder):
        """SIGKILL for the processes that keep snapshots of the run in memory. True if there was one."""
        try:
            run = json.loads((folder / "run.json").read_text())["keeper"]
        except (OSError, ValueError, KeyError):
            return False
        found = False
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if (entry / "cmdline").read_bytes().split(b"\0")[1:3] == [b"keeper", run.encode()]:
                        os.kill(int(entry.name), signal.SIGKILL)
                        found = True
                except OSError:
                    continue
        return found

    def call(self, *arguments):
        """One process of the program: (exit code, output)."""
        done = subprocess.run([str(self.program), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        return done.returncode if done.returncode >= 0 else 128 - done.returncode, done.stdout.decode(errors="replace")


def defect_of(code, text, hung=False):
    """The reason why an end is a defect, whatever the fault was; empty if it is none."""
    if hung:
        return "it hung"
    found = [word for word in DEFECTS if word in text]
    if code in DEFECT_CODES or found:
        return f"exit code {code} {' '.join(found)}"
    return ""
