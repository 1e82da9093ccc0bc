// SPDX-License-Identifier: Apache-2.0
// Packs step times, gathers them, and averages.

#include "runtime/step_means.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

#include "comm/rehearse/seams.h"
#include "comm/wiring.h"

namespace slipstream::runtime {
namespace {

void put(std::string& bytes, int64_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); }
void put(std::string& bytes, const std::string& text) {
  put(bytes, static_cast<int64_t>(text.size()));
  bytes += text;
}

/// Reads what put() wrote, in order.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  int64_t next() {
    SLIP_ASSERT(at_ + sizeof(int64_t) <= bytes_.size());
    int64_t value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string next_text() {
    const auto size = static_cast<size_t>(next());
    SLIP_ASSERT(size <= bytes_.size() - at_);
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }

 private:
  const std::string& bytes_;
  size_t at_ = 0;
};

void put(std::string& bytes, const std::vector<std::vector<uint32_t>>& lists) {
  for (const std::vector<uint32_t>& list : lists) {
    put(bytes, static_cast<int64_t>(list.size()));
    for (uint32_t item : list) put(bytes, item);
  }
}

std::vector<std::vector<uint32_t>> next_lists(Reader& reader, size_t count) {
  std::vector<std::vector<uint32_t>> lists(count);
  for (std::vector<uint32_t>& list : lists) {
    list.resize(static_cast<size_t>(reader.next()));
    for (uint32_t& item : list) item = static_cast<uint32_t>(reader.next());
  }
  return lists;
}

/// `to_common_ns` is added to all times.
void put(std::string& bytes, const StepTimes& t, const PlanGraph& plan, int64_t to_common_ns) {
  put(bytes, t.step);
  put(bytes, t.begin_ns + to_common_ns);
  for (int64_t ns : {t.step_ns, t.compute_ns, t.exposed_ns, t.input_ns, t.other_ns}) put(bytes, ns);
  put(bytes, t.next_begins);
  for (const auto* tasks : {&t.tasks, &t.after}) {
    put(bytes, static_cast<int64_t>(tasks->size()));
    for (const TaskTime& task : *tasks) {
      put(bytes, task.channel);
      put(bytes, task.item);
      put(bytes, task.begin_ns + to_common_ns);
      put(bytes, task.end_ns + to_common_ns);
    }
  }
  const std::vector<WorkTime> works = joined_works(t.works, plan);
  put(bytes, static_cast<int64_t>(works.size()));
  for (const WorkTime& work : works) {
    put(bytes, static_cast<int64_t>(work.kind));
    put(bytes, work.channel);
    put(bytes, work.item);
    put(bytes, work.last_item);
    put(bytes, work.begin_ns + to_common_ns);
    put(bytes, work.end_ns + to_common_ns);
  }
  put(bytes, static_cast<int64_t>(t.exposures.size()));
  for (const Exposure& wait : t.exposures) {
    put(bytes, static_cast<int64_t>(wait.awaited));
    put(bytes, wait.item);
    put(bytes, static_cast<int64_t>(wait.kind));
    put(bytes, wait.begin_ns + to_common_ns);
    put(bytes, wait.end_ns + to_common_ns);
  }
}

