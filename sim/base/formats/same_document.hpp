#pragma once

#include <string>

namespace moesim {

// Whether two names or paths, as find_document() takes them, stand for one document of a kind
// ("models"): a shipped name and the path of its document do, whatever its spaces and order of
// keys; two files of other contents that give themselves one name do not. False where a document
// cannot be read.
bool is_one_document(const std::string& kind, const std::string& one, const std::string& other);

}  // namespace moesim
