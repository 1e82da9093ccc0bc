// SPDX-License-Identifier: Apache-2.0
#pragma once
// The laws of all_to_all_v, as functions that every rank calls. The oracle lists all rows of an owner in a plain loop
// over (expert, source, position).

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/communicator_contract.h"

namespace slipstream::contract {

/// The counts of one launch: [source][expert of all ranks].
struct RoutedCounts {
  std::string name;
  std::vector<int32_t> values;
};

/// Rows and counts of one group as all ranks know them.
class RoutedOracle {
 public:
  struct Row {
    int source = 0;
    int64_t source_row = 0;
  };

  RoutedOracle(const Route& route, int ranks, const RoutedCounts& counts)
      : route_(route), ranks_(ranks), counts_(counts.values) {}

  int64_t count(int source, int expert) const {
    return counts_[static_cast<size_t>(source * ranks_ * route_.experts + expert)];
  }
  /// The rows of an owner in the order of its memory, with those after the bound.
  std::vector<Row> rows_of(int owner) const {
    std::vector<Row> rows;
    for (int expert = owner * route_.experts; expert < (owner + 1) * route_.experts; ++expert)
      for (int source = 0; source < ranks_; ++source) {
        int64_t before = 0;
        for (int e = 0; e < expert; ++e) before += count(source, e);
        for (int64_t k = 0; k < count(source, expert); ++k) rows.push_back({source, before + k});
      }
    return rows;
  }
  /// The same without those of earlier rounds and those after the bound.
  std::vector<Row> kept_of(int owner) const {
    std::vector<Row> rows = rows_of(owner);
    rows.erase(rows.begin(), rows.begin() + std::min(std::ssize(rows), route_.begin_rows));
    rows.resize(std::min(rows.size(), static_cast<size_t>(route_.bound_rows)));
    return rows;
  }
  /// The rows that leave `rank` for other ranks in a dispatch, and those that arrive.
  std::pair<int64_t, int64_t> sent_and_received(int rank) const {
    std::pair<int64_t, int64_t> rows{0, 0};
    for (int owner = 0; owner < ranks_; ++owner)
      for (const Row& row : kept_of(owner)) {
        rows.first += row.source == rank && owner != rank;
        rows.second += row.source != rank && owner == rank;
      }
    return rows;
  }

 private:
  const Route& route_;
  int ranks_;
  const std::vector<int32_t>& counts_;
};

/// The shapes of counts that a router can make, and those that it should not.
inline std::vector<RoutedCounts> routed_counts(const Philox& random, int ranks, int experts, int64_t source_rows) {
  const int all = ranks * experts;
  std::vector<RoutedCounts> made;
  uint64_t at = 0;
  const auto draw = [&](int64_t bound) {
    return static_cast<int64_t>(random.below(at++, static_cast<uint64_t>(bound)));
  };
  const auto make = [&](const std::string& name, const std::function<int(int, int64_t)>& expert_of,
                        const std::function<int64_t(int)>& rows_of) {
    RoutedCounts counts{name, std::vector<int32_t>(static_cast<size_t>(ranks * all))};
    for (int source = 0; source < ranks; ++source)
      for (int64_t row = 0, rows = rows_of(source); row < rows; ++row)
        ++counts.values[static_cast<size_t>(source * all + expert_of(source, row))];
    made.push_back(std::move(counts));
  };
  const auto full = [&](int) { return source_rows; };
  const auto any = [&](int, int64_t) { return static_cast<int>(draw(all)); };
  make("random", any, full);
  make("random rows", any, [&](int) { return draw(source_rows + 1); });
  make(
      "few experts", [&](int, int64_t) { return static_cast<int>(draw(all) * draw(2)); }, full);
  const int busy = static_cast<int>(draw(ranks));
  make(
      "one rank", [&](int, int64_t) { return busy * experts + static_cast<int>(draw(experts)); }, full);
  make(
      "the last expert", [&](int, int64_t) { return all - 1; }, full);
  const int silent = static_cast<int>(draw(ranks));
  make("a silent source", any, [&](int source) { return source == silent ? 0 : source_rows; });
  make(
      "an owner without rows",
      [&](int, int64_t) {
        return ranks == 1 ? 0 : (static_cast<int>(draw(all - experts)) + (busy + 1) * experts) % all;
      },
      full);
  make(
      "each to itself", [&](int source, int64_t) { return source * experts + static_cast<int>(draw(experts)); }, full);
  make("nothing", any, [](int) { return 0; });
  return made;
}

/// A dispatch and a return, bound once and launched with many counts. The counts lie after the rows of `from`.
class RoutedLaws {
 public:
  static constexpr std::byte kGuard{0x5a};
  static constexpr int64_t kGuardBytes = 64;

