#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inputs of the kinds that users reported, with other keys, containers, branches and programs than in the reports.

Each row has its right value: a loss from the plain model below, ids from the tokenizer's definition, numbers from the
other programs' rules; or the words that a refusal has to have. Arguments: the program.
"""

import gzip
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import tomllib
import unittest
import zlib

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
CONTEXT = 12
TEXT = bytes(65 + (7 * i * i + 3 * i) % 26 for i in range(CONTEXT + 1))


# ---- a plain model ----


def rms(x, weight, eps):
    scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + eps)
    return [v * scale * w for v, w in zip(x, weight, strict=True)]


def times(matrix, x, bias=None):
    """A matrix by rows."""
    y = [sum(m * v for m, v in zip(row, x, strict=True)) for row in matrix]
    return y if bias is None else [a + b for a, b in zip(y, bias, strict=True)]


def rotated(head, position, theta):
    half = len(head) // 2
    out = list(head)
    for i in range(half):
        angle = position * theta ** (-2 * i / len(head))
        out[i] = head[i] * math.cos(angle) - head[i + half] * math.sin(angle)
        out[i + half] = head[i + half] * math.cos(angle) + head[i] * math.sin(angle)
    return out


class Model:
    """Llama, Mistral, Qwen2 and Qwen3 in their smallest form, in float64. `windows`: of each layer, 0 for none."""

    def __init__(
        self,
        family,
        *,
        heads=2,
        kv_heads=1,
        head=4,
        width=8,
        ffn=12,
        theta=10000.0,
        eps=1e-6,
        windows=(0, 0),
        tied=False,
    ):
        self.family, self.heads, self.kv_heads, self.head, self.theta, self.eps = (
            family,
            heads,
            kv_heads,
            head,
            theta,
            eps,
        )
        self.windows, self.tied, self.tensors, self.seed = windows, tied, {}, random.Random(20261128)
        self.add("model.embed_tokens", 256, width)
        for i in range(len(windows)):
            for name, rows, columns in (
                ("q_proj", heads * head, width),
                ("k_proj", kv_heads * head, width),
                ("v_proj", kv_heads * head, width),
                ("o_proj", width, heads * head),
            ):
                self.add(f"model.layers.{i}.self_attn.{name}", rows, columns)
                if family == "qwen2" and name != "o_proj":
                    self.add(f"model.layers.{i}.self_attn.{name}", rows, 0, "bias")
            for name, rows, columns in (("gate_proj", ffn, width), ("up_proj", ffn, width), ("down_proj", width, ffn)):
                self.add(f"model.layers.{i}.mlp.{name}", rows, columns)
            self.add(f"model.layers.{i}.input_layernorm", width, 0)
            self.add(f"model.layers.{i}.post_attention_layernorm", width, 0)
            if family == "qwen3":
                self.add(f"model.layers.{i}.self_attn.q_norm", head, 0)
                self.add(f"model.layers.{i}.self_attn.k_norm", head, 0)
        self.add("model.norm", width, 0)
        if not tied:
            self.add("lm_head", 256, width)
        self.config = {
            "model_type": family,
            "architectures": [f"{family.capitalize()}ForCausalLM"],
            "hidden_size": width,
            "intermediate_size": ffn,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head,
            "num_hidden_layers": len(windows),
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": eps,
            "vocab_size": 256,
            "rope_theta": theta,
            "tie_word_embeddings": tied,
            "hidden_act": "silu",
        }

    def add(self, name, rows, columns, kind="weight"):
        """Float32 numbers, so that the file has them exactly."""
        draw = lambda: struct.unpack("<f", struct.pack("<f", self.seed.uniform(-0.9, 0.9)))[0]  # noqa: E731
        self.tensors[f"{name}.{kind}"] = (
            [[draw() for _ in range(columns)] for _ in range(rows)] if columns else [draw() for _ in range(rows)]
        )

    def write(self, folder, **changes):
        folder.mkdir(parents=True, exist_ok=True)
        config = {key: value for key, value in {**self.config, **changes}.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(config))
        header, data = {}, b""
        for name, rows in self.tensors.items():
            flat = [v for row in rows for v in row] if isinstance(rows[0], list) else rows
            shape = [len(rows), len(rows[0])] if isinstance(rows[0], list) else [len(rows)]
            piece = struct.pack(f"<{len(flat)}f", *flat)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
            data += piece
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))

    def loss(self, text=TEXT):
        t = self.tensors
        xs = [list(t["model.embed_tokens.weight"][id]) for id in text[:-1]]
        for i, window in enumerate(self.windows):
            part = lambda name, kind="weight", i=i: t.get(f"model.layers.{i}.{name}.{kind}")  # noqa: E731
            queries, keys, values = [], [], []
            for position, x in enumerate(xs):
                n = rms(x, part("input_layernorm"), self.eps)
                heads = {}
                for name in "qkv":
                    y = times(part(f"self_attn.{name}_proj"), n, part(f"self_attn.{name}_proj", "bias"))
                    heads[name] = [y[j : j + self.head] for j in range(0, len(y), self.head)]
                    if self.family == "qwen3" and name != "v":
                        heads[name] = [rms(head, part(f"self_attn.{name}_norm"), self.eps) for head in heads[name]]
                queries.append([rotated(head, position, self.theta) for head in heads["q"]])
                keys.append([rotated(head, position, self.theta) for head in heads["k"]])
                values.append(heads["v"])
            for position, x in enumerate(xs):
                mixed = []
                for head in range(self.heads):
                    group = head * self.kv_heads // self.heads
                    first = max(0, position - window + 1) if window else 0
                    scores = [
                        sum(a * b for a, b in zip(queries[position][head], keys[j][group], strict=True))
                        / math.sqrt(self.head)
                        for j in range(first, position + 1)
                    ]
                    shares = [math.exp(score - max(scores)) for score in scores]
                    for column in range(self.head):
                        mixed.append(
                            sum(s * values[first + j][group][column] for j, s in enumerate(shares)) / sum(shares)
                        )
                xs[position] = [a + b for a, b in zip(x, times(part("self_attn.o_proj"), mixed), strict=True)]
            for position, x in enumerate(xs):
                n = rms(x, part("post_attention_layernorm"), self.eps)
                gate, up = times(part("mlp.gate_proj"), n), times(part("mlp.up_proj"), n)
                inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
                xs[position] = [a + b for a, b in zip(x, times(part("mlp.down_proj"), inner), strict=True)]
        table = t["model.embed_tokens.weight" if self.tied else "lm_head.weight"]
        total = 0.0
        for x, target in zip(xs, text[1:], strict=True):
            logits = times(table, rms(x, t["model.norm.weight"], self.eps))
            most = max(logits)
            total += most + math.log(sum(math.exp(v - most) for v in logits)) - logits[target]
        return total / len(xs)


# ---- tokenizers ----


def letters():
    """GPT-2's printable letter of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def tokenizer(*added):
    """One token for every byte, with its value as id. `added`: (id, text)."""
    return {
        "version": "1.0",
        "normalizer": None,
        "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "added_tokens": [
            {
                "id": id,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for id, text in added
        ],
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {letter: byte for byte, letter in letters().items()},
            "merges": [],
        },
    }


