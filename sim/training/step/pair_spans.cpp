#include "sim/training/step/pair_spans.hpp"

#include <algorithm>
#include <utility>

#include "sim/base/numbers.hpp"

namespace moesim::training {
namespace {

using parallel::ChunkPass;

using Shares = std::vector<std::pair<TrainingPart, double>>;  // one after another

void add_shares(Shares& shares, const PartTimes& times, bool is_forward) {
  Shares added;
  const auto add = [&](TrainingPart part) {
    if (times[at(part)] > 0) added.emplace_back(part, times[at(part)]);
  };
  if (is_forward) {
    for (const TrainingPart part : forward_order) add(part);
  } else {
    for (const TrainingPart part : backward_order()) add(part);
  }
  shares.insert(shares.end(), added.begin(), added.end());
}

// Divides a stretch, which is longer than the sum of its shares where an exchange slows it.
void divide(const PairSpan& whole, const Shares& shares, std::vector<PairSpan>& spans) {
  double all_us = 0;
  for (const auto& [part, us] : shares) all_us += us;
  const double scale = all_us > 0 ? (whole.end - whole.start).us() / all_us : 0;
  PairSpan span = whole;
  double until_us = 0;
  for (std::size_t share = 0; share < shares.size(); ++share) {
    until_us += shares[share].second;
    span.part = shares[share].first;
    span.end = share + 1 == shares.size()
                   ? whole.end
                   : std::min(whole.end, whole.start + Picoseconds::from_us(scale * until_us));
    if (span.end > span.start) spans.push_back(span);
    span.start = span.end;
  }
}

// The pieces of the two chunks' layers.
std::vector<PairSpan> layer_spans(Pipelines& pipelines, const PipelineRun& run,
                                  const ChunkPass& forward, const ChunkPass& backward,
                                  const Pipelines::Pair& pair) {
  const std::vector<const Passes*> ahead = pipelines.layers_of(run.place, forward);
  std::vector<const Passes*> back = pipelines.layers_of(run.place, backward);
  std::reverse(back.begin(), back.end());
  const Stage& stage = pipelines.stages()[index_of(forward.stage)];
  const Stage& back_stage = pipelines.stages()[index_of(backward.stage)];
  std::vector<PairSpan> spans;
  for (const parallel::PieceSpan& piece :
       parallel::overlapped_pieces(pair.forward, pair.backward, pair.rules)) {
    const bool is_forward = parallel::is_forward(piece.piece);
    const int layer = is_forward
                          ? pipelines.layer_number(stage, piece.layer)
                          : pipelines.layer_number(back_stage, back.size() - 1 - piece.layer);
    const Passes& passes = *(is_forward ? ahead : back)[piece.layer];
    Shares shares;
    add_shares(shares, parts_of(passes, piece.piece), is_forward);
    divide({TrainingPart::attention, parallel::is_exchange(piece.piece), layer, piece.start,
            piece.end, name_in(parallel::layer_piece_names, piece.piece)},
           shares, spans);
  }
  return spans;
}

}  // namespace

std::vector<TrainingPart> backward_order() {
  std::vector<TrainingPart> order(std::rbegin(forward_order), std::rend(forward_order));
  const auto gradients = std::find(order.begin(), order.end(), TrainingPart::gradients);
  std::rotate(gradients, gradients + 1, order.end());
  return order;
}

std::vector<PairSpan> pair_spans(Pipelines& pipelines, const PipelineRun& run,
                                 const ChunkPass& forward, const ChunkPass& backward) {
  const Pipelines::Pair pair = pipelines.pair_of(run, forward, backward);
  std::vector<PairSpan> spans = layer_spans(pipelines, run, forward, backward, pair);
  Picoseconds end;
  for (const PairSpan& span : spans) end = std::max(end, span.end);
  const auto add_behind = [&](const Shares& shares, Picoseconds until) {
    divide({TrainingPart::host, false, -1, end, until, ""}, shares, spans);
    end = until;
  };
  if (pair.launches > end) add_behind({{TrainingPart::host, 1}}, pair.launches);
  const Passes ends = pipelines.beside_layers(forward.stage);
  const Passes back_ends = pipelines.beside_layers(backward.stage);
  Shares beside;
  add_shares(beside, ends.forward, true);
  add_shares(beside, back_ends.input_gradient, false);
  add_shares(beside, back_ends.weight_gradient, false);
  add_behind(beside, end + pair.beside);
  std::stable_sort(spans.begin(), spans.end(), [](const PairSpan& one, const PairSpan& other) {
    return one.start != other.start ? one.start < other.start : one.is_beside > other.is_beside;
  });
  return spans;
}

PartTimes exposed_parts(const std::vector<PairSpan>& spans) {
  std::vector<const PairSpan*> streams[2];
  for (const PairSpan& span : spans) streams[span.is_beside ? 1 : 0].push_back(&span);
  PartTimes parts{};
  Picoseconds now;
  std::size_t next[2] = {};
  while (true) {
    const PairSpan* runs[2] = {};
    bool is_over = true;
    Picoseconds until(INT64_MAX);
    for (const int stream : {0, 1}) {
      while (next[stream] < streams[stream].size() && streams[stream][next[stream]]->end <= now) {
        ++next[stream];
      }
      if (next[stream] == streams[stream].size()) continue;
      const PairSpan* span = streams[stream][next[stream]];
      is_over = false;
      if (span->start <= now) runs[stream] = span;
      until = std::min(until, span->start <= now ? span->end : span->start);
    }
    if (is_over) return parts;
    const PairSpan* counts = runs[0] != nullptr ? runs[0] : runs[1];
    if (runs[0] != nullptr && runs[1] != nullptr && is_exchange(runs[0]->part) &&
        runs[1]->start <= runs[0]->start) {
      counts = runs[1];
    }
    if (counts != nullptr) parts[at(counts->part)] += (until - now).us();
    now = until;
  }
}

}  // namespace moesim::training
