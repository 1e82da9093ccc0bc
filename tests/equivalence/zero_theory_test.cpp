// SPDX-License-Identifier: Apache-2.0
// Memory and bytes on the wire of ZeRO against closed forms of the paper (Rajbhandari et al. 2020), to the byte except
// for padding.

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "comm/link.h"
#include "comm/rehearse/seams.h"
#include "engine/base/units.h"
#include "engine/plan/passes/residency.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

/// Wide enough that padding to ranks x 64 bytes is small, with a vocabulary that needs none.
Layout wide(int stage, int ranks, int micro_batches, DType dtype = DType::f32, bool tied = false) {
  Layout layout{.name = "llama",
                .model = tiny_llama(),
                .ranks = ranks,
                .micro_batch = 1,
                .micro_batches = micro_batches,
                .zero_stage = stage};
  layout.model.layers = 6, layout.model.width = 64, layout.model.ffn_width = 192, layout.model.vocab = 128;
  layout.model.dtype = dtype, layout.model.tie_embeddings = tied, layout.model.split_tied_embedding = false;
  layout.bucket_bytes = 64 << 10;
  return layout;
}

struct Elems {
  int64_t layers = 0, ends = 0, whole = 0;  // padded sizes of the buckets of layers, of embedding and of norm and head
                                            // if they share no table, and of the three if they do
};
Elems elems_of(const Job& job) {
  Elems elems;
  for (const Bucket& bucket : job.layout.buckets)
    (!bucket.unit                                           ? elems.whole
     : *bucket.unit >= 0 && *bucket.unit < job.model.layers ? elems.layers
                                                            : elems.ends) += bucket.elems;
  return elems;
}

int64_t sent(const Job& job, Op op) {
  int64_t bytes = 0;
  for (const Task& task : job.train().tasks)
    if (task.op == op && task.bucket >= 0)
      bytes += comm::wire_bytes(op, task.algorithm, job.mesh.group_size(job.channels[task.channel].axis), task.elems,
                                task.dtype);
  return bytes;
}

}  // namespace

TEST_CASE("states of a rank: whole ones in full, and 1/n of sharded ones", "[zero]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int stage : {0, 1, 2, 3})
      for (int ranks : {2, 4, 8})
        for (bool tied : {false, true}) {
          CAPTURE(stage, ranks, tied);
          const auto job = make_job(wide(stage, ranks, 1, dtype, tied), ranks - 1);
          const int64_t value = size_of(dtype), optimizer = dtype == DType::f32 ? 8 : 12;
          const Elems padded = elems_of(*job);
          const int64_t passing = padded.layers + padded.ends, whole = padded.whole, all = job->layout.flat_elems;
          CHECK(passing + whole == all);
          // A table that embedding and head share stays whole: only its optimizer states are shared.
          CHECK((passing == 0) == (stage < 2));
          CHECK((whole == 0) == (stage >= 2 && !tied));
          const auto placed = [](int64_t size_bytes) { return round_up(size_bytes, 64); };
          const int64_t parameters =
              placed(stage < 3 ? value * all : value * whole) + placed(stage < 3 ? 0 : value * passing / ranks);
          const int64_t gradients =
              placed(stage < 2 ? 4 * all : 4 * whole) + placed(stage < 2 ? 0 : 4 * passing / ranks);
          // One slot for the larger end, in addition to those of layers.
          CHECK((job->ids.end_gradients != 0) == (padded.ends > 0));
          if (padded.ends > 0)
            CHECK(job->buffers[job->ids.end_gradients].size_bytes < 4 * (padded.ends / 2 + padded.layers / 6));
          if (stage == 3 && padded.ends > 0)
            CHECK(job->buffers[job->ids.end_values].size_bytes * 4 ==
                  job->buffers[job->ids.end_gradients].size_bytes * value);
          const int64_t states = stage < 1 ? optimizer * all : optimizer * all / ranks;
          CHECK(job->buffers.bytes(Owner::parameters) == parameters);
          CHECK(job->buffers.bytes(Owner::gradients) == gradients);
          const int64_t scalars = job->buffers.bytes(Owner::optimizer) - states;
          CHECK(scalars >= 0);
          CHECK(scalars <= 4096);  // norms, learning rate
          // Apart from padding, which is at most 2 %, the formula counts the elements of the model.
          CHECK(std::abs(static_cast<double>(all) / static_cast<double>(job->model.parameter_elems()) - 1) < 0.02);
        }
}

