#include "sim/profile/profile.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "sim/base/error.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/units.hpp"
#include "sim/profile/collective_curve.hpp"
#include "sim/profile/kernels/attention_curve.hpp"
#include "sim/profile/kernels/expert_ffn_curve.hpp"
#include "sim/profile/kernels/gemm_curve.hpp"
#include "sim/profile/kernels/machine_limits.hpp"
#include "sim/profile/kernels/memory_curve.hpp"
#include "sim/profile/kernels/quantize_curve.hpp"
#include "sim/profile/software_document.hpp"

namespace moesim::profile {

namespace {

constexpr std::int64_t readable_version = 1;
constexpr const char* calibration_format = "moesim-training-software";
constexpr std::int64_t bytes_per_element = 2;  // bf16

// Operations whose curves are of one data type each.
bool is_typed(const std::string& op) {
  static const std::set<std::string> typed{"gemm", "attention", "latent-attention", "expert-ffn",
                                           "quantize"};
  return typed.count(op) != 0;
}

std::vector<Missing> read_missing(const Node& root) {
  std::vector<Missing> missing;
  for (const Node& item : root.items("missing")) {
    missing.push_back({item.text("suite"), item.text("reason"), item.text("hint")});
  }
  return missing;
}

void check_version(const Node& root) {
  if (root.text("format") != "moesim-profile") {
    root.fail("not a hardware profile: expected \"moesim-profile\"", "format");
  }
  const std::int64_t version = root.integer("version");
  if (version != readable_version) {
    root.fail(fmt::format("version {} of the profile format; this program reads version {}: write "
                          "the profile anew, or update the program",
                          version, readable_version),
              "version");
  }
}

}  // namespace

struct Profile::Content {
  std::string name;
  std::string calibration;
  Device device;
  std::vector<Missing> missing;
  // By data type, attention within it by head size.
  std::map<std::string, GemmCurve> gemm;
  std::map<std::string, ExpertFfnCurve> expert_ffn;
  std::map<std::string, std::map<std::int64_t, AttentionCurve>> attention;
  std::map<std::string, AttentionCurve> latent_attention;
  std::map<std::string, QuantizeCurve> quantize;
  std::map<std::string, MemoryCurve> memory;  // by kernel family
  std::optional<RowMoveCurve> permute;
  std::optional<RowMoveCurve> combine;
  NodeLinks links;
  std::vector<CollectiveCurve> collectives;
  std::optional<OverlapSlowdowns> overlap;
  std::optional<Profile> training_products;
  std::optional<SoftwareDocument> software;                 // whose use of the hardware it is
  std::map<std::string, std::set<std::string>> data_types;  // by operation

