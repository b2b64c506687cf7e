#include <cmath>
#include <string>

#include "sim/model/hugging_face.hpp"
#include "sim/model/training_work.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/hugging_face.hpp"

using namespace moesim::model;
using moesim::Document;

TEST_CASE("layers with linear attention are said by their interval or one by one") {
  const Model next = load("qwen3-next-80b-a3b");
  CHECK(next.linear->full_every == 4);
  CHECK(next.output_gate);
  CHECK(next.query_key_norm);
  CHECK(next.sequence_length == 4096);
  const auto with = [](const std::string& layers, const std::string& types) {
    std::string text = moesim::read_file(hugging_face_folder + "qwen3-next-80b-a3b.json");
    for (const auto& [from, to] :
         {std::pair<std::string, std::string>{"\"full_attention_interval\": 4", types},
          {"\"num_hidden_layers\": 48", "\"num_hidden_layers\": " + layers}}) {
      text.replace(text.find(from), from.size(), to);
    }
    return Model::read(Document::parse(text, "config.json"));
  };
  CHECK(with("48", "\"full_attention_interval\": 6").linear_layers() == 40);
  CHECK(with("48", "\"rope_theta\": 1").linear_layers() == 36);  // transformers' default
  const std::string linear = "\"linear_attention\"";
  const std::string full = "\"full_attention\"";
  const std::string pair = linear + ", " + full;
  CHECK(with("4", "\"layer_types\": [" + pair + ", " + pair + "]").linear->full_every == 2);
  CHECK(with("2", "\"layer_types\": [" + linear + ", " + linear + "]").linear_layers() == 2);
  CHECK_THROWS_WITH(with("2", "\"layer_types\": [" + full + ", " + linear + "]"),
                    ContainsSubstring("/layer_types"));
  CHECK_THROWS_WITH(with("48", "\"full_attention_interval\": 0"),
                    ContainsSubstring("full_attention_interval"));
  CHECK_THAT(
      refusal("qwen3-next-80b-a3b", "\"linear_num_key_heads\": 16", "\"linear_num_key_heads\": 5"),
      ContainsSubstring("5 key heads do not divide 32 value heads"));
}

