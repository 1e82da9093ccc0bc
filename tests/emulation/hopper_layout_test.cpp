// SPDX-License-Identifier: Apache-2.0
// Layouts of sm_90a, transcribed from the tables of the PTX manual: descriptors, swizzles, fragments and operands.

#include <fmt/core.h>
#include <hopper.h>
#include <launch.h>

#include <array>
#include <set>

#include "tests/emulation/error_of.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::kernels::hopper;
using emulation::DeviceMemory;
using test::as;

namespace {

constexpr Swizzle kSwizzles[] = {Swizzle::none, Swizzle::b32, Swizzle::b64, Swizzle::b128};

/// "Tensor swizzling modes": the 16-byte chunk of the data at each chunk of shared memory, by lines of 128 bytes.
constexpr int kPattern32[8][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}, {0, 1, 2, 3, 4, 5, 6, 7},
                                  {1, 0, 3, 2, 5, 4, 7, 6}, {0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6},
                                  {0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}};
constexpr int kPattern64[8][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}, {2, 3, 0, 1, 6, 7, 4, 5},
                                  {3, 2, 1, 0, 7, 6, 5, 4}, {0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6},
                                  {2, 3, 0, 1, 6, 7, 4, 5}, {3, 2, 1, 0, 7, 6, 5, 4}};
constexpr int kPattern128[8][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}, {2, 3, 0, 1, 6, 7, 4, 5},
                                   {3, 2, 1, 0, 7, 6, 5, 4}, {4, 5, 6, 7, 0, 1, 2, 3}, {5, 4, 7, 6, 1, 0, 3, 2},
                                   {6, 7, 4, 5, 2, 3, 0, 1}, {7, 6, 5, 4, 3, 2, 1, 0}};
/// The byte of a tile where its data's byte `at` lies.
size_t swizzled_by_table(size_t at, Swizzle swizzle) {
  const size_t line = at / 128 % 8, chunk = at / 16 % 8;
  const int place = swizzle == Swizzle::b32    ? kPattern32[line][chunk]
                    : swizzle == Swizzle::b64  ? kPattern64[line][chunk]
                    : swizzle == Swizzle::b128 ? kPattern128[line][chunk]
                                               : static_cast<int>(chunk);
  return at / 128 * 128 + static_cast<size_t>(place) * 16 + at % 16;
}

/// "Canonical layouts": a coordinate's offset by shape and stride, innermost mode first; the last mode has no end.
struct Modes {
  std::vector<size_t> shape, stride;
  size_t of(size_t at) const {
    size_t offset = 0;
    for (size_t i = 0; i < shape.size(); ++i) {
      offset += (i + 1 < shape.size() ? at % shape[i] : at) * stride[i];
      at /= shape[i];
    }
    return offset;
  }
};
/// Of an operand: modes of its m (or n) and of its k, in elements, before the swizzle.
struct Canonical {
  Modes mn, k;
};
constexpr size_t kT = 8;  // elements in 128 bits
Canonical canonical(Major major, Swizzle swizzle, size_t leading, size_t stride) {
  if (major == Major::k) switch (swizzle) {
      case Swizzle::none:
        return {{{8, 1}, {1 * kT, stride}}, {{kT, 1}, {1, leading}}};
      case Swizzle::b32:
        return {{{8, 1}, {2 * kT, stride}}, {{kT, 1}, {1, kT}}};
      case Swizzle::b64:
        return {{{8, 1}, {4 * kT, stride}}, {{kT, 1}, {1, kT}}};
      case Swizzle::b128:
        return {{{8, 1}, {8 * kT, stride}}, {{kT, 1}, {1, kT}}};
    }
  switch (swizzle) {
    case Swizzle::none:
      return {{{kT, 1, 1}, {1, kT, stride}}, {{8, 1}, {1 * kT, leading}}};
    case Swizzle::b32:
      return {{{kT, 2, 1}, {1, kT, leading}}, {{8, 1}, {2 * kT, stride}}};
    case Swizzle::b64:
      return {{{kT, 4, 1}, {1, kT, leading}}, {{8, 1}, {4 * kT, stride}}};
    case Swizzle::b128:
      break;
  }
  return {{{kT, 8, 1}, {1, kT, leading}}, {{8, 1}, {8 * kT, stride}}};
}

/// An operand's image in shared memory, as the manual has it, and its distances.
struct Image {
  static constexpr size_t kBytes = 32 * 1024;
  std::vector<bfloat16> elements = std::vector<bfloat16>(kBytes / 2, bfloat16(0.0f));
  uint32_t leading_bytes = 0, stride_bytes = 0;

