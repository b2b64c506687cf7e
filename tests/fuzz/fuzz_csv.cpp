#include "sim/base/formats/csv.hpp"
#include "sim/routing/traces/trace_import.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

static const fuzz::Folder folder;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text = fuzz::text_of(data, size);
    const CsvTable table = CsvTable::parse(text, "input.csv");
    for (std::size_t row = 0; row < table.rows.size(); ++row) {
      if (csv_line(table.rows[row]).empty()) std::terminate();
    }
    routing::CountTableQuery query;
    query.file = folder.put("input.csv", text);
    query.experts = 8;
    query.top_k = 1;
    static_cast<void>(routing::import_count_table(query));
  } catch (const Error&) {  // an answer
  }
  return 0;
}