TEST_CASE("the weight files of Qwen3.5 hold the parameters counted, towers and vectors") {
  // The tower: 27 layers of two norms, queries, keys and values, output, two products, all with
  // biases; patches of 3 x 2 x 16 x 16; positions; a norm and two products over 2 x 2 of them.
  const auto vision = [](std::int64_t out) {
    const std::int64_t layer = 2 * 2 * 1152 + (1152 + 1) * 3 * 1152 + (1152 + 1) * 1152 +
                               (1152 + 1) * 4304 + (4304 + 1) * 1152;
    return 27 * layer + (1536 + 1) * 1152 + 2304 * 1152 + 2 * 1152 + (4608 + 1) * 4608 +
           (4608 + 1) * out;
  };
  CHECK(vision(2048) == 446'571'248);
  const Model moe = load("qwen3.5-35b-a3b");
  CHECK(moe.name == "qwen3_5_moe");
  CHECK(moe.linear_layers() == 30);
  CHECK(moe.left_out == std::vector<std::string>{"vision_config"});
  CHECK(moe.sequence_length == 4096);
  // Vectors of a layer that are not counted: the gate of the shared expert; decay and norm; norms
  // of queries and keys.
  const std::int64_t vectors = 40 * 2048 + 30 * (2 * 32 + 128) + 10 * 2 * 256;
  CHECK(moe.total_parameters(256) + vectors == 34'660'610'688);
  // The depth: softmax attention, router, 257 experts and the gate of the shared one, the
  // projection of two vectors to one, five norms.
  REQUIRE(moe.mtp_depths == 1);
  const std::int64_t depth = 2048 * 256 * (2 * 16 + 4) + 4096 * 2048 + 2 * 256 + 2048 * 256 +
                             257 * 3 * 2048 * 512 + 2048 + 2 * 2048 * 2048 + 5 * 2048;
  CHECK(moe.total_parameters(256) + vectors + depth + vision(2048) == 35'951'822'704);

  const Model large = load("qwen3.5-397b-a17b");
  const std::int64_t of_large = 60 * 4096 + 45 * (2 * 64 + 128) + 15 * 2 * 256;
  CHECK(large.total_parameters(512) + of_large == 396'346'350'336);
  const std::int64_t depth_of_large = 4096 * 256 * (2 * 32 + 4) + 8192 * 4096 + 2 * 256 +
                                      4096 * 512 + 513LL * 3 * 4096 * 1024 + 4096 +
                                      2 * 4096 * 4096 + 5 * 4096;
  CHECK(large.total_parameters(512) + of_large + depth_of_large + vision(4096) == 403'397'928'944);

  const Model dense = load("qwen3.5-27b");
  CHECK(dense.name == "qwen3_5");
  CHECK_FALSE(dense.moe.has_value());
  CHECK(dense.linear_layers() == 48);
  CHECK(dense.linear->projected() == 2 * 2048 + 2 * 6144 + 96);
  CHECK(dense.attention_parameters() == 5120 * 256 * (2 * 24 + 2 * 4) + 6144 * 5120);
  const std::int64_t of_dense = 48 * (2 * 48 + 128) + 16 * 2 * 256;
  const std::int64_t depth_of_dense =
      dense.attention_parameters() + 2 * 256 + 3 * 5120 * 17408 + 2 * 5120 * 5120 + 5 * 5120;
  CHECK(dense.total_parameters(0) + of_dense + depth_of_dense + vision(5120) == 27'781'427'952);
}

TEST_CASE("the weight files of Qwen3-Next hold its prediction depth") {
  const Model next = load("qwen3-next-80b-a3b");
  REQUIRE(next.mtp_depths == 1);
  const std::int64_t vectors = 48 * 2048 + 36 * (2 * 32 + 128) + 12 * 2 * 256;
  const std::int64_t depth = 2048 * 256 * (2 * 16 + 4) + 4096 * 2048 + 2 * 256 + 2048 * 512 +
                             513 * 3 * 2048 * 512 + 2048 + 2 * 2048 * 2048 + 5 * 2048;
  CHECK(next.total_parameters(512) + vectors + depth == 81'324'862'720);
  // Its layer has softmax attention, as the last one has.
  const std::string layers = "\"num_hidden_layers\": 48";
  const auto with = [&](const std::string& text) {
    return changed("qwen3-next-80b-a3b", layers, text);
  };
  CHECK(with("\"num_nextn_predict_layers\": 2, " + layers).mtp_depths == 2);
  CHECK(with("\"num_hidden_layers\": 47").mtp_depths == 0);
  CHECK_THAT(refusal("qwen3-next-80b-a3b", layers,
                     "\"num_nextn_predict_layers\": 1, \"num_hidden_layers\": 47"),
             ContainsSubstring("/num_nextn_predict_layers: depths with softmax attention behind"));
}

TEST_CASE("what a configuration of Qwen3.5 leaves out is of its class") {
  const auto without = [](const std::string& name, const std::string& text) {
    return changed(name, text, "");
  };
  CHECK(without("qwen3.5-35b-a3b", "\"num_key_value_heads\": 2,").kv_heads == 2);
  CHECK(without("qwen3.5-27b", "\"num_key_value_heads\": 4,").kv_heads == 4);
  CHECK(without("qwen3.5-27b", "\"head_dim\": 256,").head_dim == 256);
  CHECK(without("qwen3.5-35b-a3b", "\"linear_num_value_heads\": 32,").linear->value_heads == 32);
  CHECK(without("qwen3.5-35b-a3b", "\"shared_expert_intermediate_size\": 512,").moe->shared_ffn ==
        512);
  CHECK(without("qwen3.5-35b-a3b", "\"mtp_num_hidden_layers\": 1,").mtp_depths == 0);
  CHECK_FALSE(changed("qwen3.5-27b", "\"attn_output_gate\": true", "\"attn_output_gate\": false")
                  .output_gate);
  CHECK_THAT(
      refusal("qwen3.5-27b",
              "\"num_attention_heads\": 24,\n    \"num_hidden_layers\": 64,\n    "
              "\"num_key_value_heads\": 4",
              "\"num_attention_heads\": 22, \"num_hidden_layers\": 64"),
      ContainsSubstring("/num_key_value_heads: missing: the usual 4 do not divide 22 heads"));
}

TEST_CASE("a configuration of Qwen3.5 that no model can have is refused") {
  CHECK_THAT(refusal("qwen3.5-35b-a3b", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0]"),
             ContainsSubstring("/text_config/mlp_only_layers: layers without experts"));
  CHECK_THAT(refusal("qwen3.5-27b", "\"mtp_use_dedicated_embeddings\": false",
                     "\"mtp_use_dedicated_embeddings\": true"),
             ContainsSubstring("a prediction depth with an embedding of its own is not known"));
  CHECK_THAT(refusal("qwen3.5-27b", "[\"linear_attention\"", "[\"mamba\""),
             ContainsSubstring("mamba is not known in this family of models"));
  CHECK_THAT(refusal("qwen3.5-27b", "[\"linear_attention\"", "[\"full_attention\""),
             ContainsSubstring("breaks the pattern"));
}

TEST_CASE("models with Mamba layers are refused by what they are") {
  const auto refused = [](const std::string& type, const std::string& key) {
    return refusal("mixtral-8x7b", "\"model_type\": \"mixtral\"",
                   "\"model_type\": \"" + type + "\", " + key);
  };
  CHECK_THAT(refused("nemotron_h", "\"hybrid_override_pattern\": \"MEM*E\""),
             ContainsSubstring("/hybrid_override_pattern: Mamba layers are not known"));
  CHECK_THAT(refused("falcon_h1", "\"mamba_d_state\": 256"),
             ContainsSubstring("/mamba_d_state: Mamba layers are not known"));
  CHECK_THAT(refused("mamba2", "\"state_size\": 128"),
             ContainsSubstring("/state_size: Mamba layers are not known"));
  // A key of a known family.
  CHECK(refused("mixtral", "\"state_size\": 128") == "no error");
}
