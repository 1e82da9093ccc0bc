#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/bench_checkpoint.py measures saves of a tiny model: its rows agree with the sizes that the plan prints."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from checks import all_hold, check  # noqa: E402

root, program = map(pathlib.Path, sys.argv[1:])
script = root / "scripts/bench_checkpoint.py"


def bench(*flags):
    return subprocess.run([script, "--program", program, "--size", "tiny", "--rounds", "1", *flags], capture_output=True,
                          text=True, timeout=100)


with tempfile.TemporaryDirectory() as folder:
    parts = ["beside"] + (["write"] if shutil.which("fio") else [])
    done = bench("--dir", folder, "--parts", ",".join(parts), "--json", f"{folder}/rows.jsonl")
    check(done.returncode == 0, done.stdout, done.stderr)
    rows = {row["part"]: row for row in map(json.loads, pathlib.Path(folder, "rows.jsonl").read_text().splitlines())}
    check(list(rows) == parts, rows)
    beside = rows["beside"]
    check(abs(beside["saving_step_ms"] / beside["step_ms"] - 1 - beside["added_share"]) < 1e-9, beside)
    check(beside["planned_share"] is not None and beside["planned_share"] >= 0, beside)
    if "write" in rows:
        # Weights and two moments in float32, and the header: 2 blocks of width 16, a table of 256 rows, 64 positions.
        params = 2 * (12 * 16 * 16 + 13 * 16) + (256 + 64) * 16 + 2 * 16
        check(12 * params < rows["write"]["bytes"] < 12 * params + 40000, rows["write"], params)
    left = sorted(each.name for each in pathlib.Path(folder).iterdir())
    check(left == ["rows.jsonl"], left)
unknown = bench("--parts", "wrote")
check(unknown.returncode == 2 and "unknown part 'wrote'; there are write, resume, beside" in unknown.stderr, unknown.stderr)
all_hold("scripts/bench_checkpoint.py")
