// SPDX-License-Identifier: Apache-2.0
// Nested choices of layout settings. A setting without effect in a layout has one value there.

#include "trainer/planner/search/layouts.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/config/fields.h"
#include "engine/config/nearest.h"
#include "trainer/planner/options/plan_options.h"

namespace slipstream::planner {
namespace {

using Sets = std::vector<std::string>;

/// Returns overlap.bucket_size as a run file has it, without quotes.
std::string own_bucket_size(RunConfig run) {
  run.overlap.bucket_size_bytes = bucket_bytes_of(run);
  const std::string quoted = field_text(run, "overlap.bucket_size");
  return quoted.substr(1, quoted.size() - 2);
}

class Space {
 public:
  Space(const ResolvedConfig& config, const Machine& machine, const std::vector<SearchedKey>& keys,
        int64_t global_batch)
      : config_(config), machine_(machine), keys_(keys), global_batch_(global_batch), used_(keys.size(), 0) {}

  std::vector<Sets> list() {
    MeshSizes sizes;
    add_axes(config_.world(), 1, sizes, {});
    for (size_t k = 0; k < keys_.size(); ++k)
      if (!used_[k]) add_key(keys_[k]);
    return std::move(found_);
  }

 private:
  static constexpr int64_t kLongSequence = 16'384;
  static constexpr int64_t kMostSequences = 64;   // the most sequences of a micro-batch
  static constexpr int64_t kLeastUneven = 2;      // the least layers of a part if parts differ by one
  static constexpr int64_t kRecomputedSteps = 8;  // the numbers of layers that are tried
  struct Shape : MeshSizes {
    int64_t virtual_stages = 1;
  };

  /// Returns the sizes of an axis to try if the axes before it leave `left` ranks.
  std::vector<int64_t> sizes_of(Axis axis, int64_t left) {
    const RunConfig& run = *config_;
    switch (axis) {
      case Axis::tensor: {
        const int64_t heads = std::gcd(std::gcd(run.model.heads, run.model.kv_heads), run.model.ffn_width);
        // Experts do not combine with tensor ranks.
        const int64_t most = run.model.experts.count > 0 ? 1 : std::min(left, machine_.ranks_per_node);
        auto values = powers("parallel.tensor", run.parallel.tensor, most);
        std::erase_if(values, [&](int64_t value) { return heads % value != 0; });
        return values;
      }
      case Axis::pipeline: {
        std::vector<int64_t> values = stages(left);
        std::erase_if(values, [&](int64_t value) { return value > run.model.layers; });
        return values;
      }
      default: {
        const int64_t most = run.train.sequence_length >= kLongSequence ? 8 : 1;
        std::vector<int64_t> values = powers("parallel.context", run.parallel.context, most);
        std::erase_if(values, [&](int64_t value) { return value > 1 && run.train.sequence_length % (2 * value) != 0; });
        return values;
      }
    }
  }

  /// Adds the axes from `row` of kMeshAxes on. kFreeAxis, row 0, takes the ranks that are left.
  void add_axes(int64_t left, size_t row, MeshSizes& sizes, const Sets& sets) {
    if (row == kMeshAxes.size()) {
      sizes.*kFreeAxis.size = static_cast<int>(left);
      return add_experts({sizes}, with(with(sets, fmt::format("parallel.{}={}", name_of(kFreeAxis.axis), left)),
                                       fmt::format("parallel.sequence_parallel={}", sizes.tensor > 1)));
    }
    for (int64_t size : sizes_of(kMeshAxes[row].axis, left)) {
      if (left % size != 0) continue;
      sizes.*kMeshAxes[row].size = static_cast<int>(size);
      add_axes(left / size, row + 1, sizes,
               with(sets, fmt::format("parallel.{}={}", name_of(kMeshAxes[row].axis), size)));
    }
  }

  /// Divides the experts of a layer over some of the ranks that have other tokens.
  void add_experts(const Shape& shape, const Sets& sets) {
    const RunConfig& run = *config_;
    if (run.model.experts.count == 0) return add_schedules(shape, sets);
    for (int64_t ranks : powers("parallel.expert", run.parallel.expert, run.model.experts.count)) {
      if (ranks < 1 || shape.replicas() % ranks != 0 || run.model.experts.count % ranks != 0) continue;
      const Sets divided = with(sets, fmt::format("parallel.expert={}", ranks));
      const Sets both = ranks > 1 && shape.pipeline == 1 ? Sets{"false", "true"} : Sets{"false"};
      for (const std::string& paired : texts("overlap.paired_passes", both))
        add_schedules(shape, with(divided, "overlap.paired_passes=" + paired));
    }
  }

