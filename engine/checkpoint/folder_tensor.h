// SPDX-License-Identifier: Apache-2.0
#pragma once
// A tensor of a folder of weights: whole in one safetensors file, or in pieces in several.
//
// Pieces are the format of PyTorch's distributed checkpoints in safetensors (HuggingFaceStorageWriter with
// save_distributed). Each rank writes its boxes of the tensors as files
// shard-RANK-model-INDEX-of-COUNT.safetensors with numbers of five digits. The metadata of a file has a JSON text
// "DCP_SHARDING_INFO": {tensor: {"saved_offsets": [..]}}, where the box begins, and the version "DCP_VERSION". No file
// holds the shape of a tensor: it ends where its last piece does.
// Source: github.com/pytorch/pytorch, torch/distributed/checkpoint: hf_storage.py, _hf_utils.py, filesystem.py.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"

namespace slipstream::checkpoint {

/// A box of a tensor's values in one file.
struct TensorPiece {
  const SafetensorsFile* file = nullptr;
  const TensorInfo* info = nullptr;  // has the shape of the box and the name of the tensor
  std::vector<int64_t> offsets;      // of the box in the tensor, one per dimension
};

/// Borrows the files of its pieces. Safe to read from several threads.
class FolderTensor {
 public:
  /// A tensor that a file holds whole. Pure.
  FolderTensor(const SafetensorsFile& file, const TensorInfo& info);
  /// The pieces of one name, at least one. Pure.
  /// Throws: CheckpointError if their types or dimensions differ, two overlap, or values between them are missing.
  explicit FolderTensor(std::vector<TensorPiece> pieces);

  const std::string& name() const;
  const std::string& dtype() const;  // as in the files: "F32", "BF16", ..
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t elems() const { return elems_; }
  int64_t pieces() const { return static_cast<int64_t>(pieces_.size()); }
  /// The file of its first piece.
  const std::string& path() const;

  /// Blocks. Elements [first, first + out.size()) of the tensor, row-major. Reads no others.
  /// Throws: as SafetensorsFile::read_floats().
  void read_floats(int64_t first, std::span<float> out) const;

 private:
  /// A piece as runs of elements that follow each other in its file and in the tensor.
  struct Runs {
    size_t piece = 0;
    size_t axis = 0;  // a run covers the axes behind this one and a part of it
    int64_t count = 0, elems = 0;
    int64_t begin = 0, end = 0;  // of the first and the last run in the tensor
  };
  void check_pieces();
  void lay_out_runs();
  int64_t begin_of(const Runs& runs, int64_t run) const;

  std::vector<TensorPiece> pieces_;  // sorted by their offsets
  std::vector<int64_t> shape_, strides_;
  int64_t elems_ = 0;
  std::vector<Runs> runs_;  // of the pieces that have elements
};

/// Blocks. Joins the pieces in `files` by their "DCP_SHARDING_INFO"; in the order in which the names appear.
/// Throws: CheckpointError for a file without valid offsets of all its tensors, and as FolderTensor.
std::vector<FolderTensor> join_pieces(std::span<const std::unique_ptr<SafetensorsFile>> files);

/// Blocks. The files of pieces in `dir`, sorted by name.
std::vector<std::string> files_of_pieces(const std::string& dir);

}  // namespace slipstream::checkpoint
