# SPDX-License-Identifier: Apache-2.0
"""The classes of faults, as a table. A class arms one start of a run and judges its end.

To add one, write a function that fills in a Start, another one that returns "" for a good end or else the fault, and a
row of FAULTS.
"""
import dataclasses
import os
import re
import shutil
import signal
import time
import typing

from .job import INTERVAL, LIMIT_S, PEERS, STEPS

PHASES_OF_SAVE = ["save.begun", "save.in_file", "save.file", "save.gathered", "save.manifest", "save.renamed", "save.committed",
                  "remove.renamed"]
PHASES_OF_PEERS = ["keep.snapshot", "keep.seal", "keep.exchange", "keep.all_reduce", "keep.mark", "keep.marked"]
LONG = ["--inject-delays", "1"]  # pauses, so that there is time for a fault; they change no bits
NAMED = re.compile(r"\[watchdog\] (?:ranks [^:]+: )?rank (\d+)")


# Classes that kill:

def at_point(place, passages):
    """SIGKILL of a random rank at one of the first `passages` passages of a fail point."""
    def arm(drill, start):
        start.rank = drill.random.randrange(start.ranks())
        start.fail_point = f"{place}@{start.rank}#{drill.random.randrange(passages)}"
    return arm


def in_save(drill, start):
    at_point(drill.random.choice(PHASES_OF_SAVE), 3)(drill, start)


def in_peer_snapshot(drill, start):
    at_point(drill.random.choice(PHASES_OF_PEERS), 40)(drill, start)


def without_keeper(drill, start):
    """Resume after the memory of the earlier run is lost."""
    start.happened = drill.jobs.end_keepers(start.folder)


def after(most_s, everyone=False, number=signal.SIGKILL):
    """A signal to a rank, or to all, at a random time."""
    def arm(drill, start):
        delay, pick = drill.random.uniform(0.0, most_s if start.ranks() == 1 else 2.5 * most_s), drill.random.random()

        def during(start):
            if start.over.wait(delay):
                return
            ranks = drill.jobs.ranks_of(start.folder)
            for pid in ranks if everyone else ranks[int(pick * len(ranks)):][:1]:
                try:
                    os.kill(pid, number)
                    start.happens()
                except ProcessLookupError:
                    pass
            if number == signal.SIGKILL and not drill.jobs.relaunches and start.over.wait() and start.code == 0:
                start.happened = False  # the ranks were already exiting
        start.during = during
    return arm


def ended(start):
    """A killed run may end with any code that is no defect."""
    return "" if start.code != 0 else "it ended with 0"


# Classes of ranks that stop or are slow:

def stopped(drill, start):
    place = drill.random.choice(["step", "work:attention", "work:attention_gradient", "work:adamw", "collective", "save.in_file"])
    at_point(place, 6)(drill, start)
    start.fail_point += "=stop"
    if drill.preload.exists():  # clocks of hosts differ
        start.environment = {"LD_PRELOAD": str(drill.preload), "SLIPSTREAM_CLOCK": f"{drill.random.choice([-3600, 3600])}@0",
                             "SLIPSTREAM_CLOCK_RANK": str(drill.random.randrange(start.ranks()))}
    start.settings = [f"comm.timeout_seconds={LIMIT_S}", f"comm.save_timeout_seconds={LIMIT_S}"]


def named(start):
    found = [int(rank) for rank in NAMED.findall(start.text)]
    if start.code != 6:
        return f"exit code {start.code} instead of 6"
    return "" if start.rank in found else f"rank {start.rank} stopped, and the watchdog named {found}"


def slow(drill, start):
    place = drill.random.choice(["step", "work:attention", "work:attention_gradient", "work:adamw", "collective"])
    at_point(place, 6)(drill, start)
    start.fail_point += f"={drill.random.randrange(200, 1500)}"
    start.settings = [f"comm.timeout_seconds={2 * LIMIT_S}"]


def unharmed(start):
    """The run continues to its end."""
    return "" if start.code == 0 else f"it ended with exit code {start.code}"


