// SPDX-License-Identifier: Apache-2.0
// Bisects rates over one plan, and tries sizes one by one, the smallest first.

#include "trainer/planner/search/need.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <future>
#include <optional>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/json.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/config/load.h"
#include "engine/config/nearest.h"
#include "engine/report/utilization.h"
#include "trainer/planner/forecast/software.h"
#include "trainer/planner/options/initial_model.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"
#include "trainer/planner/search/search.h"

namespace slipstream::planner {
namespace {

constexpr std::string_view kGoals[] = {"mfu", "step_ms", "tokens_per_s"};
constexpr std::string_view kVaried[] = {"bandwidth", "memory", "micro_batch", "ranks"};

/// Returns the index of a name. Throws: ConfigError with the names.
template <size_t n>
size_t index_of(const std::string& name, const std::string_view (&names)[n], const char* flag) {
  const auto found = std::find(std::begin(names), std::end(names), name);
  if (found != std::end(names)) return static_cast<size_t>(found - std::begin(names));
  const std::string near = nearest(name, {std::begin(names), std::end(names)});
  throw ConfigError("[plan] {} does not know '{}'{} Use {}.", flag, name,
                    near.empty() ? "." : "; did you mean '" + near + "'?", fmt::join(names, ", "));
}

/// A run in which one value varies.
class Question {
 public:
  Question(const PlanRequest& request, const Need& need) : request_(request), need_(need), drawn_(draw(request)) {
    const SoftwareProfile profile = software_profile(request.as);
    std::vector<std::string> sets = profile.sets;
    sets.insert(sets.end(), request.sets.begin(), request.sets.end());
    written_ = load_written(request.run_file, sets);
  }

  Needed bandwidth();
  Needed memory();
  Needed micro_batch();
  Needed ranks();

 private:
  bool meets(double reached) const {
    return need_.goal == Goal::step_ms ? reached <= need_.value : reached >= need_.value;
  }
  bool better(double a, double b) const { return need_.goal == Goal::step_ms ? a < b : a > b; }

  /// Returns the goal's quantity for a step.
  double reached(const ResolvedConfig& config, double step_ms) {
    if (need_.goal == Goal::step_ms) return step_ms;
    if (need_.goal == Goal::tokens_per_s)
      return 1e3 * static_cast<double>(config->train.global_batch_size * config->train.sequence_length) / step_ms;
    const double peak = peak_flops_per_second(drawn_.machine, config->train.dtype);
    if (peak <= 0) throw ConfigError("[plan] --need mfu: {} has no peak of its matrix units.", drawn_.machine.name);
    return utilization(flops_of(config), step_ms, config.world(), peak);
  }

  /// Returns the operations of a step. They do not depend on the layout: they are those of one micro-batch times the
  /// number of micro-batches.
  double flops_of(const ResolvedConfig& config) {
    const ResolvedConfig one = with_micro_batches(config, config->parallel.pipeline);
    if (!flops_of_sequence_)
      flops_of_sequence_ =
          model_flops(build_drafted_job({.config = one, .machine = drawn_.machine, .nccl = drawn_.nccl}).stages) /
          static_cast<double>(one->train.global_batch_size);
    return *flops_of_sequence_ * static_cast<double>(config->train.global_batch_size);
  }

  NeedStep step(const std::string& value, const ResolvedConfig& config, double step_ms) {
    NeedStep made{.value = value, .reached = reached(config, step_ms)};
    made.meets = meets(made.reached);
    return made;
  }

  /// Rehearses `config` on the machine. For an illegal or too large configuration, returns a step with a problem.
  NeedStep try_config(const std::string& value, const std::function<ResolvedConfig()>& make) {
    try {
      const ResolvedConfig config = make();
      const Rehearsed made = rehearse_config(drawn_, config);
      if (made.step_ms >= 0) return step(value, config, made.step_ms);
      return {.value = value,
              .problem = fmt::format("needs {} of memory, {} has {}", format_bytes(made.memory_bytes),
                                     drawn_.machine.name, format_bytes(drawn_.machine.memory_bytes))};
    } catch (const ConfigError& error) {
      return {.value = value, .problem = error.what()};
    }
  }

