# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM: the arguments of pretrain_gpt.py, from a shell script that starts it or from a YAML list of them."""

import re

from defaults import MEGATRON, MEGATRON_DEFAULTS, VOCABULARIES
from documents import read_yaml
from options import Option, Options, Refused
from run_file import Run, padded, recompute_as_megatron
from shell import UNKNOWN, Shell

PROGRAM = MEGATRON

# Arguments with a meaning that this program lacks.
REFUSED = """
num-experts expert-model-parallel-size moe-router-topk multi-latent-attention hybrid-override-pattern
hybrid-layer-pattern is-hybrid-model mtp-num-layers decoder-num-layers encoder-seq-length decoder-seq-length
vocab-extra-ids bert-no-binary-head use-bert retro apply-residual-connection-post-layernorm qk-layernorm qk-l2-norm
window-size squared-relu quick-geglu use-megatron-fsdp use-torch-fsdp2 use-custom-fsdp optimizer-cpu-offload
cpu-offloading cpu-offloading-num-layers position-embedding-scale heterogeneous-layers-config-path
heterogeneous-layers-config-encoded-json spec add-qkv-bias softmax-type decoder-first-pipeline-num-layers
decoder-last-pipeline-num-layers pipeline-model-parallel-layout account-for-embedding-in-pipeline-split
account-for-loss-in-pipeline-split fp4-format image hierarchical-context-parallel-sizes hybrid-context-parallel
tensor-model-parallel-size-2 standalone-embedding-stage experimental-attention-variant no-rope-freq
window-attn-skip-freq linear-attention-freq use-rope-scaling rotary-seq-len-interpolation-factor
fine-grained-activation-offloading distribute-saved-activations num-distributed-optimizer-instances
attention-output-gate moe-layer-freq use-mup sft perform-rl-step yaml-cfg use-checkpoint-args no-position-embedding
tensor-parallel-num-weight-shards
""".split()
NEUTRAL_VALUES = {
    "expert-model-parallel-size": ("1",),
    "num-distributed-optimizer-instances": ("1",),
    "softmax-type": ("vanilla",),
    "no-position-embedding": ("true", ""),
}

# Arguments that the forecast ignores although they change a step.
LEFT_OUT = {
    "rampup-batch-size": "the forecast is of the final batch",
    "step-batch-size-schedule": "the forecast is of the final batch",
    "fp16": "it counts as bfloat16, whose time is the same",
    "reset-attention-mask": "the forecast attends to whole sequences",
    "reset-position-ids": "the forecast attends to whole sequences",
    "dataloader-inter-document-masking": "the forecast attends to whole sequences",
    "attention-backend": "the profile has one kind of attention",
    "use-flash-attn": "the profile has one kind of attention",
    "transformer-impl": "the profile is of Transformer Engine",
    "grad-reduce-in-bf16": "the profile sends gradients as float32",
    "overlap-param-gather-with-optimizer-step": "gathers overlap with the forward pass only",
    "defer-embedding-wgrad-compute": "the head's weight gradient has its usual place",
    "delay-wgrad-compute": "weight gradients have their usual place",
    "use-precision-aware-optimizer": "optimizer states count as float32",
    "enable-cuda-graph": "the profile launches kernels singly",
    "external-cuda-graph": "the profile launches kernels singly",
    "cuda-graph-impl": "the profile launches kernels singly",
    "recompute-modules": "selective recomputation is of the attention core",
    "context-parallel-comm": "keys travel around a ring",
    "cp-comm-type": "keys travel around a ring",
    "use-sharp": "reductions in the network are not counted",
    "iterations-to-skip": "all steps are forecast",
    "overlap-p2p-communication": "transfers between stages overlap as in this program",
    "no-overlap-p2p-communication": "transfers between stages overlap as in this program",
    "overlap-p2p-communication-warmup-flush": "transfers between stages overlap as in this program",
    "microbatch-group-size-per-virtual-pipeline-stage": "the group is the number of stages",
    "microbatch-group-size-per-vp-stage": "the group is the number of stages",
    "gradient-accumulation-fusion": "the profile decides",
    "no-gradient-accumulation-fusion": "the profile decides",
}

