#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inputs of users: what Python's readers find in a file is what the program reads, or it names the cause.

Arguments: the program, tests/golden, and the folder of inputs beside the project, whose tests skip without it.
"""
import bz2
import gzip
import io
import json
import lzma
import math
import pathlib
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

PROGRAM, GOLDEN, FIELD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
NFC_TOKENIZER = GOLDEN / "tokenizers" / "qwen2.tokenizer.json"
RUN_FILE = """
[model]
layers = 1
heads = 1
width = 16
context = 16
[data]
train = "{train}"
[train]
steps = {steps}
micro_batch_size = 2
log_interval = 1
[optimizer]
warmup_steps = 0
decay_steps = 8
[checkpoint]
interval = 2
[device]
kind = "cpu"
threads = 1
[output]
dir = "{output}"
"""


def text_of(document):
    """The UTF-8 of a document, with U+FFFD in the place of half a surrogate pair, as tiktoken does."""
    return document.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def lines_of(documents, key="text"):
    return "".join(json.dumps({"id": i, key: document}) + "\n" for i, document in enumerate(documents)).encode()


DOCUMENTS = [f"document {i}: {'rain ' * (i % 7)}\u00e9\n" for i in range(150)]
CONTENT = b"".join(text_of(document) for document in DOCUMENTS)


class Inputs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def call(self, *arguments, stdin=b""):
        command = [str(PROGRAM), *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, input=stdin, capture_output=True, timeout=120, check=False)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def put(self, name, data):
        (self.folder / name).write_bytes(data)
        return name

    def ids(self, name="out"):
        about = json.loads((self.folder / f"{name}.json").read_text())
        data = (self.folder / f"{name}.bin").read_bytes()
        return [id for (id,) in struct.iter_unpack({"uint16": "<H", "uint32": "<I"}[about["dtype"]], data)]

    def tokenized(self, *arguments, stdin=b""):
        code, out, err = self.call("tokenize", *arguments, "out", "--no-end-of-text", stdin=stdin)
        self.assertEqual(code, 0, err)
        return bytes(self.ids()), out

    def refused(self, code, words, *arguments, stdin=b""):
        found, out, err = self.call(*arguments, stdin=stdin)
        self.assertEqual(found, code, out + err)
        for word in words:
            self.assertIn(word, err)

    def losses(self, train, output, *flags, steps=2):
        self.put("run.toml", RUN_FILE.format(train=train, output=output, steps=steps).encode())
        code, _, err = self.call("train", "run.toml", *flags)
        self.assertEqual(code, 0, err)
        lines = (self.folder / output / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]

    def test_packed_and_named_in_any_way(self):
        lines = lines_of(DOCUMENTS)
        named = io.BytesIO()
        with gzip.GzipFile("a name.jsonl", "wb", 9, named, 1) as file:
            file.write(lines)
        rows = {
            "a.json": lines,
            "b.txt": lines,
            "c.jsonl.gz": gzip.compress(lines),
            "d.txt": named.getvalue(),
            "e.gz": gzip.compress(lines[:1000]) + gzip.compress(lines[1000:], 1),
            "f.jsonl": b"\xef\xbb\xbf" + lines,
            "g.jsonl": lines.replace(b"\n", b"\r\n\r\n"),
        }
        for name, data in rows.items():
            with self.subTest(name):
                content, out = self.tokenized(self.put(name, data))
                self.assertEqual(content, CONTENT)
                self.assertIn("150 documents", out)
                self.assertNotIn("note:", out)
                content, _ = self.tokenized("-", stdin=data)
                self.assertEqual(content, CONTENT)

    def test_training_reads_what_tokenize_reads(self):
        lines = lines_of(DOCUMENTS)
        expected = self.losses(self.put("t.jsonl", lines), "plain")
        for name, data in {"t.json": lines, "t.gz": gzip.compress(lines), "t.data": lines}.items():
            self.assertEqual(self.losses(self.put(name, data), "other"), expected)
        other_key = self.put("k.jsonl", lines_of(DOCUMENTS, "content"))
        self.assertEqual(self.losses(other_key, "key", "--set", "data.text_key=content"), expected)
        self.tokenized("t.gz")
        self.assertEqual(self.losses("out.bin", "shards"), expected)

    def test_containers_and_binaries_are_refused_by_name(self):
        archive, tar = io.BytesIO(), io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("a.txt", "text")
        with tarfile.open(fileobj=tar, mode="w:gz") as file:
            file.addfile(tarfile.TarInfo("a.txt"))
        rows = {
            "a.xz": (lzma.compress(CONTENT), ["an xz file", "xz -dk"]),
            "b.bz2": (bz2.compress(CONTENT), ["a bzip2 file", "bzip2 -dk"]),
            "c.zip": (archive.getvalue(), ["a zip archive", "unzip"]),
            "d.tgz": (tar.getvalue(), ["a tar archive", "tar -xf"]),
            "e.txt": (b"PAR1" + bytes(100) + b"PAR1", ["a Parquet file", "read_parquet"]),
            "f.npy": (b"\x93NUMPY\x01\0" + bytes(100), ["a NumPy array", "numpy.load"]),
            "g.txt": ("h\u00e9llo".encode("utf-16"), ["UTF-16", "iconv"]),
            "h.txt": ("hello".encode("utf-16-le"), ["byte 1 is 0x00", "--format text"]),
            "i.txt": ("h\u00e9llo".encode("latin-1"), ["byte 1 is 0xe9", "not UTF-8"]),
            "j": (PROGRAM.read_bytes()[:100000], ["a NUL"]),
            "k.gz": (gzip.compress(CONTENT)[:-9], ["It was cut"]),
            "l.json": (json.dumps([{"text": "a"}]).encode(), ["a JSON array", "jq -c '.[]'"]),
            "m.json": (json.dumps({"text": "a", "more": [1, 2]}, indent=1).encode(), ["lines are no documents"]),
            "n.jsonl": (lines_of(DOCUMENTS, "content"), ["text", "content", "--text-key"]),
        }
        for name, (data, words) in rows.items():
            with self.subTest(name):
                self.put(name, data)
                self.refused(3, words, "tokenize", name, "out", "--no-end-of-text")
                self.put("run.toml", RUN_FILE.format(train=name, output="run", steps=2).encode())
                self.refused(3, words, "train", "run.toml")
        content, _ = self.tokenized("i.txt", "--format", "text")
        self.assertEqual(content, "h\u00e9llo".encode("latin-1"))
        content, _ = self.tokenized("l.json", "--format", "text")
        self.assertEqual(content, json.dumps([{"text": "a"}]).encode())
        content, out = self.tokenized("n.jsonl", "--text-key", "content")
        self.assertEqual(content, CONTENT)

    def test_surrogates_as_tiktoken_reads_them(self):
        numbers = random.Random(35)
        letters = ["a", "\u00e9", "\ud83d", "\ude00", "\U0001f600", "\\", "\"", "u", "\n", "\ufffd"]
        documents = ["".join(numbers.choices(letters, k=numbers.randrange(12))) for _ in range(300)]
        content, out = self.tokenized(self.put("t.jsonl", lines_of(documents)))
        self.assertEqual(content, b"".join(map(text_of, documents)))
        replaced = sum(text_of(document).count(b"\xef\xbf\xbd") - document.count("\ufffd") for document in documents)
        self.assertIn(f"note: {replaced} surrogates", out)

    def test_one_bad_document_in_a_corpus(self):
        odd = b'{"text": "odd", "n": NaN, "big": 123456789012345678901234567890}\n'
        for bad in [b"{not JSON}\n", b'{"text": null}\n', b'{"txt": "a"}\n', b'"text"\n', b"\xff\n"]:
            lines = lines_of(DOCUMENTS[:75]) + odd + bad + lines_of(DOCUMENTS[75:])
            content, out = self.tokenized(self.put("t.jsonl", lines))
            self.assertEqual(content, b"".join(map(text_of, DOCUMENTS[:75] + ["odd"] + DOCUMENTS[75:])))
            self.assertIn(f"note: 1 of 152 lines", out)
            self.assertIn(f"at byte {len(lines_of(DOCUMENTS[:75]) + odd)} is no document", out)
            self.assertIn("151 documents", out)
        code, _, err = self.call("tokenize", self.put("t.jsonl", lines + bad), "out", "--no-end-of-text")
        self.assertEqual(code, 3, err)

    def test_several_files_patterns_and_standard_input(self):
        for i in range(3):
            self.put(f"part{i}.txt", f"text {i}".encode())
        for paths in [["part0.txt", "part1.txt", "part2.txt"], ["part?.txt"]]:
            content, out = self.tokenized(*paths)
            self.assertEqual(content, b"text 0text 1text 2")
            self.assertIn("3 documents", out)
            self.assertEqual((self.folder / "out.documents").read_bytes(), struct.pack("<3Q", 0, 6, 12))
        content, _ = self.tokenized("part1.txt", "-", "part0.txt", stdin=gzip.compress(b"between"))
        self.assertEqual(content, b"text 1betweentext 0")
        self.refused(2, ["part2.txt", "is a file"], "tokenize", "part0.txt", "part1.txt", "part2.txt")
        self.refused(2, ["named twice"], "tokenize", "-", "-", "out", stdin=b"text")
        self.refused(2, ["--separator", "JSON lines"], "tokenize", self.put("a", lines_of(DOCUMENTS)), "out",
                     "--separator", "x")
        self.refused(3, ["standard input", "is empty"], "tokenize", "-", "out")

    def test_ids_of_another_width(self):
        wide = [random.Random(1).randrange(256) for _ in range(2000)]
        self.put("n.bin", struct.pack("<2000I", *wide))
        flags = ["--set", "model.vocab_size=256", "--set"]
        self.put("run.toml", RUN_FILE.format(train="n.bin", output="run", steps=2).encode())
        self.refused(3, ["2000 ids of 4 bytes", "nanogpt-uint32"], "train", "run.toml", *flags, "data.format=nanogpt")
        expected = self.losses("n.bin", "wide", *flags, "data.format=nanogpt-uint32")
        self.put("n.bin", struct.pack("<2000H", *wide))
        self.assertEqual(self.losses("n.bin", "narrow", *flags, "data.format=nanogpt"), expected)
        self.refused(3, ["ids of 2 bytes", "70000"], "train", "run.toml", "--set", "data.format=nanogpt", "--set",
                     "model.vocab_size=70000")

    def test_files_without_a_tokenizer_do_not_mix(self):
        self.put("n.bin", struct.pack("<100H", *(i % 50 for i in range(100))))
        self.put("m.bin", struct.pack("<100H", *(i % 50 for i in range(100))))
        index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iqqq", 100, 0, 0, 1)
        self.put("m.idx", index)
        self.put("run.toml", RUN_FILE.format(train="", output="run", steps=2).encode())
        sources = ["--set", 'data.sources=["m.bin", "n.bin"]', "--set", 'data.formats=["megatron", "nanogpt"]', "--set"]
        self.refused(3, ["m.bin", "megatron", "n.bin", "nanogpt", "record their tokenizer", "data.tokenizer"], "train",
                     "run.toml", *sources, "model.vocab_size=50")

    def test_eval_and_generate(self):
        # With decomposed letters the normalizer of the tokenizer shortens the text.
        text = "e\u0301a\u0300 " * 400
        self.put("t.txt", text.encode())
        self.losses("t.txt", "run", "--set", f"data.tokenizer={NFC_TOKENIZER}")
        code, out, err = self.call("eval", "run", "--text", "t.txt", "--json")
        self.assertEqual(code, 0, err)
        found = json.loads(out)
        bits = found["nats_per_token"] * found["tokens"] / math.log(2) / len(text.encode())
        self.assertAlmostEqual(found["bits_per_byte"], bits, delta=1e-9 * bits)
        self.put("t.gz", gzip.compress(text.encode()))
        self.assertEqual(self.call("eval", "run", "--text", "t.gz", "--json")[:2], (0, out))
        self.assertEqual(self.call("eval", "run", "--text", "-", "--json", stdin=text.encode())[:2], (0, out))
        self.refused(3, ["is JSON", "jq -j .text", "--format text"], "eval", "run", "--text",
                     self.put("t.json", lines_of(DOCUMENTS)))
        self.assertEqual(self.call("eval", "run", "--text", "t.json", "--format", "text")[0], 0)
        self.refused(3, ["an xz file"], "eval", "run", "--text", self.put("t.xz", lzma.compress(b"text")))

        prompts = "first\nsecond \u00e9\n".encode()
        asked = ["generate", "run", "--tokens", "4", "--prompts"]
        expected = self.call(*asked, self.put("p.txt", prompts))
        self.assertEqual(expected[0], 0, expected[2])
        self.assertEqual(self.call(*asked, self.put("p.gz", gzip.compress(prompts)))[:2], expected[:2])
        self.refused(3, ["a NUL"], *asked, self.put("p", b"a\0b"))

    def test_resume_notices_data_that_changed_in_place(self):
        text = self.put("t.txt", CONTENT)
        again = ["--resume", "--set", "train.steps=6", "--set", "optimizer.decay_steps=8"]
        for name, flag in {"file": [], "flag": ["--set", "data.train=t.txt"]}.items():
            self.put(text, CONTENT)
            self.losses(text if name == "file" else "none.txt", name, *flag, steps=4)
            self.put(text, CONTENT.replace(b"rain", b"snow", 1))
            self.refused(2, ["the data differ"], "train", "run.toml", *flag, *again)
            self.refused(2, ["the data differ"], "train", "run.toml", "--set", "data.train=t.txt", *again)
            self.put("other.txt", CONTENT.replace(b"rain", b"snow", 1))
            code, _, err = self.call("train", "run.toml", "--set", "data.train=other.txt", *again)
            self.assertEqual(code, 0, err)

    def test_field_inputs(self):
        if not FIELD.is_dir():
            self.skipTest(f"{FIELD} is not here")
        lines = (FIELD / "lines.json").read_text().splitlines()
        expected = b"".join(json.loads(line)["text"].encode() for line in lines)
        self.assertEqual(len(expected), 1910)
        for name in ["lines.json", "lines.jsonl.gz"]:
            content, out = self.tokenized(FIELD / name)
            self.assertEqual(content, expected)
            self.assertIn("40 documents", out)
        self.assertEqual(self.losses(FIELD / "lines.json", "a"), self.losses(FIELD / "lines.jsonl.gz", "b"))
        lines = (FIELD / "lone-surrogate.jsonl").read_text().splitlines()
        content, out = self.tokenized(FIELD / "lone-surrogate.jsonl")
        self.assertEqual(content, b"".join(text_of(json.loads(line)["text"]) for line in lines))
        self.assertIn("note: 1 surrogate in", out)
        self.put("run.toml", RUN_FILE.format(train=FIELD / "nano-uint32.bin", output="run", steps=2).encode())
        flags = ["--set", "model.vocab_size=300", "--set"]
        self.refused(3, ["2000 ids of 4 bytes"], "train", "run.toml", *flags, "data.format=nanogpt")
        self.losses(FIELD / "nano-uint32.bin", "wide", *flags, "data.format=nanogpt-uint32")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
