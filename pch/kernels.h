// SPDX-License-Identifier: Apache-2.0
// As standard.h, with the vector intrinsics.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "standard.h"