  /// A job of some micro-batches, and its weight in a step of all of them.
  struct Part {
    ResolvedConfig config;
    double weight = 1;
    FinishedJob finished;
    std::vector<comm::RankRuns> runs;  // borrows `finished`
  };
  std::vector<Part> parts_of_step() const;
  /// Returns the longest step that meets the goal, by bisection of meets(): goals grow or fall with the step.
  double longest_ms();
  /// Narrows (most_short, least_met) by secants, because the time of a step is nearly a line in the time of a byte.
  void narrow(double& most_short, double short_ms, double& least_met, NeedStep& met,
              const std::function<NeedStep(double)>& try_rate);
  /// Tries the values in order until one meets the goal.
  Needed first_that_meets(const std::string& name, int64_t own, const std::vector<int64_t>& values,
                          const std::function<ResolvedConfig(int64_t)>& make);
  [[noreturn]] void refuse(const Needed& needed, const std::string& remedy) const;

  const PlanRequest& request_;
  const Need& need_;
  Drawn drawn_;
  WrittenRun written_;
  std::optional<double> flops_of_sequence_;
};

void Question::refuse(const Needed& needed, const std::string& remedy) const {
  const NeedStep* best = nullptr;
  for (const NeedStep& each : needed.tried)
    if (each.problem.empty() && (!best || better(each.reached, best->reached))) best = &each;
  throw ConfigError(
      "[plan] no {} reaches {} = {:g}; {}. {}", needed.varied, kGoals[static_cast<size_t>(need_.goal)], need_.value,
      best                   ? fmt::format("the best one, {}, reaches {:.4g}", best->value, best->reached)
      : needed.tried.empty() ? std::string("there is no legal value")
                             : fmt::format("{}: {}", needed.tried.back().value, needed.tried.back().problem),
      remedy);
}

std::vector<Question::Part> Question::parts_of_step() const {
  const SteadyState state = steady_state(drawn_.config);
  JobRequest asked{.config = drawn_.config, .machine = drawn_.machine, .nccl = drawn_.nccl, .proves = false};
  asked.schedule = choose_schedule(asked);
  std::vector<Part> parts;
  if (state.rounds == 0) {
    parts.push_back({.config = drawn_.config, .finished = {}, .runs = {}});
  } else {
    for (const auto& [micro_batches, weight] :
         {std::pair{state.planned + state.round, state.rounds}, std::pair{state.planned, 1 - state.rounds}})
      parts.push_back(
          {.config = with_micro_batches(drawn_.config, micro_batches), .weight = weight, .finished = {}, .runs = {}});
  }
  std::vector<std::future<void>> builds;
  for (Part& part : parts)
    builds.push_back(std::async(parts.size() > 1 ? std::launch::async : std::launch::deferred, [&] {
      JobRequest own = asked;
      own.config = part.config;
      part.finished = build_job_with_update(own, {});
      part.runs = runs_of(part.finished.stages, 3);
    }));
  for (std::future<void>& build : builds) build.get();
  return parts;
}

double Question::longest_ms() {
  const double one = reached(drawn_.config, 1);  // for a step of one millisecond
  return need_.goal == Goal::step_ms ? need_.value : one / need_.value;
}

void Question::narrow(double& most_short, double short_ms, double& least_met, NeedStep& met,
                      const std::function<NeedStep(double)>& try_rate) {
  constexpr double kNarrow = 1.003, kBeside = 0.001;  // the ratio of the two rates; steps beyond the root, alternately
  constexpr int kMost = 6;
  const double wanted_ms = longest_ms();
  bool was_met = true;
  for (int i = 0; i < kMost && least_met / most_short > kNarrow && short_ms > met.step_ms; ++i) {
    const double share = (wanted_ms - met.step_ms) / (short_ms - met.step_ms);
    double rate = 1 / (1 / least_met + share * (1 / most_short - 1 / least_met));
    rate *= was_met ? 1 - kBeside : 1 + kBeside;  // beyond the root, so that the other end moves too
    rate = std::floor(std::clamp(rate, most_short * (1 + kBeside), least_met / (1 + kBeside)));
    const NeedStep tried = try_rate(rate);
    was_met = tried.meets;
    if (tried.meets)
      least_met = rate, met = tried;
    else
      most_short = rate, short_ms = tried.step_ms;
  }
}

Needed Question::bandwidth() {
  constexpr double kPrecision = 1.01, kStride = 4, kWidest = 1 << 16;
  const int64_t emulated = drawn_.config->comm.emulate.bandwidth_bytes_per_second;
  const ResolvedConfig& config = drawn_.config;
  const std::vector<Part> parts = parts_of_step();
  flops_of_sequence_ =
      model_flops(parts.back().finished.stages) / static_cast<double>(parts.back().config->train.global_batch_size);
  const Mesh& mesh = parts.front().finished.job->mesh;
  bool across = false;
  for (const MeshAxis& row : kMeshAxes) across |= mesh.crosses_nodes(row.axis, drawn_.machine.ranks_per_node);
  if (mesh.world() == 1)
    throw ConfigError("[plan] --vary bandwidth: one rank sends nothing. Use --ranks, or vary micro_batch.");
  Needed needed{.need = need_,
                .varied = emulated > 0 ? "comm.emulate.bandwidth"
                          : across     ? "bandwidth between nodes"
                                       : "bandwidth inside a node"};
  const int64_t own = emulated > 0 ? emulated
                      : across     ? drawn_.machine.inter_bytes_per_second
                                   : drawn_.machine.intra_bytes_per_second;
  const auto try_rate = [&](double rate) {
    std::vector<std::future<double>> steps_ms;
    for (const Part& part : parts)
      steps_ms.push_back(std::async(parts.size() > 1 ? std::launch::async : std::launch::deferred, [&] {
        RunConfig run = *part.config;
        Machine machine = drawn_.machine;
        const auto bytes = static_cast<int64_t>(rate);
        (emulated > 0 ? run.comm.emulate.bandwidth_bytes_per_second
         : across     ? machine.inter_bytes_per_second
                      : machine.intra_bytes_per_second) = bytes;
        const JobRequest asked{.config = resolve(run, config.facts()), .machine = machine, .nccl = drawn_.nccl};
        return part.weight * static_cast<double>(step_period_ns(asked, part.finished, part.runs, false)) / 1e6;
      }));
    double step_ms = 0;
    for (std::future<double>& each : steps_ms) step_ms += each.get();
    needed.tried.push_back(step(format_bytes(static_cast<int64_t>(rate)) + "/s", config, step_ms));
    needed.tried.back().step_ms = step_ms;
    return needed.tried.back();
  };
  needed.now = try_rate(static_cast<double>(own));
  double low = static_cast<double>(own), high = low;  // high meets the goal
  NeedStep answer = needed.now, below = needed.now;   // the steps of high and of low
  const auto within = [&](double rate) { return rate > static_cast<double>(own) / kWidest && rate > 1; };
  if (needed.now.meets) {
    while (low == high && within(low)) {
      low = std::max(1.0, high / kStride);
      below = try_rate(low);
      if (below.meets) high = low, answer = below;
    }
  } else {
    while (!answer.meets) {
      if (high >= kWidest * static_cast<double>(own))
        refuse(needed, "Communication is not the limit: vary micro_batch, or use plan --search for another layout.");
      low = high;
      below = answer;
      high *= low == static_cast<double>(own) ? kStride : kWidest;  // far from the goal, only the limit matters
      answer = try_rate(high);
    }
  }
  if (high / low > kPrecision) {
    // A faster link makes no step longer, so rates outside of (most_short, least_met) need no rehearsal.
    double most_short = low, least_met = high;
    NeedStep met = answer;  // the step of least_met
    narrow(most_short, below.step_ms, least_met, met, try_rate);
    while (high / low > kPrecision) {
      const double middle = std::sqrt(low * high);
      if (middle > most_short && middle < least_met) {
        const NeedStep tried = try_rate(middle);
        (tried.meets ? least_met : most_short) = middle;
        if (tried.meets) met = tried;
      }
      (middle >= least_met ? high : low) = middle;
    }
    answer = high == least_met ? met : try_rate(high);
    if (!answer.meets) answer = met;
  }
  needed.answer = answer;
  return needed;
}

Needed Question::memory() {
  Needed needed{.need = need_, .varied = "memory of a rank"};
  const std::string has = format_bytes(drawn_.machine.memory_bytes);
  drawn_.machine.memory_bytes = 0;  // no limit
  std::optional<int64_t> least;
  for (const char* recompute : {"none", "selective", "full"}) {
    const ResolvedConfig config = resolved_with(written_, drawn_.config, {std::string("train.recompute=") + recompute});
    const Rehearsed made = rehearse_config(drawn_, config);
    NeedStep tried = step(fmt::format("{} (train.recompute = \"{}\")", format_bytes(made.memory_bytes), recompute),
                          config, made.step_ms);
    needed.tried.push_back(tried);
    if (config->train.recompute == drawn_.config->train.recompute) needed.now = tried;
    if (!tried.meets || (least && *least <= made.memory_bytes)) continue;
    least = made.memory_bytes;
    needed.answer = tried;
  }
  if (!least) refuse(needed, fmt::format("Memory is not the limit ({} has {}).", drawn_.machine.name, has));
  return needed;
}

Needed Question::first_that_meets(const std::string& name, int64_t own, const std::vector<int64_t>& values,
                                  const std::function<ResolvedConfig(int64_t)>& make) {
  Needed needed{.need = need_, .varied = name};
  needed.now = try_config(fmt::format("{}", own), [&] { return make(own); });
  for (int64_t value : values) {
    needed.tried.push_back(value == own ? needed.now
                                        : try_config(fmt::format("{}", value), [&] { return make(value); }));
    if (!needed.tried.back().meets) continue;
    needed.answer = needed.tried.back();
    return needed;
  }
  refuse(needed, "Use plan --search for another layout.");
}

Needed Question::micro_batch() {
  std::vector<int64_t> values;
  const int64_t most = drawn_.config->train.global_batch_size / drawn_.config.layout().data;
  for (int64_t value = 1; value <= most; value *= 2) values.push_back(value);
  return first_that_meets("train.micro_batch_size", drawn_.config->train.micro_batch_size, values, [&](int64_t value) {
    return resolved_with(written_, drawn_.config,
                         {fmt::format("train.micro_batch_size={}", value),
                          fmt::format("train.global_batch_size={}", drawn_.config->train.global_batch_size)});
  });
}

Needed Question::ranks() {
  const int64_t unit = drawn_.config.world() / drawn_.config.layout().data;
  const int64_t most_data = drawn_.config->train.global_batch_size / drawn_.config->train.micro_batch_size;
  std::vector<int64_t> values;
  const int64_t most = drawn_.machine.nodes * drawn_.machine.ranks_per_node;  // 0: no limit
  for (int64_t data = 1; data <= most_data && (most == 0 || unit * data <= most); data *= 2)
    values.push_back(unit * data);
  return first_that_meets("number of ranks", drawn_.config.world(), values, [&](int64_t value) {
    RunFacts facts = drawn_.config.facts();
    facts.world = static_cast<int>(value);
    return resolve(with_sets(written_, {"parallel.data=-1", fmt::format("train.global_batch_size={}",
                                                                        drawn_.config->train.global_batch_size)}),
                   facts);
  });
}

}  // namespace

Need parse_need(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos)
    throw ConfigError("[plan] --need {}: needs NAME=VALUE, for example --need mfu=0.5.", text);
  Need need{.goal = static_cast<Goal>(index_of(text.substr(0, equals), kGoals, "--need"))};
  const std::string number = text.substr(equals + 1);
  char* end = nullptr;
  need.value = std::strtod(number.c_str(), &end);
  if (number.empty() || *end != 0 || !std::isfinite(need.value) || need.value <= 0 ||
      (need.goal == Goal::mfu && need.value >= 1))
    throw ConfigError("[plan] --need {}: needs a number above 0{}.", text,
                      need.goal == Goal::mfu ? " and below 1, a share of the peak" : "");
  return need;
}

