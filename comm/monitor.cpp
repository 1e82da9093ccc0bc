// SPDX-License-Identifier: Apache-2.0
// The monitor looks twice a second. Every branch that ends the run first writes this rank's record.

#include "comm/monitor.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include <poll.h>

#include "comm/verdict.h"
#include "engine/base/check.h"
#include "engine/base/disk.h"
#include "engine/base/files.h"
#include "engine/base/parallel.h"
#include "engine/base/thread_usage.h"
#include "engine/device/clock.h"

namespace slipstream::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{500};
constexpr int kLooksPerSign = 4;
// If a look is this much too late, without the time that the process waited for a core, the process was stopped.
constexpr int64_t kLeastStopNs = 200'000'000;
// One look adds at most this to the time that a rank waited, because a stopped process does not wait for the others.
constexpr int64_t kLongestLookNs = 2'000'000'000;
// Rank 0 treats a rank that does not answer within this time as silent. An alarm then ends the run within 5 s,
// including the time until the look that raises it.
constexpr int64_t kAnswerNs = 2'500'000'000;
constexpr int64_t kVerdictNs = kVerdictMs * 1'000'000;

// The kinds of messages.
constexpr char kSign = 's';          // to rank 0: a record, every two seconds
constexpr char kAlarm = 'a';         // to rank 0: a record with an alarm
constexpr char kAsk = 'q';           // from rank 0
constexpr char kRecord = 'r';        // to rank 0: the answer
constexpr char kVerdict = 'v';       // from rank 0: leave
constexpr char kEndAnnounced = 'f';  // to rank 0: this rank has ended as planned
constexpr char kAllHere = 'e';       // from rank 0: all ranks have announced their end

std::string own_host() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "unknown";
}

int64_t monotonic_ms() { return monotonic_ns() / 1'000'000; }

/// ", at writing "PATH" to disk for 12 s".
std::string at_the_disk() {
  const std::string wait = files::longest_disk_wait();
  return wait.empty() ? "" : ", at " + wait;
}

void print(const std::string& sentence) { std::fprintf(stderr, "slipstream: %s\n", sentence.c_str()); }

}  // namespace

int64_t unix_ms() {
  return std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Monitor::Monitor(int rank, std::function<void()> leave)
    : leave_(std::move(leave)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      epoch_ms_(unix_ms() - monotonic_ms()),
      rank_(rank),
      size_(rank + 1),
      host_(own_host()) {
  thread_ = start_thread("the monitor", [this] { run(); });
}

Monitor::~Monitor() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ended_.notify_all();
  ::eventfd_write(wake_, 1);
  thread_.join();
  ::close(wake_);
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return alarms_ == 0; });
}

void Monitor::end_together() {
  std::unique_lock lock(mutex_);
  ends_together_ = true;
  ::eventfd_write(wake_, 1);
  ended_.wait(lock, [&] { return ended_together_; });
}

void Monitor::look_at_end() {
  {
    const std::lock_guard lock(mutex_);
    if (!ends_together_ || ended_together_) return;
  }
  if (!std::exchange(announced_, true) && channel_ && rank_ != 0) channel_->send(0, kEndAnnounced, "");
  // Ranks without a connection, and ranks that have lost it, are not waited for.
  const std::vector<int> reached = channel_ ? channel_->reached() : std::vector<int>{};
  if (rank_ == 0 && !all_here_ &&
      std::all_of(reached.begin(), reached.end(), [&](int rank) { return heard_[rank].announced_end; })) {
    all_here_ = true;
    if (channel_) channel_->send_all(kAllHere, "");
  }
  if (!reached.empty() && !(rank_ != 0 && all_here_)) return;
  if (channel_) channel_->end_with_process();
  const std::lock_guard lock(mutex_);
  ended_together_ = true;
  exchanges_ended_ = exchanges_begun_;
  ended_.notify_all();
}

