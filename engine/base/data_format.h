// SPDX-License-Identifier: Apache-2.0
#pragma once
// The formats of training data (data.format).

#include <cstdint>

namespace slipstream {

enum class DataFormat : uint8_t { automatic, slipstream, llm_c, nanogpt, nanogpt_uint32, megatron, jsonl, text };

}  // namespace slipstream
