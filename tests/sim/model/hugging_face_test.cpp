#include "sim/model/hugging_face.hpp"

#include <cmath>
#include <string>

#include "sim/model/training_work.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/hugging_face.hpp"

using namespace moesim::model;
using moesim::Document;

TEST_CASE("configurations have the parameters that their authors publish") {
  // In B, with the unit of the last digit given. `outside` is what the count has beside the
  // decoder here, or leaves out.
  const double glm_embedding = -2.0 * 151552 * 5120;  // footnote of arXiv:2508.06471, table 1
  const double glm_depth =
      (160 + 1) * 3.0 * 5120 * 1536 + 5120.0 * 128 * (2 * 96 + 2 * 8) + 2.0 * 5120 * 5120;
  // Vision tower: 34 layers of 4 h^2 + 2 h f, h 1,408, f 5,632; adapter 5,632 x 4,096 + 4,096^2;
  // projection 4,096 x 5,120.
  const double vision =
      34 * (4.0 * 1408 * 1408 + 2.0 * 1408 * 5632) + 5632.0 * 4096 + 4096.0 * 4096 + 4096.0 * 5120;
  // What the checkpoint's count has beside: norms of queries and keys, the router's bias, and a
  // scale for each 128 x 128 elements in FP8. Its card says 230B.
  const double minimax_beside =
      62 * ((48 + 8) * 128.0 + 256 +
            (3072 * 128.0 * (2 * 48 + 2 * 8) + 256 * 3 * 3072.0 * 1536) / (128 * 128));
  struct Row {
    const char* name;
    double total, unit;
    double active, active_unit;
    bool active_with_embedding;
    double outside;
    bool is_cut = false;  // its authors cut the total where others round it
  };
  const Row rows[] = {
      {"mixtral-8x7b", 46.7, 0.1, 12.9, 0.1, true, 0},
      {"deepseek-v3", 671, 1, 37, 1, false, 0},
      {"kimi-k2", 1000, 100, 32, 1, false, 0},
      {"deepseek-v2", 236, 1, 21, 1, false, 0},
      {"deepseek-v2-lite", 15.7, 0.1, 2.4, 0.1, false, 0},
      {"qwen3-30b-a3b", 30.5, 0.1, 3.3, 0.1, true, 0},
      {"qwen3-next-80b-a3b", 80, 1, 3, 1, true, 0},
      {"qwen3.5-35b-a3b", 35, 1, 3, 1, true, 446'571'248},  // vision tower, see below
      {"qwen3.5-397b-a17b", 397, 1, 17, 1, true, 456'010'480},
      {"qwen3.5-27b", 27, 1, 0, 0, true, 460'730'096},
      {"qwen1.5-moe-a2.7b", 14.3, 0.1, 2.7, 0.1, true, 0},
      {"qwen2-57b-a14b", 57.4, 0.1, 14, 1, true, 0},
      {"olmoe-1b-7b", 6.92, 0.01, 1.28, 0.01, true, 0},
      {"gpt-oss-120b", 117, 1, 5.1, 0.1, false, 0},
      {"llama-4-scout", 109, 1, 17, 1, true, vision},
      {"llama-4-maverick", 402, 1, 17, 1, true, vision},
      {"glm-4.5", 355, 1, 32, 1, false, glm_embedding + glm_depth},
      {"phi-3.5-moe", 41.9, 0.1, 6.6, 0.1, true, 0},
      {"switch-base-128", 7.4, 0.1, 0, 0, true, 0},
      {"llama-3-70b", 70.553706496, 1e-9, 0, 0, true, 0},
      {"minimax-m2", 228.703644928, 1e-9, 10, 1, false, minimax_beside},
      {"ernie-4.5-21b-a3b", 21, 1, 3, 1, true, 0, true},
      {"dots.llm1", 142, 1, 14, 1, true, 0, true},
      {"hunyuan-a13b", 80, 1, 13, 1, true, 0},
      {"ling-mini-2.0", 16.26, 0.01, 1.43, 0.01, true, 0},
      {"ling-lite", 16.8, 0.1, 2.75, 0.01, true, 0},
      {"granite-3.1-1b-a400m", 1.3, 0.1, 0.4, 0.1, true, 0},
      {"dbrx", 132, 1, 36, 1, true, 0},
      {"qwen3-vl-235b-a22b", 235, 1, 22, 1, true, 0},
      {"glm-4.7-flash", 30, 1, 3, 1, false, 0},
      {"qwen3-32b", 32.8, 0.1, 0, 0, true, 0},
      {"qwen2.5-72b", 72.7, 0.1, 0, 0, true, 0},
      {"mistral-7b-v0.1", 7.241732096, 1e-9, 0, 0, true, 0},
  };
  for (const Row& row : rows) {
    const Model model = load(row.name);
    const int experts = model.moe ? model.moe->experts : 0;
    const double total = static_cast<double>(model.total_parameters(experts)) + row.outside;
    CAPTURE(row.name, total, row.total);
    const double middle = row.total + (row.is_cut ? row.unit / 2 : 0);
    CHECK(std::abs(total * 1e-9 - middle) <= row.unit / 2);
    if (row.active == 0) continue;
    const auto embedding = static_cast<double>(model.vocabulary * model.hidden);
    const double active = static_cast<double>(model.active_parameters(model.moe->top_k)) -
                          (row.active_with_embedding ? 0 : embedding);
    CAPTURE(active, row.active);
    CHECK(std::abs(active * 1e-9 - row.active) < row.active_unit);
  }
}

