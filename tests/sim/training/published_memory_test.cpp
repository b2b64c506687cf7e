// Steps that ran: what the formulas say must fit the GPUs that they ran on.
#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::training;

namespace {

// NVIDIA-NeMo/Megatron-Bridge, performance summary 26.06: sequences of 4,096 tokens, MXFP8, TP, PP,
// CP 1, HybridEP with overlapped exchanges, nothing recomputed, gradients in bf16 (recipes of
// v0.5.0 and v0.5.1, scripts/performance/configs).
struct Row {
  const char* model;
  const char* profile;
  const char* cluster;
  int gpus, expert;
  std::int64_t micro_batch, global_batch;
};
constexpr Row rows[] = {
    {"qwen3-30b-a3b", "gb300", "gb300-nvl72", 8, 8, 8, 512},
    {"qwen3-30b-a3b", "gb200", "gb200-nvl72", 8, 8, 4, 512},
    {"qwen3-30b-a3b", "b300-sxm", "hgx-b300", 8, 8, 8, 512},
    {"gpt-oss-120b", "gb200", "gb200-nvl72", 64, 64, 4, 1280},
};

}  // namespace

TEST_CASE("published steps with overlapped experts fit their GPUs") {
  for (const Row& row : rows) {
    CAPTURE(row.model, row.profile);
    TrainingJob job;
    job.profile = std::make_shared<const profile::Profile>(profile::Profile::load(row.profile));
    job.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load(row.cluster));
    job.model = std::make_shared<const model::Model>(model::Model::load(row.model));
    job.dispatcher =
        std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("hybridep"));
    job.layout.sizes.gpus = row.gpus;
    job.layout.sizes.expert = row.expert;
    job.layout.sequence_length = 4096;
    job.layout.micro_batch = row.micro_batch;
    job.layout.global_batch = row.global_batch;
    job.layout.expert_overlap = true;
    job.states.precision = model::Precision::mxfp8;
    job.states.gradient_bytes = 2;
    const Bytes need = training_step(job).peak_memory();
    const Bytes room = job.profile->device().hbm_bytes;
    CHECK(need <= room);
    // Nor far below: the recipes take what the GPU has.
    CHECK(need.gib() > 0.6 * room.gib());
  }
}
