# SPDX-License-Identifier: Apache-2.0
"""NeMo: the training configurations in YAML of its versions 1 and 2.0, with OmegaConf's references evaluated."""

import re

from defaults import NEMO, NEMO_DEFAULTS, VOCABULARIES
from documents import read_yaml
from options import Option, Options, Refused
from run_file import Run, padded, recompute_as_megatron

PROGRAM = NEMO

REFUSED = """
num_moe_experts moe_router_topk expert_model_parallel_size bert_binary_head retro mm_cfg window_size cpu_offloading fsdp
num_decoder_layers transfer qkv_bias unet_config vision seq_len_interpolation_factor rotary_interleaved
apply_embedding_scaling hyena name_of_spec spec_name headscale
""".split()
LEFT_OUT = {
    "model.rampup_batch_size": "the forecast is of the final batch",
    "model.data.reset_attention_mask": "the forecast attends to whole sequences",
    "model.data.reset_position_ids": "the forecast attends to whole sequences",
    "model.scale_positional_embedding": "positions are not scaled, which takes the same time",
    "model.enable_cuda_graph": "the profile launches kernels singly",
    "model.use_flash_attention": "the profile has one kind of attention",
    "model.sharp": "reductions in the network are not counted",
    "model.overlap_p2p_comm": "transfers between stages overlap as in this program",
    "model.defer_embedding_wgrad_compute": "the head's weight gradient has its usual place",
    "model.optim.grad_sync_dtype": "the profile sends gradients as float32",
    "model.activations_checkpoint_layers_per_pipeline": "all stages recompute alike",
    "model.num_micro_batches_with_partial_activation_checkpoints": "all micro-batches recompute alike",
}
NEUTRAL = """
defaults hydra run name restore_from exp_manager trainer.accelerator trainer.strategy trainer.logger
trainer.enable_checkpointing trainer.use_distributed_sampler trainer.replace_sampler_ddp trainer.max_epochs
trainer.max_time trainer.log_every_n_steps trainer.val_check_interval trainer.limit_ trainer.benchmark
trainer.enable_model_summary trainer.enable_progress_bar trainer.check_val_every_n_epoch trainer.num_sanity_val_steps
trainer.resume_from_checkpoint trainer.enable_ trainer.profiler trainer.callbacks trainer.plugins trainer.sync_batchnorm
trainer.detect_anomaly trainer.deterministic trainer.default_root_dir trainer.fast_dev_run
trainer.gradient_clip_algorithm
model.tokenizer model.data model.optim.sched model.optim.eps model.optim.contiguous_ model.optim.align_
model.optim.dtype model.optim.param_sync_dtype model.optim.distribute_within_nodes model.optim.ddp_bucket_size
model.nsys_profile model.init_method model.use_scaled_init model.embedding_dropout model.apply_query_key
model.do_layer_norm model.pre_process model.post_process model.persist_layer_norm model.transformer_block_type
model.openai_gelu model.normalize_attention model.apply_rope_fusion model.cross_entropy model.attention_type
model.native_amp model.hysteresis model.fp32_residual model.fp16_lm model.megatron_amp model.grad_ model.gradient_
model.bias_ model.masked_softmax model.seed model.resume model.use_cpu model.onnx model.apex model.sync_batch
model.deterministic model.transformer_engine model.fp8_ model.gc_interval model.mcore_gpt model.use_emha model.batch_p2p
model.ub_tp_comm_overlap_cfg model.name model.precision model.enable_megatron model.tp_only_amax model.reduce_amax
model.load_ model.account_for model.nccl_communicator model.dist_ckpt model.async model.fsdp_ model.memory_profile
model.validation model.delay_param model.use_te_rng model.use_mcore_rng model.inference model.target
model.cpu_offloading_ base_results_dir training cluster s3_checkpointing env_vars model.get_attention_mask
model.wgrad_deferral model.megatron_timer
""".split()
REFERENCE = re.compile(r"\$\{([^${}]*)\}")


