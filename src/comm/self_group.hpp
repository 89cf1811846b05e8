// The group of one rank: there is nothing to send.
#pragma once

#include "comm/group.hpp"

namespace tessera::comm {

std::unique_ptr<Group> make_self_group();

}  // namespace tessera::comm
