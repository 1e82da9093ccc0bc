// SPDX-License-Identifier: Apache-2.0
// The rows of a gradient that ranks send to each other, in place of the dense gradient, give its bits.

#include "kernels/cast/cast.h"
#include "kernels/embedding/embedding_cpu.h"
#include "kernels/embedding/row_lists.h"
#include "tests/kernels/embedding/rows.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

/// Dense gradients of every rank, added in rank order, then to the table.
std::vector<float> dense_sum(const std::vector<std::vector<int32_t>>& ids, const std::vector<std::vector<float>>& dy,
                             int64_t width, int64_t vocab) {
  LaunchContext context = context_of(1);
  std::vector<float> sum(static_cast<size_t>(vocab * width)), total = random<float>(vocab * width, "head");
  for (size_t rank = 0; rank < ids.size(); ++rank) {
    std::vector<float> mine(sum.size());
    embedding_backward(context, {ids[rank].data(), dy[rank].data(), mine.data(), static_cast<int64_t>(ids[rank].size()),
                                 width, vocab});
    if (rank == 0)
      sum = mine;
    else
      add(context, {mine.data(), sum.data(), vocab * width});
  }
  add(context, {sum.data(), total.data(), vocab * width});
  return total;
}

}  // namespace

TEST_CASE("embedding: packed rows of several ranks give the bits of the dense sum", "[.][cpu]") {
  for (const auto& [ranks, rows, width, vocab] :
       std::vector<std::array<int64_t, 4>>{{1, 1, 1, 1}, {2, 19, 5, 7}, {3, 64, 300, 37}, {4, 127, 48, 1000}}) {
    CAPTURE(ranks, rows, width, vocab);
    std::vector<std::vector<int32_t>> ids;
    std::vector<std::vector<float>> dy;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      ids.push_back(random_ids(rows, vocab, "ids" + std::to_string(rank)));
      dy.push_back(random<float>(rows * width, "dy" + std::to_string(rank)));
    }
    const auto want = dense_sum(ids, dy, width, vocab);
    for (int threads : {1, 2, 3}) {
      LaunchContext context = context_of(threads);
      std::vector<int32_t> row_ids(static_cast<size_t>(ranks * rows), 99);
      std::vector<float> packed(static_cast<size_t>(ranks * rows * width), 99.0f),
          total = random<float>(vocab * width, "head");
      for (int64_t rank = 0; rank < ranks; ++rank)
        embedding_rows_pack(context,
                            {ids[static_cast<size_t>(rank)].data(), dy[static_cast<size_t>(rank)].data(),
                             row_ids.data() + rank * rows, packed.data() + rank * rows * width, rows, rows, width});
      embedding_rows_add(context, {row_ids.data(), packed.data(), total.data(), ranks, rows, width, vocab});
      CHECK(same_bits(total, want));
      // A table in parts, the last of which has only padding if it does not divide: each part handles its own rows,
      // with the same bits.
      for (int64_t part_rows : {(vocab + 1) / 2, vocab + 3}) {
        std::vector<float> whole = random<float>(vocab * width, "head");
        for (int64_t first = 0; first <= vocab; first += part_rows) {
          const int64_t held = std::min(part_rows, vocab - first);
          for (int64_t rank = 0; rank < ranks; ++rank)
            embedding_rows_pack(context, {.ids = ids[static_cast<size_t>(rank)].data(),
                                          .dy = dy[static_cast<size_t>(rank)].data(),
                                          .row_ids = row_ids.data() + rank * rows,
                                          .rows = packed.data() + rank * rows * width,
                                          .capacity = rows,
                                          .tokens_total = rows,
                                          .width = width,
                                          .first = first,
                                          .vocab = held,
                                          .part = true});
          CHECK(std::all_of(row_ids.begin(), row_ids.end(), [&](int32_t id) { return id >= -1 && id < held; }));
          if (held > 0)
            embedding_rows_add(context,
                               {row_ids.data(), packed.data(), whole.data() + first * width, ranks, rows, width, held});
        }
        CHECK(same_bits(whole, want));
      }
    }
  }
}

