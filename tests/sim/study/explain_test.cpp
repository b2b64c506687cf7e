#include "sim/base/formats/csv.hpp"
#include "sim/step/program/part.hpp"
#include "sim/study/explain/exposed_time.hpp"
#include "sim/study/explain/kernel_rules.hpp"
#include "sim/study/explain/slow_gpu.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using study::KernelKind;

namespace {

double at(const study::ExposedTime& time, KernelKind kind) {
  return time.kind_ms[static_cast<std::size_t>(kind)];
}

// As tests/data/kernel_names.csv spells it.
std::string name_of(KernelKind kind) {
  if (kind == KernelKind::any_product) return "any_product";
  if (kind == KernelKind::any_memory) return "any_memory";
  if (kind == KernelKind::pipeline) return "pipeline";
  if (kind == KernelKind::unknown) return "unknown";
  return step::part_names()[static_cast<std::size_t>(kind)];
}

}  // namespace

TEST_CASE("each moment of a step counts once, to computation before exchanges") {
  const study::KernelClass attention{KernelKind::attention, false};
  const study::KernelClass expert{KernelKind::expert, false};
  const study::KernelClass exchange{KernelKind::exposed_exchange, true};
  const study::KernelClass gradient{KernelKind::gradient, true};
  // us      0    1000   2000   3000   4000   5000   6000   7000
  // compute |attn       |             |expert (two streams)|
  // NCCL           |exchange   |            |gradient             |
  const study::ExposedTime time = study::exposed_time({{4000, 5500, expert},
                                                       {0, 2000, attention},
                                                       {4500, 6000, expert},
                                                       {1000, 3000, exchange},
                                                       {5000, 6500, gradient}},
                                                      0, 7000);
  CHECK(at(time, KernelKind::attention) == Approx(2));
  CHECK(at(time, KernelKind::exposed_exchange) == Approx(1));  // 2000 to 3000
  CHECK(at(time, KernelKind::expert) == Approx(2));            // their union
  CHECK(at(time, KernelKind::gradient) == Approx(0.5));        // 6000 to 6500
  CHECK(time.idle_ms == Approx(1.5));                          // 3000 to 4000, 6500 to 7000
  CHECK(time.total_ms == Approx(7));
}

TEST_CASE("an exchange with computation inside it is exposed on both sides") {
  const study::ExposedTime time = study::exposed_time(
      {{0, 4000, {KernelKind::gradient, true}}, {1000, 2000, {KernelKind::attention, false}}}, 500,
      3500);
  CHECK(at(time, KernelKind::gradient) == Approx(2));  // 500 to 1000, 2000 to 3500
  CHECK(at(time, KernelKind::attention) == Approx(1));
  CHECK(time.idle_ms == Approx(0).margin(1e-12));
}

TEST_CASE("of GPUs that end together the one that waits least is the critical one") {
  const auto gpu = [](double total_ms, double exchange_ms, double pipeline_ms = 0) {
    study::ExposedTime time;
    time.total_ms = total_ms;
    time.exchange_ms = exchange_ms;
    time.kind_ms[static_cast<std::size_t>(KernelKind::pipeline)] = pipeline_ms;
    return time;
  };
  // The second ends 0.4 ms before the first, but computes 30 ms more; the fourth ends too early.
  const study::CriticalGpu waits_least =
      study::critical_gpu({gpu(100, 50), gpu(99.6, 20), gpu(99.8, 20), gpu(98, 5)});
  CHECK(waits_least.index == 1);
  CHECK(waits_least.shorter_ms == Approx(0.4));
  CHECK(study::critical_gpu({gpu(98, 5), gpu(99.8, 20.0004), gpu(99.6, 20), gpu(100, 50)}).index ==
        1);  // equal but for the digits of a trace
  // Stages of a pipeline: without their waits they take 70, 71 and 60 ms.
  CHECK(study::critical_gpu({gpu(100, 32, 30), gpu(100, 49, 29), gpu(100, 40, 40)}).index == 1);
  const study::ExposedTime longer = study::extended(gpu(99.6, 20), 0.4);
  CHECK(longer.total_ms == Approx(100));
  CHECK(longer.idle_ms == Approx(0.4));
}

