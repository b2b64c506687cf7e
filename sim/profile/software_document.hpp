#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/formats/document.hpp"

namespace moesim::profile {

// How well multipliers are known that `moesim calibrate` fitted to measured steps of one's own.
struct SoftwareFit {
  std::string machine;                // of the profile's device
  std::vector<std::string> models;    // that were measured
  std::vector<std::string> clusters;  // on which; empty: not said
  int rows = 0;                       // that were measured, one per configuration
  // The variances of the logs of the two factors: on all of a step, and on exchanges beyond that
  // (0: not fitted).
  double level_variance = 0;
  double exchange_variance = 0;
  double covariance = 0;
  // The shares of the measured steps that each class of work takes on average ("products",
  // "memory", "inside", "across"). What a class is off by is in the level as far as steps have as
  // much of it.
  std::map<std::string, double> shares;
  double scatter = 0;  // standard deviation of the log of one configuration around the fit
  double degrees = 1;  // of freedom of the scatter
  // |predicted / measured - 1|, each row left out; none of one row.
  std::optional<double> median_error;
  std::optional<double> worst_error;
};

// A "moesim-software" document: a profile of hardware as some software uses it.
struct SoftwareDocument {
  std::string name;
  std::string profile;                        // of hardware: a shipped name or a file
  std::map<std::string, double> multipliers;  // by kernel class
  std::string source;
  std::optional<SoftwareFit> fit;

  static bool is_one(const Document& document);
  // Throws UsageError naming file and key where it breaks software.schema.
  static SoftwareDocument read(const Document& document);
  std::string text() const;  // JSON
};

}  // namespace moesim::profile
