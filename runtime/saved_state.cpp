// SPDX-License-Identifier: Apache-2.0
// Maps ranges of the flat order to boxes of tensors.

#include "runtime/saved_state.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/finite.h"
#include "engine/data/hash.h"
#include "engine/plan/saved_state.h"
#include "engine/plan/tensor_boxes.h"

namespace slipstream::runtime {
namespace {

/// A part of a bucket that belongs to one tensor: `begin` in the flat order.
struct TensorRange {
  size_t parameter = 0, tensor = 0;
  int64_t begin = 0, elems = 0;
};

/// The tensors of elements [begin, begin + elems) of the flat order, without padding between them.
std::vector<TensorRange> tensors_in(const Job& job, int64_t begin, int64_t elems) {
  std::vector<TensorRange> ranges;
  for (size_t p = 0; p < job.model.parameters.size(); ++p)
    for (size_t t = 0; t < job.model.parameters[p].tensors.size(); ++t) {
      const NamedTensor& named = job.model.parameters[p].tensors[t];
      const int64_t from = job.layout.parameter_offsets[p] + named.begin_elems;
      const int64_t first = std::max(begin, from), last = std::min(begin + elems, from + named.elems());
      if (first < last) ranges.push_back({p, t, first, last - first});
    }
  return ranges;
}

/// Calls take(tensor, box, where its elements begin in the flat order) for a range of the flat order.
template <typename Take>
void for_boxes(const Job& job, const TensorRange& range, const Take& take) {
  const NamedTensor& named = job.model.parameters[range.parameter].tensors[range.tensor];
  const int64_t offset = job.layout.parameter_offsets[range.parameter] + named.begin_elems;
  for (const TensorBox& box : boxes_of(named, range.begin - offset, range.elems)) take(named, box, offset + box.held);
}

checkpoint::Box box_of(const NamedTensor& named, const TensorBox& box, const std::string& array) {
  return {.tensor = named.name,
          .array = array,
          .row = box.row,
          .column = box.column,
          .rows = box.rows,
          .columns = box.columns};
}

/// The names of the arrays of a bucket: kWeight, then the states.
std::vector<std::string> arrays_of(const ParameterGroup& group) {
  std::vector<std::string> names = {checkpoint::kWeight};
  for (const OptimizerState& state : group.optimizer->states) {
    SLIP_ASSERT(state.dtype == DType::f32);
    names.push_back(state.name);
  }
  return names;
}

constexpr std::pair<Slice BucketStorage::*, const char*> kResiduals[] = {
    {&BucketStorage::residual, "residual"}, {&BucketStorage::sum_residual, "sum_residual"}};

/// Calls take(member, bucket, box) for everything that this rank holds back.
template <typename Take>
void for_residuals(const Job& job, const Take& take) {
  for (size_t b = 0; b < job.storage.size(); ++b)
    for (const auto& [member, name] : kResiduals)
      if (const int64_t elems = (job.storage[b].*member).size_bytes / 4; elems > 0)
        take(member, b,
             checkpoint::Box{.tensor = fmt::format("rank{:04}.bucket{:04}", job.options.rank, b),
                             .array = name,
                             .row = 0,
                             .column = 0,
                             .rows = elems,
                             .columns = 1});
}

}  // namespace

std::vector<checkpoint::LogicalTensor> logical_tensors(const std::vector<std::shared_ptr<const Job>>& stages) {
  std::vector<checkpoint::LogicalTensor> tensors;
  for (const auto& [name, at] : tensors_of(stages)) {
    const Job& job = *stages[at.stage];
    const auto group = std::find_if(job.groups.begin(), job.groups.end(), [&, p = at.parameter](const auto& each) {
      return std::find(each.parameters.begin(), each.parameters.end(), p) != each.parameters.end();
    });
    SLIP_ASSERT(group != job.groups.end());
    tensors.push_back({.name = name,
                       .shape = job.model.parameters[at.parameter].tensors[at.tensor].whole_shape(),
                       .arrays = arrays_of(*group)});
  }
  return tensors;
}

std::string memory_layout_of(const std::vector<std::shared_ptr<const Job>>& stages) {
  std::string text;
  for (const auto& stage : stages) {
    const MeshSizes& sizes = stage->mesh.sizes();
    text += fmt::format("data {} ({} inside) tensor {} pipeline {} context {} order {} zero {} wire {}\n", sizes.data,
                        sizes.data_inner, sizes.tensor, sizes.pipeline, sizes.context, stage->options.mesh_order,
                        stage->zero_stage, name_of(stage->options.wire_dtype));
    for (size_t p = 0; p < stage->model.parameters.size(); ++p)
      text += fmt::format("{} {}\n", stage->model.parameters[p].name(), stage->layout.parameter_offsets[p]);
    for (const Bucket& bucket : stage->layout.buckets)
      text += fmt::format("{} {}\n", bucket.offset_elems, bucket.elems);
  }
  return data::xxh3_128_hex(text.data(), std::ssize(text));
}

bool has_residuals(const Job& job) {
  bool any = false;
  for_residuals(job, [&](auto, size_t, const checkpoint::Box&) { any = true; });
  return any;
}

std::vector<checkpoint::BoxToSave> boxes_to_save(Rank& rank, const ReadState& read) {
  const Job& job = rank.job();
  std::vector<checkpoint::BoxToSave> boxes;
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const SavedRange saved = saved_range(job, b);
    const std::vector<std::string> arrays = arrays_of(job.group_of(b));
    for (const TensorRange& range : tensors_in(job, saved.begin_elems, saved.elems)) {
      if (!is_saved(job, job.model.parameters[range.parameter])) continue;
      for_boxes(job, range, [&](const NamedTensor& named, const TensorBox& box, int64_t begin) {
        for (size_t array = 0; array < arrays.size(); ++array)
          boxes.push_back({.box = box_of(named, box, arrays[array]),
                           .read = [read, b, array, begin, name = named.name](std::span<float> out) {
                             read(b, array, begin, out);
                             if (array == 0 && !all_finite(out))
                               throw NumericsError("{} has weights that are not finite", name);
                           }});
      });
    }
  }
  for_residuals(job, [&](Slice BucketStorage::*member, size_t bucket, const checkpoint::Box& box) {
    boxes.push_back({.box = box, .read = [&rank, member, bucket](std::span<float> out) {
                       rank.read_residual(member, bucket, out);
                     }});
  });
  return boxes;
}

