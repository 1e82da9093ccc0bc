# SPDX-License-Identifier: Apache-2.0
"""Translates the names, the order of weights and the settings of Megatron-Core's GPTModel to those of Hugging Face.

Letters: D width, H heads, G query groups, E elements of a head, F hidden layer of the MLP, L layers, V vocabulary,
T positions.
A checkpoint stores the weights of all layers as one tensor [L, ..], or as one tensor per layer.
"""

import dataclasses
import re
import typing

EMBEDDING = "embedding.word_embeddings.weight"
HEAD = "output_layer.weight"
QKV, PROJ = "self_attention.linear_qkv", "self_attention.linear_proj"
FC1, FC2 = "mlp.linear_fc1", "mlp.linear_fc2"
LAYER = re.compile(r"decoder\.layers\.(?:(\d+)\.)?(.+)")
# Optimizer states, and states of fp8 kernels. The states of random generators are no tensors.
NO_WEIGHT = re.compile(r"^(chained_\d+\.)?optimizer\.|\._extra_state")
# Norms have these names where no kernel joins them with the product after them.
JOINED_NORMS = {
    "input_layernorm.weight": f"{QKV}.layer_norm_weight",
    "input_layernorm.bias": f"{QKV}.layer_norm_bias",
    "pre_mlp_layernorm.weight": f"{FC1}.layer_norm_weight",
    "pre_mlp_layernorm.bias": f"{FC1}.layer_norm_bias",
}
DIMS = {
    EMBEDDING: "V D",
    HEAD: "V D",
    "embedding.position_embeddings.weight": "T D",
    "decoder.final_layernorm.weight": "D",
    "decoder.final_layernorm.bias": "D",
    f"{QKV}.layer_norm_weight": "D",
    f"{QKV}.layer_norm_bias": "D",
    f"{QKV}.weight": "(H+2G)E D",
    f"{QKV}.bias": "(H+2G)E",
    "self_attention.q_layernorm.weight": "E",
    "self_attention.k_layernorm.weight": "E",
    f"{PROJ}.weight": "D HE",
    f"{PROJ}.bias": "D",
    f"{FC1}.layer_norm_weight": "D",
    f"{FC1}.layer_norm_bias": "D",
    f"{FC1}.weight": "FC1 D",
    f"{FC1}.bias": "FC1",
    f"{FC1}.weight_w": "F D",
    f"{FC1}.weight_v": "F D",
    f"{FC2}.weight": "D F",
    f"{FC2}.bias": "D",
}


LAYERS_MAX = 65536


