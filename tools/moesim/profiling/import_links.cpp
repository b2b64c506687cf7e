#include "tools/moesim/profiling/import_links.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/cluster/measured_exchange.hpp"
#include "sim/study/logs/cluster_import.hpp"
#include "sim/study/logs/law_comparison.hpp"
#include "sim/study/logs/link_fit.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/profiling/import_flags.hpp"

namespace moesim::tool {

namespace {

// The flags of predict that ask for an exchange as it was measured: at the largest size up to
// 64 MiB, on the nodes of its run.
std::string question_of(const nlohmann::ordered_json& exchange,
                        const nlohmann::ordered_json& cluster) {
  const int gpus = exchange.at("gpus").get<int>();
  const int each = gpus / exchange.at("nodes").get<int>();
  const int of_node = cluster.at("gpus_per_node").get<int>();
  std::vector<int> ranks;
  for (int rank = 0; rank < gpus; ++rank) ranks.push_back(rank / each * of_node + rank % each);
  const bool first_gpus = ranks.back() == gpus - 1;
  return fmt::format("--op {} --gpus {} --bytes {}{}", exchange.at("op").get<std::string>(), gpus,
                     size_to_try(exchange.at("bytes").get<std::vector<double>>()),
                     first_gpus ? "" : fmt::format(" --placement {}", fmt::join(ranks, ",")));
}

// How the measured points lie beside what would have been predicted of them: a line for each
// exchange, and with --law-out all of them as JSON.
void compare_with_law(const CommandLine& line, const study::ClusterBase& base,
                      const nlohmann::ordered_json& document, const std::string& out) {
  const auto imported = cluster::Cluster::read(Document::parse(json_text(document), out));
  const std::vector<study::LawComparison> found =
      study::law_comparisons(base.cluster, imported, study::profile_of_cluster(base.cluster));
  auto all = nlohmann::ordered_json::array();
  for (const study::LawComparison& each : found) {
    note(fmt::format("{}: {}", out, each.text()));
    all.push_back(each.json());
  }
  if (!line.has("law-out")) return;
  write_file_atomically(line.get("law-out"), json_text(all, 1) + "\n");
  if (!found.empty()) return;
  note(fmt::format(
      "{}: empty: the logs have no exchange that {} has not measured and that a law is of",
      line.get("law-out"), line.get("cluster")));
}

}  // namespace

ExitCode import_links(const CommandLine& line) {
  refuse_other_flags(line, "a cluster (--cluster)",
                     {"op", "nccl", "cluster", "nodes", "experts", "law-out"});
  study::ClusterImport request;
  const std::string out = needed_value(line, "out", "the file of the new cluster");
  request.files = line.positionals;
  request.base = line.get("cluster");
  request.name = document_name(line, out);
  request.op = line.get("op");
  request.nccl = line.get("nccl");
  if (line.has("op")) value_in(cluster::measured_operation_names, request.op, "--op");
  if (line.has("nodes")) request.nodes = needed_whole(line, "nodes", 1000000, "");
  if (line.has("experts")) request.experts = needed_whole(line, "experts", 65534, "");
  check_writable(out);
  if (line.has("law-out")) check_writable(line.get("law-out"));
  const auto base = study::ClusterBase::load(request.base);
  const study::ImportedCluster imported = study::import_cluster(request, base);
  write_file_atomically(out, json_text(imported.document, 1) + "\n");
  for (const std::string& text : imported.notes) note(fmt::format("{}: {}", out, text));
  compare_with_law(line, base, imported.document, out);
  const auto measured = imported.document.find("exchanges");
  if (measured == imported.document.end()) return ExitCode::ok;
  for (const auto& entry : *measured) {
    if (entry.at("op") == "send-receive") continue;
    note(fmt::format("try: moesim predict --cluster {} {}",
                     out.find('/') == std::string::npos ? "./" + out : out,
                     question_of(entry, imported.document)));
    break;
  }
  return ExitCode::ok;
}

}  // namespace moesim::tool
