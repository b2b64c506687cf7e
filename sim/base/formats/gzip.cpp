#include "sim/base/formats/gzip.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#ifdef MOESIM_ZLIB
#include <zlib.h>
#endif

namespace moesim {

namespace {

#ifdef MOESIM_ZLIB
std::string unpack(const std::string& path) {
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  const std::unique_ptr<gzFile_s, Close> file(gzopen(path.c_str(), "rb"));
  if (!file) throw UsageError(fmt::format("{}: cannot be read", path));
  std::string text;
  std::array<char, 1 << 16> block{};
  while (true) {
    const int count = gzread(file.get(), block.data(), static_cast<unsigned>(block.size()));
    if (count < 0) break;
    if (text.size() + static_cast<std::size_t>(count) > most_unpacked_bytes) {
      throw UsageError(fmt::format("{}: it unpacks to more than {} MiB: cut it, or unpack it first",
                                   path, most_unpacked_bytes >> 20));
    }
    text.append(block.data(), static_cast<std::size_t>(count));
    if (count < static_cast<int>(block.size())) break;
  }
  int code = Z_OK;
  const char* reason = gzerror(file.get(), &code);
  if (code != Z_OK && code != Z_STREAM_END) {
    throw Error(fmt::format("{}: cannot be unpacked: {}", path, reason));
  }
  return text;
}

std::string pack(const std::string& text) {
  z_stream stream{};
  constexpr int gzip_window = 15 + 16;  // zlib.h: 16 more for gzip's heading, without a time
  constexpr int usual_memory = 8;
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, gzip_window, usual_memory,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    throw Error("zlib: deflateInit2 failed: out of memory?");
  }
  std::string result;
  std::array<char, 1 << 16> block{};
  std::size_t taken = 0;
  int code = Z_OK;
  while (code == Z_OK) {
    const std::size_t count = std::min<std::size_t>(text.size() - taken, block.size());
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data() + taken));
    stream.avail_in = static_cast<uInt>(count);
    taken += count;
    do {
      stream.next_out = reinterpret_cast<Bytef*>(block.data());
      stream.avail_out = static_cast<uInt>(block.size());
      code = deflate(&stream, taken == text.size() ? Z_FINISH : Z_NO_FLUSH);
      result.append(block.data(), block.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  }
  deflateEnd(&stream);
  if (code != Z_STREAM_END) throw Error("zlib: deflate failed");
  return result;
}
#else
std::string pack(const std::string&) {
  throw Error("this build has no zlib: give a name without .gz, or build with zlib1g-dev");
}

std::string unpack(const std::string& path) {
  throw Error(
      fmt::format("{}: this build has no zlib: unpack the file (gunzip -k) or build with "
                  "zlib1g-dev installed",
                  path));
}
#endif

}  // namespace

std::string read_gzip(const std::string& path) { return unpack(path); }

std::string packed(const std::string& text) { return pack(text); }

std::string read_plain_or_packed(const std::string& path) {
  if (std::filesystem::exists(path)) return read_file(path);
  const std::string packed = path + ".gz";
  if (std::filesystem::exists(packed)) return unpack(packed);
  throw UsageError(fmt::format("{}: no such file, nor {}", path, packed));
}

}  // namespace moesim
