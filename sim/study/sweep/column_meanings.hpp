#pragma once

#include <string>

namespace moesim::study {

// What a result column beside the losses says, for readers of a CSV; "" for columns of options,
// whose help says it, and for unknown names.
std::string meaning_of_column(const std::string& name);

}  // namespace moesim::study
