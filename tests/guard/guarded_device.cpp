// SPDX-License-Identifier: Apache-2.0
// Page protection around every launch, and a signal handler that records a forbidden access and lets it happen.

#include "tests/guard/guarded_device.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "engine/base/check.h"
#include "kernels/cuda/workspace.h"

namespace slipstream::guard {
namespace {

constexpr size_t kPage = 4096;
/// The poison of bytes that a work only writes, in the first and in the second run, and of undeclared bytes in the
/// second run.
enum class Poison : uint8_t { first, second, undeclared };
constexpr uint8_t kReads = 1, kWrites = 2, kAccess = 3;
constexpr uint8_t kIndex = 4;  // token ids: poison must be an id too, or the work would leave all arenas

/// Fills memory with floats and doubles of some units that differ from byte to byte (a softmax ignores a constant) and
/// from rank to rank (gathered bytes must not look like a rank's own poison), and with NaN where nothing may be read.
std::byte value_of(Poison poison, uint8_t declared, size_t at, uint8_t salt) {
  const auto kind = static_cast<uint8_t>(poison);
  if (declared & kIndex) return std::byte{at % 4 == 0 ? static_cast<uint8_t>(3 * salt + kind) : uint8_t{0}};
  if (poison == Poison::undeclared) return std::byte{0xff};
  if (at % 2 == 1) return std::byte{0x40};
  return std::byte{static_cast<uint8_t>((at + 1) * (kind + 2u * salt + 1) * 2654435761u >> 13)};
}

constexpr size_t kGuards = 64, kFaults = 256;

struct Arena {
  std::byte* begin;
  std::byte* end;
};

/// The state of the signal handler, which must neither allocate nor lock.
struct Faults {
  std::vector<Arena> arenas;
  struct Fault {
    std::byte* at;
    bool writes;
  };
  Fault faults[kFaults];
  std::atomic<size_t> count{0};
};

std::atomic<Faults*> registry[kGuards];
struct sigaction previous;

void on_fault(int, siginfo_t* info, void* context) {
  auto* at = static_cast<std::byte*>(info->si_addr);
  for (std::atomic<Faults*>& entry : registry) {
    Faults* faults = entry.load();
    if (!faults) continue;
    for (const Arena& arena : faults->arenas) {
      if (at < arena.begin || at >= arena.end) continue;
      auto* page = reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(at) / kPage * kPage);
      const size_t number = faults->count.fetch_add(1);
      bool writes = false;
#if defined(__x86_64__)
      writes = (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#endif
      // A page that is read first is opened for reading only: a write to it is a separate violation. Written data
      // stays.
      mprotect(page, kPage, writes ? PROT_READ | PROT_WRITE : PROT_READ);
      if (number < kFaults) faults->faults[number] = {at, writes};
      return;
    }
  }
  (void)context;
  sigaction(SIGSEGV, &previous, nullptr);  // the fault is not ours: it happens again, and is reported like any other
}

/// The handler is installed again for every guard, because a test framework installs its own handlers around every
/// case.
void install() {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  struct sigaction action {
  }, before{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &before);
  if (before.sa_sigaction != on_fault) previous = before;
}

class Guard {
 public:
  bool counts_waits() const { return options_.counts_waits; }
  Guard(const Buffers& buffers, const Options& options, Counts* counts)
      : buffers_(buffers), options_(options), counts_(counts ? counts : &own_counts_) {
    install();
    for (std::atomic<Faults*>& entry : registry) {
      salt_ = static_cast<uint8_t>((&entry - registry) % 4);
      Faults* none = nullptr;
      if (entry.compare_exchange_strong(none, faults_.get())) return;
    }
    throw InternalError("[guard] more than {} guarded devices.", kGuards);
  }
  ~Guard() {
    if (options_.runs_kernels) kernels::release_stream(this);
    for (std::atomic<Faults*>& entry : registry)
      if (entry.load() == faults_.get()) entry.store(nullptr);
  }

  void add_arena(std::byte* begin, int64_t size_bytes) {
    const size_t pages = (static_cast<size_t>(size_bytes) + kPage - 1) / kPage;
    faults_->arenas.push_back({begin, begin + pages * kPage});
  }

