// SPDX-License-Identifier: Apache-2.0
// One function per op of a plan. The functions bind plans to kernels and communicators.

#include "trainer/runtime/rank/works.h"

#include <algorithm>
#include <limits>

#include "engine/base/check.h"
#include "engine/checkpoint/kept_part.h"
#include "kernels/cast/cast.h"
#include "kernels/common/dropout_mask.h"
#include "kernels/embedding/embedding.h"
#include "kernels/step_scalars/step_scalars.h"
#include "kernels/sum_squares/sum_squares.h"
#include "kernels/updates.h"
#include "kernels/wire/wire.h"

namespace slipstream::runtime {
namespace {

using Fn = std::function<void(LaunchContext&)>;

/// Computes one sum per gradient part, over this rank's elements.
Fn sum_squares_work(const Job& job, const Item& item) {
  const auto bucket = static_cast<size_t>(item.bucket);
  const Bucket& b = job.layout.buckets[bucket];
  const BucketStorage& storage = job.storage[bucket];
  std::vector<kernels::SumSquaresPart> parts;
  for (uint32_t p = b.first_part; p < b.first_part + b.part_count; ++p) {
    const PlacedPart& placed = job.layout.parts[p];
    if (placed.norm_index < 0) continue;  // another stage counts it
    const int64_t begin = std::max(placed.offset_elems, storage.shard_offset_elems);
    const int64_t end =
        std::min(placed.offset_elems + placed.part.elems, storage.shard_offset_elems + storage.shard_elems);
    const bool counts =  // otherwise another rank counts it
        job.counts_squares_of(job.group_of(bucket), job.model.parameters[placed.part.parameter], job.options.rank);
    const int64_t elems = counts ? std::max<int64_t>(0, end - begin) : 0;
    parts.push_back({elems > 0 ? begin - storage.shard_offset_elems : 0, elems, placed.norm_index});
  }
  return [parts, gradient = storage.gradient, results = Slice{job.ids.norm_parts, 0, 8}](LaunchContext& c) {
    kernels::sum_squares(c, {.x = c.as<float>(gradient),
                             .parts = parts.data(),
                             .part_count = static_cast<int64_t>(parts.size()),
                             .results = c.as<double>(results)});
  };
}

Fn clip_work(const Job& job, const Item& item, const UpdateOptions& update) {
  SLIP_ASSERT(item.writes.size() > 1);  // the norm, then a factor for every group that waits for it
  const float max_norm =
      update.grad_clip > 0 ? static_cast<float>(update.grad_clip) : std::numeric_limits<float>::infinity();
  return [ids = job.ids, parts = job.norm_parts, max_norm,
          factors = std::vector<Slice>(item.writes.begin() + 1, item.writes.end()),
          verdict = std::vector<Slice>(item.reads.begin() + 1, item.reads.end())](LaunchContext& c) {
    kernels::Clip args{.sums = c.as<double>({ids.norm_sums, 0, 8}),
                       .count = parts,
                       .max_norm = max_norm,
                       .norm = c.as<double>({ids.norm, 0, 8}),
                       .factor = c.as<float>(factors[0])};
    if (!verdict.empty()) {  // in a plan that skips: the loss and the limits
      args.loss = c.as<double>(verdict[0]);
      args.limits = c.as<float>(verdict[1]);
    }
    kernels::clip(c, args);
    for (size_t i = 1; i < factors.size(); ++i)
      kernels::copy(c, {.from = c.at(factors[0]), .to = c.at(factors[i]), .size_bytes = sizeof(float)});
  };
}

Fn add_rows_work(const Job& job, const Item& item) {
  const TiedEmbedding& tied = job.model.tied;
  const kernels::EmbeddingRowsAdd shape{.ranks = job.mesh.group_size(job.tied_axis()),
                                        .capacity = tied.capacity,
                                        .width = tied.width,
                                        .vocab = tied.vocab};
  return [=, row_ids = item.reads[0], rows = item.reads[1], table = item.writes[0]](LaunchContext& c) {
    kernels::EmbeddingRowsAdd args = shape;
    args.row_ids = c.as<int32_t>(row_ids);
    args.rows = c.as<float>(rows);
    args.dtable = c.as<float>(table);
    kernels::embedding_rows_add(c, args);
  };
}

/// The two halves of staging a batch: the host's half, and the stream's.
struct UploadWork {
  Fn prepare, run;
};
UploadWork load_work(const Job& job, const LoadBatch& load) {
  const int64_t stride = job.buffers.stride_bytes(job.ids.batch_next);
  const auto upload = [ids = job.ids, scalars = job.buffers.whole(job.ids.scalars_next), stride, load,
                       staging = kernels::make_upload_staging(),
                       batch_bytes = stride * job.buffers.instances(job.ids.batch_next)](LaunchContext& c) {
    return kernels::Upload{
        .parts = {{{c.at({ids.batch_next, 0, 1}), batch_bytes}, {c.at(scalars), scalars.size_bytes}}},
        .fill =
            [&](const auto& to) {
              load({.batch = to[0],
                    .stride_bytes = stride,
                    .scalars = {reinterpret_cast<float*>(to[1]), static_cast<size_t>(scalars.size_bytes) / 4}});
            },
        .staging = staging};
  };
  return {[upload](LaunchContext& c) { kernels::prepare_upload(c, upload(c)); },
          [upload](LaunchContext& c) { kernels::upload(c, upload(c)); }};
}

Fn report_work(const Item& item, std::byte* reports) {
  static_assert(kStepPeriod % kReportSlots == 0);
  return [loss = item.reads[0], norm = item.reads[1], slots = item.writes[0], reports](LaunchContext& c) {
    constexpr int64_t kReportBytes = 8 * (1 + kNormDoubles);
    const int64_t slot = kReportBytes * (c.frame->step % kReportSlots);
    double* on_device = reinterpret_cast<double*>(c.at(slots) + slot);
    kernels::report(c, {.loss = c.as<double>(loss), .norm = c.as<double>(norm), .slot = on_device});
    kernels::copy(c, {.from = on_device, .to = reports + slot, .size_bytes = kReportBytes});
  };
}

/// Converts between floats and their encoded form, with task.elems elements per part, and as many parts as the encoded
/// side has.
Fn coding_work(const Task& task) {
  const Format wire = task.format;
  const int64_t elems = task.elems;
  const Slice from = task.reads[0], to = task.writes[0];
  const int64_t parts = (task.op == Op::encode ? to : from).size_bytes / encoded_bytes(elems, wire);
  if (task.op == Op::encode) {
    const bool keeps = task.reads.size() > 1;
    return [=, residual = task.reads.back()](LaunchContext& c) {
      kernels::encode(c, {.from = c.as<float>(from),
                          .residual = keeps ? c.as<float>(residual) : nullptr,
                          .to = c.at(to),
                          .elems = elems,
                          .parts = parts,
                          .wire = wire});
    };
  }
  if (task.op == Op::sum_parts)
    return [=](LaunchContext& c) {
      kernels::sum_parts(c, {.from = c.at(from), .to = c.as<float>(to), .elems = elems, .parts = parts, .wire = wire});
    };
  const DType values = to.size_bytes == 4 * parts * elems ? DType::f32 : DType::bf16;
  return [=](LaunchContext& c) {
    kernels::decode(
        c, {.from = c.at(from), .to = c.at(to), .elems = elems, .parts = parts, .wire = wire, .to_dtype = values});
  };
}

Fn local_work(const Job& job, const Item& item, const UpdateOptions& update, std::byte* reports) {
  switch (item.op) {
    case Op::update:
      return kernels::update_work(job, item, update);
    case Op::sum_squares:
      return sum_squares_work(job, item);
    case Op::clip:
      return clip_work(job, item, update);
    case Op::add_rows:
      return add_rows_work(job, item);
    case Op::add:
      return [x = item.reads[0], y = item.writes[0]](LaunchContext& c) {
        kernels::add(c, {.x = c.as<float>(x), .y = c.as<float>(y), .elems = y.size_bytes / 4});
      };
    case Op::copy:
    case Op::snapshot:
      return [from = item.reads[0], to = item.writes[0]](LaunchContext& c) {
        kernels::copy(c, {.from = c.at(from), .to = c.at(to), .size_bytes = to.size_bytes});
      };
    case Op::seal:
      return [arrays = item.reads[0], header = item.writes[0]](LaunchContext& c) {
        // The step with which this is issued follows the step whose state it seals.
        checkpoint::seal_slot(c.at(header), int64_t{c.frame->step} - 1,
                              {c.at(arrays), static_cast<size_t>(arrays.size_bytes)});
      };
    case Op::report:
      return report_work(item, reports);
    default:
      break;
  }
  throw PlanError("[plan] item {} has op {}, for which this device has no work.", item.name, name_of(item.op));
}

Work communication_work(const Task& task, comm::Communicator& communicator) {
  const comm::Transfer transfer{.from = task.reads.empty() ? Slice{} : task.reads[0],
                                .to = task.writes.empty() ? Slice{} : task.writes[0],
                                .elems = task.elems,
                                .dtype = task.dtype,
                                .algorithm = task.algorithm};
  const int n = communicator.size();
  const auto at = [&](int offset) { return ((communicator.rank() + offset) % n + n) % n; };
  switch (task.op) {
    case Op::all_reduce:
      return communicator.all_reduce(transfer);
    case Op::reduce_scatter:
      return communicator.reduce_scatter(transfer);
    case Op::all_gather:
      return communicator.all_gather(transfer);
    case Op::all_to_all:
      return communicator.all_to_all(transfer);
    case Op::all_to_all_v:
      return communicator.all_to_all_v({.from = transfer.from,
                                        .to = transfer.to,
                                        .counts = task.reads.at(1),
                                        .route = task.route,
                                        .dtype = task.dtype});
    case Op::send:
      return communicator.send(transfer, at(task.peer));
    case Op::recv:
      return communicator.recv(transfer, at(task.peer));
    case Op::exchange:
      return communicator.exchange(transfer, at(task.peer), at(-task.peer));
    default:
      break;
  }
  throw PlanError("[plan] task {} has op {}, which is not a communication op.", task.name, name_of(task.op));
}

}  // namespace

void number_sequences(const ModelSpec& model, std::byte* batch, int64_t step, int64_t first) {
  if (!model.numbers_sequences) return;
  auto* numbers =
      reinterpret_cast<kernels::DropoutSample*>(batch + (model.documents ? 3 : 2) * 4 * model.batch * model.tokens);
  for (int64_t row = 0; row < model.batch; ++row)
    numbers[row] = {static_cast<uint32_t>(step), static_cast<uint32_t>(first + row)};
}

BoundWorks bind_works(const Job& job, const Plan& plan, const UpdateOptions& update,
                      const std::vector<comm::Communicator*>& communicators, const LoadBatch& load,
                      std::byte* reports) {
  BoundWorks works(plan.size());
  for (ItemId i = 0; i < plan.size(); ++i) {
    const Item& item = plan[i];
    if (item.op == Op::compute) continue;
    if (is_communication(item.op)) {
      comm::Communicator* communicator = communicators[item.channel];
      if (!communicator)
        throw PlanError("[plan] channel {} of task {} has no communicator.", job.channels[item.channel].name,
                        item.name);
      works[i] = communication_work(plan.task(i), *communicator);
      works[i].name = item.name;
    } else if (item.op == Op::encode || item.op == Op::decode || item.op == Op::sum_parts) {
      works[i] = {item.name, item.cost, item.reads, item.writes, coding_work(plan.task(i))};
    } else if (item.op == Op::load) {
      UploadWork upload = load_work(job, load);
      works[i] = {item.name, item.cost, item.reads, item.writes, std::move(upload.run), std::move(upload.prepare)};
    } else {
      works[i] = {item.name, item.cost, item.reads, item.writes, local_work(job, item, update, reports)};
    }
  }
  return works;
}

}  // namespace slipstream::runtime
