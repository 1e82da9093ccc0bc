// SPDX-License-Identifier: Apache-2.0
#pragma once
// NCCL's tuner, which is part of the program: it applies the table and writes down what NCCL takes.

#include <string>

#include "comm/nccl/nccl_table.h"

namespace slipstream::comm {

/// While one lives, communicators that NCCL makes in this process are of this channel. One at a time.
class TunedChannel {
 public:
  TunedChannel(const std::string& name, const NcclChannel& channel);
  ~TunedChannel();
  TunedChannel(const TunedChannel&) = delete;
  TunedChannel& operator=(const TunedChannel&) = delete;
};

/// Forgets what was recorded.
void forget_nccl_uses();

/// Version 4 of NCCL's tuner interface, which NCCL 2.23 and later load. Names and meanings are NCCL's; the enumerations
/// and the logger that it passes are not used by their types here.
struct NcclTuner {
  const char* name;
  int (*init)(size_t ranks, size_t nodes, void* logger, void** context);
  /// `costs`: [algorithms][protocols] of float in one block, negative where NCCL rules a pair out; the least one is
  /// taken.
  int (*get_coll_info)(void* context, int function, size_t bytes, int pipelined, float** costs, int algorithms,
                       int protocols, int registered, int* channels);
  int (*destroy)(void* context);
};

}  // namespace slipstream::comm

extern "C" const slipstream::comm::NcclTuner ncclTunerPlugin_v4;
