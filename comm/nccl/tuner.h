// SPDX-License-Identifier: Apache-2.0
#pragma once
// NCCL's tuner, which is linked into the program. It applies the table and records NCCL's choices.

#include <string>

#include "comm/nccl/nccl_table.h"

namespace slipstream::comm {

/// While an object exists, communicators that NCCL makes in this process belong to this channel. Only one may exist at
/// a time.
class TunedChannel {
 public:
  TunedChannel(const std::string& name, const NcclChannel& channel);
  ~TunedChannel();
  TunedChannel(const TunedChannel&) = delete;
  TunedChannel& operator=(const TunedChannel&) = delete;
};

/// Clears the record.
void forget_nccl_uses();

/// Version 4 of NCCL's tuner interface, which NCCL 2.23 and later load. Names and meanings are NCCL's, but its
/// enumerations and its logger have other types here, because they are not used.
struct NcclTuner {
  const char* name;
  int (*init)(size_t ranks, size_t nodes, void* logger, void** context);
  /// `costs` is a float array [algorithms][protocols] in one block. A cost is negative where NCCL excludes a pair. NCCL
  /// takes the pair with the least cost.
  int (*get_coll_info)(void* context, int function, size_t bytes, int pipelined, float** costs, int algorithms,
                       int protocols, int registered, int* channels);
  int (*destroy)(void* context);
};

}  // namespace slipstream::comm

extern "C" const slipstream::comm::NcclTuner ncclTunerPlugin_v4;
