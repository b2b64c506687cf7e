#pragma once

#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/search/training_search.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/progress.hpp"
#include "tools/moesim/recommend/best/drawn_best.hpp"
#include "tools/moesim/recommend/request/recommend_request.hpp"
#include "tools/moesim/recommend/search/search_stop.hpp"
#include "tools/moesim/rows/named_cells.hpp"

namespace moesim::tool {

// What a search for the fastest layout alone has found.
struct BestFound {
  RecommendRequest request;
  study::TrainingFound found;
  study::FoundStep best;
  TrainBand band;
  DrawnBest drawn;

  int gpus() const { return best.job.layout.sizes.gpus; }
};

// Several such searches, one after another, of one time limit.
class BestSearches {
 public:
  // `stop` outlives it.
  BestSearches(SearchStop& stop, std::size_t searches);

  // `name`: of the search, before its progress. Nothing where it has no best: reason() says why.
  // Errors that are no answer are thrown (why_unanswered()): such as those of documents.
  std::optional<BestFound> next(const SearchSource& source, const std::string& name);
  void finish() { progress_.finish(); }
  // Of the last search, that has no best.
  const std::string& reason() const { return reason_; }
  // The error of the last search; null: it ended otherwise.
  std::exception_ptr error() const { return error_; }
  // One of them was stopped before it was proven.
  bool is_stopped() const { return is_stopped_; }
  const study::SearchCounts& counts() const { return counts_; }  // of all

 private:
  std::optional<BestFound> search(const SearchSource& source, const std::string& name);

  EachNoteOnce once_;
  SearchStop& stop_;
  ProgressLine progress_{"candidates"};
  int left_;
  study::SearchCounts counts_;
  std::string reason_;
  std::exception_ptr error_;
  bool is_stopped_ = false;
};

// "NAME: proven: ...", the lines below a table of searches of which this one was stopped; "": it
// was not.
std::string unproven_text(const BestFound& best, const std::string& name);

// What the steps of several searches have in common: "16 sequences of 4096 tokens per GPU and step,
// bf16", and a line on a global batch that grows with the GPUs. `precisions`: those searched.
std::string batch_text(const study::TrainingSearch& search, bool grows,
                       const std::string& precisions);

// "812 ms to 1003 ms": the widest level of the band of its step.
std::string band_text(const BestFound& best);

// What every row of such a search has: that of its best, whether it is proven, the drawn routing
// and the band.
void add_best_cells(const BestFound& best, NamedCells& row);

// The columns of a run's cost, and their texts.
std::vector<std::string> cost_names(const BestFound& best);
std::vector<std::string> cost_texts(const BestFound& best);

}  // namespace moesim::tool
