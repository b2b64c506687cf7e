#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/profile/profile.hpp"

namespace moesim::profile {

// One operation that a profile can be asked about by name, and its parameters as users type them.
struct PredictedOperation {
  std::string name;                     // "gemm"
  std::vector<std::string> parameters;  // required: "m", "n", "k"
  std::vector<std::string> optional;    // "kernel", "pass", "nccl"
  std::string kernel_class;             // of Profile::software_multiplier(): "gemm"
};
const std::vector<PredictedOperation>& operations();
// Throws UsageError that lists the operations, with the nearest one as a suggestion.
const PredictedOperation& find_operation(const std::string& name);

// The values of a parameter of operations that is a choice: "kernel", "pass", "dtype"; of others
// none.
std::vector<std::string> choices_of(const std::string& parameter);

// The time of one operation; of a profile with multipliers of a software as that runs it: times the
// multiplier of the operation's class. `params` maps parameter names to their text: whole numbers
// of at least 1; "bytes" also takes suffixes (64MiB, 1GB, 1e6); "kernel" of memory is streaming,
// activation or normalization; "pass" of attention is forward or backward; "nccl" of an exchange
// is a version the profile has; "rows-per-expert" of expert-ffn is a list (zeros allowed) in the
// place of rows and experts, "kernel" of it fused (the measured kernels of serving engines) or
// separate or batched (unfused_ffn.hpp); "dtype" is a data type that the profile has a curve of,
// bf16 if none is named (of quantize: to which the activations are cast). What a dispatcher
// exchanges (dispatch, combine with one) needs a cluster too and is refused here. Throws UsageError
// for an unknown operation or parameter, a missing, negative or non-numeric one, and Error where
// the profile cannot answer.
Estimate predict(const Profile& profile, const std::string& op,
                 const std::map<std::string, std::string>& params);

}  // namespace moesim::profile
