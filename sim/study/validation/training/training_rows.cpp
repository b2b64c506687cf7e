#include "sim/study/validation/training/training_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/job/documents.hpp"
#include "sim/scenario/document_cache.hpp"

namespace moesim::study {
namespace {

template <class Value>
using Names = std::vector<std::pair<const char*, Value>>;

struct Machine {
  const char* profile;
  const char* cluster;
};

// Machines by what the name of a system has in it, the longest first. NVIDIA's nodes of B300 are
// taken to exchange at 400 Gb/s a GPU, as those of B200 do: what their fabric has is not published,
// and with the 800 of ConnectX-8 the steps that exchange most between nodes, GPT-OSS's, would be 10
// to 29 % too fast, by gradients of experts as by rows; with 400 they are at most 6 % off, as all
// others.
const Names<Machine> machines = {
    {"p5.48xlarge", {"h100-sxm", "aws-p5"}},     {"p5en.48xlarge", {"h200-sxm", "aws-p5en"}},
    {"p6-b200", {"b200-sxm", "aws-p6-b200"}},    {"p6-b300", {"b300-sxm", "aws-p6-b300"}},
    {"GB300", {"gb300", "gb300-nvl72"}},         {"GB200", {"gb200", "gb200-nvl72"}},
    {"DGX-B300", {"b300-sxm", "hgx-b300-400g"}}, {"B300", {"b300-sxm", "hgx-b300"}},
    {"B200", {"b200-sxm", "hgx-b200"}},          {"H200", {"h200-sxm", "hgx-h200"}},
    {"H100", {"h100-sxm", "hgx-h100"}},          {"A100", {"a100-sxm-80gb", "dgx-a100"}}};

constexpr std::array described = {"model",
                                  "system",
                                  "gpus",
                                  "tp",
                                  "pp",
                                  "vp",
                                  "cp",
                                  "ep",
                                  "mbs",
                                  "gbs",
                                  "precision",
                                  "dispatcher_overlap_options",
                                  "capacity_factor_or_dropless",
                                  "recompute",
                                  "source"};

// Precisions by what their name begins with, in capitals; per-tensor scales are current ones where
// nothing else is said.
const Names<model::Precision> precisions = {
    {"BF16", model::Precision::bf16},           {"MXFP8", model::Precision::mxfp8},
    {"FP8-MX", model::Precision::mxfp8},        {"NVFP4", model::Precision::nvfp4},
    {"FP8 BLOCK", model::Precision::fp8_block}, {"FP8", model::Precision::fp8_current}};

// The first of them that `text` has in it, or begins with.
template <class Value>
const Value* within(const Names<Value>& names, const std::string& text) {
  for (const auto& [name, value] : names) {
    if (has_part(text, name)) return &value;
  }
  return nullptr;
}
template <class Value>
const Value* named(const Names<Value>& names, const std::string& text) {
  for (const auto& [name, value] : names) {
    if (text.rfind(name, 0) == 0) return &value;
  }
  return nullptr;
}

std::string upper_case(std::string text) {
  for (char& letter : text) {
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return text;
}

// Letters and digits alone, without what stands in brackets: "Qwen3_30B_a3B (tokendrop)" is
// "QWEN330BA3B".
std::string bare(const std::string& name) {
  std::string letters;
  for (const char letter : name.substr(0, name.find('('))) {
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0) letters += letter;
  }
  return upper_case(letters);
}

// The shipped model of that name; "" where there is none.
std::string shipped_model(const std::string& name) {
  for (const std::string& shipped : shipped_names("models")) {
    if (bare(shipped) == bare(name)) return shipped;
  }
  return "";
}

// 1 where the table does not say.
int size(const CsvTable& table, std::size_t row, const char* column) {
  if (table.text(row, column).empty()) return 1;
  return static_cast<int>(table.whole(row, table.column(column), 1'000'000));
}

// Stages as the recipes of 61 layers have them
// (src/megatron/bridge/recipes/deepseek/deepseek_v3.py, kimi/kimi_k2.py; for 32 chunks
// scripts/performance/configs/deepseek): the last chunk has fewer layers, for the output head.
// Nothing where they have none.
std::optional<parallel::PipelineLayout> recipe_stages(int layers, int chunks, int mtp_depths) {
  if (layers != 61) return std::nullopt;
  const char* depth = mtp_depths > 0 ? "m" : "";
  if (chunks == 32) return parallel::parse_pipeline_layout(fmt::format("Et|(tt|)*30{}L", depth));
  if (chunks != 4 && chunks != 8 && chunks != 16) return std::nullopt;
  const int each = 64 / chunks;
  return parallel::parse_pipeline_layout(
      fmt::format("Et*{0}|(t*{0}|)*{1}t*{2}{3}L", each, chunks - 2, each - 3, depth));
}

parallel::LayoutRequest layout_of(const CsvTable& table, std::size_t row, const model::Model& model,
                                  int mtp_depths) {
  const std::string& options = table.text(row, "dispatcher_overlap_options");
  parallel::LayoutRequest request;
  parallel::ParallelLayout& sizes = request.sizes;
  sizes.gpus = size(table, row, "gpus");
  sizes.tensor = size(table, row, "tp");
  sizes.context = size(table, row, "cp");
  sizes.pipeline = size(table, row, "pp");
  sizes.virtual_pipeline = size(table, row, "vp");
  sizes.expert = size(table, row, "ep");
  sizes.expert_tensor = size(table, row, "etp");
  request.expert_overlap =
      has_part(options, "ep_a2a_overlap") || has_part(options, "ep overlap on");
  // Overlapped exchanges need several chunks per rank; how many is not said in two sources.
  if (request.expert_overlap && sizes.pipeline > 1 && table.text(row, "vp").empty()) {
    sizes.virtual_pipeline = 2;
  }
  request.micro_batch = size(table, row, "mbs");
  request.global_batch = size(table, row, "gbs");
  request.sequence_length = size(table, row, "seq");
  const std::string key = "pp_layout=";
  if (const auto at = options.find(key); at != std::string::npos) {
    request.stages = parallel::parse_pipeline_layout(options.substr(at + key.size()));
  } else {
    const int chunks = sizes.pipeline * sizes.virtual_pipeline;
    const auto known = recipe_stages(model.layers, chunks, mtp_depths);
    request.stages =
        known ? *known : parallel::nearly_even_pipeline_layout(model.layers, chunks, mtp_depths);
  }
  return request;
}

training::Graphs graphs_of(const std::string& options) {
  if (has_part(options, "cudagraph=full_iteration")) return training::Graphs::layers;
  if (has_part(options, "cudagraph=transformer_engine:moe_router")) return training::Graphs::router;
  return has_part(options, "cudagraph=") ? training::Graphs::parts : training::Graphs::none;
}

// UCCL's DeepEP over EFA: as long for a row that leaves its node as its low-latency kernels take
// there, twice DeepEP's own (data/internode_alltoall.csv, AWS, p5.48xlarge).
std::shared_ptr<const profile::Dispatcher> of_uccl(const profile::Dispatcher& deepep) {
  profile::Dispatcher made = deepep;
  if (auto& nic = made.training_nic[static_cast<std::size_t>(profile::Transport::proxy)]) {
    const profile::Ranged& row = nic->message_us;
    nic->message_us = {2 * row.value, 2 * row.low, 2 * row.high};
  }
  return std::make_shared<const profile::Dispatcher>(std::move(made));
}

constexpr std::int64_t fused_width = 256;

// What the recipes of Megatron-Bridge say where its tables do not (NVIDIA-NeMo/Megatron-Bridge,
// scripts/performance/configs and src/megatron/bridge/recipes, at the release's tag where it is
// known). Rows of 25.09 and some of 25.11 name no recipe: they get that of the same model, machine
// and release.
void apply_recipe(const TrainingRow& row, scenario::DocumentCache& documents,
                  training::TrainingJob& job) {
  const bool latent = job.model->latent.has_value();
  const bool is_hopper = has_part(row.system, "H100");
  const bool is_rack = has_part(row.system, "GB200") || has_part(row.system, "GB300");
  const bool is_gpt_oss = has_part(row.model, "GPT OSS");
  job.states.gradient_bytes = 2;            // grad_reduce_in_fp32 = False
  if (latent) job.states.moment_bytes = 2;  // exp_avg_dtype = bfloat16
  if (has_part(row.source, "25.09")) {
    if (latent) {
      job.recompute =
          model::parse_recompute(is_hopper ? "mla_up_proj,mlp" : "mla_up_proj", "recipes of 25.09");
    }
    if (latent && is_hopper) {
      job.dispatcher = documents.dispatcher("deepep");
      job.layout.expert_overlap = true;
      job.overlaps_gradients = false;
    }
    // Token drop with padding: cuda_graph_scope = full_iteration.
    if (!latent && !is_hopper) job.graphs = training::Graphs::layers;
  }
  if (has_part(row.source, "25.11") && row.options.empty()) {
    if (latent) job.recompute = model::parse_recompute("mla_up_proj", "recipes of 25.11");
    if (is_rack && !is_gpt_oss) {
      job.dispatcher = documents.dispatcher("hybridep");
      job.graphs = latent ? training::Graphs::parts : training::Graphs::router;
    }
  }
  // moe_hybridep_num_sms = 32; that its exchanges take the time of the default, 16, is what steps
  // say that do not overlap them.
  if (job.dispatcher && job.dispatcher->name == "hybridep") job.exchange_sms = 32;
  // cutedsl_fused_grouped_mlp, which has its graph over a whole step; fp8_dot_product_attention.
  // Transformer Engine took only widths that 256 divides to the kernel (ops/fused, later 64), which
  // GPT-OSS's 2,880 is not; the other models' are.
  const bool is_whole_step = job.capacity_factor <= 0 && job.graphs == training::Graphs::layers;
  job.fused_experts = is_whole_step && job.model->moe && job.model->hidden % fused_width == 0 &&
                      job.model->moe->expert_ffn % fused_width == 0;
  // fp8_output_proj, in the recipes for racks that have a graph of the whole step.
  job.low_precision_head = job.states.precision == model::Precision::mxfp8 && is_rack &&
                           is_whole_step && (latent || is_gpt_oss);
  job.fp8_attention = job.states.precision == model::Precision::mxfp8 &&
                      (is_gpt_oss || (latent && has_part(row.system, "GB300") && is_whole_step));
}

// "CF1.0, pad to capacity" and "1.0": 1; "dropless", or nothing: 0. Throws UsageError for else.
double capacity_factor_of(const std::string& text) {
  if (text.empty() || text.rfind("dropless", 0) == 0) return 0;
  const std::size_t begin = text.rfind("CF", 0) == 0 ? 2 : 0;
  const std::size_t end = std::min(text.find_first_not_of("0123456789.", begin), text.size());
  const auto factor = parse_number<double>(std::string_view(text).substr(begin, end - begin));
  if (factor && *factor > 0) return *factor;
  throw UsageError(fmt::format("capacity '{}': neither a factor nor dropless", text));
}

void fill_job(const CsvTable& table, std::size_t row, scenario::DocumentCache& documents,
              TrainingRow& found) {
  const Machine* machine = within(machines, found.system);
  const std::string model = shipped_model(found.model);
  if (machine == nullptr || model.empty()) {
    found.refusal = machine == nullptr ? "no profile of its GPU" : "no document of its model";
    return;
  }
  const model::Precision* precision = named(precisions, upper_case(found.precision));
  if (precision == nullptr) {
    found.refusal = fmt::format("steps in {} are not modelled", found.precision);
    return;
  }
  training::TrainingJob& job = found.job;
  job.states.precision = *precision;
  job.profile = documents.profile(machine->profile);
  job.states.transposed_copies = job::copies_transposed(job.profile->device());
  job.cluster = documents.cluster(machine->cluster);
  job.model = documents.model(model);
  const int mtp_depths = has_part(found.model, "w/o MTP") ? 0 : job.model->mtp_depths;
  for (const auto& [text, name] :
       Names<const char*>{{"hybridep", "hybridep"}, {"deepep", "deepep"}}) {
    if (has_part(found.options, text)) job.dispatcher = documents.dispatcher(name);
  }
  job.capacity_factor = capacity_factor_of(table.text(row, "capacity_factor_or_dropless"));
  job.graphs = graphs_of(found.options);
  std::string recompute = table.text(row, "recompute");
  for (char& letter : recompute) letter = letter == '+' ? ',' : letter;
  job.recompute = model::parse_recompute(recompute.empty() ? "none" : recompute,
                                         fmt::format("{}, recompute", table.name));
  job.layout = layout_of(table, row, *job.model, mtp_depths);
  if (found.family == "Megatron-Bridge") apply_recipe(found, documents, job);
  if (job.dispatcher && has_part(found.options, "UCCL-EP over EFA")) {
    job.dispatcher = of_uccl(*job.dispatcher);
  }
  if (const auto refusal = parallel::layout_refusal(*job.model, job.layout))
    found.refusal = *refusal;
}

}  // namespace

std::string TrainingRow::software() const {
  std::string name = family;
  for (char& letter : name) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return name;
}

std::vector<TrainingRow> load_training_rows(const std::string& folder) {
  const CsvTable table = CsvTable::load(folder + "/moe_training_steps.csv");
  scenario::DocumentCache documents;
  std::vector<TrainingRow> rows;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const std::string& id = table.text(row, "config_id");
    if (rows.empty() || rows.back().id != id) {
      TrainingRow found;
      found.id = id;
      found.source = table.text(row, "source");
      found.family = found.source.substr(0, found.source.find(' '));
      found.model = table.text(row, "model");
      found.system = table.text(row, "system");
      found.precision = table.text(row, "precision");
      found.options = table.text(row, "dispatcher_overlap_options");
      for (const char* column : described) found.cells.push_back(table.text(row, column));
      if (!table.text(row, "derived_step_s").empty()) {
        found.measured_s = table.positive(row, "derived_step_s");
      }
      try {
        fill_job(table, row, documents, found);
      } catch (const Error& error) {
        found.refusal = error.what();
      }
      rows.push_back(found);
    }
    const std::string& metric = table.text(row, "metric");
    if (metric == "simumax_prediction") rows.back().simumax_s = table.positive(row, "value") / 1e3;
  }
  std::erase_if(rows, [](const TrainingRow& row) { return row.measured_s <= 0; });
  return rows;
}

}  // namespace moesim::study
