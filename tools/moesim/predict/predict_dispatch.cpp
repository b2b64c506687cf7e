#include "tools/moesim/predict/predict_dispatch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/text.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/cluster/rank_placement.hpp"
#include "sim/network/exchange/dispatch_place.hpp"
#include "sim/network/exchange/measured_dispatch.hpp"
#include "sim/profile/missing_parameter.hpp"
#include "sim/profile/predict.hpp"

namespace moesim::tool {
namespace {

using Params = std::map<std::string, std::string>;
using profile::Dispatcher;
using profile::DispatcherStage;

const std::vector<std::string> required = {"dispatcher", "tokens",  "hidden",
                                           "k",          "experts", "gpus"};

std::int64_t whole(const std::string& op, const Params& params, const std::string& name) {
  return parse_whole(op + ": " + name, params.at(name), 1,
                     std::numeric_limits<std::int32_t>::max());
}

// One of the values, the first where nothing is said.
const std::vector<std::string> row_formats{"bf16", "fp8"};
const std::vector<std::string> transports{"", "gpu", "proxy"};  // first: as the cluster says

std::string one_of(const std::string& op, const Params& params, const std::string& name,
                   const std::vector<std::string>& values) {
  const auto found = params.find(name);
  if (found == params.end()) return values.front();
  for (const std::string& value : values) {
    if (found->second == value) return value;
  }
  throw UsageError(fmt::format("{}: {} '{}': expected {} or {}", op, name, found->second,
                               values[values.size() - 2], values.back()));
}

// Every parameter has to mean something here, and all that are needed be there.
void check_names(const std::string& op, const Params& params) {
  const profile::PredictedOperation& known = profile::find_operation(op);
  std::vector<std::string> names = known.parameters;
  names.insert(names.end(), known.optional.begin(), known.optional.end());
  for (const auto& [name, text] : params) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const char* why = name == "schedule"     ? ": its kernels have an order of their own"
                      : name == "row-format" ? ": combined rows are bf16"
                      : name == "matrix"     ? ": experts are drawn evenly"
                                             : "";
    throw profile::UnknownParameter(op, name, names, why);
  }
  for (const std::string& name : required) {
    if (params.count(name) != 0) continue;
    throw profile::MissingParameter(op, name, required);
  }
  if (params.at("dispatcher") == "all-to-all") {
    throw NoAnswer(
        fmt::format("{}: dispatcher all-to-all is NCCL's: ask --op all-to-all, with "
                    "gpus and bytes",
                    op));
  }
}

cluster::Cluster cluster_of(const std::string& op, Params& params,
                            const profile::Profile& profile) {
  const auto named = params.find("cluster");
  if (named == params.end() && profile.device().usual_cluster.empty()) {
    throw NoAnswer(
        fmt::format("{}: the profile {} names no usual cluster: give cluster", op, profile.name()));
  }
  if (named == params.end()) params["cluster"] = profile.device().usual_cluster;
  return cluster::Cluster::load(params["cluster"]);
}

int sms_of(const std::string& op, Params& params, const Dispatcher& dispatcher,
           const profile::Profile& profile) {
  if (dispatcher.usual_sms == 0) {
    if (params.count("sms") == 0) return 0;
    throw NoAnswer(fmt::format("{}: sms: the kernels of {} take what they find: leave it out", op,
                               dispatcher.name));
  }
  if (params.count("sms") == 0) params["sms"] = std::to_string(dispatcher.usual_sms);
  const std::int64_t sms = whole(op, params, "sms");
  if (sms <= profile.device().sms) return static_cast<int>(sms);
  throw NoAnswer(fmt::format("{}: sms {}: the GPU has {}", op, sms, profile.device().sms));
}

// Each node's experts are a group.
void limit_nodes(const std::string& op, const Params& params, const Dispatcher& dispatcher,
                 const network::DispatchPlace& place, profile::MoeTraffic& traffic) {
  if (params.count("node-limit") == 0) return;
  const std::int64_t limit = whole(op, params, "node-limit");
  const auto refuse = [&](const std::string& why) {
    throw NoAnswer(fmt::format("{}: node-limit {}: {}", op, limit, why));
  };
  if (dispatcher.sent == profile::SentOnce::per_expert) {
    refuse(fmt::format("{} sends a row for each expert, wherever it lies", dispatcher.name));
  }
  if (!place.group.crosses()) refuse("the GPUs lie in one domain: leave it out");
  if (limit > place.group.domains()) {
    refuse(fmt::format("there are {}", place.group.domains()));
  }
  const std::int64_t within = traffic.experts / place.group.domains() * limit;
  if (traffic.top_k > within) refuse(fmt::format("they hold {} experts", within));
  traffic.groups = place.group.domains();
  traffic.kept_groups = static_cast<int>(limit);
}

}  // namespace

