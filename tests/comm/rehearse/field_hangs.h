// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reported hangs of other systems as programs of their ranks, each with the order that its repair gives; and the
// definition of a hang: calls in order, a rendezvous that ends when all members have arrived.
//
// Expert parallelism does not exist here: its communicators are channels over all ranks of a mesh.

#include <array>
#include <map>
#include <string>
#include <vector>

#include "comm/verdict.h"
#include "engine/plan/plan.h"

namespace slipstream::comm::field {

/// A call of a rank. It begins when the rank's earlier calls on its stream and on its channel have ended.
struct Call {
  std::string name, channel;
  Op op = Op::all_reduce;
  int peer = 0;
  int64_t elems = 16;
  std::string stream = "one";
};
using Program = std::vector<Call>;

struct Report {
  const char* source;
  const char* mechanism;
  std::vector<Program> hangs, works;  // by rank: as reported, and as repaired
  std::vector<const char*> words;     // that the refusal before step 0 contains
  Verdict::Kind kind;                 // of the watchdog's verdict, where the program runs anyway
  std::vector<int> ranks;             // that the verdict names
};

inline bool is_pair(Op op) { return op == Op::send || op == Op::recv; }
inline bool is_pipe(const std::string& channel) { return channel.starts_with("pipe_"); }

/// The wire of a channel: both channels of a one-way wire have the same.
inline std::string wire(const std::string& channel) { return is_pipe(channel) ? channel.substr(0, 8) : channel; }

/// Identifies the calls that meet: wire, sender, receiver, and how many such calls the rank issued before. Collectives
/// have -1 as sender and receiver.
struct Rendezvous {
  std::string wire;
  int from = -1, to = -1, number = 0;
  auto operator<=>(const Rendezvous&) const = default;
};

/// The rendezvous of every call of every rank.
inline std::vector<std::vector<Rendezvous>> rendezvous_of(const std::vector<Program>& programs) {
  const auto n = static_cast<int>(programs.size());
  std::vector<std::vector<Rendezvous>> all_rendezvous;
  for (int rank = 0; rank < n; ++rank) {
    std::map<Rendezvous, int> count;
    all_rendezvous.emplace_back();
    for (const Call& call : programs[static_cast<size_t>(rank)]) {
      Rendezvous rendezvous{.wire = wire(call.channel)};
      const int other = ((rank + call.peer) % n + n) % n;
      if (is_pair(call.op)) {
        rendezvous.from = call.op == Op::send ? rank : other;
        rendezvous.to = call.op == Op::send ? other : rank;
      }
      rendezvous.number = count[rendezvous]++;
      all_rendezvous.back().push_back(rendezvous);
    }
  }
  return all_rendezvous;
}

/// What the members of a rendezvous must have in common. `name` of a transfer is the part after its verb.
inline std::string content(const Call& call) {
  if (is_pair(call.op)) return call.name.substr(5) + " " + std::to_string(call.elems);
  return call.name + " " + name_of(call.op) + " " + std::to_string(call.elems) + " " + std::to_string(call.peer);
}

/// How far the ranks get.
struct Reached {
  bool ends = false;
  int arrived = 0;  // calls that have begun, of all ranks
};

/// Plays the programs by the definition: as long as any call may begin or any rendezvous may end, it does.
inline Reached play(const std::vector<Program>& programs) {
  const std::vector<std::vector<Rendezvous>> all_rendezvous = rendezvous_of(programs);
  enum class State { waits, arrived, ended };
  std::vector<std::vector<State>> states;
  for (const Program& program : programs) states.emplace_back(program.size(), State::waits);
  Reached reached;
  for (bool moved = true; moved;) {
    moved = false;
    std::map<Rendezvous, std::vector<std::array<size_t, 2>>> present;  // rank and call
    for (size_t r = 0; r < programs.size(); ++r)
      for (size_t i = 0; i < programs[r].size(); ++i) {
        bool begins = states[r][i] == State::waits;
        for (size_t j = 0; j < i; ++j)
          if (programs[r][j].stream == programs[r][i].stream || programs[r][j].channel == programs[r][i].channel)
            begins &= states[r][j] == State::ended;
        if (begins) states[r][i] = State::arrived, ++reached.arrived, moved = true;
        if (states[r][i] == State::arrived) present[all_rendezvous[r][i]].push_back({r, i});
      }
    for (const auto& [rendezvous, members] : present) {
      const size_t all = rendezvous.from >= 0 ? 2 : programs.size();
      bool same = members.size() == all;
      for (const auto& [r, i] : members)
        same &= content(programs[r][i]) == content(programs[members[0][0]][members[0][1]]);
      if (!same) continue;
      for (const auto& [r, i] : members) states[r][i] = State::ended;
      moved = true;
    }
  }
  reached.ends = true;
  for (const auto& of_rank : states)
    for (const State state : of_rank) reached.ends &= state == State::ended;
  return reached;
}

std::vector<Report> reports();

}  // namespace slipstream::comm::field
