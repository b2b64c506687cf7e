#include "tools/moesim/train/all_options.hpp"

#include <nlohmann/json.hpp>

#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/report/options_document.hpp"
#include "sim/study/sweep/result_row.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/rows/part_columns.hpp"
#include "tools/moesim/train/train_columns.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

// The columns that `train` writes its own options in, with their defaults.
nlohmann::ordered_json training_options() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Flag& flag : train_flags()) {
    list.push_back({{"column", column_of(flag)}, {"default", flag.default_text}});
  }
  return list;
}

nlohmann::ordered_json training_columns() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TrainColumn& column : train_columns()) {
    const std::string meaning =
        column.meaning != nullptr
            ? column.meaning
            : study::result_columns().at(study::column_index(column.name)).meaning;
    list.push_back({{"name", column.name}, {"unit", column.unit}, {"meaning", meaning}});
  }
  return list;
}

// What charts title the GPUs of a shipped cluster that names them.
nlohmann::ordered_json cluster_gpus() {
  nlohmann::ordered_json gpus = nlohmann::ordered_json::object();
  for (const std::string& name : shipped_names("clusters")) {
    const std::string gpu = cluster::Cluster::load(name).gpu_name;
    if (!gpu.empty()) gpus[name] = gpu;
  }
  return gpus;
}

// The GPU of each shipped profile, by which charts tell its kernels from those of others.
nlohmann::ordered_json profile_gpus() {
  nlohmann::ordered_json gpus = nlohmann::ordered_json::object();
  const auto document = [](const std::string& name) {
    return Document::load(find_document("hardware", name));
  };
  for (const std::string& name : shipped_names("hardware")) {
    Document found = document(name);
    if (!found.root().has("devices")) found = document(found.root().text("profile"));
    gpus[name] = found.root().items("devices").front().text("name");
  }
  return gpus;
}

}  // namespace

nlohmann::ordered_json all_options() {
  nlohmann::ordered_json document = report::options_document();
  document["training_options"] = training_options();
  document["training_columns"] = training_columns();
  document["training_parts"] = training_part_columns();
  document["cluster_gpus"] = cluster_gpus();
  document["profile_gpus"] = profile_gpus();
  return document;
}

}  // namespace moesim::tool
