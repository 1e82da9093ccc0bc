// SPDX-License-Identifier: Apache-2.0
// The logits of the next token from kept keys and values.

#include "runtime/next_logits.h"

#include <algorithm>

#include "engine/base/check.h"
#include "planner/plan_options.h"
#include "runtime/world.h"

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
    // A work is bound to its operands, and the rows of every call differ.
    const Work work = verb(*wire_, {.from = {0, 0, elems * 4}, .to = {1, 0, elems_to * 4}, .elems = elems});
    work.fn(context);
  }

  World& world_;
  ThreadPool pool_{1};
  std::unique_ptr<comm::Communicator> wire_;
};

class Cached : public NextLogits {
 public:
  Cached(const ModelFolder& weights, const CachedLogits& asked, std::unique_ptr<Device> device, World& world)
      : exchange_(world),
        capacity_(asked.capacity),
        generation_(options(weights, world), setup(weights, asked, std::move(device), world)) {}

  void after(std::span<const int> which, std::span<const std::vector<int32_t>> texts,
             const models::TakeLogits& take) override {
    std::vector<int> one_more;
    std::vector<int32_t> ids;
    std::vector<size_t> at;
    for (size_t i = 0; i < which.size(); ++i) {
      const std::vector<int32_t>& text = texts[static_cast<size_t>(which[i])];
      const int64_t kept = generation_.tokens(which[i]);
      if (kept > 0 && kept + 1 == std::ssize(text) && std::ssize(text) <= capacity_) {
        one_more.push_back(which[i]);
        ids.push_back(text.back());
        at.push_back(i);
      } else {
        // New, or full: then all positions change, and with them all keys.
        generation_.begin(which[i], std::span(text).last(static_cast<size_t>(std::min(capacity_, std::ssize(text)))),
                          [&](size_t, std::span<float> logits) { take(i, logits); });
      }
    }
    generation_.step(one_more, ids, [&](size_t index, std::span<float> logits) { take(at[index], logits); });
  }
  int64_t bytes_read(std::span<const int> which) const override {
    int64_t sum = generation_.weight_bytes();
    for (const int sequence : which) sum += generation_.cache_bytes(sequence);
    return sum;
  }
  double read_rate() const override {
    const double seconds = generation_.read_seconds();
    return seconds > 0 ? static_cast<double>(generation_.weight_bytes()) / seconds : 0;
  }

 private:
  /// Throws: ConfigError that lists the numbers of ranks that can share the model.
  static void require_equal_parts(const models::ModelOptions& o) {
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
  static models::ModelOptions options(const ModelFolder& weights, const World& world) {
    models::ModelOptions o = weights.model().options;
    Buffers buffers;
    weights.own_model(o, buffers);
    o.tensor = world.size();
    o.tensor_index = world.rank();
    require_equal_parts(o);
    return o;
  }
  models::GenerationSetup setup(const ModelFolder& weights, const CachedLogits& asked, std::unique_ptr<Device> device,
                                const World& world) {
    return {.dtype = asked.dtype,
            .sequences = asked.sequences,
            .capacity = asked.capacity,
            .threads = planner::threads_of(RunConfig{}, world.ranks_on_host()),
            .device = std::move(device),
            .read = [&weights](const NamedTensor& tensor, int64_t begin,
                               std::span<float> out) { weights.read(tensor, begin, out); },
            .sum = [this](std::span<float> values) { exchange_.sum(values); },
            .gather = [this](std::span<const float> part, std::span<float> all) { exchange_.gather(part, all); }};
  }

  Exchange exchange_;
  int64_t capacity_;
  models::Generation generation_;
};

}  // namespace

std::unique_ptr<NextLogits> cached_logits(const ModelFolder& weights, const CachedLogits& asked,
                                          std::unique_ptr<Device> device, World& world) {
  return std::make_unique<Cached>(weights, asked, std::move(device), world);
}

}  // namespace slipstream::runtime