class References:
    """OmegaConf's ${.sibling}, ${..uncle}, ${a.b} and the resolvers of NeMo's launcher."""

    def __init__(self, rows):
        self.values = {name: value for name, value, _ in rows}

    def replaced(self, text, name, depth=0):
        while depth < 20 and (found := REFERENCE.search(text)):
            value = self.value(found[1].strip(), name, depth)
            if value is None:
                return text
            text, depth = text[: found.start()] + value + text[found.end() :], depth + 1
        return text

    def value(self, inner, name, depth):
        resolver = re.fullmatch(r"(multiply|divide_ceil|divide_floor|add|subtract)\s*:(.*)", inner, re.S)
        if resolver:
            try:
                a, b = (float(part) for part in resolver[2].split(","))
                result = {
                    "multiply": lambda: a * b,
                    "divide_ceil": lambda: -(-a // b),
                    "divide_floor": lambda: a // b,
                    "add": lambda: a + b,
                    "subtract": lambda: a - b,
                }[resolver[1]]()
            except (ValueError, ZeroDivisionError):
                return None
            return f"{result:.0f}" if result == int(result) else repr(result)
        if env := re.fullmatch(r"oc\.env:\s*\w+\s*,(.*)", inner, re.S):
            return env[1].strip()
        key = inner
        if key.startswith("."):
            up = len(key) - len(key.lstrip("."))
            parts = name.split(".")[:-up]
            key = ".".join([*parts, key[up:]])
        key = key.removeprefix("training.")
        if key not in self.values:
            return None
        return self.replaced(self.values[key], key, depth + 1)


def read(text, path, ranks):
    rows = read_yaml(text, path)
    references = References(rows)
    options = [Option(name, references.replaced(value, name), f"{path}:{line}") for name, value, line in rows]
    # Some files hold the whole configuration below "training".
    if not any(option.name.startswith("model.") for option in options):
        for option in options:
            option.name = option.name.removeprefix("training.")
    if not any(option.name.startswith("model.") for option in options):
        raise Refused(f"{path}: the file has no part 'model', so it is no training configuration of NeMo 1 or 2.0.")
    found = Options(
        options, NEMO_DEFAULTS, reason=lambda value: f"{value} is not in the file" if "${" in value else None
    )
    return run_of(found, ranks), found


def run_of(found, ranks):
    for option in found.options.values():
        if option.name.startswith(("model.encoder.", "model.decoder.")):
            found.refuse(option.name, "belongs to a model with an encoder, which is not supported")
    if "model.bert_binary_head" in found.options:
        found.refuse("model.bert_binary_head", "belongs to BERT, which is not supported")
    for name in REFUSED:
        found.refuse_if_on(f"model.{name}", neutral=("1", "1.0"))
    if "model.encoder_seq_length" not in found.options and found.find("model.seq_length"):
        found.options["model.encoder_seq_length"] = found.options["model.seq_length"]
    run = Run(
        found.needed("model.num_layers"),
        found.needed("model.hidden_size"),
        found.needed("model.num_attention_heads"),
        found.integer("model.encoder_seq_length", 1),
        found.needed("model.micro_batch_size"),
    )
    run.context = found.integer("model.max_position_embeddings", 1) or run.sequence
    channels = found.integer("model.kv_channels")
    if channels and channels * run.heads != run.width:
        found.refuse("model.kv_channels", f"must be hidden_size / num_attention_heads = {run.width / run.heads:g}")
    model(found, run)
    optimizer(found, run)
    nodes, devices = found.integer("trainer.num_nodes", 1), found.find("trainer.devices")
    if devices and devices.value.isdigit():
        run.ranks = nodes * found.integer("trainer.devices", 1)
    run.global_batch = found.needed("model.global_batch_size")
    if found.integer("trainer.accumulate_grad_batches", 1) != 1:
        found.refuse("trainer.accumulate_grad_batches", "must be 1: NeMo accumulates to model.global_batch_size")
    steps = found.integer("trainer.max_steps")
    run.steps = steps if steps and steps > 0 else 0
    precision = found.choice(
        "trainer.precision", ("bf16", "bf16-mixed", "bf16-true", "16", "16-mixed", "16-true", "32", "32-true")
    )
    run.bf16 = not precision.startswith("32")
    if precision.startswith("16"):
        found.notes.append(f"trainer.precision = {precision} counts as bfloat16, whose time is the same")
    run.software = "megatron+fp8" if found.flag("model.fp8") else "megatron"
    for name, why in LEFT_OUT.items():
        found.leave(name, why)
    found.require_known(lambda name: name.startswith(tuple(NEUTRAL)))
    return run


def model(found, run):
    activation = found.choice("model.activation", ("gelu", "swiglu", "fast-swiglu"))
    norm = found.choice("model.normalization", ("layernorm", "layernorm1p", "rmsnorm"))
    positions = found.choice("model.position_embedding_type", ("learned_absolute", "rope"))
    swiglu, rms, rope = activation != "gelu", norm == "rmsnorm", positions == "rope"
    bias, groups = found.flag("model.bias"), found.integer("model.num_query_groups", 1) or run.heads
    run.llama = swiglu or rms or rope
    if run.llama:
        if not swiglu:
            found.refuse("model.activation", "must be swiglu with rmsnorm or rope")
        if not rms:
            found.refuse("model.normalization", "must be rmsnorm with swiglu or rope")
        if not rope:
            found.refuse("model.position_embedding_type", "must be rope with swiglu or rmsnorm")
        if bias:
            found.refuse("model.bias", "must be false with swiglu")
        if found.real("model.rotary_percentage") != 1:
            found.refuse("model.rotary_percentage", "must be 1.0")
        run.kv_heads, run.rope_theta = groups, found.real("model.rotary_base")
    elif groups != run.heads:
        found.refuse("model.num_query_groups", "is supported with rmsnorm, rope and swiglu only")
    else:
        found.ignore("model.rotary_", "positions are learned")
        if not bias:
            found.notes.append("model.bias = false is left out: the model of the forecast has biases")
    run.ffn_width = found.integer("model.ffn_hidden_size", 1) or 4 * run.width
    if not found.find("model.ffn_hidden_size"):
        found.defaulted["model.ffn_hidden_size"] = run.ffn_width
    run.tensor = found.integer("model.tensor_model_parallel_size", 1)
    run.pipeline = found.integer("model.pipeline_model_parallel_size", 1)
    run.context_ranks = found.integer("model.context_parallel_size", 1)
    run.virtual_stages = found.integer("model.virtual_pipeline_model_parallel_size", 1) or 1
    multiple = found.integer("model.make_vocab_size_divisible_by", 1) * run.tensor
    run.vocab = found.integer("model.override_vocab_size", 1) or 0
    for name in ("model.tokenizer.type", "model.tokenizer.model"):
        tokenizer = found.find(name)
        known = VOCABULARIES.get(tokenizer.value.lower()) if tokenizer and not run.vocab else None
        if known:
            run.vocab = padded(known, multiple)
            run.notes.append(f"{tokenizer.value} has {known} tokens, padded to {run.vocab}")
    run.tied = found.flag("model.share_embeddings_and_output_weights")
    run.norm_eps = found.real("model.layernorm_epsilon")
    run.sequence_parallel = found.flag("model.sequence_parallel")
    run.overlaps_tensor = found.flag("model.ub_tp_comm_overlap")
    recompute_as_megatron(
        run,
        found.choice("model.activations_checkpoint_granularity", ("full", "selective")),
        found.choice("model.activations_checkpoint_method", ("uniform", "block")),
        found.integer("model.activations_checkpoint_num_layers", 0) or 0,
    )
    run.hidden_dropout, run.attention_dropout = (
        found.real("model.hidden_dropout"),
        found.real("model.attention_dropout"),
    )
    if found.real("model.ffn_dropout") != 0:
        found.refuse("model.ffn_dropout", "must be 0")


def optimizer(found, run):
    name = found.choice(
        "model.optim.name",
        ("fused_adam", "adam", "adamw", "megatron_fused_adam", "distributed_fused_adam", "mcore_distributed_optim"),
    )
    run.zero_stage = int(name in ("distributed_fused_adam", "mcore_distributed_optim"))
    apex = name == "distributed_fused_adam"
    run.overlaps_gradients = found.flag("model.optim.overlap_grad_sync")
    if not found.find("model.optim.overlap_grad_sync"):
        run.overlaps_gradients = found.defaulted["model.optim.overlap_grad_sync"] = apex
    run.overlaps_gathers = found.flag("model.optim.overlap_param_sync")
    bucket = found.integer("model.optim.bucket_cap_mb", 0) or (100 if apex else 0)
    if apex and not found.find("model.optim.bucket_cap_mb"):
        found.defaulted["model.optim.bucket_cap_mb"] = 100
    run.bucket_bytes = bucket << 20
    run.learning_rate = found.real("model.optim.lr") or 0.0
    run.min_learning_rate = found.real("model.optim.sched.min_lr")
    run.weight_decay = found.real("model.optim.weight_decay")
    run.grad_clip = found.real("trainer.gradient_clip_val") or 0.0
    run.beta1, run.beta2 = found.real("model.optim.betas.0"), found.real("model.optim.betas.1")
