#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/profile/estimate.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::tool {

// predict --op dispatch, and --op combine with a dispatcher: one exchange of an MoE layer's rows by
// a library of its own, every GPU with as many tokens, experts drawn evenly. Parameters are texts
// as users type them:
//   dispatcher   shipped name or file (profiles/dispatchers)
//   tokens, hidden, k, experts, gpus   of each GPU; values of a row; choices of a token; all; all
//   sms          that its kernels take [the dispatcher's usual ones]
//   row-format   of dispatched rows: bf16 (default) or fp8, with a scale for each 128 values
//   node-limit   the most nodes that a token's experts lie on [any]
//   cluster      shipped name or file [the profile's usual one]
//   transport    gpu or proxy writes to the NICs [as the cluster says]
bool is_dispatch(const std::string& op, const std::map<std::string, std::string>& params);

// The values of a parameter that is a choice, row-format or transport; of others none.
std::vector<std::string> dispatch_choices(const std::string& parameter);

struct DispatchAnswer {
  profile::Estimate estimate;
  std::string provenance;
};

// Fills in params what follows from the others: sms, cluster. Throws UsageError for a parameter
// that is missing, unknown or out of range, and for what the dispatcher does not do.
DispatchAnswer predict_dispatch(const std::string& op, std::map<std::string, std::string>& params,
                                const profile::Profile& profile);

}  // namespace moesim::tool