class Refusal(Exception):
    """One sentence for the user."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    width: int
    heads: int
    groups: int
    head: int
    ffn: int
    layers: int
    rows: int  # of the stored embedding, with padding
    vocab: int
    context: int | None
    gated: bool

    def dims(self, name):
        dims = {
            "D": self.width,
            "E": self.head,
            "F": self.ffn,
            "T": self.context,
            "V": self.rows,
            "HE": self.heads * self.head,
            "(H+2G)E": (self.heads + 2 * self.groups) * self.head,
            "FC1": self.ffn * (2 if self.gated else 1),
        }
        return [dims[letters] for letters in DIMS[name].split()]


# Cuts: each returns a part of a stored tensor in the layout of Hugging Face.
def whole(tensor, _):
    return tensor


def transposed(tensor, _):
    return tensor.t()


def vocabulary(tensor, sizes):
    return tensor[: sizes.vocab]


def first_half(tensor, sizes):
    return tensor[: sizes.ffn]


def second_half(tensor, sizes):
    return tensor[sizes.ffn :]


def by_group(tensor, sizes):
    """[G, H/G + 2, E, ..]: each group has the rows of its queries, then of its key, then of its value."""
    return tensor.reshape(sizes.groups, sizes.heads // sizes.groups + 2, sizes.head, *tensor.shape[1:])


def queries(tensor, sizes):
    return by_group(tensor, sizes)[:, :-2].flatten(0, 2)


def keys(tensor, sizes):
    return by_group(tensor, sizes)[:, -2].flatten(0, 1)


def values(tensor, sizes):
    return by_group(tensor, sizes)[:, -1].flatten(0, 1)


def queries_keys_values(tensor, sizes):
    """GPT-2 has as many groups as heads, and one matrix [D, 3D], which multiplies from the right."""
    return by_group(tensor, sizes).transpose(0, 1).flatten(0, 2).t()


@dataclasses.dataclass(frozen=True)
class Family:
    architecture: str
    layer: str  # before the number of a layer
    outer: dict
    parts: dict  # of a layer: {stored name: {name in the result: cut}}

    @property
    def is_gpt2(self):
        return self.architecture == "GPT2LMHeadModel"


LLAMA_OUTER = {
    EMBEDDING: {"model.embed_tokens.weight": vocabulary},
    "decoder.final_layernorm.weight": {"model.norm.weight": whole},
}
LLAMA = {
    f"{QKV}.layer_norm_weight": {"input_layernorm.weight": whole},
    f"{QKV}.weight": {
        "self_attn.q_proj.weight": queries,
        "self_attn.k_proj.weight": keys,
        "self_attn.v_proj.weight": values,
    },
    f"{PROJ}.weight": {"self_attn.o_proj.weight": whole},
    f"{FC1}.layer_norm_weight": {"post_attention_layernorm.weight": whole},
    f"{FC1}.weight": {"mlp.gate_proj.weight": first_half, "mlp.up_proj.weight": second_half},
    f"{FC2}.weight": {"mlp.down_proj.weight": whole},
}
# Newer checkpoints store the halves of layers that differ apart.
HALVES = {f"{FC1}.weight_w": {"mlp.gate_proj.weight": whole}, f"{FC1}.weight_v": {"mlp.up_proj.weight": whole}}
QWEN2 = LLAMA | {
    f"{QKV}.bias": {"self_attn.q_proj.bias": queries, "self_attn.k_proj.bias": keys, "self_attn.v_proj.bias": values}
}
QWEN3 = LLAMA | {
    "self_attention.q_layernorm.weight": {"self_attn.q_norm.weight": whole},
    "self_attention.k_layernorm.weight": {"self_attn.k_norm.weight": whole},
}
GPT2_OUTER = {
    EMBEDDING: {"transformer.wte.weight": vocabulary},
    "embedding.position_embeddings.weight": {"transformer.wpe.weight": whole},
    "decoder.final_layernorm.weight": {"transformer.ln_f.weight": whole},
    "decoder.final_layernorm.bias": {"transformer.ln_f.bias": whole},
}
GPT2 = {
    f"{QKV}.layer_norm_weight": {"ln_1.weight": whole},
    f"{QKV}.layer_norm_bias": {"ln_1.bias": whole},
    f"{QKV}.weight": {"attn.c_attn.weight": queries_keys_values},
    f"{QKV}.bias": {"attn.c_attn.bias": queries_keys_values},
    f"{PROJ}.weight": {"attn.c_proj.weight": transposed},
    f"{PROJ}.bias": {"attn.c_proj.bias": whole},
    f"{FC1}.layer_norm_weight": {"ln_2.weight": whole},
    f"{FC1}.layer_norm_bias": {"ln_2.bias": whole},
    f"{FC1}.weight": {"mlp.c_fc.weight": transposed},
    f"{FC1}.bias": {"mlp.c_fc.bias": whole},
    f"{FC2}.weight": {"mlp.c_proj.weight": transposed},
    f"{FC2}.bias": {"mlp.c_proj.bias": whole},
}
FAMILIES = {
    "gpt2": Family("GPT2LMHeadModel", "transformer.h.", GPT2_OUTER, GPT2),
    "llama": Family("LlamaForCausalLM", "model.layers.", LLAMA_OUTER, LLAMA),
    "mistral": Family("MistralForCausalLM", "model.layers.", LLAMA_OUTER, LLAMA),
    "qwen2": Family("Qwen2ForCausalLM", "model.layers.", LLAMA_OUTER, QWEN2),
    "qwen3": Family("Qwen3ForCausalLM", "model.layers.", LLAMA_OUTER, QWEN3),
}
# The arguments of Megatron-LM that change the arithmetic, with the values that the families have.
ARITHMETIC = {
    "num_experts": (None, 0),
    "multi_latent_attention": (False,),
    "attention_output_gate": (False,),
    "rotary_interleaved": (False,),
    "rotary_percent": (1.0,),
    "rotary_seq_len_interpolation_factor": (None, 1),
    "no_rope_freq": (None,),
    "apply_layernorm_1p": (False,),
    "apply_residual_connection_post_layernorm": (False,),
    "squared_relu": (False,),
    "quick_geglu": (False,),
    "qk_l2_norm": (False,),
    "softmax_type": ("vanilla",),
    "use_mup": (False,),
    "window_attn_skip_freq": (None,),
}


@dataclasses.dataclass(frozen=True)
class Output:
    """A tensor of the result: a cut of a stored one, of one layer of it if `index` is a number."""

    name: str
    stored: str
    index: int | None
    cut: typing.Callable


def prefix_of(entries, given):
    """The part of all names before Megatron's own, such as "model."."""
    if given:
        return given
    weights = [name for name in entries if name.endswith(EMBEDDING) and not NO_WEIGHT.search(name)]
    found = sorted({name[: -len(EMBEDDING)] for name in weights})
    if not found:
        raise Refusal(f"no tensor has a name that ends with {EMBEDDING}. Give the folder of a GPTModel")
    if len(found) > 1:
        raise Refusal(f"it has models with the prefixes {', '.join(map(repr, found))}. Choose one with --strip")
    return found[0]


