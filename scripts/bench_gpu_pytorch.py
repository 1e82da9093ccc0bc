# SPDX-License-Identifier: Apache-2.0
"""Compares PyTorch on a GPU with our numbers, on the same GPU in the same run.

  bench_gpu_pytorch.py kernels OURS.csv   compares every op that PyTorch has with gpu_kernels_bench's table; attention by each backend of SDPA
  bench_gpu_pytorch.py step OURS.csv      GPT-2 124M, 64 x 1024 tokens per step: eager and torch.compile, fused AdamW, SDPA; OURS.csv is
                                          written by bench step, and may be missing

Prints tables. --csv FILE also writes the rows, and --measured FILE adds lines "what,value,unit" for gpu_summary.py, both after each row,
so that an interrupted run keeps its rows. PyTorch's times come from CUDA events and are the median of seven turns of 20 ms, like ours. Exit
code 77: there is no PyTorch, or it sees no GPU.
"""
import argparse
import contextlib
import csv
import os
import statistics
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except (ImportError, OSError) as error:
    print(f"this python3 has no PyTorch: {error}")
    sys.exit(77)

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("what", choices=["kernels", "step"])
arguments.add_argument("ours", help="the CSV of our numbers")
arguments.add_argument("--csv", help="write the rows to this file")
arguments.add_argument("--measured", help="add what,value,unit to this file")
arguments.add_argument("--modes", default="eager,default,max-autotune-no-cudagraphs", help="step: eager, or modes of torch.compile")
arguments.add_argument("--sequences", type=int, default=64, help="step: number of sequences of 1024 tokens")
arguments.add_argument("--micro-batch", type=int, default=64, help="step: sequences computed at once; halved until they fit")
arguments.add_argument("--layers", type=int, default=12)
arguments.add_argument("--steps", type=int, default=20)
arguments.add_argument("--warm", action="store_true", help="step: only fill the caches of torch.compile, with one step of each mode")
arguments.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: to try the script itself")
options = arguments.parse_args()
try:  # a compiled backward pass is called again and again here
    import torch._functorch.config
    torch._functorch.config.donated_buffer = False
except (ImportError, AttributeError):
    pass
on_gpu = options.device == "cuda"
if on_gpu and not torch.cuda.is_available():
    print("PyTorch sees no GPU")
    sys.exit(77)
BF16 = torch.bfloat16
IN_A_ROW = 5  # steps without a wait of the host, as training does; scripts/gpu_check.sh measures ours like this, too
written = []
# The order of the ops by importance, because a run may be interrupted.
FIRST = ["copy", "attention", "norm", "cross_entropy", "adamw", "matmul"]