TEST_CASE("a GPU is slow that takes longer than the others in all that is alike on them") {
  // Attention, router, experts and exchange, ms.
  const auto gpu = [](double attention, double router, double experts, double exchange) {
    study::ExposedTime time;
    time.kind_ms[static_cast<std::size_t>(KernelKind::attention)] = attention;
    time.kind_ms[static_cast<std::size_t>(KernelKind::router)] = router;
    time.kind_ms[static_cast<std::size_t>(KernelKind::expert)] = experts;
    time.kind_ms[static_cast<std::size_t>(KernelKind::exposed_exchange)] = exchange;
    time.exchange_ms = exchange;
    time.total_ms = attention + router + experts + exchange;
    return time;
  };
  // The second is 1.25 times slower and has the experts of 1.5 others: (50 + 12.5) / (40 + 10).
  const std::vector<study::ExposedTime> gpus = {gpu(40, 10, 30, 52.5), gpu(50, 12.5, 45, 10),
                                                gpu(40, 10, 28, 54), gpu(40, 10, 24, 60)};
  const std::vector<study::SlowGpu> slow = study::slow_gpus(gpus);
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].index == 1);
  CHECK(slow[0].factor == Approx(1.25));
  const study::ExposedTime usual = slow[0].at_speed_of_others(gpus[1]);
  CHECK(at(usual, KernelKind::attention) == Approx(40));
  CHECK(at(usual, KernelKind::expert) == Approx(36));
  CHECK(at(usual, KernelKind::exposed_exchange) == Approx(10));
  CHECK(usual.total_ms == Approx(96));
  // More experts alone are routing; one slow part is a kernel; 4 % are two runs of one GPU.
  CHECK(study::slow_gpus({gpu(40, 10, 30, 50), gpu(40, 10, 60, 20)}).empty());
  CHECK(study::slow_gpus({gpu(40, 10, 30, 50), gpu(40, 20, 30, 40)}).empty());
  CHECK(study::slow_gpus({gpu(40, 10, 30, 50), gpu(41.6, 10.4, 31.2, 46.8)}).empty());
  CHECK(study::slow_gpus({gpu(50, 12.5, 30, 50)}).empty());
  // Others that are as far apart.
  CHECK(study::slow_gpus(
            {gpu(40, 10, 30, 50), gpu(50, 12.5, 30, 37.5), gpu(32, 8, 30, 60), gpu(44, 11, 30, 45)})
            .empty());
  // Stages of a pipeline compute different layers.
  std::vector<study::ExposedTime> stages = gpus;
  stages[0].kind_ms[static_cast<std::size_t>(KernelKind::pipeline)] = 5;
  CHECK(study::slow_gpus(stages).empty());
}

TEST_CASE("a simulated step is that of its critical GPU until the last one ends") {
  const auto bar = [](int rank, const char* stream, const char* part, double start_us, double us) {
    engine::TimelineEvent event;
    event.rank = rank;
    event.stream = stream;
    event.category = part;
    event.start = Picoseconds::from_us(start_us);
    event.duration = Picoseconds::from_us(us);
    return event;
  };
  // us        0        3000       8000       9950 10000
  // 0 compute |expert  |          |               |
  //   NCCL             |exchange                  |
  // 1 compute |expert             |          |
  //   NCCL                        |exchange  |
  const study::ExposedTime time =
      study::exposed_time({bar(0, "compute", "expert", 0, 3000),
                           bar(0, "communication", "exposed_exchange", 3000, 7000),
                           bar(1, "compute", "expert", 0, 8000),
                           bar(1, "communication", "exposed_exchange", 8000, 1950)});
  CHECK(at(time, KernelKind::expert) == Approx(8));
  CHECK(at(time, KernelKind::exposed_exchange) == Approx(1.95));
  CHECK(time.exchange_ms == Approx(1.95));
  CHECK(time.idle_ms == Approx(0.05));
  CHECK(time.total_ms == Approx(10));
}

