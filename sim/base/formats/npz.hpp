#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/formats/npy.hpp"

namespace moesim {

// NumPy's .npz files: zip archives of .npy members, stored (numpy.savez) or deflated
// (numpy.savez_compressed).
class NpzArchive {
 public:
  // Reads the directory. Throws UsageError naming the file: no zip archive, cut short, encrypted,
  // a member of 4 GiB or more.
  static NpzArchive load(const std::string& path);

  std::vector<std::string> names() const;  // without ".npy", in the order of the archive
  // Throws UsageError naming the file and the members there are, or what is wrong with the member
  // (checksum, packing, array); Error for a deflated one in a build without zlib.
  NpyArray array(const std::string& name) const;

 private:
  struct Member {
    std::string name;
    int method = 0;
    std::uint32_t checksum = 0;
    std::size_t packed = 0, size = 0, header_at = 0;
  };
  std::string unpacked(const Member& member) const;

  std::string name_;
  std::string bytes_;
  std::vector<Member> members_;
};

}  // namespace moesim
