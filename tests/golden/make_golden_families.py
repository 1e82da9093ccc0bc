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

    def __init__(self, name, make, tied=False, kv_heads=2, head_dim=0, ffn=24, more=None, family=None, **config):
        self.name, self.family, self.heads, self.kv_heads, self.ffn = f"hf_{name}", family or name, 4, kv_heads, ffn
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

    def of_experts(self, name):
        """The parameters of a folder that are one tensor of the model's memory: names and slices, or none."""
        prefix, part = name.rpartition(".experts.")[0], name.rpartition(".")[2]
        if part not in ("gate_up_proj", "down_proj"):
            return None
        mixtral = self.family == "mixtral"
        prefix = prefix.replace(".mlp", ".block_sparse_moe") if mixtral else prefix
        words = {"gate_up_proj": ("w1", "w3") if mixtral else ("gate_proj", "up_proj"),
                 "down_proj": ("w2",) if mixtral else ("down_proj",)}[part]
        return [[f"{prefix}.experts.{e}.{word}.weight" for word in words] for e in range(self.more["experts"]["count"])]

    def in_folder(self, name):
        return name.replace(".mlp.gate.", ".block_sparse_moe.gate.") if self.family == "mixtral" else name

    def is_transposed(self, name):  # Conv1D
        return self.family == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))

    def shapes(self):
        shapes = {}
        for name, value in self.model.named_parameters():
            experts = self.of_experts(name)
            if experts is None:
                shapes[self.in_folder(name)] = tuple(
                    reversed(value.shape)) if self.is_transposed(name) else tuple(value.shape)
            else:
                for words in experts:
                    shapes |= {word: (value.shape[1] // len(words), value.shape[2]) for word in words}
        return shapes

    def logits(self, weights, ids):
        own = {}
        for name, _ in self.model.named_parameters():
            experts = self.of_experts(name)
            if experts is None:
                value = weights[self.in_folder(name)]
                own[name] = value.T if self.is_transposed(name) else value
            else:
                own[name] = torch.stack([torch.cat([weights[word] for word in words]) for words in experts])
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
        Model("mixtral", hf.MixtralForCausalLM, ffn=12, num_local_experts=4, experts_implementation="eager",
              more={"experts": {"count": 4, "top_k": 2, "ffn_width": 12, "layers": [], "normalize": True}}),
        *(Model(f"qwen3_moe{name}", hf.Qwen3MoeForCausalLM, family="qwen3_moe", head_dim=6, tied=tied, num_experts=8,
                num_experts_per_tok=3, moe_intermediate_size=8, norm_topk_prob=normalize, mlp_only_layers=[dense],
                experts_implementation="eager",
                more={"experts": {"count": 8, "top_k": 3, "ffn_width": 8, "layers": [1 - dense],
                                  "normalize": normalize}})
          for name, tied, normalize, dense in (("", True, True, 0), ("_as_given", False, False, 1))),
    )
    wanted = sys.argv[2:] or [model.name for model in models]
    models = [model for model in models if model.name in wanted]
    golden.write(folder, models, f"tests/golden/make_golden_families.py, transformers {hf.__version__}", steps=20)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden"))