  /// `count` rows (or columns) of 16 elements: value(i, k).
  template <typename Value>
  Image(size_t count, Major major, Swizzle swizzle, const Value& value) {
    const size_t span = span_bytes(swizzle) / 2;
    size_t leading, stride;
    if (swizzle == Swizzle::none)  // 64 elements each: two columns of k, then all rows; or the reverse
      leading = major == Major::k ? 64 * (count / 8) : 64, stride = major == Major::k ? 64 : 128;
    else
      leading = major == Major::k ? 8 : 2 * 8 * span, stride = 8 * span;
    leading_bytes = static_cast<uint32_t>(2 * leading);
    stride_bytes = static_cast<uint32_t>(2 * stride);
    const Canonical layout = canonical(major, swizzle, leading, stride);
    std::set<size_t> used;
    for (size_t i = 0; i < count; ++i)
      for (size_t k = 0; k < 16; ++k) {
        const size_t at = swizzled_by_table(2 * (layout.mn.of(i) + layout.k.of(k)), swizzle) / 2;
        REQUIRE(used.insert(at).second);
        REQUIRE(at < elements.size());
        elements[at] = bfloat16(value(static_cast<int>(i), static_cast<int>(k)));
      }
  }
};

struct Distances {
  uint32_t leading_a, stride_a, leading_b, stride_b;
};

/// d = a b, or d += a b twice, of operands whose images are copied to shared memory. d by thread and register.
template <int kN, Major kMajorA, Major kMajorB>
__global__ void image_kernel(const unsigned char* a, const unsigned char* b, float* d, Swizzle swizzle_a,
                             Swizzle swizzle_b, Distances by, int times) {
  SLIP_DYNAMIC_SHARED_1024(bytes);
  for (size_t i = 16 * threadIdx.x; i < Image::kBytes; i += 16 * blockDim.x) {
    ptx::store_16(bytes + i, ptx::load_16(a + i));
    ptx::store_16(bytes + Image::kBytes + i, ptx::load_16(b + i));
  }
  fence_async();
  __syncthreads();
  Accumulator<kN> sums;
  wgmma_fence(sums);
  for (int i = 0; i < times; ++i)
    wgmma<kN, kMajorA, kMajorB>(sums, matrix_descriptor(bytes, by.leading_a, by.stride_a, swizzle_a),
                                matrix_descriptor(bytes + Image::kBytes, by.leading_b, by.stride_b, swizzle_b), i > 0);
  wgmma_commit();
  wgmma_wait<0>(sums);
  for (int i = 0; i < kN / 2; ++i) d[threadIdx.x * kN / 2 + i] = sums[i];
}

/// The same with A from registers: element (row, k) is 1 if it is `one`.
template <int kN, Major kMajorB>
__global__ void register_kernel(const unsigned char* b, float* d, Distances by, int one) {
  SLIP_DYNAMIC_SHARED_1024(bytes);
  for (size_t i = 16 * threadIdx.x; i < Image::kBytes; i += 16 * blockDim.x)
    ptx::store_16(bytes + i, ptx::load_16(b + i));
  fence_async();
  __syncthreads();
  // "Register fragments for wgmma .m64nNk16, matrix A": a0, a1, then a2, a3, ... of this thread.
  const int warp = static_cast<int>(threadIdx.x) / 32, group = static_cast<int>(threadIdx.x) % 32 / 4,
            of_group = static_cast<int>(threadIdx.x) % 4;
  const auto value = [&](int i) {
    const int row = 16 * warp + (i < 2 || (i >= 4 && i < 6) ? group : group + 8),
              k = i < 4 ? of_group * 2 + (i & 1) : of_group * 2 + (i & 1) + 8;
    return row * 16 + k == one ? 1.0f : 0.0f;
  };
  uint32_t fragment[4];
  for (int r = 0; r < 4; ++r) fragment[r] = ptx::bf16_pair(value(2 * r), value(2 * r + 1));
  Accumulator<kN> sums;
  wgmma_fence(sums, fragment);
  wgmma_registers<kN, kMajorB>(sums, fragment, matrix_descriptor(bytes, by.leading_b, by.stride_b, Swizzle::b128),
                               false);
  wgmma_commit();
  wgmma_wait<0>(sums);
  for (int i = 0; i < kN / 2; ++i) d[threadIdx.x * kN / 2 + i] = sums[i];
}

