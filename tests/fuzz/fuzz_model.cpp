#include "sim/model/model.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

static const fuzz::Folder folder;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto model = model::Model::load(folder.put("config.json", fuzz::text_of(data, size)));
    static_cast<void>(model.moe_layers());
    static_cast<void>(model.dense_parameters(8));
  } catch (const Error&) {  // an answer
  }
  return 0;
}
