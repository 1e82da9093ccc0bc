// SPDX-License-Identifier: Apache-2.0
// The kinds of schedules. Each decides the order of a stage's actions.

#include "engine/plan/schedules/schedule.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/units.h"

namespace slipstream {
namespace {

using Order = std::vector<Action>;

Order gpipe(const ScheduleShape& shape, int /*stage*/) {
  Order order;
  for (int m = 0; m < shape.micro_batches; ++m) order.push_back({Pass::forward, 0, m});
  for (int m = 0; m < shape.micro_batches; ++m) order.push_back({Pass::backward, 0, m});
  return order;
}

/// Warm-up, then one forward and one backward in turn, then the rest. Without virtual stages, the warm-up of a stage
/// has as many micro-batches as there are stages after it. With virtual stages, rounds of `stages` micro-batches go
/// through one chunk after the other, and twice as many are needed until the first gradient is back.
Order one_forward_one_backward(const ScheduleShape& shape, int stage) {
  const int p = shape.stages, v = shape.virtual_stages, total = shape.micro_batches * v;
  Order forward, backward, order;
  for (int k = 0; k < total; ++k) {
    const int chunk = v == 1 ? 0 : k % (p * v) / p;
    const int micro_batch = v == 1 ? k : k / (p * v) * p + k % p;
    forward.push_back({Pass::forward, chunk, micro_batch});
    backward.push_back({Pass::backward, v - 1 - chunk, micro_batch});
  }
  const int behind = p - 1 - stage;
  const int warm_up = std::min(total, v == 1 ? behind * (shape.hides_transfers ? 2 : 1) : 2 * behind + (v - 1) * p);
  order.assign(forward.begin(), forward.begin() + warm_up);
  for (int k = warm_up; k < total; ++k) {
    order.push_back(forward[static_cast<size_t>(k)]);
    order.push_back(backward[static_cast<size_t>(k - warm_up)]);
  }
  order.insert(order.end(), backward.end() - warm_up, backward.end());
  return order;
}

/// 1F1B whose weight gradients lag, by `stage` input gradients as published. Later stages, which end their backward
/// passes first, keep work for the bubble in which earlier stages still wait.
Order zero_bubble(const ScheduleShape& shape, int stage) {
  const int lag = shape.lags.empty() ? stage : shape.lags[static_cast<size_t>(stage)];
  Order order;
  int backwards = 0, weights = 0;
  for (const Action& action : one_forward_one_backward(shape, stage)) {
    order.push_back(action);
    if (action.pass != Pass::backward || ++backwards <= lag) continue;
    order.push_back({Pass::weight, 0, weights++});
  }
  while (weights < shape.micro_batches) order.push_back({Pass::weight, 0, weights++});
  return order;
}

/// The first chunk goes down the stages, the second one comes back up, and gradients return the same way. The warm-up
/// has as many forward passes as fit until the first micro-batch is back from the turn, then until its gradient is.
/// After that every stage repeats six actions. If all of them take equally long, no stage waits between its first and
/// its last one, if there are at least 2 x stages - 1 micro-batches, and every stage has at most 2 x stages chunks in
/// flight: the memory of 1F1B's first stage. Weight gradients of the last micro-batches follow when no input gradient
/// is left.
Order zero_bubble_v(const ScheduleShape& shape, int stage) {
  using enum Pass;
  constexpr int kDown = 0, kUp = 1;
  const int m = shape.micro_batches, below = shape.stages - stage;  // the stages from this one to the turn
  Order order;
  int done[3][2] = {};  // by pass and chunk
  const auto add = [&](Pass pass, int chunk) {
    int& next = done[static_cast<size_t>(pass)][chunk];
    if (next < m) order.push_back({pass, chunk, next++});
  };
  const auto repeat = [&](int times, std::initializer_list<std::pair<Pass, int>> actions) {
    while (times-- > 0)
      for (const auto& [pass, chunk] : actions) add(pass, chunk);
  };
  repeat(2 * below - 1, {{forward, kDown}});
  repeat(stage, {{forward, kUp}, {forward, kDown}});
  repeat(below, {{forward, kUp}, {backward, kUp}, {weight, kUp}});
  repeat(m - done[0][kUp],
         {{backward, kDown}, {weight, kDown}, {forward, kDown}, {forward, kUp}, {backward, kUp}, {weight, kUp}});
  repeat(stage, {{backward, kDown}, {backward, kUp}});
  repeat(below, {{backward, kDown}, {weight, kDown}});
  repeat(m, {{weight, kUp}});
  repeat(m, {{weight, kDown}});
  return order;
}

/// What a kind decides for every shape.
struct Kind {
  Order (*order)(const ScheduleShape& shape, int stage);
  bool splits_backward = false;
  StagePlacement (*placement)(int stages, int chunks) = StagePlacement::round;
};
constexpr Kind kKinds[] = {{gpipe},
                           {one_forward_one_backward},
                           {one_forward_one_backward},
                           {zero_bubble, true},
                           {zero_bubble_v, true, StagePlacement::fold}};
static_assert(std::size(kKinds) == kWords<ScheduleKind>.size());
const Kind& row_of(ScheduleKind kind) { return kKinds[static_cast<size_t>(kind)]; }

std::string nearest_counts(int micro_batches, int stages) {
  const int below = micro_batches / stages * stages;
  return below > 0 ? fmt::format("{} or {}", below, below + stages) : fmt::format("{}", stages);
}

std::string name_of(const PipelineSchedule& schedule, int stage, const Action& action) {
  return fmt::format(
      "stage {}: {} of micro-batch {}{}", stage,
      action.pass == Pass::forward    ? "forward"
      : action.pass == Pass::backward ? "backward"
                                      : "weight",
      action.micro_batch,
      schedule.shape.virtual_stages > 1 || action.chunk != 0 ? fmt::format(" in chunk {}", action.chunk) : "");
}

}  // namespace

void require_shape(ScheduleKind kind, const ScheduleShape& shape) {
  if (const int chunks = chunks_of(kind); chunks > 0 && shape.virtual_stages != chunks)
    throw ConfigError(
        "[pipeline] schedule {} has {} chunk{} per stage, got virtual_stages = {}. Use \"interleaved_1f1b\", or "
        "virtual_stages = {}.",
        name_of(kind), chunks == 1 ? "one" : "two", chunks == 1 ? "" : "s", shape.virtual_stages, chunks);
  if (chunks_of(kind) == 0 && shape.virtual_stages > 1 && shape.micro_batches % shape.stages != 0)
    throw ConfigError(
        "[pipeline] interleaved_1f1b needs a multiple of {} micro-batches per step, got {}. "
        "Change train.global_batch_size so that a rank has {}.",
        shape.stages, shape.micro_batches, nearest_counts(shape.micro_batches, shape.stages));
}

StagePlacement stage_placement(ScheduleKind kind, int stages, int virtual_stages) {
  return row_of(kind).placement(stages, virtual_stages);
}

bool splits_backward(ScheduleKind kind) { return row_of(kind).splits_backward; }

int least_in_flight(ScheduleKind kind, const ScheduleShape& shape, int stage) {
  return std::min(shape.micro_batches, kind == ScheduleKind::zb_v ? stage + 1 : shape.stages - stage);
}

PipelineSchedule make_schedule(ScheduleKind kind, const ScheduleShape& shape) {
  require_shape(kind, shape);
  SLIP_ASSERT(shape.lags.empty() || (kind == ScheduleKind::zb_h1 && std::ssize(shape.lags) == shape.stages));
  PipelineSchedule schedule{.shape = shape,
                            .placement = stage_placement(kind, shape.stages, shape.virtual_stages),
                            .splits_backward = splits_backward(kind)};
  for (int stage = 0; stage < shape.stages; ++stage) schedule.stages.push_back(row_of(kind).order(shape, stage));
  return schedule;
}

PipelineSchedule make_paired_schedule(int micro_batches) {
  PipelineSchedule schedule = make_schedule(ScheduleKind::one_f_one_b, {.micro_batches = micro_batches});
  schedule.takes_turns = true;
  std::vector<Action>& actions = schedule.stages[0];
  actions = {{Pass::forward, 0, 0}};
  for (int m = 0; m < micro_batches; ++m) {
    if (m + 1 < micro_batches) actions.push_back({Pass::forward, 0, m + 1, true});
    actions.push_back({Pass::backward, 0, m});
  }
  return schedule;
}

void require_valid(const PipelineSchedule& schedule) {
  const ScheduleShape& shape = schedule.shape;
  const int passes = schedule.splits_backward ? 3 : 2;
  if (static_cast<int>(schedule.stages.size()) != shape.stages)
    throw ConfigError("[pipeline] the schedule has {} stages, but parallel.pipeline = {}.", schedule.stages.size(),
                      shape.stages);
  for (int stage = 0; stage < shape.stages; ++stage) {
    const std::vector<Action>& actions = schedule.stages[static_cast<size_t>(stage)];
    const auto index = [&](Pass pass, int chunk, int m) {
      return static_cast<size_t>((static_cast<int>(pass) * shape.virtual_stages + chunk) * shape.micro_batches + m);
    };
    constexpr size_t kMissing = SIZE_MAX;
    std::vector<size_t> position(static_cast<size_t>(passes * shape.virtual_stages * shape.micro_batches), kMissing);
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      if (action.chunk < 0 || action.chunk >= shape.virtual_stages || action.micro_batch < 0 ||
          action.micro_batch >= shape.micro_batches || static_cast<int>(action.pass) >= passes)
        throw ConfigError("[pipeline] {} is outside {} micro-batches, {} chunks and {} passes.",
                          name_of(schedule, stage, action), shape.micro_batches, shape.virtual_stages, passes);
      size_t& at = position[index(action.pass, action.chunk, action.micro_batch)];
      if (at != kMissing)
        throw ConfigError("[pipeline] {} appears twice, as number {} and {} of its stage.",
                          name_of(schedule, stage, action), at, i);
      at = i;
    }
    for (int p = 0; p < passes; ++p)
      for (int chunk = 0; chunk < shape.virtual_stages; ++chunk)
        for (int m = 0; m < shape.micro_batches; ++m) {
          const Action action{static_cast<Pass>(p), chunk, m};
          const size_t at = position[index(action.pass, chunk, m)];
          if (at == kMissing) throw ConfigError("[pipeline] {} is missing.", name_of(schedule, stage, action));
          if (m > 0 && at < position[index(action.pass, chunk, m - 1)])
            throw ConfigError(
                "[pipeline] {} comes before that of micro-batch {}. Micro-batches of a chunk must be in order, so that "
                "sums do not depend on the schedule.",
                name_of(schedule, stage, action), m - 1);
          if (p > 0 && at < position[index(static_cast<Pass>(p - 1), chunk, m)])
            throw ConfigError("[pipeline] {} comes before the pass that it needs.", name_of(schedule, stage, action));
        }
  }
  play(schedule, {.action_ns = [](int, const Action&) { return int64_t{1}; }, .transfer_ns = {}});
}

