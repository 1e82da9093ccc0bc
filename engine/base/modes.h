// SPDX-License-Identifier: Apache-2.0
#pragma once
// The choices that a run file names and that models and plans act on. Each enum stands here once, with the words of its
// values.

#include <array>
#include <cstddef>
#include <cstdint>

namespace slipstream {

/// model.family.
enum class Family : uint8_t { gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen3_moe };

/// Returns true for families with rotary positions, RMS norms and SwiGLU. The others have learned positions, layer
/// norms and GELU.
constexpr bool is_rotary(Family family) { return family != Family::gpt2; }

/// model.rope_scaling: how rotary frequencies change for sequences that are longer than those of pretraining.
enum class RopeScalingKind : uint8_t {
  none,
  llama3,  // long waves are stretched, short ones stay (Dubey et al. 2024, arXiv:2407.21783)
};

/// overlap.grad_reduce: how gradients become tasks. All modes except `bucketed` exist for comparison.
enum class ReduceMode : uint8_t { bucketed, per_parameter, flat, naive };

/// model.experts.router: how logits of experts become scores.
enum class RouterKind : uint8_t {
  softmax,  // over all experts (Shazeer et al. 2017, arXiv:1701.06538)
  sigmoid,  // of each expert by itself (DeepSeek-AI 2024, arXiv:2412.19437)
};

/// model.experts.balance: what keeps the loads of experts equal.
enum class ExpertBalance : uint8_t {
  none,
  auxiliary,  // a loss for each sequence: experts x the sum of (share of the choices x mean score)
  bias,       // a number for each expert, added to its score for the choice only; it moves against the load
};

/// model.experts.capacity: what happens if more rows arrive at a rank than its memory holds.
enum class CapacityPolicy : uint8_t {
  repeat,  // the other rows travel in further rounds, through memory that all layers share
  drop,    // the rows with the smallest weights are dropped and counted
};

/// parallel.expert_exchange: how rows of tokens reach the ranks of their experts.
enum class ExpertExchange : uint8_t {
  automatic,  // gather on NCCL, and exact on all other transports
  exact,      // every rank sends each owner of experts the rows that chose them, by counts that the work reads
  gather,     // every rank gathers the tokens of all ranks, and the sums of a token's rows are scattered
};

/// pipeline.schedule.
enum class ScheduleKind : uint8_t {
  gpipe,             // all forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965)
  one_f_one_b,       // stage s keeps at most stages - s micro-batches alive (Narayanan et al. 2021, arXiv:2006.09503)
  interleaved_1f1b,  // the same with virtual_stages chunks per stage (Narayanan et al. 2021, arXiv:2104.04473)
  zb_h1,             // 1F1B whose weight gradients fill the bubbles (Qi et al. 2024, arXiv:2401.10241)
  zb_v,  // the same with two chunks per stage: down the stages and back up (Qi et al. 2024, arXiv:2405.15362)
};
/// Returns the number of chunks of the model that a schedule places on each stage, or 0 if pipeline.virtual_stages
/// decides. Pure.
constexpr int chunks_of(ScheduleKind kind) {
  return kind == ScheduleKind::interleaved_1f1b ? 0 : kind == ScheduleKind::zb_v ? 2 : 1;
}

/// train.recompute.
enum class Recomputation : uint8_t {
  none,
  selective,  // recomputes wide activations that cost no products, such as outputs of norms (ModelSpec::cheap)
  full,       // recomputes everything that follows from a layer's input (Chen et al. 2016, arXiv:1604.06174)
};

/// train.on_nan: the reaction to a loss or a gradient norm that is not finite.
enum class OnNan : uint8_t {
  abort,     // the run ends
  skip,      // the update of that step changes neither weights nor optimizer states
  rollback,  // the run returns to the last checkpoint
};

/// The words of an enum in a run file, in the order of the enum's values.
template <typename E>
inline constexpr std::array<const char*, 0> kWords{};
template <>
inline constexpr std::array<const char*, 7> kWords<Family>{"gpt2",  "llama",   "mistral",  "qwen2",
                                                           "qwen3", "mixtral", "qwen3_moe"};
template <>
inline constexpr std::array<const char*, 2> kWords<RopeScalingKind>{"none", "llama3"};
template <>
inline constexpr std::array<const char*, 2> kWords<RouterKind>{"softmax", "sigmoid"};
template <>
inline constexpr std::array<const char*, 3> kWords<ExpertBalance>{"none", "auxiliary", "bias"};
template <>
inline constexpr std::array<const char*, 2> kWords<CapacityPolicy>{"repeat", "drop"};
template <>
inline constexpr std::array<const char*, 3> kWords<ExpertExchange>{"auto", "exact", "gather"};
template <>
inline constexpr std::array<const char*, 4> kWords<ReduceMode>{"bucketed", "per_parameter", "flat", "naive"};
template <>
inline constexpr std::array<const char*, 5> kWords<ScheduleKind>{"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v"};
template <>
inline constexpr std::array<const char*, 3> kWords<Recomputation>{"none", "selective", "full"};
template <>
inline constexpr std::array<const char*, 3> kWords<OnNan>{"abort", "skip", "rollback"};

/// Pure.
template <typename E>
requires(!kWords<E>.empty()) constexpr const char* name_of(E mode) { return kWords<E>.at(static_cast<size_t>(mode)); }

}  // namespace slipstream
