// SPDX-License-Identifier: Apache-2.0
// Compares the works of each group by their numbers, then follows the waits to a rank that waits for no other.

#include "comm/verdict.h"

#include <algorithm>
#include <map>
#include <optional>

#include "engine/base/check.h"
#include "engine/base/plural.h"
#include "engine/base/units.h"
#include "engine/plan/transfer_name.h"

namespace slipstream::comm {
namespace {

std::string seconds_text(double seconds) { return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 1 : 0); }

/// "rank 2 on host n1 (process 77)".
std::string name_of(const FlightRecord& record) {
  return fmt::format("rank {} on host {} (process {})", record.rank, record.host, record.process);
}

/// "reduce.3 (all_reduce of 1.2 MiB, bucket 3) on channel reduce in step 57".
std::string describe(const FlightWork& work, const FlightChannel& channel) {
  if (channel.group == kHosts) return fmt::format("the exchange of {}", work.name);
  return fmt::format("{} ({} of {}{}) on channel {}{}", work.name, work.op, format_bytes(work.bytes),
                     work.bucket >= 0 ? fmt::format(", bucket {}", work.bucket) : "", channel.name,
                     work.step > 0 ? fmt::format(" in step {}", work.step) : "");
}

std::string phase_text(const FlightRecord& record) {
  return record.phase == RunPhase::step ? fmt::format("step {}", record.step)
                                        : fmt::format("phase {}", slipstream::comm::name_of(record.phase));
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  constexpr size_t kMost = 8;
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += fmt::format("{} {}", i > 0 ? "," : "", ranks[i]);
  if (ranks.size() > kMost) text += fmt::format(" and {} more", ranks.size() - kMost);
  return text;
}

/// The place of one rank on a channel.
struct Member {
  const FlightRecord* record = nullptr;
  const FlightChannel* channel = nullptr;
  /// Works that it has begun.
  int64_t begun() const { return channel->ended + (channel->begun ? 1 : 0); }
};

/// The work in which a rank has waited longest; a null channel means that it waits in none.
Member longest_wait(const FlightRecord& record) {
  Member longest;
  for (const FlightChannel& channel : record.channels)
    if (channel.begun && (!longest.channel || channel.next->seconds_ago > longest.channel->next->seconds_ago))
      longest = {&record, &channel};
  return longest;
}

/// "Rank 0 has waited 10 s in reduce.3 (...) on channel reduce", for the rank with the longest wait; empty if none
/// waits.
std::string wait_text(const std::vector<FlightRecord>& records) {
  Member longest;
  for (const FlightRecord& record : records)
    if (const Member wait = longest_wait(record);
        wait.channel && (!longest.channel || wait.channel->next->seconds_ago > longest.channel->next->seconds_ago))
      longest = wait;
  if (!longest.channel) return {};
  const FlightWork& work = *longest.channel->next;
  return fmt::format("Rank {} has waited{} in {}", longest.record->rank,
                     work.seconds_ago >= 0 ? " " + seconds_text(work.seconds_ago) : "",
                     describe(work, *longest.channel));
}

/// "; the limit is 10 s (comm.timeout_seconds)", for a rank that asked for the verdict.
std::string limit_text(const std::vector<FlightRecord>& records) {
  for (const FlightRecord& record : records)
    if (!record.alarm.empty() && record.limit_seconds > 0)
      return fmt::format("; the limit is {:g} s ({})", record.limit_seconds, record.limit_key);
  return {};
}

std::string key_of(const std::vector<FlightRecord>& records) {
  for (const FlightRecord& record : records)
    if (!record.alarm.empty() && !record.limit_key.empty()) return record.limit_key;
  return "comm.timeout_seconds";
}

/// All members of one group, and the lowest work in which one of them waits.
struct Group {
  std::vector<Member> members;
  Member waits;  // null channel: none
  /// Members that wait in work number waits.begun(), by rank.
  std::vector<Member> together() const {
    std::vector<Member> together;
    for (const Member& member : members)
      if (member.channel->begun && member.begun() == waits.begun()) together.push_back(member);
    std::sort(together.begin(), together.end(),
              [](const Member& a, const Member& b) { return a.record->rank < b.record->rank; });
    return together;
  }
  /// Members that have not begun it.
  std::vector<const Member*> behind() const {
    std::vector<const Member*> behind;
    for (const Member& member : members)
      if (member.begun() < waits.begun()) behind.push_back(&member);
    return behind;
  }
};

std::map<std::string, Group> groups_of(const std::vector<FlightRecord>& records) {
  std::map<std::string, Group> groups;
  for (const FlightRecord& record : records)
    for (const FlightChannel& channel : record.channels) groups[channel.group].members.push_back({&record, &channel});
  for (auto& [name, group] : groups)
    for (const Member& member : group.members)
      if (member.channel->begun && (!group.waits.channel || member.begun() < group.waits.begun() ||
                                    (member.begun() == group.waits.begun() &&
                                     member.channel->next->seconds_ago > group.waits.channel->next->seconds_ago)))
        group.waits = member;
  return groups;
}

/// Both ends of a transfer between two ranks have other verbs.
bool same_work(const FlightWork& a, const FlightWork& b) {
  const auto one_way = [](const FlightWork& work) { return work.op == "send" || work.op == "recv"; };
  if (one_way(a) && one_way(b)) return a.op != b.op && a.bytes == b.bytes && same_transfer(a.name, b.name);
  return a.name == b.name && a.op == b.op && a.bytes == b.bytes;
}

Verdict silent(const std::vector<FlightRecord>& records, const std::vector<int>& missing) {
  std::map<int, const FlightRecord*> last;
  for (const FlightRecord& record : records)
    for (const FlightRecord& heard : record.last_heard) last.emplace(heard.rank, &heard);
  Verdict verdict{.kind = Verdict::Kind::silent, .ranks = missing, .sentence = {}};
  std::vector<int> ended;
  for (const int rank : missing)
    if (last.contains(rank) && last[rank]->connection_ended) ended.push_back(rank);
  if (!ended.empty()) verdict = {.kind = Verdict::Kind::ended, .ranks = ended, .sentence = {}};
  const FlightRecord* first = last.contains(verdict.ranks[0]) ? last[verdict.ranks[0]] : nullptr;
  std::string who = first ? name_of(*first) : fmt::format("rank {}", verdict.ranks[0]);
  if (verdict.ranks.size() > 1) who = fmt::format("{}: {}", list_of(verdict.ranks), who);
  verdict.sentence =
      fmt::format("[watchdog] {} {}", who, ended.empty() ? "does not answer" : "has ended without notice");
  if (first)
    verdict.sentence +=
        fmt::format("; its last message came {} ago, from {}", seconds_text(first->silent_seconds), phase_text(*first));
  verdict.sentence += ". ";
  if (const std::string wait = wait_text(records); !wait.empty()) verdict.sentence += wait + limit_text(records) + ". ";
  verdict.sentence += ended.empty() ? fmt::format(
                                          "Look for a process of {} that is stopped, swaps or has lost its "
                                          "network; if it was only late, raise {}.",
                                          list_of(verdict.ranks), key_of(records))
                                    : "Look for its error, or for the signal that ended it.";
  return verdict;
}

Verdict mismatched(const Member& a, const Member& b, const std::string& limit) {
  return {.kind = Verdict::Kind::mismatched,
          .ranks = {std::min(a.record->rank, b.record->rank), std::max(a.record->rank, b.record->rank)},
          .sentence = fmt::format(
              "[watchdog] work {} of channel {} is {} on rank {}, but {} on rank {}{}. Ranks of a group must run the "
              "same works in the same order; report it with the run file.",
              a.begun(), a.channel->name, describe(*a.channel->next, *a.channel), a.record->rank,
              describe(*b.channel->next, *b.channel), b.record->rank, limit)};
}

Verdict behind(const Group& group, const Member& late, const std::vector<FlightRecord>& records) {
  const FlightWork& work = *group.waits.channel->next;
  // A late send is described by the recv in which another rank waits.
  const Member& named = late.channel->next && late.begun() + 1 == group.waits.begun() ? late : group.waits;
  return {.kind = Verdict::Kind::behind,
          .ranks = {late.record->rank},
          .sentence = fmt::format(
              "[watchdog] {} has not begun {}, in which rank {} has waited{}{}. It has ended {} of this channel and is "
              "in {}{}. Look at its host; if it was only slow, raise {}.",
              name_of(*late.record), describe(*named.channel->next, *named.channel), group.waits.record->rank,
              work.seconds_ago >= 0 ? " " + seconds_text(work.seconds_ago) : "", limit_text(records),
              counted(late.channel->ended, "work"), phase_text(*late.record),
              late.channel->held_by.empty() ? "" : ", at " + late.channel->held_by, key_of(records))};
}

Verdict slow(const Group& group, const std::vector<FlightRecord>& records) {
  Verdict verdict{.kind = Verdict::Kind::slow, .ranks = {}, .sentence = {}};
  double since = -1;
  for (const Member& member : group.members) {
    verdict.ranks.push_back(member.record->rank);
    if (member.channel->begun && (since < 0 || member.channel->next->seconds_ago < since))
      since = member.channel->next->seconds_ago;
  }
  verdict.sentence = fmt::format(
      "[watchdog] {} {} in {}{}, and it has not ended{}. The link or a device may be slow or down; look at the network "
      "between them, or raise {}.",
      list_of(verdict.ranks), verdict.ranks.size() == 1 ? "is" : "are",
      describe(*group.waits.channel->next, *group.waits.channel),
      since >= 0 ? fmt::format(", the last one since {}", seconds_text(since)) : "", limit_text(records),
      key_of(records));
  return verdict;
}

/// All members have begun a work and some have ended it, so the others have not noticed its end.
std::optional<Verdict> not_left(const Group& group, const std::vector<FlightRecord>& records) {
  const auto ahead = std::find_if(group.members.begin(), group.members.end(),
                                  [&](const Member& member) { return member.begun() > group.waits.begun(); });
  if (ahead == group.members.end()) return {};
  const FlightRecord& late = *group.waits.record;
  return Verdict{.kind = Verdict::Kind::behind,
                 .ranks = {late.rank},
                 .sentence = fmt::format(
                     "[watchdog] {} has not left {}, which rank {} has ended{}. Look for a process of rank {} that was "
                     "stopped, swaps or has lost its network; if it was only late, raise {}.",
                     name_of(late), describe(*group.waits.channel->next, *group.waits.channel), ahead->record->rank,
                     limit_text(records), late.rank, key_of(records))};
}

/// A rank that is late in one group because it waits in another.
struct Link {
  const Group* late_in = nullptr;
  const Member* late = nullptr;
};

Verdict circular(const std::vector<Link>& links, const std::string& limit) {
  Verdict verdict{.kind = Verdict::Kind::circular, .ranks = {}, .sentence = "[watchdog] ranks wait for each other: "};
  for (size_t i = 0; i < links.size(); ++i) {
    const Link& next = links[(i + 1) % links.size()];
    verdict.ranks.push_back(links[i].late->record->rank);
    verdict.sentence += fmt::format("{}rank {} waits for rank {} in {}", i > 0 ? ", " : "", links[i].late->record->rank,
                                    next.late->record->rank,
                                    describe(*next.late_in->waits.channel->next, *next.late_in->waits.channel));
  }
  verdict.sentence += fmt::format(
      "{}. Their plans order these works differently; report it with the run file and the pipeline schedule.", limit);
  std::sort(verdict.ranks.begin(), verdict.ranks.end());
  return verdict;
}

/// Follows the waits from the late members of `start` to a rank that waits for no other, or around a circle.
Verdict follow(const std::map<std::string, Group>& groups, const Group& start,
               const std::vector<FlightRecord>& records) {
  std::vector<Link> links;
  for (const Group* group = &start;;) {
    const std::vector<const Member*> behind_here = group->behind();
    if (behind_here.empty()) {
      const std::optional<Verdict> stayed = not_left(*group, records);
      return stayed ? *stayed : slow(*group, records);
    }
    const auto first = std::find_if(behind_here.begin(), behind_here.end(),
                                    [](const Member* m) { return m->channel->held_group.empty(); });
    const Member* late = first == behind_here.end() ? behind_here[0] : *first;
    const auto next = groups.find(late->channel->held_group);
    if (first != behind_here.end() || next == groups.end() || !next->second.waits.channel)
      return behind(*group, *late, records);
    links.push_back({group, late});
    group = &next->second;
    const auto seen = std::find_if(links.begin(), links.end(), [&](const Link& link) { return link.late_in == group; });
    if (seen != links.end()) return circular({seen, links.end()}, limit_text(records));
  }
}

/// The records without late answers. Launchers continue a stopped process before they end it, and it answers then.
std::vector<FlightRecord> in_time(const std::vector<FlightRecord>& records) {
  std::vector<FlightRecord> kept;
  for (const FlightRecord& record : records)
    if (std::none_of(records.begin(), records.end(), [&](const FlightRecord& other) {
          if (record.rank == 0 && !other.alarm.empty() && other.written_ms + 1.0 * kVerdictMs < 1.0 * record.written_ms)
            return true;
          return other.written_ms < record.written_ms &&
                 std::any_of(other.last_heard.begin(), other.last_heard.end(),
                             [&](const FlightRecord& heard) { return heard.rank == record.rank; });
        }))
      kept.push_back(record);
  return kept;
}

}  // namespace

