// SPDX-License-Identifier: Apache-2.0
// One meeting at a time: all bring, all take, the last one to take opens the next. What is sent waits in a ring per
// pair of ranks.

#include "tests/fake_cuda/shared_group.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace slipstream::fake_nccl {
namespace {

constexpr size_t kRanksMax = 8, kAreaBytes = size_t{8} << 20, kMailBytes = size_t{4} << 20;

}  // namespace

struct SharedGroup::Place {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int arrived = 0, left = 0;
  bool taking = false;
  size_t sent[kRanksMax][kRanksMax] = {}, received[kRanksMax][kRanksMax] = {};  // bytes so far, [from][to]
  alignas(64) std::byte areas[kRanksMax][kAreaBytes];
  alignas(64) std::byte mail[kRanksMax][kRanksMax][kMailBytes];  // pages that nobody touches take no memory
};

std::string SharedGroup::make() {
  const int file = memfd_create("fake_nccl", 0);
  if (file < 0 || ftruncate(file, sizeof(Place)) != 0) throw std::runtime_error("[fake nccl] no shared memory.");
  auto* place = static_cast<Place*>(mmap(nullptr, sizeof(Place), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  pthread_mutexattr_t mutex;
  pthread_mutexattr_init(&mutex);
  pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&place->mutex, &mutex);
  pthread_condattr_t changed;
  pthread_condattr_init(&changed);
  pthread_condattr_setpshared(&changed, PTHREAD_PROCESS_SHARED);
  pthread_cond_init(&place->changed, &changed);
  munmap(place, sizeof(Place));
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
}

SharedGroup::SharedGroup(const std::string& name) {
  const int file = open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) throw std::runtime_error("[fake nccl] " + name + " cannot be opened.");
  place_ = static_cast<Place*>(mmap(nullptr, sizeof(Place), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  close(file);
}

SharedGroup::~SharedGroup() { munmap(place_, sizeof(Place)); }

void SharedGroup::meet(int rank, int size, const void* bytes, size_t size_bytes,
                       const std::function<void(const std::vector<const std::byte*>&)>& take) {
  if (size_bytes > kAreaBytes || static_cast<size_t>(size) > kRanksMax)
    throw std::runtime_error("[fake nccl] more than it can carry.");
  Place& place = *place_;
  pthread_mutex_lock(&place.mutex);
  while (place.taking && !aborted_) pthread_cond_wait(&place.changed, &place.mutex);
  std::memcpy(place.areas[rank], bytes, size_bytes);
  if (++place.arrived == size) {
    place.taking = true;
    pthread_cond_broadcast(&place.changed);
  }
  while (!place.taking && !aborted_) pthread_cond_wait(&place.changed, &place.mutex);
  if (aborted_) {
    pthread_mutex_unlock(&place.mutex);
    return;
  }
  std::vector<const std::byte*> all;
  for (int r = 0; r < size; ++r) all.push_back(place.areas[r]);
  take(all);
  if (++place.left == size) {
    place.arrived = place.left = 0;
    place.taking = false;
    pthread_cond_broadcast(&place.changed);
  }
  pthread_mutex_unlock(&place.mutex);
}

void SharedGroup::abort() {
  pthread_mutex_lock(&place_->mutex);
  aborted_ = true;
  pthread_cond_broadcast(&place_->changed);
  pthread_mutex_unlock(&place_->mutex);
}

void SharedGroup::send(int rank, int peer, const void* bytes, size_t size_bytes) {
  Place& place = *place_;
  size_t& sent = place.sent[rank][peer];
  pthread_mutex_lock(&place.mutex);
  for (size_t at = 0; at < size_bytes && !aborted_;) {
    const size_t begin = sent % kMailBytes, room = kMailBytes - (sent - place.received[rank][peer]);
    const size_t piece = std::min({size_bytes - at, room, kMailBytes - begin});
    std::memcpy(place.mail[rank][peer] + begin, static_cast<const std::byte*>(bytes) + at, piece);
    sent += piece, at += piece;
    if (piece > 0)
      pthread_cond_broadcast(&place.changed);
    else
      pthread_cond_wait(&place.changed, &place.mutex);
  }
  pthread_mutex_unlock(&place.mutex);
}

void SharedGroup::receive(int rank, int peer, void* bytes, size_t size_bytes) {
  Place& place = *place_;
  size_t& received = place.received[peer][rank];
  pthread_mutex_lock(&place.mutex);
  for (size_t at = 0; at < size_bytes && !aborted_;) {
    const size_t begin = received % kMailBytes, there = place.sent[peer][rank] - received;
    const size_t piece = std::min({size_bytes - at, there, kMailBytes - begin});
    std::memcpy(static_cast<std::byte*>(bytes) + at, place.mail[peer][rank] + begin, piece);
    received += piece, at += piece;
    if (piece > 0)
      pthread_cond_broadcast(&place.changed);
    else
      pthread_cond_wait(&place.changed, &place.mutex);
  }
  pthread_mutex_unlock(&place.mutex);
}

}  // namespace slipstream::fake_nccl
