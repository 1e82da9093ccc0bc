// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by the tests of kernels on the emulated device and on a GPU (tests/gpu): operands in guarded device memory,
// and both orders of the threads.

#include <cstdlib>

#include "tests/emulation/emulator.h"
#include "tests/kernels/common/op_test.h"

namespace slipstream::test {

/// Access of the host to device memory: direct if emulated; tests/gpu copies from and to the GPU.
struct HostAccess {
  void (*read)(void* host, const void* device, size_t size_bytes) = [](void* host, const void* device, size_t n) {
    std::memcpy(host, device, n);
  };
  void (*write)(void* device, const void* host, size_t size_bytes) = [](void* device, const void* host, size_t n) {
    std::memcpy(device, host, n);
  };
};
inline HostAccess host_access;
inline bool on_card = false;  // true in tests/gpu: sizes need not be small there

/// A tensor in device memory. `shift` elements of offset break its alignment to 16 bytes.
class OnDevice {
 public:
  OnDevice(int64_t elems, DType dtype, const std::string& name, int64_t shift = 0)
      : memory_(static_cast<size_t>(bytes_of(elems, dtype)), name, static_cast<size_t>(bytes_of(shift, dtype))),
        dtype_(dtype),
        elems_(elems) {}
  OnDevice(const Doubles& values, DType dtype, const std::string& name, int64_t shift = 0)
      : OnDevice(static_cast<int64_t>(values.size()), dtype, name, shift) {
    set(values);
  }
  OnDevice(const std::vector<int32_t>& values, const std::string& name)
      : OnDevice(static_cast<int64_t>(values.size()), DType::i32, name) {
    host_access.write(data(), values.data(), values.size() * 4);
  }
  void set(const Doubles& values) {
    Tensor host(values, dtype_);
    host_access.write(data(), host.data(), static_cast<size_t>(bytes_of(elems_, dtype_)));
  }
  /// For kernels; the host must not follow it.
  template <typename T = void>
  T* data(int64_t elems = 0) const {
    return reinterpret_cast<T*>(memory_.data() + bytes_of(elems, dtype_));
  }
  Doubles doubles() const {
    Tensor host(elems_, dtype_);
    host_access.read(host.data(), data(), static_cast<size_t>(bytes_of(elems_, dtype_)));
    return host.doubles();
  }
  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> bytes(static_cast<size_t>(bytes_of(elems_, dtype_)));
    host_access.read(bytes.data(), data(), bytes.size());
    return bytes;
  }
  /// No memory after or before the tensor was written.
  bool intact() const { return memory_.intact(); }

 private:
  emulation::DeviceMemory memory_;
  DType dtype_;
  int64_t elems_;
};

/// While it lives, attention backward with heads of 64 takes 128 queries at a time on sm_90a.
class Queries128 {
 public:
  Queries128() { ::setenv("SLIPSTREAM_ATTENTION_QUERIES", "128", 1); }
  ~Queries128() { ::unsetenv("SLIPSTREAM_ATTENTION_QUERIES"); }
  Queries128(const Queries128&) = delete;
  Queries128& operator=(const Queries128&) = delete;
};

inline LaunchContext cuda_context() {
  LaunchContext context;
  context.kind = DeviceKind::cuda;
  return context;
}

/// Calls body(context, label) with the threads of a block in ascending and in descending order.
template <typename Body>
void for_orders(const Body& body) {
  for (bool descending : {false, true}) {
    emulation::set_descending(descending);
    LaunchContext context = cuda_context();
    INFO((descending ? "threads descending" : "threads ascending"));
    body(context);
  }
  emulation::set_descending(false);
}

}  // namespace slipstream::test
