# SPDX-License-Identifier: Apache-2.0
"""The defaults of other programs for options that a file leaves out. None: the program requires the option or derives
it.

Each table names its program and version, and each part names the file of that program with the values.
"""

MEGATRON = "Megatron-LM 0.20.0 (commit d98e8a64)"
# megatron/training/arguments.py; sizes and layouts megatron/core/transformer/transformer_config.py and
# megatron/core/model_parallel_config.py; batches, steps and tokenizers megatron/training/config/training_config.py
MEGATRON_DEFAULTS = {
    "num-layers": None,
    "encoder-num-layers": None,
    "hidden-size": None,
    "num-attention-heads": None,
    "seq-length": None,
    "max-position-embeddings": None,
    "ffn-hidden-size": None,  # 4 x hidden-size; with swiglu int(hidden-size x 8 / 3 / 64) x 64
    "kv-channels": None,  # hidden-size / num-attention-heads
    "group-query-attention": False,
    "num-query-groups": 1,
    "swiglu": False,
    "normalization": "LayerNorm",
    "position-embedding-type": "learned_absolute",
    "use-rotary-position-embeddings": False,
    "disable-bias-linear": False,
    "untie-embeddings-and-output-weights": False,
    "rotary-base": 10000,
    "rotary-percent": 1.0,
    "norm-epsilon": 1e-5,
    "vocab-size": None,
    "padded-vocab-size": None,
    "make-vocab-size-divisible-by": 128,
    "micro-batch-size": None,
    "global-batch-size": None,  # micro-batch-size x data-parallel ranks
    "train-iters": None,
    "train-samples": None,
    "tensor-model-parallel-size": 1,
    "pipeline-model-parallel-size": 1,
    "context-parallel-size": 1,
    "sequence-parallel": False,
    "num-layers-per-virtual-pipeline-stage": None,
    "num-virtual-stages-per-pipeline-rank": None,
    "use-distributed-optimizer": False,
    "overlap-grad-reduce": False,
    "overlap-param-gather": False,
    "tp-comm-overlap": False,
    "ddp-bucket-size": None,
    "recompute-activations": False,
    "recompute-granularity": None,
    "recompute-method": None,
    "recompute-num-layers": None,
    "hidden-dropout": 0.1,
    "attention-dropout": 0.1,
    "bf16": False,
    "fp16": False,
    "lr": None,
    "min-lr": 0.0,
    "weight-decay": 0.01,
    "clip-grad": 1.0,
    "adam-beta1": 0.9,
    "adam-beta2": 0.999,
    "optimizer": "adam",
    "tokenizer-type": None,
    # of versions before 0.5:
    "checkpoint-activations": False,
    "activations-checkpoint-method": None,
    "activations-checkpoint-num-layers": 1,
    "model-parallel-size": None,
}

NEMO = "NeMo 2.0.0 (its configurations in YAML)"
# nemo/collections/nlp/models/language_modeling/megatron_gpt_model.py and megatron_base_model.py; dropout from
# Megatron-Core; trainer.* from PyTorch Lightning 2.2; model.optim.* from nemo/core/config/optimizers.py and Apex
NEMO_DEFAULTS = {
    "model.num_layers": None,
    "model.hidden_size": None,
    "model.num_attention_heads": None,
    "model.num_query_groups": None,  # num_attention_heads
    "model.ffn_hidden_size": None,  # 4 x hidden_size
    "model.kv_channels": None,
    "model.encoder_seq_length": 512,
    "model.max_position_embeddings": None,
    "model.activation": "gelu",
    "model.normalization": "layernorm",
    "model.position_embedding_type": "learned_absolute",
    "model.rotary_percentage": 1.0,
    "model.rotary_base": 10000,
    "model.bias": True,
    "model.share_embeddings_and_output_weights": True,
    "model.layernorm_epsilon": 1e-5,
    "model.override_vocab_size": None,
    "model.make_vocab_size_divisible_by": 128,
    "model.micro_batch_size": None,
    "model.global_batch_size": None,
    "model.tensor_model_parallel_size": 1,
    "model.pipeline_model_parallel_size": 1,
    "model.context_parallel_size": 1,
    "model.virtual_pipeline_model_parallel_size": None,
    "model.sequence_parallel": False,
    "model.ub_tp_comm_overlap": False,
    "model.activations_checkpoint_granularity": None,
    "model.activations_checkpoint_method": None,
    "model.activations_checkpoint_num_layers": 1,
    "model.hidden_dropout": 0.1,
    "model.attention_dropout": 0.1,
    "model.ffn_dropout": 0.0,
    "model.fp8": False,
    "model.optim.name": "fused_adam",
    "model.optim.lr": None,
    "model.optim.sched.min_lr": 0.0,
    "model.optim.weight_decay": 0.0,
    "model.optim.betas.0": 0.9,
    "model.optim.betas.1": 0.999,
    "model.optim.overlap_grad_sync": None,  # true with distributed_fused_adam, false with mcore_distributed_optim
    "model.optim.overlap_param_sync": False,
    "model.optim.bucket_cap_mb": None,  # 100 with distributed_fused_adam
    "trainer.num_nodes": 1,
    "trainer.devices": None,
    "trainer.precision": "32-true",
    "trainer.max_steps": None,
    "trainer.gradient_clip_val": None,  # no clipping
    "trainer.accumulate_grad_batches": 1,
}

TORCHTITAN = "torchtitan 0.2.2 (the last with TOML)"
# torchtitan/config/job_config.py
TORCHTITAN_DEFAULTS = {
    "model.name": "llama3",
    "model.flavor": "debugmodel",
    "training.local_batch_size": 8,
    "training.global_batch_size": -1,  # local_batch_size x data-parallel ranks
    "training.seq_len": 2048,
    "training.steps": 10000,
    "training.max_norm": 1.0,
    "training.enable_cpu_offload": False,
    "training.dtype": "float32",
    "training.mixed_precision_param": "bfloat16",
    "optimizer.name": "AdamW",
    "optimizer.lr": 8e-4,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.95,
    "optimizer.weight_decay": 0.1,
    "lr_scheduler.min_lr_factor": 0.0,
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,  # the ranks that are left
    "parallelism.fsdp_reshard_after_forward": "default",
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.enable_async_tensor_parallel": False,
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.pipeline_parallel_microbatch_size": 1,
    "parallelism.pipeline_parallel_layers_per_stage": None,
    "parallelism.pipeline_parallel_first_stage_less_layers": 1,
    "parallelism.pipeline_parallel_last_stage_less_layers": 1,
    "parallelism.context_parallel_degree": 1,
    "activation_checkpoint.mode": "selective",
    "activation_checkpoint.selective_ac_option": "2",
    "float8.enable_float8_linear": False,
}

# The entries of vocabularies by the name of the tokenizer in a file.
VOCABULARIES = {"gpt2bpetokenizer": 50257, "gpt2": 50257}
