#include "sim/profile/predict.hpp"

#include <string>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;

namespace {

const Profile& h100() {
  static const Profile profile =
      Profile::load(std::string(MOESIM_SOURCE_DIR) + "/profiles/hardware/h100-sxm.json");
  return profile;
}

using Params = std::map<std::string, std::string>;

void refuses(const std::string& op, const Params& params, const std::string& part) {
  INFO(op << ": " << part);
  CHECK_THROWS_AS(predict(h100(), op, params), UsageError);
  CHECK_THROWS_WITH(predict(h100(), op, params), ContainsSubstring(part));
}

}  // namespace

TEST_CASE("each operation is asked for by name") {
  CHECK(predict(h100(), "all-to-all", {{"gpus", "8"}, {"bytes", "64MiB"}}).time_us ==
        h100().collective(Collective::all_to_all, 8, 64.0 * 1024 * 1024).time_us);
  CHECK(predict(h100(), "reduce-scatter", {{"gpus", "4"}, {"bytes", "1e6"}}).time_us ==
        h100().collective(Collective::reduce_scatter, 4, 1e6).time_us);
  CHECK(
      predict(h100(), "all-to-all", {{"gpus", "4"}, {"bytes", "1GB"}, {"nccl", "2.23"}}).time_us ==
      h100().collective(Collective::all_to_all, 4, 1e9, "2.23").time_us);
  CHECK(predict(h100(), "memory", {{"bytes", "1GB"}}).time_us == h100().memory(1e9).time_us);
  CHECK(predict(h100(), "memory", {{"bytes", "1GB"}, {"kernel", "activation"}}).time_us ==
        h100().memory(1e9, MemoryKernel::activation).time_us);
  CHECK(predict(h100(), "permute", {{"tokens", "4096"}, {"hidden", "4096"}, {"k", "2"}}).time_us ==
        h100().permute(4096, 4096, 2).time_us);
  CHECK(predict(h100(), "combine", {{"tokens", "4096"}, {"hidden", "4096"}, {"k", "1"}}).time_us ==
        h100().combine(4096, 4096, 1).time_us);
  Params shape = {{"batch", "8"},
                  {"sequence", "2048"},
                  {"heads", "32"},
                  {"kv-heads", "8"},
                  {"head-dim", "128"}};
  CHECK(predict(h100(), "attention", shape).time_us ==
        h100().attention({8, 2048, 32, 8, 128}, false).time_us);
  shape["pass"] = "backward";
  CHECK(predict(h100(), "attention", shape).time_us ==
        h100().attention({8, 2048, 32, 8, 128}, true).time_us);
}

TEST_CASE("each data type has a curve of its own, bf16 if none is named") {
  const Params product = {{"m", "4096"}, {"n", "4096"}, {"k", "4096"}};
  const auto with = [](Params params, const std::string& name, const std::string& value) {
    params[name] = value;
    return params;
  };
  const double bf16 = predict(h100(), "gemm", product).time_us;
  CHECK(bf16 == h100().gemm(4096, 4096, 4096).time_us);
  CHECK(predict(h100(), "gemm", with(product, "dtype", "bfloat16")).time_us == bf16);
  for (const std::string type : {"fp8", "fp8_block"}) {
    const double us = predict(h100(), "gemm", with(product, "dtype", type)).time_us;
    CHECK(us == h100().gemm(4096, 4096, 4096, type).time_us);
    CHECK(us < bf16);
  }
  // A type that no curve has is refused, with those that there are.
  CHECK_THROWS_AS(predict(h100(), "gemm", with(product, "dtype", "nvfp4")), Error);
  CHECK_THROWS_WITH(predict(h100(), "gemm", with(product, "dtype", "nvfp4")),
                    ContainsSubstring("h100-sxm has bf16, fp8, fp8_block"));
  CHECK_THROWS_WITH(h100().gemm(64, 64, 64, "int8"), ContainsSubstring("has bf16, fp8"));
  const Params latent = {{"batch", "1"}, {"sequence", "4096"}, {"heads", "128"}};
  CHECK(predict(h100(), "latent-attention", latent).time_us ==
        h100().latent_attention(1, 4096, 128, false).time_us);
  CHECK(predict(h100(), "latent-attention", with(latent, "pass", "backward")).time_us ==
        Approx(2.5 * h100().latent_attention(1, 4096, 128, false).time_us));
  CHECK(predict(h100(), "latent-attention", with(latent, "dtype", "fp8")).time_us ==
        h100().latent_attention(1, 4096, 128, false, "fp8").time_us);
  const Params cast = {{"m", "8192"}, {"k", "7168"}};
  CHECK(predict(h100(), "quantize", cast).time_us == h100().quantize(8192, 7168, "fp8").time_us);
  refuses("quantize", {{"m", "8192"}}, "k is missing");
  refuses("latent-attention", {{"batch", "1"}, {"sequence", "1"}}, "heads is missing");
  refuses("expert-ffn",
          {{"rows", "64"},
           {"hidden", "64"},
           {"ffn", "64"},
           {"experts", "1"},
           {"kernel", "separate"},
           {"dtype", "fp8"}},
          "bf16 alone");
}

