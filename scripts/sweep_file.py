# SPDX-License-Identifier: Apache-2.0
"""Sweep files: their keys and checks, and the points and trials of a sweep. scripts/sweep.py has an example."""
import difflib
import hashlib
import itertools
import json
import math
import os
import pathlib
import re
import sys

if sys.version_info < (3, 11):
    sys.exit("sweep: needs Python 3.11 or newer, for its module tomllib.")
import tomllib

USAGE = 2  # exit code
KEYS = {"run": str, "repeats": int, "timeout_seconds": (int, float), "set": dict, "grid": dict, "points": list, "slurm": dict}
KINDS = {str: "a text", int: "an integer", float: "a number", dict: "a table", list: "a list"}
SLURM_KEYS = {"options": list, "at_once": int}
OWN_KEYS = ("output.dir", "checkpoint.dir")
MOST_TRIALS = 100_000
ROOT = pathlib.Path(__file__).resolve().parent.parent  # the checkout, or the folder of installed data


class Refusal(Exception):
    """The command line, the sweep file or the folder is wrong."""

    def __init__(self, sentence, code=USAGE):
        super().__init__(sentence)
        self.code = code


def toml_text(key, value):
    """The value in the form that --set reads."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[" + ", ".join(toml_text(key, each) for each in value) + "]"
    raise Refusal(f"{key} has a value of the type {type(value).__name__}. Use a text, a number, true, false or a list.")


def plain(value):
    return value if isinstance(value, str) else toml_text("", value)


def near(word, words):
    found = difflib.get_close_matches(word, words, 1)
    return f"; did you mean '{found[0]}'?" if found else f". Known: {', '.join(words)}."


def checked(path, table, keys, where=""):
    for key, value in table.items():
        if key not in keys:
            raise Refusal(f"{path}: unknown key '{where}{key}'{near(key, list(keys))}")
        if not isinstance(value, keys[key]) or isinstance(value, bool):
            kind = keys[key] if isinstance(keys[key], type) else keys[key][-1]
            raise Refusal(f"{path}: {where}{key} must be {KINDS[kind]}.")


def flatten(table):
    """[grid.train] steps = .. is "train.steps"."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", each) for name, each in flatten(value))
        else:
            yield key, value


def flat(path, table, where):
    """The settings by key."""
    settings = dict(flatten(table))
    for key in settings:
        if key in OWN_KEYS:
            raise Refusal(f"{path}: {where} sets {key}, which the sweep gives to each run. Leave it out.")
        if key != "ranks" and not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)+", key):
            raise Refusal(f"{path}: {where} has '{key}', which is neither ranks nor a key TABLE.KEY of a run file.")
    return settings


def path_or_shipped(text, folder):
    """The path itself, or the path of the shipped file of this name, as slipstream finds it."""
    shipped = ROOT / folder / f"{text}.toml"
    return shipped if not re.search("[/.]", text) and not os.path.exists(text) and shipped.is_file() else pathlib.Path(text)


class Point:
    def __init__(self, settings):
        self.ranks = settings.pop("ranks", 1)
        self.settings = settings
        known = json.dumps([self.ranks, sorted(settings.items())], ensure_ascii=False, default=str)
        self.id = hashlib.sha256(known.encode()).hexdigest()[:10]

    def sets(self):
        return [word for key, value in self.settings.items() for word in ("--set", f"{key}={toml_text(key, value)}")]


