// SPDX-License-Identifier: Apache-2.0
// There is one vector clock per stream, one for the host, and one in every event, which is the clock of its most recent
// record.

#include "comm/rehearse/checked_device.h"

#include <algorithm>
#include <span>
#include <vector>

#include "comm/rehearse/clocks.h"
#include "comm/rehearse/hazards.h"
#include "engine/base/check.h"

namespace slipstream::comm {
namespace {

/// For each stream, the number of works that are known to be complete.
using Clock = std::vector<uint32_t>;

void join(Clock& clock, const Clock& other) {
  clock.resize(std::max(clock.size(), other.size()), 0);
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

/// The works and records of one stream.
struct StreamHistory {
  std::string name;
  Clock clock;
  std::vector<uint32_t> works;    // indices in Followed::works_, in order
  std::vector<uint32_t> records;  // the length of `works` at each record
};

class Followed {
 public:
  explicit Followed(const Buffers& buffers) : buffers_(buffers) {}

  uint32_t add_stream(const std::string& name) {
    streams_.push_back({.name = name, .clock = {}, .works = {}, .records = {}});
    return static_cast<uint32_t>(streams_.size() - 1);
  }

  void launch(uint32_t stream, const Work& work, const Frame& frame) {
    StreamHistory& history = streams_[stream];
    // A launch comes after everything that the host has waited for.
    join(history.clock, host);
    history.clock.resize(streams_.size(), 0);
    const auto number = static_cast<uint32_t>(works_.size());
    const std::span<const Rebind> rebinds(frame.rebinds, frame.rebind_count);
    const auto all = [&](const std::vector<Slice>& slices, auto&& each) {
      for (const Slice& slice : slices) each(buffers_.resolve(slice, rebinds, frame.micro_batch, frame.slot));
    };
    all(work.reads, [&](const Slice& slice) { check(slice, false, stream, work, frame); });
    all(work.writes, [&](const Slice& slice) { check(slice, true, stream, work, frame); });
    all(work.reads, [&](const Slice& slice) { accesses_.record(slice, false, number, stream); });
    all(work.writes, [&](const Slice& slice) { accesses_.record(slice, true, number, stream); });
    history.works.push_back(number);
    history.clock[stream] = static_cast<uint32_t>(history.works.size());
    works_.push_back({&work, stream, history.clock[stream], frame.step});
  }

  void record(uint32_t stream, Clock& event) {
    StreamHistory& history = streams_[stream];
    join(history.clock, host);
    event = history.clock;
    history.records.push_back(static_cast<uint32_t>(history.works.size()));
  }

  void wait(uint32_t stream, const Clock& event) { join(streams_[stream].clock, event); }
  void host_waits(uint32_t stream) { join(host, streams_[stream].clock); }

  /// The host accesses memory outside every step, so it must have waited for all works on streams.
  void host_copies() const {
    for (uint32_t stream = 0; stream < streams_.size(); ++stream) {
      const std::vector<uint32_t>& works = streams_[stream].works;
      if (works.size() <= (stream < host.size() ? host[stream] : 0)) continue;
      const Launched& last = works_[works.back()];
      throw PlanError(
          "[hazard] the host copies device memory while {} (channel {}, step {}) may still be running. "
          "Synchronize the streams first.",
          last.work->name, streams_[stream].name, last.step);
    }
  }

  Clock host;

 private:
  struct Launched {
    const Work* work;
    uint32_t stream;
    uint32_t position;  // on its stream, from 1
    uint32_t step;
  };

  void check(const Slice& slice, bool writes, uint32_t stream, const Work& work, const Frame& frame) const {
    const Clock& clock = streams_[stream].clock;
    accesses_.conflicts(slice, writes, [&](uint32_t number, bool earlier_writes, int64_t begin, int64_t end) {
      const Launched& earlier = works_[number];
      if (earlier.stream == stream || clock[earlier.stream] >= earlier.position) return;
      const StreamHistory& other = streams_[earlier.stream];
      const auto record = std::lower_bound(other.records.begin(), other.records.end(), earlier.position);
      const auto name = [&](uint32_t position) { return works_[other.works[position - 1]].work->name; };
      const Hazard hazard{.earlier = earlier.work->name,
                          .later = work.name,
                          .earlier_run = earlier.step,
                          .later_run = frame.step,
                          .earlier_channel = other.name,
                          .later_channel = streams_[stream].name,
                          .earlier_writes = earlier_writes,
                          .later_writes = writes,
                          .buffer = buffers_[slice.buffer].name,
                          .begin_bytes = begin,
                          .end_bytes = end,
                          .behind = clock[earlier.stream] > 0 ? name(clock[earlier.stream]) : "",
                          .event = record == other.records.end() ? "" : name(*record),
                          .counted = "step"};
      throw PlanError("[hazard] {}", hazard.sentence());
    });
  }

  const Buffers& buffers_;
  std::vector<StreamHistory> streams_;
  std::vector<Launched> works_;
  AccessMap accesses_;
};

class CheckedEvent final : public Event {
 public:
  CheckedEvent(std::shared_ptr<Followed> followed, std::unique_ptr<Event> inner)
      : followed_(std::move(followed)), inner_(std::move(inner)) {}
  void synchronize() override {
    inner_->synchronize();
    join(followed_->host, clock);
  }
  bool query() const override {
    const bool done = inner_->query();
    if (done) join(followed_->host, clock);
    return done;
  }
  int64_t completed_ns() const override { return inner_->completed_ns(); }
  uint64_t tag() const override { return inner_->tag(); }
  Event& inner() const { return *inner_; }

  Clock clock;  // the clock of the most recent record; empty: there is none

 private:
  std::shared_ptr<Followed> followed_;
  std::unique_ptr<Event> inner_;
};

class CheckedStream final : public Stream {
 public:
  CheckedStream(std::shared_ptr<Followed> followed, std::unique_ptr<Stream> inner)
      : followed_(std::move(followed)), inner_(std::move(inner)), index_(followed_->add_stream(inner_->name())) {}

  void launch(const Work& work, const Frame& frame) override {
    followed_->launch(index_, work, frame);
    inner_->launch(work, frame);
  }
  void record(Event& event) override {
    auto& checked = static_cast<CheckedEvent&>(event);
    followed_->record(index_, checked.clock);
    inner_->record(checked.inner());
  }
  void wait(const Event& event, const Frame& frame) override {
    const auto& checked = static_cast<const CheckedEvent&>(event);
    followed_->wait(index_, checked.clock);
    inner_->wait(checked.inner(), frame);
  }
  void synchronize() override {
    inner_->synchronize();
    followed_->host_waits(index_);
  }
  const std::string& name() const override { return inner_->name(); }
  void drain(std::vector<Span>& spans) override { inner_->drain(spans); }

 private:
  std::shared_ptr<Followed> followed_;
  std::unique_ptr<Stream> inner_;
  uint32_t index_;
};

class CheckedDevice final : public Device {
 public:
  CheckedDevice(std::unique_ptr<Device> inner, const Buffers& buffers)
      : inner_(std::move(inner)), followed_(std::make_shared<Followed>(buffers)) {}

  DeviceKind kind() const override { return inner_->kind(); }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override {
    return std::make_unique<CheckedStream>(followed_, inner_->make_stream(options));
  }
  std::unique_ptr<Event> make_event(uint64_t tag) override {
    return std::make_unique<CheckedEvent>(followed_, inner_->make_event(tag));
  }
  std::unique_ptr<Allocation> allocate(int64_t size_bytes, const std::string& name) override {
    return inner_->allocate(size_bytes, name);
  }
  std::unique_ptr<Allocation> allocate_host(int64_t size_bytes, const std::string& name) override {
    return inner_->allocate_host(size_bytes, name);
  }
  std::shared_ptr<void> pin(std::byte* memory, int64_t size_bytes) override { return inner_->pin(memory, size_bytes); }
  void copy_to_host(void* host, const std::byte* device, int64_t size_bytes) override {
    followed_->host_copies();
    inner_->copy_to_host(host, device, size_bytes);
  }
  void copy_from_host(std::byte* device, const void* host, int64_t size_bytes) override {
    followed_->host_copies();
    inner_->copy_from_host(device, host, size_bytes);
  }
  int64_t now_ns() const override { return inner_->now_ns(); }
  int64_t allocation_count() const override { return inner_->allocation_count(); }
  int64_t host_wait_count() const override { return inner_->host_wait_count(); }
  void inject_delays(uint64_t seed, int64_t max_ns) override { inner_->inject_delays(seed, max_ns); }

 private:
  std::unique_ptr<Device> inner_;
  std::shared_ptr<Followed> followed_;
};

}  // namespace

std::unique_ptr<Device> make_checked_device(std::unique_ptr<Device> inner, const Buffers& buffers) {
  return std::make_unique<CheckedDevice>(std::move(inner), buffers);
}

}  // namespace slipstream::comm
