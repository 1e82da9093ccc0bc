// SPDX-License-Identifier: Apache-2.0
// Barriers and tiles of sm_90a with one mistake each: the error names the place and the rule.

#include "tests/emulation/hopper_errors.h"

using namespace slipstream;
using namespace slipstream::test;

TEST_CASE("hopper errors: instructions of sm_90a need compute capability 9.0") {
  has(error_in([] { barrier_init(barrier(), 1); }), "needs compute capability 9.0, and the emulated device has 8.0");
  CHECK(shared_memory_bytes() == 99 * 1024);
  const emulation::Capability hopper(90);
  CHECK(shared_memory_bytes() == 227 * 1024);
  CHECK(error_in([] {}, 32, 227 * 1024).empty());
  has(error_in([] {}, 32, 227 * 1024 + 1), "232449 bytes of shared memory, a block has at most 232448");
}

TEST_CASE("hopper errors: barriers are initialised, visible and intact") {
  const emulation::Capability hopper(90);
  has(error_in([] { barrier_arrive(barrier()); }), "that no barrier_init has initialised in this block");
  has(error_in([] {
        if (thread() == 0) barrier_init(barrier(), 256);
        barrier_arrive(barrier());
      }),
      "initialised at tests/emulation/hopper_error_test.cpp:");
  has(error_in([] {
        init(256);
        init(256);
      }),
      "which thread (0, 0, 0) initialised at");
  has(error_in([] {
        init(256);
        if (thread() == 3) floats()[4096 + 1] = 1.0f;
      }),
      "element 4097 of a shared array");
  has(error_in([] {
        init(256);
        const Shared<float> all(shared(), 8192);
        if (thread() == 3) all[4097] = 1.0f;
      }),
      "which holds a barrier");
  has(error_in([] {
        init(256);
        if (thread() == 3) *barrier() = 0;
        barrier_arrive(barrier());
      }),
      "whose 8 bytes were overwritten since its barrier_init");
  has(error_in([] {
        if (thread() == 0) barrier_init(barrier() + 1, 0);
      }),
      "for 0 arrivals: 1 to 1048575");
  has(error_in([] {
        if (thread() == 0) barrier_init(reinterpret_cast<Barrier*>(shared() + 4), 1);
      }),
      "not a multiple of 8");
}

TEST_CASE("hopper errors: arrivals, parities and bytes of a phase") {
  const emulation::Capability hopper(90);
  has(error_in([] {
        init(128);
        if (thread() < 128) {
          barrier_arrive_expect(barrier(), 16);
        } else {
          barrier_arrive(barrier());
        }
      }),
      "is beyond the 128 arrivals of phase 0 of the barrier at byte 16384 of dynamic shared memory");
  // Nothing completes the phase: every waiting line is named.
  const std::string stuck = error_in([] {
    init(2);
    if (thread() == 0) barrier_arrive(barrier());
    if (thread() < 100) {
      barrier_wait(barrier(), 0);
    } else {
      named_barrier_sync(3, 192);
    }
  });
  has(stuck, "deadlock: ");
  has(stuck, "100 threads from thread (0, 0, 0) on wait at tests/emulation/hopper_error_test.cpp:");
  has(stuck,
      "barrier_wait for parity 0 of the barrier at byte 16384 of dynamic shared memory, whose phase 0 lacks 1 of 2 "
      "arrivals");
  has(stuck, "156 threads from thread (100, 0, 0) on wait at");
  has(stuck, "barrier 3: 156 of 192 threads have arrived");
  has(error_in([] {
        init(1);
        barrier_wait(barrier(), 2);
      }),
      "for parity 2: it is 0 or 1");
  const Tile tile;
  has(error_in([&] {
        init(1);
        if (thread() == 0) load(tile, 0, Tile::kBytes + 16);
        barrier_wait(barrier(), 0);
      }),
      "whose phase 0 lacks 0 of 1 arrivals and has 8192 of 8208 expected bytes");
  has(error_in([&] {
        init(1);
        if (thread() == 0) load(tile, 0, Tile::kBytes - 16);
        barrier_wait(barrier(), 0);
      }),
      "received 8192 bytes, but its arrivals expect 8176");
  has(error_in([&] {
        init(1);
        if (thread() == 0) load(tile, 0, Tile::kBytes);
        if (thread() == 0) tma_load<2>(shared() + 8192, tile.map, barrier(), 0, 0);
        barrier_wait(barrier(), 0);
      }),
      "in phase 0 of a barrier arrive in phase 1");
  // Thread 1 waits for phase 0, and both phases pass before it has run.
  has(error_in([] {
        init(1);
        if (thread() == 1) barrier_wait(barrier(), 0);
        if (thread() == 2) {
          barrier_arrive(barrier());
          barrier_arrive(barrier());
        }
      }),
      "phase 1 of the barrier at byte 16384 of dynamic shared memory completes before thread (1, 0, 0) has seen the "
      "end of "
      "phase 0");
}

