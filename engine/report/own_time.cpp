// SPDX-License-Identifier: Apache-2.0
// Sums the times by kind on every rank, and compares equal kinds between ranks.

#include "engine/report/own_time.h"

#include <algorithm>
#include <unordered_map>

#include "engine/base/check.h"
#include "engine/base/median.h"

namespace slipstream {
namespace {

constexpr double kNsInMs = 1e6;

size_t at(Cause cause) { return static_cast<size_t>(cause); }

}  // namespace

const char* name_of(Cause cause) {
  constexpr const char* kNames[kCauses] = {"compute", "link", "input", "host", "host"};
  return kNames[at(cause)];
}

void OwnKinds::add(const std::vector<std::string>& texts, const std::vector<Cause>& item_causes) {
  OfRank& rank = ranks.emplace_back();
  std::unordered_map<std::string, uint32_t> known;
  for (uint32_t kind = 0; kind < texts_.size(); ++kind) known.emplace(texts_[kind], kind);
  std::unordered_map<uint32_t, uint32_t> positions;
  for (size_t item = 0; item < texts.size(); ++item) {
    const auto [kind, is_new] = known.try_emplace(texts[item], static_cast<uint32_t>(texts_.size()));
    if (is_new) {
      texts_.push_back(texts[item]);
      causes.push_back(item_causes[item]);
    }
    const auto [position, is_first] = positions.try_emplace(kind->second, static_cast<uint32_t>(rank.kinds.size()));
    if (is_first) {
      rank.kinds.push_back(kind->second);
      rank.counts.push_back(0);
    }
    rank.of_items.push_back(position->second);
    ++rank.counts[position->second];
  }
}

OwnTimes own_times(const StepTimes& times, const OwnKinds& kinds, int rank, int64_t host_ready_ns,
                   const std::vector<int64_t>& fastest_ns) {
  const OwnKinds::OfRank& of_rank = kinds.ranks[static_cast<size_t>(rank)];
  OwnTimes own;
  own.kind_ns.assign(of_rank.kinds.size(), 0);
  std::array<int64_t, kCauses> latest_ns;
  latest_ns.fill(-1);
  for (const auto& [item, ns] : times.own_ns) {
    const uint32_t position = of_rank.of_items[item];
    own.kind_ns[position] += ns;
    const size_t cause = at(kinds.causes[of_rank.kinds[position]]);
    const int64_t beyond_ns = ns - std::max<int64_t>(0, fastest_ns[item]);
    if (beyond_ns <= latest_ns[cause]) continue;
    latest_ns[cause] = beyond_ns;
    own.latest[cause] = item;
  }
  const int64_t ready_ns = host_ready_ns + times.ready_between_ns;
  own.host_ns = std::max<int64_t>(0, times.unawaited_ns - ready_ns) + times.asleep_ns;
  own.core_ns = ready_ns + times.ready_ns;
  own.waited_ns = times.exposed_ns + times.bubble_ns + times.input_ns;
  return own;
}

void add_links(std::vector<OwnTimes>& own, const std::vector<RankStep>& times, const OwnKinds& kinds) {
  std::unordered_map<uint64_t, int64_t> last_entries;
  for (const RankStep& rank : times)
    for (const TaskTime& task : rank.times->tasks) {
      if (rank.plan->rendezvous_ids[task.item] == PlanGraph::kLocal) continue;
      int64_t& last = last_entries.try_emplace(rank.plan->rendezvous_ids[task.item], task.begin_ns).first->second;
      last = std::max(last, task.begin_ns);
    }
  for (size_t r = 0; r < times.size(); ++r) {
    int64_t latest_ns = -1;
    for (const TaskTime& task : times[r].times->tasks) {
      const auto entry = last_entries.find(times[r].plan->rendezvous_ids[task.item]);
      const int64_t together_ns =
          task.end_ns - std::min(task.end_ns, entry == last_entries.end() ? task.begin_ns : entry->second);
      const int64_t link_ns =
          task.link_ns >= 0 ? std::min(task.link_ns, together_ns) : std::max<int64_t>(0, together_ns - task.ready_ns);
      own[r].kind_ns[kinds.ranks[r].of_items[task.item]] += link_ns;
      if (link_ns <= latest_ns) continue;
      latest_ns = link_ns;
      own[r].latest[at(Cause::link)] = task.item;
    }
  }
}

OwnSample sample_of(int64_t step, double step_ms, const std::vector<OwnTimes>& own, const OwnKinds& kinds) {
  OwnSample sample{.step = step, .step_ms = step_ms, .ranks = std::vector<OwnSample::OfRank>(own.size())};
  struct Part {
    size_t rank;
    double ms;
    double count;
  };
  std::vector<std::vector<Part>> by_kind(kinds.causes.size());
  for (size_t r = 0; r < own.size(); ++r) {
    const OwnKinds::OfRank& of_rank = kinds.ranks[r];
    OwnSample::OfRank& rank = sample.ranks[r];
    for (size_t i = 0; i < of_rank.kinds.size(); ++i) {
      const double ms = static_cast<double>(own[r].kind_ns[i]) / kNsInMs;
      rank.own[at(kinds.causes[of_rank.kinds[i]])] += ms;
      if (own.size() > 1) by_kind[of_rank.kinds[i]].push_back({r, ms, static_cast<double>(of_rank.counts[i])});
    }
    rank.own[at(Cause::host)] = static_cast<double>(std::max(own[r].host_ns, own[r].stopped_ns)) / kNsInMs;
    rank.stopped = static_cast<double>(own[r].stopped_ns) / kNsInMs;
    rank.own[at(Cause::core)] = static_cast<double>(own[r].core_ns) / kNsInMs;
    rank.waited = static_cast<double>(own[r].waited_ns) / kNsInMs;
    rank.latest = own[r].latest;
  }
  for (size_t kind = 0; kind < by_kind.size(); ++kind) {
    std::vector<double> each;
    for (const Part& part : by_kind[kind]) each.push_back(part.ms / part.count);
    if (each.size() < 2) continue;
    const MedianOfOthers others(each);
    for (size_t i = 0; i < each.size(); ++i) {
      const Part& part = by_kind[kind][i];
      sample.ranks[part.rank].beyond[at(kinds.causes[kind])] += part.ms - part.count * others.without(each[i]);
    }
  }
  for (const Cause cause : {Cause::host, Cause::core}) {
    std::vector<double> each;
    for (const OwnSample::OfRank& rank : sample.ranks) each.push_back(rank.own[at(cause)]);
    if (each.size() < 2) continue;
    const MedianOfOthers others(each);
    for (size_t r = 0; r < each.size(); ++r) sample.ranks[r].beyond[at(cause)] = each[r] - others.without(each[r]);
  }
  return sample;
}

}  // namespace slipstream
