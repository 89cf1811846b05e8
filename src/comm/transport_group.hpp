// The collectives over any transport: bulk data through a chunked, full-duplex pairwise exchange.
#pragma once

#include "comm/group.hpp"
#include "comm/transport.hpp"

namespace tessera::comm {

/// A group of `shape.size` ranks as its rank `rank` sees it.
std::unique_ptr<Group> make_transport_group(std::unique_ptr<Transport> transport,
                                            const GroupShape& shape, std::int64_t rank);

}  // namespace tessera::comm
