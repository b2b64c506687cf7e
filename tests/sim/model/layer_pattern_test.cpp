#include "sim/model/megatron/layer_pattern.hpp"

#include <limits>
#include <string>

#include "sim/base/error.hpp"
#include "sim/model/megatron/megatron_model.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::model;

namespace {

// As text, "" where it is no list.
std::string read(const std::string& text, std::int64_t most = 100) {
  const auto found = layer_pattern(text, most);
  std::string digits;
  if (!found) return digits;
  for (const bool layer : found->layers) digits += layer ? '1' : '0';
  return digits.empty() ? "none" : digits;
}

}  // namespace

TEST_CASE("lists of layers are sums and multiples, as in Python") {
  CHECK(read("[0,1,1]") == "011");
  CHECK(read("([0]*3+[1]*2)") == "00011");
  CHECK(read("([1]*3+[0]*1)*3") == "111011101110");
  CHECK(read("[1]*2+([0]+[1]*2)*2+[0]") == "110110110");
  CHECK(read("[0]*2*2+[1]") == "00001");
  CHECK(read("(([1]+[0])*2 + [1]) * 2") == "1010110101");
  CHECK(read("[ 0, 1 ]*2") == "0101");
  CHECK(read("[0, 1,]*2") == "0101");
  CHECK(read("[0]*0+[1]*2") == "11");
  CHECK(read("[]") == "none");
  CHECK(read("[0]*2 2>&1") == "00");  // what a shell takes
}

TEST_CASE("other texts are no lists of layers") {
  for (const char* text : {"",       "2",     "[2]",   "[0",     "([0]", "[0]*",    "[0]*x",
                           "[0]+",   "[0]+2", "[$F]",  "[0]*-1", "[0]x", "(3)",     "[0]*2)",
                           "[01]*2", "[000]", "[1 0]", "[0,,1]", "[,1]", "[0 ,1 1]"}) {
    CAPTURE(text);
    CHECK(read(text).empty());
  }
  CHECK(read(std::string(100'000, '(') + "[0]").empty());
}

TEST_CASE("lists that name more layers than there are take no memory") {
  const auto found = layer_pattern("((([1]*1000000000)*1000000000)+[0])*1000000000", 4);
  REQUIRE(found);
  CHECK(found->layers.size() == 5);
  CHECK(found->count == std::numeric_limits<std::int64_t>::max());
  const auto few = layer_pattern("([0]*3+[1])*12", 4);
  REQUIRE(few);
  CHECK(few->count == 48);
}

TEST_CASE("layers with linear attention are listed or counted") {
  const auto model = [](const std::string& layers) {
    const std::string script =
        "python pretrain_gpt.py --num-layers 8 --hidden-size 64 --num-attention-heads 4 "
        "--vocab-size 100 --seq-length 32 --experimental-attention-variant gdn "
        "--linear-num-key-heads 4 --linear-num-value-heads 8 --linear-key-head-dim 16 "
        "--linear-value-head-dim 16 --linear-conv-kernel-dim 4 --linear-attention-freq ";
    return megatron_model(MegatronArguments::parse(script + layers, "run.sh"));
  };
  CHECK(model("4").linear_layers() == 6);
  CHECK(model("'([1]*3+[0]*1)*2'").linear->full_every == 4);
  CHECK(model("[1,1,1,0,1,1,1,0]").linear->full_every == 4);
  CHECK(model("'([1]+[0])*4'").linear_layers() == 4);
  CHECK(model("[1]*8").linear_layers() == 8);
  CHECK(model("9").linear_layers() == 8);
  CHECK(model("'[1]*4+[0]+[1]*3'").linear_layers() == 7);
  const auto refusal = [&](const std::string& layers) -> std::string {
    try {
      model(layers);
    } catch (const moesim::UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  CHECK_THAT(refusal("1"), ContainsSubstring("no layer has linear attention"));
  CHECK_THAT(refusal("'[0]*8'"), ContainsSubstring("no layer has linear attention"));
  CHECK_THAT(refusal("'([1]*3+[0]*1)*12'"), ContainsSubstring("has 48 layers of 8"));
  CHECK_THAT(refusal("'([0]+[1]*3)*2'"),
             ContainsSubstring("layer 1 breaks the pattern that every 1th has softmax attention"));
  CHECK_THAT(refusal("'[1]*3+[0]+[1]*4'"), ContainsSubstring("layer 7 breaks the pattern"));
  CHECK_THAT(refusal("'[1]*3+[0]*2+[1]*3'"), ContainsSubstring("layer 4 breaks the pattern"));
  CHECK_THAT(refusal("some"), ContainsSubstring("'some' is no list of 0 and 1 for layers"));
}