TEST_CASE("bytes on the wire: 2 of every gradient, or 1 and the parameter, or 1 and twice the layer", "[zero]") {
  for (int ranks : {2, 4})
    for (int micro_batches : {1, 2, 3})
      for (int stage : {0, 1, 2, 3})
        for (int slots : {1, 2, 6})
          for (bool tied : {false, true}) {
            if (stage < 3 && slots != 2) continue;
            CAPTURE(ranks, micro_batches, stage, slots, tied);
            Layout layout = wide(stage, ranks, micro_batches, DType::f32, tied);
            layout.prefetch_depth = slots - 1;
            const auto job = make_job(layout, 0);
            const Elems elems = elems_of(*job);
            const int64_t all = job->layout.flat_elems, n = ranks, m = micro_batches, L = layout.model.layers;
            const auto wire = [&](int64_t e) { return 4 * e * (n - 1) / n; };
            CHECK(sent(*job, Op::all_reduce) == (stage == 0 ? 2 * wire(all) : 0));
            // Stages 2 and 3 reduce gradients that pass through slots in every micro-batch, the rest once.
            CHECK(sent(*job, Op::reduce_scatter) == (stage == 0 ? 0
                                                     : stage == 1
                                                         ? wire(all)
                                                         : m * wire(elems.layers + elems.ends) + wire(elems.whole)));
            // Stage 3: forward and backward of every micro-batch gather a layer, except those that are still in a slot.
            // The head's stays for its backward pass, and that of the embedding does not read the table.
            const int64_t gathers = L + (L - slots) + (m - 1) * 2 * (L - slots);
            CHECK(sent(*job, Op::all_gather) ==
                  (stage == 0  ? 0
                   : stage < 3 ? wire(all)
                               : gathers * wire(elems.layers / L) + m * wire(elems.ends) + wire(elems.whole)));
          }
}

TEST_CASE("hybrid sharding sends shards across, and gathers inside only", "[zero]") {
  Layout layout = wide(3, 4, 2);
  layout.shard_size = 2;
  const auto job = make_job(layout, 3);
  const Elems elems = elems_of(*job);
  // An all-reduce of half of everything between two ranks, once in a step.
  CHECK(sent(*job, Op::all_reduce) == 2 * 4 * (elems.layers + elems.ends + elems.whole) / 2 * (2 - 1) / 2);
  for (const Task& task : job->train().tasks)
    if (task.op == Op::all_gather) CHECK(job->mesh.group_size(job->channels[task.channel].axis) == 2);
}

