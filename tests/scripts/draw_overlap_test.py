#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/draw_overlap.py draws the shares and bounds of a table whose numbers are known."""

import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "draw_overlap.py"
HEAD = "implementation,world_size,hidden_fraction,plan_bound_ms,ideal_bound_ms,ratio\n"
# Compute takes 100 ms. At ratio 1, dependencies expose 40 ms of 100; at ratio 2, 120 ms of 200.
TABLE = HEAD + "".join(f"{name},2,{hidden},{plan},{ideal},{ratio}\n" for name, hidden, plan, ideal, ratio in [
    ("no_communication", 0, 100, 100, 1), ("flat", 0, 200, 140, 1), ("bucketed", 0.55, 145, 140, 1),
    ("no_communication", 0, 100, 100, 2), ("flat", 0, 300, 220, 2), ("bucketed", 0.35, 225, 220, 2)])


class DrawOverlap(unittest.TestCase):
    def draw(self, table):
        with tempfile.TemporaryDirectory() as folder:
            source, svg = pathlib.Path(folder, "a.csv"), pathlib.Path(folder, "a.svg")
            source.write_text(table)
            done = subprocess.run([sys.executable, SCRIPT, source, svg], capture_output=True, text=True)
            return done, svg.read_text() if done.returncode == 0 else ""

    def test_lines_have_the_shares_of_the_table(self):
        done, svg = self.draw(TABLE)
        self.assertEqual(done.stderr, "")
        lines = {}
        for line in xml.fromstring(svg).iter("{http://www.w3.org/2000/svg}polyline"):
            lines.setdefault(line.get("class"), [tuple(map(float, point.split(","))) for point in line.get("points").split()])
        (_, none), _ = lines["flat"]  # 0 %
        (_, whole), (_, half) = lines["max"]  # 100 and 50 %
        self.assertAlmostEqual(half, (none + whole) / 2, delta=0.2)
        for name, shares in (("dependencies", (0.6, 0.4)), ("bucketed", (0.55, 0.35))):
            for (_, y), share in zip(lines[name], shares):
                self.assertAlmostEqual(y, none + (whole - none) * share, delta=0.2)
        self.assertEqual([x for x, _ in lines["bucketed"]], [x for x, _ in lines["max"]])
        self.assertIn("Hidden communication, 2 ranks", svg)
        self.assertNotIn("per_parameter</text>", svg)

    def test_another_file_is_refused(self):
        for table in ("", HEAD, "a,b\n1,2\n", TABLE.replace("140", "much")):
            done, _ = self.draw(table)
            self.assertEqual(done.returncode, 1)
            self.assertIn("is no table of `slipstream bench overlap", done.stderr)


if __name__ == "__main__":
    unittest.main()
