#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the charts of a report as SVG files, which follow the reader's light or dark mode.

  scripts/report_svg.py runs/sweeps/bucket_size/report.html docs/pictures [--only TEXT] [--width 760]

A file has the name NAME-TITLE.svg, where NAME is the name of the page's folder. --only TEXT writes only charts whose title contains TEXT.
Needs Chromium, which runs the page's own code, and only Python's standard library.
"""
import argparse
import html
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROW, TOP, SIDE = 18, 34, 14  # of the legend and the margins


def fail(sentence, code=2):
    print(f"report_svg: {sentence}", file=sys.stderr)
    sys.exit(code)


def drawn(page, width):
    """The page's elements after its script has run."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        fail("Chromium is not installed. scripts/setup.sh --tests installs it.", 7)
    with tempfile.TemporaryDirectory(prefix="slipstream_svg_") as profile:
        command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}",
                   "--virtual-time-budget=3000", f"--window-size={width + 92},2000", "--dump-dom", page.resolve().as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def style_of(dom):
    """The colours of both modes, and the rules of the charts."""
    light, dark = re.findall(r":root \{(.*?)\}", dom, re.DOTALL)[:2]
    return (f"svg {{{light}}} @media (prefers-color-scheme: dark) {{ svg {{{dark}}} }}"
            "text { fill: var(--soft); font: 11px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; }"
            "text.strong { fill: var(--ink); font-weight: 600; } text.title { fill: var(--ink); font-size: 14px; font-weight: 600; }"
            ".axis { stroke: var(--line); } .gridline { stroke: var(--grid); } .page { fill: var(--card); stroke: var(--line); }")


def words(text):
    return html.unescape(re.sub(r"<[^>]*>", "", text)).strip()


def legend_rows(entries, width):
    """Positions of the entries: (x, row, name, colour, form)."""
    placed, x, row = [], SIDE, 0
    for colour, form, name in entries:
        wide = 26 + 6.3 * len(name)
        if x > SIDE and x + wide > width:
            x, row = SIDE, row + 1
        placed.append((x, row, name, colour, form))
        x += wide
    return placed


def swatch(x, y, colour, form):
    """The mark of a legend's entry, as the page's style draws it."""
    if form in ("line", "dashed"):
        dashes = ' stroke-dasharray="4 2"' if form == "dashed" else ""
        return f'<path d="M{x:.0f} {y + 4}h12" stroke="{colour}" stroke-width="2.5"{dashes}/>'
    if form == "dots":
        return f'<circle cx="{x + 5:.0f}" cy="{y + 4}" r="4" fill="{colour}"/>'
    square = f'<rect x="{x:.0f}" y="{y}" width="11" height="8" rx="2" fill="{colour}"/>'
    stripes = f'<path d="M{x:.0f} {y + 8}l8 -8M{x + 5:.0f} {y + 8}l6 -6" stroke="var(--card)" stroke-width="2"/>'
    return square + (stripes if form == "hatched" else "")


def picture(figure, title, style):
    """The chart as one SVG document; None if the figure has none."""
    found = re.search(r"<svg[^>]* viewBox=\"0 0 (\d+) (\d+)\"[^>]*>(.*?)</svg>", figure, re.DOTALL)
    if not found:
        return None
    width, height = int(found[1]), int(found[2])
    inside = re.sub(r"<line class=\"cursor\".*?</line>", "", found[3]).replace("&nbsp;", "&#160;")
    inside = re.sub(r'(="-?\d+\.\d\d)\d+"', r'\1"', inside)  # a hundredth of a pixel is enough
    entries = [(colour, form, words(name)) for colour, form, name in
               re.findall(r'<li><i style="background:([^"]*)"(?: class="([^"]*)")?></i>(.*?)</li>', figure)]
    placed = legend_rows(entries, width)
    below = TOP + height + 8
    keys = "".join(swatch(x, below + row * ROW + 2, colour, form) +
                   f'<text x="{x + 16:.0f}" y="{below + row * ROW + 10}">{html.escape(name)}</text>' for x, row, name, colour, form in placed)
    tall = below + (placed[-1][1] + 1 if placed else 0) * ROW + 6
    text = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 2 * SIDE} {tall}" width="{width + 2 * SIDE}" height="{tall}" role="img" '
            f'aria-label="{html.escape(title)}">\n<!-- SPDX-License-Identifier: Apache-2.0 -->\n<style>{style}</style>\n'
            f'<rect class="page" x=".5" y=".5" width="{width + 2 * SIDE - 1}" height="{tall - 1}" rx="8"/>\n'
            f'<text class="title" x="{SIDE}" y="22">{html.escape(title)}</text>\n<g transform="translate({SIDE} {TOP})">{inside}</g>\n{keys}\n</svg>\n')
    xml.etree.ElementTree.fromstring(text)  # a page of another version could break it
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--width", type=int, default=760, help="of the charts, in pixels; default: 760")
    options = parser.parse_args()
    if not options.page.is_file():
        fail(f"{options.page} is no file. Write it with slipstream report.")
    options.folder.mkdir(parents=True, exist_ok=True)
    dom = drawn(options.page, options.width)
    style, count = style_of(dom), 0
    for section in re.findall(r"<section [^>]*>.*?</section>", dom, re.DOTALL):
        heading = words(re.search(r"<h2[^>]*>(.*?)</h2>", section, re.DOTALL)[1])
        for figure in re.findall(r"<figure>.*?</figure>", section, re.DOTALL):
            own = re.search(r"<h3>(.*?)</h3>", figure, re.DOTALL)
            title = words(own[1]) if own else heading
            if options.only.lower() not in title.lower() or not (text := picture(figure, title, style)):
                continue
            slug = re.sub(r"[^a-z0-9]+", "-", title.split(",")[0].lower()).strip("-")
            path = options.folder / f"{options.page.resolve().parent.name}-{slug}.svg"
            path.write_text(text, encoding="utf-8")
            print(path)
            count += 1
    if count == 0:
        fail(f"{options.page} has no chart" + (f" whose title contains '{options.only}'." if options.only else "."))


if __name__ == "__main__":
    main()
