#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace moesim::routing {

// Where router logits come from.
//   gaussian:SIGMA   unit normal noise per token and expert, plus one bias per expert and layer,
//                    the same on all GPUs, of standard deviation SIGMA
//   zipf:A           log-popularity of rank^-A, experts shuffled per layer, plus Gumbel noise
//   dirichlet:A      log-popularity drawn from Dirichlet(A, ..., A) per layer, plus Gumbel noise
//   counts:FILE      log-popularity from a CSV of columns layer, expert, count (others ignored,
//                    an expert that is missing has count 0), plus Gumbel noise
// With Gumbel noise the first choices are exact draws from the popularity (Gumbel-max).
struct ScoreSource {
  enum class Kind { gaussian, zipf, dirichlet, counts };
  Kind kind = Kind::gaussian;
  double parameter = 0.1;
  std::string file;
  // counts: popularity[layer][expert], shares; layers beyond the file's wrap around.
  std::shared_ptr<const std::vector<std::vector<double>>> popularity;

  std::string name() const;  // as typed: "gaussian:0.1"
};

// Throws UsageError naming `what`, the kinds and an example; counts: also file and line.
ScoreSource parse_score_source(std::string_view text, const std::string& what);

}  // namespace moesim::routing
