// SPDX-License-Identifier: Apache-2.0
// Reported hangs of other systems are refused before step 0; run anyway, they hang, and the watchdog names the ranks.
// Their repaired orders pass and end.

#include "tests/comm/rehearse/field_hangs.h"

#include <condition_variable>
#include <iostream>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "comm/scheduler.h"
#include "engine/base/check.h"
#include "tests/comm/rehearse/toy.h"
#include "tests/sample.h"

using namespace slipstream;
using namespace slipstream::comm;
using namespace slipstream::comm::field;

namespace {

Role role_named(const std::string& name) {
  for (uint8_t r = 0; r <= static_cast<uint8_t>(Role::save); ++r)
    if (name == name_of(Role{r})) return Role{r};
  FAIL("no role is named " << name);
  return Role::compute;
}

/// One plan per rank: a compute item, the calls with their waits, and the end of the step.
std::vector<Plan*> plans_of(ToyJob& job, const std::vector<Program>& programs) {
  std::vector<Plan*> plans;
  for (const Program& program : programs) {
    ToyPlan plan(job);
    plan.compute("work", 10).compute("end", 1);
    std::map<std::string, std::string> last;  // of each stream
    for (const Call& call : program) {
      const auto before = last.find(call.stream);
      plan.task({.name = call.name,
                 .channel = call.channel,
                 .axis = is_pipe(call.channel) || is_pair(call.op) ? Axis::pipeline : Axis::world,
                 .op = call.op,
                 .time_ns = 5,
                 .after = {before == last.end() ? "work" : before->second},
                 .peer = call.peer});
      last[call.stream] = call.name;
    }
    plans.push_back(&plan.build());
    for (size_t i = 0; i < program.size(); ++i) plans.back()->tasks[i].elems = program[i].elems;
  }
  for (size_t c = 1; c < job.channels.size(); ++c) job.channels[c].role = role_named(job.channels[c].name);
  return plans;
}

Mesh mesh_of(const std::vector<Program>& programs) {
  return Mesh(MeshSizes{.pipeline = static_cast<int>(programs.size())});
}

/// The host issues the calls as written.
void order_as_written(Plan& plan) {
  plan.order = {0};
  for (ItemId id = 2; id < plan.size(); ++id) plan.order.push_back(id);
  plan.order.push_back(1);
}

/// The error of the planner; empty if the plans pass.
std::string refusal_of_plan(const std::vector<Program>& programs) {
  ToyJob job;
  const std::vector<Plan*> plans = plans_of(job, programs);
  try {
    const Proof proof = finish(job, plans, mesh_of(programs));
    return proof.holds() ? "" : "deadlock: " + proof.deadlock;
  } catch (const PlanError& error) {
    return error.what();
  }
}

/// The finding of the proof on an order that the planner did not compute; empty if there is none.
std::string deadlock_of_order(const std::vector<Program>& programs) {
  ToyJob job;
  std::vector<StageRuns> rows;
  for (Plan* plan : plans_of(job, programs)) {
    order_as_written(*plan);
    rows.push_back({{{plan}}, &job.buffers});
  }
  return prove(rows, mesh_of(programs), job.channels, job.price).deadlock;
}

}  // namespace

TEST_CASE("reported hangs are refused before step 0 with their ranks and tasks; repaired orders pass") {
  const std::vector<Report> all = reports();
  std::set<std::string> sources;
  for (const Report& report : all) {
    INFO(report.source << ": " << report.mechanism);
    CHECK(sources.insert(report.source).second);
    CHECK_FALSE(play(report.hangs).ends);
    CHECK(play(report.works).ends);
    for (const std::string& text : {refusal_of_plan(report.hangs), deadlock_of_order(report.hangs)}) {
      INFO(text);
      CHECK_FALSE(text.empty());
      for (const char* word : report.words) CHECK(text.find(word) != std::string::npos);
    }
    CHECK(refusal_of_plan(report.works) == "");
    CHECK(deadlock_of_order(report.works) == "");
  }
  CHECK(sources.size() >= 15);
}

namespace {

/// A wire without errors, like NCCL's: members that meet with different calls wait for ever.
class Wire {
 public:
  explicit Wire(size_t ranks) : ranks_(ranks) {}

  void meet(const Rendezvous& rendezvous, const std::string& content) {
    std::unique_lock lock(mutex_);
    std::vector<std::string>& present = present_[rendezvous];
    present.push_back(content);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] {
      return aborted_ || (present.size() == (rendezvous.from >= 0 ? 2 : ranks_) &&
                          std::set<std::string>(present.begin(), present.end()).size() == 1);
    });
  }
  void wait_for_arrivals(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  const size_t ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Rendezvous, std::vector<std::string>> present_;
  int arrived_ = 0;
  bool aborted_ = false;
};

