// SPDX-License-Identifier: Apache-2.0
// Fits against known links, and bus factors against the table of nccl-tests.

#include "trainer/bench/link_fit.h"

#include <cmath>
#include <random>

#include "engine/config/machine.h"
#include "tests/paths.h"
#include "tests/test.hpp"

#include <cstdio>
#include <fstream>

using namespace slipstream;
using namespace slipstream::bench;

namespace {

/// Times of a link at 1 KiB to 256 MiB, each multiplied by `noise(i)`.
template <typename Noise>
std::vector<TimedTransfer> samples_of(double latency_s, double bytes_per_second, double rounds, const Noise& noise) {
  std::vector<TimedTransfer> samples;
  for (int i = 0; i < 10; ++i) {
    const double bytes = std::ldexp(1024.0, 2 * i);
    const double per_byte = bytes_per_second > 0 ? 1 / bytes_per_second : 0;
    samples.push_back({rounds, bytes, (rounds * latency_s + bytes * per_byte) * noise(i)});
  }
  return samples;
}

}  // namespace

TEST_CASE("fit: exact times give the link back", "[bench]") {
  for (const double latency_s : {0.0, 1e-6, 50e-6, 1e-3})
    for (const double bytes_per_second : {1.25e8, 4e9, 3.65e11})
      for (const double rounds : {1.0, 2.0, 14.0}) {
        const LinkFit fit = fit_link(samples_of(latency_s, bytes_per_second, rounds, [](int) { return 1.0; }));
        CHECK(fit.latency_s == Approx(latency_s).margin(1e-12));
        CHECK(fit.bytes_per_second == Approx(bytes_per_second).epsilon(1e-6));
        CHECK(fit.error_max < 1e-6);
      }
}

TEST_CASE("fit: noise of 10 % moves the link by less than 10 %, and the error names the noise", "[bench]") {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(0.9, 1.1);
  for (int round = 0; round < 200; ++round) {
    const LinkFit fit = fit_link(samples_of(20e-6, 1e9, 2, [&](int) { return noise(random); }));
    CHECK(fit.latency_s == Approx(20e-6).epsilon(0.1));
    CHECK(fit.bytes_per_second == Approx(1e9).epsilon(0.1));
    CHECK(fit.error_max < 0.25);
  }
}

TEST_CASE("fit: never a negative latency or bandwidth", "[bench]") {
  // Falling times, and times that grow faster than the bytes.
  CHECK(fit_link(samples_of(1e-3, 0, 1, [](int) { return 1.0; })).bytes_per_second == 0);
  std::vector<TimedTransfer> faster = {{1, 1e3, 1e-6}, {1, 1e6, 1e-2}};
  const LinkFit fit = fit_link(faster);
  CHECK(fit.latency_s >= 0);
  CHECK(fit.bytes_per_second >= 0);
  std::vector<TimedTransfer> falling = {{1, 1e3, 1e-2}, {1, 1e6, 1e-3}};
  CHECK(fit_link(falling).bytes_per_second >= 0);
  CHECK(fit_link({}).error_max == 0);
}

TEST_CASE("bus factors are those of nccl-tests", "[bench]") {
  struct Row {
    Op op;
    double of_2, of_8;
  };
  for (const Row& row : {Row{Op::all_reduce, 1, 1.75}, Row{Op::all_gather, 0.5, 0.875},
                         Row{Op::reduce_scatter, 0.5, 0.875}, Row{Op::all_to_all, 0.5, 0.875},
                         Row{Op::all_to_all_v, 0.5, 0.875}, Row{Op::exchange, 1, 1}, Row{Op::send, 1, 1}}) {
    CHECK(bus_factor(row.op, 2) == row.of_2);
    CHECK(bus_factor(row.op, 8) == row.of_8);
  }
}

TEST_CASE("machine files read back as they were written", "[bench]") {
  for (const char* name : {"laptop", "h100x8", "a100x8", "h200x8"}) {
    Machine machine = load_machine(source_dir() + "/configs/machines/" + name + ".toml");
    machine.inter_bytes_per_second = 123'456'789;
    machine.inter_latency_ns = 12'345;
    machine.nodes = 2;
    const std::string path = std::string(std::tmpnam(nullptr)) + ".toml";
    std::ofstream(path) << machine_toml(machine);
    const Machine again = load_machine(path);
    std::remove(path.c_str());
    INFO(name);
    CHECK(machine_toml(again) == machine_toml(machine));
    CHECK(again.inter_bytes_per_second == machine.inter_bytes_per_second);
    CHECK(again.inter_latency_ns == machine.inter_latency_ns);
    CHECK(again.flops_per_second_bf16 == machine.flops_per_second_bf16);
    CHECK(again.memory_bytes == machine.memory_bytes);
    CHECK(again.card == machine.card);
    CHECK(again.nodes == 2);
  }
}