  void launch(Stream& stream, const Work& work, const Frame& frame) {
    ++counts_->works;
    memory_ = frame.memory;
    // Staging a batch counts its calls, so it runs once.
    const bool repeats = work.name != "load_next_batch";
    std::vector<Violation> violations;
    if (options_.removes_declarations) {
      if (repeats && tried_.insert({&work, frame.micro_batch > 0}).second) try_without(stream, work, frame);
      run(stream, work, frame, open(work, frame), violations);
    } else {
      violations = examine(stream, work, frame, repeats);
    }
    if (!violations.empty()) throw PlanError("[guard] {}", violations[0].sentence());
  }

 private:
  /// The pages that are open for a work, with their contents and the declared bytes.
  struct Page {
    std::byte was[kPage];
    std::byte first[kPage];  // the contents after the first run
    uint8_t declared[kPage] = {};
    uint8_t all = 0;  // flags that at least one of its bytes has
  };
  using Pages = std::map<std::byte*, Page>;

  void try_without(Stream& stream, const Work& work, const Frame& frame) {
    std::vector<std::vector<std::byte>> before;
    for (const Arena& arena : faults_->arenas) before.emplace_back(arena.begin, arena.end);
    for (bool writes : {false, true})
      for (size_t i = 0; i < (writes ? work.writes : work.reads).size(); ++i) {
        Work copy = work;
        std::vector<Slice>& slices = writes ? copy.writes : copy.reads;
        const Slice slice = slices[i];
        if (slice.size_bytes == 0) continue;
        // A declaration needs to be missed only once.
        const std::string name =
            fmt::format("{} {} {}", work.name, writes ? "writes" : "reads", buffers_[slice.buffer].name);
        if (counts_->noticed.contains(name)) continue;
        slices.erase(slices.begin() + static_cast<std::ptrdiff_t>(i));
        ++counts_->removed;
        // A kernel that refuses undeclared memory has detected it too; the stream must not fail.
        std::atomic<bool> refused{false};
        copy.fn = [&work, &refused](LaunchContext& context) {
          try {
            work.fn(context);
          } catch (const Error&) {
            refused = true;
          }
        };
        const bool violated = !examine(stream, copy, frame, true).empty();
        for (size_t a = 0; a < before.size(); ++a)
          std::memcpy(faults_->arenas[a].begin, before[a].data(), before[a].size());
        (violated || refused ? counts_->noticed : counts_->unnoticed).insert(name);
      }
  }

  /// Runs `work` and leaves its results in memory.
  std::vector<Violation> examine(Stream& stream, const Work& work, const Frame& frame, bool repeats) {
    std::vector<Violation> violations;
    Pages pages = open(work, frame);
    fill(pages, kWrites, Poison::first);
    run(stream, work, frame, pages, violations);
    for (auto& [at, page] : pages) std::memcpy(page.first, at, kPage);
    report(work, pages, Violation::Kind::writes, violations, [&](std::byte* at, const Page& page, size_t i) {
      return !(page.declared[i] & kWrites) && at[i] != page.was[i];
    });
    if (repeats) {
      for (auto& [at, page] : pages) std::memcpy(at, page.was, kPage);
      fill(pages, kWrites, Poison::second);
      fill(pages, 0, Poison::undeclared);
      run(stream, work, frame, pages, violations);
      report(work, pages, Violation::Kind::writes, violations, [&](std::byte* at, const Page& page, size_t i) {
        const uint8_t access = page.declared[i] & kAccess;
        return access == 0 ? at[i] != value_of(Poison::undeclared, page.declared[i], i, salt_)
                           : access == kReads && at[i] != page.was[i];
      });
      const auto untouched = [&](std::byte* at, const Page& page, size_t i) {
        if ((page.declared[i] & kAccess) != kWrites) return false;
        // The comparison is by words: two kinds of poison for ids differ in one byte of four.
        for (size_t b = i / 4 * 4; b < i / 4 * 4 + 4; ++b)
          if ((page.declared[b] & kAccess) == kWrites &&
              (page.first[b] != value_of(Poison::first, page.declared[b], b, salt_) ||
               at[b] != value_of(Poison::second, page.declared[b], b, salt_)))
            return false;
        return true;
      };
      report(work, pages, Violation::Kind::depends, violations, [&](std::byte* at, const Page& page, size_t i) {
        return (page.declared[i] & kWrites) && page.first[i] != at[i] && !untouched(at, page, i);
      });
      for (auto& [at, page] : pages)
        for (size_t word = 0; word < kPage; word += 4) {
          bool restores[4];
          for (size_t b = 0; b < 4; ++b)
            restores[b] = (page.declared[word + b] & kAccess) == 0 || untouched(at, page, word + b);
          for (size_t b = 0; b < 4; ++b)
            if (restores[b]) at[word + b] = page.was[word + b];
        }
    }
    return violations;
  }

