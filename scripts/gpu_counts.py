# SPDX-License-Identifier: Apache-2.0
"""The operations and bytes of a training step on one rank, work by work: the Cost of each op (kernels/*/*.h), in the order of
models/layers/.

A cost is (operations, bytes). Two operands have no pointers in the shape that a plan prices: biases and aux of products, residuals of
norms. `planned` leaves them out, `cost` has them.
"""
import collections
import dataclasses

BF16, F32 = 2, 4


@dataclasses.dataclass
class Work:
    piece: str
    kind: str
    label: str       # group of the table
    cost: tuple      # as run
    planned: tuple   # as the plan prices it
    shape: dict


def product_cost(form, rows, inner, out, aux=False, bias=False, adds=False):
    if form == "forward":
        moved = rows * inner + out * inner + rows * out * (2 if aux else 1) + (out if bias else 0)
        return 2 * rows * inner * out + (rows * out if bias else 0) + (8 * rows * out if aux else 0), BF16 * moved
    if form == "input":
        return 2 * rows * inner * out, BF16 * (rows * out + out * inner + rows * inner)
    return 2 * rows * inner * out + (rows * out if bias else 0), BF16 * rows * (inner + out) + F32 * (1 + adds) * (out * inner + (out if bias else 0))


def attention_cost(products, batch, tokens, heads, kv_heads, head):
    passes = 2 if products == 2 else 4
    return (2 * products * batch * heads * head * (tokens * (tokens + 1) // 2),
            BF16 * passes * (heads + kv_heads) * batch * tokens * head + 4 * batch * heads * tokens)


def norm_cost(form, centre, rows, width, with_residual):
    n = rows * width
    if form == "forward":
        return ((9 if centre else 4) + with_residual) * n, BF16 * ((4 if with_residual else 2) * n + (2 if centre else 1) * width) + (8 if centre else 4) * rows
    return ((17 if centre else 11) + with_residual) * n, BF16 * ((4 if with_residual else 3) * n + width) + (2 if centre else 1) * 4 * width + (8 if centre else 4) * rows


# The buckets are those of overlap.bucket_size in the run files, and their number as `slipstream plan` prints it. The
# tokens of a head are train.head_tokens.
MODELS = {
    "gpt2": dict(batch=64, tokens=1024, layers=12, heads=12, kv_heads=12, head=64, width=768, hidden=3072, vocab=50304, positions=1024, bucket=25 << 20, buckets=14, head_tokens=16384),
    "llama": dict(batch=8, tokens=2048, layers=16, heads=32, kv_heads=8, head=64, width=2048, hidden=8192, vocab=128256, positions=0, bucket=100 << 20, buckets=45, head_tokens=16384),
}


def parameters_of(m):
    d, qkv, attended, f = m["width"], (m["heads"] + 2 * m["kv_heads"]) * m["head"], m["heads"] * m["head"], m["hidden"]
    if m["positions"]:
        block = qkv * d + qkv + d * attended + d + f * d + f + d * f + d + 4 * d
        return m["vocab"] * d + m["positions"] * d + m["layers"] * block + 2 * d
    return m["vocab"] * d + m["layers"] * (qkv * d + d * attended + 2 * f * d + d * f + 2 * d) + d


def works_of(m):
    """The works of a step on one rank, in the order of models/layers/."""
    d, rows, f, gpt2 = m["width"], m["batch"] * m["tokens"], m["hidden"], m["positions"] > 0
    qkv, attended, up = (m["heads"] + 2 * m["kv_heads"]) * m["head"], m["heads"] * m["head"], m["hidden"] * (1 if m["positions"] else 2)
    works, piece = [], ["take_batch"]

    def add(kind, label, cost, planned=None, **shape):
        works.append(Work(piece[0], kind, label, cost, planned or cost, shape))

    def product(form, label, inner, out, aux=False, bias=False, gelu=False, adds=False, rows=rows):
        cost, planned = product_cost(form, rows, inner, out, aux, bias, adds), product_cost(form, rows, inner, out, adds=adds)
        if gelu:  # both count a separate pass
            n = rows * inner
            cost = planned = (planned[0] + 32 * n, planned[1] + 3 * BF16 * n)
        add("product", label, cost, planned, form=form, inner=inner, out=out, rows=rows, aux=aux, bias=bias, gelu=gelu, adds=adds)

    def norm(form, with_residual, sums=False):
        operations, size = norm_cost(form, gpt2, rows, d, with_residual)
        cost = operations + sums * rows * d, size + sums * F32 * d
        add("norm", f"norm {form}", cost, norm_cost(form, gpt2, rows, d, False), form=form, rows=rows, width=d, centre=gpt2, sums=sums)

    def attention(form):
        sizes = {key: m[key] for key in ("batch", "tokens", "heads", "kv_heads", "head")}
        add("attention", f"attention {form}", attention_cost(2 if form == "forward" else 5, **sizes), form=form, **sizes)

    def stream(label, operations, size, planned_size=None):
        add("stream", label, (operations, size), (operations, planned_size if planned_size is not None else size))

    def rotate():
        n = rows * (m["heads"] + m["kv_heads"]) * m["head"]
        stream("rope", 3 * n, 2 * BF16 * n + 2 * 4 * m["tokens"] * m["head"])  # q and k, each with the table

    stream("batch and losses", 0, 2 * 2 * 4 * rows)
    piece[0] = "embedding"
    stream("embedding", rows * d if gpt2 else 0, BF16 * (2 * rows * d + (m["tokens"] * d if gpt2 else 0)) + 4 * rows, BF16 * 2 * rows * d + 4 * rows)
    for layer in range(m["layers"]):
        piece[0] = f"attention.{layer}"
        norm("forward", layer > 0)
        product("forward", "qkv forward", d, qkv, bias=gpt2)
        if not gpt2:
            rotate()
        attention("forward")
        product("forward", "projection forward", attended, d, bias=gpt2)
        piece[0] = f"mlp.{layer}"
        norm("forward", True)
        product("forward", "up forward", d, up, aux=gpt2, bias=gpt2)
        if not gpt2:
            stream("swiglu", 21 * rows * f, BF16 * 3 * rows * f)
        product("forward", "down forward", f, d, bias=gpt2)
    piece[0] = "final_norm"
    norm("forward", True)
    some = rows // -(-rows // m["head_tokens"])
    words = min(m["vocab"], max(64, -(-(m["bucket"] // (4 * d)) // 64) * 64))
    for first in range(0, rows, some):
        last = first + some == rows
        piece[0] = "head" if last else f"head.{first // some}"
        product("forward", "head forward", d, m["vocab"], rows=some)
        add("loss", "cross-entropy", (8 * some * m["vocab"], 2 * BF16 * some * m["vocab"] + 8 * some), rows=some, vocab=m["vocab"])
        for begin in range(0, m["vocab"], words) if last else [0]:
            piece[0] = f"head_gradient.{begin // words}" if last else piece[0]
            product("weight", "head weight gradient", d, min(words, m["vocab"] - begin) if last else m["vocab"], rows=some, adds=first > 0)
        piece[0] = "head_input_gradient" if last else piece[0]
        product("input", "head input gradient", d, m["vocab"], rows=some)
    piece[0] = "final_norm_gradient"
    norm("backward", False, gpt2)  # with the gradient of the down bias, as every norm after it
    for layer in reversed(range(m["layers"])):
        piece[0] = f"mlp_down_gradient.{layer}"
        product("weight", "down weight gradient", f, d)
        piece[0] = f"mlp_up_gradient.{layer}"
        product("input", "down input gradient", f, d, gelu=gpt2)  # and the gradient of the up bias
        if not gpt2:
            stream("swiglu", 27 * rows * f, BF16 * 5 * rows * f)
        product("weight", "up weight gradient", d, up)
        piece[0] = f"norm_2_gradient.{layer}"
        product("input", "up input gradient", d, up)
        norm("backward", True, gpt2)
        piece[0] = f"attention_out_gradient.{layer}"
        product("weight", "projection weight gradient", attended, d)
        piece[0] = f"attention_qkv_gradient.{layer}"
        product("input", "projection input gradient", attended, d)
        attention("backward")
        if not gpt2:
            rotate()
        product("weight", "qkv weight gradient", d, qkv, bias=gpt2)
        piece[0] = f"norm_1_gradient.{layer}"
        product("input", "qkv input gradient", d, qkv)
        norm("backward", True, gpt2 and layer > 0)
    piece[0] = "embedding_gradient"
    if gpt2:
        stream("embedding", rows * d, BF16 * rows * d + 4 * m["positions"] * d)
    if gpt2:
        size = BF16 * rows * d + 8 * rows * d + 4 * rows
        add("embedding", "embedding", (rows * d, size), (rows * d, size + 4 * m["vocab"] * d), rows=rows, width=d, vocab=m["vocab"])
    else:  # overlap.split_tied_embedding: the rows travel, then they are added to the table
        add("embedding", "embedding", (rows * d, (BF16 + 4) * rows * d + 8 * rows), rows=rows, width=d, vocab=m["vocab"])
        piece[0] = "add_tied_embedding"
        add("embedding", "embedding", (rows * d, 12 * rows * d), rows=rows, width=d, vocab=m["vocab"])
    n, buckets = parameters_of(m), m["buckets"]
    for bucket in range(buckets):
        piece[0] = f"sum_squares.{bucket}"
        add("squares", "gradient norm", (2 * n / buckets, 4 * n / buckets + 8), elems=n / buckets)
    piece[0] = "adamw"
    add("update", "AdamW", (16 * n, 30 * n), elems=n)
    return works


def planned_ms(model, peak, copy, launch):
    """The step by the plan's prices (comm/rehearse/price.h): a piece takes the longer of operations and bytes, and a launch."""
    sums = collections.defaultdict(lambda: [0, 0])
    for work in works_of(MODELS[model]):
        for i in (0, 1):
            sums[work.piece][i] += work.planned[i]
    without_cost = 3  # stage_scalars, clip, report
    return 1e3 * (sum(max(operations / peak, size / copy) for operations, size in sums.values()) + (len(sums) + without_cost) * launch)
