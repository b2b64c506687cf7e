// Kineto's record_param_comms events: torch/csrc/distributed/c10d/ParamCommsUtils.hpp names the
// parameters, torch/csrc/profiler/util.cpp writes them ("In split size" as a JSON text of up to 30
// numbers; as an array before pytorch/pytorch#113392).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/base/error.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/formats/kineto.hpp"
#include "sim/routing/traces/trace_import.hpp"

namespace moesim::routing {

namespace {

using Json = nlohmann::json;
using Rows = std::vector<std::int64_t>;

struct Exchange {
  double start_us = 0;
  Rows sent, received;     // per rank of the group
  bool has_sizes = true;   // "In split size" is not empty
  std::int64_t bytes = 0;  // sent; 0: not written
};

// An exchange as NCCL ran it.
struct Kernel {
  double start_us = 0;
  double duration_us = 0;
};

struct RankFile {
  std::string name;
  std::vector<Exchange> exchanges;
  std::vector<Kernel> kernels;  // one for each exchange, or none
};

[[noreturn]] void refuse(const std::string& file, const std::string& reason) {
  throw UsageError(fmt::format("{}: {}", file, reason));
}

std::int64_t whole_rows(const std::string& file, const char* key, const Json& size,
                        std::int64_t row_values) {
  if (!size.is_number_integer() || size.get<std::int64_t>() < 0 ||
      size.get<std::int64_t>() / row_values > Trace::most_tokens ||
      size.get<std::int64_t>() % row_values != 0) {
    refuse(file, fmt::format("\"{}\": {} is no whole number of rows of --row-values {}", key,
                             json_text(size), row_values));
  }
  return size.get<std::int64_t>() / row_values;
}

// Equal blocks have no split sizes: their rows follow from all values that are sent.
Rows equal_blocks(const std::string& file, const Json& arguments, const char* key,
                  std::int64_t row_values) {
  const Json group = parse_json_or_null(argument_text(arguments, "Group size"));
  const Json values = parse_json_or_null(argument_text(arguments, key));
  constexpr std::int64_t most_ranks = 4096;
  if (!group.is_number_integer() || group.get<std::int64_t>() < 1 ||
      group.get<std::int64_t>() > most_ranks || !values.is_number_integer() ||
      values.get<std::int64_t>() % group.get<std::int64_t>() != 0) {
    refuse(file, fmt::format("an all_to_all of equal blocks (padded, no split sizes) without "
                             "\"Group size\", or without \"{}\", a multiple of it",
                             key));
  }
  if (row_values == 0) {
    refuse(file,
           "an all_to_all of equal blocks (padded, no split sizes): say by --row-values how "
           "many values a row has, the hidden size of the model");
  }
  const std::int64_t ranks = group.get<std::int64_t>();
  return Rows(static_cast<std::size_t>(ranks),
              whole_rows(file, key, values.get<std::int64_t>() / ranks, row_values));
}

// Empty: none are written, the blocks are equal.
Rows split_sizes(const std::string& file, const Json& arguments, const char* key,
                 std::int64_t row_values) {
  const std::string text = argument_text(arguments, key);
  if (text.find("...") != std::string::npos) {
    refuse(file, fmt::format("\"{}\" is cut short (\"...\"): the profiler writes the sizes of at "
                             "most 30 ranks",
                             key));
  }
  Rows rows;
  const Json sizes = parse_json_or_null(text);
  if (!sizes.is_array()) return rows;
  for (const Json& size : sizes) {
    rows.push_back(whole_rows(file, key, size, std::max<std::int64_t>(1, row_values)));
  }
  return rows;
}

// Names of torch's types that exchanges have; 0 for others.
std::int64_t type_bytes(const std::string& name) {
  static const std::map<std::string, std::int64_t> bytes{
      {"BFloat16", 2}, {"Half", 2},        {"Float", 4}, {"Double", 8}, {"Float8_e4m3fn", 1},
      {"Byte", 1},     {"Float8_e5m2", 1}, {"Int", 4},   {"Long", 8},   {"Char", 1}};
  const auto found = bytes.find(name);
  return found == bytes.end() ? 0 : found->second;
}

Exchange read_exchange(const std::string& file, const Json& arguments, double start_us,
                       std::int64_t row_values) {
  Exchange exchange{start_us, split_sizes(file, arguments, "In split size", row_values),
                    split_sizes(file, arguments, "Out split size", row_values)};
  if (exchange.sent.empty() != exchange.received.empty()) {
    refuse(file, "an all_to_all with only one of \"In split size\", \"Out split size\"");
  }
  if (exchange.sent.empty()) {
    exchange.has_sizes = false;
    exchange.sent = equal_blocks(file, arguments, "In msg nelems", row_values);
    exchange.received = equal_blocks(file, arguments, "Out msg nelems", row_values);
  }
  const Json values = parse_json_or_null(argument_text(arguments, "In msg nelems"));
  constexpr std::int64_t most_values = std::int64_t{1} << 50;
  if (values.is_number_integer() && values.get<std::int64_t>() >= 0 &&
      values.get<std::int64_t>() <= most_values) {
    exchange.bytes = values.get<std::int64_t>() * type_bytes(argument_text(arguments, "dtype"));
  }
  return exchange;
}

// The all_to_allv operations of one file in order of time, and the group rank that recorded them.
std::pair<int, RankFile> read_rank(const std::string& file, const ProfilerQuery& query) {
  RankFile result{file, {}, {}};
  std::set<std::string> groups;
  std::set<int> ranks;
  for (const Json& event : trace_events(file)) {
    if (!event.is_object()) continue;
    const bool is_kernel = event.value("cat", Json()) == "kernel";
    if (!is_kernel && event.value("name", Json()) != "record_param_comms") continue;
    const Json arguments = event.value("args", Json::object());
    if (!argument_text(arguments, "Collective name").starts_with("all_to_all")) continue;
    const std::string group = argument_text(arguments, "Process Group Name");
    const std::string meaning = argument_text(arguments, "Process Group Description");
    const std::string& wanted = query.process_group;
    if (!wanted.empty() && wanted != group && wanted != meaning) continue;
    const Json start = event.value("ts", Json());
    if (is_kernel) {
      const Json duration = event.value("dur", Json());
      if (start.is_number() && duration.is_number() && duration.get<double>() >= 0) {
        result.kernels.push_back({start.get<double>(), duration.get<double>()});
      }
      continue;
    }
    groups.insert(meaning.empty() ? group : fmt::format("{} ({})", group, meaning));
    const auto rank = arguments.find("Rank");
    if (rank == arguments.end() || !rank->is_number_integer()) {
      refuse(file, "an all_to_allv without \"Rank\": record with a PyTorch that writes it");
    }
    ranks.insert(rank->get<int>());
    if (!start.is_number()) refuse(file, "an all_to_allv without \"ts\", the time of its start");
    result.exchanges.push_back(
        read_exchange(file, arguments, start.get<double>(), query.row_values));
  }
  if (result.exchanges.empty()) {
    refuse(
        file,
        fmt::format("no all_to_allv{}: record with activities=[CPU, CUDA] and a process "
                    "group per expert-parallel group",
                    query.process_group.empty() ? "" : " in process group " + query.process_group));
  }
  if (groups.size() > 1) {
    refuse(file, fmt::format("all_to_allv in several process groups: choose one by "
                             "--process-group: {}",
                             fmt::join(groups, ", ")));
  }
  if (ranks.size() > 1) refuse(file, fmt::format("of ranks {} at once", fmt::join(ranks, ", ")));
  std::stable_sort(result.exchanges.begin(), result.exchanges.end(),
                   [](const Exchange& a, const Exchange& b) { return a.start_us < b.start_us; });
  std::stable_sort(result.kernels.begin(), result.kernels.end(),
                   [](const Kernel& a, const Kernel& b) { return a.start_us < b.start_us; });
  if (result.kernels.size() != result.exchanges.size()) result.kernels.clear();
  return {*ranks.begin(), std::move(result)};
}

std::vector<RankFile> read_ranks(const ProfilerQuery& query) {
  std::map<int, RankFile> files;
  for (const std::string& file : query.files) {
    auto [rank, content] = read_rank(file, query);
    const auto [there, is_new] = files.emplace(rank, std::move(content));
    if (!is_new) refuse(file, fmt::format("rank {} again, after {}", rank, there->second.name));
  }
  const std::size_t ranks = files.begin()->second.exchanges.front().sent.size();
  std::vector<RankFile> ordered;
  for (auto& [rank, content] : files) {
    if (rank != static_cast<int>(ordered.size())) break;
    ordered.push_back(std::move(content));
  }
  if (ordered.size() != ranks || files.size() != ranks) {
    refuse(query.files.front(),
           fmt::format("a group of {} ranks: give the traces of ranks 0 to {}, one each; rank {} "
                       "is missing",
                       ranks, ranks - 1, ordered.size()));
  }
  for (const RankFile& file : ordered) {
    if (file.exchanges.size() == ordered[0].exchanges.size()) continue;
    refuse(file.name, fmt::format("{} all_to_allv, but {} in {}", file.exchanges.size(),
                                  ordered[0].exchanges.size(), ordered[0].name));
  }
  return ordered;
}

// The rows that one rank sends have to equal the rows that the other receives.
void check_pairs(const std::vector<RankFile>& ranks, std::size_t index) {
  for (std::size_t source = 0; source < ranks.size(); ++source) {
    const Exchange& exchange = ranks[source].exchanges[index];
    if (exchange.sent.size() != ranks.size() || exchange.received.size() != ranks.size()) {
      refuse(ranks[source].name, fmt::format("all_to_allv {} is of {} ranks, not {}", index,
                                             exchange.sent.size(), ranks.size()));
    }
    for (std::size_t target = 0; target < ranks.size(); ++target) {
      const std::int64_t sent = exchange.sent[target];
      const std::int64_t received = ranks[target].exchanges[index].received[source];
      if (sent == received) continue;
      refuse(ranks[source].name,
             fmt::format("all_to_allv {} sends {} rows to rank {}, which receives {} of it: the "
                         "files are not of one run, or not in step",
                         index, sent, target, received));
    }
  }
}

void check_turn(const RankFile& file, std::size_t dispatch, std::size_t last, bool returns,
                const ProfilerQuery& query) {
  const Exchange& first = file.exchanges[dispatch];
  const Exchange& second = file.exchanges[last];
  const bool fits = returns ? second.sent == first.received && second.received == first.sent
                            : second.sent == first.sent && second.received == first.received;
  if (fits) return;
  refuse(file.name,
         fmt::format("all_to_allv {} does not {} what {} sent: a step is not --layers {} of "
                     "--exchanges-per-layer {}{}",
                     last, returns ? "return" : "send again", dispatch, query.layers,
                     query.exchanges, query.backward ? " with --backward" : ""));
}

// Whether all blocks of all exchanges are equal. Refuses those without split sizes among others.
bool is_padded(const std::vector<RankFile>& ranks) {
  bool all_equal = true;
  const Exchange* without_sizes = nullptr;
  const RankFile* of = nullptr;
  for (const RankFile& rank : ranks) {
    for (const Exchange& exchange : rank.exchanges) {
      const auto differs = [&](std::int64_t rows) { return rows != exchange.sent.front(); };
      if (std::any_of(exchange.sent.begin(), exchange.sent.end(), differs)) all_equal = false;
      if (!exchange.has_sizes) {
        without_sizes = &exchange;
        of = &rank;
      }
    }
  }
  if (all_equal || without_sizes == nullptr) return all_equal;
  refuse(of->name,
         fmt::format("the all_to_all at {} us is of equal blocks (padded), others are not: choose "
                     "the group that sends tokens by --process-group, or record a step of one kind",
                     without_sizes->start_us));
}

// `index`: the exchange's place in order of time.
ProfiledExchange profiled(const std::vector<RankFile>& ranks, std::size_t index,
                          const ProfilerQuery& query) {
  const auto each = static_cast<std::size_t>(query.exchanges);
  const std::size_t forward = static_cast<std::size_t>(query.layers) * each;
  const std::size_t step = forward * (query.backward ? 2 : 1);
  const std::size_t within = index % step;
  const auto layer = static_cast<int>(within % forward / each);
  ProfiledExchange result;
  result.step = static_cast<int>(index / step);
  result.backward = within >= forward;
  result.layer = result.backward ? query.layers - 1 - layer : layer;
  result.index = static_cast<int>(within % each);
  std::int64_t all_rows = 0;
  for (const RankFile& rank : ranks) {
    const Exchange& exchange = rank.exchanges[index];
    std::int64_t rows = 0;
    for (const std::int64_t sent : exchange.sent) rows += sent;
    all_rows += rows;
    result.most_rows = std::max(result.most_rows, rows);
    result.most_bytes = std::max(result.most_bytes, exchange.bytes);
  }
  result.mean_rows = static_cast<double>(all_rows) / static_cast<double>(ranks.size());
  const bool has_kernels = std::none_of(ranks.begin(), ranks.end(),
                                        [](const RankFile& rank) { return rank.kernels.empty(); });
  for (const RankFile& rank : ranks) {
    if (!has_kernels) break;
    const double time = rank.kernels[index].duration_us;
    result.slowest_us = std::max(result.slowest_us, time);
    result.fastest_us = &rank == &ranks.front() ? time : std::min(result.fastest_us, time);
  }
  return result;
}

// Rows that uneven blocks have, as the counts of a trace.
ImportedTrace trace_of_rows(const ProfilerQuery& query, const std::vector<RankFile>& ranks,
                            std::vector<std::int64_t> counts) {
  TraceShape shape;
  shape.ranks = shape.experts = static_cast<int>(ranks.size());
  shape.layers = query.layers;
  shape.steps = static_cast<int>(counts.size() / ranks.size() / ranks.size()) / query.layers;
  shape.top_k = query.top_k;
  if (query.top_k > shape.ranks) {
    refuse(ranks[0].name, fmt::format("--top-k: {} experts per token on {} ranks: counts per rank "
                                      "drive one expert on each, so at most {}",
                                      query.top_k, shape.ranks, shape.ranks));
  }
  std::int64_t routes = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) routes += counts[rank];
  if (query.top_k < 1 || routes % query.top_k != 0 || routes == 0) {
    refuse(ranks[0].name, fmt::format("the first dispatch sends {} rows, which is no number of "
                                      "tokens of --top-k {} each",
                                      routes, query.top_k));
  }
  shape.tokens = routes / query.top_k;
  return {
      Trace::of_counts(query.files.front(), shape, std::move(counts), Trace::Per::rank),
      {},
      {},
      fmt::format("split sizes of all_to_allv of {} ranks, {} steps", ranks.size(), shape.steps)};
}

}  // namespace

