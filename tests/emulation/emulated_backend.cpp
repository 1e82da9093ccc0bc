// SPDX-License-Identifier: Apache-2.0
// Tests of ops on the emulated device, with the threads of a block in ascending and in descending order.

#include <cstring>

#include "tests/kernels/common/backend.h"

namespace slipstream::test {

const Backend backend = Backend::emulated;

void read_device(void* host, const void* device, size_t size_bytes) { std::memcpy(host, device, size_bytes); }
void write_device(void* device, const void* host, size_t size_bytes) { std::memcpy(device, host, size_bytes); }

LaunchContext a_context() {
  LaunchContext context;
  context.kind = DeviceKind::cuda;
  return context;
}

void for_machines(const std::function<void(LaunchContext&)>& body) {
  for (bool descending : {false, true}) {
    emulation::set_descending(descending);
    LaunchContext context = a_context();
    INFO((descending ? "threads descending" : "threads ascending"));
    body(context);
  }
  emulation::set_descending(false);
}

int machine_set() { return 0; }

}  // namespace slipstream::test