class Inventory:
    """The stored tensors of a model: {name: stored} outside of layers, {name: {layer: stored}} inside.

    The layer is None if the tensor has all of them.
    """

    def __init__(self, entries, given):
        self.shapes = {name: list(entry[1]) for name, entry in entries.items()}
        self.outer, self.layers = {}, {}
        prefix = prefix_of(entries, given)
        for stored in entries:
            if NO_WEIGHT.search(stored):
                continue
            if not stored.startswith(prefix):
                if given:
                    continue
                raise Refusal(f"the tensor {stored} is outside of the model {prefix!r}. Leave it out with --strip")
            name = stored[len(prefix) :]
            layer = LAYER.fullmatch(name)
            if layer is None:
                self.outer[name] = stored
                continue
            part = JOINED_NORMS.get(layer[2], layer[2])
            of_layers = self.layers.setdefault(part, {})
            number = None if layer[1] is None else int(layer[1])
            if number in of_layers or (of_layers and (number is None) != (None in of_layers)):
                first = next(iter(of_layers.values()))
                raise Refusal(f"{first} and {stored} are the same weight. Save the checkpoint again")
            of_layers[number] = stored
        if not self.layers:
            raise Refusal(f"no tensor begins with {prefix + 'decoder.layers.'!r}. Give another --strip")
        self.check_dims()
        self.count = max(
            self.shapes[of_layers[None]][0] if None in of_layers else max(of_layers) + 1
            for of_layers in self.layers.values()
        )
        if self.count > LAYERS_MAX:
            raise Refusal(f"it has {self.count} layers, need at most {LAYERS_MAX}. Restore the files")

    def check_dims(self):
        """Numbers of dimensions; sizes are checked later, when they are known. Unknown names are refused later too."""
        for name, stored in self.outer.items():
            self.check_dims_of(stored, name, 0)
        for name, of_layers in self.layers.items():
            for layer, stored in of_layers.items():
                self.check_dims_of(stored, name, layer is None)

    def check_dims_of(self, stored, name, more):
        need = len(DIMS[name].split()) + more if name in DIMS else max(1, len(self.shapes[stored]))
        if len(self.shapes[stored]) != need:
            raise Refusal(f"the tensor {stored} is {self.shapes[stored]}, need {need} dimensions. Restore the files")

    def place(self, part, layer):
        """The stored tensor and the layer in it, or None."""
        of_layers = self.layers.get(part, {})
        if None in of_layers:
            return of_layers[None], layer
        return (of_layers[layer], None) if layer in of_layers else None

    def shape(self, part):
        stored, layer = self.place(part, 0)
        return self.shapes[stored] if layer is None else self.shapes[stored][1:]

    def family(self):
        if "embedding.position_embeddings.weight" in self.outer:
            return "gpt2"
        if "self_attention.q_layernorm.weight" in self.layers:
            return "qwen3"
        return "qwen2" if f"{QKV}.bias" in self.layers else "llama"


