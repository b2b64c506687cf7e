#include "sim/cluster/cluster.hpp"
#include "sim/cluster/rank_placement.hpp"

#include "sim/base/error.hpp"
#include "sim/base/formats/document.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    // A document, then a placement of 8 ranks.
    std::string_view rest = fuzz::text_of(data, size);
    const std::string_view document = fuzz::take_part(rest);
    const auto cluster =
        cluster::Cluster::read(Document::parse(std::string(document), "input.json"));
    static_cast<void>(cluster::parse_placement(std::string(rest), cluster, 8, "--placement"));
  } catch (const Error&) {  // an answer
  }
  return 0;
}
