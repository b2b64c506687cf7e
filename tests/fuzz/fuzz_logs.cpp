#include "sim/study/logs/cluster_import.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

static const fuzz::Folder folder;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    study::ClusterImport request;
    request.files = {folder.put("input.log", fuzz::text_of(data, size))};
    request.base = "hgx-h100";
    request.name = "mine";
    static_cast<void>(study::import_cluster(request));
  } catch (const Error&) {  // an answer
  }
  return 0;
}
