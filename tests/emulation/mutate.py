# SPDX-License-Identifier: Apache-2.0
"""Writes a copy of a source with one text replaced: mutate.py SOURCE OUTPUT FROM TO. FROM must be in it, or in a header of its folder."""

import pathlib
import sys

source, output, old, new = sys.argv[1:]
text = pathlib.Path(source).read_text()
if old not in text:
    for header in pathlib.Path(source).parent.glob("*.cuh"):
        include = f'#include "kernels/{header.parent.name}/{header.name}"'
        if old in header.read_text() and include in text:
            text = text.replace(include, header.read_text().replace("#pragma once", ""))
if old not in text:
    sys.exit(f"{source} no longer has {old!r}: choose the mutation again")
pathlib.Path(output).write_text(text.replace(old, new, 1))
