// SPDX-License-Identifier: Apache-2.0
// Embeddings on the emulated device: look-up against double, gradients with the CPU's bits.

#include "kernels/embedding/embedding.h"

#include <algorithm>

#include "tests/emulation/on_device.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

struct Shape {
  int64_t batch, tokens, width, vocab;
};
// Around a pack of columns, a chunk of rows (256) and a tile of columns (1024 of float, 2048 of bf16).
const std::vector<Shape> kShapes = {{1, 1, 1, 1},       {3, 7, 5, 11},   {2, 16, 64, 31}, {1, 257, 9, 4},
                                    {2, 150, 33, 1000}, {1, 3, 1030, 2}, {1, 3, 2056, 2}};

std::vector<int32_t> ids_of(int64_t count, int64_t vocab, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(generator() % static_cast<uint32_t>(vocab)));
  return ids;
}

LaunchContext cpu_context() {
  static ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  return context;
}

}  // namespace

TEST_CASE("embedding: look-up adds the position, ids outside the vocabulary become NaN") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Shape& s : kShapes) {
      CAPTURE(s.batch, s.tokens, s.width, s.vocab, name_of(dtype));
      const int64_t rows = s.batch * s.tokens;
      auto ids = ids_of(rows, s.vocab, 1);
      const Doubles table = random_doubles(s.vocab * s.width, dtype, 2),
                    positions = random_doubles(s.tokens * s.width, dtype, 3);
      ids.back() = s.batch == 3 ? static_cast<int32_t>(s.vocab) : ids.back();
      OnDevice on_ids(ids, "ids"), on_table(table, dtype, "table"), on_positions(positions, dtype, "positions");
      for_orders([&](LaunchContext& context) {
        for (bool with_positions : {false, true}) {
          OnDevice y(rows * s.width, dtype, "y");
          embedding_forward(context,
                            {on_ids.data<int32_t>(), on_table.data(), with_positions ? on_positions.data() : nullptr,
                             y.data(), s.batch, s.tokens, s.width, dtype, s.vocab});
          const Doubles got = y.doubles();
          Doubles want(got.size());
          for (int64_t i = 0; i < rows * s.width; ++i) {
            const int64_t row = i / s.width, column = i % s.width, id = ids[static_cast<size_t>(row)];
            want[static_cast<size_t>(i)] =
                id < s.vocab
                    ? table[static_cast<size_t>(id * s.width + column)] +
                          (with_positions ? positions[static_cast<size_t>(row % s.tokens * s.width + column)] : 0.0)
                    : 0.0;
            if (id >= s.vocab) REQUIRE(std::isnan(got[static_cast<size_t>(i)]));
          }
          Doubles known(got.begin(), ids.back() < s.vocab ? got.end() : got.end() - s.width);
          want.resize(known.size());
          CHECK(error_of(known, want) <= (dtype == DType::f32 ? 1e-6 : 0x1p-7));
          CHECK(y.intact());
        }
      });
    }
}

TEST_CASE("embedding: positions restart at each document, on every rank of a sequence") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Shape& s : kShapes)
      for (const int ranks : {1, 3}) {
        const ContextChunks chunks{.tokens = ranks == 1 ? s.tokens : 6 * s.tokens, .ranks = ranks, .rank = ranks / 2};
        const int64_t tokens = chunks.local_tokens(), rows = s.batch * tokens;
        CAPTURE(s.batch, tokens, s.width, s.vocab, name_of(dtype), ranks);
        if (s.width > 1000 && ranks > 1) continue;  // columns do not depend on ranks
        std::vector<int32_t> begins, places;
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t at = chunks.position(row % tokens), longest = 3 + row / tokens;
          begins.push_back(static_cast<int32_t>(at - at % longest));
          places.push_back(static_cast<int32_t>(at % longest));
        }
        const auto ids = ids_of(rows, s.vocab, 1);
        const Doubles table = random_doubles(s.vocab * s.width, dtype, 2),
                      positions = random_doubles(chunks.tokens * s.width, dtype, 3);
        OnDevice on_ids(ids, "ids"), on_begins(begins, "begins"), on_table(table, dtype, "table"),
            on_positions(positions, dtype, "positions");
        for_orders([&](LaunchContext& context) {
          OnDevice on_places(rows, DType::i32, "places"), y(rows * s.width, dtype, "y");
          document_positions(context, {.begins = on_begins.data<int32_t>(),
                                       .positions = on_places.data<int32_t>(),
                                       .batch = s.batch,
                                       .tokens = tokens,
                                       .chunks = chunks});
          const std::vector<uint8_t> bytes = on_places.bytes();
          CHECK(std::memcmp(bytes.data(), places.data(), bytes.size()) == 0);
          EmbeddingForward args{.ids = on_ids.data<int32_t>(),
                                .table = on_table.data(),
                                .positions = on_positions.data(),
                                .y = y.data(),
                                .batch = s.batch,
                                .tokens = tokens,
                                .width = s.width,
                                .dtype = dtype,
                                .vocab = s.vocab,
                                .position_ids = on_places.data<int32_t>(),
                                .position_rows = chunks.tokens};
          embedding_forward(context, args);
          const Doubles got = y.doubles();
          Doubles want(got.size());
          for (int64_t i = 0; i < rows * s.width; ++i) {
            const auto row = static_cast<size_t>(i / s.width);
            want[static_cast<size_t>(i)] = table[static_cast<size_t>(ids[row] * s.width + i % s.width)] +
                                           positions[static_cast<size_t>(places[row] * s.width + i % s.width)];
          }
          CHECK(error_of(got, want) <= (dtype == DType::f32 ? 1e-6 : 0x1p-7));
          args.position_rows = 0;  // none is known
          embedding_forward(context, args);
          for (double value : y.doubles()) REQUIRE(std::isnan(value));
          CHECK((y.intact() && on_places.intact()));
        });
      }
}

