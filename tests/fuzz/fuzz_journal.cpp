#include "sim/study/sweep/journal.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

static const fuzz::Folder folder;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string path = folder.put("input.csv.partial", fuzz::text_of(data, size));
    study::Journal journal(path, "0123456789abcdef", true);
    journal.add(journal.rows().size(),
                {Cell(true), Cell(std::int64_t{3}), Cell(0.1), Cell("\xff")});
  } catch (const Error&) {  // an answer
  }
  return 0;
}
