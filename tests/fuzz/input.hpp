#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

// What each fuzzing target defines: one input, of any bytes. It must return; an Error of moesim is
// an answer, every other exception or signal a finding.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace moesim::fuzz {

// A folder of this process in memory for readers that take the name of a file.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;  // a copy would remove the folder twice
  Folder& operator=(const Folder&) = delete;

  // Writes a file of it, name "input.json" say; its path.
  std::string put(const std::string& name, std::string_view content) const;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// The name of a log: its readers take what ends in .json for JSON.
inline std::string log_name(std::string_view text) {
  return text.starts_with('{') ? "input.json" : "input.log";
}

// The parts of an input between lines that hold "==" alone: readers of several files or words.
std::string_view take_part(std::string_view& rest);

}  // namespace moesim::fuzz
