// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tensors of a Hugging Face folder: one model.safetensors, several files with an index, or the pieces of several
// ranks (folder_tensor.h). The weights of this program's checkpoints are read as well.

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
/// The folder beside the checkpoints of a run with config.json, the tokenizer and the settings of generation, as the
/// final weights have them.
inline constexpr const char* kModelDir = "model";
/// The file beside weights of this program with XXH3-128 of every file, in the format of `xxhsum -H2 -c`. Other
/// programs ignore it, and a folder of another program lacks it.
inline constexpr const char* kHashesFile = "hashes.xxh128";

/// The files of weights whose hashes a reader compares: every `count`-th file, beginning with number `index`, so that
/// ranks share the work. With count 0 it compares none, because it does not use the weights or others have compared all
/// of them.
struct HashShare {
  int index = 0, count = 1;
};

/// The tensors of a folder. Several threads may read at once.
class WeightsFolder {
 public:
  /// Blocks. Reads config.json, the index and the headers of all files. Reads the files of `share` whole, to compare
  /// their hashes. Warns if another file of the folder has changed since it was saved.
  /// Throws: CheckpointError if there is no such folder, if files are missing (each is named) or damaged, if the index
  /// disagrees with its files, if pieces do not fit together, or if a file has another hash.
  explicit WeightsFolder(std::string dir, HashShare share = {});

  /// Returns null if no tensor has this name. Pure.
  const FolderTensor* find(const std::string& name) const;
  /// Returns the tensors in the order of the files. Pure.
  const std::vector<FolderTensor>& tensors() const { return tensors_; }
  /// Returns true if the tensors consist of the pieces of several ranks.
  bool in_pieces() const { return in_pieces_; }
  /// Returns true for a checkpoint of this program, whose matrices have the program's layout.
  bool is_checkpoint() const { return is_checkpoint_; }
  /// Returns true if the files have hashes, as those of this program have.
  bool has_hashes() const { return !hashes_.empty(); }
  const std::string& dir() const { return dir_; }
  int64_t files() const { return static_cast<int64_t>(files_.size()); }
  /// Returns the folder with config.json and the tokenizer.
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
  std::unordered_map<std::string, std::string> hashes_;  // by the name of the file
  std::deque<TensorInfo> boxes_;                         // the boxes of a checkpoint
  std::vector<FolderTensor> tensors_;
  std::unordered_map<std::string, size_t> index_of_;
};

/// Blocks. Returns true if `dir` has a file of weights, an index or pieces, or is a checkpoint.
bool has_weights(const std::string& dir);

/// Blocks. Returns the folder itself, or, for a run folder, its final weights or else its latest checkpoint. Throws:
/// CheckpointError if there are no weights. For a pickled checkpoint of PyTorch, the error names the script that reads
/// it.
std::string find_weights(const std::string& path);

/// Blocks. Returns the number of tensors in a folder of weights: by its index, even if files are missing, or by the
/// headers of its files. Throws: CheckpointError for a damaged index or file.
int64_t count_tensors(const std::string& dir);

/// Blocks. Returns config.json of a folder. Throws: CheckpointError if it is no JSON object.
Json read_config(const std::string& dir);

struct SavedFolder {
  int64_t files = 0;
  int64_t size_bytes = 0;
  std::vector<StateFile> written = {};  // includes the index
};

/// Blocks. Writes a file and returns its name, size and hash. Throws: ResourceError.
StateFile write_text(const std::string& dir, const std::string& name, const std::string& bytes);
/// Blocks. Writes kHashesFile. Throws: ResourceError.
void write_hashes(const std::string& dir, const std::vector<StateFile>& files);

/// Blocks. Writes `tensors` to a folder that exists: to one file, or, if they exceed `file_bytes` (0: no limit), to
/// several with an index. Memory never holds a whole tensor. Throws: as write_safetensors().
SavedFolder write_weights(const std::string& dir, std::vector<TensorToSave> tensors, int64_t file_bytes);

}  // namespace slipstream::checkpoint
