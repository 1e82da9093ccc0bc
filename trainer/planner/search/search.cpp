// SPDX-License-Identifier: Apache-2.0
// Best-first search over bounded layouts, on several threads.

#include "trainer/planner/search/search.h"
#include "trainer/planner/planner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/parallel.h"
#include "engine/base/plural.h"
#include "engine/base/progress.h"
#include "engine/base/units.h"
#include "engine/config/load.h"
#include "engine/report/utilization.h"
#include "trainer/planner/forecast/extra_memory.h"
#include "trainer/planner/forecast/software.h"
#include "trainer/planner/options/initial_model.h"
#include "trainer/planner/options/plan_options.h"

namespace slipstream::planner {
namespace {

using Clock = std::chrono::steady_clock;

JobRequest compared_request(const Drawn& drawn, const ResolvedConfig& config) {
  JobRequest asked{.config = config, .machine = drawn.machine, .nccl = drawn.nccl, .proves = false};
  if (config.on_gpus())
    asked.extra_bytes = [asked](const Job& job) {
      return sum_of(
          extra_memory_on_gpu(job, choose_engines(asked, job.mesh, job.channels).nccl, asked.machine.ranks_per_node));
    };
  return asked;
}

/// Returns true if the time is spent, or if Ctrl-C asked for what is known.
bool is_over(const SearchOptions& options, Clock::time_point begin) {
  return Interrupt::asked() ||
         (options.seconds > 0 && std::chrono::duration<double>(Clock::now() - begin).count() >= options.seconds);
}

class Search {
 public:
  Search(const SearchOptions& options, SearchResult& result, std::vector<std::optional<ResolvedConfig>> configs)
      : options_(options), result_(result), configs_(std::move(configs)), is_taken_(result.layouts.size(), 0) {
    for (const auto& config : configs_) kinds_.push_back(config ? kind_of(*config) : std::string());
  }

  void run(int threads, Clock::time_point begin) {
    for_each_index(static_cast<size_t>(threads), threads, [&](size_t) {
      while (true) {
        if (is_over(options_, begin)) return;
        const size_t next = take();
        if (next == kNone) return;
        rehearse(next);
      }
    });
    for (SearchedLayout& layout : result_.layouts)
      if (layout.outcome == Outcome::open && cannot_win(layout)) layout.outcome = Outcome::slower;
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;

  bool cannot_win(const SearchedLayout& layout) const {
    return !options_.exhaustive && static_cast<double>(layout.bound.step_ns) / 1e6 >= best_ms_;
  }

  /// Returns the kind of a layout. For layouts with the same kinds of communication, steps differ from the expected
  /// ones by similar factors.
  static std::string kind_of(const ResolvedConfig& config) {
    return fmt::format("{} {} {} {} {} {}", config->parallel.tensor, config->zero.stage, config->parallel.pipeline > 1,
                       config->parallel.context, config->parallel.expert, config->overlap.paired_passes);
  }

  size_t take() {
    const std::lock_guard lock(mutex_);
    size_t best = kNone;
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < result_.layouts.size(); ++i) {
      const SearchedLayout& layout = result_.layouts[i];
      if (is_taken_[i] || !configs_[i] || layout.outcome != Outcome::open || cannot_win(layout)) continue;
      const auto found = factors_.find(kinds_[i]);
      const double expected =
          static_cast<double>(layout.bound.expected_ns) * (found == factors_.end() ? 1 : found->second);
      if (expected < least) least = expected, best = i;
    }
    if (best != kNone) is_taken_[best] = 1;
    return best;
  }

