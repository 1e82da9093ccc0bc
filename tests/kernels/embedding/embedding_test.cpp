// SPDX-License-Identifier: Apache-2.0
// Embeddings against one-hot products in double; rows sent between ranks give the bits of the dense gradient.

#include "kernels/embedding/embedding.h"

#include "engine/base/check.h"
#include "kernels/cast/cast.h"
#include "kernels/embedding/embedding_cpu.h"
#include "kernels/embedding/row_lists.h"
#include "tests/kernels/common/backend.h"
#include "tests/kernels/common/cases.h"
#include "tests/reference/embedding.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;
using reference::Table;

namespace {

std::vector<int32_t> random_ids(int64_t count, int64_t vocab, const std::string& name) {
  const Philox philox(kSeed, name);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(philox.below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocab))));
  return ids;
}

template <typename T>
Table table_of(const std::vector<T>& values, int64_t width) {
  Table table(static_cast<Eigen::Index>(values.size()) / width, width);
  for (Eigen::Index i = 0; i < table.size(); ++i) table.data()[i] = as_double(values[static_cast<size_t>(i)]);
  return table;
}

template <typename T>
double error_of(const std::vector<T>& got, const Table& want) {
  return relative_error(got, [&](int64_t i) { return want.data()[i]; });
}

std::vector<int32_t> position_ids(int64_t batch, int64_t tokens) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < batch * tokens; ++i) ids.push_back(static_cast<int32_t>(i % tokens));
  return ids;
}

template <typename T>
void check_dense(int64_t batch, int64_t tokens, int64_t width, int64_t vocab, int64_t positions) {
  CAPTURE(batch, tokens, width, vocab);
  const auto ids = random_ids(batch * tokens, vocab, "ids");
  const auto table = random<T>(vocab * width, "table"), position = random<T>(positions * width, "positions"),
             dy = random<T>(batch * tokens * width, "dy");
  const Table hot = reference::one_hot(ids, vocab),
              hot_positions = reference::one_hot(position_ids(batch, tokens), positions);
  const Table none = Table::Zero(positions, width), dys = table_of(dy, width);
  const DType dtype = dtype_of<T>::value;
  const double forward = sizeof(T) == 4 ? 1e-6 : 0x1p-7,
               backward = sizeof(T) == 4 ? 1e-5 * std::sqrt(static_cast<double>(ids.size())) : 0x1p-7;
  for_each_machine([&](Isa isa, LaunchContext& context) {
    std::vector<T> y(dy.size());
    SLIP_CALL_ON(isa, embedding_forward_cpu(
                          context, {ids.data(), table.data(), position.data(), y.data(), batch, tokens, width, dtype}));
    CHECK(error_of(y, reference::embed(hot, table_of(table, width), hot_positions, table_of(position, width))) <=
          forward);
    SLIP_CALL_ON(isa, embedding_forward_cpu(
                          context, {ids.data(), table.data(), nullptr, y.data(), batch, tokens, width, dtype}));
    CHECK(error_of(y, reference::embed(hot, table_of(table, width), hot_positions, none)) == 0.0);
    for (bool accumulate : {false, true}) {
      const double kept = accumulate ? 1.0 : 0.0;
      auto dtable = random<float>(vocab * width, "dtable"), dpositions = random<float>(positions * width, "dpositions");
      const Table old = kept * table_of(dtable, width), old_positions = kept * table_of(dpositions, width);
      SLIP_CALL_ON(isa, embedding_backward_cpu(context, {ids.data(), dy.data(), dtable.data(), batch * tokens, width,
                                                         vocab, dtype, accumulate}));
      CHECK(error_of(dtable, reference::embed_dtable(hot, dys) + old) <= backward);
      SLIP_CALL_ON(isa, position_backward_cpu(context, {dy.data(), dpositions.data(), batch, tokens, width, positions,
                                                        dtype, accumulate}));
      CHECK(error_of(dpositions, reference::embed_dtable(hot_positions, dys) + old_positions) <= backward);
    }
  });
}

