// SPDX-License-Identifier: Apache-2.0
// Orders gradient parts by completion, divides them into buckets and gives every part its offset.

#include "engine/plan/layout.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <tuple>

#include "engine/base/check.h"
#include "engine/base/units.h"

namespace slipstream {
namespace {

// This is 64 bytes: a cache line, and the widest vector of the CPU kernels.
constexpr int64_t kPartAlignmentElems = 16;

std::vector<PlacedPart> parts_in_completion_order(const ModelSpec& model) {
  std::vector<PlacedPart> parts;
  std::vector<int64_t> covered(model.parameters.size(), 0);
  for (uint32_t position = 0; position < model.backward.size(); ++position)
    for (const GradientPart& part : model.pieces[model.backward[position]].ready) {
      const ParameterSpec& parameter = model.parameters[part.parameter];
      if (part.begin_elems != covered[part.parameter] || part.begin_elems + part.elems > parameter.elems)
        throw PlanError(
            "[plan] gradient of {} becomes ready at elements {}..{}, after {} of {}: parts must follow each other.",
            parameter.name(), part.begin_elems, part.begin_elems + part.elems, covered[part.parameter],
            parameter.elems);
      if (part.begin_elems > 0 && (parts.empty() || parts.back().part.parameter != part.parameter))
        throw PlanError("[plan] the parts of {} do not follow each other in completion order.", parameter.name());
      covered[part.parameter] += part.elems;
      parts.push_back({part, 0, position});
    }
  for (uint32_t p = 0; p < model.parameters.size(); ++p)
    if (covered[p] != model.parameters[p].elems)
      throw PlanError(
          "[plan] only {} of the {} gradient elements of {} ever become ready. The model's backward must "
          "name every parameter once.",
          covered[p], model.parameters[p].elems, model.parameters[p].name());
  return parts;
}

bool is_alone(const LayoutOptions& options, const PlacedPart& placed) {
  return std::find(options.alone.begin(), options.alone.end(), placed.part.parameter) != options.alone.end();
}

/// Returns 0 for every group and shard.
std::vector<std::vector<int64_t>> no_costs(const std::vector<GroupLayout>& groups) {
  std::vector<std::vector<int64_t>> costs;
  for (const GroupLayout& group : groups) costs.emplace_back(static_cast<size_t>(group.shards), 0);
  return costs;
}

/// Assigns the whole matrices of one bucket to the shards of their owners.
class MatrixShards {
 public:
  /// `totals` has the costs of the shards of earlier buckets of the group, and counts those of this one.
  MatrixShards(const LayoutOptions& options, std::span<const PlacedPart> parts, std::vector<int64_t>& totals)
      : parts_(parts), owned_elems_(totals.size(), 0) {
    std::vector<int64_t> elems, costs;
    for (const PlacedPart& placed : parts) {
      if (placed.part.begin_elems == 0) {
        elems.push_back(0);
        costs.push_back(options.matrix_costs[placed.part.parameter]);
      }
      elems.back() += placed.part.elems;
      matrix_of_.push_back(elems.size() - 1);
    }
    owners_ = owners_of(costs, totals);
    for (size_t m = 0; m < elems.size(); ++m)
      owned_elems_[static_cast<size_t>(owners_[m])] += round_up(elems[m], kPartAlignmentElems);
    for (int64_t all : owned_elems_) held_elems_ += all;
    shard_elems_ = round_up(*std::max_element(owned_elems_.begin(), owned_elems_.end()),
                            kPartAlignmentElems * options.group_size / std::ssize(totals));
  }

  int64_t elems() const { return shard_elems_ * static_cast<int64_t>(owned_elems_.size()); }
  /// Returns true if only a small part of the bucket is padding.
  bool are_even() const {
    constexpr int64_t kPaddingShare = 8;
    return elems() - held_elems_ <= held_elems_ / kPaddingShare;
  }

  /// Returns the parts in the order of the shards. The first shard is at `offset_elems`.
  std::vector<PlacedPart> placed_at(int64_t offset_elems) const {
    std::vector<PlacedPart> placed;
    for (size_t owner = 0; owner < owned_elems_.size(); ++owner) {
      int64_t at = offset_elems + static_cast<int64_t>(owner) * shard_elems_;
      for (size_t p = 0; p < parts_.size(); ++p) {
        if (owners_[matrix_of_[p]] != static_cast<int>(owner)) continue;
        if (parts_[p].part.begin_elems == 0) at = round_up(at, kPartAlignmentElems);
        placed.push_back(parts_[p]);
        placed.back().offset_elems = at;
        at += parts_[p].part.elems;
      }
    }
    return placed;
  }

