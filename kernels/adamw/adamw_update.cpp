// SPDX-License-Identifier: Apache-2.0
// Binds AdamW to the shards of an update.

#include "kernels/adamw/adamw_update.h"

#include "kernels/adamw/adamw.h"

namespace slipstream::kernels {

std::function<void(LaunchContext&)> adamw_update(const Job& job, const Item& item, const UpdateOptions& update) {
  return [shards = update_shards(job, item),
          rounds = job.groups[static_cast<size_t>(item.group)].placement.rounds_updates(), update,
          scalars = scalars_of(job, job.groups[static_cast<size_t>(item.group)])](LaunchContext& c) {
    for (const UpdateShard& shard : shards) {
      Adamw args{.parameters = c.as<float>(shard.master),
                 .m = c.as<float>(shard.states[0]),
                 .v = c.as<float>(shard.states[1]),
                 .gradient = c.as<float>(shard.gradient),
                 .elems = shard.elems,
                 .scalars = c.as<AdamwScalars>(scalars),
                 .beta1 = static_cast<float>(update.beta1),
                 .beta2 = static_cast<float>(update.beta2),
                 .eps = static_cast<float>(update.eps),
                 .weight_decay = static_cast<float>(update.weight_decay),
                 .spans = shard.spans.data(),
                 .span_count = std::ssize(shard.spans)};
      if (!(shard.updated == shard.master)) args.updated = c.as<float>(shard.updated);
      if (rounds) args.working = c.as<bfloat16>(shard.working);
      adamw(c, args);
    }
  };
}

}  // namespace slipstream::kernels
