#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`meson install` gives programs that work from any folder, also after a move, and a manual page and completions that
name every command and option of --help.

Arguments: the build folder and its program.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD, PROGRAM = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]


def names_of_help(text):
    """{"Options": ["-h", "--help", ..], "Subcommands": [..]}"""
    groups, group = {}, None
    for line in text.splitlines():
        if found := re.fullmatch(r"(\w+):", line):
            group = groups.setdefault(found[1], [])
        elif group is not None and re.match(r"  \S", line):
            group += line.split()[0].split(",")
    return groups


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.temporary.name)
        options = json.loads(subprocess.run(["meson", "introspect", "--buildoptions", BUILD], check=True, capture_output=True).stdout)
        prefix = next(option["value"] for option in options if option["name"] == "prefix")
        done = subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", folder / "staged"],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        cls.root, cls.elsewhere = folder / "moved", folder / "elsewhere"
        (folder / "staged" / prefix.lstrip("/")).rename(cls.root)
        cls.elsewhere.mkdir()
        cls.help = {}
        cls.read_help(())

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def read_help(cls, path):
        text = subprocess.run([PROGRAM, *path, "--help"], check=True, capture_output=True, text=True).stdout
        cls.help[path] = names_of_help(text)
        for name in cls.help[path].get("Subcommands", []):
            cls.read_help((*path, name))

    def call(self, name, *arguments, code=0):
        done = subprocess.run([self.root / "bin" / name, *map(str, arguments)], cwd=self.elsewhere, capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_the_moved_program_finds_its_files_from_another_folder(self):
        version = subprocess.run([PROGRAM, "--version"], check=True, capture_output=True, text=True).stdout
        self.assertEqual(self.call("slipstream", "--version"), version)
        by_name = self.call("slipstream", "plan", "llama_8b", "--ranks", 16, "--machine", "h100x8", "--as", "fsdp_eager", "--json")
        by_path = self.call("slipstream", "plan", SOURCE / "configs/runs/llama_8b.toml", "--ranks", 16, "--machine",
                            SOURCE / "configs/machines/h100x8.toml", "--as", SOURCE / "configs/software/fsdp_eager.toml", "--json")
        without_place = lambda text: text.replace(f"{SOURCE}/configs/software/fsdp_eager.toml", "fsdp_eager")
        self.assertEqual(by_name, without_place(by_path))
        for kind in ("machines", "runs", "software"):
            self.assertEqual(sorted(path.name for path in (self.root / "share/slipstream/configs" / kind).iterdir()),
                             sorted(path.name for path in (SOURCE / "configs" / kind).iterdir()))

    def test_a_file_goes_before_a_shipped_name_and_an_unknown_name_is_refused(self):
        text = self.call("slipstream", "plan", "llama_8b", "--ranks", 8, "--machine", "h100x9", code=2)
        self.assertIn("did you mean 'h100x8'?", text)
        self.assertIn("rtx4090x4", text)
        self.assertIn("did you mean 'quickstart'?", self.call("slipstream", "check", "quickstrat", code=2))
        (self.elsewhere / "h100x8").write_text("name = 5\n")
        try:
            self.assertIn("h100x8:1:", self.call("slipstream", "plan", "llama_8b", "--ranks", 8, "--machine", "h100x8", code=2))
        finally:
            (self.elsewhere / "h100x8").unlink()

    def test_the_scripts_find_the_program_and_the_files(self):
        text = self.call("slipstream-sweep", "bucket_size", "--collect", "--launcher", "true", code=75)
        self.assertRegex(text, r"runs/sweeps/bucket_size/sweep.csv: 0 of \d+ runs. Draw it: \S*/moved/bin/slipstream report")
        launch = self.elsewhere / "launch"
        launch.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
        launch.chmod(0o755)
        self.call("slipstream-run", "-np", 1, "--launcher", launch, "true", "train", "quickstart")
        self.assertIn("quickstrat", self.call("slipstream-run", "-np", 1, "--launcher", launch, "true", "train", "quickstrat", code=2))

    def test_the_manual_page_has_every_command_and_option(self):
        page = (self.root / "share/man/man1/slipstream.1").read_text()
        sections = re.split(r"^\.S[HS] ", page.replace("\\-", "-"), flags=re.MULTILINE)
        for path, names in self.help.items():
            title = " ".join(["slipstream", *path]) if path else "OPTIONS"
            section = next((each for each in sections if re.match(rf"{title}( [a-z]|\n)", each)), "")
            for name in names.get("Options", []):
                self.assertRegex(section, rf"\\fB(-\w,)?{name}(,--\w+)?\\fR", title)
        if shutil.which("man"):
            done = subprocess.run(["man", "--warnings=w", "-l", self.root / "share/man/man1/slipstream.1"], capture_output=True,
                                  text=True, env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"})
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_bash_completes_every_command_and_option(self):
        script = self.root / "share/bash-completion/completions/slipstream"
        cases = []
        for path, names in self.help.items():
            cases.append((*path, "-"))
            cases.append((*path, ""))
        cases += [("plan", "llama_8b", "--machine", "h"), ("train", "--set", "train.st"), ("generate", "--device", ""),
                  ("bench", "comm", "--verbs", "all_gather,ex"), ("plan", "--ranks", ""), ("train", "quick")]
        lines = [f"source {script}"]
        for words in cases:
            quoted = " ".join(f"'{word}'" for word in ("slipstream", *words))
            lines.append(f'COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; COMPREPLY=(); _slipstream 2>/dev/null; echo "${{COMPREPLY[*]}}"')
        done = subprocess.run(["bash", "-c", "\n".join(lines)], cwd=self.elsewhere, capture_output=True, text=True)
        found = dict(zip(cases, map(str.split, done.stdout.splitlines())))
        self.assertEqual(len(found), len(cases), done.stderr)
        for path, names in self.help.items():
            self.assertEqual(sorted(found[*path, "-"]), sorted(names["Options"]))
            if "Subcommands" in names:
                self.assertEqual(found[*path, ""], names["Subcommands"])
        machines = sorted(path.stem for path in (SOURCE / "configs/machines").glob("h*.toml"))
        self.assertEqual(found["plan", "llama_8b", "--machine", "h"], machines)
        self.assertEqual(found["train", "--set", "train.st"], ["train.steps="])
        self.assertEqual(found["generate", "--device", ""], ["auto", "cpu", "cuda"])
        self.assertEqual(found["bench", "comm", "--verbs", "all_gather,ex"], ["all_gather,exchange"])
        self.assertEqual(found["plan", "--ranks", ""], [])
        self.assertEqual(found["train", "quick"], ["quickstart"])

    def test_zsh_and_fish_read_their_files(self):
        if shutil.which("zsh"):
            subprocess.run(["zsh", "-n", self.root / "share/zsh/site-functions/_slipstream"], check=True)
        if shutil.which("fish"):
            script = self.root / "share/fish/vendor_completions.d/slipstream.fish"
            ask = lambda line: subprocess.run(["fish", "-N", "-c", f"source {script}; complete -C '{line}'"], check=True, cwd=self.elsewhere,
                                              capture_output=True, text=True, env={**os.environ, "HOME": str(self.elsewhere)}).stdout
            commands = [line.split("\t")[0] for line in ask("slipstream ").splitlines()]
            self.assertEqual(sorted(commands), sorted(self.help[()]["Subcommands"]))
            options = [line.split("\t")[0] for line in ask("slipstream bench step --").splitlines()]
            self.assertEqual(sorted(options), sorted(name for name in self.help["bench", "step"]["Options"] if name.startswith("--")))
            self.assertIn("h100x8", ask("slipstream plan --machine h10"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
