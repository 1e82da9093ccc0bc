// SPDX-License-Identifier: Apache-2.0
// Hazards by byte range, the mutation of every wait, waits between plans and the compaction of history.

#include <random>
#include <set>

#include "engine/base/check.h"
#include "tests/comm/rehearse/toy_plans.h"

using namespace slipstream;
using namespace slipstream::comm;

namespace {

Mutations mutate(const ToyJob& job, const std::vector<const Plan*>& runs) {
  const auto seams = link_all(runs, job.channels);
  const HazardReport report = find_hazards({runs, seams}, job.channels, &job.buffers);
  INFO((report.hazards.empty() ? "" : report.hazards[0].sentence()));
  CHECK(report.count == 0);
  const Mutations result = mutate_waits({runs, seams}, job.channels, &job.buffers);
  INFO((result.missed_names.empty() ? "" : result.missed_names[0]));
  INFO((result.redundant_names.empty() ? "" : result.redundant_names[0]));
  CHECK(result.waits > 0);
  CHECK(result.missed == 0);
  CHECK(result.redundant == 0);
  CHECK(result.caught == result.waits);
  return result;
}

Plan& toy_eval(ToyJob& job) {
  ToyPlan plan(job, "evaluate");
  for (int l = 0; l < 8; ++l)
    plan.compute(named("E{}", l), 100, {named("param{}", l), named("eval_act{}", l - 1)}, {named("eval_act{}", l)});
  return plan.build();
}

Plan& toy_save(ToyJob& job) {
  ToyPlan plan(job, "save");
  for (int l = 0; l < 8; ++l)
    plan.task({.name = named("copy{}", l),
               .channel = "copy",
               .op = Op::copy,
               .time_ns = 10,
               .reads = {named("pshard{}", l)},
               .writes = {named("host{}", l)}});
  return plan.build();
}

/// A plan of one writer and one reader of byte ranges on two channels, with or without the wait.
int64_t hazards_of(const std::string& written, const std::string& read, bool waits) {
  ToyJob job;
  ToyPlan plan(job);
  plan.compute("writer", 10, {}, {written});
  plan.task({.name = "reader",
             .channel = "copy",
             .op = Op::copy,
             .after = waits ? Names{"writer"} : Names{},
             .reads = {read}});
  Plan& built = plan.build();
  finish(job, built);
  const std::vector<const Plan*> runs{&built};
  return find_hazards({runs, {}}, job.channels, &job.buffers).count;
}

}  // namespace

TEST_CASE("byte ranges conflict where they overlap and nowhere else") {
  struct Case {
    const char* written;
    const char* read;
    bool conflict;
  };
  for (const Case& c : {Case{"x:0:16", "x:16:16", false}, Case{"x:0:17", "x:16:16", true},
                        Case{"x:16:16", "x:0:16", false}, Case{"x:15:1", "x:0:16", true}, Case{"x", "x:63:1", true},
                        Case{"x", "y", false}, Case{"x:8:8", "x:0:64", true}, Case{"x:8:0", "x:0:64", false}}) {
    INFO(c.written << " then " << c.read);
    CHECK(hazards_of(c.written, c.read, false) == c.conflict);
    CHECK(hazards_of(c.written, c.read, true) == 0);
  }
}

TEST_CASE("a hazard names both items, channels, runs, the buffer, the bytes and the missing wait") {
  ToyJob job;
  ToyPlan plan(job);
  plan.compute("writer", 10, {}, {"x:8:24"});
  plan.task({.name = "reader", .channel = "copy", .op = Op::copy, .reads = {"x:16:32"}});
  Plan& built = plan.build();
  const Proof proof = finish(job, built);
  CHECK_FALSE(proof.holds());
  REQUIRE_FALSE(proof.hazards.empty());
  const Hazard& hazard = proof.hazards[0];
  CHECK(hazard.begin_bytes == 16);
  CHECK(hazard.end_bytes == 32);
  const std::string text = hazard.sentence();
  INFO(text);
  for (const char* word : {"writer", "reader", "compute", "copy", "x bytes 16..32", "add a wait of"})
    CHECK(text.find(word) != std::string::npos);
}

namespace {

/// The slow definition: compares every pair of accesses of a sequence with the transitive closure of its waits.
struct Closure {
  std::vector<std::pair<uint32_t, ItemId>> origin;
  std::vector<std::vector<bool>> before;  // [later][earlier]

