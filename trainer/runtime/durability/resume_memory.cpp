// SPDX-License-Identifier: Apache-2.0
// Lists, verifies and gathers parts of snapshots in memory.

#include "trainer/runtime/durability/resume_memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <sstream>

#include "engine/base/check.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/base/plural.h"
#include "engine/base/units.h"

namespace slipstream::runtime {
namespace {

constexpr int64_t kPieceBytes = 16 * kMiB;  // the size in which parts travel to other hosts

bool overlap(const checkpoint::Box& a, const checkpoint::Box& b) {
  return a.tensor == b.tensor && a.array == b.array && a.row < b.row + b.rows && b.row < a.row + a.rows &&
         a.column < b.column + b.columns && b.column < a.column + a.columns;
}

}  // namespace

/// The parts of all hosts, and the choice of a step.
class MemorySearch {
 public:
  MemorySearch(World& world, const RunName& name) : world_(world), name_(name) {
    if (const std::unique_ptr<Keeper> keeper = Keeper::find(name.keeper))
      for (const std::string& entry : keeper->list())
        if (std::unique_ptr<KeptMemory> memory = keeper->get(entry))
          if (std::optional<checkpoint::KeptPart> part = checkpoint::KeptPart::open(memory->bytes()))
            here_.push_back({std::move(memory), std::move(*part), entry, {}});
    for (Here& each : here_) {
      const std::string text = each.part.manifest_text();
      each.group = data::xxh3_128_hex(text.data(), std::ssize(text));
    }
    exchange();
  }

  std::optional<ResumePoint> choose() {
    std::string why_not;
    for (const auto& [step, group] : newest_first()) {
      const std::string problem = problem_of(step, group);
      if (problem.empty()) return take(step, group, why_not);
      if (why_not.empty()) why_not = fmt::format("step {} in memory is not complete: {}", step, problem);
    }
    if (!why_not.empty()) log_info("note: {}", why_not);
    return {};
  }

 private:
  struct Here {
    std::unique_ptr<KeptMemory> memory;
    checkpoint::KeptPart part;
    std::string name, group;
  };
  /// The parts with the same manifest.
  struct Group {
    int ranks = 0;
    // By step, rank of the part and host: the name of the copy there.
    std::map<int64_t, std::map<int, std::map<int, std::string>>> whole;
    std::set<int64_t> damaged, marked;
  };

  /// The ranks of a host share the reading.
  void exchange() {
    std::string mine;
    for (size_t i = 0; i < here_.size(); ++i) {
      const checkpoint::KeptPart& part = here_[i].part;
      const bool verifies = static_cast<int>(i % static_cast<size_t>(world_.ranks_on_host())) == world_.rank_on_host();
      for (int slot = 0; slot < part.shape().slots && verifies; ++slot) {
        const std::optional<int64_t> step = part.step_of(slot);
        if (!step || !name_.may_continue(part.start(), *step)) continue;
        mine +=
            fmt::format("{} {} {} {} {} {} {}\n", here_[i].group, here_[i].name, part.shape().ranks, part.shape().rank,
                        *step, part.verifies(slot) ? "whole" : "damaged", part.mark_of(*step) ? "marked" : "unmarked");
      }
    }
    const std::vector<std::string> all = world_.all_gather(fmt::format("{}\n{}", world_.host(), mine));
    for (const std::string& theirs : all) {
      std::istringstream lines(theirs);
      int host = 0, ranks = 0, rank = 0;
      lines >> host;
      std::string group, name, state, mark;
      for (int64_t step = 0; lines >> group >> name >> ranks >> rank >> step >> state >> mark;) {
        Group& to = groups_[group];
        to.ranks = ranks;
        if (state == "whole")
          to.whole[step][rank].emplace(host, name);
        else
          to.damaged.insert(step);
        if (mark == "marked") to.marked.insert(step);
      }
    }
  }

  std::vector<std::pair<int64_t, std::string>> newest_first() const {
    std::set<std::pair<int64_t, std::string>> found;
    for (const auto& [name, group] : groups_) {
      for (const auto& [step, _] : group.whole) found.insert({step, name});
      for (const int64_t step : group.damaged) found.insert({step, name});
    }
    return {found.rbegin(), found.rend()};
  }