TEST_CASE("operations of a software profile take the multiplier of their class") {
  const std::string folder = std::string(MOESIM_SOURCE_DIR) + "/profiles/hardware/";
  const Profile software = Profile::load(folder + "a100-sxm-80gb-deepspeed.json");
  const Profile hardware = Profile::load(folder + "a100-sxm-80gb.json");
  const auto slower = [&](const std::string& op, const Params& params) {
    const Estimate with = predict(software, op, params), without = predict(hardware, op, params);
    const double factor = with.time_us / without.time_us;
    CHECK(with.time_us_p05 == Approx(factor * without.time_us_p05));
    CHECK(with.time_us_p95 == Approx(factor * without.time_us_p95));
    return factor;
  };
  CHECK(slower("gemm", {{"m", "4096"}, {"n", "28672"}, {"k", "4096"}}) == Approx(1.346));
  CHECK(slower("memory", {{"bytes", "1GiB"}}) == Approx(1.346));
  Params ffn = {{"rows", "512"}, {"hidden", "4096"}, {"ffn", "1024"}, {"experts", "4"}};
  for (const std::string kernel : {"fused", "separate", "batched"}) {
    ffn["kernel"] = kernel;
    CHECK(slower("expert-ffn", ffn) == Approx(1.346));
  }
  // It has no multiplier of exchanges.
  CHECK(slower("all-to-all", {{"gpus", "8"}, {"bytes", "4MiB"}}) == 1);
}

TEST_CASE("queries that make no sense are usage errors that say what to try") {
  refuses("gem", {}, "did you mean 'gemm'");
  refuses("gem", {}, "reduce-scatter");
  refuses("gemm", {{"m", "1"}, {"n", "1"}}, "k is missing");
  refuses("gemm", {{"m", "1"}, {"n", "1"}, {"k", ""}}, "k is missing");
  refuses("gemm", {{"m", "1"}, {"n", "-4"}, {"k", "2"}}, "n '-4'");
  refuses("gemm", {{"m", "1"}, {"n", "4x"}, {"k", "2"}}, "n '4x'");
  refuses("gemm", {{"m", "0"}, {"n", "4"}, {"k", "2"}}, "m '0'");
  refuses("gemm", {{"m", "1.5"}, {"n", "4"}, {"k", "2"}}, "m '1.5'");
  refuses("gemm", {{"m", "99999999999999999999"}, {"n", "4"}, {"k", "2"}}, "m '9999");
  refuses("gemm", {{"m", "1"}, {"n", "4"}, {"k", "2"}, {"l", "1"}},
          "gemm takes no l; it takes m, n, k, dtype");
  refuses("all-to-all", {{"gpus", "8"}, {"bytes", "many"}}, "many");
  refuses("all-to-all", {{"gpus", "1"}, {"bytes", "1MiB"}}, "not communication");
  refuses("all-to-all", {{"gpus", "99999999999"}, {"bytes", "1MiB"}}, "too many");
  refuses("all-to-all", {{"gpus", "8"}, {"bytes", "1MiB"}, {"nccl", "9"}}, "2.27.3");
  refuses("memory", {{"bytes", "1MiB"}, {"kernel", "stream"}}, "streaming");
  refuses("attention",
          {{"batch", "1"},
           {"sequence", "128"},
           {"heads", "32"},
           {"kv-heads", "5"},
           {"head-dim", "128"}},
          "no multiple");
}