  Closure(const std::vector<const Plan*>& runs, const std::vector<std::vector<SeamWait>>& seams, size_t channels) {
    std::vector<std::vector<size_t>> node(runs.size());
    std::vector<int64_t> tail(channels, -1);
    size_t count = 0;
    for (const Plan* plan : runs) count += plan->size();
    for (uint32_t run = 0; run < runs.size(); ++run) {
      node[run].resize(runs[run]->size());
      for (ItemId id : runs[run]->order) {
        const size_t at = node[run][id] = origin.size();
        origin.push_back({run, id});
        std::vector<bool> row(count, false);
        auto join = [&](size_t earlier) {
          for (size_t i = 0; i < count; ++i) row[i] = row[i] || before[earlier][i];
          row[earlier] = true;
        };
        const Item& item = (*runs[run])[id];
        if (tail[item.channel] >= 0) join(static_cast<size_t>(tail[item.channel]));
        for (const Point& point : item.after) join(node[run][point.item]);
        for (const SeamWait& wait : seams[run])
          if (wait.to == id) join(node[wait.run][wait.from]);
        tail[item.channel] = static_cast<int64_t>(at);
        before.push_back(std::move(row));
      }
    }
  }
};

bool overlap(const std::vector<Slice>& a, const std::vector<Slice>& b) {
  for (const Slice& x : a)
    for (const Slice& y : b)
      if (x.buffer == y.buffer && x.begin_bytes < y.end_bytes() && y.begin_bytes < x.end_bytes() && x.size_bytes > 0 &&
          y.size_bytes > 0)
        return true;
  return false;
}

bool conflict(const Item& a, const Item& b) {
  return overlap(a.writes, b.reads) || overlap(a.reads, b.writes) || overlap(a.writes, b.writes);
}

int64_t unordered_conflicts(const Closure& closure, const std::vector<const Plan*>& runs) {
  int64_t count = 0;
  for (size_t later = 0; later < closure.origin.size(); ++later)
    for (size_t earlier = 0; earlier < later; ++earlier) {
      const auto [run_a, a] = closure.origin[earlier];
      const auto [run_b, b] = closure.origin[later];
      count += conflict((*runs[run_a])[a], (*runs[run_b])[b]) && !closure.before[later][earlier];
    }
  return count;
}

/// A plan without hazards: random accesses to parts of a few buffers, and every wait that a conflict needs.
Plan& random_plan(ToyJob& job, std::mt19937_64& random, const std::string& kind) {
  auto below = [&](size_t n) { return static_cast<int>(random() % n); };
  auto slice = [&] { return named("b{}", below(4)) + named(":{}:{}", below(6) * 8, 8 + below(2) * 8); };
  ToyPlan plan(job, kind);
  struct Made {
    std::string name;
    Names reads, writes;
  };
  std::vector<Made> made;
  const int count = 3 + below(8);
  const auto is_task = [&] { return below(3) > 0; };
  std::vector<ToyTask> tasks;
  for (int i = 0; i < count; ++i) {
    Made item{named("i{}", i), {}, {}};
    for (int r = below(3); r-- > 0;) item.reads.push_back(slice());
    if (below(2)) item.writes.push_back(slice());
    Names after;
    for (const Made& other : made) {
      auto slices = [&](const Names& names) {
        std::vector<Slice> result;
        for (const std::string& name : names) result.push_back(job.slice(name));
        return result;
      };
      Item a, b;
      a.reads = slices(other.reads), a.writes = slices(other.writes);
      b.reads = slices(item.reads), b.writes = slices(item.writes);
      if (conflict(a, b)) after.push_back(other.name);
    }
    if (is_task())
      tasks.push_back({.name = item.name,
                       .channel = named("local{}", below(3)),
                       .op = Op::copy,
                       .time_ns = 1 + below(9),
                       .after = after,
                       .reads = item.reads,
                       .writes = item.writes});
    else
      plan.compute(item.name, 1 + below(9), item.reads, item.writes, after);
    made.push_back(item);
  }
  for (const ToyTask& task : tasks) plan.task(task);
  return plan.build();
}

}  // namespace

