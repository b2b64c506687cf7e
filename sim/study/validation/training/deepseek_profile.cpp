#include "sim/study/validation/training/deepseek_profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/formats/gzip.hpp"
#include "sim/job/job_options.hpp"
#include "sim/parallel/overlapped_layers.hpp"
#include "sim/training/prices/layer_prices.hpp"

namespace moesim::study {
namespace {

constexpr std::size_t layers_of_a_chunk = 4;

// The time from the first kernel of the pair to the end of the last.
double measured_pair_ms(const std::string& path) {
  const CsvTable table = CsvTable::parse(read_plain_or_packed(path), path);
  double begin = std::numeric_limits<double>::infinity();
  double end = -begin;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const double start = table.number(row, "start_us");
    begin = std::min(begin, start);
    end = std::max(end, start + table.number(row, "dur_us"));
  }
  if (end <= begin) throw Error(fmt::format("{}: no kernel that takes time", path));
  return (end - begin) / 1e3;
}

}  // namespace

std::optional<ProfiledPair> deepseek_pair(const std::string& folder) {
  const std::string path = folder + "/deepseek_train_kernels.csv";
  if (!std::filesystem::exists(path) && !std::filesystem::exists(path + ".gz")) return std::nullopt;
  ProfiledPair pair;
  pair.measured_ms = measured_pair_ms(path);
  // Pipeline ranks change nothing of a layer.
  const training::TrainingJob job =
      job::resolve_job({{"model", "deepseek-v3"},
                        {"profile", "h100-sxm"},
                        {"gpus", "64"},
                        {"expert-parallel", "64"},
                        {"sequence-length", "4096"},
                        {"precision", "fp8-block"},
                        {"dispatcher", "deepep"},
                        {"dispatch-precision", "low"},
                        {"recompute", "layernorm,mla_up_proj,moe_act"}})
          .job;
  const std::vector<parallel::LayerPieces> chunk(
      layers_of_a_chunk, training::pieces_of(training::LayerPrices(job).layer(true)));
  parallel::OverlapRules rules;
  pair.apart_ms = parallel::overlapped_time(chunk, chunk, rules).us() / 1e3;
  rules.sms = static_cast<int>(job.profile->device().sms);
  rules.exchange_sms = job.dispatcher->training_sms;
  pair.predicted_ms = parallel::overlapped_time(chunk, chunk, rules).us() / 1e3;
  return pair;
}

}  // namespace moesim::study
