// SPDX-License-Identifier: Apache-2.0
// The precompiled header of the CPU kernels: the standard headers and the vector intrinsics.

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "engine/base/pch.h"