ProfiledExchanges import_profiler_traces(const ProfilerQuery& query) {
  const std::vector<RankFile> ranks = read_ranks(query);
  const bool all_equal = is_padded(ranks);
  const auto layers = static_cast<std::size_t>(query.layers);
  const auto each = static_cast<std::size_t>(query.exchanges);
  const std::size_t forward = layers * each;
  const std::size_t step = forward * (query.backward ? 2 : 1);
  const std::size_t all = ranks[0].exchanges.size();
  if (all % step != 0) {
    refuse(ranks[0].name,
           fmt::format("{} all_to_allv are no whole number of steps of {}: --layers {}, "
                       "--exchanges-per-layer {}{}",
                       all, step, query.layers, query.exchanges,
                       query.backward ? ", --backward" : ""));
  }
  for (std::size_t index = 0; index < all; ++index) check_pairs(ranks, index);
  std::vector<std::int64_t> counts;
  for (std::size_t start = 0; start < all; start += step) {
    for (const RankFile& rank : ranks) {
      for (std::size_t layer = 0; layer < layers; ++layer) {
        const std::size_t dispatch = start + layer * each;
        check_turn(rank, dispatch, dispatch + each - 1, true, query);
        if (query.backward) {
          const std::size_t mirrored = start + forward + (layers - 1 - layer) * each;
          check_turn(rank, dispatch, mirrored, false, query);
        }
        const Rows& sent = rank.exchanges[dispatch].sent;
        counts.insert(counts.end(), sent.begin(), sent.end());
      }
    }
  }
  ProfiledExchanges result;
  result.ranks = static_cast<int>(ranks.size());
  for (std::size_t index = 0; index < all; ++index) {
    result.exchanges.push_back(profiled(ranks, index, query));
  }
  if (!all_equal) {
    result.routing = trace_of_rows(query, ranks, std::move(counts));
    return result;
  }
  for (std::size_t layer = 0; layer < layers; ++layer) {
    result.block_rows.push_back(ranks[0].exchanges[layer * each].sent.front());
  }
  return result;
}

}  // namespace moesim::routing
