#pragma once

#include "sim/base/formats/document.hpp"

namespace moesim::profile {

// How the GPUs of one node reach each other: what the time among more GPUs than were measured
// is based on.
struct NodeLinks {
  enum class Kind { unknown, nvlink_switch, pcie };
  Kind kind = Kind::unknown;
  int gpus = 0;  // joined this way; 0: not said
  // Line rate of a GPU's port, each direction, bytes per microsecond.
  double port_bytes_per_us = 0;
  // The switch adds up what passes it (NVLink SHARP), so that a reduction sends each byte once.
  bool switch_reduces = false;
  // PCIe: this many GPUs share a root complex, and a link of its own joins such groups, each
  // direction; 0: unknown or one group.
  int group = 0;
  double group_bytes_per_us = 0;

  // Whether everything is given that the time among `count` GPUs depends on.
  bool join(int count) const;

  // Reads a profile's "topology" and the first of its "devices"; errors name file and key.
  static NodeLinks read(const Node& topology, const Node& device);
};

}  // namespace moesim::profile
