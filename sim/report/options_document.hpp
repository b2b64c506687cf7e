#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace moesim::report {

// The scenario options and the columns of results as one document, for programs that read them:
//   {"options": [{"name", "column", "type": whole | decimal | choice | text | document, "minimum",
//                 "maximum", "values": [{"name", "meaning"}], "default",
//                 "default_from_router": whether the router decides it, "help",
//                 "affects": [routing, step]}],
//    "columns": [{"name", "type": text | number | boolean,
//                 "role": status | option | figure | loss | part | provenance, "unit"}]}
// Options are in grid order, columns in the order of files. Of a text or document, `values` are the
// forms it may have; a bound that there is not, or a unit, is null.
nlohmann::ordered_json options_document();
// The options alone, a line each.
std::string options_table();

}  // namespace moesim::report
