#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/measure/documents/nccl_tests.hpp"
#include "sim/base/file.hpp"
#include "sim/base/json_text.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/cluster/measured_exchange.hpp"
#include "sim/routing/traces/trace_import.hpp"
#include "sim/study/logs/cluster_import.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/output.hpp"

namespace moesim::tool {
namespace {

using routing::ImportedCounts;

std::string needed(const CommandLine& line, const std::string& flag, const std::string& why) {
  if (line.has(flag)) return line.get(flag);
  throw UsageError(fmt::format("--{} is missing: {}", flag, why));
}

int whole(const CommandLine& line, const std::string& flag, int high, const std::string& why) {
  return static_cast<int>(parse_whole("--" + flag, needed(line, flag, why), 1, high));
}

int top_k(const CommandLine& line) {
  return whole(line, "top-k", 63, "how many experts each token was sent to");
}

std::vector<std::string> parts(const std::string& text) {
  const std::vector<std::string_view> found = split(text, ',');
  return {found.begin(), found.end()};
}

// A flag that means nothing for this kind of file would be passed over in silence.
void refuse_others(const CommandLine& line, const std::string& kind,
                   const std::vector<std::string>& allowed) {
  for (const char* flag : {"where",
                           "experts",
                           "array",
                           "axes",
                           "steps",
                           "layers",
                           "exchanges-per-layer",
                           "backward",
                           "process-group",
                           "row-values",
                           "op",
                           "nccl",
                           "base",
                           "other-gpu",
                           "cluster",
                           "nodes",
                           "top-k",
                           "model",
                           "source",
                           "licence",
                           "origin"}) {
    if (!line.has(flag) || std::find(allowed.begin(), allowed.end(), flag) != allowed.end()) {
      continue;
    }
    throw UsageError(fmt::format("--{}: means nothing for {}: leave it out", flag, kind));
  }
}

// What every trace takes.
std::vector<std::string> with_notes(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"top-k", "model", "source", "licence", "origin"});
  return flags;
}

ImportedCounts from_table(const CommandLine& line) {
  refuse_others(line, "a table of counts (.csv)", with_notes({"where", "experts"}));
  routing::CountTableQuery query;
  query.file = line.positionals.front();
  query.experts = whole(line, "experts", 65534, "a table need not list an expert without tokens");
  query.top_k = top_k(line);
  if (line.has("where")) {
    for (const std::string& condition : parts(line.get("where"))) {
      const std::size_t equals = condition.find('=');
      if (equals == std::string::npos || equals == 0) {
        throw UsageError(fmt::format(
            "--where: '{}' is not of the form COLUMN=VALUE, such as domain=c4,layer=0", condition));
      }
      query.where.emplace_back(condition.substr(0, equals), condition.substr(equals + 1));
    }
  }
  return routing::import_count_table(query);
}

ImportedCounts from_array(const CommandLine& line) {
  refuse_others(line, "an array of counts (.npy, .npz)", with_notes({"array", "axes", "steps"}));
  routing::CountArrayQuery query;
  query.file = line.positionals.front();
  query.array = line.get("array");
  query.axes = parts(needed(line, "axes",
                            "what the array's axes are, in order: some of step, "
                            "micro-batch, rank, layer, and expert"));
  query.steps = line.get("steps");
  query.top_k = top_k(line);
  return routing::import_count_array(query);
}

ImportedCounts from_profiler(const CommandLine& line) {
  refuse_others(
      line, "profiler traces (.json, .json.gz)",
      with_notes({"layers", "exchanges-per-layer", "backward", "process-group", "row-values"}));
  routing::ProfilerQuery query;
  query.files = line.positionals;
  query.process_group = line.get("process-group");
  query.layers = whole(line, "layers", 65535, "how many MoE layers a step has");
  if (line.has("exchanges-per-layer")) {
    query.exchanges = static_cast<int>(
        parse_whole("--exchanges-per-layer", line.get("exchanges-per-layer"), 2, 64));
  }
  query.backward = line.has("backward");
  if (line.has("row-values")) {
    query.row_values =
        parse_whole("--row-values", line.get("row-values"), 1, std::int64_t{1} << 32);
  }
  query.top_k = top_k(line);
  return routing::import_profiler_traces(query);
}

bool all_end_with(const CommandLine& line, std::initializer_list<const char*> ends) {
  return std::all_of(line.positionals.begin(), line.positionals.end(), [&](const auto& file) {
    return std::any_of(ends.begin(), ends.end(),
                       [&](const char* end) { return file.ends_with(end); });
  });
}

ImportedCounts imported(const CommandLine& line) {
  if (all_end_with(line, {".json", ".json.gz"})) return from_profiler(line);
  if (line.positionals.size() > 1) {
    throw UsageError(
        fmt::format("unexpected argument '{}': only profiler traces (.json) are "
                    "several files",
                    line.positionals[1]));
  }
  if (all_end_with(line, {".csv"})) return from_table(line);
  if (all_end_with(line, {".npy", ".npz"})) return from_array(line);
  throw UsageError(
      fmt::format("{}: what is it? Known by their names are tables of counts (.csv), arrays of "
                  "counts (.npy, .npz), profiler traces (.json, .json.gz) and nccl-tests output "
                  "(.txt, .log)",
                  line.positionals.front()));
}

