// SPDX-License-Identifier: Apache-2.0
// Runs slipstream bench comm: checks and times every verb, prints bandwidths in the columns of nccl-tests, and fits a
// link.

#include "trainer/bench/bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "comm/link.h"
#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/plural.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/device/clock.h"
#include "trainer/bench/csv_file.h"
#include "trainer/bench/harness.h"
#include "trainer/bench/link_fit.h"

namespace slipstream::bench {
namespace {

constexpr int kSizeStep = 4;
constexpr int kBatchesMin = 3, kBatchesMax = 21, kWorksMax = 50;
constexpr double kBatchSeconds = 0.02;  // the time of works back to back

enum class Operands : uint8_t { whole, from_parts, to_parts, both_parts };

struct VerbRow {
  const char* name;
  Op op;
  bool has_ring;
  Operands operands;  // the buffers that hold a part for each rank
};
constexpr VerbRow kVerbs[] = {{"all_reduce", Op::all_reduce, true, Operands::whole},
                              {"reduce_scatter", Op::reduce_scatter, true, Operands::from_parts},
                              {"all_gather", Op::all_gather, true, Operands::to_parts},
                              {"all_to_all", Op::all_to_all, false, Operands::both_parts},
                              {"all_to_all_v", Op::all_to_all_v, false, Operands::both_parts},
                              {"exchange", Op::exchange, false, Operands::whole},
                              {"send", Op::send, false, Operands::whole}};

/// The experts of a rank in all_to_all_v. Each rank sends as many rows of one element to every rank, divided among its
/// experts.
constexpr int kExperts = 4;
int64_t rows_of_expert(int expert, int64_t elems) { return elems / kExperts + (expert < elems % kExperts); }

/// Returns the value that rank `rank` has at position `at` of its buffer. The values are small integers, so that sums
/// are exact.
float value_at(int rank, int64_t at) { return static_cast<float>(at % 7 + rank + 1); }

class CommBench : WorldBench {
 public:
  CommBench(const CommBenchOptions& options, const Setting& setting)
      : WorldBench(setting, 1),
        options_(options),
        min_bytes_(parse_bytes(options.smallest)),
        max_bytes_(parse_bytes(options.largest)),
        line_rate_(options.line_rate.empty() ? 0 : static_cast<double>(parse_bytes_per_second(options.line_rate))),
        on_gpus_(assignment_.kind == DeviceKind::cuda),
        ranks_(world_.size()),
        device_(assignment_.make_device()),
        communicator_(world_.communicator(static_cast<double>(config_.comm.emulate.bandwidth_bytes_per_second),
                                          config_.comm.emulate.latency_ns, config_.comm.timeout_seconds,
                                          assignment_.kind, assignment_.wire(config_, *device_))),
        library_(on_gpus_ || config_.comm.emulate.bandwidth_bytes_per_second > 0 ? nullptr
                                                                                 : world_.library_communicator()),
        stream_(device_->make_stream({.name = "comm", .high_priority = true})),
        from_(device_->allocate(max_bytes_, "sent")),
        to_(device_->allocate(max_bytes_, "received")),
        counts_(device_->allocate(counts_bytes(), "counts")),
        memory_({{from_->data(), 0, Instances::one},
                 {to_->data(), 0, Instances::one},
                 {counts_->data(), 0, Instances::one}}),
        host_(static_cast<size_t>(max_bytes_ / 4)) {
    frame_.memory = &memory_;
    std::set<std::string> hosts;
    for (const std::string& host : world_.all_gather(fmt::format("{}", world_.host()), "hosts")) hosts.insert(host);
    hosts_ = static_cast<int>(hosts.size());
  }

  /// Returns false if a result is wrong.
  bool run() {
    print_header();
    for (const VerbRow& verb : kVerbs) {
      if (!chosen(options_.verbs, verb.name)) continue;
      for (const char* algorithm : {"direct", "ring", "library", "nccl"})
        if (exists(verb, algorithm) && (on_gpus_ || chosen(options_.algorithms, algorithm))) measure(verb, algorithm);
    }
    if (world_.rank() == 0 && !options_.machine.empty()) write_machine();
    return wrong_ == 0;
  }