/// Documents of 1 to `longest` tokens: the place of each token's first one in its sequence.
std::vector<int32_t> document_begins(int64_t batch, int64_t tokens, int64_t longest) {
  std::vector<int32_t> begins;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0, begin = 0; t < tokens; ++t) {
      if (t - begin >= 1 + (begin * 5 + b) % longest) begin = t;
      begins.push_back(static_cast<int32_t>(begin));
    }
  return begins;
}

/// Learned positions of documents, for the tokens of a rank.
template <typename T>
void check_documents(int64_t batch, int64_t width, const ContextChunks& chunks) {
  CAPTURE(batch, width, chunks.tokens, chunks.ranks, chunks.rank);
  const int64_t tokens = chunks.local_tokens(), rows = batch * tokens, vocab = 7, positions = chunks.tokens;
  const auto whole = document_begins(batch, chunks.tokens, 6);
  std::vector<int32_t> begins, expected;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = chunks.position(row % tokens);
    begins.push_back(whole[static_cast<size_t>(row / tokens * chunks.tokens + at)]);
    int32_t place = 0;  // counted backwards from the token
    while (at - place > begins.back()) ++place;
    expected.push_back(place);
  }
  const auto ids = random_ids(rows, vocab, "ids");
  const auto table = random<T>(vocab * width, "table"), position = random<T>(positions * width, "positions"),
             dy = random<T>(rows * width, "dy");
  const Table hot = reference::one_hot(ids, vocab), hot_positions = reference::one_hot(expected, positions);
  const DType dtype = dtype_of<T>::value;
  LaunchContext context = context_of(1);
  std::vector<int32_t> places(expected.size(), -1);
  document_positions(
      context,
      {.begins = begins.data(), .positions = places.data(), .batch = batch, .tokens = tokens, .chunks = chunks});
  CHECK(places == expected);
  std::vector<T> y(dy.size());
  embedding_forward(context, {.ids = ids.data(),
                              .table = table.data(),
                              .positions = position.data(),
                              .y = y.data(),
                              .batch = batch,
                              .tokens = tokens,
                              .width = width,
                              .dtype = dtype,
                              .vocab = vocab,
                              .position_ids = places.data(),
                              .position_rows = positions});
  CHECK(error_of(y, reference::embed(hot, table_of(table, width), hot_positions, table_of(position, width))) <=
        (sizeof(T) == 4 ? 1e-6 : 0x1p-7));
  // The gradient of the rows is that of an embedding.
  auto dpositions = random<float>(positions * width, "dpositions");
  embedding_backward(context, {.ids = places.data(),
                               .dy = dy.data(),
                               .dtable = dpositions.data(),
                               .rows = rows,
                               .width = width,
                               .vocab = positions,
                               .dtype = dtype});
  CHECK(error_of(dpositions, reference::embed_dtable(hot_positions, table_of(dy, width))) <= 1e-5);
}

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

TEST_CASE("embedding: the references of the embedding agree with central differences", "[.][cpu]") {
  const std::vector<int32_t> ids = {2, 0, 2, 1};
  const Table hot = reference::one_hot(ids, 4), none = Table::Zero(1, 3), no_positions = Table::Zero(4, 1);
  Table table = table_of(random<float>(12, "table"), 3);
  const Table dy = table_of(random<float>(12, "dy"), 3), gradient = reference::embed_dtable(hot, dy);
  for (Eigen::Index i = 0; i < table.size(); ++i) {
    const double center = table.data()[i];
    table.data()[i] = center + 1e-5;
    const double above = dy.cwiseProduct(reference::embed(hot, table, no_positions, none)).sum();
    table.data()[i] = center - 1e-5;
    const double below = dy.cwiseProduct(reference::embed(hot, table, no_positions, none)).sum();
    table.data()[i] = center;
    CHECK(std::abs((above - below) / 2e-5 - gradient.data()[i]) <= 1e-6 * gradient.cwiseAbs().maxCoeff());
  }
}

