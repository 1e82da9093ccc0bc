// SPDX-License-Identifier: Apache-2.0
// Answers from the plans of all stages and from two rehearsals.

#include "trainer/planner/forecast/questions.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/json.h"
#include "engine/base/plural.h"
#include "engine/base/print.h"
#include "engine/config/nearest.h"
#include "trainer/planner/options/plan_options.h"

namespace slipstream::planner {
namespace {

constexpr size_t kRuns = 3;  // the last run is a step like all later ones
constexpr size_t kShownItems = 12;

std::vector<int> stages_with(const Planned& planned, std::string_view name) {
  std::vector<int> stages;
  for (size_t s = 0; s < planned.finished.stages.size(); ++s) {
    const Plan& plan = planned.finished.stages[s]->train();
    for (ItemId item = 0; item < plan.size(); ++item)
      if (plan[item].name == name) {
        stages.push_back(static_cast<int>(s));
        break;
      }
  }
  return stages;
}

NamedItem named(const Planned& planned, int stage, ItemId item) {
  NamedItem made{
      .name = planned.finished.stages[static_cast<size_t>(stage)]->train()[item].name, .stage = stage, .item = item};
  if (stages_with(planned, made.name).size() > 1) made.name += fmt::format("@{}", stage);
  return made;
}

/// A price in which one item of one plan takes no time. Borrows the other price.
class FreedPrice : public comm::Price {
 public:
  FreedPrice(const comm::Price& price, const Job& job, ItemId item) : price_(price), job_(job), item_(item) {}
  int64_t local_ns(const Plan& plan, ItemId item) const override {
    return is_freed(plan, item) ? 0 : price_.local_ns(plan, item);
  }
  int64_t host_ns(const Plan& plan, ItemId item) const override { return price_.host_ns(plan, item); }
  comm::Link link(Axis axis) const override { return price_.link(axis); }
  uint32_t port(Axis axis) const override { return price_.port(axis); }
  int64_t multiprocessors() const override { return price_.multiprocessors(); }
  comm::SharedCores shared_cores() const override { return price_.shared_cores(); }
  int64_t core_ns(const Plan& plan, ItemId item, int ranks) const override {
    return is_freed(plan, item) ? 0 : price_.core_ns(plan, item, ranks);
  }
  comm::WireCost wire(const Plan& plan, ItemId item, Axis axis, int ranks) const override {
    return is_freed(plan, item) ? comm::WireCost{} : price_.wire(plan, item, axis, ranks);
  }

 private:
  // The plan with the other copy of the weights has the same items.
  bool is_freed(const Plan& plan, ItemId item) const {
    return item == item_ && std::any_of(job_.plans.begin(), job_.plans.end(), [&](const PlanRow& row) {
             return row.kind == PlanKind::train && &plan == &row.plan;
           });
  }

  const comm::Price& price_;
  const Job& job_;
  ItemId item_;
};

comm::Rehearsal rehearse(const Planned& planned, const comm::Price& price) {
  const Job& job = *planned.finished.job;
  comm::Rehearsal rehearsal = comm::rehearse(
      job.mesh, job.channels, runs_of(planned.finished.stages, kRuns), price,
      {.gate = comm::Gate::launch_order, .splits_idle = false, .replayed = planned.finished.replay.taken});
  if (!rehearsal.finished) throw PlanError("[check] the plan ends in a deadlock: {}", rehearsal.deadlock);
  return rehearsal;
}

std::string_view text_of(comm::Because because) {
  switch (because) {
    case comm::Because::wait:
      return "waits for the end of";
    case comm::Because::channel:
      return "is after, on the same channel,";
    case comm::Because::meeting:
      return "meets";
  }
  return "?";
}

}  // namespace

NamedItem find_item(const Planned& planned, const std::string& text) {
  const size_t at = text.rfind('@');
  const std::string name = text.substr(0, at);
  const std::vector<int> stages = stages_with(planned, name);
  if (stages.empty()) {
    std::vector<std::string_view> all;
    for (const auto& stage : planned.finished.stages)
      for (ItemId item = 0; item < stage->train().size(); ++item) all.emplace_back(stage->train()[item].name);
    const std::string near = nearest(name, all);
    throw ConfigError("[check] the training plan has no item '{}'{} slipstream plan --json lists its items.", name,
                      near.empty() ? "." : fmt::format("; did you mean '{}'?", near));
  }
  int stage = stages.front();
  if (at != std::string::npos) {
    const std::string_view number = std::string_view(text).substr(at + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), stage);
    if (error != std::errc() || end != number.data() + number.size() ||
        std::find(stages.begin(), stages.end(), stage) == stages.end())
      throw ConfigError("[check] '{}' names no stage with this item. Use {}@ with {}.", text, name,
                        fmt::join(stages, ", "));
  } else if (stages.size() > 1) {
    throw ConfigError("[check] {} stages have an item '{}'. Name one of them: {}@ with {}.", stages.size(), name, name,
                      fmt::join(stages, ", "));
  }
  const Plan& plan = planned.finished.stages[static_cast<size_t>(stage)]->train();
  ItemId item = 0;
  while (plan[item].name != name) ++item;
  return named(planned, stage, item);
}

