# SPDX-License-Identifier: Apache-2.0
"""Writes a copy of a source with one text replaced: mutate.py SOURCE OUTPUT FROM TO. FROM must be there."""

import pathlib
import sys

source, output, old, new = sys.argv[1:]
text = pathlib.Path(source).read_text()
if old not in text:
    sys.exit(f"{source} no longer has {old!r}: choose the mutation again")
pathlib.Path(output).write_text(text.replace(old, new, 1))