TEST_CASE("embedding: look-up and dense gradients equal one-hot products", "[.][cpu]") {
  for (const auto& s : std::vector<std::array<int64_t, 5>>{
           {1, 1, 1, 1, 1}, {3, 7, 5, 11, 9}, {2, 16, 65, 31, 16}, {4, 33, 257, 50, 40}}) {
    check_dense<float>(s[0], s[1], s[2], s[3], s[4]);
    check_dense<bfloat16>(s[0], s[1], s[2], s[3], s[4]);
  }
}

TEST_CASE("embedding: the tolerances see ids off by one and positions forgotten", "[.][cpu]") {
  const auto ids = random_ids(12, 9, "ids");
  auto wrong = ids;
  for (int32_t& id : wrong) id = (id + 1) % 9;
  const auto dy = random<bfloat16>(12 * 8, "dy"), table = random<bfloat16>(9 * 8, "table"),
             positions = random<bfloat16>(6 * 8, "positions");
  std::vector<float> dtable(9 * 8);
  std::vector<bfloat16> y(12 * 8);
  LaunchContext context = context_of(2);
  embedding_backward(context, {ids.data(), dy.data(), dtable.data(), 12, 8, 9, DType::bf16});
  CHECK(error_of(dtable, reference::embed_dtable(reference::one_hot(wrong, 9), table_of(dy, 8))) > 0x1p-7);
  embedding_forward(context, {ids.data(), table.data(), positions.data(), y.data(), 2, 6, 8, DType::bf16});
  CHECK(error_of(y, reference::one_hot(ids, 9) * table_of(table, 8)) > 0x1p-7);
}

TEST_CASE("embedding: gradients have the same bits for any number of threads", "[.][cpu]") {
  const int64_t rows = 301, width = 67, vocab = 40;
  const auto ids = random_ids(rows, vocab, "ids");
  const auto dy = random<float>(rows * width, "dy");
  std::vector<float> first;
  for (int threads : {1, 2, 3}) {
    std::vector<float> dtable(static_cast<size_t>(vocab * width));
    LaunchContext context = context_of(threads);
    embedding_backward(context, {ids.data(), dy.data(), dtable.data(), rows, width, vocab});
    if (first.empty()) first = dtable;
    CHECK(same_bits(dtable, first));
  }
}

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

TEST_CASE("embedding: ids outside the vocabulary are refused before anything is written", "[.][cpu]") {
  LaunchContext context = context_of(1);
  std::vector<int32_t> ids = {0, 5};
  std::vector<float> dy = {1, 1}, dtable = {7, 7, 7};
  CHECK_THROWS_AS(embedding_backward(context, {ids.data(), dy.data(), dtable.data(), 2, 1, 3}), DataError);
  CHECK(dtable == std::vector<float>{7, 7, 7});
  ids[1] = -1;
  CHECK_THROWS_AS(embedding_forward(context, {ids.data(), dtable.data(), nullptr, dy.data(), 1, 2, 1}), DataError);
  CHECK_THROWS_AS(embedding_backward(context, {ids.data(), dy.data(), dtable.data(), 2, 1, 3}), DataError);
  ids[1] = -2;
  CHECK_THROWS_AS(embedding_rows_add(context, {ids.data(), dy.data(), dtable.data(), 1, 2, 1, 3}), DataError);
  CHECK_THROWS_AS(embedding_rows_pack(context, {ids.data(), dy.data(), ids.data(), dtable.data(), 3, 2, 1}),
                  ShapeError);
  CHECK_THROWS_AS(embedding_backward(context, {ids.data(), dy.data(), dtable.data(), int64_t{1} << 31, 1, 3}),
                  ShapeError);
  CHECK_THROWS_AS(position_backward(context, {dy.data(), dtable.data(), 1, 2, 1, 1}), ShapeError);
}

