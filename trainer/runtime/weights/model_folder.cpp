// SPDX-License-Identifier: Apache-2.0
// Compares the tensors of a folder with those of a model, and reads parts of them.

#include "trainer/runtime/weights/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/finite.h"
#include "engine/base/log.h"
#include "engine/plan/tensor_boxes.h"
#include "trainer/runtime/rank/rank.h"
#include "trainer/runtime/weights/unused_tensors.h"

namespace slipstream::runtime {
namespace {

constexpr size_t kListed = 12;  // the tensors in one sentence
constexpr int64_t kPieceElems = 1 << 18;

std::string text_of(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

bool is_table(const std::string& name) {
  return name.ends_with("wte.weight") || name.ends_with("embed_tokens.weight") || name == "lm_head.weight";
}

}  // namespace

ModelFolder::ModelFolder(const std::string& path, checkpoint::HashShare share)
    : weights_(checkpoint::find_weights(path), share),
      model_(models::read_hugging_face_config(weights_.config(), files::shown(weights_.config_path()),
                                              std::ssize(weights_.tensors()))) {
  if (weights_.is_checkpoint() && dir() != path)
    log_info("{} has no final weights; those of its checkpoint {} are read", path, dir());
  for (const std::string& note : model_.notes) log_info("note: {}: {}", files::shown(weights_.config_path()), note);
}

const checkpoint::FolderTensor* ModelFolder::find(const std::string& name) const {
  const checkpoint::FolderTensor* found = weights_.find(name);
  if (found == nullptr && name.starts_with(model_.prefix)) found = weights_.find(name.substr(model_.prefix.size()));
  return found;
}

void ModelFolder::require(std::span<const NamedTensor* const> tensors, bool grows) const {
  std::vector<std::string> problems;
  std::set<const checkpoint::FolderTensor*> used;
  for (const NamedTensor* tensor : tensors) {
    const checkpoint::FolderTensor* found = find(tensor->name);
    std::vector<int64_t> shape = tensor->whole_shape();
    if (is_transposed(*tensor)) std::swap(shape[0], shape[1]);
    if (found == nullptr) {
      problems.push_back(fmt::format("{} {} is missing", tensor->name, text_of(shape)));
      continue;
    }
    used.insert(found);
    std::vector<int64_t> theirs = found->shape();
    if (grows && is_table(tensor->name) && theirs.size() == 2 && theirs[0] == model_.options.vocab &&
        theirs[0] < shape[0])
      theirs[0] = shape[0];
    if (theirs != shape)
      problems.push_back(fmt::format("{} is {}{}, but the model needs {}", tensor->name, text_of(found->shape()),
                                     weights_.in_pieces() ? fmt::format(" in pieces ({})", found->pieces()) : "",
                                     text_of(shape)));
    if (const std::string& dtype = found->dtype(); dtype != "F32" && dtype != "BF16" && dtype != "F16")
      problems.push_back(fmt::format("{} has the type {}, need F32, BF16 or F16", tensor->name, dtype));
  }
  size_t foreign = 0;
  for (const auto& tensor : weights_.tensors()) {
    if (used.contains(&tensor) || is_constant(tensor.name()) || is_tied_head(tensor)) continue;
    ++foreign;
    problems.push_back(fmt::format("{} {} belongs to no parameter of the model", files::printable(tensor.name(), 120),
                                   text_of(tensor.shape())));
  }
  if (problems.empty()) return require_unused();
  // The message has the names of both sides, because with a wrong prefix all tensors are missing and all of the
  // folder's are unknown.
  const size_t shown_foreign = std::min(foreign, kListed / 2), first_foreign = problems.size() - foreign,
               shown = std::min(first_foreign, kListed - shown_foreign);
  std::string list;
  for (size_t i = 0; i < problems.size(); ++i)
    if (i < shown || (i >= first_foreign && i < first_foreign + kListed - shown))
      list += (list.empty() ? "" : "; ") + problems[i];
  if (problems.size() > kListed) list += fmt::format("; and {} more", problems.size() - kListed);
  throw CheckpointError("[checkpoint] {} does not fit the model: {}. {}Set the sizes of [model] as in its config.json.",
                        files::shown(dir()), list, weights_.in_pieces() ? "Copy the files of all ranks into it. " : "");
}

DType ModelFolder::dtype() const {
  const auto& tensors = weights_.tensors();
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const auto& tensor) { return tensor.dtype() == "BF16" || is_constant(tensor.name()); })
             ? DType::bf16
             : DType::f32;
}

