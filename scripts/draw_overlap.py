#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the hidden share of communication against communication / compute, with its two bounds, as an SVG.

  scripts/draw_overlap.py docs/benchmarks/2026-11-23-zen5-overlap-2ranks.csv docs/pictures/overlap-hidden-communication.svg

Needs only Python, and a table of `slipstream bench overlap --ratios .. --csv`. The bounds: a step is no shorter than compute or
wire alone, and no gradient travels before it is complete (engine/report/bounds.h).
"""
import argparse
import csv
import math
import pathlib
import sys
from html import escape

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 58, 64
LINES = (("max", "bound: max(compute, wire)"), ("dependencies", "bound: with dependencies"), ("bucketed", "bucketed"),
         ("per_parameter", "per_parameter"), ("flat", "flat"))
STYLE = """
  svg { --page: #ffffff; --edge: #d0d7de; --text: #1f2328; --quiet: #59636e; }
  @media (prefers-color-scheme: dark) { svg { --page: #0d1117; --edge: #3d444d; --text: #f0f6fc; --quiet: #9198a1; } }
  text { font: 12px -apple-system, "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif; fill: #59636e; fill: var(--quiet); }
  .title { font-size: 15px; font-weight: 600; fill: #1f2328; fill: var(--text); }
  .page { fill: #ffffff; stroke: #d0d7de; fill: var(--page); stroke: var(--edge); }
  .grid { stroke: #d0d7de; stroke: var(--edge); stroke-width: 0.6; }
  polyline { fill: none; stroke-width: 2; } .max, .dependencies { stroke-dasharray: 6 4; }
  .max { stroke: #7a828c; } .dependencies { stroke: #d9480f; } .bucketed { stroke: #1a8a6a; } .per_parameter { stroke: #3b82c4; }
  .flat { stroke: #8a63b8; } circle.bucketed { fill: #1a8a6a; } circle.per_parameter { fill: #3b82c4; } circle.flat { fill: #8a63b8; }
"""


def fail(sentence):
    sys.exit(f"draw_overlap: {sentence}")


def curves(path):
    """Name of a line -> [(ratio, hidden share)], and the number of ranks."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        ratios = sorted({float(row["ratio"]) for row in rows} - {0.0})
        named = {(row["implementation"], float(row["ratio"])): row for row in rows}
        points = {name: [] for name, _ in LINES}
        for ratio in ratios:
            compute = float(named["no_communication", ratio]["plan_bound_ms"])
            ideal = float(named["bucketed", ratio]["ideal_bound_ms"])
            points["max"].append((ratio, min(1.0, 1 / ratio)))
            points["dependencies"].append((ratio, min(1.0, max(0.0, 1 - (ideal - compute) / (ratio * compute)))))
            for name in ("bucketed", "per_parameter", "flat"):
                if (name, ratio) in named:
                    points[name].append((ratio, float(named[name, ratio]["hidden_fraction"])))
        ranks = int(named["bucketed", ratios[0]]["world_size"])
    except (OSError, KeyError, ValueError, IndexError, csv.Error) as error:
        fail(f"{path} is no table of `slipstream bench overlap --ratios .. --csv`: {error}.")
    return points, ranks


def draw(path):
    points, ranks = curves(path)
    ratios = [ratio for ratio, _ in points["max"]]
    low, high = math.log2(ratios[0]), math.log2(ratios[-1])

    def x(ratio):
        return LEFT + (WIDTH - LEFT - RIGHT) * ((math.log2(ratio) - low) / (high - low) if high > low else 0.5)

    def y(share):
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    title = f"Hidden communication, {ranks} ranks"
    body = [f'<text class="title" x="16" y="27">{title}</text>', '<text x="16" y="46">share of communication under compute</text>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        body += [f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(share):.1f}" y2="{y(share):.1f}"/>',
                 f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>']
    for ratio in ratios:
        body.append(f'<text x="{x(ratio):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{ratio:g}</text>')
    body.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - BOTTOM + 34}" text-anchor="end">communication / compute</text>')
    at = LEFT
    for name, label in LINES:
        if not points[name]:
            continue
        body.append(f'<polyline class="{name}" points="{" ".join(f"{x(r):.1f},{y(share):.1f}" for r, share in points[name])}"/>')
        if name not in ("max", "dependencies"):
            body += [f'<circle class="{name}" cx="{x(r):.1f}" cy="{y(share):.1f}" r="4"><title>{label} at {r:g}: {100 * share:.1f} %</title></circle>'
                     for r, share in points[name]]
        body += [f'<polyline class="{name}" points="{at},{HEIGHT - 18} {at + 22},{HEIGHT - 18}"/>',
                 f'<text x="{at + 28}" y="{HEIGHT - 14}">{escape(label)}</text>']
        at += 46 + 6.4 * len(label)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
            f'aria-label="{title}">\n<style>{STYLE}</style>\n<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" '
            f'height="{HEIGHT - 1}" rx="8"/>\n' + "\n".join(body) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=pathlib.Path, help="table of bench overlap with several ratios")
    parser.add_argument("svg", type=pathlib.Path, help="the picture to write")
    options = parser.parse_args()
    options.svg.write_text(draw(options.csv), encoding="utf-8")


if __name__ == "__main__":
    main()
