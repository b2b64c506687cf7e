#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/formats/document.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/uncertainty/software/step_software.hpp"

namespace moesim::uncertainty {
namespace {

constexpr const char* format = "moesim-training-software";

// "fixed-ms" is "fixed_ms" in the document.
std::string key_of(Unknown unknown) {
  std::string key = name_in(unknown_names, unknown);
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

// A document that prices the host says so by the name of its factor.
constexpr const char* priced_host_key = "host_times";

std::string key_of(Unknown unknown, bool prices_host) {
  return unknown == Unknown::host && prices_host ? priced_host_key : key_of(unknown);
}

constexpr std::array exchange_keys = {"inside", "across"};

MeasuredExchanges read_exchanges(const Node& node) {
  MeasuredExchanges found;
  found.rows = node.count("rows");
  const auto range = [&](const char* key, double ExchangeSize::*part) {
    if (!node.has(key)) return;
    const std::vector<Node> ends = node.items(key);
    found.least.*part = ends[0].as_number();
    found.most.*part = ends[1].as_number();
    if (found.least.*part > found.most.*part) node.fail("from the least to the most", key);
  };
  range("bytes", &ExchangeSize::bytes);
  range("gpus", &ExchangeSize::gpus);
  return found;
}

nlohmann::ordered_json exchanges_json(const MeasuredExchanges& measured) {
  nlohmann::ordered_json kind;
  kind["rows"] = measured.rows;
  const auto range = [&](const char* key, double ExchangeSize::*part) {
    if (measured.least.*part > 0) kind[key] = {measured.least.*part, measured.most.*part};
  };
  range("bytes", &ExchangeSize::bytes);
  range("gpus", &ExchangeSize::gpus);
  return kind;
}

void read_fitted(const Node& fitted, StepSoftware& software) {
  software.prices_host = fitted.has(priced_host_key);
  for (const auto& unknown : unknown_names) {
    const std::string key = key_of(unknown.value, software.prices_host);
    double& value = software.unknowns[at(unknown.value)];
    // Documents of version 1, of steps alone, have the first four.
    if (!fitted.has(key)) continue;
    value =
        unknown.value == Unknown::fixed_ms ? fitted.number(key) : std::log(fitted.positive(key));
  }
}

void read_covariance(const Node& root, Covariance& covariance) {
  const std::vector<Node> lines = root.items("covariance");
  for (std::size_t row = 0; row < std::min(lines.size(), unknown_count); ++row) {
    const std::vector<Node> cells = lines[row].items();
    if (cells.size() != lines.size()) root.fail("not a square matrix", "covariance");
    for (std::size_t column = 0; column < cells.size(); ++column) {
      covariance[row][column] = cells[column].as_number();
    }
    if (covariance[row][row] < 0) root.fail("a variance is negative", "covariance");
  }
}

void read_scatters(const Node& root, StepSoftware& software) {
  const auto of = [&](RowKind kind) -> Scatter& {
    return software.scatters[static_cast<std::size_t>(kind)];
  };
  if (!root.has("scatters")) {  // documents of version 1
    of(RowKind::step) = {root.positive("scatter"), root.positive("degrees"), root.count("rows")};
    return;
  }
  const Node scatters = root.at("scatters");
  for (const auto& kind : row_kind_names) {
    if (!scatters.has(kind.name)) continue;
    const Node each = scatters.at(kind.name);
    of(kind.value) = {each.positive("deviation"), each.positive("degrees"),
                      static_cast<int>(each.integer("rows"))};
  }
}

}  // namespace

StepSoftware StepSoftware::load(const std::string& path) {
  const Document document = Document::load(path);
  document.validate("training-software.schema");
  const Node root = document.root();
  StepSoftware software;
  software.name = root.text("name");
  software.source = root.text("source");
  software.machine = root.text("machine");
  software.software = root.text_or("software", "");
  software.models = root.texts("models");
  software.precisions = root.texts("precisions");
  if (root.has("clusters")) software.clusters = root.texts("clusters");
  software.profile = root.text_or("profile", "");
  software.measured.machine = software.machine;
  if (const auto traits = root.find("traits")) {
    for (const std::string& trait : traits->keys()) {
      software.measured.most[trait] = traits->positive(trait);
    }
  }
  if (const auto exchanges = root.find("exchanges")) {
    for (const bool crosses : {false, true}) {
      const auto kind = exchanges->find(exchange_keys[crosses ? 1 : 0]);
      if (kind) software.exchanges[crosses ? 1 : 0] = read_exchanges(*kind);
    }
  }
  read_fitted(root.at("fitted"), software);
  read_covariance(root, software.covariance);
  read_scatters(root, software);
  if (const auto errors = root.find("leave_one_out")) {
    software.median_error = errors->number("median_error");
    software.worst_error = errors->number("worst_error");
  }
  return software;
}

std::string StepSoftware::text() const {
  nlohmann::ordered_json root;
  root["format"] = format;
  root["version"] = prices_host ? 3 : 2;
  root["name"] = name;
  root["source"] = source;
  root["machine"] = machine;
  if (!profile.empty()) root["profile"] = profile;
  if (!software.empty()) root["software"] = software;
  root["models"] = models;
  root["precisions"] = precisions;
  if (!clusters.empty()) root["clusters"] = clusters;
  if (!measured.most.empty()) root["traits"] = measured.most;
  root["rows"] = rows();
  for (const auto& unknown : unknown_names) {
    const double value = unknowns[at(unknown.value)];
    root["fitted"][key_of(unknown.value, prices_host)] =
        unknown.value == Unknown::fixed_ms ? value : std::exp(value);
  }
  root["covariance"] = covariance;
  for (const auto& kind : row_kind_names) {
    const Scatter& each = scatter(kind.value);
    root["scatters"][kind.name] = {
        {"rows", each.rows}, {"deviation", each.deviation}, {"degrees", each.degrees}};
  }
  for (std::size_t kind = 0; kind < exchanges.size(); ++kind) {
    if (exchanges[kind].rows == 0) continue;
    root["exchanges"][exchange_keys[kind]] = exchanges_json(exchanges[kind]);
  }
  if (median_error && worst_error) {
    root["leave_one_out"] = {{"median_error", *median_error}, {"worst_error", *worst_error}};
  }
  return json_text(root, 1) + "\n";
}

}  // namespace moesim::uncertainty
