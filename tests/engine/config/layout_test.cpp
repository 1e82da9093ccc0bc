// SPDX-License-Identifier: Apache-2.0
// Laws between keys and the number of ranks: layouts, tensor parallelism, batches; every refusal is compared as text.

#include <cstdio>
#include <map>
#include <sstream>

#include "engine/config/defaults.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "tests/engine/config/refusals.h"

using namespace slipstream;
using namespace slipstream::tests;

TEST_CASE("layout: the product of the axes is the world size, or the error lists all axes", "[config]") {
  for (int world = 1; world <= 64; ++world) {
    CHECK(resolve_layout(with({}), world).data == world);
    const RunConfig mixed = with({"parallel.tensor=2", "parallel.pipeline=3"});
    if (world % 6 == 0) {
      const MeshSizes layout = resolve_layout(mixed, world);
      CHECK(layout.data * layout.tensor * layout.pipeline * layout.context == world);
    } else {
      CHECK_THROWS_AS(resolve_layout(mixed, world), ConfigError);
    }
  }
  const auto layout_refusal = [](const std::vector<std::string>& sets, int world) {
    return refusal([&] { resolve_layout(with(sets), world); });
  };
  CHECK(layout_refusal({"parallel.data=4"}, 6) ==
        "[parallel] data 4 x tensor 1 x pipeline 1 x context 1 = 4 ranks, but 6 were started. Legal layouts of 6 "
        "ranks, as data x tensor x pipeline x context: 6x1x1x1, 3x1x1x2, 3x1x2x1, 3x2x1x1, 2x1x3x1, 2x3x1x1, 1x1x6x1, "
        "1x6x1x1, 1x1x3x2, 1x2x3x1, 1x3x1x2, 1x3x2x1, or start 4 ranks.");
  // All legal layouts are listed: first those that use the same axes, and of these the nearest first.
  CHECK(layout_refusal({"model.layers=2", "train.sequence_length=6", "parallel.data=4", "parallel.tensor=4"}, 6) ==
        "[parallel] data 4 x tensor 4 x pipeline 1 x context 1 = 16 ranks, but 6 were started. Legal layouts of 6 "
        "ranks, as data x tensor x pipeline x context: 3x2x1x1, 2x3x1x1, 6x1x1x1, 1x6x1x1, 3x1x2x1, 1x3x2x1, 2x1x1x3, "
        "1x2x1x3, 1x1x2x3, or start 16 ranks.");
  const std::string many = layout_refusal({"parallel.tensor=3", "parallel.pipeline=3"}, 16);
  CHECK(many.find("[parallel] tensor 3 x pipeline 3 x context 1 = 9 ranks do not divide the 16 started ranks. Legal "
                  "layouts of 16 ranks, as data x tensor x pipeline x context: 1x4x4x1, 2x2x4x1, 2x4x2x1, 4x2x2x1, ") ==
        0);
  CHECK(many.find(", or start 9 or 18 ranks.") != std::string::npos);
  CHECK(layout_refusal({"parallel.tensor=3", "parallel.pipeline=5"}, 4096).find(" more, or start ") !=
        std::string::npos);
  CHECK(layout_refusal({"parallel.pipeline=12"}, 26).find("x13x") == std::string::npos);
  CHECK(layout_refusal({"model.heads=65536", "model.width=65536", "model.context=131072", "parallel.data=16777216",
                        "parallel.tensor=65536", "parallel.context=65536"},
                       6)
            .find("= 72057594037927936 ranks, but 6 were started.") != std::string::npos);
  CHECK(
      layout_refusal({"model.layers=5", "model.heads=5", "model.width=160", "parallel.pipeline=4",
                      "train.sequence_length=127", "train.micro_batch_size=2", "train.global_batch_size=16"},
                     7) ==
      "[parallel] tensor 1 x pipeline 4 x context 1 = 4 ranks do not divide the 7 started ranks. No layout of 7 ranks "
      "fits the rest of the run file (1x1x7x1, for instance: \"parallel.pipeline x pipeline.virtual_stages = 7 x 1 = 7 "
      "stages exceeds model.layers = 5. Use at most one stage per layer.\"). Change it, or start 4 or 8 ranks.");
  // Numbers of ranks are offered if they are legal: on 6 x 4 the batch does not divide, on 5 x 4 it does.
  CHECK(layout_refusal({"parallel.pipeline=4", "train.micro_batch_size=2", "train.global_batch_size=40"}, 23)
            .find(", or start 20 or 40 ranks.") != std::string::npos);
}

