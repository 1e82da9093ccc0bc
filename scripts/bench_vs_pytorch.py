# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of the benchmarks: whole GPT-2 training steps (forward, backward, AdamW) by the same clock.

Starts from the output of `slipstream bench step --export DIR`, so that both sides have the same weights and batch. Prints the
loss of step 1 and the median time of a step in ms. With --rank and --world it is one process of a data-parallel job.
"""
import argparse
import json
import os
import struct
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("folder", help="output folder of bench step --export")
arguments.add_argument("--steps", type=int, default=10)
arguments.add_argument("--threads", type=int, default=1)
arguments.add_argument("--method", choices=["ddp", "flat", "fsdp"], default="ddp",
                       help="method of reducing gradients; fsdp: FSDP2, which also shards parameters and states as ZeRO-3 does (PyTorch 2.6)")
arguments.add_argument("--rank", type=int, default=0)
arguments.add_argument("--world", type=int, default=1)
arguments.add_argument("--address", default="tcp://127.0.0.1:29500", help="address of the first process")
arguments.add_argument("--about", action="store_true", help="print versions, BLAS and threads without measuring")
options = arguments.parse_args()
torch.set_num_threads(options.threads)


def about():
    torch.mm(torch.ones(8, 8), torch.ones(8, 8))
    with open("/proc/self/maps") as maps:
        files = {line.split()[-1] for line in maps if "/" in line}
    blas = sorted({os.path.realpath(f) for f in files if os.path.basename(f).startswith(("libblas", "libopenblas", "libmkl_core", "libblis"))})
    return f"PyTorch {torch.__version__}, BLAS {', '.join(blas) or 'its own'}, {torch.get_num_threads()} thread(s), oneDNN {torch.backends.mkldnn.is_available()}"


def tensors(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    for name, row in header.items():
        begin, end = row["data_offsets"]
        assert row["dtype"] == "F32"
        yield name, torch.frombuffer(data, dtype=torch.float32, count=(end - begin) // 4, offset=begin).reshape(row["shape"]).clone()


class Block(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x, mask):
        B, T, D = x.shape
        q, k, v = (y.view(B, T, self.heads, D // self.heads).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(D, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (D // self.heads) ** -0.5
            attended = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1) @ v
        x = x + self.attn_proj(attended.transpose(1, 2).reshape(B, T, D))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c["vocab_size"], c["n_embd"]), nn.Embedding(c["n_positions"], c["n_embd"])
        self.h = nn.ModuleList(Block(c["n_embd"], c["n_head"], c["n_inner"]) for _ in range(c["n_layer"]))
        self.ln_f = nn.LayerNorm(c["n_embd"])

    def load(self, folder):
        own = dict(self.named_parameters())
        for name, value in tensors(os.path.join(folder, "model.safetensors")):
            name = name.replace("transformer.", "").replace("attn.c_attn", "c_attn").replace("attn.c_proj", "attn_proj")
            name = name.replace("mlp.c_proj", "mlp_proj").replace("mlp.c_fc", "c_fc")
            turned = value.dim() == 2 and name.startswith("h.")  # GPT-2 stores [in, out]
            own.pop(name).data.copy_(value.t() if turned else value)
        assert not own, own.keys()

    def forward(self, ids, targets, mask):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x, mask)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def connect():
    dist.init_process_group("gloo", init_method=options.address, rank=options.rank, world_size=options.world)


def main():
    with open(os.path.join(options.folder, "config.json")) as file:
        config = json.load(file)
    model = Gpt2(config)
    model.load(options.folder)
    with open(os.path.join(options.folder, f"batch_{options.rank}.bin"), "rb") as file:
        batch = torch.frombuffer(bytearray(file.read()), dtype=torch.int32).long().reshape(2, -1, config["n_positions"])
    ids, targets = batch[0], batch[1]
    # The mask is an argument instead of a module buffer, because gloo refuses to broadcast booleans.
    mask = torch.triu(torch.ones(config["n_positions"], config["n_positions"], dtype=torch.bool), 1)
    if options.method == "fsdp":
        from torch.distributed.fsdp import fully_shard  # missing before PyTorch 2.6

        connect()
        for part in [*model.h, model]:
            fully_shard(part, mesh=dist.device_mesh.init_device_mesh("cpu", (options.world,)))
    groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) == decay], "weight_decay": 0.1 if decay else 0.0} for decay in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=1e-5, betas=(0.9, 0.95), eps=1e-8)
    step_model, flat = model, None
    if options.world > 1 and options.method != "fsdp":
        connect()
        if options.method == "ddp":
            step_model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        else:  # gradients are views of one buffer, so that flat copies nothing
            flat = torch.zeros(sum(p.numel() for p in model.parameters()))
            at = 0
            for p in model.parameters():
                p.grad = flat[at : at + p.numel()].view_as(p)
                at += p.numel()
    times = []
    for step in range(options.steps + 2):
        begin = time.perf_counter()
        if flat is None:
            optimizer.zero_grad(set_to_none=options.world == 1 or options.method == "fsdp")
        else:
            flat.zero_()
        loss = step_model(ids, targets, mask)
        loss.backward()
        if flat is not None:
            dist.all_reduce(flat)
            flat.div_(options.world)
        optimizer.step()
        value = loss.item()
        times.append(1e3 * (time.perf_counter() - begin))
        if step == 0:
            first = torch.tensor([value], dtype=torch.float64)
    if options.world > 1:
        dist.all_reduce(first)
    if options.rank == 0:
        print(f"{first.item() / options.world:.8f} {sorted(times[2:])[options.steps // 2]:.3f}")


if options.about:
    print(about())
else:
    main()
