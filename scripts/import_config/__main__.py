# SPDX-License-Identifier: Apache-2.0
"""Reads a training configuration of another program and prints one JSON object about it.

usage: python3 scripts/import_config megatron | nemo | torchtitan PATH [--ranks N]

    run_file   the text of a run file of this program
    ranks, as  the number of GPUs (0: the file does not name it) and the software profile of its forecast
    program    the program and version whose defaults apply
    used, defaulted, unused
               names with values; unused options have a place, a reason and whether they are
               neutral: without effect on the time of a step
    notes      sentences

A configuration that cannot be imported prints {"refused": SENTENCE} and ends with 2, one that cannot be read with 3, a
missing part of Python with 7.
`slipstream plan --import` runs this program.
"""

import argparse
import json
import pathlib
import sys

import megatron
import nemo
import torchtitan
from options import Refused
from run_file import text_of

FORMATS = {"megatron": megatron, "nemo": nemo, "torchtitan": torchtitan}
LARGEST = 1 << 20


def imported(kind, path, ranks):
    if kind not in FORMATS:
        raise Refused(f"unknown format '{kind[:40]}'. Use {', '.join(FORMATS)}.")
    data = pathlib.Path(path).read_bytes()
    if len(data) > LARGEST:
        raise Refused(f"{path} has {len(data)} bytes; a configuration has at most {LARGEST}.")
    reader = FORMATS[kind]
    run, found = reader.read(data.decode(errors="replace"), path, ranks)
    run_file = text_of(run, path)
    return {
        "run_file": run_file,
        "ranks": run.ranks,
        "as": run.software,
        "program": reader.PROGRAM,
        "used": {
            found.prefix + name: found.shown(option.value)
            for name, option in found.used.items()
            if name not in found.unused
        },
        "defaulted": {found.prefix + name: value for name, value in found.defaulted.items() if value is not None},
        "unused": [
            {
                "name": found.prefix + name,
                "value": found.shown(option.value),
                "where": option.where,
                "reason": reason,
                "neutral": neutral,
            }
            for name, (option, reason, neutral) in found.unused.items()
        ],
        "notes": found.notes + run.notes,
    }


def main():
    parser = argparse.ArgumentParser(prog="import_config", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("format", metavar=" | ".join(FORMATS))
    parser.add_argument("path")
    parser.add_argument("--ranks", type=int, default=0, help="GPUs of the job")
    asked = parser.parse_args()
    try:
        print(json.dumps(imported(asked.format, asked.path, asked.ranks), indent=2))
    except Refused as error:
        print(json.dumps({"refused": str(error)}, indent=2))
        return error.code
    except OSError as error:
        print(json.dumps({"refused": f"{asked.path} cannot be read: {error.strerror}."}, indent=2))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
