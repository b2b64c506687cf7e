#include "sim/model/hugging_face.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "sim/base/shipped.hpp"
#include "sim/model/hugging_face/fields.hpp"
#include "sim/model/hugging_face/qwen.hpp"
#include "sim/model/hugging_face/shared_experts.hpp"

namespace moesim::model {
namespace hugging_face {
namespace {

void read_mistral(const Node& node, Model& model) {
  read_llama(node, model);
  read_sliding_window(node, model);
}

void read_mixtral(const Node& node, Model& model) {
  read_mistral(node, model);
  model.moe = read_experts(node, {"num_local_experts", "intermediate_size"});
}

void read_olmoe(const Node& node, Model& model) {
  read_sizes(node, model);
  model.query_key_norm = true;
  model.moe = read_experts(node, {"num_experts", "intermediate_size"});
}

void read_gpt_oss(const Node& node, Model& model) {
  read_sizes(node, model, 64);
  read_sliding_window(node, model);
  // transformers' default: windows in every other layer.
  if (model.window && !node.has("layer_types")) model.window->full_every = 2;
  model.moe = read_experts(node, {"num_local_experts", "intermediate_size"});
  model.moe->biased = true;
  model.moe->clamped = true;
}

void read_minimax_m2(const Node& node, Model& model) {
  read_sizes(node, model, 128);
  if (node.has("attn_type_list")) {
    for (const double type : node.numbers("attn_type_list")) {
      if (type != 1) node.fail("layers with linear attention are not known", "attn_type_list");
    }
  }
  MoeBlock moe = read_experts(node, {"num_local_experts", "intermediate_size"});
  moe.shared_ffn = node.integer_or("shared_intermediate_size", 0);
  if (node.boolean_or("use_routing_bias", true)) moe.router = "bias-balanced";
  model.moe = moe;
  model.query_key_norm = node.boolean_or("use_qk_norm", true);
  if (node.boolean_or("use_mtp", true)) model.mtp_depths = node.count_or("num_mtp_modules", 0);
  if (model.mtp_depths > 0 && node.integer_or("mtp_transformer_layers", 1) != 1) {
    node.fail("only 1 is known: a layer for each depth", "mtp_transformer_layers");
  }
}

// Names of its own, in objects for attention and FFN.
void read_dbrx(const Node& node, Model& model) {
  const Node attention = node.at("attn_config");
  const Node ffn = node.at("ffn_config");
  model.layers = node.count("n_layers");
  model.hidden = node.positive_integer("d_model");
  model.heads = node.positive_integer("n_heads");
  model.kv_heads = attention.positive_integer("kv_n_heads");
  if (model.heads % model.kv_heads != 0) {
    attention.fail(
        fmt::format("{} key/value heads do not divide {} heads", model.kv_heads, model.heads),
        "kv_n_heads");
  }
  model.head_dim = model.hidden / model.heads;
  model.ffn = ffn.positive_integer("ffn_hidden_size");
  model.vocabulary = node.positive_integer("vocab_size");
  model.sequence_length = std::min(working_length, node.positive_integer("max_seq_len"));
  model.moe = read_experts(ffn, {"moe_num_experts", "ffn_hidden_size", "moe_top_k"});
}

// Layers without rotary embedding attend to all tokens, the others inside chunks.
void read_llama4_chunks(const Node& node, Model& model) {
  if (!node.has("attention_chunk_size")) return;
  AttentionWindow window;
  window.tokens = node.positive_integer("attention_chunk_size");
  window.chunked = true;
  window.full_every = node.count_or("no_rope_layer_interval", 4);
  std::vector<bool> full;
  if (node.has("no_rope_layers")) {
    for (const double rotary : node.numbers("no_rope_layers")) full.push_back(rotary == 0);
  }
  if (!full.empty()) window.full_every = period_of(full, node, "no_rope_layers");
  model.window = window;
}

// Numbers of the layers with experts, which newer configurations list.
void check_llama4_experts(const Node& node, const Model& model) {
  if (!node.has("moe_layers")) return;
  std::vector<double> mine;
  for (int layer = 0; layer < model.layers; ++layer) {
    if (model.is_moe_layer(layer)) mine.push_back(layer);
  }
  if (mine != node.numbers("moe_layers")) {
    node.fail(fmt::format("other layers than interleave_moe_layer_step {} puts experts in",
                          model.moe->every),
              "moe_layers");
  }
}

void read_llama4(const Node& node, Model& model) {
  read_sizes(node, model);
  read_llama4_chunks(node, model);
  MoeBlock moe = read_experts(node, {"num_local_experts", "intermediate_size"});
  moe.shared_ffn = moe.expert_ffn;
  moe.every = node.count_or("interleave_moe_layer_step", 1, 1);
  model.ffn = node.positive_integer("intermediate_size_mlp");
  model.query_key_norm = node.boolean_or("use_qk_norm", true);  // as Llama4TextConfig has it
  model.moe = moe;
  check_llama4_experts(node, model);
}

void read_switch(const Node& node, Model& model) {
  model.encoder_layers = node.count("num_layers");
  const int decoder_layers =
      node.has("num_decoder_layers") ? node.count("num_decoder_layers") : model.encoder_layers;
  constexpr int most_layers = 65535;
  if (decoder_layers > most_layers - std::min(most_layers, model.encoder_layers)) {
    node.fail(fmt::format("{} and {} layers: at most {} in all", model.encoder_layers,
                          decoder_layers, most_layers),
              "num_layers");
  }
  model.layers = model.encoder_layers + decoder_layers;
  model.hidden = node.positive_integer("d_model");
  model.heads = model.kv_heads = node.positive_integer("num_heads");
  model.head_dim = node.positive_integer("d_kv");
  model.ffn = node.positive_integer("d_ff");
  model.gated = node.text_or("feed_forward_proj", "relu").starts_with("gated-");
  model.vocabulary = node.positive_integer("vocab_size");
  model.tied_embedding = node.boolean_or("tie_word_embeddings", true);
  model.sequence_length = 512;
  MoeBlock moe;
  moe.experts = node.count("num_experts");
  moe.top_k = 1;
  moe.router = "top1";
  moe.expert_ffn = model.ffn;
  const int sparse = node.count("num_sparse_encoder_layers");
  const int sparse_decoder = node.count("num_sparse_decoder_layers");
  moe.every = model.encoder_layers / sparse;
  const std::int64_t every = moe.every;
  if (every * sparse != model.encoder_layers || every * sparse_decoder != decoder_layers) {
    node.fail(fmt::format("{} of {} encoder and {} of {} decoder layers: they must be the same "
                          "share, every so many layers",
                          sparse, model.encoder_layers, sparse_decoder, decoder_layers),
              "num_sparse_encoder_layers");
  }
  model.moe = moe;
}

// How the library names a family of models, and what its keys mean.
struct Family {
  const char* type;
  const char* architecture;
  void (*read)(const Node&, Model&);
};

constexpr std::array families{
    Family{"bailing_moe", "BailingMoeForCausalLM", read_bailing_moe},
    Family{"bailing_moe_v2", "BailingMoeV2ForCausalLM", read_bailing_moe},
    Family{"dbrx", "DbrxForCausalLM", read_dbrx},
    Family{"deepseek_v2", "DeepseekV2ForCausalLM", read_deepseek},
    Family{"deepseek_v3", "DeepseekV3ForCausalLM", read_deepseek},
    Family{"dots1", "Dots1ForCausalLM", read_dots1},
    Family{"ernie4_5_moe", "Ernie4_5_MoeForCausalLM", read_ernie},
    Family{"glm4_moe", "Glm4MoeForCausalLM", read_glm4_moe},
    Family{"glm4_moe_lite", "Glm4MoeLiteForCausalLM", read_glm4_moe_lite},
    Family{"gpt_oss", "GptOssForCausalLM", read_gpt_oss},
    Family{"granitemoe", "GraniteMoeForCausalLM", read_mixtral},
    Family{"hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", read_hunyuan_moe},
    Family{"kimi_k2", "DeepseekV3ForCausalLM", read_deepseek},
    Family{"llama", "LlamaForCausalLM", read_llama},
    Family{"llama4", "Llama4ForConditionalGeneration", read_llama4},
    Family{"llama4_text", "Llama4ForCausalLM", read_llama4},
    Family{"minimax_m2", "MiniMaxM2ForCausalLM", read_minimax_m2},
    Family{"mistral", "MistralForCausalLM", read_mistral},
    Family{"mixtral", "MixtralForCausalLM", read_mixtral},
    Family{"olmoe", "OlmoeForCausalLM", read_olmoe},
    Family{"phimoe", "PhiMoEForCausalLM", read_mixtral},
    Family{"qwen2", "Qwen2ForCausalLM", read_qwen2},
    Family{"qwen2_moe", "Qwen2MoeForCausalLM", read_qwen_moe},
    Family{"qwen3", "Qwen3ForCausalLM", read_qwen3},
    Family{"qwen3_5", "Qwen3_5ForConditionalGeneration", read_qwen3_5},
    Family{"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", read_qwen3_5_moe},
    Family{"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", read_qwen3_5_moe},
    Family{"qwen3_5_text", "Qwen3_5ForCausalLM", read_qwen3_5},
    Family{"qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3_moe},
    Family{"qwen3_next", "Qwen3NextForCausalLM", read_qwen3_next},
    Family{"qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", read_qwen3_moe},
    Family{"switch_transformers", "SwitchTransformersForConditionalGeneration", read_switch},
};

std::string first_architecture(const Node& root) {
  if (!root.has("architectures")) return "";
  const std::vector<std::string> names = root.texts("architectures");
  return names.empty() ? "" : names.front();
}

// A wrapper of several modalities has its language model in text_config.
Node language_model(const Node& root) { return root.find("text_config").value_or(root); }

const Family* family_named(const std::string& type) {
  const auto found = std::find_if(families.begin(), families.end(),
                                  [&](const Family& family) { return type == family.type; });
  return found == families.end() ? nullptr : &*found;
}

[[noreturn]] void refuse_unknown(const Node& root, const std::string& type,
                                 const std::string& architecture) {
  const std::vector<std::string> known = hugging_face_families();
  if (type.empty() && architecture.empty()) {
    root.fail(
        fmt::format("a configuration of Hugging Face without model_type or architectures, "
                    "which name the family of models: known are {}",
                    fmt::join(known, ", ")));
  }
  const std::string& name = type.empty() ? architecture : type;
  const std::string inner = language_model(root).text_or("model_type", type);
  root.fail(
      fmt::format("unknown family of models '{}'{}{}{}: describe the model in a document of your "
                  "own (profiles/MODELS.md); known are {}",
                  name, architecture.empty() || type.empty() ? "" : ", " + architecture,
                  inner == type ? "" : fmt::format(", text_config '{}'", inner),
                  suggestion(name, known), fmt::join(known, ", ")),
      type.empty() ? "architectures" : "model_type");
}

const Family& family_of(const Node& root) {
  const std::string type = root.text_or("model_type", "");
  const std::string architecture = first_architecture(root);
  if (const Family* family = family_named(type)) return *family;
  if (const Family* family = family_named(language_model(root).text_or("model_type", ""))) {
    return *family;
  }
  const auto built = std::find_if(families.begin(), families.end(), [&](const Family& family) {
    return type.empty() && architecture == family.architecture;
  });
  if (built == families.end()) refuse_unknown(root, type, architecture);
  return *built;
}

// Nemotron-H, Jamba, Bamba, Falcon-H1, Zamba2, Granite 4, Mamba: no document can describe them.
void refuse_mamba(const Node& root) {
  const Node node = language_model(root);
  if (family_named(node.text_or("model_type", "")) != nullptr) return;
  for (const char* key : {"hybrid_override_pattern", "mamba_d_state", "mamba_num_heads",
                          "mamba_n_heads", "ssm_state_size", "ssm_cfg", "state_size"}) {
    if (!node.has(key)) continue;
    node.fail("Mamba layers are not known: no model here has layers with a state space", key);
  }
}

// DeepSeek-V3.2, GLM-5: an indexer scores all tokens, attention reads those that score best.
void refuse_sparse_attention(const Node& root) {
  const Node node = language_model(root);
  const std::string type = node.text_or("model_type", "");
  if (type != "deepseek_v32" && type != "glm_moe_dsa" && !node.has("index_topk")) return;
  node.fail(
      "sparse attention to the tokens that an indexer picks is not known: a copy without "
      "index_topk and with \"model_type\": \"deepseek_v3\" is priced with attention to all tokens",
      node.has("index_topk") ? "index_topk" : "model_type");
}

}  // namespace
}  // namespace hugging_face

std::vector<std::string> hugging_face_families() {
  std::vector<std::string> names;
  for (const hugging_face::Family& family : hugging_face::families) names.emplace_back(family.type);
  return names;
}

bool is_hugging_face_config(const Node& root) {
  return !root.has("format") &&
         (root.has("architectures") || root.has("model_type") || root.has("num_hidden_layers"));
}

Model read_hugging_face(const Document& document) {
  const Node root = document.root();
  const Node node = hugging_face::language_model(root);
  hugging_face::refuse_sparse_attention(root);
  hugging_face::refuse_mamba(root);
  const hugging_face::Family& family = hugging_face::family_of(root);
  Model model;
  model.name = family.type;
  model.source = document.name();
  family.read(node, model);
  model.tied_embedding = root.boolean_or("tie_word_embeddings", model.tied_embedding);
  hugging_face::check_layers(node, model);
  for (const char* key : {"vision_config", "audio_config"}) {
    if (root.has(key)) model.left_out.emplace_back(key);
  }
  if (model.moe && model.layers - model.moe->first_layer < model.moe->every) {
    root.fail(fmt::format("no layer holds experts: {} dense ones, then every {}th of {}",
                          model.moe->first_layer, model.moe->every, model.layers));
  }
  model.decoder = model.encoder_layers < model.layers;
  return model;
}

}  // namespace moesim::model
