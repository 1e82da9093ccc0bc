// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tensors of a Hugging Face folder: one model.safetensors, or several files with an index.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/json.h"
#include "engine/checkpoint/safetensors.h"

namespace slipstream::checkpoint {

inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

/// Safe to read from several threads.
class WeightsFolder {
 public:
  /// Blocks. Reads config.json, the index and the headers of all files.
  /// Throws: CheckpointError: no such folder, missing files (each by name), a damaged file, an index that disagrees
  /// with its files.
  explicit WeightsFolder(std::string dir);

  struct Tensor {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* info = nullptr;
  };
  /// A null file if no tensor has this name. Pure.
  Tensor find(const std::string& name) const;
  /// Of all files, in their order. Pure.
  std::vector<Tensor> tensors() const;
  const std::string& dir() const { return dir_; }
  const Json& config() const { return config_; }
  std::string config_path() const;

 private:
  std::string dir_;
  Json config_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string, Tensor> tensors_;
};

/// True if `dir` has a file of weights or an index. Blocks.
bool has_weights(const std::string& dir);

/// Blocks. The folder itself, or the final weights of a run folder. Throws: CheckpointError if neither has weights.
std::string find_weights(const std::string& path);

/// Blocks. config.json of a folder. Throws: CheckpointError if it is no JSON object.
Json read_config(const std::string& dir);

struct SavedFolder {
  int64_t files = 0;
  int64_t size_bytes = 0;
};

/// Blocks. Writes `tensors` to a folder that exists: one file, or, beyond `file_bytes` (0: no limit), several with an
/// index. Memory does not hold a tensor. Throws: as write_safetensors().
SavedFolder write_weights(const std::string& dir, std::vector<TensorToSave> tensors, int64_t file_bytes);

}  // namespace slipstream::checkpoint