  std::optional<Sets> asked(const std::string& key) {
    for (size_t k = 0; k < keys_.size(); ++k)
      if (keys_[k].key == key) {
        used_[k] = 1;
        return keys_[k].values;
      }
    return {};
  }

  bool is_asked(std::string_view key) const {
    return std::any_of(keys_.begin(), keys_.end(), [&](const SearchedKey& each) { return each.key == key; });
  }

  std::vector<int64_t> powers(const char* key, int64_t own, int64_t most) {
    std::vector<int64_t> values;
    if (const auto given = asked(key)) {
      for (const std::string& text : *given) values.push_back(std::atoll(text.c_str()));
      return values;
    }
    for (int64_t value = 1; value <= most; value *= 2) values.push_back(value);
    if (std::find(values.begin(), values.end(), own) == values.end() && own > 0) values.push_back(own);
    return values;
  }

  /// Divisors of the layers suit numbers of ranks that are no powers of two.
  std::vector<int64_t> stages(int64_t most) {
    const RunConfig& run = *config_;
    const bool is_given = asked("parallel.pipeline").has_value();
    std::vector<int64_t> values = powers("parallel.pipeline", run.parallel.pipeline, std::min(most, run.model.layers));
    for (int64_t value = 2; !is_given && value <= run.model.layers; ++value)
      if (run.model.layers % value == 0 && std::find(values.begin(), values.end(), value) == values.end())
        values.push_back(value);
    return values;
  }

  Sets texts(const char* key, Sets usual) {
    const auto given = asked(key);
    return given ? *given : usual;
  }

  /// A word that is no schedule is refused later.
  static bool may_have(const std::string& schedule, int64_t chunks) {
    const auto& words = kWords<ScheduleKind>;
    const auto found = std::find(words.begin(), words.end(), schedule);
    const int own = found == words.end() ? 1 : chunks_of(static_cast<ScheduleKind>(found - words.begin()));
    return own == 0 ? chunks > 1 : chunks == own;
  }

  void add_schedules(const Shape& shape, const Sets& sets) {
    const RunConfig& run = *config_;
    if (shape.pipeline == 1) {
      asked("pipeline.schedule"), asked("pipeline.virtual_stages");
      return add_batches(shape, with(with(sets, "pipeline.schedule=1f1b"), "pipeline.virtual_stages=1"));
    }
    // All schedules except gpipe, which needs the memory of every micro-batch.
    const auto& words = kWords<ScheduleKind>;
    for (const std::string& schedule : texts("pipeline.schedule", {words.begin() + 1, words.end()}))
      for (int64_t each : powers("pipeline.virtual_stages", run.pipeline.virtual_stages, 8)) {
        if (!may_have(schedule, each)) continue;
        Shape divided = shape;
        divided.virtual_stages = each;
        const int64_t parts = shape.pipeline * each;
        Sets named = with(with(sets, "pipeline.schedule=" + schedule), fmt::format("pipeline.virtual_stages={}", each));
        if (each > 1 && run.model.layers % parts != 0) {
          if (run.model.layers < kLeastUneven * parts) continue;
          named.push_back("pipeline.layers=" + layers_of_parts(run.model.layers, parts));
        }
        add_batches(divided, named);
      }
  }

  /// Returns layers that are as equal as possible. The first and the last part, with the embedding and the head, have
  /// fewer.
  static std::string layers_of_parts(int64_t layers, int64_t parts) {
    const int64_t more = layers % parts, first = (parts - more) / 2;
    std::vector<int64_t> counts;
    for (int64_t part = 0; part < parts; ++part)
      counts.push_back(layers / parts + (part >= first && part < first + more));
    return fmt::format("[{}]", fmt::join(counts, ","));
  }

  void add_batches(const Shape& shape, const Sets& sets) {
    const RunConfig& run = *config_;
    const int64_t all = global_batch_ / shape.data;  // the sequences of a data rank
    std::vector<int64_t> batches = powers("train.micro_batch_size", run.train.micro_batch_size, kMostSequences);
    if (shape.pipeline == 1 && all > 0 && all <= kMostSequences && !is_asked("train.micro_batch_size") &&
        std::find(batches.begin(), batches.end(), all) == batches.end())
      batches.push_back(all);
    for (int64_t batch : batches) {
      if (global_batch_ % (batch * shape.data) != 0) continue;
      for (const std::string& recompute : texts("train.recompute", {"none", "selective", "full"}))
        for (const std::string& layers : recomputed_layers(shape, recompute))
          add_zero(shape, with(with(with(sets, fmt::format("train.micro_batch_size={}", batch)),
                                    "train.recompute=" + recompute),
                               "train.recompute_layers=" + layers));
    }
  }

