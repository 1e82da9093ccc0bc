// SPDX-License-Identifier: Apache-2.0
#pragma once
// The devices on which the laws of an op are tested. Tests are compiled once and linked with each backend:
//   - cpu (cpu_backend.cpp): every instruction set, by 1, 2 and 3 threads;
//   - emulated (tests/emulation/emulated_backend.cpp): the CUDA sources on the emulated device, its threads in both
//   orders;
//   - gpu (tests/gpu/cuda/card.cpp): a GPU.
// The tag [cuda] marks a case that only the two others run, [.][cpu] one of the CPU alone: hidden, because a GPU's
// programs run without arguments (scripts/gpu_parts.sh).

#include <cstdlib>
#include <functional>

#include "tests/emulation/emulator.h"
#include "tests/kernels/common/op_test.h"

namespace slipstream::test {

enum class Backend { cpu, emulated, gpu };
/// The backend of this program.
extern const Backend backend;
inline bool on_cpu() { return backend == Backend::cpu; }
inline bool on_gpu() { return backend == Backend::gpu; }

/// Access of the host to device memory.
void read_device(void* host, const void* device, size_t size_bytes);
void write_device(void* device, const void* host, size_t size_bytes);

/// A context for one call: of one thread, or of the device.
LaunchContext a_context();
/// Calls body(context) for every instruction set and number of threads, or both orders of the device's threads. A
/// failed check names them.
void for_machines(const std::function<void(LaunchContext&)>& body);
/// The instruction set that for_machines() is at, from 0 on; 0 on other devices.
int machine_set();

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
    write_device(data(), values.data(), values.size() * 4);
  }
  void set(const Doubles& values) {
    Tensor host(values, dtype_);
    write_device(data(), host.data(), static_cast<size_t>(bytes_of(elems_, dtype_)));
  }
  /// For kernels; the host must not follow it.
  template <typename T = void>
  T* data(int64_t elems = 0) const {
    return reinterpret_cast<T*>(memory_.data() + bytes_of(elems, dtype_));
  }
  Doubles doubles() const {
    Tensor host(elems_, dtype_);
    read_device(host.data(), data(), static_cast<size_t>(bytes_of(elems_, dtype_)));
    return host.doubles();
  }
  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> bytes(static_cast<size_t>(bytes_of(elems_, dtype_)));
    read_device(bytes.data(), data(), bytes.size());
    return bytes;
  }
  /// No memory after or before the tensor was written.
  bool intact() const { return memory_.intact(); }

 private:
  emulation::DeviceMemory memory_;
  DType dtype_;
  int64_t elems_;
};

/// Memory of the device with any elements, written and read by the host.
template <typename T>
class Held {
 public:
  explicit Held(const std::vector<T>& values, const std::string& name = "values")
      : memory_(values.size() * sizeof(T), name), count_(values.size()) {
    set(values);
  }
  void set(const std::vector<T>& values) { write_device(memory_.data(), values.data(), count_ * sizeof(T)); }
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  std::vector<T> values() const {
    std::vector<T> values(count_);
    read_device(values.data(), memory_.data(), count_ * sizeof(T));
    return values;
  }
  bool intact() const { return memory_.intact(); }

 private:
  emulation::DeviceMemory memory_;
  size_t count_;
};

/// Results that depend neither on the number of threads nor on their order. Instruction sets may have their own.
template <typename Result>
class Same {
 public:
  /// Is this the result of the first call with this instruction set?
  bool operator()(Result result) {
    if (set_ == machine_set()) return result == first_;
    set_ = machine_set(), first_ = std::move(result);
    return true;
  }

 private:
  int set_ = -1;
  Result first_;
};
class SameBits : Same<std::vector<uint8_t>> {
 public:
  bool operator()(const OnDevice& tensor) { return Same::operator()(tensor.bytes()); }
};

/// While it lives, attention backward with heads of 64 takes 128 queries at a time on sm_90a.
class Queries128 {
 public:
  Queries128() { ::setenv("SLIPSTREAM_ATTENTION_QUERIES", "128", 1); }
  ~Queries128() { ::unsetenv("SLIPSTREAM_ATTENTION_QUERIES"); }
  Queries128(const Queries128&) = delete;
  Queries128& operator=(const Queries128&) = delete;
};

}  // namespace slipstream::test