std::string origin(const CommandLine& line) {
  const std::string text = line.get("origin", "not stated");
  for (const char* known : {"measured", "published", "synthetic", "not stated"}) {
    if (text == known) return text;
  }
  throw UsageError(fmt::format(
      "--origin: unknown value '{}': choose from measured, published, synthetic", text));
}

// The shipped model with the fewest MoE layers that are enough.
std::string model_flag(int layers) {
  if (layers <= 16) return "";
  return layers <= 32 ? " --model mixtral-8x7b" : layers <= 58 ? " --model deepseek-v3" : "";
}

// The name of a document that is written to `out`: letters, digits, dots, - and _ of the file's, as
// the schema has it; other characters become -.
std::string name_of_document(const CommandLine& line, const std::string& out) {
  if (line.has("name")) return line.get("name");
  std::string name = std::filesystem::path(out).stem().string();
  for (char& letter : name) {
    const auto code = static_cast<unsigned char>(letter);
    if (code >= 128 || (std::isalnum(code) == 0 && letter != '.' && letter != '_')) letter = '-';
  }
  const std::size_t first = name.find_first_not_of("-._");
  return first == std::string::npos ? "imported" : name.substr(first);
}

// nccl-tests output into a profile.
ExitCode import_exchanges(const CommandLine& line) {
  refuse_others(line, "nccl-tests output (.txt, .log)", {"op", "nccl", "base", "other-gpu"});
  namespace measure = kernels::measure;
  measure::NcclTestsImport request;
  const std::string out = needed(line, "out", "the file of the new profile");
  request.op = needed(line, "op",
                      "all-to-all, all-reduce, all-gather or reduce-scatter: the "
                      "output need not say which program ran");
  request.nccl = needed(line, "nccl", "the version of NCCL, such as 2.27.3");
  request.base = needed(line, "base", "the profile that has everything else");
  const std::vector<std::string> known{"all-to-all", "all-reduce", "all-gather", "reduce-scatter"};
  if (std::find(known.begin(), known.end(), request.op) == known.end()) {
    throw UsageError(fmt::format("--op: unknown value '{}'{}; choose from {}", request.op,
                                 suggestion(request.op, known), fmt::join(known, ", ")));
  }
  request.name = name_of_document(line, out);
  request.tool_version = MOESIM_VERSION;
  request.other_gpu = line.has("other-gpu");
  check_writable(out);
  for (const std::string& file : line.positionals) {
    request.runs.push_back(measure::read_nccl_tests(file, request.op));
  }
  write_file_atomically(out, json_text(measure::profile_with_nccl_tests(request), 1) + "\n");
  for (const measure::NcclTestsRun& run : request.runs) {
    note(fmt::format("{}: {} on {} GPUs ({}), {} sizes from {}", out, request.op, run.gpus,
                     run.device, run.times.size(), run.file));
  }
  note(fmt::format("try: moesim predict --profile {} --op {} --gpus {} --bytes 1MiB",
                   out.find('/') == std::string::npos ? "./" + out : out, request.op,
                   request.runs.front().gpus));
  return ExitCode::ok;
}

// Logs of nccl-tests, perftest, nvbandwidth and DeepEP into a cluster.
ExitCode import_links(const CommandLine& line) {
  refuse_others(line, "a cluster (--cluster)", {"op", "nccl", "cluster", "nodes", "experts"});
  study::ClusterImport request;
  const std::string out = needed(line, "out", "the file of the new cluster");
  request.files = line.positionals;
  request.base = line.get("cluster");
  request.name = name_of_document(line, out);
  request.op = line.get("op");
  request.nccl = line.get("nccl");
  if (line.has("op")) value_in(cluster::measured_operation_names, request.op, "--op");
  if (line.has("nodes")) request.nodes = whole(line, "nodes", 1000000, "");
  if (line.has("experts")) request.experts = whole(line, "experts", 65534, "");
  check_writable(out);
  const study::ImportedCluster imported = study::import_cluster(request);
  write_file_atomically(out, json_text(imported.document, 1) + "\n");
  for (const std::string& text : imported.notes) note(fmt::format("{}: {}", out, text));
  const auto measured = imported.document.find("exchanges");
  if (measured == imported.document.end()) return ExitCode::ok;
  for (const auto& entry : *measured) {
    if (entry.at("op") == "send-receive") continue;
    note(fmt::format("try: moesim predict --cluster {} --op {} --gpus {} --bytes 64MiB",
                     out.find('/') == std::string::npos ? "./" + out : out,
                     entry.at("op").get<std::string>(), entry.at("gpus").get<int>()));
    break;
  }
  return ExitCode::ok;
}

