# SPDX-License-Identifier: Apache-2.0
"""torchtitan: its TOML files, whose model sizes have names."""

import math

from defaults import TORCHTITAN, TORCHTITAN_DEFAULTS
from documents import read_toml
from options import Option, Options, Refused
from run_file import Run

PROGRAM = TORCHTITAN

# layers, width, heads, kv heads, ffn width, vocabulary, rope theta. The source is torchtitan/models/llama3/__init__.py,
# whose vocabulary of 128256 is that of the tokenizer; Llama 2 is as in version 0.1.
FLAVORS = {
    ("llama3", "debugmodel"): (6, 256, 16, 16, 768, 2048, 500000),
    ("llama3", "8B"): (32, 4096, 32, 8, 14336, 128256, 500000),
    ("llama3", "70B"): (80, 8192, 64, 8, 28672, 128256, 500000),
    ("llama3", "405B"): (126, 16384, 128, 8, 53248, 128256, 500000),
    ("llama2", "7B"): (32, 4096, 32, 32, 11008, 32000, 10000),
    ("llama2", "13B"): (40, 5120, 40, 40, 13824, 32000, 10000),
    ("llama2", "70B"): (80, 8192, 64, 8, 28672, 32000, 10000),
}
# Names of version 0.1 and before.
RENAMED = {"training.batch_size": "training.local_batch_size", "training.max_grad_norm": "training.max_norm"}
for _degree in (
    "data_parallel_replicate_degree",
    "data_parallel_shard_degree",
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "context_parallel_degree",
    "pipeline_parallel_schedule",
    "enable_async_tensor_parallel",
    "pipeline_parallel_microbatch_size",
):
    for _table in ("training", "experimental"):
        RENAMED[f"{_table}.{_degree}"] = f"parallelism.{_degree}"

REFUSED = """
training.enable_cpu_offload parallelism.module_fqns_per_model_part parallelism.pipeline_parallel_schedule_csv
parallelism.pipeline_parallel_split_points experimental.pipeline_parallel_split_points
optimizer.early_step_in_backward model.use_flex_attn
""".split()
LEFT_OUT = {
    "fault_tolerance.enable": "the forecast is of one replica group",
    "compile.enable": "the profile is of compiled layers",
    "training.compile": "the profile is of compiled layers",
    "parallelism.enable_compiled_autograd": "the profile is of compiled layers",
    "experimental.enable_compiled_autograd": "the profile is of compiled layers",
    "parallelism.disable_loss_parallel": "the head's logits are divided over tensor ranks",
    "parallelism.context_parallel_rotate_method": "keys travel around a ring",
    "experimental.context_parallel_rotate_method": "keys travel around a ring",
    "parallelism.context_parallel_load_balancer": "the causal halves are balanced",
    "activation_checkpoint.early_stop": "recomputation counts as a whole",
}
NEUTRAL = """
job. profiling. metrics. checkpoint. validation. comm. debug. compile. memory_estimation. logging.
experimental.custom model.tokenizer_path model.hf_assets_path model.print model.norm_type training.dataset
training.seed training.deterministic training.gc_ training.mixed_precision_reduce training.warmup_steps
training.data_parallel_type training.dataloader training.debug activation_checkpoint.per_op
activation_checkpoint.preserve activation_checkpoint.determinism activation_checkpoint.debug
activation_checkpoint.visualize activation_checkpoint.memory_budget optimizer.eps optimizer.implementation
optimizer.fused optimizer.foreach lr_scheduler. fault_tolerance. float8. mx. quantize. parallelism.expert_tensor
parallelism.pipeline_parallel_expert_parallel_overlap parallelism.expert_parallel_comm_backend
""".split()


def read(text, path, ranks):
    options = []
    for name, value, line in read_toml(text, path):
        option = Option(name, value, f"{path}:{line}")
        if name in RENAMED:
            option.name = RENAMED[name]
        options.append(option)
    found = Options(options, TORCHTITAN_DEFAULTS)
    return run_of(found, ranks), found


def flavor_of(found):
    model, flavor = found.read("model.name"), found.read("model.flavor")
    if (model, flavor) in FLAVORS:
        return FLAVORS[model, flavor]
    names = [name for family, name in FLAVORS if family == model]
    if not names:
        found.refuse("model.name", "is not supported: llama3 and llama2 are")
    return found.refuse("model.flavor", f"is no size that this version knows: {', '.join(names)} of {model} are")


