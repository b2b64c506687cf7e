#include "sim/study/logs/cluster_import.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

static const fuzz::Folder folder;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const study::ClusterBase base = study::ClusterBase::load("hgx-h100");
  try {
    const std::string_view text = fuzz::text_of(data, size);
    study::ClusterImport request;
    request.files = {folder.put(fuzz::log_name(text), text)};
    request.name = "mine";
    if (text.find("(RDMA)") != std::string_view::npos) request.nodes = 2;  // DeepEP's between nodes
    static_cast<void>(study::import_cluster(request, base));
  } catch (const Error&) {  // an answer
  }
  return 0;
}
