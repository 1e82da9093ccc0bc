#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Megatron-Core become the weights that they were made from, bit for bit. Skips without torch.

The checkpoints are made here: with common.pt, as by Megatron-Core 0.9, or with an object instead, as by 0.19. Where
transformers is installed, the result also opens there and gives the logits of the first weights.

usage: megatron_names_test.py SOURCE_ROOT PROGRAM
"""

import argparse
import enum
import io
import json
import os
import pathlib
import pickle
import sys
import tempfile
import types

os.environ["HF_HUB_OFFLINE"] = "1"
from dcp_to_safetensors_test import (  # noqa: E402
    PROGRAM,
    SCRIPT,
    Attack,
    Shard,
    dcp,
    dist,
    distribute_tensor,
    init_device_mesh,
    processes,
    refused,
    succeed,
    tensors_in,
    torch,
)
from torch.distributed.checkpoint import metadata, planner

try:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()
except ImportError:
    AutoModelForCausalLM = None

SEED, LAYERS, WIDTH, FFN, VOCAB, ROWS, CONTEXT = 20261126, 3, 24, 37, 259, 384, 32
FOREIGN = "megatron.core.dist_checkpointing.strategies.torch"
# For each family: heads, groups, and elements of a head.
HEADS = {"gpt2": (3, 3, 8), "llama": (4, 2, 6), "mistral": (6, 2, 10), "qwen2": (4, 4, 6), "qwen3": (6, 3, 8)}
ROPE = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPE["original_max_position_embeddings"] = 8192


class Backend(enum.Enum):
    flash = 1


class MCoreMetadata(metadata.Metadata):
    pass


class RawPlanner(dcp.DefaultSavePlanner):
    """Megatron-Core serializes objects itself."""

    def transform_object(self, write_item, object):
        return object


def config_of(family):
    heads, groups, head = HEADS[family]
    if family == "gpt2":
        names = dict(n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=heads, n_inner=FFN)
        return names | dict(model_type="gpt2", vocab_size=VOCAB, layer_norm_epsilon=1e-6, tie_word_embeddings=True)
    config = dict(model_type=family, vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=FFN, head_dim=head)
    config |= dict(num_hidden_layers=LAYERS, num_attention_heads=heads, num_key_value_heads=groups, rms_norm_eps=1e-6)
    rope = (ROPE if family == "llama" else {"rope_type": "default"}) | {"rope_theta": 5e5}
    config |= dict(max_position_embeddings=CONTEXT, rope_theta=5e5, rope_parameters=rope)
    if family == "mistral":
        config["sliding_window"] = 9
    return config | dict(tie_word_embeddings=family == "qwen2")


def weights_of(family, dtype):
    """Random weights with the names of Hugging Face."""
    heads, groups, head = HEADS[family]
    if family == "gpt2":
        shapes = {"transformer.wte.weight": (VOCAB, WIDTH), "transformer.wpe.weight": (CONTEXT, WIDTH)}
        layer = {"attn.c_attn.weight": (WIDTH, 3 * WIDTH), "attn.c_attn.bias": (3 * WIDTH,)}
        layer |= {"attn.c_proj.weight": (WIDTH, WIDTH), "attn.c_proj.bias": (WIDTH,)}
        layer |= {"mlp.c_fc.weight": (WIDTH, FFN), "mlp.c_fc.bias": (FFN,)}
        layer |= {"mlp.c_proj.weight": (FFN, WIDTH), "mlp.c_proj.bias": (WIDTH,)}
        layer |= {f"{norm}.{part}": (WIDTH,) for norm in ("ln_1", "ln_2") for part in ("weight", "bias")}
        shapes |= {f"transformer.ln_f.{part}": (WIDTH,) for part in ("weight", "bias")}
    else:
        shapes = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
        rows = {"q": heads * head, "k": groups * head, "v": groups * head}
        layer = {f"self_attn.{name}_proj.weight": (rows[name], WIDTH) for name in rows}
        layer |= {"self_attn.o_proj.weight": (WIDTH, heads * head), "mlp.gate_proj.weight": (FFN, WIDTH)}
        layer |= {"mlp.up_proj.weight": (FFN, WIDTH), "mlp.down_proj.weight": (WIDTH, FFN)}
        layer |= {"input_layernorm.weight": (WIDTH,), "post_attention_layernorm.weight": (WIDTH,)}
        if family == "qwen2":
            layer |= {f"self_attn.{name}_proj.bias": (rows[name],) for name in rows}
        else:
            shapes["lm_head.weight"] = (VOCAB, WIDTH)
        if family == "qwen3":
            layer |= {f"self_attn.{name}_norm.weight": (head,) for name in "qk"}
    blocks = "transformer.h" if family == "gpt2" else "model.layers"
    shapes |= {f"{blocks}.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()}
    generator = torch.Generator().manual_seed(SEED)
    return {name: (0.1 * torch.randn(shape, generator=generator)).to(dtype) for name, shape in shapes.items()}


def interleaved(query, key, value, family):
    """The rows of Megatron-Core's linear_qkv, head by head."""
    heads, groups, head = HEADS[family]
    rows = []
    for group in range(groups):
        for i in range(group * heads // groups, (group + 1) * heads // groups):
            rows.append(query[i * head : (i + 1) * head])
        rows += [key[group * head : (group + 1) * head], value[group * head : (group + 1) * head]]
    return torch.cat(rows)


def megatron_layer(w, family):
    """A layer of Megatron-Core from the one of Hugging Face."""
    if family == "gpt2":
        thirds = [w["attn.c_attn.weight"][:, i * WIDTH : (i + 1) * WIDTH].T for i in range(3)]
        bias = [w["attn.c_attn.bias"][i * WIDTH : (i + 1) * WIDTH] for i in range(3)]
        return {
            "self_attention.linear_qkv.layer_norm_weight": w["ln_1.weight"],
            "self_attention.linear_qkv.layer_norm_bias": w["ln_1.bias"],
            "self_attention.linear_qkv.weight": interleaved(*thirds, family),
            "self_attention.linear_qkv.bias": interleaved(*bias, family),
            "self_attention.linear_proj.weight": w["attn.c_proj.weight"].T,
            "self_attention.linear_proj.bias": w["attn.c_proj.bias"],
            "mlp.linear_fc1.layer_norm_weight": w["ln_2.weight"],
            "mlp.linear_fc1.layer_norm_bias": w["ln_2.bias"],
            "mlp.linear_fc1.weight": w["mlp.c_fc.weight"].T,
            "mlp.linear_fc1.bias": w["mlp.c_fc.bias"],
            "mlp.linear_fc2.weight": w["mlp.c_proj.weight"].T,
            "mlp.linear_fc2.bias": w["mlp.c_proj.bias"],
        }
    apart = family == "mistral"  # norms are separate kernels in the layers
    gate, up = w["mlp.gate_proj.weight"], w["mlp.up_proj.weight"]
    norms = [f"{x}_layernorm.weight" for x in ("input", "pre_mlp")]
    if not apart:
        norms = [f"{x}.layer_norm_weight" for x in ("self_attention.linear_qkv", "mlp.linear_fc1")]
    layer = {
        norms[0]: w["input_layernorm.weight"],
        norms[1]: w["post_attention_layernorm.weight"],
        "self_attention.linear_qkv.weight": interleaved(*(w[f"self_attn.{x}_proj.weight"] for x in "qkv"), family),
        "self_attention.linear_proj.weight": w["self_attn.o_proj.weight"],
        "mlp.linear_fc2.weight": w["mlp.down_proj.weight"],
    }
    if family == "qwen2":
        layer["self_attention.linear_qkv.bias"] = interleaved(*(w[f"self_attn.{x}_proj.bias"] for x in "qkv"), family)
        layer |= {"mlp.linear_fc1.weight_w": gate, "mlp.linear_fc1.weight_v": up}
    else:
        layer["mlp.linear_fc1.weight"] = torch.cat([gate, up])
    if family == "qwen3":
        layer |= {f"self_attention.{x}_layernorm.weight": w[f"self_attn.{x}_norm.weight"] for x in "qk"}
    return layer


def padded(table):
    return torch.cat([table, torch.full((ROWS - VOCAB, WIDTH), 7.0, dtype=table.dtype)])


def state_of(family, weights):
    blocks = "transformer.h." if family == "gpt2" else "model.layers."
    layers = [
        megatron_layer({n[len(start) :]: w for n, w in weights.items() if n.startswith(start)}, family)
        for start in (f"{blocks}{i}." for i in range(LAYERS))
    ]
    if family in ("mistral", "qwen2"):
        state = {f"decoder.layers.{i}.{name}": w for i in range(LAYERS) for name, w in layers[i].items()}
    else:
        state = {f"decoder.layers.{name}": torch.stack([layer[name] for layer in layers]) for name in layers[0]}
    if family == "gpt2":
        state["embedding.word_embeddings.weight"] = padded(weights["transformer.wte.weight"])
        state["embedding.position_embeddings.weight"] = weights["transformer.wpe.weight"]
        state |= {f"decoder.final_layernorm.{x}": weights[f"transformer.ln_f.{x}"] for x in ("weight", "bias")}
    else:
        state["embedding.word_embeddings.weight"] = padded(weights["model.embed_tokens.weight"])
        state["decoder.final_layernorm.weight"] = weights["model.norm.weight"]
        if "lm_head.weight" in weights:
            state["output_layer.weight"] = padded(weights["lm_head.weight"])
    prefix = "model." if family == "qwen3" else ""
    state = {prefix + name: w for name, w in state.items()}
    for name in list(state)[:3]:
        state[f"chained_0.optimizer.state.exp_avg.{name}"] = torch.zeros(state[name].shape)
        state[f"optimizer.state.fp32_param.{name}"] = torch.zeros(state[name].shape)
    state["decoder.layers.self_attention.core_attention._extra_state/shard_0_3"] = io.BytesIO(b"fp8")
    state["rng_state/shard_0_1"] = io.BytesIO(pickle.dumps(Attack("/nowhere")))
    return state


def arguments_of(family, **more):
    heads, groups, _ = HEADS[family]
    is_gpt2 = family == "gpt2"
    return argparse.Namespace(
        num_attention_heads=heads,
        num_query_groups=groups,
        norm_epsilon=1e-6,
        normalization="LayerNorm" if is_gpt2 else "RMSNorm",
        position_embedding_type="learned_absolute" if is_gpt2 else "rope",
        swiglu=not is_gpt2,
        rotary_base=500000,
        use_rope_scaling=family == "llama",
        rope_scaling_factor=4.0,
        max_position_embeddings=CONTEXT,
        window_size=(8, 0) if family == "mistral" else None,
        untie_embeddings_and_output_weights=family not in ("gpt2", "qwen2"),
        attention_backend=Backend.flash,
        params_dtype=torch.bfloat16,
        **more,
    )


def save_shards(rank, folder, rendezvous, state):
    """Uneven pieces of layers, rows and columns."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for i, (name, value) in enumerate(list(state.items())):
        if isinstance(value, torch.Tensor):
            state[name] = distribute_tensor(value, mesh, [Shard(i % value.dim())])
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), planner=RawPlanner())
    dist.destroy_process_group()


def save(folder, state, arguments=None, as_object=False, ranks=1, lost=None):
    """As Megatron-Core, whose newer versions store common.pt as an object. The index lacks the chunks of `lost`."""
    words = FOREIGN.split(".")
    modules = {name: types.ModuleType(name) for name in (".".join(words[: i + 1]) for i in range(len(words)))}
    for kind in (Backend, MCoreMetadata):
        setattr(modules[FOREIGN], kind.__name__, kind)
        kind.__module__ = FOREIGN
    sys.modules.update(modules)
    common = {"args": arguments, "checkpoint_version": 3.0, "iteration": 7}
    state = dict(state)
    if arguments is not None and as_object:
        state["common_state/shard_0_1"] = io.BytesIO()
        torch.save([common], state["common_state/shard_0_1"])
    if ranks == 1:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), planner=RawPlanner(), no_dist=True)
    else:
        meeting = folder.with_name("rendezvous")
        processes.start_processes(save_shards, args=(folder, meeting, state), nprocs=ranks, start_method="fork")
    if arguments is not None and not as_object:
        torch.save(common, folder / "common.pt")
    index = pickle.loads((folder / ".metadata").read_bytes())
    made = MCoreMetadata(**vars(index))
    if lost:
        made.state_dict_metadata[lost].chunks.pop()
    tensor = planner.TensorWriteData(
        metadata.ChunkStorageMetadata(torch.Size([0]), torch.Size([1])), metadata.TensorProperties(), torch.Size([1])
    )
    item = planner.WriteItem(metadata.MetadataIndex("a"), planner.WriteItemType.TENSOR, tensor_data=tensor)
    made.all_local_plans, made.mcore_data = [planner.SavePlan([item])], {"a": {"shape": (1,)}}
    (folder / ".metadata").write_bytes(pickle.dumps(made))
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    for name in modules:  # nothing may import these
        del sys.modules[name]


def bits(weights):
    names = {torch.float32: "F32", torch.bfloat16: "BF16"}
    return {
        name: (names[w.dtype], list(w.shape), bytes(w.contiguous().view(torch.uint8).flatten().tolist()))
        for name, w in weights.items()
    }


def check_logits(family, weights, out):
    """The result has a config of its own; the reference has the one of this test."""
    ids = torch.arange(2 * CONTEXT).view(2, CONTEXT) * 7 % VOCAB
    config = AutoConfig.for_model(**config_of(family))
    want = AutoModelForCausalLM.from_config(config).eval()
    lacking = want.load_state_dict(weights, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert set(lacking.missing_keys) <= tied and not lacking.unexpected_keys, lacking
    got = AutoModelForCausalLM.from_pretrained(out, dtype="auto").eval()
    with torch.no_grad():
        assert torch.equal(want(ids).logits, got(ids).logits), family


OPTIONS = {
    "gpt2": ["--vocab", VOCAB],
    "llama": ["--vocab", VOCAB],
    "mistral": ["--vocab", VOCAB],
    "qwen2": "--heads 4 --norm-eps 1e-6 --rope-theta 500000 --context 32 --vocab".split() + [VOCAB],
}


def check_family(family, dtype, folder):
    weights = weights_of(family, dtype)
    saved = folder / "iter_0000007"
    (folder / "latest_checkpointed_iteration.txt").write_text("7")
    arguments = None if family in ("qwen2", "qwen3") else arguments_of(family)
    save(saved, state_of(family, weights), arguments, family == "mistral", 2 if family == "llama" else 1)
    refused(4, "iter_", SCRIPT, folder, folder / "none")
    config = folder / "config.json"
    config.write_text(json.dumps(config_of(family)))
    out = folder / "out"
    succeed(SCRIPT, saved, out, *OPTIONS.get(family, ["--config", config]))
    assert tensors_in(out / "model.safetensors") == bits(weights), family
    succeed(PROGRAM, "convert", out, folder / "again")
    assert tensors_in(folder / "again/model.safetensors") == bits(weights), family
    made, need = (json.loads((folder / name / "config.json").read_text()) for name in ("again", "out"))
    for name, value in config_of(family).items():
        assert need[name] == value, (family, name, need[name], value)
        if name != "rope_parameters":
            assert made[name] == value, (family, name, made[name], value)
    if AutoModelForCausalLM and dtype == torch.float32:
        check_logits(family, weights, out)


def check_refusals(folder):
    weights = weights_of("llama", torch.float32)
    state, arguments = state_of("llama", weights), arguments_of("llama")
    qkv = "decoder.layers.self_attention.linear_qkv.weight"

    def refuse(part, changed, options=(), arguments=arguments, code=4):
        refuse.count += 1
        saved = folder / f"saved{refuse.count}"
        save(saved, {name: w for name, w in changed.items() if w is not None}, arguments)
        refused(code, part, SCRIPT, saved, folder / "none", *options)
        assert not (folder / "none").exists(), part
        return saved

    refuse.count = 0
    refuse("router.weight has no place in llama", state | {"decoder.layers.mlp.router.weight": state[qkv]})
    refuse("mtp.norm.weight has no place", state | {"mtp.norm.weight": torch.ones(2)})
    refuse("needs decoder.layers.mlp.linear_fc2.weight", state | {"decoder.layers.mlp.linear_fc2.weight": None})
    refuse("output_layer.weight", state | {"output_layer.weight": None})
    refuse("need [3, 74, 24]", state | {"decoder.layers.mlp.linear_fc1.weight": torch.ones(LAYERS, FFN, WIDTH)})
    refuse("need 3 dimensions", state | {qkv: torch.ones(48)})
    refuse("need 1 dimensions", state | {"decoder.final_layernorm.weight": torch.tensor(1.0)})
    refuse("are the same weight", state | {"decoder.layers.0.self_attention.linear_qkv.weight": state[qkv][0]})
    refuse("heads do not divide", state, ["--heads", 5], arguments=None)
    refuse("do not give the 48 rows", state, ["--heads", 3], arguments=None)
    refuse("trained with 4 heads, not 24", state, ["--heads", 24])
    refuse("384 rows", state, ["--vocab", 385])
    refuse("llama needs decoder.layers", {n: w for n, w in state.items() if "linear_proj" not in n})
    refuse("qwen3 needs decoder.layers.self_attention.q_layernorm.weight", state, ["--family", "qwen3"])
    refuse("gpt2 needs embedding.position_embeddings.weight", state, ["--family", "gpt2"], argparse.Namespace())
    refuse("'', 'draft.'", state | {"draft.embedding.word_embeddings.weight": torch.ones(4, 4)})
    refuse("rotary_interleaved = True", state, arguments=arguments_of("llama", rotary_interleaved=True))
    refuse("multi_latent_attention = True", state, arguments=arguments_of("llama", multi_latent_attention=True))
    save(folder / "lost", state, arguments, lost=qkv)
    refused(4, "the index lacks some of its chunks", SCRIPT, folder / "lost", folder / "lost.out")
    assert not list((folder / "lost.out").iterdir())
    saved = refuse("names its number of heads. Give --heads", state, arguments=None)
    refused(4, "--norm-eps, --rope-theta, --context", SCRIPT, saved, folder / "none", "--heads", 4)
    refused(2, "--heads", SCRIPT, saved, folder / "none", "--heads", 0)
    for content, part in (("{", "is not JSON"), ("[]", "has no object"), ('{"model_type": "opt"}', "model_type opt")):
        (folder / "config.json").write_text(content)
        refused(4, part, SCRIPT, saved, folder / "none", "--config", folder / "config.json")
    with open(saved / "common.pt", "wb") as file:
        torch.save({"args": Attack(folder / "ran")}, file)
    refused(4, "saved arguments cannot be read", SCRIPT, saved, folder / "none")
    (saved / "common.pt").write_bytes(b"nonsense")
    refused(4, "saved arguments cannot be read", SCRIPT, saved, folder / "none")
    assert not (folder / "ran").exists() and not pathlib.Path("/nowhere").exists()
    (saved / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    refused(4, "the format zarr, need torch_dist", SCRIPT, saved, folder / "none")
    (saved / "metadata.json").write_text("{}")
    refused(4, "metadata.json is not one of Megatron-LM", SCRIPT, saved, folder / "none")


def check_erf_gelu(folder):
    """The joined kernel computes the tanh form. Without it Megatron-Core computes erf, which Slipstream refuses."""
    state = state_of("gpt2", weights_of("gpt2", torch.float32))
    save(folder / "saved", state, arguments_of("gpt2", bias_gelu_fusion=False))
    succeed(SCRIPT, folder / "saved", folder / "out")
    assert json.loads((folder / "out/config.json").read_text())["vocab_size"] == ROWS  # made without --vocab
    refused(4, "activation_function", PROGRAM, "convert", folder / "out", folder / "again")


def main():
    print(f"seed {SEED}, torch {torch.__version__}, transformers {'compared' if AutoModelForCausalLM else 'absent'}")
    torch.set_num_threads(1)
    for family in HEADS:
        for dtype in (torch.float32, torch.bfloat16):
            with tempfile.TemporaryDirectory() as folder:
                check_family(family, dtype, pathlib.Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        check_refusals(pathlib.Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        check_erf_gelu(pathlib.Path(folder))
    print("checkpoints of Megatron-Core: the same bits")


if __name__ == "__main__":
    main()
