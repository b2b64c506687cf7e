#pragma once

#include <string>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/model/model.hpp"
#include "tests/support/catch.hpp"

namespace moesim::model {

inline const std::string hugging_face_folder =
    std::string(MOESIM_SOURCE_DIR) + "/tests/data/hugging_face/";

inline Model load(const std::string& name) {
  return Model::load(hugging_face_folder + name + ".json");
}

// A file with one piece of text exchanged for another.
inline Model changed(const std::string& name, const std::string& from, const std::string& to) {
  std::string text = read_file(hugging_face_folder + name + ".json");
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return Model::read(Document::parse(text.replace(at, from.size(), to), "config.json"));
}

// The message for it.
inline std::string refusal(const std::string& name, const std::string& from,
                           const std::string& to) {
  try {
    changed(name, from, to);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace moesim::model
