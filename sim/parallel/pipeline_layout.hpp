#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesim::parallel {

// What one pipeline chunk (virtual stage) holds, in this order. It may be empty.
struct PipelineChunk {
  bool embedding = false;
  int layers = 0;       // decoder layers
  int first_layer = 0;  // number of the first of them in the model
  int mtp = 0;          // depths of multi-token prediction
  bool loss = false;    // output head and loss
  std::size_t at = 0;   // where the chunk ends in the text, from 0

  std::string text() const;  // "Et*4"; "" of an empty one
};

// All chunks in the order of the forward pass.
struct PipelineLayout {
  std::vector<PipelineChunk> chunks;
  std::string source;  // the text it was read from; "": evenly divided

  int layers() const;
  int mtp() const;
  // As a text that parse_pipeline_layout() reads: "Et*4|(t*4|)*14tmL".
  std::string text() const;
};

// Reads a layout as Megatron-Core writes it (docs: pipeline_parallel_layout): E embedding, t
// decoder layer, m depth of multi-token prediction, L loss; '|' or '/' ends a chunk, "*n" repeats
// the letter or bracket before it; commas and spaces mean nothing. Throws UsageError that names the
// character: another letter, an open bracket, E or L missing, twice or out of place, t after m,
// more than 100,000 symbols.
PipelineLayout parse_pipeline_layout(std::string_view text);

// `layers` divided equally over `chunks`, embedding in the first, `mtp` and loss in the last.
// Precondition: chunks > 0 divides layers.
PipelineLayout even_pipeline_layout(int layers, int chunks, int mtp = 0);
// The same with one layer more in the first chunks where they do not divide.
PipelineLayout nearly_even_pipeline_layout(int layers, int chunks, int mtp = 0);
// One chunk for each number of layers. Precondition: there is one.
PipelineLayout uneven_pipeline_layout(const std::vector<int>& layers, int mtp = 0);

// How Megatron-Core divides layers whose first or last stage has more or fewer than the others.
struct UnevenStages {
  int layers = 0;
  int ranks = 1;
  int virtual_stages = 1;
  std::optional<int> first;       // layers of the first rank; the rest divide over the other ranks
  std::optional<int> last;        // of the last one
  bool counts_embedding = false;  // as a layer of the first chunk, which has one fewer
  bool counts_loss = false;       // of the last chunk
};

// The layers of each chunk, those of a rank divided equally over its chunks (Megatron-Core,
// transformer_block.py, get_num_layers_to_build). Throws UsageError saying what does not divide.
// Preconditions: sizes are positive; `first` and `last` only without the two counts.
std::vector<int> layers_of_chunks(const UnevenStages& stages);

// Throws UsageError: decoder layers other than the model's, chunks that `ranks` do not divide, or,
// with chunk j on rank j mod ranks, multi-token prediction elsewhere than in the last chunk of a
// rank other than 0.
void check_pipeline_layout(const PipelineLayout& layout, int layers, int ranks);

}  // namespace moesim::parallel
