#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every fenced command of README.md and docs/how-to/*.md, each page in a fresh copy of the source.

The program is the one under test, so the build tools and apt-get are stubs that succeed. The quickstart's model and the
numbers of steps are smaller in the copies; the commands are those of the pages. EXCEPTED names the commands that need
more than a machine with a CPU. Commands for GPUs run until this build refuses them, which checks their flags.

Arguments: the source root and the program.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest

ROOT, PROGRAM = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
PROGRAMS = "build/slipstream|slipstream|mpirun|cp|module|python3|export|meson|git|docker"
COMMANDS = re.compile(rf"(\./)?scripts/|#!/bin/bash|({PROGRAMS}) ")
OUTPUTS = ("rehearsed step:", "step 200/300", "overlap:", "slipstream-run: fault", "slipstream: [", "warning: [", "[1/")
NO_CUDA = "no CUDA"
BUSY = "needs all_reduce at sizes whose time grows"  # a measurement that other programs disturb
# The rows are beginnings of commands; every row has to stand in a page.
EXCEPTED = {
    "module load gcc": "the modules of a cluster",
    "python3 -m venv": "a package manager",
    "export PATH=$HOME/build-tools": "paths of a package manager's tools",
    "export PKG_CONFIG_PATH=": "paths of a cluster",
    "export CMAKE_PREFIX_PATH=": "paths of a cluster",
    "#!/bin/bash": "Slurm",
    "git archive HEAD | docker build": "a package manager and docker",
    "docker run --rm --gpus all": "a GPU and docker",
    "scripts/profile_overlap.sh": "a GPU",
    "scripts/bundle.sh --build build-gpu": "a build for GPUs",
    "scripts/gpu_check.sh --bundle": "a GPU",
    "sudo ": "root; tests/scripts/install_test.py installs the program",
    "scripts/make_deb.sh": "a second build of the program",
    "scripts/netlab.sh": "root and network namespaces; tests/scripts/netlab_test.py runs it",
}
SUITE = ("scripts/test.sh", "./scripts/test.sh")  # these would run this test again
TINY = """
[model]
layers = 2
heads = 2
width = 16
context = 16
[data]
train = "my_text.txt"
[train]
steps = {steps}
global_batch_size = 16
micro_batch_size = 1
log_interval = 1
eval_interval = 0
[optimizer]
warmup_steps = 1
[checkpoint]
interval = 2
[device]
threads = 1
[output]
dir = "{output}"
"""
# The rows are parts of commands.
QUICKER = {"--max 64MiB": "--max 1MiB", "train.steps=1000": "train.steps=30", "-np 16": "-np 2", "ppr:8": "ppr:2"}
# The rows make runs shorter: (file, old text, new text).
SHORTER = [
    ("configs/runs/quickstart.toml", r"^(layers|heads) = \d+", r"\1 = 2"),
    ("configs/runs/quickstart.toml", r"^width = \d+", "width = 16"),
    ("configs/runs/quickstart.toml", r"^steps = 300", "steps = 24"),
    ("configs/runs/quickstart.toml", r"^eval_interval = \d+", "eval_interval = 12"),
    ("configs/runs/quickstart.toml", r"^eval_batches = \d+", "eval_batches = 1"),
    ("configs/runs/quickstart.toml", r"^warmup_steps = \d+", "warmup_steps = 2"),
    ("configs/runs/quickstart.toml", r"^bandwidth = .*", 'bandwidth = ""'),
    ("configs/sweeps/strong_scaling.toml", r"^repeats = \d+", "repeats = 1"),
    ("configs/sweeps/strong_scaling.toml", r'^"train.steps" = \d+', '"train.steps" = 3'),
]


def blocks(page):
    """(line, text) of the fenced blocks, without their indentation."""
    found, begin, indent = [], None, 0
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if line.strip().startswith("```"):
            if begin is None:
                begin, indent = number, len(line) - len(line.lstrip())
            else:
                found.append((begin, "\n".join(text[indent:] for text in lines[begin : number - 1]) + "\n"))
                begin = None
    assert begin is None, f"{page}:{begin}: a block has no end"
    return found


def commands_of(text):
    """The commands of a block, without comments. A comment 'or: COMMAND' is one more."""
    result = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        command, _, comment = line.partition(" # ")
        other = re.match(r"\s*or: (\./\S+.*)", comment)
        result += [words.strip() for words in (command, other[1] if other else "") if words.strip()]
    return result


def kind_of(text):
    if COMMANDS.match(text):
        return "commands"
    if text.startswith(OUTPUTS):
        return "output"
    if text.startswith("{"):
        return "json"
    return "keys" if re.match(r"\[[a-z_.]+\]\n", text) else "unknown"


