#include "sim/scenario/exchange.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <vector>

#include "sim/base/digest.hpp"
#include "sim/base/domain_parts.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/cluster/rank_placement.hpp"
#include "sim/network/exchange/dispatch_place.hpp"
#include "sim/routing/simulation/trace_routing.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::scenario {
namespace {

// What a library that sends a row once for each of these places does by --dedup's names. Where a
// group lies inside one domain, a row per node is one per GPU there.
Deduplication deduplication_of(profile::SentOnce sent) {
  switch (sent) {
    case profile::SentOnce::per_node:
      return Deduplication::node;
    case profile::SentOnce::per_gpu:
      return Deduplication::gpu;
    case profile::SentOnce::per_expert:
      break;
  }
  return Deduplication::none;
}

// What is wrong with groups that are not aligned.
std::string cut_groups(const Scenario& scenario) {
  return fmt::format("expert-parallel groups of {} GPUs have parts of NVLink domains of {}",
                     scenario.expert_parallel, scenario.cluster->gpus_per_domain);
}

// As Scenario::has_aligned_groups() of a job on as many GPUs of the whole cluster.
bool is_aligned(const std::shared_ptr<const cluster::Cluster>& cluster, int gpus, int ranks) {
  const int domain = cluster::on_parts_of_domains(cluster, gpus)->gpus_per_domain;
  return !domains_cut_groups(gpus, ranks, domain);
}

// "--expert-parallel 1, 2, 4, 8, or --gpus 128": sizes of aligned groups on as many GPUs, and the
// nearest number of GPUs for groups of this size.
std::string aligned_choices(const Scenario& scenario) {
  const auto cluster =
      std::make_shared<const cluster::Cluster>(cluster::Cluster::load(scenario.cluster_name));
  const int ranks = scenario.expert_parallel;
  std::vector<int> sizes;
  for (int size = 1; size <= scenario.gpus; ++size) {
    const bool divides = scenario.gpus % size == 0 && scenario.experts % size == 0;
    if (divides && is_aligned(cluster, scenario.gpus, size)) sizes.push_back(size);
  }
  std::string text = fmt::format("--expert-parallel {}", fmt::join(sizes, ", "));
  const int most = cluster->max_gpus();
  for (int apart = ranks; apart <= scenario.gpus; apart += ranks) {
    for (const int gpus : {scenario.gpus - apart, scenario.gpus + apart}) {
      if (gpus < ranks || (most > 0 && gpus > most) || !is_aligned(cluster, gpus, ranks)) continue;
      return text + fmt::format(", or --gpus {}", gpus);
    }
  }
  return text;
}

}  // namespace

const std::vector<NamedValue>& dispatcher_forms() {
  static const std::vector<NamedValue> forms = {
      {nccl_dispatcher, "NCCL's, of a row per expert or as --dedup says"},
      {"deepep", "DeepEP's kernels for training, a row per NVLink domain"},
      {"hybridep", "HybridEP, a row per NVLink domain"},
      {"low-latency",
       "DeepEP's kernels made for decoding, which is not modelled; a row per expert"},
      {"trtllm", "TensorRT-LLM's one-sided, a row per GPU of one domain"}};
  return forms;
}

bool has_dispatcher(const Scenario& scenario) {
  return has_experts(scenario) && scenario.dispatcher != nullptr;
}

std::string dispatcher_text(const Scenario& scenario) { return scenario.dispatcher_name; }

void check_dispatcher_text(const std::string& text, DocumentCache& documents) {
  if (text != nccl_dispatcher) documents.dispatcher(text);
}

void use_dispatcher(const std::string& text, Resolution& at) {
  at.scenario.dispatcher_name = text;
  if (text == nccl_dispatcher) return;
  at.scenario.dispatcher = at.documents.dispatcher(text);
  if (at.use == Use::routing) return;  // what it sends is no question of routing alone
  const Deduplication own = deduplication_of(at.scenario.dispatcher->sent);
  if (at.find("dedup") != nullptr && at.scenario.dedup != own) {
    throw UsageError(fmt::format(
        "--dedup {}: dispatcher {} sends a row once to each {}: leave it out", *at.find("dedup"),
        text, name_in(profile::sent_once_names, at.scenario.dispatcher->sent)));
  }
  at.scenario.dedup = own;
}

std::uint64_t dispatcher_contents(const Scenario& scenario) {
  if (scenario.dispatcher == nullptr) return 0;
  return Digest().add(read_file(find_document("dispatchers", scenario.dispatcher_name))).value();
}

