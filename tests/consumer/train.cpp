// A training step with its band, predicted from C++ as `moesim train OPTIONS` predicts it:
//   train model qwen3-30b-a3b gpus 64 software megatron-bridge
#include <cstdio>
#include <exception>

#include "sim/scenario/document_cache.hpp"
#include "sim/study/training_prediction.hpp"

int main(int count, char** words) {
  using namespace moesim;
  try {
    scenario::OptionValues options;
    for (int at = 1; at + 1 < count; at += 2) options[words[at]] = words[at + 1];
    scenario::DocumentCache documents;
    const study::TrainingPrediction made = study::predict_training(options, documents);
    for (const std::string& note : made.notes) std::fprintf(stderr, "%s\n", note.c_str());

    const study::StepTimes times = made.times();
    std::printf("step %.9g ms\n", made.step_ms());
    std::printf("band %.2f: %.9g to %.9g ms\n", times.level, times.low_ms, times.high_ms);
    std::printf("p05 to p95: %.9g to %.9g ms\n", times.p05_ms, times.p95_ms);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
