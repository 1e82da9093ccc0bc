#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pages of real runs in headless Chromium: their numbers are those of the run's files, and no text of a run is code.

Arguments: the program, mpirun and scripts/sweep.py. With SLIPSTREAM_SCREENSHOTS=FOLDER, also pictures in light, dark and phone width.
"""

import csv
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

PROGRAM, MPIRUN, SWEEP = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], pathlib.Path(sys.argv[3]).resolve()
EVERYTHING = "SLIPSTREAM_TEST_ALL" in os.environ
PICTURES = os.environ.get("SLIPSTREAM_SCREENSHOTS")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# The first is the name of a folder, the second the text of an event: each would change the title if it became an
# element.
HOSTILE_NAME = "<img src=x onerror=document.title='owned'>"
HOSTILE_TEXT = "</script><script>document.title='owned'</script><b id=owned>"

RUN_FILE = """
[model]
family = "gpt2"
layers = 4
heads = 2
width = 64
context = 32
[data]
train = "text.txt"
tokenizer = "bytes"
[train]
steps = 24
micro_batch_size = 2
global_batch_size = 16
log_interval = 24
eval_interval = 8
eval_batches = 1
[comm.emulate]
bandwidth = "400Mbit/s"
[checkpoint]
interval = 8
[trace]
steps = [10, 12]
"""
RUNS = {"data parallel": [], "pipeline": ["parallel.pipeline=2"], "zero3": ["zero.stage=3"]}
WAITS = {"data parallel": "gradients", "pipeline": "pipeline stages", "zero3": "parameters"}


# Acts on the page of a run as a reader would, and writes what it shows into an element.
ACTIONS = """
const found = {}, host = document.querySelector('.timeline'), steps = document.querySelector('select[aria-label^="Step of"]');
const field = document.querySelector('input[type=search]'), tipText = () => tip.hidden ? null : tip.textContent;
const pointer = (type, x, y, more) => { const box = host.getBoundingClientRect();
  host.dispatchEvent(new PointerEvent(type, {clientX: box.left + x, clientY: box.top + y, bubbles: true, pointerId: 1, ...more})); };
const drag = (from, to, more) => { pointer('pointerdown', from, 30, more);
  for (const x of [(from + to) / 2, to]) pointer('pointermove', x, 30, more);
  pointer('pointerup', to, 30, more); };
const press = (key, element = host) => element.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
const measured = () => Number((document.querySelector('.measured data') || {}).value);
found.width = host.firstChild.viewBox.baseVal.width;  // as drawn
drag(200, 600);
found.measured = measured();
found.totals = Object.fromEntries([...document.querySelectorAll('.measured tbody tr')].map(row => [row.cells[0].textContent,
  [1, 2, 3, 4].map(i => Number((row.cells[i].querySelector('data') || {value: row.cells[i].textContent.replace('-', '0')}).value))]));