TEST_CASE("embedding: parts of a table add up to the whole, and each gets the gradient of its rows", "[.][cpu]") {
  const int64_t rows = 40, width = 24, vocab = 50, held = 32;
  const auto ids = random_ids(rows, vocab, "ids");
  const auto table = random<float>(2 * held * width, "table"), positions = random<float>(rows * width, "positions"),
             dy = random<float>(rows * width, "dy");
  for_each_machine([&](Isa, LaunchContext& context) {
    std::vector<float> whole(dy.size()), sum(dy.size(), 0.0f), gradient(static_cast<size_t>(vocab * width));
    embedding_forward(context, {.ids = ids.data(),
                                .table = table.data(),
                                .y = whole.data(),
                                .batch = 1,
                                .tokens = rows,
                                .width = width,
                                .vocab = vocab});
    embedding_backward(
        context,
        {.ids = ids.data(), .dy = dy.data(), .dtable = gradient.data(), .rows = rows, .width = width, .vocab = vocab});
    for (int64_t first : {int64_t{0}, held}) {
      const int64_t here = std::min(held, vocab - first);
      std::vector<float> y(dy.size()), with_positions(dy.size()), part(static_cast<size_t>(held * width), 7.0f);
      EmbeddingForward args{.ids = ids.data(),
                            .table = table.data() + first * width,
                            .y = y.data(),
                            .batch = 1,
                            .tokens = rows,
                            .width = width,
                            .vocab = here,
                            .first = first,
                            .part = true};
      embedding_forward(context, args);
      for (size_t i = 0; i < y.size(); ++i) sum[i] += y[i];
      args.positions = positions.data();
      args.y = with_positions.data();
      embedding_forward(context, args);
      for (size_t i = 0; i < y.size(); ++i) CHECK(with_positions[i] == y[i] + positions[i]);
      embedding_backward(context, {.ids = ids.data(),
                                   .dy = dy.data(),
                                   .dtable = part.data(),
                                   .rows = rows,
                                   .width = width,
                                   .vocab = here,
                                   .first = first,
                                   .part = true});
      for (int64_t i = 0; i < here * width; ++i)
        CHECK(part[static_cast<size_t>(i)] == gradient[static_cast<size_t>(first * width + i)]);
    }
    CHECK(sum == whole);
  });
}

TEST_CASE("learned positions of documents: restart at each document, on every rank of a sequence", "[.][cpu]") {
  for (const int ranks : {1, 2, 3})
    for (int rank = 0; rank < ranks; ++rank) {
      check_documents<float>(2, 5, {.tokens = 24, .ranks = ranks, .rank = rank});
      check_documents<bfloat16>(1, 33, {.tokens = 24, .ranks = ranks, .rank = rank});
    }
  check_documents<float>(3, 4, {.tokens = 7});
  // One document per sequence: the bits of positions in the sequence.
  LaunchContext context = context_of(1);
  const auto ids = random_ids(12, 5, "ids");
  const auto table = random<float>(20, "table"), positions = random<float>(24, "positions"),
             dy = random<float>(48, "dy");
  std::vector<int32_t> begins(12), places(12);
  std::vector<float> y(48), of_documents(48), gradient(24), gradient_of_documents(24);
  document_positions(context, {.begins = begins.data(), .positions = places.data(), .batch = 2, .tokens = 6});
  EmbeddingForward forward{.ids = ids.data(),
                           .table = table.data(),
                           .positions = positions.data(),
                           .y = y.data(),
                           .batch = 2,
                           .tokens = 6,
                           .width = 4};
  embedding_forward(context, forward);
  forward.y = of_documents.data(), forward.position_ids = places.data(), forward.position_rows = 6;
  embedding_forward(context, forward);
  CHECK(of_documents == y);
  position_backward(context, {dy.data(), gradient.data(), 2, 6, 4, 6});
  embedding_backward(context, {places.data(), dy.data(), gradient_of_documents.data(), 12, 4, 6});
  CHECK(gradient_of_documents == gradient);
  places[3] = 6;
  CHECK_THROWS_WITH(embedding_forward(context, forward),
                    "[embedding_forward] position 6 is outside of the 6 learned ones. Check the index of documents.");
  CHECK_THROWS_WITH(document_positions(context, {.begins = begins.data(),
                                                 .positions = places.data(),
                                                 .batch = 2,
                                                 .tokens = 6,
                                                 .chunks = {.tokens = 24, .ranks = 2}}),
                    "[document_positions] 6 tokens are not a rank's share of a sequence of 24 over 2 ranks.");
}

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

}  // namespace

