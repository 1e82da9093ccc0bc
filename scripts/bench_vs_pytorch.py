# SPDX-License-Identifier: Apache-2.0
"""Times whole GPT-2 training steps (forward, backward, clip, AdamW, fp32) in PyTorch; prints the median in ms.

usage: bench_vs_pytorch.py THREADS STEPS LAYERS HEADS WIDTH CONTEXT BATCH VOCABULARY
"""
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

threads, steps, layers, heads, width, context, batch, vocab = map(int, sys.argv[1:])
torch.set_num_threads(threads)
torch.manual_seed(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        B, T, D = x.shape
        q, k, v = (y.view(B, T, heads, D // heads).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(D, dim=2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(D // heads)
        attended = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1) @ v
        x = x + self.proj(attended.transpose(1, 2).reshape(B, T, D))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets, mask):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, mask)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, vocab), targets.reshape(-1))


model = Gpt2()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
mask = torch.triu(torch.ones(context, context, dtype=torch.bool), 1)
times = []
for step in range(steps + 2):
    ids = torch.randint(vocab, (batch, context + 1))
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    loss = model(ids[:, :-1], ids[:, 1:], mask)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step >= 2:
        times.append(1e3 * (time.perf_counter() - start))
print(f"{sorted(times)[len(times) // 2]:.2f}")