 private:
  std::span<const PlacedPart> parts_;
  std::vector<size_t> matrix_of_;  // by part
  std::vector<int> owners_;        // by matrix
  std::vector<int64_t> owned_elems_;
  int64_t held_elems_ = 0, shard_elems_ = 0;
};

/// `rest_elems` are the elements of the group after this bucket. The next part has `next_elems` of them.
bool bucket_is_full(const LayoutOptions& options, size_t bucket_index, int64_t elems, int64_t rest_elems,
                    int64_t next_elems) {
  switch (options.reduce_mode) {
    case ReduceMode::per_parameter:
    case ReduceMode::naive:
      return true;
    case ReduceMode::flat:
      return false;
    case ReduceMode::bucketed:
      break;
  }
  // No compute is left to hide the last bucket, and the buckets before it delay it. Towards the end, each bucket
  // therefore takes a quarter of the rest, or the nearest size in whole parts. This hides all buckets but the smallest
  // as long as communication takes up to 3/4 of the compute time.
  constexpr int64_t kShareOfLeft = 4;
  const int64_t bytes = elems * 4;
  if (bytes < std::min(options.first_bucket_bytes, options.bucket_bytes)) return false;
  return bucket_index == 0 || bytes >= options.bucket_bytes ||
         (2 * elems + next_elems) * kShareOfLeft >= 2 * (elems + rest_elems);
}

}  // namespace

std::vector<int> owners_of(std::span<const int64_t> costs, std::vector<int64_t>& totals) {
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<int64_t> loads(totals.size(), 0);
  std::vector<int> owners(costs.size());
  for (size_t item : order) {
    size_t least = 0;
    for (size_t owner = 1; owner < loads.size(); ++owner)
      if (std::tie(loads[owner], totals[owner]) < std::tie(loads[least], totals[least])) least = owner;
    owners[item] = static_cast<int>(least);
    loads[least] += costs[item];
    totals[least] += costs[item];
  }
  return owners;
}

std::map<std::pair<std::string, int64_t>, int32_t> norm_order(const ModelSpec& whole) {
  std::map<std::pair<std::string, int64_t>, int32_t> order;
  // A copy has the table's position in a one-rank model, where the head's chunks come first.
  std::set<std::string> copied;
  for (const ParameterSpec& parameter : whole.parameters)
    if (parameter.is_copy) copied.insert(parameter.name());
  for (const PlacedPart& placed : parts_in_completion_order(whole)) {
    const ParameterSpec& parameter = whole.parameters[placed.part.parameter];
    if (copied.contains(parameter.name()) && !parameter.is_copy) continue;
    order.emplace(std::pair(parameter.name(), placed.part.begin_elems), static_cast<int32_t>(order.size()));
  }
  return order;
}

ParameterLayout place_parameters(const ModelSpec& model, const LayoutOptions& options) {
  ParameterLayout layout;
  layout.parts = parts_in_completion_order(model);
  const auto is_of_layer = [&](const PlacedPart& placed) {
    const int layer = model.parameters[placed.part.parameter].layer;
    return layer >= 0 && layer < model.layers;
  };
  const auto group_of = [&](const PlacedPart& placed) {
    return options.group_of.empty() ? 0 : options.group_of[placed.part.parameter];
  };
  const auto is_by_layer = [&](const PlacedPart& placed) { return options.groups[group_of(placed)].by_layer; };
  const auto persists = [&](const PlacedPart& placed) {
    return is_by_layer(placed) && is_of_layer(placed) &&
           model.parameters[placed.part.parameter].elems <= options.persistent_elems;
  };
  std::stable_sort(layout.parts.begin(), layout.parts.end(), [&](const PlacedPart& a, const PlacedPart& b) {
    return std::pair(persists(a), group_of(a)) < std::pair(persists(b), group_of(b));
  });
  layout.parameter_offsets.assign(model.parameters.size(), 0);
  const auto unit_of = [&](const PlacedPart& placed) -> std::optional<int> {
    if (!is_by_layer(placed) || persists(placed) || (!is_of_layer(placed) && !options.ends)) return {};
    return model.parameters[placed.part.parameter].layer;
  };
  const auto whole_of = [&](const PlacedPart& placed) {
    return std::find_if(options.whole.begin(), options.whole.end(), [&](const auto& range) {
      return range.first <= placed.ready_position && placed.ready_position < range.second;
    });
  };
  int64_t offset = 0;
  std::map<uint32_t, int64_t> rest_elems;  // by group
  for (const PlacedPart& placed : layout.parts) rest_elems[group_of(placed)] += placed.part.elems;
  std::vector<std::vector<int64_t>> costs = no_costs(options.groups);  // of shards, by group
  Bucket open{};
  for (uint32_t p = 0; p < layout.parts.size(); ++p) {
    PlacedPart& placed = layout.parts[p];
    const ParameterSpec& parameter = model.parameters[placed.part.parameter];
    placed.offset_elems = offset;
    if (placed.part.begin_elems == 0) layout.parameter_offsets[placed.part.parameter] = offset;
    const bool last_of_parameter = placed.part.begin_elems + placed.part.elems == parameter.elems;
    // There is no padding between two parts of one parameter, because the parameter is one contiguous tensor.
    offset += last_of_parameter ? round_up(placed.part.elems, kPartAlignmentElems) : placed.part.elems;
    ++open.part_count;
    rest_elems[group_of(placed)] -= placed.part.elems;
    open.ready_position = std::max(open.ready_position, placed.ready_position);
    const bool last = p + 1 == layout.parts.size();
    const bool even =
        !options.sharded || (offset - open.offset_elems) % (kPartAlignmentElems * options.group_size) == 0;
    const bool is_matrix = !options.matrix_costs.empty() && options.matrix_costs[placed.part.parameter] > 0;
    const bool may_cut = last_of_parameter || (options.reduce_mode == ReduceMode::bucketed && even && !is_matrix);
    std::vector<int64_t>& shard_costs = costs[group_of(placed)];
    const bool divides_matrices = is_matrix && shard_costs.size() > 1;
    const std::span<const PlacedPart> of_bucket = std::span(layout.parts).subspan(open.first_part, open.part_count);
    const auto shards_are_even = [&] {  // for this bucket, and for the rest of the group in one bucket
      if (!divides_matrices || options.reduce_mode != ReduceMode::bucketed) return true;
      const auto rest = std::find_if(layout.parts.begin() + p, layout.parts.end(),
                                     [&](const PlacedPart& each) { return group_of(each) != group_of(placed); });
      std::vector<int64_t> tried = shard_costs;
      return MatrixShards(options, of_bucket, tried).are_even() &&
             MatrixShards(options, std::span(layout.parts.begin() + p + 1, rest), tried).are_even();
    };
    const std::optional<int> unit = unit_of(placed);
    const bool alone = is_alone(options, placed);
    const bool pass_ends = !last && std::any_of(options.passes.begin(), options.passes.end(), [&](uint32_t begin) {
      return placed.ready_position < begin && layout.parts[p + 1].ready_position >= begin;
    });
    const bool must_cut = (is_by_layer(placed) && ((!last && unit != unit_of(layout.parts[p + 1])) || pass_ends)) ||
                          (!last && persists(placed) != persists(layout.parts[p + 1])) ||
                          (!last && group_of(placed) != group_of(layout.parts[p + 1])) ||
                          (!last && last_of_parameter && whole_of(placed) != whole_of(layout.parts[p + 1])) ||
                          (!last && last_of_parameter && (alone || is_alone(options, layout.parts[p + 1])));
    const bool may_be_full = !(unit && is_of_layer(placed)) && !alone && whole_of(placed) == options.whole.end();
    if (last || must_cut ||
        (may_cut && may_be_full &&
         bucket_is_full(options, layout.buckets.size(), offset - open.offset_elems, rest_elems[group_of(placed)],
                        layout.parts[p + 1].part.elems) &&
         shards_are_even())) {
      open.unit = unit;
      open.persistent = persists(placed);
      open.group = group_of(placed);
      if (divides_matrices) {
        const MatrixShards shards(options, of_bucket, shard_costs);
        const std::vector<PlacedPart> in_shards = shards.placed_at(open.offset_elems);
        std::copy(in_shards.begin(), in_shards.end(), layout.parts.begin() + open.first_part);
        for (const PlacedPart& each : in_shards)
          if (each.part.begin_elems == 0) layout.parameter_offsets[each.part.parameter] = each.offset_elems;
        offset = open.offset_elems + shards.elems();
      } else if (last_of_parameter)
        offset = open.offset_elems + round_up(offset - open.offset_elems, kPartAlignmentElems * options.group_size);
      open.elems = offset - open.offset_elems;
      layout.buckets.push_back(open);
      open = {.offset_elems = offset, .first_part = p + 1};
    }
  }
  layout.flat_elems = offset;
  return layout;
}

}  // namespace slipstream