TEST_CASE("a slot is released by its last reader only, and every lease is counted", "[zero]") {
  for (int depth : {0, 1, 2})
    for (int micro_batches : {1, 2}) {
      CAPTURE(depth, micro_batches);
      Layout layout = wide(3, 2, micro_batches);
      layout.prefetch_depth = depth;
      const auto job = make_job(layout, 0);
      const auto touches = [](const std::vector<Slice>& slices, const Slice& slot) {
        return std::any_of(slices.begin(), slices.end(), [&](const Slice& s) {
          return s.buffer == slot.buffer && s.begin_bytes < slot.end_bytes() && slot.begin_bytes < s.end_bytes();
        });
      };
      // Gathers in the order of first use; their waits for compute, or for an earlier gather on the same channel
      // (pruned then).
      std::vector<const Task*> gathers;
      for (const Task& task : job->train().tasks)
        if (task.op == Op::all_gather && task.before) gathers.push_back(&task);
      std::sort(gathers.begin(), gathers.end(),
                [](const Task* a, const Task* b) { return a->before->item < b->before->item; });
      std::optional<ItemId> waited;
      int released = 0;
      for (const Task* gather : gathers) {
        for (const Point& point : gather->after)
          if (job->train().is_spine(point.item)) waited = std::max(waited.value_or(0), point.item);
        std::optional<ItemId> last_reader;
        for (ItemId i = 0; i < gather->before->item; ++i)
          if (touches(job->train().spine[i].reads, gather->writes[0])) last_reader = i;
        if (!last_reader) continue;
        ++released;
        REQUIRE(waited.has_value());
        CHECK(*waited >= *last_reader);
        // Not later than needed either: the awaited item reads some slot.
        const std::vector<Slice>& read = job->train().spine[*waited].reads;
        CHECK((touches(read, job->buffers.whole(job->ids.value_slots)) ||
               touches(read, job->buffers.whole(job->ids.end_values))));
      }
      CHECK(released >= static_cast<int>(gathers.size()) - depth - 2);  // slots of layers, and the one of the ends
      CHECK(released > 0);
    }
  // The type: a use extends the tenancy, the least recently used slot is taken, and the new tenant gets the item to
  // wait for.
  Slots slots(2);
  CHECK(slots.lease(7, 1).moved_in);
  CHECK(slots.lease(8, 2).slot == 1);
  CHECK(!slots.lease(7, 3).moved_in);
  const Slots::Lease lease = slots.lease(9, 4);
  REQUIRE(lease.previous);
  CHECK((lease.slot == 1 && lease.previous->unit == 8 && lease.previous->last_use == 2));
  CHECK(slots.lease(8, 5).previous->last_use == 3);
}

TEST_CASE("a second buffer for whole gradients has no use: no backward item waits for the previous step",
          "[zero][double_buffer]") {
  // Backward writes gradients after a forward pass that has waited for every update, and updates are the last readers
  // of gradients. The head's product is the first item of backward and reads its updated weights, as forward does.
  for (int stage : {0, 1})
    for (int micro_batches : {1, 2})
      for (float max_norm : {0.0f, 0.5f}) {
        CAPTURE(stage, micro_batches, max_norm);
        const auto job = make_job(
            with(wide(stage, 3, micro_batches), [&](Layout& l) { l.max_norm = max_norm, l.update_on_spine = false; }),
            1);
        const std::vector<const Plan*> runs(3, &job->train());
        int forward = 0, backward = 0;
        for (const SeamWait& wait : comm::link_all(runs, job->channels).back()) {
          if (!job->train().is_spine(wait.to) || job->train()[wait.to].op != Op::compute) continue;
          const uint32_t piece = job->train().spine[wait.to].piece;
          const bool is_backward =
              std::find(job->model.backward.begin(), job->model.backward.end(), piece) != job->model.backward.end() &&
              job->model.pieces[piece].name != "head";
          ++(is_backward ? backward : forward);
        }
        CHECK(backward == 0);
        CHECK(forward > 0);  // the control: readers of updated weights do wait
      }
}

TEST_CASE("a second copy of the weights has no use in stage 3: no update waits for a reader", "[zero][double_buffer]") {
  // What updates write are shards; layers read slots, and the last gather of a shard comes before the layer's gradient.
  const auto job = make_job(with(wide(3, 3, 2), [](Layout& l) { l.max_norm = 0, l.update_on_spine = false; }), 1);
  int updates = 0;
  for (const Task& task : job->train().tasks) {
    if (task.op != Op::update) continue;
    ++updates;
    INFO(task.name);
    CHECK(!task.after.empty());
    for (const Point& point : task.after) {
      INFO(job->train()[point.item].name);
      CHECK(!job->train().is_spine(point.item));
      CHECK(job->train()[point.item].op != Op::all_gather);
    }
  }
  CHECK(updates == static_cast<int>(job->layout.buckets.size()));
  CHECK(updates >= job->model.layers + 2);
}
