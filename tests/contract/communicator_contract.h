// SPDX-License-Identifier: Apache-2.0
#pragma once
// The laws of communicators, as one function that every rank calls: ranks may be threads or processes. Failures are
// collected as texts, because the test framework belongs to one thread.
//
// The oracle adds in a plain loop: rank order 0, 1, ... for `direct`; from the right neighbour round to the owner of a
// part for `ring`, rounded to the type at each step.

#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "engine/device/device.h"

namespace slipstream::contract {

using comm::Communicator;
using comm::Transfer;

using MakeDevice = std::function<std::unique_ptr<Device>()>;

/// One rank of a test: a communicator, a stream, three buffers, and the failures found.
class RankTest {
 public:
  static constexpr BufferId kFrom = 0, kTo = 1;

  explicit RankTest(Communicator& tested, const std::string& name = "comm", MakeDevice make_device = make_cpu_device)
      : comm(tested),
        make_device_(std::move(make_device)),
        device_(make_device_()),
        stream_(device_->make_stream({.name = name})) {}

  /// A test of the same kind, of another communicator.
  RankTest of(Communicator& other, const std::string& name = "comm") const {
    return RankTest(other, name, make_device_);
  }

  void expect(bool condition, const std::string& sentence) {
    if (!condition && failures.size() < 10) failures.push_back(fmt::format("rank {}: {}", comm.rank(), sentence));
  }
  /// Runs `work` on buffers `from` and `to` (which may be one and the same).
  void run(const Work& work, std::vector<std::byte>& from, std::vector<std::byte>& to) {
    launch(work, from, to);
    finish();
  }
  /// Enqueues. Does what run does, for a test that waits itself and then calls finish; `from` and `to` stay the same
  /// until then.
  void launch(const Work& work, std::vector<std::byte>& from, std::vector<std::byte>& to) {
    held_.clear();
    held_.push_back({&from, assignment(from)});
    if (&to != &from) held_.push_back({&to, assignment(to)});
    memory_ = Memory({{address(held_.front()), 0, Instances::one}, {address(held_.back()), 0, Instances::one}});
    frame_ = {.memory = &memory_};
    stream_->launch(work, frame_);
  }
  /// Blocks. Waits, and copies the results back from the device.
  void finish() {
    stream_->synchronize();
    for (const Held& held : held_)
      if (held.on_device)
        device_->copy_to_host(held.host->data(), held.on_device->data(), static_cast<int64_t>(held.host->size()));
  }
  Stream& stream() { return *stream_; }

  Communicator& comm;
  std::vector<std::string> failures;

 private:
  struct Held {
    std::vector<std::byte>* host;
    std::unique_ptr<Allocation> on_device;  // null on cpu, where the host's bytes are used
  };
  std::unique_ptr<Allocation> assignment(const std::vector<std::byte>& host) {
    if (device_->kind() == DeviceKind::cpu) return nullptr;
    auto allocation = device_->allocate(static_cast<int64_t>(host.size()), "operand");
    device_->copy_from_host(allocation->data(), host.data(), static_cast<int64_t>(host.size()));
    return allocation;
  }
  static std::byte* address(const Held& held) { return held.on_device ? held.on_device->data() : held.host->data(); }

  MakeDevice make_device_;
  Memory memory_;
  Frame frame_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Held> held_;
};

/// The values that ranks add. NCCL chooses its own order of additions, so its sums must be exact in every order.
enum class Values { any, exact };

/// Element `index` of rank `rank`: magnitudes spread over 2^8, so that the order of additions shows in the last bits.
inline double value_of(const Philox& random, int rank, int64_t index) {
  const uint64_t bits = random.bits(static_cast<uint64_t>(index) * 64 + static_cast<uint64_t>(rank));
  const double fraction = static_cast<double>(bits >> 11) * 0x1p-52 - 1.0;
  return fraction * static_cast<double>(1 << (bits & 7));
}

template <typename T>
T make(const Philox& random, int rank, int64_t index, Values values = Values::any) {
  const double any = value_of(random, rank, index),
               value = values == Values::exact ? std::trunc(any / 16) + 0.0 : any;  // + 0.0 makes -0 a 0
  if constexpr (std::is_same_v<T, bfloat16>)
    return bfloat16(static_cast<float>(value));
  else if constexpr (std::is_same_v<T, int32_t>)
    return static_cast<int32_t>(value * 1000);
  else
    return static_cast<T>(value);
}

template <typename T>
T add(const std::vector<T>& values, bool round_each_hop) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    float sum = static_cast<float>(values[0]);
    for (size_t i = 1; i < values.size(); ++i) {
      sum += static_cast<float>(values[i]);
      if (round_each_hop) sum = static_cast<float>(bfloat16(sum));
    }
    return bfloat16(sum);
  } else {
    T sum = values[0];
    for (size_t i = 1; i < values.size(); ++i) sum += values[i];
    return sum;
  }
}