class Page:
    """One page in its own copy of the source."""

    def __init__(self, page, folder):
        self.page, self.folder, self.log, self.count = page, folder, [], 0
        for part in ("scripts", "configs"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        for path, old, new in SHORTER:
            text, count = re.subn(old, new, (folder / path).read_text(), flags=re.M)
            assert count, f"{path} has no line {old}"
            (folder / path).write_text(text)
        (folder / "build").mkdir()
        (folder / "build" / "slipstream").symlink_to(PROGRAM)
        (folder / "build" / "build.ninja").touch()
        (folder / "bin").mkdir()
        for name, body in {
            "dpkg": "echo Status: install ok installed",
            "apt-get": "exit 1",
            "meson": "",
            "ninja": "",
            "nvidia-smi": "exit 1",
            "bible": "exit 1",
        }.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / "bin" / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{folder / 'bin'}:{folder / 'build'}:{os.environ['PATH']}",
            "SLIPSTREAM_DATA": str(folder),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
        }
        self.write("my_text.txt", "".join(f"{i}: in the beginning was the word {i * i}\n" for i in range(4000)))
        self.write("path/to/text.txt", (folder / "my_text.txt").read_text())
        self.write("run.toml", TINY.format(steps=4, output="runs/my"))
        self.write("hosts", "localhost slots=2\n")
        prepare = getattr(self, page.stem.replace("-", "_"), None)
        if prepare:
            prepare()

    def write(self, name, text):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    # The methods make the files that a page needs.

    def trained(self, output, *sets):
        self.write("tiny.toml", TINY.format(steps=2, output=output))
        code, text = self.call(f"build/slipstream train tiny.toml {' '.join(f'--set {each}' for each in sets)}")
        assert code == 0, text

    def tokenizer(self):
        (self.folder / "gpt2").mkdir()
        shutil.copy(ROOT / "tests/golden/tokenizers/gpt2.tokenizer.json", self.folder / "gpt2/tokenizer.json")

    def README(self):  # noqa: N802
        self.write("data/quickstart.txt", "the text of version 0.1\n" * 4000)

    def read_a_timeline(self):
        self.call("build/slipstream train configs/runs/quickstart.toml --set data.train=my_text.txt")

    def sweeps(self):
        self.write("data/quickstart.txt", (self.folder / "my_text.txt").read_text())

    def gpu(self):
        self.trained("runs/gpt2_124m", "model.vocab_size=50257")

    def token_shards(self):
        (self.folder / "nano.bin").write_bytes(bytes(range(128)) * 64)  # ids of 2 bytes
        self.trained("runs/gpt2_124m", "data.train=nano.bin", "data.format=nanogpt", "model.vocab_size=50257")
        self.tokenizer()
        self.write("text.jsonl", '{"text": "one document"}\n{"text": "another"}\n')

    def pretrained(self):
        self.tokenizer()
        self.trained("runs/tiny", "data.tokenizer=gpt2")
        shutil.copytree(self.folder / "runs/tiny/checkpoints/final", self.folder / "gpt2", dirs_exist_ok=True)
        self.write("mine.txt", (self.folder / "my_text.txt").read_text())
        self.write("prompts.txt", "a prompt\nanother\n")

    def experts(self):
        self.write("mine.txt", (self.folder / "my_text.txt").read_text())

    def call(self, command, limit_s=240):
        """(exit code, output)."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.returncode, done.stdout.decode(errors="replace")

    def check(self, line, command):
        began = time.monotonic()
        gpu = re.search(r"=cuda|-Dcuda|--device cuda", command)
        for old, new in QUICKER.items():
            command = command.replace(old, new)
        code, output = self.call(command)
        self.count += 1
        print(f"{time.monotonic() - began:6.1f} s  {self.page.name}:{line}: {command[:90]}", flush=True)
        if gpu and "slipstream" in command:
            right = code != 0 and NO_CUDA in output
        else:
            right = code == 0 or BUSY in output
        if not right:
            self.log.append(f"{self.page.name}:{line}: {command}\nends with {code}:\n{output[-2500:]}")

    def keys(self, line, text):
        """A part of a run file holds keys that the program knows."""
        tomllib.loads(text)
        if run_file := {"pretrained": "mine.toml", "experts": "experts.toml"}.get(self.page.stem):
            return self.write(run_file, text + "[train]\nsteps = 2\nmicro_batch_size = 2\neval_batches = 1\n")
        self.write("part.toml", text)
        code, output = self.call("build/slipstream check part.toml --ranks 2")
        if re.search(r"[Uu]nknown|not a|must be", output) and code == 2:
            self.log.append(f"{self.page.name}:{line}: {text}\nends with {code}:\n{output[-1500:]}")

    def run(self):
        for line, text in blocks(self.page):
            kind = kind_of(text)
            if kind == "unknown":
                self.log.append(f"{self.page.name}:{line}: neither commands, keys nor a known output:\n{text}")
            elif kind == "keys":
                self.keys(line, text)
            elif kind == "json":
                json.loads(text)
            elif kind == "commands":
                for command in [text] if text.startswith("#!") else commands_of(text):
                    if not command.startswith((*EXCEPTED, *SUITE)):
                        self.check(line, command)
        return self


class Commands(unittest.TestCase):
    def test_exceptions_stand_in_a_page(self):
        found = [
            command
            for page in PAGES
            for _, text in blocks(page)
            if kind_of(text) == "commands"
            for command in ([text] if text.startswith("#!") else commands_of(text))
        ]
        for beginning in EXCEPTED:
            self.assertTrue(any(command.startswith(beginning) for command in found), beginning)

    def test_every_command(self):
        with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
            pages = []
            for page in PAGES:
                (pathlib.Path(folder) / page.stem).mkdir()
                pages.append(pool.submit(lambda page=page: Page(page, pathlib.Path(folder) / page.stem).run()))
            done = [page.result() for page in pages]
            self.assertGreater(sum(page.count for page in done), 25)
            # The quickstart leaves a link to its last text, and a file of an older text is kept.
            for page, text in (("README", "my_text.txt"), ("first-run", "path/to/text.txt")):
                link = pathlib.Path(folder) / page / "data" / "quickstart.txt"
                self.assertEqual(link.resolve(), (pathlib.Path(folder) / page / text).resolve())
            self.assertIn("version 0.1", (pathlib.Path(folder) / "README" / "data" / "default.txt").read_text())
            wrong = [entry for page in done for entry in page.log]
            self.assertFalse(wrong, "\n\n".join(wrong))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