TEST_CASE("kernels count by what their names say") {
  const auto kind = [](const char* name, const char* collective = "", const char* group = "") {
    return study::classify_kernel({name, collective, group});
  };
  CHECK(kind("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)").kind ==
        KernelKind::exposed_exchange);
  CHECK(kind("ncclKernel_AllReduce_RING_LL_Sum_float").kind == KernelKind::gradient);
  CHECK(kind("ncclDevKernel_AllReduce_Sum_u32_RING_LL", "allreduce", "EXPERT_MODEL_PARALLEL_GROUP")
            .kind == KernelKind::exposed_exchange);
  CHECK(kind("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "_reduce_scatter_base",
             "expert_data_parallel")
            .kind == KernelKind::gradient);
  CHECK(kind("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)").is_exchange);
  CHECK(kind("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>").kind ==
        KernelKind::attention);
  CHECK(kind("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn").kind ==
        KernelKind::any_product);
  CHECK(kind("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT").kind == KernelKind::any_product);
  CHECK(kind("void cutlass::Kernel<cutlass::gemm::kernel::GemmGrouped<>>").kind ==
        KernelKind::expert);
  CHECK(kind("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<>").kind ==
        KernelKind::optimizer);
  CHECK(kind("triton_poi_fused_silu_mul_0").kind == KernelKind::any_memory);
  CHECK(kind("void at::native::sbtopk::gatherTopK<float>").kind == KernelKind::router);
  CHECK(kind("my_very_own_kernel").kind == KernelKind::unknown);
  CHECK(kind("dispatch_backward").kind == KernelKind::dispatch_combine);
  CHECK_FALSE(kind("combine").is_exchange);
  CHECK(study::classify_range("nn.Module: TopKRouter_3") == KernelKind::router);
  CHECK(study::classify_range("nn.Module: TEGroupedMLP_3") == KernelKind::expert);
  CHECK(study::classify_range("nn.Module: SharedExpertMLP_3") == KernelKind::dense_ffn);
  CHECK(study::classify_range("nn.Module: TransformerLayer_3") == KernelKind::unknown);
  CHECK(study::classify_range("Optimizer.step#AdamW.step") == KernelKind::optimizer);
}

TEST_CASE("kernels of linear attention count to attention") {
  // flash-linear-attention's: the chunked delta rule forward and backward, convolution, norms.
  for (const char* name :
       {"chunk_local_cumsum_scalar_kernel", "chunk_scaled_dot_kkt_fwd_kernel",
        "chunk_gated_delta_rule_fwd_kkt_solve_kernel", "merge_16x16_to_64x64_inverse_kernel",
        "recompute_w_u_fwd_kernel", "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
        "chunk_fwd_kernel_o", "chunk_bwd_kernel_dv_local", "chunk_bwd_kernel_dqkwg",
        "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64", "prepare_wy_repr_bwd_kernel",
        "void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4, true>>(Params)",
        "l2norm_fwd_kernel1", "layer_norm_gated_fwd_kernel1"}) {
    INFO(name);
    CHECK(study::classify_kernel({name, "", ""}).kind == KernelKind::attention);
  }
  CHECK(study::classify_range("nn.Module: GatedDeltaNet_3") == KernelKind::attention);
  CHECK(study::classify_kernel({"chunk_cat_cuda_kernel", "", ""}).kind == KernelKind::any_memory);
}

TEST_CASE("kernels of the libraries count to the part they are of") {
  const CsvTable table = CsvTable::load(MOESIM_SOURCE_DIR "/tests/data/kernel_names.csv");
  const std::size_t kind = table.column("kind"), exchange = table.column("exchange"),
                    collective = table.column("collective"), group = table.column("group"),
                    kernel = table.column("kernel");
  REQUIRE(table.rows.size() > 180);
  for (const auto& row : table.rows) {
    INFO(row[kernel] << " | " << row[collective] << " | " << row[group]);
    const study::KernelClass found =
        study::classify_kernel({row[kernel], row[collective], row[group]});
    CHECK(name_of(found.kind) == row[kind]);
    CHECK(found.is_exchange == (row[exchange] == "exchange"));
  }
}

TEST_CASE("an all-to-all reduces no gradients in any group") {
  CHECK(study::classify_kernel({"ncclDevKernel_SendRecv", "all_to_allv", "mesh_dp_shard"}).kind ==
        KernelKind::exposed_exchange);
}
