// SPDX-License-Identifier: Apache-2.0
#pragma once
// The emulated counterpart of kernels/cuda/shared.h: every element access is checked for bounds, contents and races.

#include <cuda_runtime.h>

namespace slipstream::kernels {

template <typename T>
class Shared {
 public:
  /// An element: reading converts, writing assigns.
  class Element {
   public:
    Element(T* p, const std::source_location& at) : p_(p), at_(at) {}
    Element(const Element&) = default;
    operator T() const {  // NOLINT: implicit, as T& would be
      emulation::shared_read(p_, sizeof(T), at_);
      return *p_;
    }
    const Element& operator=(T value) const {
      emulation::shared_write(p_, sizeof(T), at_);
      *p_ = value;
      return *this;
    }
    const Element& operator=(const Element& other) const { return *this = static_cast<T>(other); }
    const Element& operator+=(T value) const { return *this = static_cast<T>(*this) + value; }

   private:
    T* p_;
    std::source_location at_;
  };

  template <int kElems>
  explicit Shared(T (&storage)[kElems]) : data_(storage), elems_(kElems) {
    emulation::declare_shared(storage, sizeof storage);
  }
  Shared(unsigned char* dynamic, int elems) : data_(reinterpret_cast<T*>(dynamic)), elems_(elems) {}

  /// An index with its source location, as operator[] takes no second argument.
  struct Index {
    template <typename I>
    Index(I i_, const std::source_location& at_ = std::source_location::current())
        : i(static_cast<int64_t>(i_)), at(at_) {}  // NOLINT
    int64_t i;
    std::source_location at;
  };
  Element operator[](Index index) const {
    check(index.i, index.at);
    return {data_ + index.i, index.at};
  }
  T* at(Index index) const {
    check(index.i, index.at);
    return data_ + index.i;
  }

 private:
  void check(int64_t i, const std::source_location& at) const {
    if (i < 0 || i >= elems_)
      emulation::fail(emulation::source::kSharedView, "element " + std::to_string(i) + " of a shared array of " +
                                                          std::to_string(elems_) + ", at line " +
                                                          std::to_string(at.line()));
  }
  T* data_;
  int64_t elems_;
};

}  // namespace slipstream::kernels

#define SLIP_DYNAMIC_SHARED(name) unsigned char* const name = ::slipstream::emulation::dynamic_shared()
