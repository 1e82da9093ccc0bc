#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/hf_configs_4.json or hf_configs_5.json: config.json files of Hugging Face transformers.

One row per class and set of values: what the library saves, the window of every layer of its model, and the layers that
have experts. Needs: pip install transformers (4 or 5, which names the file); run it again only for other classes or
values:

    tests/golden/make_golden_configs.py tests/golden
"""
import json
import pathlib
import sys

import transformers as hf

LAYERS = 5
SIZES = dict(
    vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=LAYERS, num_attention_heads=4,
    num_key_value_heads=2, head_dim=4, max_position_embeddings=32, bos_token_id=1, eos_token_id=2)
ROPE = dict(
    rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"]
IS_5 = hf.__version__.startswith("5")


def rope(**more):
    return {"rope_parameters": dict(rope_theta=500.0, **more)} if IS_5 else {
        "rope_theta": 500.0, "rope_scaling": more or None}


CASES = [
    (hf.GPT2Config, dict(n_embd=16, n_layer=LAYERS, n_head=4, n_positions=32, vocab_size=40)),
    (hf.LlamaConfig, SIZES | rope(**ROPE)),
    (hf.LlamaConfig, SIZES),
    (hf.MistralConfig, SIZES),
    (hf.MistralConfig, SIZES | {"sliding_window": 8}),
    (hf.MistralConfig, SIZES | {"sliding_window": None}),
    (hf.Qwen2Config, SIZES),
    (hf.Qwen2Config, SIZES | {"sliding_window": 8}),
    (hf.Qwen2Config, SIZES | {"sliding_window": 8, "use_sliding_window": True}),
    (hf.Qwen2Config, SIZES | {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}),
    (hf.Qwen2Config, SIZES | {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0}),
    (hf.Qwen3Config, SIZES | {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}),
    (hf.Qwen3Config, SIZES | {"sliding_window": 8, "use_sliding_window": True, "layer_types": MIXED}),
    (hf.Qwen3Config, SIZES | {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 0}),
    (hf.Qwen3Config, SIZES | {"layer_types": ["full_attention"] * LAYERS}),
]
if hasattr(hf, "MinistralConfig"):
    CASES += [(hf.MinistralConfig, SIZES | {"sliding_window": 8, "layer_types": MIXED}),
              (hf.MinistralConfig, SIZES | {"sliding_window": 8})]
# head_dim belongs to no class of Mixtral in version 4, and Qwen3-MoE has it from its files only.
EXPERTS = SIZES | {"num_experts_per_tok": 3, "router_aux_loss_coef": 0.25, "output_router_logits": True}
CASES += [
    (hf.MixtralConfig, {name: size for name, size in SIZES.items() if name != "head_dim"}),
    (hf.MixtralConfig, EXPERTS | {"num_local_experts": 6, "sliding_window": 8}),
    (hf.Qwen3MoeConfig, {name: size for name, size in SIZES.items() if name != "head_dim"}),
    (hf.Qwen3MoeConfig, EXPERTS | {
        "num_experts": 6, "moe_intermediate_size": 20, "norm_topk_prob": True, "mlp_only_layers": [3],
        "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}),
]


def experts(config):
    """The layers with experts, by the classes of the models."""
    if config.model_type == "mixtral":
        return list(range(LAYERS))
    if config.model_type != "qwen3_moe":
        return []
    step = config.decoder_sparse_step
    return [layer for layer in range(LAYERS) if layer not in config.mlp_only_layers and (layer + 1) % step == 0]


def windows(config):
    """By the classes of the models: Mistral has no types of layers."""
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * LAYERS
    return [window if window and kind == "sliding_attention" else 0 for kind in types]


def main(folder):
    rows = []
    for make, values in CASES:
        config = make(**values)
        row = {"config": json.loads(config.to_json_string(use_diff=False)), "windows": windows(config)}
        if experts(config):
            row["experts"] = experts(config)
        rows.append(row)
    made = {"made_with": f"tests/golden/make_golden_configs.py, transformers {hf.__version__}", "rows": rows}
    path = folder / f"hf_configs_{hf.__version__.split('.')[0]}.json"
    path.write_text(json.dumps(made, indent=1) + "\n")
    print(path, len(rows), "rows,", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden"))