  Pages open(const Work& work, const Frame& frame) const {
    Pages pages;
    const auto declare = [&](const std::vector<Slice>& slices, uint8_t how) {
      for (const Slice& slice : slices) {
        const Slice at = buffers_.resolve(slice, std::span<const Rebind>(frame.rebinds, frame.rebind_count),
                                          frame.micro_batch, frame.slot);
        std::byte* begin = frame.memory->entry(at.buffer).base + at.begin_bytes;
        for (std::byte* byte = begin; byte < begin + at.size_bytes; ++byte) {
          auto* start = reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(byte) / kPage * kPage);
          auto [found, is_new] = pages.try_emplace(start);
          if (is_new) std::memcpy(found->second.was, start, kPage);
          const size_t last = std::min(kPage, static_cast<size_t>(begin + at.size_bytes - start));
          for (auto i = static_cast<size_t>(byte - start); i < last; ++i) found->second.declared[i] |= how;
          found->second.all |= how;
          byte = start + last - 1;
        }
      }
    };
    declare(work.reads, kReads);
    declare(work.writes, kWrites);
    for (auto& [at, page] : pages)
      for (BufferId b = 0; b < buffers_.size(); ++b) {
        if (buffers_[b].is_view || !(buffers_[b].name.starts_with("batch.") || buffers_[b].name.ends_with("_ids")))
          continue;
        std::byte* base = memory_->entry(b).base;
        std::byte* end = base + buffers_.instances(b) * buffers_.stride_bytes(b);
        for (std::byte* byte = std::max(base, at); byte < std::min(end, at + kPage); ++byte)
          page.declared[byte - at] |= kIndex;
      }
    return pages;
  }

  void fill(Pages& pages, uint8_t access, Poison poison) const {
    for (auto& [at, page] : pages)
      for (size_t i = 0; i < kPage; ++i)
        if ((page.declared[i] & kAccess) == access) at[i] = value_of(poison, page.declared[i], i, salt_);
  }

  void run(Stream& stream, const Work& as_declared, const Frame& frame, const Pages& pages,
           std::vector<Violation>& violations) {
    Work work = as_declared;
    // Batches are staged and losses reported by the runtime, not by a kernel.
    if (options_.runs_kernels && work.name != "load_next_batch" && work.name != "report")
      work.fn = [fn = as_declared.fn, this](LaunchContext& context) {
        LaunchContext on_gpu = context;
        on_gpu.kind = DeviceKind::cuda;
        on_gpu.native_stream = this;  // ranks are threads here: each has its own scratch memory, and one work at a time
        fn(on_gpu);
      };
    faults_->count = 0;
    for (const Arena& arena : faults_->arenas)
      mprotect(arena.begin, static_cast<size_t>(arena.end - arena.begin), PROT_NONE);
    for (const auto& [at, page] : pages) mprotect(at, kPage, page.all & kWrites ? PROT_READ | PROT_WRITE : PROT_READ);
    stream.launch(work, frame);
    stream.synchronize();
    for (const Arena& arena : faults_->arenas)
      mprotect(arena.begin, static_cast<size_t>(arena.end - arena.begin), PROT_READ | PROT_WRITE);
    const size_t count = std::min(faults_->count.load(), kFaults);
    for (size_t i = count; i-- > 0;) {
      const Faults::Fault& fault = faults_->faults[i];
      auto* page = reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(fault.at) / kPage * kPage);
      // The report names the bytes up to the end of the page: all of it was forbidden.
      violations.insert(violations.begin(),
                        violation(as_declared, fault.writes ? Violation::Kind::writes : Violation::Kind::reads,
                                  fault.at, page + kPage));
    }
  }

  template <typename Wrong>
  void report(const Work& work, const Pages& pages, Violation::Kind kind, std::vector<Violation>& violations,
              Wrong wrong) const {
    for (const auto& [at, page] : pages)
      for (size_t i = 0; i < kPage; ++i) {
        if (!wrong(at, page, i)) continue;
        const size_t begin = i;
        while (i < kPage && wrong(at, page, i)) ++i;
        violations.push_back(violation(work, kind, at + begin, at + i));
      }
  }

