// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tensors of a Hugging Face folder: one model.safetensors, several files with an index, or the pieces of several
// ranks (folder_tensor.h); and the weights of a checkpoint of this program.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/json.h"
#include "engine/checkpoint/folder_tensor.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"

namespace slipstream::checkpoint {

inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
/// Beside the checkpoints of a run: config.json, tokenizer and settings of generation, as its final weights have them.
inline constexpr const char* kModelDir = "model";
/// Beside weights that this program wrote: XXH3-128 of every file, in the format of `xxhsum -H2 -c`. Other programs
/// ignore it. A folder without it is another program's.
inline constexpr const char* kHashesFile = "hashes.xxh128";

/// The files of weights whose hashes a reader compares: the one with number `index` of every `count`, so that ranks
/// share the work. Count 0: none, because the reader does not use the weights or others have compared all of them.
struct HashShare {
  int index = 0, count = 1;
};

/// Safe to read from several threads.
class WeightsFolder {
 public:
  /// Blocks. Reads config.json, the index and the headers of all files, and those of `share` whole, to compare their
  /// hashes. Warns if another file of the folder has not the bytes with which it was saved.
  /// Throws: CheckpointError: no such folder, missing files (each by name), a damaged file, an index that disagrees
  /// with its files, pieces that do not fit together, a file with another hash.
  explicit WeightsFolder(std::string dir, HashShare share = {});

  /// Null if no tensor has this name. Pure.
  const FolderTensor* find(const std::string& name) const;
  /// In the order of the files. Pure.
  const std::vector<FolderTensor>& tensors() const { return tensors_; }
  /// True if the tensors are the pieces of several ranks.
  bool in_pieces() const { return in_pieces_; }
  /// True if they are those of a checkpoint of this program, whose matrices have the program's layout.
  bool is_checkpoint() const { return is_checkpoint_; }
  /// True if its files have hashes, as those of this program.
  bool has_hashes() const { return !hashes_.empty(); }
  const std::string& dir() const { return dir_; }
  int64_t files() const { return static_cast<int64_t>(files_.size()); }
  /// The folder with config.json and the tokenizer.
  const std::string& model_dir() const { return model_dir_; }
  const Json& config() const { return config_; }
  std::string config_path() const;

 private:
  void open(const std::vector<std::string>& names);
  void add_indexed();
  void add_saved();
  void compare_hashes(HashShare share) const;
  void warn_of_changed_texts() const;

  std::string dir_, model_dir_;
  Json config_;
  bool in_pieces_ = false, is_checkpoint_ = false;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string, std::string> hashes_;  // by the name of a file
  std::deque<TensorInfo> boxes_;                         // of a checkpoint
  std::vector<FolderTensor> tensors_;
  std::unordered_map<std::string, size_t> index_of_;
};

/// True if `dir` has a file of weights, an index or pieces, or is a checkpoint. Blocks.
bool has_weights(const std::string& dir);

/// Blocks. The folder itself, or of a run folder the final weights, else the latest checkpoint. Throws: CheckpointError
/// if neither has weights; one for a checkpoint that PyTorch pickled names the script that reads it.
std::string find_weights(const std::string& path);

/// Blocks. The number of tensors in a folder of weights: by its index, whose files may be missing, or by the headers of
/// its files. Throws: CheckpointError: a damaged index or file.
int64_t count_tensors(const std::string& dir);

/// Blocks. config.json of a folder. Throws: CheckpointError if it is no JSON object.
Json read_config(const std::string& dir);

struct SavedFolder {
  int64_t files = 0;
  int64_t size_bytes = 0;
  std::vector<StateFile> written = {};  // the index as well
};

/// Blocks. Writes a file and returns its name, size and hash. Throws: ResourceError.
StateFile write_text(const std::string& dir, const std::string& name, const std::string& bytes);
/// Blocks. Writes kHashesFile. Throws: ResourceError.
void write_hashes(const std::string& dir, const std::vector<StateFile>& files);

/// Blocks. Writes `tensors` to a folder that exists: one file, or, beyond `file_bytes` (0: no limit), several with an
/// index. Memory does not hold a tensor. Throws: as write_safetensors().
SavedFolder write_weights(const std::string& dir, std::vector<TensorToSave> tensors, int64_t file_bytes);

}  // namespace slipstream::checkpoint
