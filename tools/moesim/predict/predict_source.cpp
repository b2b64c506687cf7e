#include "tools/moesim/predict/predict_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "sim/base/contains.hpp"
#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "sim/base/units.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/profile/nccl_tests/operation.hpp"
#include "sim/scenario/options.hpp"
#include "tools/moesim/predict/predict_dispatch.hpp"
#include "tools/moesim/predict/software_times.hpp"

namespace moesim::tool {
namespace {

// One of NCCL's collectives.
bool is_collective(const profile::PredictedOperation& op) {
  return contains(op.parameters, "gpus") && contains(op.parameters, "bytes");
}

}  // namespace

const std::vector<std::string>& answer_columns() {
  static const std::vector<std::string> columns{"time_us", "time_us_p05", "time_us_p95",
                                                "provenance", "rank_finish_us"};
  return columns;
}

std::vector<std::string> answer_cells(const QueryAnswer& answer) {
  if (!answer.refusal.empty()) return std::vector<std::string>(answer_columns().size());
  std::string finish;
  for (const double time : answer.rank_finish_us) {
    finish += fmt::format("{}{}", finish.empty() ? "" : ";", time);
  }
  return {fmt::format("{}", answer.estimate.time_us),
          fmt::format("{}", answer.estimate.time_us_p05),
          fmt::format("{}", answer.estimate.time_us_p95), answer.provenance, finish};
}

std::optional<double> bus_bandwidth(const QueryAnswer& answer) {
  static const std::set<std::string> operations{"all-to-all", "all-reduce", "all-gather",
                                                "reduce-scatter"};
  const auto bytes = answer.params.find("bytes");
  const auto gpus = answer.params.find("gpus");
  if (operations.count(answer.op) == 0 || bytes == answer.params.end() ||
      gpus == answer.params.end() || answer.upper_us > answer.lower_us || !answer.refusal.empty()) {
    return std::nullopt;
  }
  const double size = static_cast<double>(parse_bytes(bytes->second, "bytes").count);
  return size / (1e3 * answer.estimate.time_us) *
         profile::bus_factor(answer.op, std::stod(gpus->second));
}

bool has_bus_bandwidth(const std::vector<QueryAnswer>& answers) {
  return std::any_of(answers.begin(), answers.end(), bus_bandwidth);
}

std::string bus_cell(const QueryAnswer& answer) {
  const std::optional<double> bus = bus_bandwidth(answer);
  return bus ? fmt::format("{}", *bus) : "";
}

bool is_exchange(const std::string& op, const QueryParams& params) {
  return is_collective(profile::find_operation(op)) || is_dispatch(op, params);
}

std::vector<std::string> parameters_of(const profile::PredictedOperation& op) {
  std::vector<std::string> names = op.parameters;
  names.insert(names.end(), op.optional.begin(), op.optional.end());
  if (is_collective(op)) {
    const std::vector<std::string>& more = ExchangePredictor::parameters();
    names.insert(names.end(), more.begin(), more.end());
  }
  names.emplace_back("profile");
  return names;
}

std::set<std::string> all_parameters() {
  std::set<std::string> names;
  for (const profile::PredictedOperation& op : profile::operations()) {
    for (const std::string& name : parameters_of(op)) names.insert(name);
  }
  names.erase("profile");
  return names;
}

bool is_text_parameter(const std::string& parameter) {
  static const std::vector<std::string> texts{"kernel",     "pass",       "nccl",
                                              "dispatcher", "row-format", "transport",
                                              "dtype",      "profile",    "rows-per-expert"};
  return contains(texts, parameter) || contains(ExchangePredictor::parameters(), parameter);
}

void check_parameter(const std::string& name, const std::string& text, const std::string& what) {
  if (!is_text_parameter(name) && text.find(',') != std::string::npos) {
    throw UsageError(
        fmt::format("{}: '{}': an operation takes one value: give a CSV with a row for each, --in "
                    "FILE",
                    what, text));
  }
  if (name == "bytes") {
    parse_bytes(text, what);
  } else if (!is_text_parameter(name)) {
    parse_whole(what, text, 1, std::numeric_limits<std::int32_t>::max());
  }
}

QuerySource::QuerySource(const std::string& profile) : profile_(profile) { answering(""); }

QuerySource::Answering& QuerySource::answering(const std::string& profile) {
  const std::string& name = profile.empty() ? profile_ : profile;
  const auto found = opened_.find(name);
  if (found != opened_.end()) return found->second;
  const auto loaded = std::make_shared<const profile::Profile>(
      profile::Profile::load(name.empty() ? scenario::option_named("profile").default_text : name,
                             profile::Profile::Calibrated::taken));
  Answering made{loaded, ExchangePredictor(loaded, !name.empty()), std::nullopt};
  if (!loaded->calibration().empty()) {
    made.software = uncertainty::StepSoftware::load(loaded->calibration());
  }
  return opened_.emplace(name, std::move(made)).first->second;
}

namespace {

// The size of an exchange; for a dispatcher that of the rows of its tokens, one for each expert, in
// bf16.
uncertainty::ExchangeSize size_of(const QueryParams& params) {
  const auto number = [&](const char* name) {
    const auto found = params.find(name);
    return found == params.end() ? 0.0 : parse_number<double>(found->second).value_or(0);
  };
  uncertainty::ExchangeSize size{0, number("gpus")};
  const auto bytes = params.find("bytes");
  if (bytes != params.end()) {
    size.bytes = static_cast<double>(parse_bytes(bytes->second, "bytes").count);
  } else {
    size.bytes = 2 * number("tokens") * number("k") * number("hidden");
  }
  return size;
}

// "64 to 256 MiB on 16 GPUs".
std::string sizes_text(const uncertainty::MeasuredExchanges& measured) {
  const auto range = [](double least, double most) {
    return least == most ? fmt::format("{:.3g}", least)
                         : fmt::format("{:.3g} to {:.3g}", least, most);
  };
  std::string text;
  if (measured.least.bytes > 0) {
    text = range(measured.least.bytes / bytes_per_mib, measured.most.bytes / bytes_per_mib) +
           " MiB on ";
  }
  return text + range(measured.least.gpus, measured.most.gpus) + " GPUs";
}

// Scales an answer to what the software takes. Its band has what the factor leaves open and what
// the law does; far from what was measured it holds the time with and without the factor.
void scale(const uncertainty::StepSoftware& software, const std::string& file,
           QueryAnswer& answer) {
  constexpr double level = 0.9;
  if (software.scatter(uncertainty::RowKind::exchange).rows == 0) {
    answer.provenance += fmt::format("; not scaled: {} was calibrated without exchanges", file);
    return;
  }
  if (!software.has_exchanges(answer.crosses)) {
    answer.provenance += fmt::format("; not scaled: {} was calibrated without exchanges {}", file,
                                     answer.crosses ? "between domains" : "inside a domain");
    return;
  }
  const auto alone = software.exchange_factor(answer.crosses, level);
  const double weight = software.exchange_weight(answer.crosses, answer.size);
  const double factor = std::pow(alone.factor, weight);
  const profile::Estimate law = answer.estimate;
  const double below = std::hypot(std::log(law.time_us / law.time_us_p05), alone.half_width);
  const double above = std::hypot(std::log(law.time_us_p95 / law.time_us), alone.half_width);
  const double scaled_us = alone.factor * law.time_us;
  answer.estimate.time_us *= factor;
  answer.estimate.time_us_p05 = scaled_us * std::exp(-below);
  answer.estimate.time_us_p95 = scaled_us * std::exp(above);
  answer.provenance += fmt::format("; times {:.3f} by {}", factor, file);
  if (weight < 1) {
    answer.estimate.time_us_p05 = std::min(answer.estimate.time_us_p05, law.time_us_p05);
    answer.estimate.time_us_p95 = std::max(answer.estimate.time_us_p95, law.time_us_p95);
    answer.provenance +=
        fmt::format(", whose rows ({}) take {:.3f}: far from them the band holds both",
                    sizes_text(software.exchanges[answer.crosses ? 1 : 0]), alone.factor);
  }
  for (double& finish : answer.rank_finish_us) finish *= factor;
  answer.lower_us = answer.upper_us = 0;
}

}  // namespace

namespace {

// What a time has in it that its name does not say.
std::string what_it_holds(const std::string& op, const QueryParams& params,
                          const profile::Profile& profile) {
  const auto text = [&](const char* name) {
    const auto found = params.find(name);
    return found == params.end() ? std::string() : found->second;
  };
  if (op == "gemm") {
    std::string dtype = text("dtype") == "float8" ? "fp8" : text("dtype");
    std::replace(dtype.begin(), dtype.end(), '-', '_');
    const bool casts =
        contains(profile.data_types("gemm"), dtype) &&
        profile.gemm_cast_us(std::stoll(text("m")), std::stoll(text("k")), dtype) > 0;
    return casts ? "; a serving engine's call and choice of kernel, which first casts A from bf16"
                 : "";
  }
  const bool fused = op == "expert-ffn" && (text("kernel").empty() || text("kernel") == "fused");
  return fused ? "; a serving engine's fused kernel (kernel separate or batched: a training "
                 "library's)"
               : "";
}

// An exchange over a cluster, whose time no curve alone says.
void scale_by_multiplier(const profile::Profile& profile, QueryAnswer& answer) {
  const double factor = profile.software_multiplier("exchange");
  answer.estimate = as_software_runs_it(profile, "exchange", answer.estimate);
  for (double& finish : answer.rank_finish_us) finish *= factor;
  answer.lower_us *= factor;
  answer.upper_us *= factor;
  answer.provenance += software_provenance(profile, "exchange");
}

// What profile::predict() multiplied by.
std::string multipliers_of(const std::string& op, const QueryParams& params,
                           const profile::Profile& profile) {
  const std::string& own = profile::find_operation(op).kernel_class;
  std::string text = software_provenance(profile, own);
  const auto kernel = params.find("kernel");
  const bool has_activation = op == "expert-ffn" && kernel != params.end() &&
                              (kernel->second == "separate" || kernel->second == "batched");
  if (has_activation && profile.software_multiplier("memory") != profile.software_multiplier(own)) {
    text += software_provenance(profile, "memory");
  }
  return text;
}

// Where all ranks end together, as in exchanges of a profile's curve, their time says it all: of
// thousands of ranks their ends would be a field that readers of CSV refuse.
void leave_out_equal_ends(QueryAnswer& answer) {
  std::vector<double>& ends = answer.rank_finish_us;
  const double time_us = answer.estimate.time_us;
  if (std::all_of(ends.begin(), ends.end(), [&](double end) { return end == time_us; })) {
    ends.clear();
  }
}

}  // namespace

QueryAnswer QuerySource::ask(const std::string& op, QueryParams params) {
  const auto named = params.find("profile");
  std::string profile = named == params.end() ? "" : named->second;
  // Collectives find the cluster's profile by themselves.
  if (profile.empty() && profile_.empty() && is_dispatch(op, params) &&
      params.contains("cluster")) {
    profile = cluster::Cluster::load(params.at("cluster")).profile;
  }
  Answering& source = answering(profile);
  params.erase("profile");
  for (auto& [name, text] : params) {
    if (name != "bytes" && !is_text_parameter(name)) text = without_exponent(text).value_or(text);
  }
  QueryAnswer answer;
  answer.op = op;
  answer.params = std::move(params);
  if (source.exchanges.handles(op, answer.params)) {
    network::ExchangePrediction time = source.exchanges.answer(op, answer.params);
    answer.estimate = time.estimate;
    answer.provenance = std::move(time.provenance);
    answer.rank_finish_us = std::move(time.rank_finish_us);
    answer.lower_us = time.lower_us;
    answer.upper_us = time.upper_us;
    answer.crosses = source.exchanges.crosses_domains(answer.params);
    scale_by_multiplier(*source.profile, answer);
  } else if (is_dispatch(op, answer.params)) {
    const DispatchAnswer time = predict_dispatch(op, answer.params, *source.profile);
    answer.estimate = time.estimate;
    answer.provenance = time.provenance;
    answer.crosses = source.exchanges.crosses_domains(answer.params);
    scale_by_multiplier(*source.profile, answer);
  } else {
    answer.estimate = with_fit_error(*source.profile, profile::find_operation(op).kernel_class,
                                     profile::predict(*source.profile, op, answer.params));
    answer.provenance = profile::describe(answer.estimate) +
                        what_it_holds(op, answer.params, *source.profile) +
                        multipliers_of(op, answer.params, *source.profile);
  }
  leave_out_equal_ends(answer);
  if (is_exchange(op, answer.params)) answer.size = size_of(answer.params);
  if (source.software && is_exchange(op, answer.params)) {
    scale(*source.software, source.profile->calibration(), answer);
  }
  if (!profile.empty()) answer.params["profile"] = profile;
  return answer;
}

}  // namespace moesim::tool