TEST_CASE("layout: errors offer only legal layouts, and list or count all of them", "[config]") {
  // The sizes are such that tensor, pipeline, context, data and the schedule each allow some of the layouts.
  constexpr int64_t kLayers = 12, kHeads = 6, kTokens = 48, kMicro = 2, kGlobal = 24;
  const std::vector<std::string> sizes{"model.layers=12",
                                       "model.heads=6",
                                       "model.width=96",
                                       "model.context=48",
                                       "train.sequence_length=48",
                                       "train.micro_batch_size=2",
                                       "train.global_batch_size=24"};
  // make_schedule()'s rule for interleaving, as this test states it.
  const auto goes_round = [](int64_t data, int64_t pipeline) { return kGlobal / kMicro / data % pipeline == 0; };
  const LayoutLaw law = [](const RunConfig& config, const Batch& batch) {
    if (config.pipeline.virtual_stages > 1 && batch.micro_batches % config.parallel.pipeline != 0)
      throw ConfigError("no rounds");
  };
  const auto may_be = [&](bool interleaved, int64_t data, int64_t tensor, int64_t pipeline, int64_t context) {
    return kHeads % tensor == 0 && (context == 1 || kTokens % (2 * context) == 0) && kGlobal % (kMicro * data) == 0 &&
           (interleaved && pipeline > 1 ? kLayers % (2 * pipeline) == 0 && goes_round(data, pipeline)
                                        : pipeline <= kLayers);
  };
  int checked = 0, counted = 0;
  for (bool interleaved : {false, true})
    for (const char* asked :
         {"parallel.tensor=6", "parallel.pipeline=2", "parallel.pipeline=5", "parallel.context=8", "parallel.data=12"})
      for (int world = 1; world <= 72; ++world) {
        std::vector<std::string> sets = sizes;
        if (interleaved) {
          if (std::string(asked) == "parallel.pipeline=5") continue;  // refused before ranks are counted
          sets.insert(sets.end(), {"pipeline.schedule=interleaved_1f1b", "pipeline.virtual_stages=2"});
        }
        sets.push_back(asked);
        const std::string sentence = refusal([&] { resolve_layout(with(sets), world, law); });
        if (sentence == "accepted") continue;
        INFO(sentence);
        int legal = 0;
        for (int data = 1; data <= world; ++data)
          for (int tensor = 1; tensor <= world / data; ++tensor)
            for (int pipeline = 1; pipeline <= world / data / tensor; ++pipeline) {
              const int context = world / data / tensor / pipeline;
              legal +=
                  data * tensor * pipeline * context == world && may_be(interleaved, data, tensor, pipeline, context);
            }
        // "Legal layouts of 6 ranks, as data x tensor x pipeline x context: 2x1x3x1, 6x1x1x1 and 3 more, or start 4 or
        // 8 ranks."
        int offered = 0;
        const std::string begin = "as data x tensor x pipeline x context: ";
        if (const size_t at = sentence.find(begin); at != std::string::npos) {
          std::istringstream words(sentence.substr(at + begin.size()));
          for (std::string word; words >> word && word != "or";) {
            int64_t data = 0, tensor = 0, pipeline = 0, context = 0;
            if (std::sscanf(word.c_str(), "%ldx%ldx%ldx%ld", &data, &tensor, &pipeline, &context) == 4) {
              CHECK(data * tensor * pipeline * context == world);
              CHECK(may_be(interleaved, data, tensor, pipeline, context));
              ++offered;
            } else if (word == "and") {
              CHECK(offered == 30);
              words >> word;
              offered += std::stoi(word);
              ++counted;
            }
          }
        } else {
          CHECK(sentence.find("No layout of ") != std::string::npos);
        }
        CHECK(offered == legal);
        if (const size_t at = sentence.find(", or start "); at != std::string::npos) {
          std::istringstream words(sentence.substr(at + 11));
          for (std::string word; words >> word && !word.starts_with("ranks");) {
            if (word == "or") continue;
            CHECK(refusal([&] {
                    const MeshSizes layout = resolve_layout(with(sets), std::stoi(word), law);
                    const Batch batch = resolve_batch(with(sets), layout.data);
                    law(with(sets), batch);
                  }) == "accepted");
          }
        }
        ++checked;
      }
  CHECK(checked > 100);
  CHECK(counted > 0);
}

