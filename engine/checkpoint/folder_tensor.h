// SPDX-License-Identifier: Apache-2.0
#pragma once
// A tensor of a folder of weights. It is either whole in one safetensors file, or in pieces in several files.
//
// Pieces are the format of PyTorch's distributed checkpoints in safetensors (HuggingFaceStorageWriter with
// save_distributed). Each rank writes its boxes of the tensors as files shard-RANK-model-INDEX-of-COUNT.safetensors,
// whose numbers have five digits. The metadata of a file has a JSON text "DCP_SHARDING_INFO": {tensor:
// {"saved_offsets": [..]}} with the offsets at which each box begins, and the version "DCP_VERSION". No file holds the
// shape of a tensor: it ends where its last piece ends.
// Source: github.com/pytorch/pytorch, torch/distributed/checkpoint: hf_storage.py, _hf_utils.py, filesystem.py.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"

namespace slipstream::checkpoint {

/// A box of a tensor's values that one file holds.
struct TensorPiece {
  const SafetensorsFile* file = nullptr;
  const TensorInfo* info = nullptr;  // has the shape of the box and the name of the tensor
  std::vector<int64_t> offsets;      // the offsets of the box in the tensor, one per dimension
};

/// A tensor that borrows the files of its pieces. Several threads may read it at once.
class FolderTensor {
 public:
  /// Makes a tensor that one file holds whole. Pure.
  FolderTensor(const SafetensorsFile& file, const TensorInfo& info);
  /// Makes a tensor from its pieces, at least one. Pure.
  /// Throws: CheckpointError if their types or dimensions differ, two overlap, or values between them are missing.
  explicit FolderTensor(std::vector<TensorPiece> pieces);

  const std::string& name() const;
  const std::string& dtype() const;  // as in the files: "F32", "BF16", ..
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t elems() const { return elems_; }
  int64_t pieces() const { return static_cast<int64_t>(pieces_.size()); }
  /// Returns the path of the file with its first piece.
  const std::string& path() const;

  /// Blocks. Reads the elements [first, first + out.size()) of the tensor, row-major, and no others.
  /// Throws: as SafetensorsFile::read_floats().
  void read_floats(int64_t first, std::span<float> out) const;

 private:
  /// A piece as runs of elements that are consecutive both in its file and in the tensor.
  struct Runs {
    size_t piece = 0;
    size_t axis = 0;  // a run covers the axes after this one and a part of this one
    int64_t count = 0, elems = 0;
    int64_t begin = 0, end = 0;  // the elements of the tensor at which the first run begins and the last one ends
  };
  void check_pieces();
  void lay_out_runs();
  int64_t begin_of(const Runs& runs, int64_t run) const;

  std::vector<TensorPiece> pieces_;  // sorted by their offsets
  std::vector<int64_t> shape_, strides_;
  int64_t elems_ = 0;
  std::vector<Runs> runs_;  // the pieces that have elements
};

/// Blocks. Joins the pieces in `files` by their "DCP_SHARDING_INFO". The tensors have the order in which their names
/// appear. Throws: CheckpointError for a file without valid offsets of all its tensors, and as FolderTensor does.
std::vector<FolderTensor> join_pieces(std::span<const std::unique_ptr<SafetensorsFile>> files);

/// Blocks. Returns the paths of the files of pieces in `dir`, sorted by name.
std::vector<std::string> files_of_pieces(const std::string& dir);

}  // namespace slipstream::checkpoint
