#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/search/training_search.hpp"
#include "tools/moesim/recommend/request/recommend_request.hpp"
#include "tools/moesim/rows/named_cells.hpp"

namespace moesim::tool {

// The best under forced balance with the routing of a model's router, which is never balanced: the
// first of them, one for each, nothing where its groups cannot be drawn.
class DrawnBest {
 public:
  // Nothing is drawn for a dense model, or where the search itself has drawn.
  DrawnBest(const RecommendRequest& request, const std::vector<study::FoundStep>& best);

  bool empty() const { return drawn_.empty(); }
  // Null where it was not drawn.
  const study::FoundStep* at(std::size_t place) const;
  // Whether a step that was drawn takes more memory than there is room for.
  bool is_too_large(std::size_t place) const;
  // Which of the best to take: the first, where it is too large the fastest drawn one that is not.
  std::size_t usable() const;

  // "3434", "3434*" of one that is too large.
  std::string cell(std::size_t place) const;
  // What drawing changes: memory, and which is the fastest.
  std::string text() const;
  // The columns of a row: drawn speed and memory, and whether it fits then.
  void add_cells(std::size_t place, NamedCells& row) const;

 private:
  std::optional<std::size_t> fastest_that_fits() const;

  double room_gib_ = 0;
  std::vector<std::optional<study::FoundStep>> drawn_;
};

// The best of one of several searches, and where that is: "64 GPUs".
struct DrawnPlace {
  std::string name;
  const DrawnBest* drawn = nullptr;
};
// What drawing makes of the first of each; "": nothing was drawn.
std::string drawn_text(const std::vector<DrawnPlace>& places);

}  // namespace moesim::tool