Varied parse_varied(const std::string& text) { return static_cast<Varied>(index_of(text, kVaried, "--vary")); }

Needed find_needed(const PlanRequest& request, const Need& need, Varied varied) {
  Question question(request, need);
  switch (varied) {
    case Varied::bandwidth:
      return question.bandwidth();
    case Varied::memory:
      return question.memory();
    case Varied::micro_batch:
      return question.micro_batch();
    case Varied::ranks:
      return question.ranks();
  }
  return question.bandwidth();
}

void print_needed(const Needed& needed) {
  const std::string_view goal = kGoals[static_cast<size_t>(needed.need.goal)];
  const char* sign = needed.need.goal == Goal::step_ms ? "<=" : ">=";
  print_result("need:    {} {} {:g}\nnow:     {} {}\nanswer:  {} = {} reaches {:.4g}; {} rehearsals\n", goal, sign,
               needed.need.value, needed.now.value,
               needed.now.problem.empty() ? fmt::format("reaches {:.4g}", needed.now.reached) : needed.now.problem,
               needed.varied, needed.answer.value, needed.answer.reached, needed.tried.size());
}

void print_needed_json(const Needed& needed) {
  const auto json_of = [](const NeedStep& step) {
    Json json = Json::object();
    json["value"] = step.value;
    json["reached"] = step.reached;
    json["meets"] = step.meets;
    if (!step.problem.empty()) json["problem"] = step.problem;
    return json;
  };
  Json json = Json::object();
  json["goal"] = std::string(kGoals[static_cast<size_t>(needed.need.goal)]);
  json["wanted"] = needed.need.value;
  json["varied"] = needed.varied;
  json["now"] = json_of(needed.now);
  json["answer"] = json_of(needed.answer);
  json["tried"] = Json::array();
  for (const NeedStep& step : needed.tried) json["tried"].push_back(json_of(step));
  print_result("{}\n", json.dump(2));
}

}  // namespace slipstream::planner
