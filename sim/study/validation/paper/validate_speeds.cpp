#include "sim/study/validation/paper/validate_speeds.hpp"

#include <fmt/format.h>

#include <map>

#include "sim/base/error.hpp"
#include "sim/study/sweep/evaluate.hpp"
#include "sim/study/validation/paper/speed_bands.hpp"

namespace moesim::study {
namespace {

constexpr const char* study_name = "zeng2024-speeds";

std::string subject_of(const scenario::Scenario& scenario) {
  std::string text = scenario.router.name();
  if (!scenario.router.is_dense()) {
    text += fmt::format(", CF {}", scenario.router.capacity_factor.text());
  }
  const int experts_per_gpu = scenario.experts / scenario.expert_parallel;
  if (experts_per_gpu > 1) text += fmt::format(", {} experts per GPU", experts_per_gpu);
  return text + ", " + name_in(scenario::mode_names, scenario.mode);
}

std::string summary(const std::string& what, const ErrorSummary& errors, const ErrorLimit& bar) {
  return fmt::format("{} ({} rows): mean {:.2f} %, worst {:.2f} % (bar {:.1f} / {:.1f} %)", what,
                     errors.rows, errors.mean * 100, errors.worst * 100, bar.mean * 100,
                     bar.worst * 100);
}

// Looks predictions up by what was predicted.
class Predictions {
 public:
  explicit Predictions(const StudyResult& result) {
    for (const StudyRow& row : result.rows) rows_[subject_of(row.scenario)] = &row;
  }
  const StudyRow& at(const std::string& subject) const {
    const auto found = rows_.find(subject);
    if (found == rows_.end()) throw Error("the study has no row for " + subject);
    return *found->second;
  }
  double speed(const std::string& subject) const {
    return at(subject).outcome.tokens_per_s_per_gpu;
  }

