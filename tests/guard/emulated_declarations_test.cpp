// SPDX-License-Identifier: Apache-2.0
// Declared accesses match those of the CUDA kernels: the same plans as on the CPU, with every kernel's work run by the
// emulated device on memory that is closed except for the declared bytes.

#include <cstdio>
#include <cstring>

#include "kernels/step_scalars/step_scalars_devices.h"
#include "tests/emulation/emulator.h"
#include "tests/equivalence/table.h"
#include "tests/guard/guarded_device.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

// The runtime performs copies and zeros.
namespace slipstream::kernels {
std::shared_ptr<UploadStaging> make_upload_staging() { return std::make_shared<UploadStaging>(); }
void copy_cuda(LaunchContext&, const Copy& args) {
  std::memcpy(args.to, args.from, static_cast<size_t>(args.size_bytes));
}
void zero_cuda(LaunchContext&, const Zero& args) { std::memset(args.to, 0, static_cast<size_t>(args.size_bytes)); }
void upload_cuda(LaunchContext&, const Upload&) {}
void prepare_upload_cuda(LaunchContext&, const Upload&) {}
}  // namespace slipstream::kernels

namespace {

/// Layouts of both families and both types, with accumulation and clipping; with the full set, all layouts that
/// accumulate.
std::vector<Layout> layouts() {
  std::vector<Layout> rows = strategies(test_everything());
  std::erase_if(rows, [](const Layout& row) {
    const bool few = row.name.ends_with("bfloat16, on the wire too, 2 micro-batches") ||
                     row.name.ends_with("tied the other way, 2 micro-batches");
    return test_everything() ? row.micro_batches == 1 : !few;
  });
  REQUIRE(rows.size() >= 4);
  return rows;
}

Layout guarded(Layout layout, const guard::Options& options, std::vector<guard::Counts>& counts) {
  counts.resize(static_cast<size_t>(layout.world()));
  layout.check_hazards = false;
  layout.device = [&counts, options](const Job& job) {
    return guard::make_guarded_device(job.buffers, options, &counts[static_cast<size_t>(job.options.rank)]);
  };
  return layout;
}

}  // namespace

TEST_CASE("kernels access only the memory that their works declare", "[guard]") {
  int64_t works = 0;
  const int64_t before = emulation::launches();
  for (const Layout& row : layouts()) {
    INFO(row.name);
    std::vector<guard::Counts> counts;
    train(guarded(row, {.runs_kernels = true}, counts), 1);
    for (const guard::Counts& c : counts) works += c.works;
  }
  CHECK(emulation::launches() - before > works);  // the kernels did run, each work twice
  std::printf("  COUNTED %lld works guarded, %lld kernels\n", static_cast<long long>(works),
              static_cast<long long>(emulation::launches() - before));
}

TEST_CASE("every deleted declaration of a kernel's read or write is reported", "[guard]") {
  int64_t removed = 0;
  std::set<std::string> noticed, unnoticed;
  for (const Layout& row : layouts()) {
    INFO(row.name);
    std::vector<guard::Counts> counts;
    const Layout layout = guarded(row, {.removes_declarations = true, .runs_kernels = true}, counts);
    for (guard::Counts& c : counts) c.noticed = noticed;
    train(layout, 1);
    for (const guard::Counts& c : counts) {
      removed += c.removed;
      noticed.insert(c.noticed.begin(), c.noticed.end());
      unnoticed.insert(c.unnoticed.begin(), c.unnoticed.end());
    }
  }
  for (const std::string& name : unnoticed) {
    // These declarations are for the CPU's kernels; on a GPU the sums are in scratch memory of the stream.
    // declarations_test covers them.
    if (name.ends_with("norm_gradient writes norm.workspace")) continue;
    INFO(name);
    CHECK(noticed.contains(name));
  }
  std::printf("  COUNTED %lld declarations deleted, %zu different ones noticed\n", static_cast<long long>(removed),
              noticed.size());
}
