#include "tools/moesim/recommend/search/search_proof.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "tools/moesim/recommend/tables/search_texts.hpp"

namespace moesim::tool {
namespace {

// "1", "1 to 3".
std::string first_places(std::size_t count) {
  return count == 1 ? "1" : fmt::format("1 to {}", count);
}

std::string proof_text(const study::SearchCounts& counts, bool is_stopped, bool is_proven) {
  if (is_stopped) {
    return fmt::format("then the search was stopped{} (see below)",
                       is_proven ? "" : ": NOT PROVEN");
  }
  const std::size_t violations = counts.violations;
  if (violations == 0) return "none of the others can be better";
  return fmt::format(
      "{} faster than their bound, so that others may be better",
      violations == 1 ? "one of them is" : fmt::format("{} of them are", violations));
}

// Candidates that have no answer, and why.
std::string left_out_line(std::size_t count, const std::string& a_reason) {
  if (count == 0) return "";
  return fmt::format("{} candidates left out, such as: {}\n", count_text(count), a_reason);
}

}  // namespace

std::string simulated_text(const study::TrainingSearch& search, const study::SearchCounts& counts,
                           bool is_stopped, bool is_proven) {
  return fmt::format("{} were simulated, {}\n{}{}{}", count_text(counts.simulated),
                     proof_text(counts, is_stopped, is_proven),
                     left_out_line(counts.unpriced, counts.an_unpriced),
                     left_out_line(counts.undrawn, counts.an_undrawn), routing_line(search));
}

bool is_unproven(const study::TrainingFound& found) {
  return found.unproven && found.unproven->may_be_faster > 0;
}

std::string unproven_lines(const study::TrainingFound& found) {
  if (!found.unproven) return "";
  const study::Unproven& unproven = *found.unproven;
  const std::size_t next = unproven.proven;
  std::string text;
  if (next > 0) {
    text = fmt::format("proven: {} {} the fastest of all\n", first_places(next),
                       next == 1 ? "is" : "are");
  }
  if (found.front.size() > 1) {
    text += "not complete: what other layouts gain in speed for token loss, or lose less\n";
  }
  if (unproven.may_be_faster == 0) return text;
  if (unproven.least_us == 0) {
    return text + fmt::format(
                      "not proven: {} other candidates could be faster; not all of those whose "
                      "routers drop tokens are bounded yet\n",
                      count_text(unproven.may_be_faster));
  }
  if (next < found.best.size()) {
    text += fmt::format(
        "not proven: {} candidate{} could still be faster than {}, the best of them by at most "
        "{:.1f} %\n",
        count_text(unproven.may_be_faster), unproven.may_be_faster == 1 ? "" : "s", next + 1,
        100 * unproven_gain(found, next));
  } else {
    text += fmt::format("not proven: {} other candidates could be next\n",
                        count_text(unproven.may_be_faster));
  }
  return text;
}

double unproven_gain(const study::TrainingFound& found, std::size_t place) {
  if (!found.unproven || place < found.unproven->proven) return 0;
  if (found.unproven->least_us <= 0) return std::numeric_limits<double>::infinity();
  return std::max(found.best[place].step.step_us / found.unproven->least_us - 1, 0.0);
}

}  // namespace moesim::tool