TEST_CASE("embedding: dense gradients have the CPU's bits") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Shape& s : kShapes)
      for (bool accumulate : {false, true}) {
        CAPTURE(s.batch, s.tokens, s.width, s.vocab, name_of(dtype), accumulate);
        const int64_t rows = s.batch * s.tokens, positions = s.tokens + 2;
        const auto ids = ids_of(rows, s.vocab, 1);
        const Doubles dy = random_doubles(rows * s.width, dtype, 2),
                      table = random_doubles(s.vocab * s.width, DType::f32, 3),
                      position = random_doubles(positions * s.width, DType::f32, 4);
        Tensor host_dy(dy, dtype), host_table(table, DType::f32), host_position(position, DType::f32);
        LaunchContext cpu = cpu_context();
        embedding_backward(
            cpu, {ids.data(), host_dy.data(), host_table.data<float>(), rows, s.width, s.vocab, dtype, accumulate});
        position_backward(cpu, {host_dy.data(), host_position.data<float>(), s.batch, s.tokens, s.width, positions,
                                dtype, accumulate});
        OnDevice on_ids(ids, "ids"), on_dy(dy, dtype, "dy");
        for_orders([&](LaunchContext& context) {
          OnDevice dtable(table, DType::f32, "dtable"), dposition(position, DType::f32, "dpositions");
          embedding_backward(context, {on_ids.data<int32_t>(), on_dy.data(), dtable.data<float>(), rows, s.width,
                                       s.vocab, dtype, accumulate});
          position_backward(context, {on_dy.data(), dposition.data<float>(), s.batch, s.tokens, s.width, positions,
                                      dtype, accumulate});
          CHECK(dtable.doubles() == host_table.doubles());
          CHECK(dposition.doubles() == host_position.doubles());
          CHECK((dtable.intact() && dposition.intact()));
        });
      }
}

TEST_CASE("embedding: thousands of rows, distant ids and ids that are equal modulo 65536") {
  // 34 chunks of 256 rows, so that their bits take two words; ids equal modulo 65536 share the bits for their position.
  constexpr int64_t kRows = 33 * 256 + 7, kVocab = 140'000;
  std::vector<int32_t> ids;
  std::mt19937 generator(5);
  for (int64_t i = 0; i < kRows; ++i)
    ids.push_back(i % 3 == 0 ? static_cast<int32_t>(5 + 65536 * (generator() % 3))
                             : static_cast<int32_t>(generator() % (i % 3 == 1 ? kVocab : 2500)));
  ids.back() = ids.front() = 139'999;
  const Doubles dy = random_doubles(kRows, DType::f32, 2);
  Tensor host_dy(dy, DType::f32), host_table(kVocab, DType::f32), host_rows(kRows, DType::f32);
  std::vector<int32_t> host_ids(ids.size());
  LaunchContext cpu = cpu_context();
  embedding_backward(cpu, {ids.data(), host_dy.data(), host_table.data<float>(), kRows, 1, kVocab});
  embedding_rows_pack(cpu, {ids.data(), host_dy.data(), host_ids.data(), host_rows.data<float>(), kRows, kRows, 1});
  OnDevice on_ids(ids, "ids"), on_dy(dy, DType::f32, "dy");
  for_orders([&](LaunchContext& context) {
    OnDevice dtable(kVocab, DType::f32, "dtable"), row_ids(kRows, DType::i32, "row_ids"),
        rows(kRows, DType::f32, "rows");
    embedding_backward(context, {on_ids.data<int32_t>(), on_dy.data(), dtable.data<float>(), kRows, 1, kVocab});
    CHECK(dtable.doubles() == host_table.doubles());
    embedding_rows_pack(
        context, {on_ids.data<int32_t>(), on_dy.data(), row_ids.data<int32_t>(), rows.data<float>(), kRows, kRows, 1});
    CHECK(rows.doubles() == host_rows.doubles());
    CHECK(std::memcmp(row_ids.bytes().data(), host_ids.data(), host_ids.size() * 4) == 0);
  });
}