bool ModelFolder::is_tied_head(const checkpoint::FolderTensor& tensor) const {
  return tensor.name() == "lm_head.weight" && model_.options.tie_embeddings;
}

void ModelFolder::require_unused() const {
  for (const checkpoint::FolderTensor& tensor : weights_.tensors()) {
    std::string problem;
    if (is_tied_head(tensor))
      problem = problem_of_tied(tensor, *find(model_.table));
    else if (is_constant(tensor.name()))
      problem = problem_of_constant(tensor, model_.options);
    if (!problem.empty()) throw CheckpointError("[checkpoint] {}: {}.", files::shown(dir()), problem);
  }
}

ModelSpec ModelFolder::own_model(const models::ModelOptions& sizes, Buffers& buffers) const {
  ModelSpec model;
  try {
    model = models::build_model(sizes, buffers);
  } catch (const ConfigError& error) {
    throw CheckpointError("[model] {}/config.json is not a model: {}", dir(), error.what());
  }
  require(tensors_of_model(model), false);
  return model;
}

void ModelFolder::read(const NamedTensor& tensor, int64_t begin, std::span<float> out) const {
  const checkpoint::FolderTensor* found = find(tensor.name);
  SLIP_ASSERT(found != nullptr);
  std::fill(out.begin(), out.end(), 0.0f);
  const std::vector<int64_t> whole = tensor.whole_shape();
  const int64_t whole_columns = whole.size() > 1 ? whole[1] : 1, whole_rows = whole[0];
  const auto at = [&](int64_t held) { return out.data() + (held - begin); };
  const auto read_run = [&](int64_t first, int64_t held, int64_t count) {
    found->read_floats(first, std::span(at(held), static_cast<size_t>(count)));
  };
  std::vector<float> column;
  for (const TensorBox& box : boxes_of(tensor, begin, std::ssize(out))) {
    if (is_transposed(tensor)) {
      column.resize(static_cast<size_t>(box.rows));
      for (int64_t c = 0; c < box.columns; ++c) {
        found->read_floats((box.column + c) * whole_rows + box.row, column);
        for (int64_t r = 0; r < box.rows; ++r) *at(box.held + r * box.columns + c) = column[static_cast<size_t>(r)];
      }
      continue;
    }
    const int64_t rows = std::clamp<int64_t>(found->shape()[0] - box.row, 0, box.rows);
    if (box.columns == whole_columns && rows > 0) {
      read_run(box.row * whole_columns, box.held, rows * box.columns);
    } else {
      for (int64_t r = 0; r < rows; ++r)
        read_run((box.row + r) * whole_columns + box.column, box.held + r * box.columns, box.columns);
    }
    for (int64_t r = rows; r < box.rows; ++r)
      std::copy_n(mean_row(tensor.name).begin() + box.column, box.columns, at(box.held + r * box.columns));
  }
  if (!all_finite(out))
    throw CheckpointError("[checkpoint] {} in {} has weights that are not finite. Give other weights.", tensor.name,
                          files::shown(found->path()));
}

const std::vector<float>& ModelFolder::mean_row(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  std::vector<float>& mean = mean_rows_[name];
  if (!mean.empty()) return mean;
  const checkpoint::FolderTensor* found = find(name);
  const int64_t rows = found->shape()[0], columns = found->shape()[1];
  std::vector<double> sum(static_cast<size_t>(columns));
  std::vector<float> row(sum.size());
  for (int64_t r = 0; r < rows; ++r) {
    found->read_floats(r * columns, row);
    for (size_t c = 0; c < row.size(); ++c) sum[c] += row[c];
  }
  mean.resize(sum.size());
  std::transform(sum.begin(), sum.end(), mean.begin(),
                 [&](double value) { return static_cast<float>(value / static_cast<double>(rows)); });
  return mean;
}

