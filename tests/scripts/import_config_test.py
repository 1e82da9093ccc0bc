#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Configurations of other programs: the keys they become, what their programs default, and what is refused.

Right values come from the other programs' sources (their defaults, their rules for stages and widths), from bash, and
from arithmetic. Arguments: the source root, the program, and the folder of inputs beside the project, whose tests skip
without it.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest

ROOT, PROGRAM, FIELD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts" / "import_config"))

import megatron  # noqa: E402
import nemo  # noqa: E402
import torchtitan  # noqa: E402
from options import Refused  # noqa: E402
from run_file import text_of  # noqa: E402

MACHINE = ROOT / "configs" / "machines" / "h100x8.toml"
READERS = {"megatron": megatron, "nemo": nemo, "torchtitan": torchtitan}
MEGATRON = """#!/bin/bash
GPUS=8
NODES=${NODES:-4}
WORLD=$((GPUS*NODES))
TP=2   # tensor ranks
ARGS=(
    --num-layers 24 --hidden-size 1024
    --num-attention-heads 16
    --seq-length 2048
    --max-position-embeddings 2048
    --tensor-model-parallel-size $TP
    --micro-batch-size 2
    --global-batch-size $((WORLD * 4))
    --use-distributed-optimizer
    --overlap-grad-reduce
    --bf16
    --log-interval 10 # not of the model
)
torchrun --nproc_per_node $GPUS --nnodes ${NODES} pretrain_gpt.py ${ARGS[@]}
"""
NEMO = """trainer:
  num_nodes: 2
  devices: 8
  precision: bf16
  max_steps: 100
model:
  # sizes
  num_layers: 4
  hidden_size: 512  # elements
  ffn_hidden_size: ${multiply:3, ${.hidden_size}}
  num_attention_heads: 8
  num_query_groups: 2
  encoder_seq_length: 1024
  max_position_embeddings: ${.encoder_seq_length}
  normalization: rmsnorm
  activation: fast-swiglu
  position_embedding_type: rope
  bias: false
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 2
  share_embeddings_and_output_weights: false
  optim:
    name: distributed_fused_adam
    betas:
      - 0.9
      - 0.98
"""
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""
LLAMA = "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"


def read(kind, text, ranks=0, path="config"):
    """(the run file as nested keys, the run, the options)."""
    run, found = READERS[kind].read(text, path, ranks)
    return tomllib.loads(text_of(run, path)), run, found


def with_(text, old, new):
    assert old in text, old
    return text.replace(old, new)


def megatron_with(options):
    return with_(MEGATRON, "--bf16", "--bf16 " + options)


