// SPDX-License-Identifier: Apache-2.0
// The ranges of keys and queries that masks leave for a tile, pair by pair, and the factors of dropout in the fragments
// of tensor cores, element by element.

#include <launch.h>

#include "kernels/attention/fragment_dropout.cuh"
#include "kernels/attention/hidden_keys.cuh"
#include "tests/kernels/common/backend.h"
#include "tests/reference/dropout.h"
#include "tests/reference/packed_attention.h"
#include "tests/sample.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

constexpr int kTile = 16;

/// Of every tile: its first tile of keys, and the end of the queries that see its keys. One warp.
__global__ void ranges_kernel(HiddenKeys keys, int64_t sequence, int32_t* before, int32_t* keys_begin,
                              int32_t* queries_end) {
  const int lane = static_cast<int>(threadIdx.x);
  for (int64_t i = lane; i < keys.block.queries; i += kWarp) before[i] = static_cast<int32_t>(keys.before(sequence, i));
  for (int64_t begin = 0; begin < keys.block.queries; begin += kTile)
    if (lane == 0) keys_begin[begin / kTile] = static_cast<int32_t>(keys.keys_begin<kTile>(sequence, begin));
  for (int64_t begin = 0; begin < keys.block.keys; begin += kTile) {
    const int64_t first = keys.block.causal ? begin : 0, end = keys.queries_end(sequence, first, begin + kTile);
    if (lane == 0) queries_end[begin / kTile] = static_cast<int32_t>(end);
  }
}

void check_ranges(int64_t tokens, int ranks, int64_t window, int64_t longest) {
  const reference::AttentionShape shape{2, tokens, 1, 1, 1};
  const std::vector<int32_t> begins = longest > 0 ? reference::document_begins(shape, longest) : std::vector<int32_t>();
  for (int rank = 0; rank < ranks; ++rank)
    for (int owner = 0; owner < ranks; ++owner)
      for (int64_t sequence : {0, 1}) {
        const ContextChunks queries{.tokens = tokens, .ranks = ranks, .rank = rank},
            keys{.tokens = tokens, .ranks = ranks, .rank = owner};
        const int64_t local = queries.local_tokens();
        CAPTURE(tokens, ranks, window, longest, rank, owner, sequence);
        std::vector<int32_t> begins_here;
        for (int64_t b = 0; longest > 0 && b < 2; ++b)
          for (int64_t i = 0; i < local; ++i)
            begins_here.push_back(begins[static_cast<size_t>(b * tokens + queries.position(i))]);
        const OnDevice begins_there(begins_here.empty() ? std::vector<int32_t>{0} : begins_here, "begins");
        AttentionBlockForward args{.block = queries.block(owner)};
        args.all.tokens = local, args.all.window = window, args.all.queries = queries, args.all.keys = keys;
        if (longest > 0) args.all.document_begins = begins_there.data<int32_t>();
        const auto elems = [](int64_t count) { return std::vector<int32_t>(static_cast<size_t>(count), -1); };
        OnDevice before(elems(local), "before"), keys_begin(elems(local), "keys_begin"),
            queries_end(elems(local), "queries_end");
        const LaunchContext context = a_context();
        launch(stream_of(context), ranges_kernel, dim3(1), dim3(kWarp), 0, HiddenKeys(args), sequence,
               before.data<int32_t>(), keys_begin.data<int32_t>(), queries_end.data<int32_t>());
        const AttentionBlock& block = args.block;
        const auto hides = [&](int64_t query, int64_t key) {
          const int64_t at = queries.position(block.first_query + query), of = keys.position(block.first_key + key);
          return (window > 0 && at - of >= window) ||
                 (longest > 0 && of < begins[static_cast<size_t>(sequence * tokens + at)]);
        };
        const auto first_seen = [&](int64_t query) {
          int64_t key = 0;
          while (key < block.keys && hides(query, key)) ++key;
          return key;
        };
        for (int64_t i = 0; i < block.queries; ++i)
          CHECK(std::min<int64_t>(before.data<int32_t>()[i], block.keys) == first_seen(i));
        for (int64_t i = 0; i < block.queries; i += kTile)
          if (first_seen(i) < block.keys)
            CHECK(keys_begin.data<int32_t>()[i / kTile] == first_seen(i) / kTile * kTile);
          else
            CHECK(keys_begin.data<int32_t>()[i / kTile] >= block.keys / kTile * kTile);
        for (int64_t begin = 0; begin < block.keys; begin += kTile) {
          int64_t end = block.causal ? begin : 0;
          for (int64_t i = end; i < block.queries; ++i)
            if (first_seen(i) < std::min(begin + kTile, block.keys)) end = i + 1;
          CHECK(queries_end.data<int32_t>()[begin / kTile] == end);
        }
      }
}

