#include "sim/routing/routers/router_name.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/text.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"

namespace moesim::routing {

namespace {

// The kind with this head; exact matches before prefixes; null: none.
const RouterDescriptor* find_kind(std::string_view head) {
  for (const RouterDescriptor* kind : router_table) {
    if (!kind->head_is_prefix && head == kind->head) return kind;
  }
  for (const RouterDescriptor* kind : router_table) {
    if (kind->head_is_prefix && head.starts_with(kind->head)) return kind;
  }
  return nullptr;
}

std::string_view short_form(const RouterDescriptor& kind) {
  return *kind.short_form != '\0' ? kind.short_form : kind.head;
}

// "topK and gating-dropout".
std::string rectifying_kinds() {
  std::string names;
  for (const RouterDescriptor* kind : router_table) {
    if (!kind->can_rectify) continue;
    names += (names.empty() ? "" : " and ") + std::string(short_form(*kind));
  }
  return names;
}

bool has_head(const RouterSuffix& suffix, std::string_view head) {
  return suffix.head != nullptr && head == suffix.head;
}

void read_rectification(const RouterReading& in, std::string_view suffix, RouterConfig& config) {
  if (!config.can_rectify()) {
    in.refuse(fmt::format("+{} rectifies routes that fail at a full expert, and goes with {} alone",
                          suffix, rectifying_kinds()));
  }
  if (suffix == "fr") {
    if (config.fill_in) in.refuse("+fr is there twice");
    config.fill_in = true;
    return;
  }
  if (config.rectification != Rectification::none) in.refuse("+ir is there twice");
  config.rectification = suffix == "ir@node" ? Rectification::node : Rectification::gpu;
}

void read_suffix(const RouterReading& in, std::string_view suffix, RouterConfig& config) {
  const std::vector<std::string_view> parts = split(suffix, ':');
  const RouterSuffix& own = config.kind->suffix;
  if (has_head(own, parts[0])) return own.read(in, std::span(parts).subspan(1), config);
  for (const RouterDescriptor* kind : router_table) {
    if (has_head(kind->suffix, parts[0])) in.refuse(kind->suffix.elsewhere);
  }
  if (suffix == "fr" || suffix == "ir" || suffix == "ir@node") {
    return read_rectification(in, suffix, config);
  }
  in.refuse(fmt::format("the suffix '+{}' is not known: choose +fr, +ir or +ir@node{}", suffix,
                        own.head != nullptr ? fmt::format(", or +{}", own.head) : ""));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> router_forms(
    bool (*taken)(const RouterDescriptor& kind)) {
  std::vector<std::pair<std::string, std::string>> forms;
  for (const RouterDescriptor* kind : router_table) {
    if (taken == nullptr || taken(*kind)) forms.emplace_back(kind->form, kind->help);
  }
  for (const RouterDescriptor* kind : router_table) {
    if (kind->suffix.head == nullptr || (taken != nullptr && !taken(*kind))) continue;
    forms.emplace_back(kind->suffix.form, kind->suffix.help);
  }
  forms.emplace_back("+fr", fmt::format("behind {}: choice k + 1 fills free slots (Fill-in "
                                        "Rectification)",
                                        rectifying_kinds()));
  forms.emplace_back("+ir, +ir@node",
                     "the same: a token that lost a route goes to the best expert on its own GPU, "
                     "or in its NVLink domain (Intra-GPU Rectification); top2+fr+ir has both");
  return forms;
}

std::string router_names() {
  std::string names;
  for (const RouterDescriptor* kind : router_table) {
    names += (names.empty() ? "" : ", ") + std::string(kind->form);
  }
  names += fmt::format("; behind {} any of +fr and +ir or +ir@node, as in top2+fr+ir",
                       rectifying_kinds());
  for (const RouterDescriptor* kind : router_table) {
    if (kind->suffix.head == nullptr) continue;
    names += fmt::format("; behind {} {}", short_form(*kind), kind->suffix.form);
  }
  return names;
}

RouterConfig parse_router(std::string_view name, int top_k, int usual_k) {
  const std::vector<std::string_view> with_suffixes = split(name, '+');
  const RouterReading in{name, split(with_suffixes[0], ':'), top_k, usual_k};
  const RouterDescriptor* kind = find_kind(in.parts[0]);
  if (kind == nullptr) in.refuse_unknown();
  RouterConfig config;
  config.kind = kind;
  kind->read(in, config);
  config.drops = config.kind->capacity == CapacityRule::by_factor;
  if (config.is_dense() && with_suffixes.size() > 1) {
    in.refuse("a dense model has nothing to rectify");
  }
  for (std::size_t part = 1; part < with_suffixes.size(); ++part) {
    read_suffix(in, with_suffixes[part], config);
  }
  config.capacity_factor = Decimal(config.top_k);
  return config;
}

}  // namespace moesim::routing
