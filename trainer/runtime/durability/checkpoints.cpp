// SPDX-License-Identifier: Apache-2.0
// The order of a save: the folder, the files of all ranks, the manifest, the rename, the removal of old checkpoints.

#include "trainer/runtime/durability/checkpoints.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/fail_point.h"
#include "engine/base/files.h"
#include "engine/base/log.h"
#include "engine/base/parallel.h"
#include "engine/base/units.h"
#include "engine/checkpoint/store.h"
#include "engine/config/fields.h"
#include "engine/plan/saved_state.h"
#include "trainer/runtime/run_folder/version.h"

namespace slipstream::runtime {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

/// Returns what a rank reports about its part of a save: "ok SIZE HASH NAME", "failed REASON" or "nan REASON".
std::string report_of(const std::function<checkpoint::StateFile()>& write) {
  try {
    const checkpoint::StateFile file = write();
    return fmt::format("ok {} {} {}", file.size_bytes, file.hash, file.name);
  } catch (const NumericsError& error) {
    return fmt::format("nan {}", error.what());
  } catch (const Error& error) {
    return fmt::format("failed {}", error.what());
  }
}

/// Returns a sentence about the space of the disk, if a lack of it caused the failure.
std::string space_sentence(const std::string& dir, int64_t need_bytes, const std::string& failure) {
  const auto is_cause = [&](int error) { return failure.find(std::strerror(error)) != std::string::npos; };
  if (!is_cause(ENOSPC) && !is_cause(EDQUOT)) return {};
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(dir, error);
  if (error) return {};
  return fmt::format(" A checkpoint needs {}, and {} has {} free.", format_bytes(need_bytes), files::shown(dir),
                     format_bytes(static_cast<int64_t>(space.available)));
}

/// Removes and returns the first word of `text`.
std::string take_word(std::string& text) {
  const size_t space = text.find(' ');
  std::string word = text.substr(0, space);
  text.erase(0, space == std::string::npos ? text.size() : space + 1);
  return word;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> config_lines(const RunConfig& config) {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const Field<RunConfig>& field : run_fields()) lines.emplace_back(field.key, field_text(config, field.key));
  return lines;
}

checkpoint::Manifest manifest_of(int ranks, const std::vector<std::shared_ptr<const Job>>& stages,
                                 const RunIdentity& identity, int64_t skipped_batches) {
  return {.step = 0,
          .program = version(),
          .written = "",
          .ranks = ranks,
          .layout = text_of(stages[0]->mesh.sizes(), ", "),
          .memory_layout = memory_layout_of(stages),
          .global_batch_size = identity.global_batch_size,
          .vocab = identity.vocab,
          .data_hash = identity.data_hash,
          .skipped_batches = skipped_batches,
          .config = identity.config,
          .tensors = logical_tensors(stages),
          .files = {}};
}

Checkpoints::Checkpoints(World& world, Rank& rank, std::vector<std::shared_ptr<const Job>> stages,
                         const Checkpoint& options, RunIdentity identity)
    : world_(world), rank_(rank), stages_(std::move(stages)), options_(options), identity_(std::move(identity)) {}

void Checkpoints::begin(const std::string& dir, int64_t resumed_step, int64_t skipped_batches) {
  options_.dir = dir;
  kept_.resumed = newest_step_ = resumed_step;
  skipped_batches_ = skipped_batches;
  world_.together([&] {
    if (world_.rank() > 0) return;
    checkpoint::clean_leftovers(options_.dir);
    for (const checkpoint::Found& found : checkpoint::find_checkpoints(options_.dir))
      if (found.step > resumed_step) kept_.damaged.insert(found.step);
  });
}

Checkpoints::~Checkpoints() {
  if (pace_) pace_->lift();
  if (writer_.joinable()) writer_.join();
}

std::string Checkpoints::begin_async(int64_t step) {
  SLIP_ASSERT(in_flight_ == 0 && step > 0);
  // A rank that fails reports it, because the others would otherwise wait.
  std::string failure;
  if (world_.rank() == 0) {
    try {
      checkpoint::begin_checkpoint(options_.dir, step);
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  if (std::string of_rank_0 = world_.all_gather(failure, "a save")[0]; !of_rank_0.empty()) return of_rank_0;
  folder_ = checkpoint::unfinished_path(options_.dir, step);
  in_flight_ = step;
  written_ = false;
  pace_.emplace(options_.bandwidth_bytes_per_second);
  return {};
}

std::string Checkpoints::write(const ReadState& read, checkpoint::WriterPace* pace) const {
  return report_of([&] {
    return checkpoint::write_state_file(folder_, fmt::format("rank-{:04}.safetensors", world_.rank()),
                                        boxes_to_save(rank_.job(), read), pace);
  });
}

bool Checkpoints::is_writing() {
  if (in_flight_ == 0 || written_) return false;
  if (!writer_.joinable() && rank_.snapshot_done())
    writer_ = start_thread("writes checkpoints", [this] {
      report_ = write(read_snapshot(rank_), &*pace_);
      written_ = true;
    });
  return true;
}

void Checkpoints::warn_of_wait(int64_t step) {
  if (warned_of_wait_ || !is_writing()) return;
  warned_of_wait_ = true;
  log_warn("[checkpoint] step {} is due while step {} is still being written, so training waits. Raise the interval{}.",
           step, in_flight_, options_.bandwidth_bytes_per_second > 0 ? " or checkpoint.bandwidth" : "");
}

std::string Checkpoints::finish(const checkpoint::NumericsHistory& numerics, const std::string& hindrance) {
  pace_->lift();
  while (is_writing() && !writer_.joinable()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (writer_.joinable()) writer_.join();
  return commit(std::exchange(in_flight_, 0), numerics, report_, hindrance);
}

std::string Checkpoints::save(int64_t step, const checkpoint::NumericsHistory& numerics, const std::string& hindrance) {
  if (std::string failure = begin_async(step); !failure.empty()) return failure;
  return commit(std::exchange(in_flight_, 0), numerics, write(read_at_rest(rank_), nullptr), hindrance);
}

std::string Checkpoints::commit(int64_t step, const checkpoint::NumericsHistory& numerics, const std::string& report,
                                const std::string& hindrance) {
  std::string failure;
  std::vector<std::string> reports = world_.all_gather(report, "a save");
  checkpoint::Manifest manifest = manifest_of(world_.size(), stages_, identity_, skipped_batches_);
  manifest.step = step;
  manifest.written = utc_now();
  manifest.numerics = numerics;
  bool finite = true;
  for (size_t r = 0; r < reports.size(); ++r) {
    const std::string word = take_word(reports[r]);
    if (word == "ok") {
      const int64_t size_bytes = std::stoll(take_word(reports[r]));
      const std::string hash = take_word(reports[r]);
      manifest.files.push_back({.name = reports[r], .size_bytes = size_bytes, .hash = hash});
    } else if (failure.empty()) {
      finite = word != "nan";
      failure = finite ? fmt::format("rank {}: {}", r, reports[r]) : reports[r];
    }
  }
  fail_point("save.gathered");
  if (world_.rank() == 0) {
    if (failure.empty()) failure = hindrance;
    try {
      if (failure.empty())
        checkpoint::commit_checkpoint(options_.dir, manifest);
      else
        checkpoint::drop_checkpoint(options_.dir, step);
    } catch (const Error& error) {
      failure = error.what();
      checkpoint::drop_checkpoint(options_.dir, step);
    }
    if (!failure.empty() && finite) failure += space_sentence(options_.dir, saved_bytes(stages_), failure);
  }
  if (!finite) throw NumericsError("{}", failure);
  failure = world_.all_gather(failure, "a save")[0];
  if (!failure.empty()) return failure;
  newest_step_ = step;
  kept_.damaged.erase(step);
  if (world_.rank() == 0)
    for (const std::string& sentence : checkpoint::remove_old(options_.dir, options_.keep, kept_))
      log_warn("[checkpoint] {}. Remove it by hand.", sentence);
  return {};
}

}  // namespace slipstream::runtime
