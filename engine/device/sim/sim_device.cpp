// SPDX-License-Identifier: Apache-2.0
// The sim device. A stream is the time at which it becomes free, and an event is a time. One thread uses it.

#include <sys/mman.h>

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/device/device.h"

namespace slipstream {
namespace {

class SimEvent final : public Event {
 public:
  explicit SimEvent(uint64_t tag) : tag_(tag) {}
  void synchronize() override {}
  bool query() const override { return true; }
  int64_t completed_ns() const override { return time_ns_; }
  uint64_t tag() const override { return tag_; }
  void record_at(int64_t time_ns) { time_ns_ = time_ns; }

 private:
  uint64_t tag_;
  int64_t time_ns_ = 0;  // the time of the most recent record; 0: there is none, and no stream waits for it
};

class SimStream final : public Stream {
 public:
  /// `latest_ns` is the device's clock: the end of the last work on any stream.
  SimStream(const StreamOptions& options, const SimRates& rates, std::shared_ptr<int64_t> latest_ns)
      : name_(options.name), rates_(rates), latest_ns_(std::move(latest_ns)) {}

  void launch(const Work& work, const Frame& frame) override {
    const double seconds = std::max(static_cast<double>(work.cost.flops) / rates_.flops_per_second,
                                    static_cast<double>(work.cost.bytes) / rates_.bytes_per_second);
    Span span{.kind = Span::Kind::work, .work = &work, .item = frame.item, .step = frame.step, .begin_ns = free_ns_};
    free_ns_ += static_cast<int64_t>(std::ceil(seconds * 1e9));
    span.end_ns = free_ns_;
    spans_.push_back(span);
    *latest_ns_ = std::max(*latest_ns_, free_ns_);
  }
  void record(Event& event) override { static_cast<SimEvent&>(event).record_at(free_ns_); }
  void wait(const Event& event, const Frame& frame) override {
    const int64_t until_ns = event.completed_ns();
    if (until_ns <= free_ns_) return;
    spans_.push_back({.kind = Span::Kind::wait,
                      .awaited = event.tag(),
                      .item = frame.item,
                      .step = frame.step,
                      .begin_ns = free_ns_,
                      .end_ns = until_ns});
    free_ns_ = until_ns;
  }
  void synchronize() override {}
  const std::string& name() const override { return name_; }
  void drain(std::vector<Span>& spans) override {
    spans.insert(spans.end(), spans_.begin(), spans_.end());
    spans_.clear();
  }

 private:
  std::string name_;
  SimRates rates_;
  std::shared_ptr<int64_t> latest_ns_;
  int64_t free_ns_ = 0;
  std::vector<Span> spans_;
};

/// Addresses that must not be accessed. Works never run, and an access by mistake faults instead of reading zeros.
class SimAllocation final : public Allocation {
 public:
  SimAllocation(int64_t size_bytes, const std::string& name) : size_bytes_(size_bytes) {
    SLIP_ASSERT(size_bytes >= 0);
    range_ = mmap(nullptr, kRangeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range_ == MAP_FAILED)
      throw ResourceError("[memory] {} needs {} in the simulation, but this process has no addresses left.", name,
                          format_bytes(size_bytes));
  }
  ~SimAllocation() override { munmap(range_, kRangeBytes); }
  SimAllocation(const SimAllocation&) = delete;
  SimAllocation& operator=(const SimAllocation&) = delete;
  std::byte* data() override { return static_cast<std::byte*>(range_); }
  int64_t size_bytes() const override { return size_bytes_; }

 private:
  static constexpr size_t kRangeBytes = 4096;
  void* range_ = nullptr;
  int64_t size_bytes_;
};

class SimDevice final : public Device {
 public:
  explicit SimDevice(const SimRates& rates) : rates_(rates) {
    if (!(rates.flops_per_second > 0) || !(rates.bytes_per_second > 0))
      throw ConfigError("[sim] the machine has {} FLOP/s and {} bytes/s, need positive rates.", rates.flops_per_second,
                        rates.bytes_per_second);
  }
  DeviceKind kind() const override { return DeviceKind::sim; }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override {
    return std::make_unique<SimStream>(options, rates_, latest_ns_);
  }
  std::unique_ptr<Event> make_event(uint64_t tag) override { return std::make_unique<SimEvent>(tag); }
  std::unique_ptr<Allocation> allocate(int64_t size_bytes, const std::string& name) override {
    auto allocation = std::make_unique<SimAllocation>(size_bytes, name);
    ++allocations_;
    return allocation;
  }
  void copy_to_host(void*, const std::byte*, int64_t) override {
    throw InternalError("[sim] memory was read, but simulated memory has a size and no contents.");
  }
  void copy_from_host(std::byte*, const void*, int64_t) override {}
  int64_t now_ns() const override { return *latest_ns_; }
  int64_t allocation_count() const override { return allocations_; }
  int64_t host_wait_count() const override { return 0; }
  void inject_delays(uint64_t, int64_t) override {}

 private:
  SimRates rates_;
  std::shared_ptr<int64_t> latest_ns_ = std::make_shared<int64_t>(0);
  int64_t allocations_ = 0;
};

}  // namespace

std::unique_ptr<Device> make_sim_device(const SimRates& rates) { return std::make_unique<SimDevice>(rates); }

}  // namespace slipstream
