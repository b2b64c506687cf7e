#include "sim/model/model.hpp"

#include <string>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"
#include "tests/support/catch.hpp"

using moesim::Document;
using moesim::Node;
using moesim::UsageError;
using moesim::model::Model;

namespace {

std::string message_of(const std::string& text) {
  try {
    Model::read(Document::parse(text, "bad.json"));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

// The shipped Mixtral document with one piece of text exchanged for another.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = moesim::read_file(moesim::find_document("models", "mixtral-8x7b"));
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

bool mentions(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

double published(const Node& figure) { return figure.number("parameters"); }

}  // namespace

TEST_CASE("every shipped model loads under its own name") {
  const auto names = moesim::shipped_names("models");
  REQUIRE_FALSE(names.empty());
  for (const std::string& name : names) {
    CAPTURE(name);
    CHECK(Model::load(name).name == name);
  }
}

TEST_CASE("the presets have the parameters their authors publish") {
  for (const char* name : {"llama2-7b",
                           "llama2-7b-moe8",
                           "llama2-7b-moe32",
                           "mixtral-8x7b",
                           "deepseek-v2-lite",
                           "deepseek-v3",
                           "qwen3-30b-a3b",
                           "olmoe-1b-7b",
                           "gpt-oss-120b",
                           "switch-base-8",
                           "kimi-k2",
                           "deepseek-v2",
                           "qwen3-235b-a22b",
                           "mixtral-8x22b",
                           "llama3-70b",
                           "llama3-8b",
                           "llama3-405b",
                           "gpt-oss-20b",
                           "glm-4.5",
                           "glm-4.5-air",
                           "llama-4-scout",
                           "llama-4-maverick",
                           "phi-3.5-moe",
                           "qwen1.5-moe-a2.7b",
                           "qwen3-next-80b-a3b",
                           "qwen2-57b-a14b",
                           "qwen3-coder-480b-a35b",
                           "moonlight-16b-a3b",
                           "dbrx"}) {
    CAPTURE(name);
    const Model model = Model::load(name);
    const Document document = Document::load(moesim::find_document("models", name));
    const Node figures = document.root().at("published");
    const int own = model.moe ? model.moe->experts : 0;
    const int experts = static_cast<int>(figures.integer_or("experts", own));
    // Half a unit of the last digit given.
    const Node total = figures.at("total");
    CHECK(std::abs(static_cast<double>(model.total_parameters(experts)) - published(total)) <=
          0.5 * total.number("rounded_to"));
    if (const auto active = figures.find("active")) {
      // Some authors cut instead of rounding: a whole unit.
      const auto embedding = static_cast<double>(model.vocabulary * model.hidden);
      const double counted = static_cast<double>(model.active_parameters(model.moe->top_k)) -
                             (figures.boolean("active_counts_input_embedding") ? 0 : embedding);
      CHECK(std::abs(counted - published(*active)) < active->number("rounded_to"));
    }
  }
}

TEST_CASE("the paper's models have its parameters") {
  const Model dense = Model::load("llama2-7b");
  CHECK(dense.total_parameters(0) == 6'738'415'616);  // sum of the released tensors
  const Model moe = Model::load("llama2-7b-moe8");
  CHECK(moe.moe_layers() == 16);
  CHECK_FALSE(moe.is_moe_layer(0));
  CHECK(moe.is_moe_layer(1));
  CHECK(moe.is_moe_layer(31));
  CHECK(static_cast<double>(moe.total_parameters(8)) == Approx(21.89e9).margin(0.005e9));
  CHECK(static_cast<double>(moe.total_parameters(32)) == Approx(73.83e9).margin(0.005e9));
  CHECK(Model::load("llama2-7b-moe32").total_parameters(32) == moe.total_parameters(32));
  // One expert per GPU and layer at EP 8.
  const auto per_gpu = static_cast<double>(moe.dense_parameters(8) + 16 * moe.expert_parameters());
  CHECK(per_gpu == Approx(6.739e9).margin(0.0005e9));
  // Without experts the MoE model is the dense one.
  CHECK(moe.total_parameters(0) == dense.total_parameters(0));
}

TEST_CASE("the paper's models do its FLOPs per token") {
  const Model dense = Model::load("llama2-7b");
  const Model moe = Model::load("llama2-7b-moe8");
  CHECK(dense.forward_flops(2048, 0, 0) == Approx(13.75e9).margin(0.005e9));
  CHECK(moe.forward_flops(2048, 0, 1) == dense.forward_flops(2048, 0, 0));
  const double fixed = moe.forward_flops(2048, 8, 0);
  CHECK(fixed == Approx(9.42e9).margin(0.005e9));
  for (const double factor : {0.5, 1.0, 3.0}) {
    CHECK(moe.forward_flops(2048, 8, factor) - fixed ==
          Approx(4.33e9 * factor).epsilon(0.5e-2 / 4.33));
  }
  // All-to-all at CF 1: (E/P) C h b with C = S / E = 2,048 rows of 4,096 bf16 elements.
  const std::int64_t pair = 16384 / 8 * moe.hidden * 2;
  CHECK(static_cast<double>(pair) == Approx(16.8e6).margin(0.05e6));
  CHECK(static_cast<double>(7 * pair) == Approx(117.4e6).margin(0.05e6));
}

TEST_CASE("latent attention is five matrices, or four without compressed queries") {
  // DeepSeek-V3 by hand: 7168 x 1536 + 1536 x 128 x 192 + 7168 x 576 + 512 x 128 x 256 + 16384 x
  // 7168.
  const Model full = Model::load("deepseek-v3");
  REQUIRE(full.attention_projections().size() == 5);
  CHECK(full.attention_parameters() ==
        11'010'048 + 37'748'736 + 4'128'768 + 16'777'216 + 117'440'512);
  const Model lite = Model::load("deepseek-v2-lite");
  REQUIRE(lite.attention_projections().size() == 4);
  CHECK(lite.attention_projections()[0].n == 16 * 192);
  CHECK_FALSE(full.is_moe_layer(2));
  CHECK(full.is_moe_layer(3));
  CHECK(full.moe_layers() == 58);
}

TEST_CASE("an encoder attends both ways and its decoder also to it") {
  const Model model = Model::load("switch-base-8");
  CHECK(model.moe_layers() == 12);
  CHECK_FALSE(model.is_causal(11));
  CHECK(model.is_causal(12));
  CHECK(model.attention_blocks(11) == 1);
  CHECK(model.attention_blocks(12) == 2);
  // Keys seen: 12 encoder and 12 cross-attention blocks of S, 12 causal ones of S / 2.
  const double without = model.forward_flops(0, 8, 1);
  CHECK(model.forward_flops(512, 8, 1) - without == Approx(512 * 30 * 2.0 * 12 * (64 + 64)));
  // The sizes of the distillation table: 16 to 256 experts.
  for (const auto& [experts, billions] : {std::pair{16, 1.1}, {32, 2.0}, {64, 3.8}, {256, 14.7}}) {
    CAPTURE(experts);
    CHECK(static_cast<double>(model.total_parameters(experts)) * 1e-9 ==
          Approx(billions).margin(0.05));
  }
}

TEST_CASE("prediction depths and windows are read, and change no count") {
  const Model model = Model::load("deepseek-v3");
  CHECK(model.mtp_depths == 1);
  CHECK_FALSE(model.has_window(0));
  const Model plain =
      Model::read(Document::parse(changed("\"layers\": 32,", "\"layers\": 32,"), ""));
  const Model windowed = Model::read(Document::parse(
      changed(
          "\"layers\": 32,",
          "\"layers\": 32, \"mtp_depths\": 2, \"window\": {\"tokens\": 512, \"chunked\": true},"),
      "mine.json"));
  CHECK(windowed.mtp_depths == 2);
  CHECK(windowed.window->tokens == 512);
  CHECK(windowed.window->chunked);
  CHECK(windowed.has_window(31));
  CHECK(windowed.total_parameters(8) == plain.total_parameters(8));
  CHECK(windowed.forward_flops(4096, 8, 2) == plain.forward_flops(4096, 8, 2));
}

TEST_CASE("a model may name a router without capacity as its own") {
  for (const char* router : {"dropless", "group-limited:4:2", "bias-balanced",
                             "bias-balanced:0.001:50+groups:8:4", "topk", "top2+fr+ir"}) {
    const std::string named = std::string("\"router\": \"") + router + "\"";
    CHECK(message_of(changed("\"router\": \"dropless\"", named)) == "no error");
  }
  CHECK(mentions(message_of(changed("\"router\": \"dropless\"", "\"router\": \"dropless+fr\"")),
                 "bad.json: /moe/router"));
}

TEST_CASE("a malformed model names the file and the key") {
  CHECK(mentions(message_of("{"), "bad.json: line 1, column 2: not valid JSON"));
  CHECK(mentions(message_of(changed("\"layers\": 32,", "")), "bad.json: /"));
  CHECK(mentions(message_of(changed("\"layers\": 32,", "")), "layers"));
  CHECK(mentions(message_of(changed("\"layers\": 32", "\"layers\": 0")), "bad.json: /layers"));
  CHECK(mentions(message_of(changed("\"layers\": 32", "\"layers\": \"32\"")), "bad.json: /layers"));
  CHECK(mentions(message_of(changed("\"hidden\": 4096", "\"hidden\": 40.5")), "bad.json: /hidden"));
  CHECK(mentions(message_of(changed("\"heads\": 32", "\"heads\": -1")), "bad.json: /heads"));
  CHECK(
      mentions(message_of(changed("\"experts\": 8", "\"experts\": 0")), "bad.json: /moe/experts"));
  CHECK(mentions(message_of(changed("\"top_k\": 2", "\"top_k\": 9")), "bad.json: /moe/top_k"));
  CHECK(mentions(message_of(changed("\"router\": \"dropless\"", "\"router\": \"top3\"")),
                 "bad.json: /moe/router"));
  CHECK(mentions(message_of(changed("\"router\": \"dropless\"", "\"router\": \"best\"")),
                 "bad.json: /moe/router"));
  CHECK(mentions(message_of(changed("\"kv_heads\": 8", "\"kv_heads\": 7")), "bad.json: /kv_heads"));
  CHECK(mentions(message_of(changed("\"first_layer\": 0", "\"first_layer\": 32")),
                 "bad.json: /moe/first_layer"));
  CHECK(mentions(message_of(changed("\"gated\"", "\"gatd\"")), "gat"));
  CHECK(mentions(message_of(changed("\"ffn\"", "\"window\": {\"tokens\": 0}, \"ffn\"")),
                 "bad.json: /window/tokens"));
  CHECK(mentions(message_of(changed("\"ffn\"", "\"mtp_depths\": -1, \"ffn\"")),
                 "bad.json: /mtp_depths"));
  CHECK(mentions(message_of(changed("moesim model 1", "moesim model 2")), "bad.json: /format"));
  // Products of sizes are whole numbers of 64 bits: these ended in an assertion or nonsense.
  CHECK(mentions(message_of(changed("\"hidden\": 4096", "\"hidden\": 4000000000000000000")),
                 "bad.json: /: 4000000000000000000 values of a hidden state: at most 16777216"));
  CHECK(mentions(message_of(changed("\"vocabulary\": 32000", "\"vocabulary\": 4000000000")),
                 "4000000000 tokens of a vocabulary: at most 2147483647"));
  CHECK(mentions(message_of(changed("\"ffn\": 14336", "\"ffn\": 4000000000000000000")),
                 "parameters: at most 1e+16"));
  // A dense layer needs a dense FFN.
  std::string text = changed("\"ffn\": 14336,", "");
  text.replace(text.find("\"every\": 1"), 10, "\"every\": 2");
  CHECK(mentions(message_of(text), "bad.json: /ffn: missing, but 16 layers have a dense FFN"));
}

TEST_CASE("an unknown model lists the shipped ones and suggests the nearest") {
  try {
    Model::load("mixtral-8x7");
    FAIL("loaded");
  } catch (const UsageError& error) {
    CHECK(mentions(error.what(), "unknown model 'mixtral-8x7' (did you mean 'mixtral-8x7b'?)"));
    CHECK(mentions(error.what(), "llama2-7b-moe8"));
  }
  CHECK_THROWS_WITH(Model::load("/nonexistent/model.json"),
                    ContainsSubstring("/nonexistent/model.json: cannot read"));
}