TEST_CASE("hopper errors: barriers order accesses of those that arrive before those of the waiting, and no others") {
  const emulation::Capability hopper(90);
  for (bool descending : {false, true}) {
    emulation::set_descending(descending);
    const auto passing = [](bool arrive_early, bool wait, bool second) {
      init(128, 2);
      if (thread() < 128) {
        if (arrive_early) barrier_arrive(barrier());
        floats()[thread()] = 1.0f;
        if (!arrive_early) barrier_arrive(barrier());
      } else {
        if (wait) barrier_wait(barrier(), 0);
        if (second) barrier_arrive(barrier(1));
        const float sum = floats()[thread() - 128] + floats()[255 - thread()];
        if (!second) barrier_arrive(barrier(1));
        if (sum != 2.0f) wrong("another sum");
      }
      if (thread() < 128) {
        barrier_wait(barrier(1), 0);
        floats()[thread()] = 2.0f;
      }
    };
    CHECK(error_in([&] { passing(false, true, false); }).empty());
    CHECK_FALSE(error_in([&] { passing(true, true, false); }).empty());
    CHECK_FALSE(error_in([&] { passing(false, false, false); }).empty());
    has(error_in([&] { passing(false, true, true); }), "with no barrier between");
    const auto named = [](bool waits, int first) {
      if (thread() < 128) {
        floats()[thread()] = 1.0f;
        named_barrier_arrive(1, 256);
      } else {
        if (waits) named_barrier_sync(1, 256);
        if (floats()[thread() - first] != 1.0f) wrong("another value");
      }
    };
    CHECK(error_in([&] { named(true, 128); }).empty());
    CHECK_FALSE(error_in([&] { named(false, 128); }).empty());
  }
  emulation::set_descending(false);
  // The arrival of one lane does not speak for its warp.
  has(error_in([] {
        init(1);
        if (thread() < 32) {
          floats()[thread()] = 1.0f;
          if (thread() == 0) barrier_arrive(barrier());
        } else if (thread() < 64) {
          barrier_wait(barrier(), 0);
          if (floats()[thread() - 32] != 1.0f) wrong("another value");
        }
      }),
      "with no barrier between");
  CHECK(error_in([] {
          init(1);
          if (thread() < 32) {
            floats()[thread()] = 1.0f;
            __syncwarp();
            if (thread() == 0) barrier_arrive(barrier());
          } else if (thread() < 64) {
            barrier_wait(barrier(), 0);
            if (floats()[thread() - 32] != 1.0f) wrong("another value");
          }
        }).empty());
}