void load_weights(Rank& rank, const ModelFolder& folder) {
  const auto& parameters = rank.job().model.parameters;
  std::vector<float> piece;
  for (size_t p = 0; p < parameters.size(); ++p)
    for (size_t t = 0; t < parameters[p].tensors.size(); ++t)
      for (const auto& [begin, end] : rank.stored(p, t))
        for (int64_t at = begin; at < end; at += kPieceElems) {
          piece.resize(static_cast<size_t>(std::min(kPieceElems, end - at)));
          folder.read(parameters[p].tensors[t], at, piece);
          rank.write(p, t, at, piece);
        }
}

namespace {

std::string described(const kernels::RopeScaling& scaling) {
  if (scaling.factor == 0) return "none";
  return fmt::format("llama3 (factor {}, low {}, high {}, context {})", scaling.factor, scaling.low_freq_factor,
                     scaling.high_freq_factor, scaling.original_context);
}

/// Returns the window of each layer. A window that reaches to the beginning of every sequence counts as none.
std::string windows_of(const models::ModelOptions& options) {
  if (options.window == 0 || options.window >= options.context) return "0";
  return options.window_layers.empty()
             ? fmt::format("{}", options.window)
             : fmt::format("{} in layers {}", options.window, fmt::join(options.window_layers, ", "));
}

/// Returns the choice of a token's experts.
std::string described(const ExpertOptions& e) {
  const std::string layers = e.layers.empty() ? "" : fmt::format(" in layers {}", fmt::join(e.layers, ", "));
  const std::string groups = e.groups > 1 ? fmt::format(" in {} of {} groups", e.group_top_k, e.groups) : "";
  return fmt::format("{} of {}{}{}, {} shared, by {}{}, scale {}", e.top_k, e.count, groups, layers, e.shared,
                     name_of(e.router), e.normalize ? " normalized" : "", e.scale);
}

}  // namespace

void require_initial(const ModelFolder& folder, const models::ModelOptions& options,
                     const std::vector<std::shared_ptr<const Job>>& stages) {
  const models::ModelOptions& theirs = folder.model().options;
  std::string list;
  const auto compare = [&](std::string_view name, auto ours, auto other) {
    if (ours != other)
      list += fmt::format("{}model.{} is {}, but the folder has {}", list.empty() ? "" : "; ", name, ours, other);
  };
  compare("family", std::string_view(name_of(options.family)), std::string_view(name_of(theirs.family)));
  compare("layers", options.layers, theirs.layers);
  compare("heads", options.heads, theirs.heads);
  if (options.family == theirs.family) {
    compare("kv_heads", options.kv_heads, theirs.kv_heads);
    compare("tie_embeddings", options.tie_embeddings, theirs.tie_embeddings);
    compare("norm_eps", options.norm_eps, theirs.norm_eps);
    compare("head_dim", options.size_of_head(), theirs.size_of_head());
    if (is_rotary(options.family)) compare("rope_theta", options.rope_theta, theirs.rope_theta);
    compare("rope_scaling", described(options.rope_scaling), described(theirs.rope_scaling));
    compare("sliding_window", windows_of(options), windows_of(theirs));
    if (options.experts.count > 0) compare("experts", described(options.experts), described(theirs.experts));
  }
  if (!list.empty())
    throw CheckpointError("[checkpoint] model.init = {} is another model: {}. Set [model] as in its config.json.",
                          files::shown(folder.dir()), list);
  std::vector<const NamedTensor*> tensors;
  for (const auto& [name, at] : tensors_of(stages))
    tensors.push_back(&stages[at.stage]->model.parameters[at.parameter].tensor(at.tensor));
  folder.require(tensors, true);
}

std::vector<const NamedTensor*> tensors_of_model(const ModelSpec& model) {
  std::vector<const NamedTensor*> tensors;
  for (const ParameterSpec& parameter : model.parameters)
    for (size_t t = 0; t < parameter.all_tensors(); ++t) tensors.push_back(&parameter.tensor(t));
  return tensors;
}

}  // namespace slipstream::runtime