/// Loads a box, writes its bytes in shared memory to `image`, and stores it at another place.
template <int kRank>
__global__ void box_kernel(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to,
                           std::array<int, 5> load, std::array<int, 5> store, uint32_t box_bytes,
                           unsigned char* image) {
  SLIP_DYNAMIC_SHARED_1024(bytes);
  Barrier* const loaded = reinterpret_cast<Barrier*>(bytes + Image::kBytes);
  if (threadIdx.x == 0) {
    barrier_init(loaded, 1);
    barrier_init_fence();
    barrier_arrive_expect(loaded, box_bytes);
    tma_load<kRank>(bytes, from, loaded, load[0], load[1], load[2], load[3], load[4]);
  }
  __syncthreads();
  barrier_wait(loaded, 0);
  for (size_t i = 16 * threadIdx.x; i < box_bytes; i += 16 * blockDim.x)
    ptx::store_16(image + i, ptx::load_16(bytes + i));
  if (threadIdx.x > 0) return;
  tma_store<kRank>(to, bytes, store[0], store[1], store[2], store[3], store[4]);
  tma_store_commit();
  tma_store_wait<0>();
}

/// Dense tensors but for a gap of 16 bytes behind each row.
TensorShape shape_of(const DeviceMemory& memory, int rank, const std::array<uint64_t, 5>& sizes,
                     const std::array<uint32_t, 5>& box, Swizzle swizzle) {
  TensorShape shape{.base = memory.data(), .rank = rank, .swizzle = swizzle};
  uint64_t stride = (sizes[0] * 2 + 15) / 16 * 16 + 16;
  for (size_t d = 0; d < static_cast<size_t>(rank); ++d) {
    shape.sizes[d] = sizes[d];
    shape.box[d] = box[d];
    shape.strides_bytes[d] = d == 0 ? 0 : stride;
    if (d > 0) stride *= sizes[d];
  }
  return shape;
}
using Place = std::array<int64_t, 5>;
/// Calls body(place) for every element of a box at `first`, innermost dimension first.
template <typename Body>
void for_box(const TensorShape& shape, const std::array<int, 5>& first, const Body& body) {
  Place at{}, end{};
  for (size_t d = 0; d < 5; ++d) end[d] = d < static_cast<size_t>(shape.rank) ? shape.box[d] : 1;
  for (at[4] = 0; at[4] < end[4]; ++at[4])
    for (at[3] = 0; at[3] < end[3]; ++at[3])
      for (at[2] = 0; at[2] < end[2]; ++at[2])
        for (at[1] = 0; at[1] < end[1]; ++at[1])
          for (at[0] = 0; at[0] < end[0]; ++at[0]) {
            Place place = at;
            for (size_t d = 0; d < 5; ++d) place[d] += d < static_cast<size_t>(shape.rank) ? first[d] : 0;
            body(place);
          }
}
/// The element of the tensor there; null outside.
bfloat16* element_at(const TensorShape& shape, const Place& place) {
  int64_t offset = place[0] * 2;
  for (size_t d = 0; d < static_cast<size_t>(shape.rank); ++d) {
    if (place[d] < 0 || place[d] >= static_cast<int64_t>(shape.sizes[d])) return nullptr;
    if (d > 0) offset += place[d] * static_cast<int64_t>(shape.strides_bytes[d]);
  }
  return reinterpret_cast<bfloat16*>(const_cast<unsigned char*>(static_cast<const unsigned char*>(shape.base)) +
                                     offset);
}