 private:
  std::map<std::string, const StudyRow*> rows_;
};

void add_claims(const StudyResult& result, Validation& validation) {
  const Predictions at(result);
  const auto say = [&](const std::string& text, std::optional<bool> met) {
    validation.verdicts.push_back({study_name, text, met});
  };
  const auto ratio = [&](const std::string& claim, double paper, const std::string& fast,
                         const std::string& slow) {
    const double predicted = at.speed(fast) / at.speed(slow);
    say(fmt::format("claim '{}': {:.2f}x predicted, {:.2f}x in the paper", claim, predicted, paper),
        std::nullopt);
  };
  ratio("top1+ir at CF 0.5 over top1 at CF 1", 10600.0 / 9400, "top1+ir, CF 0.5, prefill",
        "top1, CF 1, prefill");
  ratio("top2+ir at CF 1 over top2 at CF 2", 7300.0 / 6200, "top2+ir, CF 1, prefill",
        "top2, CF 2, prefill");
  const double slower = 1 - at.speed("top2+fr+ir, CF 2, prefill") / at.speed("top2, CF 2, prefill");
  const double slower_top1 =
      1 - at.speed("top1+fr+ir, CF 1, prefill") / at.speed("top1, CF 1, prefill");
  say(fmt::format(
          "claim 'rectification slows inference by less than 10 %': {:.1f} % predicted for "
          "top1+fr+ir at CF 1, {:.1f} % for top2+fr+ir at CF 2 (the paper's own row: 11.3 %)",
          slower_top1 * 100, slower * 100),
      std::nullopt);
  const Outcome& ir = at.at("top2+ir, CF 1, prefill").outcome;
  say(fmt::format(
          "claim 'IR rows about equal on all GPUs': standard deviation over GPUs {:.1f} % of "
          "the mean (top2+ir, CF 1)",
          ir.ir_rows_spread * 100),
      std::nullopt);
  const auto equal_at = [&](const std::string& subject) {
    const routing::TokenLoss& loss = at.at(subject).outcome.loss;
    say(fmt::format(
            "claim 'failed routes equal padding at CF = k': {:.2f} % failed, {:.2f} % padded "
            "({})",
            loss.failed * 100, loss.padded * 100, subject),
        std::nullopt);
  };
  equal_at("top1, CF 1, prefill");
  equal_at("top2, CF 2, prefill");
  const routing::TokenLoss& plain = at.at("top2, CF 2, prefill").outcome.loss;
  const routing::TokenLoss& filled = at.at("top1+fr, CF 1, prefill").outcome.loss;
  say(fmt::format(
          "claim '5 % unsuccessful routing for top-2, 50 % with Fill-in on top-1': {:.1f} % "
          "and {:.1f} % predicted",
          plain.failed * 100, filled.failed_attempted.value_or(0) * 100),
      std::nullopt);
}

// What the einsum backend is worth: the same model with index dispatch.
void add_einsum_finding(const PublishedStudy& study, const StudyResult& result,
                        routing::RoutingCache& cache, Validation& validation) {
  const Predictions at(result);
  const StudyRow& row = at.at("top2, CF 2, prefill");
  EvaluateSettings settings;
  for (std::size_t index = 0; index < study.unknowns.size(); ++index) {
    for (const step::KernelClass kind : study.unknowns[index].classes) {
      settings.calibration.multiplier[static_cast<std::size_t>(kind)] = result.multipliers[index];
    }
  }
  scenario::Scenario index_dispatch = row.scenario;
  index_dispatch.dispatch = scenario::Dispatch::index;
  const Outcome without = evaluate(index_dispatch, settings, cache);
  validation.verdicts.push_back(
      {study_name,
       fmt::format("einsum dispatch and combine take {:.0f} of {:.0f} ms of a top-2 step at CF 2; "
                   "with index dispatch the same step would take {:.0f} ms ({:.2f}x faster)",
                   row.outcome.parts_ms[static_cast<std::size_t>(StepPart::dispatch_combine)],
                   row.outcome.step_ms, without.step_ms, row.outcome.step_ms / without.step_ms),
       std::nullopt});
}

}  // namespace

StudyRouting speeds_routing(scenario::DocumentCache& documents) {
  return routing_of(PublishedStudy::load(study_name), documents);
}

Validation validate_speeds(scenario::DocumentCache& documents, routing::RoutingCache& cache) {
  const PublishedStudy study = PublishedStudy::load(study_name);
  const StudyResult result = calibrate(study, documents, cache);
  Validation validation{study.title, study.source, {}, {}};
  for (const StudyRow& row : result.rows) {
    validation.rows.push_back({study.name, subject_of(row.scenario), name_of(row.published.role),
                               "tokens/s/GPU", row.published.tokens_per_s_per_gpu,
                               row.outcome.tokens_per_s_per_gpu, row.error, row.left_out_error,
                               row.published.note});
  }
  for (std::size_t index = 0; index < study.unknowns.size(); ++index) {
    validation.verdicts.push_back(
        {study.name,
         fmt::format("fitted multiplier '{}': {:.3f} ({})", study.unknowns[index].name,
                     result.multipliers[index], study.unknowns[index].why),
         std::nullopt});
  }
  const auto judge = [&](const std::string& what, const ErrorSummary& errors,
                         const ErrorLimit& bar) {
    validation.verdicts.push_back({study.name, summary(what, errors, bar),
                                   errors.mean <= bar.mean && errors.worst <= bar.worst});
  };
  judge("inference speeds, in sample", result.in_sample, study.in_sample);
  judge("inference speeds, leave one out", result.leave_one_out, study.leave_one_out);
  judge("training speeds, unfitted", result.unfitted, study.unfitted);
  validation.verdicts.push_back(
      {study.name,
       fmt::format("excluded a priori ({} rows): mean {:.1f} %, worst {:.1f} %",
                   result.excluded.rows, result.excluded.mean * 100, result.excluded.worst * 100),
       std::nullopt});
  report_speed_bands(result, validation);
  add_claims(result, validation);
  add_einsum_finding(study, result, cache, validation);
  return validation;
}

}  // namespace moesim::study
