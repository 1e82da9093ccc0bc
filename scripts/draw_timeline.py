#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws training steps of a run as an SVG: compute above, one row per channel below, waits of compute in red.

Needs only Python, and trace/rank0000.json of the run folder.
"""

import argparse
import json
import pathlib
import re
import sys
from html import escape

WIDTH = 960  # of the picture, in its own units; a README shows it about as wide
RIGHT = 16
COMPUTE_HEIGHT, CHANNEL_HEIGHT, GAP = 42, 24, 9
PHASES = {"forward": "forward", "backward": "backward", "update": "optimizer"}

STYLE = """
  svg { --page: #ffffff; --edge: #d0d7de; --text: #1f2328; --quiet: #59636e; --lane: #f3f5f8; }
  @media (prefers-color-scheme: dark) {
    svg { --page: #0d1117; --edge: #3d444d; --text: #f0f6fc; --quiet: #9198a1; --lane: #1a2029; }
  }
  text { font: 12px -apple-system, "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif; fill: #1f2328;
         fill: var(--text); }
  .title { font-size: 15px; font-weight: 600; }
  .quiet { font-size: 11.5px; fill: #59636e; fill: var(--quiet); }
  .name { font-weight: 600; text-anchor: end; }
  .in { font-size: 10.5px; fill: #ffffff; text-anchor: middle; }
  .tick { text-anchor: middle; }
  .page { fill: #ffffff; stroke: #d0d7de; fill: var(--page); stroke: var(--edge); }
  .lane { fill: #f3f5f8; fill: var(--lane); }
  .grid { stroke: #d0d7de; stroke: var(--edge); stroke-width: 0.6; }
  .forward { fill: #3b82c4; } .backward { fill: #1d4f91; } .update { fill: #8a63b8; }
  .communication { fill: #1a8a6a; } .input { fill: #7a828c; } .wait { fill: #d9480f; }
  .band { fill: #d9480f; opacity: 0.12; }
"""


def fail(message):
    sys.exit(f"draw_timeline: {message}")


class Block:
    """One interval of a row, in milliseconds from the beginning of the picture."""

    def __init__(self, kind, label, begin, end):
        self.kind, self.label, self.begin, self.end = kind, label, begin, end


def phase_of(item):
    if "gradient" in item:
        return "backward"
    if re.match(r"(sum_squares|clip|adamw|add_tied|stage_scalars|report)", item):
        return "update"
    return "forward"


def layer_of(item):
    """The layer that an item computes: the last number of its name, "head" for the head, and nothing for other
    items."""
    if re.match(r"(head|final_norm)", item):
        return "head"
    number = re.search(r"(attention|mlp|norm).*\.(\d+)$", item)
    return f"layer {number.group(2)}" if number else ""


def block_of(event, row):
    """The block of an event, or None if the picture leaves it out: a channel that waits is an empty row."""
    name, category = event["name"], event["cat"]
    begin = event["ts"] / 1000
    end = begin + event["dur"] / 1000
    if category == "wait":
        return Block("wait", "", begin, end) if row == "compute" else None
    if row == "compute":
        item = name.split("/")[0]
        return Block(phase_of(item), layer_of(item), begin, end)
    label = re.sub(r"([a-z])(\d+)$", r"\1 \2", name.split(".", 1)[-1].split("/")[0])
    return Block("communication" if category == "communication" else "input", label, begin, end)


def read_rows(path):
    """The blocks by name of the row, the beginning of the first work on compute by step, and the number of ranks."""
    try:
        trace = json.loads(path.read_text())
        events, ranks = trace["traceEvents"], trace["distributedInfo"]["world_size"]
    except (OSError, ValueError, KeyError) as error:
        fail(f"{path} is no trace of a run: {error}. Set [trace] steps in the run file and train.")
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    rows, starts = {name: [] for name in names.values()}, {}
    for event in events:
        if event["ph"] != "X":
            continue
        row = names[event["tid"]]
        block = block_of(event, row)
        if block:
            rows[row].append(block)
        if row == "compute" and event["cat"] != "wait":
            step = event["args"]["step"]
            starts[step] = min(starts.get(step, block.begin), block.begin)
    return rows, starts, ranks


def clipped(blocks, begin, end):
    inside = [Block(b.kind, b.label, max(b.begin, begin) - begin, min(b.end, end) - begin)
              for b in blocks if b.end > begin and b.begin < end]
    return sorted(inside, key=lambda b: b.begin)


def merged(blocks):
    """Joins neighbours of one kind and label to one block. A wait between them keeps them apart."""
    whole = []
    for block in blocks:
        if whole and (whole[-1].kind, whole[-1].label) == (block.kind, block.label):
            whole[-1].end = max(whole[-1].end, block.end)
        else:
            whole.append(Block(block.kind, block.label, block.begin, block.end))
    return whole


def text_width(text, size):
    return 0.58 * size * len(text)


def union(blocks):
    """The time in which at least one of the blocks runs."""
    total, reached = 0.0, 0.0
    for block in sorted(blocks, key=lambda b: b.begin):
        total += max(0.0, block.end - max(block.begin, reached))
        reached = max(reached, block.end)
    return total


def facts_of(rows, ranks):
    """The line below the title, with the numbers of the picture."""
    communication = union(b for blocks in rows.values() for b in blocks if b.kind == "communication")
    waited = union(b for b in rows["compute"] if b.kind == "wait")
    if not communication:
        return f"{ranks} {'rank' if ranks == 1 else 'ranks'}, no communication"
    return f"{ranks} ranks; {communication:.1f} ms with communication under way, compute waits for {waited:.1f} ms"


def phase_spans(blocks):
    """The beginning and the end of each phase on compute, for the names above the row."""
    spans = []
    for block in blocks:
        if block.kind == "wait":
            continue
        if spans and spans[-1][0] == block.kind:
            spans[-1][2] = block.end
        else:
            spans.append([block.kind, block.begin, block.end])
    return spans


def draw(folder, first, count):
    rows, starts, ranks = read_rows(folder / "trace" / "rank0000.json")
    steps = sorted(step for step in starts if step + 1 in starts)
    if not steps:
        fail("the trace has no step that another one follows. Set [trace] steps to at least two steps.")
    if first is None:  # the median step
        first = sorted(steps, key=lambda s: starts[s + 1] - starts[s])[len(steps) // 2]
    if first not in starts or first + count not in starts:
        fail(f"the trace has steps {min(starts)} to {max(starts)}; {count} from {first} on need one more after them")
    begin, end = starts[first], starts[first + count]
    length = end - begin
    rows = {name: clipped(blocks, begin, end) for name, blocks in rows.items()}
    rows = {name: blocks for name, blocks in rows.items() if blocks}
    order = ["compute"] + sorted((name for name in rows if name != "compute"),
                                 key=lambda name: -sum(b.end - b.begin for b in rows[name]))

    left = max(92, 24 + max(text_width(name, 13) for name in order))
    scale = (WIDTH - left - RIGHT) / length

    def x(time):
        return left + time * scale

    steps = f"Step {first}" if count == 1 else f"Steps {first} and {first + 1}"
    title, facts = f"{steps} of rank 0: {length:.1f} ms", facts_of(rows, ranks)
    body = [f'<text class="title" x="16" y="27">{escape(title)}</text>',
            f'<text class="quiet" x="16" y="46">{escape(facts)}</text>']
    top = 84
    bottom = top + COMPUTE_HEIGHT + (CHANNEL_HEIGHT + GAP) * (len(order) - 1)

    ticks = next(t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000) if length / t <= 10)
    for tick in range(0, int(length - 12 / scale) + 1, ticks):
        body.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top - 6}" y2="{bottom + 6}"/>')
        body.append(f'<text class="quiet tick" x="{x(tick):.1f}" y="{bottom + 20}">{tick} ms</text>')

    y = top
    for name in order:
        height = COMPUTE_HEIGHT if name == "compute" else CHANNEL_HEIGHT
        body.append(f'<text class="name" x="{left - 12}" y="{y + height / 2 + 4:.1f}">{escape(name)}</text>')
        body.append(f'<rect class="lane" x="{left}" y="{y}" width="{WIDTH - left - RIGHT}" height="{height}"/>')
        blocks = merged(rows[name]) if name == "compute" else rows[name]
        for block in blocks:
            width = max((block.end - block.begin) * scale, 1.2)
            inset = 0.8 if width > 4 else 0
            body.append(f'<rect class="{block.kind}" x="{x(block.begin):.2f}" y="{y}" width="{width - inset:.2f}" '
                        f'height="{height}"><title>{escape(block.label or block.kind)}, '
                        f'{block.end - block.begin:.2f} ms</title></rect>')
            for label in (block.label, block.label.split()[-1] if block.label else ""):
                if label and text_width(label, 10.5) < width - 4:
                    body.append(f'<text class="in" x="{x((block.begin + block.end) / 2):.1f}" '
                                f'y="{y + height / 2 + 4:.1f}">{escape(label)}</text>')
                    break
        y += height + GAP

    for block in (b for b in rows["compute"] if b.kind == "wait"):
        body.append(f'<rect class="band" x="{x(block.begin):.2f}" y="{top - 6}" '
                    f'width="{(block.end - block.begin) * scale:.2f}" height="{bottom - top + 12}"/>')
    for kind, start, stop in phase_spans(rows["compute"]):
        label = f"{PHASES[kind]} {stop - start:.1f} ms"
        if text_width(label, 11.5) < (stop - start) * scale:
            body.append(f'<text class="quiet" x="{x(start):.1f}" y="{top - 12}">{escape(label)}</text>')

    at, y = left, bottom + 46
    for kind, label in (("forward", "forward"), ("backward", "backward"), ("update", "optimizer"),
                        ("communication", "communication"), ("wait", "compute waits for communication")):
        body.append(f'<rect class="{kind}" x="{at}" y="{y - 9}" width="11" height="11" rx="2"/>')
        body.append(f'<text class="quiet" x="{at + 17}" y="{y}">{label}</text>')
        at += 17 + text_width(label, 11.5) + 22
    height = y + 16
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img" aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
            f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>\n'
            + "\n".join(body) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=pathlib.Path, help="run folder with trace/rank0000.json")
    parser.add_argument("svg", type=pathlib.Path, help="the picture to write")
    parser.add_argument("--step", type=int, help="first step to draw (default: the traced step of median length)")
    parser.add_argument("--count", type=int, default=1, choices=(1, 2), help="how many steps (default: 1)")
    options = parser.parse_args()
    options.svg.write_text(draw(options.run, options.step, options.count))


if __name__ == "__main__":
    main()