template <int kRank>
void check_boxes(const std::array<uint64_t, 5>& sizes, std::array<uint32_t, 5> box, const std::array<int, 5>& load,
                 const std::array<int, 5>& store, Swizzle swizzle) {
  CAPTURE(kRank, static_cast<int>(swizzle), load[0], load[1]);
  box[0] = span_bytes(swizzle) / 2;
  size_t bytes = (sizes[0] * 2 + 15) / 16 * 16 + 16, box_bytes = 2;
  for (size_t d = 0; d < kRank; ++d) bytes *= d > 0 ? sizes[d] : 1, box_bytes *= box[d];
  DeviceMemory from(bytes, "from"), to(bytes, "to"), image(box_bytes, "image");
  for (size_t i = 0; i < bytes / 2; ++i) as<uint16_t>(from)[i] = static_cast<uint16_t>(i % 30000 + 1);
  const TensorShape from_shape = shape_of(from, kRank, sizes, box, swizzle),
                    to_shape = shape_of(to, kRank, sizes, box, swizzle);
  TensorMap from_map, to_map;
  std::string reason;
  REQUIRE((make_tensor_map(from_map, from_shape, reason) && make_tensor_map(to_map, to_shape, reason)));
  launch(cudaStream_t{}, box_kernel<kRank>, dim3(1), dim3(64), Image::kBytes + 8, from_map, to_map, load, store,
         static_cast<uint32_t>(box_bytes), image.data());
  std::vector<uint16_t> expected(bytes / 2, 0xffff), values;
  size_t at = 0;
  for_box(from_shape, load, [&](const Place& place) {
    const bfloat16* element = element_at(from_shape, place);
    values.push_back(element ? element->bits : 0);
    uint16_t found;
    std::memcpy(&found, image.data() + swizzled_by_table(2 * at++, swizzle), 2);
    REQUIRE(found == values.back());
  });
  at = 0;
  for_box(to_shape, store, [&](const Place& place) {
    const uint16_t value = values[at++];
    if (const bfloat16* element = element_at(to_shape, place))
      expected[static_cast<size_t>(element - as<bfloat16>(to))] = value;
  });
  CHECK(std::memcmp(expected.data(), to.data(), bytes) == 0);
  CHECK((to.intact() && from.intact()));
}

/// "Register fragments for wgmma .m64nNk16, matrix D": the row and column of d[i] in a thread.
std::pair<int, int> place_of_d(int thread, int i) {
  const int warp = thread / 32, group = thread % 32 / 4, of_group = thread % 4;
  const int row = i % 4 < 2 ? group : group + 8;
  return {16 * warp + row, i / 4 * 8 + of_group * 2 + (i & 1)};
}

float small(int seed, int i, int k) { return static_cast<float>((seed + 5 * i + 11 * k) % 9 - 4); }

template <int kN, Major kMajorA, Major kMajorB>
void check_products(Swizzle swizzle_a, Swizzle swizzle_b) {
  CAPTURE(kN, static_cast<int>(kMajorA), static_cast<int>(kMajorB), static_cast<int>(swizzle_a),
          static_cast<int>(swizzle_b));
  // Dense operands, and one 1 in A and in B.
  for (const auto& [one_a, one_b] :
       {std::pair(-1, -1), std::pair(16 * 37 + 9, -1), std::pair(-1, 16 * (kN - 3) + 14)}) {
    const auto left = [&, one = one_a](int i, int k) {
      return one < 0 ? small(1, i, k) : i * 16 + k == one ? 1.0f : 0.0f;
    };
    const auto right = [&, one = one_b](int i, int k) {
      return one < 0 ? small(4, i, k) : i * 16 + k == one ? 1.0f : 0.0f;
    };
    const Image a(64, kMajorA, swizzle_a, left), b(kN, kMajorB, swizzle_b, right);
    DeviceMemory a_memory(Image::kBytes), b_memory(Image::kBytes), d(128 * kN / 2 * 4);
    std::memcpy(a_memory.data(), a.elements.data(), Image::kBytes);
    std::memcpy(b_memory.data(), b.elements.data(), Image::kBytes);
    const Distances by{a.leading_bytes, a.stride_bytes, b.leading_bytes, b.stride_bytes};
    for (int times : {1, 3}) {
      launch(cudaStream_t{}, image_kernel<kN, kMajorA, kMajorB>, dim3(1), dim3(128), 2 * Image::kBytes, a_memory.data(),
             b_memory.data(), as<float>(d), swizzle_a, swizzle_b, by, times);
      for (int thread = 0; thread < 128; ++thread)
        for (int i = 0; i < kN / 2; ++i) {
          const auto [row, column] = place_of_d(thread, i);
          double sum = 0;
          for (int k = 0; k < 16; ++k) sum += static_cast<double>(left(row, k)) * static_cast<double>(right(column, k));
          REQUIRE(static_cast<double>(as<float>(d)[thread * kN / 2 + i]) == sum * times);
        }
    }
  }
}

}  // namespace

