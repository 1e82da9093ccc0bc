// SPDX-License-Identifier: Apache-2.0
// Reads machine files and estimates the rates of this host.

#include "engine/config/machine.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/config/host_times.h"
#include "engine/config/shipped.h"
#include "engine/config/toml.h"

namespace slipstream {
namespace {

const std::vector<Field<Machine>>& machine_fields() {
  using F = FieldKinds<Machine>;
  const auto& at = [](auto member) { return F::at(member); };
  const IntegerRange rate{1, int64_t{1} << 50};
  const IntegerRange time{0, kSecond};
  static const std::vector<Field<Machine>> fields = {
      F::text("name", at(&Machine::name), "Name in reports."),
      F::word("device", at(&Machine::device), {"cpu", "cuda"}, "Device that computes. Default: cpu."),
      F::real("flops_per_second_f32", at(&Machine::flops_per_second_f32), {0, 1e18, true}, "fp32 peak of a rank."),
      F::real("flops_per_second_bf16", at(&Machine::flops_per_second_bf16), {0, 1e18, true}, "bf16 peak of a rank."),
      F::real("matmul_efficiency", at(&Machine::matmul_efficiency), {0, 1, true},
              "Fraction of the peak that large matrix products reach."),
      F::real("flops_per_second_fp8", at(&Machine::flops_per_second_fp8), {0, 1e18}, "fp8 peak of a rank."),
      F::real("fp8_efficiency", at(&Machine::fp8_efficiency), {0, 1},
              "The same as matmul_efficiency for fp8 products."),
      F::real(
          "attention_efficiency", at(&Machine::attention_efficiency), {0, 1},
          "Fraction of the peak that attention reaches: forward, head dimension 128, long sequences. 0: no prices by "
          "shape."),
      F::real("depth_overhead", at(&Machine::depth_overhead), {0, 65536},
              "Start and end of a product's tile, as elements of depth."),
      F::real("speed_spread", at(&Machine::speed_spread), {0, 1},
              "Relative standard deviation of the speed of cards. A step waits for the slowest."),
      F::quantity("memory_bandwidth", at(&Machine::bytes_per_second), detail::rate_quantity(), rate,
                  "Rate of a large copy."),
      F::quantity("memory", at(&Machine::memory_bytes), detail::size_quantity(), {1, int64_t{1} << 50},
                  "Memory of one rank."),
      F::word("card", at(&Machine::card), {"other", "A100", "H100", "H200"}, "GPU model, for tables of settings."),
      F::integer("multiprocessors", at(&Machine::multiprocessors), {0, 1024}, "Multiprocessors of a GPU. 0: none."),
      F::quantity("launch", at(&Machine::launch_ns), detail::duration_quantity(), time, "Shortest time of one work."),
      F::integer("ranks_per_node", at(&Machine::ranks_per_node), {1, 65536}, "Ranks that share the inner link."),
      F::integer("nodes", at(&Machine::nodes), {0, 1 << 24}, "Number of nodes. 0: no limit."),
      F::quantity("intra.bandwidth", at(&Machine::intra_bytes_per_second), detail::rate_quantity(), rate,
                  "Rate within a node."),
      F::quantity("intra.latency", at(&Machine::intra_latency_ns), detail::duration_quantity(), time,
                  "Latency of a message within a node."),
      F::quantity("intra.reduce_bandwidth", at(&Machine::reduce_bytes_per_second), detail::rate_quantity(), rate,
                  "Rate of an all-reduce within a node whose switch adds."),
      F::quantity("inter.bandwidth", at(&Machine::inter_bytes_per_second), detail::rate_quantity(), rate,
                  "Rate between nodes."),
      F::quantity("inter.latency", at(&Machine::inter_latency_ns), detail::duration_quantity(), time,
                  "Latency of a message between nodes."),
      {"measured.times", "rows of slipstream calibrate", "Times of this host's works and transfers.", true,
       [](const Machine& m) -> ConfigValue { return m.measured ? m.measured->text() : std::string(); },
       [](Machine& m, const ConfigValue& v) {
         m.measured = std::make_shared<HostTimes>(HostTimes::parse(detail::need_text(v)));
       }},
  };
  return fields;
}

/// The keys of GPUs, some of which prices by shape need.
bool is_optional(const Field<Machine>& field) {
  static const std::set<std::string> keys = {"device",
                                             "card",
                                             "multiprocessors",
                                             "flops_per_second_fp8",
                                             "fp8_efficiency",
                                             "attention_efficiency",
                                             "depth_overhead",
                                             "speed_spread",
                                             "intra.reduce_bandwidth",
                                             "nodes",
                                             "measured.times"};
  return keys.contains(field.key);
}

/// Fused multiply-add operations per core and cycle.
struct FlopsPerCycle {
  double f32, bf16;
};
FlopsPerCycle flops_per_cycle() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) {
    // Such a core has two units of 16 lanes. Those of AMD's family 25 (Zen 4) need two cycles for 16 lanes.
    unsigned version = 0, ebx = 0, ecx = 0, edx = 0;
    __get_cpuid(1, &version, &ebx, &ecx, &edx);
    const unsigned family = (version >> 8 & 15) + (version >> 20 & 255);  // Intel reports 6
    const double f32 = family == 25 ? 32 : 64;
    return {f32, __builtin_cpu_supports("avx512bf16") ? 2 * f32 : f32};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {32, 32};  // two units of 8 lanes
#endif
  return {8, 8};  // 4 lanes, a product and a sum
}

}  // namespace

