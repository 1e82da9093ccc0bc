// SPDX-License-Identifier: Apache-2.0
// Streams the tensors of one folder to another.

#include "runtime/convert.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/dtype.h"
#include "engine/base/files.h"
#include "engine/base/units.h"
#include "engine/checkpoint/weights.h"
#include "engine/data/make_tokenizer.h"
#include "engine/plan/buffers.h"
#include "runtime/llm_c_checkpoint.h"
#include "runtime/model_folder.h"

namespace slipstream::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceElems = kMiB / 4;

/// Passes all elements of a tensor on, in the order of the file.
void copy_tensor(const checkpoint::FolderTensor& from, DType dtype, const checkpoint::TensorSink& sink) {
  const int64_t elems = from.elems();
  std::vector<float> piece(static_cast<size_t>(std::min(elems, kPieceElems)));
  std::vector<bfloat16> rounded;
  for (int64_t begin = 0; begin < elems; begin += kPieceElems) {
    const std::span<float> values = std::span(piece).first(static_cast<size_t>(std::min(kPieceElems, elems - begin)));
    from.read_floats(begin, values);
    if (dtype == DType::f32) {
      sink(values.data(), static_cast<int64_t>(values.size_bytes()));
      continue;
    }
    rounded.resize(values.size());
    std::transform(values.begin(), values.end(), rounded.begin(), [](float value) { return bfloat16(value); });
    sink(rounded.data(), static_cast<int64_t>(2 * rounded.size()));
  }
}

/// Without a tokenizer: the file has none.
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
          .tokenizer = ""};
}

/// The files of a tokenizer that this program does not read travel as they are.
std::vector<checkpoint::ExtraFile> tokenizer_files(const std::string& dir, ConvertSummary& summary,
                                                   models::TextIds& ids) {
  constexpr int64_t kBytesMax = 256 << 20;
  std::vector<checkpoint::ExtraFile> files;
  const auto has = [&](const std::string& name) {
    std::error_code error;
    return fs::exists(dir + "/" + name, error);
  };
  const auto copy = [&](const std::string& name) {
    if (has(name)) files.emplace_back(name, files::read_file(dir + "/" + name, files::Owner::checkpoint, kBytesMax));
  };
  for (const char* name : {"special_tokens_map.json", "chat_template.jinja", "tokenizer.model"}) copy(name);
  if (has(data::kTokenizerFile) || has("tokenizer.json")) {
    try {
      const auto tokenizer = data::load_tokenizer(dir);
      for (auto& file : data::write_tokenizer(*tokenizer)) files.push_back(std::move(file));
      summary.tokenizer = tokenizer->name();
      const data::SpecialIds special = tokenizer->special();
      if (ids.begin_of_text < 0) ids.begin_of_text = special.begin_of_text;
      if (ids.end_of_text < 0) ids.end_of_text = special.end_of_text;
      return files;
    } catch (const DataError&) {
      // Not supported here: others may read it.
    }
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"}) copy(name);
  return files;
}

}  // namespace

ConvertSummary convert(const ConvertOptions& options) {
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
  const bool all_bfloat16 = std::all_of(names.begin(), names.end(), [&](const NamedTensor* tensor) {
    return from.find(tensor->name)->dtype() == "BF16";
  });
  const DType dtype =
      options.dtype == "bfloat16" || (options.dtype == "auto" && all_bfloat16) ? DType::bf16 : DType::f32;
  std::vector<checkpoint::TensorToSave> tensors;
  for (const NamedTensor* tensor : names) {
    if (std::any_of(tensors.begin(), tensors.end(), [&](const auto& other) { return other.name == tensor->name; }))
      continue;  // a tied table
    const checkpoint::FolderTensor* found = from.find(tensor->name);
    tensors.push_back(
        {.name = tensor->name,
         .dtype = dtype,
         .shape = found->shape(),
         .write = [found, dtype](const checkpoint::TensorSink& sink) { copy_tensor(*found, dtype, sink); }});
  }
  ConvertSummary summary{
      .model = spec.description, .tensors = std::ssize(tensors), .dtype = std::string(name_of(dtype))};
  models::TextIds ids = model.ids;
  std::vector<checkpoint::ExtraFile> extra = tokenizer_files(from.dir(), summary, ids);
  extra.emplace_back("generation_config.json", models::hugging_face_generation_config(ids));
  model.options.dtype = dtype;
  const checkpoint::SavedFolder saved = checkpoint::write_final(
      options.to, std::move(tensors), models::hugging_face_config(model.options, ids), extra, options.file_bytes);
  summary.files = saved.files;
  summary.size_bytes = saved.size_bytes;
  return summary;
}

}  // namespace slipstream::runtime
