#include "sim/parallel/overlapped_layers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "sim/base/check_range.hpp"
#include "sim/base/error.hpp"

namespace moesim::parallel {
namespace {

constexpr std::size_t none = static_cast<std::size_t>(-1);
constexpr std::size_t compute = 0;
constexpr std::size_t exchange = 1;

// Work is counted in picoseconds x SMs, so that a rate is a whole number of SMs.
struct Piece {
  std::int64_t work = 0;
  PieceSpan span = {};
  std::size_t after = none;  // on the other stream; what stands before it on its own comes first
  bool begun = false;
};

struct Stream {
  std::vector<Piece> pieces;
  std::size_t next = 0;  // pieces before it are done
};

// Two streams that run their pieces in order, each when the piece it comes after is done.
class TwoStreams {
 public:
  explicit TwoStreams(const OverlapRules& rules) : rules_(rules) {
    check_range("OverlapRules::sms", rules.sms, 1, 1 << 20);
    check_range("OverlapRules::exchange_sms", rules.exchange_sms, 0, rules.sms - 1);
  }

  // Returns the number of the piece on its stream; `after` is one on the other stream.
  std::size_t add(LayerPiece piece, std::size_t layer, Picoseconds duration, std::size_t after) {
    std::vector<Piece>& pieces = streams_[is_exchange(piece) ? exchange : compute].pieces;
    if (duration.count > std::numeric_limits<std::int64_t>::max() / rules_.sms - 1) {
      throw Error(fmt::format(
          "a simulated time of {:.0f} hours beside an exchange: on {} SMs it may be {:.0f}: is a "
          "rate or a size right?",
          duration.seconds() / 3600, rules_.sms,
          static_cast<double>(std::numeric_limits<std::int64_t>::max()) / rules_.sms / 3600e12));
    }
    pieces.push_back({duration.count * rules_.sms, {piece, layer, {}, {}}, after});
    return pieces.size() - 1;
  }

  // When the pieces with work ran, in the order in which they ended.
  std::vector<PieceSpan> take_spans() { return std::move(spans_); }

  Picoseconds run() {
    Picoseconds now;
    while (true) {
      finish_empty_pieces();
      const std::array<bool, 2> runs{ready(compute), ready(exchange)};
      if (!runs[compute] && !runs[exchange]) break;
      const std::array<std::int64_t, 2> rates{
          runs[exchange] ? rules_.sms - rules_.exchange_sms : rules_.sms, rules_.sms};
      std::int64_t step = INT64_MAX;
      for (const std::size_t stream : {compute, exchange}) {
        if (!runs[stream]) continue;
        step = std::min(step, (current(stream).work + rates[stream] - 1) / rates[stream]);
      }
      for (const std::size_t stream : {compute, exchange}) {
        if (!runs[stream]) continue;
        Piece& piece = current(stream);
        if (!piece.begun) piece.begun = true, piece.span.start = now;
        piece.work = std::max<std::int64_t>(0, piece.work - step * rates[stream]);
        if (piece.work > 0) continue;
        piece.span.end = now + Picoseconds(step);
        spans_.push_back(piece.span);
      }
      now += Picoseconds(step);
    }
    assert(!has_next(compute) && !has_next(exchange));
    return now;
  }

 private:
  bool has_next(std::size_t stream) const {
    return streams_[stream].next < streams_[stream].pieces.size();
  }
  Piece& current(std::size_t stream) { return streams_[stream].pieces[streams_[stream].next]; }
  bool ready(std::size_t stream) {
    if (!has_next(stream)) return false;
    const std::size_t after = current(stream).after;
    return after == none || after < streams_[1 - stream].next;
  }
  void finish_empty_pieces() {
    for (bool moved = true; moved;) {
      moved = false;
      for (const std::size_t stream : {compute, exchange}) {
        while (ready(stream) && current(stream).work == 0) {
          ++streams_[stream].next;
          moved = true;
        }
      }
    }
  }

  const OverlapRules& rules_;
  std::array<Stream, 2> streams_;
  std::vector<PieceSpan> spans_;
};

void add_layers(TwoStreams& streams, std::span<const LayerPieces> forward,
                std::span<const LayerPieces> backward) {
  using enum LayerPiece;
  std::size_t combined = none;    // forward output of the layer before
  std::size_t back_input = none;  // gradient of the layer after
  for (std::size_t at = 0; at < std::max(forward.size(), backward.size()); ++at) {
    const LayerPieces ahead = at < forward.size() ? forward[at] : LayerPieces{};
    const LayerPieces back = at < backward.size() ? backward[at] : LayerPieces{};
    const auto combine_back = streams.add(combine_backward, at, back.combine_backward, back_input);
    const auto attention = streams.add(attention_forward, at, ahead.attention_forward, combined);
    const auto experts_back =
        streams.add(experts_backward, at, back.experts_backward, combine_back);
    // Apart: exchanges need not wait for weight gradients.
    streams.add(experts_weight_gradient, at, back.experts_weight_gradient, none);
    const auto dispatch = streams.add(dispatch_forward, at, ahead.dispatch_forward, attention);
    const auto dispatch_back =
        streams.add(dispatch_backward, at, back.dispatch_backward, experts_back);
    const auto experts = streams.add(experts_forward, at, ahead.experts_forward, dispatch);
    combined = streams.add(combine_forward, at, ahead.combine_forward, experts);
    back_input = streams.add(attention_backward, at, back.attention_backward, dispatch_back);
    streams.add(attention_weight_gradient, at, back.attention_weight_gradient, none);
  }
}

}  // namespace

bool is_exchange(LayerPiece piece) {
  return piece == LayerPiece::combine_backward || piece == LayerPiece::dispatch_forward ||
         piece == LayerPiece::dispatch_backward || piece == LayerPiece::combine_forward;
}

bool is_forward(LayerPiece piece) {
  return piece == LayerPiece::attention_forward || piece == LayerPiece::dispatch_forward ||
         piece == LayerPiece::experts_forward || piece == LayerPiece::combine_forward;
}

Picoseconds overlapped_time(std::span<const LayerPieces> forward,
                            std::span<const LayerPieces> backward, const OverlapRules& rules) {
  TwoStreams streams(rules);
  add_layers(streams, forward, backward);
  return streams.run();
}

std::vector<PieceSpan> overlapped_pieces(std::span<const LayerPieces> forward,
                                         std::span<const LayerPieces> backward,
                                         const OverlapRules& rules) {
  TwoStreams streams(rules);
  add_layers(streams, forward, backward);
  streams.run();
  return streams.take_spans();
}

}  // namespace moesim::parallel
