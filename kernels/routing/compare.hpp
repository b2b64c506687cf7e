#pragma once

#include <string>
#include <vector>

#include "kernels/routing/plan.hpp"

// One rank's routes from the kernels against the reference's. Host code: the buffers are where
// carve() put them in host memory.
namespace moesim::kernels::routing {

// The routes that the arrays of one rank hold, as RoutedGroup::routes() lists them.
std::vector<::moesim::routing::Route> listed(const RouterProblem& problem,
                                             const RouterBuffers& buffers);

// Empty if the two lists agree to the bit, weights and IR rows too, else the first difference.
std::string difference(const std::vector<::moesim::routing::Route>& kernels,
                       const std::vector<::moesim::routing::Route>& reference);

// Empty if the IR rows lie as the experts read them: one local expert's behind the other's, each in
// token order, counted by ir_begin; else what is wrong.
std::string wrong_ir_rows(const RouterProblem& problem, const RouterBuffers& buffers);

}  // namespace moesim::kernels::routing
