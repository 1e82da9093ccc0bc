// SPDX-License-Identifier: Apache-2.0
// Synchronizations of device code, as they stand in its text or with one of them changed.

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "tests/emulation/async_machine.h"

namespace slipstream::emulation {
namespace {

/// The selected mutation, and the record of synchronizations.
struct Mutations {
  Change change = Change::none;
  std::string kernel, operation, place;
  std::ofstream record;
  std::set<std::string> recorded;
  std::tuple<const char*, unsigned, std::string_view, int64_t, bool> newest;  // that was asked for a record

  Mutations() {
    if (const char* file = std::getenv("SLIPSTREAM_SYNCHRONIZATIONS")) record.open(file, std::ios::app);
    const char* text = std::getenv("SLIPSTREAM_MUTATION");
    if (!text) return;
    constexpr std::array<std::string_view, 5> kNames = {"none", "removed", "weakened", "early", "late"};
    std::string name;
    std::istringstream(text) >> name >> kernel >> operation >> place;
    const auto* found = std::find(kNames.begin(), kNames.end(), name);
    if (found == kNames.end() || place.empty())
      throw Error(source::kEmulator,
                  fmt::format("SLIPSTREAM_MUTATION = '{}' is not CHANGE KERNEL OPERATION FILE:LINE with a change of "
                              "removed, weakened, early or late.",
                              text));
    change = static_cast<Change>(found - kNames.begin());
  }
};
Mutations& mutations() {
  static auto* all = new Mutations;
  return *all;
}

}  // namespace

Change change_of(const char* operation, const std::source_location& at) {
  Mutations& all = mutations();
  const bool behind = m.fibers[m.current].last.kind != Access::Kind::none;
  // Most threads come to the same synchronization as the thread before them.
  const decltype(all.newest) asked{at.file_name(), at.line(), operation, m.launches, behind};
  if (all.record.is_open() && std::exchange(all.newest, asked) != asked) {
    const auto record = [&](const std::string& line) {
      if (all.recorded.insert(line).second) all.record << line << std::endl;
    };
    record(fmt::format("{} {} {}", m.kernel, operation, file_of(at)));
    if (behind) record(fmt::format("{} {} {} behind", m.kernel, operation, file_of(at)));
  }
  const bool selected = all.change != Change::none && all.operation == operation && all.kernel == m.kernel;
  return selected && all.place == file_of(at) ? all.change : Change::none;
}

void run_late() {
  Fiber& fiber = m.fibers[m.current];
  if (fiber.late) std::exchange(fiber.late, nullptr)();
}
void move_down(std::function<void()> synchronization, bool of_warp) {
  Fiber& fiber = m.fibers[m.current];
  run_late();
  fiber.late = std::move(synchronization);
  fiber.late_is_of_warp = of_warp;
  fiber.accesses_before = 2;
}
void pass_early(const std::function<void()>& pass) {
  const Fiber& fiber = m.fibers[m.current];
  const Access last = fiber.last;
  m.clocked ? pass_before_wait(last.kind, pass) : pass();
  repeat(fiber, last);
}
static void run_late_of_warp() {
  if (m.fibers[m.current].late_is_of_warp) run_late();
}

void block_barrier(const std::source_location& at) {
  run_late();
  const Change change = change_of("__syncthreads", at);
  if (change == Change::removed) return;
  if (change == Change::weakened) return pass_warp_barrier(0xffffffffu, at);
  if (change == Change::late) return move_down([at] { pass_block_barrier(at); });
  if (change == Change::early) return pass_early([&] { pass_block_barrier(at); });
  pass_block_barrier(at);
}

void warp_barrier(unsigned mask, const std::source_location& at) {
  run_late_of_warp();
  const Change change = change_of("__syncwarp", at);
  if (change == Change::removed || change == Change::weakened) return;
  if (change == Change::late) return move_down([at] { pass_warp_barrier(0xffffffffu, at); }, true);
  if (change == Change::early) return pass_early([&] { pass_warp_barrier(mask, at); });
  pass_warp_barrier(mask, at);
}

const Lane* warp_exchange(const char* operation, unsigned mask, const void* value, size_t size_bytes,
                          const std::source_location& at) {
  run_late_of_warp();
  return meet_warp(operation, mask, value, size_bytes, false, at);
}

void copy_commit(const std::source_location& at) {
  if (change_of("commit_group", at) == Change::none) ++m.fibers[m.current].committed;
}

void copy_wait(size_t pending, const std::source_location& at) {
  Fiber& fiber = m.fibers[m.current];
  const Change change = change_of("wait_group", at);
  if (change == Change::removed) return;
  if (change == Change::late) {
    fiber.late_wait = true;
    fiber.late_pending = pending;
    return;
  }
  wait_now(fiber, pending + (change == Change::weakened ? 1 : 0));
}

}  // namespace slipstream::emulation
