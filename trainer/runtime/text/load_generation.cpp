// SPDX-License-Identifier: Apache-2.0
// Loads parts of the model for ranks that share it, and exchanges their sums.

#include "trainer/runtime/text/load_generation.h"

#include <algorithm>

#include "engine/base/check.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::runtime {
namespace {

/// Runs a verb of a communicator on memory of this process.
class Exchange {
 public:
  explicit Exchange(World& world) : world_(world) {}

  void sum(std::span<float> values) {
    run(values.data(), values.data(), std::ssize(values), std::ssize(values),
        [](comm::Communicator& wire, const comm::Transfer& transfer) { return wire.all_reduce(transfer); });
  }
  void gather(std::span<const float> part, std::span<float> all) {
    std::copy(part.begin(), part.end(), all.begin() + world_.rank() * std::ssize(part));
    run(all.data() + world_.rank() * std::ssize(part), all.data(), std::ssize(part), std::ssize(all),
        [](comm::Communicator& wire, const comm::Transfer& transfer) { return wire.all_gather(transfer); });
  }

 private:
  template <typename Verb>
  void run(float* from, float* to, int64_t elems, int64_t elems_to, const Verb& verb) {
    constexpr int64_t kTimeoutSeconds = 600;
    if (!wire_) wire_ = world_.communicator(0, 0, kTimeoutSeconds, DeviceKind::cpu, {});
    const Memory memory({{reinterpret_cast<std::byte*>(from)}, {reinterpret_cast<std::byte*>(to)}});
    const Frame frame{.memory = &memory};
    LaunchContext context;
    context.pool = &pool_;
    context.frame = &frame;
    // A work is bound to its operands, and the rows of every call differ, so each call makes a work.
    const Work work = verb(*wire_, {.from = {0, 0, elems * 4}, .to = {1, 0, elems_to * 4}, .elems = elems});
    work.fn(context);
  }

  World& world_;
  ThreadPool pool_{1};
  std::unique_ptr<comm::Communicator> wire_;
};

/// Throws: ConfigError that lists the numbers of ranks that can share the model.
void require_equal_parts(const models::ModelOptions& o) {
  const auto fits = [&](int64_t ranks) {
    return o.heads % ranks == 0 && o.ffn_width % ranks == 0 && (o.kv_heads % ranks == 0 || ranks % o.kv_heads == 0);
  };
  if (fits(o.tensor)) return;
  std::string possible = "1";
  for (int64_t ranks = 2; ranks <= o.heads; ++ranks)
    if (fits(ranks)) possible += fmt::format(", {}", ranks);
  throw ConfigError(
      "[generate] {} ranks cannot share the model equally: it has {} heads, {} key-value heads and {} hidden units. "
      "Start one of {} ranks.",
      o.tensor, o.heads, o.kv_heads, o.ffn_width, possible);
}

models::ModelOptions options_of(const ModelFolder& weights, const World& world) {
  models::ModelOptions o = weights.model().options;
  Buffers buffers;
  weights.own_model(o, buffers);
  o.tensor = world.size();
  o.tensor_index = world.rank();
  require_equal_parts(o);
  return o;
}

}  // namespace

models::Generation load_generation(const ModelFolder& weights, const GenerationOptions& asked,
                                   std::unique_ptr<Device> device, World& world) {
  const auto exchange = std::make_shared<Exchange>(world);
  return {options_of(weights, world),
          {.dtype = asked.dtype,
           .sequences = asked.sequences,
           .capacity = asked.capacity,
           .threads = planner::threads_of(RunConfig{}, world.ranks_on_host()),
           .device = std::move(device),
           .sampling = asked.sampling,
           .seed = asked.seed,
           .vocab = asked.vocab,
           .holes = asked.holes,
           .read = [&weights](const NamedTensor& tensor, int64_t begin,
                              std::span<float> out) { weights.read(tensor, begin, out); },
           .sum = [exchange](std::span<float> values) { exchange->sum(values); },
           .gather = [exchange](std::span<const float> part, std::span<float> all) { exchange->gather(part, all); }}};
}

}  // namespace slipstream::runtime
