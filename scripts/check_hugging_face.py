#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares models with Hugging Face transformers: folders, every gradient, losses, and weights and logits after AdamW.

usage: scripts/check_hugging_face.py build/slipstream [--configs 2] [--ranks 1] [--layouts] [--float64]
Needs: pip install torch transformers safetensors. Every model is random and small; nothing is downloaded.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
import torch  # noqa: E402
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,  # noqa: E402
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

torch.set_num_threads(1)
FAMILIES = {
    "gpt2": (GPT2Config, GPT2LMHeadModel),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}
STEPS = 20
TRAINING = dict(steps=STEPS, rate="1e-3", decay=0.1, adam_eps="1e-8")
# One step whose update shows the gradient, with the largest rate and epsilon that a run file may have. A step is about
# 1000 times the gradient. Rounding the weight to float32 after the step therefore costs 2^-24 of the gradient, and
# rounding it before the step costs 2^-24 / 1000. The limit leaves room for sums in another order, which differ by up to
# 1e-5.
GRADIENT = dict(steps=1, rate=1000.0, decay=0.0, adam_eps=1.0)
GRADIENT_SHARE = 1e-4
ADAM = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
RUN = """
[model]
family = "{family}"
layers = {layers}
heads = {heads}
kv_heads = {kv_heads}
head_dim = {head_dim}
width = {width}
ffn_width = {ffn}
context = {context}
vocab_size = {vocab}
tie_embeddings = {tied}
rope_theta = {theta}
{more}norm_eps = {eps}
init = "{init}"
{experts}[data]
train = "{text}"
validation = "{text}"
format = "text"
[train]
steps = {steps}
sequence_length = {context}
micro_batch_size = 1
[optimizer]
learning_rate = {rate}
min_learning_rate = {rate}
weight_decay = {decay}
grad_clip = 0.0
beta1 = 0.9
beta2 = 0.95
eps = {adam_eps}
[device]
kind = "cpu"
[checkpoint]
dir = "{run}/checkpoints"
[output]
dir = "{run}"
"""


def random_experts(family, sizes, rng):
    """Returns keys of the library, and adds those of a run file to `sizes`."""
    window = rng.choice([0, 0, 3, 8])
    count = rng.choice([2, 3, 4, 8, 12])
    # A single weight that is normalized is 1, so that the router has no gradient: AdamW would follow its rounding.
    normalize = family == "mixtral" or rng.random() < 0.5
    top_k = rng.randint(2 if normalize else 1, min(count, 4)) if rng.random() < 0.9 else count
    keys = {"num_local_experts" if family == "mixtral" else "num_experts": count}
    keys |= dict(num_experts_per_tok=top_k, sliding_window=window or None, experts_implementation="eager")
    sizes["more"] = f"sliding_window = {window}\n"
    sizes["count"] = count
    sizes["experts"] = f"[model.experts]\ncount = {count}\ntop_k = {top_k}\n"
    if family == "qwen3_moe":
        width, layers = 4 * rng.randrange(2, 12), range(sizes["layers"])
        dense = sorted(rng.sample(layers, rng.randrange(sizes["layers"])))
        keys |= dict(moe_intermediate_size=width, norm_topk_prob=normalize, mlp_only_layers=dense)
        keys |= dict(use_sliding_window=window > 0)
        sizes["experts"] += f"ffn_width = {width}\nnormalize = {str(normalize).lower()}\n"
        sizes["experts"] += f"layers = {[layer for layer in layers if layer not in dense]}\n"
    return keys


def random_window(family, sizes, rng):
    """The same for a window in all layers of Mistral, or in some layers of Qwen."""
    if family == "mistral":
        window = rng.choice([None, 3, 8, 16])
        sizes["more"] = f"sliding_window = {window or 0}\n"
        return dict(sliding_window=window)
    if family.startswith("qwen") and rng.random() < 0.7:
        window = rng.choice([3, 8, 16])
        layers = sorted(rng.sample(range(sizes["layers"]), rng.randint(1, sizes["layers"])))
        types = ["sliding_attention" if i in layers else "full_attention" for i in range(sizes["layers"])]
        sizes["more"] = f"sliding_window = {window}\nwindow_layers = {layers}\n"
        return dict(use_sliding_window=True, sliding_window=window, layer_types=types)
    return {}


