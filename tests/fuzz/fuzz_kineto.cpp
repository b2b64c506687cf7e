#include "sim/base/error.hpp"
#include "sim/routing/traces/trace_import.hpp"
#include "sim/study/explain/measured_trace.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

static const fuzz::Folder folder;

namespace {

// An Error of one reader leaves the other its turn, but where the text of the first file is no
// JSON: both read it by the same function. Whether it has its turn.
template <typename Reader>
bool read(const Reader& reader) {
  try {
    reader();
  } catch (const Error& error) {  // an answer
    return std::string_view(error.what()).find("/rank0.json: line ") == std::string_view::npos;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
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
  if (query.files.empty()) return 0;
  if (!read([&] { static_cast<void>(routing::import_profiler_traces(query)); })) return 0;
  read([&] { static_cast<void>(study::read_traced_step(query.files)); });
  return 0;
}
