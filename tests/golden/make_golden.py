#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/{gpt2,llama}.{json,bin}: PyTorch's results for two tiny models.

Initial weights, ids, logits, loss, every gradient and the weights after three AdamW steps. The models are written here
from their papers, in the names and shapes of Hugging Face (all matrices as [out, in]), and computed in float64, so that
the fixtures carry no rounding but their own. Needs python3-torch; run it again only to change the models:

    /usr/bin/python3 tests/golden/make_golden.py tests/golden
"""
import json
import math
import pathlib
import struct
import sys

import torch
import torch.nn.functional as F

BATCH, TOKENS, VOCAB, WIDTH, LAYERS = 2, 8, 33, 16, 2
STEPS, LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY, MAX_NORM = 3, 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0


def attention(q, k, v):
    """[batch, heads, tokens, size] each; causal."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
    return scores.masked_fill(mask, -math.inf).softmax(-1) @ v


def split(x, heads):
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


class Gpt2:
    name, heads, kv_heads, ffn, tied = "gpt2", 2, 2, 4 * WIDTH, True

    def shapes(self):
        D, F_ = WIDTH, self.ffn
        shapes = {"transformer.wte.weight": (VOCAB, D), "transformer.wpe.weight": (TOKENS, D)}
        for l in range(LAYERS):
            p = f"transformer.h.{l}."
            shapes |= {p + "ln_1.weight": (D,), p + "ln_1.bias": (D,), p + "attn.c_attn.weight": (3 * D, D),
                       p + "attn.c_attn.bias": (3 * D,), p + "attn.c_proj.weight": (D, D), p + "attn.c_proj.bias": (D,),
                       p + "ln_2.weight": (D,), p + "ln_2.bias": (D,), p + "mlp.c_fc.weight": (F_, D),
                       p + "mlp.c_fc.bias": (F_,), p + "mlp.c_proj.weight": (D, F_), p + "mlp.c_proj.bias": (D,)}
        return shapes | {"transformer.ln_f.weight": (D,), "transformer.ln_f.bias": (D,)}

    def logits(self, w, ids):
        norm = lambda x, p: F.layer_norm(x, (WIDTH,), w[p + "weight"], w[p + "bias"], 1e-5)
        linear = lambda x, p: F.linear(x, w[p + "weight"], w[p + "bias"])
        x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: ids.shape[1]]
        for l in range(LAYERS):
            p = f"transformer.h.{l}."
            q, k, v = linear(norm(x, p + "ln_1."), p + "attn.c_attn.").split(WIDTH, -1)
            x = x + linear(merge(attention(split(q, self.heads), split(k, self.heads), split(v, self.heads))), p + "attn.c_proj.")
            x = x + linear(F.gelu(linear(norm(x, p + "ln_2."), p + "mlp.c_fc."), approximate="tanh"), p + "mlp.c_proj.")
        return norm(x, "transformer.ln_f.") @ w["transformer.wte.weight"].T