def random_model(family, rng):
    heads = rng.choice([1, 2, 4, 6])
    sizes = dict(
        layers=rng.choice([1, 2, 3]),
        heads=heads,
        kv_heads=heads,
        head_dim=0,
        width=heads * rng.choice([8, 16, 32]),
        ffn=8 * rng.randrange(4, 40),
        context=rng.choice([16, 24, 40]),
        vocab=rng.choice([256, 300, 389]),
        tied=rng.random() < 0.5,
        theta=rng.choice([10000.0, 500000.0]),
        eps=rng.choice([1e-5, 1e-6]),
        more="",
        experts="",
    )
    torch.manual_seed(rng.randrange(1 << 30))
    ids = dict(bos_token_id=0, eos_token_id=1)
    if family == "gpt2":
        config = GPT2Config(
            vocab_size=sizes["vocab"],
            n_positions=sizes["context"],
            n_embd=sizes["width"],
            n_head=heads,
            n_layer=sizes["layers"],
            n_inner=sizes["ffn"],
            layer_norm_epsilon=sizes["eps"],
            tie_word_embeddings=sizes["tied"],
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            **ids,
        )
        model = GPT2LMHeadModel(config)
    else:
        sizes["kv_heads"] = rng.choice([k for k in (1, 2, 3, 4, 6) if heads % k == 0 and k <= heads])
        kind, make = FAMILIES[family]
        more = {}
        rope = {"rope_type": "default", "rope_theta": sizes["theta"]}
        if family in ("mixtral", "qwen3_moe"):
            more |= random_experts(family, sizes, rng)
        else:
            more |= random_window(family, sizes, rng)
        if family == "llama" and rng.random() < 0.5:
            low, factor, original = rng.choice([1.0, 0.5]), rng.choice([2.0, 8.0]), rng.choice([8, 16, 64])
            rope |= dict(
                rope_type="llama3",
                factor=factor,
                low_freq_factor=low,
                high_freq_factor=4.0,
                original_max_position_embeddings=original,
            )
            sizes["more"] = (
                f'rope_scaling = "llama3"\nrope_scaling_factor = {factor}\nrope_low_freq_factor = {low}\n'
                f"rope_high_freq_factor = 4.0\nrope_original_context = {original}\n"
            )
        if family.startswith("qwen3") or (rng.random() < 0.5 and family != "qwen2"):
            more["head_dim"] = sizes["head_dim"] = rng.choice([6, 8, 20, 32])
        config = kind(
            vocab_size=sizes["vocab"],
            hidden_size=sizes["width"],
            intermediate_size=sizes["ffn"],
            num_hidden_layers=sizes["layers"],
            num_attention_heads=heads,
            num_key_value_heads=sizes["kv_heads"],
            max_position_embeddings=sizes["context"],
            rms_norm_eps=sizes["eps"],
            rope_parameters=rope,
            tie_word_embeddings=sizes["tied"],
            **ids,
            **more,
        )
        model = make(config)
    with torch.no_grad():  # norms and biases would be ones and zeros
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return sizes, model.float().eval()


