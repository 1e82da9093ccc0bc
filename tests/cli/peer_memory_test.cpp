// SPDX-License-Identifier: Apache-2.0
// Runs that are killed and go on from the memory of keepers: the same bits, no checkpoint on disk, and what happens
// without the memory.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <thread>

#include "engine/checkpoint/kept_part.h"
#include "tests/cli/program.h"
#include "trainer/runtime/durability/keeper.h"

using namespace slipstream;
using namespace slipstream::program;
using runtime::Keeper;

namespace {

const std::string kSteps = " --set train.steps=8 --set train.log_interval=3", kHash = " --set train.hash_interval=1",
                  kEvery = " --set checkpoint.peer_interval=1", kResume = " --resume";

std::string train(const Folder& folder, const std::string& name, const std::string& more = "") {
  return "train " + run_file(folder) + kSteps + " --set output.dir=" + folder.path(name) + more;
}

Result killed(const std::string& point, int ranks, const std::string& arguments) {
  const std::string program = exe() + " " + arguments;
  return shell("SLIPSTREAM_FAIL_POINT=" + point + " " +
               (ranks == 1 ? program : mpirun() + "-np " + std::to_string(ranks) + " " + program));
}
Result started(int ranks, const std::string& arguments) {
  return ranks == 1 ? call(arguments) : on_ranks(ranks, arguments);
}

std::string keeper_of(const std::string& run) { return Json::parse(read(run + "/run.json")).at("keeper").as_string(); }

bool has_checkpoint(const std::string& run) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run + "/checkpoints", error))
    if (contains(entry.path().filename().string(), "step-")) return true;
  return false;
}