  RoutedLaws(RankTest& test, int experts, int64_t source_rows, int64_t bound_rows, int64_t row_elems, DType dtype,
             uint64_t seed, int64_t begin_rows = 0)
      : test_(test),
        ranks_(test.comm.size()),
        rank_(test.comm.rank()),
        route_{.experts = experts,
               .row_elems = row_elems,
               .source_rows = source_rows,
               .bound_rows = bound_rows,
               .begin_rows = begin_rows},
        row_bytes_(bytes_of(row_elems, dtype)),
        seed_(seed) {
    dispatch_ = bind(dtype, false);
    back_ = bind(dtype, true);
  }

  const Work& dispatch() const { return dispatch_; }
  /// Runs a dispatch without looking at its result.
  void launch(const Work& work, const RoutedCounts& counts) {
    std::vector<std::byte> from = memory(route_.source_rows, counts), to = memory(route_.bound_rows, counts);
    test_.run(work, from, to);
  }

  /// Checks both directions with these counts.
  void check(const RoutedCounts& counts) {
    const RoutedOracle oracle(route_, ranks_, counts);
    const auto [sent_rows, received_rows] = oracle.sent_and_received(rank_);
    // Dispatch: the rows of this rank as an owner.
    std::vector<std::byte> to(static_cast<size_t>(route_.bound_rows * row_bytes_ + kGuardBytes), kGuard);
    std::vector<std::byte> expected = to;
    run(
        dispatch_, route_.source_rows, counts, [&](int64_t row) { return source_byte(rank_, row); }, to, sent_rows);
    int64_t at = 0;
    for (const RoutedOracle::Row& row : oracle.kept_of(rank_))
      fill_row(expected, at++, source_byte(row.source, row.source_row));
    compare("dispatch", counts, expected, to);
    // Return: the rows of this rank as a source, which owners name by their own place.
    to.assign(static_cast<size_t>(route_.source_rows * row_bytes_ + kGuardBytes), kGuard);
    expected = to;
    run(
        back_, route_.bound_rows, counts, [&](int64_t row) { return owner_byte(rank_, row); }, to, received_rows);
    for (int owner = 0; owner < ranks_; ++owner) {
      at = 0;
      for (const RoutedOracle::Row& row : oracle.kept_of(owner)) {
        if (row.source == rank_) fill_row(expected, row.source_row, owner_byte(owner, at));
        ++at;
      }
    }
    compare("return", counts, expected, to);
  }

  /// Dispatch, then return: every row that the bounds admit comes back.
  void check_identity(const RoutedCounts& counts) {
    const RoutedOracle oracle(route_, ranks_, counts);
    std::vector<std::byte> from = memory(route_.source_rows, counts), there = memory(route_.bound_rows, counts),
                           home = memory(route_.source_rows, counts);
    for (int64_t row = 0; row < route_.source_rows; ++row) fill_row(from, row, source_byte(rank_, row));
    std::vector<std::byte> expected = home;
    for (int owner = 0; owner < ranks_; ++owner)
      for (const RoutedOracle::Row& row : oracle.kept_of(owner))
        if (row.source == rank_) fill_row(expected, row.source_row, source_byte(rank_, row.source_row));
    test_.run(dispatch_, from, there);
    test_.run(back_, there, home);
    compare("dispatch and return", counts, expected, home);
  }

