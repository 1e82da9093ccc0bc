// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the tests of kernels on the emulated device, and on a card (tests/gpu), share: operands in guarded device memory, and both orders of the threads.

#include "tests/emulation/emulator.h"
#include "tests/kernels/norms/op_test.h"

namespace slipstream::test {

/// Called before the host looks at device memory. Nothing to do where kernels run at once; tests/gpu waits for the card.
inline void (*before_the_host_looks)() = [] {};

/// A tensor in memory of the emulated device (on a card, in tests/gpu: of managed memory). `shift` elements before it break the alignment to 16 bytes.
class OnDevice {
 public:
  OnDevice(int64_t elems, DType dtype, const std::string& name, int64_t shift = 0)
      : memory_(static_cast<size_t>(bytes_of(elems + shift, dtype)), name), dtype_(dtype), elems_(elems), shift_(shift) {}
  OnDevice(const Doubles& values, DType dtype, const std::string& name, int64_t shift = 0)
      : OnDevice(static_cast<int64_t>(values.size()), dtype, name, shift) {
    set(values);
  }
  OnDevice(const std::vector<int32_t>& values, const std::string& name) : OnDevice(static_cast<int64_t>(values.size()), DType::i32, name) {
    std::memcpy(data(), values.data(), values.size() * 4);
  }
  void set(const Doubles& values) {
    Tensor host(values, dtype_);
    std::memcpy(data<void>(), host.data(), static_cast<size_t>(bytes_of(elems_, dtype_)));
  }
  template <typename T = void>
  T* data(int64_t elems = 0) const {
    before_the_host_looks();
    return reinterpret_cast<T*>(memory_.data() + bytes_of(shift_ + elems, dtype_));
  }
  Doubles doubles() const {
    Tensor host(elems_, dtype_);
    std::memcpy(host.data(), data<void>(), static_cast<size_t>(bytes_of(elems_, dtype_)));
    return host.doubles();
  }
  std::vector<uint8_t> bytes() const {
    const auto* begin = data<uint8_t>();
    return {begin, begin + bytes_of(elems_, dtype_)};
  }
  /// Nothing beyond the tensor, nor before it, was written.
  bool intact() const {
    before_the_host_looks();
    const unsigned char* begin = memory_.data();
    return memory_.intact() && std::all_of(begin, begin + bytes_of(shift_, dtype_), [](unsigned char byte) { return byte == 0xff; });
  }

 private:
  emulation::DeviceMemory memory_;
  DType dtype_;
  int64_t elems_, shift_;
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
