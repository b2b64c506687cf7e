#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/uncertainty/published/residuals.hpp"
#include "sim/uncertainty/statistics/symmetric_matrix.hpp"

namespace moesim::uncertainty {

// A log ratio of measured to predicted time, before it is measured.
struct Expected {
  double mean = 0;
  double latent = 0;   // standard deviation of what configurations of the subject share
  double scatter = 0;  // of one configuration of the subject around that
  double deviation() const;
};

// The error of a predicted step as a sum of independent normal terms: one of every prediction, of
// the software, of the machine in that software, of the precision of products, of the model on that
// machine (standard deviations: Components), and the scatter of configurations, which each software
// has of its own. Conditioned on the medians of groups (a Gaussian process over subjects; Rasmussen
// and Williams 2006, section 2.2), whose noise is that of a median of so many different
// configurations.
class ErrorModel {
 public:
  // `groups` may be empty: the answer then is the prior one.
  ErrorModel(std::vector<ResidualGroup> groups, const Components& components);

  Expected at(const Subject& subject) const;
  // The log of the posterior of the medians of the groups, and of the components where nothing was
  // measured.
  double log_posterior() const;

 private:
  double scatter_of(const std::string& software) const;

  std::vector<ResidualGroup> groups_;
  Components components_;
  std::map<std::string, double> scatter_;  // by software
  Vector centred_;                         // medians less the prior mean
  SymmetricMatrix covariance_;
  Vector weights_;  // covariance^-1 centred
};

// The components under which the medians of the groups are most likely, each held near 0.2 where
// the groups say little (log-normal, a factor of e wide: assumed).
Components fitted_components(const std::vector<ResidualGroup>& groups);

}  // namespace moesim::uncertainty