 private:
  Work bind(DType dtype, bool reverse) const {
    Route route = route_;
    route.reverse = reverse;
    const int64_t from_rows = reverse ? route.bound_rows : route.source_rows,
                  to_rows = reverse ? route.source_rows : route.bound_rows;
    return test_.comm.all_to_all_v({.from = {RankTest::kFrom, 0, from_rows * row_bytes_},
                                    .to = {RankTest::kTo, 0, to_rows * row_bytes_},
                                    .counts = {RankTest::kFrom, counts_begin(from_rows), counts_bytes()},
                                    .route = route,
                                    .dtype = dtype});
  }
  int64_t counts_bytes() const { return 4 * int64_t{ranks_} * ranks_ * route_.experts; }
  int64_t counts_begin(int64_t rows) const { return (rows * row_bytes_ + kGuardBytes + 3) / 4 * 4; }

  /// Memory of `rows` rows, then guard bytes, then the counts.
  std::vector<std::byte> memory(int64_t rows, const RoutedCounts& counts) const {
    std::vector<std::byte> bytes(static_cast<size_t>(counts_begin(rows) + counts_bytes()), kGuard);
    std::memcpy(bytes.data() + counts_begin(rows), counts.values.data(), static_cast<size_t>(counts_bytes()));
    return bytes;
  }
  /// A function of (place in the row) for the row of a source, or of an owner.
  using RowBytes = std::function<std::byte(int64_t)>;
  RowBytes source_byte(int source, int64_t row) const {
    return [=, seed = seed_](int64_t at) {
      return static_cast<std::byte>(seed + static_cast<uint64_t>(37 * source + 101 * row + 3 * at + row / 200 + 1));
    };
  }
  RowBytes owner_byte(int owner, int64_t row) const { return source_byte(owner + 1000, row + 17); }
  void fill_row(std::vector<std::byte>& bytes, int64_t row, const RowBytes& byte) const {
    for (int64_t at = 0; at < row_bytes_; ++at) bytes[static_cast<size_t>(row * row_bytes_ + at)] = byte(at);
  }

  void run(const Work& work, int64_t from_rows, const RoutedCounts& counts,
           const std::function<RowBytes(int64_t)>& value, std::vector<std::byte>& to, int64_t sent_rows) {
    std::vector<std::byte> from = memory(from_rows, counts);
    for (int64_t row = 0; row < from_rows; ++row) fill_row(from, row, value(row));
    const std::vector<std::byte> before = from;
    const std::optional<int64_t> sent_before = test_.comm.sent_bytes();
    test_.run(work, from, to);
    test_.expect(from == before, fmt::format("{} changed what it sends ({})", work.name, where(counts)));
    const std::optional<int64_t> sent = test_.comm.sent_bytes();
    if (sent && *sent - *sent_before != sent_rows * row_bytes_)
      test_.expect(false, fmt::format("{} sent {} bytes instead of {} ({})", work.name, *sent - *sent_before,
                                      sent_rows * row_bytes_, where(counts)));
  }
  std::string where(const RoutedCounts& counts) const {
    return fmt::format("{} ranks, {} experts each, counts \"{}\", seed {}", ranks_, route_.experts, counts.name, seed_);
  }
  void compare(const char* what, const RoutedCounts& counts, const std::vector<std::byte>& expected,
               const std::vector<std::byte>& got) {
    if (expected == got) return;
    const auto at = std::mismatch(expected.begin(), expected.end(), got.begin()).first - expected.begin();
    test_.expect(false, fmt::format("{}: byte {} of row {} differs ({})", what, at % row_bytes_, at / row_bytes_,
                                    where(counts)));
  }