  std::string problem_of(int64_t step, const std::string& name) const {
    const Group& group = groups_.at(name);
    const auto whole = group.whole.find(step);
    std::string missing;
    for (int rank = 0; rank < group.ranks; ++rank)
      if (whole == group.whole.end() || !whole->second.contains(rank))
        missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
    if (!missing.empty())
      return fmt::format("the hosts of this launch have no {}part of rank {}",
                         group.damaged.contains(step) ? "undamaged " : "", missing);
    return group.marked.contains(step) ? "" : "the results of that step had not been read";
  }

  ResumePoint take(int64_t step, const std::string& name, const std::string& why_not) {
    const Group& group = groups_.at(name);
    auto state = std::make_shared<MemoryState>();
    state->parts_.resize(static_cast<size_t>(group.ranks));
    std::string texts;  // for each part that this host provides: "RANK BYTES LINES" and that many lines of boxes
    std::string head;   // the manifest and the marks
    std::set<int> hosts;
    for (const auto& [rank, copies] : group.whole.at(step)) {
      state->parts_[static_cast<size_t>(rank)].provider = copies.begin()->first;  // the lowest rank of a host
      for (const auto& [host, _] : copies) hosts.insert(host);
    }
    std::vector<char> kept(here_.size(), 0);
    for (size_t i = 0; i < here_.size(); ++i) {
      const checkpoint::KeptPart& part = here_[i].part;
      if (here_[i].group != name) continue;
      MemoryState::Part& to = state->parts_[static_cast<size_t>(part.shape().rank)];
      const auto& copies = group.whole.at(step).at(part.shape().rank);
      const auto copy = copies.find(world_.host());
      for (int slot = 0; slot < part.shape().slots && copy != copies.end() && copy->second == here_[i].name; ++slot)
        if (part.step_of(slot) == step) {
          to.here = part.arrays(slot);
          kept[i] = 1;
        }
      if (const std::optional<checkpoint::KeptMark> mark = part.mark_of(step); mark && head.empty())
        head = part.manifest_text() + bytes_of(*mark);
      if (to.provider == world_.rank() && to.here != nullptr && to.boxes.empty()) {
        to.boxes = part.boxes();
        to.arrays_bytes = part.shape().arrays_bytes;
        texts += fmt::format("{} {} {}\n", part.shape().rank, to.arrays_bytes, to.boxes.size());
        for (const auto& [box, offset] : to.boxes) texts += fmt::format("{} {}\n", offset, name_of(box));
      }
    }
    for (size_t i = 0; i < here_.size(); ++i)
      if (kept[i]) state->memories_.push_back(std::move(here_[i].memory));
    read_boxes(world_.all_gather(texts), *state);
    std::vector<std::string> heads = world_.all_gather(head);
    const auto first = std::find_if(heads.begin(), heads.end(), [](const std::string& each) { return !each.empty(); });
    SLIP_ASSERT(first != heads.end());  // problem_of() has found the mark
    const size_t line = first->find('\n') + 1;
    const std::string path = fmt::format("memory of {}", counted(std::ssize(hosts), "host"));
    ResumePoint point{.path = path, .manifest = checkpoint::parse_manifest(first->substr(0, line), path)};
    point.manifest.step = step;
    const checkpoint::KeptMark mark = mark_of(first->substr(line));
    point.manifest.numerics = mark.history;
    point.results = mark.results;
    point.memory = std::move(state);
    if (!why_not.empty()) log_info("note: {}", why_not);
    return point;
  }

  static std::string bytes_of(const checkpoint::KeptMark& mark) {
    std::vector<double> values(mark.results.begin(), mark.results.end());
    values.push_back(static_cast<double>(mark.history.skips));
    values.insert(values.end(), mark.history.losses.begin(), mark.history.losses.end());
    values.insert(values.end(), mark.history.norms.begin(), mark.history.norms.end());
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
  }

