// SPDX-License-Identifier: Apache-2.0
// The keys whose values wait for later versions: a value without effect is refused, never ignored.

#include "engine/base/check.h"
#include "engine/config/fields.h"
#include "engine/config/validate.h"

namespace slipstream {
namespace {

using R = const RunConfig&;

}  // namespace

const std::vector<SupportedRow>& supported_rows() {
  static const std::vector<SupportedRow> rows = {
      {"model.init", [](R c) { return c.model.init.empty(); }, "leave it out: weights start random"},
      {"data.tokenizer", [](R c) { return c.data.tokenizer == "bytes" || c.data.tokenizer == "chars"; },
       "use \"bytes\" or \"chars\", or token shards made elsewhere"},
      {"optimizer.double_buffer", [](R c) { return !c.optimizer.double_buffer; }, "use false"},
      {"zero.stage",
       [](R c) {
         return c.zero.stage == 0 || (c.overlap.grad_reduce == GradReduce::bucketed && c.comm.grad_dtype == DType::f32);
       },
       "use 0, or overlap.grad_reduce = \"bucketed\" with comm.grad_dtype = \"float32\""},
      {"zero.persistence_threshold", [](R c) { return c.zero.persistence_threshold_bytes == 0; }, "leave it out"},
      {"zero.gather_dtype",
       [](R c) {
         return c.zero.gather_dtype == DTypeChoice::automatic ||
                (c.zero.gather_dtype == DTypeChoice::bfloat16) == (c.train.dtype == DType::bf16);
       },
       "use \"auto\""},
      {"overlap.max_inflight_buckets", [](R c) { return c.overlap.max_inflight_buckets == 0; },
       "use 0: one in-order channel already carries one bucket at a time"},
      {"overlap.param_gather", [](R c) { return c.overlap.param_gather; }, "leave it out"},
      {"comm.backend", [](R c) { return c.comm.backend != Backend::thread; }, "use \"auto\", \"nccl\" or \"mpi\""},
      {"comm.quantize", [](R c) { return c.comm.quantize == Quantize::none; }, "use \"none\""},
      {"checkpoint.interval", [](R c) { return c.checkpoint.interval == 0; },
       "use 0: the final weights are always saved"},
      {"checkpoint.keep", [](R c) { return c.checkpoint.keep == Checkpoint{}.keep; }, "leave it out"},
      {"checkpoint.async", [](R c) { return !c.checkpoint.async; }, "use false"},
  };
  return rows;
}

void require_supported(const RunConfig& config) {
  for (const SupportedRow& row : supported_rows()) {
    if (!row.supported(config))
      throw ConfigError("{} = {} is not supported by this version: {}.", row.key, field_text(config, row.key),
                        row.remedy);
  }
}

}  // namespace slipstream
