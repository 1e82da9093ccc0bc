# SPDX-License-Identifier: Apache-2.0
"""Writes a copy of a source with one text replaced: mutate.py SOURCE OUTPUT FROM TO. FROM must be in it, or in a header of kernels that it includes."""

import pathlib
import re
import sys

source, output, old, new = sys.argv[1:]
path = pathlib.Path(source)
root = path.parent.parent.parent


def inlined(text, done):
    """`text` with every header of kernels in place of its first #include."""
    def header_of(match):
        header = match[1]
        return "" if header in done else (done.add(header), inlined((root / header).read_text().replace("#pragma once", ""), done))[1]
    return re.sub(r'#include "(kernels/[a-z_/]+\.cuh)"', header_of, text)


text = inlined(path.read_text(), set())
if old not in text:
    sys.exit(f"{source} no longer has {old!r}: choose the mutation again")
pathlib.Path(output).write_text(text.replace(old, new, 1))
