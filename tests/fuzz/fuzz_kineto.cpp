#include "sim/routing/traces/trace_import.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

static const fuzz::Folder folder;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    // The traces of one rank or more.
    std::string_view rest = fuzz::text_of(data, size);
    routing::ProfilerQuery query;
    query.layers = 1;
    query.top_k = 1;
    constexpr std::size_t most_ranks = 4;
    while (!rest.empty() && query.files.size() < most_ranks) {
      const std::string name = "rank" + std::to_string(query.files.size()) + ".json";
      query.files.push_back(folder.put(name, fuzz::take_part(rest)));
    }
    if (!query.files.empty()) static_cast<void>(routing::import_profiler_traces(query));
  } catch (const Error&) {  // an answer
  }
  return 0;
}
