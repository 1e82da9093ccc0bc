#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The evaluation of shell scripts by plan --import: bash itself gives the right words and numbers.

Argument: the source root.
"""

import pathlib
import random
import re
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(sys.argv[1]).resolve() / "scripts" / "import_config"))

from options import Refused  # noqa: E402
from shell import Shell  # noqa: E402
from shell_arithmetic import calculated  # noqa: E402


class Bash(unittest.TestCase):
    """bash itself is the oracle: the words that a program gets."""

    ROWS = {
        "quotes": "X='a b'; run $X \"$X\" 'c'\"d\"\\ e $'f'",
        "defaults": 'E=; run ${A:-1} ${E:-2} ${E-3} ${A:=4} $A ${A:+5} ${B:+6} "${E:+7}" ${C:-$A$A}',
        "arrays": 'A=(1 "2 3" 4); A+=(5); run ${A[@]} "${A[@]}" ${#A[@]} ${A[1]} "${A[*]}"; A[1]=z; run $A ${A[1]}',
        "empty array": 'A=(); run x ${A[@]} "${A[@]}" y',
        "arithmetic": "N=3; M=N; run $((N*2+1)) $(( (M+1)/2 )) $((7%4)) $((2**5)) $((N>2&&M<2)) $((N?8:9)) $((-7/2))",
        "counting": "I=0; ((I++)); ((I+=4)); let I=I*2; run $I",
        "trimming": "P=/a/b.c.d; run ${P##*/} ${P%.*} ${P%%.*} ${P#/} ${P/b/X} ${#P} ${P:1:2} ${P//./_} ${P^^}",
        "if": 'S=m; if [ "$S" = s ]; then X=1; elif [[ $S == m* && -n $S ]]; then X=2; else X=3; fi; run $X',
        "case": 'for S in s medium xl; do case "$S" in s|m) X=1;; med*) X=2 ;; *) X=3 ;; esac; run $X; done',
        "fall through": "case a in a) X=1 ;& b) X=${X}2 ;; c) X=9 ;; esac; run $X",
        "functions": 'f() { local Y=$1; X="$Y-$2"; }; function g { f "$@"; }; g a "b c"; run "$X"',
        "tests": "[ 3 -gt 2 ] && X=1 || X=2; [[ abc =~ ^a.c$ ]] && Y=1; ! [ -z x ] && Z=1; run $X $Y $Z",
        "loops": 'L=; for I in 1 2 3; do [ $I = 2 ] && continue; L="$L $I"; done; run $L; N=3; while [ $N -gt 0 ]; do '
        "N=$((N-1)); [ $N = 1 ] && break; done; run $N",
        "comments": "X=1 # no\nrun a#b $X#c # d\nrun 'x # y'",
        "documents": "cat <<EOF >/dev/null\nrun no\nEOF\nrun yes",
        "lines": 'run a \\\n  b \\\n  c\nX="a\\\nb"; run $X',
        "words in a variable": "O=\" --a 1 --b '2' \"; run $O",
        "indirect": "A=3; N=A; run ${!N}",
        "evaluated": 'C="run a"; eval "$C b"; X="run c d"; $X',
        "subshells": "X=1; (X=2; run $X); { X=3; }; run $X",
        "unset": "X=1; unset X; run ${X:-none}",
        "patterns": 'P="a*"; [[ ab == $P ]] && X=1; [[ ab == "$P" ]] || Y=2; case "a*" in "a*") Z=3;; esac; run $X$Y$Z',
    }

    def test_words(self):
        for name, text in self.ROWS.items():
            with self.subTest(name):
                script = 'run() { printf \'%s\\0\' "$#" "$@"; }\n' + text
                done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={}, check=True)
                words, expected = done.stdout.split("\0")[:-1], []
                while words:
                    count = int(words[0])
                    expected.append(words[1 : count + 1])
                    words = words[count + 1 :]
                found = Shell(re.sub(r"\brun\b", "run-it", text).replace("run-it no", "run no"), name, "^run-it$")
                self.assertEqual([fields[1:] for _, fields in found.commands], expected)

    def test_arithmetic(self):
        seed = time.time_ns() % 10**9
        print("seed", seed)
        chance = random.Random(seed)

        def expression(depth):
            if depth == 0 or chance.random() < 0.2:
                return str(chance.choice([0, 1, 2, 3, 7, 64, 1000]))
            kind = chance.random()
            if kind < 0.15:
                return chance.choice(["-", "!", "~", "+"]) + "(" + expression(depth - 1) + ")"
            if kind < 0.25:
                return f"({expression(depth - 1)}?{expression(depth - 1)}:{expression(depth - 1)})"
            operator = chance.choice("+ - * / % == != < > <= >= && || & | ^ << >>".split())
            right = str(chance.choice([1, 2, 3, 5])) if operator in ("/", "%", "<<", ">>") else expression(depth - 1)
            text = f"{expression(depth - 1)} {operator} {right}"
            return f"({text})" if chance.random() < 0.5 else text

        rows = [expression(4) for _ in range(300)]
        script = "".join(f"echo $(( {row} ))\n" for row in rows)
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        for row, expected in zip(rows, done.stdout.split(), strict=True):
            try:
                self.assertEqual(str(calculated(row, {})), expected, (seed, row))
            except ValueError:
                pass  # beyond 64 bits, bash wraps around

    def test_refusals(self):
        for text, words in {
            "if true; then\n": "x:2: expected 'fi'",
            "X='a": "x:1: a quote ' has no end",
            "for ((i=0;i<3;i++)); do :; done": "'for ((' is not supported",
            "while true; do :; done": "still running",
            "f() { f; }; f": "calls itself",
            "echo a )": "')'",
        }.items():
            with self.subTest(text), self.assertRaises(Refused) as caught:
                Shell(text, "x", "never")
            self.assertIn(words, str(caught.exception))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
