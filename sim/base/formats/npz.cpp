#include "sim/base/formats/npz.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/shipped.hpp"
#ifdef MOESIM_ZLIB
#include <zlib.h>
#endif

// The layout is PKWARE's APPNOTE 6.3: members, then a directory of them, then where it begins.
namespace moesim {

namespace {

constexpr std::string_view directory_end_mark = "PK\x05\x06";
constexpr std::string_view directory_mark = "PK\x01\x02";
constexpr std::string_view member_mark = "PK\x03\x04";
constexpr std::size_t directory_end_size = 22, directory_size = 46, header_size = 30;
constexpr std::uint32_t elsewhere = 0xffffffff;  // the figure stands in a zip64 extension
constexpr int stored = 0, deflated = 8;

[[noreturn]] void refuse(const std::string& name, const std::string& reason) {
  throw BrokenDocument(fmt::format("{}: {}", name, reason));
}

// A record that begins with `mark` at `at`; refused where the archive does not hold it.
std::string_view record(const std::string& name, std::string_view bytes, std::size_t at,
                        std::string_view mark, std::size_t size) {
  if (at > bytes.size() || bytes.size() - at < size || !bytes.substr(at).starts_with(mark)) {
    refuse(name, "this zip archive is damaged or cut short");
  }
  return bytes.substr(at, size);
}

std::uint32_t number(std::string_view bytes, std::size_t at, std::size_t width) {
  std::uint32_t value = 0;
  for (std::size_t byte = width; byte > 0; --byte) {
    value = value << 8 | static_cast<unsigned char>(bytes[at + byte - 1]);
  }
  return value;
}

#ifdef MOESIM_ZLIB
std::string inflated(const std::string& name, std::string_view packed, std::size_t size) {
  // A match of 258 bytes takes at least 2 bits (RFC 1951): no honest member claims more.
  constexpr std::size_t most_per_byte = 1032;
  if (size > most_per_byte * (packed.size() + 1)) {
    refuse(name, fmt::format("{} bytes that unpack to {} cannot be", packed.size(), size));
  }
  z_stream stream{};
  // Negative: a bare stream, without zlib's header.
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw Error(name + ": zlib cannot be started");
  std::string text(size, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(size);
  const int code = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  if (code != Z_STREAM_END || stream.total_out != size) refuse(name, "its packed data is damaged");
  return text;
}

bool checks(const std::string& text, std::uint32_t checksum) {
  return crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()) == checksum;
}
#else
std::string inflated(const std::string& name, std::string_view, std::size_t) {
  throw Error(name +
              ": this build has no zlib: save it with numpy.savez (not packed) or build with "
              "zlib1g-dev installed");
}

bool checks(const std::string&, std::uint32_t) { return true; }
#endif

}  // namespace

NpzArchive NpzArchive::load(const std::string& path) {
  NpzArchive archive;
  archive.name_ = path;
  archive.bytes_ = read_file(path);
  const std::string_view bytes = archive.bytes_;
  if (!bytes.starts_with("PK")) refuse(path, "this is no .npz file (no zip signature)");
  const std::size_t end_at = bytes.rfind(directory_end_mark);
  if (end_at == std::string_view::npos) refuse(path, "this zip archive is damaged or cut short");
  const std::string_view end = record(path, bytes, end_at, directory_end_mark, directory_end_size);
  const std::uint32_t count = number(end, 10, 2);
  std::size_t at = number(end, 16, 4);
  for (std::uint32_t index = 0; index < count; ++index) {
    const std::string_view entry = record(path, bytes, at, directory_mark, directory_size);
    const std::size_t name_length = number(entry, 28, 2);
    Member member;
    member.name = std::string(bytes.substr(at + directory_size, name_length));
    member.method = static_cast<int>(number(entry, 10, 2));
    member.checksum = number(entry, 16, 4);
    member.packed = number(entry, 20, 4);
    member.size = number(entry, 24, 4);
    member.header_at = number(entry, 42, 4);
    if ((number(entry, 8, 2) & 1) != 0) refuse(path, member.name + " is encrypted");
    if (member.packed == elsewhere || member.size == elsewhere || member.header_at == elsewhere) {
      refuse(path, member.name + " lies beyond 4 GiB: save its arrays as .npy files");
    }
    at += directory_size + name_length + number(entry, 30, 2) + number(entry, 32, 2);
    if (!member.name.ends_with(".npy")) continue;
    member.name.resize(member.name.size() - 4);
    archive.members_.push_back(std::move(member));
  }
  return archive;
}

std::vector<std::string> NpzArchive::names() const {
  std::vector<std::string> names;
  for (const Member& member : members_) names.push_back(member.name);
  return names;
}

std::string NpzArchive::unpacked(const Member& member) const {
  const std::string name = fmt::format("{}: array {}", name_, member.name);
  const std::string_view header = record(name, bytes_, member.header_at, member_mark, header_size);
  const std::size_t at =
      member.header_at + header_size + number(header, 26, 2) + number(header, 28, 2);
  if (at > bytes_.size() || bytes_.size() - at < member.packed) {
    refuse(name, "it is cut short");
  }
  const std::string_view packed = std::string_view(bytes_).substr(at, member.packed);
  std::string text;
  if (member.method == stored && member.packed == member.size) {
    text = packed;
  } else if (member.method == deflated) {
    text = inflated(name, packed, member.size);
  } else {
    refuse(name, fmt::format("packed by method {}, which NumPy does not use", member.method));
  }
  if (!checks(text, member.checksum)) refuse(name, "its checksum is wrong: the file is damaged");
  return text;
}

NpyArray NpzArchive::array(const std::string& name) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const Member& member) { return member.name == name; });
  if (found == members_.end()) {
    refuse(name_, fmt::format("no array '{}'{}; it holds {}", name, suggestion(name, names()),
                              fmt::join(names(), ", ")));
  }
  return NpyArray::parse(unpacked(*found), fmt::format("{}: array {}", name_, name));
}

}  // namespace moesim