void Monitor::name_stayed(const std::string& alarm) {
  FlightRecord own = record(alarm);
  const std::vector<int> stayed = channel_->reached();
  for (const int rank : stayed) add_last_heard(rank, own);
  write(own);
  std::string host;
  if (!own.last_heard.empty())
    host = fmt::format(" on host {} (process {})", own.last_heard[0].host, own.last_heard[0].process);
  print(
      fmt::format("[watchdog] rank {}{} has not left, although the run has ended on all ranks; the limit is {:g} s "
                  "({}). Look for a process of rank {} that is stopped.",
                  stayed.at(0), host, own.limit_seconds, own.limit_key, stayed.at(0)));
  leave();
}

bool Monitor::ends() {
  const std::lock_guard lock(mutex_);
  return ends_;
}

void Monitor::connect(int rank, int size, const std::string& token, int64_t now_ms, const std::string& addresses,
                      bool on_host_of_rank_0, std::unique_ptr<SideChannel> listening) {
  {
    const std::lock_guard lock(mutex_);
    epoch_ms_ = now_ms - monotonic_ms();
    wanted_ =
        std::make_unique<Connection>(Connection{rank, size, token, addresses, on_host_of_rank_0, std::move(listening)});
  }
  ::eventfd_write(wake_, 1);
}

void Monitor::limit(const WaitLimits& limits) {
  const std::lock_guard lock(mutex_);
  limits_ = limits;
}

void Monitor::write_to(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  folder_ = folder;
}

RunPhase Monitor::enter(RunPhase phase) {
  const std::lock_guard lock(mutex_);
  ++moves_;
  return std::exchange(phase_, phase);
}

void Monitor::begin(const std::string& exchange) {
  const std::lock_guard lock(mutex_);
  ++moves_;
  ++exchanges_begun_;
  exchange_ = exchange;
  exchange_began_ns_ = monotonic_ns();
}

void Monitor::end() {
  const std::lock_guard lock(mutex_);
  ++moves_;
  exchanges_ended_ = exchanges_begun_;
}

void Monitor::show(std::function<FlightState()> state) {
  const std::lock_guard lock(state_mutex_);
  state_ = std::move(state);
}

void Monitor::alarm(const std::string& sentence) {
  std::unique_lock lock(mutex_);
  if (alarm_.empty()) alarm_ = sentence;
  ::eventfd_write(wake_, 1);
  ++alarms_;
  ended_.wait(lock, [&] { return ends_; });
  --alarms_;
  ended_.notify_all();
}

FlightRecord Monitor::record(const std::string& alarm) {
  FlightState state;
  {
    const std::lock_guard lock(state_mutex_);
    if (state_) state = state_();
  }
  const std::lock_guard lock(mutex_);
  FlightRecord record{.run = run_, .rank = rank_, .size = size_, .host = host_, .process = ::getpid()};
  record.written_ms = epoch_ms_ + monotonic_ms();
  record.phase = phase_;
  record.step = state.step;
  const RunPhase limiting = alarm_.empty() ? phase_ : RunPhase::step;
  record.limit_seconds = limits_.of(limiting);
  record.limit_key = limit_key_of(limiting);
  record.alarm = alarm;
  const bool begun = exchanges_begun_ > exchanges_ended_;
  FlightChannel hosts{.name = std::string(kHosts), .group = std::string(kHosts)};
  hosts.ended = exchanges_ended_;
  hosts.begun = begun;
  if (begun)
    hosts.next = FlightWork{.name = exchange_,
                            .op = "exchange",
                            .seconds_ago = static_cast<double>(monotonic_ns() - exchange_began_ns_) * 1e-9};
  hosts.held_by = state.held_by;
  hosts.held_group = state.held_group;
  if (const std::string wait = files::longest_disk_wait(); !begun && hosts.held_group.empty() && !wait.empty())
    hosts.held_by = wait;
  record.channels.push_back(std::move(hosts));
  for (FlightChannel& channel : state.channels) {
    // The host has not issued the work.
    if (!channel.begun && channel.held_by.empty()) {
      channel.held_by = begun ? fmt::format("the exchange of {}", exchange_) : "the work of its host";
      channel.held_group = begun ? std::string(kHosts) : "";
    }
    record.channels.push_back(std::move(channel));
  }
  return record;
}

