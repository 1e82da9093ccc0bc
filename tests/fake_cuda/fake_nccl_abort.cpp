// SPDX-License-Identifier: Apache-2.0
// A shared count tracks whether operations exist: waiting, running and recorded ones all hold it.

#include "tests/fake_cuda/fake_nccl_abort.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>

#include "tests/fake_cuda/fake_nccl.h"

namespace slipstream::fake_nccl {
namespace {

constexpr int kRanksMax = 8;

struct Life {
  bool aborted = false;
};

std::mutex& mutex = *new std::mutex;  // threads of lost streams use it even at exit
std::condition_variable& changed = *new std::condition_variable;
std::map<ncclComm_t, std::shared_ptr<Life>>& lives = *new std::map<ncclComm_t, std::shared_ptr<Life>>;
int running = 0;
int64_t run = 0, breaks_after = INT64_MAX, stands_after = INT64_MAX;

std::shared_ptr<Life>& life_of(ncclComm_t comm) {
  std::shared_ptr<Life>& life = lives[comm];
  if (!life) life = std::make_shared<Life>();
  return life;
}

}  // namespace

void break_after(int64_t count) { breaks_after = count; }
void silent_after(int64_t count) { stands_after = count; }

std::function<void()> operation(ncclComm_t comm, std::function<void()> body) {
  const std::lock_guard lock(mutex);
  return [life = life_of(comm), body = std::move(body)] {
    std::unique_lock inner(mutex);
    ++running;
    const bool breaks = ++run >= breaks_after, stands = breaks || run >= stands_after;
    inner.unlock();
    for (int rank = 0; breaks && rank < kRanksMax; ++rank) break_rank(rank, ncclRemoteError);
    if (!stands) body();
    inner.lock();
    if (stands) changed.wait(inner, [&] { return life->aborted; });
    --running;
    changed.notify_all();
  };
}

void end_operations(ncclComm_t comm, const std::function<void()>& wake, bool of_process) {
  std::unique_lock lock(mutex);
  const std::shared_ptr<Life> life = life_of(comm);
  life->aborted = true;
  changed.notify_all();
  lock.unlock();
  wake();
  lock.lock();
  // The map and this function hold it, too. A graph does not report its destruction.
  while (life.use_count() > 2 || (of_process && running > 0)) changed.wait_for(lock, std::chrono::milliseconds(1));
  lives.erase(comm);
}

}  // namespace slipstream::fake_nccl