TEST_CASE("no effect: each setting of an axis of one rank is noted and left out", "[config]") {
  const std::vector<std::string> sets{"parallel.sequence_parallel=true",
                                      "overlap.p2p=false",
                                      "overlap.tensor_chunks=8",
                                      "overlap.align_grad_reduce=true",
                                      "pipeline.schedule=interleaved_1f1b",
                                      "pipeline.virtual_stages=3",
                                      "pipeline.layers=[1, 2, 2, 2, 2, 3]"};
  const auto also = [&](std::vector<std::string> more) {
    more.insert(more.end(), sets.begin(), sets.end());
    return with(more);
  };
  const std::vector<std::string> of_tensor{"parallel.sequence_parallel = true has no effect with parallel.tensor = 1",
                                           "overlap.tensor_chunks = 8 has no effect with parallel.tensor = 1"},
      of_pipeline{"overlap.p2p = false has no effect with parallel.pipeline = 1",
                  "overlap.align_grad_reduce = true has no effect with parallel.pipeline = 1",
                  "pipeline.schedule = \"interleaved_1f1b\" has no effect with parallel.pipeline = 1",
                  "pipeline.virtual_stages = 3 has no effect with parallel.pipeline = 1",
                  "pipeline.layers = [1, 2, 2, 2, 2, 3] has no effect with parallel.pipeline = 1"};
  // The notes are in the order of the fields.
  std::vector<std::string> both{of_tensor[0], of_pipeline[0], of_tensor[1]};
  both.insert(both.end(), of_pipeline.begin() + 1, of_pipeline.end());
  CHECK(without_effect(with({})).empty());
  CHECK(without_effect(also({"parallel.tensor=2", "parallel.pipeline=2"})).empty());
  CHECK(without_effect(also({"parallel.tensor=2"})) == of_pipeline);
  CHECK(without_effect(also({"parallel.pipeline=2"})) == of_tensor);
  CHECK(without_effect(also({})) == both);
  CHECK(without_effect(with({"pipeline.schedule_file=a.csv"})).size() == 1);
  const std::vector<std::string> third{"zero.stage=2", "zero.prefetch_depth=2", "zero.reshard_after_forward=false",
                                       "zero.persistence_threshold=64KiB"};
  CHECK(without_effect(with(third)) ==
        std::vector<std::string>{"zero.prefetch_depth = 2 has no effect with zero.stage = 2",
                                 "zero.reshard_after_forward = false has no effect with zero.stage = 2",
                                 "zero.persistence_threshold = \"64KiB\" has no effect with zero.stage = 2"});
  CHECK(config_toml(in_effect(with(third))) == config_toml(with({"zero.stage=2"})));
  const std::vector<std::string> of_muon{"optimizer.adamw_learning_rate=1e-3", "optimizer.momentum=0.9",
                                         "optimizer.muon_scaling=original"};
  CHECK(
      without_effect(with(of_muon)) ==
      std::vector<std::string>{"optimizer.adamw_learning_rate = 0.001 has no effect with optimizer.name = \"adamw\"",
                               "optimizer.momentum = 0.9 has no effect with optimizer.name = \"adamw\"",
                               "optimizer.muon_scaling = \"original\" has no effect with optimizer.name = \"adamw\""});
  CHECK(config_toml(in_effect(with(of_muon))) == config_toml(with({})));
  CHECK(without_effect(with({"train.recompute_layers=3"})) ==
        std::vector<std::string>{"train.recompute_layers = 3 has no effect with train.recompute = \"none\""});
  CHECK(without_effect(with({"train.recompute_layers=3", "train.recompute=full"})).empty());
  // The remaining settings are the file without them; settings with an effect stay.
  CHECK(config_toml(in_effect(also({}))) == config_toml(with({})));
  const RunConfig all = also({"parallel.tensor=2", "parallel.pipeline=2"});
  CHECK(config_toml(in_effect(all)) == config_toml(all));
  // Laws about settings without effect are not applied: three parts of one layer, or slots that gradients must leave.
  CHECK(load_refusal({"model.layers=1", "pipeline.schedule=interleaved_1f1b", "pipeline.virtual_stages=3"}) ==
        "accepted");
  CHECK(load_refusal({"overlap.align_grad_reduce=true", "zero.stage=3"}) == "accepted");
}