void restore_state(Rank& rank, const checkpoint::StateReader& from, bool same_layout) {
  const Job& job = rank.job();
  std::vector<float> values;
  const auto load = [&](const checkpoint::Box& box) -> std::span<const float> {
    values.resize(static_cast<size_t>(box.elems()));
    from.read(box, values);
    return values;
  };
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const BucketStorage& storage = job.storage[b];
    const Bucket& bucket = job.layout.buckets[b];
    const std::vector<std::string> arrays = arrays_of(job.group_of(b));
    // A resident bucket has the weights of all ranks' shards.
    const bool resident = storage.values.size_bytes > 0;
    for (const TensorRange& range : resident ? tensors_in(job, bucket.offset_elems, bucket.elems)
                                             : tensors_in(job, storage.shard_offset_elems, storage.shard_elems))
      for_boxes(job, range, [&](const NamedTensor& named, const TensorBox& box, int64_t) {
        rank.write(range.parameter, range.tensor, box.held, load(box_of(named, box, arrays[0])));
      });
    for (const TensorRange& range : tensors_in(job, storage.shard_offset_elems, storage.shard_elems))
      for_boxes(job, range, [&](const NamedTensor& named, const TensorBox& box, int64_t begin) {
        for (size_t array = 1; array < arrays.size(); ++array)
          rank.write_state(b, array, begin, load(box_of(named, box, arrays[array])));
      });
  }
  if (!same_layout) return;
  for_residuals(job, [&](Slice BucketStorage::*member, size_t bucket, const checkpoint::Box& box) {
    rank.write_residual(member, bucket, load(box));
  });
}

}  // namespace slipstream::runtime
