#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "kernels/measure/documents/nccl_tests.hpp"
#include "sim/base/file.hpp"
#include "sim/base/json_text.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/cluster/measured_exchange.hpp"
#include "sim/profile/collective_curve.hpp"
#include "sim/routing/traces/trace_import.hpp"
#include "sim/study/logs/cluster_import.hpp"
#include "sim/study/logs/repeated_runs.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/profiling/import_profiler.hpp"

namespace moesim::tool {
namespace {

using routing::ImportedTrace;

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
  for (const char* flag : {"where",     "experts",       "array",
                           "axes",      "dtype",         "tokens",
                           "steps",     "layers",        "exchanges-per-layer",
                           "backward",  "process-group", "row-values",
                           "op",        "nccl",          "base",
                           "other-gpu", "cluster",       "nodes",
                           "top-k",     "model",         "source",
                           "licence",   "origin"}) {
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

ImportedTrace from_table(const CommandLine& line) {
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

ImportedTrace from_array(const CommandLine& line) {
  refuse_others(line, "an array (.npy, .npz)",
                with_notes({"array", "axes", "steps", "experts", "dtype"}));
  routing::ArrayQuery query;
  query.file = line.positionals.front();
  query.array = line.get("array");
  if (line.has("axes")) query.axes = parts(line.get("axes"));
  query.steps = line.get("steps");
  if (line.has("experts")) query.experts = whole(line, "experts", 65534, "");
  if (line.has("top-k")) query.top_k = top_k(line);
  if (line.has("dtype") && line.get("dtype") != "bfloat16") {
    throw UsageError(
        fmt::format("--dtype: '{}': only bfloat16, of 16-bit integers, is not in the file itself",
                    line.get("dtype")));
  }
  query.bfloat16_bits = line.has("dtype");
  return routing::import_array(query);
}

ImportedTrace from_route_logs(const CommandLine& line) {
  refuse_others(line, "route logs (.jsonl)", with_notes({"experts", "tokens"}));
  routing::RouteLogQuery query;
  query.files = line.positionals;
  query.experts = whole(line, "experts", 65534, "a log does not say how many there are");
  if (line.has("top-k")) query.top_k = top_k(line);
  constexpr std::int64_t most = std::int64_t{1} << 31;
  if (line.has("tokens")) query.tokens = parse_whole("--tokens", line.get("tokens"), 1, most);
  return routing::import_route_logs(query);
}

routing::ProfilerQuery profiler_query(const CommandLine& line) {
  refuse_others(line, "profiler traces (.json, .json.gz)",
                with_notes({"layers", "exchanges-per-layer", "backward", "process-group",
                            "row-values", "experts", "tokens"}));
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
  return query;
}

bool all_end_with(const CommandLine& line, std::initializer_list<const char*> ends) {
  return std::all_of(line.positionals.begin(), line.positionals.end(), [&](const auto& file) {
    return std::any_of(ends.begin(), ends.end(),
                       [&](const char* end) { return file.ends_with(end); });
  });
}

ImportedTrace imported(const CommandLine& line) {
  if (all_end_with(line, {".jsonl", ".jsonl.gz"})) return from_route_logs(line);
  if (line.positionals.size() > 1) {
    throw UsageError(
        fmt::format("unexpected argument '{}': only profiler traces (.json) and "
                    "route logs (.jsonl) are several files",
                    line.positionals[1]));
  }
  if (all_end_with(line, {".csv"})) return from_table(line);
  if (all_end_with(line, {".npy", ".npz"})) return from_array(line);
  throw UsageError(
      fmt::format("{}: what is it? Known by their names are tables of counts (.csv), arrays of "
                  "logits, choices or counts (.npy, .npz), route logs (.jsonl, .jsonl.gz), "
                  "profiler traces (.json, .json.gz) and nccl-tests output (.txt, .log)",
                  line.positionals.front()));
}

const std::vector<std::string> origins{"measured", "published", "synthetic"};

std::string origin(const CommandLine& line) {
  std::string text = line.get("origin", "not stated");
  const bool is_known = std::find(origins.begin(), origins.end(), text) != origins.end();
  if (is_known || text == "not stated") return text;
  refuse_name("--origin", text, origins);
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

// As the output says, or else --nccl.
std::string nccl_version(const CommandLine& line,
                         const std::vector<kernels::measure::NcclTestsRun>& runs) {
  std::string version = line.get("nccl");
  for (const kernels::measure::NcclTestsRun& run : runs) {
    if (run.nccl.empty()) continue;
    if (!version.empty() && version != run.nccl) {
      throw UsageError(line.has("nccl")
                           ? fmt::format("--nccl {}: {} is of NCCL {}: leave it out",
                                         line.get("nccl"), run.file, run.nccl)
                           : fmt::format("{} is of NCCL {}, {} of NCCL {}: give one at a time",
                                         runs.front().file, version, run.file, run.nccl));
    }
    version = run.nccl;
  }
  if (version.empty()) {
    return needed(line, "nccl",
                  "the version of NCCL, such as 2.27.3, which the output does not say");
  }
  return version;
}

const std::vector<std::string> profiled_operations{"all-to-all", "all-reduce", "all-gather",
                                                   "reduce-scatter"};

// The operation that the output of all runs names.
std::string operation_of(const CommandLine& line,
                         const std::vector<kernels::measure::NcclTestsRun>& runs) {
  const std::string& op = runs.front().op;
  for (const kernels::measure::NcclTestsRun& run : runs) {
    if (run.op.empty()) {
      return needed(line, "op",
                    fmt::format("{}: {} does not say which program ran",
                                fmt::join(profiled_operations, ", "), run.file));
    }
    if (run.op == op) continue;
    throw UsageError(fmt::format("{}: {}, but {} is of {}: give one operation at a time", run.file,
                                 run.op, runs.front().file, op));
  }
  if (std::find(profiled_operations.begin(), profiled_operations.end(), op) !=
      profiled_operations.end()) {
    return op;
  }
  throw UsageError(fmt::format("{}: {}: a profile holds {} alone", runs.front().file, op,
                               fmt::join(profiled_operations, ", ")));
}

// A profile's curve has the errors of its fit alone.
void note_contradictions(const kernels::measure::NcclTestsImport& request) {
  std::map<int, study::RunsBySize> by_gpus;
  for (const kernels::measure::NcclTestsRun& run : request.runs) {
    for (const auto& [bytes, time_us] : run.times) {
      by_gpus[run.gpus][bytes].push_back({time_us, run.file});
    }
  }
  for (const auto& [gpus, runs] : by_gpus) {
    const std::string exchange = fmt::format("{} of {} GPUs", request.op, gpus);
    if (const auto doubt = study::contradiction_of(exchange, runs)) {
      note(*doubt +
           "; the curve lies between them, with a band that need not hold either: import one of "
           "them, or give --cluster instead of --base, whose band holds all of fewer than 20 runs");
    }
  }
}

// Sizes at which a profile's curve, which does not fall, has not the time that was measured.
void note_averages(const kernels::measure::NcclTestsImport& request,
                   const nlohmann::ordered_json& profile) {
  constexpr std::size_t most = 4;
  const nlohmann::ordered_json& curve = profile.at("curves").back();
  for (const auto& branch : curve.at("branches")) {
    const auto measured = branch.find("measured_time_us");
    const bool is_new = !branch.contains("from_curve");
    if (!is_new || measured == branch.end()) continue;
    std::vector<std::string> sizes;
    for (std::size_t size = 0; size < measured->size(); ++size) {
      const auto bytes = branch.at("bytes").at(size).get<double>();
      const auto time_us = branch.at("time_us").at(size).get<double>();
      const auto was = measured->at(size).get<double>();
      if (std::abs(time_us / was - 1) < profile::apart_from_curve) continue;
      sizes.push_back(fmt::format("{:.0f} bytes {:.2f} us (measured {:.2f})", bytes, time_us, was));
    }
    const std::size_t more = sizes.size() - std::min(sizes.size(), most);
    sizes.resize(sizes.size() - more);
    note(fmt::format(
        "warning: {} of {} GPUs: times that fall with size are averaged: {}{}; bands hold the "
        "measured ones; a cluster (--cluster instead of --base) keeps them",
        request.op, branch.at("gpus").get<int>(), fmt::join(sizes, ", "),
        more == 0 ? "" : fmt::format(", and {} more", more)));
  }
}

// nccl-tests output into a profile.
ExitCode import_exchanges(const CommandLine& line) {
  refuse_others(line, "nccl-tests output (.txt, .log)", {"op", "nccl", "base", "other-gpu"});
  namespace measure = kernels::measure;
  measure::NcclTestsImport request;
  const std::string out = needed(line, "out", "the file of the new profile");
  request.op = line.get("op");
  if (line.has("op") && std::find(profiled_operations.begin(), profiled_operations.end(),
                                  request.op) == profiled_operations.end()) {
    throw UsageError(fmt::format("--op: unknown value '{}'{}; choose from {}", request.op,
                                 suggestion(request.op, profiled_operations),
                                 fmt::join(profiled_operations, ", ")));
  }
  for (const std::string& file : line.positionals) {
    request.runs.push_back(measure::read_nccl_tests(file, request.op));
  }
  if (request.op.empty()) request.op = operation_of(line, request.runs);
  request.base = needed(line, "base", "the profile that has everything else");
  request.name = name_of_document(line, out);
  request.tool_version = MOESIM_VERSION;
  request.other_gpu = line.has("other-gpu");
  check_writable(out);
  request.nccl = nccl_version(line, request.runs);
  const nlohmann::ordered_json profile = measure::profile_with_nccl_tests(request);
  write_file_atomically(out, json_text(profile, 1) + "\n");
  note_contradictions(request);
  note_averages(request, profile);
  for (const measure::NcclTestsRun& run : request.runs) {
    for (const std::string& doubt : run.doubts) note(doubt);
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

// What the new trace holds, and what to do with it. Experts, GPUs, tokens and layers are the
// trace's own.
void note_trace(const std::string& folder, const ImportedTrace& made) {
  const routing::Trace& trace = *made.trace;
  const routing::TraceShape& shape = trace.shape();
  const bool per_rank = trace.per() == routing::Trace::Per::rank;
  const char* const kind = trace.kind() == routing::Trace::Kind::logits    ? "logits"
                           : trace.kind() == routing::Trace::Kind::choices ? "choices"
                                                                           : "counts";
  note(fmt::format("{}: {} of {} steps, {} ranks, {} layers, {} {}, {} tokens per rank", folder,
                   kind, shape.steps, shape.ranks, shape.layers, shape.experts,
                   per_rank ? "receiving ranks" : "experts", shape.tokens));
  note(fmt::format("read as {}", made.what));
  std::string priority;
  if (trace.kind() == routing::Trace::Kind::choices && !trace.has_probabilities()) {
    priority = " --priority position";
  }
  note(
      fmt::format("try: moesim route --routing trace:{} --router topk --top-k {}{} --gpus {} "
                  "--replicas {}",
                  folder, shape.top_k, priority, shape.ranks, shape.steps));
}

// Whether each token's values are those of a softmax: within 0..1 and adding up to 1.
bool are_probabilities(const routing::Trace& trace) {
  const auto experts = static_cast<std::size_t>(trace.shape().experts);
  const std::span<const float> values = trace.logits(0, 0, 0);
  for (std::size_t first = 0; first < values.size(); first += experts) {
    double sum = 0;
    for (const float value : values.subspan(first, experts)) {
      if (value < 0 || value > 1) return false;
      sum += value;
    }
    if (std::abs(sum - 1) > 0.01) return false;
  }
  return true;
}

// Whether all values are whole, none below 0 and some above 1, as of counts.
bool are_whole(const routing::Trace& trace) {
  const std::span<const float> values = trace.logits(0, 0, 0);
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return value >= 0 && std::trunc(value) == value; }) &&
         std::any_of(values.begin(), values.end(), [](float value) { return value > 1; });
}

// What logits are not likely to be.
void warn_of_logits(const std::string& folder, const routing::Trace& trace) {
  if (trace.kind() != routing::Trace::Kind::logits) return;
  const routing::TraceShape& shape = trace.shape();
  constexpr int most_experts_known = 1024;
  if (shape.experts > most_experts_known && shape.experts > shape.tokens) {
    note(
        fmt::format("warning: {}: {} experts for {} tokens: are the axes swapped? The last one is "
                    "the expert; numpy.ascontiguousarray(array.T) swaps two",
                    folder, shape.experts, shape.tokens));
  }
  if (are_whole(trace)) {
    note(
        fmt::format("warning: {}: all values are whole numbers, as counts are, but taken for "
                    "logits, as floating-point numbers are: save counts as whole numbers (NumPy: "
                    "array.astype(int))",
                    folder));
  }
  if (are_probabilities(trace)) {
    note(fmt::format(
        "warning: {}: each token's values add up to 1, as after a softmax; they are "
        "taken for logits, and a softmax follows, which makes all experts nearly alike: "
        "give the router's output before the softmax, or log(probabilities)",
        folder));
  }
}

void write_imported(const CommandLine& line, const std::string& folder,
                    const ImportedTrace& imported_trace) {
  const routing::Trace& trace = *imported_trace.trace;
  std::string name = std::filesystem::path(folder).filename().string();
  if (name.empty()) name = "trace";
  std::vector<std::string> files;
  for (const std::string& file : line.positionals) {
    files.push_back(std::filesystem::path(file).filename().string());
  }
  const std::string from = files.size() == 1
                               ? files.front()
                               : fmt::format("{} and {} more", files.front(), files.size() - 1);
  routing::write_trace(
      folder, trace,
      {line.get("name", name), line.get("model", "not stated"), line.get("source", "file " + from),
       line.get("licence", "not stated"), origin(line),
       fmt::format("imported from {}: {}", from, imported_trace.what), imported_trace.steps,
       imported_trace.layers});
  note_trace(folder, imported_trace);
  warn_of_logits(folder, trace);
}

// Profiler traces: the routing that uneven exchanges show, the capacity of padded ones, and times.
ExitCode import_profiler(const CommandLine& line, const std::string& folder) {
  const routing::ProfilerQuery query = profiler_query(line);
  const routing::ProfiledExchanges found = routing::import_profiler_traces(query);
  if (found.routing.trace) {
    refuse_others(
        line, "uneven exchanges, which have the rows themselves",
        with_notes({"layers", "exchanges-per-layer", "backward", "process-group", "row-values"}));
    write_imported(line, folder, found.routing);
  } else {
    const std::filesystem::path before = std::filesystem::path(folder) / "trace.json";
    if (std::filesystem::exists(before)) {
      throw UsageError(
          fmt::format("--out: {} is a trace, which padded exchanges do not make: name "
                      "another folder",
                      folder));
    }
    constexpr std::int64_t most = std::int64_t{1} << 31;
    note_padded(found, line.has("experts") ? whole(line, "experts", 65534, "") : 0,
                line.has("tokens") ? parse_whole("--tokens", line.get("tokens"), 1, most) : 0,
                query.top_k);
    std::error_code failure;
    std::filesystem::create_directories(folder, failure);
    if (failure) throw Error(fmt::format("{}: cannot be made: {}", folder, failure.message()));
  }
  write_profiled_times(folder, found, query.files);
  return ExitCode::ok;
}

ExitCode run(const CommandLine& line) {
  if (line.positionals.empty()) {
    throw UsageError(
        "import: no file given: a .csv, .npy, .npz, .json, .json.gz, .jsonl, or nccl-tests output "
        "as .txt or .log; with --cluster also logs of perftest, nvbandwidth and DeepEP");
  }
  if (line.has("cluster")) return import_links(line);
  if (all_end_with(line, {".txt", ".log"})) return import_exchanges(line);
  const std::string folder = needed(line, "out", "the folder of the new trace");
  if (all_end_with(line, {".json", ".json.gz"})) return import_profiler(line, folder);
  write_imported(line, folder, imported(line));
  return ExitCode::ok;
}

}  // namespace

Command import_command() {
  return {
      "import",
      "logits, routes, counts into a trace; measured logs into a profile",
      "FILE... --out FOLDER|FILE.json [options]",
      "moesim import counts.csv --experts 8 --top-k 2 --out counts",
      {{"out", "FOLDER", "none: needed",
        "of the trace: trace.json and its array; of logs: the profile or cluster, as FILE.json"},
       {"top-k", "K", "none: a trace of logits or counts needs it",
        "experts each token was sent to"},
       {"experts", "E", "none: .csv, .jsonl need it",
        "how many there are (.csv, .jsonl, choices); a missing one counted 0; of DeepEP's tests "
        "[256]; of padded exchanges (.json), for the capacity"},
       {"where", "COLUMN=VALUE,...", "all rows", ".csv: the rows to take"},
       {"axes", "NAME,...", "of logits [rank,][layer,]token,expert",
        "of a .npy or .npz, in order: step, micro-batch, rank, layer, sequence, token, and expert "
        "or "
        "choice; micro-batches become steps. Floating point: logits; whole numbers: counts, or "
        "with choice each token's experts, best first"},
       {"array", "NAME", "none: .npz needs it", "the array to take"},
       {"dtype", "bfloat16", "the file's", ".npy of 16-bit integers: they are bfloat16 logits"},
       {"tokens", "N", "a record's",
        ".jsonl: a step has N tokens of a rank and layer, in the order of the log; .json of padded "
        "exchanges: tokens of a rank, for the capacity factor"},
       {"steps", "NAME", "not numbered", ".npz: the array of the steps' numbers"},
       {"layers", "L", "none: .json needs it", "MoE layers of a step; one .json per rank"},
       {"exchanges-per-layer", "N", "2",
        ".json: all-to-alls of a layer's forward pass, dispatch first, combine last"},
       {"backward", "", "", ".json: as many again follow in each step, last layer first"},
       {"process-group", "NAME", "the only one", ".json: name or description"},
       {"row-values", "N", "1; padded exchanges need it",
        ".json: split sizes count values, N of them a row; of exchanges without split sizes "
        "(padded) "
        "the hidden size"},
       with_words({"op", "NAME", "as the output says",
                   "of nccl-tests that do not say which program ran: all-to-all, all-reduce, "
                   "all-gather, reduce-scatter; with --cluster also send-receive"},
                  words_in<cluster::measured_operation_names>),
       {"nccl", "VERSION", "", "of NCCL that was tested, of logs that do not say"},
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
       with_words({"origin", "NAME", "not stated", "measured, published or synthetic"},
                  [] { return origins; })},
      false,
      100000,
      run};
}

}  // namespace moesim::tool
