#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every shipped sweep runs on this machine, with the ends of its lists, a smaller model and few steps.

Arguments: the source root and the program.
"""

import csv
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT, PROGRAM = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
from sweep_file import Sweep  # noqa: E402

SMALLER = {
    r"^(layers|heads) = \d+": r"\1 = 4",
    r"^width = \d+": "width = 16",
    r"^context = \d+": "context = 16",
    r"^steps = \[.*\]": "steps = [1, 2]",
    r"^eval_batches = \d+": "eval_batches = 1",
}
SHORTER = {
    r"^repeats = \d+": "repeats = 1",
    r'^"train.steps" = \d+': '"train.steps" = 4',
    r"^timeout_seconds = \d+": "timeout_seconds = 100",
    r"= \[([^\[\],]+),.*, ([^\[\],]+)\]$": r"= [\1, \2]",  # the ends of a list
}


def edited(text, changes):
    for old, new in changes.items():
        text = re.sub(old, new, text, flags=re.M)
    return text


class Shipped(unittest.TestCase):
    def test_they_run(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for part in ("scripts", "configs"):
                shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            (folder / "build").mkdir()
            (folder / "build/slipstream").symlink_to(PROGRAM)
            run = folder / "configs/runs/quickstart.toml"
            run.write_text(edited(run.read_text(), SMALLER))
            # The shell is that of a user, without the variables with which the suite calls mpirun.
            environment = {key: value for key, value in os.environ.items() if not key.startswith("OMPI_")}
            files = sorted((folder / "configs/sweeps").glob("*.toml"))
            self.assertGreaterEqual(len(files), 8)
            command = ["scripts/sweep.py", str(files[0].relative_to(folder))]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
            self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
            self.assertIn("the text data/quickstart.txt does not exist. scripts/quickstart.sh writes it", done.stderr)
            (folder / "data").mkdir()
            (folder / "data/quickstart.txt").write_text("".join(f"line {i} of the text\n" for i in range(3000)))
            for file in files:
                with self.subTest(file.name):
                    file.write_text(edited(file.read_text(), SHORTER))
                    command = ["scripts/sweep.py", f"configs/sweeps/{file.name}"]
                    done = subprocess.run(
                        command, cwd=folder, capture_output=True, text=True, check=False, env=environment
                    )
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    with open(folder / "runs/sweeps" / file.stem / "sweep.csv", newline="", encoding="utf-8") as table:
                        self.assertEqual({(row["runs"], row["failed"]) for row in csv.DictReader(table)}, {("1", "0")})

    def test_counts_of_the_page_are_true(self):
        """docs/how-to/sweeps.md shows the first line of a shipped sweep."""
        page = (ROOT / "docs/how-to/sweeps.md").read_text(encoding="utf-8")
        name = re.search(r"scripts/sweep.py (configs/sweeps/\w+.toml)", page)[1]
        os.chdir(ROOT)
        sweep = Sweep(name)
        shown = re.search(r"^\[1/(\d+)\] (.*), round 1:", page, re.M)
        self.assertEqual(int(shown[1]), len(sweep.points) * sweep.repeats)
        self.assertEqual(shown[2], sweep.points[0].label)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
