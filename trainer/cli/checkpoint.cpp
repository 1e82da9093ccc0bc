// SPDX-License-Identifier: Apache-2.0
// Runs slipstream checkpoint: lists, verifies and shows the checkpoints of a run.

#include <filesystem>
#include <memory>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/plural.h"
#include "engine/base/print.h"
#include "engine/base/progress.h"
#include "engine/base/units.h"
#include "engine/checkpoint/state_file.h"
#include "engine/checkpoint/store.h"
#include "engine/checkpoint/weights_folder.h"
#include "trainer/cli/command_line.h"

namespace slipstream::cli {
namespace {

using checkpoint::Found;

/// Returns the checkpoints that DIR names. DIR is a run folder, its folder of checkpoints, or one checkpoint.
std::vector<Found> checkpoints_at(std::string dir, bool required = true) {
  namespace fs = std::filesystem;
  while (dir.size() > 1 && dir.ends_with('/')) dir.pop_back();
  std::error_code error;
  if (!fs::is_directory(dir, error))
    throw CheckpointError(
        "[checkpoint] {} is not a folder. Give a run folder, its checkpoints folder or one checkpoint.",
        files::shown(dir));
  const fs::path path(dir);
  if (path.filename().string().starts_with("step-")) {
    for (Found& found : checkpoint::find_checkpoints(files::folder_of(dir)))
      if (fs::path(found.path).filename() == path.filename()) return {std::move(found)};
    throw CheckpointError(
        "[checkpoint] {} is the folder of an unfinished save. Give a finished checkpoint, or the run folder.",
        files::shown(dir));
  }
  std::vector<Found> found = checkpoint::find_checkpoints(dir);
  if (found.empty()) found = checkpoint::find_checkpoints(dir + "/checkpoints");
  if (found.empty() && required)
    throw CheckpointError("[checkpoint] {} has no checkpoint. Set checkpoint.interval, or send SIGUSR1 to the run.",
                          files::shown(dir));
  return found;
}

int64_t bytes_of(const checkpoint::Manifest& manifest) {
  int64_t bytes = 0;
  for (const checkpoint::StateFile& file : manifest.files) bytes += file.size_bytes;
  return bytes;
}

int list(const std::string& dir) {
  for (const Found& found : checkpoints_at(dir))
    if (found.manifest)
      print_result("{}  step {}  {}  {}  {} ({})\n", found.path, found.step, found.manifest->written,
                   format_bytes(bytes_of(*found.manifest)), counted(found.manifest->ranks, "rank"),
                   found.manifest->layout);
    else
      print_result("{}  step {}  no checkpoint: {}\n", found.path, found.step, found.problem);
  return 0;
}

/// Returns the folders of whole weights that DIR names: DIR itself, or the final weights of its run.
std::vector<std::string> weights_at(const std::string& dir) {
  std::error_code error;
  std::vector<std::string> found;
  for (const char* inside : {"", "/checkpoints/final", "/final"})
    if (checkpoint::has_weights(dir + inside) &&
        !std::filesystem::exists(dir + inside + "/" + checkpoint::kManifestFile, error))
      found.push_back(dir + inside);
  return found;
}

/// Prints a line for a folder of whole weights. Returns false if it is damaged.
bool verify_weights(const std::string& dir) {
  try {
    const checkpoint::WeightsFolder weights(dir);
    const std::string files = counted(weights.files(), "file");
    if (weights.has_hashes())
      print_result("{}  ok: {} of weights\n", dir, files);
    else
      print_result("{}  not verified: {} of weights without {}\n", dir, files, checkpoint::kHashesFile);
    return true;
  } catch (const CheckpointError& error) {
    const std::string_view tag = "[checkpoint] ", sentence = error.what();
    print_result("{}  damaged: {}\n", dir, sentence.substr(sentence.starts_with(tag) ? tag.size() : 0));
    return false;
  }
}

int verify(const std::string& dir) {
  std::string problems;
  const std::vector<std::string> folders = weights_at(dir);
  for (const std::string& each : folders)
    if (!verify_weights(each))
      problems = fmt::format("the weights in {} are damaged. Save them again: slipstream convert CHECKPOINT OUT. ",
                             files::shown(each));
  int64_t damaged = 0, total = 0, verified_bytes = 0;
  const Interrupt interrupt;  // Ctrl-C ends the command with the checkpoints that are verified
  Progress progress("checkpoint verify");
  for (const Found& found : checkpoints_at(dir, folders.empty())) {
    std::string problem = found.problem;
    for (size_t f = 0; found.manifest && f < found.manifest->files.size() && problem.empty(); ++f) {
      if (Interrupt::asked()) break;
      const checkpoint::StateFile& file = found.manifest->files[f];
      progress.show([&] {
        return fmt::format("{} verified, {} damaged; {} of {}", format_bytes(verified_bytes), damaged, file.name,
                           found.path);
      });
      problem = checkpoint::problem_of(found.path, file);
      verified_bytes += file.size_bytes;
    }
    if (Interrupt::asked() && problem.empty()) {
      print_result("{}  not verified: stopped early\n", found.path);
      break;
    }
    ++total;
    if (problem.empty()) {
      try {
        checkpoint::StateReader reader(found.path, *found.manifest);  // every tensor is covered
      } catch (const CheckpointError& error) {
        problem = error.what();
      }
    }
    if (problem.empty())
      print_result("{}  ok: {} with {}\n", found.path, counted(std::ssize(found.manifest->files), "file"),
                   format_bytes(bytes_of(*found.manifest)));
    else
      print_result("{}  damaged: {}\n", found.path, problem), ++damaged;
    if (found.manifest)
      for (const std::string& name : checkpoint::unlisted_files(found.path, *found.manifest))
        print_result("{}  ignored: {} is not in the manifest\n", found.path, files::shown(name));
  }
  if (damaged == 0 && problems.empty() && Interrupt::asked()) return static_cast<int>(ExitCode::preempted);
  if (damaged > 0)
    problems += fmt::format("A run cannot resume from {} of {}. With --resume, training skips damaged checkpoints.",
                            damaged, counted(total, "checkpoint"));
  if (!problems.empty()) throw CheckpointError("[checkpoint] {}", problems);
  return 0;
}

int show(const std::string& dir) {
  const std::vector<Found> all = checkpoints_at(dir);
  for (const Found& found : all) {
    if (!found.manifest) continue;
    const checkpoint::Manifest& m = *found.manifest;
    print_result(
        "{}\nstep {}, written {} by slipstream {} on {} ({})\nsequences in a step: {}; vocabulary: {}; data {}\n",
        found.path, m.step, m.written, m.program, counted(m.ranks, "rank"), m.layout, m.global_batch_size, m.vocab,
        m.data_hash);
    for (const auto& [key, value] : m.config) print_result("{} = {}\n", key, value);
    for (const checkpoint::LogicalTensor& tensor : m.tensors) {
      std::string shape, arrays;
      for (const int64_t dim : tensor.shape) shape += fmt::format("{}{}", shape.empty() ? "" : " x ", dim);
      for (const std::string& array : tensor.arrays) arrays += fmt::format("{}{}", arrays.empty() ? "" : ", ", array);
      print_result("{}  {}  {}\n", tensor.name, shape, arrays);
    }
    for (const checkpoint::StateFile& file : m.files)
      print_result("{}  {} bytes  xxh3 {}\n", file.name, file.size_bytes, file.hash);
    return 0;
  }
  throw CheckpointError("[checkpoint] {} has no valid checkpoint: {}", files::shown(dir), all.front().problem);
}

}  // namespace

void add_checkpoint(CLI::App& app, Run& chosen) {
  CLI::App* command = app.add_subcommand("checkpoint", "list, verify or show the checkpoints of a run");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* what, int (*run)(const std::string&)) {
    const auto dir = std::make_shared<std::string>();
    CLI::App* each = command->add_subcommand(name, what);
    each->add_option("dir", *dir, "run folder, its checkpoints folder, or one checkpoint")->required();
    each->callback(
        [&chosen, dir, run] { chosen = [dir, run] { return alone("checkpoint", [&] { return run(*dir); }); }; });
  };
  add("list", "print a line per checkpoint", list);
  add("verify", "read all files of checkpoints and of final weights, and compare their hashes", verify);
  add("show", "print the contents of the newest checkpoint and the settings of its training", show);
}

}  // namespace slipstream::cli