/// All ranks of a report with the program's own schedulers and streams.
class Ranks {
 public:
  explicit Ranks(const std::vector<Program>& programs) : wire_(programs.size()) {
    const std::vector<std::vector<Rendezvous>> all_rendezvous = rendezvous_of(programs);
    ToyJob toy;
    const std::vector<Plan*> plans = plans_of(toy, programs);
    for (size_t r = 0; r < programs.size(); ++r) {
      Rank& rank = *ranks_.emplace_back(std::make_unique<Rank>());
      rank.job.mesh = mesh_of(programs);
      rank.job.options.rank = static_cast<int>(r);
      rank.job.channels = toy.channels;
      rank.job.train() = *plans[r];
      order_as_written(rank.job.train());
      rank.works.resize(rank.job.train().size());
      for (ItemId id : {0u, 1u}) rank.works[id] = {rank.job.train()[id].name, {}, {}, {}, [](LaunchContext&) {}};
      for (size_t i = 0; i < programs[r].size(); ++i)
        rank.works[2 + i] = {programs[r][i].name,
                             {},
                             {},
                             {},
                             [this, rendezvous = all_rendezvous[r][i], what = content(programs[r][i])](LaunchContext&) {
                               wire_.meet(rendezvous, what);
                             }};
      std::vector<Stream*> streams;
      for (const Channel& channel : rank.job.channels)
        streams.push_back(rank.streams.emplace_back(rank.device->make_stream({.name = channel.name})).get());
      rank.scheduler = std::make_unique<Scheduler>(rank.job, *rank.device, streams);
      rank.scheduler->bind(rank.job.train(), rank.works);
    }
  }
  ~Ranks() {
    wire_.abort();
    for (const auto& rank : ranks_) rank->streams.clear();
  }

  /// Every rank issues its step.
  void issue() {
    for (const auto& each : ranks_) {
      Rank& rank = *each;
      const Frame frame{.memory = &rank.memory, .step = 7};
      rank.scheduler->begin(rank.job.train(), frame);
      for (const ItemId item : {0u, 1u}) {
        rank.scheduler->before(item, *rank.streams[0], frame);
        rank.streams[0]->launch(rank.works[item], frame);
        rank.scheduler->reached(item, *rank.streams[0], frame);
      }
    }
  }
  void wait_for_arrivals(int count) { wire_.wait_for_arrivals(count); }
  void wait_for_the_end() {
    for (const auto& rank : ranks_)
      for (const auto& stream : rank->streams) stream->synchronize();
  }
  std::vector<FlightRecord> records() const {
    std::vector<FlightRecord> records;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      FlightRecord record{
          .run = "a run", .rank = static_cast<int>(r), .size = static_cast<int>(ranks_.size()), .host = "n"};
      record.phase = RunPhase::step;
      record.step = 7;
      record.limit_seconds = 1;
      record.limit_key = "comm.timeout_seconds";
      if (r == 0) record.alarm = "late";
      record.channels = ranks_[r]->scheduler->flight(true).channels;
      records.push_back(std::move(record));
    }
    return records;
  }
  /// The works that ranks are in, and those that have ended, as the records count them.
  static int64_t begun(const std::vector<FlightRecord>& records) {
    int64_t count = 0;
    for (const FlightRecord& record : records)
      for (const FlightChannel& channel : record.channels) count += channel.ended + (channel.begun ? 1 : 0);
    return count;
  }

 private:
  struct Rank {
    Job job;
    std::unique_ptr<Device> device = make_cpu_device();
    std::vector<std::unique_ptr<Stream>> streams;
    BoundWorks works;
    Memory memory;
    std::unique_ptr<Scheduler> scheduler;
  };
  Wire wire_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace

TEST_CASE("reported hangs that run anyway are named by the watchdog; repaired orders end") {
  for (const Report& report : reports()) {
    INFO(report.source << ": " << report.mechanism);
    Ranks repaired(report.works);
    repaired.issue();
    repaired.wait_for_the_end();

    Ranks stuck(report.hangs);
    stuck.issue();
    const Reached reached = play(report.hangs);
    stuck.wait_for_arrivals(reached.arrived);
    std::vector<FlightRecord> records = stuck.records();
    // The events of works that have just ended follow them.
    for (int tries = 0; tries < 1000 && Ranks::begun(records) != reached.arrived; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      records = stuck.records();
    }
    REQUIRE(Ranks::begun(records) == reached.arrived);
    const Verdict verdict = judge(records);
    INFO(verdict.sentence);
    CHECK(verdict.kind == report.kind);
    CHECK(verdict.ranks == report.ranks);
    CHECK(verdict.sentence.find("[watchdog] ") == 0);
  }
}