  void rehearse(size_t index) {
    Rehearsed made;
    std::string refusal;
    try {
      made = rehearse_config(result_.drawn, *configs_[index]);
    } catch (const Error& error) {
      refusal = error.what();
    }
    const std::lock_guard lock(mutex_);
    SearchedLayout& layout = result_.layouts[index];
    ++rehearsed_;
    progress_.show([&] {
      return fmt::format("{} rehearsed, {}", counted(rehearsed_, "layout"),
                         std::isfinite(best_ms_) ? fmt::format("the best one takes {:.2f} ms: {}", best_ms_, best_)
                                                 : std::string("none of them fits"));
    });
    if (!refusal.empty()) {
      layout.outcome = Outcome::refused;
      layout.refusal = refusal;
      return;
    }
    layout.memory_bytes = made.memory_bytes;
    layout.outcome = made.step_ms < 0 ? Outcome::too_large : Outcome::rehearsed;
    if (made.step_ms < 0) return;
    layout.step_ms = made.step_ms;
    if (made.step_ms < best_ms_) {
      best_ms_ = made.step_ms;
      best_ = fmt::format("{}", fmt::join(layout.sets, " "));
    }
    const double factor = made.step_ms * 1e6 / static_cast<double>(std::max<int64_t>(1, layout.bound.expected_ns));
    const auto [found, is_new] = factors_.try_emplace(kinds_[index], factor);
    if (!is_new) found->second = std::min(found->second, factor);
  }

