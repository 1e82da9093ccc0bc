// SPDX-License-Identifier: Apache-2.0
// Measures verbs. The ranks of one host are threads, each with a stream for compute and one for the channel, as a rank
// has. The ranks of several hosts are processes, each with a busy thread beside the channel in place of compute.

#include <time.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>

#include "comm/emulate/emulate.h"
#include "comm/emulate/link_port.h"
#include "comm/host/host_communicator.h"
#include "comm/host/shared_transport.h"
#include "comm/link.h"
#include "engine/base/check.h"
#include "engine/base/parallel.h"
#include "engine/base/units.h"
#include "engine/device/clock.h"
#include "engine/device/device.h"
#include "trainer/bench/calibrate.h"
#include "trainer/bench/candidate.h"
#include "trainer/bench/link_fit.h"

namespace slipstream::bench {
namespace {

constexpr int64_t kSizes[] = {64, 64 * kKiB, kMiB, 4 * kMiB};
// These are the sizes between hosts. A shaper's bucket absorbs the small ones.
constexpr int64_t kFarSizes[] = {64, 64 * kKiB, kMiB, 4 * kMiB, 16 * kMiB};
constexpr Op kVerbs[] = {Op::all_reduce, Op::reduce_scatter, Op::all_gather, Op::exchange, Op::send};
// The seconds of work between two sums of ranks that share cores, which are like those between the sums of a layer; and
// the seconds of each measurement.
constexpr double kCrowdedWork = 1e-3, kCrowdedSeconds = 1;
constexpr comm::Link kEmulated{1e9, 100'000};
const Work kNothing{"nothing", {}, {}, {}, [](LaunchContext&) {}};

int64_t elems_of(int64_t bytes) { return std::max<int64_t>(1, bytes / 4); }

int64_t process_ns() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * kSecond + now.tv_nsec;
}

int64_t thread_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * kSecond + now.tv_nsec;
}

/// Returns the lower quarter of the values, because other programs lengthen most batches, in turns of milliseconds.
double lower_quarter(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 4];
}

/// Binds buffer 0 as the operand and buffer 1 as the result.
Work bind(comm::Communicator& by, Op op, int64_t elems) {
  const int rank = by.rank(), ranks = by.size();
  const bool from_parts = op == Op::reduce_scatter, to_parts = op == Op::all_gather;
  const comm::Transfer transfer{.from = {0, 0, 4 * elems * (from_parts ? ranks : 1)},
                                .to = {1, 0, 4 * elems * (to_parts ? ranks : 1)},
                                .elems = elems};
  switch (op) {
    case Op::all_reduce:
      return by.all_reduce(transfer);
    case Op::reduce_scatter:
      return by.reduce_scatter(transfer);
    case Op::all_gather:
      return by.all_gather(transfer);
    case Op::exchange:
      return by.exchange(transfer, (rank + 1) % ranks, (rank + ranks - 1) % ranks);
    default:
      return rank % 2 == 0 ? by.send(transfer, rank + 1) : by.recv(transfer, rank - 1);
  }
}

/// The time of one verb of one size: from the end of a work on compute to the start of the next work after the verb.
struct Measured {
  double seconds = 0;
  double core_seconds = 0;  // the time of one rank
};

/// A group of `ranks` threads with one communicator each.
class Group {
 public:
  /// If `pinned` is true, each rank is pinned to a core of its own, as a launcher does.
  Group(int ranks, bool pinned) : ranks_(ranks), pinned_(pinned), barrier_(ranks) {
    const int64_t area = comm::shared_area_bytes(ranks);
    memory_ =
        std::shared_ptr<std::byte>(static_cast<std::byte*>(::operator new (
                                       static_cast<size_t>(area) * static_cast<size_t>(ranks), std::align_val_t{4096})),
                                   [](std::byte* memory) { ::operator delete (memory, std::align_val_t{4096}); });
    for (int r = 0; r < ranks; ++r) {
      areas_.push_back(memory_.get() + r * area);
      comm::prepare_shared_area(areas_.back(), ranks);
    }
  }