namespace {

/// Programs that end: a hidden sequence of rendezvous, each written into the programs of its members.
std::vector<Program> random_programs(std::mt19937_64& random, bool one_stream) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  const int ranks = 2 + below(4), calls = 3 + below(12);
  std::vector<Program> programs(static_cast<size_t>(ranks));
  const auto add = [&](int rank, Call call) {
    call.stream = one_stream ? "one" : std::to_string(below(3));
    programs[static_cast<size_t>(rank)].push_back(std::move(call));
  };
  for (int i = 0; i < calls; ++i) {
    const int64_t elems = 1 + below(3);
    const std::string label = std::to_string(i);
    if (below(2) == 0) {
      const char* channels[] = {"reduce", "gather", "norm"};
      const Op ops[] = {Op::all_reduce, Op::reduce_scatter, Op::all_gather, Op::all_to_all};
      const Call call{.name = "sum" + label, .channel = channels[below(3)], .op = ops[below(4)], .elems = elems};
      for (int rank = 0; rank < ranks; ++rank) add(rank, call);
      continue;
    }
    const int from = below(ranks);
    const bool forward = below(2) == 0;
    const int way = forward ? 1 : -1, to = (from + way + ranks) % ranks;
    add(from, {.name = "send." + label,
               .channel = forward ? "pipe_fwd_out" : "pipe_bwd_out",
               .op = Op::send,
               .peer = way,
               .elems = elems});
    add(to, {.name = "recv." + label,
             .channel = forward ? "pipe_fwd_in" : "pipe_bwd_in",
             .op = Op::recv,
             .peer = -way,
             .elems = elems});
  }
  return programs;
}

/// Two calls exchanged, or one call lost, added or changed, on one rank.
void mutate(std::vector<Program>& programs, std::mt19937_64& random) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  Program& program = programs[below(programs.size())];
  if (program.empty()) return;
  Call& call = program[below(program.size())];
  switch (below(6)) {
    case 0:
      program.erase(program.begin() + (&call - program.data()));
      return;
    case 1:
      program.push_back(call);
      program.back().name += "+" + std::to_string(program.size());
      return;
    case 2:
      ++call.elems;
      return;
    default:  // names follow from their calls
      std::swap(call, program[below(program.size())]);
  }
}

std::vector<Program> in_one_stream(std::vector<Program> programs) {
  for (Program& program : programs)
    for (Call& call : program) call.stream = "one";
  return programs;
}

/// The rehearsal of the calls as written.
bool ends(const std::vector<Program>& programs, Gate gate) {
  ToyJob job;
  const std::vector<Plan*> plans = plans_of(job, programs);
  for (Plan* plan : plans) order_as_written(*plan);
  const Rehearsal rehearsal = rehearse_in_a_row(job, plans, mesh_of(programs), 1, {.gate = gate});
  CHECK(rehearsal.finished == rehearsal.deadlock.empty());
  return rehearsal.finished;
}

}  // namespace

TEST_CASE("random programs and their mutations are refused exactly if they hang when played by definition") {
  const uint64_t first_seed = 7100, count = test_everything() ? 20000 : 400;
  std::cout << "  seeds " << first_seed << " to " << first_seed + count - 1 << "\n";
  int hang = 0, end = 0;
  for (uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    const bool one_stream = seed % 2 == 0;
    std::vector<Program> programs = random_programs(random, one_stream);
    REQUIRE(play(programs).ends);
    for (int mutations = 0; mutations < 3; ++mutations) {
      const bool beside = play(programs).ends, serial = play(in_one_stream(programs)).ends;
      (beside ? end : hang) += 1;
      CHECK(ends(programs, Gate::none) == beside);
      CHECK(ends(programs, Gate::serial) == serial);
      const std::string refusal = refusal_of_plan(programs);
      INFO(refusal);
      // A plan whose calls may run beside each other has a global order even where the written one hangs.
      if (one_stream || beside) CHECK(refusal.empty() == beside);
      CHECK(deadlock_of_order(programs).empty() == (beside && serial && ends(programs, Gate::launch_order)));
      mutate(programs, random);
    }
  }
  std::cout << "  " << end << " end, " << hang << " hang\n";
  CHECK(hang > static_cast<int>(count) / 2);
  CHECK(end > static_cast<int>(count));
}