/// The command line of a process, words separated by zeros; empty if it has ended.
std::string text_of_process(const fs::path& entry) {
  std::ifstream file(entry / "cmdline", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Waits, and returns whether the keeper of this run ends.
bool keeper_ends(const std::string& id) {
  for (int i = 0; i < 200; ++i) {
    if (!Keeper::find(id)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

/// Changes a byte of every snapshot of a step, or of all steps (0). Returns the number of copies.
int damage(const std::string& id, int64_t step, int rank = -1) {
  int changed = 0;
  const std::unique_ptr<Keeper> keeper = Keeper::find(id);
  REQUIRE(keeper);
  for (const std::string& name : keeper->list()) {
    const auto memory = keeper->get(name);
    const auto part = checkpoint::KeptPart::open(memory->bytes());
    REQUIRE(part);
    if (rank >= 0 && part->shape().rank != rank) continue;
    for (int slot = 0; slot < part->shape().slots; ++slot)
      if (part->step_of(slot) && (step == 0 || part->step_of(slot) == step)) {
        const_cast<std::byte*>(part->arrays(slot))[part->shape().arrays_bytes / 2] ^= std::byte{1};
        ++changed;
      }
  }
  return changed;
}

/// The step that a run has resumed from memory.
int64_t resumed_step(const Result& result) {
  return static_cast<int64_t>(number_after(result.text, "resumed from memory of 1 host (step "));
}

}  // namespace

TEST_CASE("peer memory: a killed run goes on with the same bits, without any checkpoint on disk", "[cli]") {
  Folder folder;
  struct Row {
    int ranks;
    std::string sets;
  };
  std::vector<Row> layouts = {{1, ""}, {2, " --set zero.stage=1"}};
  if (test_everything()) {
    layouts.push_back({3, " --set zero.stage=3 --set train.global_batch_size=12"});
    layouts.push_back({2, " --set parallel.pipeline=2"});
    layouts.push_back({2, " --set parallel.tensor=2"});
    layouts.push_back({2, " --set optimizer.double_buffer=true"});
  }
  int number = 0;
  for (const Row& row : layouts) {
    if (row.ranks > 1 && !has_mpirun()) continue;
    const std::string own = std::to_string(number++), sets = row.sets + kEvery;
    INFO(row.ranks << row.sets);
    REQUIRE(started(row.ranks, train(folder, "whole" + own, row.sets)).code == 0);
    const std::vector<std::string> whole = trajectory(folder.path("whole" + own));
    REQUIRE(whole.size() == 8);
    // "step#5" ends a rank that is about to issue step 6, after step 4.
    std::vector<std::string> points;
    if (test_everything() || row.ranks == 1)
      points = {"step#5", "keep.seal#3", "keep.mark#3", "keep.snapshot#40", "keep.marked#4", "keep.seal#6"};
    if (row.ranks > 1) points.insert(points.end(), {"keep.exchange#14", "keep.all_reduce#4"});
    for (size_t p = 0; p < points.size(); ++p)
      for (int rank = 0; rank < row.ranks; ++rank) {
        if (!test_everything() && rank != static_cast<int>(p) % row.ranks) continue;
        const std::string point = points[p].substr(0, points[p].find('#')) + "@" + std::to_string(rank) +
                                  points[p].substr(points[p].find('#'));
        const std::string name = "killed" + std::to_string(number++), run = folder.path(name);
        const Result first = killed(point, row.ranks, train(folder, name, sets));
        INFO(point << "\n" << first.text);
        CHECK(first.code != 0);
        CHECK(!has_checkpoint(run));
        const auto reached = std::ssize(trajectory(run));
        // It is killed once more, by its first copy.
        const Result second = killed("keep.snapshot@0#0", row.ranks, train(folder, name, sets + kResume));
        CHECK(second.code != 0);
        CHECK(!has_checkpoint(run));
        const Result third = started(row.ranks, train(folder, name, sets + kResume));
        INFO(second.text << third.text);
        REQUIRE(third.code == 0);
        CHECK(resumed_step(third) == resumed_step(second));
        CHECK(resumed_step(third) <= reached + 1);  // a line without times stands in its place
        CHECK(resumed_step(third) >= reached - 2);
        if (points[p] == "step#5") CHECK(resumed_step(third) >= 2);
        CHECK(trajectory(run) == whole);
        check_complete(run, 8);
        CHECK(keeper_ends(keeper_of(run)));
      }
  }
}

TEST_CASE("peer memory: other layouts read the same state", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string batch = " --set train.global_batch_size=12";
  const std::string still =
      " --set optimizer.learning_rate=0 --set optimizer.min_learning_rate=0 --set "
      "optimizer.warmup_steps=0" +
      kEvery;
  struct Row {
    int ranks;
    std::string sets;
  };
  std::vector<Row> rows = {{2, " --set zero.stage=3"}, {1, ""}};
  if (test_everything())
    rows.insert(rows.end(), {{2, " --set parallel.pipeline=2"},
                             {3, " --set zero.stage=1"},
                             {2, " --set parallel.tensor=2"},
                             {2, " --set zero.stage=2"}});
  for (size_t r = 0; r < rows.size(); ++r) {
    const Row &row = rows[r], &other = rows[(r + 1) % rows.size()];
    INFO(row.sets << " to " << other.sets);
    const std::string name = "run" + std::to_string(r), run = folder.path(name);
    const Result first = killed("step@0#5", row.ranks, train(folder, name, row.sets + batch + kEvery + kHash));
    CHECK(first.code != 0);
    const std::vector<Json> before = metrics(run);
    const Result second = started(other.ranks, train(folder, name, other.sets + batch + still + kResume));
    INFO(first.text << second.text);
    REQUIRE(second.code == 0);
    const auto at = static_cast<size_t>(resumed_step(second)) - 1;
    REQUIRE(at < before.size());
    // Without a learning rate the weights stay as they were read.
    CHECK(metrics(run).back().at("params_hash") == before[at].at("params_hash"));
    check_complete(run, 8);
    CHECK(keeper_ends(keeper_of(run)));
  }
}

TEST_CASE("peer memory: damaged, missing and foreign snapshots are not used, a checkpoint takes their place", "[cli]") {
  Folder folder;
  const std::string run = folder.path("run"), every2 = " --set checkpoint.interval=2", every = kEvery + kHash;
  const char* const nothing_newer =
      "note: the hosts of this run hold no complete snapshot in memory that is newer than its checkpoints";
  REQUIRE(call(train(folder, "whole", kHash)).code == 0);
  const std::vector<std::string> whole = trajectory(folder.path("whole"));
  const auto ends_whole = [&](const Result& result) {
    INFO(result.text);
    CHECK(result.code == 0);
    CHECK(trajectory(run) == whole);
    fs::remove_all(run);
  };
  SECTION("a damaged snapshot: the one before") {
    REQUIRE(killed("step#6", 1, train(folder, "run", every)).code == 137);
    const int64_t newest = 5;  // if it was marked while step 6 ran; otherwise step 4 is the newest
    damage(keeper_of(run), newest);
    const Result result = call(train(folder, "run", every + kResume));
    CHECK(resumed_step(result) == 4);
    CHECK(!contains(result.text, nothing_newer));
    ends_whole(result);
  }
  SECTION("all damaged: the checkpoint") {
    REQUIRE(killed("step#6", 1, train(folder, "run", every + every2)).code == 137);
    CHECK(damage(keeper_of(run), 0) > 0);
    const Result result = call(train(folder, "run", every + every2 + kResume));
    CHECK(
        contains(result.text, "in memory is not complete: the hosts of this launch have no undamaged part of rank 0"));
    CHECK(contains(result.text, nothing_newer));
    CHECK(contains(result.text, "/step-0000000"));
    ends_whole(result);
  }
  SECTION("a lost keeper: the checkpoint, or the beginning") {
    REQUIRE(killed("step#6", 1, train(folder, "run", every)).code == 137);
    Keeper::find(keeper_of(run))->end();
    CHECK(keeper_ends(keeper_of(run)));
    const Result result = call(train(folder, "run", every + kResume));
    CHECK(contains(result.text, "has no checkpoint; the run begins at step 1"));
    ends_whole(result);
  }
  SECTION("an older run of the same folder") {
    REQUIRE(killed("step#6", 1, train(folder, "run", every)).code == 137);
    const std::string older = keeper_of(run);
    REQUIRE(killed("step#0", 1, train(folder, "run", every)).code == 137);
    CHECK(keeper_of(run) != older);
    CHECK(Keeper::find(older));  // its memory is still there
    const Result result = call(train(folder, "run", every + kResume));
    CHECK(contains(result.text, "has no checkpoint; the run begins at step 1"));
    ends_whole(result);
    Keeper::find(older)->end();
  }
  SECTION("a newer checkpoint") {
    REQUIRE(
        killed("step#6", 1,
               train(folder, "run", " --set checkpoint.peer_interval=4 --set checkpoint.async=false" + every2 + kHash))
            .code == 137);
    const Result result = call(train(folder, "run", every2 + kHash + kResume));
    CHECK(contains(result.text, "/step-00000006 (step 6"));
    ends_whole(result);
  }
}

TEST_CASE("peer memory: what one host alone has lost, the other copies replace", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = folder.path("run"), zero = " --set zero.stage=3";
  REQUIRE(on_ranks(2, train(folder, "whole", zero)).code == 0);
  for (int lost = test_everything() ? 0 : 1; lost < 2; ++lost) {
    REQUIRE(killed("step@0#6", 2, train(folder, "run", zero + kEvery)).code != 0);
    // The memory of the host of rank `lost` has its own part, and the second copy of the other rank's.
    const std::unique_ptr<Keeper> keeper = Keeper::find(keeper_of(run));
    REQUIRE(keeper);
    const std::string own = "." + std::to_string(lost) + ".0", others = "." + std::to_string(1 - lost) + ".1";
    int dropped = 0;
    for (const std::string& name : keeper->list())
      if (name.ends_with(own) || name.ends_with(others)) {
        keeper->drop(name);
        ++dropped;
      }
    CHECK(dropped == 2);
    const Result result = on_ranks(2, train(folder, "run", zero + kEvery + kResume));
    INFO(result.text);
    CHECK(result.code == 0);
    CHECK(resumed_step(result) >= 4);
    CHECK(trajectory(run) == trajectory(folder.path("whole")));
    fs::remove_all(run);
  }
}

TEST_CASE("peer memory: another keeper takes the place of one that is killed", "[cli]") {
  Folder folder;
  const std::string run = folder.path("run");
  Result result;
  std::thread training([&] { result = call(train(folder, "run", kEvery + " --set train.steps=1500")); });
  pid_t killed_keeper = 0;
  for (int i = 0; i < 2000 && killed_keeper == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (metrics(run).empty()) continue;
    const std::string id = keeper_of(run);
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
      const std::string words = text_of_process(entry.path());
      if (!contains(words, std::string("keeper\0", 7) + id)) continue;
      killed_keeper = std::stoi(entry.path().filename().string());
      ::kill(killed_keeper, SIGKILL);
    }
  }
  training.join();
  INFO(result.text);
  CHECK(killed_keeper > 0);
  CHECK(result.code == 0);
  CHECK(count(result.text, "[keeper] rank 0 lost the keeper of its host: another one holds its snapshots now") == 1);
  CHECK(keeper_ends(keeper_of(run)));
}

TEST_CASE("peer memory: a keeper holds memory until the run ends, or no rank comes back", "[cli]") {
  const std::string name = "test-" + std::to_string(::getpid());
  CHECK(!Keeper::find(name));
  runtime::keep(name, 1);
  runtime::keep(name, 1);  // there is one already
  {
    const std::unique_ptr<Keeper> keeper = Keeper::find(name);
    REQUIRE(keeper);
    const auto memory = runtime::KeptMemory::make(10'000);
    memory->bytes()[9'999] = std::byte{42};
    CHECK(keeper->put("a.0.0", *memory));
    CHECK(keeper->put("b.0.0", *memory));
    CHECK(keeper->list() == std::vector<std::string>{"a.0.0", "b.0.0"});
    keeper->drop("a.0.0");
    CHECK(!keeper->get("a.0.0"));
  }
  {
    const std::unique_ptr<Keeper> again = Keeper::find(name);
    REQUIRE(again);
    const auto memory = again->get("b.0.0");
    REQUIRE(memory);
    CHECK(memory->bytes().size() == 10'000);
    CHECK(memory->bytes()[9'999] == std::byte{42});
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    CHECK(again->lives());  // it is longer than the limit, but it is connected
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(3000));  // a second without a connection
  CHECK(!Keeper::find(name));
  CHECK_THROWS_WITH(runtime::KeptMemory::make(int64_t{1} << 60), Catch::Contains("checkpoint.peer_interval"));
}

namespace {

/// A process of user 65534 that listens at the address of our keeper `name`. Its exit code is the number of
/// connections from which it received a byte.
class Squatter {
 public:
  explicit Squatter(const std::string& name) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    const std::string path = "slipstream-keeper-" + std::to_string(::getuid()) + "-" + name;
    process_ = ::fork();
    if (process_ == 0) {
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      std::memcpy(address.sun_path + 1, path.data(), path.size());
      const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
      const bool is_other = ::setgid(65534) == 0 && ::setuid(65534) == 0;
      const int listener = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
      if (!is_other || ::bind(listener, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
          ::listen(listener, 8) != 0 || ::write(ready[1], "r", 1) != 1)
        ::_exit(255);
      ::close(ready[1]);
      int talked = 0;
      for (char byte = 0;;) {
        const int client = ::accept(listener, nullptr, nullptr);
        if (client < 0) ::_exit(254);
        const ssize_t got = ::recv(client, &byte, 1, 0);
        if (got == 1 && byte == 'e') ::_exit(talked);  // from the test
        talked += got > 0 ? 1 : 0;
        ::close(client);
      }
    }
    ::close(ready[1]);
    char byte = 0;
    is_there_ = ::read(ready[0], &byte, 1) == 1;
    ::close(ready[0]);
  }
  ~Squatter() {
    if (process_ > 0) ::kill(process_, SIGKILL), ::waitpid(process_, nullptr, 0);
  }
  bool is_there() const { return is_there_; }

  /// Ends the process and returns the number.
  int talked(const std::string& name) {
    const std::string path = "slipstream-keeper-" + std::to_string(::getuid()) + "-" + name;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, path.data(), path.size());
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    REQUIRE(::connect(socket, reinterpret_cast<const sockaddr*>(&address),
                      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size())) == 0);
    REQUIRE(::send(socket, "e", 1, MSG_NOSIGNAL) == 1);
    int status = 0;
    REQUIRE(::waitpid(process_, &status, 0) == process_);
    process_ = 0;
    ::close(socket);
    return WEXITSTATUS(status);
  }

 private:
  pid_t process_ = 0;
  bool is_there_ = false;
};

}  // namespace

TEST_CASE("peer memory: a process of another user at the keeper's address receives nothing", "[cli]") {
  if (::getuid() != 0) {
    WARN("SKIPPED: only root can start a process of another user");
    return;
  }
  Folder folder;
  REQUIRE(killed("step#4", 1, train(folder, "run", kEvery)).code == 137);
  const std::string id = keeper_of(folder.path("run"));
  Keeper::find(id)->end();
  REQUIRE(keeper_ends(id));
  Squatter squatter(id);
  REQUIRE(squatter.is_there());
  CHECK(!Keeper::find(id));
  CHECK_THROWS(Keeper::require_own(id));
  check_refused(call(train(folder, "run", kEvery + kResume)), 7,
                {"user 65534 listens at the address", "checkpoint.peer_interval = 0"});
  CHECK(call(train(folder, "run", kResume)).code == 0);
  CHECK(squatter.talked(id) == 0);
}

TEST_CASE("peer memory: the size of shared memory is sealed, and a file without seals is not taken over", "[cli]") {
  const auto memory = runtime::KeptMemory::make(8192);
  REQUIRE(memory->bytes().size() == 8192);
  CHECK(::ftruncate(memory->file(), 4096) != 0);
  CHECK(::ftruncate(memory->file(), 16384) != 0);
  memory->bytes()[0] = std::byte{1};
  const int open_file = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(open_file, 4096) == 0);
  CHECK(!runtime::KeptMemory::adopt(open_file));
}