  /// Returns the numbers of layers of a part that recompute in full, up to all but an eighth. Selective recomputation
  /// is cheap, so it always covers all layers.
  Sets recomputed_layers(const Shape& shape, const std::string& recompute) {
    Sets counts = {"0"};
    const int64_t layers = config_->model.layers / (shape.pipeline * shape.virtual_stages);
    const int64_t step = ceil_div(layers, kRecomputedSteps);
    for (int64_t count = step; recompute == "full" && count < layers; count += step)
      counts.push_back(fmt::format("{}", count));
    const Sets chosen = texts("train.recompute_layers", counts);
    return recompute == "none" ? Sets{"0"} : chosen;
  }

  void add_zero(const Shape& shape, const Sets& sets) {
    const RunConfig& run = *config_;
    const int64_t sharing = shape.replicas();
    const int64_t in_node = machine_.ranks_per_node / std::gcd<int64_t>(machine_.ranks_per_node, shape.tensor);
    for (const std::string& stage : texts("zero.stage", {"0", "1", "2", "3"})) {
      if (sharing == 1 && stage != "0") continue;
      Sets sizes = {"0"};
      if (stage != "0" && shape.pipeline == 1 && in_node > 1 && sharing > in_node && sharing % in_node == 0)
        sizes.push_back(fmt::format("{}", in_node));
      for (const std::string& size : texts("zero.shard_size", sizes)) {
        if (stage == "0" && size != "0") continue;
        const Sets sharded = with(with(sets, "zero.stage=" + stage), "zero.shard_size=" + size);
        Sets depths = {"1"}, buckets = {own_bucket_size(run)}, chunks = {"1"};
        if (stage == "3") depths.push_back("2");
        if (sharing > 1 && stage < "2" && buckets[0] != "100MiB") buckets.push_back("100MiB");
        if (shape.tensor > 1) chunks.push_back("4");
        for (const std::string& depth : stage == "3" ? texts("zero.prefetch_depth", depths) : depths)
          for (const std::string& bucket : texts("overlap.bucket_size", buckets))
            for (const std::string& chunk : shape.tensor > 1 ? texts("overlap.tensor_chunks", chunks) : chunks)
              found_.push_back(
                  with(with(with(sharded, "zero.prefetch_depth=" + depth), "overlap.bucket_size=" + bucket),
                       "overlap.tensor_chunks=" + chunk));
      }
    }
    asked("zero.prefetch_depth"), asked("overlap.tensor_chunks");  // these have no effect if no layout has their axis
  }

  static Sets with(Sets sets, const std::string& set) {
    sets.push_back(set);
    return sets;
  }

  void add_key(const SearchedKey& key) {
    std::vector<Sets> all;
    for (const Sets& sets : found_)
      for (const std::string& value : key.values) all.push_back(with(sets, key.key + "=" + value));
    found_ = std::move(all);
  }

  const ResolvedConfig& config_;
  const Machine& machine_;
  const std::vector<SearchedKey>& keys_;
  int64_t global_batch_;
  std::vector<char> used_;
  std::vector<Sets> found_;
};

}  // namespace

SearchedKey parse_searched_key(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
    throw ConfigError("[plan] --over {}: needs KEY=VALUE,VALUE, for example --over train.micro_batch_size=1,2.", text);
  SearchedKey searched{.key = text.substr(0, equals), .values = {}};
  std::vector<std::string_view> known;
  for (const auto& field : run_fields()) known.push_back(field.key);
  if (std::find(known.begin(), known.end(), searched.key) == known.end()) {
    const std::string near = nearest(searched.key, known);
    throw ConfigError("[plan] --over: run files have no key {}{}. See docs/reference/config.md.", searched.key,
                      near.empty() ? "" : "; did you mean " + near + "?");
  }
  for (size_t begin = equals + 1; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    searched.values.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return searched;
}

std::vector<std::vector<std::string>> layouts_of(const ResolvedConfig& config, const Machine& machine,
                                                 const std::vector<SearchedKey>& keys, int64_t global_batch) {
  return Space(config, machine, keys, global_batch).list();
}

}  // namespace slipstream::planner