  /// If `emulated` is true, the transfers pass a link of kEmulated.
  std::vector<std::vector<Measured>> run(bool emulated, double seconds) {
    std::vector<std::vector<Measured>> of_verbs(std::size(kVerbs), std::vector<Measured>(std::size(kSizes)));
    on_ranks([&](int rank) { run_rank(rank, emulated, seconds, of_verbs); });
    return of_verbs;
  }

  /// Returns the seconds of a step: work of `work_seconds` on a core, then a small sum of all ranks. Other groups may
  /// run at the same time.
  double run_steps(double work_seconds, double seconds) {
    double step_seconds = 0;
    on_ranks([&](int rank) {
      const double mean = run_steps_of_rank(rank, work_seconds, seconds);
      if (rank == 0) step_seconds = mean;
    });
    return step_seconds;
  }

 private:
  /// Blocks. Throws: what a rank threw.
  template <typename Run>
  void on_ranks(const Run& run) {
    std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks_));
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks_; ++r)
      threads.push_back(start_thread("a rank", [&, r] {
        try {
          if (pinned_) pin_to_core(r);
          run(r);
        } catch (...) {
          errors[static_cast<size_t>(r)] = std::current_exception();
        }
      }));
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }

  /// The parts of a rank in a run: a stream for compute, one for a channel, and two events between them.
  class Rank {
   public:
    Rank(const Group& group, int rank, bool emulated)
        : communicator_(group.communicator(rank)),
          compute_(device_->make_stream({.name = "compute"})),
          channel_(device_->make_stream({.name = "channel", .high_priority = true})) {
      if (emulated)
        communicator_ = comm::emulate(std::move(communicator_), std::make_shared<comm::LinkPort>(kEmulated));
      const int64_t most = kSizes[std::size(kSizes) - 1] * group.ranks_;
      from_ = device_->allocate(most, "sent"), to_ = device_->allocate(most, "received");
      memory_ = Memory({{from_->data(), 0, Instances::one}, {to_->data(), 0, Instances::one}});
    }
    comm::Communicator& communicator() { return *communicator_; }

    /// Blocks. Runs `count` times `compute` and then `transfer` on the channel, which compute awaits.
    void repeat(const Work& compute, const Work& transfer, int count) {
      const Frame frame{.memory = &memory_};
      for (int i = 0; i < count; ++i) {
        compute_->launch(compute, frame);
        compute_->record(*ready_);
        channel_->wait(*ready_, frame);
        channel_->launch(transfer, frame);
        channel_->record(*moved_);
        compute_->wait(*moved_, frame);
        // As in a run, events are recorded again only after the wait for them.
        compute_->launch(kNothing, frame);
        compute_->synchronize();
      }
    }

   private:
    std::unique_ptr<Device> device_ = make_cpu_device();
    std::unique_ptr<comm::Communicator> communicator_;
    std::unique_ptr<Stream> compute_, channel_;
    std::unique_ptr<Event> ready_ = device_->make_event(1), moved_ = device_->make_event(2);
    std::unique_ptr<Allocation> from_, to_;
    Memory memory_;
  };

  std::unique_ptr<comm::Communicator> communicator(int rank) const {
    std::vector<int> names(static_cast<size_t>(ranks_));
    std::iota(names.begin(), names.end(), 0);
    return std::make_unique<comm::HostCommunicator>(comm::make_shared_transport(areas_, rank, names, memory_),
                                                    comm::CommOptions{.timeout_seconds = 60});
  }

  double run_steps_of_rank(int rank, double work_seconds, double seconds) {
    Rank self(*this, rank, false);
    const Work sum = bind(self.communicator(), Op::all_reduce, 1);
    const auto work_ns = static_cast<int64_t>(work_seconds * 1e9);
    const Work work{"work", {}, {}, {}, [work_ns](LaunchContext&) {
                      for (const int64_t end_ns = thread_ns() + work_ns; thread_ns() < end_ns;) {
                      }
                    }};
    self.repeat(work, sum, 2);
    constexpr int kSteps = 16;  // the steps of a batch
    std::vector<double> batches;
    const int64_t begin_ns = monotonic_ns();
    do {
      const int64_t from_ns = monotonic_ns();
      self.repeat(work, sum, kSteps);
      batches.push_back(static_cast<double>(monotonic_ns() - from_ns) * 1e-9 / kSteps);
      barrier_.arrive_and_wait();
      if (rank == 0) goes_on_ = static_cast<double>(monotonic_ns() - begin_ns) * 1e-9 < seconds;
      barrier_.arrive_and_wait();
    } while (goes_on_);
    return lower_quarter(batches);
  }

  void run_rank(int rank, bool emulated, double seconds, std::vector<std::vector<Measured>>& of_verbs) {
    Rank self(*this, rank, emulated);
    std::vector<Work> works;  // bound once, as in a run
    for (const Op op : kVerbs)
      for (const int64_t bytes : kSizes)
        works.push_back(op == Op::send && ranks_ % 2 == 1 ? kNothing : bind(self.communicator(), op, elems_of(bytes)));
    const auto repeat = [&](const Work& work, int count) { self.repeat(kNothing, work, count); };
    for (size_t v = 0; v < std::size(kVerbs); ++v)
      for (size_t s = 0; s < std::size(kSizes); ++s) {
        const Work& work = works[v * std::size(kSizes) + s];
        repeat(work, 3);
        std::vector<double> times, core;
        const int64_t budget_ns = static_cast<int64_t>(seconds * 1e9) / static_cast<int64_t>(works.size());
        const int64_t begin_ns = monotonic_ns();
        for (int batch = 0; batch < 3 || goes_on_; ++batch) {
          constexpr int kWorks = 4;
          barrier_.arrive_and_wait();
          const int64_t from_ns = monotonic_ns(), core_ns = process_ns();
          repeat(work, kWorks);
          const int64_t to_ns = monotonic_ns();
          barrier_.arrive_and_wait();
          times.push_back(static_cast<double>(to_ns - from_ns) * 1e-9 / kWorks);
          core.push_back(static_cast<double>(process_ns() - core_ns) * 1e-9 / kWorks / ranks_);
          if (rank == 0) goes_on_ = monotonic_ns() - begin_ns < budget_ns;
          barrier_.arrive_and_wait();
        }
        if (rank == 0) of_verbs[v][s] = {lower_quarter(times), lower_quarter(core)};
        barrier_.arrive_and_wait();
      }
  }

  int ranks_;
  bool pinned_;
  std::barrier<> barrier_;
  bool goes_on_ = false;  // rank 0 writes it between barriers
  std::shared_ptr<std::byte> memory_;
  std::vector<std::byte*> areas_;
};

