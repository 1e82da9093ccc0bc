// SPDX-License-Identifier: Apache-2.0
// Verifies checkpoints, and compares their run with this one.

#include "trainer/runtime/durability/resume.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/log.h"
#include "engine/base/plural.h"
#include "engine/checkpoint/state_file.h"
#include "engine/checkpoint/store.h"

namespace slipstream::runtime {
namespace {

constexpr std::string_view kTag = "[checkpoint] ";

/// Returns true if a key may differ from the checkpoint's. Layouts train the same model, and outputs do not train.
bool is_free(std::string_view key) {
  if (key == "data.weights" || key == "data.document_mask") return false;
  for (const std::string_view prefix : {"parallel.", "zero.", "overlap.", "pipeline.", "comm.", "device.",
                                        "checkpoint.", "trace.", "output.", "data.", "optimizer.double_buffer"})
    if (key.starts_with(prefix)) return true;
  for (const std::string_view free :
       {"train.steps", "train.micro_batch_size", "train.eval_interval", "train.eval_batches", "train.log_interval",
        "train.hash_interval", "train.recompute", "train.recompute_layers", "train.global_batch_size", "train.on_nan",
        "train.max_skips", "train.spike_zscore"})
    if (key == free) return true;
  return false;
}

/// Returns true for the model's shape and the optimizer's states.
bool is_fixed(std::string_view key) {
  return (key.starts_with("model.") && !key.ends_with("_pdrop")) || key == "optimizer.name" || key == "train.dtype";
}

bool is_set(const std::vector<std::string>& sets, std::string_view key) {
  return std::any_of(sets.begin(), sets.end(), [&](std::string_view set) {
    return set.size() > key.size() && set.starts_with(key) && set[key.size()] == '=';
  });
}

/// Returns true if --set names data that the checkpoint was not trained with.
bool sets_other_data(const std::map<std::string, std::string>& saved, const RunIdentity& identity,
                     const std::vector<std::string>& sets) {
  const auto& config = identity.config;
  return std::any_of(config.begin(), config.end(), [&](const auto& line) {
    const auto& [key, value] = line;
    const bool names_data = key == "data.train" || key == "data.sources" || key == "data.validation" ||
                            key == "data.format" || key == "data.formats" || key == "data.text_key" ||
                            key == "data.tokenizer";
    const auto theirs = saved.find(key);
    return names_data && is_set(sets, key) && (theirs == saved.end() || theirs->second != value);
  });
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t dim : shape) text += fmt::format("{}{}", text.empty() ? "" : " x ", dim);
  return text.empty() ? "a number" : text;
}

void require_same_tensors(const std::string& path, const std::vector<checkpoint::LogicalTensor>& saved,
                          const std::vector<checkpoint::LogicalTensor>& ours) {
  std::map<std::string_view, const checkpoint::LogicalTensor*> theirs;
  for (const checkpoint::LogicalTensor& tensor : saved) theirs[tensor.name] = &tensor;
  for (const checkpoint::LogicalTensor& tensor : ours) {
    const auto found = theirs.find(tensor.name);
    if (found == theirs.end())
      throw CheckpointError(
          "[checkpoint] {} has no tensor {}. It belongs to another model: start without --resume, or "
          "use the model of the checkpoint.",
          path, tensor.name);
    if (found->second->shape != tensor.shape)
      throw CheckpointError("[checkpoint] {} has {} with {}, this model has {}. Use the model of the checkpoint.", path,
                            tensor.name, shape_text(found->second->shape), shape_text(tensor.shape));
    if (found->second->arrays != tensor.arrays)
      throw CheckpointError("[checkpoint] {} keeps other optimizer states of {}. Use the optimizer of the checkpoint.",
                            path, tensor.name);
    theirs.erase(found);
  }
  if (!theirs.empty())
    throw CheckpointError("[checkpoint] {} has the tensor {}, which this model lacks. Use the model of the checkpoint.",
                          path, theirs.begin()->first);
}

}  // namespace