TEST_CASE("configurations describe the shipped models") {
  for (const auto& [config, name] : {std::pair{"mixtral-8x7b", "mixtral-8x7b"},
                                     {"deepseek-v3", "deepseek-v3"},
                                     {"kimi-k2", "kimi-k2"},
                                     {"deepseek-v2", "deepseek-v2"},
                                     {"deepseek-v2-lite", "deepseek-v2-lite"},
                                     {"qwen3-30b-a3b", "qwen3-30b-a3b"},
                                     {"qwen3-next-80b-a3b", "qwen3-next-80b-a3b"},
                                     {"olmoe-1b-7b", "olmoe-1b-7b"},
                                     {"gpt-oss-120b", "gpt-oss-120b"},
                                     {"dbrx", "dbrx"},
                                     {"qwen3-vl-235b-a22b", "qwen3-235b-a22b"}}) {
    CAPTURE(config);
    const Model mine = load(config);
    const Model shipped = Model::load(name);
    CHECK(mine.total_parameters(mine.moe->experts) ==
          shipped.total_parameters(shipped.moe->experts));
    CHECK(mine.ffn == shipped.ffn);
    CHECK(mine.sequence_length == shipped.sequence_length);
    CHECK(mine.mtp_depths == shipped.mtp_depths);
    CHECK(model_flops(mine, 4096, mine.moe->top_k, mine.mtp_depths).total ==
          model_flops(shipped, 4096, shipped.moe->top_k, shipped.mtp_depths).total);
  }
  CHECK(load("llama-3-70b").total_parameters(0) == Model::load("llama3-70b").total_parameters(0));
}

TEST_CASE("a family brings its own router") {
  for (const auto& [name, router] : {std::pair{"mixtral-8x7b", "dropless"},
                                     {"deepseek-v3", "bias-balanced+groups:8:4"},
                                     {"kimi-k2", "bias-balanced"},
                                     {"deepseek-v2", "group-limited:8:3"},
                                     {"deepseek-v2-lite", "dropless"},
                                     {"qwen3-30b-a3b", "dropless"},
                                     {"gpt-oss-120b", "dropless"},
                                     {"llama-4-scout", "dropless"},
                                     {"glm-4.5", "bias-balanced"},
                                     {"phi-3.5-moe", "dropless"},
                                     {"switch-base-128", "top1"},
                                     {"olmoe-1b-7b", "dropless"},
                                     {"qwen2-57b-a14b", "dropless"},
                                     {"minimax-m2", "bias-balanced"},
                                     {"ernie-4.5-21b-a3b", "bias-balanced"},
                                     {"dots.llm1", "bias-balanced"},
                                     {"hunyuan-a13b", "dropless"},
                                     {"ling-mini-2.0", "bias-balanced+groups:8:4"},
                                     {"ling-lite", "dropless"},
                                     {"granite-3.1-1b-a400m", "dropless"},
                                     {"dbrx", "dropless"},
                                     {"qwen3-vl-235b-a22b", "dropless"},
                                     {"glm-4.7-flash", "bias-balanced"}}) {
    CAPTURE(name);
    CHECK(load(name).moe->router == router);
  }
}

