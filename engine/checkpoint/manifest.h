// SPDX-License-Identifier: Apache-2.0
#pragma once
// The manifest of a checkpoint: what was saved, by which run, in which files. A folder without a valid one is no
// checkpoint.
//
// Text: {"xxh3":"32 digits","manifest":BODY} and a line feed. The hash is XXH3-128 of the bytes of BODY, so that a
// reader finds a flipped bit anywhere in the file.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace slipstream::checkpoint {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr int64_t kManifestVersion = 1;

/// A file of the folder, as its writer left it.
struct StateFile {
  std::string name;
  int64_t size_bytes = 0;
  std::string hash;  // XXH3-128 of all bytes of the file
  bool operator==(const StateFile&) const = default;
};

/// A tensor of the model, independent of the layout. Its arrays are float32 and have its shape.
struct LogicalTensor {
  std::string name;                 // Hugging Face name
  std::vector<int64_t> shape;       // as the program holds it, without padding
  std::vector<std::string> arrays;  // kWeight, then the states of its optimizer
  bool operator==(const LogicalTensor&) const = default;
};
/// The array that holds the weights in the optimizer's precision.
inline constexpr const char* kWeight = "weight";

/// The last steps, the newest last. Later updates depend on them (train.on_nan, train.spike_zscore).
struct NumericsHistory {
  int64_t skips = 0;                  // updates skipped in a row
  std::vector<double> losses, norms;  // both have the same length
  bool operator==(const NumericsHistory&) const = default;
};

struct Manifest {
  int64_t step = 0;     // the checkpoint is the state after this step
  std::string program;  // the version of the program that wrote it
  std::string written;  // UTC, ISO 8601
  int64_t ranks = 0;
  std::string layout;         // "data 2, tensor 1, pipeline 1, context 1"
  std::string memory_layout;  // a hash of everything that decides which rank holds which element (trainer/runtime)
  int64_t global_batch_size = 0;
  int64_t vocab = 0;
  std::string data_hash;
  NumericsHistory numerics = {};
  int64_t skipped_batches = 0;  // step k trains on batch k + skipped_batches (train.on_nan = "rollback")
  std::vector<std::pair<std::string, std::string>> config;  // every key of the resolved configuration and its value
  std::vector<LogicalTensor> tensors;
  std::vector<StateFile> files;
  bool operator==(const Manifest&) const = default;
};

/// Pure.
std::string text_of(const Manifest& manifest);
/// Pure. `where` names the file in errors.
/// Throws: CheckpointError if the text is damaged, has a newer version, or does not come from this program.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace slipstream::checkpoint
