#include "sim/profile/software_document.hpp"

#include <nlohmann/json.hpp>
#include "sim/base/formats/json_text.hpp"

namespace moesim::profile {
namespace {

constexpr const char* format = "moesim-software";
constexpr int version_without_fit = 1;
constexpr int version_with_fit = 2;

SoftwareFit read_fit(const Node& node) {
  SoftwareFit fit;
  fit.machine = node.text("machine");
  for (const Node& model : node.items("models")) fit.models.push_back(model.as_text());
  if (node.has("clusters")) fit.clusters = node.texts("clusters");
  fit.rows = node.count("rows");
  const Node variances = node.at("variances");
  fit.level_variance = variances.number("level");
  fit.exchange_variance = variances.number("exchange");
  fit.covariance = variances.number("covariance");
  if (fit.covariance * fit.covariance > fit.level_variance * fit.exchange_variance) {
    variances.fail("larger than the two variances allow", "covariance");
  }
  const Node shares = node.at("shares");
  for (const std::string& work : shares.keys()) fit.shares[work] = shares.number(work);
  fit.scatter = node.positive("scatter");
  fit.degrees = node.positive("degrees");
  if (const auto errors = node.find("leave_one_out")) {
    fit.median_error = errors->number("median_error");
    fit.worst_error = errors->number("worst_error");
  }
  return fit;
}

}  // namespace

bool SoftwareDocument::is_one(const Document& document) {
  return document.root().text_or("format", "") == format;
}

SoftwareDocument SoftwareDocument::read(const Document& document) {
  document.validate("software.schema");
  const Node root = document.root();
  SoftwareDocument software;
  software.name = root.text("name");
  software.profile = root.document("profile", "hardware");
  software.source = root.text("source");
  const Node multipliers = root.at("multipliers");
  for (const std::string& kind : multipliers.keys()) {
    software.multipliers[kind] = multipliers.positive(kind);
  }
  if (const auto fit = root.find("fit")) software.fit = read_fit(*fit);
  return software;
}

std::string SoftwareDocument::text() const {
  nlohmann::ordered_json root;
  root["format"] = format;
  root["version"] = fit ? version_with_fit : version_without_fit;
  root["name"] = name;
  root["profile"] = profile;
  for (const auto& [kind, multiplier] : multipliers) root["multipliers"][kind] = multiplier;
  root["source"] = source;
  if (fit) {
    root["fit"] = {{"machine", fit->machine},
                   {"models", fit->models},
                   {"rows", fit->rows},
                   {"variances",
                    {{"level", fit->level_variance},
                     {"exchange", fit->exchange_variance},
                     {"covariance", fit->covariance}}},
                   {"shares", fit->shares},
                   {"scatter", fit->scatter},
                   {"degrees", fit->degrees}};
    if (!fit->clusters.empty()) root["fit"]["clusters"] = fit->clusters;
    if (fit->median_error && fit->worst_error) {
      root["fit"]["leave_one_out"] = {{"median_error", *fit->median_error},
                                      {"worst_error", *fit->worst_error}};
    }
  }
  return json_text(root, 1) + "\n";
}

}  // namespace moesim::profile
