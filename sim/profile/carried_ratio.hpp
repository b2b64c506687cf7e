#pragma once

namespace moesim::profile {

// Logs of the ratio of measured to usual time at a size that was not measured.
struct CarriedRatio {
  double log = 0;
  double low = 0;  // of the two readings below
  double high = 0;
  double octaves = 0;  // factors of two from the edge
};

// The ratio beyond the measured sizes, from that at the edge, the largest or the smallest of them.
//
// `log`: of the ratio at the edge. `beyond` > 0: the size over the edge. `longer`: the usual time
// of the edge over that of the size.
//
// What the edge takes more is of its bytes or of its latency. If the edge is bound by the same as
// the size, the ratio stays; else the difference stays as long at larger sizes, and falls with the
// bytes at smaller ones. Those are the two readings. Between them the answer takes the share of the
// edge's usual time that is of what binds the size: above, what its bytes take at the rate of the
// size; below, the latency.
CarriedRatio carry_beyond(double log, double beyond, double longer);

}  // namespace moesim::profile
