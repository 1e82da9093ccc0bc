// SPDX-License-Identifier: Apache-2.0
// As standard.h, with the vector intrinsics where a set has them.

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "standard.h"
