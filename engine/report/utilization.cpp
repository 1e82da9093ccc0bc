// SPDX-License-Identifier: Apache-2.0
// Counts the compute items of the spines.

#include "engine/report/utilization.h"

#include "engine/base/check.h"

namespace slipstream {

double model_flops(const std::vector<std::shared_ptr<const Job>>& stages) {
  SLIP_ASSERT(!stages.empty());
  double flops = 0;
  for (const auto& stage : stages) {
    for (const SpineItem& item : stage->train().spine)
      if (item.op == Op::compute) flops += static_cast<double>(item.cost.flops);
    flops -= static_cast<double>(stage->recomputed.paid.flops);
  }
  // Every rank of a stage does the same amount of work.
  return flops * stages.front()->mesh.world() / static_cast<double>(stages.size());
}

double peak_flops_per_second(const Machine& machine, DType dtype) {
  return dtype == DType::bf16 ? machine.flops_per_second_bf16 : machine.flops_per_second_f32;
}

}  // namespace slipstream