TEST_CASE("embedding: every instruction set packs and adds rows with the same bits", "[.][cpu]") {
  const int64_t rows = 50, width = 37, vocab = 12;
  const auto ids = random_ids(rows, vocab, "ids");
  const auto dy = random<bfloat16>(rows * width, "dy");
  RowLists lists;
  lists.build(ids.data(), rows, vocab);
  const Chains chains{lists.firsts().data(), static_cast<int64_t>(lists.firsts().size()), lists.next().data()};
  std::vector<float> first;
  for_each_machine([&](Isa isa, LaunchContext& context) {
    std::vector<int32_t> row_ids(static_cast<size_t>(rows));
    std::vector<float> packed(static_cast<size_t>(rows * width)), total(static_cast<size_t>(vocab * width), 1.0f);
    SLIP_CALL_ON(
        isa,
        embedding_rows_pack_cpu(
            context, {ids.data(), dy.data(), row_ids.data(), packed.data(), rows, rows, width, DType::bf16}, chains));
    RowLists packed_lists;
    packed_lists.build(row_ids.data(), rows, vocab);
    const Chains again{packed_lists.firsts().data(), static_cast<int64_t>(packed_lists.firsts().size()),
                       packed_lists.next().data()};
    SLIP_CALL_ON(isa, embedding_rows_add_cpu(
                          context, {row_ids.data(), packed.data(), total.data(), 1, rows, width, vocab}, again));
    CHECK(std::count(row_ids.begin(), row_ids.end(), -1) == rows - chains.count);
    if (first.empty()) first = total;
    CHECK(same_bits(total, first));
  });
}

TEST_CASE("embedding: later occurrences of an id are empty rows, and lists are clean between builds", "[.][cpu]") {
  const std::vector<int32_t> ids = {3, 1, 3, 3};
  const std::vector<float> dy = {1, 10, 100, 1000};
  std::vector<int32_t> row_ids(4);
  std::vector<float> rows(4, 9.0f);
  LaunchContext context = context_of(1);
  for (int round = 0; round < 2; ++round) {
    embedding_rows_pack(context, {ids.data(), dy.data(), row_ids.data(), rows.data(), 4, 4, 1});
    CHECK(row_ids == std::vector<int32_t>{3, 1, -1, -1});
    CHECK(rows == std::vector<float>{1101, 10, 0, 0});
  }
}

TEST_CASE("embedding: packed rows and their sum have the CPU's bits", "[cuda]") {
  for (const EmbeddingShape& s : kShapes)
    for (bool part : {false, true}) {
      CAPTURE(s.batch, s.tokens, s.width, s.vocab, part);
      const int64_t first = part ? s.vocab / 3 : 0, held = s.vocab - first;  // part: the last two thirds of the table
      const int64_t ranks = s.batch + 1, capacity = s.tokens;
      const DType dtype = s.width % 2 ? DType::f32 : DType::bf16;
      std::vector<int32_t> host_ids(static_cast<size_t>(ranks * capacity));
      std::vector<float> host_rows(static_cast<size_t>(ranks * capacity * s.width));
      const Doubles head = random_doubles(held * s.width, DType::f32, 9);
      Tensor host_total(head, DType::f32);
      LaunchContext cpu = context_of(1);
      std::vector<std::vector<int32_t>> ids;
      std::vector<Doubles> dy;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        ids.push_back(ids_of(capacity, s.vocab, static_cast<uint32_t>(rank)));
        dy.push_back(random_doubles(capacity * s.width, dtype, static_cast<uint32_t>(20 + rank)));
        Tensor mine(dy.back(), dtype);
        embedding_rows_pack(
            cpu, {ids.back().data(), mine.data(), host_ids.data() + rank * capacity,
                  host_rows.data() + rank * capacity * s.width, capacity, capacity, s.width, dtype, first, held, part});
      }
      embedding_rows_add(cpu,
                         {host_ids.data(), host_rows.data(), host_total.data<float>(), ranks, capacity, s.width, held});
      for_machines([&](LaunchContext& context) {
        OnDevice row_ids(ranks * capacity, DType::i32, "row_ids"), rows(ranks * capacity * s.width, DType::f32, "rows"),
            total(head, DType::f32, "dtable");
        for (int64_t rank = 0; rank < ranks; ++rank) {
          OnDevice my_ids(ids[static_cast<size_t>(rank)], "ids"), mine(dy[static_cast<size_t>(rank)], dtype, "dy");
          embedding_rows_pack(context, {my_ids.data<int32_t>(), mine.data(), row_ids.data<int32_t>(rank * capacity),
                                        rows.data<float>(rank * capacity * s.width), capacity, capacity, s.width, dtype,
                                        first, held, part});
        }
        CHECK(std::memcmp(row_ids.bytes().data(), host_ids.data(), host_ids.size() * 4) == 0);
        CHECK(rows.doubles() == Doubles(host_rows.begin(), host_rows.end()));
        embedding_rows_add(context, {row_ids.data<int32_t>(), rows.data<float>(), total.data<float>(), ranks, capacity,
                                     s.width, held});
        CHECK(total.doubles() == host_total.doubles());
        CHECK((row_ids.intact() && rows.intact() && total.intact()));
      });
    }
}
