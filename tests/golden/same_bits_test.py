# SPDX-License-Identifier: Apache-2.0
"""scripts/same_bits.py finds the recorded bits, and reports a hash that differs.

usage: same_bits_test.py SOURCE_ROOT PROGRAM
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

source, program = map(pathlib.Path, sys.argv[1:])


def same_bits(*arguments):
    command = [sys.executable, source / "scripts/same_bits.py", "--program", program, *arguments]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True)
    return result.returncode, result.stdout


code, text = same_bits(*([] if os.environ.get("SLIPSTREAM_TEST_ALL") else ["--sample"]))
print(text, end="", flush=True)
if code != 0:
    sys.exit(code)

golden = json.loads((source / "tests/golden/params_hashes.json").read_text())
row, changed = golden["runs"][0], "0" * 32
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "golden.json"
    path.write_text(json.dumps({**golden, "runs": [{**row, "hash": changed}]}))
    code, text = same_bits("--golden", path)
    recorded_here = "skipped" not in text
    if recorded_here and (code != 1 or f"params_hash is {row['hash']}, expected {changed}" not in text):
        sys.exit(f"same_bits_test: a changed hash must end with code 1 and both hashes, not with {code}: {text}")