Verdict judge(const std::vector<FlightRecord>& all) {
  SLIP_ASSERT(!all.empty());
  const std::vector<FlightRecord> records = in_time(all);
  std::vector<int> missing;
  for (int rank = 0; rank < records[0].size; ++rank)
    if (std::none_of(records.begin(), records.end(), [&](const auto& record) { return record.rank == rank; }))
      missing.push_back(rank);
  // All records travel to rank 0. Without it, nothing is known of the others.
  if (!missing.empty() && missing[0] == 0) missing = {0};
  if (!missing.empty()) return silent(records, missing);
  const std::string limit = limit_text(records);
  const std::map<std::string, Group> groups = groups_of(records);
  const Group* longest = nullptr;  // the group whose lowest work has lasted longest
  for (const auto& [name, group] : groups) {
    if (!group.waits.channel) continue;
    const std::vector<Member> together = group.together();
    for (const Member& member : together)
      if (member.record != together[0].record && !same_work(*member.channel->next, *together[0].channel->next))
        return mismatched(together[0], member, limit);
    if (!longest || longest->waits.channel->next->seconds_ago < group.waits.channel->next->seconds_ago)
      longest = &group;
  }
  if (longest) return follow(groups, *longest, records);
  const auto alarm = std::find_if(records.begin(), records.end(), [](const auto& r) { return !r.alarm.empty(); });
  const FlightRecord& record = alarm == records.end() ? records[0] : *alarm;
  return {.kind = Verdict::Kind::waiting,
          .ranks = {},
          .sentence = fmt::format("[watchdog] rank {} on host {} is in {} and no rank waits for another{}. {}",
                                  record.rank, record.host, phase_text(record), limit, record.alarm)};
}

std::string flight_lines(const std::vector<FlightRecord>& records) {
  std::string lines;
  for (const FlightRecord& record : records) {
    const Member wait = longest_wait(record);
    lines += fmt::format("rank {} on host {}: {}", record.rank, record.host, phase_text(record));
    if (wait.channel)
      lines += fmt::format(", in {}{}", describe(*wait.channel->next, *wait.channel),
                           wait.channel->next->seconds_ago >= 0
                               ? fmt::format(" for {}", seconds_text(wait.channel->next->seconds_ago))
                               : "");
    lines += "\n";
  }
  return lines;
}

}  // namespace slipstream::comm