 private:
  static bool chosen(const std::vector<std::string>& names, std::string_view name) {
    return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
  }
  bool exists(const VerbRow& verb, std::string_view algorithm) const {
    if (on_gpus_) return algorithm == "nccl" && verb.op != Op::all_to_all_v;  // NCCL has no such verb
    if (algorithm == "library") return library_ != nullptr;
    return algorithm == "direct" || (algorithm == "ring" && verb.has_ring);
  }
  bool has_parts(const VerbRow& verb) const { return verb.operands != Operands::whole; }
  /// Returns the elements of Transfer for an operation of `bytes`.
  int64_t elems_of(const VerbRow& verb, int64_t bytes) const { return bytes / 4 / (has_parts(verb) ? ranks_ : 1); }
  int peer(int distance) const { return (world_.rank() + distance + ranks_) % ranks_; }
  /// In a send, even ranks send to the next rank. The last rank of an odd number has no partner.
  bool is_idle(const VerbRow& verb) const { return verb.op == Op::send && (world_.rank() ^ 1) >= ranks_; }

  Work bind(comm::Communicator& by, const VerbRow& verb, int64_t elems, Algorithm algorithm) {
    const int64_t whole = elems * 4, parts = whole * ranks_;
    const bool from_parts = verb.operands == Operands::from_parts || verb.operands == Operands::both_parts;
    const bool to_parts = verb.operands == Operands::to_parts || verb.operands == Operands::both_parts;
    const comm::Transfer transfer{.from = {0, 0, from_parts ? parts : whole},
                                  .to = {1, 0, to_parts ? parts : whole},
                                  .elems = elems,
                                  .dtype = DType::f32,
                                  .algorithm = algorithm};
    switch (verb.op) {
      case Op::all_reduce:
        return by.all_reduce(transfer);
      case Op::reduce_scatter:
        return by.reduce_scatter(transfer);
      case Op::all_gather:
        return by.all_gather(transfer);
      case Op::all_to_all:
        return by.all_to_all(transfer);
      case Op::all_to_all_v:
        return bind_routed(by, transfer);
      case Op::exchange:
        return by.exchange(transfer, peer(1), peer(-1));
      default:
        return world_.rank() % 2 == 0 ? by.send(transfer, world_.rank() ^ 1) : by.recv(transfer, world_.rank() ^ 1);
    }
  }

  int64_t counts_bytes() const { return 4 * int64_t{ranks_} * ranks_ * kExperts; }
  Work bind_routed(comm::Communicator& by, const comm::Transfer& transfer) {
    std::vector<int32_t> counts;
    for (int64_t i = 0; i < counts_bytes() / 4; ++i)
      counts.push_back(static_cast<int32_t>(rows_of_expert(static_cast<int>(i % kExperts), transfer.elems)));
    device_->copy_from_host(counts_->data(), counts.data(), counts_bytes());
    const int64_t rows = transfer.elems * ranks_;
    return by.all_to_all_v({.from = transfer.from,
                            .to = transfer.to,
                            .counts = {2, 0, counts_bytes()},
                            .route = {.experts = kExperts, .row_elems = 1, .source_rows = rows, .bound_rows = rows},
                            .dtype = transfer.dtype});
  }
  /// Returns the value of row `at` in the order (expert, source, position) of this rank.
  float expected_routed(int64_t elems, int64_t at) const {
    int64_t begin = 0;  // of the expert's rows in the part that a source sends to this rank
    for (int expert = 0;; ++expert) {
      const int64_t rows = rows_of_expert(expert, elems);
      if (at < ranks_ * rows) return value_at(static_cast<int>(at / rows), world_.rank() * elems + begin + at % rows);
      at -= ranks_ * rows;
      begin += rows;
    }
  }

  /// Returns the value that a correct verb leaves at position `at` of this rank's received buffer.
  float expected(const VerbRow& verb, int64_t elems, int64_t at) const {
    const int rank = world_.rank();
    const auto n = static_cast<float>(ranks_);
    const auto sum = [&](int64_t place) { return n * value_at(0, place) + n * (n - 1) / 2; };
    switch (verb.op) {
      case Op::all_reduce:
        return sum(at);
      case Op::reduce_scatter:
        return sum(rank * elems + at);
      case Op::all_gather:
        return value_at(static_cast<int>(at / elems), at % elems);
      case Op::all_to_all:
        return value_at(static_cast<int>(at / elems), rank * elems + at % elems);
      case Op::all_to_all_v:
        return expected_routed(elems, at);
      case Op::exchange:
        return value_at(peer(-1), at);
      default:
        return value_at(rank ^ 1, at);
    }
  }