WaitAnswer ask_wait(const Planned& planned, const NamedItem& later, const NamedItem& earlier) {
  const Job& job = *planned.finished.job;
  const std::vector<comm::RankRuns> ranks = runs_of(planned.finished.stages, kRuns);
  WaitAnswer answer;
  answer.later = later;
  answer.earlier = earlier;
  for (; answer.steps_before < 2; ++answer.steps_before) {
    const auto run = static_cast<uint32_t>(kRuns - 1);
    answer.chain = comm::why_waits(
        job.mesh, job.channels, ranks, {static_cast<uint32_t>(later.stage), run, later.item},
        {static_cast<uint32_t>(earlier.stage), run - static_cast<uint32_t>(answer.steps_before), earlier.item});
    if (!answer.chain.empty()) break;
  }
  for (const comm::WaitStep& step : answer.chain) {
    answer.names.push_back(named(planned, static_cast<int>(step.place.rank_index), step.place.item));
    if (step.place.run + 1 < kRuns) answer.names.back().name += " of the step before";
  }
  return answer;
}

FreedAnswer ask_freed(const Planned& planned, const NamedItem& freed) {
  const Job& job = *planned.finished.stages[static_cast<size_t>(freed.stage)];
  const comm::RooflinePrice price = price_of(*planned.config, planned.machine, job.mesh);
  const comm::Rehearsal now = rehearse(planned, price);
  const comm::Rehearsal then = rehearse(planned, FreedPrice(price, job, freed.item));
  constexpr size_t kRun = kRuns - 2;  // the last run that another one follows
  FreedAnswer answer;
  answer.freed = freed;
  const auto ms = [](int64_t ns) { return static_cast<double>(ns) / 1e6; };
  const auto& of_freed = now.ranks[static_cast<size_t>(freed.stage)].runs[kRun][freed.item];
  answer.took_ms = ms(of_freed.duration_ns());
  answer.step_ms = ms(now.ranks.front().step_period_ns(kRun));
  answer.freed_step_ms = ms(then.ranks.front().step_period_ns(kRun));
  const int64_t now_begin_ns = now.ranks.front().runs[kRun][0].start_ns;
  const int64_t then_begin_ns = then.ranks.front().runs[kRun][0].start_ns;
  for (size_t s = 0; s < now.ranks.size(); ++s)
    for (ItemId item = 0; item < now.ranks[s].runs[kRun].size(); ++item) {
      const int64_t earlier_ns = (now.ranks[s].runs[kRun][item].start_ns - now_begin_ns) -
                                 (then.ranks[s].runs[kRun][item].start_ns - then_begin_ns);
      if (earlier_ns > 0)
        answer.items.push_back({.item = {"", static_cast<int>(s), item}, .earlier_ms = ms(earlier_ns)});
    }
  std::stable_sort(answer.items.begin(), answer.items.end(),
                   [](const EarlierItem& a, const EarlierItem& b) { return a.earlier_ms > b.earlier_ms; });
  if (answer.items.size() > kShownItems) answer.items.resize(kShownItems);
  for (EarlierItem& each : answer.items) each.item = named(planned, each.item.stage, each.item.item);
  return answer;
}

void print_answer(const WaitAnswer& answer, bool json) {
  if (json) {
    Json printed = Json::object();
    printed["later"] = answer.later.name;
    printed["earlier"] = answer.earlier.name;
    printed["waits"] = !answer.chain.empty();
    printed["steps_before"] = answer.chain.empty() ? Json() : Json(answer.steps_before);
    printed["chain"] = Json::array();
    for (size_t i = 0; i < answer.chain.size(); ++i) {
      Json row = Json::object();
      row["because"] = std::string(text_of(answer.chain[i].because));
      row["item"] = answer.names[i].name;
      printed["chain"].push_back(row);
    }
    print_result("{}\n", printed.dump(2));
    return;
  }
  if (answer.chain.empty()) {
    print_result("no: {} waits for {} neither in its own step nor in the step before\n", answer.later.name,
                 answer.earlier.name);
    return;
  }
  print_result("yes:\n{}\n", answer.later.name);
  int64_t between = 0;  // items of one channel; only the last one is printed
  for (size_t i = 0; i < answer.chain.size(); ++i) {
    const auto is_channel = [&](size_t at) { return answer.chain[at].because == comm::Because::channel; };
    if (is_channel(i) && i + 1 < answer.chain.size() && is_channel(i + 1)) {
      ++between;
      continue;
    }
    print_result("  {} {}{}\n", text_of(answer.chain[i].because), answer.names[i].name,
                 between > 0 ? fmt::format(" ({} between)", counted(between, "item")) : "");
    between = 0;
  }
}

void print_answer(const FreedAnswer& answer, bool json) {
  if (json) {
    Json printed = Json::object();
    printed["freed"] = answer.freed.name;
    printed["took_ms"] = answer.took_ms;
    printed["step_ms"] = answer.step_ms;
    printed["freed_step_ms"] = answer.freed_step_ms;
    printed["earlier"] = Json::array();
    for (const EarlierItem& each : answer.items) {
      Json row = Json::object();
      row["item"] = each.item.name;
      row["earlier_ms"] = each.earlier_ms;
      printed["earlier"].push_back(row);
    }
    print_result("{}\n", printed.dump(2));
    return;
  }
  print_result("{} takes {:.3f} ms. Without it the rehearsed step takes {:.3f} instead of {:.3f} ms.\n",
               answer.freed.name, answer.took_ms, answer.freed_step_ms, answer.step_ms);
  if (answer.items.empty()) print_result("Nothing begins earlier in the step.\n");
  for (const EarlierItem& each : answer.items)
    print_result("  {:>9.3f} ms earlier  {}\n", each.earlier_ms, each.item.name);
}

}  // namespace slipstream::planner