def check_names(inventory, name, family, parts, is_untied):
    for part, of_layers in inventory.layers.items():
        if part not in parts:
            raise Refusal(f"the tensor {next(iter(of_layers.values()))} has no place in {name}. Give another --family")
    for outer, stored in inventory.outer.items():
        if outer not in family.outer and outer != HEAD:
            raise Refusal(f"the tensor {stored} has no place in {name}. Give another --family")
    missing = [outer for outer in family.outer if outer not in inventory.outer]
    if is_untied and HEAD not in inventory.outer:
        missing.append(HEAD)
    for part in parts:
        of_layers = [i for i in range(inventory.count) if inventory.place(part, i) is None]
        if len(of_layers) == inventory.count:
            missing.append(f"decoder.layers.{part}")
        else:
            missing += [f"decoder.layers.{i}.{part}" for i in of_layers]
    if missing:
        more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        raise Refusal(f"{name} needs {', '.join(missing[:6])}{more}. Restore the files, or give another --family")


def sizes_of(inventory, family, heads, vocab):
    rows, width = inventory.shapes[inventory.outer[EMBEDDING]]
    queries_rows, qkv_rows = inventory.shape(f"{PROJ}.weight")[-1], inventory.shape(f"{QKV}.weight")[0]
    if heads is None and "self_attention.q_layernorm.weight" in family.parts:
        heads = queries_rows // max(1, inventory.shape("self_attention.q_layernorm.weight")[0])
    if heads is None:
        raise Refusal("no saved argument names its number of heads. Give --heads, or --config config.json")
    if heads < 1 or queries_rows % heads != 0:
        raise Refusal(f"{heads} heads do not divide the {queries_rows} columns of {PROJ}.weight. Give other --heads")
    head = queries_rows // heads
    groups = (qkv_rows - queries_rows) // (2 * head)
    if groups < 1 or heads % groups != 0 or (heads + 2 * groups) * head != qkv_rows:
        raise Refusal(f"{heads} heads of {head} do not give the {qkv_rows} rows of {QKV}.weight. Give other --heads")
    if family.is_gpt2 and groups != heads:
        raise Refusal(f"{groups} query groups for {heads} heads are not GPT-2. Give another --family or --heads")
    if vocab is not None and not 1 <= vocab <= rows:
        raise Refusal(f"its vocabulary has {rows} rows, so that {vocab} cannot be kept. Give another --vocab")
    positions = inventory.outer.get("embedding.position_embeddings.weight")
    return Sizes(
        width=width,
        heads=heads,
        groups=groups,
        head=head,
        ffn=inventory.shape(f"{FC2}.weight")[-1],
        layers=inventory.count,
        rows=rows,
        vocab=vocab or rows,
        context=inventory.shapes[positions][0] if positions else None,
        gated=not family.is_gpt2,
    )


def check_shapes(inventory, sizes):
    needed = [(stored, sizes.dims(name)) for name, stored in inventory.outer.items()]
    for part, of_layers in inventory.layers.items():
        for layer, stored in of_layers.items():
            needed.append((stored, ([sizes.layers] if layer is None else []) + sizes.dims(part)))
    for stored, need in needed:
        if inventory.shapes[stored] != need:
            raise Refusal(f"the tensor {stored} is {inventory.shapes[stored]}, need {need}. Restore the files")


def check_arithmetic(arguments, name, family):
    """Saved arguments must describe the computation of the family. Absent arguments are newer than the checkpoint."""
    need = ARITHMETIC | {
        "normalization": ("LayerNorm",) if family.is_gpt2 else ("RMSNorm",),
        "position_embedding_type": ("learned_absolute",) if family.is_gpt2 else ("rope",),
        "swiglu": (not family.is_gpt2,),
    }
    for argument, right in need.items():
        value = arguments.get(argument, right[0])
        if value not in right:
            raise Refusal(f"it was trained with {argument} = {value}, {name} needs {right[0]}. Give another --family")


def window_of(options, arguments):
    """The tokens to which a token attends. Megatron counts those before it, and Hugging Face also the token itself."""
    if options.window:
        return options.window
    window = arguments.get("window_size")
    if isinstance(window, (list, tuple)) and window and isinstance(window[0], int) and window[0] >= 0:
        return window[0] + 1
    return None