/// Sum of element `index` as computed by the owner of its part.
template <typename T>
T expected_sum(const Philox& random, int ranks, int64_t index, int owner, Algorithm algorithm,
               Values kind = Values::any) {
  std::vector<T> values;
  for (int step = 0; step < ranks; ++step) {
    const int rank = algorithm == Algorithm::ring ? (owner + 1 + step) % ranks : step;
    values.push_back(make<T>(random, rank, index, kind));
  }
  return add(values, algorithm == Algorithm::ring);
}

/// The rank whose part of an all_reduce holds element `index`: parts differ by at most one element, larger ones first.
inline int owner_of(int64_t index, int64_t elems, int ranks) {
  int64_t begin = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    begin += elems / ranks + (rank < elems % ranks ? 1 : 0);
    if (index < begin) return rank;
  }
  return ranks - 1;
}

template <typename T>
class VerbLaws {
 public:
  VerbLaws(RankTest& test, int64_t elems, Algorithm algorithm, uint64_t seed, Values values = Values::any)
      : test_(test),
        comm_(test.comm),
        elems_(elems),
        algorithm_(algorithm),
        values_(values),
        random_(seed, "values"),
        seed_(seed) {}

  void all() {
    for (bool in_place : {false, true}) {
      all_reduce(in_place);
      reduce_scatter(in_place);
    }
    moves();
  }
  void all_reduce(bool in_place) {
    fill(from_, elems_, [&](int64_t i) { return make<T>(random_, rank(), i, values_); });
    prepare_to(elems_, in_place);
    const Transfer transfer = make_transfer(elems_, elems_, in_place, 0, 0);
    const Work work = comm_.all_reduce(transfer);
    for (int launch = 0; launch < (in_place ? 1 : 3); ++launch) run(work, in_place);
    check("all_reduce", in_place, elems_, [&](int64_t i) {
      return expected_sum<T>(random_, ranks(), i, owner_of(i, elems_, ranks()), algorithm_, values_);
    });
  }
  void reduce_scatter(bool in_place) {
    fill(from_, elems_ * ranks(), [&](int64_t i) { return make<T>(random_, rank(), i, values_); });
    prepare_to(elems_, in_place);
    run(comm_.reduce_scatter(make_transfer(elems_ * ranks(), elems_, in_place, 0, rank() * elems_)), in_place);
    check(
        "reduce_scatter", in_place, elems_,
        [&](int64_t i) { return expected_sum<T>(random_, ranks(), rank() * elems_ + i, rank(), algorithm_, values_); },
        in_place ? rank() * elems_ : 0);
  }
  void moves() {
    for (bool in_place : {false, true}) {
      fill(from_, in_place ? elems_ * ranks() : elems_, [&](int64_t i) {
        return in_place ? make<T>(random_, rank(), i - rank() * elems_) : make<T>(random_, rank(), i);
      });
      prepare_to(elems_ * ranks(), in_place);
      run(comm_.all_gather(make_transfer(elems_, elems_ * ranks(), in_place, rank() * elems_, 0)), in_place);
      check("all_gather", in_place, elems_ * ranks(),
            [&](int64_t i) { return make<T>(random_, static_cast<int>(i / elems_), i % elems_); });
    }
    fill(from_, elems_ * ranks(), [&](int64_t i) { return make<T>(random_, rank(), i); });
    prepare_to(elems_ * ranks(), false);
    run(comm_.all_to_all(make_transfer(elems_ * ranks(), elems_ * ranks(), false, 0, 0)), false);
    check("all_to_all", false, elems_ * ranks(),
          [&](int64_t i) { return make<T>(random_, static_cast<int>(i / elems_), rank() * elems_ + i % elems_); });
    point_to_point();
  }
  void point_to_point() {
    fill(from_, elems_, [&](int64_t i) { return make<T>(random_, rank(), i); });
    for (int offset = 0; offset < ranks(); ++offset) {  // rings of exchanges, among them one of each rank with itself
      prepare_to(elems_, false);
      const int to = (rank() + offset) % ranks(), from = (rank() + ranks() - offset) % ranks();
      run(comm_.exchange(make_transfer(elems_, elems_, false, 0, 0), to, from), false);
      check("exchange", false, elems_, [&](int64_t i) { return make<T>(random_, from, i); });
    }
    for (int sender = 0; sender + 1 < ranks(); ++sender) {
      prepare_to(elems_, false);
      const Transfer transfer = make_transfer(elems_, elems_, false, 0, 0);
      if (rank() == sender) run(comm_.send(transfer, sender + 1), false);
      if (rank() == sender + 1) run(comm_.recv(transfer, sender), false);
      if (rank() == sender + 1) check("recv", false, elems_, [&](int64_t i) { return make<T>(random_, sender, i); });
    }
  }

