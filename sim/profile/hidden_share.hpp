#pragma once

namespace moesim::profile {

// The share of the compute beside an exchange of gradients or parameters that hides it: exchanges
// share SMs and memory with kernels. Fitted: public steps that send 29 GB of gradients between
// nodes of B200 take a second longer than if all of it were hidden, with two micro-batches as with
// five.
inline constexpr double hidden_share = 0.25;

}  // namespace moesim::profile
