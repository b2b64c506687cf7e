#include "tools/moesim/recommend/request/search_room.hpp"

namespace moesim::tool {

double room_gib(const study::TrainingSearch& search) {
  return search.memory_share * search.space.base.profile->device().hbm_bytes.gib();
}

}  // namespace moesim::tool
