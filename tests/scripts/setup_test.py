#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/setup.sh and scripts/test.sh run apt-get only where a needed package is missing."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"
OPTIONAL = ["bible-kjv", "ccache", "chromium", "clang-format-14", "lld"]
STUBS = {
    "dpkg": 'case " $ABSENT " in *" $2 "*) exit 1 ;; esac; echo "Status: install ok installed"',
    "apt-get": 'echo "$@" >>"$CALLS"; case " $REFUSED " in *" ${@: -1} "*) exit 100 ;; esac',
    "sudo": 'exec "$@"',
    "ninja": "", "meson": "exit 1", "python3": 'echo "1 passed, 0 failed, 0 skipped"', "nvidia-smi": "exit 1",
}


class Setup(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.addCleanup(self.folder.cleanup)
        for folder in ("bin", "scripts", "build-tests"):
            (self.root / folder).mkdir()
        (self.root / "build-tests" / "build.ninja").touch()
        for name, body in STUBS.items():
            stub = self.root / "bin" / name
            stub.write_text(f"#!/bin/bash\n{body}\n")
            stub.chmod(0o755)
        for name in ("setup.sh", "test.sh"):
            shutil.copy(SCRIPTS / name, self.root / "scripts" / name)

    def run_script(self, *command, absent=(), refused=()):
        """Exit code, output and the calls of apt-get."""
        calls = self.root / "calls"
        calls.write_text("")
        environment = os.environ | {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", "CALLS": str(calls),
                                    "ABSENT": " ".join(absent), "REFUSED": " ".join(refused)}
        done = subprocess.run([self.root / "scripts" / command[0], *command[1:]], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout, calls.read_text().splitlines()

    def installed(self, calls):
        return [call.split()[-1] for call in calls if " install " in call]

    def test_nothing_missing(self):
        self.assertEqual(self.run_script("setup.sh", "--tests"), (0, "setup: everything is installed\n", []))

    def test_test_sh_with_optional_packages_absent(self):
        for absent in ([], OPTIONAL):
            code, output, calls = self.run_script("test.sh", absent=absent)
            self.assertEqual((code, calls), (0, []), output)
            self.assertTrue(output.endswith("1 passed, 0 failed, 0 skipped\n"), output)

    def test_test_sh_with_a_needed_package_absent(self):
        code, output, calls = self.run_script("test.sh", absent=["catch2"])
        self.assertEqual((code, self.installed(calls)), (0, ["catch2"]), output)

    def test_optional_packages_come_with_needed_ones_or_when_asked_for(self):
        for arguments, absent in ((["--tests"], ["catch2"]), (["--tests", "--optional"], [])):
            code, output, calls = self.run_script("setup.sh", *arguments, absent=absent + OPTIONAL, refused=OPTIONAL)
            self.assertEqual((code, self.installed(calls)), (0, absent + OPTIONAL), output)

    def test_a_needed_package_that_cannot_be_installed(self):
        code, output, _ = self.run_script("setup.sh", absent=["meson"], refused=["meson"])
        self.assertEqual(code, 1, output)
        self.assertIn("could not install meson", output)


if __name__ == "__main__":
    unittest.main()
