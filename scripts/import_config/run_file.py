# SPDX-License-Identifier: Apache-2.0
"""A run of another program in the terms of this one, and its run file."""

import dataclasses

from options import Refused


@dataclasses.dataclass
class Run:
    """`global_batch` 0: one micro-batch of each rank. `ranks` 0: the file does not name them."""

    layers: int
    width: int
    heads: int
    sequence: int
    micro_batch: int
    llama: bool = False  # RMSNorm, rotary positions, gated units, no biases; else GPT-2
    kv_heads: int = 0
    ffn_width: int = 0
    context: int = 0
    vocab: int = 0
    tied: bool = True
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    global_batch: int = 0
    steps: int = 0
    bf16: bool = True
    tensor: int = 1
    pipeline: int = 1
    context_ranks: int = 1
    virtual_stages: int = 1
    ranks: int = 0
    sequence_parallel: bool = False
    overlaps_gradients: bool = True
    overlaps_gathers: bool = True
    overlaps_tensor: bool = False
    zero_stage: int = 0
    shard_size: int = 0
    schedule: str = "1f1b"
    stage_layers: tuple = ()
    recompute: str = "none"
    recompute_layers: int = 0  # of each part; 0: all
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    learning_rate: float = 0.0
    min_learning_rate: float = 0.0
    weight_decay: float = 0.0
    grad_clip: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    bucket_bytes: int = 0
    software: str = "megatron"
    notes: list = dataclasses.field(default_factory=list)

    def replicas(self, ranks):
        """The number of data-parallel ranks among `ranks`, or 0."""
        model = self.tensor * self.pipeline * self.context_ranks
        return ranks // model if ranks and ranks % model == 0 else 0


def recompute_as_megatron(run, granularity, method, layers):
    """In Megatron's words, "block" recomputes the first layers of each part, and "uniform" all layers, in groups of
    `layers`."""
    if granularity not in ("full", "selective"):
        return
    run.recompute = granularity
    if granularity == "full" and method == "block":
        of_part = run.layers // max(1, run.pipeline * run.virtual_stages)
        if layers <= 0:
            run.recompute = "none"
        elif layers < of_part:
            run.recompute_layers = layers


def padded(vocab, multiple):
    return -(-vocab // multiple) * multiple


def text_of(run, source):
    """The run file."""
    if run.layers % 1 or run.width % run.heads:
        raise Refused(f"the hidden size {run.width} is no multiple of the {run.heads} attention heads.")
    if not run.vocab:
        run.notes.append(
            "the file leaves the size of the vocabulary to its tokenizer: 50304 tokens are assumed; give another size "
            "with --set model.vocab_size=N"
        )
    if not run.steps:
        run.notes.append("the file does not tell the number of steps: 1 is written")
    if not run.learning_rate:
        run.notes.append("the file does not tell the learning rate: 0.0001 is written; no step time depends on it")
    interleaved = run.pipeline > 1 and run.virtual_stages > 1
    tables = {
        "model": {
            "family": "llama" if run.llama else "gpt2",
            "layers": run.layers,
            "heads": run.heads,
            "kv_heads": run.kv_heads or None,
            "width": run.width,
            "ffn_width": run.ffn_width or None,
            "context": max(run.context, run.sequence),
            "vocab_size": run.vocab or 50304,
            "tie_embeddings": run.tied,
            "rope_theta": float(run.rope_theta) if run.llama else None,
            "norm_eps": run.norm_eps,
            "embd_pdrop": run.hidden_dropout or None,
            "resid_pdrop": run.hidden_dropout or None,
            "attn_pdrop": run.attention_dropout or None,
        },
        "data": {"train": "tokens.bin", "tokenizer": "bytes"},
        "train": {
            "steps": run.steps or 1,
            "sequence_length": run.sequence,
            "micro_batch_size": run.micro_batch,
            "global_batch_size": run.global_batch or None,
            "dtype": "bfloat16" if run.bf16 else "float32",
            "eval_interval": 0,
            "recompute": run.recompute,
            "recompute_layers": run.recompute_layers or None,
        },
        "optimizer": {
            "learning_rate": run.learning_rate or 1e-4,
            "min_learning_rate": run.min_learning_rate if run.min_learning_rate <= run.learning_rate else None,
            "weight_decay": run.weight_decay,
            "grad_clip": run.grad_clip,
            "beta1": run.beta1,
            "beta2": run.beta2,
        },
        "parallel": {
            "tensor": run.tensor,
            "pipeline": run.pipeline,
            "context": run.context_ranks,
            "sequence_parallel": run.sequence_parallel and run.tensor > 1,
        },
        "pipeline": {
            "schedule": "interleaved_1f1b" if interleaved else run.schedule,
            "virtual_stages": run.virtual_stages if interleaved else None,
            "layers": list(run.stage_layers) or None,
        },
        "zero": {"stage": run.zero_stage, "shard_size": run.shard_size or None},
        "overlap": {
            "grad_reduce": "bucketed" if run.overlaps_gradients else "flat",
            "param_gather": run.overlaps_gathers,
            "tensor_chunks": None if run.overlaps_tensor else 1,
            "bucket_size": f"{run.bucket_bytes}B" if run.bucket_bytes else None,
        },
        "device": {"kind": "cuda"},
    }
    lines = [f"# Imported from {source}."]
    for table, keys in tables.items():
        lines += ["", f"[{table}]"] + [f"{key} = {toml(value)}" for key, value in keys.items() if value is not None]
    return "\n".join(lines) + "\n"


def toml(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