# Beginnings of arguments that name files, record, check, initialise or schedule the learning rate.
NEUTRAL = """
log- save load eval- tensorboard wandb vocab-file merge-file tokenizer split distributed- dist-ckpt exit- num-workers
seed init-method no-load no-save node master rdzv mock-data timing train-data valid-data test-data data-path
data-cache-path data-args data-impl lr- start-weight end-weight weight-decay-incr override- use-checkpoint-opt adam-eps
no-masked-softmax no-bias- no-rope-fusion no-persist-layer-norm no-query-key attention-softmax-in-fp32
apply-layernorm-1p use-mcore use-legacy accumulate-allreduce cross-entropy calculate-per-token manual-gc empty-unused
decoupled no-async async- auto-detect ckpt dataloader no-mmap no-create tiktoken use-pytorch-profiler profile check-
no-check rerun deterministic te-rng ddp-average ddp-num-buckets ddp-pad loss-scale initial-loss min-loss hysteresis
inference num-floating no-ckpt kv-channels local-rank jobid use-cpu-initialization eod- create-attention
enable-one-logger no-one-logger one-logger max_restarts max-restarts standalone tp-comm- batch-p2p rotary-interleaved
apply-query-key masked-softmax DDP-impl nccl disable-straggler straggler trust-remote use-persistent max-tokens fim
mid-level barrier no-initialization no-use-tokenizer use-dist-ckpt ft- enable-ft calc-ft inprocess app-tag tee
non-persistent finetune pretrained-checkpoint disable-jit record-memory memory-snapshot align- no-align
train-sync test-mode legacy object-storage num-dataset-builder result-rejected error-injection config-logger
bf16-params enable-gloo disable-gloo use-gloo flight-recorder high-priority run-id role redirects local-addr skip-train
monitor-interval start-method module no-python full-validation no-data-sharding attention-dropout-rng
verify-integrity replication nvtx multiple-validation reuse-grad use-tp-pp-dp-mapping
check-weight-hash no-weight-decay-cond gpu-sniff decrease-batch use-ring-exchange lazy-mpu
""".split()
FP8 = "fp8"


def of_script(text, path):
    """(options of pretrain_gpt.py, the shell that evaluated the script, GPUs of the launcher or 0)."""
    shell = Shell(text, path, r"(^|[\s/\"'=])pretrain_\w+\.py")
    if not shell.commands:
        raise Refused(f"{path}: no command of the script starts pretrain_gpt.py. Give the script that starts it.")
    if len(shell.commands) > 1:
        lines = ", ".join(str(line) for line, _ in shell.commands)
        raise Refused(f"{path}: the script starts training {len(shell.commands)} times, in lines {lines}. Leave one.")
    line, words = shell.commands[0]
    at = next(i for i, word in enumerate(words) if re.search(r"(^|/)pretrain_\w+\.py$", word))
    script = words[at].rsplit("/", 1)[-1]
    if script != "pretrain_gpt.py":
        raise Refused(f"{path}:{line}: {script[:60]} is not supported: only pretrain_gpt.py is.")
    options, where = [], f"{path}:{line}"
    for word in words[at + 1 :]:
        takes_none = not options or isinstance(MEGATRON_DEFAULTS.get(options[-1].name), bool) or options[-1].value
        if word.startswith("--") and len(word) > 2:
            name, _, value = word[2:].partition("=")
            if UNKNOWN.search(name):
                raise Refused(f"{where}: the name of an option is not known: {shell.reason(name)[1]}.")
            options.append(Option(name, value, place(text, path, name, line)))
        elif UNKNOWN.fullmatch(word) and takes_none:
            if shell.reason(word)[0] == "condition":
                raise Refused(f"{where}: options of pretrain_gpt.py are not known: {shell.reason(word)[1]}.")
            shell.skipped.append((line, f"words are left out: {shell.reason(word)[1]}"))
        elif options:
            options[-1].value = f"{options[-1].value} {word}".strip()
    return options, shell, ranks_of(words[:at])


def ranks_of(words):
    """The GPUs that torchrun, srun or mpirun start; 0 if the words do not name the number."""
    found = {}
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not equals:
            short = re.fullmatch(r"(-[nN])(\d+)", word)  # srun -n8
            name, value = short.groups() if short else (word, words[i + 1] if i + 1 < len(words) else "")
        found[name.replace("_", "-")] = int(value) if value.isdigit() else 0
    if "--nproc-per-node" in found:
        return found.get("--nnodes", 1) * found["--nproc-per-node"]
    for name in ("-np", "-n", "--ntasks"):
        if name in found:
            return found[name]
    return found.get("--nodes", found.get("-N", 0)) * found.get("--ntasks-per-node", 0)