void Monitor::write(const FlightRecord& record) {
  std::string folder;
  {
    const std::lock_guard lock(mutex_);
    folder = folder_;
  }
  if (folder.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  try {
    files::write_file(flight_path(folder, record.rank), flight_json(record) + "\n");
  } catch (const Error& error) {
    print(error.what());
  }
}

bool Monitor::connect_now() {
  std::unique_ptr<Connection> wanted;
  {
    const std::lock_guard lock(mutex_);
    wanted = std::move(wanted_);
  }
  if (!wanted) return false;
  rank_ = wanted->rank;
  size_ = wanted->size;
  run_ = wanted->token;
  channel_ = rank_ == 0 ? std::move(wanted->listening)
                        : SideChannel::connect(rank_, wanted->addresses, wanted->on_host_of_rank_0, wanted->token);
  return true;
}

void Monitor::send_sign_of_life() {
  if (!channel_ || !channel_->reaches(0)) return;
  FlightRecord sign = record("");
  for (FlightChannel& channel : sign.channels)
    if (channel.latest.size() > 1) channel.latest.erase(channel.latest.begin(), channel.latest.end() - 1);
  channel_->send(0, kSign, flight_json(sign));
}

std::string Monitor::look(int64_t elapsed_ns) {
  const std::lock_guard lock(mutex_);
  if (!alarm_.empty()) return alarm_;
  if (moves_ != seen_moves_) {
    seen_moves_ = moves_;
    still_ns_ = 0;
    return {};
  }
  still_ns_ += std::min(elapsed_ns, kLongestLookNs);
  const bool waits = exchanges_begun_ > exchanges_ended_;
  if (!waits && phase_ != RunPhase::start && phase_ != RunPhase::save) return {};
  const double limit = limits_.of(phase_);
  if (limit <= 0 || static_cast<double>(still_ns_) * 1e-9 <= limit) return {};
  return waits ? fmt::format("[watchdog] not all ranks joined within {:g} s to exchange {}.", limit, exchange_)
               : fmt::format("[watchdog] this rank has not moved for {:g} s{}.", limit, at_the_disk());
}

void Monitor::take(const SideChannel::Message& message) {
  Heard& heard = heard_[message.rank];
  if (message.kind == SideChannel::kEnded)
    heard.ended = true;
  else if (message.kind == kEndAnnounced)
    heard.announced_end = true;
  else
    heard.record = message.body;
  if (message.kind != SideChannel::kEnded) heard.at_ns = monotonic_ns();
}

void Monitor::add_last_heard(int rank, FlightRecord& own) const {
  const Heard& heard = heard_.at(rank);
  if (heard.record.empty()) return;
  own.last_heard.push_back(flight_record(heard.record, fmt::format("the record of rank {}", rank)));
  own.last_heard.back().silent_seconds = static_cast<double>(monotonic_ns() - heard.at_ns) * 1e-9;
  own.last_heard.back().connection_ended = heard.ended;
}

void Monitor::note_the_end() {
  FlightRecord own = record("");
  for (const auto& [rank, heard] : heard_) add_last_heard(rank, own);
  write(own);
}

void Monitor::judge_all(const std::string& alarm, std::map<int, FlightRecord> answers) {
  const int64_t end_ns = monotonic_ns() + kAnswerNs;
  answers.insert_or_assign(0, record(alarm));
  if (channel_) channel_->send_all(kAsk, "");
  while (channel_ && static_cast<int>(answers.size()) < size_ && monotonic_ns() < end_ns)
    for (const SideChannel::Message& message : channel_->wait(milliseconds(50), -1)) {
      take(message);
      if (message.kind == kRecord || message.kind == kAlarm)
        answers.insert_or_assign(message.rank,
                                 flight_record(message.body, fmt::format("the record of rank {}", message.rank)));
    }
  FlightRecord& own = answers.at(0);
  for (const auto& [rank, heard] : heard_)
    if (!answers.contains(rank)) add_last_heard(rank, own);
  write(own);
  std::vector<FlightRecord> records;
  for (auto& [rank, answer] : answers) records.push_back(std::move(answer));
  print(judge(records).sentence);
  if (channel_) {
    channel_->send_all(kVerdict, "");
    channel_->wait(milliseconds(100), -1);
  }
  leave();
}

void Monitor::ask_rank_0(const std::string& alarm) {
  const FlightRecord own = record(alarm);
  write(own);
  const int64_t end_ns = monotonic_ns() + kVerdictNs;
  if (channel_) channel_->send(0, kAlarm, flight_json(own));
  while (channel_ && channel_->reaches(0) && monotonic_ns() < end_ns)
    for (const SideChannel::Message& message : channel_->wait(milliseconds(50), -1)) {
      if (message.kind == kAsk) channel_->send(0, kRecord, flight_json(own));
      if (message.kind == kVerdict) return leave();
    }
  // The launcher ends the others after the first rank has left.
  std::this_thread::sleep_for(milliseconds(std::clamp(100 * (rank_ - 1), 0, 1000)));
  print(
      run_.empty()
          ? fmt::format("{} This message is from host {}. Look for ranks that the launcher did not start, or raise {}.",
                        alarm, host_, own.limit_key)
          : judge({own}).sentence);
  leave();
}

void Monitor::leave() {
  left_ = true;
  leave_();
}

void Monitor::answer() {
  const FlightRecord own = record("");
  write(own);
  channel_->send(0, kRecord, flight_json(own));
}

void Monitor::run() {
  int64_t looked_ns = monotonic_ns();
  ThreadUsage usage;
  for (int looks = 0; !ends() && !left_;) {
    std::vector<SideChannel::Message> messages;
    if (channel_) {
      messages = channel_->wait(kLook, wake_);
    } else {
      pollfd wake{.fd = wake_, .events = POLLIN, .revents = 0};
      ::poll(&wake, 1, static_cast<int>(kLook.count()));
    }
    const int64_t over_ns =
        monotonic_ns() - looked_ns - std::chrono::nanoseconds(kLook).count() - usage.look().ready_ns;
    if (over_ns > kLeastStopNs) stopped_ns_.fetch_add(over_ns, std::memory_order_relaxed);
    eventfd_t ignored = 0;
    ::eventfd_read(wake_, &ignored);
    if (connect_now()) looks = 0;  // sends a sign of life at once
    for (const SideChannel::Message& message : messages) {
      if (rank_ == 0) {
        take(message);
        if (message.kind == SideChannel::kEnded && !heard_[message.rank].announced_end) note_the_end();
        if (message.kind == kAlarm)
          judge_all("",
                    {{message.rank, flight_record(message.body, fmt::format("the record of rank {}", message.rank))}});
      } else if (message.kind == kAsk) {
        answer();
      } else if (message.kind == kVerdict) {
        leave();
      } else if (message.kind == kAllHere) {
        all_here_ = true;
      }
    }
    if (left_) return;
    look_at_end();
    const int64_t now_ns = monotonic_ns();
    const std::string alarm = look(now_ns - std::exchange(looked_ns, now_ns));
    if (!alarm.empty() && rank_ == 0 && all_here_)
      name_stayed(alarm);
    else if (!alarm.empty())
      rank_ == 0 && !run_.empty() ? judge_all(alarm, {}) : ask_rank_0(alarm);
    if (looks++ % kLooksPerSign == 0) send_sign_of_life();
  }
  if (channel_ && !announced_) channel_->send(0, kEndAnnounced, "");
}

}  // namespace slipstream::comm
