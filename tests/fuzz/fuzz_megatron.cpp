#include "sim/base/error.hpp"
#include "sim/model/megatron/megatron_arguments.hpp"
#include "sim/model/megatron/megatron_model.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

// The same bytes as a script and as a YAML file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(fuzz::text_of(data, size));
  for (const char* name : {"run.sh", "run.yaml"}) {
    try {
      static_cast<void>(model::megatron_model(model::MegatronArguments::parse(text, name)));
    } catch (const Error&) {  // an answer
    }
  }
  return 0;
}
