#include "kernels/measure/suites/overlap.hpp"

#include <array>

#include "kernels/measure/suites/collectives.hpp"
#include "kernels/measure/suites/gemm.hpp"
#include "kernels/measure/suites/memory.hpp"

namespace moesim::kernels::measure {

OverlapParts overlap_parts(const PointSpec& spec) {
  const Params& params = spec.params;
  OverlapParts parts;
  parts.product = gemm_point(params.at("m"), params.at("n"), params.at("k"));
  const std::int64_t bytes = params.at("bytes");
  parts.exchange = params.at("exchange") == "all-to-all"
                       ? exchange_point("all-to-all", "equal", params.at("gpus"), bytes)
                       : memory_point("streaming", bytes / (2 * memory_columns), 1);
  parts.timed = params.at("timed");
  parts.beside = params.at("beside");
  if (parts.beside == overlap_alone) parts.beside.clear();
  return parts;
}

std::vector<PointSpec> overlap_points(Ranks ranks) {
  struct Product {
    std::int64_t m, n, k;
  };
  // Experts' products of some hundred and some thousand rows.
  constexpr std::array products{Product{1024, 4096, 4096}, Product{4096, 14336, 4096}};
  const char* exchange = ranks.gpus > 1 ? "all-to-all" : "device-copy";
  std::vector<PointSpec> points;
  for (const Product& product : products) {
    for (const std::int64_t size : {std::int64_t{16} << 20, std::int64_t{128} << 20}) {
      const std::int64_t unit = std::int64_t{8192} * ranks.gpus;
      const std::int64_t bytes = size / unit * unit;
      for (const auto& [timed, other] :
           {std::pair{"gemm", "exchange"}, std::pair{"exchange", "gemm"}}) {
        for (const char* beside : {overlap_alone, other}) {
          PointSpec spec;
          spec.op = "overlap";
          spec.params = {{"timed", timed},     {"beside", beside}, {"exchange", exchange},
                         {"gpus", ranks.gpus}, {"dtype", "bf16"},  {"m", product.m},
                         {"n", product.n},     {"k", product.k},   {"bytes", bytes}};
          const OverlapParts parts = overlap_parts(spec);
          spec.flops = parts.product.flops;
          spec.bytes = parts.product.bytes + parts.exchange.bytes;
          spec.sent_bytes = parts.exchange.sent_bytes;
          spec.held_bytes = parts.product.held_bytes + parts.exchange.held_bytes;
          spec.collective = ranks.gpus > 1;
          points.push_back(spec);
        }
      }
    }
  }
  return points;
}

Suite overlap_suite() {
  return {"overlap",
          "a matrix product while an all-to-all runs, and the other way round (one GPU: a copy)",
          {"overlap"},
          1,
          overlap_points};
}

}  // namespace moesim::kernels::measure
