// SPDX-License-Identifier: Apache-2.0
// NCCL asks before every new size of a collective. The answer is a function of the table, and NCCL's choice is
// recorded.

#include "comm/nccl/tuner.h"

#include <bit>
#include <memory>
#include <mutex>
#include <tuple>

#include "engine/base/check.h"

namespace slipstream::comm {
namespace {

struct Tuned {
  std::string name = "unnamed";
  NcclChannel channel;
};
struct Uses {
  std::mutex mutex;
  Tuned next;
  std::map<std::tuple<std::string, Op, int64_t>, NcclUse> seen;
};
Uses& uses() {
  static Uses* all = new Uses;  // NCCL's threads may outlive statics
  return *all;
}

// ncclFunc_t: all_gather 2, reduce_scatter 3, all_reduce 4.
std::optional<Op> op_of(int function) {
  switch (function) {
    case 2:
      return Op::all_gather;
    case 3:
      return Op::reduce_scatter;
    case 4:
      return Op::all_reduce;
    default:
      return {};
  }
}

int init(size_t, size_t, void*, void** context) {
  Uses& all = uses();
  const std::lock_guard lock(all.mutex);
  *context = new Tuned(all.next);
  return 0;
}

int get_coll_info(void* context, int function, size_t bytes, int, float** costs, int algorithms, int protocols, int,
                  int*) {
  const auto& tuned = *static_cast<const Tuned*>(context);
  const std::optional<Op> op = op_of(function);
  if (!op) return 0;
  float* table = reinterpret_cast<float*>(costs);
  const auto cost = [&](int a, int p) -> float& { return table[a * protocols + p]; };
  NcclUse use{.channel = tuned.name, .op = *op, .up_to_bytes = static_cast<int64_t>(std::bit_ceil(bytes))};
  if (const std::optional<NcclChoice> asked = tuned.channel.choice(*op, static_cast<int64_t>(bytes))) {
    const int a = static_cast<int>(asked->algorithm), p = static_cast<int>(asked->protocol);
    // A pair that NCCL excludes on these links stays excluded; then NCCL's own choice is recorded.
    if (a < algorithms && p < protocols && cost(a, p) >= 0) {
      cost(a, p) = 0;
      use.from_table = true;
    }
  }
  float least = -1;
  for (int a = 0; a < algorithms; ++a)
    for (int p = 0; p < protocols; ++p)
      if (cost(a, p) >= 0 && (least < 0 || cost(a, p) < least)) {
        least = cost(a, p);
        use.algorithm = static_cast<NcclAlgorithm>(a);
        use.protocol = static_cast<NcclProtocol>(p);
      }
  if (least < 0) return 0;
  Uses& all = uses();
  const std::lock_guard lock(all.mutex);
  all.seen[{use.channel, use.op, use.up_to_bytes}] = use;
  return 0;
}

int destroy(void* context) {
  delete static_cast<Tuned*>(context);
  return 0;
}

}  // namespace

TunedChannel::TunedChannel(const std::string& name, const NcclChannel& channel) {
  Uses& all = uses();
  const std::lock_guard lock(all.mutex);
  all.next = {name, channel};
}
TunedChannel::~TunedChannel() {
  Uses& all = uses();
  const std::lock_guard lock(all.mutex);
  all.next = {};
}

std::vector<NcclUse> nccl_uses() {
  Uses& all = uses();
  const std::lock_guard lock(all.mutex);
  std::vector<NcclUse> list;
  for (const auto& [key, use] : all.seen) list.push_back(use);
  return list;
}

void forget_nccl_uses() {
  Uses& all = uses();
  const std::lock_guard lock(all.mutex);
  all.seen.clear();
}

}  // namespace slipstream::comm

extern "C" __attribute__((visibility("default"))) const slipstream::comm::NcclTuner ncclTunerPlugin_v4 = {
    "slipstream", slipstream::comm::init, slipstream::comm::get_coll_info, slipstream::comm::destroy};
