// SPDX-License-Identifier: Apache-2.0
// Memory and bytes on the wire of ZeRO against closed forms of the paper (Rajbhandari et al. 2020), to the byte but for padding.

#include <cstdlib>

#include "comm/link.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

/// Wide enough that padding to ranks x 64 bytes is small.
Layout wide(int stage, int ranks, int micro_batches, DType dtype = DType::f32) {
  Layout layout{.name = "llama", .model = tiny_llama(), .ranks = ranks, .micro_batch = 1, .micro_batches = micro_batches, .zero_stage = stage};
  layout.model.layers = 6, layout.model.width = 64, layout.model.ffn_width = 192;
  layout.model.dtype = dtype;
  layout.bucket_bytes = 64 << 10;
  return layout;
}

struct Elems {
  int64_t layers = 0, others = 0;  // padded, in the buckets of layers and of embeddings, norm and head
};
Elems elems_of(const Job& job) {
  Elems elems;
  for (const Bucket& bucket : job.layout.buckets) (bucket.layer >= 0 ? elems.layers : elems.others) += bucket.elems;
  return elems;
}

int64_t sent(const Job& job, Op op) {
  int64_t bytes = 0;
  for (const Task& task : job.train.tasks)
    if (task.op == op && task.bucket >= 0)
      bytes += comm::wire_bytes(op, task.algorithm, job.mesh.group_size(job.channels[task.channel].axis), task.elems, task.dtype);
  return bytes;
}

}  // namespace

TEST_CASE("states of a rank: what is whole, and an n-th of what is shared", "[zero]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int stage : {0, 1, 2, 3})
      for (int ranks : {2, 4, 8}) {
        CAPTURE(stage, ranks);
        const auto job = make_job(wide(stage, ranks, 1, dtype), ranks - 1);
        const int64_t value = size_of(dtype), optimizer = dtype == DType::f32 ? 8 : 12;
        const Elems padded = elems_of(*job);
        const int64_t layers = padded.layers, others = padded.others, all = job->layout.flat_elems;
        CHECK(layers + others == (stage >= 2 ? all : others));
        // Embeddings and head stay whole: only their optimizer states are shared.
        const int64_t parameters = stage < 3 ? value * all : value * others + value * layers / ranks;
        const int64_t gradients = stage < 2 ? 4 * all : 4 * others + 4 * layers / ranks;
        const int64_t states = stage < 1 ? optimizer * all : optimizer * all / ranks;
        CHECK(job->buffers.bytes(Owner::parameters) == parameters);
        CHECK(job->buffers.bytes(Owner::gradients) == gradients);
        const int64_t scalars = job->buffers.bytes(Owner::optimizer) - states;
        CHECK(scalars >= 0);
        CHECK(scalars <= 4096);  // norms, learning rate
        // Padding: what the formula counts is the model, within 2 %.
        CHECK(std::abs(static_cast<double>(all) / static_cast<double>(job->model.parameter_elems()) - 1) < 0.02);
      }
}

TEST_CASE("bytes on the wire: 2 of every gradient, or 1 and the parameter, or 1 and twice the layer", "[zero]") {
  for (int ranks : {2, 4})
    for (int micro_batches : {1, 2, 3})
      for (int stage : {0, 1, 2, 3})
        for (int slots : {1, 2, 6}) {
          if (stage < 3 && slots != 2) continue;
          CAPTURE(ranks, micro_batches, stage, slots);
          Layout layout = wide(stage, ranks, micro_batches);
          layout.prefetch_depth = slots - 1;
          const auto job = make_job(layout, 0);
          const Elems elems = elems_of(*job);
          const int64_t all = job->layout.flat_elems, n = ranks, m = micro_batches, L = layout.model.layers;
          const auto wire = [&](int64_t e) { return 4 * e * (n - 1) / n; };
          CHECK(sent(*job, Op::all_reduce) == (stage == 0 ? 2 * wire(all) : 0));
          // Stages 2 and 3 reduce the layers in every micro-batch, the rest once.
          CHECK(sent(*job, Op::reduce_scatter) == (stage == 0 ? 0 : stage == 1 ? wire(all) : m * wire(elems.layers) + wire(elems.others)));
          // Stage 3: forward and backward of every micro-batch gather a layer, but those that are still in a slot.
          const int64_t gathers = L + (L - slots) + (m - 1) * 2 * (L - slots);
          CHECK(sent(*job, Op::all_gather) ==
                (stage == 0 ? 0 : stage < 3 ? wire(all) : gathers * wire(elems.layers / L) + wire(elems.others)));
        }
}

TEST_CASE("hybrid sharding sends shards across, and gathers inside only", "[zero]") {
  Layout layout = wide(3, 4, 2);
  layout.shard_size = 2;
  const auto job = make_job(layout, 3);
  const Elems elems = elems_of(*job);
  // An all-reduce of half of everything between two ranks, once in a step.
  CHECK(sent(*job, Op::all_reduce) == 2 * 4 * (elems.layers + elems.others) / 2 * (2 - 1) / 2);
  for (const Task& task : job->train.tasks)
    if (task.op == Op::all_gather) CHECK(job->mesh.group_size(job->channels[task.channel].axis) == 2);
}
