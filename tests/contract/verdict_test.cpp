// SPDX-License-Identifier: Apache-2.0
// Verdicts on flight records, made by hand and by schedulers that hang on a thread communicator.

#include "comm/verdict.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/scheduler.h"
#include "comm/thread/thread_world.h"
#include "engine/base/check.h"
#include "tests/test.hpp"

using namespace slipstream;
using comm::FlightChannel;
using comm::FlightRecord;
using comm::FlightWork;
using comm::Verdict;

namespace {

FlightWork reduce(int number, double seconds_ago = 10) {
  return {.name = fmt::format("reduce.{}", number),
          .op = "all_reduce",
          .bytes = 3 << 20,
          .bucket = number,
          .step = 7,
          .seconds_ago = seconds_ago};
}

/// The record of a rank that is in reduce.3 after three works.
FlightChannel in_reduce(int number = 3, double seconds_ago = 10) {
  return {.name = "reduce",
          .group = "reduce 0",
          .ended = number,
          .begun = true,
          .next = reduce(number, seconds_ago),
          .latest = {reduce(number - 1, seconds_ago + 1)}};
}

FlightChannel before_reduce(int number, const std::string& held_by, const std::string& held_group = "") {
  return {.name = "reduce",
          .group = "reduce 0",
          .ended = number,
          .next = reduce(number, -1),
          .held_by = held_by,
          .held_group = held_group};
}

FlightRecord record(int rank, int size, std::vector<FlightChannel> channels, const std::string& alarm = "") {
  FlightRecord record{
      .run = "a run", .rank = rank, .size = size, .host = fmt::format("n{}", rank), .process = 100 + rank};
  record.phase = comm::RunPhase::step;
  record.step = 7;
  record.limit_seconds = 10;
  record.limit_key = "comm.timeout_seconds";
  record.alarm = alarm;
  record.channels = std::move(channels);
  return record;
}

void check_names(const Verdict& verdict, Verdict::Kind kind, const std::vector<int>& ranks,
                 const std::vector<std::string>& parts) {
  INFO(verdict.sentence);
  CHECK(verdict.kind == kind);
  CHECK(verdict.ranks == ranks);
  CHECK(verdict.sentence.find("[watchdog] ") == 0);
  for (const std::string& part : parts) CHECK(verdict.sentence.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("verdict: a rank without a record is silent, whatever the others wait in", "[comm]") {
  std::vector<FlightRecord> records = {record(0, 4, {in_reduce()}), record(1, 4, {in_reduce()}, "late"),
                                       record(3, 4, {before_reduce(3, "forward.2 on channel compute")})};
  check_names(comm::judge(records), Verdict::Kind::silent, {2},
              {"rank 2 does not answer",
               "Rank 0 has waited 10 s in reduce.3 (all_reduce of 3.0 MiB, bucket 3) on channel reduce in step 7",
               "the limit is 10 s (comm.timeout_seconds)"});
  FlightRecord last = record(2, 4, {});
  last.silent_seconds = 12;
  records[0].last_heard = {last};
  check_names(comm::judge(records), Verdict::Kind::silent, {2},
              {"rank 2 on host n2 (process 102) does not answer", "its last message came 12 s ago, from step 7"});
  // The process of this rank was continued before the launcher ended it.
  records.push_back(record(2, 4, {in_reduce()}));
  records[0].written_ms = 5000, records[1].written_ms = 2100, records.back().written_ms = 5400;
  check_names(comm::judge(records), Verdict::Kind::silent, {2}, {"does not answer", "12 s ago"});
  records[1].written_ms = 1900;  // and so was the process of rank 0: rank 1 had waited for its verdict
  check_names(comm::judge(records), Verdict::Kind::silent, {0}, {"rank 0 does not answer"});
  records[1].written_ms = 2100;
  records.back().written_ms = 4000;  // it answered
  CHECK(comm::judge(records).kind == Verdict::Kind::behind);
  records.pop_back();
  records[0].last_heard[0].connection_ended = true;
  check_names(comm::judge(records), Verdict::Kind::ended, {2}, {"rank 2 on host n2", "has ended without notice"});
  // Records travel to rank 0: without rank 0, nothing is known of rank 2.
  records.erase(records.begin());
  check_names(comm::judge(records), Verdict::Kind::silent, {0}, {"rank 0 does not answer", "Rank 1 has waited"});
}

TEST_CASE("verdict: the rank that has not begun the work in which others wait is named, not they", "[comm]") {
  for (int late = 0; late < 3; ++late) {
    std::vector<FlightRecord> records;
    for (int rank = 0; rank < 3; ++rank)
      records.push_back(rank == late ? record(rank, 3, {before_reduce(3, "forward.2 on channel compute")})
                                     : record(rank, 3, {in_reduce(3, 10 + rank)}, rank == 2 ? "late" : ""));
    check_names(comm::judge(records), Verdict::Kind::behind, {late},
                {fmt::format("rank {} on host n{}", late, late), "has not begun reduce.3", "bucket 3",
                 "It has ended 3 works of this channel", "at forward.2 on channel compute"});
  }
  // The rank lacks two works, and is in a work of its own that no other rank has left.
  check_names(
      comm::judge({record(0, 2, {in_reduce(3)}), record(1, 2, {before_reduce(1, "update.0 on channel update")})}),
      Verdict::Kind::behind, {1}, {"It has ended 1 work of this channel"});
}

TEST_CASE("verdict: waits are followed to the rank that waits for no other", "[comm]") {
  const auto pair = [](bool begun, const std::string& held_by = "", const std::string& held_group = "") {
    return FlightChannel{
        .name = begun ? "pipe_fwd_in" : "pipe_fwd_out",
        .group = "pipe_fwd_out 1 to 2",
        .ended = 5,
        .begun = begun,
        .next =
            FlightWork{
                .name = begun ? "recv.5" : "send.5", .op = begun ? "recv" : "send", .bytes = 64, .seconds_ago = 9},
        .held_by = held_by,
        .held_group = held_group};
  };
  // Rank 0 waits for rank 2, which waits for rank 1, which computes.
  check_names(
      comm::judge(
          {record(0, 3, {in_reduce(3, 20)}, "late"), record(1, 3, {pair(false, "forward.0 on channel compute")}),
           record(2, 3, {before_reduce(3, "recv.5 on channel pipe_fwd_in", "pipe_fwd_out 1 to 2"), pair(true)})}),
      Verdict::Kind::behind, {1},
      {"has not begun send.5", "in which rank 2 has waited 9.0 s", "forward.0 on channel compute"});
  // Ranks 1 and 2 wait for each other.
  check_names(
      comm::judge({record(1, 3, {in_reduce(3, 20), pair(false, "reduce.3 on channel reduce", "reduce 0")}),
                   record(2, 3, {before_reduce(3, "recv.5 on channel pipe_fwd_in", "pipe_fwd_out 1 to 2"), pair(true)}),
                   record(0, 3, {in_reduce(3, 15)}, "late")}),
      Verdict::Kind::circular, {1, 2}, {"ranks wait for each other", "reduce.3", "recv.5"});
}

TEST_CASE("verdict: ranks in different works of one number are a mismatch, by name or by bytes", "[comm]") {
  FlightChannel other = in_reduce();
  other.next->name = "reduce.4";
  check_names(comm::judge({record(0, 2, {in_reduce()}), record(1, 2, {other})}), Verdict::Kind::mismatched, {0, 1},
              {"work 4 of channel reduce is reduce.3", "on rank 0, but reduce.4", "on rank 1"});
  other = in_reduce();
  other.next->bytes = 1024;
  check_names(comm::judge({record(0, 2, {in_reduce()}), record(1, 2, {other})}), Verdict::Kind::mismatched, {0, 1},
              {"3.0 MiB", "1.0 KiB"});
}

TEST_CASE("verdict: ranks that are all in one work have a slow link, and no rank is to blame", "[comm]") {
  check_names(comm::judge({record(0, 2, {in_reduce(3, 10)}, "late"), record(1, 2, {in_reduce(3, 8)})}),
              Verdict::Kind::slow, {0, 1}, {"ranks 0, 1 are in reduce.3", "the last one since 8.0 s", "link"});
}

TEST_CASE("verdict: exchanges of hosts are compared like works, and named like exchanges", "[comm]") {
  const auto hosts = [](int64_t ended, bool begun) {
    FlightChannel channel{.name = "hosts", .group = "hosts", .ended = ended, .begun = begun};
    if (begun) channel.next = FlightWork{.name = "the losses of an evaluation", .op = "exchange", .seconds_ago = 30};
    return channel;
  };
  check_names(comm::judge({record(0, 2, {hosts(12, true)}, "late"), record(1, 2, {hosts(12, false)})}),
              Verdict::Kind::behind, {1}, {"has not begun the exchange of the losses of an evaluation"});
}

TEST_CASE("flight records read back as written; damaged ones are refused in one sentence", "[comm]") {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("slipstream_flight_{}", ::getpid())).string();
  std::filesystem::create_directories(folder);
  const auto put = [&](int rank, const std::string& text) { std::ofstream(comm::flight_path(folder, rank)) << text; };
  CHECK_THROWS_WITH(comm::read_flight(folder), Catch::Contains("has no flight records"));
  CHECK_THROWS_WITH(comm::read_flight(folder + "/none"), Catch::Contains("has no flight records"));
  std::vector<FlightRecord> records = {record(0, 3, {in_reduce()}, "late"), record(2, 3, {before_reduce(1, "x", "y")})};
  records[0].last_heard = {record(1, 3, {in_reduce()})};
  for (const FlightRecord& each : records) put(each.rank, comm::flight_json(each));
  CHECK(comm::read_flight(folder) == records);
  // An older run left a record of rank 1.
  FlightRecord older = record(1, 3, {});
  older.run = "another run";
  older.written_ms = -1;
  put(1, comm::flight_json(older));
  CHECK(comm::read_flight(folder) == records);
  const std::string whole = comm::flight_json(records[0]);
  for (size_t size = 0; size < whole.size(); size += 1 + whole.size() / 50) {
    put(0, whole.substr(0, size));
    CHECK_THROWS_WITH(comm::read_flight(folder), Catch::Contains("rank0000.json") && Catch::Contains("[flight] "));
  }
  for (const auto& [from, to] : {std::pair{"\"rank\": 0", "\"rank\": 3"},
                                 {"\"size\": 3", "\"size\": 0"},
                                 {"\"phase\": \"step\"", "\"phase\": \"x\""},
                                 {"\"ended\": 3", "\"ended\": -3"}}) {
    std::string text = whole;
    REQUIRE(text.find(from) != std::string::npos);
    put(0, text.replace(text.find(from), std::string(from).size(), to));
    CHECK_THROWS_WITH(comm::read_flight(folder), Catch::Contains("rank0000.json") && Catch::Contains("[flight] "));
  }
  std::filesystem::remove_all(folder);
}

namespace {

/// Two data ranks, each with a scheduler and works on two thread communicators: channels reduce and gather.
struct Pair {
  struct Half {
    Job job;
    float values[2] = {1, 1};
    std::vector<std::unique_ptr<comm::Communicator>> communicators;
    std::unique_ptr<Device> device = make_cpu_device();
    std::vector<std::unique_ptr<Stream>> streams;
    BoundWorks works;
    Memory memory;
    std::unique_ptr<comm::Scheduler> scheduler;
  };
  Half halves[2];

  /// `after(rank)`: the tasks that tasks 0 (reduce) and 1 (gather) wait for; -1: none.
  explicit Pair(const std::function<std::array<int, 2>(int rank)>& after) {
    const Mesh mesh({.data = 2});
    std::vector<std::unique_ptr<comm::Communicator>> worlds[2] = {comm::make_thread_world(2),
                                                                  comm::make_thread_world(2)};
    for (int rank = 0; rank < 2; ++rank) {
      Half& half = halves[rank];
      half.job.mesh = mesh;
      half.job.options.rank = rank;
      half.job.channels = {{.role = Role::compute},
                           {.role = Role::reduce, .axis = Axis::data},
                           {.role = Role::gather, .axis = Axis::data}};
      Plan& plan = half.job.train();
      plan.kind = "train";
      plan.spine.resize(1);
      plan.spine[0].name = "forward.0";
      plan.tasks.resize(2);
      half.works.resize(3);
      half.works[0] = {"forward.0", {}, {}, {}, [](LaunchContext&) {}};
      half.memory = Memory({{.base = reinterpret_cast<std::byte*>(half.values)}});
      for (uint32_t t = 0; t < 2; ++t) {
        Task& task = plan.tasks[t];
        task.name = t == 0 ? "reduce.0" : "gather.0";
        task.op = Op::all_reduce;
        task.channel = 1 + t;
        task.bucket = 0;
        task.elems = 1;
        if (const int first = after(rank)[t]; first >= 0) task.after = {{1 + static_cast<ItemId>(first)}};
        half.communicators.push_back(std::move(worlds[t][static_cast<size_t>(rank)]));
        const Slice slice{0, 4 * t, 4};
        half.works[1 + t] =
            half.communicators[t]->all_reduce({.from = slice, .to = slice, .elems = 1, .dtype = DType::f32});
      }
      // A task comes after those that it waits for.
      plan.order = {0, 1, 2};
      if (after(rank)[0] == 1) plan.order = {0, 2, 1};
      std::vector<Stream*> streams;
      for (const Channel& channel : half.job.channels)
        streams.push_back((half.streams.emplace_back(half.device->make_stream({.name = channel.name}))).get());
      half.scheduler = std::make_unique<comm::Scheduler>(half.job, *half.device, streams);
      half.scheduler->bind(plan, half.works);
    }
  }
  ~Pair() {
    for (Half& half : halves)
      for (const auto& communicator : half.communicators) communicator->abort();
    for (Half& half : halves) half.streams.clear();
  }

  void issue(int rank, uint32_t step) {
    Half& half = halves[rank];
    const Frame frame{.memory = &half.memory, .step = step};
    half.scheduler->begin(half.job.train(), frame);
    half.scheduler->before(0, *half.streams[0], frame);
    half.streams[0]->launch(half.works[0], frame);
    half.scheduler->reached(0, *half.streams[0], frame);
  }
  /// The records when neither rank moves any more: twice the same counts and works.
  std::vector<FlightRecord> stuck() {
    std::vector<FlightRecord> records, before;
    const auto still = [&] {
      if (records.size() != before.size()) return false;
      for (size_t r = 0; r < records.size(); ++r)
        for (size_t c = 0; c < records[r].channels.size(); ++c)
          if (records[r].channels[c].ended != before[r].channels[c].ended ||
              records[r].channels[c].begun != before[r].channels[c].begun)
            return false;
      return true;
    };
    do {
      before = std::move(records);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      records = {record(0, 2, halves[0].scheduler->flight(true).channels, "late"),
                 record(1, 2, halves[1].scheduler->flight(true).channels)};
    } while (!still());
    return records;
  }
};

}  // namespace

TEST_CASE("verdict: a hang that two plans contain is named, from the schedulers' own records", "[comm]") {
  // Rank 0 reduces before it gathers, rank 1 gathers before it reduces.
  Pair pair([](int rank) { return rank == 0 ? std::array{-1, 0} : std::array{1, -1}; });
  for (int rank = 0; rank < 2; ++rank) pair.issue(rank, 1);
  const Verdict verdict = comm::judge(pair.stuck());
  check_names(verdict, Verdict::Kind::circular, {0, 1}, {"reduce.0", "gather.0", "in step 1", "4 B"});
}

TEST_CASE("verdict: a rank that issues a step less is named with the first task that it lacks", "[comm]") {
  Pair pair([](int) { return std::array{-1, 0}; });
  for (uint32_t step = 1; step <= 5; ++step)
    for (int rank = 0; rank < 2; ++rank) pair.issue(rank, step);
  for (Pair::Half& half : pair.halves) half.scheduler->end_of(half.job.train()).synchronize();
  pair.issue(0, 6);
  std::vector<FlightRecord> records = pair.stuck();
  REQUIRE(records[0].channels.size() == 2);
  CHECK(records[0].channels[0].ended == 5);
  CHECK(records[0].channels[0].begun);
  CHECK(records[0].channels[0].next->seconds_ago > 0);
  CHECK(records[0].channels[0].latest.back().step == 5);
  CHECK_FALSE(records[0].channels[1].begun);
  CHECK(records[0].channels[1].held_by == "reduce.0 on channel reduce");
  CHECK(records[0].channels[1].held_group == records[0].channels[0].group);
  check_names(comm::judge(records), Verdict::Kind::behind, {1},
              {"has not begun reduce.0", "in step 6", "It has ended 5 works"});
}
