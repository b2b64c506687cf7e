#include "tools/moesim/bands/own_ratio.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "sim/base/error.hpp"
#include "sim/model/model.hpp"
#include "sim/uncertainty/steps/step_distance.hpp"
#include "tools/moesim/bands/capacity_pair.hpp"
#include "tools/moesim/bands/train_band.hpp"

namespace moesim::tool {
uncertainty::OwnStep own_step(const std::string& model, const std::string& precision,
                              const std::vector<double>& parts, double step_ms,
                              const uncertainty::StepExchanges& exchanges,
                              std::optional<double> host_gain_ms) {
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  training::PartTimes times{};
  for (std::size_t part = 0; part < times.size(); ++part) {
    times[part] = parts[part] / sum * 1e3 * step_ms;
  }
  uncertainty::StepClasses classes =
      uncertainty::classes_of(times, uncertainty::crossing_of(exchanges));
  classes.host_gain = host_gain_ms;
  return {model, precision, classes};
}

uncertainty::OwnStep own_step(const training::TrainingJob& job,
                              const training::TrainingStep& step) {
  std::optional<double> host_gain_ms;
  if (step.host_gain_us) host_gain_ms = *step.host_gain_us / 1e3;
  return own_step(job.model->name, model::name_of(job.states.precision),
                  uncertainty::part_times(step), step.step_us / 1e3, step_exchanges(job),
                  host_gain_ms);
}

std::string model_in(const std::string& typed) {
  try {
    return model::Model::load(typed).name;
  } catch (const Error&) {
    return typed;
  }
}

uncertainty::Band own_ratio_band(const uncertainty::StepSoftware& software,
                                 const std::string& cluster, const uncertainty::OwnStep& one,
                                 const uncertainty::OwnStep& other, double unmeasured) {
  uncertainty::Band band = uncertainty::own_ratio_band(
      software.on(cluster), one, other, study::published_errors().residuals().components);
  study::published_errors().widen_by(unmeasured, band);
  return band;
}

bool is_narrower(const uncertainty::Band& one, const uncertainty::Band& other) {
  return one.widest().log_ratios.width() < other.widest().log_ratios.width();
}

}  // namespace moesim::tool
