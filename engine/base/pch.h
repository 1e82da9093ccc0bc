// SPDX-License-Identifier: Apache-2.0
// The standard headers that most sources include, parsed once per library. Each source still includes what it uses, so
// that -Db_pch=false builds without this file.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>
