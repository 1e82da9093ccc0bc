// SPDX-License-Identifier: Apache-2.0
// Counts the values that FSDP keeps, for each pipeline stage.

#include "trainer/planner/forecast/software_memory.h"

#include <algorithm>

#include "engine/base/check.h"
#include "trainer/planner/forecast/extra_memory.h"
#include "trainer/planner/options/plan_options.h"

namespace slipstream::planner {
namespace {

constexpr double kBf16 = 2, kFloat = 4, kStates = 16;  // in bytes

class Fsdp {
 public:
  Fsdp(const ResolvedConfig& config, const Software& software)
      : run_(*config),
        layout_(config.layout()),
        placement_(stage_placement(config)),
        micro_batches_(static_cast<double>(config.batch().micro_batches)),
        compiled_loss_(software.memory == SoftwareMemory::fsdp_compiled_loss) {
    const Model& m = run_.model;
    width_ = static_cast<double>(m.width);
    attention_ = static_cast<double>(m.heads * m.head_dim);
    kv_ = static_cast<double>(m.kv_heads * m.head_dim);
    ffn_ = static_cast<double>(m.ffn_width);
    gated_ = m.family != Family::gpt2;
    layer_elems_ = width_ * (2 * attention_ + 2 * kv_ + (gated_ ? 3 : 2) * ffn_);
    table_elems_ = static_cast<double>(m.vocab_size) * width_;
    tokens_ = static_cast<double>(run_.train.micro_batch_size * run_.train.sequence_length / layout_.context);
    tensor_ = layout_.tensor;
  }

  std::vector<ExtraMemory> of_stage(int stage) const {
    const bool first = stage == placement_.stage_of(0), last = stage == placement_.stage_of(placement_.parts() - 1),
               piped = layout_.pipeline > 1;
    const double tables = first + (last && !(first && tied()));
    const double elems = (layers_of(stage) * layer_elems_ + tables * table_elems_) / tensor_;
    const double gathered =
        piped ? elems : (std::min(layers_of(stage), 2.0) * layer_elems_ + tables * table_elems_) / tensor_;
    const double states = kStates * elems / static_cast<double>(shards());
    const double of_input = tokens_ * width_ * kBf16 / tensor_;  // tensor ranks share the tokens between layers
    const double messages = piped ? of_input * (micro_batches_ * (!first + !last) + in_flight(stage)) : 0;
    return {{"states", whole(states)},
            {"weights in use", whole(kBf16 * gathered)},
            {"accumulated gradients", whole(piped ? kFloat * elems : 0)},
            {"activations", whole(in_flight(stage) * layers_of(stage) * saved_of_layer())},
            {"messages", whole(messages)},
            {"head", whole(last ? 2 * tokens_ * width_ * kBf16 : 0)},
            {"logits", whole(last ? logits() : 0)},
            {"a layer again", whole(last ? 0 : again())}};
  }

 private:
  static int64_t whole(double bytes) { return static_cast<int64_t>(std::min(bytes, 9e18)); }
  int64_t shards() const {
    const Mesh mesh(layout_, run_.parallel.order);
    return placement_of(run_, mesh).shards(mesh);
  }
  bool tied() const { return run_.model.tie_embeddings == Choice::yes; }

  double layers_of(int stage) const {
    const std::vector<int64_t>& parts = run_.pipeline.layers;
    if (parts.empty()) return static_cast<double>(run_.model.layers) / layout_.pipeline;
    double sum = 0;
    for (int chunk = 0; chunk < run_.pipeline.virtual_stages; ++chunk)
      sum += static_cast<double>(parts[static_cast<size_t>(placement_.part(stage, chunk))]);
    return sum;
  }

  /// Returns the micro-batches of a stage whose backward pass has not begun, as a share of the stage's layers.
  double in_flight(int stage) const {
    const double after = layout_.pipeline - 1 - stage, stages = layout_.pipeline;
    const auto parts = static_cast<double>(run_.pipeline.virtual_stages);
    if (run_.pipeline.schedule == ScheduleKind::gpipe) return micro_batches_;
    const double chunks = chunks_of(run_.pipeline.schedule) > 1 ? parts * stages  // the chunks of all stages together
                          : parts > 1                           ? 2 * after + (parts - 1) * stages + 1
                                                                : after + 1;
    return std::min(micro_batches_, chunks / parts);
  }

  double saved_of_layer() const {
    if (run_.train.recompute == Recomputation::full) return tokens_ * width_ * kBf16 / tensor_;
    // The products are, in order: q, k, v, out, gate, up, down. The first, third, fifth and seventh are kept. In a
    // plain MLP, two products, up and down, follow the fourth.
    const double products = attention_ + kv_ + ffn_ + (gated_ ? width_ : 0);
    return tokens_ * (width_ + attention_ + products) * kBf16 / tensor_;
  }

  double again() const {
    const double shared = attention_ + 2 * kv_ + attention_ + (gated_ ? 4 : 2) * ffn_;
    return tokens_ * kBf16 * (2 * width_ + shared / tensor_);  // tensor ranks gather the input of both parts
  }

  double logits() const {
    const double bytes = compiled_loss_ ? 4 : tensor_ > 1 ? 18 : 14;
    return bytes * tokens_ * static_cast<double>(run_.model.vocab_size) / tensor_;
  }

  const RunConfig& run_;
  MeshSizes layout_;
  StagePlacement placement_;
  double micro_batches_;
  bool compiled_loss_, gated_ = false;
  double width_, attention_, kv_, ffn_, layer_elems_, table_elems_, tokens_, tensor_;
};

}  // namespace

std::vector<ExtraMemory> memory_of_software(const ResolvedConfig& config, const Software& software) {
  std::vector<ExtraMemory> largest;
  if (software.memory == SoftwareMemory::plan || config->model.experts.count > 0) return largest;
  const Fsdp fsdp(config, software);
  for (int stage = 0; stage < config.layout().pipeline; ++stage)
    if (auto rows = fsdp.of_stage(stage); sum_of(rows) > sum_of(largest)) largest = std::move(rows);
  std::erase_if(largest, [](const ExtraMemory& row) { return row.size_bytes == 0; });
  return largest;
}

}  // namespace slipstream::planner
