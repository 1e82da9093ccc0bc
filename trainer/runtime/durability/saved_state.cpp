// SPDX-License-Identifier: Apache-2.0
// Maps ranges of the flat order to boxes of tensors.

#include "trainer/runtime/durability/saved_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/finite.h"
#include "engine/base/hash.h"
#include "engine/plan/saved_state.h"
#include "engine/plan/tensor_boxes.h"

namespace slipstream::runtime {
namespace {

/// A part of a bucket that belongs to one tensor. `begin` is in the flat order.
struct TensorRange {
  size_t parameter = 0, tensor = 0;
  int64_t begin = 0, elems = 0;
};

/// Returns the tensors of the elements [begin, begin + elems) of the flat order, without the padding between them.
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

/// Calls take(tensor, box, the position of its elements in the flat order) for a range of the flat order.
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

/// Returns the names of the arrays of a bucket: kWeight, then the states.
std::vector<std::string> arrays_of(const ParameterGroup& group) {
  std::vector<std::string> names = {checkpoint::kWeight};
  for (const OptimizerState& state : group.optimizer->states) {
    SLIP_ASSERT(state.dtype == DType::f32);
    names.push_back(state.name);
  }
  return names;
}

std::string residual_name(int rank, size_t bucket) { return fmt::format("rank{:04}.bucket{:04}", rank, bucket); }

checkpoint::Box box_of_residual(const Job& job, size_t bucket, const SavedArray& array) {
  return {.tensor = residual_name(job.options.rank, bucket),
          .array = array.name,
          .row = 0,
          .column = 0,
          .rows = array.range.elems,
          .columns = 1};
}

/// The position at which a box of the saved arrays begins: element `begin` of saved_arrays(job, bucket)[array].
struct SavedPlace {
  size_t bucket = 0, array = 0;
  int64_t begin = 0;
  bool is_residual = false;
};

/// Calls take(box, place) for all boxes that this rank saves.
template <typename Take>
void for_saved(const Job& job, const Take& take) {
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const std::vector<std::string> names = arrays_of(job.group_of(b));
    const std::vector<SavedArray> arrays = saved_arrays(job, b);
    for (size_t array = 0; array < arrays.size(); ++array) {
      const SavedRange range = arrays[array].range;
      if (arrays[array].is_residual) {
        if (range.elems > 0) take(box_of_residual(job, b, arrays[array]), SavedPlace{b, array, 0, true});
        continue;
      }
      for (const TensorRange& part : tensors_in(job, range.begin_elems, range.elems)) {
        if (!is_saved(job, job.model.parameters[part.parameter], job.options.rank)) continue;
        for_boxes(job, part, [&](const NamedTensor& named, const TensorBox& box, int64_t begin) {
          take(box_of(named, box, names[array]), SavedPlace{b, array, begin - range.begin_elems, false});
        });
      }
    }
  }
}

/// The position at which a rank writes a box: element `begin` of a tensor, or of the flat order of `slice`, whose first
/// element is `first`.
struct WantedPlace {
  size_t parameter = 0, tensor = 0;
  Slice slice;  // empty: weights
  int64_t first = 0, begin = 0;
  bool is_residual = false;
};

/// Calls take(box, place) for all boxes that this rank reads. With `same_layout`, they include residuals.
template <typename Take>
void for_wanted(const Job& job, bool same_layout, const Take& take) {
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const BucketStorage& storage = job.storage[b];
    const Bucket& bucket = job.layout.buckets[b];
    const std::vector<std::string> arrays = arrays_of(job.group_of(b));
    // A resident bucket has the weights of all ranks' shards.
    const bool resident = storage.values.size_bytes > 0;
    for (const TensorRange& range : resident ? tensors_in(job, bucket.offset_elems, bucket.elems)
                                             : tensors_in(job, storage.shard_offset_elems, storage.shard_elems))
      for_boxes(job, range, [&](const NamedTensor& named, const TensorBox& box, int64_t) {
        take(box_of(named, box, arrays[0]), WantedPlace{range.parameter, range.tensor, {}, 0, box.held});
      });
    for (const TensorRange& range : tensors_in(job, storage.shard_offset_elems, storage.shard_elems))
      for_boxes(job, range, [&](const NamedTensor& named, const TensorBox& box, int64_t begin) {
        for (size_t array = 1; array < arrays.size(); ++array)
          take(box_of(named, box, arrays[array]),
               WantedPlace{0, 0, storage.states[array - 1], storage.shard_offset_elems, begin});
      });
  }
  for (size_t b = 0; b < job.storage.size() && same_layout; ++b)
    for (const SavedArray& array : saved_arrays(job, b))
      if (array.is_residual && array.range.elems > 0)
        take(box_of_residual(job, b, array),
             WantedPlace{0, 0, array.from, array.range.begin_elems, array.range.begin_elems, true});
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
                       .shape = job.model.parameters[at.parameter].tensor(at.tensor).whole_shape(),
                       .arrays = arrays_of(*group)});
  }
  return tensors;
}

