// SPDX-License-Identifier: Apache-2.0
// Packs step times, gathers them, and averages.

#include "runtime/step_means.h"

#include <algorithm>
#include <cstring>

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

}  // namespace

PlanItems::PlanItems(const Job& job) : rendezvous_ids(comm::rendezvous_of(job)) {
  for (ItemId item = 0; item < job.train.size(); ++item) names.push_back(job.train[item].name);
}

std::vector<StepMeans> mean_over_ranks(World& world, const std::vector<StepTimes>& steps, const PlanItems& items) {
  std::string bytes;
  const int64_t to_common_ns = world.clock_offset_ns();  // entries of ranks on other machines are compared below
  for (const StepTimes& t : steps) {
    for (int64_t ns : {t.step_ns, t.compute_ns, t.exposed_ns, t.bubble_ns, t.input_ns, t.other_ns}) put(bytes, ns);
    put(bytes, static_cast<int64_t>(t.tasks.size()));
    for (const TaskTime& task : t.tasks) {
      put(bytes, static_cast<int64_t>(items.rendezvous_ids[task.item]));
      put(bytes, task.channel);
      put(bytes, task.begin_ns + to_common_ns);
      put(bytes, task.end_ns + to_common_ns);
    }
    put(bytes, static_cast<int64_t>(t.exposures.size()));
    for (const Exposure& wait : t.exposures) {
      put(bytes, items.names[static_cast<ItemId>(wait.awaited)]);
      put(bytes, static_cast<int64_t>(wait.kind));
      put(bytes, static_cast<int64_t>(wait.task));
      put(bytes, wait.begin_ns + to_common_ns);
      put(bytes, wait.end_ns + to_common_ns);
    }
  }
  const std::vector<std::string> gathered = world.all_gather(bytes, "the times of steps");
  std::vector<Reader> readers(gathered.begin(), gathered.end());
  const double ranks = static_cast<double>(gathered.size());
  std::vector<StepMeans> means(steps.size());
  for (StepMeans& m : means) {
    std::vector<StepTimes> times(gathered.size());
    std::vector<std::vector<int64_t>> met(gathered.size());
    std::vector<std::vector<std::string>> awaited(gathered.size());
    std::map<int64_t, int64_t> last_entry;  // by rendezvous
    for (size_t r = 0; r < times.size(); ++r) {
      StepTimes& t = times[r];
      for (int64_t* ns : {&t.step_ns, &t.compute_ns, &t.exposed_ns, &t.bubble_ns, &t.input_ns, &t.other_ns})
        *ns = readers[r].next();
      t.tasks.resize(static_cast<size_t>(readers[r].next()));
      for (TaskTime& task : t.tasks) {
        const int64_t rendezvous = met[r].emplace_back(readers[r].next());
        task.channel = static_cast<uint32_t>(readers[r].next());
        task.begin_ns = readers[r].next();
        task.end_ns = readers[r].next();
        int64_t& last = last_entry.try_emplace(rendezvous, task.begin_ns).first->second;
        last = std::max(last, task.begin_ns);
      }
      t.exposures.resize(static_cast<size_t>(readers[r].next()));
      for (Exposure& wait : t.exposures) {
        awaited[r].push_back(readers[r].next_text());
        wait.kind = static_cast<ChannelKind>(readers[r].next());
        wait.task = static_cast<size_t>(readers[r].next());
        wait.begin_ns = readers[r].next();
        wait.end_ns = readers[r].next();
      }
    }
    for (size_t r = 0; r < times.size(); ++r) {
      StepTimes& t = times[r];
      std::vector<int64_t> last_entries;
      for (int64_t rendezvous : met[r]) last_entries.push_back(last_entry[rendezvous]);
      apply_last_entries(t, last_entries);
      const auto mean = [&](double& sum, int64_t ns) { sum += static_cast<double>(ns) / 1e6 / ranks; };
      mean(m.step_ms, t.step_ns);
      mean(m.compute_ms, t.compute_ns);
      mean(m.comm_ms, t.comm_ns);
      mean(m.exposed_ms, t.exposed_ns);
      mean(m.bubble_ms, t.bubble_ns);
      mean(m.input_ms, t.input_ns);
      mean(m.other_ms, t.other_ns);
      mean(m.skew_ms, t.skew_ns);
      for (size_t i = 0; i < t.exposures.size(); ++i)
        if (t.exposures[i].exposed_ns() > 0) mean(m.exposed_by[awaited[r][i]], t.exposures[i].exposed_ns());
      m.exposed_ms_max = std::max(m.exposed_ms_max, static_cast<double>(t.exposed_ns) / 1e6);
    }
  }
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