def added(text, **more):
    return {
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
        **more,
    }


RUN_FILE = """
[model]
layers = 1
heads = 1
width = 16
context = 16
[data]
train = "{}"
[train]
steps = 1
micro_batch_size = 1
[optimizer]
warmup_steps = 0
[device]
threads = 1
[output]
dir = "run"
"""


class Kinds(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def call(self, *arguments):
        command = [str(PROGRAM), *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout, done.stderr

    def refused(self, code, words, *arguments):
        found, out, err = self.call(*arguments)
        self.assertEqual(found, code, out + err)
        for word in words:
            self.assertIn(word, err)

    def put(self, name, data):
        (self.folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        return name

    # config.json: (family, sizes of the model, changes of the file); the value is that of the plain model.
    CONFIGS = {
        "rope_parameters as transformers 5 writes them": (
            "llama",
            {"theta": 500.0},
            {"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        ),
        "a large rms_norm_eps": ("llama", {"eps": 0.07}, {}),
        "heads wider than hidden_size / heads": ("llama", {"head": 6}, {}),
        "a table shared by a key that the file leaves out": ("llama", {"tied": False}, {"tie_word_embeddings": ...}),
        "no rope_theta, no rms_norm_eps and no head_dim: those of transformers": (
            "llama",
            {},
            {"rope_theta": ..., "rms_norm_eps": ..., "head_dim": ...},
        ),
        "no max_window_layers: 28": ("qwen3", {}, {"use_sliding_window": True, "sliding_window": 3}),
        "a neutral pretraining_tp": ("llama", {}, {"pretraining_tp": 2}),
        "a window of Mistral in all layers": ("mistral", {"windows": (5, 5)}, {"sliding_window": 5}),
        "a window that is null": ("mistral", {}, {"sliding_window": None}),
        "max_window_layers of Qwen2": (
            "qwen2",
            {"windows": (0, 3)},
            {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
        ),
        "a window of Qwen2 that is off": ("qwen2", {}, {"use_sliding_window": False, "sliding_window": 3}),
        "layer_types of Qwen3 beside another max_window_layers": (
            "qwen3",
            {"windows": (4, 0)},
            {
                "use_sliding_window": True,
                "sliding_window": 4,
                "max_window_layers": 0,
                "layer_types": ["sliding_attention", "full_attention"],
            },
        ),
    }

    def test_config_json(self):
        for name, (family, sizes, changes) in self.CONFIGS.items():
            with self.subTest(name):
                model = Model(family, **sizes)
                model.write(self.folder / "m", **changes)
                self.put("t.txt", TEXT)
                code, out, err = self.call("eval", "m", "--text", "t.txt", "--json")
                self.assertEqual(code, 0, err)
                found = json.loads(out)
                self.assertEqual(found["tokens"], CONTEXT)
                self.assertAlmostEqual(found["nats_per_token"], model.loss(), delta=2e-5)

    def test_config_json_refusals(self):
        rows = {
            "hidden_act": ({"hidden_act": "gelu"}, ["hidden_act", "gelu"]),
            "attention_bias": ({"attention_bias": True}, ["attention_bias"]),
            "a scaling of logits": ({"final_logit_softcapping": 30.0}, ["final_logit_softcapping", "30"]),
            "a kind of rope": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["rope_scaling", "dynamic"]),
            "part of the rotary dimensions": ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
        }
        for name, (changes, words) in rows.items():
            with self.subTest(name):
                Model("llama").write(self.folder / "m", **changes)
                self.put("t.txt", TEXT)
                self.refused(4, words, "eval", "m", "--text", "t.txt")

    def test_tokenizer_folders(self):
        folder = self.folder / "tok"
        folder.mkdir()

        def tokenized(config, more=(), lines=({"text": "ab<|x|>c"}, {"text": "d"})):
            for old in folder.iterdir():
                old.unlink()
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer(*more)))
            for name, content in config.items():
                (folder / name).write_text(json.dumps(content))
            self.put("d.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
            return self.call("tokenize", "d.jsonl", "out", "--tokenizer", "tok")

        def ids():
            data = (self.folder / "out.bin").read_bytes()
            return list(struct.unpack(f"<{len(data) // 2}H", data))

        # One token strips the space to its left, and the end of text is an object.
        code, _, err = tokenized(
            {
                "tokenizer_config.json": {
                    "added_tokens_decoder": {"256": added("<|end|>"), "257": added("<|x|>", lstrip=True)},
                    "eos_token": {"content": "<|end|>"},
                }
            },
            lines=({"text": "ab <|x|>c"}, {"text": "d"}),
        )
        self.assertEqual(code, 0, err)
        self.assertEqual(ids(), [97, 98, 257, 99, 256, 100, 256])
        # Only special_tokens_map.json names the end of text.
        code, _, err = tokenized({"special_tokens_map.json": {"eos_token": "<|end|>"}}, more=[(256, "<|end|>")])
        self.assertEqual(code, 0, err)
        self.assertEqual(ids(), [*b"ab<|x|>c", 256, *b"d", 256])
        # The same id has two texts.
        code, _, err = tokenized(
            {"tokenizer_config.json": {"added_tokens_decoder": {"256": added("<|x|>")}, "eos_token": "<|x|>"}},
            more=[(256, "<|y|>")],
        )
        self.assertEqual(code, 3, err)
        for word in ("256", "<|x|>"):
            self.assertIn(word, err)

    def test_containers(self):
        text = b"one line of text\n" * 50
        packed = gzip.compress(text)
        fields = (
            packed[:3]
            + bytes([packed[3] | 4 | 16])
            + packed[4:10]
            + struct.pack("<H", 3)
            + b"abc"
            + b"a comment\0"
            + packed[10:]
        )
        self.put("fields.txt", fields)
        code, _, err = self.call("tokenize", "fields.txt", "out", "--no-end-of-text")
        self.assertEqual(code, 0, err)
        data = (self.folder / "out.bin").read_bytes()
        self.assertEqual(bytes(struct.unpack(f"<{len(data) // 2}H", data)), text)
        rows = {
            "a.arrow": (b"ARROW1\0\0" + bytes(200), ["Arrow"]),
            "b.npz": (b"PK\x03\x04" + bytes(26) + b"ids.npy" + bytes(100), ["zip"]),
            "c.lz4": (b"\x04\x22\x4d\x18" + bytes(100), ["c.lz4"]),
            "d.7z": (b"7z\xbc\xaf\x27\x1c" + bytes(100), ["d.7z"]),
            "e.pdf": (b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n" + bytes(100), ["e.pdf"]),
            "f.z": (zlib.compress(text * 20), ["f.z"]),
        }
        for name, (content, words) in rows.items():
            with self.subTest(name):
                self.put(name, content)
                self.refused(3, words, "tokenize", name, "out2", "--no-end-of-text")
                self.put("run.toml", RUN_FILE.format(name))
                self.refused(3, words, "train", "run.toml")

    def test_json_and_widths(self):
        self.put(
            "deep.jsonl", '{"meta": {"text": "no"}, "text": "yes"}\n{"text": "", "x": 1}\n{"text": "\\u0041\\n"}\n'
        )
        code, out, err = self.call("tokenize", "deep.jsonl", "out", "--no-end-of-text")
        self.assertEqual(code, 0, err)
        self.assertEqual((self.folder / "out.bin").read_bytes(), struct.pack("<5H", *b"yesA\n"))
        # numpy writes ids of 8 bytes by default; the other ids have 4 bytes, with a vocabulary that two bytes cannot
        # hold.
        ids = [random.Random(3).randrange(200) for _ in range(500)]
        self.put("n.bin", struct.pack("<500Q", *ids))
        self.put("run.toml", RUN_FILE.format("n.bin"))
        self.refused(3, ["n.bin"], "train", "run.toml", "--set", "data.format=nanogpt", "--set", "model.vocab_size=256")
        self.refused(
            3, ["n.bin"], "train", "run.toml", "--set", "data.format=nanogpt-uint32", "--set", "model.vocab_size=256"
        )

    def test_imports(self):
        sizes = "--num-attention-heads 8 --seq-length 256 --max-position-embeddings 256 --micro-batch-size 1"
        start = "HEAD\ntorchrun --nproc-per-node=2 pretrain_gpt.py $SIZE " + sizes + ' "${A[@]}"\n'

        def run_file(kind, text):
            code, out, err = self.call("plan", "--import", kind, self.put("c", text), "--write", "r.toml")
            return (tomllib.loads((self.folder / "r.toml").read_text()), out) if code == 0 else (code, err)

        # The script has a branch of case by a default, an array that a function fills, and an option in a quoted
        # variable.
        head = (
            'case ${MODEL:-small} in\n large) SIZE="--num-layers 40 --hidden-size 5120" ;;\n'
            ' s*) SIZE="--num-layers 6 --hidden-size 512" ;;\nesac\nA=()\nadd() { A+=("--$1" "${2:-}"); }\n'
            "add global-batch-size $((1<<3))\n[[ $SIZE == *512* ]] && add clip-grad 0.5"
        )
        keys, _ = run_file("megatron", start.replace("HEAD", head))
        self.assertEqual([keys["model"][key] for key in ("layers", "width", "ffn_width")], [6, 512, 2048])
        self.assertEqual((keys["train"]["global_batch_size"], keys["optimizer"]["grad_clip"]), (8, 0.5))
        code, err = run_file("megatron", start.replace("HEAD", head.replace("MODEL:-small", "MODEL:-$(hostname)")))
        self.assertEqual(code, 2)
        self.assertIn("the condition in line 1", err)
        # YAML has anchors and merged keys, and a reference to an uncle.
        keys, _ = run_file(
            "nemo",
            """
trainer: {devices: 2, num_nodes: 1, precision: bf16-mixed}
sizes: &sizes {num_layers: 3, hidden_size: 64, num_attention_heads: 4, max_position_embeddings: 32}
model:
  <<: *sizes
  hidden_size: 128
  encoder_seq_length: ${.max_position_embeddings}
  ffn_hidden_size: ${multiply:${.hidden_size}, 3}
  micro_batch_size: 2
  global_batch_size: 4
  optim: {name: mcore_distributed_optim, lr: 1e-3, weight_decay: 0.05, betas: [0.9, 0.97], sched: {min_lr: 1e-5}}
""".replace("sizes: &sizes", "cluster: &sizes"),
        )
        self.assertEqual([keys["model"][key] for key in ("layers", "width", "ffn_width", "context")], [3, 128, 384, 32])
        self.assertEqual(
            [keys["optimizer"][key] for key in ("learning_rate", "min_learning_rate", "weight_decay", "beta2")],
            [1e-3, 1e-5, 0.05, 0.97],
        )
        self.assertEqual((keys["zero"]["stage"], keys["overlap"]["grad_reduce"]), (1, "flat"))
        # TOML has dotted keys and inline tables; there is hybrid sharding, and the batch is that of all replicas.
        keys, _ = run_file(
            "torchtitan",
            """
model.name = "llama3"
model.flavor = "70B"
training = {local_batch_size = 2, seq_len = 1_024, steps = 7}
parallelism = {data_parallel_replicate_degree = 2, data_parallel_shard_degree = 4, tensor_parallel_degree = 2}
activation_checkpoint = {mode = "selective", selective_ac_option = "op"}
lr_scheduler.min_lr_factor = 0.1
""",
        )
        self.assertEqual((keys["train"]["global_batch_size"], keys["train"]["recompute"]), (16, "selective"))
        self.assertEqual((keys["zero"]["stage"], keys["zero"]["shard_size"], keys["model"]["width"]), (3, 4, 8192))
        self.assertAlmostEqual(keys["optimizer"]["min_learning_rate"], 8e-5)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
