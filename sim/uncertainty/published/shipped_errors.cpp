#include "sim/uncertainty/published/shipped_errors.hpp"

#include "sim/base/kept_files.hpp"
#include "sim/base/shipped.hpp"

namespace moesim::uncertainty {

const Residuals& shipped_residuals(const std::string& name) {
  static KeptFiles<Residuals> kept;
  const std::string file = find_document("residuals", name);
  return kept.get(file, [&] { return Residuals::load(file); });
}

const StepErrors& shipped_errors(const std::string& name) {
  static KeptFiles<StepErrors> kept;
  const std::string file = find_document("residuals", name);
  return kept.get(file, [&] { return StepErrors(Residuals::load(file)); });
}

}  // namespace moesim::uncertainty