StepTimes next_step(Reader& reader) {
  StepTimes t;
  t.step = static_cast<uint32_t>(reader.next());
  for (int64_t* ns : {&t.begin_ns, &t.step_ns, &t.compute_ns, &t.exposed_ns, &t.input_ns, &t.other_ns})
    *ns = reader.next();
  t.next_begins = reader.next() != 0;
  for (auto* tasks : {&t.tasks, &t.after}) {
    tasks->resize(static_cast<size_t>(reader.next()));
    for (TaskTime& task : *tasks) {
      task.channel = static_cast<uint32_t>(reader.next());
      task.item = static_cast<uint32_t>(reader.next());
      task.begin_ns = reader.next();
      task.end_ns = reader.next();
    }
  }
  t.works.resize(static_cast<size_t>(reader.next()));
  for (WorkTime& work : t.works) {
    work.kind = static_cast<ChannelKind>(reader.next());
    work.channel = static_cast<uint32_t>(reader.next());
    work.item = static_cast<uint32_t>(reader.next());
    work.last_item = static_cast<uint32_t>(reader.next());
    work.begin_ns = reader.next();
    work.end_ns = reader.next();
  }
  t.exposures.resize(static_cast<size_t>(reader.next()));
  for (Exposure& wait : t.exposures) {
    wait.awaited = static_cast<uint64_t>(reader.next());
    wait.item = static_cast<uint32_t>(reader.next());
    wait.kind = static_cast<ChannelKind>(reader.next());
    wait.begin_ns = reader.next();
    wait.end_ns = reader.next();
  }
  return t;
}

/// The previous step is not an element of the batch and travels with the step.
bool brings_previous(const std::vector<StepTimes>& steps, size_t i) {
  return steps[i].previous && (i == 0 || steps[i - 1].step != steps[i].previous->step);
}

}  // namespace

PlanItems::PlanItems(World& world, const Job& job) {
  std::string bytes;
  const std::vector<uint64_t> rendezvous_ids = comm::rendezvous_of(job);
  std::vector<std::vector<uint32_t>> awaited(job.train.size()), awaited_before(job.train.size());
  for (ItemId item = 0; item < job.train.size(); ++item)
    for (const Point& point : job.train[item].after) awaited[item].push_back(point.item);
  const Plan* const before[] = {&job.train};
  const Plan& next = job.options.double_buffer ? job.train_swapped : job.train;
  for (const SeamWait& wait : comm::link(before, next, job.channels)) awaited_before[wait.to].push_back(wait.from);
  put(bytes, static_cast<int64_t>(job.train.size()));
  for (ItemId item = 0; item < job.train.size(); ++item) {
    put(bytes, static_cast<int64_t>(rendezvous_ids[item]));
    put(bytes, job.train[item].channel);
    put(bytes, job.train[item].name);
  }
  put(bytes, awaited);
  put(bytes, awaited_before);
  for (const std::string& theirs : world.all_gather(bytes, "the items of plans")) {
    Reader reader(theirs);
    PlanGraph& graph = graphs.emplace_back();
    names.emplace_back(static_cast<size_t>(reader.next()));
    for (std::string& name : names.back()) {
      graph.rendezvous_ids.push_back(static_cast<uint64_t>(reader.next()));
      graph.channels.push_back(static_cast<uint32_t>(reader.next()));
      name = reader.next_text();
    }
    graph.awaited = next_lists(reader, names.back().size());
    graph.awaited_before = next_lists(reader, names.back().size());
  }
}

