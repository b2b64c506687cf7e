#include "sim/study/training_band.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>

#include "sim/base/contains.hpp"
#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/statistics.hpp"
#include "sim/base/text.hpp"
#include "sim/job/job_options.hpp"
#include "sim/model/precision.hpp"
#include "sim/training/job/job_ranges.hpp"
#include "sim/training/step/job_rules.hpp"
#include "sim/training/step/layer_time.hpp"
#include "sim/uncertainty/published/built_options.hpp"
#include "sim/uncertainty/published/shipped_errors.hpp"

namespace moesim::study {
namespace {

using training::TrainingStep;

constexpr const char* published_steps = "training";
constexpr double level_of_columns = 0.9;  // p05 to p95

std::string left_out_text(const uncertainty::StepSoftware& software) {
  if (!software.median_error || !software.worst_error) {
    return "one configuration, which tells nothing of how far others scatter";
  }
  return fmt::format("each left out: {:.0f} % off in the median, {:.0f} % at worst",
                     100 * *software.median_error, 100 * *software.worst_error);
}

TrainingBand own_band(const std::string& path, const uncertainty::StepSoftware& calibrated,
                      const training::TrainingJob& job, TrainingStep& step) {
  const std::string& cluster = job.cluster->name;
  const uncertainty::StepSoftware software = calibrated.on(cluster);
  const bool elsewhere = software.covariance != calibrated.covariance;
  const uncertainty::StepErrors& errors = published_errors();
  const uncertainty::Components& parts = errors.residuals().components;
  TrainingBand found;
  found.own = path;
  found.subject = subject_of(job, software.software);
  const uncertainty::CrossingParts crossing = training::crossing_parts(job);
  uncertainty::add_host_gain(software, job, step);
  found.band = software.band(uncertainty::classes_of(step, crossing), found.subject,
                             model::name_of(job.states.precision), parts.model, parts.precision);
  errors.widen_by(software.unmeasured(uncertainty::traits_of(job, step)), found.band);
  found.fitted =
      fmt::format("{} of {} model{} ({}); {}\n", own_rows_text(software), software.models.size(),
                  software.models.size() == 1 ? "" : "s", software.source, left_out_text(software));
  if (elsewhere) {
    found.fitted +=
        fmt::format("  none of them on {}: its exchanges are known to 25 % at best\n", cluster);
  }
  step = software.applied(step, crossing);
  found.terms = uncertainty::own_terms(errors, found.band, found.subject, software);
  return found;
}

// Where software was fitted to what another profile predicts than that of the step. Given as
// --profile it brings its own.
std::string other_profile_note(const std::string& software, const training::TrainingJob& job) {
  const auto own = own_software(software, job);
  if (own->profile.empty()) return "";
  // The same profile may be typed by name or path.
  const auto name = [](const std::string& typed) {
    return std::filesystem::path(typed).stem().string();
  };
  const std::string used = job.typed.profile;
  if (used == software || name(own->profile) == name(used)) return "";
  return fmt::format(
      "note: --software {0} was fitted to what {1} predicts, this step is predicted by {2}: where "
      "their curves differ, that counts twice or not at all: give --profile {0} in its place, or "
      "calibrate with --profile {2}",
      software, own->profile, used);
}

// Where the published steps on the GPU of a job, of `software` if that is known, had other NICs
// than its cluster has.
std::string other_nics_note(const training::TrainingJob& job, const std::string& software) {
  const uncertainty::Subject asked = subject_of(job, software);
  double measured = 0;
  for (const uncertainty::ResidualGroup& group : published_errors().residuals().groups) {
    if (group.subject.machine != asked.machine) continue;
    if (!software.empty() && group.subject.software != software) continue;
    if (nics_alike(group.subject, asked)) return "";
    measured = group.subject.nic_gbit_per_s;
  }
  if (measured == 0) return "";
  return fmt::format(
      "note: published steps on {} are in line with {:g} Gb/s a GPU between nodes; {} has {:g}, so "
      "that the band is that of other machines: give --cluster the NICs that yours has "
      "(sim/training/ACCURACY.md)",
      asked.machine, measured, job.cluster->name, asked.nic_gbit_per_s);
}

// Which options the published steps of the software had that this one has not because nobody chose.
std::string other_build_note(const training::TrainingJob& job, const std::string& software,
                             const std::set<std::string>& chosen) {
  const uncertainty::Subject asked = subject_of(job, software);
  const auto nearest =
      uncertainty::nearest_build(published_errors().residuals(), asked, job::built_options(job),
                                 chosen, [&](const uncertainty::BuiltOptions& differing) {
                                   return job::can_be_built(job, differing);
                                 });
  if (!nearest || nearest->differing.empty()) return "";
  std::vector<std::string> theirs;
  for (const auto& [name, value] : nearest->differing) {
    theirs.push_back(fmt::format("--{} {}", name, value));
  }
  return fmt::format(
      "note: the measured steps that the band is based on ({} on {}{}) had {}, this one has the "
      "defaults: give the options that your software has",
      asked.software, asked.machine, nearest->of_model ? ", " + asked.model : "",
      fmt::join(theirs, " "));
}

void check_published(const std::string& software) {
  const std::vector<std::string> known = published_software();
  if (contains(known, software)) return;
  throw UsageError(
      fmt::format("--software: unknown '{}'{}; with published steps: {}; or a document that "
                  "moesim calibrate wrote (a path, or a name ending in .json)",
                  software, suggestion(software, known), fmt::join(known, ", ")));
}

}  // namespace

const uncertainty::StepErrors& published_errors() {
  return uncertainty::shipped_errors(published_steps);
}

std::vector<std::string> published_software() { return published_errors().residuals().software(); }

// A path, as find_document() tells paths from names.
bool names_own_software(const std::string& software) {
  return software.find('/') != std::string::npos ||
         (software.size() > 5 && software.compare(software.size() - 5, 5, ".json") == 0);
}

void check_software(const std::string& software) {
  if (names_own_software(software)) {
    uncertainty::StepSoftware::load(software);
  } else {
    check_published(software);
  }
}

uncertainty::Subject subject_of(const training::TrainingJob& job, const std::string& software) {
  if (!software.empty()) check_published(software);
  return uncertainty::subject_of(job, software);
}

std::optional<uncertainty::StepSoftware> own_software(const std::string& software,
                                                      const training::TrainingJob& job) {
  training::check_documents(job);
  const std::string& profiled = job.profile->calibration();
  if (!profiled.empty() && software != profiled) {
    throw UsageError(fmt::format(
        "--software {} with --profile {}: that is a software too: give one of them, or its profile "
        "{}",
        software, profiled, job.profile->name()));
  }
  if (!names_own_software(software)) return std::nullopt;
  auto own = uncertainty::StepSoftware::load(software);
  if (own.machine == job.profile->device().name) return own;
  throw UsageError(fmt::format(
      "--software {0}: calibrated on {1}, this step is one of {2}: {3}, or calibrate with steps of "
      "{2}",
      software, own.machine, job.profile->device().name,
      own.profile.empty() ? "give the --profile of " + own.machine
                          : fmt::format("give --profile {} in its place", software)));
}

std::string own_rows_text(const uncertainty::StepSoftware& software) {
  std::vector<std::string> words;
  for (const auto& kind : uncertainty::row_kind_names) {
    const int rows = software.scatter(kind.value).rows;
    if (rows == 0) continue;
    const std::string name = fmt::format("{}{}", kind.name, rows == 1 ? "" : "s");
    words.push_back(!words.empty() ? fmt::format("{} {}", rows, name)
                    : rows == 1    ? fmt::format("1 {} of your own", name)
                                   : fmt::format("{} of your own {}", rows, name));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::vector<std::string> software_notes(const std::string& software,
                                        const training::TrainingJob& job,
                                        const std::set<std::string>& chosen) {
  std::vector<std::string> notes;
  const auto add = [&](const std::string& note) {
    if (!note.empty()) notes.push_back(note);
    return !note.empty();
  };
  if (names_own_software(software)) {
    if (chosen.contains("software")) add(other_profile_note(software, job));
    return notes;
  }
  std::set<std::string> told = chosen;
  if (add(other_nics_note(job, software))) told.insert("cluster");
  add(other_build_note(job, software, told));
  return notes;
}

TrainingBand apply_software(const std::string& software, const training::TrainingJob& job,
                            TrainingStep& step) {
  const auto own = own_software(software, job);
  training::add_hidden_parts(job, step);
  if (own) return own_band(software, *own, job, step);
  const uncertainty::StepErrors& errors = published_errors();
  TrainingBand found;
  found.subject = subject_of(job, software);
  found.moves = uncertainty::moves_of(job, step);
  found.band = errors.band(found.subject, uncertainty::usual_levels(),
                           uncertainty::traits_of(job, step), found.moves);
  found.terms = uncertainty::terms_of(errors, found.subject, found.band, job, step);
  return found;
}

TrainingStep step_before_software(const std::string& software, training::TrainingJob& job,
                                  const training::DrawProgress& progress,
                                  training::SharedDraws* shared) {
  const auto own = own_software(software, job);
  const bool prices_host = own && own->prices_host;
  if (prices_host) job.host.factor = own->host_factor();
  training::check_decoder(job);
  training::check_job(job);
  std::shared_ptr<const training::DrawnLoads> loads;
  if (job.routing) {
    loads = shared == nullptr
                ? std::make_shared<const training::DrawnLoads>(job, true, nullptr, progress)
                : shared->loads(job, progress);
  }
  TrainingStep step = training::training_step(job, loads);
  training::add_hidden_parts(job, step, loads);
  if (!own) training::add_host_moves(job, step, loads);
  if (prices_host) uncertainty::add_host_gain(*own, job, step, loads);
  return step;
}

StepTimes step_times(const uncertainty::Band& band, const TrainingStep& step) {
  const uncertainty::BandLevel& widest = band.widest();
  const double middle = band.expected.mean;
  const double stretch =
      widest.level >= level_of_columns
          ? 1
          : normal_quantile(0.5 + level_of_columns / 2) / normal_quantile(0.5 + widest.level / 2);
  const auto at = [&](double log_ratio) { return std::exp(log_ratio) * step.step_us / 1e3; };
  const auto stretched = [&](double log_ratio) {
    return at(middle + stretch * (log_ratio - middle));
  };
  const uncertainty::Interval ends = widest.log_ratios;
  return {widest.level,  at(ends.low),        at(middle),
          at(ends.high), stretched(ends.low), stretched(ends.high)};
}

}  // namespace moesim::study