  static checkpoint::KeptMark mark_of(std::string_view bytes) {
    std::vector<double> values(bytes.size() / sizeof(double));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(double));
    checkpoint::KeptMark mark;
    const auto skips = std::copy_n(values.begin(), mark.results.size(), mark.results.begin()) - mark.results.begin();
    const auto losses = values.begin() + skips + 1, norms = losses + (values.end() - losses) / 2;
    mark.history = {.skips = static_cast<int64_t>(values[static_cast<size_t>(skips)]),
                    .losses = {losses, norms},
                    .norms = {norms, values.end()}};
    return mark;
  }

  static void read_boxes(const std::vector<std::string>& texts, MemoryState& state) {
    for (const std::string& text : texts) {
      std::istringstream lines(text);
      std::string line;
      while (std::getline(lines, line)) {
        size_t rank = 0, count = 0;
        int64_t arrays_bytes = 0;
        std::istringstream(line) >> rank >> arrays_bytes >> count;
        MemoryState::Part& part = state.parts_.at(rank);
        part.arrays_bytes = arrays_bytes;
        part.boxes.clear();
        for (size_t i = 0; i < count && std::getline(lines, line); ++i) {
          const std::optional<checkpoint::Box> box = checkpoint::box_of(line.substr(line.find(' ') + 1));
          SLIP_ASSERT(box);  // the part's text has a hash
          part.boxes.emplace_back(*box, std::stoll(line));
        }
      }
    }
  }

  World& world_;
  const RunName& name_;
  std::vector<Here> here_;
  std::map<std::string, Group> groups_;
};

checkpoint::StateReader MemoryState::reader(World& world, const std::vector<checkpoint::Box>& wanted,
                                            const checkpoint::Manifest& manifest, const std::string& name) {
  std::map<std::pair<std::string, std::string>, std::vector<const checkpoint::Box*>> by_array;
  for (const checkpoint::Box& box : wanted) by_array[{box.tensor, box.array}].push_back(&box);
  const auto needs = [&](const Part& part) {
    return std::any_of(part.boxes.begin(), part.boxes.end(), [&](const auto& held) {
      const auto found = by_array.find({held.first.tensor, held.first.array});
      return found != by_array.end() && std::any_of(found->second.begin(), found->second.end(),
                                                    [&](const auto* box) { return overlap(*box, held.first); });
    });
  };
  std::string mine;
  std::vector<char> lacks(parts_.size(), 0), travels(parts_.size(), 0);
  for (size_t p = 0; p < parts_.size(); ++p)
    if (parts_[p].here == nullptr && needs(parts_[p])) {
      lacks[p] = 1;
      mine += fmt::format("{} ", p);
    }
  for (const std::string& theirs : world.all_gather(mine, "the parts of a snapshot")) {
    std::istringstream numbers(theirs);
    for (size_t p = 0; numbers >> p;) travels.at(p) = 1;
  }
  for (size_t p = 0; p < parts_.size(); ++p) {
    if (!travels[p]) continue;
    Part& part = parts_[p];
    std::vector<std::byte> bytes(lacks[p] ? static_cast<size_t>(part.arrays_bytes) : 0);
    for (int64_t at = 0; at < part.arrays_bytes; at += kPieceBytes) {
      const auto size = static_cast<size_t>(std::min(kPieceBytes, part.arrays_bytes - at));
      std::string piece;
      if (part.provider == world.rank()) piece.assign(reinterpret_cast<const char*>(part.here) + at, size);
      const std::vector<std::string> sent = world.all_gather(piece, "the parts of a snapshot");
      if (lacks[p]) std::memcpy(bytes.data() + at, sent[static_cast<size_t>(part.provider)].data(), size);
    }
    if (!lacks[p]) continue;
    received_.push_back(std::move(bytes));
    part.here = received_.back().data();
  }
  std::vector<checkpoint::BoxesInMemory> in_memory;
  for (const Part& part : parts_) in_memory.push_back({.boxes = part.boxes, .base = part.here});
  return {name, manifest.tensors, in_memory};
}

std::optional<ResumePoint> find_in_memory(World& world, const RunName& name) {
  return MemorySearch(world, name).choose();
}

std::optional<ResumePoint> find_newest_state(World& world, const std::string& dir, const RunName& name,
                                             ResumeSearch search) {
  search.otherwise = find_in_memory(world, name);
  return find_resume_point(world, dir, std::move(search));
}

}  // namespace slipstream::runtime
