#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/draw_timeline.py draws the times of a trace whose numbers are known."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "draw_timeline.py"
TRACKS = ["compute", "a_channel_with_a_long_name"]


def event(track, category, name, begin_ms, length_ms, step):
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": track, "ts": 1000 * begin_ms,
            "dur": 1000 * length_ms, "args": {"step": step}}


def trace(ranks=2):
    """Steps 7 and 8 of 10 ms: compute waits in the last of 4 ms of communication, which two tasks fill in part."""
    events = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": name}}
              for tid, name in enumerate(TRACKS)]
    for step, start in ((7, 100), (8, 110), (9, 120)):
        events += [event(0, "kernel", "attention.0/matmul", start, 3, step),
                   event(0, "kernel", "attention_gradient.0/matmul", start + 3, 5, step),
                   event(1, "communication", "all_reduce.bucket0", start + 5, 3, step),
                   event(1, "communication", "all_reduce.bucket1", start + 7, 2, step),
                   event(0, "wait", "adamw_wait_all_reduce.bucket1", start + 8, 1, step),
                   event(0, "kernel", "adamw", start + 9, 1, step)]
    return {"distributedInfo": {"world_size": ranks}, "traceEvents": events}


class DrawTimeline(unittest.TestCase):
    def draw(self, content, *flags):
        with tempfile.TemporaryDirectory() as folder:
            run = pathlib.Path(folder)
            (run / "trace").mkdir()
            (run / "trace" / "rank0000.json").write_text(content)
            command = [sys.executable, SCRIPT, run, run / "step.svg", *flags]
            done = subprocess.run(command, capture_output=True, text=True)
            svg = (run / "step.svg").read_text() if done.returncode == 0 else ""
            return done, svg

    def test_the_title_has_the_times_of_the_trace(self):
        done, svg = self.draw(json.dumps(trace()), "--step", "7")
        self.assertEqual(done.stderr, "")
        self.assertIn("Step 7 of rank 0: 10.0 ms", svg)
        self.assertIn("2 ranks; 4.0 ms with communication under way, compute waits for 1.0 ms", svg)
        for text in ("forward 3.0 ms", "backward 5.0 ms", "bucket 0", "bucket 1", "layer 0"):
            self.assertIn(text, svg)

    def test_two_steps_are_twice_as_long(self):
        done, svg = self.draw(json.dumps(trace()), "--step", "7", "--count", "2")
        self.assertIn("Steps 7 and 8 of rank 0: 20.0 ms", svg)
        self.assertIn("8.0 ms with communication under way, compute waits for 2.0 ms", svg)

    def test_blocks_are_to_scale_and_inside_the_picture(self):
        _, svg = self.draw(json.dumps(trace()), "--step", "7")
        picture = xml.fromstring(svg)
        width = float(picture.get("width"))
        blocks = {}
        for rect in picture.iter("{http://www.w3.org/2000/svg}rect"):
            begin, length = float(rect.get("x")), float(rect.get("width"))
            self.assertGreaterEqual(begin, 0)
            self.assertLessEqual(begin + length, width)
            if rect.find("{http://www.w3.org/2000/svg}title") is not None:
                blocks.setdefault(rect.get("class"), (begin, length))
        (forward, length), (backward, _) = blocks["forward"], blocks["backward"]
        self.assertAlmostEqual(backward - forward, length, delta=1)
        self.assertAlmostEqual(blocks["communication"][0] - forward, 5 / 3 * (backward - forward), delta=0.1)

    def test_what_cannot_be_drawn_is_refused(self):
        for content, flags, sentence in (("", (), "is no trace of a run"),
                                         (json.dumps(trace()), ("--step", "9"), "need one more after them"),
                                         (json.dumps(trace()), ("--step", "6"), "the trace has steps 7 to 9")):
            done, _ = self.draw(content, *flags)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(sentence, done.stderr)


if __name__ == "__main__":
    unittest.main()
