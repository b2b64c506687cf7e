#include "tools/moesim/megatron/megatron_stages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/parallel/pipeline_layout.hpp"

namespace moesim::tool {
namespace {

using model::MegatronArguments;

constexpr const char* layout_option = "pipeline-layout";
constexpr const char* layout_argument = "pipeline-model-parallel-layout";
constexpr const char* virtual_option = "virtual-pipeline";
constexpr const char* ranks_option = "pipeline-parallel";

constexpr const char* first_layers = "decoder-first-pipeline-num-layers";
constexpr const char* last_layers = "decoder-last-pipeline-num-layers";
constexpr const char* counts_embedding = "account-for-embedding-in-pipeline-split";
constexpr const char* counts_loss = "account-for-loss-in-pipeline-split";
constexpr const char* chunk_layers = "num-layers-per-virtual-pipeline-stage";
constexpr const char* depths_argument = "mtp-num-layers";

// The first argument that makes stages uneven; "": none does.
std::string uneven_argument(const MegatronArguments& given) {
  std::string found;
  for (const char* argument : {counts_loss, counts_embedding, last_layers, first_layers}) {
    if (given.has(argument)) found = argument;
  }
  return found;
}

// With commas, which mean nothing in a layout, it would be a list of several.
std::string without_commas(std::string layout) {
  std::erase(layout, ',');
  return layout;
}

// A list of lists in a YAML ([[embedding, decoder], [decoder, loss]]) as the text that
// Megatron-Core reads; "" for a text.
std::string listed_layout(const MegatronArguments& given) {
  constexpr std::pair<std::string_view, char> letters[] = {
      {"embedding", 'E'}, {"decoder", 't'}, {"mtp", 'm'}, {"loss", 'L'}};
  const std::vector<std::string> items = given.texts(layout_argument);
  if (items.empty() || items.front().empty() || items.front().front() != '[') return "";
  std::string text;
  bool is_first = true;
  for (const std::string& item : items) {
    if (!is_first && item.rfind('[', 0) == 0) text += '|';
    is_first = false;
    std::string name = item;
    std::erase_if(name, [](char letter) { return letter == '[' || letter == ']'; });
    if (name.empty()) continue;
    const auto* const known = std::find_if(std::begin(letters), std::end(letters),
                                           [&](const auto& each) { return each.first == name; });
    if (known == std::end(letters)) {
      given.fail(layout_argument,
                 fmt::format("'{}': known are embedding, decoder, mtp, loss", name));
    }
    text += known->second;
  }
  return text;
}

std::optional<std::int64_t> layers_of(const MegatronInput& input) {
  if (input.model) return input.model->layers;
  return input.given.size("num-layers");
}

std::optional<int> layers_of_stage(const MegatronInput& input, const char* argument,
                                   std::int64_t layers) {
  const auto held = input.given.size(argument);
  if (!held) return std::nullopt;
  if (*held > layers) input.given.fail(argument, fmt::format("the model has {} layers", layers));
  return static_cast<int>(*held);
}

void check_together(const MegatronArguments& given) {
  const bool uneven = given.has(first_layers) || given.has(last_layers);
  for (const char* count : {counts_embedding, counts_loss}) {
    if (uneven && given.has(count)) {
      given.fail(count,
                 fmt::format("not beside --{} or --{} (Megatron-Core)", first_layers, last_layers));
    }
  }
  if (uneven && given.has(chunk_layers)) {
    given.fail(chunk_layers, fmt::format("beside --{} or --{} Megatron-LM takes "
                                         "--num-virtual-stages-per-pipeline-rank in its place",
                                         first_layers, last_layers));
  }
}

void take_virtual_stages(MegatronInput& input, const parallel::UnevenStages& stages) {
  const auto each = input.given.size(chunk_layers);
  if (input.typed(ranks_option) && stages.ranks == 1) input.options.erase(virtual_option);
  if (!each || input.typed(virtual_option)) return;
  if (input.typed(ranks_option) && stages.ranks == 1) return;
  const std::int64_t layers = std::int64_t{stages.layers} + (stages.counts_embedding ? 1 : 0) +
                              (stages.counts_loss ? 1 : 0);
  if (*each > layers || layers % (stages.ranks * *each) != 0) {
    input.given.fail(chunk_layers,
                     fmt::format("does not divide the {} layers over {} pipeline ranks, as chunks",
                                 layers, stages.ranks));
  }
  input.options[virtual_option] = fmt::format("{}", layers / stages.ranks / *each);
}

// Embedding and loss are at the ends, multi-token prediction on the last stage.
void take_layout_text(MegatronInput& input, parallel::UnevenStages stages,
                      const std::string& uneven) {
  constexpr std::int64_t most = 100;
  const auto depths =
      static_cast<int>(std::min(input.given.count(depths_argument).value_or(0), most));
  if (uneven.empty() && depths == 0) return;
  if (stages.ranks == 1) {  // it has all layers
    stages.first = stages.last = std::nullopt;
    stages.counts_embedding = stages.counts_loss = false;
  }
  if (input.line.get("pipeline-schedule") == "dualpipe-v") stages.ranks *= 2;
  try {
    input.options[layout_option] =
        parallel::uneven_pipeline_layout(parallel::layers_of_chunks(stages), depths).text();
  } catch (const UsageError& error) {
    // Layers that do not divide are refused later, with a layout that works.
    if (!uneven.empty()) input.given.fail(uneven, error.what());
  }
}

}  // namespace

void take_stages(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  const std::string uneven = uneven_argument(given);
  given.has(chunk_layers);
  given.has(depths_argument);
  if (input.typed(layout_option)) {  // its chunks say how many virtual stages there are
    input.options.erase(virtual_option);
    return;
  }
  if (const auto layout = input.options.find(layout_option); layout != input.options.end()) {
    if (!uneven.empty()) given.fail(uneven, "not beside --pipeline-model-parallel-layout");
    const std::string listed = listed_layout(given);
    layout->second = listed.empty() ? without_commas(layout->second) : listed;
    return;
  }
  check_together(given);
  constexpr std::int64_t most = 10'000;  // chunks, and layers
  const auto ranks = input.whole(ranks_option, 1);
  const auto chunks = input.whole(virtual_option, 1);
  const auto layers = layers_of(input);
  // What these cannot be is said where they are read.
  if (!ranks || !chunks || !layers || *layers > most) return;
  if (*ranks < 1 || *chunks < 1 || *ranks > most / *chunks) return;
  parallel::UnevenStages stages;
  stages.layers = static_cast<int>(*layers);
  stages.ranks = static_cast<int>(*ranks);
  stages.first = layers_of_stage(input, first_layers, *layers);
  stages.last = layers_of_stage(input, last_layers, *layers);
  stages.counts_embedding = given.has(counts_embedding);
  stages.counts_loss = given.has(counts_loss);
  take_virtual_stages(input, stages);
  stages.virtual_stages = static_cast<int>(input.whole(virtual_option, 1).value_or(1));
  take_layout_text(input, stages, uneven);
}

}  // namespace moesim::tool