std::optional<ResumePoint> find_resume_point(World& world, const std::string& dir, ResumeSearch search) {
  // Rank 0 lists the folder, because file systems of several hosts may show a new folder at different times.
  std::vector<checkpoint::Found> found;
  std::string list;
  if (world.rank() == 0) {
    found = checkpoint::find_checkpoints(dir);
    std::erase_if(found, [&](const checkpoint::Found& each) {
      return each.step > search.most_step || (search.otherwise && each.step <= search.otherwise->manifest.step);
    });
    for (const checkpoint::Found& each : found) list += each.path + '\n';
  }
  list = world.all_gather(list)[0];
  if (list.empty() && search.reasons.empty()) return search.otherwise;
  std::vector<std::string> reasons;
  const auto chosen = [&](ResumePoint point) {
    for (const std::string& sentence : reasons) log_warn("[checkpoint] {}", sentence);
    point.skipped = search.skipped;
    return point;
  };
  for (size_t begin = 0, index = 0; begin < list.size(); ++index) {
    const size_t end = list.find('\n', begin);
    const std::string path = list.substr(begin, end - begin);
    begin = end + 1;
    std::optional<checkpoint::Manifest> manifest;
    std::string problem;
    try {
      if (world.rank() == 0 && !found[index].manifest) throw CheckpointError("{}", found[index].problem);
      const std::string file = path + "/" + checkpoint::kManifestFile;
      manifest = checkpoint::parse_manifest(files::read_file(file, files::Owner::checkpoint, int64_t{256} << 20), file);
      const std::vector<checkpoint::StateFile> own = own_files(world, *manifest);
      if (!search.verifies) problem = checkpoint::size_problem_of(path, own);
      for (size_t f = 0; f < own.size() && search.verifies && problem.empty(); ++f)
        problem = checkpoint::problem_of(path, own[f]);
    } catch (const CheckpointError& error) {
      problem = error.what();
    }
    problem = first_problem(world, problem);
    if (problem.empty()) {
      if (world.rank() == 0)
        for (const std::string& name : checkpoint::unlisted_files(path, *manifest))
          log_warn("[checkpoint] {} is ignored: it is not in the manifest of {}.", files::shown(name), path);
      return chosen({.path = path, .manifest = std::move(*manifest), .verified = search.verifies});
    }
    reasons.push_back(fmt::format("{} is skipped: {}", path, problem));
    search.skipped.push_back(path);
  }
  if (search.otherwise) return chosen(std::move(*search.otherwise));
  search.reasons.insert(search.reasons.end(), reasons.begin(), reasons.end());
  world.together([&] {
    std::string sentences;
    for (const std::string& sentence : search.reasons) sentences += sentence + (sentence.ends_with('.') ? " " : ". ");
    throw CheckpointError("[checkpoint] none of the {} in {} can be used. {}Restore one, or start without --resume.",
                          counted(std::ssize(search.reasons), "checkpoint"), dir, sentences);
  });
  return {};
}

std::vector<checkpoint::StateFile> own_files(const World& world, const checkpoint::Manifest& manifest) {
  std::vector<checkpoint::StateFile> own;
  for (size_t f = static_cast<size_t>(world.rank()); f < manifest.files.size(); f += static_cast<size_t>(world.size()))
    own.push_back(manifest.files[f]);
  return own;
}

std::string first_problem(World& world, std::string problem) {
  if (problem.starts_with(kTag)) problem.erase(0, kTag.size());
  for (std::string& each : world.all_gather(problem))
    if (!each.empty()) return std::move(each);
  return {};
}

void set_aside(World& world, const std::vector<std::string>& folders) {
  world.together([&] {
    if (world.rank() > 0) return;
    for (const std::string& folder : folders) log_info("{} is now {}", folder, checkpoint::set_aside(folder));
  });
}

void require_resumable(const ResumePoint& point, const RunIdentity& identity,
                       const std::vector<checkpoint::LogicalTensor>& tensors, const std::vector<std::string>& sets) {
  const std::map<std::string, std::string> saved(point.manifest.config.begin(), point.manifest.config.end());
  std::vector<std::string> notes;
  for (const auto& [key, value] : identity.config) {
    const auto theirs = saved.find(key);
    if (theirs == saved.end() || theirs->second == value || is_free(key)) continue;
    if (is_fixed(key))
      throw CheckpointError(
          "[checkpoint] {} was trained with {} = {}, this run has {}. Use the value of the checkpoint, "
          "or start without --resume.",
          point.path, key, theirs->second, value);
    // The value follows from train.steps unless it is given.
    const bool follows = key == "optimizer.decay_steps";
    if (!follows && !is_set(sets, key))
      throw ConfigError("[train] {} = {}, but {} was trained with {}. Pass --set {}={} to continue with another value.",
                        key, value, point.path, theirs->second, key, value);
    notes.push_back(fmt::format("{} = {} (until step {}: {})", key, value, point.manifest.step, theirs->second));
  }
  require_same_tensors(point.path, point.manifest.tensors, tensors);
  if (point.manifest.global_batch_size != identity.global_batch_size && !is_set(sets, "train.global_batch_size"))
    throw ConfigError(
        "[train] {} sequences in a step, but {} was trained with {}. Pass --set "
        "train.global_batch_size={} to keep its samples.",
        identity.global_batch_size, point.path, point.manifest.global_batch_size, point.manifest.global_batch_size);
  if (point.manifest.data_hash != identity.data_hash && !sets_other_data(saved, identity, sets))
    throw ConfigError(
        "[train] the data differ from those of {}. Restore them, or pass --set data.train=PATH with another path to "
        "continue with others.",
        point.path);
  for (const std::string& note : notes) log_info("note: {}", note);
}

}  // namespace slipstream::runtime