TEST_CASE("tensor parallelism: sizes that ranks cannot share are refused with the numbers", "[config]") {
  CHECK(load_refusal({"model.family=llama", "model.heads=12", "model.kv_heads=2", "parallel.tensor=4"}) == "accepted");
  CHECK(load_refusal({"model.family=llama", "model.heads=12", "model.kv_heads=6", "parallel.tensor=4"}) ==
        "parallel.tensor = 4 and model.kv_heads = 6: neither divides the other. Each rank computes whole heads and "
        "equal parts of the hidden units. Use one of 1, 2.");
  CHECK(load_refusal({"parallel.tensor=5"}).find("does not divide model.heads = 12") != std::string::npos);
  CHECK(load_refusal({"model.ffn_width=42", "parallel.tensor=4"}).find("does not divide model.ffn_width = 42") !=
        std::string::npos);
  CHECK(load_refusal({"parallel.tensor=4", "parallel.sequence_parallel=true", "train.micro_batch_size=1",
                      "train.sequence_length=7"}) ==
        "parallel.sequence_parallel needs the 1 x 7 = 7 tokens of a micro-batch to be a multiple of parallel.tensor = "
        "4. Change train.micro_batch_size or "
        "train.sequence_length.");
}

TEST_CASE("batch: micro-batch x data ranks divides the global batch, or the error names the nearest batch",
          "[config]") {
  CHECK(resolve_batch(with({}), 3).global_batch_size == 24);
  CHECK(resolve_batch(with({}), 3).micro_batches == 1);
  const RunConfig config = with({"train.global_batch_size=24", "train.micro_batch_size=3"});
  for (int ranks = 1; ranks <= 16; ++ranks) {
    if (24 % (3 * ranks) == 0) {
      const Batch batch = resolve_batch(config, ranks);
      CHECK(batch.micro_batches * 3 * ranks == 24);
      CHECK(batch.global_batch_size == 24);
    } else {
      CHECK_THROWS_AS(resolve_batch(config, ranks), ConfigError);
    }
  }
  CHECK(refusal([&] { resolve_batch(config, 3); }) ==
        "train.global_batch_size = 24 is not a multiple of train.micro_batch_size x data ranks = 3 x 3 = 9. Use 18 or "
        "27 (0 means 9), or change micro_batch_size or the ranks.");
  CHECK(refusal([&] { resolve_batch(config, 16); }) ==
        "train.global_batch_size = 24 is not a multiple of train.micro_batch_size x data ranks = 3 x 16 = 48. Use 48 "
        "(0 means 48), or change micro_batch_size or the ranks.");
  // A plan lists every layer of every micro-batch.
  const auto many = [](const std::string& global, const std::string& micro) {
    return with({"model.layers=8", "train.global_batch_size=" + global, "train.micro_batch_size=" + micro});
  };
  CHECK(resolve_batch(many("16384", "1"), 1).micro_batches == 16384);
  CHECK(resolve_batch(many("1073741824", "65536"), 1).micro_batches == 16384);
  CHECK(resolve_batch(many("32768", "1"), 2).micro_batches == 16384);
  CHECK(
      refusal([&] { resolve_batch(many("32768", "1"), 1); }) ==
      "train.global_batch_size = 32768 in micro-batches of 1 on 1 data rank is 32768 micro-batches per rank and step, "
      "each of model.layers = 8. A plan lists every layer of every micro-batch, at most 131072; these 262144 would "
      "take about 3.00 GiB of memory and 163 s on every rank. Use train.micro_batch_size = 2 or larger, or more data "
      "ranks.");
  CHECK(refusal([&] { resolve_batch(many("1073741824", "1"), 1); }).find("Use train.micro_batch_size = 65536") !=
        std::string::npos);
}
