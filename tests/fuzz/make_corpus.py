#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the attacks and small valid inputs of tests/fuzz/corpus. Files written by the program (valid_written_*) and inputs
found by a fuzzer (found_*) stay as they are."""

import base64
import ctypes
import gzip
import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh3(data):
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_128bits.restype = Hash128
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    value = library.XXH3_128bits(data, len(data))
    return f"{value.high:016x}{value.low:016x}"


def dump(value):
    return json.dumps(value, ensure_ascii=False)


def weights(header, data=b"", size=None):
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else dump(header)).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def raw_tensor(dtype='"F32"', shape="[2]", offsets="[0,8]"):
    return f'{{"a":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}'


def pieces(places, shape=(2,), version="1.0"):
    text = places if isinstance(places, str) else dump(places)
    return weights({"__metadata__": {"format": "pt", "DCP_SHARDING_INFO": text, "DCP_VERSION": version},
                    "a": tensor(shape=shape)}, bytes(8))


def offsets(*at):
    return {"a": {"saved_offsets": list(at)}}


def safetensors():
    eight = bytes(8)
    two = {"a": tensor(), "b": tensor(offsets=(8, 16))}
    yield "valid_two_types", weights({"__metadata__": {"format": "pt"}, "a": tensor(offsets=(0, 8)),
                                      "b": tensor("BF16", (2, 2), (8, 16))}, struct.pack("<ff", 1, -2) + bytes(range(8)))
    yield "valid_no_tensors", weights("{}")
    yield "valid_scalar", weights({"a": tensor(shape=(), offsets=(0, 4))}, bytes(4))
    yield "valid_no_elements", weights({"a": tensor(shape=(2, 0), offsets=(0, 0))})
    yield "valid_spaces_around_header", weights("  " + raw_tensor() + "   ", eight)
    yield "valid_all_types", weights({"a": tensor("F4", (4,), (0, 2)), "b": tensor("F6_E2M3", (4,), (2, 5)),
                                      "c": tensor("BOOL", (1,), (5, 6)), "d": tensor("I64", (1,), (6, 14))}, bytes(14))
    # A name is not a path: the reader opens no file by it.
    yield "valid_name_like_a_path", weights({"../../etc/passwd": tensor()}, eight)
    yield "empty", b""
    yield "header_length_2_63", weights(raw_tensor(), eight, 2**63)
    yield "header_length_2_64_minus_1", weights(raw_tensor(), eight, 2**64 - 1)
    yield "header_length_beyond_file", weights(raw_tensor(), eight, 1000)
    yield "header_length_100000001", weights(raw_tensor(), eight, 100_000_001)
    yield "header_length_0", weights("", eight)
    yield "header_not_utf8", weights(raw_tensor().encode().replace(b'"a"', b'"\xff\xfe"'), eight)
    yield "header_not_json", weights('{"a":', eight)
    yield "header_array", weights("[]")
    yield "header_of_nul_bytes", weights(bytes(64))
    yield "header_nested_deeply", weights('{"a":' + "[" * 2000 + "]" * 2000 + "}")
    yield "tensor_is_a_number", weights('{"a":1}')
    yield "metadata_not_a_string", weights('{"__metadata__":{"format":1}}')
    yield "metadata_not_an_object", weights('{"__metadata__":[]}')
    yield "duplicate_key_in_tensor", weights('{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', eight)
    yield "duplicate_key_with_line_feed", weights('{"a\\nb":1,"a\\nb":2}')
    yield "duplicate_key_of_5000_bytes", weights('{"%s":1,"%s":2}' % ("x" * 5000, "x" * 5000))
    yield "key_unknown", weights('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1}}', eight)
    yield "key_missing", weights('{"a":{"dtype":"F32","data_offsets":[0,8]}}', eight)
    yield "dtype_unknown", weights({"a": tensor("F128")}, eight)
    yield "dtype_number", weights(raw_tensor(dtype="1"), eight)
    yield "offsets_overlap", weights({"a": tensor(), "b": tensor(offsets=(4, 12))}, bytes(12))
    yield "offsets_equal", weights({f"t{i}": tensor() for i in range(50)}, eight)
    yield "offsets_hole", weights({"a": tensor(), "b": tensor(offsets=(12, 20))}, bytes(20))
    yield "offsets_begin_after_end", weights(raw_tensor(offsets="[0,-8]"), eight)
    yield "offsets_reversed", weights(raw_tensor(shape="[0]", offsets="[8,0]"), eight)
    yield "offsets_beyond_file", weights({"a": tensor(shape=(4,), offsets=(0, 16))}, eight)
    yield "offsets_2_63", weights(raw_tensor(offsets="[0,9223372036854775808]"), eight)
    yield "offsets_2_63_minus_1", weights(raw_tensor(offsets="[0,9223372036854775807]"), eight)
    yield "offsets_2_64_wrap", weights(raw_tensor(offsets="[0,18446744073709551624]"), eight)
    yield "offsets_real", weights(raw_tensor(offsets="[0,8.0]"), eight)
    yield "offsets_exponent", weights(raw_tensor(offsets="[0,1e3]"), eight)
    yield "offsets_three", weights(raw_tensor(offsets="[0,8,8]"), eight)
    yield "bytes_after_last_tensor", weights(two, bytes(17))
    yield "file_truncated", weights(two, bytes(15))
    yield "shape_of_other_size", weights({"a": tensor(shape=(3,))}, eight)
    yield "shape_product_2_64", weights(raw_tensor('"U8"', "[4294967296,4294967296,8]", "[0,0]"))
    yield "shape_product_wraps_to_size", weights(raw_tensor('"U8"', "[2305843009213693953,8]", "[0,8]"), eight)
    yield "shape_zero_times_2_63_minus_1", weights(raw_tensor('"I64"', "[9223372036854775807,0]", "[0,0]"))
    yield "shape_negative", weights(raw_tensor(shape="[-2]"), eight)
    yield "shape_nan", weights(raw_tensor(shape="[NaN]"), eight)
    yield "shape_65_dimensions", weights({"a": tensor("U8", (1,) * 65, (0, 1))}, b"0")
    yield "shape_part_of_a_byte", weights({"a": tensor("F4", (3,), (0, 2))}, bytes(2))
    yield "name_empty", weights({"": tensor()}, eight)
    yield "name_of_1025_bytes", weights({"n" * 1025: tensor()}, eight)
    yield "name_with_nul", weights(raw_tensor().replace('"a"', '"a\\u0000b"'), eight)
    yield "valid_pieces", pieces({**offsets(0, 0), "absent": {"saved_offsets": []}}, (1, 2))
    yield "valid_shape_without_elements_of_2_64", weights({"__metadata__": {"DCP_SHARDING_INFO": dump(offsets(0, 0, 0))},
                                                           "a": tensor(shape=(0, 2**62, 4), offsets=(0, 0))})
    yield "pieces_incomplete", pieces(offsets(2))
    yield "pieces_offset_2_63_minus_1", pieces(offsets(2**63 - 1))
    yield "pieces_offset_2_63", pieces(offsets(2**63))
    yield "pieces_offset_negative", pieces(offsets(-1))
    yield "pieces_offset_real", pieces(offsets(0.0))
    yield "pieces_offsets_two", pieces(offsets(0, 0))
    yield "pieces_shape_product_2_64", pieces(offsets(2**32, 2**32), (1, 2))
    yield "pieces_tensor_missing", pieces({})
    yield "pieces_not_json", pieces('{"a":')
    yield "pieces_array", pieces([])
    yield "pieces_number", pieces({"a": 1})
    yield "pieces_nested_deeply", pieces('{"a":' + "[" * 2000)
    yield "pieces_version_2", pieces(offsets(0), version="2.0")
    yield "name_lone_surrogate", weights(raw_tensor().replace('"a"', '"\\ud800"'), eight)


BODY = {"version": 1, "step": 2, "program": "slipstream 0.1.0", "written": "2026-11-24T00:00:00Z", "ranks": 1,
        "layout": "data 1", "memory_layout": "0" * 32, "global_batch_size": 2, "vocab": 256, "data_hash": "0" * 32,
        "config": {"model.layers": "1"},
        "tensors": [{"name": "wte.weight", "shape": [256, 8], "arrays": ["weight", "m", "v"]}],
        "files": [{"name": "rank-0000.safetensors", "bytes": 100, "xxh3": "0" * 32}]}


def manifest():
    def text(body):
        body = (body if isinstance(body, str) else dump(body)).encode()
        return b'{"xxh3":"' + xxh3(body).encode() + b'","manifest":' + body + b"}\n"

    def changed(**members):
        return text({**BODY, **members})

    def tensor_of(shape):
        return changed(tensors=[{"name": "a", "shape": shape, "arrays": ["weight"]}])

    def file_of(name, size=1):
        return changed(files=[{"name": name, "bytes": size, "xxh3": "0" * 32}])

    good = text(BODY)
    yield "valid_small", good
    yield "empty", b""
    yield "truncated_by_half", good[:len(good) // 2]
    yield "hash_of_other_content", good.replace(b'"step": 2', b'"step": 3')
    yield "hash_not_hexadecimal", good[:9] + b"\x00\x01\x02\xff" + good[13:]
    yield "content_number", text("1")
    yield "content_not_utf8", b'{"xxh3":"' + xxh3(b'{"\xff":1}').encode() + b'","manifest":{"\xff":1}}\n'
    yield "content_nested_deeply", text('{"version":' + '{"a":' * 500 + "1" + "}" * 501)
    yield "version_99", changed(version=99)
    yield "step_negative", changed(step=-1)
    yield "step_real", changed(step=1.5)
    yield "step_nan", text(dump(BODY).replace('"step": 2', '"step": NaN'))
    yield "key_missing", text({key: value for key, value in BODY.items() if key != "files"})
    yield "duplicate_key", text(dump(BODY)[:-1] + ', "step": 9}')
    yield "config_value_number", changed(config={"model.layers": 1})
    yield "config_array", changed(config=[])
    yield "tensor_twice", changed(tensors=BODY["tensors"] * 2)
    yield "tensor_is_null", changed(tensors=[None])
    yield "shape_product_2_64", tensor_of([2**32, 2**32])
    yield "shape_negative", tensor_of([-1])
    yield "file_above_the_folder", file_of("../manifest.json")
    yield "file_absolute", file_of("/etc/passwd")
    yield "file_in_a_subfolder", file_of("a/b")
    yield "file_with_nul", file_of("a\0b")
    yield "file_name_empty", file_of("")
    yield "file_name_of_256_bytes", file_of("n" * 256)
    yield "file_twice", changed(files=BODY["files"] * 2)
    yield "file_bytes_negative", file_of("a", -1)


def flight():
    work = {"name": "reduce.3", "op": "all_reduce", "bytes": 3 << 20, "bucket": 3, "step": 7, "seconds_ago": 10.5}
    channel = {"name": "reduce", "group": "reduce 0", "ended": 3, "begun": True, "held_by": "", "held_group": "",
               "next": work, "latest": [{**work, "name": "reduce.2"}]}
    base = {"run": "a run", "rank": 0, "size": 2, "host": "n0", "process": 100, "written_ms": 1, "phase": "step",
            "step": 7, "limit_seconds": 10.0, "limit_key": "comm.timeout_seconds", "alarm": "late",
            "silent_seconds": 0.0, "connection_ended": False, "channels": [channel], "last_heard": []}

    def changed(**members):
        return dump({**base, **members}).encode()

    def channel_of(**members):
        return changed(channels=[{**channel, **members}])

    def work_of(**members):
        return channel_of(next={**work, **members})

    def nested(levels):
        return {**base, "last_heard": [nested(levels - 1)] if levels else []}

    yield "valid_waiting", dump(base).encode()
    yield "valid_last_heard", changed(last_heard=[{**base, "rank": 1, "connection_ended": True}])
    yield "valid_not_begun", channel_of(begun=False, next=None, held_by="forward.2", held_group="x")
    yield "valid_one_rank", changed(size=1)
    yield "valid_most_ranks", changed(size=1 << 20)
    yield "valid_nested_5", dump(nested(5)).encode()
    yield "empty", b""
    yield "truncated", dump(base).encode()[:200]
    yield "array", b"[]"
    yield "not_utf8", dump(base).encode().replace(b'"n0"', b'"\xc3\x28"')
    yield "nul_byte", dump(base).encode() + b"\0"
    yield "nested_deeply", dump(nested(40)).encode()
    yield "duplicate_key", dump(base).encode()[:-1] + b', "rank": 1}'
    yield "key_missing", dump({key: value for key, value in base.items() if key != "host"}).encode()
    yield "key_with_control_characters", b'{"a\\u0007\\nb": 1}'
    yield "keys_of_5000_bytes", dump({"k" * 5000: 1}).encode()
    yield "rank_beyond_size", changed(rank=2)
    yield "rank_2_32", changed(rank=2**32)
    yield "size_0", changed(size=0)
    yield "size_2_63", changed(size=2**63)
    yield "size_real", changed(size=2.0)
    yield "phase_unknown", changed(phase="sleep")
    yield "phase_with_control_characters", changed(phase="\u001b[31m")
    yield "limit_nan", dump(base).encode().replace(b'"limit_seconds": 10.0', b'"limit_seconds": NaN')
    yield "begun_without_a_work", channel_of(next=None)
    yield "ended_negative", channel_of(ended=-1)
    yield "ended_2_63_minus_1", channel_of(ended=2**63 - 1)
    yield "bytes_negative", work_of(bytes=-(2**63))
    yield "bucket_2_31", work_of(bucket=2**31)
    yield "bucket_minus_2", work_of(bucket=-2)
    yield "work_is_a_text", channel_of(next="reduce.3")
    yield "last_heard_of_other_size", changed(last_heard=[{**base, "size": 3}])
    yield "channels_object", changed(channels={})


def toml():
    def run(text):
        return ("[data]\ntrain = \"text\"\n" + text).encode()

    yield "valid_smallest", run("")
    yield "valid_byte_order_mark", b"\xef\xbb\xbf" + run("")
    yield "valid_crlf", run("[train]\nsteps = 7\n").replace(b"\n", b"\r\n")
    yield "valid_units", run("[overlap]\nbucket_size = \"512KiB\"\n[comm.emulate]\nbandwidth = \"1Gbit/s\"\nlatency = \"50us\"\n")
    yield "empty", b""
    yield "not_toml", b"[data\ntrain = 1"
    yield "not_utf8", run("") + b'x = "\xff"\n'
    yield "nul_byte", run("") + b"\0"
    yield "escape_unknown", run('[output]\ndir = "\\q"\n')
    yield "escape_surrogate", run('[output]\ndir = "\\ud800"\n')
    yield "text_without_end", run('[output]\ndir = "a\n')
    yield "control_character_in_a_key", run('"a\\u0007\\nb" = 1\n')
    yield "control_character_in_a_text", run('[optimizer]\nname = "\\u001b[31m"\n')
    yield "character_beyond_ascii_in_a_key", run("ϋJ = 1\n")
    yield "key_unknown", run("[train]\nstpes = 10\n")
    yield "key_of_5000_bytes", run("k" * 5000 + " = 1\n")
    yield "text_of_5000_bytes", run('[optimizer]\nname = "' + "x" * 5000 + '"\n')
    yield "table_unknown", run("[trian]\nsteps = 10\n")
    yield "table_is_a_value", b"train = 1\n"
    yield "value_is_a_table", run("[train.steps]\na = 1\n")
    yield "duplicate_key", run("[train]\nsteps = 1\nsteps = 2\n")
    yield "duplicate_table", run("[train]\nsteps = 1\n[train]\nlog_interval = 2\n")
    yield "array_of_tables", run("[[train]]\nsteps = 1\n")
    yield "steps_text", run('[train]\nsteps = "10"\n')
    yield "steps_real", run("[train]\nsteps = 1.5\n")
    yield "steps_date", run("[train]\nsteps = 2026-11-24\n")
    yield "steps_0", run("[train]\nsteps = 0\n")
    yield "steps_2_63", run("[train]\nsteps = 9223372036854775808\n")
    yield "learning_rate_nan", run("[optimizer]\nlearning_rate = nan\n")
    yield "batch_times_context_overflows", run("[train]\nmicro_batch_size = 9223372036854775807\n")
    yield "size_1e400", run('[overlap]\nbucket_size = "1e400B"\n')
    yield "size_negative", run('[overlap]\nbucket_size = "-1KiB"\n')
    yield "size_nan", run('[overlap]\nbucket_size = "nanB"\n')
    yield "size_without_unit", run('[overlap]\nbucket_size = "512"\n')
    yield "arrays_nested_deeply", run("x = " + "[" * 1000 + "]" * 1000 + "\n")
    yield "tables_nested_deeply", run("x = " + "{a=" * 1000 + "1" + "}" * 1000 + "\n")
    yield "dotted_key_of_5000_parts", run("a." * 5000 + "a = 1\n")
    yield "dotted_header_of_5000_parts", run("[" + "a." * 5000 + "a]\nb = 1\n")
    yield "dotted_keys_in_nested_tables", run("x = " + ("{" + "a." * 15 + "a=") * 200 + "1" + "}" * 200 + "\n")


def shards():
    def shard(info, ids):
        return (info if isinstance(info, str) else dump(info)).encode() + b"\0" + ids

    narrow = struct.pack("<8H", *range(8))
    base = {"dtype": "uint16", "vocab_size": 256, "count": 8, "hash": xxh3(narrow), "tokenizer": "bytes"}
    wide = struct.pack("<4I", 0, 1, 70000, 99999)
    named = {"dtype": "uint32", "vocab_size": 100000, "count": 4, "hash": xxh3(wide), "tokenizer": "other"}
    chars = {**base, "vocab_size": 8, "tokenizer": "chars", "vocabulary": list("abcdefg") + ["é"]}

    def changed(**members):
        return shard({**base, **members}, narrow)

    two = struct.pack("<2Q", 0, 3)  # the beginnings of two documents, as the last ids of the file
    documents = narrow + two
    of_documents = {**base, "vocab_size": 256, "count": 16, "hash": xxh3(documents), "documents": 2}
    late = narrow + struct.pack("<2Q", 3, 16)

    yield "valid_bytes", shard(base, narrow)
    yield "valid_documents", shard(of_documents, documents)
    yield "documents_more_than_file", shard({**of_documents, "documents": 3}, documents)
    yield "documents_2_63_minus_1", shard({**of_documents, "documents": 2**63 - 1}, documents)
    yield "documents_descend", shard({**of_documents, "hash": xxh3(narrow + two[8:] + two[:8])},
                                     narrow + two[8:] + two[:8])
    yield "documents_beyond_tokens", shard({**of_documents, "hash": xxh3(late)}, late)
    yield "valid_chars", shard(chars, narrow)
    yield "valid_named_uint32", shard(named, wide)
    yield "empty", b""
    yield "sidecar_empty", b"\0" + narrow
    yield "sidecar_array", shard("[]", narrow)
    yield "sidecar_truncated", shard(dump(base)[:30], narrow)
    yield "sidecar_not_utf8", dump(base).encode().replace(b"bytes", b"\xff") + b"\0" + narrow
    yield "sidecar_nested_deeply", shard('{"dtype":' + "[" * 3000, narrow)
    yield "duplicate_key", shard(dump(base)[:-1] + ', "count": 8}', narrow)
    yield "key_unknown", changed(extra=1)
    yield "key_missing", shard({key: value for key, value in base.items() if key != "hash"}, narrow)
    yield "no_ids", shard(base, b"")
    yield "count_0", changed(count=0)
    yield "count_2_63_minus_1", changed(count=2**63 - 1)
    yield "count_2_64", changed(count=2**64)
    yield "count_times_width_wraps", changed(count=2**62 + 8)
    yield "count_negative", changed(count=-8)
    yield "count_nan", shard(dump(base).replace('"count": 8', '"count": NaN'), narrow)
    yield "odd_file_length", shard(base, narrow + b"\0")
    yield "file_truncated", shard(base, narrow[:-2])
    yield "file_of_other_bytes", shard(base, narrow[::-1].replace(b"\x07", b"\x06"))
    yield "dtype_unknown", changed(dtype="float64")
    yield "dtype_of_other_width", changed(dtype="uint32")
    yield "hash_upper_case", changed(hash="A" * 32)
    yield "hash_of_other_bytes", changed(hash="0" * 32)
    yield "id_65535", shard({**base, "hash": xxh3(narrow[:-2] + b"\xff\xff")}, narrow[:-2] + b"\xff\xff")
    yield "id_2_32_minus_1", shard({**named, "hash": xxh3(wide[:-4] + b"\xff" * 4)}, wide[:-4] + b"\xff" * 4)
    yield "vocab_size_0", changed(vocab_size=0)
    yield "vocab_size_2_31", changed(vocab_size=2**31)
    yield "vocab_size_of_other_tokenizer", changed(vocab_size=8)
    yield "tokenizer_empty", changed(tokenizer="")
    yield "tokenizer_with_control_characters", shard({**named, "tokenizer": "a\n\u001b", "vocabulary": ["a"]}, wide)
    yield "tokenizer_chars_without_vocabulary", changed(tokenizer="chars", vocab_size=8)
    yield "vocabulary_of_bytes", changed(vocabulary=["a"])
    yield "vocabulary_unsorted", shard({**chars, "vocabulary": list("bacdefgh")}, narrow)
    yield "vocabulary_of_two_characters", shard({**chars, "vocabulary": ["ab"] + list("cdefghi")}, narrow)
    yield "vocabulary_of_numbers", shard({**chars, "vocabulary": [1, 2]}, narrow)
    yield "vocabulary_shorter_than_vocab_size", shard({**chars, "vocabulary": ["a"]}, narrow)


def characters_of_bytes():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def tokenizer():
    pattern = r"\p{L}+|\s+(?!\S)|\s+|[^\s\p{L}]+"
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    special = {"id": 258, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
               "special": True}
    vocab = {character: byte for byte, character in enumerate(characters_of_bytes())}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {**vocab, "aa": 256, "aaaa": 257}, "merges": [["a", "a"], ["aa", "aa"]]}
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [special], "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "post_processor": None,
            "decoder": level, "model": model}
    pieces = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "\u2581": 4, "\u2581a": 5, "aa": 6, "x": 7}
    bytes_ = {f"<0x{byte:02X}>": 8 + byte for byte in range(256)}
    characters = {**model, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": {**pieces, **bytes_},
                  "merges": ["\u2581 a", "a a"]}
    mark = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    decoders = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    sentence = {**base, "normalizer": mark, "pre_tokenizer": None, "decoder": decoders, "model": characters,
                "added_tokens": [{**special, "id": 1}]}
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}

    def changed(**members):
        return dump({**base, **members}).encode()

    def model_of(**members):
        return changed(model={**model, **members})

    yield "valid_bytes", dump(base).encode()
    yield "valid_characters", dump(sentence).encode()
    yield "valid_metaspace", dump({**sentence, "normalizer": None, "pre_tokenizer": space}).encode()
    yield "empty", b""
    yield "array", b"[]"
    yield "truncated", dump(base).encode()[:-9]
    yield "nested_deeply", b'{"model":' + b"[" * 3000
    yield "not_utf8", dump(base).encode().replace(b"NFC", b"\xff")
    yield "lone_surrogate", dump(base).replace('"<s>"', '"\\ud800"').encode()
    yield "model_missing", changed(model=None)
    yield "model_unigram", model_of(type="Unigram")
    yield "key_unknown", changed(extra=1)
    yield "duplicate_token", dump(base).replace('"aa": 256', '"aa": 256, "aa": 256').encode()
    yield "duplicate_id", model_of(vocab={**vocab, "aa": 256, "aaaa": 256})
    yield "id_beyond_holes", model_of(vocab={**model["vocab"], "z": 16_000_000})
    yield "id_2_31", model_of(vocab={**model["vocab"], "zz": 2**31})
    yield "id_2_64", model_of(vocab={**model["vocab"], "zz": 2**64})
    yield "id_negative", model_of(vocab={**model["vocab"], "zz": -1})
    yield "id_fraction", model_of(vocab={**model["vocab"], "zz": 1.5})
    yield "vocab_array", model_of(vocab=["a"])
    yield "merge_cycle", model_of(vocab={**model["vocab"], "": 300}, merges=[["", "a"]])
    yield "merge_of_unknown_token", model_of(merges=[["a", "q0"]])
    yield "merge_to_unknown_token", model_of(merges=[["a", "b"]])
    yield "merge_of_three", model_of(merges=[["a", "a", "a"]])
    yield "merge_text_without_space", model_of(merges=["aa"])
    yield "merges_missing", model_of(merges=None)
    yield "added_token_without_content", changed(added_tokens=[{**special, "content": ""}])
    yield "added_token_of_other_id", changed(added_tokens=[{**special, "id": 5}])
    yield "added_token_twice", changed(added_tokens=[special, {**special, "id": 259}])
    yield "pattern_of_2_16_groups", changed(pre_tokenizer={**split, "pattern": {"Regex": "(" * 9000 + "a" + ")" * 9000}})
    yield "pattern_nested_deeply", changed(pre_tokenizer={**split, "pattern": {"Regex": "(" * 900 + "a" + ")" * 900}})
    yield "pattern_recursive", changed(pre_tokenizer={**split, "pattern": {"Regex": "a(?R)?"}})
    yield "pattern_of_nothing", changed(pre_tokenizer={**split, "pattern": {"Regex": ""}})
    yield "pattern_with_callout", changed(pre_tokenizer={**split, "pattern": {"Regex": "a(?C1)"}})
    yield "normalizer_precompiled", changed(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})


def ranks():
    def line(token, rank):
        return base64.b64encode(token) + b" " + str(rank).encode() + b"\n"

    about = {"pattern": r"\p{L}+|\s+(?!\S)|\s+|[^\s\p{L}]+", "special_tokens": {"<s>": 258}}
    good = b"".join(line(bytes([byte]), byte) for byte in range(256)) + line(b"aa", 256) + line(b"aaaa", 257)

    def of(lines, beside=about):
        return dump(beside).encode() + b"\0" + lines

    yield "valid_ranks", of(good)
    yield "empty", b""
    yield "pattern_missing", of(good, {"special_tokens": {}})
    yield "pattern_anchored", of(good, {"pattern": "^a"})
    yield "pattern_possessive_interval", of(good, {"pattern": "a{1,3}+"})
    yield "special_id_twice", of(good, {**about, "special_tokens": {"<s>": 7}})
    yield "special_id_beyond_holes", of(good, {**about, "special_tokens": {"<s>": 9_000_000}})
    yield "base64_invalid", of(good + b"YQ= 300\n")
    yield "base64_of_nothing", of(good + b" 300\n")
    yield "rank_missing", of(good + b"YWI=\n")
    yield "rank_2_64", of(good + b"YWI= 18446744073709551616\n")
    yield "rank_negative", of(good + b"YWI= -1\n")
    yield "rank_twice", of(good + line(b"bb", 256))
    yield "token_twice", of(good + line(b"aa", 300))
    yield "token_of_2000_bytes", of(good + line(b"a" * 2000, 300))
    yield "byte_missing", of(good[good.index(b"\n") + 1:])


def llm_c():
    def file(magic, version, count, ids, header=256):
        return struct.pack("<3i", magic, version, count) + bytes(4 * header - 12) + ids

    narrow = struct.pack("<6H", 50256, 1, 2, 50256, 3, 4)
    yield "valid_gpt2", file(20240520, 1, 6, narrow)
    yield "valid_llama3", file(20240801, 7, 3, struct.pack("<3I", 128000, 7, 128255))
    yield "empty", b""
    yield "header_truncated", file(20240520, 1, 6, b"", 100)
    yield "magic_unknown", file(20240521, 1, 6, narrow)
    yield "version_unknown", file(20240520, 2, 6, narrow)
    yield "count_0", file(20240520, 1, 0, b"")
    yield "count_negative", file(20240520, 1, -6, narrow)
    yield "count_2_31_minus_1", file(20240520, 1, 2**31 - 1, narrow)
    yield "count_of_half", file(20240520, 1, 3, narrow)
    yield "file_truncated", file(20240520, 1, 6, narrow[:-1])
    yield "id_50257", file(20240520, 1, 6, narrow[:-2] + struct.pack("<H", 50257))
    yield "id_2_32_minus_1", file(20240801, 7, 1, struct.pack("<I", 2**32 - 1))


def megatron():
    def file(lengths=(2, 1, 3), offsets=(0, 4, 6), documents=(0, 2, 3), ids=struct.pack("<6H", 1, 2, 3, 4, 5, 999),
             magic=b"MMIDIDX\0\0", version=1, dtype=8, counts=None, modes=b""):
        many = counts or (len(lengths), len(documents))
        index = (magic + struct.pack("<QBQQ", version, dtype, *many) + struct.pack(f"<{len(lengths)}i", *lengths) +
                 struct.pack(f"<{len(offsets)}q", *offsets) + struct.pack(f"<{len(documents)}q", *documents) + modes)
        return struct.pack("<H", len(index)) + index + ids

    yield "valid_uint16", file()
    yield "valid_int64", file(offsets=(0, 16, 24), dtype=5, ids=struct.pack("<6q", 1, 2, 3, 4, 5, 999))
    yield "valid_with_modes", file(modes=bytes(3))
    yield "valid_empty_documents", file((2, 0, 4), (0, 4, 4), (0, 1, 1, 2, 3, 3))
    yield "empty", b""
    yield "index_truncated", file()[:22]
    yield "ids_truncated", file()[:-2]
    yield "ids_of_odd_bytes", file() + b"a"
    yield "magic_of_legacy_format", file(magic=b"TNTIDX\0\0\0")
    yield "version_2", file(version=2)
    yield "type_double", file(dtype=6)
    yield "type_0", file(dtype=0)
    yield "sequences_0", file((), (), (0, 0), b"")
    yield "sequences_2_62", file(counts=(2**62, 3))
    yield "sequences_2_64_minus_1", file(counts=(2**64 - 1, 3))
    yield "documents_2_61", file(counts=(3, 2**61))
    yield "documents_1", file(documents=(0,))
    yield "length_negative", file((2, -1, 5))
    yield "length_2_31_minus_1", file((2, 2**31 - 1, 3))
    yield "lengths_too_short", file((2, 1, 2))
    yield "offset_negative", file(offsets=(0, -4, 6))
    yield "offset_beyond_file", file(offsets=(0, 4, 2**62))
    yield "offsets_overlap", file(offsets=(0, 2, 6))
    yield "document_begins_late", file(documents=(1, 2, 3))
    yield "documents_descend", file(documents=(0, 2, 1))
    yield "document_negative", file(documents=(0, -1, 3))
    yield "document_beyond_sequences", file(documents=(0, 4, 3))
    yield "documents_end_early", file(documents=(0, 1, 2))
    yield "id_1000", file(ids=struct.pack("<6H", 1, 2, 3, 4, 5, 1000))
    yield "id_negative", file(offsets=(0, 8, 12), dtype=4, ids=struct.pack("<6i", 1, 2, 3, 4, -5, 6))
    yield "id_2_40", file(offsets=(0, 16, 24), dtype=5, ids=struct.pack("<6q", 1, 2, 3, 2**40, 5, 6))


def json_lines():
    yield "valid_lines", b'{"text": "a b"}\n\n{"id": 3, "text": ""}\r\n{"text": "\\u00e9\\n"}'
    yield "empty", b""
    yield "no_text_at_all", b'{"text": ""}\n'
    yield "line_not_json", b'{"text": "a"}\ntext\ntext\n'
    yield "line_array", b'["text"]\n'
    yield "line_truncated", b'{"text": "a"}\n{"text": "a\n{"text": "a'
    yield "text_missing", b'{"txt": "a"}\n'
    yield "text_number", b'{"text": 7}\n'
    yield "text_twice", b'{"text": "a", "text": "b"}\n'
    yield "text_not_utf8", b'{"text": "\xff"}\n'
    yield "valid_lone_surrogate", b'{"text": "\\ud800"}\n'
    yield "nested_deeply", b'{"a":' + b"[" * 3000 + b"\n"
    yield "nul_bytes", bytes(40)
    packed = gzip.compress(b'{"text": "a b"}\n' * 20, mtime=0)
    yield "valid_gzip", packed
    yield "gzip_cut", packed[:-6]
    yield "gzip_other_sum", packed[:-8] + bytes(4) + packed[-4:]
    yield "gzip_other_method", packed[:10] + b"\x07" + packed[11:]
    frame = b"\x28\xb5\x2f\xfd\x00\x38"
    yield "valid_zstd", frame + (15 << 3 | 1).to_bytes(3, "little") + b'{"text": "a b"}'
    yield "zstd_cut", frame + (15 << 3 | 1).to_bytes(3, "little") + b'{"text": "a'
    yield "zstd_reserved_block", frame + (15 << 3 | 7).to_bytes(3, "little") + b'{"text": "a b"}'
    yield "zip", b"PK\x03\x04" + bytes(30)


for write in (safetensors, manifest, flight, toml, shards, tokenizer, ranks, llm_c, megatron, json_lines):
    folder = CORPUS / write.__name__
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if not old.name.startswith(("found_", "valid_written_")):
            old.unlink()
    for name, content in write():
        (folder / name).write_bytes(content)
