// SPDX-License-Identifier: Apache-2.0
// Declared accesses match actual ones, for every work of every plan, including collectives and micro-batches: the proof
// of a plan depends on these declarations.

#include <algorithm>
#include <cstdio>

#include "engine/base/check.h"
#include "tests/equivalence/table.h"
#include "tests/guard/guarded_device.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

Layout guarded(Layout layout, const guard::Options& options, std::vector<guard::Counts>& counts) {
  counts.resize(static_cast<size_t>(layout.world()));
  layout.evaluate_between = true;
  layout.check_hazards = false;
  layout.device = [&counts, options](const Job& job) {
    return guard::make_guarded_device(job.buffers, options, &counts[static_cast<size_t>(job.options.rank)]);
  };
  return layout;
}

}  // namespace

TEST_CASE("works access only their declared memory, and the bits are the same", "[guard]") {
  const int steps = test_everything() ? 2 : 1;
  int64_t works = 0;
  std::vector<Layout> rows = strategies(test_everything());
  if (!test_everything())
    std::erase_if(rows, [](const Layout& row) {
      return row.prefetch_depth != 1 || row.reduce_mode == ReduceMode::per_parameter;
    });
  for (const Layout& row : rows) {
    INFO(row.name);
    std::vector<guard::Counts> counts;
    CHECK(train(guarded(row, {}, counts), steps).hash == train(row, steps).hash);
    for (const guard::Counts& c : counts) works += c.works;
  }
  std::printf("  COUNTED %zu layouts, %lld launches guarded\n", rows.size(), static_cast<long long>(works));
}

TEST_CASE("a step that makes the host wait while it is issued is reported as a bug", "[guard]") {
  std::vector<guard::Counts> counts;
  const Layout row{.name = "one rank", .model = tiny_gpt2()};
  CHECK_THROWS_WITH(train(guarded(row, {.counts_waits = true}, counts), 1), Catch::Contains("host_wait_count"));
}

TEST_CASE("every deleted declaration of a read or write is reported", "[guard]") {
  int64_t removed = 0;
  std::set<std::string> noticed, unnoticed;
  for (const Layout& row : strategies(test_everything())) {
    if (!test_everything() && (row.micro_batches == 1 || row.prefetch_depth != 1))
      continue;                    // an accumulating work reads most of them
    if (row.expert > 1) continue;  // counts that a deletion makes wrong end the run on all ranks
    INFO(row.name);
    std::vector<guard::Counts> counts;
    const Layout layout = guarded(row, {.removes_declarations = true}, counts);
    for (guard::Counts& c : counts) c.noticed = noticed;
    train(layout, 1);
    for (const guard::Counts& c : counts) {
      removed += c.removed;
      noticed.insert(c.noticed.begin(), c.noticed.end());
      unnoticed.insert(c.unnoticed.begin(), c.unnoticed.end());
    }
  }
  for (const std::string& name : unnoticed) {
    INFO(name);
    CHECK(noticed.contains(name));
  }
  std::printf("  COUNTED %lld declarations deleted, %zu of %zu different ones noticed\n",
              static_cast<long long>(removed), noticed.size(),
              noticed.size() + static_cast<size_t>(std::count_if(unnoticed.begin(), unnoticed.end(),
                                                                 [&](const auto& n) { return !noticed.contains(n); })));
}

TEST_CASE("the guard names work, buffer and bytes of an undeclared access", "[guard]") {
  Buffers buffers;
  // x and y share a page; far has a separate one.
  const BufferId x = buffers.add({.name = "x", .size_bytes = 64}), y = buffers.add({.name = "y", .size_bytes = 64});
  const BufferId far = buffers.add({.name = "far", .size_bytes = 4096});
  const auto device = guard::make_guarded_device(buffers, {}, nullptr);
  const auto arena = device->allocate(2 * 4096, "arena");
  const Memory memory({{arena->data(), 64}, {arena->data() + 64, 64}, {arena->data() + 4096, 4096}});
  const auto stream = device->make_stream({.name = "compute"});
  const auto finding = [&](std::vector<Slice> reads, std::vector<Slice> writes,
                           std::function<void(LaunchContext&)> fn) -> std::string {
    const Work work{.name = "work", .reads = std::move(reads), .writes = std::move(writes), .fn = std::move(fn)};
    try {
      stream->launch(work, {.memory = &memory});
    } catch (const PlanError& error) {
      return error.what();
    }
    return "";
  };
  const Slice all_x{x, 0, 64}, all_y{y, 0, 64}, all_far{far, 0, 4096};
  const auto copy = [](Slice from, Slice to) {
    return [=](LaunchContext& c) {
      for (int64_t i = 0; i < 4; ++i) c.as<float>(to)[i] = c.as<float>(from)[i] + 1;
    };
  };
  const auto add = [=](LaunchContext& c) { *c.as<float>(all_y) += *c.as<float>(all_x) + 1; };
  CHECK(finding({all_x}, {all_y}, copy(all_x, all_y)) == "");
  CHECK(finding({all_far}, {all_y}, copy(all_far, all_y)) == "");
  CHECK(finding({all_x, all_y}, {all_y}, add) == "");
  CHECK(finding({all_x}, {}, copy(all_x, all_far)) ==
        "[guard] work writes far bytes 0..4096, which it does not declare.");
  CHECK(finding({}, {all_y}, copy(all_far, all_y)) ==
        "[guard] work reads far bytes 0..4096, which it does not declare.");
  CHECK(finding({all_far}, {{y, 0, 12}}, copy(all_far, all_y)) ==
        "[guard] work writes y bytes 12..16, which it does not declare.");
  CHECK(finding({all_far, all_x}, {}, copy(all_far, all_x)).starts_with("[guard] work writes x bytes 0.."));
  CHECK(finding({{x, 4, 60}}, {all_y}, copy(all_x, all_y)).starts_with("[guard] work gives y bytes 0.."));
  CHECK(finding({all_x}, {all_y}, add).starts_with("[guard] work gives y bytes 0.."));
}
