// SPDX-License-Identifier: Apache-2.0
// Streams the tensors of one folder to another one.

#include "trainer/runtime/weights/convert.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/dtype.h"
#include "engine/base/files.h"
#include "engine/base/progress.h"
#include "engine/base/units.h"
#include "engine/checkpoint/weights.h"
#include "engine/plan/buffers.h"
#include "trainer/runtime/weights/llm_c_checkpoint.h"
#include "trainer/runtime/weights/model_folder.h"
#include "trainer/runtime/weights/text_files.h"
#include "trainer/runtime/weights/weights.h"

namespace slipstream::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceElems = kMiB / 4;

/// Passes on all elements of a tensor in the order of the file.
void copy_tensor(const checkpoint::FolderTensor& from, DType dtype, const checkpoint::TensorSink& sink) {
  const int64_t elems = from.elems();
  std::vector<float> piece(static_cast<size_t>(std::min(elems, kPieceElems)));
  for (int64_t begin = 0; begin < elems; begin += kPieceElems) {
    const std::span<float> values = std::span(piece).first(static_cast<size_t>(std::min(kPieceElems, elems - begin)));
    from.read_floats(begin, values);
    pass_on(values, dtype, sink);
  }
}

/// Passes on the transpose of a matrix, of which memory holds a whole copy.
void copy_transposed(const checkpoint::FolderTensor& from, DType dtype, const checkpoint::TensorSink& sink) {
  const int64_t rows = from.shape()[0], columns = from.shape()[1];
  std::vector<float> whole(static_cast<size_t>(from.elems())), column(static_cast<size_t>(rows));
  from.read_floats(0, whole);
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) column[static_cast<size_t>(r)] = whole[static_cast<size_t>(r * columns + c)];
    pass_on(column, dtype, sink);
  }
}

/// The result has no tokenizer, because the file has none.
ConvertSummary convert_llm_c(const ConvertOptions& options) {
  const LlmCCheckpoint from(options.from);
  models::HuggingFaceModel model = from.model();
  const DType dtype = options.dtype == "auto" ? from.dtype() : options.dtype == "bfloat16" ? DType::bf16 : DType::f32;
  Buffers buffers;
  const ModelSpec spec = models::build_model(model.options, buffers);
  std::vector<std::string> names;
  for (const NamedTensor* tensor : tensors_of_model(spec))
    if (std::find(names.begin(), names.end(), tensor->name) == names.end()) names.push_back(tensor->name);
  model.options.dtype = dtype;
  const checkpoint::SavedFolder saved = checkpoint::write_final(
      options.to, from.tensors(names, dtype), models::hugging_face_config(model.options, model.ids),
      {{"generation_config.json", models::hugging_face_generation_config(model.ids)}}, options.file_bytes);
  return {.model = spec.description,
          .tensors = std::ssize(names),
          .files = saved.files,
          .size_bytes = saved.size_bytes,
          .dtype = std::string(name_of(dtype)),
          .tokenizer = {},
          .tokenizer_problem = {}};
}

/// A folder may be replaced if it has nothing except what a conversion writes.
void require_replaceable(const std::string& to) {
  std::error_code error;
  if (!fs::is_directory(to, error)) return;
  std::string foreign;
  bool is_empty = true, has_config = false;
  for (const auto& entry : fs::directory_iterator(to, error)) {
    const std::string name = entry.path().filename();
    is_empty = false;
    has_config |= name == checkpoint::kConfigFile;
    const bool known = name.ends_with(".safetensors") || name.ends_with(".json") || name.ends_with(".jinja") ||
                       name == "merges.txt" || name == "tokenizer.model" || name == checkpoint::kHashesFile;
    if (!(known && fs::is_regular_file(entry.symlink_status(error)))) foreign = name;
  }
  if (error)
    throw ResourceError("[convert] {} cannot be read: {}. Choose another folder.", files::shown(to), error.message());
  if (is_empty || (foreign.empty() && has_config)) return;
  throw ConfigError("[convert] {} exists and is no converted model: it {}. Give a new folder, or remove it.",
                    files::shown(to),
                    foreign.empty() ? "lacks config.json" : fmt::format("has {}", files::shown(foreign)));
}

}  // namespace

ConvertSummary convert(const ConvertOptions& options) {
  require_replaceable(options.to);
  std::error_code no_file;
  if (fs::is_regular_file(options.from, no_file)) return convert_llm_c(options);
  const ModelFolder from(options.from);
  std::error_code error;
  if (fs::exists(options.to, error) && fs::equivalent(from.dir(), options.to, error))
    throw ConfigError("[convert] {} is the folder of the weights themselves. Give another folder for the result.",
                      files::shown(options.to));
  models::HuggingFaceModel model = from.model();
  Buffers buffers;
  ModelSpec spec;
  try {
    spec = models::build_model(model.options, buffers);
  } catch (const ConfigError& refusal) {
    throw CheckpointError("[convert] {} is not a supported model: {}", files::shown(from.dir()), refusal.what());
  }
  const std::vector<const NamedTensor*> names = tensors_of_model(spec);
  from.require(names, false);
  const DType dtype = options.dtype == "auto" ? from.dtype() : options.dtype == "bfloat16" ? DType::bf16 : DType::f32;
  std::vector<checkpoint::TensorToSave> tensors;
  const auto progress = std::make_shared<Progress>("convert");
  for (const NamedTensor* tensor : names) {
    if (std::any_of(tensors.begin(), tensors.end(), [&](const auto& other) { return other.name == tensor->name; }))
      continue;  // the table is tied
    const checkpoint::FolderTensor* found = from.find(tensor->name);
    const bool turns = tensor->transposed_on_disk && !from.is_transposed(*tensor);
    std::vector<int64_t> shape = found->shape();
    if (turns) std::swap(shape[0], shape[1]);
    tensors.push_back({.name = tensor->name,
                       .dtype = dtype,
                       .shape = std::move(shape),
                       .write = [found, dtype, turns, progress, number = tensors.size() + 1, all = names.size(),
                                 name = tensor->name](const checkpoint::TensorSink& sink) {
                         progress->show([&] { return fmt::format("tensor {} of {}: {}", number, all, name); });
                         (turns ? copy_transposed : copy_tensor)(*found, dtype, sink);
                       }});
  }
  ConvertSummary summary{.model = spec.description,
                         .tensors = std::ssize(tensors),
                         .dtype = std::string(name_of(dtype)),
                         .tokenizer = {},
                         .tokenizer_problem = {}};
  const TextFiles texts = text_files_of(from);
  summary.tokenizer = texts.tokenizer;
  summary.tokenizer_problem = texts.problem;
  model.options.dtype = dtype;
  model.options.dropout = model.dropout;
  const checkpoint::SavedFolder saved =
      checkpoint::write_final(options.to, std::move(tensors), models::hugging_face_config(model.options, texts.ids),
                              texts.files, options.file_bytes);
  summary.files = saved.files;
  summary.size_bytes = saved.size_bytes;
  return summary;
}

}  // namespace slipstream::runtime
