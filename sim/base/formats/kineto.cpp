#include "sim/base/formats/kineto.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/gzip.hpp"
#include "sim/base/formats/json_text.hpp"

namespace moesim {

nlohmann::json trace_events(const std::string& file) {
  const std::string text = file.ends_with(".gz") ? read_gzip(file) : read_file(file);
  nlohmann::json document = parse_json(text, file);
  if (document.is_object() && document.contains("traceEvents")) {
    return std::move(document["traceEvents"]);
  }
  if (!document.is_array()) {
    throw UsageError(fmt::format("{}: no \"traceEvents\": this is no Chrome trace", file));
  }
  return document;
}

std::string argument_text(const nlohmann::json& arguments, const char* key) {
  if (!arguments.is_object()) return {};
  const auto found = arguments.find(key);
  if (found == arguments.end()) return {};
  return found->is_string() ? found->get<std::string>() : json_text(*found);
}

}  // namespace moesim
