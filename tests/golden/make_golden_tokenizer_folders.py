#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/tokenizer_folders.json: folders as AutoTokenizer of Hugging Face transformers reads them.

Each row has the files beside one small tokenizer.json, the number of ids, the end of a text, and ids of texts. Rows of
transformers 4 and 5 were equal when this was written. Needs: pip install transformers; run it again only for new rows:

    tests/golden/make_golden_tokenizer_folders.py tests/golden
"""
import json
import os
import pathlib
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers as hf  # noqa: E402

CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
END, CALL = "<|endoftext|>", "<|call|>"
TEXT = f"one {CALL} two{END} {END} x <a><b><p><u><x><i>AAzz Tool<|im_end|>\n"


def token(content, **more):
    return dict(content=content, lstrip=False, rstrip=False, single_word=False, normalized=False, special=True) | more


def characters():
    """GPT-2's characters of the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def tokenizer():
    vocab = {END: 0} | {text: i + 1 for i, text in enumerate(sorted(characters().values()))}
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    return dict(
        version="1.0", truncation=None, padding=None, added_tokens=[dict(id=0) | token(END)], normalizer=None,
        pre_tokenizer=level, post_processor=None, decoder=level, model=dict(
            type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
            fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=vocab, merges=[]))


ROWS = {
    "alone": {"tokenizer_config": CLASS},
    "added_tokens_decoder": {"tokenizer_config": CLASS | {
        "eos_token": END, "added_tokens_decoder": {"0": token(END), "257": token(CALL), "258": token("<x>", lstrip=True)}}},
    "flags of added_tokens_decoder": {"tokenizer_config": CLASS | {"added_tokens_decoder": {"0": token(END, lstrip=True)}}},
    "words in added_tokens_decoder": {"tokenizer_config": CLASS | {
        "added_tokens_decoder": {"257": token("Tool", special=False, normalized=True), "258": token("two", single_word=True)}}},
    "special tokens without ids": {"tokenizer_config": CLASS | {
        "eos_token": "<|im_end|>", "bos_token": "<b>", "pad_token": "<p>", "unk_token": token("<u>", lstrip=True, __type="AddedToken"),
        "additional_special_tokens": ["<x>"]}},
    "a special token of the vocabulary": {"tokenizer_config": CLASS | {"eos_token": "A"}},
    "extra tokens": {"tokenizer_config": CLASS | {"extra_special_tokens": {"image": "<i>"}, "eos_token": END}},
    "special_tokens_map.json": {
        "tokenizer_config": CLASS, "special_tokens_map": {"eos_token": token("<|im_end|>"), "pad_token": "<p>"}},
    "special_tokens_map.json before tokenizer_config.json": {
        "tokenizer_config": CLASS | {"eos_token": END}, "special_tokens_map": {"eos_token": "<|im_end|>"}},
    "special_tokens_map.json beside added_tokens_decoder": {
        "tokenizer_config": CLASS | {"eos_token": END, "added_tokens_decoder": {"0": token(END)}},
        "special_tokens_map": {"eos_token": "<|im_end|>"}},
    "added_tokens.json": {
        "tokenizer_config": CLASS, "special_tokens_map": {"eos_token": "<|im_end|>"},
        "added_tokens": {CALL: 257, "<|im_end|>": 258}},
    "added_tokens.json beside added_tokens_decoder": {
        "tokenizer_config": CLASS | {"added_tokens_decoder": {"0": token(END)}}, "added_tokens": {CALL: 257}},
}


def main(folder):
    base, rows = tokenizer(), []
    for name, files in ROWS.items():
        with tempfile.TemporaryDirectory() as path:
            for file, content in ({"tokenizer": base} | files).items():
                pathlib.Path(path, f"{file}.json").write_text(json.dumps(content))
            read = hf.AutoTokenizer.from_pretrained(path)
            rows.append(dict(
                name=name, files={f"{file}.json": content for file, content in files.items()}, size=len(read),
                end=-1 if read.eos_token is None else read.eos_token_id,
                ids=read.encode(TEXT, add_special_tokens=False)))
    made = dict(
        made_with=f"tests/golden/make_golden_tokenizer_folders.py, transformers {hf.__version__}", tokenizer=base, text=TEXT,
        rows=rows)
    path = folder / "tokenizer_folders.json"
    path.write_text(json.dumps(made, separators=(",", ":")) + "\n")
    print(path, len(rows), "rows,", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden"))