TEST_CASE("embedding: rows that a warp adds, and rows that blocks add in tiles and slices, have the CPU's bits") {
  // A warp adds at most 64 rows of an id. A tile has 128 rows of bf16 or 64 of float, a slice 64 columns. The last two:
  // one id everywhere, and all ids distinct.
  for (const auto& rows_of_ids : std::vector<std::vector<int>>{
           {64, 1, 65}, {63, 128, 129, 2}, {193, 64, 256, 257}, {700}, std::vector<int>(300, 1)})
    for (int64_t width : {1, 64, 70, 136})
      for (DType dtype : {DType::f32, DType::bf16}) {
        std::vector<int32_t> ids;
        for (size_t id = 0; id < rows_of_ids.size(); ++id)
          ids.insert(ids.end(), static_cast<size_t>(rows_of_ids[id]), static_cast<int32_t>(id));
        std::shuffle(ids.begin(), ids.end(), std::mt19937(7));
        const int64_t rows = std::ssize(ids), vocab = std::ssize(rows_of_ids);
        CAPTURE(rows, vocab, width, name_of(dtype));
        const Doubles dy = random_doubles(rows * width, dtype, 2), table = random_doubles(vocab * width, DType::f32, 3);
        Tensor host_dy(dy, dtype), host_table(table, DType::f32), host_sum(table, DType::f32),
            host_rows(rows * width, DType::f32);
        std::vector<int32_t> host_ids(ids.size());
        LaunchContext cpu = cpu_context();
        embedding_backward(cpu,
                           {ids.data(), host_dy.data(), host_table.data<float>(), rows, width, vocab, dtype, true});
        embedding_rows_pack(
            cpu, {ids.data(), host_dy.data(), host_ids.data(), host_rows.data<float>(), rows, rows, width, dtype});
        Tensor host_floats(dy, DType::f32);
        embedding_rows_add(cpu, {ids.data(), host_floats.data<float>(), host_sum.data<float>(), 1, rows, width, vocab});
        OnDevice on_ids(ids, "ids"), on_dy(dy, dtype, "dy"), on_floats(dy, DType::f32, "rows");
        for_orders([&](LaunchContext& context) {
          OnDevice dtable(table, DType::f32, "dtable"), sum(table, DType::f32, "dtable"),
              packed(rows * width, DType::f32, "rows"), row_ids(rows, DType::i32, "row_ids");
          embedding_backward(
              context, {on_ids.data<int32_t>(), on_dy.data(), dtable.data<float>(), rows, width, vocab, dtype, true});
          embedding_rows_pack(context, {on_ids.data<int32_t>(), on_dy.data(), row_ids.data<int32_t>(),
                                        packed.data<float>(), rows, rows, width, dtype});
          embedding_rows_add(
              context, {on_ids.data<int32_t>(), on_floats.data<float>(), sum.data<float>(), 1, rows, width, vocab});
          CHECK(dtable.doubles() == host_table.doubles());
          CHECK(packed.doubles() == host_rows.doubles());
          CHECK(sum.doubles() == host_sum.doubles());
          CHECK(std::memcmp(row_ids.bytes().data(), host_ids.data(), host_ids.size() * 4) == 0);
          CHECK((dtable.intact() && packed.intact() && sum.intact() && row_ids.intact()));
        });
      }
}

TEST_CASE("embedding: ids outside the vocabulary are left out of the gradient") {
  LaunchContext context = cuda_context();
  OnDevice ids(std::vector<int32_t>{1, -1, 2, 1}, "ids"), dy(Doubles{1, 10, 100, 1000}, DType::f32, "dy"),
      dtable(2, DType::f32, "dtable");
  embedding_backward(context, {ids.data<int32_t>(), dy.data(), dtable.data<float>(), 4, 1, 2});
  CHECK(dtable.doubles() == Doubles{0, 1001});
  CHECK(dtable.intact());
}

TEST_CASE("embedding: packed rows and their sum have the CPU's bits") {
  for (const Shape& s : kShapes)
    for (bool part : {false, true}) {
      CAPTURE(s.batch, s.tokens, s.width, s.vocab, part);
      const int64_t first = part ? s.vocab / 3 : 0, held = s.vocab - first;  // part: the last two thirds of the table
      const int64_t ranks = s.batch + 1, capacity = s.tokens;
      const DType dtype = s.width % 2 ? DType::f32 : DType::bf16;
      std::vector<int32_t> host_ids(static_cast<size_t>(ranks * capacity));
      std::vector<float> host_rows(static_cast<size_t>(ranks * capacity * s.width));
      const Doubles head = random_doubles(held * s.width, DType::f32, 9);
      Tensor host_total(head, DType::f32);
      LaunchContext cpu = cpu_context();
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
      for_orders([&](LaunchContext& context) {
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