  RankTest& test_;
  int ranks_, rank_;
  Route route_;
  int64_t row_bytes_;
  uint64_t seed_;
  Work dispatch_, back_;
};

/// Every law with bounds that hold all rows, that hold the balanced load, and that hold almost nothing. `few`: with one
/// number of experts, on transports that take long.
inline void check_routed(RankTest& test, uint64_t seed, bool few = false) {
  const int ranks = test.comm.size();
  for (int experts = few ? 3 : 1; experts <= (few ? 3 : 4); ++experts) {
    const Philox random(seed + static_cast<uint64_t>(experts), "routed");
    const auto source_rows = static_cast<int64_t>(random.below(1u << 20, 40)) + 1;
    const auto counts = routed_counts(random, ranks, experts, source_rows);
    for (int64_t bound : {ranks * source_rows, source_rows, source_rows / 3, int64_t{0}}) {
      if (few && bound != source_rows) continue;
      const DType dtype = experts % 2 == 0 ? DType::bf16 : DType::f32;
      // The first rounds, and one that begins inside the rows of an expert.
      for (const int64_t begin : {int64_t{0}, bound, bound / 2 + 1}) {
        RoutedLaws laws(test, experts, source_rows, bound, experts * 5, dtype, seed, begin);
        for (const RoutedCounts& each : counts) {
          laws.check(each);
          laws.check_identity(each);
        }
      }
    }
  }
  // Pieces that are longer than what a transport buffers.
  const Philox random(seed, "long rows");
  RoutedLaws laws(test, 2, 300, 500, 1500, DType::f32, seed);
  for (const RoutedCounts& counts : routed_counts(random, ranks, 2, 300))
    if (counts.name == "random" || counts.name == "one rank") laws.check(counts);
}

/// Returns the sentence with which a work or a verb is refused, and nothing if it is not refused.
template <typename Function>
std::string refusal(Function function) {
  try {
    function();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

/// Operands that no counts could make right.
inline void check_bad_routes(RankTest& test) {
  const int64_t n = test.comm.size();
  const comm::RoutedTransfer good{.from = {0, 0, 400},
                                  .to = {1, 0, 800},
                                  .counts = {0, 400, 4 * n * n * 2},
                                  .route = {.experts = 2, .row_elems = 10, .source_rows = 10, .bound_rows = 20}};
  const auto refused = [&](const char* what, const std::string& words, auto change) {
    comm::RoutedTransfer bad = good;
    change(bad);
    const std::string sentence = refusal([&] { test.comm.all_to_all_v(bad); });
    test.expect(sentence.find(words) != std::string::npos, fmt::format("{}: \"{}\"", what, sentence));
  };
  test.expect(refusal([&] { test.comm.all_to_all_v(good); }).empty(), "good operands are refused");
  refused("no experts", "0 experts on each rank", [](auto& t) { t.route.experts = 0; });
  refused("empty rows", "rows of 0 elements", [](auto& t) { t.route.row_elems = 0; });
  refused("a negative bound", "a bound of -1 rows", [](auto& t) { t.route.bound_rows = -1; });
  refused("a negative begin", "after -1 were given", [](auto& t) { t.route.begin_rows = -1; });
  refused("few counts", "`counts` has", [](auto& t) { t.counts.size_bytes -= 4; });
  refused("a short source", "`from` has 360 bytes", [](auto& t) { t.from.size_bytes = 360; });
  refused("a short owner", "`to` has 760 bytes", [](auto& t) { t.to.size_bytes = 760; });
  refused("in place", "overlap", [](auto& t) { t.to = {0, 0, 800}; });
  refused("counts in `to`", "overlaps `counts`", [](auto& t) { t.counts.buffer = 1; });
}

/// Wrong counts in memory. The communicator may be unusable afterwards.
inline void check_bad_counts(RankTest& test, int32_t wrong, const std::string& words) {
  const int ranks = test.comm.size();
  RoutedLaws laws(test, 2, 10, 20, 4, DType::f32, 1);
  RoutedCounts counts{"wrong", std::vector<int32_t>(static_cast<size_t>(ranks * ranks * 2), 1)};
  counts.values.back() = wrong;
  const std::string sentence = refusal([&] { laws.launch(laws.dispatch(), counts); });
  test.expect(sentence.find(words) != std::string::npos, fmt::format("wrong counts: \"{}\"", sentence));
}

}  // namespace slipstream::contract
