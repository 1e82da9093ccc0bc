#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/hf_*.{json,bin}: the results of Hugging Face transformers for a tiny model of every family.

Initial weights, ids, logits, loss, every gradient and the weights after 20 AdamW steps, in the form of make_golden.py.
The models run in float64; transformers computes norms and rotations of some families in float32. Needs: pip install
torch transformers; run it again only to change the models, some of them by name:

    tests/golden/make_golden_families.py tests/golden [hf_qwen3 ...]
"""
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
import transformers as hf  # noqa: E402

import make_golden as golden  # noqa: E402

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = dict(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)


class Model:
    """A family by its config class; `more`: what the test needs beside the sizes."""

    def __init__(self, name, make, tied=False, kv_heads=2, head_dim=0, more=None, family=None, **config):
        self.name, self.family, self.heads, self.kv_heads, self.ffn = f"hf_{name}", family or name, 4, kv_heads, 24
        self.tied = tied
        self.more = {"head_dim": head_dim} | (more or {})
        sizes = dict(
            vocab_size=golden.VOCAB, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=1,
            attn_implementation="eager")
        if name == "gpt2":
            self.ffn = 4 * golden.WIDTH
            sizes |= dict(
                n_positions=golden.TOKENS, n_embd=golden.WIDTH, n_layer=golden.LAYERS, n_head=self.heads, n_inner=self.ffn,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        else:
            sizes |= dict(
                hidden_size=golden.WIDTH, intermediate_size=self.ffn, num_hidden_layers=golden.LAYERS,
                num_attention_heads=self.heads, num_key_value_heads=kv_heads, head_dim=head_dim or golden.WIDTH // self.heads,
                max_position_embeddings=golden.TOKENS, rms_norm_eps=1e-5, rope_parameters=ROPE)
        self.model = make(make.config_class(**(sizes | config))).double().train()

    def is_transposed(self, name):  # Conv1D
        return self.family == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))

    def shapes(self):
        return {
            name: tuple(reversed(value.shape)) if self.is_transposed(name) else tuple(value.shape)
            for name, value in self.model.named_parameters()}

    def logits(self, weights, ids):
        own = {name: value.T if self.is_transposed(name) else value for name, value in weights.items()}
        return torch.func.functional_call(self.model, own, (ids,)).logits


def main(folder):
    models = (
        Model("gpt2", hf.GPT2LMHeadModel, tied=True, kv_heads=4),
        Model(
            "llama", hf.LlamaForCausalLM, tied=True, rope_parameters=ROPE | LLAMA3 | {"rope_type": "llama3"},
            more={"rope_scaling": [4, 1, 4, 16]}),
        Model("mistral", hf.MistralForCausalLM, head_dim=6, sliding_window=3, more={"sliding_window": 3}),
        Model("qwen2", hf.Qwen2ForCausalLM),
        Model("qwen3", hf.Qwen3ForCausalLM, head_dim=6, tied=True),
        *(Model(f"{family}_windows", make, family=family, sliding_window=3, layer_types=[
            "sliding_attention" if layer in layers else "full_attention" for layer in range(golden.LAYERS)
        ], more={"sliding_window": 3, "window_layers": layers}, **config) for family, make, layers, config in (
            ("mistral", hf.MinistralForCausalLM, [0], {}),
            ("qwen2", hf.Qwen2ForCausalLM, [1], {"use_sliding_window": True}),
            ("qwen3", hf.Qwen3ForCausalLM, [0], {"use_sliding_window": True}))),
    )
    wanted = sys.argv[2:] or [model.name for model in models]
    models = [model for model in models if model.name in wanted]
    golden.write(folder, models, f"tests/golden/make_golden_families.py, transformers {hf.__version__}", steps=20)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden"))