// One-hot products need blocks of equal size.
void check_dispatch(const Scenario& scenario, Use use) {
  if (use == Use::routing || !scenario.has_moe()) return;
  if (scenario.dispatch != Dispatch::einsum) return;
  const routing::RouterConfig& router = scenario.router;
  const auto refuse = [&](const char* why) {
    throw UsageError(fmt::format("--dispatch einsum: router {} {}; use --dispatch index",
                                 router.asked_name(), why));
  };
  if (!router.pads_exchange()) {
    refuse(router.has_capacity()
               ? "without padding has no blocks of equal size for one-hot products"
               : "sends no blocks of equal size for one-hot products");
  }
  if (const char* why = router.kind->no_one_hot; why != nullptr) refuse(why);
}

void check_deduplication(const Scenario& scenario, Use use) {
  if (use == Use::routing || !scenario.has_moe()) return;
  if (scenario.dedup == Deduplication::none && scenario.dispatcher == nullptr) return;
  const auto refuse = [&](const std::string& why) {
    const std::string flag =
        scenario.dispatcher != nullptr
            ? "--dispatcher " + scenario.dispatcher_name
            : fmt::format("--dedup {}", name_in(deduplication_names, scenario.dedup));
    throw UsageError(fmt::format("{}: {}", flag, why));
  };
  const routing::RouterConfig& router = scenario.router;
  if (router.counts_known()) {
    routing::RouterConfig unpadded = router;
    unpadded.padding = routing::Padding::none;
    refuse(
        fmt::format("router {} sends every expert a block of its own, full or not: choose "
                    "{}--router dropless, or leave it out",
                    router.asked_name(), unpadded.counts_known() ? "" : "--padding none or "));
  }
  if (scenario.dedup == Deduplication::none) return;
  if (scenario.fidelity == routing::Fidelity::counts && scenario.dispatcher == nullptr) {
    const std::string refusal = routing::counts_refusal(scenario.routing_job());
    if (!refusal.empty()) {
      refuse(fmt::format("--fidelity counts: {}: use --fidelity tokens or auto", refusal));
    }
  }
  if (scenario.scores.trace != nullptr && routing::has_exact_counts(scenario.routing_job())) {
    refuse(
        fmt::format("{} holds counts, which do not say which routes are of one token: use "
                    "--routing trace-repeat:FILE, which draws tokens from their popularity",
                    scenario.scores.name()));
  }
  if (scenario.dedup == Deduplication::node && scenario.dispatcher == nullptr &&
      !scenario.has_aligned_groups()) {
    refuse(
        fmt::format("{}, so that a GPU need not have its counterpart in each: choose {}, or "
                    "--dedup gpu",
                    cut_groups(scenario), aligned_choices(scenario)));
  }
}

// Kernels that send a row for each expert also wait for the fullest one, and counts per rank say
// nothing of experts.
void check_counted_experts(const Scenario& scenario, const std::string& flag) {
  const routing::Trace* const trace = scenario.scores.trace.get();
  if (trace == nullptr || trace->per() != routing::Trace::Per::rank) return;
  if (scenario.dispatcher->sent != profile::SentOnce::per_expert) return;
  if (scenario.model->moe->experts == scenario.experts) return;
  throw UsageError(
      fmt::format("{}: {} counts rows per GPU, and its kernels take as long as the fullest expert: "
                  "record counts per expert, or choose --dispatcher all-to-all",
                  flag, scenario.scores.name()));
}

// Checks a dispatcher, beside what check_deduplication() says of the rows that it sends.
void check_dispatcher(const Scenario& scenario, Use use) {
  if (use == Use::routing || !scenario.has_moe() || scenario.dispatcher == nullptr) return;
  if (scenario.expert_parallel < 2) return;
  const std::string flag = "--dispatcher " + scenario.dispatcher_name;
  if (!scenario.has_aligned_groups()) {
    throw UsageError(
        fmt::format("{}: {}: choose {}", flag, cut_groups(scenario), aligned_choices(scenario)));
  }
  check_counted_experts(scenario, flag);
  try {
    const std::string& device = scenario.profile->device().name;
    const network::DispatchPlace place =
        network::dispatch_place(device, *scenario.cluster, scenario.expert_parallel);
    profile::dispatch_time(*scenario.dispatcher, {place.device,
                                                  profile::DispatcherStage::dispatch,
                                                  place.group,
                                                  {},
                                                  1,
                                                  place.rates,
                                                  scenario.dispatcher->usual_sms});
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}: {}", flag, error.what()));
  }
}

}  // namespace moesim::scenario