int peak_in_flight(const PipelineSchedule& schedule, int stage, int chunk) {
  const Pass last = schedule.splits_backward ? Pass::weight : Pass::backward;
  int alive = 0, peak = 0;
  for (const Action& action : schedule.stages[static_cast<size_t>(stage)]) {
    if (chunk >= 0 && action.chunk != chunk) continue;
    if (action.pass == Pass::forward) peak = std::max(peak, ++alive);
    if (action.pass == last) --alive;
  }
  return peak;
}

double Played::bubble() const {
  const int64_t busy = *std::max_element(busy_ns.begin(), busy_ns.end());
  return static_cast<double>(makespan_ns - busy) / static_cast<double>(busy);
}

Played play(const PipelineSchedule& schedule, const PlayTimes& times) {
  const int stages = schedule.shape.stages, parts = schedule.parts(), micro_batches = schedule.shape.micro_batches;
  // The time at which the input of [pass][part][micro_batch] is available; -1: it is not yet.
  const auto size = static_cast<size_t>(parts * micro_batches);
  std::vector<int64_t> arrived[2] = {std::vector<int64_t>(size, -1), std::vector<int64_t>(size, -1)};
  const auto at = [&](int part, int m) { return static_cast<size_t>(part * micro_batches + m); };
  for (int m = 0; m < micro_batches; ++m) arrived[0][at(0, m)] = 0;
  std::vector<char> forward_done(size, 0);
  std::vector<size_t> cursor(static_cast<size_t>(stages), 0);
  std::vector<int64_t> free_ns(static_cast<size_t>(stages), 0);
  Played played{.stages = std::vector<std::vector<Played::Span>>(static_cast<size_t>(stages)),
                .busy_ns = std::vector<int64_t>(static_cast<size_t>(stages), 0)};
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < stages; ++stage) {
      const auto s = static_cast<size_t>(stage);
      for (; cursor[s] < schedule.stages[s].size(); ++cursor[s]) {
        const Action& action = schedule.stages[s][cursor[s]];
        const int part = schedule.placement.part(stage, action.chunk);
        int64_t ready = 0;
        if (action.pass == Pass::backward && part + 1 == parts)
          ready = forward_done[at(part, action.micro_batch)] ? 0 : -1;
        else if (action.pass != Pass::weight)
          ready = arrived[static_cast<size_t>(action.pass)][at(part, action.micro_batch)];
        if (ready < 0) break;
        const int64_t begin = std::max(free_ns[s], ready), spent = times.action_ns(stage, action);
        free_ns[s] = begin + spent;
        played.stages[s].push_back({begin, free_ns[s]});
        played.busy_ns[s] += spent;
        played.makespan_ns = std::max(played.makespan_ns, free_ns[s]);
        const auto arrival_ns = [&](int from, int to) {
          const bool stays = schedule.placement.hop_after(std::min(from, to)) == 0;
          return free_ns[s] + (stays || !times.transfer_ns ? 0 : times.transfer_ns(stage, action));
        };
        if (action.pass == Pass::forward) {
          forward_done[at(part, action.micro_batch)] = 1;
          if (part + 1 < parts) arrived[0][at(part + 1, action.micro_batch)] = arrival_ns(part, part + 1);
        }
        if (action.pass == Pass::backward && part > 0)
          arrived[1][at(part - 1, action.micro_batch)] = arrival_ns(part, part - 1);
        moved = true;
      }
    }
  }
  std::string stuck;
  for (int stage = 0; stage < stages; ++stage) {
    const auto s = static_cast<size_t>(stage);
    if (cursor[s] < schedule.stages[s].size())
      stuck += fmt::format("{}{}", stuck.empty() ? "" : "; ", name_of(schedule, stage, schedule.stages[s][cursor[s]]));
  }
  if (!stuck.empty()) throw ConfigError("[pipeline] the schedule never ends. These wait for each other: {}.", stuck);
  return played;
}

std::vector<char> off_critical_path(const PipelineSchedule& schedule, const Played& played, int stage,
                                    const std::function<int64_t(int chunk)>& reduce_ns) {
  const std::vector<Action>& actions = schedule.stages[static_cast<size_t>(stage)];
  const auto chunks = static_cast<size_t>(schedule.shape.virtual_stages);
  std::vector<char> off(chunks, 0);
  std::vector<Played::Span> last(chunks);  // the last pass of each chunk
  for (size_t i = 0; i < actions.size(); ++i)
    if (actions[i].pass != Pass::forward)
      last[static_cast<size_t>(actions[i].chunk)] = played.stages[static_cast<size_t>(stage)][i];
  for (size_t c = 0; c < chunks; ++c) {
    int64_t due_ns = played.makespan_ns;
    for (const Played::Span& other : last)
      if (other.begin_ns > last[c].begin_ns) due_ns = std::min(due_ns, other.begin_ns);
    off[c] = last[c].end_ns + reduce_ns(static_cast<int>(c)) <= due_ns;
  }
  return off;
}

}  // namespace slipstream
