// SPDX-License-Identifier: Apache-2.0
// The gradient of a tied table whose two copies are on different stages. The first stage adds both shares, so that both
// stages get the same bits.

#include "engine/plan/memory.h"
#include "engine/plan/passes/passes.h"
#include "engine/plan/transfer_name.h"

namespace slipstream {

void tied_copies_pass(const Job& job, Reduced& reduced, Plan& plan) {
  const StagePlacement& placement = job.schedule.placement;
  const int stages = job.schedule.shape.stages, last = placement.stage_of(placement.parts() - 1);
  for (size_t b = 0; b < job.storage.size(); ++b) {
    if (!holds_copy(job, b)) continue;
    const Slice gradient = job.storage[b].gradient;
    const bool first = job.stage() == 0;
    Task transfer;
    transfer.channel = job.channel(Role::tied);
    transfer.elems = job.storage[b].shard_elems;
    Task send = transfer, recv = transfer;
    send.op = Op::send;
    send.reads = {gradient};
    recv.op = Op::recv;
    send.peer = recv.peer = static_cast<int16_t>(first ? last - stages : stages - last);
    if (!first) {
      send.name = transfer_name(true, "tied_head");
      send.after = reduced.buckets[b];
      recv.name = transfer_name(false, "tied_sum");
      recv.writes = {gradient};
      recv.after = {append_task(plan, send)};
      reduced.buckets[b] = {append_task(plan, recv)};
      continue;
    }
    const Slice share{job.ids.tied_share, 0, gradient.size_bytes};
    recv.name = transfer_name(false, "tied_head");
    recv.writes = {share};
    Task add = transfer;
    add.name = "add.tied_head";
    add.op = Op::add;
    add.reads = {share, gradient};
    add.writes = {gradient};
    add.cost = {transfer.elems, 12 * transfer.elems};
    add.after = reduced.buckets[b];
    add.after.push_back(append_task(plan, recv));
    const Point added = append_task(plan, add);
    send.name = transfer_name(true, "tied_sum");
    send.after = {added};
    append_task(plan, send);
    reduced.buckets[b] = {added};
  }
}

}  // namespace slipstream