TEST_CASE("embedding: look-up adds the position, ids outside the vocabulary become NaN", "[cuda]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Shape& s : kShapes) {
      CAPTURE(s.batch, s.tokens, s.width, s.vocab, name_of(dtype));
      const int64_t rows = s.batch * s.tokens;
      auto ids = ids_of(rows, s.vocab, 1);
      const Doubles table = random_doubles(s.vocab * s.width, dtype, 2),
                    positions = random_doubles(s.tokens * s.width, dtype, 3);
      ids.back() = s.batch == 3 ? static_cast<int32_t>(s.vocab) : ids.back();
      OnDevice on_ids(ids, "ids"), on_table(table, dtype, "table"), on_positions(positions, dtype, "positions");
      for_machines([&](LaunchContext& context) {
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

TEST_CASE("embedding: positions restart at each document, on every rank of a sequence", "[cuda]") {
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
        for_machines([&](LaunchContext& context) {
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

TEST_CASE("embedding: dense gradients have the CPU's bits", "[cuda]") {
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
        LaunchContext cpu = context_of(1);
        embedding_backward(
            cpu, {ids.data(), host_dy.data(), host_table.data<float>(), rows, s.width, s.vocab, dtype, accumulate});
        position_backward(cpu, {host_dy.data(), host_position.data<float>(), s.batch, s.tokens, s.width, positions,
                                dtype, accumulate});
        OnDevice on_ids(ids, "ids"), on_dy(dy, dtype, "dy");
        for_machines([&](LaunchContext& context) {
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

TEST_CASE("embedding: thousands of rows, distant ids and ids that are equal modulo 65536", "[cuda]") {
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
  LaunchContext cpu = context_of(1);
  embedding_backward(cpu, {ids.data(), host_dy.data(), host_table.data<float>(), kRows, 1, kVocab});
  embedding_rows_pack(cpu, {ids.data(), host_dy.data(), host_ids.data(), host_rows.data<float>(), kRows, kRows, 1});
  OnDevice on_ids(ids, "ids"), on_dy(dy, DType::f32, "dy");
  for_machines([&](LaunchContext& context) {
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

TEST_CASE("embedding: rows that a warp adds, and rows that blocks add in tiles and slices, have the CPU's bits",
          "[cuda]") {
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
        LaunchContext cpu = context_of(1);
        embedding_backward(cpu,
                           {ids.data(), host_dy.data(), host_table.data<float>(), rows, width, vocab, dtype, true});
        embedding_rows_pack(
            cpu, {ids.data(), host_dy.data(), host_ids.data(), host_rows.data<float>(), rows, rows, width, dtype});
        Tensor host_floats(dy, DType::f32);
        embedding_rows_add(cpu, {ids.data(), host_floats.data<float>(), host_sum.data<float>(), 1, rows, width, vocab});
        OnDevice on_ids(ids, "ids"), on_dy(dy, dtype, "dy"), on_floats(dy, DType::f32, "rows");
        for_machines([&](LaunchContext& context) {
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

TEST_CASE("embedding: ids outside the vocabulary are left out of the gradient", "[cuda]") {
  LaunchContext context = a_context();
  OnDevice ids(std::vector<int32_t>{1, -1, 2, 1}, "ids"), dy(Doubles{1, 10, 100, 1000}, DType::f32, "dy"),
      dtable(2, DType::f32, "dtable");
  embedding_backward(context, {ids.data<int32_t>(), dy.data(), dtable.data<float>(), 4, 1, 2});
  CHECK(dtable.doubles() == Doubles{0, 1001});
  CHECK(dtable.intact());
}

TEST_CASE("embedding: packed rows and their sum have the CPU's bits", "[cuda]") {
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
