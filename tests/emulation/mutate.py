# SPDX-License-Identifier: Apache-2.0
"""Writes a copy of a source with one text replaced: mutate.py SOURCE OUTPUT FROM TO. FROM must be in it, or in a header that it includes."""

import pathlib
import re
import sys

source, output, old, new = sys.argv[1:]
path = pathlib.Path(source)
root = path.parent.parent.parent


def holding(text):
    """`text` with the header that holds `old` in place of its #include; None if none does."""
    if old in text:
        return text
    for include, header in re.findall(r'(#include "(kernels/[a-z_/]+\.cuh)")', text):
        if held := holding((root / header).read_text().replace("#pragma once", "")):
            return text.replace(include, held)
    return None


text = holding(path.read_text())
if text is None:
    sys.exit(f"{source} no longer has {old!r}: choose the mutation again")
pathlib.Path(output).write_text(text.replace(old, new, 1))