  void add_curve(const Node& node);
  [[noreturn]] void lacks(const std::string& what) const;
  void check_fits(const char* op, double bytes) const;
  template <typename Curves>
  const auto& typed(const Curves& curves, const std::string& op, const std::string& suite,
                    const std::string& dtype) const;
  const MemoryCurve& memory_curve(MemoryKernel kernel) const;
};

void Profile::Content::add_curve(const Node& node) {
  const std::string op = node.text("op");
  const std::string type = node.at("params").text_or("dtype", default_data_type);
  if (is_typed(op)) data_types[op].insert(type);
  if (op == "gemm") {
    gemm.emplace(type, node);
  } else if (op == "expert-ffn") {
    expert_ffn.emplace(type, node);
  } else if (op == "attention") {
    AttentionCurve curve(node);
    const std::int64_t head_dim = curve.head_dim();
    attention[type].emplace(head_dim, std::move(curve));
  } else if (op == "latent-attention") {
    latent_attention.emplace(type, node);
  } else if (op == "quantize") {
    quantize.emplace(type, node);
  } else if (op == "memory") {
    MemoryCurve curve(node);
    const std::string kernel = curve.kernel();
    memory.emplace(kernel, std::move(curve));
  } else if (op == "permute") {
    permute.emplace(node);
  } else if (op == "combine") {
    combine.emplace(node);
  } else {
    collectives.emplace_back(node, links);
  }
}

// Says why a figure is not there, in the words of the document where it has them.
void Profile::Content::lacks(const std::string& what) const {
  std::string message = fmt::format("profile {} has no curve for {}", name, what);
  for (const Missing& entry : missing) {
    if (entry.suite.find(what) != std::string::npos) {
      message += fmt::format(": {}; {}", entry.reason, entry.hint);
    }
  }
  throw NotMeasured(message + "; fit or measure it, or choose a profile that has it");
}

// The bandwidth of the last piece carries as far as there is memory to read and write.
void Profile::Content::check_fits(const char* op, double bytes) const {
  const auto most = static_cast<double>(device.hbm_bytes.count);
  if (bytes <= most) return;
  throw BeyondMemory(fmt::format(
      "{} of {:.4g} GiB, read and written: the GPU of profile {} has {:.4g} GiB of memory: take "
      "fewer tokens",
      op, bytes / bytes_per_gib, name, most / bytes_per_gib));
}

// Kernels of another data type are other kernels: no curve answers for them.
template <typename Curves>
const auto& Profile::Content::typed(const Curves& curves, const std::string& op,
                                    const std::string& suite, const std::string& dtype) const {
  if (curves.empty()) lacks(suite);
  const auto found = curves.find(dtype);
  if (found != curves.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [type, curve] : curves) known.push_back(type);
  throw NotMeasured(fmt::format(
      "{} in {}: profile {} has {}{}; kernels of other types are different ones and were not "
      "measured: leave dtype out, or choose a profile that has it",
      op, dtype, name, fmt::join(known, ", "), known.size() == 1 ? " alone" : ""));
}

const MemoryCurve& Profile::Content::memory_curve(MemoryKernel kernel) const {
  const auto found = memory.find(profile::name_of(kernel));
  if (found == memory.end()) lacks(fmt::format("{} kernels", profile::name_of(kernel)));
  return found->second;
}

// A profile as some software uses it: the curves of another one, and multipliers on them.
Profile Profile::read_software(const Document& document) {
  SoftwareDocument software = SoftwareDocument::read(document);
  // Before it is loaded: it may name this document again.
  if (SoftwareDocument::is_one(Document::load(find_document("hardware", software.profile)))) {
    document.root().fail("expected a profile of hardware, not of software on it", "profile");
  }
  const Profile base = load(software.profile);
  auto content = std::make_shared<Content>(*base.content_);
  content->name = software.name;
  content->software = std::move(software);
  return Profile(std::move(content));
}

Profile Profile::read_calibration(const Document& document, const std::string& file,
                                  Calibrated calibrated) {
  const Node root = document.root();
  if (calibrated == Calibrated::refused) {
    root.fail(
        "moesim calibrate fitted it to what train predicts, which simulate prices otherwise: "
        "train, recommend and predict take it as a profile. For simulate and sweep: moesim "
        "calibrate --command simulate",
        "format");
  }
  if (!root.has("profile")) {
    root.fail(
        "it does not say which profile predicted its rows: calibrate anew, or give it as "
        "--software of train",
        "profile");
  }
  const Profile base = load(root.document("profile", "hardware"));
  auto content = std::make_shared<Content>(*base.content_);
  content->calibration = file;
  return Profile(std::move(content));
}

Profile Profile::read_training_products(const Node& node) {
  const std::string name = node.document("profile", "hardware");
  // Before it is loaded: it may name this document again.
  if (Document::load(find_document("hardware", name)).root().find("training_products")) {
    node.fail("expected a profile without training_products of its own", "profile");
  }
  return load(name);
}

Profile Profile::load(const std::string& name_or_path, Calibrated calibrated) {
  const std::string file = find_document("hardware", name_or_path);
  const Document document = Document::load(file);
  const Node root = document.root();
  if (SoftwareDocument::is_one(document)) return read_software(document);
  if (root.text_or("format", "") == calibration_format) {
    return read_calibration(document, file, calibrated);
  }
  check_version(root);
  document.validate("profile.schema");
  auto content = std::make_shared<Content>();
  content->name = root.text("name");
  const std::vector<Node> devices = root.items("devices");
  if (devices.empty()) root.fail("expected at least one device", "devices");
  content->device = Device::read(devices.front());
  content->links = NodeLinks::read(root.at("topology"), devices.front());
  content->missing = read_missing(root);
  if (const auto overlap = root.find("overlap")) {
    content->overlap = OverlapSlowdowns{overlap->at("compute").number("slowdown"),
                                        overlap->at("exchange").number("slowdown")};
  }
  for (const Node& node : root.items("curves")) content->add_curve(node);
  if (const auto products = root.find("training_products")) {
    content->training_products = read_training_products(*products);
  }
  return Profile(std::move(content));
}

const std::string& Profile::name() const { return content_->name; }
const std::string& Profile::calibration() const { return content_->calibration; }
const Device& Profile::device() const { return content_->device; }
const NodeLinks& Profile::links() const { return content_->links; }
const std::vector<Missing>& Profile::missing() const { return content_->missing; }

const Profile& Profile::training_products() const {
  return content_->training_products ? *content_->training_products : *this;
}

const std::optional<OverlapSlowdowns>& Profile::overlap() const { return content_->overlap; }

double Profile::software_multiplier(const std::string& kernel_class) const {
  if (!content_->software) return 1;
  const auto found = content_->software->multipliers.find(kernel_class);
  return found == content_->software->multipliers.end() ? 1.0 : found->second;
}

const std::optional<SoftwareDocument>& Profile::software() const { return content_->software; }

std::vector<std::string> Profile::data_types(const std::string& op) const {
  const auto found = content_->data_types.find(op);
  if (found == content_->data_types.end()) return {};
  return {found->second.begin(), found->second.end()};
}

Estimate Profile::gemm(std::int64_t m, std::int64_t n, std::int64_t k,
                       const std::string& dtype) const {
  const double weights = static_cast<double>(n) * static_cast<double>(k);
  return no_faster_than_machine(
      content_->typed(content_->gemm, "gemm", "gemm", dtype).estimate(m, n, k),
      {dtype, 2 * static_cast<double>(m) * weights, weights}, device());
}

double Profile::gemm_cast_us(std::int64_t m, std::int64_t k, const std::string& dtype) const {
  return content_->typed(content_->gemm, "gemm", "gemm", dtype).cast_us(m, k);
}

Estimate Profile::attention(const AttentionShape& shape, bool backward,
                            const std::string& dtype) const {
  const auto& curves = content_->typed(content_->attention, "attention", "attention", dtype);
  const auto found = curves.find(shape.head_dim);
  if (found == curves.end()) {
    std::vector<std::int64_t> known;
    for (const auto& [size, curve] : curves) known.push_back(size);
    throw NotMeasured(
        fmt::format("attention with head-dim {}: profile {} has head sizes {}; the kernels "
                    "of other sizes are different ones: measure it, or choose one of these",
                    shape.head_dim, content_->name, fmt::join(known, ", ")));
  }
  // Two products over the lower triangle; backward five.
  const double rows =
      static_cast<double>(shape.batch * shape.heads) * static_cast<double>(shape.sequence);
  const double flops =
      (backward ? 5 : 2) * rows * static_cast<double>(shape.sequence * shape.head_dim);
  return no_faster_than_machine(found->second.estimate(shape, backward), {dtype, flops}, device());
}

Estimate Profile::latent_attention(std::int64_t batch, std::int64_t sequence, std::int64_t heads,
                                   bool backward, const std::string& dtype) const {
  const AttentionCurve& curve =
      content_->typed(content_->latent_attention, "latent-attention", "latent_attention", dtype);
  return curve.estimate({batch, sequence, heads, heads, curve.head_dim()}, backward);
}

Estimate Profile::quantize(std::int64_t m, std::int64_t k, const std::string& dtype) const {
  return content_->typed(content_->quantize, "quantize", "quantize", dtype).estimate(m, k);
}

Estimate Profile::memory(double bytes, MemoryKernel kernel) const {
  return content_->memory_curve(kernel).estimate(bytes);
}

namespace {

// Three products of every row. What is read of the weights is no limit: calls of some sweeps take
// less than that of all their experts would.
LeastWork least_ffn_work(std::int64_t rows, std::int64_t hidden, std::int64_t ffn,
                         const std::string& dtype) {
  return {dtype, 6 * static_cast<double>(rows) * static_cast<double>(hidden * ffn)};
}

// Rows 3b and 7 of sim/step/README.md: the tokens once, the routed rows once, bf16.
double row_move_bytes(const char* op, std::int64_t tokens, std::int64_t rows, std::int64_t hidden) {
  if (tokens < 1 || hidden < 1 || rows < 0) {
    throw UsageError(
        fmt::format("{}: tokens {}, hidden {}, rows {}: expected at least 1 token and "
                    "column, and no negative rows",
                    op, tokens, hidden, rows));
  }
  return static_cast<double>(bytes_per_element) * static_cast<double>(hidden) *
         (static_cast<double>(tokens) + static_cast<double>(rows));
}

std::int64_t routed_rows(const char* op, std::int64_t tokens, std::int64_t k) {
  constexpr std::int64_t largest = (std::int64_t{1} << 31) - 1;  // the product stays whole
  if (k < 1 || k > largest || tokens > largest) {
    throw NoAnswer(fmt::format("{}: tokens {}, k {}: expected 1 to {}", op, tokens, k, largest));
  }
  return tokens * k;
}

}  // namespace

Estimate Profile::permute_rows(std::int64_t tokens, std::int64_t rows, std::int64_t hidden) const {
  const double bytes = row_move_bytes("permute", tokens, rows, hidden);
  if (!content_->permute) content_->lacks("permute");
  content_->check_fits("permute", bytes);
  return content_->permute->estimate(bytes, content_->memory_curve(MemoryKernel::streaming));
}

Estimate Profile::combine_rows(std::int64_t tokens, std::int64_t rows, std::int64_t hidden) const {
  const double bytes = row_move_bytes("combine", tokens, rows, hidden);
  if (!content_->combine) content_->lacks("combine");
  content_->check_fits("combine", bytes);
  return content_->combine->estimate(bytes, content_->memory_curve(MemoryKernel::streaming));
}

Estimate Profile::permute(std::int64_t tokens, std::int64_t hidden, std::int64_t k) const {
  return permute_rows(tokens, routed_rows("permute", tokens, k), hidden);
}

Estimate Profile::combine(std::int64_t tokens, std::int64_t hidden, std::int64_t k) const {
  return combine_rows(tokens, routed_rows("combine", tokens, k), hidden);
}

Estimate Profile::expert_ffn(std::int64_t rows, std::int64_t hidden, std::int64_t ffn,
                             std::int64_t experts, const std::string& dtype) const {
  return no_faster_than_machine(
      content_->typed(content_->expert_ffn, "expert-ffn", "expert_ffn", dtype)
          .estimate(rows, hidden, ffn, experts),
      least_ffn_work(rows, hidden, ffn, dtype), device());
}

Estimate Profile::expert_ffn(std::span<const std::int64_t> rows_per_expert, std::int64_t hidden,
                             std::int64_t ffn, const std::string& dtype) const {
  const std::int64_t rows =
      std::accumulate(rows_per_expert.begin(), rows_per_expert.end(), std::int64_t{0});
  return no_faster_than_machine(
      content_->typed(content_->expert_ffn, "expert-ffn", "expert_ffn", dtype)
          .estimate(rows_per_expert, hidden, ffn),
      least_ffn_work(rows, hidden, ffn, dtype), device());
}

Estimate Profile::collective(Collective kind, int gpus, double bytes) const {
  for (const CollectiveCurve& curve : content_->collectives) {
    if (curve.kind() == kind && curve.is_default()) return curve.estimate(gpus, bytes);
  }
  content_->lacks(profile::name_of(kind));
}

Estimate Profile::collective(Collective kind, int gpus, double bytes,
                             const std::string& nccl) const {
  std::vector<std::string> versions;
  for (const CollectiveCurve& curve : content_->collectives) {
    if (curve.kind() != kind) continue;
    if (curve.nccl() == nccl) return curve.estimate(gpus, bytes, true);
    versions.push_back(curve.nccl());
  }
  if (versions.empty()) content_->lacks(profile::name_of(kind));
  throw NoAnswer(fmt::format("{} under NCCL '{}': profile {} has {}", profile::name_of(kind), nccl,
                             content_->name, fmt::join(versions, ", ")));
}

}  // namespace moesim::profile
