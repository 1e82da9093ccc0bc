// SPDX-License-Identifier: Apache-2.0
// Rows of measured times: what is written is read, look-ups between sizes, and refused rows.

#include "engine/config/host_times.h"

#include "engine/base/check.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

HostTimes two_cores() {
  HostTimes host{.cores = 2, .emulated_ns = 70'000};
  host.by_threads[1].products_per_second = 1e11;
  host.by_threads[1].scores_per_second = 5e10;
  host.by_threads[1].bytes_per_second = 9e9;
  host.by_threads[1].works[0x123] = {4500, "matmul"};
  host.by_threads[1].works[0xfedcba9876543210] = {77, "layer_norm"};
  host.by_threads[1].local_ns["update"] = {{1000, 100}, {3000, 500}};
  host.by_threads[2] = host.by_threads[1];
  host.by_threads[2].works[0x123].time_ns = 2300;
  host.verbs = {{"all_reduce", 2, 20'000, 4'000'000'000, 9000, 0.25},
                {"all_reduce", 4, 50'000, 1'000'000'000, 9000, 0.5}};
  host.waits = {{2, 4, 1'000'000}, {4, 4, 3'000'000}};
  return host;
}

}  // namespace

TEST_CASE("host times: parse reads what text writes", "[config]") {
  const HostTimes host = two_cores(), read = HostTimes::parse(host.text());
  CHECK(read.text() == host.text());
  CHECK(read.cores == 2);
  CHECK(read.at(1).works.at(0x123).time_ns == 4500);
  CHECK(read.at(2).works.at(0x123).time_ns == 2300);
  CHECK(read.at(7).works.at(0x123).time_ns == 2300);  // of the nearest number of threads
  CHECK(read.at(1).works.at(0xfedcba9876543210).name == "layer_norm");
  CHECK(read.verb("all_reduce", 2)->latency_ns == 20'000);
  CHECK(read.verb("all_reduce", 4)->core_ns_per_byte == 0.5);
  CHECK(read.verb("all_reduce", 9)->ranks == 4);
  CHECK(read.verb("broadcast", 2) == nullptr);
}

TEST_CASE("host times: ranks wait for each other where they are more than the cores", "[config]") {
  const HostTimes read = HostTimes::parse(two_cores().text());
  CHECK(read.crowded_wait_ns(2, 2, 1) == 0);
  CHECK(read.crowded_wait_ns(2, 1, 2) == 0);
  CHECK(read.crowded_wait_ns(2, 4, 1) == 1'000'000);
  CHECK(read.crowded_wait_ns(3, 3, 1) == 1'000'000);  // of the nearest number of ranks
  CHECK(read.crowded_wait_ns(4, 4, 1) == 3'000'000);
  CHECK(read.crowded_wait_ns(2, 2, 2) == 1'000'000);
  CHECK(HostTimes{.cores = 2}.crowded_wait_ns(2, 4, 1) == 0);
}

TEST_CASE("host times: sizes between two measured ones lie on their line", "[config]") {
  const WorkTimes times = two_cores().by_threads.at(1);
  CHECK(times.local_time_ns("update", 1000) == 100);
  CHECK(times.local_time_ns("update", 2000) == 300);
  CHECK(times.local_time_ns("update", 6000) == 1000);
  CHECK(times.local_time_ns("update", 500) == 50);
  CHECK(times.local_time_ns("clip", 500) == -1);
}

TEST_CASE("host times: a shape is the list of kernels, whatever the grouping of works", "[config]") {
  const KernelCost product{.kind = KernelKind::product, .flops = 60, .bytes = 31, .rows = 2, .cols = 3, .depth = 5};
  const Cost one{.flops = 60, .bytes = 31, .kernels = {product}}, moved{.flops = 4, .bytes = 8};
  Cost sum;
  sum += one;
  CHECK(shape_of(sum) == shape_of(one));
  sum += moved;
  CHECK(shape_of(sum) != shape_of(one));
  Cost alone;
  alone += moved;
  CHECK(shape_of(alone) == shape_of(moved));
  KernelCost turned = product;
  std::swap(turned.rows, turned.cols);
  CHECK(shape_of({60, 31, {turned}}) != shape_of(one));
}

TEST_CASE("host times: wrong rows are refused with the row and what it needs", "[config]") {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      HostTimes::parse(text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  for (const char* row : {"cores 0", "verb all_reduce 1 5 5 5 5", "verb all_reduce 2 5 0 5 5", "wait 1 4 5",
                          "wait 4 2 5", "wait 2 4 -1", "rates 1 1e9 1e9 0", "local 1 update -4 5", "work 1 12 55 name",
                          "work 1 000000000000zz23 55 name", "speed 4"}) {
    INFO(row);
    const std::string text = refusal(fmt::format("cores 2\n{}\n", row));
    CHECK(text.find(row) != std::string::npos);
    CHECK(text.find("needs") != std::string::npos);
  }
  CHECK(refusal("emulated_ns 4\n").find("'cores'") != std::string::npos);
}
