#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the weights of a distributed checkpoint of PyTorch as a folder in the Hugging Face format.

usage: scripts/dcp_to_safetensors.py FOLDER OUT [--config config.json] [--strip PREFIX]
       scripts/dcp_to_safetensors.py ITER_FOLDER OUT [--vocab 50257]     # torch_dist of Megatron-Core
Needs: pip install torch (2.4 or newer). FOLDER has .metadata and *.distcp, as FileSystemWriter writes them. Names stay
as they are stored. --strip takes only the tensors whose names begin with PREFIX, for instance "model.", and removes it.
The script holds one tensor, or one layer of it, in memory. It leaves out objects that are no tensors.

Weights of Megatron-Core's GPTModel get the names and the layout of Hugging Face: GPT-2, Llama, Mistral, Qwen2 or Qwen3,
as the tensors show; --family decides between equal ones. The file config.json comes from the options, the saved
arguments of the training, and shapes. --vocab removes the rows that pad the vocabulary.

The index is a pickle: only the classes of such an index are loaded from it. The tensors and the saved arguments are
read with torch's loader for weights, which refuses other objects; a foreign object becomes an empty one.
"""

import argparse
import collections
import ctypes
import enum
import io
import json
import os
import pathlib
import pickle
import struct
import sys
import warnings

import megatron_names
from megatron_names import Refusal

MEMORY_FORMATS = "_MEM_FORMAT_ENCODING"
METADATA_CLASSES = {
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorStorageMetadata",
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "TensorProperties",
    MEMORY_FORMATS,
}
FILE_CLASSES = {"_StorageInfo", "_StoragePrefix"}
# Megatron-Core keeps the plans of its ranks in the index, and had its own class for the index.
MEGATRON_MODULE = "megatron.core.dist_checkpointing.strategies.torch"
PLAN_CLASSES = {"SavePlan", "WriteItem", "TensorWriteData", "BytesIOWriteData"}
SAVED_ARGUMENTS = "common.pt"  # newer versions store them as an object of this name:
SAVED_STATE = "common_state/shard_0_1"

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import filesystem, metadata, planner, planner_helpers
except ImportError as missing:
    sys.exit(f"dcp_to_safetensors: {missing}. Install torch 2.4 or newer, or use a Python that has it.")

MEGATRON_OPTIONS = ("family", "vocab", "heads", "context", "window", "norm_eps", "rope_theta")
TYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class MegatronIndex(metadata.Metadata):
    """An index, and some more fields for optimizer states."""


class Foreign:
    """Replaces every object whose class is not loaded."""

    def __new__(cls, *_):
        return super().__new__(cls)

    def __init__(self, *_):
        pass

    def __setstate__(self, _):
        pass


def member(of, name):
    """getattr only for the members of enumerations, because Python 3.11 pickles them by it."""
    if not isinstance(of, enum.EnumMeta):
        raise Refusal(f"its index reads the attribute {name} of {of}, which no index needs. Do not trust it")
    return of[name]


class IndexUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module == metadata.__name__ and name in METADATA_CLASSES:
            return getattr(metadata, name)
        if module == filesystem.__name__ and name in FILE_CLASSES:
            return getattr(filesystem, name)
        if (module, name) == (MEGATRON_MODULE, "MCoreMetadata"):
            return MegatronIndex
        if (module, name) == (MEGATRON_MODULE, "MCoreSavePlan"):
            return Foreign
        if module == planner.__name__ and name in PLAN_CLASSES:
            return Foreign
        if (module, name) == (planner.__name__, "WriteItemType"):
            return planner.WriteItemType
        if module == "torch" and name == "Size":
            return torch.Size
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("torch.serialization", "_get_layout"):
            return torch.serialization._get_layout
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module in ("pathlib", "pathlib._local") and name == "PosixPath":
            return pathlib.PosixPath
        if (module, name) == ("builtins", "getattr"):
            return member
        raise Refusal(f"its index has an object of {module}.{name}, which no index of weights needs. Do not trust it")


class Reader(dcp.FileSystemReader):
    """torch's reader with an index that was read once, without foreign classes."""

    def __init__(self, folder):
        super().__init__(folder)
        with open(folder / ".metadata", "rb") as file:
            try:
                self.index = IndexUnpickler(file).load()
            except (pickle.UnpicklingError, AttributeError, EOFError, KeyError, TypeError, ValueError) as error:
                raise Refusal(f"its index .metadata cannot be read ({error}). Restore the file") from error
        if not isinstance(self.index, metadata.Metadata) or not isinstance(self.index.storage_data, dict):
            raise Refusal("its .metadata is no index of a distributed checkpoint. Restore the file")
        for place in self.index.storage_data.values():
            file = getattr(place, "relative_path", None)
            if not isinstance(file, str) or pathlib.PurePath(file).name != file:
                raise Refusal(f"its index has the place {place}, need a file in the folder. Do not trust it")

    def read_metadata(self, *args, **kwargs):
        return self.index