ExitCode run(const CommandLine& line) {
  if (line.positionals.empty()) {
    throw UsageError(
        "import: no file given: a .csv, .npy, .npz, .json, .json.gz, or nccl-tests output as .txt "
        "or .log; with --cluster also logs of perftest, nvbandwidth and DeepEP");
  }
  if (line.has("cluster")) return import_links(line);
  if (all_end_with(line, {".txt", ".log"})) return import_exchanges(line);
  const std::string folder = needed(line, "out", "the folder of the new trace");
  const ImportedCounts counts = imported(line);
  const routing::TraceShape& shape = counts.trace->shape();
  std::string name = std::filesystem::path(folder).filename().string();
  if (name.empty()) name = "trace";
  std::vector<std::string> files;
  for (const std::string& file : line.positionals) {
    files.push_back(std::filesystem::path(file).filename().string());
  }
  const std::string from = files.size() == 1
                               ? files.front()
                               : fmt::format("{} and {} more", files.front(), files.size() - 1);
  routing::write_count_trace(
      folder, *counts.trace,
      {line.get("name", name), line.get("model", "not stated"), line.get("source", "file " + from),
       line.get("licence", "not stated"), origin(line),
       fmt::format("imported from {}: {}", from, counts.what), counts.steps, counts.layers});
  const bool per_rank = counts.trace->per() == routing::Trace::Per::rank;
  note(fmt::format("{}: counts of {} steps, {} ranks, {} layers, {} {}, {} tokens per rank", folder,
                   shape.steps, shape.ranks, shape.layers, shape.experts,
                   per_rank ? "receiving ranks" : "experts", shape.tokens));
  note(
      fmt::format("try: moesim route --routing trace:{} --experts {}{} --router topk --top-k {} "
                  "--gpus {}{} --tokens-per-gpu {} --replicas {}",
                  folder, shape.experts, model_flag(shape.layers), shape.top_k, shape.ranks,
                  per_rank ? fmt::format(" --expert-parallel {}", shape.ranks) : "", shape.tokens,
                  shape.steps));
  return ExitCode::ok;
}

}  // namespace

Command import_command() {
  return {
      "import",
      "counts into a trace; nccl-tests into a profile or cluster",
      "FILE... --out FOLDER|FILE.json [options]",
      "moesim import counts.csv --experts 8 --top-k 2 --out counts",
      {{"out", "FOLDER", "none: needed",
        "of the trace: trace.json and counts.npy; of logs: the profile or cluster, as FILE.json"},
       {"top-k", "K", "none: a trace needs it", "experts each token was sent to"},
       {"experts", "E", "none: .csv needs it",
        "how many there are; a missing one counted 0; of DeepEP's tests [256]"},
       {"where", "COLUMN=VALUE,...", "all rows", ".csv: the rows to take"},
       {"axes", "NAME,...", "none: .npy, .npz need it",
        "in order: step, micro-batch, rank, layer, expert; micro-batches become steps"},
       {"array", "NAME", "none: .npz needs it", "the array of the counts"},
       {"steps", "NAME", "not numbered", ".npz: the array of the steps' numbers"},
       {"layers", "L", "none: .json needs it", "MoE layers of a step; one .json per rank"},
       {"exchanges-per-layer", "N", "2",
        ".json: all-to-alls of a layer's forward pass, dispatch first, combine last"},
       {"backward", "", "", ".json: as many again follow in each step, last layer first"},
       {"process-group", "NAME", "the only one", ".json: name or description"},
       {"row-values", "N", "1", ".json: split sizes count values, N of them a row"},
       {"op", "NAME", "none: .txt needs it",
        "of nccl-tests: all-to-all, all-reduce, all-gather, reduce-scatter; with --cluster also "
        "send-receive, and only for logs that do not say"},
       {"nccl", "VERSION", "none: .txt needs it",
        "of NCCL that was tested; with --cluster of logs that do not say"},
       {"base", "NAME|FILE", "none: .txt needs it", "the profile that has everything else"},
       {"other-gpu", "", "off", "of nccl-tests: the base may be of another GPU than the output"},
       {"cluster", "NAME|FILE", "",
        "make a cluster: this one, with exchanges and links as measured by nccl-tests (one or "
        "several nodes; printed or -J), perftest (ib_write_bw, ib_send_lat, ...), nvbandwidth "
        "and DeepEP's test_internode.py"},
       {"nodes", "N", "", "of DeepEP's tests, which do not say"},
       {"name", "TEXT", "that of --out", "of the trace, profile or cluster"},
       {"model", "TEXT", "not stated", "whose routing it is"},
       {"source", "TEXT", "the file", "where the figures come from"},
       {"licence", "TEXT", "not stated", "of the figures"},
       {"origin", "NAME", "not stated", "measured, published or synthetic"}},
      false,
      100000,
      run};
}

}  // namespace moesim::tool