# Classes of broken disks:

def disk(rules, *paths):
    """Faults of system calls on files whose path has one of `paths`, in a random rank."""
    def arm(drill, start):
        log = drill.scratch / "disk.log"
        log.unlink(missing_ok=True)
        start.environment = {"LD_PRELOAD": str(drill.preload), "SLIPSTREAM_DISK": rules, "SLIPSTREAM_DISK_LOG": str(log),
                             "SLIPSTREAM_DISK_SEED": str(drill.random.randrange(1 << 30)),
                             "SLIPSTREAM_DISK_PATH": drill.random.choice(paths).format(folder=start.folder, scratch=drill.scratch)}
        if start.ranks() > 1:
            start.environment["SLIPSTREAM_DISK_RANK"] = str(drill.random.randrange(start.ranks()))

        def during(start):
            start.over.wait()
            start.happened = log.exists()
        start.during = during
    return arm


def reported(*codes):
    """A run with a broken disk ends well, or with one of these codes and a sentence."""
    def judge(start):
        if start.code == 0:
            return ""
        if start.code not in codes:
            return f"exit code {start.code}, not 0 or {' or '.join(map(str, codes))}"
        return "" if "slipstream: " in start.text else "no sentence"
    return judge


def full(drill, start):
    """Another file fills the disk beside the run, for a while or until its end."""
    start.flags = LONG
    filler, leaves = drill.disk / "filler", drill.random.random() < 0.5
    step = drill.random.choice([2, 5, 8])

    def during(start):
        while not start.over.wait(0.002) and not reached(start, step):
            pass
        try:
            with open(filler, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        except OSError:
            start.happened = not start.over.is_set()
        start.over.wait(0.4 if leaves else None)
        filler.unlink()
    start.during = during


# The other classes:

def reached(start, step):
    """Has the run finished a step?"""
    try:
        return f'"step":{step},' in (start.folder / "metrics.jsonl").read_text().replace(": ", ":").replace(", ", ",")
    except OSError:
        return False


def clock(drill, start):
    """The clock of the day jumps by up to two days, before the run and in it; half of the runs are killed as well."""
    jump = lambda: drill.random.choice([-1, 1]) * drill.random.randrange(2, 172800)
    start.environment = {"LD_PRELOAD": str(drill.preload), "SLIPSTREAM_CLOCK": f"{jump()}@0 {jump()}@{drill.random.uniform(0, 0.8):.3f}"}
    start.flags = LONG
    start.happened = True
    if drill.random.random() < 0.5:
        after(0.8)(drill, start)


def on_time(start):
    """No checkpoint is due by a clock that jumps."""
    steps = [int(path.name[5:]) for path in (start.folder / "checkpoints").glob("step-*[0-9]")]
    unexpected = [step for step in steps if step % INTERVAL != 0 and step != STEPS]
    return f"a checkpoint of step {unexpected[0]}" if unexpected else ""


def damaged(drill, start):
    """Resume from damaged files. Commands that read them must not crash either."""
    region = drill.damage.pick(start.folder)
    if region is None:
        return
    start.damaged = region[0]
    drill.note(drill.damage.apply(region))
    start.happened = True
    for command in [("checkpoint", "verify", start.folder), ("checkpoint", "show", start.folder), ("why", start.folder)]:
        drill.require_no_defect(*drill.jobs.call(*command))


def recovered(start):
    """The run continues with the same bits, or refuses with a sentence."""
    return reported(2, 3, 4)(start)


def holds_lock(drill, start):
    try:
        return int((start.folder / "lock").read_text().split()[1]) in drill.jobs.ranks_of(start.folder)
    except (OSError, ValueError, IndexError):
        return False


def second_job(drill, start):
    """Another job in the folder of a running one."""
    start.flags = LONG

    def during(start):
        while not start.over.wait(0.01) and not holds_lock(drill, start):
            pass
        other = dataclasses.replace(start, resumes=True, flags=[], during=None, fail_point="", over=type(start.over)())
        if start.over.is_set():
            return
        start.other = drill.jobs.run(other)
        start.happened = not start.over.is_set()
    start.during = during


def alone(start):
    """The first job is unharmed, and the second one is refused."""
    if start.happened and (start.other.code != 4 or "in use by process" not in start.other.text):
        return f"the second job ended with exit code {start.other.code}"
    return unharmed(start)


@dataclasses.dataclass
class Fault:
    name: str
    text: str                       # of its row in docs/benchmarks/fault-drill.md
    arm: typing.Callable            # (drill, start)
    judge: typing.Callable          # (start): what is wrong with the end of a start in which it happened, or ""
    ranks: int = 1                  # the least
    resumes: bool = False           # needs an earlier start
    fresh: bool = False             # needs none
    setting: str = ""               # of the layouts in which it can happen; empty: all
    needs: typing.Callable = None   # (drill): why it cannot be tried here, or ""


def needs_preload(drill):
    return "" if drill.preload.exists() else f"{drill.preload} does not exist (configure with -Dtests=true)"


def needs_disk(drill):
    return "" if drill.disk else "mounting a small disk needs root"


FAULTS = [
    Fault("step", "SIGKILL of a rank between two steps", at_point("step", STEPS), ended),
    Fault("forward", "SIGKILL of a rank in the forward pass", at_point("work:attention", 3 * STEPS), ended),
    Fault("backward", "SIGKILL of a rank in the backward pass", at_point("work:attention_gradient", 3 * STEPS), ended),
    Fault("collective", "SIGKILL of a rank inside a collective", at_point("collective", 4 * STEPS), ended, ranks=2),
    Fault("update", "SIGKILL of a rank in the optimizer", at_point("work:adamw", STEPS), ended),
    Fault("snapshot", "SIGKILL of a rank while its state is copied", at_point("work:save", 3), ended),
    Fault("save", "SIGKILL of a rank in a phase of a save", in_save, ended),
    Fault("peer", "SIGKILL of a rank in a phase of a snapshot in memory", in_peer_snapshot, ended, setting=PEERS),
    Fault("keeper", "SIGKILL of the keeper of that memory", without_keeper, unharmed, resumes=True, setting=PEERS),
    Fault("random", "SIGKILL of a rank at a random time", after(0.6), ended),
    Fault("double", "SIGKILL of all ranks at a random time", after(0.6, everyone=True), ended),
    Fault("recovery", "SIGKILL while a run resumes", after(0.2), ended, resumes=True),
    Fault("stop", "SIGSTOP of a rank in a step or a save", stopped, named, ranks=2),
    Fault("slow", "a rank that sleeps in a step", slow, unharmed, ranks=2),
    Fault("short", "short writes and reads", disk("write:short:0.5 read:short:0.3", "{folder}"), unharmed, needs=needs_preload),
    Fault("save_error", "EIO, ENOSPC, EDQUOT in a save", disk("write:EIO:0.01 write:ENOSPC:0.01 write:EDQUOT:0.01 sync:EIO:0.1 "
          "rename:EIO:0.05 mkdir:ENOSPC:0.1 open:EIO:0.02", "/checkpoints"), reported(7), needs=needs_preload),
    Fault("read_error", "EIO while a run resumes", disk("read:EIO:0.05 open:EIO:0.02", "{folder}", "{scratch}"), reported(2, 3, 4, 7),
          resumes=True, needs=needs_preload),
    Fault("any_error", "EIO, ENOSPC in any file of a run", disk("write:EIO:0.02 write:ENOSPC:0.05 sync:EIO:0.05 rename:EIO:0.05 "
          "open:EIO:0.02", "{folder}", "metrics.jsonl"), reported(2, 3, 4, 7), needs=needs_preload),
    Fault("full", "a full disk", full, reported(7), fresh=True, needs=needs_disk),
    Fault("damage", "a bit flips, or a file is cut", damaged, recovered, resumes=True),
    Fault("clock", "jumps of the clock", clock, on_time, needs=needs_preload),
    Fault("two_jobs", "a second job in the folder", second_job, alone),
]
