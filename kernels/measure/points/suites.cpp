#include "kernels/measure/points/suites.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/measure/points/attention.hpp"
#include "kernels/measure/points/overlap.hpp"
#include "kernels/measure/points/suite_points.hpp"
#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"

namespace moesim::kernels::measure {
namespace {

constexpr double bf16 = 2;
// Rows of this many columns, as hidden sizes and FFN widths are.
constexpr std::int64_t memory_columns = 4096;

}  // namespace

PointSpec gemm_point(std::int64_t m, std::int64_t n, std::int64_t k) {
  PointSpec spec;
  spec.op = "gemm";
  // Weights stored [n, k] as frameworks store them: the product is X W^T.
  spec.params = {{"dtype", "bf16"}, {"layout", "x-wt"}, {"m", m}, {"n", n}, {"k", k}};
  const auto mm = static_cast<double>(m), nn = static_cast<double>(n), kk = static_cast<double>(k);
  spec.flops = 2 * mm * nn * kk;
  spec.bytes = bf16 * (mm * kk + nn * kk + mm * nn);
  spec.held_bytes = 3 * spec.bytes;
  return spec;
}

PointSpec memory_point(const char* kernel, std::int64_t rows, int arrays_read) {
  PointSpec spec;
  spec.op = "memory";
  const auto array = rows * memory_columns * 2;
  const std::int64_t bytes = array * (arrays_read + 1);
  spec.params = {{"kernel", kernel},
                 {"dtype", "bf16"},
                 {"columns", memory_columns},
                 {"rows", rows},
                 {"bytes", bytes}};
  spec.bytes = static_cast<double>(bytes);
  spec.held_bytes = spec.bytes + 512e6;  // rotated past twice the L2
  return spec;
}

PointSpec exchange_point(const char* op, const char* pattern, int gpus, std::int64_t bytes) {
  PointSpec spec;
  spec.op = op;
  spec.params = {{"gpus", gpus}, {"pattern", pattern}, {"dtype", "bf16"}, {"bytes", bytes}};
  spec.collective = true;
  spec.sent_bytes = static_cast<double>(bytes) * (gpus - 1) / gpus;
  if (spec.op == "all-reduce") spec.sent_bytes *= 2;
  spec.bytes = 2 * static_cast<double>(bytes);
  spec.held_bytes = 2 * static_cast<double>(bytes);
  return spec;
}

namespace {

// Widths and depths of projections, FFNs and routers of the shipped models, and small ones between.
std::vector<PointSpec> gemm_points(Ranks) {
  struct Product {
    std::int64_t n, k;
  };
  constexpr std::array products{Product{4096, 4096},  Product{11008, 4096}, Product{4096, 11008},
                                Product{22016, 4096}, Product{12288, 4096}, Product{14336, 4096},
                                Product{4096, 14336}, Product{1024, 4096},  Product{4096, 512},
                                Product{2048, 2048},  Product{768, 2048},   Product{2048, 768},
                                Product{2048, 7168},  Product{7168, 2048},  Product{32000, 4096},
                                Product{64, 4096},    Product{256, 7168},   Product{1024, 1024}};
  std::vector<PointSpec> points;
  for (const std::int64_t m :
       {1, 16, 64, 128, 256, 384, 512, 1024, 1536, 2048, 3072, 4096, 8192, 16384}) {
    for (const Product& product : products) points.push_back(gemm_point(m, product.n, product.k));
  }
  return points;
}

std::vector<PointSpec> memory_points(Ranks) {
  std::vector<PointSpec> points;
  // Arrays of 8 KiB to 1 GiB.
  for (std::int64_t rows = 1; rows <= std::int64_t{1} << 17; rows *= 2) {
    points.push_back(memory_point("streaming", rows, 1));
    points.push_back(memory_point("activation", rows, 2));
    points.push_back(memory_point("normalization", rows, 1));
  }
  return points;
}

// Routers of the paper and of later models, on one GPU's tokens.
struct Routing {
  const char* router;
  std::int64_t experts;
  const char* capacity_factor;  // the paper's convention: k keeps all of a balanced router
  const char* priority;
};

PointSpec route_point(const char* op, std::int64_t tokens, const Routing& routing) {
  PointSpec spec;
  spec.op = op;
  spec.params = {{"router", routing.router},
                 {"tokens", tokens},
                 {"experts", routing.experts},
                 {"capacity_factor", routing.capacity_factor},
                 {"priority", routing.priority}};
  // Logits once, and some 16 bytes per route; k is not looked up for an estimate.
  spec.bytes = static_cast<double>(tokens) * (4.0 * static_cast<double>(routing.experts) + 64);
  spec.held_bytes = 8 * spec.bytes;
  return spec;
}

std::vector<PointSpec> routing_points(Ranks) {
  constexpr std::array routings{
      Routing{"top1", 8, "1", "token-max"},       Routing{"top2", 8, "2", "token-max"},
      Routing{"top2+fr+ir", 8, "1", "token-max"}, Routing{"top2", 64, "2", "token-max"},
      Routing{"top2", 64, "1", "own-score"},      Routing{"top2", 64, "1", "position"},
      Routing{"top2", 64, "1", "random"},         Routing{"top2+fr+ir", 64, "1", "token-max"},
      Routing{"top8", 256, "8", "token-max"},     Routing{"top8", 512, "8", "token-max"}};
  std::vector<PointSpec> points;
  for (const std::int64_t tokens : {1024, 4096, 16384}) {
    for (const Routing& routing : routings) {
      points.push_back(route_point("route", tokens, routing));
    }
    for (const Routing& routing : {routings[1], routings[3], routings[8]}) {
      PointSpec gate = route_point("gate", tokens, routing);
      constexpr std::int64_t hidden = 4096;
      gate.params["hidden"] = hidden;
      gate.params["dtype"] = "bf16";
      gate.bytes += bf16 * static_cast<double>((tokens + routing.experts) * hidden);
      gate.flops = 2 * static_cast<double>(tokens * routing.experts * hidden);
      gate.held_bytes += 512e6;
      points.push_back(gate);
    }
  }
  return points;
}

PointSpec row_point(const char* op, std::int64_t tokens, std::int64_t hidden, std::int64_t k,
                    std::int64_t experts) {
  PointSpec spec;
  spec.op = op;
  // At a capacity factor of k there are k slots for each token, padding included.
  const std::int64_t rows = experts * ((k * tokens + experts - 1) / experts);
  const std::int64_t bytes = 2 * hidden * (tokens + rows);
  spec.params = {{"dtype", "bf16"},
                 {"router", fmt::format("top{}", k)},
                 {"capacity_factor", std::to_string(k)},
                 {"tokens", tokens},
                 {"hidden", hidden},
                 {"experts", experts},
                 {"rows", rows},
                 {"bytes", bytes}};
  spec.bytes = static_cast<double>(bytes);
  spec.held_bytes = spec.bytes + 512e6;
  return spec;
}

std::vector<PointSpec> row_points(Ranks) {
  struct Width {
    std::int64_t hidden, k, experts;
  };
  constexpr std::array widths{Width{4096, 1, 8}, Width{4096, 2, 8}, Width{4096, 2, 64},
                              Width{2048, 8, 64}, Width{7168, 8, 256}};
  std::vector<PointSpec> points;
  for (const std::int64_t tokens : {256, 1024, 4096, 8192, 16384}) {
    for (const Width& width : widths) {
      for (const char* op : {"permute", "combine"}) {
        points.push_back(row_point(op, tokens, width.hidden, width.k, width.experts));
      }
    }
  }
  return points;
}

PointSpec expert_point(const char* layout, const char* pass, std::int64_t rows, std::int64_t hidden,
                       std::int64_t ffn, std::int64_t experts) {
  PointSpec spec;
  spec.op = "expert-ffn";
  spec.params = {{"dtype", "bf16"},  {"layout", layout}, {"pass", pass},      {"rows", rows},
                 {"hidden", hidden}, {"ffn", ffn},       {"experts", experts}};
  const bool backward = spec.params["pass"] == "backward";
  const auto weights = static_cast<double>(3 * experts * hidden * ffn);
  const auto activations = static_cast<double>(rows * (2 * hidden + 3 * ffn));
  spec.flops = (backward ? 12 : 6) * static_cast<double>(rows * hidden * ffn);
  spec.bytes = bf16 * (backward ? 2 : 1) * (weights + activations);
  spec.held_bytes = bf16 * 2 * (weights + activations);
  return spec;
}

// The experts of one GPU in shipped models, expert-parallel over a node.
std::vector<PointSpec> expert_points(Ranks) {
  struct Width {
    std::int64_t hidden, ffn, experts;
  };
  constexpr std::array widths{Width{4096, 11008, 1}, Width{4096, 14336, 1}, Width{2048, 1024, 8},
                              Width{2048, 768, 16}, Width{7168, 2048, 32}};
  std::vector<PointSpec> points;
  for (const std::int64_t each : {16, 64, 256, 1024, 4096}) {
    for (const auto& [hidden, ffn, experts] : widths) {
      if (each * experts > 32768) continue;
      const std::int64_t rows = each * experts;
      for (const char* pass : {"forward", "backward"}) {
        points.push_back(expert_point("padded", pass, rows, hidden, ffn, experts));
      }
      if (experts > 1)
        points.push_back(expert_point("ragged", "forward", rows, hidden, ffn, experts));
    }
  }
  return points;
}

std::vector<PointSpec> collective_points(Ranks ranks) {
  std::vector<PointSpec> points;
  if (ranks.gpus < 2) return points;
  // nccl-tests' size column: the whole per-rank buffer, divisible among the ranks in 16-byte steps.
  const std::int64_t unit = 16 * static_cast<std::int64_t>(ranks.gpus);
  const bool tiers = ranks.nodes > 1 && ranks.gpus > ranks.nodes && ranks.gpus % ranks.nodes == 0;
  for (std::int64_t size = 1 << 12; size <= std::int64_t{1} << 30; size *= 2) {
    const std::int64_t bytes = std::max(size / unit, std::int64_t{1}) * unit;
    for (const char* op : {"all-to-all", "all-reduce", "all-gather", "reduce-scatter"}) {
      points.push_back(exchange_point(op, "equal", ranks.gpus, bytes));
    }
    if (size >= 1 << 20 && ranks.gpus > 2) {
      points.push_back(exchange_point("all-to-all", "uneven", ranks.gpus, bytes));
    }
    if (tiers) {
      PointSpec spec = exchange_point("all-to-all", "hierarchical", ranks.gpus, bytes);
      spec.params["nodes"] = ranks.nodes;
      spec.held_bytes *= 1.5;  // a staging buffer
      points.push_back(spec);
    }
  }
  return points;
}

}  // namespace

const std::vector<Suite>& all_suites() {
  static const std::vector<Suite> suites = {
      {"gemm",
       "bf16 matrix products of cuBLAS, weights as frameworks store them",
       {"gemm"},
       1,
       gemm_points},
      {"memory",
       "copy, gated activation and RMSNorm, 16 KiB to 3 GiB moved",
       {"memory"},
       1,
       memory_points},
      {"attention",
       "causal attention forward of cuDNN, bf16, prefills of 128 to 16,384 tokens",
       {"attention"},
       1,
       attention_points},
      {"exchange",
       "permute and combine of this project: rows of tokens into experts' slots and back",
       {"permute", "combine"},
       1,
       row_points},
      {"experts",
       "SwiGLU FFNs of a GPU's experts: equal rows in one call, uneven ones in a call each",
       {},
       1,
       expert_points},
      {"routing",
       "this project's router kernels: gate, choices, capacity, fill-in, rectification",
       {},
       1,
       routing_points},
      {"collectives",
       "NCCL all-to-all (equal, uneven, hierarchical over nodes), all-reduce, all-gather, "
       "reduce-scatter",
       {"all-to-all", "all-reduce", "all-gather", "reduce-scatter"},
       2,
       collective_points},
      {"overlap",
       "a matrix product while an all-to-all runs, and the other way round (one GPU: a copy)",
       {"overlap"},
       1,
       overlap_points},
  };
  return suites;
}

const Suite& find_suite(const std::string& name) {
  std::vector<std::string> names;
  for (const Suite& suite : all_suites()) {
    if (suite.name == name) return suite;
    names.push_back(suite.name);
  }
  throw UsageError(fmt::format("unknown suite '{}'{}; there are {}", name, suggestion(name, names),
                               fmt::join(names, ", ")));
}

const std::vector<Gap>& known_gaps() {
  static const std::vector<Gap> gaps = {
      {"layer", "bench_layer_gpu times whole MoE layers, no suite does",
       "moesim validate layer --measured compares them with this profile"},
  };
  return gaps;
}

std::vector<std::int64_t> ragged_rows(int experts, std::int64_t rows) {
  std::vector<std::int64_t> each = uneven_row(experts, experts - 1, 16 * rows);
  for (std::int64_t& count : each) count /= 16;
  return each;
}

std::vector<std::int64_t> uneven_row(int gpus, int from, std::int64_t bytes) {
  double total = 0;
  for (int place = 0; place < gpus; ++place) total += 1.0 / (1 + place);
  std::vector<std::int64_t> row(static_cast<std::size_t>(gpus));
  std::int64_t left = bytes / 16;
  for (int place = gpus - 1; place >= 0; --place) {
    const double share = 1.0 / (1 + place) / total;
    const auto wanted =
        std::max<std::int64_t>(1, std::llround(share * static_cast<double>(bytes) / 16));
    const std::int64_t steps = place == 0 ? left : std::min(wanted, left - place);
    row[static_cast<std::size_t>((from + 1 + place) % gpus)] = 16 * steps;
    left -= steps;
  }
  return row;
}

}  // namespace moesim::kernels::measure
