#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares ids and speed of `slipstream tokenize` with the library tokenizers on one core.

usage: scripts/bench_tokenizers.py build/slipstream TEXT... [--vocab 32000]
Needs: pip install tokenizers numpy. It trains tokenizers of several kinds on the texts, divides the texts into
documents of about 8 KiB and encodes these with both programs.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import make_golden_tokenizers as golden  # noqa: E402
import numpy  # noqa: E402
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers  # noqa: E402

SEPARATOR = "\x1e\x1e"


def documents_of(paths):
    """Without characters that are younger than the normalizers of the library: it leaves them in the order they had."""
    alike = {}

    def keeps(c):
        if c not in alike:
            alike[c] = golden.normalized_alike(ord(c))
        return alike[c]

    documents = []
    for path in paths:
        text = pathlib.Path(path).read_text(encoding="utf-8", errors="ignore").replace(SEPARATOR, "")
        text = "".join(filter(keeps, text))
        documents += [text[i : i + 8192] for i in range(0, len(text), 8192)]
    return documents


def kinds(documents, vocab):
    sample = documents[::3]
    golden.training_texts = lambda: sample
    yield "gpt2", golden.byte_level(vocab_size=vocab)
    yield "llama3", golden.byte_level([golden.split(golden.LLAMA3)], vocab_size=vocab, ignore_merges=True)
    yield "qwen2", golden.byte_level([golden.split(golden.QWEN2)], normalizers.NFC(), vocab_size=vocab)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(
        sample,
        trainers.BpeTrainer(
            vocab_size=vocab,
            show_progress=False,
            special_tokens=special,
            limit_alphabet=3000,
            initial_alphabet=[golden.MARK],
        ),
    )
    model = json.loads(tokenizer.to_str())["model"]
    pieces = model["vocab"], [tuple(merge) for merge in model["merges"]]
    yield "llama2", golden.llama2(*pieces)
    yield "mistral", golden.mistral(*pieces, "first", False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--vocab", type=int, default=32000)
    options = parser.parse_args()
    documents = documents_of(options.texts)
    size = sum(len(document.encode()) for document in documents)
    print(f"{len(documents)} documents, {size / 1e6:.1f} MB, one thread each")
    print("kind,tokens,slipstream MB/s,tokenizers MB/s,ratio,different documents")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder, "text.txt")
        text.write_bytes(SEPARATOR.join(documents).encode())
        for name, tokenizer in kinds(documents, options.vocab):
            path = pathlib.Path(folder, f"{name}.json")
            tokenizer.save(str(path))
            tokenizer = Tokenizer.from_file(str(path))
            begin = time.perf_counter()
            theirs = [tokenizer.encode(document, add_special_tokens=False).ids for document in documents]
            their_s = time.perf_counter() - begin
            out = pathlib.Path(folder, name)
            printed = subprocess.run(
                [
                    options.program,
                    "tokenize",
                    text,
                    out,
                    "--tokenizer",
                    path,
                    "--threads",
                    "1",
                    "--separator",
                    SEPARATOR,
                    "--no-end-of-text",
                ],
                check=True,
                capture_output=True,
                text=True,
            )
            our_s = float(printed.stdout.splitlines()[-1].split(" s,")[0])
            about = json.loads(out.with_suffix(".json").read_text())
            ids = numpy.fromfile(out.with_suffix(".bin"), dtype=about["dtype"])
            begins = [*numpy.fromfile(f"{out}.documents", dtype="<u8"), len(ids)]
            ours = [ids[begins[i] : begins[i + 1]] for i in range(len(begins) - 1)]
            kept = [t for t in theirs if t]
            different = sum(list(a) != b for a, b in zip(ours, kept)) + abs(len(ours) - len(kept))
            failed |= different > 0
            print(
                f"{name},{len(ids)},{size / 1e6 / our_s:.1f},{size / 1e6 / their_s:.1f},{their_s / our_s:.2f},"
                f"{different}",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