def run_of(found, ranks):
    layers, width, heads, kv_heads, ffn, vocab, theta = flavor_of(found)
    for name in REFUSED:
        found.refuse_if_on(name)
    for name in ("expert_parallel_degree", "expert_tensor_parallel_degree"):
        found.refuse_if_on(f"parallelism.{name}", neutral=("1",))
    batch, sequence = found.integer("training.local_batch_size", 1), found.integer("training.seq_len", 1)
    run = Run(layers, width, heads, sequence, batch, True, kv_heads, ffn, sequence, vocab, False, theta)
    run.steps = found.integer("training.steps", 1)
    run.tensor = found.integer("parallelism.tensor_parallel_degree", 1)
    run.context_ranks = found.integer("parallelism.context_parallel_degree", 1)
    run.sequence_parallel = run.tensor > 1
    run.overlaps_tensor = found.flag("parallelism.enable_async_tensor_parallel")
    pipeline(found, run)
    sharding(found, run, ranks)
    recomputation(found, run)
    if found.choice("training.dtype", ("float32", "bfloat16")) == "bfloat16":
        found.refuse("training.dtype", "is not supported: master weights are float32 here")
    run.bf16 = found.choice("training.mixed_precision_param", ("float32", "bfloat16")) == "bfloat16"
    found.choice("optimizer.name", ("adamw",))
    run.learning_rate = found.real("optimizer.lr")
    run.min_learning_rate = run.learning_rate * found.real("lr_scheduler.min_lr_factor")
    run.weight_decay, run.grad_clip = found.real("optimizer.weight_decay"), found.real("training.max_norm")
    run.beta1, run.beta2 = found.real("optimizer.beta1"), found.real("optimizer.beta2")
    converters = found.find("model.converters")
    names = [name.strip() for name in converters.value.strip("[]").split(",")] if converters else []
    names = [name for name in names if name]
    for name in names:
        if name not in ("float8", "quantize.linear.float8"):
            found.refuse("model.converters", "is not supported: float8 is")
    run.software = "fsdp+fp8" if names or found.flag("float8.enable_float8_linear") else "fsdp"
    for name, why in LEFT_OUT.items():
        found.leave(name, why)
    found.require_known(lambda name: name.startswith(tuple(NEUTRAL)))
    return run


def pipeline(found, run):
    """Stages take micro-batches of their own size from the local batch."""
    run.pipeline = found.integer("parallelism.pipeline_parallel_degree", 1)
    if run.pipeline == 1:
        found.ignore("parallelism.pipeline_parallel_", "there is one stage")
        return
    schedules = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "1f1b", "interleaved_1f1b": "1f1b"}
    schedule = found.choice("parallelism.pipeline_parallel_schedule", tuple(schedules))
    run.schedule = schedules[schedule]
    size = found.integer("parallelism.pipeline_parallel_microbatch_size", 1)
    if run.micro_batch % size:
        found.refuse(
            "parallelism.pipeline_parallel_microbatch_size",
            f"must divide training.local_batch_size = {run.micro_batch}",
        )
    run.micro_batch = size
    first = found.integer("parallelism.pipeline_parallel_first_stage_less_layers", 0)
    last = found.integer("parallelism.pipeline_parallel_last_stage_less_layers", 0)
    per_stage, total = found.integer("parallelism.pipeline_parallel_layers_per_stage", 1), run.layers + first + last
    run.virtual_stages = 2 if schedule.startswith("interleaved") else 1
    parts = math.ceil(total / per_stage) if per_stage else run.pipeline * run.virtual_stages
    if parts % run.pipeline or (run.virtual_stages == 1) != (parts == run.pipeline):
        found.refuse("parallelism.pipeline_parallel_layers_per_stage", f"makes {parts} parts of {run.pipeline} stages")
    run.virtual_stages = parts // run.pipeline
    sizes = [total // parts + (i < total % parts) for i in range(parts)]
    sizes[0] -= first
    sizes[-1] -= last
    if min(sizes) < 0:
        raise Refused(f"{run.layers} layers are too few for {parts} parts of a pipeline.")
    run.stage_layers = tuple(sizes)


def sharding(found, run, ranks):
    replicas = found.integer("parallelism.data_parallel_replicate_degree", 1)
    shards = found.integer("parallelism.data_parallel_shard_degree")
    model = run.tensor * run.pipeline * run.context_ranks
    if shards < 0 and ranks and ranks % (model * replicas) == 0:
        shards = ranks // (model * replicas)
        found.defaulted.pop("parallelism.data_parallel_shard_degree", None)
    if shards > 0:
        run.ranks = shards * replicas * model
    # Context ranks share the shards, so that one shard with context ranks is still sharding.
    run.zero_stage = 0 if shards == 1 and run.context_ranks == 1 else 3
    if replicas > 1 and shards > 1:
        run.shard_size = shards
    reshard = found.choice("parallelism.fsdp_reshard_after_forward", ("default", "always", "never"))
    # Stages keep gathered layers between the micro-batches.
    if run.zero_stage == 3 and (reshard == "never" or (run.pipeline > 1 and reshard == "default")):
        run.zero_stage = 2
    local = found.integer("training.local_batch_size")
    run.global_batch = max(0, found.integer("training.global_batch_size"))
    if run.global_batch:
        return
    found.defaulted["training.global_batch_size"] = "local_batch_size x data-parallel ranks"
    if shards > 0:
        run.global_batch = local * shards * replicas
    elif run.pipeline > 1:
        raise Refused(
            f"the batch is {local} sequences of each data-parallel rank, whose number the file leaves to the job. Give "
            f"--ranks with a multiple of {model * replicas}."
        )


def recomputation(found, run):
    mode = found.choice("activation_checkpoint.mode", ("none", "full", "selective"))
    run.recompute = mode
    if mode != "selective":
        return
    option = found.read("activation_checkpoint.selective_ac_option").lower()
    if option == "op":
        found.notes.append(
            "selective recomputation of operations counts as this program's selective, which also keeps the products"
        )
        return
    if not option.isdigit():
        found.refuse("activation_checkpoint.selective_ac_option", "must be 'op' or a number of layers")
    # Every n-th layer of a rank is recomputed there. This program recomputes as many layers, but the first ones.
    every, of_part = int(option), run.layers // (run.pipeline * run.virtual_stages)
    run.recompute = "full"
    if every > 1:
        run.recompute_layers = of_part // every
        run.recompute = "full" if run.recompute_layers else "none"
        found.notes.append(
            f"one of {every} layers recomputes there; here, the first {run.recompute_layers} of each part do"
        )