VerbTimes fitted(Op op, int ranks, std::span<const int64_t> sizes, const std::vector<Measured>& measured) {
  std::vector<TimedTransfer> samples, core;
  for (size_t s = 0; s < sizes.size(); ++s) {
    const auto bytes =
        static_cast<double>(comm::wire_bytes(op, Algorithm::direct, ranks, elems_of(sizes[s]), DType::f32));
    samples.push_back({1, bytes, measured[s].seconds});
    core.push_back({1, bytes, measured[s].core_seconds});
  }
  const LinkFit time = fit_link(samples), taken = fit_link(core);
  return {.verb = name_of(op),
          .ranks = ranks,
          .latency_ns = static_cast<int64_t>(time.latency_s * 1e9),
          .bytes_per_second = std::max<int64_t>(1, static_cast<int64_t>(time.bytes_per_second)),
          .core_ns = static_cast<int64_t>(taken.latency_s * 1e9),
          .core_ns_per_byte = taken.bytes_per_second > 0 ? 1e9 / taken.bytes_per_second : 0};
}

/// Fits a verb between hosts. A shaper passes the bytes of its bucket at once, which makes small sizes look fast. So
/// the rate is that between the two largest sizes, which exceed the bucket.
VerbTimes fitted_between_hosts(Op op, int ranks, const std::vector<Measured>& measured) {
  VerbTimes times = fitted(op, ranks, kFarSizes, measured);
  const size_t last = std::size(kFarSizes) - 1;
  const auto bytes = [&](size_t s) {
    return static_cast<double>(comm::wire_bytes(op, Algorithm::direct, ranks, elems_of(kFarSizes[s]), DType::f32));
  };
  const double seconds = measured[last].seconds - measured[last - 1].seconds;
  if (seconds <= 0) return times;
  times.bytes_per_second = static_cast<int64_t>((bytes(last) - bytes(last - 1)) / seconds);
  times.latency_ns = static_cast<int64_t>(measured[0].seconds * 1e9);
  return times;
}

