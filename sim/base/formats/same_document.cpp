#include "sim/base/formats/same_document.hpp"

#include <nlohmann/json.hpp>

#include "sim/base/error.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"

namespace moesim {

bool is_one_document(const std::string& kind, const std::string& one, const std::string& other) {
  if (one == other) return true;
  try {
    const auto content = [&](const std::string& name) {
      return Document::load(find_document(kind, name)).root().json();
    };
    return content(one) == content(other);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace moesim