def keep(row, what, value, unit):
    """Writes a row at once: the whole table under its final name, and one line of --measured."""
    written.append(row)
    if options.csv:
        with open(options.csv + ".new", "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=written[0].keys())
            writer.writeheader()
            writer.writerows(written)
        os.replace(options.csv + ".new", options.csv)
    if options.measured and value:
        with open(options.measured, "a") as file:
            file.write(f"{what},{value:.6g},{unit}\n")


def values(*shape, dtype=BF16, grad=False, scale=1.0):
    return (scale * torch.randn(*shape, device=options.device)).to(dtype).requires_grad_(grad)


def microseconds(body):
    """The median over seven turns. A turn is as many calls as fill 20 ms."""
    def turn(calls):
        if not on_gpu:
            begin = time.perf_counter()
            for _ in range(calls):
                body()
            return 1e3 * (time.perf_counter() - begin)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            body()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    for _ in range(3):
        body()
    calls = max(1, min(2000, int(20 / max(1e-3, turn(1)))))
    return statistics.median(1e3 * turn(calls) / calls for _ in range(7))


def sizes(shape):
    return [int(word) for word in shape.replace("/", " ").replace("x", " ").replace("B", " ").replace("T", " ").replace("H", " ").split() if word.isdigit()]


def backward_of(out, inputs, gradient):
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def torch_op(op, shape):
    """The call in PyTorch, or None if it has no counterpart. Shapes are written as gpu_kernels_bench prints them."""
    n = sizes(shape)
    if op == "copy":
        a, b = (torch.empty(n[0] << 19, dtype=BF16, device=options.device) for _ in range(2))
        return lambda: b.copy_(a)
    if op.startswith("matmul"):
        rows, inner, out = n
        x, w, y, bias = values(rows, inner), values(out, inner, scale=0.02), values(rows, out), values(out)
        if op == "matmul_forward":
            if shape.startswith("up"):
                return torch.compile(lambda: F.gelu(F.linear(x, w, bias), approximate="tanh"))
            return lambda: F.linear(x, w, None if shape.startswith(("head", "8192 ")) else bias)
        if op == "matmul_backward_input":
            return lambda: y @ w
        return lambda: (y.t() @ x, None if shape.startswith("head") else y.sum(0))
    if op in ("attention_forward", "attention_backward"):
        batch, tokens, heads, kv_heads, head = n
        q = values(batch, heads, tokens, head, grad=True)
        k, v = (values(batch, kv_heads, tokens, head, grad=True) for _ in range(2))
        more = {"enable_gqa": True} if kv_heads != heads else {}
        if op == "attention_forward":
            with_grad = (q, k, v)
            return lambda: F.scaled_dot_product_attention(*with_grad, is_causal=True, **more)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, **more)
        return backward_of(out, (q, k, v), values(batch, heads, tokens, head))
    if "norm" in op:
        rows, width = n
        x, delta, weight, bias = values(rows, width, grad=True), values(rows, width), values(width, grad=True), values(width, grad=True)
        def normed(a):
            return F.layer_norm(a, (width,), weight, bias) if op.startswith("layer") else F.rms_norm(a, (width,), weight)
        if op.endswith("forward"):
            def fused():
                s = x + delta
                return s, normed(s)
            return torch.compile(fused)
        inputs = (x, weight, bias) if op.startswith("layer") else (x, weight)
        return backward_of(torch.compile(normed)(x), inputs, values(rows, width))
    if op in ("gelu_forward", "gelu_backward"):
        x = values(n[0], n[1], grad=True)
        if op == "gelu_forward":
            return lambda: F.gelu(x.detach(), approximate="tanh")
        return backward_of(F.gelu(x, approximate="tanh"), (x,), values(n[0], n[1]))
    if op in ("swiglu_forward", "swiglu_backward"):
        x = values(n[0], 2 * n[1], grad=True)
        def swiglu(a):
            gate, up = a.chunk(2, dim=1)
            return F.silu(gate) * up
        compiled = torch.compile(swiglu)
        return (lambda: compiled(x.detach())) if op == "swiglu_forward" else backward_of(compiled(x), (x,), values(n[0], n[1]))
    if op == "residual":
        a, b = values(n[0], n[1]), values(n[0], n[1])
        return lambda: a + b
    if op in ("dropout", "dropout_sum"):
        a, b = values(n[0], n[1]), values(n[0], n[1])
        return torch.compile(lambda: F.dropout(b, 0.1) if op == "dropout" else a + F.dropout(b, 0.1))
    if op in ("embedding_forward", "embedding_backward"):
        rows, width, vocab = n
        ids, table = torch.randint(0, vocab, (rows,), device=options.device), values(vocab, width, grad=True)
        if op == "embedding_forward":
            return lambda: F.embedding(ids, table.detach())
        return backward_of(F.embedding(ids, table), (table,), values(rows, width))
    if op == "cross_entropy":
        logits, targets = values(n[0], n[1], grad=True), torch.randint(0, 50257, (n[0],), device=options.device)
        compiled = torch.compile(lambda: F.cross_entropy(logits, targets))
        return lambda: torch.autograd.grad(compiled(), (logits,))
    if op == "adamw":
        p = torch.nn.Parameter(torch.randn(n[0], device=options.device))
        p.grad = torch.randn(n[0], device=options.device)
        optimizer = torch.optim.AdamW([p], lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=on_gpu)
        return optimizer.step
    if op in ("sum_squares", "cast to bfloat16", "add"):
        a, b = (torch.randn(n[0], device=options.device) for _ in range(2))
        return {"sum_squares": lambda: torch.dot(a, a), "cast to bfloat16": lambda: a.to(BF16), "add": lambda: b.add_(a)}[op]
    return None


def backends_of(op):
    """PyTorch's own choice, and for attention each backend of its SDPA."""
    yield "torch", None
    if op.startswith("attention_") and on_gpu:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        for name, backend in (("cudnn", "CUDNN_ATTENTION"), ("flash", "FLASH_ATTENTION")):
            if hasattr(SDPBackend, backend):
                yield name, lambda chosen=getattr(SDPBackend, backend): sdpa_kernel(chosen)