def place(text, path, name, line):
    """The line that writes an option, for messages, or else the line of the command."""
    found = re.search(rf"--{re.escape(name)}(?![-\w])", text)
    return f"{path}:{text.count(chr(10), 0, found.start()) + 1 if found else line}"


def of_yaml(text, path):
    """The arguments of a functional test."""
    options = []
    for name, value, line in read_yaml(text, path):
        found = re.fullmatch(r"(?:.*\.)?--([\w-]+)(?:\.\d+)?", name)
        if not found or re.match(r"(ENV_VARS|METRICS|BEFORE_SCRIPT|AFTER_SCRIPT)\b", name):
            continue
        unknown = re.search(r"\$\{?\w+", value)
        options.append(Option(found[1], value, f"{path}:{line}"))
        if unknown:
            options[-1].value = value
    if not options:
        raise Refused(f"{path}: the file has no arguments of pretrain_gpt.py, such as '--num-layers: 12'.")
    return options


def read(text, path, ranks):
    shell, started = None, 0
    if path.endswith((".yaml", ".yml")) or re.search(r"^\s*--[\w-]+:(\s|$)", text, re.M):
        options = of_yaml(text, path)
        reason = lambda value: f"{value} is not set in the file" if "$" in value else None  # noqa: E731
    else:
        options, shell, started = of_script(text, path)
        reason = lambda value: (shell.reason(value) or (0, None))[1]  # noqa: E731
    found = Options(options, MEGATRON_DEFAULTS, "--", reason)
    if shell:
        found.notes += [f"{path}:{line}: {sentence}" for line, sentence in shell.skipped]
        found.notes += [
            f"{name} is not set in the file, which then takes '{shell.shown(value)}'"
            for name, value in shell.defaults.items()
            if value and not name.isdigit()
        ]
    return run_of(found, ranks, started), found


def run_of(found, ranks, started):
    for name in REFUSED:
        found.refuse_if_on(name, neutral=NEUTRAL_VALUES.get(name, ()))
    layers = found.integer("num-layers", 1) or found.integer("encoder-num-layers", 1) or found.needed("num-layers")
    width, heads = found.needed("hidden-size"), found.needed("num-attention-heads")
    sequence = found.needed("seq-length")
    micro_batch = found.needed("micro-batch-size")
    run = Run(layers, width, heads, sequence, micro_batch)
    run.context = found.integer("max-position-embeddings", 1) or sequence
    channels = found.integer("kv-channels")
    if channels and channels * heads != width:
        found.refuse("kv-channels", f"must be hidden-size / num-attention-heads = {width / heads:g}")
    model(found, run)
    layout(found, run)
    run.ranks = started
    batches(found, run, ranks)
    found.choice("optimizer", ("adam",))
    run.learning_rate = found.real("lr") or 0.0
    run.min_learning_rate = found.real("min-lr")
    run.weight_decay = found.real("weight-decay")
    run.grad_clip = found.real("clip-grad")
    run.beta1, run.beta2 = found.real("adam-beta1"), found.real("adam-beta2")
    fp8 = found.find("fp8-format") or found.find("fp8-hybrid") or found.find("fp8-e4m3")
    run.software = "megatron+fp8" if fp8 else "megatron"
    for name, why in LEFT_OUT.items():
        found.leave(name, why)
    found.require_known(lambda name: name.startswith(tuple(NEUTRAL)) or (fp8 and name.startswith(FP8)))
    return run