def real(value):
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def integer(value):
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def config_of(name, family, sizes, tied, dtype, options, arguments):
    """config.json by shapes, options and saved arguments, in this order."""
    eps = options.norm_eps or real(arguments.get("norm_epsilon")) or real(arguments.get("layernorm_epsilon"))
    context = options.context or sizes.context or integer(arguments.get("max_position_embeddings"))
    theta = options.rope_theta or real(arguments.get("rotary_base"))
    needed = {"--norm-eps": eps} if family.is_gpt2 else {"--norm-eps": eps, "--rope-theta": theta, "--context": context}
    absent = [option for option, value in needed.items() if value is None]
    if absent:
        raise Refusal(f"no saved argument has the values of {', '.join(absent)}. Give them, or --config config.json")
    config = {"model_type": name, "architectures": [family.architecture], "vocab_size": sizes.vocab}
    if family.is_gpt2:
        is_tanh = arguments.get("bias_gelu_fusion", True) or arguments.get("openai_gelu", False)
        config |= {
            "n_positions": sizes.context,
            "n_embd": sizes.width,
            "n_layer": sizes.layers,
            "n_head": sizes.heads,
            "n_inner": sizes.ffn,
            "activation_function": "gelu_new" if is_tanh else "gelu",  # the joined kernel computes the tanh form
            "layer_norm_epsilon": eps,
        }
    else:
        rope = {"rope_type": "default"}
        if arguments.get("use_rope_scaling", False):  # Megatron-Core takes the other values from Llama 3.1
            factor = real(arguments.get("rope_scaling_factor")) or 8.0
            rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            rope["original_max_position_embeddings"] = 8192
            config["rope_scaling"] = rope
        config |= {
            "max_position_embeddings": context,
            "hidden_size": sizes.width,
            "intermediate_size": sizes.ffn,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.groups,
            "head_dim": sizes.head,
            "hidden_act": "silu",
            "rms_norm_eps": eps,
            "rope_theta": theta,
            "rope_parameters": rope | {"rope_theta": theta},
        }
    if name == "mistral":
        config["sliding_window"] = window_of(options, arguments)
    if name in ("qwen2", "qwen3"):
        config["use_sliding_window"] = False
    if name in ("llama", "qwen3"):
        config["attention_bias"] = False
    dtype = {"torch.float32": "float32", "torch.float16": "float16"}.get(str(dtype), "bfloat16")
    return config | {"bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": tied, "dtype": dtype}


def plan(entries, options, config, arguments):
    """Outputs, sizes and config.json of a checkpoint with the tensors {stored name: (type, shape)}.

    `config` has the values of --config, `arguments` the saved ones; both may be empty.
    """
    inventory = Inventory(entries, options.strip)
    name = options.family or str(config.get("model_type") or inventory.family())
    if name not in FAMILIES:
        raise Refusal(f"--config has the model_type {name}, need {', '.join(FAMILIES)}. Give another file")
    if window_of(options, arguments):
        if name != "mistral" and (name != "llama" or config):
            raise Refusal(f"a window of attention does not exist in {name}. Give --family mistral")
        name = "mistral"
    family = FAMILIES[name]
    parts = dict(family.parts)
    if f"{FC1}.weight_w" in inventory.layers and not family.is_gpt2:
        del parts[f"{FC1}.weight"]
        parts |= HALVES
    check_arithmetic(arguments, name, family)
    check_names(inventory, name, family, parts, arguments.get("untie_embeddings_and_output_weights") is True)
    given = options.heads or integer(config.get("n_head")) or integer(config.get("num_attention_heads"))
    saved = integer(arguments.get("num_attention_heads"))
    if given and saved and given != saved:  # both may fit the shapes
        raise Refusal(f"it was trained with {saved} heads, not {given}. Leave out --heads, or give another --config")
    sizes = sizes_of(inventory, family, given or saved, options.vocab or integer(config.get("vocab_size")))
    check_shapes(inventory, sizes)

    outputs = []
    for outer, stored in sorted(inventory.outer.items()):
        cuts = {"lm_head.weight": vocabulary} if outer == HEAD else family.outer[outer]
        outputs += [Output(new, stored, None, cut) for new, cut in cuts.items()]
    for i in range(sizes.layers):
        for part, cuts in parts.items():
            outputs += [Output(f"{family.layer}{i}.{new}", *inventory.place(part, i), cut) for new, cut in cuts.items()]
    dtype = entries[inventory.outer[EMBEDDING]][0]
    tied = HEAD not in inventory.outer
    return outputs, sizes, config or config_of(name, family, sizes, tied, dtype, options, arguments)
