#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs Meson's tests, counts Catch2 test cases, and ends with `N passed, N failed, N skipped`.

A script that runs such programs counts as their cases. A case skips by printing a line `SKIPPED what: reason` (or with Catch2 3's SKIP); a program that is not Catch2 is one case
and may also exit with 77. A program that crashes, hangs, or prints less than it should is a failed case. Lines `COUNTED what` of passed tests are shown: the number of cases of a law.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as xml

SKIP_EXIT_CODE = 77
TAIL_LINES = 60
# Meson's own limits are made for quiet machines. Here, a hanging test must end and a slow one must not fail.
TIMEOUT_S_MIN = 300
TIMEOUT_FACTOR = 4
# Tests that wait for ranks, launchers and limits leave a core idle. Therefore MORE_THAN_CORES more tests than cores run
# at once, of which at most SEVERAL_PROCESSES start several processes (is_parallel: false).
MORE_THAN_CORES = 2
SEVERAL_PROCESSES = 3
# So many more tests start, one at a time, while more than this share of the cores is idle. Ranks that wait for each
# other use no core.
MORE_WHILE_IDLE, IDLE_SHARE, IDLE_PERIOD_S = 4, 0.2, 1.0
# This file in the build folder has the time of each test, for the order of the next run.
SECONDS_FILE = "test_seconds.json"
# Programs under test wait for the disk at every fsync. Their temporary files are in memory if so many bytes are free.
MEMORY_FOLDER, MEMORY_BYTES = "/dev/shm", 4 << 30


@dataclasses.dataclass
class Case:
    name: str
    verdict: str  # passed | failed | skipped
    seconds: float
    text: str = ""  # why it failed or was skipped


def tests_of(build, names, everything):
    listed = json.loads(subprocess.run(["meson", "introspect", build, "--tests"], check=True, capture_output=True).stdout)
    chosen = []
    for test in listed:
        suites = [suite.split(":")[-1] for suite in test["suite"]]
        if "all" in suites and not everything:
            continue
        if names and not any(name in test["name"] or name in suites for name in names):
            continue
        chosen.append(test)
    return chosen


def is_catch(program, build):
    """Is the program one of Catch2? Its symbols decide, because a program with another main() would run if it were asked."""
    program = pathlib.Path(program)
    if not program.is_relative_to(pathlib.Path(build).resolve()):
        return False
    if not program.exists():
        sys.exit(f"run_tests: {program} is not built. Run ninja -C {build} first.")
    code = program.read_bytes()
    return b"_ZN5Catch" in code or b"Reports test results" in code


def hidden_too(arguments):
    """Arguments of a Catch2 program with its hidden cases: each of the tags that choose cases, with [.] and without."""
    tags = [a for a in arguments if a.lstrip("~").startswith("[")] or [""]
    return [a for a in arguments if a not in tags] + [",".join(f"{tag}[.],{tag}~[.]" for tag in tags)]


def skip_reason(text):
    found = re.search(r"^\s*SKIPPED\b[: ]*(.*)$", text or "", re.MULTILINE | re.IGNORECASE)
    return found and found.group(1).strip()


def case_of(element, program):
    name = f"{program}: {element.get('name')}"
    result = element.find("OverallResult")
    seconds = float(result.get("durationInSeconds") or 0)
    printed = "".join(result.findtext(tag) or "" for tag in ("StdOut", "StdErr"))
    notes = [e.text or "" for e in element.iter() if e.tag in ("Warning", "Info", "Skip")]
    if result.get("success") != "true":
        lines = []
        for e in element.iter():
            if e.tag == "Expression" and e.get("success") != "true":
                lines.append(f"  {e.get('filename')}:{e.get('line')}: {(e.findtext('Original') or '').strip()}"
                             f"   is   {(e.findtext('Expanded') or '').strip()}")
            if e.tag in ("Exception", "FatalErrorCondition", "Failure", "Info", "Warning"):
                lines.append(f"  {e.tag}: {(e.text or '').strip()}")
        return Case(name, "failed", seconds, "\n".join(lines[:TAIL_LINES]) + ("\n" + printed if printed else ""))
    reason = next(filter(None, map(skip_reason, [printed, *notes])), None)
    if reason is None and int(result.get("skips") or 0) > 0:
        reason = " ".join(n.strip() for n in notes) or "no reason given"
    if reason is not None:
        return Case(name, "skipped", seconds, reason)
    return Case(name, "passed", seconds)


def cases_in(report, program):
    """The complete cases of a report that may end in the middle, and the name of the one that was running then."""
    cases, running, complete = [], None, False
    try:
        for event, element in xml.iterparse(report, events=("start", "end")):
            if element.tag == "TestCase" and event == "start":
                running = element.get("name")
            elif element.tag == "TestCase":
                cases.append(case_of(element, program))
                running = None
            elif element.tag in ("Catch", "Catch2TestRun") and event == "end":
                complete = True
    except (xml.ParseError, FileNotFoundError, AttributeError):
        pass
    return cases, running, complete


def temporary_folder():
    """The folder for the files of tests, or None for the system's."""
    try:
        return MEMORY_FOLDER if shutil.disk_usage(MEMORY_FOLDER).free >= MEMORY_BYTES and os.access(MEMORY_FOLDER, os.W_OK) else None
    except OSError:
        return None


def ended(process, limit):
    """Waits for a process that runs for at most `limit` seconds. Returns the CPU seconds of it and its children, or None."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found, status, usage = os.wait4(process.pid, os.WNOHANG)
        if found:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_utime + usage.ru_stime
        time.sleep(0.02)
    return None


def run(test, build, everything):
    program, command = test["name"], list(test["cmd"])
    catch = is_catch(command[0], build)
    with tempfile.TemporaryDirectory(dir=temporary_folder()) as folder:
        report = os.path.join(folder, "report.xml")
        if catch:
            command = [command[0], *(hidden_too(command[1:]) if everything else command[1:]), "-r", "xml", "-d", "yes", "-o", report]
        environment = {**os.environ, **(test["env"] if isinstance(test["env"], dict) else {})}
        if temporary_folder():
            environment["TMPDIR"] = folder
        if everything:
            environment["SLIPSTREAM_TEST_ALL"] = "1"
        limit = max(TIMEOUT_S_MIN, TIMEOUT_FACTOR * (test["timeout"] or 0))
        started = time.monotonic()
        # The test has its own session, so that ending a hanging launcher also ends its ranks.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                       cwd=test["workdir"] or build, env=environment, start_new_session=True)
            test["cpu_seconds"] = cpu_seconds = ended(process, limit)
            test["seconds"] = time.monotonic() - started
            if cpu_seconds is None:
                os.killpg(process.pid, signal.SIGKILL)
                code, end = process.wait(), f"had not ended after {limit} s"
            else:
                code = process.returncode
                end = f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
            output.seek(0)
            text = output.read().decode(errors="replace")
        seconds = time.monotonic() - started
        test["counted"] = re.findall(r"^\s*COUNTED +(.*)$", text, re.MULTILINE)
        tail = "\n".join(text.splitlines()[-TAIL_LINES:])
        if not catch:
            reason = skip_reason(text)
            if code == SKIP_EXIT_CODE or (code == 0 and reason is not None):
                return [Case(program, "skipped", seconds, reason or tail or "no reason given")]
            if code != 0:
                return [Case(program, "failed", seconds, f"{end}\n{tail}")]
            # A script that runs programs of Catch2 prints the number of cases of each.
            count = sum(int(n) for n in re.findall(r"^All tests passed \(.* in (\d+) test cases?\)$", text, re.MULTILINE)) or 1
            return [Case(f"{program}{f' {i + 1} of {count}' if count > 1 else ''}", "passed", seconds / count) for i in range(count)]
        cases, running, complete = cases_in(report, program)
        if code == SKIP_EXIT_CODE and not cases:  # before its first case: no card, for instance
            return [Case(program, "skipped", seconds, tail or "no reason given")]
        if not complete or (code != 0 and not any(case.verdict == "failed" for case in cases)):
            where = f"{program}: {running or 'outside its cases'}"
            cases.append(Case(where, "failed", 0, f"the program {end}\n{tail}"))
        elif not cases:
            cases.append(Case(program, "failed", seconds, "no test case ran"))
        return cases


def cpu_times():
    """The seconds for which the cores were idle, and all seconds; 0 and 1 if the system does not provide them."""
    try:
        times = [int(field) for field in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return times[3] + times[4], sum(times)
    except (OSError, ValueError, IndexError):
        return 0, 1


def cores_are_idle():
    """Observes the cores for a period."""
    idle, total = cpu_times()
    time.sleep(IDLE_PERIOD_S)
    idle_now, total_now = cpu_times()
    return idle_now - idle > IDLE_SHARE * (total_now - total)


def seconds_of_last_run(build):
    try:
        return json.loads((pathlib.Path(build) / SECONDS_FILE).read_text())
    except (OSError, ValueError):
        return {}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    tests = tests_of(options.build, options.names, options.all)
    if not tests:
        sys.exit(f"run_tests: no test of {options.build} has a name or suite with {' or '.join(options.names)}")
    # Long tests come first, so that the last ones are short. Before the first run, their limits decide.
    last_run = seconds_of_last_run(options.build)
    tests.sort(key=lambda test: -last_run.get(test["name"], test["timeout"] or 0))
    several_processes = collections.deque(test for test in tests if not test["is_parallel"])
    one_process = collections.deque(test for test in tests if test["is_parallel"])
    cases = []

    def take(test, found):
        cases.extend(found)
        bad = sum(case.verdict == "failed" for case in found)
        print(f"{'FAILED' if bad else 'ok':6} {test['name']:32} {len(found):4} cases {sum(c.seconds for c in found):8.1f} s"
              f" {test['cpu_seconds'] or 0:8.1f} CPU s", flush=True)
        for line in test["counted"]:
            print(f"       {line}", flush=True)
        for case in found:
            if case.verdict == "failed":
                print(f"--- failed: {case.name}\n{case.text}\n---", flush=True)

    lock = threading.Lock()
    idle_lock = threading.Lock()
    several_processes_run = 0

    def next_test(while_idle):
        nonlocal several_processes_run
        while while_idle and (several_processes or one_process):
            with idle_lock:  # one test may use up what was idle
                if not (several_processes or one_process) or cores_are_idle():
                    break
        while True:
            with lock:
                if several_processes and (while_idle or several_processes_run < SEVERAL_PROCESSES):
                    several_processes_run += 1
                    return several_processes.popleft()
                if one_process or not several_processes:
                    return one_process.popleft() if one_process else None
            time.sleep(0.2)  # workers that wait for idle cores must not get the rest: a busy machine has none

    def work(while_idle):
        nonlocal several_processes_run
        while test := next_test(while_idle):
            try:
                found = run(test, options.build, options.all)
            finally:
                with lock:
                    several_processes_run -= not test["is_parallel"]
            with lock:
                take(test, found)

    workers = (os.cpu_count() or 1) + MORE_THAN_CORES
    with concurrent.futures.ThreadPoolExecutor(max_workers=workers + MORE_WHILE_IDLE) as pool:
        for future in [pool.submit(work, i >= workers) for i in range(workers + MORE_WHILE_IDLE)]:
            future.result()
    try:
        seconds = last_run | {test["name"]: round(test["seconds"], 1) for test in tests if "seconds" in test}
        (pathlib.Path(options.build) / SECONDS_FILE).write_text(json.dumps(seconds))
    except OSError:
        pass  # only the order of the next run

    print("\nthe ten slowest cases:")
    for case in sorted(cases, key=lambda c: -c.seconds)[:10]:
        print(f"{case.seconds:8.1f} s  {case.name}")
    count = {verdict: sum(case.verdict == verdict for case in cases) for verdict in ("passed", "failed", "skipped")}
    for verdict in ("skipped", "failed"):
        print(f"\n{verdict}:" if count[verdict] else "", end="\n" if count[verdict] else "")
        for case in cases:
            if case.verdict == verdict:
                print(f"  {case.name}" + (f": {case.text}" if verdict == "skipped" else ""))
    print(f"\n{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped", flush=True)
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
