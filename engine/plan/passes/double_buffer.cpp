// SPDX-License-Identifier: Apache-2.0
// Two copies of the weights: the plan of every other step is a copy of the plan in which the two copies are exchanged.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/plan/build_job.h"
#include "engine/plan/passes/passes.h"

namespace slipstream {
namespace {

/// Returns true if a work of the piece names `buffer`.
bool names(const Piece& piece, BufferId buffer) {
  return std::any_of(piece.works.begin(), piece.works.end(), [&](const Work& work) {
    const auto is_it = [&](const Slice& slice) { return slice.buffer == buffer; };
    return std::any_of(work.reads.begin(), work.reads.end(), is_it) ||
           std::any_of(work.writes.begin(), work.writes.end(), is_it);
  });
}

Plan swapped(const Job& job, Plan plan) {
  const BufferId one = job.ids.values, other = job.ids.values_next;
  for (ItemId i = 0; i < plan.size(); ++i) {
    Item& item = plan[i];
    exchange_weights(job, item);
    if (item.op != Op::compute) {
      item.rebinds = {{one, job.buffers.whole(other)}, {other, job.buffers.whole(one)}};
      continue;
    }
    // Pieces name parameters, which are views of the first copy.
    for (const ParameterSpec& parameter : job.model.parameters) {
      const BufferSpec& value = job.buffers[parameter.value];
      if (value.is_view && value.view.buffer == one && names(job.model.pieces[plan.spine[i].piece], parameter.value))
        item.rebinds.push_back({parameter.value, {other, value.view.begin_bytes, value.view.size_bytes}});
    }
  }
  return plan;
}

}  // namespace

void exchange_weights(const Job& job, Item& item) {
  for (std::vector<Slice>* slices : {&item.reads, &item.writes})
    for (Slice& slice : *slices)
      slice.buffer = slice.buffer == job.ids.values        ? job.ids.values_next
                     : slice.buffer == job.ids.values_next ? job.ids.values
                                                           : slice.buffer;
}

void swap_buffers(Job& job) {
  SLIP_ASSERT(job.options.double_buffer);
  std::erase_if(job.plans, [](const PlanRow& row) { return row.cadence.at == 1; });
  for (size_t r = 0, rows = job.plans.size(); r < rows; ++r) {
    PlanRow& row = job.plans[r];
    if (row.cadence.when == When::start) continue;
    row.cadence.every = 2;
    job.plans.push_back({row.kind, {row.cadence.when, 2, 1}, swapped(job, row.plan)});
  }
}

}  // namespace slipstream