drag(500, 400, {shiftKey: true});
found.afterMove = measured();
press('Escape');
found.cleared = document.querySelector('.measured').childElementCount;
found.follows = [];
for (const [key, times] of [['0', 1], ['ArrowRight', 60], ['ArrowLeft', 60], ['Home', 1]]) {
  for (let i = 0; i < times; ++i) press(key);
  found.follows.push(steps.value);
}
press('0');
pointer('pointermove', 400, 30);
const before = tipText(), box = host.getBoundingClientRect();
host.dispatchEvent(new WheelEvent('wheel', {ctrlKey: true, deltaY: 900, clientX: box.left + 100, clientY: box.top + 30, cancelable: true}));
found.tip = [before, tipText()];
pointer('pointermove', 400, 30);
found.tip.push(tipText());
press('0');
found.tip.push(tipText());
field.value = 'TIED_sum recv';
field.dispatchEvent(new Event('input'));
found.matches = document.querySelector('.found').textContent;
found.dimmed = host.querySelectorAll('path[opacity]').length;
press('Enter', field);
found.match = [document.querySelector('.found').textContent, document.querySelector('#timeline .readout').textContent];
press('Escape', field);
found.undimmed = host.querySelectorAll('path[opacity]').length;
press('.'); press('[');
found.event = [document.querySelector('#timeline .readout').textContent, document.querySelector('.measured b').textContent];
document.querySelector('#training svg').dispatchEvent(new FocusEvent('focus'));
found.readout = document.querySelector('#training .readout').textContent;
found.cards = ['loss', 'val_loss'].map(key => document.querySelector(`[data-figure=${key}] data`).textContent);
found.hatched = host.querySelectorAll('path[fill^="url(#hatch"]').length;
found.grey = host.querySelectorAll('path[fill="var(--gap)"]').length;
found.legend = [...document.querySelectorAll('#timeline .legend li')].map(one => [one.textContent, one.firstChild.className]);
found.dashed = [...document.querySelectorAll('#time .legend li')].filter(one => one.firstChild.className === 'dashed').map(one => one.textContent);
"""
# Finds words of table heads that a line break divides.
BROKEN_WORDS = """
const heads = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), broken = [];
document.querySelectorAll('details').forEach(one => { one.open = true; });
for (let node = heads.nextNode(); node; node = heads.nextNode()) if (node.parentElement.closest('th')) for (const word of node.data.matchAll(/\\S+/g)) {
  const range = document.createRange();
  range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
  if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word[0]);
}
found.broken = broken;
"""


class Dom(html.parser.HTMLParser):
    """Figures, table rows and sections of a page after its script has run."""

    def __init__(self, text):
        super().__init__()
        self.figures, self.tables, self.ids, self.tags = {}, {}, [], []
        self.title, self._path, self._row, self._figure, self._caption = "", [], None, None, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self._path.append(tag)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if "data-figure" in attributes:
            self._figure = attributes["data-figure"]
        if tag == "data" and self._figure and self._figure not in self.figures:
            self.figures[self._figure] = float(attributes["value"])
        if tag == "data" and self._row is not None:
            self._row[-1] = float(attributes["value"] or "nan")
        if tag == "caption":
            self._caption = ""
        if tag == "tr" and "tbody" in self._path:
            self._row = []
        if tag in ("td", "th") and self._row is not None:
            self._row.append("")

    def handle_endtag(self, tag):
        while self._path and self._path.pop() != tag:
            pass
        if tag == "caption":
            self.tables[self._caption] = []
            self._last = self._caption
            self._caption = None
        if tag == "tr" and self._row is not None:
            self.tables[self._last].append(self._row)
            self._row = None
        if tag in ("dd", "td"):
            self._figure = None

    def handle_data(self, text):
        if self._path and self._path[-1] == "title" and "svg" not in self._path:
            self.title += text
        if self._caption is not None:
            self._caption += text
        if self._row and isinstance(self._row[-1], str):
            self._row[-1] += text


def shell(*command, folder, code=0):
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run([str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=240)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def chromium(*arguments, page, profile):
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
               "--disable-extensions", "--disable-background-networking", "--enable-logging=stderr",
               f"--user-data-dir={profile}", "--virtual-time-budget=3000", *arguments, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        (cls.folder / "run.toml").write_text(RUN_FILE)
        (cls.folder / "text.txt").write_text("To be, or not to be, that is the question. " * 2000)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def train(self, name, sets, ranks=2):
        command = [MPIRUN, "--oversubscribe", "-np", ranks, PROGRAM, "train", "run.toml", "--set", f"output.dir={name}"]
        for setting in sets:
            command += ["--set", setting]
        shell(*command, folder=self.folder)
        return self.folder / name

    def dom(self, page):
        done = chromium("--dump-dom", page=page, profile=self.folder / "profile")
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        self.assertEqual(console, [], "messages on the console")
        self.text = done.stdout
        return Dom(done.stdout)

    def after(self, page, script, *arguments):
        """What a script in a copy of the page collects in `found`."""
        acted = self.folder / "acted.html"
        collect = "const shown = document.createElement('pre'); shown.id = 'acted'; shown.textContent = JSON.stringify(found); document.body.append(shown);"
        acted.write_text(page.read_text().replace("</html>", f"<script>{{{script}{collect}}}</script></html>"))
        done = chromium("--dump-dom", *arguments, page=acted, profile=self.folder / "profile")
        self.assertEqual([line for line in done.stderr.splitlines() if "CONSOLE" in line], [])
        return json.loads(html.unescape(re.search(r'<pre id="acted">(.*?)</pre>', done.stdout, re.DOTALL)[1]))

    def check_actions(self, folder, page):
        shown = self.after(page, ACTIONS)
        # The rows of the traces: [(begin, end, kind, name)] in ms by rank and channel.
        rows, starts, names = {}, {}, []
        for path in sorted((folder / "trace").glob("rank*.json")):
            events = json.loads(path.read_text())["traceEvents"]
            channels = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
            for event in events:
                if event["ph"] != "X":
                    continue
                begin, step = event["ts"] / 1e3, event["args"]["step"]
                rows.setdefault(f"rank {event['pid']}, {channels[event['tid']]}", []).append((begin, begin + event["dur"] / 1e3, event["cat"]))
                names.append((begin, event["name"], " ".join([event["name"], event["args"].get("Collective name", ""), event["args"].get("awaited", "")])))
                if event["tid"] == 0 and event["cat"] != "wait":
                    starts[step] = min(starts.get(step, begin), begin)
        first, last = starts[11], starts[12]  # the middle step is shown first
        place = lambda x: first + (x - 88) / (shown["width"] - 92) * (last - first)
        begin, end = place(200), place(600)
        self.assertAlmostEqual(shown["measured"], end - begin, delta=1e-5)
        self.assertEqual(shown["afterMove"], shown["measured"])
        self.assertEqual(shown["cleared"], 0)
        for row, events in rows.items():
            inside = [(max(0, min(b, end) - max(a, begin)), kind) for a, b, kind in events]
            covered = sum(time for time, _ in inside)
            if not covered:
                continue
            _, busy, waits, gaps = shown["totals"][row]
            self.assertAlmostEqual(busy + waits, covered, delta=1e-3, msg=row)
            if row.endswith("compute"):
                self.assertAlmostEqual(waits, sum(time for time, kind in inside if kind == "wait"), delta=1e-3)
                # Gaps below a microsecond are not drawn.
                self.assertLessEqual(gaps, end - begin - covered + 1e-3)
                self.assertGreaterEqual(gaps, end - begin - covered - 1e-3 * (len(events) + 2))
        self.assertEqual(shown["follows"], ["1", "2", "0", "all"])
        self.assertNotEqual(shown["tip"][0], shown["tip"][1])
        self.assertEqual(shown["tip"][1:], [shown["tip"][2], shown["tip"][2], None])
        matches = sorted(one for one in names if "tied_sum" in one[2] and "recv" in one[2])
        self.assertRegex(shown["matches"], rf"^{len(matches)} events, ")
        self.assertGreater(shown["dimmed"], 0)
        self.assertEqual(shown["undimmed"], 0)
        self.assertTrue(shown["match"][0].startswith(f"1 of {len(matches)} events"), shown["match"])
        self.assertTrue(shown["match"][1].startswith(matches[0][1]), (shown["match"], matches[:2]))
        self.assertIn(shown["event"][1], shown["event"][0])
        for card in shown["cards"]:
            self.assertIn(card, shown["readout"])
        self.assertGreater(shown["hatched"], 0)
        self.assertGreater(shown["grey"], 0)
        self.assertIn(["transfer waits for another rank", "hatched"], shown["legend"])
        self.assertIn(["gaps of the host", ""], shown["legend"])
        self.assertEqual(shown["dashed"], ["rehearsed bound"])
        for width in (1280, 390):
            self.assertEqual(self.after(page, f"const found = {{}};{BROKEN_WORDS}", f"--window-size={width},900")["broken"], [])

    def pictures(self, name, page):
        if not PICTURES:
            return
        os.makedirs(PICTURES, exist_ok=True)
        for kind, size, more in [("light", "1280,5200", []), ("phone", "390,8600", []),
                                 ("dark", "1280,5200", ["--blink-settings=preferredColorScheme=0"])]:
            path = pathlib.Path(PICTURES).resolve() / f"{name.replace(' ', '-')}-{kind}.png"
            chromium(f"--window-size={size}", f"--screenshot={path}", *more, page=page, profile=self.folder / "profile")
            self.assertGreater(path.stat().st_size, 20_000)

    def check_numbers(self, folder, dom):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        warm = lines[2:]
        mean = lambda key: sum(line.get(key) or 0 for line in warm) / len(warm)
        self.assertEqual(dom.figures["loss"], lines[-1]["loss"])
        self.assertEqual(dom.figures["val_loss"], lines[-1]["val_loss"])
        for key in ("step_ms", "tokens_per_s", "exposed_ms"):
            self.assertAlmostEqual(dom.figures[key], mean(key), delta=1e-9 * abs(mean(key)))
        # The table under the curve has every step, because a column holds one.
        losses = {int(row[0]): row[1] for row in dom.tables["Loss"]}
        for line in lines:
            self.assertAlmostEqual(losses[line["step"]], line["loss"], delta=1e-5 * line["loss"])
        plan = json.loads((folder / "plan.json").read_text())
        memory = {row[0]: row[1] for row in dom.tables["Memory of a rank"]}
        for owner, size in plan["stages"][0]["memory_bytes"].items():
            self.assertEqual(memory.get(owner, 0), size)
        column = 8 - (len(plan["stages"]) == 1)  # a pipeline's table has a column for the stage
        sent = sum(row[column] for row in dom.tables["What crosses which link in a step of one rank"])
        self.assertEqual(sent, sum(channel["sent_bytes"] for stage in plan["stages"] for channel in stage["channels"]
                                   if channel["axis"] != "self"))
        # The table of kernels has the time of all kernels in the traces, by step and rank.
        total, ranks = 0.0, sorted((folder / "trace").glob("rank*.json"))
        for path in ranks:
            total += sum(event["dur"] for event in json.loads(path.read_text())["traceEvents"]
                         if event["ph"] == "X" and event["cat"] == "kernel")
        shown = sum(row[2] for row in dom.tables["Kernels, the longest first"])
        self.assertAlmostEqual(shown / 1e3, total / 3 / len(ranks), delta=1e-3 * total)
        rows = dom.tables["Events in the order of their steps"]
        self.assertEqual([int(row[0]) for row in rows if row[1] == "Checkpoint"], sorted(
            int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*")))

    def test_numbers_of_the_page_are_those_of_the_files(self):
        for name in RUNS if EVERYTHING or PICTURES else ["pipeline"]:
            folder = self.train(name, RUNS[name])
            shell(PROGRAM, "report", folder, folder=self.folder)
            page = folder / "report.html"
            self.assertLess(page.stat().st_size, 2_000_000)
            self.assertNotRegex(page.read_text(), r"(?:src|href)=\"?https?:")
            dom = self.dom(page)
            self.check_numbers(folder, dom)
            self.assertEqual("pipeline" in dom.ids, name == "pipeline")
            for section in ("training", "time", "timeline", "tasks", "kernels", "memory", "mesh", "configuration", "run"):
                self.assertIn(section, dom.ids)
            self.assertEqual(len(dom.ids), len(set(dom.ids)), "ids are unique")
            self.assertNotIn("missing", dom.ids)
            self.assertIn("compute waits for " + WAITS[name], self.text)  # in the legend of the timeline
            self.pictures(name, page)
            if name == "pipeline":
                self.check_actions(folder, page)

    def test_runs_of_different_lengths_are_compared_at_equal_steps(self):
        """A worse loss at equal steps, a better last one; step times that differ by less than their noise, and by more."""
        for name, steps, worse, slower in (("long", 30, 1, 0), ("brief", 20, 1.5, .7), ("slow", 20, 1.5, 40)):
            (self.folder / name).mkdir()
            (self.folder / name / "metrics.jsonl").write_text("".join(json.dumps(
                {"step": step, "loss": worse * 60 / step, "step_ms": 100 + slower + (7 * step * step + len(name)) % 11}) + "\n" for step in range(1, steps + 1)))
        page = self.folder / "lengths.html"
        shell(PROGRAM, "report", "long", "brief", "slow", "--output", page, folder=self.folder)
        dom = self.dom(page)
        figures = {row[0]: row[1:] for row in dom.tables["Figures of the runs"]}
        self.assertEqual(figures["last loss"], [60 / 20, 1.5, 1.5])  # one value, and ratios
        self.assertIn("over their equal steps, 3 to 20", self.text)
        marks = {row[0]: re.findall(r'class="(subtitle|good|bad)"', row[1]) for row in re.findall(r'<th scope="row">([^<]*)</th>(.*?)</tr>', self.text)}
        self.assertEqual(marks["last loss"], ["bad", "bad"])
        self.assertEqual(marks["mean step, ms"], ["subtitle", "bad"])
        self.assertIn(" within noise", self.text)

    def test_hostile_names_and_a_comparison(self):
        first = self.train(HOSTILE_NAME, ["parallel.data=1", "optimizer.learning_rate=1e-4"], ranks=1)
        second = self.train("b", ["parallel.data=1"], ranks=1)
        pathlib.Path(f"{first}.events.jsonl").write_text(
            json.dumps({"event": "exit", "code": 6, "step": 8, "why": HOSTILE_TEXT, "time": HOSTILE_TEXT}) + "\n")
        (first / "run.json").write_text((first / "run.json").read_text().replace("gpt2", HOSTILE_TEXT))
        with open(second / "metrics.jsonl", "a") as file:
            file.write('{"step": 25, "lo')
        shell(PROGRAM, "report", first, second, "--output", self.folder / "both.html", folder=self.folder)
        dom = self.dom(self.folder / "both.html")
        self.assertNotIn("owned", [dom.title, *dom.ids])
        self.assertNotIn("img", dom.tags)
        self.assertIn("missing", dom.ids)
        figures = {row[0]: row for row in dom.tables["Figures of the runs"]}
        self.assertEqual(len(figures["last loss"]), 3)
        keys = {row[0]: row[1:] for row in dom.tables["Keys of the configuration that differ"]}
        self.assertEqual(set(keys), {"optimizer.learning_rate", "output.dir", "checkpoint.dir"})
        self.assertTrue(any(HOSTILE_TEXT in row[2] for row in dom.tables["Events in the order of their steps"]))
        self.pictures("comparison", self.folder / "both.html")

    def test_numbers_of_a_sweep_are_those_of_its_table(self):
        (self.folder / "scaling.toml").write_text(
            'run = "run.toml"\nrepeats = 1\n[set]\n"train.steps" = 12\n[grid]\nranks = [1, 2]\n"zero.stage" = [0, 1]\n')
        shell(SWEEP, "scaling.toml", "--dir", "scaling", "--program", PROGRAM, "--launcher",
              f"{MPIRUN} --oversubscribe --bind-to none", folder=self.folder)
        shell(PROGRAM, "report", "scaling", folder=self.folder)
        dom = self.dom(self.folder / "scaling/report.html")
        self.assertNotIn("missing", dom.ids)
        for section in ("scaling", "stages", "steps", "timelines", "points"):
            self.assertIn(section, dom.ids)
        with open(self.folder / "scaling/sweep.csv", newline="") as file:
            table = list(csv.DictReader(file))
        points = {row[0]: row for row in dom.tables["All points"]}
        self.assertEqual(len(points), 4)
        speed = {row[0]: row[1:] for row in dom.tables["Strong scaling"]}
        for row in table:
            shown = points[f"ranks {row['ranks']}, stage {row['zero.stage']}"]
            self.assertEqual(shown[1], 1)
            for column, key in ((3, "step_ms"), (4, "forecast_ms"), (5, "tokens_per_s")):
                self.assertAlmostEqual(shown[column], float(row[key]), delta=1e-7 * shown[column])
            # A group has lines for measured, ideal and forecast values.
            measured, ideal, forecast = speed[row["ranks"]][3 * int(row["zero.stage"]):][:3]
            self.assertAlmostEqual(measured, float(row["tokens_per_s"]), delta=1e-7 * measured)
            base = next(one for one in table if (one["ranks"], one["zero.stage"]) == ("1", row["zero.stage"]))
            self.assertAlmostEqual(ideal, float(base["tokens_per_s"]) * int(row["ranks"]), delta=1e-7 * ideal)
            self.assertAlmostEqual(forecast, float(row["tokens"]) / float(row["forecast_ms"]) * 1e3, delta=1e-7 * forecast)
        for row in dom.tables["Memory of a rank"]:
            ranks, stage = row[0].split(", ")
            run = next(one for one in table if f"ranks {one['ranks']}" == ranks and f"stage {one['zero.stage']}" == stage)
            self.assertEqual(row[-1], float(run["memory_bytes"]))
            self.assertAlmostEqual(sum(cell for cell in row[1:-1] if cell == cell), row[-1])
        timelines = re.search(r'<section id="timelines".*?</section>', self.text, re.DOTALL)[0]
        for entry in ("forward", "backward", "gradients", "losses and norms"):
            self.assertRegex(timelines, rf'<li><i style="background:var\(--[a-z]+\)"></i>{entry}</li>')
        # Ideal speeds and forecasts are dashed lines, and so are their swatches.
        self.assertRegex(self.text, r'<li><i style="background:[^"]*" class="dashed"></i>ideal</li>')
        self.pictures("sweep", self.folder / "scaling/report.html")
        # A chart in a file has a circle for each measured point.
        pictures = self.folder / "pictures"
        pictures.mkdir()
        shell(SWEEP.parent / "report_svg.py", "scaling/report.html", pictures, folder=self.folder)
        self.assertEqual(sorted(path.name for path in pictures.iterdir()),
                         [f"scaling-{name}.svg" for name in ("efficiency", "memory-of-a-rank", "parts-of-the-median-step",
                                                             "strong-scaling", "timelines")])
        for name, circles in (("efficiency", 4), ("strong-scaling", 4), ("timelines", 0)):
            tree = xml.etree.ElementTree.parse(pictures / f"scaling-{name}.svg")
            self.assertEqual(len(list(tree.iter("{http://www.w3.org/2000/svg}circle"))), circles, name)
        self.assertIn("stroke-dasharray", (pictures / "scaling-strong-scaling.svg").read_text().partition(">ideal<")[0].rpartition("<path")[2])
        self.assertIn(">backward<", (pictures / "scaling-timelines.svg").read_text())
        shell(SWEEP.parent / "report_svg.py", "scaling/report.html", pictures, "--only", "absent", folder=self.folder, code=2)

    def test_charts_against_closed_forms(self):
        """A step of 100 ms of compute and 20 ms of waiting on each rank beyond the first; smaller buckets take longer."""
        folder = self.folder / "closed"
        folder.mkdir()
        points = []
        for ranks in (1, 2, 4):
            for size in (1, 4, 16):
                ms = 100 + 20 * (ranks - 1) + 16 / size
                figures = {"step_ms": ms, "forecast_ms": ms - 4, "tokens": 512 * ranks, "tokens_per_s": 512e3 * ranks / ms,
                           "hidden": 0.75, "exposed_ms": 20 * (ranks - 1), "memory_bytes": 3 << 20, "memory.params": 3 << 20}
                points.append({"ranks": ranks, "settings": {"overlap.bucket_size": f"{size}MiB"}, "runs": 3, "failed": 0, "why": "",
                               "trials": [], "figures": {key: {"mean": float(value), "low": value * 0.9, "high": value * 1.1}
                                                         for key, value in figures.items()}})
        (folder / "sweep.json").write_text(json.dumps({"format": 1, "name": "closed", "run": "run.toml", "repeats": 3,
                                                       "varied": ["ranks", "overlap.bucket_size"], "points": points}))
        shell(PROGRAM, "report", folder, folder=self.folder)
        dom = self.dom(folder / "report.html")
        self.assertNotIn("missing", dom.ids)
        weak = {int(row[0]): row[1:] for row in dom.tables["Weak scaling"]}
        share = {int(row[0]): row[1:] for row in dom.tables["Efficiency"]}
        for ranks in (1, 2, 4):
            for group, size in enumerate((1, 4, 16)):
                ms, first = 100 + 20 * (ranks - 1) + 16 / size, 100 + 16 / size
                for shown, true in zip(weak[ranks][3 * group:3 * group + 3],
                                       (512e3 * ranks / ms, 512e3 * ranks / first, 512e3 * ranks / (ms - 4))):
                    self.assertAlmostEqual(shown, true, delta=1e-9 * true)
                self.assertAlmostEqual(share[ranks][group], 100 * first / ms, places=9)
        buckets = {row[0]: row[1:] for row in dom.tables["Step time by bucket size"]}
        self.assertEqual(list(buckets), ["1MiB", "4MiB", "16MiB"])
        for size in (1, 4, 16):
            for group, ranks in enumerate((1, 2, 4)):
                ms = 100 + 20 * (ranks - 1) + 16 / size
                self.assertEqual(buckets[f"{size}MiB"][2 * group:2 * group + 2], [ms, ms - 4])

    def test_a_sweep_that_is_hostile_or_unfinished(self):
        folder = self.folder / "hostile"
        folder.mkdir()
        figures = {"step_ms": {"mean": 10.0, "low": 9.0, "high": 11.0}, "exposed_ms": {"mean": 2.5, "low": None, "high": None},
                   "hidden": {"mean": 0.5, "low": 0.4, "high": 0.6}, HOSTILE_TEXT: {"mean": 1}, "loss": "none"}
        points = [{"ranks": 2, "settings": {"comm.emulate.bandwidth": rate, "overlap.grad_reduce": HOSTILE_TEXT}, "runs": 1,
                   "failed": failed, "why": HOSTILE_TEXT, "trials": ["../../etc"], "figures": figures}
                  for rate, failed in (("1Gbit/s", 1), ("500Mbit/s", 0), (HOSTILE_TEXT, 0))]
        record = {"format": 1, "name": HOSTILE_NAME, "run": HOSTILE_TEXT, "repeats": 2,
                  "varied": ["comm.emulate.bandwidth", "overlap.grad_reduce"], "points": points}
        (folder / "sweep.json").write_text(json.dumps(record))
        shell(PROGRAM, "report", folder, folder=self.folder)
        dom = self.dom(folder / "report.html")
        self.assertNotIn("owned", [dom.title, *dom.ids])
        self.assertNotIn("img", dom.tags)
        self.assertIn("2 of 6 runs have not run yet", self.text)
        shares = {row[0]: row[1] for row in dom.tables["Hidden communication"]}
        self.assertEqual(shares, {"1Gbit/s": 50.0, "500Mbit/s": 50.0})
        self.assertEqual(len(dom.tables["Failed runs"]), 1)
        for text in ("{", "[]", '{"format": 2, "points": []}'):
            (folder / "sweep.json").write_text(text)
            shell(PROGRAM, "report", folder, folder=self.folder, code=3)
        shell(PROGRAM, "report", folder, folder, folder=self.folder, code=2)


if __name__ == "__main__":
    if not CHROMIUM:
        print("SKIPPED pages in a browser: Chromium is not installed. scripts/setup.sh --tests installs it.")
        sys.exit(77)
    if not MPIRUN:
        print("SKIPPED pages in a browser: mpirun is not installed.")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
