#include "sim/uncertainty/published/residuals.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "sim/base/formats/json_text.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/statistics.hpp"
#include "sim/uncertainty/steps/step_distance.hpp"

namespace moesim::uncertainty {
namespace {

constexpr const char* format = "moesim-residuals";
constexpr const char* profile_prefix = "profile ";
constexpr double alike = 1.5;   // rates of one kind of NIC, of which some is lost, are nearer
constexpr double digits = 1e4;  // of logs and ratios that a document keeps

constexpr const char* capacity = "capacity";  // what the pairs of a group differ in alone

double rounded(double value) { return std::round(value * digits) / digits; }

template <std::size_t size>
nlohmann::ordered_json rounded_all(const std::array<double, size>& values) {
  auto list = nlohmann::ordered_json::array();
  for (const double value : values) list.push_back(rounded(value));
  return list;
}

auto key(const Subject& subject) {
  return std::tuple(subject.software, subject.machine, subject.model, subject.low_precision,
                    subject.nic_gbit_per_s);
}

Quantiles read_quantiles(const Node& node, const std::string& name) {
  const std::vector<double> values = node.numbers(name);
  Quantiles quantiles{};
  if (values.size() != quantiles.size()) node.fail("expected 5 quantiles", name);
  if (!std::is_sorted(values.begin(), values.end())) node.fail("quantiles must ascend", name);
  std::copy(values.begin(), values.end(), quantiles.begin());
  return quantiles;
}

std::optional<AssumedMoves> read_moves(const Node& node) {
  if (!node.has("moves")) return std::nullopt;
  const Node moves = node.at("moves");
  return AssumedMoves{moves.number("host_slower"), moves.number("host_faster"),
                      moves.number("crossing")};
}

ResidualGroup read_group(const Node& node) {
  ResidualGroup group;
  group.subject = {node.text("software"), node.text("machine"), node.text("model"),
                   node.boolean("low_precision"),
                   node.has("nic_gbit_per_s") ? node.positive("nic_gbit_per_s") : 0};
  group.rows = node.count("rows");
  group.configurations = node.count("configurations");
  group.least = std::log(node.positive("least"));
  group.most = std::log(node.positive("most"));
  group.log_ratios = read_quantiles(node, "log_ratios");
  if (node.has("left_out")) group.left_out = read_quantiles(node, "left_out");
  group.moves = read_moves(node);
  if (node.has("builds")) {
    for (const Node& build : node.items("builds")) {
      BuiltOptions options;
      for (const std::string& name : build.keys()) options[name] = build.text(name);
      group.builds.insert(std::move(options));
    }
  }
  return group;
}

MachinePairs read_machine_pairs(const Node& node) {
  return {node.text("software"),
          node.text("machine"),
          node.text("other"),
          node.text("model"),
          node.count("pairs"),
          read_quantiles(node, "errors"),
          read_moves(node),
          node.has("distance") ? std::optional(node.number("distance")) : std::nullopt};
}

RatioGroup read_ratio(const Node& node) {
  RatioGroup group;
  group.software = node.text("software");
  group.machine = node.text("machine");
  group.model = node.text_or("model", "");
  group.of_capacity = node.has("differ_in");
  group.by_distance = node.boolean_or("by_distance", false);
  group.pairs = node.count("pairs");
  group.errors = read_quantiles(node, "errors");
  return group;
}

MeasuredTraits read_measured(const Node& node) {
  MeasuredTraits measured;
  measured.machine = node.text("machine");
  const Node most = node.at("most");
  for (const std::string& name : most.keys()) measured.most[name] = most.positive(name);
  return measured;
}

nlohmann::ordered_json json_of(const MeasuredTraits& measured) {
  nlohmann::ordered_json most;
  for (const auto& [name, size] : measured.most) most[name] = rounded(size);
  return {{"machine", measured.machine}, {"most", most}};
}

std::vector<MeasuredTraits> traits_by_machine(const std::vector<Observation>& observations) {
  std::map<std::string, MeasuredTraits> found;
  for (const Observation& each : observations) {
    MeasuredTraits& measured = found[each.subject.machine];
    measured.machine = each.subject.machine;
    measured.add(each.traits);
  }
  std::vector<MeasuredTraits> all;
  for (auto& [machine, measured] : found) {
    if (!measured.most.empty()) all.push_back(std::move(measured));
  }
  return all;
}

nlohmann::ordered_json json_of(const AssumedMoves& moves) {
  return {{"host_slower", rounded(moves.host_slower)},
          {"host_faster", rounded(moves.host_faster)},
          {"crossing", rounded(moves.crossing)}};
}

nlohmann::ordered_json json_of(const ResidualGroup& group) {
  nlohmann::ordered_json item = {{"software", group.subject.software},
                                 {"machine", group.subject.machine},
                                 {"model", group.subject.model},
                                 {"low_precision", group.subject.low_precision}};
  const double nic = group.subject.nic_gbit_per_s;
  if (nic > 0) item["nic_gbit_per_s"] = rounded(nic);
  item["rows"] = group.rows;
  item["configurations"] = group.configurations;
  item["least"] = rounded(std::exp(group.least));
  item["median"] = rounded(std::exp(group.median()));
  item["most"] = rounded(std::exp(group.most));
  item["log_ratios"] = rounded_all(group.log_ratios);
  if (group.left_out) item["left_out"] = rounded_all(*group.left_out);
  if (group.moves) item["moves"] = json_of(*group.moves);
  if (!group.builds.empty()) item["builds"] = group.builds;
  return item;
}

nlohmann::ordered_json json_of(const MachinePairs& group) {
  nlohmann::ordered_json item = {
      {"software", group.software}, {"machine", group.machine},
      {"other", group.other},       {"model", group.model},
      {"pairs", group.pairs},       {"errors", rounded_all(group.errors)}};
  if (group.moves) item["moves"] = json_of(*group.moves);
  if (group.distance) item["distance"] = rounded(*group.distance);
  return item;
}

nlohmann::ordered_json json_of(const RatioGroup& group) {
  nlohmann::ordered_json item = {{"software", group.software}, {"machine", group.machine}};
  if (!group.model.empty()) item["model"] = group.model;
  if (group.of_capacity) item["differ_in"] = capacity;
  if (group.by_distance) item["by_distance"] = true;
  item["pairs"] = group.pairs;
  item["errors"] = rounded_all(group.errors);
  return item;
}

// Pairs of two configurations, also of two releases: what changed between them is in their error.
std::vector<RatioGroup> ratio_groups(const std::vector<Observation>& observations) {
  // The name of a group: software, machine, model, and whether it is of capacity and by distance.
  using Name = std::tuple<std::string, std::string, std::string, bool, bool>;
  std::map<Name, std::vector<double>> errors;
  for (std::size_t one = 0; one < observations.size(); ++one) {
    for (std::size_t other = one + 1; other < observations.size(); ++other) {
      const Observation& a = observations[one];
      const Observation& b = observations[other];
      if (a.subject.software != b.subject.software || a.subject.machine != b.subject.machine ||
          a.configuration == b.configuration) {
        continue;
      }
      const std::string model = a.subject.model == b.subject.model ? a.subject.model : "";
      const bool of_capacity = !a.layout.empty() && a.layout == b.layout && !model.empty();
      // The parts of two models are of different tokens.
      const bool by_distance = !model.empty() && !a.parts.empty() && !b.parts.empty();
      const double reach = by_distance ? distance_reach(step_distance(a.parts, b.parts)) : 1;
      errors[{a.subject.software, a.subject.machine, model, of_capacity, by_distance}].push_back(
          std::abs(a.log_ratio - b.log_ratio) / reach);
    }
  }
  std::vector<RatioGroup> groups;
  for (const auto& [name, values] : errors) {
    const auto& [software, machine, model, of_capacity, by_distance] = name;
    groups.push_back({software, machine, model, of_capacity, by_distance,
                      static_cast<int>(values.size()), quantiles_of(values)});
  }
  return groups;
}

std::vector<MachinePairs> machine_ratios_of(const std::vector<Observation>& observations) {
  struct Found {
    std::vector<double> errors;
    std::vector<AssumedMoves> moves;
    std::vector<double> distances;
  };
  // Software, both machines, model.
  std::map<std::tuple<std::string, std::string, std::string, std::string>, Found> found;
  for (std::size_t one = 0; one < observations.size(); ++one) {
    for (std::size_t other = one + 1; other < observations.size(); ++other) {
      const Observation& a = observations[one];
      const Observation& b = observations[other];
      if (!is_machine_pair(a, b)) continue;
      const auto [first, second] = std::minmax(a.subject.machine, b.subject.machine);
      Found& pairs = found[{a.subject.software, first, second, a.subject.model}];
      pairs.errors.push_back(std::abs(a.log_ratio - b.log_ratio));
      if (a.moves && b.moves) pairs.moves.push_back(moves_between(*a.moves, *b.moves));
      if (!a.parts.empty() && !b.parts.empty()) {
        pairs.distances.push_back(share_distance(a.parts, b.parts));
      }
    }
  }
  std::vector<MachinePairs> groups;
  for (const auto& [name, pairs] : found) {
    const auto& [software, machine, other, model] = name;
    groups.push_back({software, machine, other, model, static_cast<int>(pairs.errors.size()),
                      quantiles_of(pairs.errors), std::nullopt, std::nullopt});
    if (!pairs.moves.empty()) groups.back().moves = mean_of(pairs.moves);
    if (!pairs.distances.empty()) groups.back().distance = moesim::mean(pairs.distances);
  }
  return groups;
}

// How far each member of a group is off where its configuration, in all releases, is not known.
std::vector<double> left_out_errors(const std::vector<const Observation*>& members) {
  std::vector<double> errors;
  for (const Observation* held : members) {
    std::vector<double> others;
    for (const Observation* other : members) {
      if (other->configuration != held->configuration) others.push_back(other->log_ratio);
    }
    errors.push_back(std::abs(held->log_ratio - moesim::median(others)));
  }
  return errors;
}

}  // namespace

bool nics_alike(const Subject& one, const Subject& other) {
  const auto [less, more] = std::minmax(one.nic_gbit_per_s, other.nic_gbit_per_s);
  return less == 0 || more < alike * less;
}

bool same_machine(const Subject& one, const Subject& other) {
  return one.machine == other.machine && nics_alike(one, other);
}

bool same_software(const Observation& one, const Observation& other) {
  return one.subject.software == other.subject.software;
}

bool is_machine_pair(const Observation& one, const Observation& other) {
  return one.subject.software == other.subject.software && !one.release.empty() &&
         one.release == other.release && one.subject.machine != other.subject.machine &&
         one.subject.model == other.subject.model &&
         one.subject.low_precision == other.subject.low_precision;
}

Quantiles quantiles_of(const std::vector<double>& values) {
  Quantiles quantiles{};
  for (std::size_t place = 0; place < quantiles.size(); ++place) {
    quantiles[place] = quantile(values, kept_shares[place]);
  }
  return quantiles;
}

double ResidualGroup::spread() const {
  if (rows < 2) return 0;
  const double deviations = 2 * normal_quantile(kept_shares.back());
  // The quantiles of few values lie closer together than those of their distribution.
  return (log_ratios.back() - log_ratios.front()) / deviations * std::sqrt(rows / (rows - 1.0));
}

Residuals summarised(const std::vector<Observation>& observations) {
  using Key = decltype(key(Subject()));
  std::map<Key, std::vector<const Observation*>> groups;
  for (const Observation& each : observations) groups[key(each.subject)].push_back(&each);
  Residuals residuals;
  for (const auto& [unused, members] : groups) {
    ResidualGroup group;
    group.subject = members.front()->subject;
    group.rows = static_cast<int>(members.size());
    std::vector<double> values;
    std::set<std::string> configurations;
    std::vector<AssumedMoves> moves;
    for (const Observation* member : members) {
      if (member->moves) moves.push_back(*member->moves);
      values.push_back(member->log_ratio);
      configurations.insert(member->configuration);
      if (!member->build.empty()) group.builds.insert(member->build);
    }
    group.configurations = static_cast<int>(configurations.size());
    group.least = *std::min_element(values.begin(), values.end());
    group.most = *std::max_element(values.begin(), values.end());
    group.log_ratios = quantiles_of(values);
    if (group.configurations > 1) group.left_out = quantiles_of(left_out_errors(members));
    if (!moves.empty()) group.moves = mean_of(moves);
    residuals.groups.push_back(group);
  }
  residuals.ratios = ratio_groups(observations);
  residuals.machine_ratios = machine_ratios_of(observations);
  residuals.measured = traits_by_machine(observations);
  return residuals;
}

std::string profile_software(const std::string& profile) { return profile_prefix + profile; }

bool is_profile(const std::string& software) { return software.rfind(profile_prefix, 0) == 0; }

Residuals Residuals::load(const std::string& name_or_path) {
  const Document document = Document::load(find_document("residuals", name_or_path));
  document.validate("residuals.schema");
  const Node root = document.root();
  Residuals residuals;
  residuals.name = root.text("name");
  residuals.source = root.text("source");
  residuals.regenerate = root.text("regenerate");
  const Node parts = root.at("components");
  residuals.components = {parts.positive("all"), parts.positive("software"),
                          parts.positive("machine"), parts.positive("precision"),
                          parts.positive("model")};
  for (const Node& node : root.items("groups")) residuals.groups.push_back(read_group(node));
  for (const Node& node : root.items("ratios")) residuals.ratios.push_back(read_ratio(node));
  if (root.has("machine_ratios")) {
    for (const Node& node : root.items("machine_ratios")) {
      residuals.machine_ratios.push_back(read_machine_pairs(node));
    }
  }
  if (root.has("measured")) {
    for (const Node& node : root.items("measured")) {
      residuals.measured.push_back(read_measured(node));
    }
  }
  if (root.has("unmeasured")) {
    const Node law = root.at("unmeasured");
    residuals.unmeasured = {law.positive("deviation"), law.count("traits")};
  }
  return residuals;
}

std::string Residuals::text() const {
  nlohmann::ordered_json head;
  head["format"] = format;
  head["version"] = 1;
  head["name"] = name;
  head["source"] = source;
  head["regenerate"] = regenerate;
  head["components"] = {{"all", rounded(components.all)},
                        {"software", rounded(components.software)},
                        {"machine", rounded(components.machine)},
                        {"precision", rounded(components.precision)},
                        {"model", rounded(components.model)}};
  if (unmeasured.traits > 0) {
    head["unmeasured"] = {{"deviation", rounded(unmeasured.deviation)},
                          {"traits", unmeasured.traits}};
  }
  // One group a line, so that a change shows where it is.
  std::string text = json_text(head, 1);
  text.erase(text.rfind('\n'));
  text += ",\n \"groups\": [";
  for (const ResidualGroup& group : groups) {
    text += (&group == &groups.front() ? "\n  " : ",\n  ") + json_text(json_of(group));
  }
  text += "\n ],\n \"ratios\": [";
  for (const RatioGroup& group : ratios) {
    text += (&group == &ratios.front() ? "\n  " : ",\n  ") + json_text(json_of(group));
  }
  if (!machine_ratios.empty()) {
    text += "\n ],\n \"machine_ratios\": [";
    for (const MachinePairs& group : machine_ratios) {
      text += (&group == &machine_ratios.front() ? "\n  " : ",\n  ") + json_text(json_of(group));
    }
  }
  if (!measured.empty()) {
    text += "\n ],\n \"measured\": [";
    for (const MeasuredTraits& each : measured) {
      text += (&each == &measured.front() ? "\n  " : ",\n  ") + json_text(json_of(each));
    }
  }
  return text + "\n ]\n}\n";
}

std::vector<std::string> Residuals::software() const {
  std::set<std::string> names;
  for (const ResidualGroup& group : groups) names.insert(group.subject.software);
  return {names.begin(), names.end()};
}

}  // namespace moesim::uncertainty
