#include "tools/moesim/predict/predict_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/enum_names.hpp"
#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/base/units.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/cluster/rank_placement.hpp"
#include "sim/network/exchange/exchange_files.hpp"
#include "sim/network/ports/port_model.hpp"
#include "sim/profile/collective.hpp"
#include "sim/profile/missing_parameter.hpp"
#include "sim/study/logs/link_fit.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/progress.hpp"

namespace moesim::tool {
namespace {

using Params = std::map<std::string, std::string>;

std::string text_or(const Params& params, const std::string& name, const std::string& fallback) {
  const auto found = params.find(name);
  return found == params.end() ? fallback : found->second;
}

int ranks_of(const std::string& op, const Params& params) {
  const auto found = params.find("gpus");
  if (found == params.end()) {
    throw profile::MissingParameter(op, "gpus", {"gpus", "bytes"}, ", or a matrix on a cluster");
  }
  return static_cast<int>(
      parse_whole(op + ": gpus", found->second, 1, std::numeric_limits<std::int32_t>::max()));
}

double bytes_of(const std::string& op, const Params& params) {
  const auto found = params.find("bytes");
  if (found == params.end()) {
    throw profile::MissingParameter(op, "bytes", {"gpus", "bytes"}, ", or a matrix on a cluster");
  }
  return static_cast<double>(parse_bytes(found->second, op + ": bytes").count);
}

// Which parameters go together.
void check_together(const std::string& op, const Params& params) {
  const auto refuse = [&](const std::string& name, const std::string& reason) {
    if (params.count(name) != 0) throw UsageError(fmt::format("{}: {}: {}", op, name, reason));
  };
  if (params.count("nccl") != 0) {
    throw NoAnswer(fmt::format(
        "{}: nccl: the versions are of curves inside a node: leave it out on a cluster", op));
  }
  if (params.count("matrix") != 0) {
    if (op != "all-to-all") refuse("matrix", "a byte matrix describes an all-to-all");
    refuse("bytes", "the matrix says what is sent: leave bytes out");
    if (params.count("cluster") == 0) {
      throw UsageError(
          fmt::format("{}: matrix: say on which cluster: give cluster a NAME or FILE", op));
    }
  } else {
    refuse("start", "start times go with a matrix");
  }
}

double parse_share(const std::string& text) {
  const std::optional<double> share = parse_number<double>(text);
  if (share && *share > 0 && *share <= 1) return *share;
  throw UsageError(fmt::format("distinct-share '{}': expected a number above 0, at most 1", text));
}

// Steps of a simulation on stderr, once it has taken a while.
std::function<void(std::size_t, std::size_t)> progress_on(ProgressLine& line) {
  using Clock = std::chrono::steady_clock;
  return [&line, begin = Clock::now()](std::size_t ended, std::size_t steps) {
    constexpr std::chrono::seconds patience{2};
    if (Clock::now() - begin >= patience) line.show(ended, steps);
  };
}

// Says which file's ranks found no place.
std::vector<int> placed(const cluster::Cluster& cluster, const Params& params, int ranks) {
  const bool given = params.count("matrix") != 0;
  const std::string text = text_or(params, "placement", given ? "contiguous" : "even");
  const auto beyond = [](int gpu) {
    return NoAnswer(fmt::format("placement: GPU {} is beyond the {} that a cluster may have", gpu,
                                cluster::most_gpus));
  };
  if (ranks > cluster::most_gpus) throw beyond(ranks - 1);
  const auto of_file = [&](const UsageError& error) {
    return fmt::format("{}: {} ranks: {}", params.at("matrix"), ranks, error.what());
  };
  try {
    std::vector<int> members = cluster::parse_placement(text, cluster, ranks, "placement");
    const int last = *std::max_element(members.begin(), members.end());
    if (last >= cluster::most_gpus) throw beyond(last);
    return members;
  } catch (const NoAnswer& error) {
    if (!given) throw;
    throw NoAnswer(of_file(error));
  } catch (const UsageError& error) {
    if (!given) throw;
    throw UsageError(of_file(error));
  }
}

}  // namespace

const std::vector<std::string>& ExchangePredictor::parameters() {
  static const std::vector<std::string> names{"cluster",   "matrix",  "start",         "schedule",
                                              "placement", "network", "distinct-share"};
  return names;
}

ExchangePredictor::ExchangePredictor(std::shared_ptr<const profile::Profile> profile,
                                     bool calibrates)
    : profile_(std::move(profile)), calibrates_(calibrates) {}

std::shared_ptr<const cluster::Cluster> ExchangePredictor::cluster(const std::string& name) {
  std::shared_ptr<const cluster::Cluster>& entry = clusters_[name];
  if (!entry) entry = std::make_shared<const cluster::Cluster>(cluster::Cluster::load(name));
  return entry;
}

bool ExchangePredictor::handles(const std::string& op, const Params& params) {
  if (!find_in(profile::collective_names, op)) return false;
  for (const std::string& name : parameters()) {
    if (params.count(name) != 0) return true;
  }
  const std::string usual = profile_->device().usual_cluster;
  if (usual.empty() || params.count("gpus") == 0) return false;
  return ranks_of(op, params) > cluster(usual)->gpus_per_domain;
}

bool ExchangePredictor::crosses_domains(const Params& params) {
  const auto named = params.find("cluster");
  const auto ranks = params.find("gpus");
  if (named == params.end() || ranks == params.end()) return false;
  const std::shared_ptr<const cluster::Cluster> where = cluster(named->second);
  const std::vector<int> members = placed(*where, params, std::stoi(ranks->second));
  return std::any_of(members.begin(), members.end(), [&](int gpu) {
    return where->domain_of(gpu) != where->domain_of(members.front());
  });
}

network::ExchangePrediction ExchangePredictor::answer(const std::string& op, Params& params) {
  check_together(op, params);
  const bool chosen = params.count("cluster") != 0;
  if (!chosen) params["cluster"] = profile_->device().usual_cluster;
  if (params["cluster"].empty()) {
    throw NoAnswer(fmt::format("{}: the profile names no usual cluster: give cluster", op));
  }
  const std::shared_ptr<const cluster::Cluster> where = cluster(params["cluster"]);

  network::ExchangeQuery query;
  query.collective = *find_in(profile::collective_names, op);
  query.schedule = text_or(params, "schedule", "");
  query.network = value_in(network::method_names, text_or(params, "network", "auto"), "network");
  if (const auto share = params.find("distinct-share"); share != params.end()) {
    query.distinct_share = parse_share(share->second);
  }
  if (const auto file = params.find("matrix"); file != params.end()) {
    query.matrix = network::load_byte_matrix(file->second);
    const int held = query.matrix->ranks();
    if (params.count("gpus") != 0 && ranks_of(op, params) != held) {
      throw UsageError(fmt::format("{}: gpus {}: the matrix {} has {} ranks: leave gpus out", op,
                                   params["gpus"], file->second, held));
    }
    params["gpus"] = std::to_string(held);
    if (params.count("start") != 0) query.start = network::load_start_times(params["start"], held);
  }
  const int ranks = ranks_of(op, params);
  if (!query.matrix) query.bytes = bytes_of(op, params);
  query.members = placed(*where, params, ranks);

  ProgressLine line("steps of the exchange");
  query.progress = progress_on(line);
  const bool own = !chosen || calibrates_;
  const std::shared_ptr<const profile::Profile> used = own ? profile_ : profile_for(query, *where);
  network::ExchangePrediction prediction = network::predict_exchange(query, used, where);
  line.finish();
  if (!own && used) prediction.provenance += fmt::format("; profile {}", used->name());
  if (!prediction.schedule.empty()) params["schedule"] = prediction.schedule;
  if (query.matrix && query.schedule.empty()) {
    note_nccl(query, prediction.estimate.time_us, where);
  }
  return prediction;
}

// A matrix takes a burst on the links alone, equal blocks what NCCL was measured to take: says
// what schedule nccl makes of the matrix, which agrees with that of equal blocks.
void ExchangePredictor::note_nccl(const network::ExchangeQuery& query, double time_us,
                                  const std::shared_ptr<const cluster::Cluster>& where) {
  constexpr std::size_t most_ranks = 64;  // within a second
  const bool has_software = where->nic_start.value > 0;
  if (noted_nccl_ || !has_software || query.members.size() > most_ranks) return;
  if (network::span_of(query.members, *where).domains == 1) return;
  const std::shared_ptr<const profile::Profile> used =
      calibrates_ ? profile_ : study::profile_of_cluster(*where);
  if (!used) return;
  network::ExchangeQuery nccl = query;
  nccl.schedule = "nccl";
  nccl.progress = nullptr;
  try {
    const double nccl_us = network::predict_exchange(nccl, used, where).estimate.time_us;
    note(fmt::format(
        "note: {:.4g} us is a burst on the links alone, without NCCL's start and order; as NCCL, "
        "calibrated as predictions of equal blocks are (--schedule nccl --profile {}): {:.4g} us",
        time_us, used->name(), nccl_us));
    noted_nccl_ = true;
  } catch (const NotMeasured&) {
    return;  // the profile has no curve inside a domain
  }
}

// The profile of the GPUs of a cluster that is given without a profile, so that equal blocks take
// the same answer with and without the cluster. nullptr: the links of the document answer.
std::shared_ptr<const profile::Profile> ExchangePredictor::profile_for(
    const network::ExchangeQuery& query, const cluster::Cluster& where) {
  if (query.matrix || query.network != network::Method::automatic || !query.schedule.empty()) {
    return nullptr;
  }
  const auto [entry, first] = profiles_.try_emplace(where.file);
  if (first) entry->second = study::profile_of_cluster(where);
  const std::shared_ptr<const profile::Profile>& found = entry->second;
  if (!found) return nullptr;
  const int inside = network::span_of(query.members, where).largest_share;
  try {
    if (inside > 1) found->collective(query.collective, inside, 1);
  } catch (const NotMeasured&) {
    return nullptr;  // never measured among so many
  }
  return found;
}

}  // namespace moesim::tool