TEST_CASE("what a config leaves out is what transformers takes") {
  CHECK(changed("deepseek-v3", "\"topk_method\": \"noaux_tc\",", "").moe->router ==
        "bias-balanced+groups:8:4");
  CHECK(changed("deepseek-v2-lite", "\"topk_method\": \"greedy\",", "").moe->router == "dropless");
  CHECK(changed("glm-4.7-flash", "\"topk_method\": \"noaux_tc\",", "").moe->router ==
        "bias-balanced");
  CHECK(changed("glm-4.7-flash", "\"first_k_dense_replace\": 1,", "").moe->first_layer == 1);
  CHECK(changed("gpt-oss-120b", "\"head_dim\": 64,", "").head_dim == 64);
  CHECK(changed("qwen3-32b", "\"head_dim\": 128,", "").head_dim == 128);
  CHECK(changed("minimax-m2", "\"head_dim\": 128,", "").head_dim == 128);
  CHECK(changed("ernie-4.5-21b-a3b", "\"tie_word_embeddings\": true,", "").tied_embedding);
  // The architecture alone says the same.
  CHECK(changed("deepseek-v3", "\"model_type\": \"deepseek_v3\",", "").moe->router ==
        "bias-balanced+groups:8:4");
  const Model oss = changed("gpt-oss-120b", "\"layer_types\"", "\"other\"");
  CHECK(oss.has_window(34));
  CHECK_FALSE(oss.has_window(35));
  CHECK_THAT(refusal("deepseek-v3", "\"topk_group\": 4", "\"topk_group\": 9"),
             ContainsSubstring("/topk_group: 9 of 8 groups"));
  CHECK_THAT(refusal("gpt-oss-120b", "\"num_hidden_layers\": 36", "\"num_hidden_layers\": 34"),
             ContainsSubstring("/layer_types: 36 entries for 34 layers"));
}

TEST_CASE("the number of experts is read by each name that transformers writes") {
  // Qwen3MoeConfig maps num_experts to num_local_experts, DeepseekV3Config that to its own.
  CHECK(changed("qwen3-30b-a3b", "\"num_experts\":", "\"num_local_experts\":").moe->experts == 128);
  CHECK(changed("deepseek-v3", "\"n_routed_experts\":", "\"num_local_experts\":").moe->experts ==
        256);
  CHECK(changed("qwen3-30b-a3b", "\"num_experts\":", "\"num_local_experts\": 128, \"num_experts\":")
            .moe->experts == 128);
  CHECK_THAT(
      refusal("qwen3-30b-a3b", "\"num_experts\":", "\"num_local_experts\": 64, \"num_experts\":"),
      ContainsSubstring("/num_local_experts: 64, but num_experts is 128"));
  CHECK_THAT(refusal("qwen3-30b-a3b", "\"num_experts\":", "\"experts\":"),
             ContainsSubstring("/num_experts: "));
}

TEST_CASE("layers with experts, and with windows, are where the family has them") {
  const Model maverick = load("llama-4-maverick");
  CHECK(maverick.moe_layers() == 24);
  CHECK_FALSE(maverick.is_moe_layer(0));
  CHECK(maverick.is_moe_layer(1));
  const Model scout = load("llama-4-scout");
  CHECK(scout.moe_layers() == 48);
  for (const Model& model : {maverick, scout}) {
    CHECK(model.window->chunked);
    CHECK(model.has_window(2));
    CHECK_FALSE(model.has_window(3));
    CHECK_FALSE(model.has_window(47));
  }
  const Model oss = load("gpt-oss-120b");
  CHECK(oss.moe->biased);
  CHECK(oss.moe->clamped);
  CHECK_FALSE(load("mixtral-8x7b").moe->clamped);
  CHECK(oss.has_window(34));
  CHECK_FALSE(oss.has_window(35));
  CHECK_FALSE(load("mixtral-8x7b").window.has_value());
  CHECK_FALSE(load("qwen2-57b-a14b").window.has_value());
  const Model encoder = load("switch-base-128");
  CHECK(encoder.encoder_layers == 12);
  CHECK(encoder.moe_layers() == 12);
  CHECK(load("glm-4.5").moe->first_layer == 3);
  CHECK(load("glm-4.5").mtp_depths == 1);
  CHECK(load("minimax-m2").mtp_depths == 3);
  CHECK(changed("minimax-m2", "\"use_mtp\": true", "\"use_mtp\": false").mtp_depths == 0);
  CHECK(load("mistral-7b-v0.1").has_window(31));
  CHECK_FALSE(load("qwen2.5-72b").window.has_value());
  CHECK_FALSE(load("dots.llm1").window.has_value());
}

