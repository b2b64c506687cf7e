#include "sim/network/schedules/exchange_schedule.hpp"

namespace moesim::network {

const ExchangeSchedule schedules::burst{
    .name = "burst",
    .help = "all messages at once",
    .times = times_of_burst,
    .most_ranks = 4096,
    .bounded = true,
};

}  // namespace moesim::network
