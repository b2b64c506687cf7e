#pragma once

#include <memory>
#include <vector>

#include "sim/training/job/training_job.hpp"
#include "sim/training/step/training_step.hpp"

namespace moesim::uncertainty {

// How far a step hangs on what is not known of its machine and is no error of a kernel's curve: the
// host's times, which are assumed to a factor of two, and the law of exchanges through NICs, which
// is off on machines that were left out of it.
struct AssumedMoves {
  // What the log of the step's time gains where launches and reads take twice as long, and what it
  // loses where they take half; 0 or more.
  double host_slower = 0;
  double host_faster = 0;
  double crossing = 0;  // the share of exchanges through NICs

  bool operator==(const AssumedMoves&) const = default;
};

// Those of a step, which is priced twice more. A wait begins where launches take longer than the
// GPU works, so a share of the step does not say what it gains. Launches or reads whose time was
// given (HostCosts::assumes_launch, assumes_read) do not move. Measurements between domains on the
// job's cluster stand for the law: no share then. The step's own host_moves are taken where it has
// them, in place of pricing it. `loads` as in training::training_step().
AssumedMoves moves_of(const training::TrainingJob& job, const training::TrainingStep& step,
                      std::shared_ptr<const training::DrawnLoads> loads = nullptr);

// The mean of several, none for none.
AssumedMoves mean_of(const std::vector<AssumedMoves>& all);
// What of `moves` is beyond `known`, each by itself.
AssumedMoves beyond(const AssumedMoves& moves, const AssumedMoves& known);

// What of the ratio of two steps hangs on the same, if one software runs both on two machines: the
// host's times are off alike on both, so that the difference of what each step gains counts (its
// size, whichever of the two gains more). The law of NICs is off on each machine by itself: the
// root of the squares of both shares.
AssumedMoves moves_between(const AssumedMoves& one, const AssumedMoves& other);

// How much farther the ends of a band at `level` lie from its centre, in logs, if the host's times
// and the law of NICs were off by as much as one in twenty is at either side (at 90 %): the host by
// a factor of two, the law by normal_p95 x 20 %. Both add in squares.
struct MovedEnds {
  double low = 0;
  double high = 0;
};
MovedEnds moved_ends(const AssumedMoves& moves, double level);

}  // namespace moesim::uncertainty
