#include "sim/model/memory/offload.hpp"

#include <fmt/format.h>

#include <vector>

#include "sim/base/repeated.hpp"
#include "sim/base/text.hpp"

namespace moesim::model {

Offload parse_offload(const std::string& text, const std::string& where) {
  Offload offload;
  if (text == "none") return offload;
  const std::vector<std::string_view> modules = split(text, ',');
  for (const std::string_view module : modules) {
    offload.add(value_in(offload_names, module, where));
  }
  refuse_repeated(modules, where);
  return offload;
}

std::string name_of(const Offload& offload) {
  return names_of_bits(offload_names, offload.modules);
}

std::optional<std::string> offload_refusal(const Offload& offload, const Recompute& recompute) {
  if (offload.modules == 0 || recompute.full == FullRecompute::none) return std::nullopt;
  return fmt::format(
      "--offload {} with --recompute {}: only the inputs of layers are kept then: recompute "
      "modules, such as layernorm,moe_act",
      name_of(offload), name_of(recompute));
}

}  // namespace moesim::model