class Sweep:
    def __init__(self, path):
        self.path = path_or_shipped(str(path), "configs/sweeps")
        try:
            table = tomllib.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Refusal(f"{path} cannot be read: {error}.") from error
        self.paced = table.pop("paced", False)
        if not isinstance(self.paced, bool):
            raise Refusal(f"{path}: paced must be true or false.")
        checked(path, table, KEYS)
        if "run" not in table:
            raise Refusal(f'{path} names no run file. Add for instance run = "configs/runs/quickstart.toml".')
        self.run = path_or_shipped(table["run"], "configs/runs")
        if not self.run.exists() and self.path.resolve().is_relative_to(ROOT / "configs" / "sweeps"):
            self.run = ROOT / self.run  # a shipped sweep, away from the checkout
        try:
            self.run_text = self.run.read_bytes()
        except OSError as error:
            raise Refusal(f"the run file {self.run} of {path} cannot be read: {error.strerror}.") from error
        self.repeats = table.get("repeats", 3)
        self.timeout_s = table.get("timeout_seconds", 3600)
        if not 1 <= self.repeats <= 1000:
            raise Refusal(f"{path}: repeats = {self.repeats} must be from 1 to 1000.")
        if not 0 < self.timeout_s <= 1e9:
            raise Refusal(f"{path}: timeout_seconds = {self.timeout_s} must be above 0.")
        slurm = table.get("slurm", {})
        checked(path, slurm, SLURM_KEYS, "slurm.")
        self.options, self.at_once = slurm.get("options", []), slurm.get("at_once", 0)
        if not all(isinstance(option, str) and "\n" not in option for option in self.options):
            raise Refusal(f"{path}: slurm.options must be a list of texts of one line.")
        if self.at_once < 0:
            raise Refusal(f"{path}: slurm.at_once = {self.at_once} must be at least 0.")
        self.points = self.combine(path, table)

    def combine(self, path, table):
        grid, base = flat(path, table.get("grid", {}), "[grid]"), flat(path, table.get("set", {}), "[set]")
        for key, values in grid.items():
            if not isinstance(values, list):
                raise Refusal(f"{path}: grid.{key} must be a list, for instance [{plain(values)}].")
            if not values:
                raise Refusal(f"{path}: grid.{key} is empty, so the sweep has no point. Give it a value, or leave it out.")
        listed = table.get("points", [{}])
        if not all(isinstance(point, dict) for point in listed):
            raise Refusal(f"{path}: points must be tables, [[points]].")
        if not grid and (not listed or listed == [{}]):
            raise Refusal(f"{path} has neither a [grid] nor [[points]], so there is nothing to vary.")
        listed = [flat(path, point, "[[points]]") for point in listed]
        if math.prod(map(len, grid.values())) * len(listed) * self.repeats > MOST_TRIALS:
            raise Refusal(f"{path} has more than {MOST_TRIALS} runs. Shorten the lists of [grid].")
        points, seen = [], {}
        for given in listed:
            if both := sorted(set(given) & set(grid)):
                raise Refusal(f"{path}: {both[0]} is in [grid] and in [[points]]. Leave it out of one of them.")
            for values in itertools.product(*grid.values()):
                point = Point({**base, **given, **dict(zip(grid, values))})
                if not isinstance(point.ranks, int) or isinstance(point.ranks, bool) or point.ranks < 1:
                    raise Refusal(f"{path}: ranks = {point.ranks} must be a whole number from 1.")
                point.sets()  # refuses values that --set cannot have
                if point.id in seen:
                    raise Refusal(f"{path}: points {seen[point.id]} and {len(points) + 1} are equal. Leave one of them out.")
                points.append(point)
                seen[point.id] = len(points)
        if not points:
            raise Refusal(f"{path}: points is empty, so the sweep has no point.")
        keys = ["ranks", *dict.fromkeys(key for point in points for key in point.settings)]
        value = lambda point, key: point.ranks if key == "ranks" else point.settings.get(key)
        self.varied = [key for key in keys if any(value(point, key) != value(points[0], key) for point in points)]
        for point in points:
            point.label = ", ".join(f"{key} {'default' if value(point, key) is None else plain(value(point, key))}"
                                    for key in self.varied) or f"ranks {point.ranks}"
        return points

    def trials(self):
        """(point, round) in the order of measurement."""
        for number in range(1, self.repeats + 1):
            for point in self.points if number % 2 else reversed(self.points):
                yield point, number