__global__ void factors_kernel(WeightDropout dropout, int64_t head, int64_t query, int64_t key, float* of_rows,
                               float* of_columns) {
  const DropoutHead of_head = dropout.of(1, head);
  float factors[4];
  factors_of_rows(factors, dropout, of_head, query, key);
  for (int i = 0; i < 4; ++i) of_rows[4 * threadIdx.x + i] = factors[i];
  factors_of_columns(factors, dropout, of_head, query, key);
  for (int i = 0; i < 4; ++i) of_columns[4 * threadIdx.x + i] = factors[i];
}

}  // namespace

TEST_CASE("attention masks: tiles visit the keys and queries that see each other, and no others at their ends") {
  for (int64_t window : {0, 1, 5, 16, 40})
    for (int64_t longest : {0, 1, 7, 50}) {
      check_ranges(97, 1, window, longest);
      check_ranges(72, 2, window, longest);
      check_ranges(96, 3, window, longest);
    }
  check_ranges(1500, 1, 0, 900);  // the search takes several steps
  check_ranges(1500, 1, 700, 0);
}

TEST_CASE("attention dropout: fragments of tensor cores have the factors of their positions") {
  constexpr double kRate = 0.4;
  const ContextChunks queries{.tokens = 96, .ranks = 2, .rank = 0}, keys{.tokens = 96, .ranks = 2, .rank = 1};
  const OnDevice samples(std::vector<int32_t>{3, 8, 4, 9}, "samples");
  const AttentionDropout dropout{.samples = samples.data<DropoutSample>(), .key = 77, .rate = kRate, .first_head = 2};
  AttentionBlockForward args{.block = {0, 48, 0, 48, false}};
  args.all.dropout = &dropout, args.all.queries = queries, args.all.keys = keys;
  REQUIRE(WeightDropout::in_fours(args));
  const auto factor = [&](int64_t query, int64_t key) {
    const reference::Place at{77 + 2 + 5, 4, 9, static_cast<uint32_t>(queries.position(query)),
                              static_cast<uint32_t>(keys.position(key))};
    return reference::is_kept(at, kRate) ? static_cast<double>(dropout_scale(kRate)) : 0.0;
  };
  for (int64_t query : {0, 9, 16})  // the chunks meet at 24
    for (int64_t key : {0, 16}) {
      OnDevice of_rows(128, DType::f32, "of_rows"), of_columns(128, DType::f32, "of_columns");
      const LaunchContext context = a_context();
      launch(stream_of(context), factors_kernel, dim3(1), dim3(kWarp), 0, WeightDropout(args.all), int64_t{5}, query,
             key, of_rows.data<float>(), of_columns.data<float>());
      const Doubles rows = of_rows.doubles(), columns = of_columns.doubles();
      for (int64_t lane = 0; lane < 32; ++lane)
        for (int64_t i = 0; i < 4; ++i) {
          CAPTURE(query, key, lane, i);
          const int64_t down = lane / 4 + 8 * (i / 2), across = 2 * (lane % 4) + i % 2;
          CHECK(rows[static_cast<size_t>(4 * lane + i)] == factor(query + down, key + across));
          CHECK(columns[static_cast<size_t>(4 * lane + i)] == factor(query + across, key + down));
        }
    }
  args.all.keys.tokens = 72;  // chunks of 18
  CHECK_FALSE(WeightDropout::in_fours(args));
  args.all.keys.ranks = 1;
  CHECK(WeightDropout::in_fours(args));
}
