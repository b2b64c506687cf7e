#include "sim/routing/scores/score_model.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

static const fuzz::Folder folder;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    static_cast<void>(
        routing::ScoreModel::load(folder.put("input.json", fuzz::text_of(data, size))));
  } catch (const Error&) {  // an answer
  }
  return 0;
}
