// SPDX-License-Identifier: Apache-2.0
// Learned positions that restart at each document of a sequence, on every rank that has a part of it.

#include "tests/kernels/embedding/rows.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

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

}  // namespace

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

TEST_CASE("embedding: positions restart at each document, on every rank of a sequence", "[cuda]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const EmbeddingShape& s : kShapes)
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
