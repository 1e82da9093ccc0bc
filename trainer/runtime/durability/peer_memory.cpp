// SPDX-License-Identifier: Apache-2.0
// Holds the memory of snapshots, marks them, and replaces a lost keeper.

#include "trainer/runtime/durability/peer_memory.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "engine/base/fail_point.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/device/clock.h"
#include "engine/plan/keeping.h"
#include "trainer/runtime/durability/saved_state.h"

namespace slipstream::runtime {
namespace {

// Once this many later snapshots are marked, all ranks have completed and marked the first one: every rank has read the
// results of its step before the last of these steps could end.
constexpr int64_t kSafelyMarked = 4;
constexpr size_t kIdDigits = 16;

std::string drawn_id() {
  uint64_t drawn = 0;
  if (::getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) drawn = static_cast<uint64_t>(monotonic_ns());
  return fmt::format("{:016x}", drawn);
}

}  // namespace

std::string kept_name(const checkpoint::KeptShape& shape, int copy) {
  const std::string meaning = fmt::format("{} {} {}\n", shape.slots, shape.slot_bytes, shape.ranks) + shape.text;
  return fmt::format("{}.{}.{}", data::xxh3_128_hex(meaning.data(), std::ssize(meaning)), shape.rank, copy);
}

bool RunName::may_continue(const std::string& owner, int64_t step) const {
  if (owner.empty()) return false;
  return owner == start || std::any_of(formers.begin(), formers.end(), [&](const Former& former) {
           return former.start == owner && step <= former.most_step;
         });
}

RunName run_name_of(World& world, const std::string& dir, bool continues) {
  RunName name;
  std::string starts;  // "START STEP" of each former start
  if (world.rank() == 0) {
    const std::string path = dir + "/run.json";
    std::error_code error;
    try {
      if (continues && std::filesystem::exists(path, error)) {
        const Json run = Json::parse(files::read_file(path, files::Owner::checkpoint, int64_t{16} << 20), path);
        const auto id_in = [](const Json& object, std::string_view key) {
          const Json* const found = object.find(key);
          return found != nullptr && found->is_string() && found->as_string().size() == kIdDigits ? found->as_string()
                                                                                                  : std::string();
        };
        name.run_id = id_in(run, "run_id");
        if (const std::string former = id_in(run, "start"); !former.empty())
          starts += fmt::format("{} {} ", former, INT64_MAX);
        if (const Json* const earlier = run.find("continues"); earlier != nullptr && earlier->is_array())
          for (const Json& each : earlier->as_array())
            if (const Json* const step = each.is_object() ? each.find("step") : nullptr; step && step->is_int())
              if (const std::string former = id_in(each, "start"); !former.empty())
                starts += fmt::format("{} {} ", former, step->as_int());
      }
    } catch (const Error&) {
      // Without a name, no memory is found, but the checkpoints are.
    }
    if (name.run_id.empty()) name.run_id = drawn_id();
    name.start = drawn_id();
  }
  const std::string of_rank_0 = world.all_gather(fmt::format("{} {} {}", name.run_id, name.start, starts))[0];
  std::istringstream words(of_rank_0);
  words >> name.run_id >> name.start;
  for (RunName::Former former; words >> former.start >> former.most_step;) name.formers.push_back(former);
  name.keeper = keeper_name_of(world, name.run_id, dir);
  return name;
}

std::string keeper_name_of(World& world, const std::string& run_id, const std::string& dir) {
  std::string folder;
  // A copy has another inode. The time of birth distinguishes two folders that have had the same inode one after the
  // other. The device is left out, because hosts number a network file system differently.
  struct statx info {};
  if (world.rank() == 0 && ::statx(AT_FDCWD, dir.c_str(), 0, STATX_INO | STATX_BTIME, &info) == 0)
    folder = fmt::format("{} {}.{}", info.stx_ino, info.stx_mask & STATX_BTIME ? info.stx_btime.tv_sec : 0,
                         info.stx_mask & STATX_BTIME ? info.stx_btime.tv_nsec : 0);
  const std::string meaning = run_id + " " + world.all_gather(folder)[0];
  return data::xxh3_128_hex(meaning.data(), std::ssize(meaning)).substr(0, kIdDigits);
}

PeerMemory::PeerMemory(World& world, const Job& job, const checkpoint::Manifest& manifest, const RunName& run,
                       int64_t interval)
    : world_(world), keeping_(job.keeping), interval_(interval), name_(run) {
  keeper_ = Keeper::start(name_.keeper);
  checkpoint::KeptShape shape{.rank = world.rank(),
                              .ranks = world.size(),
                              .slots = keeping_.slots,
                              .slot_bytes = keeping_.slot_bytes,
                              .arrays_bytes = keeping_.arrays_bytes,
                              .text = checkpoint::kept_text(manifest, kept_boxes(job))};
  // The lines of boxes differ between ranks, but those of the manifest do not.
  const std::string head = checkpoint::kept_text(manifest, {});
  const std::vector<std::string> boxes =
      world.all_gather(fmt::format("{}\n{}", shape.arrays_bytes, shape.text.substr(head.size())));
  world.together([&] {
    held_.push_back(hold(shape, 0));
    if (keeping_.to_holder == 0) return;
    const int n = world.size(), sender = (world.rank() - keeping_.to_holder % n + n) % n;
    const std::string& theirs = boxes[static_cast<size_t>(sender)];
    shape.rank = sender;
    shape.arrays_bytes = std::stoll(theirs);
    shape.text = head + theirs.substr(theirs.find('\n') + 1);
    held_.push_back(hold(shape, 1));
  });
  std::string names = fmt::format("{}", world.host());
  for (const Held& each : held_) names += " " + each.name;
  int lost = 0;
  std::vector<int> hosts;  // by rank
  for (const std::string& line : world.all_gather(names + (keeper_ ? "" : " -"))) {
    std::istringstream words(line);
    int host = -1;
    words >> host;
    hosts.push_back(host);
    for (std::string name; words >> name;) {
      lost += name == "-";
      if (host == world.host() && name != "-") names_here_.push_back(name);
    }
  }
  if (lost > 0)
    log_warn("[keeper] {} of {} ranks found no keeper and could start none: their snapshots end with the job.", lost,
             world.size());
  int near = 0;
  for (int rank = 0; rank < world.size(); ++rank)
    near += hosts[static_cast<size_t>(rank)] == hosts[static_cast<size_t>((rank + keeping_.to_holder) % world.size())];
  if (near > 0)
    log_info("note: {} of {} ranks keep both copies of their snapshots on one host, so its loss loses them", near,
             world.size());
}

PeerMemory::Held PeerMemory::hold(const checkpoint::KeptShape& shape, int copy) {
  Held held{.name = kept_name(shape, copy), .memory = {}, .part = {}};
  if (keeper_) held.memory = keeper_->get(held.name);
  if (held.memory)
    if (std::optional<checkpoint::KeptPart> found = checkpoint::KeptPart::open(held.memory->bytes())) {
      held.part = std::move(*found);
      return held;
    }
  held.memory = KeptMemory::make(checkpoint::KeptPart::size_bytes(shape));
  held.part = checkpoint::KeptPart::format(held.memory->bytes(), shape);
  if (keeper_ && !keeper_->put(held.name, *held.memory)) keeper_.reset();
  return held;
}

std::array<std::byte*, 2> PeerMemory::slots() const {
  return {held_[0].part.slots(), held_.size() > 1 ? held_[1].part.slots() : nullptr};
}

void PeerMemory::begin(int64_t step) {
  for (Held& each : held_) {
    each.part.forget_after(name_.may_continue(each.part.start(), step) ? step : 0);
    each.part.set_start(name_.start);
  }
  world_.barrier();  // no snapshot arrives before its place is free
}

void PeerMemory::mark(int64_t step, const checkpoint::KeptMark& mark) {
  fail_point("keep.mark");
  for (Held& each : held_) each.part.mark(step, mark);
  fail_point("keep.marked");
  watch_keeper();
  if (++marked_ == kSafelyMarked) drop_older();
}

void PeerMemory::watch_keeper() {
  if (!keeper_ || keeper_->lives()) return;
  keeper_ = Keeper::start(name_.keeper);
  bool holds = keeper_ != nullptr;
  for (const Held& each : held_) holds = holds && keeper_->put(each.name, *each.memory);
  std::fprintf(stderr, "warning: [keeper] rank %d lost the keeper of its host: %s.\n", world_.rank(),
               holds ? "another one holds its snapshots now" : "its snapshots end with the job");
  if (!holds) keeper_.reset();
}

void PeerMemory::drop_older() {
  if (!keeper_ || world_.rank_on_host() != 0) return;
  for (const std::string& name : keeper_->list())
    if (std::find(names_here_.begin(), names_here_.end(), name) == names_here_.end()) keeper_->drop(name);
}

void PeerMemory::end() {
  world_.barrier();
  if (keeper_ && world_.rank_on_host() == 0) keeper_->end();
}

}  // namespace slipstream::runtime