/// A busy thread in place of compute. The counts that it loses are the time that transfers take from its core. This
/// includes the kernel's part, which no clock of the process shows.
class Counter {
 public:
  Counter()
      : thread_(start_thread("a counter", [this] {
          uint64_t x = 1;
          while (!ends_.load(std::memory_order_relaxed)) {
            for (int i = 0; i < 1000; ++i) x = x * 6364136223846793005u + 1442695040888963407u;
            last_.store(x, std::memory_order_relaxed);
            count_.fetch_add(1, std::memory_order_relaxed);
          }
        })) {}
  ~Counter() {
    ends_.store(true);
    thread_.join();
  }
  double count() const { return static_cast<double>(count_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<bool> ends_{false};
  std::atomic<uint64_t> count_{0}, last_{0};
  std::thread thread_;
};

/// One of the ranks of several processes.
class Beside {
 public:
  Beside(runtime::World& world, comm::Communicator& by)
      : world_(world),
        by_(by),
        device_(make_cpu_device()),
        channel_(device_->make_stream({.name = "channel", .high_priority = true})),
        from_(device_->allocate(kFarSizes[std::size(kFarSizes) - 1] * by.size(), "sent")),
        to_(device_->allocate(kFarSizes[std::size(kFarSizes) - 1] * by.size(), "received")),
        memory_({{from_->data(), 0, Instances::one}, {to_->data(), 0, Instances::one}}) {}

  Measured measure(Op op, int64_t size_bytes, double seconds) {
    const Work work = bind(by_, op, elems_of(size_bytes));
    const double once = launch(work, 2) / 2;
    const int works = agreed(std::clamp(static_cast<int>(kBatchSeconds / once), 1, kMostWorks));
    const int batches = agreed(std::clamp(static_cast<int>(seconds / (once * works)), 3, 100));
    std::vector<double> times, core;
    for (int batch = 0; batch < batches; ++batch) {
      // Measures the counter's speed without transfers, just before the transfers.
      const double quiet = counted([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
      double taken = 0, lasted = 0;
      const double beside = counted([&] {
        const int64_t begin_ns = monotonic_ns();
        taken = launch(work, works);
        lasted = static_cast<double>(monotonic_ns() - begin_ns) * 1e-9;
      });
      times.push_back(taken / works);
      core.push_back((1 - beside / quiet) * lasted / works);
    }
    return {largest(lower_quarter(times)), std::max(kLeastSeconds, largest(median(core)))};
  }

 private:
  static constexpr double kBatchSeconds = 0.05;
  static constexpr int kMostWorks = 64;
  static constexpr double kLeastSeconds = 1e-9;  // beside other programs, a counter may lose nothing

  /// Returns the seconds of `count` works in a row by the channel's own clock.
  double launch(const Work& work, int count) {
    world_.barrier();
    const Frame frame{.memory = &memory_};
    for (int i = 0; i < count; ++i) channel_->launch(work, frame);
    channel_->synchronize();
    std::vector<Span> spans;
    channel_->drain(spans);
    return static_cast<double>(spans.back().end_ns - spans[spans.size() - static_cast<size_t>(count)].begin_ns) * 1e-9;
  }
  /// Returns the counts per second while `body` runs.
  template <typename Body>
  double counted(const Body& body) {
    const double before = counter_.count();
    const int64_t begin_ns = monotonic_ns();
    body();
    return (counter_.count() - before) / (static_cast<double>(monotonic_ns() - begin_ns) * 1e-9);
  }
  /// Returns rank 0's value.
  int agreed(int mine) { return std::stoi(world_.all_gather(fmt::format("{}", mine), "times")[0]); }
  double largest(double mine) {
    double most = mine;
    for (const std::string& text : world_.all_gather(fmt::format("{:.17g}", mine), "times"))
      most = std::max(most, std::stod(text));
    return most;
  }

  runtime::World& world_;
  comm::Communicator& by_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> channel_;
  std::unique_ptr<Allocation> from_, to_;
  Memory memory_;
  Counter counter_;
};

}  // namespace

void measure_verbs(runtime::World& world, comm::Communicator& by, double seconds, HostTimes& host) {
  Beside beside(world, by);
  constexpr size_t kPoints = std::size(kVerbs) * std::size(kFarSizes);
  for (const Op op : kVerbs) {
    if (op == Op::send && by.size() % 2 == 1) continue;
    std::vector<Measured> measured;
    for (const int64_t size : kFarSizes) measured.push_back(beside.measure(op, size, seconds / kPoints));
    host.verbs.push_back(fitted_between_hosts(op, by.size(), measured));
  }
}

/// Returns how long ranks in groups of `size` wait for each other in a step, beyond their share of the cores and the
/// verb.
int64_t crowded_wait_ns(int size, int ranks, int cores, double seconds, const HostTimes& host) {
  const int count = ranks / size;
  std::vector<std::future<double>> groups;
  for (int g = 0; g < count; ++g)
    groups.push_back(
        std::async(std::launch::async, [&] { return Group(size, false).run_steps(kCrowdedWork, seconds); }));
  double mean = 0;
  for (std::future<double>& group : groups) mean += group.get() / count;
  const VerbTimes* verb = host.verb(name_of(Op::all_reduce), size);
  const double share = kCrowdedWork * size * count / cores;
  return std::max<int64_t>(0, static_cast<int64_t>((mean - share) * 1e9) - (verb ? verb->latency_ns : 0));
}

void measure_verbs(int ranks, int cores, double seconds, HostTimes& host) {
  std::vector<int> groups;
  for (int n = 2; n <= ranks; n *= 2) groups.push_back(n);
  if (groups.back() != ranks) groups.push_back(ranks);
  for (const int n : groups) {
    Group group(n, n <= cores);
    const auto of_verbs = group.run(false, seconds / static_cast<double>(groups.size() + 1));
    for (size_t v = 0; v < std::size(kVerbs); ++v)
      if (kVerbs[v] != Op::send || n % 2 == 0) host.verbs.push_back(fitted(kVerbs[v], n, kSizes, of_verbs[v]));
  }
  const auto behind_a_link = Group(2, cores >= 2).run(true, seconds / static_cast<double>(groups.size() + 1));
  std::vector<double> more;
  for (size_t v = 0; v < std::size(kVerbs); ++v) {
    const comm::WireCost cost = comm::wire_cost(kVerbs[v], Algorithm::direct, 2, kSizes[0] / 4, DType::f32, kEmulated);
    more.push_back(behind_a_link[v][0].seconds - static_cast<double>(cost.latency_ns + cost.wire_ns) * 1e-9);
  }
  host.emulated_ns = std::max<int64_t>(0, static_cast<int64_t>(median(more) * 1e9));
  for (const int n : groups)
    if (ranks > cores && ranks % n == 0)
      host.waits.push_back({n, ranks, crowded_wait_ns(n, ranks, cores, kCrowdedSeconds, host)});
}

}  // namespace slipstream::bench
