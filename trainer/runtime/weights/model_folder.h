// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of a Hugging Face folder as the tensors of a model.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/weights_folder.h"
#include "engine/plan/job.h"
#include "models/hugging_face.h"

namespace slipstream::runtime {

/// The weights of a folder. Several threads may read them at once.
class ModelFolder {
 public:
  /// Blocks. `path` is a folder of weights, a checkpoint, or a run folder. For a run folder, it reads the final
  /// weights, or else the latest checkpoint, which a line names. Compares the hashes of the files of `share`.
  /// Throws: CheckpointError, as WeightsFolder and read_hugging_face_config().
  explicit ModelFolder(const std::string& path, checkpoint::HashShare share = {});

  const models::HuggingFaceModel& model() const { return model_; }
  const std::string& dir() const { return weights_.dir(); }
  /// Returns the folder with config.json and the tokenizer.
  const std::string& model_dir() const { return weights_.model_dir(); }
  /// Pure. Returns true if the matrices of the folder are the transposes of those that the program holds.
  bool is_transposed(const NamedTensor& tensor) const { return tensor.transposed_on_disk && !weights_.is_checkpoint(); }
  /// Returns null if the folder lacks the tensor. A family's prefix may be absent in the folder. Pure.
  const checkpoint::FolderTensor* find(const std::string& name) const;

  /// Returns bfloat16 if all tensors have that type, otherwise float32, which can hold all of them. Pure.
  DType dtype() const;

  const std::vector<checkpoint::FolderTensor>& tensors() const { return weights_.tensors(); }

  /// Blocks. With `grows`, tables of the vocabulary may have fewer rows than the model, but not fewer than config.json
  /// states.
  /// Throws: CheckpointError that lists every tensor that is missing, has another shape, or belongs to no parameter, or
  /// that has other values than the model itself makes (a tied head, masks, frequencies).
  void require(std::span<const NamedTensor* const> tensors, bool grows) const;
  /// Returns the model of config.json, for which the folder must have all weights. `sizes` are its options, with a
  /// batch.
  /// Throws: CheckpointError as require(), and if config.json is no model.
  ModelSpec own_model(const models::ModelOptions& sizes, Buffers& buffers) const;
  /// Blocks. Reads the elements [begin, begin + out.size()) of the part of `tensor` that a rank holds, and no others.
  /// Rows that a table lacks are the mean of its rows. Padding is zero. Throws: CheckpointError if a value is not
  /// finite.
  void read(const NamedTensor& tensor, int64_t begin, std::span<float> out) const;

 private:
  bool is_tied_head(const checkpoint::FolderTensor& tensor) const;
  void require_unused() const;
  /// Returns the mean of all rows of a table, which is read once.
  const std::vector<float>& mean_row(const std::string& name) const;

  checkpoint::WeightsFolder weights_;
  models::HuggingFaceModel model_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<float>> mean_rows_;
};

class Rank;

/// Blocks. Sets the weights that a rank stores and reads only their bytes. The folder must have passed require().
/// Throws: CheckpointError, as ModelFolder::read().
void load_weights(Rank& rank, const ModelFolder& folder);

/// Blocks. Throws: CheckpointError that lists the sizes and constants in which the folder's model differs from
/// `options`, or the tensors that do not fit those of all stages.
void require_initial(const ModelFolder& folder, const models::ModelOptions& options,
                     const std::vector<std::shared_ptr<const Job>>& stages);

/// Returns the tensors of a whole model in the order of its parameters. Pure.
std::vector<const NamedTensor*> tensors_of_model(const ModelSpec& model);

}  // namespace slipstream::runtime
