// SPDX-License-Identifier: Apache-2.0
// There is one rendezvous at a time: all ranks bring their bytes, all take bytes, and the last one to take opens the
// next. Messages wait in one ring for each pair of ranks.

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

struct SharedGroup::SharedMemory {
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
  if (file < 0 || ftruncate(file, sizeof(SharedMemory)) != 0) throw std::runtime_error("[fake nccl] no shared memory.");
  auto* memory =
      static_cast<SharedMemory*>(mmap(nullptr, sizeof(SharedMemory), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  pthread_mutexattr_t mutex;
  pthread_mutexattr_init(&mutex);
  pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&memory->mutex, &mutex);
  pthread_condattr_t changed;
  pthread_condattr_init(&changed);
  pthread_condattr_setpshared(&changed, PTHREAD_PROCESS_SHARED);
  pthread_cond_init(&memory->changed, &changed);
  munmap(memory, sizeof(SharedMemory));
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
}

SharedGroup::SharedGroup(const std::string& name) {
  const int file = open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) throw std::runtime_error("[fake nccl] " + name + " cannot be opened.");
  memory_ =
      static_cast<SharedMemory*>(mmap(nullptr, sizeof(SharedMemory), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  close(file);
}

SharedGroup::~SharedGroup() { munmap(memory_, sizeof(SharedMemory)); }

template <typename Ready>
bool SharedGroup::wait(const Ready& ready, const std::string& label) {
  while (!ready() && !aborted_) {
    timespec until{};
    clock_gettime(CLOCK_REALTIME, &until);
    const int64_t ns = until.tv_nsec + std::chrono::nanoseconds(patience).count();
    until.tv_sec += ns / 1'000'000'000;
    until.tv_nsec = ns % 1'000'000'000;
    if (pthread_cond_timedwait(&memory_->changed, &memory_->mutex, &until) != ETIMEDOUT || ready() || aborted_)
      continue;
    pthread_mutex_unlock(&memory_->mutex);
    end_because(label + " and waits forever: another rank launches or records in another order, or less.");
  }
  return !aborted_;
}

void SharedGroup::meet(int rank, int size, const std::string& words, const std::string& name, const void* bytes,
                       size_t size_bytes, const std::function<void(const std::vector<const std::byte*>&)>& take) {
  if (size_bytes > kAreaBytes || static_cast<size_t>(size) > kRanksMax)
    throw std::runtime_error("[fake nccl] more than it can carry.");
  SharedMemory& memory = *memory_;
  const auto brings = [&](int r, const std::string& what) {
    return "rank " + std::to_string(r) + " of " + name + " brings " + what;
  };
  pthread_mutex_lock(&memory.mutex);
  wait([&] { return !memory.taking; }, brings(rank, words));
  std::memcpy(memory.areas[rank], bytes, size_bytes);
  memory.words[rank][words.copy(memory.words[rank], kWordsBytes - 1)] = '\0';
  if (++memory.arrived == size) {
    memory.taking = true;
    pthread_cond_broadcast(&memory.changed);
  }
  if (!wait([&] { return memory.taking; }, brings(rank, words))) {
    pthread_mutex_unlock(&memory.mutex);
    return;
  }
  for (int r = 0; r < size; ++r)
    if (const std::string others = memory.words[r]; others != words) {
      pthread_mutex_unlock(&memory.mutex);
      end_because(brings(rank, words) + " where " + brings(r, others) +
                  ": ranks launch or record in different orders.");
    }
  std::vector<const std::byte*> all;
  for (int r = 0; r < size; ++r) all.push_back(memory.areas[r]);
  take(all);
  if (++memory.left == size) {
    memory.arrived = memory.left = 0;
    memory.taking = false;
    pthread_cond_broadcast(&memory.changed);
  }
  pthread_mutex_unlock(&memory.mutex);
}

void SharedGroup::abort() {
  pthread_mutex_lock(&memory_->mutex);
  aborted_ = true;
  pthread_cond_broadcast(&memory_->changed);
  pthread_mutex_unlock(&memory_->mutex);
}

void SharedGroup::send(int rank, int peer, const std::string& words, const std::string& name, const void* bytes,
                       size_t size_bytes) {
  const std::string label =
      "rank " + std::to_string(rank) + " of " + name + " sends " + words + " to rank " + std::to_string(peer);
  char header[kWordsBytes] = {};
  words.copy(header, kWordsBytes - 1);
  pthread_mutex_lock(&memory_->mutex);
  put(rank, peer, header, sizeof header, label);
  put(rank, peer, bytes, size_bytes, label);
  pthread_mutex_unlock(&memory_->mutex);
}

void SharedGroup::receive(int rank, int peer, const std::string& words, const std::string& name, void* bytes,
                          size_t size_bytes) {
  const std::string label =
      "rank " + std::to_string(rank) + " of " + name + " receives " + words + " from rank " + std::to_string(peer);
  char header[kWordsBytes] = {};
  pthread_mutex_lock(&memory_->mutex);
  take(rank, peer, header, sizeof header, label);
  if (!aborted_ && header != words) {
    pthread_mutex_unlock(&memory_->mutex);
    end_because(label + ", which sends " + header + ": ranks launch or record in different orders.");
  }
  take(rank, peer, bytes, size_bytes, label);
  pthread_mutex_unlock(&memory_->mutex);
}

void SharedGroup::put(int rank, int peer, const void* bytes, size_t size_bytes, const std::string& label) {
  SharedMemory& memory = *memory_;
  size_t& sent = memory.sent[rank][peer];
  const size_t& received = memory.received[rank][peer];
  for (size_t at = 0; at < size_bytes && wait([&] { return sent - received < kMailBytes; }, label);) {
    const size_t begin = sent % kMailBytes, room = kMailBytes - (sent - received);
    const size_t piece = std::min({size_bytes - at, room, kMailBytes - begin});
    std::memcpy(memory.mail[rank][peer] + begin, static_cast<const std::byte*>(bytes) + at, piece);
    sent += piece, at += piece;
    pthread_cond_broadcast(&memory.changed);
  }
}

void SharedGroup::take(int rank, int peer, void* bytes, size_t size_bytes, const std::string& label) {
  SharedMemory& memory = *memory_;
  const size_t& sent = memory.sent[peer][rank];
  size_t& received = memory.received[peer][rank];
  for (size_t at = 0; at < size_bytes && wait([&] { return sent > received; }, label);) {
    const size_t begin = received % kMailBytes;
    const size_t piece = std::min({size_bytes - at, sent - received, kMailBytes - begin});
    std::memcpy(static_cast<std::byte*>(bytes) + at, memory.mail[peer][rank] + begin, piece);
    received += piece, at += piece;
    pthread_cond_broadcast(&memory.changed);
  }
}

}  // namespace slipstream::fake_nccl