TEST_CASE("hopper: the fields of a matrix descriptor are those of the manual") {
  struct Row {
    uint32_t address, leading, stride;
    Swizzle swizzle;
    uint64_t value;
  };
  // Bits 13-0 address / 16, 29-16 leading distance / 16, 45-32 stride / 16, 63-62 swizzle: 1 is 128 bytes, 3 is 32.
  const Row table[] = {{0, 16, 1024, Swizzle::b128, 0x4000'0040'0001'0000},
                       {1024, 128, 256, Swizzle::none, 0x0000'0010'0008'0040},
                       {0x3fff0, 0, 512, Swizzle::b64, 0x8000'0020'0000'3fff},
                       {32, 4096, 256, Swizzle::b32, 0xc000'0010'0100'0002}};
  for (const Row& row : table) CHECK(descriptor_of(row.address, row.leading, row.stride, row.swizzle) == row.value);
}

TEST_CASE("hopper: swizzles are those of the manual's tables") {
  for (Swizzle swizzle : kSwizzles)
    for (uint32_t at = 0; at < 4096; ++at) REQUIRE(swizzled(at, swizzle) == swizzled_by_table(at, swizzle));
}

TEST_CASE("hopper: sums of a warpgroup lie where the manual's table has them") {
  struct Row {
    int thread, d[6][2];
  };
  const Row table[] = {{0, {{0, 0}, {0, 1}, {8, 0}, {8, 1}, {0, 8}, {0, 9}}},
                       {5, {{1, 2}, {1, 3}, {9, 2}, {9, 3}, {1, 10}, {1, 11}}},
                       {31, {{7, 6}, {7, 7}, {15, 6}, {15, 7}, {7, 14}, {7, 15}}},
                       {32, {{16, 0}, {16, 1}, {24, 0}, {24, 1}, {16, 8}, {16, 9}}},
                       {127, {{55, 6}, {55, 7}, {63, 6}, {63, 7}, {55, 14}, {55, 15}}}};
  for (const Row& row : table)
    for (int i = 0; i < 6; ++i) CHECK(place_of_d(row.thread, i) == std::pair(row.d[i][0], row.d[i][1]));
}

TEST_CASE("hopper: products of operands in the manual's layouts equal double") {
  const emulation::Capability hopper(90);
  for (Swizzle swizzle : kSwizzles) {
    check_products<64, Major::k, Major::k>(swizzle, swizzle);
    check_products<64, Major::mn, Major::mn>(swizzle, swizzle);
    check_products<128, Major::k, Major::mn>(swizzle, Swizzle::b128);
    check_products<128, Major::mn, Major::k>(Swizzle::b64, swizzle);
    check_products<32, Major::k, Major::mn>(Swizzle::b32, swizzle);
    check_products<128, Major::mn, Major::k>(Swizzle::none, swizzle);
  }
}

TEST_CASE("hopper: a 1 in each register of A meets its row of B") {
  const emulation::Capability hopper(90);
  const auto right = [](int column, int k) { return static_cast<float>(16 * column % 128 + k); };
  const Image b(64, Major::mn, Swizzle::b128, right);
  DeviceMemory b_memory(Image::kBytes), d(128 * 32 * 4);
  std::memcpy(b_memory.data(), b.elements.data(), Image::kBytes);
  for (int one = 0; one < 64 * 16; one += 7) {
    launch(cudaStream_t{}, register_kernel<64, Major::mn>, dim3(1), dim3(128), Image::kBytes, b_memory.data(),
           as<float>(d), Distances{0, 0, b.leading_bytes, b.stride_bytes}, one);
    for (int thread = 0; thread < 128; ++thread)
      for (int i = 0; i < 32; ++i) {
        const auto [row, column] = place_of_d(thread, i);
        REQUIRE(as<float>(d)[thread * 32 + i] == (row == one / 16 ? right(column, one % 16) : 0.0f));
      }
  }
}

TEST_CASE("hopper: TMA moves boxes of every rank and swizzle; elements outside load as zeros and are not stored") {
  const emulation::Capability hopper(90);
  for (Swizzle swizzle : kSwizzles) {
    check_boxes<2>({100, 40}, {0, 16}, {0, 0}, {0, 8}, swizzle);
    check_boxes<2>({100, 40}, {0, 24}, {-3, -5}, {90, 30}, swizzle);
    check_boxes<2>({100, 40}, {0, 256}, {95, 39}, {3, 1}, swizzle);
    check_boxes<3>({72, 5, 7}, {0, 3, 4}, {70, -1, 5}, {8, 4, 2}, swizzle);
    check_boxes<4>({64, 3, 9, 2}, {0, 1, 8, 1}, {0, 2, -4, 1}, {0, 0, 5, 1}, swizzle);
    check_boxes<5>({65, 2, 3, 4, 2}, {0, 2, 1, 3, 2}, {1, 1, 2, 2, 0}, {2, 0, 1, 3, 1}, swizzle);
  }
  check_boxes<2>({10, 10}, {0, 16}, {500, 500}, {500, 500}, Swizzle::b64);
}