  /// Blocks. Collective. Runs the work once. Returns the number of wrong elements on all ranks.
  int64_t check(const VerbRow& verb, const Work& work, int64_t elems) {
    const bool to_parts = verb.operands == Operands::to_parts || verb.operands == Operands::both_parts;
    const bool from_parts = verb.operands == Operands::from_parts || verb.operands == Operands::both_parts;
    const int64_t sent = elems * (from_parts ? ranks_ : 1), received = elems * (to_parts ? ranks_ : 1);
    for (int64_t at = 0; at < sent; ++at) host_[static_cast<size_t>(at)] = value_at(world_.rank(), at);
    device_->copy_from_host(from_->data(), host_.data(), sent * 4);
    std::fill_n(host_.begin(), received, -1.0F);
    device_->copy_from_host(to_->data(), host_.data(), received * 4);
    launch(verb, work, 1);
    int64_t wrong = 0;
    if (verb.op != Op::send || (world_.rank() % 2 == 1)) {
      device_->copy_to_host(host_.data(), to_->data(), received * 4);
      for (int64_t at = 0; at < received; ++at) wrong += host_[static_cast<size_t>(at)] != expected(verb, elems, at);
    }
    int64_t all = 0;
    for (double of_rank : gather(static_cast<double>(wrong))) all += static_cast<int64_t>(of_rank);
    return all;
  }

  std::vector<double> gather(double mine) {
    std::string bytes(sizeof mine, '\0');
    std::memcpy(bytes.data(), &mine, sizeof mine);
    std::vector<double> values;
    for (const std::string& of_rank : world_.all_gather(bytes, "times")) {
      double value = 0;
      std::memcpy(&value, of_rank.data(), sizeof value);
      values.push_back(value);
    }
    return values;
  }
  double largest(double mine) {
    const std::vector<double> values = gather(mine);
    return *std::max_element(values.begin(), values.end());
  }

  /// Returns the seconds of one of `count` works that run back to back.
  double launch(const VerbRow& verb, const Work& work, int count) {
    world_.barrier();
    const int64_t begin_ns = monotonic_ns();
    if (!is_idle(verb))
      for (int i = 0; i < count; ++i) stream_->launch(work, frame_);
    stream_->synchronize();
    return static_cast<double>(monotonic_ns() - begin_ns) * 1e-9 / count;
  }

  /// Returns the seconds of a work on the slowest rank: the median over batches.
  double time(const VerbRow& verb, const Work& work) {
    const double once = largest(launch(verb, work, 1));
    const int works = std::clamp(static_cast<int>(kBatchSeconds / once), 1, kWorksMax);
    const int batches = std::clamp(static_cast<int>(options_.seconds / (once * works)), kBatchesMin, kBatchesMax);
    std::vector<double> seconds;
    for (int batch = 0; batch < batches; ++batch) seconds.push_back(largest(launch(verb, work, works)));
    return median(std::move(seconds));
  }

  void measure(const VerbRow& verb, const std::string& name) {
    const Algorithm algorithm = name == "direct" ? Algorithm::direct : Algorithm::ring;
    std::vector<TimedTransfer> samples;
    double bus_sum = 0;
    for (int64_t bytes = min_bytes_; bytes <= max_bytes_; bytes *= kSizeStep) {
      const int64_t elems = elems_of(verb, bytes);
      if (elems == 0) continue;
      const int64_t size = elems * 4 * (has_parts(verb) ? ranks_ : 1);
      const Work work =
          is_idle(verb) ? Work{} : bind(name == "library" ? *library_ : *communicator_, verb, elems, algorithm);
      const int64_t wrong = check(verb, work, elems);
      wrong_ += wrong;
      const double seconds = time(verb, work), algorithm_rate = static_cast<double>(size) / seconds,
                   bus_rate = algorithm_rate * bus_factor(verb.op, ranks_);
      samples.push_back({static_cast<double>(comm::wire_rounds(verb.op, algorithm, ranks_)),
                         static_cast<double>(comm::wire_bytes(verb.op, algorithm, ranks_, elems, DType::f32)),
                         seconds});
      bus_sum += bus_rate;
      if (world_.rank() != 0) continue;
      const double share = line_rate_ > 0 ? bus_rate / line_rate_ : 0;
      print_result("{:<16}{:<8}{:>11}{:>11}{:>12.1f}{:>10.3f}{:>10.3f}{}{:>8}\n", verb.name, name, size, elems,
                   seconds * 1e6, algorithm_rate * 1e-9, bus_rate * 1e-9,
                   line_rate_ > 0 ? fmt::format("{:>9.1f} %", 100 * share) : "", wrong);
      csv_.row("{},{},{},{},{},{},{:.17g},{:.17g},{:.17g},{:.17g},{}\n", verb.name, name, ranks_, hosts_, size, elems,
               seconds * 1e6, algorithm_rate * 1e-9, bus_rate * 1e-9, share, wrong);
      flush_printed();
    }
    if (samples.empty() || world_.rank() != 0) return;
    const LinkFit fit = fit_link(samples);
    print_result("  mean bus bandwidth {:.3f} GB/s; fit: {:.1f} us a message, {}, within {:.0f} %\n",
                 bus_sum * 1e-9 / static_cast<double>(samples.size()), fit.latency_s * 1e6,
                 fit.bytes_per_second > 0 ? fmt::format("{:.3f} GB/s", fit.bytes_per_second * 1e-9) : "no bandwidth",
                 100 * fit.error_max);
    if (verb.op == Op::all_reduce && name != "library" &&
        (best_name_.empty() || fit.bytes_per_second > best_.bytes_per_second)) {
      best_ = fit;
      best_name_ = name;
    }
  }