class Llama:
    name, heads, kv_heads, ffn, tied = "llama", 4, 2, 24, False

    def shapes(self):
        D, F_, size = WIDTH, self.ffn, WIDTH // self.heads
        shapes = {"model.embed_tokens.weight": (VOCAB, D)}
        for l in range(LAYERS):
            p = f"model.layers.{l}."
            shapes |= {p + "input_layernorm.weight": (D,), p + "self_attn.q_proj.weight": (self.heads * size, D),
                       p + "self_attn.k_proj.weight": (self.kv_heads * size, D),
                       p + "self_attn.v_proj.weight": (self.kv_heads * size, D),
                       p + "self_attn.o_proj.weight": (D, self.heads * size), p + "post_attention_layernorm.weight": (D,),
                       p + "mlp.gate_proj.weight": (F_, D), p + "mlp.up_proj.weight": (F_, D),
                       p + "mlp.down_proj.weight": (D, F_)}
        return shapes | {"model.norm.weight": (D,), "lm_head.weight": (VOCAB, D)}

    def rotate(self, x):
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def logits(self, w, ids):
        norm = lambda x, p: w[p + ".weight"] * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = w["model.embed_tokens.weight"][ids]
        for l in range(LAYERS):
            p = f"model.layers.{l}."
            linear = lambda x, name: F.linear(x, w[p + name + ".weight"])
            h = norm(x, p + "input_layernorm")
            q = self.rotate(split(linear(h, "self_attn.q_proj"), self.heads))
            k = self.rotate(split(linear(h, "self_attn.k_proj"), self.kv_heads))
            v = split(linear(h, "self_attn.v_proj"), self.kv_heads)
            share = self.heads // self.kv_heads
            k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
            x = x + linear(merge(attention(q, k, v)), "self_attn.o_proj")
            h = norm(x, p + "post_attention_layernorm")
            x = x + linear(F.silu(linear(h, "mlp.gate_proj")) * linear(h, "mlp.up_proj"), "mlp.down_proj")
        return F.linear(norm(x, "model.norm"), w["lm_head.weight"])


def write(folder, models, made_with, steps=STEPS):
    for model in models:
        torch.manual_seed(7)
        start = {}
        for name, shape in model.shapes().items():
            gain = len(shape) == 1 and name.endswith("weight")
            start[name] = ((1.0 if gain else 0.0) + (0.1 if len(shape) == 1 else 0.25) * torch.randn(shape)).float()
        ids = torch.randint(0, VOCAB, (BATCH, TOKENS + 1))
        weights = {n: t.double().requires_grad_() for n, t in start.items()}
        optimizer = torch.optim.AdamW(
            [{"params": [t for t in weights.values() if t.dim() >= 2], "weight_decay": WEIGHT_DECAY},
             {"params": [t for t in weights.values() if t.dim() < 2], "weight_decay": 0.0}],
            lr=LEARNING_RATE, betas=BETAS, eps=EPS)
        saved = [("weight." + n, t) for n, t in start.items()]
        losses, norms = [], []
        for step in range(steps):
            optimizer.zero_grad()
            logits = model.logits(weights, ids[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
            loss.backward()
            if step == 0:
                saved.append(("logits", logits.detach()))
                saved += [("gradient." + n, t.grad.clone()) for n, t in weights.items()]
            losses.append(loss.item())
            norms.append(torch.nn.utils.clip_grad_norm_(weights.values(), MAX_NORM).item())
            optimizer.step()
        saved += [("trained." + n, t.detach()) for n, t in weights.items()]

        index, data = [], b""
        for name, tensor in saved:
            values = tensor.float().contiguous().view(-1).tolist()
            index.append({"name": name, "shape": list(tensor.shape), "begin_elems": len(data) // 4})
            data += struct.pack(f"<{len(values)}f", *values)
        text = {"made_with": f"{made_with}, PyTorch {torch.__version__.split('+')[0]}", "family": getattr(model, "family", model.name),
                "layers": LAYERS, "heads": model.heads, "kv_heads": model.kv_heads, "width": WIDTH, "ffn_width": model.ffn,
                "tokens": TOKENS, "vocab": VOCAB, "batch": BATCH, "tied": model.tied, "steps": steps,
                "learning_rate": LEARNING_RATE, "beta1": BETAS[0], "beta2": BETAS[1], "eps": EPS, "weight_decay": WEIGHT_DECAY,
                "max_norm": MAX_NORM, "ids": ids.view(-1).tolist(), "losses": losses, "norms": norms} | getattr(model, "more", {})
        lines = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in text.items())
        rows = ",\n".join("  " + json.dumps(row) for row in index)
        (folder / f"{model.name}.json").write_text(f'{{\n{lines},\n "tensors": [\n{rows}\n ]\n}}\n')
        (folder / f"{model.name}.bin").write_bytes(data)
        print(f"{model.name}: losses {losses}, norms {norms}, {len(data)} bytes")


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden"), (Gpt2(), Llama()), "tests/golden/make_golden.py")
