#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

bool Validation::passed() const {
  for (const Verdict& verdict : verdicts) {
    if (verdict.met == false) return false;
  }
  return true;
}

}  // namespace moesim::study
