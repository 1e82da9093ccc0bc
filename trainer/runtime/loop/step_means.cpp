// SPDX-License-Identifier: Apache-2.0
// Packs step times, gathers them, and averages them.

#include "trainer/runtime/loop/step_means.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "comm/wiring.h"

namespace slipstream::runtime {
namespace {

void put(std::string& bytes, int64_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); }
void put(std::string& bytes, const std::string& text) {
  put(bytes, static_cast<int64_t>(text.size()));
  bytes += text;
}

/// Reads what put() wrote, in the same order.
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
      put(bytes, task.ready_ns);
      put(bytes, task.link_ns);
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
      task.ready_ns = reader.next();
      task.link_ns = reader.next();
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

void put(std::string& bytes, const OwnTimes& own) {
  for (int64_t ns : own.kind_ns) put(bytes, ns);
  for (int64_t ns : {own.host_ns, own.core_ns, own.stopped_ns, own.waited_ns}) put(bytes, ns);
  for (uint32_t item : own.latest) put(bytes, item);
}

OwnTimes next_own(Reader& reader, size_t kinds) {
  OwnTimes own;
  own.kind_ns.resize(kinds);
  for (int64_t& ns : own.kind_ns) ns = reader.next();
  for (int64_t* ns : {&own.host_ns, &own.core_ns, &own.stopped_ns, &own.waited_ns}) *ns = reader.next();
  for (uint32_t& item : own.latest) item = static_cast<uint32_t>(reader.next());
  return own;
}

/// Returns a text that is equal for items that take the same time on equal machines: op, size, and the name without
/// numbers.
std::string kind_of(const Job& job, const Item& item) {
  std::string kind = fmt::format("{} {} {} ", name_of(item.op), item.cost.flops, item.cost.bytes);
  for (const char letter : item.name)
    if (letter < '0' || letter > '9') kind += letter;
  if (!is_communication(item.op)) return kind;
  int64_t bytes = 0;
  for (const auto* slices : {&item.reads, &item.writes})
    for (const Slice& slice : *slices) bytes += slice.size_bytes;
  return kind + fmt::format(" {} in {}", bytes, job.mesh.group_size(job.channels[item.channel].axis));
}

Cause cause_of(const Job& job, const Item& item) {
  if (is_communication(item.op)) return Cause::link;
  return job.channels[item.channel].role == Role::h2d ? Cause::input : Cause::compute;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

/// Returns true if the previous step is not an element of the batch, so that it travels with the step.
bool brings_previous(const std::vector<StepTimes>& steps, size_t i) {
  return steps[i].previous && (i == 0 || steps[i - 1].step != steps[i].previous->step);
}

}  // namespace

PlanItems::PlanItems(World& world, const Job& job) {
  std::string bytes;
  const PlanGraph own = comm::graph_of(job);
  put(bytes, std::ssize(own.channels));
  for (uint32_t number = 0; number < own.channels.size(); ++number) {
    const auto [row, id] = job.of_timeline(number);
    const Item& item = row->plan[id];
    put(bytes, static_cast<int64_t>(own.rendezvous_ids[number]));
    put(bytes, item.channel);
    put(bytes, item.name);
    put(bytes, kind_of(job, item));
    put(bytes, static_cast<int64_t>(cause_of(job, item)));
  }
  put(bytes, own.awaited);
  put(bytes, own.awaited_before);
  put(bytes, host_name());
  for (const std::string& theirs : world.all_gather(bytes, "the items of plans")) {
    Reader reader(theirs);
    PlanGraph& graph = graphs.emplace_back();
    names.emplace_back(static_cast<size_t>(reader.next()));
    std::vector<std::string> kind_texts;
    std::vector<Cause> causes;
    for (std::string& name : names.back()) {
      graph.rendezvous_ids.push_back(static_cast<uint64_t>(reader.next()));
      graph.channels.push_back(static_cast<uint32_t>(reader.next()));
      name = reader.next_text();
      kind_texts.push_back(reader.next_text());
      causes.push_back(static_cast<Cause>(reader.next()));
    }
    kinds.add(kind_texts, causes);
    graph.awaited = next_lists(reader, names.back().size());
    graph.awaited_before = next_lists(reader, names.back().size());
    hosts.push_back(reader.next_text());
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

GatheredSteps gather_steps(World& world, const std::vector<StepTimes>& steps, const std::vector<OwnTimes>& own,
                           const PlanItems& items) {
  std::string bytes;
  const int64_t to_common_ns = world.clock_offset_ns();  // times of ranks on other machines are compared below
  const PlanGraph& plan = items.graphs[static_cast<size_t>(world.rank())];
  for (size_t i = 0; i < steps.size(); ++i) {
    put(bytes, brings_previous(steps, i));
    if (brings_previous(steps, i)) put(bytes, *steps[i].previous, plan, to_common_ns);
    put(bytes, static_cast<bool>(steps[i].previous));
    put(bytes, steps[i], plan, to_common_ns);
    if (!own.empty()) put(bytes, own[i]);
  }
  const std::vector<std::string> gathered = world.all_gather(bytes, "the times of steps");
  std::vector<Reader> readers(gathered.begin(), gathered.end());
  std::vector<std::shared_ptr<const StepTimes>> last(gathered.size());  // by rank
  std::string mine;
  GatheredSteps gathered_steps;
  // The replay takes longest, so the ranks divide the steps.
  const auto rank_of = [&](size_t i) { return i % gathered.size(); };
  for (size_t i = 0; i < steps.size(); ++i) {
    std::vector<StepTimes> times(gathered.size());
    std::vector<RankStep> together;
    std::vector<OwnTimes> all_own;
    for (size_t r = 0; r < times.size(); ++r) {
      if (readers[r].next() != 0) last[r] = std::make_shared<const StepTimes>(next_step(readers[r]));
      const bool follows = readers[r].next() != 0;
      times[r] = next_step(readers[r]);
      const auto previous = std::exchange(last[r], std::make_shared<const StepTimes>(times[r]));
      if (follows) times[r].previous = previous;
      together.push_back({&times[r], &items.graphs[r]});
      if (!own.empty()) all_own.push_back(next_own(readers[r], items.kinds.ranks[r].kinds.size()));
    }
    if (!own.empty() && world.rank() == 0) {
      add_links(all_own, together, items.kinds);
      double step_ms = 0;
      for (const StepTimes& t : times)
        step_ms += static_cast<double>(t.step_ns) / 1e6 / static_cast<double>(times.size());
      gathered_steps.samples.push_back(sample_of(times[0].step, step_ms, all_own, items.kinds));
    }
    if (rank_of(i) != static_cast<size_t>(world.rank())) continue;
    split_waits(together);
    put(mine, mean_of(times, items));
  }
  const std::vector<std::string> divided = world.all_gather(mine, "the means of steps");
  std::vector<Reader> parts(divided.begin(), divided.end());
  for (size_t i = 0; i < steps.size(); ++i) gathered_steps.means.push_back(next_means(parts[rank_of(i)]));
  return gathered_steps;
}

std::vector<std::pair<std::string, double>> by_size(const std::map<std::string, double>& ms) {
  std::vector<std::pair<std::string, double>> sorted(ms.begin(), ms.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

std::string waited_for(const std::map<std::string, double>& exposed_by, double steps) {
  std::string text;
  int named = 0;
  for (const auto& [task, ms] : by_size(exposed_by))
    if (ms / steps >= 0.05 && ++named <= 3)
      text += fmt::format("{}{} {:.1f} ms", named == 1 ? "" : ", ", task, ms / steps);
  return text + (named > 3 ? fmt::format(" and {} more", named - 3) : "");
}

std::vector<int64_t> largest_over_ranks(World& world, const std::vector<int64_t>& values) {
  return largest_of_stages(world, Mesh(MeshSizes{.data = world.size()}), values)[0];
}

std::vector<std::vector<int64_t>> largest_of_stages(World& world, const Mesh& mesh,
                                                    const std::vector<int64_t>& values) {
  std::string bytes;
  for (int64_t value : values) put(bytes, value);
  const std::vector<std::string> gathered = world.all_gather(bytes, "the times of works");
  SLIP_ASSERT(gathered.size() == static_cast<size_t>(mesh.world()));
  std::vector<std::vector<int64_t>> largest(static_cast<size_t>(mesh.stages()));
  for (size_t r = 0; r < gathered.size(); ++r) {
    std::vector<int64_t>& of_stage = largest[static_cast<size_t>(mesh.coordinates(static_cast<int>(r)).pipeline)];
    const size_t count = gathered[r].size() / sizeof(int64_t);
    if (of_stage.empty()) of_stage.assign(count, std::numeric_limits<int64_t>::min());
    SLIP_ASSERT(of_stage.size() == count);
    Reader reader(gathered[r]);
    for (int64_t& value : of_stage) value = std::max(value, reader.next());
  }
  return largest;
}

}  // namespace slipstream::runtime