const char* name_of(Card card) {
  constexpr const char* names[] = {"other", "A100", "H100", "H200"};
  return names[static_cast<size_t>(card)];
}

Card card_of(const std::string& gpu_name) {
  for (const Card card : {Card::a100, Card::h100, Card::h200})
    if (gpu_name.find(name_of(card)) != std::string::npos) return card;
  return Card::other;
}

Machine load_machine(const std::string& name) {
  Machine machine;
  const char* const wanted = "a machine file, for example configs/machines/laptop.toml";
  const std::string path = path_or_shipped(name, "machines", wanted);
  const std::vector<TomlEntry> entries = read_toml(path, wanted);
  std::set<std::string> present;
  for (const TomlEntry& entry : entries) present.insert(entry.key);
  if (present.contains("model"))
    throw ConfigError("{} is a run file: it has a table [model]. Give the path of {}.", path, wanted);
  set_fields(machine_fields(), machine, entries);
  for (const Field<Machine>& field : machine_fields())
    if (!present.contains(field.key) && !is_optional(field))
      throw ConfigError("{} lacks the key '{}', which needs {}. Add it, with its source.", path, field.key, field.need);
  return machine;
}

std::string machine_toml(const Machine& machine) {
  std::string text, table;
  for (const Field<Machine>& field : machine_fields()) {
    if (is_optional(field) && field.get(machine) == field.get(Machine{})) continue;
    const size_t dot = field.key.find('.');
    if (dot != std::string::npos && field.key.substr(0, dot) != table) {
      table = field.key.substr(0, dot);
      text += fmt::format("\n[{}]\n", table);
    }
    const ConfigValue value = field.get(machine);
    const auto* words = std::get_if<std::string>(&value);
    const bool rows = words && words->find('\n') != std::string::npos;
    text += fmt::format("{} = {}\n", field.key.substr(dot + 1), rows ? "\"\"\"\n" + *words + "\"\"\"" : to_toml(value));
  }
  return text;
}

Machine this_host(int threads, int ranks) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const int cores = sched_getaffinity(0, sizeof mask, &mask) == 0 ? std::max(CPU_COUNT(&mask), 1)
                                                                  : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const int64_t memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  if (ranks == 0) ranks = std::max(cores / std::max(threads, 1), 1);
  const double used_cores = std::min(std::max(threads, 1), cores);
  // The clock of a core under load. Three generations of cloud machines measured 3.3, 3.7 and 4.1 GHz.
  constexpr double kClock = 3e9;
  const FlopsPerCycle flops = flops_per_cycle();
  return {
      .name = fmt::format("this host ({} cores, {})", cores, format_bytes(memory_bytes)),
      .flops_per_second_f32 = flops.f32 * kClock * used_cores,
      .flops_per_second_bf16 = flops.bf16 * kClock * used_cores,
      // Large oneDNN products reach 88 to 92 % of the peak (docs/benchmarks/notebook.md). Smaller ones reach less.
      .matmul_efficiency = 0.85,
      // One core of a cloud machine alone reaches about 18 GB/s, two together 26 GB/s. So the estimate is 10 GB/s per
      // core, at most 40 GB/s.
      .bytes_per_second = static_cast<int64_t>(std::min(10e9 * used_cores, 40e9 / ranks)),
      .memory_bytes = memory_bytes / ranks,
      // The time to wake a stream's sleeping thread.
      .launch_ns = 5 * kMicrosecond,
      .ranks_per_node = ranks,
      // An all-reduce of 1 to 25 MiB between two processes moves 4 to 5.6 GB/s.
      .intra_bytes_per_second = 4'000'000'000,
      .intra_latency_ns = 10 * kMicrosecond,
      // The rate of Gigabit Ethernet.
      .inter_bytes_per_second = 125'000'000,
      .inter_latency_ns = 50 * kMicrosecond,
  };
}

Machine common_machine(const std::vector<Machine>& machines) {
  Machine common = machines.at(0);
  for (const Machine& machine : machines) {
    common.memory_bytes = std::min(common.memory_bytes, machine.memory_bytes);
    common.ranks_per_node = std::gcd(common.ranks_per_node, machine.ranks_per_node);
  }
  return common;
}

}  // namespace slipstream
