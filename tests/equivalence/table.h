// SPDX-License-Identifier: Apache-2.0
#pragma once
// The layouts whose plans are mutated, guarded and raced: every strategy, with every setting that changes its tasks.

#include <string>
#include <vector>

#include "tests/equivalence/trained.h"
#include "tests/sample.h"

namespace slipstream::equivalence {

/// Models so small that a work uses a few pages.
inline models::ModelOptions smallest(Family family) {
  const bool gpt2 = family == Family::gpt2;
  return {.family = family,
          .layers = 3,
          .heads = gpt2 ? 2 : 4,
          .kv_heads = 2,
          .width = gpt2 ? 8 : 16,
          .ffn_width = 20,
          .context = 5,
          .vocab = gpt2 ? 67 : 19,
          .tie_embeddings = gpt2,
          .tokens = 5};
}

/// Muon for the matrices of layers, and AdamW with half of its learning rate for the other parameters.
inline std::vector<GroupRule> muon_on_matrices() {
  const auto matrices = [](const ModelSpec& model, const ParameterSpec& parameter) {
    return parameter.tensors[0].shape.size() == 2 && parameter.layer >= 0 && parameter.layer < model.layers;
  };
  const OptimizerSpec& adamw = optimizers()[static_cast<size_t>(OptimizerName::adamw)];
  const OptimizerSpec& muon = optimizers()[static_cast<size_t>(OptimizerName::muon)];
  return {{"matrices", &muon, matrices}, {"rest", &adamw, nullptr, 0.5}};
}

/// Adds a layout of divided experts, which have rows that travel by counts or gathered tokens, and a group of
/// parameters over other ranks.
template <typename Change>
void add_experts(std::vector<Layout>& rows, bool wanted, const std::string& name, const Change& change) {
  if (!wanted) return;
  Layout row{.name = "mixtral " + name,
             .model = smallest(Family::mixtral),
             .ranks = 2,
             .micro_batch = 2,
             .expert = 2,
             .bucket_bytes = 512,
             .first_bucket_bytes = 256};
  row.model.experts = {.count = 4, .top_k = 2, .ffn_width = 12};
  row.model.split_tied_embedding = false;
  change(row);
  rows.push_back(std::move(row));
}

/// Experts are sharded over the ranks that hold the same ones, whole where there is only one of them, and over these
/// ranks of a group of shards.
inline void add_sharded_experts(std::vector<Layout>& rows, bool everything) {
  const auto add = [&](bool in_sample, const std::string& name, const auto& change) {
    add_experts(rows, everything || in_sample, name, change);
  };
  for (const int stage : {2, 3}) {
    const std::string zero = ", ZeRO-" + std::to_string(stage);
    add(true, "experts over 2 of 4" + zero + ", 2 micro-batches",
        [&](Layout& l) { l.ranks = 4, l.zero_stage = stage, l.micro_batches = 2, l.update_on_spine = stage == 2; });
    add(stage == 3, "experts over 2" + zero + ", 2 micro-batches",
        [&](Layout& l) { l.zero_stage = stage, l.micro_batches = 2; });
    add(true, "experts over 2 of 4" + zero + ", recompute full, no clipping",
        [&](Layout& l) { l.ranks = 4, l.zero_stage = stage, l.recompute = Recomputation::full, l.max_norm = 0; });
    add(stage == 3, "experts over 2 of 4" + zero + ", bfloat16 gradients and parameters", [&](Layout& l) {
      l.ranks = 4, l.zero_stage = stage, l.wire_dtype = DType::bf16, l.gather_dtype = DType::bf16;
    });
  }
  add(true, "experts over 2, ZeRO-1, bfloat16 gradients and parameters",
      [](Layout& l) { l.zero_stage = 1, l.wire_dtype = DType::bf16, l.gather_dtype = DType::bf16; });
  add(true, "experts over 2 of 4, ZeRO-3, 3 micro-batches in paired passes",
      [](Layout& l) { l.ranks = 4, l.zero_stage = 3, l.micro_batches = 3, l.order = make_paired_schedule(3); });
  add(true, "experts over 2 of 4, ZeRO-3, 1f1b 2, 2 micro-batches",
      [](Layout& l) { l.ranks = 4, l.zero_stage = 3, l.stages = 2, l.micro_batches = 2; });
  add(false, "experts over 2 of 4, ZeRO-3, zb_h1 2, 2 micro-batches", [](Layout& l) {
    l.ranks = 4, l.zero_stage = 3, l.stages = 2, l.schedule = ScheduleKind::zb_h1, l.micro_batches = 2;
  });
  add(false, "experts over 2 of 4, ZeRO-3, small parameters stay, 2 micro-batches",
      [](Layout& l) { l.ranks = 4, l.zero_stage = 3, l.micro_batches = 2, l.persistent_elems = 48; });
  for (const int stage : {1, 2, 3})
    for (const auto& [ranks, expert] : {std::pair{8, 2}, {4, 2}, {8, 4}})  // groups of shards of 4, 2 and 2 ranks
      add(stage == 3 && expert == 2,
          fmt::format("experts over {} of {}, ZeRO-{} in groups of {}, 2 micro-batches", expert, ranks, stage,
                      ranks == 8 && expert == 2 ? 4 : 2),
          [&, ranks = ranks, expert = expert](Layout& l) {
            l.ranks = ranks, l.expert = expert, l.zero_stage = stage, l.micro_batches = 2;
            l.shard_size = ranks == 8 && expert == 2 ? 4 : 2;
          });
  add(false, "experts over 2 of 8, ZeRO-3 in groups of 4, int8 gradients fed back", [](Layout& l) {
    l.ranks = 8, l.zero_stage = 3, l.shard_size = 4, l.wire_dtype = kInt8, l.error_feedback = true;
  });
  for (const int stage : {0, 1})
    add(stage == 1, "experts over 2 of 4, Muon, ZeRO-" + std::to_string(stage),
        [&](Layout& l) { l.ranks = 4, l.zero_stage = stage, l.groups = muon_on_matrices(); });
}

/// Ranks that divide experts gather the tokens of all of them.
inline void add_gathered_experts(std::vector<Layout>& rows, bool everything) {
  const auto add = [&](bool in_sample, const std::string& name, const auto& change) {
    add_experts(rows, everything || in_sample, name, [&](Layout& l) {
      l.model.expert_exchange = ExpertExchange::gather;
      change(l);
    });
  };
  add(true, "experts over 2, gathered tokens, 2 micro-batches", [](Layout& l) { l.micro_batches = 2; });
  add(true, "", [](Layout& l) {
    l.name = "qwen3_moe experts over 2 of 4, gathered tokens, a shared expert, ZeRO-1, recompute full";
    l.model.family = Family::qwen3_moe, l.model.head_dim = 4, l.model.experts.shared = 1;
    l.ranks = 4, l.zero_stage = 1, l.recompute = Recomputation::full;
  });
  add(true, "experts over 2, gathered tokens, 3 micro-batches in paired passes",
      [](Layout& l) { l.micro_batches = 3, l.order = make_paired_schedule(3); });
  add(false, "experts over 2, gathered tokens, zb_h1 2, 2 micro-batches",
      [](Layout& l) { l.stages = 2, l.schedule = ScheduleKind::zb_h1, l.micro_batches = 2; });
}

inline std::vector<Layout> with_experts(std::vector<Layout> rows, bool everything) {
  const auto add = [&](bool in_sample, const std::string& name, const auto& change) {
    add_experts(rows, everything || in_sample, name, change);
  };
  add(true, "experts over 2, 2 micro-batches", [](Layout& l) { l.micro_batches = 2; });
  add(true, "experts over 2 of 4, ZeRO-1, recompute full",
      [](Layout& l) { l.ranks = 4, l.zero_stage = 1, l.recompute = Recomputation::full; });
  add(true, "experts over 2, 3 micro-batches in paired passes",
      [](Layout& l) { l.micro_batches = 3, l.order = make_paired_schedule(3); });
  add(true, "experts over 2, 3 micro-batches in paired passes, recompute selective", [](Layout& l) {
    l.micro_batches = 3, l.order = make_paired_schedule(3), l.recompute = Recomputation::selective;
  });
  add(true, "experts over 2 in two rounds",
      [](Layout& l) { l.micro_batches = 2, l.model.experts.capacity_factor = 1; });
  add(false, "experts over 2 in two rounds, 3 micro-batches in paired passes",
      [](Layout& l) { l.micro_batches = 3, l.order = make_paired_schedule(3), l.model.experts.capacity_factor = 1; });
  add_gathered_experts(rows, everything);
  add(false, "experts over context 2",
      [](Layout& l) { l.ranks = 1, l.context = 2, l.model.tokens = l.model.context = 4; });
  const auto balanced = [](Layout& l) {  // the counts of a sequence's choices are sums over its ranks
    l.ranks = 1, l.context = 2, l.model.tokens = l.model.context = 4;
    l.model.experts.balance = ExpertBalance::auxiliary, l.model.experts.balance_rate = 0.1;
  };
  add(true, "experts over context 2, auxiliary loss, 2 micro-batches",
      [&](Layout& l) { balanced(l), l.micro_batches = 2; });
  add(false, "auxiliary loss of experts, context 2, zb_h1 2, 2 micro-batches", [&](Layout& l) {
    balanced(l), l.expert = 1, l.stages = 2, l.schedule = ScheduleKind::zb_h1, l.micro_batches = 2;
  });
  add(false, "experts over 2, zb_h1 2, 2 micro-batches",
      [](Layout& l) { l.stages = 2, l.schedule = ScheduleKind::zb_h1, l.micro_batches = 2; });
  add_sharded_experts(rows, everything);
  return rows;
}

inline std::vector<Layout> strategies(bool everything) {
  std::vector<Layout> rows;
  const auto add = [&](std::string name, Family family, auto change) {
    Layout row{.name = std::move(name),
               .model = smallest(family),
               .ranks = 2,
               .micro_batch = 2,
               .bucket_bytes = 512,
               .first_bucket_bytes = 256};
    change(row);
    rows.push_back(std::move(row));
  };
  using F = Family;
  const auto on = [](bool spine) { return spine ? "" : ", update beside the spine"; };
  for (F family : {F::gpt2, F::llama}) {
    const std::string model = family == F::gpt2 ? "gpt2 " : "llama ";
    for (bool spine : {true, false}) {
      if (!everything && spine == (family == F::llama)) continue;
      for (ReduceMode reduce_mode :
           {ReduceMode::naive, ReduceMode::flat, ReduceMode::per_parameter, ReduceMode::bucketed})
        add(model + name_of(reduce_mode) + on(spine), family,
            [&](Layout& l) { l.reduce_mode = reduce_mode, l.update_on_spine = spine; });
      for (int micro_batches : {1, 2})
        for (float max_norm : {0.5f, 0.0f}) {
          if (!everything && (micro_batches == 2) != (max_norm > 0)) continue;
          const std::string knobs = (micro_batches > 1 ? ", 2 micro-batches" : "") +
                                    std::string(max_norm > 0 ? "" : ", no clipping") + on(spine);
          for (int stage : {1, 2, 3})
            for (int depth : {0, 1, 2, 3}) {
              if (stage < 3 ? depth != 1 : !everything && depth == 3) continue;
              add(model + "ZeRO-" + std::to_string(stage) + (stage == 3 ? ", prefetch " + std::to_string(depth) : "") +
                      knobs,
                  family, [&](Layout& l) {
                    l.model.split_tied_embedding = false;
                    l.zero_stage = stage, l.prefetch_depth = depth, l.micro_batches = micro_batches,
                    l.max_norm = max_norm, l.update_on_spine = spine;
                  });
            }
        }
    }
    for (int stage : {1, 3})
      add(model + "ZeRO-" + std::to_string(stage) + " in groups of 2 of 4, 2 micro-batches", family, [&](Layout& l) {
        l.model.split_tied_embedding = false;
        l.ranks = 4, l.shard_size = 2, l.zero_stage = stage, l.micro_batches = 2;
      });
    for (Recomputation how : {Recomputation::selective, Recomputation::full})
      add(model + "ZeRO-3, 2 micro-batches, recompute " + name_of(how), family, [&](Layout& l) {
        l.model.split_tied_embedding = false;
        l.zero_stage = 3, l.micro_batches = 2, l.recompute = how;
      });
    add(model + "ZeRO-3, kept after forward, 2 micro-batches", family, [](Layout& l) {
      l.model.split_tied_embedding = false;
      l.zero_stage = 3, l.micro_batches = 2, l.reshard_after_forward = false;
    });
    // Layouts with one exchange, and with three, which swap the buffers twice. The last row combines data ranks, ZeRO-3
    // and accumulation.
    for (int context : {2, 3, 4}) {
      if (!everything && context != (family == F::gpt2 ? 4 : 2)) continue;
      add(model + "context " + std::to_string(context), family,
          [&](Layout& l) { l.ranks = 1, l.context = context, l.model.tokens = l.model.context = 2 * context; });
    }
    add(model + "context 2 x data 2, ZeRO-3, 2 micro-batches", family, [](Layout& l) {
      l.model.split_tied_embedding = false;
      l.context = 2, l.model.tokens = l.model.context = 8, l.zero_stage = 3, l.micro_batches = 2;
    });
    for (bool sequence : {false, true})
      add(model + "tensor 2" + (sequence ? ", sequence parallel, recompute full" : "") + ", 2 chunks, 2 micro-batches",
          family, [&](Layout& l) {
            l.recompute = sequence ? Recomputation::full : Recomputation::none;
            l.model.tokens = l.model.context = 6;
            l.ranks = 1, l.tensor = 2, l.sequence_parallel = sequence, l.tensor_chunks = 2, l.micro_batches = 2;
          });
    // Masks need the numbers of the sequences on every rank and stage.
    add(model + "dropout, tensor 2, sequence parallel, recompute full, 2 chunks", family, [](Layout& l) {
      l.model.dropout = {.embedding = 0.1, .residual = 0.2, .attention = 0.3, .seed = 1};
      l.model.tokens = l.model.context = 6;
      l.ranks = 1, l.tensor = 2, l.sequence_parallel = true, l.tensor_chunks = 2, l.recompute = Recomputation::full;
    });
    add(model + "dropout, context 2, three stages, 2 micro-batches", family, [](Layout& l) {
      l.model.dropout = {.embedding = 0.1, .residual = 0.2, .attention = 0.3, .seed = 1};
      l.model.tokens = l.model.context = 4;
      l.ranks = 1, l.context = 2, l.stages = 3, l.micro_batches = 2;
    });
    // Encoded transfers have works around collectives, and buffers that buckets share.
    for (int stage : {1, 2, 3}) {
      const auto in_another = [&](const std::string& what, auto change) {
        add(model + "ZeRO-" + std::to_string(stage) + ", " + what, family, [&](Layout& l) {
          l.model.split_tied_embedding = false;
          l.zero_stage = stage, l.micro_batches = stage == 1 ? 1 : 2, l.max_norm = stage == 2 ? 0.0f : 0.5f,
          l.update_on_spine = stage != 2;
          change(l);
        });
      };
      in_another("bfloat16 gradients and parameters",
                 [](Layout& l) { l.wire_dtype = DType::bf16, l.gather_dtype = DType::bf16; });
      in_another("int8 gradients fed back, and parameters",
                 [](Layout& l) { l.wire_dtype = kInt8, l.error_feedback = true, l.gather_dtype = kInt8; });
    }
    add(model + "ZeRO-3 in groups of 2 of 4, bfloat16 gradients", family, [](Layout& l) {
      l.model.split_tied_embedding = false;
      l.ranks = 4, l.shard_size = 2, l.zero_stage = 3, l.wire_dtype = DType::bf16;
    });
    // Gradients are quantised inside a group, and their sum is in float across groups.
    add(model + "ZeRO-2 in groups of 2 of 4, int8 gradients fed back, 2 micro-batches", family, [](Layout& l) {
      l.model.split_tied_embedding = false;
      l.ranks = 4, l.shard_size = 2, l.zero_stage = 2, l.wire_dtype = kInt8, l.error_feedback = true,
      l.micro_batches = 2;
    });
    add(model + "ZeRO-3, small parameters stay, 2 micro-batches", family, [](Layout& l) {
      l.model.split_tied_embedding = false;
      l.zero_stage = 3, l.micro_batches = 2, l.persistent_elems = 48;
    });
    for (int stage : {0, 1, 2})
      add(model + "two copies of the weights, ZeRO-" + std::to_string(stage) + (stage == 1 ? "" : ", no clipping"),
          family, [&](Layout& l) {
            l.model.split_tied_embedding = false;
            l.zero_stage = stage, l.double_buffer = true, l.max_norm = stage == 1 ? 0.5f : 0.0f,
            l.micro_batches = stage == 2 ? 2 : 1;
            if (stage == 2) l.model.dtype = DType::bf16;
          });
    add(model + "int8 gradients fed back", family, [](Layout& l) { l.wire_dtype = kInt8, l.error_feedback = true; });
    add(model + "one update at the end, no clipping", family,
        [](Layout& l) { l.optimizer_per_bucket = false, l.max_norm = 0; });
    add(model + "bfloat16, on the wire too, 2 micro-batches", family, [](Layout& l) {
      l.model.dtype = DType::bf16, l.wire_dtype = DType::bf16;
      l.micro_batches = 2;
    });
    for (bool hybrid : {false, true})
      add(model + "bfloat16 gradients summed by exchange" + (hybrid ? ", ZeRO-1 in groups of 2 of 4" : ""), family,
          [&](Layout& l) {
            l.wire_dtype = DType::bf16, l.sums_by_exchange = true;
            if (hybrid) l.model.split_tied_embedding = false, l.ranks = 4, l.shard_size = 2, l.zero_stage = 1;
          });
    // Stages have transfers, copies of a tied table, residuals at cuts, split-off gradients of weights, and waits for
    // each other before they reduce.
    const auto add_pipeline = [&](bool in_sample, std::string name, ScheduleKind schedule, auto change) {
      if (!everything && !in_sample) return;
      add(model + std::move(name), family, [&](Layout& l) {
        l.ranks = 1, l.stages = 2, l.schedule = schedule, l.micro_batches = 2;
        change(l);
      });
    };
    add_pipeline(family == F::llama, "1f1b 2", ScheduleKind::one_f_one_b, [](Layout&) {});
    add_pipeline(family == F::gpt2, "1f1b 2 x data 2, stages reduce together", ScheduleKind::one_f_one_b,
                 [](Layout& l) { l.ranks = 2, l.align_grad_reduce = true; });
    add_pipeline(family == F::gpt2, "interleaved 2 x 2", ScheduleKind::interleaved_1f1b,
                 [](Layout& l) { l.virtual_stages = 2, l.model.layers = 4; });
    add_pipeline(family == F::llama, "zb_h1 2 x data 2, ZeRO-3", ScheduleKind::zb_h1, [](Layout& l) {
      l.model.split_tied_embedding = false;
      l.ranks = 2, l.zero_stage = 3;
    });
    add_pipeline(family == F::gpt2, "zb_v 2 x data 2", ScheduleKind::zb_v,
                 [](Layout& l) { l.ranks = 2, l.virtual_stages = 2, l.model.layers = 4; });
    add(model + "3 ranks, tied the other way, 2 micro-batches", family, [](Layout& l) {
      l.ranks = 3;
      l.micro_batches = 2;
      l.model.vocab = 19;
      l.model.tie_embeddings = !l.model.tie_embeddings;
    });
  }
  return with_experts(std::move(rows), everything);
}

/// A row of the table of ZeRO: stages x ranks x accumulation x prefetch x groups.
struct ZeroRow {
  Family family;
  int stage, ranks, micro_batches, depth, groups;
  bool unsharded;  // in stage 2, gradients are whole until the last micro-batch

