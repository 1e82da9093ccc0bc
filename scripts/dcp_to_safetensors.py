#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the weights of a distributed checkpoint of PyTorch as a folder in the Hugging Face format.

usage: scripts/dcp_to_safetensors.py FOLDER OUT [--config config.json] [--strip PREFIX]
Needs: pip install torch (2.4 or newer). FOLDER has .metadata and *.distcp, as FileSystemWriter writes them. Names stay as
they are stored. --strip takes only the tensors whose names begin with PREFIX, for instance "model.", and removes it.
Memory holds one tensor. Objects that are no tensors are left out.

The index is a pickle: only the classes of such an index are loaded from it. The tensors are read with torch's loader, which
refuses other objects.
"""

import argparse
import collections
import ctypes
import enum
import json
import os
import pathlib
import pickle
import shutil
import struct
import sys
import warnings

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


class Refusal(Exception):
    """One sentence for the user."""


try:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import filesystem, metadata
except ImportError as missing:
    sys.exit(f"dcp_to_safetensors: {missing}. Install torch 2.4 or newer, or use a Python that has it.")

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


def member(of, name):
    """getattr for the members of enumerations alone: Python 3.11 pickles them so."""
    if not isinstance(of, enum.EnumMeta):
        raise Refusal(f"its index reads the attribute {name} of {of}, which no index needs. Do not trust this checkpoint")
    return of[name]


class IndexUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module == metadata.__name__ and name in METADATA_CLASSES:
            return getattr(metadata, name)
        if module == filesystem.__name__ and name in FILE_CLASSES:
            return getattr(filesystem, name)
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


def tensors_of(reader, prefix):
    """{name in OUT: (stored name, type, shape)}, in the order of names."""
    taken = {}
    left_out = 0
    for stored, entry in sorted(reader.index.state_dict_metadata.items()):
        if not stored.startswith(prefix) or not isinstance(entry, metadata.TensorStorageMetadata):
            left_out += 1
            continue
        dtype = entry.properties.dtype
        if dtype not in TYPES:
            raise Refusal(f"the tensor {stored} has the type {dtype}, which this script does not write. Convert it first")
        taken[stored[len(prefix) :]] = (stored, dtype, list(entry.size))
    if not taken:
        some = ", ".join(sorted(reader.index.state_dict_metadata)[:3])
        raise Refusal(f"no tensor begins with {prefix!r}; the first names are {some}. Give another --strip")
    if left_out:
        print(f"{left_out} entries left out", file=sys.stderr)
    return taken


def header_of(taken):
    header = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (_, dtype, shape) in taken.items():
        size = dtype.itemsize
        for dim in shape:
            size *= dim
        header[name] = {"dtype": TYPES[dtype], "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_tensor(file, reader, stored, dtype, shape):
    try:
        state = {stored: torch.empty(shape, dtype=dtype)}
        dcp.load(state, storage_reader=reader)
    except (Exception, dcp.CheckpointException) as error:
        last = str(error).strip().splitlines()[-1:]
        raise Refusal(f"the tensor {stored} {shape} cannot be read ({''.join(last)}). Restore the files") from error
    tensor = state[stored].contiguous()
    if tensor.numel() > 0:
        file.write((ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr()))


def convert(folder, out, config, prefix):
    if not (folder / ".metadata").is_file():
        raise Refusal("it has no .metadata. Give the folder that FileSystemWriter wrote")
    if (folder / "metadata.json").exists():
        raise Refusal("it is a checkpoint of Megatron-LM. Export it with Megatron-LM's converter to the Hugging Face format")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refusal(f"{out} exists and is not empty. Give another folder for the result")
    reader = Reader(folder)
    taken = tensors_of(reader, prefix)
    out.mkdir(parents=True, exist_ok=True)
    partial = out / "model.safetensors.partial"
    try:
        with open(partial, "wb") as file:
            file.write(header_of(taken))
            for stored, dtype, shape in taken.values():
                write_tensor(file, reader, stored, dtype, shape)
            file.flush()
            os.fsync(file.fileno())
        if config:
            shutil.copyfile(config, out / "config.json")
        partial.rename(out / "model.safetensors")
    except BaseException:  # also an interrupt
        partial.unlink(missing_ok=True)
        raise
    print(f"{len(taken)} tensors in {out / 'model.safetensors'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--config", type=pathlib.Path, help="config.json of the model, copied to OUT")
    parser.add_argument("--strip", default="", metavar="PREFIX", help="take the tensors with this prefix, and remove it")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    if options.config and not options.config.is_file():
        parser.error(f"--config {options.config} is no file")
    try:
        convert(options.folder, options.out, options.config, options.strip)
    except Refusal as refusal:
        print(f"dcp_to_safetensors: {options.folder}: {refusal}.", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