def kernels():
    with open(options.ours) as file:
        ours = [row for row in csv.DictReader(file) if row["us"]]  # a last line that was cut off has none
    ours.sort(key=lambda row: next((i for i, word in enumerate(FIRST) if word in row["op"]), len(FIRST)))
    print(f"{'op':<24} {'shape':<30} {'ours us':>10} {'by':>6} {'us':>10} {'ours is':>9}")
    for row in ours:
        for by, context in backends_of(row["op"]):
            us, remark = None, ""
            try:
                with context() if context else contextlib.nullcontext():
                    body = torch_op(row["op"], row["shape"])
                    us = microseconds(body) if body else None
            except Exception as error:  # one op that PyTorch refuses must not cost the table
                remark = f"  {type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}"
            body = None
            if on_gpu:
                torch.cuda.empty_cache()
            beside = f"{us:10.1f} {us / float(row['us']):7.2f} x" if us else f"{'-':>10} {'-':>9}"
            print(f"{row['op']:<24} {row['shape']:<30} {float(row['us']):10.1f} {by:>6} {beside}{remark}", flush=True)
            keep({"op": row["op"], "shape": row["shape"], "ours_us": row["us"], "by": by, "us": f"{us:.6g}" if us else ""},
                 f"{by} {row['op']} {row['shape']}", us, "us")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (y.view(B, T, self.heads, D // self.heads).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(D, dim=2))
        x = x + self.projection(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers, width=768, heads=12, vocab=50304, context=1024):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def step_ms(micro_batch, mode):
    """A step of all sequences: float32 weights under bfloat16 autocast, gradients clipped to 1, fused AdamW."""
    torch.manual_seed(1)
    tokens = 1024 if on_gpu else 64
    model = Gpt2(options.layers, context=tokens).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=on_gpu)
    compiled = torch.compile(model, mode=mode) if on_gpu and mode != "eager" else model
    ids = torch.randint(0, 50257, (2, options.sequences, tokens), device=options.device)
    parts = options.sequences // micro_batch

    def step():
        optimizer.zero_grad(set_to_none=True)
        for part in range(parts):
            rows = slice(part * micro_batch, (part + 1) * micro_batch)
            with torch.autocast(options.device, dtype=BF16):
                loss = compiled(ids[0, rows], ids[1, rows]) / parts
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    times = []
    turns = 0 if options.warm else -(-options.steps // IN_A_ROW)
    for _ in range(1 + turns):  # the first turn compiles and is not counted
        if on_gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(IN_A_ROW):
            step()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin) / IN_A_ROW)
    return statistics.median(times[1:] or times), tokens


def step():
    ours = None
    if os.path.exists(options.ours):
        with open(options.ours) as file:
            ours = float(next(csv.DictReader(file))["step_ms"])
        rate = 1e3 * options.sequences * 1024 / ours
        print(f"ours: {ours:.2f} ms a step, {rate:,.0f} tokens/s", flush=True)
        written.append({"who": "ours", "step_ms": ours, "tokens_per_s": rate})
    for mode in options.modes.split(",") if on_gpu else ["eager"]:
        micro_batch = options.micro_batch
        while micro_batch >= 1:
            try:
                ms, tokens = step_ms(micro_batch, mode)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                micro_batch //= 2
                continue
            if options.warm:
                break
            rate = 1e3 * options.sequences * tokens / ms
            how = mode if mode == "eager" else f"torch.compile {mode}"
            print(f"PyTorch {torch.__version__}, {how}, micro-batch {micro_batch}: {ms:.2f} ms a step, {rate:,.0f} tokens/s"
                  + (f"; ours is {ms / ours:.2f} x" if ours else ""), flush=True)
            by = {"eager": "torch-eager", "default": "torch-compile"}.get(mode, "torch-tuned")
            keep({"who": f"torch {torch.__version__} {mode} micro-batch {micro_batch}", "step_ms": ms, "tokens_per_s": rate},
                 f"{by} GPT-2 124M", rate, "tokens/s")
            break


print(f"PyTorch {torch.__version__}{', ' + torch.cuda.get_device_name() if on_gpu else ''}")
(kernels if options.what == "kernels" else step)()