def weights_of(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same_bits(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def gradients_of(before, after):
    """Gradients by the weights before and after a step of AdamW with GRADIENT's settings.

    The first step moves a weight by rate * g / (|g| + eps), because both moments then are those of one gradient.
    """
    found = {}
    for name in before:
        moved = (before[name].double() - after[name].double()) / GRADIENT["rate"]
        found[name] = GRADIENT["adam_eps"] * moved / (1 - moved.abs())
    return found


def compare_gradients(model, ids, before, after):
    """The largest difference of a gradient, as a share of the largest one of its tensor."""
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits.flatten(0, 1), ids[0, 1:]).backward()
    ours = gradients_of(before, after)
    theirs = {name: parameter.grad.double() for name, parameter in model.named_parameters()}
    # An expert without tokens has no gradient.
    shares = [(ours[name] - grad).abs().max() / (grad.abs().max() or 1) for name, grad in theirs.items()]
    return torch.stack(shares).max().item()  # NaN if one is


def train_torch(model, ids):
    model.train()
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], **ADAM)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[0, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def experts_of(sizes):
    """The table [model.experts] in one word."""
    return " ".join(line.replace(" = ", "=").replace(", ", ";") for line in sizes["experts"].splitlines()[1:])


def random_layout(sizes, rng):
    """Returns a number of ranks up to 8, and keys that divide the model among them."""
    layers = sizes["layers"]
    while True:
        axes = dict(data=rng.choice([1, 2, 3, 4, 8]), pipeline=rng.randint(1, layers), context=rng.choice([1, 2, 4]))
        ranks = axes["data"] * axes["pipeline"] * axes["context"]
        if 1 < ranks <= 8:
            keys = [f"parallel.{axis}={size}" for axis, size in axes.items()] + [f"zero.stage={rng.randrange(4)}"]
            if sizes["experts"]:
                count, holders = sizes["count"], axes["data"] * axes["context"]
                divisors = [expert for expert in range(2, holders + 1) if count % expert == 0 == holders % expert]
                if not divisors:
                    continue
                keys += [f"parallel.expert={rng.choice(divisors)}"]
                keys += [f"parallel.expert_exchange={rng.choice(['exact', 'gather'])}"]
                keys += [f"model.experts.capacity_factor={rng.choice([1, 2])}"]
            return ranks, [word for key in keys for word in ("--set", key)]


def check(program, ranks, layouts, float64, family, rng, folder):
    sizes, model = random_model(family, rng)
    sets = []
    if layouts:
        ranks, sets = random_layout(sizes, rng)
    launcher = ["mpirun", "-np", ranks] if ranks > 1 else []
    theirs, ours, back = folder / "theirs", folder / "ours", folder / "back"
    model.save_pretrained(theirs, max_shard_size="40KB")
    before = weights_of(model)
    run(program, "convert", theirs, ours, "--file-size", "64KiB")
    # The default implementation of experts adds in another order.
    kernels = {"experts_implementation": "eager"} if sizes["experts"] else {}
    opened = AutoModelForCausalLM.from_pretrained(ours, dtype="auto", **kernels)
    run(program, "convert", ours, back)
    text = bytes(rng.randrange(256) for _ in range(sizes["context"] + 1))
    (folder / "text.txt").write_bytes(text)
    ids = torch.tensor([list(text)])
    with torch.no_grad():
        logits = (
            (model(ids).logits - opened(ids).logits).abs().max().item()
            if sizes["context"] > len(text)
            else (model(ids[:, :-1]).logits - opened(ids[:, :-1]).logits).abs().max().item()
        )
    folders = logits == 0 and same_bits(
        weights_of(AutoModelForCausalLM.from_pretrained(back, dtype="auto")),
        weights_of(AutoModelForCausalLM.from_pretrained(ours, dtype="auto")),
    )
    folders = folders and all(torch.equal(before[name], weights_of(opened)[name]) for name in before)
    for name, training in (("gradient", GRADIENT), ("run", TRAINING)):
        known = {**sizes, **training, "family": family, "tied": str(sizes["tied"]).lower()}
        text = RUN.format(**known, init=theirs, text=folder / "text.txt", run=folder / name)
        (folder / f"{name}.toml").write_text(text)
        run(*launcher, program, "train", folder / f"{name}.toml", *sets)
    if float64:
        model = model.double()
    stepped = AutoModelForCausalLM.from_pretrained(folder / "gradient/checkpoints/final", dtype="auto")
    gradients = compare_gradients(model, ids, before, weights_of(stepped))
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    our_losses = [line["loss"] for line in lines if "loss" in line][:STEPS]
    their_losses = train_torch(model, ids)
    loss = max(abs(a - b) for a, b in zip(our_losses, their_losses, strict=True))
    final = AutoModelForCausalLM.from_pretrained(folder / "run" / "checkpoints" / "final", dtype="auto").eval()
    after, trained = weights_of(final), weights_of(model)
    weights = max((after[name] - trained[name]).abs().max().item() for name in trained)
    with torch.no_grad():
        final_logits = (final(ids[:, :-1]).logits - model.eval()(ids[:, :-1]).logits).abs().max().item()
    tokenizer = AutoTokenizer.from_pretrained(folder / "run" / "checkpoints" / "final")
    tokens = tokenizer.encode("Grüße\n") == list("Grüße\n".encode()) and tokenizer.decode([72, 105]) == "Hi"
    good = folders and tokens and gradients < GRADIENT_SHARE and loss < 1e-4
    # Rounding decides the sign of more tiny gradients if an expert has few tokens.
    good = good and final_logits < 1e-3 and weights < (5e-3 if sizes["experts"] else 5e-4)
    print(
        f"{family},{sizes['layers']},{sizes['heads']},{sizes['kv_heads']},{sizes['head_dim']},{sizes['width']},"
        f"{sizes['ffn']},{sizes['vocab']},{sizes['tied']},{experts_of(sizes)},"
        f"{ranks} {' '.join(sets[1::2])},"
        f"{'same' if folders else 'DIFFERENT'},{gradients:.1e},{loss:.1e},{weights:.1e},{final_logits:.1e},"
        f"{'same' if tokens else 'DIFFERENT'},{'ok' if good else 'FAILED'}",
        flush=True,
    )
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--configs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--layouts", action="store_true", help="each model on 2 to 8 ranks, in a random layout")
    parser.add_argument("--float64", action="store_true", help="transformers computes in float64")
    options = parser.parse_args()
    columns = "family,layers,heads,kv_heads,head_dim,width,ffn,vocab,tied,experts,ranks"
    print(f"{columns},folders,gradients,loss,weights,logits,tokenizer,verdict")
    failed = 0
    for family in options.families.split(","):
        for i in range(options.configs):
            with tempfile.TemporaryDirectory() as folder:
                rng = random.Random(f"{options.seed} {family} {i}")
                failed += not check(
                    options.program.resolve(), options.ranks, options.layouts, options.float64, family, rng,
                    pathlib.Path(folder)
                )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
