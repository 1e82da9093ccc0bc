// SPDX-License-Identifier: Apache-2.0
// One meeting at a time: all bring, all take, the last one to take opens the next.

#include "tests/fake_cuda/shared_group.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

namespace slipstream::fake_nccl {
namespace {

constexpr size_t kRanksMax = 8, kAreaBytes = size_t{8} << 20;

}  // namespace

struct SharedGroup::Place {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int arrived = 0, left = 0;
  bool taking = false;
  alignas(64) std::byte areas[kRanksMax][kAreaBytes];
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
  if (size_bytes > kAreaBytes || static_cast<size_t>(size) > kRanksMax) throw std::runtime_error("[fake nccl] more than it can carry.");
  Place& place = *place_;
  pthread_mutex_lock(&place.mutex);
  while (place.taking) pthread_cond_wait(&place.changed, &place.mutex);
  std::memcpy(place.areas[rank], bytes, size_bytes);
  if (++place.arrived == size) {
    place.taking = true;
    pthread_cond_broadcast(&place.changed);
  }
  while (!place.taking) pthread_cond_wait(&place.changed, &place.mutex);
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

}  // namespace slipstream::fake_nccl
