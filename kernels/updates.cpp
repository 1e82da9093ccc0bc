// SPDX-License-Identifier: Apache-2.0
// One row per optimizer.

#include "kernels/updates.h"

#include <iterator>

#include "engine/base/check.h"
#include "kernels/adamw/adamw_update.h"
#include "kernels/muon/muon.h"

namespace slipstream::kernels {
namespace {

using UpdateWork = std::function<void(LaunchContext&)> (*)(const Job&, const Item&, const UpdateOptions&);

/// In the order of optimizers().
constexpr UpdateWork kUpdates[] = {adamw_update, muon_update};

}  // namespace

std::function<void(LaunchContext&)> update_work(const Job& job, const Item& item, const UpdateOptions& update) {
  SLIP_ASSERT(std::size(kUpdates) == optimizers().size());
  const OptimizerSpec& optimizer = *job.groups[static_cast<size_t>(item.group)].optimizer;
  return kUpdates[static_cast<size_t>(optimizer.name)](job, item, update);
}

}  // namespace slipstream::kernels