class Imports(unittest.TestCase):
    def has(self, keys, **expected):
        for name, value in expected.items():
            table, key = name.split("_", 1)
            self.assertEqual(keys[table].get(key), value, name)

    def refused(self, kind, text, *words, ranks=0):
        with self.assertRaises(Refused) as caught:
            read(kind, text, ranks)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_a_script_becomes_a_run_file(self):
        keys, run, found = read("megatron", MEGATRON)
        self.has(
            keys,
            model_family="gpt2",
            model_layers=24,
            model_width=1024,
            model_ffn_width=4096,
            parallel_tensor=2,
            train_micro_batch_size=2,
            train_global_batch_size=128,
            train_dtype="bfloat16",
            zero_stage=1,
            overlap_param_gather=False,
            overlap_grad_reduce="bucketed",
        )
        self.assertEqual((run.ranks, run.software), (32, "megatron"))
        self.assertIn("NODES is not set in the file, which then takes '4'", found.notes)
        self.assertTrue(found.unused["log-interval"][2])
        self.assertEqual(read("megatron", megatron_with("--fp8-format hybrid"))[1].software, "megatron+fp8")

    def test_defaults_are_those_of_the_other_program(self):
        keys, _, found = read("megatron", megatron_with(LLAMA + " --group-query-attention"))
        # Megatron-LM: int(4 x 1024 x 2 / 3 / 64) x 64 as width, one group, decay 0.01, beta2 0.999, dropout 0.1, tied
        # heads
        self.has(
            keys,
            model_ffn_width=2688,
            model_kv_heads=1,
            optimizer_weight_decay=0.01,
            optimizer_beta2=0.999,
            optimizer_grad_clip=1.0,
            model_resid_pdrop=0.1,
            model_attn_pdrop=0.1,
            model_tie_embeddings=True,
        )
        self.assertEqual(found.defaulted["num-query-groups"], 1)
        # Without --global-batch-size: one micro-batch for each data-parallel rank. Without --bf16: float32.
        text = with_(with_(MEGATRON, "    --global-batch-size $((WORLD * 4))\n", ""), "    --bf16\n", "")
        keys, _, _ = read("megatron", text)
        self.has(keys, train_global_batch_size=2 * 32 // 2, train_dtype="float32")
        self.has(read("megatron", text, ranks=64)[0], train_global_batch_size=64)
        # NeMo has the dropout of Megatron-Core, no decay, no clipping, Apex's buckets of 100 MiB and overlapped
        # gradients.
        keys, _, _ = read("nemo", with_(NEMO, "  max_steps: 100\n", ""))
        self.has(
            keys,
            model_resid_pdrop=0.1,
            optimizer_weight_decay=0.0,
            optimizer_grad_clip=0.0,
            overlap_bucket_size="104857600B",
            overlap_grad_reduce="bucketed",
            overlap_param_gather=False,
            optimizer_beta2=0.98,
        )
        self.has(read("nemo", with_(NEMO, "    betas:\n      - 0.9\n      - 0.98\n", ""))[0], optimizer_beta2=0.999)
        # torchtitan has a batch of 8, and one of two layers recomputes.
        keys, _, found = read("torchtitan", TITAN.split("[activation")[0].replace("local_batch_size = 1\n", ""))
        self.has(
            keys,
            train_micro_batch_size=8,
            train_global_batch_size=64,
            train_recompute="full",
            train_recompute_layers=16,
            train_steps=10000,
        )
        self.assertEqual(found.defaulted["activation_checkpoint.selective_ac_option"], "2")

    def test_launchers(self):
        start = "torchrun --nproc_per_node $GPUS --nnodes ${NODES}"
        rows = {
            "torchrun --nproc-per-node=4": 4,
            "python -m torch.distributed.run --nnodes 2 --nproc_per_node 8 --node_rank $RANK --max_restarts 3": 16,
            "srun -N 4 --ntasks-per-node=8 --label bash -c python": 32,
            "srun -n16 python3": 16,
            "mpirun --hostfile hosts -np 24 -x PATH python": 24,
            "srun --nodes 2 torchrun --nnodes $SLURM_NNODES --nproc_per_node 8": 0,
            "python": 0,
        }
        for launcher, ranks in rows.items():
            self.assertEqual(read("megatron", with_(MEGATRON, start, launcher))[1].ranks, ranks, launcher)
        found = read("megatron", with_(MEGATRON, "    --bf16\n", "    --bf16 $EXTRA\n"))[2]
        self.assertTrue(any("EXTRA is not set" in note for note in found.notes))

    def test_vocabularies(self):
        def vocab(options):
            return read("megatron", megatron_with(options))[0]["model"]["vocab_size"]

        self.assertEqual(vocab("--vocab-size 32001"), 32256)  # a multiple of 128 x 2 tensor ranks
        self.assertEqual(vocab("--padded-vocab-size 32001"), 32001)
        self.assertEqual(vocab("--tokenizer-type GPT2BPETokenizer"), 50432)
        _, run, _ = read("megatron", megatron_with("--tokenizer-type HuggingFaceTokenizer --tokenizer-model x"))
        self.assertIn("50304 tokens are assumed", run.notes[-2] + run.notes[-1] + run.notes[0])

    def test_arguments_in_yaml(self):
        keys, _, _ = read(
            "megatron",
            "ENV_VARS:\n  X: 1\nMODEL_ARGS:\n  --num-layers: 6\n  --hidden-size: 64\n  --num-attention-heads: 4\n"
            "  --seq-length: 32\n  --micro-batch-size: 1\n  --use-distributed-optimizer: true\n  --bf16: true\n"
            "  --overlap-grad-reduce: false\n  --save: ${WHERE}\n",
            path="model_config.yaml",
        )
        self.has(keys, model_layers=6, zero_stage=1, overlap_grad_reduce="flat")

    def test_nemo_references(self):
        keys, run, _ = read("nemo", NEMO)
        self.has(
            keys,
            model_family="llama",
            model_ffn_width=1536,
            model_kv_heads=2,
            model_context=1024,
            optimizer_beta2=0.98,
            zero_stage=1,
        )
        self.assertEqual(run.ranks, 16)
        ffn = "ffn_hidden_size: ${multiply:3, ${.hidden_size}}"
        for reference, width in {
            "${model.encoder_seq_length}": 1024,
            "${.optim.width}": 1792,
            "1_536": 1536,
            "${divide_ceil:${multiply:${.hidden_size},8},3}": 1366,
        }.items():
            text = with_(NEMO, ffn, f"ffn_hidden_size: {reference}") + "    width: ${..width}\n  width: 1792\n"
            text = text.replace("  width: 1792\n", "  seed: 1792\n").replace("${..width}", "${..seed}")
            text = text.replace("    width:", "    sched: {warmup: 1}\n    eps:").replace(".optim.width", ".optim.eps")
            self.has(read("nemo", text)[0], model_ffn_width=width)

    def test_torchtitan_sizes(self):
        keys, run, _ = read("torchtitan", TITAN)
        self.has(
            keys,
            model_width=4096,
            model_kv_heads=8,
            model_vocab_size=128256,
            zero_stage=3,
            parallel_sequence_parallel=True,
            train_recompute="full",
            train_global_batch_size=8,
        )
        self.assertEqual(run.ranks, 16)
        for converters in (
            'converters = ["float8"]',
            "converters = [\n  # comment\n  'float8',\n]",
            'converters = ["quantize.linear.float8"]',
        ):
            _, run, _ = read("torchtitan", with_(TITAN, 'flavor = "8B"', 'flavor = "8B"\n' + converters))
            self.assertEqual(run.software, "fsdp+fp8")
        self.refused(
            "torchtitan",
            with_(TITAN, 'flavor = "8B"', 'flavor = "8B"\nconverters = ["mx"]'),
            "config:4",
            "model.converters = [mx] is not supported",
        )

    def test_torchtitan_pipelines(self):
        def stages(options):
            return read(
                "torchtitan",
                with_(TITAN, "local_batch_size = 1\n", "local_batch_size = 8\n").replace(
                    "tensor_parallel_degree = 2", "pipeline_parallel_degree = 4\n" + options
                ),
            )

        # generate_llm_fqn_per_model_part(4, 32) has 34 places: embedding and head count as one layer each.
        keys, run, _ = stages("")
        self.has(keys, pipeline_layers=[8, 9, 8, 7], train_micro_batch_size=1, train_global_batch_size=64, zero_stage=2)
        self.assertEqual(run.ranks, 32)
        keys, _, _ = stages('pipeline_parallel_schedule = "Interleaved1F1B"\npipeline_parallel_microbatch_size = 2')
        self.has(keys, pipeline_layers=[4, 5, 4, 4, 4, 4, 4, 3], pipeline_virtual_stages=2, train_micro_batch_size=2)
        keys, _, _ = stages(
            "pipeline_parallel_first_stage_less_layers = 0\npipeline_parallel_last_stage_less_layers = 0"
        )
        self.has(keys, pipeline_layers=[8, 8, 8, 8])
        left = with_(TITAN, "data_parallel_shard_degree = 8\ntensor", "pipeline_parallel_degree = 2\ntensor")
        self.refused("torchtitan", left, "Give --ranks with a multiple of 4")
        self.has(read("torchtitan", left, ranks=16)[0], train_global_batch_size=4)

    def test_dropout_and_recomputation(self):
        def train(options):
            return read("megatron", megatron_with(options))[0]["train"]

        keys, _, _ = read("megatron", megatron_with("--hidden-dropout 0.0 --attention-dropout 0"))
        self.has(keys, model_embd_pdrop=None, model_attn_pdrop=None)
        full = "--recompute-granularity full --recompute-method "
        rows = {
            "": ("none", None),
            full + "block --recompute-num-layers 5": ("full", 5),
            full + "block --recompute-num-layers 24": ("full", None),
            full + "block --recompute-num-layers 0": ("none", None),
            full + "uniform --recompute-num-layers 5": ("full", None),
            "--recompute-activations": ("selective", None),
            "--activations-checkpoint-method uniform": ("full", None),
        }
        for options, expected in rows.items():
            found = train(options)
            self.assertEqual((found["recompute"], found.get("recompute_layers")), expected, options)

    def test_refusals_name_option_value_and_line(self):
        def script(options, *words):
            self.refused("megatron", megatron_with(options), *words)

        script("--num-experts 8", "config:16: --num-experts = 8 is not supported")
        script("--some-new-option 3", "--some-new-option", "does not know")
        script("--swiglu", "--normalization")
        script("--kv-channels 128", "must be hidden-size / num-attention-heads = 64")
        script(LLAMA + " --rotary-percent 0.5", "--rotary-percent = 0.5 must be 1.0")
        script("--optimizer muon", "--optimizer = muon is not supported: adam is")
        script("--micro-batch-size two", "--micro-batch-size = two needs a number")
        self.refused(
            "megatron",
            with_(MEGATRON, "--num-layers 24", "--num-layers $LAYERS"),
            "config:7: --num-layers",
            "LAYERS is not set in the file",
        )
        self.refused(
            "megatron",
            with_(MEGATRON, "pretrain_gpt.py", "pretrain_bert.py"),
            "config:19: pretrain_bert.py is not supported",
        )
        self.refused("megatron", "echo nothing\n", "no command of the script starts pretrain_gpt.py")
        self.refused("megatron", MEGATRON + MEGATRON.split("\n")[-2] + "\n", "starts training 2 times, in lines 19, 20")
        yaml = with_(NEMO, "  bias: false", "  bias: false\n  {}")
        self.refused(
            "nemo", yaml.replace("{}", "num_moe_experts: 8"), ":19: model.num_moe_experts = 8 is not supported"
        )
        self.refused("nemo", with_(NEMO, "fast-swiglu", "squared-relu"), "model.activation = squared-relu")
        self.refused("nemo", yaml.replace("{}", "new_block: 3"), "model.new_block")
        self.refused("nemo", yaml.replace("{}", "kv_channels: ${x.y}"), "${x.y} is not in the file")
        self.refused("nemo", "model: [1, 2\n", "this is no YAML")
        self.refused("torchtitan", with_(TITAN, '"llama3"', '"deepseek_v3"'), ":2: model.name = deepseek_v3")
        self.refused("torchtitan", TITAN + "[new]\nblock = 3\n", ":13: new.block")
        self.refused("torchtitan", TITAN + "mode = 3\n", "this is no TOML")

    def test_branches_that_the_file_does_not_decide(self):
        unknown = 'if [ -f "$DATA/done" ]; then\n  TP=4\n  NOTE=1\nfi\n'
        text = with_(MEGATRON, "ARGS=(", unknown + "ARGS=(")
        self.refused(
            "megatron", text, "--tensor-model-parallel-size has no known value: TP depends on the condition in line 6"
        )
        # The same value on both sides is known, and a branch that ends the script leaves the other.
        self.has(read("megatron", text.replace("TP=4", "TP=2"))[0], parallel_tensor=2)
        self.has(read("megatron", text.replace("NOTE=1", "exit 1"))[0], parallel_tensor=2)
        starts = MEGATRON.replace("torchrun", "if [ -d x ]; then torchrun").rstrip() + "; fi\n"
        self.refused("megatron", starts, "config:19: this command starts or not depending on the condition in line 19")
        options = with_(MEGATRON, "torchrun", "[ -f y ] && ARGS+=(--fp16)\ntorchrun")
        self.refused("megatron", options, "ARGS depends on the condition in line 19")
        # The error lists unknown words beside the options.
        _, _, found = read("megatron", MEGATRON.rstrip() + " $EXTRA\n")
        self.assertTrue(any("EXTRA is not set in the file" in note for note in found.notes))


class Command(unittest.TestCase):
    """slipstream plan --import."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def call(self, kind, text, *flags, program=PROGRAM, name="config", **environment):
        (self.folder / name).write_text(text)
        command = [str(program), "plan", "--import", kind, name, *map(str, flags)]
        done = subprocess.run(
            command,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **environment},
        )
        return done.returncode, done.stdout, done.stderr

    def test_prints_writes_and_forecasts(self):
        code, out, err = self.call("megatron", MEGATRON, "--write", "run.toml")
        self.assertEqual(code, 0, err)
        self.assertEqual(tomllib.loads((self.folder / "run.toml").read_text())["model"]["layers"], 24)
        for words in (
            "[model]\n",
            "defaults of Megatron-LM 0.20.0",
            "--hidden-dropout 0.1",
            "--log-interval 10",
            "note: NODES is not set in the file",
            "needs --machine",
        ):
            self.assertIn(words, out)
        code, out, err = self.call("megatron", megatron_with("--rampup-batch-size 16 16 1000"), "--machine", MACHINE)
        self.assertEqual(code, 0, err)
        self.assertIn("32 ranks as megatron", out)
        self.assertIn("not used: --rampup-batch-size 16 16 1000 (config:16): the forecast is of the final batch", out)
        code, out, err = self.call("nemo", NEMO, "--machine", MACHINE, "--json")
        self.assertEqual(code, 0, err)
        answer = json.loads(out)
        self.assertEqual((answer["ranks"], answer["as"], answer["program"][:4]), (16, "megatron", "NeMo"))
        self.assertGreater(answer["step_ms"], 0)

    def test_a_run_that_does_not_fit(self):
        large = with_(TITAN, '"8B"', '"405B"')
        code, out, err = self.call("torchtitan", large, "--machine", MACHINE)
        self.assertEqual(code, 7, err)
        self.assertIn("[import] a rank needs", err)
        self.assertNotIn("ms a step", out)

    def test_exit_codes(self):
        code, _, err = self.call("gguf", "")
        self.assertEqual((code, err.count("unknown format")), (2, 1), err)
        code, _, err = self.call("megatron", megatron_with("--num-experts 8"))
        self.assertEqual(
            (code, err.strip()), (2, "slipstream: [import] config:16: --num-experts = 8 is not supported.")
        )
        (self.folder / "config").unlink(missing_ok=True)
        done = subprocess.run(
            [str(PROGRAM), "plan", "--import", "nemo", "absent.yaml"],
            cwd=self.folder,
            check=False,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 3)
        self.assertIn("absent.yaml cannot be read: No such file or directory.", done.stderr)

    def test_what_is_missing_is_named(self):
        code, _, err = self.call("megatron", MEGATRON, PATH="/nonexistent")
        self.assertEqual(code, 7)
        self.assertIn("python3 cannot be started, which reads configurations of other programs", err)
        (self.folder / "yaml.py").write_text("raise ImportError('no yaml')\n")
        code, _, err = self.call("nemo", NEMO, PYTHONPATH=str(self.folder))
        self.assertEqual(code, 7)
        self.assertIn("Python has no PyYAML to read it. Install it with scripts/setup.sh", err)
        # An installed program has its script in share; one that was copied alone does not.
        for place in ("alone/bin", "whole/bin"):
            (self.folder / place).mkdir(parents=True)
            shutil.copy(PROGRAM, self.folder / place / "slipstream")
        code, _, err = self.call("megatron", MEGATRON, program=self.folder / "alone/bin/slipstream")
        self.assertEqual(code, 7)
        self.assertIn("the script import_config is missing", err)
        shared = self.folder / "whole/share/slipstream"
        (shared / "configs/machines").mkdir(parents=True)
        shutil.copytree(ROOT / "scripts/import_config", shared / "scripts/import_config")
        self.assertEqual(self.call("megatron", MEGATRON, program=self.folder / "whole/bin/slipstream")[0], 0)


@unittest.skipUnless(FIELD.is_dir(), f"{FIELD} is not here")
class Field(unittest.TestCase):
    def read(self, name):
        path = FIELD / name
        return read(name.split("-")[0], path.read_text(), path=name)

    def test_files(self):
        model = self.read("megatron-branches-variables.sh")[0]["model"]
        self.assertEqual((model["layers"], model["width"], model["ffn_width"]), (8, 1024, 2816))
        self.assertEqual(self.read("megatron-swiglu-no-ffn.sh")[0]["model"]["ffn_width"], 2688)
        train = self.read("torchtitan-pipeline-microbatch.toml")[0]["train"]
        self.assertEqual((train["micro_batch_size"], train["global_batch_size"]), (1, 16))  # 8 of each of 2 ranks
        train = self.read("torchtitan-defaults.toml")[0]["train"]
        self.assertEqual((train["micro_batch_size"], train["recompute"], train["recompute_layers"]), (8, "full", 16))
        keys, run, _ = self.read("torchtitan-float8-list.toml")
        self.assertEqual((run.software, keys["train"]["recompute"]), ("fsdp+fp8", "none"))
        optimizer = self.read("nemo-betas-flow.yaml")[0]["optimizer"]
        self.assertEqual((optimizer["beta1"], optimizer["beta2"]), (0.8, 0.99))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
