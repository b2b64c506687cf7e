#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moesim {

// Throws UsageError "WHERE: 'NAME' is named twice" for a list with a name in it more than once;
// `where` is a flag, or a file and key.
void refuse_repeated(const std::vector<std::string_view>& names, const std::string& where);

}  // namespace moesim