TEST_CASE("the checker agrees with the transitive closure over all pairs, with and without waits") {
  const uint64_t seed = 99;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  int with_hazards = 0;
  for (int round = 0; round < 200; ++round) {
    ToyJob job;
    Plan& plan = random_plan(job, random, "random");
    finish(job, plan, 1);
    std::vector<const Plan*> runs{&plan, &plan, &plan};
    auto seams = link_all(runs, job.channels);
    CHECK(unordered_conflicts(Closure(runs, seams, job.channels.size()), runs) == 0);
    CHECK(find_hazards({runs, seams}, job.channels, nullptr).count == 0);
    for (auto& waits : seams) std::erase_if(waits, [&](const SeamWait&) { return random() % 2 == 0; });
    const int64_t slow = unordered_conflicts(Closure(runs, seams, job.channels.size()), runs);
    // Counts differ (pairs of items against last accesses of segments); the existence of a hazard must not.
    CHECK((find_hazards({runs, seams}, job.channels, nullptr).count > 0) == (slow > 0));
    with_hazards += slow > 0;
  }
  CHECK(with_hazards > 20);
}

TEST_CASE("an undeclared order is an error, whichever order the rehearsal computes", "[hazards]") {
  // Reduced shards of two layers pass through one buffer before they are added: docs/notes/0006.
  for (const char* declared : {"", "add A"})
    for (int64_t first_ns : {1, 500}) {
      CAPTURE(declared, first_ns);
      ToyJob job;
      ToyPlan plan(job);
      plan.compute("A", first_ns, {}, {"grad A"}).compute("B", 100, {}, {"grad B"});
      for (const char* layer : {"A", "B"}) {
        const std::string name(layer);
        Names after{name};
        if (name == "B" && *declared) after.push_back(declared);
        plan.task({.name = "reduce " + name,
                   .channel = "reduce",
                   .axis = Axis::data,
                   .op = Op::reduce_scatter,
                   .time_ns = 10,
                   .after = after,
                   .reads = {"grad " + name},
                   .writes = {"part"}});
        plan.task({.name = "add " + name,
                   .channel = "reduce",
                   .op = Op::add,
                   .after = {"reduce " + name},
                   .reads = {"part"},
                   .writes = {"shard " + name}});
      }
      Plan& built = plan.build();
      const Proof proof = finish(job, built);
      CHECK(proof.deadlock.empty());
      CHECK(proof.holds() == (*declared != '\0'));
      if (proof.hazards.empty()) continue;
      CHECK(proof.hazards[0].by_chance);
      CHECK(proof.hazards[0].sentence() ==
            "reduce B (channel reduce, run 0) writes part bytes 0..64 that reduce A (channel reduce, run 0) "
            "writes, and only the computed order of the plan puts it second. Declare that reduce B waits for "
            "reduce A, or the reverse.");
    }
}

TEST_CASE("a write must wait for every earlier reader of its bytes, also for two readers on one channel", "[hazards]") {
  // Channel order runs `first` before `second`. A pass that relies on it has an implicit order.
  for (const bool waits_for_both : {false, true}) {
    CAPTURE(waits_for_both);
    ToyJob job;
    ToyPlan plan(job);
    plan.compute("a", 10).compute("b", 10);
    plan.task({.name = "first", .channel = "copy", .op = Op::copy, .after = {"a"}, .reads = {"x"}});
    plan.task({.name = "second", .channel = "copy", .op = Op::copy, .after = {"b"}, .reads = {"x"}});
    plan.task({.name = "write",
               .channel = "other",
               .op = Op::copy,
               .after = waits_for_both ? Names{"first", "second"} : Names{"second"},
               .writes = {"x"}});
    const Proof proof = finish(job, plan.build());
    CHECK(proof.holds() == waits_for_both);
    CHECK(proof.hazard_count == (waits_for_both ? 0 : 1));
    if (proof.hazards.empty()) continue;
    CHECK(proof.hazards[0].by_chance);
    CHECK(proof.hazards[0].earlier == "first");
    CHECK(proof.hazards[0].later == "write");
  }
}

namespace {

/// Rows go to experts and back by counts that all ranks gather.
Plan& toy_experts(ToyJob& job, const std::string& micro_batch = "") {
  ToyPlan plan(job);
  const auto of = [&](const char* name) { return name + micro_batch; };
  plan.compute(of("router"), 10, {"tokens"}, {"own counts", "sorted rows"});
  plan.compute(of("shared expert"), 50, {"tokens"}, {"shared out"});
  plan.compute(of("experts"), 100, {"dispatched", "counts"}, {"expert out"});
  plan.compute(of("combine"), 10, {"returned", "shared out"}, {"out"});
  plan.task({.name = of("gather_counts"),
             .channel = "counts",
             .axis = Axis::data,
             .op = Op::all_gather,
             .time_ns = 5,
             .after = {of("router")},
             .before = of("experts"),
             .reads = {"own counts"},
             .writes = {"counts"}});
  plan.task({.name = of("dispatch"),
             .channel = "experts",
             .axis = Axis::data,
             .op = Op::all_to_all_v,
             .time_ns = 30,
             .after = {of("router"), of("gather_counts")},
             .before = of("experts"),
             .reads = {"sorted rows", "counts"},
             .writes = {"dispatched"}});
  plan.task({.name = of("return"),
             .channel = "experts",
             .axis = Axis::data,
             .op = Op::all_to_all_v,
             .time_ns = 30,
             .after = {of("experts")},
             .before = of("combine"),
             .reads = {"expert out", "counts"},
             .writes = {"returned"}});
  return plan.build();
}

}  // namespace

