#include "sim/uncertainty/terms.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/cluster/measured_between.hpp"
#include "sim/uncertainty/assumed_deviations.hpp"
#include "sim/uncertainty/step_distance.hpp"

namespace moesim::uncertainty {
namespace {

using training::Part;

// Where steps of the same software and machine were published, of this model or others, three of
// one's own leave as wide a band as those do: validate training.
std::string remedy_of_steps(const Band& band, const Subject& subject) {
  const bool has_machine = band.basis == Basis::model || band.basis == Basis::machine;
  return fmt::format("{} of your own measured steps: moesim calibrate{}",
                     has_machine ? "six or more" : "three",
                     subject.software.empty() ? "" : " --software " + subject.software);
}

// Its GPU, and its NICs where it is steps with others that were measured.
std::string machine_text(const StepErrors& errors, const Subject& subject) {
  for (const ResidualGroup& group : errors.residuals().groups) {
    if (group.subject.software == subject.software && group.subject.machine == subject.machine &&
        !nics_alike(group.subject, subject)) {
      return fmt::format("{} with {:g} Gb/s a GPU between nodes", subject.machine,
                         subject.nic_gbit_per_s);
    }
  }
  return subject.machine;
}

// What the host's times make the band wider by, as a deviation: the mean of both ends.
double host_deviation_of(const AssumedMoves& moves) {
  constexpr double p95_deviations = 1.645;
  const MovedEnds ends = moved_ends({moves.host_slower, moves.host_faster, 0}, 0.9);
  return (ends.low + ends.high) / 2 / p95_deviations;
}

// "a, b or c".
std::string alternatives(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t at = 0; at < names.size(); ++at) {
    text += fmt::format("{}{}", at == 0 ? "" : at + 1 == names.size() ? " or " : ", ", names[at]);
  }
  return text;
}

}  // namespace

Subject subject_of(const training::TrainingJob& job, const std::string& software) {
  constexpr double bytes_per_gbit = 1e9 / 8;
  return {software, job.profile->device().name, job.model->name,
          job.states.precision != model::Precision::bf16,
          job.cluster->nic_per_gpu.bytes_per_second / bytes_per_gbit};
}

bool crosses_nodes(const training::TrainingJob& job) {
  return job.layout.sizes.gpus > job.cluster->gpus_per_domain;
}

std::vector<Term> terms_of(const StepErrors& errors, const Subject& subject, const Band& band,
                           const training::TrainingJob& job, const training::TrainingStep& step) {
  const Components& parts = errors.residuals().components;
  const std::string own_steps = remedy_of_steps(band, subject);
  std::vector<Term> terms;
  const auto add = [&](std::string name, double deviation, std::string remedy,
                       bool narrows = true) {
    if (deviation > 0) terms.push_back({std::move(name), deviation, std::move(remedy), narrows});
  };
  double unknown = 0;  // variance of what was never measured
  if (band.basis == Basis::nothing) {
    const std::vector<std::string> names = errors.residuals().software();
    const std::string why = subject.software.empty()
                                ? "the software is not named"
                                : fmt::format("no measured step with {}", subject.software);
    add(why, parts.software,
        fmt::format("--software {}, where one of them is yours; or {}", alternatives(names),
                    own_steps));
    unknown += parts.software * parts.software;
  }
  if (band.basis >= Basis::software) {
    add(fmt::format("no measured step of that software on {}", machine_text(errors, subject)),
        parts.machine, own_steps);
    unknown += parts.machine * parts.machine;
  }
  if (band.basis >= Basis::machine) {
    add(fmt::format("no measured step of {} there", subject.model), parts.model, own_steps);
    unknown += parts.model * parts.model;
  }
  add("configurations of one model scatter", band.expected.scatter, own_steps);
  const double rest = band.expected.latent * band.expected.latent - unknown;
  add(fmt::format("few measured steps in {}", subject.low_precision ? "FP8" : "bf16"),
      std::sqrt(std::max(rest, 0.0)), own_steps);
  for (const UnmeasuredTrait& each : band.unmeasured) {
    add(fmt::format("no measured step has {}, which decides {:.0f} % of the step", text_of(each),
                    100 * each.trait.share),
        errors.deviation_of({each}), "measured steps that have it: moesim calibrate");
  }
  const double host = part_share(step, {Part::host});
  // Of what these decide of the step the measured ones hold some: where that is most of it, another
  // value moves the prediction and hardly narrows the band.
  const double host_wider = host_deviation_of(band.moves);
  const double host_term = std::max(host * host_deviation, host_wider);
  const bool host_narrows = 2 * host_wider > host_term;
  add(fmt::format("host launches, assumed to a factor of two, are {:.0f} % of the step",
                  100 * host),
      host_term,
      fmt::format("--launch-us from a trace of the framework; {}{}",
                  host_narrows ? "or " : "narrower with ", own_steps),
      host_narrows);
  if (crosses_nodes(job) && !cluster::measured_between_domains(*job.cluster)) {
    const double exchanges = part_share(step, training::exchange_parts());
    add(fmt::format("exchanges, between nodes by one law for all machines, are {:.0f} % of the "
                    "step",
                    100 * exchanges),
        exchanges * crossing_deviation,
        "nccl-tests of your nodes: moesim import LOG... --cluster NAME",
        2 * band.moves.crossing > exchanges);
  }
  std::stable_sort(terms.begin(), terms.end(), [](const Term& one, const Term& other) {
    return one.deviation > other.deviation;
  });
  return terms;
}

std::vector<Term> own_terms(const StepErrors& errors, const Band& band, const Subject& subject,
                            const StepSoftware& software) {
  constexpr int few_steps = 6;  // fewer leave the prior, of two rows, over a quarter of the scatter
  const int steps = software.scatter(RowKind::step).rows;
  std::vector<Term> terms = {
      {steps == 0 ? "none of your rows is a whole step: their scatter is that of published ones"
       : steps < few_steps
           ? fmt::format("{} step{} of yours tell{} little of how far single ones scatter", steps,
                         steps == 1 ? "" : "s", steps == 1 ? "s" : "")
           : fmt::format("your {} steps scatter around one another", steps),
       band.expected.scatter, "more rows of the kind that is asked about: moesim calibrate"},
      {band.basis == Basis::own_models
           ? fmt::format("none of your steps is one of {}", subject.model)
           : fmt::format("{} rows leave open what this one spends its time on", software.rows()),
       band.expected.latent, "rows with other shares of exchanges and host: moesim calibrate"}};
  for (const UnmeasuredTrait& each : band.unmeasured) {
    terms.push_back({fmt::format("none of your steps has {}, which decides {:.0f} % of the step",
                                 text_of(each), 100 * each.trait.share),
                     errors.deviation_of({each}), "rows that have it: moesim calibrate"});
  }
  std::stable_sort(terms.begin(), terms.end(), [](const Term& one, const Term& other) {
    return one.deviation > other.deviation;
  });
  return terms;
}

}  // namespace moesim::uncertainty