TEST_CASE("hopper errors: bytes are free when every warpgroup that reads them has arrived") {
  const emulation::Capability hopper(90);
  for (bool descending : {false, true}) {
    emulation::set_descending(descending);
    // Warpgroups 1 and 2 read what warpgroup 0 writes, and warpgroup 2 arrives too late or in another phase.
    const auto rows = [](int arrivals, int missing) {
      init(arrivals);
      const int column = thread() % 128;
      if (thread() < 128) floats()[column] = 1.0f;
      named_barrier_sync(1, 384);
      if (thread() >= 128) {
        if (floats()[column] != 1.0f) wrong("another value");
        if (thread() / 128 != missing) barrier_arrive(barrier());
        return;
      }
      barrier_wait(barrier(), 0);
      floats()[column] = 2.0f;
    };
    CHECK(error_in([&] { rows(256, 0); }, 384).empty());
    for (int missing : {1, 2}) has(error_in([&] { rows(128, missing); }, 384), "with no barrier between");
    const auto tiles = [](int arrivals, int missing) {
      fill();
      init(arrivals);
      if (thread() >= 128) {
        Accumulator<64> sums;
        wgmma_fence(sums);
        multiply(sums);
        wgmma_commit();
        wgmma_wait<0>(sums);
        if (thread() / 128 != missing) barrier_arrive(barrier());
        return;
      }
      barrier_wait(barrier(), 0);
      floats()[thread()] = 2.0f;
    };
    CHECK(error_in([&] { tiles(256, 0); }, 384).empty());
    for (int missing : {1, 2}) has(error_in([&] { tiles(128, missing); }, 384), "without a wait since");
  }
  emulation::set_descending(false);
}

TEST_CASE("hopper errors: named barriers have one count, ids of 1 to 15 and each thread once") {
  const emulation::Capability hopper(90);
  has(error_in([] { named_barrier_sync(0, 256); }), "uses barrier 0: 1 to 15 are free, 0 belongs to __syncthreads");
  has(error_in([] { named_barrier_sync(16, 256); }), "uses barrier 16");
  has(error_in([] { named_barrier_sync(1, 100); }), "is for 100 threads: a multiple of 32 of at most the block's 256");
  has(error_in([] { named_barrier_sync(1, thread() < 128 ? 128 : 256); }, 256), "deadlock");
  has(error_in([] { named_barrier_sync(1, thread() < 64 ? 128 : 256); }, 256), "has been reached at");
  has(error_in([] {
        named_barrier_arrive(1, 256);
        named_barrier_sync(1, 256);
      }),
      "reaches barrier 1 twice");
}

TEST_CASE("hopper errors: bytes of a TMA load are there when a wait for its barrier has returned") {
  const emulation::Capability hopper(90);
  const Tile tile;
  const auto loading = [&](int mistake) {
    init(1);
    if (thread() == 0 && mistake == 1) floats()[0] = 1.0f;
    if (thread() == 0) load(tile);
    if (mistake == 2 && thread() == 0) floats()[5] = 1.0f;
    if (mistake == 3 && thread() == 0) tma_load<2>(shared(), tile.map, barrier(), 0, 0);
    if (mistake != 4 || thread() != 9) barrier_wait(barrier(), 0);
    const float value = floats()[thread()];
    if (value != 0.0f) wrong("another value");
    if (mistake == 5 && thread() == 255) {
      load(tile);
      barrier_wait(barrier(), 1);
    }
  };
  const auto error = [&](int mistake) { return error_in([&] { loading(mistake); }); };
  CHECK(error(0).empty());
  has(error(1), "without a fence_async since");
  has(error(2), "writes byte 16 of dynamic shared memory, which thread (0, 0, 0) began to load at");
  has(error(2), "without a wait for its barrier since");
  has(error(3), "begins to load byte 0 of dynamic shared memory, which thread (0, 0, 0) began to load at");
  has(error(4), "thread (9, 0, 0): race on shared memory");
  has(error(5), "with no barrier between");
  has(error_in([&] {
        init(1);
        if (thread() == 0) load(tile);
      }),
      "the block ends, and no thread has waited for its tma_load at");
  has(error_in([&] {
        if (thread() == 0) barrier_init(barrier(), 1);
        __syncthreads();
        if (thread() == 0) load(tile);
      }),
      "without a barrier_init_fence since its barrier_init");
}

