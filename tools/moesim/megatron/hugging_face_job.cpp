#include "tools/moesim/megatron/hugging_face_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "sim/base/text.hpp"
#include "tools/moesim/base/notes_off.hpp"
#include "tools/moesim/base/shell_word.hpp"
#include "tools/moesim/megatron/megatron_gpus.hpp"
#include "tools/moesim/megatron/megatron_input.hpp"

namespace moesim::tool {
namespace {

using model::MegatronArguments;
using Names = std::initializer_list<const char*>;

// Of TrainingArguments (transformers), of `accelerate launch` and of its configuration.
constexpr Names of_its_jobs = {"model-name-or-path", "per-device-train-batch-size",
                               "distributed-type", "fsdp-sharding-strategy", "use-fsdp"};

// A recipe of Megatron-LM may name a model of Hugging Face too.
constexpr Names of_megatron = {"tensor-model-parallel-size", "pipeline-model-parallel-size",
                               "expert-model-parallel-size", "micro-batch-size"};

bool has_any(const MegatronArguments& given, Names names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return given.has(name); });
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return text;
}

// In small letters; "" where it is not there or not known.
std::string word_of(const MegatronArguments& given, const char* name) {
  return lower(given.known_text(name).value_or(""));
}

std::optional<std::int64_t> number_of(const MegatronArguments& given, Names names) {
  for (const char* name : names) {
    const auto number = parse_number<std::int64_t>(given.known_text(name).value_or(""));
    if (number && *number >= 1 && *number < (1 << 24)) return number;
  }
  return std::nullopt;
}

// "--bf16", "--bf16 True".
bool is_on(const MegatronArguments& given, Names names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) {
    const std::string word = word_of(given, name);
    return given.has(name) && word != "false" && word != "no" && word != "0";
  });
}

// Whether nodes have all shards each. Accelerate numbers these strategies 4 and 5.
bool is_hybrid(const MegatronArguments& given) {
  const std::string strategy = word_of(given, "fsdp-sharding-strategy") + word_of(given, "fsdp");
  return strategy.find("hybrid_shard") != std::string::npos || strategy == "4" || strategy == "5";
}

// As `--zero` has it; STAGE: in a file that is not read.
std::string zero_of(const MegatronArguments& given) {
  if (std::string stage = word_of(given, "zero-stage"); !stage.empty()) return stage;
  std::string strategy = word_of(given, "fsdp-sharding-strategy") + word_of(given, "fsdp");
  const auto says = [&](const char* word) { return strategy.find(word) != std::string::npos; };
  if (says("no_shard") || strategy == "3") return "0";
  if (says("shard_grad_op") || says("zero2") || strategy == "2" || strategy == "5") return "2";
  const bool is_fsdp = word_of(given, "distributed-type") == "fsdp" || is_on(given, {"use-fsdp"});
  if (!strategy.empty() || is_fsdp) return "3";
  const bool in_file = has_any(given, {"deepspeed", "use-deepspeed", "deepspeed-config",
                                       "deepspeed-config-file", "config-file"});
  return in_file ? "STAGE" : "0";
}

// " --precision ..." of it, "" where nothing says one.
std::string take_precision(const MegatronArguments& given, std::vector<std::string>& remarks) {
  const std::string mixed = word_of(given, "mixed-precision");
  if (mixed == "fp8") return " --precision fp8-delayed";
  if (mixed == "bf16" || is_on(given, {"bf16"})) return " --precision bf16";
  if (mixed == "fp16" || is_on(given, {"fp16"})) {
    remarks.emplace_back("fp16 takes as long as bf16");
    return " --precision bf16";
  }
  if (mixed == "no") remarks.emplace_back("fp32 is not priced, bf16 in its place");
  return "";
}

}  // namespace

std::optional<HuggingFaceJob> hugging_face_job(const MegatronArguments& given,
                                               const CommandLine& line) {
  if (!has_any(given, of_its_jobs) || has_any(given, of_megatron)) return std::nullopt;
  const NotesOff silent;
  MegatronInput input{given, line, nullptr};
  take_gpus(input);
  const auto found = input.options.find("gpus");
  const std::string gpus = line.has("gpus")               ? line.get("gpus")
                           : found == input.options.end() ? "GPUS"
                                                          : found->second;
  const std::string model = line.has("model") ? shell_word(line.get("model")) : "CONFIG.JSON";
  const std::string zero = zero_of(given);
  HuggingFaceJob job;
  std::string& text = job.command;
  text = fmt::format("moesim train --model {} --gpus {} --zero {}", model, gpus, zero);
  if (is_hybrid(given)) text += " --optimizer-instances NODES";
  text += take_precision(given, job.remarks);
  if (is_on(given, {"gradient-checkpointing", "fsdp-activation-checkpointing"})) {
    text += " --recompute full";
  }
  if (const auto length = number_of(given, {"max-seq-length", "max-length", "model-max-length",
                                            "block-size", "cutoff-len"})) {
    text += fmt::format(" --sequence-length {}", *length);
  }
  const auto micro_batch =
      number_of(given, {"per-device-train-batch-size", "train-micro-batch-size-per-gpu"});
  if (micro_batch) text += fmt::format(" --micro-batch {}", *micro_batch);
  const auto steps = number_of(given, {"gradient-accumulation-steps"});
  const auto ranks = parse_number<std::int64_t>(gpus);
  if (micro_batch && ranks) {
    text += fmt::format(" --global-batch {}", *micro_batch * steps.value_or(1) * *ranks);
  }
  if (!line.has("model") || gpus == "GPUS" || zero == "STAGE" || is_hybrid(given)) {
    job.remarks.emplace_back("words in capitals are to be put in");
  }
  return job;
}

}  // namespace moesim::tool