  void print_header() {
    if (world_.rank() != 0) return;
    csv_.open(options_.csv,
              "verb,algorithm,world_size,hosts,operation_bytes,operation_elems,time_us,algbw_GBps,busbw_GBps,share_of_"
              "line,wrong\n");
    const Emulate& link = config_.comm.emulate;
    print_result("{} ranks on {}, {}{}; float32; medians; bandwidths as in nccl-tests\n", ranks_,
                 counted(hosts_, "host"), on_gpus_ ? "NCCL" : "MPI",
                 link.bandwidth_bytes_per_second == 0
                     ? ""
                     : fmt::format(", emulated link of {:.3f} GB/s",
                                   static_cast<double>(link.bandwidth_bytes_per_second) * 1e-9));
    print_result("{:<16}{:<8}{:>11}{:>11}{:>12}{:>10}{:>10}{}{:>8}\n", "verb", "", "bytes", "elems", "time us",
                 "alg GB/s", "bus GB/s", line_rate_ > 0 ? "     / line" : "", "wrong");
  }

  /// Writes the machine file.
  void write_machine() {
    if (best_name_.empty() || best_.bytes_per_second <= 0)
      throw ConfigError("[bench] --machine needs all_reduce at sizes whose time grows. Measure it up to 64MiB.");
    Machine machine = runtime::machine_at(assignment_, config_, threads_, world_.ranks_on_host());
    const auto rate = static_cast<int64_t>(best_.bytes_per_second);
    const auto latency = static_cast<int64_t>(std::lround(best_.latency_s * 1e9));
    (hosts_ > 1 ? machine.inter_bytes_per_second : machine.intra_bytes_per_second) = rate;
    (hosts_ > 1 ? machine.inter_latency_ns : machine.intra_latency_ns) = latency;
    files::write_file(options_.machine,
                      fmt::format("# slipstream bench comm: [{}] from all_reduce, {}, {} ranks on {}.\n{}",
                                  hosts_ > 1 ? "inter" : "intra", best_name_, ranks_, counted(hosts_, "host"),
                                  machine_toml(machine)));
    print_result("{}: [{}] bandwidth {:.3f} GB/s, latency {:.1f} us\n", options_.machine,
                 hosts_ > 1 ? "inter" : "intra", best_.bytes_per_second * 1e-9, best_.latency_s * 1e6);
  }

  const CommBenchOptions& options_;
  const int64_t min_bytes_, max_bytes_;
  const double line_rate_;  // in bytes per second; 0: not compared
  bool on_gpus_;
  int ranks_, hosts_ = 1;
  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::Communicator> communicator_;
  std::unique_ptr<comm::Communicator> library_;  // none on GPUs, and none over an emulated link, which it would bypass
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Allocation> from_, to_, counts_;
  Memory memory_;
  std::vector<float> host_;
  Frame frame_;
  CsvFile csv_;
  int64_t wrong_ = 0;
  LinkFit best_;  // the fit of all_reduce
  std::string best_name_;
};

}  // namespace

int bench_comm(const CommBenchOptions& options) {
  bool right = true;
  const int code = on_world(options, [&](const Setting& setting) {
    setting.world.together([&] {
      if (setting.world.size() < 2)
        throw ConfigError("[bench] comm needs at least 2 ranks, got 1. Start it with mpirun -np 2.");
      if (!options.line_rate.empty()) parse_bytes_per_second(options.line_rate);
      const int64_t least = parse_bytes(options.smallest), most = parse_bytes(options.largest);
      if (least < 4 || most < least)
        throw ConfigError("[bench] --min {} and --max {} must be at least 4 bytes, and --max at least --min.",
                          options.smallest, options.largest);
    });
    right = CommBench(options, setting).run();
    if (!right && setting.world.rank() == 0) print_result("Some results are wrong: look at the last column.\n");
  });
  return code != 0 ? code : right ? 0 : static_cast<int>(ExitCode::communication);
}

}  // namespace slipstream::bench