  Violation violation(const Work& work, Violation::Kind kind, std::byte* begin, std::byte* end) const {
    Violation v{.kind = kind, .work = work.name, .buffer = "no buffer", .begin_bytes = 0, .end_bytes = end - begin};
    for (BufferId b = 0; b < buffers_.size(); ++b) {
      if (buffers_[b].is_view) continue;
      std::byte* base = memory_->entry(b).base;
      std::byte* last = base + buffers_.instances(b) * buffers_.stride_bytes(b);
      if (!base || begin < base || begin >= last) continue;
      v.buffer = buffers_[b].name;
      v.begin_bytes = begin - base;
      v.end_bytes = std::min(end, last) - base;
    }
    return v;
  }

  const Buffers& buffers_;
  Options options_;
  Counts own_counts_;
  Counts* counts_;
  std::unique_ptr<Faults> faults_ = std::make_unique<Faults>();
  const Memory* memory_ = nullptr;
  uint8_t salt_ = 0;
  std::set<std::pair<const Work*, bool>> tried_;
};

class GuardedStream final : public Stream {
 public:
  GuardedStream(std::shared_ptr<Guard> guard, std::unique_ptr<Stream> inner)
      : guard_(std::move(guard)), inner_(std::move(inner)) {}
  void launch(const Work& work, const Frame& frame) override { guard_->launch(*inner_, work, frame); }
  void record(Event& event) override { inner_->record(event); }
  void wait(const Event& event, const Frame& frame) override { inner_->wait(event, frame); }
  void synchronize() override { inner_->synchronize(); }
  const std::string& name() const override { return inner_->name(); }
  void drain(std::vector<Span>& spans) override { inner_->drain(spans); }

 private:
  std::shared_ptr<Guard> guard_;
  std::unique_ptr<Stream> inner_;
};

class GuardedDevice final : public Device {
 public:
  explicit GuardedDevice(std::shared_ptr<Guard> guard) : guard_(std::move(guard)) {}
  DeviceKind kind() const override { return inner_->kind(); }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override {
    return std::make_unique<GuardedStream>(guard_, inner_->make_stream(options));
  }
  std::unique_ptr<Event> make_event(uint64_t tag) override { return inner_->make_event(tag); }
  std::unique_ptr<Allocation> allocate(int64_t size_bytes, const std::string& name) override {
    auto allocation = inner_->allocate(size_bytes, name);
    guard_->add_arena(allocation->data(), allocation->size_bytes());
    return allocation;
  }
  /// The places at which results arrive on the host; no work declares them.
  std::unique_ptr<Allocation> allocate_host(int64_t size_bytes, const std::string& name) override {
    return inner_->allocate_host(size_bytes, name);
  }
  void copy_to_host(void* host, const std::byte* device, int64_t size_bytes) override {
    inner_->copy_to_host(host, device, size_bytes);
  }
  void copy_from_host(std::byte* device, const void* host, int64_t size_bytes) override {
    inner_->copy_from_host(device, host, size_bytes);
  }
  int64_t now_ns() const override { return inner_->now_ns(); }
  int64_t allocation_count() const override { return inner_->allocation_count(); }
  int64_t host_wait_count() const override { return guard_->counts_waits() ? inner_->host_wait_count() : 0; }
  void inject_delays(uint64_t seed, int64_t max_ns) override { inner_->inject_delays(seed, max_ns); }

 private:
  std::shared_ptr<Guard> guard_;
  std::unique_ptr<Device> inner_ = make_cpu_device();
};

}  // namespace

std::string Violation::sentence() const {
  switch (kind) {
    case Kind::reads:
      return fmt::format("{} reads {} bytes {}..{}, which it does not declare.", work, buffer, begin_bytes, end_bytes);
    case Kind::writes:
      return fmt::format("{} writes {} bytes {}..{}, which it does not declare.", work, buffer, begin_bytes, end_bytes);
    case Kind::depends:
      return fmt::format(
          "{} gives {} bytes {}..{} other values when bytes that it does not declare to read hold other values.", work,
          buffer, begin_bytes, end_bytes);
  }
  return {};
}

std::unique_ptr<Device> make_guarded_device(const Buffers& buffers, const Options& options, Counts* counts) {
  return std::make_unique<GuardedDevice>(std::make_shared<Guard>(buffers, options, counts));
}

}  // namespace slipstream::guard
