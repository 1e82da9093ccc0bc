// SPDX-License-Identifier: Apache-2.0
// Embeddings and their dense gradients, against one-hot products in double and against the bits of the CPU.

#include "engine/base/check.h"
#include "kernels/embedding/embedding_cpu.h"
#include "tests/kernels/embedding/rows.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

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

TEST_CASE("embedding: look-up adds the position, ids outside the vocabulary become NaN", "[cuda]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const EmbeddingShape& s : kShapes) {
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

TEST_CASE("embedding: dense gradients have the CPU's bits", "[cuda]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const EmbeddingShape& s : kShapes)
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