class OneTensor(planner.LoadPlanner):
    """Loads a stored tensor, or one index of its first dimension. The chunks of other indices are not read."""

    def __init__(self, index, stored, part):
        self.entry, self.stored = index.state_dict_metadata[stored], stored
        shape = list(self.entry.size)
        offsets = [0] * len(shape)
        if part is not None:
            shape[0], offsets[0] = 1, part
        self.chunk = metadata.ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(shape))
        self.tensor = torch.empty(shape, dtype=self.entry.properties.dtype)

    def set_up_planner(self, *_, **__):
        pass

    def create_local_plan(self):
        items = planner_helpers.create_read_items_for_chunk_list(self.stored, self.entry, [self.chunk])
        if sum(item.lengths.numel() for item in items) != self.tensor.numel():
            raise ValueError("the index lacks some of its chunks")
        return planner.LoadPlan(items)

    def create_global_plan(self, global_plan):
        return global_plan

    def finish_plan(self, central_plan):
        return central_plan

    def load_bytes(self, read_item, _):
        raise ValueError(f"{read_item.dest_index.fqn} is no tensor")

    def resolve_tensor(self, read_item):
        part = self.tensor
        for dim, (begin, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            part = part.narrow(dim, begin, length)
        return part

    def commit_tensor(self, *_):
        pass


class Tensors:
    """Reads stored tensors, and keeps the last one, because several tensors of the result may be parts of it."""

    def __init__(self, reader):
        self.reader, self.key, self.last = reader, None, None

    def read(self, stored, part):
        if self.key == (stored, part):
            return self.last
        self.key = self.last = None  # at most one in memory
        size = list(self.reader.index.state_dict_metadata[stored].size)
        try:
            wanted = OneTensor(self.reader.index, stored, part)
            dcp.load({stored: wanted.tensor}, storage_reader=self.reader, planner=wanted)
        except (Exception, dcp.CheckpointException) as error:
            last = str(error).strip().splitlines()[-1:]
            raise Refusal(f"the tensor {stored} {size} cannot be read ({''.join(last)}). Restore the files") from error
        self.key, self.last = (stored, part), wanted.tensor if part is None else wanted.tensor[0]
        return self.last


def tensors_of(reader):
    """{stored name: (type, shape)}, in the order of names."""
    return {
        stored: (entry.properties.dtype, list(entry.size))
        for stored, entry in sorted(reader.index.state_dict_metadata.items())
        if isinstance(entry, metadata.TensorStorageMetadata)
    }


def saved_state(folder, reader):
    """The file of the arguments of a training with Megatron-Core, or None."""
    if (folder / SAVED_ARGUMENTS).is_file():
        return io.BytesIO((folder / SAVED_ARGUMENTS).read_bytes())
    for index, place in reader.index.storage_data.items():
        if getattr(index, "fqn", None) == SAVED_STATE and (folder / place.relative_path).is_file():
            with open(folder / place.relative_path, "rb") as file:
                file.seek(place.offset)
                return io.BytesIO(file.read(place.length))
    return None


def saved_arguments(folder, reader):
    """{name: value} of the plain values. Empty, with a note, if torch's loader for weights refuses them."""
    try:
        file = saved_state(folder, reader)
        if file is None:
            return {}
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(file)  # torch 2.6
        file.seek(0)
        known = [(Foreign, name) for name in foreign if name != "argparse.Namespace"]
        with torch.serialization.safe_globals([argparse.Namespace, *known]):
            state = torch.load(file, map_location="cpu", weights_only=True)
        arguments = vars((state[0] if isinstance(state, list) else state)["args"])
    except Exception as error:  # noqa: BLE001  options can replace all of them
        last = str(error).strip().splitlines()[:1]
        print(f"the saved arguments cannot be read ({''.join(last)}); options replace them", file=sys.stderr)
        return {}
    plain = (type(None), bool, int, float, str, list, tuple)
    return {name: value for name, value in arguments.items() if isinstance(value, plain)}


def names_megatron(folder):
    """Does a file of Megatron-LM name the format? It must be torch_dist."""
    path = folder / "metadata.json"
    if not path.exists():
        return False
    try:
        backend = json.loads(path.read_bytes())["sharded_backend"]
    except (ValueError, KeyError, TypeError) as error:
        raise Refusal(f"its metadata.json is not one of Megatron-LM ({error}). Restore the file") from error
    if backend != "torch_dist":
        raise Refusal(f"it is a checkpoint of Megatron-LM in the format {backend}, need torch_dist. Save it again")
    return True


def stored_outputs(tensors, prefix, entries):
    """Every tensor whose name begins with the prefix, without it."""
    taken = [
        megatron_names.Output(stored[len(prefix) :], stored, None, megatron_names.whole)
        for stored in tensors
        if stored.startswith(prefix)
    ]
    if not taken:
        some = ", ".join(sorted(entries)[:3])
        raise Refusal(f"no tensor begins with {prefix!r}; the first names are {some}. Give another --strip")
    if len(taken) < len(entries):
        print(f"{len(entries) - len(taken)} entries left out", file=sys.stderr)
    return taken


def header_of(outputs, tensors, sizes):
    header = {"__metadata__": {"format": "pt"}}
    end = 0
    for output in outputs:
        dtype, shape = tensors[output.stored]
        if dtype not in TYPES:
            raise Refusal(f"the tensor {output.stored} has the type {dtype}, which safetensors lack. Convert it first")
        stored = torch.empty(shape if output.index is None else shape[1:], dtype=dtype, device="meta")
        part = output.cut(stored, sizes)
        size = part.numel() * dtype.itemsize
        header[output.name] = {"dtype": TYPES[dtype], "shape": list(part.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_tensor(file, tensor):
    tensor = tensor.contiguous()
    if tensor.numel() > 0:
        file.write((ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr()))


def plan_of(folder, reader, options):
    """Outputs, sizes for their cuts, and the text of config.json or None."""
    tensors = tensors_of(reader)
    config = options.config.read_bytes() if options.config else None
    if not names_megatron(folder) and not any(name.endswith(megatron_names.EMBEDDING) for name in tensors):
        given = [name for name in MEGATRON_OPTIONS if getattr(options, name) is not None]
        if given:
            raise Refusal(f"it is no checkpoint of Megatron-Core. Leave out --{given[0].replace('_', '-')}")
        return stored_outputs(tensors, options.strip, reader.index.state_dict_metadata), None, config
    try:
        known = json.loads(config or "{}")
    except ValueError as error:
        raise Refusal(f"--config {options.config} is not JSON ({error}). Give the config.json of the model") from error
    if not isinstance(known, dict):
        raise Refusal(f"--config {options.config} has no object. Give the config.json of the model")
    outputs, sizes, made = megatron_names.plan(tensors, options, known, saved_arguments(folder, reader))
    if sizes.vocab == sizes.rows:
        print(f"the vocabulary has {sizes.rows} rows; --vocab removes rows that pad it", file=sys.stderr)
    return outputs, sizes, config or (json.dumps(made, indent=2) + "\n").encode()


def convert(folder, out, options):
    names_megatron(folder)  # other formats have no index
    if not (folder / ".metadata").is_file():
        if (folder / "latest_checkpointed_iteration.txt").exists():
            raise Refusal("it has checkpoints of Megatron-LM. Give the folder of one, such as iter_0001000")
        raise Refusal("it has no .metadata. Give the folder that FileSystemWriter wrote")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refusal(f"{out} exists and is not empty. Give another folder for the result")
    reader = Reader(folder)
    outputs, sizes, config = plan_of(folder, reader, options)
    header = header_of(outputs, tensors_of(reader), sizes)
    out.mkdir(parents=True, exist_ok=True)
    partial = out / "model.safetensors.partial"
    tensors = Tensors(reader)
    try:
        with open(partial, "wb") as file:
            file.write(header)
            for output in outputs:
                write_tensor(file, output.cut(tensors.read(output.stored, output.index), sizes))
            file.flush()
            os.fsync(file.fileno())
        if config:
            (out / "config.json").write_bytes(config)
        partial.rename(out / "model.safetensors")
    except BaseException:  # also an interrupt
        partial.unlink(missing_ok=True)
        raise
    print(f"{len(outputs)} tensors in {out / 'model.safetensors'}")


def positive(kind):
    def convert_text(text):
        value = kind(text)
        if not value > 0:
            raise ValueError(text)
        return value

    convert_text.__name__ = f"{kind.__name__} above 0"  # argparse prints it
    return convert_text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--config", type=pathlib.Path, help="config.json of the model, copied to OUT")
    parser.add_argument("--strip", default="", metavar="PREFIX", help="take tensors with this prefix, and remove it")
    model = parser.add_argument_group("checkpoints of Megatron-Core")
    model.add_argument("--family", choices=megatron_names.FAMILIES)
    model.add_argument("--vocab", type=positive(int), help="tokens of the vocabulary, without rows that pad it")
    model.add_argument("--heads", type=positive(int), help="attention heads")
    model.add_argument("--context", type=positive(int), help="longest sequence, in tokens")
    model.add_argument("--window", type=positive(int), help="tokens that a token attends to, itself included")
    model.add_argument("--norm-eps", type=positive(float))
    model.add_argument("--rope-theta", type=positive(float))
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    if options.config and not options.config.is_file():
        parser.error(f"--config {options.config} is no file")
    try:
        convert(options.folder, options.out, options)
    except Refusal as refusal:
        print(f"dcp_to_safetensors: {options.folder}: {refusal}.", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