TEST_CASE("hopper errors: TMA takes aligned tensors and boxes") {
  const emulation::Capability hopper(90);
  const Tile good;
  const auto refused = [&](auto change) {
    TensorShape shape = good.shape;
    change(shape);
    TensorMap map;
    std::string reason;
    CHECK_FALSE(make_tensor_map(map, shape, reason));
    return reason;
  };
  using Shape = TensorShape&;
  CHECK(refused([](Shape s) { s.base = static_cast<const char*>(s.base) + 8; }) ==
        "the tensor begins 8 bytes after a multiple of 16");
  CHECK(refused([](Shape s) { s.strides_bytes[1] = 120; }) ==
        "the stride of dimension 1 is 120 bytes, not a multiple of 16 below 2^40");
  CHECK(refused([](Shape s) { s.rank = 3, s.sizes[1] = 129, s.sizes[2] = s.box[2] = 1, s.strides_bytes[2] = 128; }) ==
        "the stride of dimension 2 is 128 bytes, fewer than the 129 elements of dimension 1");
  CHECK(refused([](Shape s) { s.box[1] = 257; }) == "the box has 257 elements of dimension 1, not 1 to 256");
  CHECK(refused([](Shape s) { s.box[0] = 128; }) ==
        "rows of the box have 256 bytes, but a swizzle of 128 bytes needs rows of 128");
  CHECK(refused([](Shape s) { s.box[0] = 4, s.swizzle = Swizzle::none; }) ==
        "rows of the box have 8 bytes, not a multiple of 16");
  CHECK(refused([](Shape s) { s.sizes[0] = 0; }) == "dimension 0 has 0 elements, not 1 to 2^32");
  CHECK(refused([](Shape s) { s.rank = 6; }) == "rank 6 is not 2 to 5");
  const auto error = [&](auto body, const Tile& tile) {
    return error_in([&] {
      init(1);
      if (thread() == 0) {
        barrier_arrive_expect(barrier(), Tile::kBytes);
        body(tile);
      }
    });
  };
  has(error([](const Tile& t) { tma_load<2>(shared() + 128, t.map, barrier(), 0, 0); }, good),
      "uses byte 128 of dynamic shared memory, address 1152: a swizzle of 128 bytes needs a multiple of 1024");
  has(error([](const Tile& t) { tma_load<2>(shared() + 64, t.map, barrier(), 0, 0); }, Tile(Swizzle::none)),
      "a swizzle of 16 bytes needs a multiple of 128");
  has(error([](const Tile& t) { tma_load<2>(shared() + 31 * 1024, t.map, barrier(), 0, 0); }, good),
      "of a box of 8192 bytes, which is out of bounds of dynamic shared memory");
  has(error([](const Tile& t) { tma_load<3>(shared(), t.map, barrier(), 0, 0); }, good),
      "of rank 3 with a map of rank 2");
  has(error([](const Tile& t) { tma_load<2>(shared() + 8192 + 1024, t.map, barrier(), 0, 0); }, good),
      "which holds a barrier");
  has(error([](const Tile& t) { tma_store<2>(t.map, shared(), -1, 0); }, good),
      "a store cannot begin before the tensor");
  const Tile beyond(Swizzle::b128, 64, 65);
  has(error([](const Tile& t) { tma_load<2>(shared(), t.map, barrier(), 0, 8); }, beyond),
      "access out of bounds, at byte 8192 of 'tile', which has 8192");
  Tile broken;
  broken.map.opaque[9] ^= 1;
  has(error([](const Tile& t) { tma_load<2>(shared(), t.map, barrier(), 0, 0); }, broken),
      "tma_load at tests/emulation/hopper_error_test.cpp:");
  has(error([](const Tile& t) { tma_load<2>(shared(), t.map, barrier(), 0, 0); }, broken),
      "with a map whose bytes cuTensorMapEncodeTiled did not write");
}

TEST_CASE("hopper errors: dynamic shared memory may begin elsewhere than at a multiple of 1024") {
  const emulation::Capability hopper(90);
  const auto loading = [](Swizzle swizzle, bool checked) {
    const Tile tile(swizzle);
    return error_in([&] {
      if (checked) {
        SLIP_DYNAMIC_SHARED_1024(bytes);
        if (bytes != shared()) wrong("other bytes");
      }
      init(1);
      if (thread() == 0) {
        barrier_arrive_expect(barrier(), 64 * span_bytes(swizzle));
        tma_load<2>(shared(), tile.map, barrier(), 0, 0);
      }
      barrier_wait(barrier(), 0);
    });
  };
  for (Swizzle swizzle : {Swizzle::none, Swizzle::b32, Swizzle::b64, Swizzle::b128})
    CHECK(loading(swizzle, true).empty());
  {
    const emulation::DynamicBase base(1024 + 512);
    for (Swizzle swizzle : {Swizzle::none, Swizzle::b32, Swizzle::b64}) CHECK(loading(swizzle, false).empty());
    has(loading(Swizzle::b128, false), "uses byte 0 of dynamic shared memory, address 1536: a swizzle of 128 bytes");
    has(loading(Swizzle::b64, true), ": dynamic shared memory begins at address 1536, not at a multiple of 1024");
  }
  const emulation::DynamicBase base(48);
  has(loading(Swizzle::b32, false), "a swizzle of 32 bytes needs a multiple of 256");
}

