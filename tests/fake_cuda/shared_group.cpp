// SPDX-License-Identifier: Apache-2.0
// One rendezvous at a time: all bring, all take, the last one to take opens the next. Messages wait in a ring per pair
// of ranks.

#include "tests/fake_cuda/shared_group.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace slipstream::fake_nccl {
namespace {

constexpr size_t kRanksMax = 8, kAreaBytes = size_t{8} << 20, kMailBytes = size_t{4} << 20, kWordsBytes = 128;

}  // namespace

void end_because(const std::string& sentence) {
  std::fprintf(stderr, "[fake nccl] %s\n", sentence.c_str());
  std::_Exit(kOrdersDiffer);
}

struct SharedGroup::DeviceAssignment {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int arrived = 0, left = 0;
  bool taking = false;
  size_t sent[kRanksMax][kRanksMax] = {}, received[kRanksMax][kRanksMax] = {};  // bytes so far, [from][to]
  char words[kRanksMax][kWordsBytes] = {};
  alignas(64) std::byte areas[kRanksMax][kAreaBytes];
  alignas(64) std::byte mail[kRanksMax][kRanksMax][kMailBytes];  // unused pages take no memory
};

std::string SharedGroup::make() {
  const int file = memfd_create("fake_nccl", 0);
  if (file < 0 || ftruncate(file, sizeof(DeviceAssignment)) != 0)
    throw std::runtime_error("[fake nccl] no shared memory.");
  auto* assignment = static_cast<DeviceAssignment*>(
      mmap(nullptr, sizeof(DeviceAssignment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  pthread_mutexattr_t mutex;
  pthread_mutexattr_init(&mutex);
  pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&assignment->mutex, &mutex);
  pthread_condattr_t changed;
  pthread_condattr_init(&changed);
  pthread_condattr_setpshared(&changed, PTHREAD_PROCESS_SHARED);
  pthread_cond_init(&assignment->changed, &changed);
  munmap(assignment, sizeof(DeviceAssignment));
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
}

SharedGroup::SharedGroup(const std::string& name) {
  const int file = open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) throw std::runtime_error("[fake nccl] " + name + " cannot be opened.");
  assignment_ = static_cast<DeviceAssignment*>(
      mmap(nullptr, sizeof(DeviceAssignment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  close(file);
}

SharedGroup::~SharedGroup() { munmap(assignment_, sizeof(DeviceAssignment)); }

template <typename Ready>
bool SharedGroup::wait(const Ready& ready, const std::string& who) {
  while (!ready() && !aborted_) {
    timespec until{};
    clock_gettime(CLOCK_REALTIME, &until);
    const int64_t ns = until.tv_nsec + std::chrono::nanoseconds(patience).count();
    until.tv_sec += ns / 1'000'000'000;
    until.tv_nsec = ns % 1'000'000'000;
    if (pthread_cond_timedwait(&assignment_->changed, &assignment_->mutex, &until) != ETIMEDOUT || ready() || aborted_)
      continue;
    pthread_mutex_unlock(&assignment_->mutex);
    end_because(who + " and waits in vain: another rank launches or records in another order, or less.");
  }
  return !aborted_;
}

void SharedGroup::meet(int rank, int size, const std::string& words, const std::string& name, const void* bytes,
                       size_t size_bytes, const std::function<void(const std::vector<const std::byte*>&)>& take) {
  if (size_bytes > kAreaBytes || static_cast<size_t>(size) > kRanksMax)
    throw std::runtime_error("[fake nccl] more than it can carry.");
  DeviceAssignment& assignment = *assignment_;
  const auto brings = [&](int r, const std::string& what) {
    return "rank " + std::to_string(r) + " of " + name + " brings " + what;
  };
  pthread_mutex_lock(&assignment.mutex);
  wait([&] { return !assignment.taking; }, brings(rank, words));
  std::memcpy(assignment.areas[rank], bytes, size_bytes);
  assignment.words[rank][words.copy(assignment.words[rank], kWordsBytes - 1)] = '\0';
  if (++assignment.arrived == size) {
    assignment.taking = true;
    pthread_cond_broadcast(&assignment.changed);
  }
  if (!wait([&] { return assignment.taking; }, brings(rank, words))) {
    pthread_mutex_unlock(&assignment.mutex);
    return;
  }
  for (int r = 0; r < size; ++r)
    if (const std::string others = assignment.words[r]; others != words) {
      pthread_mutex_unlock(&assignment.mutex);
      end_because(brings(rank, words) + " where " + brings(r, others) +
                  ": ranks launch or record in different orders.");
    }
  std::vector<const std::byte*> all;
  for (int r = 0; r < size; ++r) all.push_back(assignment.areas[r]);
  take(all);
  if (++assignment.left == size) {
    assignment.arrived = assignment.left = 0;
    assignment.taking = false;
    pthread_cond_broadcast(&assignment.changed);
  }
  pthread_mutex_unlock(&assignment.mutex);
}

void SharedGroup::abort() {
  pthread_mutex_lock(&assignment_->mutex);
  aborted_ = true;
  pthread_cond_broadcast(&assignment_->changed);
  pthread_mutex_unlock(&assignment_->mutex);
}

void SharedGroup::send(int rank, int peer, const std::string& words, const std::string& name, const void* bytes,
                       size_t size_bytes) {
  const std::string who =
      "rank " + std::to_string(rank) + " of " + name + " sends " + words + " to rank " + std::to_string(peer);
  char header[kWordsBytes] = {};
  words.copy(header, kWordsBytes - 1);
  pthread_mutex_lock(&assignment_->mutex);
  put(rank, peer, header, sizeof header, who);
  put(rank, peer, bytes, size_bytes, who);
  pthread_mutex_unlock(&assignment_->mutex);
}

void SharedGroup::receive(int rank, int peer, const std::string& words, const std::string& name, void* bytes,
                          size_t size_bytes) {
  const std::string who =
      "rank " + std::to_string(rank) + " of " + name + " receives " + words + " from rank " + std::to_string(peer);
  char header[kWordsBytes] = {};
  pthread_mutex_lock(&assignment_->mutex);
  take(rank, peer, header, sizeof header, who);
  if (!aborted_ && header != words) {
    pthread_mutex_unlock(&assignment_->mutex);
    end_because(who + ", which sends " + header + ": ranks launch or record in different orders.");
  }
  take(rank, peer, bytes, size_bytes, who);
  pthread_mutex_unlock(&assignment_->mutex);
}

void SharedGroup::put(int rank, int peer, const void* bytes, size_t size_bytes, const std::string& who) {
  DeviceAssignment& assignment = *assignment_;
  size_t& sent = assignment.sent[rank][peer];
  const size_t& received = assignment.received[rank][peer];
  for (size_t at = 0; at < size_bytes && wait([&] { return sent - received < kMailBytes; }, who);) {
    const size_t begin = sent % kMailBytes, room = kMailBytes - (sent - received);
    const size_t piece = std::min({size_bytes - at, room, kMailBytes - begin});
    std::memcpy(assignment.mail[rank][peer] + begin, static_cast<const std::byte*>(bytes) + at, piece);
    sent += piece, at += piece;
    pthread_cond_broadcast(&assignment.changed);
  }
}

void SharedGroup::take(int rank, int peer, void* bytes, size_t size_bytes, const std::string& who) {
  DeviceAssignment& assignment = *assignment_;
  const size_t& sent = assignment.sent[peer][rank];
  size_t& received = assignment.received[peer][rank];
  for (size_t at = 0; at < size_bytes && wait([&] { return sent > received; }, who);) {
    const size_t begin = received % kMailBytes;
    const size_t piece = std::min({size_bytes - at, sent - received, kMailBytes - begin});
    std::memcpy(static_cast<std::byte*>(bytes) + at, assignment.mail[peer][rank] + begin, piece);
    received += piece, at += piece;
    pthread_cond_broadcast(&assignment.changed);
  }
}

}  // namespace slipstream::fake_nccl
