#pragma once

#include <string>

namespace moesim::tool {

// The text as a shell reads it back.
std::string shell_word(const std::string& text);

}  // namespace moesim::tool