  bool has_order_of_stage_0() const { return groups == 1 && (micro_batches == 1 || stage <= 1 || unsharded); }
  Layout layout() const {
    Layout l{.name = std::string(family == Family::gpt2 ? "gpt2" : "llama") + " ZeRO-" + std::to_string(stage) +
                     " on " + std::to_string(ranks) + ", groups " + std::to_string(groups) + ", " +
                     std::to_string(micro_batches) + " micro-batches, prefetch " + std::to_string(depth) +
                     (unsharded ? ", accumulates whole gradients" : ""),
             .model = smallest(family),
             .ranks = ranks,
             .micro_batch = 48 / ranks / micro_batches,
             .bucket_bytes = 1024,
             .first_bucket_bytes = 256};
    l.model.layers = 5;  // more than the deepest prefetch has slots
    l.model.split_tied_embedding = false;
    l.micro_batches = micro_batches, l.zero_stage = stage, l.prefetch_depth = depth, l.accumulate_unsharded = unsharded;
    l.shard_size = groups > 1 ? ranks / groups : 0;
    // Both forms: the update on the compute stream and on its own stream.
    l.update_on_spine = (stage + ranks + depth) % 2 == 0;
    return l;
  }
};

inline std::vector<ZeroRow> zero_rows(bool everything) {
  std::vector<ZeroRow> rows;
  for (Family family : {Family::gpt2, Family::llama})
    for (int ranks : {1, 2, 3, 4})
      for (int micro_batches : {1, 4})
        for (int stage : {0, 1, 2, 3})
          for (int depth : {1, 2, 3})
            for (int groups : {1, 2})
              for (bool unsharded : {false, true}) {
                if (stage < 3 && depth > 1) continue;
                if (groups > 1 && (stage == 0 || ranks < 4)) continue;
                if (unsharded && (stage != 2 || micro_batches == 1)) continue;
                rows.push_back({family, stage, ranks, micro_batches, depth, groups, unsharded});
              }
  if (everything) return rows;
  // Rows that contain every value of every column.
  std::vector<ZeroRow> sample;
  for (size_t i = 0; i < rows.size(); ++i)
    if (i % 6 == 1) sample.push_back(rows[i]);
  return sample;
}

}  // namespace slipstream::equivalence