TEST_CASE("all_to_all_v reads its counts: every wait of a layer of experts is caught, that for the counts by name",
          "[hazards]") {
  ToyJob job;
  Plan& plan = toy_experts(job);
  const Proof proof = finish(job, plan);
  INFO((proof.hazards.empty() ? "" : proof.hazards[0].sentence()));
  REQUIRE(proof.holds());
  mutate(job, {&plan, &plan, &plan});

  Task& dispatch = plan.task(item_named(plan, "dispatch"));
  const ItemId counts = item_named(plan, "gather_counts");
  const size_t waits = dispatch.after.size();
  std::erase_if(dispatch.after, [&](const Point& point) { return point.item == counts; });
  REQUIRE(dispatch.after.size() + 1 == waits);
  const std::vector<const Plan*> runs{&plan};
  const HazardReport report = find_hazards({runs, {}}, job.channels, &job.buffers);
  std::string sentences;
  for (const Hazard& hazard : report.hazards) sentences += hazard.sentence() + "\n";
  INFO(sentences);
  // The rows themselves are hazards, too, because the wait for the counts implied that for the router.
  CHECK(
      sentences.find("dispatch (channel experts, run 0) reads counts bytes 0..64 while gather_counts (channel counts, "
                     "run 0) may still be writing them") != std::string::npos);
}

TEST_CASE("the order of a plan may come from chains of tasks and through the spine", "[hazards]") {
  for (bool through_spine : {false, true}) {
    ToyJob job;
    ToyPlan plan(job);
    plan.compute("a", 10);
    plan.compute("b", 10, {}, {}, through_spine ? Names{"first"} : Names{});
    plan.compute("c", 10);
    plan.task({.name = "first", .channel = "copy", .op = Op::copy, .after = {"a"}, .writes = {"x"}});
    plan.task({.name = "middle",
               .channel = "other",
               .op = Op::copy,
               .after = {through_spine ? "c" : "first"},
               .writes = {"y"}});
    plan.task({.name = "last", .channel = "copy", .op = Op::copy, .after = {"middle"}, .reads = {"x"}});
    CHECK(finish(job, plan.build()).holds());
  }
}

TEST_CASE("mutation: every wait of every strategy is caught, alone and between other kinds of plan") {
  SECTION("data parallel") {
    ToyJob job;
    Plan& plan = toy_ddp(job, {});
    finish(job, plan);
    mutate(job, {&plan, &plan, &plan});
  }
  SECTION("ZeRO-1, with and without clipping, around evaluation and saving") {
    for (bool clip : {false, true}) {
      ToyJob job;
      Plan& train = toy_zero1(job, {.clip = clip});
      Plan& eval = toy_eval(job);
      Plan& save = toy_save(job);
      for (Plan* plan : {&train, &eval, &save}) finish(job, *plan);
      mutate(job, {&train, &train, &train});
      mutate(job, {&train, &eval, &train});
      mutate(job, {&train, &save, &train, &eval, &save, &train});
    }
  }
  SECTION("ZeRO-3 with 1 to 3 slots, and staged gradients") {
    for (int slots : {1, 2, 3}) {
      ToyJob job;
      Plan& plan = toy_zero3(job, {.slots = slots});
      finish(job, plan);
      mutate(job, {&plan, &plan, &plan});
    }
    ToyJob job;
    Plan& plan = toy_zero3(job, {.staged_gradients = true});
    finish(job, plan);
    mutate(job, {&plan, &plan, &plan});
  }
  SECTION("interleaved pipeline, full and partial steps") {
    ToyJob job;
    const std::vector<Plan*> full = toy_pipeline(job, {.chunks = 2});
    const std::vector<Plan*> partial = toy_pipeline(job, {.micro_batches = 4, .chunks = 2});
    const Mesh mesh(MeshSizes{.pipeline = 4});
    finish(job, full, mesh);
    finish(job, partial, mesh);
    for (size_t stage : {0u, 1u, 3u}) mutate(job, {full[stage], partial[stage], full[stage]});
  }
}

