#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Distributed checkpoints of PyTorch become the weights that were saved, bit for bit. Skips without torch.

usage: dcp_to_safetensors_test.py SOURCE_ROOT PROGRAM
"""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import warnings

try:
    import fsspec  # noqa: F401
    import numpy  # noqa: F401
    import safetensors  # noqa: F401
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as processes
    from torch.distributed.checkpoint import HuggingFaceStorageWriter
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError as missing:
    print(f"SKIPPED distributed checkpoints of PyTorch: {missing}")
    sys.exit(77)

ROOT, PROGRAM = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
SEED, RANKS, LAYERS, WIDTH, HEADS, KV_HEADS, FFN, VOCAB = 20261126, 2, 2, 24, 3, 1, 37, 259
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
warnings.filterwarnings("ignore")


def weights(dtype):
    """The same random weights in every process."""
    generator = torch.Generator().manual_seed(SEED)
    head = WIDTH // HEADS
    shapes = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,), "lm_head.weight": (VOCAB, WIDTH)}
    for i in range(LAYERS):
        layer = {
            "input_layernorm": (WIDTH,),
            "self_attn.q_proj": (HEADS * head, WIDTH),
            "self_attn.k_proj": (KV_HEADS * head, WIDTH),
            "self_attn.v_proj": (KV_HEADS * head, WIDTH),
            "self_attn.o_proj": (WIDTH, HEADS * head),
            "post_attention_layernorm": (WIDTH,),
            "mlp.gate_proj": (FFN, WIDTH),
            "mlp.up_proj": (FFN, WIDTH),
            "mlp.down_proj": (WIDTH, FFN),
        }
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def save(rank, folder, dtype):
    """Cuts rows, columns, unevenly (259 and 37 on two ranks), or not at all."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    state = {}
    for i, (name, tensor) in enumerate(weights(dtype).items()):
        places = [Shard(0), Shard(1) if tensor.dim() > 1 else Shard(0), Replicate()]
        state[name] = distribute_tensor(tensor, mesh, [places[i % 3]])
    files = {name: 1 + i % 2 for i, name in enumerate(state)}
    dcp.save(
        state,
        storage_writer=HuggingFaceStorageWriter(
            path=str(folder / "sharded"), fqn_to_index_mapping=files, save_distributed=True
        ),
    )
    whole = {"model": state, "optim": {"step": torch.tensor(7), "note": "text"}, "epoch": 3}
    dcp.save(whole, storage_writer=dcp.FileSystemWriter(str(folder / "pickled")))
    dist.destroy_process_group()


def load_script():
    sys.path.insert(0, str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("dcp_to_safetensors", ROOT / "scripts/dcp_to_safetensors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*command):
    if command[0] is SCRIPT:  # in this process: torch takes seconds to load
        text = io.StringIO()
        sys.argv = ["dcp_to_safetensors.py", *(str(part) for part in command[1:])]
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            try:
                code = SCRIPT.main()
            except SystemExit as end:  # of argparse
                code = end.code
        return code, text.getvalue()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


SCRIPT = load_script()


def succeed(*command):
    code, text = run(*command)
    assert code == 0, (command, code, text)


def refused(code, part, *command):
    got, text = run(*command)
    assert got == code and part in text and "Traceback" not in text, (command, got, text)


def tensors_in(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    begin = 8 + size
    return {
        name: (entry["dtype"], entry["shape"], data[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def check(folder, dtype):
    processes.start_processes(save, args=(folder, dtype), nprocs=RANKS, start_method="fork")
    sharded, pickled, config = folder / "sharded", folder / "pickled", folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    saved = {
        name: ("F32" if dtype == torch.float32 else "BF16", list(tensor.shape), bytes(tensor.view(torch.uint8).flatten().tolist()))
        for name, tensor in weights(dtype).items()
    }
    assert len(list(sharded.glob("shard-*-of-00002.safetensors"))) == 4, list(sharded.iterdir())

    refused(4, "no config.json", PROGRAM, "convert", sharded, folder / "none")
    shutil.copy(config, sharded)
    succeed(PROGRAM, "convert", sharded, folder / "joined")
    assert tensors_in(folder / "joined/model.safetensors") == saved

    refused(4, "dcp_to_safetensors.py", PROGRAM, "convert", pickled, folder / "none")
    succeed(SCRIPT, pickled, folder / "unpickled", "--config", config, "--strip", "model.")
    assert tensors_in(folder / "unpickled/model.safetensors") == saved
    succeed(PROGRAM, "convert", folder / "unpickled", folder / "again")
    assert tensors_in(folder / "again/model.safetensors") == saved
    assert (folder / "again/config.json").read_text() == (folder / "joined/config.json").read_text()
    succeed(SCRIPT, pickled, folder / "optim", "--strip", "optim.")
    assert tensors_in(folder / "optim/model.safetensors") == {"step": ("I64", [], struct.pack("<q", 7))}
    refused(4, "is not empty", SCRIPT, pickled, folder / "unpickled")
    refused(4, "Leave out --heads", SCRIPT, pickled, folder / "none", "--strip", "model.", "--heads", 3)
    refused(4, "no tensor begins with 'x.'", SCRIPT, pickled, folder / "none", "--strip", "x.")

    (sharded / "shard-00002-model-00001-of-00002.safetensors").unlink()
    refused(4, "Copy the files of all ranks", PROGRAM, "convert", sharded, folder / "none")
    next(pickled.glob("__1_*.distcp")).unlink()
    refused(4, "cannot be read", SCRIPT, pickled, folder / "none", "--strip", "model.")
    assert not (folder / "none/model.safetensors").exists() and not list((folder / "none").glob("*.partial"))


class Attack:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def check_attacks(folder):
    hostile = folder / "hostile"
    hostile.mkdir()
    for content, part in (
        (pickle.dumps(Attack(folder / "ran")), "mkdir"),
        (pickle.dumps({"a": 1}), "is no index"),
        (b"", "cannot be read"),
        (b"cbuiltins\ngetattr\n(cos\nsystem\nX\x01\x00\x00\x00atR.", "os.system"),
    ):
        (hostile / ".metadata").write_bytes(content)
        refused(4, part, SCRIPT, hostile, folder / "none")
    assert not (folder / "ran").exists()
    (hostile / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    refused(4, "Megatron-LM", SCRIPT, hostile, folder / "none")
    refused(4, "Megatron-LM", PROGRAM, "convert", hostile, folder / "none")
    refused(4, "no .metadata", SCRIPT, folder, folder / "none")


def main():
    print(f"seed {SEED}, torch {torch.__version__}")
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.bfloat16):
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder), dtype)
    with tempfile.TemporaryDirectory() as folder:
        check_attacks(pathlib.Path(folder))
    print("distributed checkpoints of PyTorch: the same bits")


if __name__ == "__main__":
    main()
