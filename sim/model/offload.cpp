#include "sim/model/offload.hpp"

#include "sim/base/text.hpp"

namespace moesim::model {

Offload parse_offload(const std::string& text, const std::string& where) {
  Offload offload;
  if (text == "none") return offload;
  for (const std::string_view part : split(text, ',')) {
    offload.add(value_in(offload_names, part, where));
  }
  return offload;
}

std::string name_of(const Offload& offload) {
  return names_of_bits(offload_names, offload.modules);
}

}  // namespace moesim::model