def model(found, run):
    grouped, groups = found.flag("group-query-attention"), found.integer("num-query-groups", 1)
    swiglu, normalization = found.flag("swiglu"), found.choice("normalization", ("layernorm", "rmsnorm"))
    rope = found.flag("use-rotary-position-embeddings")
    positions = found.choice("position-embedding-type", ("learned_absolute", "rope"))
    rope = rope or positions == "rope"
    plain, rms = found.flag("disable-bias-linear"), normalization == "rmsnorm"
    run.llama = swiglu or rms or rope
    if run.llama:
        if not swiglu:
            found.refuse("swiglu", "is needed with RMSNorm or rotary positions: other units are not supported")
        if not rms:
            found.refuse("normalization", "must be RMSNorm with swiglu or rotary positions")
        if not rope:
            found.refuse("position-embedding-type", "must be rope with swiglu or RMSNorm")
        if not plain:
            found.refuse("disable-bias-linear", "is needed with swiglu: biases are not supported there")
        if found.real("rotary-percent") != 1:
            found.refuse("rotary-percent", "must be 1.0")
        run.kv_heads = groups if grouped else run.heads
        run.rope_theta = found.real("rotary-base")
    elif grouped and groups != run.heads:
        found.refuse("group-query-attention", "is supported with RMSNorm, rope and swiglu only")
    else:
        found.ignore("rotary-", "positions are learned")
        if plain:
            found.leave("disable-bias-linear", "the model of the forecast has biases")
    ffn = found.integer("ffn-hidden-size", 1)
    run.ffn_width = ffn or (int(4 * run.width * 2 / 3 / 64) * 64 if swiglu else 4 * run.width)
    if not ffn:
        found.defaulted["ffn-hidden-size"] = run.ffn_width
    run.tied = not found.flag("untie-embeddings-and-output-weights")
    run.norm_eps = found.real("norm-epsilon")
    run.hidden_dropout, run.attention_dropout = found.real("hidden-dropout"), found.real("attention-dropout")


def vocabulary(found, run, name, multiple):
    """The padded vocabulary of a size that the file gives, or of a tokenizer whose size is known."""
    size = found.integer(name, 1)
    if size:
        return padded(size, multiple)
    tokenizer = found.find("tokenizer-type")
    known = VOCABULARIES.get(tokenizer.value.lower()) if tokenizer else None
    if known:
        run.notes.append(f"{tokenizer.value} has {known} tokens, padded to {padded(known, multiple)}")
    return padded(known, multiple) if known else 0


def layout(found, run):
    run.tensor = found.integer("model-parallel-size", 1) or found.integer("tensor-model-parallel-size", 1)
    run.pipeline = found.integer("pipeline-model-parallel-size", 1)
    run.context_ranks = found.integer("context-parallel-size", 1)
    multiple = found.integer("make-vocab-size-divisible-by", 1) * run.tensor
    run.vocab = found.integer("padded-vocab-size", 1) or vocabulary(found, run, "vocab-size", multiple)
    run.sequence_parallel = found.flag("sequence-parallel")
    per_stage = found.integer("num-layers-per-virtual-pipeline-stage", 1)
    chunks = found.integer("num-virtual-stages-per-pipeline-rank", 1)
    if per_stage and run.pipeline > 1:
        run.virtual_stages = max(1, run.layers // (run.pipeline * per_stage))
    run.virtual_stages = chunks or run.virtual_stages
    run.zero_stage = int(found.flag("use-distributed-optimizer"))
    run.overlaps_gradients = found.flag("overlap-grad-reduce")
    run.overlaps_gathers = found.flag("overlap-param-gather")
    run.overlaps_tensor = found.flag("tp-comm-overlap")
    run.bucket_bytes = 4 * (found.integer("ddp-bucket-size", 1) or 0)
    old_method = found.read("activations-checkpoint-method")
    everything = old_method or found.flag("checkpoint-activations")
    selective = found.flag("recompute-activations")
    granularity = found.choice("recompute-granularity", ("full", "selective")) or ("full" if everything else None)
    layers = found.integer("recompute-num-layers", 0)
    recompute_as_megatron(
        run,
        "selective" if selective else granularity,
        found.choice("recompute-method", ("uniform", "block")) or old_method,
        found.integer("activations-checkpoint-num-layers", 0) if layers is None else layers,
    )


def batches(found, run, ranks):
    run.bf16 = found.flag("bf16") or found.flag("fp16")
    run.global_batch = found.integer("global-batch-size", 1) or 0
    if not run.global_batch:
        run.global_batch = run.micro_batch * run.replicas(ranks or run.ranks)
        found.defaulted["global-batch-size"] = run.global_batch or "micro-batch-size x data-parallel ranks"
    run.steps = found.integer("train-iters", 1) or 0
    samples = found.integer("train-samples", 1)
    if not run.steps and samples and run.global_batch:
        run.steps = max(1, samples // run.global_batch)