  const SearchOptions& options_;
  SearchResult& result_;
  std::vector<std::optional<ResolvedConfig>> configs_;
  std::vector<std::string> kinds_;
  std::vector<char> is_taken_;
  std::mutex mutex_;
  double best_ms_ = std::numeric_limits<double>::infinity();
  std::string best_;  // the settings of the best layout
  int64_t rehearsed_ = 0;
  std::map<std::string, double> factors_;
  Progress progress_{"plan --search"};
};

/// Bounds every layout until `is_over`. Those that break a rule have no configuration.
std::vector<std::optional<ResolvedConfig>> bound_all(const WrittenRun& written, int threads,
                                                     const std::function<bool()>& is_over, SearchResult& result) {
  std::vector<std::optional<ResolvedConfig>> configs(result.layouts.size());
  for_each_index(static_cast<size_t>(threads), threads, [&](size_t own) {
    LayoutBounds bounds(result.drawn.machine);
    // Neighbours in the list share works.
    const size_t count = configs.size(), all = static_cast<size_t>(threads);
    for (size_t i = count * own / all; i < count * (own + 1) / all; ++i) {
      if (is_over()) return;
      SearchedLayout& layout = result.layouts[i];
      try {
        configs[i] = resolved_with(written, result.drawn.config, layout.sets);
        layout.bound = bounds.bound(*configs[i]);
        layout.memory_bytes = layout.bound.memory_bytes;
        const int64_t has = result.drawn.machine.memory_bytes;
        if (has > 0 && layout.memory_bytes > has) layout.outcome = Outcome::too_large;
      } catch (const Error& error) {
        layout.outcome = Outcome::refused;
        layout.refusal = error.what();
      }
    }
  });
  return configs;
}

[[noreturn]] void refuse_all(const SearchResult& result) {
  if (!result.is_certain)
    throw ResourceError(
        "[plan] --search: no rehearsal of {} ended in {:.3g} s. Raise --seconds, or name values with --over.",
        counted(std::ssize(result.layouts), "layout"), result.seconds);
  const SearchedLayout* smallest = nullptr;
  for (const SearchedLayout& layout : result.layouts)
    if (layout.outcome == Outcome::too_large && (!smallest || layout.memory_bytes < smallest->memory_bytes))
      smallest = &layout;
  if (!smallest)
    throw ConfigError("[plan] --search: none of {} layouts of {} ranks is legal; the first one: {}",
                      result.layouts.size(), result.drawn.config.world(),
                      result.layouts.empty() ? "there is none" : result.layouts.front().refusal);
  const int64_t has = result.drawn.machine.memory_bytes;
  throw ResourceError(
      "[plan] --search: none of {} layouts fits. The smallest needs at least {}, {} more than the {} of {}, with --set "
      "{}. Use more ranks, a smaller model or shorter sequences, or --over train.micro_batch_size=1.",
      result.layouts.size(), format_bytes(smallest->memory_bytes), format_bytes(smallest->memory_bytes - has),
      format_bytes(has), result.drawn.machine.name, fmt::join(smallest->sets, " --set "));
}

/// Rehearses with one run of `use` for each number of micro-batches that the step needs. The first run is the longest.
template <typename Use>
int64_t over_steady_state(const Drawn& drawn, const ResolvedConfig& config, const Use& use) {
  const SteadyState state = steady_state(config);
  const bool whole = state.rounds == 0 || !config->pipeline.schedule_file.empty();
  JobRequest last = compared_request(drawn, whole ? config : with_micro_batches(config, state.planned + state.round));
  last.schedule = choose_schedule(compared_request(drawn, config));
  TriedJob tried = try_job(last);
  if (tried.finished.stages.empty()) return tried.memory_bytes;
  use(last, tried.finished, 1.0);
  if (whole) return tried.memory_bytes;
  JobRequest before = compared_request(drawn, with_micro_batches(config, state.planned));
  before.schedule = last.schedule;
  const TriedJob shorter = try_job(before);
  // T(longest) + (rounds - 1) (T(longest) - T(shorter))
  use(last, tried.finished, state.rounds - 1);
  use(before, shorter.finished, 1 - state.rounds);
  if (state.fills)
    return tried.memory_bytes - most_bytes(tried.finished) +
           largest_of_run(config, state, shorter.finished, tried.finished).size_bytes;
  return tried.memory_bytes +
         static_cast<int64_t>((state.rounds - 1) * static_cast<double>(tried.memory_bytes - shorter.memory_bytes));
}

}  // namespace

size_t SearchResult::count(Outcome outcome) const {
  return static_cast<size_t>(std::count_if(layouts.begin(), layouts.end(),
                                           [&](const SearchedLayout& layout) { return layout.outcome == outcome; }));
}

Rehearsed rehearse_config(const Drawn& drawn, const ResolvedConfig& config) {
  Rehearsed made;
  double step_ns = 0;
  bool fits = false;
  std::map<int64_t, int64_t> known;  // the period by micro-batches
  made.memory_bytes =
      over_steady_state(drawn, config, [&](const JobRequest& request, const FinishedJob& finished, double weight) {
        const auto [found, is_new] = known.try_emplace(finished.micro_batches, 0);
        if (is_new) found->second = step_period_ns(request, finished, false);
        if (found->second < 0) throw PlanError("[plan] the rehearsal ends in a deadlock. Please report it.");
        step_ns += weight * static_cast<double>(found->second);
        fits = true;
      });
  // The whole step may need more memory than its short plans.
  const int64_t has_bytes = drawn.machine.memory_bytes;
  if (fits && (has_bytes == 0 || made.memory_bytes <= has_bytes)) made.step_ms = step_ns / 1e6;
  return made;
}

StepTotals totals_of_config(const Drawn& drawn, const ResolvedConfig& config) {
  StepTotals totals;
  std::map<int64_t, comm::Rehearsal> known;
  totals.memory_bytes =
      over_steady_state(drawn, config, [&](const JobRequest& request, const FinishedJob& finished, double weight) {
        const auto [found, is_new] = known.try_emplace(finished.micro_batches);
        if (is_new)
          found->second = comm::rehearse(finished.job->mesh, finished.job->channels, runs_of(finished.stages, 3),
                                         price_of(*request.config, request.machine, finished.job->mesh),
                                         {.gate = comm::Gate::launch_order});
        if (!found->second.finished) throw PlanError("[plan] the rehearsal ends in a deadlock. Please report it.");
        const comm::RankTimes& times = found->second.ranks.front();
        totals.step_ms += weight * static_cast<double>(times.step_period_ns(1)) / 1e6;
        totals.exposed_ms += weight * ms_of_a_step(times.exposed_ns);
        totals.bubble_ms += weight * ms_of_a_step(times.bubble_ns);
        totals.communication_ms += weight * ms_of_a_step(times.communication_ns);
      });
  totals.bubble_ms = std::max(0.0, totals.bubble_ms);
  return totals;
}

ResolvedConfig resolved_with(const WrittenRun& written, const ResolvedConfig& drawn,
                             const std::vector<std::string>& sets) {
  const RunConfig config = with_sets(written, sets);
  const ResolvedConfig resolved = resolve(config, drawn.facts());
  if (config.pipeline.schedule_file.empty() && config.parallel.pipeline > 1)
    require_shape(config.pipeline.schedule, {.stages = static_cast<int>(config.parallel.pipeline),
                                             .micro_batches = static_cast<int>(resolved.batch().micro_batches),
                                             .virtual_stages = static_cast<int>(config.pipeline.virtual_stages)});
  return resolved;
}

namespace {

/// The layout of a run file may be for another number of ranks.
Drawn draw_any(const PlanRequest& request) {
  try {
    return draw(request);
  } catch (const ConfigError&) {
    PlanRequest plain = request;
    for (const std::string& set : sets_of_plain_axes()) plain.sets.push_back(set);
    for (const char* set :
         {"parallel.sequence_parallel=false", "pipeline.schedule=1f1b", "pipeline.virtual_stages=1",
          "pipeline.layers=[]", "zero.shard_size=0", "train.micro_batch_size=1", "train.global_batch_size=0"})
      plain.sets.emplace_back(set);
    return draw(plain);
  }
}

bool searches_wires(const std::vector<SearchedKey>& keys) {
  return std::any_of(keys.begin(), keys.end(), [](const SearchedKey& each) {
    return each.key == "comm.grad_dtype" || each.key == "comm.quantize" || each.key == "zero.gather_dtype";
  });
}

}  // namespace

SearchResult search(const PlanRequest& request, const SearchOptions& options) {
  const auto begin = Clock::now();
  SearchResult result{.drawn = draw_any(request)};
  const SoftwareProfile profile = software_profile(request.as);
  std::vector<std::string> sets = profile.sets;
  sets.insert(sets.end(), request.sets.begin(), request.sets.end());
  const int64_t asked_batch = load_run(request.run_file, sets).train.global_batch_size;
  result.global_batch = asked_batch > 0 ? asked_batch : result.drawn.config->train.global_batch_size;
  const std::string batch = fmt::format("train.global_batch_size={}", result.global_batch);
  sets.push_back(batch);
  const WrittenRun written = load_written(request.run_file, sets);
  for (std::vector<std::string>& each :
       layouts_of(result.drawn.config, result.drawn.machine, options.keys, result.global_batch)) {
    if (asked_batch == 0) each.push_back(batch);
    if (!written.keys.pipeline.schedule_file.empty()) each.emplace_back("pipeline.schedule_file=");
    // The layers of the run file are for other stages.
    if (!written.keys.pipeline.layers.empty()) each.insert(each.begin(), "pipeline.layers=[]");
    result.layouts.push_back({.sets = std::move(each)});
  }
  const int threads =
      options.threads > 0 ? options.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const Interrupt interrupt;  // after Ctrl-C, the search prints what is known
  std::vector<std::optional<ResolvedConfig>> configs = bound_all(
      written, threads, [&] { return is_over(options, begin); }, result);
  Search(options, result, configs).run(threads, begin);
  std::stable_sort(result.layouts.begin(), result.layouts.end(), [](const SearchedLayout& a, const SearchedLayout& b) {
    const bool first = a.outcome == Outcome::rehearsed, second = b.outcome == Outcome::rehearsed;
    if (first != second) return first;
    return first ? a.step_ms < b.step_ms : a.bound.step_ns < b.bound.step_ns;
  });
  result.rehearsed = result.count(Outcome::rehearsed);
  result.is_certain = result.count(Outcome::open) == 0;
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (result.rehearsed == 0) refuse_all(result);
  for (size_t i = 0; i < std::min(kShownLayouts, result.rehearsed); ++i)
    result.configs.push_back(resolved_with(written, result.drawn.config, result.layouts[i].sets));
  if (!searches_wires(options.keys) && !is_over(options, begin))
    result.wires = rehearse_narrower_wires(result, written, threads);
  const ResolvedConfig& best = result.configs.front();
  const ResolvedConfig one = with_micro_batches(best, best->parallel.pipeline);
  result.flops = model_flops(build_drafted_job(compared_request(result.drawn, one)).stages) *
                 static_cast<double>(best.batch().micro_batches) / static_cast<double>(one.batch().micro_batches);
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return result;
}

}  // namespace slipstream::planner