namespace {

constexpr double StepMeans::*kMeans[] = {&StepMeans::step_ms,        &StepMeans::compute_ms, &StepMeans::comm_ms,
                                         &StepMeans::hidden_ms,      &StepMeans::exposed_ms, &StepMeans::bubble_ms,
                                         &StepMeans::exposed_ms_max, &StepMeans::input_ms,   &StepMeans::other_ms,
                                         &StepMeans::skew_ms};

StepMeans mean_of(const std::vector<StepTimes>& times, const PlanItems& items) {
  const double ranks = static_cast<double>(times.size());
  StepMeans m;
  for (size_t r = 0; r < times.size(); ++r) {
    const StepTimes& t = times[r];
    const auto mean = [&](double& sum, int64_t ns) { sum += static_cast<double>(ns) / 1e6 / ranks; };
    mean(m.step_ms, t.step_ns);
    mean(m.compute_ms, t.compute_ns);
    mean(m.comm_ms, t.comm_ns);
    mean(m.hidden_ms, t.hidden_ns);
    mean(m.exposed_ms, t.exposed_ns);
    mean(m.bubble_ms, t.bubble_ns);
    mean(m.input_ms, t.input_ns);
    mean(m.other_ms, t.other_ns);
    mean(m.skew_ms, t.skew_ns);
    for (const Exposure& wait : t.exposures)
      if (wait.exposed_ns() > 0)
        mean(m.exposed_by[items.names[r][static_cast<uint32_t>(wait.awaited)]], wait.exposed_ns());
    m.exposed_ms_max = std::max(m.exposed_ms_max, static_cast<double>(t.exposed_ns) / 1e6);
  }
  return m;
}

void put(std::string& bytes, const StepMeans& m) {
  for (double StepMeans::*member : kMeans) put(bytes, std::bit_cast<int64_t>(m.*member));
  put(bytes, static_cast<int64_t>(m.exposed_by.size()));
  for (const auto& [name, ms] : m.exposed_by) {
    put(bytes, name);
    put(bytes, std::bit_cast<int64_t>(ms));
  }
}

StepMeans next_means(Reader& reader) {
  StepMeans m;
  for (double StepMeans::*member : kMeans) m.*member = std::bit_cast<double>(reader.next());
  for (int64_t left = reader.next(); left > 0; --left) {
    const std::string name = reader.next_text();
    m.exposed_by[name] = std::bit_cast<double>(reader.next());
  }
  return m;
}

}  // namespace

std::vector<StepMeans> mean_over_ranks(World& world, const std::vector<StepTimes>& steps, const PlanItems& items) {
  std::string bytes;
  const int64_t to_common_ns = world.clock_offset_ns();  // times of ranks on other machines are compared below
  const PlanGraph& own = items.graphs[static_cast<size_t>(world.rank())];
  for (size_t i = 0; i < steps.size(); ++i) {
    put(bytes, brings_previous(steps, i));
    if (brings_previous(steps, i)) put(bytes, *steps[i].previous, own, to_common_ns);
    put(bytes, static_cast<bool>(steps[i].previous));
    put(bytes, steps[i], own, to_common_ns);
  }
  const std::vector<std::string> gathered = world.all_gather(bytes, "the times of steps");
  std::vector<Reader> readers(gathered.begin(), gathered.end());
  std::vector<std::shared_ptr<const StepTimes>> last(gathered.size());  // by rank
  std::string mine;
  // The replay takes longest, so the ranks divide the steps.
  const auto rank_of = [&](size_t i) { return i % gathered.size(); };
  for (size_t i = 0; i < steps.size(); ++i) {
    std::vector<StepTimes> times(gathered.size());
    std::vector<RankStep> together;
    for (size_t r = 0; r < times.size(); ++r) {
      if (readers[r].next() != 0) last[r] = std::make_shared<const StepTimes>(next_step(readers[r]));
      const bool follows = readers[r].next() != 0;
      times[r] = next_step(readers[r]);
      const auto previous = std::exchange(last[r], std::make_shared<const StepTimes>(times[r]));
      if (follows) times[r].previous = previous;
      together.push_back({&times[r], &items.graphs[r]});
    }
    if (rank_of(i) != static_cast<size_t>(world.rank())) continue;
    split_waits(together);
    put(mine, mean_of(times, items));
  }
  const std::vector<std::string> divided = world.all_gather(mine, "the means of steps");
  std::vector<Reader> parts(divided.begin(), divided.end());
  std::vector<StepMeans> means;
  for (size_t i = 0; i < steps.size(); ++i) means.push_back(next_means(parts[rank_of(i)]));
  return means;
}

std::vector<int64_t> largest_over_ranks(World& world, const std::vector<int64_t>& values) {
  std::string bytes;
  for (int64_t value : values) put(bytes, value);
  std::vector<int64_t> largest = values;
  for (const std::string& theirs : world.all_gather(bytes, "the times of works")) {
    Reader reader(theirs);
    for (int64_t& value : largest) value = std::max(value, reader.next());
  }
  return largest;
}

}  // namespace slipstream::runtime
