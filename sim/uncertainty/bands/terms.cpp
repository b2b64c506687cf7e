#include "sim/uncertainty/bands/terms.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/base/statistics.hpp"
#include "sim/cluster/measured_between.hpp"
#include "sim/uncertainty/steps/assumed_deviations.hpp"
#include "sim/uncertainty/steps/step_distance.hpp"

namespace moesim::uncertainty {
namespace {

using training::TrainingPart;

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

AssumedMoves of_host(const AssumedMoves& moves) {
  return {moves.host_slower, moves.host_faster, 0};
}

// What the host's times make the band wider by, as a deviation: the mean of both ends.
double host_deviation_of(const AssumedMoves& moves) {
  const MovedEnds ends = moved_ends(of_host(moves), 0.9);
  return (ends.low + ends.high) / 2 / normal_p95;
}

// Whether an end of the band, which `moves` are in, would come nearer by 2 % or more without them.
bool widen_band(const AssumedMoves& moves, const Band& band) {
  constexpr double noticed = 0.02;
  const Interval& logs = band.widest().log_ratios;
  const MovedEnds ends = moved_ends(moves, band.widest().level);
  const auto nearer = [](double distance, double end) {
    return distance - std::sqrt(std::max(0.0, distance * distance - end * end));
  };
  const double centre = band.expected.mean;
  return std::max(nearer(centre - logs.low, ends.low), nearer(logs.high - centre, ends.high)) >
         noticed;
}

// The term of the host's times that were not given; deviation 0 where none of them counts.
Term host_term(const Band& band, const training::HostCosts& host, double share,
               const std::string& own_steps) {
  Term term{"", host_deviation_of(band.moves), "", widen_band(of_host(band.moves), band)};
  const char* flag = "--host-read-us";
  if (host.assumes_launch) {
    flag = "--launch-us";
    term.name = fmt::format("host launches, assumed to a factor of two, are {:.0f} % of the step",
                            100 * share);
    term.deviation = std::max(term.deviation, share * host_deviation);
  } else {
    term.name = "host reads are assumed to a factor of two";
  }
  term.remedy = fmt::format("{} from a trace of the framework; {}{}", flag,
                            term.narrows ? "or " : "narrower with ", own_steps);
  return term;
}

// What a trait makes the band wider by, as a deviation: by its parts, and by what computing may
// hide of them.
double trait_deviation(const StepErrors& errors, const UnmeasuredTrait& unmeasured) {
  return std::hypot(errors.deviation_of({unmeasured}), hidden_deviation(unmeasured.trait.hidden));
}

// "a, b or c".
std::string alternatives(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t at = 0; at < names.size(); ++at) {
    text += fmt::format("{}{}", at == 0 ? "" : at + 1 == names.size() ? " or " : ", ", names[at]);
  }
  return text;
}

// "1 row", "3 rows".
std::string counted(int count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// How far configurations of one's own software scatter, by `steps` measured ones.
Term own_scatter_term(const Band& band, int steps) {
  constexpr int few_steps = 6;  // fewer leave the prior, of two rows, over a quarter of the scatter
  std::string name = fmt::format("your {} steps scatter around one another", steps);
  if (steps == 0) {
    name = "none of your rows is a whole step: their scatter is that of published ones";
  } else if (steps < few_steps) {
    name = fmt::format("{} of yours {} little of how far single ones scatter",
                       counted(steps, "step"), steps == 1 ? "tells" : "tell");
  }
  return {std::move(name), band.expected.scatter,
          "more rows of the kind that is asked about: moesim calibrate"};
}

// What one's own rows leave open of the step that is asked about.
Term own_latent_term(const Band& band, const Subject& subject, int rows) {
  std::string name = band.basis == Basis::own_models
                         ? fmt::format("none of your steps is one of {}", subject.model)
                         : fmt::format("{} {} open what this one spends its time on",
                                       counted(rows, "row"), rows == 1 ? "leaves" : "leave");
  return {std::move(name), band.expected.latent,
          "rows with other shares of exchanges and host: moesim calibrate"};
}

}  // namespace

double nic_gbit_per_s(const cluster::Cluster& cluster) {
  constexpr double bytes_per_gbit = 1e9 / 8;
  return cluster.nic_per_gpu.bytes_per_second / bytes_per_gbit;
}

Subject subject_of(const training::TrainingJob& job, const std::string& software) {
  return {software, job.profile->device().name, job.model->name,
          job.states.precision != model::Precision::bf16,
          crosses_nodes(job) ? nic_gbit_per_s(*job.cluster) : 0};
}

bool crosses_nodes(const training::TrainingJob& job) {
  return job.layout.sizes.gpus > job.cluster->gpus_per_domain;
}

double hidden_deviation(double gain) { return gain / 2 / normal_p95; }

void sort_terms(std::vector<Term>& terms) {
  std::stable_sort(terms.begin(), terms.end(), [](const Term& one, const Term& other) {
    return one.deviation > other.deviation;
  });
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
        trait_deviation(errors, each), "measured steps that have it: moesim calibrate");
  }
  // The measured steps hold some of what these decide of the step: where they hold most of it,
  // another value moves the prediction and hardly narrows the band.
  const Term host = host_term(band, job.host, part_share(step, {TrainingPart::host}), own_steps);
  add(host.name, host.deviation, host.remedy, host.narrows);
  if (crosses_nodes(job) && !cluster::measured_between_domains(*job.cluster)) {
    const double exchanges = part_share(step, training::exchange_parts());
    add(fmt::format("exchanges, between nodes by one law for all machines, are {:.0f} % of the "
                    "step",
                    100 * exchanges),
        exchanges * crossing_deviation,
        "nccl-tests of your nodes: moesim import LOG... --cluster NAME",
        widen_band({0, 0, band.moves.crossing}, band));
  }
  sort_terms(terms);
  return terms;
}

std::vector<Term> own_terms(const StepErrors& errors, const Band& band, const Subject& subject,
                            const StepSoftware& software) {
  std::vector<Term> terms = {own_scatter_term(band, software.scatter(RowKind::step).rows),
                             own_latent_term(band, subject, software.rows())};
  for (const UnmeasuredTrait& each : band.unmeasured) {
    terms.push_back({fmt::format("none of your steps has {}, which decides {:.0f} % of the step",
                                 text_of(each), 100 * each.trait.share),
                     trait_deviation(errors, each), "rows that have it: moesim calibrate"});
  }
  sort_terms(terms);
  return terms;
}

}  // namespace moesim::uncertainty