TEST_CASE("dense and MoE layers are told apart as each family does") {
  for (const auto& [name, first] : {std::pair{"ernie-4.5-21b-a3b", 1},
                                    {"dots.llm1", 1},
                                    {"ling-mini-2.0", 1},
                                    {"ling-lite", 0},
                                    {"hunyuan-a13b", 0},
                                    {"minimax-m2", 0},
                                    {"glm-4.7-flash", 1}}) {
    CAPTURE(name);
    CHECK(load(name).moe->first_layer == first);
  }
  // Every second layer from the third on: 3, 5, ..., 27, as (layer + 1) % 2 is 0.
  const Model alternate =
      changed("ernie-4.5-21b-a3b", "\"moe_layer_interval\": 1,\n  \"moe_layer_start_index\": 1",
              "\"moe_layer_interval\": 2, \"moe_layer_start_index\": 3");
  CHECK_FALSE(alternate.is_moe_layer(1));
  CHECK_FALSE(alternate.is_moe_layer(2));
  CHECK(alternate.is_moe_layer(3));
  CHECK(alternate.moe_layers() == 13);
}

TEST_CASE("shared experts have the width that each family gives them") {
  CHECK(load("ernie-4.5-21b-a3b").moe->shared_ffn == 2 * 1536);
  CHECK(load("dots.llm1").moe->shared_ffn == 2 * 1408);
  CHECK(load("ling-mini-2.0").moe->shared_ffn == 512);
  CHECK(changed("ling-mini-2.0", "\"moe_shared_expert_intermediate_size\": 512",
                "\"moe_shared_expert_intermediate_size\": 768")
            .moe->shared_ffn == 768);
  CHECK(load("ling-lite").moe->shared_ffn == 2 * 1408);
  CHECK(load("hunyuan-a13b").moe->shared_ffn == 3072);
  CHECK(load("minimax-m2").moe->shared_ffn == 0);
  CHECK(load("granite-3.1-1b-a400m").moe->shared_ffn == 0);
}

TEST_CASE("queries and keys are normed where the family norms them") {
  for (const char* name : {"minimax-m2", "dots.llm1", "hunyuan-a13b", "ling-mini-2.0",
                           "qwen3-vl-235b-a22b", "qwen3-32b"}) {
    CAPTURE(name);
    CHECK(load(name).query_key_norm);
  }
  for (const char* name : {"ernie-4.5-21b-a3b", "ling-lite", "granite-3.1-1b-a400m", "dbrx",
                           "glm-4.7-flash", "qwen2.5-72b", "mistral-7b-v0.1"}) {
    CAPTURE(name);
    CHECK_FALSE(load(name).query_key_norm);
  }
}

TEST_CASE("the language model of a wrapper is that of its text_config") {
  const std::string text = moesim::read_file(hugging_face_folder + "kimi-k2.json");
  const auto wrapped = [&](const std::string& type, const std::string& more) {
    return Model::read(Document::parse(
        "{\"model_type\": \"" + type + "\", \"text_config\": " + text + more + "}", "config.json"));
  };
  const Model language = load("kimi-k2");
  const Model model = wrapped("kimi_k25", ", \"vision_config\": {\"hidden_size\": 1152}");
  CHECK(model.total_parameters(384) == language.total_parameters(384));
  CHECK(model.moe->router == language.moe->router);
  CHECK(model.left_out == std::vector<std::string>{"vision_config"});
  CHECK(language.left_out.empty());
  CHECK_FALSE(model.tied_embedding);
  CHECK(wrapped("kimi_k25", ", \"tie_word_embeddings\": true").tied_embedding);
  CHECK_THAT(refusal("qwen3-vl-235b-a22b", "\"model_type\": \"qwen3_vl_moe\"",
                     "\"model_type\": \"other\""),
             ContainsSubstring("text_config 'qwen3_vl_moe_text'"));
}