 private:
  int rank() const { return comm_.rank(); }
  int ranks() const { return comm_.size(); }

  template <typename Value>
  void fill(std::vector<std::byte>& bytes, int64_t elems, Value value) {
    bytes.resize(static_cast<size_t>(elems) * sizeof(T) + 64);
    for (int64_t i = 0; i < elems; ++i) {
      const T made = value(i);
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(T), &made, sizeof(T));
    }
  }
  void prepare_to(int64_t elems, bool in_place) {
    if (!in_place) to_.assign(static_cast<size_t>(elems) * sizeof(T) + 64, std::byte{0x5a});
  }
  Transfer make_transfer(int64_t from_elems, int64_t to_elems, bool in_place, int64_t from_begin, int64_t to_begin) {
    const auto bytes = [](int64_t elems) { return elems * static_cast<int64_t>(sizeof(T)); };
    return {.from = {RankTest::kFrom, in_place ? bytes(from_begin) : 0, bytes(from_elems)},
            .to = {in_place ? RankTest::kFrom : RankTest::kTo, in_place ? bytes(to_begin) : 0, bytes(to_elems)},
            .elems = elems_,
            .dtype = dtype_of<T>::value,
            .algorithm = algorithm_};
  }
  void run(const Work& work, bool in_place) { test_.run(work, from_, in_place ? from_ : to_); }

  template <typename Value>
  void check(const char* verb, bool in_place, int64_t elems, Value expected, int64_t begin = 0) {
    const std::vector<std::byte>& bytes = in_place ? from_ : to_;
    for (int64_t i = 0; i < elems; ++i) {
      const T want = expected(i);
      if (std::memcmp(&want, bytes.data() + static_cast<size_t>(begin + i) * sizeof(T), sizeof(T)) == 0) continue;
      test_.expect(false, fmt::format("{} of {} {} on {} ranks ({}, {}, seed {}): element {} has the wrong bits", verb,
                                      elems_, name_of(dtype_of<T>::value), ranks(), in_place ? "in place" : "apart",
                                      algorithm_ == Algorithm::ring ? "ring" : "direct", seed_, i));
      return;
    }
    if (in_place) return;
    for (size_t i = static_cast<size_t>(elems) * sizeof(T); i < bytes.size(); ++i)
      if (bytes[i] != std::byte{0x5a}) return test_.expect(false, fmt::format("{} wrote past its end", verb));
  }

  RankTest& test_;
  Communicator& comm_;
  int64_t elems_;
  Algorithm algorithm_;
  Values values_;
  Philox random_;
  uint64_t seed_;
  std::vector<std::byte> from_, to_;
};

inline void check_verbs(RankTest& test) {
  uint64_t seed = 1;
  for (Algorithm algorithm : {Algorithm::direct, Algorithm::ring}) {
    for (int64_t elems : {0, 1, 7, 1025}) {
      VerbLaws<float>(test, elems, algorithm, seed++).all();
      VerbLaws<bfloat16>(test, elems, algorithm, seed++).all();
      VerbLaws<double>(test, elems, algorithm, seed++).all();
      VerbLaws<int32_t>(test, elems, algorithm, seed++).moves();
    }
    VerbLaws<float>(test, 300007, algorithm, seed++).all_reduce(true);
    VerbLaws<bfloat16>(test, 300007, algorithm, seed++).reduce_scatter(false);
    VerbLaws<float>(test, 200003, algorithm, seed++).moves();
  }
}

