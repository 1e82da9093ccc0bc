// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors in one safetensors file: strict reading, canonical writing.
//
// Layout: N as a little-endian u64, N bytes of JSON, then the tensors back to back, row-major and little-endian, until
// the end of the file. Source: github.com/huggingface/safetensors, README "Format". The writer's order (alignment of
// the type, largest first, then name) and padding (spaces, 8 + N a multiple of 8) match that library, so that equal
// tensors give equal bytes.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/files.h"

namespace slipstream::checkpoint {

/// Receives the next bytes of a tensor, row-major.
using TensorSink = std::function<void(const void* bytes, int64_t size_bytes)>;

struct TensorToSave {
  std::string name;          // unique in the file; no control characters, 1 to 1024 bytes of UTF-8
  DType dtype = DType::f32;  // f32 or bf16
  std::vector<int64_t> shape;
  /// Is called once, in file order. It must pass all bytes of the tensor to the sink, in any number of pieces.
  std::function<void(const TensorSink& sink)> write;
};

struct WrittenFile {
  int64_t size_bytes = 0;
  std::string hash;  // XXH3-128 of all bytes of the file
};

/// Blocks. Writes the file under a temporary name in the same folder and then renames it.
/// Throws: ResourceError (disk); what a callback throws; InternalError (two equal names, a callback with too many or
/// too few bytes). After an error, an older file at `path` is unchanged.
WrittenFile write_safetensors(const std::string& path, std::vector<TensorToSave> tensors);
/// Does the same past the page cache. `threads` has the meaning that it has in DirectWriter.
WrittenFile write_safetensors_direct(const std::string& path, std::vector<TensorToSave> tensors, int threads);

struct TensorInfo {
  std::string name;
  std::string dtype;  // as in the file: "F32", "BF16", ..
  std::vector<int64_t> shape;
  int64_t begin_bytes = 0;  // from the start of the file
  int64_t size_bytes = 0;

  int64_t elems() const;
};

/// A file whose header has been validated. Tensors are read on request. Several threads may read at once.
class SafetensorsFile {
 public:
  /// Blocks. Throws: CheckpointError that names the violation of the format.
  explicit SafetensorsFile(const std::string& path);

  /// Returns the tensors in the order of the file.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }
  /// Returns null if no tensor has this name. Pure.
  const TensorInfo* find(std::string_view name) const;
  /// Throws: CheckpointError that tells what to do if no tensor has this name.
  const TensorInfo& get(std::string_view name) const;

  /// Blocks. Reads raw bytes of the tensor, beginning at its byte `offset_bytes`.
  void read(const TensorInfo& tensor, int64_t offset_bytes, void* out, int64_t size_bytes) const;
  /// Blocks. Reads all elements as float, from F32, BF16 or F16. out.size() must be tensor.elems().
  /// Throws: CheckpointError if the tensor has another type.
  void read_floats(const TensorInfo& tensor, std::span<float> out) const;
  /// Does the same for the elements [first, first + out.size()).
  void read_floats(const TensorInfo& tensor, int64_t first, std::span<float> out) const;
  /// Blocks. Returns XXH3-128 of all bytes of the file. They stay in the page cache for the reading that follows.
  std::string hash() const;
  const std::string& path() const { return file_.path(); }

 private:
  files::InputFile file_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::unordered_map<std::string, size_t> index_of_;
};

}  // namespace slipstream::checkpoint