TEST_CASE("an unknown family is refused by name, with those that are known") {
  const std::string message =
      refusal("mixtral-8x7b", "\"model_type\": \"mixtral\"", "\"model_type\": \"jamba\"");
  CHECK_THAT(message,
             ContainsSubstring("config.json: /model_type: unknown family of models 'jamba'"));
  CHECK_THAT(message, ContainsSubstring("MixtralForCausalLM"));
  for (const std::string& family : hugging_face_families()) {
    CHECK_THAT(message, ContainsSubstring(family));
  }
  CHECK_THAT(refusal("mixtral-8x7b", "\"model_type\": \"mixtral\"", "\"model_type\": \"mixtrl\""),
             ContainsSubstring("did you mean 'mixtral'?"));
  CHECK_THAT(refusal("mixtral-8x7b", "\"model_type\": \"mixtral\",", ""),
             ContainsSubstring("no error"));  // the architecture says it
}

TEST_CASE("what a model cannot express is refused with its key") {
  CHECK_THAT(refusal("mixtral-8x7b", "\"num_local_experts\": 8,", ""),
             ContainsSubstring("num_local_experts"));
  CHECK_THAT(refusal("mixtral-8x7b", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9"),
             ContainsSubstring("/num_experts_per_tok: 9 experts per token"));
  CHECK_THAT(refusal("mixtral-8x7b", "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7"),
             ContainsSubstring("/num_key_value_heads"));
  CHECK_THAT(refusal("deepseek-v3", "\"noaux_tc\"", "\"hash\""),
             ContainsSubstring("/topk_method: unknown method 'hash'"));
  CHECK_THAT(refusal("deepseek-v3", "\"moe_layer_freq\": 1", "\"moe_layer_freq\": 2"),
             ContainsSubstring("/moe_layer_freq"));
  CHECK_THAT(refusal("qwen3-30b-a3b", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [5]"),
             ContainsSubstring("/mlp_only_layers"));
  CHECK_THAT(
      refusal("qwen2-57b-a14b", "\"use_sliding_window\": false", "\"use_sliding_window\": true"),
      ContainsSubstring("/use_sliding_window"));
  CHECK_THAT(refusal("gpt-oss-120b", "\"full_attention\"", "\"sliding_attention\""),
             ContainsSubstring("/layer_types"));
  CHECK_THAT(refusal("switch-base-128", "\"num_sparse_encoder_layers\": 6",
                     "\"num_sparse_encoder_layers\": 5"),
             ContainsSubstring("/num_sparse_encoder_layers"));
}

TEST_CASE("layers that a configuration lists otherwise than they are read are refused") {
  CHECK_THAT(refusal("qwen3-30b-a3b", "\"mlp_only_layers\"",
                     "\"mlp_layer_types\": [\"dense\"], \"mlp_only_layers\""),
             ContainsSubstring("/mlp_layer_types: 1 entries for 48 layers"));
  std::string types;
  for (int layer = 0; layer < 47; ++layer) types += layer < 2 ? "\"dense\"," : "\"sparse\",";
  types.back() = ' ';
  CHECK_THAT(
      refusal("glm-4.7-flash", "\"n_group\"", "\"mlp_layer_types\": [" + types + "], \"n_group\""),
      ContainsSubstring("/mlp_layer_types: layer 1 is dense, where other keys put experts"));
  CHECK(changed("glm-4.7-flash", "\"first_k_dense_replace\": 1",
                "\"first_k_dense_replace\": 2, \"mlp_layer_types\": [" + types + "]")
            .moe->first_layer == 2);
  std::string windows;
  for (int layer = 0; layer < 64; ++layer) windows += "\"sliding_attention\",";
  windows.back() = ' ';
  CHECK_THAT(refusal("qwen3-32b", "\"max_window_layers\"",
                     "\"layer_types\": [" + windows + "], \"max_window_layers\""),
             ContainsSubstring("/layer_types: sliding_attention is not known in this family"));
  CHECK_THAT(refusal("llama-4-maverick", "\"interleave_moe_layer_step\"",
                     "\"moe_layers\": [0, 1], \"interleave_moe_layer_step\""),
             ContainsSubstring("/moe_layers: "));
}

TEST_CASE("what a family can have and no model here is refused with its key") {
  CHECK_THAT(refusal("hunyuan-a13b", "8,\n    8,", "8,\n    4,"),
             ContainsSubstring("/moe_topk: 4 in layer 1, 8 before"));
  CHECK_THAT(refusal("hunyuan-a13b", "\"use_cla\": false", "\"use_cla\": true"),
             ContainsSubstring("/use_cla: "));
  CHECK_THAT(refusal("minimax-m2", "1,\n    1,", "1,\n    0,"),
             ContainsSubstring("/attn_type_list: layers with linear attention are not known"));
  CHECK_THAT(refusal("ernie-4.5-21b-a3b", "\"moe_layer_start_index\"",
                     "\"moe_layer_end_index\": 20, \"moe_layer_start_index\""),
             ContainsSubstring("/moe_layer_end_index: dense layers behind layer 20"));
  CHECK_THAT(
      refusal("minimax-m2", "\"mtp_transformer_layers\": 1", "\"mtp_transformer_layers\": 2"),
      ContainsSubstring("/mtp_transformer_layers: "));
  CHECK_THAT(refusal("ling-mini-2.0", "\"n_group\": 8", "\"n_group\": 7"),
             ContainsSubstring("/n_group: 256 experts (num_experts) do not divide"));
  CHECK_THAT(refusal("dots.llm1", "\"sliding_window\": null", "\"sliding_window\": 4096"),
             ContainsSubstring("/sliding_window: "));
  // Windows from layer 80 of 80 on are none.
  CHECK_FALSE(
      changed("qwen2.5-72b", "\"use_sliding_window\": false", "\"use_sliding_window\": true")
          .window.has_value());
  CHECK_THAT(refusal("qwen2.5-72b", "\"use_sliding_window\": false",
                     "\"use_sliding_window\": true, \"max_window_layers\": 40"),
             ContainsSubstring("/sliding_window: "));
}

TEST_CASE("sparse attention is refused, with what prices all tokens") {
  for (const char* type : {"deepseek_v32", "glm_moe_dsa"}) {
    CHECK_THAT(refusal("deepseek-v3", "\"deepseek_v3\"", std::string("\"") + type + "\""),
               ContainsSubstring("/model_type: sparse attention"));
  }
  CHECK_THAT(
      refusal("deepseek-v3", "\"n_group\"", "\"index_topk\": 2048, \"n_group\""),
      ContainsSubstring("/index_topk: sparse attention to the tokens that an indexer picks"));
}

TEST_CASE("a config whose MoE layers come every 0th, or more than an int holds, is refused") {
  // Sums and products that no integer holds.
  CHECK_THAT(refusal("switch-base-128", "\"num_layers\": 12", "\"num_layers\": 2147483647"),
             ContainsSubstring("2147483647 and 12 layers: at most 65535 in all"));
  CHECK_THAT(refusal("switch-base-128", "\"num_sparse_decoder_layers\": 6",
                     "\"num_sparse_decoder_layers\": 2147483647"),
             ContainsSubstring("2147483647 of 12 decoder layers"));
  CHECK_THAT(refusal("deepseek-v3", "\"moe_intermediate_size\": 2048",
                     "\"moe_intermediate_size\": 9000000000000000000"),
             ContainsSubstring("/moe_intermediate_size: "));
  CHECK_THAT(refusal("deepseek-v3", "\"n_shared_experts\": 1",
                     "\"n_shared_experts\": 9000000000000000000"),
             ContainsSubstring("/n_shared_experts: "));
  CHECK_THAT(
      refusal("llama-3-70b", "\"hidden_size\": 8192", "\"hidden_size\": 9000000000000000000"),
      ContainsSubstring("9000000000000000000 values of a hidden state"));
  CHECK_THAT(refusal("llama-3-70b", "\"num_hidden_layers\": 80", "\"num_hidden_layers\": 65536"),
             ContainsSubstring("65536 layers: at most 65535"));
  CHECK_THAT(refusal("qwen2-57b-a14b", "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 0"),
             ContainsSubstring("/decoder_sparse_step: expected a whole number from 1"));
  CHECK_THAT(refusal("qwen2-57b-a14b", "\"decoder_sparse_step\": 1",
                     "\"decoder_sparse_step\": 4294967296"),  // 0 in 32 bits
             ContainsSubstring("/decoder_sparse_step: expected a whole number from 1"));
  CHECK_THAT(refusal("llama-4-scout", "\"interleave_moe_layer_step\": 1",
                     "\"interleave_moe_layer_step\": 0"),
             ContainsSubstring("/interleave_moe_layer_step"));
  CHECK_THAT(
      refusal("deepseek-v3", "\"first_k_dense_replace\": 3", "\"first_k_dense_replace\": -3"),
      ContainsSubstring("/first_k_dense_replace: expected a whole number from 0"));
}
