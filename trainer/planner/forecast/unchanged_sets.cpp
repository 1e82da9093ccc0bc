// SPDX-License-Identifier: Apache-2.0
// Plans without each --set, and compares the order of all tasks.

#include "trainer/planner/forecast/unchanged_sets.h"

#include <algorithm>

#include "comm/rehearse/finish.h"
#include "engine/base/check.h"
#include "engine/base/plural.h"
#include "engine/base/units.h"
#include "engine/config/fields.h"
#include "trainer/planner/options/initial_model.h"
#include "trainer/planner/planner.h"

namespace slipstream::planner {
namespace {

/// Returns true if the key changes only the order, the size or the type of a plan's tasks.
bool is_of_plan(const std::string& key) {
  for (const char* prefix : {"overlap.", "zero.", "pipeline."})
    if (key.starts_with(prefix)) return true;
  return key == "parallel.order" || key == "parallel.sequence_parallel" || key == "comm.grad_dtype" ||
         key == "comm.quantize";
}

uint64_t hash_of(const FinishedJob& finished) {
  std::vector<const Plan*> plans;
  for (const auto& stage : finished.stages) plans.push_back(&stage->train());
  return comm::order_hash(plans);
}

std::string reason_for(const std::string& key, const RunConfig& config, const Job& job) {
  if (job.mesh.world() == 1) return "one rank sends nothing";
  if (key.starts_with("pipeline.") && job.mesh.stages() == 1) return "there is one stage";
  const bool of_gradients = key.ends_with("bucket_size") || key.starts_with("zero.") || key.starts_with("comm.") ||
                            key == "overlap.grad_reduce" || key == "overlap.split_tied_embedding" ||
                            key == "overlap.optimizer_per_bucket" || key == "overlap.param_gather";
  if (of_gradients && !job.reduces()) return "one data rank reduces and shards nothing";
  if (key.ends_with("bucket_size")) {
    if (config.overlap.grad_reduce != ReduceMode::bucketed)
      return fmt::format("overlap.grad_reduce = {} has no buckets", field_text(config, "overlap.grad_reduce"));
    if (job.sharding().gradients) return "with sharded gradients each layer is one bucket";
    int64_t least = INT64_MAX, most = 0;
    for (const Bucket& bucket : job.layout.buckets) {
      least = std::min(least, 4 * bucket.elems);
      most = std::max(most, 4 * bucket.elems);
    }
    return fmt::format(
        "both give {} of {} to {}: a bucket holds whole parameters, is at least overlap.first_bucket_size, and takes a "
        "quarter of the gradients that are left at most",
        counted(std::ssize(job.layout.buckets), "bucket"), format_bytes(least), format_bytes(most));
  }
  return "the tasks and their order are the same";
}

/// Returns the sentence of one key, or an empty text if the plan changes without its last --set.
std::string remark_on(const std::string& key, const RunSource& source, const JobRequest& request,
                      const FinishedJob& finished) {
  std::vector<std::string> sets = source.sets;
  const auto last =
      std::find_if(sets.rbegin(), sets.rend(), [&](const std::string& set) { return set.starts_with(key + "="); });
  const std::string given = *last;
  sets.erase(std::next(last).base());
  const RunConfig without = load_run(source.run_file, sets);
  const std::string text = field_text(without, key);
  const bool is_text = text.starts_with('"') && text.ends_with('"');
  const std::string bare = is_text ? text.substr(1, text.size() - 2) : text;
  if (text == field_text(*request.config, key))
    return fmt::format("--set {} changes nothing: {} is {} {}", given, key, text,
                       given == key + "=" + bare ? "without it" : "with it and without it");
  JobRequest asked = request;
  asked.config = resolve(without, request.config.facts());
  asked.proves = false;
  const Job& job = *finished.job;
  const FinishedJob other =
      build_job_with_update(asked, {.beside = !job.update_on_spine, .double_buffer = job.options.double_buffer});
  if (hash_of(other) != hash_of(finished)) return "";
  return fmt::format("--set {} changes nothing: the plan is that of {} = {}, because {}", given, key, text,
                     reason_for(key, *request.config, job));
}

}  // namespace

std::vector<std::string> sets_without_effect(const RunSource& source, const JobRequest& request,
                                             const FinishedJob& finished) {
  constexpr size_t kMostItems = 50'000;  // of a step on all stages; more items take seconds to plan
  size_t items = 0;
  for (const auto& stage : finished.stages) items += stage->train().size();
  std::vector<std::string> keys, sentences;
  for (const std::string& set : source.sets) {
    const std::string key = set.substr(0, set.find('='));
    if (is_of_plan(key) && std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  }
  const std::vector<std::string>& known = request.config.without_effect();
  for (const std::string& key : keys) {
    const bool is_known = std::any_of(known.begin(), known.end(),
                                      [&](const std::string& sentence) { return sentence.starts_with(key + " = "); });
    if (is_known || items > kMostItems) continue;
    try {
      if (std::string sentence = remark_on(key, source, request, finished); !sentence.empty())
        sentences.push_back(std::move(sentence));
    } catch (const Error&) {
      continue;  // the run file alone is not legal
    }
  }
  return sentences;
}

}  // namespace slipstream::planner
