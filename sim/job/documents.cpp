#include "sim/job/documents.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/scenario/document_cache.hpp"

namespace moesim::job {
namespace {

using training::TrainingJob;

// Scales per 32 need Blackwell's tensor cores, as those of NVFP4 do.
bool has_products(const profile::Profile& profile, model::Precision precision) {
  const std::vector<std::string> types = profile.data_types("gemm");
  const auto has = [&](const char* type) {
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  return has(training::product_type(precision)) &&
         (precision != model::Precision::mxfp8 || has("nvfp4"));
}

// What a cache knows of a document, of one that is read for this alone where there is none.
template <class Document>
std::shared_ptr<const Document> found(
    std::shared_ptr<const Document> (scenario::DocumentCache::*of)(const std::string&),
    const std::string& name, const Resolution& at) {
  scenario::DocumentCache own;
  return ((at.documents != nullptr ? *at.documents : own).*of)(name);
}

}  // namespace

bool copies_transposed(const profile::Device& device) {
  return device.name.find("H100") != std::string::npos ||
         device.name.find("H200") != std::string::npos;
}

void set_model(const std::string& name, Resolution& at) {
  at.job.model = found(&scenario::DocumentCache::model, name, at);
  at.job.typed.model = name;
}

void set_profile(const std::string& name, Resolution& at) {
  TrainingJob& job = at.job;
  job.profile = found(&scenario::DocumentCache::calibrated_profile, name, at);
  job.typed.profile = name;
  if (const auto& software = job.profile->software()) {
    throw UsageError(fmt::format(
        "--profile {}: its multipliers are of the step of simulate, which train prices otherwise: "
        "give its hardware, --profile {}, and what moesim calibrate fits to steps of train",
        name, software->profile));
  }
  job.states.transposed_copies = copies_transposed(job.profile->device());
}

void set_cluster(const std::string& name, Resolution& at) {
  at.job.cluster = found(&scenario::DocumentCache::cluster, name, at);
  at.job.typed.cluster = name;
}

void use_usual_cluster(Resolution& at) {
  const std::string& name = at.job.profile->device().usual_cluster;
  if (name.empty()) {
    throw UsageError(fmt::format("--cluster: the profile {} names no usual cluster: say which one",
                                 at.job.typed.profile));
  }
  set_cluster(name, at);
}

void set_dispatcher(const std::string& name, Resolution& at) {
  at.job.typed.dispatcher = name;
  at.job.dispatcher = nullptr;
  at.job.gathers_tokens = name == gathering_dispatcher;
  if (name == no_dispatcher || at.job.gathers_tokens) return;
  at.job.dispatcher = found(&scenario::DocumentCache::dispatcher, name, at);
}

void check_cluster(const TrainingJob& job) {
  if (job.ranks_per_domain > job.cluster->gpus_per_domain) {
    throw UsageError(fmt::format("--ranks-per-domain {}: a domain of {} has {} GPUs",
                                 job.ranks_per_domain, job.typed.cluster,
                                 job.cluster->gpus_per_domain));
  }
  const int most = job.cluster->max_gpus();
  if (most > 0 && job.layout.sizes.gpus > most) {
    throw UsageError(fmt::format("--gpus {}: the cluster {} has {}", job.layout.sizes.gpus,
                                 job.typed.cluster, most));
  }
}

void check_products(const TrainingJob& job) {
  // A profile without any fails where the first one is priced, with what is missing.
  if (!job.profile || job.profile->data_types("gemm").empty()) return;
  if (has_products(*job.profile, job.states.precision)) return;
  std::vector<std::string> known;
  for (const auto& each : model::precision_names) {
    if (has_products(*job.profile, each.value)) known.emplace_back(each.name);
  }
  throw UsageError(fmt::format(
      "--precision {}: the GPU of profile {} has no such products, or they were not measured; it "
      "has {}",
      model::name_of(job.states.precision), job.typed.profile, fmt::join(known, ", ")));
}

}  // namespace moesim::job