TEST_CASE("hopper errors: a TMA store reads what is fenced, until it is waited for") {
  const emulation::Capability hopper(90);
  const Tile tile;
  const auto storing = [&](int mistake) {
    for (int i = thread(); i < 2048; i += static_cast<int>(blockDim.x)) floats()[i] = 0.0f;
    if (mistake != 1) fence_async();
    __syncthreads();
    if (thread() == 0) {
      if (mistake == 2) floats()[7] = 0.0f;
      tma_store<2>(tile.map, shared(), 0, 0);
      if (mistake != 3) tma_store_commit();
      if (mistake == 4) floats()[7] = 0.0f;
      if (mistake < 5) tma_store_wait_read<0>();
      if (mistake == 5) tma_store_wait_read<1>();
    }
    if (mistake == 6) __syncthreads();
    if (mistake == 7 && thread() == 200) floats()[7] = 0.0f;
    if (mistake != 7) __syncthreads();
    if (mistake < 8 && mistake != 7 && thread() == 200) floats()[7] = 0.0f;
  };
  const auto error = [&](int mistake) { return error_in([&] { storing(mistake); }); };
  CHECK(error(0).empty());
  has(error(1), "without a fence_async since");
  has(error(2), "without a fence_async since");
  has(error(3), "it returns while its tma_store at");
  has(error(4), "writes byte 16 of dynamic shared memory, which thread (0, 0, 0) began to store at");
  for (int mistake : {5, 6, 7, 8}) has(error(mistake), "tma_store at");
  CHECK(error_in([&] {  // the fence of a thread that knows the writes
          for (int i = thread(); i < 2048; i += static_cast<int>(blockDim.x)) floats()[i] = 0.0f;
          __syncthreads();
          if (thread() == 0) {
            fence_async();
            tma_store<2>(tile.map, shared(), 0, 0);
            tma_store_commit();
            tma_store_wait<0>();
          }
        })
            .empty());
}

TEST_CASE("hopper errors: global memory that blocks hand over needs a release that knows of the writes, and a wait") {
  const emulation::Capability hopper(90);
  const emulation::DeviceMemory sums(256 * 16, "sums"), word(4, "word");
  const auto adding = [&](unsigned blocks, bool ordered, bool release, bool wait) {
    std::memset(sums.data(), 0, sums.size_bytes());
    std::memset(word.data(), 0, word.size_bytes());
    auto* const additions = reinterpret_cast<uint32_t*>(word.data());
    return error_in(
        [=, &sums] {
          init(1);
          for (unsigned item = blockIdx.x; item < 2; item += blocks) {
            if (thread() == 0 && item > 0 && wait) ptx::wait_until(additions, item);
            __syncthreads();
            add_16(as<float>(sums) + 4 * thread(), {1, 1, 1, 1});
            if (ordered) __syncthreads();
            if (thread() == 0 && release) ptx::store_release(additions, item + 1);
            __syncthreads();
          }
        },
        256, kSharedBytes, blocks);
  };
  for (unsigned blocks : {1u, 2u}) {  // one block may do the work of both
    CHECK(adding(blocks, true, true, true).empty());
    for (int i = 0; i < 4 * 256; ++i) REQUIRE(as<float>(sums)[i] == 2.0f);
    const std::string unawaited = adding(blocks, true, true, false);
    has(unawaited, "race on global memory at tests/emulation/hopper_error_test.cpp:");
    has(unawaited, blocks == 1 ? "without a wait_until for its release" : "with no store_release since");
    has(adding(blocks, false, true, true), "with no store_release since");
    has(adding(blocks, true, false, true), "(wait_until for 1, it is 0)");
  }
}
