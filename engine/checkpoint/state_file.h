// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a run as boxes of logical tensors. Each writer writes one safetensors file, and any layout can read
// them.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/writer_pace.h"

namespace slipstream::checkpoint {

/// The rows [row, row + rows) and columns [column, column + columns) of one array of a tensor. A tensor of one
/// dimension has one column. A tensor with more dimensions has a row for every index of the first one.
struct Box {
  std::string tensor, array;
  int64_t row = 0, column = 0, rows = 0, columns = 0;

  int64_t elems() const { return rows * columns; }
  bool operator==(const Box&) const = default;
};

/// Returns the name of a box in its file: "weight:h.0.mlp.c_fc.weight[0:64,0:192]". Pure.
std::string name_of(const Box& box);
/// Returns the box of a name, or none if the name is not that of a box. Pure.
std::optional<Box> box_of(std::string_view name);
/// Returns the rows and columns of a tensor of this shape. Pure.
std::pair<int64_t, int64_t> matrix_of(const std::vector<int64_t>& shape);

struct BoxToSave {
  Box box;
  /// Is called on the thread that writes, in order. Fills in the elements from `begin` on, row by row.
  std::function<void(int64_t begin, std::span<float> out)> read;
};

/// Blocks. Writes the file and brings it to disk. With a `pace`, this thread alone writes at that pace. Without one,
/// threads beside this one help to write as fast as the disk allows. Needs 5 or 17 MiB of memory.
/// Throws: ResourceError (disk); errors of a callback. Then there is no file.
StateFile write_state_file(const std::string& folder, const std::string& name, std::vector<BoxToSave> boxes,
                           WriterPace* pace = nullptr);

/// Blocks. Reads the whole file. Returns an empty text if it is the file that the manifest describes, else the
/// difference.
std::string problem_of(const std::string& folder, const StateFile& file);

/// Receives elements of a wanted box. `values` are its elements from `begin` on, row by row.
using TakeElems = std::function<void(size_t wanted, int64_t begin, std::span<const float> values)>;
/// Blocks. Does the same, and in the same reading passes the elements of `wanted` that the file holds to `take`, before
/// the hash is known. Leaves out a wanted box whose columns differ from those of the file's box. StateReader::read()
/// reads it.
std::string problem_of(const std::string& folder, const StateFile& file, const std::vector<Box>& wanted,
                       const TakeElems& take);
/// Blocks. Reads no file. Returns an empty text if the files have the sizes of the manifest, else the first difference.
std::string size_problem_of(const std::string& folder, const std::vector<StateFile>& files);

/// Boxes in memory whose hash has been compared. `base` may be null if no box is read.
struct BoxesInMemory {
  std::vector<std::pair<Box, int64_t>> boxes;  // each with the offset from `base` at which it begins
  const std::byte* base = nullptr;
};

/// The state of a run in files or in memory, whose hashes have been compared. Several threads may read it at once.
class StateReader {
 public:
  /// Blocks. Opens the files.
  /// Throws: CheckpointError for a damaged file, or if the boxes of a logical tensor do not cover it exactly once.
  StateReader(const std::string& folder, const Manifest& manifest);
  /// Borrows the memory. `name` names the state in errors.
  /// Throws: CheckpointError if the boxes do not cover the tensors exactly once.
  StateReader(std::string name, const std::vector<LogicalTensor>& tensors, const std::vector<BoxesInMemory>& parts);

  /// Blocks. Reads the elements of `wanted`, row by row, from all boxes that hold them.
  /// Throws: CheckpointError if the checkpoint lacks the tensor or the array.
  void read(const Box& wanted, std::span<float> out) const;
  /// Returns true if the checkpoint has any part of the array.
  bool has(const std::string& tensor, const std::string& array) const { return at_.contains({tensor, array}); }

 private:
  /// Reads bytes of a box. `begin` counts from the first byte of the box.
  using ReadBytes = std::function<void(int64_t begin, void* to, int64_t size_bytes)>;
  struct Place {
    Box box;
    ReadBytes read;
  };
  void require_whole(const std::vector<LogicalTensor>& tensors);

  std::string name_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::pair<std::string, std::string>, std::vector<Place>> at_;  // by tensor and array, sorted by row
};

}  // namespace slipstream::checkpoint
