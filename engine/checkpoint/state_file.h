// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a run as boxes of logical tensors: one safetensors file per writer, read by any layout.

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

/// Rows [row, row + rows) and columns [column, column + columns) of one array of a tensor. A tensor of one dimension
/// has one column; one of more has a row for every index of the first dimension.
struct Box {
  std::string tensor, array;
  int64_t row = 0, column = 0, rows = 0, columns = 0;

  int64_t elems() const { return rows * columns; }
  bool operator==(const Box&) const = default;
};

/// The name of a box in its file: "weight:h.0.mlp.c_fc.weight[0:64,0:192]". Pure.
std::string name_of(const Box& box);
/// The box of a name; none if it is no name of a box. Pure.
std::optional<Box> box_of(std::string_view name);
/// Rows and columns of a tensor of this shape. Pure.
std::pair<int64_t, int64_t> matrix_of(const std::vector<int64_t>& shape);

struct BoxToSave {
  Box box;
  /// Called on the thread that writes, in order. Fills in the elements from `begin` on, row by row.
  std::function<void(int64_t begin, std::span<float> out)> read;
};

/// Blocks. Writes the file and brings it to disk: at `pace` on this thread alone if there is one, else as fast as the
/// disk, with threads beside this one. Needs 5 or 17 MiB of memory.
/// Throws: ResourceError (disk), errors of a callback; then there is no file.
StateFile write_state_file(const std::string& folder, const std::string& name, std::vector<BoxToSave> boxes,
                           WriterPace* pace = nullptr);

/// Blocks. Reads the whole file. Empty if it is the file that the manifest describes, else the difference.
std::string problem_of(const std::string& folder, const StateFile& file);

/// Receives elements of a wanted box: `values` are its elements from `begin` on, row by row.
using TakeElems = std::function<void(size_t wanted, int64_t begin, std::span<const float> values)>;
/// Blocks. The same, and passes the elements of `wanted` that the file holds to `take` in this one reading, before its
/// hash is known. Leaves out a box with other columns than that of the file, which StateReader::read() brings.
std::string problem_of(const std::string& folder, const StateFile& file, const std::vector<Box>& wanted,
                       const TakeElems& take);
/// Blocks. Reads no file. Empty if the files have the sizes of the manifest, else the first difference.
std::string size_problem_of(const std::string& folder, const std::vector<StateFile>& files);

/// Boxes in memory whose hash has been compared. `base` may be null if none of them is read.
struct BoxesInMemory {
  std::vector<std::pair<Box, int64_t>> boxes;  // with the byte behind `base` at which it begins
  const std::byte* base = nullptr;
};

/// The state of a run in files or in memory, whose hashes have been compared. Safe to read from several threads.
class StateReader {
 public:
  /// Blocks. Opens the files.
  /// Throws: CheckpointError: a damaged file; boxes of a logical tensor that do not cover it
  /// once.
  StateReader(const std::string& folder, const Manifest& manifest);
  /// Borrows the memory. `name` is that of the state in errors.
  /// Throws: CheckpointError if the boxes do not cover the tensors once.
  StateReader(std::string name, const std::vector<LogicalTensor>& tensors, const std::vector<BoxesInMemory>& parts);

  /// Blocks. The elements of `wanted`, row by row, from whatever boxes hold them.
  /// Throws: CheckpointError if the checkpoint lacks the tensor or the array.
  void read(const Box& wanted, std::span<float> out) const;
  /// True if the checkpoint has any part of the array.
  bool has(const std::string& tensor, const std::string& array) const { return at_.contains({tensor, array}); }

 private:
  /// Reads bytes of a box, counted from its first.
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
