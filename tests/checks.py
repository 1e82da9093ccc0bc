# SPDX-License-Identifier: Apache-2.0
"""Counted checks of the tests in Python. The first that fails ends the test with what was found."""
import pathlib
import sys

checked = 0


def check(condition, *found):
    global checked
    checked += 1
    if not condition:
        sys.exit("\n".join(map(str, [f"{pathlib.Path(sys.argv[0]).stem}: check {checked} failed", *found])))


def close(a, b, share):
    """a is at most `share` of b away from b."""
    return abs(a - b) <= share * abs(b)


def all_hold(subject):
    print(f"{checked} checks of {subject} hold")
