#include "sim/study/validation/exchanges/validate_moe_exchanges.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <functional>
#include <iterator>
#include <map>

#include "sim/profile/moe_exchange_law.hpp"
#include "sim/study/validation/exchanges/exchange_errors.hpp"
#include "sim/study/validation/exchanges/exchange_tables.hpp"
#include "sim/study/validation/exchanges/validate_dispatchers.hpp"

namespace moesim::study {
namespace {

using profile::SizeCurve;

constexpr const char* study_name = "exchanges";
constexpr double many_tokens = 512;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

struct Curves {
  MoeExchangeRow shape;
  std::map<int, std::map<std::string, Samples>> by_gpus;  // GPU count -> version -> samples
};
using Groups = std::map<std::string, std::map<std::string, Curves>>;  // kernel -> variant

Groups grouped(const std::vector<MoeExchangeRow>& rows) {
  Groups groups;
  for (const MoeExchangeRow& row : rows) {
    Curves& curves = groups[row.kernel][row.variant];
    curves.shape = row;
    curves.by_gpus[row.gpus][row.version].emplace_back(row.tokens, row.time_us);
  }
  return groups;
}

std::string at_tokens(double tokens, const std::string& variant) {
  return fmt::format("{} tokens ({})", tokens, variant);
}

void report(const Comparison& few, const Comparison& many, const std::string& subject,
            Validation& validation) {
  if (!many.law.empty()) {
    validation.rows.push_back(report_row(many, subject + ", from 512 tokens"));
  }
  if (!few.law.empty()) {
    validation.rows.push_back(report_row(few, subject + ", below 512 tokens"));
  }
}

// Samples of one kernel version where they are, else of any other.
const Samples& of_version(const std::map<std::string, Samples>& versions,
                          const std::string& version) {
  const auto same = versions.find(version);
  return same != versions.end() ? same->second : versions.begin()->second;
}

struct Regions {
  Comparison few;
  Comparison many;
};

// The largest count from the two before. `moves_tokens`: else ranks only count and agree, which
// takes as long among any number of them. Precondition: three counts.
void add_ranks(const std::string& variant, const Curves& curves, bool moves_tokens,
               Regions& regions) {
  const auto last = std::prev(curves.by_gpus.end());
  const auto& [ranks, targets] = *last;
  const auto& [more, more_versions] = *std::prev(last);
  const auto& [fewest, fewest_versions] = *std::prev(last, 2);
  for (const auto& [version, target] : targets) {
    const Samples& more_samples = of_version(more_versions, version);
    const Samples& fewest_samples = of_version(fewest_versions, version);
    const auto at_more = curve_through(more_samples, 0);
    const auto at_fewest = curve_through(fewest_samples, 0);
    if (!at_more || !at_fewest) continue;
    const SizeCurve law = moves_tokens ? profile::among_more_ranks(*at_fewest, fewest, *at_more,
                                                                   more, ranks, curves.shape.top_k)
                                       : *at_more;
    // What leaves a rank, of copies to all ranks.
    const double ratio = static_cast<double>(ranks - 1) / (more - 1);
    Samples as_sent;
    for (const auto& [tokens, time] : fewest_samples)
      as_sent.emplace_back(tokens * (fewest - 1), time);
    for (const auto& [tokens, time] : more_samples) as_sent.emplace_back(tokens * (more - 1), time);
    const auto line = alpha_beta(as_sent);
    for (const auto& [tokens, time] : target) {
      Comparison& region = tokens < many_tokens ? regions.few : regions.many;
      const std::string where = at_tokens(tokens, variant);
      region.law.add(time, law.time_us(tokens), where);
      region.equal_bytes.add(time, at_more->time_us(tokens * ratio), where);
      region.alpha_beta.add(time, line(tokens * (ranks - 1)), where);
      region.nearest_row.add(time, at_more->time_us(tokens), where);
    }
  }
}

void compare_ranks(const std::vector<MoeExchangeRow>& rows, Validation& validation) {
  for (const auto& [kernel, variants] : grouped(rows)) {
    std::map<std::string, Regions> by_counts;  // "EP 8 from 2 and 4"
    const bool moves_tokens = !ends_with(kernel, "prepare");
    for (const auto& [variant, curves] : variants) {
      if (curves.by_gpus.size() < 3) {
        std::vector<int> counts;
        for (const auto& entry : curves.by_gpus) counts.push_back(entry.first);
        validation.verdicts.push_back({study_name,
                                       fmt::format("{}: {} left out: measured among {} ranks only",
                                                   kernel, variant, fmt::join(counts, " and ")),
                                       std::nullopt});
        continue;
      }
      const auto last = std::prev(curves.by_gpus.end());
      const std::string counts = fmt::format("EP {} from {} and {}", last->first,
                                             std::prev(last, 2)->first, std::prev(last)->first);
      add_ranks(variant, curves, moves_tokens, by_counts[counts]);
    }
    for (const auto& [counts, regions] : by_counts) {
      report(regions.few, regions.many, kernel + ", " + counts, validation);
    }
  }
}

// Runs `work` where the table is in the folder, and says so where it is not.
void with_table(const std::string& folder, const std::string& name, Validation& validation,
                const std::function<void()>& work) {
  const std::string path = folder + "/" + name;
  if (std::filesystem::exists(path) || std::filesystem::exists(path + ".gz")) return work();
  validation.verdicts.push_back(
      {study_name, fmt::format("{} left out: it is not in {}", name, folder), std::nullopt});
}

}  // namespace

void compare_moe_exchanges(const std::string& folder, Validation& validation) {
  for (const char* name :
       {"deepep_normal.csv", "deepep_lowlatency.csv", "internode_alltoall.csv"}) {
    with_table(folder, name, validation, [] {});
  }
  with_table(folder, "trtllm_moe_alltoall_gb200.csv", validation,
             [&] { compare_ranks(load_tensorrt_llm(folder), validation); });
  compare_dispatchers(folder, validation);
}

}  // namespace moesim::study