bool is_dispatch(const std::string& op, const Params& params) {
  if (op == "dispatch") return true;
  if (op != "combine") return false;
  if (params.count("dispatcher") != 0) return true;
  for (const char* name : {"experts", "gpus", "sms", "node-limit", "cluster", "transport"}) {
    if (params.count(name) == 0) continue;
    throw UsageError(
        fmt::format("combine: {} goes with dispatcher: without one, combine is the "
                    "weighted sum of rows on one GPU",
                    name));
  }
  return false;
}

std::vector<std::string> dispatch_choices(const std::string& parameter) {
  if (parameter == "row-format") return row_formats;
  if (parameter != "transport") return {};
  return {transports.begin() + 1, transports.end()};
}

DispatchAnswer predict_dispatch(const std::string& op, Params& params,
                                const profile::Profile& profile) {
  check_names(op, params);
  const DispatcherStage stage =
      op == "dispatch" ? DispatcherStage::dispatch : DispatcherStage::combine;
  const bool fp8 = one_of(op, params, "row-format", row_formats) == "fp8";
  const std::string transport = one_of(op, params, "transport", transports);
  const Dispatcher dispatcher = Dispatcher::load(params.at("dispatcher"));
  const int sms = sms_of(op, params, dispatcher, profile);
  const cluster::Cluster cluster = cluster_of(op, params, profile);
  profile::MoeTraffic traffic = {whole(op, params, "experts"), whole(op, params, "k")};
  if (traffic.top_k > traffic.experts) {
    throw NoAnswer(
        fmt::format("{}: k {}: there are {} experts", op, traffic.top_k, traffic.experts));
  }
  const int gpus = static_cast<int>(whole(op, params, "gpus"));
  const int each = cluster::usual_ranks_per_domain(cluster, gpus);
  const network::DispatchPlace place =
      network::dispatch_place(profile.device().name, cluster, {gpus, each}, transport);
  const network::MeasuredDispatcher measured(dispatcher, place, cluster);
  limit_nodes(op, params, dispatcher, place, traffic);
  const auto tokens = static_cast<double>(whole(op, params, "tokens"));
  const profile::DispatchLoad load =
      profile::balanced_load(dispatcher.sent, stage, traffic, place.group, tokens);
  const std::int64_t hidden = whole(op, params, "hidden");
  const double row =
      profile::dispatched_row_bytes(dispatcher, stage, static_cast<double>(hidden), fp8);
  DispatchAnswer answer{
      measured.time({stage, fp8, row, hidden, traffic.top_k, sms}, load, place.rates),
      measured.provenance(sms)};
  Dispatcher compared = dispatcher;
  if (measured.knows(stage)) {  // the band has the distance from these
    for (profile::MeasuredDispatches& known : compared.measured) known = {known.tokens, {}, {}, {}};
  }
  const profile::DispatchShape shape{tokens, static_cast<double>(hidden), sms};
  profile::widen_beyond_measured(compared,
                                 {place.device, stage, place.group, load, row, place.rates, sms},
                                 shape.hidden, answer.estimate);
  answer.provenance += profile::extrapolation(compared, place.group, shape);
  return answer;
}

}  // namespace moesim::tool