/// Two channels of the same ranks, `test`'s and `second`, are in flight at once and are launched in opposite orders on
/// even and odd ranks. NCCL needs the same order on all ranks: `opposite` is false for it.
inline void check_concurrent_channels(RankTest& test, Communicator& second, bool opposite = true) {
  RankTest& a = test;
  RankTest b = test.of(second, "second");
  constexpr int64_t kElems = 50000;
  std::vector<std::byte> x(kElems * 4), y(kElems * 4);
  std::vector<float> ones(kElems, 1.0f + static_cast<float>(test.comm.rank()));
  std::memcpy(x.data(), ones.data(), x.size());
  std::memcpy(y.data(), ones.data(), y.size());
  const Slice whole{RankTest::kFrom, 0, kElems * 4};
  const Transfer transfer{.from = whole, .to = whole, .elems = kElems};
  const Work on_a = test.comm.all_reduce(transfer), on_b = second.all_reduce(transfer);
  const bool even = !opposite || test.comm.rank() % 2 == 0;
  (even ? a : b).launch(even ? on_a : on_b, even ? x : y, even ? x : y);
  (even ? b : a).launch(even ? on_b : on_a, even ? y : x, even ? y : x);
  a.finish();
  b.finish();
  const float n = static_cast<float>(test.comm.size());
  float got[2];
  std::memcpy(&got[0], x.data() + x.size() - 4, 4);
  std::memcpy(&got[1], y.data(), 4);
  test.expect(got[0] == n * (n + 1) / 2 && got[1] == got[0], "two channels at once gave wrong sums");
}

template <typename Function>
bool throws_comm_error(Function function) {
  try {
    function();
  } catch (const CommError&) {
    return true;
  }
  return false;
}

inline void check_bad_input(RankTest& test) {
  Communicator& comm = test.comm;
  const Transfer good{.from = {0, 0, 400}, .to = {1, 0, 400}, .elems = 100};
  const auto with = [&](auto change) {
    Transfer bad = good;
    change(bad);
    return bad;
  };
  test.expect(throws_comm_error([&] { comm.all_reduce(with([](Transfer& t) { t.elems = 101; })); }),
              "a short slice passed");
  test.expect(throws_comm_error([&] { comm.all_reduce(with([](Transfer& t) { t.elems = -1; })); }), "elems -1 passed");
  test.expect(throws_comm_error([&] { comm.all_reduce(with([](Transfer& t) { t.dtype = DType::i32; })); }),
              "i32 summed");
  test.expect(throws_comm_error([&] { comm.all_reduce(with([](Transfer& t) {
                                        t.to = {0, 40, 400};
                                      })); }),
              "overlap passed");
  test.expect(throws_comm_error([&] { comm.exchange(good, comm.size(), 0); }), "a peer outside the group passed");
  test.expect(throws_comm_error([&] { comm.send(good, comm.rank()); }), "a send to oneself passed");
  test.expect(throws_comm_error([&] { comm.exchange(with([](Transfer& t) { t.to = t.from; }), 0, 0); }),
              "aliasing passed");
}

/// The last rank stays away and aborts; all others are inside a transfer and must return with CommError. Ends the
/// communicator.
inline void check_abort(RankTest& test, bool abort_reaches_the_others) {
  const bool away = test.comm.rank() == test.comm.size() - 1;
  std::vector<std::byte> bytes(400);
  const Slice whole{RankTest::kFrom, 0, 400};
  const Transfer transfer{.from = whole, .to = whole, .elems = 100};
  const Work work = test.comm.all_reduce(transfer);
  if (!away) test.launch(work, bytes, bytes);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (away || !abort_reaches_the_others) test.comm.abort();
  if (!away) test.expect(throws_comm_error([&] { test.stream().synchronize(); }), "abort did not wake a transfer");
  RankTest later(test.comm);
  test.comm.abort();
  test.expect(throws_comm_error([&] { later.run(work, bytes, bytes); }), "a work after abort ran");
}

/// Checks all laws but abort, for one rank. `second` is another communicator of the same ranks.
inline void check_communicator(RankTest& test, Communicator& second) {
  check_verbs(test);
  check_concurrent_channels(test, second);
  check_bad_input(test);
}

/// Runs `body(rank test)` for every communicator of a thread world; returns the failures of all ranks.
template <typename Body>
std::vector<std::string> on_all_ranks(std::vector<std::unique_ptr<Communicator>>& world, Body body) {
  std::vector<std::vector<std::string>> failures(world.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < world.size(); ++rank)
    threads.emplace_back([&, rank] {
      RankTest test(*world[rank]);
      try {
        body(test);
      } catch (const std::exception& error) {
        test.failures.push_back(fmt::format("rank {}: {}", rank, error.what()));
        world[rank]->abort();
      }
      failures[rank] = test.failures;
    });
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> all;
  for (const auto& some : failures) all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace slipstream::contract
