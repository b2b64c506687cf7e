#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace moesim::routing {

// Where router logits come from. Measured or assumed popularities:
//   gaussian:SIGMA   unit normal noise per token and expert, plus one bias per expert and layer,
//                    the same on all GPUs, of standard deviation SIGMA
//   zipf:A           log-popularity of rank^-A, experts shuffled per layer, plus Gumbel noise
//   dirichlet:A      log-popularity drawn from Dirichlet(A, ..., A) per layer, plus Gumbel noise
//   counts:FILE      log-popularity from a CSV of columns layer, expert, count (others ignored,
//                    an expert that is missing has count 0), plus Gumbel noise
// Named scenarios, all log-popularity plus Gumbel noise; X is how many times as popular a hot
// expert is as any other, R and X are 4 unless given:
//   balanced            all experts alike. Counts have the law of gaussian:0; only probabilities
//                       differ, because Gumbel noise has a longer upper tail than normal noise
//   hot-expert:X        one hot expert, drawn per layer and replica
//   hot-rank:X          all E / P experts of one rank of every group are hot, the rank drawn per
//                       layer and replica: that rank is asked for X / (X + P - 1) of the routes
//   spread-heat:X       as many hot experts as under hot-rank, dealt to the ranks in turn from a
//                       drawn one on: one each while E / P <= P. Every expert-wise loss has the
//                       law of hot-rank's; only the load of the GPUs differs
//   rotating:X          one hot expert, in replica r + 1 the one after that of replica r
//   burst:X:SHARE       hot-expert:X in a drawn SHARE (0.25 unless given) of the replicas, in all
//                       layers of these at once; balanced in the others
//   ragged-source:R     balanced; rank r of a group of P holds S (1 - (1 - 1 / R) r / (P - 1))
//                       tokens, rounded: from S down to S / R
//   empty-rank          balanced; the last rank of every group holds no tokens
// With Gumbel noise the first choices are exact draws from the popularity (Gumbel-max).
struct ScoreSource {
  enum class Kind {
    gaussian,
    zipf,
    dirichlet,
    counts,
    balanced,
    hot_expert,
    hot_rank,
    spread_heat,
    rotating,
    burst,
    ragged_source,
    empty_rank,
  };
  Kind kind = Kind::gaussian;
  double parameter = 0.1;  // SIGMA, A, X or R
  double share = 0;        // of burst
  std::string file;
  // counts: popularity[layer][expert], shares; layers beyond the file's wrap around.
  std::shared_ptr<const std::vector<std::vector<double>>> popularity;

  // With every parameter, so that it reproduces itself: "gaussian:0.1", "burst:4:0.25".
  std::string name() const;

  // Whether GPUs hold different numbers of tokens, and how many rank `rank` of a group of `ranks`
  // holds where the fullest holds `tokens`.
  bool is_ragged() const { return kind == Kind::ragged_source || kind == Kind::empty_rank; }
  std::int64_t tokens_of(int rank, int ranks, std::int64_t tokens) const;
};

// What --routing takes, for help texts: "gaussian:SIGMA (a bias per expert), zipf:A (...".
std::string score_source_help();

// Throws UsageError naming `what`, the kinds and an example; counts: also file and line.
ScoreSource parse_score_source(std::string_view text, const std::string& what);

}  // namespace moesim::routing
