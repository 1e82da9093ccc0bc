// SPDX-License-Identifier: Apache-2.0
// Drives zlib and libzstd. Only this file includes them.

#include "engine/data/datasets/containers.h"

#include <zlib.h>
#include <zstd.h>

#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include "engine/base/check.h"

namespace slipstream::data {
namespace {

constexpr size_t kPackedBytes = 128 << 10;

/// Packed bytes that wait to be unpacked.
class Packed {
 public:
  Packed(files::ReadBytes read, std::string path)
      : read_(std::move(read)), path_(std::move(path)), bytes_(kPackedBytes, '\0') {}

  /// Returns the bytes that follow, or nothing at the end of the file.
  std::string_view next() {
    if (rest_.empty()) {
      const int64_t got = read_(bytes_.data(), std::ssize(bytes_));
      rest_ = std::string_view(bytes_).substr(0, static_cast<size_t>(got));
    }
    return rest_;
  }
  void take(size_t size_bytes) {
    rest_.remove_prefix(size_bytes);
    taken_bytes_ += static_cast<int64_t>(size_bytes);
  }
  [[noreturn]] void fail_at_end() const {
    throw DataError("[data] {} ends at byte {} within its packed data. It was cut. Copy it again.", files::shown(path_),
                    taken_bytes_);
  }
  [[noreturn]] void fail(std::string_view reason) const {
    throw DataError("[data] {} is damaged at or before byte {}: {}. Copy it again.", files::shown(path_), taken_bytes_,
                    reason);
  }

 private:
  files::ReadBytes read_;
  std::string path_;
  std::string bytes_;
  std::string_view rest_;
  int64_t taken_bytes_ = 0;
};

class Gzip {
 public:
  explicit Gzip(Packed packed) : packed_(std::move(packed)) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    if (inflateInit2(&stream_, kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;
  ~Gzip() { inflateEnd(&stream_); }

  int64_t read(char* out, int64_t size_bytes) {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(std::min<int64_t>(size_bytes, 1 << 30));
    const uInt wanted = stream_.avail_out;
    while (stream_.avail_out > 0) {
      const std::string_view packed = packed_.next();
      if (packed.empty() && in_member_) packed_.fail_at_end();
      if (packed.empty()) break;
      if (!in_member_) {
        if (packed.front() == '\0') {  // tapes and disks pad their blocks with zeros
          packed_.take(1);
          continue;
        }
        inflateReset(&stream_);
        in_member_ = true;
      }
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
      stream_.avail_in = static_cast<uInt>(packed.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      packed_.take(packed.size() - stream_.avail_in);
      if (result == Z_STREAM_END)
        in_member_ = false;
      else if (result != Z_OK && result != Z_BUF_ERROR)
        packed_.fail(stream_.msg != nullptr ? stream_.msg : "gzip");
    }
    return wanted - stream_.avail_out;
  }

 private:
  Packed packed_;
  z_stream stream_{};
  bool in_member_ = true;
};

class Zstd {
 public:
  explicit Zstd(Packed packed) : packed_(std::move(packed)), stream_(ZSTD_createDStream()) {
    if (!stream_) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, 31);  // the limit that zstd --long=31 sets
  }

  int64_t read(char* out, int64_t size_bytes) {
    ZSTD_outBuffer to{.dst = out, .size = static_cast<size_t>(size_bytes), .pos = 0};
    while (to.pos < to.size) {
      const std::string_view packed = packed_.next();
      if (packed.empty() && !in_frame_) break;
      ZSTD_inBuffer from{.src = packed.data(), .size = packed.size(), .pos = 0};
      const size_t before = to.pos, result = ZSTD_decompressStream(stream_.get(), &to, &from);
      packed_.take(from.pos);
      if (ZSTD_isError(result) != 0) packed_.fail(ZSTD_getErrorName(result));
      in_frame_ = result != 0;
      if (packed.empty() && in_frame_ && to.pos == before) packed_.fail_at_end();
    }
    return static_cast<int64_t>(to.pos);
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  Packed packed_;
  std::unique_ptr<ZSTD_DStream, Free> stream_;
  bool in_frame_ = false;
};

template <typename Unpacker>
files::ReadBytes reader_of(Packed packed) {
  return [unpacker = std::make_shared<Unpacker>(std::move(packed))](char* out, int64_t size_bytes) {
    return unpacker->read(out, size_bytes);
  };
}

}  // namespace

files::ReadBytes unpacked(Packing packing, files::ReadBytes packed, const std::string& path) {
  switch (packing) {
    case Packing::gzip:
      return reader_of<Gzip>(Packed(std::move(packed), path));
    case Packing::zstd:
      return reader_of<Zstd>(Packed(std::move(packed), path));
    case Packing::none:
      break;
  }
  return packed;
}

}  // namespace slipstream::data