TEST_CASE("a wait that no declared access needs counts as missed") {
  ToyJob job;
  ToyPlan plan(job);
  plan.compute("a", 10, {}, {"x"});
  plan.task({.name = "b", .channel = "copy", .op = Op::copy, .after = {"a"}, .reads = {"y"}});
  Plan& built = plan.build();
  finish(job, built);
  const std::vector<const Plan*> runs{&built, &built};
  const Mutations result = mutate_waits({runs, link_all(runs, job.channels)}, job.channels, &job.buffers);
  CHECK(result.missed == 1);
  REQUIRE(result.missed_names.size() == 1);
  CHECK(result.missed_names[0] == "b <- a");
}

TEST_CASE("pruning drops exactly the waits that the closure implies") {
  ToyJob job;
  ToyPlan plan(job);
  plan.compute("a", 10, {}, {"x"}).compute("b", 10, {}, {"y"});
  plan.task({.name = "t", .channel = "copy", .op = Op::copy, .after = {"a", "b", "a"}, .reads = {"x", "y"}});
  plan.task({.name = "u", .channel = "update", .op = Op::copy, .after = {"b", "t"}, .reads = {"x", "y"}});
  Plan& built = plan.build();
  const Proof proof = finish(job, built);
  CHECK(proof.pruned_count == 3);
  CHECK(proof.waits == 2);
  CHECK(built[item_named(built, "t")].after == std::vector<Point>{{item_named(built, "b")}});
  CHECK(built[item_named(built, "u")].after == std::vector<Point>{{item_named(built, "t")}});
}

TEST_CASE("links: the first touch waits for the last touches of earlier runs") {
  ToyJob job;
  Plan& train = toy_zero1(job, {});
  Plan& eval = toy_eval(job);
  finish(job, train);
  finish(job, eval);
  const std::vector<const Plan*> history{&train};
  const auto waits = link(history, eval, job.channels);
  // Gathers are in backward order on one channel: forward layer 0 waits for the last of them, which implies the others.
  REQUIRE(waits.size() == 1);
  CHECK(train[waits[0].from].name == "ag0");
  CHECK(eval[waits[0].to].name == "E0");
  CHECK(waits[0].run == 0);
  CHECK(link({}, train, job.channels).empty());
}

TEST_CASE("compact keeps the last of every plan, the last 6 runs, and at most 3 repeats") {
  Plan plans[8];
  auto kept = [&](const std::string& history) {
    std::vector<const Plan*> runs;
    for (char c : history) runs.push_back(&plans[c - 'a']);
    std::string text;
    for (uint32_t run : compact(runs)) text += history[run];
    return text;
  };
  CHECK(kept("") == "");
  CHECK(kept("aaaaaaaaaa") == "aaa");
  CHECK(kept("aaaabbbbb") == "aaabbb");
  CHECK(kept("abcbcbcbc") ==
        "abcbcbc");  // a is kept although it is 8 runs old, because nothing else covers what it touched
  CHECK(kept("aabcdefgh") == "abcdefgh");
}

TEST_CASE("compact is sound: waits over the kept runs imply all waits over the full history") {
  const uint64_t seed = 31337;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  int dropped = 0;
  for (int round = 0; round < 120; ++round) {
    ToyJob job;
    std::vector<Plan*> kinds;
    for (int k = 0; k < 4; ++k) {
      kinds.push_back(&random_plan(job, random, named("kind{}", k)));
      finish(job, *kinds.back(), 1);
    }
    std::vector<const Plan*> runs;
    std::vector<std::vector<SeamWait>> seams;
    for (int i = 0; i < 14; ++i) {
      const Plan* next = kinds[random() % kinds.size()];
      for (size_t repeats = random() % 3 == 0 ? 4 : 1; repeats-- > 0;) {
        const std::vector<uint32_t> kept = compact(runs);
        std::vector<const Plan*> history;
        for (uint32_t run : kept) history.push_back(runs[run]);
        dropped += static_cast<int>(runs.size() - kept.size());
        std::vector<SeamWait> waits = link(history, *next, job.channels);
        for (SeamWait& wait : waits) wait.run = kept[wait.run];  // back to the full history
        runs.push_back(next);
        seams.push_back(std::move(waits));
      }
    }
    CHECK(unordered_conflicts(Closure(runs, seams, job.channels.size()), runs) == 0);
  }
  CHECK(dropped > 1000);
}