std::string memory_layout_of(const std::vector<std::shared_ptr<const Job>>& stages) {
  std::string text;
  for (const auto& stage : stages) {
    text += fmt::format("{} order {}\n", text_of(stage->mesh.sizes()), stage->options.mesh_order);
    for (const ParameterGroup& group : stage->groups) {
      const Placement& placement = group.placement;
      text += fmt::format("{} over {}: {} {} wire {}\n", group.name, name_of(placement.sharded_over),
                          placement.sharding.gradients, placement.sharding.parameters, name_of(placement.reduce_wire));
    }
    for (size_t p = 0; p < stage->model.parameters.size(); ++p)
      text += fmt::format("{} {}\n", stage->model.parameters[p].name(), stage->layout.parameter_offsets[p]);
    for (const Bucket& bucket : stage->layout.buckets)
      text += fmt::format("{} {}\n", bucket.offset_elems, bucket.elems);
  }
  return data::xxh3_128_hex(text.data(), std::ssize(text));
}

ReadState read_at_rest(Rank& rank) {
  rank.synchronize();
  return [&rank](size_t bucket, size_t array, int64_t begin, std::span<float> out) {
    rank.read_state(bucket, array, begin, out);
  };
}

ReadState read_snapshot(const Rank& rank) {
  return [&rank](size_t bucket, size_t array, int64_t begin, std::span<float> out) {
    const std::span<const std::byte> bytes = rank.snapshot(bucket, array);
    SLIP_ASSERT(4 * (begin + std::ssize(out)) <= std::ssize(bytes));
    std::memcpy(out.data(), bytes.data() + 4 * begin, out.size_bytes());
  };
}

std::vector<checkpoint::BoxToSave> boxes_to_save(const Job& job, const ReadState& read) {
  std::vector<checkpoint::BoxToSave> boxes;
  for_saved(job, [&](const checkpoint::Box& box, const SavedPlace& at) {
    boxes.push_back({.box = box, .read = [read, at, name = box.tensor](int64_t begin, std::span<float> out) {
                       read(at.bucket, at.array, at.begin + begin, out);
                       if (at.array == 0 && !at.is_residual && !all_finite(out))
                         throw NumericsError("{} has weights that are not finite", name);
                     }});
  });
  return boxes;
}

std::vector<std::pair<checkpoint::Box, int64_t>> kept_boxes(const Job& job) {
  std::vector<std::pair<checkpoint::Box, int64_t>> boxes;
  for_saved(job, [&](const checkpoint::Box& box, const SavedPlace& at) {
    boxes.emplace_back(box, job.storage[at.bucket].kept[at.array].begin_bytes - Keeping::kHeaderBytes + 4 * at.begin);
  });
  return boxes;
}

struct Restoring::State {
  Rank& rank;
  std::vector<checkpoint::Box> boxes = {};
  std::vector<WantedPlace> places = {};
  std::vector<int64_t> set_elems = {};
  bool sets_residuals = false;

  void put(size_t wanted, int64_t begin, std::span<const float> values) {
    const WantedPlace& at = places[wanted];
    if (at.slice.size_bytes == 0)
      rank.write(at.parameter, at.tensor, at.begin + begin, values);
    else
      rank.write_state(at.slice, at.first, at.begin + begin, values);
    set_elems[wanted] += std::ssize(values);
    sets_residuals |= at.is_residual;
  }
};

Restoring::Restoring(Rank& rank, bool same_layout) : state_(std::make_unique<State>(State{.rank = rank})) {
  for_wanted(rank.job(), same_layout, [&](const checkpoint::Box& box, const WantedPlace& at) {
    state_->boxes.push_back(box);
    state_->places.push_back(at);
  });
  state_->set_elems.resize(state_->boxes.size());
}

Restoring::~Restoring() = default;

std::string Restoring::take(const std::string& folder, const std::vector<checkpoint::StateFile>& files) {
  for (const checkpoint::StateFile& file : files)
    if (std::string problem = checkpoint::problem_of(
            folder, file, state_->boxes,
            [&](size_t wanted, int64_t begin, std::span<const float> values) { state_->put(wanted, begin, values); });
        !problem.empty())
      return problem;
  return {};
}

bool Restoring::finish(const checkpoint::StateReader& from) {
  State& s = *state_;
  std::vector<float> values;
  for (size_t w = 0; w < s.boxes.size(); ++w) {
    const checkpoint::Box& box = s.boxes[w];
    if (s.set_elems[w] == box.elems()) continue;
    if (s.places[w].is_residual && !from.has(box.tensor, box.array)) continue;  // that run had no error feedback
    values.resize(static_cast<size_t>(box.elems()));
    from.read(box, values);
    s.put(w, 0, values);
  }
  return s.sets_residuals || !from.has(residual_name(0, 0), "gradients.residual");
}

std::vector<checkpoint::Box> wanted_boxes(const Job& job, bool same_layout) {
  std::vector<checkpoint::Box> boxes;
  for_wanted(job, same_layout, [&](const checkpoint::Box& box, const WantedPlace&) { boxes.push_back(box); });
  return boxes;
}

}  // namespace slipstream::runtime
